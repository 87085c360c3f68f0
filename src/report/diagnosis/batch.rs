//! Rules on steps that are too small for the device: launches, small batches, memory to spare.

use kiln_core::{
    record::{TrialRow, note::ReplayedSteps},
    units::{Bytes, Fraction, Seconds},
};

use super::{
    evidence::{Threshold, ThresholdUnit},
    loading::NOTABLE_WAIT,
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::{FASTER, NeighborSides, TrialContext, mean_of},
};
use crate::report::points::Point;

const GROWS: Threshold = Threshold::at_least(
    "growth of a pass from this batch to the next one of the run, or from the one before / growth \
     of the batch (if met, the rule does not fire)",
    0.5,
    ThresholdUnit::Fraction,
    "chosen: then at least half of the pass is work on samples, not a cost per kernel",
);

const SHORT_STEP: Threshold = Threshold::at_most(
    "`median_step_seconds` / `grad_accumulation`",
    0.010,
    ThresholdUnit::Seconds,
    "chosen: a training step starts a few hundred to a thousand kernels, and the host needs 5 to \
     10 µs to start each",
);

const FEW_SMS: Threshold = Threshold::at_most(
    "`mean_sm_active`",
    0.20,
    ThresholdUnit::Fraction,
    "chosen: four of five multiprocessors were idle; `utilization.gpu` does not show it \
     (docs/measurement.md 10)",
);

const LITTLE_ARITHMETIC: Threshold = Threshold::at_most(
    "`mfu` (where `mean_sm_active` is not known)",
    0.05,
    ThresholdUnit::Fraction,
    "chosen: trainings that fill a GPU reach 20 to 60 % (PaLM, appendix B, lists 21 to 46 %)",
);

const TINY_STEP: Threshold = Threshold::at_most(
    "`median_step_seconds` / `grad_accumulation`",
    0.002,
    ThresholdUnit::Seconds,
    "chosen: about the time to start the kernels of a few layers, so that a CPU may be as fast",
);

const FED: Threshold = Threshold::at_most(
    "`data_wait_fraction`",
    NOTABLE_WAIT,
    ThresholdUnit::Fraction,
    "docs/measurement.md 5: 10 % wait is worth a warning",
);

const WORKING: Threshold = Threshold::at_least(
    "`mean_gpu_utilization`",
    0.50,
    ThresholdUnit::Fraction,
    "chosen: more often than not a kernel was running",
);

const HALF_THE_SMS: Threshold = Threshold::at_most(
    "`mean_sm_active`",
    0.50,
    ThresholdUnit::Fraction,
    "chosen: half of the multiprocessors could take more",
);

const FEW_FLOPS: Threshold = Threshold::at_most(
    "`mfu` (where `mean_sm_active` is not known)",
    0.10,
    ThresholdUnit::Fraction,
    "chosen: half of the lowest that trainings of published models reach (PaLM, appendix B)",
);

const ROOM: Threshold = Threshold::at_most(
    "`peak_nvml_used_bytes` / `memory_limit_bytes`",
    0.50,
    ThresholdUnit::Fraction,
    "chosen: at least twice the batch fits",
);

const WORKING_WELL: Threshold = Threshold::at_least(
    "`mean_gpu_utilization`",
    0.80,
    ThresholdUnit::Fraction,
    "chosen: a kernel ran nearly all the time; that does not show how efficient it was",
);

const LITTLE_MEMORY: Threshold = Threshold::at_most(
    "`peak_nvml_used_bytes` / `memory_limit_bytes`",
    0.30,
    ThresholdUnit::Fraction,
    "chosen: so low that users ask why",
);

const SMALL_BATCH: Threshold = Threshold::at_most(
    "`batch_size`",
    16.0,
    ThresholdUnit::Count,
    "chosen: with larger batches the model is small, not the batch",
);

