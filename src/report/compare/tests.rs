//! Verdicts on made tables.

use super::{
    super::{
        Style,
        points::tests::{row, table},
    },
    *,
};

/// A table of one point with these rates; ids from `first` on.
fn rates(first: u64, rates: &[f64]) -> TrialTable {
    table(&["train.batch_size"], rates.iter().enumerate().map(|(place, rate)| (row(first + place as u64, *rate), &["8"][..])).collect())
}

fn of_tables(base: &[f64], new: &[f64]) -> Verdict {
    let found = compare(&rates(1, base), &rates(1, new), &Options::default()).unwrap();
    found.pairs[0].comparisons[0].verdict
}

#[test]
fn a_verdict_needs_a_change_that_matters_and_is_sure() {
    let base = [100.0, 101.0, 99.0, 100.5, 99.5];
    let times = |factor: f64| base.map(|rate| rate * factor);
    assert_eq!(of_tables(&base, &times(0.90)), Verdict::Worse);
    assert_eq!(of_tables(&base, &times(1.10)), Verdict::Better);
    assert_eq!(of_tables(&base, &times(1.0)), Verdict::Same);
    // Sure, and too small to matter.
    assert_eq!(of_tables(&base, &times(1.015)), Verdict::Same);
    let wild = [80.0, 120.0, 100.0, 90.0, 110.0];
    assert_eq!(of_tables(&wild, &wild.map(|rate| rate * 1.04)), Verdict::Ambiguous);
    assert_eq!(of_tables(&base[..2], &times(0.5)[..2]), Verdict::TooFewRuns);
    assert_eq!(of_tables(&base, &times(0.5)[..2]), Verdict::TooFewRuns);
}

#[test]
fn each_field_that_decides_numbers_refuses_by_name_and_can_be_what_is_compared() {
    type Change = fn(&mut TrialRow);
    let changes: [(Field, Change); 9] = [
        (Field::DeviceName, |row| row.device_name = Some("NVIDIA H100".into())),
        (Field::Driver, |row| row.driver = Some("590.1".into())),
        (Field::Libtorch, |row| row.libtorch = Some("2.12.0".into())),
        (Field::Engine, |row| row.engine = "flex".into()),
        (Field::Precision, |row| row.precision = "bf16".into()),
        (Field::EffectiveBatchSize, |row| row.effective_batch_size = 2),
        (Field::DevicesPerTrial, |row| row.devices_per_trial = Some(2)),
        (Field::CpuThreads, |row| row.cpu_threads = Some(3)),
        (Field::ConcurrentTrials, |row| row.concurrent_trials = 2),
    ];
    assert_eq!(changes.map(|(field, _)| field), Field::ALL);
    let base = rates(1, &[100.0, 101.0, 99.0]);
    for (field, change) in changes {
        let mut new = base.clone();
        new.rows.iter_mut().for_each(|row| change(&mut row.fixed));
        let refused = compare(&base, &new, &Options::default()).unwrap();
        assert_eq!(refused.pairs[0].unlike.iter().map(|unlike| unlike.field).collect::<Vec<_>>(), [field]);
        assert!(refused.pairs[0].comparisons.iter().all(|comparison| comparison.verdict == Verdict::NotComparable));
        let page = Page { base: "a", new: "b", facts: None, found: &refused }.text(Style { width: None, has_color: false });
        assert!(page.contains(&format!("not comparable: train.batch_size 8: {} ", field.name())), "{page}");
        let asked = compare(&base, &new, &Options { across: vec![field], ..Options::default() }).unwrap();
        assert!(asked.pairs[0].unlike.is_empty() && asked.across.len() == 1, "{asked:?}");
        assert_eq!(asked.pairs[0].comparisons[0].verdict, Verdict::Same);
        let headline = Page { base: "a", new: "b", facts: None, found: &asked }.headline();
        assert!(headline.starts_with(&format!("ACROSS {} ", field.name())), "{headline}");
        // One run alone that differs is enough.
        let mut mixed = base.clone();
        change(&mut mixed.rows[0].fixed);
        assert_eq!(compare(&base, &mixed, &Options::default()).unwrap().pairs[0].unlike.len(), 1);
    }
}

#[test]
fn every_metric_has_a_verdict_and_losses_are_compared_to_the_bit() {
    let full = |id: u64, factor: f64| {
        let mut full = row(id, 100.0 * factor);
        full.median_step_seconds = Some(0.01 / factor);
        full.window_seconds = Some(10.0);
        full.energy_counter_joules = Some(1000.0 * factor);
        full.peak_allocated_bytes = Some((1e9 * factor) as u64);
        full.valid_loss = Some(if factor > 1.2 { 2.1 } else { 2.0 });
        (full, &[][..])
    };
    let side = |factor: f64| table(&[], (1..=3).map(|id| full(id, factor * (1.0 + id as f64 * 1e-4))).collect());
    let found = compare(&side(1.0), &side(1.5), &Options::default()).unwrap();
    let pair = &found.pairs[0];
    let words: Vec<&str> = pair.comparisons.iter().map(word).collect();
    // As many samples, so energy per sample stays: half as much again over half as many again.
    assert_eq!(words, ["faster", "shorter-step", "more-memory", "same", "worse-loss"]);
    assert_eq!((pair.losses, pair.equal_losses), (3, 0));
    let same = compare(&side(1.0), &side(1.0), &Options::default()).unwrap();
    assert_eq!((same.pairs[0].losses, same.pairs[0].equal_losses), (3, 3));
}

