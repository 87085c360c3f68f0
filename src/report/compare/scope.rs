//! Which numbers can be compared under a treatment, and why others cannot.

use std::collections::BTreeSet;

use kiln_core::{
    kinds::command::METRIC_PREFIX,
    record::{TrialRow, redefined::Redefinition},
    spec::learned::OtherNumber,
    statistics::Nature,
    units::{counted, listed},
};

use super::{
    super::points::ended,
    ComparedMetric,
    comparable::{RowFact, is_read_twice},
    matching::MatchedPair,
    pair::{by_trial, completed, shared_trials},
    treatment::Treatment,
};

/// Settings that decide how many samples a training sees.
const OF_LENGTH: [&str; 5] = [
    "train.steps",
    "train.epochs",
    "train.batch_size",
    "train.grad_accumulation",
    "run.devices_per_trial",
];
/// Settings that say with which weights a training begins: of one side alone, or of both. A path alone
/// says nothing.
const OF_WEIGHTS: [&str; 3] = [
    "train.initial_weights",
    "train.initial_weights.sha256",
    "train.initial_weights.without",
];
/// Numbers of samples that differ by less count as the same: the last partial batch of an epoch is
/// dropped.
const SAME_SAMPLES: f64 = 1.05;

/// Why a metric of a pair cannot be compared under this treatment; `None` if it can.
pub(super) fn refusal(
    metric: ComparedMetric,
    column: &str,
    treatment: &Treatment,
    pair: &MatchedPair<'_>,
) -> Option<String> {
    match metric {
        ComparedMetric::Loss | ComparedMetric::Accuracy(_) => of_loss(column, treatment, pair),
        ComparedMetric::Column(of) if of.is_learned() => of_loss(column, treatment, pair),
        ComparedMetric::Column(of) if of.is_until_target() => of_target(column, treatment, pair),
        ComparedMetric::StepTime => of_step(treatment, pair),
        ComparedMetric::Throughput => {
            let is_of_samples = column == "samples_per_second";
            (is_of_samples && treatment.has("data.kind"))
                .then(|| "samples are of another kind of data".to_owned())
        }
        ComparedMetric::Energy => ["data.kind", "model.seq_len"]
            .into_iter()
            .find(|key| treatment.has(key))
            .map(|key| format!("it is per sample, and `{key}` makes samples different")),
        ComparedMetric::Memory | ComparedMetric::Column(_) => None,
    }
}

/// Numbers of attempts that both sides have, because the output of one was read again for the other,
/// or because a run kept them from the other. `is_one_run`: both tables are of one run.
pub(super) fn of_one_attempt(pair: &MatchedPair<'_>, is_one_run: bool) -> Option<String> {
    let base = by_trial(&pair.base);
    let is_in_base = |row: &&&TrialRow| {
        let old = base.get(&row.trial);
        old.is_some_and(|old| is_read_twice(old, row))
    };
    let rows = pair.new.iter().filter(is_in_base).count();
    if rows > 0 {
        return Some(format!(
            "both sides have the same attempts ({}), whose output was read twice: they are not repeats",
            counted(rows, "row")
        ));
    }
    let rows = shared_trials(pair).len();
    (rows > 0 && !is_one_run).then(|| {
        format!(
            "both sides have the same attempts ({}), and not both have completed others: they are not \
             repeats; `kiln run FILE --fresh` runs all trials again for a run to compare with",
            counted(rows, "row")
        )
    })
}

/// A program's number that the two sides take from different places, or in different units.
pub(super) fn of_source(
    metric: ComparedMetric,
    column: &str,
    other_sources: &[String],
) -> Option<String> {
    // Energy is per sample.
    let column = match metric {
        ComparedMetric::Energy => "samples_per_second",
        _ => column,
    };
    let is_other = other_sources.iter().any(|other| other == column);
    let name = column.strip_prefix(METRIC_PREFIX).unwrap_or(column);
    is_other
        .then(|| format!("`model.metrics.{name}` takes it from another place or in another unit"))
}

