//! Panels of time series: found, read, split by date, converted to normalized log returns.
//!
//! In: a folder or an archive with one CSV file per symbol. Out: a [`LoadedPanel`], whose returns
//! are cut into samples by other modules. `docs/data.md` documents each number.

pub mod baseline;

mod columns;
mod files;
mod overview;
mod reader;
mod returns;
mod rows;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kiln_core::kinds::data::{Counts, Data, DataFacts, PanelShape, PanelSplit, SymbolReturns};
use sha2::{Digest, Sha256};

pub use self::columns::{LeftOutColumn, NumberColumn, PanelColumns, columns};
pub use self::overview::{ColumnOverview, PanelOverview, PanelPart, overview};
pub use self::reader::{PanelReader, PanelWindow, WindowError, symbol_of_file};
pub use self::rows::SkipReason;
use self::{
    files::CsvFile,
    returns::{Moments, Returns},
    rows::{ColumnKind, Remedies, Rows, WantedColumns, ZonePlaces},
};

use super::{
    error::{DataError, PanelError},
    files::{folders, found},
};

/// A panel in memory.
#[derive(Clone, Debug)]
pub struct LoadedPanel {
    pub shape: PanelShape,
    /// Symbols by number, which is the index of a model's embedding.
    pub symbols: Vec<SymbolSeries>,
    /// Mean and deviation of the training returns of the price, over all symbols: used to normalize
    /// targets.
    pub target_mean: f64,
    pub target_deviation: f64,
    /// Skipped rows of `null`.
    pub null_rows: u64,
    /// Skipped rows that could not be read (`data.skip_bad`).
    pub skipped_rows: u64,
    /// Skipped rows by reason.
    pub skipped: Vec<SkippedRows>,
    /// Symbols after those that `data.limit` takes.
    pub symbols_after_limit: u64,
    /// A sentence on the first file that seems to have the series of several symbols.
    pub chained: Option<String>,
    pub facts: DataFacts,
}

/// Rows that were skipped for the same reason.
#[derive(Clone, Debug, PartialEq)]
pub struct SkippedRows {
    pub reason: SkipReason,
    pub rows: u64,
    /// The name of the file with most of them, and how many it has.
    pub file: String,
    pub rows_of_file: u64,
}

/// One symbol's log returns, in time order.
#[derive(Clone, Debug)]
pub struct SymbolSeries {
    pub symbol: String,
    /// [returns, features], each feature normalized by its mean and deviation over all training
    /// returns.
    pub features: Vec<f32>,
    /// Log returns of the price, not normalized.
    pub returns: Vec<f32>,
    /// Number of returns for training; the rest is for validation.
    pub train: usize,
}

/// StockNet's folder of prices in the published archive.
const STOCKNET_INSIDE: &str = "price/raw";
const STOCKNET_COLUMNS: [&str; 6] = ["Open", "High", "Low", "Close", "Adj Close", "Volume"];

/// The remedy for a row that cannot be read.
const CORRECT_OR_SKIP: &str = "correct it, or skip such rows with `data.skip_bad: true`";

/// The settings of an experiment for a panel, the same for every kind.
struct PanelRequest<'a> {
    date: &'a str,
    price: &'a str,
    /// Default: all columns of numbers.
    columns: Option<Vec<String>>,
    /// Folder in an archive; if it exists, only its files count.
    inside: Option<&'static str>,
    skip_bad: bool,
    remedies: Remedies,
    split: &'a PanelSplit,
}

impl<'a> PanelRequest<'a> {
    /// `None` for other data.
    fn of(data: &'a Data) -> Option<Self> {
        match data {
            Data::PanelCsv(own) => Some(Self {
                date: &own.date,
                price: &own.price,
                columns: own.columns.clone(),
                inside: None,
                skip_bad: own.skip_bad,
                remedies: Remedies {
                    row: CORRECT_OR_SKIP,
                    number: match own.columns {
                        Some(_) => CORRECT_OR_SKIP,
                        None => {
                            "fill it or remove the row, skip such rows with `data.skip_bad: true`, \
                             or name the columns that the model needs in `data.columns`"
                        }
                    },
                    value: "correct it",
                },
                split: &own.split,
            }),
            Data::Stocknet(stocknet) => Some(Self {
                date: "Date",
                price: "Adj Close",
                columns: Some(STOCKNET_COLUMNS.map(str::to_owned).to_vec()),
                inside: Some(STOCKNET_INSIDE),
                skip_bad: false,
                remedies: Remedies::all(
                    "the published files have no such row; `kiln data verify stocknet` checks \
                     your files",
                ),
                split: &stocknet.split,
            }),
            _ => None,
        }
    }

    /// The parts of each file to read; the price is last unless it is among the model's columns.
    fn wanted(&self, columns: &[String]) -> WantedColumns {
        let price = columns.iter().position(|column| column == self.price);
        let more = price.is_none().then(|| self.price.to_owned());
        WantedColumns {
            date: self.date.to_owned(),
            columns: columns.iter().cloned().chain(more).collect(),
            price: price.unwrap_or(columns.len()),
            source: match self.columns {
                Some(_) => "`data.columns` names",
                None => "another file has",
            },
            skip_bad: self.skip_bad,
            remedies: self.remedies,
        }
    }
}

