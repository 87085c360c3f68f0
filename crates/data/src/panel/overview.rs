//! The rows, columns and dates of a panel, for a person.

use std::path::Path;

use jiff::civil::{DateTime, Time};
use kiln_core::kinds::data::{Data, SymbolReturns};
use serde::Serialize;

use super::{
    LoadedPanel, Read, assemble, read_data,
    returns::first_valid_date,
    rows::{Rows, day},
};
use crate::error::DataError;

/// The kept rows of a panel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PanelOverview {
    /// Names, in the order of their numbers.
    pub symbols: Vec<String>,
    pub columns: Vec<ColumnOverview>,
    pub train: PanelPart,
    pub valid: PanelPart,
    /// Whether the dates have offsets, and are shown in UTC; otherwise they are as written.
    pub is_utc: bool,
}

/// The numbers of a column in the rows of both parts; `None` without rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnOverview {
    pub name: String,
    /// Whether the model sees its returns.
    pub is_feature: bool,
    /// Whether the model predicts its return.
    pub is_target: bool,
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
}

/// The training or the validation part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PanelPart {
    /// Rows of all symbols.
    pub rows: u64,
    pub first_date: Option<String>,
    pub last_date: Option<String>,
    /// `None` if the length of a window is not known.
    pub samples: Option<u64>,
}

/// Reads the panel that `data` names, and describes it for windows of `seq_len` returns.
///
/// # Errors
/// As [`super::load`].
pub fn overview(
    data: &Data,
    data_folder: Option<&Path>,
    seq_len: Option<u64>,
) -> Result<(PanelOverview, LoadedPanel), DataError> {
    let (read, valid_fraction) = read_data(data, data_folder)?;
    let first_valid = first_valid_date(&read.rows, valid_fraction);
    let is_train = |date: DateTime| first_valid.is_none_or(|first| date < first);
    let columns = columns(&read);
    let mut dates = read.rows.iter().flat_map(|rows| &rows.dates);
    let has_times = dates.any(|date| date.time() != Time::midnight());
    let train = part(&read.rows, has_times, is_train);
    let valid = part(&read.rows, has_times, |date| !is_train(date));
    let is_utc = read.rows.iter().any(|rows| rows.zones.has_offset());
    let symbols = read.symbols.clone();
    let panel = assemble(read, valid_fraction);
    let [train_samples, valid_samples] = samples(&panel, seq_len);
    let overview = PanelOverview {
        symbols,
        columns,
        train: PanelPart {
            samples: train_samples,
            ..train
        },
        valid: PanelPart {
            samples: valid_samples,
            ..valid
        },
        is_utc,
    };
    Ok((overview, panel))
}

fn columns(read: &Read) -> Vec<ColumnOverview> {
    let width = read.wanted.columns.len();
    let names = read.wanted.columns.iter().enumerate();
    names
        .map(|(at, name)| {
            let mut values = Vec::new();
            for rows in &read.rows {
                values.extend(rows.values.iter().copied().skip(at).step_by(width));
            }
            let sum: f64 = values.iter().sum();
            ColumnOverview {
                name: name.clone(),
                is_feature: at < read.features,
                is_target: at == read.wanted.price,
                mean: (!values.is_empty()).then(|| sum / values.len() as f64),
                min: values.iter().copied().reduce(f64::min),
                max: values.iter().copied().reduce(f64::max),
            }
        })
        .collect()
}

/// The rows whose date is of the part; their samples are not counted. If a date of the panel has a
/// time of day, all are shown with it.
fn part(rows: &[Rows], has_times: bool, is_of_part: impl Fn(DateTime) -> bool) -> PanelPart {
    let mut dates = Vec::new();
    for rows in rows {
        let of_part = rows.dates.iter().copied().filter(|date| is_of_part(*date));
        dates.extend(of_part);
    }
    let shown = |date: DateTime| {
        if has_times {
            date.to_string()
        } else {
            day(date)
        }
    };
    PanelPart {
        rows: dates.len() as u64,
        first_date: dates.iter().copied().min().map(shown),
        last_date: dates.iter().copied().max().map(shown),
        samples: None,
    }
}

/// Training samples and validation samples.
fn samples(panel: &LoadedPanel, seq_len: Option<u64>) -> [Option<u64>; 2] {
    let Some(seq_len) = seq_len else {
        return [None, None];
    };
    let (mut train, mut valid) = (0, 0);
    for series in &panel.symbols {
        let returns = SymbolReturns {
            train: series.train as u64,
            all: series.returns.len() as u64,
        };
        train += returns.train_samples(seq_len);
        valid += returns.valid_samples(seq_len);
    }
    [Some(train), Some(valid)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_parts_and_columns_those_that_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = |rows: &[&str]| {
            let rows = rows.join("\n");
            format!("Date,Close,Volume,Note\n{rows}\n")
        };
        let written = [
            file(&[
                "2020-01-01T00:00:00Z,10,0,a",
                "2020-01-02T02:00:00+02:00,20,5,b",
                "2020-01-03T00:00:00Z,null,5,c",
                "2020-01-04T00:00:00Z,30,1,d",
            ]),
            file(&["2020-01-02T00:00:00Z,40,2,e"]),
        ];
        for (name, text) in ["A.csv", "B.csv"].iter().zip(written) {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let data = format!(
            "{{kind: panel-csv, path: {}, price: Close, columns: [Volume], valid_fraction: 0.4}}",
            folder.path().display()
        );
        let data = serde_yaml::from_str(&data).unwrap();
        let (overview, panel) = overview(&data, None, Some(1)).unwrap();
        let part = |rows, first: &str, last: &str, samples| PanelPart {
            rows,
            first_date: Some(first.to_owned()),
            last_date: Some(last.to_owned()),
            samples: Some(samples),
        };
        let column = |name: &str, is_target: bool, [mean, min, max]: [f64; 3]| ColumnOverview {
            name: name.to_owned(),
            is_feature: !is_target,
            is_target,
            mean: Some(mean),
            min: Some(min),
            max: Some(max),
        };
        let expected = PanelOverview {
            symbols: vec!["A".to_owned(), "B".to_owned()],
            columns: vec![
                column("Volume", false, [2.0, 0.0, 5.0]),
                column("Close", true, [25.0, 10.0, 40.0]),
            ],
            train: part(1, "2020-01-01", "2020-01-01", 0),
            valid: part(3, "2020-01-02", "2020-01-04", 1),
            is_utc: true,
        };
        assert_eq!(panel.null_rows, 1);
        assert_eq!(overview, expected);
    }

    #[test]
    fn every_date_of_a_panel_with_times_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let rows: String = (0..10)
            .map(|hour| format!("2024-01-01T{hour:02}:00:00,{}\n", hour + 1))
            .collect();
        std::fs::write(folder.path().join("A.csv"), format!("Date,Close\n{rows}")).unwrap();
        let data = format!(
            "{{kind: panel-csv, path: {}, price: Close, valid_fraction: 0.5}}",
            folder.path().display()
        );
        let data = serde_yaml::from_str(&data).unwrap();
        let (overview, _) = overview(&data, None, Some(1)).unwrap();
        let dates = |part: PanelPart| [part.first_date.unwrap(), part.last_date.unwrap()];
        assert_eq!(
            [overview.train, overview.valid].map(dates),
            [
                ["2024-01-01T00:00:00", "2024-01-01T04:00:00"],
                ["2024-01-01T05:00:00", "2024-01-01T09:00:00"]
            ]
        );
    }
}
