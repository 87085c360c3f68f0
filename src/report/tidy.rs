//! One tidy table of several runs, for figures and sums of one's own: a row per trial, point,
//! evaluation or step, each with its run, its axes and its seed. In: runs. Out: pieces of CSV, one
//! after another, so that millions of steps are never held at once. Cells are exact.

mod gaps;
mod hint;
pub(super) mod measures;
mod pieces;

use std::{collections::HashSet, io, path::Path};

use kiln_core::{
    kinds::text_of,
    plan::Outcome,
    record::{
        Course, RunFolder, TableError, TableRow, TrialRow,
        attempt::attempts,
        table::cells_of,
        tables::{EPOCHS, STEPS, TRIALS},
    },
};
use serde::Serialize;
use serde_json::Value;

pub(super) use self::hint::hint_and_names;
use self::{gaps::Gaps, pieces::Pieces};
use super::{
    Subject,
    axis_name::axis_named,
    meaning,
    points::{Point, column_setting, points},
    run_settings::complete_experiment,
};

/// The kind of rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RowKind {
    /// The last attempt of a trial, with the columns of `trials.csv`.
    Trials,
    /// A point: mean, standard deviation and number of runs of each measure.
    Points,
    /// An evaluation or the end of an epoch, with the columns of `epochs.csv`.
    Epochs,
    /// An optimizer step, with the columns of `steps.csv`.
    Steps,
}

impl RowKind {
    fn name(self) -> &'static str {
        match self {
            Self::Trials => "trials",
            Self::Points => "points",
            Self::Epochs => "epochs",
            Self::Steps => "steps",
        }
    }

    /// The columns before the axes.
    fn first_columns(self) -> &'static [&'static str] {
        match self {
            Self::Points => &["experiment", "run", "n"],
            Self::Trials | Self::Epochs | Self::Steps => {
                &["experiment", "run", "trial", "attempt", "seed"]
            }
        }
    }

    /// Every column of the table that the rows are from, in its order; `metrics` are `metric.NAME`.
    fn columns(self, metrics: &[String]) -> Vec<String> {
        let of_table = match self {
            Self::Points => return measures::columns(metrics),
            Self::Trials => TRIALS.names(),
            Self::Epochs => EPOCHS.names(),
            Self::Steps => STEPS.names(),
        };
        let metrics = metrics.iter().filter(|_| self == Self::Trials).cloned();
        let of_table = of_table.into_iter().map(str::to_owned);
        of_table.chain(metrics).collect()
    }
}

/// Why there is no table, or only its first part.
#[derive(Debug, thiserror::Error)]
pub enum TidyError {
    #[error("`{0}` is named twice; name each run once")]
    SameRun(String),
    #[error(
        "`--columns`: `{name}` is not a column of `--csv {table}`{hint}; the columns are {known}; the \
         axes of the sweep are there without being named"
    )]
    Column {
        name: String,
        table: &'static str,
        hint: String,
        known: String,
    },
    #[error(transparent)]
    Table(#[from] TableError),
    /// The reader of the table cannot be written to.
    #[error("{0}")]
    Output(io::Error),
}

/// Axes whose value may differ from the experiment's in a run that does not sweep them: of a
/// stand-in for a trial that ran out of memory, and of repeats.
const OF_ROW: [&str; 3] = ["train.batch_size", "train.grad_accumulation", "train.seed"];

/// The table, before its rows are read.
pub struct TidyTable<'a> {
    kind: RowKind,
    runs: Vec<TidyRun<'a>>,
    /// The keys that any of the runs sweeps.
    axes: Vec<String>,
    /// The columns `metric.NAME` of all runs.
    metrics: Vec<String>,
    /// The columns behind the axes, and the place of each in [`RowKind::columns`].
    columns: Vec<(String, usize)>,
}

