//! The length of a training, and the trials that differ from a trial in length and seed alone.

use std::sync::Arc;

use super::{Trial, TrialId};

/// How long a training is asked to be. A command has neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TrainingLength {
    /// `train.steps`.
    pub steps: Option<u64>,
    /// `train.epochs`.
    pub epochs: Option<u64>,
}

impl Trial {
    /// The length that its settings ask for.
    pub fn length(&self) -> TrainingLength {
        TrainingLength {
            steps: self.train.steps,
            epochs: self.train.epochs,
        }
    }

    /// Id of the trial with this length, this seed and the same other settings.
    pub fn id_with(&self, length: TrainingLength, seed: u64) -> Option<TrialId> {
        let mut trial = self.clone();
        let train = Arc::make_mut(&mut trial.train);
        train.steps = length.steps;
        train.epochs = length.epochs;
        train.seed = seed;
        trial.made_id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::expand, spec};

    fn trials(train: &str, sweep: &str) -> Vec<Trial> {
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp, seq_len: 8}}, data: {{kind: generated}}, \
             train: {{{train}}}, sweep: {{{sweep}}}}}"
        );
        let experiment = spec::read_yaml(&text).unwrap();
        expand(&experiment, &|_| None).unwrap().trials
    }

    #[test]
    fn an_id_with_another_length_and_seed_is_that_of_the_planned_trial() {
        let sweep = "grid: {run.engine: [libtorch, flex]}, repeats: 2";
        let short = trials("steps: 10", sweep);
        for trial in &short {
            let same = trial.id_with(trial.length(), trial.train.seed);
            assert_eq!(same.as_ref(), Some(&trial.id));
        }
        for (train, length) in [
            ("steps: 400", (Some(400), None)),
            ("epochs: 3", (None, Some(3))),
        ] {
            let (steps, epochs) = length;
            let length = TrainingLength { steps, epochs };
            for (trial, other) in short.iter().zip(trials(train, sweep)) {
                assert_eq!(trial.id_with(length, other.train.seed), Some(other.id));
            }
        }
        let other = trials("steps: 400, batch_size: 2", sweep);
        let of_400 = TrainingLength {
            steps: Some(400),
            epochs: None,
        };
        assert_ne!(short[0].id_with(of_400, 1).as_ref(), Some(&other[0].id));
    }
}
