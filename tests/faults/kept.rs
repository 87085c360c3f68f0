//! The run that `kiln run --keep` makes of another one: it appears whole or not at all, and all its
//! rows are synced at once.

use std::{collections::BTreeSet, fs, process::Command};

use crate::{
    interposer::{Disturbance, Fault, Kind, Page, Record, Role, calls, records},
    rows,
    scene::{SCRIPTED, Scene, TWELVE, Workload},
};

/// A finished run, and the name of its folder.
fn finished(workload: Workload) -> (Scene, String) {
    let scene = Scene::new(workload);
    let launch = scene.launch(&[], |_| ());
    assert_eq!(launch.status, Some(0), "{}", launch.words());
    let run = fs::canonicalize(scene.run_folder()).unwrap();
    let name = run.file_name().unwrap().to_str().unwrap().to_owned();
    (scene, name)
}

/// The command that keeps all trials of a run in a new one, with the library.
fn keep(scene: &Scene, name: &str, page: &Page) -> Command {
    let mut command = scene.kiln(&["run", "x.yaml", "--keep", &format!("results/x/{name}")]);
    page.attach(&mut command, &scene.work(""));
    command
}

/// The calls of an undisturbed `kiln run --keep`.
fn recorded(workload: Workload) -> Vec<Record> {
    let (scene, name) = finished(workload);
    let page = Page::new(scene.path("logs/page"));
    let log = scene.path("logs/calls");
    fs::write(&log, "").unwrap();
    let ended = keep(&scene, &name, &page).env("FAULT_LOG", &log).output();
    let ended = ended.unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let old = rows::read(&scene.work("results/x").join(&name).join("trials.csv"));
    assert_eq!(rows::read(&scene.table()).len(), old.len());
    assert_eq!(runs(&scene).len(), 2);
    records(&log)
}

/// The names of the runs that are there.
fn runs(scene: &Scene) -> BTreeSet<String> {
    let entries = fs::read_dir(scene.work("results/x")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| !name.starts_with('.') && name != "latest")
        .collect()
}

#[test]
fn kept_rows_are_synced_at_once() {
    let records = recorded(TWELVE);
    let of_table = records
        .iter()
        .filter(|record| record.kind == Kind::Sync && record.path.ends_with("/trials.csv"));
    let syncs = of_table.count();
    assert!((1..12).contains(&syncs), "{syncs} syncs of twelve rows");
}

#[test]
fn a_run_that_keeps_trials_is_whole_or_not_there_after_a_kill_at_each_call() {
    let calls = calls(&recorded(SCRIPTED));
    let (scene, name) = finished(SCRIPTED);
    for call in calls.iter().filter(|call| call.role == Role::Parent) {
        let page = Page::new(scene.path("logs/page"));
        let disturbance = Disturbance {
            role: Role::Parent,
            at: call.number,
            fault: Fault::KillSelf,
            is_lasting: false,
        };
        let mut command = keep(&scene, &name, &page);
        disturbance.apply(&mut command);
        command.output().unwrap();
        for run in runs(&scene).iter().filter(|run| **run != name) {
            let folder = scene.work("results/x").join(run);
            let kept = rows::read(&folder.join("trials.csv")).len();
            let trials = fs::read_dir(folder.join("trials")).unwrap().count();
            assert_eq!((kept, trials), (3, 3), "{run} after a kill at {call:?}");
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
