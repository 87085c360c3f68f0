//! The tables of a run: they read back as they were written, whatever stands in them, and their
//! page says what they are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        SnapshotRow, TrialFigures, TrialRow,
        table::{Table, TableWriter},
        tables::{self, SNAPSHOTS, TRIALS},
        trials::{TableRow, TrialTable, TrialWriter},
    },
};
use serde_json::{Value, json};

/// Texts that break a careless writer of CSV.
const ODD_TEXTS: [&str; 16] = [
    "plain",
    "comma, comma",
    "\"quoted\"",
    "a \"\" b",
    "line\nbreak",
    "carriage\r\nreturn",
    "\n",
    "\"",
    ",",
    " leading and trailing ",
    "Ünïcödé — 温度 🔥",
    "'single'; semicolon\ttab",
    "=SUM(A1)",
    "NaN",
    "trials/9",
    "1e400",
];

/// Numbers at the edges of what a table can hold.
const ODD_NUMBERS: [f64; 10] = [
    0.0,
    -0.0,
    1.0,
    0.1,
    1.0 / 3.0,
    5e-324,
    f64::MAX,
    f64::MIN_POSITIVE,
    123_456_789_012_345_680.0,
    9.99e-7,
];

#[test]
fn rows_read_back_as_they_were_written_whatever_stands_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let axes = [
        "train.batch_size".to_owned(),
        "data.kind".to_owned(),
        "run.devices".to_owned(),
    ];
    let mut written = Vec::new();
    let (mut writer, torn) = TrialWriter::open(&path, &axes).unwrap();
    assert_eq!(torn, None);
    for (index, text) in ODD_TEXTS.iter().enumerate() {
        let row = odd_row(
            index as u64 + 1,
            text,
            ODD_NUMBERS[index % ODD_NUMBERS.len()],
        );
        let values = [json!(index), json!(text), json!([0, 1])];
        writer.append(&TableRow::new(row.clone(), &values)).unwrap();
        written.push(TableRow {
            fixed: Box::new(row),
            axes: vec![index.to_string(), (*text).to_owned(), "[0,1]".to_owned()],
        });
    }
    let read = TrialTable::read(&path).unwrap();
    assert_eq!(read.axes, axes);
    assert_eq!(read.torn, None);
    assert_eq!(read.rows, written);
}

#[test]
fn a_table_is_continued_after_any_kill_without_losing_or_doubling_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let rows: Vec<TrialRow> = ODD_TEXTS
        .iter()
        .enumerate()
        .map(|(index, text)| odd_row(index as u64 + 1, text, 0.5))
        .collect();
    let (mut writer, _) = TrialWriter::open(&path, &[]).unwrap();
    for row in &rows {
        writer.append(&TableRow::new(row.clone(), &[])).unwrap();
    }
    let whole = fs::read(&path).unwrap();
    // Every 37th place is enough: rows are some 300 bytes long.
    for end in (0..whole.len()).step_by(37) {
        fs::write(&path, &whole[..end]).unwrap();
        let kept = if end == 0 {
            0
        } else {
            TrialTable::read(&path).map_or(0, |table| table.rows.len())
        };
        let (mut writer, torn) = TrialWriter::open(&path, &[]).unwrap();
        // A row that lacks nothing but its line feed may be told by its last cell.
        let may_be_torn = end > 0 && !ends_whole(&whole, end);
        let must_be_torn = may_be_torn && whole[end] != b'\n';
        assert!(
            (must_be_torn || torn.is_none() || may_be_torn) && (!must_be_torn || torn.is_some()),
            "cut at {end}"
        );
        for row in &rows[kept..] {
            writer.append(&TableRow::new(row.clone(), &[])).unwrap();
        }
        assert!(fs::read(&path).unwrap() == whole, "cut at {end}");
    }
}

