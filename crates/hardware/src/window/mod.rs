//! Summary of a trial's ticks over its measured window. No clock, no device: a pure function of the
//! readings.
//!
//! A tick speaks for the time since the tick before it, so means are weighed by time: extra ticks
//! at the window's ends do not count double. Energy and power are interpolated at the window's two
//! ends.

mod columns;
mod coverage;
mod energy;
mod several;

use std::collections::{BTreeMap, BTreeSet};

use kiln_units::{
    Seconds,
    clock_limits::{LEAST_THROTTLED_FRACTION, POWER_CAP},
};

use super::{
    TrialReadings,
    gpu_reader::{EVERYTHING, GpuTick},
    sampler::{THROTTLED, Tick, throttle_names},
};
use columns::{COUNTS, NUMBERS};
use coverage::lack;
use energy::fill_energy;
pub use several::together;

/// Under so many ticks in the window a mean utilization means nothing.
const FEWEST_TICKS: usize = 5;

/// A driver that did not answer for so long is worth a word.
const LONG_SILENCE_SECONDS: f64 = 5.0;

/// The hardware columns of one trial's row. Missing is `None`; `notes` has the reasons, by column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowSummary {
    /// Share of the window with any kernel running.
    pub mean_gpu_utilization: Option<f64>,
    /// GPM's shares, as fractions of 1; Hopper and later.
    pub mean_sm_active: Option<f64>,
    pub mean_sm_occupancy: Option<f64>,
    pub mean_tensor_active: Option<f64>,
    pub mean_dram_bandwidth_utilization: Option<f64>,
    pub mean_pcie_receive_bytes_per_second: Option<f64>,
    pub mean_pcie_transmit_bytes_per_second: Option<f64>,
    pub mean_nvlink_receive_bytes_per_second: Option<f64>,
    pub mean_nvlink_transmit_bytes_per_second: Option<f64>,
    pub mean_sm_clock_megahertz: Option<f64>,
    /// Integral of power over the window, by its length; where there is none, the counter's energy.
    pub mean_power_watts: Option<f64>,
    /// Difference of the driver's energy counter.
    pub energy_counter_joules: Option<f64>,
    /// Time integral of the power readings.
    pub energy_integral_joules: Option<f64>,
    pub max_temperature_celsius: Option<f64>,
    /// Share of the window in which the clocks were held down.
    pub throttled_fraction: Option<f64>,
    /// The reasons, most frequent first, separated by spaces; the power cap after others that matter.
    pub throttle_reasons: Option<String>,
    /// The share of the time for which each of them held.
    pub throttle_shares: BTreeMap<String, f64>,
    /// By all processes on the device.
    pub peak_nvml_used_bytes: Option<u64>,
    /// By the trial's own process.
    pub peak_nvml_process_bytes: Option<u64>,
    /// Since the attempt began.
    pub ecc_corrected_errors: Option<u64>,
    pub ecc_uncorrected_errors: Option<u64>,
    /// Peak of the child, over the whole attempt from the start of its program.
    pub peak_resident_bytes: Option<u64>,
    /// Cores the child kept busy, over the window.
    pub mean_cpu_cores: Option<f64>,
    /// By the child, over the same time.
    pub disk_read_bytes: Option<u64>,
    /// Value of the busiest disk, over the window.
    pub mean_disk_busy_fraction: Option<f64>,
    /// Over the same time.
    pub min_host_memory_available_bytes: Option<u64>,
    /// Mean cost of a tick for the sampler, over the whole attempt.
    pub mean_reading_seconds: Option<f64>,
    /// Cores that processes other than the child kept busy, as a mean over the window.
    pub other_cpu_cores: Option<f64>,
    pub notes: BTreeMap<String, String>,
}

