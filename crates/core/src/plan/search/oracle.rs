//! For tests: simulated machines, and a driver that runs a search to its end and resumes it after a
//! kill at every moment.

use super::{Ask, Probe, Recommendation, SearchTrial, Strategy};
use crate::{
    kinds::random::{SplitMix64, mix},
    plan::Outcome,
};

/// Upper bound of trials for all searches of these tests.
const ENDLESS: usize = 2000;

/// A completed trial without any measured number.
pub(super) fn completed(choice: &SearchTrial) -> Probe {
    Probe {
        seconds: Some(1.0),
        ..Probe::that_showed_nothing(choice.clone(), Outcome::Completed)
    }
}

/// A number from a standard normal distribution, the same for the same seed and choice.
pub(super) fn noise(seed: u64, choice: &SearchTrial) -> f64 {
    let text = format!("{choice:?}");
    let mut random = SplitMix64::new(
        text.bytes()
            .fold(mix(seed), |hash, byte| mix(hash ^ u64::from(byte))),
    );
    (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0
}

/// The integer value of a key in a choice.
pub(super) fn chosen(choice: &SearchTrial, key: &str) -> u64 {
    choice
        .values
        .iter()
        .find(|(known, _)| known == key)
        .and_then(|(_, value)| value.as_u64())
        .unwrap()
}

/// Runs a search to its end and checks the guarantees of every search.
pub(super) fn play(strategy: &dyn Strategy, run: &dyn Fn(&SearchTrial) -> Probe) -> Recommendation {
    let mut probes: Vec<Probe> = Vec::new();
    let end = loop {
        assert!(probes.len() < ENDLESS, "no end in sight");
        match strategy.ask(&probes) {
            Ask::Done(end) => break *end,
            Ask::Run(choices) => {
                assert!(!choices.is_empty());
                for choice in choices {
                    assert!(
                        probes.iter().all(|probe| probe.choice != choice),
                        "{choice:?} has been run"
                    );
                    assert_eq!(
                        choice
                            .values
                            .iter()
                            .map(|(key, _)| key.clone())
                            .collect::<Vec<_>>(),
                        strategy.keys()
                    );
                    probes.push(run(&choice));
                }
            }
        }
    };
    holds(&end, &probes);
    for length in 0..probes.len() {
        let Ask::Run(choices) = strategy.ask(&probes[..length]) else {
            panic!("it ended early")
        };
        assert_eq!(choices[0], probes[length].choice, "after {length} probes");
    }
    let again = strategy.ask(&probes);
    assert_eq!(
        format!("{again:?}"),
        format!("{:?}", Ask::Done(Box::new(end.clone())))
    );
    interrupted(strategy, run, &end);
    end
}

/// Checks that the chosen values ran and completed, and that all probes are in the evidence.
fn holds(end: &Recommendation, probes: &[Probe]) {
    // Compared as text: a number may be NaN, which is not equal to itself.
    assert!(
        format!("{:?}", end.evidence) == format!("{probes:?}"),
        "the evidence is not what was seen"
    );
    assert_eq!(
        (end.cost.trials, end.cost.seconds),
        (
            probes.len() as u64,
            probes.iter().filter_map(|probe| probe.seconds).sum::<f64>()
        )
    );
    assert!(!end.why.is_empty());
    if let Some(values) = &end.chosen {
        assert!(
            probes
                .iter()
                .any(|probe| probe.choice.values == *values && probe.outcome == Outcome::Completed),
            "{values:?} was not run"
        );
    }
}

/// Runs the same search with every second trial killed first; each is requested again.
fn interrupted(strategy: &dyn Strategy, run: &dyn Fn(&SearchTrial) -> Probe, end: &Recommendation) {
    let mut probes: Vec<Probe> = Vec::new();
    while let Ask::Run(choices) = strategy.ask(&probes) {
        assert!(probes.len() < 2 * ENDLESS, "no end in sight");
        let is_new = probes.iter().all(|probe| probe.choice != choices[0]);
        let whole = run(&choices[0]);
        let killed = is_new && probes.len().is_multiple_of(2);
        probes.push(if killed {
            Probe {
                outcome: Outcome::Killed,
                samples_per_second: None,
                metric: None,
                ..whole
            }
        } else {
            whole
        });
    }
    let Ask::Done(again) = strategy.ask(&probes) else {
        panic!("it was done")
    };
    assert_eq!(
        (&again.chosen, &again.why, &again.warnings),
        (&end.chosen, &end.why, &end.warnings)
    );
}

/// Speed of a machine as a function of batch size.
#[derive(Clone, Copy, Debug)]
pub(super) enum Curve {
    /// Rises towards a limit; this size reaches half of it.
    Saturating(f64),
    /// The same, but falls beyond a size.
    Dropping { half: f64, from: f64, power: f64 },
    /// A bell over the logarithm of the size.
    Bell { peak: f64, width: f64 },
    /// Rises up to a size and then stays constant.
    Plateau(f64),
}

impl Curve {
    pub(super) fn at(self, size: u64) -> f64 {
        let size = size as f64;
        1e4 * match self {
            Self::Saturating(half) => size / (size + half),
            Self::Dropping { half, from, power } => {
                size / (size + half) / (1.0 + (size / from).powf(power))
            }
            Self::Bell { peak, width } => {
                (-(size / peak).ln().powi(2) / (2.0 * width * width)).exp()
            }
            Self::Plateau(full) => (size / full).min(1.0),
        }
    }
}

/// A device with this many bytes of memory; a batch uses memory in proportion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub(super) seed: u64,
    pub(super) curve: Curve,
    /// Standard deviation of a speed, as a fraction.
    pub(super) noise: f64,
    pub(super) limit: u64,
    pub(super) fixed: u64,
    pub(super) each: u64,
}

