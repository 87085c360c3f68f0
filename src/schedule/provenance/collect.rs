//! Lists the files and interpreters of the programs that an experiment's trials start.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::command::{Expanded, PLACEHOLDERS, Placeholders},
    limits::PROGRAM_FILES,
    plan::Trial,
    record::programs::{COMMAND_PROGRAM, engine_key},
    spec::Experiment,
};

use super::{
    glob,
    invocation::{Invocation, Lookups},
    names::{container_client, file_name, is_interpreter},
    python::{Python, module_of, python_of},
};

/// Most words that name a program.
const MOST_WORDS: usize = 5;
/// Most programs that a command names by its values.
const MOST_PROGRAMS: usize = 5;
/// A longer argument is not a path.
const LONGEST_PATH: usize = 4096;

/// The programs of an experiment by their keys.
pub(super) type Sources = BTreeMap<String, Source>;

/// One program: that of a command, or an engine of one's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Source {
    /// The program with the files among its arguments.
    pub(super) program: Vec<String>,
    /// The file that stands for each of them.
    pub(super) mains: Vec<String>,
    /// By the path as the experiment writes it, from the folder in which kiln was started.
    pub(super) files: BTreeMap<String, SourceFile>,
    pub(super) pythons: BTreeMap<String, Python>,
    /// The client that runs it in a container of a daemon.
    pub(super) container_client: Option<String>,
    /// The entries of `files` that were looked for, with the folder to which they are relative.
    lists: BTreeSet<(PathBuf, Vec<String>)>,
    /// Files of these entries.
    listed: BTreeSet<String>,
    /// Number of files among arguments that are left out, because there are too many.
    pub(super) left_out: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    /// Whether another content refuses a resume.
    pub(super) is_held: bool,
    /// Whether the program may write it, for all that is known.
    pub(super) may_be_output: bool,
}

/// Lists the programs of an experiment; kiln's own are left out.
///
/// # Errors
/// A message: an entry of `files` stands for no file.
pub(super) fn collect<'a>(
    experiment: &Experiment,
    trials: impl Iterator<Item = &'a Trial>,
    results: &Path,
) -> Result<Sources, String> {
    let results = std::path::absolute(results).unwrap_or_default();
    let mut sources = Sources::new();
    let (mut seen, lookups) = (HashSet::new(), Lookups::new());
    for trial in trials {
        if let Some(command) = trial.model.command() {
            // Files of the attempt itself are not known yet, and no program lies there.
            let expanded = command.expand(&Placeholders {
                seed: Some(trial.train.seed),
                trial: Some(trial.id.to_string()),
                ..Placeholders::default()
            });
            let Expanded {
                argv,
                prepare,
                folder,
                environment,
                files,
                unset: _,
            } = &expanded;
            let path = environment.iter().find(|(name, _)| name == "PATH").cloned();
            if !seen.insert((
                argv.clone(),
                prepare.clone(),
                folder.clone(),
                files.clone(),
                path,
            )) {
                continue;
            }
            let source = sources.entry(COMMAND_PROGRAM.to_owned()).or_default();
            source.add(&Invocation {
                argv,
                prepare,
                folder: folder.as_deref(),
                environment,
                files,
                files_key: "model.files",
                results: &results,
                lookups: &lookups,
            })?;
            continue;
        }
        if let Some(name) = trial.engine.own_name() {
            add_engine(&mut sources, experiment, name, (&results, &lookups))?;
        }
    }
    Ok(sources)
}

fn add_engine(
    sources: &mut Sources,
    experiment: &Experiment,
    name: &str,
    (results, lookups): (&Path, &Lookups),
) -> Result<(), String> {
    let key = engine_key(name);
    let engine = experiment.run.engines.get(name);
    let Some(engine) = engine.filter(|_| !sources.contains_key(&key)) else {
        return Ok(());
    };
    let environment: Vec<(String, String)> = engine
        .variables()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let source = sources.entry(key.clone()).or_default();
    source.add(&Invocation {
        argv: &engine.argv,
        prepare: &[],
        folder: None,
        environment: &environment,
        files: &engine.files,
        files_key: &format!("{key}.files"),
        results,
        lookups,
    })
}

