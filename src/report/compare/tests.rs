//! Verdicts on made tables.

use kiln_core::{plan::Outcome, record::TableRow, statistics::TimedRun};

use super::{
    super::{
        PageStyle,
        points::tests::{row, table},
    },
    *,
};

/// A table of one point with these rates; ids from `first` on, without start times.
fn rates(first: u64, rates: &[f64]) -> TrialTable {
    table(
        &["train.batch_size"],
        rates
            .iter()
            .enumerate()
            .map(|(place, rate)| (row(first + place as u64, *rate), &["8"][..]))
            .collect(),
    )
}

/// The same rows, each so many seconds after the one before.
fn timed(mut table: TrialTable, first: u64, step: u64) -> TrialTable {
    for (place, row) in table.rows.iter_mut().enumerate() {
        let second = first + step * place as u64;
        row.fixed.started_utc = Some(format!(
            "2026-01-01T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        ));
    }
    table
}

/// In turns.
fn of_tables(base: &[f64], new: &[f64]) -> Verdict {
    let found = compare(
        &timed(rates(1, base), 0, 2),
        &timed(rates(1, new), 1, 2),
        &Options::default(),
    )
    .unwrap();
    found.pairs[0].comparisons[0].verdict
}

/// One side after the other.
fn one_after_the_other(base: &[f64], new: &[f64]) -> Comparisons {
    compare(
        &timed(rates(1, base), 0, 1),
        &timed(rates(1, new), 600, 1),
        &Options::default(),
    )
    .unwrap()
}

pub(super) fn page(found: &Comparisons) -> String {
    ComparisonPage {
        base: "a",
        new: "b",
        facts: None,
        can_rerun: true,
        has_data_by_name: false,
        found,
    }
    .text(PageStyle {
        width: None,
        has_color: false,
    })
}

#[test]
fn means_that_a_report_shows_as_other_numbers_are_named() {
    let text = |base: &[f64]| page(&one_after_the_other(base, &[100.0, 101.0, 99.0]));
    let named = "\nbase and new are geometric means, ";
    // 116.7 in a report, and 100 here.
    let apart = text(&[50.0, 100.0, 200.0]);
    assert!(apart.contains(named), "{apart}");
    let alike = text(&[95.0, 100.0, 105.0]);
    assert!(!alike.contains(named), "{alike}");
}

#[test]
fn sides_one_after_the_other_are_told_apart_only_by_a_large_change_and_the_page_says_so_first() {
    let base = [100.0, 101.0, 99.0, 100.5, 99.5];
    let small = one_after_the_other(&base, &base.map(|rate| rate * 0.95));
    assert_eq!(small.pairs[0].comparisons[0].verdict, Verdict::CannotTell);
    let text = page(&small);
    let (order, verdict) = (
        text.find("the two sides ran one after the other").unwrap(),
        text.find("cannot tell: ").unwrap(),
    );
    assert!(
        order < verdict && text.contains("`kiln compare --rerun a b`"),
        "{text}"
    );
    assert_eq!(
        one_after_the_other(&base, &base).pairs[0].comparisons[0].verdict,
        Verdict::CannotTell
    );
    assert_eq!(
        one_after_the_other(&base, &base.map(|rate| rate * 0.6)).pairs[0].comparisons[0].verdict,
        Verdict::Worse
    );
    // A machine that becomes 1 % faster with each run.
    let (before, after) = (
        [100.0, 101.1, 101.9, 103.0, 104.1],
        [105.0, 106.1, 106.9, 108.2, 109.3],
    );
    let drifting = one_after_the_other(&before, &after);
    assert_eq!(
        drifting.pairs[0].comparisons[0].verdict,
        Verdict::CannotTell
    );
    let text = page(&drifting);
    assert!(
        text.contains("drift: the machine became 4.0 % faster during base"),
        "{text}"
    );
}

#[test]
fn a_drift_of_a_commands_own_number_is_told_without_a_word_on_the_machine() {
    let own = |mut table: TrialTable, from: f64| {
        table.metrics = vec!["metric.heat".to_owned()];
        for (place, row) in table.rows.iter_mut().enumerate() {
            row.fixed.samples_per_second = None;
            row.fixed.tokens_per_second = None;
            row.fixed.median_step_seconds = None;
            let noise = [0.0, 0.1, -0.1, 0.05, 0.0][place % 5];
            row.fixed
                .metrics
                .insert("heat".to_owned(), from + place as f64 + noise);
        }
        table
    };
    let rates = |first, place| timed(rates(first, &[1.0; 5]), place, 1);
    let options = Options {
        columns: ColumnMetric::named("metric.heat", false)
            .into_iter()
            .collect(),
        ..Options::default()
    };
    let (base, new) = (own(rates(1, 0), 100.0), own(rates(1, 600), 105.0));
    let text = page(&compare(&base, &new, &options).unwrap());
    assert!(
        text.contains("drift: `heat` rose by 4.0 % during base")
            && !text.contains("the machine became"),
        "{text}"
    );
}

#[test]
fn disturbance_stands_beside_the_verdict_and_can_be_left_out() {
    let base = timed(rates(1, &[100.0, 101.0, 99.0, 100.0, 100.0, 100.0]), 0, 2);
    let mut new = timed(rates(1, &[80.0, 81.0, 79.0, 100.0, 101.0, 99.0]), 1, 2);
    for (place, row) in new.rows.iter_mut().enumerate().take(3) {
        row.fixed.throttled_fraction = Some(0.9);
        row.fixed.throttle_reasons = Some("hw_thermal_slowdown".into());
        row.fixed.ecc_uncorrected_errors = Some(place as u64);
        row.fixed.notes = Some(
            "samples_per_second: other processes kept 1.2 of 2 cores busy in the window".into(),
        );
    }
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(found.pairs[0].disturbed.each_ref().map(Vec::len), [0, 3]);
    let text = page(&found);
    assert!(
        text.contains(" (disturbed)")
            && text.contains(
                "disturbed (`--clean` judges without these runs): train.batch_size 8: 3 runs of new"
            ),
        "{text}"
    );
    assert!(
        text.contains("clocks limited for 90.0 % of the window (hw_thermal_slowdown)")
            && text.contains("other processes kept 1.2"),
        "{text}"
    );
    // One side after the other: the cause may be the program or the heat.
    let mut hot = one_after_the_other(&[100.0, 101.0, 99.0], &[50.0, 51.0, 49.0]);
    assert_eq!(hot.pairs[0].comparisons[0].verdict, Verdict::Worse);
    let mut after = timed(rates(1, &[50.0, 51.0, 49.0]), 1000, 1);
    after
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.throttled_fraction = Some(0.9));
    hot = compare(
        &timed(rates(1, &[100.0, 101.0, 99.0]), 0, 1),
        &after,
        &Options::default(),
    )
    .unwrap();
    let comparison = &hot.pairs[0].comparisons[0];
    assert_eq!(
        (comparison.verdict, comparison.interval),
        (Verdict::CannotTell, None)
    );
    assert!(
        page(&hot).contains(
            "order: the two sides ran one after the other while others disturbed the machine: no \
             verdict is given;"
        ),
        "{}",
        page(&hot)
    );
    assert!(matches!(
        gate(&hot, ComparedMetric::Throughput),
        Gate::CannotTell(_)
    ));
    let clean = compare(
        &base,
        &new,
        &Options {
            is_clean: true,
            ..Options::default()
        },
    )
    .unwrap();
    let comparison = &clean.pairs[0].comparisons[0];
    assert_eq!(
        (
            comparison.new_runs,
            comparison.base_runs,
            comparison.verdict
        ),
        (3, 6, Verdict::Same)
    );
    assert!(
        page(&clean).contains("excluded as disturbed: train.batch_size 8: 3 runs of new"),
        "{}",
        page(&clean)
    );
}

#[test]
fn runs_that_are_all_disturbed_by_one_kind_of_cause_are_told_in_one_line() {
    let busy = |row: &mut TrialRow, cores: &str| {
        let note = format!("other processes kept {cores} of 2 cores busy in the window");
        row.notes = Some(format!("samples_per_second: {note}"));
    };
    let side = |first: u64, is_new: bool| {
        let rows = [(1, "8"), (2, "8"), (3, "16"), (4, "16")].map(|(id, size)| {
            let mut row = row(id, 100.0 + first as f64);
            busy(&mut row, if is_new && id == 4 { "1.1" } else { "1.0" });
            (row, [size])
        });
        let rows = rows.iter().map(|(row, axes)| (row.clone(), &axes[..]));
        timed(table(&["train.batch_size"], rows.collect()), first, 2)
    };
    let told = |base: &TrialTable, new: &TrialTable| -> Vec<String> {
        let text = page(&compare(base, new, &Options::default()).unwrap());
        let lines = text.lines().filter(|line| line.starts_with("disturbed"));
        lines.map(str::to_owned).collect()
    };
    let cause = "other processes kept 1.0 to 1.1 of 2 cores busy in the window";
    let (base, mut new) = (side(0, false), side(1, true));
    let all = format!("disturbed: all 4 runs of each side ({cause})");
    assert_eq!(told(&base, &new), [all]);
    // Without these runs none is left.
    let options = Options {
        is_clean: true,
        ..Options::default()
    };
    let clean = |base: &TrialTable, new: &TrialTable| page(&compare(base, new, &options).unwrap());
    let text = clean(&base, &new);
    let all = format!("\nexcluded as disturbed: all 4 runs of each side ({cause})\n");
    assert!(text.contains(&all), "{text}");
    let none_left = "\nno point has a rate to compare: all runs were excluded as disturbed\n";
    assert!(text.contains(none_left), "{text}");
    // The points of a side with a run that was not disturbed have a line each.
    new.rows[0].fixed.notes = None;
    let cause = "other processes kept 1.0 of 2 cores busy in the window";
    let of_base = format!("disturbed: all 4 runs of base ({cause})");
    let point = format!("disturbed: train.batch_size 8: 1 run of new ({cause})");
    assert_eq!(told(&base, &new)[..2], [of_base, point]);
    let text = clean(&base, &new);
    assert!(
        text.contains("compare: all runs of base were excluded as disturbed\n"),
        "{text}"
    );
    // The other side may be undisturbed as a whole.
    let mut quiet = side(1, true);
    quiet.rows.iter_mut().for_each(|row| row.fixed.notes = None);
    let one_side = format!("disturbed: all 4 runs of base ({cause})");
    assert_eq!(told(&base, &quiet), [one_side]);
}

#[test]
fn an_interval_without_meaning_prints_no_large_numbers() {
    let wild = one_after_the_other(&[100.0, 150.0, 60.0], &[110.0, 70.0, 160.0]);
    let text = page(&wild);
    assert!(
        text.contains("  too wide to be useful  ") && text.contains("  more than 100 %  "),
        "{text}"
    );
    let comparison = &wild.pairs[0].comparisons[0];
    assert!(
        comparison
            .interval
            .is_some_and(|[low, high]| high > 4.0 * low),
        "the numbers themselves are kept: {comparison:?}"
    );
    assert!(
        (comparison.ratio - comparison.new / comparison.base).abs() < 1e-12,
        "sides apart change as their means do: {comparison:?}"
    );
}

#[test]
fn runs_of_two_programs_are_not_recommended_to_be_rerun_as_they_are() {
    let run = |sum: &str| -> kiln_core::record::RunFile {
        let launch = serde_json::json!({
            "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": {}, "devices": {},
            "versions": {
                "kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial",
                "trial_program_sha256": null,
            },
            "environment": {},
            "programs": {
                "model": {"program": ["sh train.sh"], "files": {"train.sh": sum.repeat(32)}},
            },
        });
        let whole = serde_json::json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch],
        });
        serde_json::from_value(whole).unwrap()
    };
    let base = [100.0, 101.0, 99.0, 100.5, 99.5];
    let found = one_after_the_other(&base, &base);
    let text = |new: &str| {
        let facts = facts([Some(&run("5c")), Some(&run(new))], [None, None], [None; 2]);
        let page = ComparisonPage {
            base: "a",
            new: "b",
            facts: Some(&facts),
            can_rerun: true,
            has_data_by_name: false,
            found: &found,
        };
        page.text(PageStyle {
            width: None,
            has_color: false,
        })
    };
    let as_they_are = "`kiln compare --rerun a b`";
    assert!(text("5c").contains(as_they_are), "{}", text("5c"));
    let of_two = text("91");
    let with_both = "`kiln compare --rerun a b --base-set …`";
    assert!(
        !of_two.contains(as_they_are) && of_two.contains(with_both),
        "{of_two}"
    );
}