#[test]
fn no_text_for_a_missing_number_is_ever_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &["train.clip_norm".to_owned()]).unwrap();
    let row = TrialRow {
        train_loss: Some(f64::NAN),
        mfu: Some(f64::INFINITY),
        ..odd_row(1, "x", f64::NEG_INFINITY)
    };
    writer
        .append(&TableRow::new(row.clone(), &[Value::Null]))
        .unwrap();
    let text = fs::read_to_string(&path).unwrap().to_ascii_lowercase();
    assert!(
        !text.contains("nan,")
            && !text.contains("inf")
            && !text.contains("null")
            && !text.contains("none"),
        "{text}"
    );
    let TableRow {
        fixed: read,
        axes: values,
    } = TrialTable::read(&path).unwrap().rows.remove(0);
    assert_eq!(
        (
            read.train_loss,
            read.mfu,
            read.samples_per_second,
            values[0].as_str()
        ),
        (None, None, None, "")
    );
}

#[test]
fn another_sweeps_table_is_refused_by_the_names_of_its_axes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    TrialWriter::open(&path, &["train.batch_size".to_owned()]).unwrap();
    let message = TrialWriter::open(&path, &["data.num_workers".to_owned()])
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("`data.num_workers` missing; `train.batch_size` unknown"),
        "{message}"
    );
    let (mut writer, _) = TrialWriter::open(&path, &["train.batch_size".to_owned()]).unwrap();
    let message = writer
        .append(&TableRow::new(odd_row(1, "x", 1.0).clone(), &[]))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("has 0 axis values, the table has 1 axes"),
        "{message}"
    );
}

#[test]
fn an_older_version_with_fewer_columns_is_still_read() {
    /// The version before the newest: all columns that came later are missing.
    const OLDER: u32 = 5;
    let is_known = |name: &str| {
        let known = TRIALS.columns.iter().find(|column| column.name == name);
        known.is_some_and(|column| column.since <= OLDER)
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &[]).unwrap();
    let full = TrialRow {
        host_id: Some("net-1".into()),
        ..odd_row(1, "x", 1.0)
    };
    writer.append(&TableRow::new(full.clone(), &[])).unwrap();
    let mut reader = csv::Reader::from_path(&path).unwrap();
    let header = reader.headers().unwrap().clone();
    let shorter = |record: &csv::StringRecord| {
        let cells = record.iter().zip(&header);
        cells
            .filter(|(_, name)| is_known(name))
            .map(|(cell, _)| cell.replace(TRIALS.version, &format!("trials/{OLDER}")))
            .collect::<Vec<_>>()
    };
    let mut older = csv::Writer::from_path(folder.path().join("older.csv")).unwrap();
    older.write_record(shorter(&header)).unwrap();
    for record in reader.records() {
        older.write_record(shorter(&record.unwrap())).unwrap();
    }
    drop(older);
    let read = TrialTable::read(&folder.path().join("older.csv")).unwrap();
    let host = |row: &TrialRow| row.host_id.clone();
    assert_eq!(
        (host(&full), host(&read.rows[0].fixed)),
        (Some("net-1".to_owned()), None)
    );
    assert_eq!(read.rows[0].fixed.reason.as_deref(), Some("x"));
}

#[test]
fn the_committed_tables_of_earlier_versions_are_still_read() {
    let folders = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path)
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    };
    let runs = folders(Path::new("results"))
        .into_iter()
        .filter(|path| path.is_dir())
        .flat_map(|experiment| folders(&experiment));
    let mut read = 0;
    for run in runs.filter(|run| run.join("trials.csv").exists()) {
        let trials = TrialTable::read(&run.join("trials.csv")).unwrap();
        let snapshots: Vec<SnapshotRow> =
            Table::read(&run.join("snapshots.csv"), SNAPSHOTS.version)
                .unwrap()
                .rows()
                .unwrap();
        assert!(
            !trials.rows.is_empty() && !snapshots.is_empty(),
            "{}",
            run.display()
        );
        read += 1;
    }
    assert!(read > 0);
}

