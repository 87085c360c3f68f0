//! `kiln run --keep`: trials that another run has are kept, and only the others run.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    scripted_child::{Ended, Place, table},
    use_model::kiln_in,
};

const TWO: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}";
const THREE: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2, 4]}}";

/// A command that writes its value to `started` at its start.
const MODEL: &str = "  argv: [sh, -c, 'echo \"$KILN_VALUE_N\" >>started; echo \"speed \
                     $KILN_VALUE_N.5\"']\n  values: {n: 1}\n  metrics: {speed: {line: 'speed (\\S+)', \
                     better: high}}";

/// A command that runs the file `train.sh` with its value.
const PROGRAM: &str = "  argv: [sh, train.sh, '{n}']\n  values: {n: 1}\n  metrics: {speed: {line: \
                       'speed (\\S+)', better: high}}";

fn sweep(values: &str, more: &str) -> String {
    format!("sweep: {{grid: {{model.values.n: [{values}]}}{more}}}")
}

/// A place where two trials of [`MODEL`] have run.
fn ran_two() -> Place {
    let place = Place::of_command(MODEL, &sweep("1, 2", ""));
    assert_eq!(place.run("", &[]).status, Some(0));
    place
}

fn keep(place: &Place, more: &[&str]) -> Ended {
    place.run("completes", &[&["--keep", "latest"], more].concat())
}

fn kiln(place: &Place, arguments: &[&str]) -> Ended {
    Ended::of(place.kiln(arguments).output().unwrap())
}

