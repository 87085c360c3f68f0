//! Matches the rows of two tables that are compared with each other.

use std::collections::{BTreeMap, HashMap, HashSet};

use kiln_core::{
    plan::TrialId,
    record::{TableRow, TrialRow, TrialTable},
};

use super::super::{
    axis_name::{ambiguous, axis_named},
    points::{BatchPieces, Point, SETTINGS, number, pieces, points, setting, shown},
};

/// Rows of both tables that are repeats of the same thing.
#[derive(Clone, Debug)]
pub(super) struct MatchedPair<'a> {
    pub(super) name: String,
    /// Its values of the axes of base, or of the keys by which it was matched.
    pub(super) values: Vec<(String, String)>,
    pub(super) base: Vec<&'a TrialRow>,
    pub(super) new: Vec<&'a TrialRow>,
    pub(super) keys: RunKeys,
}

/// The key by which two runs of a pair belong together, besides seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RunKeys {
    /// Their order in time.
    #[default]
    Order,
    /// Their blocks.
    Blocks,
    /// Nothing: they are from several devices.
    Nothing,
}

/// Points that are in both tables, and the names of points that are in only one.
#[derive(Clone, Debug, Default)]
pub(super) struct Matched<'a> {
    pub(super) pairs: Vec<MatchedPair<'a>>,
    pub(super) only_base: Vec<String>,
    pub(super) only_new: Vec<String>,
}

/// The name of a point, and its values by axis or key.
type NamedValues = (String, Vec<(String, String)>);

impl<'a> MatchedPair<'a> {
    fn new((name, values): NamedValues, base: Vec<&'a TrialRow>, new: Vec<&'a TrialRow>) -> Self {
        Self {
            name,
            values,
            base,
            new,
            keys: RunKeys::Order,
        }
    }
}

impl<'a> Matched<'a> {
    /// Adds a point of base, with the point of new that belongs to it, if there is one.
    fn add(&mut self, named: NamedValues, base: Point<'a>, new: Option<Point<'a>>) {
        match new {
            Some(new) => self
                .pairs
                .push(MatchedPair::new(named, base.rows, new.rows)),
            None => self.only_base.push(named.0),
        }
    }
}

/// Points that share a trial id: the same settings, whatever tables they are in.
pub(super) fn by_id<'a>(base: &'a TrialTable, new: &'a TrialTable) -> Matched<'a> {
    let (old_points, mut new_points) = (
        points(base),
        points(new).into_iter().map(Some).collect::<Vec<_>>(),
    );
    let mut place_of: HashMap<&TrialId, usize> = HashMap::new();
    for (place, point) in new_points.iter().enumerate() {
        place_of.extend(
            point
                .iter()
                .flat_map(|point| point.rows.iter().map(move |row| (&row.trial, place))),
        );
    }
    let mut matched = Matched::default();
    for point in old_points {
        let named = (
            point.name(&base.axes),
            with_keys(&base.axes, point.values.iter().cloned()),
        );
        let same = point
            .rows
            .iter()
            .find_map(|row| new_points[*place_of.get(&row.trial)?].take());
        matched.add(named, point, same);
    }
    matched.only_new = new_points
        .into_iter()
        .flatten()
        .map(|point: Point<'_>| point.name(&new.axes))
        .collect();
    matched
}

/// Points that have the same value on each of these axes. A table without one of them has the value
/// of its settings there.
pub(super) fn by_settings<'a>(
    [base, new]: [&'a TrialTable; 2],
    axes: &[String],
    [of_base, of_new]: &[BTreeMap<String, String>; 2],
) -> Matched<'a> {
    let mut others: Vec<Option<Point<'a>>> = points(new).into_iter().map(Some).collect();
    let place_of: HashMap<PointKey, usize> = others
        .iter()
        .flatten()
        .enumerate()
        .map(|(place, point)| (point_key(point, axes, new, of_new), place))
        .collect();
    let mut matched = Matched::default();
    for point in points(base) {
        let key = point_key(&point, axes, base, of_base);
        let name = Point {
            values: &key.0,
            rows: point.rows.clone(),
        }
        .name(axes);
        let same = place_of.get(&key).and_then(|place| others[*place].take());
        matched.add((name, with_keys(axes, key.0)), point, same);
    }
    let left = others.into_iter().flatten();
    matched.only_new = left.map(|point| point.name(&new.axes)).collect();
    matched
}