#[test]
fn folders_of_images_are_told_to_be_compared_by_names_and_lengths() {
    let rates = [100.0, 101.0, 99.0];
    let found = one_after_the_other(&rates, &rates);
    let text = |has_data_by_name| {
        let page = ComparisonPage {
            base: "a",
            new: "b",
            facts: Some(&[]),
            can_rerun: true,
            has_data_by_name,
            found: &found,
        };
        page.text(PageStyle {
            width: None,
            has_color: false,
        })
    };
    let words = "names and lengths of their files: contents were not compared";
    assert!(text(true).contains(words), "{}", text(true));
    assert!(!text(false).contains(words), "{}", text(false));
    assert!(now_different(&[], true).contains(words));
    assert!(!now_different(&[], false).contains(words));
}

#[test]
fn numbers_of_any_size_are_short_on_every_form_of_the_page_and_what_cannot_be_in_a_ratio_is_named()
{
    let side = |rate: f64, loss: f64, first: u64| {
        let full = |id: u64| {
            (
                TrialRow {
                    median_step_seconds: Some(1e-200),
                    train_loss: Some(loss),
                    ..row(id, rate)
                },
                &[][..],
            )
        };
        timed(table(&[], (1..=3).map(full).collect()), first, 2)
    };
    let found = compare(
        &side(1e100, 1e-140, 0),
        &side(1e-40, 1e140, 1),
        &Options::default(),
    )
    .unwrap();
    let page = ComparisonPage {
        base: "a",
        new: "b",
        facts: None,
        can_rerun: true,
        has_data_by_name: false,
        found: &found,
    };
    for form in [
        page.text(PageStyle {
            width: None,
            has_color: false,
        }),
        page.markdown(),
        page.csv(),
        format!("{:#}", page.value()),
    ] {
        let longest = form
            .split([' ', ',', '|', '\n'])
            .filter(|word| word.parse::<f64>().is_ok())
            .map(str::len)
            .max()
            .unwrap_or_default();
        assert!(longest <= 24, "{form}");
        assert!(
            !form.contains("inf ") && !form.contains("NaN") && !form.contains("inf,"),
            "{form}"
        );
    }
    assert!(
        found.pairs[0]
            .comparisons
            .iter()
            .all(|one| one.ratio.is_finite() && one.ratio > 0.0),
        "{found:?}"
    );
    let huge = compare(
        &side(1e308, 1.0, 0),
        &side(100.0, 1.0, 1),
        &Options::default(),
    )
    .unwrap();
    let text = ComparisonPage {
        base: "a",
        new: "b",
        facts: None,
        can_rerun: true,
        has_data_by_name: false,
        found: &huge,
    }
    .text(PageStyle {
        width: None,
        has_color: false,
    });
    assert!(
        text.contains(
            "not compared: all trials: no run of one side has a `samples_per_second` from 1e-150 \
             to 1e150"
        ),
        "{text}"
    );
    assert!(matches!(
        gate(&huge, ComparedMetric::Throughput),
        Gate::CannotTell(_)
    ));
    let none = compare(
        &side(100.0, 0.0, 0),
        &side(100.0, 1.0, 1),
        &Options::default(),
    )
    .unwrap();
    assert!(
        none.pairs[0]
            .losses_apart
            .is_some_and(|apart| apart > 1e6 && apart.is_finite()),
        "{none:?}"
    );
}

/// Both sides in turns, five runs each.
fn in_turns(base: &[f64], new: &[f64]) -> [TrialTable; 2] {
    [timed(rates(1, base), 0, 2), timed(rates(1, new), 1, 2)]
}

const STEADY: [f64; 5] = [100.0, 100.4, 99.7, 100.2, 99.9];

#[test]
fn other_boards_of_one_model_are_compared_and_said_to_be_others() {
    let [base, mut new] = in_turns(&STEADY, &STEADY);
    assert!(!page(&compare(&base, &new, &Options::default()).unwrap()).contains("boards:"));
    let on = |table: &mut TrialTable, uuids: &[&str]| {
        table
            .rows
            .iter_mut()
            .zip(uuids.iter().cycle())
            .for_each(|(row, uuid)| row.fixed.device_uuid = Some((*uuid).to_owned()));
    };
    on(&mut new, &["GPU-2"]);
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(
        (
            found.pairs[0].unlike.len(),
            found.pairs[0].comparisons[0].verdict
        ),
        (0, Verdict::Same)
    );
    assert_eq!(
        found.pairs[0].boards,
        Some([vec!["GPU-1".to_owned()], vec!["GPU-2".to_owned()]])
    );
    let said = "boards: base ran on GPU-1, new on GPU-2: other boards of the same model, and \
                differences between boards in speed and power affect these numbers; `kiln compare \
                --rerun a b --set run.devices=[GPU-1]` runs both on one";
    let text = page(&found);
    assert!(
        text.find(said)
            .is_some_and(|at| at < text.find("throughput (").unwrap()),
        "before the numbers: {text}"
    );
    assert!(
        ComparisonPage {
            base: "a",
            new: "b",
            facts: None,
            can_rerun: true,
            has_data_by_name: false,
            found: &found
        }
        .markdown()
        .contains("- boards: base ran on GPU-1")
    );
    // A board that one side alone met in some of its runs is another one too; two boards that share
    // each trial of both sides are the same two.
    on(&mut new, &["GPU-1", "GPU-2"]);
    assert!(
        page(&compare(&base, &new, &Options::default()).unwrap())
            .contains("base ran on GPU-1, new on GPU-1 and GPU-2")
    );
    let mut both = base.clone();
    on(&mut both, &["GPU-2;GPU-1"]);
    on(&mut new, &["GPU-1;GPU-2"]);
    assert_eq!(
        compare(&both, &new, &Options::default()).unwrap().pairs[0].boards,
        None
    );
    // Rows of another model are refused; boards are then not mentioned.
    let mut other = new.clone();
    other
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.device_name = Some("NVIDIA H100".into()));
    on(&mut other, &["GPU-3"]);
    let refused = page(&compare(&base, &other, &Options::default()).unwrap());
    assert!(
        refused.contains("not comparable: train.batch_size 8: device_name ")
            && !refused.contains("boards:"),
        "{refused}"
    );
    let across = Options {
        across: vec![RowFact::DeviceName],
        ..Options::default()
    };
    assert_eq!(
        compare(&base, &other, &across).unwrap().pairs[0].boards,
        None,
        "what is compared is the model"
    );
}

#[test]
fn runs_with_step_times_alone_have_the_sentences_on_order_and_drift_and_a_headline() {
    let steps = |mut table: TrialTable| {
        for TableRow { fixed: row, .. } in &mut table.rows {
            row.median_step_seconds = row.samples_per_second.take().map(|rate| 1.0 / rate);
        }
        table
    };
    let of = |base: TrialTable, new: TrialTable| {
        compare(&steps(base), &steps(new), &Options::default()).unwrap()
    };
    let text_and_markdown = |found: &Comparisons| {
        [
            page(found),
            ComparisonPage {
                base: "a",
                new: "b",
                facts: None,
                can_rerun: true,
                has_data_by_name: false,
                found,
            }
            .markdown(),
        ]
    };
    // A machine that becomes 1 % faster with each run: its steps become shorter.
    let (before, after) = (
        [100.0, 101.1, 101.9, 103.0, 104.1],
        [105.0, 106.1, 106.9, 108.2, 109.3],
    );
    for form in text_and_markdown(&of(
        timed(rates(1, &before), 0, 1),
        timed(rates(1, &after), 600, 1),
    )) {
        assert!(
            form.contains("order: the two sides ran one after the other"),
            "{form}"
        );
        assert!(
            form.contains("drift: the machine became 4.0 % faster during base"),
            "{form}"
        );
        assert!(
            form.contains("no point has a rate to compare; step-time: 1 cannot tell"),
            "{form}"
        );
    }
    let [base, new] = in_turns(&STEADY, &STEADY.map(|rate| rate * 0.7));
    let turns = of(base, new);
    for form in text_and_markdown(&turns) {
        assert!(
            form.contains(
                "order: the two sides ran in turns; 5 pairs of neighboring runs are compared"
            ),
            "{form}"
        );
        assert!(form.contains("step-time: 1 longer step"), "{form}");
    }
    assert!(
        reproduced(&turns)
            .sentence
            .ends_with("speed: changed at 1 of 1 point (1 slower, 0 faster)"),
        "{}",
        reproduced(&turns).sentence
    );
}

/// The same rows, each of which took so long.
fn lasting(mut table: TrialTable, seconds: f64) -> TrialTable {
    table
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.trial_seconds = Some(seconds));
    table
}

