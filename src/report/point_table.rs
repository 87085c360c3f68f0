//! `summary.csv`: a narrow table with a row per point, for people to commit and to compare in a
//! diff. It is made from `trials.csv` and never read back.

use kiln_core::{
    kinds::command::METRIC_PREFIX,
    record::{TrialRow, TrialTable},
    spec::{self, Metric},
    units::significant,
};

use super::{
    energy::energy_of,
    metrics::accuracy,
    points::{Point, SAMPLES, TOKENS, order, points},
    ranking::Ranking,
};

/// A column, its meaning, and how a cell is made; cells are rounded, so that a diff shows changes
/// and not the last digits of a measurement.
struct PointColumn {
    name: &'static str,
    meaning: &'static str,
    cell: PointCell,
}

/// How the cells of a column are made.
enum PointCell {
    /// The mean of a number over a point's completed trials, as text.
    Mean(fn(&TrialRow) -> Option<f64>, fn(f64) -> String),
    /// The mean energy per sample.
    Energy,
    Text(fn(&Point<'_>) -> Option<String>),
    /// From the whole table.
    Table,
}

impl PointCell {
    fn text(&self, point: &Point<'_>) -> Option<String> {
        match self {
            Self::Mean(of, print) => mean(point, of, print),
            Self::Energy => mean(point, energy_of(point), short),
            Self::Text(text) => text(point),
            Self::Table => None,
        }
    }
}

/// The columns after those of the axes, in their order. An empty column is left out, except the
/// first three.
const COLUMNS: [PointColumn; 16] = [
    PointColumn {
        name: "completed",
        meaning: "Number of trials that completed: the n of each mean that `fewer_runs` does not \
                  name.",
        cell: PointCell::Text(|point| Some(point.completed().count().to_string())),
    },
    PointColumn {
        name: "others",
        meaning: "How the other trials ended, with their numbers: `2 oom`.",
        cell: PointCell::Text(others),
    },
    PointColumn {
        name: BEST_BY,
        meaning: "In the row of the best point, the column by which it is the best: \
                  `valid_loss`; `valid_loss and speed` in each of several rows on a Pareto front, \
                  whose leads in speed are larger than noise. Empty in all other rows.",
        cell: PointCell::Table,
    },
    PointColumn {
        name: "samples_per_second",
        meaning: "Mean over the completed trials.",
        cell: PointCell::Mean(SAMPLES.0, short),
    },
    PointColumn {
        name: "samples_per_second_deviation",
        meaning: "Sample standard deviation; empty for a single trial.",
        cell: PointCell::Text(|point| deviation(point, SAMPLES.0)),
    },
    PointColumn {
        name: "tokens_per_second",
        meaning: "Mean over the completed trials.",
        cell: PointCell::Mean(TOKENS.0, short),
    },
    PointColumn {
        name: "data_wait_fraction",
        meaning: "Mean over the completed trials, of 1.",
        cell: PointCell::Mean(|row| row.data_wait_fraction, |value| fixed(value, 3)),
    },
    PointColumn {
        name: "train_loss",
        meaning: "Mean over the completed trials.",
        cell: PointCell::Mean(|row| row.train_loss, |value| fixed(value, 4)),
    },
    PointColumn {
        name: "valid_loss",
        meaning: "Mean over the completed trials.",
        cell: PointCell::Mean(|row| row.valid_loss, |value| fixed(value, 4)),
    },
    PointColumn {
        name: "valid_loss_deviation",
        meaning: "Sample standard deviation; empty for a single trial.",
        cell: PointCell::Text(|point| {
            let deviation = point.statistic(|row| row.valid_loss)?.deviation?;
            Some(fixed(deviation, 4))
        }),
    },
    PointColumn {
        name: "accuracy",
        meaning: "Mean top-1 accuracy of images, else the hit rate of a panel, of 1; for prompts \
                  and responses BLEU-4.",
        cell: PointCell::Mean(accuracy, |value| fixed(value, 4)),
    },
    PointColumn {
        name: "peak_memory_mebibytes",
        meaning: "Largest peak: of the device's tensors, of its used memory where those are not known, on the CPU of the process.",
        cell: PointCell::Text(|point| {
            let most = point
                .completed()
                .filter_map(TrialRow::memory_held_bytes)
                .max()?;
            let mebibytes = most as f64 / f64::from(1 << 20);
            Some(if mebibytes < 1.0 {
                short(mebibytes)
            } else {
                short(mebibytes.round())
            })
        }),
    },
    PointColumn {
        name: "joules_per_sample",
        meaning: "Mean energy of the device per sample: by the driver's counter, if a trial lacks it by \
                  the power readings of all. Empty where no source has all trials; without trials whose \
                  two energies contradict each other (`energies-apart`).",
        cell: PointCell::Energy,
    },
    PointColumn {
        name: "mfu",
        meaning: "Mean model FLOPs utilization, of 1.",
        cell: PointCell::Mean(|row| row.mfu, |value| fixed(value, 3)),
    },
    PointColumn {
        name: "trial_seconds",
        meaning: "Mean wall time of a completed trial, of those that were not resumed.",
        // The row of a trial that was resumed has the time since then.
        cell: PointCell::Mean(TrialRow::whole_seconds, short),
    },
    PointColumn {
        name: FEWER_RUNS,
        meaning: "Columns whose mean is of fewer trials than `completed`, each with their number: \
                  `samples_per_second 1`. It stands last.",
        cell: PointCell::Table,
    },
];
/// Name of the column that tells the best point.
const BEST_BY: &str = "best_by";
/// Name of the column on means of fewer trials than completed.
const FEWER_RUNS: &str = "fewer_runs";
/// Columns that stand in every table.
const ALWAYS: usize = 3;

fn mean(
    point: &Point<'_>,
    of: impl Fn(&TrialRow) -> Option<f64>,
    print: impl Fn(f64) -> String,
) -> Option<String> {
    point
        .statistic(of)
        .filter(|value| value.mean.is_finite())
        .map(|value| print(value.mean))
}

/// The number of completed trials with a number.
fn runs(point: &Point<'_>, of: impl Fn(&TrialRow) -> Option<f64>) -> usize {
    point.completed().filter_map(of).count()
}

fn metric_cell(point: &Point<'_>, metric: Metric) -> Option<String> {
    mean(
        point,
        |row| row.metric_of_whole_work(metric),
        |value| match metric {
            Metric::Own(_) => significant(value),
            _ => fixed(value, 4),
        },
    )
}

/// To two significant digits: a standard deviation of a few runs has no more.
fn deviation(point: &Point<'_>, of: impl Fn(&TrialRow) -> Option<f64>) -> Option<String> {
    let deviation = point
        .statistic(of)?
        .deviation
        .filter(|value| value.is_finite())?;
    Some(rounded(deviation, 2))
}

/// Rounded to so many significant digits: what a repeat on the same machine would rarely give again
/// is left out.
fn rounded(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let places = digits - 1 - order(value);
    let scale = 10_f64.powi(places.abs());
    let whole = if places < 0 {
        (value / scale).round() * scale
    } else {
        (value * scale).round() / scale
    };
    if whole.is_finite() { whole } else { value }.to_string()
}

fn short(value: f64) -> String {
    rounded(value, 4)
}

/// With so many decimals; a number of which they would show a digit or none, or a very large one, has
/// four significant digits.
fn fixed(value: f64, decimals: i32) -> String {
    let least = 10_f64.powi(1 - decimals);
    if value == 0.0 || (least..1e6).contains(&value.abs()) {
        format!("{value:.*}", decimals as usize)
    } else {
        short(value)
    }
}

fn others(point: &Point<'_>) -> Option<String> {
    let others = point.others();
    (!others.is_empty()).then(|| others.join(" "))
}

/// The whole table; points stand in the plan's order, so that a new measurement changes cells and
/// moves no row.
pub fn point_table(table: &TrialTable, asked: Option<spec::Objective>) -> String {
    let all = points(table);
    let ranking = Ranking::new(&all, table, asked);
    let mut sheet = Sheet::of(table, &all);
    for (number, column) in COLUMNS.iter().enumerate() {
        let cells = match column.name {
            BEST_BY => best_by(&ranking, all.len()),
            _ => all.iter().map(|point| column.cell.text(point)).collect(),
        };
        if number < ALWAYS || cells.iter().any(Option::is_some) {
            sheet.add(column.name, cells);
            match column.cell {
                PointCell::Mean(of, _) => sheet.note_fewer(column.name, |point| runs(point, of)),
                PointCell::Energy => {
                    sheet.note_fewer(column.name, |point| runs(point, energy_of(point)));
                }
                PointCell::Text(_) | PointCell::Table => {}
            }
        }
    }
    // A metric that no column shows, such as an objective's error or time, then a command's own.
    let ranked = ranking.objective.metric().map(Metric::name);
    let own = table.metrics.iter().map(String::as_str);
    for name in ranked.into_iter().chain(own) {
        if !sheet.heads.iter().any(|head| head == name) {
            let metric = metric_of(name);
            let cells = all.iter().map(|point| metric_cell(point, metric));
            sheet.add(name, cells.collect());
            sheet.note_fewer(name, |point| {
                runs(point, |row| row.metric_of_whole_work(metric))
            });
        }
    }
    sheet.text()
}

/// The cells of `best_by`, point by point.
fn best_by(ranking: &Ranking<'_>, points: usize) -> Vec<Option<String>> {
    let by = ranking.column();
    let what = match ranking.has_front() {
        true => format!("{by} and speed"),
        false => by.to_owned(),
    };
    let mut cells = vec![None; points];
    for ranked in ranking.points.iter().filter(|ranked| ranked.is_marked) {
        cells[ranked.place] = Some(what.clone());
    }
    cells
}

/// The table in the making.
struct Sheet<'a> {
    points: &'a [Point<'a>],
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// For each point: the columns whose mean is of fewer trials than completed, as `mfu 1`.
    fewer: Vec<Vec<String>>,
}

