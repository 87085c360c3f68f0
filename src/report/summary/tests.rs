use kiln_core::{
    record::TrialRow,
    spec::{Goal, Metric},
};

use super::{
    super::{
        diagnosis::diagnose,
        layout::widest_line,
        points::tests::{row, table},
        ranking::best_value,
    },
    *,
};

const WIDE: PageStyle = PageStyle {
    width: None,
    has_color: false,
};

/// The page of a table without a run beside it.
pub(in crate::report) fn summary(
    table: &TrialTable,
    planned: usize,
    objective: Option<spec::Objective>,
    style: PageStyle,
) -> String {
    let findings = diagnose(table);
    let notices = notices(table, None, &findings);
    let remarks = (&findings[..], &notices[..]);
    with_remarks(None, table, planned, objective, remarks, style)
}

/// A trial on the CPU of a machine with an NVIDIA driver.
fn on_the_cpu_beside_a_driver() -> TrialTable {
    let cpu = TrialRow {
        device_uuid: None,
        device_name: Some("EPYC".into()),
        driver: Some("590.48".into()),
        ..row(1, 10.0)
    };
    table(&[], vec![(cpu, &[])])
}

#[test]
fn the_page_of_a_run_knows_the_device_that_was_asked_for() {
    let table = on_the_cpu_beside_a_driver();
    let folder = RunFolder::at("nowhere");
    let page = |experiment| summary_in(&folder, &table, 1, experiment, WIDE);
    let finding = "although an NVIDIA driver (590.48) is present";
    assert!(page(None).contains(finding), "{}", page(None));
    let asked = page(Some("run: {devices: cpu}"));
    assert!(!asked.contains(finding), "{asked}");
}

fn full(id: u64, rate: f64) -> TrialRow {
    TrialRow {
        tokens_per_second: Some(rate * 128.0),
        data_wait_fraction: Some(0.034),
        median_step_seconds: Some(0.0125),
        train_loss: Some(4.5),
        valid_loss: Some(4.75),
        peak_nvml_used_bytes: Some(3 << 30),
        mfu: Some(0.41),
        ..row(id, rate)
    }
}

#[test]
fn points_stand_fastest_first_with_mean_and_spread_of_their_repeats() {
    let table = table(
        &["train.batch_size"],
        vec![
            (full(1, 99.0), &["4"]),
            (full(2, 200.0), &["8"]),
            (full(3, 101.0), &["4"]),
            (full(4, 200.0), &["8"]),
        ],
    );
    let page = summary(&table, 0, None, WIDE);
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines[0], "4 trials: 4 completed");
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let place = lines
        .iter()
        .position(|line| line.contains("data wait"))
        .unwrap();
    assert_eq!(
        squeezed(lines[place]),
        "batch_size samples/s tokens/s vs fastest data wait step loss valid loss GPU memory MFU n"
    );
    let body: Vec<String> = lines[place..]
        .iter()
        .map(|line| squeezed(line))
        .filter(|line| line.contains(" ± ") && line.contains("GiB"))
        .collect();
    assert_eq!(
        body[0],
        "* 8 200 ± 0.0 % 25600 ± 0.0 % 100 % 3.4 % 12.5 ms 4.500 4.750 3.0 GiB 41.0 % 2"
    );
    assert_eq!(
        body[1],
        "4 100 ± 1.4 % 12800 ± 1.4 % 50 % 3.4 % 12.5 ms 4.500 4.750 3.0 GiB 41.0 % 2"
    );
    let means = "fastest; numbers are arithmetic means over the n runs of a point, memory is the \
                 highest; ± is the standard deviation, and a single run has none";
    assert!(page.contains(means), "{page}");
}

