//! `kiln run --on slurm` on a cluster that is a folder: tests/slurm/fake has the programs, and its
//! `sbatch` really starts the tasks.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use crate::{
    form::by_form,
    scripted_child::{Ended, Place, Row, hear, program::write_program, send, signal, wait_until},
};

/// A sweep of this many trials. Each waits for the file `release` in its place, if `waits`.
fn sweep(trials: usize, waits: bool, workers: u32, more: &str) -> Place {
    let place = Place::with("");
    let values: Vec<String> = (1..=trials).map(|value| value.to_string()).collect();
    let pause = match waits {
        true => format!(
            "while [ ! -e {} ]; do sleep 0.05; done; ",
            place.path("release").display()
        ),
        false => String::new(),
    };
    let setup = "'export KILN_LOCKS=\"$PWD/locks-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID\"'";
    place.write_command(
        &format!(
            "  argv: [sh, -c, '{pause}echo loss $KILN_VALUE_LAST']\n  values: {{last: 3}}\n  \
             metrics: {{train_loss: {{line: 'loss ([0-9]+)'}}}}"
        ),
        &format!(
            "run: {{devices: cpu, on: slurm, slurm: {{workers: {workers}, environment: \
             [KILN_TRIAL, KILN_BEAT_SECONDS], setup: [{setup}]{more}}}}}\n\
             sweep: {{grid: {{model.values.last: [{}]}}}}",
            values.join(", ")
        ),
    );
    fs::create_dir(cluster(&place)).unwrap();
    place
}

/// The folder that is the cluster.
fn cluster(place: &Place) -> PathBuf {
    place.path("cluster")
}

/// Makes something wrong with the cluster, or with one of its programs.
fn fault(place: &Place, name: &str, text: &str) {
    fs::write(cluster(place).join(name), text).unwrap();
}

fn no_fault(place: &Place, name: &str) {
    fs::remove_file(cluster(place).join(name)).unwrap();
}

/// A program with those of the cluster before all others.
fn on_cluster(place: &Place, command: &mut Command) {
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slurm/fake");
    let path = std::env::var("PATH").unwrap();
    command
        .env("PATH", format!("{}:{path}", fake.display()))
        .env("FAKE_SLURM", cluster(place))
        .env("KILN_BEAT_SECONDS", "0.2")
        .env("SLURM_CPU_BIND", "quiet,mask_cpu:0x1");
}

fn kiln(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.kiln(arguments);
    on_cluster(place, &mut command);
    command
}

fn end(place: &Place, arguments: &[&str]) -> Ended {
    Ended::of(kiln(place, arguments).output().unwrap())
}

fn start(place: &Place, arguments: &[&str]) -> Child {
    kiln(place, arguments).spawn().unwrap()
}

/// `kiln doctor --on slurm` about the file and the results of a place.
fn doctor(place: &Place, more: &[&str]) -> Command {
    let results = place.path("results").display().to_string();
    let asked = ["doctor", "--on", "slurm", "x.yaml", "--results", &results];
    kiln(place, &[&asked[..], more].concat())
}

fn examined(place: &Place, more: &[&str]) -> Ended {
    Ended::of(doctor(place, more).output().unwrap())
}

/// A task ends as a cluster would end it.
fn end_task(place: &Place, task: &str, state: &str) {
    let mut command = Command::new("fake");
    on_cluster(place, &mut command);
    assert!(
        command
            .args(["end", task, state])
            .status()
            .unwrap()
            .success()
    );
}

/// Sends SIGTERM to the workers of a job.
fn signal_workers(place: &Place, job: &str) {
    let mut command = Command::new("scancel");
    on_cluster(place, &mut command);
    command.args(["--batch", "--signal=TERM", job]);
    assert!(command.status().unwrap().success());
}

fn script(place: &Place, submission: u64) -> String {
    let path = place.latest().join(format!("submit/{submission}/job.sh"));
    fs::read_to_string(path).unwrap_or_default()
}

fn is_running(place: &Place, trials: usize) -> bool {
    // A trial is a shell and its program.
    place.latest().exists() && place.processes().len() >= trials
}

fn outcomes(place: &Place) -> Vec<(String, String)> {
    let pair = |row: Row| (row["outcome"].clone(), row["reason"].clone());
    place.rows().into_iter().map(pair).collect()
}

