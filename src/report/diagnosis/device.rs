//! Rules on an underused device: idle time, gradient exchange, or no GPU.

use kiln_core::units::Fraction;

use super::{
    batch::BATCH,
    evidence::{Threshold, ThresholdUnit},
    loading::LIMITING_WAIT,
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::TrialContext,
};

const IDLE: Threshold = Threshold::at_most(
    "`mean_gpu_utilization`",
    0.50,
    ThresholdUnit::Fraction,
    "chosen: half of the time no kernel ran",
);
const COMMUNICATION: Threshold = Threshold::at_least(
    "`communication_fraction`",
    LIMITING_WAIT,
    ThresholdUnit::Fraction,
    "as data wait in docs/measurement.md 5: the devices wait in both cases",
);

pub(super) const LOW_UTILIZATION: Rule = Rule {
    name: "low-utilization",
    columns: &[
        "mean_gpu_utilization",
        "mean_sm_active",
        "median_step_seconds",
        "data_wait_fraction",
        "transfer_fraction",
        "communication_fraction",
        "evaluation_seconds",
        "trial_seconds",
        "batch_size",
        "mean_cpu_cores",
        "cpu_threads",
    ],
    thresholds: &[IDLE],
    means: "The GPU is idle half of the time or more. The shares that the row shows explain at \
            most that much of it, because kernels may run meanwhile; the rest may be the trainer's \
            own thread, kernels that are slow to start, or other processes on the host.",
    refuted_by: "Kernels shorter than the driver's sampling run all the time: `mean_sm_active`, or \
                 a profiler's timeline, shows a busy GPU.",
    explains: &[],
    is_fault: true,
    find: low_utilization,
};

pub(super) const COMMUNICATION_BOUND: Rule = Rule {
    name: "communication-bound",
    columns: &[
        "communication_fraction",
        "devices_per_trial",
        "grad_accumulation",
        "batch_size",
        "median_step_seconds",
        "mean_nvlink_transmit_bytes_per_second",
        "mean_pcie_transmit_bytes_per_second",
    ],
    thresholds: &[COMMUNICATION],
    means: "The devices wait for one another's gradients, once per step: steps of more samples \
            exchange them less often.",
    refuted_by: "With more `train.grad_accumulation` the share falls and the rate stays as it was; \
                 or one device alone is as fast as its share of them.",
    explains: &["low-utilization"],
    is_fault: true,
    find: communication_bound,
};

pub(super) const CPU_ONLY_BY_ACCIDENT: Rule = Rule {
    name: "cpu-only-by-accident",
    columns: &["device_name", "driver", "precision", "engine"],
    thresholds: &[],
    means: "A row does not show `run.devices`. A driver, or a precision made for GPUs, suggests \
            that a GPU was expected; `run.devices: cpu`, or a `CUDA_VISIBLE_DEVICES` that hides \
            all GPUs, would be on purpose.",
    refuted_by: "The run's `experiment.yaml` has `run.devices: cpu`.",
    explains: &[],
    is_fault: false,
    find: cpu_only_by_accident,
};

fn low_utilization(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let share = case
        .row
        .mean_gpu_utilization
        .filter(|share| case.is_on_gpu() && IDLE.is_met(*share))?;
    let says = format!(
        "the GPU's utilization was {}; {}",
        Fraction(share),
        account(case, 1.0 - share)
    );
    let next = match (case.has_loader(), case.trains()) {
        (true, _) => Next::new()
            .vary("data.synthetic", [false, true])
            .vary(BATCH, case.larger_batches()),
        (false, true) => Next::new().vary(BATCH, case.larger_batches()),
        (false, false) => Next::new().repeat(3),
    };
    Some(RuleMatch::new(says, Weight::Costs(1.0 - share), next))
}

/// Text on the time in which no kernel ran: the parts that the row explains, the rest, and the
/// unknown parts.
fn account(case: &TrialContext<'_>, idle: f64) -> String {
    let row = case.row;
    let parts = [
        (
            "waiting for data",
            row.data_wait_fraction,
            case.has_loader(),
        ),
        ("copying batches", row.transfer_fraction, true),
        (
            "exchanging gradients",
            row.communication_fraction,
            row.devices_per_trial.is_some_and(|devices| devices > 1),
        ),
    ];
    let named: Vec<String> = parts
        .iter()
        .filter_map(|(what, share, _)| Some(format!("{what} {}", Fraction((*share)?))))
        .collect();
    let unknown: Vec<&str> = parts
        .iter()
        .filter(|(_, share, applies)| *applies && share.is_none())
        .map(|(what, ..)| *what)
        .collect();
    let left = idle - parts.iter().filter_map(|(_, share, _)| *share).sum::<f64>();
    let idle = Fraction(idle);
    let mut text = match (named.is_empty(), left >= LITTLE) {
        (true, _) => format!("the row explains none of the {idle} of the time without a kernel"),
        (false, true) => {
            format!(
                "of the {idle} of the time without a kernel the row shows {}; {} are unexplained",
                named.join(", "),
                Fraction(left)
            )
        }
        (false, false) => format!(
            "the row shows {}, which may explain all of the {idle} of the time without a kernel",
            named.join(", ")
        ),
    };
    if !unknown.is_empty() {
        text.push_str(&format!("; unknown: {}", unknown.join(", ")));
    }
    let evaluation = row
        .evaluation_seconds
        .zip(row.trial_seconds)
        .map(|(evaluation, trial)| evaluation / trial)
        .filter(|share| *share >= LITTLE);
    if let Some(share) = evaluation {
        text.push_str(&format!(
            "; evaluation ({} of the trial) is not in the window",
            Fraction(share)
        ));
    }
    text
}

/// Smallest share of the time that a text names.
const LITTLE: f64 = 0.01;

fn communication_bound(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let share = case
        .row
        .communication_fraction
        .filter(|share| COMMUNICATION.is_met(*share))?;
    let devices = case.row.devices_per_trial.filter(|devices| *devices > 1)?;
    let says = format!(
        "{devices} devices exchanged gradients for {} of the window",
        Fraction(share)
    );
    let now = case.row.grad_accumulation;
    let more = case
        .larger_batches()
        .into_iter()
        .map(|size| now * size / case.row.batch_size.max(1));
    Some(RuleMatch::new(
        says,
        Weight::Costs(share),
        Next::new().vary("train.grad_accumulation", more),
    ))
}

fn cpu_only_by_accident(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let said_so = case.around.is_cpu_chosen
        || case
            .axes()
            .iter()
            .zip(case.point.values)
            .any(|(axis, value)| axis == "run.devices" && value == "cpu");
    if case.is_on_gpu() || said_so || row.engine != "libtorch" || row.samples_per_second.is_none() {
        return None;
    }
    let name = row.device_name.as_deref().unwrap_or("the CPU");
    let sign = match (&row.driver, row.precision.as_str()) {
        (Some(driver), _) => format!("an NVIDIA driver ({driver}) is present"),
        (None, precision @ "amp-f16") => format!("`train.precision: {precision}` is made for GPUs"),
        _ => return None,
    };
    let devices: Vec<u64> = (0..row.devices_per_trial.unwrap_or(1).max(1)).collect();
    let says = format!(
        "ran on the CPU ({name}) although {sign}; unless `run.devices: cpu` was meant, no GPU was \
         found"
    );
    let next = Next::new().set("run.devices", devices);
    Some(RuleMatch::new(says, Weight::Doubts, next))
}
