//! The treatment of a comparison: the settings that are the same for all trials of each run and
//! differ between the two runs. Facts of the machine join it in `applied`.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{
    kinds::{Data, data::Loader},
    record::{TrialTable, redefined::ConcernedSetting},
    spec::learned::LOG_EVERY,
};
use serde::Serialize;

use super::matching::{Matched, by_settings};
use crate::report::{
    run_settings::{RunSettings, Setting, is_without},
    subject::Subject,
};

/// Most settings that are named as a treatment. Chosen: with more, two runs are rather different
/// experiments than one that was changed.
pub const MOST_TREATED: usize = 5;

/// One key of a treatment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TreatedKey {
    /// Dotted key of a setting, or column of `trials.csv`.
    pub key: String,
    /// `None`: not set.
    pub base: Option<String>,
    pub new: Option<String>,
}

/// The settings of a treatment, and what else is needed to match the points of both runs.
#[derive(Clone, Debug, Default)]
pub struct Treatment {
    pub settings: Vec<TreatedKey>,
    values: [BTreeMap<String, String>; 2],
}

/// Sections of settings that affect numbers.
const SECTIONS: [&str; 4] = ["model.", "data.", "train.", "measure."];
/// Single settings that do.
const SINGLE: [&str; 3] = ["run.engine", "run.devices", "run.devices_per_trial"];
/// Kinds: another kind brings other settings, and stands for all of them.
const KINDS: [&str; 4] = [
    "model.kind",
    "data.kind",
    "train.optimizer.kind",
    "train.learning_rate_schedule.kind",
];
const DATA_SUMS: &str = "data_sha256";

fn is_on_gpu(table: &TrialTable) -> bool {
    table.rows.iter().any(|row| row.fixed.is_on_gpu())
}

impl Treatment {
    /// Finds the settings in which two runs differ as a whole.
    pub fn between(base: Subject<'_>, new: Subject<'_>) -> Self {
        let settings = [base, new].map(|side| side.experiment.and_then(RunSettings::of));
        let [Some(old), Some(other)] = &settings else {
            return Self::default();
        };
        if !(old.is_complete && other.is_complete) {
            return Self::default();
        }
        let axes: BTreeSet<&String> = [base, new]
            .iter()
            .flat_map(|side| &side.table.axes)
            .collect();
        let mut treated: Vec<TreatedKey> = keys(old, other)
            .into_iter()
            .filter(|key| is_treatable(key) && !is_swept(key, &axes))
            // It affects nothing on the CPU.
            .filter(|key| {
                *key != Loader::PIN_MEMORY || [base, new].iter().any(|side| is_on_gpu(side.table))
            })
            .filter_map(|key| changed(key, old, other))
            .collect();
        let sums = [base, new].map(data_sums);
        let sides = [old, other];
        if let [Some(old), Some(other)] = sums {
            // Their paths decide nothing then.
            treated.retain(|one| !is_path(&one.key, &sides));
            if old != other && !treated.iter().any(|one| one.key == "data.kind") {
                treated.insert(
                    0,
                    TreatedKey {
                        key: DATA_SUMS.to_owned(),
                        base: Some(old),
                        new: Some(other),
                    },
                );
            }
        }
        Self {
            settings: one_of_each_map(one_of_each_kind(treated), &[old, other]),
            values: [old, other].map(RunSettings::fixed),
        }
    }

    /// One axis, whose values are the sides, and the derived keys that change with it.
    pub(super) fn of_axis(axis: TreatedKey, derived: &[TreatedKey]) -> Self {
        let settings = std::iter::once(axis).chain(derived.iter().cloned());
        Self {
            settings: settings.take(MOST_TREATED).collect(),
            values: Default::default(),
        }
    }

    /// Whether these are few enough settings to be called one treatment.
    pub fn is_few(&self) -> bool {
        (1..=MOST_TREATED).contains(&self.settings.len())
    }

    /// Whether the training losses of the two runs are means of different numbers of steps.
    pub fn has_other_mean(&self) -> bool {
        self.has(LOG_EVERY)
    }

    /// Whether one of its settings is a path of data. Such a setting no longer counts as a difference
    /// once the checksums of both runs' data are known and equal.
    pub fn has_data_path(&self) -> bool {
        Data::PATH_KEYS.iter().any(|path| self.has(path))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.settings.iter().any(|one| one.key == key)
    }

    /// Whether both runs are known not to have this setting.
    pub(super) fn is_without(&self, setting: ConcernedSetting) -> bool {
        let mut values = self.values.iter();
        values.all(|values| is_without(values, setting))
    }

