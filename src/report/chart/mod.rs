//! Pictures of numbers: what is to be drawn comes in, an SVG comes out. Which numbers, and where
//! they come from, is for `views`.
//!
//! Sizes are twice those of a page, because the drawing crate knows whole pixels only and a curve
//! of whole pixels looks like stairs.

mod bars;
mod canvas;
mod heat;
mod intervals;
mod lines;
mod scale;
mod values;

pub(super) use bars::{Bars, ChartBar};
pub(super) use canvas::dark_rules;
pub(super) use heat::{Heat, HeatCell, most_columns, short_number};
pub(super) use intervals::{IntervalRow, Intervals};
pub(super) use lines::{Band, ChartLine, ChartMark, Lines, MarkShape};
pub(super) use scale::{AxisUnit, ChartAxis, Quantity, label_of};
pub(super) use values::ChartValues;

use askama::filters::{Escaper, Html};
use kiln_core::units::without_controls;
use plotters::{drawing::IntoDrawingArea, prelude::SVGBackend};

/// A picture with its name and words.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// Name of its file, without the extension.
    pub(super) name: String,
    pub(super) title: String,
    /// Sentences on what it shows and what it does not show.
    pub(super) caption: String,
    pub(super) picture: Picture,
}

#[derive(Clone, Debug)]
pub(super) enum Picture {
    Lines(Lines),
    Bars(Bars),
    Heat(Heat),
    Intervals(Intervals),
}

impl Chart {
    /// A picture that stands alone: title and legend are in it. Colors are those of light pages;
    /// [`dark_rules`] has the others.
    pub(super) fn svg(&self) -> String {
        let size = match &self.picture {
            Picture::Lines(lines) => lines.size(),
            Picture::Bars(bars) => bars.size(),
            Picture::Heat(heat) => heat.size(),
            Picture::Intervals(intervals) => intervals.size(),
        };
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
            // Drawing into a text cannot fail.
            let _ = match &self.picture {
                Picture::Lines(lines) => lines.draw(&root, &self.title),
                Picture::Bars(bars) => bars.draw(&root, &self.title),
                Picture::Heat(heat) => heat.draw(&root, &self.title),
                Picture::Intervals(intervals) => intervals.draw(&root, &self.title),
            };
            let _ = root.present();
        }
        let mut title = String::new();
        let _ = Html.write_escaped_str(&mut title, &shortened(&self.title, 200));
        // Screen readers say the title instead of every tick.
        text.replacen("<svg ", "<svg role=\"img\" data-by=\"kiln\" ", 1)
            .replacen(
                ">\n",
                &format!(
                    ">\n\
                     <title>{title}</title>\n"
                ),
                1,
            )
    }

    /// The data of the picture as text.
    pub(super) fn values(&self) -> ChartValues {
        match &self.picture {
            Picture::Lines(lines) => lines.values(),
            Picture::Bars(bars) => bars.values(),
            Picture::Heat(heat) => heat.values(),
            Picture::Intervals(intervals) => intervals.values(),
        }
    }
}

/// For a legend, a tick or a value: so many letters at most.
fn shortened(text: &str, most: usize) -> String {
    let plain = without_controls(text);
    match plain.char_indices().nth(most) {
        Some(_) => plain
            .chars()
            .take(most.saturating_sub(1))
            .chain(['…'])
            .collect(),
        None => plain,
    }
}

#[cfg(test)]
mod tests;
