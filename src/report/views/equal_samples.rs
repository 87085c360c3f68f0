//! Does a larger batch still learn as well? The loss of each effective batch after the same number
//! of samples.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{
    record::{Course, TableError, TrialRow},
    units::counted,
};

use super::{
    MOST_LINES, RunView,
    measure::PlacedMean,
    or_fault,
    spots::{Spot, Spots},
};
use crate::report::chart::{
    Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture, label_of,
};

/// Numbers of samples that differ by so little count as the same: a last batch that was left out.
const SAME: f64 = 0.02;
/// The training loss at a point is the mean over this last share of the samples.
const LAST_SHARE: f64 = 0.1;
/// Series of more trials than this are not read.
const MOST_READ: usize = 200;

/// The data on which a loss was measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Validation,
    Training,
}

impl On {
    fn name(self) -> &'static str {
        match self {
            Self::Validation => "Validation loss",
            Self::Training => "Training loss",
        }
    }
}

/// Empty where all trials have the same effective batch, or too few can be set at the same number
/// of samples.
pub(super) fn charts(
    runs: &[RunView<'_>],
    spots: &Spots<'_>,
    faults: &mut Vec<String>,
) -> Vec<Chart> {
    let rows: Vec<&TrialRow> = spots
        .spots
        .iter()
        .flat_map(|spot| spot.point.completed())
        .collect();
    let batches: BTreeSet<u64> = rows.iter().map(|row| row.effective_batch_size).collect();
    let fewest = rows
        .iter()
        .filter_map(|row| samples(row))
        .fold(f64::INFINITY, f64::min);
    if batches.len() < 2 || !fewest.is_finite() || fewest <= 0.0 {
        return Vec::new();
    }
    let on = if rows.iter().any(|row| row.valid_loss.is_some()) {
        On::Validation
    } else {
        On::Training
    };
    let mut read = LossReader {
        runs,
        faults,
        left: MOST_READ,
    };
    let mut losses = |spot: &Spot<'_>| -> Vec<f64> {
        spot.point
            .completed()
            .filter_map(|row| read.loss(spot.run, row, on, fewest))
            .collect()
    };
    let found: Vec<(&Spot<'_>, PlacedMean)> = spots
        .spots
        .iter()
        .filter_map(|spot| Some((spot, PlacedMean::of(&losses(spot))?)))
        .collect();
    let missing = spots.spots.len() - found.len();
    chart(spots, &found, on, fewest, missing)
        .into_iter()
        .collect()
}

fn samples(row: &TrialRow) -> Option<f64> {
    Some(row.steps? as f64 * row.effective_batch_size as f64)
}

/// Finds losses: a validation loss in the table where the trial ended there, all else in the
/// series.
struct LossReader<'a, 'b> {
    runs: &'a [RunView<'a>],
    faults: &'b mut Vec<String>,
    left: usize,
}

impl LossReader<'_, '_> {
    fn loss(&mut self, run: usize, row: &TrialRow, on: On, at: f64) -> Option<f64> {
        let is_there = |samples: f64| (samples / at - 1.0).abs() <= SAME;
        // The table's training loss is of the last few steps, whatever their samples: the same
        // stretch for all is in the series alone.
        if let Some(loss) = row
            .valid_loss
            .filter(|_| on == On::Validation && samples(row).is_some_and(is_there))
        {
            return Some(loss);
        }
        self.left = self.left.checked_sub(1)?;
        let (course, _) = self.runs[run].course(row, self.faults)?;
        match on {
            On::Validation => or_fault(course.epochs(), self.faults)?
                .iter()
                .filter(|epoch| is_there(epoch.samples as f64))
                .find_map(|epoch| epoch.valid_loss),
            On::Training => {
                let loss = last_loss(&course, row.effective_batch_size, at);
                or_fault(loss, self.faults)?
            }
        }
    }
}

/// The mean over the steps that make the last share of the samples.
fn last_loss(course: &Course, batch: u64, at: f64) -> Result<Option<f64>, TableError> {
    let in_reach = |step: u64| {
        let samples = step as f64 * batch as f64;
        samples <= at * (1.0 + SAME) && samples > at * (1.0 - LAST_SHARE)
    };
    let mut losses: Vec<f64> = Vec::new();
    course.each_step(&mut |step| {
        if in_reach(step.step) {
            losses.extend(step.loss);
        }
    })?;
    Ok(PlacedMean::of(&losses).map(|mean| mean.mean))
}

