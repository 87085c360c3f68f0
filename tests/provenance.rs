//! What a run records of the programs of its trials, and the refusal to go on with others.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::scripted_child::{Ended, Place, program::write_program, wait_until};

/// A place whose `x.yaml` is a command of three trials with these keys of `model`.
fn place(model: &str) -> Place {
    let place = Place::with("");
    write_experiment(&place, model);
    place
}

fn write_experiment(place: &Place, model: &str) {
    place.write_command(
        &format!("{model}\n  values: {{n: 1}}"),
        "sweep: {grid: {model.values.n: [1, 2, 3]}}",
    );
}

const SCRIPT: &str = "  argv: [sh, train.sh, '{n}']";

/// Runs the first trial alone.
fn run_one(place: &Place) {
    let ended = run_number(place, 0);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.rows().len(), 1);
}

/// Runs one trial of the plan.
fn run_number(place: &Place, number: usize) -> Ended {
    let planned = place.kiln(&["plan", "x.yaml", "--json"]).output().unwrap();
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let trial = plan["trials"][number]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{plan}"));
    place.run("", &["--only", trial])
}

fn sum(text: &str) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(text))
}

/// The first digits of the hashes of two texts, as a message has them.
fn sums(before: &str, after: &str) -> String {
    format!("({}…, {}…)", &sum(before)[..12], &sum(after)[..12])
}

fn programs(place: &Place, launch: usize) -> Value {
    place.run_file()["launches"][launch]["programs"].clone()
}

#[track_caller]
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status, Some(2), "{ended:?}");
    for words in words {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
}

/// Runs git in a folder, as some user; returns what it printed.
pub(crate) fn git_in(folder: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    git.current_dir(folder)
        .args(["-c", "user.name=x", "-c", "user.email=x@example.com"])
        .args(arguments);
    let output = git.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_script_that_changed_since_the_last_launch_is_refused_with_both_hashes() {
    let place = place(SCRIPT);
    let write = |text: &str| fs::write(place.path("train.sh"), text).unwrap();
    write("true");
    run_one(&place);
    write("false");
    let launches = || place.run_file()["launches"].as_array().unwrap().len();
    for more in [&[][..], &["--dry-run"]] {
        let words = format!(
            "`train.sh` is another than launch 1's {}",
            sums("true", "false")
        );
        assert_refused(&place.run("", more), &[&words, "put it back", "`--fresh`"]);
        assert_eq!(
            (launches(), place.rows().len()),
            (1, 1),
            "nothing was started"
        );
    }
    fs::remove_file(place.path("train.sh")).unwrap();
    let gone = format!("`train.sh` of launch 1 ({}…) is gone", &sum("true")[..12]);
    assert_refused(&place.run("", &[]), &[&gone]);
    // Put back, it goes on in the same run.
    write("true");
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.runs(), place.rows().len()),
        (Some(0), 1, 3),
        "{ended:?}"
    );
    // A finished run is left as it is.
    write("echo");
    let ended = place.run("", &[]);
    assert_eq!((ended.status, place.runs()), (Some(0), 2), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("is finished, but its program has changed since (`train.sh`"),
        "{ended:?}"
    );
}

#[test]
fn all_changed_files_are_named_at_once_and_a_new_one_is_told() {
    let place = place("  argv: [sh, train.sh]\n  environment: {N: '{n}'}\n  files: ['src/**/*.c']");
    fs::create_dir_all(place.path("src/deep")).unwrap();
    for file in ["train.sh", "src/a.c", "src/deep/b.c"] {
        fs::write(place.path(file), "true").unwrap();
    }
    run_one(&place);
    let recorded = programs(&place, 0);
    let files: Vec<&String> = recorded["model"]["files"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(files, ["src/a.c", "src/deep/b.c", "train.sh"]);
    assert_eq!(recorded["model"]["files"]["src/a.c"], sum("true"));
    assert_eq!(recorded["model"]["program"][0], "sh train.sh");
    assert_eq!(recorded["model"]["main"], "train.sh");
    for file in ["train.sh", "src/deep/b.c"] {
        fs::write(place.path(file), ":").unwrap();
    }
    let ended = place.run("", &[]);
    assert_refused(
        &ended,
        &["`train.sh` is another", "`src/deep/b.c` is another"],
    );
    assert!(!ended.stderr.contains("src/a.c"), "{ended:?}");
    for file in ["train.sh", "src/deep/b.c"] {
        fs::write(place.path(file), "true").unwrap();
    }
    fs::write(place.path("src/new.c"), "new").unwrap();
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(0), 3),
        "{ended:?}"
    );
    assert!(
        ended
            .stderr
            .contains("not among the files of the earlier launches: `src/new.c`"),
        "{ended:?}"
    );
}