#[test]
fn sides_that_ran_at_the_same_time_on_one_machine_are_not_in_turns_and_nothing_is_told_of_their_speed()
 {
    let slower = STEADY.map(|rate| rate * 0.7);
    let sides = |seconds: f64| {
        [
            lasting(timed(rates(1, &STEADY), 0, 20), seconds),
            lasting(timed(rates(1, &slower), 10, 20), seconds),
        ]
    };
    let compared = |base: &TrialTable, new: &TrialTable, options: &Options| {
        compare(base, new, options).unwrap()
    };
    let design = |found: &Comparisons| found.pairs[0].comparisons[0].design.unwrap();
    // One ends before the next begins; a second that the clock does not tell is none.
    for seconds in [9.0, 10.0, 10.9] {
        let [base, new] = sides(seconds);
        let found = compared(&base, &new, &Options::default());
        assert_eq!(
            (design(&found), found.pairs[0].comparisons[0].verdict),
            (Design::Paired { pairs: 5 }, Verdict::Worse),
            "{seconds}"
        );
    }
    let [base, new] = sides(15.0);
    let found = compared(&base, &new, &Options::default());
    assert_eq!(
        (design(&found), found.pairs[0].comparisons[0].verdict),
        (Design::AtOnce, Verdict::CannotTell)
    );
    let text = page(&found);
    assert!(
        text.contains(
            "order: the two sides ran at the same time on one machine and disturbed each other: no \
             verdict on speed is given;"
        ),
        "{text}"
    );
    assert!(
        text.contains(
            ": 5 runs of base (trial 0000000001: ran at the same time as trial 0000000001 of new \
             and 4 more); 5 runs of new"
        ),
        "{text}"
    );
    assert!(
        !text.contains("in turns; ")
            && matches!(
                gate(&found, ComparedMetric::Throughput),
                Gate::CannotTell(_)
            ),
        "{text}"
    );
    assert!(
        compared(
            &base,
            &new,
            &Options {
                is_clean: true,
                ..Options::default()
            }
        )
        .pairs[0]
            .comparisons
            .is_empty()
    );
    // A machine of its own for each side; a run that is on both sides; rows that do not say how
    // long they took.
    let on = |mut table: TrialTable, host: &str| {
        table
            .rows
            .iter_mut()
            .for_each(|row| row.fixed.host_id = Some(host.to_owned()));
        table
    };
    let across = Options {
        across: vec![RowFact::HostId],
        ..Options::default()
    };
    assert_eq!(
        design(&compared(
            &on(base.clone(), "net-1"),
            &on(new.clone(), "net-2"),
            &across
        )),
        Design::Paired { pairs: 5 }
    );
    assert_eq!(
        design(&compared(
            &on(base.clone(), "net-1"),
            &on(new.clone(), "net-1"),
            &across
        )),
        Design::AtOnce
    );
    assert_eq!(
        compared(&base, &base, &Options::default()).pairs[0].comparisons[0].verdict,
        Verdict::Same
    );
    let mut short = new.clone();
    short
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.trial_seconds = None);
    assert_eq!(
        design(&compared(&base, &short, &Options::default())),
        Design::Paired { pairs: 5 }
    );
    // A trial of another point, or one that failed, took its share as well.
    let mut other = lasting(timed(rates(50, &[1.0; 5]), 5, 20), 8.0);
    other
        .rows
        .iter_mut()
        .for_each(|row| (row.axes, row.fixed.outcome) = (vec!["9".to_owned()], Outcome::Failed));
    let [base, mut beside] = sides(9.0);
    beside.rows.extend(other.rows);
    assert_eq!(
        design(&compared(&base, &beside, &Options::default())),
        Design::AtOnce
    );
}

#[test]
fn single_runs_at_the_same_time_are_no_pair_and_are_named() {
    let twelve: Vec<f64> = STEADY
        .iter()
        .chain(&STEADY)
        .chain(&STEADY[..2])
        .copied()
        .collect();
    let [base, mut new] = [0, 10].map(|first| lasting(timed(rates(1, &twelve), first, 20), 9.0));
    new.rows[5].fixed.trial_seconds = Some(15.0);
    let found = compare(&base, &new, &Options::default()).unwrap();
    // The sixth of new and the seventh of base; their neighbors pair with the runs after them.
    assert_eq!(
        found.pairs[0].comparisons[0].design,
        Some(Design::Paired { pairs: 10 })
    );
    assert_eq!(found.pairs[0].disturbed.each_ref().map(Vec::len), [1, 1]);
    assert!(
        page(&found).contains("ran at the same time as trial 0000000007 of base"),
        "{}",
        page(&found)
    );
}

#[test]
fn a_gate_does_not_pass_for_the_same_runs_twice_and_the_page_says_so() {
    let [base, other] = in_turns(&STEADY, &STEADY);
    let same = compare(&base, &base, &Options::default()).unwrap();
    assert_eq!(
        (same.pairs[0].shared, same.pairs[0].comparisons[0].verdict),
        (5, Verdict::Same)
    );
    assert!(matches!(
        gate(&same, ComparedMetric::Throughput),
        Gate::CannotTell(_)
    ));
    assert!(
        page(&same).contains("order: 5 runs in both tables: the same run"),
        "{}",
        page(&same)
    );
    assert!(
        page(&same).contains("no gate passes there: BASE and NEW are one run; name two runs\n")
            && page(&same).matches("order: ").count() == 1,
        "{}",
        page(&same)
    );
    // With enough other runs on both sides, their order counts.
    let mut more = base.clone();
    more.rows[2..].clone_from_slice(&other.rows[2..]);
    let partly = page(&compare(&base, &more, &Options::default()).unwrap());
    assert!(
        partly.contains("order: 2 runs in both tables") && !partly.contains("are one run"),
        "{partly}"
    );
    assert!(partly.matches("order: ").count() > 1, "{partly}");
    let rerun = compare(&base, &other, &Options::default()).unwrap();
    assert_eq!(
        (
            rerun.pairs[0].shared,
            gate(&rerun, ComparedMetric::Throughput)
        ),
        (0, Gate::Pass)
    );
}

#[test]
fn rows_that_a_run_kept_are_those_of_the_run_before() {
    let mut base = lasting(timed(rates(1, &STEADY), 0, 20), 9.0);
    for row in &mut base.rows {
        row.fixed.fallback_of = Some(TrialId("planned".to_owned()));
    }
    let mut new = base.clone();
    for row in &mut new.rows {
        row.fixed.number += 3;
        row.fixed.block = None;
        row.fixed.fallback_of = None;
    }
    let found = compare(&base, &new, &Options::default()).unwrap();
    let pair = &found.pairs[0];
    assert_eq!((pair.shared, pair.is_one_run), (5, true));
    new.rows[0].fixed.train_loss = Some(0.125);
    let found = compare(&base, &new, &Options::default()).unwrap();
    let pair = &found.pairs[0];
    assert_eq!((pair.shared, pair.is_one_run), (4, false));
}

#[test]
fn a_run_that_kept_all_rows_of_another_has_nothing_to_compare_with_it() {
    let told = "one of these runs kept 5 rows from the other";
    let base = lasting(timed(rates(1, &STEADY), 0, 20), 9.0);
    let mut added = lasting(timed(rates(11, &STEADY), 210, 20), 9.0).rows;
    for row in &mut added {
        row.axes = vec!["16".to_owned()];
    }
    let mut new = base.clone();
    new.rows.extend(added);
    let of_records = |new: &TrialTable, is_one_record| {
        let options = Options {
            is_one_record,
            ..Options::default()
        };
        compare(&base, new, &options).unwrap()
    };
    for found in [
        of_records(&new, None),
        of_records(&new, Some(false)),
        of_records(&base, Some(false)),
    ] {
        let one = &found.pairs[0].comparisons[0];
        assert_eq!(
            (found.pairs.len(), one.verdict),
            (1, Verdict::NotComparable)
        );
        let page = page(&found);
        assert!(
            page.contains(told)
                && page.contains("`kiln run FILE --fresh` makes a run to compare with")
                && !page.contains("are one run")
                && !page.contains("sweep.repeats"),
            "{page}"
        );
    }
    // An earlier state of the run has fewer rows.
    let same = page(&of_records(&new, Some(true)));
    assert!(
        same.contains("BASE and NEW are one run") && !same.contains(told),
        "{same}"
    );
}

#[test]
fn kept_runs_count_on_neither_side_and_added_repeats_alone_get_no_verdict() {
    let base = lasting(timed(rates(1, &STEADY), 0, 20), 9.0);
    let slower = STEADY.map(|rate| rate * 0.5);
    let added = lasting(timed(rates(11, &slower), 210, 20), 9.0);
    let with = |rows: &TrialTable, more: &TrialTable| {
        let mut table = rows.clone();
        table.rows.extend(more.rows.clone());
        table
    };
    // NEW is BASE and more repeats.
    let found = compare(&base, &with(&base, &added), &Options::default()).unwrap();
    let one = &found.pairs[0].comparisons[0];
    assert_eq!(
        (found.pairs[0].shared, one.verdict),
        (5, Verdict::NotComparable)
    );
    let text = page(&found);
    assert!(text.contains("the same attempts (5 rows)"), "{text}");
    assert!(!text.contains("in turns"), "{text}");
    // Both have runs of their own, in turns: these alone are compared.
    let own = lasting(timed(rates(21, &STEADY), 200, 20), 9.0);
    let sides = [with(&base, &own), with(&base, &added)];
    let found = compare(&sides[0], &sides[1], &Options::default()).unwrap();
    let one = &found.pairs[0].comparisons[0];
    assert_eq!(
        (one.base_runs, one.new_runs, one.verdict, one.design),
        (5, 5, Verdict::Worse, Some(Design::Paired { pairs: 5 }))
    );
    assert_eq!(found.pairs[0].shared, 5);
    assert!(page(&found).contains("5 runs in both tables"));
}

#[test]
fn a_point_that_was_kept_as_a_whole_has_no_verdict_beside_another_that_ran() {
    let [base, other] = in_turns(&STEADY, &STEADY);
    let second = |mut table: TrialTable| {
        for (place, row) in table.rows.iter_mut().enumerate() {
            row.axes = vec!["16".to_owned()];
            row.fixed.trial = TrialId(format!("second{place}"));
        }
        table.rows
    };
    let (mut old, mut new) = (base.clone(), base.clone());
    old.rows.extend(second(base));
    new.rows.extend(second(other));
    let found = compare(&old, &new, &Options::default()).unwrap();
    let verdicts = found.pairs.iter().map(|pair| pair.comparisons[0].verdict);
    assert_eq!(
        verdicts.collect::<Vec<_>>(),
        [Verdict::NotComparable, Verdict::Same]
    );
}

#[test]
fn attempts_that_were_read_again_are_not_repeats_and_get_no_verdict() {
    let base = lasting(timed(rates(1, &STEADY), 0, 20), 9.0);
    let mut new = base.clone();
    for row in &mut new.rows {
        row.fixed.samples_per_second = row.fixed.samples_per_second.map(|rate| 2.0 * rate);
        row.fixed.notes = Some("read_again: metrics read again from the output".to_owned());
    }
    let found = compare(&base, &new, &Options::default()).unwrap();
    let pair = &found.pairs[0];
    assert_eq!((pair.shared, pair.is_one_run), (5, false));
    assert_eq!(pair.disturbed.each_ref().map(Vec::len), [0, 0]);
    let mut comparisons = pair.comparisons.iter();
    assert!(!pair.comparisons.is_empty());
    assert!(comparisons.all(|one| one.verdict == Verdict::NotComparable));
    let page = page(&found);
    let told = "both sides have the same attempts (5 rows), whose output was read twice";
    assert!(page.contains(told), "{page}");
    assert!(!page.contains("in turns"), "{page}");
    assert!(matches!(
        gate(&found, ComparedMetric::Throughput),
        Gate::CannotTell(_)
    ));
    // The same rows without that note are of other runs.
    for row in &mut new.rows {
        row.fixed.notes = None;
    }
    let others = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(others.pairs[0].shared, 0);
}

