//! Kills at every event and at random moments: of the parent, of the child, of both.

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    form::by_form,
    pool::try_each,
    scene::{
        FLEX, LIBTORCH, REPRODUCE_FLEX, REPRODUCE_LIBTORCH, Running, Scene, TUNE, TUNE_LIBTORCH,
        TWELVE, Workload, kill,
    },
    undisturbed,
};

/// Who is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Parent,
    Child,
    Both,
    Group,
}

pub(crate) const TARGETS: [Target; 4] =
    [Target::Parent, Target::Child, Target::Both, Target::Group];

/// When.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// As soon as so many events were said.
    Event(usize),
    /// At these shares of the time of an undisturbed run, one launch after the other.
    Shares([f64; 4]),
}

/// Kills the target now.
pub(crate) fn strike(running: &Running<'_>, scene: &Scene, target: Target) {
    let parent = running.pid();
    match target {
        Target::Parent => kill(parent, "KILL"),
        Target::Child => scene
            .children(parent)
            .iter()
            .for_each(|pid| kill(*pid, "KILL")),
        Target::Both => {
            let children = scene.children(parent);
            kill(parent, "KILL");
            children.iter().for_each(|pid| kill(*pid, "KILL"));
        }
        Target::Group => {
            std::process::Command::new("kill")
                .args(["-KILL", "--", &format!("-{parent}")])
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap();
        }
    }
}

fn attempt(
    workload: Workload,
    target: Target,
    moment: Moment,
    figures: &Figures,
) -> Vec<Violation> {
    let scene = Scene::new(workload);
    let time = undisturbed::of(workload).time;
    let shares = match moment {
        Moment::Event(_) => vec![0.0],
        Moment::Shares(shares) => shares.to_vec(),
    };
    for share in shares {
        let mut running = scene.start(&[], |_| ());
        let is_running = match moment {
            Moment::Event(events) => running.wait_until(|running| running.events().len() >= events),
            Moment::Shares(_) => running.pause(time.mul_f64(share)),
        };
        if is_running {
            add(&figures.kills);
            strike(&running, &scene, target);
        }
        running.end();
    }
    scene.finish(Excuse::default())
}

/// Kills at every `stride`-th event, by turns of each target, and in so many rounds of random ones.
fn kill_all(test: &str, workload: Workload, stride: usize, rounds: usize) {
    let figures = Figures::new();
    let events = undisturbed::of(workload).events;
    let mut cases = Vec::new();
    for (place, target) in TARGETS.into_iter().enumerate() {
        for event in (1..=events).filter(|event| (event + place).is_multiple_of(stride)) {
            let name = format!("{} {target:?} at event {event}", workload.name);
            cases.push((name, (target, Moment::Event(event))));
        }
    }
    // The same moments in each run of the suite, so that a case can be repeated.
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..rounds {
        let target = TARGETS[round % TARGETS.len()];
        let shares = [(); 4].map(|()| random.f64() * 1.1);
        let name = format!("{} {target:?} in round {round}", workload.name);
        cases.push((name, (target, Moment::Shares(shares))));
    }
    let tried = try_each(cases, |_, (target, moment)| {
        attempt(workload, target, moment, &figures)
    });
    conclude(test, &figures, &tried);
}

#[test]
fn kills_of_scripted_runs_cost_no_row() {
    kill_all("kills scripted", TWELVE, 1, by_form(24, 300));
}

#[test]
fn kills_of_trainings_cost_no_row_and_change_no_loss() {
    kill_all("kills flex", FLEX, by_form(4, 1), by_form(4, 300));
}

#[test]
fn kills_of_trainings_with_libtorch_cost_no_row_and_change_no_loss() {
    kill_all("kills libtorch", LIBTORCH, by_form(11, 1), by_form(1, 150));
}

#[test]
fn kills_of_searches_cost_no_row() {
    kill_all("kills tune", TUNE, by_form(5, 1), by_form(4, 100));
}

#[test]
fn kills_of_searches_with_libtorch_cost_no_row_and_change_no_loss() {
    kill_all(
        "kills tune libtorch",
        TUNE_LIBTORCH,
        by_form(23, 2),
        by_form(1, 60),
    );
}

#[test]
fn kills_of_reproductions_cost_no_row_and_change_no_loss() {
    kill_all(
        "kills reproduce flex",
        REPRODUCE_FLEX,
        by_form(17, 2),
        by_form(2, 60),
    );
}

#[test]
fn kills_of_reproductions_with_libtorch_cost_no_row_and_change_no_loss() {
    kill_all(
        "kills reproduce libtorch",
        REPRODUCE_LIBTORCH,
        by_form(29, 2),
        by_form(1, 60),
    );
}

/// A second launch beside the first is refused, and costs the first one nothing.
#[test]
fn a_second_launch_is_refused_and_costs_the_first_nothing() {
    let figures = Figures::new();
    let tried = try_each(vec![("second launch".to_owned(), ())], |_, ()| {
        let scene = Scene::new(TWELVE);
        let mut first = scene.start(&[], |command| {
            command.env("SCRIPTED_CHILD", "waits_for_turn");
        });
        first.wait_until(|_| scene.attempts_with("at-work") == 1);
        let second = scene.launch(&[], |_| ());
        if second.status != Some(3) {
            scene.note(
                "status",
                format!("two launches at once: {}", second.words()),
            );
        }
        kill(first.pid(), "KILL");
        first.end();
        add(&figures.kills);
        scene.finish(Excuse::default())
    });
    conclude("second launch", &figures, &tried);
}