impl Source {
    fn add(&mut self, of: &Invocation<'_>) -> Result<(), String> {
        let Some((name, arguments)) = of.argv.split_first() else {
            return Ok(());
        };
        // A file that `prepare` makes is another one after it.
        let may_be_made = !of.prepare.is_empty();
        if let Some(client) = container_client(of.argv) {
            self.container_client = Some(client.to_owned());
        }
        let mut words = Vec::new();
        let mut main = None;
        if let Some(path) = of.find(name) {
            let shown = match name.contains('/') {
                true => of.shown(name),
                false => name.clone(),
            };
            let is_held = !may_be_made && !is_interpreter(name);
            self.add_file(&shown, path, is_held, false);
            main = Some(shown);
        }
        let mut has_script = false;
        if let Some(module) = module_of(of) {
            for (shown, path) in module.files {
                if !has_script {
                    main = Some(shown.clone());
                }
                has_script = true;
                self.add_file(&shown, path, !may_be_made, false);
            }
            words.push(format!("-m {}", module.name));
        }
        for text in arguments {
            let Some((shown, path)) = file_of_argument(of, text) else {
                continue;
            };
            let is_program = is_interpreter(text);
            self.add_file(&shown, path, !may_be_made && !is_program, has_script);
            if !has_script && !is_program {
                main = Some(shown.clone());
                has_script = true;
            }
            words.push(shown);
        }
        let own = match words.is_empty() {
            true => of.shown(name),
            false => file_name(name).to_owned(),
        };
        words.insert(0, own);
        words.truncate(MOST_WORDS);
        let program = words.join(" ");
        if !self.program.contains(&program) && self.program.len() < MOST_PROGRAMS {
            self.program.push(program);
        }
        if let Some(main) = main.filter(|main| !self.mains.contains(main)) {
            self.mains.push(main);
        }
        if let Some(name) = of.prepare.first().filter(|name| name.contains('/'))
            && let Some(path) = of.find(name)
        {
            self.add_file(&of.shown(name), path, !is_interpreter(name), false);
        }
        self.add_listed(of)?;
        if let Some((shown, python)) = python_of(of) {
            self.pythons.entry(shown).or_insert(python);
        }
        Ok(())
    }

    /// A file among the arguments. Of too many the rest is counted.
    fn add_file(&mut self, shown: &str, path: PathBuf, is_held: bool, may_be_output: bool) {
        if self.files.len() >= PROGRAM_FILES.size() && !self.files.contains_key(shown) {
            self.left_out += 1;
            return;
        }
        let file = SourceFile {
            path,
            is_held,
            may_be_output,
        };
        self.files.entry(shown.to_owned()).or_insert(file);
    }

    /// The files of `files`, which are held in any case.
    fn add_listed(&mut self, of: &Invocation<'_>) -> Result<(), String> {
        let base = of.base();
        // The trials of a sweep mostly share their files.
        if !self.lists.insert((base.clone(), of.files.to_vec())) {
            return Ok(());
        }
        for pattern in of.files.iter().filter(|pattern| !is_of_attempt(pattern)) {
            let found = match glob::find(&base, pattern) {
                Ok(found) => found,
                Err(fault) if fault.is_absence() && !of.prepare.is_empty() => continue,
                Err(fault) => return Err(format!("`{}`: {fault}", of.files_key)),
            };
            let is_own = |path: &String| !base.join(path).starts_with(of.results);
            for path in found.into_iter().filter(is_own) {
                let file = SourceFile {
                    path: base.join(&path),
                    is_held: true,
                    may_be_output: false,
                };
                self.listed.insert(of.shown(&path));
                self.files.insert(of.shown(&path), file);
            }
            PROGRAM_FILES
                .check(self.listed.len() as u64)
                .map_err(|over| format!("`{}`: {over}, or name fewer files", of.files_key))?;
        }
        Ok(())
    }
}

/// Whether a placeholder is left, whose value only an attempt has.
fn is_of_attempt(pattern: &str) -> bool {
    PLACEHOLDERS
        .iter()
        .any(|name| pattern.contains(&format!("{{{name}}}")))
}

