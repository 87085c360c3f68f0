//! Runs that differ by a setting, or by their machine, as a whole.

use kiln_core::record::{RunFile, redefined::ConcernedSetting};
use serde_json::json;

use super::{tests::page, *};
use crate::report::{
    points::tests::{row, table},
    subject::Subject,
};

/// A run: its table, its experiment, and the sum of its data.
struct Run {
    table: TrialTable,
    experiment: String,
    file: RunFile,
}

/// Changes a row of a run.
type Change = fn(&mut TrialRow);

impl Run {
    /// Two points of three repeats each, ids from `first` on, started `seconds` after the others.
    fn of(first: u64, seconds: u64, train: &str, change: Change) -> Self {
        let points = [("0", 100.0), ("2", 150.0)];
        let rows = (0..6).map(|place| {
            let (workers, rate) = points[place as usize % 2];
            let mut row = TrialRow {
                seed: 1 + place / 2,
                steps: Some(100),
                precision: "f32".to_owned(),
                valid_loss: Some(2.0 + place as f64 / 100.0),
                median_step_seconds: Some(1.0 / rate),
                started_utc: Some(format!("2026-01-01T00:{:02}:{seconds:02}Z", place)),
                driver: Some("580.1".to_owned()),
                ..row(first + place, rate * (1.0 + place as f64 / 1000.0))
            };
            change(&mut row);
            (row, if workers == "0" { &["0"][..] } else { &["2"] })
        });
        let table = table(&["data.num_workers"], rows.collect());
        Self {
            table,
            experiment: format!(
                "kiln: 1\nname: x\nmodel: {{kind: mlp}}\ndata: {{kind: generated}}\ntrain: \
                 {{{train}}}\nsweep: {{repeats: 3, grid: {{data.num_workers: [0, 2]}}}}\n"
            ),
            file: sums("one"),
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            experiment: Some(&self.experiment),
            run: Some(&self.file),
            ..Subject::new(&self.table, "x")
        }
    }
}

/// A record with the sum of its data.
fn sums(sum: &str) -> RunFile {
    let launch = json!({
        "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
        "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": {}, "devices": {},
        "versions": {
            "kiln": "0.1.0", "kiln_sha256": null, "trial_program": "t",
            "trial_program_sha256": null,
        },
        "environment": {}, "data_sha256": {"generated": sum},
    });
    let file = json!({
        "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch],
    });
    serde_json::from_value(file).unwrap()
}

fn same(_: &mut TrialRow) {}

const STEPS: &str = "steps: 100, batch_size: 1";

fn compared(base: &Run, new: &Run, across: &[&str]) -> Comparisons {
    let options = Options {
        across_settings: across.iter().map(|key| (*key).to_owned()).collect(),
        treatment: Some(Treatment::between(base.subject(), new.subject())),
        ..Options::default()
    };
    compare(&base.table, &new.table, &options).unwrap()
}

fn of(found: &Comparisons, place: usize, metric: ComparedMetric) -> &Comparison {
    let comparisons = found.pairs[place].comparisons.iter();
    comparisons
        .clone()
        .find(|one| one.metric == metric)
        .unwrap()
}

fn treatment(found: &Comparisons) -> Vec<(&str, Option<&str>, Option<&str>)> {
    let keys = found.treatment.iter();
    keys.map(|one| (one.key.as_str(), one.base.as_deref(), one.new.as_deref()))
        .collect()
}

fn faster(row: &mut TrialRow) {
    row.precision = "bf16".to_owned();
    row.samples_per_second = row.samples_per_second.map(|rate| 2.0 * rate);
}

