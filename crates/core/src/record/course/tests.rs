use super::*;
use crate::record::{TrialResult, table::TableWriter};

fn step(step: u64, seconds: f64, is_warmup: bool) -> StepRow {
    StepRow {
        kiln_table: STEPS.version.to_owned(),
        run_seconds: seconds,
        epoch: 1,
        step,
        loss: Some(seconds),
        learning_rate: None,
        step_seconds: None,
        data_wait_seconds: 0.0,
        is_warmup,
        ..StepRow::default()
    }
}

/// All that can be read of a course.
#[derive(Debug, Default, PartialEq)]
struct Whole {
    steps: Vec<StepRow>,
    epochs: Vec<EpochRow>,
    window: Option<(f64, f64)>,
}

fn read(run: &RunFolder, trial: &TrialId, last_attempt: u64) -> Result<Whole, TableError> {
    let course = Course::find(run, trial, last_attempt)?;
    let mut steps = Vec::new();
    course.each_step(&mut |row| steps.push(row.clone()))?;
    Ok(Whole {
        steps,
        epochs: course.epochs()?,
        window: course.window(None)?,
    })
}

fn write(path: &Path, rows: &[StepRow]) {
    let (mut writer, _) = TableWriter::open(path, STEPS.spec(&[])).unwrap();
    rows.iter().for_each(|row| writer.append_row(row).unwrap());
}

#[test]
fn attempts_that_cannot_be_listed_are_not_a_course_without_steps() {
    let folder = tempfile::tempdir().unwrap();
    // No system has a folder of this name.
    let (run, trial) = (RunFolder::at(folder.path()), TrialId("t".repeat(300)));
    std::fs::create_dir(run.trials()).unwrap();
    let error = Course::find(&run, &trial, 1).unwrap_err();
    assert!(error.is_unread(), "{error}");
    assert!(each_layer(&run, &trial, 1, &mut |_| {}).is_err());
}

#[test]
fn attempts_are_one_course_and_what_a_resume_undid_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let (run, trial) = (RunFolder::at(folder.path()), TrialId("t".into()));
    assert_eq!(read(&run, &trial, 1).unwrap(), Whole::default());
    for (attempt, rows) in [
        (
            1,
            [step(1, 1.0, true), step(2, 2.0, false), step(3, 3.0, false)],
        ),
        (
            3,
            [
                step(3, 13.0, true),
                step(4, 14.0, false),
                step(5, 15.5, false),
            ],
        ),
    ] {
        let place = run.attempt(&trial, attempt);
        std::fs::create_dir_all(&place).unwrap();
        write(&place.join("steps.csv"), &rows);
        let layers = rows.map(|step| LayerRow {
            kiln_table: LAYERS.version.to_owned(),
            step: step.step,
            gradient_noise: step.loss,
            ..LayerRow::default()
        });
        let path = place.join("layers.csv");
        let (mut writer, _) = TableWriter::open(&path, LAYERS.spec(&[])).unwrap();
        layers
            .iter()
            .for_each(|row| writer.append_row(row).unwrap());
    }
    let course = read(&run, &trial, 3).unwrap();
    let losses: Vec<f64> = course.steps.iter().filter_map(|row| row.loss).collect();
    assert_eq!(
        (losses, course.window),
        (vec![1.0, 2.0, 13.0, 14.0, 15.5], Some((13.0, 15.5)))
    );
    let noise = |last_attempt: u64| -> Vec<f64> {
        let mut noise: Vec<f64> = Vec::new();
        let mut each = |row: &LayerRow| noise.extend(row.gradient_noise);
        each_layer(&run, &trial, last_attempt, &mut each).unwrap();
        noise
    };
    assert_eq!(noise(3), [1.0, 2.0, 13.0, 14.0, 15.5]);
    assert_eq!(noise(1), [1.0, 2.0, 3.0]);
    resumed_at_the_last_step_keeps_the_course(&run, &trial, &course);
    // A table of layers that cannot be read takes nothing else away.
    let layers_table = run.attempt(&trial, 3).join("layers.csv");
    std::fs::write(layers_table, "kiln_table,step\nlayers/1,x\n").unwrap();
    assert!(each_layer(&run, &trial, 3, &mut |_| {}).is_err());
    assert_eq!(read(&run, &trial, 3).unwrap(), course);
    assert_eq!(read(&run, &trial, 1).unwrap().window, Some((1.0, 3.0)));
    std::fs::write(
        run.attempt(&trial, 1).join("epochs.csv"),
        format!("kiln_table\n{}0\n", EPOCHS.version),
    )
    .unwrap();
    assert!(read(&run, &trial, 3).is_err());
}

