//! The trials that ran out of memory, to be found by those that need at least as much. Pure.

use std::collections::{HashMap, HashSet};

use kiln_core::plan::{DemandKind, DemandSize, Outcome, Trial};

use crate::schedule::remaining::History;

/// Trials that have run out of memory, by their index. Whether one counts, its history says.
#[derive(Debug, Default)]
pub(super) struct OomTrials {
    known: HashSet<usize>,
    by_kind: HashMap<DemandKind, Vec<(usize, DemandSize)>>,
}

impl OomTrials {
    /// Adds the trials whose last attempt ran out of memory.
    pub(super) fn note_all(&mut self, trials: &[Trial], history: &History) {
        for (index, trial) in trials.iter().enumerate() {
            if history.last(&trial.id) == Some(Outcome::Oom) {
                self.note(index, trial);
            }
        }
    }

    pub(super) fn note(&mut self, index: usize, trial: &Trial) {
        if self.known.insert(index) {
            let demand = trial.memory_demand();
            let alike = self.by_kind.entry(demand.kind).or_default();
            alike.push((index, demand.size));
        }
    }

    /// The noted trials of which a trial needs at least the memory.
    pub(super) fn needing_no_more_than(&self, trial: &Trial) -> impl Iterator<Item = usize> {
        let mine = trial.memory_demand();
        let alike = self.by_kind.get(&mine.kind).into_iter().flatten();
        alike
            .filter(move |(_, failed)| mine.size.is_no_less_than(failed))
            .map(|(index, _)| *index)
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::{plan::expand, spec::Experiment};

    use super::*;

    fn planned(model: &str, sweep: &str) -> Vec<Trial> {
        let text = format!(
            "{{kiln: 1, name: x, model: {model}, data: {{kind: generated}}, train: {{steps: 10}}, \
             sweep: {{grid: {{{sweep}}}}}}}"
        );
        let experiment: Experiment = serde_yaml::from_str(&text).unwrap();
        expand(&experiment, &|_| None).unwrap().trials
    }

    #[test]
    fn a_trial_finds_those_that_a_comparison_with_all_finds() {
        let sweep = "train.batch_size: [2, 4, 8], train.grad_accumulation: [1, 2, 4]";
        let mut trials = planned(
            "{kind: gpt, d_model: 64}",
            &format!("{sweep}, model.seq_len: [16, 32], train.precision: [f32, bf16]"),
        );
        trials.extend(planned("{kind: mlp}", sweep));
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (mut noted, mut history) = (OomTrials::default(), History::default());
            let is_oom: Vec<bool> = trials.iter().map(|_| random.u8(..4) == 0).collect();
            for (index, trial) in trials
                .iter()
                .enumerate()
                .filter(|(index, _)| is_oom[*index])
            {
                history.add_outcome(&trial.id, 1, Outcome::Oom);
                if random.bool() {
                    noted.note(index, trial);
                }
            }
            noted.note_all(&trials, &history);
            for trial in &trials {
                let mut found: Vec<usize> = noted.needing_no_more_than(trial).collect();
                found.sort_unstable();
                let wanted: Vec<usize> = (0..trials.len())
                    .filter(|index| is_oom[*index] && trial.needs_no_less_than(&trials[*index]))
                    .collect();
                assert_eq!(found, wanted, "{:?}", trial.axes);
            }
        }
    }
}
