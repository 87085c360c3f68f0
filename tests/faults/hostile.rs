//! Children that lie, break the protocol or leave processes behind (`hostile.sh`): each is a row
//! with a true outcome, and the run goes on.

use std::path::Path;

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    pool::try_each,
    rows,
    scene::{SCRIPTED, Scene},
};

/// The scenarios, and whether the trial may be `completed`.
const SCENARIOS: [(&str, bool); 30] = [
    ("result_of_version_2", false),
    ("result_of_another_trial", false),
    ("result_of_another_attempt", false),
    ("result_says_failed", false),
    ("result_is_a_list", false),
    ("result_is_huge", false),
    ("result_is_a_fifo", false),
    ("result_is_a_device", false),
    ("result_is_deep", false),
    ("no_result", false),
    ("nul_in_device_name", true),
    ("nul_in_notes", true),
    ("nul_in_reason", false),
    ("escapes", true),
    ("not_utf8", true),
    ("a_line_of_200_mb", true),
    ("many_lines", true),
    ("much_stderr", true),
    ("closes_stdout", false),
    ("closes_stdout_and_stays", false),
    ("never_ends", false),
    ("forks", true),
    ("daemon", true),
    ("daemon_without_mark", true),
    ("stops_itself", false),
    ("kills_its_group", false),
    ("rewrites_the_table", true),
    ("empties_the_table", true),
    ("removes_its_folder", false),
    ("steps_is_a_fifo", true),
];

fn attempt(scenario: &str, may_complete: bool, figures: &Figures) -> Vec<Violation> {
    let scene = Scene::new(SCRIPTED);
    let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/hostile.sh");
    let limits = ["--set", "run.timeout=10s", "--set", "run.stall=4s"];
    let launch = scene.launch(&limits, |command| {
        command.env("KILN_TRIAL", child).env("HOSTILE", scenario);
    });
    add(&figures.faults);
    scene.check_processes();
    let found = rows::read(&scene.table());
    if !may_complete && let Some(row) = found.iter().find(|row| row.outcome() == "completed") {
        scene.note(
            "wrong outcome",
            format!("{:?} is `completed`; {}", row.key, launch.words()),
        );
    }
    if launch.stdout.contains('\u{1b}') || launch.stderr.contains('\u{1b}') {
        scene.note(
            "escapes",
            "an escape character of the child reaches the terminal",
        );
    }
    scene.finish(Excuse {
        failed_trials: true,
    })
}

#[test]
fn hostile_children_are_rows_with_a_true_outcome() {
    let figures = Figures::new();
    let cases = SCENARIOS
        .iter()
        .map(|scenario| (scenario.0.to_owned(), *scenario));
    let tried = try_each(cases.collect(), |_, (scenario, may_complete)| {
        attempt(scenario, may_complete, &figures)
    });
    conclude("hostile", &figures, &tried);
}
