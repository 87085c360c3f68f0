//! Compares two tables: the changes, their size, and whether they are larger than noise.
//!
//! Rows come in, verdicts go out; [`ComparisonPage`] prints them. The rules are in
//! `docs/comparing.md`.

mod applied;
mod at_once;
mod between;
mod between_page;
mod between_programs;
mod column;
mod comparable;
mod copies;
mod differences;
mod disturbed_runs;
mod export;
mod gate;
mod machines;
mod matching;
mod measured;
mod metric;
mod order;
mod outliers;
mod pair;
mod paired;
mod record;
mod render;
mod reproduced;
mod scope;
mod treatment;
mod words;

use std::{collections::HashSet, fmt};

use kiln_core::{
    plan::TrialId,
    record::{TrialRow, TrialTable, disturbance::Disturbance},
    statistics::{Design, Drift, FEWEST_RUNS, Nature},
};
use serde::{Serialize, Serializer};

pub use between::{Between, SplitTable, between};
pub use column::ColumnMetric;
pub use comparable::{RowFact, Unlike};
pub(in crate::report) use copies::are_copies;
pub use gate::{Gate, gate, gate_of_all, unsaid};
pub use machines::{RecordedTable, tell_machines_apart};
pub use matching::keys_in_common;
pub use measured::verdict_of;
pub use metric::ComparedMetric;
pub use record::{Fact, facts, has_data_by_name};
pub(in crate::report) use record::{beginning, is_fleeting};
pub use render::{ComparisonPage, now_different};
pub use reproduced::{Reproduction, reproduced};
pub use treatment::{MOST_TREATED, TreatedKey, Treatment, is_treatable, names_setting};
pub use words::word;

pub use paired::{PairedBlocks, how_to_compare};

use self::{applied::AppliedTreatment, at_once::AtOnce};
use matching::{Matched, MatchedPair, by_id, by_keys, whole_key};
use pair::{completed, disturbances, drop_shared, unlike_in, without_numbers};

/// Options of a comparison of two tables.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Dotted keys or columns by whose values rows are matched; by trial id if there are none.
    pub by: Vec<String>,
    /// Fields that may differ, because the comparison is about them.
    pub across: Vec<RowFact>,
    /// Settings that the comparison is about, by dotted key.
    pub across_settings: Vec<String>,
    /// Settings in which the runs are known to differ; `None` refuses whatever `across` does not
    /// name.
    pub treatment: Option<Treatment>,
    /// Metrics of commands, by their columns, that the two sides take from different places or in
    /// different units.
    pub other_sources: Vec<String>,
    /// The training losses of the two sides are means of different numbers of steps.
    pub is_other_mean: bool,
    /// Exclude disturbed runs ([`TrialRow::disturbances`]).
    pub is_clean: bool,
    /// Columns to compare besides those of every comparison.
    pub columns: Vec<ColumnMetric>,
    /// Whether the records of both tables are of one run; `None` where one has no record.
    pub is_one_record: Option<bool>,
}

impl Options {
    /// All metrics, in the order of the page.
    fn metrics(&self) -> Vec<ComparedMetric> {
        let columns = self.columns.iter().copied().map(ComparedMetric::Column);
        let is_asked = |metric: &ComparedMetric| {
            let mut columns = self.columns.iter();
            columns.any(|column| column.name == metric.name())
        };
        let accuracies = ComparedMetric::accuracies().filter(|metric| !is_asked(metric));
        let every = ComparedMetric::ALL.into_iter().chain(accuracies);
        columns.chain(every).collect()
    }
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Better,
    Worse,
    Same,
    /// The interval includes both a change that counts and no change.
    Ambiguous,
    /// One side ran after the other, and drift of the machine alone may explain the change.
    CannotTell,
    TooFewRuns,
    NotComparable,
}

