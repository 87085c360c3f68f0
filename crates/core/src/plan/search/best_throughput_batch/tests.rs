//! The fastest batch size on simulated machines.

use super::*;
use crate::plan::{
    Outcome,
    search::{
        RangeEnd, Recommendation,
        oracle::{Curve, Device, chosen, completed, given, play},
    },
};
use crate::statistics::MeasuredNoise;

fn search(from: u64, to: u64, multiple_of: u64, repeats: u64) -> BestThroughputBatch {
    BestThroughputBatch {
        sizes: BatchSizes::multiples(from, to, multiple_of),
        at_most: 0.85,
        kept: None,
        repeats,
        noise: None,
        given: given(),
    }
}

fn size(end: &Recommendation) -> Option<u64> {
    end.chosen.as_ref().and_then(|values| values[0].1.as_u64())
}

fn sizes(search: &BestThroughputBatch) -> impl Iterator<Item = u64> {
    (0..search.sizes.count()).map(|place| search.sizes.at(place))
}

/// Fraction by which the best size that a search names is slower than the true best. Named sizes:
/// its choice, those it cannot tell apart, and those it reports as not run.
fn lost(end: &Recommendation, search: &BestThroughputBatch, device: &Device) -> f64 {
    let gaps: Vec<(u64, u64)> = end
        .warnings
        .iter()
        .flat_map(|warning| match warning {
            Warning::NotRunBetween { gaps } => gaps.clone(),
            _ => Vec::new(),
        })
        .collect();
    let chosen: Vec<u64> = end
        .alike
        .iter()
        .chain(&end.chosen)
        .map(|values| values[0].1.as_u64().unwrap())
        .collect();
    let fits = |size: &u64| device.fits(*size, 0.85);
    let is_named = |size: &u64| {
        chosen.contains(size)
            || gaps
                .iter()
                .any(|(low, high)| (low + 1..*high).contains(size))
    };
    let best_of = |sizes: &mut dyn Iterator<Item = u64>| {
        sizes.map(|size| device.curve.at(size)).fold(0.0, f64::max)
    };
    1.0 - best_of(&mut sizes(search).filter(fits).filter(is_named))
        / best_of(&mut sizes(search).filter(fits))
}

/// A machine without a relevant limit.
fn roomy(curve: Curve, noise: f64) -> Device {
    Device {
        seed: 7,
        curve,
        noise,
        limit: 1 << 50,
        fixed: 0,
        each: 1,
    }
}

#[test]
fn it_is_within_the_noise_of_the_fastest_on_every_machine_and_takes_a_quarter_of_the_grid() {
    let (mut worst, mut large, mut sure) = (0.0_f64, 0, 0);
    for seed in 0..400 {
        let device = Device::drawn(seed, 3000);
        let (multiple_of, to) = (
            [1, 4, 8, 32][seed as usize % 4],
            [64, 256, 1024, 4096][seed as usize / 4 % 4],
        );
        let search = search(1, to, multiple_of, 1 + seed % 3);
        let end = play(&search, &|choice| device.run(choice));
        let Some(size) = size(&end) else {
            assert!(
                sizes(&search).all(|size| !device.fits(size, 0.85)),
                "{device:?}: {end:?}"
            );
            continue;
        };
        assert!(device.fits(size, 0.85));
        let lost = lost(&end, &search, &device);
        let allowed = WORTH + 3.0 * device.noise + 0.01;
        assert!(
            lost <= allowed,
            "seed {seed}: {size} is {lost} slower than the best\n{device:?}\n\
             {search:?}\n{}",
            end.why
        );
        worst = worst.max(lost);
        let grid = search.sizes.count() as u64;
        if grid >= SMALL_GRID as u64 {
            assert!(
                end.cost.trials * 4 <= grid * search.repeats,
                "{} trials of {grid} sizes",
                end.cost.trials
            );
        }
        large += u64::from(grid >= SMALL_GRID as u64);
        sure += u64::from(end.alike.is_empty());
        assert!(end.cost.trials <= 30, "{} trials", end.cost.trials);
    }
    assert!(
        large > 100 && worst > 0.0 && sure > 200,
        "{large} {worst} {sure}"
    );
}