/// Reads the panel that `data` names. `data_folder` is `$KILN_DATA`, if set.
///
/// # Errors
/// The data does not exist or cannot be read; a column is missing; a row cannot be read (file, line
/// and column), unless `skip_bad`.
pub fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedPanel, DataError> {
    let (read, valid_fraction) = read_data(data, data_folder)?;
    Ok(assemble(read, valid_fraction))
}

/// The rows of the panel that `data` names, and the fraction of its dates that validate.
fn read_data(data: &Data, data_folder: Option<&Path>) -> Result<(Read, f64), DataError> {
    let request = PanelRequest::of(data).ok_or(DataError::OtherContent {
        kind: data.kind(),
        wanted: "panel of series",
    })?;
    let path = locate(data, data_folder)?;
    let (files, symbols_after_limit) = files::find(&path, request.inside, request.split.limit)?;
    let read = Read {
        symbols_after_limit,
        ..read(&path, files, &request)?
    };
    Ok((read, request.split.valid_fraction))
}

/// Returns the facts of the panel that `data` names.
///
/// # Errors
/// As [`load`].
pub fn facts(data: &Data, data_folder: Option<&Path>) -> Result<DataFacts, DataError> {
    load(data, data_folder).map(|panel| panel.facts)
}

/// Returns the folder or archive that `data` is read from.
///
/// # Errors
/// None of the searched places, which the error lists, contains a panel.
pub(super) fn locate(data: &Data, data_folder: Option<&Path>) -> Result<PathBuf, DataError> {
    let looked = match data.dataset() {
        Some(set) => folders(set.folder, data.path(), data_folder),
        None => data.path().map(PathBuf::from).into_iter().collect(),
    };
    // A given path is used directly: its own error is more informative than "not found".
    let given = data.path().is_some();
    for path in &looked {
        let is_there = match given {
            true => found(path)?.is_some(),
            false => files::is_there(path)?,
        };
        if is_there {
            return Ok(path.clone());
        }
    }
    Err(PanelError::NotFound {
        kind: data.kind(),
        looked,
        fetch: data.dataset().map(|set| set.name),
    }
    .into())
}

/// Whether a folder contains a panel, as CSV files or in an archive.
///
/// # Errors
/// The folder cannot be looked at.
pub(super) fn is_in(folder: &Path) -> Result<bool, DataError> {
    files::is_there(folder)
}

/// SHA-256 of StockNet's panel, as in its facts, and the size of its files: in a folder, or in an
/// archive with the current or future name `named`.
///
/// # Errors
/// There is no panel, or its files cannot be read.
pub(super) fn published_sha256(path: &Path, named: &Path) -> Result<(String, u64), DataError> {
    let inside = Some(STOCKNET_INSIDE);
    let files = if path.is_dir() {
        files::find(path, inside, None)?.0
    } else {
        files::find_in_archive(path, named, inside)?
    };
    let mut hasher = Sha256::new();
    let mut count = 0;
    for file in files {
        let bytes = file.bytes()?;
        hash(&mut hasher, &file.symbol, &bytes);
        count += bytes.len() as u64;
    }
    Ok((hex::encode(hasher.finalize()), count))
}

/// A panel's hash is over each file's name, a newline, and its bytes, in the order of the symbols.
fn hash(hasher: &mut Sha256, symbol: &str, bytes: &[u8]) {
    hasher.update(format!("{symbol}.csv\n"));
    hasher.update(bytes);
}

/// The rows of all symbols, as read.
struct Read {
    symbols: Vec<String>,
    /// Symbols after those that `data.limit` takes.
    symbols_after_limit: u64,
    rows: Vec<Rows>,
    wanted: WantedColumns,
    /// Number of columns that the model reads; one more is read if the price is not among them.
    features: usize,
    sha256: String,
}

fn read(path: &Path, files: Vec<CsvFile>, request: &PanelRequest<'_>) -> Result<Read, DataError> {
    let columns = match &request.columns {
        Some(columns) => columns.clone(),
        None => number_columns(path, &files, request.date)?,
    };
    let wanted = request.wanted(&columns);
    let mut hasher = Sha256::new();
    let (mut symbols, mut rows, mut zones) = (Vec::new(), Vec::new(), ZonePlaces::default());
    for file in files {
        let bytes = file.bytes()?;
        hash(&mut hasher, &file.symbol, &bytes);
        let of_file = rows::read(&file.path, &bytes, &wanted)?;
        rows::refuse_selection(&file.path, &bytes, &of_file, &wanted)?;
        zones.add(&file.path, &bytes, of_file.zones)?;
        rows.push(of_file);
        symbols.push(file.symbol);
    }
    Ok(Read {
        symbols,
        symbols_after_limit: 0,
        rows,
        wanted,
        features: columns.len(),
        sha256: hex::encode(hasher.finalize()),
    })
}

