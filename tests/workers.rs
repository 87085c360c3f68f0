//! Several launches on one run: workers that die, stop and come back lose and double nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use crate::{
    form::by_form,
    scripted_child::{
        Ended, Place, Row, hear, program::write_program, send, signal, variables, wait_until,
    },
};

/// A sweep of this many trials, each of so many seconds.
fn sweep(trials: usize, seconds: &str) -> Place {
    let values: Vec<String> = (1..=trials).map(|value| value.to_string()).collect();
    Place::of_command(
        &format!(
            "  argv: [sh, -c, 'sleep {seconds}; echo loss $KILN_VALUE_LAST']\n  values: {{last: \
             3}}\n  metrics: {{train_loss: {{line: 'loss ([0-9]+)'}}}}"
        ),
        &format!(
            "sweep: {{grid: {{model.values.last: [{}]}}}}",
            values.join(", ")
        ),
    )
}

/// `kiln` with these arguments, whose heart beats fast, with device locks of its own.
fn kiln(place: &Place, arguments: &[&str], locks: &str) -> Command {
    let mut command = place.kiln(arguments);
    command
        .env("KILN_LOCKS", place.path(locks))
        .env("KILN_BEAT_SECONDS", "0.05");
    command
}

fn end(place: &Place, arguments: &[&str]) -> Ended {
    Ended::of(kiln(place, arguments, "locks").output().unwrap())
}

/// Makes the run and its queue.
fn submit(place: &Place, more: &[&str]) -> Ended {
    let ended = end(
        place,
        &[&["run", "x.yaml", "--on", "workers", "--detach"], more].concat(),
    );
    assert_eq!(ended.status, Some(0), "{ended:?}");
    ended
}

fn work(place: &Place) -> Ended {
    end(place, &["worker", "x"])
}

/// The tickets of the newest run: how many are in each state.
fn tickets(place: &Place) -> BTreeMap<String, usize> {
    let mut states = BTreeMap::new();
    for entry in fs::read_dir(place.latest().join("queue"))
        .unwrap()
        .flatten()
    {
        let name = entry.file_name().into_string().unwrap();
        if let Some((number, state)) = name.split_once('.')
            && number.parse::<u64>().is_ok()
        {
            let state = state.split('-').next().unwrap_or_default().to_owned();
            *states.entry(state).or_default() += 1;
        }
    }
    states
}

fn states(known: &[(&str, usize)]) -> BTreeMap<String, usize> {
    let owned = |(state, count): &(&str, usize)| ((*state).to_owned(), *count);
    known.iter().map(owned).collect()
}

/// What does not depend on time or place.
fn facts(rows: &[Row]) -> Vec<Vec<String>> {
    let columns = [
        "number",
        "trial",
        "attempt",
        "outcome",
        "model.values.last",
        "train_loss",
        "seed",
    ];
    let facts = |row: &Row| columns.map(|column| row[column].clone()).to_vec();
    rows.iter().map(facts).collect()
}

#[test]
fn two_workers_leave_the_rows_of_a_single_launch() {
    let (one, two) = (sweep(8, "0.2"), sweep(8, "0.2"));
    assert_eq!(one.run("", &[]).status, Some(0));
    let said = submit(&two, &[]).stdout;
    let line = said.trim_end().rsplit_once(": ").unwrap().1.to_owned();
    assert!(
        line.contains("/results/.programs/") && line.contains("/kiln worker /"),
        "{said}"
    );
    // Started as the line says, from another folder.
    let mut workers: Vec<Child> = (0..2)
        .map(|number| {
            let words: Vec<&str> = line.split(' ').collect();
            let own = kiln(&two, &[], &format!("locks-{number}"));
            let mut worker = Command::new(words[0]);
            worker.args(&words[1..]).current_dir("/");
            worker.envs(variables(&own));
            worker.spawn().unwrap()
        })
        .collect();
    for worker in &mut workers {
        assert!(worker.wait().unwrap().success());
    }
    let ended = end(&two, &["wait", "x"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("8 trials: 8 completed"),
        "{}",
        ended.stdout
    );
    assert_eq!(facts(&one.rows()), facts(&two.rows()));
    assert_eq!(tickets(&two), states(&[("done", 8)]));
    let summary = fs::read_to_string(two.latest().join("summary.csv")).unwrap();
    assert_eq!(summary.lines().count(), 9, "{summary}");
    let launches = &two.run_file()["launches"];
    assert_eq!(launches.as_array().unwrap().len(), 3, "{launches}");
    assert_eq!(launches[1]["node"], "node-1");
    // Nothing is left to do, for anyone.
    let again = work(&two);
    assert_eq!(again.status, Some(0));
    assert!(
        again.stderr.contains("nothing is left to take"),
        "{again:?}"
    );
    let again = end(&two, &["run", "x.yaml", "--on", "workers"]);
    assert!(
        again.stderr.contains("every trial already has its result"),
        "{again:?}"
    );
    assert_eq!(two.runs(), 1);
    // The tables can be compared like those of one launch.
    let (base, new) = (one.latest(), two.latest());
    let compared = end(
        &two,
        &["compare", base.to_str().unwrap(), new.to_str().unwrap()],
    );
    let same = "losses equal to the bit: 8 of 8 trials that both tables have";
    assert!(compared.stdout.contains(same), "{compared:?}");
}

#[test]
fn nodes_with_another_build_of_libtorch_or_another_clock_are_told() {
    let place = sweep(2, "0");
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    let kept = |launch: u64| {
        place
            .latest()
            .join(format!("launches/{launch}/launch.json"))
    };
    let mut worker: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(kept(2)).unwrap()).unwrap();
    let ahead = worker["clock_ahead_seconds"].as_f64().unwrap();
    assert!(ahead.abs() < 1.0, "{ahead}");
    let ended = end(&place, &["wait", "x", "--once"]);
    assert!(!ended.stderr.contains("builds of"), "{ended:?}");
    // Another worker, whose node has another build.
    let id = |digit: &str| format!("libtorch_cpu.so, build id {}", digit.repeat(40));
    worker["libraries"] = serde_json::json!({"libtorch": "2.11.0", "libtorch_cpu": id("a")});
    fs::write(kept(2), worker.to_string()).unwrap();
    worker["launch"] = 3.into();
    worker["libraries"]["libtorch_cpu"] = id("b").into();
    worker["clock_ahead_seconds"] = (ahead - 3.0).into();
    fs::create_dir(place.latest().join("launches/3")).unwrap();
    fs::write(kept(3), worker.to_string()).unwrap();
    let ended = end(&place, &["wait", "x", "--once"]);
    let reported = end(&place, &["report", "x"]).stdout;
    for told in [&ended.stderr, &reported] {
        assert!(
            told.contains("2 builds of libtorch_cpu (build aaaaaaaaaaaa"),
            "{told}"
        );
        assert!(told.contains("was 3.0 s ahead of that of"), "{told}");
    }
}

#[test]
fn a_file_that_several_trials_would_write_is_refused_by_a_worker() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'echo a,b >log.csv; echo $KILN_VALUE_A,1 >>log.csv']\n  values: {a: 1}\n  \
         metrics: {a: {csv: log.csv, column: a}}",
        "sweep: {grid: {model.values.a: [1, 2]}}",
    );
    submit(&place, &[]);
    let ended = Ended::of(kiln(&place, &["worker", "x"], "locks").output().unwrap());
    let says = "`model.metrics.a` of more than one trial is read from one file, `log.csv`, and other \
                workers run trials at the same time, so a trial would have the numbers of another; give \
                each its own file, such as `{folder}/log.csv`";
    assert!(ended.stderr.contains(says), "{ended:?}");
    assert_ne!(ended.status, Some(0));
    assert!(place.rows().is_empty());
}

