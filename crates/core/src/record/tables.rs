//! All tables of a run, and the page about them.

use super::{
    columns::{AXES_AT, Column, TableDescription},
    redefined::Redefinition,
};
pub use super::{
    epochs::EPOCHS, layers::LAYERS, samples::SAMPLES, snapshots::SNAPSHOTS, steps::STEPS,
    trial_row::TRIALS,
};

/// All tables of a run.
pub const TABLES: [&TableDescription; 6] =
    [&TRIALS, &SAMPLES, &SNAPSHOTS, &STEPS, &EPOCHS, &LAYERS];

/// `docs/tables.md` without its last part, the file of `kiln watch`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Tables\n\nEvery table is CSV (RFC 4180, UTF-8, `\\n`) with one header. A missing value \
         is an empty cell, never 0 and never NaN. Units are in the names; fractions are of 1; \
         times of day are UTC. Numbers have the shortest form that reads back to the same value. \
         Rows are only ever appended, and each file has one writer. Columns are added at the end \
         (of the fixed part) with a new version; older tables are still read, newer ones are \
         refused by name. A trial's id begins with a letter since `trials/6`, so that no reader \
         parses it as a number; kiln also reads ids without the letter, and one table has one form \
         of an id.\n\nCells hold texts of children, drivers and experiment files exactly as they \
         came, also those that begin with `=`, `+`, `-` or `@`: a table must read back equal. A \
         spreadsheet may take such a text for a formula; import the columns as text, or read a \
         table of unknown origin with `kiln report`. In CSV that kiln prints (`--csv`, `--format \
         csv`, `--query`) hidden characters and line feeds of a cell are replaced.\n\nThis page is generated from the declarations of the tables \
         (`crates/core/src/record`), and a test compares the two: `KILN_BLESS=1 cargo test \
         --release --test suite tables::` writes it again.\n",
    );
    for table in TABLES {
        page.push_str(&format!(
            "\n## `{}`\n\nIn `{}`. {}\n\n| column | unit | meaning |\n\
             |---|---|---|\n",
            table.version, table.file, table.about
        ));
        for (place, column) in table.columns.iter().enumerate() {
            if table.has_axes && place == AXES_AT {
                page.push_str(
                    "| `<axis>` | | The value of each axis of the sweep, one column per axis; a \
                     list or a map is JSON. |\n",
                );
            }
            page.push_str(&format!(
                "| `{}` | {} | {} |\n",
                column.name,
                column.unit,
                explained(table, column).replace('|', "\\|")
            ));
        }
    }
    page
}

/// The meaning of a column, and how it differs in older tables.
fn explained(table: &TableDescription, column: &Column) -> String {
    let changes = Redefinition::of_column(column.name).filter(|_| table.file == TRIALS.file);
    let before =
        changes.map(|change| format!(" Before `trials/{}`: {}.", change.since, change.before));
    column.meaning.to_owned() + &before.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_begins_with_its_version_and_no_column_stands_twice() {
        for table in TABLES {
            assert_eq!(table.columns[0].name, crate::record::table::VERSION_COLUMN);
            let mut names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.columns.len(), "{}", table.version);
            assert!(
                table
                    .columns
                    .iter()
                    .all(|column| column.meaning.ends_with('.')),
                "{}: a meaning is a sentence",
                table.version
            );
        }
    }

    #[test]
    fn axes_stand_right_after_the_outcome() {
        let spec = TRIALS.spec(&["a.b".to_owned(), "c.d".to_owned()]);
        assert_eq!(spec.columns[5..9], ["outcome", "a.b", "c.d", "reason"]);
        assert_eq!(spec.columns.len(), TRIALS.columns.len() + 2);
    }

    #[test]
    fn a_unit_in_a_name_is_the_unit_of_the_column() {
        const UNITS: [(&str, &str); 8] = [
            ("_seconds", "s"),
            ("_bytes", "B"),
            ("_bytes_per_second", "B/s"),
            ("_watts", "W"),
            ("_joules", "J"),
            ("_celsius", "°C"),
            ("_fraction", "of 1"),
            ("_megahertz", "MHz"),
        ];
        for column in TABLES.iter().flat_map(|table| table.columns) {
            if let Some((_, unit)) = UNITS
                .iter()
                .find(|(suffix, _)| column.name.ends_with(suffix))
            {
                assert_eq!(column.unit, *unit, "{}", column.name);
            }
        }
    }
}
