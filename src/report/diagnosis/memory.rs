//! Rules on memory: out of memory, nearly full, growing, allocator retries.

use kiln_core::{
    plan::Outcome,
    record::{TrialRow, note::MemoryGrowth},
    units::{Bytes, Fraction, Seconds, counted},
};

use super::{
    evidence::{Threshold, ThresholdUnit},
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::{TrialContext, mean_of, share},
};
use crate::report::points::Point;

const LATE: Threshold = Threshold::at_least(
    "`steps` of a trial that ran out of memory",
    100.0,
    ThresholdUnit::Count,
    "chosen: weights, gradients and the optimizer's moments all exist after the first step, so the \
     batch fits",
);
const GREW: Threshold = Threshold::at_least(
    "growth over the window (the median of each quarter of the readings above the one before)",
    MemoryGrowth::LEAST_BYTES.0 as f64,
    ThresholdUnit::Bytes,
    "docs/measurement.md 7: and 1 %; the trial's note says so",
);
const SHORT_WINDOW: Threshold = Threshold::at_most(
    "`steps` - `left_out_steps`",
    100.0,
    ThresholdUnit::Count,
    "chosen: in so few steps a one-time allocation, such as the pool of a large model, looks like \
     growth",
);
const TENSORS: Threshold = Threshold::at_least(
    "`peak_allocated_bytes` / `memory_limit_bytes`",
    0.90,
    ThresholdUnit::Fraction,
    "chosen: the CUDA context and fragmentation take part of the rest",
);
const DEVICE: Threshold = Threshold::at_least(
    "`peak_nvml_used_bytes` / `memory_limit_bytes` (where the allocator reports nothing)",
    0.95,
    ThresholdUnit::Fraction,
    "chosen: the last twentieth is what the allocator keeps in reserve",
);
const HOST: Threshold = Threshold::at_least(
    "`peak_resident_bytes` / `memory_limit_bytes` (on the CPU)",
    0.90,
    ThresholdUnit::Fraction,
    "chosen: the system begins to drop the pages of files that it will need again",
);
const HOST_LEFT: Threshold = Threshold::at_most(
    "`min_host_memory_available_bytes`",
    536870912.0,
    ThresholdUnit::Bytes,
    "chosen: with one more process of the size of a small training, the kernel kills one",
);
const RETRIES: Threshold = Threshold::at_least(
    "`allocator_retries`",
    3.0,
    ThresholdUnit::Count,
    "docs/tables.md: more than a few slow the trial down; three are a few",
);

/// Data kinds whose rows are of many lengths.
const PAIRS: [&str; 2] = ["sft-jsonl", "chatlm"];

pub(super) const OOM: Rule = Rule {
    name: "oom",
    columns: &[
        "outcome",
        "reason",
        "steps",
        "batch_size",
        "grad_accumulation",
        "peak_allocated_bytes",
        "peak_nvml_used_bytes",
        "peak_resident_bytes",
        "memory_limit_bytes",
    ],
    thresholds: &[],
    means: "Weights, moments and the activations of one batch do not fit together; half the batch \
            with twice the accumulation trains the same, except for batch norm.",
    refuted_by: "Half the batch with twice the accumulation runs out as well: then the batch is \
                 not the cause.",
    explains: &["memory-nearly-full", "allocator-thrashing"],
    is_fault: true,
    find: oom,
};

pub(super) const MEMORY_GROWING: Rule = Rule {
    name: "memory-growing",
    columns: &[
        "outcome",
        "reason",
        "steps",
        "left_out_steps",
        "trial_seconds",
        "allocated_slope_bytes_per_step",
        "resident_slope_bytes_per_step",
        "peak_allocated_bytes",
        "peak_resident_bytes",
        "memory_limit_bytes",
        "median_step_seconds",
    ],
    thresholds: &[GREW, SHORT_WINDOW, LATE],
    means: "Something keeps memory that it no longer needs: a growing list, losses kept with their \
            graphs, lengths that fit no freed block. A longer training runs out.",
    refuted_by: "With `train.memory.watch: true` a longer trial shows the same memory at its end \
                 as in its middle.",
    explains: &["oom", "memory-nearly-full", "allocator-thrashing"],
    is_fault: true,
    find: memory_growing,
};

pub(super) const MEMORY_NEARLY_FULL: Rule = Rule {
    name: "memory-nearly-full",
    columns: &[
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "peak_nvml_used_bytes",
        "peak_resident_bytes",
        "memory_limit_bytes",
        "min_host_memory_available_bytes",
        "batch_size",
    ],
    thresholds: &[TENSORS, DEVICE, HOST, HOST_LEFT],
    means: "It fitted this time: one longer row, an evaluation or another process may exceed the \
            memory.",
    refuted_by: "A longer trial, evaluation included, ends with the same peak.",
    explains: &[],
    is_fault: true,
    find: memory_nearly_full,
};

