//! Each call by which a run changes files fails once in every way, or a process is killed at it.

use std::sync::Arc;

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    form::by_form,
    interposer::{Call, Disturbance, Fault, Kind, Page, Role, calls},
    pool::try_each,
    scene::{FLEX, LIBTORCH, REPRODUCE_FLEX, SCRIPTED, Scene, TUNE, Workload},
    undisturbed,
};

/// Faults of a call, and whether all later calls fail too.
const OF_PARENT: [(Fault, bool); 11] = [
    (Fault::NO_SPACE, false),
    (Fault::NO_SPACE, true),
    (Fault::BROKEN, false),
    (Fault::BROKEN, true),
    (Fault::QUOTA, false),
    (Fault::FILES, false),
    (Fault::MISSING, false),
    (Fault::Tear, false),
    (Fault::Delay(30), false),
    (Fault::KillSelf, false),
    (Fault::KillGroup, false),
];
const OF_CHILD: [(Fault, bool); 11] = [
    (Fault::NO_SPACE, false),
    (Fault::NO_SPACE, true),
    (Fault::BROKEN, false),
    (Fault::QUOTA, true),
    (Fault::FILES, false),
    (Fault::MISSING, false),
    (Fault::Tear, false),
    (Fault::Delay(30), false),
    (Fault::KillSelf, false),
    (Fault::KillParent, false),
    (Fault::KillGroup, false),
];

/// Number of calls that one case stands for.
struct Stride {
    parent: usize,
    child: usize,
}

impl Stride {
    fn of(parent: usize, child: usize) -> Self {
        Self { parent, child }
    }
}

/// Every so many-th of all faults of all calls, and all faults of the first and last calls and of
/// those on the tables.
fn cases(workload: Workload, stride: &Stride) -> Vec<(String, Disturbance)> {
    let all = calls(&undisturbed::of(workload).records);
    let mut found = Vec::new();
    for (role, faults, stride) in [
        (Role::Parent, OF_PARENT, stride.parent),
        (Role::Child, OF_CHILD, stride.child),
    ] {
        let of_role: Vec<&Call> = all.iter().filter(|call| call.role == role).collect();
        for (place, call) in of_role.iter().enumerate() {
            for (number, (fault, is_lasting)) in faults.into_iter().enumerate() {
                let is_due = (place + number).is_multiple_of(stride)
                    || (role == Role::Parent
                        && stride < 10
                        && is_important(call, place, of_role.len()));
                if is_due && fault.fits(call.kind) {
                    let disturbance = Disturbance {
                        role,
                        at: call.number,
                        fault,
                        is_lasting,
                    };
                    found.push((name(workload, call, &disturbance), disturbance));
                }
            }
        }
    }
    found
}

fn is_important(call: &Call, place: usize, calls: usize) -> bool {
    place < 5
        || place + 5 > calls
        || ["trials.csv", "run.json", ".run.json.new"]
            .iter()
            .any(|name| call.path.ends_with(name))
}

fn name(workload: Workload, call: &Call, disturbance: &Disturbance) -> String {
    let file = call.path.rsplit('/').next().unwrap_or_default();
    format!(
        "{} {} {} {} {file}: {}{}",
        workload.name,
        call.role.name(),
        call.number,
        call.kind.name(),
        disturbance.fault.name(),
        if disturbance.is_lasting {
            " from then on"
        } else {
            ""
        }
    )
}

fn attempt(workload: Workload, disturbance: &Disturbance, figures: &Figures) -> Vec<Violation> {
    let scene = Scene::new(workload);
    let page = Page::new(scene.path("logs/page"));
    let launch = scene.launch(&[], |command| {
        page.attach(command, &scene.work(""));
        disturbance.apply(command);
    });
    let Some(hit) = page.hit() else {
        // The sampler's calls come by the clock, so the last call may not come.
        return scene.finish(Excuse::default());
    };
    add(&figures.faults);
    if matches!(
        disturbance.fault,
        Fault::KillSelf | Fault::KillParent | Fault::KillGroup
    ) {
        add(&figures.kills);
    }
    if launch.status == Some(2) {
        let said = launch.words();
        scene.note(
            "status untrue",
            format!(
                "2 is for a bad file, not for {} of {}: {said}",
                hit.kind.name(),
                hit.path
            ),
        );
    }
    let is_full = matches!(
        disturbance.fault,
        Fault::NO_SPACE | Fault::QUOTA | Fault::Tear
    );
    // A child whose disk is full is interrupted; any other error may be the trial's own. The scripted
    // child's shell says `I/O error` for all of them.
    let failed_trials = disturbance.role == Role::Child && !(is_full && workload.is_real);
    let mut violations = scene.finish(Excuse { failed_trials });
    // The sampler's calls come by the clock, so it may be another call than in the undisturbed run.
    for violation in &mut violations {
        violation
            .text
            .push_str(&format!("; hit: {} {}", hit.kind.name(), hit.path));
    }
    violations
}

fn disturb(test: &str, workload: Workload, stride: &Stride) {
    let figures = Arc::new(Figures::new());
    let tried = try_each(cases(workload, stride), |_, disturbance| {
        attempt(workload, &disturbance, &figures)
    });
    conclude(test, &figures, &tried);
}

#[test]
fn no_failing_call_of_a_scripted_run_costs_a_row() {
    disturb(
        "calls scripted",
        SCRIPTED,
        &by_form(Stride::of(4, 3), Stride::of(1, 1)),
    );
}

#[test]
fn no_failing_call_of_a_search_costs_a_row() {
    disturb(
        "calls tune",
        TUNE,
        &by_form(Stride::of(101, 103), Stride::of(5, 5)),
    );
}

#[test]
fn no_failing_call_of_a_reproduction_costs_a_row_or_changes_a_loss() {
    disturb(
        "calls reproduce",
        REPRODUCE_FLEX,
        &by_form(Stride::of(401, 397), Stride::of(31, 29)),
    );
}

#[test]
fn no_failing_call_of_a_training_costs_a_row_or_changes_a_loss() {
    disturb(
        "calls flex",
        FLEX,
        &by_form(Stride::of(101, 113), Stride::of(7, 5)),
    );
}

#[test]
fn no_failing_call_of_a_training_with_libtorch_costs_a_row_or_changes_a_loss() {
    disturb(
        "calls libtorch",
        LIBTORCH,
        &by_form(Stride::of(401, 397), Stride::of(31, 29)),
    );
}

#[test]
fn the_library_sees_every_kind_of_call() {
    let known = undisturbed::of(SCRIPTED);
    let seen = |kind: Kind, role: Role| {
        calls(&known.records)
            .iter()
            .any(|call| call.kind == kind && call.role == role)
    };
    for kind in [
        Kind::Write,
        Kind::Sync,
        Kind::Rename,
        Kind::Open,
        Kind::MakeFolder,
        Kind::Unlink,
        Kind::Symlink,
    ] {
        assert!(
            seen(kind, Role::Parent),
            "{} of the parent is not seen",
            kind.name()
        );
    }
    for kind in [Kind::Write, Kind::Rename, Kind::Open] {
        assert!(
            seen(kind, Role::Child),
            "{} of the child is not seen",
            kind.name()
        );
    }
}
