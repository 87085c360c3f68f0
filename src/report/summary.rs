//! Prints the table at the end of `kiln run`: one line per point, fastest first, then trials that
//! did not complete, findings and notices.
//!
//! In comes `trials.csv` as read; out comes text. Repeats of a point are one line with their mean;
//! the spread is their sample standard deviation. Nothing is measured or looked up here.

use std::fmt::Write;

use kiln_core::{
    plan::Outcome,
    record::{TableRow, TrialRow, TrialTable},
    units::{Bytes, Fraction, Seconds, counted, decimals, without_controls},
};

use super::{
    diagnosis::{RuleFinding, diagnose},
    findings::lines,
    layout::{MUST_STAY, PageColumn, PageStyle, fitting, layout},
    notices,
    points::{Point, Speed, lengths_differ, pieces, points, short_names, shown, speed},
    rates::{Rates, order_of_best},
};

/// Trials that did not complete are listed up to so many.
const MOST_LISTED: usize = 20;

/// The whole page, ending in a line feed. `planned` is how many trials the plan has.
pub fn summary(table: &TrialTable, planned: usize, style: PageStyle) -> String {
    summary_with(table, planned, &diagnose(table), style)
}

/// Whether the page says nothing against the order of its best two points.
pub fn is_order_certain(table: &TrialTable) -> bool {
    let all = points(table);
    let ranking = Ranking::new(&all, speed(&all, &table.axes));
    ranking.has_repeats && ranking.order.is_none()
}

/// The same page, with findings that the caller computed.
pub(super) fn summary_with(
    table: &TrialTable,
    planned: usize,
    findings: &[RuleFinding],
    style: PageStyle,
) -> String {
    let all = points(table);
    let ranking = Ranking::new(&all, speed(&all, &table.axes));
    let mut page = format!("{}\n", counts(table, planned));
    if !ranking.points.is_empty() {
        let _ = write!(page, "\n{}", ranking.render(&table.axes, style));
    }
    let unmeasured = unmeasured(&all, &table.axes);
    if !unmeasured.is_empty() {
        let _ = write!(
            page,
            "\nCompleted, but too short to measure speed:\n{unmeasured}"
        );
    }
    let unfinished = unfinished(table);
    if !unfinished.is_empty() {
        let _ = write!(page, "\nNot completed:\n{unfinished}");
    }
    page.push_str(&remarks(table, findings));
    page
}

/// A line per finding, most costly first, then the notices on the whole run.
fn remarks(table: &TrialTable, findings: &[RuleFinding]) -> String {
    let found = lines(findings, table.last_attempts().len())
        .into_iter()
        .map(|line| format!("finding: {line}\n"));
    let mut text: String = found.collect();
    if !text.is_empty() {
        text.push_str("`kiln report` shows the evidence of each finding and what to run next\n");
    }
    notices(table, findings)
        .iter()
        .for_each(|notice| text.push_str(&format!("note: {}\n", without_controls(notice))));
    if text.is_empty() {
        text
    } else {
        format!("\n{text}")
    }
}

/// `12 trials: 10 completed, 1 oom, 1 failed`, or `2 of 3 trials: 2 completed, 1 not run`.
pub(super) fn counts(table: &TrialTable, planned: usize) -> String {
    let rows = table.last_attempts();
    if rows.is_empty() {
        return "no trial has ended yet".to_owned();
    }
    let of = |outcome: &Outcome| {
        rows.iter()
            .filter(|row| row.fixed.outcome == *outcome)
            .count()
    };
    let ended = Outcome::ALL
        .iter()
        .map(|outcome| (of(outcome), outcome.name()));
    let not_run = planned.saturating_sub(rows.len());
    let parts = ended
        .chain([(not_run, "not run")])
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"));
    let trials = if not_run > 0 {
        format!("{} of {}", rows.len(), counted(planned, "trial"))
    } else {
        counted(rows.len(), "trial")
    };
    format!("{trials}: {}", parts.collect::<Vec<_>>().join(", "))
}

