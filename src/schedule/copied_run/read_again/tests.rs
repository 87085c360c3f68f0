use std::sync::Arc;

use kiln_core::{
    kinds::Model,
    record::{attempt::RESULT_FILE, note::BusyHost, run_file::write_json, tables::TRIALS},
    spec::Experiment,
};

use super::*;
use crate::schedule::sweep::tests::trial;

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
        block: Some(1),
        round: Some(2),
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
    let mut read = TrialResult::empty(trial.id.clone(), 2);
    (read.outcome, read.figures.valid_loss) = (Outcome::Completed, Some(0.1));
    (read.figures.steps, read.figures.left_out_steps) = (None, None);
    read.metrics.insert("speed".to_owned(), 12.5);
    let row = row(&trial, &command, &old, &read).unwrap();
    let wanted = TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        number: 7,
        // The trial is of the first round in this plan.
        round: None,
        outcome: Outcome::Completed,
        reason: None,
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
fn the_note_names_the_attempt_that_ran() {
    let note = |notes: Option<&str>| {
        let old = TrialRow {
            attempt: 2,
            notes: notes.map(str::to_owned),
            ..TrialRow::default()
        };
        origin(&RunFolder::at("results/x/20260101T000000Z-abc"), &old)
    };
    let first = note(Some("speed: N/A"));
    assert_eq!(
        first,
        "metrics read again from the output of attempt 2 in x/20260101T000000Z-abc, to which all other \
         cells belong"
    );
    let earlier = first.replace("x/20260101T000000Z-abc", "x/before");
    let of_earlier = format!("read_again: {earlier}, the middle is not kept; speed: N/A");
    assert_eq!(note(Some(&of_earlier)), earlier);
}
