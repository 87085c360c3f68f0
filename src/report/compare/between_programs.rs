//! The programs of the sides of a comparison within one run, where the axis is the engine or a value
//! of a command that chooses its program or a file.

use std::{collections::BTreeMap, path::Path};

use kiln_core::{
    kinds::command::{Command, Placeholders},
    record::{
        ProgramRecord, RunFile,
        libraries::split_build_id,
        programs::{COMMAND_PROGRAM, engine_key},
        run_file::Launch,
    },
    spec::{self, Engine},
    units::{listed, short_hash},
};
use serde_json::Value;

use crate::report::{
    points::shown,
    programs::sentence,
    run_settings::{RunSettings, Setting},
    subject::Subject,
};

/// The axis whose values are programs.
const ENGINE: &str = "run.engine";

/// One side: its program, its interpreter, and the libraries that it loaded.
struct SideProgram<'a> {
    program: String,
    interpreter: Option<String>,
    libraries: &'a BTreeMap<String, String>,
}

/// The value of a command on an axis: `model.values.NAME`.
const VALUES: &str = "model.values.";

/// The differences between the programs of base and of each side, in words.
pub(super) fn differ(subject: Subject<'_>, axis: &str, base: &str, sides: &[&str]) -> Vec<String> {
    let Some(run) = subject.run else {
        return Vec::new();
    };
    match axis.strip_prefix(VALUES) {
        Some(name) => match ValuePrograms::of(run, subject.experiment, name) {
            Some(programs) => each_side(sides, |side| programs.lines(base, side)),
            None => Vec::new(),
        },
        None if axis == ENGINE => each_side(sides, |side| {
            let [base, side] = [base, side].map(|value| of_engine(run, value));
            let lines = base.zip(side).map(|(base, side)| lines(&base, &side));
            lines.unwrap_or_default()
        }),
        None => Vec::new(),
    }
}

/// The lines of each side; of several each begins with the side.
fn each_side(sides: &[&str], lines: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut found = Vec::new();
    for value in sides {
        let place = match sides.len() {
            1 => String::new(),
            _ => format!("{value}: "),
        };
        let lines = lines(value);
        found.extend(lines.into_iter().map(|line| format!("{place}{line}")));
    }
    found
}

/// A path as a record has it: from the folder in which kiln was started.
fn path_in_record(folder: &Path, path: &str) -> String {
    let whole = folder.join(path).to_string_lossy().into_owned();
    whole.strip_prefix("./").unwrap_or(&whole).to_owned()
}

/// The files that a value of a command chooses.
struct ValuePrograms<'a> {
    command: Command,
    /// Dotted key of the value.
    name: &'a str,
    /// The values of its axis.
    values: Vec<Value>,
    record: &'a ProgramRecord,
}

impl<'a> ValuePrograms<'a> {
    fn of(run: &'a RunFile, experiment: Option<&str>, name: &'a str) -> Option<Self> {
        let experiment = experiment?;
        let whole: Value = spec::read_yaml(experiment).ok()?;
        let settings = RunSettings::of(experiment)?.settings;
        let mut launches = run.launches.iter().rev();
        Some(Self {
            command: spec::command_of(whole.get("model")?)?,
            name,
            values: match settings.get(&format!("{VALUES}{name}"))? {
                Setting::Swept { values, .. } => values.clone(),
                Setting::One(value) => vec![value.clone()],
            },
            record: launches.find_map(|launch| launch.programs.get(COMMAND_PROGRAM))?,
        })
    }

    fn lines(&self, base: &str, side: &str) -> Vec<String> {
        let [base, side] = [base, side].map(|value| self.files(value));
        let only = |files: &[(String, &String)], others: &[(String, &String)]| {
            let own = files.iter().filter(|file| !others.contains(file));
            let named: Vec<String> = own
                .map(|(name, sum)| with_sum(name.clone(), Some(sum)))
                .collect();
            match named.is_empty() {
                true => "(none)".to_owned(),
                false => listed(&named, " and "),
            }
        };
        let (old, new) = (only(&base, &side), only(&side, &base));
        match old == new {
            true => Vec::new(),
            false => vec![format!("versions.program: {old} → {new}")],
        }
    }

