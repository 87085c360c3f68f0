//! Preflight checks: whether this machine can run trials, and what would make their measurements
//! unreliable.
//!
//! `facts`, `gpu` and `trial_program` collect facts; then pure functions convert them to [`Check`]s
//! without side effects. `kiln doctor` runs all of them; each launch first runs the cheap ones (no
//! product, and no child but for a worker) and records them in `run.json`.

mod cuda;
mod device;
mod driver;
mod facts;
mod gpu;
mod host;
mod libtorch;
mod loading;
mod text;
mod trial_program;
mod visible;

use std::{path::Path, time::Duration};

use kiln_core::{plan::Trial, record::Check};
use kiln_hardware::{Gpu, Nvml, NvmlAbsent, Patience};

pub(crate) use device::IDLE_MEMORY_BYTES;
pub use facts::{FactRoots, PreflightFacts};
pub use text::{TextStyle, json, page};
pub use trial_program::{ExamineAnswer, ExamineRequest, ask};
pub(crate) use visible::{NAME as VISIBLE_DEVICES_CHECK, is_hidden_on_purpose};

use crate::readings::Privacy;

/// Longest wait for the child: CUDA takes tens of seconds to start on many GPUs without persistence
/// mode.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(120);

/// All checks and their conclusion.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// In the order of a page: driver, libtorch, GPUs, host.
    pub checks: Vec<Check>,
    /// Whether trials can run at all, at least on the CPU.
    pub can_run: bool,
    pub subject: PreflightPlace,
}

/// Where the trials would run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreflightPlace {
    Machine {
        /// GPUs that trials may use.
        usable_gpus: usize,
        /// Whether there are GPUs that trials would use by default.
        has_gpus: bool,
    },
    /// The nodes of a cluster, of which this machine knows what Slurm says.
    Cluster,
}

/// Makes all checks of these facts.
pub fn diagnose(facts: &PreflightFacts) -> Diagnosis {
    let seen = visible::seen(facts);
    let gpus = facts.gpus.iter().enumerate().flat_map(|(place, gpu)| {
        match (&facts.leased, seen.contains(&place)) {
            (Some(leased), _) if !gpu.uuid.as_ref().is_some_and(|uuid| leased.contains(uuid)) => {
                Vec::new()
            }
            (None, false) => {
                vec![Check::skipped("health", "`CUDA_VISIBLE_DEVICES` hides it").of_gpu(gpu.index)]
            }
            _ => device::checks(gpu, facts.privacy),
        }
    });
    let parts: [Vec<Check>; 5] = [
        driver::checks(facts),
        visible::checks(facts),
        libtorch::checks(facts),
        gpus.collect(),
        host::checks(facts),
    ];
    Diagnosis {
        checks: parts.into_iter().flatten().collect(),
        can_run: facts.answer.as_ref().is_none_or(libtorch::can_run),
        subject: PreflightPlace::Machine {
            usable_gpus: facts.answer.as_ref().map_or(0, libtorch::usable_gpus),
            has_gpus: !seen.is_empty(),
        },
    }
}

/// The cheap checks before a launch's first trial, of the GPUs that it has leased (`uuids`) and of
/// the host.
pub(super) fn before_launch(
    nvml: &Result<Nvml, NvmlAbsent>,
    launch: &PlannedLaunch,
    answer: Option<ExamineAnswer>,
) -> Vec<Check> {
    let sources = FactRoots {
        nvml,
        is_system_nvml: launch.is_system_nvml,
        gpus: launch.gpus,
        results: launch.results,
        trials: Some(launch.trials),
        privacy: launch.privacy,
        patience: launch.patience,
    };
    diagnose(&PreflightFacts::gather(
        &sources,
        Some(launch.uuids.clone()),
        answer,
    ))
    .checks
}

/// Runs `kiln-trial --examine --quick`, which takes a few seconds. `None` if the program starts but gives
/// no findings in kiln's format; then only the trials show whether it works.
pub(super) fn examine_quickly(program: &Path) -> Option<ExamineAnswer> {
    let answer = ask(
        program,
        ExamineRequest {
            is_quick: true,
            time_limit: ASK_TIMEOUT,
        },
    );
    (answer.build.is_some() || does_not_load(&answer)).then_some(answer)
}

