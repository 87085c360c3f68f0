//! Steps and samples until a loss: what each effective batch of a sweep needed, and the curve that
//! the batches follow.
//!
//! A trial with `train.target` has the steps until it. Of each batch the setting counts that needed
//! the fewest: a batch that is too small or too large shows only with a learning rate that suits it.

mod words;

use std::{cmp::Ordering, collections::HashMap};

use kiln_core::{
    plan::Outcome,
    record::TrialRow,
    statistics::{Tradeoff, mean, middle},
    units::without_controls,
};

pub(super) use self::words::lines;
use super::{
    batch_choice::{OF_THE_BATCH, RATE},
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
    trials: usize,
    /// Its learning rate, where that is an axis.
    rate: Option<&'a str>,
    /// Learning rates that were tried with this batch.
    rates: usize,
    /// Which end of them its own is: `least` or `largest`.
    end: Option<&'static str>,
}

/// Batches that differ in nothing else, by size, and the curve through them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepsAndSamples<'a> {
    pub(super) batches: Vec<ReachedBatch<'a>>,
    pub(super) fitted: Option<Tradeoff>,
    /// The values of the axes that all of them share: `model.d_model 64`.
    shared: Vec<String>,
    /// Batches none of whose settings reached the target with all of its trials.
    unreached: Vec<u64>,
    /// Batch and mean seconds of the setting that was the fastest; `None` if they ran on several
    /// devices, or one of them was disturbed.
    soonest: Option<(u64, f64)>,
    /// The trials, for what else they measured.
    rows: Vec<&'a TrialRow>,
    /// Groups with other values of those axes.
    others: usize,
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

    fn seconds(&self) -> Option<f64> {
        let seconds: Option<Vec<f64>> = self
            .rows
            .iter()
            .map(|row| row.of_whole_work(row.seconds_to_target))
            .collect();
        mean(&seconds?)
    }
}

/// Settings that differ in the batch, the learning rate and the length alone.
struct Group<'a> {
    values: Vec<&'a str>,
    settings: Vec<Setting<'a>>,
}