#[test]
fn numbers_of_any_size_are_short_and_their_means_are_numbers() {
    let huge = |id| TrialRow {
        tokens_per_second: Some(1e308),
        train_loss: Some(1e300),
        valid_loss: Some(1e-300),
        ..row(id, 1e308)
    };
    let page = summary(
        &table(
            &["train.batch_size"],
            vec![(huge(1), &["4"]), (huge(2), &["4"]), (huge(3), &["4"])],
        ),
        0,
        None,
        WIDE,
    );
    let squeezed: Vec<String> = page
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert!(
        squeezed.contains(
            &"* 4 1.00e308 ± 0.0 % 1.00e308 ± 0.0 % 100 % 1.00e300 1.00e-300 3".to_owned()
        ),
        "{page}"
    );
}

#[test]
fn single_runs_say_that_they_have_no_spread_and_empty_columns_are_left_out() {
    let page = summary(
        &table(
            &["train.batch_size"],
            vec![(row(1, 1.5), &["4"]), (row(2, 12.25), &["8"])],
        ),
        0,
        None,
        WIDE,
    );
    assert!(
        page.contains("one run per point (n = 1), so the spread is unknown"),
        "{page}"
    );
    assert!(
        !page.contains('±') && !page.contains("MFU") && !page.contains("valid loss"),
        "{page}"
    );
    assert!(page.contains("12.2") && page.contains("1.50"), "{page}");
}

#[test]
fn what_did_not_complete_is_listed_with_its_reason() {
    let oom = TrialRow {
        outcome: Outcome::Oom,
        reason: Some("out of\nGPU memory at step 1".into()),
        ..row(2, 0.0)
    };
    let oom = TrialRow {
        samples_per_second: None,
        ..oom
    };
    let page = summary(
        &table(
            &["train.batch_size"],
            vec![(row(1, 10.0), &["4"]), (oom, &["32"])],
        ),
        0,
        None,
        WIDE,
    );
    assert!(page.starts_with("2 trials: 1 completed, 1 oom\n"), "{page}");
    let stopped = summary(
        &table(&["train.batch_size"], vec![(row(1, 10.0), &["4"])]),
        3,
        None,
        WIDE,
    );
    assert!(
        stopped.starts_with("1 of 3 trials: 1 completed, 2 not run\n"),
        "{stopped}"
    );
    assert!(
        page.contains(
            "  0000000002  oom         train.batch_size 32: out of GPU memory at step 1\n"
        ),
        "{page}"
    );
    let nothing = summary(&table(&[], vec![]), 0, None, WIDE);
    assert_eq!(nothing, "no trial has ended yet\n");
}

#[test]
fn what_completed_without_a_rate_stands_in_the_table_and_below_is_the_reason() {
    let short = TrialRow {
        samples_per_second: None,
        tokens_per_second: None,
        notes: Some("mfu: no peak; window_seconds: only 2 steps".into()),
        ..full(2, 0.0)
    };
    let again = TrialRow {
        train_loss: Some(5.5),
        trial: row(3, 0.0).trial,
        ..short.clone()
    };
    let page = summary(
        &table(
            &["data.num_workers"],
            vec![(full(1, 10.0), &["9"]), (short, &["2"]), (again, &["2"])],
        ),
        0,
        None,
        WIDE,
    );
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        page.lines()
            .any(|line| squeezed(line) == "2 – – 3.4 % 12.5 ms 5.000 4.750 3.0 GiB 41.0 % 2"),
        "{page}"
    );
    assert!(
        page.contains("\n– 2 trials without a rate: only 2 steps\n"),
        "{page}"
    );
    let of_a_command = TrialRow {
        samples_per_second: None,
        tokens_per_second: None,
        valid_loss: Some(0.5),
        ..row(4, 0.0)
    };
    for quiet in [full(1, 10.0), of_a_command] {
        let page = summary(&table(&[], vec![(quiet, &[])]), 0, None, WIDE);
        assert!(!page.contains("without a rate"), "{page}");
    }
}

