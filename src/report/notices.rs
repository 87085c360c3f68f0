//! One-line observations that cost nothing to make, each with its evidence and what to try.

use std::collections::BTreeSet;

use super::points::{Point, note_on, pieces, points};
use crate::{
    plan::Outcome,
    record::{TrialRow, TrialTable},
    units::{Fraction, counted},
};

/// Data wait from which it is worth a warning, and from which it is what limits the trial (`docs/measurement.md` 5).
const WAIT_WARNING: f64 = 0.10;
const WAIT_LIMITS: f64 = 0.20;

/// Share of the window with the clocks held down from which numbers are marked.
const THROTTLED: f64 = 0.05;

/// Everything worth a line, the most telling first.
pub fn notices(table: &TrialTable) -> Vec<String> {
    let points = points(table);
    let completed: Vec<&TrialRow> =
        points.iter().flat_map(|point| point.rows.iter().copied()).filter(|row| row.samples_per_second.is_some()).collect();
    let mut lines = Vec::new();
    lines.extend(data_wait(&points, &table.axes));
    lines.extend(input_pipeline(&points, &table.axes));
    lines.extend(throttling(&completed));
    lines.extend(too_low_peak(&completed));
    lines.extend(growing_memory(&completed));
    lines.extend(stand_ins(&points));
    lines.extend(disturbance(&completed));
    lines.extend(busy_host(&completed));
    lines.extend(not_comparable(&completed, &table.axes));
    lines.extend(cpu_only(&completed));
    lines
}

fn data_wait(points: &[Point<'_>], axes: &[String]) -> Option<String> {
    let wait = |point: &Point<'_>| point.statistic(|row| row.data_wait_fraction).map_or(0.0, |wait| wait.mean);
    let waiting = points.iter().filter(|point| wait(point) >= WAIT_WARNING).count();
    let worst = points.iter().filter(|point| wait(point) >= WAIT_WARNING).max_by(|one, other| wait(one).total_cmp(&wait(other)))?;
    let share = Fraction(wait(worst));
    let who = if points.len() == 1 { "trials".to_owned() } else { format!("{waiting} of {} points", points.len()) };
    let (means, advice) = if wait(worst) >= WAIT_LIMITS {
        ("the loader is the limit there", "try more `data.num_workers`, or `data.synthetic` to see the speed without it")
    } else {
        ("the loader begins to matter", "more `data.num_workers` may help")
    };
    Some(format!("{who} waited for data, up to {share} of the window ({}): {means}; {advice}", worst.name(axes)))
}

/// What the loader costs, where a sweep has points with `data.synthetic` and the same without: `1 - real / synthetic`
/// (`docs/measurement.md` 6). The largest cost of all pairs.
fn input_pipeline(points: &[Point<'_>], axes: &[String]) -> Option<String> {
    let at = axes.iter().position(|axis| axis == "data.synthetic")?;
    let others = |point: &Point<'_>| -> Vec<String> {
        point.values.iter().enumerate().filter(|(place, _)| *place != at).map(|(_, value)| value.clone()).collect()
    };
    let rate = |point: &Point<'_>| point.statistic(|row| row.samples_per_second).map(|rate| rate.mean);
    let of = |value: &'static str| points.iter().filter(move |point| point.values.get(at).is_some_and(|found| found == value));
    let costs = of("false").filter_map(|real| {
        let synthetic = of("true").find(|synthetic| others(synthetic) == others(real))?;
        Some((1.0 - rate(real)? / rate(synthetic)?, real))
    });
    let (cost, worst) = costs.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!(
        "the input pipeline costs {} of the speed ({}; 1 - real / synthetic); where that is near 0, more workers cannot help",
        Fraction(cost.max(0.0)),
        worst.name(axes)
    ))
}

fn throttling(rows: &[&TrialRow]) -> Option<String> {
    let share = |row: &TrialRow| row.throttled_fraction.unwrap_or(0.0);
    let throttled: Vec<&&TrialRow> = rows.iter().filter(|row| share(row) >= THROTTLED).collect();
    let worst = throttled.iter().max_by(|one, other| share(one).total_cmp(&share(other)))?;
    let reasons = worst.throttle_reasons.as_deref().unwrap_or("no reason given");
    Some(format!(
        "the GPU's clocks were held down for up to {} of the window (trial {}): {reasons}; {} of {} trials had {} or more",
        Fraction(share(worst)),
        worst.trial,
        throttled.len(),
        rows.len(),
        Fraction(THROTTLED)
    ))
}