/// Summarizes a trial's readings over `window`, start and end on CLOCK_MONOTONIC in nanoseconds.
/// Without a window (a trial that did not get that far) only peaks and the highest temperature are
/// filled, over all ticks from the start of the trial's program.
///
/// `cuts` are stretches of the window that do not count (evaluation), in order; `allowed_cores` are
/// those that kiln may run on, if known ([`crate::host::allowed_cores`]).
pub fn summarize(
    readings: &TrialReadings,
    window: Option<(u64, u64)>,
    cuts: &[(u64, u64)],
    allowed_cores: Option<u64>,
) -> WindowSummary {
    let window = window.filter(|(start, end)| start < end);
    let pieces = window.map(|window| without_cuts(window, cuts));
    let mut summary = WindowSummary::default();
    fill_process_and_host(&mut summary, readings, pieces.as_deref(), allowed_cores);
    if readings.ticks.iter().all(|tick| tick.gpu.is_none()) && readings.absent.is_empty() {
        // A trial on the CPU does not need a GPU's values.
        return summary;
    }
    let parts: Vec<WindowPart<'_>> = match &pieces {
        Some(pieces) => pieces
            .iter()
            .flat_map(|piece| parts(&readings.ticks, *piece))
            .collect(),
        None => parts(&readings.ticks, (0, u64::MAX))
            .into_iter()
            .filter(|part| part.read_at >= readings.began)
            .collect(),
    };
    fill_extremes(&mut summary, readings, &parts);
    match pieces {
        Some(pieces) => fill_means(&mut summary, readings, &parts, &pieces),
        None => NUMBERS
            .iter()
            .filter(|column| column.needs_window && !column.readings.is_empty())
            .for_each(|column| note(&mut summary, column.name, "there is no measured window")),
    }
    explain(&mut summary, readings);
    summary
}

/// The trial's process and the host: known on the CPU too.
fn fill_process_and_host(
    summary: &mut WindowSummary,
    readings: &TrialReadings,
    pieces: Option<&[(u64, u64)]>,
    allowed_cores: Option<u64>,
) {
    let ticks = &readings.ticks;
    let began = readings.began;
    let of_program = || {
        let all = ticks.iter();
        all.filter(move |tick| tick.monotonic_nanoseconds >= began)
    };
    summary.peak_resident_bytes = of_program()
        .filter_map(|tick| Some(tick.child.as_ref()?.peak_resident_bytes))
        .max();
    summary.disk_read_bytes = of_program()
        .filter_map(|tick| tick.child.as_ref()?.disk_read_bytes)
        .max();
    summary.min_host_memory_available_bytes = of_program()
        .filter_map(|tick| tick.host.memory_available_bytes)
        .min();
    let reading: f64 = ticks.iter().map(|tick| tick.reading_seconds).sum();
    summary.mean_reading_seconds =
        (!ticks.is_empty()).then(|| (reading / ticks.len() as f64 * 1e9).round() / 1e9);
    let Some(pieces) = pieces else { return };
    summary.other_cpu_cores = allowed_cores.and_then(|cores| other_cpu_cores(ticks, pieces, cores));
    let mean = |of: fn(&Tick) -> Option<f64>| {
        let spoken = pieces.iter().flat_map(|piece| speaking(ticks, *piece));
        weighed_mean(spoken.filter_map(|(tick, seconds)| Some((of(tick)?, seconds))))
    };
    summary.mean_cpu_cores = mean(|tick| tick.child.as_ref()?.cpu_cores);
    summary.mean_disk_busy_fraction = mean(|tick| tick.host.disk_busy_fraction);
    let spoken = pieces.iter().flat_map(|piece| speaking(ticks, *piece));
    let stopped: f64 = spoken
        .filter(|(tick, _)| tick.child.as_ref().is_some_and(|child| child.is_stopped))
        .map(|(_, seconds)| seconds)
        .sum();
    if stopped > 0.0 {
        let stopped = Seconds(stopped);
        let told = format!(
            "a process of the program was stopped by a signal for about {stopped} of the window"
        );
        note(summary, "mean_cpu_cores", &told);
    }
}

