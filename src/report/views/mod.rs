//! Selects the charts: rows and series of one or several runs become chart data. Nothing is drawn
//! or written here.

mod against;
mod batches;
mod curves;
mod equal_samples;
mod field;
mod hardware;
mod layers;
mod measure;
mod memory;
mod spots;

use kiln_core::{
    kinds::{command::Command, text_of},
    plan::{Outcome, TrialId},
    record::{Course, LayerRow, RunFile, RunFolder, TrialRow, TrialTable, course},
    spec::{self, command_of},
};

pub(super) use measure::PointMeasure;
pub(super) use spots::{Spots, value_of};

use super::{
    chart::Chart,
    points::{Point, points, short_names},
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

    /// Rows of the trial's `steps.csv`; empty where the file was not kept. A table that cannot be
    /// read is listed in `faults`.
    fn course(&self, row: &TrialRow, faults: &mut Vec<String>) -> Option<Course> {
        let launch = self.file.and_then(|file| {
            file.launches
                .iter()
                .find(|launch| launch.launch == row.launch)
        });
        let course = Course::read(self.folder?, &row.trial, row.attempt, launch);
        course.map_err(|error| faults.push(error.to_string())).ok()
    }

    /// The gradients of the trial's layer groups; empty where they were not measured or not kept.
    fn layers(&self, row: &TrialRow, faults: &mut Vec<String>) -> Vec<LayerRow> {
        let Some(folder) = self.folder else {
            return Vec::new();
        };
        let layers = course::layers(folder, &row.trial, row.attempt);
        layers.unwrap_or_else(|error| {
            faults.push(error.to_string());
            Vec::new()
        })
    }

    /// Its points, the lowest loss first: of validation where any has it, else of training; last
    /// those without.
    pub(super) fn by_loss(&self) -> Vec<&Point<'a>> {
        let measure = PointMeasure::loss(self.points.iter().flat_map(Point::completed));
        let loss = |point: &Point<'_>| {
            point
                .statistic(|row| measure.of(row))
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

/// Shortens a long series to `most` points: mean position and mean value of each part.
fn averaged(series: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if series.len() <= most {
        return series.to_vec();
    }
    let mean = |piece: &[(f64, f64)]| {
        let count = piece.len() as f64;
        (
            piece.iter().map(|at| at.0).sum::<f64>() / count,
            piece.iter().map(|at| at.1).sum::<f64>() / count,
        )
    };
    (0..most)
        .map(|place| mean(&series[series.len() * place / most..series.len() * (place + 1) / most]))
        .collect()
}

/// Shortens a long series: smallest and largest value of each part, so that no peak is lost.
fn enveloped(series: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let pieces = most / 2;
    if series.len() <= most || pieces == 0 {
        return series.to_vec();
    }
    let ends = |piece: &[(f64, f64)]| {
        let least = piece
            .iter()
            .copied()
            .min_by(|one, other| one.1.total_cmp(&other.1));
        let largest = piece
            .iter()
            .copied()
            .max_by(|one, other| one.1.total_cmp(&other.1));
        let mut ends: Vec<(f64, f64)> = least.into_iter().chain(largest).collect();
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        ends
    };
    (0..pieces)
        .flat_map(|place| {
            ends(&series[series.len() * place / pieces..series.len() * (place + 1) / pieces])
        })
        .collect()
}

#[cfg(test)]
mod tests;