/// A number of FLOPs that the two sides count by different formulas, or an MFU of different sources of
/// the peak.
pub(super) fn of_formula(column: &str, pair: &MatchedPair<'_>) -> Option<String> {
    type Source = (&'static str, fn(&TrialRow) -> Option<&str>);
    const FORMULA: Source = ("flops_formula", TrialRow::counted_formula);
    const PEAK: Source = ("peak_source", |row| row.peak_source.as_deref());
    let sources: &[Source] = match column {
        "flops_per_sample" | "window_flops" => &[FORMULA],
        "mfu" => &[FORMULA, PEAK],
        _ => return None,
    };
    let kinds = [&pair.base, &pair.new].map(|rows| {
        let kinds = completed(rows)
            .into_iter()
            .map(|row| row.model_kind.as_str());
        kinds.collect::<BTreeSet<&str>>()
    });
    // Each kind of model has its own formula.
    let is_one_kind = kinds[0] == kinds[1];
    sources
        .iter()
        .filter(|(name, _)| is_one_kind || *name != FORMULA.0)
        .find_map(|(name, of)| {
            let [base, new] = [&pair.base, &pair.new].map(|rows| {
                let known: BTreeSet<String> = completed(rows)
                    .into_iter()
                    .filter_map(|row| of(row).map(str::to_owned))
                    .collect();
                listed(&Vec::from_iter(known), " and ")
            });
            (!base.is_empty() && !new.is_empty() && base != new)
                .then(|| format!("its `{name}` is {base} in base and {new} in new; rates compare"))
        })
}

/// A number that means something else on one side: its table is older than the column's meaning of
/// today.
pub(super) fn of_meaning(
    column: &str,
    pair: &MatchedPair<'_>,
    treatment: Option<&Treatment>,
) -> Option<String> {
    // `energy_counter_joules per sample`.
    let name = column.split(' ').next()?;
    Redefinition::of_column(name).find_map(|change| of_change(change, pair, treatment))
}

/// Why a number does not compare because of one change of its meaning.
fn of_change(
    change: &Redefinition,
    pair: &MatchedPair<'_>,
    treatment: Option<&Treatment>,
) -> Option<String> {
    let is_settled = |treatment: &Treatment| {
        let concerned = change.setting;
        concerned.is_some_and(|setting| treatment.is_without(setting))
    };
    if treatment.is_some_and(is_settled) {
        return None;
    }
    let sides = [&pair.base, &pair.new].map(|rows| completed(rows));
    if change.is_one_meaning(sides.iter().flatten().copied()) {
        return None;
    }
    let is_concerned = |rows: &Vec<&TrialRow>| rows.iter().any(|row| change.concerns(row));
    let older = match [&sides[0], &sides[1]].map(is_concerned) {
        [true, false] => "base",
        [false, true] => "new",
        [true, true] => "part of both",
        [false, false] => return None,
    };
    Some(format!(
        "{older} is of a table before `trials/{}`, in which {}",
        change.since, change.before
    ))
}

/// Why times are not compared: one side ran on a processor that its table does not tell.
pub(super) fn of_unknown_processor(
    metric: ComparedMetric,
    pair: &MatchedPair<'_>,
    across: &[RowFact],
) -> Option<String> {
    if metric.nature() != Nature::Drifting || across.contains(&RowFact::Processor) {
        return None;
    }
    let is_known = |rows: &[&TrialRow]| {
        let mut rows = completed(rows).into_iter();
        rows.any(|row| row.is_on_gpu() || !RowFact::Processor.of(row).is_empty())
    };
    let silent = match [&pair.base, &pair.new].map(|rows| is_known(rows)) {
        [false, true] => "base",
        [true, false] => "new",
        _ => return None,
    };
    Some(format!(
        "no run of {silent} tells its processor (tables before `trials/6` do not), so it may be \
         another one; `--across processor` compares anyway"
    ))
}

/// Why the completed runs of a pair do not stand for all: how the others ended may depend on the
/// metric. `None` if they do.
pub(super) fn chosen_runs(metric: ComparedMetric, pair: &MatchedPair<'_>) -> Option<String> {
    let sides = [("base", &pair.base), ("new", &pair.new)];
    let ends = sides.into_iter().filter_map(|(side, rows)| {
        let ends = ended(rows, |outcome| metric.decides(outcome));
        (!ends.is_empty()).then(|| format!("of {side} {}", ends.join(", ")))
    });
    let ends: Vec<String> = ends.collect();
    (!ends.is_empty()).then(|| {
        format!(
            "the completed runs are chosen by how the others ended ({})",
            ends.join("; ")
        )
    })
}

fn of_loss(column: &str, treatment: &Treatment, pair: &MatchedPair<'_>) -> Option<String> {
    let keys = || treatment.settings.iter().map(|one| one.key.as_str());
    let rows = [&pair.base, &pair.new].map(|rows| completed(rows));
    let is_same = TrialRow::share_validation(rows.into_iter().flatten());
    let other = |key| Some((key, OtherNumber::given(key, column, is_same)?));
    if let Some((key, other)) = keys().find_map(other) {
        return Some(other.in_words(key, "loss"));
    }
    if !keys().any(|key| OF_LENGTH.contains(&key) || key.starts_with("train.early_stop")) {
        return None;
    }
    // A side that begins with trained weights has seen the samples of that training too.
    if column != "train_loss" && keys().any(|key| OF_WEIGHTS.contains(&key)) {
        return None;
    }
    let [base, new] = [&pair.base, &pair.new].map(|rows| most(rows, samples_seen));
    let (base, new) = (base?, new?);
    let (least, most) = (base.min(new), base.max(new));
    (most as f64 > SAME_SAMPLES * least as f64)
        .then(|| format!("it was reached after {base} samples in base and {new} in new"))
}

/// The time or steps until a target: of one loss on the same data, whatever the batches were.
fn of_target(column: &str, treatment: &Treatment, pair: &MatchedPair<'_>) -> Option<String> {
    let rows = [&pair.base, &pair.new].map(|rows| completed(rows));
    let is_same = TrialRow::share_validation(rows.into_iter().flatten());
    treatment.settings.iter().find_map(|one| {
        let other = OtherNumber::given(&one.key, column, is_same)?;
        Some(other.in_words(&one.key, "target"))
    })
}

fn of_step(treatment: &Treatment, pair: &MatchedPair<'_>) -> Option<String> {
    let other_work = ["model.seq_len", "data.kind"]
        .into_iter()
        .find(|key| treatment.has(key));
    if let Some(key) = other_work {
        return Some(format!("`{key}` makes a step different work"));
    }
    let size = |row: &TrialRow| Some(row.effective_batch_size);
    let [base, new] = [&pair.base, &pair.new].map(|rows| most(rows, size));
    let (base, new) = (base?, new?);
    (base != new).then(|| format!("a step is of {base} samples in base and of {new} in new"))
}

fn samples_seen(row: &TrialRow) -> Option<u64> {
    row.steps?.checked_mul(row.effective_batch_size)
}

/// The largest number of the completed rows.
fn most(rows: &[&TrialRow], of: fn(&TrialRow) -> Option<u64>) -> Option<u64> {
    completed(rows).into_iter().filter_map(of).max()
}
