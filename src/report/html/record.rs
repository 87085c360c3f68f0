//! Builds the sections on the record of the runs: machine, every launch, snapshot, experiment, and
//! the differences between runs.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

use kiln_core::{
    plan::show,
    record::{
        RunFolder, SnapshotRow, TableError, at_last_launch, difference::leaves, run_file::Launch,
    },
    units::{Bytes, counted, shell_word},
};

use crate::report::{
    compare::{Fact, RowFact, facts},
    not_completed::{EndEntry, NotCompleted},
    subject::Subject,
    summary::counts,
    views::RunView,
};

/// Largest number of differences between two runs that a page lists.
const MOST_FACTS: usize = 40;
/// Names in a fact.
const MOST_NAMES: usize = 3;

/// Names and their values.
type Facts = Vec<(&'static str, String)>;

pub(super) struct RunPart<'a> {
    pub(super) label: String,
    /// The command that runs it once more; `None` of a table that lies in no run's folder.
    pub(super) again: Option<String>,
    pub(super) is_search: bool,
    pub(super) description: Option<String>,
    /// The answer in a sentence.
    pub(super) verdict: Option<String>,
    pub(super) counts: String,
    /// The trials that did not complete.
    pub(super) not_completed: Vec<EndEntry>,
    /// The model, the data and the time of the training.
    pub(super) subject: Facts,
    /// Machine and versions.
    pub(super) facts: Facts,
    pub(super) launches: Vec<LaunchPart>,
    pub(super) snapshots: Vec<SnapshotPart>,
    pub(super) experiment: Option<&'a str>,
}

pub(super) struct LaunchPart {
    pub(super) title: String,
    pub(super) leaves: Vec<(String, String)>,
}

/// One device, or the host.
pub(super) struct SnapshotPart {
    pub(super) title: String,
    pub(super) sections: Vec<RecordSection>,
}

pub(super) struct RecordSection {
    pub(super) name: String,
    pub(super) fields: Vec<(String, String)>,
}

/// Two runs set beside each other.
pub(super) struct Differences {
    pub(super) title: String,
    pub(super) summary: String,
    pub(super) base: String,
    pub(super) new: String,
    pub(super) facts: Vec<Fact>,
    pub(super) left_out: usize,
}

impl<'a> RunPart<'a> {
    /// Files that cannot be read are listed in `faults`.
    pub(super) fn of(subject: &Subject<'a>, run: &RunView<'a>, faults: &mut Vec<String>) -> Self {
        let launches = subject.run.map_or(&[][..], |file| &file.launches);
        let read = subject
            .folder
            .map(|folder| snapshots(&folder.snapshots_table(), launches));
        let snapshots =
            read.and_then(|read| read.map_err(|error| faults.push(error.to_string())).ok());
        let description = run.setting("description");
        let (of_subject, facts) = header(subject);
        let is_search = run
            .setting("sweep.search")
            .is_some_and(|search| !search.is_empty());
        Self {
            label: run.label.clone(),
            again: subject
                .folder
                .filter(|folder| folder.experiment().is_file())
                .map(|folder| again(folder, is_search)),
            is_search,
            description: description.filter(|text| !text.is_empty()),
            verdict: run.ranking().verdict(),
            counts: counts(subject.table, subject.planned()),
            not_completed: NotCompleted::of(subject.table, subject.folder, subject.planned())
                .entries(),
            subject: of_subject,
            facts,
            launches: subject
                .run
                .map(|file| file.launches.iter().map(LaunchPart::of).collect())
                .unwrap_or_default(),
            snapshots: snapshots.unwrap_or_default(),
            experiment: subject.experiment,
        }
    }
}

/// Returns the command that runs it again; a search is searched again.
fn again(folder: &RunFolder, is_search: bool) -> String {
    let path = |path: &Path| match path.to_string_lossy() {
        here if here.is_empty() => ".".to_owned(),
        named => shell_word(&named),
    };
    match is_search {
        true => format!("kiln tune {} --fresh", path(&folder.experiment())),
        false => format!("kiln reproduce {}", path(folder.path())),
    }
}

