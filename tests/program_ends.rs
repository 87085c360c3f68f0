//! Programs of users and all that they start end with their trial and with kiln, however these end;
//! and no trial is lost by it.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

use crate::{
    form::by_form,
    scripted_child::{Ended, Place, hear, send, signal, table, variables, wait_until},
};

/// A program with a child, one in a session of its own, one that also has no environment and no
/// parent, and one that ignores SIGTERM.
const FAMILY: &str = "sleep 300 >/dev/null 2>&1 &
(setsid sleep 300 >/dev/null 2>&1 &)
(env -i setsid sleep 300 >/dev/null 2>&1 &)
sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' >/dev/null 2>&1 &
";

/// `x.yaml` runs `family.sh`, which then does this; `values` has a value `n` or is empty.
fn family(then: &str, values: &str, lines: &str) -> Place {
    let n = if values.is_empty() { "" } else { ", '{n}'" };
    let model = format!("  argv: [sh, family.sh, '{{folder}}'{n}]\n{values}");
    let place = Place::of_command(&model, lines);
    fs::write(place.path("family.sh"), format!("{FAMILY}{then}\n")).unwrap();
    place
}

/// The same with a program that is at work until it is ended.
fn waiting_family() -> Place {
    family(": >\"$1/at-work\"; wait", "", "")
}

fn at_work(place: &Place) -> Child {
    let kiln = place.start("");
    wait_until("the program is at work", || {
        place.attempts_with("at-work") >= 1
    });
    kiln
}

fn end(kiln: Child) -> Ended {
    Ended::of(kiln.wait_with_output().unwrap())
}

/// The only child of kiln: the relay.
fn relay(kiln: &Child) -> u32 {
    let children = kiln_hardware::children(kiln.id());
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

fn nothing_is_left(place: &Place, after: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while !place.inhabitants().is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left = place.inhabitants();
    let lines: Vec<String> = left
        .iter()
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .map(|line| line.replace('\0', " "))
        .collect();
    assert!(left.is_empty(), "left {after}: {lines:?}");
}

/// Every trial of the plan has one row that counts, and no attempt has two.
fn every_trial_counts_once(place: &Place, trials: usize, after: &str) {
    let rows = place.rows();
    let attempts: HashSet<(&str, &str)> = rows
        .iter()
        .map(|row| (row["trial"].as_str(), row["attempt"].as_str()))
        .collect();
    assert_eq!(
        attempts.len(),
        rows.len(),
        "{after}: an attempt stands twice"
    );
    let mut completed: HashMap<&str, usize> = HashMap::new();
    for row in &rows {
        match row["outcome"].as_str() {
            "completed" => *completed.entry(&row["trial"]).or_default() += 1,
            outcome => assert_eq!(outcome, "killed", "{after}: {row:?}"),
        }
    }
    assert_eq!(completed.len(), trials, "{after}: {completed:?}");
    assert!(
        completed.values().all(|count| *count == 1),
        "{after}: {completed:?}"
    );
}

#[test]
fn a_kill_of_kiln_at_a_random_moment_leaves_nothing_and_the_run_resumes() {
    let trials = "sweep: {grid: {model.values.n: [1, 2, 3]}}";
    let model = "  values: {n: 0}\n  metrics: {n: {line: 'n ([0-9]+)'}}";
    let new = || family("sleep 0.1; echo \"n $KILN_VALUE_N\"", model, trials);
    let begun = Instant::now();
    let undisturbed = new();
    assert_eq!(undisturbed.run("", &[]).status, Some(0));
    let time = begun.elapsed();
    nothing_is_left(&undisturbed, "without a kill");
    // The same moments each time, so that a failure can be repeated.
    let mut random = fastrand::Rng::with_seed(24);
    let mut killed = 0;
    for round in 0..by_form(8, 50) {
        let (place, moment) = (new(), time.mul_f64(random.f64()));
        let after = format!("in round {round}, killed after {moment:?} of {time:?}");
        let mut kiln = place.start("");
        // The kill itself has to come at a moment in time.
        std::thread::sleep(moment);
        kiln.kill().unwrap();
        killed += usize::from(!kiln.wait().unwrap().success());
        nothing_is_left(&place, &after);
        let resumed = place.run("", &[]);
        assert_eq!(resumed.status, Some(0), "{after}: {resumed:?}");
        every_trial_counts_once(&place, 3, &after);
        nothing_is_left(&place, &after);
    }
    assert!(killed > 0, "every kill came too late");
}

#[test]
fn a_kill_of_the_relay_alone_leaves_nothing_and_the_trial_runs_again() {
    let place = waiting_family();
    let kiln = at_work(&place);
    send(&relay(&kiln).to_string(), "KILL");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert_eq!(place.column("outcome"), ["killed"]);
    assert!(place.column("reason")[0].contains("SIGKILL"), "{ended:?}");
    nothing_is_left(&place, "after the relay was killed");
    fs::write(place.path("family.sh"), "exit 0").unwrap();
    assert_eq!(place.run("", &[]).status, Some(0));
    every_trial_counts_once(&place, 1, "after the relay was killed");
}

/// Somebody sees the relay in a list of processes and ends it.
#[test]
fn a_signal_to_the_relay_alone_ends_the_program() {
    let place = waiting_family();
    let kiln = at_work(&place);
    send(&relay(&kiln).to_string(), "TERM");
    let ended = end(kiln);
    assert_eq!(place.column("outcome"), ["killed"], "{ended:?}");
    let reason = &place.column("reason")[0];
    assert!(reason.contains("by something other than kiln"), "{reason}");
    nothing_is_left(&place, "after the relay was told to stop");
}

/// `killall -9 kiln` names kiln and all that is called so.
#[test]
fn a_relay_does_not_go_by_the_name_of_kiln() {
    let place = waiting_family();
    let mut kiln = at_work(&place);
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name(kiln.id()).trim(), "kiln");
    assert_eq!(name(relay(&kiln)).trim(), "trial-relay");
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    nothing_is_left(&place, "after kiln was killed");
}

