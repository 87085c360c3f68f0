//! Losses on their way: over steps, samples and time.

use kiln_core::{
    plan::TrialId,
    record::{Course, TrialRow},
};

use super::{MOST_LINES, MOST_MARKS, RunView, averaged, name_in};
use crate::report::chart::{
    AxisUnit, Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture, Quantity,
};

/// Points that are looked at for each that is shown.
const MOST_TRIED: usize = 4;

/// A trial's losses by one clock.
struct Losses {
    name: String,
    trial: TrialId,
    color: usize,
    train: Vec<(f64, f64)>,
    valid: Vec<(f64, f64)>,
}

/// By what a course is told.
#[derive(Clone, Copy)]
enum Clock {
    Steps,
    Samples,
    Time,
}

pub(super) fn charts(runs: &[RunView<'_>], faults: &mut Vec<String>) -> Vec<Chart> {
    let mut courses: Vec<(String, usize, &TrialRow, Course)> = Vec::new();
    let each = (MOST_LINES / runs.len().max(1)).max(1);
    let (mut color, mut points) = (0, 0);
    for (place, run) in runs.iter().enumerate() {
        points += run.points.len();
        let mut left = each.min(MOST_LINES - color);
        // Trials without curves are skipped, up to a limit.
        for point in run.by_loss().into_iter().take(each * MOST_TRIED) {
            let known = courses.len();
            for row in point.rows.iter().filter(|_| left > 0) {
                let course = run
                    .course(row, faults)
                    .filter(|course| course.steps.iter().any(|step| step.loss.is_some()));
                courses.extend(
                    course.map(|course| (name_in(runs, place, point), color, *row, course)),
                );
            }
            if courses.len() > known {
                (color, left) = (color + 1, left - 1);
            }
        }
    }
    let note = if color < points {
        format!(
            " {color} of {points} points: of those whose steps are here, the ones with the lowest \
             loss."
        )
    } else {
        String::new()
    };
    [Clock::Steps, Clock::Samples, Clock::Time]
        .into_iter()
        .filter_map(|clock| chart(&courses, clock, &note))
        .collect()
}

fn chart(
    courses: &[(String, usize, &TrialRow, Course)],
    clock: Clock,
    note: &str,
) -> Option<Chart> {
    let all: Vec<Losses> = courses
        .iter()
        .map(|(name, color, row, course)| losses(name, *color, row, course, clock))
        .collect();
    let times = || {
        all.iter()
            .flat_map(|of| of.train.iter().chain(&of.valid))
            .map(|at| at.0)
    };
    let (key, what, unit) = match clock {
        Clock::Steps => (
            "steps",
            "optimizer steps".to_owned(),
            AxisUnit::of(Quantity::Number, []),
        ),
        Clock::Samples => (
            "samples",
            "samples trained on".to_owned(),
            AxisUnit::of(Quantity::Number, []),
        ),
        Clock::Time => {
            let unit = AxisUnit::of(Quantity::Seconds, times());
            ("time", unit.after("time since the trial began"), unit)
        }
    };
    times().next()?;
    let lines: Vec<ChartLine> = all.iter().flat_map(|of| lines(of, unit)).collect();
    let heights = lines
        .iter()
        .flat_map(|line| line.marks.iter().map(|mark| mark.y));
    let ends = lines
        .iter()
        .flat_map(|line| line.marks.iter().map(|mark| mark.x));
    let (x, y) = (
        ChartAxis::spanning(what, ends.collect::<Vec<_>>()),
        ChartAxis::of_numbers("Loss", heights),
    );
    let has_valid = all.iter().any(|of| !of.valid.is_empty());
    let dots = if has_valid {
        " Marks: validation, at each evaluation."
    } else {
        ""
    };
    Some(Chart {
        name: format!("loss-by-{key}"),
        title: format!("Loss by {key}"),
        caption: format!(
            "Lines: training loss, the mean of each stretch of steps; a line for each run of a \
             point.{dots}{note}"
        ),
        picture: Picture::Lines(Lines {
            x,
            y,
            lines,
            bands: Vec::new(),
            is_low: false,
        }),
    })
}

fn losses(name: &str, color: usize, row: &TrialRow, course: &Course, clock: Clock) -> Losses {
    // The start of the attempt is in the row; a trial that went on began earlier, at its first
    // step.
    let start = row
        .run_seconds
        .filter(|_| !row.is_resumed())
        .or(course.steps.first().map(|step| step.run_seconds))
        .unwrap_or(0.0);
    let at = |step: u64, samples: u64, seconds: f64| match clock {
        Clock::Steps => step as f64,
        Clock::Samples => samples as f64,
        Clock::Time => seconds - start,
    };
    let samples = |step: u64| step.saturating_mul(row.effective_batch_size);
    let train = course.steps.iter().filter_map(|step| {
        Some((
            at(step.step, samples(step.step), step.run_seconds),
            step.loss?,
        ))
    });
    let valid = course.epochs.iter().filter_map(|epoch| {
        Some((
            at(epoch.step, epoch.samples, epoch.run_seconds),
            epoch.valid_loss?,
        ))
    });
    let finite = |of: &(f64, f64)| of.0.is_finite() && of.1.is_finite();
    Losses {
        name: name.to_owned(),
        trial: row.trial.clone(),
        color,
        train: averaged(&train.filter(finite).collect::<Vec<_>>(), MOST_MARKS),
        valid: valid.filter(finite).collect(),
    }
}

fn lines(of: &Losses, unit: AxisUnit) -> Vec<ChartLine> {
    let marks = |series: &[(f64, f64)]| {
        series
            .iter()
            .map(|(x, y)| ChartMark::at(x / unit.size, *y))
            .collect()
    };
    let line = |series: &[(f64, f64)], what, shape| ChartLine {
        label: of.name.clone(),
        detail: format!("trial {}, {what}", of.trial),
        color: of.color,
        shape,
        marks: marks(series),
    };
    let mut lines = vec![line(&of.train, "training", MarkShape::Plain)];
    if !of.valid.is_empty() {
        lines.push(line(
            &averaged(&of.valid, MOST_MARKS / 4),
            "validation",
            MarkShape::Marked,
        ));
    }
    lines
}
