//! `kiln rm`: removes runs and mends `latest`, or removes checkpoints alone.

use std::{fs, process::Command};

use kiln_core::{plan::TrialId, record::Checkpoints};
use serde_json::json;

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
fn a_run_behind_a_link_is_resumed_listed_and_not_removed() {
    let (place, names) = with_runs(1);
    let run = place.path(&format!("results/x/{}", names[0]));
    let elsewhere = place.path("elsewhere");
    fs::rename(&run, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &run).unwrap();
    let again = place.run("completes", &[]);
    assert_eq!((again.status, place.runs()), (Some(0), 0), "{again:?}");
    let listed = Ended::of(place.kiln(&["ls"]).output().unwrap());
    assert!(listed.stdout.contains(&names[0]), "{listed:?}");
    let rerun = place.run("completes", &["--rerun", "completed"]);
    assert_eq!((rerun.status, place.runs()), (Some(0), 0), "{rerun:?}");
    assert_eq!(place.rows().len(), 2);
    for named in ["x", run.to_str().unwrap(), "results/x/latest"] {
        let refused = rm(&place, &[named, "--yes"]);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("it is a link to "), "{refused:?}");
    }
    assert!(elsewhere.join("trials.csv").is_file() && run.is_symlink());
}

#[test]
fn the_folder_that_the_link_of_a_run_leads_to_is_not_removed() {
    let (place, names) = with_runs(1);
    let run = place.path(&format!("results/x/{}", names[0]));
    let elsewhere = place.path(&format!("disk/x/{}", names[0]));
    fs::create_dir_all(place.path("disk/x")).unwrap();
    fs::rename(&run, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &run).unwrap();
    let refused = rm(&place, &[elsewhere.to_str().unwrap(), "--yes"]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let words = format!("results/x/{} is a link to this folder", names[0]);
    assert!(refused.stderr.contains(&words), "{refused:?}");
    assert!(elsewhere.join("trials.csv").is_file());
    fs::remove_file(&run).unwrap();
    let removed = rm(&place, &[elsewhere.to_str().unwrap(), "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert!(!elsewhere.exists());
}

#[test]
fn nothing_is_removed_begun_or_left_unsaid_where_runs_cannot_be_listed() {
    let (place, names) = with_runs(1);
    // Whether this folder is a run cannot be told.
    let own = |experiment: &str| {
        let own = place.path(&format!("results/{experiment}/own"));
        fs::create_dir_all(&own).unwrap();
        std::os::unix::fs::symlink("run.json", own.join("run.json")).unwrap();
    };
    own("newer");
    let refused = rm(&place, &["latest", "--yes"]);
    assert_eq!((refused.status, place.runs()), (Some(3), 1), "{refused:?}");
    let listed = Ended::of(place.kiln(&["ls"]).output().unwrap());
    assert!(
        listed.status == Some(0) && listed.stdout.contains(&names[0]),
        "{listed:?}"
    );
    for told in [&refused, &listed] {
        assert!(
            told.stderr.contains("results/newer/own/run.json: "),
            "{told:?}"
        );
    }
    own("x");
    let refused = place.run("completes", &["--fresh"]);
    assert_eq!((refused.status, place.runs()), (Some(3), 2), "{refused:?}");
    assert!(
        refused.stderr.contains("results/x/own/run.json: "),
        "{refused:?}"
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
    let told = format!("1 folder of `kiln compare --rerun` is not listed: {rerun}\n");
    assert!(listed.stderr.contains(&told), "{listed:?}");
    let whole = Ended::of(place.kiln(&["ls", rerun]).output().unwrap());
    let told = format!(
        "{rerun} has the runs of `kiln compare --rerun`; to list those of a side: `kiln ls {rerun}/base`\n"
    );
    assert_eq!((whole.status, whole.stdout), (Some(0), told));
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
fn a_rerun_without_runs_is_not_removed_without_a_yes() {
    let (place, _) = with_runs(1);
    let rerun = "results/rerun-20261123T160618Z";
    let notes = place.path(&format!("{rerun}/base/notes.txt"));
    fs::create_dir_all(place.path(&format!("{rerun}/base"))).unwrap();
    fs::write(&notes, "mine").unwrap();
    let refused = rm(&place, &[rerun]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("add `--yes`"),
        "{refused:?}"
    );
    assert!(notes.exists());
    let removed = rm(&place, &[rerun, "--yes"]);
    assert_eq!(
        (removed.status, removed.stdout),
        (Some(0), format!("removed {rerun}\n"))
    );
    assert!(!place.path(rerun).exists());
}

#[test]
fn nothing_is_removed_without_a_yes() {
    let (place, names) = with_runs(1);
    let refused = rm(&place, &["latest"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("add `--yes`"), "{refused:?}");
    let told = format!("would remove results/x/{} (", names[0]);
    assert!(refused.stderr.contains(&told), "{refused:?}");
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
fn a_folder_name_of_two_experiments_removes_neither() {
    let (place, names) = with_runs(1);
    let other = format!("results/y/{}", names[0]);
    fs::create_dir_all(place.path(&other)).unwrap();
    let table = format!("results/x/{}/trials.csv", names[0]);
    fs::copy(
        place.path(&table),
        place.path(&format!("{other}/trials.csv")),
    )
    .unwrap();
    let name = names[0].as_str();
    let commands: [&[&str]; 2] = [&["rm", name, "--yes"], &["report", name]];
    for command in commands {
        let refused = Ended::of(place.kiln(command).output().unwrap());
        assert_eq!(refused.status, Some(2), "{refused:?}");
        for experiment in ["x", "y"] {
            let path = format!("  results/{experiment}/{}\n", names[0]);
            assert!(refused.stderr.contains(&path), "{refused:?}");
        }
    }
    let removed = rm(&place, &[&other, "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
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

/// Three trials.
const THREE: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2, 3]}}";

/// Gives the trials of the newest run checkpoints with these validation losses; returns their ids.
fn with_checkpoints(place: &Place, losses: &[Option<f64>]) -> Vec<String> {
    let ids = place.column("trial");
    assert_eq!(ids.len(), losses.len());
    for (id, loss) in ids.iter().zip(losses) {
        let folder = place.latest().join(format!("trials/{id}/checkpoint"));
        let draft = Checkpoints::new(folder, TrialId(id.clone()))
            .begin(10)
            .unwrap()
            .unwrap();
        fs::write(draft.folder().join("model.safetensors"), [1; 1000]).unwrap();
        fs::write(draft.folder().join("training.safetensors"), [2; 2000]).unwrap();
        draft.finish(*loss, json!({})).unwrap();
    }
    ids
}

/// The trials of the newest run that have checkpoints, in the order of `ids`.
fn kept(place: &Place, ids: &[String]) -> Vec<bool> {
    let folder = |id: &String| place.latest().join(format!("trials/{id}/checkpoint"));
    ids.iter().map(|id| folder(id).exists()).collect()
}

#[test]
fn weights_go_but_those_of_the_best_and_everything_else_stays() {
    let place = Place::with(THREE);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let ids = with_checkpoints(&place, &[Some(2.0), Some(1.0), Some(3.0)]);
    let table = place.lines();
    let refused = rm(&place, &["x", "--weights"]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("add `--yes`"),
        "{refused:?}"
    );
    let removed = rm(&place, &["x", "--weights", "--but", "2", "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert!(
        removed
            .stdout
            .starts_with("removed the checkpoints of 1 trial of results/x/20")
            && removed.stdout.contains(" KiB)"),
        "{removed:?}"
    );
    let elsewhere = "no unfinished run in results begins with these checkpoints (`--continue`); runs \
                     in other results folders were not looked at";
    assert!(removed.stderr.contains(elsewhere), "{removed:?}");
    assert_eq!(kept(&place, &ids), [true, true, false]);
    assert_eq!(
        rm(&place, &["x", "--weights", "--but", "best", "--yes"]).status,
        Some(0)
    );
    assert_eq!(kept(&place, &ids), [false, true, false]);
    assert_eq!(place.lines(), table);
    assert_eq!(place.attempts_with("trial.json"), 3);

    // Who needs them learns who removed them, whatever step is asked for.
    let words = "were removed by `kiln rm --weights` (20";
    let of_first = format!("x:{}", ids[0]);
    for arguments in [
        &["evaluate", of_first.as_str()][..],
        &["sample", &of_first, "--step", "10"],
        &["export", &of_first, "--to", "out"],
    ] {
        let ended = Ended::of(place.kiln(arguments).output().unwrap());
        assert!(
            ended.status == Some(2)
                && ended.stderr.contains(words)
                && ended.stderr.contains(&format!("--only {}", ids[0])),
            "{arguments:?}: {ended:?}"
        );
    }
    assert_eq!(rm(&place, &["x", "--weights", "--yes"]).status, Some(0));
    let ended = Ended::of(place.kiln(&["sample", "x"]).output().unwrap());
    assert!(
        ended.status == Some(2)
            && ended
                .stderr
                .contains("the weights of its trials were removed"),
        "{ended:?}"
    );
    let none = rm(&place, &["x", "--weights", "--yes"]);
    assert!(
        none.status == Some(0) && none.stderr.contains("there are no weights to remove"),
        "{none:?}"
    );
    assert!(!none.stderr.contains("other results folders"), "{none:?}");
    // A killed removal may leave folders without a file.
    let trial = place.latest().join(format!("trials/{}", ids[0]));
    fs::create_dir_all(trial.join("checkpoint.removed/00000010")).unwrap();
    let rest = rm(&place, &["x", "--weights", "--yes"]);
    assert!(
        rest.status == Some(0) && !trial.join("checkpoint.removed").exists(),
        "{rest:?}"
    );
    // The run is finished as before.
    assert_eq!(place.run("fails", &[]).status, Some(0));
    assert_eq!((place.runs(), place.lines()), (1, table));
}

#[test]
fn named_trials_keep_their_weights_and_doubt_removes_nothing() {
    let place = Place::with(THREE);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let ids = with_checkpoints(&place, &[Some(1.0), Some(1.0), None]);
    for (but, words) in [
        ("best", "have the same validation loss, 1.0"),
        ("0", "expected 1 or more"),
        ("tzz", "no trial `tzz`"),
    ] {
        let refused = rm(&place, &["x", "--weights", "--but", but, "--yes"]);
        assert!(
            refused.status == Some(2) && refused.stderr.contains(words),
            "{but}: {refused:?}"
        );
    }
    let alone = rm(&place, &["x", "--but", "best", "--yes"]);
    assert!(
        alone.status == Some(2) && alone.stderr.contains("--weights"),
        "{alone:?}"
    );
    assert_eq!(kept(&place, &ids), [true; 3]);
    let but = ids[1..].join(",");
    let removed = rm(&place, &["x", "--weights", "--but", &but, "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    assert_eq!(kept(&place, &ids), [false, true, true]);
}

#[test]
fn without_a_validation_loss_none_is_the_best() {
    let place = Place::with(THREE);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let ids = with_checkpoints(&place, &[None, None, None]);
    let refused = rm(&place, &["x", "--weights", "--but", "best", "--yes"]);
    assert!(
        refused.status == Some(2)
            && refused.stderr.contains("have no validation loss")
            && refused.stderr.contains("`--but ID,ID`"),
        "{refused:?}"
    );
    // Weights that kiln cannot read are not ranked.
    for id in &ids {
        let folder = place.latest().join(format!("trials/{id}/checkpoint"));
        fs::rename(folder.join("10"), folder.join("own")).unwrap();
    }
    let refused = rm(&place, &["x", "--weights", "--but", "3", "--yes"]);
    assert!(
        refused.status == Some(2)
            && refused
                .stderr
                .contains("no trial has weights that kiln reads"),
        "{refused:?}"
    );
    assert_eq!(kept(&place, &ids), [true; 3]);
}

#[test]
fn checkpoints_at_which_a_run_resumes_stay() {
    let place = Place::with(THREE);
    let run = |fresh: &[&str]| {
        let mut kiln = place.kiln(&[&["run", "x.yaml"], fresh].concat());
        kiln.env("SCRIPTED_CHILD_2", "is_killed").output().unwrap()
    };
    run(&[]);
    let ids = with_checkpoints(&place, &[Some(2.0), Some(1.0), Some(3.0)]);
    let outcomes = place.column("outcome");
    let killed = outcomes.iter().position(|it| it == "killed").unwrap();
    let left: Vec<bool> = (0..3).map(|place| place == killed).collect();
    let removed = rm(&place, &["x", "--weights", "--yes"]);
    assert!(
        removed.status == Some(0)
            && removed
                .stdout
                .starts_with("removed the checkpoints of 2 trials")
            && removed
                .stderr
                .contains(&format!("1 unfinished trial stay ({})", ids[killed])),
        "{removed:?}"
    );
    assert_eq!(kept(&place, &ids), left);
    // An older run is not resumed.
    let older = fs::read_link(place.latest()).unwrap();
    run(&["--fresh"]);
    let removed = rm(&place, &["x~1", "--weights", "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    let trial = format!("results/x/{}/trials/{}", older.display(), ids[killed]);
    assert!(!place.path(&trial).join("checkpoint").exists());
    assert!(place.path(&trial).join("weights-removed.json").is_file());
}

#[test]
fn the_weights_of_a_running_run_stay() {
    let place = Place::with("train: {steps: 10}");
    let mut running = place.start("waits");
    wait_until("its trial is at work", || {
        place.attempts_with("at-work") > 0
    });
    let refused = rm(&place, &["x", "--weights", "--yes"]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("this run is running (process"),
        "{refused:?}"
    );
    place.release();
    assert!(running.wait().unwrap().success());
}

#[test]
fn git_sees_no_change_and_checkpoints_that_it_tracks_stay_unless_forced() {
    let place = Place::with(THREE);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let ids = with_checkpoints(&place, &[Some(2.0), Some(1.0), Some(3.0)]);
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        let output = git.current_dir(place.path(".")).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-q"]);
    git(&["add", "results"]);
    let status = git(&["status", "--porcelain"]);
    assert_eq!(
        rm(&place, &["x", "--weights", "--but", "2", "--yes"]).status,
        Some(0)
    );
    assert_eq!(git(&["status", "--porcelain"]), status);
    let run = fs::read_link(place.latest()).unwrap();
    let tracked = format!("results/x/{}/trials/{}/checkpoint", run.display(), ids[0]);
    git(&["add", "-f", &tracked]);
    let refused = rm(&place, &["x", "--weights", "--yes"]);
    assert!(
        refused.status == Some(2)
            && refused
                .stderr
                .contains("git tracks 3 files of these checkpoints; `--force` removes them"),
        "{refused:?}"
    );
    assert_eq!(kept(&place, &ids), [true, true, false]);
    assert_eq!(
        rm(&place, &["x", "--weights", "--yes", "--force"]).status,
        Some(0)
    );
    assert_eq!(kept(&place, &ids), [false; 3]);
}
