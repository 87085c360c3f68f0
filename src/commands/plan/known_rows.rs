//! The completed trials under `results/` that are like those of a plan and ran on this machine's
//! kinds of device: with the same settings, or with another number of steps.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::Path,
};

use kiln_core::{
    plan::{Plan, TrainingLength, Trial, TrialId},
    record::{DEVICE_SEPARATOR, RunFile, TrialRow, TrialTable},
};
use kiln_hardware::host;

use crate::{
    commands::{
        machine::{nvml_library, visible_here},
        runs::newest_listed,
    },
    schedule::{Instruments, KnownTimes, TrialTime, needs_gpu, steps_per_epoch},
};

/// Runs that are looked at, the newest first.
const MOST_RUNS: usize = 100;
/// Ids that are made to find the settings of rows whose trials are not in the plan: a second of work.
const MOST_IDS: usize = 5000;

/// The times of the trials like those of a plan that ran here, from the tables under `results`.
/// `experiment` is its name.
pub(in crate::commands) fn known_times(
    plan: &Plan,
    experiment: &str,
    results: &Path,
) -> KnownTimes {
    KnownRows::read(plan, experiment, results).times(plan, &DevicesHere::of(plan))
}

/// The device on which a trial would run.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceHere {
    pub(super) name: Option<String>,
    pub(super) memory_bytes: Option<u64>,
}

/// The devices of this machine, read only if a trial may use them.
pub(super) struct DevicesHere {
    cpu: DeviceHere,
    gpu: Option<DeviceHere>,
}

impl DevicesHere {
    pub(super) fn of(plan: &Plan) -> Self {
        let wants_gpu = |trial: &Trial| needs_gpu(trial.engine, &trial.devices);
        let gpu = plan.trials.iter().any(wants_gpu).then(|| {
            let instruments = Instruments::open_for_the_cpu(nvml_library().as_deref());
            visible_here(&instruments).into_iter().next()
        });
        let host = host::read();
        let limits = [&host.memory_bytes, &host.cgroup_memory_bytes];
        Self {
            cpu: DeviceHere {
                name: host.cpu_model.value().cloned(),
                memory_bytes: limits
                    .iter()
                    .filter_map(|limit| limit.value())
                    .min()
                    .copied(),
            },
            gpu: gpu.flatten().map(|gpu| DeviceHere {
                name: Some(gpu.name),
                memory_bytes: gpu.memory_total_bytes,
            }),
        }
    }

    pub(super) fn of_trial(&self, trial: &Trial) -> &DeviceHere {
        match &self.gpu {
            Some(gpu) if needs_gpu(trial.engine, &trial.devices) => gpu,
            _ => &self.cpu,
        }
    }
}

/// The completed trials like those of each point, whatever their seeds and the number of their steps.
#[derive(Default)]
pub(super) struct KnownRows(HashMap<u64, Vec<Known>>);

/// One completed trial.
struct Known {
    length: TrainingLength,
    /// Empty for a command.
    engine: String,
    device_name: Option<String>,
    time: Option<TrialTime>,
    memory_bytes: Option<u64>,
}

impl KnownRows {
    pub(super) fn read(plan: &Plan, experiment: &str, results: &Path) -> Self {
        let mut points = PlannedPoints::of(plan);
        let mut rows = Self::default();
        let (runs, _) = newest_listed(results).unwrap_or_default();
        for named in runs.iter().take(MOST_RUNS) {
            // Tables of other experiments may be long. A record that cannot be read excludes nothing.
            let has_planned = || {
                RunFile::read(&named.run.run_file()).map_or(true, |file| {
                    file.plan.iter().any(|id| points.of_ids.contains_key(id))
                })
            };
            if named.experiment != experiment && !has_planned() {
                continue;
            }
            let mut of_run = Vec::new();
            let read = TrialTable::each_of(&named.run, &mut |row| {
                if row.fixed.is_completed()
                    && let Some((trial, length)) = points.find(&row.fixed)
                {
                    of_run.push((trial.point, Known::of(length, *row.fixed)));
                }
            });
            if read.is_ok() {
                of_run
                    .into_iter()
                    .for_each(|(point, known)| rows.0.entry(point).or_default().push(known));
            }
        }
        rows
    }

