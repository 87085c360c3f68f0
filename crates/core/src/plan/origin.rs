//! The origin of a trial that continues the training of another one: `kiln run --continue`.
//!
//! In: a planned trial and a checkpoint of a trial of an earlier run. Out: the trial with another
//! id, because its result is not that of an undisturbed training.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Trial, TrialId};

/// The checkpoint that a trial begins with, instead of fresh weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Folder of the run; relative to the directory where kiln was started, if it is below it.
    pub run: PathBuf,
    pub trial: TrialId,
    /// Optimizer updates of the checkpoint.
    pub step: u64,
    /// SHA-256 of its `checkpoint.json`, which holds the sums of the other files.
    pub sha256: String,
}

impl Origin {
    /// The trial, step and SHA-256 of the checkpoint; these stay the same when its run is moved.
    pub fn content(&self) -> (&TrialId, u64, &str) {
        (&self.trial, self.step, &self.sha256)
    }

    /// Experiment and name of the run: `quickstart/20261120T100809Z-4da13ed`.
    pub fn run_name(&self) -> String {
        let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
        let parts = [self.run.parent().and_then(name), name(&self.run)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        parts.join("/")
    }
}

impl Trial {
    /// The trial that begins with this checkpoint. It has another id: which training it continues
    /// and after which step is part of it, the file and its place are not.
    ///
    /// # Errors
    /// The checkpoint has as many steps as the trial, or more.
    pub fn continuing(&self, origin: Origin) -> Result<Self, String> {
        if let Some(steps) = self.steps.filter(|steps| *steps <= origin.step) {
            let key = match self.train.epochs {
                Some(epochs) => format!("`train.epochs` {epochs} means {steps}"),
                None => format!("`train.steps` is {steps}"),
            };
            return Err(format!(
                "trial {} of {} has made {} steps, and {key}; steps count from the beginning of \
                 the training, so set more: `--set train.steps={}`",
                origin.trial,
                origin.run.display(),
                origin.step,
                origin.step.saturating_mul(2)
            ));
        }
        let mut trial = self.clone();
        trial.origin = Some(origin);
        trial.id = trial
            .made_id()
            .ok_or_else(|| "the settings of the trial cannot be written as JSON".to_owned())?;
        Ok(trial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::expand, spec};

    fn trial(train: &str) -> Trial {
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp, seq_len: 8}}, data: {{kind: generated}}, \
             train: {{{train}}}}}"
        );
        let plan = expand(&spec::read_yaml(&text).unwrap(), &|_| None).unwrap();
        plan.trials[0].clone()
    }

    fn origin(step: u64) -> Origin {
        Origin {
            run: "results/x/20261120T100809Z-4da13ed".into(),
            trial: TrialId("t0123456789".to_owned()),
            step,
            sha256: "ab".repeat(32),
        }
    }

    #[test]
    fn a_continued_trial_is_another_trial_wherever_its_checkpoint_lies() {
        let anew = trial("steps: 400");
        let id = |origin: Origin| anew.continuing(origin).unwrap().id;
        let moved = Origin {
            run: "elsewhere".into(),
            sha256: "cd".repeat(32),
            ..origin(200)
        };
        let of_another = Origin {
            trial: TrialId("t9876543210".to_owned()),
            ..origin(200)
        };
        let without_letter = Origin {
            trial: TrialId("0123456789".to_owned()),
            ..origin(200)
        };
        assert_eq!(id(moved), id(origin(200)));
        assert_eq!(id(without_letter), id(origin(200)));
        let ids = [
            anew.id.clone(),
            id(origin(200)),
            id(origin(201)),
            id(of_another),
        ];
        let different: std::collections::HashSet<&TrialId> = ids.iter().collect();
        assert_eq!(different.len(), ids.len(), "{ids:?}");
        assert_eq!(origin(1).run_name(), "x/20261120T100809Z-4da13ed");
    }

    #[test]
    fn a_continuation_without_further_steps_is_refused_with_the_number() {
        for step in [400, 401] {
            let why = trial("steps: 400").continuing(origin(step)).unwrap_err();
            assert!(
                why.contains(&format!("has made {step} steps, and `train.steps` is 400")),
                "{why}"
            );
        }
        assert!(trial("steps: 400").continuing(origin(399)).is_ok());
    }

    #[test]
    fn a_smaller_batch_after_running_out_of_memory_continues_the_same_checkpoint() {
        let continued = trial("steps: 400, batch_size: 8")
            .continuing(origin(200))
            .unwrap();
        let smaller = continued.shrunk().unwrap();
        let anew = trial("steps: 400, batch_size: 4, grad_accumulation: 2");
        assert_eq!(smaller.origin, continued.origin);
        assert_eq!(smaller.id, anew.continuing(origin(200)).unwrap().id);
        assert_ne!(smaller.id, anew.id);
    }
}
