//! Reads single files as a model of a panel was trained to see them: with the panel's columns and
//! the moments of its training returns.

use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use kiln_core::{
    input,
    kinds::data::{Data, PanelShape},
    limits::DATA_BYTES,
    units::few,
};

use super::{
    read_data,
    returns::{self, Moments},
    rows::{self, Remedies, WantedColumns},
};
use crate::error::{DataError, PanelError};

/// Values that the training on a panel fixed: columns, symbols, and the mean and deviation of each
/// column.
#[derive(Clone, Debug)]
pub struct PanelReader {
    wanted: WantedColumns,
    /// Which columns are above 0 in every row of the panel.
    positive: Vec<bool>,
    moments: Vec<Moments>,
    features: usize,
    symbols: Vec<String>,
    sha256: String,
}

/// The last rows of one file, as a model sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct PanelWindow {
    /// Index of the symbol among the panel's.
    pub index: usize,
    pub symbol: String,
    /// [returns, features], normalized as in training.
    pub features: Vec<f32>,
    /// Date of the last row.
    pub date: String,
    /// Price of the last row.
    pub price: f64,
}

/// A file cannot be forecast.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    #[error("{} could not be read: {error}", .file.display())]
    Read {
        file: PathBuf,
        error: std::io::Error,
    },
    #[error(transparent)]
    Rows(PanelError),
    #[error("{}: no symbol `{symbol}` in the training data; a file is named for its symbol, and \
             there are {}", .file.display(), some(.there))]
    UnknownSymbol {
        file: PathBuf,
        symbol: String,
        there: Vec<String>,
    },
    #[error("{} has {found} rows, and a window of {seq_len} returns (`model.seq_len`) needs {}; \
             give more rows before the date to forecast", .file.display(), .seq_len + 1)]
    FewRows {
        file: PathBuf,
        found: usize,
        seq_len: usize,
    },
    #[error("{}: `{column}` is {value} at {date}, and was above 0 everywhere in the training, so that its \
             returns are ratios; give rows with a number above 0", .file.display())]
    NotPositive {
        file: PathBuf,
        date: String,
        column: String,
        value: f64,
    },
}

/// A date as files have it: without a time of day if that is midnight.
fn shown(date: DateTime) -> String {
    date.to_string().trim_end_matches("T00:00:00").to_owned()
}

/// Most symbols that a message lists.
const MOST_LISTED: usize = 12;

fn some(symbols: &[String]) -> String {
    few(symbols, MOST_LISTED)
}

impl PanelReader {
    /// Reads the panel that `data` names. `data_folder` is `$KILN_DATA`, if set.
    ///
    /// # Errors
    /// As [`super::load`].
    pub fn new(data: &Data, data_folder: Option<&Path>) -> Result<Self, DataError> {
        let (read, valid_fraction) = read_data(data, data_folder)?;
        let columns = read.wanted.columns.len();
        let first_valid = returns::first_valid_date(&read.rows, valid_fraction);
        let positive = returns::positive_columns(&read.rows, columns);
        let all: Vec<returns::Returns> = read
            .rows
            .into_iter()
            .map(|rows| returns::of_rows(rows, &positive, first_valid))
            .collect();
        Ok(Self {
            moments: returns::training_moments(&all, columns),
            positive,
            features: read.features,
            symbols: read.symbols,
            sha256: read.sha256,
            wanted: WantedColumns {
                source: "the training data has",
                remedies: Remedies::all("correct it"),
                ..read.wanted
            },
        })
    }