#[test]
fn a_block_stays_on_one_worker() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'sleep 0.02; echo loss $KILN_VALUE_LAST $KILN_VALUE_MORE']\n  values: \
         {last: 3, more: 1}\n  metrics: {train_loss: {line: 'loss ([0-9]+)'}}",
        "sweep: {grid: {model.values.last: [1, 2, 3], model.values.more: [1, 2]}, repeats: 3, \
         together: [model.values.more]}",
    );
    submit(&place, &[]);
    assert_eq!(tickets(&place), states(&[("open", 9)]));
    let mut workers: Vec<Child> = (0..3)
        .map(|number| {
            kiln(&place, &["worker", "x"], &format!("locks-{number}"))
                .spawn()
                .unwrap()
        })
        .collect();
    workers
        .iter_mut()
        .for_each(|worker| assert!(worker.wait().unwrap().success()));
    let rows = place.rows();
    assert_eq!(rows.len(), 18);
    let mut of_block: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in &rows {
        of_block
            .entry(&row["block"])
            .or_default()
            .insert(&row["launch"]);
    }
    assert_eq!(of_block.len(), 9);
    assert!(
        of_block.values().all(|launches| launches.len() == 1),
        "{of_block:?}"
    );
}

#[test]
fn a_worker_goes_on_after_trials_that_it_skips() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'test $KILN_VALUE_SIZE -gt 0; exit 4']\n  values: {size: 4}\n  grows: \
         [size]\n  exits: {oom: [4]}",
        "run: {devices: cpu, on_oom: skip-larger}\nsweep: {grid: {model.values.size: {from: 1, to: \
         12, steps: 12}}}",
    );
    submit(&place, &[]);
    assert_eq!(tickets(&place), states(&[("open", 12)]));
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(tickets(&place), states(&[("done", 12)]));
    assert_eq!(end(&place, &["wait", "x"]).status, Some(0));
    // Which size is the first is left to chance.
    let outcomes = place.column("outcome");
    let skipped = outcomes.iter().filter(|outcome| *outcome == "skipped");
    assert!(skipped.count() > 1, "{outcomes:?}");
}

#[test]
fn what_a_single_launch_began_goes_on_with_workers_and_back() {
    let place = sweep(6, "0.3");
    let mut kiln_run = place.start("");
    wait_until("two trials have ended", || place.lines().len() >= 3);
    kiln_run.kill().unwrap();
    kiln_run.wait().unwrap();
    let before = place.lines();
    submit(&place, &[]);
    let waiting = tickets(&place)["open"];
    assert!(waiting < 6, "those with a result have no ticket: {waiting}");
    assert!(
        end(&place, &["stop", "x"])
            .stdout
            .contains("start no more trials")
    );
    let drained = work(&place);
    assert!(drained.stderr.contains("were asked to stop"), "{drained:?}");
    assert_eq!(tickets(&place), states(&[("open", waiting)]));
    // Without `--on workers` this process is one more worker.
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended.stdout.contains("6 trials: 6 completed"),
        "{}",
        ended.stdout
    );
    assert_eq!(tickets(&place), states(&[("done", waiting)]));
    let after = place.lines();
    assert!(
        before.iter().all(|line| after.contains(line)),
        "no row changed"
    );
    assert_eq!(place.runs(), 1);
    let last: BTreeMap<String, String> = place
        .rows()
        .into_iter()
        .map(|row| (row["trial"].clone(), row["outcome"].clone()))
        .collect();
    assert_eq!(last.len(), 6);
    assert!(
        last.values().all(|outcome| outcome == "completed"),
        "{last:?}"
    );
}

#[test]
fn a_stop_now_interrupts_what_runs_and_the_same_command_goes_on() {
    let place = sweep(3, "30");
    submit(&place, &[]);
    let mut worker = kiln(&place, &["worker", "x"], "locks").spawn().unwrap();
    wait_until("a trial runs", || !place.processes().is_empty());
    assert_eq!(tickets(&place), states(&[("open", 2), ("taken", 1)]));
    // Beside an older run, which nobody works on, it is refused as well.
    let older = place.path("results/x/20000101T000000Z-0000000");
    fs::create_dir(&older).unwrap();
    for file in ["run.json", "experiment.yaml"] {
        fs::copy(place.latest().join(file), older.join(file)).unwrap();
    }
    for runs in [&["x~1", "x"][..], &["x"]] {
        let refused = end(&place, &[&["rm", "--yes"], runs].concat());
        let told = refused.stderr.contains("workers have tickets of this run");
        assert!(refused.status == Some(2) && told, "{refused:?}");
    }
    fs::remove_dir_all(&older).unwrap();
    let stop = end(&place, &["stop", "x", "--now"]);
    assert!(stop.stdout.contains("1 ticket is given back"), "{stop:?}");
    assert_eq!(worker.wait().unwrap().code(), Some(130));
    assert_eq!(tickets(&place), states(&[("open", 3)]));
    assert_eq!(place.column("outcome"), ["interrupted"]);
    assert!(place.processes().is_empty());
    submit(&place, &[]);
    assert!(!place.latest().join("queue/stop").exists());
}

#[test]
fn a_node_with_another_program_takes_no_ticket() {
    let place = Place::with("train: {steps: 10}\nrun: {devices: cpu}");
    submit(&place, &[]);
    let other = place.path("other.sh");
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh"),
        &other,
    )
    .unwrap();
    let mut text = fs::read_to_string(&other).unwrap();
    text.push_str("# another build\n");
    fs::write(&other, text).unwrap();
    let refused = Ended::of(
        kiln(&place, &["worker", "x"], "locks")
            .env("KILN_TRIAL", &other)
            .output()
            .unwrap(),
    );
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("this node has another kiln-trial (sha256 "),
        "{refused:?}"
    );
    assert_eq!(tickets(&place), states(&[("open", 1)]));
}

#[test]
fn a_trial_that_takes_its_worker_down_again_and_again_is_held() {
    let place = sweep(2, "30");
    submit(&place, &[]);
    for _ in 0..3 {
        let mut worker = kiln(&place, &["worker", "x"], "locks").spawn().unwrap();
        wait_until("a trial runs", || !place.processes().is_empty());
        worker.kill().unwrap();
        worker.wait().unwrap();
        wait_until("it ended with its worker", || place.processes().is_empty());
        let told = end(&place, &["wait", "x", "--once"]);
        assert!(told.stderr.contains("counts as killed"), "{told:?}");
        // The other one is not begun meanwhile.
        let held = tickets(&place);
        if held.contains_key("held") {
            break;
        }
        let other = place.latest().join("queue/0002.open");
        if place.column("number").iter().all(|number| number == "1") && other.exists() {
            fs::rename(&other, place.latest().join("queue/0002.done")).unwrap();
        }
        let first = place.latest().join("queue/0001.open");
        if place.column("number").iter().all(|number| number == "2") && first.exists() {
            fs::rename(&first, place.latest().join("queue/0001.done")).unwrap();
        }
    }
    assert_eq!(tickets(&place), states(&[("done", 1), ("held", 1)]));
    assert_eq!(place.column("outcome"), ["killed"; 3]);
    let reasons = place.column("reason");
    assert!(
        reasons[0].contains("when its worker (launch "),
        "{reasons:?}"
    );
    let listed = end(&place, &["ls"]).stdout;
    let reported = end(&place, &["report", "x"]).stderr;
    for told in [&listed, &reported] {
        assert!(told.contains("1 ticket is held"), "{told}");
    }
    assert!(!listed.contains("running"), "{listed}");
    let refused = end(&place, &["run", "x.yaml", "--on", "workers", "--detach"]);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("no worker can go on: 1 ticket is held, because a trial was killed 3 times"),
        "{refused:?}"
    );
    submit(&place, &["--rerun", "killed"]);
    assert_eq!(tickets(&place), states(&[("done", 1), ("open", 1)]));
}

#[test]
fn a_ticket_that_was_held_by_mistake_is_opened_by_who_asks_again() {
    let place = sweep(1, "0");
    submit(&place, &[]);
    let queue = place.latest().join("queue");
    fs::rename(queue.join("0001.open"), queue.join("0001.held")).unwrap();
    let told = submit(&place, &[]).stderr;
    assert!(told.contains("ticket 1 waits again"), "{told}");
    assert_eq!(tickets(&place), states(&[("open", 1)]));
}