/// A line for each point whose trials, or some of them, completed and have no rate: they cannot be
/// ranked.
fn unmeasured(all: &[Point<'_>], axes: &[String]) -> String {
    let rate: Speed = if lengths_differ(axes) {
        |row| row.tokens_per_second
    } else {
        |row| row.samples_per_second
    };
    let points: Vec<Point<'_>> = all.iter().filter_map(|point| point.lacking(rate)).collect();
    let mut text = String::new();
    for point in points.iter().take(MOST_LISTED) {
        let mean = |of: fn(&TrialRow) -> Option<f64>| {
            point
                .statistic(of)
                .map_or("-".to_owned(), |value| decimals(value.mean, 3))
        };
        let (train, valid) = (mean(|row| row.train_loss), mean(|row| row.valid_loss));
        let runs = if point.rows.len() > 1 {
            format!(", n {}", point.rows.len())
        } else {
            String::new()
        };
        let reason = point
            .rows
            .iter()
            .find_map(|row| row.note("window_seconds"))
            .unwrap_or("no reason was recorded");
        let reason = without_controls(reason);
        let _ = writeln!(
            text,
            "  {}: samples/s -, loss {train}, valid loss {valid}{runs}; window_seconds: {reason}",
            point.name(axes)
        );
    }
    if points.len() > MOST_LISTED {
        let _ = writeln!(
            text,
            "  and {} more, see trials.csv",
            points.len() - MOST_LISTED
        );
    }
    text
}

fn unfinished(table: &TrialTable) -> String {
    let rows: Vec<_> = table
        .last_attempts()
        .into_iter()
        .filter(|row| row.fixed.outcome != Outcome::Completed)
        .collect();
    let mut text = String::new();
    for TableRow { fixed: row, axes } in rows.iter().take(MOST_LISTED) {
        let point = Point {
            values: axes,
            rows: vec![row],
        }
        .name(&table.axes);
        let reason = row.reason.as_deref().unwrap_or("no reason was recorded");
        // A reason may have several lines; the table in the file keeps them.
        let reason = without_controls(&reason.split_whitespace().collect::<Vec<_>>().join(" "));
        let _ = writeln!(
            text,
            "  {}  {:<11} {point}: {reason}",
            without_controls(&row.trial.0),
            row.outcome
        );
    }
    if rows.len() > MOST_LISTED {
        let _ = writeln!(
            text,
            "  and {} more, see trials.csv",
            rows.len() - MOST_LISTED
        );
    }
    text
}

/// Points with a speed, fastest first.
struct Ranking<'a> {
    points: Vec<&'a Point<'a>>,
    /// Sentence about how certain the order of the first two points is.
    order: Option<String>,
    /// The throughput by which they are ranked.
    rate: Speed,
    /// Whether any point has repeats.
    has_repeats: bool,
}

