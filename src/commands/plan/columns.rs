//! The columns of a printed plan that are not axes, each declared once: its head, its cells, and
//! when it is shown.

use kiln_core::{
    plan::{Plan, Trial, show},
    units::{Bytes, Count, Seconds},
};

use super::{
    before::TrialsBefore,
    expectation::{Expectations, Expected, sum_in_words},
};
use crate::{output::table::TextTable, schedule::EstimateGrade};

/// A plan, and what is known of its trials.
#[derive(Clone, Copy)]
pub(super) struct PlanRows<'a> {
    pub(super) plan: &'a Plan,
    pub(super) expected: &'a Expectations,
    pub(super) before: TrialsBefore<'a>,
    /// Whether a time shows its range beside its median.
    pub(super) has_ranges: bool,
}

/// A column that is not an axis.
struct PlanColumn {
    head: &'static str,
    /// Whether this plan has it.
    is_shown: fn(&PlanRows<'_>) -> bool,
    cell: fn(&Trial, &PlanRows<'_>) -> String,
    /// A narrow terminal leaves out the columns with a place, in this order.
    left_out: Option<u8>,
    /// The words for a value that all rows share. They stand above the table in place of the column.
    in_words: Option<fn(&str) -> String>,
}

static BEFORE_AXES: [PlanColumn; 4] = [
    PlanColumn {
        head: "#",
        is_shown: |_| true,
        cell: |trial, _| trial.number.to_string(),
        left_out: None,
        in_words: None,
    },
    PlanColumn {
        head: "block",
        is_shown: |rows| !rows.plan.together.is_empty(),
        cell: |trial, _| trial.block.to_string(),
        left_out: None,
        in_words: None,
    },
    PlanColumn {
        head: "trial",
        is_shown: |_| true,
        cell: |trial, _| trial.id.to_string(),
        left_out: None,
        in_words: None,
    },
    PlanColumn {
        head: "state",
        is_shown: |rows| {
            let mut trials = rows.plan.trials.iter();
            trials.any(|trial| rows.before.state(trial).is_some())
        },
        cell: |trial, rows| rows.before.state(trial).unwrap_or_default().to_owned(),
        left_out: None,
        in_words: Some(str::to_owned),
    },
];

static AFTER_AXES: [PlanColumn; 8] = [
    PlanColumn {
        head: "seed",
        is_shown: |rows| rows.plan.repeats > 1,
        cell: |trial, _| trial.train.seed.to_string(),
        left_out: Some(8),
        in_words: None,
    },
    PlanColumn {
        head: "parameters",
        is_shown: has_trainings,
        cell: |trial, _| of_training(trial, count(trial.parameters)),
        left_out: Some(4),
        in_words: Some(|number| format!("{number} parameters")),
    },
    PlanColumn {
        head: "FLOPs/sample",
        is_shown: has_trainings,
        cell: |trial, _| of_training(trial, count(trial.flops_per_sample)),
        left_out: Some(3),
        in_words: Some(|number| format!("{number} FLOPs/sample")),
    },
    PlanColumn {
        head: "effective batch",
        is_shown: has_trainings,
        cell: |trial, _| of_training(trial, trial.effective_batch_size.to_string()),
        left_out: Some(5),
        in_words: Some(|size| format!("effective batch {size}")),
    },
    PlanColumn {
        head: "steps",
        is_shown: has_trainings,
        cell: |trial, _| of_training(trial, known(trial.steps, |steps| steps.to_string())),
        left_out: Some(7),
        in_words: Some(|number| format!("{number} steps")),
    },
    PlanColumn {
        head: "time",
        is_shown: has_times,
        cell: |trial, rows| {
            let time = rows.expected.of_trial(&trial.id).time;
            known(time, |time| match rows.has_ranges {
                true => sum_in_words(&[time]),
                false => Seconds(time.median).to_string(),
            })
        },
        left_out: Some(2),
        in_words: None,
    },
    PlanColumn {
        head: "estimated from",
        is_shown: has_times,
        cell: |trial, rows| {
            let time = rows.expected.of_trial(&trial.id).time;
            known(time, |time| source(time.grade).to_owned())
        },
        left_out: Some(1),
        in_words: Some(|source| format!("time estimated from {source}")),
    },
    PlanColumn {
        head: "memory",
        is_shown: |rows| has_expected(rows, |expected| expected.memory_bytes.is_some()),
        cell: |trial, rows| {
            let memory = rows.expected.of_trial(&trial.id).memory_bytes;
            known(memory, |bytes| Bytes(bytes).to_string())
        },
        left_out: Some(6),
        in_words: Some(|bytes| format!("{bytes} of memory")),
    },
];

/// The heads of all columns that are not axes.
pub(super) fn heads() -> Vec<&'static str> {
    let columns = BEFORE_AXES.iter().chain(&AFTER_AXES);
    columns.map(|column| column.head).collect()
}

/// The heads of the columns that a narrow terminal leaves out, in this order.
pub(super) fn dispensable() -> Vec<&'static str> {
    let columns = BEFORE_AXES.iter().chain(&AFTER_AXES);
    let mut ranked: Vec<(u8, &str)> = columns
        .filter_map(|column| Some((column.left_out?, column.head)))
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, head)| head).collect()
}

