//! `kiln check`: each bad file under `tests/experiments/bad/` and the exact text it gets; the YAML
//! in README and docs.
//!
//! `KILN_BLESS=1` rewrites the kept texts; read each one that changed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::pages::{blocks, pages, root};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Runs `kiln check` in a folder, with no variable of kiln's set.
fn check(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KILN_")) {
        command.env_remove(name);
    }
    command
        .current_dir(folder)
        .arg("check")
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn bad_files() -> Vec<String> {
    let listing = fs::read_dir(tests().join("experiments/bad")).unwrap();
    let mut names: Vec<String> = listing
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_value_that_a_set_leaves_without_a_use_is_left_out_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [echo, '{n}', '{rate}'], values: \
                {n: 8, rate: 1, scale: 2}}\nsweep: {grid: {model.values.n: [8, 16]}, derive: \
                {model.values.rate: model.values.scale * model.values.n}}\n";
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let output = check(
        folder.path(),
        &["x.yaml", "--set", "model.values.rate=3"],
        &[],
    );
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(
        errors(&output).contains("warning: `model.values.scale` is left out"),
        "{}",
        errors(&output)
    );
    let plain = check(folder.path(), &["x.yaml"], &[]);
    assert!(!errors(&plain).contains("left out"), "{}", errors(&plain));
}