/// The facts that a reader needs before any number, and the machine and versions.
fn header(subject: &Subject<'_>) -> (Facts, Facts) {
    let rows = || subject.table.rows.iter().map(|row| &*row.fixed);
    let launch = subject.run.and_then(|file| file.newest_at_work());
    let git = launch.and_then(|launch| launch.git.as_ref()).map(|git| {
        let short: String = git.commit.chars().take(12).collect();
        format!("{short}{}", if git.dirty { ", with changes" } else { "" })
    });
    let device = |row: &kiln_core::record::TrialRow| {
        row.device_name
            .clone()
            .or_else(|| (!row.is_on_gpu()).then(|| "CPU".to_owned()))
    };
    let of_subject = [
        ("model", distinct(rows().map(|row| row.model_kind.clone()))),
        ("data", distinct(rows().map(|row| row.data_kind.clone()))),
        (
            "precision",
            distinct(rows().map(|row| row.precision.clone())),
        ),
        ("device", distinct(rows().filter_map(device))),
        (
            "started",
            rows()
                .filter_map(|row| row.started_utc.clone())
                .min()
                .unwrap_or_default(),
        ),
    ];
    let of_machine = [
        (
            "driver",
            distinct(rows().filter_map(|row| row.driver.clone())),
        ),
        ("engine", distinct(rows().map(|row| row.engine.clone()))),
        (
            "libtorch",
            distinct(rows().filter_map(|row| row.libtorch.clone())),
        ),
        ("host", launch.map(host).unwrap_or_default()),
        (
            "kiln",
            launch
                .map(|launch| launch.versions.kiln.clone())
                .unwrap_or_default(),
        ),
        ("git", git.unwrap_or_default()),
        ("table", subject.name.to_owned()),
    ];
    let known = |facts: &[(&'static str, String)]| {
        let known = facts.iter().filter(|(_, value)| !value.is_empty());
        known.cloned().collect()
    };
    (known(&of_subject), known(&of_machine))
}

/// Processor, cores and memory of the machine.
fn host(launch: &Launch) -> String {
    let machine = |path: &[&str]| {
        path.iter()
            .try_fold(&launch.machine, |value, key| value.get(key))
            .cloned()
    };
    let cpu = machine(&["cpu", "model"]).and_then(|value| value.as_str().map(str::to_owned));
    let cores = machine(&["cpu", "usable_cores"]).and_then(|value| value.as_u64());
    let memory = machine(&["memory", "total", "value"]).and_then(|value| value.as_u64());
    let host = [
        cpu,
        cores.map(|cores| counted(cores as usize, "core")),
        memory.map(|bytes| Bytes(bytes).to_string()),
    ];
    host.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn distinct(values: impl Iterator<Item = String>) -> String {
    let mut seen = HashSet::new();
    let names: Vec<String> = values.filter(|value| seen.insert(value.clone())).collect();
    match names.len() {
        count if count > MOST_NAMES => format!(
            "{} and {} more",
            names[..MOST_NAMES].join(", "),
            count - MOST_NAMES
        ),
        _ => names.join(", "),
    }
}

impl LaunchPart {
    fn of(launch: &Launch) -> Self {
        let value = serde_json::to_value(launch).unwrap_or_default();
        let command = launch.command_line.join(" ");
        let how = launch
            .ended
            .as_ref()
            .map_or("not ended cleanly".to_owned(), |ended| ended.how.clone());
        // A short command line says most.
        let leaves = leaves(value, &|_| false)
            .into_iter()
            .filter(|(key, _)| key != "command_line");
        Self {
            title: format!(
                "Launch {}: {}, {how}",
                launch.launch,
                to_the_second(&launch.anchor.started_utc)
            ),
            leaves: [("command_line".to_owned(), command)]
                .into_iter()
                .chain(leaves.map(|(key, value)| (key, show(&value))))
                .collect(),
        }
    }
}

/// The host and the devices of the last launch, and what other launches saw on its node; nothing where
/// there is no table.
fn snapshots(path: &Path, launches: &[Launch]) -> Result<Vec<SnapshotPart>, TableError> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let rows = at_last_launch(path, launches)?;
    let mut devices: Vec<SnapshotOfDevice> = Vec::new();
    for row in rows {
        let place = devices
            .iter()
            .position(|other| other.device == row.device)
            .unwrap_or_else(|| {
                devices.push(SnapshotOfDevice {
                    device: row.device.clone(),
                    ..SnapshotOfDevice::default()
                });
                devices.len() - 1
            });
        let SnapshotOfDevice {
            launch, sections, ..
        } = &mut devices[place];
        *launch = row.launch.max(*launch);
        let field = (row.field.clone(), cell_text(&row));
        match sections
            .iter_mut()
            .find(|section| section.name == row.section)
        {
            Some(section) => section.fields.push(field),
            None => sections.push(RecordSection {
                name: row.section,
                fields: vec![field],
            }),
        }
    }
    let part = |of: SnapshotOfDevice| SnapshotPart {
        title: format!("Snapshot of {} at launch {}", of.device, of.launch),
        sections: of.sections,
    };
    Ok(devices.into_iter().map(part).collect())
}

/// A device and its fields, and the last launch at which one of them was new.
#[derive(Default)]
struct SnapshotOfDevice {
    device: String,
    launch: u64,
    sections: Vec<RecordSection>,
}

/// The value with its unit, or the reason why it is missing.
fn cell_text(row: &SnapshotRow) -> String {
    match (&row.value, &row.reason) {
        (Some(value), _) => format!(
            "{value}{}",
            row.unit
                .as_ref()
                .map(|unit| format!(" {unit}"))
                .unwrap_or_default()
        ),
        (None, Some(reason)) => format!("– ({reason})"),
        (None, None) => "–".to_owned(),
    }
}

/// A short name for each run, different for each: the experiment's, else the run's, else where its
/// table lies.
pub(super) fn labels(subjects: &[Subject<'_>]) -> Vec<String> {
    let experiment = |subject: &Subject<'_>| subject.run.map(|file| file.experiment.clone());
    let folder = |subject: &Subject<'_>| {
        let run = subject.folder?.path().canonicalize().ok()?;
        Some(
            format!(
                "{} {}",
                experiment(subject).unwrap_or_default(),
                run.file_name()?.to_string_lossy()
            )
            .trim()
            .to_owned(),
        )
    };
    let distinct = |names: Option<Vec<String>>| {
        names.filter(|names| names.iter().collect::<HashSet<_>>().len() == names.len())
    };
    let by_experiment = || distinct(subjects.iter().map(experiment).collect());
    let by_folder = || distinct(subjects.iter().map(folder).collect());
    let by_name = || {
        distinct(
            subjects
                .iter()
                .map(|subject| Some(subject.name.to_owned()))
                .collect(),
        )
    };
    by_experiment()
        .or_else(by_folder)
        .or_else(by_name)
        .unwrap_or_else(|| {
            // The same table twice.
            subjects
                .iter()
                .enumerate()
                .map(|(place, subject)| format!("{} ({})", subject.name, place + 1))
                .collect()
        })
}

pub(super) fn title(runs: &[RunView<'_>]) -> String {
    let names: BTreeSet<String> = runs.iter().map(|run| run.label.clone()).collect();
    distinct(names.into_iter())
}

/// Machine and versions of each run beside the first.
pub(super) fn differences(runs: &[RunView<'_>]) -> Vec<Differences> {
    let of = |run: &RunView<'_>| {
        // Settings have a table of their own.
        let mut found = facts([runs[0].file, run.file], [None, None], [None; 2]);
        let summary = format!(
            "{} of what they recorded differ, {}",
            found.len(),
            kinds(&found)
        );
        let left_out = found.len().saturating_sub(MOST_FACTS);
        found.truncate(MOST_FACTS);
        Differences {
            title: format!("{} and {}", runs[0].label, run.label),
            summary,
            base: runs[0].label.clone(),
            new: run.label.clone(),
            facts: found,
            left_out,
        }
    };
    runs.iter()
        .skip(1)
        .map(of)
        .filter(|of| !of.facts.is_empty())
        .collect()
}

/// For runs whose rows differ in what makes timings comparable, beyond what each of them sweeps.
pub(super) fn unlike(runs: &[RunView<'_>]) -> Vec<String> {
    let values = |run: &RunView<'_>, field: RowFact| {
        let rows = run
            .table
            .last_attempts()
            .into_iter()
            .map(|row| &row.fixed)
            .filter(|row| row.is_completed());
        rows.map(|row| field.of(row)).collect::<BTreeSet<String>>()
    };
    let of = |run: &RunView<'_>| {
        let differ = |field: &RowFact| {
            let (base, new) = (values(&runs[0], *field), values(run, *field));
            !base.is_empty() && !new.is_empty() && base != new
        };
        let fields: Vec<&str> = RowFact::ALL
            .into_iter()
            .filter(differ)
            .map(RowFact::name)
            .collect();
        let said = format!(
            "{} and {} differ in {}: their numbers are not comparable",
            runs[0].label,
            run.label,
            fields.join(", ")
        );
        (!fields.is_empty()).then_some(said)
    };
    runs.iter().skip(1).filter_map(of).collect()
}

/// A time of day, `2026-11-23T15:04:57Z`; a text of another form stays.
fn to_the_second(time: &str) -> String {
    match time.split_once('.') {
        Some((seconds, rest)) if rest.ends_with('Z') => format!("{seconds}Z"),
        _ => time.to_owned(),
    }
}

/// `of experiment, git, libraries`.
fn kinds(found: &[Fact]) -> String {
    let mut kinds: Vec<&str> = found
        .iter()
        .map(|fact| fact.what.split('.').next().unwrap_or_default())
        .collect();
    kinds.dedup();
    format!("of {}", kinds.join(", "))
}
