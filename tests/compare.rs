//! `kiln compare` and `kiln reproduce` as a user sees them: on committed tables, in git revisions,
//! and after real runs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::scripted_child::{Ended, Place, real_trial};
use serde_json::Value;

fn results(name: &str) -> String {
    fs::canonicalize(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("results")
            .join(name),
    )
    .unwrap()
    .display()
    .to_string()
}

fn kiln(folder: &Path, arguments: &[&str]) -> Ended {
    Ended::of(
        Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(arguments)
            .current_dir(folder)
            .output()
            .unwrap(),
    )
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut git = Command::new("git");
    git.args([
        "-c",
        "user.name=k",
        "-c",
        "user.email=k@example.org",
        "-c",
        "commit.gpgsign=false",
    ])
    .args(arguments);
    assert!(
        git.current_dir(folder).output().unwrap().status.success(),
        "git {arguments:?}"
    );
}

fn compare(arguments: &[&str]) -> Ended {
    kiln(Path::new("."), &[&["compare"], arguments].concat())
}

/// A copy of a committed run with its table rewritten.
fn changed(folder: &Path, name: &str, change: impl Fn(&str) -> String) -> String {
    let copy = folder.join("changed");
    fs::create_dir_all(&copy).unwrap();
    let from = PathBuf::from(results(name)).join("latest");
    for file in ["run.json", "experiment.yaml"] {
        fs::copy(from.join(file), copy.join(file)).unwrap();
    }
    fs::write(
        copy.join("trials.csv"),
        change(&fs::read_to_string(from.join("trials.csv")).unwrap()),
    )
    .unwrap();
    copy.display().to_string()
}

/// The rows some minutes apart, so that those of a copy that begins later ran in turns with them,
/// and not at the same time.
fn in_turns(table: &str, later_seconds: u64) -> String {
    let row = std::cell::Cell::new(0);
    with_column(table, "started_utc", |_| {
        let seconds = 120 * row.replace(row.get() + 1) + later_seconds;
        format!(
            "2026-01-01T{:02}:{:02}:{:02}Z",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60
        )
    })
}

/// Every cell of a column, changed.
fn with_column(table: &str, column: &str, change: impl Fn(&str) -> String) -> String {
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let head = reader.headers().unwrap().clone();
    let place = head.iter().position(|name| name == column).unwrap();
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&head).unwrap();
    for record in reader.records() {
        let record = record.unwrap();
        writer
            .write_record(record.iter().enumerate().map(|(at, cell)| {
                if at == place {
                    change(cell)
                } else {
                    cell.to_owned()
                }
            }))
            .unwrap();
    }
    String::from_utf8(writer.into_inner().unwrap()).unwrap()
}

#[test]
fn a_run_compared_with_itself_is_the_same_and_with_a_slower_one_slower() {
    let folder = tempfile::tempdir().unwrap();
    let base = results("image-folder-workers");
    let same = compare(&[&base, &base]);
    assert_eq!(same.status, Some(0), "{same:?}");
    assert!(
        same.stdout.contains("\nthe records of both agree"),
        "{same:?}"
    );
    assert!(
        same.stdout
            .contains("losses equal to the bit: 18 of 18 trials that both tables have"),
        "{same:?}"
    );
    assert!(same.stdout.contains("\nthroughput: 6 same\n"), "{same:?}");

    let rate = |cell: &str| (cell.parse::<f64>().unwrap() * 0.7).to_string();
    let slow = changed(
        &folder.path().join("slow"),
        "image-folder-workers",
        |table| with_column(&in_turns(table, 60), "samples_per_second", rate),
    );
    let at_once = changed(
        &folder.path().join("at-once"),
        "image-folder-workers",
        |table| with_column(table, "samples_per_second", rate),
    );
    let told = compare(&[&base, &at_once, "--fail-on", "slower"]);
    assert_eq!(told.status, Some(4), "{told:?}");
    assert!(
        told.stdout.contains(
            "order: the two sides ran at the same time on one machine and disturbed each other"
        ),
        "{told:?}"
    );
    let base = changed(
        &folder.path().join("base"),
        "image-folder-workers",
        |table| in_turns(table, 0),
    );
    let slower = compare(&[&base, &slow, "--fail-on", "slower"]);
    assert_eq!(slower.status, Some(1), "{slower:?}");
    assert!(
        slower.stdout.contains("throughput: 6 slower\n"),
        "{slower:?}"
    );
    assert!(
        slower.stdout.contains("           40   slower") && slower.stdout.contains("-30.0 %"),
        "{slower:?}"
    );
    assert_eq!(
        compare(&[&base, &slow]).status,
        Some(0),
        "a verdict is no failure unless asked for"
    );
    assert_eq!(
        compare(&[&base, &slow, "--fail-on", "worse-loss,more-memory,missing"]).status,
        Some(0)
    );
    assert_eq!(
        compare(&[&slow, &base, "--fail-on", "slower"]).status,
        Some(0),
        "the other way round it is faster"
    );

    let csv = compare(&[&base, &slow, "--format", "csv"]);
    let rows: Vec<csv::StringRecord> = csv::Reader::from_reader(csv.stdout.as_bytes())
        .records()
        .map(Result::unwrap)
        .collect();
    assert!(
        rows.len() >= 6
            && rows.iter().any(|row| &row[0] == "data.num_workers 0"
                && &row[1] == "throughput"
                && &row[2] == "slower"),
        "{csv:?}"
    );
    let json: Value =
        serde_json::from_str(&compare(&[&base, &slow, "--format", "json"]).stdout).unwrap();
    assert_eq!(
        (
            &json["pairs"][0]["comparisons"][0]["verdict"],
            &json["facts"]
        ),
        (&"worse".into(), &serde_json::json!([]))
    );
    let markdown = compare(&[&base, &slow, "--format", "markdown"]).stdout;
    assert!(
        markdown.starts_with("# throughput: 6 slower\n")
            && markdown.contains("| \\* | 0 | slower |"),
        "{markdown}"
    );
}