/// One metric of one pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub metric: ComparedMetric,
    pub verdict: Verdict,
    /// Column of the numbers, the same for both sides.
    pub column: &'static str,
    /// Runs with the number on each side.
    pub base_runs: usize,
    pub new_runs: usize,
    /// Completed runs without the number, or with one that cannot be part of a ratio.
    pub base_missing: usize,
    pub new_missing: usize,
    /// A preferred column that only one side has.
    pub passed_over: Option<&'static str>,
    /// The geometric mean of each side in the metric's unit; the arithmetic one of differences.
    pub base: f64,
    pub new: f64,
    /// Whether the arithmetic mean of a side, which a report shows, is visibly another number.
    #[serde(skip)]
    pub is_apart_from_report: bool,
    /// Whether some runs have 0, so that differences stand in place of ratios.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_of_differences: bool,
    /// new / base; infinite where base is 0.
    pub ratio: f64,
    /// 95 % interval of the ratio, adjusted for all comparisons of these tables; `None` where there
    /// are too few runs.
    pub interval: Option<[f64; 2]>,
    /// The smallest change, as a share, that so many runs of this spread would show four times in
    /// five; never less than what counts as a change.
    pub visible: Option<f64>,
    /// Order of the runs of both sides in time; `None` where there are too few.
    pub design: Option<Design>,
    /// Drift of the machine during the runs.
    pub drift: Drift,
    /// Why the numbers cannot be compared, although the rows can.
    pub refusal: Option<String>,
    /// Why the runs are too few, although their number is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_too_few: Option<&'static str>,
    /// Whether these runs exclude a change for the worse that is large enough to count.
    #[serde(skip)]
    pub excludes_worse: bool,
}

/// One point that both tables have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub name: String,
    /// Its values of the axes of base, or of the keys by which its points match.
    #[serde(skip)]
    pub values: Vec<(String, String)>,
    /// True if its trials are fallbacks: smaller batches in the place of trials that ran out of memory. Its
    /// name says so, its `values` do not.
    #[serde(skip)]
    pub is_in_pieces: bool,
    /// The side's value, where values of an axis are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<String>,
    /// How its runs are in blocks, where values of an axis are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<PairedBlocks>,
    pub comparisons: Vec<Comparison>,
    /// Fields that make it not comparable; empty if it can be compared.
    pub unlike: Vec<Unlike>,
    /// Number of trials in both tables that have losses, and how many of these losses are equal to
    /// the bit.
    pub losses: usize,
    pub equal_losses: usize,
    /// Trials of which one side has a loss that the other has not.
    pub lacking_losses: usize,
    /// The largest distance of two losses of one trial, as a share of that of base.
    pub losses_apart: Option<f64>,
    /// Outcomes of the trials of each side, where not all are `completed`.
    pub ends: Option<[String; 2]>,
    /// Outliers, runs that are far from the others of their side, with what may be the reason.
    pub outliers: Vec<String>,
    /// Runs that both sides have: one and the same row.
    pub shared: usize,
    /// Whether both sides have these runs alone.
    #[serde(skip)]
    pub is_one_run: bool,
    /// The GPUs that each side ran on, by UUID, where they are not the same ones.
    pub boards: Option<[Vec<String>; 2]>,
    /// Columns that both sides have while one of them has no number there that can be in a ratio.
    pub unusable: Vec<&'static str>,
    /// The columns in `unusable` in which a side has no number above 0.
    #[serde(skip)]
    pub not_positive: Vec<&'static str>,
    /// Columns, asked for, of a command or of an accuracy, that the runs of one side alone have,
    /// with the side that lacks them.
    pub one_sided: Vec<(&'static str, &'static str)>,
    /// The number of completed runs of each side, without those that were excluded.
    #[serde(skip)]
    pub completed: [usize; 2],
    /// The completed runs of each side that were disturbed; excluded from the numbers on request.
    pub disturbed: [Vec<DisturbedRun>; 2],
}

/// A run that was disturbed, and by what. In JSON it is one text: `trial 0123456789: clocks limited for
/// 90 % of the window (hw_thermal_slowdown)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DisturbedRun {
    pub trial: TrialId,
    pub by: Vec<Disturbance>,
}

impl fmt::Display for DisturbedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let causes: Vec<String> = self.by.iter().map(Disturbance::to_string).collect();
        write!(f, "trial {}: {}", self.trial, causes.join(", "))
    }
}

impl Serialize for DisturbedRun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Compared {
    /// The comparison of speed: by throughput, or by step time where there is no throughput.
    pub(super) fn speed(&self) -> Option<&Comparison> {
        [ComparedMetric::Throughput, ComparedMetric::StepTime]
            .into_iter()
            .find_map(|metric| self.comparisons.iter().find(|one| one.metric == metric))
    }

