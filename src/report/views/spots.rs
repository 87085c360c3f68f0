//! The points of one or several runs over the same axes.

use std::collections::HashMap;

use kiln_core::units::listed;

use super::{PointMeasure, RunView, measure::PlacedMean};
use crate::report::points::{Point, column_setting, number, pieces, short_names, shown};

const BATCH_SIZE: &str = "train.batch_size";
/// Name of the axis that distinguishes several runs.
const RUN: &str = "run";
/// Value of an axis that another run has and that is unknown in this run.
const UNTOLD: &str = "not told";

/// All points, and the value of each axis for each of them.
#[derive(Debug)]
pub(in crate::report) struct Spots<'a> {
    /// Axes of all runs in order of appearance; the run itself comes first where there are several
    /// runs.
    pub(in crate::report) axes: Vec<String>,
    short_axes: Vec<String>,
    pub(in crate::report) spots: Vec<Spot<'a>>,
    /// Stand-ins for trials that ran out of memory: they have the axes of another point and are not
    /// among the spots.
    pub(in crate::report) stand_ins: usize,
    /// The axis that stands for each one: another where the two vary as one.
    leader: Vec<usize>,
}

#[derive(Debug)]
pub(in crate::report) struct Spot<'a> {
    /// Which run it is of.
    pub(in crate::report) run: usize,
    /// One per axis.
    pub(in crate::report) values: Vec<String>,
    pub(in crate::report) point: &'a Point<'a>,
}

