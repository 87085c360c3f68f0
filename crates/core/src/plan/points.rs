//! The sweep as a list of points: grid (last axis fastest) × zip rows, each with the values of
//! `derive`, less `exclude`, plus `include`.
//!
//! A file without axes is one point. If the sweep has only `include` entries, these are the only
//! points.

mod derived;
mod exclude;

use std::collections::HashSet;

use serde_json::{Map, Value};

use self::{derived::DerivedAxes, exclude::Exclusion};
use super::{
    problem::{PlanProblem, PointProblems},
    settings::Chosen,
};
use crate::{
    limits::{AXES, LimitExceeded, POINTS, TRIALS},
    spec::Sweep,
};

/// One choice per axis, in the order of the axes; `None` keeps the file's base value.
pub(super) type Choices = Vec<Option<Value>>;

/// The axes, and the chosen values of each point.
#[derive(Debug, PartialEq)]
pub(super) struct Points {
    /// Dotted keys: of the grid, of the zip, derived ones, then those that occur only in `include`.
    pub(super) axes: Vec<String>,
    pub(super) points: Vec<Choices>,
    /// Entries of `exclude` that match no point, by their index.
    pub(super) unmatched: Vec<usize>,
}

/// `value_at` returns the value of a dotted key at a point whose choices do not name it; `exclude`
/// may name such keys.
pub(super) fn expand_sweep(
    sweep: &Sweep,
    value_at: impl Fn(&str, &Chosen<'_>) -> Value,
) -> Result<Points, Vec<PlanProblem>> {
    let mut lists = SweepLists::read(sweep)?;
    let listed: Vec<AxisValues<'_>> = lists.grid.iter().chain(&lists.zip).copied().collect();
    let mut places = if listed.is_empty() && !sweep.include.is_empty() {
        Vec::new()
    } else {
        product(&lists.grid, lists.zip.len(), lists.rows)
    };
    let derived = &mut lists.derived;
    derived.extend(&mut places, &listed, &value_at);
    let axes: Vec<AxisValues<'_>> = listed.iter().copied().chain(derived.axes()).collect();
    let unmatched = lists.exclusion.drop_from(&mut places, &axes, &value_at);
    let mut problems = PointProblems::default();
    derived.missing(&places, &listed, &value_at, &mut problems);
    let include = derived.with_values(&sweep.include, &value_at, &mut problems);
    let points = problems.none_or(Points {
        unmatched,
        ..with_included(&include, &axes, &places)
    })?;
    if points.points.is_empty() {
        return Err(vec![PlanProblem::of_sweep(
            "sweep.exclude",
            "it drops every point, so no trial is left; loosen it or add `include`",
        )]);
    }
    Ok(points)
}

/// The checked lists of a sweep.
struct SweepLists<'a> {
    grid: Vec<AxisValues<'a>>,
    zip: Vec<AxisValues<'a>>,
    /// Rows of the zip.
    rows: u64,
    derived: DerivedAxes<'a>,
    exclusion: Exclusion,
}

impl<'a> SweepLists<'a> {
    fn read(sweep: &'a Sweep) -> Result<Self, Vec<PlanProblem>> {
        let mut problems = PointProblems::default();
        let grid = read_axes("grid", &sweep.grid, &mut problems);
        let zip = read_axes("zip", &sweep.zip, &mut problems);
        let rows = zip_rows(&zip, &mut problems);
        for (key, _) in zip.iter().filter(|(key, _)| sweep.grid.contains_key(*key)) {
            problems.add(PlanProblem::of_sweep(
                format!("sweep.zip.{key}"),
                "it is also an axis of `sweep.grid`; keep one of them",
            ));
        }
        let derived = DerivedAxes::read(&sweep.derive, &mut problems);
        let exclusion = Exclusion::read(&sweep.exclude, &mut problems);
        if let Err(exceeded) = check_count(sweep, &grid, rows) {
            problems.add(PlanProblem::of_sweep("sweep", too_many(&exceeded)));
        }
        problems.none_or(Self {
            grid,
            zip,
            rows,
            derived,
            exclusion,
        })
    }
}