    /// Whether both sides have enough runs for a verdict without the disturbed ones.
    fn has_enough_clean_runs(&self) -> bool {
        let Some(one) = self.timed() else {
            return false;
        };
        let [base, new] = &self.disturbed;
        let left = [
            one.base_runs.saturating_sub(base.len()),
            one.new_runs.saturating_sub(new.len()),
        ];
        left.iter().all(|runs| *runs >= FEWEST_RUNS)
    }

    /// The first of its numbers that the state of the machine reaches: it tells how the runs lie in
    /// time.
    fn timed(&self) -> Option<&Comparison> {
        self.comparisons
            .iter()
            .find(|one| one.metric.nature() == Nature::Drifting)
    }
}

/// Two tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparisons {
    pub pairs: Vec<Compared>,
    pub only_base: Vec<String>,
    pub only_new: Vec<String>,
    /// Fields in which compared rows differ, as asked for.
    pub across: Vec<Unlike>,
    /// Differences between the runs as a whole, which the comparison is about.
    pub treatment: Vec<TreatedKey>,
    /// The keys of these that nobody named in advance; no gate passes for them.
    #[serde(skip)]
    pub unnamed: Vec<String>,
    /// Whether disturbed runs were excluded.
    pub is_clean: bool,
    /// Whether both tables are of one run.
    #[serde(skip)]
    pub is_one_run: bool,
    /// The axis whose values are the sides; `None` for two tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<Between>,
    /// The metrics that were compared, in the order of the page.
    #[serde(skip)]
    pub metrics: Vec<ComparedMetric>,
}

impl Comparisons {
    /// Whether the tables have no point in common.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether all rows of the points that both runs have were kept by one from the other (`kiln run
    /// --keep`).
    fn has_kept_rows_only(&self) -> bool {
        !self.is_one_run && self.pairs.iter().all(|pair| pair.is_one_run)
    }

    /// Whether a run has this metric, on one side at least.
    pub fn has(&self, metric: ComparedMetric) -> bool {
        self.pairs.iter().any(|pair| {
            pair.comparisons.iter().any(|one| one.metric == metric)
                || pair.unusable.iter().any(|column| metric.has(column))
                || pair.one_sided.iter().any(|(column, _)| metric.has(column))
        })
    }
}

/// Compares two tables.
///
/// # Errors
/// A message about a key of [`Options::by`] that does not match rows one to one.
pub fn compare(
    base: &TrialTable,
    new: &TrialTable,
    options: &Options,
) -> Result<Comparisons, String> {
    let (matched, is_by_treatment) = matched(base, new, options)?;
    let matchup = Matchup {
        matched,
        is_by_treatment,
        at_once: AtOnce::of(base, new),
        options: options.clone(),
        side: None,
    };
    Ok(judged(vec![matchup], options))
}

/// Whether the tables have a point in common by these options.
///
/// # Errors
/// As [`compare`].
pub fn has_match(base: &TrialTable, new: &TrialTable, options: &Options) -> Result<bool, String> {
    Ok(!matched(base, new, options)?.0.pairs.is_empty())
}

/// Two sides whose points are matched.
struct Matchup<'a> {
    matched: Matched<'a>,
    is_by_treatment: bool,
    at_once: AtOnce<'a>,
    options: Options,
    /// The side's value, where values of an axis are compared.
    side: Option<String>,
}

/// Compares the pairs of all matchups; their intervals are adjusted together.
fn judged(mut matchups: Vec<Matchup<'_>>, options: &Options) -> Comparisons {
    let metrics = options.metrics();
    let mut found = Comparisons {
        pairs: Vec::new(),
        only_base: Vec::new(),
        only_new: Vec::new(),
        across: Vec::new(),
        treatment: Vec::new(),
        unnamed: Vec::new(),
        is_clean: options.is_clean,
        is_one_run: false,
        between: None,
        metrics,
    };
    for matchup in &mut matchups {
        matchup.without_numbers(&mut found);
    }
    // A run that kept rows of another has other points too, or another record.
    let is_one_record = options
        .is_one_record
        .unwrap_or(found.only_base.is_empty() && found.only_new.is_empty());
    found.is_one_run = is_one_record && found.pairs.iter().all(|pair| pair.is_one_run);
    measured::fill(&matchups, &mut found);
    found
}

