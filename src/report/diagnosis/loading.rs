//! Rules on batches that come late: loader, disk, too few cores, transfer to the device.

use kiln_core::units::{Bytes, Fraction, counted, significant};

use super::{
    evidence::{Evidence, Threshold, ThresholdUnit},
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::{FASTER, NeighborSides, TrialContext, mean_of},
};
use crate::report::{points::Point, rates::Gain};

/// A device that waits for this share of the time, for data or otherwise, is worth a warning.
pub(super) const NOTABLE_WAIT: f64 = 0.10;
/// A device that waits for this share of the time is limited by what it waits for.
pub(super) const LIMITING_WAIT: f64 = 0.20;

const WAIT_MATTERS: Threshold = Threshold::at_least(
    "`data_wait_fraction`",
    NOTABLE_WAIT,
    ThresholdUnit::Fraction,
    "docs/measurement.md 5: 10 % wait is worth a warning",
);
const WAIT_LIMITS: Threshold = Threshold::at_least(
    "`data_wait_fraction`",
    LIMITING_WAIT,
    ThresholdUnit::Fraction,
    "docs/measurement.md 5: 20 % is a diagnosis",
);
const DISK_BUSY: Threshold = Threshold::at_least(
    "`mean_disk_busy_fraction`",
    0.80,
    ThresholdUnit::Fraction,
    "chosen: from about here on requests queue on a disk that serves one at a time; disks that \
     serve many may still have room",
);
const DISK_READS: Threshold = Threshold::at_least(
    "`disk_read_bytes` / `trial_seconds`",
    1048576.0,
    ThresholdUnit::Bytes,
    "chosen: the slowest disks read small files at about 1 MiB/s; below that, another process \
     keeps the disk busy",
);
const WORKERS_BUSY: Threshold = Threshold::at_least(
    "`load_seconds` / (`window_seconds` × `num_workers`)",
    0.80,
    ThresholdUnit::Fraction,
    "chosen: workers pause when their queues are full, and these hardly paused",
);
const WORKERS_PER_CORE: Threshold = Threshold::at_least(
    "`num_workers` / cores",
    2.0,
    ThresholdUnit::Count,
    "chosen: PyTorch warns from more than one worker per core; two leave room for workers that \
     wait for a disk",
);
const MANY_WORKERS: Threshold = Threshold::at_least(
    "`num_workers`",
    9.0,
    ThresholdUnit::Count,
    "docs/experiment-file.md: `num_workers: auto` takes at most 8",
);
const TRANSFER_MATTERS: Threshold = Threshold::at_least(
    "`transfer_fraction`",
    NOTABLE_WAIT,
    ThresholdUnit::Fraction,
    "as data wait in docs/measurement.md 5: both make the device wait",
);

/// The axis of loader workers.
const WORKERS: &str = "data.num_workers";

pub(super) const DATA_BOUND: Rule = Rule {
    name: "data-bound",
    columns: &[
        "data_wait_fraction",
        "num_workers",
        "load_seconds",
        "window_seconds",
        "cpu_threads",
        "mean_cpu_cores",
        "mean_gpu_utilization",
        "mean_sm_active",
    ],
    thresholds: &[WAIT_LIMITS, FASTER],
    means: "The trainer waits for the loader to deliver a batch: a faster step does not make the \
            training faster. On a GPU the wait counts as far as the GPU is idle beside it: while it \
            works off queued steps, waiting costs nothing.",
    refuted_by: "`data.synthetic: true` reuses one batch: if that is not faster, the loader is not \
                 the limit.",
    explains: &[
        "data-wait",
        "low-utilization",
        "launch-bound",
        "batch-too-small",
        "memory-to-spare",
    ],
    is_fault: true,
    find: |case| {
        waits(case)
            .filter(|wait| WAIT_LIMITS.is_met(*wait))
            .map(|wait| waiting(case, wait))
    },
};

pub(super) const DATA_WAIT: Rule = Rule {
    name: "data-wait",
    columns: &[
        "data_wait_fraction",
        "num_workers",
        "load_seconds",
        "window_seconds",
        "mean_gpu_utilization",
        "mean_sm_active",
    ],
    thresholds: &[WAIT_MATTERS, FASTER],
    means: "The loader begins to limit the speed: it will be the limit once the step is faster.",
    refuted_by: "`data.synthetic: true` reuses one batch: if that is not faster, the wait costs \
                 nothing.",
    explains: &[],
    is_fault: true,
    find: |case| {
        waits(case)
            .filter(|wait| WAIT_MATTERS.is_met(*wait))
            .map(|wait| waiting(case, wait))
    },
};

