//! CSV on standard output. Tables in files are data, which `kiln_core::record` writes exactly; a
//! printed table is also read by people, so a cell holds no hidden character and stays on its line.

use std::io;

use kiln_core::units::without_controls;

/// One line of CSV, with its line feed.
///
/// # Errors
/// If the writer cannot write; into memory it can.
pub fn line<C: AsRef<str>>(cells: impl IntoIterator<Item = C>) -> io::Result<String> {
    let cells = cells.into_iter();
    exact_line(cells.map(|cell| without_controls(cell.as_ref())))
}

/// As [`line`], with cells as they are: for a table that other programs join with those in files. A
/// terminal must not get it unfiltered.
///
/// # Errors
/// As [`line`].
pub fn exact_line<C: AsRef<str>>(cells: impl IntoIterator<Item = C>) -> io::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for cell in cells {
        writer
            .write_field(cell.as_ref())
            .map_err(io::Error::other)?;
    }
    writer
        .write_record(None::<&[u8]>)
        .map_err(io::Error::other)?;
    let bytes = writer
        .into_inner()
        .map_err(|error| io::Error::other(error.to_string()))?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_on_its_line() {
        assert_eq!(
            line(["a\n1,2", "\u{1b}[2J", "=1+1", ""]).unwrap(),
            "\"a 1,2\", [2J,=1+1,\n"
        );
        assert_eq!(
            exact_line(["a\n1,2", "\u{1b}[2J", "\"", ""]).unwrap(),
            "\"a\n1,2\",\u{1b}[2J,\"\"\"\",\n"
        );
    }
}
