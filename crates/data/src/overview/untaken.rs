//! Rows and symbols that keys of an experiment leave out, and symbols without a sample.

use std::collections::BTreeMap;

use kiln_core::{kinds::data::PairSampling, units::few};

use crate::{left_out::counted, pairs::LoadedPairs, panel::LoadedPanel};

/// Most symbols that are named; the others are counted.
const MOST_NAMED: usize = 5;

/// Rows of prompts and responses after those that `train_rows` and `valid_rows` take.
pub(super) fn rows(found: &LoadedPairs, sampling: &PairSampling) -> BTreeMap<String, u64> {
    let [all_train, all_valid] = found.all_rows;
    let untaken = |part: &str, key: &str, all: u64, taken: Option<u64>| {
        let taken = taken.unwrap_or(all);
        let words = ["row", "rows"]
            .map(|rows| format!("{part} {rows} after the first {taken} (`data.{key}`)"));
        (words, all.saturating_sub(taken))
    };
    counted([
        untaken("training", "train_rows", all_train, sampling.train_rows),
        untaken("validation", "valid_rows", all_valid, sampling.valid_rows),
    ])
}

/// Symbols after those that `limit` takes, and those that are too short for a sample.
pub(super) fn symbols(found: &LoadedPanel, seq_len: Option<u64>) -> BTreeMap<String, u64> {
    let taken = found.symbols.len();
    let short: Vec<String> = found
        .symbols
        .iter()
        .filter(|series| seq_len.is_some_and(|seq_len| series.returns.len() as u64 <= seq_len))
        .map(|series| series.symbol.clone())
        .collect();
    let names = few(&short, MOST_NAMED);
    let words = ["symbol", "symbols"];
    counted([
        (
            words.map(|symbols| format!("{symbols} after the first {taken} (`data.limit`)")),
            found.symbols_after_limit,
        ),
        (
            words.map(|symbols| format!("{symbols} with too few rows for a sample ({names})")),
            short.len() as u64,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use crate::overview::overview;

    fn left_out(data: &str) -> Vec<(String, u64)> {
        let data = serde_yaml::from_str(data).unwrap();
        let found = overview(&data, Some(2), None).unwrap();
        found.left_out.into_iter().collect()
    }

    #[test]
    fn symbols_after_the_limit_and_without_a_sample_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let written = [
            ("header", 0),
            ("long", 20),
            ("one", 1),
            ("short", 3),
            ("z", 20),
        ];
        for (name, rows) in written {
            let rows = (1..=rows).map(|day| format!("2020-01-{day:02},{day}\n"));
            let text = format!("Date,Close\n{}", rows.collect::<String>());
            std::fs::write(folder.path().join(format!("{name}.csv")), text).unwrap();
        }
        let path = folder.path().display();
        let data = |limit: &str| {
            left_out(&format!(
                "{{kind: panel-csv, path: {path}, price: Close, columns: [Close]{limit}}}"
            ))
        };
        let short = (
            "symbols with too few rows for a sample (header, one, short)".to_owned(),
            3,
        );
        let untaken = ("symbol after the first 4 (`data.limit`)".to_owned(), 1);
        assert_eq!(data(", limit: 4"), [untaken, short.clone()]);
        assert_eq!(data(""), [short]);
    }

    #[test]
    fn rows_after_the_first_ones_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let [rows, tokenizer] = ["rows.jsonl", "t.json"].map(|name| folder.path().join(name));
        let words = include_str!("../../../../tests/tokenizer.json");
        std::fs::write(&tokenizer, words).unwrap();
        let row = "{\"prompt\": \"a\", \"response\": \"b\"}\n";
        std::fs::write(&rows, row.repeat(20)).unwrap();
        let (rows, tokenizer) = (rows.display(), tokenizer.display());
        let data = |keys: &str| {
            left_out(&format!(
                "{{kind: sft-jsonl, path: {rows}, tokenizer: {tokenizer}{keys}}}"
            ))
        };
        let train = (
            "training rows after the first 5 (`data.train_rows`)".to_owned(),
            13,
        );
        assert_eq!(
            data(", train_rows: 5, valid_rows: 2"),
            std::slice::from_ref(&train)
        );
        let valid = (
            "validation row after the first 1 (`data.valid_rows`)".to_owned(),
            1,
        );
        assert_eq!(data(", train_rows: 5, valid_rows: 1"), [train, valid]);
        let own_file = data(&format!(", valid_path: {rows}, valid_rows: 1"));
        let valid = (
            "validation rows after the first 1 (`data.valid_rows`)".to_owned(),
            19,
        );
        assert_eq!(own_file, [valid]);
        assert!(data("").is_empty());
    }
}
