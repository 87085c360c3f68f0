//! `kiln run` after any stop: nothing is run twice without need, no row is ever rewritten, a
//! changed experiment is refused.

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    form::by_form,
    scripted_child::{
        Ended, Place, REAL_MLP, Row, program::write_program, real_trial, table, variables,
        wait_until,
    },
};

const TWELVE: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2, 3, 4, 5, 6, 7, \
                      8, 9, 10, 11, 12]}}";
const TWO: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}";

/// Whole lines of the table; a torn last line is not one of them.
fn whole_lines(place: &Place) -> String {
    let text = fs::read_to_string(place.latest().join("trials.csv")).unwrap_or_default();
    text[..text.rfind('\n').map_or(0, |at| at + 1)].to_owned()
}

#[test]
fn a_run_whose_lock_is_gone_is_not_taken_from_a_living_kiln() {
    let place = Place::with(TWO);
    let mut living = place.start("waits");
    wait_until("a child is at work", || place.attempts_with("at-work") > 0);
    fs::remove_file(place.path("results/x/.kiln-lock")).unwrap();
    let second = place.run("completes", &[]);
    assert_eq!(second.status, Some(3), "{second:?}");
    assert!(
        second
            .stderr
            .contains(&format!("process {} works on this run", living.id())),
        "{second:?}"
    );
    place.release();
    assert!(living.wait().unwrap().success());
    assert_eq!(place.column("outcome"), ["completed", "completed"]);
    assert_eq!(place.column("launch"), ["1", "1"]);
}

/// Moments in the life of a run at which kiln is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// kiln itself has just been started.
    Launch,
    /// A trial has its folder; its child is being started.
    Start,
    /// A child is at work.
    Work,
    /// A child has written its result; its row is due.
    Result,
    /// A trial has its row, and the next one is at work.
    Next,
}

/// Waits until a run that has just been started gets there. Lets at most one trial end.
fn reach(place: &Place, moment: Moment, before: [usize; 3]) {
    let counts = || {
        [
            place.attempts().len(),
            place.attempts_with("at-work"),
            place.attempts_with("trial.json"),
        ]
    };
    let [begun, at_work, ended] = before;
    match moment {
        Moment::Launch => {}
        Moment::Start => wait_until("an attempt has a folder", || counts()[0] > begun),
        Moment::Work | Moment::Result | Moment::Next => {
            wait_until("a child is at work", || counts()[1] > at_work)
        }
    }
    match moment {
        Moment::Launch | Moment::Start | Moment::Work => {}
        Moment::Result => {
            place.release();
            wait_until("a child has written its result", || counts()[2] > ended);
        }
        Moment::Next => {
            place.release();
            wait_until("the next child is at work", || counts()[1] > at_work + 1);
        }
    }
}