    /// The recorded files in the command line of a value, each with its hash.
    fn files(&self, value: &str) -> Vec<(String, &'a String)> {
        let is_shown = |own: &&Value| {
            // An axis of a table has an empty cell for `null`.
            let is_none = own.is_null() && value == shown("");
            is_none || Setting::One((*own).clone()).text() == value
        };
        let Some(value) = self.values.iter().find(is_shown) else {
            return Vec::new();
        };
        let mut command = self.command.clone();
        command.values.insert(self.name.to_owned(), value.clone());
        let expanded = command.expand(&Placeholders::default());
        let folder = Path::new(expanded.folder.as_deref().unwrap_or_default());
        let mut found = Vec::new();
        for word in expanded.argv.iter().chain(&expanded.files) {
            let path = match word.split_once('=') {
                Some((option, path)) if option.starts_with('-') => path,
                _ => word,
            };
            let path = path_in_record(folder, path);
            let sums = [&self.record.files, &self.record.beside];
            let sum = sums.into_iter().find_map(|files| files.get(&path));
            found.extend(sum.map(|sum| (path, sum)));
        }
        found
    }
}

fn lines(base: &SideProgram<'_>, new: &SideProgram<'_>) -> Vec<String> {
    let none = || "(none)".to_owned();
    let interpreters = [base, new].map(|side| side.interpreter.clone().unwrap_or_else(none));
    let mut pairs = vec![
        (
            "versions.program".to_owned(),
            [base, new].map(|side| side.program.clone()),
        ),
        ("versions.interpreter".to_owned(), interpreters),
    ];
    // A column of the table has libtorch, and a library that one side alone loads is its own matter.
    let libraries = base
        .libraries
        .iter()
        .filter(|(name, _)| *name != "libtorch");
    pairs.extend(libraries.filter_map(|(name, version)| {
        let other = new.libraries.get(name)?;
        is_other(version, other).then(|| {
            (
                format!("libraries.{name}"),
                [version.clone(), other.clone()],
            )
        })
    }));
    let differing = pairs.into_iter().filter(|(_, [base, new])| base != new);
    differing
        .map(|(what, [base, new])| format!("{what}: {base} → {new}"))
        .collect()
}

/// Whether these are known to be different libraries. A program reports a version or a file, the
/// kernel a file and its build id; a version and a file tell nothing of each other.
fn is_other(base: &str, new: &str) -> bool {
    let is_file = |library: &str| library.starts_with("lib");
    let [(base_file, base_id), (new_file, new_id)] = [base, new].map(split_build_id);
    match base_id.is_some() == new_id.is_some() {
        true => is_file(base) == is_file(new) && base != new,
        false => is_file(base) && is_file(new) && base_file != new_file,
    }
}

/// The program of an engine in the newest launch that has it.
fn of_engine<'a>(run: &'a RunFile, name: &str) -> Option<SideProgram<'a>> {
    let mut launches = run.launches.iter().rev();
    if Engine::BUILT_IN.contains(&name) {
        return launches.next().map(of_kiln);
    }
    let program = launches.find_map(|launch| launch.programs.get(&engine_key(name)))?;
    let sum = |main: &String| program.files.get(main).or_else(|| program.beside.get(main));
    let sum = program.main.as_ref().and_then(sum);
    let interpreters: Vec<String> = program.interpreters.values().map(sentence).collect();
    Some(SideProgram {
        program: with_sum(listed(&program.program, " and "), sum),
        interpreter: (!interpreters.is_empty()).then(|| listed(&interpreters, " and ")),
        libraries: &program.libraries,
    })
}

fn of_kiln(launch: &Launch) -> SideProgram<'_> {
    let versions = &launch.versions;
    SideProgram {
        program: with_sum(
            versions.trial_program.clone(),
            versions.trial_program_sha256.as_ref(),
        ),
        interpreter: None,
        libraries: &launch.libraries,
    }
}