#[test]
fn workers_in_a_job_array_leave_the_rows_of_a_single_launch() {
    let place = sweep(
        6,
        false,
        2,
        ", partition: gpu, cpus: 2, memory: 1GiB, time: 1h",
    );
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("job 100: 2 tasks, partition gpu, 2 CPUs, 1GiB, 1h; Ctrl-C leaves"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("6 trials: 6 completed"),
        "{}",
        ended.stdout
    );
    assert_eq!(place.column("train_loss").len(), 6);
    let text = script(&place, 1);
    assert!(text.contains("#SBATCH --array=0-1\n"), "{text}");
    assert!(
        text.contains("#SBATCH --partition=gpu\n#SBATCH --cpus-per-task=2\n"),
        "{text}"
    );
    assert!(!text.contains("SLURM_CPU_BIND"), "{text}");
    let launches = place.run_file()["launches"].as_array().unwrap().clone();
    let tasks: Vec<(u64, u64)> = launches
        .iter()
        .filter(|launch| launch["slurm"]["job"] == 100)
        .map(|launch| {
            let of = |key: &str| launch["slurm"][key].as_u64().unwrap();
            (of("task"), of("restarts"))
        })
        .collect();
    assert!(
        !tasks.is_empty()
            && tasks
                .iter()
                .all(|(task, restarts)| *task < 2 && *restarts == 0)
    );
    // The name of a node is an identity.
    assert!(!place.run_file().to_string().contains("\"n1\""));
    let again = end(&place, &["run", "x.yaml"]);
    assert!(
        again.stderr.contains("every trial already has its result"),
        "{again:?}"
    );
    assert_eq!((again.status, place.runs()), (Some(0), 1));
}

#[test]
fn no_more_workers_are_asked_for_than_there_are_tickets_or_tasks_of_an_array() {
    let place = sweep(2, false, 8, "");
    let ended = end(&place, &["run", "x.yaml"]);
    assert!(
        ended.stderr.contains("2 tickets for 8 workers") && ended.stderr.contains("asking for 2"),
        "{ended:?}"
    );
    assert!(script(&place, 1).contains("#SBATCH --array=0-1\n"));
    assert!(!place.latest().join("submit/2").exists());
    for workers in [4, 8] {
        let place = sweep(4, false, workers, "");
        fault(&place, "most", "4");
        let ended = end(&place, &["run", "x.yaml"]);
        let told = format!("at most 3 tasks (MaxArraySize); asking for 3 of {workers} workers");
        assert!(ended.stderr.contains(&told), "{ended:?}");
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(!place.latest().join("submit/2").exists());
    }
}

#[test]
fn a_job_whose_reply_was_lost_is_found_by_its_name() {
    let place = sweep(3, false, 2, "");
    fault(
        &place,
        "fault-sbatch",
        "lose: Batch job submission failed: Socket timed out",
    );
    fault(&place, "hold", "");
    let ended = end(&place, &["run", "x.yaml", "--detach"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("job 100: 2 tasks"), "{ended:?}");
    // kiln itself died between the reply and its note.
    let path = place.latest().join("submit/1/submission.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(",\n  \"job\": 100", "")).unwrap();
    no_fault(&place, "hold");
    let ended = end(&place, &["run", "x.yaml"]);
    assert!(ended.stdout.contains("3 trials: 3 completed"), "{ended:?}");
    assert!(fs::read_to_string(&path).unwrap().contains("\"job\": 100"));
    assert!(!place.latest().join("submit/2").exists());
}

