//! Parts that all pictures share: the sheet, its colors and its text.

use plotters::{
    coord::Shift,
    drawing::{DrawingArea, DrawingAreaErrorKind},
    element::{EmptyElement, PathElement, Polygon, Rectangle, Text},
    prelude::SVGBackend,
    style::{
        Color, IntoFont, RGBColor, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::shortened;

pub(super) type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type DrawnChart = Result<(), DrawingAreaErrorKind<std::io::Error>>;

pub(super) const WIDTH: u32 = 840;
const TITLE_HEIGHT: i32 = 50;
const LEGEND_HEIGHT: i32 = 34;
/// Approximate width of a letter of the legend.
const LETTER: i32 = 12;
/// The drawing crate divides by 1.24 to get pixels.
pub(super) const TEXT_SIZE: f64 = 22.0 * 1.24;
const TITLE_SIZE: f64 = 27.0 * 1.24;
/// Letters of a legend's entry.
const MOST_LETTERS: usize = 60;

pub(super) const INK: RGBColor = RGBColor(0x1F, 0x29, 0x37);
pub(super) const MUTED: RGBColor = RGBColor(0x4B, 0x55, 0x63);
pub(super) const GRID: RGBColor = RGBColor(0xDF, 0xE3, 0xE8);
pub(super) const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFE);
pub(super) const BANDS: [RGBColor; 2] = [RGBColor(0xDB, 0xEA, 0xFE), RGBColor(0xFE, 0xCA, 0xCA)];
/// Colors that most people can distinguish, each with a contrast of at least 3 : 1 against the
/// paper.
pub(super) const SERIES: [RGBColor; 8] = [
    RGBColor(0x0B, 0x5F, 0xCE),
    RGBColor(0xC2, 0x41, 0x0C),
    RGBColor(0x0F, 0x7B, 0x5F),
    RGBColor(0x8A, 0x3F, 0xD1),
    RGBColor(0x8F, 0x58, 0x07),
    RGBColor(0xBE, 0x18, 0x5D),
    RGBColor(0x0E, 0x70, 0x90),
    RGBColor(0x6B, 0x72, 0x80),
];

/// Each color of a light page with its color on a dark page.
const DARK: [(RGBColor, RGBColor); 14] = [
    (INK, RGBColor(0xE8, 0xEA, 0xED)),
    (MUTED, RGBColor(0xB4, 0xBB, 0xC6)),
    (GRID, RGBColor(0x35, 0x3B, 0x45)),
    (PAPER, RGBColor(0x1A, 0x1D, 0x23)),
    (BANDS[0], RGBColor(0x1D, 0x34, 0x57)),
    (BANDS[1], RGBColor(0x5C, 0x22, 0x26)),
    (SERIES[0], RGBColor(0x6A, 0xA8, 0xFF)),
    (SERIES[1], RGBColor(0xFF, 0x9B, 0x6A)),
    (SERIES[2], RGBColor(0x4F, 0xD1, 0xA5)),
    (SERIES[3], RGBColor(0xC7, 0x9B, 0xFF)),
    (SERIES[4], RGBColor(0xE5, 0xB9, 0x4C)),
    (SERIES[5], RGBColor(0xFF, 0x8C, 0xC0)),
    (SERIES[6], RGBColor(0x5C, 0xC8, 0xE0)),
    (SERIES[7], RGBColor(0xB5, 0xBC, 0xC8)),
];

/// CSS rules that change the colors of pictures on a dark page.
pub(in crate::report) fn dark_rules() -> String {
    let name = |color: &RGBColor| format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
    let rule = |(light, dark): &(RGBColor, RGBColor)| {
        let (light, dark) = (name(light), name(dark));
        format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    DARK.iter().map(rule).collect()
}

pub(super) fn series_color(place: usize) -> RGBColor {
    SERIES[place % SERIES.len()]
}

pub(super) fn text_style(
    size: f64,
    color: RGBColor,
    horizontal: HPos,
    vertical: VPos,
) -> TextStyle<'static> {
    TextStyle {
        color: color.to_backend_color(),
        ..TextStyle::from(("sans-serif", size).into_font())
    }
    .pos(Pos::new(horizontal, vertical))
}

/// An entry of a legend.
#[derive(Clone, Debug)]
pub(super) struct LegendEntry<'a> {
    pub(super) label: &'a str,
    pub(super) color: RGBColor,
    pub(super) sign: Sign,
}

