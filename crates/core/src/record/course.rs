//! The steps of a trial as one series, joined from all its attempts.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use super::{
    EpochRow, LayerRow, RunFolder, StepRow, TableError,
    attempt::{self, listed_attempts},
    columns::TableDescription,
    epochs::EPOCHS,
    layers::LAYERS,
    run_file::Launch,
    steps::STEPS,
    table::{Record, scan},
};
use crate::{input, limits::SAMPLES_BYTES, plan::TrialId};

/// Number of bytes at the start of `steps.csv` that are searched for the first loss.
const FIRST_STEPS_BYTES: u64 = 1 << 20;
/// The same for the first row.
const FIRST_ROW_BYTES: u64 = 1 << 16;

/// The steps and evaluations of a trial, read from the tables of its attempts whenever they are asked
/// for: a long training has millions of steps. Steps of an attempt after the checkpoint from which
/// the next one resumed do not count.
#[derive(Clone, Debug, Default)]
pub struct Course {
    parts: Vec<Part>,
}

/// An attempt of a course.
#[derive(Clone, Debug)]
struct Part {
    folder: PathBuf,
    /// A later attempt replaces the steps from its first one on, or all of them.
    first_step: Option<u64>,
    /// Whether this attempt is the last one of the course.
    is_last: bool,
}

impl Course {
    /// Finds the tables of all attempts up to this one; empty if the run's folder is not complete.
    ///
    /// # Errors
    /// A table exists but cannot be read.
    pub fn find(run: &RunFolder, trial: &TrialId, last_attempt: u64) -> Result<Self, TableError> {
        let mut parts = Vec::new();
        for attempt in attempts_until(run, trial, last_attempt)? {
            let part = Part::find(run.attempt(trial, attempt), attempt == last_attempt)?;
            // It died before it went on, or began anew and died: the steps are of others.
            if part.is_last && part.first_step.is_none() && !has_resumed(&part.folder) {
                return Ok(Self::default());
            }
            parts.push(part);
        }
        Ok(Self { parts })
    }

    /// The steps that were trained: those of [`Course::find`], or, if the last attempt ended before its
    /// first step, those of the attempts before it. With the last attempt that they are of.
    ///
    /// # Errors
    /// A table exists but cannot be read.
    pub fn trained(
        run: &RunFolder,
        trial: &TrialId,
        last_attempt: u64,
    ) -> Result<(Self, u64), TableError> {
        let course = Self::find(run, trial, last_attempt)?;
        if !course.parts.is_empty() {
            return Ok((course, last_attempt));
        }
        for attempt in attempts_until(run, trial, last_attempt)?.into_iter().rev() {
            let course = Self::find(run, trial, attempt)?;
            if !course.parts.is_empty() {
                return Ok((course, attempt));
            }
        }
        Ok((course, last_attempt))
    }

    /// The number of its first step; `None` if it has no steps.
    pub fn first_step(&self) -> Option<u64> {
        self.parts.iter().filter_map(|part| part.first_step).min()
    }

    /// Gives the steps one after another.
    ///
    /// # Errors
    /// A table cannot be read; some steps may have been given before.
    pub fn each_step(&self, each: &mut dyn FnMut(&StepRow)) -> Result<(), TableError> {
        for (place, part) in self.parts.iter().enumerate() {
            let later = self.parts[place + 1..].iter();
            let replaced_from = later.filter_map(|part| part.first_step).min();
            each_row(&part.folder, &STEPS, &mut |row: StepRow| {
                if replaced_from.is_none_or(|first| row.step < first) {
                    each(&row);
                }
            })?;
        }
        Ok(())
    }

    /// All evaluations.
    ///
    /// # Errors
    /// A table exists but cannot be read.
    pub fn epochs(&self) -> Result<Vec<EpochRow>, TableError> {
        let mut joined: Vec<EpochRow> = Vec::new();
        for part in &self.parts {
            let own: Vec<EpochRow> = rows(&part.folder, &EPOCHS)?;
            // It may have resumed after the last step of an epoch, before the evaluation.
            let firsts = [part.first_step, own.first().map(|row| row.step)];
            for first in firsts.into_iter().flatten() {
                joined.retain(|row| row.step < first);
            }
            joined.extend(own);
        }
        Ok(joined)
    }

    /// Start and end of the last attempt's measured window, in seconds after the run's start mark:
    /// as the trial reported them, else from its steps. `launch` is that of this attempt.
    ///
    /// # Errors
    /// A table exists but cannot be read.
    pub fn window(&self, launch: Option<&Launch>) -> Result<Option<(f64, f64)>, TableError> {
        let Some(part) = self.parts.last().filter(|part| part.is_last) else {
            return Ok(None);
        };
        match launch.and_then(|launch| told_window(&part.folder, launch)) {
            Some(told) => Ok(Some(told)),
            None => window(&part.folder),
        }
    }
}

