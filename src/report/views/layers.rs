//! The gradient noise scale of each layer group of one training.

use kiln_core::{
    record::{Course, LayerRow, TrialRow},
    statistics::{MeasuredNoise, NoiseScale, NoiseSums},
    units::significant,
};

use super::{RunView, name_in};
use crate::report::{
    chart::{Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture},
    points::Point,
};

/// Trials that are looked at until one has the table.
const MOST_TRIED: usize = 4;

/// The picture of each run, by the training whose noise scale has the narrowest interval.
pub(super) fn charts(runs: &[RunView<'_>], faults: &mut Vec<String>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        let found = trials(run).into_iter().take(MOST_TRIED);
        let chart = found
            .filter_map(|(point, row)| Some((point, row, run.course(row, faults)?)))
            .find_map(|(point, row, course)| chart(&name_in(runs, place, point), row, &course));
        charts.extend(chart);
    }
    charts
}

/// The trials that measured gradients, the narrowest interval first.
fn trials<'a>(run: &'a RunView<'_>) -> Vec<(&'a Point<'a>, &'a TrialRow)> {
    let rows = run
        .points
        .iter()
        .flat_map(|point| point.rows.iter().map(move |row| (point, *row)));
    let mut found: Vec<(&Point<'_>, &TrialRow)> = rows
        .filter(|(_, row)| row.gradient_noise_step.is_some())
        .collect();
    let width = |row: &TrialRow| {
        row.gradient_noise()
            .map_or(f64::INFINITY, |noise| noise.width())
    };
    found.sort_by(|one, other| width(one.1).total_cmp(&width(other.1)));
    found
}

/// The groups in their order, each with its scale over the newest half of its measured steps.
fn scales(rows: &[LayerRow]) -> Vec<(&str, Option<NoiseScale>)> {
    let mut groups: Vec<(&str, Vec<NoiseSums>)> = Vec::new();
    for row in rows {
        let name = row.layer_group.as_str();
        let at = groups.iter().position(|group| group.0 == name);
        let at = at.unwrap_or_else(|| {
            groups.push((name, Vec::new()));
            groups.len() - 1
        });
        let sums = row.gradient_noise.zip(row.gradient_signal);
        let sums = sums.map(|(noise, signal)| NoiseSums { noise, signal });
        groups[at].1.extend(sums);
    }
    let over = |steps: &[NoiseSums]| {
        NoiseScale::over(&steps[steps.len() - NoiseScale::window(steps.len())..])
    };
    groups
        .into_iter()
        .map(|(name, steps)| (name, over(&steps)))
        .collect()
}

/// `None` if no group has a scale with both ends of its interval.
fn chart(name: &str, row: &TrialRow, course: &Course) -> Option<Chart> {
    let scales = scales(&course.layers);
    let (mut known, mut open) = (Vec::new(), Vec::new());
    for (group, scale) in &scales {
        match *scale {
            Some(NoiseScale {
                scale: Some(scale),
                low,
                high: Some(high),
            }) => known.push((*group, scale, (low, high))),
            Some(NoiseScale { low, .. }) => {
                open.push(format!("{group} (at least {})", significant(low)));
            }
            None => open.push((*group).to_owned()),
        }
    }
    let names: Vec<&str> = known.iter().map(|(group, ..)| *group).collect();
    names.first()?;
    let marks = known
        .iter()
        .zip(ChartAxis::places(&names))
        .map(|((_, scale, ends), x)| ChartMark {
            x,
            y: *scale,
            interval: Some(*ends),
        });
    let line = ChartLine {
        label: String::new(),
        detail: String::new(),
        color: 0,
        shape: MarkShape::Dots,
        marks: marks.collect(),
    };
    let label = "Gradient noise scale, samples";
    let y = match line.reach().all(|value| value > 0.0) {
        true => ChartAxis::by_logarithm(label, line.reach()),
        false => ChartAxis::from_zero(label, line.reach()),
    };
    Some(Chart {
        name: "gradient-noise-by-layer".to_owned(),
        title: "Gradient noise scale of each layer group, samples".to_owned(),
        caption: caption(name, row, &open),
        picture: Picture::Lines(Lines {
            x: ChartAxis::of_values("layer group", &names),
            y,
            lines: vec![line],
            bands: Vec::new(),
            is_low: false,
        }),
    })
}

fn caption(name: &str, row: &TrialRow, open: &[String]) -> String {
    let of_all = row.gradient_noise().map(
        |MeasuredNoise {
             scale, low, high, ..
         }| {
            format!(
                " All parameters together: {} samples ({} to {}).",
                significant(scale),
                significant(low),
                significant(high)
            )
        },
    );
    let left_out = match open {
        [] => String::new(),
        open => format!(
            " Without a mark, because their gradient is lost in noise: {}.",
            open.join(", ")
        ),
    };
    format!(
        "{name}: the noise scale of the gradient of each group's parameters alone, with its 95 % \
         interval, over the newest half of the measured steps to step {}.{}{left_out}",
        row.gradient_noise_step.unwrap_or(0),
        of_all.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use kiln_core::record::layers::LAYERS;

    use super::*;
    use crate::report::points::tests::row;

    /// `steps` measured steps of two layers whose noise is that of a wave around 1, of another with no
    /// gradient that could be told, and of one that overflowed.
    fn course(steps: u64, noise: [fn(f64) -> f64; 2]) -> Course {
        let one = |step: u64, layer_group: &str, noise: Option<f64>, signal: f64| LayerRow {
            kiln_table: LAYERS.version.to_owned(),
            step,
            layer_group: layer_group.to_owned(),
            parameters: 4,
            gradient_noise: noise,
            gradient_signal: noise.map(|_| signal),
            ..LayerRow::default()
        };
        let wave = |step: u64| [0.8, 1.0, 1.2][step as usize % 3];
        let rows = (1..=steps).flat_map(|step| {
            // The first half is long past.
            let [first, second] = match 2 * step > steps {
                true => noise.map(|noise| noise(wave(step))),
                false => [1e6; 2],
            };
            [
                one(step, "blocks.0", Some(first), 2.0),
                one(step, "blocks.1", Some(second), 2.0),
                one(step, "head", Some(9.0), 8.0 * (wave(step) - 1.0)),
                one(step, "tail", None, 0.0),
            ]
        });
        Course {
            layers: rows.collect(),
            ..Course::default()
        }
    }

    const NOISE: [fn(f64) -> f64; 2] = [|wave| 40.0 * wave, |wave| 200.0 * wave];

    fn measured() -> TrialRow {
        TrialRow {
            gradient_noise_scale: Some(60.0),
            gradient_noise_scale_low: Some(50.0),
            gradient_noise_scale_high: Some(70.0),
            gradient_noise_step: Some(80),
            gradient_noise_loss: Some(2.0),
            ..row(1, 10.0)
        }
    }

    #[test]
    fn each_group_has_the_scale_of_its_newest_half_and_what_is_open_is_named() {
        let chart = chart("batch 8", &measured(), &course(80, NOISE)).unwrap();
        let Picture::Lines(lines) = &chart.picture else {
            panic!("{chart:?}");
        };
        let [line] = lines.lines.as_slice() else {
            panic!("{lines:?}");
        };
        // 40 / 2 and 200 / 2.
        for ((mark, scale), x) in line.marks.iter().zip([20.0, 100.0]).zip([0.0, 1.0]) {
            let (low, high) = mark.interval.unwrap();
            assert!(
                mark.x == x && (mark.y / scale - 1.0).abs() < 0.02,
                "{mark:?}"
            );
            assert!(
                0.9 * scale < low && low < mark.y && mark.y < high && high < 1.1 * scale,
                "{mark:?}"
            );
        }
        assert_eq!(line.marks.len(), 2);
        assert!(
            chart.caption.starts_with("batch 8: ")
                && chart
                    .caption
                    .contains("to step 80. All parameters together: 60.0 samples (50.0 to 70.0).")
                && chart.caption.contains("lost in noise: head (at least ")
                && chart.caption.ends_with(", tail."),
            "{}",
            chart.caption
        );
        let svg = chart.svg();
        assert!(svg.contains("blocks.0") && svg.contains("blocks.1"));
    }

    #[test]
    fn without_layers_or_with_too_few_steps_there_is_no_picture() {
        assert!(chart("a", &measured(), &Course::default()).is_none());
        assert!(chart("a", &measured(), &course(19, NOISE)).is_none());
        // An interval that reaches 0 has no place on an axis of logarithms.
        let almost_none = |wave: f64| 0.01 + 5.0 * (wave - 1.0);
        let chart = chart("a", &measured(), &course(80, [almost_none, NOISE[1]])).unwrap();
        let Picture::Lines(lines) = &chart.picture else {
            panic!("{chart:?}");
        };
        let interval = lines.lines[0].marks[0].interval.unwrap();
        assert!(interval.0 == 0.0 && interval.1 > 0.0, "{interval:?}");
        assert!(lines.y.holds(0.0) && chart.svg().contains("blocks.0"));
    }
}
