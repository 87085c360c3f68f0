//! `kiln run --for`: no trial and no round begins that does not fit into the time that is left.

use std::fs;

use serde_json::Value;

use crate::scripted_child::{Ended, Place, send, wait_until};

const MODEL: &str = "  argv: [sh, -c, 'echo \"v $KILN_VALUE_N\"']\n  values: {n: 1}\n  metrics: {v: \
                     {line: 'v (\\S+)', better: high}}";

fn plan(place: &Place, more: &[&str]) -> Ended {
    let arguments = [&["plan", "x.yaml"], more].concat();
    Ended::of(place.kiln(&arguments).output().unwrap())
}

/// Lets the trials of the newest run have taken these seconds, by the value of `n`.
fn let_them_have_taken(place: &Place, seconds: &[(&str, &str)]) {
    let lines = place.lines();
    let head: Vec<&str> = lines[0].split(',').collect();
    let at = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let (value, time) = (at("model.values.n"), at("trial_seconds"));
    let mut text = lines[0].clone() + "\n";
    for line in &lines[1..] {
        let mut cells: Vec<&str> = line.split(',').collect();
        let took = seconds.iter().find(|(n, _)| *n == cells[value]);
        cells[time] = took.map_or(cells[time], |(_, seconds)| *seconds);
        text += &(cells.join(",") + "\n");
    }
    fs::write(place.latest().join("trials.csv"), text).unwrap();
}

