use std::path::PathBuf;

use kiln_core::{
    plan::TrialId,
    record::{EpochRow, StepRow, TableWriter, TrialTable, table::TableSpec},
};

use super::{pieces::PIECE_BYTES, *};
use crate::report::points::tests::{row, table};

/// The table as it is printed, and what it lacks.
fn printed(subjects: &[Subject<'_>], kind: RowKind, columns: &[&str]) -> (String, Vec<String>) {
    let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    let table = TidyTable::of(subjects, kind, &columns).unwrap();
    let mut text = String::new();
    let lacks = table.write(&mut |piece: &str| {
        text.push_str(piece);
        Ok(true)
    });
    (text, lacks.unwrap())
}

fn lines(cells: &[&str]) -> String {
    cells.iter().map(|line| format!("{line}\n")).collect()
}

/// A run's folder of this name.
fn folder(above: &tempfile::TempDir, name: &str) -> RunFolder {
    let path = above.path().join(name);
    std::fs::create_dir(&path).unwrap();
    RunFolder::at(path)
}

fn attempt_folder(run: &RunFolder, trial: &TrialId, attempt: u64) -> PathBuf {
    let path = run.attempt(trial, attempt);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Writes the steps of an attempt, each with its loss.
fn write_steps(run: &RunFolder, trial: &TrialId, attempt: u64, steps: &[(u64, f64)]) {
    let path = attempt_folder(run, trial, attempt).join("steps.csv");
    let row = |(step, loss): &(u64, f64)| StepRow {
        kiln_table: STEPS.version.to_owned(),
        step: *step,
        loss: Some(*loss),
        ..StepRow::default()
    };
    write_rows(&path, STEPS.spec(&[]), steps.iter().map(row));
}

fn write_epochs(run: &RunFolder, trial: &TrialId, attempt: u64, epochs: &[(u64, f64)]) {
    let path = attempt_folder(run, trial, attempt).join("epochs.csv");
    let row = |(step, valid_loss): &(u64, f64)| EpochRow {
        kiln_table: EPOCHS.version.to_owned(),
        step: *step,
        valid_loss: Some(*valid_loss),
        ..EpochRow::default()
    };
    write_rows(&path, EPOCHS.spec(&[]), epochs.iter().map(row));
}

fn write_rows<T: Serialize>(path: &Path, spec: TableSpec, rows: impl Iterator<Item = T>) {
    let (mut writer, _) = TableWriter::open(path, spec).unwrap();
    for row in rows {
        writer.append_row(&row).unwrap();
    }
}

/// A run of this table in a folder.
fn subject<'a>(table: &'a TrialTable, folder: &'a RunFolder) -> Subject<'a> {
    Subject {
        folder: Some(folder),
        ..Subject::new(table, "results/x/latest/trials.csv")
    }
}

#[test]
fn points_of_both_meanings_of_a_measure_are_noted() {
    let of_version = |version: &str| {
        let row = TrialRow {
            kiln_table: version.to_owned(),
            data_wait_fraction: Some(0.4),
            ..row(1, 10.0)
        };
        table(&[], vec![(row, &[])])
    };
    let tables = ["trials/9", "trials/10"].map(of_version);
    let notes = |columns: &[&str]| {
        let subjects = [("results/x/old", &tables[0]), ("results/x/new", &tables[1])]
            .map(|(name, table)| Subject::new(table, name));
        printed(&subjects, RowKind::Points, columns).1
    };
    let note = "`data_wait_fraction`: 1 of 2 rows may have an older meaning: before `trials/10` it \
                counted every wait of the host, also while the GPU still had steps to do";
    assert_eq!(notes(&[]), [note]);
    assert!(notes(&["samples_per_second"]).is_empty());
}

#[test]
fn ids_of_old_and_new_runs_are_spelled_alike() {
    let of_form = |letter: &str| {
        let row = TrialRow {
            trial: TrialId(format!("{letter}00000000aa")),
            fallback_of: Some(TrialId(format!("{letter}00000000bb"))),
            ..row(1, 10.0)
        };
        table(&[], vec![(row, &[])])
    };
    let (old, new) = (of_form(""), of_form("t"));
    let subjects = [Subject::new(&old, "old"), Subject::new(&new, "new")];
    assert_eq!(
        printed(&subjects, RowKind::Trials, &["fallback_of"]).0,
        lines(&[
            "experiment,run,trial,attempt,seed,fallback_of",
            ",old,t00000000aa,1,1,t00000000bb",
            ",new,t00000000aa,1,1,t00000000bb",
        ])
    );
}

#[test]
fn the_steps_of_a_resumed_trial_stand_once_each() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let resumed = TrialRow {
        attempt: 2,
        resumed_at_step: Some(2),
        ..row(1, 10.0)
    };
    let killed = TrialRow {
        outcome: Outcome::Killed,
        ..row(1, 10.0)
    };
    let trial = resumed.trial.clone();
    write_steps(&run, &trial, 1, &[(1, 4.0), (2, 3.0), (3, 2.75)]);
    write_steps(&run, &trial, 2, &[(3, 2.5), (4, 1.125)]);
    write_epochs(&run, &trial, 1, &[(2, 3.5), (3, 3.25)]);
    write_epochs(&run, &trial, 2, &[(4, 1.5)]);
    let table = table(&["a.b"], vec![(killed, &["x"]), (resumed, &["x"])]);
    let of = |kind, columns: &[&str]| printed(&[subject(&table, &run)], kind, columns);
    let id = "t0000000001";
    assert_eq!(
        of(RowKind::Steps, &["step", "loss"]),
        (
            lines(&[
                "experiment,run,trial,attempt,seed,a.b,step,loss",
                &format!(",one,{id},2,1,x,1,4.0"),
                &format!(",one,{id},2,1,x,2,3.0"),
                &format!(",one,{id},2,1,x,3,2.5"),
                &format!(",one,{id},2,1,x,4,1.125"),
            ]),
            Vec::new()
        )
    );
    assert_eq!(
        of(RowKind::Epochs, &["valid_loss", "step"]).0,
        lines(&[
            "experiment,run,trial,attempt,seed,a.b,valid_loss,step",
            &format!(",one,{id},2,1,x,3.5,2"),
            &format!(",one,{id},2,1,x,1.5,4"),
        ])
    );
    // Every column, with the version of each row.
    let (whole, _) = of(RowKind::Steps, &[]);
    let head = format!(
        "experiment,run,trial,attempt,seed,a.b,{}",
        STEPS.names().join(",")
    );
    assert_eq!(whole.lines().next(), Some(head.as_str()));
    assert_eq!(whole.matches(STEPS.version).count(), 4, "{whole}");
    // Of the trials, the last attempt alone.
    assert_eq!(
        of(RowKind::Trials, &["outcome", "seed", "resumed_at_step"]).0,
        lines(&[
            "experiment,run,trial,attempt,seed,a.b,outcome,resumed_at_step",
            &format!(",one,{id},2,1,x,completed,2"),
        ])
    );
}

#[test]
fn runs_with_other_axes_have_the_values_of_their_experiments() {
    let above = tempfile::tempdir().unwrap();
    let (one, other) = (folder(&above, "one"), folder(&above, "other"));
    let batches = table(
        &["train.batch_size"],
        vec![(row(1, 10.0), &["8"]), (row(2, 20.0), &["16"])],
    );
    let rates = table(
        &["train.optimizer.learning_rate", "train.optimizer.kind"],
        vec![(row(3, 30.0), &["0.1", "sgd"])],
    );
    let experiment = "name: x\ntrain: {optimizer: {kind: adamw, learning_rate: 3.0e-4}}\n";
    let subjects = [
        Subject {
            experiment: Some(experiment),
            ..subject(&batches, &one)
        },
        subject(&rates, &other),
    ];
    assert_eq!(
        printed(&subjects, RowKind::Trials, &["samples_per_second"]).0,
        lines(&[
            "experiment,run,trial,attempt,seed,train.batch_size,train.optimizer.learning_rate,\
             train.optimizer.kind,samples_per_second",
            "x,one,t0000000001,1,1,8,0.0003,adamw,10.0",
            "x,one,t0000000002,1,1,16,0.0003,adamw,20.0",
            ",other,t0000000003,1,1,1,0.1,sgd,30.0",
        ])
    );
    let twice = TidyTable::of(&[subjects[0], subjects[0]], RowKind::Trials, &[]);
    let told = twice.err().unwrap().to_string();
    assert_eq!(told, "`x/one` is named twice; name each run once");
    // The map of an axis holds the rate: that of the experiment is not its value.
    let maps = table(
        &["train.optimizer"],
        vec![(row(4, 40.0), &["{\"kind\":\"sgd\"}"])],
    );
    let of_maps = Subject {
        experiment: Some(experiment),
        ..subject(&maps, &one)
    };
    let (text, _) = printed(
        &[of_maps, subject(&rates, &other)],
        RowKind::Trials,
        &["seed"],
    );
    assert_eq!(
        text.lines().nth(1),
        Some("x,one,t0000000004,1,1,\"{\"\"kind\"\":\"\"sgd\"\"}\",,")
    );
}

#[test]
fn points_have_the_exact_means_of_the_trials_that_completed() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let with = |id, samples: f64, valid_loss, outcome| TrialRow {
        valid_loss,
        outcome,
        metrics: [("score".to_owned(), samples / 10.0)].into(),
        ..row(id, samples)
    };
    let rows = vec![
        (
            with(1, 10.0, Some(0.123_456_789), Outcome::Completed),
            &["a"][..],
        ),
        (with(2, 20.0, None, Outcome::Completed), &["a"]),
        (with(3, 99.0, Some(9.0), Outcome::Oom), &["a"]),
    ];
    let mut table = table(&["x.y"], rows);
    table.metrics = vec!["metric.score".to_owned()];
    let columns = [
        "others",
        "samples_per_second",
        "samples_per_second_deviation",
        "valid_loss",
        "valid_loss_deviation",
        "valid_loss_n",
        "metric.score",
    ];
    assert_eq!(
        printed(&[subject(&table, &run)], RowKind::Points, &columns).0,
        lines(&[
            &format!("experiment,run,n,x.y,{}", columns.join(",")),
            &format!(",one,2,a,1 oom,15.0,{},0.123456789,,1,1.5", 50.0_f64.sqrt()),
        ])
    );
    // A line has a cell for each column.
    let (whole, _) = printed(&[subject(&table, &run)], RowKind::Points, &[]);
    let mut reader = ::csv::Reader::from_reader(whole.as_bytes());
    let rows: Vec<::csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].iter().next_back(), Some("2"));
}