pub(super) const DISK_BOUND: Rule = Rule {
    name: "disk-bound",
    columns: &[
        "data_wait_fraction",
        "mean_disk_busy_fraction",
        "disk_read_bytes",
        "trial_seconds",
        "num_workers",
        "mean_gpu_utilization",
        "mean_sm_active",
    ],
    thresholds: &[WAIT_LIMITS, DISK_BUSY, DISK_READS],
    means: "The loader waits for a disk: more workers would wait for the same disk, and a run \
            whose data is in the page cache is faster.",
    refuted_by: "A second run of the same data, which the page cache then holds, is not faster; or \
                 the disk is as busy without the trial.",
    explains: &[
        "data-bound",
        "data-wait",
        "too-many-workers",
        "low-utilization",
        "launch-bound",
        "batch-too-small",
        "memory-to-spare",
    ],
    is_fault: true,
    find: disk_bound,
};

pub(super) const WORKERS_STARVED: Rule = Rule {
    name: "workers-starved",
    columns: &[
        "data_wait_fraction",
        "num_workers",
        "load_seconds",
        "window_seconds",
        "cpu_threads",
        "mean_cpu_cores",
        "batch_size",
        "mean_gpu_utilization",
        "mean_sm_active",
    ],
    thresholds: &[WAIT_LIMITS, WORKERS_BUSY],
    means: "The workers are busy all the time and share too few cores, so more of them cannot \
            help: make batches cheaper to prepare, or use more cores.",
    refuted_by: "The same trial with more workers, or on more cores, waits less.",
    explains: &[
        "data-bound",
        "data-wait",
        "too-many-workers",
        "low-utilization",
        "launch-bound",
        "batch-too-small",
        "memory-to-spare",
    ],
    is_fault: true,
    find: workers_starved,
};

pub(super) const TOO_MANY_WORKERS: Rule = Rule {
    name: "too-many-workers",
    columns: &[
        "num_workers",
        "samples_per_second",
        "load_seconds",
        "window_seconds",
        "cpu_threads",
        "mean_cpu_cores",
        "peak_resident_bytes",
    ],
    thresholds: &[FASTER, WORKERS_PER_CORE, MANY_WORKERS],
    means: "Workers without a free core share the cores; each batch then takes longer to make, and \
            more batches are held in memory.",
    refuted_by: "Both numbers of workers, repeated in turns, are equally fast; where no other \
                 number was compared, only the next experiment can tell.",
    explains: &[],
    is_fault: true,
    find: too_many_workers,
};

pub(super) const TRANSFER_BOUND: Rule = Rule {
    name: "transfer-bound",
    columns: &[
        "transfer_fraction",
        "batch_size",
        "mean_pcie_receive_bytes_per_second",
        "mean_gpu_utilization",
    ],
    thresholds: &[TRANSFER_MATTERS],
    means: "Copying batches to the device takes a large share of the time; page-locked memory or a \
            smaller number type makes copies faster.",
    refuted_by: "With page-locked memory the share falls and the rate stays as it was: the copies \
                 then ran beside the computation.",
    explains: &["low-utilization"],
    is_fault: true,
    find: transfer_bound,
};

/// The share of the window in which waiting for data may have cost time. Programs without events, and
/// kiln before them, count waits of the host that cost nothing, because the GPU worked off its queue.
fn waits(case: &TrialContext<'_>) -> Option<f64> {
    let wait = case.row.data_wait_fraction.filter(|_| case.has_loader())?;
    // Others may keep the device busy.
    let is_alone = case.is_on_gpu() && case.row.others_on_device().is_none();
    // A MIG instance has no utilization. Kernels run at least as long as multiprocessors have work.
    let busy = case.row.mean_gpu_utilization.or(case.row.mean_sm_active);
    Some(
        busy.filter(|_| is_alone)
            .map_or(wait, |busy| wait.min(1.0 - busy)),
    )
}

/// `waited for data in 94.0 % of the window, the GPU's utilization was 3.0 %`.
fn waited(case: &TrialContext<'_>, cost: f64) -> String {
    let wait = case.row.data_wait_fraction.unwrap_or(cost);
    let utilization = case
        .row
        .mean_gpu_utilization
        .map(|share| format!(" while the GPU's utilization was {}", Fraction(share)));
    format!(
        "the trainer waited for data {} of the window{}",
        Fraction(wait),
        utilization.unwrap_or_default()
    )
}

