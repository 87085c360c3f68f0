//! A heat map of two keys: a cell for each pair of values with its number; a larger number has a
//! deeper color.

use plotters::{
    element::{Rectangle, Text},
    style::{
        Color, RGBColor,
        text_anchor::{HPos, VPos},
    },
};

use super::{
    canvas::{
        DrawnChart, GRID, MUTED, Sheet, TEXT_SIZE, WIDTH, draw_head, head_height, text_style,
    },
    shortened,
    values::{ChartValue, ChartValues, ValueSeries, value_text},
};

const ROW_HEIGHT: i32 = 62;
const LEFT: i32 = 132;
const RIGHT: i32 = 20;
const FOOT: i32 = 84;
/// The key of the rows stands above them.
const KEY_HEIGHT: i32 = 34;
const MOST_LETTERS: usize = 9;
/// Approximate width of a letter.
const LETTER: i32 = 12;
const NUMBER_LETTERS: usize = 4;
const FEWEST: usize = 5;
const MOST: usize = 12;

/// From low to high, one hue; the colors and the text on them are the same on a dark page.
const STEPS: [RGBColor; 7] = [
    RGBColor(0xEA, 0xF2, 0xFB),
    RGBColor(0xCB, 0xE0, 0xF6),
    RGBColor(0xA3, 0xC9, 0xEE),
    RGBColor(0x73, 0xAC, 0xE2),
    RGBColor(0x2F, 0x6F, 0xB7),
    RGBColor(0x1F, 0x54, 0x96),
    RGBColor(0x10, 0x38, 0x6B),
];
/// From here on the ink is white.
const DEEP: usize = 4;
const ON_PALE: RGBColor = RGBColor(0x11, 0x18, 0x27);
const ON_DEEP: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);

#[derive(Clone, Debug)]
pub(in crate::report) struct Heat {
    /// Name of the numbers, with their unit.
    pub(in crate::report) quantity: String,
    pub(in crate::report) column_key: String,
    pub(in crate::report) columns: Vec<String>,
    pub(in crate::report) row_key: String,
    pub(in crate::report) rows: Vec<String>,
    /// By row, then column; what there is none of is empty.
    pub(in crate::report) cells: Vec<Vec<Option<HeatCell>>>,
}

/// A number and how it is written.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct HeatCell {
    pub(in crate::report) value: f64,
    pub(in crate::report) text: String,
}

impl Heat {
    pub(super) fn size(&self) -> (u32, u32) {
        (
            WIDTH,
            (head_height(&[]) + KEY_HEIGHT + self.rows.len() as i32 * ROW_HEIGHT + FOOT) as u32,
        )
    }

    /// Each cell, row by row; an empty one has no number.
    pub(super) fn values(&self) -> ChartValues {
        let head = head_height(&[]) + KEY_HEIGHT;
        let value = |row: usize, column: usize, cell: &Option<HeatCell>| ChartValue {
            at: (
                i32::midpoint(self.left(column), self.left(column + 1)),
                head + row as i32 * ROW_HEIGHT + ROW_HEIGHT / 2,
            ),
            x: self.columns[column].clone(),
            y: cell
                .as_ref()
                .map_or("–".to_owned(), |cell| value_text(cell.value)),
        };
        let series = |(row, cells): (usize, &Vec<Option<HeatCell>>)| {
            let cells = cells.iter().enumerate();
            ValueSeries::new(
                &format!("{} {}", self.row_key, self.rows[row]),
                cells
                    .map(|(column, cell)| value(row, column, cell))
                    .collect(),
            )
        };
        ChartValues {
            x: self.column_key.clone(),
            y: self.quantity.clone(),
            series: self.cells.iter().enumerate().map(series).collect(),
        }
    }

    pub(super) fn draw(&self, root: &Sheet<'_>, title: &str) -> DrawnChart {
        let sheet = draw_head(root, title, &[])?;
        let label = |text: &str, at: (i32, i32), horizontal, vertical| {
            Text::new(
                shortened(text, 60),
                at,
                text_style(TEXT_SIZE, MUTED, horizontal, vertical),
            )
        };
        sheet.draw(&label(
            &self.row_key,
            (16, KEY_HEIGHT / 2),
            HPos::Left,
            VPos::Center,
        ))?;
        let bottom = KEY_HEIGHT + self.rows.len() as i32 * ROW_HEIGHT;
        for (row, name) in self.rows.iter().enumerate() {
            let middle = KEY_HEIGHT + row as i32 * ROW_HEIGHT + ROW_HEIGHT / 2;
            sheet.draw(&label(
                &shortened(name, MOST_LETTERS),
                (LEFT - 14, middle),
                HPos::Right,
                VPos::Center,
            ))?;
        }
        for (column, name) in self.columns.iter().enumerate() {
            let middle = i32::midpoint(self.left(column), self.left(column + 1));
            sheet.draw(&label(
                &shortened(name, self.letters()),
                (middle, bottom + 10),
                HPos::Center,
                VPos::Top,
            ))?;
        }
        let middle = i32::midpoint(LEFT, WIDTH as i32 - RIGHT);
        sheet.draw(&label(
            &self.column_key,
            (middle, bottom + 46),
            HPos::Center,
            VPos::Top,
        ))?;
        self.draw_cells(&sheet)
    }