/// No trial does more than its device can: a ceiling that is passed was set too low.
fn too_low_peak(rows: &[&TrialRow]) -> Option<String> {
    let above: Vec<(&TrialRow, f64)> = rows.iter().filter_map(|row| Some((*row, row.mfu.filter(|mfu| *mfu > 1.0)?))).collect();
    let (first, mfu) = above.first()?;
    let source = first.peak_source.as_deref().unwrap_or("of unknown source");
    Some(format!(
        "the MFU of {} of {} trials is above 100 % (first: trial {}, {}): its peak ({source}) is too low, measure it with `kiln calibrate`",
        above.len(),
        rows.len(),
        first.trial,
        Fraction(*mfu)
    ))
}

/// Trials whose note on a slope says that memory clearly grew.
fn growing_memory(rows: &[&TrialRow]) -> Option<String> {
    let told = |row: &TrialRow| {
        let of = |memory, column| note_on(row, column).filter(|note| note.starts_with("grew")).map(|note| format!("{memory} memory {note}"));
        of("device", "allocated_slope_bytes_per_step").or_else(|| of("host", "resident_slope_bytes_per_step"))
    };
    let growing: Vec<(&TrialRow, String)> = rows.iter().filter_map(|row| Some((*row, told(row)?))).collect();
    let (first, note) = growing.first()?;
    Some(format!(
        "memory grew through the window of {} of {} (first: trial {}: {note}); a longer training may run out of it",
        growing.len(),
        counted(rows.len(), "trial"),
        first.trial
    ))
}