#[test]
fn rows_that_cannot_be_compared_are_refused_by_name_or_compared_across_it() {
    let folder = tempfile::tempdir().unwrap();
    let base = results("image-folder-workers");
    // A run of two versions of libtorch: no one value is the treatment.
    let is_first = std::cell::Cell::new(true);
    let other = changed(folder.path(), "image-folder-workers", |table| {
        // Other runs than those of the base.
        let other = with_column(table, "started_utc", |cell| cell.replace("11-21", "11-22"));
        with_column(&other, "libtorch", |cell| match is_first.replace(false) {
            true => cell.to_owned(),
            false => "2.12.0".to_owned(),
        })
    });
    let refused = compare(&[&base, &other]);
    assert_eq!(refused.status, Some(1), "{refused:?}");
    assert!(
        refused.stdout.contains(
            "not comparable: data.num_workers 0: libtorch 2.11.0 → 2.11.0 and 2.12.0; `--across \
             libtorch` compares them anyway"
        ),
        "{refused:?}"
    );
    let asked = compare(&[&base, &other, "--across", "libtorch"]);
    assert_eq!(asked.status, Some(0), "{asked:?}");
    assert!(
        asked.stdout.contains(
            "\nACROSS libtorch 2.11.0 → 2.11.0 and 2.12.0, ACROSS libtorch 2.11.0 → 2.12.0: "
        ),
        "{asked:?}"
    );
    let mixed = compare(&[&base, &other, "--fail-on", "not-comparable"]);
    assert_eq!(mixed.status, Some(1), "{mixed:?}");
    // Where the whole run has another version, that is what is compared; a gate asks for it.
    let upgraded = changed(
        &folder.path().join("whole"),
        "image-folder-workers",
        |table| with_column(table, "libtorch", |_| "2.12.0".into()),
    );
    let told = compare(&[&base, &upgraded]);
    assert!(
        told.status == Some(0)
            && told
                .stdout
                .contains("\ntreatment: libtorch: 2.11.0 → 2.12.0\n"),
        "{told:?}"
    );
    let gate = compare(&[&base, &upgraded, "--fail-on", "more-memory"]);
    assert!(
        gate.status == Some(4)
            && gate
                .stderr
                .contains("`--across libtorch` makes that the question"),
        "{gate:?}"
    );
    for (across, status) in [("libtorch", 0), ("libtorch,train.precision", 0)] {
        let arguments: [&str; 6] = [
            &base,
            &upgraded,
            "--fail-on",
            "more-memory",
            "--across",
            across,
        ];
        assert_eq!(compare(&arguments).status, Some(status), "{across}");
    }
    let unknown = compare(&[&base, &other, "--across", "libtroch"]);
    assert!(
        unknown.status == Some(2)
            && unknown
                .stderr
                .contains("one of device_name, processor, power_limit_watts"),
        "{unknown:?}"
    );
}

#[test]
fn runs_of_different_settings_match_by_named_axes_alone() {
    let (grid, again) = (results("tune-workers-grid"), results("tune-workers-rerun"));
    // The same settings have the same ids in whatever sweep.
    let by_id = compare(&[&grid, &again]);
    assert_eq!(by_id.status, Some(0), "{by_id:?}");
    assert!(
        by_id.stdout.contains("only in base: data.num_workers 0; "),
        "{by_id:?}"
    );
    assert!(
        by_id
            .stdout
            .contains("a verdict needs 3 runs of a point on both sides"),
        "{by_id:?}"
    );
    assert!(
        by_id.stdout.contains("experiment.sweep."),
        "what differs in the experiments is said first: {by_id:?}"
    );
    let foreign = compare(&[&grid, &results("quickstart-2core-xeon")]);
    assert!(
        foreign.status == Some(2) && foreign.stderr.contains("no trial id is in both"),
        "{foreign:?}"
    );
    let named = compare(&[
        &results("image-folder-workers"),
        &again,
        "--by",
        "data.num_workers",
        "--across",
        "processor",
    ]);
    assert!(
        named.status == Some(0)
            && named.stdout.contains("\n   num_workers  verdict  ")
            && named.stdout.contains("\n             1   faster  "),
        "{named:?}"
    );
    let vague = compare(&[
        &results("quickstart-2core-xeon"),
        &results("quickstart-2core-xeon"),
        "--by",
        "train.batch_size",
    ]);
    assert!(
        vague.status == Some(2)
            && vague
                .stderr
                .contains("name further axes in `--by`, such as `data.num_workers`"),
        "{vague:?}"
    );
}