/// The steps that each effective batch of a sweep needed until the target; `None` if fewer than two
/// reached it. Batches are comparable if all other axes are equal; of several such groups the one with
/// the most batches is used.
pub(super) fn of<'a>(points: &'a [Point<'a>], axes: &[String]) -> Option<StepsAndSamples<'a>> {
    let of_others: Vec<usize> = (0..axes.len())
        .filter(|at| {
            let axis = axes[*at].as_str();
            !OF_THE_BATCH.contains(&axis) && !OF_THE_LENGTH.contains(&axis) && axis != SEED
        })
        .collect();
    let groups = groups(points, axes, &of_others);
    let reached = groups.iter().map(|group| best(&group.settings));
    let mut reached: Vec<(&Group<'_>, Vec<ReachedBatch<'_>>)> =
        groups.iter().zip(reached).collect();
    reached.retain(|(_, batches)| batches.len() > 1);
    let others = reached.len().saturating_sub(1);
    let (group, batches) =
        reached
            .into_iter()
            .reduce(|kept, next| match next.1.len() > kept.1.len() {
                true => next,
                false => kept,
            })?;
    let curve: Vec<(f64, f64)> = batches
        .iter()
        .map(|batch| (batch.size as f64, batch.steps))
        .collect();
    let mut unreached: Vec<u64> = group.settings.iter().map(|setting| setting.size).collect();
    unreached.sort_unstable();
    unreached.dedup();
    unreached.retain(|size| batches.iter().all(|batch| batch.size != *size));
    let shared = of_others.iter().zip(&group.values);
    Some(StepsAndSamples {
        fitted: Tradeoff::fit(&curve),
        shared: shared
            .map(|(at, value)| without_controls(&format!("{} {value}", axes[*at])))
            .collect(),
        unreached,
        soonest: soonest(&group.settings),
        rows: group
            .settings
            .iter()
            .flat_map(|setting| setting.rows.iter().copied())
            .collect(),
        others,
        batches,
    })
}

/// The settings of the trials that trained to an end of their own, by the values of these axes.
fn groups<'a>(points: &'a [Point<'a>], axes: &[String], of_others: &[usize]) -> Vec<Group<'a>> {
    let rate = axes.iter().position(|axis| axis == RATE);
    let seed = axes.iter().position(|axis| axis == SEED);
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut group_of: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut place_of: HashMap<(Vec<&str>, u64), (usize, usize)> = HashMap::new();
    // One batch learned by heart reaches any loss.
    for point in points.iter().filter(|point| !point.is_synthetic(axes)) {
        let value = |at: &usize| point.values[*at].as_str();
        let others: Vec<&str> = of_others.iter().map(value).collect();
        let setting = (0..axes.len()).filter(|at| Some(*at) != seed);
        let setting: Vec<&str> = setting.map(|at| value(&at)).collect();
        for row in &point.rows {
            // One that diverged did not get there.
            if !matches!(
                row.outcome,
                Outcome::Completed | Outcome::Diverged | Outcome::TimedOut
            ) {
                continue;
            }
            let key = (setting.clone(), row.effective_batch_size);
            let (group, at) = *place_of.entry(key).or_insert_with(|| {
                let group = *group_of.entry(others.clone()).or_insert_with(|| {
                    groups.push(Group {
                        values: others.clone(),
                        settings: Vec::new(),
                    });
                    groups.len() - 1
                });
                groups[group].settings.push(Setting {
                    size: row.effective_batch_size,
                    rate: rate.as_ref().map(value),
                    rows: Vec::new(),
                });
                (group, groups[group].settings.len() - 1)
            });
            groups[group].settings[at].rows.push(row);
        }
    }
    groups
}

/// Each batch by its setting with the fewest steps.
fn best<'a>(settings: &[Setting<'a>]) -> Vec<ReachedBatch<'a>> {
    let mut sizes: Vec<u64> = settings.iter().map(|setting| setting.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of_size = |size: u64| {
        let own = || settings.iter().filter(|setting| setting.size == size);
        let least = own().filter_map(|setting| Some((setting.steps()?, setting)));
        let (steps, setting) = least.min_by(|one, other| one.0.total_cmp(&other.0))?;
        let mut rates: Vec<&str> = own().filter_map(|setting| setting.rate).collect();
        rates.sort_by(|one, other| by_number(one, other));
        rates.dedup();
        let ends = [("least", rates.first()), ("largest", rates.last())];
        let end = ends.iter().find(|(_, rate)| *rate == setting.rate.as_ref());
        Some(ReachedBatch {
            size,
            steps,
            trials: setting.rows.len(),
            rate: setting.rate,
            rates: rates.len(),
            end: end.map(|(end, _)| *end).filter(|_| rates.len() > 1),
        })
    };
    sizes.into_iter().filter_map(of_size).collect()
}