#[test]
fn a_gate_cannot_tell_where_one_side_alone_was_disturbed() {
    let [mut base, new] = in_turns(&STEADY, &STEADY);
    for row in &mut base.rows {
        (row.fixed.throttled_fraction, row.fixed.throttle_reasons) =
            (Some(0.95), Some("hw_thermal_slowdown".into()));
    }
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(found.pairs[0].comparisons[0].verdict, Verdict::Same);
    assert!(
        matches!(gate(&found, ComparedMetric::Throughput), Gate::CannotTell(why) if why[0].contains("disturbed on one side"))
    );
}

#[test]
fn a_gate_counts_the_disturbed_runs_of_each_side_and_clean_is_advised_where_enough_are_left() {
    let answer = |base_disturbed: usize, new_disturbed: usize| {
        let [mut base, mut new] = in_turns(&STEADY, &STEADY);
        let sides = [(&mut base, base_disturbed), (&mut new, new_disturbed)];
        for (table, count) in sides {
            for row in table.rows.iter_mut().take(count) {
                (row.fixed.throttled_fraction, row.fixed.throttle_reasons) =
                    (Some(0.95), Some("hw_thermal_slowdown".into()));
            }
        }
        let found = compare(&base, &new, &Options::default()).unwrap();
        let is_advised = page(&found).contains("`--clean`");
        let Gate::CannotTell(why) = gate(&found, ComparedMetric::Throughput) else {
            panic!("{found:?}");
        };
        assert_eq!(is_advised, why[0].contains("`--clean`"), "{}", page(&found));
        why[0].clone()
    };
    assert!(
        answer(5, 2).ends_with("(5 of 5 runs of base and 2 of 5 of new were disturbed)"),
        "{}",
        answer(5, 2)
    );
    assert!(
        answer(2, 0).ends_with(
            "(disturbed on one side: 2 of 5 runs of base and 0 of 5 of new; `--clean` judges \
             without these runs)"
        ),
        "{}",
        answer(2, 0)
    );
}

#[test]
fn times_are_not_compared_with_those_of_a_processor_that_a_table_does_not_tell() {
    for silent in [0, 1] {
        let mut sides = in_turns(&STEADY, &STEADY);
        for (side, table) in sides.iter_mut().enumerate() {
            for row in &mut table.rows {
                row.fixed.device_uuid = None;
                row.fixed.processor = (side != silent).then(|| "AuthenticAMD 26 2 1".to_owned());
            }
        }
        let name = ["base", "new"][silent];
        let [base, new] = sides;
        let found = compare(&base, &new, &Options::default()).unwrap();
        let rate = &found.pairs[0].comparisons[0];
        assert_eq!(rate.verdict, Verdict::NotComparable);
        assert!(
            rate.refusal
                .as_ref()
                .is_some_and(|why| why.contains(&format!("no run of {name} tells its processor"))),
            "{rate:?}"
        );
        assert!(matches!(
            gate(&found, ComparedMetric::Throughput),
            Gate::CannotTell(_)
        ));
        let loss = found.pairs[0].comparisons.iter();
        assert!(
            loss.filter(|one| one.metric == ComparedMetric::Loss)
                .all(|one| one.refusal.is_none())
        );
        let across = Options {
            across: vec![RowFact::Processor],
            ..Options::default()
        };
        let found = compare(&base, &new, &across).unwrap();
        assert_eq!(found.pairs[0].comparisons[0].verdict, Verdict::Same);
    }
}

#[test]
fn shares_of_a_peak_and_counts_of_work_are_not_compared_across_formulas() {
    let with_kinds = |kinds: [&str; 2], formulas: [&str; 2], sources: [&str; 2]| {
        let mut sides = in_turns(&STEADY, &STEADY);
        for (side, table) in sides.iter_mut().enumerate() {
            for row in &mut table.rows {
                (row.fixed.mfu, row.fixed.flops_per_sample) = (Some(0.4), Some(100));
                row.fixed.model_kind = kinds[side].to_owned();
                row.fixed.flops_formula = Some(formulas[side].to_owned());
                row.fixed.peak_source = Some(sources[side].to_owned());
            }
        }
        let columns = ["mfu", "flops_per_sample"];
        let options = Options {
            columns: columns
                .map(|name| ColumnMetric::named(name, true).unwrap())
                .into(),
            ..Options::default()
        };
        let found = compare(&sides[0], &sides[1], &options).unwrap();
        let refusal = |column: &str| {
            let mut all = found.pairs[0].comparisons.iter();
            let one = all.find(|one| one.column == column);
            one.unwrap().refusal.clone().unwrap_or_default()
        };
        [refusal("mfu"), refusal("flops_per_sample")]
    };
    let with = |formulas, sources| with_kinds(["gpt", "gpt"], formulas, sources);
    let same = with(["6W", "6W"], ["measured", "measured"]);
    assert_eq!(same, ["", ""]);
    let formula = with(["6N", "6W"], ["measured", "measured"]);
    assert!(
        formula
            .iter()
            .all(|why| why == "its `flops_formula` is 6N in base and 6W in new; rates compare"),
        "{formula:?}"
    );
    let kinds = with_kinds(["gpt", "lstm"], ["6W", "6N"], ["measured", "measured"]);
    assert_eq!(kinds, ["", ""], "each kind has its own formula");
    let [mfu, flops] = with(["6W", "6W"], ["table", "measured"]);
    assert_eq!(
        (mfu.as_str(), flops.as_str()),
        (
            "its `peak_source` is table in base and measured in new; rates compare",
            ""
        )
    );
}

#[test]
fn a_table_without_formulas_counted_by_the_first_ones() {
    let refusal = |kind: &str, formula: &str| {
        let mut sides = in_turns(&STEADY, &STEADY);
        for (table, version) in sides.iter_mut().zip(["trials/1", "trials/12"]) {
            for TableRow { fixed: row, .. } in &mut table.rows {
                row.kiln_table = version.to_owned();
                row.model_kind = kind.to_owned();
                row.flops_per_sample = Some(100);
                row.flops_formula = (version != "trials/1").then(|| formula.to_owned());
            }
        }
        let options = Options {
            columns: vec![ColumnMetric::named("flops_per_sample", true).unwrap()],
            ..Options::default()
        };
        let found = compare(&sides[0], &sides[1], &options).unwrap();
        let mut all = found.pairs[0].comparisons.iter();
        let one = all.find(|one| one.column == "flops_per_sample");
        one.unwrap().refusal.clone().unwrap_or_default()
    };
    assert_eq!(
        refusal("gpt", "6W+12LHQT"),
        "its `flops_formula` is 6N+12LHQT in base and 6W+12LHQT in new; rates compare"
    );
    assert_eq!(refusal("gpt", "6N+12LHQT"), "");
    assert!(refusal("mlp", "6W").contains("6N in base and 6W in new"));
    assert_eq!(refusal("resnet", "6MAC"), "", "it has never changed");
}

#[test]
fn a_number_whose_meaning_changed_with_a_version_is_not_compared_with_one_from_before() {
    let refusals = |versions: [&str; 2], evaluation_seconds: Option<f64>| {
        let mut sides = in_turns(&STEADY, &STEADY);
        for (table, version) in sides.iter_mut().zip(versions) {
            for TableRow { fixed: row, .. } in &mut table.rows {
                row.kiln_table = version.to_owned();
                row.evaluation_seconds = evaluation_seconds;
                row.device_uuid = Some("GPU-1".into());
                (row.window_seconds, row.energy_counter_joules) = (Some(10.0), Some(5000.0));
                row.data_wait_fraction = Some(0.2);
            }
        }
        let options = Options {
            columns: vec![ColumnMetric::named("data_wait_fraction", true).unwrap()],
            ..Options::default()
        };
        let found = compare(&sides[0], &sides[1], &options).unwrap();
        ["throughput", "energy", "data_wait_fraction"].map(|name| {
            let mut all = found.pairs[0].comparisons.iter();
            let one = all.find(|one| one.metric.name() == name).expect(name);
            one.refusal.clone().unwrap_or_default()
        })
    };
    let nothing = ["", "", ""];
    assert_eq!(refusals(["trials/10", "trials/10"], Some(1.0)), nothing);
    assert_eq!(refusals(["trials/8", "trials/9"], Some(1.0)), nothing);
    let [rate, energy, wait] = refusals(["trials/9", "trials/10"], Some(1.0));
    assert_eq!(rate, "");
    assert_eq!(
        energy,
        "base is of a table before `trials/10`, in which the power during evaluations and \
         checkpoints was interpolated, up to a fifth too low"
    );
    assert!(wait.starts_with("base is of a table before"), "{wait}");
    let of_one = refusals(["trials/9", "trials/9"], Some(1.0));
    assert_eq!(of_one, nothing, "both have the old meaning");
    let [_, uncut, wait] = refusals(["trials/10", "trials/9"], None);
    assert_eq!(uncut, "", "nothing interrupted the window");
    assert!(wait.starts_with("new is of a table before"), "{wait}");
}

#[test]
fn memory_of_one_process_is_not_compared_with_that_of_all() {
    let refusal = |versions: [&str; 2], kind: &str| {
        let mut sides = in_turns(&STEADY, &STEADY);
        for (table, version) in sides.iter_mut().zip(versions) {
            for TableRow { fixed: row, .. } in &mut table.rows {
                row.kiln_table = version.to_owned();
                row.model_kind = kind.to_owned();
                row.device_uuid = None;
                row.peak_resident_bytes = Some(1 << 20);
            }
        }
        let found = compare(&sides[0], &sides[1], &Options::default()).unwrap();
        let mut all = found.pairs[0].comparisons.iter();
        let one = all.find(|one| one.column == "peak_resident_bytes");
        one.unwrap().refusal.clone().unwrap_or_default()
    };
    assert_eq!(
        refusal(["trials/5", "trials/12"], "gpt"),
        "base is of a table before `trials/7`, in which only one process of the trial counted (in \
         `trials/6` perhaps all of them)"
    );
    let of_either = refusal(["trials/7", "trials/6"], "gpt");
    assert!(of_either.starts_with("new is of a table"), "{of_either}");
    for same in [["trials/6", "trials/6"], ["trials/4", "trials/5"]] {
        assert_eq!(refusal(same, "gpt"), "");
    }
    assert_eq!(refusal(["trials/9", "trials/12"], "gpt"), "");
    let of_command = refusal(["trials/9", "trials/12"], "command");
    assert!(
        of_command.contains("what `prepare` of a command needed"),
        "{of_command}"
    );
}

