use serde::Deserialize;

use super::*;

fn spec() -> TableSpec {
    TableSpec {
        version: "trials/1",
        columns: ["kiln_table", "name", "value"].map(str::to_owned).to_vec(),
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    kiln_table: String,
    name: Option<String>,
    value: Option<f64>,
}

fn row(name: &str, value: f64) -> Row {
    Row {
        kiln_table: "trials/1".into(),
        name: Some(name.into()),
        value: Some(value),
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    (folder, path)
}

#[test]
fn a_torn_last_line_is_cut_wherever_the_writer_died() {
    let (_folder, path) = folder();
    let (mut writer, _) = TableWriter::open(&path, spec()).unwrap();
    writer.append_row(&row("first", 1.5)).unwrap();
    let whole = std::fs::read(&path).unwrap();
    writer
        .append_row(&row("a \"quoted\",\nmany-line name", 0.1))
        .unwrap();
    let full = std::fs::read(&path).unwrap();
    for end in whole.len() + 1..full.len() {
        std::fs::write(&path, &full[..end]).unwrap();
        assert_eq!(Table::read(&path, "trials/1").unwrap().len(), 1);
        let (mut writer, torn) = TableWriter::open(&path, spec()).unwrap();
        assert_eq!(torn.unwrap().line, 3, "cut at {end}");
        assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at {end}");
        writer
            .append_row(&row("a \"quoted\",\nmany-line name", 0.1))
            .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), full);
    }
}

#[test]
fn rows_behind_an_open_quote_are_not_taken_for_a_torn_line() {
    let (_folder, path) = folder();
    let spoilt = "kiln_table,name,value\ntrials/1,a,1\ntrials/1,\"b,2\ntrials/1,c,3\n\
                  trials/1,d,4\n";
    std::fs::write(&path, spoilt).unwrap();
    let problems = [
        TableWriter::open(&path, spec()).unwrap_err(),
        Table::read(&path, "trials/1").unwrap_err(),
    ];
    for problem in problems {
        assert!(
            problem
                .to_string()
                .contains(":3: a quote opens here or later and never closes, and 2 rows follow it"),
            "{problem}"
        );
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        spoilt,
        "nothing is cut"
    );
}

#[test]
fn a_torn_header_is_written_again() {
    let (_folder, path) = folder();
    std::fs::write(&path, "kiln_table,na").unwrap();
    let (_, torn) = TableWriter::open(&path, spec()).unwrap();
    assert_eq!(torn.unwrap().text, "kiln_table,na");
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "kiln_table,name,value\n"
    );
}

