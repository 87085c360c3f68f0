//! How large may the batch be? The samples that a training needs over its steps, for each effective
//! batch: measured until `train.target`, else as the gradient noise scale says.

use kiln_core::units::significant;

use super::RunView;
use crate::report::{
    batch_choice::{self, Measured},
    chart::{Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture},
    steps_and_samples::{self, StepsAndSamples},
};

/// Places of a curve.
const PLACES: usize = 60;
/// A curve goes on so far beyond the batches.
const BEYOND: f64 = 3.0;

pub(super) fn charts(runs: &[RunView<'_>]) -> Vec<Chart> {
    let of = |run: &RunView<'_>| {
        let axes = &run.table.axes;
        let found = steps_and_samples::of(&run.points, axes);
        let chart = found.map(|found| measured(&found));
        let mut chart = chart.or_else(|| {
            let noise = batch_choice::narrowest(&run.points, axes)?;
            let sizes = batch_choice::sizes(&run.points, axes, &noise);
            predicted(&noise, &sizes)
        })?;
        if runs.len() > 1 {
            chart.title = format!("{}: {}", run.label, chart.title);
        }
        Some(chart)
    };
    runs.iter().filter_map(of).collect()
}

/// Measured steps and samples until the target, one mark per effective batch, with the fitted curve.
fn measured(found: &StepsAndSamples<'_>) -> Chart {
    let mark = |size: f64, steps: f64| ChartMark::at(steps, steps * size);
    let batches = found.batches.iter().enumerate();
    let mut lines: Vec<ChartLine> = batches
        .map(|(place, batch)| dots(place, batch.size, mark(batch.size as f64, batch.steps)))
        .collect();
    let mut caption =
        "Each mark is an effective batch, by the setting that needed the fewest steps. \
                       Further left is fewer steps, further down fewer samples."
            .to_owned();
    if let Some(fitted) = found.fitted {
        let sizes = found.batches.iter().map(|batch| batch.size as f64);
        lines.push(ChartLine {
            label: match fitted.interval() {
                Some(_) => format!("critical batch {}", significant(fitted.critical_batch)),
                None => "fitted, critical batch open".to_owned(),
            },
            detail: String::new(),
            color: lines.len(),
            shape: MarkShape::Plain,
            marks: along(sizes)
                .map(|size| mark(size, fitted.steps(size)))
                .collect(),
        });
        caption += &format!(
            " The curve is S = {} × (1 + {}/B), fitted to the marks.",
            significant(fitted.fewest_steps),
            significant(fitted.critical_batch)
        );
    }
    chart(
        "Steps and samples until the target",
        ("steps", "samples"),
        lines,
        caption,
    )
}

/// Steps and samples relative to the fewest possible, computed from the gradient noise scale.
fn predicted(noise: &Measured<'_>, sizes: &[u64]) -> Option<Chart> {
    if noise.noise.scale <= 0.0 || sizes.len() < 2 {
        return None;
    }
    let mark = |size: f64| ChartMark {
        interval: Some((1.0 + size / noise.noise.high, 1.0 + size / noise.noise.low))
            .filter(|(low, high)| *low > 0.0 && high.is_finite()),
        ..ChartMark::at(
            1.0 + noise.noise.scale / size,
            1.0 + size / noise.noise.scale,
        )
    };
    let mut lines: Vec<ChartLine> = sizes
        .iter()
        .enumerate()
        .map(|(place, size)| dots(place, *size, mark(*size as f64)))
        .collect();
    lines.push(ChartLine {
        label: format!("noise scale {}", significant(noise.noise.scale)),
        detail: String::new(),
        color: lines.len(),
        shape: MarkShape::Plain,
        marks: along(sizes.iter().map(|size| *size as f64))
            .map(|size| ChartMark {
                interval: None,
                ..mark(size)
            })
            .collect(),
    });
    let step = noise.noise.step;
    Some(chart(
        "Steps and samples by the gradient noise scale",
        ("steps, of the fewest", "samples, of the fewest"),
        lines,
        format!(
            "No two comparable batches reached a `train.target` with all their trials: this is what the noise scale at step {step} \
             says, if each batch has a learning rate that suits it. Intervals are those of the scale."
        ),
    ))
}

/// The mark of a batch.
fn dots(place: usize, size: u64, mark: ChartMark) -> ChartLine {
    ChartLine {
        label: format!("batch {size}"),
        detail: String::new(),
        color: place,
        shape: MarkShape::Dots,
        marks: vec![mark],
    }
}