fn chart(
    spots: &Spots<'_>,
    found: &[(&Spot<'_>, PlacedMean)],
    on: On,
    at: f64,
    missing: usize,
) -> Option<Chart> {
    let batches: BTreeSet<u64> = found.iter().map(|(spot, _)| batch(spot)).collect();
    if batches.len() < 2 {
        return None;
    }
    let values: Vec<String> = batches.iter().map(u64::to_string).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let place_of: BTreeMap<u64, f64> = batches
        .into_iter()
        .zip(ChartAxis::places(&values))
        .collect();
    let mut lines = lines(spots, found, &place_of);
    let single = lines.iter().filter(|line| line.marks.len() < 2).count();
    lines.retain(|line| line.marks.len() > 1);
    lines
        .iter_mut()
        .for_each(|line| line.marks.sort_by(|one, other| one.x.total_cmp(&other.x)));
    let all = lines.len();
    lines.truncate(MOST_LINES);
    let heights: Vec<f64> = lines.iter().flat_map(ChartLine::reach).collect();
    if heights.is_empty() {
        return None;
    }
    let left_out = LeftOut {
        missing,
        single,
        lines: (lines.len() < all).then_some((lines.len(), all)),
    };
    Some(Chart {
        name: "loss-at-equal-samples".to_owned(),
        title: format!("{} against effective batch, at equal samples", on.name()),
        caption: caption(on, at, &left_out),
        picture: Picture::Lines(Lines {
            x: ChartAxis::of_values("effective batch size", &values),
            y: ChartAxis::of_numbers(on.name(), heights),
            lines,
            bands: Vec::new(),
            is_low: false,
        }),
    })
}

fn batch(spot: &Spot<'_>) -> u64 {
    let first = spot.point.rows.first();
    first.map_or(0, |row| row.effective_batch_size)
}

/// One line for each choice on the axes that do not make the effective batch.
fn lines(
    spots: &Spots<'_>,
    found: &[(&Spot<'_>, PlacedMean)],
    place_of: &BTreeMap<u64, f64>,
) -> Vec<ChartLine> {
    let is_batch = |axis: &str| {
        [
            "train.batch_size",
            "train.grad_accumulation",
            "run.devices_per_trial",
        ]
        .contains(&axis)
    };
    let others: Vec<usize> = spots
        .varying()
        .into_iter()
        .filter(|axis| !is_batch(&spots.axes[*axis]))
        .collect();
    let mut lines: Vec<ChartLine> = Vec::new();
    for (spot, mean) in found {
        let name = spots.named(&others, spot);
        let mark = ChartMark {
            x: place_of.get(&batch(spot)).copied().unwrap_or(0.0),
            y: mean.mean,
            interval: mean.interval,
        };
        match lines.iter_mut().find(|line| line.label == name) {
            Some(line) => line.marks.push(mark),
            None => lines.push(ChartLine {
                label: name,
                detail: String::new(),
                color: lines.len(),
                shape: MarkShape::Marked,
                marks: vec![mark],
            }),
        }
    }
    lines
}

/// Data that the picture does not show.
struct LeftOut {
    /// Points without a loss at that place.
    missing: usize,
    /// Choices with a single batch.
    single: usize,
    /// The lines shown, and all lines, if these are more.
    lines: Option<(usize, usize)>,
}

fn caption(on: On, at: f64, left_out: &LeftOut) -> String {
    let how = match on {
        On::Validation => format!(
            "the evaluation at that place (within {:.0} %)",
            SAME * 100.0
        ),
        On::Training => format!(
            "the mean over the last {:.0} % of the samples",
            LAST_SHARE * 100.0
        ),
    };
    let mut caption = format!(
        "After {} samples each, the most that all trials have seen; {how}. Steps differ: a larger \
         batch makes fewer.",
        label_of(at, 0)
    );
    if left_out.missing > 0 {
        caption.push_str(&format!(
            " Left out: {} without a loss at that place.",
            counted(left_out.missing, "point")
        ));
    }
    if left_out.single > 0 {
        caption.push_str(&format!(
            " Left out: {} of other keys with a single batch.",
            counted(left_out.single, "choice")
        ));
    }
    if let Some((shown, all)) = left_out.lines {
        caption.push_str(&format!(" {shown} of {all} lines."));
    }
    caption
}
