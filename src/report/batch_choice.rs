//! Notices that recommend a batch size, from the gradient noise scale and the measured speeds.
//!
//! With a batch B and a noise scale N a training needs 1 + B/N times the fewest samples, and 1 + N/B
//! times the fewest steps (McCandlish et al., 2018, arXiv 1812.06162, equation 2.12), as far as the
//! scale stays what it is and each batch has a learning rate that suits it.

use std::collections::BTreeMap;

use kiln_core::{
    record::TrialRow,
    statistics::MeasuredNoise,
    units::{significant, without_controls},
};

use super::{energy::energy_of, points::Point};

pub(super) const RATE: &str = "train.optimizer.learning_rate";
/// Axes by which batches of one training may differ.
pub(super) const OF_THE_BATCH: [&str; 4] = [
    "train.batch_size",
    "train.grad_accumulation",
    "run.devices_per_trial",
    RATE,
];

/// A trial that measured a noise scale with both ends of its interval.
pub(super) struct Measured<'a> {
    point: &'a Point<'a>,
    row: &'a TrialRow,
    pub(super) noise: MeasuredNoise,
}

/// An effective batch of the run, by its fastest point.
struct Batch<'a> {
    size: u64,
    samples_per_second: f64,
    /// The least of its points.
    joules_per_sample: Option<f64>,
    /// The learning rates that it was trained with, where that is an axis.
    rates: Vec<&'a str>,
}

impl Batch<'_> {
    /// Proportional to the samples that a training needs, 1 + B/N: times N, which may be 0.
    fn samples(&self, scale: f64) -> f64 {
        scale + self.size as f64
    }

    fn time(&self, scale: f64) -> f64 {
        self.samples(scale) / self.samples_per_second
    }

    fn energy(&self, scale: f64) -> Option<f64> {
        Some(self.samples(scale) * self.joules_per_sample?)
    }
}

/// The notices, by the point whose interval is the narrowest.
pub(super) fn lines(points: &[Point<'_>], axes: &[String]) -> Vec<String> {
    let Some(measured) = narrowest(points, axes) else {
        return at_least(points, axes).into_iter().collect();
    };
    let mut lines: Vec<String> = of_the_batch(&measured, axes).into_iter().collect();
    let batches = batches(points, axes, &measured);
    if batches.len() > 1 {
        lines.push(least_time(&batches, &measured));
        lines.extend(rates(&batches));
    }
    lines
}

/// The completed trials that train on their data: one batch again and again has hardly any noise.
fn usable<'a>(
    points: &'a [Point<'a>],
    axes: &[String],
) -> impl Iterator<Item = (&'a Point<'a>, &'a TrialRow)> {
    let of_data = points.iter().filter(|point| !point.is_synthetic(axes));
    of_data.flat_map(|point| point.completed().map(move |row| (point, row)))
}