/// Editors remove the last line feed; a row that is there is not trained again.
#[test]
fn a_last_row_without_its_line_feed_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &[]).unwrap();
    let row = |number: u64| {
        let fixed = TrialRow {
            host_id: Some("m-0123456789ab".to_owned()),
            ..odd_row(number, "x", 0.5)
        };
        TableRow::new(fixed, &[])
    };
    for number in 1..=3 {
        writer.append(&row(number)).unwrap();
    }
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let table = TrialTable::read(&path).unwrap();
    assert_eq!((table.rows.len(), table.torn), (3, None));
    let (mut writer, torn) = TrialWriter::open(&path, &[]).unwrap();
    assert_eq!(torn, None);
    writer.append(&row(4)).unwrap();
    assert!(fs::read(&path).unwrap().starts_with(&whole));
    assert_eq!(TrialTable::read(&path).unwrap().rows.len(), 4);
    // One byte less is a part of a row.
    fs::write(&path, &whole[..whole.len() - 2]).unwrap();
    let table = TrialTable::read(&path).unwrap();
    assert!(table.rows.len() == 2 && table.torn.is_some());
}

#[test]
fn two_runs_in_one_table_are_refused_with_the_rows_that_meet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &[]).unwrap();
    for (number, rate) in [(1, 0.5), (2, 0.5), (1, 0.75)] {
        writer
            .append(&TableRow::new(odd_row(number, "x", rate), &[]))
            .unwrap();
    }
    let problem = TrialTable::read(&path).unwrap_err().to_string();
    assert!(
        problem.contains("record 3")
            && problem.contains("has other values in record 1: two runs were joined"),
        "{problem}"
    );
    // The same row twice says the same.
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[3] = lines[1];
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    assert_eq!(TrialTable::read(&path).unwrap().rows.len(), 3);
    lines[2] = lines[0];
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let problem = TrialTable::read(&path).unwrap_err().to_string();
    assert!(
        problem.contains("a second line of columns: two tables were joined"),
        "{problem}"
    );
    lines[2] = "<<<<<<< HEAD";
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let problem = TrialTable::read(&path).unwrap_err().to_string();
    assert!(problem.contains("marks of a merge conflict"), "{problem}");
}

#[test]
fn the_last_attempt_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &[]).unwrap();
    let killed = TrialRow {
        outcome: Outcome::Killed,
        ..odd_row(2, "killed", 1.0)
    };
    for row in [
        killed.clone(),
        odd_row(1, "first", 1.0),
        TrialRow {
            attempt: 2,
            outcome: Outcome::Completed,
            ..killed
        },
    ] {
        writer.append(&TableRow::new(row.clone(), &[])).unwrap();
    }
    let table = TrialTable::read(&path).unwrap();
    let last: Vec<(u64, u64, Outcome)> = table
        .last_attempts()
        .iter()
        .map(|row| (row.fixed.number, row.fixed.attempt, row.fixed.outcome))
        .collect();
    assert_eq!(
        last,
        [(1, 1, Outcome::Completed), (2, 2, Outcome::Completed)]
    );
}

#[test]
fn what_is_no_table_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    for (bytes, wanted) in [
        (&b""[..], "expected `kiln_table,"),
        (
            b"a,b\n1,2\n",
            ":1:1: its first column is `a`, expected `kiln_table`",
        ),
        (
            b"kiln_table,trial\n\xff\xfe,x\n",
            "t.csv:2: record 1: it is not UTF-8 text",
        ),
        (
            b"kiln_table,trial\nbanana,x\n",
            "t.csv:2: record 1 is of table `banana`, expected `trials/",
        ),
        (
            b"kiln_table,trial\ntrials/5,x\n",
            "there is no column `attempt`",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        let message = TrialTable::read(&path).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
    let message = TrialTable::read(Path::new("/nowhere/trials.csv"))
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("/nowhere/trials.csv: opening failed: "),
        "{message}"
    );
}

#[test]
fn what_is_no_plain_file_is_refused_and_not_read_forever() {
    let message = TableWriter::open(Path::new("/dev/full"), TRIALS.spec(&[]))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("/dev/full: opening failed: it is a device, not a regular file"),
        "{message}"
    );
    assert!(TrialTable::read(Path::new("/dev/zero")).is_err());
}

