//! Out of memory as data: what `run.on_oom` does to the trials after one that ran out, and
//! `run.memory_limit` on real ones.

use std::{collections::HashMap, fs, path::PathBuf};

use crate::scripted_child::{
    Ended, Place, REAL_WIDE, program::write_program, read_until, real_trial,
};

/// A training that scripted children play: unlike products it can accumulate.
fn training(place: &Place, lines: &str) {
    let text = format!(
        "kiln: 1\nname: x\nmodel: {{kind: mlp, d_model: 8, hidden: 16, seq_len: 16}}\ndata: \
         {{kind: generated}}\n{lines}\n"
    );
    fs::write(place.path("x.yaml"), text).unwrap();
}

/// `kiln run x.yaml`; trials of these batch sizes play these scenarios, all others complete.
fn run(place: &Place, scenarios: &[(&str, &str)], more: &[&str]) -> Ended {
    let mut kiln = place.kiln(&[&["run", "x.yaml", "--progress", "plain"], more].concat());
    for (batch, scenario) in scenarios {
        kiln.env(format!("SCRIPTED_CHILD_{batch}"), scenario);
    }
    Ended::of(kiln.env("SCRIPTED_CHILD", "completes").output().unwrap())
}

/// Batch × accumulation and outcome of each row.
fn ends(place: &Place) -> Vec<String> {
    let of = |row: &HashMap<String, String>| {
        format!(
            "{}x{} {}",
            row["batch_size"], row["grad_accumulation"], row["outcome"]
        )
    };
    place.rows().iter().map(of).collect()
}

#[test]
fn larger_trials_are_skipped_by_name_and_run_when_asked_for() {
    let sweep = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [4, 16, 8, 32]}, repeats: 2}";
    let place = Place::with(&format!("{sweep}\nrun: {{on_oom: skip-larger}}"));
    let ended = run(&place, &[("16", "runs_out"), ("32", "runs_out")], &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let wanted = [
        "4x1 completed",
        "16x1 oom",
        "8x1 completed",
        "32x1 skipped",
        "32x1 skipped",
        "8x1 completed",
        "16x1 skipped",
        "4x1 completed",
    ];
    assert_eq!(ends(&place), wanted);
    let rows = place.rows();
    let reason = &rows[3]["reason"];
    assert!(
        reason.contains(&format!(
            "trial {} (train.batch_size 16) ran out of memory",
            rows[1]["trial"]
        )),
        "{reason}"
    );
    assert_eq!(
        (
            &*rows[3]["attempt"],
            &*rows[3]["trial_seconds"],
            &*rows[3]["samples_per_second"]
        ),
        ("0", "", "")
    );
    assert_eq!(
        place.attempts().len(),
        5,
        "no process was started for a skipped trial"
    );
    assert!(
        ended
            .stdout
            .contains("8 trials: 4 completed, 1 oom, 3 skipped"),
        "{}",
        ended.stdout
    );

    // What was skipped is settled, until it is asked for.
    let again = run(&place, &[], &[]);
    assert!(
        again.status == Some(0) && again.stderr.contains("every trial already has its result"),
        "{again:?}"
    );
    let asked = run(&place, &[], &["--rerun", "skipped"]);
    assert_eq!(asked.status, Some(0), "{asked:?}");
    assert_eq!(
        ends(&place)[8..],
        ["32x1 completed", "32x1 completed", "16x1 completed"]
    );
    assert_eq!(place.rows()[8]["attempt"], "1");
    let oom = run(&place, &[("16", "runs_out")], &["--rerun", "oom"]);
    assert_eq!(
        (oom.status, &ends(&place)[11..]),
        (Some(0), &["16x1 oom".to_owned()][..]),
        "{oom:?}"
    );
}

#[test]
fn a_trial_that_was_interrupted_before_is_skipped_for_good() {
    let sweep = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [4, 8]}}";
    let place = Place::with(&format!("{sweep}\nrun: {{on_oom: skip-larger}}"));
    let planned = run(&place, &[], &["--dry-run"]).stdout;
    let larger = planned.lines().nth(2).unwrap();
    let larger = larger.split_whitespace().next().unwrap();
    let ended = run(&place, &[("8", "is_killed")], &["--only", larger]);
    assert_eq!(ends(&place), ["8x1 killed"], "{ended:?}");
    let ended = run(&place, &[("4", "runs_out")], &[]);
    assert_eq!(
        (ended.status, ends(&place)),
        (
            Some(0),
            ["8x1 killed", "4x1 oom", "8x1 skipped"]
                .map(str::to_owned)
                .to_vec()
        ),
        "{ended:?}"
    );
    assert_eq!(place.column("attempt"), ["1", "1", "2"]);
    // It is over: no later launch adds a row.
    assert_eq!(run(&place, &[], &[]).status, Some(0));
    assert_eq!(place.rows().len(), 3);
    let ended = run(&place, &[], &["--rerun", "skipped"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("attempt"), ["1", "1", "2", "3"]);
    assert_eq!(ends(&place)[3], "8x1 completed");
}

