use super::*;
use crate::preflight::gpu::{MigName, tests::healthy};
use kiln_core::record::CheckState;
use kiln_hardware::{GpuProcess, Reading};

fn known<T>(value: T) -> Reading<T> {
    Reading::Value(value)
}

fn hidden<T>() -> Reading<T> {
    Reading::Absent(Absence::NotSupported)
}

fn found(name: &str, change: impl FnOnce(&mut GpuFacts)) -> Option<(CheckState, String)> {
    let mut gpu = healthy(3);
    change(&mut gpu);
    let check = checks(&gpu, Privacy::Full)
        .into_iter()
        .find(|check| check.name == name)?;
    assert_eq!(
        (check.gpu, check.remedy.is_some()),
        (Some(3), check.state >= CheckState::Warning),
        "{check:?}"
    );
    Some((check.state, check.evidence))
}

#[test]
fn a_healthy_gpu_is_ok_in_everything() {
    let checks = checks(&healthy(0), Privacy::Masked);
    assert!(
        checks.len() >= 10 && checks.iter().all(|check| check.state == CheckState::Ok),
        "{checks:?}"
    );
}

#[test]
fn a_gpu_that_was_not_asked_is_not_one_to_reset() {
    let mut gpu = healthy(0);
    gpu.lost = Some(Absence::NoThread("no room".to_owned()));
    let checks = checks(&gpu, Privacy::Full);
    let health = checks.iter().find(|check| check.name == "health").unwrap();
    assert!(
        health.evidence.contains("the driver was not asked"),
        "{health:?}"
    );
    assert_eq!(health.remedy.as_deref(), Some(MORE_THREADS));
}

#[test]
fn each_fault_is_seen_with_its_evidence() {
    type Case = (&'static str, fn(&mut GpuFacts), CheckState, &'static str);
    let cases: [Case; 27] = [
        (
            "health",
            |gpu| gpu.lost = Some(Absence::Lost),
            CheckState::Problem,
            "fell off the bus",
        ),
        (
            "recovery",
            |gpu| gpu.recovery_action = known(1),
            CheckState::Problem,
            "reset",
        ),
        (
            "held-memory",
            |gpu| gpu.memory_used_bytes = known(8 << 30),
            CheckState::Warning,
            "8.0 GiB are in use, but no process",
        ),
        (
            "persistence",
            |gpu| gpu.is_persistent = known(false),
            CheckState::Warning,
            "each trial initializes it again",
        ),
        (
            "compute-mode",
            |gpu| gpu.compute_mode = known(2),
            CheckState::Problem,
            "prohibited",
        ),
        (
            "compute-mode",
            |gpu| gpu.compute_mode = known(3),
            CheckState::Warning,
            "exclusive",
        ),
        (
            "mig",
            |gpu| (gpu.is_mig, gpu.is_mig_pending) = (known(true), known(true)),
            CheckState::Problem,
            "no instance",
        ),
        (
            "mig",
            |gpu| gpu.is_mig_pending = known(true),
            CheckState::Warning,
            "off now, on after the next reset",
        ),
        (
            "ecc",
            |gpu| gpu.is_ecc_pending = known(false),
            CheckState::Warning,
            "on now, off after the next restart",
        ),
        (
            "memory-errors",
            |gpu| gpu.uncorrected_errors = known(2),
            CheckState::Problem,
            "2 uncorrected",
        ),
        (
            "row-remapping",
            |gpu| gpu.has_remap_failed = known(true),
            CheckState::Problem,
            "could not be replaced",
        ),
        (
            "row-remapping",
            |gpu| gpu.are_rows_pending = known(true),
            CheckState::Warning,
            "waiting to be replaced",
        ),
        (
            "row-remapping",
            |gpu| gpu.spent_banks = known(4),
            CheckState::Warning,
            "left in 4 banks",
        ),
        (
            "retired-pages",
            |gpu| gpu.are_pages_pending = known(true),
            CheckState::Warning,
            "waiting to be retired",
        ),
        (
            "power-limit",
            |gpu| gpu.power_limit = known(450_000),
            CheckState::Warning,
            "450 W, below the board's default of 700 W",
        ),
        (
            "throttling",
            |gpu| gpu.event_reasons = known(0x48),
            CheckState::Warning,
            "temperature (hardware), the hardware's slow-down",
        ),
        (
            "throttling",
            |gpu| {
                (gpu.event_reasons, gpu.utilization_percent, gpu.power_draw) =
                    (known(0x4), hidden(), known(690_000))
            },
            CheckState::Warning,
            "the power limit",
        ),
        (
            "throttling",
            |gpu| gpu.event_reasons = known(0x4),
            CheckState::Ok,
            "none now",
        ),
        (
            "throttling",
            |gpu| (gpu.event_reasons, gpu.utilization_percent) = (known(0x44), hidden()),
            CheckState::Warning,
            "by temperature (hardware)",
        ),
        (
            "temperature",
            |gpu| gpu.event_reasons = known(0x40),
            CheckState::Warning,
            "35 °C, and it is slowed down by temperature now",
        ),
        (
            "temperature",
            |gpu| gpu.temperature_margin = known(4),
            CheckState::Warning,
            "35 °C, 4 degrees below",
        ),
        (
            "temperature",
            |gpu| {
                (
                    gpu.temperature,
                    gpu.slowdown_temperature,
                    gpu.temperature_margin,
                ) = (known(90), known(93), Reading::absent("old board"))
            },
            CheckState::Warning,
            "90 °C, 3 degrees below",
        ),
        (
            "pcie-link",
            |gpu| (gpu.link_width, gpu.link_generation) = (known(8), known(1)),
            CheckState::Warning,
            "x8 of x16: copies",
        ),
        (
            "pcie-link",
            |gpu| {
                (gpu.link_width, gpu.link_generation, gpu.utilization_percent) =
                    (known(8), known(1), known(90))
            },
            CheckState::Warning,
            "generation 1 x8 of generation 5 x16",
        ),
        (
            "mig",
            |gpu| {
                (gpu.is_mig, gpu.is_mig_pending, gpu.mig_instances) = (
                    known(true),
                    known(true),
                    vec![MigName {
                        uuid: "MIG-5".into(),
                        place: None,
                    }],
                )
            },
            CheckState::Warning,
            "with 1 instance:",
        ),
        (
            "pcie-link",
            |gpu| (gpu.link_generation, gpu.utilization_percent) = (known(3), known(90)),
            CheckState::Warning,
            "generation 3 x16 of generation 5 x16 under load",
        ),
        (
            "pcie-link",
            |gpu| gpu.link_generation = known(1),
            CheckState::Ok,
            "the link is idle",
        ),
    ];
    for (name, change, state, words) in cases {
        let (found, evidence) = found(name, change).unwrap_or_else(|| panic!("no check {name}"));
        assert!(
            found == state && evidence.contains(words),
            "{name}: {found} {evidence}"
        );
    }
}

