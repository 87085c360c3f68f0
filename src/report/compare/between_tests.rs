//! The values of one axis within one table: blocks, sides, refusals.

use kiln_core::{plan::Outcome, record::TableRow};

use super::{tests::page, *};
use crate::report::{
    points::tests::{row, table},
    subject::Subject,
};

const AXES: [&str; 2] = ["model.d_model", "train.cpu_threads"];
/// Noise of single runs.
const NOISE: [f64; 10] = [0.3, -0.5, 0.2, 0.6, -0.4, -0.1, 0.5, -0.3, 0.1, -0.6];

/// A run of one point on two sides: blocks one after the other, who is first alternates, a drift of
/// `drift` over all runs, and one side slower by `slowdown`.
fn run(blocks: u64, drift: f64, slowdown: f64) -> TrialTable {
    let rows = (0..2 * blocks).map(|place| {
        let (block, is_second) = (place / 2, place % 2 == 1);
        let is_new = is_second != (block % 2 == 1);
        let noise = 1.0 + NOISE[place as usize % NOISE.len()] / 100.0;
        let machine = 1.0 + drift * place as f64 / (2 * blocks - 1) as f64;
        let rate = 1000.0 * machine * noise * if is_new { 1.0 - slowdown } else { 1.0 };
        let fixed = TrialRow {
            kiln_table: "trials/7".to_owned(),
            seed: block + 1,
            block: Some(block + 1),
            round: Some(block + 1),
            launch: 1,
            cpu_threads: Some(if is_new { 2 } else { 1 }),
            run_seconds: Some(60.0 * place as f64),
            started_utc: Some(format!("2026-01-01T00:{place:02}:00Z")),
            valid_loss: Some(2.0),
            ..row(place + 1, rate)
        };
        (
            fixed,
            if is_new {
                &["64", "2"][..]
            } else {
                &["64", "1"]
            },
        )
    });
    table(&AXES, rows.collect())
}

fn compared(table: &TrialTable) -> Comparisons {
    let split = SplitTable::of(Subject::new(table, "x"), AXES[1], None).unwrap();
    between(&split, &Options::default()).unwrap()
}

fn throughput(found: &Comparisons) -> &Comparison {
    let comparisons = &found.pairs[0].comparisons;
    comparisons
        .iter()
        .find(|one| one.metric == ComparedMetric::Throughput)
        .unwrap()
}

