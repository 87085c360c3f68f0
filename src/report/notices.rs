//! One-line notices on a whole run that no single trial shows, each with its evidence and a remedy.
//! What a trial's own row shows is said by `diagnosis`.

mod comparable;
mod input_pipeline;
mod missing_window;

use std::collections::BTreeSet;

use kiln_core::{
    record::{
        TrialRow, TrialTable,
        note::{ContinuedFrom, UnwrittenCheckpoint},
    },
    units::{Fraction, counted},
};

use self::{
    comparable::{cpu_only, not_comparable, other_devices},
    input_pipeline::input_pipeline,
    missing_window::without_window,
};
use super::{
    batch_choice,
    diagnosis::RuleFinding,
    meaning,
    points::{Point, pieces, points},
    steps_and_samples,
};

/// Returns the notices that `findings` do not cover, most important first. `experiment` is the text of
/// the resolved one.
pub fn notices(
    table: &TrialTable,
    experiment: Option<&str>,
    findings: &[RuleFinding],
) -> Vec<String> {
    let points = points(table);
    let rows = || points.iter().flat_map(|point| point.rows.iter().copied());
    let with_rate: Vec<&TrialRow> = rows()
        .filter(|row| row.samples_per_second.is_some())
        .collect();
    let completed: Vec<&TrialRow> = rows().filter(|row| row.is_completed()).collect();
    let mut lines = Vec::new();
    lines.extend(input_pipeline(&points, &table.axes));
    lines.extend(too_low_peak(&with_rate));
    lines.extend(stand_ins(&points));
    lines.extend(continued(&points));
    lines.extend(unsaved(&points));
    lines.extend(without_window(&points));
    lines.extend(batch_choice::lines(&points, &table.axes));
    lines.extend(steps_and_samples::lines(&points, &table.axes));
    lines.extend(match with_rate.is_empty() {
        true => other_devices(&points, &table.axes),
        false => not_comparable(&with_rate, &table.axes),
    });
    lines.extend(meaning::of_older(&completed, experiment));
    lines.extend(cpu_only(&with_rate).filter(|_| {
        findings
            .iter()
            .all(|finding| finding.rule != "cpu-only-by-accident")
    }));
    lines
}

/// An MFU above 100 % means that the peak was set too low.
fn too_low_peak(rows: &[&TrialRow]) -> Option<String> {
    let above: Vec<(&TrialRow, f64)> = rows
        .iter()
        .filter_map(|row| Some((*row, row.mfu.filter(|mfu| *mfu > 1.0)?)))
        .collect();
    let (first, mfu) = above.first()?;
    let source = first.peak_source.as_deref().unwrap_or("of unknown source");
    let remedy = match source {
        "measured" => {
            "a matrix product alone was slower than the trial; `kiln calibrate` measures it again, \
             with nothing else running, and an MFU that stays above 100 % tells nothing"
        }
        _ => "measure it with `kiln calibrate`",
    };
    Some(format!(
        "the MFU of {} of {} trials is above 100 % (first: trial {}, {}): its peak ({source}) is \
         too low, {remedy}",
        above.len(),
        rows.len(),
        first.trial,
        Fraction(*mfu)
    ))
}

