//! Compares the values of one axis within one table: each further value is a side against the first.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{
    record::{TableRow, TrialTable},
    units::listed,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    Comparisons, Matchup, Options, TreatedKey, Treatment, Unlike, at_once::AtOnce,
    between_programs, judged, matching::by_settings, pair::unlike_in, words::difference,
};
use crate::report::{
    axis_name::{ambiguous, axis_named},
    points::shown,
    run_settings::{RunSettings, Setting},
    subject::Subject,
};

/// The sides of a comparison within one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Between {
    /// Dotted key of the axis.
    pub axis: String,
    /// The value of base.
    pub base: String,
    /// The values compared with it.
    pub sides: Vec<String>,
    /// The differences between the sides besides the axis, in words.
    pub differ: Vec<String>,
}

/// A table split by the values of one of its axes.
pub struct SplitTable {
    axis: String,
    base: (String, TrialTable),
    sides: Vec<SplitSide>,
    /// The differences between the programs of the sides, in words.
    programs: Vec<String>,
}

/// A side that is compared with base.
struct SplitSide {
    /// Its value of the axis.
    value: String,
    table: TrialTable,
    /// The derived keys that change with the axis.
    derived: Vec<TreatedKey>,
}

impl SplitTable {
    /// Splits a run's table; `base` is the value of base, else the first value of the axis.
    ///
    /// # Errors
    /// A message: the axis does not vary, or it does not have the value.
    pub fn of(run: Subject<'_>, axis: &str, base: Option<&str>) -> Result<Self, String> {
        let table = run.table;
        let named = axis_named(&table.axes, axis);
        let axis = named.ok_or_else(|| not_an_axis(table, axis))?;
        let place = table.axes.iter().position(|own| own == axis);
        let place = place.unwrap_or_default();
        if table.rows.is_empty() {
            return Err(format!(
                "`--between {axis}`: no trial has ended yet; wait for the run if it is running, else \
                 run it with `kiln run`"
            ));
        }
        let values = values(run, axis, place);
        if values.len() < 2 {
            return Err(format!(
                "`--between {axis}`: every trial has the value {}; there is nothing to compare it \
                 with",
                values.first().map_or("(none)", |value| shown(value))
            ));
        }
        let is_named =
            |value: &str, base: &str| shown(value) == base || (value.is_empty() && base == "null");
        let wanted = |value: &&String| base.is_none_or(|base| is_named(value, base));
        let Some(first) = values.iter().find(wanted) else {
            let known: Vec<&str> = values.iter().map(|value| shown(value)).collect();
            return Err(format!(
                "`--base {}`: no trial has this value of `{axis}`; its values are {}",
                base.unwrap_or_default(),
                known.join(", ")
            ));
        };
        let columns = derived_columns(run, place);
        let left_out: Vec<usize> = columns.iter().copied().chain([place]).collect();
        let part = |value: &String| part(table, place, value, &left_out);
        let others = || values.iter().filter(|value| *value != first);
        let derived = |value: &String| -> Vec<TreatedKey> {
            let changed = |column: &usize| derived_change(table, place, *column, [first, value]);
            columns.iter().filter_map(changed).collect()
        };
        let side = |value: &String| SplitSide {
            value: shown(value).to_owned(),
            table: part(value),
            derived: derived(value),
        };
        let names: Vec<&str> = others().map(|value| shown(value)).collect();
        Ok(Self {
            axis: axis.to_owned(),
            base: (shown(first).to_owned(), part(first)),
            sides: others().map(side).collect(),
            programs: between_programs::differ(run, axis, shown(first), &names),
        })
    }
}

fn not_an_axis(table: &TrialTable, axis: &str) -> String {
    if let Some(refusal) = ambiguous("--between", &table.axes, axis) {
        return refusal;
    }
    if table.axes.is_empty() {
        return format!("`--between {axis}`: nothing varies in this run, so it has no axis");
    }
    let axes: Vec<String> = table.axes.iter().map(|axis| format!("`{axis}`")).collect();
    format!(
        "`--between {axis}` is not an axis of this run; its axes are {}",
        listed(&axes, ", ")
    )
}

/// The values of an axis in the order of the experiment file, else ascending if they are numbers.
fn values(run: Subject<'_>, axis: &str, place: usize) -> Vec<String> {
    let written: Vec<String> = run
        .experiment
        .and_then(RunSettings::of)
        .and_then(|settings| settings.settings.get(axis).cloned())
        .map(|setting| match setting {
            Setting::Swept { values, .. } => values.iter().map(cell).collect(),
            Setting::One(_) => Vec::new(),
        })
        .unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for row in run.table.last_attempts() {
        let value = row.axes.get(place).cloned().unwrap_or_default();
        if !found.contains(&value) {
            found.push(value);
        }
    }
    let rank = |value: &String| {
        let place = written.iter().position(|own| own == value);
        place.unwrap_or(usize::MAX)
    };
    found.sort_by(|one, other| {
        let by_number = || number(one).total_cmp(&number(other));
        rank(one).cmp(&rank(other)).then_with(by_number)
    });
    found
}

/// A value of the experiment as a cell of the table: that of `null` is empty.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        value => Setting::One(value.clone()).text(),
    }
}

/// The number of a value; texts come after all numbers.
fn number(value: &str) -> f64 {
    value.parse().unwrap_or(f64::INFINITY)
}

/// The columns of derived keys. They follow from the axes, so points are told apart without them.
fn derived_columns(run: Subject<'_>, place: usize) -> Vec<usize> {
    let settings = run.experiment.and_then(RunSettings::of);
    let keys = settings
        .map(|settings| settings.derived)
        .unwrap_or_default();
    let columns = run.table.axes.iter().enumerate();
    columns
        .filter(|(column, key)| *column != place && keys.contains(key))
        .map(|(column, _)| column)
        .collect()
}