#[test]
fn only_the_added_value_runs_and_the_kept_rows_stay_as_they_are() {
    let place = ran_two();
    let old = fs::canonicalize(place.latest()).unwrap();
    let (before, launches) = (place.lines(), place.run_file()["launches"].clone());
    place.write_command(MODEL, &sweep("1, 2, 3", ""));
    let foretold = keep(&place, &["--dry-run"]);
    assert!(
        foretold.stdout.contains("2 of 3 trials are kept from x/")
            && foretold.stdout.contains("1 of 3 trials would run"),
        "{foretold:?}"
    );
    let planned = kiln(&place, &["plan", "x.yaml", "--keep", "latest"]);
    let told = "2 of 3 trials are kept from x/";
    assert!(
        planned.stdout.contains(told) && planned.stdout.contains("; 1 is left to run"),
        "{planned:?}"
    );
    // The table shows the times of the kept trials.
    let time = "\ntime unknown for the 1 trial left to run: no trial with such settings has run";
    assert!(planned.stdout.contains(time), "{planned:?}");
    let ended = keep(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(place.started(), ["1", "2", "3"]);
    assert_eq!(place.runs(), 2);
    assert_eq!(place.lines()[..3], before[..]);
    assert_eq!(place.column("launch"), ["1", "1", "2"]);
    let run = place.run_file();
    assert_eq!(run["launches"][0], launches[0]);
    assert_eq!(run["kept_from"]["trials"], 2);
    assert_eq!(place.attempts_with("stdout.txt"), 3);
    let again = place.run("", &[]);
    let told = "every trial already has its result";
    assert!(
        again.stderr.contains(told) && place.runs() == 2,
        "{again:?}"
    );
    // Each run stands alone.
    let removed = kiln(&place, &["rm", &old.display().to_string(), "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    for attempt in place.attempts() {
        let output = fs::read_to_string(attempt.join("stdout.txt")).unwrap();
        assert!(output.starts_with("speed "), "{output}");
    }
}

#[test]
fn kept_rows_are_not_compared_with_the_run_that_they_are_from() {
    let place = Place::of_command(MODEL, &sweep("1, 2", ", repeats: 3"));
    assert_eq!(place.run("", &[]).status, Some(0));
    let run = || {
        fs::canonicalize(place.latest())
            .unwrap()
            .display()
            .to_string()
    };
    let old = run();
    place.write_command(MODEL, &sweep("1, 2, 3", ", repeats: 3"));
    assert_eq!(keep(&place, &[]).status, Some(0));
    let compared = kiln(&place, &["compare", &old, &run()]);
    assert!(
        compared
            .stdout
            .contains("one of these runs kept 6 rows from the other")
            && !compared.stdout.contains("2 same")
            && !compared.stdout.contains("are one run"),
        "{compared:?}"
    );
    let same = kiln(&place, &["compare", &old, &old]);
    assert!(same.stdout.contains("are one run"), "{same:?}");
}

#[test]
fn added_repeats_run_in_blocks_of_their_own() {
    let place = ran_two();
    place.write_command(MODEL, &sweep("1, 2", ", repeats: 3"));
    let ended = keep(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let told = "2 of 6 trials are kept";
    assert!(
        ended.stderr.contains(told) && ended.stderr.contains("4 are left to run"),
        "{ended:?}"
    );
    assert_eq!(place.started().len(), 2 + 4);
    for row in place.rows() {
        let launch = if row["block"] == "1" { "1" } else { "2" };
        assert_eq!(row["launch"], launch, "{row:?}");
    }
}

#[test]
fn a_kept_trial_and_an_added_one_are_no_pair() {
    let more = ", repeats: 3, together: [model.values.n]";
    let place = Place::of_command(MODEL, &sweep("1, 2", more));
    place.run("", &[]);
    place.write_command(MODEL, &sweep("1, 2, 3", more));
    let ended = keep(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.started().len(), 6 + 3);
    let run = place.latest().display().to_string();
    let compared = kiln(&place, &["compare", &run, "--between", "model.values.n"]);
    let told =
        "the two sides ran in different launches (model.values.n 1 in launch 1; 3 in launch 2)";
    assert!(compared.stdout.contains(told), "{compared:?}");
}

#[test]
fn reading_again_is_advised_only_where_the_output_is_there() {
    let place = ran_two();
    place.write_command(&MODEL.replace("'speed (", "'spe+d ("), &sweep("1, 2", ""));
    let refused = keep(&place, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let advice = "`--read-again` reads the metrics anew";
    assert!(refused.stderr.contains(advice), "{refused:?}");
    fs::remove_dir_all(place.latest().join("trials")).unwrap();
    let refused = keep(&place, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("measured in another way") && !refused.stderr.contains(advice),
        "{refused:?}"
    );
}

#[test]
fn rows_of_a_changed_table_are_not_kept() {
    let place = Place::with(TWO);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let lines = place.lines();
    let axis = lines[0]
        .split(',')
        .position(|name| name == "train.batch_size");
    let mut cells: Vec<&str> = lines[1].split(',').collect();
    cells[axis.unwrap()] = "7";
    let changed = [&lines[0], &cells.join(","), &lines[2]].map(|line| format!("{line}\n"));
    fs::write(place.latest().join("trials.csv"), changed.concat()).unwrap();
    place.write(THREE);
    let refused = keep(&place, &[]);
    assert_eq!(refused.status, Some(2), "{refused:?}");
    let why = "`train.batch_size` is `7`, and the sweep";
    assert!(refused.stderr.contains(why), "{refused:?}");
    assert_eq!(place.runs(), 1);
}

#[test]
fn trials_without_a_final_outcome_run_from_the_beginning() {
    let place = ran_two();
    // As if kiln had been killed before it wrote the row.
    let lines = place.lines();
    let whole = lines[..2].join("\n") + "\n";
    fs::write(place.latest().join("trials.csv"), whole).unwrap();
    place.write_command(MODEL, &sweep("1, 2, 3", ""));
    let ended = keep(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.started(), ["1", "2", "2", "3"]);
    assert_eq!(place.column("attempt"), ["1", "1", "1"]);
    assert_eq!(place.attempts().len(), 3);
}

#[test]
fn trials_that_kiln_trains_are_kept_by_their_ids() {
    let place = Place::with(TWO);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let before = place.lines();
    place.write(&format!(
        "{THREE}\ndescription: one more\nrun: {{timeout: 1h}}"
    ));
    let ended = keep(&place, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.lines()[..3], before[..]);
    assert_eq!(place.column("launch"), ["1", "1", "2"]);
    // Nothing is left to run of a part of the sweep, so no launch is added.
    place.write(TWO);
    let part = keep(&place, &[]);
    assert!(
        part.status == Some(0) && part.stderr.contains("2 of 2 trials are kept"),
        "{part:?}"
    );
    assert_eq!(place.column("launch"), ["1", "1"]);
    let again = place.run("completes", &["--read-again", "latest"]);
    assert!(again.stderr.contains("with `--keep RUN`"), "{again:?}");
}

/// The file of the weights of each trial of a run.
fn weights(run: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let trials = entries(&run.join("trials")).into_iter();
    let steps = trials.flat_map(|trial| entries(&trial.join("checkpoint")));
    let files = steps.map(|step| step.join("model.safetensors"));
    files.filter(|file| file.is_file()).collect()
}

#[test]
fn kept_weights_can_be_used_when_the_old_run_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let experiment = |rates: &str| {
        format!(
            "kiln: 1\nname: x\nmodel: {{kind: lstm, d_model: 8, hidden: 8, seq_len: 8}}\n\
             data: {{kind: text, path: book.txt, tokenizer: character, valid_fraction: 0.25}}\n\
             train: {{steps: 4, batch_size: 2, cpu_threads: 1, checkpoint: {{every_steps: 2}}}}\n\
             run: {{engine: flex, devices: cpu}}\n\
             measure: {{warmup_steps: 1, warmup_seconds: 0.0}}\n\
             sweep: {{grid: {{train.optimizer.learning_rate: [{rates}]}}}}\n"
        )
    };
    write("book.txt", &"the sea was cold and red at dawn\n".repeat(80));
    write("x.yaml", &experiment("0.001"));
    let first = kiln_in(folder.path(), &["run", "x.yaml"]);
    assert_eq!(first.status, Some(0), "{first:?}");
    let old = fs::canonicalize(folder.path().join("results/x/latest")).unwrap();
    write("x.yaml", &experiment("0.001, 0.01"));
    let kept = kiln_in(folder.path(), &["run", "x.yaml", "--keep", "x"]);
    assert_eq!(kept.status, Some(0), "{kept:?}");
    let new = folder.path().join("results/x/latest");
    let rows = table(&new.join("trials.csv"));
    let launches: Vec<&str> = rows.iter().map(|row| row["launch"].as_str()).collect();
    assert_eq!(launches, ["1", "2"]);
    let (of_old, of_new) = (weights(&old), weights(&new));
    assert_eq!((of_old.len(), of_new.len()), (1, 2));
    let place = |file: &PathBuf| file.metadata().unwrap().ino();
    assert!(
        of_new.iter().any(|file| place(file) == place(&of_old[0])),
        "the file is linked"
    );
    let removed = kiln_in(folder.path(), &["rm", &old.display().to_string(), "--yes"]);
    assert_eq!(removed.status, Some(0), "{removed:?}");
    let trial = format!("x:{}", rows[0]["trial"]);
    let evaluated = kiln_in(folder.path(), &["evaluate", &trial, "--format", "json"]);
    assert_eq!(evaluated.status, Some(0), "{evaluated:?}");
}

#[test]
fn trials_that_were_run_in_another_way_are_not_kept() {
    let place = Place::with(TWO);
    place.run("completes", &[]);
    place.write(&format!("{THREE}\nmeasure: {{warmup_steps: 1}}"));
    let measured = keep(&place, &[]);
    assert!(
        measured.status == Some(2)
            && measured.stderr.contains("`measure.warmup_steps`: was ")
            && measured.stderr.contains("`--fresh` in place of `--keep`"),
        "{measured:?}"
    );
    place.write("train: {steps: 20}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let none = keep(&place, &[]);
    assert!(
        none.status == Some(2)
            && none
                .stderr
                .contains("none of the 2 trials of this experiment is in it with a final outcome")
            && none.stderr.contains("`train.steps`: was 10, is now 20"),
        "{none:?}"
    );
    place.write(THREE);
    place.move_elsewhere();
    let elsewhere = keep(&place, &[]);
    assert!(
        elsewhere.status == Some(2)
            && elsewhere
                .stderr
                .contains("it was made on another machine ("),
        "{elsewhere:?}"
    );
    let planned = kiln(&place, &["plan", "x.yaml", "--keep", "latest"]);
    let told = "cannot run here: x/";
    assert!(
        planned.status == Some(0) && planned.stdout.contains(told),
        "{planned:?}"
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn options_that_do_not_go_with_it_are_refused() {
    let place = Place::with(TWO);
    place.run("completes", &[]);
    place.write(THREE);
    let cases: [(&[&str], &str); 5] = [
        (&["--fresh"], "`--keep` does not go with `--fresh`"),
        (
            &["--rerun", "failed"],
            "`--keep` does not go with `--rerun`",
        ),
        (
            &["--continue", "x"],
            "`--keep` does not go with `--continue`",
        ),
        (
            &["--on", "workers"],
            "`--keep` runs the other trials in this",
        ),
        (&["x.yaml"], "`--keep` reads one run for one experiment"),
    ];
    for (more, told) in cases {
        let refused = keep(&place, more);
        assert!(
            refused.status == Some(2) && refused.stderr.contains(told),
            "{more:?}: {refused:?}"
        );
    }
    let on_workers = "plan x.yaml --keep latest --set run.on=workers";
    let planned = kiln(&place, &on_workers.split(' ').collect::<Vec<_>>());
    let told = "cannot run here: `--keep` runs the other trials in this";
    assert!(
        planned.status == Some(0) && planned.stdout.contains(told),
        "{planned:?}"
    );
    let of_commit = place.run("completes", &["--keep", "HEAD:results/x/latest"]);
    let told = "not the files of its trials";
    assert!(
        of_commit.status == Some(2) && of_commit.stderr.contains(told),
        "{of_commit:?}"
    );
    let alone = place.run("completes", &["--across", "programs"]);
    assert!(
        alone.status == Some(2) && alone.stderr.contains("--keep"),
        "{alone:?}"
    );
    assert_eq!(place.runs(), 1);
}

#[test]
fn a_skipped_trial_is_kept_only_with_the_one_that_ran_out_of_memory() {
    let model = "  argv: [sh, -c, 'echo \"$KILN_VALUE_N\" >>started; test \"$KILN_VALUE_N\" -lt 3 || exit \
                 3; echo speed 1']\n  values: {n: 1}\n  grows: [n]\n  exits: {oom: [3]}\n  metrics: \
                 {speed: {line: 'speed (\\S+)', better: high}}";
    let lines = |values: &str| {
        let run = "run: {devices: cpu, on_oom: skip-larger}";
        format!("{}\n{run}", sweep(values, ""))
    };
    let place = Place::of_command(model, &lines("1, 2, 3, 4"));
    place.run("", &[]);
    let outcomes = ["completed", "completed", "oom", "skipped"];
    assert_eq!(place.column("outcome"), outcomes);
    place.write_command(model, &lines("1, 3, 4"));
    let both = keep(&place, &[]);
    assert!(both.stderr.contains("3 of 3 trials are kept"), "{both:?}");
    place.write_command(model, &lines("1, 4"));
    let alone = keep(&place, &[]);
    assert!(
        alone.stderr.contains("1 of 2 trials are kept") && alone.stderr.contains("1 is left"),
        "{alone:?}"
    );
    assert_eq!(place.column("outcome"), ["completed", "oom"]);
    assert_eq!(place.started(), ["1", "2", "3", "4"]);
}

#[test]
fn kept_trials_that_are_retried_are_told_as_such() {
    let model = "  argv: [sh, -c, 'test \"$KILN_VALUE_N\" = 1 || exit 2; echo speed 1']\n  values: {n: 1}\n  \
                 metrics: {speed: {line: 'speed (\\S+)', better: high}}";
    let place = Place::of_command(model, &sweep("1, 2", ""));
    place.run("", &[]);
    assert_eq!(place.column("outcome"), ["completed", "failed"]);
    let retries = "run: {devices: cpu, retries: 1}";
    place.write_command(model, &format!("{}\n{retries}", sweep("1, 2, 3", "")));
    let ended = keep(&place, &[]);
    let told = "; 2 are left to run, 1 of them kept but retried (`run.retries`)";
    assert!(
        ended.stderr.contains("2 of 3 trials are kept") && ended.stderr.contains(told),
        "{ended:?}"
    );
}

#[test]
fn a_run_that_is_being_run_is_not_kept() {
    let place = Place::with("");
    let mut running = place.start_waiting_command();
    let refused = keep(&place, &[]);
    assert!(
        refused.status == Some(2) && refused.stderr.contains("this run is being run (process "),
        "{refused:?}"
    );
    place.release();
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_file_that_cannot_be_copied_leaves_no_run() {
    let place = ran_two();
    place.write_command(MODEL, &sweep("1, 2, 3", ""));
    let snapshots = place.latest().join("snapshots.csv");
    fs::remove_file(&snapshots).unwrap();
    fs::create_dir(&snapshots).unwrap();
    let failed = keep(&place, &[]);
    assert_eq!(failed.status, Some(3), "{failed:?}");
    let told = "it cannot be copied into the new run, which was therefore not made";
    assert!(failed.stderr.contains(told), "{failed:?}");
    assert_eq!((place.runs(), place.started().len()), (1, 2));
}

#[test]
fn completed_trials_are_kept_across_programs_and_their_rows_are_told_apart() {
    let place = Place::of_command(PROGRAM, &sweep("1, 2", ""));
    let write = |check: &str| {
        let text = format!("echo $1 >>started\n{check}\necho speed $1\n");
        fs::write(place.path("train.sh"), text).unwrap();
    };
    write("test $1 = 1 || exit 2");
    place.run("", &[]);
    assert_eq!(place.column("outcome"), ["completed", "failed"]);
    write("true");
    let rerun = place.run("", &["--rerun", "failed"]);
    let told = "--across programs` keeps 1 completed of its 2 trials";
    assert!(
        rerun.status == Some(2) && rerun.stderr.contains(told),
        "{rerun:?}"
    );
    let refused = keep(&place, &[]);
    assert!(
        refused.status == Some(2)
            && refused.stderr.contains("`train.sh` is another than")
            && refused.stderr.contains("add `--across programs`"),
        "{refused:?}"
    );
    let ended = keep(&place, &["--across", "programs"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let told = "the kept trials ran with another program than the others will (`train.sh`";
    assert!(ended.stderr.contains(told), "{ended:?}");
    assert_eq!(place.started(), ["1", "2", "2"]);
    let columns = ["outcome", "launch", "attempt"].map(|name| place.column(name));
    assert_eq!(
        columns,
        [["completed", "completed"], ["1", "2"], ["1", "1"]]
    );
    let launches = place.run_file()["launches"].clone();
    let sums = [0_usize, 1]
        .map(|launch| launches[launch]["programs"]["model"]["files"]["train.sh"].clone());
    assert!(sums[0].is_string() && sums[0] != sums[1], "{sums:?}");
    let again = place.run("", &[]);
    assert!(
        again.stderr.contains("every trial already has its result"),
        "{again:?}"
    );
    let run = place.latest().display().to_string();
    let compared = kiln(&place, &["compare", &run, "--between", "model.values.n"]);
    let told = "completed rows are of several programs";
    assert!(compared.stderr.contains(told), "{compared:?}");
    let reported = kiln(&place, &["report", &run, "--format", "json"]);
    assert!(reported.stdout.contains(told), "{reported:?}");
    // A third program is again another one.
    write("true; true");
    let third = keep(&place, &[]);
    assert_eq!(third.status, Some(2), "{third:?}");
}

#[test]
fn a_run_across_programs_that_ran_nothing_is_of_the_program_of_its_rows() {
    let place = Place::of_command(PROGRAM, &sweep("1, 2", ""));
    let write = |text: &str| fs::write(place.path("train.sh"), text).unwrap();
    write("echo speed $1\n");
    place.run("", &[]);
    write("echo speed $1\ntrue\n");
    let all = keep(&place, &["--across", "programs"]);
    assert_eq!(all.status, Some(0), "{all:?}");
    assert!(all.stderr.contains("2 of 2 trials are kept"), "{all:?}");
    assert!(!all.stderr.contains("another program"), "{all:?}");
    assert!(place.run_file()["kept_from"]["programs_from"].is_null());
    let refused = "`train.sh` is another than launch 1's";
    let rerun = place.run("", &["--rerun", "completed"]);
    assert!(
        rerun.status == Some(2) && rerun.stderr.contains(refused),
        "{rerun:?}"
    );
    // As if kiln had been killed before it wrote the first row of the other program.
    place.write_command(PROGRAM, &sweep("1, 2, 3", ""));
    let some = keep(&place, &["--across", "programs"]);
    assert_eq!(some.status, Some(0), "{some:?}");
    assert_eq!(place.run_file()["kept_from"]["programs_from"], 2);
    let whole = place.lines()[..3].join("\n") + "\n";
    fs::write(place.latest().join("trials.csv"), whole).unwrap();
    let again = keep(&place, &[]);
    assert!(
        again.status == Some(2) && again.stderr.contains(refused),
        "{again:?}"
    );
    write("echo speed $1\n");
    let restored = keep(&place, &[]);
    assert_eq!(restored.status, Some(0), "{restored:?}");
    assert!(place.run_file()["kept_from"]["programs_from"].is_null());
}

#[test]
fn rows_of_several_programs_are_kept_only_across_programs() {
    let place = Place::of_command(PROGRAM, &sweep("1, 2", ""));
    let write = |text: &str| fs::write(place.path("train.sh"), text).unwrap();
    write("echo speed $1\n");
    place.run("", &[]);
    write("echo speed $1\ntrue\n");
    let across = ["--across", "programs"];
    place.write_command(PROGRAM, &sweep("1, 2, 3", ""));
    let two = keep(&place, &across);
    assert_eq!(two.status, Some(0), "{two:?}");
    // The program of now is that of the newest rows, but not of all.
    place.write_command(PROGRAM, &sweep("1, 2, 3, 4", ""));
    let refused = keep(&place, &[]);
    assert!(
        refused.status == Some(2)
            && refused
                .stderr
                .contains("the trials to keep ran with several programs")
            && refused
                .stderr
                .contains("`train.sh` is another than launch 1's")
            && refused.stderr.contains("add `--across programs`"),
        "{refused:?}"
    );
    let all = keep(&place, &across);
    assert!(
        all.status == Some(0)
            && all
                .stderr
                .contains("the kept trials ran with several programs ("),
        "{all:?}"
    );
    assert_eq!(place.column("launch"), ["1", "1", "2", "3"]);
    assert_eq!(place.run_file()["kept_from"]["programs_from"], 2);
    // These rows are all of the program of now.
    place.write_command(PROGRAM, &sweep("3, 4, 5", ""));
    let newest = keep(&place, &[]);
    assert!(
        newest.status == Some(0) && !newest.stderr.contains("several programs"),
        "{newest:?}"
    );
    assert_eq!(place.column("launch"), ["2", "3", "4"]);
    place.write_command(PROGRAM, &sweep("3, 4, 5, 6", ""));
    let fresh = place.run("", &[]);
    let told = "--across programs` keeps 3 completed of its 3 trials";
    assert!(fresh.stderr.contains(told), "{fresh:?}");
}

#[test]
fn a_changed_sweep_names_the_option_and_what_it_would_save() {
    let place = Place::with(TWO);
    place.run("completes", &["--only", &place.first_id()]);
    place.write(THREE);
    let refused = place.run("completes", &[]);
    let told = "or start a new one with `--fresh`\n  `kiln run x.yaml --keep x` keeps 1 of its 2 \
                trials\n";
    assert!(
        refused.status == Some(2) && refused.stderr.contains(told),
        "{refused:?}"
    );
    let with_variable = place
        .kiln(&["run", "x.yaml", "--dry-run", "--set", "description=a"])
        .env("KILN_RUN__ON", "here")
        .output();
    let dry = Ended::of(with_variable.unwrap());
    let told = "`kiln run x.yaml --set description=a --keep x` with the same value of `KILN_RUN__ON` \
                keeps 1 of its 2 trials\n";
    let all = dry.stdout.clone() + &dry.stderr;
    assert!(all.contains(told), "{dry:?}");
    let told = "or start a new one with `--fresh`";
    let workers = place.run("completes", &["--on", "workers"]).stderr;
    assert!(
        workers.contains(told) && !workers.contains("--keep"),
        "{workers}"
    );
    place.write(TWO);
    place.run("completes", &[]);
    place.write(THREE);
    let ended = place.run("completes", &[]);
    let told = ["; starting a new run\n", "`kiln run x.yaml --keep x/2"];
    assert!(
        told.iter().all(|words| ended.stderr.contains(words))
            && ended.stderr.contains("` keeps 2 of its 2 trials\n"),
        "{ended:?}"
    );
    place.write("train: {steps: 20}");
    let other = place.run("completes", &[]);
    assert!(!other.stderr.contains("--keep"), "{other:?}");
}

#[test]
fn no_more_trials_are_kept_than_the_run_has_where_its_record_lacks_some() {
    let place = Place::with(THREE);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let path = place.latest().join("run.json");
    let mut record = place.run_file();
    record["plan"].as_array_mut().unwrap().truncate(1);
    fs::write(&path, record.to_string()).unwrap();
    let report = kiln(&place, &["report", "x"]);
    let told = "the plan in `run.json` does not have the trials of 2 rows (the first: trial t";
    assert!(
        report.status == Some(0) && report.stderr.contains(told),
        "{report:?}"
    );
    let four = THREE.replace("[1, 2, 4]", "[1, 2, 4, 8]");
    place.write(&four);
    let ended = place.run("completes", &[]);
    assert!(
        ended.stderr.contains("keeps 3 of its 3 trials"),
        "{ended:?}"
    );
}