#[test]
fn an_unknown_column_is_refused_with_the_known_ones() {
    let mut table = table(&["a.b"], vec![(row(1, 10.0), &["x"])]);
    table.metrics = vec!["metric.score".to_owned()];
    let refused = |kind, name: &str| {
        let subject = Subject::new(&table, "x.csv");
        let found = TidyTable::of(&[subject], kind, &[name.to_owned()]);
        found.err().unwrap().to_string()
    };
    let told = refused(RowKind::Steps, "los");
    assert!(
        told.starts_with(
            "`--columns`: `los` is not a column of `--csv steps`; did you mean `loss`?; the \
             columns are `kiln_table`, `run_seconds`, `epoch`, `step`, `loss`, "
        ),
        "{told}"
    );
    assert!(told.ends_with("axes of the sweep are there without being named"));
    let by_its_end = TidyTable::of(
        &[Subject::new(&table, "x.csv")],
        RowKind::Trials,
        &["b".to_owned()],
    );
    assert!(by_its_end.is_ok());
    let told = refused(RowKind::Trials, "score");
    assert!(told.contains("; did you mean `metric.score`?"), "{told}");
    assert!(!refused(RowKind::Epochs, "metric.score").contains("did you mean"));
}

#[test]
fn what_is_not_here_is_told() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let skipped = TrialRow {
        outcome: Outcome::Skipped,
        attempt: 0,
        ..row(3, 1.0)
    };
    let table = table(
        &[],
        vec![(row(1, 10.0), &[]), (row(2, 20.0), &[]), (skipped, &[])],
    );
    write_steps(&run, &row(2, 20.0).trial, 1, &[(1, 0.5)]);
    let committed = Subject::new(&table, "HEAD:results/x/two/trials.csv");
    let (text, lacks) = printed(
        &[subject(&table, &run), committed],
        RowKind::Steps,
        &["step"],
    );
    assert_eq!(
        text,
        lines(&[
            "experiment,run,trial,attempt,seed,step",
            ",one,t0000000002,1,1,1"
        ])
    );
    assert_eq!(
        lacks,
        [
            "results/x/latest/trials.csv: `steps.csv` of 1 of 2 trials is not here, so their steps are \
             not in the table; it is not committed, and a copy of a run may lack it",
            "HEAD:results/x/two/trials.csv: `steps.csv` of its trials is not committed, so none of its \
             steps are in the table; name the run's folder on the machine where it ran",
        ]
    );
    // The rows of a commit are those of its table.
    let (text, lacks) = printed(&[committed], RowKind::Trials, &["outcome"]);
    assert!(
        text.contains("\n,HEAD:results/x/two,t0000000001,1,1,completed\n"),
        "{text}"
    );
    assert_eq!(lacks, Vec::<String>::new());
}

