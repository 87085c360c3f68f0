//! `kiln run` asked to stop: Ctrl-C once, twice, thrice, SIGTERM, SIGHUP, a closed terminal;
//! nothing is left running, everything is kept.

use std::{
    fs,
    process::Child,
    time::{Duration, Instant},
};

use kiln_core::record::lock::holder;

use crate::scripted_child::{
    Ended, Place, REAL_MLP, hear, read_until, real_trial, send, signal, variables, wait_until,
};

const TWO: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}";

/// A sweep whose first trial is at work.
fn started(place: &Place, scenario: &str) -> Child {
    let child = place.start(scenario);
    wait_until("the first child is at work", || {
        place.attempts_with("at-work") == 1
    });
    child
}

fn end(kiln: Child) -> Ended {
    Ended::of(kiln.wait_with_output().unwrap())
}

/// The process of the only child: `sleep`s come and go, the script itself stays.
fn script(place: &Place) -> u32 {
    let is_script = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "child.sh")
    };
    place.processes().into_iter().find(is_script).unwrap()
}

#[test]
fn the_first_ctrl_c_finishes_the_running_trial_and_starts_no_more() {
    let place = Place::with(TWO);
    let mut kiln = started(&place, "waits");
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing 1 running trial and starting no more");
    assert!(
        !place.processes().is_empty(),
        "the run goes on until the trial ends by itself"
    );
    place.release();
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("interrupted; run the same command to resume"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["completed"]);
    assert_eq!(
        place.run_file()["launches"][0]["ended"]["how"],
        "interrupted"
    );
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(place.column("outcome"), ["completed", "completed"]);
}