/// Trials that ran out of memory and were made in smaller pieces.
fn stand_ins(points: &[Point<'_>]) -> Option<String> {
    let rows = || points.iter().flat_map(|point| point.rows.iter().copied());
    let completed: Vec<&TrialRow> = rows().filter(|row| pieces(row).is_some() && row.outcome == Outcome::Completed).collect();
    let first = completed.first()?;
    let planned = first.fallback_of.as_ref()?;
    let was = rows().find(|row| row.trial == *planned).map(|row| format!(" ({} × {})", row.batch_size, row.grad_accumulation)).unwrap_or_default();
    Some(format!(
        "{} ran out of memory and the same effective batch was made in smaller pieces (first: trial {} with {} × {} for {planned}{was}); \
         their speed is not that of the batch asked for",
        counted(completed.len(), "trial"),
        first.trial,
        first.batch_size,
        first.grad_accumulation,
    ))
}

fn disturbance(rows: &[&TrialRow]) -> Option<String> {
    let disturbed: Vec<&&TrialRow> =
        rows.iter().filter(|row| row.foreign_processes.as_deref().is_some_and(|seen| seen != "none" && seen != "unknown")).collect();
    let first = disturbed.first()?;
    let seen = first.foreign_processes.as_deref().unwrap_or_default();
    Some(format!("others computed on the device during {} trials (first: trial {}: {seen}); their times may be off", disturbed.len(), first.trial))
}

/// Trials whose note on their rate says that others used the CPU.
fn busy_host(rows: &[&TrialRow]) -> Option<String> {
    let told = |row: &TrialRow| note_on(row, "samples_per_second").filter(|note| note.starts_with("other processes kept")).map(str::to_owned);
    let disturbed: Vec<(&TrialRow, String)> = rows.iter().filter_map(|row| Some((*row, told(row)?))).collect();
    let (first, note) = disturbed.first()?;
    let trials = if disturbed.len() == 1 { "1 trial".to_owned() } else { format!("{} trials", disturbed.len()) };
    Some(format!("{trials} of {} ran on a busy machine (first: trial {}: {note}); timings of them do not compare", rows.len(), first.trial))
}

/// Timings compare only where all of these are equal, unless an axis varies them on purpose.
fn not_comparable(rows: &[&TrialRow], axes: &[String]) -> Option<String> {
    type Cell = fn(&TrialRow) -> Option<String>;
    const EQUAL: [(&str, &[&str], Cell); 7] = [
        ("device", &["run.devices", "run.devices_per_trial"], |row| row.device_uuid.clone().or_else(|| row.device_name.clone())),
        ("driver", &[], |row| row.driver.clone()),
        ("libtorch", &["run.engine"], |row| row.libtorch.clone()),
        ("engine", &["run.engine"], |row| Some(row.engine.clone())),
        ("precision", &["train.precision"], |row| Some(row.precision.clone())),
        ("number of concurrent trials", &["run.devices", "run.devices_per_trial"], |row| Some(row.concurrent_trials.to_string())),
        ("threads", &["train.cpu_threads"], |row| row.cpu_threads.map(|threads| threads.to_string())),
    ];
    let differing = EQUAL.iter().filter_map(|(name, its_axes, cell)| {
        let values: BTreeSet<String> = rows.iter().filter_map(|row| cell(row)).collect();
        let varies_on_purpose = axes.iter().any(|swept| its_axes.contains(&swept.as_str()));
        (values.len() > 1 && !varies_on_purpose).then(|| format!("{name} ({})", values.into_iter().collect::<Vec<_>>().join(", ")))
    });
    let differing: Vec<String> = differing.collect();
    (!differing.is_empty()).then(|| format!("timings are not comparable across all rows: they differ in {}", differing.join(", ")))
}

fn cpu_only(rows: &[&TrialRow]) -> Option<String> {
    let first = rows.first()?;
    let on_cpu = rows.iter().all(|row| row.device_uuid.is_none());
    let name = first.device_name.as_deref().unwrap_or("the CPU");
    on_cpu.then(|| format!("everything ran on the CPU ({name}); columns of a GPU are empty"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::points::tests::{row, table},
        *,
    };

    #[test]
    fn data_wait_is_a_warning_from_10_and_a_diagnosis_from_20_percent() {
        let with = |wait| TrialRow { data_wait_fraction: Some(wait), ..row(1, 10.0) };
        assert_eq!(notices(&table(&[], vec![(with(0.099), &[])])), Vec::<String>::new());
        let warning = notices(&table(&[], vec![(with(0.1), &[])])).remove(0);
        assert!(warning.starts_with("trials waited for data, up to 10.0 % of the window (all trials): the loader begins to matter"), "{warning}");
        let two = table(&["data.num_workers"], vec![(with(0.34), &["0"]), (TrialRow { data_wait_fraction: Some(0.01), ..row(2, 20.0) }, &["4"])]);
        let diagnosis = notices(&two).remove(0);
        assert!(
            diagnosis.starts_with("1 of 2 points waited for data, up to 34.0 % of the window (data.num_workers 0): the loader is the limit"),
            "{diagnosis}"
        );
    }

    #[test]
    fn a_synthetic_twin_prices_the_input_pipeline() {
        let axes = ["train.batch_size", "data.synthetic"];
        let rows = |last: f64| {
            table(
                &axes,
                vec![
                    (row(1, 30.0), &["8", "false"][..]),
                    (row(2, 40.0), &["8", "true"]),
                    (row(3, 90.0), &["16", "false"]),
                    (row(4, last), &["16", "true"]),
                ],
            )
        };
        let line = notices(&rows(100.0)).remove(0);
        assert!(line.starts_with("the input pipeline costs 25.0 % of the speed (train.batch_size 8, data.synthetic false;"), "{line}");
        let line = notices(&rows(180.0)).remove(0);
        assert!(line.starts_with("the input pipeline costs 50.0 % of the speed (train.batch_size 16,"), "{line}");
        let lone = table(&["data.synthetic"], vec![(row(1, 30.0), &["false"][..])]);
        assert_eq!(notices(&lone), Vec::<String>::new());
    }

    #[test]
    fn rows_of_two_devices_are_said_not_to_compare_unless_the_device_is_swept() {
        let other = TrialRow { device_uuid: Some("GPU-2".into()), concurrent_trials: 2, ..row(2, 11.0) };
        let rows = |axis: &'static str| table(&[axis], vec![(row(1, 10.0), &["a"][..]), (other.clone(), &["b"][..])]);
        let line = notices(&rows("train.batch_size")).remove(0);
        assert_eq!(line, "timings are not comparable across all rows: they differ in device (GPU-1, GPU-2), number of concurrent trials (1, 2)");
        assert!(notices(&rows("run.devices")).is_empty());
    }

    #[test]
    fn the_cpu_throttling_and_other_people_are_said() {
        let cpu = TrialRow { device_uuid: None, device_name: Some("EPYC".into()), ..row(1, 10.0) };
        assert_eq!(notices(&table(&[], vec![(cpu, &[])])), ["everything ran on the CPU (EPYC); columns of a GPU are empty"]);
        let hot = TrialRow {
            throttled_fraction: Some(0.5),
            throttle_reasons: Some("sw_power_cap".into()),
            foreign_processes: Some("1 with 2.0 GiB".into()),
            ..row(1, 10.0)
        };
        let lines = notices(&table(&[], vec![(hot, &[])]));
        assert!(lines[0].starts_with("the GPU's clocks were held down for up to 50.0 % of the window (trial 0000000001): sw_power_cap"), "{lines:?}");
        assert!(lines[1].starts_with("others computed on the device during 1 trials (first: trial 0000000001: 1 with 2.0 GiB)"), "{lines:?}");
    }

    #[test]
    fn one_throttled_repeat_is_said_however_cool_the_others_were() {
        let repeat = |id, share, reasons: &str| {
            let reasons = (!reasons.is_empty()).then(|| reasons.to_owned());
            (TrialRow { throttled_fraction: Some(share), throttle_reasons: reasons, ..row(id, 10.0) }, &[][..])
        };
        let rows = vec![repeat(1, 0.01, "sw_power_cap"), repeat(2, 0.09, "hw_thermal_slowdown"), repeat(3, 0.0, "")];
        let wanted =
            "the GPU's clocks were held down for up to 9.0 % of the window (trial 0000000002): hw_thermal_slowdown; 1 of 3 trials had 5.0 % or more";
        assert_eq!(notices(&table(&[], rows)), [wanted]);
    }

    #[test]
    fn more_than_the_ceiling_is_doubted() {
        let rows = vec![
            (TrialRow { mfu: Some(0.9), ..row(1, 10.0) }, &[][..]),
            (TrialRow { mfu: Some(1.12), peak_source: Some("table".into()), ..row(2, 11.0) }, &[][..]),
        ];
        let wanted = "the MFU of 1 of 2 trials is above 100 % (first: trial 0000000002, 112.0 %): its peak (table) is too low, measure it with `kiln calibrate`";
        assert_eq!(notices(&table(&[], rows)), [wanted]);
    }

    #[test]
    fn trials_beside_busy_processes_are_counted_in_one_line() {
        let beside = |id, notes: &str| (TrialRow { notes: Some(notes.into()), ..row(id, 10.0) }, &[][..]);
        let note = "mfu: no peak; samples_per_second: other processes kept 3.0 of 8 cores busy in the window";
        let lines = notices(&table(&[], vec![beside(1, "samples_per_second: of few steps"), beside(2, note), beside(3, note)]));
        let wanted = "2 trials of 3 ran on a busy machine (first: trial 0000000002: other processes kept 3.0 of 8 cores busy in the window); \
            timings of them do not compare";
        assert_eq!(lines, [wanted]);
    }

    #[test]
    fn growing_memory_is_said_once_of_the_device_before_the_host() {
        let noted = |id, notes: &str| (TrialRow { notes: Some(notes.into()), ..row(id, 10.0) }, &[][..]);
        let host = "resident_slope_bytes_per_step: grew by 1.0 GiB to 2.0 GiB over 90 steps";
        let both = format!("allocated_slope_bytes_per_step: grew by 1.0 GiB to 6.0 GiB over 90 steps; {host}");
        let wanted = |which| format!("memory grew through the window of {which} over 90 steps); a longer training may run out of it");
        let lines = notices(&table(&[], vec![noted(1, "mfu: no peak"), noted(2, host)]));
        assert_eq!(lines, [wanted("1 of 2 trials (first: trial 0000000002: host memory grew by 1.0 GiB to 2.0 GiB")]);
        let lines = notices(&table(&[], vec![noted(1, &both)]));
        assert_eq!(lines, [wanted("1 of 1 trial (first: trial 0000000001: device memory grew by 1.0 GiB to 6.0 GiB")]);
    }

    #[test]
    fn a_smaller_trial_that_stands_in_is_said() {
        let failed = TrialRow { outcome: Outcome::Oom, samples_per_second: None, batch_size: 8, ..row(1, 1.0) };
        let smaller = TrialRow { fallback_of: Some(failed.trial.clone()), batch_size: 4, grad_accumulation: 2, ..row(2, 5.0) };
        let lines = notices(&table(&[], vec![(failed, &[]), (smaller, &[])]));
        let wanted = "1 trial ran out of memory and the same effective batch was made in smaller pieces (first: trial 0000000002 with 4 × 2 for \
            0000000001 (8 × 1)); their speed is not that of the batch asked for";
        assert_eq!(lines, [wanted]);
    }

    #[test]
    fn an_undisturbed_gpu_run_gives_no_notice() {
        let quiet = TrialRow { foreign_processes: Some("none".into()), throttled_fraction: Some(0.0), data_wait_fraction: Some(0.0), ..row(1, 10.0) };
        assert!(notices(&table(&[], vec![(quiet, &[])])).is_empty());
        assert!(notices(&table(&[], vec![])).is_empty());
    }
}
