use super::*;

fn wanted(skip_bad: bool) -> WantedColumns {
    let columns = ["Open", "Close"].map(str::to_owned).to_vec();
    WantedColumns {
        date: "Date".to_owned(),
        columns,
        price: 1,
        source: "`data.columns` names",
        skip_bad,
        remedies: Remedies::all("mend it"),
    }
}

fn kept(text: &str) -> Rows {
    read(Path::new("A.csv"), text.as_bytes(), &wanted(false)).unwrap()
}

fn fault(text: &str) -> String {
    read(Path::new("A.csv"), text.as_bytes(), &wanted(false))
        .unwrap_err()
        .to_string()
}

#[test]
fn rows_of_null_are_counted_and_other_columns_may_hold_anything() {
    let rows = kept(
        "Date,Open,Note,Close\n2020-01-01,0,null,1.5\n2020-01-02,null,x,null\n\
         2020-01-03, 2e3 ,,+7\nnull,null,,null\n",
    );
    assert_eq!(rows.values, [0.0, 1.5, 2000.0, 7.0]);
    assert_eq!(
        rows.dates.iter().map(|date| day(*date)).collect::<Vec<_>>(),
        ["2020-01-01", "2020-01-03"]
    );
    assert_eq!((rows.null, rows.skipped), (2, 0));
}

#[test]
fn dates_may_have_a_time() {
    let rows = kept(
        "Date,Open,Close\n2020-01-01,1,1\n2020-01-01 10:30,1,1\n\
         2020-01-01T10:31:00,1,1\n",
    );
    assert_eq!(rows.dates.len(), 3);
    assert!(
        fault("Date,Open,Close\n2020-01-01 10:30,1,1\n2020-01-01,1,1\n")
            .contains("`2020-01-01`, and the row before has `2020-01-01T10:30:00`")
    );
}

#[test]
fn dates_with_an_offset_are_compared_in_utc() {
    // The hour that a summer time repeats.
    let rows = kept(
        "Date,Open,Close\n2020-10-25T02:30:00+02:00,1,1\n2020-10-25T02:30:00+01:00,1,1\n\
         2020-10-25 02:00Z,1,1\n",
    );
    assert_eq!(
        rows.dates.iter().map(|date| day(*date)).collect::<Vec<_>>(),
        [
            "2020-10-25T00:30:00",
            "2020-10-25T01:30:00",
            "2020-10-25T02:00:00"
        ]
    );
}

#[test]
fn a_date_out_of_order_drops_as_few_rows_as_it_can() {
    let kept_of = |days: &[&str]| {
        let row = |(at, day): (usize, &&str)| format!("2{day},{at},{}\n", at + 1);
        let text = format!(
            "Date,Open,Close\n{}",
            days.iter().enumerate().map(row).collect::<String>()
        );
        let rows = read(Path::new("A.csv"), text.as_bytes(), &wanted(true)).unwrap();
        assert_eq!(rows.dates.len() + rows.skipped as usize, days.len());
        assert!(rows.dates.is_sorted() && rows.dates.len() * 2 == rows.values.len());
        let first_column = rows.values.iter().step_by(2);
        first_column.map(|at| *at as usize).collect::<Vec<_>>()
    };
    assert_eq!(
        kept_of(&["020-01-01", "999-01-01", "020-01-02", "020-01-03"]),
        [0, 2, 3]
    );
    assert_eq!(
        kept_of(&["020-01-05", "020-01-06", "000-01-01", "020-01-07"]),
        [0, 1, 3]
    );
    assert_eq!(kept_of(&["020-01-01", "020-01-02", "020-01-02"]), [0, 1]);
    assert_eq!(kept_of(&["020-01-03", "020-01-02", "020-01-01"]), [0]);
    assert_eq!(
        kept_of(&[
            "020-01-04",
            "020-01-01",
            "020-01-02",
            "020-01-09",
            "020-01-03"
        ]),
        [1, 2, 3]
    );
}

