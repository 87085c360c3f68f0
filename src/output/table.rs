//! Tables of text, laid out by comfy-table: a cell is one line, whatever it holds.

#![allow(
    clippy::disallowed_types,
    reason = "this is the one place that makes tables, and it escapes every cell"
)]

use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table,
    TableStyle, Width, presets,
};
use kiln_core::units::{few, without_controls};
use unicode_width::UnicodeWidthStr;

/// Smallest width that can be laid out; on a narrower terminal lines are too long.
pub const LEAST_WIDTH: u16 = 40;

/// One rule below the head and nothing else: as many columns as possible fit.
const RULE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Rows that are laid out at once: a cell takes much more memory there than its text.
const CHUNK: usize = 500;
/// Columns on both sides of a cell of a plain table.
const PADDING: u16 = 2;

/// A table of text.
#[derive(Debug)]
pub struct TextTable {
    form: Form,
    heads: Vec<String>,
    rows: Vec<Row>,
    /// The first column whose cells are put to the right.
    right_from: usize,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// A head and rows without lines.
    Plain,
    /// A head above a rule, all cells to the right.
    Ruled { width: Option<u16>, has_color: bool },
}

#[derive(Debug)]
struct Row {
    cells: Vec<String>,
    is_best: bool,
}

impl TextTable {
    /// A head and rows without lines.
    pub fn plain<C: AsRef<str>>(heads: impl IntoIterator<Item = C>) -> Self {
        Self {
            form: Form::Plain,
            heads: escaped(heads),
            rows: Vec::new(),
            right_from: usize::MAX,
        }
    }

    /// A head above a rule, all cells to the right; cells are wrapped where `width` requires it.
    pub fn ruled<C: AsRef<str>>(
        heads: impl IntoIterator<Item = C>,
        width: Option<u16>,
        has_color: bool,
    ) -> Self {
        Self {
            form: Form::Ruled { width, has_color },
            right_from: 0,
            ..Self::plain(heads)
        }
    }

