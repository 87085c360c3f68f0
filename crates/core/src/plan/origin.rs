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
                "trial {} of {} goes on after step {}, and {key}; steps count from the beginning \
                 of the training, so {}",
                origin.trial,
                origin.run.display(),
                origin.step,
                self.more_than(origin.step)
            ));
        }
        let mut trial = self.clone();
        trial.origin = Some(origin);
        trial.id = trial
            .made_id()
            .ok_or_else(|| "the settings of the trial cannot be written as JSON".to_owned())?;
        Ok(trial)
    }

    /// How to make more steps than these. One value in place of an axis would let one trial go on
    /// where each value had its own.
    fn more_than(&self, steps: u64) -> String {
        let is_of_length =
            |(key, _): &&(String, _)| ["train.steps", "train.epochs"].contains(&key.as_str());
        match self.axes.iter().find(is_of_length) {
            Some((key, _)) => format!("raise the values of the axis `{key}`"),
            None => format!("set more: `--set train.steps={}`", steps.saturating_mul(2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::expand, spec};

    fn trial(train: &str) -> Trial {
        swept(train, "{}")
    }

    /// The first trial of a sweep.
    fn swept(train: &str, sweep: &str) -> Trial {
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp, seq_len: 8}}, data: {{kind: generated}}, \
             train: {{{train}}}, sweep: {sweep}}}"
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
                why.contains(&format!(
                    "goes on after step {step}, and `train.steps` is 400"
                )) && why.ends_with(&format!("`--set train.steps={}`", 2 * step)),
                "{why}"
            );
        }
        // One value for all of an axis would be refused in its turn.
        let of_axis = swept("", "{grid: {train.steps: [200, 400]}}");
        let why = of_axis.continuing(origin(200)).unwrap_err();
        assert!(
            why.contains("`train.steps` is 200")
                && why.ends_with("so raise the values of the axis `train.steps`"),
            "{why}"
        );
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