#[test]
fn sizes_that_are_equally_fast_cannot_be_told_apart_and_one_of_the_fastest_is_proposed() {
    let mut unsure = 0;
    for seed in 0..20 {
        let device = Device {
            seed,
            ..roomy(Curve::Plateau(1.0), 0.05)
        };
        let end = play(&search(8, 192, 8, 3), &|choice| device.run(choice));
        if end.alike.is_empty() {
            continue;
        }
        unsure += 1;
        assert!(
            end.alike.len() > 1 && end.alike.contains(end.chosen.as_ref().unwrap()),
            "{:?}",
            end.alike
        );
        assert!(
            end.why.contains(&format!(
                "; {} is the smallest within 3 % of the fastest of them",
                size(&end).unwrap()
            )),
            "{}",
            end.why
        );
        assert!(
            end.why.contains(" cannot be told apart: ")
                && end.warnings.contains(&Warning::CannotTell),
            "{}",
            end.why
        );
        let named = listed(end.alike.iter().map(|values| values[0].1.as_u64().unwrap()));
        assert!(
            end.why.starts_with(&format!("batch sizes {named} cannot")),
            "{}",
            end.why
        );
    }
    assert!(unsure >= 10, "{unsure} of 20");
}

#[test]
fn the_smallest_is_not_proposed_where_it_was_much_slower_if_not_surely() {
    let (mut unsure, mut smallest) = (0, 0);
    for seed in 0..40 {
        let device = Device {
            seed,
            ..roomy(Curve::Saturating(4.0), 0.10)
        };
        let end = play(&search(8, 192, 8, 3), &|choice| device.run(choice));
        let Some(first) = end.alike.first().and_then(|values| values[0].1.as_u64()) else {
            continue;
        };
        unsure += 1;
        smallest += u64::from(size(&end) == Some(first));
        let speed = |size: u64| {
            let own = end
                .evidence
                .iter()
                .filter(|probe| chosen(&probe.choice, "train.batch_size") == size)
                .filter_map(Probe::speed);
            own.fold(0.0, f64::max)
        };
        let fastest = end
            .alike
            .iter()
            .map(|values| speed(values[0].1.as_u64().unwrap()))
            .fold(0.0, f64::max);
        assert!(speed(size(&end).unwrap()) > 0.75 * fastest, "{}", end.why);
    }
    assert!(unsure >= 20 && smallest < unsure, "{smallest} of {unsure}");
}

#[test]
fn a_size_that_is_the_best_is_found_and_said_to_be() {
    for seed in 0..20 {
        let device = Device {
            seed,
            ..roomy(
                Curve::Bell {
                    peak: 64.0,
                    width: 0.7,
                },
                0.005,
            )
        };
        let end = play(&search(8, 192, 8, 3), &|choice| device.run(choice));
        assert!(
            size(&end).is_some_and(|size| (56..=72).contains(&size)),
            "{}",
            end.why
        );
        assert!(
            end.alike.is_empty() && end.cost.trials <= 18,
            "{:?}",
            end.cost
        );
    }
    let end = play(&search(8, 192, 8, 3), &|choice| {
        roomy(
            Curve::Bell {
                peak: 64.0,
                width: 0.7,
            },
            0.0,
        )
        .run(choice)
    });
    assert!(
        end.why.starts_with("batch size 64 is the fastest of the ")
            && end.why.contains(" that were run: 10.0 k samples/s over "),
        "{}",
        end.why
    );
}

#[test]
fn not_slower_is_said_with_an_interval_that_ends_above_what_counts() {
    let mut said = 0;
    for seed in 0..300 {
        let device = Device {
            noise: 0.01,
            ..Device::drawn(seed, 1000)
        };
        let end = play(&search(8, 192, 8, 3), &|choice| device.run(choice));
        let Some((_, rest)) = end.why.split_once(" is not slower than ") else {
            continue;
        };
        let low = rest
            .split_once("95 %: ")
            .and_then(|(_, rest)| rest.split_once(" to "))
            .map(|(low, _)| low.parse::<f64>().unwrap());
        assert!(low.is_some_and(|low| low >= 0.970), "{}", end.why);
        said += 1;
    }
    assert!(said > 10, "{said}");
}