/// Whether no trial of this child can run here: it does not load, or sees none of the GPUs that it
/// needs.
pub(super) fn is_unfit(answer: &ExamineAnswer, needs_gpus: bool) -> bool {
    // One that did not get as far as CUDA says nothing of it.
    let has_looked = libtorch::is_built_in(answer) && answer.cuda.is_some();
    let is_blind = has_looked && libtorch::usable_gpus(answer) == 0;
    does_not_load(answer) || needs_gpus && is_blind
}

fn does_not_load(answer: &ExamineAnswer) -> bool {
    use trial_program::ChildFault::{Loading, NotStarted, NotThere};
    matches!(answer.fault, Some(Loading(_) | NotStarted(_) | NotThere))
}

/// The resources that a launch will use.
pub(super) struct PlannedLaunch<'a> {
    pub(super) is_system_nvml: bool,
    /// All GPUs of the machine.
    pub(super) gpus: &'a [Gpu],
    pub(super) results: &'a Path,
    /// The trials that are to run.
    pub(super) trials: &'a [&'a Trial],
    pub(super) uuids: Vec<String>,
    pub(super) privacy: Privacy,
    pub(super) patience: &'a Patience,
}

/// Returns a check as one line: state, name, evidence, remedy.
pub(super) fn notice(check: &Check) -> String {
    let remedy = check
        .remedy
        .as_ref()
        .map(|remedy| format!(" -> {remedy}"))
        .unwrap_or_default();
    format!(
        "{}: {}: {}{remedy}",
        check.state,
        check.label(),
        check.evidence
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{
        facts::{DriverVersions, Environment, RunsPlace, SystemFacts},
        *,
    };
    use kiln_core::record::{
        CheckState,
        examination::{Build, Cuda, CudaDriver, Libtorch, Product},
    };
    use kiln_hardware::Reading;

    fn known<T>(value: T) -> Reading<T> {
        Reading::Value(value)
    }

    /// A healthy machine with one GPU, without findings of the child.
    pub(super) fn facts() -> PreflightFacts {
        let mut host = kiln_hardware::host::read();
        (host.logical_cores, host.usable_cores, host.cgroup_cpu_cores) =
            (known(16), 16, Reading::absent("no limit"));
        (host.memory_bytes, host.memory_available_bytes) = (known(64 << 30), known(60 << 30));
        (host.cgroup_memory_bytes, host.swap_bytes) = (Reading::absent("no limit"), known(0));
        (host.scaling_governor, host.load_1_minute) = (known("performance".to_owned()), known(0.2));
        (host.clock_source, host.container) =
            (known("tsc".to_owned()), Reading::absent("none seen"));
        let version = |text: &str| known(text.to_owned());
        PreflightFacts {
            driver: Ok(DriverVersions {
                driver: version("590.48.01"),
                nvml: version("13.590.48.01"),
                cuda: version("13.1"),
            }),
            system: SystemFacts {
                module_version: Some("590.48.01".to_owned()),
                library_version: Some("590.48.01".to_owned()),
                nodes: ["nvidia-uvm", "nvidia0", "nvidiactl"]
                    .map(str::to_owned)
                    .to_vec(),
                is_wsl: false,
            },
            silence: None,
            gpus: vec![gpu::tests::healthy(0)],
            leased: None,
            environment: Environment::default(),
            host,
            place: RunsPlace {
                results: PathBuf::from("results"),
                fault: None,
                free_bytes: known(100 << 30),
                shared_memory_bytes: known(1 << 30),
                swap_used_bytes: known(0),
            },
            demand: None,
            answer: None,
            privacy: Privacy::Full,
        }
    }

    /// The findings of a child on that machine.
    pub(super) fn answer() -> ExamineAnswer {
        let libtorch = Libtorch {
            compiled: "2.11.0".to_owned(),
            loaded: Some("2.11.0".to_owned()),
            path: Some("/opt/torch/lib/libtorch_cpu.so".to_owned()),
            cuda: Some("13.0".to_owned()),
            cuda_fault: None,
            cudnn: Some("9.15.1".to_owned()),
            architectures: vec!["sm_80".to_owned(), "sm_90".to_owned()],
        };
        let engines = vec!["flex".to_owned(), "libtorch".to_owned()];
        let product = |device: &str| Product {
            device: device.to_owned(),
            precision: "f32".to_owned(),
            size: 512,
            max_relative_error: Some(1e-6),
            seconds: Some(1e-3),
            fault: None,
        };
        ExamineAnswer {
            program: PathBuf::from("/opt/kiln/kiln-trial"),
            build: Some(Build {
                kiln_examination: 1,
                protocol: None,
                kiln_trial: "0.1.0".to_owned(),
                engines,
                libtorch: Some(libtorch),
            }),
            cuda: Some(Cuda {
                driver: Some(CudaDriver {
                    name: "CUDA_SUCCESS".to_owned(),
                    ..CudaDriver::default()
                }),
                devices: 1,
                fault: None,
            }),
            nvrtc: Vec::new(),
            products: vec![product("cpu"), product("cuda:0")],
            fault: None,
            is_done: true,
            is_quick: false,
        }
    }

    #[test]
    fn names_are_unique_per_gpu_and_a_good_machine_has_nothing_to_say() {
        let mut facts = facts();
        facts.gpus.push(gpu::tests::healthy(1));
        let answer = answer();
        facts.answer = Some(ExamineAnswer {
            cuda: Some(Cuda {
                devices: 2,
                ..answer.cuda.clone().unwrap()
            }),
            ..answer
        });
        let found = diagnose(&facts);
        let mut labels: Vec<String> = found.checks.iter().map(Check::label).collect();
        labels.sort();
        let count = labels.len();
        labels.dedup();
        assert_eq!(labels.len(), count, "{labels:?}");
        assert!(found.can_run);
        let wanted = PreflightPlace::Machine {
            usable_gpus: 2,
            has_gpus: true,
        };
        assert_eq!(found.subject, wanted);
        assert!(
            found
                .checks
                .iter()
                .all(|check| check.state == CheckState::Ok),
            "{:?}",
            found.checks
        );
    }

    #[test]
    fn a_gpu_that_is_hidden_or_not_leased_is_not_complained_of() {
        let mut facts = facts();
        facts.gpus.push(gpu::tests::healthy(1));
        facts.gpus[1].power_limit = known(1);
        let states = |facts: &PreflightFacts| {
            let of_1 = |check: &&Check| check.gpu == Some(1);
            diagnose(facts)
                .checks
                .iter()
                .filter(of_1)
                .map(|check| check.state)
                .max()
        };
        assert_eq!(states(&facts), Some(CheckState::Warning));
        facts.environment.cuda_visible_devices = Some("0".into());
        assert_eq!(states(&facts), Some(CheckState::Skipped));
        facts.leased = Some(facts.gpus[0].uuid.iter().cloned().collect());
        assert_eq!(states(&facts), None);
        // The variable is checked against all GPUs, leased or not.
        facts.environment.cuda_visible_devices = Some("5".into());
        facts.leased = Some(Vec::new());
        let check = diagnose(&facts)
            .checks
            .into_iter()
            .find(|check| check.name == "visible-devices")
            .unwrap();
        assert!(
            check.state == CheckState::Problem
                && check
                    .evidence
                    .contains("there is no GPU 5; the last one is GPU 1"),
            "{check:?}"
        );
    }

    #[test]
    fn before_a_launch_only_the_leased_gpus_and_the_host_are_looked_at() {
        let nvml = Nvml::open(Some(Path::new("/nowhere")));
        let patience = Patience::default();
        let (results, privacy) = (Path::new("results"), Privacy::Masked);
        let launch = PlannedLaunch {
            is_system_nvml: false,
            gpus: &[],
            results,
            trials: &[],
            uuids: Vec::new(),
            privacy,
            patience: &patience,
        };
        let names: Vec<String> = before_launch(&nvml, &launch, None)
            .into_iter()
            .map(|check| check.name)
            .collect();
        assert!(
            names.contains(&"disk".to_owned()) && !names.contains(&"libtorch".to_owned()),
            "{names:?}"
        );
    }
}