/// The change of a derived key between two values of an axis; `None` if it has the same values.
fn derived_change(
    table: &TrialTable,
    place: usize,
    column: usize,
    sides: [&String; 2],
) -> Option<TreatedKey> {
    let [base, new] = sides.map(|side| values_beside(table, place, side, column));
    let in_words = |values: BTreeSet<&str>| Some(Vec::from_iter(values).join(" and "));
    (base != new).then(|| TreatedKey {
        key: table.axes[column].clone(),
        base: in_words(base),
        new: in_words(new),
    })
}

/// The values of a column in the rows that have this value on an axis.
fn values_beside<'a>(
    table: &'a TrialTable,
    place: usize,
    value: &str,
    column: usize,
) -> BTreeSet<&'a str> {
    let rows = table.rows.iter();
    let of_value = rows.filter(|row| row.axes.get(place).is_some_and(|own| own == value));
    let cells = of_value.filter_map(|row| row.axes.get(column));
    cells.map(|cell| shown(cell)).collect()
}

/// The rows with a value, without some columns: that of the axis, and those that follow from it.
fn part(table: &TrialTable, place: usize, value: &str, left_out: &[usize]) -> TrialTable {
    let kept = |cells: &[String]| -> Vec<String> {
        let cells = cells.iter().enumerate();
        cells
            .filter(|(column, _)| !left_out.contains(column))
            .map(|(_, cell)| cell.clone())
            .collect()
    };
    let without = |row: &TableRow| TableRow {
        axes: kept(&row.axes),
        ..row.clone()
    };
    let rows = table.rows.iter();
    let of_value = rows.filter(|row| row.axes.get(place).is_some_and(|own| own == value));
    TrialTable {
        axes: kept(&table.axes),
        metrics: table.metrics.clone(),
        rows: of_value.map(without).collect(),
        ..TrialTable::default()
    }
}

/// Compares the sides of a table.
///
/// # Errors
/// A message: no point of a side has a point of base with the same values of the other axes.
pub fn between(split: &SplitTable, options: &Options) -> Result<Comparisons, String> {
    let (base_value, base) = &split.base;
    let nothing: [BTreeMap<String, String>; 2] = Default::default();
    let mut matchups: Vec<Matchup<'_>> = Vec::new();
    for side in &split.sides {
        let SplitSide {
            value,
            table,
            derived,
        } = side;
        let mut matched = by_settings([base, table], &base.axes, &nothing);
        if split.sides.len() > 1 {
            let of_side = |name: &mut String| *name = format!("{name}, {} {value}", split.axis);
            matched
                .pairs
                .iter_mut()
                .for_each(|pair| of_side(&mut pair.name));
            matched.only_base.iter_mut().for_each(of_side);
            matched.only_new.iter_mut().for_each(of_side);
        }
        let treated = TreatedKey {
            key: split.axis.clone(),
            base: Some(base_value.clone()),
            new: Some(value.clone()),
        };
        let mut options = options.clone();
        options.across_settings.push(split.axis.clone());
        let keys = derived.iter().map(|one| one.key.clone());
        options.across_settings.extend(keys);
        options.treatment = Some(Treatment::of_axis(treated, derived));
        matchups.push(Matchup {
            matched,
            is_by_treatment: true,
            // Trials of one run beside each other are in `concurrent_trials`.
            at_once: AtOnce::default(),
            options,
            side: Some(value.clone()),
        });
    }
    if matchups
        .iter()
        .all(|matchup| matchup.matched.pairs.is_empty())
    {
        return Err(format!(
            "`--between {}`: no point with {base_value} has the values of a point with {} on every \
             other axis ({}): other axes change together with it",
            split.axis,
            split.sides[0].value,
            listed(&base.axes, ", ")
        ));
    }
    let programs = split.programs.iter().cloned();
    let differ = derived_words(split)
        .into_iter()
        .chain(programs)
        .chain(differ(&matchups))
        .collect();
    let mut found = judged(matchups, options);
    found.between = Some(Between {
        axis: split.axis.clone(),
        base: base_value.clone(),
        sides: split.sides.iter().map(|side| side.value.clone()).collect(),
        differ,
    });
    Ok(found)
}

/// The changes of derived keys: `train.optimizer.learning_rate 0.1 → 0.2`.
fn derived_words(split: &SplitTable) -> Vec<String> {
    let words = |side: &SplitSide| {
        let of_side = match split.sides.len() {
            1 => String::new(),
            _ => format!("{}: ", side.value),
        };
        let in_words = |one: &TreatedKey| {
            let values = [&one.base, &one.new];
            let [base, new] = values.map(|value| value.as_deref().unwrap_or_default());
            format!("{of_side}{} {base} → {new}", one.key)
        };
        side.derived.iter().map(in_words).collect::<Vec<String>>()
    };
    split.sides.iter().flat_map(words).collect()
}

/// The facts in which a side differs from base, in words; each once.
fn differ(matchups: &[Matchup<'_>]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for matchup in matchups {
        let is_one = |unlike: &Unlike| unlike.base.len() == 1 && unlike.new.len() == 1;
        let unlike = matchup.matched.pairs.iter().flat_map(unlike_in);
        for unlike in unlike.filter(is_one) {
            let words = match (&matchup.side, matchups.len()) {
                (Some(side), 2..) => format!("{side}: {}", difference(&unlike)),
                _ => difference(&unlike),
            };
            if !found.contains(&words) {
                found.push(words);
            }
        }
    }
    found
}