#[test]
fn a_slowdown_of_10_percent_is_found_under_a_drift_of_20_percent_in_5_blocks() {
    for drift in [0.2, -0.2, 0.0] {
        let found = compared(&run(5, drift, 0.1));
        let one = throughput(&found);
        assert_eq!((one.verdict, one.base_runs), (Verdict::Worse, 5), "{one:?}");
        assert!((one.ratio - 0.9).abs() < 0.01, "{one:?}");
        let same = compared(&run(5, drift, 0.0));
        assert_ne!(throughput(&same).verdict, Verdict::Worse);
        assert_ne!(throughput(&same).verdict, Verdict::Better);
    }
    let text = page(&compared(&run(5, 0.2, 0.1)));
    for part in [
        "base: train.cpu_threads 1     new: train.cpu_threads 2     5 pairs of runs on 1 device, paired by block",
        "the sides differ in:\n  cpu_threads 1 → 2\n",
        "   d_model  verdict",
        "blocks\n",
        "drift: the machine became",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_block_of_two_launches_or_devices_or_conditions_is_no_pair() {
    let broken = |change: fn(&mut TrialRow), why: &str| {
        let mut table = run(5, 0.0, 0.2);
        change(&mut table.rows[3].fixed);
        let found = compared(&table);
        let one = throughput(&found);
        assert_eq!(
            (one.verdict, one.base_runs, one.new_runs),
            (Verdict::Worse, 4, 4),
            "{why} {:?}",
            found.pairs[0]
        );
        assert!(found.pairs[0].unlike.is_empty(), "{why}");
        let text = page(&found);
        assert!(
            text.contains(&format!(
                "not paired, and in no number: model.d_model 64: block 2: {why}"
            )),
            "{why}\n{text}"
        );
    };
    broken(|row| row.launch = 2, "begun in launch 1, ended in launch 2");
    broken(
        |row| row.device_uuid = Some("GPU-2".to_owned()),
        "on GPU-2 and on GPU-1",
    );
    broken(
        |row| row.precision = "bf16".to_owned(),
        "precision bf16 → f32",
    );
    broken(
        |row| row.outcome = Outcome::Oom,
        "0 runs of base and 1 run of new",
    );
    let mut retried = run(5, 0.0, 0.2);
    retried.rows[3].fixed.block = None;
    let text = page(&compared(&retried));
    assert!(text.contains(": no block"), "{text}");
}

#[test]
fn blocks_of_several_hosts_are_paired_and_runs_of_several_hosts_are_not_comparable() {
    let on_host = |row: &mut TableRow, host: u64| {
        row.fixed.device_uuid = None;
        row.fixed.device_name = Some("a processor".to_owned());
        row.fixed.host_id = Some(format!("host-{host}"));
    };
    // Each host is faster than the one before by a half.
    let mut table = run(6, 0.0, 0.1);
    for row in &mut table.rows {
        let host = row.fixed.block.unwrap() % 3;
        on_host(row, host);
        row.fixed.launch = host + 1;
        row.fixed.samples_per_second = row
            .fixed
            .samples_per_second
            .map(|rate| rate * 1.5_f64.powi(host as i32));
    }
    let found = compared(&table);
    let one = throughput(&found);
    assert_eq!((one.verdict, one.base_runs), (Verdict::Worse, 6), "{one:?}");
    assert!((one.ratio - 0.9).abs() < 0.02, "{one:?}");
    let text = page(&found);
    assert!(
        text.contains("6 pairs of runs on 3 devices, paired by block"),
        "{text}"
    );
    // Without blocks the hosts are a condition like any other.
    for row in &mut table.rows {
        row.fixed.block = None;
    }
    let found = compared(&table);
    assert_eq!(throughput(&found).verdict, Verdict::NotComparable);
    let fields: Vec<RowFact> = found.pairs[0].unlike.iter().map(|one| one.field).collect();
    assert_eq!(fields, [RowFact::HostId]);
}

#[test]
fn two_blocks_are_too_few_to_pair_and_the_page_says_what_pairs() {
    let mut table = run(5, 0.0, 0.2);
    for place in [1, 3, 5] {
        table.rows[place].fixed.launch = 2;
    }
    let found = compared(&table);
    let blocks = found.pairs[0].blocks.clone().unwrap();
    assert_eq!((blocks.pairs, blocks.are_enough), (2, false));
    assert_eq!(throughput(&found).base_runs, 5, "all runs count");
    let text = page(&found);
    assert!(
        text.contains("     not paired\n")
            && text.contains("`sweep.together: [train.cpu_threads]`"),
        "{text}"
    );
    // On several devices neighbors in time are no pairs either.
    for (place, row) in table.rows.iter_mut().enumerate() {
        row.fixed.device_uuid = Some(format!("GPU-{}", place / 3));
    }
    assert_eq!(
        throughput(&compared(&table)).design,
        Some(Design::OrderUnknown)
    );
}

#[test]
fn blocks_of_unlike_runs_are_told_from_sides_that_are_in_no_blocks() {
    let mut table = run(5, 0.0, 0.2);
    for row in &mut table.rows {
        if row.axes[1] == "2" && row.fixed.block != Some(5) {
            row.fixed.concurrent_trials = 2;
        }
    }
    let found = compared(&table);
    let blocks = found.pairs[0].blocks.clone().unwrap();
    assert_eq!((blocks.pairs, blocks.unlike.len()), (1, 4));
    let text = page(&found);
    assert!(
        text.contains("both sides under one condition (concurrent_trials 1 → 2)")
            && text.contains("`--across concurrent_trials` pairs them anyway")
            && !text.contains("sweep.together"),
        "{text}"
    );
    let split = SplitTable::of(Subject::new(&table, "x"), AXES[1], None).unwrap();
    let across = Options {
        across: vec![RowFact::ConcurrentTrials],
        ..Options::default()
    };
    let found = between(&split, &across).unwrap();
    assert!(found.pairs[0].blocks.clone().unwrap().are_enough);
}

#[test]
fn one_side_that_is_always_first_is_told_and_needs_both_readings() {
    let mut table = run(5, 0.0, 0.0);
    // Base first everywhere, and each second run 5 % slower: a drift within blocks.
    for (place, row) in table.rows.iter_mut().enumerate() {
        row.axes[1] = ["1", "2"][place % 2].to_owned();
        row.fixed.cpu_threads = Some(1 + place as u64 % 2);
    }
    let text = page(&compared(&table));
    assert!(text.contains("one side is first in every block"), "{text}");
    assert!(!page(&compared(&run(5, 0.0, 0.0))).contains("first in every block"));
}

#[test]
fn tables_without_blocks_pair_the_repeats_that_ran_together() {
    let mut old = run(5, 0.2, 0.1);
    for row in &mut old.rows {
        row.fixed.kiln_table = "trials/4".to_owned();
        (row.fixed.block, row.fixed.round) = (None, None);
    }
    let found = compared(&old);
    assert_eq!(
        (throughput(&found).verdict, throughput(&found).base_runs),
        (Verdict::Worse, 5)
    );
    // One side after the other: the repeats are far apart.
    for row in &mut old.rows {
        if row.axes[1] == "2" {
            row.fixed.run_seconds = row.fixed.run_seconds.map(|seconds| seconds + 1e4);
            row.fixed.started_utc = row
                .fixed
                .started_utc
                .take()
                .map(|at| at.replace("T00", "T09"));
        }
    }
    assert!(!compared(&old).pairs[0].blocks.clone().unwrap().are_enough);
}

#[test]
fn each_further_value_is_a_side_and_any_may_be_base() {
    let mut table = run(5, 0.0, 0.2);
    let third: Vec<TableRow> = table
        .rows
        .iter()
        .filter(|row| row.axes[1] == "2")
        .map(|row| {
            let mut row = row.clone();
            row.axes[1] = "4".to_owned();
            row.fixed.trial.0 += "4";
            row.fixed.cpu_threads = Some(4);
            row
        })
        .collect();
    table.rows.extend(third);
    let names: Vec<String> = compared(&table)
        .pairs
        .iter()
        .map(|pair| pair.name.clone())
        .collect();
    assert_eq!(
        names,
        [
            "model.d_model 64, train.cpu_threads 2",
            "model.d_model 64, train.cpu_threads 4"
        ]
    );
    let split = SplitTable::of(Subject::new(&table, "x"), AXES[1], Some("2")).unwrap();
    let found = between(&split, &Options::default()).unwrap();
    assert_eq!(throughput(&found).verdict, Verdict::Better);
    let text = page(&found);
    assert!(
        text.contains("new: train.cpu_threads 1, 4     10 pairs of runs"),
        "{text}"
    );
    let lines = String::from_utf8(
        ComparisonPage {
            base: "x",
            new: "x",
            facts: None,
            can_rerun: true,
            has_data_by_name: false,
            found: &found,
        }
        .csv()
        .into_bytes(),
    )
    .unwrap();
    assert!(lines.lines().nth(1).unwrap().ends_with(",1,5"), "{lines}");
}

#[test]
fn the_first_value_of_the_file_is_base_also_if_it_is_null() {
    let mut table = run(5, 0.0, 0.2);
    for row in &mut table.rows {
        row.axes[1] = if row.axes[1] == "1" { "" } else { "2" }.to_owned();
    }
    for (written, base, side) in [("null, 2", "(none)", "2"), ("2, null", "2", "(none)")] {
        let experiment = format!(
            "kiln: 1\nname: x\nmodel: {{kind: mlp}}\ndata: {{kind: generated}}\n\
             train: {{steps: 5}}\nsweep: {{grid: {{train.cpu_threads: [{written}]}}}}\n"
        );
        let subject = Subject {
            experiment: Some(&experiment),
            ..Subject::new(&table, "x")
        };
        let split = SplitTable::of(subject, AXES[1], None).unwrap();
        let found = between(&split, &Options::default()).unwrap();
        let sides = found.between.unwrap();
        assert_eq!(
            (sides.base.as_str(), sides.sides),
            (base, vec![side.to_owned()])
        );
    }
}

/// A third value that a later launch measured, 4 % slower than the first.
fn with_added_value() -> TrialTable {
    let mut table = run(5, 0.0, 0.04);
    let of_second = table.rows.iter().filter(|row| row.axes[1] == "2");
    let added = of_second.map(|row| {
        let mut row = row.clone();
        row.axes[1] = "4".to_owned();
        row.fixed.trial.0 += "4";
        row.fixed.cpu_threads = Some(4);
        row.fixed.launch = 2;
        row.fixed.started_utc = row
            .fixed
            .started_utc
            .take()
            .map(|at| at.replace("T00:", "T09:"));
        row
    });
    let added: Vec<TableRow> = added.collect();
    table.rows.extend(added);
    table
}

#[test]
fn values_of_different_launches_are_told_and_no_pairs() {
    let found = compared(&with_added_value());
    let verdicts = found.pairs.iter().map(|pair| {
        let speed = pair.speed().unwrap();
        (speed.verdict, speed.design)
    });
    assert_eq!(
        verdicts.collect::<Vec<_>>(),
        [
            (Verdict::Worse, Some(Design::Paired { pairs: 5 })),
            (Verdict::CannotTell, Some(Design::Apart)),
        ]
    );
    let text = page(&found);
    for part in [
        "5 pairs of runs on 1 device, paired by block; 1 of 2 points not paired\n",
        "order: of 1 point of 2, the two sides ran in different launches (train.cpu_threads 1 in \
         launch 1; 4 in launch 2), so runs are compared by their order in time; only changes beyond \
         5.0 % are reported where the sides ran apart",
        "`kiln run FILE --fresh`",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("fewer than 3 blocks"), "{text}");
    let paired = page(&compared(&run(5, 0.0, 0.04)));
    assert!(
        !paired.contains("not paired") && !paired.contains("different launches"),
        "{paired}"
    );
}

#[test]
fn blocks_of_two_launches_are_no_reason_to_compare_by_block() {
    let mut table = run(5, 0.0, 0.1);
    let how = |table: &TrialTable| how_to_compare(table, AXES[1], "x");
    assert!(how(&table).is_some());
    for row in table.rows.iter_mut().filter(|row| row.axes[1] == "2") {
        row.fixed.launch = 2;
    }
    assert_eq!(how(&table), None);
}

#[test]
fn a_column_has_no_name_that_may_mean_the_compared_axis() {
    let mut table = run(5, 0.0, 0.2);
    let axes = ["train.learning_rate_schedule.kind", "train.optimizer.kind"];
    table.axes = axes.map(str::to_owned).to_vec();
    for row in &mut table.rows {
        row.fixed.cpu_threads = Some(1);
    }
    let split = SplitTable::of(Subject::new(&table, "x"), axes[1], None).unwrap();
    let text = page(&between(&split, &Options::default()).unwrap());
    let is_head = |line: &&str| line.contains(" verdict ") && line.contains(" smallest visible ");
    let head = text.lines().find(is_head).unwrap_or_default();
    assert_eq!(head.split_whitespace().next(), Some(axes[0]), "{text}");
}

#[test]
fn a_wrong_axis_or_value_is_refused_with_what_there_is() {
    let table = run(3, 0.0, 0.0);
    let refused = |axis: &str, base: Option<&str>| {
        let split = SplitTable::of(Subject::new(&table, "x"), axis, base);
        split.err().unwrap()
    };
    assert_eq!(
        refused("train.precision", None),
        "`--between train.precision` is not an axis of this run; its axes are `model.d_model`, \
         `train.cpu_threads`"
    );
    let by_its_end = SplitTable::of(Subject::new(&table, "x"), "cpu_threads", None);
    let found = between(&by_its_end.unwrap(), &Options::default()).unwrap();
    let axis = found.between.map(|between| between.axis);
    assert_eq!(axis.as_deref(), Some(AXES[1]));
    assert!(refused("model.d_model", None).contains("every trial has the value 64"));
    assert!(refused(AXES[1], Some("7")).ends_with("its values are 1, 2"));
    let mut table = table;
    for row in table.rows.iter_mut().filter(|row| row.axes[1] == "1") {
        row.axes[1] = String::new();
    }
    for none in ["null", "(none)"] {
        let split = SplitTable::of(Subject::new(&table, "x"), AXES[1], Some(none));
        assert!(split.is_ok(), "{none}");
    }
}

#[test]
fn a_derived_key_changes_with_its_axis_and_is_named() {
    let mut table = run(5, 0.0, 0.1);
    table.axes.push("train.optimizer.learning_rate".to_owned());
    for row in &mut table.rows {
        let rate = if row.axes[1] == "1" { "0.1" } else { "0.2" };
        row.axes.push(rate.to_owned());
    }
    let split = SplitTable::of(Subject::new(&table, "x"), AXES[1], None).unwrap();
    let refused = between(&split, &Options::default()).err().unwrap();
    assert!(refused.contains("other axes change together"), "{refused}");
    let experiment = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n\
                      train: {steps: 5}\nsweep:\n  grid: {train.cpu_threads: [1, 2]}\n  \
                      derive: {train.optimizer.learning_rate: 0.1 * train.cpu_threads}\n";
    let subject = Subject {
        experiment: Some(experiment),
        ..Subject::new(&table, "x")
    };
    let split = SplitTable::of(subject, AXES[1], None).unwrap();
    let found = between(&split, &Options::default()).unwrap();
    assert_eq!(found.pairs.len(), 1);
    let words = "train.optimizer.learning_rate 0.1 → 0.2".to_owned();
    let differ = &found.between.as_ref().unwrap().differ;
    assert!(differ.contains(&words), "{differ:?}");
}

#[test]
fn a_run_of_which_no_trial_has_ended_is_refused_as_one() {
    let mut table = run(1, 0.0, 0.0);
    table.rows.clear();
    let split = SplitTable::of(Subject::new(&table, "x"), AXES[1], None);
    assert_eq!(
        split.err().unwrap(),
        "`--between train.cpu_threads`: no trial has ended yet; wait for the run if it is running, \
         else run it with `kiln run`"
    );
}

#[test]
fn any_column_is_a_metric_with_a_direction() {
    let mut table = run(5, 0.0, 0.0);
    for row in &mut table.rows {
        let watts = if row.axes[1] == "2" { 120.0 } else { 100.0 };
        row.fixed.mean_power_watts = Some(watts + row.fixed.seed as f64 / 10.0);
    }
    let verdict = |is_better_high: bool| {
        let columns = vec![ColumnMetric::named("mean_power_watts", is_better_high).unwrap()];
        let options = Options {
            columns,
            ..Options::default()
        };
        let split = SplitTable::of(Subject::new(&table, "x"), AXES[1], None).unwrap();
        let found = between(&split, &options).unwrap();
        let one = &found.pairs[0].comparisons[0];
        assert_eq!(
            (one.metric.name(), one.column),
            ("mean_power_watts", "mean_power_watts")
        );
        (one.verdict, found)
    };
    assert_eq!(
        (verdict(true).0, verdict(false).0),
        (Verdict::Better, Verdict::Worse)
    );
    let text = page(&verdict(false).1);
    assert!(
        text.contains("mean_power_watts: 1 worse; throughput: "),
        "{text}"
    );
    assert_eq!(ColumnMetric::named("no_column", true), None);
    assert_eq!(ColumnMetric::known_direction("valid_top1"), Some(true));
    assert_eq!(ColumnMetric::known_direction("mean_power_watts"), None);
}

/// Numbers that are not above 0 would be left out, and those that are left are the good ones.
#[test]
fn runs_are_not_chosen_by_what_they_measured() {
    let mut table = run(10, 0.0, 0.0);
    for (place, row) in table.rows.iter_mut().enumerate() {
        let is_new = row.axes[1] == "2";
        let score = match is_new {
            true if place % 4 < 2 => -50.0,
            true => 12.0,
            false => 10.0,
        };
        row.fixed
            .metrics
            .insert("score".to_owned(), score + place as f64 / 100.0);
    }
    table.metrics = vec!["metric.score".to_owned()];
    let found = by_score(&table);
    let comparison = &found.pairs[0].comparisons[0];
    assert_eq!(comparison.column, "metric.score");
    assert_eq!(comparison.verdict, Verdict::NotComparable);
    assert!(page(&found).contains("a `metric.score` is not from 1e-150 to 1e150"));
}

#[test]
fn a_metric_that_one_side_lacks_is_named() {
    let mut table = run(5, 0.0, 0.0);
    for row in table.rows.iter_mut().filter(|row| row.axes[1] == "1") {
        row.fixed.metrics.insert("score".to_owned(), 1.0);
    }
    table.metrics = vec!["metric.score".to_owned()];
    let text = page(&by_score(&table));
    assert!(
        text.contains("no run of new has a `metric.score`"),
        "{text}"
    );
}

#[test]
fn a_metric_that_is_negative_everywhere_is_told_once_and_counted() {
    let mut table = run(5, 0.0, 0.0);
    for row in &mut table.rows {
        row.fixed.metrics.insert("score".to_owned(), -2.5);
    }
    table.metrics = vec!["metric.score".to_owned()];
    let mut larger = table.rows.clone();
    for row in &mut larger {
        row.axes[0] = "128".to_owned();
        row.fixed.trial.0 += "4";
    }
    table.rows.extend(larger);
    let text = page(&by_score(&table));
    let told = "\nnot compared: `metric.score` is negative or 0 in all runs of a side, so there is \
                no ratio\n";
    assert_eq!(text.matches(told).count(), 1, "{text}");
    assert!(
        text.contains("\nscore: 2 not comparable; throughput: "),
        "{text}"
    );
    assert!(!text.contains("no run of one side has"), "{text}");
    // One point alone is named.
    for row in table.rows.iter_mut().filter(|row| row.axes[0] == "64") {
        row.fixed.metrics.insert("score".to_owned(), 2.5);
    }
    let text = page(&by_score(&table));
    assert!(
        text.contains("not compared: model.d_model 128: `metric.score` is negative or 0"),
        "{text}"
    );
    assert!(text.contains(", 1 not comparable"), "{text}");
}

fn by_score(table: &TrialTable) -> Comparisons {
    let split = SplitTable::of(Subject::new(table, "x"), AXES[1], None).unwrap();
    let options = Options {
        columns: ColumnMetric::named("metric.score", true)
            .into_iter()
            .collect(),
        ..Options::default()
    };
    between(&split, &options).unwrap()
}

#[test]
fn losses_of_the_runs_that_did_not_diverge_are_not_judged() {
    let mut diverged = run(6, 0.0, 0.1);
    for row in &mut diverged.rows {
        let is_new = row.axes[1] == "2";
        row.fixed.valid_loss = Some(if is_new { 1.0 } else { 2.0 });
        if is_new && row.fixed.block > Some(4) {
            row.fixed.outcome = Outcome::Diverged;
        }
    }
    let found = compared(&diverged);
    let comparisons = &found.pairs[0].comparisons;
    let mut of = comparisons.iter();
    let loss = of.find(|one| one.metric == ComparedMetric::Loss).unwrap();
    assert_eq!(
        (loss.verdict, loss.refusal.as_deref()),
        (
            Verdict::NotComparable,
            Some("the completed runs are chosen by how the others ended (of new 2 diverged)")
        )
    );
    // Whether a training diverges does not depend on its speed; whether it times out does.
    assert_eq!(throughput(&found).verdict, Verdict::Worse);
    for row in &mut diverged.rows {
        if row.fixed.outcome == Outcome::Diverged {
            row.fixed.outcome = Outcome::TimedOut;
        }
    }
    assert_eq!(
        throughput(&compared(&diverged)).verdict,
        Verdict::NotComparable
    );
}
