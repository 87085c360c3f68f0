//! Steps and samples until a loss: what each effective batch of a sweep needed, and the curve that
//! the batches follow.
//!
//! A trial with `train.target` has the steps until it. Of each batch the setting counts that needed
//! the fewest: a batch that is too small or too large shows only with a learning rate that suits it.

use std::{cmp::Ordering, collections::HashMap};

use kiln_core::{
    plan::Outcome,
    record::TrialRow,
    statistics::{Tradeoff, mean, middle},
    units::{significant, without_controls},
};

use super::{
    batch_choice::{OF_THE_BATCH, RATE, narrowest},
    points::Point,
};

/// Further axes by which trainings to one loss may differ: how long they go on after it, and how
/// often they are evaluated.
const OF_THE_LENGTH: [&str; 4] = [
    "train.steps",
    "train.epochs",
    "train.evaluate.every",
    "train.evaluate.batch_multiple",
];
/// Repeats.
const SEED: &str = "train.seed";

/// An effective batch, by the setting that needed the fewest steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReachedBatch<'a> {
    /// Samples.
    pub(super) size: u64,
    /// Geometric mean over its trials.
    pub(super) steps: f64,
    /// Mean over its trials.
    seconds: Option<f64>,
    trials: usize,
    /// Its learning rate, where several were tried.
    rate: Option<&'a str>,
    /// Whether that is the least or the largest of those tried.
    is_at_end: bool,
}

/// Batches that differ in nothing else, by size, and the curve through them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepsAndSamples<'a> {
    pub(super) batches: Vec<ReachedBatch<'a>>,
    pub(super) fitted: Option<Tradeoff>,
}

/// Trials of one setting and one batch; seeds are repeats.
struct Setting<'a> {
    size: u64,
    rate: Option<&'a str>,
    rows: Vec<&'a TrialRow>,
}

impl Setting<'_> {
    /// Geometric mean of the steps; `None` if one of them did not get there.
    fn steps(&self) -> Option<f64> {
        let steps: Option<Vec<f64>> = self
            .rows
            .iter()
            .map(|row| row.steps_to_target.map(|steps| steps.max(1) as f64))
            .collect();
        middle(&steps?)
    }
}

