//! Hostile and broken inputs: each limit has its message, a file that is none is named at once, and
//! bombs stay packed.
//!
//! Files that are too large are holes: they have a size and no blocks.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Cursor, Write},
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use kiln_core::{
    kinds::Data,
    limits::{self, Limit},
    plan::{self, TrialId},
    record::{AttemptFile, Checkpoints, RunFile, SampleRow, Table, attempt, peaks},
    spec::{self, ExperimentRequest},
};
use kiln_data::{facts::facts, weights};
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::scripted_child::Place;

const BASE: &str = "kiln: 1\nname: x\nmodel: {kind: gpt, d_model: 8, num_heads: 1, num_layers: 1, \
                    seq_len: 8}\ndata: {kind: generated}\n";

fn numbers(count: u64) -> String {
    let numbers: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
    numbers.join(",")
}

/// The problems of an experiment, also of its plan.
fn refused(text: &str) -> String {
    let loaded = spec::load(&ExperimentRequest {
        file: PathBuf::from("x.yaml"),
        text: Some(text.to_owned()),
        ..Default::default()
    });
    match loaded {
        Err(problems) => problems.to_string(),
        Ok(loaded) => {
            let problems = plan::expand(&loaded.experiment, &|_| None).unwrap_err();
            problems[0].to_string()
        }
    }
}

fn sweep(sweep: &str) -> String {
    refused(&format!("{BASE}train: {{steps: 1}}\nsweep: {{{sweep}}}\n"))
}

/// A file with a size and nothing in it, larger than the limit.
fn hole(path: &Path, limit: &Limit) {
    File::create(path)
        .unwrap()
        .set_len(limit.default + 1)
        .unwrap();
}

fn data(yaml: &str) -> Data {
    serde_yaml::from_str(yaml).unwrap()
}

fn data_error(yaml: &str) -> String {
    facts(&data(yaml), None, None).unwrap_err().to_string()
}

