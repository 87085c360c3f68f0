//! The facts that one run recorded: in its table, in `run.json` and in its trials' results.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{
    plan::show,
    record::{
        RunFile, RunFolder, TableRow, TrialRow, TrialTable, attempt::result, difference::leaves,
        run_file::Launch,
    },
    units::Bytes,
};
use serde_json::{Map, Value};

use super::Section;
use crate::report::{
    compare::{RowFact, beginning, is_fleeting},
    points::{SETTINGS, column_setting},
    programs::{PACKAGES, PROGRAM_FACTS, further_libraries, package_facts, program_facts},
    run_settings::RunSettings,
    subject::Subject,
};

/// The meaning of a fact that is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It was recorded that there is none: a variable that was not set, a GPU of a trial on the CPU.
    Known,
    Unknown,
    /// The whole record is absent, which is told once.
    Aside,
}

/// Facts that a reader counts on: they are listed where a run did not record them. A key stands
/// for all keys below it.
pub(super) const EXPECTED: [(Section, &str); 13] = [
    (Section::Settings, EXPERIMENT),
    (Section::Data, SUMS),
    (Section::Data, TRAIN_SAMPLES),
    (Section::Machine, "device_name"),
    (Section::Machine, "host_id"),
    (Section::Machine, "machine.cpu.model"),
    (Section::Machine, "machine.memory.total"),
    (Section::Versions, "git.commit"),
    (Section::Versions, LIBTORCH),
    (Section::Versions, "versions.kiln"),
    (Section::Versions, "versions.trial_program_sha256"),
    (Section::Flags, "flags"),
    (Section::Flags, RUN_RECORD),
];
/// Stands between the values of a fact that changed during a run.
pub(super) const THEN: &str = ", then ";
const EXPERIMENT: &str = "experiment.yaml";
const CONTINUES: &str = "continues";
const RUN_RECORD: &str = "run.json";
const TRAIN_SAMPLES: &str = "train_samples";
const SUMS: &str = "data_sha256";
const LIBTORCH: &str = "libraries.libtorch";
/// The build of kiln.
const BUILD: [&str; 2] = ["versions.kiln", "versions.kiln_sha256"];

/// Columns of `trials.csv` that are facts of the machine, besides those of [`RowFact`].
const BOARDS: &str = "device_uuid";
const WORKERS: &str = "num_workers";

/// Most results of trials that are read for the number of samples.
const MOST_RESULTS: usize = 200;