    /// SHA-256 of the panel, as in its facts.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    pub fn shape(&self) -> PanelShape {
        PanelShape {
            features: self.features as u64,
            symbols: self.symbols.len() as u64,
        }
    }

    /// Name of the column of the price.
    pub fn price(&self) -> &str {
        &self.wanted.columns[self.wanted.price]
    }

    /// The columns that the model reads, with the mean and the deviation of their training returns.
    pub fn columns(&self) -> Vec<(&str, f64, f64)> {
        let all = self.wanted.columns.iter().zip(&self.moments);
        all.take(self.features)
            .map(|(name, moments)| (name.as_str(), moments.mean, moments.deviation))
            .collect()
    }

    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// Mean and deviation of the training returns of the price: what targets were normalized with.
    pub fn target_moments(&self) -> (f64, f64) {
        let moments = self.moments[self.wanted.price];
        (moments.mean, moments.deviation)
    }

    /// The last `seq_len` returns of a file whose name, without `.csv`, is the symbol's.
    ///
    /// # Errors
    /// The file cannot be read, is of another symbol, or has too few rows.
    pub fn window(&self, file: &Path, seq_len: usize) -> Result<PanelWindow, WindowError> {
        let symbol = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some(index) = self.symbols.iter().position(|known| *known == symbol) else {
            return Err(WindowError::UnknownSymbol {
                file: file.to_owned(),
                symbol,
                there: self.symbols.clone(),
            });
        };
        let bytes = input::read(file, &DATA_BYTES).map_err(|error| WindowError::Read {
            file: file.to_owned(),
            error,
        })?;
        let rows = rows::read(file, &bytes, &self.wanted).map_err(WindowError::Rows)?;
        rows::refuse_selection(file, &bytes, &rows, &self.wanted).map_err(WindowError::Rows)?;
        let columns = self.wanted.columns.len();
        let found = rows.dates.len();
        if found < seq_len + 1 {
            return Err(WindowError::FewRows {
                file: file.to_owned(),
                found,
                seq_len,
            });
        }
        let of_window = rows.values.chunks_exact(columns).zip(&rows.dates);
        for (row, date) in of_window.skip(found - seq_len - 1) {
            let mut cells = row.iter().zip(&self.positive).zip(&self.wanted.columns);
            if let Some(((value, _), column)) =
                cells.find(|((value, positive), _)| **positive && **value <= 0.0)
            {
                return Err(WindowError::NotPositive {
                    file: file.to_owned(),
                    date: shown(*date),
                    column: column.clone(),
                    value: *value,
                });
            }
        }
        let date = rows.dates[found - 1];
        let price = rows.values[(found - 1) * columns + self.wanted.price];
        let returns = returns::of_rows(rows, &self.positive, None);
        let first = returns.values.len() - seq_len * columns;
        let features = returns.values[first..]
            .chunks_exact(columns)
            .flat_map(|row| {
                row.iter()
                    .zip(&self.moments)
                    .take(self.features)
                    .map(|(value, moments)| moments.normalize(*value))
            });
        Ok(PanelWindow {
            index,
            symbol,
            features: features.collect(),
            date: shown(date),
            price,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::panel::load;

    #[test]
    fn a_file_of_the_panel_is_seen_as_in_training() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, first: f64| {
            let rows: String = (0..8)
                .map(|day| {
                    let price = first + f64::from(day * day % 5);
                    format!("2024-01-0{},{price},{}\n", day + 1, day * 3)
                })
                .collect();
            fs::write(
                folder.path().join(name),
                format!("Date,Close,Volume\n{rows}"),
            )
            .unwrap();
        };
        file("A.csv", 10.0);
        file("B.csv", 20.0);
        let data: Data = serde_yaml::from_str(&format!(
            "{{kind: panel-csv, path: {}, date: Date, price: Close, valid_fraction: 0.25}}",
            folder.path().display()
        ))
        .unwrap();
        let (panel, reader) = (
            load(&data, None).unwrap(),
            PanelReader::new(&data, None).unwrap(),
        );
        assert_eq!(reader.shape(), panel.shape);
        assert_eq!(reader.sha256(), panel.facts.sha256);
        assert_eq!(
            reader.target_moments(),
            (panel.target_mean, panel.target_deviation)
        );
        let window = reader.window(&folder.path().join("B.csv"), 3).unwrap();
        let series = &panel.symbols[1];
        assert_eq!(window.features, series.features[4 * 2..]);
        assert_eq!(
            (window.index, window.date.as_str(), window.price),
            (1, "2024-01-08", 24.0)
        );
        let few = reader.window(&folder.path().join("A.csv"), 8).unwrap_err();
        assert!(
            few.to_string().contains("has 8 rows, and a window of 8"),
            "{few}"
        );
        let short = folder.path().join("more");
        fs::create_dir(&short).unwrap();
        let short = short.join("A.csv");
        fs::write(&short, "Date,Close\n2024-01-01,5\n").unwrap();
        let other = reader.window(&short, 3).unwrap_err().to_string();
        assert!(
            other.contains("no column `Volume`, which the training data has"),
            "{other}"
        );
        file("C.csv", 5.0);
        let other = reader.window(&folder.path().join("C.csv"), 3).unwrap_err();
        assert!(
            other.to_string().contains("no symbol `C`") && other.to_string().ends_with("A, B"),
            "{other}"
        );
    }

    #[test]
    fn a_zero_that_no_row_of_the_training_had_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("A.csv");
        let write = |volumes: [u32; 8]| {
            let rows = volumes.iter().enumerate();
            let rows =
                rows.map(|(day, volume)| format!("2024-01-0{},{},{volume}\n", day + 1, day + 9));
            let rows: String = rows.collect();
            fs::write(&path, format!("Date,Close,Volume\n{rows}")).unwrap();
        };
        write([5, 7, 6, 8, 9, 5, 7, 6]);
        let data: Data = serde_yaml::from_str(&format!(
            "{{kind: panel-csv, path: {}, date: Date, price: Close, valid_fraction: 0.25}}",
            folder.path().display()
        ))
        .unwrap();
        let reader = PanelReader::new(&data, None).unwrap();
        // A window of three returns is of the last four rows.
        write([5, 7, 6, 0, 9, 5, 7, 6]);
        let window = reader.window(&path, 3).unwrap();
        assert!(window.features.iter().all(|value| value.is_finite()));
        write([5, 7, 6, 8, 9, 0, 7, 6]);
        let refused = reader.window(&path, 3).unwrap_err().to_string();
        assert!(
            refused.contains("`Volume` is 0 at 2024-01-06, and was above 0 everywhere"),
            "{refused}"
        );
    }
}
