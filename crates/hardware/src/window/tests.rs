use super::*;
use crate::sampler::ChildTick;

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
    let child = ChildTick {
        resident_bytes: Some(1),
        peak_resident_bytes: (seconds * 100.0) as u64,
        ..ChildTick::default()
    };
    Tick {
        monotonic_nanoseconds: (seconds * 1e9) as u64,
        gpu: Some(gpu),
        child: Some(child),
        ..Tick::default()
    }
}

fn readings(seconds: impl IntoIterator<Item = f64>) -> TrialReadings {
    TrialReadings {
        ticks: seconds.into_iter().map(tick).collect(),
        ..TrialReadings::default()
    }
}

fn close(value: Option<f64>, wanted: f64) -> bool {
    value.is_some_and(|value| (value - wanted).abs() < 1e-6)
}

#[test]
fn energy_is_cut_at_the_windows_ends_whatever_the_ticks_are() {
    for times in [
        vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        vec![0.3, 1.25, 1.26, 3.3, 4.4, 4.5, 6.1],
        vec![1.0, 6.5],
    ] {
        let summary = summarize(
            &readings(times.clone()),
            Some((5 * SECOND / 4, 6 * SECOND)),
            &[],
            CORES,
        );
        assert!(
            close(summary.energy_counter_joules, 950.0),
            "{times:?}: {summary:?}"
        );
        assert!(
            close(summary.energy_integral_joules, 950.0),
            "{times:?}: {summary:?}"
        );
        assert!(close(summary.mean_power_watts, 200.0));
    }
}

#[test]
fn a_window_shorter_than_the_power_readings_has_no_energy() {
    let readings = readings((0..=40).map(|tick| f64::from(tick) / 10.0));
    let of = |end: u64| summarize(&readings, Some((SECOND, end)), &[], CORES);
    let short = of(2 * SECOND);
    assert_eq!(
        (
            short.energy_counter_joules,
            short.energy_integral_joules,
            short.mean_power_watts
        ),
        (None, None, None)
    );
    for column in [
        "energy_counter_joules",
        "energy_integral_joules",
        "mean_power_watts",
    ] {
        assert!(
            short.notes[column].starts_with("a window of 1.00 s is too short"),
            "{:?}",
            short.notes
        );
    }
    assert!(short.mean_gpu_utilization.is_some());
    let almost = of(3 * SECOND - 1);
    assert!(
        almost.notes["mean_power_watts"].starts_with("a window of 1.99 s"),
        "{:?}",
        almost.notes
    );
    let mut without = readings.clone();
    for tick in &mut without.ticks {
        tick.gpu.as_mut().unwrap().energy_joules = None;
    }
    let without = summarize(&without, Some((SECOND, 2 * SECOND)), &[], CORES);
    assert!(
        !without
            .notes
            .get("energy_counter_joules")
            .is_some_and(|note| note.contains("window")),
        "{:?}",
        without.notes
    );
    assert!(close(of(3 * SECOND).energy_counter_joules, 400.0));
}

#[test]
fn a_series_of_days_has_its_energy_though_its_older_ticks_were_thinned() {
    // Thinned three times: ticks of half a second are four seconds apart at the beginning, and one
    // at the end.
    let times = (0..5000)
        .map(|tick| 4.0 * f64::from(tick))
        .chain((0..5000).map(|tick| 20_000.0 + 2.0 * f64::from(tick)))
        .chain((0..20_000).map(|tick| 30_000.0 + f64::from(tick)));
    let readings = readings(times);
    let summary = summarize(&readings, Some((SECOND, 49_000 * SECOND)), &[], CORES);
    assert!(
        close(summary.mean_power_watts, 200.0),
        "{:?}",
        summary.notes
    );
    // A driver that was silent in the older part all the same.
    let mut holed = readings;
    for tick in &mut holed.ticks[1000..1500] {
        tick.gpu = None;
    }
    let summary = summarize(&holed, Some((SECOND, 49_000 * SECOND)), &[], CORES);
    assert_eq!(summary.energy_integral_joules, None);
    assert_eq!(
        summary.notes["energy_integral_joules"],
        "samples cover 96 % of the window"
    );
}