impl Matchup<'_> {
    /// Adds the pairs without their comparisons; removes the rows that do not count.
    fn without_numbers(&mut self, found: &mut Comparisons) {
        let disturbed: Vec<[Vec<DisturbedRun>; 2]> = self
            .matched
            .pairs
            .iter()
            .map(|pair| self.disturbances(pair))
            .collect();
        if self.options.is_clean {
            self.drop_disturbed();
        }
        let pairs = &mut self.matched.pairs;
        let shared: Vec<usize> = pairs.iter_mut().map(drop_shared).collect();
        let treated = AppliedTreatment::of(pairs, &self.options, self.is_by_treatment);
        let across = &self.options.across;
        for ((pair, mut disturbed), shared) in pairs.iter_mut().zip(disturbed).zip(shared) {
            let blocks = self.side.as_ref().map(|_| {
                paired::pair(pair, &|unlike| {
                    treated.covers(unlike) || across.contains(&unlike.field)
                })
            });
            let (asked, unlike): (Vec<Unlike>, Vec<Unlike>) = unlike_in(pair)
                .into_iter()
                .filter(|unlike| !treated.covers(unlike))
                .partition(|unlike| across.contains(&unlike.field));
            asked.into_iter().for_each(|unlike| {
                if !found.across.contains(&unlike) {
                    found.across.push(unlike)
                }
            });
            if !self.options.is_clean {
                // Only disturbed runs that count are told.
                for (disturbed, rows) in disturbed.iter_mut().zip([&pair.base, &pair.new]) {
                    let rows = completed(rows).into_iter();
                    let kept: HashSet<&TrialId> = rows.map(|row| &row.trial).collect();
                    disturbed.retain(|run| kept.contains(&run.trial));
                }
            }
            // In blocks the sides are compared within each, where nothing differs.
            let unlike = match &blocks {
                Some(blocks) if blocks.are_enough => Vec::new(),
                _ => unlike,
            };
            found.pairs.push(Compared {
                disturbed,
                blocks,
                side: self.side.clone(),
                shared,
                ..without_numbers(pair, unlike, &found.metrics, self.options.is_other_mean)
            });
        }
        let new_keys = |known: &[TreatedKey], keys: Vec<TreatedKey>| -> Vec<TreatedKey> {
            let is_new = |key: &TreatedKey| !known.contains(key);
            keys.into_iter().filter(is_new).collect()
        };
        let keys = new_keys(&found.treatment, treated.keys);
        found.treatment.extend(keys);
        for key in treated.unnamed {
            if !found.unnamed.contains(&key) {
                found.unnamed.push(key);
            }
        }
        found.only_base.append(&mut self.matched.only_base);
        found.only_new.append(&mut self.matched.only_new);
    }

    fn disturbances(&self, pair: &MatchedPair<'_>) -> [Vec<DisturbedRun>; 2] {
        [(&pair.base, "new"), (&pair.new, "base")]
            .map(|(rows, other)| disturbances(rows, &self.at_once, other))
    }

    fn drop_disturbed(&mut self) {
        let at_once = &self.at_once;
        let is_quiet =
            |row: &TrialRow| row.disturbances().is_empty() && at_once.beside(row).is_none();
        let is_clean = |row: &&TrialRow| !row.is_completed() || is_quiet(row);
        self.matched
            .pairs
            .iter_mut()
            .flat_map(|pair| [&mut pair.base, &mut pair.new])
            .for_each(|rows| rows.retain(is_clean));
    }
}

/// Matches rows by the keys of `--by`, else by id; where no id is in both tables because of a
/// treatment, by the axes, which the second value tells.
fn matched<'a>(
    base: &'a TrialTable,
    new: &'a TrialTable,
    options: &Options,
) -> Result<(Matched<'a>, bool), String> {
    if !options.by.is_empty() {
        let keys = options.by.iter().map(|key| whole_key([base, new], key));
        return Ok((by_keys(base, new, &keys.collect::<Vec<_>>())?, false));
    }
    let matched = by_id(base, new);
    match &options.treatment {
        Some(treatment) if matched.pairs.is_empty() && treatment.is_few() => {
            Ok((treatment.matched(base, new), true))
        }
        _ => Ok((matched, false)),
    }
}

#[cfg(test)]
mod between_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod treatment_tests;