#[test]
fn a_parent_killed_at_any_moment_loses_no_row_and_starts_at_most_one_trial_more_each_time() {
    let place = Place::with(TWELVE);
    let mut kept = String::new();
    // Two of the moments let a trial end, so some of the twelve are left after the last kill.
    let moments = [
        Moment::Launch,
        Moment::Start,
        Moment::Work,
        Moment::Result,
        Moment::Next,
    ]
    .repeat(by_form(1, 5));
    for moment in &moments {
        let before = [
            place.attempts().len(),
            place.attempts_with("at-work"),
            place.attempts_with("trial.json"),
        ];
        let mut kiln = place.start("waits_for_turn");
        reach(&place, *moment, before);
        assert_eq!(
            kiln.try_wait().unwrap(),
            None,
            "the run ended before it was killed: {moment:?}"
        );
        kiln.kill().unwrap();
        kiln.wait().unwrap();
        wait_until("no process of a killed run is left", || {
            place.processes().is_empty()
        });
        let now = whole_lines(&place);
        assert!(
            now.starts_with(&kept),
            "{moment:?}: a row changed\n{kept}\n{now}"
        );
        kept = now;
    }
    let ended = place.run("completes", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(whole_lines(&place).starts_with(&kept));
    let mut finals: HashMap<String, u32> = HashMap::new();
    let rows = place.rows();
    rows.iter()
        .filter(|row| row["outcome"] == "completed")
        .for_each(|row| *finals.entry(row["trial"].clone()).or_default() += 1);
    assert!(
        finals.len() == 12 && finals.values().all(|count| *count == 1),
        "{finals:?}"
    );
    let starts = place.attempts().len();
    assert!(starts <= 12 + moments.len(), "{starts} starts");
    assert_eq!(rows.len(), starts, "every attempt has one row");
    assert_eq!(
        rows.iter().filter(|row| row["outcome"] == "killed").count(),
        starts - 12
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn an_attempt_whose_parent_was_killed_gets_its_row_from_the_next_launch() {
    let place = Place::with(TWO);
    let mut kiln = place.start("grandchild_waits");
    wait_until("the grandchild runs", || {
        place.attempts_with("at-work") == 1
    });
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    // The child died with its parent; what it had started is ended by the next launch.
    let ended = place.run("completes", &[]);
    assert!(ended.stderr.contains("attempt 1 had no row"), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("ended leftover processes of an earlier launch: 1"),
        "{ended:?}"
    );
    assert_eq!(place.processes(), [0_u32; 0]);
    assert_eq!(
        place.column("outcome"),
        ["killed", "completed", "completed"]
    );
    assert_eq!(place.column("attempt"), ["1", "2", "1"]);
    assert_eq!(place.column("launch"), ["1", "2", "2"]);
    assert!(
        place.column("reason")[0].contains("was running when `kiln run` itself ended (launch 1)")
    );
    let launches = place.run_file()["launches"].clone();
    let (first, second) = (&launches[0], &launches[1]);
    assert_eq!(
        first["run_anchor_nanoseconds"],
        first["monotonic_nanoseconds"]
    );
    assert_eq!(
        second["run_anchor_nanoseconds"],
        first["run_anchor_nanoseconds"]
    );
    assert!(first.get("ended").is_none() && second["ended"]["how"] == "finished");
}

#[test]
fn the_row_of_a_killed_launch_has_the_step_after_which_its_attempt_resumed() {
    let place = Place::with("train: {steps: 10}");
    let mut kiln = place.start("resumes_and_hangs");
    wait_until("kiln has heard the step", || {
        let noted = |attempt: &PathBuf| {
            let text = fs::read_to_string(attempt.join("attempt.json"));
            text.is_ok_and(|text| text.contains("resumed_at_step"))
        };
        place.attempts().iter().any(noted)
    });
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(place.column("outcome"), ["killed", "completed"]);
    assert_eq!(place.column("resumed_at_step"), ["4", ""]);
}

#[test]
fn a_torn_last_line_is_cut_and_said() {
    let place = Place::with(TWO);
    place.run("completes", &[]);
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    let second = text.lines().nth(2).unwrap().len() + 1;
    let torn = &text[..text.len() - second + 40];
    // With its result the row would be made anew.
    fs::remove_file(attempt_of(&place, 1).join("trial.json")).unwrap();
    for tear in [
        torn.to_owned(),
        format!("{}{}\n", &text[..text.len() - second], "\0".repeat(30)),
    ] {
        fs::write(&table, tear).unwrap();
        let ended = place.run("completes", &[]);
        assert!(
            ended.stderr.contains("the last line was incomplete"),
            "{ended:?}"
        );
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(
            place.column("outcome"),
            ["completed", "killed", "completed"]
        );
        fs::write(&table, &text).unwrap();
        fs::remove_dir_all(
            place
                .attempts()
                .into_iter()
                .find(|attempt| attempt.ends_with("2"))
                .unwrap(),
        )
        .unwrap();
    }
}

/// The folder of the first attempt of the trial in this row.
fn attempt_of(place: &Place, row: usize) -> PathBuf {
    let trials = place.latest().join("trials");
    trials.join(&place.rows()[row]["trial"]).join("1")
}

#[test]
fn a_result_that_cannot_be_read_now_is_neither_a_failure_nor_a_kill() {
    let place = Place::with("train: {steps: 10}");
    let ended = place.run("unread_result", &[]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("its result cannot be read now: "),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["interrupted"]);

    // As if kiln had been killed before it wrote that row.
    let folder = attempt_of(&place, 0);
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    fs::write(&table, text.split_inclusive('\n').next().unwrap()).unwrap();
    let refused = place.run("completes", &[]);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("trial.json: "), "{refused:?}");
    assert_eq!(place.attempts().len(), 1, "nothing is run again");

    fs::remove_file(folder.join("trial.json")).unwrap();
    let ended = place.run("completes", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("outcome"), ["killed", "completed"]);
}

#[test]
fn a_trial_that_was_over_when_its_parent_was_killed_gets_its_row_and_is_not_run_again() {
    let place = Place::with(TWO);
    place.run("completes", &[]);
    let (measured, folder) = (place.rows().remove(1), attempt_of(&place, 1));
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    let first: String = text.split_inclusive('\n').take(2).collect();
    let result = fs::read_to_string(folder.join("trial.json")).unwrap();
    let run_after = |result: &str| {
        fs::write(&table, &first).unwrap();
        fs::write(folder.join("trial.json"), result).unwrap();
        place.run("completes", &[])
    };

    let ended = run_after(&result);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("attempt 1 had no row")
            && ended
                .stderr
                .contains("`completed`, as its `trial.json` says"),
        "{ended:?}"
    );
    let rows = place.rows();
    assert_eq!((rows.len(), place.attempts().len()), (2, 2), "{rows:?}");
    let adopted = &rows[1];
    for column in [
        "trial",
        "attempt",
        "launch",
        "outcome",
        "reason",
        "started_utc",
        "device_name",
        "samples_per_second",
        "train_loss",
        "steps",
        "window_seconds",
        "concurrent_trials",
        "host_id",
        "processor",
    ] {
        assert_eq!(adopted[column], measured[column], "{column}");
    }
    assert_eq!(adopted["trial_seconds"], "");
    assert!(!adopted["samples_per_second"].is_empty());
    assert!(
        adopted["notes"].contains("adopted: kiln was killed before it wrote this row"),
        "{adopted:?}"
    );

    // Of another attempt, torn, or of a trial that had not come to its end.
    for other in [
        result.replace("\"attempt\":1", "\"attempt\":2"),
        result[..result.len() / 2].to_owned(),
        result.replace("\"completed\"", "\"interrupted\""),
        result.replace("\"completed\"", "\"failed\""),
    ] {
        assert_ne!(other, result);
        let ended = run_after(&other);
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(
            place.column("outcome"),
            ["completed", "killed", "completed"],
            "{other}"
        );
        fs::remove_dir_all(folder.with_file_name("2")).unwrap();
    }
}

#[test]
fn the_plan_says_what_a_resume_would_skip() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    let planned = Ended::of(place.kiln(&["plan", "x.yaml"]).output().unwrap());
    assert!(
        planned
            .stdout
            .contains("1 of them has already ended; a resume skips them"),
        "{planned:?}"
    );
    place.write("train: {steps: 20}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let other = Ended::of(place.kiln(&["plan", "x.yaml"]).output().unwrap());
    assert!(
        !other.stdout.contains("ended already"),
        "another plan: {other:?}"
    );
}

#[test]
fn a_changed_experiment_is_refused_key_by_key() {
    let place = Place::with(TWO);
    assert_eq!(
        place
            .run("completes", &["--only", &place.first_id()])
            .status,
        Some(0)
    );
    let kept = whole_lines(&place);
    place.write("train: {steps: 20, seed: 7}\nsweep: {grid: {train.batch_size: [1, 2, 3]}}");
    let refused = place.run("completes", &[]);
    assert_eq!(refused.status, Some(2));
    for words in [
        "`sweep.grid` `train.batch_size`: was [1, 2], is now [1, 2, 3]",
        "`train.seed`: was 1, is now 7",
        "`train.steps`: was 10, is now 20",
        "`--fresh`",
    ] {
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
    }
    assert_eq!(whole_lines(&place), kept);
    assert_eq!(place.run("completes", &["--fresh"]).status, Some(0));
    assert_eq!((place.runs(), place.rows().len()), (2, 3));
}

#[test]
fn numbers_that_are_written_otherwise_resume_the_run_and_texts_do_not() {
    let model = "  argv: [sh, -c, 'echo speed $KILN_VALUE_N']\n  values: {n: 1}\n  metrics: \
                 {speed: {line: 'speed (\\S+)', better: high}}";
    let sweep = |values: &str| format!("sweep: {{grid: {{model.values.n: [{values}]}}}}");
    let place = Place::of_command(model, &sweep("1, 2"));
    place.run("", &["--only", &place.first_id()]);
    place.write_command(model, &sweep("1.0, 2.0"));
    let resumed = place.run("", &[]);
    assert_eq!(resumed.status, Some(0), "{resumed:?}");
    assert_eq!((place.runs(), place.rows().len()), (1, 2));
    let report = Ended::of(place.kiln(&["report", "x"]).output().unwrap());
    assert_eq!(report.status, Some(0), "{report:?}");
    place.write_command(model, &sweep("'1', '2'"));
    let other = place.run("", &[]);
    assert_eq!((other.status, place.runs()), (Some(0), 2), "{other:?}");
}

/// Of several texts each counts, not the one that was read last.
#[test]
fn one_of_several_texts_with_another_content_is_refused_and_named() {
    let place = Place::with("");
    let write = |name: &str, text: &str| fs::write(place.path(name), text.repeat(400)).unwrap();
    write("a.txt", "one text ");
    write("b.txt", "second text ");
    let experiment = "kiln: 1\nname: x\nmodel: {kind: mlp, d_model: 8, hidden: 16, context: 4, \
                      seq_len: 16}\ndata: {kind: text, path: a.txt}\ntrain: {steps: 10}\nsweep: \
                      {include: [{data.path: a.txt, train.batch_size: 1}, {data.path: b.txt, \
                      train.batch_size: 2}]}\n";
    fs::write(place.path("x.yaml"), experiment).unwrap();
    let first = place.first_id();
    assert_eq!(place.run("completes", &["--only", &first]).status, Some(0));
    let sums = |name: &str| {
        let (sum, _) = kiln_data::files::sha256_of(&place.path(name), Path::new("")).unwrap();
        format!("{}…", &sum[..12])
    };
    let (before, second) = (sums("a.txt"), sums("b.txt"));

    write("a.txt", "another text ");
    let refused = place.run("completes", &[]);
    let told = format!("text has sha256 {}, and had {before}\n", sums("a.txt"));
    assert!(
        refused.status == Some(2)
            && refused.stderr.contains(&told)
            && !refused.stderr.contains(&second),
        "{refused:?}"
    );
    // That both are one text now is a change too.
    write("a.txt", "second text ");
    let refused = place.run("completes", &[]);
    let told = format!("text has sha256 {second}, and had {before}\n");
    assert!(
        refused.status == Some(2) && refused.stderr.contains(&told),
        "{refused:?}"
    );
    // A text that is not there is not a changed one.
    fs::remove_file(place.path("b.txt")).unwrap();
    let absent = place.run("completes", &[]);
    assert!(
        absent.status == Some(3)
            && absent
                .stderr
                .contains("`data.path` names b.txt, and there is no"),
        "{absent:?}"
    );

    write("a.txt", "one text ");
    write("b.txt", "second text ");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!((place.rows().len(), place.runs()), (2, 1));
}

/// The same experiment, whose text has another content.
#[test]
fn another_text_is_refused_and_starts_a_new_run_after_a_finished_one() {
    let place = Place::with("");
    let write = |text: &str| fs::write(place.path("corpus.txt"), text.repeat(400)).unwrap();
    write("one text ");
    let experiment = "kiln: 1\nname: x\nmodel: {kind: mlp, d_model: 8, hidden: 16, context: 4, \
                      seq_len: 16}\ndata: {kind: text, path: corpus.txt}\ntrain: {steps: \
                      10}\nsweep: {grid: {train.batch_size: [1, 2]}}\n";
    fs::write(place.path("x.yaml"), experiment).unwrap();
    let first = place.first_id();
    assert_eq!(place.run("completes", &["--only", &first]).status, Some(0));
    let kept = whole_lines(&place);

    write("another text ");
    let refused = place.run("completes", &[]);
    assert!(
        refused.status == Some(2)
            && refused
                .stderr
                .contains("is unfinished and its data has changed since:\n  the data of `data.kind` text has sha256 ")
            && refused.stderr.contains("`--fresh`"),
        "{refused:?}"
    );
    let plan = Ended::of(place.kiln(&["plan", "x.yaml"]).output().unwrap());
    assert!(
        (plan.stdout + &plan.stderr).contains("its data has changed since"),
        "the plan tells it"
    );
    assert_eq!((whole_lines(&place), place.runs()), (kept, 1));

    // The same text in another place is the same.
    write("one text ");
    fs::rename(place.path("corpus.txt"), place.path("moved.txt")).unwrap();
    let moved = experiment.replace("corpus.txt", "moved.txt");
    fs::write(place.path("x.yaml"), moved).unwrap();
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!((place.rows().len(), place.runs()), (2, 1));

    write("another text ");
    fs::write(place.path("x.yaml"), experiment).unwrap();
    let again = place.run("completes", &["--rerun", "completed"]);
    assert!(
        again.status == Some(2) && again.stderr.contains("its data has changed since"),
        "{again:?}"
    );
    let anew = place.run("completes", &[]);
    assert!(
        anew.status == Some(0)
            && anew
                .stderr
                .contains("is finished, but its data has changed since"),
        "{anew:?}"
    );
    assert_eq!((place.rows().len(), place.runs()), (2, 2));
}

#[test]
fn a_limit_may_change_and_the_launch_writes_it_down() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    place.write(&format!("{TWO}\nrun: {{timeout: 1h}}\ndescription: longer"));
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(
        place.run_file()["launches"][1]["changed"],
        serde_json::json!({"description": "longer", "run.timeout": "1h"})
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn a_finished_run_says_so_and_a_changed_experiment_then_starts_a_new_one() {
    let place = Place::with(TWO);
    place.run("completes", &[]);
    let again = place.run("completes", &[]);
    assert_eq!(again.status, Some(0));
    assert!(
        again
            .stderr
            .contains("every trial already has its result; `--fresh` starts a new run, `--rerun completed` runs \
                 them again"),
        "{again:?}"
    );
    let detached = place.run("completes", &["--detach"]);
    assert!(
        detached.status == Some(2)
            && detached
                .stderr
                .contains("`--detach` goes with `--on workers`"),
        "{detached:?}"
    );
    assert_eq!((place.rows().len(), place.runs()), (2, 1));
    place.write("train: {steps: 20}");
    let other = place.run("completes", &[]);
    assert_eq!(other.status, Some(0));
    assert!(!other.stderr.contains("has the same trials"), "{other:?}");
    assert!(
        other
            .stderr
            .contains("is finished, but the experiment has changed since (`sweep.grid")
            && other.stderr.contains("starting a new run"),
        "{other:?}"
    );
    assert_eq!((place.rows().len(), place.runs()), (1, 2));
    // Back at the first trials: their run is named, and is not the one that is resumed.
    place.write(TWO);
    let back = place.run("completes", &[]);
    assert!(
        back.status == Some(0)
            && back
                .stderr
                .contains("has the same trials (`kiln report results/")
            && back.stderr.contains("starting a new run"),
        "{back:?}"
    );
    assert_eq!((place.rows().len(), place.runs()), (2, 3));
    // The newest run has these trials too; what differs is their device.
    let elsewhere = place.run("completes", &["--device", "cpu", "--dry-run"]);
    let said = format!("{}{}", elsewhere.stdout, elsewhere.stderr);
    assert!(
        said.contains("`run.devices`: was ") && !said.contains("has the same trials"),
        "{said}"
    );
}

#[test]
fn a_run_with_a_table_of_another_version_is_refused_before_anything_of_it_changes() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    let table = place.latest().join("trials.csv");
    let text = fs::read_to_string(&table).unwrap();
    let version = text.lines().nth(1).unwrap().split(',').next().unwrap();
    // Without its last fixed column, as the version before it would be, or a newer one with the same ones.
    let cut = |line: &str| line.rsplit_once(',').unwrap().0.to_owned();
    let older: Vec<String> = text.lines().map(cut).collect();
    let older = older.join("\n").replace(version, "trials/1") + "\n";
    let newer = text.replace(version, "trials/99");
    let record = || fs::read(place.latest().join("run.json")).unwrap();
    let before = record();
    for (text, said) in [
        (
            older,
            "it is a `trials/1` table, and this kiln writes `trials/",
        ),
        (newer, "is of table `trials/99`, newer than this kiln reads"),
    ] {
        fs::write(&table, &text).unwrap();
        for more in [&[][..], &["--dry-run"]] {
            let refused = place.run("completes", more);
            assert!(
                refused.status == Some(2) && refused.stderr.contains(said),
                "{refused:?}"
            );
        }
        assert_eq!(fs::read_to_string(&table).unwrap(), text);
        assert!(record() == before, "a refusal is no launch");
        let listed = Ended::of(place.kiln(&["ls"]).output().unwrap()).stdout;
        let told = [
            "which only the kiln that began it resumes",
            "newer than this kiln reads",
        ];
        assert!(told.iter().any(|note| listed.contains(note)), "{listed}");
    }
    fs::write(&table, text).unwrap();
    let samples = place.latest().join("samples.csv");
    let text = fs::read_to_string(&samples).unwrap();
    let version = text.lines().nth(1).unwrap().split(',').next().unwrap();
    fs::write(&samples, text.replace(version, "samples/99")).unwrap();
    let refused = place.run("completes", &[]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("is of table `samples/99`"),
        "{refused:?}"
    );
    assert!(record() == before, "{refused:?}");
    fs::write(&samples, text).unwrap();
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(place.rows().len(), 2);
}

#[test]
fn a_resume_repairs_the_link_to_the_latest_run() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    let link = fs::read_link(place.latest()).unwrap();
    fs::remove_file(place.latest()).unwrap();
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(fs::read_link(place.latest()).unwrap(), link);
    fs::remove_file(place.latest()).unwrap();
    std::os::unix::fs::symlink("gone", place.latest()).unwrap();
    assert_eq!(
        place.run("completes", &[]).status,
        Some(0),
        "nothing is left to do"
    );
    assert_eq!(fs::read_link(place.latest()).unwrap(), link);
}

