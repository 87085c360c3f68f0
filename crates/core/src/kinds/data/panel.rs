//! Keys of the data kinds with many parallel time series, one file per symbol.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Content, Loader,
    dataset::{Checksum, Dataset, DatasetFile, Origin},
    kind::{DataKind, has},
    tenth,
};

/// The user's own time series: a folder or an archive with one CSV file per symbol, a date and
/// numbers in each row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PanelCsv {
    /// The folder, or an archive of it (.tar, .tar.gz, .tar.xz, .zip); a relative path is relative
    /// to the directory where kiln was started.
    pub path: String,
    /// Column with the date (2012-09-04); dates ascend.
    #[serde(default = "date")]
    pub date: String,
    /// Column whose next log return is predicted; its values are positive.
    pub price: String,
    /// Columns that the model reads as log returns, each normalized over all training rows;
    /// default: every column of numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// Whether rows that cannot be read are skipped and counted; otherwise the first one is an
    /// error. Rows with a `null` are always skipped.
    #[serde(default)]
    pub skip_bad: bool,
    #[serde(flatten)]
    pub split: PanelSplit,
    #[serde(flatten)]
    pub loader: Loader,
}

/// StockNet's daily prices of 88 US stocks, 2012-09-04 to 2017-09-01, as a panel. Source: Xu &
/// Cohen 2018 (ACL).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stocknet {
    /// Folder with the archive or the CSV files; default `$KILN_DATA/stocknet-88`, else
    /// `data/stocknet-88`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(flatten)]
    pub split: PanelSplit,
    #[serde(flatten)]
    pub loader: Loader,
}

/// The target of the prediction, the symbols, and the split into training and validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PanelSplit {
    /// `return` predicts the next row's log return of the price, `direction` whether it is above 0.
    #[serde(default)]
    pub target: PanelTarget,
    /// Fraction of the dates, from the end, whose returns are used for validation and never for
    /// training.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: f64,
    /// Number of symbols to read, from the first in byte order; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub limit: Option<u64>,
}

/// The target of the prediction in the next row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PanelTarget {
    /// Its log return; the loss is the squared error in units of the standard deviation of the
    /// training returns.
    #[default]
    Return,
    /// Whether its log return is above 0; the loss is the cross entropy.
    Direction,
}

/// Number of features per row, and number of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PanelShape {
    pub features: u64,
    pub symbols: u64,
}

/// Log returns of one symbol in time order: the first `train` are for training, the rest for
/// validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolReturns {
    pub train: u64,
    pub all: u64,
}

impl SymbolReturns {
    /// Training samples: `seq_len` returns as input, the next return as target; all targets are
    /// among the first `train`.
    pub fn train_samples(self, seq_len: u64) -> u64 {
        self.train.saturating_sub(seq_len)
    }

    /// Validation samples: their targets come after the training returns; their windows may overlap
    /// them.
    pub fn valid_samples(self, seq_len: u64) -> u64 {
        self.all.saturating_sub(self.train.max(seq_len))
    }
}

fn date() -> String {
    "Date".to_owned()
}

impl DataKind for PanelCsv {
    fn kind(&self) -> &'static str {
        "panel-csv"
    }

    fn content(&self) -> Content {
        Content::Panel
    }

    has!(loader);
    has!(path);
    has!(panel);
}

/// Xu & Cohen 2018 ("Stock Movement Prediction from Tweets and Historical Prices"): the repository
/// that contains the prices.
static STOCKNET: Dataset = Dataset {
    name: "stocknet",
    folder: "stocknet-88",
    about: "StockNet, daily prices of 88 US stocks",
    licence: "MIT",
    address: "https://github.com/yumoxu/stocknet-dataset/archive/",
    files: &[DatasetFile {
        name: "master.zip",
        ending: "",
        bytes: None,
        checksum: Checksum::Panel(Cow::Borrowed(
            "c5b586fa3c8964c62b679800eafe9cb324ba1b84a4557ff138e5bbe0f95a6faf",
        )),
        origin: Origin::Set,
    }],
    forms: &[],
};

impl DataKind for Stocknet {
    fn kind(&self) -> &'static str {
        "stocknet"
    }

    fn content(&self) -> Content {
        Content::Panel
    }

    has!(loader);
    has!(folder);
    has!(panel);

    fn dataset() -> Option<&'static Dataset> {
        Some(&STOCKNET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_return_that_has_a_whole_window_before_it_is_a_target_once() {
        for all in 0..12 {
            for train in 0..=all {
                let returns = SymbolReturns { train, all };
                for seq_len in 1..6 {
                    let targets = (0..all).filter(|at| *at >= seq_len);
                    let (early, late): (Vec<u64>, Vec<u64>) = targets.partition(|at| *at < train);
                    assert_eq!(
                        (
                            returns.train_samples(seq_len),
                            returns.valid_samples(seq_len)
                        ),
                        (early.len() as u64, late.len() as u64)
                    );
                }
            }
        }
    }
}
