//! The axes of a run's sweep, and their values. A `trials.csv` that lacks one of them, or has another
//! value, was changed.

mod axis_values;

use std::{
    collections::{BTreeSet, HashMap},
    fs::OpenOptions,
    io::{Read, Seek},
    mem,
    path::Path,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use self::axis_values::AxisValues;
use super::{
    fixed_setting::FixedSetting,
    table::{Record, TableError, open_plain, scan},
    trial_row::{TRIALS, TrialRow},
    trials::{TableRow, TrialTable},
};
use crate::{
    kinds::{command::COMMAND, text_of},
    limits::TABLE_BYTES,
    plan::is_changed_by,
    spec::{Search, SearchedKeys},
    units::{listed, shorten},
};

/// The axes of an experiment's sweep, and the values that its table may have for them.
#[derive(Debug, Default)]
pub struct PlannedValues {
    /// The axes of the sweep; `None` if they are not known.
    axes: Option<BTreeSet<String>>,
    /// The axes whose values are in the experiment file, each with these values. A search that
    /// chooses its values has none.
    values: HashMap<String, AxisValues>,
    /// The axes whose values are computed from others.
    derived: BTreeSet<String>,
}

impl PlannedValues {
    /// The value of an axis that a table prints as this cell; `None` where the experiment lists none.
    pub fn value(&self, axis: &str, cell: &str) -> Option<&Value> {
        let mut values = self.values.get(axis)?.values.iter();
        values.find(|value| text_of(value) == cell)
    }

    /// The axes and values of a resolved experiment; a search lists only values of `axes`.
    pub fn of(experiment: &Value) -> Self {
        let sweep = experiment.get("sweep");
        let part = |name: &str| sweep.and_then(|sweep| sweep.get(name));
        if let Some(search) = part("search").filter(|search| !search.is_null()) {
            return Self::of_search(experiment, search);
        }
        let include = part("include").and_then(Value::as_array);
        let include: Vec<&Map<String, Value>> = include
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .collect();
        let map = |name: &str| {
            let found = part(name).and_then(Value::as_object);
            found.into_iter().flatten()
        };
        let is_given = |(_, value): &(&String, &Value)| !value.is_null();
        let listed = || map("grid").chain(map("zip")).filter(is_given);
        let derived = map("derive").filter(is_given).map(|(key, _)| key.clone());
        let derived: BTreeSet<String> = derived.collect();
        let included = include.iter().copied().flat_map(Map::keys).cloned();
        let keys = listed().map(|(key, _)| key.clone());
        let axes: BTreeSet<String> = keys.chain(derived.clone()).chain(included).collect();
        let values_of = |key: &String| {
            let list = listed().find(|(axis, _)| *axis == key);
            let values = match list {
                Some((_, list)) => list.as_array()?.as_slice(),
                None => &[],
            };
            let included = include.iter().filter_map(|entry| entry.get(key));
            let mut values = AxisValues::of(values.iter().chain(included));
            let is_left_out = include.iter().any(|entry| !entry.contains_key(key));
            if is_left_out || (list.is_none() && listed().next().is_some()) {
                values.add_base(base_value(experiment, key, &axes));
            }
            Some((key.clone(), values))
        };
        let values = axes.difference(&derived).filter_map(values_of).collect();
        Self {
            axes: Some(axes),
            values,
            derived,
        }
    }

    /// Those of a search, which stands alone in its sweep; nothing is known if it cannot be read.
    fn of_search(experiment: &Value, search: &Value) -> Self {
        let Ok(search) = Search::deserialize(search) else {
            return Self::default();
        };
        let model = experiment.get("model");
        let keys = match model.and_then(|model| model.get("kind")?.as_str()) {
            Some(COMMAND) => {
                let grows = model.and_then(|model| model.get("grows")?.get(0)?.as_str());
                SearchedKeys::of_command(grows)
            }
            Some(_) => SearchedKeys::default(),
            None => return Self::default(),
        };
        let listed = match &search {
            Search::SuccessiveHalving { axes, .. } => Some(axes),
            _ => None,
        };
        let values = listed.into_iter().flatten().filter_map(|(key, values)| {
            let values = values.as_array()?.iter();
            Some((key.clone(), AxisValues::of(values)))
        });
        let values = values.collect();
        let axes = search.keys(&keys).into_iter().map(str::to_owned).collect();
        Self {
            axes: Some(axes),
            values,
            derived: BTreeSet::new(),
        }
    }

    /// Writes each value of an axis as the experiment has it, or as the row's own column of that setting:
    /// `8` and `8.0` are one point. Names the axes that have several values.
    pub fn unify(&self, table: &mut TrialTable) {
        let varied = self.values.iter().filter(|(_, values)| values.is_varied());
        table.varied = varied.map(|(axis, _)| axis.clone()).collect();
        for TableRow { fixed, axes } in &mut table.rows {
            for (axis, cell) in table.axes.iter().zip(axes) {
                let setting = FixedSetting::of(fixed, axis);
                if let Some(setting) = setting.filter(|setting| setting.is_other_form(cell)) {
                    *cell = setting.cell;
                }
                let values = self.values.get(axis);
                if let Some(text) = values.and_then(|values| values.own_form(cell)) {
                    *cell = text;
                }
            }
        }
        for (column, axis) in table.axes.iter().enumerate() {
            if self.derived.contains(axis) {
                unify_numbers(&mut table.rows, column);
            }
        }
    }

    /// Leaves out the columns that are not axes of the sweep: somebody added them.
    pub fn leave_out_others(&self, table: &mut TrialTable) {
        let Some(known) = &self.axes else {
            return;
        };
        let is_known: Vec<bool> = table.axes.iter().map(|axis| known.contains(axis)).collect();
        for row in &mut table.rows {
            let mut is_known = is_known.iter();
            row.axes.retain(|_| is_known.next() != Some(&false));
        }
        let axes = mem::take(&mut table.axes).into_iter();
        let (axes, others): (Vec<String>, Vec<String>) =
            axes.partition(|axis| known.contains(axis));
        table.axes = axes;
        table.others.extend(others);
    }

    /// Whether the table has all axes of the sweep, and all rows have values of it that their other
    /// columns do not contradict.
    pub fn has_all(&self, table: &TrialTable) -> bool {
        // The first row brings the axes of a search.
        if !table.rows.is_empty() && self.missing(&table.axes).is_some() {
            return false;
        }
        // The smaller trial in place of one that ran out of memory has another batch.
        let planned = table.rows.iter();
        let mut planned = planned.filter(|row| row.fixed.fallback_of.is_none());
        planned.all(|row| {
            let mut cells = table.axes.iter().zip(&row.axes);
            cells.all(|(axis, cell)| {
                self.has(axis, cell) && !is_contradicted(&row.fixed, axis, cell)
            })
        })
    }

    /// Names the axis that a table lacks, or its first row that has another value or contradicts
    /// itself.
    ///
    /// # Errors
    /// There is one, or the table cannot be read.
    pub fn check<R: Read + Seek>(&self, source: &mut R, path: &Path) -> Result<(), TableError> {
        let mut has_rows = false;
        let head = scan(source, path, TRIALS.version, &mut |record| {
            has_rows = true;
            let problem = self.problem(record);
            problem.map_or(Ok(()), |problem| Err(record.problem(problem)))
        })?;
        let Some(axis) = self.missing(&head.columns).filter(|_| has_rows) else {
            return Ok(());
        };
        let problem = format!(
            "there is no column `{axis}`, which is an axis of the sweep in the run's \
             `experiment.yaml`; the table was changed: restore the column, for example from git"
        );
        Err(TableError::Head {
            path: path.to_owned(),
            problem,
        })
    }

    /// [`PlannedValues::check`] of a file.
    ///
    /// # Errors
    /// As [`PlannedValues::check`].
    pub fn check_file(&self, path: &Path) -> Result<(), TableError> {
        let mut file = open_plain(path, OpenOptions::new().read(true), &TABLE_BYTES)?;
        self.check(&mut file, path)
    }

    /// The first axis that is not among these columns.
    fn missing(&self, columns: &[String]) -> Option<&String> {
        let mut axes = self.axes.iter().flatten();
        axes.find(|axis| !columns.contains(axis))
    }

    fn has(&self, axis: &str, cell: &str) -> bool {
        self.values.get(axis).is_none_or(|values| values.has(cell))
    }

    fn problem(&self, record: &Record<'_>) -> Option<String> {
        let columns = || record.head().columns.iter().zip(record.cells());
        if columns().any(|(column, cell)| column == "fallback_of" && !cell.is_empty()) {
            return None;
        }
        let other = columns().find(|(column, cell)| !self.has(column, cell));
        let Some((axis, cell)) = other else {
            return contradiction(record);
        };
        let values = self.values.get(axis)?.values.iter();
        let values: Vec<String> = values.map(|value| shown(&text_of(value))).collect();
        Some(format!(
            "`{axis}` is {}, and the sweep of the run's `experiment.yaml` has {}; the table was \
             changed: restore the row",
            shown(cell),
            listed(&values, ", ")
        ))
    }
}

/// The value of an axis at points that keep that of the file; `None` if it is not known.
fn base_value(experiment: &Value, axis: &str, axes: &BTreeSet<String>) -> Option<Value> {
    let mut others = axes.iter().filter(|other| other.as_str() != axis);
    if others.any(|other| is_changed_by(axis, other)) {
        return None;
    }
    let mut path = axis.split('.');
    match path.try_fold(experiment, |place, part| place.get(part)) {
        // The size or kind of a model or of data may give it one.
        None | Some(Value::Null) => axis.starts_with("train.").then_some(Value::Null),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.clone()),
        // A table may print it in another form.
        Some(_) => None,
    }
}