impl Device {
    /// A random machine from a seed; with a memory limit somewhere up to `most` examples, or
    /// beyond.
    pub(super) fn drawn(seed: u64, most: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let size = |random: &mut SplitMix64| (random.fraction() * (most as f64).ln()).exp();
        let curve = match random.below(4) {
            0 => Curve::Saturating(size(&mut random)),
            1 => Curve::Dropping {
                half: size(&mut random),
                from: size(&mut random) * 2.0,
                power: 1.0 + 2.0 * random.fraction(),
            },
            2 => Curve::Bell {
                peak: size(&mut random),
                width: 0.7 + random.fraction(),
            },
            _ => Curve::Plateau(size(&mut random)),
        };
        let noise = [0.0, 0.005, 0.01, 0.02][random.below(4) as usize];
        let each = 1000;
        let holds = (size(&mut random) * 1.5) as u64;
        Self {
            seed,
            curve,
            noise,
            limit: 50_000 + holds * each,
            fixed: 50_000,
            each,
        }
    }

    pub(super) fn held(&self, size: u64) -> u64 {
        self.fixed + size * self.each
    }

    pub(super) fn fits(&self, size: u64, at_most: f64) -> bool {
        self.held(size) as f64 <= self.limit as f64 * at_most
    }

    pub(super) fn run(&self, choice: &SearchTrial) -> Probe {
        let size = chosen(choice, "train.batch_size");
        let held = self.held(size);
        if held > self.limit {
            return Probe {
                outcome: Outcome::Oom,
                memory_limit_bytes: Some(self.limit),
                ..completed(choice)
            };
        }
        let speed = self.curve.at(size) * (1.0 + self.noise * noise(self.seed, choice));
        Probe {
            samples_per_second: Some(speed),
            memory_held_bytes: Some(held),
            memory_limit_bytes: Some(self.limit),
            seconds: Some(size as f64),
            ..completed(choice)
        }
    }
}

/// Settings of a file with batch size 8 on 16 cores and one GPU.
pub(super) fn given() -> super::SearchContext {
    super::SearchContext {
        keys: Default::default(),
        batch_size: 8,
        grad_accumulation: 1,
        num_workers: 0,
        devices_per_trial: 1,
        learning_rate: Some(1e-3),
        steps: None,
        cores: 16,
        gpus: 1,
        is_until_target: false,
    }
}
