//! An interval in each row, beside the row's name.

use plotters::{
    element::{EmptyElement, PathElement, Text},
    style::{
        Color,
        text_anchor::{HPos, VPos},
    },
};

use super::{
    canvas::{
        DrawnChart, GRID, INK, MUTED, Sheet, TEXT_SIZE, WIDTH, draw_head, head_height, mark_of,
        series_color, text_style,
    },
    scale::ChartAxis,
    shortened,
    values::{ChartValue, ChartValues, ValueSeries, value_text, with_interval},
};

const LEFT: i32 = 16;
/// Names stand left of here.
const PLOT_LEFT: i32 = 330;
/// Right end of the axis.
const RIM: i32 = WIDTH as i32 - 36;
const ABOVE: i32 = 8;
const ROW_HEIGHT: i32 = 44;
/// Ticks and the name of the axis.
const BELOW: i32 = 84;
const TICK: i32 = 10;
const AXIS_NAME: i32 = 46;
/// Half the height of an interval's ends.
const CAP: i32 = 8;
/// Letters of a name.
const MOST_LETTERS: usize = 24;

#[derive(Clone, Debug)]
pub(in crate::report) struct Intervals {
    pub(in crate::report) axis: ChartAxis,
    pub(in crate::report) rows: Vec<IntervalRow>,
}

/// An end beyond the axis is drawn as a line that runs to its rim.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct IntervalRow {
    pub(in crate::report) name: String,
    /// Within the interval; `None` if it is unknown.
    pub(in crate::report) value: Option<f64>,
    pub(in crate::report) low: f64,
    /// `None` if there is no upper end.
    pub(in crate::report) high: Option<f64>,
    /// Words behind the value in the list of values, not drawn.
    pub(in crate::report) detail: String,
}

impl Intervals {
    pub(super) fn size(&self) -> (u32, u32) {
        let height = head_height(&[]) + self.bottom() + BELOW;
        (WIDTH, height as u32)
    }

    pub(super) fn values(&self) -> ChartValues {
        let head = head_height(&[]);
        let value = |(place, row): (usize, &IntervalRow)| {
            let text = match (row.value, row.high) {
                (Some(value), Some(high)) => with_interval(value, Some((row.low, high))),
                _ => format!("at least {}", value_text(row.low)),
            };
            ChartValue {
                at: (
                    self.place(row.value.unwrap_or(row.low)),
                    head + middle(place),
                ),
                x: row.name.clone(),
                y: format!("{text}{}", row.detail),
            }
        };
        ChartValues {
            x: String::new(),
            y: self.axis.label.clone(),
            series: vec![ValueSeries::new(
                "",
                self.rows.iter().enumerate().map(value).collect(),
            )],
        }
    }

    pub(super) fn draw(&self, root: &Sheet<'_>, title: &str) -> DrawnChart {
        let sheet = draw_head(root, title, &[])?;
        let bottom = self.bottom();
        for (value, label) in &self.axis.ticks {
            let x = self.place(*value);
            sheet.draw(&PathElement::new(
                [(x, ABOVE), (x, bottom)],
                GRID.stroke_width(2),
            ))?;
            let style = text_style(TEXT_SIZE, MUTED, HPos::Center, VPos::Top);
            sheet.draw(&Text::new(label.clone(), (x, bottom + TICK), style))?;
        }
        let style = text_style(TEXT_SIZE, MUTED, HPos::Center, VPos::Top);
        sheet.draw(&Text::new(
            shortened(&self.axis.label, 60),
            ((PLOT_LEFT + RIM) / 2, bottom + AXIS_NAME),
            style,
        ))?;
        for (place, row) in self.rows.iter().enumerate() {
            self.draw_row(&sheet, middle(place), row)?;
        }
        Ok(())
    }

    fn draw_row(&self, sheet: &Sheet<'_>, y: i32, row: &IntervalRow) -> DrawnChart {
        let style = text_style(TEXT_SIZE, INK, HPos::Left, VPos::Center);
        let name = shortened(&row.name, MOST_LETTERS);
        sheet.draw(&Text::new(name, (LEFT, y), style))?;
        let color = series_color(0);
        let line = |from: (i32, i32), to: (i32, i32)| {
            sheet.draw(&PathElement::new([from, to], color.stroke_width(3)))
        };
        let to = row.high.map_or(RIM, |high| self.place(high));
        line((self.place(row.low), y), (to, y))?;
        let ends = [Some(row.low), row.high].into_iter().flatten();
        for end in ends.filter(|end| self.axis.holds(*end)) {
            let x = self.place(end);
            line((x, y - CAP), (x, y + CAP))?;
        }
        match row.value {
            Some(value) => {
                let at = EmptyElement::at((self.place(value), y));
                sheet.draw(&(at + mark_of(0, color)))
            }
            None => Ok(()),
        }
    }

    fn bottom(&self) -> i32 {
        ABOVE + self.rows.len() as i32 * ROW_HEIGHT
    }

    fn place(&self, value: f64) -> i32 {
        let width = f64::from(RIM - PLOT_LEFT);
        PLOT_LEFT + (self.axis.share(value).clamp(0.0, 1.0) * width).round() as i32
    }
}

/// Vertical center of a row, in pixels below the picture's title.
fn middle(row: usize) -> i32 {
    ABOVE + row as i32 * ROW_HEIGHT + ROW_HEIGHT / 2
}