#[test]
fn a_git_revision_can_be_named_and_links_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| git(folder.path(), arguments);
    let run = folder.path().join("results/x/20260101T000000Z-abc");
    fs::create_dir_all(&run).unwrap();
    let from = PathBuf::from(results("image-folder-workers")).join("latest");
    for file in ["run.json", "experiment.yaml", "trials.csv"] {
        fs::copy(from.join(file), run.join(file)).unwrap();
    }
    let table = fs::read_to_string(run.join("trials.csv")).unwrap();
    fs::write(run.join("trials.csv"), in_turns(&table, 0)).unwrap();
    std::os::unix::fs::symlink(
        "20260101T000000Z-abc",
        folder.path().join("results/x/latest"),
    )
    .unwrap();
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "one"]);
    let rate = |cell: &str| (cell.parse::<f64>().unwrap() * 2.0).to_string();
    fs::write(
        run.join("trials.csv"),
        with_column(&in_turns(&table, 60), "samples_per_second", rate),
    )
    .unwrap();
    git(&["commit", "-qam", "two"]);
    for named in [
        "HEAD~1:results/x/latest",
        "HEAD~1:results/x",
        "HEAD~1:results/x/latest/trials.csv",
        "HEAD~1:results/x/latest/run.json",
        "HEAD~1:results/x/20260101T000000Z-abc/experiment.yaml",
        "HEAD~1:x",
    ] {
        let ended = kiln(folder.path(), &["compare", named, "results/x/latest"]);
        assert!(
            ended.status == Some(0) && ended.stdout.contains("throughput: 6 faster"),
            "{named}: {ended:?}"
        );
        assert!(
            ended
                .stdout
                .contains("base: HEAD~1:results/x/20260101T000000Z-abc/trials.csv"),
            "{named}: {ended:?}"
        );
    }
    // Without the link, which git need not keep, the newest run is meant.
    fs::remove_file(folder.path().join("results/x/latest")).unwrap();
    git(&["commit", "-qam", "three"]);
    let unlinked = [
        "HEAD:results/x/latest",
        "results/x/latest",
        "results/x/latest/trials.csv",
    ];
    for named in unlinked {
        let ended = kiln(
            folder.path(),
            &["compare", "HEAD~2:results/x/latest", named],
        );
        assert!(
            ended.status == Some(0) && ended.stdout.contains("throughput: 6 faster"),
            "{named}: {ended:?}"
        );
    }
    git(&["reset", "-q", "--hard", "HEAD~1"]);
    // A path with a dot is meant from where one stands.
    let below = kiln(
        &folder.path().join("results"),
        &["compare", "HEAD~1:./x/latest", "x/latest"],
    );
    assert!(
        below.status == Some(0) && below.stdout.contains("throughput: 6 faster"),
        "{below:?}"
    );
    let nowhere = tempfile::tempdir().unwrap();
    let outside = kiln(nowhere.path(), &["compare", "HEAD:x", "HEAD:y"]);
    assert!(
        outside
            .stderr
            .contains("`HEAD` is not a git revision here (fatal: not a git repository"),
        "{outside:?}"
    );
    for (named, said) in [
        ("HEAD~9:results/x", "`HEAD~9` is not a git revision here"),
        ("HEAD:results/y", "the path does not exist in that revision"),
        ("HEAD:../x", "the path does not exist in that revision"),
        ("HEAD:results", "it holds no `trials.csv`"),
        (
            "HEAD",
            "; `HEAD` is a git revision: name a run in it, such as",
        ),
        ("--output=x:y", ""),
    ] {
        let ended = kiln(folder.path(), &["compare", named, "results/x/latest"]);
        assert!(
            ended.status == Some(2) && ended.stderr.contains(said),
            "{named}: {ended:?}"
        );
    }
    for command in ["watch", "wait", "rm"] {
        let ended = kiln(folder.path(), &[command, "HEAD:results/x"]);
        let said =
            "HEAD:results/x: it names a run in a git revision, and a run in the working tree";
        assert!(
            ended.status == Some(2) && ended.stderr.contains(said),
            "{command}: {ended:?}"
        );
    }
}

/// A repository with a committed copy of a run, under `results/x`.
fn committed_run(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_run(folder.path(), name, 0);
    let git = |arguments: &[&str]| git(folder.path(), arguments);
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "one"]);
    folder
}

/// A copy of a run under `results/x`, whose trials began so much later.
fn copy_run(folder: &Path, name: &str, later_seconds: u64) -> PathBuf {
    let run = folder.join("results/x").join(name);
    fs::create_dir_all(&run).unwrap();
    let from = PathBuf::from(results("image-folder-workers")).join("latest");
    for file in ["run.json", "experiment.yaml"] {
        fs::copy(from.join(file), run.join(file)).unwrap();
    }
    let table = fs::read_to_string(from.join("trials.csv")).unwrap();
    fs::write(run.join("trials.csv"), in_turns(&table, later_seconds)).unwrap();
    run
}

#[test]
fn a_file_that_git_cannot_read_is_not_taken_for_missing() {
    let name = "20260101T000000Z-abc";
    let folder = committed_run(name);
    let compare = || {
        let base = format!("HEAD:results/x/{name}");
        kiln(folder.path(), &["compare", &base, "results/x"])
    };
    assert_eq!(compare().status, Some(0));
    let object = Command::new("git")
        .args(["rev-parse", &format!("HEAD:results/x/{name}/run.json")])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let object = String::from_utf8(object.stdout).unwrap();
    let (first, rest) = object.trim().split_at(2);
    fs::remove_file(folder.path().join(".git/objects").join(first).join(rest)).unwrap();
    let ended = compare();
    assert!(
        ended.status == Some(2) && ended.stderr.contains("git cannot read it: "),
        "{ended:?}"
    );
}