pub(super) const ALLOCATOR_THRASHING: Rule = Rule {
    name: "allocator-thrashing",
    columns: &[
        "allocator_retries",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "memory_limit_bytes",
        "batch_size",
        "steps",
    ],
    thresholds: &[RETRIES],
    means: "The allocator returned all its free memory to the driver and asked again, which waits \
            for the device each time.",
    refuted_by: "With half the batch there are no retries, and the rate is not higher.",
    explains: &["memory-nearly-full"],
    is_fault: true,
    find: allocator_thrashing,
};

/// Half the batch at the same effective batch size; for a batch of one sample another way to save
/// memory.
fn smaller(case: &TrialContext<'_>) -> Next {
    let row = case.row;
    if case.is_command() {
        return smaller_command(row);
    }
    match (case.trains(), row.batch_size) {
        (false, _) => {
            // 2N³ operations a product: the size follows.
            let size = row
                .flops_per_sample
                .map_or(1024.0, |flops| (flops as f64 / 2.0).cbrt().round());
            Next::new().set("model.size", (size / 2.0).max(1.0) as u64)
        }
        // A table of other origin may have no number there.
        (true, 0 | 1) => Next::new().set("train.optimizer.kind", "adafactor"),
        (true, batch) => {
            let half = batch / 2;
            let passes = (row.grad_accumulation.saturating_mul(batch) / half).max(1);
            Next::new()
                .set("train.batch_size", half)
                .set("train.grad_accumulation", passes)
        }
    }
}

/// The same of a command with a batch; its accumulation is its own value, if it has one.
fn smaller_command(row: &TrialRow) -> Next {
    let (batch, half) = (row.batch_size, row.batch_size / 2);
    let passes = |half: u64| row.grad_accumulation.saturating_mul(batch) / half;
    Next::new().when(half > 0, |next| {
        next.set("train.batch_size", half)
            .set("train.grad_accumulation", passes(half))
    })
}

fn oom(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    if row.outcome != Outcome::Oom {
        return None;
    }
    let when = row
        .steps
        .map(|steps| format!(" after {}", counted(steps as usize, "step")))
        .unwrap_or_default();
    let batch = match row.batch_size {
        0 => String::new(),
        batch => format!(" with batch {batch}"),
    };
    let ran_out = format!("memory ran out{when}{batch}");
    let size = |point: &&Point<'_>| point.rows.first().map_or(0, |row| row.batch_size);
    let fits = case
        .fellows("train.batch_size")
        .into_iter()
        .filter(|point| size(point) < row.batch_size && point.completed().next().is_some());
    match fits.max_by_key(size) {
        Some(point) if case.trains() || case.is_command() => {
            let most = size(&point);
            let says = format!("{ran_out}; the largest batch of this run that fits is {most}");
            let between = most + (row.batch_size - most) / 2;
            let next = Next::new().vary("train.batch_size", [most, between]);
            let name = point.name(case.axes());
            let means = [
                mean_of(point, &name, "batch_size", |row| {
                    Some(row.batch_size as f64)
                }),
                mean_of(point, &name, "peak_allocated_bytes", |row| {
                    row.peak_allocated_bytes.map(|bytes| bytes as f64)
                }),
            ];
            Some(RuleMatch::new(says, Weight::Ended, next).with(means.into_iter().flatten()))
        }
        _ if row.batch_size == 0 => Some(RuleMatch::new(ran_out, Weight::Ended, smaller(case))),
        _ => Some(RuleMatch::new(
            format!("{ran_out}; no smaller batch of this run shows what fits"),
            Weight::Ended,
            smaller(case),
        )),
    }
}

/// Returns the memory that grew and the note that says so. Device memory comes before host memory.
fn growth<'a>(case: &TrialContext<'a>) -> Option<(&'static str, &'static str, &'a str)> {
    let of = |memory, column| Some((memory, column, MemoryGrowth::told(case.row, column)?));
    of("device", "allocated_slope_bytes_per_step")
        .or_else(|| of("host", "resident_slope_bytes_per_step"))
}

