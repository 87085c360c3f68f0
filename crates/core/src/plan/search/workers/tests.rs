//! The number of workers on simulated machines.

use super::*;
use crate::plan::{
    Outcome,
    search::{
        RangeEnd, Recommendation,
        oracle::{chosen, completed, noise, play},
    },
};

fn search(most: u64, repeats: u64) -> Workers {
    Workers {
        key: "data.num_workers".to_owned(),
        most,
        wait: 0.02,
        repeats,
        own: 0,
        cores: 16,
        gpus: 1,
    }
}

fn workers(end: &Recommendation) -> Option<u64> {
    end.chosen.as_ref().and_then(|values| values[0].1.as_u64())
}

/// A step takes `train` seconds, a batch `load` seconds of one worker; each worker beyond `cores`
/// takes time from training.
#[derive(Clone, Copy, Debug)]
struct Machine {
    seed: u64,
    train: f64,
    load: f64,
    cores: u64,
    noise: f64,
}

impl Machine {
    fn speed(&self, workers: u64) -> f64 {
        let slowed = self.train * (1.0 + 0.05 * workers.saturating_sub(self.cores) as f64);
        1.0 / if workers == 0 {
            slowed + self.load
        } else {
            slowed.max(self.load / workers.min(self.cores) as f64)
        }
    }

    fn run(&self, choice: &SearchTrial) -> Probe {
        let workers = chosen(choice, "data.num_workers");
        let speed = self.speed(workers);
        let wait = (1.0 - self.train * speed).max(0.0);
        Probe {
            samples_per_second: Some(speed * (1.0 + self.noise * noise(self.seed, choice))),
            data_wait_fraction: Some(wait),
            ..completed(choice)
        }
    }
}

#[test]
fn they_are_as_fast_as_any_and_few() {
    for seed in 0..400 {
        let noise = [0.0, 0.0, 0.005, 0.01][seed as usize % 4];
        let machine = Machine {
            seed,
            train: 1.0,
            load: 0.05 * (1.2_f64).powi(seed as i32 % 45),
            cores: 2 + seed % 15,
            noise,
        };
        let most = [1, 4, 16, 40][seed as usize / 4 % 4];
        let end = play(&search(most, 1 + seed % 3), &|choice| machine.run(choice));
        let own = end
            .alike
            .iter()
            .chain(&end.chosen)
            .map(|values| machine.speed(values[0].1.as_u64().unwrap()))
            .fold(0.0, f64::max);
        let best = (0..=most)
            .map(|workers| machine.speed(workers))
            .fold(0.0, f64::max);
        // A step with too little gain ends the rise, and two such fractions may add up.
        let allowed = 2.0 * WORTH + 3.0 * noise;
        assert!(
            own >= best * (1.0 - allowed),
            "seed {seed}: {own} of {best}\n{machine:?}\n{}",
            end.why
        );
        let grid = (most + 1) * (1 + seed % 3);
        assert!(
            end.cost.trials <= (grid / 4).max(LEAST) && end.cost.trials <= 20,
            "{:?}",
            end.cost
        );
    }
}

#[test]
fn nobody_waits_so_nothing_is_tried() {
    let end = play(&search(16, 2), &|choice| Probe {
        samples_per_second: Some(5.0),
        data_wait_fraction: Some(0.01),
        ..completed(choice)
    });
    assert_eq!((workers(&end), end.cost.trials), (Some(0), 1));
    assert_eq!(
        end.notes,
        [
            "rules of thumb: cores = 16 (not run), cores / 2 = 8 (not run), 4 per GPU = 4 (not run)",
            "the search stopped trying larger values because training hardly waits for data any \
             more, and ended because no other value can be faster by more than noise, as far as \
             the tested ones show",
            "the file's own data.num_workers = 0 is the choice",
        ]
    );
}

#[test]
fn the_fewest_that_end_the_wait_are_found_between_two_powers() {
    let machine = Machine {
        seed: 1,
        train: 1.0,
        load: 4.9,
        cores: 16,
        noise: 0.0,
    };
    let end = play(&search(16, 2), &|choice| machine.run(choice));
    assert_eq!(workers(&end), Some(5), "{}", end.why);
    assert!(
        end.notes[0].contains("4 per GPU = 4 (0.82 per second)"),
        "{:?}",
        end.notes
    );
}