#[test]
fn an_accuracy_is_judged_by_the_direction_of_its_column() {
    let sides = |of_new: &dyn Fn(f64) -> f64| {
        let [mut base, mut new] = in_turns(&STEADY, &STEADY);
        for (row, other) in base.rows.iter_mut().zip(&mut new.rows) {
            let share = row.fixed.samples_per_second.unwrap() / 102.0;
            for (row, value) in [(row, share), (other, of_new(share))] {
                row.fixed.valid_top1 = Some(value);
                row.fixed.valid_mean_absolute_error = Some(value);
            }
        }
        [base, new]
    };
    let metric = |found: &Comparisons, name: &str| {
        let mut metrics = found.metrics.iter().copied();
        metrics.find(|metric| metric.name() == name).unwrap()
    };
    let [base, new] = sides(&|share| share / 2.0);
    let found = compare(&base, &new, &Options::default()).unwrap();
    let verdict = |name: &str| {
        let mut all = found.pairs[0].comparisons.iter();
        all.find(|one| one.column == name).unwrap().verdict
    };
    assert_eq!(verdict("valid_top1"), Verdict::Worse);
    assert_eq!(verdict("valid_mean_absolute_error"), Verdict::Better);
    let top1 = metric(&found, "valid_top1");
    assert!(matches!(gate(&found, top1), Gate::Fail(_)));
    let text = page(&found);
    assert!(
        text.contains("\nvalid_top1\n") && text.contains("worse accuracy"),
        "{text}"
    );
    assert!(found.has(top1) && !found.has(metric(&found, "valid_bleu4")));
    // Asked for by its name, it is there once.
    let options = Options {
        columns: vec![ColumnMetric::named("valid_top1", true).unwrap()],
        ..Options::default()
    };
    let asked = compare(&base, &new, &options).unwrap();
    let all = asked.pairs[0].comparisons.iter();
    assert_eq!(all.filter(|one| one.column == "valid_top1").count(), 1);
    // One side without it passes no gate.
    let [base, mut new] = sides(&|share| share);
    for row in &mut new.rows {
        row.fixed.valid_top1 = None;
    }
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert!(found.has(top1) && matches!(gate(&found, top1), Gate::CannotTell(_)));
}

/// Two sides in turns, each with these values of an accuracy and of an error.
fn with_accuracies(values: [[[f64; 5]; 2]; 2]) -> Comparisons {
    let mut tables = in_turns(&STEADY, &STEADY);
    for (table, [top1, error]) in tables.iter_mut().zip(values) {
        for (place, row) in table.rows.iter_mut().enumerate() {
            row.fixed.valid_top1 = Some(top1[place]);
            row.fixed.valid_mean_absolute_error = Some(error[place]);
        }
    }
    let [base, new] = tables;
    compare(&base, &new, &Options::default()).unwrap()
}

fn accuracy(name: &str) -> ComparedMetric {
    let mut all = ComparedMetric::accuracies();
    all.find(|metric| metric.name() == name).unwrap()
}

const GOOD: [f64; 5] = [0.90, 0.91, 0.92, 0.90, 0.91];

#[test]
fn an_accuracy_that_is_0_in_all_runs_of_a_side_is_judged() {
    let zero = [0.0; 5];
    let judged = |base: [f64; 5], new: [f64; 5]| {
        let found = with_accuracies([[base, base], [new, new]]);
        ["valid_top1", "valid_mean_absolute_error"].map(|name| {
            let metric = accuracy(name);
            let mut all = found.pairs[0].comparisons.iter();
            let one = all.find(|one| one.metric == metric).unwrap();
            (one.verdict, gate(&found, metric))
        })
    };
    let pass = |verdict: Verdict| (verdict, Gate::Pass);
    let fail = |why: &str| (Verdict::Worse, Gate::Fail(vec![why.to_owned()]));
    assert_eq!(judged(zero, zero), [Verdict::Same; 2].map(pass));
    let fell = fail("train.batch_size 8 (fell from 0.908 to 0)");
    assert_eq!(judged(GOOD, zero), [fell, pass(Verdict::Better)]);
    let rose = fail("train.batch_size 8 (rose from 0 to 0.908)");
    assert_eq!(judged(zero, GOOD), [pass(Verdict::Better), rose]);
    let text = page(&with_accuracies([[zero, zero], [GOOD, GOOD]]));
    assert!(
        text.contains("better accuracy") && !text.contains("+inf"),
        "{text}"
    );
    // Of some runs alone: neither a rise nor a fall is clear.
    let few = [0.0, 0.01, 0.02, 0.01, 0.0];
    for (verdict, gate) in judged(zero, few).into_iter().chain(judged(few, zero)) {
        assert_eq!(verdict, Verdict::NotComparable);
        assert!(matches!(gate, Gate::CannotTell(_)), "{gate:?}");
    }
    let refused = [
        (zero, few, "base and in some of new"),
        (few, zero, "new and in some of base"),
    ];
    for (base, new, all) in refused {
        let text = page(&with_accuracies([[base, base], [new, new]]));
        let words = format!("`valid_top1` is 0 in all runs of {all}");
        assert!(text.contains(&words) && !text.contains("1e-150"), "{text}");
    }
}

#[test]
fn a_rise_from_0_that_may_be_chance_is_ambiguous() {
    let verdict = |runs: usize, points: u64| {
        let mut tables = in_turns(&STEADY, &STEADY);
        for (table, top1) in tables.iter_mut().zip([[0.0; 5], GOOD]) {
            table.rows.truncate(runs);
            for (place, row) in table.rows.iter_mut().enumerate() {
                row.fixed.valid_top1 = Some(top1[place]);
            }
            let rows = table.rows.clone();
            for point in 1..points {
                for mut row in rows.iter().cloned() {
                    row.axes = vec![format!("8{point}")];
                    row.fixed.trial = TrialId(format!("{:010x}", 100 * point + row.fixed.number));
                    row.fixed.valid_top1 = None;
                    row.fixed.valid_mean_absolute_error = row.fixed.samples_per_second;
                    table.rows.push(row);
                }
            }
        }
        let [base, new] = tables;
        let found = compare(&base, &new, &Options::default()).unwrap();
        let metric = accuracy("valid_top1");
        let mut all = found.pairs[0].comparisons.iter();
        let one = all.find(|one| one.metric == metric).unwrap();
        (one.verdict, gate(&found, metric))
    };
    // 2 of 20 ways to deal six runs to two sides are so far apart, and 2 of 252 for ten.
    let (verdict_of_three, gate) = verdict(3, 1);
    assert_eq!(verdict_of_three, Verdict::Ambiguous);
    assert!(matches!(gate, Gate::CannotTell(why) if why[0].contains("ambiguous")));
    assert_eq!(verdict(5, 1), (Verdict::Better, Gate::Pass));
    assert_eq!(verdict(5, 20).0, Verdict::Ambiguous);
}

#[test]
fn an_accuracy_at_its_ceiling_with_every_seed_is_judged() {
    let verdict = |values: [[f64; 5]; 2]| {
        let mut tables = in_turns(&STEADY, &STEADY);
        for (table, values) in tables.iter_mut().zip(values) {
            for (place, row) in table.rows.iter_mut().enumerate() {
                row.fixed.seed = place as u64 + 1;
                row.fixed.valid_top1 = Some(values[place]);
            }
        }
        let [base, new] = tables;
        let found = compare(&base, &new, &Options::default()).unwrap();
        let metric = accuracy("valid_top1");
        let mut all = found.pairs[0].comparisons.iter();
        let one = all.find(|one| one.metric == metric).unwrap();
        (one.verdict, one.interval.is_some())
    };
    // By an interval, not by a test.
    assert_eq!(verdict([GOOD, [1.0; 5]]), (Verdict::Better, true));
    assert_eq!(verdict([[1.0; 5], GOOD]), (Verdict::Worse, true));
    assert_eq!(verdict([GOOD, [0.95; 5]]), (Verdict::Better, false));
    assert_eq!(verdict([[0.8; 5], [1.0; 5]]), (Verdict::TooFewRuns, false));
}

/// Two sides in turns, with another seed for each run, or one for all, and these losses.
fn with_losses(losses: [[f64; 5]; 2], has_seeds: bool) -> [TrialTable; 2] {
    let mut tables = in_turns(&STEADY, &STEADY);
    for (table, losses) in tables.iter_mut().zip(losses) {
        for (place, row) in table.rows.iter_mut().enumerate() {
            row.fixed.seed = if has_seeds { place as u64 + 1 } else { 1 };
            row.fixed.valid_loss = Some(losses[place]);
        }
    }
    tables
}

#[test]
fn a_loss_that_is_asked_for_by_name_has_the_threshold_of_a_loss() {
    let losses = [2.0, 2.001, 1.999, 2.002, 2.0];
    let [mut base, mut new] = with_losses([losses, losses.map(|loss| 1.02 * loss)], true);
    for row in base.rows.iter_mut().chain(&mut new.rows) {
        row.fixed.lowest_valid_loss = row.fixed.valid_loss;
        let loss = row.fixed.valid_loss.unwrap();
        for name in ["test_loss", "perplexity"] {
            row.fixed.metrics.insert(name.to_owned(), loss);
        }
    }
    let names = ["valid_loss", "lowest_valid_loss", "metric.test_loss"];
    let named = |name: &str| ColumnMetric::named(name, false).unwrap();
    let options = Options {
        columns: [&names[..], &["metric.perplexity"]]
            .concat()
            .into_iter()
            .map(named)
            .collect(),
        ..Options::default()
    };
    let found = compare(&base, &new, &options).unwrap();
    let verdict = |metric: ComparedMetric| {
        let mut all = found.pairs[0].comparisons.iter();
        all.find(|one| one.metric == metric).unwrap().verdict
    };
    assert_eq!(verdict(ComparedMetric::Loss), Verdict::Worse);
    for name in names {
        assert_eq!(
            verdict(ComparedMetric::Column(named(name))),
            Verdict::Worse,
            "{name}"
        );
    }
    let perplexity = ComparedMetric::Column(named("metric.perplexity"));
    assert_eq!(verdict(perplexity), Verdict::Same);
}

#[test]
fn runs_of_other_seeds_with_one_loss_count_as_one() {
    let judged = |losses: [[f64; 5]; 2], has_seeds: bool| {
        let [base, new] = with_losses(losses, has_seeds);
        let found = compare(&base, &new, &Options::default()).unwrap();
        let mut all = found.pairs[0].comparisons.iter();
        let loss = all.find(|one| one.metric == ComparedMetric::Loss);
        let verdict = loss.unwrap().verdict;
        (verdict, gate(&found, ComparedMetric::Loss), page(&found))
    };
    let varied = [2.0, 2.01, 1.99, 2.02, 2.0];
    let why = "all seeds gave the same number: does the program use its seed?";
    let near = [2.5, 2.5 + 1e-7, 2.5 - 1e-7, 2.5, 2.5];
    for losses in [[[2.0; 5], [2.5; 5]], [[2.0; 5], near], [[2.0; 5], varied]] {
        let (verdict, gate, page) = judged(losses, true);
        assert_eq!(verdict, Verdict::TooFewRuns, "{losses:?}");
        let untold = format!("train.batch_size 8 (too few runs: {why})");
        assert_eq!(gate, Gate::CannotTell(vec![untold]));
        let remark = format!("too few runs: train.batch_size 8: `valid_loss`: {why}\n");
        assert!(
            page.contains(&remark) && !page.contains("a verdict needs 3 runs"),
            "{page}"
        );
    }
    // Both sides have one number, and repeats of one seed should be equal.
    for losses in [[[2.0; 5]; 2], [[2.5; 5], near]] {
        let (same, gate, page) = judged(losses, true);
        assert_eq!((same, gate), (Verdict::Same, Gate::Pass));
        assert!(!page.contains(why), "{page}");
    }
    // A test tells the one number from runs that vary and lie apart from it, by enough to count.
    for (losses, wanted) in [
        ([[2.5; 5], varied], Verdict::Better),
        ([varied, [2.5; 5]], Verdict::Worse),
        ([varied, [2.03; 5]], Verdict::Worse),
        (
            [[2.0; 5], varied.map(|loss| loss + 0.011)],
            Verdict::Ambiguous,
        ),
    ] {
        let (verdict, gate, page) = judged(losses, true);
        assert_eq!(verdict, wanted, "{losses:?}");
        assert_eq!(gate == Gate::Pass, wanted == Verdict::Better, "{gate:?}");
        assert!(!page.contains(why), "{page}");
    }
    assert_eq!(judged([[2.0; 5], [2.5; 5]], false).0, Verdict::Worse);
}

