//! The sweep as a list of points: grid (last axis fastest) × zip rows, less `exclude`, plus
//! `include`.
//!
//! A file without axes is one point. If the sweep has only `include` entries, these are the only
//! points.

use serde_json::{Map, Value};

use super::{
    condition::Condition,
    problem::{PlanProblem, PointProblems},
};
use crate::spec::Sweep;

/// More points than this are an error in the file, and would soon exhaust memory.
const MOST_POINTS: u64 = 1_000_000;

/// One choice per axis, in the order of the axes; `None` keeps the file's base value.
pub(super) type Choices = Vec<Option<Value>>;

/// The axes, and the chosen values of each point.
#[derive(Debug, PartialEq)]
pub(super) struct Points {
    /// Dotted keys: of the grid, of the zip, then those that occur only in `include`.
    pub(super) axes: Vec<String>,
    pub(super) points: Vec<Choices>,
}

/// `base` returns the file's own value of a dotted key; `exclude` may name keys that do not vary.
pub(super) fn expand_sweep(
    sweep: &Sweep,
    base: impl Fn(&str) -> Value,
) -> Result<Points, Vec<PlanProblem>> {
    let read = SweepLists::read(sweep)?;
    let mut axes: Vec<String> = read
        .grid
        .iter()
        .chain(&read.zip)
        .map(|(key, _)| (*key).clone())
        .collect();
    let mut points = if axes.is_empty() && !sweep.include.is_empty() {
        Vec::new()
    } else {
        product(&read.grid, &read.zip, read.rows)
    };
    points.retain(|point| {
        !read
            .conditions
            .iter()
            .any(|entry| excluded(entry, &axes, point, &base))
    });
    include(&sweep.include, &mut axes, &mut points);
    if points.is_empty() {
        return Err(vec![PlanProblem::of_sweep(
            "sweep.exclude",
            "it drops every point, so no trial is left; loosen it or add `include`",
        )]);
    }
    Ok(Points { axes, points })
}

/// Adds one point per entry, and the axes that only these have.
fn include(entries: &[Map<String, Value>], axes: &mut Vec<String>, points: &mut Vec<Choices>) {
    for key in entries.iter().flat_map(Map::keys) {
        if !axes.contains(key) {
            axes.push(key.clone());
        }
    }
    for point in points.iter_mut() {
        point.resize(axes.len(), None);
    }
    let of_entry = |entry: &Map<String, Value>| {
        let value = |key| entry.get(key).cloned();
        axes.iter().map(value).collect()
    };
    points.extend(entries.iter().map(of_entry));
}

/// The checked lists of a sweep.
struct SweepLists<'a> {
    grid: Vec<AxisValues<'a>>,
    zip: Vec<AxisValues<'a>>,
    /// Rows of the zip.
    rows: u64,
    /// The conditions of each entry of `exclude`.
    conditions: Vec<Vec<(String, Condition)>>,
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
        let conditions = read_conditions(&sweep.exclude, &mut problems);
        if let Some(problem) = too_many(&grid, rows, sweep.repeats) {
            problems.add(problem);
        }
        problems.none_or(Self {
            grid,
            zip,
            rows,
            conditions,
        })
    }
}

fn too_many(grid: &[AxisValues<'_>], rows: u64, repeats: u64) -> Option<PlanProblem> {
    let points = grid
        .iter()
        .map(|(_, values)| values.len() as u64)
        .try_fold(rows, u64::checked_mul);
    let trials = points.and_then(|points| points.checked_mul(repeats));
    if trials.is_some_and(|trials| trials <= MOST_POINTS) {
        return None;
    }
    let points = points.map_or_else(|| "far too many".to_owned(), |points| points.to_string());
    let message = format!(
        "it makes {points} points with {repeats} repeats each; at most {MOST_POINTS} trials are \
         allowed in one experiment"
    );
    Some(PlanProblem::of_sweep("sweep", message))
}

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

fn product(grid: &[AxisValues<'_>], zip: &[AxisValues<'_>], rows: u64) -> Vec<Choices> {
    let mut points: Vec<Choices> = vec![Vec::new()];
    for (_, values) in grid {
        points = points
            .iter()
            .flat_map(|point| values.iter().map(|value| chain(point, [value])))
            .collect();
    }
    let rows: Vec<Vec<&Value>> = (0..rows as usize)
        .map(|row| {
            zip.iter()
                .filter_map(|(_, values)| values.get(row))
                .collect()
        })
        .collect();
    points
        .iter()
        .flat_map(|point| rows.iter().map(|row| chain(point, row.iter().copied())))
        .collect()
}

fn chain<'a>(point: &Choices, values: impl IntoIterator<Item = &'a Value>) -> Choices {
    point
        .iter()
        .cloned()
        .chain(values.into_iter().cloned().map(Some))
        .collect()
}

fn read_conditions(
    exclude: &[Map<String, Value>],
    problems: &mut PointProblems,
) -> Vec<Vec<(String, Condition)>> {
    let mut entries = Vec::new();
    for (index, entry) in exclude.iter().enumerate() {
        let mut conditions = Vec::new();
        for (key, asked) in entry {
            match Condition::read(asked) {
                Ok(condition) => conditions.push((key.clone(), condition)),
                Err(message) => problems.add(PlanProblem::of_sweep(
                    format!("sweep.exclude[{index}].{key}"),
                    message,
                )),
            }
        }
        entries.push(conditions);
    }
    entries
}

fn excluded(
    entry: &[(String, Condition)],
    axes: &[String],
    point: &Choices,
    base: &impl Fn(&str) -> Value,
) -> bool {
    entry.iter().all(|(key, condition)| {
        let chosen = axes
            .iter()
            .position(|axis| axis == key)
            .and_then(|axis| point[axis].as_ref());
        chosen.map_or_else(
            || condition.matches(&base(key)),
            |value| condition.matches(value),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expand(sweep: &str) -> Result<Points, Vec<PlanProblem>> {
        let sweep: Sweep = serde_json::from_value(serde_yaml::from_str(sweep).unwrap()).unwrap();
        expand_sweep(&sweep, |key| {
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