#[test]
fn a_sweep_of_what_is_learned_puts_the_lowest_loss_first_and_says_so() {
    let trained = |id, rate, loss, seed| TrialRow {
        valid_loss: Some(loss),
        seed,
        steps: Some(100),
        ..row(id, rate)
    };
    let page = summary(
        &table(
            &["train.optimizer.learning_rate"],
            vec![
                (trained(1, 200.0, 2.5, 1), &["1"]),
                (trained(2, 100.0, 1.25, 1), &["0.01"]),
                (trained(3, 201.0, 2.6, 2), &["1"]),
                (trained(4, 101.0, 1.26, 2), &["0.01"]),
            ],
        ),
        0,
        None,
        WIDE,
    );
    assert!(
        page.contains("\nlearning_rate 0.01 has the lowest validation loss: 1.2550 ± 0.0071; "),
        "{page}"
    );
    let best = page
        .lines()
        .find(|line| line.trim_start().starts_with("* "))
        .unwrap();
    let units =
        "± is the standard deviation (of rates in % of the mean, of a metric in its own unit)";
    assert!(page.contains(units), "{page}");
    assert!(best.contains("0.01") && best.contains("100 ±"), "{page}");
    assert!(
        page.contains("* lowest validation loss; ")
            && page.contains(
                "lowest validation loss first, because `learning_rate` changes what is learned"
            ),
        "{page}"
    );
}

#[test]
fn axes_of_both_kinds_mark_the_pareto_front() {
    let points: [(f64, f64, &[&str]); 3] = [
        (100.0, 1.0, &["64", "4"]),
        (300.0, 2.0, &["16", "4"]),
        (90.0, 1.5, &["64", "8"]),
    ];
    let rows = (0..9_u64).map(|place| {
        let (round, (rate, loss, cells)) = (place / 3 + 1, points[place as usize % 3]);
        let fixed = TrialRow {
            valid_loss: Some(loss),
            seed: round,
            block: Some(round),
            ..row(place + 1, rate)
        };
        (fixed, cells)
    });
    let page = summary(
        &table(&["model.d_model", "train.batch_size"], rows.collect()),
        0,
        None,
        WIDE,
    );
    let marked = page
        .lines()
        .filter(|line| line.starts_with("* ") || line.starts_with(" * "))
        .count();
    // Two rows, and the line that says what the mark means.
    assert_eq!(marked, 3, "{page}");
    assert!(
        page.contains("2 points are on the Pareto front; d_model 16, batch_size 4 is the")
            && page.contains("* Pareto front: "),
        "{page}"
    );
}

#[test]
fn losses_after_different_numbers_of_samples_are_said_to_be() {
    let noted = |id, batch, note: &str, kind: &str| TrialRow {
        train_loss: Some(1.0),
        steps: Some(100),
        effective_batch_size: batch,
        notes: Some(note.to_owned()),
        model_kind: kind.to_owned(),
        ..row(id, 10.0)
    };
    let page_of = |batches: [u64; 2], note: &str, kind: &str| {
        let trained = |id, batch| noted(id, batch, note, kind);
        summary(
            &table(
                &["train.batch_size"],
                vec![
                    (trained(1, batches[0]), &["4"]),
                    (trained(2, batches[1]), &["8"]),
                ],
            ),
            0,
            None,
            WIDE,
        )
    };
    let page = |batches| page_of(batches, "mfu: no peak", "gpt");
    let unequal = page([4, 8]);
    assert!(unequal.contains("different numbers of samples (400 to 800): a lower loss"));
    assert!(unequal.contains("train.epochs"), "{unequal}");
    let of_command = page_of([4, 8], "mfu: no peak", "command");
    assert!(
        of_command.contains("different numbers of samples") && !of_command.contains("train.epochs"),
        "{of_command}"
    );
    assert!(!page([4, 4]).contains("different numbers"));
    // Epochs would not make them equal.
    let early = page_of(
        [4, 8],
        "steps: stopped early at step 100: the validation loss rose",
        "gpt",
    );
    assert!(
        early.contains("`train.early_stop` ended some") && !early.contains("train.epochs"),
        "{early}"
    );
}

