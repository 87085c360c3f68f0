//! Checks of the NVIDIA driver: is it loaded, do its parts have one version, are its devices
//! accessible. Converts facts to checks; common cases have their own messages.

use kiln_core::{record::Check, units::MORE_THREADS};
use kiln_hardware::{NvmlAbsent, NvmlFault, Reading};

use super::facts::{DriverVersions, PreflightFacts, SystemFacts};

/// All checks of the driver.
pub(super) fn checks(facts: &PreflightFacts) -> Vec<Check> {
    match &facts.driver {
        Ok(versions) => {
            let driver = facts.silence.as_ref().map_or_else(
                || driver(versions, &facts.system),
                |silence| silent(versions, silence),
            );
            vec![driver, library(versions, &facts.system), nodes(facts)]
        }
        Err(absent) => vec![absent_driver(absent, facts)],
    }
}

const HANGS: &str = "look for `NVRM` and `Xid` in `sudo dmesg`; a GPU may hang; restart the \
                     machine, and keep persistence mode on (`sudo nvidia-smi -pm 1`)";

/// A driver that started and then hangs.
fn silent(versions: &DriverVersions, silence: &str) -> Check {
    let version = versions
        .driver
        .value()
        .map(|version| format!("{version} is loaded, but "))
        .unwrap_or_default();
    Check::problem("driver", format!("{version}{silence}"), HANGS)
}

/// Text of a version that may be unknown.
fn version(reading: &Reading<String>) -> String {
    match reading {
        Reading::Value(version) => version.clone(),
        Reading::Absent(absence) => format!("unknown version ({absence})"),
    }
}

fn driver(versions: &DriverVersions, system: &SystemFacts) -> Check {
    let found = version(&versions.driver);
    match (&versions.driver, &system.module_version) {
        (Reading::Value(driver), Some(module)) if driver != module => mismatch(format!(
            "NVML reports driver {driver}, /proc/driver/nvidia/version reports {module}"
        )),
        (Reading::Value(_), _) => {
            let cuda = match &versions.cuda {
                Reading::Value(cuda) => format!("it runs CUDA up to {cuda}"),
                Reading::Absent(absence) => {
                    format!("its newest supported CUDA is unknown ({absence})")
                }
            };
            Check::ok("driver", format!("{found} is loaded, {cuda}"))
        }
        (Reading::Absent(_), _) => Check::unknown("driver", format!("a driver {found} is loaded")),
    }
}

fn mismatch(evidence: String) -> Check {
    Check::problem(
        "driver",
        evidence,
        "the driver was updated and the old module still runs: restart the machine, or stop the \
         programs that use the GPUs and reload it (`sudo modprobe -r nvidia_uvm nvidia_drm \
         nvidia_modeset nvidia && sudo modprobe nvidia`)",
    )
}

/// NVML's own version ends with the driver's, after the CUDA version it was built for.
fn library(versions: &DriverVersions, system: &SystemFacts) -> Check {
    match (&versions.nvml, &versions.driver) {
        // The library belongs to Linux and the driver to Windows.
        (Reading::Value(nvml), Reading::Value(driver)) if system.is_wsl => Check::ok(
            "nvml",
            format!(
                "the library is {nvml}, the Windows driver {driver}: under WSL the two versions \
                 differ"
            ),
        ),
        (Reading::Value(nvml), Reading::Value(driver))
            if nvml == driver || nvml.ends_with(&format!(".{driver}")) =>
        {
            Check::ok("nvml", format!("{nvml}, the same version as the driver"))
        }
        (Reading::Value(nvml), Reading::Value(driver)) => Check::warning(
            "nvml",
            format!("the library is {nvml}, the driver {driver}"),
            "look for a second libnvidia-ml.so.1, from a container image or an old installation \
             (`ldconfig -p | grep nvidia-ml`)",
        ),
        _ => Check::unknown("nvml", format!("found, {}", version(&versions.nvml))),
    }
}

/// CUDA needs a node under /dev that nvidia-smi does not.
fn nodes(facts: &PreflightFacts) -> Check {
    let nodes = &facts.system.nodes;
    let has = |name: &str| nodes.iter().any(|node| node == name);
    if facts.system.is_wsl {
        return Check::ok(
            "device-nodes",
            "WSL: the GPUs are accessed through /dev/dxg",
        );
    }
    if nodes.is_empty() {
        return Check::unknown("device-nodes", "no /dev/nvidia* is visible");
    }
    if !has("nvidia-uvm") {
        return Check::problem(
            "device-nodes",
            "/dev/nvidia-uvm is missing: nvidia-smi works without it, CUDA does not (its error is \
             `unknown error`)",
            in_container(
                facts,
                "pass all device nodes to the container (`--gpus all`, or CDI)",
                "run `sudo nvidia-modprobe -u -c 0`",
            ),
        );
    }
    Check::ok(
        "device-nodes",
        format!(
            "/dev has {}",
            nodes
                .iter()
                .filter(|node| !node.contains("cap"))
                .cloned()
                .collect::<Vec<_>>()
                .join(", ")
        ),
    )
}

