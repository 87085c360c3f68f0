//! Clocks that are wrong: runs of the future, a clock that was set back, years that no calendar has.
//! The interposer moves the clock of day (`FAULT_CLOCK`).

use std::fs;

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    interposer::library,
    pool::try_each,
    scene::{Running, SCRIPTED, Scene, kill},
};

const YEAR: i64 = 365 * 24 * 3600;

/// Starts a launch whose clock is this many seconds ahead.
fn start<'a>(scene: &'a Scene, ahead: i64, scenario: &str) -> Running<'a> {
    scene.start(&[], |command| {
        command
            .env("LD_PRELOAD", library())
            .env("FAULT_CLOCK", ahead.to_string())
            .env("SCRIPTED_CHILD", scenario);
    })
}

/// Lets the first trial end, and kills the run in the second.
fn cut_short(scene: &Scene, mut running: Running<'_>) {
    running.wait_until(|running| running.has_said("trial_started", 1));
    scene.give_turn();
    running.wait_until(|running| running.has_said("trial_ended", 1));
    kill(running.pid(), "KILL");
    running.end();
    let _ = fs::remove_file(scene.work("turns"));
}

/// An experiment that was finished on a clock that was ahead has changed since; its new run is
/// killed, and goes on although its name is older.
fn run_of_the_future(ahead: i64) -> Vec<Violation> {
    let scene = Scene::new(SCRIPTED);
    fs::write(
        scene.work("x.yaml"),
        SCRIPTED.yaml.replace("steps: 10", "steps: 5"),
    )
    .unwrap();
    start(&scene, ahead, "completes").end();
    fs::write(scene.work("x.yaml"), SCRIPTED.yaml).unwrap();
    scene.kept.borrow_mut().clear();
    scene.announced.borrow_mut().clear();
    let running = start(&scene, 0, "waits_for_turn");
    cut_short(&scene, running);
    let listed = scene.kiln(&["ls"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    if listed.contains("abandoned") || listed.split_whitespace().any(is_negative) {
        scene.note(
            "clock",
            format!("`kiln ls`: {}", listed.replace('\n', " / ")),
        );
    }
    scene.finish(Excuse::default())
}

fn is_negative(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

/// One launch on each clock.
fn moved(clocks: [i64; 2]) -> Vec<Violation> {
    let scene = Scene::new(SCRIPTED);
    for ahead in clocks {
        let running = start(&scene, ahead, "waits_for_turn");
        cut_short(&scene, running);
    }
    scene.finish(Excuse::default())
}

#[test]
fn a_wrong_clock_costs_no_row() {
    let figures = Figures::new();
    type Case = fn() -> Vec<Violation>;
    let cases: [(&str, Case); 8] = [
        ("a finished run of 5 years ahead", || {
            run_of_the_future(5 * YEAR)
        }),
        ("a finished run of an hour ahead", || {
            run_of_the_future(3600)
        }),
        ("set back by a year", || moved([YEAR, 0])),
        ("set back by a day twice", || moved([2 * 86_400, 86_400])),
        ("set forward by 20 years", || moved([0, 20 * YEAR])),
        ("year 9999", || moved([7972 * YEAR, 7974 * YEAR])),
        ("before 1970", || moved([-60 * YEAR, -60 * YEAR])),
        ("the end of 32 bits", || moved([12 * YEAR, 13 * YEAR])),
    ];
    let cases = cases.map(|(name, case)| (name.to_owned(), case));
    let tried = try_each(cases.to_vec(), |_, case| {
        add(&figures.faults);
        case()
    });
    conclude("clocks", &figures, &tried);
}