/// Highest values in the window, and counts since the attempt began.
fn fill_extremes(summary: &mut WindowSummary, readings: &TrialReadings, parts: &[WindowPart<'_>]) {
    // The reading at the end comes a moment later, when an evaluation may have allocated memory.
    let within: Vec<&GpuTick> = parts
        .iter()
        .filter(|part| part.is_within)
        .map(|part| part.gpu)
        .collect();
    let looks = match within.is_empty() {
        true => parts.iter().map(|part| part.gpu).collect(),
        false => within,
    };
    let highest = |of: fn(&GpuTick) -> Option<u64>| looks.iter().filter_map(|gpu| of(gpu)).max();
    summary.max_temperature_celsius = parts
        .iter()
        .filter_map(|part| part.gpu.temperature_celsius)
        .reduce(f64::max);
    summary.peak_nvml_used_bytes = highest(|gpu| gpu.memory_used_bytes);
    summary.peak_nvml_process_bytes = highest(|gpu| gpu.process_memory_bytes);
    let errors = |of: fn(&GpuTick) -> Option<u64>| {
        readings
            .ticks
            .iter()
            .filter_map(|tick| of(tick.gpu.as_ref()?))
            .max()
    };
    summary.ecc_corrected_errors = errors(|gpu| gpu.ecc_corrected_errors);
    summary.ecc_uncorrected_errors = errors(|gpu| gpu.ecc_uncorrected_errors);
}

/// A tick that has a device's readings, and the seconds of a piece of the window it speaks for.
struct WindowPart<'a> {
    gpu: &'a GpuTick,
    seconds: f64,
    /// When the readings were taken.
    read_at: u64,
    /// Whether that was at the piece's end or before.
    is_within: bool,
}

/// The parts of the window that remain between the cuts.
fn without_cuts((start, end): (u64, u64), cuts: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut from = start;
    for (cut_from, cut_to) in cuts {
        // A program of one's own may report cuts beyond its window.
        let (cut_from, cut_to) = ((*cut_from).min(end), (*cut_to).min(end));
        if from < cut_from {
            pieces.push((from, cut_from));
        }
        from = from.max(cut_to);
    }
    if from < end {
        pieces.push((from, end));
    }
    pieces
}

/// The ticks that speak for a piece of the window, each with the seconds of it that it speaks for.
fn speaking(ticks: &[Tick], (start, end): (u64, u64)) -> impl Iterator<Item = (&Tick, f64)> {
    let mut before = 0;
    ticks.iter().filter_map(move |tick| {
        let (from, to) = (before.max(start), tick.monotonic_nanoseconds.min(end));
        before = tick.monotonic_nanoseconds;
        (from < to).then(|| (tick, (to - from) as f64 / 1e9))
    })
}

fn parts(ticks: &[Tick], piece: (u64, u64)) -> Vec<WindowPart<'_>> {
    speaking(ticks, piece)
        .filter_map(|(tick, seconds)| {
            Some(WindowPart {
                gpu: tick.gpu.as_ref()?,
                seconds,
                read_at: tick.monotonic_nanoseconds,
                is_within: tick.monotonic_nanoseconds <= piece.1,
            })
        })
        .collect()
}

/// CPU use of the cores that kiln may run on minus that of kiln and everything it started, from the
/// ticks that know both.
fn other_cpu_cores(ticks: &[Tick], pieces: &[(u64, u64)], allowed_cores: u64) -> Option<f64> {
    let others = |tick: &Tick| {
        Some(tick.host.allowed_cpu_fraction? * allowed_cores as f64 - tick.own_cpu_cores?)
    };
    let known = pieces
        .iter()
        .flat_map(|piece| speaking(ticks, *piece))
        .filter_map(|(tick, seconds)| Some((others(tick)?, seconds)));
    // Both are counted in ticks of 10 ms, so a child alone can seem to use more than all together.
    weighed_mean(known).map(|cores| cores.max(0.0))
}

