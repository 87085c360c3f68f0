//! What came from outside and makes numbers doubtful: clocks held down, others on the device, others on the host.

use super::{
    case::{Case, FASTER, FASTER_ONCE, faster, mean_of},
    next::Next,
    rule::{Found, Rule, Threshold, Unit, Weight},
};
use crate::{report::points::Point, units::Fraction};

/// The driver's name of a power cap.
const POWER_CAP: &str = "sw_power_cap";

/// The hardware's own slowdown: the clocks are at half or less, as NVML's reference says of `HwSlowdown`.
const HALVED: &str = "hw_slowdown";
const LOST_BY_HALVING: f64 = 0.5;

const HELD_DOWN: Threshold = Threshold::at_least(
    "`throttled_fraction`",
    0.05,
    Unit::Fraction,
    "chosen: from here on it can move a rate by more than the 3 % under which rates are called the same",
);

const OTHERS: Threshold =
    Threshold::at_least("cores that other processes kept busy / cores", 0.15, Unit::Fraction, "docs/measurement.md 12: the trial's note says so");

pub(super) const THROTTLED: Rule = Rule {
    name: "throttled",
    columns: &["throttled_fraction", "throttle_reasons", "max_temperature_celsius", "mean_sm_clock_megahertz", "mean_power_watts"],
    thresholds: &[HELD_DOWN],
    means: "The clocks were held down by something other than the work: the rate is that of a hot or hampered device.",
    explains: &[],
    is_fault: true,
    find: |case| held_down(case, false),
};

pub(super) const POWER_CAPPED: Rule = Rule {
    name: "power-capped",
    columns: &["throttled_fraction", "throttle_reasons", "mean_power_watts", "mean_sm_clock_megahertz", "max_temperature_celsius"],
    thresholds: &[HELD_DOWN],
    means: "The device is at its power limit and clocks down to stay there, as a well used one does: rates compare only at the same limit.",
    explains: &[],
    is_fault: false,
    find: |case| held_down(case, true),
};

pub(super) const SHARED_DEVICE: Rule = Rule {
    name: "shared-device",
    columns: &["foreign_processes", "concurrent_trials", "peak_nvml_used_bytes", "peak_nvml_process_bytes", "mean_gpu_utilization"],
    thresholds: &[FASTER, FASTER_ONCE],
    means: "Others took time, memory or cores from the trial; its times are not those of a device of its own.",
    explains: &[],
    is_fault: true,
    find: shared_device,
};

pub(super) const BUSY_HOST: Rule = Rule {
    name: "busy-host",
    columns: &["mean_cpu_cores", "cpu_threads", "samples_per_second"],
    thresholds: &[OTHERS],
    means: "Processes that are no part of the run kept so many cores busy that timings do not compare: libtorch's threads wait for one another.",
    explains: &[],
    is_fault: true,
    find: busy_host,
};

/// The most frequent reason decides which of the two rules speaks.
fn held_down(case: &Case<'_>, by_power_cap: bool) -> Option<Found> {
    let row = case.row;
    row.samples_per_second?;
    let share = row.throttled_fraction.filter(|share| HELD_DOWN.is_met(*share))?;
    let reasons = row.throttle_reasons.as_deref().unwrap_or("no reason given");
    if (reasons.split(' ').next() == Some(POWER_CAP)) != by_power_cap {
        return None;
    }
    let limit = if by_power_cap { "the power limit held the clocks down" } else { "the GPU's clocks were held down" };
    let power = row.mean_power_watts.filter(|_| by_power_cap).map(|watts| format!(" at {watts:.0} W")).unwrap_or_default();
    let heat = row.max_temperature_celsius.filter(|_| !by_power_cap).map(|celsius| format!(", at up to {celsius:.0} °C")).unwrap_or_default();
    let says = format!("{limit} for {} of the window{power}: {}{heat}", Fraction(share), reasons.replace(' ', ", "));
    let weight = if reasons.split(' ').any(|reason| reason == HALVED) { Weight::Costs(LOST_BY_HALVING * share) } else { Weight::Doubts };
    let cool = serde_json::json!({"below_celsius": 60, "at_most": "5m"});
    let next = Next::new().when(reasons.contains("thermal"), |next| next.set("run.cool_down", cool)).repeat(3);
    Some(Found::new(says, weight, next))
}

fn shared_device(case: &Case<'_>) -> Option<Found> {
    let row = case.row;
    row.samples_per_second?;
    let next = Next::new().set("run.require_idle_device", true).set("run.wait", "30m").repeat(3);
    if let Some(seen) = row.others_on_device() {
        return Some(Found::new(format!("others computed on the device meanwhile ({seen}); its times may be off"), Weight::Doubts, next));
    }
    slowed_by_fellows(case)
}

/// Among the repeats of the trial's point, those with fewer trials beside them may be clearly faster.
fn slowed_by_fellows(case: &Case<'_>) -> Option<Found> {
    let crowd = case.row.concurrent_trials;
    let among = |holds: &dyn Fn(u64) -> bool| Point {
        values: case.point.values,
        rows: case.point.completed().filter(|row| holds(row.concurrent_trials)).collect(),
    };
    let (own, calmer) = (among(&|trials| trials == crowd), among(&|trials| trials < crowd));
    let better = faster(&own, &calmer)?;
    let fewest = calmer.rows.iter().map(|row| row.concurrent_trials).min()?;
    let says = format!("{crowd} trials ran at once; repeats with fewer ({fewest} at the least) made {} more samples/s", Fraction(better - 1.0));
    let told = mean_of(&calmer, "repeats beside fewer trials", "samples_per_second", |row| row.samples_per_second).into_iter().chain(mean_of(
        &own,
        "repeats beside as many",
        "samples_per_second",
        |row| row.samples_per_second,
    ));
    let next = Next::new().set("run.devices", "auto").repeat(3);
    Some(Found::new(says, Weight::Costs(1.0 - 1.0 / better), next).with(told))
}

fn busy_host(case: &Case<'_>) -> Option<Found> {
    case.row.samples_per_second?;
    let note = case.note("samples_per_second", "other processes kept")?;
    Some(
        Found::new(format!("{note}; timings of it do not compare"), Weight::Doubts, Next::new().repeat(3))
            .with([Case::quoted("samples_per_second", note)]),
    )
}