impl<'a> TidyTable<'a> {
    /// `columns` are those wanted behind the axes; all if empty.
    ///
    /// # Errors
    /// A column does not exist, or a run is there twice.
    pub fn of(
        subjects: &[Subject<'a>],
        kind: RowKind,
        columns: &[String],
    ) -> Result<Self, TidyError> {
        let runs: Vec<TidyRun<'a>> = subjects.iter().map(|run| TidyRun::of(*run)).collect();
        let mut names = HashSet::new();
        if let Some(run) = runs.iter().find(|run| !names.insert(run.full_name())) {
            return Err(TidyError::SameRun(run.full_name()));
        }
        let axes = union(subjects.iter().map(|run| &run.table.axes));
        let metrics = union(subjects.iter().map(|run| &run.table.metrics));
        let mut table = Self {
            kind,
            runs,
            axes,
            metrics,
            columns: Vec::new(),
        };
        table.columns = table.chosen(columns)?;
        Ok(table)
    }

    /// The columns of these names behind the axes. Those before them are there anyway.
    fn chosen(&self, names: &[String]) -> Result<Vec<(String, usize)>, TidyError> {
        let known = self.kind.columns(&self.metrics);
        let first = self.kind.first_columns();
        let is_first = |name: &str| first.contains(&name) || self.axes.iter().any(|it| it == name);
        if names.is_empty() {
            let all = (0..).zip(known).filter(|(_, name)| !is_first(name));
            return Ok(all.map(|(place, name)| (name, place)).collect());
        }
        let mut chosen: Vec<(String, usize)> = Vec::new();
        for name in names.iter().map(|name| name.trim()) {
            match known.iter().position(|column| column == name) {
                _ if is_first(name) || chosen.iter().any(|(known, _)| known == name) => {}
                Some(place) => chosen.push((name.to_owned(), place)),
                None if axis_named(&self.axes, name).is_some() => {}
                None => return Err(self.unknown(name, &known)),
            }
        }
        Ok(chosen)
    }

    fn unknown(&self, name: &str, known: &[String]) -> TidyError {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let (hint, known) = hint_and_names(name, &known);
        TidyError::Column {
            name: name.to_owned(),
            table: self.kind.name(),
            hint,
            known,
        }
    }

    /// Gives the table piece by piece to `write`, which returns `false` once nobody reads on.
    /// Returns what the table lacks, and which measures of points mean different things, in words.
    ///
    /// # Errors
    /// A table of a trial cannot be read, or a piece cannot be written; those before it were given.
    pub fn write(
        &self,
        write: &mut dyn FnMut(&str) -> io::Result<bool>,
    ) -> Result<Vec<String>, TidyError> {
        let mut pieces = Pieces::to(write);
        let first = self.kind.first_columns().iter().copied();
        let axes = self.axes.iter().map(String::as_str);
        let own = self.columns.iter().map(|(name, _)| name.as_str());
        pieces.add(first.chain(axes).chain(own));
        let mut lacks = Vec::new();
        for run in &self.runs {
            match self.kind {
                RowKind::Trials => self.add_trials(run, &mut pieces),
                RowKind::Points => self.add_points(run, &mut pieces),
                RowKind::Epochs | RowKind::Steps => {
                    lacks.extend(self.add_series(run, &mut pieces)?);
                }
            }
        }
        pieces.end().map_err(TidyError::Output)?;
        if self.kind == RowKind::Points {
            lacks.extend(self.of_both_meanings());
        }
        Ok(lacks)
    }

    /// Notes on measures whose meaning differs between the rows.
    fn of_both_meanings(&self) -> Vec<String> {
        let runs = self.runs.iter();
        let rows = runs.flat_map(|run| run.subject.table.last_attempts());
        let rows: Vec<&TrialRow> = rows
            .map(|row| &*row.fixed)
            .filter(|row| row.is_completed())
            .collect();
        let experiments: Vec<Option<&str>> =
            self.runs.iter().map(|run| run.subject.experiment).collect();
        meaning::of_both(&rows, &experiments, |column| {
            let measure = measures::name_of(column);
            let mut names = self.columns.iter().map(|(name, _)| name.as_str());
            names.any(|name| Some(name) == measure)
        })
    }

    fn add_trials(&self, run: &TidyRun<'_>, pieces: &mut Pieces<'_>) {
        for row in run.subject.table.last_attempts() {
            let first = self.first_cells(run, row);
            let metric = |column: &String| number(row.fixed.metric_of_column(column));
            let mut fixed = row.fixed.clone();
            fixed.fallback_of = fixed.fallback_of.take().map(|id| id.with_letter());
            let cells = cells_of(&*fixed).map(|mut cells| {
                cells.extend(self.metrics.iter().map(metric));
                cells
            });
            self.add(pieces, &first, cells);
        }
    }

    fn add_points(&self, run: &TidyRun<'_>, pieces: &mut Pieces<'_>) {
        for point in points(run.subject.table) {
            let mut first = run.names();
            first.push(point.completed().count().to_string());
            first.extend(
                self.axes
                    .iter()
                    .map(|axis| run.value_of_point(axis, &point)),
            );
            self.add(pieces, &first, Ok(measures::cells(&point, &self.metrics)));
        }
    }

    /// Adds the evaluations or steps of a run. Returns what is missing of them, in words.
    fn add_series(
        &self,
        run: &TidyRun<'_>,
        pieces: &mut Pieces<'_>,
    ) -> Result<Vec<String>, TableError> {
        let path = match self.kind {
            RowKind::Epochs => EPOCHS.file,
            _ => STEPS.file,
        };
        let file = path.rsplit('/').next().unwrap_or_default();
        if run.is_of_commands() {
            return Ok(vec![format!(
                "{}: its trials are commands, and a command has no `{file}`, so none of its {} are in \
                 the table; `--csv trials` has the numbers of its trials",
                run.subject.name,
                self.kind.name()
            )]);
        }
        let Some(folder) = run.subject.folder else {
            return Ok(vec![format!(
                "{}: `{file}` of its trials is not committed, so none of its {} are in the table; name \
                 the run's folder on the machine where it ran",
                run.subject.name,
                self.kind.name()
            )]);
        };
        let rows = run.subject.table.last_attempts().into_iter();
        let rows = rows.filter(|row| row.fixed.outcome != Outcome::Skipped);
        let mut gaps = Gaps::default();
        for row in rows {
            gaps.count += 1;
            if !has_file(folder, &row.fixed, file) {
                gaps.missing += 1;
            } else if pieces.is_read {
                let course = run.course(folder, &row.fixed, &mut gaps)?;
                self.add_course(&course, &self.first_cells(run, row), pieces)?;
            }
        }
        Ok(gaps.in_words(run.subject.name, file, self.kind.name()))
    }

    /// Adds the rows of a trial, each with these first cells.
    fn add_course(
        &self,
        course: &Course,
        first: &[String],
        pieces: &mut Pieces<'_>,
    ) -> Result<(), TableError> {
        if self.kind == RowKind::Steps {
            return course.each_step(&mut |step| self.add_row(pieces, first, step));
        }
        for epoch in course.epochs()? {
            self.add_row(pieces, first, &epoch);
        }
        Ok(())
    }

    /// The cells of a row of a trial up to the axes.
    fn first_cells(&self, run: &TidyRun<'_>, row: &TableRow) -> Vec<String> {
        let fixed = &row.fixed;
        let mut cells = run.names();
        cells.extend([
            fixed.trial.with_letter().to_string(),
            fixed.attempt.to_string(),
            fixed.seed.to_string(),
        ]);
        let value = |axis: &String| run.value(axis, fixed, &row.axes);
        cells.extend(self.axes.iter().map(value));
        cells
    }

    fn add_row<T: Serialize>(&self, pieces: &mut Pieces<'_>, first: &[String], row: &T) {
        if pieces.is_read {
            self.add(pieces, first, cells_of(row));
        }
    }

    /// Adds a line: its first cells, and the chosen ones of all behind them.
    fn add(&self, pieces: &mut Pieces<'_>, first: &[String], cells: Result<Vec<String>, String>) {
        match cells {
            Ok(cells) => {
                let cell =
                    |(_, place): &(String, usize)| cells.get(*place).map_or("", String::as_str);
                let own = self.columns.iter().map(cell);
                pieces.add(first.iter().map(String::as_str).chain(own));
            }
            Err(problem) => pieces.fault = Some(io::Error::other(problem)),
        }
    }
}

/// The names of several lists, each once, in their order.
fn union<'a>(lists: impl Iterator<Item = &'a Vec<String>>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in lists.flatten() {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// The shortest text that reads back to the same number; empty for none.
fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| text_of(&value.into()))
}

