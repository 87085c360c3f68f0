//! The steps of a trial as one series, joined from all its attempts.

use std::{
    fs::File,
    io::{Cursor, Read},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use super::{
    EpochRow, LayerRow, RunFolder, StepRow, TableError,
    attempt::{self, attempts},
    columns::TableDescription,
    epochs::EPOCHS,
    layers::LAYERS,
    run_file::Launch,
    steps::STEPS,
    table::scan,
};
use crate::{input, limits::TABLE_BYTES, plan::TrialId};

/// Number of bytes at the start of `steps.csv` that are searched for the first loss.
const FIRST_STEPS_BYTES: u64 = 1 << 20;

/// The steps and evaluations of a trial. Steps of an attempt after the checkpoint from which the
/// next one resumed do not count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    pub steps: Vec<StepRow>,
    pub epochs: Vec<EpochRow>,
    /// Start and end of the last attempt's measured window, in seconds after the run's start mark:
    /// as the trial reported them, else from its steps.
    pub window: Option<(f64, f64)>,
}

impl Course {
    /// Reads the tables of all attempts up to this one; empty if the run's folder is not complete.
    /// `launch` is that of the last attempt.
    ///
    /// # Errors
    /// A table exists but cannot be read.
    pub fn read(
        run: &RunFolder,
        trial: &TrialId,
        last_attempt: u64,
        launch: Option<&Launch>,
    ) -> Result<Self, TableError> {
        let mut course = Self::default();
        for attempt in attempts(run, trial)
            .into_iter()
            .filter(|attempt| *attempt <= last_attempt)
        {
            let folder = run.attempt(trial, attempt);
            let steps: Vec<StepRow> = rows(&folder, &STEPS)?;
            let epochs: Vec<EpochRow> = rows(&folder, &EPOCHS)?;
            if attempt == last_attempt {
                // It died before it went on, or began anew and died: the steps are of others.
                if steps.is_empty() && !has_resumed(&folder) {
                    return Ok(Self::default());
                }
                course.window = launch
                    .and_then(|launch| told_window(&folder, launch))
                    .or_else(|| window(&steps));
            }
            course.go_on(steps, epochs);
        }
        Ok(course)
    }

    /// A later attempt replaces the steps from its first one on, or all of them.
    fn go_on(&mut self, steps: Vec<StepRow>, epochs: Vec<EpochRow>) {
        if let Some(first) = steps.first().map(|row| row.step) {
            self.steps.retain(|row| row.step < first);
            self.epochs.retain(|row| row.step < first);
        }
        // It may have resumed after the last step of an epoch, before the evaluation.
        if let Some(first) = epochs.first().map(|row| row.step) {
            self.epochs.retain(|row| row.step < first);
        }
        self.steps.extend(steps);
        self.epochs.extend(epochs);
    }
}

/// Whether an attempt that has a result went on from a checkpoint; if that was of the last step, it has
/// no steps of its own.
fn has_resumed(folder: &Path) -> bool {
    attempt::result(folder).is_ok_and(|result| result.figures.resumed_at_step.is_some())
}

/// Start and end as the trial reported them, on the machine's clock.
fn told_window(folder: &Path, launch: &Launch) -> Option<(f64, f64)> {
    let result = attempt::result(folder).ok()?;
    let seconds = |nanoseconds: u64| {
        (i128::from(nanoseconds) - i128::from(launch.run_anchor_nanoseconds)) as f64 / 1e9
    };
    Some((
        seconds(result.window_started_nanoseconds?),
        seconds(result.window_ended_nanoseconds?),
    ))
}

/// From the end of the last warm-up step to the end of the last step.
fn window(steps: &[StepRow]) -> Option<(f64, f64)> {
    let first = steps.iter().rposition(|row| row.is_warmup).unwrap_or(0);
    let (first, last) = (steps.get(first)?, steps.last()?);
    (last.run_seconds > first.run_seconds).then_some((first.run_seconds, last.run_seconds))
}

/// The losses that the attempts of a trial logged, up to this one, in order. `folder` is the
/// trial's.
///
/// # Errors
/// A table exists but cannot be read.
pub fn losses(folder: &Path, last_attempt: u64) -> Result<Vec<f64>, TableError> {
    let mut course = Course::default();
    for attempt in 1..=last_attempt {
        let folder = folder.join(attempt.to_string());
        course.go_on(rows(&folder, &STEPS)?, Vec::new());
    }
    Ok(course.steps.iter().filter_map(|row| row.loss).collect())
}

/// The gradients of layer groups in the measured steps of a trial, joined from its attempts up to this
/// one as a [`Course`] is; empty if they were not measured.
///
/// # Errors
/// A table exists but cannot be read.
pub fn layers(
    run: &RunFolder,
    trial: &TrialId,
    last_attempt: u64,
) -> Result<Vec<LayerRow>, TableError> {
    let folders: Vec<PathBuf> = attempts(run, trial)
        .into_iter()
        .filter(|attempt| *attempt <= last_attempt)
        .map(|attempt| run.attempt(trial, attempt))
        .collect();
    let mut joined: Vec<LayerRow> = Vec::new();
    for folder in folders {
        if !joined.is_empty()
            && let Some(first) = rows::<StepRow>(&folder, &STEPS)?.first()
        {
            joined.retain(|row| row.step < first.step);
        }
        joined.extend(rows::<LayerRow>(&folder, &LAYERS)?);
    }
    Ok(joined)
}

