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
    let experiment = json!({"model": {"kind": "gpt"}, "sweep": sweep});
    let planned = PlannedValues::of(&experiment);
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
    // Values of `zip` and `include` count; of a search not all values are in the file.
    let zipped = |include: Value| {
        let sweep = json!({"zip": {"train.batch_size": [32, 64]}, "include": include});
        said(&sweep, &changed)
    };
    assert!(zipped(json!([])).is_some());
    assert_eq!(zipped(json!([{"train.batch_size": 99}])), None);
    assert!(zipped(json!([{"train.optimizer": "sgd"}])).is_some());
    let search = json!({"search": {"kind": "largest-batch"}});
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
fn the_axes_with_several_planned_values_are_named_whatever_the_rows_have() {
    let varied = |sweep: Value| {
        let mut read = of_cells(&[["8", "sgd"]]);
        PlannedValues::of(&json!({"sweep": sweep})).unify(&mut read);
        read.varied.sort();
        read.varied
    };
    let grid = json!({"train.batch_size": [8], "train.optimizer": ["sgd", "adamw"]});
    assert_eq!(varied(json!({"grid": grid})), ["train.optimizer"]);
    let zip = json!({"train.batch_size": [8, 16], "train.optimizer": ["sgd", "adamw"]});
    assert_eq!(
        varied(json!({"zip": zip})),
        ["train.batch_size", "train.optimizer"]
    );
    assert!(varied(Value::Null).is_empty());
}

/// A table of these cells of two axes.
fn of_cells(cells: &[[&str; 2]]) -> TrialTable {
    let row = |cells: &[&str; 2]| (cells.map(|cell| json!(cell)), false);
    let rows: Vec<([Value; 2], bool)> = cells.iter().map(row).collect();
    TrialTable::read_from(&mut Cursor::new(table(&rows)), Path::new("trials.csv")).unwrap()
}

#[test]
fn a_point_that_leaves_an_axis_out_has_the_value_of_the_file() {
    let sweep = json!({
        "grid": {"train.batch_size": [8, 16]},
        "include": [{"train.optimizer": "sgd"}],
    });
    let of = |train: Value| PlannedValues::of(&json!({"train": train, "sweep": sweep}));
    let has = |train: Value, cells: [&str; 2]| of(train).has_all(&of_cells(&[cells]));
    let four = || json!({"batch_size": 4});
    assert!(has(four(), ["8", ""]));
    assert!(has(four(), ["4.0", "sgd"]));
    assert!(!has(four(), ["5", "sgd"]));
    assert!(!has(four(), ["8", "adam"]));
    assert!(has(json!({}), ["", "sgd"]), "a value that is not set");
    let mut table = of_cells(&[["4.0", "sgd"], ["4", "sgd"]]);
    of(four()).unify(&mut table);
    assert_eq!(table.rows[0].axes, table.rows[1].axes);
    // A table may print a map in another form.
    let map = json!({"batch_size": 4, "optimizer": {"kind": "adam"}});
    assert!(has(map, ["8", "adam"]));
    // Another axis may change it.
    let sweep = json!({
        "grid": {"train.optimizer.kind": ["sgd"]},
        "include": [{"train.optimizer.momentum": 0.5}],
    });
    let planned = PlannedValues::of(&json!({"train": {}, "sweep": sweep}));
    assert!(planned.has("train.optimizer.momentum", "0.9"));
    assert!(
        !planned.has("train.optimizer.kind", "7"),
        "it has no other value"
    );
}

#[test]
fn equal_numbers_of_a_derived_axis_have_one_form() {
    let sweep = json!({
        "grid": {"train.optimizer": ["a", "b"]},
        "derive": {"train.batch_size": "2 * train.seed"},
    });
    let mut table = of_cells(&[["1.5", "a"], ["8.0", "a"], ["8", "b"], ["", "b"]]);
    PlannedValues::of(&json!({"sweep": sweep})).unify(&mut table);
    let sizes: Vec<&str> = table.rows.iter().map(|row| row.axes[0].as_str()).collect();
    assert_eq!(sizes, ["1.5", "8.0", "8.0", ""]);
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
        let experiment = json!({"model": {"kind": "gpt"}, "sweep": sweep});
        PlannedValues::of(&experiment).leave_out_others(&mut read);
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
    assert_eq!(
        left(json!({"search": {"kind": "largest-batch"}})),
        texts("train.batch_size", "32", "train.optimizer")
    );
    let unknown = json!({"search": {"kind": "of another kiln"}});
    assert_eq!(left(unknown), whole);
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
}

#[test]
fn a_table_of_a_search_has_the_axes_that_it_chooses_and_the_values_that_it_lists() {
    let rows = table(&[([json!(32), json!("adam")], false)]);
    let lacks = |experiment: Value, axis: &str| {
        let planned = PlannedValues::of(&experiment);
        let said = planned.check(&mut Cursor::new(&rows), Path::new("trials.csv"));
        let said = said.unwrap_err().to_string();
        assert!(said.contains(&format!("no column `{axis}`")), "{said}");
    };
    let of_gpt = |search: Value| json!({"model": {"kind": "gpt"}, "sweep": {"search": search}});
    lacks(of_gpt(json!({"kind": "workers"})), "data.num_workers");
    let kept = json!({"kind": "best-throughput-batch", "keep_effective": true});
    lacks(of_gpt(kept), "train.grad_accumulation");
    let halving = |sizes: &[u64]| {
        let axes = json!({"train.batch_size": sizes, "train.optimizer": ["adam"]});
        json!({"kind": "successive-halving", "axes": axes, "metric": "valid_loss", "steps": 2})
    };
    lacks(of_gpt(halving(&[32])), "train.steps");
    let search = json!({"kind": "largest-batch"});
    let grown = json!({"kind": "command", "grows": ["lines"]});
    lacks(
        json!({"model": grown, "sweep": {"search": search}}),
        "model.values.lines",
    );
    let foreign = said(&json!({"search": halving(&[64])}), &rows).unwrap();
    assert!(
        foreign.contains("`train.batch_size` is `32`, and the sweep"),
        "{foreign}"
    );
    // A search that has no row yet has no axes yet.
    assert_eq!(
        said(&json!({"search": {"kind": "workers"}}), &table(&[])),
        None
    );
}
