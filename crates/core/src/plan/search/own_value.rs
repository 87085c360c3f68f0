//! The file's own value of the searched keys: it runs at least once in every search, so that the
//! answer says what the choice gains. A race runs it as one of its values, other searches at the end.

use serde_json::Value;

use super::{
    Ask, OwnPlace, Probe, Recommendation, SearchTrial, Strategy, Warning, describe_values,
    race::{Race, RaceEnd, Values},
    seen::Probes,
    spelled,
};
use crate::{
    plan::Outcome,
    statistics::{Estimate, WORTH, middle},
    units::{Fraction, decimals},
};

/// A search, after which the file's own value runs once unless the search has run it.
pub(super) struct WithOwnValue {
    pub(super) search: Box<dyn Strategy>,
    pub(super) own: SearchTrial,
}

impl Strategy for WithOwnValue {
    fn keys(&self) -> Vec<String> {
        self.search.keys()
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        let mut found = match self.search.ask(probes) {
            Ask::Run(choices) => return Ask::Run(choices),
            Ask::Done(found) => found,
        };
        match Probes::new(probes).one(self.own.clone()) {
            Err(missing) => Ask::Run(missing),
            Ok(probe) => {
                let is_outside = self.search.place_of_own() == OwnPlace::Outside;
                let aside = match is_outside {
                    true => ", which is not among the values of this search,",
                    false => "",
                };
                let own_speed = self.own_speed(&found, probe);
                let note = own_speed.note(aside);
                let is_faster = is_outside && self.is_faster(&found, probe);
                found.notes.push(note);
                found
                    .warnings
                    .extend(is_faster.then(|| Warning::OwnValueFaster {
                        own: spelled(&self.own.values),
                    }));
                Ask::Done(found)
            }
        }
    }
}

impl WithOwnValue {
    /// Whether the search would rank the own value above its choice, if its range contained it.
    fn is_faster(&self, found: &Recommendation, own: &Probe) -> bool {
        let ranked = |probe: &Probe| self.search.ranked_speed(probe);
        let both = ranked(own).zip(of_choice(found, ranked));
        both.is_some_and(|(own, chosen)| own > chosen * (1.0 + WORTH))
    }

    fn own_speed<'a>(&'a self, found: &'a Recommendation, own: &'a Probe) -> OwnSpeed<'a> {
        let speed = |probe: &Probe| probe.speed().filter(|_| probe.completed());
        OwnSpeed {
            own,
            chosen: found.chosen.as_deref(),
            speed: speed(own),
            of_choice: of_choice(found, speed),
            estimate: None,
            unit: own.unit(),
        }
    }
}

/// The mean of a speed over the trials of the choice; `None` without any.
fn of_choice(found: &Recommendation, speed: impl Fn(&Probe) -> Option<f64>) -> Option<f64> {
    let trials = found.evidence.iter();
    let chosen = trials.filter(|probe| found.chosen.as_ref() == Some(&probe.choice.values));
    middle(&chosen.filter_map(speed).collect::<Vec<f64>>())
}

/// A note on the file's own value `own`, which a race has run as one of its values.
pub(super) fn in_race<V: Values>(
    race: &Race<'_, V>,
    end: &RaceEnd,
    own: usize,
    unit: &'static str,
) -> Option<String> {
    let proposed = end.proposed();
    let chosen = proposed.map(|proposed| race.chosen(proposed));
    let own_speed = OwnSpeed {
        own: race.worst(own)?,
        chosen: chosen.as_deref(),
        speed: end.standings.log(own).and_then(|_| race.speed(own)),
        of_choice: proposed.and_then(|proposed| race.speed(proposed)),
        estimate: proposed.and_then(|proposed| end.standings.compare(own, proposed)),
        unit,
    };
    Some(own_speed.note(""))
}

/// The speed of the file's own value beside that of the choice.
struct OwnSpeed<'a> {
    own: &'a Probe,
    chosen: Option<&'a [(String, Value)]>,
    /// `None` if it may not be chosen.
    speed: Option<f64>,
    of_choice: Option<f64>,
    /// The choice's speed as a ratio to its own, by all their runs.
    estimate: Option<Estimate>,
    unit: &'static str,
}

