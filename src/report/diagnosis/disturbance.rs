//! Disturbances from outside that make numbers unreliable: clock limits, other processes on the
//! device or the host.

use kiln_core::{
    record::{
        TrialRow,
        disturbance::{LEAST_THROTTLED_FRACTION, POWER_CAP},
        note::BusyHost,
    },
    units::{Fraction, counted, significant},
};
use kiln_hardware::limits::ENERGY_APART;

use super::{
    evidence::{Threshold, ThresholdUnit},
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::{FASTER, TrialContext, mean_of},
};

/// The hardware's own slowdown: the clocks are at half or less, as NVML's reference says of
/// `HwSlowdown`.
const HALVED: &str = "hw_slowdown";
const LOST_BY_HALVING: f64 = 0.5;

const HELD_DOWN: Threshold = Threshold::at_least(
    "`throttled_fraction`",
    LEAST_THROTTLED_FRACTION,
    ThresholdUnit::Fraction,
    "chosen: from here on it can change a rate by more than 3 %, and smaller changes count as \
     unchanged",
);

const OTHERS: Threshold = Threshold::at_least(
    "cores that other processes kept busy / cores",
    BusyHost::LEAST_SHARE,
    ThresholdUnit::Fraction,
    "docs/measurement.md 12: the trial's note says so",
);

const UNCORRECTED: Threshold = Threshold::at_least(
    "`ecc_uncorrected_errors`",
    1.0,
    ThresholdUnit::Count,
    "docs/tables.md: the result of a trial with one is in doubt",
);
const CORRECTED: Threshold = Threshold::at_least(
    "`ecc_corrected_errors`",
    10.0,
    ThresholdUnit::Count,
    "chosen: a particle flips a bit once in a while and the correction changes no result; ten \
     within one attempt come from a failing cell",
);
const APART: Threshold = Threshold::at_least(
    "distance of `energy_counter_joules` and `energy_integral_joules` / the larger",
    ENERGY_APART,
    ThresholdUnit::Fraction,
    "docs/measurement.md 12: a warning past 15 % apart",
);
const SHORT_WINDOW: Threshold = Threshold::at_most(
    "`window_seconds` (a longer one is tried next)",
    10.0,
    ThresholdUnit::Seconds,
    "docs/measurement.md 12: windows of several seconds; most boards give the mean power of the \
     last second",
);

pub(super) const THROTTLED: Rule = Rule {
    name: "throttled",
    columns: &[
        "throttled_fraction",
        "throttle_reasons",
        "max_temperature_celsius",
        "mean_sm_clock_megahertz",
        "mean_power_watts",
    ],
    thresholds: &[HELD_DOWN],
    means: "Something other than the work limited the clocks: the rate is that of a hot or limited \
            device.",
    refuted_by: "A repeat whose `throttled_fraction` is 0 is not faster.",
    explains: &[],
    is_fault: true,
    find: |case| held_down(case, false),
};

pub(super) const POWER_CAPPED: Rule = Rule {
    name: "power-capped",
    columns: &[
        "throttled_fraction",
        "throttle_reasons",
        "mean_power_watts",
        "mean_sm_clock_megahertz",
        "max_temperature_celsius",
    ],
    thresholds: &[HELD_DOWN],
    means: "The device is at its power limit and lowers its clocks to stay there, as a well used \
            device does: rates are comparable only at the same limit.",
    refuted_by: "A repeat under a higher power limit is not faster.",
    explains: &[],
    is_fault: false,
    find: |case| held_down(case, true),
};

pub(super) const SHARED_DEVICE: Rule = Rule {
    name: "shared-device",
    columns: &[
        "foreign_processes",
        "concurrent_trials",
        "peak_nvml_used_bytes",
        "peak_nvml_process_bytes",
        "mean_gpu_utilization",
    ],
    thresholds: &[FASTER],
    means: "Other processes or trials took time, memory or cores from the trial; it did not have \
            the device to itself.",
    refuted_by: "A repeat on a device that no other process uses is not faster.",
    explains: &[],
    is_fault: true,
    find: shared_device,
};

