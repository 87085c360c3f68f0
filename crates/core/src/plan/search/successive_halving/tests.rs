//! Successive halving on settings with a simulated quality.

use serde_json::json;

use super::*;
use crate::{
    kinds::random::SplitMix64,
    plan::{
        Outcome,
        search::{
            Recommendation,
            oracle::{chosen, completed, noise, play},
        },
    },
};

fn search(axes: Value, factor: u64, repeats: u64, most_steps: Option<u64>) -> SuccessiveHalving {
    let Value::Object(axes) = axes else {
        panic!("a map")
    };
    SuccessiveHalving::new(&axes, Metric::ValidLoss, 10, factor, repeats, most_steps)
}

fn rate(choice: &SearchTrial) -> f64 {
    choice.values[0].1.as_f64().unwrap()
}

fn chosen_rate(end: &Recommendation) -> Option<f64> {
    end.chosen.as_ref().and_then(|values| values[0].1.as_f64())
}

/// Nine rates; the fifth is the best.
fn rates() -> Value {
    json!({"train.optimizer.learning_rate": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]})
}

fn loss(choice: &SearchTrial, best: f64) -> f64 {
    (rate(choice) - best).abs() + 10.0 / chosen(choice, "train.steps") as f64
}

#[test]
fn each_round_keeps_a_share_and_trains_longer() {
    let search = search(rates(), 3, 1, None);
    let end = play(&search, &|choice| Probe {
        metric: Some(loss(choice, 5.0)),
        ..completed(choice)
    });
    let steps: Vec<u64> = end
        .evidence
        .iter()
        .map(|probe| chosen(&probe.choice, "train.steps"))
        .collect();
    assert_eq!(steps, [10, 10, 10, 10, 10, 10, 10, 10, 10, 30, 30, 30]);
    assert_eq!(
        end.chosen,
        Some(vec![
            ("train.optimizer.learning_rate".to_owned(), json!(5.0)),
            ("train.steps".to_owned(), json!(30))
        ])
    );
    assert_eq!(
        end.evidence[9..]
            .iter()
            .map(|probe| rate(&probe.choice))
            .collect::<Vec<_>>(),
        [4.0, 5.0, 6.0],
        "in plan order"
    );
    assert_eq!((end.cost.trials, end.cost.grid_trials), (12, 9));
    assert!(
        end.why.contains("lowest `valid_loss`") && end.why.ends_with("2 rounds of 9 settings"),
        "{}",
        end.why
    );
}

#[test]
fn no_trial_is_longer_than_the_file_says() {
    for (most, expected) in [
        (25, vec![10, 20, 25]),
        (10, vec![10]),
        (3, vec![3]),
        (1000, vec![10, 20, 40, 80]),
    ] {
        let end = play(&search(rates(), 2, 1, Some(most)), &|choice| Probe {
            metric: Some(loss(choice, 5.0)),
            ..completed(choice)
        });
        let mut steps: Vec<u64> = end
            .evidence
            .iter()
            .map(|probe| chosen(&probe.choice, "train.steps"))
            .collect();
        steps.dedup();
        assert_eq!(steps, expected);
        assert_eq!(chosen_rate(&end), Some(5.0));
    }
}

#[test]
fn what_did_not_complete_ranks_last_and_ties_keep_the_plans_order() {
    for (outcome, metric) in [
        (Outcome::Diverged, Some(0.0)),
        (Outcome::Failed, None),
        (Outcome::Oom, None),
        (Outcome::Completed, Some(f64::NAN)),
    ] {
        let run = |choice: &SearchTrial| match rate(choice) {
            5.0 => Probe {
                outcome,
                metric,
                ..completed(choice)
            },
            _ => Probe {
                metric: Some(1.0),
                ..completed(choice)
            },
        };
        let end = play(&search(rates(), 3, 1, None), &run);
        assert_eq!(chosen_rate(&end), Some(1.0));
        assert_eq!(
            end.evidence[9..]
                .iter()
                .map(|probe| rate(&probe.choice))
                .collect::<Vec<_>>(),
            [1.0, 2.0, 3.0]
        );
    }
}

