//! A results folder from somebody else: links in place of a run's files and folders, which point at
//! files outside of it. kiln may refuse the run or go on; it changes nothing behind a link.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    pool::try_each,
    scene::{CHECKPOINTS, FLEX, Scene, Workload, kill},
    undisturbed,
};

/// Where a link lies, below the run's folder; `T2` and `T3` are the trials that have not ended.
const PLACES: [&str; 24] = [
    "trials/T2/checkpoint",
    "trials/T3/checkpoint",
    "trials/T2",
    "trials/T3",
    "trials/T2/2",
    "trials/T2/trial.yaml",
    "trials/T2/.trial.yaml.new",
    "trials",
    ".reserve",
    ".run.json.new",
    ".experiment.yaml.new",
    ".snapshot-2.txt.new",
    "snapshot-2.txt",
    "samples.csv",
    "snapshots.csv",
    "trials.csv",
    "run.json",
    "experiment.yaml",
    "../latest",
    "../.new-latest",
    "../.new-20200101T000000Z-nogit",
    "../.kiln-lock",
    "../../.gitignore",
    "../../../locks",
];

/// Target of a link.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// A file or folder of somebody else.
    Foreign,
    /// A copy of what was in this place.
    Copy,
    /// Nothing: a file that is written there is new.
    Nothing,
}

/// A run whose first trial has ended and whose second one was killed with its parent.
fn unfinished(workload: Workload) -> Scene {
    let scene = Scene::new(workload);
    let mut running = scene.start(&[], |command| {
        command.env("SCRIPTED_CHILD", "waits_for_turn");
    });
    if workload.is_real {
        running.wait_until(|running| running.has_said("trial_started", 2));
    } else {
        running.wait_until(|_| scene.attempts_with("at-work") == 1);
        scene.give_turn();
        running.wait_until(|_| scene.attempts_with("at-work") == 2);
    }
    kill(running.pid(), "KILL");
    running.end();
    scene.check_processes();
    scene
}

/// The canary as the target of a link, with names like those in a run.
fn target(scene: &Scene, path: &Path, of: Target) -> PathBuf {
    let canary = scene.path("canary");
    let is_folder = path.is_dir()
        || ["checkpoint", "trials", "T2", "T3", "2", "locks", "latest"]
            .iter()
            .any(|name| path.ends_with(name))
        || path.to_string_lossy().ends_with("nogit");
    match (of, is_folder) {
        (Target::Nothing, _) => canary.join("a-new-name"),
        (Target::Foreign, true) => {
            for folder in ["folder/4", "folder/.4.new"] {
                fs::create_dir_all(canary.join(folder)).unwrap();
                fs::write(canary.join(folder).join("precious"), "kept\n").unwrap();
            }
            canary.join("folder")
        }
        (Target::Foreign, false) => canary.join("file"),
        (Target::Copy, _) => {
            let copy = canary.join("copy");
            let status = Command::new("cp")
                .arg("-a")
                .args([path, &copy])
                .status()
                .unwrap();
            assert!(status.success());
            copy
        }
    }
}

fn attempt(workload: Workload, place: &str, of: Target, figures: &Figures) -> Vec<Violation> {
    let scene = unfinished(workload);
    let trials = &undisturbed::of(workload).trials;
    let run = fs::canonicalize(scene.run_folder()).unwrap();
    let path = run.join(place.replace("T2", &trials[1]).replace("T3", &trials[2]));
    let was_there = fs::symlink_metadata(&path).is_ok();
    if matches!(of, Target::Copy) && !was_there {
        return scene.violations.take();
    }
    let target = target(&scene, &path, of);
    let aside = scene.path("logs/aside");
    if was_there {
        fs::rename(&path, &aside).unwrap();
    } else {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    symlink(&target, &path).unwrap();
    add(&figures.faults);
    *scene.untouched.borrow_mut() = scene.outside();
    // A person has changed the run, so the rows behind a link need not be read.
    let (kept, announced) = (scene.kept.take(), scene.announced.take());
    scene.launch(&[], |_| ());
    scene.check_outside();
    if fs::read_link(&path).is_ok_and(|found| found == target) {
        fs::remove_file(&path).unwrap();
        if was_there {
            fs::rename(&aside, &path).unwrap();
        }
    }
    scene.kept.borrow_mut().extend(kept);
    scene.announced.borrow_mut().extend(announced);
    *scene.untouched.borrow_mut() = scene.outside();
    scene.finish(Excuse::default())
}

fn cases() -> Vec<(String, (&'static str, Target))> {
    let targets = [Target::Foreign, Target::Copy, Target::Nothing];
    PLACES
        .iter()
        .flat_map(|place| targets.map(|of| (format!("link {place} to {of:?}"), (*place, of))))
        .collect()
}

#[test]
fn nothing_behind_a_link_is_changed() {
    let figures = Figures::new();
    let tried = try_each(cases(), |_, (place, of)| {
        attempt(CHECKPOINTS, place, of, &figures)
    });
    conclude("links", &figures, &tried);
}

#[test]
fn a_training_changes_nothing_behind_a_link() {
    let figures = Figures::new();
    let mut cases = cases();
    if !crate::form::is_long() {
        cases.retain(|(name, _)| name.contains("T2"));
    }
    let tried = try_each(cases, |_, (place, of)| attempt(FLEX, place, of, &figures));
    conclude("links flex", &figures, &tried);
}