/// Values beside their axes or keys.
fn with_keys(keys: &[String], values: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    keys.iter().cloned().zip(values).collect()
}

/// Values of the axes, and whether the point ran in smaller micro-batches.
type PointKey = (Vec<String>, Option<BatchPieces>);

fn point_key(
    point: &Point<'_>,
    axes: &[String],
    table: &TrialTable,
    settings: &BTreeMap<String, String>,
) -> PointKey {
    let value = |axis: &String| {
        let place = table.axes.iter().position(|own| own == axis);
        let cell = match place {
            Some(place) => point.values.get(place),
            None => settings.get(axis),
        };
        let cell = cell.cloned().unwrap_or_default();
        // One number has one notation, whether it was an integer or not.
        number(&cell).map_or(cell, |number| number.to_string())
    };
    let in_pieces = point.rows.first().and_then(|row| pieces(row));
    (axes.iter().map(value).collect(), in_pieces)
}

/// Rows that have the same value for each key.
///
/// # Errors
/// A key that is neither an axis nor a column, or rows of several points under one value.
pub(super) fn by_keys<'a>(
    base: &'a TrialTable,
    new: &'a TrialTable,
    keys: &[String],
) -> Result<Matched<'a>, String> {
    let mut groups = grouped(base, keys, "BASE")?;
    let mut others = grouped(new, keys, "NEW")?;
    let mut matched = Matched::default();
    for (values, base) in std::mem::take(&mut groups) {
        let name = spelled(keys, &values);
        match others.remove(&values) {
            Some(new) => {
                let values = with_keys(keys, values.into_iter().map(|value| value.0));
                let pair = MatchedPair::new((name, values), base, new);
                matched.pairs.push(pair);
            }
            None => matched.only_base.push(name),
        }
    }
    matched.only_new = others
        .into_keys()
        .map(|values| spelled(keys, &values))
        .collect();
    Ok(matched)
}

/// The key that a name of `--by` means: that of a column, else the axis of a table that ends so.
pub(super) fn whole_key(tables: [&TrialTable; 2], name: &str) -> String {
    if SETTINGS.contains(&name) {
        return name.to_owned();
    }
    let mut found = tables
        .iter()
        .filter_map(|table| axis_named(&table.axes, name));
    found.next().unwrap_or(name).to_owned()
}

/// The keys that match some rows of both tables when they are given alone: the axes of both, then
/// the columns of settings.
pub fn keys_in_common(base: &TrialTable, new: &TrialTable) -> Vec<String> {
    let axes = base.axes.iter().filter(|axis| new.axes.contains(axis));
    let columns = SETTINGS.iter().map(|column| (*column).to_owned());
    let keys = axes.cloned().chain(columns);
    let matches = |key: &String| {
        let matched = by_keys(base, new, std::slice::from_ref(key));
        matched.is_ok_and(|matched| !matched.pairs.is_empty())
    };
    keys.filter(matches).collect()
}

/// Rows by their values; those of one group must be of one point.
type Groups<'a> = BTreeMap<Vec<Sorted>, Vec<&'a TrialRow>>;

/// Identity of a point: the values of its axes, and whether it ran in smaller micro-batches.
type PointSetting<'a> = (&'a [String], Option<BatchPieces>);