/// A committed program with a module, which has no hash, after its first trial.
fn with_module() -> Place {
    let place = place(SCRIPT);
    fs::write(place.path("train.sh"), ". ./model.sh").unwrap();
    fs::write(place.path("model.sh"), "true").unwrap();
    let git = |arguments: &[&str]| git_in(&place.path(""), arguments);
    git(&["init", "-q"]);
    git(&["add", "train.sh", "model.sh", "x.yaml"]);
    git(&["commit", "-q", "-m", "first"]);
    run_one(&place);
    place
}

#[test]
fn a_repository_that_changed_between_launches_is_told_on_resume_alone() {
    let place = with_module();
    fs::write(place.path("model.sh"), "true;").unwrap();
    let words = "has changed since launch 1 (it has uncommitted changes now)";
    let planned = place.run("", &["--dry-run"]);
    assert!(!planned.stderr.contains(words), "{planned:?}");
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.runs(), place.rows().len()),
        (Some(0), 1, 3),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.matches(words).count(), 1, "{ended:?}");
}

#[test]
fn a_commit_of_results_is_no_change_and_one_of_a_module_names_it() {
    let place = with_module();
    let git = |arguments: &[&str]| git_in(&place.path(""), arguments);
    git(&["add", "-f", "results"]);
    git(&["commit", "-q", "-m", "results"]);
    let resumed = run_number(&place, 1);
    assert!(!resumed.stderr.contains("has changed since"), "{resumed:?}");
    fs::write(place.path("model.sh"), "true;").unwrap();
    git(&["commit", "-q", "-a", "-m", "another model"]);
    let resumed = place.run("", &[]);
    assert_eq!(
        resumed
            .stderr
            .matches(": model.sh), and rows of both")
            .count(),
        1,
        "{resumed:?}"
    );
}

#[test]
fn a_program_that_was_moved_is_the_same_and_another_of_its_name_is_not() {
    let place = place("  argv: [./bench, '{n}']");
    write_program(&place.path("bench"), "#!/bin/sh\ntrue\n");
    run_one(&place);
    fs::create_dir(place.path("bin")).unwrap();
    fs::rename(place.path("bench"), place.path("bin/bench")).unwrap();
    write_experiment(&place, "  argv: [bin/bench, '{n}']");
    let original = "#!/bin/sh\ntrue\n";
    write_program(&place.path("bin/bench"), "#!/bin/sh\n:\n");
    let words = format!(
        "`bin/bench` is another than `./bench` of launch 1 {}",
        sums(original, "#!/bin/sh\n:\n")
    );
    assert_refused(&place.run("", &[]), &[&words.replace("./bench", "bench")]);
    write_program(&place.path("bin/bench"), original);
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.runs(), place.rows().len()),
        (Some(0), 1, 3),
        "{ended:?}"
    );
}