    /// The times of those that ran on devices like the ones here.
    pub(super) fn times(&self, plan: &Plan, devices: &DevicesHere) -> KnownTimes {
        let mut times = KnownTimes::default();
        let mut seen = HashSet::new();
        for trial in plan.trials.iter().filter(|trial| seen.insert(trial.point)) {
            let here = self.here(trial, devices.of_trial(trial));
            times.add(trial, here.filter_map(|known| known.time));
        }
        times
    }

    /// The most memory that a trial with the settings of this one has used here.
    pub(super) fn memory(&self, trial: &Trial, device: &DeviceHere) -> Option<u64> {
        let here = self.here(trial, device);
        let same = here.filter(|known| known.length == trial.length());
        same.filter_map(|known| known.memory_bytes).max()
    }

    /// The trials like this one that ran on its engine and on devices like this one.
    fn here<'k>(
        &'k self,
        trial: &Trial,
        device: &'k DeviceHere,
    ) -> impl Iterator<Item = &'k Known> + use<'k> {
        let engine = match trial.model.command() {
            Some(_) => String::new(),
            None => trial.engine.name().to_owned(),
        };
        let is_here = move |known: &&Known| {
            let names = known.device_name.as_deref().unwrap_or_default();
            let names: BTreeSet<&str> = names.split(DEVICE_SEPARATOR).map(str::trim).collect();
            let is_alike = names.len() == 1 && names.first().copied() == device.name.as_deref();
            is_alike && known.engine == engine
        };
        let rows = self.0.get(&trial.point).into_iter().flatten();
        rows.filter(is_here)
    }
}

impl Known {
    fn of(length: TrainingLength, row: TrialRow) -> Self {
        Self {
            length,
            // The row of a trial that was resumed has the time since then.
            time: TrialTime::of(length, &row),
            memory_bytes: row.memory_held_bytes(),
            engine: row.engine,
            device_name: row.device_name,
        }
    }
}

/// The trials of a plan, to find those that a row is like.
struct PlannedPoints<'p> {
    of_ids: HashMap<&'p TrialId, &'p Trial>,
    trials: &'p [Trial],
    /// One trial of each point.
    firsts: Vec<&'p Trial>,
    /// Ids that may still be made.
    left: usize,
}

impl<'p> PlannedPoints<'p> {
    fn of(plan: &'p Plan) -> Self {
        let mut seen = HashSet::new();
        let trials = plan.trials.iter();
        Self {
            of_ids: trials.clone().map(|trial| (&trial.id, trial)).collect(),
            firsts: trials.filter(|trial| seen.insert(trial.point)).collect(),
            trials: &plan.trials,
            left: MOST_IDS,
        }
    }

    /// A planned trial that differs from that of a row in length and seed at most, and the length of
    /// the row's.
    fn find(&mut self, row: &TrialRow) -> Option<(&'p Trial, TrainingLength)> {
        if let Some(trial) = self.of_ids.get(&row.trial).copied() {
            return Some((trial, trial.length()));
        }
        let (lengths, trials) = (lengths(row), self.trials);
        let place = usize::try_from(row.number).ok()?.checked_sub(1);
        // The same sweep with another number of steps has the same places.
        let likely = place.and_then(|place| trials.get(place));
        for trial in likely.into_iter().chain(self.firsts.iter().copied()) {
            let is_alike = trial.train.batch_size == row.batch_size
                && trial.train.grad_accumulation == row.grad_accumulation;
            if !is_alike || trial.model.command().is_some() {
                continue;
            }
            for length in &lengths {
                self.left = self.left.checked_sub(1)?;
                if trial.id_with(*length, row.seed).as_ref() == Some(&row.trial) {
                    return Some((trial, *length));
                }
            }
        }
        None
    }
}

/// The lengths that a trial with this row may have been asked for.
fn lengths(row: &TrialRow) -> Vec<TrainingLength> {
    let of = |steps, epochs| TrainingLength { steps, epochs };
    let Some(steps) = row.steps else {
        return Vec::new();
    };
    let epochs = steps_per_epoch(row).filter(|each| steps.is_multiple_of(*each));
    let epochs = epochs.map(|each| of(None, Some(steps / each)));
    [of(Some(steps), None)].into_iter().chain(epochs).collect()
}

