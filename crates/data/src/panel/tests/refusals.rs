//! Data that is refused instead of being used in part.

use super::*;

/// Rows of January 2020 with these cells after the date.
fn rows(header: &str, cells: &[&str]) -> String {
    let row = |(day, cells): (usize, &&str)| format!("2020-01-{:02},{cells}\n", day + 1);
    let rows: String = cells.iter().enumerate().map(row).collect();
    format!("{header}\n{rows}")
}

#[test]
fn a_gap_in_the_first_row_of_a_column_of_numbers_is_an_error() {
    for gap in ["", "NaN", "NA"] {
        let first = format!("1,{gap},a");
        let text = rows("Date,Close,Mean,Name", &[&first, "2,5,b", "3,6,c", "4,7,d"]);
        let (_holder, path) = folder(&[("A.csv", &text)]);
        let error = fault(&path, "");
        for part in ["A.csv:2:14: `Mean` is ", "fill it", "skip_bad", "`data.columns`"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert_eq!(loaded(&path, ", columns: [Close]").shape.features, 1);
        let panel = loaded(&path, ", skip_bad: true");
        assert_eq!((panel.shape.features, panel.skipped_rows), (2, 1));
    }
}

#[test]
fn a_column_without_a_value_is_judged_by_the_next_file() {
    let gaps = rows("Date,Close,Mean,Empty", &["1,,", "2,,"]);
    let numbers = rows("Date,Close,Mean,Empty", &["1,5,", "2,6,"]);
    let (_holder, path) = folder(&[("A.csv", &gaps), ("B.csv", &numbers)]);
    assert!(fault(&path, "").contains("A.csv:2:14: `Mean` is empty"));
    let (_holder, path) = folder(&[("A.csv", &gaps), ("B.csv", &gaps)]);
    assert_eq!(loaded(&path, "").shape.features, 1);
}