/// Each of them lives for some milliseconds, so that a list of processes is always too old.
#[test]
fn processes_that_hand_themselves_on_end_with_the_program_and_with_kiln() {
    let text = "import os, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        os.close(1), os.close(2)
        while os.path.exists('x.yaml'):
            if os.fork(): os._exit(0)
            time.sleep(0.003)
        os._exit(0)
open(sys.argv[1] + '/at-work', 'w').close()
time.sleep(300 if sys.argv[2] == 'stay' else 0.2)
";
    let place = Place::of_command(
        "  argv: [python3, chain.py, '{folder}', '{end}']\n  values: {end: ''}",
        "sweep: {grid: {model.values.end: [go, stay]}}",
    );
    fs::write(place.path("chain.py"), text).unwrap();
    let mut kiln = place.start("");
    wait_until("the second program is at work", || {
        place.attempts_with("at-work") == 2
    });
    let is_chain = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.contains("chain.py") && line.contains("\0go\0"))
    };
    // Each look may miss it.
    for _ in 0..50 {
        let left: Vec<u32> = place.inhabitants().into_iter().filter(is_chain).collect();
        assert!(left.is_empty(), "left by the first trial: {left:?}");
    }
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    nothing_is_left(&place, "after kiln was killed");
    for _ in 0..50 {
        assert!(place.inhabitants().is_empty(), "left after kiln was killed");
    }
}

#[test]
fn a_program_has_the_signal_mask_of_kiln() {
    let place = Place::of_command("  argv: [sh, -c, 'grep SigBlk /proc/self/status']", "");
    assert_eq!(place.run("", &[]).status, Some(0));
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let printed = fs::read_to_string(place.attempts()[0].join("stdout.txt")).unwrap();
    assert!(
        own.contains(&printed) && printed.contains("SigBlk"),
        "{printed}"
    );
}

#[test]
fn what_a_program_leaves_at_its_end_ends_with_its_trial() {
    // It also holds the output.
    let place = family("setsid sleep 300 & echo done", "", "");
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(place.inhabitants().is_empty());
    assert_eq!(place.column("outcome"), ["completed"]);
}