#[test]
fn an_accuracy_that_is_0_in_some_runs_is_judged_by_its_differences() {
    let judged = |base: [f64; 5], new: [f64; 5]| {
        let found = with_accuracies([[base, base], [new, new]]);
        ["valid_top1", "valid_mean_absolute_error"].map(|name| {
            let metric = accuracy(name);
            let mut all = found.pairs[0].comparisons.iter();
            let one = all.find(|one| one.metric == metric).unwrap().clone();
            (one.verdict, gate(&found, metric), one)
        })
    };
    let is_pass = |gate: &Gate| matches!(gate, Gate::Pass);
    let is_fail = |gate: &Gate| matches!(gate, Gate::Fail(_));
    let few = [0.0, 0.01, 0.02, 0.01, 0.0];
    let [(top1, gate_of_top1, one), (error, gate_of_error, _)] = judged(few, GOOD);
    assert_eq!((top1, error), (Verdict::Better, Verdict::Worse));
    assert!(is_pass(&gate_of_top1) && is_fail(&gate_of_error));
    assert!((one.base - 0.008).abs() < 1e-12 && (one.new - 0.908).abs() < 1e-12);
    assert!((one.ratio - 0.908 / 0.008).abs() < 1e-9, "{}", one.ratio);
    let [low, high] = one.interval.unwrap();
    assert!(
        low > 1.0 && low < one.ratio && one.ratio < high,
        "{low} {high}"
    );
    let [(top1, gate_of_top1, _), (error, gate_of_error, _)] = judged(GOOD, few);
    assert_eq!((top1, error), (Verdict::Worse, Verdict::Better));
    assert!(is_fail(&gate_of_top1) && is_pass(&gate_of_error));
    // One run of five may be chance.
    let [_, one_less, ..] = GOOD;
    let mixed = [0.0, one_less, one_less, one_less, one_less];
    for (verdict, gate, one) in judged(GOOD, mixed).into_iter().chain(judged(mixed, mixed)) {
        assert_eq!(verdict, Verdict::Ambiguous);
        assert!(matches!(gate, Gate::CannotTell(_)), "{gate:?}");
        assert!(one.interval.unwrap()[0] >= 0.0);
    }
    let text = page(&with_accuracies([[few, few], [GOOD, GOOD]]));
    let words = "differences: train.batch_size 8: `valid_top1` is 0 in some runs, so its means are \
                 arithmetic";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_gate_about_several_metrics_names_a_point_once_with_those_that_failed() {
    let metrics = ["valid_top1", "valid_mean_absolute_error"].map(accuracy);
    let half = GOOD.map(|value| value / 2.0);
    let failed =
        |values: [[[f64; 5]; 2]; 2]| gate_of_all(&with_accuracies(values), &metrics).sentence();
    assert_eq!(
        failed([[GOOD, half], [half, GOOD]]),
        "fail at 1 point: train.batch_size 8 (`valid_top1`, `valid_mean_absolute_error`)"
    );
    assert_eq!(
        failed([[GOOD, GOOD], [half, half]]),
        "fail at 1 point: train.batch_size 8 (`valid_top1`)"
    );
}

#[test]
fn a_gate_cannot_tell_where_one_side_lost_the_number_that_was_asked_for() {
    let [mut base, mut new] = in_turns(&STEADY, &STEADY);
    for (row, other) in base.rows.iter_mut().zip(&mut new.rows) {
        (row.fixed.train_loss, row.fixed.valid_loss) = (Some(1.0), Some(1.2));
        (other.fixed.train_loss, other.fixed.valid_loss) = (Some(1.0), None);
    }
    let found = compare(&base, &new, &Options::default()).unwrap();
    let loss = found.pairs[0]
        .comparisons
        .iter()
        .find(|comparison| comparison.metric == ComparedMetric::Loss)
        .unwrap();
    assert_eq!(
        (loss.column, loss.passed_over, loss.verdict),
        ("train_loss", Some("valid_loss"), Verdict::Same)
    );
    assert!(
        matches!(gate(&found, ComparedMetric::Loss), Gate::CannotTell(why) if why[0].contains("only one side has `valid_loss`"))
    );
    assert_eq!(
        (found.pairs[0].losses, found.pairs[0].equal_losses),
        (5, 0),
        "half of the losses are not equal losses"
    );
}

#[test]
fn a_page_that_says_nothing_of_a_point_is_no_pass() {
    let [base, mut new] = in_turns(&STEADY, &STEADY);
    assert_eq!(
        unsaid(&compare(&base, &new, &Options::default()).unwrap()),
        Vec::<String>::new()
    );
    new.rows
        .iter_mut()
        .for_each(|row| row.fixed.outcome = Outcome::Oom);
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(unsaid(&found).len(), 1, "{found:?}");
}

#[test]
fn noise_of_many_points_is_no_drift() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut told = 0;
    for _ in 0..60 {
        let mut side = |first: u64| {
            let mut all = rates(1, &[]);
            for point in 0..12_u64 {
                let noise: Vec<f64> = (0..5)
                    .map(|_| 100.0 * (0.03 * normal(&mut random)).exp())
                    .collect();
                let mut rows = timed(rates(1 + 10 * point, &noise), first, 2).rows;
                rows.iter_mut()
                    .for_each(|row| row.axes = vec![(8 + point).to_string()]);
                all.rows.extend(rows);
            }
            all
        };
        let (base, new) = (side(0), side(1));
        told += usize::from(
            page(&compare(&base, &new, &Options::default()).unwrap()).contains("drift: "),
        );
    }
    assert!(told <= 8, "{told} of 60 pages");
}

#[test]
fn energy_of_a_counter_is_not_divided_by_an_integral() {
    let side = |counter: Option<f64>, integral: Option<f64>| {
        let full = |id: u64| TrialRow {
            window_seconds: Some(10.0),
            energy_counter_joules: counter,
            energy_integral_joules: integral,
            ..row(id, 100.0)
        };
        table(&[], (1..=3).map(|id| (full(id), &[][..])).collect())
    };
    let energy = |base: &TrialTable, new: &TrialTable| {
        let found = compare(base, new, &Options::default()).unwrap();
        found.pairs[0]
            .comparisons
            .iter()
            .find(|one| one.metric == ComparedMetric::Energy)
            .map(|one| (one.column, (one.ratio * 1e9).round() / 1e9))
    };
    assert_eq!(
        energy(&side(Some(1000.0), None), &side(None, Some(1150.0))),
        None
    );
    let both = side(Some(1000.0), Some(1150.0));
    assert_eq!(
        energy(&both, &side(None, Some(1150.0))),
        Some(("energy_integral_joules per sample", 1.0))
    );
    assert_eq!(
        energy(&both, &side(Some(1000.0), None)),
        Some(("energy_counter_joules per sample", 1.0))
    );
}

#[test]
fn energies_that_contradict_each_other_are_not_compared() {
    let full = |id: u64, integral: f64| TrialRow {
        window_seconds: Some(10.0),
        energy_counter_joules: Some(1000.0),
        energy_integral_joules: Some(integral),
        ..row(id, 100.0)
    };
    let side = |integrals: [f64; 4]| {
        let rows = (1..).zip(integrals);
        let rows = rows.map(|(id, integral)| (full(id, integral), &[][..]));
        table(&[], rows.collect())
    };
    let energy = |base: &TrialTable, new: &TrialTable| {
        let found = compare(base, new, &Options::default()).unwrap();
        let mut comparisons = found.pairs.iter().flat_map(|pair| &pair.comparisons);
        let energy = comparisons.find(|one| one.metric == ComparedMetric::Energy);
        energy.map(|one| [one.base_missing, one.new_missing])
    };
    let (alike, apart) = (1010.0, 400.0);
    let whole = side([alike; 4]);
    assert_eq!(energy(&whole, &side([alike; 4])), Some([0, 0]));
    let part = side([alike, alike, alike, apart]);
    assert_eq!(energy(&whole, &part), Some([0, 1]));
    assert_eq!(energy(&whole, &side([apart; 4])), None);
}

#[test]
fn a_gate_passes_only_where_a_change_for_the_worse_is_excluded() {
    let base = [100.0, 101.0, 99.0, 100.5, 99.5];
    let times = |factor: f64| base.map(|rate| rate * factor);
    let of = |base: TrialTable, new: TrialTable| {
        gate(
            &compare(&base, &new, &Options::default()).unwrap(),
            ComparedMetric::Throughput,
        )
    };
    let in_turns = |new: &[f64]| of(timed(rates(1, &base), 0, 2), timed(rates(1, new), 1, 2));
    assert_eq!(in_turns(&times(1.0)), Gate::Pass);
    assert_eq!(in_turns(&times(1.2)), Gate::Pass);
    assert_eq!(
        in_turns(&times(0.9)),
        Gate::Fail(vec!["train.batch_size 8".to_owned()])
    );
    // By -50 %, of one run; by -40 %, of runs that lie far apart; of runs that are missing; of what
    // cannot be compared.
    let cannot = |gate: Gate, why: &str| {
        assert!(
            matches!(&gate, Gate::CannotTell(points) if points[0].contains(why)),
            "{gate:?}: {why}"
        )
    };
    cannot(in_turns(&times(0.5)[..1]), "too few runs");
    cannot(in_turns(&[30.0, 101.0, 35.0, 90.0, 44.0]), "ambiguous");
    let mut oom = timed(rates(1, &base), 1, 2);
    oom.rows[4].fixed.outcome = Outcome::Oom;
    cannot(
        of(timed(rates(1, &base), 0, 2), oom),
        "not all its trials completed",
    );
    let mut other = timed(rates(1, &base), 1, 2);
    other.rows[0].fixed.driver = Some("590.1".into());
    cannot(of(timed(rates(1, &base), 0, 2), other), "not comparable");
    let two_points = |first: &str, second: &str, shift: u64| {
        let of = |id: u64, value: &str| (row(id, 100.0), value.to_owned());
        let rows: Vec<(TrialRow, String)> = (1..=5)
            .map(|id| of(id, first))
            .chain((6..=10).map(|id| of(id + shift, second)))
            .collect();
        let values: Vec<[&str; 1]> = rows.iter().map(|(_, value)| [value.as_str()]).collect();
        table(
            &["a.b"],
            rows.iter()
                .zip(&values)
                .map(|((row, _), value)| (row.clone(), &value[..]))
                .collect(),
        )
    };
    cannot(
        of(
            timed(two_points("1", "2", 0), 0, 2),
            timed(two_points("1", "3", 90), 1, 2),
        ),
        "a.b 2 (only in base)",
    );
}