#[test]
fn a_lost_attempt_that_gets_its_row_late_brings_no_further_ticket() {
    let place = sweep(1, "0");
    submit(&place, &[]);
    let run = place.latest();
    let id = fs::read_to_string(run.join("queue/0001.open")).unwrap();
    let attempts = run.join("trials").join(id.trim());
    fs::create_dir_all(attempts.join("1")).unwrap();
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("attempt"), ["2"]);
    // A worker that was lost in the first attempt, and of which nobody knows yet.
    let lost = run.join("launches/3");
    fs::create_dir(&lost).unwrap();
    let launch = fs::read_to_string(run.join("launches/2/launch.json")).unwrap();
    let launch = launch.replacen("\"launch\": 2", "\"launch\": 3", 1);
    fs::write(lost.join("launch.json"), launch).unwrap();
    fs::write(lost.join("attempts"), format!("{} 1\n", id.trim())).unwrap();
    let attempt = fs::read_to_string(attempts.join("2/attempt.json")).unwrap();
    let attempt = attempt.replacen("\"attempt\": 2", "\"attempt\": 1", 1);
    let attempt = attempt.replacen("\"launch\": 2", "\"launch\": 3", 1);
    fs::write(attempts.join("1/attempt.json"), attempt).unwrap();
    let mut attendant = kiln(&place, &["wait", "x"], "locks").spawn().unwrap();
    wait_until("there is nothing to wait for", || {
        attendant.try_wait().unwrap().is_some()
    });
    assert_eq!(place.column("outcome"), ["killed", "completed"]);
    assert_eq!(tickets(&place), states(&[("done", 1)]));
}

/// Who attends sees no process of the worker, as on another host.
#[test]
fn an_attempt_that_its_own_worker_stops_is_no_kill() {
    const ALONE: [&str; 5] = ["-m", "-p", "--fork", "--kill-child", "--mount-proc"];
    let is_alone = Command::new("unshare").args(ALONE).arg("true").status();
    // Where no process can pretend to run on another host, none is out of reach.
    if !pretends() || !is_alone.is_ok_and(|status| status.success()) {
        return;
    }
    loses_its_ticket_while_it_is_suspended(4, &|own| {
        let mut alone = Command::new("unshare");
        alone.args(ALONE).arg(own.get_program());
        alone.args(own.get_args()).envs(variables(own));
        alone
    });
}

/// Who attends takes the worker for one of another host, and ends its trial's processes, which it
/// sees: so it is for a worker in a container.
#[test]
fn an_attempt_that_was_ended_with_its_ticket_taken_back_is_no_kill() {
    if pretends() {
        loses_its_ticket_while_it_is_suspended(2, &|own| {
            let mut plain = Command::new(own.get_program());
            plain.args(own.get_args()).envs(variables(own));
            plain
        });
    }
}

fn loses_its_ticket_while_it_is_suspended(times: usize, attends: &dyn Fn(&Command) -> Command) {
    let place = sweep(1, "30");
    submit(&place, &[]);
    let mut nodes = Nodes::of(&place, Vec::new());
    nodes.start();
    let worker = nodes.workers[0].id();
    let own = kiln(&place, &["wait", "x", "--quiet"], "locks");
    let mut attendant = attends(&own).current_dir(place.path("")).spawn().unwrap();
    for _ in 0..times {
        wait_until("an attempt runs", || {
            tickets(&place) == states(&[("taken", 1)]) && !place.processes().is_empty()
        });
        send(&worker.to_string(), "STOP");
        wait_until("its ticket is taken back", || {
            tickets(&place) == states(&[("open", 1)])
        });
        send(&worker.to_string(), "CONT");
        wait_until("the worker takes it again", || {
            tickets(&place) == states(&[("taken", 1)])
        });
    }
    send(&worker.to_string(), "TERM");
    nodes.workers[0].wait().unwrap();
    attendant.kill().unwrap();
    attendant.wait().unwrap();
    let ended = end(&place, &["wait", "x", "--once"]);
    let (outcomes, reasons) = (place.column("outcome"), place.column("reason"));
    assert!(
        outcomes.len() >= times && outcomes.iter().all(|outcome| outcome == "interrupted"),
        "{outcomes:?} {reasons:?} {ended:?}"
    );
    let is_told = |reason: &&String| reason.contains("its worker was believed gone");
    let told = reasons.iter().filter(is_told).count();
    assert!(told >= times, "{reasons:?}");
    assert_eq!(tickets(&place), states(&[("open", 1)]));
}

#[test]
fn a_worker_that_is_there_and_loses_each_ticket_takes_no_more() {
    let place = sweep(1, "30");
    submit(&place, &[]);
    let worker = kiln(&place, &["worker", "x"], "locks")
        .stderr(std::process::Stdio::piped())
        .spawn();
    let mut worker = worker.unwrap();
    // As whoever attends does when Slurm knows nothing of the worker's job any more.
    let queue = place.latest().join("queue");
    let take_back = || {
        for entry in fs::read_dir(&queue).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.contains(".taken-") && !place.processes().is_empty() {
                let _ = fs::rename(entry.path(), queue.join("0001.open"));
            }
        }
    };
    wait_until("it takes no more", || {
        take_back();
        worker.try_wait().unwrap().is_some()
    });
    let said = worker.wait_with_output().unwrap();
    let told = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(3), "{told}");
    assert!(
        told.contains("twice in a row although it was there"),
        "{told}"
    );
    let others = "are stopped, and whoever takes the ticket runs them again";
    assert!(told.contains(others), "{told}");
    assert_eq!(tickets(&place), states(&[("open", 1)]));
    let _ = end(&place, &["wait", "x", "--once"]);
    let outcomes = place.column("outcome");
    // On a busy machine it may have been away itself for one of them.
    assert!(
        outcomes.len() >= 2 && outcomes.iter().all(|outcome| outcome == "interrupted"),
        "{outcomes:?}"
    );
}

#[test]
fn a_retry_goes_to_another_worker_where_there_is_one() {
    let place = sweep(6, "0.2");
    // Where UNABLE is set the first trial fails when it is told to, and the others last until somebody
    // else is at it.
    fs::write(
        place.path("trial.sh"),
        "case $UNABLE$KILN_VALUE_LAST in\n  yes1) while [ ! -e $GO ]; do sleep 0.05; done; exit 1;;\n  yes*) while [ ! -e $GO.1 ]; do sleep 0.05; done;;\n  \
         *) while [ ! -e $GO ]; do sleep 0.05; done; touch $GO.$KILN_VALUE_LAST; sleep 0.5;;\nesac\necho loss $KILN_VALUE_LAST\n",
    )
    .unwrap();
    let text = fs::read_to_string(place.path("x.yaml")).unwrap();
    let script = place.path("trial.sh");
    let text = text.replace(
        "sleep 0.2; echo loss $KILN_VALUE_LAST",
        &format!(". {} $KILN_VALUE_LAST", script.display()),
    );
    let text = text.replace("run: {devices: cpu}", "run: {devices: cpu, retries: 2}");
    fs::write(place.path("x.yaml"), text).unwrap();
    submit(&place, &[]);
    let queue = place.latest().join("queue");
    let others = (2..=6).map(|number| format!("000{number}.open"));
    let others: Vec<String> = others.collect();
    for name in &others {
        fs::rename(queue.join(name), place.path(name)).unwrap();
    }
    let mut unable = kiln(&place, &["worker", "x"], "locks-1");
    unable.env("UNABLE", "yes").env("GO", place.path("go"));
    let mut unable = unable.spawn().unwrap();
    wait_until("it is at the first trial", || !place.processes().is_empty());
    for name in &others {
        fs::rename(place.path(name), queue.join(name)).unwrap();
    }
    let mut able = kiln(&place, &["worker", "x"], "locks-2");
    let mut able = able.env("GO", place.path("go")).spawn().unwrap();
    wait_until("the other one is at work, too", || {
        tickets(&place).get("taken") == Some(&2)
    });
    fs::write(place.path("go"), "").unwrap();
    assert!(able.wait().unwrap().success() && unable.wait().unwrap().success());
    end(&place, &["wait", "x", "--once"]);
    assert_eq!(tickets(&place), states(&[("done", 6)]));
    let rows = place.rows();
    let ends: Vec<(&str, &str)> = rows
        .iter()
        .filter(|row| row["number"] == "1")
        .map(|row| (row["outcome"].as_str(), row["launch"].as_str()))
        .collect();
    assert!(
        matches!(ends[..], [("failed", one), ("completed", other)] if one != other),
        "{ends:?}"
    );
}