#[test]
fn a_setting_of_which_one_seed_fails_comes_after_those_of_which_none_does() {
    let run = |choice: &SearchTrial| {
        let outcome = if rate(choice) == 5.0 && choice.repeat == 1 {
            Outcome::Diverged
        } else {
            Outcome::Completed
        };
        Probe {
            outcome,
            metric: Some(loss(choice, 5.0)),
            ..completed(choice)
        }
    };
    let end = play(&search(rates(), 4, 2, None), &run);
    assert!(
        chosen_rate(&end).is_some_and(|rate| rate == 4.0 || rate == 6.0),
        "{}",
        end.why
    );
    let repeats: Vec<u64> = end.evidence[..18]
        .iter()
        .map(|probe| probe.choice.repeat)
        .collect();
    assert_eq!(repeats, [[0; 9], [1; 9]].concat(), "in turns");
}

#[test]
fn a_winner_of_short_trials_that_diverges_in_longer_ones_is_not_chosen() {
    let run = |choice: &SearchTrial| {
        let diverges = chosen(choice, "train.steps") > 10;
        Probe {
            outcome: if diverges {
                Outcome::Diverged
            } else {
                Outcome::Completed
            },
            metric: Some(loss(choice, 5.0)),
            ..completed(choice)
        }
    };
    let end = play(&search(rates(), 3, 1, None), &run);
    assert!(
        chosen_rate(&end).is_some_and(|rate| rate == 3.0 || rate == 7.0),
        "{}",
        end.why
    );
    assert!(end.warnings.iter().any(|warning| matches!(
        warning,
        Warning::NotCompleted {
            trials: 3,
            outcome: Outcome::Diverged,
            ..
        }
    )));
    let end = play(&search(rates(), 3, 1, None), &|choice| Probe {
        outcome: Outcome::Oom,
        ..completed(choice)
    });
    assert_eq!((end.chosen, end.cost.trials), (None, 9));
    assert!(matches!(end.warnings[0], Warning::NothingFitted { .. }));
}

#[test]
fn more_is_better_where_the_metric_says_so() {
    let Value::Object(axes) = json!({"train.batch_size": [1, 2, 4], "model.num_layers": [1, 2]})
    else {
        panic!("a map")
    };
    let search = SuccessiveHalving::new(&axes, Metric::SamplesPerSecond, 5, 3, 1, None);
    let run = |choice: &SearchTrial| {
        let metric =
            chosen(choice, "train.batch_size") as f64 / chosen(choice, "model.num_layers") as f64;
        Probe {
            metric: Some(metric),
            ..completed(choice)
        }
    };
    let end = play(&search, &run);
    assert_eq!(
        end.chosen.as_ref().map(|values| spelled(values)),
        Some("train.batch_size = 4, model.num_layers = 1, train.steps = 15".to_owned())
    );
    let highest = Warning::EndOfRange {
        key: "train.batch_size".to_owned(),
        value: "4".to_owned(),
        end: RangeEnd::Highest,
    };
    assert!(
        end.warnings.contains(&highest),
        "two values have no middle, so only the batch: {:?}",
        end.warnings
    );
}

#[test]
fn a_single_setting_is_run_once_per_seed() {
    let end = play(
        &search(json!({"train.batch_size": [4]}), 3, 2, None),
        &|choice| Probe {
            metric: Some(1.0),
            ..completed(choice)
        },
    );
    assert_eq!(
        (end.cost.trials, end.cost.grid_trials, end.chosen.is_some()),
        (2, 2, true)
    );
}