#[test]
fn a_best_that_chance_may_have_put_first_is_said_to_be() {
    // Two points in turns, block by block.
    let page = |rates: [[f64; 2]; 4]| {
        let row_of = |block: usize, point: usize| TrialRow {
            block: Some(block as u64 + 1),
            ..row((2 * block + point + 1) as u64, rates[block][point])
        };
        let rows = (0..8).map(|place| {
            (
                row_of(place / 2, place % 2),
                if place % 2 == 0 {
                    &["4"][..]
                } else {
                    &["8"][..]
                },
            )
        });
        summary(&table(&["train.batch_size"], rows.collect()), 0, None, WIDE)
    };
    let chance = page([[100.0, 99.0], [110.0, 108.0], [98.0, 101.0], [105.0, 103.0]]);
    assert!(
        chance.contains("; the best is 0.5 % ahead of the next (95 % interval -"),
        "{chance}"
    );
    let sure = page([[100.0, 90.0], [110.0, 99.5], [98.0, 88.0], [105.0, 94.0]]);
    assert!(
        sure.contains("; its lead is larger than noise\n") && !sure.contains("may be"),
        "{sure}"
    );
    let listed = [
        (1, 100.0, "4"),
        (2, 110.0, "4"),
        (3, 80.0, "8"),
        (4, 81.0, "8"),
    ];
    let rows = listed.iter().map(|(id, rate, batch)| {
        (
            row(*id, *rate),
            if *batch == "4" {
                &["4"][..]
            } else {
                &["8"][..]
            },
        )
    });
    let listed = summary(&table(&["train.batch_size"], rows.collect()), 0, None, WIDE);
    assert!(
        listed.contains(
            "; the points did not all run in turns: the order may come from drift of the \
             machine\n"
        ),
        "{listed}"
    );
    let single = table(
        &["train.batch_size"],
        vec![(row(1, 10.0), &["4"]), (row(2, 10.0), &["8"])],
    );
    assert!(
        summary(&single, 0, None, WIDE)
            .contains("batch_size 4 is fastest: 10.0 samples/s; one run per point")
    );
}

#[test]
fn a_long_list_of_failures_is_cut_and_says_so() {
    let failed = |id: u64| {
        let failed = TrialRow {
            outcome: Outcome::Failed,
            reason: (id > 1).then(|| format!("cause {id}")),
            samples_per_second: None,
            ..row(id, 0.0)
        };
        (failed, &[][..])
    };
    let page = summary(&table(&[], (1..=25).map(failed).collect()), 0, None, WIDE);
    assert!(
        page.contains("and 5 more reasons, see trials.csv"),
        "{page}"
    );
    assert!(
        page.contains("cause 20\n") && !page.contains("cause 21"),
        "{page}"
    );
    assert!(page.contains("no reason was recorded"));
}

#[test]
fn a_narrow_terminal_keeps_axes_and_throughput_and_says_what_it_left_out() {
    let table = table(
        &["train.batch_size", "data.num_workers"],
        vec![
            (full(1, 100.0), &["4", "0"]),
            (full(2, 200.0), &["8", "40"]),
        ],
    );
    for width in [40_u16, 60, 80, 100] {
        let page = summary(
            &table,
            0,
            None,
            PageStyle {
                width: Some(width),
                has_color: false,
            },
        );
        // Sentences wrap; the table does not.
        let body: Vec<&str> = page
            .lines()
            .skip_while(|line| !line.starts_with("   batch_size"))
            .take_while(|line| !line.starts_with("* fastest"))
            .collect();
        assert!(
            widest_line(&body.join("\n")) <= usize::from(width),
            "{width}:\n{page}"
        );
        assert!(
            page.contains("samples/s") && page.contains("200"),
            "{width}:\n{page}"
        );
    }
    let narrow = summary(
        &table,
        0,
        None,
        PageStyle {
            width: Some(60),
            has_color: false,
        },
    );
    assert!(narrow.contains("hidden for width: tokens/s, "), "{narrow}");
}