#[test]
fn workers_on_a_folder_that_fills_up_lose_and_double_nothing() {
    // Each worker ends when its disk is full, after a few trials; the next one goes on.
    let (trials, moments) = by_form((72, 3), (200, 30));
    // Outside the place, which goes with its programs.
    let counts = tempfile::NamedTempFile::new().unwrap();
    counts.as_file().set_len(64).unwrap();
    let counted = counts.path().to_str().unwrap();
    survives_with((trials, "0.3"), moments, &|place| {
        let folder = place.path("results");
        let folder = folder.into_os_string().into_string().unwrap();
        let told = [("LYING_FULL_AFTER", "3"), ("LYING_COUNTS", counted)];
        lies(place, folder, &told)
    });
    // The last kind of lies is a full disk.
    let refused = fs::read(counts.path()).unwrap()[56..64].to_vec();
    assert!(u64::from_ne_bytes(refused.try_into().unwrap()) > 0);
}

#[test]
fn a_trial_with_a_result_runs_again_if_it_is_asked_for() {
    let place = sweep(3, "0");
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.rows().len(), 3);
    submit(&place, &["--rerun", "completed"]);
    assert_eq!(tickets(&place), states(&[("done", 3), ("open", 3)]));
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("attempt"), ["1", "2", "1", "2", "1", "2"]);
    assert_eq!(tickets(&place), states(&[("done", 6)]));
}

/// The ids of the planned trials, before there is a run.
fn plan_of(place: &Place) -> Vec<String> {
    let planned = end(place, &["plan", "x.yaml", "--json"]);
    assert_eq!(planned.status, Some(0), "{planned:?}");
    let planned: serde_json::Value = serde_json::from_str(&planned.stdout).unwrap();
    let trials = planned["trials"].as_array().unwrap().iter();
    let id = |trial: &serde_json::Value| trial["id"].as_str().unwrap().to_owned();
    trials.map(id).collect()
}

#[test]
fn workers_run_the_trials_that_are_named_and_the_others_wait_for_later() {
    let place = sweep(5, "0");
    let ids = plan_of(&place);
    let asked = [&ids[1][..], &ids[3]].join(",");
    let submitted = submit(&place, &["--only", &asked]);
    let told =
        "3 tickets are for later: the command that made the run opens them, without `--only`";
    assert!(submitted.stderr.contains(told), "{submitted:?}");
    assert_eq!(tickets(&place), states(&[("later", 3), ("open", 2)]));
    assert_eq!(work(&place).status, Some(0));
    let trials = || place.column("trial");
    assert_eq!(trials(), [ids[1].clone(), ids[3].clone()]);
    // Who attends, and who comes, learns that there is more.
    let waited = end(&place, &["wait", "x"]);
    assert_eq!(waited.status, Some(0), "{waited:?}");
    assert!(waited.stderr.contains(told), "{waited:?}");
    for verb in [&["worker", "x"][..], &["report", "x"]] {
        let ended = end(&place, verb);
        assert!(ended.stderr.contains(told), "{ended:?}");
    }
    let listed = end(&place, &["ls", "--json"]);
    assert!(listed.stdout.contains(told), "{listed:?}");
    assert!(!listed.stdout.contains("finished"), "{listed:?}");
    // What has a result does not run again, and another one can be asked for.
    let again = end(
        &place,
        &["run", "x.yaml", "--on", "workers", "--only", &asked],
    );
    assert_eq!(again.status, Some(0), "{again:?}");
    let told = "the requested trials have already ended";
    assert!(again.stderr.contains(told), "{again:?}");
    assert_eq!(tickets(&place), states(&[("done", 2), ("later", 3)]));
    // `--on here` is one more worker.
    let here = place.run("", &["--only", &ids[0]]);
    assert_eq!(here.status, Some(0), "{here:?}");
    assert_eq!(trials().len(), 3);
    submit(&place, &[]);
    assert_eq!(tickets(&place), states(&[("done", 3), ("open", 2)]));
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(trials(), ids);
    assert_eq!(place.column("attempt"), ["1"; 5]);
}

#[test]
fn a_block_of_which_some_trials_are_named_is_divided() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'echo loss $KILN_VALUE_LAST $KILN_VALUE_MORE']\n  values: {last: 3, more: 1}\n  metrics: \
         {train_loss: {line: 'loss ([0-9]+)'}}",
        "sweep: {grid: {model.values.last: [1, 2], model.values.more: [1, 2]}, together: \
         [model.values.more]}",
    );
    let ids = plan_of(&place);
    submit(&place, &[]);
    assert_eq!(tickets(&place), states(&[("open", 2)]));
    // A queue with all trials is narrowed: a part of a block, all of it, and a part again.
    let ask = |only: &[&String], counts: &[(&str, usize)]| {
        let only: Vec<&str> = only.iter().map(|id| id.as_str()).collect();
        submit(&place, &["--only", &only.join(",")]);
        assert_eq!(tickets(&place), states(counts));
    };
    ask(&[&ids[0]], &[("done", 1), ("later", 2), ("open", 1)]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("trial"), [ids[0].clone()]);
    ask(
        &[&ids[0], &ids[1]],
        &[("done", 2), ("later", 1), ("open", 1)],
    );
    ask(&[&ids[2]], &[("done", 3), ("later", 2), ("open", 1)]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("trial"), [ids[0].clone(), ids[2].clone()]);
    submit(&place, &["--rerun", "completed", "--only", &ids[0]]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("attempt"), ["1", "2", "1"]);
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("trial").len(), 5);
    assert!(tickets(&place).keys().all(|state| state == "done"));
}

#[test]
fn who_attends_all_trials_ends_with_1_if_another_command_leaves_some_for_later() {
    let place = sweep(3, "0");
    let ids = plan_of(&place);
    submit(&place, &[]);
    let mut attending = kiln(&place, &["run", "x.yaml", "--on", "workers"], "locks")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    let stdout = attending.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut told).unwrap();
    assert!(told.starts_with("start on each node"), "{told}");
    submit(&place, &["--only", &ids[2]]);
    assert_eq!(work(&place).status, Some(0));
    let ended = Ended::of(attending.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("2 tickets are for later"),
        "{ended:?}"
    );
    // Who asks for one with a result closes nothing that others asked for.
    submit(&place, &[]);
    let named = ["run", "x.yaml", "--on", "workers", "--only", &ids[2]];
    let ended = end(&place, &named);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(tickets(&place), states(&[("done", 1), ("open", 2)]));
    // Who asks for it again waits for it, and not for what others ask for.
    let again = [&named[..], &["--rerun", "completed"]].concat();
    let mut attending = kiln(&place, &again, "locks").spawn().unwrap();
    wait_until("it is asked for again", || {
        tickets(&place) == states(&[("done", 1), ("later", 2), ("open", 1)])
    });
    std::thread::sleep(Duration::from_secs(1));
    assert!(attending.try_wait().unwrap().is_none());
    assert_eq!(work(&place).status, Some(0));
    wait_until("it ends", || attending.try_wait().unwrap().is_some());
    assert_eq!(place.column("attempt"), ["1", "2"]);
}

#[test]
fn a_settled_trial_of_a_block_runs_again_if_it_is_named() {
    let place = Place::of_command(
        "  argv: [sh, -c, 'echo loss $KILN_VALUE_LAST; [ $KILN_VALUE_ENDS != 1 ]']\n  values: {last: 3, \
         ends: 0}\n  metrics: {train_loss: {line: 'loss ([0-9]+)'}}",
        "sweep: {grid: {model.values.last: [1, 2], model.values.ends: [0, 1, 2]}, together: \
         [model.values.ends]}",
    );
    let ids = plan_of(&place);
    let failed = &ids[1];
    let named = submit(&place, &["--only", failed]);
    assert!(
        named.stderr.contains("2 tickets are for later"),
        "{named:?}"
    );
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("outcome"), ["failed"]);
    submit(&place, &["--rerun", "failed", "--only", failed]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("outcome"), ["failed", "failed"]);
    assert!(place.column("trial").iter().all(|trial| trial == failed));
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.rows().len(), ids.len() + 1);
}