/// A default that changed has the same trial ids; on the CPU it affects nothing.
#[test]
fn how_batches_go_to_a_gpu_is_a_treatment_that_nobody_named_and_none_on_the_cpu() {
    let on_gpu: Change = |row| row.device_uuid = Some("GPU-1".to_owned());
    let on_cpu: Change = |row| row.device_uuid = None;
    for (change, is_on_gpu) in [(on_gpu, true), (on_cpu, false)] {
        let [mut base, mut new] = [0, 30].map(|seconds| Run::of(0, seconds, STEPS, change));
        let pinned = |run: &mut Run, value: &str| {
            run.experiment = run.experiment.replace(
                "{kind: generated}",
                &format!("{{kind: generated, pin_memory: {value}}}"),
            );
        };
        pinned(&mut base, "false");
        pinned(&mut new, "auto");
        let found = compared(&base, &new, &[]);
        let gated = gate(&found, ComparedMetric::Loss);
        match is_on_gpu {
            true => {
                let expected = ("data.pin_memory", Some("false"), Some("auto"));
                assert_eq!(treatment(&found), [expected]);
                assert!(
                    matches!(&gated, Gate::CannotTell(points) if points[0].contains("`--across data.pin_memory`")),
                    "{gated:?}"
                );
                let named = compared(&base, &new, &["data.pin_memory"]);
                assert_eq!(gate(&named, ComparedMetric::Loss), Gate::Pass);
            }
            false => {
                assert_eq!(treatment(&found), []);
                assert_eq!(gated, Gate::Pass);
            }
        }
    }
}

/// An identical training whose training loss is a mean of other steps.
#[test]
fn training_losses_over_other_numbers_of_steps_are_not_compared() {
    let logged = |first: u64, when: u64, loss: f64| {
        let mut run = Run::of(first, when, STEPS, |_| {});
        for row in &mut run.table.rows {
            row.fixed.train_loss = Some(loss);
        }
        run
    };
    let (base, new) = (logged(1, 0, 2.7), logged(1, 20, 2.9));
    let of = |is_other_mean: bool| {
        let options = Options {
            is_other_mean,
            ..Options::default()
        };
        let found = compare(&base.table, &new.table, &options).unwrap();
        let pair = &found.pairs[0];
        (
            pair.losses,
            pair.equal_losses,
            pair.losses_apart.unwrap_or(0.0) > 0.01,
        )
    };
    let (losses, equal, is_apart) = of(false);
    assert!(losses > 0 && equal == 0 && is_apart);
    let (losses, equal, is_apart) = of(true);
    assert!(losses > 0 && equal == losses && !is_apart);
}

#[test]
fn a_setting_that_differs_between_runs_is_named_and_the_points_of_its_axes_are_compared() {
    let base = Run::of(1, 0, STEPS, same);
    let new = Run::of(11, 20, &format!("{STEPS}, precision: bf16"), faster);
    let found = compared(&base, &new, &[]);
    let names: Vec<&str> = found.pairs.iter().map(|pair| pair.name.as_str()).collect();
    assert_eq!(names, ["data.num_workers 0", "data.num_workers 2"]);
    assert_eq!(
        treatment(&found),
        [("train.precision", Some("f32"), Some("bf16"))]
    );
    for place in 0..2 {
        assert!(found.pairs[place].unlike.is_empty());
        let speed = of(&found, place, ComparedMetric::Throughput);
        assert_eq!((speed.verdict, speed.base_runs), (Verdict::Better, 3));
        assert_eq!(
            of(&found, place, ComparedMetric::Loss).verdict,
            Verdict::Same
        );
    }
    let text = page(&found);
    assert!(
        text.contains("\ntreatment: train.precision: f32 → bf16\n\nthroughput: 2 faster\n"),
        "{text}"
    );
    // A gate asks for it by name, as the setting or as the column.
    let slower = |found: &Comparisons| gate(found, ComparedMetric::Throughput);
    let Gate::CannotTell(points) = slower(&found) else {
        panic!("{found:?}")
    };
    assert!(
        points[0].contains("`--across train.precision` makes that the question"),
        "{points:?}"
    );
    let named = compared(&base, &new, &["train.precision"]);
    assert_eq!(slower(&named), Gate::Pass);
    assert_eq!(treatment(&named), treatment(&found));
    let options = Options {
        across: vec![RowFact::Precision],
        treatment: Some(Treatment::between(base.subject(), new.subject())),
        ..Options::default()
    };
    let by_column = compare(&base.table, &new.table, &options).unwrap();
    assert_eq!(slower(&by_column), Gate::Pass);
    assert_eq!(by_column.across, []);
    // Without the settings nothing is taken for a treatment.
    let alone = compare(&base.table, &new.table, &Options::default()).unwrap();
    assert!(alone.is_empty() && alone.treatment.is_empty());
}