impl Part {
    fn find(folder: PathBuf, is_last: bool) -> Result<Self, TableError> {
        Ok(Self {
            first_step: first_step(&folder)?,
            folder,
            is_last,
        })
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
fn window(folder: &Path) -> Result<Option<(f64, f64)>, TableError> {
    let mut ends: Option<(f64, f64)> = None;
    each_row(folder, &STEPS, &mut |row: StepRow| {
        let began = ends.filter(|_| !row.is_warmup).map(|(from, _)| from);
        ends = Some((began.unwrap_or(row.run_seconds), row.run_seconds));
    })?;
    Ok(ends.filter(|(from, to)| to > from))
}

/// The losses that the attempts of a trial logged, up to this one, in order. `folder` is the
/// trial's.
///
/// # Errors
/// A table exists but cannot be read.
pub fn losses(folder: &Path, last_attempt: u64) -> Result<Vec<f64>, TableError> {
    let parts: Result<Vec<Part>, TableError> = (1..=last_attempt)
        .map(|attempt| Part::find(folder.join(attempt.to_string()), attempt == last_attempt))
        .collect();
    let course = Course { parts: parts? };
    let mut losses: Vec<f64> = Vec::new();
    course.each_step(&mut |step| losses.extend(step.loss))?;
    Ok(losses)
}

/// Gives the gradients of layer groups in the measured steps of a trial, joined from its attempts up to
/// this one as a [`Course`] is; none if they were not measured.
///
/// # Errors
/// A table exists but cannot be read; some rows may have been given before.
pub fn each_layer(
    run: &RunFolder,
    trial: &TrialId,
    last_attempt: u64,
    each: &mut dyn FnMut(&LayerRow),
) -> Result<(), TableError> {
    let folders: Vec<PathBuf> = attempts_until(run, trial, last_attempt)?
        .into_iter()
        .map(|attempt| run.attempt(trial, attempt))
        .collect();
    for (place, folder) in folders.iter().enumerate() {
        if !is_there(&path_of(folder, &LAYERS))? {
            continue;
        }
        let mut replaced_from: Option<u64> = None;
        for later in &folders[place + 1..] {
            let first = first_step(later)?;
            replaced_from = replaced_from.into_iter().chain(first).min();
        }
        each_row(folder, &LAYERS, &mut |row: LayerRow| {
            if replaced_from.is_none_or(|first| row.step < first) {
                each(&row);
            }
        })?;
    }
    Ok(())
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

/// The step of the first row of an attempt's `steps.csv`; `None` if it has no rows.
fn first_step(folder: &Path) -> Result<Option<u64>, TableError> {
    if let Some(row) = first_row(&path_of(folder, &STEPS)) {
        return Ok(Some(row.step));
    }
    let mut first = None;
    each_row(folder, &STEPS, &mut |row: StepRow| {
        first.get_or_insert(row.step);
    })?;
    Ok(first)
}

/// The first row, read without the rest of the table; `None` also if it is of another version, or
/// damaged.
fn first_row(path: &Path) -> Option<StepRow> {
    let file = input::open_within(path, &SAMPLES_BYTES).ok()?;
    let mut bytes = Vec::new();
    file.take(FIRST_ROW_BYTES).read_to_end(&mut bytes).ok()?;
    if let Some(damage) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(damage);
    }
    bytes.truncate(whole_lines(&bytes));
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let row: StepRow = reader.deserialize().next()?.ok()?;
    (row.kiln_table == STEPS.version).then_some(row)
}

/// The attempts of a trial up to this one.
fn attempts_until(
    run: &RunFolder,
    trial: &TrialId,
    last_attempt: u64,
) -> Result<Vec<u64>, TableError> {
    let listed = listed_attempts(run, trial);
    let mut attempts = listed.map_err(|cause| unread(&run.trial(trial), cause))?;
    attempts.retain(|attempt| *attempt <= last_attempt);
    Ok(attempts)
}

fn is_there(table: &Path) -> Result<bool, TableError> {
    let found = input::find(table).map_err(|cause| unread(table, cause))?;
    Ok(found.is_some_and(|found| found.is_file()))
}

fn unread(path: &Path, cause: io::Error) -> TableError {
    TableError::Io {
        path: path.to_owned(),
        doing: "reading",
        cause,
    }
}

/// The file of a table in an attempt's folder.
fn path_of(folder: &Path, table: &TableDescription) -> PathBuf {
    folder.join(table.file.rsplit('/').next().unwrap_or_default())
}

/// All rows of a table in an attempt's folder, as [`each_row`] gives them.
fn rows<T: DeserializeOwned>(
    folder: &Path,
    table: &TableDescription,
) -> Result<Vec<T>, TableError> {
    let mut rows = Vec::new();
    each_row(folder, table, &mut |row: T| rows.push(row))?;
    Ok(rows)
}

/// Gives the rows of a table in an attempt's folder. It is synced before each checkpoint and at the
/// end: after a power failure a line of a later step may hold zeros, and then only the rows before it
/// count.
fn each_row<T: DeserializeOwned>(
    folder: &Path,
    table: &TableDescription,
    each: &mut dyn FnMut(T),
) -> Result<(), TableError> {
    let path = &path_of(folder, table);
    if !is_there(path)? {
        return Ok(());
    }
    let failed = |cause| unread(path, cause);
    let mut take = |record: &Record<'_>| -> Result<(), TableError> {
        each(record.parse()?);
        Ok(())
    };
    let mut file = input::open_within(path, &SAMPLES_BYTES).map_err(failed)?;
    let Some(damage) = first_zero(&file).map_err(failed)? else {
        scan(&mut file, path, table.version, &mut take)?;
        return Ok(());
    };
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.take(damage).read_to_end(&mut bytes))
        .map_err(failed)?;
    bytes.truncate(whole_lines(&bytes));
    if !bytes.is_empty() {
        scan(&mut Cursor::new(bytes), path, table.version, &mut take)?;
    }
    Ok(())
}

/// Length of the lines that have their ends.
fn whole_lines(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte == b'\n');
    last.map_or(0, |last| last + 1)
}

/// The place of the first byte that is zero.
fn first_zero(file: &File) -> io::Result<Option<u64>> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut before = 0;
    loop {
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            return Ok(None);
        }
        if let Some(place) = chunk.iter().position(|byte| *byte == 0) {
            return Ok(Some(before + place as u64));
        }
        let length = chunk.len();
        before += length as u64;
        reader.consume(length);
    }
}

#[cfg(test)]
mod tests;