/// Mark before a text of the legend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sign {
    Line,
    /// A line with the mark of the line in this place.
    Mark(usize),
    Area,
}

/// Each line has its own mark, for readers who do not see its color. Corners are in pixels from the
/// middle.
pub(super) fn mark_of(place: usize, color: RGBColor) -> Polygon<(i32, i32)> {
    const HALF: i32 = 8;
    let corners: &[(i32, i32)] = match place % 4 {
        0 => &[
            (-6, -6),
            (0, -9),
            (6, -6),
            (9, 0),
            (6, 6),
            (0, 9),
            (-6, 6),
            (-9, 0),
        ],
        1 => &[(0, -10), (10, 8), (-10, 8)],
        2 => &[(-HALF, -HALF), (HALF, -HALF), (HALF, HALF), (-HALF, HALF)],
        _ => &[(0, -11), (11, 0), (0, 11), (-11, 0)],
    };
    Polygon::new(corners, color.filled())
}

/// Position of each entry: distance from the left, and row.
fn places(entries: &[LegendEntry<'_>]) -> Vec<(i32, i32)> {
    let (mut left, mut row) = (0, 0);
    let mut places = Vec::new();
    for entry in entries {
        let width = 70 + LETTER * shortened(entry.label, MOST_LETTERS).chars().count() as i32;
        if left > 0 && left + width > WIDTH as i32 - 20 {
            (left, row) = (0, row + 1);
        }
        places.push((left, row));
        left += width;
    }
    places
}

/// Height of the sheet above the plot.
pub(super) fn head_height(entries: &[LegendEntry<'_>]) -> i32 {
    let rows = places(entries).last().map_or(0, |(_, row)| row + 1);
    TITLE_HEIGHT + rows * LEGEND_HEIGHT + if rows > 0 { 8 } else { 0 }
}

/// Paper, title and legend; what is left is the picture's.
pub(super) fn draw_head<'a>(
    root: &Sheet<'a>,
    title: &str,
    entries: &[LegendEntry<'_>],
) -> Result<Sheet<'a>, DrawingAreaErrorKind<std::io::Error>> {
    root.fill(&PAPER)?;
    root.draw(&Text::new(
        shortened(title, 62),
        (16, 10),
        text_style(TITLE_SIZE, INK, HPos::Left, VPos::Top),
    ))?;
    for (entry, (left, row)) in entries.iter().zip(places(entries)) {
        let (left, middle) = (
            left + 16,
            TITLE_HEIGHT + row * LEGEND_HEIGHT + LEGEND_HEIGHT / 2,
        );
        if let Sign::Area = entry.sign {
            root.draw(&Rectangle::new(
                [(left, middle - 10), (left + 30, middle + 10)],
                entry.color.filled(),
            ))?;
        } else {
            root.draw(&PathElement::new(
                [(left, middle), (left + 32, middle)],
                entry.color.stroke_width(4),
            ))?;
        }
        if let Sign::Mark(place) = entry.sign {
            root.draw(&(EmptyElement::at((left + 16, middle)) + mark_of(place, entry.color)))?;
        }
        let style = text_style(TEXT_SIZE, INK, HPos::Left, VPos::Center);
        root.draw(&Text::new(
            shortened(entry.label, MOST_LETTERS),
            (left + 42, middle + 2),
            style,
        ))?;
    }
    Ok(root.clone().margin(head_height(entries), 0, 0, 0))
}
