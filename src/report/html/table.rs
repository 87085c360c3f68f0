//! The table of the page: a line per point of every run, all that people sort and filter by.

mod cells;
mod number_columns;

use kiln_core::{spec::Metric, units::shorten};

use self::{
    cells::{HtmlCell, mean, of_runs, plain, sorted},
    number_columns::{COURSE, NumberColumn, RESOURCES, SPEED},
};
use crate::report::{
    baselines::without_model,
    energy::energy_of,
    findings::capitalized,
    layout::{share_of_fastest, significant},
    metrics::LEARNED,
    objective::RankingObjective,
    points::{Point, SAMPLES, TOKENS, number, outcome_counts, pieces, shown},
    ranked_table::metric_head,
    ranking::{Ranking, words::metric_with_spread},
    views::{RunView, Spots, value_of},
};

/// Axes with more values than this have no drop-down list.
const MOST_CHOICES: usize = 40;
/// From here on the value of an axis is wrapped, in bytes.
const LONG_VALUE: usize = 40;
/// Longest reason, in letters; the table in the file has all of it.
const MOST_LETTERS: usize = 240;

pub(super) struct PointTable {
    pub(super) caption: String,
    pub(super) columns: Vec<HtmlColumn>,
    pub(super) rows: Vec<HtmlRow>,
    pub(super) choices: Vec<AxisChoice>,
    /// Remarks that a reader needs to compare the rows.
    pub(super) notes: Vec<String>,
}

pub(super) struct HtmlColumn {
    pub(super) head: String,
    pub(super) meaning: String,
    pub(super) is_number: bool,
}

pub(super) struct HtmlRow {
    pub(super) is_best: bool,
    pub(super) cells: Vec<HtmlCell>,
}

/// The values of an axis to choose from.
pub(super) struct AxisChoice {
    /// Index of the column.
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

/// A point, prepared for the table.
struct HtmlLine<'a> {
    values: Vec<String>,
    point: &'a Point<'a>,
    /// Its speed as a share of that of the run's fastest point.
    share: Option<f64>,
    /// Why it ranks behind the points without failures.
    failures: Option<&'a str>,
    is_best: bool,
}

impl PointTable {
    /// The style of its columns of numbers: to the right, so that their digits compare.
    pub(super) fn alignment(&self) -> String {
        let numbers = self.columns.iter().enumerate();
        let numbers = numbers.filter(|(_, column)| column.is_number);
        let cells =
            numbers.map(|(place, _)| format!("#table :is(td, th):nth-child({})", place + 1));
        let cells: Vec<String> = cells.collect();
        match cells.is_empty() {
            true => String::new(),
            false => format!("{} {{ text-align: right; }}", cells.join(", ")),
        }
    }

    pub(super) fn of(runs: &[RunView<'_>], spots: &Spots<'_>) -> Self {
        let rankings: Vec<Ranking<'_>> = runs.iter().map(RunView::ranking).collect();
        let mut lines: Vec<HtmlLine<'_>> = Vec::new();
        // Run by run; of each the best first, then the plan's order. Runs are not ranked among each
        // other: they may not compare.
        for (of, ranking) in runs.iter().zip(&rankings) {
            let fastest = ranking.fastest();
            let line = |point, failures, is_best| HtmlLine {
                values: spots
                    .axes
                    .iter()
                    .map(|axis| value_of(of, point, axis))
                    .collect(),
                point,
                share: ranking.share(point, fastest),
                failures,
                is_best,
            };
            let ranked = ranking.points.iter();
            lines
                .extend(ranked.map(|ranked| {
                    line(ranked.point, ranked.failures.as_deref(), ranked.is_marked)
                }));
            let is_ranked =
                |place: &usize| ranking.points.iter().any(|ranked| ranked.place == *place);
            let others = (0..of.points.len()).filter(|place| !is_ranked(place));
            lines.extend(others.map(|place| line(&of.points[place], None, false)));
        }
        let mut table = Self {
            caption: caption(runs, &rankings),
            columns: Vec::new(),
            rows: Vec::new(),
            choices: choices(spots),
            notes: notes(runs, &rankings),
        };
        table.rows = lines
            .iter()
            .map(|line| HtmlRow {
                is_best: line.is_best,
                cells: Vec::new(),
            })
            .collect();
        let until_target = rankings
            .iter()
            .find(|ranking| ranking.objective.metric() == Some(Metric::SecondsToTarget));
        table.add_axes(spots, &lines);
        if let Some(ranking) = until_target {
            table.add_times(&lines, &ranking.objective);
        }
        table.fill(&lines, &metrics_of_commands(&rankings));
        table
    }

    /// `metrics` are those of commands.
    fn fill(&mut self, lines: &[HtmlLine<'_>], metrics: &[Metric]) {
        if lines.iter().any(|line| line.failures.is_some()) {
            let failures = |line: &HtmlLine<'_>| line.failures.map(str::to_owned);
            self.add(
                "failures",
                "trials for which the point ranks behind those without",
                false,
                each(lines, failures).into_iter(),
            );
        }
        let ends = lines.iter().map(|line| plain(outcomes(line.point)));
        self.add("outcome", "how its trials ended", false, ends);
        let completed = |line: &HtmlLine<'_>| plain(line.point.completed().count().to_string());
        let counts = lines.iter().map(completed);
        self.add("n", "trials that completed", true, counts);
        self.add_rates(lines);
        self.add_numbers(&SPEED, lines);
        for column in &LEARNED {
            let cell = |line: &HtmlLine<'_>| {
                let value = mean(line.point, |row| column.of(row))?;
                let text = of_runs(line.point, &value, column.text(value.mean, 4));
                Some(sorted(text, value.mean))
            };
            self.add_filled(column.head(metrics), column.meaning, lines, cell);
        }
        for metric in metrics {
            let cell = |line: &HtmlLine<'_>| {
                let value = line.point.statistic(|row| row.metric(*metric))?;
                let text = of_runs(line.point, &value, value.in_own_unit());
                Some(sorted(text, value.mean))
            };
            let meaning = "metric of the command: mean over its runs ± standard deviation";
            self.add_filled(metric_head(*metric, metrics), meaning, lines, cell);
        }
        self.add_numbers(&RESOURCES, lines);
        self.add_energy(lines);
        self.add_numbers(&COURSE, lines);
        let first = |line: &HtmlLine<'_>| Some(line.point.rows.first()?.trial.0.clone());
        self.add(
            "trial",
            "id of its first trial, for `kiln run --only`",
            false,
            each(lines, first).into_iter(),
        );
        if lines.iter().any(|line| !reason(line.point).is_empty()) {
            let reasons = lines.iter().map(|line| HtmlCell {
                class: "text",
                ..plain(reason(line.point))
            });
            self.add("reason", "why it did not complete", false, reasons);
        }
    }