#[test]
fn a_finished_run_whose_experiment_cannot_be_read_is_not_run_again() {
    let place = Place::with(TWO);
    place.run("completes", &[]);
    let file = place.latest().join("experiment.yaml");
    fs::remove_file(&file).unwrap();
    let refused = || {
        let refused = place.run("completes", &[]);
        assert_eq!((refused.status, place.runs()), (Some(3), 1), "{refused:?}");
        assert!(
            refused.stderr.contains("/experiment.yaml: ") && refused.stderr.contains("`--fresh`"),
            "{refused:?}"
        );
    };
    fs::create_dir(&file).unwrap();
    refused();
    fs::remove_dir(&file).unwrap();
    for target in ["experiment.yaml", "gone"] {
        std::os::unix::fs::symlink(target, &file).unwrap();
        refused();
        fs::remove_file(&file).unwrap();
    }
    let missing = place.run("completes", &[]);
    assert_eq!((missing.status, place.runs()), (Some(0), 2), "{missing:?}");
}

#[test]
fn a_run_that_another_machine_finished_is_no_result_of_this_one() {
    let place = Place::with(TWO);
    let plan = || Ended::of(place.kiln(&["plan", "x.yaml"]).output().unwrap()).stdout;
    place.run("completes", &[]);
    assert!(plan().contains("2 of them have already ended"));
    place.move_elsewhere();
    assert!(!plan().contains("have already ended"));
    let dry = place.run("completes", &["--dry-run"]);
    assert!(
        dry.stdout.contains("Abacus 9000 there") && dry.stdout.contains("2 of 2 trials would run"),
        "{dry:?}"
    );
    assert!(
        place
            .run("completes", &["--rerun", "completed", "--dry-run"])
            .stdout
            .contains("would resume")
    );
    let ended = place.run("completes", &[]);
    assert_eq!(
        (ended.status, place.runs(), place.rows().len()),
        (Some(0), 2, 2),
        "{ended:?}"
    );
    let said: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.contains("ran on another machine"))
        .collect();
    assert!(
        said.len() == 1 && said[0].contains("starting a new run"),
        "{ended:?}"
    );
    assert!(
        place
            .run("completes", &[])
            .stderr
            .contains("every trial already has its result")
    );
}