#[test]
fn a_commands_metric_of_the_name_of_a_head_leaves_two_heads() {
    let trained = |id| {
        let mut row = full(id, 100.0);
        row.metrics.insert("loss".to_owned(), 3.25);
        row
    };
    let rows = vec![(trained(1), &["4"][..]), (trained(2), &["8"][..])];
    let mut table = table(&["train.batch_size"], rows);
    let heads = |table: &TrialTable| {
        let page = summary(table, 0, None, WIDE);
        let line = page.lines().find(|line| line.contains("valid loss"));
        format!(" {} ", line.unwrap_or_default())
    };
    let without = heads(&table);
    assert!(
        without.contains("  loss ") && !without.contains("train_loss"),
        "{without}"
    );
    table.metrics = vec!["metric.loss".to_owned()];
    let with = heads(&table);
    assert!(
        with.contains(" train_loss ") && with.contains("  loss "),
        "{with}"
    );
}

#[test]
fn only_a_terminal_gets_escapes() {
    let table = table(&[], vec![(row(1, 10.0), &[])]);
    assert!(
        !summary(
            &table,
            0,
            None,
            PageStyle {
                width: Some(80),
                has_color: false
            }
        )
        .contains('\u{1b}')
    );
    assert!(
        summary(
            &table,
            0,
            None,
            PageStyle {
                width: Some(80),
                has_color: true
            }
        )
        .contains('\u{1b}')
    );
}

#[test]
fn samples_of_different_lengths_rank_by_tokens() {
    let short = TrialRow {
        tokens_per_second: Some(100.0),
        ..row(1, 50.0)
    };
    let long = TrialRow {
        tokens_per_second: Some(400.0),
        ..row(2, 4.0)
    };
    let page = summary(
        &table(&["model.seq_len"], vec![(short, &["2"]), (long, &["100"])]),
        0,
        None,
        WIDE,
    );
    let best = page
        .lines()
        .find(|line| line.trim_start().starts_with("* "))
        .unwrap();
    assert!(best.contains("400"), "{page}");
}

/// A page of runs in turns, a block of each seed: `values[point][seed]`, in points `a`, `b` and `c`.
fn page_of(
    values: &[&[Option<f64>]],
    asked: Metric,
    cell: fn(&mut TrialRow, Option<f64>),
) -> String {
    const NAMES: [[&str; 1]; 3] = [["a"], ["b"], ["c"]];
    let values_of_a_round = values.len();
    let mut rows = Vec::new();
    for (point, values) in values.iter().enumerate() {
        for (place, value) in values.iter().enumerate() {
            let mut fixed = TrialRow {
                seed: place as u64 + 1,
                block: Some(place as u64 + 1),
                samples_per_second: None,
                ..row((values_of_a_round * place + point + 1) as u64, 0.0)
            };
            cell(&mut fixed, *value);
            rows.push((fixed, &NAMES[point][..]));
        }
    }
    let objective = spec::Objective::of(asked, Some(Goal::Max));
    summary(&table(&["x"], rows), 0, Some(objective), WIDE)
}

fn all(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().copied().map(Some).collect()
}

fn page_of_rewards<const N: usize>(values: [&[f64]; N]) -> String {
    let values = values.map(all);
    page_of(
        &values.each_ref().map(Vec::as_slice),
        Metric::named("reward"),
        |row, value| {
            row.metrics.insert("reward".to_owned(), value.unwrap());
        },
    )
}

fn page_of_rates(one: &[Option<f64>], other: &[Option<f64>]) -> String {
    page_of(&[one, other], Metric::SamplesPerSecond, |row, value| {
        row.samples_per_second = value
    })
}