#[test]
fn a_table_that_git_lfs_keeps_is_read_in_a_revision() {
    let name = "20260101T000000Z-abc";
    let folder = committed_run(name);
    let table = folder
        .path()
        .join("results/x")
        .join(name)
        .join("trials.csv");
    let whole = fs::read_to_string(&table).unwrap();
    fs::write(folder.path().join("kept"), &whole).unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    fs::write(&table, pointer).unwrap();
    fs::write(folder.path().join(".gitattributes"), "*.csv filter=lfs\n").unwrap();
    git(folder.path(), &["add", "-A"]);
    git(folder.path(), &["commit", "-qm", "two"]);
    fs::write(&table, whole).unwrap();
    let settings = folder.path().join("settings");
    let compare = |base: &str| {
        let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
        kiln.args(["compare", base, "results/x"])
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", &settings)
            .current_dir(folder.path());
        Ended::of(kiln.output().unwrap())
    };
    let base = format!("HEAD:results/x/{name}");
    fs::write(&settings, "").unwrap();
    let without = compare(&base);
    assert!(
        without.status == Some(2) && without.stderr.contains("`git lfs fetch --all`"),
        "{without:?}"
    );
    let program = "cat >/dev/null; echo x >>ran; cat kept";
    let own = format!("[filter \"lfs\"]\n\tsmudge = \"{program}\"\n");
    fs::write(&settings, own).unwrap();
    // A file that is whole in the commit does not need the filter.
    assert_eq!(compare(&format!("HEAD~1:results/x/{name}")).status, Some(0));
    let ran = folder.path().join("ran");
    assert!(!ran.exists());
    let with = compare(&base);
    assert!(with.status == Some(0) && ran.exists(), "{with:?}");
    // The settings of a repository may come from somebody else.
    fs::remove_file(&ran).unwrap();
    git(folder.path(), &["config", "filter.lfs.smudge", program]);
    let foreign = compare(&base);
    assert!(
        foreign.status == Some(2) && foreign.stderr.contains("does not run `filter.lfs.smudge`"),
        "{foreign:?}"
    );
    assert!(!ran.exists());
}

/// Writes the place of a run among those of its experiment into its record.
fn number_run(run: &Path, number: u64) {
    let path = run.join("run.json");
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    record["number"] = number.into();
    fs::write(path, record.to_string()).unwrap();
}

#[test]
fn the_newest_run_of_a_clean_tree_is_that_of_its_commit() {
    let folder = tempfile::tempdir().unwrap();
    // The clock of the first was ahead, and the newest was renamed.
    for (number, name) in [
        (1, "20300101T000000Z-abc"),
        (2, "20260101T000000Z-abc"),
        (3, "kept"),
    ] {
        number_run(&copy_run(folder.path(), name, 60 * number), number);
    }
    let git = |arguments: &[&str]| git(folder.path(), arguments);
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "one"]);
    for named in ["results/x", "results/x/latest"] {
        let ended = kiln(folder.path(), &["compare", &format!("HEAD:{named}"), named]);
        assert!(
            ended
                .stdout
                .contains("base: HEAD:results/x/kept/trials.csv")
                && ended.stdout.contains("new:  results/x/kept/trials.csv")
                && ended.stdout.contains("BASE and NEW are one run"),
            "{named}: {ended:?}"
        );
    }
}

#[test]
fn an_old_link_to_the_latest_run_is_not_followed() {
    let (old, new) = ("20260101T000000Z-abc", "20260102T000000Z-abc");
    let folder = committed_run(old);
    let link = folder.path().join("results/x/latest");
    std::os::unix::fs::symlink(old, &link).unwrap();
    // As `git pull` brings it: the link stays. One commit has the old link too.
    number_run(&copy_run(folder.path(), new, 60), 7);
    let git = |arguments: &[&str]| git(folder.path(), arguments);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "two"]);
    for new_side in [
        "results/x/latest",
        "results/x/latest/trials.csv",
        "HEAD:results/x/latest",
    ] {
        let ended = kiln(
            folder.path(),
            &["compare", "HEAD~1:results/x/latest", new_side],
        );
        assert!(
            ended
                .stdout
                .contains(&format!("base: HEAD~1:results/x/{old}/trials.csv"))
                && ended
                    .stdout
                    .contains(&format!("results/x/{new}/trials.csv"))
                && ended.stderr.contains("` points to an older run"),
            "{new_side}: {ended:?}"
        );
    }
    let report = kiln(folder.path(), &["diff", "results/x/latest", "x"]);
    assert!(
        report
            .stderr
            .contains("the newest one, 20260102T000000Z-abc, is read"),
        "{report:?}"
    );
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(new, &link).unwrap();
    let fresh = kiln(folder.path(), &["report", "results/x/latest"]);
    assert!(!fresh.stderr.contains("older run"), "{fresh:?}");
}

#[test]
fn a_bare_revision_and_a_submodule_are_named() {
    let folder = committed_run("20260101T000000Z-abc");
    let git = |arguments: &[&str]| git(folder.path(), arguments);
    git(&["tag", "v1"]);
    let entry = format!("160000,{},elsewhere", "1".repeat(40));
    git(&["update-index", "--add", "--cacheinfo", &entry]);
    git(&["commit", "-qm", "two"]);
    for (named, said) in [
        ("v1", "such as `v1:results/NAME/latest`"),
        ("HEAD:elsewhere/results/x", "`elsewhere` is a submodule"),
    ] {
        for verb in ["compare", "diff"] {
            let ended = kiln(folder.path(), &[verb, named, "results/x"]);
            assert!(
                ended.status == Some(2) && ended.stderr.contains(said),
                "{verb} {named}: {ended:?}"
            );
        }
    }
    let other = kiln(folder.path(), &["compare", "v2", "results/x"]);
    assert!(!other.stderr.contains("git revision"), "{other:?}");
}

#[test]
fn a_shallow_clone_is_named_where_it_lacks_a_revision() {
    let folder = committed_run("20260101T000000Z-abc");
    let clones = tempfile::tempdir().unwrap();
    git(
        folder.path(),
        &["commit", "-q", "--allow-empty", "-m", "two"],
    );
    let url = format!("file://{}", folder.path().display());
    git(
        clones.path(),
        &["clone", "-q", "--depth", "1", &url, "shallow"],
    );
    let base = "HEAD~1:results/x";
    let ended = kiln(
        &clones.path().join("shallow"),
        &["compare", base, "results/x"],
    );
    assert!(
        ended.status == Some(2)
            && ended
                .stderr
                .contains("not a git revision here (this clone is shallow"),
        "{ended:?}"
    );
    let whole = kiln(folder.path(), &["compare", base, "results/x"]);
    assert_eq!(whole.status, Some(0), "{whole:?}");
}

