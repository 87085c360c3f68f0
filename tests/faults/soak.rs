//! Sweeps under random faults, one launch after the other, for as long as `$KILN_SOAK_SECONDS`
//! says: ten seconds in the short form, two hours in the long one. Each launch is disturbed in one
//! way at a random moment; when every trial of a sweep has a row, all conditions are checked and
//! the next sweep begins. `target/faults-soak.csv` has a row per kind of disturbance.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use fastrand::Rng;

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude, table},
    form::by_form,
    interposer::{Call, Disturbance, Fault, Page, Role, calls},
    kills::{TARGETS, Target, strike},
    pool::{Tried, try_each},
    rows,
    scene::{LIBTORCH, Running, Scene, Verb, Workload, gpt_experiment, kill},
    undisturbed,
};

/// Sixteen trials on both engines, with checkpoints and workers.
const SWEEP: Workload = Workload {
    name: "soak",
    verb: Verb::Run,
    yaml: gpt_experiment!(
        "sweep: {grid: {run.engine: [libtorch, flex], train.seed: [1, 2, 3, 4, 5, 6, 7, 8]}}\n"
    ),
    is_real: true,
};

/// One disturbance of a launch.
#[derive(Clone, Copy, Debug)]
enum Event {
    Kill(Target),
    Signal(&'static str),
    /// The parent is stopped for a while, then killed.
    Pause,
    /// A call fails, is torn or late, or kills.
    Call(Disturbance),
    /// `trials.csv` is replaced by a copy, as an editor or `git stash` does.
    Copy,
    /// A second launch beside the first.
    Second,
}

const ERRORS: [Fault; 9] = [
    Fault::NO_SPACE,
    Fault::BROKEN,
    Fault::QUOTA,
    Fault::FILES,
    Fault::MISSING,
    Fault::Tear,
    Fault::Delay(500),
    Fault::KillSelf,
    Fault::KillGroup,
];

impl Event {
    fn any(random: &mut Rng, calls: &[Call]) -> Self {
        match random.u32(0..10) {
            0..=2 => Self::Kill(TARGETS[random.usize(..TARGETS.len())]),
            3 => Self::Signal(["INT", "TERM", "HUP"][random.usize(..3)]),
            4 => Self::Pause,
            5 => Self::Copy,
            6 => Self::Second,
            _ => loop {
                let (call, fault) = (
                    &calls[random.usize(..calls.len())],
                    ERRORS[random.usize(..ERRORS.len())],
                );
                if fault.fits(call.kind) {
                    break Self::Call(Disturbance {
                        role: call.role,
                        at: call.number,
                        fault,
                        is_lasting: random.bool() && matches!(fault, Fault::Error(..)),
                    });
                }
            },
        }
    }

    fn name(self) -> String {
        match self {
            Self::Kill(target) => format!("kill of {target:?}").to_lowercase(),
            Self::Signal(signal) => format!("SIG{signal}"),
            Self::Pause => "pause".to_owned(),
            Self::Copy => "trials.csv replaced".to_owned(),
            Self::Second => "second launch".to_owned(),
            Self::Call(of) => {
                let lasting = if of.is_lasting { " from then on" } else { "" };
                format!("{} in the {}{lasting}", of.fault.name(), of.role.name())
            }
        }
    }

    /// Whether a trial may fail for good: the error was injected into the child and is not that of
    /// a full disk.
    fn may_fail_trials(self) -> bool {
        matches!(self, Self::Call(of) if of.role == Role::Child
            && !matches!(of.fault, Fault::NO_SPACE | Fault::QUOTA | Fault::Tear))
    }
}

/// Does it to a running launch; `false` if the launch ended before.
fn disturb(event: Event, running: &mut Running<'_>, scene: &Scene, after: Duration) -> bool {
    if !running.pause(after) {
        return false;
    }
    match event {
        Event::Kill(target) => strike(running, scene, target),
        Event::Signal(signal) => kill(running.pid(), signal),
        Event::Pause => {
            kill(running.pid(), "STOP");
            running.pause(Duration::from_millis(1500));
            kill(running.pid(), "CONT");
            running.pause(Duration::from_millis(300));
            kill(running.pid(), "KILL");
        }
        Event::Copy => {
            let (table, copy) = (scene.table(), scene.run_folder().join("copy.csv"));
            // A row may come between the two calls, which is why kiln compares with its memory.
            if fs::copy(&table, &copy).is_ok() {
                let _ = fs::rename(&copy, &table);
            }
            running.pause(Duration::from_millis(500));
            kill(running.pid(), "TERM");
        }
        Event::Second => {
            let second = scene.launch(&[], |_| ());
            // If the first one came too late to the lock, it was refused and has ended.
            if second.status != Some(3) && running.pause(Duration::from_millis(200)) {
                scene.note("status", format!("two launches: {}", second.words()));
            }
            kill(running.pid(), "KILL");
        }
        Event::Call(_) => {}
    }
    true
}

/// Counts of one kind of disturbance.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    launches: u64,
    struck: u64,
}