    fn draw_cells(&self, sheet: &Sheet<'_>) -> DrawnChart {
        let values = || self.cells.iter().flatten().flatten().map(|cell| cell.value);
        let (low, high) = (
            values().fold(f64::INFINITY, f64::min),
            values().fold(f64::NEG_INFINITY, f64::max),
        );
        for (row, cells) in self.cells.iter().enumerate() {
            let top = KEY_HEIGHT + row as i32 * ROW_HEIGHT;
            for (column, cell) in cells.iter().enumerate() {
                let (left, right) = (self.left(column), self.left(column + 1));
                let corners = [(left + 2, top + 2), (right - 2, top + ROW_HEIGHT - 2)];
                let Some(cell) = cell else {
                    sheet.draw(&Rectangle::new(corners, GRID.stroke_width(2)))?;
                    continue;
                };
                let step = step_of(cell.value, low, high);
                sheet.draw(&Rectangle::new(corners, STEPS[step].filled()))?;
                let ink = if step >= DEEP { ON_DEEP } else { ON_PALE };
                let middle = (i32::midpoint(left, right), top + ROW_HEIGHT / 2);
                sheet.draw(&Text::new(
                    shortened(&cell.text, self.letters()),
                    middle,
                    text_style(TEXT_SIZE, ink, HPos::Center, VPos::Center),
                ))?;
            }
        }
        Ok(())
    }

    fn left(&self, column: usize) -> i32 {
        LEFT + (WIDTH as i32 - LEFT - RIGHT) * column as i32 / self.columns.len().max(1) as i32
    }

    /// Number of letters that fit in a cell.
    fn letters(&self) -> usize {
        letters_of(self.columns.len())
    }
}

/// Number of letters that fit in a cell of a field with so many columns.
fn letters_of(columns: usize) -> usize {
    ((WIDTH as i32 - LEFT - RIGHT) / columns.max(1) as i32 / LETTER).clamp(2, 24) as usize
}

/// So many columns have room for labels of so many letters, and for numbers of four; never fewer
/// than [`FEWEST`].
pub(in crate::report) fn most_columns(letters: usize) -> usize {
    (FEWEST..=MOST)
        .rev()
        .find(|columns| letters_of(*columns) >= letters.max(NUMBER_LETTERS))
        .unwrap_or(FEWEST)
}

/// From here on a number has an exponent: no cell has room for its digits.
const MOST_PLAIN: f64 = 1e7;

/// A number in four letters, where none is above 9999. What is not 0 never prints as 0.
pub(in crate::report) fn short_number(value: f64) -> String {
    match value.abs() {
        size if size > 0.0 && size < 0.005 => format!("{value:.0e}"),
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        size if size < MOST_PLAIN => format!("{value:.0}"),
        _ => format!("{value:.0e}"),
    }
}

/// Equal values everywhere are neither low nor high.
fn step_of(value: f64, low: f64, high: f64) -> usize {
    if high <= low {
        return STEPS.len() / 2;
    }
    ((value - low) / (high - low) * STEPS.len() as f64)
        .floor()
        .clamp(0.0, STEPS.len() as f64 - 1.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deeper_the_larger() {
        assert_eq!(
            [0.0, 5.0, 10.0].map(|value| step_of(value, 0.0, 10.0)),
            [0, 3, 6]
        );
        assert_eq!(step_of(1.0, 1.0, 1.0), 3);
    }

    #[test]
    fn numbers_and_labels_fit_in_their_cells() {
        assert_eq!(
            [0.5, 9.999, 12.345, 99.99, 1234.4].map(short_number),
            ["0.50", "10.0", "12.3", "100", "1234"]
        );
        assert_eq!(
            [0.0, 0.0012, 0.0049].map(short_number),
            ["0.00", "1e-3", "5e-3"]
        );
        assert_eq!(
            [3e7, 1e308, f64::MAX].map(short_number),
            ["3e7", "1e308", "2e308"]
        );
        assert_eq!(
            (most_columns(1), most_columns(5), most_columns(40)),
            (12, 11, 5)
        );
    }
}