#[test]
fn values_that_are_not_above_0_are_judged_by_their_differences() {
    let noise = page_of_rewards([&[-10.0, -20.0, -30.0], &[-31.0, -11.0, -19.0]]);
    assert!(
        noise.contains(
            "x a has the highest reward: -20.0 ± 10.0; the best is 0.333 ahead of the next \
             (95 % interval -63.9 to 64.6): their order may be noise\n"
        ),
        "{noise}"
    );
    let sure = page_of_rewards([&[-1.0, 0.0, 1.0], &[-100.0, -99.0, -98.1]]);
    assert!(sure.contains("; its lead is larger than noise\n"), "{sure}");
    // A third point far off says nothing of the best two.
    for far in [-1e3, -1e9, -1e12, -1e300] {
        let [best, next] = [[105.0, 101.0, 109.0], [4.0, 8.0, 2.0]];
        let page = page_of_rewards([&best, &next, &[far, far * 1.5, far * 0.7]]);
        assert!(page.contains("; its lead is larger than noise\n"), "{page}");
        let near = page_of_rewards([&best, &[104.0, 102.5, 107.9], &[far; 3]]);
        assert!(near.contains("): their order may be noise\n"), "{near}");
    }
    let equal = page_of_rewards([&[0.0; 3], &[0.0; 3]]);
    assert!(
        equal.contains(
            "cannot tell which point has the highest reward: x a and x b have the same value"
        ),
        "{equal}"
    );
}

#[test]
fn rates_of_0_have_no_ratio_and_their_lead_is_not_judged() {
    for values in [[[0.0; 3], [0.0; 3]], [[5.0, 4.0, 6.0], [1.0, 0.0, 3.0]]] {
        let page = page_of_rates(&all(&values[0]), &all(&values[1]));
        assert!(
            page.contains("cannot tell whether its lead is larger than noise: ratios need values")
                && !page.contains("; its lead"),
            "{page}"
        );
    }
}

#[test]
fn a_lead_is_that_of_the_means_in_the_table() {
    // Of the first two the logarithms say that the second is ahead: one run decides the mean.
    let far = page_of_rates(&all(&[10.0, 10.0, 1000.0]), &all(&[60.0, 65.0, 66.0]));
    assert!(
        far.contains("x a is fastest: 340 ± 168.1 % samples/s; the best is 434.0 % ahead"),
        "{far}"
    );
    let wide = page_of_rates(&all(&[700.0, 800.0, 759.0]), &all(&[200.0, 610.0, 735.0]));
    assert!(wide.contains("the best is 46.2 % ahead"), "{wide}");
}

/// Runs of two learning rates with 5 seeds each; `failed` of the better one end with `outcome`.
fn run_with_failures(outcome: Outcome, failed: usize) -> TrialTable {
    let rows = (0..10).map(|place| {
        let (seed, is_better) = (place / 2, place % 2 == 1);
        let noise = seed as f64 / 100.0;
        let fixed = TrialRow {
            seed: seed as u64 + 1,
            valid_loss: Some(noise + if is_better { 0.49 } else { 0.61 }),
            ..row(place as u64 + 1, 10.0)
        };
        let fixed = match is_better && seed < failed {
            true => TrialRow {
                outcome,
                valid_loss: None,
                ..fixed
            },
            false => fixed,
        };
        (fixed, if is_better { &["1.0"][..] } else { &["0.1"] })
    });
    table(&["train.optimizer.learning_rate"], rows.collect())
}

#[test]
fn a_point_of_which_a_trial_failed_ranks_last_and_the_page_says_so() {
    let squeezed = |page: &str| page.split_whitespace().collect::<Vec<_>>().join(" ");
    for (outcome, words) in [
        (Outcome::Diverged, "diverged"),
        (Outcome::Failed, "failed"),
        (Outcome::TimedOut, "timed out"),
        (Outcome::Oom, "ran out of memory"),
    ] {
        let page = summary(&run_with_failures(outcome, 3), 0, None, WIDE);
        assert!(
            page.contains(&format!(
                "learning_rate 0.1 has the lowest validation loss: 0.6300 ± 0.0158; every other \
                 point has failures. learning_rate 1.0 ranks behind the points without failures: 3 of 5 {words}\n"
            )),
            "{page}"
        );
        let lines = squeezed(&page);
        assert!(
            lines.contains("* 0.1 0.6300 ± 0.0158 – ")
                && lines.contains(&format!(" 1.0 0.5250 ± 0.0071 3 of 5 {words} ")),
            "{page}"
        );
    }
    // Nothing is known of a trial that was ended from outside.
    for outcome in [Outcome::Killed, Outcome::Interrupted, Outcome::Skipped] {
        let page = summary(&run_with_failures(outcome, 1), 0, None, WIDE);
        assert!(page.contains("learning_rate 1.0 has the lowest"), "{page}");
        assert!(!page.contains("failures"), "{page}");
    }
}

