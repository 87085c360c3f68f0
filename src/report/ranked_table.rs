//! The table of the summary: a line per ranked point, with as many columns as fit.

use std::fmt::Write;

use kiln_core::{
    record::{TrialRow, note::ResumedCommand},
    spec::Metric,
    units::{Bytes, Fraction, Seconds, counted, without_controls},
};

use super::{
    heads,
    layout::{MUST_STAY, PageColumn, PageStyle, fitting, hidden, layout, share_of_fastest},
    metrics::{self, LEARNED},
    objective,
    points::{Point, SAMPLES, Speed, Statistic, TOKENS, pieces, short_names, shown},
    ranking::{RankedPoint, Ranking, words::metric_with_spread},
};

/// Points that are listed, and beyond them those with a mark; the others are in `trials.csv`: nobody
/// reads thousands of lines.
const MOST_LISTED: usize = 200;

/// The table of the ranked points.
pub(super) struct RankedTable<'a>(pub(super) &'a Ranking<'a>);

impl RankedTable<'_> {
    fn points(&self) -> impl Iterator<Item = &Point<'_>> {
        self.0.points.iter().map(|ranked| ranked.point)
    }

    /// The points that have a line.
    fn listed(&self) -> impl Iterator<Item = &RankedPoint<'_>> {
        let places = self.0.points.iter().enumerate();
        places
            .filter(|(place, ranked)| *place < MOST_LISTED || ranked.is_marked)
            .map(|(_, ranked)| ranked)
    }

    pub(super) fn render(&self, style: PageStyle) -> String {
        let ranking = self.0;
        let columns = self.columns();
        let kept = fitting(&columns, style.width);
        let mut page = layout(&kept, style.width, style.has_color);
        let more = ranking.points.len() - self.listed().count();
        if more > 0 {
            let _ = writeln!(page, "and {}; see trials.csv", counted(more, "more point"));
        }
        let spread = self.spread_in_words();
        let mark = ranking.points.iter().any(|ranked| ranked.is_marked);
        let mark = match mark {
            true => format!("{}; ", ranking.mark_in_words()),
            false => String::new(),
        };
        let _ = write!(page, "\n{mark}{spread}\n");
        if ranking.objective.asked.is_some()
            || ranking.objective.why.is_some()
            || ranking.is_of_steps()
        {
            let _ = writeln!(page, "{}", without_controls(&ranking.order_in_words()));
        }
        let unordered = ranking.unordered_in_words();
        if let Some(why) = unordered.filter(|_| ranking.points.len() > 1) {
            let _ = writeln!(page, "{why}");
        }
        if ranking.is_of_steps() {
            page.push_str("no point has a measured rate; the points are ordered by step time\n");
        }
        if let Some(hidden) = hidden(&columns, &kept) {
            let _ = writeln!(page, "{hidden}; see trials.csv");
        }
        page
    }

    /// Meaning of the numbers and their ±.
    fn spread_in_words(&self) -> String {
        if !self.0.has_repeats {
            return "one run per point (n = 1), so the spread is unknown".to_owned();
        }
        let units = match self.has_deviations_of_both_kinds() {
            true => " (of rates in % of the mean, of a metric in its own unit)",
            false => "",
        };
        format!(
            "numbers are arithmetic means over the n runs of a point, memory is the highest; ± is \
             the standard deviation{units}, and a single run has none"
        )
    }

    /// Whether both a rate and a metric have a deviation.
    fn has_deviations_of_both_kinds(&self) -> bool {
        let ranking = self.0;
        let has = |of: &dyn Fn(&TrialRow) -> Option<f64>| {
            let mut values = self.points().filter_map(|point| point.statistic(of));
            values.any(|value| value.deviation.is_some())
        };
        let has_rate = has(&SAMPLES.0) || has(&TOKENS.0);
        let mut of_command = ranking.metrics_of_command();
        has_rate
            && (has(&|row: &TrialRow| ranking.objective.value(row))
                || of_command.any(|metric| has(&|row: &TrialRow| row.metric(metric))))
    }

    /// Why trials have no rate: how many, and the reason of the first. Nothing where none has a rate,
    /// a step time or a reason: a command that prints none.
    pub(super) fn without_rate(&self) -> String {
        let mut completed = self.points().flat_map(Point::completed);
        let is_known = |row: &TrialRow| {
            any_rate(row).or(row.median_step_seconds).is_some() || reason(row).is_some()
        };
        if !completed.any(is_known) {
            return String::new();
        }
        let rate: Speed = match self.has(TOKENS.0) {
            true => |row| row.of_whole_work(any_rate(row)),
            false => SAMPLES.0,
        };
        let lacking: Vec<Point<'_>> = self
            .points()
            .filter_map(|point| point.lacking(rate))
            .collect();
        let mut rows = lacking.iter().flat_map(|point| &point.rows);
        let Some(first) = rows.clone().next() else {
            return String::new();
        };
        let why = reason(first);
        let is_alike = rows.clone().all(|row| reason(row) == why);
        let why = why.unwrap_or("no reason was recorded");
        let first = if is_alike { "" } else { "first: " };
        format!(
            "– {} without a rate: {first}{}\n",
            counted(rows.by_ref().count(), "trial"),
            without_controls(why)
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
        let of_command: Vec<Metric> = ranking.metrics_of_command().collect();
        let mut columns = vec![PageColumn::of_marks(
            self.listed().map(|ranked| ranked.is_marked),
        )];
        columns.extend(self.axis_columns());
        columns.extend(self.pieces());
        if let Some(metric) = ranking.objective.metric() {
            let of = |row: &TrialRow| ranking.objective.value(row);
            let print = |value| metric_with_spread(metric, value);
            let head = metric_head(metric, &of_command);
            columns.push(self.statistic(head, MUST_STAY, of, print));
        }
        columns.push(self.failures());
        columns.extend(self.rates());
        for learned in &LEARNED {
            if ranking.objective.metric() != Some(learned.metric) {
                columns.push(self.mean(
                    learned.head(&of_command),
                    learned.keep,
                    |row| learned.of(row),
                    |value| learned.text(value, 3),
                ));
            }
        }
        let own = of_command.iter().filter_map(|&metric| {
            let is_ranked = ranking.objective.metric() == Some(metric);
            (!is_ranked).then(|| {
                let of = move |row: &TrialRow| row.metric(metric);
                let print = |value| metric_with_spread(metric, value);
                self.statistic(metric_head(metric, &of_command), 60, of, print)
            })
        });
        columns.extend(own);
        columns.extend(self.resources());
        if ranking.has_repeats {
            columns.push(self.column("n", 90, |point| Some(ranking.runs(point).to_string())));
        }
        columns.retain(PageColumn::says_something);
        columns
    }

    /// Trials of a point that failed, because of which it ranks behind those without.
    fn failures(&self) -> PageColumn {
        let cells = self.listed().map(|ranked| ranked.failures.clone());
        PageColumn::new("failures", 150, cells)
    }

    fn rates(&self) -> Vec<PageColumn> {
        let fastest = self.0.fastest();
        vec![
            self.statistic(SAMPLES.1, MUST_STAY, SAMPLES.0, |rate| rate.with_spread()),
            self.statistic(TOKENS.1, 20, TOKENS.0, |rate| rate.with_spread()),
            self.column("vs fastest", 80, |point| {
                let share = self.0.share(point, fastest)?;
                Some(share_of_fastest(share))
            }),
            self.mean(
                heads::DATA_WAIT.text,
                70,
                |row| row.data_wait_fraction,
                |share| Fraction(share).to_string(),
            ),
            self.mean(
                heads::STEP.text,
                if self.0.is_of_steps() { MUST_STAY } else { 40 },
                |row| row.of_whole_work(row.median_step_seconds),
                |seconds| Seconds(seconds).to_string(),
            ),
        ]
    }

    fn resources(&self) -> Vec<PageColumn> {
        let has_gpu = self.has(|row| row.peak_nvml_used_bytes.map(|bytes| bytes as f64));
        let peak: fn(&TrialRow) -> Option<u64> = match has_gpu {
            true => |row| row.peak_nvml_used_bytes,
            false => |row| row.peak_resident_bytes,
        };
        let memory = match has_gpu {
            true => "GPU memory",
            false => heads::MEMORY.text,
        };
        // A point needs the memory of its fullest trial, not the mean of them.
        let fullest = |point: &Point<'_>| {
            let most = point.completed().filter_map(peak).max()?;
            Some(Bytes(most).to_string())
        };
        vec![
            self.column(memory, 60, fullest),
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
                cells: self.listed().map(|ranked| cell(ranked.point)).collect(),
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
        PageColumn::new(head, keep, self.listed().map(|ranked| cell(ranked.point)))
    }

    fn mean(
        &self,
        head: &str,
        keep: u8,
        of: impl Fn(&TrialRow) -> Option<f64>,
        print: impl Fn(f64) -> String,
    ) -> PageColumn {
        self.statistic(head, keep, of, |value| print(value.mean))
    }

    /// A column of means; one of other than the n runs of its line says of how many it is:
    /// `515 (n 1)`.
    fn statistic(
        &self,
        head: &str,
        keep: u8,
        of: impl Fn(&TrialRow) -> Option<f64>,
        print: impl Fn(Statistic) -> String,
    ) -> PageColumn {
        self.column(head, keep, |point| {
            let value = point.statistic(&of)?;
            let runs = value.runs;
            Some(match runs == self.0.runs(point) {
                true => print(value),
                false => format!("{} (n {runs})", print(value)),
            })
        })
    }
}

/// Why a trial has no rate, or has one that does not count.
fn reason(row: &TrialRow) -> Option<&str> {
    let is_left_out = any_rate(row).is_some() && ResumedCommand::is_of(row);
    let resumed = row.note(ResumedCommand::COLUMN).filter(|_| is_left_out);
    row.note("window_seconds").or(resumed)
}

fn any_rate(row: &TrialRow) -> Option<f64> {
    row.tokens_per_second.or(row.samples_per_second)
}

/// Head of a metric's column, beside the metrics of the `command`.
pub(super) fn metric_head(metric: Metric, command: &[Metric]) -> &'static str {
    match (metrics::column(metric), metric) {
        (Some(column), _) => column.head(command),
        (None, Metric::SecondsToTarget) => "to target",
        (None, other) => objective::words(other),
    }
}