#[test]
fn a_larger_size_that_was_not_run_is_not_spoken_of() {
    // No gain for long, so the rise ends before 4096.
    let device = roomy(
        Curve::Dropping {
            half: 1.0,
            from: 8.0,
            power: 2.0,
        },
        0.0,
    );
    let end = play(&search(1, 4096, 1, 3), &|choice| device.run(choice));
    let run: Vec<u64> = end
        .evidence
        .iter()
        .map(|probe| chosen(&probe.choice, "train.batch_size"))
        .collect();
    let largest = run.iter().max().unwrap();
    assert!(
        *largest < 4096
            && end
                .why
                .contains(&format!("; the largest that was run, {largest}, is ")),
        "{}",
        end.why
    );
}

#[test]
fn a_search_that_an_older_version_began_goes_on() {
    let device = roomy(Curve::Saturating(30.0), 0.02);
    let search = search(8, 192, 8, 2);
    let old = [
        (8, 0),
        (16, 0),
        (32, 0),
        (64, 0),
        (128, 0),
        (192, 0),
        (160, 0),
        (176, 0),
        (192, 1),
        (176, 1),
    ];
    for length in 0..=old.len() {
        let begun = old[..length].iter().map(|(size, repeat)| {
            device.run(&SearchTrial::new(
                [("train.batch_size", *size as u64)],
                *repeat,
            ))
        });
        let mut probes: Vec<Probe> = begun.collect();
        while let Ask::Run(choices) = search.ask(&probes) {
            probes.extend(choices.iter().map(|choice| device.run(choice)));
            assert!(probes.len() < 40);
        }
    }
}

#[test]
fn the_largest_is_not_taken_where_it_is_slower() {
    // From milabench, regnet_y_128gf on one H100: 232.8 samples/s at 80, 178.0 at 136.
    let device = roomy(
        Curve::Dropping {
            half: 8.0,
            from: 160.0,
            power: 2.0,
        },
        0.005,
    );
    let end = play(&search(8, 256, 8, 2), &|choice| device.run(choice));
    let size = size(&end).unwrap();
    assert!((32..=80).contains(&size), "{size}: {}", end.why);
    assert!(
        end.why.contains("; the largest that was run, 256, is ")
            && end.why.contains(" slower (95 %: "),
        "{}",
        end.why
    );
    assert!(
        end.cost.trials <= 16 && end.cost.grid_trials == 64,
        "{:?}",
        end.cost
    );
}

#[test]
fn of_a_plateau_the_smallest_that_was_tried_is_chosen() {
    let device = roomy(Curve::Plateau(32.0), 0.0);
    let end = play(&search(1, 1 << 16, 1, 2), &|choice| device.run(choice));
    assert_eq!(size(&end), Some(32), "{}", end.why);
    assert!(
        end.cost.trials <= 21,
        "no faster for long, so the rise ends: {:?}",
        end.cost
    );
}

#[test]
fn memory_ends_the_rise_and_stands_in_the_reason() {
    let device = Device {
        limit: 100,
        ..roomy(Curve::Saturating(1e4), 0.0)
    };
    let end = play(&search(1, 4096, 1, 1), &|choice| device.run(choice));
    let size = size(&end).unwrap();
    assert!((80..=85).contains(&size), "{size}");
    assert!(
        end.why.contains("ran out of memory") || end.why.contains("held more than its share"),
        "{}",
        end.why
    );
    assert!(end.warnings.contains(&Warning::OneRunEach));
    let all_oom = play(&search(1, 4096, 1, 2), &|choice| Probe {
        outcome: Outcome::Oom,
        ..completed(choice)
    });
    assert_eq!((all_oom.chosen, all_oom.cost.trials), (None, 2));
    assert_eq!(
        all_oom.notes,
        ["the file's own train.batch_size = 8 was run too: oom"]
    );
}

#[test]
fn sizes_whose_trials_were_too_short_to_be_measured_end_no_rise_and_are_told() {
    let device = roomy(Curve::Saturating(8.0), 0.0);
    let short = |choice: &SearchTrial| {
        let mut probe = device.run(choice);
        if chosen(choice, "train.batch_size") < 16 {
            probe.samples_per_second = None;
        }
        probe
    };
    let end = play(&search(1, 64, 1, 1), &short);
    assert!(size(&end) >= Some(16), "{}", end.why);
    assert!(end.why.contains("that were measured"), "{}", end.why);
    assert!(
        end.notes
            .iter()
            .any(|note| note.contains("as far as the measured ones show")),
        "{:?}",
        end.notes
    );
}