#[test]
fn with_record_every_trial_is_run() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [4, 16, 32]}}");
    assert_eq!(run(&place, &[("16", "runs_out")], &[]).status, Some(0));
    assert_eq!(
        ends(&place),
        ["4x1 completed", "16x1 oom", "32x1 completed"]
    );
}

#[test]
fn what_failed_otherwise_skips_and_shrinks_nothing() {
    let others = [("2", "fails"), ("4", "diverges"), ("6", "segfaults")];
    for on_oom in ["skip-larger", "shrink"] {
        let place = Place::with("");
        training(
            &place,
            &format!(
                "train: {{steps: 10}}\nsweep: {{grid: {{train.batch_size: [2, 4, 6, 8]}}}}\nrun: \
                 {{on_oom: {on_oom}}}"
            ),
        );
        let ended = run(&place, &others, &[]);
        assert_eq!(
            ends(&place),
            ["2x1 failed", "4x1 diverged", "6x1 failed", "8x1 completed"],
            "{on_oom}: {ended:?}"
        );
    }
}

#[test]
fn a_smaller_trial_stands_in_down_to_the_first_that_fits_and_after_a_kill_too() {
    let place = Place::with("");
    training(
        &place,
        "train: {steps: 10}\nsweep: {grid: {train.batch_size: [16, 1]}}\nrun: {on_oom: shrink}",
    );
    let scenarios = [("16", "runs_out"), ("8", "cuda_oom"), ("4", "is_killed")];
    let ended = run(&place, &scenarios, &[]);
    assert_eq!(
        ends(&place),
        ["16x1 oom", "8x2 oom", "4x4 killed", "1x1 completed"],
        "{ended:?}"
    );
    assert!(
        ended.status == Some(1)
            && ended
                .stderr
                .contains("`train.batch_size` 8 with `train.grad_accumulation` 2"),
        "{ended:?}"
    );
    let first = place.rows()[0]["trial"].clone();
    let stands_in: Vec<String> = place.column("fallback_of");
    assert_eq!(stands_in, ["", &first, &first, ""]);
    assert_eq!(
        place.column("effective_batch_size"),
        ["16", "16", "16", "1"]
    );
    assert_eq!(place.column("train.batch_size"), ["16", "8", "4", "1"]);
    assert_eq!(place.column("number"), ["1", "3", "4", "2"]);

    // The next launch finds what stood in, and goes on with it alone.
    let preview = run(&place, &[], &["--dry-run"]);
    assert!(
        preview.stdout.contains("1 of ") && preview.stdout.contains("killed before"),
        "{preview:?}"
    );
    let ended = run(&place, &[], &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(ends(&place)[4..], ["4x4 completed"]);
    assert_eq!(place.rows()[4]["attempt"], "2");
    assert!(
        ended.stdout.contains("4 trials: 2 completed, 2 oom"),
        "{}",
        ended.stdout
    );
    assert!(
        ended
            .stdout
            .contains("in smaller micro-batches (first: trial"),
        "{}",
        ended.stdout
    );
    let nothing = run(&place, &[], &[]);
    assert!(
        nothing
            .stderr
            .contains("every trial already has its result"),
        "{nothing:?}"
    );
}

#[test]
fn a_smaller_trial_of_the_plan_is_not_run_twice_and_one_sample_is_the_end() {
    let place = Place::with("");
    let zip = "train: {steps: 10}\nsweep: {zip: {train.batch_size: [16, 8], \
               train.grad_accumulation: [1, 2]}}";
    training(&place, &format!("{zip}\nrun: {{on_oom: shrink}}"));
    let ended = run(&place, &[("16", "runs_out")], &[]);
    assert_eq!(ends(&place), ["16x1 oom", "8x2 completed"]);
    assert!(
        ended
            .stderr
            .contains("is the same with a smaller batch size"),
        "{ended:?}"
    );

    let place = Place::with("");
    training(
        &place,
        "train: {steps: 10, batch_size: 3}\nrun: {on_oom: shrink}",
    );
    let ended = run(&place, &[("3", "runs_out"), ("1", "runs_out")], &[]);
    assert_eq!(
        (ends(&place), ended.status),
        (vec!["3x1 oom".to_owned(), "1x3 oom".to_owned()], Some(0))
    );
    assert!(
        ended
            .stderr
            .contains("its batch cannot be smaller than 1 sample"),
        "{ended:?}"
    );
}

#[test]
fn a_kept_trial_that_stood_in_is_a_planned_one_where_the_new_plan_has_it() {
    let place = Place::with("");
    let with = |sweep: &str| {
        let lines = format!("train: {{steps: 10}}\nsweep: {sweep}\nrun: {{on_oom: shrink}}");
        training(&place, &lines);
    };
    with("{grid: {train.batch_size: [16, 1]}}");
    run(&place, &[("16", "runs_out")], &[]);
    assert_eq!(ends(&place), ["16x1 oom", "8x2 completed", "1x1 completed"]);
    assert_ne!(place.column("fallback_of")[1], "");
    with("{zip: {train.batch_size: [1, 8], train.grad_accumulation: [1, 2]}}");
    let kept = run(&place, &[], &["--keep", "latest"]);
    assert_eq!(kept.status, Some(0), "{kept:?}");
    assert!(kept.stderr.contains("2 of 2 trials are kept"), "{kept:?}");
    assert_eq!(place.column("fallback_of"), ["", ""]);
}

#[test]
fn a_limited_child_is_told_its_limit_by_the_system() {
    let place = Place::with("train: {steps: 10}\nrun: {memory_limit: 3GiB}");
    let script = place.path("child.sh");
    write_program(&script, "#!/bin/sh\nulimit -d >&2\nexit 1\n");
    Ended::of(
        place
            .kiln(&["run", "x.yaml"])
            .env("KILN_TRIAL", &script)
            .output()
            .unwrap(),
    );
    let row = &place.rows()[0];
    assert!(
        row["reason"].ends_with(": 3145728"),
        "KiB: {}",
        row["reason"]
    );
    assert_eq!(row["memory_limit_bytes"], (3_u64 << 30).to_string());
}

fn real(place: &Place, lines: &str, more: &[&str]) -> Ended {
    fs::write(place.path("x.yaml"), format!("{REAL_WIDE}{lines}\n")).unwrap();
    Ended::of(
        place
            .kiln(&[&["run", "x.yaml"], more].concat())
            .env("KILN_TRIAL", real_trial())
            .output()
            .unwrap(),
    )
}

#[test]
fn real_trials_that_do_not_fit_are_rows_and_the_others_are_all_there() {
    let grid = "sweep: {grid: {train.batch_size: [16, 1024, 32, 2048]}}\nrun: {memory_limit: \
                512MiB, on_oom: skip-larger}";
    let place = Place::with("");
    let ended = real(&place, grid, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(
        ends(&place),
        [
            "16x1 completed",
            "1024x1 oom",
            "32x1 completed",
            "2048x1 skipped"
        ],
        "{ended:?}"
    );
    let reason = &place.rows()[1]["reason"];
    assert!(
        reason.contains("(asked for ") && reason.contains("of 512.0 MiB (`run.memory_limit`)"),
        "{reason}"
    );
}

#[test]
fn a_shrunk_trial_has_the_losses_of_the_one_that_did_not_fit() {
    let whole = Place::with("");
    assert_eq!(
        real(&whole, "sweep: {grid: {train.batch_size: [640]}}", &[]).status,
        Some(0)
    );
    assert_eq!(ends(&whole), ["640x1 completed"]);
    let place = Place::with("");
    let ended = real(
        &place,
        "sweep: {grid: {train.batch_size: [640]}}\nrun: {memory_limit: 512MiB, on_oom: shrink}",
        &[],
    );
    let ends = ends(&place);
    assert!(
        ends.len() > 1
            && ends.last().unwrap().ends_with(" completed")
            && ends[..ends.len() - 1]
                .iter()
                .all(|end| end.ends_with(" oom")),
        "{ended:?}"
    );
    let losses = |place: &Place| {
        ["train_loss", "valid_loss"]
            .map(|column| place.column(column).pop().unwrap().parse::<f64>().unwrap())
    };
    for (whole, shrunk) in losses(&whole).iter().zip(losses(&place)) {
        assert!((whole / shrunk - 1.0).abs() < 1e-4, "{whole} {shrunk}");
    }
}

/// The folder of a control group that counts memory and in which groups can be made; a test that
/// asks for it has `real_groups` in its name. `scripts/test.sh` finds it.
fn parent_group() -> PathBuf {
    let folder = std::env::var_os("KILN_TEST_GROUP").filter(|folder| !folder.is_empty());
    PathBuf::from(folder.expect("KILN_TEST_GROUP names no control group for memory"))
}

/// A group with a limit on memory, removed when dropped.
struct LimitedGroup(PathBuf);

impl LimitedGroup {
    fn new(bytes: u64) -> Self {
        let group = parent_group().join(format!("kiln-test-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let limit = ["memory.max", "memory.limit_in_bytes"]
            .map(|name| group.join(name))
            .into_iter()
            .find(|file| file.exists());
        let group = Self(group);
        fs::write(limit.unwrap(), bytes.to_string()).unwrap();
        group
    }
}

impl Drop for LimitedGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_kill_in_a_group_of_the_childs_own_is_out_of_memory_with_real_groups() {
    let place = Place::with("train: {steps: 10}");
    let group = LimitedGroup::new(32 << 20);
    let mut kiln = place
        .kiln(&["run", "x.yaml", "--progress", "json"])
        .env("SCRIPTED_CHILD", "eats_its_group")
        .env("SCRIPTED_CHILD_GROUP", &group.0)
        .spawn()
        .unwrap();
    // The child is there when it says so. kiln looks for its group between any two events.
    for _ in 0..2 {
        read_until(kiln.stdout.as_mut().unwrap(), "\"step\":4");
    }
    place.release();
    let ended = Ended::of(kiln.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(ends(&place), ["8x1 oom"]);
    let reason = &place.column("reason")[0];
    assert!(reason.contains("out-of-memory killer ended it"), "{reason}");
}
