//! A number over each axis, one line for each choice on the others.

use std::collections::HashMap;

use kiln_core::{kinds::command::Better, plan::Outcome, units::counted};

use super::{
    MOST_LINES, MOST_MARKS, PointMeasure, RunView,
    measure::{PointDoubt, TARGET},
    spots::{Spot, Spots},
};
use crate::report::{
    chart::{AxisUnit, Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture},
    energy::{is_in_doubt, is_mixed},
    findings::capitalized,
    ranking::unequal_samples,
};

pub(super) fn charts(spots: &Spots<'_>, runs: &[RunView<'_>]) -> Vec<Chart> {
    let rows = || spots.spots.iter().flat_map(|spot| spot.point.completed());
    let has_target = rows().any(|row| row.seconds_to_target.is_some());
    let mut measures: Vec<PointMeasure> = has_target.then_some(TARGET).into_iter().collect();
    measures.extend(PointMeasure::all(&spots.axes, rows()));
    measures.extend(own_metrics(runs));
    let over = |axis| {
        let charts = measures
            .iter()
            .map(move |measure| chart(spots, axis, measure));
        charts.flatten()
    };
    spots.leading().into_iter().flat_map(over).collect()
}

/// The commands' own metrics, in the order of the columns; a name that several runs have stands once.
fn own_metrics(runs: &[RunView<'_>]) -> Vec<PointMeasure> {
    let mut found: Vec<PointMeasure> = Vec::new();
    for run in runs {
        let command = run.command();
        for column in &run.table.metrics {
            if !found.iter().any(|known| known.key == column) {
                found.push(PointMeasure::own(column, command.as_ref()));
            }
        }
    }
    found
}

/// `None` where fewer than two values of the axis have the number.
pub(super) fn chart(spots: &Spots<'_>, axis: usize, measure: &PointMeasure) -> Option<Chart> {
    let values = spots.values(axis);
    let mut found = named_marks(spots, axis, measure);
    if number_of_values(&found) < 2 {
        return None;
    }
    let is_scattered = is_scattered(&found);
    if is_scattered {
        found = vec![(
            String::new(),
            found.into_iter().flat_map(|(_, marks)| marks).collect(),
        )];
    }
    let all = found.len();
    keep_best(&mut found, measure);
    let is_thinned = found.iter().any(|(_, marks)| marks.len() > MOST_MARKS);
    let unit = AxisUnit::of(
        measure.quantity,
        found
            .iter()
            .flat_map(|(_, marks)| marks.iter().map(|mark| mark.y)),
    );
    let is_scale = ChartAxis::is_scale(&values) && !is_scattered;
    let lines: Vec<ChartLine> = found
        .into_iter()
        .enumerate()
        .map(|(place, (name, marks))| line(name, place, marks, unit, is_scale))
        .collect();
    let ends: Vec<f64> = lines.iter().flat_map(ChartLine::reach).collect();
    let name = &spots.axes[axis];
    Some(Chart {
        name: format!("{}-against-{name}", measure.key),
        title: format!("{} against {}", unit.after(measure.what), spots.short(axis)),
        caption: caption(
            spots,
            axis,
            measure,
            &Shown {
                lines: &lines,
                all,
                is_thinned,
                is_scattered,
            },
        ),
        picture: Picture::Lines(Lines {
            x: ChartAxis::of_values(name.clone(), &values),
            y: match measure.is_from_zero {
                true => ChartAxis::from_zero(unit.after(measure.what), ends),
                false => ChartAxis::of_numbers(unit.after(measure.what), ends),
            },
            lines,
            bands: Vec::new(),
            is_low: false,
        }),
    })
}

/// Number of values of the axis that have a mark.
fn number_of_values(lines: &[(String, Vec<ChartMark>)]) -> usize {
    let marks = lines.iter().flat_map(|(_, marks)| marks);
    let marks = marks.filter(|mark| !mark.is_gap());
    let mut values: Vec<f64> = marks.map(|mark| mark.x).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values.len()
}

/// Whether the points are drawn without lines: keys that vary together leave a line of its own to
/// each point.
fn is_scattered(lines: &[(String, Vec<ChartMark>)]) -> bool {
    let marked = |marks: &[ChartMark]| marks.iter().filter(|mark| !mark.is_gap()).count();
    let lone = lines.iter().filter(|(_, marks)| marked(marks) < 2).count();
    lines.len() > MOST_LINES && lone * 2 > lines.len()
}

/// The marks of each line, with the line's name; lines without a mark are left out.
fn named_marks(
    spots: &Spots<'_>,
    axis: usize,
    measure: &PointMeasure,
) -> Vec<(String, Vec<ChartMark>)> {
    let values = spots.values(axis);
    let places = ChartAxis::places(&values);
    let place_of: HashMap<&str, f64> = values.into_iter().zip(places).collect();
    // A point that ran without the number is a gap: no line leads over it.
    let at = |spot: &Spot<'_>| {
        let x = place_of[spot.values[axis].as_str()];
        spot.mean(measure)
            .map_or(ChartMark::gap(x), |mean| ChartMark {
                interval: mean.interval,
                ..ChartMark::at(x, mean.mean)
            })
    };
    let lines = spots.lines(axis).into_iter();
    lines
        .map(|(name, spots)| (name, spots.into_iter().map(at).collect::<Vec<_>>()))
        .filter(|(_, marks)| !marks.iter().all(ChartMark::is_gap))
        .collect()
}

