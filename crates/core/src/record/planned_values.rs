//! The axes of a run's sweep, and their values. A `trials.csv` that lacks one of them, or has another
//! value, was changed.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::OpenOptions,
    io::{Read, Seek},
    mem,
    path::Path,
};

use serde_json::{Map, Value};

use super::{
    fixed_setting::FixedSetting,
    table::{Record, TableError, open_plain, scan},
    trial_row::{TRIALS, TrialRow},
    trials::{TableRow, TrialTable},
};
use crate::{
    kinds::text_of,
    limits::TABLE_BYTES,
    units::{listed, shorten},
};

/// What an experiment says about the axes of its table.
#[derive(Debug, Default)]
pub struct PlannedValues {
    /// The axes of the sweep; `None` of a search, which chooses them itself.
    axes: Option<BTreeSet<String>>,
    /// The axes whose values are all in the experiment file, each with these values.
    values: HashMap<String, AxisValues>,
}

#[derive(Debug, Default)]
struct AxisValues {
    values: Vec<Value>,
    /// The values as a table prints them.
    texts: HashSet<String>,
}

impl AxisValues {
    fn of<'v>(values: impl Iterator<Item = &'v Value>) -> Self {
        let mut all = Self::default();
        for value in values {
            if all.texts.insert(text_of(value)) {
                all.values.push(value.clone());
            }
        }
        all
    }

    fn has(&self, cell: &str) -> bool {
        self.texts.contains(cell) || self.equal(cell).is_some()
    }

    /// The value that equals this cell: another kiln, or an editor, may have printed it in another
    /// form.
    fn equal(&self, cell: &str) -> Option<&Value> {
        let read: Value = serde_json::from_str(cell).ok()?;
        let is_equal = |value: &&Value| match (value.as_f64(), read.as_f64()) {
            (Some(value), Some(read)) => value.to_bits() == read.to_bits(),
            _ => **value == read,
        };
        self.values.iter().find(is_equal)
    }

    /// The text of the value that this cell has in another form.
    fn own_form(&self, cell: &str) -> Option<String> {
        match self.texts.contains(cell) {
            true => None,
            false => self.equal(cell).map(text_of),
        }
    }
}

impl PlannedValues {
    /// The value of an axis that a table prints as this cell; `None` where the experiment lists none.
    pub fn value(&self, axis: &str, cell: &str) -> Option<&Value> {
        let mut values = self.values.get(axis)?.values.iter();
        values.find(|value| text_of(value) == cell)
    }