#[test]
fn the_struct_is_the_table() {
    let fields = serde_json::to_value(odd_row(1, "x", 1.0)).unwrap();
    let fields: Vec<&str> = fields
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let columns: Vec<&str> = TRIALS.columns.iter().map(|column| column.name).collect();
    assert_eq!(fields, columns);
}

#[test]
fn the_page_of_tables_says_what_the_program_writes() {
    let page = Path::new("docs/tables.md");
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::create_dir_all("docs").unwrap();
        fs::write(page, whole_page()).unwrap();
    }
    let text = fs::read_to_string(page).unwrap();
    assert!(
        text == whole_page(),
        "docs/tables.md is out of date; write it again with `KILN_BLESS=1 cargo test --release -p \
         kiln --test suite tables::`"
    );
}

/// A table that was written with a version is read by every later kiln: a version that is in use gets
/// no other columns.
#[test]
fn the_columns_of_a_version_never_change() {
    let mut text = String::new();
    for table in tables::TABLES {
        let (name, newest) = table.version.split_once('/').unwrap();
        for version in 1..=newest.parse().unwrap() {
            let own = table
                .columns
                .iter()
                .filter(|column| column.since == version);
            let own: Vec<&str> = own.map(|column| column.name).collect();
            text += &format!("{name}/{version}: {}\n", own.join(" "));
        }
    }
    let path = Path::new("tests/expected/columns.txt");
    let kept = fs::read_to_string(path).unwrap();
    for line in kept.lines() {
        assert!(
            text.lines().any(|found| found == line),
            "{} has `{line}`, and that version has other columns now: a new column needs a new version \
             of its table",
            path.display()
        );
    }
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(path, &text).unwrap();
    }
    assert!(
        text == fs::read_to_string(path).unwrap(),
        "{} lacks a version; write it again with `KILN_BLESS=1 cargo test --release -p kiln --test \
         suite tables::`",
        path.display()
    );
}

/// Far more than the reader and the writer hold at once.
#[test]
fn a_thousand_rows_are_written_and_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trials.csv");
    let (mut writer, _) = TrialWriter::open(&path, &["train.seed".to_owned()]).unwrap();
    for number in 1..=1_000 {
        writer
            .append(&TableRow::new(
                odd_row(number, "x", number as f64),
                &[json!(number)],
            ))
            .unwrap();
    }
    let table = TrialTable::read(&path).unwrap();
    assert!(
        table
            .rows
            .iter()
            .zip(1..)
            .all(|(row, number)| row.fixed.number == number && row.axes[0] == number.to_string())
    );
    assert_eq!(table.last_attempts().len(), 1_000);
}

/// Whether a file cut at `end` ends with a whole row: no open quote, and a line feed last.
fn ends_whole(bytes: &[u8], end: usize) -> bool {
    let quotes = bytes[..end].iter().filter(|byte| **byte == b'"').count();
    bytes[end - 1] == b'\n' && quotes % 2 == 0
}

fn odd_row(number: u64, text: &str, value: f64) -> TrialRow {
    let own = || text.to_owned();
    TrialRow {
        kiln_table: TRIALS.version.to_owned(),
        trial: TrialId(format!("{number:010x}")),
        number,
        attempt: 1,
        launch: 1,
        outcome: Outcome::Completed,
        model_kind: own(),
        data_kind: own(),
        engine: own(),
        precision: own(),
        batch_size: 1,
        grad_accumulation: 1,
        effective_batch_size: 1,
        seed: 1,
        concurrent_trials: 1,
        reason: Some(own()),
        samples_per_second: Some(value),
        parameters: Some(u64::MAX),
        throttle_reasons: Some(own()),
        ..TrialRow::default()
    }
}

/// A committed table as text.
fn committed() -> String {
    fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("results/quickstart-2core-xeon/latest/trials.csv"),
    )
    .unwrap()
}

fn read_text(text: &[u8]) -> Result<TrialTable, String> {
    TrialTable::read_from(&mut std::io::Cursor::new(text), Path::new("edited.csv"))
        .map_err(|error| error.to_string())
}