fn grouped<'a>(table: &'a TrialTable, keys: &[String], whose: &str) -> Result<Groups<'a>, String> {
    let mut groups = Groups::new();
    let mut settings: HashMap<Vec<Sorted>, HashSet<PointSetting<'_>>> = HashMap::new();
    for row in table.last_attempts() {
        let cells: Vec<Sorted> = keys
            .iter()
            .map(|key| cell(table, row, key).map(Sorted))
            .collect::<Result<_, _>>()?;
        settings
            .entry(cells.clone())
            .or_default()
            .insert((&row.axes, pieces(&row.fixed)));
        groups.entry(cells).or_default().push(&row.fixed);
    }
    match settings.iter().find(|(_, points)| points.len() > 1) {
        None => Ok(groups),
        Some((values, points)) => {
            let first: Vec<&[String]> = points.iter().take(2).map(|(values, _)| *values).collect();
            let differ = table
                .axes
                .iter()
                .enumerate()
                .find(|(place, _)| first[0].get(*place) != first[1].get(*place));
            // Else one stands in for another that ran out of memory, in smaller pieces.
            let axis = differ.map_or("grad_accumulation", |(_, axis)| axis);
            let axis = format!(", such as `{axis}`");
            Err(format!(
                "{whose}: rows of {} points have {}; name further axes in `--by`{axis}",
                points.len(),
                spelled(keys, values)
            ))
        }
    }
}

/// A value that sorts as a number where it is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sorted(String);

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match (self.0.parse::<f64>(), other.0.parse::<f64>()) {
            (Ok(one), Ok(two)) => one.total_cmp(&two).then_with(|| self.0.cmp(&other.0)),
            (one, two) => one
                .is_err()
                .cmp(&two.is_err())
                .then_with(|| self.0.cmp(&other.0)),
        }
    }
}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A row's value of a key of `--by`.
fn cell(table: &TrialTable, row: &TableRow, key: &str) -> Result<String, String> {
    setting(table, row, key).ok_or_else(|| {
        if let Some(refusal) = ambiguous("--by", &table.axes, key) {
            return refusal;
        }
        let axes: Vec<String> = table.axes.iter().map(|axis| format!("`{axis}`")).collect();
        format!(
            "`--by {key}` is not an axis of both tables ({} here), nor one of the columns {}",
            if axes.is_empty() {
                "none".to_owned()
            } else {
                axes.join(", ")
            },
            SETTINGS.join(", ")
        )
    })
}