    pub fn add_row<C: AsRef<str>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.rows.push(Row {
            cells: escaped(row),
            is_best: false,
        });
    }

    /// A row that is bold where the table has color.
    pub fn add_best_row<C: AsRef<str>>(&mut self, row: impl IntoIterator<Item = C>) {
        self.rows.push(Row {
            cells: escaped(row),
            is_best: true,
        });
    }

    /// Puts all cells to the right, from this column on.
    pub fn align_right(&mut self, first: usize) {
        self.right_from = first;
    }

    /// Leaves out columns of a plain table until its lines have at most `width` columns: those with
    /// these heads, one after another. Returns the heads that were left out; the columns are among
    /// those put to the right.
    pub fn fit<'a>(&mut self, width: usize, dispensable: &[&'a str]) -> Vec<&'a str> {
        self.leave_out(width, dispensable, false)
    }

    /// As [`Self::fit`]; then columns that fit after all are put back, the last one first.
    pub fn fit_most<'a>(&mut self, width: usize, dispensable: &[&'a str]) -> Vec<&'a str> {
        self.leave_out(width, dispensable, true)
    }

    fn leave_out<'a>(
        &mut self,
        width: usize,
        dispensable: &[&'a str],
        puts_back: bool,
    ) -> Vec<&'a str> {
        let widths = self.widths();
        let fits = |left_out: &[(usize, &str)]| {
            let is_kept = |place: usize| left_out.iter().all(|(other, _)| *other != place);
            let kept = widths.iter().enumerate();
            let kept = kept.filter(|(place, _)| is_kept(*place));
            line_width(&kept.map(|(_, width)| *width).collect::<Vec<usize>>()) <= width
        };
        let mut left_out: Vec<(usize, &'a str)> = Vec::new();
        for head in dispensable {
            if fits(&left_out) {
                break;
            }
            if let Some(place) = self.heads.iter().position(|own| own == head) {
                left_out.push((place, *head));
            }
        }
        let last = if puts_back { left_out.len() } else { 0 };
        for place in (0..last).rev() {
            let column = left_out.remove(place);
            if !fits(&left_out) {
                left_out.insert(place, column);
            }
        }
        let mut places: Vec<usize> = left_out.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        for place in places.into_iter().rev() {
            self.heads.remove(place);
            for row in self.rows.iter_mut().filter(|row| place < row.cells.len()) {
                row.cells.remove(place);
            }
        }
        left_out.into_iter().map(|(_, head)| head).collect()
    }

    /// Whether the lines of a plain table have at most `width` columns.
    pub fn fits(&self, width: usize) -> bool {
        line_width(&self.widths()) <= width
    }

    /// The text, without a line feed at its end.
    pub fn text(&self) -> String {
        match self.form {
            Form::Plain => self.plain_text(),
            Form::Ruled { width, has_color } => self.ruled_text(width, has_color),
        }
    }

    /// Some rows after others, with columns of one width.
    fn plain_text(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        let mut chunks = self.rows.chunks(CHUNK).peekable();
        let mut is_first = true;
        while is_first || chunks.peek().is_some() {
            let mut table = Table::new();
            table.load_style(presets::NOTHING);
            if is_first {
                table.set_header(cells(&self.heads, false));
            } else {
                text.push('\n');
            }
            for row in chunks.next().unwrap_or_default() {
                table.add_row(cells(&row.cells, false));
            }
            for (column, width) in table.column_iter_mut().zip(&widths) {
                let width = u16::try_from(*width).unwrap_or(u16::MAX);
                let width = Width::Fixed(width.saturating_add(PADDING));
                column.set_constraint(ColumnConstraint::LowerBoundary(width));
            }
            self.align(&mut table);
            text += &table.trim_fmt();
            is_first = false;
        }
        text
    }

    /// The width of the widest cell of each column.
    fn widths(&self) -> Vec<usize> {
        let heads = self.heads.iter();
        let mut widths: Vec<usize> = heads.map(|head| head.width()).collect();
        for row in &self.rows {
            widths.resize(widths.len().max(row.cells.len()), 0);
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = cell.width().max(*width);
            }
        }
        widths
    }

    fn ruled_text(&self, width: Option<u16>, has_color: bool) -> String {
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
        table.set_header(cells(&self.heads, false));
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        for row in &self.rows {
            table.add_row(cells(&row.cells, row.is_best && has_color));
        }
        self.align(&mut table);
        table.trim_fmt()
    }

    fn align(&self, table: &mut Table) {
        for column in table.column_iter_mut().skip(self.right_from) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Names the columns that a table leaves out for its width: as many as fit into a line of `longest`
/// characters, at least one. `None` if it leaves out none.
pub fn hidden_for_width(left_out: &[&str], longest: usize) -> Option<String> {
    let names: Vec<String> = left_out.iter().map(|head| (*head).to_owned()).collect();
    let line = |most: usize| format!("hidden for width: {}", few(&names, most));
    let mut lines = (1..=names.len()).rev().map(line);
    let fitting = lines.find(|line| line.chars().count() <= longest);
    fitting.or_else(|| (!names.is_empty()).then(|| line(1)))
}

/// The width of a line of a plain table, without the space at its end.
fn line_width(widths: &[usize]) -> usize {
    let padded = widths.iter().map(|width| width + usize::from(PADDING));
    padded.sum::<usize>().saturating_sub(1)
}

fn escaped<C: AsRef<str>>(texts: impl IntoIterator<Item = C>) -> Vec<String> {
    let escaped = |text: C| without_controls(text.as_ref());
    texts.into_iter().map(escaped).collect()
}

fn cells(texts: &[String], is_bold: bool) -> Vec<Cell> {
    let cell = |text: &String| {
        let cell = Cell::new(text);
        if is_bold {
            cell.add_attribute(Attribute::Bold)
        } else {
            cell
        }
    };
    texts.iter().map(cell).collect()
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

    #[test]
    fn a_table_that_is_too_wide_leaves_out_columns_in_the_given_order() {
        let fitted = |width: usize| {
            let mut table = TextTable::plain(["name", "size", "age"]);
            table.align_right(1);
            table.add_row(["n", "1", "1000 d"]);
            let left_out = table.fit(width, &["no such", "age", "size"]);
            (left_out, table.text())
        };
        let (none, whole) = fitted(19);
        assert!(none.is_empty(), "{none:?}");
        assert_eq!(whole, " name  size     age\n n        1  1000 d");
        let narrower = " name  size\n n        1".to_owned();
        assert_eq!(fitted(18), (vec!["age"], narrower.clone()));
        assert_eq!(fitted(11), (vec!["age"], narrower));
        assert_eq!(fitted(10).0, ["age", "size"]);
        assert_eq!(fitted(1).0, ["age", "size"]);
        let table = TextTable::plain(["name", "size"]);
        assert!(table.fits(11) && !table.fits(10));
    }

    #[test]
    fn a_column_that_fits_after_a_wider_one_is_gone_stays() {
        let fitted = |width: usize| {
            let mut table = TextTable::plain(["name", "time", "parameters"]);
            table.align_right(1);
            table.add_row(["n", "1 s", "8"]);
            let left_out = table.fit_most(width, &["time", "parameters"]);
            (left_out, table.text())
        };
        assert_eq!(fitted(17).0, ["time"]);
        let with_time = " name  time\n n      1 s".to_owned();
        assert_eq!(fitted(16), (vec!["parameters"], with_time.clone()));
        assert_eq!(fitted(11), (vec!["parameters"], with_time));
        assert_eq!(fitted(10).0, ["time", "parameters"]);
    }

    #[test]
    fn as_many_hidden_columns_are_named_as_fit_into_the_line() {
        let line = |longest| hidden_for_width(&["power", "steps", "loss"], longest).unwrap();
        let whole = "hidden for width: power, steps, loss";
        assert_eq!(line(usize::MAX), whole);
        assert_eq!(line(whole.len()), whole);
        assert_eq!(line(whole.len() - 1), "hidden for width: power and 2 more");
        assert_eq!(line(1), "hidden for width: power and 2 more");
        assert_eq!(hidden_for_width(&[], 80), None);
    }

    #[test]
    fn columns_of_a_long_table_have_one_width() {
        let mut table = TextTable::plain(["a", "b"]);
        table.align_right(1);
        let rows = 2 * CHUNK + 1;
        for row in 0..rows {
            table.add_row([if row == rows - 1 { "wide 表格" } else { "x" }, "1"]);
        }
        let text = table.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), rows + 1);
        assert_eq!(lines[0], " a          b");
        assert_eq!(lines[1], " x          1");
        assert_eq!(lines[CHUNK + 1], lines[1]);
        assert_eq!(lines[rows], " wide 表格  1");
        assert_eq!(TextTable::plain(["a"]).text(), " a");
    }
}