#[test]
fn losses_of_trainings_that_one_setting_stopped_early_are_not_compared() {
    let evaluated = format!("{STEPS}, evaluate: {{every: 10}}");
    let base = Run::of(1, 0, &evaluated, same);
    let settings = format!("{evaluated}, early_stop: {{patience: 1}}");
    let stopped = Run::of(11, 20, &settings, |row| row.steps = Some(50));
    let found = compared(&base, &stopped, &["train.early_stop"]);
    assert_eq!(
        of(&found, 0, ComparedMetric::Loss).refusal.as_deref(),
        Some("it was reached after 100 samples in base and 50 in new")
    );
}

#[test]
fn losses_after_other_numbers_of_samples_are_not_compared_and_rates_are() {
    let base = Run::of(1, 0, STEPS, same);
    let longer = Run::of(11, 20, "steps: 200, batch_size: 1", |row| {
        row.steps = Some(200)
    });
    let found = compared(&base, &longer, &["train.steps"]);
    let loss = of(&found, 0, ComparedMetric::Loss);
    assert_eq!(
        (loss.verdict, loss.refusal.as_deref()),
        (
            Verdict::NotComparable,
            Some("it was reached after 100 samples in base and 200 in new")
        )
    );
    // Nor is the same number when it is asked for by the name of its column.
    let options = Options {
        columns: ColumnMetric::named("valid_loss", false)
            .into_iter()
            .collect(),
        across_settings: vec!["train.steps".to_owned()],
        treatment: Some(Treatment::between(base.subject(), longer.subject())),
        ..Options::default()
    };
    let by_column = compare(&base.table, &longer.table, &options).unwrap();
    let mut all = by_column.pairs[0].comparisons.iter();
    let column = all
        .find(|one| matches!(one.metric, ComparedMetric::Column(_)))
        .unwrap();
    assert_eq!(
        (column.verdict, column.refusal.as_deref()),
        (loss.verdict, loss.refusal.as_deref())
    );
    let speed = of(&found, 0, ComparedMetric::Throughput);
    assert!(speed.verdict == Verdict::Same && speed.refusal.is_none());
    assert_eq!(
        gate(&found, ComparedMetric::Loss),
        Gate::CannotTell(vec![
            "data.num_workers 0 (not comparable)".to_owned(),
            "data.num_workers 2 (not comparable)".to_owned()
        ])
    );
    assert_eq!(gate(&found, ComparedMetric::Throughput), Gate::Pass);
    // The values are shown without a verdict.
    let page = page(&found);
    assert!(
        page.contains("   num_workers         verdict")
            && page.contains("            0  not comparable  2.0199  2.0199")
            && page.contains(
                "\nnot compared: it was reached after 100 samples in base and 200 in new\n"
            ),
        "{page}"
    );
}

#[test]
fn a_map_that_is_named_means_the_settings_in_it() {
    let train = |rate: f64| format!("{STEPS}, optimizer: {{kind: adamw, learning_rate: {rate}}}");
    let base = Run::of(1, 0, &train(0.1), same);
    let new = Run::of(11, 20, &train(0.2), same);
    let gated = |across: &str| {
        gate(
            &compared(&base, &new, &[across]),
            ComparedMetric::Throughput,
        )
    };
    for named in ["train.optimizer", "train.optimizer.learning_rate"] {
        assert_eq!(gated(named), Gate::Pass, "{named}");
    }
    for other in ["train.optim", "train.optimizer.weight_decay"] {
        assert!(matches!(gated(other), Gate::CannotTell(_)), "{other}");
    }
}