#[test]
fn an_interrupted_retry_says_what_the_same_command_would_do() {
    let place = Place::with(TWO);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let mut retry = place.kiln(&["run", "x.yaml", "--rerun", "completed"]);
    let mut kiln = retry.env("SCRIPTED_CHILD", "waits").spawn().unwrap();
    wait_until("a child is at work", || !place.processes().is_empty());
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing 1 running trial and starting no more");
    place.release();
    let ended = end(kiln);
    // The second trial has a final row and was to run all the same.
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("may retry again what was retried already; with `--only ID,…` it runs only"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome").len(), 3);
}

#[test]
fn ctrl_c_ends_a_rerun_after_the_running_trial() {
    let place = Place::with(TWO);
    let mut kiln = place
        .kiln(&["compare", "--rerun", "x.yaml", "x.yaml"])
        .env("SCRIPTED_CHILD", "waits")
        .spawn()
        .unwrap();
    hear(&mut kiln, "rerun: 1 of 4");
    wait_until("a child is at work", || !place.processes().is_empty());
    script(&place);
    signal(&kiln, "INT");
    std::thread::sleep(Duration::from_millis(300));
    place.release();
    let ended = end(kiln);
    assert!(
        ended.status == Some(130)
            && ended
                .stderr
                .contains("interrupted; the trials that ran are under"),
        "{ended:?}"
    );
    assert!(!ended.stderr.contains("rerun: 2 of 4"), "{ended:?}");
}

#[test]
fn the_second_ctrl_c_stops_the_children_now() {
    let place = Place::with(TWO);
    let mut kiln = started(&place, "hangs");
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing");
    signal(&kiln, "INT");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert_eq!(place.processes(), [0_u32; 0]);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(
        place.column("outcome"),
        ["interrupted", "completed", "completed"]
    );
    assert_eq!(place.column("attempt"), ["1", "2", "1"]);
}

#[test]
fn sigterm_and_sighup_stop_at_once_and_an_obedient_child_is_heard_out() {
    for (name, scenario) in [
        ("TERM", "obeys_term"),
        ("TERM", "grandchild_waits"),
        ("HUP", "obeys_term"),
    ] {
        let place = Place::with(TWO);
        let kiln = started(&place, scenario);
        signal(&kiln, name);
        let ended = end(kiln);
        assert_eq!(ended.status, Some(130), "{name} {scenario}: {ended:?}");
        assert_eq!(
            place.column("outcome"),
            ["interrupted"],
            "{name} {scenario}"
        );
        assert!(
            place.column("reason")[0].contains("was stopped with the run after"),
            "{name} {scenario}"
        );
        assert_eq!(place.processes(), [0_u32; 0], "{name} {scenario}");
    }
}

/// The system sends SIGHUP to what runs in a terminal that is closed, and nothing can be printed
/// there any more.
#[test]
fn a_closed_terminal_stops_the_run_and_its_children() {
    let place = Place::with(TWO);
    let mut terminal = place
        .in_a_terminal(&["run", "x.yaml"])
        .env("SCRIPTED_CHILD", "obeys_term")
        .spawn()
        .unwrap();
    read_until(terminal.stdout.as_mut().unwrap(), "3/10 steps");
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    wait_until("the run has ended", || {
        holder(&place.path("results"), "x").is_none()
    });
    assert_eq!(
        place.run_file()["launches"][0]["ended"]["how"],
        "interrupted"
    );
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert_eq!(place.processes(), [0_u32; 0]);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    assert_eq!(
        place.column("outcome"),
        ["interrupted", "completed", "completed"]
    );
}

#[test]
fn a_closed_terminal_gives_the_status_of_an_interruption() {
    let place = Place::with(TWO);
    // The system tells the shell that the terminal is gone. It hands the signal on, as an interactive
    // one does, and outlives the terminal to keep the status. The first `wait` ends by the signal.
    let run = "\"$PROGRAM\" run x.yaml & trap \"kill -HUP $!\" HUP; wait $!; wait $!; \
               echo $? >status.new; mv status.new status";
    let mut terminal = place
        .commands_in_a_terminal(run)
        .env("SCRIPTED_CHILD", "obeys_term")
        .spawn()
        .unwrap();
    read_until(terminal.stdout.as_mut().unwrap(), "3/10 steps");
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    wait_until("the run has ended", || place.path("status").exists());
    let status = fs::read_to_string(place.path("status")).unwrap();
    assert_eq!(status.trim(), "130");
}

/// `nohup` ignores SIGHUP for what it starts.
#[test]
fn a_hangup_that_is_ignored_at_the_start_stays_ignored() {
    let place = Place::with(TWO);
    let kiln = place.kiln(&[]);
    let mut nohup = std::process::Command::new("sh");
    nohup
        .args(["-c", "trap '' HUP; exec \"$0\" run x.yaml --progress plain"])
        .arg(kiln.get_program())
        .envs(variables(&kiln))
        .env("SCRIPTED_CHILD", "waits")
        .current_dir(place.path(""))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut kiln = nohup.spawn().unwrap();
    wait_until("the first child is at work", || {
        place.attempts_with("at-work") == 1
    });
    signal(&kiln, "HUP");
    // The first signal that it heeds is this one.
    signal(&kiln, "INT");
    hear(&mut kiln, "finishing 1 running trial and starting no more");
    place.release();
    assert_eq!(end(kiln).status, Some(130));
    assert_eq!(place.column("outcome"), ["completed"]);
}

#[test]
fn a_trial_that_somebody_interrupts_says_which_signal_it_was() {
    let place = Place::with("");
    let endless = REAL_MLP.replace("steps: 3", "steps: 1000000");
    fs::write(place.path("x.yaml"), endless).unwrap();
    let mut kiln = place
        .kiln(&["run", "x.yaml", "--progress", "json"])
        .env("KILN_TRIAL", real_trial())
        .spawn()
        .unwrap();
    read_until(kiln.stdout.as_mut().unwrap(), "\"step\":1");
    let trial = place.processes()[0];
    send(&trial.to_string(), "INT");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert_eq!(place.column("outcome"), ["killed"]);
    let reason = &place.column("reason")[0];
    assert!(
        reason.contains("by something other than kiln (SIGINT stopped the trial")
            && !reason.contains("SIGTERM"),
        "{reason}"
    );
}

/// `docker pause` stops kiln and its children; so does a machine that sleeps.
#[test]
fn the_time_for_which_kiln_and_its_child_were_stopped_is_no_silence() {
    const STALL: Duration = Duration::from_secs(10);
    let place = Place::with(&format!(
        "train: {{steps: 10}}\nrun: {{stall: {}s, timeout: 1h}}",
        STALL.as_secs()
    ));
    let kiln = started(&place, "hangs");
    let group = format!("-{}", script(&place));
    let all = |name: &str| send(&group, name);
    let looks = || {
        let switches = || {
            let status = fs::read_to_string(format!("/proc/{}/status", kiln.id())).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt"));
            line.unwrap().to_owned()
        };
        for _ in 0..2 {
            let before = switches();
            wait_until("kiln has looked", || switches() != before);
        }
    };
    all("STOP");
    // Its last message is read.
    looks();
    signal(&kiln, "STOP");
    // The stop itself must last longer than the limit.
    std::thread::sleep(STALL + Duration::from_secs(1));
    signal(&kiln, "CONT");
    let woken = Instant::now();
    // kiln looks at its silent child before the child goes on.
    looks();
    all("CONT");
    assert!(woken.elapsed() < STALL, "the child was silent for too long");
    signal(&kiln, "TERM");
    let ended = end(kiln);
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
}

#[test]
fn a_child_that_ignores_sigterm_is_killed_by_one_more_signal() {
    // A trial that keeps checkpoints has a minute to end after SIGTERM, so it is clear which of the
    // two ended it.
    let place = Place::with("");
    let model = "model: {kind: mlp, d_model: 8, hidden: 16, seq_len: 16}\ndata: {kind: generated}";
    let train = "train: {steps: 10, checkpoint: {every_steps: 5}}\nsweep: {grid: \
                 {train.batch_size: [1, 2]}}";
    fs::write(
        place.path("x.yaml"),
        format!("kiln: 1\nname: x\n{model}\n{train}\n"),
    )
    .unwrap();
    let mut kiln = started(&place, "ignores_term");
    // Twice at once, as where all processes of a job are told: that is one request.
    signal(&kiln, "TERM");
    signal(&kiln, "TERM");
    hear(&mut kiln, "stopping the running trials");
    assert!(!place.processes().is_empty(), "it was given grace");
    let begun = Instant::now();
    signal(&kiln, "INT");
    let ended = end(kiln);
    assert!(
        begun.elapsed() < Duration::from_secs(40),
        "it was waited for"
    );
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert_eq!(place.processes(), [0_u32; 0]);
}

#[test]
fn children_are_in_a_process_group_of_their_own() {
    let place = Place::with(TWO);
    let kiln = started(&place, "waits");
    let group = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .nth(2)
            .unwrap()
            .to_owned()
    };
    let own = group(kiln.id());
    let script = script(&place);
    assert_eq!(group(script), script.to_string());
    assert_ne!(group(script), own);
    place.release();
    assert_eq!(end(kiln).status, Some(0));
}