#[test]
fn a_worker_that_is_interrupted_does_not_say_that_nothing_is_left() {
    let place = sweep(3, "1");
    let ids = plan_of(&place);
    submit(&place, &["--only", &ids[..2].join(",")]);
    let worker = kiln(&place, &["worker", "x"], "locks")
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("a trial runs", || tickets(&place).contains_key("taken"));
    signal(&worker, "INT");
    let ended = Ended::of(worker.wait_with_output().unwrap());
    assert_eq!(
        tickets(&place),
        states(&[("done", 1), ("later", 1), ("open", 1)]),
        "{ended:?}"
    );
    assert!(!ended.stderr.contains("nothing is left"), "{ended:?}");
}

#[test]
fn what_a_worker_has_goes_on_when_other_trials_are_named() {
    let place = Place::with("");
    place.write_command(
        &format!(
            "  argv: [sh, -c, 'while [ ! -e {} ]; do sleep 0.05; done; echo loss $KILN_VALUE_LAST']\n  values: \
             {{last: 3}}\n  metrics: {{train_loss: {{line: 'loss ([0-9]+)'}}}}",
            place.path("go").display()
        ),
        "sweep: {grid: {model.values.last: [1, 2, 3]}}",
    );
    let ids = plan_of(&place);
    submit(&place, &[]);
    let mut worker = kiln(&place, &["worker", "x"], "locks").spawn().unwrap();
    wait_until("a trial runs", || tickets(&place).contains_key("taken"));
    let taken = || {
        let names = fs::read_dir(place.latest().join("queue"))
            .unwrap()
            .flatten();
        let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.find(|name| name.contains("taken")).unwrap()
    };
    let running = fs::read_to_string(place.latest().join("queue").join(taken())).unwrap();
    let other = ids.iter().find(|id| running.trim() != **id).unwrap();
    let told = submit(&place, &["--only", other]).stderr;
    assert!(told.contains("what workers have goes on"), "{told}");
    assert_eq!(
        tickets(&place),
        states(&[("later", 1), ("open", 1), ("taken", 1)])
    );
    fs::write(place.path("go"), "").unwrap();
    assert!(worker.wait().unwrap().success());
    let mut ran = vec![running.trim().to_owned(), other.clone()];
    ran.sort();
    let mut trials = place.column("trial");
    trials.sort();
    assert_eq!(trials, ran);
}

#[test]
fn no_row_is_lost_with_a_queue_or_a_launch_that_somebody_removed() {
    let place = sweep(4, "0");
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    let whole = place.lines();
    assert_eq!(whole.len(), 5);
    fs::remove_dir_all(place.latest().join("launches/2")).unwrap();
    end(&place, &["wait", "x", "--once"]);
    assert_eq!(place.lines(), whole);
    fs::remove_dir_all(place.latest().join("queue")).unwrap();
    let again = place.run("", &[]);
    assert!(
        again.stderr.contains("every trial already has its result"),
        "{again:?}"
    );
    assert_eq!(place.lines(), whole);
}

#[test]
fn workers_go_on_with_a_run_that_was_moved_behind_a_link() {
    let place = sweep(3, "0");
    submit(&place, &[]);
    let run = place.latest().canonicalize().unwrap();
    let elsewhere = place.path("elsewhere");
    fs::rename(&run, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &run).unwrap();
    let worked = work(&place);
    assert_eq!(worked.status, Some(0), "{worked:?}");
    assert_eq!(tickets(&place), states(&[("done", 3)]));
    assert_eq!(place.rows().len(), 3);
    let waited = end(&place, &["wait", "x", "--once"]);
    assert_eq!(waited.status, Some(0), "{waited:?}");
    let again = end(&place, &["run", "x.yaml", "--on", "workers", "--detach"]);
    assert_eq!(
        (again.status, place.rows().len()),
        (Some(0), 3),
        "{again:?}"
    );
    assert!(run.is_symlink() && elsewhere.join("launches/2/trials.csv").is_file());
}

#[test]
fn a_changed_row_of_the_collected_table_is_told_and_made_again() {
    let place = sweep(2, "0");
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    let whole = place.lines();
    let table = place.latest().join("trials.csv");
    let edited = fs::read_to_string(&table).unwrap();
    fs::write(&table, edited.replacen(",completed,", ",failed,", 1)).unwrap();
    assert_ne!(place.lines(), whole);
    let waited = end(&place, &["wait", "x", "--once"]);
    let told = "trials.csv: 1 row differed from the tables in `launches/` (the first: trial ";
    assert_eq!(waited.stderr.matches(told).count(), 1, "{waited:?}");
    assert_eq!(place.lines(), whole);
    let again = end(&place, &["wait", "x", "--once"]);
    assert!(!again.stderr.contains("differed from"), "{again:?}");
}

#[test]
fn a_damaged_ticket_is_held_and_its_trial_gets_another_one() {
    let place = sweep(3, "0");
    submit(&place, &[]);
    fs::write(place.latest().join("queue/0001.open"), "").unwrap();
    fs::write(place.latest().join("queue/0002.open"), "nothing\u{1b}\n").unwrap();
    let worked = work(&place);
    assert_eq!(worked.status, Some(0), "{worked:?}");
    assert!(!worked.stderr.contains('\u{1b}'), "{worked:?}");
    let ended = end(&place, &["wait", "x", "--once"]);
    assert!(
        ended.stdout.contains("3 trials: 3 completed"),
        "{ended:?}\n{worked:?}"
    );
    // Nothing is left of the one that names no trial of the plan; the empty one says nothing.
    assert_eq!(tickets(&place), states(&[("done", 4), ("held", 1)]));
}

#[test]
fn a_ticket_that_is_damaged_in_part_is_not_opened_again_and_again() {
    let place = sweep(2, "0");
    submit(&place, &[]);
    let ticket = place.latest().join("queue/0001.open");
    let whole = fs::read_to_string(&ticket).unwrap();
    fs::write(&ticket, format!("{whole}t0123\n")).unwrap();
    let mut worker = kiln(&place, &["worker", "x"], "locks").spawn().unwrap();
    wait_until("the worker ends", || worker.try_wait().unwrap().is_some());
    let ended = end(&place, &["wait", "x", "--once"]);
    assert!(ended.stdout.contains("2 trials: 2 completed"), "{ended:?}");
    assert_eq!(tickets(&place), states(&[("done", 3)]));
}