fn waiting(case: &TrialContext<'_>, wait: f64) -> RuleMatch {
    let workers = case.row.num_workers.unwrap_or(0);
    let limit = if WAIT_LIMITS.is_met(wait) {
        "the loader is the limit"
    } else {
        "the loader begins to matter"
    };
    let says = format!(
        "{}, with {}: {limit}",
        waited(case, wait),
        counted(workers as usize, "worker")
    );
    match better_workers(case) {
        Some((other, better)) => {
            let count = other.rows[0].num_workers.unwrap_or(0);
            let tried = format!(
                "{says}; {} made {} more samples/s ({better})",
                counted(count as usize, "worker"),
                Fraction(better.ratio - 1.0)
            );
            let next = Next::new()
                .vary(WORKERS, [count])
                .vary("data.synthetic", [false, true]);
            RuleMatch::new(tried, Weight::Costs(wait), next).with(of_loader(case, other))
        }
        None if case.point.is_synthetic(case.axes()) => RuleMatch::new(
            says,
            Weight::Costs(wait),
            Next::new().set("data.synthetic", false),
        ),
        None => {
            let most = case.cores().unwrap_or(4).max(2);
            let next = Next::new().vary(WORKERS, worker_counts(workers, most));
            let advice = if workers < most {
                "try more `data.num_workers`"
            } else {
                "try `data.synthetic` to see the speed without it"
            };
            RuleMatch::new(
                format!("{says}; {advice}"),
                Weight::Costs(wait),
                next.when(workers >= most, |next| {
                    next.vary("data.synthetic", [false, true])
                }),
            )
        }
    }
}

/// The fastest point of the run with other workers and otherwise the same, where it is clearly
/// faster and does not wait.
fn better_workers<'a>(case: &TrialContext<'a>) -> Option<(&'a Point<'a>, Gain)> {
    let is_fed = |point: &Point<'_>| {
        point
            .statistic(|row| row.data_wait_fraction)
            .is_some_and(|wait| !WAIT_MATTERS.is_met(wait.mean))
    };
    case.faster_among(
        WORKERS,
        &case.comparable(WORKERS, is_fed),
        NeighborSides::Both,
    )
}

fn of_loader(case: &TrialContext<'_>, point: &Point<'_>) -> Vec<Evidence> {
    let wait = mean_of(
        point,
        &point.name(case.axes()),
        "data_wait_fraction",
        |row| row.data_wait_fraction,
    );
    wait.into_iter().chain(case.rates(point)).collect()
}

/// The current number and up to three doublings of it, at most the number of cores; half of it
/// where it has that many already.
fn worker_counts(now: u64, cores: u64) -> Vec<u64> {
    let mut counts = vec![now];
    let mut next = now.saturating_mul(2).max(1);
    while next <= cores && counts.len() < 4 {
        counts.push(next);
        next *= 2;
    }
    if counts.len() == 1 && now > 1 {
        counts.insert(0, (now / 2).min(cores));
    }
    counts
}

fn disk_bound(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let wait = waits(case).filter(|wait| WAIT_LIMITS.is_met(*wait))?;
    let busy = case
        .row
        .mean_disk_busy_fraction
        .filter(|busy| DISK_BUSY.is_met(*busy))?;
    let read = case.row.disk_read_bytes?;
    let seconds = case.row.trial_seconds.filter(|seconds| *seconds > 0.0)?;
    let per_second = read as f64 / seconds;
    if !DISK_READS.is_met(per_second) {
        return None;
    }
    let says = format!(
        "{} while a disk was busy {} of it and gave the trial {}/s: the disk is the limit, not the \
         number of workers",
        waited(case, wait),
        Fraction(busy),
        Bytes(per_second as u64)
    );
    // In the second repeat the data is in the page cache.
    Some(RuleMatch::new(
        says,
        Weight::Costs(wait),
        Next::new().vary("data.synthetic", [false, true]).repeat(2),
    ))
}

/// Share of time in which the workers were busy.
fn workers_busy(case: &TrialContext<'_>) -> Option<f64> {
    let row = case.row;
    let workers = row.num_workers.filter(|workers| *workers > 0)? as f64;
    Some(row.load_seconds? / (row.window_seconds.filter(|seconds| *seconds > 0.0)? * workers))
}