impl<'a> Sheet<'a> {
    /// With the columns of the axes.
    fn of(table: &TrialTable, points: &'a [Point<'a>]) -> Self {
        Self {
            points,
            heads: table.axes.clone(),
            rows: points.iter().map(|point| point.values.to_vec()).collect(),
            fewer: vec![Vec::new(); points.len()],
        }
    }

    fn add(&mut self, name: &str, cells: Vec<Option<String>>) {
        self.heads.push(name.to_owned());
        for (row, cell) in self.rows.iter_mut().zip(cells) {
            row.push(cell.unwrap_or_default());
        }
    }

    /// `runs` counts the trials that a point's mean is of.
    fn note_fewer(&mut self, name: &str, runs: impl Fn(&Point<'_>) -> usize) {
        for (told, point) in self.fewer.iter_mut().zip(self.points) {
            let runs = runs(point);
            if runs > 0 && runs < point.completed().count() {
                told.push(format!("{name} {runs}"));
            }
        }
    }

    fn text(mut self) -> String {
        let joined = |words: &Vec<String>| (!words.is_empty()).then(|| words.join(" "));
        let fewer: Vec<Option<String>> = self.fewer.iter().map(joined).collect();
        if fewer.iter().any(Option::is_some) {
            self.add(FEWER_RUNS, fewer);
        }
        let lines = std::iter::once(&self.heads).chain(&self.rows);
        lines
            .filter_map(|cells| crate::output::csv::line(cells).ok())
            .collect()
    }
}

