use std::sync::Arc;

use kiln_core::{kinds::Model, record::note::BusyHost, spec::Experiment};

use super::*;
use crate::schedule::sweep::tests::trial;

fn attempt(number: u64, block: Option<u64>) -> AttemptReadAgain {
    let id = TrialId(format!("{number:010}"));
    let row = TrialRow {
        trial: id.clone(),
        block,
        round: block,
        ..TrialRow::default()
    };
    AttemptReadAgain {
        row: TableRow::new(row, &[]),
        result: TrialResult::empty(id, FIRST),
        folder: PathBuf::new(),
    }
}

#[test]
fn a_block_of_which_a_trial_runs_now_has_no_number() {
    let text = "{kiln: 1, name: x, model: {kind: command, argv: [x]}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials: Vec<Trial> = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
        .into_iter()
        .map(|(number, repeat)| trial(&experiment, number, repeat))
        .collect();
    // Trial 4 is not read again, trial 6 was a retry.
    let mut attempts = vec![
        attempt(1, Some(1)),
        attempt(2, Some(1)),
        attempt(3, Some(2)),
        attempt(5, Some(3)),
        attempt(6, None),
    ];
    leave_out_parts(&mut attempts, &trials);
    let blocks = attempts.iter().map(|attempt| attempt.row.fixed.block);
    let wanted = [Some(1), Some(1), None, Some(3), None];
    assert_eq!(blocks.collect::<Vec<_>>(), wanted);
    let rounds = attempts.iter().map(|attempt| attempt.row.fixed.round);
    assert_eq!(rounds.collect::<Vec<_>>(), wanted);
}

#[test]
fn what_was_measured_stays_and_what_was_read_is_replaced() {
    let text = "argv: [x]\nvalues: {cpu_threads: 3}\nmetrics: {speed: {key: speed}, valid_loss: \
                {key: loss}}";
    let command: Command = serde_yaml::from_str(text).unwrap();
    let experiment: Experiment =
        serde_yaml::from_str("{kiln: 1, name: x, model: {kind: command, argv: [x]}}").unwrap();
    let trial = Trial {
        model: Arc::new(Model::Command(command.clone())),
        ..trial(&experiment, 7, 0)
    };
    let old = TrialRow {
        kiln_table: "trials/9".to_owned(),
        trial: trial.id.clone(),
        attempt: 2,
        launch: 3,
        outcome: Outcome::Failed,
        reason: Some("no number".to_owned()),
        trial_seconds: Some(36_000.5),
        run_seconds: Some(12.0),
        train_loss: Some(9.0),
        mean_power_watts: Some(250.25),
        peak_resident_bytes: Some(1 << 33),
        seed: 4,
        ..TrialRow::default()
    };
    let mut read = TrialResult::empty(trial.id.clone(), FIRST);
    (read.outcome, read.figures.valid_loss) = (Outcome::Completed, Some(0.1));
    (read.figures.steps, read.figures.left_out_steps) = (None, None);
    read.metrics.insert("speed".to_owned(), 12.5);
    let row = row(&trial, &command, &old, &read).unwrap();
    let wanted = TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        attempt: FIRST,
        number: 7,
        outcome: Outcome::Completed,
        reason: None,
        run_seconds: None,
        train_loss: None,
        valid_loss: Some(0.1),
        cpu_threads: Some(3),
        metrics: BTreeMap::from([("speed".to_owned(), 12.5)]),
        ..old
    };
    assert_eq!(row, wanted);
}

#[test]
fn the_notes_on_what_was_measured_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mut before = TrialResult::empty(TrialId("t4f0c1a2b3d".to_owned()), 1);
    for (column, told) in [("speed", "N/A; no number"), (BusyHost::COLUMN, "odd")] {
        before.notes.insert(column.to_owned(), told.to_owned());
    }
    write_json(&folder.path().join(RESULT_FILE), &before).unwrap();
    let old = TrialRow {
        notes: Some(
            "energy: no counter; samples_per_second: busy, odd; speed: N/A, no number".to_owned(),
        ),
        ..TrialRow::default()
    };
    let notes = other_notes(&old, folder.path(), &Paths::here(Privacy::Full));
    let kept = [("energy", "no counter"), (BusyHost::COLUMN, "busy")];
    let kept = kept.map(|(column, note)| (column.to_owned(), note.to_owned()));
    assert_eq!(notes, BTreeMap::from(kept));
}

#[test]
fn the_files_of_an_attempt_are_linked_with_its_folders() {
    let place = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| place.path().join(name));
    fs::create_dir_all(from.join("out")).unwrap();
    fs::create_dir(&to).unwrap();
    for name in ["stdout.txt", RESULT_FILE, "out/trial.json"] {
        fs::write(from.join(name), name).unwrap();
    }
    symlink("stdout.txt", from.join("link")).unwrap();
    link_all(&from, &to, &[ATTEMPT, RESULT_FILE]).unwrap();
    let read = |name: &str| fs::read_to_string(to.join(name)).ok();
    assert_eq!(read("stdout.txt").as_deref(), Some("stdout.txt"));
    assert_eq!(read("link").as_deref(), Some("stdout.txt"));
    assert_eq!(read("out/trial.json").as_deref(), Some("out/trial.json"));
    assert_eq!(read(RESULT_FILE), None);
}