#[cfg(test)]
mod tests {
    use kiln_core::{
        plan::{Outcome, expand},
        spec::Experiment,
    };

    use super::*;
    use crate::schedule::EstimateGrade;

    /// The plan of an experiment of this length, and its rows, all on a device of this name.
    fn planned(train: &str, rows: &[TrialRow], device: &str) -> (Plan, KnownRows, DevicesHere) {
        let yaml = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp}}, data: {{kind: generated}}, train: \
             {{{train}}}}}"
        );
        let value: serde_json::Value = serde_yaml::from_str(&yaml).unwrap();
        let experiment: Experiment = serde_json::from_value(value).unwrap();
        let plan = expand(&experiment, &|_| None).unwrap();
        let mut known = KnownRows::default();
        for row in rows {
            if let Some((trial, length)) = PlannedPoints::of(&plan).find(row) {
                let of_point = known.0.entry(trial.point).or_default();
                of_point.push(Known::of(length, row.clone()));
            }
        }
        let cpu = DeviceHere {
            name: Some(device.to_owned()),
            memory_bytes: None,
        };
        (plan, known, DevicesHere { cpu, gpu: None })
    }

    /// The row of the planned trial.
    fn row(train: &str) -> TrialRow {
        let (plan, ..) = planned(train, &[], "here");
        let trial = &plan.trials[0];
        TrialRow {
            trial: trial.id.clone(),
            outcome: Outcome::Completed,
            number: 1,
            seed: trial.train.seed,
            batch_size: trial.train.batch_size,
            grad_accumulation: trial.train.grad_accumulation,
            engine: "libtorch".to_owned(),
            device_name: Some("here".to_owned()),
            trial_seconds: Some(3.0),
            steps: trial.train.steps,
            left_out_steps: Some(0),
            window_seconds: Some(2.0),
            peak_resident_bytes: Some(5),
            ..TrialRow::default()
        }
    }

    fn expected(train: &str, rows: &[TrialRow], device: &str) -> Option<(EstimateGrade, f64)> {
        let (plan, known, devices) = planned(train, rows, device);
        let time = known.times(&plan, &devices).estimate(&plan.trials[0])?;
        Some((time.grade, time.median))
    }

    #[test]
    fn rows_of_another_engine_or_device_say_nothing() {
        let found = |engine: &str, device: &str| {
            let row = TrialRow {
                engine: engine.to_owned(),
                ..row("steps: 10")
            };
            let (plan, known, devices) = planned("steps: 10", &[row], device);
            let trial = &plan.trials[0];
            let memory = known.memory(trial, devices.of_trial(trial));
            let time = known.times(&plan, &devices).estimate(trial);
            (time.map(|time| time.median), memory)
        };
        assert_eq!(found("libtorch", "here"), (Some(3.0), Some(5)));
        for (engine, device) in [("flex", "here"), ("", "here"), ("libtorch", "there")] {
            assert_eq!(found(engine, device), (None, None), "{engine} {device}");
        }
    }

    #[test]
    fn rows_of_another_number_of_steps_or_seed_are_recognized_and_others_are_not() {
        let found = |train: &str, row: TrialRow| expected(train, &[row], "here");
        let by_steps = Some((EstimateGrade::BySteps, 5.0));
        assert_eq!(found("steps: 20", row("steps: 10")), by_steps);
        let as_before = Some((EstimateGrade::AsBefore, 3.0));
        assert_eq!(found("steps: 10", row("steps: 10, seed: 7")), as_before);
        let other = row("steps: 10, clip_norm: 2.0");
        assert_eq!(found("steps: 20", other), None);
        // The place of the row in its own plan means nothing here.
        let elsewhere = TrialRow {
            number: 4,
            ..row("steps: 10")
        };
        assert_eq!(found("steps: 20", elsewhere), by_steps);
        // As many steps as this, by other settings.
        let claimed = TrialRow {
            steps: Some(12),
            ..row("steps: 10")
        };
        assert_eq!(found("steps: 20", claimed), None);
    }
}