/// Points or trials beyond which no higher limit is advised: a million take gigabytes of memory.
const MOST_ADVISED: u64 = 1_000_000;

/// The message on a sweep with too many points or trials, with a remedy.
fn too_many(exceeded: &LimitExceeded) -> String {
    match exceeded.found() {
        Some(found) if found > MOST_ADVISED => format!(
            "{}; draw random points with `sweep.sample`, vary axes together in `sweep.zip`, or \
             list fewer values",
            exceeded.excess()
        ),
        _ => exceeded.to_string(),
    }
}

/// Counts the axes and the points before any is made.
fn check_count(sweep: &Sweep, grid: &[AxisValues<'_>], rows: u64) -> Result<(), LimitExceeded> {
    let count = grid
        .iter()
        .map(|(_, values)| values.len() as u64)
        .fold(rows, u64::saturating_mul)
        .saturating_add(sweep.include.len() as u64);
    let keys: HashSet<&String> = sweep
        .grid
        .keys()
        .chain(sweep.zip.keys())
        .chain(sweep.derive.keys())
        .chain(sweep.include.iter().flat_map(Map::keys))
        .collect();
    AXES.check(keys.len() as u64)?;
    POINTS.check(count)?;
    TRIALS.check(count.saturating_mul(sweep.repeats))
}

/// The choices of the points at these places, and the points of `include`.
fn with_included(
    include: &[Map<String, Value>],
    varied: &[AxisValues<'_>],
    places: &[Place],
) -> Points {
    let mut axes: Vec<String> = varied.iter().map(|(key, _)| (*key).clone()).collect();
    let mut known: HashSet<&str> = varied.iter().map(|(key, _)| key.as_str()).collect();
    for key in include.iter().flat_map(Map::keys) {
        if known.insert(key) {
            axes.push(key.clone());
        }
    }
    let of_place = |place: &Place| {
        let chosen = varied
            .iter()
            .zip(place)
            .map(|((_, values), index)| values.get(*index as usize).cloned());
        let mut choices: Choices = chosen.collect();
        choices.resize(axes.len(), None);
        choices
    };
    let of_entry = |entry: &Map<String, Value>| -> Choices {
        axes.iter().map(|key| entry.get(key).cloned()).collect()
    };
    let points = places
        .iter()
        .map(of_place)
        .chain(include.iter().map(of_entry))
        .collect();
    Points {
        axes,
        points,
        unmatched: Vec::new(),
    }
}

/// The index of a point's value on each axis of the grid, then of the zip.
type Place = Vec<u32>;

type AxisValues<'a> = (&'a String, &'a [Value]);

fn read_axes<'a>(
    section: &str,
    map: &'a Map<String, Value>,
    problems: &mut PointProblems,
) -> Vec<AxisValues<'a>> {
    let mut axes = Vec::new();
    for (key, values) in map {
        match values {
            Value::Array(values) if !values.is_empty() => axes.push((key, values.as_slice())),
            Value::Array(_) => problems.add(PlanProblem::of_sweep(
                format!("sweep.{section}.{key}"),
                "it has no values; give at least one, or leave the axis out",
            )),
            other => problems.add(PlanProblem::of_sweep(
                format!("sweep.{section}.{key}"),
                format!("it is {other}; an axis is a list of values, such as [{other}]"),
            )),
        }
    }
    axes
}