pub(super) const BUSY_HOST: Rule = Rule {
    name: "busy-host",
    columns: &["mean_cpu_cores", "cpu_threads", "samples_per_second"],
    thresholds: &[OTHERS],
    means: "Processes outside the run kept so many cores busy that timings are unreliable: \
            threads that share a step's work wait for the slowest of them.",
    refuted_by: "A repeat on a host without other processes is not faster.",
    explains: &[],
    is_fault: true,
    find: busy_host,
};

pub(super) const MEMORY_ERRORS: Rule = Rule {
    name: "memory-errors",
    columns: &[
        "ecc_uncorrected_errors",
        "ecc_corrected_errors",
        "ecc_mode",
        "device_uuid",
        "trial_seconds",
    ],
    thresholds: &[UNCORRECTED, CORRECTED],
    means: "The device's memory is failing. After an uncorrected error the trial's results cannot \
            be trusted; corrected errors change no result, but so many of them come from a cell \
            that may fail next. Repeat the trial on another GPU, and have this one checked \
            (`nvidia-smi -q -d ECC,ROW_REMAPPER`).",
    refuted_by: "After a reset of the GPU, and the remapping of rows that it does, repeats of the \
                 trial have no errors and the same losses.",
    explains: &[],
    is_fault: true,
    find: memory_errors,
};

pub(super) const ENERGIES_APART: Rule = Rule {
    name: "energies-apart",
    columns: &[
        "energy_counter_joules",
        "energy_integral_joules",
        "mean_power_watts",
        "window_seconds",
        "mig_profile",
    ],
    thresholds: &[APART, SHORT_WINDOW],
    means: "The driver's counter and the power readings give different energies for one window: \
            neither of them, nor joules per sample, can be trusted. Readings that are too rare for \
            a changing power, or a window with few readings, make the integral wrong; a counter \
            that was reset is wrong itself.",
    refuted_by: "A repeat with a shorter `measure.sample_interval` and a longer window makes both \
                 agree: then the counter was right here as well.",
    explains: &[],
    is_fault: true,
    find: energies_apart,
};

/// Whether the trial measured something that a disturbance shakes: a rate, or as a command its time
/// and what it measures itself.
fn has_timings(case: &TrialContext<'_>) -> bool {
    let row = case.row;
    row.samples_per_second.is_some() || (case.is_command() && row.is_completed())
}

/// The first reason decides which of the two rules fires: the power cap stands behind any other that
/// matters.
fn held_down(case: &TrialContext<'_>, by_power_cap: bool) -> Option<RuleMatch> {
    let row = case.row;
    has_timings(case).then_some(())?;
    let share = row
        .throttled_fraction
        .filter(|share| HELD_DOWN.is_met(*share))?;
    let reasons = row.throttle_reasons.as_deref().unwrap_or("no reason given");
    if (reasons.split(' ').next() == Some(POWER_CAP)) != by_power_cap {
        return None;
    }
    let limit = if by_power_cap {
        "the power limit lowered the clocks"
    } else {
        "the GPU's clocks were limited"
    };
    let power = row
        .mean_power_watts
        .filter(|_| by_power_cap)
        .map(|watts| format!(" at {watts:.0} W"))
        .unwrap_or_default();
    let heat = row
        .max_temperature_celsius
        .filter(|_| !by_power_cap)
        .map(|celsius| format!(", at up to {celsius:.0} °C"))
        .unwrap_or_default();
    let says = format!(
        "{limit} for {} of the window{power}: {}{heat}",
        Fraction(share),
        reasons.replace(' ', ", ")
    );
    let weight = if reasons.split(' ').any(|reason| reason == HALVED) {
        Weight::Costs(LOST_BY_HALVING * share)
    } else {
        Weight::Doubts
    };
    let cool = serde_json::json!({"below_celsius": 60, "at_most": "5m"});
    let next = Next::new()
        .when(reasons.contains("thermal"), |next| {
            next.set("run.cool_down", cool)
        })
        .repeat(3);
    Some(RuleMatch::new(says, weight, next).of_degree(share))
}

fn shared_device(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    has_timings(case).then_some(())?;
    let next = Next::new()
        .set("run.require_idle_device", true)
        .set("run.wait", "30m")
        .repeat(3);
    if let Some(seen) = row.others_on_device() {
        return Some(RuleMatch::new(
            format!(
                "other processes used the device during the trial ({seen}); its timings may be \
                 wrong"
            ),
            Weight::Doubts,
            next,
        ));
    }
    slowed_by_fellows(case)
}

