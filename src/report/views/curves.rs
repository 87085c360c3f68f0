//! Losses on their way: over steps, samples and time.

use kiln_core::{plan::TrialId, record::TrialRow};

use super::{
    MOST_LINES, MOST_MARKS, RunView,
    long_series::{LongSeries, averaged},
    name_in, or_fault,
};
use crate::report::chart::{
    AxisUnit, Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture, Quantity,
};

/// Points that are looked at for each that is shown.
const MOST_TRIED: usize = 4;

/// A trial's losses.
struct Losses {
    name: String,
    trial: TrialId,
    color: usize,
    /// By each of [`CLOCKS`].
    by: [Clocked; 3],
}

/// The losses by one clock.
#[derive(Default)]
struct Clocked {
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

const CLOCKS: [Clock; 3] = [Clock::Steps, Clock::Samples, Clock::Time];

impl Clock {
    /// `seconds` are since the trial began.
    fn at(self, step: u64, samples: u64, seconds: f64) -> f64 {
        match self {
            Self::Steps => step as f64,
            Self::Samples => samples as f64,
            Self::Time => seconds,
        }
    }
}

pub(super) fn charts(runs: &[RunView<'_>], faults: &mut Vec<String>) -> Vec<Chart> {
    let mut courses: Vec<Losses> = Vec::new();
    let each = (MOST_LINES / runs.len().max(1)).max(1);
    let (mut color, mut points) = (0, 0);
    for (place, run) in runs.iter().enumerate() {
        points += run.points.len();
        let mut left = each.min(MOST_LINES - color);
        // Trials without curves are skipped, up to a limit.
        for point in run.by_loss().into_iter().take(each * MOST_TRIED) {
            let known = courses.len();
            for row in point.rows.iter().filter(|_| left > 0) {
                courses.extend(losses(run, row, faults).map(|by| Losses {
                    name: name_in(runs, place, point),
                    trial: row.trial.clone(),
                    color,
                    by,
                }));
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
    let charts = CLOCKS.into_iter().enumerate();
    charts
        .filter_map(|(place, clock)| chart(&courses, place, clock, &note))
        .collect()
}

fn chart(courses: &[Losses], place: usize, clock: Clock, note: &str) -> Option<Chart> {
    let all = || courses.iter().map(move |of| (of, &of.by[place]));
    let times = || {
        all()
            .flat_map(|(_, by)| by.train.iter().chain(&by.valid))
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
    let lines: Vec<ChartLine> = all().flat_map(|(of, by)| lines(of, by, unit)).collect();
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
    let has_valid = all().any(|(_, by)| !by.valid.is_empty());
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

/// By each clock; `None` where the steps are not here.
fn losses(run: &RunView<'_>, row: &TrialRow, faults: &mut Vec<String>) -> Option<[Clocked; 3]> {
    let (course, last_attempt) = run.course(row, faults)?;
    // The start of the attempt is in the row; a trial that went on, or whose steps are of an earlier
    // attempt, began at its first step.
    let is_whole = last_attempt == row.attempt && !row.is_resumed();
    let mut start = row.run_seconds.filter(|_| is_whole);
    let mut has_loss = false;
    let samples = |step: u64| step.saturating_mul(row.effective_batch_size);
    let finite = |of: &(f64, f64)| of.0.is_finite() && of.1.is_finite();
    let mut train = CLOCKS.map(|_| LongSeries::of_means());
    let read = course.each_step(&mut |step| {
        let seconds = step.run_seconds - *start.get_or_insert(step.run_seconds);
        let Some(loss) = step.loss else {
            return;
        };
        has_loss = true;
        for (clock, series) in CLOCKS.iter().zip(&mut train) {
            let at = (clock.at(step.step, samples(step.step), seconds), loss);
            if finite(&at) {
                series.push(at);
            }
        }
    });
    or_fault(read, faults)?;
    let epochs = or_fault(course.epochs(), faults)?;
    let start = start.filter(|_| has_loss)?;
    let valid = |clock: Clock| {
        epochs.iter().filter_map(move |epoch| {
            let at = clock.at(epoch.step, epoch.samples, epoch.run_seconds - start);
            Some((at, epoch.valid_loss?))
        })
    };
    let mut by: [Clocked; 3] = Default::default();
    for (place, clock) in CLOCKS.into_iter().enumerate() {
        by[place] = Clocked {
            train: train[place].marks(),
            valid: valid(clock).filter(finite).collect(),
        };
    }
    Some(by)
}

fn lines(of: &Losses, by: &Clocked, unit: AxisUnit) -> Vec<ChartLine> {
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
    let mut lines = vec![line(&by.train, "training", MarkShape::Plain)];
    if !by.valid.is_empty() {
        lines.push(line(
            &averaged(&by.valid, MOST_MARKS / 4),
            "validation",
            MarkShape::Marked,
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use kiln_core::{
        plan::Outcome,
        record::{RunFolder, StepRow, TableWriter, tables::STEPS},
    };

    use super::*;
    use crate::report::points::tests::{row, table};

    #[test]
    fn a_last_attempt_without_a_step_leaves_the_line_of_those_before() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(place.path());
        let killed = TrialRow {
            outcome: Outcome::Killed,
            attempt: 2,
            run_seconds: Some(90.0),
            ..row(1, 10.0)
        };
        let attempt = folder.attempt(&killed.trial, 1);
        std::fs::create_dir_all(folder.attempt(&killed.trial, 2)).unwrap();
        std::fs::create_dir_all(&attempt).unwrap();
        let path = attempt.join("steps.csv");
        let (mut writer, _) = TableWriter::open(&path, STEPS.spec(&[])).unwrap();
        for (step, loss) in [(1, 4.0), (2, 3.0)] {
            let row = StepRow {
                kiln_table: STEPS.version.to_owned(),
                run_seconds: 5.0 + step as f64,
                step,
                loss: Some(loss),
                ..StepRow::default()
            };
            writer.append_row(&row).unwrap();
        }
        let table = table(&[], vec![(killed.clone(), &[])]);
        let view = RunView {
            folder: Some(&folder),
            ..RunView::new("r".into(), &table)
        };
        let [by_step, _, by_time] = losses(&view, &killed, &mut Vec::new()).unwrap();
        assert_eq!(by_step.train, [(1.0, 4.0), (2.0, 3.0)]);
        assert_eq!(by_time.train, [(0.0, 4.0), (1.0, 3.0)]);
    }
}
