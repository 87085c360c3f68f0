//! `run.on_oom`: effects of a trial that ran out of memory on the others.

use kiln_core::{
    plan::{Outcome, Trial},
    spec::OnOom,
    units::counted,
};

use super::{LaunchState, fallback};
use crate::schedule::{
    instruments::AttemptReadings,
    memory,
    remaining::OomEnd,
    row::{AttemptFacts, row},
    skip_reason::skip_reason,
};
use kiln_hardware::host::usable_cores;

impl LaunchState<'_> {
    /// Returns the reason to skip a trial on a slot: a trial that needs at most as much memory ran
    /// out of at least as much. `None` if it may run.
    pub(super) fn too_large(&self, index: usize, slot: usize) -> Option<String> {
        let trial = &self.trials[index];
        let is_asked_for = self
            .history
            .last(&trial.id)
            .is_some_and(|outcome| self.request.selection.rerun.contains(&outcome));
        if self.request.experiment.run.on_oom != OnOom::SkipLarger || is_asked_for {
            return None;
        }
        let (memory, uuids) = (self.memory_of(slot), self.uuids(slot));
        let has_no_less = |end: OomEnd<'_>| match (memory, end.memory_limit_bytes) {
            (Some(here), Some(there)) => here <= there,
            // If the amount of memory is unknown, the same device has the same amount.
            _ => end.device_uuid == uuids.as_deref(),
        };
        let ran_out = |failed: &&Trial| self.history.oom(&failed.id).is_some_and(has_no_less);
        let failed = self
            .oom_trials
            .needing_no_more_than(trial)
            .map(|failed| &self.trials[failed])
            .filter(ran_out)
            .min_by_key(|failed| failed.number)?;
        Some(skip_reason(failed))
    }

    /// Takes note of the trials that have run out of memory, where `run.on_oom` asks for it.
    pub(super) fn note_oom_trials(&mut self) {
        if self.request.experiment.run.on_oom == OnOom::SkipLarger {
            self.oom_trials.note_all(&self.trials, &self.history);
        }
    }

    /// Takes note of one trial that has run out of memory, where `run.on_oom` asks for it.
    pub(super) fn note_oom_trial(&mut self, index: usize) {
        if self.request.experiment.run.on_oom == OnOom::SkipLarger {
            self.oom_trials.note(index, &self.trials[index]);
        }
    }

    fn memory_of(&self, slot: usize) -> Option<u64> {
        let uuids: Vec<String> = self
            .slots
            .gpus(slot)
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect();
        memory::least(
            self.instruments.memory_limit_bytes(&uuids),
            self.request.experiment.run.memory_limit,
        )
    }

    /// In the form of a table row; `None` on the CPU.
    fn uuids(&self, slot: usize) -> Option<String> {
        let is_gpu = !self.slots.gpus(slot).is_empty();
        is_gpu.then(|| self.slots.name(slot))
    }

    /// Writes the row of a skipped trial.
    pub(super) fn skip(&mut self, index: usize, slot: usize, reason: String) {
        let (trial, gpus) = (self.trials[index].clone(), self.slots.gpus(slot));
        let readings = AttemptReadings {
            memory_limit_bytes: self.memory_of(slot),
            ..AttemptReadings::default()
        };
        let cpu_name = self.instruments.cpu_name();
        let driver = self.instruments.driver();
        // After its last attempt, so that this end is the one that counts.
        let attempt = match self.open.last_attempt(&trial.id) {
            0 => 0,
            last => last + 1,
        };
        let row = row(&AttemptFacts {
            attempt,
            devices: &gpus,
            cpu_name: cpu_name.as_deref().filter(|_| gpus.is_empty()),
            driver: driver.as_deref(),
            ..AttemptFacts::of_end(
                &trial,
                self.open.launch,
                (Outcome::Skipped, reason),
                &readings,
                usable_cores(),
            )
        });
        self.keep(row, index);
    }

    /// Puts a smaller replacement of this trial next in the queue, if `run.on_oom` requests it and
    /// it is not planned already.
    pub(super) fn let_a_smaller_one_stand_in(&mut self, index: usize) {
        if self.request.experiment.run.on_oom != OnOom::Shrink {
            return;
        }
        let failed = &self.trials[index];
        match fallback(&self.trials, failed) {
            Some(smaller) => {
                let train = &smaller.train;
                let notice = format!(
                    "trial {} replaces {}: `train.batch_size` {} with `train.grad_accumulation` {}",
                    smaller.id, failed.id, train.batch_size, train.grad_accumulation
                );
                self.notice(&notice);
                self.add_one(&smaller);
                self.queue.again(self.trials.len());
                self.trials.to_mut().push(smaller);
                self.add_to_ticket(index, self.trials.len() - 1);
            }
            None => {
                let why = match failed.shrunk() {
                    Some(planned) => {
                        format!("trial {} is the same with a smaller batch size", planned.id)
                    }
                    None => format!(
                        "its batch cannot be smaller than {}",
                        counted(failed.train.batch_size as usize, "sample")
                    ),
                };
                self.notice(&format!("trial {} has no replacement: {why}", failed.id));
            }
        }
    }
}

#[cfg(test)]
mod tests;
