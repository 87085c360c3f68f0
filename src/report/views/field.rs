//! Two axes at once: throughput for each pair of their values.

use super::{
    PointMeasure,
    spots::{Spot, Spots},
};
use crate::report::{
    chart::{AxisUnit, Chart, Heat, HeatCell, Picture, most_columns, short_number},
    points::shown,
};

/// More rows would be a page of their own.
const MOST_ROWS: usize = 16;
/// From here on numbers are told in thousands.
const LARGE: f64 = 9999.5;

/// One for the two axes that vary most, the others held where the best point is.
pub(super) fn charts(spots: &Spots<'_>) -> Vec<Chart> {
    chart(spots, &PointMeasure::throughput(&spots.axes))
        .into_iter()
        .collect()
}

fn chart(spots: &Spots<'_>, measure: &PointMeasure) -> Option<Chart> {
    let plane = Plane::of(spots, measure)?;
    let (columns, rows) = (plane.columns, plane.rows);
    let (all_columns, all_rows) = (spots.values(columns), spots.values(rows));
    let letters = all_columns
        .iter()
        .map(|value| shown(value).chars().count())
        .max()
        .unwrap_or(0);
    let best = &plane.best.values;
    let column_values = nearest(&all_columns, &best[columns], most_columns(letters));
    let row_values = nearest(&all_rows, &best[rows], MOST_ROWS);
    let is_cut = column_values.len() < all_columns.len() || row_values.len() < all_rows.len();
    let rate = |spot: &Spot<'_>| spot.mean(measure).map(|mean| mean.mean);
    let is_large = rate(plane.best).is_some_and(|rate| rate >= LARGE);
    let (size, thousands) = if is_large {
        (1000.0, "thousand ")
    } else {
        (1.0, "")
    };
    let shown_spots = plane.spots(spots);
    let cell = |row: &str, column: &str| {
        let spot = shown_spots
            .iter()
            .find(|spot| spot.values[rows] == row && spot.values[columns] == column)?;
        let value = rate(spot)?;
        Some(HeatCell {
            value,
            text: short_number(value / size),
        })
    };
    let cells = |row: &&str| {
        column_values
            .iter()
            .map(|column| cell(row, column))
            .collect()
    };
    let words = |values: &[&str]| values.iter().map(|value| shown(value).to_owned()).collect();
    Some(Chart {
        name: format!(
            "{}-over-{}-and-{}",
            measure.key, spots.axes[columns], spots.axes[rows]
        ),
        title: format!(
            "{}, {thousands}{} over {} and {}",
            measure.what,
            AxisUnit::of(measure.quantity, []).name,
            spots.short(columns),
            spots.short(rows)
        ),
        caption: plane.caption(spots, is_cut),
        picture: Picture::Heat(Heat {
            quantity: AxisUnit::of(measure.quantity, []).after(measure.what),
            column_key: spots.axes[columns].clone(),
            columns: words(&column_values),
            row_key: spots.axes[rows].clone(),
            rows: words(&row_values),
            cells: row_values.iter().map(cells).collect(),
        }),
    })
}

/// The two axes of a picture, by their indexes, and the point whose values hold the others.
struct Plane<'a> {
    columns: usize,
    rows: usize,
    held: Vec<usize>,
    best: &'a Spot<'a>,
}

impl<'a> Plane<'a> {
    /// The two axes with the most values; `None` if fewer than two vary, or no point has the
    /// number.
    fn of(spots: &'a Spots<'a>, measure: &PointMeasure) -> Option<Self> {
        let varying = spots.leading();
        let mut by_values: Vec<(usize, usize)> = varying
            .iter()
            .map(|axis| (spots.values(*axis).len(), *axis))
            .collect();
        // The same number of values: the axis that stands first.
        by_values.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        let [(_, columns), (_, rows), ..] = by_values[..] else {
            return None;
        };
        let rated = spots
            .spots
            .iter()
            .filter_map(|spot| Some((spot, spot.mean(measure)?.mean)));
        let (best, _) = rated.max_by(|one, other| one.1.total_cmp(&other.1))?;
        let held = varying
            .into_iter()
            .filter(|axis| *axis != columns && *axis != rows)
            .collect();
        Some(Self {
            columns,
            rows,
            held,
            best,
        })
    }

    /// The points that have the held values.
    fn spots(&self, spots: &'a Spots<'a>) -> Vec<&'a Spot<'a>> {
        let is_held = |axis: &usize, spot: &Spot<'_>| spot.values[*axis] == self.best.values[*axis];
        spots
            .spots
            .iter()
            .filter(|spot| self.held.iter().all(|axis| is_held(axis, spot)))
            .collect()
    }

    fn caption(&self, spots: &Spots<'_>, is_cut: bool) -> String {
        let mut caption =
            "A deeper color means a larger number; an empty cell did not complete or \
                           was not planned."
                .to_owned();
        if !self.held.is_empty() {
            caption.push_str(&format!(
                " The other axes are held where the largest number is: {}.",
                spots.named(&self.held, self.best)
            ));
        }
        if is_cut {
            caption.push_str(" More values than fit: those around the largest number.");
        }
        caption
    }
}

/// As many values as fit, with this one among them.
fn nearest<'a>(values: &[&'a str], center: &str, most: usize) -> Vec<&'a str> {
    let place = values
        .iter()
        .position(|value| *value == center)
        .unwrap_or(0);
    let first = place
        .saturating_sub(most / 2)
        .min(values.len().saturating_sub(most));
    values.iter().copied().skip(first).take(most).collect()
}