#[test]
fn a_rerun_is_reproduced_or_not_in_one_sentence() {
    let side = |losses: [f64; 3], factor: f64, first: u64| {
        let rows = losses.iter().zip(1..).map(|(loss, id)| {
            (
                TrialRow {
                    train_loss: Some(*loss),
                    ..row(id, 100.0 * factor)
                },
                &[][..],
            )
        });
        timed(table(&[], rows.collect()), first, 2)
    };
    let base = side([1.0, 2.0, 3.0], 1.0, 0);
    let of = |new: &TrialTable| reproduced(&compare(&base, new, &Options::default()).unwrap());
    let said = |new: &TrialTable| of(new).sentence;
    assert_eq!(
        said(&side([1.0, 2.0, 3.0], 1.0, 1)),
        "reproduced: all 3 trials have the losses of the record to the bit; speed: unchanged \
         (within 3 %)"
    );
    let apart = said(&side([1.0, 2.02, 3.0], 0.5, 1));
    assert_eq!(
        apart,
        "not reproduced: 2 of 3 trials have the same losses, the others are up to 1.0 % apart; \
         speed: changed at 1 of 1 point (1 slower, 0 faster)"
    );
    let rounded = said(&side([1.0, 2.000_002, 3.0], 1.0, 1));
    assert!(
        rounded.starts_with(
            "cannot tell whether it is reproduced: 2 of 3 trials have the same losses to the bit, \
             the others differ by at most 1.0e-6 (relative)"
        ),
        "{rounded}"
    );
    let mut failed = side([1.0, 2.0, 3.0], 1.0, 1);
    failed.rows[2].fixed.outcome = Outcome::Failed;
    assert!(
        said(&failed).starts_with("not reproduced: 1 point ended differently; "),
        "{}",
        said(&failed)
    );
    let mut lacking = side([1.0, 2.0, 3.0], 1.0, 1);
    lacking.rows[0].fixed.valid_loss = Some(1.0);
    assert!(
        said(&lacking).starts_with(
            "not reproduced: 2 of 3 trials have the same losses, and 1 trial has a loss that the \
             other side lacks; "
        ),
        "{}",
        said(&lacking)
    );
    // The answer is that of the sentence.
    let point = || vec!["all trials".to_owned()];
    let answers = [
        side([1.0, 2.0, 3.0], 0.5, 1),
        side([1.0, 2.02, 3.0], 1.0, 1),
        failed,
        lacking,
        side([1.0, 2.000_002, 3.0], 1.0, 1),
    ];
    let wanted = [
        Gate::Pass,
        Gate::Fail(point()),
        Gate::Fail(point()),
        Gate::Fail(point()),
        Gate::CannotTell(point()),
    ];
    assert_eq!(answers.each_ref().map(|new| of(new).gate), wanted);
    let mut without = side([1.0, 2.0, 3.0], 1.0, 1);
    without
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.train_loss = None);
    assert_eq!(of(&without).gate, Gate::CannotTell(point()));
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
    assert_eq!(
        of_tables(
            &[80.0, 120.0, 100.0, 90.0, 110.0],
            &[114.0, 94.0, 83.0, 125.0, 104.0]
        ),
        Verdict::Ambiguous
    );
    assert_eq!(of_tables(&base[..2], &times(0.5)[..2]), Verdict::TooFewRuns);
    assert_eq!(of_tables(&base, &times(0.5)[..2]), Verdict::TooFewRuns);
}

#[test]
fn after_an_ambiguous_verdict_the_page_advises_to_decide_on_the_repeats_once() {
    let text = |new: &[f64]| {
        let [base, new] = in_turns(&[80.0, 120.0, 100.0, 90.0, 110.0], new);
        page(&compare(&base, &new, &Options::default()).unwrap())
    };
    let advice = "ambiguous: decide once how many repeats a new run has";
    let open = text(&[114.0, 94.0, 83.0, 125.0, 104.0]);
    assert!(open.contains(advice), "{open}");
    let clear = text(&[8.0, 12.0, 10.0, 9.0, 11.0]);
    assert!(!clear.contains(advice), "{clear}");
}

#[test]
fn after_an_ambiguous_verdict_on_launches_the_page_advises_on_launches() {
    let side = |values: [f64; 6], first: usize| {
        let mut table = rates(1, &values);
        for (place, row) in table.rows.iter_mut().enumerate() {
            let launch = place / 2;
            let second = first + 4 * launch + place % 2;
            row.fixed.launch = launch as u64 + 1;
            row.fixed.started_utc = Some(format!("2026-01-01T00:00:{second:02}Z"));
        }
        table
    };
    let base = side([80.0, 120.0, 100.0, 90.0, 110.0, 100.0], 0);
    let new = side([114.0, 94.0, 83.0, 125.0, 104.0, 100.0], 2);
    let text = page(&compare(&base, &new, &Options::default()).unwrap());
    let is_advised = text.contains("ambiguous: each launch counts as one run")
        && !text.contains("decide once how many repeats")
        && text.contains("neighboring launches are compared");
    assert!(is_advised, "{text}");
}

/// Runs without any spread: a change by just 3 % is one everywhere, for the verdict, for the gate
/// and between the points of a run.
#[test]
fn of_runs_without_a_spread_a_change_of_just_3_percent_is_a_change_everywhere() {
    for level in [0.1, 1.0 / 3.0, 99.0, 7.3e5] {
        let found = |factor: f64| {
            let [base, new] = in_turns(&[level; 5], &[level * factor; 5]);
            compare(&base, &new, &Options::default()).unwrap()
        };
        let verdict = |factor: f64| found(factor).pairs[0].comparisons[0].verdict;
        assert_eq!(
            [0.97, 0.971, 1.0, 1.029, 1.03].map(verdict),
            [
                Verdict::Worse,
                Verdict::Same,
                Verdict::Same,
                Verdict::Same,
                Verdict::Better
            ],
            "{level}"
        );
        assert!(
            matches!(
                gate(&found(0.97), ComparedMetric::Throughput),
                Gate::Fail(_)
            ),
            "{level}"
        );
        assert_eq!(
            gate(&found(0.971), ComparedMetric::Throughput),
            Gate::Pass,
            "{level}"
        );
    }
}

#[test]
fn each_field_that_decides_numbers_refuses_by_name_and_can_be_what_is_compared() {
    type Change = fn(&mut TrialRow);
    let changes: [(RowFact, Change); 15] = [
        (RowFact::DeviceName, |row| {
            row.device_name = Some("NVIDIA H100".into())
        }),
        (RowFact::Processor, |row| {
            row.processor = Some("AuthenticAMD 25-1-1 x86-64-v3".into())
        }),
        (RowFact::PowerLimitWatts, |row| {
            row.power_limit_watts = Some(500.0)
        }),
        (RowFact::MigProfile, |row| {
            row.mig_profile = Some("1g.10gb".into())
        }),
        (RowFact::EccMode, |row| {
            row.ecc_mode = Some("disabled".into())
        }),
        (RowFact::HostId, |row| row.host_id = Some("net-2".into())),
        (RowFact::Driver, |row| row.driver = Some("590.1".into())),
        (RowFact::Libtorch, |row| {
            row.libtorch = Some("2.12.0".into())
        }),
        (RowFact::Engine, |row| row.engine = "flex".into()),
        (RowFact::Precision, |row| row.precision = "bf16".into()),
        (RowFact::EffectiveBatchSize, |row| {
            row.effective_batch_size = 2
        }),
        (RowFact::DevicesPerTrial, |row| {
            row.devices_per_trial = Some(2)
        }),
        (RowFact::CpuThreads, |row| row.cpu_threads = Some(3)),
        (RowFact::ConcurrentTrials, |row| row.concurrent_trials = 2),
        (RowFact::CopiedFrom, |row| {
            row.copied_from = Some("pageable".into())
        }),
    ];
    assert_eq!(changes.map(|(field, _)| field), RowFact::ALL);
    let mut base = timed(rates(1, &[100.0, 101.0, 99.0]), 0, 2);
    for TableRow { fixed: row, .. } in &mut base.rows {
        row.processor = Some("AuthenticAMD 25-17-1 x86-64-v4 avx512_bf16".into());
        (row.power_limit_watts, row.mig_profile) = (Some(700.2), Some("2g.20gb".into()));
        (row.ecc_mode, row.host_id) = (Some("enabled".into()), Some("net-1".into()));
        row.copied_from = Some("pinned".into());
    }
    let on_gpu = base.clone();
    for (field, change) in changes {
        let mut base = on_gpu.clone();
        if field == RowFact::Processor {
            base.rows
                .iter_mut()
                .for_each(|row| row.fixed.device_uuid = None);
        }
        let mut new = timed(base.clone(), 1, 2);
        new.rows.iter_mut().for_each(|row| change(&mut row.fixed));
        let refused = compare(&base, &new, &Options::default()).unwrap();
        assert_eq!(
            refused.pairs[0]
                .unlike
                .iter()
                .map(|unlike| unlike.field)
                .collect::<Vec<_>>(),
            [field]
        );
        assert!(
            refused.pairs[0]
                .comparisons
                .iter()
                .all(|comparison| comparison.verdict == Verdict::NotComparable)
        );
        let page = ComparisonPage {
            base: "a",
            new: "b",
            facts: None,
            can_rerun: true,
            has_data_by_name: false,
            found: &refused,
        }
        .text(PageStyle {
            width: None,
            has_color: false,
        });
        assert!(
            page.contains(&format!(
                "not comparable: train.batch_size 8: {} ",
                field.name()
            )),
            "{page}"
        );
        let asked = compare(
            &base,
            &new,
            &Options {
                across: vec![field],
                ..Options::default()
            },
        )
        .unwrap();
        assert!(
            asked.pairs[0].unlike.is_empty() && asked.across.len() == 1,
            "{asked:?}"
        );
        assert_eq!(asked.pairs[0].comparisons[0].verdict, Verdict::Same);
        let headline = ComparisonPage {
            base: "a",
            new: "b",
            facts: None,
            can_rerun: true,
            has_data_by_name: false,
            found: &asked,
        }
        .headline();
        assert!(
            headline.starts_with(&format!("ACROSS {} ", field.name())),
            "{headline}"
        );
        // One run alone that differs is enough.
        let mut mixed = base.clone();
        change(&mut mixed.rows[0].fixed);
        assert_eq!(
            compare(&base, &mixed, &Options::default()).unwrap().pairs[0]
                .unlike
                .len(),
            1
        );
    }
}