#[test]
fn where_each_point_has_failures_none_is_the_best() {
    let mut table = run_with_failures(Outcome::Diverged, 3);
    table.rows[0].fixed.outcome = Outcome::Diverged;
    let page = summary(&table, 0, None, WIDE);
    assert!(
        page.contains(
            "\ncannot tell which point has the lowest validation loss: each of them has failures\n"
        ) && !page.contains('*'),
        "{page}"
    );
    assert_eq!(best_value(&table, None), None);
}

#[test]
fn a_trial_that_did_not_reach_its_target_counts_against_its_point() {
    let timed = |id, seconds| TrialRow {
        seconds_to_target: seconds,
        ..row(id, 10.0)
    };
    let rows: Vec<(TrialRow, &[&str])> = vec![
        (timed(1, Some(9.0)), &["a"]),
        (timed(2, Some(9.5)), &["a"]),
        (timed(3, Some(1.0)), &["b"]),
        (timed(4, None), &["b"]),
        (timed(5, None), &["c"]),
        (timed(6, None), &["c"]),
    ];
    let asked = spec::Objective::of(Metric::SecondsToTarget, None);
    let page = summary(&table(&["x"], rows), 0, Some(asked), WIDE);
    assert!(
        page.contains("x a has the lowest time to the target: 9.25 s ± 0.354 s; ")
            && page.contains(
                ". x b ranks behind the points without failures: 1 of 2 did not reach the target\n"
            ),
        "{page}"
    );
}

#[test]
fn no_point_is_the_fastest_where_a_trial_lacks_its_rate() {
    let rate = |id, rate: Option<f64>| TrialRow {
        samples_per_second: rate,
        ..row(id, 0.0)
    };
    let rows: Vec<(TrialRow, &[&str])> = vec![
        (rate(1, Some(100.0)), &["1"]),
        (rate(2, Some(101.0)), &["1"]),
        (rate(3, Some(50.0)), &["2"]),
        (rate(4, None), &["2"]),
        (rate(5, None), &["4"]),
        (rate(6, None), &["4"]),
    ];
    let table = table(&["train.batch_size"], rows);
    let page = summary(&table, 0, None, WIDE);
    assert!(
        page.contains(
            "\ncannot tell which point is fastest: 3 of 6 completed trials have no measured rate, \
             and may be the fastest\n"
        ) && !page.contains('*')
            && !page.contains("vs fastest"),
        "{page}"
    );
    assert_eq!(best_value(&table, None), None);
    let short = crate::report::point_table(&table, None);
    let mut best_by = short.lines().skip(1).map(|line| line.split(',').nth(3));
    assert!(best_by.all(|cell| cell == Some("")), "{short}");
    // A point that ran out of memory is not a rival.
    let mut full = table.clone();
    for row in &mut full.rows[3..] {
        row.fixed.outcome = Outcome::Oom;
    }
    let page = summary(&full, 0, None, WIDE);
    assert!(page.contains("batch_size 1 is fastest: 100 ±"), "{page}");
}

#[test]
fn the_pareto_front_is_not_told_where_a_trial_lacks_its_rate() {
    let trained = |id, rate: Option<f64>, loss| TrialRow {
        samples_per_second: rate,
        valid_loss: Some(loss),
        ..row(id, 0.0)
    };
    let rows: Vec<(TrialRow, &[&str])> = vec![
        (trained(1, Some(100.0), 1.0), &["64", "4"]),
        (trained(2, Some(300.0), 2.0), &["16", "4"]),
        (trained(3, None, 1.5), &["64", "8"]),
    ];
    let table = table(&["model.d_model", "train.batch_size"], rows);
    let page = summary(&table, 0, None, WIDE);
    assert!(
        page.contains(". cannot tell the Pareto front: 1 of 3 completed trials has no measured")
            && !page.contains('*'),
        "{page}"
    );
}