/// Among the repeats of the trial's point, those with fewer trials beside them may be clearly
/// faster.
fn slowed_by_fellows(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let calmer = case.calmer()?;
    let better = calmer.gain;
    let says = format!(
        "{} trials ran at once; repeats with {} made {} more samples/s ({better})",
        case.row.concurrent_trials,
        calmer.trials,
        Fraction(better.ratio - 1.0)
    );
    let parts = [
        ("repeats with fewer concurrent trials", calmer.part),
        ("repeats with as many concurrent trials", calmer.own),
    ];
    let means = parts.into_iter().filter_map(|(name, part)| {
        mean_of(part, name, "samples_per_second", |row| {
            row.samples_per_second
        })
    });
    let next = Next::new().set("run.devices", "auto").repeat(3);
    Some(RuleMatch::new(says, Weight::Costs(1.0 - 1.0 / better.ratio), next).with(means))
}

fn busy_host(case: &TrialContext<'_>) -> Option<RuleMatch> {
    has_timings(case).then_some(())?;
    let busy = BusyHost::of(case.row)?;
    let note = busy.to_string();
    Some(
        RuleMatch::new(
            format!("{note}; its timings are unreliable"),
            Weight::Doubts,
            Next::new().repeat(3),
        )
        .of_degree(busy.other_cores / busy.cores.max(1) as f64)
        .with_busy_host(busy)
        .with([TrialContext::quoted(BusyHost::COLUMN, &note)]),
    )
}

fn memory_errors(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let met = |count: Option<u64>, threshold: Threshold| {
        count.filter(|count| threshold.is_met(*count as f64))
    };
    let faults = [
        (
            met(case.row.ecc_uncorrected_errors, UNCORRECTED),
            "uncorrected memory error",
            "its results are in doubt",
        ),
        (
            met(case.row.ecc_corrected_errors, CORRECTED),
            "corrected memory error",
            "the device is in doubt",
        ),
    ];
    let found: Vec<(String, &str)> = faults
        .into_iter()
        .filter_map(|(count, noun, doubt)| Some((counted(count? as usize, noun), doubt)))
        .collect();
    let (_, doubt) = found.first()?;
    let counts: Vec<&str> = found.iter().map(|(count, _)| count.as_str()).collect();
    let says = format!(
        "{} on the device during the attempt: {doubt}",
        counts.join(" and ")
    );
    // A process on a GPU mostly ends by an uncorrected error; the trial that had one stands for all.
    let weight = match met(case.row.ecc_uncorrected_errors, UNCORRECTED) {
        Some(_) => Weight::Threatens,
        None => Weight::Doubts,
    };
    let errors = [
        case.row.ecc_uncorrected_errors,
        case.row.ecc_corrected_errors,
    ];
    let count: u64 = errors.into_iter().flatten().fold(0, u64::saturating_add);
    Some(RuleMatch::new(says, weight, Next::new().repeat(3)).of_degree(count as f64))
}

/// How far the two energies of a row are apart, as a fraction of the larger, if that is too far.
pub(in crate::report) fn apart(row: &TrialRow) -> Option<f64> {
    let (counter, integral) = (row.energy_counter_joules?, row.energy_integral_joules?);
    Some((counter - integral).abs() / counter.max(integral)).filter(|apart| APART.is_met(*apart))
}

fn energies_apart(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let (counter, integral) = (row.energy_counter_joules?, row.energy_integral_joules?);
    let apart = apart(row)?;
    let says = format!(
        "the energy counter says {} J and the integral of the power {} J, {} apart: joules per \
         sample are in doubt",
        significant(counter),
        significant(integral),
        Fraction(apart)
    );
    let is_short = row
        .window_seconds
        .is_some_and(|seconds| SHORT_WINDOW.is_met(seconds))
        && !case.sweeps("train.epochs");
    let longer = |next: Next| {
        next.set(
            "train.steps",
            row.steps
                .unwrap_or(100)
                .saturating_mul(10)
                .clamp(200, 1_000_000_000),
        )
    };
    let next = Next::new()
        .set("measure.sample_interval", "100ms")
        .when(is_short, longer)
        .repeat(3);
    Some(RuleMatch::new(says, Weight::Doubts, next).of_degree(apart))
}