#[test]
fn a_fine_tuned_model_is_compared_with_its_base_after_other_numbers_of_samples() {
    let weights = |name: &str, digit: &str| {
        let sum = digit.repeat(64);
        format!("steps: 50, batch_size: 1, initial_weights: {{path: {name}, sha256: '{sum}'}}")
    };
    let better: Change = |row| {
        row.steps = Some(50);
        row.valid_loss = row.valid_loss.map(|loss| 0.8 * loss);
        row.train_loss = Some(1.0);
    };
    let base = Run::of(1, 0, STEPS, |row| row.train_loss = Some(2.0));
    let tuned = Run::of(11, 20, &weights("a", "a"), better);
    let keys = ["train.initial_weights", "train.steps"];
    let found = compared(&base, &tuned, &keys);
    let told: Vec<&str> = treatment(&found).iter().map(|one| one.0).collect();
    assert_eq!(told, keys);
    let loss = of(&found, 0, ComparedMetric::Loss);
    assert_eq!(
        (loss.column, loss.verdict, &loss.refusal),
        ("valid_loss", Verdict::Better, &None)
    );
    assert_eq!(gate(&found, ComparedMetric::Loss), Gate::Pass);
    let unasked = compared(&base, &tuned, &[]);
    assert!(matches!(
        gate(&unasked, ComparedMetric::Loss),
        Gate::CannotTell(_)
    ));
    // A loss of the training data follows the samples of this training.
    let column = ColumnMetric::named("train_loss", false).unwrap();
    let options = Options {
        columns: vec![column],
        treatment: Some(Treatment::between(base.subject(), tuned.subject())),
        ..Options::default()
    };
    let asked = compare(&base.table, &tuned.table, &options).unwrap();
    let training = of(&asked, 0, ComparedMetric::Column(column));
    assert_eq!(
        training.refusal.as_deref(),
        Some("it was reached after 100 samples in base and 50 in new")
    );
    // Other weights on both sides are such a difference, the same ones at another path are none.
    let longer = |settings: &str| settings.replace("steps: 50", "steps: 100");
    for (digit, is_compared) in [("b", true), ("a", false)] {
        let other = Run::of(21, 40, &longer(&weights("b", digit)), |row| {
            row.valid_loss = row.valid_loss.map(|loss| 0.7 * loss);
        });
        let found = compared(&tuned, &other, &[]);
        let loss = of(&found, 0, ComparedMetric::Loss);
        assert_eq!(loss.refusal.is_none(), is_compared, "{digit}: {loss:?}");
    }
}

#[test]
fn steps_of_other_batches_are_not_compared_and_losses_are_where_the_samples_are_as_many() {
    let base = Run::of(1, 0, "epochs: 1, batch_size: 1", same);
    let large = Run::of(11, 20, "epochs: 1, batch_size: 2", |row| {
        (row.batch_size, row.effective_batch_size) = (2, 2);
        row.steps = Some(50);
    });
    let found = compared(&base, &large, &[]);
    assert_eq!(
        treatment(&found),
        [("train.batch_size", Some("1"), Some("2"))]
    );
    assert!(found.pairs[0].unlike.is_empty());
    let step = of(&found, 0, ComparedMetric::StepTime);
    assert_eq!(
        step.refusal.as_deref(),
        Some("a step is of 1 samples in base and of 2 in new")
    );
    assert_eq!(of(&found, 0, ComparedMetric::Loss).verdict, Verdict::Same);
    // A batch that became smaller without being asked for is a fault, not a treatment.
    let reduced = Run::of(1, 20, "epochs: 1, batch_size: 1", |row| {
        row.effective_batch_size = 2
    });
    let found = compared(&base, &reduced, &[]);
    assert_eq!(found.treatment, []);
    assert_eq!(found.pairs[0].unlike[0].field, RowFact::EffectiveBatchSize);
}

