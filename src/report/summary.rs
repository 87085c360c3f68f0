//! Prints the table at the end of `kiln run`: the answer, then one line per point, best first, then
//! trials that did not complete, findings and notices.
//!
//! In comes `trials.csv` as read; out comes text. Repeats of a point are one line with their mean;
//! the spread is their sample standard deviation. Nothing is measured or looked up here.

use std::fmt::Write;

use kiln_core::{
    plan::Outcome,
    record::{TableRow, TrialRow, TrialTable},
    spec::{self, Metric},
    units::{Bytes, Fraction, Seconds, counted, decimals, without_controls},
};

use super::{
    diagnosis::{RuleFinding, diagnose},
    findings::lines,
    layout::{MUST_STAY, PageColumn, PageStyle, fitting, layout},
    notices,
    objective::RankedBy,
    points::{Point, Speed, pieces, points, short_names, shown},
    ranking::{Ranking, metric_with_spread, unequal_samples},
};

/// Trials that did not complete are listed up to so many.
const MOST_LISTED: usize = 20;

/// The whole page, ending in a line feed. `planned` is how many trials the plan has, `objective` the
/// experiment's own.
pub fn summary(
    table: &TrialTable,
    planned: usize,
    objective: Option<spec::Objective>,
    style: PageStyle,
) -> String {
    summary_with(table, planned, objective, &diagnose(table), style)
}

/// Whether the page says nothing against the order of its best two points.
pub fn is_order_certain(table: &TrialTable) -> bool {
    Ranking::new(&points(table), table, None).is_certain()
}

