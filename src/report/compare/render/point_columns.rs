//! The columns of a table of verdicts that tell its points apart: one per axis, by a short name.

use crate::report::{
    compare::{Compared, Comparison, Comparisons},
    layout::PageColumn,
    points::{short_names_beside, shown},
};

/// A pair of points, and its comparison by the metric of the table.
pub(super) type PointVerdict<'a> = (&'a Compared, &'a Comparison);

/// A column per axis; the name of the point where that says more than its values. No short name is
/// one of these heads of other columns.
pub(super) fn point_columns(
    comparisons: &[PointVerdict<'_>],
    found: &Comparisons,
    other_heads: &[&str],
) -> Vec<PageColumn> {
    let Some(axes) = axes(found) else {
        let names = comparisons.iter().map(|(pair, _)| Some(pair.name.clone()));
        return vec![PageColumn::new("point", u8::MAX, names)];
    };
    let heads = short_names_beside(&all_axes(&axes, found), other_heads);
    let column = |(axis, head): (&String, &String)| {
        let values = comparisons.iter().map(|(pair, _)| value(pair, found, axis));
        PageColumn::new(head, u8::MAX, values)
    };
    axes.iter().zip(&heads).map(column).collect()
}

/// The axes whose values name the points, and that of the sides where there are several; `None`
/// where the name of a point says more, or where it is the only one.
fn axes(found: &Comparisons) -> Option<Vec<String>> {
    let first = found.pairs.first()?;
    let mut axes: Vec<String> = first.values.iter().map(|(axis, _)| axis.clone()).collect();
    if let Some(between) = found.between.as_ref().filter(|one| one.sides.len() > 1) {
        axes.push(between.axis.clone());
    }
    let is_whole = |pair: &Compared| !pair.is_in_pieces;
    (!axes.is_empty() && found.pairs.iter().all(is_whole)).then_some(axes)
}

/// These axes, then the compared one and the settings that change with it: a short name must not
/// mean one of them.
fn all_axes(axes: &[String], found: &Comparisons) -> Vec<String> {
    let mut all = axes.to_vec();
    if let Some(between) = &found.between {
        let treated = found.treatment.iter().map(|treated| &treated.key);
        // A key without a dot is a column of the table.
        let treated = treated.filter(|key| key.contains('.'));
        for key in std::iter::once(&between.axis).chain(treated) {
            if !all.contains(key) {
                all.push(key.clone());
            }
        }
    }
    all
}

/// The value of a point on one of these axes.
fn value(pair: &Compared, found: &Comparisons, axis: &str) -> Option<String> {
    let is_of_sides = found.between.as_ref().is_some_and(|one| one.axis == axis);
    if is_of_sides {
        return pair.side.clone();
    }
    let mut values = pair.values.iter();
    values
        .find(|(own, _)| own == axis)
        .map(|(_, value)| shown(value).to_owned())
}