#[test]
fn a_fact_of_the_machine_is_a_treatment_where_each_run_has_one_value() {
    let base = Run::of(1, 0, STEPS, same);
    let upgraded = Run::of(1, 20, STEPS, |row| row.driver = Some("590.1".to_owned()));
    let found = compared(&base, &upgraded, &[]);
    assert_eq!(
        treatment(&found),
        [("driver", Some("580.1"), Some("590.1"))]
    );
    assert!(found.pairs.iter().all(|pair| pair.unlike.is_empty()));
    assert_eq!(
        of(&found, 0, ComparedMetric::Throughput).verdict,
        Verdict::Same
    );
    assert!(matches!(
        gate(&found, ComparedMetric::Throughput),
        Gate::CannotTell(_)
    ));
    let options = Options {
        across: vec![RowFact::Driver],
        treatment: Some(Treatment::between(base.subject(), upgraded.subject())),
        ..Options::default()
    };
    let asked = compare(&base.table, &upgraded.table, &options).unwrap();
    assert_eq!(gate(&asked, ComparedMetric::Throughput), Gate::Pass);
    assert!(page(&asked).contains("\nACROSS driver 580.1 → 590.1: throughput: "));
    // A run that went on with another driver halfway has no one value.
    let halfway = Run::of(1, 20, STEPS, |row| {
        if row.seed > 1 {
            row.driver = Some("590.1".to_owned());
        }
    });
    let found = compared(&base, &halfway, &[]);
    assert_eq!(found.treatment, []);
    assert_eq!(found.pairs[0].unlike[0].field, RowFact::Driver);
}

#[test]
fn several_changes_are_said_to_have_been_made_together_and_too_many_are_refused() {
    let base = Run::of(1, 0, STEPS, same);
    let two = Run::of(
        11,
        20,
        "steps: 100, batch_size: 1, clip_norm: 1.0, precision: bf16",
        faster,
    );
    let found = compared(&base, &two, &[]);
    assert_eq!(
        treatment(&found),
        [
            ("train.clip_norm", None, Some("1.0")),
            ("train.precision", Some("f32"), Some("bf16")),
        ]
    );
    assert!(page(&found).contains(
        "treatment: train.clip_norm: (not set) → 1.0, train.precision: f32 → bf16 (changed \
         together: "
    ));
    // Another optimizer is one change, whatever settings it brings.
    let other = Run::of(
        11,
        20,
        &format!("{STEPS}, optimizer: {{kind: sgd, momentum: 0.9}}"),
        same,
    );
    assert_eq!(
        treatment(&compared(&base, &other, &[])),
        [("train.optimizer.kind", Some("adamw"), Some("sgd"))]
    );
    let saved = Run::of(
        11,
        20,
        &format!("{STEPS}, checkpoint: {{every_steps: 50}}"),
        same,
    );
    assert_eq!(
        treatment(&compared(&base, &saved, &[])),
        [(
            "train.checkpoint",
            None,
            Some("after auto, every_steps 50, keep 2")
        )]
    );
    let many = Run::of(
        11,
        20,
        "steps: 200, batch_size: 2, clip_norm: 1.0, precision: bf16, grad_accumulation: 2, \
         label_smoothing: 0.1",
        faster,
    );
    let found = compared(&base, &many, &[]);
    assert!(found.is_empty() && found.treatment.is_empty());
    let settings = Treatment::between(base.subject(), many.subject()).settings;
    assert_eq!(settings.len(), 6);
}