#[test]
fn more_workers_that_are_slower_are_named_and_so_is_the_end_of_the_range() {
    let crowded = Machine {
        seed: 1,
        train: 1.0,
        load: 40.0,
        cores: 4,
        noise: 0.0,
    };
    let run = |choice: &SearchTrial| {
        let taken = chosen(choice, "data.num_workers").saturating_sub(4) as f64 * 0.02;
        Probe {
            samples_per_second: Some(
                crowded.speed(chosen(choice, "data.num_workers")) * (1.0 - taken),
            ),
            ..crowded.run(choice)
        }
    };
    let end = play(&search(32, 2), &run);
    assert_eq!(workers(&end), Some(4), "{}", end.why);
    assert!(
        end.warnings.iter().any(|warning| matches!(
            warning,
            Warning::MoreWorkersSlower {
                workers: 5..,
                chosen: 4,
                ..
            }
        )),
        "{:?}",
        end.warnings
    );
    let starved = Machine {
        seed: 1,
        train: 1.0,
        load: 100.0,
        cores: 64,
        noise: 0.0,
    };
    let end = play(&search(6, 2), &|choice| starved.run(choice));
    assert_eq!(workers(&end), Some(6));
    let highest = Warning::EndOfRange {
        key: "data.num_workers".to_owned(),
        value: "6".to_owned(),
        end: RangeEnd::Highest,
    };
    assert!(end.warnings.contains(&highest), "{:?}", end.warnings);
}

#[test]
fn a_first_trial_with_a_cold_cache_is_not_averaged_in() {
    // Equally fast with any number, and always some wait; but the first trial reads from the disk.
    let run = |choice: &SearchTrial| {
        let is_cold = chosen(choice, "data.num_workers") == 0 && choice.repeat == 0;
        Probe {
            samples_per_second: Some(if is_cold { 50.0 } else { 100.0 }),
            data_wait_fraction: Some(if is_cold { 0.6 } else { 0.1 }),
            ..completed(choice)
        }
    };
    let end = play(&search(16, 3), &run);
    assert_eq!(workers(&end), Some(0), "{}", end.why);
    assert!(
        end.why.contains(": 100 per second ")
            && end
                .why
                .ends_with("training waited for data 10.0 % of the time"),
        "{}",
        end.why
    );
    assert!(
        end.notes
            .iter()
            .any(|note| note.contains("with 0 workers, also filled the page cache")),
        "{:?}",
        end.notes
    );
    assert_eq!(
        end.evidence[0].samples_per_second,
        Some(50.0),
        "it is kept as evidence"
    );
}

#[test]
fn numbers_that_are_equally_fast_cannot_be_told_apart_and_one_of_the_fastest_is_proposed() {
    let mut unsure = 0;
    for seed in 0..20 {
        let run = |choice: &SearchTrial| Probe {
            samples_per_second: Some(100.0 * (1.0 + 0.05 * noise(seed, choice))),
            data_wait_fraction: Some(0.3),
            ..completed(choice)
        };
        let end = play(&search(16, 3), &run);
        assert!(end.cost.trials <= 12, "{:?}", end.cost);
        if end.alike.is_empty() {
            continue;
        }
        unsure += 1;
        assert!(
            end.alike.contains(end.chosen.as_ref().unwrap())
                && end.why.contains(" workers cannot be told apart: "),
            "{}",
            end.why
        );
    }
    assert!(unsure >= 10, "{unsure} of 20");
}

#[test]
fn little_wait_shows_that_more_bring_nothing() {
    // Five workers remove the wait, and the speed varies by far more than 3 %.
    for seed in 0..20 {
        let machine = Machine {
            seed,
            train: 1.0,
            load: 0.9,
            cores: 16,
            noise: 0.05,
        };
        let end = play(&search(16, 3), &|choice| machine.run(choice));
        assert!(
            end.evidence
                .iter()
                .all(|probe| chosen(&probe.choice, "data.num_workers") <= 2),
            "{end:?}"
        );
        assert!(
            workers(&end).is_some_and(|workers| workers <= 1),
            "{}",
            end.why
        );
    }
}

#[test]
fn what_fails_is_not_chosen() {
    let end = play(&search(8, 2), &|choice| Probe {
        outcome: Outcome::Failed,
        ..completed(choice)
    });
    assert_eq!(end.chosen, None);
    let machine = Machine {
        seed: 1,
        train: 1.0,
        load: 20.0,
        cores: 16,
        noise: 0.0,
    };
    let run = |choice: &SearchTrial| {
        let outcome = if chosen(choice, "data.num_workers") > 4 {
            Outcome::Oom
        } else {
            Outcome::Completed
        };
        Probe {
            outcome,
            ..machine.run(choice)
        }
    };
    assert_eq!(workers(&play(&search(16, 2), &run)), Some(4));
    let second_fails = |choice: &SearchTrial| {
        let fails = choice.repeat == 1 && chosen(choice, "data.num_workers") == 16;
        Probe {
            outcome: if fails {
                Outcome::Oom
            } else {
                Outcome::Completed
            },
            ..machine.run(choice)
        }
    };
    assert!(workers(&play(&search(16, 2), &second_fails)).is_some_and(|workers| workers < 16));
    let nan = play(&search(8, 1), &|choice| Probe {
        samples_per_second: Some(f64::NAN),
        data_wait_fraction: Some(f64::NAN),
        ..completed(choice)
    });
    assert_eq!(nan.chosen, None);
}