pub(super) const LAUNCH_BOUND: Rule = Rule {
    name: "launch-bound",
    columns: &[
        "median_step_seconds",
        "grad_accumulation",
        "mean_sm_active",
        "mean_gpu_utilization",
        "mfu",
        "data_wait_fraction",
        "batch_size",
        "mean_cpu_cores",
    ],
    thresholds: &[
        SHORT_STEP,
        FEW_SMS,
        LITTLE_ARITHMETIC,
        FED,
        GROWS,
        TINY_STEP,
    ],
    means: "Passes are short and most of the GPU is idle, as it is where the GPU ends kernels \
            faster than the host starts them. Many small kernels that wait for memory, or a slow \
            host, look the same in this row; a larger batch shows whether the device had room.",
    refuted_by: "A pass over a larger batch takes longer in proportion to the batch; or a deeper \
                 model at the same batch takes longer by more than its kernels cost to start.",
    explains: &["batch-too-small", "memory-to-spare", "low-utilization"],
    is_fault: true,
    find: launch_bound,
};

pub(super) const BATCH_TOO_SMALL: Rule = Rule {
    name: "batch-too-small",
    columns: &[
        "batch_size",
        "mean_gpu_utilization",
        "mean_sm_active",
        "mfu",
        "peak_nvml_used_bytes",
        "peak_reserved_bytes",
        "memory_limit_bytes",
        "data_wait_fraction",
    ],
    thresholds: &[WORKING, HALF_THE_SMS, FEW_FLOPS, ROOM, FED, FASTER],
    means: "The GPU always runs some kernel but fills neither its multiprocessors nor its memory: \
            a larger batch may cost little more time.",
    refuted_by: "A larger batch, repeated in turns with this one, does not train more samples per \
                 second.",
    explains: &["memory-to-spare"],
    is_fault: true,
    find: batch_too_small,
};

pub(super) const MEMORY_TO_SPARE: Rule = Rule {
    name: "memory-to-spare",
    columns: &[
        "mean_gpu_utilization",
        "mean_sm_active",
        "mfu",
        "batch_size",
        "peak_nvml_used_bytes",
        "peak_reserved_bytes",
        "memory_limit_bytes",
    ],
    thresholds: &[WORKING_WELL, LITTLE_MEMORY, SMALL_BATCH],
    means: "Memory holds the weights and the activations of one batch; free memory costs nothing, \
            and filling it is not a goal.",
    refuted_by: "A larger batch, repeated in turns with this one, trains more samples per second.",
    explains: &[],
    is_fault: false,
    find: memory_to_spare,
};

/// Whether the loader keeps up; unknown counts as yes, as for a model without a loader.
fn is_fed(case: &TrialContext<'_>) -> bool {
    case.row
        .data_wait_fraction
        .is_none_or(|wait| wait < FED.value)
}

/// Whether the active share of the chip is below a threshold: by its own counters, else by MFU.
fn works_below(case: &TrialContext<'_>, sms: Threshold, flops: Threshold) -> bool {
    match case.row.mean_sm_active {
        Some(active) => sms.is_met(active),
        None => flops.is_met(case.row.mfu),
    }
}

fn pass_seconds(case: &TrialContext<'_>) -> Option<f64> {
    Some(case.row.median_step_seconds? / case.row.grad_accumulation.max(1) as f64)
}

/// `2.1 % of its multiprocessors had work, MFU 0.4 %`, as far as known.
fn work_of_the_chip(case: &TrialContext<'_>) -> String {
    let active = case
        .row
        .mean_sm_active
        .map(|active| format!("{} of its multiprocessors had work", Fraction(active)));
    let mfu = case
        .row
        .mfu
        .map(|mfu| format!("its MFU is {}", Fraction(mfu)));
    active
        .into_iter()
        .chain(mfu)
        .collect::<Vec<_>>()
        .join(" and ")
}

/// Unused share of the device, by the best available figure.
fn unused(case: &TrialContext<'_>) -> Weight {
    Weight::Costs(
        1.0 - case
            .row
            .mean_sm_active
            .or(case.row.mfu)
            .unwrap_or(0.0)
            .clamp(0.0, 1.0),
    )
}

