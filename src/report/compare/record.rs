//! Lists the differences between the records of two runs: experiment, code, libraries, machine.

use std::collections::{BTreeMap, BTreeSet};

use kiln_core::{
    plan::{Origin, show},
    record::{
        RunFile,
        difference::{Difference, differences, leaves},
        run_file::Launch,
    },
    units::short_hash,
};
use serde::Serialize;
use serde_json::Value;

use crate::report::{
    programs::{drop_moved, further_libraries, package_facts, program_facts},
    two_values,
};

/// A fact that two runs recorded differently. `None`: not set, where all that is set was recorded, else
/// not recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// Dotted: `git.commit`, `libraries.libtorch`, `experiment.train.batch_size`.
    pub what: String,
    pub base: Option<String>,
    pub new: Option<String>,
    /// Whether all that is set was recorded on both sides.
    #[serde(skip)]
    is_whole: bool,
}

/// Sections that are recorded as a whole: what is missing was not set.
const WHOLE: [&str; 2] = ["experiment.", "continues"];
/// A section that is, by one build of kiln: others record other variables.
const WHOLE_OF_VERSION: &str = "environment.";

/// Name of the fact that the experiment of a side is not known.
const EXPERIMENT: &str = "experiment";

impl Fact {
    /// The fact that the experiment of a side is not known; `None` if both are.
    pub fn of_unknown_experiment(is_known: [bool; 2]) -> Option<Self> {
        let [base, new] = is_known.map(|is_known| is_known.then(|| "known".to_owned()));
        let is_unknown = base.is_none() || new.is_none();
        is_unknown.then(|| Self {
            what: EXPERIMENT.to_owned(),
            base,
            new,
            is_whole: false,
        })
    }

    /// Such a fact in words; `None` for any other.
    pub(super) fn unknown_experiment(&self) -> Option<&'static str> {
        if self.what != EXPERIMENT {
            return None;
        }
        Some(match (&self.base, &self.new) {
            (None, Some(_)) => "the experiment of base is not known",
            (Some(_), None) => "the experiment of new is not known",
            _ => "the experiments of both are not known",
        })
    }

    /// Both sides as a page shows them.
    pub(in crate::report) fn sides(&self) -> [String; 2] {
        let none = match self.is_whole {
            true => "(not set)",
            false => "(not recorded)",
        };
        two_values::sides([self.base.as_deref(), self.new.as_deref()], none)
    }
}

/// Sections of a launch that decide numbers.
const TELLING: [&str; 10] = [
    "git",
    "versions",
    "libraries",
    "flags",
    "environment",
    "data_sha256",
    "driver",
    "devices",
    "machine",
    "machine_id",
];
/// Keys that differ in every run and do not affect results.
const FLEETING: [&str; 6] = [
    "load_1_minute",
    "available",
    "free",
    "uptime",
    "boot",
    "idle",
];
/// Keys that a reader knows already or sees from another key.
const BESIDE: [&str; 2] = ["experiment.name", "experiment.description"];

/// Returns the differences between the records of the newest launches of two runs, and the keys in
/// which their experiments differ. `packages` are the lists of the packages of their programs.
pub fn facts(
    runs: [Option<&RunFile>; 2],
    experiments: [Option<Value>; 2],
    packages: [Option<&str>; 2],
) -> Vec<Fact> {
    let [base, new] = runs.map(|run| run.and_then(launch));
    let of_launch = base
        .zip(new)
        .map(|(base, new)| differences(base, new))
        .unwrap_or_default();
    let of_beginning = Difference {
        key: "continues".to_owned(),
        old: runs[0].and_then(beginning).map(Value::String),
        new: runs[1].and_then(beginning).map(Value::String),
    };
    let is_telling = |difference: &Difference| {
        !is_fleeting(&difference.key) && !BESIDE.contains(&difference.key.as_str())
    };
    let is_one_version = are_of_one_version(runs);
    let fact = |Difference { key, old, new }: Difference| Fact {
        is_whole: WHOLE.iter().any(|section| key.starts_with(section))
            || (is_one_version && key.starts_with(WHOLE_OF_VERSION)),
        what: key,
        base: old.map(spelled),
        new: new.map(spelled),
    };
    // Values that differ only in notation read the same.
    between_experiments(experiments)
        .into_iter()
        .chain([of_beginning])
        .chain(between_programs(runs))
        .chain(of_launch)
        .chain(between_packages(packages))
        .filter(is_telling)
        .map(fact)
        .filter(|fact| fact.base != fact.new)
        .collect()
}