/// The message of a limit, from an input that is over it.
fn message(limit: &Limit, folder: &Path) -> String {
    let at = |name: &str| folder.join(name);
    let hole = |name: &str| {
        hole(&at(name), limit);
        at(name)
    };
    let shown = |name: &str| at(name).display().to_string();
    match limit.name {
        "EXPERIMENT_BYTES" => {
            let file = hole("x.yaml");
            let request = ExperimentRequest {
                file,
                ..Default::default()
            };
            spec::load(&request).unwrap_err().to_string()
        }
        "YAML_DEPTH" => refused(&format!("a: {}1{}", "[".repeat(70), "]".repeat(70))),
        "YAML_VALUES" => sweep(&format!("grid: {{train.seed: [{}]}}", numbers(100_001))),
        "YAML_KEYS" => {
            let keys: Vec<String> = (0..1100).map(|key| format!("k{key}: 1")).collect();
            refused(&format!("{{{}}}", keys.join(", ")))
        }
        "YAML_TEXT_BYTES" => refused(&format!(
            "a: &a {}\nb: [{}]",
            "x".repeat(100_000),
            vec!["*a"; 200].join(",")
        )),
        "AXES" => {
            let points: Vec<String> = (0..51).map(|key| format!("{{model.k{key}: 1}}")).collect();
            refused(&format!(
                "kiln: 1\nname: x\nmodel: {{kind: custom, name: mine, reads: text, seq_len: 8}}\n\
                 data: {{kind: generated}}\ntrain: {{steps: 1}}\nsweep: {{include: [{}]}}\n",
                points.join(",")
            ))
        }
        "EXCLUDE_ENTRIES" => sweep(&format!(
            "grid: {{train.seed: [1]}}, exclude: [{}]",
            vec!["{train.seed: 2}"; 25_001].join(",")
        )),
        "POINTS" => sweep(&format!(
            "grid: {{train.seed: [{0}], train.batch_size: [{0}]}}",
            numbers(400)
        )),
        "TRIALS" => sweep(&format!(
            "repeats: 9, grid: {{train.batch_size: [{0}], train.steps: [{0}]}}",
            numbers(200)
        )),
        "RUN_FILE_BYTES" => RunFile::read(&hole("run.json")).unwrap_err(),
        "RESULT_BYTES" => {
            hole("trial.json");
            attempt::result(folder).unwrap_err().to_string()
        }
        "STATE_BYTES" => {
            fs::create_dir_all(at("checkpoint/5")).unwrap();
            hole("checkpoint/5/checkpoint.json");
            let checkpoints = Checkpoints::new(at("checkpoint"), TrialId("t000000000".to_owned()));
            checkpoints.newest(Ok).unwrap().1.remove(0)
        }
        "TABLE_BYTES" => Table::read(&hole("t.csv"), "trials/12")
            .unwrap_err()
            .to_string(),
        "SAMPLES_BYTES" => samples_error(&hole("s.csv")),
        "ROW_BYTES" => {
            let row = format!("kiln_table,a\nx/1,{}\n", "y".repeat(17 << 20));
            Table::read_from(&mut Cursor::new(row), Path::new("t.csv"), "x/1")
                .unwrap_err()
                .to_string()
        }
        "DATA_BYTES" => {
            hole("text.txt");
            data_error(&format!("{{kind: text, path: {}}}", shown("text.txt")))
        }
        "ARCHIVE_BYTES" => {
            hole("panel.zip");
            data_error(&format!(
                "{{kind: panel-csv, path: {}, columns: [Close], price: Close}}",
                shown("panel.zip")
            ))
        }
        "UNPACKED_RATIO" => {
            bomb(&at("text.txt.gz"));
            data_error(&format!("{{kind: text, path: {}}}", shown("text.txt")))
        }
        "JSONL_LINE_BYTES" => {
            fs::write(at("rows.jsonl"), vec![b'x'; (16 << 20) + 1]).unwrap();
            fs::write(at("tokenizer.json"), "{}").unwrap();
            data_error(&pairs(folder))
        }
        "TOKENIZER_BYTES" => {
            fs::write(at("rows.jsonl"), ROW).unwrap();
            hole("tokenizer.json");
            data_error(&pairs(folder))
        }
        "IMAGE_BYTES" => {
            fs::create_dir_all(at("images/a")).unwrap();
            fs::create_dir_all(at("images/b")).unwrap();
            hole("images/a/1.png");
            data_error(&format!(
                "{{kind: image-folder, path: {}, skip_bad: true}}",
                shown("images")
            ))
        }
        "WEIGHTS_BYTES" => weights::check(&hole("model.safetensors"), "")
            .unwrap_err()
            .to_string(),
        other => unreachable!("no input for {other}"),
    }
}

const ROW: &str = "{\"prompt\": \"a\", \"response\": \"b\"}\n";

fn pairs(folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        "{{kind: sft-jsonl, path: {}, tokenizer: {}, valid_fraction: 0}}",
        at("rows.jsonl"),
        at("tokenizer.json")
    )
}

/// 200 MB of zeros in 200 kB.
fn bomb(path: &Path) {
    let mut gz =
        flate2::write::GzEncoder::new(File::create(path).unwrap(), flate2::Compression::fast());
    let piece = vec![0; 1 << 20];
    (0..200).for_each(|_| gz.write_all(&piece).unwrap());
    gz.finish().unwrap();
}

/// Limits that other tests reach: those of the program's values through its variables, the
/// download's in `data`, the images' in `kiln-trial`, those of programs in `provenance`.
const ELSEWHERE: [&str; 6] = [
    "AXIS_VALUES",
    "RESOLVED_BYTES",
    "DOWNLOAD_BYTES",
    "IMAGE_PIXELS",
    "PROGRAM_FILES",
    "PROGRAM_FILE_BYTES",
];

#[test]
fn every_limit_has_a_message_that_names_it_and_says_how_to_raise_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut tried = BTreeSet::new();
    for limit in limits::ALL
        .iter()
        .filter(|limit| !ELSEWHERE.contains(&limit.name))
    {
        let place = folder.path().join(limit.name);
        fs::create_dir(&place).unwrap();
        let message = message(limit, &place);
        assert!(
            message.contains(&format!("set {}=", limit.variable()))
                && message.contains(" to allow more")
                && !message.contains('\n'),
            "{}: {message}",
            limit.name
        );
        tried.insert(limit.name);
    }
    assert_eq!(tried.len() + ELSEWHERE.len(), limits::ALL.len());
}