/// Attempt 4 resumed after the last step and evaluated again.
fn resumed_at_the_last_step_keeps_the_course(run: &RunFolder, trial: &TrialId, course: &Whole) {
    let evaluated = |attempt: u64, valid_loss: f64| {
        let path = run.attempt(trial, attempt).join("epochs.csv");
        let (mut writer, _) = TableWriter::open(&path, EPOCHS.spec(&[])).unwrap();
        let row = EpochRow {
            kiln_table: EPOCHS.version.to_owned(),
            step: 5,
            valid_loss: Some(valid_loss),
            ..EpochRow::default()
        };
        writer.append_row(&row).unwrap();
    };
    let place = run.attempt(trial, 4);
    std::fs::create_dir_all(&place).unwrap();
    assert!(read(run, trial, 4).unwrap().steps.is_empty());
    evaluated(3, 0.7);
    evaluated(4, 0.6);
    let mut result = TrialResult::empty(trial.clone(), 4);
    result.figures.resumed_at_step = Some(5);
    std::fs::write(
        place.join("trial.json"),
        serde_json::to_vec(&result).unwrap(),
    )
    .unwrap();
    let resumed = read(run, trial, 4).unwrap();
    let losses: Vec<_> = resumed.epochs.iter().map(|row| row.valid_loss).collect();
    assert_eq!(
        (resumed.steps, losses),
        (course.steps.clone(), vec![Some(0.6)])
    );
    std::fs::remove_file(run.attempt(trial, 3).join("epochs.csv")).unwrap();
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn an_attempt_that_ended_before_its_first_step_leaves_the_steps_of_those_before() {
    let folder = tempfile::tempdir().unwrap();
    let (run, trial) = (RunFolder::at(folder.path()), TrialId("t".into()));
    let losses = |last_attempt: u64| {
        let (course, attempt) = Course::trained(&run, &trial, last_attempt).unwrap();
        let mut losses: Vec<f64> = Vec::new();
        let read = course.each_step(&mut |row| losses.extend(row.loss));
        read.unwrap();
        (losses, attempt, course.first_step())
    };
    assert_eq!(losses(2), (Vec::new(), 2, None));
    for (attempt, rows) in [
        (1, vec![step(1, 1.0, true), step(2, 2.0, false)]),
        (2, vec![step(2, 12.0, true)]),
        (3, Vec::new()),
        (4, Vec::new()),
    ] {
        let place = run.attempt(&trial, attempt);
        std::fs::create_dir_all(&place).unwrap();
        write(&place.join("steps.csv"), &rows);
    }
    assert_eq!(losses(4), (vec![1.0, 12.0], 2, Some(1)));
    assert_eq!(losses(2), (vec![1.0, 12.0], 2, Some(1)));
    assert_eq!(losses(1), (vec![1.0, 2.0], 1, Some(1)));
}

#[test]
fn a_window_that_the_trial_reported_needs_only_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let (run, trial) = (RunFolder::at(folder.path()), TrialId("t".into()));
    let place = run.attempt(&trial, 1);
    std::fs::create_dir_all(&place).unwrap();
    let path = place.join("steps.csv");
    write(&path, &[step(1, 1.0, true), step(2, 2.0, false)]);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{},often\n", STEPS.version)).unwrap();
    let mut result = TrialResult::empty(trial.clone(), 1);
    result.window_started_nanoseconds = Some(3_000_000_001);
    result.window_ended_nanoseconds = Some(5_000_000_001);
    let text = serde_json::to_vec(&result).unwrap();
    std::fs::write(place.join("trial.json"), text).unwrap();
    let launch: Launch = serde_json::from_value(serde_json::json!({
        "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
        "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": {},
        "devices": {}, "environment": {},
        "versions": {"kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                     "trial_program_sha256": null},
    }))
    .unwrap();
    let course = Course::find(&run, &trial, 1).unwrap();
    assert_eq!(course.window(Some(&launch)).unwrap(), Some((3.0, 5.0)));
    assert!(course.window(None).is_err() && course.each_step(&mut |_| {}).is_err());
    std::fs::write(&path, whole).unwrap();
    assert_eq!(course.window(None).unwrap(), Some((1.0, 2.0)));
    // Without steps there is no course, and so no window.
    std::fs::remove_file(&path).unwrap();
    let empty = Course::find(&run, &trial, 1).unwrap();
    assert_eq!(empty.window(Some(&launch)).unwrap(), None);
}

#[test]
fn rows_before_a_line_that_a_power_failure_damaged_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.csv");
    let steps = [1, 2, 3].map(|number| step(number, number as f64, false));
    write(&path, &steps);
    let whole = std::fs::read(&path).unwrap();
    let read = || rows::<StepRow>(folder.path(), &STEPS);
    assert_eq!(read().unwrap(), steps);
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
    for (lost, kept) in [
        (ends[1] + 1..ends[2] + 1, 1),
        (ends[1] + 9..ends[2] + 1, 1),
        (ends[0] + 5..whole.len(), 0),
        (ends[2] + 1..whole.len(), 2),
        (0..whole.len(), 0),
    ] {
        let mut damaged = whole.clone();
        damaged[lost].fill(0);
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(read().unwrap(), steps[..kept]);
    }
}