#[test]
fn a_stop_is_told_to_who_comes_and_another_build_is_told_the_copy() {
    let place = sweep(2, "0");
    submit(&place, &[]);
    end(&place, &["stop", "x"]);
    for verb in ["worker", "wait"] {
        let ended = end(&place, &[verb, "x"]);
        assert!(
            ended.stderr.contains("were asked to stop (`kiln stop`)"),
            "{ended:?}"
        );
    }
    let mut file = place.run_file();
    file["launches"][0]["versions"]["kiln_sha256"] = "ab".repeat(32).into();
    fs::write(place.latest().join("run.json"), file.to_string()).unwrap();
    let ended = end(&place, &["run", "x.yaml", "--on", "workers", "--detach"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("the run began with another build of kiln"),
        "{ended:?}"
    );
}

#[test]
fn what_workers_cannot_do_is_refused_by_name() {
    let place = sweep(2, "0");
    let refused = |arguments: &[&str], says: &str, status| {
        let ended = end(&place, arguments);
        assert_eq!(ended.status, Some(status), "{ended:?}");
        assert!(ended.stderr.contains(says), "{ended:?}");
    };
    let on_workers = ["run", "x.yaml", "--on", "workers"];
    refused(
        &[&on_workers[..], &["--only", "y"]].concat(),
        "the plan has no such trial",
        2,
    );
    refused(&["run", "x.yaml", "--on", "slurms"], "`run.on`", 2);
    assert_eq!(place.run("", &[]).status, Some(0));
    for named in ["x", "x/latest", "results/x", "results/x/latest/run.json"] {
        refused(&["worker", named], "this run has no queue for workers", 2);
    }
    for (verb, what) in [("wait", "wait for"), ("stop", "stop")] {
        let told = format!("this run is not running, so there is nothing to {what}; `kiln report ");
        refused(&[verb, "x"], &told, 2);
        let ended = end(&place, &[verb, "x"]);
        assert!(!ended.stderr.contains("queue"), "{ended:?}");
    }
}

#[test]
fn a_run_without_a_queue_that_goes_on_is_waited_for_and_its_process_is_named() {
    let place = Place::with("train: {steps: 10}");
    let mut running = place.start("waits");
    wait_until("the trial is at work", || {
        place.attempts_with("at-work") == 1
    });
    for verb in ["stop", "worker"] {
        let refused = end(&place, &[verb, "x"]);
        assert_eq!(refused.status, Some(2), "{refused:?}");
        let command = format!("`kill -INT {}`", running.id());
        assert!(refused.stderr.contains(&command), "{refused:?}");
    }
    let mut waiting = kiln(&place, &["wait", "x"], "locks").spawn().unwrap();
    hear(&mut waiting, "waiting for the run in process");
    assert_eq!(end(&place, &["wait", "x", "--once"]).status, Some(1));
    place.release();
    assert_eq!(running.wait().unwrap().code(), Some(0));
    let ended = Ended::of(waiting.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("1 completed"), "{ended:?}");
}

/// Workers, each as on a node of its own if this machine lets one pretend that.
struct Nodes<'p> {
    place: &'p Place,
    run: PathBuf,
    workers: Vec<Child>,
    /// When each stopped one goes on.
    stopped: Vec<(Instant, u32)>,
    started: usize,
    pretends: bool,
    /// Variables of all workers.
    variables: Vec<(&'static str, String)>,
}

impl<'p> Nodes<'p> {
    fn of(place: &'p Place, variables: Vec<(&'static str, String)>) -> Self {
        Self {
            run: fs::canonicalize(place.latest()).unwrap(),
            place,
            workers: Vec::new(),
            stopped: Vec::new(),
            started: 0,
            pretends: pretends(),
            variables,
        }
    }

    fn start(&mut self) {
        self.started += 1;
        let number = self.started;
        let own = kiln(self.place, &[], &format!("locks-{number}"));
        let mut worker = Command::new("sh");
        let boot = self.place.path(&format!("boot-{number}"));
        fs::write(&boot, format!("00000000-0000-0000-0000-{number:012}\n")).unwrap();
        // Another boot is another host: who lives there shows by its heartbeat alone.
        let script = match self.pretends {
            true => "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"",
            false => "exec \"$@\"",
        };
        if self.pretends {
            worker = Command::new("unshare");
            worker.args(["-m", "sh"]);
        }
        worker.arg("-c").arg(script).arg(&boot);
        worker
            .arg(own.get_program())
            .arg("worker")
            .arg(&self.run)
            .arg("--quiet");
        worker.envs(variables(&own));
        let log = fs::File::create(self.place.path(&format!("log-{number}"))).unwrap();
        worker
            .current_dir(self.place.path(""))
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        worker.envs(self.variables.iter().map(|(name, value)| (name, value)));
        worker.env("LYING_SEED", number.to_string());
        self.workers.push(worker.spawn().unwrap());
    }

    fn is_done(&self) -> bool {
        let states = tickets(self.place);
        !states.contains_key("open") && !states.contains_key("taken")
    }

    fn wake(&mut self, now: Instant) {
        let (due, left): (Vec<_>, Vec<_>) = self.stopped.drain(..).partition(|(at, _)| *at <= now);
        self.stopped = left;
        for (_, pid) in due {
            let _ = Command::new("kill")
                .args(["-CONT", &pid.to_string()])
                .output();
        }
    }

    fn reap(&mut self) {
        self.workers
            .retain_mut(|worker| worker.try_wait().unwrap().is_none());
    }

    /// Starts workers in the place of those that have ended.
    fn keep_at_work(&mut self, workers: usize) {
        self.reap();
        while self.workers.len() < workers {
            self.start();
        }
    }

    /// Kills or stops workers at random moments while six of them work, until the queue is empty;
    /// returns at how many.
    fn disturb(&mut self, moments: usize, random: &mut fastrand::Rng) -> usize {
        let (mut done, begun) = (0, Instant::now());
        while !self.is_done() {
            assert!(
                begun.elapsed() < Duration::from_secs(900),
                "{:?}",
                tickets(self.place)
            );
            self.keep_at_work(6);
            std::thread::sleep(Duration::from_millis(random.u64(0..150)));
            let now = Instant::now();
            self.wake(now);
            let alive: Vec<u32> = self.workers.iter().map(Child::id).collect();
            let alive = alive
                .into_iter()
                .filter(|pid| self.stopped.iter().all(|(_, stopped)| stopped != pid));
            let alive: Vec<u32> = alive.collect();
            if done < moments && !alive.is_empty() {
                let pid = alive[random.usize(..alive.len())];
                done += 1;
                let name = if random.bool() { "-KILL" } else { "-STOP" };
                let _ = Command::new("kill").args([name, &pid.to_string()]).output();
                if name == "-STOP" {
                    let rest = Duration::from_millis(random.u64(0..3000));
                    self.stopped.push((now + rest, pid));
                }
            }
        }
        self.wake(Instant::now() + Duration::from_secs(300));
        self.end();
        done
    }

    /// Who attends asks for a trial again whose last attempt was stopped beside one that completed:
    /// one that woke up late began it once more.
    fn work_until_end_of(&mut self, attendant: &mut Child) {
        let begun = Instant::now();
        while attendant.try_wait().unwrap().is_none() {
            assert!(
                begun.elapsed() < Duration::from_secs(600),
                "who attends does not end: {:?}, launches {:?}",
                tickets(self.place),
                self.place.lines()
            );
            self.reap();
            if self.workers.is_empty() && !self.is_done() {
                self.start();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.end();
        // So may one that woke up when who attends had ended already, and then end by an error.
        while !self.is_done() {
            assert!(begun.elapsed() < Duration::from_secs(600));
            self.start();
            self.end();
            self.reap();
        }
    }

    fn end(&mut self) {
        for worker in &mut self.workers {
            let begun = Instant::now();
            while worker.try_wait().unwrap().is_none() {
                assert!(
                    begun.elapsed() < Duration::from_secs(300),
                    "a worker does not end"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Whether a worker can be shown another boot here, which takes a mount namespace.
fn pretends() -> bool {
    let script = "echo x >/dev/shm/kiln-boot-$$ && mount --bind /dev/shm/kiln-boot-$$ \
                  /proc/sys/kernel/random/boot_id; status=$?; rm -f /dev/shm/kiln-boot-$$; exit \
                  $status";
    Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Nothing is lost and nothing doubled, whatever happened.
fn is_whole(place: &Place, trials: usize) {
    let once = || {
        let ended = end(place, &["wait", "x", "--once"]);
        assert!(matches!(ended.status, Some(0 | 1)), "{ended:?}");
        fs::read(place.latest().join("trials.csv")).unwrap()
    };
    // A worker of another host that was killed is known to be gone after a while.
    let mut attendant = kiln(place, &["wait", "x"], "locks").spawn().unwrap();
    let begun = Instant::now();
    while attendant.try_wait().unwrap().is_none() {
        let states = tickets(place);
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "there is something to wait for: {states:?}, {:?}",
            place.lines()
        );
        // It asks for a trial again whose last attempt ended by an error after the first wait was over.
        if states.contains_key("open") {
            work(place);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(matches!(attendant.wait().unwrap().code(), Some(0 | 1)));
    assert_eq!(once(), once(), "two collects are equal to the byte");
    let rows = place.rows();
    let keys: BTreeSet<(&str, &str)> = rows
        .iter()
        .map(|row| (row["trial"].as_str(), row["attempt"].as_str()))
        .collect();
    assert_eq!(keys.len(), rows.len(), "no attempt has two rows");
    let last: BTreeMap<&str, &str> = rows
        .iter()
        .map(|row| (row["trial"].as_str(), row["outcome"].as_str()))
        .collect();
    assert_eq!(last.len(), trials);
    assert!(
        last.values().all(|outcome| *outcome == "completed"),
        "{last:?} {:?}",
        place.column("reason")
    );
    for attempt in place.attempts() {
        let (number, trial) = (
            attempt.file_name(),
            attempt.parent().and_then(Path::file_name),
        );
        let key = (
            trial.unwrap().to_str().unwrap(),
            number.unwrap().to_str().unwrap(),
        );
        let was_begun = attempt.join("attempt.json").exists();
        assert!(!was_begun || keys.contains(&key), "{key:?} has no row");
    }
    assert!(place.processes().is_empty());
    let states = tickets(place);
    assert_eq!(states.keys().collect::<Vec<_>>(), ["done"], "{states:?}");
}

/// Disturbs workers of a run of so many trials at so many moments, and checks the end.
fn survives(
    trials: usize,
    moments: usize,
    variables: &dyn Fn(&Place) -> Vec<(&'static str, String)>,
) {
    survives_with((trials, "0.05"), moments, variables);
}

/// The same with trials of so many seconds.
fn survives_with(
    (trials, seconds): (usize, &str),
    moments: usize,
    variables: &dyn Fn(&Place) -> Vec<(&'static str, String)>,
) {
    let place = sweep(trials, seconds);
    submit(&place, &[]);
    let mut attendant = kiln(&place, &["wait", "x", "--quiet"], "locks")
        .spawn()
        .unwrap();
    let mut nodes = Nodes::of(&place, variables(&place));
    let mut random = fastrand::Rng::with_seed(20_261_125);
    let done = nodes.disturb(moments, &mut random);
    assert_eq!(done, moments, "the queue was empty too soon");
    nodes.work_until_end_of(&mut attendant);
    // A trial that met three kills in a row was given up; it may run again now that nobody kills.
    for _ in 0..3 {
        if tickets(&place).contains_key("held") {
            submit(&place, &["--rerun", "killed"]);
            assert_eq!(work(&place).status, Some(0));
        }
    }
    is_whole(&place, trials);
}

/// While four workers run blocks of three trials, commands name some of the trials at random moments,
/// two at a time and without a lock; each with the chance `killed` to be killed. Then one asks for all.
fn survives_who_names(
    blocks: usize,
    killed: f64,
    variables: &dyn Fn(&Place) -> Vec<(&'static str, String)>,
) -> Place {
    let values: Vec<String> = (1..=blocks).map(|value| value.to_string()).collect();
    let place = Place::of_command(
        "  argv: [sh, -c, 'sleep 0.05; echo loss $KILN_VALUE_LAST $KILN_VALUE_MORE']\n  values: \
         {last: 3, more: 1}\n  metrics: {train_loss: {line: 'loss ([0-9]+)'}}",
        &format!(
            "sweep: {{grid: {{model.values.last: [{}], model.values.more: [1, 2, 3]}}, together: \
             [model.values.more]}}",
            values.join(", ")
        ),
    );
    let ids = plan_of(&place);
    submit(&place, &[]);
    let of_workers = variables(&place);
    let mut without_locks = of_workers.clone();
    if without_locks.is_empty() {
        without_locks = lies(&place, results_of(&place), &[]);
    }
    without_locks.push(("LYING_NO_LOCKS", "1".to_owned()));
    let mut nodes = Nodes::of(&place, of_workers);
    let mut random = fastrand::Rng::with_seed(20_261_127);
    let (mut asked, mut asking) = (0, Vec::<Child>::new());
    let begun = Instant::now();
    while asked < blocks || !asking.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(300), "{asking:?}");
        nodes.keep_at_work(4);
        asking.retain_mut(|child| child.try_wait().unwrap().is_none());
        if asked < blocks && asking.len() < 2 {
            let named: Vec<&str> = (0..5)
                .map(|_| ids[random.usize(..ids.len())].as_str())
                .collect();
            let mut command = kiln(&place, &["run", "x.yaml", "--on", "workers"], "locks");
            command.args(["--detach", "--only", &named.join(",")]);
            command.envs(without_locks.iter().map(|(name, value)| (name, value)));
            command.env("LYING_SEED", asked.to_string());
            command.stdout(std::process::Stdio::null());
            asking.push(command.stderr(std::process::Stdio::null()).spawn().unwrap());
            asked += 1;
        }
        if random.f64() < killed
            && let Some(child) = asking.first_mut()
        {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(random.u64(0..60)));
    }
    submit(&place, &[]);
    while !nodes.is_done() {
        assert!(begun.elapsed() < Duration::from_secs(600));
        nodes.keep_at_work(4);
        std::thread::sleep(Duration::from_millis(50));
    }
    nodes.end();
    is_whole(&place, ids.len());
    let names = fs::read_dir(place.latest().join("queue"))
        .unwrap()
        .flatten();
    let is_right = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".divided");
    assert!(
        names.filter(is_right).count() > 3,
        "hardly a ticket was divided"
    );
    place
}

#[test]
fn commands_that_name_trials_beside_workers_and_each_other_lose_and_double_nothing() {
    let place = survives_who_names(by_form(20, 60), 0.0, &|_| Vec::new());
    let attempts = place.column("attempt");
    let ends = place.column("outcome").into_iter();
    let ends: Vec<_> = ends.zip(place.column("reason")).collect();
    let second = attempts.iter().position(|attempt| attempt != "1");
    assert!(second.is_none(), "row {second:?} of {ends:?}");
}

#[test]
fn commands_that_name_trials_and_are_killed_on_a_folder_that_lies_lose_and_double_nothing() {
    let told = [("LYING_REPLY", "0.2"), ("LYING_STALE", "1")];
    survives_who_names(by_form(12, 60), 0.1, &|place| {
        lies(place, results_of(place), &told)
    });
}

#[test]
fn workers_killed_and_stopped_at_random_moments_lose_and_double_nothing() {
    let (trials, moments) = by_form((60, 40), (300, 200));
    survives(trials, moments, &|_| Vec::new());
}

/// A library that makes a folder lie as a network file system does; `tests/lying_folder/lying.c`.
fn lying_library(place: &Place) -> String {
    let library = place.path("lying.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lying_folder/lying.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .args(["-ldl", "-pthread"])
        .status();
    assert!(built.unwrap().success());
    library.into_os_string().into_string().unwrap()
}

/// Variables for a folder that lies: of the paths with this text, so.
fn lies(
    place: &Place,
    folder: String,
    told: &[(&'static str, &str)],
) -> Vec<(&'static str, String)> {
    let own = [
        ("LD_PRELOAD", lying_library(place)),
        ("LYING_FOLDER", folder),
    ];
    let told = told
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    own.into_iter().chain(told).collect()
}

#[test]
fn workers_on_a_folder_that_loses_replies_and_shows_old_lists_lose_and_double_nothing() {
    let (trials, moments) = by_form((30, 15), (150, 200));
    survives(trials, moments, &|place| {
        let told = [
            ("LYING_REPLY", "0.2"),
            ("LYING_STALE", "2"),
            ("LYING_FSYNC_MS", by_form("30", "300")),
        ];
        lies(place, results_of(place), &told)
    });
}

/// Any file or folder of the run: a worker that meets an error where it cannot go on ends, and others
/// do its work.
#[test]
fn workers_on_a_folder_whose_server_fails_now_and_then_lose_and_double_nothing() {
    let (trials, moments) = by_form((30, 15), (150, 200));
    survives(trials, moments, &|place| {
        let told = [
            ("LYING_REPLY", "0.05"),
            ("LYING_STALE", "0.5"),
            ("LYING_FAULT", "0.002"),
        ];
        lies(place, results_of(place), &told)
    });
}

fn results_of(place: &Place) -> String {
    let results = place.path("results").into_os_string();
    results.into_string().unwrap()
}

#[test]
fn workers_on_a_queue_whose_server_fails_now_and_then_lose_and_double_nothing() {
    let (trials, moments) = by_form((30, 15), (150, 200));
    survives(trials, moments, &|place| {
        let told = [
            ("LYING_REPLY", "0.2"),
            ("LYING_STALE", "0.5"),
            ("LYING_FAULT", "0.05"),
        ];
        lies(place, "/queue".to_owned(), &told)
    });
}

#[test]
fn a_run_on_which_a_worker_works_is_seen_and_not_removed() {
    let place = sweep(3, "30");
    submit(&place, &[]);
    assert!(
        end(&place, &["watch", "x", "--once"])
            .stdout
            .contains("3 tickets wait for a worker")
    );
    let mut worker = kiln(&place, &["worker", "x"], "locks-1").spawn().unwrap();
    wait_until("a trial runs", || !place.processes().is_empty());
    let watched = end(&place, &["watch", "x", "--once"]).stdout;
    assert!(
        watched.contains("running") && watched.contains("1 running, 2 waiting"),
        "{watched}"
    );
    let listed = end(&place, &["ls"]).stdout;
    assert!(
        listed.contains("running") && listed.contains("workers have 1 ticket"),
        "{listed}"
    );
    let removed = end(&place, &["rm", "x", "--yes"]);
    assert_eq!(removed.status, Some(2), "{removed:?}");
    assert!(
        removed.stderr.contains("workers have tickets of this run"),
        "{removed:?}"
    );
    send(&worker.id().to_string(), "TERM");
    assert_eq!(worker.wait().unwrap().code(), Some(130));
    let table = place.latest().join("launches/2/trials.csv");
    assert_eq!(fs::read_to_string(table).unwrap().lines().count(), 2);
    assert_eq!(end(&place, &["rm", "x", "--yes"]).status, Some(0));
}

#[test]
fn trials_of_two_workers_of_one_host_know_of_each_other() {
    let go = tempfile::tempdir().unwrap();
    let go = go.path().join("go");
    // Each runs on for a second once both have begun.
    let place = sweep(
        2,
        &format!(
            "0; touch {go}-$KILN_VALUE_LAST; while [ ! -e {go} ]; do sleep 0.05; done; sleep 1",
            go = go.display()
        ),
    );
    submit(&place, &[]);
    let workers =
        ["locks-1", "locks-2"].map(|locks| kiln(&place, &["worker", "x"], locks).spawn().unwrap());
    let has_begun = |number: u64| {
        let file = format!("{}-{number}", go.display());
        Path::new(&file).exists()
    };
    wait_until("both are at work", || has_begun(1) && has_begun(2));
    // Each looks what others run, again and again.
    std::thread::sleep(Duration::from_secs(1));
    fs::write(&go, "").unwrap();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    end(&place, &["wait", "x", "--once"]);
    assert_eq!(place.column("concurrent_trials"), ["2", "2"]);
    let alone = sweep(2, "0.5");
    submit(&alone, &[]);
    assert_eq!(work(&alone).status, Some(0));
    assert_eq!(alone.column("concurrent_trials"), ["1", "1"]);
}

#[test]
fn who_attends_may_leave_and_the_workers_go_on() {
    let place = sweep(4, "1");
    submit(&place, &[]);
    let mut worker = kiln(&place, &["worker", "x"], "locks-1").spawn().unwrap();
    let mut attendant = kiln(&place, &["wait", "x"], "locks").spawn().unwrap();
    hear(&mut attendant, "is at work");
    wait_until("a trial has ended", || {
        place.lines().len() > 1 || {
            let table = place.latest().join("launches/2/trials.csv");
            fs::read_to_string(table).is_ok_and(|text| text.lines().count() > 1)
        }
    });
    send(&attendant.id().to_string(), "INT");
    let left = Ended::of(attendant.wait_with_output().unwrap());
    assert_eq!(left.status, Some(130), "{left:?}");
    assert!(left.stderr.contains("left; the workers go on"), "{left:?}");
    assert!(worker.wait().unwrap().success());
    is_whole(&place, 4);
}

#[test]
fn a_script_that_changed_since_the_run_was_made_is_refused_by_its_workers() {
    let place = Place::of_command(
        "  argv: [sh, trial.sh, '{last}']\n  values: {last: 3}\n  metrics: {train_loss: {line: \
         'loss ([0-9]+)'}}",
        "sweep: {grid: {model.values.last: [1, 2]}}",
    );
    let script = place.path("trial.sh");
    fs::write(&script, "echo loss $1\n").unwrap();
    submit(&place, &[]);
    fs::write(&script, "echo loss 7\n").unwrap();
    let refused = work(&place);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("`trial.sh` is another than launch 1's"),
        "{refused:?}"
    );
    let again = end(&place, &["run", "x.yaml", "--on", "workers", "--detach"]);
    assert_eq!(again.status, Some(2), "{again:?}");
    assert!(
        again.stderr.contains("`trial.sh` is another than"),
        "{again:?}"
    );
    assert_eq!(tickets(&place), states(&[("open", 2)]));
    fs::write(&script, "echo loss $1\n").unwrap();
    assert_eq!(work(&place).status, Some(0));
    assert_eq!(place.column("train_loss"), ["1.0", "2.0"]);
    // With rows there, and tickets asked for again.
    submit(&place, &["--rerun", "completed"]);
    fs::write(&script, "echo loss 8\n").unwrap();
    assert_eq!(work(&place).status, Some(3));
    assert_eq!(tickets(&place), states(&[("done", 2), ("open", 2)]));
}

#[test]
fn a_run_of_workers_is_the_same_from_each_host_that_sees_it() {
    let place = sweep(2, "0");
    submit(&place, &[]);
    assert_eq!(work(&place).status, Some(0));
    place.move_elsewhere();
    let again = submit(&place, &[]);
    assert!(
        again.stderr.contains("every trial already has its result"),
        "{again:?}"
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn a_file_system_without_locks_is_good_enough_for_workers() {
    let place = sweep(2, "0");
    let results = place.path("results").display().to_string();
    let without = |arguments: &[&str]| {
        let told = [("LYING_NO_LOCKS", "1")];
        let mut command = kiln(&place, arguments, "locks");
        Ended::of(
            command
                .envs(lies(&place, results.clone(), &told))
                .output()
                .unwrap(),
        )
    };
    let refused = without(&["run", "x.yaml"]);
    assert_eq!(refused.status, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("this file system has no locks"),
        "{refused:?}"
    );
    let submitted = without(&["run", "x.yaml", "--on", "workers", "--detach"]);
    assert_eq!(submitted.status, Some(0), "{submitted:?}");
    let worked = without(&["worker", "x"]);
    assert_eq!(worked.status, Some(0), "{worked:?}");
    assert_eq!(tickets(&place), states(&[("done", 2)]));
}

#[test]
fn a_node_on_which_kiln_trial_does_not_start_takes_no_ticket() {
    let place = Place::with("train: {steps: 10}");
    let broken = place.path("kiln-trial");
    write_program(
        &broken,
        "#!/bin/sh\necho \"$0: error while loading shared libraries: libtorch_cpu.so: cannot open shared \
         object file: No such file or directory\" >&2\nexit 127\n",
    );
    let with = |arguments: &[&str]| {
        let mut command = kiln(&place, arguments, "locks");
        Ended::of(command.env("KILN_TRIAL", &broken).output().unwrap())
    };
    let submitted = with(&["run", "x.yaml", "--on", "workers", "--detach"]);
    assert_eq!(submitted.status, Some(0), "{submitted:?}");
    let ended = with(&["worker", "x"]);
    assert_eq!(ended.status, Some(3), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("this node cannot run the trials, and takes no ticket")
            && ended.stderr.contains("libtorch_cpu.so"),
        "{ended:?}"
    );
    assert_eq!(tickets(&place), states(&[("open", 1)]));
    assert!(place.attempts().is_empty());
}