/// `kiln` in a folder with these variables, without those of the machine.
fn kiln(folder: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"KILN_")) {
        command.env_remove(name);
    }
    command
        .current_dir(folder)
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .envs(variables.iter().copied())
        .stdin(Stdio::null());
    command
}

#[test]
fn a_variable_changes_a_limit_and_a_wrong_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{BASE}train: {{steps: 1}}\nsweep: {{grid: {{train.seed: [1, 2, 3]}}}}\n");
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let check = |variables: &[(&str, &str)]| {
        let output = kiln(folder.path(), variables)
            .args(["check", "x.yaml"])
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(check(&[]).0, 0);
    assert_eq!(check(&[("KILN_LIMIT_POINTS", "3")]).0, 0);
    let (status, message) = check(&[("KILN_LIMIT_POINTS", "2")]);
    assert_eq!(status, 2);
    assert!(
        message.contains(
            "`sweep`: it has 3 points, more than the 2 points allowed for a sweep; set \
             KILN_LIMIT_POINTS=3 to allow more"
        ),
        "{message}"
    );
    let (status, message) = check(&[("KILN_LIMIT_AXIS_VALUES", "2")]);
    assert_eq!(status, 2);
    assert!(
        message.starts_with(
            "x.yaml:6:28: `sweep.grid.train.seed`: it has 3 values, more than the 2 values \
             allowed for one axis of a sweep; set KILN_LIMIT_AXIS_VALUES=3 to allow more"
        ),
        "{message}"
    );
    for (name, value) in [
        ("KILN_LIMIT_POINTS", "many"),
        ("KILN_LIMIT_POINTS", "0"),
        ("KILN_LIMIT_PIONTS", "5"),
    ] {
        let (status, message) = check(&[(name, value)]);
        assert!(status == 2 && message.starts_with(name), "{message}");
    }
}

#[test]
fn the_table_of_limits_in_the_documentation_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/running.md");
    let page = fs::read_to_string(&path).unwrap();
    let begin = page.find("| variable | allows | for |").unwrap();
    let end = begin + page[begin..].find("\n\n").unwrap() + 1;
    let table = limits::documentation();
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(&path, [&page[..begin], &table, &page[end..]].concat()).unwrap();
        return;
    }
    assert_eq!(
        &page[begin..end],
        table,
        "write it again with `KILN_BLESS=1 cargo test --release --test suite limits::`"
    );
}

#[test]
fn a_hundred_thousand_points_and_many_exclusions_are_matched_by_hashing() {
    // Comparing each entry with each point took 20 s of processor time on a fast machine.
    let entries: Vec<String> = (0..18_000)
        .map(|entry| {
            format!(
                "{{train.seed: {}, train.batch_size: {}}}",
                entry % 300 + 1,
                entry / 300 + 1
            )
        })
        .collect();
    let text = format!(
        "{BASE}train: {{steps: 1}}\nsweep: {{grid: {{train.seed: [{0}], train.batch_size: [{0}]}}, \
         exclude: [{1}]}}\n",
        numbers(300),
        entries.join(",")
    );
    let loaded = spec::load(&ExperimentRequest {
        file: PathBuf::from("x.yaml"),
        text: Some(text),
        ..Default::default()
    })
    .unwrap();
    let before = crate::fuzzing::processor_time();
    let plan = plan::expand(&loaded.experiment, &|_| None).unwrap();
    assert_eq!(plan.points, 90_000 - 18_000);
    let took = crate::fuzzing::processor_time() - before;
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Runs work that must end; a read that waits for a FIFO never does.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    thread::spawn(move || drop(sender.send(work())));
    receiver
        .recv_timeout(Duration::from_secs(60))
        .unwrap_or_else(|_| panic!("{what} did not end"))
}