#[test]
fn of_many_points_the_first_two_hundred_are_listed() {
    const POINTS: u64 = 250;
    let folder = tempfile::tempdir().unwrap();
    let table = fs::read_to_string(
        PathBuf::from(results("image-folder-workers")).join("latest/trials.csv"),
    )
    .unwrap();
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let head = reader.headers().unwrap().clone();
    let row = reader.records().next().unwrap().unwrap();
    let place = |name: &str| head.iter().position(|column| column == name).unwrap();
    let (id, number, rate) = (place("trial"), place("number"), place("samples_per_second"));
    let workers = [place("data.num_workers"), place("num_workers")];
    let started = place("started_utc");
    let write = |name: &str, factor: f64| {
        let path = folder.path().join(name);
        let mut writer = csv::Writer::from_path(&path).unwrap();
        writer.write_record(&head).unwrap();
        for trial in 0..5 * POINTS {
            let wobble = 1.0 + (trial * 7919 % 100) as f64 * 1e-4;
            let cell = |place: usize, cell: &str| match place {
                _ if place == id => format!("{trial:010x}"),
                _ if place == number => (trial + 1).to_string(),
                // All rows are of one moment, which says nothing of their order.
                _ if place == started => String::new(),
                _ if place == rate => (100.0 * factor * wobble).to_string(),
                _ if workers.contains(&place) => (trial / 5).to_string(),
                _ => cell.to_owned(),
            };
            writer
                .write_record(
                    row.iter()
                        .enumerate()
                        .map(|(place, text)| cell(place, text)),
                )
                .unwrap();
        }
        writer.flush().unwrap();
        path.display().to_string()
    };
    let ended = compare(&[&write("base.csv", 1.0), &write("new.csv", 0.9)]);
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("throughput: 250 slower")
            && ended.stdout.contains("and 50 points more"),
        "{}",
        ended.stdout
    );
}

/// A short training of two batch sizes.
const TWO_BATCHES: &str = "kiln: 1\nname: x\nmodel: {kind: mlp, d_model: 16, hidden: 32, context: 4, seq_len: \
     16}\ndata: {kind: generated, characters: 50000}\ntrain: {steps: 30, cpu_threads: 1}\nmeasure: {warmup_steps: 3, \
     warmup_seconds: 0.0}\nsweep: {grid: {train.batch_size: [4, 8]}}\n";

/// Runs kiln with the real program of trials.
fn trained(place: &Place, arguments: &[&str]) -> Ended {
    Ended::of(
        place
            .kiln(arguments)
            .env("KILN_TRIAL", real_trial())
            .output()
            .unwrap(),
    )
}

#[test]
fn a_run_is_reproduced_with_the_losses_it_had() {
    let place = Place::with("");
    fs::write(place.path("x.yaml"), TWO_BATCHES).unwrap();
    let kiln = |arguments: &[&str]| trained(&place, arguments);
    let first = kiln(&["run", "x.yaml"]);
    assert_eq!(first.status, Some(0), "{first:?}");
    // What the file says by now is not asked.
    fs::write(place.path("x.yaml"), "gone").unwrap();
    let again = kiln(&["reproduce", "results/x/latest"]);
    assert_eq!((again.status, place.runs()), (Some(0), 2), "{again:?}");
    assert!(
        again
            .stdout
            .contains("losses equal to the bit: 2 of 2 trials that both tables have"),
        "{again:?}"
    );
    assert!(again.stdout.contains("too few runs"), "{again:?}");
    let closing = "reproduced: all 2 trials have the losses of the record to the bit; speed: no \
                   change found, but 2 of 2 points cannot be shown to be unchanged";
    assert_eq!(again.stdout.lines().last(), Some(closing), "{again:?}");
    assert!(
        again.stderr.contains(
            "experiment, code, programs, machine and data are unchanged since the recorded run"
        ),
        "{again:?}"
    );
    let elsewhere = kiln(&["reproduce", "results/x/latest", "--on", "slurm"]);
    assert!(
        elsewhere.status == Some(2)
            && elsewhere.stderr.contains("runs on this machine")
            && place.runs() == 2,
        "{elsewhere:?}"
    );
    let dry = kiln(&["reproduce", "results/x/latest", "--dry-run"]);
    assert!(
        dry.status == Some(0) && dry.stdout.contains("2 of 2 trials would run"),
        "{dry:?}"
    );
    for json in [&["--json"][..], &["--format", "json"]] {
        let dry = kiln(&[&["reproduce", "results/x/latest", "--dry-run"], json].concat());
        let event: Value = serde_json::from_str(&dry.stdout).unwrap();
        assert_eq!(
            (&event["event"], &event["trials"]),
            (&"dry_run".into(), &2.into())
        );
    }
    // The status is that of the sentence.
    let latest = fs::canonicalize(place.path("results/x/latest")).unwrap();
    let recorded = |name: &str, factor: f64| {
        let copy = place.path(name);
        fs::create_dir_all(&copy).unwrap();
        for file in ["run.json", "experiment.yaml"] {
            fs::copy(latest.join(file), copy.join(file)).unwrap();
        }
        let loss = |cell: &str| (cell.parse::<f64>().unwrap() * factor).to_string();
        fs::write(
            copy.join("trials.csv"),
            with_column(
                &fs::read_to_string(latest.join("trials.csv")).unwrap(),
                "train_loss",
                loss,
            ),
        )
        .unwrap();
    };
    recorded("other", 1.01);
    recorded("rounded", 1.000_001);
    let statuses = [
        (
            &["other"][..],
            1,
            "not reproduced: 0 of 2 trials have the same losses, the others are up to 1.0 % apart",
        ),
        (&["other", "--cannot-tell", "pass"], 1, "not reproduced: "),
        (
            &["rounded"],
            4,
            "cannot tell whether it is reproduced: 0 of 2 trials have the same losses to the bit",
        ),
        (
            &["rounded", "--cannot-tell", "pass"],
            0,
            "cannot tell whether it is reproduced: ",
        ),
        (
            &["rounded", "--cannot-tell", "fail"],
            1,
            "cannot tell whether it is reproduced: ",
        ),
    ];
    for (arguments, status, said) in statuses {
        let ended = kiln(&[&["reproduce"], arguments].concat());
        assert!(
            ended.status == Some(status) && ended.stdout.lines().last().unwrap().starts_with(said),
            "{arguments:?}: {ended:?}"
        );
    }
    let runs = place.runs();
    let other = kiln(&[
        "reproduce",
        "results/x",
        "--set",
        "train.optimizer.learning_rate=0.5",
        "--progress",
        "plain",
    ]);
    assert!(
        other.status == Some(2) && other.stderr.contains("no trial id would match"),
        "other settings are another trial: {other:?}"
    );
    assert_eq!(place.runs(), runs, "and nothing is run for it");
    let table = kiln(&["reproduce", "x.yaml"]);
    assert_eq!(table.status, Some(2), "{table:?}");
}