/// What the batches of a sweep needed; `None` where fewer than two reached the target. Of several
/// groups that differ in something else that with the most batches.
pub(super) fn of<'a>(points: &'a [Point<'a>], axes: &[String]) -> Option<StepsAndSamples<'a>> {
    let places = |is_wanted: &dyn Fn(&str) -> bool| -> Vec<usize> {
        let wanted = axes.iter().enumerate().filter(|(_, axis)| is_wanted(axis));
        wanted.map(|(at, _)| at).collect()
    };
    let of_others = places(&|axis| {
        !OF_THE_BATCH.contains(&axis) && !OF_THE_LENGTH.contains(&axis) && axis != SEED
    });
    let of_settings = places(&|axis| axis != SEED);
    let rate = axes.iter().position(|axis| axis == RATE);
    let values = |point: &'a Point<'a>, places: &[usize]| -> Vec<&'a str> {
        places.iter().map(|at| point.values[*at].as_str()).collect()
    };
    let mut groups: Vec<(Vec<&str>, Vec<Setting<'a>>)> = Vec::new();
    let mut place_of: HashMap<(Vec<&str>, u64), (usize, usize)> = HashMap::new();
    for point in points {
        let others = values(point, &of_others);
        for row in &point.rows {
            if row.outcome != Outcome::Completed {
                continue;
            }
            let key = (values(point, &of_settings), row.effective_batch_size);
            let (group, at) = *place_of.entry(key).or_insert_with(|| {
                let known = groups.iter().position(|(known, _)| *known == others);
                let group = known.unwrap_or_else(|| {
                    groups.push((others.clone(), Vec::new()));
                    groups.len() - 1
                });
                groups[group].1.push(Setting {
                    size: row.effective_batch_size,
                    rate: rate.map(|at| point.values[at].as_str()),
                    rows: Vec::new(),
                });
                (group, groups[group].1.len() - 1)
            });
            groups[group].1[at].rows.push(row);
        }
    }
    let found = groups.into_iter().map(|(_, settings)| best(settings));
    let most = found.reduce(|kept, next| match next.len() > kept.len() {
        true => next,
        false => kept,
    })?;
    if most.len() < 2 {
        return None;
    }
    let reached: Vec<(f64, f64)> = most
        .iter()
        .map(|batch| (batch.size as f64, batch.steps))
        .collect();
    Some(StepsAndSamples {
        fitted: Tradeoff::fit(&reached),
        batches: most,
    })
}

/// Each batch by its setting with the fewest steps.
fn best(settings: Vec<Setting<'_>>) -> Vec<ReachedBatch<'_>> {
    let mut sizes: Vec<u64> = settings.iter().map(|setting| setting.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of_size = |size: u64| {
        let own = || settings.iter().filter(|setting| setting.size == size);
        let least = own().filter_map(|setting| Some((setting.steps()?, setting)));
        let (steps, setting) = least.min_by(|one, other| one.0.total_cmp(&other.0))?;
        let rates = || own().filter_map(|setting| setting.rate);
        let is_end = |order: Ordering| {
            setting
                .rate
                .is_some_and(|rate| rates().all(|other| by_number(other, rate) != order))
        };
        let has_several = rates().any(|rate| Some(rate) != setting.rate);
        let seconds: Option<Vec<f64>> = setting
            .rows
            .iter()
            .map(|row| row.seconds_to_target)
            .collect();
        Some(ReachedBatch {
            size,
            steps,
            seconds: seconds.and_then(|seconds| mean(&seconds)),
            trials: setting.rows.len(),
            rate: setting.rate.filter(|_| has_several),
            is_at_end: has_several && (is_end(Ordering::Less) || is_end(Ordering::Greater)),
        })
    };
    sizes.into_iter().filter_map(of_size).collect()
}

fn by_number(one: &str, other: &str) -> Ordering {
    let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    number(one).total_cmp(&number(other))
}

/// The notices: what each batch needed, the critical batch, and the noise scale beside it.
pub(super) fn lines(points: &[Point<'_>], axes: &[String]) -> Vec<String> {
    let Some(found) = of(points, axes) else {
        return Vec::new();
    };
    let mut lines = vec![found.needed()];
    lines.extend(found.curve());
    lines.extend(found.against_noise(points));
    lines
}

impl StepsAndSamples<'_> {
    fn needed(&self) -> String {
        let of =
            |batch: &ReachedBatch<'_>| format!("{} × {}", significant(batch.steps), batch.size);
        let needed: Vec<String> = self.batches.iter().map(of).collect();
        let trials = self.batches.iter().map(|batch| batch.trials);
        let repeats = match (trials.clone().min(), trials.max()) {
            (Some(1), Some(1)) => ", one trial each".to_owned(),
            (Some(least), Some(most)) if least == most => {
                format!(", the mean of {most} trials each")
            }
            (least, most) => format!(
                ", the mean of {} to {} trials each",
                least.unwrap_or(0),
                most.unwrap_or(0)
            ),
        };
        let rates: Option<Vec<String>> = self
            .batches
            .iter()
            .map(|batch| {
                Some(format!(
                    "{} for {}",
                    without_controls(batch.rate?),
                    batch.size
                ))
            })
            .collect();
        let rates = rates.map_or(String::new(), |rates| {
            let mut told = format!(", at the learning rate with the fewest ({})", rates.join(", "));
            let ends: Vec<String> = self
                .batches
                .iter()
                .filter(|batch| batch.is_at_end)
                .map(|batch| batch.size.to_string())
                .collect();
            if !ends.is_empty() {
                told += &format!(
                    "; for batch {} that is the least or the largest that was tried, and one beyond \
                     may need fewer",
                    ends.join(", ")
                );
            }
            told
        });
        let seconds = self
            .batches
            .iter()
            .map(|batch| Some((batch.seconds?, batch.size)));
        let seconds: Option<Vec<(f64, u64)>> = seconds.collect();
        let soonest = seconds.unwrap_or_default().into_iter();
        let soonest = soonest.min_by(|one, other| one.0.total_cmp(&other.0));
        let soonest = soonest.map_or(String::new(), |(seconds, size)| {
            format!("; soonest with {size}, after {} s", significant(seconds))
        });
        format!(
            "steps × effective batch until `train.target`: {}{repeats}{rates}{soonest}",
            needed.join(", ")
        )
    }

    fn curve(&self) -> Option<String> {
        let Some(fitted) = self.fitted else {
            return (self.batches.len() > 3).then(|| {
                "these steps do not show a critical batch: they do not depend on the batch, or fall as \
                 it grows; sweep larger or smaller ones"
                    .to_owned()
            });
        };
        let high = match fitted.high {
            Some(high) => format!(
                "95 % interval {} to {}",
                significant(fitted.low),
                significant(high)
            ),
            None => format!(
                "95 % interval from {}, without an upper end",
                significant(fitted.low)
            ),
        };
        Some(format!(
            "they follow S = {} × (1 + {}/B) with {} % of scatter over {} batches: the critical batch is {} \
             samples ({high}); with it a training needs twice the fewest samples, {}, and twice the \
             fewest steps, {}",
            significant(fitted.fewest_steps),
            significant(fitted.critical_batch),
            significant(100.0 * fitted.scatter),
            fitted.batches,
            significant(fitted.critical_batch),
            significant(fitted.fewest_samples()),
            significant(fitted.fewest_steps),
        ))
    }

    fn against_noise(&self, points: &[Point<'_>]) -> Option<String> {
        let (fitted, measured) = (self.fitted?, narrowest(points)?);
        let loss = measured.row.gradient_noise_loss?;
        Some(format!(
            "the gradient noise scale of one training, {} samples at step {} (training loss {}), is {} \
             times that critical batch",
            significant(measured.scale),
            measured.row.gradient_noise_step?,
            significant(loss),
            significant(measured.scale / fitted.critical_batch),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::points::{
            points,
            tests::{row, table},
        },
        *,
    };

    const AXES: [&str; 4] = ["train.batch_size", "train.steps", RATE, SEED];

    fn trial(number: u64, size: u64, steps: Option<u64>) -> TrialRow {
        TrialRow {
            effective_batch_size: size,
            steps_to_target: steps,
            seconds_to_target: steps.map(|steps| steps as f64 * (0.01 + size as f64 * 0.001)),
            ..row(number, 10.0)
        }
    }

    fn sweep() -> Vec<(TrialRow, &'static [&'static str])> {
        // S = 100 (1 + 32/B) at rate 0.002; 0.001 needs half as many again, and 0.004 does not get there.
        let values: [[&'static [&'static str]; 4]; 4] = [
            [
                &["8", "900", "0.001", "1"],
                &["8", "900", "0.002", "1"],
                &["8", "900", "0.002", "2"],
                &["8", "900", "0.004", "1"],
            ],
            [
                &["32", "400", "0.001", "1"],
                &["32", "400", "0.002", "1"],
                &["32", "400", "0.002", "2"],
                &["32", "400", "0.004", "1"],
            ],
            [
                &["128", "300", "0.001", "1"],
                &["128", "300", "0.002", "1"],
                &["128", "300", "0.002", "2"],
                &["128", "300", "0.004", "1"],
            ],
            [
                &["512", "250", "0.001", "1"],
                &["512", "250", "0.002", "1"],
                &["512", "250", "0.002", "2"],
                &["512", "250", "0.004", "1"],
            ],
        ];
        let mut rows = Vec::new();
        for (values, size) in values.into_iter().zip([8_u64, 32, 128, 512]) {
            let steps = 100 + 3200 / size;
            for (values, steps) in
                values
                    .into_iter()
                    .zip([Some(steps * 3 / 2), Some(steps), Some(steps), None])
            {
                rows.push((trial(rows.len() as u64 + 1, size, steps), values));
            }
        }
        rows
    }

    fn said(axes: &[&str], rows: Vec<(TrialRow, &[&str])>) -> Vec<String> {
        let table = table(axes, rows);
        lines(&points(&table), &table.axes)
    }

    #[test]
    fn each_batch_counts_by_its_best_rate_and_the_curve_is_found() {
        let told = said(&AXES, sweep());
        assert_eq!(
            told[0],
            "steps × effective batch until `train.target`: 500 × 8, 200 × 32, 125 × 128, 106 × 512, the \
             mean of 2 trials each, at the learning rate with the fewest (0.002 for 8, 0.002 for 32, \
             0.002 for 128, 0.002 for 512); soonest with 32, after 8.40 s"
        );
        assert!(
            told[1].starts_with(
                "they follow S = 99.8 × (1 + 32.1/B) with 0.0758 % of scatter over 4 batches"
            ) && told[1].contains("the critical batch is 32.1 samples (95 % interval 31.")
                && told[1]
                    .ends_with("twice the fewest samples, 3203, and twice the fewest steps, 99.8"),
            "{}",
            told[1]
        );
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn a_rate_at_the_end_is_told_and_the_noise_scale_stands_beside() {
        let mut rows = sweep();
        rows.retain(|(_, values)| values[2] != "0.004");
        rows[0].0.gradient_noise_scale = Some(16.0);
        rows[0].0.gradient_noise_scale_low = Some(12.0);
        rows[0].0.gradient_noise_scale_high = Some(20.0);
        rows[0].0.gradient_noise_step = Some(400);
        rows[0].0.gradient_noise_loss = Some(2.25);
        let told = said(&AXES, rows);
        assert!(
            told[0].contains(
                "for batch 8, 32, 128, 512 that is the least or the largest that was tried"
            ),
            "{}",
            told[0]
        );
        assert!(
            told[2]
                .starts_with("the gradient noise scale of one training, 16.0 samples at step 400")
                && told[2].ends_with("is 0.499 times that critical batch"),
            "{}",
            told[2]
        );
    }

    #[test]
    fn without_a_target_or_a_second_batch_nothing_is_said_and_few_batches_give_no_curve() {
        let axes = ["train.batch_size"];
        let of = |sizes: &[(u64, Option<u64>, &'static [&'static str])]| {
            let rows = sizes.iter().enumerate();
            let rows = rows
                .map(|(at, (size, steps, values))| (trial(at as u64 + 1, *size, *steps), *values));
            said(&axes, rows.collect())
        };
        assert!(of(&[(8, None, &["8"]), (16, None, &["16"])]).is_empty());
        assert!(of(&[(8, Some(90), &["8"]), (16, None, &["16"])]).is_empty());
        let told = of(&[(8, Some(90), &["8"]), (16, Some(60), &["16"])]);
        assert_eq!(
            told,
            [
                "steps × effective batch until `train.target`: 90.0 × 8, 60.0 × 16, one trial each; \
              soonest with 16, after 1.56 s"
            ]
        );
        let told = of(&[
            (8, Some(90), &["8"]),
            (16, Some(90), &["16"]),
            (32, Some(90), &["32"]),
            (64, Some(90), &["64"]),
        ]);
        assert!(
            told[1].starts_with("these steps do not show a critical batch"),
            "{told:?}"
        );
    }

    #[test]
    fn batches_of_another_model_are_another_group() {
        let axes = ["model.d_model", "train.batch_size"];
        let rows: Vec<(TrialRow, &[&str])> = vec![
            (trial(1, 8, Some(90)), &["32", "8"][..]),
            (trial(2, 16, Some(60)), &["64", "16"]),
            (trial(3, 8, Some(50)), &["64", "8"]),
        ];
        let told = said(&axes, rows);
        assert!(told[0].contains("50.0 × 8, 60.0 × 16"), "{told:?}");
    }
}