#[test]
fn numbers_of_different_columns_are_not_divided_by_one_another() {
    let metrics = |base: &dyn Fn(u64) -> TrialRow, new: &dyn Fn(u64) -> TrialRow| {
        let side = |of: &dyn Fn(u64) -> TrialRow| table(&[], (1..=3).map(|id| (of(id), &[][..])).collect());
        let found = compare(&side(base), &side(new), &Options { across: Field::ALL.to_vec(), ..Options::default() }).unwrap();
        found.pairs[0].comparisons.iter().map(|one| (one.metric, one.base.round() as u64, one.new.round() as u64)).collect::<Vec<_>>()
    };
    let validated = |id| TrialRow { valid_loss: Some(1.0), train_loss: Some(2.0), ..row(id, 10.0) };
    let trained = |id| TrialRow { train_loss: Some(2.0), ..row(id, 10.0) };
    assert!(metrics(&validated, &trained).contains(&(Metric::Loss, 2, 2)));
    let texts = |id| TrialRow { tokens_per_second: Some(640.0), ..row(id, 10.0) };
    assert!(metrics(&texts, &trained).contains(&(Metric::Throughput, 10, 10)));
    let on_gpu = |id| TrialRow { peak_allocated_bytes: Some(8), ..row(id, 10.0) };
    let on_cpu = |id| TrialRow { device_uuid: None, peak_resident_bytes: Some(4), ..row(id, 10.0) };
    assert!(metrics(&on_gpu, &on_cpu).iter().all(|(metric, ..)| *metric != Metric::Memory));
}

#[test]
fn what_is_in_one_table_alone_and_what_ended_otherwise_is_told() {
    let oom = |id| TrialRow { outcome: Outcome::Oom, samples_per_second: None, ..row(id, 1.0) };
    let base = table(&["a.b"], vec![(row(1, 10.0), &["1"]), (row(2, 10.0), &["2"]), (row(3, 10.0), &["3"])]);
    let new = table(&["a.b"], vec![(oom(1), &["1"]), (row(2, 10.0), &["2"]), (row(9, 10.0), &["<9>"])]);
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(found.pairs[0].ends, Some(["1 completed".to_owned(), "1 oom".to_owned()]));
    assert!(found.pairs[0].unlike.is_empty() && found.pairs[0].comparisons.is_empty());
    let page = Page { base: "a", new: "b", facts: Some(&[]), found: &found };
    let text = page.text(Style { width: Some(80), has_color: false });
    for line in ["only in base: a.b 3\n", "only in new: a.b <9>\n", "not all completed: a.b 1: 1 completed → 1 oom\n", "needs 3 runs of a point"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("the records of both agree"), "{text}");
    let csv = page.csv();
    assert!(csv.lines().nth(1).unwrap().starts_with("a.b 2,throughput,too-few-runs,10,10,1,,,,1,1,"), "{csv}");
    let json: serde_json::Value = serde_json::from_str(&page.json()).unwrap();
    assert_eq!((&json["kiln_compare"], &json["pairs"][1]["comparisons"][0]["verdict"]), (&1.into(), &"too-few-runs".into()));
    assert!(page.markdown().contains("| a.b 2 | too few runs | 10.0 | 10.0 |"), "{}", page.markdown());
}

#[test]
fn a_run_far_from_the_others_is_told_with_its_likely_reason_and_kept() {
    let mut far = rates(1, &[100.0, 101.0, 99.0, 100.0, 50.0]);
    far.rows[4].fixed.throttled_fraction = Some(0.3);
    far.rows[4].fixed.throttle_reasons = Some("hw_thermal_slowdown".into());
    let found = compare(&far, &rates(1, &[100.0; 5]), &Options::default()).unwrap();
    assert_eq!(found.pairs[0].outliers, ["base: trial 0000000005 is -50 % off the median of its side (throttled: hw_thermal_slowdown)"]);
    assert_eq!(found.pairs[0].comparisons[0].base_runs, 5);
    let near = compare(&rates(1, &[100.0, 100.0, 100.0, 100.0, 102.0]), &rates(1, &[100.0; 5]), &Options::default()).unwrap();
    assert!(near.pairs[0].outliers.is_empty());
}

/// A number from a standard normal distribution.
fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// Share of made comparisons that end in a verdict of change.
fn changes(runs: usize, spread: f64, factor: f64, comparisons: usize) -> f64 {
    let mut random = fastrand::Rng::with_seed(11);
    let mut side = |factor: f64| (0..runs).map(|_| factor * (spread * normal(&mut random)).exp()).collect::<Vec<f64>>();
    let mut is_change = || matches!(verdict_of(Metric::Throughput, &side(100.0), &side(100.0 * factor)), Verdict::Better | Verdict::Worse);
    (0..comparisons).filter(|_| is_change()).count() as f64 / comparisons as f64
}

#[test]
fn false_alarms_are_rare_and_slowdowns_are_found() {
    for runs in [3, 5, 9] {
        for spread in [0.01, 0.03, 0.10] {
            let share = changes(runs, spread, 1.0, 1000);
            assert!(share <= 0.065, "{runs} runs at {spread}: {share}");
        }
    }
    assert!(changes(10, 0.05, 1.0, 200) <= 0.09, "medians");
    assert!(changes(5, 0.02, 0.95, 500) >= 0.82 && changes(5, 0.01, 0.95, 500) >= 0.99);
}