/// The usable trial whose interval is the narrowest.
pub(super) fn narrowest<'a>(points: &'a [Point<'a>], axes: &[String]) -> Option<Measured<'a>> {
    let measured = usable(points, axes).filter_map(|(point, row)| {
        Some(Measured {
            point,
            row,
            noise: row.gradient_noise()?,
        })
    });
    measured.min_by(|one, other| one.noise.width().total_cmp(&other.noise.width()))
}

/// How many more samples and steps than the fewest a training with this batch needs.
fn of_the_batch(measured: &Measured<'_>, axes: &[String]) -> Option<String> {
    let batch = measured.row.effective_batch_size as f64;
    let MeasuredNoise {
        scale,
        low,
        high,
        step,
        ..
    } = measured.noise;
    if scale <= 0.0 {
        return Some(format!(
            "at step {step} the gradient noise scale is at most {} samples ({}): no noise was seen \
             beside the gradient, and a batch larger than the effective one of {batch} saves no steps",
            significant(high),
            measured.point.name(axes),
        ));
    }
    Some(format!(
        "at step {step} the gradient noise scale is {} samples (95 % interval {} to {}; {}): with the \
         effective batch of {batch} a training needs {} times the fewest samples and {} times the \
         fewest steps",
        significant(scale),
        significant(low),
        significant(high),
        measured.point.name(axes),
        significant(1.0 + batch / scale),
        significant(1.0 + scale / batch),
    ))
}

/// The line where no trial has an upper end of its noise scale.
fn at_least(points: &[Point<'_>], axes: &[String]) -> Option<String> {
    let mut lower = usable(points, axes)
        .filter_map(|(point, row)| Some((point, row.gradient_noise_scale_low?, row)));
    let (point, low, row) = lower.next()?;
    Some(format!(
        "the gradient noise scale is at least {} samples ({}), and no upper end is known: the gradient \
         of the effective batch of {} is lost in noise; more measured steps or micro-batches tell more",
        significant(low),
        point.name(axes),
        row.effective_batch_size
    ))
}

/// The effective batches of the points that differ from the measured one in nothing else, by size.
fn batches<'a>(
    points: &'a [Point<'a>],
    axes: &[String],
    measured: &Measured<'_>,
) -> Vec<Batch<'a>> {
    let others = |point: &Point<'_>| -> Vec<String> {
        let values = axes.iter().zip(point.values);
        values
            .filter(|(axis, _)| !OF_THE_BATCH.contains(&axis.as_str()))
            .map(|(_, value)| value.clone())
            .collect()
    };
    let rate = axes.iter().position(|axis| axis == RATE);
    let wanted = others(measured.point);
    let mut found: BTreeMap<u64, Batch<'a>> = BTreeMap::new();
    for point in points.iter().filter(|point| others(point) == wanted) {
        let (Some(row), Some(speed)) = (
            point.completed().next(),
            point.statistic(|row| row.of_whole_work(row.samples_per_second)),
        ) else {
            continue;
        };
        let batch = found.entry(row.effective_batch_size).or_insert(Batch {
            size: row.effective_batch_size,
            samples_per_second: 0.0,
            joules_per_sample: None,
            rates: Vec::new(),
        });
        batch.samples_per_second = batch.samples_per_second.max(speed.mean);
        let energy = point.statistic(energy_of(point));
        let energies = batch
            .joules_per_sample
            .into_iter()
            .chain(energy.map(|energy| energy.mean));
        batch.joules_per_sample = energies.reduce(f64::min);
        let own = rate.and_then(|at| point.values.get(at)).map(String::as_str);
        batch
            .rates
            .extend(own.filter(|own| !batch.rates.contains(own)));
    }
    found.into_values().collect()
}