/// Trials that replace a trial that ran out of memory, with smaller micro-batches.
fn stand_ins(points: &[Point<'_>]) -> Option<String> {
    let rows = || points.iter().flat_map(|point| point.rows.iter().copied());
    let completed: Vec<&TrialRow> = rows()
        .filter(|row| pieces(row).is_some() && row.is_completed())
        .collect();
    let first = completed.first()?;
    let planned = first.fallback_of.as_ref()?;
    let was = rows()
        .find(|row| row.trial == *planned)
        .map(|row| format!(" ({} × {})", row.batch_size, row.grad_accumulation))
        .unwrap_or_default();
    Some(format!(
        "{} ran out of memory and trained the same effective batch in smaller micro-batches \
         (first: trial {} with {} × {} for {planned}{was}); their speed is not that of the batch \
         asked for",
        counted(completed.len(), "trial"),
        first.trial,
        first.batch_size,
        first.grad_accumulation,
    ))
}

/// Trials that went on from checkpoints of another run: which figures are of the whole training,
/// and which only of its last part.
fn continued(points: &[Point<'_>]) -> Option<String> {
    let rows = points.iter().flat_map(|point| point.rows.iter());
    let origins: Vec<ContinuedFrom> = rows
        .clone()
        .filter_map(|row| ContinuedFrom::of(row))
        .collect();
    let runs: BTreeSet<&str> = origins.iter().map(|origin| origin.run.as_str()).collect();
    let steps = origins.iter().map(|origin| origin.step);
    let (first, last) = (steps.clone().min()?, steps.max()?);
    let at = match first == last {
        true => format!("step {first}"),
        false => format!("steps {first} to {last}"),
    };
    Some(format!(
        "{} of {} went on from checkpoints of {} ({at}): steps, samples and losses count from the \
         beginning of that training, rates, energy and the time of a trial only from there",
        origins.len(),
        counted(rows.count(), "trial"),
        runs.into_iter().collect::<Vec<_>>().join(", ")
    ))
}

/// Trials of which a checkpoint could not be written: the weights that they leave are older than their
/// figures, or there are none.
fn unsaved(points: &[Point<'_>]) -> Option<String> {
    let rows = points.iter().flat_map(|point| point.rows.iter());
    let noted: Vec<(&TrialRow, UnwrittenCheckpoint)> = rows
        .clone()
        .filter_map(|row| Some((*row, UnwrittenCheckpoint::of(row)?)))
        .collect();
    let (row, note) = noted.first()?;
    let without = noted
        .iter()
        .filter(|(row, _)| row.checkpoint_bytes.is_none());
    let lost = match without.count() {
        0 => "better or later weights than those that they leave are lost".to_owned(),
        none if none == noted.len() => "no weights were written".to_owned(),
        some => format!(
            "{some} wrote no weights, and of the others better or later ones than they leave are lost"
        ),
    };
    Some(format!(
        "{} of {} could not write every checkpoint (first: trial {}, {note}); {lost}",
        noted.len(),
        counted(rows.count(), "trial"),
        row.trial
    ))
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::Outcome;

    use super::{
        super::{
            diagnosis::diagnose,
            points::tests::{row, table},
        },
        *,
    };

    fn said(table: &TrialTable) -> Vec<String> {
        notices(table, None, &diagnose(table))
    }

    #[test]
    fn seconds_of_trials_without_a_rate_compare_on_one_kind_of_device_alone() {
        let on = |number: u64, device: &str| TrialRow {
            samples_per_second: None,
            trial_seconds: Some(2.0),
            device_name: Some(device.to_owned()),
            ..row(number, 1.0)
        };
        let notices = |second: &str, axis: &'static str| {
            said(&table(
                &[axis],
                vec![(on(1, "NVIDIA H200"), &["8"][..]), (on(2, second), &["16"])],
            ))
        };
        let told = notices("NVIDIA A100", "model.values.n");
        assert!(
            told.iter().any(|line| line
                .contains("they differ in device (1 row on NVIDIA A100, 1 row on NVIDIA H200)")),
            "{told:?}"
        );
        for one in [
            notices("NVIDIA H200", "model.values.n"),
            notices("NVIDIA A100", "run.devices"),
        ] {
            assert!(one.iter().all(|line| !line.contains("differ")), "{one:?}");
        }
    }

    #[test]
    fn an_older_meaning_is_said_of_trials_without_a_rate() {
        let of = |outcome: Outcome| {
            let old = TrialRow {
                kiln_table: "trials/9".to_owned(),
                samples_per_second: None,
                transfer_fraction: Some(0.4),
                outcome,
                ..row(1, 1.0)
            };
            let said = said(&table(&[], vec![(old, &[][..])]));
            said.iter().any(|line| line.contains("older meaning"))
        };
        assert!(of(Outcome::Completed));
        assert!(!of(Outcome::Failed));
    }

    #[test]
    fn weights_that_could_not_be_written_are_said() {
        let failure = "the checkpoint of step 40 could not be written: No space left on device";
        let unsaved = TrialRow {
            notes: Some(format!("checkpoint_bytes: {failure}")),
            ..row(2, 10.0)
        };
        let lost = |rows| {
            let mut said = said(&table(&["train.batch_size"], rows));
            said.retain(|line| line.contains("could not write every checkpoint"));
            said
        };
        assert_eq!(lost(vec![(row(1, 10.0), &["8"][..])]), Vec::<String>::new());
        let trial = unsaved.trial.to_string();
        assert_eq!(
            lost(vec![
                (row(1, 10.0), &["8"][..]),
                (unsaved.clone(), &["16"][..])
            ]),
            [format!(
                "1 of 2 trials could not write every checkpoint (first: trial {trial}, {failure}); no \
                 weights were written"
            )]
        );
        let some = TrialRow {
            checkpoint_bytes: Some(4096),
            ..unsaved
        };
        let told = lost(vec![(row(1, 10.0), &["8"][..]), (some, &["16"][..])]);
        assert!(
            told[0].ends_with("better or later weights than those that they leave are lost"),
            "{told:?}"
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
        let line = said(&rows(100.0)).remove(0);
        let once = "by runs that were not repeated in turns the input pipeline costs";
        assert!(
            line.starts_with(&format!(
                "{once} 25.0 % of the speed (train.batch_size 8, data.synthetic false;"
            )),
            "{line}"
        );
        let line = said(&rows(180.0)).remove(0);
        assert!(
            line.starts_with(&format!("{once} 50.0 % of the speed (train.batch_size 16,")),
            "{line}"
        );
        let repeated = |synthetic: f64| {
            let run = |number: u64, block: u64, rate: f64| TrialRow {
                block: Some(block),
                ..row(number, rate * (1.0 + 0.01 * (number * 7 % 5) as f64))
            };
            let blocks = (1..=4).flat_map(|block| {
                [
                    (run(block, block, 30.0), &["8", "false"][..]),
                    (run(10 + block, block, synthetic), &["8", "true"][..]),
                ]
            });
            said(&table(&axes, blocks.collect())).remove(0)
        };
        let line = repeated(40.0);
        assert!(
            line.starts_with("the input pipeline costs 25.")
                && line.contains("1 - real / synthetic, 95 % interval 2"),
            "{line}"
        );
        let line = repeated(30.0);
        assert!(
            line.starts_with("the cost of the input pipeline is within noise")
                && line.ends_with(" % of the speed"),
            "{line}"
        );
        let lone = table(&["data.synthetic"], vec![(row(1, 30.0), &["false"][..])]);
        assert_eq!(said(&lone), Vec::<String>::new());
    }

    #[test]
    fn rows_of_two_devices_are_said_not_to_compare_unless_the_device_is_swept() {
        let other = TrialRow {
            device_uuid: Some("GPU-2".into()),
            concurrent_trials: 2,
            ..row(2, 11.0)
        };
        let rows = |axis: &'static str| {
            table(
                &[axis],
                vec![(row(1, 10.0), &["a"][..]), (other.clone(), &["b"][..])],
            )
        };
        let line = said(&rows("train.batch_size")).remove(0);
        assert_eq!(
            line,
            "timings are not comparable across all rows: they differ in device (GPU-1, GPU-2), \
             number of concurrent trials (1, 2)"
        );
        assert!(said(&rows("run.devices")).is_empty());
    }

    #[test]
    fn devices_of_one_name_that_compare_would_refuse_are_said_to_differ() {
        fn told(change: fn(&mut TrialRow), other: fn(&mut TrialRow)) -> Vec<String> {
            let (mut one, mut two) = (row(1, 10.0), row(2, 11.0));
            change(&mut one);
            other(&mut two);
            let rows = vec![(one, &["a"][..]), (two, &["b"][..])];
            let mut lines = said(&table(&["train.batch_size"], rows));
            lines.retain(|line| line.contains("differ in"));
            lines
        }
        let line = told(
            |row| (row.device_uuid, row.processor) = (None, Some("AMD 25-1-1".into())),
            |row| (row.device_uuid, row.processor) = (None, Some("AMD 26-2-1".into())),
        );
        let wanted = "timings are not comparable across all rows: they differ in processor (AMD \
                      25-1-1, AMD 26-2-1)";
        assert_eq!(line, [wanted]);
        let line = told(
            |row| row.power_limit_watts = Some(300.0),
            |row| row.power_limit_watts = Some(700.0),
        );
        assert!(line[0].ends_with("power limit in W (300, 700)"), "{line:?}");
        let line = told(
            |row| row.mig_profile = Some("1g.18gb".into()),
            |row| row.mig_profile = Some("2g.35gb".into()),
        );
        assert!(
            line[0].ends_with("MIG profile (1g.18gb, 2g.35gb)"),
            "{line:?}"
        );
        // An unknown limit is not another one.
        let line = told(|row| row.power_limit_watts = Some(300.0), |_| {});
        assert_eq!(line, Vec::<String>::new());
    }

    #[test]
    fn kinds_of_devices_are_counted_and_hosts_of_one_processor_told() {
        let on = |number: u64, name: &str, board: Option<&str>, host: &str| TrialRow {
            device_name: Some(name.into()),
            device_uuid: board.map(str::to_owned),
            host_id: Some(host.into()),
            ..row(number, 10.0)
        };
        let told = |rows: [TrialRow; 3]| {
            let [a, b, c] = rows.map(|row| (row, &["a"][..]));
            said(&table(&["train.batch_size"], vec![a, b, c])).remove(0)
        };
        let line = told([
            on(1, "NVIDIA H200", Some("GPU-1"), "x"),
            on(2, "NVIDIA A100", Some("GPU-2"), "y"),
            on(3, "NVIDIA H200", Some("GPU-3"), "x"),
        ]);
        assert!(
            line.ends_with("differ in device (1 row on NVIDIA A100, 2 rows on NVIDIA H200)"),
            "{line}"
        );
        let of_two = [on(1, "EPYC", None, "x"), on(2, "Xeon", None, "x")];
        let said = cpu_only(&of_two.iter().collect::<Vec<_>>()).unwrap();
        assert!(said.contains("the CPU (EPYC, Xeon);"), "{said}");
        let line = told([
            on(1, "EPYC", None, "x"),
            on(2, "EPYC", None, "y"),
            on(3, "EPYC", None, "x"),
        ]);
        assert!(line.ends_with("differ in host (2 of them)"), "{line}");
    }

    #[test]
    fn a_run_on_the_cpu_is_said_once() {
        let cpu = TrialRow {
            device_uuid: None,
            device_name: Some("EPYC".into()),
            ..row(1, 10.0)
        };
        assert_eq!(
            said(&table(&[], vec![(cpu.clone(), &[])])),
            ["everything ran on the CPU (EPYC); columns of a GPU are empty"]
        );
        let beside_a_driver = TrialRow {
            driver: Some("590.48".into()),
            ..cpu
        };
        let table = table(&[], vec![(beside_a_driver, &[])]);
        assert_eq!(diagnose(&table)[0].rule, "cpu-only-by-accident");
        assert!(said(&table).is_empty());
    }

    #[test]
    fn more_than_the_ceiling_is_doubted() {
        let rows = vec![
            (
                TrialRow {
                    mfu: Some(0.9),
                    ..row(1, 10.0)
                },
                &[][..],
            ),
            (
                TrialRow {
                    mfu: Some(1.12),
                    peak_source: Some("table".into()),
                    ..row(2, 11.0)
                },
                &[][..],
            ),
        ];
        let wanted = "the MFU of 1 of 2 trials is above 100 % (first: trial 0000000002, 112.0 %): \
                      its peak (table) is too low, measure it with `kiln calibrate`";
        assert_eq!(said(&table(&[], rows.clone())), [wanted]);
        let measured = |(row, cells): (TrialRow, _)| {
            let peak_source = Some("measured".into());
            (TrialRow { peak_source, ..row }, cells)
        };
        let again = said(&table(&[], rows.into_iter().map(measured).collect()));
        assert!(
            again[0].contains("its peak (measured) is too low, a matrix product alone was slower"),
            "{again:?}"
        );
    }

    #[test]
    fn what_went_on_from_another_run_is_said() {
        let from = |step: u64| {
            format!(
                "continued_from: trial t1 of x/20261120T100809Z-a at step {step}, checkpoint ab…"
            )
        };
        let rows = [Some(from(200)), Some(from(300)), None]
            .into_iter()
            .zip(1..)
            .map(|(notes, number)| {
                let row = TrialRow {
                    notes,
                    ..row(number, 10.0)
                };
                (row, &[][..])
            });
        let wanted = "2 of 3 trials went on from checkpoints of x/20261120T100809Z-a (steps 200 \
                      to 300): steps, samples and losses count from the beginning of that \
                      training, rates, energy and the time of a trial only from there";
        assert_eq!(said(&table(&[], rows.collect())), [wanted]);
    }

    #[test]
    fn a_smaller_trial_that_stands_in_is_said() {
        let failed = TrialRow {
            outcome: Outcome::Oom,
            samples_per_second: None,
            batch_size: 8,
            ..row(1, 1.0)
        };
        let smaller = TrialRow {
            fallback_of: Some(failed.trial.clone()),
            batch_size: 4,
            grad_accumulation: 2,
            ..row(2, 5.0)
        };
        let lines = said(&table(&[], vec![(failed, &[]), (smaller, &[])]));
        let wanted = "1 trial ran out of memory and trained the same effective batch in smaller \
                      micro-batches (first: trial 0000000002 with 4 × 2 for 0000000001 (8 × 1)); \
                      their speed is not that of the batch asked for";
        assert_eq!(lines, [wanted]);
    }

    #[test]
    fn an_undisturbed_gpu_run_gives_no_notice() {
        let quiet = TrialRow {
            foreign_processes: Some("none".into()),
            throttled_fraction: Some(0.0),
            data_wait_fraction: Some(0.0),
            ..row(1, 10.0)
        };
        assert!(said(&table(&[], vec![(quiet, &[])])).is_empty());
        assert!(said(&table(&[], vec![])).is_empty());
    }
}