/// Writes equal numbers of a column of axes as the first row has them.
fn unify_numbers(rows: &mut [TableRow], column: usize) {
    let mut first: HashMap<u64, String> = HashMap::new();
    for cell in rows.iter_mut().filter_map(|row| row.axes.get_mut(column)) {
        if let Ok(number) = cell.parse::<f64>() {
            let form = first.entry(number.to_bits());
            let form = form.or_insert_with(|| cell.clone());
            cell.clone_from(form);
        }
    }
}

/// Whether the row's own column of a setting has another value than this cell of an axis.
fn is_contradicted(row: &TrialRow, axis: &str, cell: &str) -> bool {
    FixedSetting::of(row, axis).is_some_and(|setting| setting.contradicts(cell))
}

/// Says that a cell of an axis is not what the row's own column of that setting has.
fn contradiction(record: &Record<'_>) -> Option<String> {
    let row: TrialRow = record.parse().ok()?;
    let mut columns = record.head().columns.iter().zip(record.cells());
    let (axis, cell) = columns.find(|(axis, cell)| is_contradicted(&row, axis, cell))?;
    let FixedSetting { column, cell: own } = FixedSetting::of(&row, axis)?;
    Some(format!(
        "`{axis}` is {}, and `{column}` of the same row is {}; the table was changed: restore the \
         row, for example from git",
        shown(cell),
        shown(&own)
    ))
}

fn shown(text: &str) -> String {
    match text {
        "" => "(empty)".to_owned(),
        text => format!("`{}`", shorten(text, 60)),
    }
}

#[cfg(test)]
mod tests;
