//! The gradient noise scale of each layer group of one training.

use std::collections::HashMap;

use kiln_core::{
    record::{LayerRow, TrialRow},
    statistics::{MOST_MEASURED, MeasuredNoise, NoiseScale, NoiseSums},
    units::{Fraction, counted, significant, without_controls},
};

use super::{RunView, name_in};
use crate::report::{
    chart::{Chart, ChartAxis, IntervalRow, Intervals, Picture},
    points::Point,
};

/// Trials whose table is looked for.
const MOST_TRIED: usize = 50;
/// Groups in a picture.
const MOST_ROWS: usize = 40;
/// Names in a sentence, and letters of one.
const MOST_NAMES: usize = 8;
const MOST_LETTERS: usize = 40;

/// The picture of each run, by the training whose noise scale has the narrowest interval of those with
/// the table.
pub(super) fn charts(runs: &[RunView<'_>], faults: &mut Vec<String>) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        let drawn = trials(run)
            .into_iter()
            .take(MOST_TRIED)
            .find_map(|(point, row)| {
                let mut groups = Groups::default();
                run.each_layer(row, faults, &mut |layer| groups.push(layer))?;
                chart(&name_in(runs, place, point), row, &groups.newest())
            });
        charts.extend(drawn.map(|mut chart| {
            if runs.len() > 1 {
                chart.title = format!("{}: {}", run.label, chart.title);
            }
            chart
        }));
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

/// The newest measured steps of a layer group.
#[derive(Debug)]
struct Group {
    name: String,
    /// Number of all its measured steps.
    measured: usize,
    /// The newest, at least those that an estimate is made of.
    steps: Vec<NoiseSums>,
}

impl Group {
    fn mean(&self) -> NoiseSums {
        NoiseSums::mean(self.steps.iter()).unwrap_or_default()
    }

    fn push(&mut self, sums: NoiseSums) {
        self.measured += 1;
        self.steps.push(sums);
        if self.steps.len() > 2 * MOST_MEASURED {
            self.keep(MOST_MEASURED);
        }
    }

    /// Keeps so many of the newest.
    fn keep(&mut self, newest: usize) {
        let older = self.steps.len().saturating_sub(newest);
        self.steps.drain(..older);
    }
}

/// The groups in their order, filled row by row.
#[derive(Debug, Default)]
struct Groups {
    places: HashMap<String, usize>,
    groups: Vec<Group>,
}

impl Groups {
    fn push(&mut self, row: &LayerRow) {
        let name = &row.layer_group;
        let known = self.places.get(name).copied();
        let place = known.unwrap_or(self.groups.len());
        if known.is_none() {
            self.places.insert(name.clone(), place);
            self.groups.push(Group {
                name: name.clone(),
                measured: 0,
                steps: Vec::new(),
            });
        }
        let sums = row.gradient_noise.zip(row.gradient_signal);
        if let Some((noise, signal)) = sums {
            self.groups[place].push(NoiseSums { noise, signal });
        }
    }

    /// Each with the steps that an estimate is made of.
    fn newest(mut self) -> Vec<Group> {
        for group in &mut self.groups {
            group.keep(NoiseScale::window(group.measured));
        }
        self.groups
    }
}

/// `None` if nothing can be told of any group.
fn chart(name: &str, row: &TrialRow, all: &[Group]) -> Option<Chart> {
    let whole = all
        .iter()
        .map(Group::mean)
        .reduce(|sum, own| NoiseSums {
            noise: sum.noise + own.noise,
            signal: sum.signal + own.signal,
        })
        .unwrap_or_default();
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for group in all {
        match NoiseScale::over(&group.steps) {
            Some(scale) => known.push((group, scale)),
            None => unknown.push(group.name.as_str()),
        }
    }
    let measured = known.len();
    let rows: Vec<IntervalRow> = with_most_noise(known)
        .into_iter()
        .map(|(group, scale)| interval_row(group, scale, whole))
        .collect();
    let steps = all.iter().map(|group| group.steps.len()).max()?;
    rows.first()?;
    let ends = rows
        .iter()
        .flat_map(|row| [row.value, Some(row.low), row.high])
        .flatten();
    Some(Chart {
        name: "gradient-noise-by-layer".to_owned(),
        title: "Gradient noise scale of each layer group".to_owned(),
        caption: caption(name, row, steps, (rows.len(), measured), &unknown),
        picture: Picture::Intervals(Intervals {
            axis: ChartAxis::by_logarithm("gradient noise scale, samples", ends),
            rows,
        }),
    })
}

/// The groups with the most of the noise, in their order.
fn with_most_noise(known: Vec<(&Group, NoiseScale)>) -> Vec<(&Group, NoiseScale)> {
    let mut ranked: Vec<_> = known.into_iter().enumerate().collect();
    let noise = |(_, (group, _)): &(usize, (&Group, NoiseScale))| group.mean().noise;
    ranked.sort_by(|one, other| noise(other).total_cmp(&noise(one)));
    ranked.truncate(MOST_ROWS);
    ranked.sort_by_key(|(place, _)| *place);
    ranked.into_iter().map(|(_, known)| known).collect()
}

fn interval_row(group: &Group, scale: NoiseScale, whole: NoiseSums) -> IntervalRow {
    let own = group.mean();
    let share = |own: f64, whole: f64| Fraction(own / whole);
    let detail = match whole.signal > 0.0 && whole.noise > 0.0 {
        true => format!(
            ", {} of |G|², {} of tr(Σ)",
            share(own.signal, whole.signal),
            share(own.noise, whole.noise)
        ),
        false => String::new(),
    };
    IntervalRow {
        name: group.name.clone(),
        value: scale.scale.filter(|_| scale.high.is_some()),
        low: scale.low,
        high: scale.high.filter(|_| scale.scale.is_some()),
        detail,
    }
}

fn caption(
    name: &str,
    row: &TrialRow,
    steps: usize,
    (drawn, told): (usize, usize),
    unknown: &[&str],
) -> String {
    let mut text = format!(
        "{name}: the noise scale of the gradient of each group's parameters alone, over the last \
         {steps} measured steps to step {}. Each interval covers its scale 95 times of 100, so of \
         twenty one is expected not to. A line that runs to the rim has no end there. How much a \
         group counts for the whole is its part of |G|², which is among the values of the picture.",
        row.gradient_noise_step.unwrap_or(0),
    );
    if let Some(MeasuredNoise {
        scale, low, high, ..
    }) = row.gradient_noise()
    {
        text += &format!(
            " All parameters together: {} samples ({} to {}).",
            significant(scale),
            significant(low),
            significant(high)
        );
    }
    if drawn < told {
        text += &format!(" Of {told} groups those with the most noise.");
    }
    if !unknown.is_empty() {
        let shown =
            |name: &&str| -> String { without_controls(name).chars().take(MOST_LETTERS).collect() };
        let names: Vec<String> = unknown.iter().take(MOST_NAMES).map(shown).collect();
        let more = match unknown.len() - names.len() {
            0 => String::new(),
            more => format!(" and {}", counted(more, "other group")),
        };
        text += &format!(" Nothing can be told of {}{more}.", names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kiln_core::{
        plan::TrialId,
        record::{RunFolder, TableWriter, layers::LAYERS},
    };

    use super::*;
    use crate::report::points::tests::{row, table};

    const NOISE: [fn(f64) -> f64; 2] = [|wave| 40.0 * wave, |wave| 200.0 * wave];

    /// `steps` measured steps of two layers whose noise is that of a wave around 1 in the newer half and
    /// large before, of another with no gradient that could be told, and of one that overflowed.
    fn layers(steps: u64, noise: [fn(f64) -> f64; 2]) -> Vec<LayerRow> {
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
            let [first, second] = match 2 * step > steps {
                true => noise.map(|noise| noise(wave(step))),
                false => [1e6; 2],
            };
            [
                one(step, "blocks.0", Some(first), 2.0),
                one(step, "blocks.1", Some(second), 6.0),
                one(step, "head", Some(9.0), 8.0 * (wave(step) - 1.0)),
                one(step, "tail", None, 0.0),
            ]
        });
        rows.collect()
    }

    fn measured(number: u64, [low, high]: [f64; 2]) -> TrialRow {
        TrialRow {
            gradient_noise_scale: Some(60.0),
            gradient_noise_scale_low: Some(low),
            gradient_noise_scale_high: Some(high),
            gradient_noise_step: Some(80),
            gradient_noise_loss: Some(2.0),
            ..row(number, 10.0)
        }
    }

    fn drawn(layers: &[LayerRow]) -> Option<(Chart, Intervals)> {
        let mut groups = Groups::default();
        layers.iter().for_each(|row| groups.push(row));
        let chart = chart("batch 8", &measured(1, [50.0, 70.0]), &groups.newest())?;
        let Picture::Intervals(intervals) = &chart.picture else {
            panic!("{chart:?}");
        };
        let intervals = intervals.clone();
        Some((chart, intervals))
    }

    #[test]
    fn each_group_has_the_scale_of_its_newest_steps_and_what_is_open_runs_to_the_rim() {
        let (chart, intervals) = drawn(&layers(80, NOISE)).unwrap();
        let names: Vec<&str> = intervals.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["blocks.0", "blocks.1", "head"]);
        // 40 / 2 and 200 / 6.
        for (row, scale) in intervals.rows.iter().zip([20.0, 200.0 / 6.0]) {
            let (value, high) = (row.value.unwrap(), row.high.unwrap());
            assert!((value / scale - 1.0).abs() < 0.02, "{row:?}");
            assert!(
                0.9 * scale < row.low && row.low < value && value < high && high < 1.1 * scale,
                "{row:?}"
            );
        }
        // 2 of 8, and 40 of 249; the signal of `head` is almost 0, and the waves are not whole.
        assert_eq!(
            intervals.rows[0].detail,
            ", 24.9 % of |G|², 16.1 % of tr(Σ)"
        );
        let open = &intervals.rows[2];
        assert_eq!((open.value, open.high), (None, None));
        assert!(
            chart.caption.starts_with("batch 8: ")
                && chart
                    .caption
                    .contains("over the last 40 measured steps to step 80.")
                && chart
                    .caption
                    .contains("All parameters together: 60.0 samples (50.0 to 70.0).")
                && chart.caption.ends_with("Nothing can be told of tail."),
            "{}",
            chart.caption
        );
        let svg = chart.svg();
        assert!(
            ["blocks.0", "blocks.1", "head"]
                .iter()
                .all(|name| svg.contains(name))
        );
        let values = chart.values();
        assert!(
            values.series[0].text().contains("head: at least "),
            "{values:?}"
        );
    }

    #[test]
    fn of_a_long_training_only_the_newest_steps_of_each_group_are_kept() {
        let mut groups = Groups::default();
        let rows = layers(5_000, NOISE);
        for row in &rows {
            groups.push(row);
            assert!(
                groups
                    .groups
                    .iter()
                    .all(|group| group.steps.len() <= 2 * MOST_MEASURED)
            );
        }
        let newest = groups.newest();
        for group in &newest[..3] {
            let own = rows.iter().filter(|row| row.layer_group == group.name);
            let noise: Vec<f64> = own.filter_map(|row| row.gradient_noise).collect();
            let kept: Vec<f64> = group.steps.iter().map(|step| step.noise).collect();
            assert_eq!(kept, noise[noise.len() - MOST_MEASURED..]);
        }
        assert_eq!(
            (newest[3].name.as_str(), newest[3].steps.len()),
            ("tail", 0)
        );
    }

    #[test]
    fn without_layers_or_with_too_few_steps_there_is_no_picture_and_of_many_those_with_most_noise()
    {
        assert!(drawn(&[]).is_none());
        assert!(drawn(&layers(19, NOISE)).is_none());
        let many: Vec<LayerRow> = layers(80, NOISE)
            .into_iter()
            .filter(|row| row.layer_group == "blocks.0")
            .flat_map(|row| {
                (0..50).map(move |number| LayerRow {
                    layer_group: format!("blocks.{number}"),
                    gradient_noise: row
                        .gradient_noise
                        .map(|noise| noise * f64::from(number + 1)),
                    ..row.clone()
                })
            })
            .collect();
        let (chart, intervals) = drawn(&many).unwrap();
        let names: Vec<&str> = intervals.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(
            (names.len(), names[0], names[39]),
            (40, "blocks.10", "blocks.49")
        );
        assert!(
            chart
                .caption
                .contains("Of 50 groups those with the most noise.")
        );
        // An interval that reaches 0 has no place on an axis of logarithms.
        let almost_none = |wave: f64| 0.01 + 5.0 * (wave - 1.0);
        let (chart, intervals) = drawn(&layers(80, [almost_none, NOISE[1]])).unwrap();
        assert_eq!(intervals.rows[0].low, 0.0);
        assert!(!intervals.axis.holds(0.0) && chart.svg().contains("blocks.0"));
    }

    #[test]
    fn the_training_with_the_narrowest_interval_is_drawn_of_each_run() {
        let place = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(place.path());
        let rows = [
            measured(1, [50.0, 70.0]),
            measured(2, [59.0, 61.0]),
            measured(3, [58.0, 62.0]),
        ];
        // The second one kept no table, and that of the first one is of a newer kiln.
        let tables = [
            (&rows[0].trial, "kiln_table\nlayers/99\n".to_owned()),
            (&rows[2].trial, String::new()),
        ];
        for (trial, text) in tables {
            let attempt = folder.attempt(trial, 1);
            fs::create_dir_all(&attempt).unwrap();
            let path = attempt.join("layers.csv");
            if text.is_empty() {
                let (mut writer, _) = TableWriter::open(&path, LAYERS.spec(&[])).unwrap();
                for row in layers(80, NOISE) {
                    writer.append_row(&row).unwrap();
                }
            } else {
                fs::write(path, text).unwrap();
            }
        }
        let axes = ["train.seed"];
        let cells: [&[&str]; 3] = [&["1"], &["2"], &["3"]];
        let table = table(&axes, rows.into_iter().zip(cells).collect());
        let view = |label: &str| {
            let mut view = RunView::new(label.to_owned(), &table);
            view.folder = Some(&folder);
            view
        };
        let mut faults = Vec::new();
        let alone = charts(&[view("r")], &mut faults);
        assert_eq!(alone.len(), 1);
        assert!(alone[0].caption.starts_with("seed 3: "), "{alone:?}");
        assert!(
            faults.is_empty(),
            "the first one was not needed: {faults:?}"
        );
        let both = charts(&[view("r"), view("s")], &mut faults);
        let titles: Vec<&str> = both.iter().map(|chart| chart.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "r: Gradient noise scale of each layer group",
                "s: Gradient noise scale of each layer group"
            ]
        );
        let first = TrialId(table.rows[0].fixed.trial.0.clone());
        fs::remove_dir_all(folder.attempt(&table.rows[2].fixed.trial, 1)).unwrap();
        assert!(charts(&[view("r")], &mut faults).is_empty());
        assert!(
            faults.iter().any(|fault| fault.contains(&first.0)),
            "{faults:?}"
        );
    }
}