#[test]
fn a_run_of_commands_has_no_steps_and_no_evaluations() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let command = TrialRow {
        model_kind: "command".to_owned(),
        ..row(1, 10.0)
    };
    let table = table(&[], vec![(command, &[])]);
    for (kind, words) in [
        (
            RowKind::Steps,
            "a command has no `steps.csv`, so none of its steps are in the table",
        ),
        (
            RowKind::Epochs,
            "a command has no `epochs.csv`, so none of its epochs are in the table",
        ),
    ] {
        let committed = Subject::new(&table, "HEAD:results/x/one/trials.csv");
        for subject in [subject(&table, &run), committed] {
            let (text, lacks) = printed(&[subject], kind, &["step"]);
            assert_eq!(text, "experiment,run,trial,attempt,seed,step\n");
            assert!(lacks.len() == 1 && lacks[0].contains(words), "{lacks:?}");
        }
    }
}

#[test]
fn a_last_attempt_without_a_step_leaves_the_curve_of_those_before_and_is_told() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let killed = TrialRow {
        outcome: Outcome::Killed,
        attempt: 2,
        ..row(1, 10.0)
    };
    let trial = killed.trial.clone();
    write_steps(&run, &trial, 1, &[(1, 4.0), (2, 3.0)]);
    write_steps(&run, &trial, 2, &[]);
    write_epochs(&run, &trial, 1, &[(2, 3.5)]);
    let table = table(&[], vec![(killed, &[])]);
    let told = "results/x/latest/trials.csv: the last attempt of trial 0000000001 ended before its \
                first step; its rows are those of attempt 1";
    for (kind, rows) in [
        (
            RowKind::Steps,
            [",one,t0000000001,2,1,1", ",one,t0000000001,2,1,2"].as_slice(),
        ),
        (RowKind::Epochs, [",one,t0000000001,2,1,2"].as_slice()),
    ] {
        let (text, lacks) = printed(&[subject(&table, &run)], kind, &["step"]);
        let head = ["experiment,run,trial,attempt,seed,step"];
        assert_eq!(text, lines(&[&head[..], rows].concat()));
        assert_eq!(lacks, [told]);
    }
}

