//! `summary.csv`: a narrow table with a row per point, for people to commit and to compare in a
//! diff. It is made from `trials.csv` and never read back.

use kiln_core::{
    plan::Outcome,
    record::{TrialRow, TrialTable},
    spec::{self, Metric},
    units::significant,
};

use super::{
    metrics::accuracy,
    objective::RankedBy,
    points::{Point, points},
    ranking::Ranking,
};

/// A column, its meaning, and how a cell is made; cells are rounded, so that a diff shows changes
/// and not the last digits of a measurement.
struct PointColumn {
    name: &'static str,
    meaning: &'static str,
    cell: fn(&Point<'_>) -> Option<String>,
}

/// The columns after those of the axes, in their order. An empty column is left out, except the
/// first three.
const COLUMNS: [PointColumn; 15] = [
    PointColumn {
        name: "completed",
        meaning: "Number of trials that completed: the n of all means.",
        cell: |point| Some(point.completed().count().to_string()),
    },
    PointColumn {
        name: "others",
        meaning: "How the other trials ended, with their numbers: `2 oom`.",
        cell: others,
    },
    PointColumn {
        name: "best_by",
        meaning: "In the row of the best point, the column by which it is the best: \
                  `valid_loss`; `valid_loss and speed` in each row of a Pareto front. Empty in \
                  all other rows.",
        cell: |_| None,
    },
    PointColumn {
        name: "samples_per_second",
        meaning: "Mean over the completed trials.",
        cell: |point| mean(point, |row| row.samples_per_second, short),
    },
    PointColumn {
        name: "samples_per_second_deviation",
        meaning: "Sample standard deviation; empty for a single trial.",
        cell: |point| deviation(point, |row| row.samples_per_second),
    },
    PointColumn {
        name: "tokens_per_second",
        meaning: "Mean over the completed trials.",
        cell: |point| mean(point, |row| row.tokens_per_second, short),
    },
    PointColumn {
        name: "data_wait_fraction",
        meaning: "Mean over the completed trials, of 1.",
        cell: |point| mean(point, |row| row.data_wait_fraction, |value| fixed(value, 3)),
    },
    PointColumn {
        name: "train_loss",
        meaning: "Mean over the completed trials.",
        cell: |point| metric(point, Metric::TrainLoss),
    },
    PointColumn {
        name: "valid_loss",
        meaning: "Mean over the completed trials.",
        cell: |point| metric(point, Metric::ValidLoss),
    },
    PointColumn {
        name: "valid_loss_deviation",
        meaning: "Sample standard deviation; empty for a single trial.",
        cell: |point| {
            let deviation = point.statistic(|row| row.valid_loss)?.deviation?;
            Some(fixed(deviation, 4))
        },
    },
    PointColumn {
        name: "accuracy",
        meaning: "Mean top-1 accuracy of images, else the hit rate of a panel, of 1; for prompts \
                  and responses BLEU-4.",
        cell: |point| mean(point, accuracy, |value| fixed(value, 4)),
    },
    PointColumn {
        name: "peak_memory_mebibytes",
        meaning: "Largest peak: of the device's tensors, on the CPU of the process.",
        cell: |point| {
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
        },
    },
    PointColumn {
        name: "joules_per_sample",
        meaning: "Mean energy of the device per sample.",
        cell: |point| mean(point, TrialRow::joules_per_sample, short),
    },
    PointColumn {
        name: "mfu",
        meaning: "Mean model FLOPs utilization, of 1.",
        cell: |point| mean(point, |row| row.mfu, |value| fixed(value, 3)),
    },
    PointColumn {
        name: "trial_seconds",
        meaning: "Mean wall time of a completed trial.",
        cell: |point| mean(point, |row| row.trial_seconds, short),
    },
];
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

fn metric(point: &Point<'_>, metric: Metric) -> Option<String> {
    mean(
        point,
        |row| row.metric(metric),
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
    let places = digits - 1 - value.abs().log10().floor() as i32;
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
    let ended = Outcome::ALL
        .into_iter()
        .filter(|outcome| *outcome != Outcome::Completed);
    let told: Vec<String> = ended
        .map(|outcome| {
            (
                outcome,
                point
                    .rows
                    .iter()
                    .filter(|row| row.outcome == outcome)
                    .count(),
            )
        })
        .filter(|(_, count)| *count > 0)
        .map(|(outcome, count)| format!("{count} {outcome}"))
        .collect();
    (!told.is_empty()).then(|| told.join(" "))
}

/// The whole table; points stand in the plan's order, so that a new measurement changes cells and
/// moves no row.
pub fn point_table(table: &TrialTable, asked: Option<spec::Objective>) -> String {
    let all = points(table);
    let ranking = Ranking::new(&all, table, asked);
    let is_best = |place: usize| {
        let mut ranked = ranking.points.iter();
        ranked.any(|ranked| ranked.place == place && ranked.is_marked)
    };
    let by = ranking.objective.column(table);
    let best_by = match ranking.objective.is_trade_off {
        true => format!("{by} and speed"),
        false => by.to_owned(),
    };
    let mut heads: Vec<String> = table.axes.clone();
    let mut rows: Vec<Vec<String>> = all.iter().map(|point| point.values.to_vec()).collect();
    for (number, column) in COLUMNS.iter().enumerate() {
        let cells: Vec<String> = match column.name {
            "best_by" => (0..all.len())
                .map(|place| if is_best(place) { &best_by } else { "" }.to_owned())
                .collect(),
            _ => all
                .iter()
                .map(|point| (column.cell)(point).unwrap_or_default())
                .collect(),
        };
        if number >= ALWAYS && cells.iter().all(String::is_empty) {
            continue;
        }
        heads.push(column.name.to_owned());
        rows.iter_mut()
            .zip(cells)
            .for_each(|(row, cell)| row.push(cell));
    }
    // A metric that no column shows, such as an objective's error or time.
    if let RankedBy::Metric(own, _) = ranking.objective.by
        && !heads.iter().any(|head| head == own.name())
    {
        heads.push(own.name().to_owned());
        for (row, point) in rows.iter_mut().zip(&all) {
            row.push(metric(point, own).unwrap_or_default());
        }
    }
    for own in &table.metrics {
        if heads.contains(own) {
            continue;
        }
        heads.push(own.clone());
        for (row, point) in rows.iter_mut().zip(&all) {
            let value = mean(point, |row| row.metric_of_column(own), significant);
            row.push(value.unwrap_or_default());
        }
    }
    let lines = std::iter::once(&heads).chain(&rows);
    lines
        .filter_map(|cells| crate::output::csv::line(cells).ok())
        .collect()
}

/// The part of `docs/tables.md` on it.
pub fn point_table_manual() -> String {
    let mut page = String::from(
        "## `summary.csv`\n\nA row per point of the sweep, for people: the table to look at and to \
         commit first. First come the axes, then the columns below; empty ones are left out. Cells \
         are rounded, and points stand in the plan's order, so that a diff shows what changed. \
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
                    (trained(3, 1020.4, 2.7), &["0.1"]),
                    (failed, &["10"]),
                ],
            ),
            None,
        );
        assert_eq!(
            text,
            "train.optimizer.learning_rate,completed,others,best_by,samples_per_second,\
             samples_per_second_deviation,valid_loss,valid_loss_deviation,trial_seconds\n\
             0.1,2,,,1010,14,2.6000,0.1414,12.35\n\
             0.01,1,,valid_loss,1010,,1.2500,,12.35\n\
             10,0,1 oom,,,,,,\n"
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
        assert!(axes.len() + COLUMNS.len() < 20);
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
}