/// The existing file that an argument names, also behind `--config=`.
fn file_of_argument(of: &Invocation<'_>, text: &str) -> Option<(String, PathBuf)> {
    let path = match text.split_once('=') {
        Some((option, path)) if option.starts_with('-') => path,
        _ => text,
    };
    if path.is_empty() || path.len() > LONGEST_PATH || path.contains(['\0', '\n']) {
        return None;
    }
    let whole = of.base().join(path);
    of.is_file(&whole).then(|| (of.shown(path), whole))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::program::write_program;

    fn invocation<'a>(folder: &'a str, argv: &'a [String], files: &'a [String]) -> Invocation<'a> {
        Invocation {
            argv,
            prepare: &[],
            folder: Some(folder),
            environment: &[],
            files,
            files_key: "model.files",
            results: Path::new("/nonexistent"),
            lookups: Box::leak(Box::new(Lookups::new())),
        }
    }

    fn texts(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for file in ["train.py", "conf.yaml", "more.py"] {
            fs::write(place.path().join(file), file).unwrap();
        }
        write_program(&place.path().join("bench"), "#!/bin/sh\n");
        write_program(&place.path().join("tool"), "#!/usr/bin/env python3\n");
        place
    }

    fn source(argv: &[&str], prepare: &[&str], files: &[&str]) -> (Source, String) {
        let place = place();
        let folder = place.path().to_str().unwrap().to_owned();
        let (argv, prepare, files) = (texts(argv), texts(prepare), texts(files));
        let mut source = Source::default();
        source
            .add(&Invocation {
                prepare: &prepare,
                ..invocation(&folder, &argv, &files)
            })
            .unwrap();
        (source, folder + "/")
    }

    fn held(source: &Source, folder: &str) -> Vec<(String, bool)> {
        let each = source.files.iter();
        each.map(|(name, file)| (name.replace(folder, ""), file.is_held))
            .collect()
    }

    #[test]
    fn files_of_a_command_are_its_program_and_those_among_its_arguments() {
        let argv = ["./bench", "--conf=conf.yaml", "-o", "new.txt", "train.py"];
        let (source, folder) = source(&argv, &[], &["*.py"]);
        let held = held(&source, &folder);
        let all = [
            ("./bench", true),
            ("conf.yaml", true),
            ("more.py", true),
            ("train.py", true),
        ];
        assert_eq!(held, all.map(|(name, held)| (name.to_owned(), held)));
        let words = format!("bench {folder}conf.yaml {folder}train.py");
        assert_eq!(source.program, [words]);
        assert_eq!(source.mains, [format!("{folder}conf.yaml")]);
    }

    #[test]
    fn what_prepare_may_make_and_an_interpreter_are_not_held() {
        let (made, folder) = source(
            &["./bench", "conf.yaml"],
            &["./tool"],
            &["train.py", "no.c"],
        );
        let all = [
            ("./bench", false),
            ("./tool", true),
            ("conf.yaml", false),
            ("train.py", true),
        ];
        assert_eq!(
            held(&made, &folder),
            all.map(|(name, held)| (name.to_owned(), held))
        );
        let (script, _) = source(&["sh", "train.py"], &[], &[]);
        assert!(!script.files["sh"].is_held && script.program[0].starts_with("sh /"));
        assert!(script.mains[0].ends_with("/train.py"));
    }

    #[test]
    fn a_python_is_found_behind_a_wrapper_and_in_a_first_line() {
        let python = |argv: &[&str]| {
            let (source, _) = source(argv, &[], &[]);
            let found = source.pythons.into_iter().next();
            found.map(|(name, python)| (name, python.options))
        };
        let plain = |options: &[&str]| Some(("python3".to_owned(), texts(options)));
        assert_eq!(python(&["python3", "-u", "-I", "train.py"]), plain(&["-I"]));
        assert_eq!(
            python(&["nice", "-n", "5", "python3", "train.py"]),
            plain(&[])
        );
        assert_eq!(python(&["./tool"]), plain(&[]));
        assert_eq!(python(&["./bench", "python3"]), None);
    }

    #[test]
    fn a_module_of_python_is_the_file_that_it_runs() {
        let place = place();
        for file in [
            "pack/__init__.py",
            "pack/__main__.py",
            "pack/sub.py",
            "lib/far.py",
        ] {
            let path = place.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let folder = place.path().to_str().unwrap();
        let path = [("PYTHONPATH".to_owned(), "lib".to_owned())];
        let of = |argv: &[&str]| {
            let argv = texts(argv);
            let mut source = Source::default();
            let invocation = invocation(folder, &argv, &[]);
            source
                .add(&Invocation {
                    environment: &path,
                    ..invocation
                })
                .unwrap();
            let short = |name: &String| name.replace(&format!("{folder}/"), "");
            let files: Vec<String> = source.files.keys().map(short).collect();
            let files: Vec<String> = files
                .into_iter()
                .filter(|name| name.ends_with(".py"))
                .collect();
            (
                files.join(" "),
                source.mains.iter().map(short).collect::<String>(),
            )
        };
        let found = |files: &str, main: &str| (files.to_owned(), main.to_owned());
        let whole = found("pack/__init__.py pack/__main__.py", "pack/__main__.py");
        assert_eq!(of(&["python3", "-m", "pack"]), whole);
        assert_eq!(
            of(&["nice", "-n", "5", "python3", "-u", "-W", "error", "-mpack"]),
            whole
        );
        let sub = found("pack/__init__.py pack/sub.py train.py", "pack/sub.py");
        assert_eq!(of(&["python3", "-um", "pack.sub", "train.py"]), sub);
        assert_eq!(
            of(&["python3", "-m", "train"]),
            found("train.py", "train.py")
        );
        assert_eq!(
            of(&["python3", "-m", "far"]),
            found("lib/far.py", "lib/far.py")
        );
        // Neither from here, nor from `PYTHONPATH`; and an installed package.
        for argv in [
            ["-Im", "pack"],
            ["-P", "-mpack"],
            ["-E", "-mfar"],
            ["-m", "json.tool"],
        ] {
            assert_eq!(of(&["python3", argv[0], argv[1]]).0, "", "{argv:?}");
        }
        // A script's own `-m`, and a program's text.
        assert_eq!(of(&["python3", "train.py", "-m", "pack"]).0, "train.py");
        assert_eq!(of(&["python3", "-c", "pass", "-m", "pack"]).0, "");
    }

    #[test]
    fn an_entry_of_files_that_stands_for_nothing_is_a_fault() {
        let place = place();
        let folder = place.path().to_str().unwrap();
        let (argv, files) = (texts(&["./bench"]), texts(&["no.py"]));
        let fault = Source::default()
            .add(&invocation(folder, &argv, &files))
            .unwrap_err();
        assert_eq!(
            fault,
            "`model.files`: no.py: there is no such file; correct the path, or leave it out"
        );
    }
}