/// The columns that this plan has.
fn shown(columns: &'static [PlanColumn], rows: &PlanRows<'_>) -> Vec<&'static PlanColumn> {
    let is_shown = |column: &&PlanColumn| (column.is_shown)(rows);
    columns.iter().filter(is_shown).collect()
}

/// The value of a column in words, if it is the same in all rows, of which there are several.
fn shared(column: &PlanColumn, rows: &PlanRows<'_>) -> Option<String> {
    let in_words = column.in_words?;
    let (first, others) = rows.plan.trials.split_first()?;
    let value = (column.cell)(first, rows);
    let is_shared = others
        .iter()
        .all(|trial| (column.cell)(trial, rows) == value);
    (is_shared && !others.is_empty() && !value.is_empty()).then(|| in_words(&value))
}

/// `every trial: 15.9 k parameters, 80 steps`; `None` if no such value is the same in all rows.
pub(super) fn every_trial(rows: &PlanRows<'_>) -> Option<String> {
    let columns = [shown(&BEFORE_AXES, rows), shown(&AFTER_AXES, rows)].concat();
    let columns = columns.into_iter();
    let words: Vec<String> = columns.filter_map(|column| shared(column, rows)).collect();
    (!words.is_empty()).then(|| format!("every trial: {}", words.join(", ")))
}

/// The columns whose values are not the same in all rows; `axes` are the heads of the axes.
pub(super) fn whole_table(rows: &PlanRows<'_>, axes: &[String]) -> TextTable {
    let own = |columns: &'static [PlanColumn]| -> Vec<&'static PlanColumn> {
        let shown = shown(columns, rows).into_iter();
        shown
            .filter(|column| shared(column, rows).is_none())
            .collect()
    };
    let (before, after) = (own(&BEFORE_AXES), own(&AFTER_AXES));
    let names = |columns: &[&PlanColumn]| -> Vec<String> {
        columns
            .iter()
            .map(|column| column.head.to_owned())
            .collect()
    };
    let mut table = TextTable::plain([names(&before), axes.to_vec(), names(&after)].concat());
    for trial in &rows.plan.trials {
        let cell = |column: &&PlanColumn| (column.cell)(trial, rows);
        let mut cells: Vec<String> = before.iter().map(cell).collect();
        cells.extend(trial.axes.iter().map(|(_, value)| show(value)));
        cells.extend(after.iter().map(cell));
        table.add_row(cells);
    }
    table.align_right(before.len());
    table
}

/// The trials that an estimate is from, by how they differ from this one.
fn source(grade: EstimateGrade) -> &'static str {
    match grade {
        EstimateGrade::AsBefore => "same settings",
        EstimateGrade::BySteps => "other steps",
    }
}

fn has_trainings(rows: &PlanRows<'_>) -> bool {
    rows.plan.trials.iter().any(|trial| !is_command(trial))
}

fn is_command(trial: &Trial) -> bool {
    trial.model.command().is_some()
}

/// The cell of a fact that a command does not have.
fn of_training(trial: &Trial, text: String) -> String {
    if is_command(trial) {
        String::new()
    } else {
        text
    }
}

fn has_times(rows: &PlanRows<'_>) -> bool {
    has_expected(rows, |expected| expected.time.is_some())
}

fn has_expected(rows: &PlanRows<'_>, has: fn(&Expected) -> bool) -> bool {
    let mut trials = rows.plan.trials.iter();
    trials.any(|trial| has(&rows.expected.of_trial(&trial.id)))
}

fn count(number: Option<u64>) -> String {
    known(number, |number| Count(number as f64).to_string())
}

/// The text of a value; the notes below the table explain an unknown one.
fn known<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "?".to_owned(), text)
}