#[test]
fn an_unfinished_run_goes_on_wherever_it_began() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    place.move_elsewhere();
    let ended = place.run("completes", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(
        (place.runs(), place.column("launch")),
        (1, vec!["1".to_owned(), "2".into()])
    );
    assert!(
        ended
            .stderr
            .contains("was begun on another machine (Abacus 9000 there")
            && ended.stderr.contains("`--fresh` starts a new run"),
        "{ended:?}"
    );
    // The second launch was made here.
    let again = place.run("completes", &["--rerun", "completed"]);
    assert!(!again.stderr.contains("another machine"), "{again:?}");
}

#[test]
fn failed_trials_are_run_again_only_when_asked() {
    let place = Place::with(TWO);
    let mut kiln = place.kiln(&["run", "x.yaml"]);
    assert_eq!(
        Ended::of(kiln.env("SCRIPTED_CHILD_1", "fails").output().unwrap()).status,
        Some(1)
    );
    let again = place.run("completes", &[]);
    assert_eq!((again.status, place.rows().len()), (Some(1), 2));
    let would = place.run("completes", &["--rerun", "failed", "--dry-run"]);
    assert!(
        would.stdout.contains("1 of 2 trials would run") && would.stdout.contains("failed before"),
        "{would:?}"
    );
    let none = place.run("completes", &["--rerun", "oom"]);
    assert_eq!((none.status, place.rows().len()), (Some(1), 2));
    assert_eq!(
        place.run("completes", &["--rerun", "failed"]).status,
        Some(0)
    );
    assert_eq!(
        place.column("outcome"),
        ["failed", "completed", "completed"]
    );
    assert_eq!(place.column("attempt"), ["1", "1", "2"]);
    assert_eq!(place.run("completes", &["--rerun", "gone"]).status, Some(2));
}

