//! What the ticks of a trial say about its measured window. No clock, no device: a pure function of what was read.
//!
//! A tick speaks for the time since the tick before it, so means are weighed by time: extra ticks at the window's ends do not
//! count double. Energy and power are interpolated at the window's two ends.

use std::collections::BTreeMap;

use super::{
    TrialReadings,
    sampler::{EVERYTHING, GpuTick, THROTTLED, Tick, throttle_names},
};

/// Under so many ticks in the window a mean utilization means nothing.
const FEWEST_TICKS: usize = 5;

/// Energy needs ticks over at least this share of the window.
const LEAST_COVERED: f64 = 0.98;

/// Counter and integral of energy further apart than this are worth a word.
const ENERGY_APART: f64 = 0.15;

/// The hardware columns of one trial's row. Missing is `None`; `notes` says why, by column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowSummary {
    /// Share of the window with any kernel running.
    pub mean_gpu_utilization: Option<f64>,
    /// Integral of power over the window, by its length.
    pub mean_power_watts: Option<f64>,
    /// Difference of the driver's energy counter.
    pub energy_counter_joules: Option<f64>,
    /// Time integral of the power readings.
    pub energy_integral_joules: Option<f64>,
    pub max_temperature_celsius: Option<f64>,
    /// Share of the window in which the clocks were held down.
    pub throttled_fraction: Option<f64>,
    /// Why, most frequent first, by spaces.
    pub throttle_reasons: Option<String>,
    /// By all processes on the device.
    pub peak_nvml_used_bytes: Option<u64>,
    /// Of the child, over the whole attempt.
    pub peak_resident_bytes: Option<u64>,
    /// Cores that processes other than the child kept busy, as a mean over the window.
    pub other_cpu_cores: Option<f64>,
    pub notes: BTreeMap<String, String>,
}

/// Summarizes a trial's readings over `window`, start and end on CLOCK_MONOTONIC in nanoseconds. Without a window (a trial
/// that did not get that far) only peaks and the highest temperature are filled, over all ticks.
///
/// `cuts` are stretches of the window that do not count (evaluation), in order; `logical_cores` are the machine's, if known.
pub fn summarize(readings: &TrialReadings, window: Option<(u64, u64)>, cuts: &[(u64, u64)], logical_cores: Option<u64>) -> WindowSummary {
    let peak_resident_bytes = readings.ticks.iter().filter_map(|tick| Some(tick.child.as_ref()?.peak_resident_bytes)).max();
    let window = window.filter(|(start, end)| start < end);
    let pieces = window.map(|window| without_cuts(window, cuts));
    let other_cpu_cores = pieces.as_ref().zip(logical_cores).and_then(|(pieces, cores)| other_cpu_cores(&readings.ticks, pieces, cores));
    let mut summary = WindowSummary { peak_resident_bytes, other_cpu_cores, ..WindowSummary::default() };
    if readings.ticks.iter().all(|tick| tick.gpu.is_none()) && readings.absent.is_empty() {
        // A trial on the CPU: nobody asks for a GPU's numbers.
        return summary;
    }
    let parts = match &pieces {
        Some(pieces) => pieces.iter().flat_map(|piece| parts(&readings.ticks, *piece)).collect(),
        None => parts(&readings.ticks, (0, u64::MAX)),
    };
    summary.max_temperature_celsius = parts.iter().filter_map(|part| part.gpu.temperature_celsius).reduce(f64::max);
    summary.peak_nvml_used_bytes = parts.iter().filter_map(|part| part.gpu.memory_used_bytes).max();
    match pieces {
        Some(pieces) => fill_means(&mut summary, readings, &parts, &pieces),
        None => ["mean_gpu_utilization", "mean_power_watts", "energy_counter_joules", "energy_integral_joules", "throttled_fraction"]
            .iter()
            .for_each(|column| note(&mut summary, column, "there is no measured window")),
    }
    explain_absent(&mut summary, readings);
    note(&mut summary, "mean_sm_active", "this version of kiln does not read it");
    summary
}

/// A tick that has a device's readings, and the seconds of the window it speaks for.
struct Part<'a> {
    gpu: &'a GpuTick,
    seconds: f64,
}

