//! Lines and dots over an axis, with intervals around the dots and bands behind everything.

use plotters::{
    chart::{ChartBuilder, ChartContext, LabelAreaPosition},
    coord::{cartesian::Cartesian2d, ranged1d::Ranged},
    element::{EmptyElement, PathElement, Rectangle},
    prelude::SVGBackend,
    style::{
        Color, RGBColor,
        text_anchor::{HPos, VPos},
    },
};

use super::{
    canvas::{
        BANDS, DrawnChart, GRID, LegendEntry, MUTED, Sheet, Sign, TEXT_SIZE, WIDTH, draw_head,
        head_height, mark_of, series_color, text_style,
    },
    scale::ChartAxis,
    shortened,
    values::{ChartValue, ChartValues, ValueSeries, with_interval},
};

const PLOT_HEIGHT: u32 = 440;
const LOW_PLOT_HEIGHT: u32 = 280;
/// Around the area of the lines: ticks at the left and below.
const LEFT: u32 = 104;
const RIGHT: u32 = 36;
const ABOVE: u32 = 12;
const BELOW: u32 = 78;
/// A band is at least so small a part of the axis.
const LEAST_BAND: f64 = 250.0;
/// Marks along a line that has none of its own, for readers who do not see its color.
const MARKS_OF_A_LINE: usize = 6;
/// Positions of these marks, so that those of neighboring lines do not overlap.
const SHIFTS: usize = 4;
/// Half the width of an interval's ends.
const CAP: i32 = 8;

#[derive(Clone, Debug)]
pub(in crate::report) struct Lines {
    pub(in crate::report) x: ChartAxis,
    pub(in crate::report) y: ChartAxis,
    pub(in crate::report) lines: Vec<ChartLine>,
    pub(in crate::report) bands: Vec<Band>,
    /// One of a stack.
    pub(in crate::report) is_low: bool,
}

#[derive(Clone, Debug)]
pub(in crate::report) struct ChartLine {
    /// In the legend; the lines of one label share its entry.
    pub(in crate::report) label: String,
    /// Tells it from other lines of the same label. Shown in the list of values, not in the legend.
    pub(in crate::report) detail: String,
    /// Index into the colors of the series.
    pub(in crate::report) color: usize,
    pub(in crate::report) shape: MarkShape,
    pub(in crate::report) marks: Vec<ChartMark>,
}

/// Style of the marks of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum MarkShape {
    /// Marks with a line between.
    Marked,
    /// Marks alone: there is nothing between their places.
    Dots,
    /// A line alone.
    Plain,
}

/// A place on a line, and the interval around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::report) struct ChartMark {
    pub(in crate::report) x: f64,
    pub(in crate::report) y: f64,
    pub(in crate::report) interval: Option<(f64, f64)>,
}

impl ChartLine {
    /// The heights of its marks and of the ends of their intervals.
    pub(in crate::report) fn reach(&self) -> impl Iterator<Item = f64> {
        self.placed().flat_map(|mark| {
            let ends = mark.interval.map(|(low, high)| [low, high]);
            [mark.y].into_iter().chain(ends.into_iter().flatten())
        })
    }

    /// The marks that have a place.
    fn placed(&self) -> impl Iterator<Item = ChartMark> {
        self.marks.iter().copied().filter(|mark| !mark.is_gap())
    }
}

impl ChartMark {
    pub(in crate::report) fn at(x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            interval: None,
        }
    }

    /// A place without a mark, over which no line leads.
    pub(in crate::report) fn gap(x: f64) -> Self {
        Self::at(x, f64::NAN)
    }

    /// Whether one of its coordinates is not a finite number, so that nothing is drawn.
    pub(in crate::report) fn is_gap(&self) -> bool {
        !(self.x.is_finite() && self.y.is_finite())
    }
}

/// A stretch of the horizontal axis with its own color.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::report) struct Band {
    pub(in crate::report) label: &'static str,
    /// Index into the colors of the bands.
    pub(in crate::report) color: usize,
    pub(in crate::report) from: f64,
    pub(in crate::report) to: f64,
}

type Area<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<ChartAxis, ChartAxis>>;

impl Lines {
    pub(super) fn size(&self) -> (u32, u32) {
        let plot = if self.is_low {
            LOW_PLOT_HEIGHT
        } else {
            PLOT_HEIGHT
        };
        (WIDTH, plot + head_height(&self.entries()) as u32)
    }

    /// Each mark, line by line.
    pub(super) fn values(&self) -> ChartValues {
        let head = head_height(&self.entries());
        let across = (LEFT as i32, (WIDTH - RIGHT) as i32 - 1);
        let upward = ((self.size().1 - BELOW) as i32 - 1, head + ABOVE as i32);
        let value = |mark: ChartMark| ChartValue {
            at: (self.x.map(&mark.x, across), self.y.map(&mark.y, upward)),
            x: self.x.text_at(mark.x),
            y: with_interval(mark.y, mark.interval),
        };
        let series = |line: &ChartLine| {
            let parts = [line.label.as_str(), line.detail.as_str()];
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            let label = parts.collect::<Vec<_>>().join(", ");
            ValueSeries::new(&label, line.placed().map(value).collect())
        };
        ChartValues {
            x: self.x.label.clone(),
            y: self.y.label.clone(),
            series: self.lines.iter().map(series).collect(),
        }
    }