/// The table with each record's cells changed; records are numbered from 0, the header.
fn edited(change: impl Fn(usize, &mut Vec<String>), ending: csv::Terminator) -> Vec<u8> {
    let text = committed();
    let mut writer = csv::WriterBuilder::new()
        .flexible(true)
        .terminator(ending)
        .from_writer(Vec::new());
    for (number, record) in csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(text.as_bytes())
        .records()
        .enumerate()
    {
        let mut cells: Vec<String> = record.unwrap().iter().map(str::to_owned).collect();
        change(number, &mut cells);
        writer.write_record(&cells).unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn tables_that_people_saved_again_are_read() {
    let original = read_text(committed().as_bytes()).unwrap();
    let marked = format!("\u{feff}{}", committed());
    let windows = edited(|_, _| (), csv::Terminator::CRLF);
    // What a spreadsheet adds: a column nobody asked for.
    let wider = edited(|_, cells| cells.push(String::new()), csv::Terminator::CRLF);
    for (how, text) in [
        ("a byte order mark", marked.as_bytes()),
        ("Windows line ends", &windows),
        ("an empty column", &wider),
    ] {
        let read = read_text(text).unwrap_or_else(|error| panic!("{how}: {error}"));
        assert_eq!(
            (read.axes, read.rows),
            (original.axes.clone(), original.rows.clone()),
            "{how}"
        );
    }
    let text = committed();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1..].reverse();
    let turned = read_text(format!("{}\n", lines.join("\n")).as_bytes()).unwrap();
    assert_eq!(
        turned.last_attempts(),
        original.last_attempts(),
        "rows in another order"
    );
    let torn = read_text(&committed().as_bytes()[..committed().len() - 40]).unwrap();
    assert!(torn.torn.is_some() && torn.rows.len() + 1 == original.rows.len());
}

#[test]
fn integers_that_another_program_saved_as_decimal_numbers_are_read() {
    let original = read_text(committed().as_bytes()).unwrap();
    let text = committed();
    let columns: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let saved = |places: &[&str], change: &dyn Fn(&str) -> String| {
        edited(
            |number, cells| {
                let cells = cells.iter_mut().zip(&columns);
                for (cell, _) in cells.filter(|(_, column)| places.contains(*column)) {
                    if number > 0 && !cell.is_empty() {
                        *cell = change(cell);
                    }
                }
            },
            csv::Terminator::Any(b'\n'),
        )
    };
    let integers = ["attempt", "batch_size", "parameters", "peak_resident_bytes"];
    let read = read_text(&saved(&integers, &|cell| format!("{cell}.0"))).unwrap();
    assert_eq!(read.rows, original.rows);
    let read = read_text(&saved(&integers, &|cell| format!("{cell}e0"))).unwrap();
    assert_eq!(read.rows, original.rows);
    let refused = read_text(&saved(&["parameters"], &|cell| format!("{cell}.5"))).unwrap_err();
    assert!(
        refused.contains("`parameters` is `")
            && refused.contains("expected a non-negative integer"),
        "{refused}"
    );
}

#[test]
fn an_id_with_its_letter_and_without_it_in_one_table_is_refused_and_in_two_tables_is_one_trial() {
    let place = committed()
        .lines()
        .next()
        .unwrap()
        .split(',')
        .position(|column| column == "trial")
        .unwrap();
    let lettered = |rows: std::ops::RangeInclusive<usize>| {
        move |number: usize, cells: &mut Vec<String>| {
            if rows.contains(&number) {
                cells[place].insert(0, TrialId::LETTER)
            }
        }
    };
    let original = read_text(committed().as_bytes()).unwrap();
    let all = read_text(&edited(
        lettered(1..=usize::MAX),
        csv::Terminator::Any(b'\n'),
    ))
    .unwrap();
    assert!(
        all.rows
            .iter()
            .zip(&original.rows)
            .all(|(one, other)| one.fixed.trial == other.fixed.trial)
    );
    // One run's rows below those of another: the first trial, as record 1 and again as record 4.
    let text = committed();
    let lines: Vec<&str> = text.lines().collect();
    let id = original.rows[0].fixed.trial.clone();
    let again = lines[1].replacen(&id.0, &format!("t{}", id.digits()), 1);
    let joined = [&lines[..4], &[&again], &lines[4..]].concat().join("\n") + "\n";
    let refused = read_text(joined.as_bytes()).unwrap_err();
    let said = format!(
        "edited.csv:5: record 4: `trial` is `t{0}`, and record 1 has `{0}`: an id with and without \
         the letter `t` is the same trial",
        id.digits()
    );
    assert!(
        refused.starts_with(&said) && refused.contains("in a separate table"),
        "{refused}"
    );
}

#[test]
fn tables_that_people_broke_are_refused_with_line_and_column() {
    let place = |name: &str| {
        committed()
            .lines()
            .next()
            .unwrap()
            .split(',')
            .position(|column| column == name)
            .unwrap()
    };
    let (batch, rate, loss) = (
        place("batch_size"),
        place("samples_per_second"),
        place("train_loss"),
    );
    for ending in [csv::Terminator::Any(b'\n'), csv::Terminator::CRLF] {
        let refused = |change: &dyn Fn(usize, &mut Vec<String>)| {
            read_text(&edited(change, ending)).unwrap_err()
        };
        let set = |row: usize, place: usize, value: &str| {
            let value = value.to_owned();
            refused(&move |number, cells| {
                if number == row {
                    cells[place] = value.clone()
                }
            })
        };
        assert!(
            set(3, batch, "eight").starts_with("edited.csv:4: record 3: `batch_size` is `eight`: "),
            "{}",
            set(3, batch, "eight")
        );
        assert!(
            set(1, rate, "1,234.5")
                .starts_with("edited.csv:2: record 1: `samples_per_second` is `1,234.5`: "),
            "{}",
            set(1, rate, "1,234.5")
        );
        assert!(
            set(8, loss, "2,5").starts_with("edited.csv:9: record 8: `train_loss` is `2,5`: "),
            "{}",
            set(8, loss, "2,5")
        );
        assert!(
            set(2, 0, "trials/99").starts_with(
                "edited.csv:3: record 2 is of table `trials/99`, newer than this kiln reads"
            ),
            "{}",
            set(2, 0, "trials/99")
        );
        assert!(
            set(2, 0, "steps/1")
                .starts_with("edited.csv:3: record 2 is of table `steps/1`, expected `trials/"),
            "{}",
            set(2, 0, "steps/1")
        );
        let short = refused(&|number, cells| {
            if number == 2 {
                cells.truncate(60)
            }
        });
        assert!(
            short.starts_with("edited.csv:3: record 2: it has 60 cells"),
            "{short}"
        );
        let lacking = refused(&|_, cells| drop(cells.remove(batch)));
        assert!(
            lacking.contains(
                ":1:1: there is no column `batch_size`; every column of a row's version (trials/1) \
                 must be present"
            ),
            "{lacking}"
        );
        let turned = refused(&|_, cells| cells.reverse());
        assert!(turned.contains("expected `kiln_table`"), "{turned}");
    }
    let semicolons = read_text(committed().replace(',', ";").as_bytes()).unwrap_err();
    assert!(
        semicolons.contains(":1:1: its columns are separated by `;`; save the table with commas"),
        "{semicolons}"
    );
    let tabs = read_text(committed().replace(',', "\t").as_bytes()).unwrap_err();
    assert!(
        tabs.contains(r"its columns are separated by `\t`"),
        "{tabs}"
    );
    assert!(read_text(&[0xff, 0xfe, 0x00]).is_err() && read_text(b"").is_err());
}

/// `docs/tables.md`, whole.
fn whole_page() -> String {
    let page = tables::markdown();
    let (opening, tables) = page.split_once("\n## ").unwrap();
    let summary = kiln::report::point_table_manual();
    format!(
        "{opening}\n{summary}## {tables}{}",
        kiln::readings::watch::markdown()
    )
}

#[test]
fn the_protocol_names_every_column_that_a_child_may_measure() {
    let page = fs::read_to_string("docs/child-protocol.md").unwrap();
    let missing: Vec<&&str> = TrialFigures::COLUMNS
        .iter()
        .filter(|column| !page.contains(&format!("`{column}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