#[test]
fn a_script_edited_while_a_sweep_runs_ends_the_launch_and_the_rows_stay() {
    let place = place(SCRIPT);
    let text = "touch at-work; while [ ! -e release ]; do sleep 0.02; done";
    let write = |text: &str| fs::write(place.path("train.sh"), text).unwrap();
    write(text);
    let kiln = place.start("");
    wait_until("the first trial works", || place.path("at-work").exists());
    // Shells read their script as they go.
    write_program(&place.path("other"), "true");
    fs::rename(place.path("other"), place.path("train.sh")).unwrap();
    place.release();
    let ended = Ended::of(kiln.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(3), "{ended:?}");
    let words = format!(
        "`train.sh` is another than launch 1's {}; put it back",
        sums(text, "true")
    );
    assert!(ended.stderr.contains(&words), "{words}: {ended:?}");
    assert_eq!(place.column("outcome"), ["completed"]);
    assert_refused(
        &place.run("", &[]),
        &["`train.sh` is another than launch 1's"],
    );
    // A file that is only touched, or written again, is the same.
    write(text);
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(0), 3),
        "{ended:?}"
    );
}

#[test]
fn a_file_that_prepare_makes_may_change_and_its_sources_may_not() {
    let place = place(
        "  argv: [cat, made]\n  prepare: [sh, -c, 'echo $KILN_VALUE_N >made; cat source >>made']\n  \
         files: [source]",
    );
    fs::write(place.path("source"), "1").unwrap();
    fs::write(place.path("made"), "old").unwrap();
    run_one(&place);
    let recorded = programs(&place, 0);
    let names = |part: &str| -> Vec<String> {
        recorded["model"][part]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(
        (names("files"), names("beside")),
        (vec!["source".into()], vec!["cat".into(), "made".into()])
    );
    fs::write(place.path("source"), "2").unwrap();
    assert_refused(&place.run("", &[]), &["`source` is another"]);
    fs::write(place.path("source"), "1").unwrap();
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(0), 3),
        "{ended:?}"
    );
    assert!(
        ended.stderr.contains("`made` is another than launch 1's"),
        "{ended:?}"
    );
}

#[test]
fn a_program_that_writes_a_file_of_its_arguments_is_told_where_it_belongs() {
    let place = place("  argv: [sh, train.sh, --log, log.txt]\n  environment: {N: '{n}'}");
    fs::write(place.path("train.sh"), "echo $N >>$2").unwrap();
    // A new file is not held: it was not there when the launch began.
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(0), 3),
        "{ended:?}"
    );
    let ended = place.run("", &["--fresh"]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(3), 1),
        "{ended:?}"
    );
    let words = "`log.txt` is another than launch 1's";
    let advice = "; a file that the program itself writes belongs below `{folder}`";
    assert!(
        ended.stderr.contains(words) && ended.stderr.contains(advice),
        "{ended:?}"
    );
}

/// As long as nothing was measured, a fault of the program can be mended.
#[test]
fn a_program_may_change_until_the_first_outcome() {
    let place = place("  argv: [sh, train.sh, '{n}']");
    fs::write(place.path("train.sh"), "touch at-work; sleep 600").unwrap();
    let kiln = place.start("");
    wait_until("the first trial works", || place.path("at-work").exists());
    crate::scripted_child::send(&kiln.id().to_string(), "TERM");
    assert_eq!(kiln.wait_with_output().unwrap().status.code(), Some(130));
    fs::write(place.path("train.sh"), "true").unwrap();
    let ended = place.run("", &[]);
    assert_eq!((ended.status, place.runs()), (Some(0), 1), "{ended:?}");
}

/// A virtual environment of the Python of this machine, with one package.
fn environment(place: &Place, version: &str) {
    let venv = place.path(".venv");
    if !venv.exists() {
        let made = Command::new("python3")
            .args(["-m", "venv", "--without-pip"])
            .arg(&venv)
            .status();
        assert!(made.unwrap().success());
    }
    let lib = fs::read_dir(venv.join("lib"))
        .unwrap()
        .flatten()
        .next()
        .unwrap();
    let info = lib.path().join("site-packages/own-1.dist-info");
    fs::create_dir_all(&info).unwrap();
    fs::write(
        info.join("METADATA"),
        format!("Name: own\nVersion: {version}\n"),
    )
    .unwrap();
}