#[test]
fn a_number_that_is_none_is_not_chosen() {
    for speed in [None, Some(f64::NAN), Some(f64::INFINITY), Some(0.0)] {
        let end = play(&search(1, 64, 1, 2), &|choice| Probe {
            samples_per_second: speed,
            ..completed(choice)
        });
        assert_eq!(end.chosen, None);
        assert!(end.cost.trials <= MOST_UNMEASURED as u64 + 1, "{end:?}");
        let is_of_memory = |warning: &Warning| matches!(warning, Warning::NothingFitted { .. });
        assert!(!end.warnings.iter().any(is_of_memory), "{:?}", end.warnings);
        assert!(
            end.warnings
                .iter()
                .any(|warning| matches!(warning, Warning::NoNumber { .. })),
            "{:?}",
            end.warnings
        );
    }
    let device = roomy(Curve::Saturating(8.0), 0.0);
    let every_other = |choice: &SearchTrial| {
        let is_nan = chosen(choice, "train.batch_size") == 16;
        Probe {
            samples_per_second: device.run(choice).samples_per_second.filter(|_| !is_nan),
            ..device.run(choice)
        }
    };
    let end = play(&search(1, 32, 1, 2), &every_other);
    assert!(
        size(&end).is_some_and(|size| size != 16 && size >= 20),
        "{}",
        end.why
    );
}

#[test]
fn a_contender_that_fails_once_is_out() {
    let device = roomy(
        Curve::Bell {
            peak: 16.0,
            width: 1.0,
        },
        0.0,
    );
    let run = |choice: &SearchTrial| {
        let fails = choice.repeat == 1 && chosen(choice, "train.batch_size") == 16;
        Probe {
            outcome: if fails {
                Outcome::Oom
            } else {
                Outcome::Completed
            },
            ..device.run(choice)
        }
    };
    let end = play(&search(1, 64, 1, 2), &run);
    assert!(
        size(&end).is_some_and(|size| size != 16 && (10..=25).contains(&size)),
        "{}",
        end.why
    );
}

#[test]
fn the_effective_batch_is_kept_by_divisors_alone() {
    let given = SearchContext {
        batch_size: 12,
        grad_accumulation: 8,
        ..given()
    };
    let search = BestThroughputBatch {
        sizes: BatchSizes::divisors(96, 2, 64, 1),
        at_most: 0.85,
        kept: Some(96),
        repeats: 2,
        noise: None,
        given,
    };
    let device = roomy(
        Curve::Bell {
            peak: 20.0,
            width: 1.0,
        },
        0.0,
    );
    let end = play(&search, &|choice| {
        assert_eq!(
            chosen(choice, "train.batch_size") * chosen(choice, "train.grad_accumulation"),
            96
        );
        device.run(choice)
    });
    assert_eq!(size(&end), Some(16), "{}", end.why);
    assert!(
        end.why
            .starts_with("batch size 16 is not slower than 24, the fastest of the "),
        "less than 1 % apart: {}",
        end.why
    );
    assert!(
        !end.warnings
            .iter()
            .any(|warning| matches!(warning, Warning::EffectiveBatch { .. }))
    );
}

#[test]
fn a_quarter_of_the_grid_is_enough_for_far_apart_divisors_too() {
    for (effective, repeats) in [
        (3 << 18, 1),
        (360, 1),
        (5040, 1),
        (3 << 18, 2),
        (720_720, 3),
    ] {
        let sizes = BatchSizes::divisors(effective, 1, 1 << 20, 1);
        let count = sizes.count() as u64;
        assert!(count >= SMALL_GRID as u64);
        let search = BestThroughputBatch {
            sizes,
            at_most: 0.85,
            kept: Some(effective),
            repeats,
            noise: None,
            given: given(),
        };
        let device = roomy(Curve::Saturating(1e3), 0.0);
        let end = play(&search, &|choice| device.run(choice));
        // Beside that of the file's own size.
        assert!(
            (end.cost.trials - 1) * 4 <= count * repeats,
            "{} trials of {count} sizes",
            end.cost.trials
        );
        assert!(end.chosen.is_some());
    }
}