/// What is left of the window between the cuts.
fn without_cuts((start, end): (u64, u64), cuts: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut from = start;
    for (cut_from, cut_to) in cuts {
        if from < *cut_from {
            pieces.push((from, (*cut_from).min(end)));
        }
        from = from.max(*cut_to);
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

fn parts(ticks: &[Tick], piece: (u64, u64)) -> Vec<Part<'_>> {
    speaking(ticks, piece).filter_map(|(tick, seconds)| Some(Part { gpu: tick.gpu.as_ref()?, seconds })).collect()
}

/// What the whole machine did less what the child did, from the ticks that know both.
fn other_cpu_cores(ticks: &[Tick], pieces: &[(u64, u64)], logical_cores: u64) -> Option<f64> {
    let others = |tick: &Tick| Some(tick.host.cpu_fraction? * logical_cores as f64 - tick.child.as_ref()?.cpu_cores?);
    let known = pieces.iter().flat_map(|piece| speaking(ticks, *piece)).filter_map(|(tick, seconds)| Some((others(tick)?, seconds)));
    // Both are counted in ticks of 10 ms, so a child alone can seem to use more than all together.
    weighed_mean(known).map(|cores| cores.max(0.0))
}

fn fill_means(summary: &mut WindowSummary, readings: &TrialReadings, parts: &[Part<'_>], pieces: &[(u64, u64)]) {
    let known = parts.iter().filter(|part| part.gpu.utilization.is_some()).count();
    if known >= FEWEST_TICKS {
        summary.mean_gpu_utilization = mean(parts, |gpu| gpu.utilization);
    } else if known > 0 {
        note(summary, "mean_gpu_utilization", &format!("{known} samples in the window, too few for a mean"));
    }
    summary.throttled_fraction = mean(parts, |gpu| gpu.throttle_bits.map(|bits| if bits & THROTTLED == 0 { 0.0 } else { 1.0 }));
    summary.throttle_reasons = throttle_reasons(parts);
    fill_energy(summary, readings, pieces);
}

fn mean(parts: &[Part<'_>], of: impl Fn(&GpuTick) -> Option<f64>) -> Option<f64> {
    weighed_mean(parts.iter().filter_map(|part| Some((of(part.gpu)?, part.seconds))))
}

/// Of values with the seconds that each stands for; `None` without any.
fn weighed_mean(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (sum, seconds) = values.fold((0.0, 0.0), |(sum, all), (value, seconds)| (sum + value * seconds, all + seconds));
    // A share is known to far fewer than six digits; more would only be the rounding of the weights.
    (seconds > 0.0).then(|| (sum / seconds * 1e6).round() / 1e6)
}

fn throttle_reasons(parts: &[Part<'_>]) -> Option<String> {
    let mut seconds_of: BTreeMap<String, f64> = BTreeMap::new();
    for part in parts {
        for name in throttle_names(part.gpu.throttle_bits? & THROTTLED) {
            *seconds_of.entry(name).or_default() += part.seconds;
        }
    }
    let mut reasons: Vec<(String, f64)> = seconds_of.into_iter().collect();
    reasons.sort_by(|one, other| other.1.total_cmp(&one.1));
    (!reasons.is_empty()).then(|| reasons.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" "))
}

fn fill_energy(summary: &mut WindowSummary, readings: &TrialReadings, pieces: &[(u64, u64)]) {
    let power = Series::new(&readings.ticks, |gpu| gpu.power_watts);
    let counter = Series::new(&readings.ticks, |gpu| gpu.energy_joules);
    match power.clipped(pieces) {
        Ok(found) => {
            let joules: f64 = found.iter().map(|points| integral(points)).sum();
            let seconds: f64 = found.iter().map(|points| (points[points.len() - 1].0 - points[0].0) as f64 / 1e9).sum();
            summary.energy_integral_joules = Some(joules);
            summary.mean_power_watts = Some(joules / seconds);
        }
        Err(Some(reason)) => {
            note(summary, "energy_integral_joules", &reason);
            note(summary, "mean_power_watts", &reason);
        }
        Err(None) => {}
    }
    match counter.clipped(pieces) {
        Ok(found) if found.iter().flat_map(|points| points.windows(2)).any(|pair| pair[1].1 < pair[0].1) => {
            note(summary, "energy_counter_joules", "the counter went back: the driver was loaded anew");
        }
        Ok(found) => summary.energy_counter_joules = Some(found.iter().map(|points| points[points.len() - 1].1 - points[0].1).sum()),
        Err(Some(reason)) => note(summary, "energy_counter_joules", &reason),
        Err(None) => {}
    }
    if let (Some(counted), Some(integrated)) = (summary.energy_counter_joules, summary.energy_integral_joules) {
        let apart = (counted - integrated).abs() / counted.max(integrated);
        if apart > ENERGY_APART {
            note(summary, "energy_counter_joules", &format!("{:.0} % apart from energy_integral_joules", apart * 100.0));
        }
    }
}

/// One reading over time: nanoseconds and value.
struct Series(Vec<(u64, f64)>);

impl Series {
    fn new(ticks: &[Tick], of: impl Fn(&GpuTick) -> Option<f64>) -> Self {
        Self(ticks.iter().filter_map(|tick| Some((tick.monotonic_nanoseconds, of(tick.gpu.as_ref()?)?))).collect())
    }

    /// The points inside each piece of the window, with interpolated ones at its two ends; at least two. `Err(None)` if nothing
    /// was read at all, else the reason.
    fn clipped(&self, pieces: &[(u64, u64)]) -> Result<Vec<Vec<(u64, f64)>>, Option<String>> {
        let (first, last) = (self.0.first().ok_or(None)?.0, self.0.last().ok_or(None)?.0);
        let all: u64 = pieces.iter().map(|(start, end)| end - start).sum();
        let pieces: Vec<(u64, u64)> =
            pieces.iter().map(|(start, end)| ((*start).max(first), (*end).min(last))).filter(|(from, to)| from < to).collect();
        let covered = pieces.iter().map(|(from, to)| to - from).sum::<u64>() as f64 / all as f64;
        if pieces.is_empty() || covered < LEAST_COVERED {
            return Err(Some(format!("samples cover {:.0} % of the window", covered * 100.0)));
        }
        let clip = |(from, to): (u64, u64)| {
            let inside = self.0.iter().copied().filter(|(time, _)| from < *time && *time < to);
            std::iter::once((from, self.at(from))).chain(inside).chain(std::iter::once((to, self.at(to)))).collect()
        };
        Ok(pieces.into_iter().map(clip).collect())
    }

    /// Linear between the two points around `time`, which lies within the series.
    fn at(&self, time: u64) -> f64 {
        let after = self.0.partition_point(|(at, _)| *at < time).clamp(1, self.0.len().max(2) - 1);
        match (self.0.get(after - 1), self.0.get(after)) {
            (Some(&(t0, v0)), Some(&(t1, v1))) if t1 > t0 => v0 + (v1 - v0) * (time.saturating_sub(t0) as f64 / (t1 - t0) as f64),
            (Some(&(_, only)), _) => only,
            (None, _) => f64::NAN,
        }
    }
}

/// Trapezoids; seconds times the unit of the values.
fn integral(points: &[(u64, f64)]) -> f64 {
    points.windows(2).map(|pair| (pair[1].0 - pair[0].0) as f64 / 1e9 * (pair[0].1 + pair[1].1) / 2.0).sum()
}

/// Columns that stayed empty because the device or its driver does not offer them.
fn explain_absent(summary: &mut WindowSummary, readings: &TrialReadings) {
    let whole = readings.absent.get(EVERYTHING);
    let empty = [
        ("mean_gpu_utilization", "utilization", summary.mean_gpu_utilization.is_none()),
        ("mean_power_watts", "power_watts", summary.mean_power_watts.is_none()),
        ("energy_counter_joules", "energy_joules", summary.energy_counter_joules.is_none()),
        ("energy_integral_joules", "power_watts", summary.energy_integral_joules.is_none()),
        ("max_temperature_celsius", "temperature_celsius", summary.max_temperature_celsius.is_none()),
        ("throttled_fraction", "throttle_bits", summary.throttled_fraction.is_none()),
        ("peak_nvml_used_bytes", "memory_used_bytes", summary.peak_nvml_used_bytes.is_none()),
    ];
    for (column, field, is_empty) in empty {
        if let (true, Some(reason)) = (is_empty, readings.absent.get(field).or(whole)) {
            note(summary, column, reason);
        }
    }
}

fn note(summary: &mut WindowSummary, column: &str, reason: &str) {
    summary.notes.entry(column.to_owned()).or_insert_with(|| reason.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::sampler::ChildTick;

    const SECOND: u64 = 1_000_000_000;
    const CORES: Option<u64> = Some(8);

    /// A tick of a device at constant 200 W whose counter agrees.
    fn tick(seconds: f64) -> Tick {
        let gpu = GpuTick {
            utilization: Some(0.5),
            memory_used_bytes: Some((seconds * 10.0) as u64),
            power_watts: Some(200.0),
            energy_joules: Some(1000.0 + 200.0 * seconds),
            temperature_celsius: Some(50.0 + seconds),
            throttle_bits: Some(0),
            ..GpuTick::default()
        };
        let child = ChildTick { resident_bytes: 1, peak_resident_bytes: (seconds * 100.0) as u64, cpu_cores: None };
        Tick { monotonic_nanoseconds: (seconds * 1e9) as u64, gpu: Some(gpu), child: Some(child), ..Tick::default() }
    }

    fn readings(seconds: impl IntoIterator<Item = f64>) -> TrialReadings {
        TrialReadings { ticks: seconds.into_iter().map(tick).collect(), ..TrialReadings::default() }
    }

    fn close(value: Option<f64>, wanted: f64) -> bool {
        value.is_some_and(|value| (value - wanted).abs() < 1e-6)
    }

    #[test]
    fn energy_is_cut_at_the_windows_ends_whatever_the_ticks_are() {
        for times in [vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], vec![0.3, 1.25, 1.26, 3.3, 4.4, 4.5, 6.1], vec![1.0, 6.5]] {
            let summary = summarize(&readings(times.clone()), Some((5 * SECOND / 4, 6 * SECOND)), &[], CORES);
            assert!(close(summary.energy_counter_joules, 950.0), "{times:?}: {summary:?}");
            assert!(close(summary.energy_integral_joules, 950.0), "{times:?}: {summary:?}");
            assert!(close(summary.mean_power_watts, 200.0));
        }
    }

    #[test]
    fn what_happens_in_a_cut_does_not_count() {
        let mut readings = readings((0..=10).map(f64::from));
        for tick in &mut readings.ticks[4..=6] {
            tick.gpu.as_mut().unwrap().utilization = Some(1.0);
        }
        let summary = summarize(&readings, Some((SECOND, 9 * SECOND)), &[(3 * SECOND, 6 * SECOND)], CORES);
        assert!(close(summary.energy_counter_joules, 1000.0) && close(summary.energy_integral_joules, 1000.0), "{summary:?}");
        assert!(close(summary.mean_power_watts, 200.0) && close(summary.mean_gpu_utilization, 0.5), "{summary:?}");
        assert_eq!(without_cuts((0, 10), &[(0, 2), (4, 5), (9, 12)]), [(2, 4), (5, 9)]);
    }

    #[test]
    fn a_mean_weighs_by_time_and_not_by_ticks() {
        let mut readings = readings([0.0, 1.0, 2.0, 3.0, 4.0, 4.001, 4.002, 5.0]);
        for place in [5, 6] {
            readings.ticks[place].gpu.as_mut().unwrap().utilization = Some(1.0);
        }
        let mean = summarize(&readings, Some((0, 5 * SECOND)), &[], CORES).mean_gpu_utilization.unwrap();
        assert!((mean - 0.5).abs() < 0.001, "{mean}");
    }

    #[test]
    fn too_few_samples_leave_the_mean_empty_and_say_so() {
        let summary = summarize(&readings([0.0, 1.0, 2.0]), Some((0, 2 * SECOND)), &[], CORES);
        assert_eq!(summary.mean_gpu_utilization, None);
        assert_eq!(summary.notes["mean_gpu_utilization"], "2 samples in the window, too few for a mean");
        assert!(close(summary.energy_counter_joules, 400.0));
    }

    #[test]
    fn an_energy_that_the_samples_do_not_cover_is_not_guessed() {
        let summary = summarize(&readings([0.0, 1.0, 2.0]), Some((0, 4 * SECOND)), &[], CORES);
        assert_eq!((summary.energy_counter_joules, summary.mean_power_watts), (None, None));
        assert_eq!(summary.notes["energy_counter_joules"], "samples cover 50 % of the window");
    }

    #[test]
    fn counter_and_integral_that_disagree_are_both_kept_with_a_note() {
        let mut readings = readings((0..8).map(f64::from));
        for tick in &mut readings.ticks {
            tick.gpu.as_mut().unwrap().power_watts = Some(100.0);
        }
        let summary = summarize(&readings, Some((SECOND, 6 * SECOND)), &[], CORES);
        assert!(close(summary.energy_counter_joules, 1000.0) && close(summary.energy_integral_joules, 500.0));
        assert_eq!(summary.notes["energy_counter_joules"], "50 % apart from energy_integral_joules");
        readings.ticks[4].gpu.as_mut().unwrap().energy_joules = Some(0.0);
        assert_eq!(summarize(&readings, Some((SECOND, 6 * SECOND)), &[], CORES).energy_counter_joules, None);
    }

    #[test]
    fn throttling_is_a_share_of_the_window_and_idleness_is_none() {
        let mut readings = readings((0..=10).map(f64::from));
        for (place, bits) in [(1, 0x1), (2, 0x4), (3, 0x4 | 0x40)] {
            readings.ticks[place].gpu.as_mut().unwrap().throttle_bits = Some(bits);
        }
        let summary = summarize(&readings, Some((0, 10 * SECOND)), &[], CORES);
        assert!(close(summary.throttled_fraction, 0.2));
        assert_eq!(summary.throttle_reasons.as_deref(), Some("sw_power_cap hw_thermal_slowdown"));
    }

    #[test]
    fn peaks_are_of_the_window_and_the_child_is_of_the_whole_attempt() {
        let summary = summarize(&readings((0..=10).map(f64::from)), Some((2 * SECOND, 6 * SECOND)), &[], CORES);
        assert_eq!(summary.peak_nvml_used_bytes, Some(60));
        assert_eq!(summary.max_temperature_celsius, Some(56.0));
        assert_eq!(summary.peak_resident_bytes, Some(1000));
    }

    #[test]
    fn without_a_window_only_peaks_are_known() {
        let summary = summarize(&readings([0.0, 1.0]), None, &[], CORES);
        assert_eq!((summary.peak_nvml_used_bytes, summary.mean_power_watts), (Some(10), None));
        assert_eq!(summary.notes["mean_power_watts"], "there is no measured window");
    }

    #[test]
    fn an_absent_field_gives_its_reason_and_a_cpu_trial_gives_none() {
        let mut readings = readings((0..8).map(f64::from));
        for tick in &mut readings.ticks {
            tick.gpu.as_mut().unwrap().energy_joules = None;
        }
        readings.absent.insert("energy_joules", "not supported by this device".to_owned());
        let summary = summarize(&readings, Some((0, 7 * SECOND)), &[], CORES);
        assert_eq!(summary.notes["energy_counter_joules"], "not supported by this device");
        readings.ticks.iter_mut().for_each(|tick| tick.gpu = None);
        let hung = summarize(&TrialReadings { ticks: Vec::new(), absent: [(EVERYTHING, "hung".to_owned())].into(), foreign: None }, None, &[], CORES);
        assert_eq!((hung.notes["max_temperature_celsius"].as_str(), hung.max_temperature_celsius), ("hung", None));
        readings.absent.clear();
        let summary = summarize(&readings, Some((0, 7 * SECOND)), &[], CORES);
        assert!(summary.notes.is_empty() && summary.peak_resident_bytes == Some(700));
    }

    #[test]
    fn what_others_compute_in_the_window_is_the_machines_work_less_the_childs() {
        let mut readings = readings((0..=10).map(f64::from));
        for (second, tick) in readings.ticks.iter_mut().enumerate() {
            tick.gpu = None;
            // Alone up to the fourth second and after the eighth, then beside others that use 3 of the 8 cores.
            let others = if (5..=8).contains(&second) { 3.0 } else { 0.0 };
            tick.host.cpu_fraction = Some((2.0 + others) / 8.0);
            tick.child.as_mut().unwrap().cpu_cores = Some(2.0);
        }
        let others = |readings: &TrialReadings, window, cuts: &[(u64, u64)], cores| summarize(readings, window, cuts, cores).other_cpu_cores;
        assert!(close(others(&readings, Some((2 * SECOND, 8 * SECOND)), &[], CORES), 2.0));
        assert!(close(others(&readings, Some((2 * SECOND, 8 * SECOND)), &[(4 * SECOND, 7 * SECOND)], CORES), 1.0));
        assert!(close(others(&readings, Some((0, 4 * SECOND)), &[], CORES), 0.0));
        assert_eq!(others(&readings, Some((0, 8 * SECOND)), &[], None), None);
        assert_eq!(others(&readings, None, &[], CORES), None);
        readings.ticks[6].child = None;
        readings.ticks[7].host.cpu_fraction = None;
        assert!(close(others(&readings, Some((4 * SECOND, 10 * SECOND)), &[], CORES), 1.5));
    }
}