fn spelled(keys: &[String], values: &[Sorted]) -> String {
    keys.iter()
        .zip(values)
        .map(|(key, value)| format!("{key} {}", shown(&value.0)))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::tests::{row, table};

    #[test]
    fn a_key_may_be_named_by_its_last_part() {
        let table = table(
            &["train.optimizer.learning_rate", "train.batch_size"],
            vec![],
        );
        for (name, key) in [
            ("learning_rate", "train.optimizer.learning_rate"),
            ("batch_size", "batch_size"),
            ("momentum", "momentum"),
        ] {
            assert_eq!(whole_key([&table, &table], name), key);
        }
    }

    fn names(matched: &Matched<'_>) -> (Vec<String>, Vec<String>, Vec<String>) {
        let pairs = matched
            .pairs
            .iter()
            .map(|pair| format!("{} {}:{}", pair.name, pair.base.len(), pair.new.len()))
            .collect();
        (pairs, matched.only_base.clone(), matched.only_new.clone())
    }

    #[test]
    fn points_that_share_an_id_are_one_whatever_else_is_there() {
        let base = table(
            &["a.b"],
            vec![
                (row(1, 1.0), &["8"]),
                (row(2, 1.0), &["8"]),
                (row(3, 1.0), &["16"]),
                (row(4, 1.0), &["4"]),
            ],
        );
        let new = table(
            &["a.b"],
            vec![
                (row(3, 1.0), &["16"]),
                (row(9, 1.0), &["32"]),
                (row(2, 1.0), &["8"]),
                (row(5, 1.0), &["8"]),
                (row(6, 1.0), &["8"]),
            ],
        );
        let (pairs, only_base, only_new) = names(&by_id(&base, &new));
        assert_eq!(pairs, ["a.b 8 2:3", "a.b 16 1:1"]);
        assert_eq!(
            (only_base, only_new),
            (vec!["a.b 4".to_owned()], vec!["a.b 32".to_owned()])
        );
    }

    #[test]
    fn named_axes_match_by_value_and_may_be_a_column_of_the_other_table() {
        let base = table(
            &["train.batch_size"],
            vec![
                (row(1, 1.0), &["8"]),
                (row(2, 1.0), &["16"]),
                (row(3, 1.0), &["128"]),
            ],
        );
        let of = |id, batch_size| TrialRow {
            batch_size,
            ..row(id, 1.0)
        };
        let new = table(&[], vec![(of(4, 128), &[]), (of(5, 16), &[])]);
        let keys = ["train.batch_size".to_owned()];
        // Without axes both rows of the other table are one point: of one setting there may be one
        // value only.
        let (pairs, only_base, only_new) = names(&by_keys(&base, &new, &keys).unwrap());
        assert_eq!(
            pairs,
            ["train.batch_size 16 1:1", "train.batch_size 128 1:1"]
        );
        assert_eq!(
            (only_base, only_new),
            (vec!["train.batch_size 8".to_owned()], vec![])
        );
    }

    #[test]
    fn a_number_has_one_notation_and_texts_are_what_they_are() {
        let base = table(
            &["a.b"],
            vec![
                (row(1, 1.0), &["12.1"]),
                (row(2, 1.0), &["12.10"]),
                (row(3, 1.0), &["8"]),
                (row(4, 1.0), &["1e-7"]),
            ],
        );
        let new = table(
            &["a.b"],
            vec![
                (row(5, 1.0), &["12.10"]),
                (row(6, 1.0), &["8.0"]),
                (row(7, 1.0), &["12.1"]),
                (row(8, 1.0), &["0.0000001"]),
            ],
        );
        let nothing = [BTreeMap::new(), BTreeMap::new()];
        let matched = by_settings([&base, &new], &["a.b".to_owned()], &nothing);
        let pairs: Vec<(&str, &str)> = matched
            .pairs
            .iter()
            .map(|pair| (pair.base[0].trial.0.as_str(), pair.new[0].trial.0.as_str()))
            .collect();
        let id = |number| row(number, 1.0).trial.0;
        let wanted = [(1, 7), (2, 5), (3, 6), (4, 8)].map(|(one, other)| (id(one), id(other)));
        assert_eq!(
            pairs,
            wanted
                .each_ref()
                .map(|(one, other)| (one.as_str(), other.as_str()))
        );
        assert!(matched.only_base.is_empty() && matched.only_new.is_empty());
    }

    #[test]
    fn a_key_that_says_too_little_or_nothing_is_refused() {
        let base = table(
            &["a.b", "c.d"],
            vec![(row(1, 1.0), &["8", "1"]), (row(2, 1.0), &["8", "2"])],
        );
        let said = by_keys(&base, &base, &["a.b".to_owned()]).unwrap_err();
        assert_eq!(
            said,
            "BASE: rows of 2 points have a.b 8; name further axes in `--by`, such as `c.d`"
        );
        assert!(
            by_keys(&base, &base, &["x.y".to_owned()])
                .unwrap_err()
                .contains("`--by x.y` is not an axis of both tables (`a.b`, `c.d` here)")
        );
        let alike = table(&["a.b", "c.b"], vec![(row(1, 1.0), &["8", "1"])]);
        assert_eq!(
            by_keys(&alike, &alike, &["b".to_owned()]).unwrap_err(),
            "`--by b` is the end of several axes; name one of `a.b`, `c.b`"
        );
        assert_eq!(
            by_keys(&base, &base, &["a.b".to_owned(), "c.d".to_owned()])
                .unwrap()
                .pairs
                .len(),
            2
        );
    }
}
