//! Every key of the experiment file changes something that a run leaves behind: more than the
//! resolved experiment, a trial's id or its `trial.yaml`, which only repeat what was written.
//!
//! The keys come from `kiln schema`, the cases from `cases.rs`. Each case runs the built programs
//! twice, with two values of its key and all else equal, and looks at what a real run left
//! (`left.rs`): losses, rows, outcomes, what the child measured. In the short form, where the
//! training alone shows the effect, it is trained in this process: libtorch takes long to load four
//! hundred times. Cases marked `by_program` run the programs in both forms, at least one for each
//! part of the trial file that `kiln run` writes.

mod cases;
mod files;
mod images;
mod keys;
mod left;
mod pairs;
mod panels;
#[path = "../../../../../tests/scripted_child/program.rs"]
mod program;
mod weights;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use self::cases::{Case, Effect, Shows};
use self::files::Files;
use self::keys::Key;
use self::left::{Child, Left, Setting};
use crate::form::is_long;

/// Keys without a case. A key stands here only while it has a single legal value, which the test
/// checks.
const OF_ONE_VALUE: [&str; 1] = ["kiln"];
/// Keys of what `kiln run` refuses by name: `kiln tune` shows what each of them does.
const OF_SEARCHES: &str = "sweep.search.";
/// Keys of programs that `kiln-trial` does not run: `tests/commands_as_trials.rs` and
/// `tests/helper.rs` of the runner show what they do.
const OF_COMMANDS: &str = "(command)";
const OF_ENGINES: &str = "run.engines";
/// Runs in which an effect that a busy machine may hide is looked for.
const TRIES: usize = 20;
/// Cases at work at once.
const THREADS: usize = 2;

#[test]
fn the_cases_are_about_the_keys_of_the_schema_each_once() {
    let schema = keys::schema();
    let keys = keys::leaves(&schema);
    assert!(keys.len() > 90, "{}", keys.len());
    let is_of_search = |key: &Key| key.to_string().starts_with(OF_SEARCHES);
    let is_of_programs = |key: &Key| {
        let name = key.to_string();
        name.ends_with(OF_COMMANDS) || name == OF_ENGINES
    };
    let is_of_others = |key: &Key| is_of_search(key) || is_of_programs(key);
    let exempt = |key: &Key| OF_ONE_VALUE.contains(&key.to_string().as_str()) || is_of_others(key);
    for key in keys.iter().filter(|key| exempt(key) && !is_of_others(key)) {
        assert!(
            key.has_one_value,
            "`{key}` has several values now, and needs a case"
        );
    }
    let wanted: Vec<String> = keys
        .iter()
        .filter(|key| !exempt(key))
        .map(Key::to_string)
        .collect();
    let have: Vec<String> = cases::all().iter().map(|case| case.key.clone()).collect();
    let missing: Vec<_> = wanted.iter().filter(|key| !have.contains(key)).collect();
    let unknown: Vec<_> = have.iter().filter(|key| !wanted.contains(key)).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "keys without a case: {missing:?}; cases of no key: {unknown:?}"
    );
    assert_eq!(
        have.len(),
        have.iter().collect::<BTreeSet<_>>().len(),
        "a key has two cases"
    );
    assert_eq!(
        OF_ONE_VALUE.len() + have.len() + keys.iter().filter(|key| is_of_others(key)).count(),
        keys.len()
    );
}

/// As long as searches have no case of their own, no file with one may run.
#[test]
fn a_search_is_refused_by_name() {
    let file = "kiln: 1\nname: x\nmodel: {kind: matmul, size: 8}\ntrain: {steps: 10}\nsweep: \
                {search: {kind: largest-batch}}\n";
    let refused = Setting {
        file: file.to_owned(),
        sets: Vec::new(),
        child: Child::Scripted("completes"),
    }
    .run(&Files::write());
    assert_eq!(refused.status(), "2");
    assert!(
        refused
            .stderr()
            .contains("`sweep.search` is for `kiln tune`"),
        "{refused}"
    );
}

#[test]
fn every_key_changes_what_a_run_leaves_behind() {
    let cases = cases::all();
    let runs = Runs {
        files: Files::write(),
        left: Mutex::default(),
        again: Mutex::default(),
        repeated: Mutex::default(),
    };
    let failures = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
            if let Err(what) = check(case, &runs) {
                failures
                    .lock()
                    .unwrap()
                    .push(format!("`{}` {:?}: {what}", case.key, case.values));
            }
        }
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(work)));
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} keys without their effect:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// The files of each setting.
type BySetting = Mutex<HashMap<Setting, Arc<OnceLock<Left>>>>;

/// The files of all runs; each setting is run once, however many cases share it.
struct Runs {
    files: Files,
    left: BySetting,
    again: BySetting,
    /// The experiment files that were run twice, by what carried them out and what was looked at.
    repeated: Mutex<HashSet<(String, Child, &'static str)>>,
}

impl Runs {
    fn of(&self, of: &BySetting, setting: &Setting) -> Arc<OnceLock<Left>> {
        let cell = Arc::clone(of.lock().unwrap().entry(setting.clone()).or_default());
        cell.get_or_init(|| setting.run(&self.files));
        cell
    }

    /// Runs a setting a second time. In the short form only for the first case of its file that
    /// shows this effect: what differs from run to run does so under every key.
    fn again(&self, setting: &Setting, effect: Effect) -> Option<Arc<OnceLock<Left>>> {
        let is_new = self.repeated.lock().unwrap().insert((
            setting.file.clone(),
            setting.child,
            effect.name,
        ));
        (is_long() || is_new).then(|| self.of(&self.again, setting))
    }
}

fn check(case: &Case, runs: &Runs) -> Result<(), String> {
    let settings = [0, 1].map(|side| case.setting(side));
    let cells = settings
        .each_ref()
        .map(|setting| runs.of(&runs.left, setting));
    let [one, other] = cells.each_ref().map(|cell| cell.get().unwrap());
    match case.shows {
        Shows::Differ(effect) => {
            one.succeeded().and(other.succeeded())?;
            let again = runs.again(&settings[0], effect);
            let seen = [
                one,
                again.as_ref().map_or(one, |again| again.get().unwrap()),
                other,
            ]
            .map(effect.see);
            match seen {
                [first, ..] if first.is_empty() => Err("nothing is to be seen".to_owned()),
                [first, again, _] if first != again => Err(format!(
                    "not even the same file twice gives the same: {first} and {again}"
                )),
                [first, _, other] if first == other => Err(format!("both show {first}")),
                _ => Ok(()),
            }
        }
        Shows::Are(see, expected) => {
            let seen = [one, other].map(see);
            let as_expected = seen.each_ref().map(String::as_str) == expected;
            as_expected
                .then_some(())
                .ok_or_else(|| format!("expected {expected:?}, found {seen:?}\n{one}\n{other}"))
        }
        Shows::Holds(holds) => holds(one, other)
            .then_some(())
            .ok_or_else(|| format!("no such effect\n{one}\n{other}")),
        Shows::HoldsOnce(holds) => {
            let later = || (1..TRIES).any(|_| holds(one, &settings[1].run(&runs.files)));
            (holds(one, other) || later())
                .then_some(())
                .ok_or_else(|| format!("no such effect in {TRIES} runs\n{one}\n{other}"))
        }
    }
}
