//! A run that nothing disturbs: its losses, its calls and how long it takes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    interposer::{Page, Record, records},
    listing::list,
    rows,
    scene::{Scene, Verb, Workload},
};

/// Cells of a completed row that no fault may change.
const SAME: [&str; 3] = ["steps", "train_loss", "valid_loss"];

/// Result of a workload.
pub(crate) struct Undisturbed {
    /// The ids of its trials, in the order of the plan.
    pub(crate) trials: Vec<String>,
    /// Loss by trial and step.
    pub(crate) losses: Losses,
    /// Cells by trial.
    pub(crate) cells: BTreeMap<String, Vec<String>>,
    pub(crate) records: Vec<Record>,
    pub(crate) time: Duration,
    /// Number of events on standard output.
    pub(crate) events: usize,
    /// Its results: each path below them, and the content.
    pub(crate) folder: BTreeSet<String>,
}

pub(crate) type Losses = BTreeMap<(String, u64), String>;

static KNOWN: Mutex<Option<HashMap<&'static str, Arc<Undisturbed>>>> = Mutex::new(None);

/// The undisturbed run of a workload; made once.
pub(crate) fn of(workload: Workload) -> Arc<Undisturbed> {
    let mut known = KNOWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = known.get_or_insert_default();
    Arc::clone(
        known
            .entry(workload.name)
            .or_insert_with(|| Arc::new(make(workload))),
    )
}

/// Files of a run: the path below its folder, and the content.
type Files = Vec<(PathBuf, Vec<u8>)>;

/// The finished run that a workload reproduces; made once.
pub(crate) fn original(workload: Workload) -> Arc<Files> {
    static MADE: Mutex<Option<HashMap<&'static str, Arc<Files>>>> = Mutex::new(None);
    let mut made = MADE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let files = made
        .get_or_insert_default()
        .entry(workload.name)
        .or_insert_with(|| {
            let scene = Scene::new(Workload {
                verb: Verb::Run,
                ..workload
            });
            let launch = scene.launch(&[], |_| ());
            assert_eq!(launch.status, Some(0), "{}", launch.words());
            let mut files = Files::new();
            let folder = fs::canonicalize(scene.run_folder()).unwrap();
            read_files(&folder, &folder, &mut files);
            Arc::new(files)
        });
    Arc::clone(files)
}

fn read_files(root: &Path, folder: &Path, files: &mut Files) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            read_files(root, &path, files);
        } else if kind.is_file() {
            let name = path.strip_prefix(root).unwrap().to_owned();
            files.push((name, fs::read(&path).unwrap()));
        }
    }
}

fn make(workload: Workload) -> Undisturbed {
    let scene = Scene::new(workload);
    // The first run reads programs and libraries into memory.
    scene.launch(&[], |_| ());
    fs::remove_dir_all(scene.work("results")).unwrap();
    let scene = Scene::new(workload);
    let begun = Instant::now();
    scene.launch(&[], |_| ());
    let time = begun.elapsed();
    let scene = Scene::new(workload);
    let page = Page::new(scene.path("logs/page"));
    let log = scene.path("logs/calls");
    fs::write(&log, "").unwrap();
    let launch = scene.launch(&[], |command| {
        page.attach(command, &scene.work(""));
        command.env("FAULT_LOG", &log);
    });
    assert_eq!(
        launch.status,
        Some(0),
        "the undisturbed run fails: {}",
        launch.words()
    );
    let rows = rows::read(&scene.table());
    let trials: Vec<String> = rows.iter().map(|row| row.key.0.clone()).collect();
    assert!(rows.iter().all(|row| row.outcome() == "completed"));
    Undisturbed {
        folder: content(&scene.work("results")),
        losses: losses(&scene.run_folder()),
        cells: rows
            .iter()
            .map(|row| (row.key.0.clone(), cells(row)))
            .collect(),
        trials,
        records: records(&log),
        time,
        events: rows::events(&launch.stdout).len(),
    }
}

/// The cells of a row that must be those of an undisturbed run.
pub(crate) fn cells(row: &rows::Row) -> Vec<String> {
    SAME.iter()
        .map(|column| row.cells.get(*column).cloned().unwrap_or_default())
        .collect()
}

/// The losses in all `steps.csv` of a run; a step of several attempts has all its losses, joined.
pub(crate) fn losses(run: &Path) -> Losses {
    let mut found = Losses::new();
    let folders = |path: &Path| {
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    for trial in folders(&run.join("trials")) {
        let id = trial.file_name().unwrap().to_string_lossy().into_owned();
        for attempt in folders(&trial) {
            for (step, loss) in steps(&attempt.join("steps.csv")) {
                let known = found
                    .entry((id.clone(), step))
                    .or_insert_with(|| loss.clone());
                if *known != loss {
                    known.push_str(" and ");
                    known.push_str(&loss);
                }
            }
        }
    }
    found
}

/// The steps of a table; a torn last line is not one of them, and as for kiln neither is a line in
/// which a power failure left zeros, nor what follows it.
fn steps(path: &Path) -> Vec<(u64, String)> {
    // A hostile child makes a pipe of it.
    if !path.is_file() {
        return Vec::new();
    }
    let text = fs::read(path).unwrap_or_default();
    let undamaged = text.iter().position(|byte| *byte == 0);
    let whole = text[..undamaged.unwrap_or(text.len())]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(&text[..whole]);
    reader
        .deserialize::<HashMap<String, String>>()
        .filter_map(Result::ok)
        .filter_map(|row| Some((row.get("step")?.parse().ok()?, row.get("loss")?.clone())))
        .collect()
}

/// Each path below a folder with its content, without modes.
pub(crate) fn content(folder: &Path) -> BTreeSet<String> {
    list(folder)
        .into_iter()
        .map(|(path, about)| {
            let path = path
                .strip_prefix(folder)
                .unwrap_or(&path)
                .display()
                .to_string();
            let content = about.split_once(' ').map_or("", |(_, content)| content);
            format!("{path} {content}")
        })
        .collect()
}