/// The same page, with findings that the caller computed.
pub(super) fn summary_with(
    table: &TrialTable,
    planned: usize,
    objective: Option<spec::Objective>,
    findings: &[RuleFinding],
    style: PageStyle,
) -> String {
    let all = points(table);
    let ranking = Ranking::new(&all, table, objective);
    let mut page = format!("{}\n", counts(table, planned));
    if let Some(verdict) = ranking.verdict() {
        let _ = write!(page, "\n{verdict}\n");
    }
    if !ranking.points.is_empty() {
        let table = RankedTable(&ranking);
        let _ = write!(page, "\n{}", table.render(style));
        page.push_str(&table.without_rate());
        if let Some(words) = unequal_samples(&all) {
            let _ = writeln!(page, "{words}");
        }
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

/// The table of the ranked points.
struct RankedTable<'a>(&'a Ranking<'a>);

impl RankedTable<'_> {
    fn points(&self) -> impl Iterator<Item = &Point<'_>> {
        self.0.points.iter().map(|ranked| ranked.point)
    }

    fn render(&self, style: PageStyle) -> String {
        let ranking = self.0;
        let columns = self.columns();
        let kept = fitting(&columns, style.width);
        let left_out: Vec<&str> = columns
            .iter()
            .filter(|column| !kept.iter().any(|kept| kept.head == column.head))
            .map(|column| column.head.as_str())
            .collect();
        let mut page = layout(&kept, style.width, style.has_color);
        let spread = match ranking.has_repeats {
            true => {
                "± is the standard deviation over the n runs of a point, and a single run has none"
            }
            false => "one run per point (n = 1), so the spread is unknown",
        };
        let mark = ranking.points.iter().any(|ranked| ranked.is_marked);
        let mark = match mark {
            true => format!("{}; ", ranking.mark_in_words()),
            false => String::new(),
        };
        let _ = write!(page, "\n{mark}{spread}\n");
        if ranking.objective.why.is_some() || ranking.is_of_steps() {
            let _ = writeln!(page, "{}", without_controls(&ranking.order_in_words()));
        }
        if ranking.is_of_steps() {
            page.push_str("no point has a measured rate; the points are ordered by step time\n");
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

    /// Why trials have no rate: how many, and the reason of the first.
    fn without_rate(&self) -> String {
        let rate: Speed = match self.has(|row| row.tokens_per_second) {
            true => |row| row.tokens_per_second.or(row.samples_per_second),
            false => |row| row.samples_per_second,
        };
        let lacking: Vec<Point<'_>> = self
            .points()
            .filter_map(|point| point.lacking(rate))
            .collect();
        let mut rows = lacking.iter().flat_map(|point| &point.rows);
        let Some(told) = rows.clone().next().map(|first| {
            first
                .note("window_seconds")
                .unwrap_or("no reason was recorded")
        }) else {
            return String::new();
        };
        let is_alike = rows
            .clone()
            .all(|row| row.note("window_seconds") == Some(told));
        let first = if is_alike { "" } else { "first: " };
        format!(
            "– {} without a rate: {first}{}\n",
            counted(rows.by_ref().count(), "trial"),
            without_controls(told)
        )
    }

    /// Whether any point has the number.
    fn has(&self, of: Speed) -> bool {
        self.points()
            .flat_map(Point::completed)
            .any(|row| of(row).is_some())
    }

    fn columns(&self) -> Vec<PageColumn> {
        let ranking = self.0;
        let mut columns = vec![PageColumn::of_marks(
            ranking.points.iter().map(|ranked| ranked.is_marked),
        )];
        columns.extend(self.axis_columns());
        columns.extend(self.pieces());
        if let RankedBy::Metric(metric, _) = ranking.objective.by {
            columns.push(self.column(metric_head(metric), MUST_STAY, |point| {
                let value = point.statistic(|row| ranking.objective.value(row))?;
                Some(metric_with_spread(metric, value))
            }));
        }
        columns.extend(self.rates());
        for (metric, keep) in [
            (Metric::TrainLoss, 50),
            (Metric::ValidLoss, 75),
            (Metric::ValidTop1, 76),
            (Metric::ValidHitRate, 74),
            (Metric::ValidBleu4, 73),
        ] {
            if !matches!(ranking.objective.by, RankedBy::Metric(own, _) if own == metric) {
                columns.push(self.metric(metric, keep));
            }
        }
        columns.extend(self.resources());
        if ranking.has_repeats {
            columns.push(self.column("n", 90, |point| Some(point.completed().count().to_string())));
        }
        columns.retain(PageColumn::says_something);
        columns
    }

    fn rates(&self) -> Vec<PageColumn> {
        let rate = self.0.rate;
        let best = self
            .points()
            .filter_map(|point| Some(point.statistic(rate)?.mean))
            .fold(f64::NAN, f64::max);
        vec![
            self.column("samples/s", MUST_STAY, |point| {
                Some(point.statistic(|row| row.samples_per_second)?.with_spread())
            }),
            self.column("tokens/s", 20, |point| {
                Some(point.statistic(|row| row.tokens_per_second)?.with_spread())
            }),
            self.column("vs fastest", 80, |point| {
                let rate = point.statistic(rate).filter(|_| best > 0.0)?;
                Some(format!("{:.0} %", rate.mean / best * 100.0))
            }),
            self.mean(
                "data wait",
                70,
                |row| row.data_wait_fraction,
                |share| Fraction(share).to_string(),
            ),
            self.mean(
                "step",
                if self.0.is_of_steps() { MUST_STAY } else { 40 },
                |row| row.median_step_seconds,
                |seconds| Seconds(seconds).to_string(),
            ),
        ]
    }

    fn resources(&self) -> Vec<PageColumn> {
        let has_gpu = self.has(|row| row.peak_nvml_used_bytes.map(|bytes| bytes as f64));
        let memory: fn(&TrialRow) -> Option<f64> = if has_gpu {
            |row| row.peak_nvml_used_bytes.map(|bytes| bytes as f64)
        } else {
            |row| row.peak_resident_bytes.map(|bytes| bytes as f64)
        };
        vec![
            self.mean(
                if has_gpu { "GPU memory" } else { "memory" },
                60,
                memory,
                |bytes| Bytes(bytes as u64).to_string(),
            ),
            self.mean(
                "MFU",
                30,
                |row| row.mfu,
                |share| Fraction(share).to_string(),
            ),
        ]
    }

    fn axis_columns(&self) -> Vec<PageColumn> {
        let column = |(place, head): (usize, String)| {
            let cell = |point: &Point<'_>| {
                without_controls(point.values.get(place).map_or("–", |value| shown(value)))
            };
            PageColumn {
                head: without_controls(&head),
                cells: self.points().map(cell).collect(),
                keep: u8::MAX,
            }
        };
        short_names(self.0.axes)
            .into_iter()
            .enumerate()
            .map(column)
            .collect()
    }

    /// Columns of batch size and accumulation, where a smaller trial replaces one that ran out of
    /// memory and no axis shows them.
    fn pieces(&self) -> Vec<PageColumn> {
        type Cell = fn(&TrialRow) -> u64;
        const KEYS: [(&str, Cell); 2] = [
            ("batch_size", |row| row.batch_size),
            ("grad_accumulation", |row| row.grad_accumulation),
        ];
        let has_pieces = self
            .points()
            .any(|point| point.rows.iter().any(|row| pieces(row).is_some()));
        let untold = KEYS
            .iter()
            .filter(|(key, _)| has_pieces && !self.0.axes.contains(&format!("train.{key}")));
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
        PageColumn::new(head, keep, self.points().map(cell))
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

    /// Means of a metric.
    fn metric(&self, metric: Metric, keep: u8) -> PageColumn {
        let print = |value: f64| match metric {
            Metric::ValidTop1 | Metric::ValidHitRate => Fraction(value).to_string(),
            _ => decimals(value, 3),
        };
        self.mean(
            metric_head(metric),
            keep,
            move |row| row.metric(metric),
            print,
        )
    }
}

/// Head of a metric's column.
fn metric_head(metric: Metric) -> &'static str {
    match metric {
        Metric::TrainLoss => "loss",
        Metric::ValidLoss => "valid loss",
        Metric::ValidTop1 => "top-1",
        Metric::SecondsToTarget => "to target",
        other => super::objective::words(other),
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
                .any(|line| squeezed(line) == "2 – – – 3.4 % 12.5 ms 5.000 4.750 3.0 GiB 41.0 % 2"),
            "{page}"
        );
        assert!(
            page.contains("\n– 2 trials without a rate: only 2 steps\n"),
            "{page}"
        );
        assert!(
            !summary(&table(&[], vec![(full(1, 10.0), &[])]), 0, None, WIDE)
                .contains("without a rate")
        );
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
        let trained = |id, rate, loss| TrialRow {
            valid_loss: Some(loss),
            ..row(id, rate)
        };
        let page = summary(
            &table(
                &["model.d_model", "train.batch_size"],
                vec![
                    (trained(1, 100.0, 1.0), &["64", "4"]),
                    (trained(2, 300.0, 2.0), &["16", "4"]),
                    (trained(3, 90.0, 1.5), &["64", "8"]),
                ],
            ),
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
        let trained = |id, batch| TrialRow {
            train_loss: Some(1.0),
            steps: Some(100),
            effective_batch_size: batch,
            ..row(id, 10.0)
        };
        let page = |batches: [u64; 2]| {
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
        assert!(page([4, 8]).contains("different numbers of samples (400 to 800)"));
        assert!(!page([4, 4]).contains("different numbers"));
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
            chance.contains("; the best is 0.4 % ahead of the next (interval -"),
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
                "; no point was repeated in turns with the others: the order may come from drift \
                 of the machine\n"
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
        let page = summary(&table(&[], (1..=25).map(failed).collect()), 0, None, WIDE);
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
}