#[test]
fn losses_on_other_data_are_not_compared() {
    let base = Run::of(1, 0, STEPS, same);
    let mut new = Run::of(1, 20, STEPS, same);
    new.file = sums("two");
    let found = compared(&base, &new, &[]);
    assert_eq!(
        treatment(&found),
        [("data_sha256", Some("generated one"), Some("generated two"))]
    );
    assert_eq!(
        of(&found, 0, ComparedMetric::Loss).refusal.as_deref(),
        Some("`data_sha256` makes it a loss on other data")
    );
    assert_eq!(
        of(&found, 0, ComparedMetric::Throughput).verdict,
        Verdict::Same
    );
    // The path of equal data is not a treatment.
    new = Run::of(1, 20, STEPS, same);
    new.experiment = new.experiment.replace("generated", "text, path: b.txt");
    let mut old = Run::of(1, 0, STEPS, same);
    old.experiment = old.experiment.replace("generated", "text, path: a.txt");
    assert_eq!(compared(&old, &new, &[]).treatment, []);
    // Nor is that of a tokenizer's file; the name of a tokenizer is a setting.
    let clipped = format!("{STEPS}, clip_norm: 1.0");
    for (data, tokenizers, expected) in [
        (
            "sft-jsonl, path: a.jsonl",
            ["a.json", "b.json"],
            &["train.clip_norm"][..],
        ),
        (
            "text, path: a.txt",
            ["byte", "character"],
            &["data.tokenizer", "train.clip_norm"],
        ),
    ] {
        let run = |train: &str, tokenizer: &str| {
            let mut run = Run::of(1, 0, train, same);
            let cut = format!("{data}, tokenizer: {tokenizer}");
            run.experiment = run.experiment.replace("generated", &cut);
            if data.starts_with("sft") {
                run.experiment = run.experiment.replace("kind: mlp", "kind: seq2seq");
            }
            run
        };
        let (one, other) = (run(STEPS, tokenizers[0]), run(&clipped, tokenizers[1]));
        let settings = Treatment::between(one.subject(), other.subject()).settings;
        let keys: Vec<&str> = settings.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, expected);
    }
    // Where the loader alone differs, losses are those of the same data.
    let prefetch = |to: &str| {
        let mut run = Run::of(11, 20, STEPS, same);
        run.experiment = run.experiment.replace("generated", to);
        run
    };
    let found = compared(&base, &prefetch("generated, prefetch: 4"), &[]);
    assert_eq!(treatment(&found), [("data.prefetch", Some("2"), Some("4"))]);
    assert_eq!(of(&found, 0, ComparedMetric::Loss).verdict, Verdict::Same);
}

#[test]
fn losses_on_the_same_validation_data_are_compared_whatever_was_trained_on() {
    let base = Run::of(1, 0, STEPS, |row| {
        row.validation_data = Some("v".to_owned())
    });
    let loss = |change: Change| {
        let mut new = Run::of(11, 20, STEPS, change);
        new.file = sums("two");
        let found = compared(&base, &new, &[]);
        let loss = of(&found, 0, ComparedMetric::Loss);
        (loss.verdict, loss.refusal.clone())
    };
    let same = loss(|row| {
        row.validation_data = Some("v".to_owned());
        row.valid_loss = row.valid_loss.map(|loss| 0.8 * loss);
    });
    assert_eq!(same, (Verdict::Better, None));
    let others: [Change; 2] = [
        |row| row.validation_data = Some("w".to_owned()),
        |row| row.validation_data = None,
    ];
    for change in others {
        assert_eq!(
            loss(change),
            (
                Verdict::NotComparable,
                Some("`data_sha256` makes it a loss on other data".to_owned())
            )
        );
    }
}

#[test]
fn an_axis_of_one_run_may_be_a_fixed_setting_of_the_other() {
    let base = Run::of(1, 0, STEPS, same);
    let mut new = Run::of(11, 20, "steps: 100, batch_size: 1, clip_norm: 1.0", same);
    new.table.axes.clear();
    new.table.rows.retain(|row| row.axes == ["2"]);
    new.table.rows.iter_mut().for_each(|row| row.axes.clear());
    new.experiment = new
        .experiment
        .replace("generated", "generated, num_workers: 2")
        .replace(", grid: {data.num_workers: [0, 2]}", "");
    let found = compared(&base, &new, &[]);
    assert_eq!(
        treatment(&found),
        [("train.clip_norm", None, Some("1.0"))],
        "the number of workers is what points are matched by"
    );
    assert_eq!(found.pairs.len(), 1);
    assert_eq!(found.pairs[0].name, "data.num_workers 2");
    assert_eq!(found.only_base, ["data.num_workers 0"]);
}

