//! Differences between two runs: settings, data, machine, versions and flags.
//!
//! Two records come in, every difference goes out, the most consequential first. A fact that a
//! side did not record is unknown: it is listed as such, and never counts as equal.

mod export;
mod page;
mod record;

use std::collections::BTreeMap;

use serde::Serialize;

use self::record::{Missing, RunRecord};
use super::{programs::drop_moved, run_settings::Setting, subject::Subject};

/// A kind of fact. The order is that of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    Settings,
    Data,
    Machine,
    Versions,
    Flags,
}

impl Section {
    pub const ALL: [Self; 5] = [
        Self::Settings,
        Self::Data,
        Self::Machine,
        Self::Versions,
        Self::Flags,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Data => "data",
            Self::Machine => "machine",
            Self::Versions => "versions",
            Self::Flags => "flags",
        }
    }

    /// Beginnings of its keys, the most consequential first; other keys follow.
    fn order(self) -> &'static [&'static str] {
        match self {
            Self::Settings => &[
                "continues",
                "model.kind",
                "model.",
                "data.kind",
                "data.",
                "train.",
                "run.engine",
                "run.devices",
                "sweep.",
                "run.",
                "measure.",
            ],
            Self::Data => &["data_sha256", "train_samples"],
            Self::Machine => &[
                "device_name",
                "devices",
                "power_limit_watts",
                "mig_profile",
                "ecc_mode",
                "driver",
                "processor",
                "machine.cpu.",
                "cpu_threads",
                "num_workers",
                "concurrent_trials",
                "machine.memory.",
                "machine.limits.",
                "host_id",
                "machine_id",
                "device_uuid",
                "machine.system.",
            ],
            Self::Versions => &[
                "git.",
                "programs.",
                "interpreters.",
                "repositories.",
                "libraries.libtorch",
                "libtorch",
                "libraries.cu",
                "libraries.",
                "versions.kiln",
            ],
            Self::Flags => &["flags."],
        }
    }

    fn rank(self, key: &str) -> usize {
        let (order, key) = (self.order(), format!("{key}."));
        let place = order.iter().position(|begin| key.starts_with(begin));
        place.unwrap_or(order.len())
    }
}

/// One key with a value on each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FactPair {
    pub section: Section,
    /// As `experiment.yaml`, `run.json` or `trials.csv` name it.
    pub key: String,
    pub a: Option<String>,
    pub b: Option<String>,
}

/// All differences between two runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunDiff {
    /// Facts that both runs recorded, and that differ. `None`: recorded as not set, or as absent.
    pub differences: Vec<FactPair>,
    /// Facts that at least one run did not record. `None`: not recorded.
    pub unknown: Vec<FactPair>,
    /// Number of facts of each section that both runs recorded, and that are equal.
    pub equal: BTreeMap<Section, usize>,
}

impl RunDiff {
    pub fn of(a: Subject<'_>, b: Subject<'_>) -> Self {
        let mut records = [a, b].map(RunRecord::of);
        let facts = records.each_mut().map(|record| &mut record.facts);
        drop_moved(facts, |(_, key)| key);
        let mut found = Self::default();
        found.add_settings(&records);
        found.add_facts(&records);
        found.add_expected(&records);
        for list in [&mut found.differences, &mut found.unknown] {
            list.sort_by(|one, other| {
                let place = |pair: &FactPair| (pair.section, pair.section.rank(&pair.key));
                (place(one), &one.key).cmp(&(place(other), &other.key))
            });
        }
        found
    }

    /// Whether no recorded fact differs; some may be unknown.
    pub fn is_empty(&self) -> bool {
        self.differences.is_empty()
    }

    fn add_settings(&mut self, records: &[RunRecord; 2]) {
        let [Some(a), Some(b)] = records.each_ref().map(|record| record.settings.as_ref()) else {
            return self.add_columns(records);
        };
        let missing = match a.is_complete && b.is_complete {
            true => Missing::Known,
            false => Missing::Unknown,
        };
        let keys = a.settings.keys().chain(b.settings.keys());
        let keys: std::collections::BTreeSet<&String> = keys.collect();
        for key in keys {
            let sides = [a.settings.get(key), b.settings.get(key)];
            let is_same = matches!(sides, [Some(a), Some(b)] if a.is_same(b));
            self.add(
                Section::Settings,
                key,
                sides.map(|side| side.map(Setting::text)),
                is_same,
                [missing; 2],
            );
        }
    }

    /// Settings of which a table has columns, where a run has no experiment beside it.
    fn add_columns(&mut self, records: &[RunRecord; 2]) {
        let columns = records[0].columns.keys().chain(records[1].columns.keys());
        let columns: std::collections::BTreeSet<&String> = columns.collect();
        for key in columns {
            let sides = records
                .each_ref()
                .map(|record| record.columns.get(key).cloned());
            let is_same = sides[0] == sides[1];
            self.add(
                Section::Settings,
                key,
                sides,
                is_same,
                [Missing::Unknown; 2],
            );
        }
    }

    fn add_facts(&mut self, records: &[RunRecord; 2]) {
        let is_one_build = records[0].is_of_one_build(&records[1]);
        let keys = records[0].facts.keys().chain(records[1].facts.keys());
        let keys: std::collections::BTreeSet<&(Section, String)> = keys.collect();
        for (section, key) in keys {
            let at = (*section, key.clone());
            let sides = records
                .each_ref()
                .map(|record| record.facts.get(&at).cloned());
            let missing = records
                .each_ref()
                .map(|record| record.missing(*section, key, is_one_build));
            // A record that is absent as a whole is one unknown fact.
            if missing.contains(&Missing::Aside) && sides.contains(&None) {
                continue;
            }
            let is_same = sides[0] == sides[1];
            self.add(*section, key, sides, is_same, missing);
        }
    }

    /// Lists the facts that a reader counts on and that a side lacks.
    fn add_expected(&mut self, records: &[RunRecord; 2]) {
        for (section, key) in record::EXPECTED {
            let known = records.each_ref().map(|record| record.has(section, key));
            let is_listed =
                |pair: &FactPair| pair.section == section && record::is_of(&pair.key, key);
            if known == [true, true]
                || self.unknown.iter().any(is_listed)
                || self.differences.iter().any(is_listed)
            {
                continue;
            }
            let sides = [0, 1].map(|side| {
                known[side].then(|| records[side].value(section, key).unwrap_or_default())
            });
            let [a, b] = sides;
            self.unknown.push(FactPair {
                section,
                key: key.to_owned(),
                a,
                b,
            });
        }
    }

    fn add(
        &mut self,
        section: Section,
        key: &str,
        sides: [Option<String>; 2],
        is_same: bool,
        missing: [Missing; 2],
    ) {
        let is_unknown = sides
            .iter()
            .zip(missing)
            .any(|(side, missing)| side.is_none() && missing != Missing::Known);
        if is_same && !is_unknown {
            *self.equal.entry(section).or_default() += 1;
            return;
        }
        let [a, b] = sides;
        let list = match is_unknown {
            true => &mut self.unknown,
            false => &mut self.differences,
        };
        list.push(FactPair {
            section,
            key: key.to_owned(),
            a,
            b,
        });
    }
}

#[cfg(test)]
mod tests;