    /// The values of the axes, and of a point that stands in for another how its batch is divided.
    fn add_axes(&mut self, spots: &Spots<'_>, lines: &[HtmlLine<'_>]) {
        for axis in 0..spots.axes.len() {
            let values = || lines.iter().map(|line| line.values[axis].as_str());
            let is_number = values().all(|value| number(value).is_some());
            self.add(
                spots.short(axis),
                &spots.axes[axis],
                is_number,
                values().map(|value| HtmlCell {
                    class: if value.len() > LONG_VALUE {
                        "value"
                    } else {
                        ""
                    },
                    ..plain(shown(value).to_owned())
                }),
            );
        }
        let in_pieces = |line: &HtmlLine<'_>| {
            let (batch, times) = pieces(line.point.rows.first()?)?;
            Some(format!("{batch} × {times}"))
        };
        if lines.iter().any(|line| in_pieces(line).is_some()) {
            self.add(
                "in pieces",
                "batch × accumulation of a trial that replaces one that ran out of memory",
                false,
                each(lines, in_pieces).into_iter(),
            );
        }
    }

    /// The times until the target, by which the points are ranked.
    fn add_times(&mut self, lines: &[HtmlLine<'_>], objective: &RankingObjective) {
        let cell = |line: &HtmlLine<'_>| {
            let value = line.point.statistic(|row| objective.value(row))?;
            let text = metric_with_spread(Metric::SecondsToTarget, value);
            Some(sorted(of_runs(line.point, &value, text), value.mean))
        };
        self.add_filled(
            metric_head(Metric::SecondsToTarget, &[]),
            "time until `train.target` was reached: mean over its runs ± standard deviation",
            lines,
            cell,
        );
    }

    fn add_numbers(&mut self, numbers: &[NumberColumn], lines: &[HtmlLine<'_>]) {
        for number in numbers {
            let cell = |line: &HtmlLine<'_>| number.cell(line.point);
            self.add_filled(number.head, number.meaning, lines, cell);
        }
    }

    fn add_energy(&mut self, lines: &[HtmlLine<'_>]) {
        let cell = |line: &HtmlLine<'_>| {
            let value = mean(line.point, energy_of(line.point))?;
            let text = of_runs(line.point, &value, significant(value.mean));
            Some(sorted(text, value.mean))
        };
        self.add_filled(
            "J/sample",
            "energy per sample over the window, of one source; without trials whose two energies \
             are apart",
            lines,
            cell,
        );
    }

    /// Adds a column of numbers, unless all its cells are empty.
    fn add_filled(
        &mut self,
        head: &str,
        meaning: &str,
        lines: &[HtmlLine<'_>],
        cell: impl Fn(&HtmlLine<'_>) -> Option<HtmlCell>,
    ) {
        let cells = lines.iter().map(|line| cell(line).unwrap_or_default());
        let cells: Vec<HtmlCell> = cells.collect();
        if cells.iter().any(|cell| !cell.text.is_empty()) {
            self.add(head, meaning, true, cells.into_iter());
        }
    }

    /// The speeds, and the share of that of the fastest point of the run.
    fn add_rates(&mut self, lines: &[HtmlLine<'_>]) {
        for (of, head) in [SAMPLES, TOKENS] {
            let cell = |line: &HtmlLine<'_>| {
                let rate = line.point.statistic(of)?;
                let text = of_runs(line.point, &rate, rate.with_spread());
                Some(sorted(text, rate.mean))
            };
            let meaning = "mean over its runs ± standard deviation in % of it";
            self.add_filled(head, meaning, lines, cell);
        }
        let share = |line: &HtmlLine<'_>| {
            let share = line.share?;
            Some(sorted(share_of_fastest(share), share))
        };
        let meaning = "speed over that of the fastest point of its run; of points without failures";
        self.add_filled("vs fastest", meaning, lines, share);
    }

    fn add(
        &mut self,
        head: &str,
        meaning: &str,
        is_number: bool,
        cells: impl Iterator<Item = HtmlCell>,
    ) {
        self.columns.push(HtmlColumn {
            head: head.to_owned(),
            meaning: meaning.to_owned(),
            is_number,
        });
        self.rows
            .iter_mut()
            .zip(cells)
            .for_each(|(row, cell)| row.cells.push(cell));
    }
}

/// The metrics of the commands of these runs, without repetition.
fn metrics_of_commands(rankings: &[Ranking<'_>]) -> Vec<Metric> {
    let mut found: Vec<Metric> = Vec::new();
    for metric in rankings.iter().flat_map(Ranking::metrics_of_command) {
        if !found.contains(&metric) {
            found.push(metric);
        }
    }
    found
}

/// A cell for each line, empty where there is no text.
fn each(lines: &[HtmlLine<'_>], of: impl Fn(&HtmlLine<'_>) -> Option<String>) -> Vec<HtmlCell> {
    let cell = |line| plain(of(line).unwrap_or_default());
    lines.iter().map(cell).collect()
}

/// `completed`, or `completed, oom 2`.
fn outcomes(point: &Point<'_>) -> String {
    let counts = outcome_counts(point.rows.iter().copied());
    match counts[..] {
        [(outcome, _)] => outcome.name().to_owned(),
        _ => counts
            .iter()
            .map(|(outcome, count)| format!("{} {count}", outcome.name()))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn reason(point: &Point<'_>) -> String {
    let failed = point.rows.iter().find(|row| !row.is_completed());
    let words = failed
        .and_then(|row| row.reason.as_deref())
        .unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    shorten(&words, MOST_LETTERS)
}

fn caption(runs: &[RunView<'_>], rankings: &[Ranking<'_>]) -> String {
    let spread = match rankings.iter().any(|ranking| ranking.has_repeats) {
        true => {
            "Means over the n runs of a point; ± is their standard deviation, and a single run has \
             none."
        }
        false => "One run per point (n = 1): the spread is unknown.",
    };
    let mut said = spread.to_owned();
    for (run, ranking) in runs.iter().zip(rankings) {
        let whose = if runs.len() > 1 {
            format!("Of {}: ", run.label)
        } else {
            String::new()
        };
        let is_ordered = ranking.points.iter().any(|ranked| ranked.value.is_some());
        let order = match ranking.unordered_in_words() {
            Some(why) => why.to_owned(),
            None if is_ordered => ranking.order_in_words(),
            None => "in the plan's order: no point has a comparable speed".to_owned(),
        };
        said.push_str(&format!(" {}.", capitalized(&format!("{whose}{order}"))));
    }
    said
}

fn notes(runs: &[RunView<'_>], rankings: &[Ranking<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    for (run, ranking) in runs.iter().zip(rankings) {
        let said = ranking.unequal_samples().into_iter();
        for words in said.chain(without_model(ranking)) {
            notes.push(match runs.len() {
                1 => format!("{}.", capitalized(&words)),
                _ => format!("{}: {words}.", run.label),
            });
        }
    }
    notes
}

fn choices(spots: &Spots<'_>) -> Vec<AxisChoice> {
    let values = |axis: usize| {
        spots
            .values(axis)
            .into_iter()
            .map(|value| shown(value).to_owned())
            .collect::<Vec<_>>()
    };
    let choice = |axis: usize| AxisChoice {
        place: axis,
        name: spots.short(axis).to_owned(),
        values: values(axis),
    };
    spots
        .varying()
        .into_iter()
        .map(choice)
        .filter(|choice| choice.values.len() <= MOST_CHOICES)
        .collect()
}