#[test]
fn what_an_older_table_does_not_say_is_no_difference_and_a_gpu_trial_may_have_another_processor() {
    let old = timed(rates(1, &[100.0, 101.0, 99.0]), 0, 2);
    let mut new = timed(old.clone(), 1, 2);
    for TableRow { fixed: row, .. } in &mut new.rows {
        (row.processor, row.host_id) = (
            Some("AuthenticAMD 25-1-1 x86-64-v3".into()),
            Some("net-1".into()),
        );
        (row.power_limit_watts, row.ecc_mode) = (Some(700.0), Some("enabled".into()));
    }
    let unlike = |base: &TrialTable, new: &TrialTable| {
        let found = compare(base, new, &Options::default()).unwrap();
        found.pairs[0]
            .unlike
            .iter()
            .map(|unlike| unlike.field)
            .collect::<Vec<_>>()
    };
    assert_eq!(unlike(&old, &new), []);
    let mut other = new.clone();
    other
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.processor = Some("GenuineIntel 6-143-8 x86-64-v4".into()));
    assert_eq!(unlike(&new, &other), [], "on a GPU");
    for table in [&mut new, &mut other] {
        table
            .rows
            .iter_mut()
            .for_each(|row| row.fixed.device_uuid = None);
    }
    assert_eq!(unlike(&new, &other), [RowFact::Processor]);
    other = new.clone();
    other
        .rows
        .iter_mut()
        .for_each(|row| row.fixed.host_id = Some("dmi-2".into()));
    assert_eq!(unlike(&new, &other), [], "ids of two kinds");
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
    let side = |factor: f64, first: u64| {
        timed(
            table(
                &[],
                (1..=3)
                    .map(|id| full(id, factor * (1.0 + id as f64 * 1e-4)))
                    .collect(),
            ),
            first,
            2,
        )
    };
    let found = compare(&side(1.0, 0), &side(1.5, 1), &Options::default()).unwrap();
    let pair = &found.pairs[0];
    let words: Vec<&str> = pair.comparisons.iter().map(word).collect();
    // As many samples, so energy per sample stays: half as much again over half as many again.
    assert_eq!(
        words,
        [
            "faster",
            "shorter-step",
            "more-memory",
            "same",
            "worse-loss"
        ]
    );
    assert_eq!((pair.losses, pair.equal_losses), (3, 0));
    let same = compare(&side(1.0, 0), &side(1.0, 1), &Options::default()).unwrap();
    assert_eq!((same.pairs[0].losses, same.pairs[0].equal_losses), (3, 3));
}

#[test]
fn numbers_of_different_columns_are_not_divided_by_one_another() {
    let metrics = |base: &dyn Fn(u64) -> TrialRow, new: &dyn Fn(u64) -> TrialRow| {
        let side = |of: &dyn Fn(u64) -> TrialRow| {
            table(&[], (1..=3).map(|id| (of(id), &[][..])).collect())
        };
        let found = compare(
            &side(base),
            &side(new),
            &Options {
                across: RowFact::ALL.to_vec(),
                ..Options::default()
            },
        )
        .unwrap();
        found.pairs[0]
            .comparisons
            .iter()
            .map(|one| (one.metric, one.base.round() as u64, one.new.round() as u64))
            .collect::<Vec<_>>()
    };
    let validated = |id| TrialRow {
        valid_loss: Some(1.0),
        train_loss: Some(2.0),
        ..row(id, 10.0)
    };
    let trained = |id| TrialRow {
        train_loss: Some(2.0),
        ..row(id, 10.0)
    };
    assert!(metrics(&validated, &trained).contains(&(ComparedMetric::Loss, 2, 2)));
    let texts = |id| TrialRow {
        tokens_per_second: Some(640.0),
        ..row(id, 10.0)
    };
    assert!(metrics(&texts, &trained).contains(&(ComparedMetric::Throughput, 10, 10)));
    let on_gpu = |id| TrialRow {
        peak_allocated_bytes: Some(8),
        ..row(id, 10.0)
    };
    let on_cpu = |id| TrialRow {
        device_uuid: None,
        peak_resident_bytes: Some(4),
        ..row(id, 10.0)
    };
    assert!(
        metrics(&on_gpu, &on_cpu)
            .iter()
            .all(|(metric, ..)| *metric != ComparedMetric::Memory)
    );
}

#[test]
fn what_is_in_one_table_alone_and_what_ended_otherwise_is_told() {
    let oom = |id| TrialRow {
        outcome: Outcome::Oom,
        samples_per_second: None,
        ..row(id, 1.0)
    };
    let base = table(
        &["a.b"],
        vec![
            (row(1, 10.0), &["1"]),
            (row(2, 10.0), &["2"]),
            (row(3, 10.0), &["3"]),
        ],
    );
    let new = table(
        &["a.b"],
        vec![
            (oom(1), &["1"]),
            (row(2, 10.0), &["2"]),
            (row(9, 10.0), &["<9>"]),
        ],
    );
    let found = compare(&base, &new, &Options::default()).unwrap();
    assert_eq!(
        found.pairs[0].ends,
        Some(["1 completed".to_owned(), "1 oom".to_owned()])
    );
    assert!(found.pairs[0].unlike.is_empty() && found.pairs[0].comparisons.is_empty());
    let page = ComparisonPage {
        base: "a",
        new: "b",
        facts: Some(&[]),
        can_rerun: true,
        has_data_by_name: false,
        found: &found,
    };
    let text = page.text(PageStyle {
        width: Some(80),
        has_color: false,
    });
    for line in [
        "only in base: a.b 3\n",
        "only in new: a.b <9>\n",
        "not all completed: a.b 1: 1 completed → 1 oom\n",
        "needs 3 runs of a point",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("the records of both agree"), "{text}");
    let csv = page.csv();
    assert!(
        csv.lines()
            .nth(1)
            .unwrap()
            .starts_with("a.b 2,throughput,too-few-runs,10,10,1,,,,1,1,"),
        "{csv}"
    );
    let json: serde_json::Value = serde_json::from_str(&page.value().to_string()).unwrap();
    assert_eq!(
        (
            &json["kiln_compare"],
            &json["pairs"][1]["comparisons"][0]["verdict"]
        ),
        (&1.into(), &"too-few-runs".into())
    );
    let markdown = page.markdown();
    assert!(
        markdown.contains("| b | verdict |")
            && markdown.contains("| 2 | too few runs | 10.0 | 10.0 |"),
        "{markdown}"
    );
}

#[test]
fn a_table_has_a_column_per_axis_by_its_short_name_and_other_outputs_the_whole_keys() {
    let side = |rate: f64| {
        let axes = ["train.optimizer.learning_rate", "model.values.base"];
        let rows = vec![
            (row(1, rate), &["0.001", "8"][..]),
            (row(2, rate), &["0.01", "8"]),
        ];
        table(&axes, rows)
    };
    let name = "train.optimizer.learning_rate 0.001, model.values.base 8";
    let by = ["train.optimizer.learning_rate", "model.values.base"].map(str::to_owned);
    let by_keys = Options {
        by: by.to_vec(),
        ..Options::default()
    };
    for options in [Options::default(), by_keys] {
        let found = compare(&side(10.0), &side(11.0), &options).unwrap();
        assert_eq!(found.pairs[0].name, name);
        let text = page(&found);
        // The key whose last part is the head of another column stays whole.
        let head = "\n   learning_rate  model.values.base  ";
        assert!(text.contains(head), "{text}");
        assert!(text.contains("\n           0.001  "), "{text}");
        let csv = ComparisonPage {
            base: "a",
            new: "b",
            facts: None,
            can_rerun: true,
            has_data_by_name: false,
            found: &found,
        }
        .csv();
        assert!(csv.contains(name), "{csv}");
    }
}

#[test]
fn a_run_far_from_the_others_is_told_with_its_likely_reason_and_kept() {
    let mut far = rates(1, &[100.0, 101.0, 99.0, 100.0, 50.0]);
    far.rows[4].fixed.throttled_fraction = Some(0.3);
    far.rows[4].fixed.throttle_reasons = Some("hw_thermal_slowdown".into());
    let found = compare(&far, &rates(1, &[100.0; 5]), &Options::default()).unwrap();
    assert_eq!(
        found.pairs[0].outliers,
        [
            "base: trial 0000000005 is -50 % off the median of its side (throttled: \
             hw_thermal_slowdown)"
        ]
    );
    assert_eq!(found.pairs[0].comparisons[0].base_runs, 5);
    far.rows[4].fixed.throttled_fraction = Some(0.0003);
    let moment = compare(&far, &rates(1, &[100.0; 5]), &Options::default()).unwrap();
    assert_eq!(
        moment.pairs[0].outliers,
        ["base: trial 0000000005 is -50 % off the median of its side"],
        "a limit of a moment is no reason"
    );
    let near = compare(
        &rates(1, &[100.0, 100.0, 100.0, 100.0, 102.0]),
        &rates(1, &[100.0; 5]),
        &Options::default(),
    )
    .unwrap();
    assert!(near.pairs[0].outliers.is_empty());
}

#[test]
fn a_run_of_a_command_far_from_the_others_is_told_by_its_own_number() {
    let own = |values: [f64; 5]| {
        let mut table = rates(1, &values);
        table.metrics = vec!["metric.heat".to_owned()];
        for (row, value) in table.rows.iter_mut().zip(values) {
            row.fixed.samples_per_second = None;
            row.fixed.tokens_per_second = None;
            row.fixed.median_step_seconds = None;
            row.fixed.metrics.insert("heat".to_owned(), value);
        }
        table
    };
    let options = Options {
        columns: ColumnMetric::named("metric.heat", false)
            .into_iter()
            .collect(),
        ..Options::default()
    };
    let (near, far) = ([10.0, 10.1, 9.9, 10.0, 10.0], [10.0, 10.1, 9.9, 10.0, 15.0]);
    let found = compare(&own(near), &own(far), &options).unwrap();
    assert_eq!(
        found.pairs[0].outliers,
        ["new: `heat` of trial 0000000005 is +50 % off the median of its side"]
    );
    let not_asked_for = compare(&own(near), &own(far), &Options::default()).unwrap();
    assert!(not_asked_for.pairs[0].outliers.is_empty());
}

/// A number from a standard normal distribution.
fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// Share of made comparisons that end in a verdict of change.
fn changes(runs: usize, spread: f64, factor: f64, comparisons: usize) -> f64 {
    let mut random = fastrand::Rng::with_seed(11);
    let mut side = |factor: f64, first: usize| -> Vec<TimedRun> {
        let run = |place: usize| TimedRun {
            seconds: Some((first + 2 * place) as f64),
            ..TimedRun::of(factor * (spread * normal(&mut random)).exp())
        };
        (0..runs).map(run).collect()
    };
    let mut is_change = || {
        matches!(
            verdict_of(
                ComparedMetric::Throughput,
                &side(100.0, 0),
                &side(100.0 * factor, 1)
            ),
            Verdict::Better | Verdict::Worse
        )
    };
    (0..comparisons).filter(|_| is_change()).count() as f64 / comparisons as f64
}

#[test]
fn false_alarms_are_rare_and_slowdowns_are_found() {
    for runs in [3, 5, 9, 15] {
        for spread in [0.01, 0.03, 0.10] {
            let share = changes(runs, spread, 1.0, 1000);
            assert!(share <= 0.065, "{runs} runs at {spread}: {share}");
        }
    }
    assert!(changes(5, 0.02, 0.95, 500) >= 0.82 && changes(5, 0.01, 0.95, 500) >= 0.99);
}