/// Puts something that is no file at a path; what it is called.
fn strange(path: &Path, kind: usize) -> &'static str {
    let _ = fs::remove_file(path);
    match kind {
        0 => {
            mkfifoat(CWD, path, Mode::RWXU).unwrap();
            "it is a FIFO, not a file"
        }
        1 => {
            symlink("/dev/zero", path).unwrap();
            "it is a device, not a file"
        }
        _ => {
            File::create(path).unwrap().set_len(1 << 40).unwrap();
            "it has 1.0 TiB, more than the "
        }
    }
}

/// Reads the file at a path, which is strange, and returns the message.
type ReadFile = fn(&Path) -> String;

/// The name of a file, and how kiln reads it.
const FILES: [(&str, ReadFile); 12] = [
    ("x.yaml", |path| load_file(path)),
    ("base.yaml", |path| {
        let file = path.with_file_name("extending.yaml");
        fs::write(&file, "extends: base.yaml\n").unwrap();
        load_file(&file)
    }),
    ("run.json", |path| RunFile::read(path).unwrap_err()),
    ("trials.csv", |path| {
        Table::read(path, "trials/12").unwrap_err().to_string()
    }),
    ("samples.csv", samples_error),
    ("trial.json", |path| {
        attempt::result(path.parent().unwrap())
            .unwrap_err()
            .to_string()
    }),
    ("checkpoint.json", |path| {
        let folder = path.with_file_name("checkpoint");
        fs::create_dir_all(folder.join("5")).unwrap();
        fs::rename(path, folder.join("5/checkpoint.json")).unwrap();
        let checkpoints = Checkpoints::new(folder, TrialId("t000000000".to_owned()));
        checkpoints.newest(Ok).unwrap().1.remove(0)
    }),
    ("text.txt", |path| {
        // Data is found among regular files only, so it is not there.
        match path.is_file() {
            true => data_error(&format!("{{kind: text, path: {}}}", path.display())),
            false => read_data_directly(path),
        }
    }),
    ("model.safetensors", |path| {
        weights::check(path, "").unwrap_err().to_string()
    }),
    ("1.png", |path| {
        let folder = path.with_file_name("images");
        for class in ["a", "b"] {
            fs::create_dir_all(folder.join(class)).unwrap();
        }
        fs::rename(path, folder.join("a/1.png")).unwrap();
        data_error(&format!(
            "{{kind: image-folder, path: {}, skip_bad: true}}",
            folder.display()
        ))
    }),
    ("peaks.json", |path| {
        peaks::keep(path, &[]).unwrap_err().to_string()
    }),
    ("cached.json", |path| {
        // A cache that cannot be read costs time and is no error.
        assert!(AttemptFile::read(path.parent().unwrap()).unwrap().is_none());
        fs::rename(path, path.with_file_name("attempt.json")).unwrap();
        assert!(AttemptFile::read(path.parent().unwrap()).unwrap().is_none());
        String::new()
    }),
];

fn samples_error(path: &Path) -> String {
    let mut each = |_: SampleRow| {};
    Table::each_of(path, "samples/2", "trial", &|_| true, &mut each)
        .unwrap_err()
        .to_string()
}

fn load_file(file: &Path) -> String {
    let request = ExperimentRequest {
        file: file.to_owned(),
        ..Default::default()
    };
    spec::load(&request).unwrap_err().to_string()
}

fn read_data_directly(path: &Path) -> String {
    kiln_data::files::sha256_of(path, path)
        .unwrap_err()
        .to_string()
}

#[test]
fn what_lies_in_place_of_a_file_is_named_at_once() {
    for (name, read) in FILES {
        for kind in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(name);
            let what = strange(&path, kind);
            let message = in_time(name, move || read(&path));
            assert!(
                message.is_empty() || message.contains(what),
                "{name}, {what}: {message}"
            );
        }
    }
}

#[test]
fn a_launch_that_finds_strange_files_names_them() {
    for name in ["run.json", "experiment.yaml"] {
        for kind in 0..3 {
            let place =
                Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
            // One of two trials, so that the next launch looks at the run again.
            let planned = place.run("completes", &["--dry-run"]).stdout;
            let is_id = |word: &&str| word.len() == 11 && word.starts_with('t');
            let mut words = planned.split_whitespace();
            let first = words.find(is_id).unwrap();
            place.run("completes", &["--only", first]);
            let strange = strange(&place.latest().join(name), kind);
            let mut kiln = place.kiln(&["run", "x.yaml", "--dry-run"]);
            let output = in_time(name, move || kiln.output().unwrap());
            let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(
                said.contains(name) && said.contains(strange),
                "{name}, {strange}: {said}"
            );
        }
    }
}

