use std::fs;

use super::*;
use crate::{kinds::command::FILLED_COLUMNS, plan::Outcome, record::TrialFigures};

#[test]
fn a_metric_of_a_command_fills_only_columns_that_its_process_measures() {
    for column in FILLED_COLUMNS {
        assert!(TrialFigures::COLUMNS.contains(&column), "{column}");
    }
}

#[test]
fn a_column_that_no_sweep_can_vary_is_not_an_axis() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &["run.engine".to_owned()]).unwrap();
    let fixed = TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        trial: TrialId::of_digits("0123456789"),
        ..TrialRow::default()
    };
    writer
        .append(&TableRow::new(fixed, &["flex".into()]))
        .unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let (head, row) = text.trim_end().split_once('\n').unwrap();
    let added = format!("{head},vs. base,run.note,metric.x,note\n{row},1 %,a,2,b\n");
    fs::write(&path, added).unwrap();
    let table = TrialTable::read(&path).unwrap();
    assert_eq!(table.axes, ["run.engine"]);
    assert_eq!(table.rows[0].axes, ["flex"]);
    assert_eq!(table.others, ["vs. base", "run.note"]);
    assert_eq!(table.metrics, ["metric.x"]);
}

#[test]
fn of_two_rows_of_an_attempt_a_final_one_counts_and_then_the_later_one() {
    let row = |(attempt, outcome, launch): (u64, Outcome, u64)| {
        let fixed = TrialRow {
            trial: TrialId::of_digits("0123456789"),
            attempt,
            outcome,
            launch,
            ..TrialRow::default()
        };
        TableRow::new(fixed, &[])
    };
    let last = |rows: &[(u64, Outcome, u64)]| {
        let table = TrialTable {
            rows: rows.iter().copied().map(row).collect(),
            ..TrialTable::default()
        };
        let last = table.last_attempts();
        let row = &last[0].fixed;
        (row.attempt, row.outcome, row.launch)
    };
    let (done, killed) = ((2, Outcome::Completed, 1), (2, Outcome::Killed, 2));
    assert_eq!(last(&[done, killed]), done);
    assert_eq!(last(&[killed, done]), done);
    assert_eq!(last(&[done, (2, Outcome::Failed, 3)]).2, 3);
    assert_eq!(last(&[done, (3, Outcome::Killed, 1)]).0, 3);
}

#[test]
fn metrics_stand_behind_the_axes_and_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let columns = ["model.values.n", "metric.gflops", "metric.error"].map(str::to_owned);
    let (mut writer, _) = TrialWriter::open(&path, &columns).unwrap();
    let row = |metrics: &[(&str, f64)]| {
        let fixed = TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            trial: TrialId::of_digits("0123456789"),
            metrics: metrics
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            ..TrialRow::default()
        };
        TableRow::new(fixed, &[4.into()])
    };
    // A metric that the table does not have is not written.
    writer
        .append(&row(&[("gflops", 12.5), ("other", 1.0)]))
        .unwrap();
    let bare = || {
        let mut bare = row(&[]);
        bare.fixed.attempt = 2;
        bare
    };
    writer.append(&bare()).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let header: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    assert_eq!(header[AXES_AT..AXES_AT + 3], columns);
    let cells: Vec<&str> = text.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(cells[AXES_AT..AXES_AT + 3], ["4", "12.5", ""]);
    let batch = header
        .iter()
        .position(|name| *name == "batch_size")
        .unwrap();
    assert_eq!(cells[batch], "", "a command has no batch");
    let table = TrialTable::read(&path).unwrap();
    assert_eq!(table.axes, columns[..1]);
    assert_eq!(table.metrics, columns[1..]);
    assert_eq!(table.rows[0], row(&[("gflops", 12.5)]));
    assert_eq!(table.rows[1], bare());
    let gflops = Metric::named("gflops");
    assert_eq!(gflops.name(), "metric.gflops");
    assert_eq!(table.rows[0].fixed.metric(gflops), Some(12.5));
    fs::write(&path, text.replace("12.5", "fast")).unwrap();
    let problem = TrialTable::read(&path).unwrap_err().to_string();
    assert!(
        problem.ends_with("`metric.gflops` is `fast`; it must be a number"),
        "{problem}"
    );
    let problem_of = |column: &str, cell: &str| {
        let place = header.iter().position(|name| *name == column).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut cells: Vec<&str> = lines[2].split(',').collect();
        cells[place] = cell;
        lines[2] = cells.join(",");
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        TrialTable::read(&path).map_err(|error| error.to_string())
    };
    for cell in ["inf", "-Infinity", "1e999", "NaN", "-nan"] {
        let problem = problem_of("samples_per_second", cell).unwrap_err();
        let words = format!(
            "`samples_per_second` is `{cell}`; it must be a finite number, or empty where it is \
             unknown"
        );
        assert!(problem.ends_with(&words), "{problem}");
    }
    for (column, cell) in [
        ("samples_per_second", "-5"),
        ("data_wait_fraction", "-0.5"),
        ("evaluation_seconds", "-1e3"),
    ] {
        let problem = problem_of(column, cell).unwrap_err();
        let words = format!("`{column}` is `{cell}`, and it cannot be negative");
        assert!(problem.contains(&words), "{problem}");
    }
    assert!(problem_of("valid_loss", "-0.5").is_ok(), "a loss may be so");
    let by_the_driver = problem_of("mean_power_watts", "-0.5");
    assert!(by_the_driver.is_ok(), "kiln writes what it reads");
    assert!(problem_of("device_name", "inf").is_ok(), "a name may be so");
    let problem = problem_of("outcome", "COMPLETED").unwrap_err();
    assert!(
        problem.contains("`outcome`: unknown variant `COMPLETED`, expected one of "),
        "{problem}"
    );
}
