//! Lists the trials that did not complete: those that ended in the same way for the same reason are
//! one entry.
//!
//! In come the last attempts of a table, and the run's folder, where logs are looked for; out comes
//! text. An entry claims only what the rows of the table show.

mod reason;

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use kiln_core::{
    plan::Outcome,
    record::{RunFolder, TableRow, TrialRow, TrialTable, attempt::STDERR, metric_reason},
    units::without_controls,
};

use self::reason::{on_one_line, without_own_details};
use super::points::{Point, UNSWEPT, did, points, shown};

/// Most entries of the list.
const MOST_ENTRIES: usize = 20;
/// Most axes that an entry names, and most values of each.
const MOST_FACTORS: usize = 3;
const MOST_VALUES: usize = 3;
/// Longest value, in letters.
const MOST_LETTERS: usize = 40;

/// The trials of a table that did not complete.
pub(super) struct NotCompleted<'a> {
    table: &'a TrialTable,
    /// `None` of a table without a run beside it: no log is named then.
    folder: Option<&'a RunFolder>,
    /// The last attempt of each trial.
    rows: Vec<&'a TableRow>,
    /// Whether the plan has trials that the table does not have.
    is_partial: bool,
    factors: Vec<Factor<'a>>,
    /// The largest first.
    groups: Vec<EndGroup<'a>>,
}

/// One entry of the list.
pub(super) struct EndEntry {
    pub(super) head: String,
    /// Names what the trials of a group have in common, and the log of the first one; `None` for a
    /// single trial.
    pub(super) detail: Option<String>,
}

/// An axis, or the seed, in which the trials of a table differ.
struct Factor<'a> {
    name: &'a str,
    /// Index of the axis; `None` for the seed.
    axis: Option<usize>,
    /// How many values it has in the table.
    count: usize,
}

impl Factor<'_> {
    fn value(&self, row: &TableRow) -> String {
        match self.axis {
            Some(axis) => row.axes.get(axis).cloned().unwrap_or_default(),
            None => row.fixed.seed.to_string(),
        }
    }

    /// Its values in these rows, without repetition, in their order.
    fn values(&self, rows: &[&TableRow]) -> Vec<String> {
        let mut seen = HashSet::new();
        let values = rows.iter().map(|row| self.value(row));
        values.filter(|value| seen.insert(value.clone())).collect()
    }
}

/// Trials that ended in the same way for the same reason.
struct EndGroup<'a> {
    outcome: Outcome,
    /// The whole reason if it is the same for all, else what they have in common.
    reason: String,
    rows: Vec<&'a TableRow>,
}

impl<'a> NotCompleted<'a> {
    /// `planned` is how many trials the plan has; 0 if unknown.
    pub(super) fn of(table: &'a TrialTable, folder: Option<&'a RunFolder>, planned: usize) -> Self {
        let rows = table.last_attempts();
        Self {
            is_partial: planned > rows.len(),
            factors: factors(table, &rows),
            groups: groups(&rows),
            table,
            folder,
            rows,
        }
    }

    /// The entries, the largest group first; the last one says how many are left out.
    pub(super) fn entries(&self) -> Vec<EndEntry> {
        let shown = self.groups.iter().take(MOST_ENTRIES);
        let mut entries: Vec<EndEntry> = shown.map(|group| self.entry(group)).collect();
        let more = self.groups.len().saturating_sub(MOST_ENTRIES);
        if more > 0 {
            let reasons = if more == 1 { "reason" } else { "reasons" };
            entries.push(EndEntry {
                head: format!("and {more} more {reasons}, see trials.csv"),
                detail: None,
            });
        }
        entries
    }

    /// The entries as lines of a page; empty if every trial completed.
    pub(super) fn text(&self) -> String {
        let lines = |entry: EndEntry| {
            let detail = entry.detail.map(|detail| format!("     {detail}\n"));
            format!("  {}\n{}", entry.head, detail.unwrap_or_default())
        };
        self.entries().into_iter().map(lines).collect()
    }

    fn entry(&self, group: &EndGroup<'_>) -> EndEntry {
        match group.rows.as_slice() {
            [row] => EndEntry {
                head: self.single(row, group),
                detail: None,
            },
            rows => EndEntry {
                head: without_controls(&format!(
                    "{} {}: {}",
                    rows.len(),
                    group.outcome,
                    group.reason
                )),
                detail: Some(without_controls(&self.detail(group))),
            },
        }
    }

    /// `t0e0cfa5337  failed      train.batch_size 8, seed 2: reason; trials/t0e0cfa5337/1/stderr.txt`.
    fn single(&self, row: &TableRow, group: &EndGroup<'_>) -> String {
        let fixed: &TrialRow = &row.fixed;
        let point = Point {
            values: &row.axes,
            rows: vec![fixed],
        }
        .name(&self.table.axes);
        let has_seeds = self.factors.iter().any(|factor| factor.axis.is_none());
        let place = match (has_seeds, point == UNSWEPT) {
            (true, true) => format!("seed {}", fixed.seed),
            (true, false) => format!("{point}, seed {}", fixed.seed),
            (false, _) => point,
        };
        let log = log_path(self.folder, fixed).filter(|log| !group.reason.contains(log.as_str()));
        let log = log.map(|log| format!("; {log}")).unwrap_or_default();
        let (trial, outcome) = (&fixed.trial.0, group.outcome);
        without_controls(&format!(
            "{trial}  {outcome:<11} {place}: {}{log}",
            group.reason
        ))
    }