/// The columns of numbers of the first file that has any. Further files tell about columns without
/// a value there.
fn number_columns(path: &Path, files: &[CsvFile], date: &str) -> Result<Vec<String>, DataError> {
    let has = |columns: &[(String, ColumnKind)], wanted: ColumnKind| {
        columns.iter().any(|(_, kind)| *kind == wanted)
    };
    let mut columns: Vec<(String, ColumnKind)> = Vec::new();
    for file in files {
        let found = rows::column_kinds(&file.path, &file.bytes()?, date)?.unwrap_or_default();
        if !columns.is_empty() {
            fill_gaps(&mut columns, &found);
        } else if has(&found, ColumnKind::Numbers) {
            columns = found;
        }
        if !columns.is_empty() && !has(&columns, ColumnKind::Gaps) {
            break;
        }
    }
    columns.retain(|(_, kind)| *kind == ColumnKind::Numbers);
    if columns.is_empty() {
        return Err(PanelError::NoNumbers {
            path: path.to_owned(),
            other: other_separator(files),
        }
        .into());
    }
    Ok(columns.into_iter().map(|(name, _)| name).collect())
}

/// The first file whose cells are not separated by commas, and by what they are.
fn other_separator(files: &[CsvFile]) -> Option<(PathBuf, char)> {
    files.iter().find_map(|file| {
        let bytes = file.bytes().ok()?;
        let (names, _) = rows::open(&file.path, &bytes).ok()?;
        Some((file.path.clone(), rows::other_separator(&names)?))
    })
}

/// Takes the kinds of columns without a value from another file.
fn fill_gaps(columns: &mut [(String, ColumnKind)], other: &[(String, ColumnKind)]) {
    for (name, kind) in columns {
        let of_other = other.iter().find(|(other, _)| *other == *name);
        if let (ColumnKind::Gaps, Some((_, found))) = (*kind, of_other) {
            *kind = *found;
        }
    }
}

fn assemble(read: Read, valid_fraction: f64) -> LoadedPanel {
    let Read {
        symbols,
        symbols_after_limit,
        rows,
        wanted,
        features,
        sha256,
    } = read;
    let columns = wanted.columns.len();
    let (null_rows, skipped_rows) = rows.iter().fold((0, 0), |(null, skipped), rows| {
        (null + rows.null, skipped + rows.skipped)
    });
    let skipped = skipped_by_reason(&symbols, &rows);
    let mut files = symbols.iter().zip(&rows);
    let chained =
        files.find_map(|(symbol, rows)| Some(format!("{symbol}.csv: {}", rows.chained.as_ref()?)));
    let first_valid = returns::first_valid_date(&rows, valid_fraction);
    let positive = returns::positive_columns(&rows, columns);
    let returns: Vec<Returns> = rows
        .into_iter()
        .map(|rows| returns::of_rows(rows, &positive, first_valid))
        .collect();
    let moments = returns::training_moments(&returns, columns);
    let target = moments[wanted.price];
    let series = symbols
        .into_iter()
        .zip(returns)
        .map(|(symbol, returns)| series(symbol, &returns, &moments, features, wanted.price));
    let symbols: Vec<SymbolSeries> = series.collect();
    let counts = symbols
        .iter()
        .map(|series| SymbolReturns {
            train: series.train as u64,
            all: series.returns.len() as u64,
        })
        .collect();
    LoadedPanel {
        shape: PanelShape {
            features: features as u64,
            symbols: symbols.len() as u64,
        },
        symbols,
        target_mean: target.mean,
        target_deviation: target.deviation,
        null_rows,
        skipped_rows,
        skipped,
        symbols_after_limit,
        chained,
        facts: DataFacts {
            counts: Counts::Panel {
                features: features as u64,
                symbols: counts,
            },
            sha256,
        },
    }
}

fn skipped_by_reason(symbols: &[String], rows: &[Rows]) -> Vec<SkippedRows> {
    let mut found: BTreeMap<SkipReason, SkippedRows> = BTreeMap::new();
    for (symbol, rows) in symbols.iter().zip(rows) {
        for (reason, count) in &rows.reasons {
            let skipped = found.entry(*reason).or_insert_with(|| SkippedRows {
                reason: *reason,
                rows: 0,
                file: String::new(),
                rows_of_file: 0,
            });
            skipped.rows += count;
            if *count > skipped.rows_of_file {
                skipped.file = format!("{symbol}.csv");
                skipped.rows_of_file = *count;
            }
        }
    }
    found.into_values().collect()
}

fn series(
    symbol: String,
    returns: &Returns,
    moments: &[Moments],
    features: usize,
    price: usize,
) -> SymbolSeries {
    let rows = || returns.values.chunks_exact(moments.len());
    let seen = rows().flat_map(|row| row.iter().zip(moments).take(features));
    SymbolSeries {
        symbol,
        features: seen
            .map(|(value, moments)| moments.normalize(*value))
            .collect(),
        returns: rows().map(|row| row[price] as f32).collect(),
        train: returns.train,
    }
}

#[cfg(test)]
mod packing;
#[cfg(test)]
mod tests;