#[test]
fn a_package_that_was_updated_is_told_and_its_list_is_kept() {
    let place = place("  argv: [.venv/bin/python, train.py, '{n}']");
    fs::write(place.path("train.py"), "import sys").unwrap();
    environment(&place, "1.0");
    run_one(&place);
    let list =
        |launch: u64| fs::read_to_string(place.latest().join(format!("packages-{launch}.txt")));
    let first = list(1).unwrap();
    assert!(
        first.starts_with("# .venv/bin/python: python 3.") && first.ends_with("own 1.0\n"),
        "{first}"
    );
    let recorded = &programs(&place, 0)["model"]["interpreters"][".venv/bin/python"];
    assert_eq!(
        (&recorded["packages"], &recorded["packages_file"]),
        (&1.into(), &"packages-1.txt".into())
    );
    let told = || {
        let report = place.kiln(&["report", "x"]).output();
        Ended::of(report.unwrap())
            .stderr
            .contains("packages-1.txt: No such file")
    };
    assert!(!told());
    let [kept, away] = ["packages-1.txt", "away"].map(|name| place.latest().join(name));
    fs::rename(&kept, &away).unwrap();
    assert!(told());
    fs::rename(&away, &kept).unwrap();
    environment(&place, "1.1");
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(0), 3),
        "{ended:?}"
    );
    let words = "packages of .venv/bin/python are others than at launch 1: own 1.0 → 1.1";
    assert!(ended.stderr.contains(words), "{ended:?}");
    assert!(list(2).unwrap().ends_with("own 1.1\n"));
    // Equal packages are listed once.
    let ended = place.run("", &["--rerun", "completed"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        list(3).is_err() && !ended.stderr.contains("packages of"),
        "{ended:?}"
    );
    let recorded = &programs(&place, 2)["model"]["interpreters"][".venv/bin/python"];
    assert_eq!(recorded["packages_file"], "packages-2.txt");
}

#[test]
fn an_entry_of_files_that_stands_for_nothing_is_found_before_the_first_trial() {
    let faults = [
        ("no.c", "no.c: there is no such file"),
        ("'*.c'", "`*.c` matches no file"),
        ("src", "src is a folder; write `src/**`"),
        ("pipe", "pipe: it is a FIFO, not a file"),
        (
            "'src/**'",
            "more than the 2 files allowed for the `files` of a program",
        ),
    ];
    for (file, words) in faults {
        let place = place(&format!("  argv: ['true', '{{n}}']\n  files: [{file}]"));
        fs::create_dir(place.path("src")).unwrap();
        (0..3).for_each(|number| fs::write(place.path(&format!("src/{number}")), "").unwrap());
        let fifo = Command::new("mkfifo").arg(place.path("pipe")).status();
        assert!(fifo.unwrap().success());
        let ended = place
            .kiln(&["run", "x.yaml"])
            .env("KILN_LIMIT_PROGRAM_FILES", "2")
            .output();
        let ended = Ended::of(ended.unwrap());
        assert_refused(&ended, &["`model.files`", words]);
        assert!(!place.path("results").exists());
    }
}