/// Each bad row follows a valid one of 2020-01-02.
const BAD: [(&str, &str); 13] = [
    (
        "2020-01-03,1.0,x",
        "A.csv:3:16: `Close` is `x`; it must be a number, or `null` to skip the row; mend it",
    ),
    (
        "2020-01-03,1.0,NaN",
        "A.csv:3:16: `Close` is `NaN`; it must be a number, or `null` to skip the row; mend it",
    ),
    (
        "2020-01-03,inf,1",
        "A.csv:3:12: `Open` is `inf`; it must be a number, or `null` to skip the row; mend it",
    ),
    (
        "2020-01-03,1e999,1",
        "A.csv:3:12: `Open` is `1e999`; it must be a number, or `null` to skip the row; mend \
         it",
    ),
    (
        "2020-01-03,,1",
        "A.csv:3:12: `Open` is empty; it must be a number, or `null` to skip the row; mend it",
    ),
    (
        "2020-01-03,-0.5,1",
        "A.csv:3:12: `Open` is `-0.5`; it must be at least 0, because kiln takes its log \
         return; if such values are right, leave the column out of `data.columns`; mend it",
    ),
    (
        "2020-01-03,1,0.0",
        "A.csv:3:14: `Close` is `0.0`; it must be above 0, because the log return of \
         `data.price` is what the model predicts; if such values are right, name a column that is \
         positive throughout; mend it",
    ),
    (
        "2020-01-03,1",
        "A.csv:3:1: the row has 2 cells, and the header names 3 columns; mend it",
    ),
    (
        "2020-01-03,1,1,1",
        "A.csv:3:1: the row has 4 cells, and the header names 3 columns; mend it",
    ),
    (
        "2020-02-30,1,1",
        "A.csv:3:1: `Date` is `2020-02-30`; it must be a date such as 2012-09-04; mend it",
    ),
    (
        "3/1/2020,1,1",
        "A.csv:3:1: `Date` is `3/1/2020`; it must be a date such as 2012-09-04; mend it",
    ),
    (
        "2020-01-02,1,1",
        "A.csv:3:1: `Date` is `2020-01-02`, and the row before has `2020-01-02`; dates must \
         ascend without repeats; mend it",
    ),
    (
        "2020-01-01,1,1",
        "A.csv:3:1: `Date` is `2020-01-01`, and the row before has `2020-01-02`; dates must \
         ascend without repeats; mend it",
    ),
];

#[test]
fn each_bad_row_has_its_place_and_what_is_wrong() {
    for (row, message) in BAD {
        assert_eq!(
            fault(&format!(
                "Date,Open,Close\n2020-01-02,1,1\n{row}\n2020-01-04,1,1\n"
            )),
            message
        );
    }
}

#[test]
fn bad_rows_are_left_out_where_that_is_asked_for() {
    for (row, _) in BAD {
        let text = format!("Date,Open,Close\n2020-01-02,1,1\n{row}\n2020-01-04,2,2\n");
        let rows = read(Path::new("A.csv"), text.as_bytes(), &wanted(true)).unwrap();
        assert_eq!(
            (rows.values.as_slice(), rows.dates.len(), rows.skipped),
            ([1.0, 1.0, 2.0, 2.0].as_slice(), 2, 1),
            "{row}"
        );
    }
}

#[test]
fn places_are_right_whatever_the_line_ends_and_quotes() {
    assert!(
        fault("Date,Open,Close\r\n2020-01-01,1,1\r\n\r\n2020-01-02,1,x\r\n")
            .starts_with("A.csv:4:14: ")
    );
    assert!(
        fault(
            "\u{feff}Date,Note,Open,Close\n2020-01-01,\"a,\nb\",1,1\n\
             2020-01-02,\"é,\",1,x\n"
        )
        .starts_with("A.csv:4:19: ")
    );
    assert_eq!(
        kept("Date,Open,Close\r\n2020-01-01,1,1\r\n").values,
        [1.0, 1.0]
    );
    assert_eq!(kept("Date,Open,Close").values.len(), 0);
}

#[test]
fn bytes_that_are_no_text_are_no_numbers() {
    let error = read(
        Path::new("A.csv"),
        b"Date,Open,Close\n2020-01-01,\xff\xfe,1\n",
        &wanted(false),
    )
    .unwrap_err()
    .to_string();
    assert!(error.starts_with("A.csv:2:12: `Open` is "), "{error}");
}

#[test]
fn a_missing_column_is_named_with_those_there_are() {
    assert_eq!(
        fault("Date,Opn,Close\n"),
        "A.csv:1: no column `Open`, which `data.columns` names; there are `Date`, `Opn`, \
         `Close`; did you mean `Opn`?"
    );
    assert_eq!(
        fault("Date,Open,Adj\n"),
        "A.csv:1: no column `Close`, which `data.price` names; there are `Date`, `Open`, `Adj`"
    );
    assert_eq!(
        fault("date,Open,Close\n"),
        "A.csv:1: no column `Date`, which `data.date` names; there are `date`, `Open`, \
         `Close`; did you mean `date`?"
    );
    assert_eq!(
        fault("Date,Open,Close,Open\n"),
        "A.csv:1: two columns are named `Open`"
    );
    assert_eq!(
        fault("\n\n"),
        "A.csv is empty; its first line must name the columns"
    );
}

#[test]
fn columns_of_numbers_are_told_by_whole_rows() {
    let columns = |text: &str| {
        let kinds = column_kinds(Path::new("A.csv"), text.as_bytes(), "Date").unwrap();
        kinds.map(|kinds| {
            let numbers = kinds
                .into_iter()
                .filter(|(_, kind)| *kind == ColumnKind::Numbers);
            numbers.map(|(name, _)| name).collect::<Vec<_>>()
        })
    };
    let expected = ["Close", "Volume"].map(str::to_owned).to_vec();
    assert_eq!(
        columns(
            "Date,Name,Close,Volume\n2020-01-01,null,null,null\n\
             2020-01-02,a,1.5,10\n"
        ),
        Some(expected)
    );
    assert_eq!(columns("Date,Close\n"), None);
    assert_eq!(
        columns("2020,Date\n5,20200101\n"),
        Some(vec!["2020".to_owned()])
    );
}
