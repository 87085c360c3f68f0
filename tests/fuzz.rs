//! Experiment files and tables are changed at random: cut, joined, filled with bytes and words that
//! do not belong there. The result is read, planned, reported and compared. Nothing may panic or
//! compute for long, and an experiment that is read must be the same after it was written and read
//! again.
//!
//! Two seconds for each kind in the short form, a minute in the long one; `KILN_FUZZ_SECONDS=3600
//! cargo test --release -p kiln --test suite fuzz::` goes on for an hour. The short form always
//! makes the same inputs, the long one others each time; `KILN_FUZZ_SEED` repeats a run.
//! `tests/fuzz/` holds inputs that once broke something; all of them are tried first.

use std::{
    fs,
    io::{Cursor, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use crate::form::by_form;
use fastrand::Rng;
use kiln::report::{
    self, Album, PageStyle, Subject,
    compare::{ComparisonPage, Options, compare},
};
use kiln_core::{
    plan::{self, TrialId},
    record::{EpochRow, RunFile, RunFolder, SampleRow, SnapshotRow, StepRow, Table, TrialTable},
    spec,
};
use rustix::time::{ClockId, clock_gettime};

/// Processor time that one input may take; most take milliseconds. Other programs of a busy machine
/// do not add to it, so it is no limit of the clock.
const MOST_PROCESSOR_TIME: Duration = Duration::from_secs(10);
/// Inputs that are made whatever time is left: a machine that is slow for a moment tries some all
/// the same.
const FEWEST_INPUTS: u64 = 100;
/// Larger inputs only take longer.
const MOST_BYTES: usize = 20_000;

/// What experiment files are made of, and what their readers stumble over.
const YAML_WORDS: [&str; 62] = [
    "kiln: 1",
    "name: x",
    "model:",
    "data:",
    "train:",
    "sweep:",
    "run:",
    "measure:",
    "record:",
    "extends: base.yaml",
    "{",
    "}",
    "[",
    "]",
    ",",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "  ",
    "kind: gpt",
    "kind: generated",
    "grid:",
    "zip:",
    "include:",
    "exclude:",
    "repeats: 3",
    "search:",
    "kind: workers",
    "train.batch_size",
    "data.num_workers",
    "model.kind",
    "train.optimizer",
    "null",
    "~",
    "true",
    "yes",
    "0",
    "-1",
    "1e400",
    "1e3",
    "0x10",
    "0o7",
    ".nan",
    ".inf",
    "18446744073709551616",
    "1.0e-4",
    "\"",
    "'",
    "|",
    ">",
    "&a",
    "*a",
    "<<: *a",
    "!!str",
    "%YAML 1.1",
    "---",
    "...",
    "\t",
    "\u{feff}",
    "\u{2028}",
    "30m",
];

/// The same for tables.
const CSV_WORDS: [&str; 40] = [
    ",",
    "\n",
    "\r\n",
    "\"",
    "\"\"",
    ";",
    "\t",
    "trials/5",
    "trials/1",
    "trials/99",
    "trials/x",
    "samples/2",
    "kiln_table",
    "train.batch_size",
    "a.b",
    ".",
    "0",
    "-1",
    "1e308",
    "-1e308",
    "1e-320",
    "NaN",
    "inf",
    "18446744073709551615",
    "99999999999999999999",
    "completed",
    "oom",
    "failed",
    "true",
    "\u{feff}",
    "\u{0}",
    "é",
    "🔥",
    "<script>",
    "; : ; ",
    "mfu: no peak",
    "GPU-1",
    "unknown",
    "none",
    "_",
];

/// Makes inputs out of others.
struct Spoiler {
    random: Rng,
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
}

impl Spoiler {
    fn next(&mut self) -> Vec<u8> {
        let mut bytes = self.seed().clone();
        for _ in 0..=self.random.usize(..4) {
            self.spoil(&mut bytes);
        }
        bytes.truncate(MOST_BYTES);
        bytes
    }

    fn seed(&mut self) -> &Vec<u8> {
        let place = self.random.usize(..self.seeds.len());
        &self.seeds[place]
    }

    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.usize(..=bytes.len());
        let to = at + self.random.usize(..=(bytes.len() - at).min(200));
        match self.random.u8(..10) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => {
                let again = bytes[at..to].to_vec();
                bytes.splice(at..at, again);
            }
            3 if at < bytes.len() => bytes[at] = self.random.u8(..),
            4 => {
                let other = self.seed().clone();
                let from = self.random.usize(..=other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            5 => self.change_number(bytes, at),
            6 => self.move_line(bytes),
            _ => {
                let word = self.words[self.random.usize(..self.words.len())]
                    .as_bytes()
                    .to_vec();
                let end = if self.random.bool() {
                    at
                } else {
                    to.min(at + word.len())
                };
                bytes.splice(at..end, word);
            }
        }
    }

    /// The next number behind a place becomes another.
    fn change_number(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let Some(from) = bytes[at..]
            .iter()
            .position(u8::is_ascii_digit)
            .map(|ahead| at + ahead)
        else {
            return;
        };
        let to = bytes[from..]
            .iter()
            .position(|byte| !byte.is_ascii_digit())
            .map_or(bytes.len(), |ahead| from + ahead);
        const NUMBERS: [&str; 9] = [
            "0",
            "1",
            "-1",
            "2",
            "65536",
            "1048577",
            "18446744073709551615",
            "0.5",
            "1e9",
        ];
        bytes.splice(
            from..to,
            NUMBERS[self.random.usize(..NUMBERS.len())].bytes(),
        );
    }

    fn move_line(&mut self, bytes: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        if lines.is_empty() {
            return;
        }
        let line = lines.remove(self.random.usize(..lines.len()));
        lines.insert(self.random.usize(..=lines.len()), line);
        *bytes = lines.concat();
    }
}

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Tries the kept inputs and then new ones until the time is over; one that breaks something is
/// kept and named.
fn fire(name: &str, seeds: Vec<Vec<u8>>, words: &'static [&'static str], try_one: impl Fn(&[u8])) {
    let known = fs::read_dir(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fuzz")
            .join(name),
    )
    .into_iter()
    .flatten()
    .flatten();
    let known: Vec<Vec<u8>> = known.map(|entry| fs::read(entry.path()).unwrap()).collect();
    let variable = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    let seed = variable("KILN_FUZZ_SEED")
        .unwrap_or_else(|| by_form(1, SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs()));
    let seconds = variable("KILN_FUZZ_SECONDS").unwrap_or(by_form(2, 60));
    let mut spoiler = Spoiler {
        random: Rng::with_seed(seed),
        seeds: [seeds, known.clone()].concat(),
        words,
    };
    assert!(spoiler.seeds.len() > 5, "nothing to begin with");
    let began = Instant::now();
    let (mut tried, mut kept) = (0_u64, known.into_iter());
    while let Some(bytes) = kept.next().or_else(|| {
        (tried < FEWEST_INPUTS || began.elapsed().as_secs() < seconds).then(|| spoiler.next())
    }) {
        let before = processor_time();
        let survived = catch_unwind(AssertUnwindSafe(|| try_one(&bytes))).is_ok();
        let took = processor_time() - before;
        if !survived || took > MOST_PROCESSOR_TIME {
            let place = std::env::temp_dir().join(format!("kiln-fuzz-{name}-{seed}-{tried}"));
            fs::write(&place, &bytes).unwrap();
            let what = if survived {
                format!("took {took:?} of processor time")
            } else {
                "broke a promise".to_owned()
            };
            panic!(
                "input {tried} of seed {seed} {what}; it is kept in {}: repair the reader, and put \
                 the input into tests/fuzz/{name}/",
                place.display()
            );
        }
        tried += 1;
    }
    let _ = writeln!(
        std::io::stderr(),
        "{name}: {tried} inputs in {:?}, seed {seed}",
        began.elapsed()
    );
}

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() && entry.file_name() != "trials" {
                folders.push(path);
            } else if kind.is_file() && path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn contents(paths: Vec<PathBuf>) -> Vec<Vec<u8>> {
    paths
        .into_iter()
        .map(|path| fs::read(path).unwrap())
        .filter(|bytes| bytes.len() < MOST_BYTES)
        .collect()
}

/// An experiment that is read can be planned or is refused in words; written down as resolved it is
/// the same experiment.
fn try_experiment(folder: &Path, bytes: &[u8]) {
    let file = folder.join("x.yaml");
    fs::write(&file, bytes).unwrap();
    let load = |file: &Path| {
        spec::load(&spec::ExperimentRequest {
            file: file.to_owned(),
            ..Default::default()
        })
    };
    let loaded = match load(&file) {
        Ok(loaded) => loaded,
        Err(problems) => {
            let text = problems.to_string();
            assert!(
                !text.is_empty() && text.lines().all(|line| line.contains(':')),
                "{text}"
            );
            return;
        }
    };
    let trials = |loaded: &spec::Loaded| {
        plan::expand(&loaded.experiment, &|_| None).map(|plan| {
            plan.trials
                .into_iter()
                .map(|trial| trial.id)
                .collect::<Vec<TrialId>>()
        })
    };
    let resolved = folder.join("resolved.yaml");
    let text = spec::write_resolved(&loaded);
    fs::write(&resolved, &text).unwrap();
    let again = load(&resolved).unwrap_or_else(|problems| unreachable!("{problems}\n{text}"));
    // A plan of many thousands is slow, not wrong.
    if loaded.experiment.sweep.repeats > 20 {
        return;
    }
    match (trials(&loaded), trials(&again)) {
        (Ok(one), Ok(other)) => assert_eq!(one, other, "{text}"),
        (one, other) => assert_eq!(one.is_err(), other.is_err(), "{text}"),
    }
}

#[test]
fn experiment_files_under_fire() {
    let folder = tempfile::tempdir().unwrap();
    let seeds = contents(
        [
            files("experiments", ".yaml"),
            files("tests/experiments", ".yaml"),
            files("results", "experiment.yaml"),
        ]
        .concat(),
    );
    fire("yaml", seeds, &YAML_WORDS, |bytes| {
        try_experiment(folder.path(), bytes)
    });
}

/// Whatever a table holds can be told in every form, and compared with itself.
fn try_table(bytes: &[u8]) {
    let path = Path::new("results/x/trials.csv");
    let of = |version: &str| Table::read_from(&mut Cursor::new(bytes), path, version);
    let _ = of("samples/2").and_then(|table| table.rows::<SampleRow>());
    let _ = of("snapshots/2").and_then(|table| table.rows::<SnapshotRow>());
    let _ = of("steps/1").and_then(|table| table.rows::<StepRow>());
    let _ = of("epochs/3").and_then(|table| table.rows::<EpochRow>());
    let text = String::from_utf8_lossy(bytes);
    let run = RunFile::parse(&text, path).ok();
    let table = match TrialTable::read_from(&mut Cursor::new(bytes), path) {
        Ok(table) => table,
        Err(error) => {
            assert!(
                error.to_string().starts_with("results/x/trials.csv"),
                "{error}"
            );
            return;
        }
    };
    // A folder in which nothing lies: every series is looked for.
    let folder = RunFolder::at("/nonexistent");
    let subject = Subject {
        run: run.as_ref(),
        experiment: Some(&text),
        folder: Some(&folder),
        ..Subject::new(&table, "results/x/trials.csv")
    };
    for width in [None, Some(60)] {
        assert!(
            !report::text(
                subject,
                PageStyle {
                    width,
                    has_color: false
                }
            )
            .is_empty()
        );
    }
    assert!(!report::markdown(subject).is_empty());
    assert!(serde_json::from_str::<serde_json::Value>(&report::json(subject)).is_ok());
    let subjects = [subject, subject];
    for subjects in [&subjects[..1], &subjects[..]] {
        let album = Album::of(subjects);
        assert_eq!(album.html().matches("<script>").count(), 1);
        assert!(
            album
                .pictures()
                .iter()
                .all(|(_, svg)| svg.matches("<svg").count() == 1
                    && svg.trim_end().ends_with("</svg>"))
        );
    }
    let keys = [vec![], table.axes.clone()];
    for by in keys {
        let Ok(found) = compare(
            &table,
            &table,
            &Options {
                by,
                is_clean: false,
                across: Vec::new(),
            },
        ) else {
            continue;
        };
        let page = ComparisonPage {
            base: "a",
            new: "b",
            facts: None,
            found: &found,
        };
        assert!(
            !page
                .text(PageStyle {
                    width: Some(80),
                    has_color: true
                })
                .is_empty()
        );
        assert!(
            [page.markdown(), page.csv(), page.json()]
                .iter()
                .all(|told| !told.is_empty())
        );
    }
}

#[test]
fn tables_under_fire() {
    let seeds = contents(
        [
            files("results", ".csv"),
            files("tests/expected", ".csv"),
            files("results", "run.json"),
        ]
        .concat(),
    );
    // Whole tables are long: their heads with a few rows are spoiled where it matters.
    let heads = files("results", "trials.csv")
        .into_iter()
        .map(|path| fs::read(path).unwrap());
    let heads = heads.map(|bytes| {
        bytes
            .split_inclusive(|byte| *byte == b'\n')
            .take(5)
            .collect::<Vec<_>>()
            .concat()
    });
    fire(
        "csv",
        seeds.into_iter().chain(heads).collect(),
        &CSV_WORDS,
        try_table,
    );
}