#[test]
fn what_cannot_be_known_of_a_program_is_told_and_the_trials_run() {
    let place = place("  argv: [./python, big, '{n}']\n  files: [/proc/self/mem]");
    fs::write(place.path("big"), "x".repeat(2000)).unwrap();
    write_program(
        &place.path("python"),
        "#!/bin/sh\ncase $1 in -c) echo 'no -c here' >&2; exit 3;; esac\n",
    );
    let ended = place
        .kiln(&["run", "x.yaml"])
        .env("KILN_LIMIT_PROGRAM_FILE_BYTES", "1000")
        .output();
    let ended = Ended::of(ended.unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    for words in [
        "`/proc/self/mem` has no hash, so a change of it is not noticed",
        "`big` has no hash, so a change of it is not noticed: it has 2.0 KiB, more than",
        "the packages of python are not recorded: no -c here",
    ] {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
    let list = fs::read_to_string(place.latest().join("packages-1.txt")).unwrap();
    assert_eq!(
        list,
        "# python: version unknown, packages unknown (no -c here)\n"
    );
}

#[test]
fn an_engine_of_ones_own_is_held_as_a_command_is_and_its_libraries_are_its_own() {
    let place = Place::with("");
    let line = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign_trial/line.py");
    let text = fs::read_to_string(line).unwrap();
    fs::create_dir(place.path("engines")).unwrap();
    fs::write(place.path("engines/line.py"), &text).unwrap();
    fs::write(
        place.path("x.yaml"),
        "kiln: 1\nname: x\nmodel: {kind: custom, name: line, reads: text, seq_len: 8, rate: 0.1}\n\
         data: {kind: generated, characters: 3000}\n\
         train: {steps: 40, batch_size: 4, cpu_threads: 1}\n\
         measure: {warmup_steps: 4, warmup_seconds: 0.0, log_every: 5}\n\
         run: {devices: cpu, engine: own, engines: {own: {argv: [python3, engines/line.py], files: ['engines/*']}}}\n\
         sweep: {grid: {model.rate: [0.1, 0.2, 0.3]}}\n",
    )
    .unwrap();
    run_one(&place);
    let recorded = programs(&place, 0);
    let own = &recorded["run.engines.own"];
    assert_eq!(own["program"][0], "python3 engines/line.py");
    assert_eq!(own["files"]["engines/line.py"], sum(&text));
    assert!(
        own["interpreters"]["python3"]["version"]
            .as_str()
            .unwrap()
            .starts_with("python 3.")
    );
    let attempt = place.attempts().remove(0).join("attempt.json");
    let attempt: Value = serde_json::from_slice(&fs::read(attempt).unwrap()).unwrap();
    assert_eq!(attempt["argv"][1], "engines/line.py");
    assert!(
        attempt["argv"][2]
            .as_str()
            .unwrap()
            .ends_with("/trial.yaml"),
        "{attempt}"
    );
    fs::write(place.path("engines/line.py"), text.clone() + "#").unwrap();
    assert_refused(
        &place.run("", &[]),
        &["`engines/line.py` is another than launch 1's"],
    );
    fs::write(place.path("engines/line.py"), text).unwrap();
    let ended = place.run("", &[]);
    assert_eq!(
        (ended.status, place.rows().len()),
        (Some(0), 3),
        "{ended:?}"
    );
}

#[test]
fn libraries_that_a_program_loaded_are_recorded_with_their_build_ids() {
    // What is looked up while it runs may come late on a busy machine.
    let found = ["0.5", "5", "50"]
        .into_iter()
        .map(openmp_of)
        .find(|found| !found.is_empty());
    let words = found.unwrap_or_default();
    assert!(words.starts_with("libgomp.so.1"), "{words}");
}

/// The OpenMP library recorded of a program that loads one and runs on for so many seconds.
fn openmp_of(seconds: &str) -> String {
    let place = place("  argv: [python3, train.py, '{n}']\n  window: {from: '^go'}");
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.contains("/libc.so").then(|| path.to_owned())
    });
    // Any library will do; what counts is its name.
    let folder = Path::new(&libc.unwrap()).parent().unwrap().to_owned();
    fs::copy(folder.join("libm.so.6"), place.path("libgomp.so.1")).unwrap();
    fs::write(
        place.path("train.py"),
        format!(
            "import ctypes, time\nctypes.CDLL('./libgomp.so.1')\nprint('go', \
             flush=True)\ntime.sleep({seconds})\n"
        ),
    )
    .unwrap();
    run_one(&place);
    assert!(place.run_file()["launches"][0].get("libraries").is_none());
    let found = &programs(&place, 0)["model"]["libraries"]["openmp"];
    found.as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_commit_of_a_programs_repository_is_recorded() {
    let place = place("  argv: [sh, elsewhere/train.sh, '{n}']");
    let folder = place.path("elsewhere");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("train.sh"), "true").unwrap();
    let git = |arguments: &[&str]| git_in(&folder, arguments);
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first"]);
    run_one(&place);
    let recorded = &programs(&place, 0)["model"]["repositories"]["elsewhere"];
    assert_eq!(recorded["commit"], git(&["rev-parse", "HEAD"]));
    assert_eq!(recorded["dirty"], false);
}

