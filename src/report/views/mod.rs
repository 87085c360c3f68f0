//! Selects the charts: rows and series of one or several runs become chart data. Nothing is drawn
//! or written here.

mod against;
mod batches;
mod curves;
mod equal_samples;
mod field;
mod hardware;
mod layers;
mod long_series;
mod measure;
mod memory;
mod spots;
mod throttling;

use kiln_core::{
    kinds::{command::Command, text_of},
    plan::{Outcome, TrialId},
    record::{Course, LayerRow, RunFile, RunFolder, TableError, TrialRow, TrialTable, course},
    spec::{self, command_of},
};

pub(super) use measure::PointMeasure;
pub(super) use spots::{Spots, value_of};

use super::{
    chart::Chart,
    points::{Point, Statistic, points, short_names},
    ranking::Ranking,
};

/// Largest number of lines in a picture: more colors are hard to distinguish.
const MOST_LINES: usize = 8;
/// Largest number of points of a line: more would be finer than a page.
const MOST_MARKS: usize = 240;

/// A run, as input of the views.
#[derive(Debug)]
pub(super) struct RunView<'a> {
    /// Short, and different for each.
    pub(super) label: String,
    pub(super) table: &'a TrialTable,
    pub(super) points: Vec<Point<'a>>,
    pub(super) short_axes: Vec<String>,
    pub(super) file: Option<&'a RunFile>,
    /// The resolved experiment with every default, as far as this kiln can check it.
    pub(super) settings: Option<serde_json::Value>,
    /// The experiment's own objective.
    pub(super) objective: Option<spec::Objective>,
    /// Folder of its series, if there is one.
    pub(super) folder: Option<&'a RunFolder>,
}

impl<'a> RunView<'a> {
    pub(super) fn new(label: String, table: &'a TrialTable) -> Self {
        Self {
            label,
            table,
            points: points(table),
            short_axes: short_names(&table.axes),
            file: None,
            settings: None,
            objective: None,
            folder: None,
        }
    }

    /// Its points by its objective.
    pub(super) fn ranking(&self) -> Ranking<'_> {
        Ranking::new(&self.points, self.table, self.objective)
    }

    /// The steps and evaluations of the trial, with the last attempt that they are of; empty where they
    /// were not kept. A table that cannot be read is listed in `faults`.
    fn course(&self, row: &TrialRow, faults: &mut Vec<String>) -> Option<(Course, u64)> {
        let course = Course::trained(self.folder?, &row.trial, row.attempt);
        or_fault(course, faults)
    }

    /// The measured window of the trial's attempt, in seconds after the run's start mark.
    fn window(&self, row: &TrialRow, faults: &mut Vec<String>) -> Option<(f64, f64)> {
        let launch = self.file.and_then(|file| {
            file.launches
                .iter()
                .find(|launch| launch.launch == row.launch)
        });
        let course = Course::find(self.folder?, &row.trial, row.attempt);
        let window = or_fault(course, faults)?.window(launch);
        or_fault(window, faults)?
    }

    /// Gives the gradients of the trial's layer groups; none where they were not measured or not kept.
    /// `None` if a table cannot be read.
    fn each_layer(
        &self,
        row: &TrialRow,
        faults: &mut Vec<String>,
        each: &mut dyn FnMut(&LayerRow),
    ) -> Option<()> {
        let read = course::each_layer(self.folder?, &row.trial, row.attempt, each);
        or_fault(read, faults)
    }

    /// Its points, the lowest loss first: of validation where any has it, else of training; last
    /// those without.
    pub(super) fn by_loss(&self) -> Vec<&Point<'a>> {
        let measure = PointMeasure::loss(self.points.iter().flat_map(Point::completed));
        let loss = |point: &Point<'_>| {
            Statistic::of(measure.of(point))
                .map(|loss| loss.mean)
                .filter(|loss| loss.is_finite())
                .unwrap_or(f64::INFINITY)
        };
        let mut ranked: Vec<(f64, &Point<'a>)> = self
            .points
            .iter()
            .map(|point| (loss(point), point))
            .collect();
        ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
        ranked.into_iter().map(|(_, point)| point).collect()
    }

    /// The program of its trials, if they are a user's own.
    fn command(&self) -> Option<Command> {
        command_of(&self.settings.as_ref()?["model"])
    }

    /// The experiment's value of a key that it does not sweep.
    pub(super) fn setting(&self, key: &str) -> Option<String> {
        let value = key
            .split('.')
            .try_fold(self.settings.as_ref()?, |value, name| value.get(name))?;
        Some(text_of(value))
    }
}

/// Charts of several kinds, and the tables that could not be read for them.
#[derive(Debug, Default)]
pub(super) struct Gallery {
    /// Speed, memory, energy, loss and a command's own metrics over each axis.
    pub(super) against: Vec<Chart>,
    pub(super) fields: Vec<Chart>,
    pub(super) curves: Vec<Chart>,
    pub(super) equal_samples: Vec<Chart>,
    /// Steps against samples over batches.
    pub(super) batches: Vec<Chart>,
    /// The gradient noise of layer groups.
    pub(super) layers: Vec<Chart>,
    pub(super) memory: Vec<Chart>,
    /// Per trial: its name, and a chart for each reading.
    pub(super) hardware: Vec<TrialSeries>,
    /// Tables that exist but cannot be read.
    pub(super) faults: Vec<String>,
}

/// Hardware readings during one trial.
#[derive(Debug)]
pub(super) struct TrialSeries {
    pub(super) trial: TrialId,
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) charts: Vec<Chart>,
}

impl Gallery {
    pub(super) fn of(runs: &[RunView<'_>]) -> Self {
        let spots = Spots::of(runs);
        let mut gallery = Self {
            against: against::charts(&spots, runs),
            fields: field::charts(&spots),
            memory: memory::charts(runs),
            batches: batches::charts(runs),
            ..Self::default()
        };
        gallery.layers = layers::charts(runs, &mut gallery.faults);
        gallery.curves = curves::charts(runs, &mut gallery.faults);
        gallery.equal_samples = equal_samples::charts(runs, &spots, &mut gallery.faults);
        gallery.hardware = hardware::series(runs, &mut gallery.faults);
        gallery.faults.sort();
        gallery.faults.dedup();
        gallery
    }

    pub(super) fn charts(&self) -> impl Iterator<Item = &Chart> {
        let over = [
            &self.against,
            &self.fields,
            &self.curves,
            &self.equal_samples,
            &self.batches,
            &self.layers,
            &self.memory,
        ];
        over.into_iter()
            .flatten()
            .chain(self.hardware.iter().flat_map(|series| &series.charts))
    }
}

/// The name of a point, with its run's where there are several.
pub(super) fn name_in(runs: &[RunView<'_>], run: usize, point: &Point<'_>) -> String {
    let name = point.name(&runs[run].short_axes);
    if runs.len() > 1 {
        format!("{}: {name}", runs[run].label)
    } else {
        name
    }
}

/// The value that was read; an error is listed in `faults`.
fn or_fault<T>(read: Result<T, TableError>, faults: &mut Vec<String>) -> Option<T> {
    read.map_err(|error| faults.push(error.to_string())).ok()
}

#[cfg(test)]
mod tests;