#[test]
fn a_trial_that_does_not_fit_is_left_and_the_same_command_resumes() {
    let place = Place::of_command(MODEL, "sweep: {grid: {model.values.n: [1, 2, 3]}}");
    assert_eq!(place.run("", &["--for", "1h"]).status, Some(0));
    assert_eq!(place.column("model.values.n"), ["1", "2", "3"]);
    let none = plan(&place, &["--for", "1h"]);
    let said = "\n--for 1h: no trial is left to run\n";
    assert!(none.stdout.contains(said), "{none:?}");
    let_them_have_taken(&place, &[("2", "5000")]);
    let ended = place.run("", &["--fresh", "--for", "1h"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("model.values.n"), ["1", "3"]);
    for said in [
        "1 trial left: no other trial or whole round fits into the ",
        "1 of them may take longer than the whole time",
        "the same command without `--fresh` resumes",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {ended:?}");
    }
    let run = place.run_file();
    assert_eq!(
        run["launches"][0]["ended"]["how"],
        "1 trial left by `--for`"
    );
    let fits = plan(&place, &["--for", "1h"]);
    assert!(
        fits.stdout
            .contains("\n--for 1h: 0 trials fit on one device, "),
        "{fits:?}"
    );
    let fits = plan(&place, &["--for", "2h"]);
    assert!(
        fits.stdout
            .contains("\n--for 2h: 1 trial fits on one device, "),
        "{fits:?}"
    );
    let before = place.lines();
    let resumed = place.run("", &["--for", "2h"]);
    assert_eq!(resumed.status, Some(0), "{resumed:?}");
    assert!(!resumed.stderr.contains("left: "), "{resumed:?}");
    assert_eq!(place.lines()[..3], before[..]);
    assert_eq!(place.column("model.values.n"), ["1", "3", "2"]);
    // A trial with a result that is to run again is left all the same.
    let again = place.run("", &["--rerun", "completed", "--for", "1h"]);
    assert_eq!(again.status, Some(0), "{again:?}");
    let only = format!("`--only {}` runs what is left", place.column("trial")[2]);
    assert!(
        again.stderr.contains("1 trial left: ") && again.stderr.contains(&only),
        "{again:?}"
    );
    assert_eq!(place.column("model.values.n")[3..], ["1", "3"]);
}

#[test]
fn without_a_trial_that_fits_the_cause_stands_alone() {
    let place = Place::of_command(MODEL, "sweep: {grid: {model.values.n: [1]}}");
    assert_eq!(place.run("", &[]).status, Some(0));
    let_them_have_taken(&place, &[("1", "5000")]);
    let ended = place.run("", &["--fresh", "--for", "1h"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(ended.stdout, "");
    let cause = "1 trial left: no other trial or whole round fits";
    assert!(ended.stderr.contains(cause), "{ended:?}");
    let quiet = place.run("", &["--fresh", "--for", "1h", "--quiet"]);
    assert!(quiet.stdout.contains("no trial has ended yet"), "{quiet:?}");
}

#[test]
fn a_round_begins_only_if_all_that_is_left_of_it_fits() {
    // The program takes its time where a file says so.
    let model = MODEL.replace("echo", "[ ! -e slow ] || sleep 2.5; echo");
    let place = Place::of_command(
        &model,
        "sweep: {grid: {model.values.n: [1, 2]}, repeats: 3, order: interleaved}",
    );
    assert_eq!(place.run("", &[]).status, Some(0));
    let ids = place.column("trial");
    let_them_have_taken(&place, &[("1", "1000"), ("2", "1000")]);
    let one = place.run("", &["--fresh", "--only", &ids[0], "--for", "40m"]);
    assert_eq!(one.status, Some(0), "{one:?}");
    assert_eq!(place.column("trial"), ids[..1]);
    // A whole round needs 40 min, which are left at first, and no more when it could begin.
    fs::write(place.path("slow"), "").unwrap();
    let ended = place.run("", &["--for", "2402s", "--progress", "json"]);
    fs::remove_file(place.path("slow")).unwrap();
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("trial"), ids[..2]);
    assert!(
        ended.stdout.contains("4 trials left by `--for`")
            && ended
                .stderr
                .contains("4 trials left: no other trial or whole round"),
        "{ended:?}"
    );
    let fits = plan(&place, &["--for", "45m"]).stdout;
    let said = "\n--for 45m: 2 trials fit on one device, about 33 min 20 s, 1 of 2 rounds whole\n";
    assert!(fits.contains(said), "{fits}");
    let rest = place.run("", &["--for", "1h"]);
    assert_eq!(rest.status, Some(0), "{rest:?}");
    assert_eq!(place.column("trial"), ids);
}

#[test]
fn a_plan_of_several_files_gives_them_the_time_together_as_a_run_does() {
    let place = Place::of_command(MODEL, "sweep: {grid: {model.values.n: [1, 2]}}");
    assert_eq!(place.run("", &[]).status, Some(0));
    let_them_have_taken(&place, &[("1", "1000"), ("2", "1000")]);
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    for name in ["y", "z"] {
        let text = text.replace("name: x\n", &format!("name: {name}\n"));
        fs::write(place.path(&format!("{name}.yaml")), text).unwrap();
    }
    let planned = |more: &[&str]| {
        let arguments = [&["plan", "y.yaml", "z.yaml"], more].concat();
        Ended::of(place.kiln(&arguments).output().unwrap()).stdout
    };
    // A trial of 16 min 40 s begins if 20 min are left.
    let text = planned(&["--for", "1h"]);
    let said: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("--for"))
        .collect();
    assert_eq!(
        said,
        [
            "--for 1h: 2 trials fit on one device, about 33 min 20 s",
            "--for 1h, of which the files before leave about 26 min 40 s: 1 trial fits on one device, \
             about 16 min 40 s",
        ]
    );
    let text = planned(&["--for", "45m", "--json"]);
    let fits: Vec<(f64, u64)> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["fitting"].clone())
        .map(|fitting| {
            let left = fitting["left_seconds"].as_f64().unwrap();
            (left, fitting["trials"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(fits, [(2700.0, 2), (700.0, 0)]);
}

#[test]
fn a_trial_of_unknown_time_begins_while_time_is_left_and_is_not_stopped() {
    let model = "  argv: [sleep, '4.{n}']\n  values: {n: 2}";
    let place = Place::of_command(model, "sweep: {grid: {model.values.n: [2, 3]}}");
    let ended = place.run("", &["--for", "3s"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("outcome"), ["completed"]);
    assert!(
        ended
            .stderr
            .contains("1 trial left: the time of `--for 3s` is used up, and ")
            && ended.stderr.contains(" s more by the last trial"),
        "{ended:?}"
    );
}

#[test]
fn without_time_nothing_is_begun_and_a_time_that_cannot_be_kept_is_refused() {
    let place = Place::of_command(MODEL, "");
    let none = place.run("", &["--for", "0s"]);
    assert_eq!(none.status, Some(0), "{none:?}");
    assert!(none.stderr.contains("no trial is begun"), "{none:?}");
    assert!(!place.path("results").exists());
    for (more, said) in [
        (
            &["--for", "1h", "--on", "workers"][..],
            "`--for` goes with `--on here`",
        ),
        (
            &["--for", "1h", "--dry-run"][..],
            "`kiln plan FILE --for '1h'`",
        ),
        (&["--for", "5"][..], "`5` is not a duration"),
    ] {
        let refused = place.run("", more);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(said), "{refused:?}");
        assert!(!place.path("results").exists());
    }
}

#[test]
fn a_signal_ends_a_launch_with_a_time_as_any_other() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'touch at-work; exec sleep 500', '{n}']\n  values: {n: 1}",
        "sweep: {grid: {model.values.n: [1, 2]}}",
    );
    let kiln = place
        .kiln(&["run", "x.yaml", "--for", "1h"])
        .spawn()
        .unwrap();
    wait_until("the program runs", || place.path("at-work").exists());
    send(&kiln.id().to_string(), "TERM");
    let ended = Ended::of(kiln.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("interrupted; run the same command to resume")
            && !ended.stderr.contains("left: "),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["interrupted"]);
}

#[test]
fn a_run_of_workers_is_not_resumed_with_a_time() {
    let place = Place::of_command(MODEL, "");
    let queued = place.run("", &["--on", "workers", "--detach"]);
    assert_eq!(queued.status, Some(0), "{queued:?}");
    let refused = place.run("", &["--for", "1h"]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let said = "the trials of this run are those of workers";
    assert!(refused.stderr.contains(said), "{refused:?}");
}