#[test]
fn an_experiment_of_a_stranger_cannot_grow_by_its_aliases() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(100_000);
    let text = format!(
        "description: &a {long}\nothers: [{}]\n",
        vec!["*a"; 10_000].join(", ")
    );
    let error = spec::read_yaml::<serde_json::Value>(&text).unwrap_err();
    assert!(error.contains("KILN_LIMIT_YAML_TEXT_BYTES"), "{error}");
    fs::write(folder.path().join("x"), "").unwrap();
    let plain = spec::read_yaml::<serde_json::Value>("a: &a 1\nb: [*a, '*c']\n").unwrap();
    assert_eq!(plain, serde_json::json!({"a": 1, "b": [1, "*c"]}));
}

/// Archives of 300 MB of zeros.
fn bombs(folder: &Path) -> Vec<PathBuf> {
    let zeros = vec![0_u8; 300 << 20];
    let tar = |out: &mut dyn Write| {
        let mut archive = tar::Builder::new(out);
        let mut header = tar::Header::new_gnu();
        header.set_size(zeros.len() as u64);
        header.set_mode(0o644);
        archive
            .append_data(&mut header, "panel/A.csv", zeros.as_slice())
            .unwrap();
        archive.finish().unwrap();
    };
    let path = |name: &str| folder.join(name);
    let mut gz = flate2::write::GzEncoder::new(
        File::create(path("p.tar.gz")).unwrap(),
        flate2::Compression::fast(),
    );
    tar(&mut gz);
    gz.finish().unwrap();
    let mut xz = liblzma::write::XzEncoder::new(File::create(path("p.tar.xz")).unwrap(), 0);
    tar(&mut xz);
    xz.finish().unwrap();
    let mut zip = zip::ZipWriter::new(File::create(path("p.zip")).unwrap());
    zip.start_file("panel/A.csv", zip::write::SimpleFileOptions::default())
        .unwrap();
    zip.write_all(&zeros).unwrap();
    zip.finish().unwrap();
    ["p.tar.gz", "p.tar.xz", "p.zip"].map(path).to_vec()
}

#[test]
fn bombs_of_every_kind_of_archive_stay_packed() {
    let folder = tempfile::tempdir().unwrap();
    for path in bombs(folder.path()) {
        let error = data_error(&format!(
            "{{kind: panel-csv, path: {}, columns: [Close], price: Close}}",
            path.display()
        ));
        assert!(
            error.contains("100 bytes allowed for each compressed byte"),
            "{}: {error}",
            path.display()
        );
    }
}

#[test]
fn a_data_folder_that_is_not_utf8_is_refused_by_its_variable() {
    let place = Place::with("train: {steps: 10}");
    let output = place
        .kiln(&["run", "x.yaml"])
        .env("SCRIPTED_CHILD", "completes")
        .env("KILN_DATA", std::ffi::OsStr::from_bytes(b"/data/a\xff"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("`KILN_DATA` is /data/a\u{fffd}: "), "{text}");
    assert!(!text.contains("--results"), "{text}");
    assert!(!place.path("results/x").exists());
}

#[test]
fn a_name_that_is_not_utf8_is_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"a\xff.yaml");
    let text = format!("{BASE}train: {{steps: 1}}\n");
    fs::write(folder.path().join(name), text).unwrap();
    for verb in ["check", "plan"] {
        let output = kiln(folder.path(), &[])
            .arg(verb)
            .arg(name)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let place = Place::with("train: {steps: 10}");
    fs::rename(place.path("x.yaml"), place.path("").join(name)).unwrap();
    let output = place
        .kiln(&["run"])
        .arg(name)
        .env("SCRIPTED_CHILD", "completes")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        place.run_file()["launches"][0]["command_line"][2],
        "a\u{fffd}.yaml"
    );
}