#[test]
fn a_rerun_of_a_changed_experiment_is_refused() {
    let place = Place::with(TWO);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let changed = ["--rerun", "failed", "--set", "train.steps=20"];
    let refused = place.run("completes", &changed);
    assert_eq!((refused.status, place.runs()), (Some(2), 1), "{refused:?}");
    assert!(
        refused.stderr.contains("`train.steps`: was 10, is now 20")
            && refused
                .stderr
                .contains("leave `--rerun` out to start a new run"),
        "{refused:?}"
    );
    assert_eq!(place.run("completes", &changed[2..]).status, Some(0));
    assert_eq!(place.runs(), 2);
}

#[test]
fn a_run_that_cannot_be_read_is_named() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    let mut table = OpenOptions::new()
        .append(true)
        .open(place.latest().join("trials.csv"))
        .unwrap();
    table.write_all(b"not,a,row\nnor,this\n").unwrap();
    let refused = place.run("completes", &[]);
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("trials.csv:3: record 2") && refused.stderr.contains("`--fresh`"),
        "{refused:?}"
    );
}

/// A table that cannot grow: a limit on the size of a file stands for a full disk.
#[test]
fn a_full_disk_stops_the_run_with_nothing_torn_and_the_same_command_goes_on() {
    let place = Place::with("train: {steps: 10}\nsweep: {repeats: 30}");
    let kiln = place.kiln(&["run", "x.yaml"]);
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -f 16; exec \"$0\" run x.yaml"])
        .arg(env!("CARGO_BIN_EXE_kiln"))
        .envs(variables(&kiln));
    let stopped = Ended::of(limited.current_dir(place.path("")).output().unwrap());
    assert_eq!(stopped.status, Some(3), "{stopped:?}");
    assert!(
        stopped.stderr.contains("is full: ") && stopped.stderr.contains("a trial needs 2.0 MiB"),
        "{stopped:?}"
    );
    let text = fs::read_to_string(place.latest().join("trials.csv")).unwrap();
    let before = place.rows().len();
    assert!(
        text.ends_with('\n') && (3..29).contains(&before),
        "{before} rows"
    );
    assert_eq!(place.processes(), [0_u32; 0]);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert!(whole_lines(&place).starts_with(&text));
    assert_eq!(
        place
            .column("outcome")
            .iter()
            .filter(|outcome| *outcome == "completed")
            .count(),
        30
    );
}

