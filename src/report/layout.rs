//! A table on a page: columns of cells, as wide as the terminal allows.

use kiln_core::units::{WholePercent, without_controls};

use crate::output::{
    markdown,
    table::{LEAST_WIDTH, TextTable, hidden_for_width},
};

pub(super) use kiln_core::units::significant;

/// Text of a cell without a value.
pub(super) const NOTHING: &str = "–";
/// In the first column: the row that matters most.
pub(super) const MARK: &str = "*";

/// Columns worth at least this much stay however narrow the terminal is: axes and throughput.
pub(super) const MUST_STAY: u8 = 200;

/// Width and color of the page.
#[derive(Clone, Copy, Debug)]
pub struct PageStyle {
    /// Columns of the terminal; `None` for no limit (a file, a pipe).
    pub width: Option<u16>,
    /// Whether the best line is bold.
    pub has_color: bool,
}

/// A speed as a share of the fastest one's: `97 %`, `99.6 %`; `100 %` for that one alone.
pub(super) fn share_of_fastest(share: f64) -> String {
    match share {
        share if share >= 1.0 => "100 %".to_owned(),
        share if share >= 0.985 => format!("{:.1} %", (share * 100.0).min(99.9)),
        share => WholePercent(share).to_string(),
    }
}

/// A column: its head and each row's cell. `keep` orders what a narrow terminal gives up: low goes
/// first.
pub(super) struct PageColumn {
    pub(super) head: String,
    pub(super) cells: Vec<String>,
    pub(super) keep: u8,
}

impl PageColumn {
    /// A cell per row; a missing value is a dash.
    pub(super) fn new(head: &str, keep: u8, cells: impl Iterator<Item = Option<String>>) -> Self {
        Self {
            head: without_controls(head),
            cells: cells
                .map(|cell| cell.map_or_else(|| NOTHING.to_owned(), |cell| without_controls(&cell)))
                .collect(),
            keep,
        }
    }

    /// The column of marks, which always stays.
    pub(super) fn of_marks(is_marked: impl Iterator<Item = bool>) -> Self {
        Self {
            head: String::new(),
            cells: is_marked
                .map(|is_marked| if is_marked { MARK } else { "" }.to_owned())
                .collect(),
            keep: u8::MAX,
        }
    }

    /// Whether some row has a value, or the column must stay anyway.
    pub(super) fn says_something(&self) -> bool {
        self.keep == u8::MAX || self.cells.iter().any(|cell| cell != NOTHING)
    }
}

/// The columns that fit the width, in their order: those that must stay, then by priority.
pub(super) fn fitting(columns: &[PageColumn], width: Option<u16>) -> Vec<&PageColumn> {
    let Some(width) = width.map(|width| usize::from(width.max(LEAST_WIDTH))) else {
        return columns.iter().collect();
    };
    let mut by_worth: Vec<usize> = (0..columns.len()).collect();
    by_worth.sort_by_key(|place| std::cmp::Reverse(columns[*place].keep));
    let mut kept: Vec<usize> = Vec::new();
    for place in by_worth {
        let mut wider = kept.clone();
        wider.push(place);
        wider.sort_unstable();
        let page = layout(
            &wider
                .iter()
                .map(|place| &columns[*place])
                .collect::<Vec<_>>(),
            None,
            false,
        );
        if columns[place].keep >= MUST_STAY || widest_line(&page) <= width {
            kept = wider;
        }
    }
    kept.into_iter().map(|place| &columns[place]).collect()
}

/// Names the columns that a page of this width has no room for; `None` if it has room for all.
pub(super) fn hidden(columns: &[PageColumn], kept: &[&PageColumn]) -> Option<String> {
    let is_kept = |column: &&PageColumn| kept.iter().any(|kept| kept.head == column.head);
    let hidden = columns.iter().filter(|column| !is_kept(column));
    let heads: Vec<&str> = hidden.map(|column| column.head.as_str()).collect();
    hidden_for_width(&heads, usize::MAX)
}

/// Lays the columns out; cells are wrapped where `width` requires it. A marked row is bold where
/// color is on.
pub(super) fn layout(columns: &[&PageColumn], width: Option<u16>, has_color: bool) -> String {
    let heads = columns.iter().map(|column| &column.head);
    let mut table = TextTable::ruled(heads, width, has_color);
    let rows = columns.first().map_or(0, |column| column.cells.len());
    for place in 0..rows {
        let row = columns.iter().map(|column| &column.cells[place]);
        if columns[0].cells[place] == MARK {
            table.add_best_row(row);
        } else {
            table.add_row(row);
        }
    }
    format!("{}\n", table.text())
}

pub(super) fn widest_line(page: &str) -> usize {
    page.lines()
        .map(|line| line.trim_end().chars().count())
        .max()
        .unwrap_or(0)
}

/// The columns as a table of Markdown.
pub(super) fn as_markdown(columns: &[PageColumn]) -> String {
    let heads: Vec<&str> = columns.iter().map(|column| column.head.as_str()).collect();
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let row = |place: usize| {
        columns
            .iter()
            .map(|column| column.cells[place].as_str())
            .collect()
    };
    markdown::table(&heads, (0..rows).map(row))
}