#[test]
fn a_submission_that_is_on_its_way_is_not_made_twice() {
    let place = sweep(3, false, 2, "");
    fault(&place, "hold", "");
    let submit = ["run", "x.yaml", "--detach"];
    assert_eq!(end(&place, &submit).status, Some(0));
    // Another kiln waits for the reply, and Slurm does not know the job yet.
    let path = place.latest().join("submit/1/submission.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut asked: serde_json::Value = serde_json::from_str(&text).unwrap();
    asked["name"] = "kiln-x-on-its-way".into();
    asked.as_object_mut().unwrap().remove("job");
    fs::write(&path, asked.to_string()).unwrap();
    let told = "workers of this run were asked for a moment ago (submit/1)";
    let refused = end(&place, &submit);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(refused.stderr.contains(told), "{refused:?}");
    assert!(!place.latest().join("submit/2").exists());
    // It gave up, or is long gone: Slurm is asked for its name, knows none, and others are asked for.
    for (key, value) in [
        ("given_up", true.into()),
        ("submitted_utc", "2026-01-01T00:00:00Z".into()),
    ] {
        let mut gone = asked.clone();
        gone[key] = value;
        fs::write(&path, gone.to_string()).unwrap();
        for submission in fs::read_dir(place.latest().join("submit"))
            .unwrap()
            .flatten()
        {
            if submission.path().is_dir() && submission.file_name() != "1" {
                fs::remove_dir_all(submission.path()).unwrap();
            }
        }
        let again = end(&place, &submit);
        assert_eq!(again.status, Some(0), "{key}: {again:?}");
        assert!(again.stdout.contains(": 2 tasks"), "{key}: {again:?}");
        let first: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert!(first["refused"].is_string(), "{key}: {first}");
    }
}

#[test]
fn what_sbatch_refuses_is_told_in_its_words_and_the_same_command_goes_on() {
    let place = sweep(2, false, 2, "");
    let words = "Batch job submission failed: Invalid partition name specified";
    fault(&place, "fault-sbatch", &format!("refuse: {words}"));
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains(&format!("sbatch: {words}; the run and its queue are kept")),
        "{ended:?}"
    );
    no_fault(&place, "fault-sbatch");
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!((ended.status, place.runs()), (Some(0), 1), "{ended:?}");
    // Without Slurm's programs.
    let place = sweep(1, false, 1, "");
    fs::create_dir(place.path("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", place.path("bin/sh")).unwrap();
    let mut command = kiln(&place, &["run", "x.yaml"]);
    let ended = Ended::of(command.env("PATH", place.path("bin")).output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("there is no `sbatch` in `PATH`"),
        "{ended:?}"
    );
}

#[test]
fn who_leaves_comes_back_and_a_second_one_asks_for_nothing() {
    let place = sweep(3, false, 2, "");
    fault(&place, "hold", "");
    let ended = end(&place, &["run", "x.yaml", "--detach"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let mut second = start(&place, &["run", "x.yaml"]);
    hear(
        &mut second,
        "2 of 2 workers wait in Slurm's queue (Priority)",
    );
    signal(&second, "INT");
    let left = Ended::of(second.wait_with_output().unwrap());
    assert_eq!(left.status, Some(130), "{left:?}");
    assert!(
        left.stdout
            .contains("2 workers wait or run in Slurm already; no more are asked for"),
        "{left:?}"
    );
    no_fault(&place, "hold");
    let ended = end(&place, &["wait", "x"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("3 trials: 3 completed"), "{ended:?}");
    assert!(!place.latest().join("submit/2").exists());
}

#[test]
fn a_worker_whose_node_is_lost_is_replaced_on_another_node() {
    let place = sweep(1, true, 1, "");
    let mut attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    end_task(&place, "100_0", "NODE_FAIL");
    let heard = hear(
        &mut attending,
        "in place of workers that are gone, without n1",
    );
    assert!(
        heard.contains("no more workers are asked for on node n1"),
        "{heard}"
    );
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let outcomes = outcomes(&place);
    assert_eq!(outcomes[0].0, "killed");
    assert!(
        outcomes[0]
            .1
            .contains("lost: its node was lost (NODE_FAIL)"),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[1].0, "completed");
    assert!(script(&place, 2).contains("#SBATCH --exclude=n1\n"));
    // One is enough.
    assert!(!place.latest().join("submit/3").exists());
}

#[test]
fn two_who_attend_replace_a_lost_worker_once() {
    let place = sweep(1, true, 1, "");
    let first = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    let mut second = start(&place, &["wait", "x"]);
    hear(&mut second, "launch 2 on n1");
    // While it is asked for, the other one must not ask as well.
    fault(&place, "slow-sbatch", "0.5");
    end_task(&place, "100_0", "NODE_FAIL");
    wait_until("the trial runs again", || {
        place.attempts().len() == 2 && is_running(&place, 1)
    });
    place.release();
    for (who, attending) in [("first", first), ("second", second)] {
        let ended = Ended::of(attending.wait_with_output().unwrap());
        assert_eq!(ended.status, Some(0), "{who} {ended:?}");
    }
    assert_eq!(place.column("outcome"), ["killed", "completed"]);
    assert!(script(&place, 2).contains("#SBATCH --exclude=n1\n"));
    assert!(!place.latest().join("submit/3").exists());
}

#[test]
fn workers_from_before_count_where_more_are_asked_for() {
    let place = sweep(6, true, 3, "");
    fault(&place, "hold", "");
    let ended = end(&place, &["run", "x.yaml", "--detach"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    no_fault(&place, "hold");
    wait_until("three trials run", || is_running(&place, 3));
    // Two are lost while nobody attends; the same command asks for two.
    end_task(&place, "100_0", "NODE_FAIL");
    end_task(&place, "100_1", "NODE_FAIL");
    let mut attending = start(&place, &["run", "x.yaml"]);
    wait_until("two more are asked for", || {
        script(&place, 2).contains("#SBATCH --array=0-1\n")
    });
    wait_until("three trials run", || is_running(&place, 3));
    // One from before is lost, too: it is replaced, for three were asked for.
    end_task(&place, "100_2", "NODE_FAIL");
    hear(&mut attending, "job 102: 1 task in place of workers");
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let completed = place.column("outcome");
    let completed = completed.iter().filter(|outcome| *outcome == "completed");
    assert_eq!(completed.count(), 6);
}

#[test]
fn commands_that_end_before_they_print_anything_are_their_nodes_fault() {
    let place = sweep(8, false, 1, "");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    // On the first node a library is missing.
    let text = text.replace(
        "argv: [sh, -c, '",
        "argv: [sh, -c, '[ \"$SLURMD_NODENAME\" != n1 ] || exit 1; ",
    );
    fs::write(place.path("x.yaml"), text).unwrap();
    let ended = end(&place, &["run", "x.yaml"]);
    let outcomes = place.column("outcome");
    let failed = outcomes.iter().filter(|outcome| *outcome == "failed");
    assert_eq!(failed.count(), 3, "{ended:?}");
    assert_eq!(outcomes.len(), 8, "{ended:?}");
    assert!(script(&place, 2).contains("#SBATCH --exclude=n1\n"));
    // Nor does a later command ask for workers there.
    let again = end(&place, &["run", "x.yaml", "--rerun", "failed"]);
    assert!(
        again
            .stderr
            .contains("without n1, where workers of this run"),
        "{again:?}"
    );
    assert_eq!(place.column("outcome").len(), 11);
}

#[test]
fn commands_that_fail_everywhere_are_nobodys_nodes_fault() {
    let place = sweep(12, false, 1, "");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let text = text.replace("argv: [sh, -c, '", "argv: [sh, -c, 'exit 1; ");
    fs::write(place.path("x.yaml"), text).unwrap();
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("3 workers in a row came to nothing")
            && ended.stderr.contains("before they began"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["failed"; 9]);
    // Mended, or not: none of the nodes is passed over.
    let again = end(&place, &["run", "x.yaml"]);
    assert!(!again.stderr.contains("without n"), "{again:?}");
}

#[test]
fn fewer_workers_than_asked_for_are_a_fleet_of_their_own() {
    // Two tickets for eight workers: two are asked for, and somebody cancels them.
    let place = sweep(2, true, 8, "");
    let attending = start(&place, &["run", "x.yaml"]);
    wait_until("both run", || is_running(&place, 2));
    end_task(&place, "100_0", "CANCELLED");
    end_task(&place, "100_1", "CANCELLED");
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("the workers were cancelled"),
        "{ended:?}"
    );
    assert!(!place.latest().join("submit/2").exists());
}

#[test]
fn a_job_that_slurm_starts_no_more_is_replaced() {
    let place = sweep(1, true, 1, "");
    let mut attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    end_task(&place, "100_0", "REQUEUE_HOLD");
    let heard = hear(
        &mut attending,
        "job 101: 1 task in place of workers that are gone",
    );
    assert!(heard.contains("Slurm starts job 100_0 no more"), "{heard}");
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("outcome"), ["killed", "completed"]);
}

#[test]
fn no_worker_is_replaced_once_the_resubmissions_are_used_up() {
    let place = sweep(1, true, 1, ", resubmissions: 0");
    let attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    end_task(&place, "100_0", "NODE_FAIL");
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("`run.slurm.resubmissions` (0) are used up"),
        "{ended:?}"
    );
    assert!(!place.latest().join("submit/2").exists());
}

#[test]
fn what_only_the_accounting_remembers_counts_too() {
    let place = sweep(1, true, 1, ", time: 4h");
    fault(&place, "accounting", "");
    fault(&place, "forgetful", "");
    let mut attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    end_task(&place, "100_0", "TIMEOUT");
    hear(&mut attending, "in place of workers that are gone");
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let outcomes = outcomes(&place);
    assert_eq!(outcomes[0].0, "interrupted");
    assert!(
        outcomes[0].1.contains("the job's time limit (4h) ended it"),
        "{outcomes:?}"
    );
}

#[test]
fn a_worker_of_which_slurm_has_forgotten_everything_is_replaced_as_well() {
    let place = sweep(1, true, 1, "");
    fault(&place, "forgetful", "");
    let mut attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    end_task(&place, "100_0", "FAILED");
    hear(&mut attending, "in place of workers that are gone");
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(outcomes(&place)[0].0, "killed");
}

#[test]
fn a_stop_cancels_what_waits_and_ends_what_runs() {
    let place = sweep(3, true, 1, "");
    let attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    let listed = end(&place, &["ls"]);
    assert!(
        listed.stdout.contains("workers have 1 ticket on n1"),
        "{listed:?}"
    );
    let stop = end(&place, &["stop", "x", "--now"]);
    assert_eq!(stop.status, Some(0), "{stop:?}");
    assert!(
        stop.stdout.contains("`kiln run FILE --on slurm` goes on"),
        "{stop:?}"
    );
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert!(
        ended.stderr.contains("the workers were asked to stop"),
        "{ended:?}"
    );
    wait_until("the trial ended", || place.processes().is_empty());
    let ended = end(&place, &["wait", "x", "--once"]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert!(outcomes(&place)[0].1.contains("was stopped with the run"));
    let text = fs::read_to_string(place.latest().join("submit/1/submission.json")).unwrap();
    assert!(text.contains("\"of\": \"all\""), "{text}");
    place.release();
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!((ended.status, place.runs()), (Some(0), 1), "{ended:?}");
}

#[test]
fn workers_that_somebody_cancels_are_not_replaced() {
    let place = sweep(3, true, 2, "");
    fault(&place, "hold", "");
    let mut attending = start(&place, &["run", "x.yaml"]);
    hear(&mut attending, "2 of 2 workers wait");
    let mut cancel = Command::new("scancel");
    on_cluster(&place, &mut cancel);
    assert!(cancel.arg("100").status().unwrap().success());
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("the workers were cancelled, and 3 tickets are left"),
        "{ended:?}"
    );
    assert!(!place.latest().join("submit/2").exists());
}

#[test]
fn a_setup_that_fails_again_and_again_ends_the_attendance() {
    let place = sweep(3, false, 1, "");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let text = text.replace("setup: [", "setup: ['echo no module cuda >&2; false', ");
    fs::write(place.path("x.yaml"), text).unwrap();
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    let said = "job 100_0 ended (FAILED 97:0) before its worker began: kiln: line 1 of \
                run.slurm.setup ended with 1";
    assert!(ended.stderr.contains(said), "{ended:?}");
    assert!(
        ended.stderr.contains("3 workers in a row came to nothing"),
        "{ended:?}"
    );
    assert!(!place.latest().join("submit/4").exists());
}

#[test]
fn a_worker_that_hangs_is_told_with_what_ends_it() {
    let place = sweep(1, true, 1, "");
    let mut attendance = start(&place, &["run", "x.yaml"]);
    wait_until("it runs", || is_running(&place, 1));
    let launch = place.latest().join("launches/2/launch.json");
    let launch = fs::read_to_string(launch).unwrap();
    let launch: serde_json::Value = serde_json::from_str(&launch).unwrap();
    let worker = launch["pid"].to_string();
    send(&worker, "STOP");
    let told = hear(
        &mut attendance,
        "though Slurm says that its job is not over",
    );
    assert!(
        told.contains("its heartbeat has not moved for") && !told.contains("waits again"),
        "{told}"
    );
    send(&worker, "CONT");
    place.release();
    let ended = Ended::of(attendance.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("attempt"), ["1"]);
}

#[test]
fn trials_go_on_while_slurm_does_not_answer() {
    let refuses = "refuse: Unable to contact slurm controller";
    // A client that hangs is given up after 20 s.
    for fault_of in by_form(&[refuses][..], &[refuses, "hang"]) {
        let place = sweep(2, true, 1, "");
        let mut attending = start(&place, &["run", "x.yaml"]);
        wait_until("a trial runs", || is_running(&place, 1));
        fault(&place, "fault-squeue", fault_of);
        hear(&mut attending, "; trials go on");
        place.release();
        let ended = Ended::of(attending.wait_with_output().unwrap());
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert_eq!(place.column("outcome"), ["completed"; 2]);
    }
}

#[test]
fn a_worker_without_time_for_another_trial_asks_to_be_started_again() {
    let place = sweep(1, false, 1, "");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    // The first start has too little time for a second trial, the next one has an hour.
    let end_time = "'export SLURM_JOB_END_TIME=$(( $(date +%s) + 30 + 3600 * \
                    ${SLURM_RESTART_COUNT:-0} ))', ";
    let long = "argv: [sh, -c, '[ \"$SLURM_RESTART_COUNT\" = 1 ] || sleep 5; ";
    let text = text.replace("argv: [sh, -c, '", long);
    let text = text.replace("setup: [", &format!("setup: [{end_time}"));
    // Trials of one point, so that the first one tells the length of the others.
    let text = text.replace("sweep: {", "sweep: {repeats: 3, ");
    fs::write(place.path("x.yaml"), text).unwrap();
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let launches = place.run_file()["launches"].as_array().unwrap().clone();
    let of_slurm: Vec<(u64, String)> = launches
        .iter()
        .filter(|launch| launch["slurm"]["job"] == 100)
        .map(|launch| {
            let restarts = launch["slurm"]["restarts"].as_u64().unwrap();
            (restarts, launch["ended"]["cause"].to_string())
        })
        .collect();
    let wanted = [(0, "\"out-of-time\"".to_owned()), (1, "null".to_owned())];
    assert_eq!(of_slurm, wanted);
    assert!(!place.latest().join("submit/2").exists());
}

#[test]
fn a_trial_that_does_not_stop_is_ended_before_slurm_ends_its_worker() {
    let place = sweep(1, true, 1, "");
    fault(&place, "kill-wait", "4");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let text = text.replace(
        "argv: [sh, -c, '",
        "checkpoints: true\n  argv: [sh, -c, 'trap \"\" TERM; ",
    );
    fs::write(place.path("x.yaml"), text).unwrap();
    let attending = start(&place, &["run", "x.yaml"]);
    wait_until("a trial runs", || is_running(&place, 1));
    let told = Instant::now();
    signal_workers(&place, "100");
    let table = place.latest().join("launches/2/trials.csv");
    wait_until("its worker wrote a row", || {
        fs::read_to_string(&table).is_ok_and(|text| text.contains("was stopped with the run"))
    });
    // Alone, kiln gives a trial with checkpoints a minute.
    assert!(told.elapsed() < Duration::from_secs(30));
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("outcome"), ["interrupted", "completed"]);
}

/// A sweep whose workers have a minute, and two repeats of each trial.
fn with_a_minute(trials: usize) -> Place {
    let place = sweep(trials, true, 1, "");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let end_time = "setup: ['[ -e many ] || export SLURM_JOB_END_TIME=$(( $(date +%s) + 60 ))', ";
    let text = text.replace("setup: [", end_time);
    let text = text.replace("sweep: {", "sweep: {repeats: 2, ");
    fs::write(place.path("x.yaml"), text).unwrap();
    place
}

/// Lets a trial run in this job, and ends it as Slurm does shortly before the end of the job's time;
/// then so many trials were.
fn cut_off(place: &Place, job: &str, rows: usize) {
    wait_until("a trial runs", || is_running(place, 1));
    signal_workers(place, job);
    wait_until("its row is written", || {
        let notes = |launch: fs::DirEntry| {
            let table = fs::read_to_string(launch.path().join("trials.csv"));
            table.map_or(0, |table| table.matches("job_time: ").count())
        };
        let launches = fs::read_dir(place.latest().join("launches")).unwrap();
        launches.flatten().map(notes).sum::<usize>() == rows
    });
}

#[test]
fn a_trial_that_is_longer_than_its_jobs_is_held_with_the_others_of_its_point() {
    let place = with_a_minute(1);
    let attending = start(&place, &["run", "x.yaml"]);
    cut_off(&place, "100", 1);
    cut_off(&place, "101", 2);
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    for told in [
        "2 tickets are held, because the time of 2 jobs ended before a trial, or others of its point",
        "`kiln run FILE --on slurm --rerun interrupted --set run.slurm.time=…`, with more time, opens \
         them",
    ] {
        assert!(ended.stderr.contains(told), "{told}\n{ended:?}");
    }
    for (outcome, reason) in outcomes(&place) {
        assert_eq!(outcome, "interrupted");
        let is_told = reason.contains("was stopped with its worker, ")
            && reason.contains(" before the end of its job's time");
        assert!(is_told, "{reason}");
    }
    let note = "job_time: the job's time ended before the trial, which had most of it and left no new \
                checkpoint";
    // A busy machine adds notes of its own.
    let notes = place.column("notes");
    let is_held = |notes: &String| notes.split("; ").any(|one| one == note);
    assert!(notes.len() == 2 && notes.iter().all(is_held), "{notes:?}");
    // The same command says what is to be done, and no worker is asked for.
    let again = end(&place, &["run", "x.yaml"]);
    assert_eq!(again.status, Some(3), "{again:?}");
    assert!(
        again
            .stderr
            .contains("no worker can go on: 2 tickets are held"),
        "{again:?}"
    );
    fs::write(place.path("many"), "").unwrap();
    place.release();
    let longer = end(&place, &["run", "x.yaml", "--rerun", "interrupted"]);
    assert_eq!(longer.status, Some(0), "{longer:?}");
    let mut outcomes = place.column("outcome");
    outcomes.sort();
    assert_eq!(
        outcomes,
        ["completed", "completed", "interrupted", "interrupted"]
    );
}

#[test]
fn a_trial_that_was_cut_off_once_runs_again_with_the_whole_time_of_a_job() {
    let place = with_a_minute(2);
    let attending = start(&place, &["run", "x.yaml"]);
    cut_off(&place, "100", 1);
    place.release();
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let mut outcomes = place.column("outcome");
    outcomes.sort();
    assert_eq!(outcomes, [&["completed"; 4][..], &["interrupted"]].concat());
}

#[test]
fn the_doctor_of_a_cluster_asks_slurm_and_starts_nothing() {
    let place = sweep(3, false, 4, ", time: 4h, partition: main");
    let ended = examined(&place, &[]);
    // Temporary folders of some hosts are in memory, where no node could see the results.
    let in_memory = ended.stdout.contains("problem  shared-folder");
    let (status, last) = match in_memory {
        true => (3, "workers cannot be submitted to this cluster: 1 problem"),
        false => (0, "workers can be submitted to this cluster: 0 problems"),
    };
    assert_eq!(ended.status, Some(status), "{ended:?}");
    for line in [
        "ok       slurm-commands    slurm-wlm 22.05.8",
        "ok       slurm-partition   main: UP, 2 nodes, time limit 1-00:00:00",
        "ok       slurm-accounting  none; the controller remembers a task for 300 sec",
        "ok       slurm-job         Slurm would take",
        "shared-folder",
        last,
    ] {
        assert!(ended.stdout.contains(line), "{line}: {ended:?}");
    }
    // Nothing was submitted, and no folder of a run was made.
    assert!(!cluster(&place).join("jobs").exists());
    assert!(!place.path("results").exists());
    let ended = examined(&place, &["--set", "run.slurm.time=48h"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stdout.contains("and `run.slurm.time` is 48h"),
        "{ended:?}"
    );
    fault(
        &place,
        "fault-sbatch",
        "refuse: allocation failure: Invalid account",
    );
    let ended = examined(&place, &[]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(ended.stdout.contains("Invalid account"), "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("workers cannot be submitted to this cluster"),
        "{ended:?}"
    );
    let mut elsewhere = doctor(&place, &[]);
    let ended = Ended::of(elsewhere.env("PATH", "/nowhere").output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended.stdout.contains("there is no `sbatch` in `PATH`"),
        "{ended:?}"
    );
}

#[test]
fn a_node_on_which_trials_fail_before_they_begin_gets_no_more_workers() {
    let place = sweep(1, false, 1, "");
    place.write(
        "train: {steps: 10}\nrun: {devices: cpu, on: slurm, slurm: {environment: [KILN_TRIAL, \
         CHILD, KILN_BEAT_SECONDS]}}\nsweep: {grid: {train.batch_size: [1, 2, 3, 4]}}",
    );
    let child = place.path("child.sh");
    write_program(
        &child,
        "#!/bin/sh\n[ \"$SLURMD_NODENAME\" != n1 ] || exit 1\nexec \"$CHILD\" \"$@\"\n",
    );
    let mut command = kiln(&place, &["run", "x.yaml"]);
    let scripted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
    command.env("KILN_TRIAL", &child).env("CHILD", scripted);
    let ended = Ended::of(command.output().unwrap());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("no more workers are asked for on node n1"),
        "{ended:?}"
    );
    assert_eq!(
        place
            .column("outcome")
            .iter()
            .filter(|outcome| *outcome == "failed")
            .count(),
        2
    );
    assert_eq!(
        place
            .column("outcome")
            .iter()
            .filter(|outcome| *outcome == "completed")
            .count(),
        2
    );
    assert!(script(&place, 2).contains("#SBATCH --exclude=n1\n"));
}

#[test]
fn a_node_on_which_kiln_trial_does_not_start_takes_no_ticket_and_gets_no_more_workers() {
    let place = sweep(1, false, 1, "");
    place.write(
        "train: {steps: 10}\nrun: {devices: cpu, on: slurm, slurm: {environment: [KILN_TRIAL, \
         CHILD, KILN_BEAT_SECONDS]}}\nsweep: {grid: {train.batch_size: [1, 2]}}",
    );
    let child = place.path("child.sh");
    write_program(
        &child,
        "#!/bin/sh\nif [ \"$SLURMD_NODENAME\" = n1 ]; then\n  echo \"$0: error while loading shared \
         libraries: libtorch.so: cannot open shared object file: No such file or directory\" >&2\n  exit \
         127\nfi\nexec \"$CHILD\" \"$@\"\n",
    );
    let mut command = kiln(&place, &["run", "x.yaml"]);
    let scripted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
    command.env("KILN_TRIAL", &child).env("CHILD", scripted);
    let ended = Ended::of(command.output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("no more workers are asked for on node n1"),
        "{ended:?}"
    );
    assert_eq!(place.column("outcome"), ["completed", "completed"]);
    assert!(script(&place, 2).contains("#SBATCH --exclude=n1\n"));
}

#[test]
fn a_job_that_asks_for_gpus_and_gets_none_does_not_fall_back_to_the_cpu() {
    let place = sweep(1, false, 1, ", gres: gpu:1");
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("`run.slurm` asks for GPUs (`gpu:1`), but this worker has none"),
        "{ended:?}"
    );
}

#[test]
fn a_node_whose_driver_is_gone_takes_no_ticket_and_gets_no_more_workers() {
    let place = sweep(1, false, 1, ", gres: gpu:1, resubmissions: 1");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let given = "'export CUDA_VISIBLE_DEVICES=0 KILN_NVML_LIB=/nonexistent', ";
    let text = text.replace("setup: [", &format!("setup: [{given}"));
    fs::write(place.path("x.yaml"), text).unwrap();
    let ended = end(&place, &["run", "x.yaml"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    // Not three of them in a row: another node may have one.
    assert!(
        ended
            .stderr
            .contains("no more workers are asked for on node n1")
            && ended.stderr.contains("(1) are used up"),
        "{ended:?}"
    );
    assert!(script(&place, 2).contains("#SBATCH --exclude=n1\n"));
    assert!(!place.attempts().iter().any(|attempt| attempt.exists()));
}

#[test]
fn a_probe_lets_two_nodes_race_for_tickets_and_leaves_nothing_behind() {
    let place = sweep(3, false, 4, ", partition: main");
    let ended = examined(&place, &["--probe"]);
    let told = &ended.stdout;
    let after = |name: &str| {
        let mut lines = told.lines();
        let line = lines.find(|line| line.contains(&format!(" {name} ")));
        line.unwrap_or_default().to_owned()
    };
    // Both nodes of this cluster are this host.
    assert!(after("probe-nodes").starts_with("warning"), "{ended:?}");
    assert!(
        after("probe-nodes").contains("n1 and n2, which are one host"),
        "{ended:?}"
    );
    assert!(
        after("probe-tickets").ends_with(": each has one winner"),
        "{ended:?}"
    );
    assert!(
        after("probe-names").contains("20 rounds between the nodes"),
        "{ended:?}"
    );
    assert!(after("probe-clocks").starts_with("ok"), "{ended:?}");
    assert!(
        after("probe-node").contains("n1: ") && told.contains("n2: "),
        "{ended:?}"
    );
    let left: Vec<String> = fs::read_dir(place.path("results"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, [".programs"]);
    assert_eq!(place.processes(), [0_u32; 0]);
}

#[test]
fn a_part_of_a_probe_that_fails_is_told_with_its_last_words() {
    let place = sweep(1, false, 1, "");
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let text = text.replace("setup: [", "setup: ['echo no module cuda >&2; false', ");
    fs::write(place.path("x.yaml"), text).unwrap();
    let ended = examined(&place, &["--probe"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("job 100 ended without a word (FAILED 97:0)")
            && ended
                .stdout
                .contains("kiln: line 1 of run.slurm.setup ended with 1"),
        "{ended:?}"
    );
}

#[test]
fn a_probe_whose_job_slurm_does_not_take_or_does_not_speak_of_leaves_none() {
    let place = sweep(1, false, 1, "");
    // `sbatch --test-only` is taken; the job itself is made and its reply is lost.
    fault(
        &place,
        "fault-sbatch",
        "lose: Socket timed out on send/recv operation",
    );
    let ended = examined(&place, &["--probe"]);
    assert!(
        ended.stdout.contains("unknown  probe-nodes") && ended.stdout.contains("Socket timed out"),
        "{ended:?}"
    );
    let task = fs::read_to_string(cluster(&place).join("jobs/100/0.json")).unwrap();
    assert!(
        ["CANCELLED", "COMPLETING"]
            .iter()
            .any(|state| task.contains(state)),
        "{task}"
    );
}

#[test]
fn a_stopped_probe_cancels_what_waits() {
    let place = sweep(1, false, 1, "");
    fs::write(cluster(&place).join("hold"), "").unwrap();
    let probing = doctor(&place, &["--probe"]).spawn().unwrap();
    wait_until("a job waits", || {
        cluster(&place).join("jobs/100/0.json").exists()
    });
    signal(&probing, "INT");
    let ended = Ended::of(probing.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(130), "{ended:?}");
    assert!(ended.stdout.contains("ok       slurm-job"), "{ended:?}");
    let task = fs::read_to_string(cluster(&place).join("jobs/100/0.json")).unwrap();
    assert!(task.contains("CANCELLED"), "{task}");
    assert!(fs::read_dir(place.path("results")).unwrap().all(|entry| {
        !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with(".probe")
    }));
}