fn memory_growing(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let late = row
        .steps
        .filter(|steps| row.outcome == Outcome::Oom && LATE.is_met(*steps as f64));
    let ran_out = late.map(|steps| {
        let after = row
            .trial_seconds
            .map(|seconds| format!(" and {}", Seconds(seconds)))
            .unwrap_or_default();
        format!("memory ran out after {steps} steps{after}")
    });
    let next = watched(case, late.is_some());
    let Some((memory, column, note)) = growth(case) else {
        let says = format!(
            "{}: the first steps fitted, so memory grew or one batch was larger than all before",
            ran_out?
        );
        return Some(RuleMatch::new(says, Weight::Ended, next));
    };
    let grew = format!("{memory} memory {note}");
    let (says, weight, next) = match (ran_out, short_training(case)) {
        (Some(ran_out), _) => (format!("{ran_out}, and {grew}"), Weight::Ended, next),
        (None, None) => {
            let left = time_left(case, memory);
            let says = format!("{grew}{left}; a longer training may run out of it");
            (says, Weight::Threatens, next)
        }
        (None, Some(steps)) => {
            let longer = steps.saturating_mul(10).clamp(200, 1_000_000_000);
            let says = format!("{grew}; only a longer training shows whether it continues");
            let next = next.when(!case.sweeps("train.epochs"), |next| {
                next.set("train.steps", longer)
            });
            (says, Weight::Doubts, next)
        }
    };
    Some(RuleMatch::new(says, weight, next).with([TrialContext::quoted(column, note)]))
}

/// The next experiment: the same training with its memory watched.
fn watched(case: &TrialContext<'_>, ran_out_late: bool) -> Next {
    // Rows of many lengths: the longest may come late.
    let may_be_long = ran_out_late && PAIRS.contains(&case.row.data_kind.as_str());
    Next::new()
        .set("train.memory.watch", true)
        .when(may_be_long, |next| next.set("data.longest_first", true))
        .when(case.has_loader() && !may_be_long, |next| {
            next.vary("data.synthetic", [false, true])
        })
}

/// The steps of a training whose window is too short to tell growth from a one-time allocation.
fn short_training(case: &TrialContext<'_>) -> Option<u64> {
    let steps = case.row.steps?;
    let window = steps.saturating_sub(case.row.left_out_steps.unwrap_or(0));
    SHORT_WINDOW.is_met(window as f64).then_some(steps)
}

/// Time until the memory is full if the slope continues.
fn time_left(case: &TrialContext<'_>, memory: &str) -> String {
    let row = case.row;
    let (slope, peak) = match memory {
        "device" => (row.allocated_slope_bytes_per_step, row.peak_allocated_bytes),
        _ if case.is_on_gpu() => return String::new(),
        _ => (row.resident_slope_bytes_per_step, row.peak_resident_bytes),
    };
    let left = || {
        let steps = row.memory_limit_bytes?.saturating_sub(peak?) as f64
            / slope.filter(|slope| *slope > 0.0)?;
        let time = row
            .median_step_seconds
            .map(|seconds| format!(" ({})", Seconds(seconds * steps)))
            .unwrap_or_default();
        Some(format!(
            "; at this pace it is full after {steps:.0} more{time}"
        ))
    };
    left().unwrap_or_default()
}

fn memory_nearly_full(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let of = |used: Option<u64>| share(used?, row.memory_limit_bytes?);
    let device = match row.peak_allocated_bytes {
        Some(_) => of(row.peak_allocated_bytes).filter(|share| TENSORS.is_met(*share)),
        None => of(row.peak_nvml_used_bytes).filter(|share| DEVICE.is_met(*share)),
    };
    let host = of(row.peak_resident_bytes).filter(|share| HOST.is_met(*share) && !case.is_on_gpu());
    let full = device
        .filter(|_| case.is_on_gpu())
        .map(|share| ("device", share))
        .or(host.map(|share| ("host", share)));
    let left = row
        .min_host_memory_available_bytes
        .filter(|left| HOST_LEFT.is_met(*left as f64));
    let limit = row.memory_limit_bytes.map(|bytes| Bytes(bytes).to_string());
    let limit = limit.unwrap_or_default();
    let says = match (full, left) {
        // The memory that it held counts mapped files too; the limit counts only allocated memory.
        (Some(("host", share)), _) if share > 1.0 => format!(
            "{} were held in host memory at the peak, mapped files among them, and the trial may \
             allocate {limit}",
            Bytes(row.peak_resident_bytes.unwrap_or_default())
        ),
        (Some((memory, share)), _) => {
            format!(
                "{} of the {limit} that the trial may use on the {memory} were used at the peak",
                Fraction(share),
            )
        }
        (None, Some(left)) => format!("{} of host memory were left at the peak", Bytes(left)),
        (None, None) => return None,
    };
    let fewer_batches =
        full.is_none() && row.num_workers.is_some_and(|workers| workers > 1) && case.has_loader();
    let next = if fewer_batches {
        Next::new().set("data.num_workers", row.num_workers.unwrap_or(2) / 2)
    } else {
        smaller(case)
    };
    let degree = full.map_or(0.0, |(_, share)| share);
    Some(RuleMatch::new(says, Weight::Doubts, next).of_degree(degree))
}

fn allocator_thrashing(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let retries = case
        .row
        .allocator_retries
        .filter(|retries| RETRIES.is_met(*retries as f64))?;
    let says =
        format!("the device's allocator returned its free memory and retried {retries} times");
    Some(RuleMatch::new(says, Weight::Doubts, smaller(case)).of_degree(retries as f64))
}