impl<'a> Ranking<'a> {
    fn new(all: &'a [Point<'a>], rate: Speed) -> Self {
        let mut ranked: Vec<(f64, usize)> = all
            .iter()
            .enumerate()
            .filter_map(|(place, point)| Some((point.statistic(rate)?.mean, place)))
            .collect();
        ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
        let order = ranked.first().zip(ranked.get(1)).and_then(|(best, next)| {
            order_of_best(&Rates::of(all, rate), best.1, next.1, ranked.len())
        });
        let points: Vec<&Point<'_>> = ranked.into_iter().map(|(_, place)| &all[place]).collect();
        let has_repeats = points.iter().any(|point| Self::runs(point, rate) > 1);
        Self {
            points,
            order,
            rate,
            has_repeats,
        }
    }

    fn render(&self, axes: &[String], style: PageStyle) -> String {
        let columns = self.columns(axes);
        let kept = fitting(&columns, style.width);
        let left_out: Vec<&str> = columns
            .iter()
            .filter(|column| !kept.iter().any(|kept| kept.head == column.head))
            .map(|column| column.head.as_str())
            .collect();
        let mut page = layout(&kept, style.width, style.has_color);
        page.push_str(if self.has_repeats {
            "\n* the best; ± is the standard deviation over the n runs of a point, and a single \
             run has none\n"
        } else {
            "\n* the best; one run per point (n = 1), so the spread is unknown\n"
        });
        if self.is_of_steps() {
            page.push_str("no point has a measured rate; the points are ordered by step time\n");
        }
        if let Some(order) = &self.order {
            let _ = writeln!(page, "{}", without_controls(order));
        }
        if !left_out.is_empty() {
            let _ = writeln!(
                page,
                "hidden for width: {}; see trials.csv",
                left_out.join(", ")
            );
        }
        page
    }

    /// Whether the points can be ranked by step time only.
    fn is_of_steps(&self) -> bool {
        let has_rate =
            |row: &TrialRow| row.samples_per_second.is_some() || row.tokens_per_second.is_some();
        !self
            .points
            .iter()
            .flat_map(|point| point.completed())
            .any(has_rate)
    }

    /// Number of trials of a point that have the rate.
    fn runs(point: &Point<'_>, rate: fn(&TrialRow) -> Option<f64>) -> usize {
        point.completed().filter_map(rate).count()
    }

    fn columns(&self, axes: &[String]) -> Vec<PageColumn> {
        let best = self
            .points
            .first()
            .and_then(|point| point.statistic(self.rate))
            .map_or(f64::NAN, |rate| rate.mean);
        let has_gpu = self.points.iter().any(|point| {
            point
                .statistic(|row| row.peak_nvml_used_bytes.map(|bytes| bytes as f64))
                .is_some()
        });
        let memory: fn(&TrialRow) -> Option<f64> = if has_gpu {
            |row| row.peak_nvml_used_bytes.map(|bytes| bytes as f64)
        } else {
            |row| row.peak_resident_bytes.map(|bytes| bytes as f64)
        };
        let mut columns = vec![PageColumn::of_marks(
            (0..self.points.len()).map(|place| place == 0),
        )];
        columns.extend(self.axis_columns(axes));
        columns.extend(self.pieces(axes));
        columns.push(self.column("samples/s", MUST_STAY, |point| {
            Some(point.statistic(|row| row.samples_per_second)?.with_spread())
        }));
        columns.push(self.column("tokens/s", 20, |point| {
            Some(point.statistic(|row| row.tokens_per_second)?.with_spread())
        }));
        columns.push(self.column("vs best", 80, |point| {
            point
                .statistic(self.rate)
                .filter(|_| best > 0.0)
                .map(|rate| format!("{:.0} %", rate.mean / best * 100.0))
        }));
        columns.push(self.mean(
            "data wait",
            70,
            |row| row.data_wait_fraction,
            |share| Fraction(share).to_string(),
        ));
        columns.push(self.mean(
            "step",
            if self.is_of_steps() { MUST_STAY } else { 40 },
            |row| row.median_step_seconds,
            |seconds| Seconds(seconds).to_string(),
        ));
        columns.push(self.mean("loss", 50, |row| row.train_loss, |loss| decimals(loss, 3)));
        columns.push(self.mean(
            "valid loss",
            75,
            |row| row.valid_loss,
            |loss| decimals(loss, 3),
        ));
        columns.push(self.mean(
            if has_gpu { "GPU memory" } else { "memory" },
            60,
            memory,
            |bytes| Bytes(bytes as u64).to_string(),
        ));
        columns.push(self.mean(
            "MFU",
            30,
            |row| row.mfu,
            |share| Fraction(share).to_string(),
        ));
        if self.has_repeats {
            columns.push(self.column("n", 90, |point| {
                Some(Self::runs(point, self.rate).to_string())
            }));
        }
        columns.retain(PageColumn::says_something);
        columns
    }

    fn axis_columns(&self, axes: &[String]) -> Vec<PageColumn> {
        let column = |(place, head): (usize, String)| {
            let cells = self
                .points
                .iter()
                .map(|point| {
                    without_controls(point.values.get(place).map_or("-", |value| shown(value)))
                })
                .collect();
            PageColumn {
                head: without_controls(&head),
                cells,
                keep: u8::MAX,
            }
        };
        short_names(axes)
            .into_iter()
            .enumerate()
            .map(column)
            .collect()
    }

    /// Columns of batch size and accumulation, where a smaller trial replaces one that ran out of
    /// memory and no axis shows them.
    fn pieces(&self, axes: &[String]) -> Vec<PageColumn> {
        type Cell = fn(&TrialRow) -> u64;
        const KEYS: [(&str, Cell); 2] = [
            ("batch_size", |row| row.batch_size),
            ("grad_accumulation", |row| row.grad_accumulation),
        ];
        let has_pieces = self
            .points
            .iter()
            .any(|point| point.rows.iter().any(|row| pieces(row).is_some()));
        let untold = KEYS
            .iter()
            .filter(|(key, _)| has_pieces && !axes.contains(&format!("train.{key}")));
        let column = |(key, of): &(&str, Cell)| PageColumn {
            keep: u8::MAX,
            ..self.column(key, 0, |point| Some(of(point.rows.first()?).to_string()))
        };
        untold.map(column).collect()
    }

    fn column(
        &self,
        head: &str,
        keep: u8,
        cell: impl Fn(&Point<'_>) -> Option<String>,
    ) -> PageColumn {
        PageColumn::new(head, keep, self.points.iter().map(|point| cell(point)))
    }

    fn mean(
        &self,
        head: &str,
        keep: u8,
        of: impl Fn(&TrialRow) -> Option<f64>,
        print: impl Fn(f64) -> String,
    ) -> PageColumn {
        self.column(head, keep, |point| {
            point.statistic(&of).map(|value| print(value.mean))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            layout::widest_line,
            points::tests::{row, table},
        },
        *,
    };

    const WIDE: PageStyle = PageStyle {
        width: None,
        has_color: false,
    };

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
        let page = summary(&table, 0, WIDE);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[0], "4 trials: 4 completed");
        let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let place = lines
            .iter()
            .position(|line| line.contains("batch_size"))
            .unwrap();
        assert_eq!(
            squeezed(lines[place]),
            "batch_size samples/s tokens/s vs best data wait step loss valid loss GPU memory MFU n"
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
        assert!(
            page.contains("standard deviation over the n runs"),
            "{page}"
        );
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
            WIDE,
        );
        assert!(page.starts_with("2 trials: 1 completed, 1 oom\n"), "{page}");
        let stopped = summary(
            &table(&["train.batch_size"], vec![(row(1, 10.0), &["4"])]),
            3,
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
        let nothing = summary(&table(&[], vec![]), 0, WIDE);
        assert_eq!(nothing, "no trial has ended yet\n");
    }

    #[test]
    fn what_completed_without_a_rate_is_listed_with_its_losses_and_the_reason() {
        let short = TrialRow {
            samples_per_second: None,
            notes: Some("mfu: no peak; window_seconds: only 2 steps".into()),
            ..full(2, 0.0)
        };
        let again = TrialRow {
            train_loss: Some(5.5),
            valid_loss: None,
            ..short.clone()
        };
        let again = TrialRow {
            trial: row(3, 0.0).trial,
            ..again
        };
        let page = summary(
            &table(
                &["train.steps"],
                vec![
                    (full(1, 10.0), &["9"]),
                    (short.clone(), &["2"]),
                    (again, &["2"]),
                ],
            ),
            0,
            WIDE,
        );
        let wanted = "\nCompleted, but too short to measure speed:\n  train.steps 2: samples/s -, \
                      loss 5.000, valid loss 4.750, n 2; window_seconds: only 2 steps\n";
        assert!(page.contains(wanted), "{page}");
        assert!(page.contains("one run per point (n = 1)"), "{page}");
        let alone = summary(&table(&[], vec![(short, &[])]), 0, WIDE);
        assert!(
            alone.contains(
                "  all trials: samples/s -, loss 4.500, valid loss 4.750; window_seconds: only 2 \
                 steps\n"
            ),
            "{alone}"
        );
        assert!(
            !summary(&table(&[], vec![(full(1, 10.0), &[])]), 0, WIDE)
                .contains("too short to measure speed")
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
            summary(&table(&["train.batch_size"], rows.collect()), 0, WIDE)
        };
        let chance = page([[100.0, 99.0], [110.0, 108.0], [98.0, 101.0], [105.0, 103.0]]);
        assert!(
            chance.contains("\nthe best is 0.4 % ahead of the next (interval -"),
            "{chance}"
        );
        let sure = page([[100.0, 90.0], [110.0, 99.5], [98.0, 88.0], [105.0, 94.0]]);
        assert!(!sure.contains("may be"), "{sure}");
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
        let listed = summary(&table(&["train.batch_size"], rows.collect()), 0, WIDE);
        assert!(
            listed.contains(
                "\nno point was repeated in turns with the others: the order may come from drift \
                 of the machine\n"
            ),
            "{listed}"
        );
        let single = table(
            &["train.batch_size"],
            vec![(row(1, 10.0), &["4"]), (row(2, 10.0), &["8"])],
        );
        assert!(!summary(&single, 0, WIDE).contains("may be"));
    }

    #[test]
    fn a_long_list_of_failures_is_cut_and_says_so() {
        let failed = |id| {
            (
                TrialRow {
                    outcome: Outcome::Failed,
                    samples_per_second: None,
                    ..row(id, 0.0)
                },
                &[][..],
            )
        };
        let page = summary(&table(&[], (1..=25).map(failed).collect()), 0, WIDE);
        assert!(page.contains("and 5 more, see trials.csv"), "{page}");
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
                PageStyle {
                    width: Some(width),
                    has_color: false,
                },
            );
            let body: Vec<&str> = page
                .lines()
                .take_while(|line| !line.starts_with('*'))
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
            PageStyle {
                width: Some(60),
                has_color: false,
            },
        );
        assert!(narrow.contains("hidden for width: tokens/s, "), "{narrow}");
    }

    #[test]
    fn only_a_terminal_gets_escapes() {
        let table = table(&[], vec![(row(1, 10.0), &[])]);
        assert!(
            !summary(
                &table,
                0,
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
            WIDE,
        );
        let best = page
            .lines()
            .find(|line| line.trim_start().starts_with("* "))
            .unwrap();
        assert!(best.contains("400"), "{page}");
    }
}