#[test]
fn noise_costs_little_of_the_best() {
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let best = 1.0 + 8.0 * random.fraction();
        let deviation = 0.3 * random.fraction();
        let repeats = 1 + seed % 3;
        let run = |choice: &SearchTrial| {
            let outcome = [Outcome::Completed, Outcome::Completed, Outcome::Diverged]
                [usize::from(rate(choice) == 9.0) * 2];
            Probe {
                outcome,
                metric: Some(loss(choice, best) + deviation * noise(seed, choice)),
                ..completed(choice)
            }
        };
        let end = play(&search(rates(), 2 + seed % 3, repeats, None), &run);
        let chosen = chosen_rate(&end).unwrap();
        let lost = (chosen - best).abs()
            - (1..=8)
                .map(|rate| (f64::from(rate) - best).abs())
                .fold(f64::MAX, f64::min);
        assert!(
            lost <= 5.0 * deviation,
            "seed {seed}: {chosen} for {best}, noise {deviation}"
        );
    }
}

#[test]
fn where_none_has_the_metric_yet_all_that_completed_train_longer() {
    let search = |most: u64| {
        let mut search = search(rates(), 3, 1, Some(most));
        search.metric = Metric::SecondsToTarget;
        search
    };
    // The loss is reached after 60 steps, soonest with a rate of 5.
    let run = |choice: &SearchTrial| Probe {
        metric: (chosen(choice, "train.steps") >= 60).then(|| 1.0 + (rate(choice) - 5.0).abs()),
        outcome: match rate(choice) == 9.0 {
            true => Outcome::Diverged,
            false => Outcome::Completed,
        },
        ..completed(choice)
    };
    let end = play(&search(100), &run);
    assert_eq!(chosen_rate(&end), Some(5.0), "{end:?}");
    let trials = |steps: u64| {
        let probes = end.evidence.iter();
        let of_length = probes.filter(|probe| chosen(&probe.choice, "train.steps") == steps);
        of_length.count()
    };
    assert_eq!([10, 30, 90].map(trials), [9, 8, 8]);
    // Nothing would end a search without a longest trial.
    let mut endless = search(50);
    endless.most_steps = None;
    let ended = play(&endless, &|choice| Probe {
        metric: None,
        ..run(choice)
    });
    assert_eq!((ended.chosen, ended.cost.trials), (None, 9));
    let none = play(&search(50), &run);
    assert_eq!(
        (none.chosen, none.why.as_str()),
        (None, "no setting has a `seconds_to_target` after 50 steps")
    );
    let is_of_memory = |warning: &Warning| matches!(warning, Warning::NothingFitted { .. });
    assert!(
        !none.warnings.iter().any(is_of_memory),
        "{:?}",
        none.warnings
    );
}

#[test]
fn what_noise_may_have_dropped_and_what_saw_more_samples_is_said() {
    let noisy = |scale: f64| {
        play(&search(rates(), 3, 2, None), &|choice| Probe {
            metric: Some(100.0 + loss(choice, 5.0) + scale * noise(3, choice)),
            ..completed(choice)
        })
    };
    let dropped = |end: &Recommendation| {
        end.warnings.iter().find_map(|warning| match warning {
            Warning::DroppedWithinSpread { settings, .. } => Some(*settings),
            _ => None,
        })
    };
    assert!(dropped(&noisy(20.0)).is_some_and(|settings| settings >= 3));
    assert_eq!(dropped(&noisy(1e-6)), None);
    let of = |axes: Value| {
        let end = play(&search(axes, 2, 1, None), &|choice| Probe {
            metric: Some(1.0),
            ..completed(choice)
        });
        let is_of_samples = |warning: &&Warning| matches!(warning, Warning::OtherSamples { .. });
        end.warnings.iter().filter(is_of_samples).count()
    };
    assert_eq!(of(json!({"train.batch_size": [4, 8]})), 1);
    assert_eq!(of(json!({"model.d_model": [4, 8]})), 0);
    assert_eq!(
        of(json!({"train.batch_size": [4], "model.d_model": [4, 8]})),
        0
    );
}