#[test]
fn runs_that_differ_by_a_setting_are_compared_and_the_setting_is_named() {
    let place = Place::with("");
    fs::write(place.path("x.yaml"), TWO_BATCHES).unwrap();
    let kiln = |arguments: &[&str]| trained(&place, arguments);
    let run = |settings: &[&str]| {
        let ended = kiln(&[&["run", "x.yaml", "--fresh"], settings].concat());
        assert_eq!(ended.status, Some(0), "{ended:?}");
    };
    run(&[]);
    run(&["--set", "train.steps=60"]);
    let alone = kiln(&["compare", "x"]);
    let told = "name the run to compare with: `kiln compare x~1 x`, or the axis";
    assert!(
        alone.status == Some(2) && alone.stderr.contains(told),
        "{alone:?}"
    );
    let longer = kiln(&["compare", "x~1", "x"]);
    assert_eq!(longer.status, Some(0), "{longer:?}");
    for said in [
        "\ntreatment: train.steps: 30 → 60\n",
        "\nloss (valid_loss)\n",
        "\n\nnot compared: train.batch_size 4: it was reached after 120 samples in base and 240 in \
         new\nnot compared: train.batch_size 8: it was reached after 240 samples in base and 480 in \
         new\n",
        "none (1 run)",
        "2 too few runs: change ",
    ] {
        assert!(longer.stdout.contains(said), "{said}: {longer:?}");
    }
    let gate = |across: &[&str]| {
        let arguments = ["compare", "x~1", "x", "--fail-on", "more-memory"];
        kiln(&[&arguments, across].concat())
    };
    let unasked = gate(&[]);
    assert!(
        unasked.status == Some(4)
            && unasked
                .stderr
                .contains("the runs differ in train.steps; `--across train.steps` makes that"),
        "{unasked:?}"
    );
    let asked = gate(&["--across", "train.steps"]);
    assert!(
        asked.status == Some(4) && asked.stderr.contains("too few runs"),
        "{asked:?}"
    );
    let other = gate(&["--across", "train.precision"]);
    assert!(
        other.status == Some(4)
            && other.stderr.contains(
                "note: `--across train.precision`: it is not a setting in which these runs"
            ),
        "{other:?}"
    );
    let csv = kiln(&["compare", "x~1", "x", "--format", "csv"]).stdout;
    assert!(
        csv.lines().next().unwrap().contains(",treatment,")
            && csv.lines().nth(1).unwrap().contains(",train.steps,"),
        "{csv}"
    );
    // An axis of one run is a fixed setting of the other.
    run(&[
        "--set",
        "train.batch_size=8",
        "--set",
        "train.clip_norm=1.0",
    ]);
    let one = kiln(&["compare", "x~2", "x"]);
    assert!(
        one.status == Some(0)
            && one
                .stdout
                .contains("\ntreatment: train.clip_norm: (not set) → 1.0\n")
            && one.stdout.contains("only in base: train.batch_size 4\n"),
        "{one:?}"
    );
    // A different experiment has no treatment.
    run(&[
        "--set",
        "train={steps: 20, batch_size: 2, clip_norm: 1, grad_accumulation: 2, label_smoothing: \
         0.1, seed: 7}",
        "--set",
        "sweep.grid=null",
        "--set",
        "model.hidden=48",
    ]);
    let foreign = kiln(&["compare", "x~3", "x"]);
    assert!(
        foreign.status == Some(2)
            && foreign
                .stderr
                .contains("too many to be the treatment of one comparison"),
        "{foreign:?}"
    );
}

