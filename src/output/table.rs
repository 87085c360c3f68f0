//! Tables of text, laid out by comfy-table: a cell is one line, whatever it holds.

#![allow(
    clippy::disallowed_types,
    reason = "this is the one place that makes tables, and it escapes every cell"
)]

use comfy_table::{
    Attribute, Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets,
};
use kiln_core::units::without_controls;

/// Smallest width that can be laid out; on a narrower terminal lines are too long.
pub const LEAST_WIDTH: u16 = 40;

/// One rule below the head and nothing else: as many columns as possible fit.
const RULE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// A table of text.
#[derive(Debug)]
pub struct TextTable {
    table: Table,
    has_color: bool,
}

impl TextTable {
    /// A head and rows without lines.
    pub fn plain<C: AsRef<str>>(heads: impl IntoIterator<Item = C>) -> Self {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(cells(heads, false));
        Self {
            table,
            has_color: false,
        }
    }

    /// A head above a rule, all cells to the right; cells are wrapped where `width` requires it.
    pub fn ruled<C: AsRef<str>>(
        heads: impl IntoIterator<Item = C>,
        width: Option<u16>,
        has_color: bool,
    ) -> Self {
        let mut table = Table::new();
        table.load_style(RULE);
        match width {
            Some(width) => table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width.max(LEAST_WIDTH)),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        if has_color {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(cells(heads, false));
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_padding((0, 1));
        }
        Self { table, has_color }
    }

    pub fn add_row<C: AsRef<str>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.table.add_row(cells(row, false));
    }

    /// A row that is bold where the table has color.
    pub fn add_best_row<C: AsRef<str>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.table.add_row(cells(row, self.has_color));
    }

    /// Puts all cells to the right, from this column on.
    pub fn align_right(&mut self, first: usize) {
        for column in self.table.column_iter_mut().skip(first) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    /// The text, without a line feed at its end.
    pub fn text(&self) -> String {
        self.table.trim_fmt()
    }
}

fn cells<C: AsRef<str>>(texts: impl IntoIterator<Item = C>, is_bold: bool) -> Vec<Cell> {
    let cell = |text: C| {
        let cell = Cell::new(without_controls(text.as_ref()));
        if is_bold {
            cell.add_attribute(Attribute::Bold)
        } else {
            cell
        }
    };
    texts.into_iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_line_whatever_it_holds() {
        let mut table = TextTable::plain(["a\nb", "c"]);
        table.add_row(["1\n2\u{1b}[2J", "\u{202e}3"]);
        assert_eq!(table.text().lines().count(), 2, "{}", table.text());
        assert!(table.text().contains("1 2 [2J") && table.text().contains("�3"));
    }
}