#[test]
fn an_engine_and_all_that_it_started_end_with_kiln() {
    let place = Place::with("");
    let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
    let engines = format!("own: {{argv: [{}]}}", child.display());
    place.write(&format!(
        "train: {{steps: 10}}\nrun: {{devices: cpu, engine: own, engines: {{{engines}}}}}"
    ));
    let mut kiln = place.start("escapes_and_waits");
    wait_until("the engine is at work", || {
        place.attempts_with("at-work") == 1
    });
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    nothing_is_left(&place, "after kiln was killed");
    for (scenario, outcome, words) in [
        ("completes", "completed", ""),
        ("segfaults", "failed", "signal 11"),
        ("says_failed", "failed", "the data is of no use"),
        ("runs_out", "oom", "device memory ran out"),
        ("is_killed", "killed", "SIGKILL"),
    ] {
        let ended = place.run(scenario, &["--fresh"]);
        assert_eq!(place.column("outcome"), [outcome], "{scenario}: {ended:?}");
        let reason = &place.column("reason")[0];
        assert!(reason.contains(words), "{scenario}: {reason}");
    }
}

#[test]
fn an_engine_that_builds_another_model_than_planned_is_told_and_noted() {
    let place = Place::with("train: {steps: 10}\nrun: {devices: cpu}");
    let planned = place.run("completes", &[]);
    assert!(
        !planned.stderr.contains("not the same model"),
        "{planned:?}"
    );
    let row = place.rows().remove(0);
    assert!(!row["flops_per_sample"].is_empty() && !row["notes"].contains("parameters: "));

    let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
    let engines = format!("own: {{argv: [{}]}}", child.display());
    place.write(&format!(
        "train: {{steps: 10}}\nrun: {{devices: cpu, engine: own, engines: {{{engines}}}}}"
    ));
    let built = place.run("completes", &["--fresh"]);
    let words = "parameters: 7, and the plan has 0: not the same model";
    assert_eq!(built.stderr.matches(words).count(), 1, "{built:?}");
    let row = place.rows().remove(0);
    assert_eq!(row["outcome"], "completed");
    assert_eq!(row["parameters"], "7");
    assert_eq!((&*row["flops_per_sample"], &*row["mfu"]), ("", ""));
    let why = "the FLOPs of the plan are those of another model";
    for note in [
        words.to_owned(),
        format!("flops_per_sample: {why}"),
        format!("mfu: {why}"),
    ] {
        assert!(row["notes"].contains(&note), "{note}: {}", row["notes"]);
    }
}

#[test]
fn what_an_engine_lacks_is_in_its_own_words() {
    let place = Place::with("");
    let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
    let engines = format!("own: {{argv: [{}]}}", child.display());
    place.write(&format!(
        "train: {{steps: 10}}\nrun: {{devices: cpu, engine: own, engines: {{{engines}}}}}"
    ));
    let ended = place.run("no_device", &[]);
    let told = "so no more are started; `stderr.txt` has what engine `own` said";
    assert!(
        ended.status == Some(3) && ended.stderr.contains(told),
        "{ended:?}"
    );
}

#[test]
fn an_engine_is_told_to_stop_and_heard_out() {
    let place = Place::with("");
    let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
    let engines = format!("own: {{argv: [{}]}}", child.display());
    place.write(&format!(
        "train: {{steps: 10}}\nrun: {{devices: cpu, engine: own, engines: {{{engines}}}}}"
    ));
    let kiln = place.start("obeys_term");
    wait_until("the engine is at work", || {
        place.attempts_with("at-work") == 1
    });
    signal(&kiln, "TERM");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    nothing_is_left(&place, "after SIGTERM");
}

const TWO: &str = "sweep: {grid: {model.values.n: [1, 2]}}";
const N: &str = "  values: {n: 0}\n  metrics: {n: {line: 'n ([0-9]+)'}}";
/// Waits for its release.
const UNTIL_RELEASED: &str =
    ": >\"$1/at-work\"; until [ -e release ]; do sleep 0.02; done; echo \"n $KILN_VALUE_N\"";

#[test]
fn the_first_ctrl_c_lets_a_program_finish_and_starts_no_more() {
    let place = family(UNTIL_RELEASED, N, TWO);
    let mut kiln = at_work(&place);
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing 1 running trial and starting no more");
    place.release();
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["completed"]);
    nothing_is_left(&place, "after Ctrl-C");
    assert_eq!(place.run("", &[]).status, Some(0));
    every_trial_counts_once(&place, 2, "after Ctrl-C");
}