fn in_container<'a>(facts: &PreflightFacts, inside: &'a str, outside: &'a str) -> &'a str {
    if is_container(facts) { inside } else { outside }
}

pub(super) fn is_container(facts: &PreflightFacts) -> bool {
    facts
        .host
        .container
        .value()
        .is_some_and(|kind| kind != "wsl")
}

/// Check for absent NVML; a machine without an NVIDIA driver is not a problem.
fn absent_driver(absent: &NvmlAbsent, facts: &PreflightFacts) -> Check {
    let evidence = absent.reason.clone();
    match absent.fault {
        NvmlFault::NotFound | NvmlFault::Library => no_library(absent, facts),
        NvmlFault::Silent => Check::problem("driver", evidence, HANGS),
        NvmlFault::Code(9) => Check::problem(
            "driver",
            evidence,
            "load it with `sudo modprobe nvidia`; if that fails, rebuild the module for this \
             kernel (DKMS) or sign it for Secure Boot",
        ),
        NvmlFault::Code(18) => mismatch(versions_apart(&facts.system)),
        NvmlFault::Code(999) if is_container(facts) => Check::problem(
            "driver",
            "NVML reports `Unknown Error` (999) inside a container; a `systemctl daemon-reload` on \
             the host removes the GPUs' device nodes from running containers",
            "restart the container; to prevent this, use CDI devices, or name the nodes (`--device \
             /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm`)",
        ),
        NvmlFault::Code(999) => Check::problem(
            "driver",
            evidence,
            "look for `NVRM` and `Xid` in `sudo dmesg`; then restart the machine: the driver or a \
             GPU is in a bad state",
        ),
        NvmlFault::Code(4) => Check::problem(
            "driver",
            evidence,
            in_container(
                facts,
                "give the container access to /dev/nvidiactl and /dev/nvidia0",
                "look at `ls -l /dev/nvidia*`; join the group that owns them (often `video`)",
            ),
        ),
        NvmlFault::Thread => Check::problem("driver", evidence, MORE_THREADS),
        NvmlFault::Code(_) | NvmlFault::Other => Check::problem(
            "driver",
            evidence,
            "compare with `nvidia-smi`, and look for `NVRM` in `sudo dmesg`",
        ),
    }
}

fn versions_apart(system: &SystemFacts) -> String {
    let named = |version: &Option<String>| {
        version
            .clone()
            .unwrap_or_else(|| "of unknown version".to_owned())
    };
    format!(
        "`Driver/library version mismatch` (NVML error 18): the loaded kernel module is {}, the \
         library {}",
        named(&system.module_version),
        named(&system.library_version)
    )
}