    /// The values of a resolved experiment; none with a search, which chooses its values itself.
    pub fn of(experiment: &Value) -> Self {
        let sweep = experiment.get("sweep");
        let part = |name: &str| sweep.and_then(|sweep| sweep.get(name));
        if part("search").is_some_and(|search| !search.is_null()) {
            return Self::default();
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
        let listed = || map("grid").chain(map("zip"));
        // A point of `include` without the axis has a value that is not in the list.
        let whole =
            listed().filter(|(key, _)| include.iter().all(|entry| entry.contains_key(*key)));
        let values = whole.filter_map(|(key, values)| {
            let included = include.iter().filter_map(|entry| entry.get(key));
            let values = values.as_array()?.iter().chain(included);
            Some((key.clone(), AxisValues::of(values)))
        });
        let values = values.collect();
        let varied = listed().chain(map("derive"));
        let varied = varied.filter(|(_, value)| !value.is_null());
        let keys = varied.map(|(key, _)| key);
        let included = include.iter().copied().flat_map(Map::keys);
        Self {
            axes: Some(keys.chain(included).cloned().collect()),
            values,
        }
    }

    /// Writes each value of an axis as the experiment has it, or as the row's own column of that setting:
    /// `8` and `8.0` are one point.
    pub fn unify(&self, table: &mut TrialTable) {
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
        if self.missing(&table.axes).is_some() {
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
        let head = scan(source, path, TRIALS.version, &mut |record| {
            let problem = self.problem(record);
            problem.map_or(Ok(()), |problem| Err(record.problem(problem)))
        })?;
        let Some(axis) = self.missing(&head.columns) else {
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
mod tests {
    use std::io::Cursor;

    use serde_json::json;

    use super::*;
    use crate::{plan::TrialId, record::TrialWriter};

    /// A table of these values of two axes, as bytes; the reasons have two lines. A row may stand in
    /// for another trial.
    fn table(rows: &[([Value; 2], bool)]) -> Vec<u8> {
        let row = |(number, (values, stands_in)): (usize, &([Value; 2], bool))| {
            let fixed = TrialRow {
                kiln_table: TRIALS.version.to_owned(),
                trial: TrialId::of_digits(&format!("{number:010}")),
                reason: Some("in two\nlines".to_owned()),
                fallback_of: stands_in.then(|| TrialId::of_digits("9999999999")),
                ..TrialRow::default()
            };
            TableRow::new(fixed, values)
        };
        let rows: Vec<TableRow> = rows.iter().enumerate().map(row).collect();
        written(&rows)
    }

    fn written(rows: &[TableRow]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trials.csv");
        let axes = ["train.batch_size", "train.optimizer"].map(str::to_owned);
        let (mut writer, _) = TrialWriter::open(&path, &axes).unwrap();
        rows.iter().for_each(|row| writer.append(row).unwrap());
        std::fs::read(&path).unwrap()
    }

    /// The error for a table under this sweep. `has_all` and `check` must agree.
    fn said(sweep: &Value, table: &[u8]) -> Option<String> {
        let planned = PlannedValues::of(&json!({"sweep": sweep}));
        let path = Path::new("trials.csv");
        let read = TrialTable::read_from(&mut Cursor::new(table), path).unwrap();
        let found = planned.check(&mut Cursor::new(table), path).err();
        assert_eq!(planned.has_all(&read), found.is_none(), "{found:?}");
        found.map(|error| error.to_string())
    }

    #[test]
    fn a_value_that_the_sweep_does_not_have_is_named_with_its_line() {
        let adam = json!({"kind": "adam", "beta1": 0.9});
        let row = |size: u64| ([json!(size), adam.clone()], false);
        let grid = json!({"grid": {"train.batch_size": [32, 64.0], "train.optimizer": [adam]}});
        assert_eq!(said(&grid, &table(&[row(32), row(64)])), None);
        let changed = table(&[row(32), row(64), row(99)]);
        assert_eq!(
            said(&grid, &changed).unwrap(),
            "trials.csv:6: record 3: `train.batch_size` is `99`, and the sweep of the run's \
             `experiment.yaml` has `32`, `64.0`; the table was changed: restore the row"
        );
        let smaller = ([json!(99), adam.clone()], true);
        assert_eq!(said(&grid, &table(&[smaller])), None, "a smaller stand-in");
        let other = ([json!(32), json!({"kind": "sgd"})], false);
        let other = said(&grid, &table(&[other])).unwrap();
        assert!(
            other.contains("`train.optimizer` is `{\"kind\":\"sgd\"}`"),
            "{other}"
        );
        let empty = ([Value::Null, adam.clone()], false);
        let empty = said(&grid, &table(&[empty])).unwrap();
        assert!(empty.contains("`train.batch_size` is (empty)"), "{empty}");
        // Values of `zip` and `include` count; of a key that an entry leaves out, and of a search,
        // not all values are in the file.
        let zipped = |include: Value| {
            let sweep = json!({"zip": {"train.batch_size": [32, 64]}, "include": include});
            said(&sweep, &changed)
        };
        assert!(zipped(json!([])).is_some());
        assert_eq!(zipped(json!([{"train.batch_size": 99}])), None);
        assert_eq!(zipped(json!([{"train.optimizer": "sgd"}])), None);
        let search = json!({"grid": grid["grid"], "search": {"kind": "workers"}});
        assert_eq!(said(&search, &changed), None);
    }

    #[test]
    fn an_equal_number_in_another_form_becomes_that_of_the_sweep() {
        let axes = json!({"train.batch_size": [8, 0.001], "train.optimizer": ["1.10", "1.1"]});
        let planned = PlannedValues::of(&json!({"sweep": {"grid": axes}}));
        let row = |size: &str, optimizer: &str| ([json!(size), json!(optimizer)], false);
        let text = table(&[row("8.0", "1.10"), row("1e-3", "1.1"), row("8", "1.1")]);
        let path = Path::new("trials.csv");
        let mut read = TrialTable::read_from(&mut Cursor::new(&text), path).unwrap();
        assert!(planned.has_all(&read));
        planned.unify(&mut read);
        let cells: Vec<Vec<String>> = read.rows.into_iter().map(|row| row.axes).collect();
        assert_eq!(cells, [["8", "1.10"], ["0.001", "1.1"], ["8", "1.1"]]);
    }

    #[test]
    fn a_value_that_contradicts_its_own_row_is_named_with_or_without_an_experiment() {
        let of_two = |batch_size: u64, fallback_of: Option<TrialId>| {
            let fixed = TrialRow {
                kiln_table: TRIALS.version.to_owned(),
                batch_size,
                fallback_of,
                ..TrialRow::default()
            };
            written(&[TableRow::new(fixed, &[json!("2.0"), json!("adam")])])
        };
        let swept = json!({"grid": {"train.batch_size": [2, 4]}});
        for sweep in [
            swept,
            json!({"search": {"kind": "largest-batch"}}),
            json!(null),
        ] {
            assert_eq!(said(&sweep, &of_two(2, None)), None);
            assert_eq!(said(&sweep, &of_two(0, None)), None, "an empty cell");
            let other = TrialId::of_digits("9999999999");
            assert_eq!(
                said(&sweep, &of_two(4, Some(other))),
                None,
                "a smaller stand-in"
            );
            assert_eq!(
                said(&sweep, &of_two(4, None)).unwrap(),
                "trials.csv:2: record 1: `train.batch_size` is `2.0`, and `batch_size` of the same \
                 row is `4`; the table was changed: restore the row, for example from git"
            );
        }
        let path = Path::new("trials.csv");
        let text = of_two(2, None);
        let mut read = TrialTable::read_from(&mut Cursor::new(&text), path).unwrap();
        PlannedValues::default().unify(&mut read);
        assert_eq!(read.rows[0].axes, ["2", "adam"]);
    }

    #[test]
    fn a_column_that_is_no_axis_of_the_sweep_is_left_out() {
        let text = table(&[([json!(32), json!("adam")], false)]);
        let left = |sweep: Value| {
            let path = Path::new("trials.csv");
            let mut read = TrialTable::read_from(&mut Cursor::new(&text), path).unwrap();
            PlannedValues::of(&json!({"sweep": sweep})).leave_out_others(&mut read);
            (
                read.axes.join(" "),
                read.rows[0].axes.join(" "),
                read.others.join(" "),
            )
        };
        let texts = |axes: &str, cells: &str, others: &str| {
            (axes.to_owned(), cells.to_owned(), others.to_owned())
        };
        let whole = texts("train.batch_size train.optimizer", "32 adam", "");
        assert_eq!(
            left(json!({"grid": {"train.batch_size": [32]}})),
            texts("train.batch_size", "32", "train.optimizer")
        );
        assert_eq!(
            left(json!({"derive": {"train.optimizer": "x"}})),
            texts("train.optimizer", "adam", "train.batch_size")
        );
        assert_eq!(
            left(json!({"include": [{"train.batch_size": 32}, {"train.optimizer": "x"}]})),
            whole
        );
        assert_eq!(left(json!({"search": {"kind": "workers"}})), whole);
    }

    #[test]
    fn an_axis_that_the_table_lacks_is_named() {
        let rows = table(&[([json!(32), json!("adam")], false)]);
        let derived = json!({"derive": {"train.batch_size": "64 / train.grad_accumulation"}});
        assert_eq!(said(&derived, &rows), None);
        let lacking = [
            json!({"grid": {"train.batch_size": [32], "data.num_workers": [0]}}),
            json!({"zip": {"train.batch_size": [32], "data.num_workers": [0]}}),
            json!({"derive": {"data.num_workers": "train.batch_size / 16"}}),
            json!({"include": [{"train.batch_size": 32}, {"data.num_workers": 0}]}),
        ];
        for sweep in lacking {
            assert_eq!(
                said(&sweep, &rows).unwrap(),
                "trials.csv:1:1: there is no column `data.num_workers`, which is an axis of the \
                 sweep in the run's `experiment.yaml`; the table was changed: restore the column, \
                 for example from git"
            );
        }
        let search = json!({"search": {"kind": "successive-halving", "axes": {"model.x": [1]}}});
        assert_eq!(said(&search, &rows), None, "a search chooses its axes");
    }
}