#[test]
fn what_happens_in_a_cut_does_not_count() {
    let mut readings = readings((0..=30).map(f64::from));
    for tick in &mut readings.ticks[12..=14] {
        tick.gpu.as_mut().unwrap().utilization = Some(1.0);
    }
    let summary = summarize(
        &readings,
        Some((SECOND, 24 * SECOND)),
        &[(11 * SECOND, 14 * SECOND)],
        CORES,
    );
    assert!(
        close(summary.energy_counter_joules, 4000.0)
            && close(summary.energy_integral_joules, 4000.0),
        "{summary:?}"
    );
    assert!(
        close(summary.mean_power_watts, 200.0) && close(summary.mean_gpu_utilization, 0.5),
        "{summary:?}"
    );
    assert_eq!(
        without_cuts((0, 10), &[(0, 2), (4, 5), (9, 12)]),
        [(2, 4), (5, 9)]
    );
    assert_eq!(
        without_cuts((10, 20), &[(0, 5), (18, 30), (40, 50)]),
        [(10, 18)],
        "cuts before and after the window"
    );
}

/// Work of 600 W and pauses of 130 W in turns, read every half second and, with `marks`, a moment after
/// each change; the driver's power is the mean of the last second, its counter is exact.
fn in_turns(work: f64, pause: f64, marks: bool) -> (TrialReadings, (u64, u64), Vec<(u64, u64)>) {
    const TURNS: usize = 12;
    let period = work + pause;
    let energy = |seconds: f64| {
        let whole = (seconds / period).floor();
        let within = seconds - whole * period;
        whole * (600.0 * work + 130.0 * pause)
            + 600.0 * within.min(work)
            + 130.0 * (within - work).max(0.0)
    };
    let end = period * TURNS as f64;
    let mut times: Vec<f64> = (0..=(end / 0.5) as usize + 2)
        .map(|tick| 0.137 + 0.5 * tick as f64)
        .collect();
    if marks {
        let changes = (0..TURNS).flat_map(|turn| {
            let begin = period * turn as f64;
            [begin + 0.002, begin + work + 0.002]
        });
        times.extend(changes);
        times.sort_by(f64::total_cmp);
    }
    let mut readings = readings(times.clone());
    for (tick, seconds) in readings.ticks.iter_mut().zip(times) {
        let gpu = tick.gpu.as_mut().unwrap();
        gpu.energy_joules = Some(1000.0 + energy(seconds));
        gpu.power_watts = Some(match seconds < 1.0 {
            true => 600.0,
            false => energy(seconds) - energy(seconds - 1.0),
        });
    }
    let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
    let cuts = (0..TURNS).map(|turn| {
        let begin = period * turn as f64;
        (nanoseconds(begin + work), nanoseconds(begin + period))
    });
    (
        readings,
        (nanoseconds(0.2), nanoseconds(end)),
        cuts.collect(),
    )
}

#[test]
fn energy_between_pauses_is_that_of_the_work_or_is_not_told() {
    let of = |work, pause, marks| {
        let (readings, window, cuts) = in_turns(work, pause, marks);
        summarize(&readings, Some(window), &cuts, CORES)
    };
    let power = |joules: Option<f64>, work: f64| joules.unwrap() / (12.0 * work - 0.2);
    for (work, pause) in [(12.0, 2.0), (5.0, 2.0), (3.0, 2.0), (2.5, 1.0)] {
        let summary = of(work, pause, true);
        let counted = power(summary.energy_counter_joules, work);
        assert!(
            (counted / 600.0 - 1.0).abs() < 0.01,
            "{work} s: {counted} W"
        );
        let mean = summary.mean_power_watts.unwrap();
        assert!((mean / 600.0 - 1.0).abs() < 0.05, "{work} s: {mean} W");
        match summary.energy_integral_joules {
            Some(joules) => assert!(work > 10.0 && power(Some(joules), work) > 570.0),
            None => assert!(
                work < 10.0
                    && summary.notes["energy_integral_joules"].starts_with(
                        "evaluations and checkpoints cut the window into 12 pieces of "
                    ),
                "{:?}",
                summary.notes
            ),
        }
    }
    // Without looks where the work ends, the counter alone is several percent too low.
    let unmarked = power(of(3.0, 2.0, false).energy_counter_joules, 3.0);
    assert!(unmarked < 594.0, "{unmarked} W");
    let short = of(1.5, 1.0, true);
    assert_eq!(
        (short.energy_counter_joules, short.mean_power_watts),
        (None, None)
    );
    assert!(
        short.notes["mean_power_watts"].ends_with("they take 10 s")
            && short.notes["energy_counter_joules"].ends_with("they take 2 s"),
        "{:?}",
        short.notes
    );
}

