//! Context of a run for the rules: all its points, indexed once.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
};

use kiln_core::record::{TrialRow, note::BusyHost};

use super::crowds::{Crowds, pairs};
use crate::report::{
    points::Point,
    rates::{Blocks, Gain, Rates},
};

/// All points of a run, indexed once, because the rules are applied to each trial.
#[derive(Debug)]
pub(super) struct RunContext<'a> {
    pub(super) axes: &'a [String],
    pub(super) points: &'a [Point<'a>],
    /// Number of cores that a trial of this run could use: from a note, else the largest number
    /// that any row used or asked for. A lower estimate where `train.cpu_threads` was given.
    pub(super) cores: Option<u64>,
    /// Whether a note of a row names them.
    pub(super) has_told_cores: bool,
    /// Whether the points are every combination of their values, as in a plain grid.
    pub(super) is_plain_grid: bool,
    /// Whether a search chose the trials.
    pub(super) is_search: bool,
    /// Whether the experiment asks for the CPU.
    pub(super) is_cpu_chosen: bool,
    /// For each axis: indexes of the points, grouped by their values on the other axes.
    pub(super) beside: Vec<HashMap<Vec<&'a str>, Vec<usize>>>,
    pub(super) rates: Rates,
    /// For each axis: the number of pairs of points with rates that differ in that axis only.
    pub(super) pairs: Vec<usize>,
    pub(super) crowds: Crowds<'a>,
    /// Cached answers: repeats of a point ask the same question.
    pub(super) gains: RefCell<HashMap<(usize, usize, usize), Option<Gain>>>,
}

impl<'a> RunContext<'a> {
    pub(super) fn new(axes: &'a [String], points: &'a [Point<'a>]) -> Self {
        let mut beside = vec![HashMap::new(); axes.len()];
        for (place, point) in points.iter().enumerate() {
            for (axis, places) in beside.iter_mut().enumerate() {
                places
                    .entry(others(point, axis))
                    .or_insert_with(Vec::new)
                    .push(place);
            }
        }
        let combinations = (0..axes.len()).map(|place| {
            points
                .iter()
                .map(|point| &point.values[place])
                .collect::<HashSet<_>>()
                .len()
        });
        let blocks = Blocks::of(points);
        let rates = Rates::within(points, &blocks, |row| {
            row.of_whole_work(row.samples_per_second)
        });
        let pairs_of = |lines: &HashMap<Vec<&str>, Vec<usize>>| {
            lines
                .values()
                .map(|line| pairs(line.iter().filter(|place| rates.has(**place)).count()))
                .sum()
        };
        Self {
            axes,
            points,
            cores: cores(points),
            has_told_cores: cores_by_note(points).is_some(),
            is_plain_grid: combinations.product::<usize>() == points.len(),
            is_search: false,
            is_cpu_chosen: false,
            pairs: beside.iter().map(pairs_of).collect(),
            beside,
            rates,
            crowds: Crowds::new(points, &blocks),
            gains: RefCell::default(),
        }
    }

    /// Sets whether a search chose the trials.
    pub(super) fn searched(self, is_search: bool) -> Self {
        Self { is_search, ..self }
    }

    /// Sets whether the experiment asks for the CPU.
    pub(super) fn with_cpu_chosen(self, is_cpu_chosen: bool) -> Self {
        Self {
            is_cpu_chosen,
            ..self
        }
    }
}

/// The values of a point on all axes except one.
pub(super) fn others<'a>(point: &Point<'a>, axis: usize) -> Vec<&'a str> {
    point
        .values
        .iter()
        .enumerate()
        .filter(|(place, _)| *place != axis)
        .map(|(_, value)| value.as_str())
        .collect()
}

fn cores(run: &[Point<'_>]) -> Option<u64> {
    cores_by_note(run).or_else(|| most(run, |row| row.cpu_threads.max(cores_used(row))))
}

fn cores_by_note(run: &[Point<'_>]) -> Option<u64> {
    most(run, |row| BusyHost::of(row).map(|busy| busy.cores))
}

fn cores_used(row: &TrialRow) -> Option<u64> {
    row.mean_cpu_cores
        .map(|cores| (cores - 0.05).ceil().max(0.0) as u64)
}

fn most(run: &[Point<'_>], of: impl Fn(&TrialRow) -> Option<u64>) -> Option<u64> {
    let rows = run.iter().flat_map(|point| point.rows.iter().copied());
    rows.filter_map(of).max()
}