#[test]
fn what_the_board_does_not_have_is_no_check_and_what_is_hidden_is_unknown() {
    let absent = || Reading::Absent(Absence::NotSupported);
    assert_eq!(found("ecc", |gpu| gpu.is_ecc = absent()), None);
    assert_eq!(
        found("row-remapping", |gpu| gpu.has_remap_failed =
            Reading::Absent(Absence::NotSupported)),
        None
    );
    assert_eq!(
        found("processes", |gpu| gpu.users =
            ProcessList::Unknown("hidden".into())),
        Some((CheckState::Unknown, "hidden".into()))
    );
    assert_eq!(
        found("throttling", |gpu| (
            gpu.event_reasons,
            gpu.utilization_percent
        ) = (known(4), known(99)))
        .unwrap()
        .0,
        CheckState::Ok
    );
    assert_eq!(
        found("persistence", |gpu| (
            gpu.is_persistent,
            gpu.is_display_active
        ) = (known(false), known(true)))
        .unwrap()
        .0,
        CheckState::Ok
    );
}

#[test]
fn who_holds_memory_is_named_only_where_identities_may_be_kept() {
    let mut gpu = healthy(0);
    gpu.users = ProcessList::Known(vec![GpuProcess {
        pid: 4711,
        user: Some("ada".into()),
        used_memory_bytes: Some(3 << 30),
    }]);
    let words = |gpu: &GpuFacts, privacy: Privacy| processes(gpu, privacy).evidence;
    assert_eq!(
        words(&gpu, Privacy::Full),
        "other processes hold memory without using the GPU: pid 4711 of ada with 3.0 GiB"
    );
    assert!(!words(&gpu, Privacy::Masked).contains("4711"));
    gpu.utilization_percent = known(80);
    assert!(words(&gpu, Privacy::Full).starts_with("other processes are running kernels (80 %)"));
    gpu.utilization_percent = hidden();
    let unknown = processes(&gpu, Privacy::Full);
    assert!(
        unknown
            .evidence
            .contains("the driver does not report whether they run kernels"),
        "{unknown:?}"
    );
    assert!(!unknown.remedy.is_some_and(|remedy| remedy.contains("kill")));
}

#[test]
fn a_long_list_of_processes_is_cut() {
    let mut gpu = healthy(0);
    let process = |pid| GpuProcess {
        pid,
        user: None,
        used_memory_bytes: None,
    };
    gpu.users = ProcessList::Known((1..=12).map(process).collect());
    let evidence = processes(&gpu, Privacy::Full).evidence;
    assert!(
        evidence.contains("pid 5 of")
            && !evidence.contains("pid 6 of")
            && evidence.ends_with("; and 7 more"),
        "{evidence}"
    );
}
