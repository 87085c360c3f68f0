//! The largest batch size on simulated machines.

use super::*;
use crate::plan::{
    Outcome,
    search::{
        RangeEnd, Recommendation,
        oracle::{Device, chosen, completed, given, play},
    },
};

fn search(from: u64, to: u64, multiple_of: u64) -> LargestBatch {
    LargestBatch {
        sizes: BatchSizes::multiples(from, to, multiple_of),
        at_most: 0.85,
        given: given(),
    }
}

fn size(end: &Recommendation) -> Option<u64> {
    end.chosen.as_ref().and_then(|values| values[0].1.as_u64())
}

#[test]
fn it_is_the_largest_that_fits_on_every_machine() {
    for seed in 0..500 {
        let device = Device::drawn(seed, 5000);
        let multiple_of = [1, 3, 8, 64][seed as usize % 4];
        let search = search(1 + seed % 20, 4096, multiple_of);
        let end = play(&search, &|choice| device.run(choice));
        let sizes: Vec<u64> = (0..search.sizes.count())
            .map(|place| search.sizes.at(place))
            .collect();
        let expected = sizes
            .iter()
            .copied()
            .filter(|size| device.fits(*size, 0.85))
            .max();
        assert_eq!(size(&end), expected, "{device:?}");
        let most = 2.0 * (sizes.len() as f64).log2() + 3.0;
        assert!(
            end.cost.trials as f64 <= most,
            "{} trials of at most {most}",
            end.cost.trials
        );
        assert_eq!(
            end.warnings.contains(&Warning::NothingFitted {
                smallest: format!("batch size {}", sizes[0])
            }),
            expected.is_none()
        );
    }
}

#[test]
fn nothing_fits_is_an_answer_too() {
    let end = play(&search(1, 64, 1), &|choice| Probe {
        outcome: Outcome::Oom,
        ..completed(choice)
    });
    assert_eq!(
        (end.chosen, end.cost.trials, end.cost.grid_trials),
        (None, 1, 1)
    );
    assert_eq!(
        end.warnings,
        [Warning::NothingFitted {
            smallest: "batch size 1".to_owned()
        }]
    );
}

#[test]
fn one_size_alone_and_an_end_that_fits_are_told() {
    let roomy = |choice: &SearchTrial| Probe {
        memory_held_bytes: Some(1),
        memory_limit_bytes: Some(100),
        ..completed(choice)
    };
    let end = play(&search(8, 8, 1), &roomy);
    assert_eq!((size(&end), end.cost.trials), (Some(8), 1));
    let highest = Warning::EndOfRange {
        key: "train.batch_size".to_owned(),
        value: "8".to_owned(),
        end: RangeEnd::Highest,
    };
    assert_eq!(end.warnings, [highest]);
    let end = play(&search(1, 100, 1), &roomy);
    assert_eq!((size(&end), end.cost.grid_trials), (Some(100), 100));
    assert_eq!(
        end.warnings[0],
        Warning::EffectiveBatch {
            was: 8,
            is: 100,
            learning_rate: 1e-3
        }
    );
}

#[test]
fn memory_that_nobody_knows_is_said() {
    let run = |choice: &SearchTrial| {
        let is_large = chosen(choice, "train.batch_size") > 20;
        Probe {
            outcome: if is_large {
                Outcome::Oom
            } else {
                Outcome::Completed
            },
            ..completed(choice)
        }
    };
    let end = play(&search(1, 1000, 4), &run);
    assert_eq!(size(&end), Some(20));
    assert!(end.warnings.contains(&Warning::MemoryUnknown));
    assert!(
        end.why.contains("20 is the largest batch size that ran")
            && end.why.ends_with("24 ran out of memory"),
        "{}",
        end.why
    );
}

#[test]
fn a_larger_one_that_fits_after_a_smaller_one_did_not_is_neither_a_lie_nor_a_loop() {
    // Any combination of answers, by the bits of a number, for each of eight sizes.
    for answers in 0..256_u64 {
        let fits = |size: u64| answers >> (size - 1) & 1 == 1;
        let run = |choice: &SearchTrial| {
            let outcome = if fits(chosen(choice, "train.batch_size")) {
                Outcome::Completed
            } else {
                Outcome::Oom
            };
            Probe {
                outcome,
                ..completed(choice)
            }
        };
        let end = play(&search(1, 8, 1), &run);
        assert!(size(&end).is_none_or(fits));
        assert_eq!(size(&end).is_some(), fits(1));
    }
    let search = search(1, 64, 1);
    let roomy = |size: u64, outcome| Probe {
        outcome,
        ..completed(&SearchTrial::new([("train.batch_size", size)], 0))
    };
    let rows = [
        (1, Outcome::Completed),
        (48, Outcome::Completed),
        (2, Outcome::Oom),
    ]
    .map(|(size, outcome)| roomy(size, outcome));
    let Ask::Done(end) = search.ask(&rows) else {
        panic!("1 and 2 are neighbours")
    };
    assert_eq!(size(&end), Some(48));
    assert!(
        end.warnings.contains(&Warning::NotMonotone {
            fits: 48,
            did_not: 2
        }),
        "{:?}",
        end.warnings
    );
}

#[test]
fn a_failure_is_no_lack_of_memory() {
    let run = |broken: fn(u64) -> bool| {
        move |choice: &SearchTrial| {
            let outcome = if broken(chosen(choice, "train.batch_size")) {
                Outcome::Failed
            } else {
                Outcome::Completed
            };
            Probe {
                outcome,
                ..completed(choice)
            }
        }
    };
    // Some models do not fit with a batch of one.
    assert_eq!(
        size(&play(&search(1, 32, 1), &run(|size| size == 1))),
        Some(32)
    );
    let end = play(&search(1, 32, 1), &run(|_| true));
    assert_eq!((size(&end), end.cost.trials), (None, 2));
    let named = Warning::NotCompleted {
        choice: "train.batch_size = 1".to_owned(),
        outcome: Outcome::Failed,
        reason: None,
        trials: 2,
    };
    assert!(end.warnings.contains(&named), "{:?}", end.warnings);
}

#[test]
fn failures_for_another_reason_than_memory_are_told_with_the_first_reason() {
    let play_all = |outcome: Outcome| {
        play(&search(1, 32, 1), &|choice| Probe {
            outcome,
            reason: Some(format!(
                "bad shape of {}",
                chosen(choice, "train.batch_size")
            )),
            ..completed(choice)
        })
    };
    let failed = play_all(Outcome::Failed);
    let why = "no trial completed, for a reason other than memory";
    assert_eq!((&failed.chosen, failed.why.as_str()), (&None, why));
    let [warning] = &failed.warnings[..] else {
        panic!("{:?}", failed.warnings)
    };
    let told = "the first (train.batch_size = 1) ended as failed: bad shape of 1";
    assert!(warning.to_string().ends_with(told), "{warning}");
    let oom = play_all(Outcome::Oom);
    assert!(oom.why.contains("of the memory"), "{}", oom.why);
}
