//! How a table is declared: once. The macro makes its row, its description and, from that, the
//! header, the readers' checks and `docs/tables.md`.

use super::table::TableSpec;

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// Unit; empty for words, names and plain counts.
    pub unit: &'static str,
    pub meaning: &'static str,
    /// The version of the table that it came with.
    pub since: u32,
}

/// One table.
#[derive(Clone, Copy, Debug)]
pub struct TableDescription {
    /// Name and version; repeated in every row.
    pub version: &'static str,
    /// Path of the file in a run's folder.
    pub file: &'static str,
    pub about: &'static str,
    /// In the order of the file.
    pub columns: &'static [Column],
    /// Whether the table has a column per axis.
    pub has_axes: bool,
}

impl TableDescription {
    /// Returns the expected header; `axes` are dotted keys in file order, empty for a table without
    /// them.
    pub fn spec(&self, axes: &[String]) -> TableSpec {
        let mut columns: Vec<String> = self.names().into_iter().map(str::to_owned).collect();
        columns.splice(AXES_AT..AXES_AT, axes.iter().cloned());
        TableSpec {
            version: self.version,
            columns,
        }
    }

    /// The names of its columns, in the order of the file, without axes.
    pub fn names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|column| column.name).collect()
    }
}

/// Position of the axes in `trials.csv`: after the columns that identify a row and its outcome.
pub const AXES_AT: usize = 6;

/// A column of the first version.
///
/// `meaning` may begin with a space, as the text of a `///` comment does.
pub const fn column(name: &'static str, unit: &'static str, meaning: &'static str) -> Column {
    column_since(1, name, unit, meaning)
}

/// A column that came with version `since` of its table.
pub const fn column_since(
    since: u32,
    name: &'static str,
    unit: &'static str,
    meaning: &'static str,
) -> Column {
    Column {
        name,
        unit,
        meaning: meaning.trim_ascii_start(),
        since,
    }
}

/// The first column of every table.
pub const KILN_TABLE: Column = column(
    "kiln_table",
    "",
    "Name and version of the table, in every row, so that joined tables stay self-describing.",
);

/// The [`TableDescription`] of a declared table: of [`table!`] and of `trials.csv`.
macro_rules! description {
    (
        $version:literal in $file:literal, axes $has_axes:literal;
        $($about:literal)+;
        $(since $since:literal { $($($meaning:literal)+ $column:ident $([$unit:literal])?,)* })+
    ) => {
        $crate::record::columns::TableDescription {
            version: $version,
            file: $file,
            about: concat!($($about),+).trim_ascii_start(),
            columns: &[
                $crate::record::columns::KILN_TABLE,
                $($($crate::record::columns::column_since(
                    $since,
                    stringify!($column),
                    concat!($($unit)?),
                    concat!($($meaning),+),
                ),)*)+
            ],
            has_axes: $has_axes,
        }
    };
}
pub(super) use description;

/// Declares a table: what it is, its name and version, its file, and each column with its meaning,
/// type, unit (in brackets, if it has one) and the version that it came with. Makes the struct of a
/// row and the [`TableDescription`].
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $table:ident: $row:ident = $version:literal in $file:literal;
        $(since $since:literal {
            $($(#[doc = $meaning:literal])+ $column:ident: $type:ty $([$unit:literal])?,)*
        })+
    ) => {
        $(#[doc = $about])+
        /// An unknown value is an empty cell.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $row {
            /// Name and version of the table.
            pub kiln_table: String,
            $($($(#[doc = $meaning])+ pub $column: $type,)*)+
        }

        $(#[doc = $about])+
        pub const $table: $crate::record::columns::TableDescription =
            $crate::record::columns::description! {
                $version in $file, axes false;
                $($about)+;
                $(since $since { $($($meaning)+ $column $([$unit])?,)* })+
            };
    };
}
pub(super) use table;