#[test]
fn the_n_of_a_line_is_that_of_its_mean_and_other_means_say_theirs() {
    let page = page_of_rates(
        &[Some(10.0), None, None],
        &[Some(11.0), Some(11.0), Some(11.0)],
    );
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = page.lines().map(squeezed).collect();
    assert!(lines.contains(&"a 10.0 1".to_owned()), "{page}");
    assert!(lines.contains(&"b 11.0 ± 0.0 % 3".to_owned()), "{page}");
    let partly = |id, loss| TrialRow {
        valid_loss: loss,
        ..row(id, 10.0)
    };
    let rows: Vec<(TrialRow, &[&str])> = vec![
        (partly(1, Some(1.0)), &["4"]),
        (partly(2, None), &["4"]),
        (partly(3, Some(1.0)), &["4"]),
    ];
    let page = summary(&table(&["train.batch_size"], rows), 0, None, WIDE);
    let lines: Vec<String> = page.lines().map(squeezed).collect();
    assert!(
        lines.contains(&"* 4 10.0 ± 0.0 % 100 % 1.000 (n 2) 3".to_owned()),
        "{page}"
    );
}

#[test]
fn a_metric_that_the_machine_may_change_needs_runs_in_turns() {
    // All runs of `a` came first; the seeds are alike.
    let page = |metric: &'static str, cell: fn(&mut TrialRow, f64)| {
        let values = [[10.0, 11.0, 10.5], [20.0, 21.0, 20.5]];
        let rows = (0..6).map(|place| {
            let (point, seed) = (place / 3, place % 3);
            let mut fixed = TrialRow {
                seed: seed as u64 + 1,
                run_seconds: Some(place as f64),
                ..row(place as u64 + 1, 1.0)
            };
            cell(&mut fixed, values[point][seed]);
            (fixed, if point == 0 { &["a"][..] } else { &["b"] })
        });
        let asked = spec::Objective::of(Metric::named(metric), Some(Goal::Max));
        summary(&table(&["x"], rows.collect()), 0, Some(asked), WIDE)
    };
    let own = page("gflops", |row, value| {
        row.metrics.insert("gflops".to_owned(), value);
    });
    assert!(own.contains("the points did not all run in turns"), "{own}");
    let learned = page("valid_top1", |row, value| {
        row.valid_top1 = Some(value / 100.0)
    });
    assert!(
        learned.contains("its lead is larger than noise"),
        "{learned}"
    );
}

#[test]
fn the_hit_rate_of_a_panel_stands_above_that_without_a_model() {
    let panel = TrialRow {
        valid_hit_rate: Some(0.5),
        majority_hit_rate: Some(0.75),
        ..row(1, 10.0)
    };
    let page = summary(&table(&[], vec![(panel, &[])]), 0, None, WIDE);
    let told = "\nwithout a model: hit rate 75.0 % (always the more common direction)\n";
    assert!(page.contains(told), "{page}");
}

/// A row does not show it, the experiment does.
#[test]
fn a_cpu_that_was_asked_for_is_not_an_accident() {
    let table = on_the_cpu_beside_a_driver();
    let page = |devices: &str| {
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: mlp}}, data: {{kind: generated}}, train: {{steps: 1}}, \
             run: {{devices: {devices}}}}}"
        );
        let experiment: Experiment = spec::read_yaml(&text).unwrap();
        let folder = RunFolder::at("results/x/run");
        summary_of_run(&folder, &table, 1, &experiment, WIDE)
    };
    let finding = "although an NVIDIA driver (590.48) is present";
    assert!(page("auto").contains(finding), "{}", page("auto"));
    let of_choice = page("cpu");
    assert!(
        !of_choice.contains(finding) && of_choice.contains("everything ran on the CPU"),
        "{of_choice}"
    );
}