/// Number of rows; 1 without a zip.
fn zip_rows(zip: &[AxisValues<'_>], problems: &mut PointProblems) -> u64 {
    let Some((first, values)) = zip.first() else {
        return 1;
    };
    for (key, other) in &zip[1..] {
        if other.len() != values.len() {
            problems.add(PlanProblem::of_sweep(
                format!("sweep.zip.{key}"),
                format!(
                    "it has {} values and `{first}` has {}; keys walked together need as many",
                    other.len(),
                    values.len()
                ),
            ));
        }
    }
    values.len() as u64
}

/// The places of the grid, the last axis fastest, each with every row of the zip.
fn product(grid: &[AxisValues<'_>], zip_axes: usize, rows: u64) -> Vec<Place> {
    let mut places: Vec<Place> = vec![Vec::new()];
    for (_, values) in grid {
        let with = |place: &Place, index: usize| [place.as_slice(), &[index as u32]].concat();
        places = places
            .iter()
            .flat_map(|place| (0..values.len()).map(move |index| with(place, index)))
            .collect();
    }
    let with_row = |place: &Place, row: u64| {
        let row = std::iter::repeat_n(row as u32, zip_axes);
        place.iter().copied().chain(row).collect()
    };
    places
        .iter()
        .flat_map(|place| (0..rows).map(move |row| with_row(place, row)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expand(sweep: &str) -> Result<Points, Vec<PlanProblem>> {
        let sweep: Sweep = serde_json::from_value(serde_yaml::from_str(sweep).unwrap()).unwrap();
        expand_sweep(&sweep, |key, _| {
            if key == "train.batch_size" {
                json!(8)
            } else {
                Value::Null
            }
        })
    }

    fn rows(sweep: &str) -> Vec<String> {
        let points = expand(sweep).unwrap().points;
        points
            .iter()
            .map(|point| {
                point
                    .iter()
                    .map(|v| v.as_ref().map_or("_".to_owned(), Value::to_string))
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect()
    }

    #[test]
    fn the_last_axis_of_the_grid_is_fastest_and_zip_rows_are_inside() {
        assert_eq!(
            rows("grid: {a.z: [1, 2], a.b: [3, 4]}"),
            ["1 3", "1 4", "2 3", "2 4"]
        );
        assert_eq!(
            rows("{grid: {a: [1, 2]}, zip: {b: [3, 4], c: [5, 6]}}"),
            ["1 3 5", "1 4 6", "2 3 5", "2 4 6"]
        );
    }

    #[test]
    fn no_axis_is_one_point_and_includes_alone_are_all_points() {
        assert_eq!(rows("{}"), [""]);
        assert_eq!(rows("include: [{a: 1}, {b: 2}]"), ["1 _", "_ 2"]);
    }

    #[test]
    fn exclude_drops_what_matches_all_its_keys_and_include_adds_one_point_each() {
        let sweep = "{grid: {a: [1, 2, 3], b: [1, 2]}, exclude: [{a: '>1', b: 2}], include: [{a: \
                     3, b: 2}, {c: 9}]}";
        assert_eq!(
            rows(sweep),
            ["1 1 _", "1 2 _", "2 1 _", "3 1 _", "3 2 _", "_ _ 9"]
        );
        assert_eq!(
            rows(
                "{grid: {a: [1, 2]}, exclude: [{a: 1, train.batch_size: 8}, {a: 2, \
                 train.batch_size: 9}]}"
            ),
            ["2"]
        );
    }

    #[test]
    fn every_fault_of_the_sweep_is_told_at_once() {
        let keys = |sweep: &str| {
            expand(sweep)
                .unwrap_err()
                .into_iter()
                .map(|problem| problem.fault.key)
                .collect::<Vec<_>>()
        };
        let sweep = "{grid: {a: [], b: 3, c: [1]}, zip: {c: [1, 2], d: [1]}, exclude: [{c: '>x'}]}";
        assert_eq!(
            keys(sweep),
            [
                "sweep.grid.a",
                "sweep.grid.b",
                "sweep.zip.d",
                "sweep.zip.c",
                "sweep.exclude[0].c"
            ]
        );
        assert_eq!(
            keys("{grid: {a: [1]}, exclude: [{a: 1}]}"),
            ["sweep.exclude"]
        );
        let long: Vec<u32> = (0..2000).collect();
        assert_eq!(
            keys(&format!(
                "grid: {{a: {long:?}, b: {long:?}, c: {long:?}, d: {long:?}, e: {long:?}, f: \
                 {long:?}}}"
            )),
            ["sweep"]
        );
    }
}