#[test]
fn a_curve_without_its_beginning_is_told() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let resumed = TrialRow {
        attempt: 2,
        resumed_at_step: Some(2),
        ..row(1, 10.0)
    };
    let trial = resumed.trial.clone();
    write_steps(&run, &trial, 2, &[(3, 2.5), (4, 1.5)]);
    write_steps(&run, &row(2, 10.0).trial, 1, &[(1, 2.5)]);
    let table = table(&[], vec![(resumed, &[]), (row(2, 10.0), &[])]);
    let subject = subject(&table, &run);
    let (text, lacks) = printed(&[subject], RowKind::Steps, &["step"]);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert_eq!(
        lacks,
        [
            "results/x/latest/trials.csv: 1 of 2 trials have no steps from their beginning \
             (0000000001): the tables of their first attempts are not here; a copy of a run may lack \
             them"
        ]
    );
    write_steps(&run, &trial, 1, &[(1, 4.0), (2, 3.0)]);
    let (_, lacks) = printed(&[subject], RowKind::Steps, &["step"]);
    assert_eq!(lacks, Vec::<String>::new());
}

#[test]
fn texts_are_those_of_the_runs_own_table() {
    let value = "a\n  \u{7f}b, \"c\"";
    let table = table(&["a.b"], vec![(row(1, 10.0), &[value])]);
    let subject = Subject::new(&table, "x/trials.csv");
    for kind in [RowKind::Trials, RowKind::Points] {
        let (text, _) = printed(&[subject], kind, &["samples_per_second"]);
        let mut reader = ::csv::Reader::from_reader(text.as_bytes());
        let place = reader.headers().unwrap().iter().position(|it| it == "a.b");
        let record = reader.records().next().unwrap().unwrap();
        assert_eq!(record.get(place.unwrap()), Some(value), "{text}");
    }
}

#[test]
fn nothing_is_written_once_nobody_reads() {
    let above = tempfile::tempdir().unwrap();
    let run = folder(&above, "one");
    let steps: Vec<(u64, f64)> = (1..=5_000).map(|step| (step, 0.5)).collect();
    write_steps(&run, &row(1, 10.0).trial, 1, &steps);
    let table = table(&[], vec![(row(1, 10.0), &[])]);
    let tidy = TidyTable::of(&[subject(&table, &run)], RowKind::Steps, &[]).unwrap();
    let mut sizes = Vec::new();
    let mut write = |piece: &str| {
        sizes.push(piece.len());
        Ok(sizes.len() < 2)
    };
    assert!(tidy.write(&mut write).unwrap().is_empty());
    // Pieces, and not the whole of some 300 kB.
    assert_eq!(sizes.len(), 2);
    assert!(
        sizes.iter().all(|size| *size < 2 * PIECE_BYTES),
        "{sizes:?}"
    );
}