/// The effective batches of the points that differ from the measured one in nothing else.
pub(super) fn sizes(points: &[Point<'_>], axes: &[String], measured: &Measured<'_>) -> Vec<u64> {
    let batches = batches(points, axes, measured);
    batches.iter().map(|batch| batch.size).collect()
}

/// The batch with which a loss would be reached soonest, and with the least energy.
fn least_time(batches: &[Batch<'_>], measured: &Measured<'_>) -> String {
    let best = |scale: f64| {
        let times = batches.iter().map(|batch| batch.time(scale));
        let at = times
            .enumerate()
            .min_by(|one, other| one.1.total_cmp(&other.1));
        &batches[at.map_or(0, |(at, _)| at)]
    };
    let (told, [low, high]) = (
        best(measured.noise.scale),
        [measured.noise.low, measured.noise.high].map(best),
    );
    let slower: Vec<String> = batches
        .iter()
        .filter(|batch| batch.size != told.size)
        .map(|batch| {
            let times = batch.time(measured.noise.scale) / told.time(measured.noise.scale);
            format!("{} {} times as long", batch.size, significant(times))
        })
        .collect();
    let sure = match low.size == high.size {
        true => "at both ends of the interval too".to_owned(),
        false => format!("over the interval it may be {} to {}", low.size, high.size),
    };
    let thriftiest = |scale: f64| {
        let energies: Option<Vec<(f64, u64)>> = batches
            .iter()
            .map(|batch| Some((batch.energy(scale)?, batch.size)))
            .collect();
        let least = energies?.into_iter();
        let least = least.min_by(|one, other| one.0.total_cmp(&other.0));
        least.map(|(_, size)| size)
    };
    let energy = thriftiest(measured.noise.scale)
        .filter(|size| {
            [measured.noise.low, measured.noise.high].map(thriftiest) == [Some(*size); 2]
        })
        .map_or(String::new(), |size| {
            format!(", and with {size} it needs the least energy")
        });
    let sizes: Vec<String> = batches.iter().map(|batch| batch.size.to_string()).collect();
    format!(
        "of the effective batches {} a training reaches a loss soonest with {} (it takes {}; {sure})\
         {energy}: by their speeds and this scale, if each has a learning rate that suits it",
        sizes.join(", "),
        told.size,
        slower.join(", "),
    )
}

/// How the learning rate went with the batch.
fn rates(batches: &[Batch<'_>]) -> Option<String> {
    let of_all = || batches.iter().flat_map(|batch| &batch.rates);
    if of_all().all(|rate| of_all().next() == Some(rate)) {
        let first = batches.first()?.size as f64;
        let factors = |of: fn(f64) -> f64| {
            let factors: Vec<String> = batches
                .iter()
                .map(|batch| significant(of(batch.size as f64 / first)))
                .collect();
            factors.join(", ")
        };
        return Some(format!(
            "these batches were swept at one learning rate, which need not suit each of them, so their \
             losses say little of the batch; sweep both in `sweep.zip`, with the rate of batch {first} \
             times {} (by the square root, as for Adam) or times {} (linear, as for SGD)",
            factors(f64::sqrt),
            factors(|ratio| ratio),
        ));
    }
    let own: Option<Vec<String>> = batches
        .iter()
        .map(|batch| match batch.rates.as_slice() {
            [rate] => Some(format!("{}: {}", batch.size, without_controls(rate))),
            _ => None,
        })
        .collect();
    Some(format!(
        "each batch was swept with one learning rate of its own ({})",
        own?.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::Outcome;

    use super::{
        super::points::{
            points,
            tests::{row, table},
        },
        *,
    };

    fn noisy(number: u64, size: u64, speed: f64, scale: Option<[f64; 3]>) -> TrialRow {
        TrialRow {
            effective_batch_size: size,
            gradient_noise_scale: scale.map(|[_, scale, _]| scale),
            gradient_noise_scale_low: scale.map(|[low, ..]| low),
            gradient_noise_scale_high: scale.map(|[.., high]| high),
            gradient_noise_step: scale.map(|_| 400),
            gradient_noise_loss: scale.map(|_| 2.0),
            ..row(number, speed)
        }
    }

    fn said(axes: &[&str], rows: Vec<(TrialRow, &[&str])>) -> Vec<String> {
        let table = table(axes, rows);
        lines(&points(&table), &table.axes)
    }

    #[test]
    fn the_narrowest_scale_is_told_with_what_its_batch_costs() {
        let of =
            |number: u64, low: f64, high: f64| noisy(number, 32, 10.0, Some([low, 64.0, high]));
        let told = said(
            &["train.seed"],
            vec![
                (of(1, 20.0, 200.0), &["1"][..]),
                (of(2, 50.0, 80.0), &["2"]),
            ],
        );
        assert_eq!(
            told,
            [
                "at step 400 the gradient noise scale is 64.0 samples (95 % interval 50.0 to 80.0; \
              train.seed 2): with the effective batch of 32 a training needs 1.50 times the fewest \
              samples and 3.00 times the fewest steps"
            ]
        );
        let open = |number: u64, low: f64| TrialRow {
            gradient_noise_scale: None,
            gradient_noise_scale_high: None,
            ..of(number, low, 1.0)
        };
        let told = said(
            &["train.seed"],
            vec![(open(1, 20.0), &["1"][..]), (open(2, 30.0), &["2"])],
        );
        assert!(
            told[0].starts_with("the gradient noise scale is at least 20.0 samples (train.seed 1)"),
            "{told:?}"
        );
    }

    #[test]
    fn one_batch_again_and_again_and_failed_trainings_do_not_tell_the_noise() {
        let narrow = noisy(2, 32, 10.0, Some([7.9, 8.0, 8.1]));
        let wide = || (noisy(1, 32, 10.0, Some([50.0, 64.0, 80.0])), &["false"][..]);
        let told = said(
            &["data.synthetic"],
            vec![wide(), (narrow.clone(), &["true"][..])],
        );
        assert!(told[0].contains("scale is 64.0 samples"), "{told:?}");
        let diverged = TrialRow {
            outcome: Outcome::Diverged,
            ..narrow
        };
        let told = said(&["data.shuffle"], vec![wide(), (diverged, &["true"])]);
        assert!(told[0].contains("scale is 64.0 samples"), "{told:?}");
    }

    #[test]
    fn speed_and_scale_together_choose_the_batch() {
        let axes = ["train.batch_size"];
        let rows = |ends: [f64; 2], speeds: [f64; 3]| -> Vec<(TrialRow, &[&str])> {
            vec![
                (noisy(1, 8, speeds[0], None), &["8"][..]),
                (
                    noisy(2, 32, speeds[1], Some([ends[0], 64.0, ends[1]])),
                    &["32"],
                ),
                (noisy(3, 128, speeds[2], None), &["128"]),
            ]
        };
        // Times 1.125 / 10, 1.5 / 30 and 3 / 40.
        let told = said(&axes, rows([50.0, 80.0], [10.0, 30.0, 40.0]));
        assert_eq!(
            told[1],
            "of the effective batches 8, 32, 128 a training reaches a loss soonest with 32 (it takes \
             8 2.25 times as long, 128 1.50 times as long; at both ends of the interval too): by their \
             speeds and this scale, if each has a learning rate that suits it"
        );
        assert!(
            told[2].contains("at one learning rate")
                && told[2].contains("rate of batch 8 times 1.00, 2.00, 4.00 (by the square root")
                && told[2].contains("times 1.00, 4.00, 16.0 (linear"),
            "{}",
            told[2]
        );
        let told = said(&axes, rows([10.0, 500.0], [10.0, 30.0, 70.0]));
        assert!(
            told[1].contains("over the interval it may be 32 to 128"),
            "{}",
            told[1]
        );
    }

    #[test]
    fn a_scale_of_zero_is_an_upper_end_and_speed_alone_chooses() {
        let rows: Vec<(TrialRow, &[&str])> = vec![
            (noisy(1, 8, 10.0, Some([0.0, 0.0, 1.0])), &["8"][..]),
            (noisy(2, 32, 60.0, None), &["32"]),
        ];
        let told = said(&["train.batch_size"], rows);
        assert!(
            told[0].starts_with("at step 400 the gradient noise scale is at most 1.00 samples"),
            "{told:?}"
        );
        // Times 8 / 10 and 32 / 60.
        assert!(
            told[1].contains("soonest with 32 (it takes 8 1.50 times as long"),
            "{told:?}"
        );
    }

    #[test]
    fn the_least_energy_is_told_only_where_each_batch_has_one() {
        let with = |number: u64, size: u64, joules: Option<f64>| TrialRow {
            energy_counter_joules: joules,
            window_seconds: Some(1.0),
            ..noisy(number, size, 10.0, Some([50.0, 64.0, 80.0]))
        };
        let told = |last: Option<f64>| {
            let rows = vec![
                (with(1, 8, Some(80.0)), &["8"][..]),
                (with(2, 128, last), &["128"]),
            ];
            said(&["train.batch_size"], rows).remove(1)
        };
        // 8 J and 2 J per sample, and 2.7 times the samples.
        assert!(
            told(Some(20.0)).contains("and with 128 it needs the least energy"),
            "{}",
            told(Some(20.0))
        );
        assert!(!told(None).contains("energy"));
    }

    #[test]
    fn batches_of_other_models_do_not_count_and_rates_of_each_are_told() {
        let axes = ["model.d_model", "train.batch_size", RATE];
        let scale = Some([50.0, 64.0, 80.0]);
        let rows = |last: &'static [&'static str]| -> Vec<(TrialRow, &[&str])> {
            vec![
                (noisy(1, 8, 10.0, scale), &["64", "8", "0.001"][..]),
                (noisy(2, 32, 20.0, scale), &["64", "32", "0.002"]),
                (noisy(3, 128, 90.0, None), last),
            ]
        };
        let told = said(&axes, rows(&["256", "128", "0.004"]));
        assert!(
            told[1].starts_with("of the effective batches 8, 32 "),
            "{told:?}"
        );
        assert_eq!(
            told[2],
            "each batch was swept with one learning rate of its own (8: 0.001, 32: 0.002)"
        );
        let same = said(
            &axes,
            vec![
                (noisy(1, 8, 10.0, scale), &["64", "8", "0.001"][..]),
                (noisy(2, 32, 20.0, scale), &["64", "32", "0.001"]),
            ],
        );
        assert!(same[2].contains("at one learning rate"), "{same:?}");
        // A grid of both says nothing that the table does not.
        let grid = said(
            &axes,
            vec![
                (noisy(1, 8, 10.0, scale), &["64", "8", "0.001"][..]),
                (noisy(2, 8, 10.0, scale), &["64", "8", "0.002"]),
                (noisy(3, 32, 20.0, scale), &["64", "32", "0.002"]),
            ],
        );
        assert_eq!(grid.len(), 2, "{grid:?}");
    }
}