/// Batches along a curve, from below the least to above the largest.
fn along(sizes: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
    let (least, most) = sizes.fold((f64::INFINITY, 0.0_f64), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    let (from, to) = ((least / BEYOND).ln(), (most * BEYOND).ln());
    let width = (to - from) / (PLACES - 1) as f64;
    (0..PLACES).map(move |place| (from + place as f64 * width).exp())
}

fn chart(
    title: &str,
    (steps, samples): (&str, &str),
    mut lines: Vec<ChartLine>,
    caption: String,
) -> Chart {
    // The axes are those of the marks; the curve goes beyond them.
    let marks = || {
        let dots = lines.iter().filter(|line| line.shape == MarkShape::Dots);
        dots.flat_map(|line| &line.marks)
    };
    let x = ChartAxis::by_logarithm(steps, marks().map(|mark| mark.x));
    let y = ChartAxis::by_logarithm(
        samples,
        marks().flat_map(|mark| {
            let ends = mark.interval.map(|(low, high)| [low, high]);
            [mark.y].into_iter().chain(ends.into_iter().flatten())
        }),
    );
    let is_inside = |mark: &ChartMark| x.holds(mark.x) && y.holds(mark.y);
    for line in lines
        .iter_mut()
        .filter(|line| line.shape == MarkShape::Plain)
    {
        line.marks.retain(is_inside);
    }
    Chart {
        name: "steps-against-samples".to_owned(),
        title: title.to_owned(),
        caption,
        picture: Picture::Lines(Lines {
            x,
            y,
            lines,
            bands: Vec::new(),
            is_low: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::TrialRow;

    use super::*;
    use crate::report::points::tests::{row, table};

    fn drawn(rows: Vec<(TrialRow, &[&str])>) -> Option<(Chart, Vec<ChartLine>)> {
        let table = table(&["train.batch_size"], rows);
        let chart = charts(&[RunView::new("r".into(), &table)]).pop()?;
        let Picture::Lines(lines) = &chart.picture else {
            return None;
        };
        let lines = lines.lines.clone();
        Some((chart, lines))
    }

    const CELLS: [&[&str]; 4] = [&["8"], &["32"], &["128"], &["512"]];

    fn of(reached: impl Fn(usize, u64) -> TrialRow) -> Vec<(TrialRow, &'static [&'static str])> {
        let sizes = [8_u64, 32, 128, 512].into_iter().enumerate();
        sizes
            .map(|(at, size)| {
                let row = TrialRow {
                    effective_batch_size: size,
                    ..reached(at, size)
                };
                (row, CELLS[at])
            })
            .collect()
    }

    #[test]
    fn measured_batches_lie_on_the_curve_that_is_drawn() {
        let rows = of(|at, size| TrialRow {
            steps_to_target: Some(1000 + 32_000 / size),
            ..row(at as u64 + 1, 10.0)
        });
        let (chart, lines) = drawn(rows).unwrap();
        assert_eq!(chart.title, "Steps and samples until the target");
        let labels: Vec<&str> = lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "batch 8",
                "batch 32",
                "batch 128",
                "batch 512",
                "critical batch 32.0"
            ]
        );
        assert_eq!(lines[1].marks, [ChartMark::at(2000.0, 64_000.0)]);
        // (S/S_min - 1)(E/E_min - 1) = 1.
        let curve = &lines[4].marks;
        assert!(curve.len() > 20);
        for mark in curve {
            let product = (mark.x / 1000.0 - 1.0) * (mark.y / 32_000.0 - 1.0);
            assert!((product - 1.0).abs() < 0.02, "{mark:?}: {product}");
        }
        assert!(chart.svg().contains("critical batch"));
    }

    #[test]
    fn without_a_target_the_noise_scale_says_where_the_batches_lie() {
        let noisy = |scale: f64| {
            of(move |at, size| TrialRow {
                gradient_noise_scale: (size == 32).then_some(scale),
                gradient_noise_scale_low: (size == 32).then_some(scale / 2.0),
                gradient_noise_scale_high: (size == 32).then_some(scale * 2.0),
                gradient_noise_step: Some(400),
                gradient_noise_loss: Some(2.0),
                samples_per_second: Some(10.0),
                ..row(at as u64 + 1, 10.0)
            })
        };
        let (chart, lines) = drawn(noisy(64.0)).unwrap();
        assert_eq!(chart.title, "Steps and samples by the gradient noise scale");
        assert_eq!(
            lines[1].marks,
            [ChartMark {
                x: 3.0,
                y: 1.5,
                interval: Some((1.25, 2.0)),
            }]
        );
        assert!(chart.caption.contains("at step 400"));
        assert!(drawn(noisy(0.0)).is_none());
        assert!(drawn(of(|at, _| row(at as u64 + 1, 10.0))).is_none());
    }
}
