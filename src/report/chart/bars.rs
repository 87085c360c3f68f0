//! Bars made of parts, one below the other, each under its name.

use plotters::{
    element::{Rectangle, Text},
    style::{
        Color,
        text_anchor::{HPos, VPos},
    },
};

use super::{
    canvas::{
        DrawnChart, GRID, INK, LegendEntry, MUTED, Sheet, Sign, TEXT_SIZE, WIDTH, draw_head,
        head_height, series_color, text_style,
    },
    scale::label_of,
    shortened,
    values::{ChartValue, ChartValues, ValueSeries, value_text},
};

const BAR_HEIGHT: i32 = 30;
const NAME_HEIGHT: i32 = 34;
const GAP: i32 = 12;
const LEFT: i32 = 16;
/// Room for the number at the end of the longest bar.
const RIGHT: i32 = 130;
const MOST_LETTERS: usize = 66;

#[derive(Clone, Debug)]
pub(in crate::report) struct Bars {
    /// Name of the quantity, with its unit.
    pub(in crate::report) quantity: String,
    /// Names of the parts.
    pub(in crate::report) parts: Vec<&'static str>,
    pub(in crate::report) bars: Vec<ChartBar>,
}

#[derive(Clone, Debug)]
pub(in crate::report) struct ChartBar {
    pub(in crate::report) name: String,
    /// One value per part, not negative; an unknown part is 0.
    pub(in crate::report) parts: Vec<f64>,
    /// At the bar's end.
    pub(in crate::report) total: f64,
}

impl Bars {
    pub(super) fn size(&self) -> (u32, u32) {
        let height = head_height(&self.entries())
            + self.bars.len() as i32 * (BAR_HEIGHT + NAME_HEIGHT + GAP)
            + GAP;
        (WIDTH, height as u32)
    }

    /// A value for each bar: the whole and its parts.
    pub(super) fn values(&self) -> ChartValues {
        let head = head_height(&self.entries());
        let value = |(row, bar): (usize, &ChartBar)| {
            let parts = self.parts.iter().zip(&bar.parts);
            let parts: Vec<String> = parts
                .filter(|(_, size)| **size > 0.0)
                .map(|(part, size)| format!("{part} {}", value_text(*size)))
                .collect();
            ChartValue {
                at: (LEFT, head + bar_top(row) + BAR_HEIGHT / 2),
                x: bar.name.clone(),
                y: format!("{} ({})", value_text(bar.total), parts.join(", ")),
            }
        };
        let values = self.bars.iter().enumerate().map(value).collect();
        ChartValues {
            x: String::new(),
            y: self.quantity.clone(),
            series: vec![ValueSeries::new("", values)],
        }
    }

    pub(super) fn draw(&self, root: &Sheet<'_>, title: &str) -> DrawnChart {
        let sheet = draw_head(root, title, &self.entries())?;
        let longest = self
            .bars
            .iter()
            .map(|bar| bar.total)
            .filter(|total| total.is_finite())
            .fold(f64::MIN_POSITIVE, f64::max);
        let width = f64::from(WIDTH as i32 - LEFT - RIGHT);
        let place = |value: f64| LEFT + (value / longest * width).round() as i32;
        for (row, bar) in self.bars.iter().enumerate() {
            let bar_top = bar_top(row);
            let bar_end = bar_top + BAR_HEIGHT;
            let style = text_style(TEXT_SIZE, INK, HPos::Left, VPos::Center);
            sheet.draw(&Text::new(
                shortened(&bar.name, MOST_LETTERS),
                (LEFT, bar_top - NAME_HEIGHT / 2),
                style,
            ))?;
            sheet.draw(&Rectangle::new(
                [(LEFT, bar_top), (place(longest), bar_end)],
                GRID.filled(),
            ))?;
            let mut from = 0.0;
            for (part, size) in bar.parts.iter().enumerate() {
                sheet.draw(&Rectangle::new(
                    [(place(from), bar_top), (place(from + size), bar_end)],
                    series_color(part).filled(),
                ))?;
                from += size;
            }
            let style = text_style(TEXT_SIZE, MUTED, HPos::Left, VPos::Center);
            sheet.draw(&Text::new(
                label_of(bar.total, digits(longest)),
                (place(longest) + 10, (bar_top + bar_end) / 2),
                style,
            ))?;
        }
        Ok(())
    }

    fn entries(&self) -> Vec<LegendEntry<'_>> {
        self.parts
            .iter()
            .enumerate()
            .map(|(place, part)| LegendEntry {
                label: part,
                color: series_color(place),
                sign: Sign::Area,
            })
            .collect()
    }
}

/// Upper edge of a bar, below the head; its name stands above it.
fn bar_top(row: usize) -> i32 {
    row as i32 * (BAR_HEIGHT + NAME_HEIGHT + GAP) + NAME_HEIGHT
}

/// Number of decimals, for about three significant digits.
fn digits(longest: f64) -> usize {
    (2.0 - longest.log10().floor()).clamp(0.0, 6.0) as usize
}