/// `kiln-trial (8be1127d7c1a…)`.
fn with_sum(program: String, sha256: Option<&String>) -> String {
    match sha256 {
        Some(sha256) => format!("{program} ({})", short_hash(sha256)),
        None => program,
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::TrialTable;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_programs_of_two_engines_are_named_with_their_hashes_and_packages() {
        let sums = ["8b".repeat(32), "5c".repeat(32)];
        let run = run(
            Some(&sums[0]),
            json!({
                "libraries": {"libtorch": "2.11.0", "cudnn": "9.10", "burn": "0.22.1"},
                "programs": {"run.engines.pytorch": {
                    "program": ["python engines/gpt.py"], "main": "engines/gpt.py",
                    "files": {"engines/gpt.py": sums[1]},
                    "interpreters": {".venv/bin/python": {
                        "version": "python 3.12.3", "packages": 41, "packages_file": "packages-1.txt",
                    }},
                    "libraries": {"libtorch": "2.11.0+cu130", "cudnn": "9.8"},
                }},
            }),
        );
        let expected = [
            "versions.program: kiln-trial (8b8b8b8b8b8b…) → python engines/gpt.py (5c5c5c5c5c5c…)",
            "versions.interpreter: (none) → python 3.12.3, 41 packages, in packages-1.txt",
            "libraries.cudnn: 9.10 → 9.8",
        ];
        let table = TrialTable::default();
        let subject = subject(&table, Some(&run), None);
        let lines = |axis: &str, sides: &[&str]| differ(subject, axis, "libtorch", sides);
        assert_eq!(lines(ENGINE, &["pytorch"]), expected);
        let both = lines(ENGINE, &["flex", "pytorch", "unknown"]);
        assert_eq!(both[0], format!("pytorch: {}", expected[0]));
        assert_eq!(lines("train.seed", &["2"]), [""; 0]);
        let without_run = Subject {
            run: None,
            ..subject
        };
        let none = differ(without_run, ENGINE, "libtorch", &["pytorch"]);
        assert_eq!(none, [""; 0]);
    }

    /// A run of one launch, with the hash of `kiln-trial` and these further keys of the launch.
    fn run(trial_program_sha256: Option<&String>, keys: Value) -> RunFile {
        let mut launch = json!({
            "launch": 1, "started_utc": "t", "boot_id": "b", "monotonic_nanoseconds": 1,
            "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [], "machine": null,
            "devices": null, "environment": {},
            "versions": {
                "kiln": "0", "kiln_sha256": null, "trial_program": "kiln-trial",
                "trial_program_sha256": trial_program_sha256,
            },
        });
        let keys = keys.as_object().cloned().unwrap_or_default();
        launch.as_object_mut().unwrap().extend(keys);
        serde_json::from_value(json!({
            "kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch],
        }))
        .unwrap()
    }

    fn subject<'a>(
        table: &'a TrialTable,
        run: Option<&'a RunFile>,
        experiment: Option<&'a str>,
    ) -> Subject<'a> {
        Subject {
            table,
            name: "",
            run,
            experiment,
            packages: None,
            folder: None,
        }
    }

    #[test]
    fn the_files_that_a_value_of_a_command_chooses_are_named_with_their_hashes() {
        let sums = ["8b".repeat(32), "5c".repeat(32), "77".repeat(32)];
        let run = run(
            None,
            json!({
                "programs": {"model": {
                    "program": ["gemm-a", "gemm-b"],
                    "files": {"build/./gemm-a": sums[0], "build/./gemm-b": sums[1], "build/n.txt": sums[2]},
                }},
            }),
        );
        let experiment = "model:
  kind: command
  argv: ['./gemm-{library}', '--conf={n}.txt', '-t', '{threads}']
  folder: build
  values: {library: a, n: n, threads: 1}
sweep: {grid: {model.values.library: [a, b, c], model.values.threads: [1, 2]}}
";
        let table = TrialTable::default();
        let subject = subject(&table, Some(&run), Some(experiment));
        let expected =
            "versions.program: build/./gemm-a (8b8b8b8b8b8b…) → build/./gemm-b (5c5c5c5c5c5c…)";
        let library = "model.values.library";
        assert_eq!(differ(subject, library, "a", &["b"]), [expected]);
        assert_eq!(
            differ(subject, library, "b", &["a", "c"]),
            [
                "a: versions.program: build/./gemm-b (5c5c5c5c5c5c…) → build/./gemm-a (8b8b8b8b8b8b…)",
                "c: versions.program: build/./gemm-b (5c5c5c5c5c5c…) → (none)",
            ]
        );
        assert_eq!(
            differ(subject, "model.values.threads", "1", &["2"]),
            [""; 0]
        );
    }

    #[test]
    fn a_version_and_a_file_are_not_called_different() {
        assert!(is_other("9.10", "9.8"));
        assert!(is_other("liba.so.1, build id 1", "liba.so.1, build id 2"));
        assert!(is_other("libgomp.so.1", "libgomp.so.2, build id 2"));
        assert!(!is_other("libgomp.so.1", "libgomp.so.1, build id 2"));
        assert!(!is_other("13.0", "libcudart.so.13, build id 2"));
        assert!(!is_other("13.0", "libcudart.so.13"));
    }
}
