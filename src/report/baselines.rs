//! The line below a table of points on forecasts without a model. Metrics of a panel that are no
//! better than these say that the training found nothing.

use kiln_core::{
    record::TrialRow,
    spec::Metric,
    units::{Fraction, decimals},
};

use super::{points::Point, ranking::Ranking};

/// A sentence with the values of the table's metrics without a model; `None` if the table shows none
/// of these metrics, or no row has them.
pub(super) fn without_model(ranking: &Ranking<'_>) -> Option<String> {
    let points = ranking.points.iter().map(|ranked| ranked.point);
    let rows: Vec<&TrialRow> = points.flat_map(Point::completed).collect();
    // The table has this column only if it ranks the points.
    let shows_error = ranking.objective.metric() == Some(Metric::ValidMeanAbsoluteError);
    let shows_hit_rate = rows.iter().any(|row| row.valid_hit_rate.is_some());
    let error = |value| decimals(value, 4);
    let share = |value| Fraction(value).to_string();
    let error = span(&rows, |row| row.persistence_mean_absolute_error, error)
        .filter(|_| shows_error)
        .map(|error| format!("mean absolute error {error} (the price stays as it is)"));
    let hits = [
        (
            span(&rows, |row| row.majority_hit_rate, share),
            "always the more common direction",
        ),
        (
            span(&rows, |row| row.persistence_hit_rate, share),
            "the direction repeats",
        ),
    ];
    let hits: Vec<String> = hits
        .into_iter()
        .filter(|_| shows_hit_rate)
        .filter_map(|(rate, how)| Some(format!("{} ({how})", rate?)))
        .collect();
    let hits = (!hits.is_empty()).then(|| format!("hit rate {}", hits.join(" or ")));
    let parts: Vec<String> = error.into_iter().chain(hits).collect();
    (!parts.is_empty()).then(|| format!("without a model: {}", parts.join(", ")))
}

/// `0.0154`, or `0.0150 to 0.0154` where rows differ, as those of other validation samples do.
fn span(
    rows: &[&TrialRow],
    of: impl Fn(&TrialRow) -> Option<f64>,
    print: impl Fn(f64) -> String,
) -> Option<String> {
    let values = || rows.iter().filter_map(|row| of(row));
    let (least, most) = (values().reduce(f64::min)?, values().reduce(f64::max)?);
    let (least, most) = (print(least), print(most));
    Some(match least == most {
        true => least,
        false => format!("{least} to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use kiln_core::spec;

    use super::*;
    use crate::report::points::{
        points,
        tests::{row, table},
    };

    /// A trial of a panel whose validation samples have this persistence error.
    fn of_panel(id: u64, persistence: f64) -> TrialRow {
        TrialRow {
            valid_mean_absolute_error: Some(0.017),
            valid_hit_rate: Some(0.5),
            persistence_mean_absolute_error: Some(persistence),
            persistence_hit_rate: Some(0.48),
            majority_hit_rate: Some(2.0 / 3.0),
            ..row(id, 10.0)
        }
    }

    fn told(rows: [TrialRow; 2], asked: Option<Metric>) -> Option<String> {
        let [one, other] = rows;
        let table = table(
            &["model.seq_len"],
            vec![(one, &["8"][..]), (other, &["16"])],
        );
        let asked = asked.map(|metric| spec::Objective::of(metric, None));
        let all = points(&table);
        without_model(&Ranking::new(&all, &table, asked))
    }

    #[test]
    fn the_metrics_that_the_table_shows_stand_beside_forecasts_without_a_model() {
        let hits = "hit rate 66.7 % (always the more common direction) or 48.0 % (the direction \
                    repeats)";
        let error = Some(Metric::ValidMeanAbsoluteError);
        let panel = || [of_panel(1, 0.0154), of_panel(2, 0.0154)];
        assert_eq!(
            told(panel(), error),
            Some(format!(
                "without a model: mean absolute error 0.0154 (the price stays as it is), {hits}"
            ))
        );
        assert_eq!(
            told(panel(), Some(Metric::ValidHitRate)),
            Some(format!("without a model: {hits}")),
            "the table has no column of the error"
        );
        let other = told([of_panel(1, 0.0154), of_panel(2, 0.0161)], error).unwrap();
        assert!(
            other.contains("mean absolute error 0.0154 to 0.0161 (the"),
            "{other}"
        );
        assert_eq!(told([row(1, 10.0), row(2, 20.0)], None), None);
    }
}