/// The lines that reach the best value, in the order they were met; the first ones where nothing says
/// which value is better.
fn keep_best(found: &mut Vec<(String, Vec<ChartMark>)>, measure: &PointMeasure) {
    if found.len() <= MOST_LINES {
        return;
    }
    let Some(better) = measure.better else {
        found.truncate(MOST_LINES);
        return;
    };
    let best = |marks: &[ChartMark]| {
        let values = marks.iter().map(|mark| match better {
            Better::High => -mark.y,
            Better::Low => mark.y,
        });
        values.fold(f64::INFINITY, f64::min)
    };
    let mut ranked: Vec<f64> = found.iter().map(|(_, marks)| best(marks)).collect();
    ranked.sort_by(f64::total_cmp);
    let last = ranked[MOST_LINES - 1];
    found.retain(|(_, marks)| best(marks) <= last);
    found.truncate(MOST_LINES);
}

fn line(
    name: String,
    place: usize,
    mut marks: Vec<ChartMark>,
    unit: AxisUnit,
    is_scale: bool,
) -> ChartLine {
    marks.sort_by(|one, other| one.x.total_cmp(&other.x));
    let scaled = |mark: &ChartMark| ChartMark {
        x: mark.x,
        y: mark.y / unit.size,
        interval: mark
            .interval
            .map(|(low, high)| (low / unit.size, high / unit.size)),
    };
    let marks: Vec<ChartMark> = marks.iter().map(scaled).collect();
    if marks.len() <= MOST_MARKS {
        let shape = if is_scale {
            MarkShape::Marked
        } else {
            MarkShape::Dots
        };
        return ChartLine {
            label: name,
            detail: String::new(),
            color: place,
            shape,
            marks,
        };
    }
    let placed = marks.iter().filter(|mark| !mark.is_gap());
    let series: Vec<(f64, f64)> = placed.map(|mark| (mark.x, mark.y)).collect();
    let marks = super::long_series::enveloped(&series, MOST_MARKS)
        .into_iter()
        .map(|(x, y)| ChartMark::at(x, y))
        .collect();
    ChartLine {
        label: name,
        detail: String::new(),
        color: place,
        shape: MarkShape::Plain,
        marks,
    }
}

/// The lines of a picture, and counts of the data that it does not show.
struct Shown<'a> {
    lines: &'a [ChartLine],
    /// Lines that there are.
    all: usize,
    is_thinned: bool,
    is_scattered: bool,
}

fn caption(spots: &Spots<'_>, axis: usize, measure: &PointMeasure, shown: &Shown<'_>) -> String {
    let Shown {
        lines,
        all,
        is_thinned,
        is_scattered,
    } = *shown;
    let mut said = Vec::new();
    if spots
        .spots
        .iter()
        .any(|spot| measure.of(spot.point).len() > 1)
    {
        said.push(
            "Means over the runs of a point; the bar is the 95 % interval of the mean (Student's \
             t), of two runs their range."
                .to_owned(),
        );
    } else {
        said.push("One run per point: the spread is unknown.".to_owned());
    }
    if is_scattered {
        said.push("Each point by itself: other keys vary with this one.".to_owned());
    }
    if lines.len() < all {
        let which = match measure.better {
            Some(_) => "those that reach the best value",
            None => "the first (`better` of the metric chooses)",
        };
        said.push(format!("{} of {all} lines: {which}.", lines.len()));
    }
    if is_thinned {
        said.push(
            "More points than a page shows: of each stretch the least and the largest.".to_owned(),
        );
    }
    said.extend(missing(spots, measure));
    said.extend(spots.with(axis));
    said.extend(doubted(spots, measure));
    if spots.stand_ins > 0 {
        said.push(format!(
            "Not shown: {} that stand in for trials out of memory.",
            counted(spots.stand_ins, "point")
        ));
    }
    said.join(" ")
}

/// A sentence on the doubt of this measure, if it applies to the points.
fn doubted(spots: &Spots<'_>, measure: &PointMeasure) -> Option<String> {
    match measure.doubt? {
        PointDoubt::EnergiesApart => {
            let rows = spots.spots.iter().flat_map(|spot| spot.point.completed());
            let count = rows.filter(|row| is_in_doubt(row)).count();
            let trials = counted(count, "trial");
            let apart = (count > 0).then(|| {
                format!("Left out: {trials} whose energies are apart (see the diagnosis).")
            });
            let mixed = spots.spots.iter().filter(|spot| is_mixed(spot.point));
            let mixed = match mixed.count() {
                0 => None,
                count => Some(format!(
                    "Left out: {} with energies of trials from different sources (the driver's \
                     counter, the power readings).",
                    counted(count, "point")
                )),
            };
            let said: Vec<String> = apart.into_iter().chain(mixed).collect();
            (!said.is_empty()).then(|| said.join(" "))
        }
        PointDoubt::UnequalSamples => {
            let points = spots.spots.iter().map(|spot| spot.point);
            unequal_samples(points).map(|words| format!("{}.", capitalized(&words)))
        }
    }
}

/// The number of points without this number, and how their trials ended.
fn missing(spots: &Spots<'_>, measure: &PointMeasure) -> Option<String> {
    let all = spots.spots.iter();
    let missing: Vec<&Spot<'_>> = all.filter(|spot| spot.mean(measure).is_none()).collect();
    if missing.is_empty() {
        return None;
    }
    let of = |outcome: Outcome| {
        missing
            .iter()
            .filter(|spot| spot.point.rows.iter().any(|row| row.outcome == outcome))
            .count()
    };
    let ended = Outcome::ALL
        .into_iter()
        .filter(|outcome| *outcome != Outcome::Completed && of(*outcome) > 0);
    let ended: Vec<String> = ended
        .map(|outcome| format!("{} {outcome}", of(outcome)))
        .collect();
    let why = if ended.is_empty() {
        String::new()
    } else {
        format!(" ({})", ended.join(", "))
    };
    let points = counted(missing.len(), "point");
    Some(format!("{points} without this number{why}."))
}
