//! The columns of a printed plan that are not axes, each declared once: its head, its cells, and
//! when it is shown.

use kiln_core::{
    plan::{Plan, Trial, show},
    units::{Bytes, Count},
};

use super::expectation::{Expectations, Expected, sum_in_words};
use crate::output::table::TextTable;

/// A column that is not an axis.
struct PlanColumn {
    head: &'static str,
    /// Whether the table of this plan has it.
    is_shown: fn(&Plan, &Expectations) -> bool,
    cell: fn(&Trial, &Expected) -> String,
    /// A narrow terminal leaves out the columns with a place, in this order.
    left_out: Option<u8>,
}

static BEFORE_AXES: [PlanColumn; 3] = [
    PlanColumn {
        head: "#",
        is_shown: |_, _| true,
        cell: |trial, _| trial.number.to_string(),
        left_out: None,
    },
    PlanColumn {
        head: "block",
        is_shown: |plan, _| !plan.together.is_empty(),
        cell: |trial, _| trial.block.to_string(),
        left_out: None,
    },
    PlanColumn {
        head: "trial",
        is_shown: |_, _| true,
        cell: |trial, _| trial.id.to_string(),
        left_out: None,
    },
];

static AFTER_AXES: [PlanColumn; 8] = [
    PlanColumn {
        head: "seed",
        is_shown: |plan, _| plan.repeats > 1,
        cell: |trial, _| trial.train.seed.to_string(),
        left_out: None,
    },
    PlanColumn {
        head: "parameters",
        is_shown: |plan, _| has_trainings(plan),
        cell: |trial, _| of_training(trial, count(trial.parameters)),
        left_out: Some(2),
    },
    PlanColumn {
        head: "FLOPs/sample",
        is_shown: |plan, _| has_trainings(plan),
        cell: |trial, _| of_training(trial, count(trial.flops_per_sample)),
        left_out: Some(1),
    },
    PlanColumn {
        head: "effective batch",
        is_shown: |plan, _| has_trainings(plan),
        cell: |trial, _| of_training(trial, trial.effective_batch_size.to_string()),
        left_out: Some(3),
    },
    PlanColumn {
        head: "steps",
        is_shown: |plan, _| has_trainings(plan),
        cell: |trial, _| of_training(trial, known(trial.steps, |steps| steps.to_string())),
        left_out: Some(5),
    },
    PlanColumn {
        head: "time",
        is_shown: has_times,
        cell: |_, expected| known(expected.time, |time| sum_in_words(&[time])),
        left_out: None,
    },
    PlanColumn {
        head: "time is",
        is_shown: has_times,
        cell: |_, expected| known(expected.time, |time| time.grade.name().to_owned()),
        left_out: Some(6),
    },
    PlanColumn {
        head: "memory",
        is_shown: |plan, expected| {
            has_expected(plan, expected, |expected| expected.memory_bytes.is_some())
        },
        cell: |_, expected| known(expected.memory_bytes, |bytes| Bytes(bytes).to_string()),
        left_out: Some(4),
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

/// All columns; `axes` are the heads of the axes.
pub(super) fn whole_table(plan: &Plan, expected: &Expectations, axes: &[String]) -> TextTable {
    let shown = |columns: &'static [PlanColumn]| -> Vec<&'static PlanColumn> {
        let is_shown = |column: &&PlanColumn| (column.is_shown)(plan, expected);
        columns.iter().filter(is_shown).collect()
    };
    let (before, after) = (shown(&BEFORE_AXES), shown(&AFTER_AXES));
    let names = |columns: &[&PlanColumn]| -> Vec<String> {
        columns
            .iter()
            .map(|column| column.head.to_owned())
            .collect()
    };
    let mut table = TextTable::plain([names(&before), axes.to_vec(), names(&after)].concat());
    for trial in &plan.trials {
        let expected = expected.of_trial(&trial.id);
        let cell = |column: &&PlanColumn| (column.cell)(trial, &expected);
        let mut cells: Vec<String> = before.iter().map(cell).collect();
        cells.extend(trial.axes.iter().map(|(_, value)| show(value)));
        cells.extend(after.iter().map(cell));
        table.add_row(cells);
    }
    table.align_right(before.len());
    table
}

fn has_trainings(plan: &Plan) -> bool {
    plan.trials.iter().any(|trial| !is_command(trial))
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

fn has_times(plan: &Plan, expected: &Expectations) -> bool {
    has_expected(plan, expected, |expected| expected.time.is_some())
}

fn has_expected(plan: &Plan, expected: &Expectations, has: fn(&Expected) -> bool) -> bool {
    let mut trials = plan.trials.iter();
    trials.any(|trial| has(&expected.of_trial(&trial.id)))
}

fn count(number: Option<u64>) -> String {
    known(number, |number| Count(number as f64).to_string())
}

/// The text of a value; the notes below the table explain an unknown one.
fn known<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "?".to_owned(), text)
}