/// Whether an attempt of the trial, up to the one that counts, has this file.
fn has_file(folder: &RunFolder, row: &TrialRow, file: &str) -> bool {
    let attempts = attempts(folder, &row.trial).into_iter();
    attempts
        .filter(|attempt| *attempt <= row.attempt)
        .any(|attempt| folder.attempt(&row.trial, attempt).join(file).is_file())
}

/// A run of the table.
struct TidyRun<'a> {
    subject: Subject<'a>,
    experiment: String,
    /// The name of its folder; the path within the commit for a run of a commit.
    name: String,
    /// The resolved experiment.
    settings: Option<Value>,
}

impl<'a> TidyRun<'a> {
    fn of(subject: Subject<'a>) -> Self {
        let settings = subject.experiment.and_then(complete_experiment);
        let told = settings.as_ref().and_then(|all| all.get("name")?.as_str());
        let experiment = subject.run.map(|file| file.experiment.as_str()).or(told);
        // `latest` is a link.
        let folder = subject
            .folder
            .and_then(|run| run.path().canonicalize().ok());
        let name = match folder.as_deref().and_then(Path::file_name) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => subject.run_path().to_owned(),
        };
        Self {
            subject,
            experiment: experiment.unwrap_or_default().to_owned(),
            name,
            settings,
        }
    }

    /// Whether each trial is a command, which writes no steps and no evaluations.
    fn is_of_commands(&self) -> bool {
        let rows = &self.subject.table.rows;
        !rows.is_empty() && rows.iter().all(|row| row.fixed.is_command())
    }

    /// The steps and evaluations of a trial, joined from its attempts; what is not whole is added to
    /// `gaps`.
    fn course(
        &self,
        folder: &RunFolder,
        row: &TrialRow,
        gaps: &mut Gaps,
    ) -> Result<Course, TableError> {
        let (course, attempt) = Course::trained(folder, &row.trial, row.attempt)?;
        if attempt < row.attempt {
            gaps.without_step.push((row.trial.clone(), attempt));
        }
        // A trial of `--continue` begins behind the checkpoint of another run.
        let run = self.subject.run;
        let is_continued = run.is_some_and(|run| run.continues.contains_key(&row.trial));
        if course.first_step().is_some_and(|first| first > 1) && !is_continued {
            gaps.without_beginning.push(row.trial.clone());
        }
        Ok(course)
    }

    fn names(&self) -> Vec<String> {
        vec![self.experiment.clone(), self.name.clone()]
    }

    fn full_name(&self) -> String {
        match self.experiment.as_str() {
            "" => self.name.clone(),
            experiment => format!("{experiment}/{}", self.name),
        }
    }

    /// The value of an axis in a row, whose own axes have the values `swept`. A run that does not
    /// sweep it has one value, that of its experiment; empty if that is not known.
    fn value(&self, axis: &str, row: &TrialRow, swept: &[String]) -> String {
        let own = &self.subject.table.axes;
        if let Some(place) = own.iter().position(|own| own == axis) {
            return swept.get(place).cloned().unwrap_or_default();
        }
        // A swept map has the value of each key below it.
        if own
            .iter()
            .any(|own| is_below(own, axis) || is_below(axis, own))
        {
            return String::new();
        }
        if OF_ROW.contains(&axis) {
            return column_setting(row, axis).unwrap_or_default();
        }
        let mut names = axis.split('.');
        let value = self.settings.as_ref();
        let value = value.and_then(|all| names.try_fold(all, |value, name| value.get(name)));
        value.map(text_of).unwrap_or_default()
    }

    /// As [`TidyRun::value`]; empty if the trials of the point differ in it.
    fn value_of_point(&self, axis: &str, point: &Point<'_>) -> String {
        let rows = point.rows.iter();
        let mut values = rows.map(|row| self.value(axis, row, point.values));
        let first = values.next().unwrap_or_default();
        match values.all(|value| value == first) {
            true => first,
            false => String::new(),
        }
    }
}

/// Whether a key is below another: `train.optimizer.kind` is below `train.optimizer`.
fn is_below(key: &str, above: &str) -> bool {
    key.strip_prefix(above)
        .is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests;
