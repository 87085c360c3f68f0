//! The settings in which runs differ, one row per key and one cell per run.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{plan::show, record::difference::leaves};

use crate::report::{points::shown, views::RunView};

/// Values of a swept key in a cell.
const MOST_VALUES: usize = 6;
/// Keys that say what a run is about, not how its trials were made.
const NAMES: [&str; 4] = ["kiln", "name", "description", "sweep"];
/// A key that a run does not have.
const UNSET: &str = "–";

#[derive(Debug, PartialEq)]
pub(super) struct SettingRow {
    pub(super) key: String,
    /// One per run.
    pub(super) cells: Vec<String>,
}

/// Returns the keys that do not have the same value in all runs; the cell of a swept key has all
/// its values. Of a run without an experiment only the swept keys are known: other keys are not
/// compared with it.
pub(super) fn differing(runs: &[RunView<'_>]) -> Vec<SettingRow> {
    let known: Vec<KnownSettings> = runs.iter().map(KnownSettings::of).collect();
    let keys: BTreeSet<&String> = known.iter().flat_map(|run| run.values.keys()).collect();
    let row = |key: &String| {
        let cells: Vec<Option<&str>> = known.iter().map(|run| run.value(key)).collect();
        let mut known_cells = cells.iter().flatten();
        let first = known_cells.next()?;
        known_cells
            .any(|value| !is_same(first, value))
            .then(|| SettingRow {
                key: key.clone(),
                cells: cells
                    .into_iter()
                    .map(|cell| cell.unwrap_or("unknown").to_owned())
                    .collect(),
            })
    };
    keys.into_iter().filter_map(row).collect()
}

/// `1` and `1.0` are one number.
fn is_same(one: &str, other: &str) -> bool {
    let numbers = one.parse::<f64>().ok().zip(other.parse::<f64>().ok());
    one == other || numbers.is_some_and(|(one, other)| one == other)
}

struct KnownSettings {
    values: BTreeMap<String, String>,
    is_complete: bool,
}

impl KnownSettings {
    fn of(run: &RunView<'_>) -> Self {
        let is_setting = |key: &str| !NAMES.contains(&key.split('.').next().unwrap_or(key));
        let settings = run.settings.clone().map(|value| leaves(value, &|_| false));
        let mut values: BTreeMap<String, String> = settings
            .into_iter()
            .flatten()
            .filter(|(key, _)| is_setting(key))
            .map(|(key, value)| {
                (
                    key,
                    value.as_str().map_or_else(|| show(&value), str::to_owned),
                )
            })
            .collect();
        for (place, axis) in run.table.axes.iter().enumerate() {
            // An axis of whole maps hides what the file says below it.
            let below = format!("{axis}.");
            values.retain(|key, _| !key.starts_with(&below));
            values.insert(axis.clone(), swept(run, place));
        }
        Self {
            values,
            is_complete: run.settings.is_some(),
        }
    }

    /// `None` if the value is unknown.
    fn value(&self, key: &str) -> Option<&str> {
        let value = self.values.get(key).map(String::as_str);
        value.or(self.is_complete.then_some(UNSET))
    }
}

/// `4, 8 and 16 (swept)`.
fn swept(run: &RunView<'_>, axis: usize) -> String {
    let mut values: Vec<&str> = Vec::new();
    for point in &run.points {
        let value = point.values.get(axis).map_or("", |value| shown(value));
        if !values.contains(&value) {
            values.push(value);
        }
    }
    match values.len() {
        0 | 1 => values.concat(),
        count if count > MOST_VALUES => format!(
            "{} and {} more (swept)",
            values[..MOST_VALUES].join(", "),
            count - MOST_VALUES
        ),
        _ => format!("{} (swept)", values.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::tests::{row, table};

    #[test]
    fn only_settings_that_differ_are_listed_and_a_swept_key_has_its_values() {
        let one = table(
            &["train.batch_size"],
            vec![(row(1, 1.0), &["8"]), (row(2, 1.0), &["16"])],
        );
        let other = table(&[], vec![(row(1, 1.0), &[])]);
        let of = |label: &str, table, settings: Option<&str>| RunView {
            settings: settings.map(|text| serde_yaml::from_str(text).unwrap()),
            ..RunView::new(label.into(), table)
        };
        let written = |key: &str, cells: [&str; 2]| SettingRow {
            key: key.into(),
            cells: cells.map(str::to_owned).to_vec(),
        };
        let runs = [
            of(
                "a",
                &one,
                Some(
                    "{name: a, model: {kind: gpt, bias: true}, train: {clip_norm: 1, steps: 5}, \
                     sweep: {repeats: 3}}",
                ),
            ),
            of(
                "b",
                &other,
                Some(
                    "{name: b, model: {kind: lstm}, train: {batch_size: 8, clip_norm: 1.0, steps: 5}}",
                ),
            ),
        ];
        assert_eq!(
            differing(&runs),
            [
                written("model.bias", ["true", UNSET]),
                written("model.kind", ["gpt", "lstm"]),
                written("train.batch_size", ["8, 16 (swept)", "8"]),
            ]
        );
        let table_alone = [runs.into_iter().nth(1).unwrap(), of("c", &one, None)];
        assert_eq!(
            differing(&table_alone),
            [written("train.batch_size", ["8", "8, 16 (swept)"])]
        );
    }
}