#[test]
fn a_run_that_fresh_began_on_a_full_disk_is_resumed_without_that_option() {
    let place = Place::with("train: {steps: 10}\nsweep: {repeats: 30}");
    let kiln = place.kiln(&["run", "x.yaml"]);
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -f 16; exec \"$0\" run x.yaml --fresh"])
        .arg(env!("CARGO_BIN_EXE_kiln"))
        .envs(variables(&kiln));
    let stopped = Ended::of(limited.current_dir(place.path("")).output().unwrap());
    assert!(
        stopped.status == Some(3)
            && stopped
                .stderr
                .contains("run the same command without `--fresh`"),
        "{stopped:?}"
    );
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(place.runs(), 1);
}

#[test]
fn trials_that_are_left_are_run_by_the_command_that_begins_no_other_run() {
    let told = |more: &[&str]| {
        let place = Place::with(TWO);
        let ended = place.run("is_killed", more);
        let told = ended.stderr.lines().last().unwrap_or_default().to_owned();
        assert_eq!(place.runs(), 1, "{ended:?}");
        told
    };
    let begins = "some trials have no final result yet; run the same command ";
    assert!(told(&[]).ends_with(&format!("{begins}again to run them")));
    let afresh = told(&["--fresh"]);
    let ends = format!("{begins}without `--fresh` to run them");
    assert!(afresh.ends_with(&ends), "{afresh}");
}