/// The first loss that the attempts of a trial logged, up to this one. `folder` is the trial's.
/// `None` if there is none, or its table cannot be read.
pub fn first_loss(folder: &Path, last_attempt: u64) -> Option<f64> {
    (1..=last_attempt).find_map(|attempt| {
        let path = path_of(&folder.join(attempt.to_string()), &STEPS);
        if !path.is_file() {
            return None;
        }
        let file = File::open(path).ok()?.take(FIRST_STEPS_BYTES);
        let mut rows = csv::Reader::from_reader(file);
        let rows = rows.deserialize::<StepRow>();
        rows.map_while(Result::ok).find_map(|row| row.loss)
    })
}

/// The file of a table in an attempt's folder.
fn path_of(folder: &Path, table: &TableDescription) -> PathBuf {
    folder.join(table.file.rsplit('/').next().unwrap_or_default())
}

/// The rows of a table in an attempt's folder. It is synced before each checkpoint and at the end: after a
/// power failure a line of a later step may hold zeros, and then only the rows before it count.
fn rows<T: DeserializeOwned>(
    folder: &Path,
    table: &TableDescription,
) -> Result<Vec<T>, TableError> {
    let path = &path_of(folder, table);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let mut bytes = input::read(path, &TABLE_BYTES).map_err(|cause| TableError::Io {
        path: path.to_owned(),
        doing: "reading",
        cause,
    })?;
    if let Some(damage) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(damage);
        match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => bytes.truncate(last + 1),
            None => return Ok(Vec::new()),
        }
    }
    let mut rows = Vec::new();
    scan(
        &mut Cursor::new(bytes),
        path,
        table.version,
        &mut |record| {
            rows.push(record.parse()?);
            Ok(())
        },
    )?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
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

    fn write(path: &Path, rows: &[StepRow]) {
        let (mut writer, _) = TableWriter::open(path, STEPS.spec(&[])).unwrap();
        rows.iter().for_each(|row| writer.append_row(row).unwrap());
    }

    #[test]
    fn attempts_are_one_course_and_what_a_resume_undid_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let (run, trial) = (RunFolder::at(folder.path()), TrialId("t".into()));
        assert_eq!(
            Course::read(&run, &trial, 1, None).unwrap(),
            Course::default()
        );
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
        let course = Course::read(&run, &trial, 3, None).unwrap();
        let losses: Vec<f64> = course.steps.iter().filter_map(|row| row.loss).collect();
        assert_eq!(
            (losses, course.window),
            (vec![1.0, 2.0, 13.0, 14.0, 15.5], Some((13.0, 15.5)))
        );
        let noise = |last_attempt: u64| -> Vec<f64> {
            let joined = layers(&run, &trial, last_attempt).unwrap();
            joined.iter().filter_map(|row| row.gradient_noise).collect()
        };
        assert_eq!(noise(3), [1.0, 2.0, 13.0, 14.0, 15.5]);
        assert_eq!(noise(1), [1.0, 2.0, 3.0]);
        resumed_at_the_last_step_keeps_the_course(&run, &trial, &course);
        // A table of layers that cannot be read takes nothing else away.
        let layers_table = run.attempt(&trial, 3).join("layers.csv");
        std::fs::write(layers_table, "kiln_table,step\nlayers/1,x\n").unwrap();
        assert!(layers(&run, &trial, 3).is_err());
        assert_eq!(Course::read(&run, &trial, 3, None).unwrap(), course);
        assert_eq!(
            Course::read(&run, &trial, 1, None).unwrap().window,
            Some((1.0, 3.0))
        );
        std::fs::write(
            run.attempt(&trial, 1).join("epochs.csv"),
            format!("kiln_table\n{}0\n", EPOCHS.version),
        )
        .unwrap();
        assert!(Course::read(&run, &trial, 3, None).is_err());
    }

    /// Attempt 4 resumed after the last step and evaluated again.
    fn resumed_at_the_last_step_keeps_the_course(
        run: &RunFolder,
        trial: &TrialId,
        course: &Course,
    ) {
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
        assert!(Course::read(run, trial, 4, None).unwrap().steps.is_empty());
        evaluated(3, 0.7);
        evaluated(4, 0.6);
        let mut result = TrialResult::empty(trial.clone(), 4);
        result.figures.resumed_at_step = Some(5);
        std::fs::write(
            place.join("trial.json"),
            serde_json::to_vec(&result).unwrap(),
        )
        .unwrap();
        let resumed = Course::read(run, trial, 4, None).unwrap();
        let losses: Vec<_> = resumed.epochs.iter().map(|row| row.valid_loss).collect();
        assert_eq!(
            (resumed.steps, losses),
            (course.steps.clone(), vec![Some(0.6)])
        );
        std::fs::remove_file(run.attempt(trial, 3).join("epochs.csv")).unwrap();
        std::fs::remove_dir_all(place).unwrap();
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
}
