//! Signals and pauses, of the parent and of its child.

use std::{
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    form::by_form,
    pool::try_each,
    rows,
    scene::{FLEX, SCRIPTED, Scene, Workload, kill},
};

/// A run with a trial at work, in a scenario that goes on until it is told to end.
fn at_work<'a>(
    scene: &'a Scene,
    scenario: &str,
    change: impl FnOnce(&mut Command),
) -> crate::scene::Running<'a> {
    let mut running = scene.start(&[], |command| {
        command.env("SCRIPTED_CHILD", scenario);
        change(command);
    });
    if scene.workload.is_real {
        running.wait_until(|running| running.has_said("trial_started", 2));
    } else {
        running.wait_until(|_| scene.attempts_with("at-work") == 1);
    }
    running
}

/// A signal to the parent ends the run with 130.
fn stopped(workload: Workload, signal: &str, scenario: &str, figures: &Figures) -> Vec<Violation> {
    let scene = Scene::new(workload);
    let running = at_work(&scene, scenario, |_| ());
    kill(running.pid(), signal);
    if signal == "INT" {
        // The first one lets the running trial finish. The system does not count signals: a second
        // one that comes before kiln has seen the first would be the same.
        std::thread::sleep(Duration::from_secs(3));
        kill(running.pid(), signal);
    }
    add(&figures.kills);
    let launch = running.end();
    // A training may have ended before the signal came.
    if launch.status != Some(130) && !(workload.is_real && launch.status == Some(0)) {
        scene.note("status", format!("SIG{signal}: {}", launch.words()));
    }
    scene.finish(Excuse::default())
}

#[test]
fn signals_to_the_parent_end_the_run_and_it_resumes() {
    let figures = Figures::new();
    let mut cases = Vec::new();
    for workload in [SCRIPTED, FLEX] {
        for signal in ["INT", "TERM", "HUP"] {
            for scenario in ["obeys_term", "hangs"] {
                if !workload.is_real || scenario == "hangs" {
                    let name = format!("{} SIG{signal} {scenario}", workload.name);
                    cases.push((name, (workload, signal, scenario)));
                }
            }
        }
    }
    let tried = try_each(cases, |_, (workload, signal, scenario)| {
        stopped(workload, signal, scenario, &figures)
    });
    conclude("signals", &figures, &tried);
}

/// A signal that its user ignores, as `nohup` makes it.
#[test]
fn nohup_is_honoured() {
    let figures = Figures::new();
    let tried = try_each(vec![("nohup".to_owned(), ())], |_, ()| {
        let scene = Scene::new(SCRIPTED);
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "trap '' HUP; exec \"$@\"",
                "sh",
                env!("CARGO_BIN_EXE_kiln"),
            ])
            .args(["run", "x.yaml", "--progress", "json"])
            .current_dir(scene.work(""))
            .stdin(Stdio::null());
        scene.surround(&mut command);
        command.env("SCRIPTED_CHILD", "waits_for_turn");
        let mut running = scene.spawn(command);
        running.wait_until(|_| scene.attempts_with("at-work") == 1);
        kill(running.pid(), "HUP");
        add(&figures.kills);
        running.wait_until(|_| {
            if !scene.work("turns").exists() {
                scene.give_turn();
            }
            false
        });
        let launch = running.end();
        if launch.status != Some(0) {
            scene.note(
                "status",
                format!("a run under nohup ended at SIGHUP: {}", launch.words()),
            );
        }
        let _ = std::fs::remove_file(scene.work("turns"));
        scene.finish(Excuse::default())
    });
    conclude("nohup", &figures, &tried);
}

/// The parent alone is stopped (Ctrl-Z), or its child too (`docker pause`), longer than `run.stall`.
fn paused(signal: &str, with_child: bool, figures: &Figures) -> Vec<Violation> {
    let scene = Scene::new(SCRIPTED);
    // Longer than the longest gap between two looks that counts as silence of the child.
    let stall = ["--set", "run.stall=3s"];
    // The child speaks five times a second: only a parent that was away can take it for silent.
    let mut running = scene.start(&stall, |command| {
        command.env("SCRIPTED_CHILD", "hangs");
    });
    running.wait_until(|_| scene.attempts_with("at-work") == 1);
    let mut all = vec![running.pid()];
    if with_child {
        all.extend(scene.children(running.pid()));
    }
    all.iter().for_each(|pid| kill(*pid, signal));
    running.pause(Duration::from_millis(3600));
    // The parent goes on first.
    all.iter().for_each(|pid| kill(*pid, "CONT"));
    add(&figures.faults);
    running.pause(Duration::from_millis(500));
    kill(running.pid(), "TERM");
    running.end();
    for row in rows::read(&scene.table()) {
        if row.outcome() == "timed-out" {
            scene.note(
                "wrong outcome",
                format!("timed-out: {}", row.cells["reason"]),
            );
        }
    }
    scene.finish(Excuse {
        failed_trials: true,
    })
}

#[test]
fn a_stopped_parent_does_not_take_its_child_for_silent() {
    let figures = Figures::new();
    let mut cases = Vec::new();
    for signal in ["STOP", "TSTP"] {
        for with_child in [false, true] {
            for round in 0..by_form(3, 50) {
                let who = if with_child { "both" } else { "parent" };
                let name = format!("SIG{signal} of {who}, round {round}");
                cases.push((name, (signal, with_child)));
            }
        }
    }
    let tried = try_each(cases, |_, (signal, with_child)| {
        paused(signal, with_child, &figures)
    });
    conclude("pauses", &figures, &tried);
}

/// A signal to the child from outside is told by its name, and the trial runs again.
#[test]
fn signals_to_a_child_are_told_and_the_trial_runs_again() {
    let figures = Figures::new();
    let cases = ["KILL", "TERM", "INT", "HUP"].map(|signal| (format!("child SIG{signal}"), signal));
    let tried = try_each(cases.to_vec(), |_, signal| {
        let scene = Scene::new(SCRIPTED);
        let mut running = at_work(&scene, "waits_for_turn", |_| ());
        // A shell waits for its `sleep` before it ends, so its whole group gets the signal.
        for pid in scene.children(running.pid()) {
            let _ = Command::new("kill")
                .args([format!("-{signal}"), "--".to_owned(), format!("-{pid}")])
                .process_group(0)
                .status();
        }
        add(&figures.kills);
        running.wait_until(|_| {
            if !scene.work("turns").exists() {
                scene.give_turn();
            }
            false
        });
        running.end();
        let _ = std::fs::remove_file(scene.work("turns"));
        let first = rows::read(&scene.table()).into_iter().next().unwrap();
        let reason = first.cells["reason"].clone();
        if first.outcome() != "killed" || !reason.contains(&format!("SIG{signal}")) {
            scene.note(
                "wrong outcome",
                format!("SIG{signal}: {}: {reason}", first.outcome()),
            );
        }
        scene.finish(Excuse::default())
    });
    conclude("signals to children", &figures, &tried);
}