#[test]
fn sides_that_cannot_be_compared_do_not_run_anew() {
    let place = Place::with("");
    let swept = |file: &str, sizes: &str| {
        let text = format!(
            "kiln: 1\nname: x\nmodel: {{kind: mlp, d_model: 16, hidden: 32, context: 4, seq_len: \
             16}}\ndata: {{kind: generated, characters: 50000}}\ntrain: {{steps: 20, cpu_threads: \
             1}}\nsweep: {{grid: {{train.batch_size: {sizes}}}}}\n"
        );
        fs::write(place.path(file), text).unwrap();
    };
    swept("small.yaml", "[2, 4]");
    swept("large.yaml", "[8, 16]");
    let six = [
        "model.d_model=8",
        "model.hidden=16",
        "model.context=2",
        "data.characters=60000",
        "train.steps=30",
        "train.clip_norm=1.0",
    ]
    .map(|setting| ["--new-set", setting])
    .concat();
    let cases: [(&str, &[&str], &str); 4] = [
        (
            "large.yaml",
            &[],
            "no trial id is in both runs: a setting differs in all trials",
        ),
        (
            "large.yaml",
            &["--new-set", "model.hidden=48"],
            "no point of one run has the values of a point of the other on every axis; no \
             single axis or column of settings matches their rows with `--by`",
        ),
        (
            "large.yaml",
            &["--by", "batch_size"],
            "no value of these keys is in both runs",
        ),
        (
            "small.yaml",
            &six,
            "they differ in 6 settings (data.characters, model.context, model.d_model, \
             model.hidden, train.clip_norm, and 1 more), too many",
        ),
    ];
    for (new, options, said) in cases {
        let asked = [&["compare", "--rerun", "small.yaml", new], options].concat();
        let ended = trained(&place, &asked);
        assert!(
            ended.status == Some(2) && ended.stderr.contains(said),
            "{options:?}: {ended:?}"
        );
    }
    assert!(!place.path("results").exists());
}

#[test]
fn a_rerun_of_one_side_is_refused() {
    let place = Place::with("");
    let refused = Ended::of(
        place
            .kiln(&["compare", "--rerun", "x.yaml"])
            .output()
            .unwrap(),
    );
    assert!(
        refused.status == Some(2) && refused.stderr.contains("`--rerun` needs two sides"),
        "{refused:?}"
    );
}