#[test]
fn every_bad_file_gets_its_kept_text() {
    let mut wrong = Vec::new();
    for name in bad_files() {
        let output = check(&tests().join("experiments"), &[&format!("bad/{name}")], &[]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(output.stdout.is_empty(), "{name}");
        let kept = tests()
            .join("expected/check")
            .join(name.replace(".yaml", ".txt"));
        let found = errors(&output);
        if std::env::var_os("KILN_BLESS").is_some() {
            fs::write(&kept, &found).unwrap();
        }
        if fs::read_to_string(&kept).ok().as_deref() != Some(found.as_str()) {
            wrong.push(format!("{name} now gets:\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_goal_of_a_metric_is_its_key_better() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kiln: 1\nname: x\nmodel:\n  kind: command\n  argv: [run]\n  metrics: {acc: {line: 'acc \
                (\\S+)', goal: max}}\n";
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let told = errors(&check(folder.path(), &["x.yaml"], &[]));
    let words = "unknown key `model.metrics.acc.goal`; did you mean `better`?";
    assert!(told.contains(words), "{told}");
}

#[test]
fn the_bad_files_are_many_and_some_hold_many_errors() {
    let lines: Vec<usize> = fs::read_dir(tests().join("expected/check"))
        .unwrap()
        .map(|entry| {
            fs::read_to_string(entry.unwrap().path())
                .unwrap()
                .lines()
                .count()
        })
        .collect();
    assert_eq!(
        lines.len(),
        bad_files().len(),
        "a kept text without its file, or the reverse"
    );
    assert!(lines.len() >= 40);
    // Each error has a line of its own, most of them with two lines of the file.
    assert!(lines.iter().filter(|count| **count >= 12).count() >= 10);
}

#[test]
fn good_files_are_named_with_what_they_ask_for() {
    let output = check(
        &tests().join("experiments"),
        &[
            "good/swept.yaml",
            "good/drawn.yaml",
            "good/plain.yaml",
            "good/search.yaml",
            "good/command.yaml",
            "good/base/fragment.yaml",
        ],
        &[],
    );
    assert_eq!(errors(&output), "");
    let expected = "good/swept.yaml: ok, 4 points × 2 repeats: gpt on generated, over \
                    train.batch_size (2), model.d_model (2), model.num_heads (2)\n\
                    good/drawn.yaml: ok, 4 points: gpt on generated, over train.batch_size (2), \
                    train.clip_norm (4)\n\
                    good/plain.yaml: ok, 1 trial: mlp on text\n\
                    good/search.yaml: ok, a search for `kiln tune`: successive-halving of gpt on \
                    generated, over model.d_model, train.optimizer.learning_rate, train.steps\n\
                    good/command.yaml: ok, 4 points: command, over model.values.library \
                    (2), model.values.resume (2)\n\
                    good/base/fragment.yaml: ok, a fragment for other files to extend\n";
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), expected);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn gradients_may_be_measured_in_an_experiment_whose_trials_all_have_graphs() {
    let folder = tempfile::TempDir::new().unwrap();
    let text = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\ntrain: {steps: 10, \
                cuda_graph: on, grad_accumulation: 2}\nmeasure: {gradient_noise: {every: 5}}\n";
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let output = check(folder.path(), &["x.yaml"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
}

#[test]
fn the_summary_of_many_axes_names_the_first() {
    let folder = tempfile::TempDir::new().unwrap();
    let all = |entry: &dyn Fn(u32) -> String| {
        let entries: Vec<String> = (0..30).map(entry).collect();
        entries.join(", ")
    };
    let values = all(&|axis| format!("option_{axis}: 0"));
    let axes = all(&|axis| format!("model.values.option_{axis}: [1]"));
    let text = format!(
        "kiln: 1\nname: x\nmodel:\n  kind: command\n  argv: [echo, '{{trial_file}}']\n  values: \
         {{{values}}}\nsweep:\n  grid: {{{axes}}}\n"
    );
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let output = check(folder.path(), &["x.yaml"], &[]);
    let summary = String::from_utf8(output.stdout.clone()).unwrap();
    let end = "model.values.option_5 (1) and 24 more\n";
    assert!(summary.ends_with(end), "{summary}{}", errors(&output));
}

#[test]
fn a_good_file_is_reported_beside_a_bad_one_and_the_status_is_2() {
    let output = check(
        &tests().join("experiments"),
        &["bad/heads.yaml", "good/plain.yaml"],
        &[],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stdout.clone())
            .unwrap()
            .starts_with("good/plain.yaml: ok")
    );
    assert!(
        errors(&output)
            .contains("bad/heads.yaml:6:14: `num_heads` 6 does not divide `d_model` 256")
    );
}

#[test]
fn json_has_an_object_per_file_with_its_problems() {
    let of = |option: &[&str]| {
        let files = ["bad/heads.yaml", "good/plain.yaml", "bad/nowhere.yaml"];
        let output = check(
            &tests().join("experiments"),
            &[&files[..], option].concat(),
            &[],
        );
        assert_eq!(
            (errors(&output).as_str(), output.status.code()),
            ("", Some(2))
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let text = of(&["--json"]);
    assert_eq!(of(&["--format", "json"]), text);
    let files: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [bad, good, nowhere] = &files[..] else {
        panic!("{text}");
    };
    assert_eq!(bad["ok"], false);
    let problem = &bad["problems"][0];
    assert_eq!(problem["source"], "bad/heads.yaml");
    assert_eq!(
        (&problem["line"], &problem["column"]),
        (&json!(6), &json!(14))
    );
    let message = problem["message"].as_str().unwrap();
    assert!(
        message.starts_with("`num_heads` 6 does not divide"),
        "{message}"
    );
    assert_eq!(
        *good,
        json!({
            "kiln_check": 1,
            "file": "good/plain.yaml",
            "ok": true,
            "summary": "1 trial: mlp on text",
            "problems": [],
            "warnings": [],
        })
    );
    let problem = &nowhere["problems"][0];
    assert_eq!(problem["line"], Value::Null);
    assert_eq!(problem["message"], "there is no such file");
}

#[test]
fn json_has_the_warnings_of_a_file_and_standard_error_has_them_without() {
    let folder = tempfile::TempDir::new().unwrap();
    let text = "kiln: 1\nname: x\nmodel: {kind: matmul, size: 8}\ntrain: {steps: 3}\nsweep:\n  \
                grid: {model.size: [8, 16]}\n  exclude:\n    - {model.size: 9}\n";
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let output = check(folder.path(), &["x.yaml", "--json"], &[]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["ok"], errors(&output).as_str()), (&json!(true), ""));
    let warnings = found["warnings"].as_array().unwrap();
    let [warning] = &warnings[..] else {
        panic!("{found}");
    };
    let said = "`sweep.exclude[0]` matches no point of this sweep";
    let warning = warning.as_str().unwrap();
    assert!(
        warning.starts_with("x.yaml:8:") && warning.contains(said),
        "{warning}"
    );
    let plain = check(folder.path(), &["x.yaml"], &[]);
    assert!(errors(&plain).contains(said), "{plain:?}");
}

#[test]
fn many_entries_that_match_no_point_are_summed_up_except_for_programs() {
    let folder = tempfile::TempDir::new().unwrap();
    let write = |entries: usize| {
        let entries: String = (0..entries)
            .map(|entry| format!("    - {{model.size: {}}}\n", entry + 100))
            .collect();
        let text = format!(
            "kiln: 1\nname: x\nmodel: {{kind: matmul, size: 8}}\ntrain: {{steps: 3}}\nsweep:\n  \
             grid: {{model.size: [8, 16]}}\n  exclude:\n{entries}"
        );
        fs::write(folder.path().join("x.yaml"), text).unwrap();
    };
    let said = |entries: usize| {
        write(entries);
        errors(&check(folder.path(), &["x.yaml"], &[]))
    };
    let five = said(5);
    assert_eq!(five.matches("matches no point of").count(), 5, "{five}");
    assert!(!five.contains(" more "), "{five}");
    let six = said(6);
    let more =
        "warning: 1 more entry of `sweep.exclude` matches no point, up to `sweep.exclude[5]`";
    assert!(six.contains(more), "{six}");
    let sixty = said(60);
    let more = "warning: 55 more entries of `sweep.exclude` match no point, up to \
                `sweep.exclude[59]`; `kiln check --json` lists all";
    assert_eq!(sixty.lines().count(), five.lines().count() + 1, "{sixty}");
    assert!(sixty.contains(more), "{sixty}");
    let output = check(folder.path(), &["x.yaml", "--json"], &[]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["warnings"].as_array().unwrap().len(), 60);
}

#[test]
fn files_that_cannot_be_read_are_plain_errors() {
    let folder = tempfile::TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("binary.yaml", &[b'k', 0, 1, 2]);
    write("latin1.yaml", b"kiln: 1\nname: caf\xe9\n");
    write("utf16.yaml", &[0xff, 0xfe, b'k', 0]);
    write("huge.yaml", "a: b\n".repeat(300_000).as_bytes());
    write("nothing.yaml", b"");
    fs::create_dir(folder.path().join("folder")).unwrap();
    let cases = [
        (
            "binary.yaml",
            "binary.yaml: is a binary file; an experiment file is YAML text in UTF-8\n",
        ),
        (
            "latin1.yaml",
            "latin1.yaml: is not UTF-8 text (line 2); save it as UTF-8\n",
        ),
        (
            "utf16.yaml",
            "utf16.yaml: is UTF-16 text; save it as UTF-8\n",
        ),
        (
            "huge.yaml",
            "huge.yaml: it has 1.4 MiB, more than the 1.0 MiB allowed for an experiment file; set \
             KILN_LIMIT_EXPERIMENT_BYTES=1500000 to allow more; an experiment file is a few \
             kilobytes\n",
        ),
        (
            "nothing.yaml",
            "nothing.yaml: is empty; it needs at least `kiln: 1`, `name` and `model`\n",
        ),
        ("folder", "folder: is a folder; name a YAML file in it\n"),
        (
            "binray.yaml",
            "binray.yaml: there is no such file; did you mean `binary.yaml`?\n",
        ),
        (
            "binary",
            "binary: there is no such file; did you mean `binary.yaml`?\n",
        ),
        ("other.yaml", "other.yaml: there is no such file\n"),
        (
            "no/x.yaml",
            "no/x.yaml: there is no such file, and no folder `no`\n",
        ),
    ];
    for (name, expected) in cases {
        let output = check(folder.path(), &[name], &[]);
        assert_eq!(
            (errors(&output).as_str(), output.status.code()),
            (expected, Some(2))
        );
    }
}

#[test]
fn the_fault_is_shown_in_its_line_and_colored_on_a_terminal() {
    let place = crate::scripted_child::Place::with("train: {steps: 1e3}");
    let piped = place.kiln(&["check", "x.yaml"]).output().unwrap();
    let message = "x.yaml:4:16: `train.steps` is `1e3`; it must be an integer from 1 to \
                   1000000000; write `1000`";
    let excerpt = "  4 | train: {steps: 1e3}\n    |                ^\n";
    assert_eq!(errors(&piped), format!("{message}\n{excerpt}"));
    let shown = |command: &mut Command| {
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        text.replace("\r\n", "\n")
    };
    let red = format!("\u{1b}[31m{message}\u{1b}[0m\n{excerpt}");
    assert_eq!(shown(&mut place.in_a_terminal(&["check", "x.yaml"])), red);
    let plain = format!("{message}\n{excerpt}");
    assert_eq!(
        shown(
            place
                .in_a_terminal(&["check", "x.yaml"])
                .env("NO_COLOR", "1")
        ),
        plain
    );
    let never = ["check", "x.yaml", "--color", "never"];
    assert_eq!(shown(&mut place.in_a_terminal(&never)), plain);
    let always = ["--color", "always", "check", "x.yaml"];
    assert_eq!(errors(&place.kiln(&always).output().unwrap()), red);
}

#[test]
fn a_newer_format_asks_for_a_newer_kiln() {
    let output = check(
        &tests().join("experiments"),
        &["good/plain.yaml", "--set", "kiln=2"],
        &[],
    );
    let found = errors(&output);
    assert!(
        found.starts_with("--set kiln=2: `kiln` is `2`, a newer format than this kiln (")
            && found.contains("update kiln"),
        "{found}"
    );
    let older = errors(&check(
        &tests().join("experiments"),
        &["good/plain.yaml", "--set", "kiln=0"],
        &[],
    ));
    assert_eq!(older, "--set kiln=0: `kiln` is `0`; it must be `1`\n");
}

#[test]
fn a_bad_value_for_an_axis_is_said_once() {
    let output = check(
        &tests().join("experiments"),
        &["good/swept.yaml", "--set", "train.batch_size=[4]"],
        &[],
    );
    assert_eq!(errors(&output).lines().count(), 1, "{}", errors(&output));
    assert!(
        errors(&output).contains("`train.batch_size` is a list"),
        "{}",
        errors(&output)
    );
}

#[test]
fn variables_and_sets_are_layers_with_names_of_their_own() {
    let folder = tests().join("experiments");
    let output = check(
        &folder,
        &[
            "good/plain.yaml",
            "--set",
            "train.batch_size=0",
            "--set",
            "train.seed",
        ],
        &[("KILN_TRAIN__STEPZ", "5")],
    );
    let expected = "--set train.batch_size=0: `train.batch_size` is `0`; it must be an integer \
                    from 1 to 1048576\n\
                    --set train.seed: has no `=`; write `--set train.batch_size=8`\n\
                    KILN_TRAIN__STEPZ: unknown key `train.stepz`; did you mean `steps`?\n";
    assert_eq!(errors(&output), expected);
    let settings = [
        "KILN_DATA",
        "KILN_TRIAL",
        "KILN_LIBTORCH",
        "KILN_NVML_LIB",
        "KILN_LOCKS",
    ]
    .map(|name| (name, "/nowhere"));
    assert_eq!(
        check(&folder, &["good/plain.yaml"], &settings)
            .status
            .code(),
        Some(0)
    );
}

/// Whole files are checked as files, the others as fragments: a file in a folder named `base`.
#[test]
fn every_yaml_block_of_the_pages_is_an_experiment_or_a_part_of_one() {
    const SUM_IN_WORDS: &str = "64 hexadecimal digits, as `sha256sum t5-small/model.safetensors` \
                                writes them";
    let folder = tempfile::TempDir::new().unwrap();
    fs::create_dir(folder.path().join("base")).unwrap();
    fs::copy(
        tests().join("../experiments/base/gpt-small.yaml"),
        folder.path().join("base/gpt-small.yaml"),
    )
    .unwrap();
    fs::write(
        folder.path().join("base/data.yaml"),
        "data: {kind: generated}\n",
    )
    .unwrap();
    let mut names = Vec::new();
    for page in pages() {
        let folder_of_page = page.parent().unwrap().file_name().unwrap();
        let stem = format!(
            "{}-{}",
            folder_of_page.to_string_lossy(),
            page.file_stem().unwrap().to_string_lossy()
        );
        // The file of one trial is not an experiment.
        for block in blocks(&page)
            .into_iter()
            .filter(|block| block.language == "yaml" && !block.text.starts_with("kiln_trial:"))
            // Files of the guide stand on top of others; its test runs them.
            .filter(|block| block.file().is_none())
        {
            let text = block.text.replace(SUM_IN_WORDS, &"a".repeat(64));
            let has = |key: &str| text.lines().any(|line| line.starts_with(key));
            let is_whole = has("kiln: 1");
            // A sweep over keys of the data means data that has them.
            let beneath = if is_whole || has("data:") {
                ""
            } else {
                "extends: data.yaml\n"
            };
            let name = format!(
                "{}{stem}-{}.yaml",
                if is_whole { "" } else { "base/" },
                block.line
            );
            fs::write(folder.path().join(&name), format!("{beneath}{text}")).unwrap();
            names.push(name);
        }
    }
    assert!(
        names.len() >= 10
            && names
                .iter()
                .filter(|name| !name.starts_with("base/"))
                .count()
                >= 2,
        "{names:?}"
    );
    let arguments: Vec<&str> = names.iter().map(String::as_str).collect();
    let output = check(folder.path(), &arguments, &[]);
    assert_eq!(
        (errors(&output).as_str(), output.status.code()),
        ("", Some(0))
    );
}

#[test]
fn the_error_in_the_readme_is_the_one_that_such_a_file_gets() {
    let readme = blocks(&root().join("README.md"));
    let shown = readme
        .iter()
        .find(|block| block.text.starts_with("width.yaml:"))
        .unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let lines = [
        "kiln: 1",
        "name: width",
        "model: {kind: gpt, d_model: 256, num_heads: 4, dropuot: 0.1}",
        "data: {kind: generated}",
        "train: {steps: 10}",
    ];
    fs::write(folder.path().join("width.yaml"), lines.join("\n") + "\n").unwrap();
    assert_eq!(
        errors(&check(folder.path(), &["width.yaml"], &[])),
        shown.text
    );
}

#[test]
fn completions_know_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(["completions", shell])
            .output()
            .unwrap();
        let script = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(
            ["check", "plan", "run", "schema"]
                .iter()
                .all(|verb| script.contains(verb)),
            "{shell}"
        );
    }
}