fn fill_means(
    summary: &mut WindowSummary,
    readings: &TrialReadings,
    parts: &[WindowPart<'_>],
    pieces: &[(u64, u64)],
) {
    for column in &NUMBERS {
        let Some(of) = column.mean_of else { continue };
        // A reading whose interval contains a cut is part of the pieces on both sides.
        let known = parts.iter().filter(|part| of(part.gpu).is_some());
        let ticks: BTreeSet<u64> = known.map(|part| part.read_at).collect();
        match ticks.len() {
            0 => {}
            FEWEST_TICKS.. => match lack(&readings.ticks, pieces, |gpu| of(gpu).is_some()) {
                None => *(column.place)(summary) = mean(parts, of),
                Some(reason) => note(summary, column.name, &reason),
            },
            known => note(
                summary,
                column.name,
                &format!("only {known} samples in the window, too few for a mean"),
            ),
        }
    }
    fill_throttling(summary, readings, parts, pieces);
    fill_energy(summary, readings, pieces);
}

/// The reasons that were seen stay, also where their share of the window is not known.
fn fill_throttling(
    summary: &mut WindowSummary,
    readings: &TrialReadings,
    parts: &[WindowPart<'_>],
    pieces: &[(u64, u64)],
) {
    let is_throttled = |bits: u64| if bits & THROTTLED == 0 { 0.0 } else { 1.0 };
    let fraction = mean(parts, |gpu| gpu.throttle_bits.map(is_throttled));
    if fraction.is_some() {
        match lack(&readings.ticks, pieces, |gpu| gpu.throttle_bits.is_some()) {
            None => summary.throttled_fraction = fraction,
            Some(reason) => note(summary, "throttled_fraction", &reason),
        }
    }
    summary.throttle_shares = throttle_shares(parts);
    summary.throttle_reasons = reasons_in_order(&summary.throttle_shares);
}

fn mean(parts: &[WindowPart<'_>], of: impl Fn(&GpuTick) -> Option<f64>) -> Option<f64> {
    weighed_mean(
        parts
            .iter()
            .filter_map(|part| Some((of(part.gpu)?, part.seconds))),
    )
}

/// Weighted mean of values with the seconds that each stands for; `None` without any.
fn weighed_mean(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (sum, seconds) = values.fold((0.0, 0.0), |(sum, all), (value, seconds)| {
        (sum + value * seconds, all + seconds)
    });
    // Sampled values are known to far fewer than six decimals; more would only be the rounding of the
    // weights.
    (seconds > 0.0).then(|| (sum / seconds * 1e6).round() / 1e6)
}

/// The share of the time for which each reason limited the clocks.
fn throttle_shares(parts: &[WindowPart<'_>]) -> BTreeMap<String, f64> {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    let known: Vec<(f64, u64)> = parts
        .iter()
        .filter_map(|part| Some((part.seconds, part.gpu.throttle_bits?)))
        .collect();
    let all: f64 = known.iter().map(|(seconds, _)| seconds).sum();
    for (seconds, bits) in known {
        for name in throttle_names(bits & THROTTLED) {
            *shares.entry(name).or_default() += seconds / all;
        }
    }
    shares
}

/// The most frequent first; the power cap of a GPU that is used well after any other that matters, such
/// as heat, so that the first one says whether something is wrong.
fn reasons_in_order(shares: &BTreeMap<String, f64>) -> Option<String> {
    let mut reasons: Vec<(&str, f64)> = shares
        .iter()
        .map(|(name, share)| (name.as_str(), *share))
        .collect();
    let is_wrong =
        |(name, share): &(&str, f64)| *name != POWER_CAP && *share >= LEAST_THROTTLED_FRACTION;
    reasons.sort_by(|one, other| {
        let wrong_first = is_wrong(other).cmp(&is_wrong(one));
        wrong_first.then(other.1.total_cmp(&one.1))
    });
    let names: Vec<&str> = reasons.into_iter().map(|(name, _)| name).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

/// Adds why columns stayed empty where the device or its driver does not offer their readings, remarks on
/// those that are filled, and a word on a driver that hung.
fn explain(summary: &mut WindowSummary, readings: &TrialReadings) {
    let numbers = NUMBERS.map(|column| column.explained_by(summary));
    let counts = COUNTS.map(|column| column.explained_by(summary));
    let whole = readings.absent.get(EVERYTHING);
    for (column, needed, is_empty) in numbers.into_iter().chain(counts) {
        for reading in needed {
            let text = match is_empty {
                true => readings.absent.get(reading).or(whole).map(String::as_str),
                false => readings.remarks.get(reading).copied(),
            };
            if let Some(text) = text {
                note(summary, column, text);
            }
        }
    }
    if readings.silent_seconds >= LONG_SILENCE_SECONDS {
        note(
            summary,
            "mean_reading_seconds",
            &format!(
                "the driver did not answer for up to {:.0} s",
                readings.silent_seconds
            ),
        );
    }
}

fn note(summary: &mut WindowSummary, column: &str, reason: &str) {
    summary
        .notes
        .entry(column.to_owned())
        .or_insert_with(|| reason.to_owned());
}

#[cfg(test)]
mod tests;