#[test]
fn the_end_of_the_range_is_named_and_one_run_each_too() {
    let clear = roomy(Curve::Saturating(30.0), 0.0);
    let end = play(&search(1, 64, 1, 2), &|choice| clear.run(choice));
    assert!(
        end.alike.is_empty() && !end.warnings.contains(&Warning::OneRunEach),
        "{:?}",
        end.warnings
    );
    let highest = Warning::EndOfRange {
        key: "train.batch_size".to_owned(),
        value: "64".to_owned(),
        end: RangeEnd::Highest,
    };
    assert!(end.warnings.contains(&highest), "{:?}", end.warnings);
    let end = play(&search(1, 64, 1, 1), &|choice| clear.run(choice));
    assert!(
        end.warnings.contains(&Warning::OneRunEach)
            && end.evidence.iter().all(|probe| probe.choice.repeat == 0),
        "{:?}",
        end.warnings
    );
}

#[test]
fn one_size_alone_is_run_as_often_as_it_is_asked_for() {
    let device = roomy(Curve::Plateau(1.0), 0.01);
    let end = play(&search(8, 8, 1, 3), &|choice| device.run(choice));
    assert_eq!(
        (size(&end), end.cost.trials, end.cost.grid_trials),
        (Some(8), 3, 3)
    );
}

#[test]
fn tokens_count_where_there_are_some_and_disturbed_trials_are_named() {
    // The more samples per second, the fewer tokens.
    let run = |choice: &SearchTrial| {
        let size = chosen(choice, "train.batch_size") as f64;
        Probe {
            samples_per_second: Some(size),
            tokens_per_second: Some(1e6 / size),
            is_disturbed: size == 2.0,
            ..completed(choice)
        }
    };
    let end = play(&search(1, 16, 1, 1), &run);
    assert_eq!(size(&end), Some(1));
    assert!(end.why.contains("1.0 M tokens/s"), "{}", end.why);
    assert!(end.warnings.contains(&Warning::Disturbed { trials: 1 }));
}

#[test]
fn a_size_that_the_rise_stepped_over_is_looked_for_away_from_the_fastest_too() {
    // Up to 48 the speed rises, from 56 on memory thrashes, from 128 on it is a little faster than
    // at 32: the fastest lies in a gap that the fastest size of the rise does not end.
    let speed = |size: u64| match size {
        ..=48 => size as f64 / (size as f64 + 100.0),
        49..128 => 0.12,
        _ => 0.27,
    };
    for seed in 0..20 {
        let run = |choice: &SearchTrial| {
            let own = speed(chosen(choice, "train.batch_size"))
                * (1.0 + 0.005 * crate::plan::search::oracle::noise(seed, choice));
            Probe {
                samples_per_second: Some(own),
                ..completed(choice)
            }
        };
        let end = play(&search(8, 192, 8, 3), &run);
        assert_eq!(size(&end), Some(48), "{}", end.why);
    }
}

#[test]
fn until_a_loss_a_size_is_ranked_by_its_speed_over_the_samples_that_it_needs() {
    let until_target = |to: u64| BestThroughputBatch {
        given: SearchContext {
            is_until_target: true,
            ..given()
        },
        ..search(1, to, 1, 2)
    };
    let device = roomy(Curve::Saturating(32.0), 0.0);
    let end = play(&until_target(512), &|choice| Probe {
        noise: Some(MeasuredNoise {
            scale: 64.0,
            low: 50.0,
            high: 80.0,
            step: 40,
            loss: 2.5,
        }),
        ..device.run(choice)
    });
    // b / (b + 32) / (1 + b / 64) is largest at the root of 32 × 64, 45.
    assert!(
        size(&end).is_some_and(|size| (32..=64).contains(&size)),
        "{}",
        end.why
    );
    assert!(end.why.contains("useful samples/s"), "{}", end.why);
    let told =
        |end: &Recommendation, words: &str| end.notes.iter().any(|note| note.contains(words));
    assert!(
        told(
            &end,
            "N is 64.0 samples (95 % interval 50.0 to 80.0, at step 40"
        ) && told(&end, "the interval"),
        "{:?}",
        end.notes
    );
    let without = play(&until_target(512), &|choice| device.run(choice));
    assert!(size(&without) > Some(128), "{}", without.why);
    assert!(
        told(&without, "no trial measured a gradient noise scale"),
        "{:?}",
        without.notes
    );
    let plain = play(&search(1, 512, 1, 2), &|choice| device.run(choice));
    assert!(!told(&plain, "noise scale") && size(&plain) == size(&without));
}
