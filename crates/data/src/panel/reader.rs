//! Reads single files as a model of a panel was trained to see them: with the panel's columns and
//! the moments of its training returns.

use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use kiln_core::{
    input,
    kinds::data::{Counts, Data, DataFacts, PanelShape, SymbolReturns},
    limits::DATA_BYTES,
    units::few,
};

use super::{
    LoadedPanel, SymbolSeries, read_data,
    returns::{self, Moments},
    rows::{self, Remedies, Rows, WantedColumns},
    series,
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
    /// Whether at least half of the training returns of the price are above 0.
    majority_rises: bool,
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

/// A file cannot be forecast, or evaluated on.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    #[error("{} could not be read: {error}", .file.display())]
    Read {
        file: PathBuf,
        error: std::io::Error,
    },
    #[error(transparent)]
    Rows(PanelError),
    #[error("{} is a folder; name its files, such as `{}`", .file.display(), .file.join("*.csv").display())]
    Folder { file: PathBuf },
    #[error("{} is compressed, and the files of symbols are read as plain CSV; decompress it", .file.display())]
    Compressed { file: PathBuf },
    #[error("{}: no symbol `{symbol}` in the training data; a file is named for its symbol, and \
             there are {}", .file.display(), some(.there))]
    UnknownSymbol {
        file: PathBuf,
        symbol: String,
        there: Vec<String>,
    },
    #[error("{}: another file is also of symbol `{symbol}`; name one file per symbol", .file.display())]
    Twice { file: PathBuf, symbol: String },
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

/// The symbol that a file is named for.
pub fn symbol_of_file(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Endings of the names of compressed files, none of which is read here.
const UNREADABLE: [&str; 5] = ["gz", "xz", "zip", "bz2", "zst"];

/// Errors: it is a folder or compressed.
fn check_type(file: &Path) -> Result<(), WindowError> {
    let ending = file.extension().and_then(|ending| ending.to_str());
    if file.is_dir() {
        return Err(WindowError::Folder {
            file: file.to_owned(),
        });
    }
    match ending.is_some_and(|ending| UNREADABLE.contains(&ending)) {
        true => Err(WindowError::Compressed {
            file: file.to_owned(),
        }),
        false => Ok(()),
    }
}

fn majority_rises(symbols: &[returns::Returns], columns: usize, price: usize) -> bool {
    let training = || {
        symbols
            .iter()
            .flat_map(|symbol| symbol.values.chunks_exact(columns).take(symbol.train))
    };
    // As the returns of a panel, in f32.
    let rises = training().filter(|row| row[price] as f32 > 0.0).count();
    2 * rises >= training().count()
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
        let price = read.wanted.price;
        Ok(Self {
            moments: returns::training_moments(&all, columns),
            majority_rises: majority_rises(&all, columns, price),
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

    /// Whether at least half of the training returns of the price are above 0.
    pub fn majority_rises(&self) -> bool {
        self.majority_rises
    }

    /// Files as one panel, all of whose returns are for validation. Each symbol has the number that
    /// it had in training; one without a file has no returns.
    ///
    /// # Errors
    /// A file cannot be read, or is of another symbol or of the same as another file.
    pub fn panel(&self, files: &[PathBuf]) -> Result<LoadedPanel, WindowError> {
        let empty = |symbol: &String| SymbolSeries {
            symbol: symbol.clone(),
            features: Vec::new(),
            returns: Vec::new(),
            train: 0,
        };
        let mut symbols: Vec<SymbolSeries> = self.symbols.iter().map(empty).collect();
        let (mut null_rows, mut skipped_rows) = (0, 0);
        for (number, file) in files.iter().enumerate() {
            let (index, rows) = self.rows(file)?;
            let symbol = &self.symbols[index];
            if files[..number]
                .iter()
                .any(|earlier| symbol_of_file(earlier) == *symbol)
            {
                return Err(WindowError::Twice {
                    file: file.clone(),
                    symbol: symbol.clone(),
                });
            }
            self.check_positive(file, &rows, 0)?;
            null_rows += rows.null;
            skipped_rows += rows.skipped;
            let found = returns::Returns {
                train: 0,
                ..returns::of_rows(rows, &self.positive, None)
            };
            let (moments, price) = (&self.moments, self.wanted.price);
            symbols[index] = series(symbol.clone(), &found, moments, self.features, price);
        }
        let (target_mean, target_deviation) = self.target_moments();
        let counts = symbols.iter().map(|series| SymbolReturns {
            train: 0,
            all: series.returns.len() as u64,
        });
        Ok(LoadedPanel {
            shape: self.shape(),
            target_mean,
            target_deviation,
            null_rows,
            skipped_rows,
            skipped: Vec::new(),
            symbols_after_limit: 0,
            chained: None,
            facts: DataFacts {
                counts: Counts::Panel {
                    features: self.features as u64,
                    symbols: counts.collect(),
                },
                sha256: String::new(),
            },
            symbols,
        })
    }

    /// The rows of a file whose name, without `.csv`, is the symbol's, after the number of the
    /// symbol.
    fn rows(&self, file: &Path) -> Result<(usize, Rows), WindowError> {
        check_type(file)?;
        let symbol = symbol_of_file(file);
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
        Ok((index, rows))
    }

    /// Errors: a row after the first `skipped` has a number that the training's ratios exclude.
    fn check_positive(&self, file: &Path, rows: &Rows, skipped: usize) -> Result<(), WindowError> {
        let columns = self.wanted.columns.len();
        let checked = rows.values.chunks_exact(columns).zip(&rows.dates);
        for (row, date) in checked.skip(skipped) {
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
        Ok(())
    }

    /// The last `seq_len` returns of a file whose name, without `.csv`, is the symbol's.
    ///
    /// # Errors
    /// The file cannot be read, is of another symbol, or has too few rows.
    pub fn window(&self, file: &Path, seq_len: usize) -> Result<PanelWindow, WindowError> {
        let (index, rows) = self.rows(file)?;
        let symbol = self.symbols[index].clone();
        let columns = self.wanted.columns.len();
        let found = rows.dates.len();
        if found < seq_len + 1 {
            return Err(WindowError::FewRows {
                file: file.to_owned(),
                found,
                seq_len,
            });
        }
        self.check_positive(file, &rows, found - seq_len - 1)?;
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
    use crate::panel::{baseline, load};

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
    fn files_become_a_panel_of_which_nothing_is_for_training() {
        let folder = tempfile::tempdir().unwrap();
        for (name, first) in [("A.csv", 10), ("B.csv", 20), ("C.csv", 30)] {
            let rows: String = (0..8)
                .map(|day| format!("2024-01-0{},{}\n", day + 1, first + day * day % 5))
                .collect();
            fs::write(folder.path().join(name), format!("Date,Close\n{rows}")).unwrap();
        }
        let data: Data = serde_yaml::from_str(&format!(
            "{{kind: panel-csv, path: {}, date: Date, price: Close, valid_fraction: 0.25}}",
            folder.path().display()
        ))
        .unwrap();
        let whole = load(&data, None).unwrap();
        let reader = PanelReader::new(&data, None).unwrap();
        let file = |name: &str| folder.path().join(name);
        let found = reader.panel(&[file("C.csv"), file("B.csv")]).unwrap();
        assert_eq!(
            (found.shape, found.target_mean, found.target_deviation),
            (whole.shape, whole.target_mean, whole.target_deviation)
        );
        assert!(found.symbols[0].returns.is_empty() && found.symbols[0].features.is_empty());
        for index in [1, 2] {
            let (one, other) = (&found.symbols[index], &whole.symbols[index]);
            assert_eq!(
                (&one.symbol, &one.features, &one.returns, one.train),
                (&other.symbol, &other.features, &other.returns, 0)
            );
        }
        let baselines = |panel| baseline::with_majority(panel, 2, reader.majority_rises());
        assert_eq!(
            baselines(&whole),
            baseline::baselines(&whole, 2),
            "the majority is that of the training"
        );
        let twice = reader.panel(&[file("C.csv"), file("C.csv")]).unwrap_err();
        assert!(twice.to_string().contains("also of symbol `C`"), "{twice}");
        let all = reader.panel(&[folder.path().to_owned()]).unwrap_err();
        assert!(
            all.to_string()
                .contains(" is a folder; name its files, such as `")
                && all.to_string().ends_with("/*.csv`"),
            "{all}"
        );
        let packed = reader.panel(&[file("C.csv.gz")]).unwrap_err().to_string();
        assert!(
            packed.contains("C.csv.gz is compressed") && packed.ends_with("decompress it"),
            "{packed}"
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