#[test]
fn a_file_that_is_not_kilns_is_refused_and_left_as_it_was() {
    let (_folder, path) = folder();
    for foreign in [
        "my precious notes",
        "notes\nlast line without its end",
        "a,b\n1,2\n3,",
        "\n\n\
         x",
        "kiln_table_of_mine",
        "{\"a\": 1}",
        "kiln",
    ] {
        std::fs::write(&path, foreign).unwrap();
        let refused = TableWriter::open(&path, spec()).unwrap_err();
        assert!(
            matches!(refused, TableError::NoTable { .. }),
            "{foreign:?}: {refused}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
    }
    std::fs::write(&path, "my precious notes").unwrap();
    let message = TableWriter::open(&path, spec()).unwrap_err().to_string();
    assert!(
        message.contains("this is not a `trials/1` table: its first line is `my precious notes`"),
        "{message}"
    );
}

#[test]
fn another_table_of_kilns_is_named_and_a_torn_line_of_it_is_not_cut() {
    let (_folder, path) = folder();
    let other = "kiln_table,step,loss\nsteps/1,1,2.5\nsteps/1,2,";
    std::fs::write(&path, other).unwrap();
    let message = TableWriter::open(&path, spec()).unwrap_err().to_string();
    assert!(
        message.contains("`steps/1`, expected `trials/1`"),
        "{message}"
    );
    let columns: Vec<String> = (0..20).map(|place| format!("c{place}")).collect();
    let torn = format!("kiln_table,{}\ntrials/1,", columns.join(","));
    std::fs::write(&path, &torn).unwrap();
    let message = TableWriter::open(&path, spec()).unwrap_err().to_string();
    assert!(message.contains("`c5` and 14 more unknown"), "{message}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), torn);
}

#[test]
fn nothing_that_is_no_number_reaches_a_table() {
    let (_folder, path) = folder();
    let (mut writer, _) = TableWriter::open(&path, spec()).unwrap();
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        writer.append_row(&row("x", value)).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "kiln_table,name,value\ntrials/1,x,\n\
         trials/1,x,\ntrials/1,x,\n"
    );
    let rows: Vec<Row> = Table::read(&path, "trials/1").unwrap().rows().unwrap();
    assert!(rows.iter().all(|row| row.value.is_none()));
}

#[test]
fn other_columns_are_refused_by_name() {
    let (_folder, path) = folder();
    std::fs::write(&path, "kiln_table,value,colour\n").unwrap();
    let message = TableWriter::open(&path, spec()).unwrap_err().to_string();
    assert!(
        message.contains("`name` missing; `colour` unknown"),
        "{message}"
    );
    std::fs::write(&path, "kiln_table,value,name\n").unwrap();
    let message = TableWriter::open(&path, spec()).unwrap_err().to_string();
    assert!(
        message.contains("column 2 is `value`, expected `name`"),
        "{message}"
    );
}

#[test]
fn a_newer_table_is_refused_and_an_older_one_read() {
    let (_folder, path) = folder();
    std::fs::write(&path, "kiln_table,name,value\ntrials/1,a,\ntrials/2,b,\n").unwrap();
    let message = Table::read(&path, "trials/1").unwrap_err().to_string();
    assert!(
        message.ends_with(
            "t.csv:3: record 2 is of table `trials/2`, newer than this kiln reads (`trials/1`); \
             update kiln"
        ),
        "{message}"
    );
    assert_eq!(Table::read(&path, "trials/2").unwrap().len(), 2);
    let message = Table::read(&path, "steps/1").unwrap_err().to_string();
    assert!(
        message.contains("`trials/1`, expected `steps/1`"),
        "{message}"
    );
    // As a spreadsheet writes an empty row.
    std::fs::write(&path, "kiln_table,name,value\ntrials/1,a,\n,,\n").unwrap();
    let message = Table::read(&path, "trials/1").unwrap_err().to_string();
    assert!(
        message.contains("t.csv:3: record 2: its first cell is empty"),
        "{message}"
    );
}

#[test]
fn errors_name_record_line_column_and_cell() {
    let (_folder, path) = folder();
    std::fs::write(
        &path,
        "kiln_table,name,value\ntrials/1,\"two\nlines\",1\ntrials/1,b,fast\n",
    )
    .unwrap();
    let message = Table::read(&path, "trials/1")
        .unwrap()
        .rows::<Row>()
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("t.csv:4: record 2: `value` is `fast`: "),
        "{message}"
    );
    std::fs::write(&path, "kiln_table,name,value\ntrials/1,b\n").unwrap();
    let message = Table::read(&path, "trials/1").unwrap_err().to_string();
    assert!(
        message.contains("t.csv:2: record 1: it has 2 cells, the header has 3"),
        "{message}"
    );
}

#[test]
fn a_row_of_another_length_changes_nothing() {
    let (_folder, path) = folder();
    let (mut writer, _) = TableWriter::open(&path, spec()).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(
        writer
            .append(&["a".to_owned()])
            .unwrap_err()
            .to_string()
            .contains("1 cells, the table has 3 columns")
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn the_wanted_rows_come_one_after_another_up_to_a_bad_one() {
    let (_folder, path) = folder();
    let (mut writer, _) = TableWriter::open(&path, spec()).unwrap();
    for (name, value) in [("a", 1.0), ("b", 2.0), ("a", 3.0)] {
        writer.append_row(&row(name, value)).unwrap();
    }
    let read = |column: &str| {
        let mut values = Vec::new();
        let ended = Table::each_of(
            &path,
            "trials/1",
            column,
            &|cell| cell == "a",
            &mut |row: Row| values.push(row.value),
        );
        (values, ended.map_err(|error| error.to_string()))
    };
    assert_eq!(read("name"), (vec![Some(1.0), Some(3.0)], Ok(())));
    assert_eq!(read("missing"), (vec![], Ok(())));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text + "trials/1,b,often\ntrials/1,a,often\n").unwrap();
    let (values, ended) = read("name");
    assert_eq!(values.len(), 2);
    assert!(
        ended
            .unwrap_err()
            .contains(":6: record 5: `value` is `often`")
    );
}