fn launch_bound(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let seconds = pass_seconds(case)
        .filter(|seconds| case.is_on_gpu() && is_fed(case) && SHORT_STEP.is_met(*seconds))?;
    // The host starts few kernels of a replayed step.
    if ReplayedSteps::of(case.row).is_some() {
        return None;
    }
    if !works_below(case, FEW_SMS, LITTLE_ARITHMETIC) || grows_with_the_batch(case, seconds) {
        return None;
    }
    let busy = case
        .row
        .mean_gpu_utilization
        .map(|share| format!(" (utilization {})", Fraction(share)))
        .unwrap_or_default();
    let fact = format!(
        "a pass over one batch takes {}, {} on the GPU{busy}",
        Seconds(seconds),
        work_of_the_chip(case)
    );
    let is_tiny = TINY_STEP.is_met(seconds);
    let larger = next_batches(case).1;
    let of_larger = larger.and_then(|point| {
        Some(format!(
            "; with batch {} a pass takes {}",
            batch_of(point)?,
            Seconds(pass_of(point)?)
        ))
    });
    let maybe_cpu = if is_tiny {
        "; with passes so short a CPU may be as fast"
    } else {
        ""
    };
    let says = format!(
        "{fact}{}: this fits the cost of starting kernels; small kernels that wait for memory, or \
         a slow host, look the same{maybe_cpu}",
        of_larger.unwrap_or_default()
    );
    // `tf32` is refused on the CPU.
    let compares_cpu = is_tiny && case.row.precision != "tf32" && case.row.engine == "libtorch";
    let next = Next::new().vary(BATCH, case.larger_batches());
    let is_recordable = case.trains()
        && !case.is_command()
        && case.row.engine == "libtorch"
        && case.row.note(ReplayedSteps::COLUMN).is_none()
        && case.row.gradient_noise_step.is_none()
        && case.row.devices_per_trial.unwrap_or(1) == 1
        && !case.axes().iter().any(|axis| axis == CUDA_GRAPH);
    let next = next.when(is_recordable, |next| next.vary(CUDA_GRAPH, ["off", "on"]));
    // On the CPU nothing is recorded: the two questions are not one grid.
    let next = next.when(compares_cpu && !is_recordable, |next| {
        next.vary("run.devices", ["cpu", "auto"])
    });
    let mean = larger.and_then(|point| {
        mean_of(
            point,
            &point.name(case.axes()),
            "median_step_seconds",
            |row| row.median_step_seconds,
        )
    });
    Some(RuleMatch::new(says, unused(case), next).with(mean))
}

/// The axis of steps that are run operator by operator, or replayed.
const CUDA_GRAPH: &str = "train.cuda_graph";

/// The axis of batch sizes.
pub(super) const BATCH: &str = "train.batch_size";

fn batch_of(point: &Point<'_>) -> Option<u64> {
    point.rows.first().map(|row| row.batch_size)
}

/// Mean time of a pass over one batch.
fn pass_of(point: &Point<'_>) -> Option<f64> {
    let seconds =
        |row: &TrialRow| Some(row.median_step_seconds? / row.grad_accumulation.max(1) as f64);
    Some(point.statistic(seconds)?.mean)
}

/// The points of the run with the next smaller and the next larger batch of those that tell the
/// time of a pass.
fn next_batches<'a>(case: &TrialContext<'a>) -> (Option<&'a Point<'a>>, Option<&'a Point<'a>>) {
    let own = case.row.batch_size;
    let measured = || {
        case.fellows(BATCH)
            .into_iter()
            .filter(|point| pass_of(point).is_some())
    };
    let smaller = measured()
        .filter(|point| batch_of(point).is_some_and(|batch| batch < own))
        .max_by_key(|point| batch_of(point));
    let larger = measured()
        .filter(|point| batch_of(point).is_some_and(|batch| batch > own))
        .min_by_key(|point| batch_of(point));
    (smaller, larger)
}