/// Whether a key is this one or below it.
pub(super) fn is_of(key: &str, above: &str) -> bool {
    key.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether only `run.json` tells the fact.
fn is_of_launch(key: &str) -> bool {
    key == "machine_id" || (key.contains('.') && key != LIBTORCH)
}

fn is_of_program(key: &str) -> bool {
    PROGRAM_FACTS.iter().any(|begin| key.starts_with(begin))
}

/// The facts of one run. A fact that changed during the run has all its values.
pub(super) struct RunRecord {
    pub(super) settings: Option<RunSettings>,
    /// Settings of which the table has a column, as the trials had them.
    pub(super) columns: BTreeMap<String, String>,
    pub(super) facts: BTreeMap<(Section, String), String>,
    has_launch: bool,
    has_packages: bool,
    /// Whether the table has rows, and all are of trials on the CPU.
    is_on_cpu: bool,
}

impl RunRecord {
    pub(super) fn of(subject: Subject<'_>) -> Self {
        let rows = subject.table.last_attempts();
        let mut record = Self {
            settings: subject.experiment.and_then(RunSettings::of),
            columns: columns(subject.table, &rows),
            facts: BTreeMap::new(),
            has_launch: subject.run.is_some_and(|run| !run.launches.is_empty()),
            has_packages: subject.packages.is_some(),
            is_on_cpu: !rows.is_empty() && rows.iter().all(|row| !row.fixed.is_on_gpu()),
        };
        if let Some(run) = subject.run {
            if let Some(origins) = beginning(run) {
                record.add(Section::Settings, CONTINUES, origins);
            }
            record.add_launches(run, subject.table);
        }
        for (package, version) in subject.packages.map(package_facts).into_iter().flatten() {
            record.add(Section::Versions, &package, version);
        }
        record.add_rows(&rows);
        if let Some(samples) = subject
            .folder
            .and_then(|folder| train_samples(folder, subject.table, &rows))
        {
            record.add(Section::Data, TRAIN_SAMPLES, samples);
        }
        record
    }

    fn add(&mut self, section: Section, key: &str, value: String) {
        self.facts.entry((section, key.to_owned())).or_insert(value);
    }

    /// The facts of the launches that made rows; of all launches if none did.
    fn add_launches(&mut self, run: &RunFile, table: &TrialTable) {
        let with_rows: BTreeSet<u64> = table.rows.iter().map(|row| row.fixed.launch).collect();
        let made_rows = |launch: &&Launch| with_rows.contains(&launch.launch);
        let any = run.launches.iter().any(|launch| made_rows(&launch));
        let mut values: BTreeMap<(Section, String), Vec<String>> = BTreeMap::new();
        for launch in run
            .launches
            .iter()
            .filter(|launch| !any || made_rows(launch))
        {
            for (place, value) in launch_facts(launch) {
                let known = values.entry(place).or_default();
                if !known.contains(&value) {
                    known.push(value);
                }
            }
        }
        for ((section, key), values) in values {
            self.add(section, &key, values.join(THEN));
        }
    }

    /// Facts of the rows that no launch told, or that differ from trial to trial.
    fn add_rows(&mut self, rows: &[&TableRow]) {
        for field in RowFact::ALL {
            let (section, beside) = match field {
                // Settings; `effective_batch_size` follows from them.
                RowFact::Engine
                | RowFact::Precision
                | RowFact::EffectiveBatchSize
                | RowFact::DevicesPerTrial => continue,
                RowFact::Libtorch => (Section::Versions, LIBTORCH),
                RowFact::Processor => (Section::Machine, "machine.cpu.processor"),
                other => (Section::Machine, other.name()),
            };
            if !self.has(section, beside)
                && let Some(values) = distinct(rows.iter().map(|row| field.of(&row.fixed)))
            {
                self.add(section, beside, values);
            }
        }
        let boards = rows.iter().flat_map(|row| row.fixed.device_uuids());
        if let Some(boards) = distinct(boards.map(str::to_owned)) {
            self.add(Section::Machine, BOARDS, boards);
        }
        let workers = |row: &TrialRow| row.num_workers.map(|workers| workers.to_string());
        let is_auto = self.settings.as_ref().is_some_and(|settings| {
            let setting = settings.settings.get("data.num_workers");
            setting.is_some_and(|setting| setting.text() == "auto")
        });
        if is_auto
            && let Some(workers) = distinct(rows.iter().filter_map(|row| workers(&row.fixed)))
        {
            self.add(Section::Machine, WORKERS, workers);
        }
    }

    /// Whether a fact that only the other record has is known to be unset here, or was not recorded.
    /// `is_one_build`: one build of kiln made both.
    pub(super) fn missing(&self, section: Section, key: &str, is_one_build: bool) -> Missing {
        let is_of_gpu = [
            BOARDS,
            "driver",
            "power_limit_watts",
            "mig_profile",
            "ecc_mode",
        ];
        match section {
            Section::Machine if is_of_gpu.contains(&key) && self.is_on_cpu => Missing::Known,
            Section::Machine if is_of(key, "devices") && self.has_launch => Missing::Known,
            Section::Settings if key == CONTINUES && self.has_launch => Missing::Known,
            // A list that is not there is told by its hash.
            Section::Versions if key.starts_with(PACKAGES) => match self.has_packages {
                true => Missing::Known,
                false => Missing::Aside,
            },
            Section::Versions if self.has_launch && is_of_program(key) => Missing::Known,
            // Other data have another name.
            Section::Data if is_of(key, SUMS) && self.has(section, SUMS) => Missing::Known,
            // A number that was asked for is a setting.
            Section::Machine if key == WORKERS => Missing::Aside,
            // Other builds record other variables.
            Section::Flags if is_of(key, "environment") && self.has_launch => match is_one_build {
                true => Missing::Known,
                false => Missing::Unknown,
            },
            _ if !self.has_launch && is_of_launch(key) => Missing::Aside,
            _ => Missing::Unknown,
        }
    }

    /// Whether one build of kiln is known to have made both.
    pub(super) fn is_of_one_build(&self, other: &Self) -> bool {
        let build = |record: &Self| BUILD.map(|key| record.value(Section::Versions, key));
        let [version, _] = build(self);
        version.is_some() && build(self) == build(other)
    }

    /// Whether a fact, or one below it, was recorded.
    pub(super) fn has(&self, section: Section, key: &str) -> bool {
        match key {
            EXPERIMENT => self.settings.is_some(),
            RUN_RECORD => self.has_launch,
            _ => {
                let mut facts = self.facts.keys();
                facts.any(|(of, name)| *of == section && is_of(name, key))
            }
        }
    }

    /// The value of a fact.
    pub(super) fn value(&self, section: Section, key: &str) -> Option<String> {
        self.facts.get(&(section, key.to_owned())).cloned()
    }
}

/// The facts of a launch that may decide numbers.
fn launch_facts(launch: &Launch) -> Vec<((Section, String), String)> {
    const SECTIONS: [(&str, Section); 11] = [
        ("data_sha256", Section::Data),
        ("machine", Section::Machine),
        ("machine_id", Section::Machine),
        ("host_id", Section::Machine),
        ("devices", Section::Machine),
        ("driver", Section::Machine),
        ("git", Section::Versions),
        ("versions", Section::Versions),
        ("libraries", Section::Versions),
        ("flags", Section::Flags),
        ("environment", Section::Flags),
    ];
    let whole = serde_json::to_value(launch).unwrap_or_default();
    let mut programs = program_facts(launch);
    programs.extend(further_libraries(launch));
    let programs = programs.into_iter();
    let programs = programs.map(|(key, value)| ((Section::Versions, key), value));
    let of = |(name, section): (&str, Section)| {
        let value = by_number(whole.get(name)?.clone());
        let one: Map<String, Value> = [(name.to_owned(), value)].into_iter().collect();
        let facts = leaves(Value::Object(one), &|_| false).into_iter();
        let facts = facts.filter(|(key, _)| !is_fleeting(key));
        Some(facts.filter_map(move |(key, value)| Some(((section, key), text(&value)?))))
    };
    SECTIONS
        .into_iter()
        .filter_map(of)
        .flatten()
        .chain(programs)
        .collect()
}

/// Lists become maps by place, and readings with a unit their text.
fn by_number(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            Value::Object(
                items
                    .map(|(place, item)| (place.to_string(), by_number(item)))
                    .collect(),
            )
        }
        Value::String(text) => Value::String(in_words(text)),
        Value::Object(map) if map.contains_key("value") => reading(&map),
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, by_number(value)))
                .collect(),
        ),
        other => other,
    }
}