#[test]
fn what_comes_right_after_the_window_is_no_peak_of_it() {
    let mut readings = readings([0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
    for (tick, bytes) in readings.ticks.iter_mut().zip([3, 5, 5, 5, 5, 90]) {
        let gpu = tick.gpu.as_mut().unwrap();
        (gpu.memory_used_bytes, gpu.process_memory_bytes) = (Some(bytes), Some(bytes));
    }
    let peaks = |from: u64, to: u64| {
        let summary = summarize(&readings, Some((from, to)), &[], CORES);
        (
            summary.peak_nvml_used_bytes,
            summary.peak_nvml_process_bytes,
        )
    };
    assert_eq!(
        peaks(SECOND / 4, 2 * SECOND + SECOND / 4),
        (Some(5), Some(5))
    );
    // The only reading.
    let late = 2 * SECOND + SECOND / 10;
    assert_eq!(peaks(late, late + SECOND / 10), (Some(90), Some(90)));
}

#[test]
fn a_look_over_several_cuts_is_one_sample() {
    let readings = readings((0..=4).map(|tick| f64::from(tick) / 2.0));
    let cuts: Vec<(u64, u64)> = (1..20)
        .map(|cut| (cut * SECOND / 10, cut * SECOND / 10 + SECOND / 100))
        .collect();
    let summary = summarize(&readings, Some((SECOND / 20, 2 * SECOND)), &cuts, CORES);
    assert_eq!(summary.mean_gpu_utilization, None);
    assert_eq!(
        summary.notes["mean_gpu_utilization"],
        "only 4 samples in the window, too few for a mean"
    );
}

#[test]
fn a_mean_weighs_by_time_and_not_by_ticks() {
    let mut readings = readings([0.0, 1.0, 2.0, 3.0, 4.0, 4.001, 4.002, 5.0]);
    for place in [5, 6] {
        readings.ticks[place].gpu.as_mut().unwrap().utilization = Some(1.0);
    }
    let mean = summarize(&readings, Some((0, 5 * SECOND)), &[], CORES)
        .mean_gpu_utilization
        .unwrap();
    assert!((mean - 0.5).abs() < 0.001, "{mean}");
}

#[test]
fn too_few_samples_leave_the_mean_empty_and_say_so() {
    let summary = summarize(
        &readings([0.0, 1.0, 2.0]),
        Some((0, 2 * SECOND)),
        &[],
        CORES,
    );
    assert_eq!(summary.mean_gpu_utilization, None);
    assert_eq!(
        summary.notes["mean_gpu_utilization"],
        "only 2 samples in the window, too few for a mean"
    );
    assert!(close(summary.energy_counter_joules, 400.0));
}

#[test]
fn a_mean_of_a_part_of_the_window_is_not_told_as_that_of_the_whole() {
    // Read for 5 of 9 seconds, then the driver hangs.
    let mut hung = readings((0..=9).map(f64::from));
    for tick in &mut hung.ticks {
        tick.gpu.as_mut().unwrap().sm_clock_megahertz = Some(1400);
    }
    // Only the utilization fails, and only for the last two seconds.
    let mut failing = hung.clone();
    for tick in &mut failing.ticks[8..] {
        tick.gpu.as_mut().unwrap().utilization = None;
    }
    hung.ticks[6..].iter_mut().for_each(|tick| tick.gpu = None);
    let summary = summarize(&hung, Some((0, 9 * SECOND)), &[], CORES);
    assert_eq!(
        (
            summary.mean_gpu_utilization,
            summary.mean_sm_clock_megahertz,
            summary.throttled_fraction
        ),
        (None, None, None)
    );
    for column in [
        "mean_gpu_utilization",
        "mean_sm_clock_megahertz",
        "throttled_fraction",
    ] {
        assert_eq!(summary.notes[column], "samples cover 56 % of the window");
    }
    let summary = summarize(&failing, Some((0, 9 * SECOND)), &[], CORES);
    assert_eq!(
        (
            summary.mean_gpu_utilization,
            summary.mean_sm_clock_megahertz,
            summary.throttled_fraction
        ),
        (None, Some(1400.0), Some(0.0))
    );
    assert_eq!(
        summary.notes["mean_gpu_utilization"],
        "samples cover 78 % of the window"
    );
}

#[test]
fn an_energy_that_the_samples_do_not_cover_is_not_guessed() {
    let summary = summarize(
        &readings([0.0, 1.0, 2.0]),
        Some((0, 4 * SECOND)),
        &[],
        CORES,
    );
    assert_eq!(
        (summary.energy_counter_joules, summary.mean_power_watts),
        (None, None)
    );
    assert_eq!(
        summary.notes["energy_counter_joules"],
        "samples cover 50 % of the window"
    );
}

#[test]
fn a_hole_in_the_readings_is_not_bridged_by_the_integral_but_by_the_counter() {
    // 21 ticks a second apart, of which the driver did not answer five.
    let holed = |missing: std::ops::RangeInclusive<usize>| {
        let mut readings = readings((0..=20).map(f64::from));
        readings.ticks[missing]
            .iter_mut()
            .for_each(|tick| tick.gpu = None);
        summarize(&readings, Some((SECOND, 19 * SECOND)), &[], CORES)
    };
    let summary = holed(8..=12);
    assert_eq!(summary.energy_integral_joules, None);
    assert_eq!(
        summary.notes["energy_integral_joules"],
        "samples cover 67 % of the window"
    );
    assert!(close(summary.energy_counter_joules, 3600.0), "{summary:?}");
    assert!(
        close(summary.mean_power_watts, 200.0) && !summary.notes.contains_key("mean_power_watts"),
        "the counter's: {summary:?}"
    );
    let one = holed(8..=8);
    assert!(
        close(one.energy_integral_joules, 3600.0),
        "one tick that is missing is bridged: {one:?}"
    );
    // Nobody knows what the counter said when the window began.
    let at_the_start = {
        let mut readings = readings((0..=20).map(f64::from));
        readings.ticks[2..=6]
            .iter_mut()
            .for_each(|tick| tick.gpu = None);
        summarize(&readings, Some((4 * SECOND, 19 * SECOND)), &[], CORES)
    };
    assert_eq!(at_the_start.energy_counter_joules, None);
    assert_eq!(
        at_the_start.notes["energy_counter_joules"],
        "samples cover 80 % of the window"
    );
}

#[test]
fn a_counter_that_stands_still_and_power_that_is_always_0_are_no_energy() {
    let of = |watts: Option<f64>| {
        let mut readings = readings((0..8).map(f64::from));
        for tick in &mut readings.ticks {
            let gpu = tick.gpu.as_mut().unwrap();
            (gpu.power_watts, gpu.energy_joules) = (watts, Some(90_000.0));
        }
        summarize(&readings, Some((SECOND, 6 * SECOND)), &[], CORES)
    };
    let standing = "the counter did not move in the window";
    for watts in [None, Some(0.0)] {
        let summary = of(watts);
        assert_eq!(
            (
                summary.energy_counter_joules,
                summary.energy_integral_joules,
                summary.mean_power_watts
            ),
            (None, None, None)
        );
        assert_eq!(summary.notes["energy_counter_joules"], standing);
        let no_power = watts.map(|_| "every power reading in the window is 0 W");
        for column in ["energy_integral_joules", "mean_power_watts"] {
            assert_eq!(summary.notes.get(column).map(String::as_str), no_power);
        }
    }
    let summary = of(Some(200.0));
    assert_eq!(summary.energy_counter_joules, None);
    assert_eq!(summary.notes["energy_counter_joules"], standing);
    assert!(close(summary.energy_integral_joules, 1000.0));
}

#[test]
fn counter_and_integral_that_disagree_are_both_kept_with_a_note() {
    let mut readings = readings((0..8).map(f64::from));
    for tick in &mut readings.ticks {
        tick.gpu.as_mut().unwrap().power_watts = Some(100.0);
    }
    let summary = summarize(&readings, Some((SECOND, 6 * SECOND)), &[], CORES);
    assert!(
        close(summary.energy_counter_joules, 1000.0)
            && close(summary.energy_integral_joules, 500.0)
    );
    assert_eq!(
        summary.notes["energy_counter_joules"],
        "differs from energy_integral_joules by 50 %"
    );
    readings.ticks[4].gpu.as_mut().unwrap().energy_joules = Some(0.0);
    let summary = summarize(&readings, Some((SECOND, 6 * SECOND)), &[], CORES);
    assert_eq!(summary.energy_counter_joules, None);
    assert_eq!(
        summary.notes["energy_counter_joules"],
        "the counter went backwards, so it was reset or has wrapped"
    );
}

#[test]
fn throttling_is_a_share_of_the_window_and_idleness_is_none() {
    let mut readings = readings((0..=10).map(f64::from));
    for (place, bits) in [(1, 0x1), (2, 0x4), (3, 0x4 | 0x40)] {
        readings.ticks[place].gpu.as_mut().unwrap().throttle_bits = Some(bits);
    }
    let summary = summarize(&readings, Some((0, 10 * SECOND)), &[], CORES);
    assert!(close(summary.throttled_fraction, 0.2));
    assert_eq!(
        summary.throttle_reasons.as_deref(),
        Some("hw_thermal_slowdown sw_power_cap"),
        "heat for a tenth of the window matters more than a power cap for a fifth"
    );
    let order = |shares: &[(&str, f64)]| {
        let shares = shares
            .iter()
            .map(|(name, share)| ((*name).to_owned(), *share));
        reasons_in_order(&shares.collect()).unwrap_or_default()
    };
    let (cap, heat) = ("sw_power_cap", "sw_thermal_slowdown");
    assert_eq!(
        order(&[(cap, 1.0), (heat, 1.0)]),
        "sw_thermal_slowdown sw_power_cap"
    );
    assert_eq!(
        order(&[(cap, 1.0), (heat, 0.01)]),
        "sw_power_cap sw_thermal_slowdown"
    );
    assert_eq!(order(&[]), "");
    readings.ticks[7].gpu.as_mut().unwrap().throttle_bits = None;
    let one_missing = summarize(&readings, Some((0, 10 * SECOND)), &[], CORES);
    assert_eq!(
        one_missing.throttle_reasons, summary.throttle_reasons,
        "a tick without the reasons takes nothing from the others"
    );
}

#[test]
fn peaks_are_of_the_window_and_the_child_is_of_the_whole_attempt() {
    let summary = summarize(
        &readings((0..=10).map(f64::from)),
        Some((2 * SECOND, 6 * SECOND)),
        &[],
        CORES,
    );
    assert_eq!(summary.peak_nvml_used_bytes, Some(60));
    assert_eq!(summary.max_temperature_celsius, Some(56.0));
    assert_eq!(summary.peak_resident_bytes, Some(1000));
}

#[test]
fn without_a_window_only_peaks_are_known() {
    let summary = summarize(&readings([0.0, 1.0]), None, &[], CORES);
    assert_eq!(
        (summary.peak_nvml_used_bytes, summary.mean_power_watts),
        (Some(10), None)
    );
    assert_eq!(
        summary.notes["mean_power_watts"],
        "there is no measured window"
    );
}

#[test]
fn what_is_read_before_the_program_begins_is_in_no_peak() {
    let mut readings = readings([1.0, 2.0, 3.0, 4.0]);
    // What prepares the program holds and reads more than the program itself.
    let values = [(900, 1), (800, 2), (30, 70), (40, 60)];
    for (tick, (bytes, available)) in readings.ticks.iter_mut().zip(values) {
        let child = tick.child.as_mut().unwrap();
        (child.peak_resident_bytes, child.disk_read_bytes) = (bytes, Some(bytes));
        tick.gpu.as_mut().unwrap().memory_used_bytes = Some(bytes);
        tick.host.memory_available_bytes = Some(available);
    }
    let seen = |began: u64, window| {
        let readings = TrialReadings {
            began,
            ..readings.clone()
        };
        let summary = summarize(&readings, window, &[], CORES);
        [
            summary.peak_resident_bytes,
            summary.disk_read_bytes,
            summary.peak_nvml_used_bytes,
            summary.min_host_memory_available_bytes,
        ]
    };
    let window = Some((3 * SECOND, 4 * SECOND));
    let of_program = [Some(40), Some(40), Some(40), Some(60)];
    assert_eq!(seen(3 * SECOND, None), of_program);
    assert_eq!(seen(3 * SECOND, window), of_program);
    assert_eq!(seen(0, None), [Some(900), Some(900), Some(900), Some(1)]);
    // The program never began.
    assert_eq!(seen(u64::MAX, None), [None; 4]);
}

#[test]
fn an_absent_field_gives_its_reason_and_a_cpu_trial_gives_none() {
    let mut readings = readings((0..8).map(f64::from));
    for tick in &mut readings.ticks {
        tick.gpu.as_mut().unwrap().energy_joules = None;
    }
    readings
        .absent
        .insert("energy_joules", "not supported by this device".to_owned());
    let summary = summarize(&readings, Some((0, 7 * SECOND)), &[], CORES);
    assert_eq!(
        summary.notes["energy_counter_joules"],
        "not supported by this device"
    );
    readings.ticks.iter_mut().for_each(|tick| tick.gpu = None);
    let hung = summarize(
        &TrialReadings {
            absent: [(EVERYTHING, "hung".to_owned())].into(),
            ..TrialReadings::default()
        },
        None,
        &[],
        CORES,
    );
    assert_eq!(
        (
            hung.notes["max_temperature_celsius"].as_str(),
            hung.max_temperature_celsius
        ),
        ("hung", None)
    );
    readings.absent.clear();
    let summary = summarize(&readings, Some((0, 7 * SECOND)), &[], CORES);
    assert!(summary.notes.is_empty() && summary.peak_resident_bytes == Some(700));
}

#[test]
fn what_others_compute_in_the_window_is_the_machines_work_less_that_of_ours() {
    let mut readings = readings((0..=10).map(f64::from));
    for (second, tick) in readings.ticks.iter_mut().enumerate() {
        tick.gpu = None;
        // Alone up to the fourth second and after the eighth, then beside others that use 3 of the
        // 8 cores.
        let others = if (5..=8).contains(&second) { 3.0 } else { 0.0 };
        tick.host.allowed_cpu_fraction = Some((2.0 + others) / 8.0);
        // Half of it by the trial's process itself: the rest is what a wrapper started, or a trial
        // beside it.
        tick.child.as_mut().unwrap().cpu_cores = Some(1.0);
        tick.own_cpu_cores = Some(2.0);
    }
    let others = |readings: &TrialReadings, window, cuts: &[(u64, u64)], cores| {
        summarize(readings, window, cuts, cores).other_cpu_cores
    };
    assert!(close(
        others(&readings, Some((2 * SECOND, 8 * SECOND)), &[], CORES),
        2.0
    ));
    assert!(close(
        others(
            &readings,
            Some((2 * SECOND, 8 * SECOND)),
            &[(4 * SECOND, 7 * SECOND)],
            CORES
        ),
        1.0
    ));
    assert!(close(
        others(&readings, Some((0, 4 * SECOND)), &[], CORES),
        0.0
    ));
    assert_eq!(others(&readings, Some((0, 8 * SECOND)), &[], None), None);
    assert_eq!(others(&readings, None, &[], CORES), None);
    readings.ticks[6].own_cpu_cores = None;
    readings.ticks[7].host.allowed_cpu_fraction = None;
    assert!(close(
        others(&readings, Some((4 * SECOND, 10 * SECOND)), &[], CORES),
        1.5
    ));
}

#[test]
fn the_work_of_the_chip_is_a_mean_of_its_own_ticks_and_needs_five() {
    let mut readings = readings((0..=10).map(f64::from));
    for (second, tick) in readings.ticks.iter_mut().enumerate() {
        let gpu = tick.gpu.as_mut().unwrap();
        gpu.work.sm_active = (second % 2 == 0).then_some(0.8);
        gpu.work.tensor_active = (second > 8).then_some(0.3);
        gpu.pcie_receive_bytes_per_second = Some(second as f64 * 1e6);
        gpu.ecc_corrected_errors = Some(second as u64 / 5);
    }
    let summary = summarize(&readings, Some((0, 10 * SECOND)), &[], CORES);
    assert!(
        close(summary.mean_sm_active, 0.8)
            && close(summary.mean_pcie_receive_bytes_per_second, 5.5e6),
        "{summary:?}"
    );
    assert_eq!(
        (summary.mean_tensor_active, summary.mean_sm_occupancy),
        (None, None)
    );
    assert_eq!(
        summary.notes["mean_tensor_active"],
        "only 2 samples in the window, too few for a mean"
    );
    assert_eq!(
        (summary.ecc_corrected_errors, summary.ecc_uncorrected_errors),
        (Some(2), None)
    );
}

#[test]
fn what_mig_hides_and_what_it_shares_is_said() {
    let mut readings = readings((0..8).map(f64::from));
    readings
        .ticks
        .iter_mut()
        .for_each(|tick| tick.gpu.as_mut().unwrap().utilization = None);
    readings.absent.insert("utilization", "hidden".to_owned());
    readings.absent.insert("gpm", "none".to_owned());
    readings.remarks.insert("power_watts", "of the whole board");
    readings.silent_seconds = 7.0;
    let notes = summarize(&readings, Some((0, 7 * SECOND)), &[], CORES).notes;
    assert_eq!(
        (
            notes["mean_gpu_utilization"].as_str(),
            notes["mean_sm_active"].as_str()
        ),
        ("hidden", "none")
    );
    assert_eq!(
        (
            notes["mean_power_watts"].as_str(),
            notes["energy_integral_joules"].as_str()
        ),
        ("of the whole board", "of the whole board")
    );
    assert_eq!(
        notes["mean_reading_seconds"],
        "the driver did not answer for up to 7 s"
    );
    assert!(!notes.contains_key("energy_counter_joules"));
}

#[test]
fn the_process_and_the_host_are_summarized_on_the_cpu_too() {
    let mut readings = readings((0..=4).map(f64::from));
    for (second, tick) in readings.ticks.iter_mut().enumerate() {
        tick.gpu = None;
        tick.reading_seconds = 0.002;
        tick.host.disk_busy_fraction = Some(second as f64 / 10.0);
        tick.host.memory_available_bytes = Some(100 - second as u64);
        let child = tick.child.as_mut().unwrap();
        (child.cpu_cores, child.disk_read_bytes) = (Some(second as f64), Some(second as u64 * 7));
    }
    let summary = summarize(&readings, Some((2 * SECOND, 4 * SECOND)), &[], CORES);
    assert!(
        close(summary.mean_cpu_cores, 3.5)
            && close(summary.mean_disk_busy_fraction, 0.35)
            && close(summary.mean_reading_seconds, 0.002)
    );
    assert_eq!(
        (
            summary.disk_read_bytes,
            summary.min_host_memory_available_bytes
        ),
        (Some(28), Some(96))
    );
}

#[test]
fn a_program_that_was_stopped_in_its_window_is_told() {
    let notes = |stopped: &[usize]| {
        let mut readings = readings((0..8).map(f64::from));
        for at in stopped {
            readings.ticks[*at].child.as_mut().unwrap().is_stopped = true;
        }
        summarize(&readings, Some((SECOND, 6 * SECOND)), &[], CORES).notes
    };
    let told = notes(&[0, 3, 4]).remove("mean_cpu_cores").unwrap();
    assert!(
        told.ends_with("stopped by a signal for about 2.00 s of the window"),
        "{told}"
    );
    assert!(!notes(&[0, 7]).contains_key("mean_cpu_cores"));
}
