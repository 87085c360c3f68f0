//! The time and memory that the trials of a plan will probably need: from rows of the same
//! settings on the same engine and device under `results/`, and for memory at least what parameters,
//! gradients and optimizer take.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use kiln_core::{
    plan::{Outcome, Plan, Trial, TrialId},
    record::{DEVICE_SEPARATOR, RunFile, RunFolder, TrialRow, TrialTable},
    spec::Precision,
    units::{Bytes, Seconds, counted},
};
use kiln_hardware::{VISIBLE_DEVICES, host};

use crate::{
    commands::{machine::nvml_library, runs::newest_listed},
    schedule::{Instruments, needs_gpu, visible_gpus},
};

/// Runs that are looked at, the newest first.
const MOST_RUNS: usize = 100;

/// Expected time and memory of one trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Expected {
    /// Median of the trials like it.
    pub(super) seconds: Option<f64>,
    /// Most that a trial like it has used.
    pub(super) memory_bytes: Option<u64>,
    /// Parameters, gradients and optimizer.
    pub(super) least_memory_bytes: Option<u64>,
}

/// The device on which a trial would run.
#[derive(Clone, Debug, Default)]
struct DeviceHere {
    name: Option<String>,
    memory_bytes: Option<u64>,
}

/// The expectations of a plan.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    of_trials: HashMap<TrialId, Expected>,
    /// Trials that cannot fit, in words.
    pub(super) warnings: Vec<String>,
}

impl Expectations {
    /// Reads the tables under `results`; what cannot be read is not used.
    pub(super) fn of(plan: &Plan, results: &Path) -> Self {
        let devices = DevicesHere::of(plan);
        let known = KnownRows::read(plan, results);
        // Trials of one point differ in their seed alone.
        let mut of_points: HashMap<u64, Expected> = HashMap::new();
        let mut of_trials = HashMap::new();
        let mut too_large = Vec::new();
        for trial in &plan.trials {
            let device = devices.of_trial(trial);
            let expected = *of_points.entry(trial.point).or_insert_with(|| Expected {
                least_memory_bytes: least_memory(trial),
                ..known.expected(trial, device)
            });
            if expected.least_memory_bytes > device.memory_bytes
                && let (Some(least), Some(memory)) =
                    (expected.least_memory_bytes, device.memory_bytes)
            {
                too_large.push((trial, least, device, memory));
            }
            of_trials.insert(trial.id.clone(), expected);
        }
        let warnings = too_large.first().map(|(trial, least, device, memory)| {
            let more = match too_large.len() - 1 {
                0 => String::new(),
                more => format!("; so do {more} more"),
            };
            format!(
                "warning: trial {} cannot fit: its parameters, gradients and optimizer need at \
                 least {}, and {} has {}{more}",
                trial.id,
                Bytes(*least),
                device.name.as_deref().unwrap_or("the device"),
                Bytes(*memory)
            )
        });
        Self {
            of_trials,
            warnings: warnings.into_iter().collect(),
        }
    }

    pub(super) fn of_trial(&self, trial: &TrialId) -> Expected {
        self.of_trials.get(trial).copied().unwrap_or_default()
    }

    /// The time of the trials that have not ended, in words; `None` if all have.
    pub(super) fn time(&self, plan: &Plan, ended: &HashMap<TrialId, Outcome>) -> Option<String> {
        let has_ended = |trial: &&Trial| ended.get(&trial.id).is_some_and(|end| end.is_final());
        let left: Vec<&Trial> = plan
            .trials
            .iter()
            .filter(|trial| !has_ended(trial))
            .collect();
        let known: Vec<f64> = left
            .iter()
            .filter_map(|trial| self.of_trial(&trial.id).seconds)
            .collect();
        let sum = Seconds(known.iter().sum());
        if left.is_empty() {
            return None;
        }
        Some(match left.len() - known.len() {
            _ if known.is_empty() => {
                "time unknown: no trial with these settings has run on this device".to_owned()
            }
            0 => format!("about {sum}, one trial after the other, as such trials took before"),
            unknown => format!(
                "about {sum} for {}, as such trials took before; unknown for {unknown} more",
                counted(known.len(), "trial")
            ),
        })
    }
}

/// The devices of this machine, read only if a trial may use them.
struct DevicesHere {
    cpu: DeviceHere,
    gpu: Option<DeviceHere>,
}

