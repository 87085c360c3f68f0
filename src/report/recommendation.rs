//! The result of a search, for people: the choice, the trials it is based on, its cost, and
//! warnings.

use std::fmt::Write;

use kiln_core::{
    plan::{
        Outcome,
        search::{Cost, Probe, Recommendation, Warning, describe_values},
        show,
    },
    units::{Bytes, Fraction, Seconds, counted, decimals, without_controls},
};
use serde_json::{Map, Value, json};

use crate::output::markdown;

use super::{
    findings::capitalized,
    layout::{MUST_STAY, PageColumn, PageStyle, as_markdown, fitting, hidden, layout, significant},
};

/// Result of a search and its context.
#[derive(Clone, Copy, Debug)]
pub struct SearchScope<'a> {
    pub found: &'a Recommendation,
    /// The quality in which the choice is best: `fastest`, `lowest validation loss`.
    pub goal: &'a str,
    /// The column that decides, where it is not one of the usual columns.
    pub metric: Option<&'a str>,
    /// Says that the search does not optimize the experiment's objective.
    pub unsearched: Option<&'a str>,
    /// Choices that could not be trials, each with the reason.
    pub refused: &'a [(String, String)],
}

impl SearchScope<'_> {
    /// For a terminal or a pipe, ending in a line feed.
    pub fn text(&self, style: PageStyle) -> String {
        let mut page = format!(
            "{}\n  {}\n\n",
            without_controls(&self.head()),
            without_controls(&self.found.why)
        );
        let columns = self.evidence();
        let kept = fitting(&columns, style.width);
        page.push_str(&layout(&kept, style.width, style.has_color));
        page.push_str(if self.has_mark() {
            "\n* the choice\n"
        } else {
            "\n"
        });
        if let Some(hidden) = hidden(&columns, &kept) {
            let _ = writeln!(page, "{hidden}");
        }
        for (kind, text) in self.remarks() {
            let _ = writeln!(page, "{kind}: {}", without_controls(&text));
        }
        page
    }

    /// For a file that people commit.
    pub fn markdown(&self, title: &str) -> String {
        let mut page = format!(
            "# {}\n\n**{}.** {}.\n\n",
            markdown::inline(title),
            markdown::inline(&self.head()),
            markdown::inline(&self.why_in_a_sentence())
        );
        page.push_str(&as_markdown(&self.evidence()));
        page.push_str(if self.has_mark() {
            "\n\\*: the choice.\n\n"
        } else {
            "\n"
        });
        for (kind, text) in self.remarks() {
            let _ = writeln!(page, "- {kind}: {}", markdown::inline(&text));
        }
        page
    }

    /// For programs: what was chosen, why, at what cost, and what to mind.
    pub fn json(&self) -> Value {
        let Recommendation {
            chosen,
            alike,
            why,
            cost,
            warnings,
            notes,
            ..
        } = self.found;
        let object =
            |values: &Vec<(String, Value)>| values.iter().cloned().collect::<Map<String, Value>>();
        let chosen = chosen.as_ref().map(object);
        let alike: Vec<_> = alike.iter().map(object).collect();
        let Cost {
            trials,
            seconds,
            grid_trials,
            grid_seconds,
        } = cost;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let refused: Vec<Value> = self
            .refused
            .iter()
            .map(|(choice, why)| json!({"choice": choice, "why": why}))
            .collect();
        json!({
            "chosen": chosen,
            "goal": self.goal,
            "unsearched_objective": self.unsearched,
            "cannot_be_told_apart": alike,
            "why": why,
            "warnings": warnings,
            "notes": notes,
            "refused": refused,
            "cost": {
                "trials": trials,
                "seconds": seconds,
                "grid_trials": grid_trials,
                "grid_seconds": grid_seconds,
            },
        })
    }

    /// Begins with a capital letter, unless it begins with a key.
    fn why_in_a_sentence(&self) -> String {
        let first = self.found.why.split(' ').next().unwrap_or_default();
        match first.contains('.') {
            true => self.found.why.clone(),
            false => capitalized(&self.found.why),
        }
    }

    fn head(&self) -> String {
        match &self.found.chosen {
            Some(values) => {
                let others = self.found.alike.len().saturating_sub(1);
                let unless = match others {
                    0 if self.has_unranked() => " of those that were measured".to_owned(),
                    0 => String::new(),
                    _ => format!(", not told apart from {}", counted(others, "other")),
                };
                format!(
                    "Recommended: {} ({}{unless})",
                    describe_values(values),
                    self.goal
                )
            }
            None => "Nothing to recommend".to_owned(),
        }
    }

    /// Whether completed trials lack the number that decides.
    fn has_unranked(&self) -> bool {
        let mut warnings = self.found.warnings.iter();
        warnings.any(|warning| matches!(warning, Warning::NoNumber { .. }))
    }

    /// A line per trial, in the order in which they ran.
    fn evidence(&self) -> Vec<PageColumn> {
        let probes = &self.found.evidence;
        let column = |head: &str, keep: u8, of: &dyn Fn(&Probe) -> Option<String>| {
            PageColumn::new(head, keep, probes.iter().map(of))
        };
        let mut columns = vec![PageColumn::of_marks(
            probes.iter().map(|probe| self.is_chosen(probe)),
        )];
        for (place, (key, _)) in probes
            .first()
            .map(|probe| probe.choice.values.as_slice())
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            columns.push(column(key, u8::MAX, &|probe| {
                probe.choice.values.get(place).map(|(_, value)| show(value))
            }));
        }
        let has_repeats = probes.iter().any(|probe| probe.choice.repeat > 0);
        columns.push(column("repeat", 90, &|probe| {
            has_repeats.then(|| (probe.choice.repeat + 1).to_string())
        }));
        columns.push(column("outcome", MUST_STAY, &|probe| Some(outcome(probe))));
        if let Some(metric) = self.metric {
            columns.push(column(metric, MUST_STAY, &|probe| {
                probe.metric.map(|value| decimals(value, 4))
            }));
        }
        columns.push(column("samples/s", 80, &|probe| {
            probe.samples_per_second.map(significant)
        }));
        columns.push(column("tokens/s", 70, &|probe| {
            probe.tokens_per_second.map(significant)
        }));
        columns.push(column("memory", 60, &|probe| {
            probe
                .memory_held_bytes
                .map(|bytes| Bytes(bytes).to_string())
        }));
        columns.push(column("of limit", 65, &|probe| {
            probe
                .memory_share()
                .map(|share| Fraction(share).to_string())
        }));
        columns.push(column("data wait", 50, &|probe| {
            probe
                .data_wait_fraction
                .map(|share| Fraction(share).to_string())
        }));
        columns.push(column("took", 40, &|probe| {
            probe.seconds.map(|seconds| Seconds(seconds).to_string())
        }));
        columns.retain(PageColumn::says_something);
        columns
    }

    /// Whether a trial has the mark of the choice.
    fn has_mark(&self) -> bool {
        let mut probes = self.found.evidence.iter();
        probes.any(|probe| self.is_chosen(probe))
    }

    fn is_chosen(&self, probe: &Probe) -> bool {
        self.found.chosen.as_ref() == Some(&probe.choice.values)
            && probe.outcome == Outcome::Completed
    }

    fn remarks(&self) -> Vec<(&'static str, String)> {
        let warnings = self
            .found
            .warnings
            .iter()
            .map(|warning| ("warning", warning.to_string()));
        let refused = self
            .refused
            .iter()
            .map(|(choice, why)| ("not possible", format!("{choice}: {why}")));
        let notes = self.found.notes.iter().map(|note| ("note", note.clone()));
        let unsearched = self.unsearched.map(|text| ("note", text.to_owned()));
        warnings
            .chain(unsearched)
            .chain(refused)
            .chain(notes)
            .chain([("cost", cost(&self.found.cost))])
            .collect()
    }
}

/// Name of an outcome in the evidence: a `skipped` trial never ran.
fn outcome(probe: &Probe) -> String {
    match probe.outcome {
        Outcome::Skipped => "not run".to_owned(),
        outcome => outcome.to_string(),
    }
}

/// `7 trials in 40 s; the whole grid is 64 trials, about 6 min 5 s`.
fn cost(cost: &Cost) -> String {
    let time = cost
        .grid_seconds
        .map(|seconds| format!(", about {}", Seconds(seconds)))
        .unwrap_or_default();
    let trials = |count: u64| counted(count as usize, "trial");
    format!(
        "{} in {}; the whole grid is {}{time}",
        trials(cost.trials),
        Seconds(cost.seconds),
        trials(cost.grid_trials)
    )
}