#[test]
fn the_second_ctrl_c_and_sigterm_stop_a_program_and_leave_nothing() {
    for signals in [&["INT", "INT"][..], &["TERM"]] {
        let place = family(UNTIL_RELEASED, N, TWO);
        let mut kiln = at_work(&place);
        signal(&kiln, signals[0]);
        if signals.len() > 1 {
            hear(&mut kiln, "finishing");
            signal(&kiln, signals[1]);
        }
        let ended = end(kiln);
        assert_eq!(ended.status, Some(130), "{signals:?}: {ended:?}");
        assert_eq!(place.column("outcome"), ["interrupted"]);
        nothing_is_left(&place, "after the run was stopped");
        place.release();
        assert_eq!(place.run("", &[]).status, Some(0));
        assert_eq!(
            place.column("outcome"),
            ["interrupted", "completed", "completed"],
            "{signals:?}"
        );
    }
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_after_its_grace() {
    let place = family(
        "trap '' TERM; : >\"$1/at-work\"; while :; do sleep 0.02; done",
        "",
        "",
    );
    let kiln = at_work(&place);
    let told = Instant::now();
    signal(&kiln, "TERM");
    let ended = end(kiln);
    assert!(told.elapsed() >= Duration::from_secs(5), "{ended:?}");
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    nothing_is_left(&place, "after its grace");
}

#[test]
fn the_numbers_of_a_program_that_ignores_sigterm_are_kept() {
    let place = Place::of_command(
        "  argv: [sh, program.sh]\n  metrics: {loss: {line: 'loss (\\S+)'}, speed: {line: 'speed \
         (\\S+)'}}",
        "run: {timeout: 1s}",
    );
    let text = "trap '' TERM\n(trap '' TERM; sleep 300) &\necho loss 2.5\necho speed 7\nwhile :; do \
                sleep 0.02; done\n";
    fs::write(place.path("program.sh"), text).unwrap();
    let ended = place.run("", &[]);
    assert_eq!(place.column("outcome"), ["timed-out"], "{ended:?}");
    assert_eq!(place.column("metric.loss"), ["2.5"]);
    assert_eq!(place.column("metric.speed"), ["7.0"]);
    nothing_is_left(&place, "after its grace");
}

/// It needs longer to save than a program without checkpoints would have.
#[test]
fn a_program_that_saves_at_sigterm_has_a_minute_and_goes_on_from_there() {
    let save = "trap 'sleep 6; echo $at >\"$2/at\"; exit 0' TERM
at=$(cat \"$2/at\" 2>/dev/null || echo 0)
echo \"from $at\"
while [ $at -lt 5 ]; do at=$((at + 1)); [ $at -lt 3 ] || : >\"$1/at-work\"; [ $at -lt 3 ] || [ -e release ] || sleep 300 & wait $!; done
echo \"at $at\"";
    let model = "  checkpoints: true\n  metrics: {at: {line: 'at (\\d+)'}, from: {line: 'from (\\d+)'}, wall: {measured: wall_seconds}}";
    let place = Place::of_command(
        &format!("  argv: [sh, save.sh, '{{folder}}', '{{checkpoint_folder}}']\n{model}"),
        "",
    );
    fs::write(place.path("save.sh"), save).unwrap();
    let kiln = at_work(&place);
    signal(&kiln, "TERM");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    nothing_is_left(&place, "after it saved");
    place.release();
    let resumed = place.run("", &[]);
    assert_eq!(resumed.status, Some(0), "{resumed:?}");
    assert_eq!(place.column("metric.at")[1], "5.0");
    assert_eq!(place.column("metric.from")[1], "3.0", "it began anew");
    assert_eq!(
        place.column("metric.wall")[1],
        "",
        "it is of the rest alone"
    );
    let notes = &place.column("notes")[1];
    assert!(
        notes.contains("resumed: files of an earlier attempt were in its checkpoint folder"),
        "{notes}"
    );
}

#[test]
fn prepare_that_is_killed_or_stopped_or_loses_kiln_leaves_nothing() {
    let prepare = |text: &str| {
        let text = serde_json::to_string(text).unwrap();
        Place::of_command(
            &format!("  argv: [sh, -c, 'echo ran >ran']\n  prepare: [sh, -c, {text}]"),
            "",
        )
    };
    let place = prepare("echo compiling; kill -KILL $$");
    let ended = place.run("", &[]);
    assert_eq!(place.column("outcome"), ["failed"], "{ended:?}");
    let reason = &place.column("reason")[0];
    assert!(
        reason.contains("prepare was ended by signal 9: compiling"),
        "{reason}"
    );
    for name in ["TERM", "KILL"] {
        let place = prepare("setsid sleep 300 & : >at-work; wait");
        let kiln = place.start("");
        wait_until("prepare is at work", || place.path("at-work").exists());
        signal(&kiln, name);
        end(kiln);
        nothing_is_left(&place, "after prepare was ended");
        assert!(!place.path("ran").exists(), "the program was started");
    }
}

/// A new version is installed while a sweep runs.
#[test]
fn the_relay_is_the_launchs_own_kiln_even_if_its_file_is_replaced() {
    let place = family(UNTIL_RELEASED, N, TWO);
    let kiln = place.path("kiln");
    // By a process of its own: a file that this process writes is not executed while a fork of another
    // test has it open.
    let copied = std::process::Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_kiln"))
        .arg(&kiln)
        .status()
        .unwrap();
    assert!(copied.success());
    let prototype = place.kiln(&["run", "x.yaml"]);
    let mut command = std::process::Command::new(&kiln);
    command
        .args(prototype.get_args())
        .envs(variables(&prototype))
        .current_dir(place.path(""))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let running = command.spawn().unwrap();
    wait_until("the program is at work", || {
        place.attempts_with("at-work") == 1
    });
    fs::remove_file(&kiln).unwrap();
    fs::write(&kiln, "another version").unwrap();
    place.release();
    let ended = end(running);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    every_trial_counts_once(&place, 2, "after kiln was replaced");
}

#[test]
fn a_trial_whose_folder_was_removed_is_interrupted_and_runs_again() {
    let script = "if ! test -e removed; then : >removed; rm -rf results/x/*/trials; fi";
    let argv = format!("  argv: [sh, -c, '{script}']");
    let place = Place::of_command(&argv, "sweep: {repeats: 2}");
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("the folder of the trial was removed"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert_eq!(place.run("", &[]).status, Some(0));
    assert_eq!(
        place.column("outcome"),
        ["interrupted", "completed", "completed"]
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn a_program_that_may_not_write_its_own_file_has_failed() {
    let script = "echo \"open out.pt: Permission denied\" >&2; exit 1";
    let place = Place::of_command(&format!("  argv: [sh, -c, '{script}']"), "");
    assert_eq!(place.run("", &[]).status, Some(1));
    assert_eq!(place.column("outcome"), ["failed"]);
}

#[test]
fn the_snapshot_of_a_launch_that_a_clean_removes_is_written_again() {
    let script = "rm -f results/x/*/snapshots.csv results/x/*/snapshot-1.txt";
    let place = Place::of_command(&format!("  argv: [sh, -c, '{script}']"), "");
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("the snapshot of this launch was"),
        "{ended:?}"
    );
    let of_launch = table(&place.latest().join("snapshots.csv"))
        .into_iter()
        .filter(|row| row["moment"] == "launch" && row["device"] == "host")
        .count();
    assert!(of_launch > 5, "{of_launch}");
    let page = fs::read_to_string(place.latest().join("snapshot-1.txt")).unwrap();
    assert!(page.starts_with("Host\n"), "{page}");
}

#[test]
fn the_time_of_a_trial_that_ends_while_kiln_is_stopped_ends_with_its_result() {
    let script = ": >at-work; until test -e go; do sleep 0.02; done";
    let place = Place::of_command(&format!("  argv: [sh, -c, '{script}']"), "");
    let begun = Instant::now();
    let kiln = place.start("");
    wait_until("the program is at work", || place.path("at-work").exists());
    signal(&kiln, "STOP");
    fs::write(place.path("go"), "").unwrap();
    wait_until("the result is written", || {
        place.attempts_with("trial.json") == 1
    });
    // The pause itself, which has to be longer than a second.
    std::thread::sleep(Duration::from_secs(3));
    let whole = begun.elapsed();
    signal(&kiln, "CONT");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let row = place.rows().remove(0);
    let seconds: f64 = row["trial_seconds"].parse().unwrap();
    assert!(
        seconds < whole.as_secs_f64() - 2.5,
        "{seconds} of {whole:?}"
    );
    let note = "trial_seconds: kiln did not run for ";
    assert!(row["notes"].contains(note), "{row:?}");
}
