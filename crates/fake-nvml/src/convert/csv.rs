//! Reads the `--query-gpu` table of a full capture, and lays its cells over the page under the
//! labels that mean the same.

use super::{Moment, Page, Prefer, Table, text};

/// Properties and the labels that mean the same, `|` between those of different drivers. Labels in
/// parentheses are on no page: only the table has them; `(=` marks what a page says in other cells,
/// and may contradict.
const LABELS: &str = include_str!("properties.csv");

pub(super) fn table(capture: &str, moment: Moment) -> Option<Table> {
    let name = match moment {
        Moment::Idle => "# idle :: query-gpu (csv",
        Moment::Load => "# load :: query-gpu (csv",
    };
    let mut lines = text::section(capture, name)?
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let header = lines.next()?;
    let properties = header
        .split(',')
        .map(|name| {
            name.trim()
                .split(" [")
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        .collect();
    let rows = lines
        .map(|line| line.split(',').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    Some(Table {
        properties,
        rows,
        header: header.trim_end().to_owned(),
    })
}

pub(super) fn lay_over(page: &mut Page, table: &Table, prefer: Prefer) {
    let over = prefer == Prefer::Table;
    for (gpu, row) in page.gpus.iter_mut().zip(&table.rows) {
        // Cells taken a moment apart may contradict each other; a form of one board does not.
        for (property, cell) in table.properties.iter().zip(row) {
            let Some(labels) = label(property) else {
                continue;
            };
            if !over && labels.starts_with("(=") {
                continue;
            }
            let path = labels
                .split('|')
                .find(|path| gpu.at(path).is_some())
                .or(labels.split('|').next_back())
                .unwrap_or(labels);
            let cell = cell
                .strip_prefix('[')
                .and_then(|inner| inner.strip_suffix(']'))
                .unwrap_or(cell);
            gpu.put(path, cell, over);
        }
    }
}

fn label(property: &str) -> Option<&'static str> {
    LABELS.lines().find_map(|line| {
        line.split_once(',')
            .filter(|(name, _)| *name == property)
            .map(|(_, label)| label)
    })
}