    /// Names what the trials of a group have in common, most telling first, then the values of other axes
    /// that only some trials of the table have, then the first log.
    fn detail(&self, group: &EndGroup<'_>) -> String {
        let mut common: Vec<(usize, String)> = Vec::new();
        let mut other: Vec<String> = Vec::new();
        for factor in &self.factors {
            let values = factor.values(&group.rows);
            match values.as_slice() {
                [value] => common.push(self.common(factor, value, group)),
                values if values.len() < factor.count => other.push(several(factor, values)),
                _ => {}
            }
        }
        common.sort_by_key(|(others, _)| *others);
        let words = common.into_iter().map(|(_, words)| words);
        let mut parts: Vec<String> = words.chain(other).take(MOST_FACTORS).collect();
        parts.extend(self.first_of(group));
        parts.join("; ")
    }

    /// A value that all trials of a group have, with how the other trials with it ended; and how
    /// many those are.
    fn common(&self, factor: &Factor<'_>, value: &str, group: &EndGroup<'_>) -> (usize, String) {
        let all = self.rows.iter();
        let with: Vec<&TableRow> = all
            .copied()
            .filter(|row| factor.value(row) == value)
            .collect();
        let others = with.len().saturating_sub(group.rows.len());
        let has_completed = with.iter().any(|row| row.fixed.is_completed());
        let so_far = if self.is_partial { " so far" } else { "" };
        let rest = match (others, has_completed) {
            (0, _) => format!(", and every trial with it {}{so_far}", did(group.outcome)),
            (_, false) => format!(
                " (of {} trials with it, none of which completed{so_far})",
                with.len()
            ),
            (_, true) => format!(" (of {} trials with it)", with.len()),
        };
        let all = match group.rows.len() {
            2 => "both".to_owned(),
            count => format!("all {count}"),
        };
        let value = in_words(value);
        (others, format!("{} {value} in {all}{rest}", factor.name))
    }

    /// The log of the first trial, else its id, and the number of the others.
    fn first_of(&self, group: &EndGroup<'_>) -> Option<String> {
        let first = group.rows.first()?;
        let named = log_path(self.folder, &first.fixed);
        let named = named.unwrap_or_else(|| first.fixed.trial.0.clone());
        Some(format!("{named} and {} more", group.rows.len() - 1))
    }
}

/// The path of an attempt's standard error below the run's folder, if it is there.
pub(super) fn log_path(folder: Option<&RunFolder>, row: &TrialRow) -> Option<String> {
    let folder = folder?;
    let path = folder.attempt(&row.trial, row.attempt).join(STDERR);
    let below = path.strip_prefix(folder.path()).ok()?;
    path.is_file().then(|| below.display().to_string())
}

/// The axes in which these rows differ, and the seed if points have repeats.
fn factors<'a>(table: &'a TrialTable, rows: &[&TableRow]) -> Vec<Factor<'a>> {
    let has_repeats = points(table).iter().any(|point| point.rows.len() > 1);
    let axes = table.axes.iter().enumerate().map(|(axis, name)| Factor {
        name: name.as_str(),
        axis: Some(axis),
        count: 0,
    });
    let seed = has_repeats.then_some(Factor {
        name: "seed",
        axis: None,
        count: 0,
    });
    let counted = axes.chain(seed).map(|factor| Factor {
        count: factor.values(rows).len(),
        ..factor
    });
    counted.filter(|factor| factor.count > 1).collect()
}

/// The rows that did not complete by their ends, the largest group first.
fn groups<'a>(rows: &[&'a TableRow]) -> Vec<EndGroup<'a>> {
    let mut groups: Vec<EndGroup<'a>> = Vec::new();
    let mut place_of: HashMap<(Outcome, String), usize> = HashMap::new();
    for &row in rows {
        let outcome = row.fixed.outcome;
        if outcome == Outcome::Completed {
            continue;
        }
        let reason = on_one_line(&row.fixed);
        let common = without_own_details(&row.fixed, &reason);
        let place = *place_of
            .entry((outcome, common.clone()))
            .or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => {
                if group.reason != reason {
                    // The lines of the first trial are an example of what the others have.
                    let (_, example) = metric_reason::split_nearest(&group.reason);
                    group.reason = common + example;
                }
                group.rows.push(row);
            }
            None => groups.push(EndGroup {
                outcome,
                reason,
                rows: vec![row],
            }),
        }
    }
    groups.sort_by_key(|group| Reverse(group.rows.len()));
    groups
}

/// `model.values.i 3, 6, 9, …`.
fn several(factor: &Factor<'_>, values: &[String]) -> String {
    let first = values.iter().take(MOST_VALUES);
    let first: Vec<String> = first.map(|value| in_words(value)).collect();
    let more = match values.len() > MOST_VALUES {
        true => ", …",
        false => "",
    };
    format!("{} {}{more}", factor.name, first.join(", "))
}

/// A value: the middle of a long one is left out, since generated texts often begin alike; one with
/// blanks at an end is in quotes, else they are not seen.
fn in_words(value: &str) -> String {
    let letters: Vec<char> = shown(value).chars().collect();
    let half = MOST_LETTERS / 2;
    let short: String = match letters.len() > MOST_LETTERS {
        true => {
            let (first, last) = (&letters[..half], &letters[letters.len() - half..]);
            first.iter().chain(&['…']).chain(last).collect()
        }
        false => letters.iter().collect(),
    };
    match value == value.trim() {
        true => short,
        false => format!("\"{short}\""),
    }
}

#[cfg(test)]
mod tests;