/// The metric of a column.
fn metric_of(column: &str) -> Metric {
    Metric::named(column.strip_prefix(METRIC_PREFIX).unwrap_or(column))
}

/// The part of `docs/tables.md` on it.
pub fn point_table_manual() -> String {
    let mut page = String::from(
        "## `summary.csv`\n\nA row per point of the sweep, for people: the table to look at and to \
         commit first. First come the axes, then the columns below; of these, empty ones behind the \
         third are left out. Before `fewer_runs` come the number that ranks the points, if no other \
         column has it (`seconds_to_target`), and a command's own metrics (`metric.NAME`): means over \
         the completed trials. Cells are rounded, and points stand in the plan's order, so that a \
         diff shows what changed. \
         kiln makes it from `trials.csv` at the end of each launch and never reads it; `kiln report \
         --write RUN` makes it again.\n\n| column | meaning |\n|---|---|\n",
    );
    for column in &COLUMNS {
        page.push_str(&format!("| `{}` | {} |\n", column.name, column.meaning));
    }
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use kiln_core::{plan::Outcome, record::note::ResumedCommand};

    use super::{
        super::points::tests::{row, table},
        *,
    };

    #[test]
    fn a_point_is_one_short_row_in_the_plans_order() {
        let trained = |id, rate, loss| TrialRow {
            valid_loss: Some(loss),
            trial_seconds: Some(12.3456),
            ..row(id, rate)
        };
        let resumed = |id, rate, loss| TrialRow {
            trial_seconds: Some(0.5),
            resumed_at_step: Some(90),
            ..trained(id, rate, loss)
        };
        let failed = TrialRow {
            outcome: Outcome::Oom,
            samples_per_second: None,
            ..row(5, 0.0)
        };
        let text = point_table(
            &table(
                &["train.optimizer.learning_rate"],
                vec![
                    (trained(1, 1000.4, 2.5), &["0.1"]),
                    (trained(2, 1010.4, 1.25), &["0.01"]),
                    (resumed(3, 1020.4, 2.7), &["0.1"]),
                    (failed, &["10"]),
                ],
            ),
            None,
        );
        assert_eq!(
            text,
            "train.optimizer.learning_rate,completed,others,best_by,samples_per_second,\
             samples_per_second_deviation,valid_loss,valid_loss_deviation,trial_seconds,\
             fewer_runs\n\
             0.1,2,,,1010,14,2.6000,0.1414,12.35,trial_seconds 1\n\
             0.01,1,,valid_loss,1010,,1.2500,,12.35,\n\
             10,0,1 oom,,,,,,,\n"
        );
    }

    /// Its wall time is of the rest, and a rate that it works out may be of another time.
    #[test]
    fn a_command_that_resumed_has_its_loss_in_the_means_and_no_times() {
        let trained = |id, rate, loss, seconds| TrialRow {
            valid_loss: Some(loss),
            trial_seconds: Some(seconds),
            ..row(id, rate)
        };
        let note = format!("{}: {}", ResumedCommand::COLUMN, ResumedCommand::TEXT);
        let resumed = TrialRow {
            notes: Some(note),
            ..trained(3, 900.0, 2.7, 1.0)
        };
        let text = point_table(
            &table(
                &["model.values.n"],
                vec![
                    (trained(1, 100.0, 2.4, 8.0), &["1"]),
                    (trained(2, 110.0, 2.5, 7.0), &["2"]),
                    (resumed, &["2"]),
                ],
            ),
            Some(spec::Objective::of(Metric::SamplesPerSecond, None)),
        );
        // Nothing is the fastest while one of the trials has no rate of its whole work.
        assert_eq!(
            text,
            "model.values.n,completed,others,best_by,samples_per_second,valid_loss,\
             valid_loss_deviation,trial_seconds,fewer_runs\n\
             1,1,,,100,2.4000,,8,\n\
             2,2,,,110,2.6000,0.1414,7,samples_per_second 1 trial_seconds 1\n"
        );
    }

    #[test]
    fn numbers_of_any_size_have_four_digits() {
        let cases = [
            (119_716.0, "119700"),
            (0.0, "0"),
            (-0.000_123_456, "-0.0001235"),
            (12.3456, "12.35"),
            (9999.6, "10000"),
        ];
        for (value, wanted) in cases {
            assert_eq!(short(value), wanted);
        }
        assert!(short(1e308).starts_with('1') && !short(f64::MIN_POSITIVE / 4.0).is_empty());
    }

    #[test]
    fn a_number_that_its_decimals_do_not_show_keeps_four_digits() {
        let cases = [
            (0.0, "0.0000"),
            (2.5, "2.5000"),
            (0.001, "0.0010"),
            (-0.000_032, "-0.000032"),
            (2.031_24e-10, "0.0000000002031"),
            (12_345_678.0, "12350000"),
        ];
        for (value, wanted) in cases {
            assert_eq!(fixed(value, 4), wanted);
        }
    }

    #[test]
    fn it_is_narrow_whatever_a_run_measured() {
        let axes = ["a.b", "a.c", "a.d", "a.e"];
        assert!(axes.len() + COLUMNS.len() <= 20);
    }

    #[test]
    fn an_objective_without_a_column_gets_one() {
        let fixed = TrialRow {
            seconds_to_target: Some(12.5),
            ..row(1, 10.0)
        };
        let asked = spec::Objective::of(Metric::SecondsToTarget, None);
        let text = point_table(&table(&["a.b"], vec![(fixed, &["1"])]), Some(asked));
        assert!(text.contains("1,1,,seconds_to_target,"), "{text}");
        assert!(text.lines().next().unwrap().ends_with(",seconds_to_target"));
    }

    #[test]
    fn a_mean_of_fewer_trials_than_completed_is_named_with_its_number() {
        let rate = |id, rate: Option<f64>| TrialRow {
            samples_per_second: rate,
            ..row(id, 0.0)
        };
        let rows: Vec<(TrialRow, &[&str])> = vec![
            (rate(1, Some(10.0)), &["1"]),
            (rate(2, None), &["1"]),
            (rate(3, Some(20.0)), &["2"]),
            (rate(4, None), &["3"]),
        ];
        assert_eq!(
            point_table(&table(&["a.b"], rows), None),
            "a.b,completed,others,best_by,samples_per_second,fewer_runs\n\
             1,2,,,10,samples_per_second 1\n\
             2,1,,,20,\n\
             3,1,,,,\n"
        );
    }

    #[test]
    fn contradicting_energies_are_not_in_the_mean_and_it_says_of_how_many_it_is() {
        let energy = |id, counter, integral| TrialRow {
            window_seconds: Some(1.0),
            energy_counter_joules: Some(counter),
            energy_integral_joules: Some(integral),
            ..row(id, 10.0)
        };
        let rows: Vec<(TrialRow, &[&str])> = vec![
            (energy(1, 50.0, 51.0), &["1"]),
            (energy(2, 90.0, 51.0), &["1"]),
        ];
        let text = point_table(&table(&["a.b"], rows), None);
        assert!(
            text.contains(",joules_per_sample,fewer_runs\n1,2,")
                && text.ends_with(",10,0,5,joules_per_sample 1\n"),
            "{text}"
        );
    }
}