#[test]
fn a_repository_whose_commit_git_does_not_tell_is_told() {
    let place = place("  argv: ['true', '{n}']");
    let run = |other_owner: &str| {
        let mut kiln = place.kiln(&["run", "x.yaml", "--fresh"]);
        kiln.env("GIT_TEST_ASSUME_DIFFERENT_OWNER", other_owner)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null");
        let ended = Ended::of(kiln.output().unwrap());
        assert_eq!(ended.status, Some(0), "{ended:?}");
        ended.stderr
    };
    let silent = "no commit is recorded";
    assert!(!run("1").contains(silent), "outside of a repository");
    git_in(&place.path(""), &["init", "-q"]);
    assert!(!run("0").contains(silent), "in one without a commit");
    let said = run("1");
    assert!(
        said.contains("no commit is recorded, because git does not tell it (detected dubious"),
        "{said}"
    );
}

#[test]
fn a_commit_that_lacks_the_program_is_not_recorded_as_clean() {
    let place = place("  argv: [./bench, '{n}']");
    write_program(&place.path("bench"), "#!/bin/sh\n");
    let git = |arguments: &[&str]| git_in(&place.path(""), arguments);
    git(&["init", "-q"]);
    git(&["add", "x.yaml"]);
    git(&["commit", "-q", "-m", "first"]);
    let dirty = || {
        let ended = place.run("", &["--fresh"]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let launch = place.run_file()["launches"][0].clone();
        let of_program = launch["programs"]["model"]["repositories"].as_object();
        let of_program = of_program.unwrap().values().next().unwrap()["dirty"].clone();
        assert_eq!(launch["git"]["dirty"], of_program);
        of_program
    };
    assert_eq!(dirty(), true);
    // What a build makes is ignored, and is in no commit.
    fs::write(place.path(".gitignore"), "bench\n").unwrap();
    assert_eq!(dirty(), false);
    fs::remove_file(place.path(".gitignore")).unwrap();
    git(&["add", "bench"]);
    git(&["commit", "-q", "-m", "second"]);
    assert_eq!(dirty(), false);
}

#[test]
fn two_runs_differ_in_their_programs_interpreters_and_packages() {
    let place = place("  argv: [.venv/bin/python, train.py, '{n}']");
    fs::write(place.path("train.py"), "import sys").unwrap();
    environment(&place, "1.0");
    assert_eq!(place.run("", &[]).status, Some(0));
    fs::write(place.path("train.py"), "import os").unwrap();
    environment(&place, "1.1");
    let ended = place.run("", &[]);
    assert_eq!((ended.status, place.runs()), (Some(0), 2), "{ended:?}");
    let page = |arguments: &[&str]| Ended::of(place.kiln(arguments).output().unwrap()).stdout;
    let [before, after] = ["import sys", "import os"].map(|text| sum(text)[..12].to_owned());
    let script = format!("programs.train.py: {before}… → {after}…");
    let list = "1 package (";
    for arguments in [&["compare", "x~1", "x"][..], &["reproduce", "x~1"]] {
        let page = page(arguments);
        for words in [
            &script,
            "packages.own: 1.0 → 1.1",
            list,
            "…), in packages-1.txt",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
    let page = page(&["diff", "x~1", "x~2"]);
    let lines: Vec<Vec<&str>> = page
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let has = |line: &[&str]| lines.iter().any(|found| found == line);
    let [before, after] = [before, after].map(|digits| digits + "…");
    assert!(has(&["programs.train.py", &after, "→", &before]), "{page}");
    assert!(has(&["packages.own", "1.1", "→", "1.0"]), "{page}");
}

#[test]
fn packages_of_a_committed_run_are_read_from_its_revision() {
    let place = place("  argv: [.venv/bin/python, train.py, '{n}']");
    fs::write(place.path("train.py"), "import sys").unwrap();
    environment(&place, "1.0");
    let git = |arguments: &[&str]| git_in(&place.path(""), arguments);
    git(&["init", "-q"]);
    assert_eq!(place.run("", &[]).status, Some(0));
    git(&["add", "results"]);
    git(&["commit", "-q", "-m", "first"]);
    environment(&place, "1.1");
    assert_eq!(place.run("", &["--fresh"]).status, Some(0));
    let page = place
        .kiln(&["compare", "HEAD:results/x/latest", "results/x/latest"])
        .output();
    let page = Ended::of(page.unwrap()).stdout;
    assert!(page.contains("packages.own: 1.0 → 1.1"), "{page}");
}

#[test]
fn a_module_that_python_runs_is_the_program() {
    let place = place("  argv: [python3, -m, pack, '{n}']");
    fs::create_dir(place.path("pack")).unwrap();
    let write = |text: &str| fs::write(place.path("pack/__main__.py"), text).unwrap();
    write("pass");
    run_one(&place);
    let program = &programs(&place, 0)["model"];
    assert_eq!(program["program"][0], "python3 -m pack", "{program}");
    assert_eq!(program["main"], "pack/__main__.py", "{program}");
    write("raise SystemExit(1)");
    let words = format!(
        "`pack/__main__.py` is another than launch 1's {}",
        sums("pass", "raise SystemExit(1)")
    );
    assert_refused(&place.run("", &[]), &[&words]);
}

#[test]
fn a_plan_foretells_that_a_run_would_be_refused() {
    let place = place(SCRIPT);
    fs::write(place.path("train.sh"), "true").unwrap();
    run_one(&place);
    let plan = |more: &[&str]| {
        let planned = place.kiln(&[&["plan", "x.yaml"], more].concat()).output();
        Ended::of(planned.unwrap())
    };
    assert!(!plan(&[]).stdout.contains("cannot run here"));
    fs::write(place.path("train.sh"), "false").unwrap();
    let change = format!(
        "`train.sh` is another than launch 1's {}",
        sums("true", "false")
    );
    for more in [&[][..], &["--json"]] {
        let planned = plan(more);
        assert_eq!(planned.status, Some(0), "{planned:?}");
        assert!(planned.stdout.contains(&change), "{planned:?}");
    }
    assert!(plan(&[]).stdout.contains("\ncannot run here: results/x/"));
    write_experiment(&place, "  argv: [./nothing, '{n}']");
    let planned = plan(&[]);
    assert!(
        planned.stdout.contains("cannot run here: `model.argv`: ")
            && planned
                .stdout
                .contains("/nothing: the program does not exist"),
        "{planned:?}"
    );
}

#[test]
fn a_run_whose_program_has_changed_is_not_rerun_with_that_of_today() {
    let place = place(SCRIPT);
    fs::write(place.path("train.sh"), "true").unwrap();
    assert_eq!(place.run("", &[]).status, Some(0));
    let compare = |more: &[&str]| {
        let named = ["compare", "--rerun", "results/x/latest", "x.yaml"];
        let compared = place.kiln(&[&named[..], more].concat()).output();
        Ended::of(compared.unwrap())
    };
    let in_turns = "rerun: 3 trials of base and 3 of new";
    let same = compare(&[]);
    assert!(same.stderr.contains(in_turns), "{same:?}");
    fs::write(place.path("train.sh"), ":").unwrap();
    let change = format!(
        "`train.sh` is another than launch 1's {}",
        sums("true", ":")
    );
    let way = "put the old one into `../base` (no commit is known that has it) and add `--base-set \
               model.folder=../base`;";
    let refused = compare(&[]);
    assert_refused(&refused, &["results/x/latest/trials.csv", &change, way]);
    assert!(!refused.stderr.contains(in_turns), "{refused:?}");
    // The old program in a folder of its own.
    fs::create_dir(place.path("old")).unwrap();
    fs::write(place.path("old/train.sh"), "true").unwrap();
    let elsewhere = compare(&["--base-set", "model.folder=old"]);
    assert!(elsewhere.stderr.contains(in_turns), "{elsewhere:?}");
    // Another one there is not the program of this run, nor is a folder without it.
    fs::write(place.path("old/train.sh"), ":").unwrap();
    let wrong = compare(&["--base-set", "model.folder=old"]);
    let change = format!(
        "`old/train.sh` is another than `train.sh` of launch 1 {}",
        sums("true", ":")
    );
    assert_refused(&wrong, &["does not have the program of this run", &change]);
    assert!(!wrong.stderr.contains(in_turns), "{wrong:?}");
    fs::remove_file(place.path("old/train.sh")).unwrap();
    let empty = compare(&["--base-set", "model.folder=old"]);
    assert_refused(&empty, &["none of its files is there: `train.sh`"]);
}

#[test]
fn a_program_that_another_folder_does_not_have_is_not_said_to_have_changed() {
    let place = place(SCRIPT);
    fs::write(place.path("train.sh"), "true").unwrap();
    assert_eq!(place.run("", &[]).status, Some(0));
    fs::create_dir(place.path("sub")).unwrap();
    let named = ["compare", "--rerun", "../results/x/latest", "../x.yaml"];
    let mut kiln = place.kiln(&named);
    let ended = Ended::of(kiln.current_dir(place.path("sub")).output().unwrap());
    let file = format!(
        "`train.sh` of launch 1 ({}…) is not found from this folder",
        &sum("true")[..12]
    );
    assert_refused(
        &ended,
        &[&file, "start kiln in the folder where the run was"],
    );
    assert!(!ended.stderr.contains("has changed"), "{ended:?}");
}

#[test]
fn the_old_program_of_a_folder_in_a_repository_is_found_as_advised() {
    let place = place(SCRIPT);
    fs::create_dir_all(place.path("repo/sub")).unwrap();
    fs::rename(place.path("x.yaml"), place.path("repo/sub/x.yaml")).unwrap();
    fs::write(place.path("repo/sub/train.sh"), "true").unwrap();
    fs::write(place.path("repo/.gitignore"), "results\n").unwrap();
    let git = |arguments: &[&str]| git_in(&place.path("repo/sub"), arguments);
    git(&["init", "-q", ".."]);
    git(&["add", "-A", ".."]);
    git(&["commit", "-q", "-m", "first"]);
    let commit = git(&["rev-parse", "HEAD"]);
    let kiln = |arguments: &[&str]| {
        let mut kiln = place.kiln(arguments);
        Ended::of(kiln.current_dir(place.path("repo/sub")).output().unwrap())
    };
    let ran = kiln(&["run", "x.yaml"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    fs::write(place.path("repo/sub/train.sh"), ":").unwrap();
    let compare = ["compare", "--rerun", "results/x/latest", "x.yaml"];
    let add = format!("`git worktree add ../../base {commit}`");
    let set = "`--base-set model.folder=../../base/sub`";
    assert_refused(&kiln(&compare), &[&add, set]);
    git(&["worktree", "add", "-q", "../../base", &commit]);
    let named = ["--base-set", "model.folder=../../base/sub"];
    let compared = kiln(&[&compare[..], &named].concat());
    let in_turns = "rerun: 3 trials of base and 3 of new";
    assert!(compared.stderr.contains(in_turns), "{compared:?}");
}

#[test]
fn a_container_of_a_daemon_is_told_before_the_first_trial() {
    let place = place("  argv: [nice, ./docker, run, image, '{n}']");
    write_program(&place.path("docker"), "#!/bin/sh\n");
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let notice = "`docker` has a daemon start the processes of its container";
    assert_eq!(ended.stderr.matches(notice).count(), 1, "{ended:?}");
}