impl<'a> Spots<'a> {
    pub(in crate::report) fn of(runs: &'a [RunView<'a>]) -> Self {
        let mut axes: Vec<String> = if runs.len() > 1 {
            vec![RUN.to_owned()]
        } else {
            Vec::new()
        };
        for axis in runs.iter().flat_map(|run| &run.table.axes) {
            if !axes.contains(axis) {
                axes.push(axis.clone());
            }
        }
        let (mut spots, mut stand_ins) = (Vec::new(), 0);
        for (place, run) in runs.iter().enumerate() {
            for point in &run.points {
                if point.rows.first().is_some_and(|row| pieces(row).is_some()) {
                    stand_ins += 1;
                } else {
                    spots.push(Spot {
                        run: place,
                        values: axes.iter().map(|axis| value_of(run, point, axis)).collect(),
                        point,
                    });
                }
            }
        }
        Self {
            leader: leaders(&axes, &spots),
            short_axes: short_names(&axes),
            axes,
            spots,
            stand_ins,
        }
    }

    /// The axes that vary, without those that vary as one with another of them.
    pub(in crate::report) fn leading(&self) -> Vec<usize> {
        let mut varying = self.varying();
        varying.retain(|axis| self.leader[*axis] == *axis);
        varying
    }

    /// Says which axes vary as one with this one.
    pub(in crate::report) fn with(&self, axis: usize) -> Option<String> {
        let others = self.varying().into_iter();
        let others = others.filter(|other| *other != axis && self.leader[*other] == axis);
        let names: Vec<String> = others
            .map(|other| format!("`{}`", self.short(other)))
            .collect();
        let vary = if names.len() == 1 { "varies" } else { "vary" };
        (!names.is_empty()).then(|| format!("{} {vary} with it.", listed(&names, " and ")))
    }

    /// Places of the axes that have two values or more.
    pub(in crate::report) fn varying(&self) -> Vec<usize> {
        (0..self.axes.len())
            .filter(|place| {
                self.spots
                    .iter()
                    .any(|spot| spot.values[*place] != self.spots[0].values[*place])
            })
            .collect()
    }

    /// The values of an axis: numbers by size, words as they are met.
    pub(in crate::report) fn values(&self, axis: usize) -> Vec<&str> {
        let mut seen = std::collections::HashSet::new();
        let mut values: Vec<&str> = self
            .spots
            .iter()
            .map(|spot| spot.values[axis].as_str())
            .filter(|value| seen.insert(*value))
            .collect();
        if values.iter().all(|value| number(value).is_some()) {
            let place = |value: &str| number(value).unwrap_or_default();
            values.sort_by(|one, other| place(one).total_cmp(&place(other)));
        }
        values
    }

    /// The last part of a key where that is enough to tell it.
    pub(in crate::report) fn short(&self, axis: usize) -> &str {
        &self.short_axes[axis]
    }

    /// Spots that differ in `axis` alone, under the name of what they share.
    pub(in crate::report) fn lines(&self, axis: usize) -> Vec<(String, Vec<&Spot<'a>>)> {
        let own = self.leader[axis];
        let others: Vec<usize> = self
            .leading()
            .into_iter()
            .filter(|place| *place != own)
            .collect();
        let mut lines: Vec<(String, Vec<&Spot<'a>>)> = Vec::new();
        let mut place_of: HashMap<Vec<&str>, usize> = HashMap::new();
        for spot in &self.spots {
            let shared: Vec<&str> = others
                .iter()
                .map(|place| spot.values[*place].as_str())
                .collect();
            let place = *place_of.entry(shared).or_insert(lines.len());
            if place == lines.len() {
                lines.push((self.named(&others, spot), Vec::new()));
            }
            lines[place].1.push(spot);
        }
        lines
    }

    /// `num_workers 4, precision f32`.
    pub(in crate::report) fn named(&self, axes: &[usize], spot: &Spot<'_>) -> String {
        let name = |place: &usize| match self.axes[*place].as_str() {
            RUN => spot.values[*place].clone(),
            _ => format!("{} {}", self.short(*place), shown(&spot.values[*place])),
        };
        axes.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

/// The axis that stands for each one. Of axes that vary as one (each value of one goes with one value
/// of the other) that is the batch size, or the first. Runs stand for themselves: their points may not compare.
fn leaders(axes: &[String], spots: &[Spot<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..axes.len()).filter(|axis| axes[*axis] != RUN).collect();
    order.sort_by_key(|axis| axes[*axis] != BATCH_SIZE);
    let mut leader: Vec<usize> = (0..axes.len()).collect();
    for (place, axis) in order.iter().enumerate() {
        let first = order[..place]
            .iter()
            .find(|other| leader[**other] == **other && vary_as_one(spots, **other, *axis));
        if let Some(first) = first {
            leader[*axis] = *first;
        }
    }
    leader
}

/// Whether both axes vary, and each value of one always goes with the same value of the other.
fn vary_as_one(spots: &[Spot<'_>], one: usize, other: usize) -> bool {
    let decides = |from: usize, to: usize| {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        let mut spots = spots.iter();
        let is_one_to_one = spots.all(|spot| {
            let value = spot.values[to].as_str();
            *seen.entry(spot.values[from].as_str()).or_insert(value) == value
        });
        is_one_to_one && seen.len() > 1
    };
    decides(one, other) && decides(other, one)
}

impl Spot<'_> {
    pub(in crate::report) fn mean(&self, measure: &PointMeasure) -> Option<PlacedMean> {
        PlacedMean::of(
            &measure
                .of(self.point)
                .into_iter()
                .filter(|value| value.is_finite())
                .collect::<Vec<_>>(),
        )
    }
}

/// The point's value on an axis, which may be a fixed setting of its run.
pub(in crate::report) fn value_of(run: &RunView<'_>, point: &Point<'_>, axis: &str) -> String {
    if axis == RUN {
        return run.label.clone();
    }
    if let Some(place) = run.table.axes.iter().position(|own| own == axis) {
        return point.values.get(place).cloned().unwrap_or_default();
    }
    let of_row = point.rows.first().and_then(|row| column_setting(row, axis));
    of_row
        .or_else(|| run.setting(axis))
        .unwrap_or_else(|| UNTOLD.to_owned())
}
