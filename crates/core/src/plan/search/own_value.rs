//! The file's own value of the searched keys: it runs at least once in every search, so that the
//! answer says what the choice gains.

use super::{
    Ask, Probe, Recommendation, SearchTrial, Strategy, describe_values, seen::Probes, spelled,
};
use crate::units::{Fraction, decimals};

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
                let note = self.note(&found, probe);
                found.notes.push(note);
                Ask::Done(found)
            }
        }
    }
}

impl WithOwnValue {
    fn note(&self, found: &Recommendation, own: &Probe) -> String {
        let name = format!("the file's own {}", spelled(&self.own.values));
        if found.chosen.as_ref() == Some(&self.own.values) {
            return format!("{name} is the choice");
        }
        let Some(speed) = own.speed().filter(|_| own.completed()) else {
            return format!("{name} was run too: {}", own.outcome);
        };
        let chosen: Vec<f64> = found
            .evidence
            .iter()
            .filter(|probe| found.chosen.as_ref() == Some(&probe.choice.values))
            .filter_map(Probe::speed)
            .collect();
        let unit = match own.tokens_per_second {
            Some(_) => "tokens/s",
            None => "samples/s",
        };
        let memory = own
            .memory_share()
            .map(|share| format!(" with {} of the memory", Fraction(share)))
            .unwrap_or_default();
        let Some(mean) = crate::statistics::mean(&chosen) else {
            return format!("{name} runs at {} {unit}{memory}", decimals(speed, 0));
        };
        format!(
            "{name} runs at {} {unit}{memory}; the choice, {}, has {} times that speed",
            decimals(speed, 0),
            found
                .chosen
                .as_deref()
                .map(describe_values)
                .unwrap_or_default(),
            decimals(mean / speed, 2)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{
            Outcome,
            search::{
                oracle::{given, play},
                strategy,
            },
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
}
