//! `kiln rm`: removes runs and mends `latest`.

use std::{fs, process::Command};

use crate::scripted_child::{Ended, Place, wait_until};

fn rm(place: &Place, arguments: &[&str]) -> Ended {
    Ended::of(place.kiln(&[&["rm"], arguments].concat()).output().unwrap())
}

/// A place with this many runs of `x`, and their names, the newest first.
fn with_runs(count: usize) -> (Place, Vec<String>) {
    let place = Place::with("train: {steps: 10}");
    let mut names = Vec::new();
    for _ in 0..count {
        place.run("completes", &["--fresh"]);
        let latest = fs::read_link(place.latest()).unwrap();
        names.insert(0, latest.to_str().unwrap().to_owned());
    }
    (place, names)
}

#[test]
fn a_run_is_removed_by_its_short_name_and_latest_follows() {
    let (place, names) = with_runs(3);
    let removed = rm(&place, &["x", "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert!(
        removed
            .stdout
            .starts_with(&format!("removed results/x/{} (", names[0])),
        "{removed:?}"
    );
    assert_eq!(
        fs::read_link(place.latest()).unwrap().to_str(),
        Some(names[1].as_str())
    );
    assert_eq!(
        rm(&place, &["x~1", "results/x/latest", "--yes"]).status,
        Some(0)
    );
    assert_eq!(place.runs(), 0);
    assert!(place.latest().symlink_metadata().is_err());
    let none = rm(&place, &["x", "--yes"]);
    assert_eq!(none.status, Some(2));
    assert!(
        none.stderr.contains("there are no runs under results"),
        "{none:?}"
    );
}

#[test]
fn a_short_name_removes_nothing_where_the_newest_record_cannot_be_read() {
    let (place, names) = with_runs(2);
    let record = format!("results/x/{}/run.json", names[0]);
    fs::write(place.path(&record), "{\"kiln_run\": 1, ").unwrap();
    for named in ["x", "x~1", "latest"] {
        let refused = rm(&place, &[named, "--yes"]);
        assert_eq!(refused.status, Some(2), "{named}: {refused:?}");
        assert!(
            refused.stderr.contains(&record) && refused.stderr.contains("name the run's folder"),
            "{refused:?}"
        );
    }
    let folder = format!("results/x/{}", names[0]);
    let removed = rm(&place, &[&folder, "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert_eq!(
        fs::read_link(place.latest()).unwrap().to_str(),
        Some(names[1].as_str())
    );
}

#[test]
fn the_only_run_is_removed_by_its_short_name_whatever_its_record_says() {
    let (place, names) = with_runs(1);
    fs::write(place.path(&format!("results/x/{}/run.json", names[0])), "{").unwrap();
    let removed = rm(&place, &["x", "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
}

#[test]
fn a_folder_with_the_name_of_an_experiment_does_not_hide_its_runs() {
    let (place, names) = with_runs(1);
    fs::create_dir(place.path("x")).unwrap();
    let removed = rm(&place, &["x", "--yes"]);
    assert!(
        removed
            .stdout
            .starts_with(&format!("removed results/x/{} (", names[0])),
        "{removed:?}"
    );
    let none = rm(&place, &["x", "--yes"]);
    assert!(
        none.status == Some(2) && none.stderr.contains("not a run's folder"),
        "{none:?}"
    );
    assert!(place.path("x").is_dir());
}

#[test]
fn a_rerun_is_told_by_ls_and_removed_as_a_whole() {
    let (place, names) = with_runs(1);
    let rerun = "results/rerun-20261123T160618Z";
    fs::create_dir_all(place.path(&format!("{rerun}/base"))).unwrap();
    fs::rename(
        place.path("results/x"),
        place.path(&format!("{rerun}/base/x")),
    )
    .unwrap();
    let listed = Ended::of(place.kiln(&["ls"]).output().unwrap());
    let told = format!(
        "1 folder of `kiln compare --rerun` not listed: of the newest, `kiln ls {rerun}/base`"
    );
    assert!(listed.stderr.contains(&told), "{listed:?}");
    let refused = rm(&place, &[rerun]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("add `--yes`"),
        "{refused:?}"
    );
    let removed = rm(&place, &["rerun-20261123T160618Z", "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    let run = format!("removed {rerun}/base/x/{} (", names[0]);
    assert!(
        removed.stdout.starts_with(&run) && removed.stdout.ends_with(&format!("removed {rerun}\n")),
        "{removed:?}"
    );
    assert!(!place.path(rerun).exists());
}

#[test]
fn nothing_is_removed_without_a_yes() {
    let (place, _) = with_runs(1);
    let refused = rm(&place, &["latest"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("add `--yes`"), "{refused:?}");
    let answered = |answer: &str| {
        let mut command =
            place.commands_in_a_terminal(&format!("printf '{answer}\\n' | \"$PROGRAM\" rm latest"));
        command.output().unwrap()
    };
    // A pipe is not a terminal, so nobody is asked.
    answered("y");
    assert_eq!(place.runs(), 1);
}

#[test]
fn a_running_run_stays() {
    let (place, names) = with_runs(1);
    let mut running = place
        .kiln(&["run", "x.yaml", "--fresh"])
        .env("SCRIPTED_CHILD", "waits")
        .spawn()
        .unwrap();
    wait_until("the second run has a trial", || {
        let latest = fs::read_link(place.latest()).unwrap();
        latest.to_str() != Some(names[0].as_str()) && !place.attempts().is_empty()
    });
    let refused = rm(&place, &["x", "--yes"]);
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("this run is running (process"),
        "{refused:?}"
    );
    assert_eq!(rm(&place, &["x~1", "--yes"]).status, Some(0));
    place.release();
    assert!(running.wait().unwrap().success());
    assert_eq!(place.runs(), 1);
}

#[test]
fn what_git_tracks_stays_unless_forced() {
    let (place, names) = with_runs(1);
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(place.path("."))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "-q"]);
    git(&["add", &format!("results/x/{}/trials.csv", names[0])]);
    let refused = rm(&place, &["x", "--yes"]);
    assert_eq!(refused.status, Some(2));
    assert!(
        refused
            .stderr
            .contains("git tracks 1 file of this run; `--force`"),
        "{refused:?}"
    );
    assert_eq!(place.runs(), 1);
    assert_eq!(rm(&place, &["x", "--yes", "--force"]).status, Some(0));
    assert_eq!(place.runs(), 0);
}

#[test]
fn what_is_no_run_is_refused() {
    let (place, _) = with_runs(1);
    fs::create_dir(place.path("results/x/notes")).unwrap();
    for named in [
        "results",
        "results/x",
        "results/x/notes",
        ".",
        "/",
        "x.yaml",
        "x~7",
        "y",
    ] {
        let refused = rm(&place, &[named, "--yes", "--force"]);
        assert_eq!(refused.status, Some(2), "{named}: {refused:?}");
    }
    assert_eq!(place.runs(), 2);
}