/// Whether pass time grows in proportion to the batch, from the next smaller batch of the run or to
/// the next larger one.
fn grows_with_the_batch(case: &TrialContext<'_>, seconds: f64) -> bool {
    let own = (
        case.row.batch_size as f64,
        pass_of(case.point).unwrap_or(seconds),
    );
    let of = |point: Option<&Point<'_>>| Some((batch_of(point?)? as f64, pass_of(point?)?));
    let growth = |(batch, pass): (f64, f64), (larger, longer): (f64, f64)| {
        (longer / pass - 1.0) / (larger / batch - 1.0)
    };
    let (smaller, larger) = next_batches(case);
    of(smaller).is_some_and(|smaller| GROWS.is_met(growth(smaller, own)))
        || of(larger).is_some_and(|larger| GROWS.is_met(growth(own, larger)))
}

fn batch_too_small(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let working = row.mean_gpu_utilization.filter(|share| {
        case.is_on_gpu() && case.trains() && is_fed(case) && WORKING.is_met(*share)
    })?;
    let memory = case
        .device_memory_share()
        .filter(|share| ROOM.is_met(*share))?;
    let sizes = case.larger_batches();
    if !works_below(case, HALF_THE_SMS, FEW_FLOPS) || sizes.len() < 2 {
        return None;
    }
    let is_larger = |point: &Point<'_>| batch_of(point).is_some_and(|batch| batch > row.batch_size);
    let has_rate = |point: &Point<'_>| point.statistic(|row| row.samples_per_second).is_some();
    let comparable = case.comparable(BATCH, is_larger);
    let best = case.faster_among(BATCH, &comparable, NeighborSides::One);
    // Larger batches of the run that gain nothing say that this one is large enough.
    if best.is_none() && !comparable.is_empty() {
        return None;
    }
    let tried: Vec<u64> = case
        .fellows(BATCH)
        .into_iter()
        .filter(|point| is_larger(point) && has_rate(point))
        .filter_map(batch_of)
        .collect();
    let is_open = best.is_none() && !tried.is_empty();
    let shown = match best {
        Some((point, better)) => format!(
            "; batch {} made {} more samples/s ({better})",
            point.rows[0].batch_size,
            Fraction(better.ratio - 1.0)
        ),
        None if is_open => {
            "; interleaved repeats are needed to tell whether a larger one is faster".to_owned()
        }
        None => String::new(),
    };
    let says = format!(
        "with batch {} the GPU worked {} of the time, but {}, with {} of its memory used{shown}",
        row.batch_size,
        Fraction(working),
        work_of_the_chip(case),
        Fraction(memory),
    );
    let rates = best.map(|(point, _)| case.rates(point)).unwrap_or_default();
    let next = match is_open {
        true => Next::new()
            .vary(BATCH, std::iter::once(row.batch_size).chain(tried))
            .repeat(3),
        false => Next::new().vary(BATCH, sizes),
    };
    Some(RuleMatch::new(says, unused(case), next).with(rates))
}

fn memory_to_spare(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let working = row
        .mean_gpu_utilization
        .filter(|share| case.is_on_gpu() && case.trains() && WORKING_WELL.is_met(*share))?;
    let memory = case
        .device_memory_share()
        .filter(|share| LITTLE_MEMORY.is_met(*share))?;
    if !SMALL_BATCH.is_met(row.batch_size as f64) {
        return None;
    }
    let says = format!(
        "the GPU is working (utilization {}); memory is low ({} of {}) because the batch is small \
         ({}): not a fault",
        Fraction(working),
        Fraction(memory),
        row.memory_limit_bytes
            .map(|bytes| Bytes(bytes).to_string())
            .unwrap_or_default(),
        row.batch_size
    );
    Some(RuleMatch::new(
        says,
        Weight::Tells,
        Next::new().vary(BATCH, case.larger_batches()),
    ))
}