/// Counts over all sweeps so far.
#[derive(Debug, Default)]
struct Log {
    counts: BTreeMap<String, Count>,
    rows: u64,
    completed: u64,
}

/// One sweep to its end.
fn sweep(
    log: &mut Log,
    random: &mut Rng,
    figures: &Figures,
    is_over: &dyn Fn() -> bool,
) -> Vec<Violation> {
    let known = undisturbed::of(SWEEP);
    let scene = Scene::new(SWEEP);
    let mut excuse = Excuse::default();
    // The calls of a smaller run: those of the first trials.
    let calls = calls(&undisturbed::of(LIBTORCH).records);
    loop {
        let event = Event::any(random, &calls);
        let after = known.time.mul_f64(0.4 * random.f64());
        let page = Page::new(scene.path("logs/page"));
        let mut running = scene.start(&[], |command| {
            if let Event::Call(disturbance) = event {
                page.attach(command, &scene.work(""));
                disturbance.apply(command);
            }
        });
        let mut is_struck = disturb(event, &mut running, &scene, after);
        let launch = running.end();
        if let Event::Call(disturbance) = event {
            is_struck = page.hit().is_some();
            if is_struck {
                add(&figures.faults);
                excuse.failed_trials |= event.may_fail_trials();
            }
            if launch.status == Some(2) && is_struck {
                scene.note(
                    "status untrue",
                    format!(
                        "2 is for a bad file, not for {disturbance:?}: {}",
                        launch.words()
                    ),
                );
            }
        } else if is_struck {
            add(match event {
                Event::Copy | Event::Second => &figures.faults,
                _ => &figures.kills,
            });
        }
        let count = log.counts.entry(event.name()).or_default();
        count.launches += 1;
        count.struck += u64::from(is_struck);
        let final_rows = rows::read(&scene.table())
            .iter()
            .filter(|row| row.is_final())
            .count();
        let has_failed = !scene.violations.borrow().is_empty();
        if final_rows >= known.trials.len() || is_over() || has_failed {
            break;
        }
    }
    let violations = scene.finish_beside(excuse);
    let found = rows::read(&scene.table());
    log.rows += found.len() as u64;
    log.completed += found
        .iter()
        .filter(|row| row.outcome() == "completed")
        .count() as u64;
    violations
}

fn write(log: &Log, sweeps: usize, seconds: u64, seed: u64) {
    let columns = ["disturbance", "launches", "struck"];
    let mut table = table("faults-soak.csv", &columns);
    let mut all = Count::default();
    for (name, count) in &log.counts {
        all.launches += count.launches;
        all.struck += count.struck;
        let [launches, struck] = [count.launches, count.struck].map(|count| count.to_string());
        table.write_record([name, &launches, &struck]).unwrap();
    }
    let words = format!(
        "all: {sweeps} sweeps in {seconds} s (seed {seed}) with {} rows of which {} completed",
        log.rows, log.completed
    );
    let [launches, struck] = [all.launches, all.struck].map(|count| count.to_string());
    table.write_record([&words, &launches, &struck]).unwrap();
}

#[test]
fn sweeps_under_random_faults_end_as_if_nothing_had_happened() {
    let variable = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    let seconds = variable("KILN_SOAK_SECONDS").unwrap_or(by_form(10, 7200));
    let seed = variable("KILN_SOAK_SEED").unwrap_or(11);
    let (figures, mut random, begun) = (Figures::new(), Rng::with_seed(seed), Instant::now());
    let is_over = || begun.elapsed() >= Duration::from_secs(seconds);
    let (mut log, mut tried) = (Log::default(), Vec::<Tried>::new());
    while !is_over() {
        let name = format!("sweep {}", tried.len() + 1);
        let found = std::sync::Mutex::new((&mut log, &mut random));
        tried.extend(try_each(vec![(name, ())], |_, ()| {
            let mut shared = found.lock().unwrap();
            let (log, random) = &mut *shared;
            sweep(log, random, &figures, &is_over)
        }));
    }
    write(&log, tried.len(), begun.elapsed().as_secs(), seed);
    conclude("soak", &figures, &tried);
}