#[test]
fn both_sides_run_anew_in_turns() {
    let place = Place::with("");
    let text = "kiln: 1\nname: x\nmodel: {kind: mlp, d_model: 16, hidden: 32, context: 4, seq_len: \
                16}\ndata: {kind: generated, characters: 50000}\n\
                train: {batch_size: 4, steps: 20, cpu_threads: 1}\nmeasure: {warmup_steps: 3, \
                warmup_seconds: 0.0}\nsweep: {repeats: 3}\n";
    fs::write(place.path("x.yaml"), text).unwrap();
    let kiln = |arguments: &[&str]| trained(&place, arguments);
    let ended = kiln(&[
        "compare",
        "--rerun",
        "x.yaml",
        "x.yaml",
        "--new-set",
        "model.hidden=48",
        "--format",
        "json",
        "--fail-on",
        "not-comparable",
    ]);
    // What one side was set to is what the comparison is about: a gate need not be told.
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        found["treatment"],
        serde_json::json!([{"key": "model.hidden", "base": "32", "new": "48"}])
    );
    let comparison = &found["pairs"][0]["comparisons"][0];
    assert_eq!(
        (&comparison["design"], &comparison["base_runs"]),
        (&serde_json::json!({"paired": {"pairs": 3}}), &3.into()),
        "{ended:?}"
    );
    let turns: Vec<&str> = ended
        .stderr
        .lines()
        .filter_map(|line| {
            line.strip_prefix("rerun: ")?
                .split(": ")
                .nth(1)?
                .split(' ')
                .next()
        })
        .collect();
    assert_eq!(
        turns,
        ["base", "new", "new", "base", "base", "new"],
        "{ended:?}"
    );
    // What ran is kept, and can be compared again; a run can be named as well as a file.
    let rerun = fs::read_dir(place.path("results"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let side = |side: &str| {
        rerun
            .join(side)
            .join("x")
            .join("latest")
            .display()
            .to_string()
    };
    let again = kiln(&["compare", &side("base"), &side("new"), "--by", "model_kind"]);
    assert!(
        again.status == Some(0)
            && again.stdout.contains(
                "order: the two sides ran in turns; 3 pairs of neighboring runs are compared"
            ),
        "{again:?}"
    );
    let runs = kiln(&[
        "compare",
        "--rerun",
        &side("base"),
        &side("base"),
        "--results",
        "more",
        "--fail-on",
        "worse-loss",
    ]);
    assert!(
        runs.status == Some(0)
            && runs
                .stdout
                .contains("losses equal to the bit: 3 of 3 trials"),
        "{runs:?}"
    );
    let none = kiln(&[
        "compare",
        "--rerun",
        "x.yaml",
        "x.yaml",
        "--base-program",
        "no-such-program",
    ]);
    assert!(
        none.status == Some(2) && none.stderr.contains("name one with `--base-program`"),
        "{none:?}"
    );
    let without = kiln(&[
        "compare",
        "x.yaml",
        "x.yaml",
        "--new-set",
        "model.hidden=48",
    ]);
    assert!(
        without.status == Some(2) && without.stderr.contains("--rerun"),
        "{without:?}"
    );
}

#[test]
fn a_run_of_a_commit_is_reproduced_and_what_differs_is_told_first() {
    let place = Place::with("");
    let git = |arguments: &[&str]| git(&place.path("."), arguments);
    let text = "kiln: 1\nname: x\nmodel: {kind: mlp, d_model: 16, hidden: 32, context: 4, seq_len: \
                16}\ndata: {kind: generated, characters: 50000}\n\
                train: {batch_size: 4, steps: 20, cpu_threads: 1}\nmeasure: {warmup_steps: 3, \
                warmup_seconds: 0.0}\n";
    fs::write(place.path("x.yaml"), text).unwrap();
    git(&["init", "-q"]);
    git(&["add", "x.yaml"]);
    git(&["commit", "-qm", "one"]);
    let trial = real_trial();
    let kiln = |arguments: &[&str]| {
        Ended::of(
            place
                .kiln(arguments)
                .env("KILN_TRIAL", &trial)
                .env("OMP_PROC_BIND", "false")
                .output()
                .unwrap(),
        )
    };
    let first = Ended::of(
        place
            .kiln(&["run", "x.yaml"])
            .env("KILN_TRIAL", &trial)
            .output()
            .unwrap(),
    );
    assert_eq!(first.status, Some(0), "{first:?}");
    git(&["add", "-f", "results"]);
    git(&["commit", "-qm", "two"]);
    fs::remove_dir_all(place.path("results")).unwrap();
    let dry = kiln(&["reproduce", "HEAD:results/x/latest", "--dry-run"]);
    assert!(
        dry.status == Some(0) && dry.stdout.contains("1 of 1 trials would run"),
        "{dry:?}"
    );
    let lines: Vec<&str> = dry.stderr.lines().collect();
    assert!(
        lines[0].starts_with("HEAD:results/x/")
            && lines[0].ends_with("/trials.csv: changed since the recorded run:"),
        "{dry:?}"
    );
    assert!(
        lines[1].starts_with("  environment.OMP_PROC_BIND: (not set) → false")
            && lines[2].starts_with("  git.commit: "),
        "{dry:?}"
    );
    assert_eq!(lines.len(), 3, "{dry:?}");
    let again = kiln(&["reproduce", "HEAD:results/x/latest", "--progress", "plain"]);
    assert!(
        again.status == Some(0)
            && again
                .stdout
                .contains("losses equal to the bit: 1 of 1 trial "),
        "{again:?}"
    );
    assert!(
        again.stdout.starts_with("base: HEAD:results/x/")
            && again.stderr.find("git.commit") < again.stderr.find("trial "),
        "{again:?}"
    );
    let quiet = kiln(&["reproduce", "HEAD:results/x/latest", "--dry-run", "--quiet"]);
    assert_eq!(quiet.stderr, "", "{quiet:?}");
}

#[test]
fn a_number_that_is_missing_moves_no_comparison_to_another_column() {
    let folder = tempfile::tempdir().unwrap();
    let base = results("verdict-plain");
    // Worse losses, and one run without any: the rest are compared, and the page says who is
    // missing.
    let is_first = std::cell::Cell::new(true);
    let worse = changed(folder.path(), "verdict-plain", |table| {
        with_column(table, "valid_loss", |cell| {
            if is_first.replace(false) {
                String::new()
            } else {
                (cell.parse::<f64>().unwrap() * 1.5).to_string()
            }
        })
    });
    let ended = compare(&[&base, &worse, "--fail-on", "worse-loss"]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(
        ended.stdout.contains("loss (valid_loss)")
            && ended
                .stdout
                .contains("1 of 12 runs of new completed without a `valid_loss`"),
        "{ended:?}"
    );
    // Without a single loss the gate is not open.
    let none = |name: &'static str| move |table: &str| with_column(table, name, |_| String::new());
    let without = changed(folder.path(), "verdict-plain", |table| {
        none("train_loss")(&none("valid_loss")(table))
    });
    let ended = compare(&[&base, &without, "--fail-on", "worse-loss"]);
    assert_eq!(ended.status, Some(4), "{ended:?}");
    assert!(
        ended.stderr.contains(
            "gate worse-loss: cannot tell at 1 point: all trials (no loss on both sides)"
        ),
        "{ended:?}"
    );
    assert_eq!(
        compare(&[
            &base,
            &without,
            "--fail-on",
            "worse-loss",
            "--cannot-tell",
            "pass"
        ])
        .status,
        Some(0)
    );
    assert_eq!(
        compare(&[
            &base,
            &without,
            "--fail-on",
            "worse-loss",
            "--cannot-tell",
            "fail"
        ])
        .status,
        Some(1)
    );
    assert_eq!(compare(&[&base, &without]).status, Some(0));
}

#[test]
fn a_collapse_of_the_accuracy_fails_the_gates_about_it() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let with_top1 = |side: usize, accuracy: f64| {
        let row = std::cell::Cell::new(0_u32);
        changed(folders[side].path(), "verdict-plain", |table| {
            with_column(table, "valid_top1", |_| {
                row.set(row.get() + 1);
                (accuracy + 0.001 * f64::from(row.get() % 3)).to_string()
            })
        })
    };
    let (base, worse) = (with_top1(0, 0.99), with_top1(1, 0.49));
    for verdict in ["worse-accuracy", "worse"] {
        let ended = compare(&[&base, &worse, "--fail-on", verdict]);
        assert_eq!(ended.status, Some(1), "{ended:?}");
        let failed = format!("gate {verdict}: fail at 1 point");
        assert!(ended.stderr.contains(&failed), "{ended:?}");
        assert!(ended.stdout.contains("worse accuracy"), "{ended:?}");
    }
    // Of runs without an accuracy the gate is not open.
    let without = changed(folders[1].path(), "verdict-plain", |table| {
        with_column(table, "valid_top1", |_| String::new())
    });
    let plain = results("verdict-plain");
    let ended = compare(&[&plain, &without, "--fail-on", "worse-accuracy"]);
    assert_eq!(ended.status, Some(4), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("gate worse-accuracy: cannot tell: no accuracy was compared\n"),
        "{ended:?}"
    );
}

#[test]
fn a_last_line_without_its_end_is_left_out_aloud() {
    let folder = tempfile::tempdir().unwrap();
    let base = results("verdict-plain");
    let cut = changed(folder.path(), "verdict-plain", |table| {
        table.trim_end().trim_end_matches(',').to_owned()
    });
    let ended = compare(&[&base, &cut]);
    assert!(
        ended.stderr.contains(
            "trials.csv:13: the last line has no line feed and may be cut short, so it is dropped"
        ),
        "{ended:?}"
    );
    let told = Ended::of(
        Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(["report", &cut])
            .output()
            .unwrap(),
    );
    assert!(
        told.stderr
            .contains("trials.csv:13: the last line has no line feed"),
        "{told:?}"
    );
}