/// `23.5 GiB`; a reading that is absent is the reason for it in brackets.
fn reading(map: &Map<String, Value>) -> Value {
    let of = |key: &str| map.get(key).filter(|value| !value.is_null());
    let unit = of("unit").and_then(Value::as_str);
    match (of("value"), of("reason")) {
        (Some(value), _) => match (unit, value.as_f64()) {
            (Some("B"), Some(bytes)) => Value::String(Bytes(bytes as u64).to_string()),
            (Some(unit), _) => Value::String(format!("{} {unit}", show(value))),
            (None, _) => value.clone(),
        },
        (None, Some(reason)) => Value::String(format!("({})", show(reason))),
        (None, None) => Value::Null,
    }
}

/// Older records have an amount of memory as text: `1024 B`.
fn in_words(text: String) -> String {
    let bytes = text.strip_suffix(" B").and_then(|bytes| bytes.parse().ok());
    bytes.map_or(text, |bytes| Bytes(bytes).to_string())
}

fn text(value: &Value) -> Option<String> {
    (!value.is_null()).then(|| show(value))
}

/// Values in the order of the rows, each once; `None` if there are none.
fn distinct(values: impl Iterator<Item = String>) -> Option<String> {
    let mut known: Vec<String> = Vec::new();
    for value in values.filter(|value| !value.is_empty()) {
        if !known.contains(&value) {
            known.push(value);
        }
    }
    (!known.is_empty()).then(|| known.join(", "))
}

/// Axes and columns of settings of a table.
fn columns(table: &TrialTable, rows: &[&TableRow]) -> BTreeMap<String, String> {
    let cell = |place: usize| {
        rows.iter()
            .map(move |row| row.axes.get(place).cloned().unwrap_or_default())
    };
    let axes = table.axes.iter().enumerate();
    let axes = axes.filter_map(|(place, axis)| Some((axis.clone(), distinct(cell(place))?)));
    let of = |column: &str| {
        let values = rows
            .iter()
            .filter_map(|row| column_setting(&row.fixed, column));
        Some((column.to_owned(), distinct(values)?))
    };
    let of_machine = ["device_name"];
    let steps = rows.iter().filter_map(|row| row.fixed.steps);
    let steps = distinct(steps.map(|steps| steps.to_string()));
    SETTINGS
        .iter()
        .filter(|column| !of_machine.contains(column))
        .filter_map(|column| of(column))
        .chain(steps.map(|steps| ("steps".to_owned(), steps)))
        .chain(axes)
        .collect()
}

/// Numbers of training samples, as the trials counted them: one trial for each choice of data.
fn train_samples(folder: &RunFolder, table: &TrialTable, rows: &[&TableRow]) -> Option<String> {
    let is_of_data: Vec<bool> = table
        .axes
        .iter()
        .map(|axis| axis.starts_with("data.") && axis != "data.num_workers")
        .collect();
    let mut seen: BTreeSet<Vec<&String>> = BTreeSet::new();
    let one_of_each = rows.iter().filter(|row| {
        let cells = row.axes.iter().zip(&is_of_data);
        seen.insert(cells.filter(|(_, is)| **is).map(|(cell, _)| cell).collect())
    });
    let counts = one_of_each.take(MOST_RESULTS).filter_map(|row| {
        let attempt = folder.attempt(&row.fixed.trial, row.fixed.attempt);
        result(&attempt).ok()?.train_samples
    });
    distinct(counts.map(|count| count.to_string()))
}