/// The keys in which two experiments differ, without those that a sweep of one varies: no trial has
/// the file's value of them. None where an experiment is not known.
fn between_experiments(experiments: [Option<Value>; 2]) -> Vec<Difference> {
    let axes: Vec<String> = experiments.iter().flatten().flat_map(swept).collect();
    let [Some(base), Some(new)] = experiments
        .map(|experiment| experiment.map(|value| leaves(value, &|key| key.starts_with("sweep."))))
    else {
        return Vec::new();
    };
    let is_swept = |key: &str| {
        axes.iter().any(|axis| {
            let below = key.strip_prefix(axis.as_str());
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    differences(base, new)
        .into_iter()
        .filter(|difference| !is_swept(&difference.key))
        .map(|difference| Difference {
            key: format!("experiment.{}", difference.key),
            ..difference
        })
        .collect()
}

/// The differences between the programs of two runs.
fn between_programs(runs: [Option<&RunFile>; 2]) -> Vec<Difference> {
    let [Some(base), Some(new)] = runs else {
        return Vec::new();
    };
    let [base, new] = [base, new].map(|run| run.newest_at_work());
    let [mut old, mut other] =
        [base, new].map(|launch| launch.map(of_programs).unwrap_or_default());
    drop_moved([&mut old, &mut other], String::as_str);
    let with_files = |difference: Difference| Difference {
        old: with_packages_file(&difference.key, difference.old, base),
        new: with_packages_file(&difference.key, difference.new, new),
        key: difference.key,
    };
    differences(old, other)
        .into_iter()
        .map(with_files)
        .collect()
}

/// The differences between two lists of packages. Both are known, so a package that is missing is not
/// installed.
fn between_packages(packages: [Option<&str>; 2]) -> Vec<Difference> {
    let [Some(base), Some(new)] = packages else {
        return Vec::new();
    };
    let [base, new] = [base, new].map(|text| values(package_facts(text)));
    let known = |value: Option<Value>| value.or_else(|| Some("(none)".into()));
    differences(base, new)
        .into_iter()
        .map(|difference| Difference {
            old: known(difference.old),
            new: known(difference.new),
            ..difference
        })
        .collect()
}

/// Whether one build of kiln made both runs; two builds of one version may record other variables.
fn are_of_one_version(runs: [Option<&RunFile>; 2]) -> bool {
    let [base, new] = runs.map(|run| {
        let versions = &run?.newest_at_work()?.versions;
        Some((&versions.kiln, &versions.kiln_sha256))
    });
    base.is_some() && base == new
}

/// Whether a key differs in every run and does not affect results.
pub(in crate::report) fn is_fleeting(key: &str) -> bool {
    key.split('.')
        .any(|part| FLEETING.iter().any(|word| part.contains(word)))
}

/// The checkpoints with which the trials of a run began, in words; `None` if they began anew.
pub(in crate::report) fn beginning(run: &RunFile) -> Option<String> {
    let origins: BTreeSet<String> = run
        .continues
        .values()
        .map(|Origin { trial, step, .. }| format!("{trial} at step {step}"))
        .collect();
    let name = run.continues.values().next()?.run_name();
    let each: Vec<String> = origins.into_iter().collect();
    Some(format!("{name}: {}", each.join(", ")))
}

/// The facts of the programs of a launch; the list of packages is a fact by itself.
fn of_programs(launch: &Launch) -> BTreeMap<String, Value> {
    let mut facts = program_facts(launch);
    facts.extend(further_libraries(launch));
    values(facts)
}

/// `41 packages (5c7710aa3e9d…)` with the file that lists them: it does not decide whether they are
/// equal.
fn with_packages_file(key: &str, value: Option<Value>, launch: Option<&Launch>) -> Option<Value> {
    let file = packages_file_of(key, launch);
    match (value, file) {
        (Some(Value::String(text)), Some(file)) => Some(format!("{text}, in {file}").into()),
        (value, _) => value,
    }
}

/// The list of packages of the interpreter that a fact is about.
fn packages_file_of<'a>(key: &str, launch: Option<&'a Launch>) -> Option<&'a str> {
    let path = key
        .strip_prefix("interpreters.")?
        .strip_suffix(".packages")?;
    let mut programs = launch?.programs.values();
    let interpreter = programs.find_map(|program| program.interpreters.get(path))?;
    interpreter.packages_file.as_deref()
}

fn values(facts: BTreeMap<String, String>) -> BTreeMap<String, Value> {
    let value = |(key, text)| (key, Value::String(text));
    facts.into_iter().map(value).collect()
}

/// Whether the sum of data that a run read is over names and lengths of files, not their contents.
pub fn has_data_by_name(run: &RunFile) -> bool {
    let mut launches = run.launches.iter();
    launches.any(|launch| launch.data_sha256.contains_key("image-folder"))
}

fn launch(run: &RunFile) -> Option<BTreeMap<String, Value>> {
    let newest = serde_json::to_value(run.newest_at_work()?).ok()?;
    let telling: serde_json::Map<String, Value> = TELLING
        .iter()
        .filter_map(|section| Some(((*section).to_owned(), newest.get(*section)?.clone())))
        .collect();
    Some(leaves(Value::Object(telling), &|_| false))
}

/// The keys that an experiment varies, in lists or by expressions.
fn swept(experiment: &Value) -> Vec<String> {
    let sections = ["grid", "zip", "derive"];
    let sections = sections.map(|section| experiment.pointer(&format!("/sweep/{section}")));
    let axes = sections.into_iter().flatten().filter_map(Value::as_object);
    axes.flat_map(|axes| axes.keys().cloned()).collect()
}

fn spelled(value: Value) -> String {
    short_hash(&value.as_str().map_or_else(|| show(&value), str::to_owned))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::points::tests::{BEGINNING, continued};

    fn run(launch: Value) -> RunFile {
        let mut whole = json!({
            "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1, "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [],
            "machine": {"cpu": {"model": "A", "load_1_minute": 1.5}, "memory": {"available": {"value": 5}}}, "devices": {"none": "x"},
            "versions": {"kiln": "0.1.0", "kiln_sha256": null, "trial_program": "kiln-trial", "trial_program_sha256": null},
            "environment": {},
        });
        whole
            .as_object_mut()
            .unwrap()
            .extend(launch.as_object().unwrap().clone());
        serde_json::from_value(json!({"kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [whole]})).unwrap()
    }

    #[test]
    fn what_decides_numbers_is_told_and_what_is_never_the_same_is_not() {
        let base = run(
            json!({"git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": false}, "libraries": {"libtorch": "2.11.0"}}),
        );
        let new = run(json!({
            "git": {"commit": "f123456789abcdef0123456789abcdef01234567", "dirty": true}, "libraries": {"libtorch": "2.11.0", "cudnn": "9"},
            "machine": {"cpu": {"model": "A", "load_1_minute": 0.1}, "memory": {"available": {"value": 7}}}, "boot_id": "c", "pid": 9,
        }));
        let experiments = [
            json!({"name": "x", "train": {"batch_size": 8, "clip_norm": 1}}),
            json!({"name": "y", "train": {"batch_size": 16, "clip_norm": 1.0, "steps": 3}}),
        ];
        let found: Vec<(String, String, String)> =
            facts([Some(&base), Some(&new)], experiments.map(Some), [None; 2])
                .into_iter()
                .map(|fact| {
                    let [base, new] = fact.sides();
                    (fact.what, base, new)
                })
                .collect();
        let of =
            |what: &str, base: &str, new: &str| (what.to_owned(), base.to_owned(), new.to_owned());
        let expected = [
            of("experiment.train.batch_size", "8", "16"),
            of("experiment.train.steps", "(not set)", "3"),
            of("git.commit", "0123456789ab…", "f123456789ab…"),
            of("git.dirty", "false", "true"),
            of("libraries.cudnn", "(not recorded)", "9"),
        ];
        assert_eq!(found, expected);
        assert_eq!(facts([Some(&base), None], [None, None], [None; 2]), []);
    }

    #[test]
    fn the_files_value_of_a_key_that_a_sweep_varies_is_no_difference() {
        let of = |rate: f64, beta: f64, sweep: Value| {
            let optimizer = json!({"learning_rate": rate, "beta1": beta});
            Some(json!({"train": {"optimizer": optimizer}, "sweep": sweep}))
        };
        let told = |base: Value, new: Value| {
            let experiments = [of(0.1, 0.8, base), of(0.2, 0.9, new)];
            let found = facts([None, None], experiments, [None; 2]).into_iter();
            let keys = found.map(|fact| fact.what);
            let of_training = keys.filter(|key| key.starts_with("experiment.train"));
            of_training.collect::<Vec<_>>()
        };
        let (rate, beta) = (
            "experiment.train.optimizer.learning_rate",
            "experiment.train.optimizer.beta1",
        );
        assert_eq!(told(json!({}), json!({})), [beta, rate]);
        let grid = json!({"grid": {"train.optimizer.learning_rate": [0.1, 0.3]}});
        assert_eq!(told(json!({}), grid), [beta]);
        let zip = json!({"zip": {"train.optimizer": [{"kind": "sgd"}]}});
        assert_eq!(told(zip, json!({})), [""; 0]);
    }

    #[test]
    fn other_files_interpreters_libraries_and_packages_of_programs_are_told() {
        let program = |sum: &str, version: &str, list: u64, blas: &str| {
            run(
                json!({"libraries": {"blas": "same"}, "programs": {"model": {
                    "program": ["python train.py"], "files": {"train.py": sum.repeat(32), "conf": "ab"},
                    "interpreters": {"python": {
                        "version": version, "packages": 2, "packages_sha256": format!("0{list}").repeat(32),
                        "packages_file": format!("packages-{list}.txt"),
                    }},
                    "libraries": {"openmp": blas, "blas": blas},
                }}}),
            )
        };
        let base = program("5c", "python 3.12.3", 1, "libgomp.so.1");
        let new = program("91", "python 3.12.4", 2, "libomp.so");
        let packages = [
            "# python: python 3.12.3\nnumpy 1.26.0\nscipy 1.11\ntorch 2.11.0\n",
            "# python: python 3.12.4\nnumpy 2.1.0\ntorch 2.11.0\n",
        ];
        let found = facts([Some(&base), Some(&new)], [None, None], packages.map(Some));
        let told: Vec<String> = found
            .iter()
            .map(|fact| {
                let [base, new] = fact.sides();
                format!("{}: {base} → {new}", fact.what)
            })
            .collect();
        let expected = [
            "interpreters.python.packages: 2 packages (010101010101…), in packages-1.txt → \
             2 packages (020202020202…), in packages-2.txt",
            "interpreters.python.version: python 3.12.3 → python 3.12.4",
            "libraries.openmp: libgomp.so.1 → libomp.so",
            "programs.train.py: 5c5c5c5c5c5c… → 919191919191…",
            "packages.numpy: 1.26.0 → 2.1.0",
            "packages.scipy: 1.11 → (none)",
        ];
        assert_eq!(told, expected);
        // The same file, named from another folder.
        let moved = run(json!({"programs": {"model": {
            "program": ["python train.py"], "files": {"/other/train.py": "5c".repeat(32), "/other/conf": "cd"},
        }}}));
        let told: Vec<String> = facts([Some(&base), Some(&moved)], [None, None], [None; 2])
            .into_iter()
            .map(|fact| fact.what)
            .filter(|what| what.starts_with("programs."))
            .collect();
        assert_eq!(told, ["programs./other/conf", "programs.conf"]);
        let same = facts(
            [Some(&base), Some(&base)],
            [None, None],
            [Some(packages[0]); 2],
        );
        assert_eq!(same, []);
    }

    #[test]
    fn a_run_that_continues_another_differs_from_one_that_does_not() {
        let anew = run(json!({}));
        let continued = continued(&anew);
        let found = facts([Some(&anew), Some(&continued)], [None, None], [None; 2]);
        let expected = Fact {
            what: "continues".to_owned(),
            base: None,
            new: Some(BEGINNING.to_owned()),
            is_whole: true,
        };
        assert_eq!(found, [expected]);
        assert_eq!(
            facts(
                [Some(&continued), Some(&continued)],
                [None, None],
                [None; 2]
            ),
            []
        );
    }
}
