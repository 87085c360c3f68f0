//! The metrics of what is learned that tables of points show: heads, meanings and texts, each
//! declared once.

use kiln_core::{
    record::TrialRow,
    spec::Metric,
    units::{Fraction, decimals},
};

/// A metric as a column.
pub(super) struct MetricColumn {
    pub(super) metric: Metric,
    head: &'static str,
    pub(super) meaning: &'static str,
    /// Rank on a page that is too narrow for all columns; the highest stay.
    pub(super) keep: u8,
    /// Whether it measures how often a model is right, and a table may show it as accuracy.
    pub(super) is_accuracy: bool,
    /// Whether it is shown in percent.
    is_share: bool,
}

pub(super) const LEARNED: [MetricColumn; 5] = [
    MetricColumn {
        metric: Metric::TrainLoss,
        head: "loss",
        meaning: "training loss",
        keep: 50,
        is_accuracy: false,
        is_share: false,
    },
    MetricColumn {
        metric: Metric::ValidLoss,
        head: "valid loss",
        meaning: "validation loss at the end",
        keep: 75,
        is_accuracy: false,
        is_share: false,
    },
    MetricColumn {
        metric: Metric::ValidTop1,
        head: "top-1",
        meaning: "share of validation images whose label has the highest output",
        keep: 76,
        is_accuracy: true,
        is_share: true,
    },
    MetricColumn {
        metric: Metric::ValidHitRate,
        head: "hit rate",
        meaning: "share of validation returns whose direction was right",
        keep: 74,
        is_accuracy: true,
        is_share: true,
    },
    MetricColumn {
        metric: Metric::ValidBleu4,
        head: "BLEU-4",
        meaning: "of the validation responses, as a fraction of 1",
        keep: 73,
        is_accuracy: true,
        is_share: false,
    },
];

impl MetricColumn {
    /// Its head; the name of its column in `trials.csv` where a metric of the `command` is named as
    /// the head.
    pub(super) fn head(&self, command: &[Metric]) -> &'static str {
        match command.iter().any(|metric| metric.key() == self.head) {
            true => self.metric.name(),
            false => self.head,
        }
    }

    pub(super) fn of(&self, row: &TrialRow) -> Option<f64> {
        row.metric(self.metric)
    }

    /// `places` are those of a value that is not in percent.
    pub(super) fn text(&self, value: f64, places: usize) -> String {
        match self.is_share {
            true => Fraction(value).to_string(),
            false => decimals(value, places),
        }
    }
}

/// The column of a metric, if tables of points show it.
pub(super) fn column(metric: Metric) -> Option<&'static MetricColumn> {
    LEARNED.iter().find(|column| column.metric == metric)
}

/// How often a model is right: the first such metric that the row has.
pub(super) fn accuracy(row: &TrialRow) -> Option<f64> {
    let columns = LEARNED.iter().filter(|column| column.is_accuracy);
    columns.filter_map(|column| column.of(row)).next()
}
