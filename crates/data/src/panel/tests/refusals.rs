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
        for part in [
            "A.csv:2:14: `Mean` is ",
            "fill it",
            "skip_bad",
            "`data.columns`",
        ] {
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

#[test]
fn rows_that_can_be_read_are_not_offered_to_be_skipped() {
    for bad in [
        "2020-01-03,-1",
        "2020-01-03,0",
        "2020-01-01,1",
        "2020-01-02,1",
    ] {
        let text = format!("Date,Close\n2020-01-01,1\n2020-01-02,2\n{bad}\n2020-01-04,1\n");
        let (_holder, path) = folder(&[("A.csv", &text)]);
        let error = fault(&path, "");
        assert!(
            error.ends_with("; correct it") && !error.contains("skip_bad"),
            "{error}"
        );
    }
}

#[test]
fn skipping_does_not_select_rows_by_their_value() {
    let with_bad = |good: usize, bad: usize| {
        let good: Vec<String> = (1..=good).map(|price| format!("{price},1")).collect();
        let mut cells: Vec<&str> = good.iter().map(String::as_str).collect();
        for _ in 0..bad {
            cells.insert(1, "1,-1");
        }
        rows("Date,Close,Change", &cells)
    };
    // One row may always be skipped.
    let (_holder, path) = folder(&[("A.csv", &with_bad(15, 1))]);
    assert_eq!(loaded(&path, ", skip_bad: true").skipped[0].rows, 1);
    let (_holder, path) = folder(&[("A.csv", &with_bad(19, 1))]);
    let panel = loaded(&path, ", skip_bad: true");
    assert_eq!(
        panel.skipped,
        [SkippedRows {
            reason: SkipReason::BelowZero,
            rows: 1,
            file: "A.csv".to_owned(),
            rows_of_file: 1,
        }]
    );
    let (_holder, path) = folder(&[("A.csv", &with_bad(17, 2))]);
    let error = fault(&path, ", skip_bad: true");
    assert!(
        error
            .contains("A.csv: `data.skip_bad` would skip 2 rows with a number below 0, of 19 rows"),
        "{error}"
    );
}

#[test]
fn dates_that_only_descend_are_newest_first() {
    let text = "Date,Close\n2020-01-03,1\n2020-01-02,2\n2020-01-01,3\n";
    let (_holder, path) = folder(&[("A.csv", text)]);
    for keys in ["", ", skip_bad: true"] {
        let error = fault(&path, keys);
        assert!(
            error.ends_with("newest first; sort it by date, oldest first"),
            "{error}"
        );
    }
    let text = text.replace("2020-01-01", "2020-01-04");
    let (_holder, path) = folder(&[("A.csv", &text)]);
    assert!(!fault(&path, "").contains("newest first"));
}

#[test]
fn dates_that_repeat_for_each_symbol_are_a_long_table() {
    let by_date = "Date,Close,Name\n2020-01-01,1,x\n2020-01-01,9,y\n2020-01-02,2,x\n\
                   2020-01-02,8,y\n";
    let by_symbol = "Date,Close,Name\n2020-01-01,1,x\n2020-01-02,2,x\n2020-01-01,9,y\n\
                     2020-01-02,8,y\n";
    for text in [by_date, by_symbol] {
        let (_holder, path) = folder(&[("A.csv", text)]);
        for keys in ["", ", skip_bad: true"] {
            let error = fault(&path, keys);
            assert!(
                error.ends_with("this looks like a long table; write one file per `Name`"),
                "{error}"
            );
        }
    }
    // One row twice is no long table.
    let twice = by_date.replace(",y\n", ",x\n");
    let (_holder, path) = folder(&[("A.csv", &twice)]);
    assert!(!fault(&path, "").contains("long table"));
}

#[test]
fn dates_with_and_without_a_time_zone_do_not_mix() {
    let zoned = "Date,Close\n2020-03-01T09:30:00-05:00,1\n2020-03-01T10:30:00-05:00,2\n";
    let local = "Date,Close\n2020-03-01 09:30,1\n2020-03-01 10:30,2\n";
    let (_holder, path) = folder(&[("A.csv", local), ("B.csv", zoned)]);
    let error = fault(&path, "");
    assert!(
        error.contains("B.csv:2), and others have none (") && error.contains("A.csv:2); write all"),
        "{error}"
    );
    let both = format!("{zoned}2020-03-01 11:30,3\n");
    let (_holder, path) = folder(&[("A.csv", &both)]);
    for keys in ["", ", skip_bad: true"] {
        let error = fault(&path, keys);
        assert!(
            error.contains("A.csv:2), and others have none (") && error.contains("A.csv:4);"),
            "{error}"
        );
    }
    for alike in [zoned, local] {
        let (_holder, path) = folder(&[("A.csv", alike), ("B.csv", alike)]);
        assert_eq!(loaded(&path, "").symbols.len(), 2);
    }
}

#[test]
fn another_separator_and_another_encoding_are_named() {
    let semicolons = "Date;Close\n2020-01-01;1,5\n2020-01-02;2,5\n";
    let (_holder, path) = folder(&[("A.csv", semicolons)]);
    let error = fault(&path, "");
    assert!(
        error.contains("A.csv they are separated by `;`, not by `,`")
            && !error.contains("columns`"),
        "{error}"
    );
    let text = "Date,Close\n2020-01-01,1\n";
    let utf16 = [0xff, 0xfe]
        .into_iter()
        .chain(text.encode_utf16().flat_map(u16::to_le_bytes))
        .collect::<Vec<u8>>();
    fs::write(path.join("A.csv"), utf16).unwrap();
    for keys in ["", ", columns: [Close]"] {
        let error = fault(&path, keys);
        assert!(
            error.contains("A.csv is not UTF-8 text") && error.contains("`iconv -f utf-16"),
            "{error}"
        );
    }
}

/// Words about a file of 100 rows with these names, whose price jumps at row `jump`.
fn chained(name_of: impl Fn(u32) -> String, jump: u32) -> Option<String> {
    let row = |row: u32| {
        let day = format!("2020-{:02}-{:02}", 1 + row / 28, 1 + row % 28);
        let price = 10 + row * 7 % 5 + if row < jump { 0 } else { 500 };
        format!("{day},{price},{}\n", name_of(row))
    };
    let rows: String = (0..100).map(row).collect();
    let (_holder, path) = folder(&[("A.csv", &format!("Date,Close,Name\n{rows}"))]);
    loaded(&path, "").chained
}

#[test]
fn series_that_follow_each_other_in_a_file_are_noticed() {
    let two = |row: u32| if row < 42 { "x" } else { "y" }.to_owned();
    let found = chained(two, 42).unwrap();
    assert!(
        found.starts_with("A.csv: column `Name` changes from `x` to `y` in line 44,")
            && found.ends_with("write one file per `Name`"),
        "{found}"
    );
    assert_eq!(chained(two, 0), None, "no step of the price");
    assert_eq!(chained(|_| "x".to_owned(), 42), None);
    assert_eq!(chained(|row| format!("note {row}"), 42), None);
    let back = |row: u32| if (30..60).contains(&row) { "x" } else { "y" }.to_owned();
    assert_eq!(chained(back, 60), None, "a value that returns");
}