impl OwnSpeed<'_> {
    /// The choice's speed as a ratio to its own.
    fn ratio(&self) -> Option<f64> {
        match &self.estimate {
            Some(estimate) => Some(estimate.ratio),
            None => Some(self.of_choice? / self.speed?),
        }
    }

    /// `aside` follows the name.
    fn note(&self, aside: &str) -> String {
        let name = format!("the file's own {}{aside}", spelled(&self.own.choice.values));
        if self.chosen == Some(&self.own.choice.values) {
            return format!("{name} is the choice");
        }
        let memory = self
            .own
            .memory_share()
            .map(|share| format!(" with {} of the memory", Fraction(share)))
            .unwrap_or_default();
        let Some(speed) = self.speed else {
            let why = match self.own.outcome {
                Outcome::Completed if self.own.speed().is_none() => {
                    return format!("{name} was run too: it has no measured speed");
                }
                Outcome::Completed => "it may not be chosen".to_owned(),
                outcome => outcome.to_string(),
            };
            return format!("{name} was run too: {why}{memory}");
        };
        let runs = format!(
            "{name} runs at {} {}{memory}",
            decimals(speed, 0),
            self.unit
        );
        let Some((ratio, chosen)) = self.ratio().zip(self.chosen) else {
            return runs;
        };
        let certainty = match &self.estimate {
            Some(Estimate { low, high, .. }) => {
                format!("95 %: {} to {}", decimals(*low, 2), decimals(*high, 2))
            }
            None => "the file's own value ran once".to_owned(),
        };
        format!(
            "{runs}; the choice, {}, has {} times that speed ({certainty})",
            describe_values(chosen),
            decimals(ratio, 2)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::search::{
            oracle::{given, play},
            strategy,
        },
        spec::Search,
    };

    fn search(kind: &str) -> Search {
        serde_json::from_value(serde_json::json!({"kind": kind, "to": 32})).unwrap()
    }

    /// Faster up to 16, as a batch or as workers.
    fn run(choice: &SearchTrial) -> Probe {
        let value = choice.values[0].1.as_u64().unwrap();
        Probe {
            samples_per_second: Some(100.0 * (value.min(16) + 1) as f64),
            memory_held_bytes: Some(value),
            memory_limit_bytes: Some(64),
            seconds: Some(1.0),
            ..Probe::that_showed_nothing(choice.clone(), Outcome::Completed)
        }
    }

    #[test]
    fn the_files_own_value_is_always_run_and_compared() {
        // No search over powers of two comes by 7 on its own.
        let context = super::super::SearchContext {
            batch_size: 7,
            num_workers: 7,
            ..given()
        };
        for kind in ["largest-batch", "best-throughput-batch", "workers"] {
            let found = play(&*strategy(&search(kind), &context), &run);
            let own = found
                .evidence
                .iter()
                .filter(|probe| probe.choice.values[0].1 == 7);
            assert!(own.count() >= 1, "{kind}");
            let note = found
                .notes
                .iter()
                .find(|note| note.contains("the file's own"));
            let note = note.unwrap_or_else(|| panic!("{kind}: {:?}", found.notes));
            assert!(
                note.contains("= 7 runs at 800 samples/s") && note.contains("times that speed"),
                "{kind}: {note}"
            );
            let stopped = |note: &&String| note.starts_with("the search stopped");
            assert_eq!(
                found.notes.iter().filter(stopped).count(),
                1,
                "{kind}: {:?}",
                found.notes
            );
        }
    }

    #[test]
    fn a_value_that_is_the_choice_is_not_run_again() {
        let context = super::super::SearchContext {
            batch_size: 32,
            ..given()
        };
        let found = play(&*strategy(&search("largest-batch"), &context), &run);
        let note = "the file's own train.batch_size = 32 is the choice".to_owned();
        assert!(found.notes.contains(&note), "{:?}", found.notes);
        let own = found
            .evidence
            .iter()
            .filter(|probe| probe.choice.values[0].1 == 32);
        assert_eq!(own.count(), 1);
    }

    #[test]
    fn an_own_value_that_is_faster_is_one_of_the_values_compared() {
        // A peak at 28, which doubling and the gaps beside it may miss.
        let peak = |choice: &SearchTrial| {
            let value = choice.values[0].1.as_u64().unwrap();
            let speed = if value == 28 { 200.0 } else { 100.0 };
            Probe {
                samples_per_second: Some(speed + value as f64 / 100.0),
                data_wait_fraction: Some(0.0),
                ..run(choice)
            }
        };
        let context = super::super::SearchContext {
            batch_size: 28,
            num_workers: 28,
            ..given()
        };
        for kind in ["best-throughput-batch", "workers"] {
            let found = play(&*strategy(&search(kind), &context), &peak);
            assert_eq!(
                found.chosen.as_deref().unwrap()[0].1,
                28,
                "{kind}: {found:?}"
            );
            let is_choice = |note: &String| {
                note.starts_with("the file's own") && note.ends_with("is the choice")
            };
            assert_eq!(
                found.notes.iter().filter(|note| is_choice(note)).count(),
                1,
                "{kind}"
            );
        }
    }

    #[test]
    fn an_own_value_outside_of_the_range_is_told_and_warned_of_where_it_is_faster() {
        let context = super::super::SearchContext {
            batch_size: 64,
            num_workers: 64,
            ..given()
        };
        for kind in ["largest-batch", "best-throughput-batch", "workers"] {
            let rising = |choice: &SearchTrial| Probe {
                samples_per_second: Some(choice.values[0].1.as_u64().unwrap() as f64 + 1.0),
                memory_limit_bytes: Some(1000),
                ..run(choice)
            };
            let found = play(&*strategy(&search(kind), &context), &rising);
            let note = found.notes.last().unwrap();
            assert!(
                note.contains(
                    "= 64, which is not among the values of this search, runs at 65 samples/s"
                ) && note.contains("has 0.51 times that speed (the file's own value ran once)"),
                "{kind}: {note}"
            );
            let is_told = |warning: &Warning| matches!(warning, Warning::OwnValueFaster { own } if own.ends_with("= 64"));
            // The largest batch is not looked for by its speed.
            let is_ranked = kind != "largest-batch";
            assert_eq!(found.warnings.iter().any(is_told), is_ranked, "{kind}");
            let slower = play(&*strategy(&search(kind), &context), &|choice| Probe {
                samples_per_second: Some(10.0),
                ..rising(choice)
            });
            assert!(!slower.warnings.iter().any(is_told), "{kind}");
        }
    }
}