impl DevicesHere {
    fn of(plan: &Plan) -> Self {
        let wants_gpu = |trial: &Trial| needs_gpu(trial.engine, &trial.devices);
        let gpu = plan.trials.iter().any(wants_gpu).then(|| {
            let devices = Instruments::open_for_the_cpu(nvml_library().as_deref()).devices();
            let visible = std::env::var(VISIBLE_DEVICES).ok();
            visible_gpus(&devices, visible.as_deref())
                .into_iter()
                .next()
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

    fn of_trial(&self, trial: &Trial) -> &DeviceHere {
        match &self.gpu {
            Some(gpu) if needs_gpu(trial.engine, &trial.devices) => gpu,
            _ => &self.cpu,
        }
    }
}

/// Time and memory of the completed trials of each point, whatever their seeds.
struct KnownRows(HashMap<u64, Vec<Known>>);

/// Engine, device, time and memory of one completed trial.
struct Known {
    /// Empty for a command.
    engine: String,
    device_name: Option<String>,
    seconds: Option<f64>,
    memory_bytes: Option<u64>,
}

impl KnownRows {
    fn read(plan: &Plan, results: &Path) -> Self {
        let points: HashMap<&TrialId, u64> = plan
            .trials
            .iter()
            .map(|trial| (&trial.id, trial.point))
            .collect();
        let mut rows: HashMap<u64, Vec<Known>> = HashMap::new();
        let (runs, _) = newest_listed(results).unwrap_or_default();
        let has_planned = |run: &RunFolder| {
            // A record that cannot be read excludes nothing.
            RunFile::read(&run.run_file()).map_or(true, |file| {
                file.plan.iter().any(|id| points.contains_key(id))
            })
        };
        for named in runs.iter().take(MOST_RUNS) {
            // Tables of other experiments may be long.
            if !has_planned(&named.run) {
                continue;
            }
            let mut of_run = Vec::new();
            let read = TrialTable::each_of(&named.run, &mut |row| {
                if let Some(point) = points.get(&row.fixed.trial)
                    && row.fixed.outcome == Outcome::Completed
                {
                    of_run.push((*point, Known::of(*row.fixed)));
                }
            });
            if read.is_ok() {
                of_run
                    .into_iter()
                    .for_each(|(point, known)| rows.entry(point).or_default().push(known));
            }
        }
        Self(rows)
    }

    fn expected(&self, trial: &Trial, device: &DeviceHere) -> Expected {
        let is_here = |row: &&Known| {
            let names = row.device_name.as_deref().unwrap_or_default();
            let names: BTreeSet<&str> = names.split(DEVICE_SEPARATOR).map(str::trim).collect();
            names.len() == 1 && names.first().copied() == device.name.as_deref()
        };
        let engine = match trial.model.command() {
            Some(_) => "",
            None => trial.engine.name(),
        };
        let rows = self.0.get(&trial.point).into_iter().flatten();
        let rows = rows.filter(|row| row.engine == engine);
        let rows: Vec<&Known> = rows.filter(is_here).collect();
        let mut seconds: Vec<f64> = rows.iter().filter_map(|row| row.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        Expected {
            seconds: seconds.get(seconds.len() / 2).copied(),
            memory_bytes: rows.iter().filter_map(|row| row.memory_bytes).max(),
            least_memory_bytes: None,
        }
    }
}

impl Known {
    fn of(row: TrialRow) -> Self {
        Self {
            // The row of a trial that was resumed has the time since then.
            seconds: row.whole_seconds(),
            memory_bytes: row.memory_held_bytes(),
            engine: row.engine,
            device_name: row.device_name,
        }
    }
}

/// Bytes of parameters, gradients and the optimizer's state; activations come on top.
fn least_memory(trial: &Trial) -> Option<u64> {
    if !trial.model.trains() {
        return None;
    }
    let number = match trial.train.precision {
        Precision::Bf16 => 2,
        _ => 4,
    };
    trial
        .parameters?
        .checked_mul(number * (2 + trial.train.optimizer.moments()))
}

#[cfg(test)]
mod tests {
    use kiln_core::{plan::expand, spec::Experiment};

    use super::*;

    #[test]
    fn rows_of_another_engine_or_device_say_nothing() {
        let expected = |engine: &str, device: &str| {
            let yaml = "{kiln: 1, name: x, model: {kind: matmul}, train: {steps: 10}}";
            let experiment: Experiment = serde_yaml::from_str(yaml).unwrap();
            let plan = expand(&experiment, &|_| None).unwrap();
            let known = Known {
                engine: engine.to_owned(),
                device_name: Some(device.to_owned()),
                seconds: Some(3.0),
                memory_bytes: Some(5),
            };
            let rows = KnownRows(HashMap::from([(plan.trials[0].point, vec![known])]));
            let here = DeviceHere {
                name: Some("here".to_owned()),
                memory_bytes: None,
            };
            let expected = rows.expected(&plan.trials[0], &here);
            (expected.seconds, expected.memory_bytes)
        };
        assert_eq!(expected("libtorch", "here"), (Some(3.0), Some(5)));
        for (engine, device) in [("flex", "here"), ("", "here"), ("libtorch", "there")] {
            assert_eq!(expected(engine, device), (None, None), "{engine} {device}");
        }
    }
}
