//! The settings in which runs differ, one row per key and one cell per run. Values are compared as
//! `kiln diff` compares them.

use std::collections::BTreeSet;

use kiln_core::spec;
use serde_json::Value;

use crate::report::{
    points::shown,
    run_settings::{RunSettings, Setting},
    views::RunView,
};

/// Values of a swept key in a cell.
const MOST_VALUES: usize = 6;
/// A key that a run does not have.
const UNSET: &str = "–";
const UNKNOWN: &str = "unknown";

#[derive(Debug, PartialEq)]
pub(super) struct SettingRow {
    pub(super) key: String,
    /// One per run.
    pub(super) cells: Vec<String>,
}

/// Returns the keys that do not have the same value in all runs; the cell of a swept key has its
/// values. A key that a run lacks is not set there if all runs have every default filled in, and
/// otherwise unknown; what is unknown is not compared.
pub(super) fn differing(runs: &[RunSettings]) -> Vec<SettingRow> {
    let is_unset_known = runs.iter().all(|run| run.is_complete);
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    let row = |key: &String| {
        let cells: Vec<Option<&Setting>> = runs.iter().map(|run| run.settings.get(key)).collect();
        let mut known = cells.iter().filter(|cell| cell.is_some() || is_unset_known);
        let first = known.next()?;
        let is_same = |cell: &Option<&Setting>| match (first, cell) {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let text = |cell: &Option<&Setting>| match cell {
            Some(setting) => setting.short_text(MOST_VALUES),
            None if is_unset_known => UNSET.to_owned(),
            None => UNKNOWN.to_owned(),
        };
        (!known.all(is_same)).then(|| SettingRow {
            key: key.clone(),
            cells: cells.iter().map(text).collect(),
        })
    };
    keys.into_iter().filter_map(row).collect()
}

/// The settings of a run without an experiment: the values of its axes alone.
pub(super) fn of_table(run: &RunView<'_>) -> RunSettings {
    let setting = |place: usize| {
        let mut values: Vec<Value> = Vec::new();
        for point in &run.points {
            let text = point.values.get(place).map_or("", |value| shown(value));
            let value = spec::read_yaml(text).unwrap_or_else(|_| text.into());
            if !values.contains(&value) {
                values.push(value);
            }
        }
        match values.len() {
            0 | 1 => Setting::One(values.pop().unwrap_or_default()),
            _ => Setting::Swept {
                is_zipped: false,
                values,
            },
        }
    };
    let axes = run.table.axes.iter().enumerate();
    RunSettings {
        settings: axes
            .map(|(place, axis)| (axis.clone(), setting(place)))
            .collect(),
        is_complete: false,
        derived: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{
        diff::{RunDiff, Section},
        points::tests::{row, table},
        subject::Subject,
    };

    const SMALL: &str = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n";

    fn written(key: &str, cells: &[&str]) -> SettingRow {
        SettingRow {
            key: key.into(),
            cells: cells.iter().map(|cell| (*cell).to_owned()).collect(),
        }
    }

    fn of(more: &str) -> RunSettings {
        RunSettings::of(&format!("{SMALL}{more}\n")).unwrap()
    }

    #[test]
    fn a_default_that_is_written_out_is_no_difference() {
        let runs = [
            of("train: {steps: 5}"),
            of("train: {steps: 5, precision: f32, batch_size: 8}"),
        ];
        assert!(runs[0].is_complete && runs[1].is_complete);
        assert!(differing(&runs).is_empty(), "{:?}", differing(&runs));
    }

    #[test]
    fn only_settings_that_differ_are_listed_and_a_swept_key_has_its_values() {
        let many: Vec<String> = (1..=9).map(|size| size.to_string()).collect();
        let runs = [
            of("train: {steps: 5}\nsweep: {grid: {train.batch_size: [8, 16]}}"),
            of("train: {steps: 5, batch_size: 4, clip_norm: 0.5}"),
            of(&format!(
                "train: {{steps: 5}}\nsweep: {{grid: {{train.batch_size: [{}]}}}}",
                many.join(", ")
            )),
        ];
        let mut rows = differing(&runs);
        rows.retain(|row| row.key.starts_with("train."));
        assert_eq!(
            rows,
            [
                written(
                    "train.batch_size",
                    &["swept: 8, 16", "4", "swept: 1, 2, 3, 4, 5, 6 and 3 more"]
                ),
                written("train.clip_norm", &[UNSET, "0.5", UNSET]),
            ]
        );
    }

    #[test]
    fn of_a_table_alone_the_axes_are_known_and_other_keys_are_not_compared() {
        let table = table(
            &["train.batch_size"],
            vec![(row(1, 1.0), &["8"]), (row(2, 1.0), &["16"])],
        );
        let alone = of_table(&RunView::new("a".into(), &table));
        assert_eq!(
            differing(&[
                of("train: {steps: 5, batch_size: 8, clip_norm: 0.5}"),
                alone.clone()
            ]),
            [written("train.batch_size", &["8", "swept: 8, 16"])]
        );
        let swept = of("train: {steps: 5}\nsweep: {grid: {train.batch_size: [8, 16]}}");
        assert!(differing(&[swept, alone]).is_empty());
    }

    #[test]
    fn the_page_lists_the_settings_that_kiln_diff_lists() {
        let table = table(&[], vec![(row(1, 1.0), &[])]);
        let texts = [
            "train: {steps: 5}",
            "train: {steps: 5, precision: f32, batch_size: 64}",
            "train: {steps: 9, optimizer: {kind: adamw}}\nrun: {timeout: 1h}",
            "train: {steps: 5}\nsweep: {repeats: 3, grid: {train.batch_size: [8, 16]}}",
            "train: {steps: 5, warp_drive: on}",
        ]
        .map(|more| format!("{SMALL}{more}\n"));
        for (one, other) in texts
            .iter()
            .flat_map(|one| texts.iter().map(move |other| (one, other)))
        {
            let subject = |text| Subject {
                experiment: Some(text),
                ..Subject::new(&table, "x")
            };
            let diff = RunDiff::of(subject(one.as_str()), subject(other.as_str()));
            let of_diff: Vec<&String> = diff
                .differences
                .iter()
                .filter(|pair| pair.section == Section::Settings)
                .map(|pair| &pair.key)
                .collect();
            let page = differing(&[one, other].map(|text| RunSettings::of(text).unwrap()));
            let mut of_page: Vec<&String> = page.iter().map(|row| &row.key).collect();
            of_page.sort_by_key(|key| of_diff.iter().position(|known| known == key));
            assert_eq!(of_page, of_diff, "{one}{other}");
        }
    }
}