/// Inodes, a quota or another file system may be exhausted where kiln sees room.
#[test]
fn a_child_that_finds_no_room_is_interrupted_and_the_same_command_goes_on() {
    let place = Place::with(TWO);
    let stopped = place.run("no_room", &[]);
    assert_eq!(stopped.status, Some(3), "{stopped:?}");
    assert!(
        stopped
            .stderr
            .contains("inodes, a quota or another file system"),
        "{stopped:?}"
    );
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert!(place.column("reason")[0].starts_with("the disk or a quota is full: "));
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(
        place.column("outcome"),
        ["interrupted", "completed", "completed"]
    );
}

#[test]
fn a_real_trial_whose_table_cannot_grow_is_interrupted() {
    let place = Place::with("");
    fs::write(place.path("x.yaml"), REAL_MLP).unwrap();
    let program = place.path("child.sh");
    write_program(
        &program,
        &format!(
            "#!/bin/sh\nln -s /dev/full \"$KILN_ATTEMPT/steps.csv\"\nexec {} \"$1\"\n",
            real_trial().display()
        ),
    );
    let mut kiln = place.kiln(&["run", "x.yaml"]);
    let ended = Ended::of(kiln.env("KILN_TRIAL", &program).output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    let reason = &place.column("reason")[0];
    assert!(reason.contains("steps.csv cannot be written"), "{reason}");
}

#[test]
fn run_seconds_go_on_where_the_clock_is_behind_the_start_of_the_run() {
    let place = Place::with("train: {steps: 10}\nsweep: {repeats: 2}");
    place.run("completes", &["--only", &place.first_id()]);
    let mut run = place.run_file();
    // As of a launch in another time namespace, a century ahead.
    run["launches"][0]["monotonic_nanoseconds"] = 3_000_000_000_000_000_000_u64.into();
    fs::write(place.latest().join("run.json"), run.to_string()).unwrap();
    let resumed = place.run("completes", &[]);
    assert_eq!(resumed.status, Some(0), "{resumed:?}");
    assert!(
        resumed.stderr.contains("the monotonic clock is behind"),
        "{resumed:?}"
    );
    let seconds = |row: &Row| -> f64 { row["run_seconds"].parse().unwrap() };
    let snapshots = table(&place.latest().join("snapshots.csv"));
    let of_second = snapshots.iter().filter(|row| row["launch"] == "2");
    let times: Vec<f64> = of_second.map(seconds).collect();
    assert!(
        !times.is_empty() && times.iter().all(|at| (0.0..3600.0).contains(at)),
        "{times:?}"
    );
}