    /// Points of both tables that have the same value on every axis of either.
    pub(super) fn matched<'a>(&self, base: &'a TrialTable, new: &'a TrialTable) -> Matched<'a> {
        let mut axes: Vec<String> = base.axes.clone();
        axes.extend(
            new.axes
                .iter()
                .filter(|axis| !base.axes.contains(axis))
                .cloned(),
        );
        by_settings([base, new], &axes, &self.values)
    }
}

/// Whether a key is a path in the data of both runs.
fn is_path(key: &str, sides: &[&RunSettings; 2]) -> bool {
    let is_one = |side: &&RunSettings| {
        let kind = side.settings.get("data.kind").map(Setting::text);
        Data::is_path_key(key, kind.as_deref().unwrap_or_default())
    };
    sides.iter().all(is_one)
}

fn keys<'a>(old: &'a RunSettings, other: &'a RunSettings) -> BTreeSet<&'a String> {
    old.settings.keys().chain(other.settings.keys()).collect()
}

/// Whether a key may be a treatment, so that `--across` may name it.
pub fn is_treatable(key: &str) -> bool {
    let is_below = |section: &&str| key.len() > section.len() && key.starts_with(*section);
    SECTIONS.iter().any(is_below) || SINGLE.contains(&key) || key == DATA_SUMS
}

/// Whether `--across` means this key: it names the key or a map around it.
pub fn names_setting(named: &str, key: &str) -> bool {
    key.strip_prefix(named)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether an axis varies the key, a part of it or the map around it.
fn is_swept(key: &str, axes: &BTreeSet<&String>) -> bool {
    axes.iter()
        .any(|axis| names_setting(axis, key) || names_setting(key, axis))
}

fn changed(key: &str, old: &RunSettings, other: &RunSettings) -> Option<TreatedKey> {
    let sides = [old, other].map(|side| side.settings.get(key));
    let is_same = matches!(sides, [Some(base), Some(new)] if base.is_same(new));
    let [base, new] = sides.map(|side| side.map(Setting::text));
    (!is_same).then(|| TreatedKey {
        key: key.to_owned(),
        base,
        new,
    })
}

/// Leaves out the settings that come with another kind.
fn one_of_each_kind(mut treated: Vec<TreatedKey>) -> Vec<TreatedKey> {
    for kind in KINDS {
        let section = kind.trim_end_matches("kind");
        if treated.iter().any(|one| one.key == kind) {
            treated.retain(|one| one.key == kind || !one.key.starts_with(section));
        }
    }
    treated
}

/// Puts the settings of a map that only one side has, such as `train.checkpoint`, together.
fn one_of_each_map(treated: Vec<TreatedKey>, sides: &[&RunSettings; 2]) -> Vec<TreatedKey> {
    let lacks = |side: &RunSettings, map: &str| {
        let below = format!("{map}.");
        !side.settings.keys().any(|key| key.starts_with(&below))
    };
    let map_of = |key: &str| {
        let (map, _) = key.rsplit_once('.')?;
        let is_inner = map.contains('.') && sides.iter().any(|side| lacks(side, map));
        is_inner.then(|| map.to_owned())
    };
    let mut found: Vec<TreatedKey> = Vec::new();
    for one in treated {
        let Some(map) = map_of(&one.key) else {
            found.push(one);
            continue;
        };
        let name = one.key[map.len() + 1..].to_owned();
        let part = |value: Option<String>| value.map(|value| format!("{name} {value}"));
        let (base, new) = (part(one.base), part(one.new));
        match found.iter_mut().find(|known| known.key == map) {
            Some(known) => {
                known.base = joined(known.base.take(), base);
                known.new = joined(known.new.take(), new);
            }
            None => found.push(TreatedKey {
                key: map,
                base,
                new,
            }),
        }
    }
    found
}

fn joined(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}, {other}")),
        (one, other) => one.or(other),
    }
}

/// The sums of all data that a run read; `None` if it recorded none.
fn data_sums(subject: Subject<'_>) -> Option<String> {
    let launches = subject.run.iter().flat_map(|run| &run.launches);
    let sums: BTreeSet<String> = launches
        .flat_map(|launch| &launch.data_sha256)
        .map(|(kind, sum)| format!("{kind} {sum}"))
        .collect();
    (!sums.is_empty()).then(|| sums.into_iter().collect::<Vec<_>>().join(", "))
}