/// The setting whose trials reached the target in the least mean time; `None` if that was not measured
/// on one device, undisturbed.
fn soonest(settings: &[Setting<'_>]) -> Option<(u64, f64)> {
    let rows = || settings.iter().flat_map(|setting| &setting.rows);
    let device = |row: &TrialRow| (row.device_name.clone(), row.host_id.clone());
    let first = device(rows().next()?);
    if rows().any(|row| device(row) != first || !row.disturbances().is_empty()) {
        return None;
    }
    let seconds = settings
        .iter()
        .filter_map(|setting| Some((setting.size, setting.seconds()?)));
    seconds.min_by(|one, other| one.1.total_cmp(&other.1))
}

fn by_number(one: &str, other: &str) -> Ordering {
    let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    number(one).total_cmp(&number(other))
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
            "steps × effective batch until the evaluation that reached `train.target`: 500 × 8, 200 × \
             32, 125 × 128, 106 × 512, the geometric mean of 2 trials each, at the learning rate with the fewest \
             (0.002 for 8, 0.002 for 32, 0.002 for 128, 0.002 for 512); soonest with 32, after 8.40 s"
        );
        assert!(
            told[1].starts_with(
                "the curve S = 99.8 × (1 + 32.1/B) through these 4 batches, which scatter around it by \
                 0.107 %: the critical batch is 32.1 samples (95 % interval 31."
            )
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
                "for batch 8, 32, 128, 512 it is the largest that was tried, and one beyond may need \
                 fewer"
            ),
            "{}",
            told[0]
        );
        assert!(
            told[2].starts_with(
                "the gradient noise scale of one of these trainings (effective batch 8), 16.0 \
                     samples (95 % interval 12.0 to 20.0) at step 400 and a training loss of 2.25"
            ) && told[2].ends_with("is 0.499 times that critical batch"),
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
                "steps × effective batch until the evaluation that reached `train.target`: 90.0 × 8, \
                 60.0 × 16, one trial each, all at one learning rate, which need not suit each of them; \
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
            told[1].starts_with("these steps show no critical batch"),
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

    #[test]
    fn a_rate_whose_trials_diverged_did_not_get_there_and_other_groups_are_counted() {
        let mut rows = sweep();
        // 0.004 reaches it fastest with one seed, and diverges with the other.
        for (row, values) in &mut rows {
            if values[2] == "0.004" {
                row.steps_to_target = Some(10);
            }
        }
        let of = |seed: &'static [&'static str], number: u64| {
            let mut row = trial(number, 8, None);
            row.outcome = Outcome::Diverged;
            (row, seed)
        };
        rows.push(of(&["8", "900", "0.004", "2"], 50));
        let told = said(&AXES, rows);
        assert!(
            told[0].contains("500 × 8, 10.0 × 32") && told[0].contains("0.002 for 8, 0.004 for 32"),
            "{}",
            told[0]
        );
        let axes = ["model.d_model", "train.batch_size"];
        let mut rows: Vec<(TrialRow, &[&str])> = vec![
            (trial(1, 8, Some(90)), &["32", "8"][..]),
            (trial(2, 16, Some(60)), &["32", "16"]),
            (trial(3, 8, Some(50)), &["64", "8"]),
            (trial(4, 16, Some(40)), &["64", "16"]),
            (trial(5, 32, None), &["32", "32"]),
        ];
        let told = said(&axes, rows.clone());
        assert!(
            told[0].contains("; batch 32 did not reach it with all of its trials")
                && told[0].ends_with(
                    "; all with model.d_model 32, and 1 group of other values not told here"
                ),
            "{}",
            told[0]
        );
        assert!(told[0].contains("soonest with"), "{}", told[0]);
        let mut elsewhere = rows.clone();
        elsewhere[0].0.device_name = Some("another".to_owned());
        assert!(!said(&axes, elsewhere)[0].contains("soonest"));
        rows[0].0.foreign_processes = Some("2 with 2.0 GiB".to_owned());
        assert!(!said(&axes, rows)[0].contains("soonest"));
    }

    #[test]
    fn a_curve_that_scatter_leaves_open_names_no_critical_batch() {
        let axes = ["train.batch_size"];
        let rows: Vec<(TrialRow, &[&str])> = vec![
            (trial(1, 8, Some(300)), &["8"][..]),
            (trial(2, 16, Some(100)), &["16"]),
            (trial(3, 32, Some(100)), &["32"]),
            (trial(4, 64, Some(300)), &["64"]),
        ];
        let told = said(&axes, rows);
        assert!(
            told[1].contains("leaves the critical batch C open: ")
                && told[1].contains("all from 0 to"),
            "{}",
            told[1]
        );
        assert_eq!(told.len(), 2);
    }
}