    pub(super) fn draw(&self, root: &Sheet<'_>, title: &str) -> DrawnChart {
        let sheet = draw_head(root, title, &self.entries())?;
        let mut area = ChartBuilder::on(&sheet)
            .margin_right(RIGHT)
            .margin_top(ABOVE)
            .set_label_area_size(LabelAreaPosition::Left, LEFT)
            .set_label_area_size(LabelAreaPosition::Bottom, BELOW)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        self.draw_bands(&mut area)?;
        area.configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID.stroke_width(2))
            .axis_style(MUTED.stroke_width(2))
            .label_style(text_style(TEXT_SIZE, MUTED, HPos::Left, VPos::Top))
            .axis_desc_style(text_style(TEXT_SIZE, MUTED, HPos::Left, VPos::Top))
            .x_desc(shortened(&self.x.label, 60))
            .draw()?;
        self.lines
            .iter()
            .enumerate()
            .try_for_each(|(place, line)| draw_line(&mut area, line, self.drawn_mark(line, place)))
    }

    fn draw_bands(&self, area: &mut Area<'_, '_>) -> DrawnChart {
        let (low, high) = (self.y.range().start, self.y.range().end);
        let (first, last) = (self.x.range().start, self.x.range().end);
        let inside = self
            .bands
            .iter()
            .filter(|band| band.to >= first && band.from <= last);
        // However short, it is seen.
        let least = (last - first) / LEAST_BAND;
        let rectangle = |band: &Band| {
            let to = band.to.max(band.from + least).min(last);
            Rectangle::new(
                [(band.from.max(first).min(to - least), low), (to, high)],
                BANDS[band.color % 2].filled(),
            )
        };
        area.draw_series(inside.map(rectangle)).map(|_| ())
    }

    /// The mark of the line in this place: that of its color, which the lines of one label share; `None`
    /// for a line that needs none.
    fn marked(&self, line: &ChartLine, place: usize) -> Option<usize> {
        if line.shape != MarkShape::Plain {
            let is_shared = self
                .lines
                .iter()
                .any(|other| other.shape == MarkShape::Plain);
            return Some(if is_shared { line.color } else { place });
        }
        let is_one = self.lines.iter().all(|other| other.color == line.color);
        (!is_one && !line.label.is_empty()).then_some(line.color)
    }

    /// The same, where it is drawn: a line beside one of its color with marks has none.
    fn drawn_mark(&self, line: &ChartLine, place: usize) -> Option<usize> {
        let has_marks =
            |other: &ChartLine| other.color == line.color && other.shape != MarkShape::Plain;
        let is_without = line.shape == MarkShape::Plain && self.lines.iter().any(has_marks);
        self.marked(line, place).filter(|_| !is_without)
    }

    fn entries(&self) -> Vec<LegendEntry<'_>> {
        let mut entries: Vec<LegendEntry<'_>> = Vec::new();
        let sign = |line: &ChartLine, place: usize| {
            self.marked(line, place).map_or(Sign::Line, Sign::Mark)
        };
        let lines = self.lines.iter().enumerate();
        let lines = lines.map(|(place, line)| LegendEntry {
            label: &line.label,
            color: series_color(line.color),
            sign: sign(line, place),
        });
        let bands = self.bands.iter().map(|band| LegendEntry {
            label: band.label,
            color: BANDS[band.color % 2],
            sign: Sign::Area,
        });
        for entry in lines.chain(bands) {
            if !entry.label.is_empty() && entries.iter().all(|known| known.label != entry.label) {
                entries.push(entry);
            }
        }
        entries
    }
}

fn draw_line(area: &mut Area<'_, '_>, line: &ChartLine, mark: Option<usize>) -> DrawnChart {
    let color = series_color(line.color);
    let marks: Vec<ChartMark> = line.placed().collect();
    let width = if line.shape == MarkShape::Plain { 3 } else { 4 };
    if line.shape != MarkShape::Dots {
        let stretches = line.marks.split(ChartMark::is_gap);
        area.draw_series(stretches.filter(|marks| marks.len() > 1).map(|marks| {
            let path: Vec<(f64, f64)> = marks.iter().map(|mark| (mark.x, mark.y)).collect();
            PathElement::new(path, color.stroke_width(width))
        }))?;
    }
    let Some(place) = mark else {
        return Ok(());
    };
    if line.shape == MarkShape::Plain {
        let some: Vec<ChartMark> = sparse(&marks, place).collect();
        return draw_marks(area, &some, color, place);
    }
    for mark in &marks {
        if let Some((low, high)) = mark.interval {
            area.draw_series([PathElement::new(
                [(mark.x, low), (mark.x, high)],
                color.stroke_width(3),
            )])?;
            let cap = |y| {
                EmptyElement::at((mark.x, y))
                    + PathElement::new([(-CAP, 0), (CAP, 0)], color.stroke_width(3))
            };
            area.draw_series([cap(low), cap(high)])?;
        }
    }
    draw_marks(area, &marks, color, place)
}

/// A few places of a line, at which it shows its mark; those of lines beside it differ.
fn sparse(marks: &[ChartMark], place: usize) -> impl Iterator<Item = ChartMark> + '_ {
    let apart = marks.len().div_ceil(MARKS_OF_A_LINE).max(1);
    let first = (apart * (place % SHIFTS)) / SHIFTS;
    marks.iter().skip(first).step_by(apart).copied()
}

fn draw_marks(
    area: &mut Area<'_, '_>,
    marks: &[ChartMark],
    color: RGBColor,
    place: usize,
) -> DrawnChart {
    let at = |mark: &ChartMark| EmptyElement::at((mark.x, mark.y)) + mark_of(place, color);
    area.draw_series(marks.iter().map(at)).map(|_| ())
}