#[test]
fn points_of_one_run_show_their_change_without_an_interval() {
    let one = |first, seconds, train: &str, change: Change| {
        let mut run = Run::of(first, seconds, train, change);
        run.table.rows.retain(|row| row.fixed.seed == 1);
        run
    };
    let base = one(1, 0, STEPS, same);
    let new = one(11, 20, &format!("{STEPS}, precision: bf16"), faster);
    let found = compared(&base, &new, &[]);
    let speed = of(&found, 0, ComparedMetric::Throughput);
    assert_eq!(
        (speed.verdict, speed.interval, speed.base_runs),
        (Verdict::TooFewRuns, None, 1)
    );
    let text = page(&found);
    assert!(
        text.contains("throughput: 2 too few runs: change +100.0 % without an interval\n"),
        "{text}"
    );
    let line = text
        .lines()
        .find(|line| line.contains(" 0  too few runs"))
        .unwrap();
    assert!(
        line.contains("too few runs") && line.contains("+100.0 %") && line.contains("none (1 run)"),
        "{text}"
    );
    // Other metrics have their table too, where something changed.
    assert!(
        text.contains("\nloss (valid_loss): 2 too few runs") && !text.contains("faster"),
        "{text}"
    );
    let three = Run::of(11, 20, &format!("{STEPS}, precision: bf16"), faster);
    let text = page(&compared(&base, &three, &[]));
    assert!(text.contains("none (1 and 3 runs)"), "{text}");
}

#[test]
fn times_until_other_targets_are_not_compared() {
    let column = ColumnMetric::named("seconds_to_target", false).unwrap();
    let refusal = |train: &str| {
        let reached: Change = |row| row.seconds_to_target = Some(5.0);
        let base = Run::of(
            1,
            0,
            &format!("{STEPS}, target: {{valid_loss: 2.5}}"),
            reached,
        );
        let new = Run::of(11, 20, train, reached);
        let options = Options {
            columns: vec![column],
            treatment: Some(Treatment::between(base.subject(), new.subject())),
            ..Options::default()
        };
        let found = compare(&base.table, &new.table, &options).unwrap();
        of(&found, 0, ComparedMetric::Column(column))
            .refusal
            .clone()
    };
    assert_eq!(
        refusal(&format!("{STEPS}, target: {{valid_loss: 3.0}}")).as_deref(),
        Some("`train.target.valid_loss` makes the target another loss")
    );
    assert_eq!(
        refusal("steps: 100, batch_size: 1, clip_norm: 1.0, target: {valid_loss: 2.5}"),
        None
    );
}

#[test]
fn losses_of_a_memory_and_of_none_are_compared_where_the_hashes_are_equal() {
    let refusal = |validation: Change| {
        let text = |sampling: &str| format!("generated, sampling: {sampling}");
        let [base, new] = [(1, "shuffled"), (11, "contiguous")].map(|(first, sampling)| {
            let mut run = Run::of(first, 2 * first, STEPS, validation);
            run.experiment = run.experiment.replace("generated", &text(sampling));
            run
        });
        let found = compared(&base, &new, &[]);
        of(&found, 0, ComparedMetric::Loss).refusal.clone()
    };
    assert_eq!(
        refusal(|row| row.validation_data = Some("v".to_owned())),
        None
    );
    assert_eq!(
        refusal(|_| ()).as_deref(),
        Some("`data.sampling` decides whether a recurrent model is evaluated with a memory")
    );
}

#[test]
fn commands_that_prepare_nothing_are_known_to() {
    let none = table(&[], Vec::new());
    let is_without = |prepare: [&str; 2]| {
        let [base, new] = prepare.map(|prepare| {
            format!("kiln: 1\nname: x\nmodel: {{kind: command, argv: [run]{prepare}}}\n")
        });
        let [base, new] = [&base, &new].map(|experiment| Subject {
            experiment: Some(experiment),
            ..Subject::new(&none, "x")
        });
        Treatment::between(base, new).is_without(ConcernedSetting {
            key: "model.prepare",
            value: None,
        })
    };
    assert!(is_without(["", ""]));
    assert!(!is_without(["", ", prepare: [make]"]));
    let no_experiment = Treatment::between(Subject::new(&none, "x"), Subject::new(&none, "x"));
    assert!(!no_experiment.is_without(ConcernedSetting {
        key: "model.prepare",
        value: None,
    }));
}