fn no_library(absent: &NvmlAbsent, facts: &PreflightFacts) -> Check {
    if let Some(module) = &facts.system.module_version {
        return Check::problem(
            "driver",
            format!(
                "the kernel module {module} is loaded, but its library is missing: {}",
                absent.reason
            ),
            in_container(
                facts,
                "start the container with `--gpus all` and the capabilities `compute,utility` \
                 (`NVIDIA_DRIVER_CAPABILITIES`)",
                "install the driver's user-space libraries of the same version \
                 (`libnvidia-compute`, `nvidia-utils`)",
            ),
        );
    }
    if absent.fault == NvmlFault::Library {
        return Check::problem(
            "driver",
            absent.reason.clone(),
            "`KILN_NVML_LIB` names a library that cannot be used; unset it or correct it",
        );
    }
    Check::ok(
        "driver",
        format!("{}; trials run on the CPU", absent.reason),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::tests::facts;
    use kiln_core::record::CheckState;

    fn absent(fault: NvmlFault, reason: &str) -> Result<DriverVersions, NvmlAbsent> {
        Err(NvmlAbsent {
            reason: reason.to_owned(),
            fault,
        })
    }

    fn one(change: impl FnOnce(&mut PreflightFacts)) -> (CheckState, String, String) {
        let mut facts = facts();
        change(&mut facts);
        let check = checks(&facts)
            .into_iter()
            .max_by_key(|check| check.state)
            .unwrap();
        (
            check.state,
            check.evidence,
            check.remedy.unwrap_or_default(),
        )
    }

    #[test]
    fn a_machine_without_a_driver_is_in_order() {
        let (state, evidence, _) = one(|facts| {
            facts.driver = absent(
                NvmlFault::NotFound,
                "no NVIDIA driver found: the system has no libnvidia-ml.so.1",
            );
            facts.system.module_version = None;
        });
        assert_eq!(
            (state, evidence.ends_with("trials run on the CPU")),
            (CheckState::Ok, true),
            "{evidence}"
        );
    }

    #[test]
    fn a_module_without_its_library_is_a_problem_with_the_containers_own_remedy() {
        let broken = |container: Reading<String>| {
            one(|facts| {
                facts.driver = absent(
                    NvmlFault::NotFound,
                    "no NVIDIA driver found: the system has no libnvidia-ml.so.1",
                );
                facts.system.module_version = Some("590.48.01".into());
                facts.host.container = container;
            })
        };
        let (state, evidence, remedy) = broken(Reading::Value("docker".into()));
        assert_eq!(
            (
                state,
                evidence.contains("590.48.01 is loaded"),
                remedy.contains("--gpus all")
            ),
            (CheckState::Problem, true, true)
        );
        assert!(
            broken(Reading::absent("none seen"))
                .2
                .contains("libnvidia-compute")
        );
    }

    #[test]
    fn error_18_names_both_versions() {
        let (state, evidence, remedy) = one(|facts| {
            facts.driver = absent(NvmlFault::Code(18), "mismatch");
            facts.system.module_version = Some("590.48.01".into());
            facts.system.library_version = Some("595.71.05".into());
        });
        assert_eq!(state, CheckState::Problem);
        assert!(
            evidence.contains("module is 590.48.01, the library 595.71.05")
                && remedy.contains("restart"),
            "{evidence}"
        );
    }

    #[test]
    fn error_999_in_a_container_is_the_daemon_reload() {
        let at = |container: Reading<String>| {
            one(|facts| {
                facts.driver = absent(NvmlFault::Code(999), "unknown error (NVML error 999)");
                facts.host.container = container;
            })
        };
        let (_, evidence, remedy) = at(Reading::Value("docker".into()));
        assert!(
            evidence.contains("daemon-reload") && remedy.contains("CDI"),
            "{evidence}"
        );
        assert!(!at(Reading::absent("none seen")).1.contains("daemon-reload"));
    }

    #[test]
    fn versions_that_differ_are_seen_and_prefixes_are_not_differences() {
        assert_eq!(one(|_| {}).0, CheckState::Ok);
        let (state, evidence, _) = one(|facts| {
            facts.driver.as_mut().unwrap().nvml = Reading::Value("12.550.90.07".into())
        });
        assert_eq!(
            (state, evidence.as_str()),
            (
                CheckState::Warning,
                "the library is 12.550.90.07, the driver 590.48.01"
            )
        );
        let windows = one(|facts| {
            facts.system.is_wsl = true;
            facts.driver.as_mut().unwrap().driver = Reading::Value("591.44".into());
            facts.system.module_version = None;
        });
        assert_eq!(windows.0, CheckState::Ok, "{windows:?}");
        let (state, evidence, _) =
            one(|facts| facts.system.module_version = Some("580.65.06".into()));
        assert_eq!(
            (state, evidence.contains("580.65.06")),
            (CheckState::Problem, true)
        );
    }

    #[test]
    fn a_driver_that_hangs_is_a_problem_and_an_unknown_cuda_is_said_as_one() {
        let (state, evidence, _) =
            one(|facts| facts.silence = Some("GPU 0: the driver has not answered for 5 s".into()));
        assert_eq!(
            (state, evidence.as_str()),
            (
                CheckState::Problem,
                "590.48.01 is loaded, but GPU 0: the driver has not answered for 5 s"
            )
        );
        let mut facts = facts();
        facts.driver.as_mut().unwrap().cuda = Reading::Absent(kiln_hardware::Absence::NoSymbol);
        assert_eq!(
            checks(&facts)[0].evidence,
            "590.48.01 is loaded, its newest supported CUDA is unknown (this driver does not \
             provide it)"
        );
    }

    #[test]
    fn a_missing_uvm_node_explains_why_nvidia_smi_alone_works() {
        let (state, evidence, remedy) =
            one(|facts| facts.system.nodes = vec!["nvidia0".into(), "nvidiactl".into()]);
        assert_eq!(
            (
                state,
                evidence.contains("nvidia-smi works without it"),
                remedy.contains("nvidia-modprobe")
            ),
            (CheckState::Problem, true, true)
        );
    }
}
