//! `kiln plan`, driven as a program.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::scripted_child::{Ended, Place, REAL_MLP, real_data, real_trial};

/// `kiln plan` in this folder, with no data but `data/` and a cache of its own.
fn plan(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command
        .current_dir(folder)
        .arg("plan")
        .args(arguments)
        .env_remove("KILN_DATA")
        .env("XDG_CACHE_HOME", folder.join("cache"));
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn experiment(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("experiments")
        .join(name)
        .display()
        .to_string()
}

fn folder_with(yaml: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.yaml"), yaml).unwrap();
    folder
}

#[test]
fn the_quickstart_is_planned_as_expected() {
    let folder = tempfile::tempdir().unwrap();
    let output = plan(folder.path(), &[&experiment("quickstart.yaml")]);
    assert_eq!(
        stdout(&output),
        include_str!("expected/plan-quickstart.txt")
    );
    assert!(output.status.success());
}

#[test]
fn the_room_is_needed_where_the_runs_are_kept() {
    let folder = folder_with("{kiln: 1, name: here, model: {kind: matmul}, train: {steps: 10}}");
    let said = |arguments: &[&str]| stdout(&plan(folder.path(), arguments));
    assert!(
        said(&["x.yaml"]).contains(" under results/here/,"),
        "{}",
        said(&["x.yaml"])
    );
    assert!(said(&["x.yaml", "--results", "/big/disk"]).contains(" under /big/disk/here/,"));
}

const SMALL: &str = "kiln: 1\nname: x\nmodel: {kind: gpt}\ndata: {kind: generated}\ntrain: \
                     {steps: 5}\n";

/// The axes and ids of the trials.
fn planned(sweep: &str, set: &[&str]) -> Vec<(Value, Value)> {
    let folder = folder_with(&format!("{SMALL}sweep: {sweep}\n"));
    let sets = set.iter().flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["x.yaml", "--json"].into_iter().chain(sets).collect();
    let plan = json(&plan(folder.path(), &arguments));
    plan["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trial| (trial["axes"].clone(), trial["id"].clone()))
        .collect()
}

#[test]
fn a_range_is_the_list_that_it_stands_for() {
    let rate = "train.optimizer.learning_rate";
    let written = planned(
        &format!(
            "{{grid: {{{rate}: [1.0e-4, 0.000316228, 1.0e-3, 0.00316228, 1.0e-2]}}, zip: \
             {{model.d_model: [64, 96, 128], model.num_heads: [1, 2, 4]}}}}"
        ),
        &[],
    );
    assert_eq!(written.len(), 15);
    let ranges = format!(
        "{{grid: {{{rate}: {{from: 1.0e-4, to: 1.0e-2, steps: 5, scale: log}}}}, zip: \
         {{model.d_model: {{from: 64, to: 128, steps: 3}}, model.num_heads: [1, 2, 4]}}}}"
    );
    assert_eq!(planned(&ranges, &[]), written);
    let set = format!("sweep.grid.{rate}={{from: 1.0e-4, to: 1.0e-2, steps: 5, scale: log}}");
    let others = "{zip: {model.d_model: [64, 96, 128], model.num_heads: [1, 2, 4]}}";
    assert_eq!(planned(others, &[&set]), written);
}

#[test]
fn random_points_are_the_trials_that_their_values_written_out_would_be() {
    let sample = |count: u32| {
        format!(
            "{{grid: {{model.dropout: [0.0, 0.1]}}, sample: {{count: {count}, seed: 3, axes: \
             {{train.batch_size: {{from: 4, to: 64}}, train.optimizer.learning_rate: {{from: \
             1.0e-5, to: 1.0e-2, scale: log}}}}}}}}"
        )
    };
    let few = planned(&sample(20), &[]);
    assert_eq!(few.len(), 40);
    let many = planned(&sample(20), &["sweep.sample.count=30"]);
    assert_eq!(many.len(), 60);
    assert!(few.iter().all(|trial| many.contains(trial)));
    let column = |key: &str| -> Vec<String> {
        let ofs = few.iter().filter(|(axes, _)| axes["model.dropout"] == 0.0);
        ofs.map(|(axes, _)| axes[key].to_string()).collect()
    };
    let written = format!(
        "{{grid: {{model.dropout: [0.0, 0.1]}}, zip: {{train.batch_size: [{}], \
         train.optimizer.learning_rate: [{}]}}}}",
        column("train.batch_size").join(", "),
        column("train.optimizer.learning_rate").join(", ")
    );
    assert_eq!(planned(&written, &[]), few);
    let other = planned(&sample(20), &["sweep.sample.seed=4"]);
    assert!(few.iter().all(|trial| !other.contains(trial)));
}

#[test]
fn an_exclude_that_matches_nothing_is_a_warning() {
    let folder = folder_with(&format!(
        "{SMALL}sweep:\n  grid: {{train.batch_size: [4, 8]}}\n  exclude:\n    - \
         {{train.batch_size: 8}}\n    - {{train.batch_size: 16}}\n    - {{data.num_workers: 4}}\n"
    ));
    for verb in ["check", "plan", "run"] {
        let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
            .current_dir(folder.path())
            .args([verb, "x.yaml"])
            .args((verb == "run").then_some("--dry-run"))
            .env("XDG_CACHE_HOME", folder.path().join("cache"))
            .env("CUDA_VISIBLE_DEVICES", "")
            .output()
            .unwrap();
        let said = stderr(&output);
        assert!(
            said.contains(
                "x.yaml:10:7: warning: `sweep.exclude[1]` matches no point of this sweep and \
                 drops none; correct its values, or remove it\n  10 |     - {train.batch_size: \
                 16}\n     |       ^\nx.yaml:11:7: warning: `sweep.exclude[2]`"
            ),
            "{verb}: {said}"
        );
        assert!(output.status.success(), "{verb}: {said}");
    }
    let all = json(&plan(folder.path(), &["x.yaml", "--json"]));
    let other_spelling = plan(folder.path(), &["x.yaml", "--format", "json"]);
    assert_eq!(json(&other_spelling), all);
    assert_eq!(all["trials"].as_array().unwrap().len(), 1);
}

#[test]
fn time_and_memory_are_those_of_trials_that_ran_here_before() {
    let place = Place::with("");
    std::fs::write(place.path("x.yaml"), REAL_MLP).unwrap();
    let planned = |more: &[&str]| {
        let arguments = [&["plan", "x.yaml"], more].concat();
        Ended::of(place.kiln(&arguments).output().unwrap())
    };
    let before = planned(&[]).stdout;
    let unknown = "time unknown: no trial with these settings has run on this device";
    assert!(before.contains(unknown), "{before}");
    let mut run = place.kiln(&["run", "x.yaml"]);
    let ended = Ended::of(run.env("KILN_TRIAL", real_trial()).output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    // Another seed of the same point.
    let after = planned(&["--set", "sweep.repeats=2"]).stdout;
    let mut lines = after.lines();
    let (shared, head) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(
        after.contains("as such trials took before")
            && shared.starts_with("every trial: ")
            && shared.contains(", time estimated from same settings, ")
            && shared.ends_with(" of memory")
            && head.contains("time"),
        "{after}"
    );
    let json: Value = serde_json::from_str(&planned(&["--json"]).stdout).unwrap();
    let trial = &json["trials"][0];
    assert!(trial["expected_seconds"].as_f64().unwrap() > 0.0);
    assert!(trial["expected_memory_bytes"].as_u64() > trial["least_memory_bytes"].as_u64());
    assert_eq!(trial["expected_time_is"], "as before");
    let longer = ["--set", "train.steps=110"];
    let text = planned(&longer).stdout;
    let told =
        "one trial after the other, by steps: from trials that differ in their number of steps";
    assert!(
        text.contains(told) && text.contains("  other steps\n"),
        "{text}"
    );
    let json: Value =
        serde_json::from_str(&planned(&[&longer[..], &["--json"]].concat()).stdout).unwrap();
    let of_longer = &json["trials"][0];
    assert_eq!(of_longer["expected_time_is"], "by steps");
    assert!(of_longer["expected_seconds"].as_f64() > trial["expected_seconds"].as_f64());
    let other = planned(&["--set", "train.batch_size=3"]).stdout;
    assert!(other.contains(unknown), "{other}");
}

#[test]
fn a_trial_that_cannot_fit_is_warned_of() {
    let folder = folder_with(
        "{kiln: 1, name: x, model: {kind: gpt, size: gpt2-xl, d_model: 819200}, data: {kind: \
         generated}, train: {steps: 5}, run: {devices: cpu}}",
    );
    let output = plan(folder.path(), &["x.yaml"]);
    let said = stderr(&output);
    assert!(
        said.contains("cannot fit: its parameters, gradients and optimizer need at least"),
        "{said}"
    );
    assert!(output.status.success());
}

#[test]
fn a_tilde_in_a_path_is_the_home() {
    let folder = folder_with(
        "kiln: 1\nname: x\nextends: ~/base/b.yaml\ndata: {kind: text, path: ~/a.txt}\n",
    );
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("base")).unwrap();
    std::fs::write(
        home.path().join("base/b.yaml"),
        "model: {kind: mlp}\ntrain: {epochs: 1, batch_size: 2}\n",
    )
    .unwrap();
    std::fs::write(home.path().join("a.txt"), "to be or not to be ".repeat(100)).unwrap();
    let planned = |set: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command
            .current_dir(folder.path())
            .args(["plan", "x.yaml", "--json", "--set", set])
            .env_remove("KILN_DATA")
            .env("XDG_CACHE_HOME", folder.path().join("cache"))
            .env("HOME", home.path());
        json(&command.output().unwrap())
    };
    for set in ["train.seed=1", "data.path=~/a.txt"] {
        let plan = planned(set);
        assert_eq!(plan["notes"], serde_json::json!([]), "{plan}");
        assert!(plan["trials"][0]["steps"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_class_without_a_validation_image_is_told() {
    let folder = folder_with(
        "kiln: 1\nname: x\nmodel: {kind: resnet, depth: 18, width: 4, stem: small}\ndata: {kind: \
         image-folder, path: own, image_size: 16}\ntrain: {steps: 2, batch_size: 2}\n",
    );
    for (class, images) in [("a", 10), ("b", 2)] {
        let class = folder.path().join("own").join(class);
        std::fs::create_dir_all(&class).unwrap();
        for number in 0..images {
            std::fs::write(class.join(format!("{number}.png")), b"not read").unwrap();
        }
    }
    let output = plan(folder.path(), &["x.yaml"]);
    let told = "images: 2 classes, 2 to 10 images each; the largest class, a, is 83.3 % (top-1 of \
                always naming it: 100.0 % of validation); no validation image of class b: top-1 \
                says nothing about it\n";
    assert!(stdout(&output).contains(told), "{output:?}");
}

#[test]
fn a_setting_in_the_place_of_a_file_is_told_how_to_be_written() {
    let folder = folder_with(SMALL);
    for (typed, written) in [
        ("train.batch_size=8", "`--set train.batch_size=8`"),
        (
            "train.optimizer={kind: sgd}",
            "`--set 'train.optimizer={kind: sgd}'`",
        ),
    ] {
        let output = plan(folder.path(), &["x.yaml", typed]);
        let said = stderr(&output);
        assert!(said.contains(written), "{said}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn every_experiment_is_planned_without_its_data_and_says_what_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    for (name, trials) in [
        ("quickstart.yaml", 12),
        ("wikitext2-gpt-batch.yaml", 5),
        ("shakespeare-char.yaml", 1),
        ("device-matmul.yaml", 8),
    ] {
        let plan = json(&plan(folder.path(), &[&experiment(name), "--json"]));
        assert_eq!(plan["trials"].as_array().unwrap().len(), trials, "{name}");
    }
    let output = plan(folder.path(), &[&experiment("wikitext2-gpt-batch.yaml")]);
    assert!(output.status.success());
    assert!(
        stdout(&output).contains("27.3 M") && stdout(&output).contains("kiln data fetch wikitext2"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn real_data_gives_the_steps() {
    let data = real_data();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.current_dir(folder.path()).args([
        "plan",
        "--json",
        &experiment("wikitext2-gpt-batch.yaml"),
    ]);
    let plan = json(
        &command
            .env("KILN_DATA", data)
            .env("XDG_CACHE_HOME", folder.path())
            .output()
            .unwrap(),
    );
    // (2,088,628 - 129) / 128 + 1 = 16,317 samples.
    let steps: Vec<u64> = plan["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trial| trial["steps"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [4, 8, 16, 24, 32].map(|batch| 16_317 / batch * 5));
    assert_eq!(plan["trials"][4]["dropped_samples_per_epoch"], 16_317 % 32);
    assert_eq!(plan["notes"], serde_json::json!([]));
}

#[test]
fn set_changes_a_key_and_pins_an_axis() {
    let folder = tempfile::tempdir().unwrap();
    let file = experiment("quickstart.yaml");
    let plan = json(&plan(
        folder.path(),
        &[
            &file,
            "--json",
            "--set",
            "train.batch_size=16",
            "--set",
            "train.epochs=2",
        ],
    ));
    let trials = plan["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 6, "two numbers of workers, three seeds");
    assert_eq!(
        trials[0]["axes"],
        serde_json::json!({"train.batch_size": 16, "data.num_workers": 0})
    );
    assert_eq!(
        (
            &trials[0]["train"]["epochs"],
            trials[0]["train"].get("steps")
        ),
        (&2.into(), None)
    );
}

#[test]
fn what_cannot_be_planned_is_bad_input_that_names_every_fault() {
    let folder = folder_with(
        "{kiln: 1, name: x, model: {kind: gpt, vocabulary: 10}, data: {kind: generated}, train: {steps: 1},
        sweep: {grid: {model.num_heads: [5], train.batch_size: [8, 100000]}}}",
    );
    let output = plan(folder.path(), &["x.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    for part in [
        "x.yaml",
        "`num_heads` 5 does not divide `d_model` 256",
        "`model.vocabulary` is 10",
        "one step takes 100000 samples",
        "batch_size = 8; model.num_heads = 5",
    ] {
        assert!(
            stderr(&output).contains(part),
            "{part} is not in: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_bad_file_among_others_leaves_standard_output_to_the_plans() {
    let folder = folder_with("{kiln: 1, name: x, model: {kind: matmul}, train: {steps: 5}}");
    let output = plan(folder.path(), &["nope.yaml", "x.yaml", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stdout(&output)
            .lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{}",
        stdout(&output)
    );
    assert!(
        stderr(&output).contains("nope.yaml: there is no such file"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn facts_of_an_own_text_are_counted_once_and_kept() {
    let folder = folder_with(
        "{kiln: 1, name: x, model: {kind: mlp}, data: {kind: text, path: own.txt}, train: \
         {batch_size: 1, epochs: 1}}",
    );
    std::fs::write(
        folder.path().join("own.txt"),
        "to be or not to be\n".repeat(100),
    )
    .unwrap();
    let first = json(&plan(folder.path(), &["x.yaml", "--json"]));
    // 1,900 characters, 1,710 of them for training: (1,710 - 65) / 64 + 1 samples.
    assert_eq!(first["trials"][0]["steps"], 26);
    assert_eq!(
        std::fs::read_dir(folder.path().join("cache/kiln"))
            .unwrap()
            .count(),
        1
    );
    assert_eq!(json(&plan(folder.path(), &["x.yaml", "--json"])), first);
}

#[test]
fn a_plan_of_ten_thousand_trials_is_printed() {
    let list = |from: u32| (from..from + 100).collect::<Vec<_>>();
    let yaml = format!(
        "{{kiln: 1, name: x, model: {{kind: gpt}}, data: {{kind: generated}}, train: {{steps: 5}},
        sweep: {{grid: {{train.batch_size: {:?}, data.num_workers: {:?}}}}}}}",
        list(1),
        list(0)
    );
    let folder = folder_with(&yaml);
    let output = plan(folder.path(), &["x.yaml"]);
    assert!(
        stdout(&output).contains("10000 trials"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_prompt_that_a_text_cannot_spell_is_refused_where_it_stands() {
    let folder = folder_with(
        "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\ntrain:\n  steps: 5\n  \
         sample: {prompt: At}\n\
         sweep:\n  grid:\n    train.sample.prompt: [At, \"Ωmega\"]\n    data.tokenizer: \
         [character, byte]\n",
    );
    let output = plan(folder.path(), &["x.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "x.yaml:10:31: `train.sample.prompt` contains \"Ω\", which is not in the training text; \
         use only tokens of the training text (at train.sample.prompt = Ωmega, data.tokenizer = \
         character)\n  10 |     train.sample.prompt: [At, \"Ωmega\"]\n     |                               ^\n"
    );
    assert!(
        plan(folder.path(), &["x.yaml", "--set", "data.tokenizer=byte"])
            .status
            .success(),
        "bytes spell everything"
    );
}

#[test]
fn a_swept_size_has_its_column_and_its_parameters() {
    let folder = folder_with(
        "{kiln: 1, name: x, model: {kind: gpt, seq_len: 256}, data: {kind: generated}, train: {steps: 5},
          sweep: {grid: {model.size: [gpt2, gpt2-medium]}}}",
    );
    let plan = json(&plan(folder.path(), &["x.yaml", "--json"]));
    assert_eq!(plan["axes"], serde_json::json!(["model.size"]));
    let trials: Vec<(&str, u64)> = plan["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trial| {
            (
                trial["axes"]["model.size"].as_str().unwrap(),
                trial["parameters"].as_u64().unwrap(),
            )
        })
        .collect();
    // The published numbers, less the positions that a shorter sequence does not need.
    assert_eq!(
        trials,
        [
            ("gpt2", 124_439_808 - 768 * 768),
            ("gpt2-medium", 354_823_168 - 768 * 1024)
        ]
    );
}

#[test]
fn real_data_is_counted_in_prompts_and_responses_and_in_what_was_cut_of_them() {
    let data = real_data();
    let keys = "path: HERE, max_prompt_tokens: 64, max_response_tokens: 64";
    let keys = keys.replace(
        "HERE",
        &data.join("chatlm-mini-chinese").display().to_string(),
    );
    let folder = folder_with(&format!(
        "{{kiln: 1, name: x, model: {{kind: seq2seq}}, data: {{kind: chatlm, {keys}}}, train: \
         {{epochs: 1}}}}"
    ));
    let output = stdout(&plan(folder.path(), &["x.yaml"]));
    let lines = "training rows of chatlm: 3000, with 73614 prompt and 162226 response tokens, 0.10 \
                 % of them unknown; cut: 238 prompts at 64 tokens, 2051 responses at 64\n\
                 validation rows of chatlm: 1000, with 24288 prompt and 54407 response tokens, \
                 0.08 % of them unknown; cut: 81 prompts at 64 tokens, 699 responses at 64\n";
    assert!(output.ends_with(lines), "{output}");
    assert_eq!(
        json(&plan(folder.path(), &["x.yaml", "--json"]))["remarks"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn malformed_data_are_bad_input_and_missing_data_are_not() {
    let folder = folder_with(
        "kiln: 1\nname: x\nmodel: {kind: gpt, d_model: 8, num_layers: 1, num_heads: 2, seq_len: 4}\n\
         data: {kind: text, path: a.txt}\ntrain: {steps: 2, batch_size: 1}\n",
    );
    let missing = plan(folder.path(), &["x.yaml"]);
    assert!(missing.status.success(), "{}", stderr(&missing));
    assert!(stdout(&missing).contains("unknown (?): "));
    std::fs::write(folder.path().join("a.txt"), b"caf\xe9 au lait").unwrap();
    let fault = "a.txt is not UTF-8 text: byte 3";
    for arguments in [
        &["x.yaml"][..],
        &["x.yaml", "x.yaml"],
        &["x.yaml", "--json"],
    ] {
        let malformed = plan(folder.path(), arguments);
        assert_eq!(malformed.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&malformed).contains(fault), "{}", stderr(&malformed));
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_kiln"));
    let check = check.current_dir(folder.path()).args(["check", "x.yaml"]);
    let checked = check.output().unwrap();
    assert!(checked.status.success(), "{}", stderr(&checked));
    let words = format!("x.yaml: warning: {fault}");
    assert!(stderr(&checked).contains(&words), "{}", stderr(&checked));
}