fn workers_starved(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let wait = waits(case).filter(|wait| WAIT_LIMITS.is_met(*wait))?;
    let busy = workers_busy(case).filter(|busy| WORKERS_BUSY.is_met(*busy))?;
    let (workers, cores) = (case.row.num_workers?, case.cores()?);
    // On a GPU the trainer's own thread; on the CPU libtorch's.
    let threads = if case.is_on_gpu() {
        1
    } else {
        case.row.cpu_threads.unwrap_or(1)
    };
    if cores >= workers + threads {
        return None;
    }
    let unless = match case.has_told_cores() {
        true => "",
        false => " unless the machine has more cores than that, which its rows do not say",
    };
    let were = if workers == 1 { "was" } else { "were" };
    let says = format!(
        "{}: its {} {were} busy {} of their time and shared {} with {}, so more workers cannot \
         help{unless}",
        waited(case, wait),
        counted(workers as usize, "worker"),
        Fraction(busy.min(1.0)),
        counted(cores as usize, "core"),
        counted(threads as usize, "training thread"),
    );
    let fewer = [(cores / 2).max(1), cores.min(workers)];
    let more = (!case.has_told_cores()).then_some(workers.saturating_mul(2));
    let next = Next::new()
        .vary(WORKERS, fewer.into_iter().chain(more))
        .vary("data.synthetic", [false, true]);
    Some(RuleMatch::new(says, Weight::Costs(wait), next))
}

fn too_many_workers(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let workers = case
        .row
        .num_workers
        .filter(|workers| *workers > 0 && case.has_loader())?;
    let count = |point: &Point<'_>| point.rows.first().and_then(|row| row.num_workers);
    let fewer = |point: &Point<'_>| count(point).is_some_and(|count| count < workers);
    let comparable = case.comparable(WORKERS, fewer);
    if let Some((other, better)) = case.faster_among(WORKERS, &comparable, NeighborSides::One) {
        let few = count(other)?;
        let says = format!(
            "{} made {} more samples/s than {} ({better})",
            counted(few as usize, "worker"),
            Fraction(better.ratio - 1.0),
            counted(workers as usize, "worker")
        );
        let next = Next::new().vary(WORKERS, [few, workers]).repeat(5);
        return Some(
            RuleMatch::new(says, Weight::Costs(1.0 - 1.0 / better.ratio), next)
                .with(of_loader(case, other)),
        );
    }
    // Evidence of the run comes before a rule of thumb.
    let cores = case
        .cores()
        .filter(|cores| *cores > 0 && comparable.is_empty())?;
    if !MANY_WORKERS.is_met(workers as f64)
        || !WORKERS_PER_CORE.is_met(workers as f64 / cores as f64)
    {
        return None;
    }
    let busy = workers_busy(case).map(|busy| {
        format!(
            "; on average {} of them were busy",
            significant(busy * workers as f64)
        )
    });
    let says = format!(
        "{} on {}{}",
        counted(workers as usize, "worker"),
        counted(cores as usize, "core"),
        busy.unwrap_or_default()
    );
    let tried = case.fellows(WORKERS).into_iter().any(fewer);
    let says = if tried {
        format!("{says}; interleaved repeats are needed to tell whether fewer are faster")
    } else {
        says
    };
    let next = Next::new()
        .vary(WORKERS, [(cores / 2).max(1), cores, workers])
        .when(tried, |next| next.repeat(3));
    Some(RuleMatch::new(says, Weight::Doubts, next))
}

fn transfer_bound(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let share = case
        .row
        .transfer_fraction
        .filter(|share| TRANSFER_MATTERS.is_met(*share))?;
    let says = format!(
        "copying batches to the device took {} of the window",
        Fraction(share)
    );
    // On the CPU nothing is pinned: there it is the share that a larger model makes smaller.
    let next = match case.is_on_gpu() {
        true => Next::new().vary("data.pin_memory", [false, true]),
        false => Next::new().vary("train.batch_size", case.larger_batches()),
    };
    Some(RuleMatch::new(says, Weight::Costs(share), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_names_the_shares_of_the_rules() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/measurement.md");
        let text = std::fs::read_to_string(file).unwrap();
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let sentence = format!(
            "{} wait is worth a warning, {} is a diagnosis",
            percent(NOTABLE_WAIT),
            percent(LIMITING_WAIT)
        );
        assert!(text.contains(&sentence), "{file} lacks: {sentence}");
    }
}
