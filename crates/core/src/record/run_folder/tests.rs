use super::*;

#[test]
fn a_run_appears_whole_and_latest_points_at_it_relatively() {
    let results = tempfile::tempdir().unwrap();
    let run = create(results.path(), "x", "20260101T000000Z-abc", |run| {
        fs::write(run.run_file(), "{}")
    })
    .unwrap();
    let again = create(results.path(), "x", "20260101T000000Z-abc", |run| {
        fs::write(run.run_file(), "{}")
    })
    .unwrap();
    assert_eq!(runs(results.path(), "x").unwrap(), [run, again.clone()]);
    assert_eq!(
        fs::read_link(results.path().join("x/latest")).unwrap(),
        Path::new(&again.name())
    );
    assert!(
        fs::read_to_string(results.path().join(".gitignore"))
            .unwrap()
            .contains("*/*/trials/")
    );
}

#[test]
fn the_list_of_an_older_version_is_replaced_and_a_changed_one_is_kept() {
    let results = tempfile::tempdir().unwrap();
    let path = results.path().join(".gitignore");
    let old = "# kiln commits run.json; the rest is large or local\n*/*/trials/\n\
               */*/samples.csv\n*/*/.reserve\n*/.new-*\n.kiln-lock\n";
    let written = |text: &str| {
        fs::write(&path, text).unwrap();
        write_gitignore(results.path()).unwrap();
        fs::read_to_string(&path).unwrap()
    };
    let new = written(old);
    assert!(new.contains(".kiln-lock\n*/latest\n"), "{new}");
    assert_eq!(written(&new), new);
    // An earlier version took nothing back, and a later one did not ignore drafts.
    let lines = || new.split_inclusive('\n');
    let without: String = lines().take_while(|line| !line.starts_with('!')).collect();
    let with_drafts = new.strip_suffix(".*.new\n").unwrap();
    assert_ne!(without, new);
    assert_eq!(written(&without), new);
    assert_eq!(written(with_drafts), new);
    for changed in [
        format!("{old}*/keep.csv\n"),
        old.replace("*/*/samples.csv\n", ""),
        "*.txt\n".to_owned(),
    ] {
        assert_eq!(written(&changed), changed);
    }
}

#[test]
fn a_copy_of_a_run_is_no_newer_run() {
    let results = tempfile::tempdir().unwrap();
    let add = |name: &str, number: u64| {
        let run = RunFolder(results.path().join("x").join(name));
        fs::create_dir_all(run.path()).unwrap();
        let text = format!("{{\"number\": {number}}}");
        fs::write(run.run_file(), text).unwrap();
    };
    let newest = || runs(results.path(), "x").unwrap().pop().unwrap().name();
    add("20260101T000000Z-abc", 1);
    for copy in [
        "20260101T000000Z-abc-backup",
        "20260101T000000Z-abc-2",
        "20260101T000000Z-abcold",
        "my copy",
        "zzz",
    ] {
        add(copy, 1);
    }
    assert_eq!(newest(), "20260101T000000Z-abc");
    // Two machines have given one number.
    add("20260102T000000Z-abc-2", 1);
    assert_eq!(newest(), "20260102T000000Z-abc-2");
    add("renamed", 2);
    assert_eq!(newest(), "renamed");
}

#[test]
fn a_run_whose_number_cannot_be_read_has_its_place_by_the_time_in_its_name() {
    let results = tempfile::tempdir().unwrap();
    let add = |name: &str, text: &str| {
        let run = RunFolder(results.path().join("x").join(name));
        fs::create_dir_all(run.path()).unwrap();
        fs::write(run.run_file(), text).unwrap();
    };
    // The number counts where there is one: a clock was once ahead.
    add("20300101T000000Z-abc", "{\"number\": 1}");
    add("20260101T000000Z-abc", "{\"number\": 2}");
    add("20260102T000000Z-abc", "{\"number\": 3");
    add("20260103T000000Z-abc", "{\"number\": 4}");
    add("20260103T000000Z-abc-2", "");
    add("20260103T000000Z-abc-copy", "");
    add("kept", "no JSON");
    fs::create_dir_all(results.path().join("x/20260104T000000Z-abc/run.json")).unwrap();
    let expected = [
        "kept",
        "20300101T000000Z-abc",
        "20260101T000000Z-abc",
        "20260102T000000Z-abc",
        "20260103T000000Z-abc-copy",
        "20260103T000000Z-abc",
        "20260103T000000Z-abc-2",
        "20260104T000000Z-abc",
    ];
    let all = runs(results.path(), "x").unwrap();
    let names: Vec<String> = all.iter().map(RunFolder::name).collect();
    assert_eq!(names, expected);
    assert_eq!(next_number(results.path(), "x").unwrap(), 5);
}

#[test]
fn a_folder_without_its_run_file_is_a_run_if_it_is_named_as_one() {
    let results = tempfile::tempdir().unwrap();
    for name in [
        "20260101T000000Z-abc",
        "20260101T000000Z-",
        "20260101T000000-abc",
        "notes",
        ".new-20260101T000000Z-abc",
    ] {
        fs::create_dir_all(results.path().join("x").join(name)).unwrap();
    }
    assert_eq!(
        runs(results.path(), "x").unwrap(),
        [RunFolder(results.path().join("x/20260101T000000Z-abc"))]
    );
}

#[test]
fn a_folder_with_nothing_but_what_git_ignores_is_no_run() {
    let results = tempfile::tempdir().unwrap();
    let add = |name: &str, parts: &[&str]| {
        let run = RunFolder(results.path().join("x").join(name));
        fs::create_dir_all(run.trials()).unwrap();
        for part in parts {
            fs::write(run.path().join(part), "").unwrap();
        }
        run
    };
    let tables_alone = add("20260101T000000Z-abc", &["trials.csv", "samples.csv"]);
    let worked_on = add("20260102T000000Z-abc", &[]);
    fs::create_dir(worked_on.path().join("queue")).unwrap();
    let left = add("20260103T000000Z-abc", &["samples.csv", ".gitignore"]);
    add("notes", &[]);
    assert_eq!(
        runs(results.path(), "x").unwrap(),
        [tables_alone, worked_on]
    );
    assert_eq!(leftovers(results.path(), "x").unwrap(), [left]);
}

#[test]
fn latest_is_repaired_wherever_it_points_and_a_folder_in_its_place_is_named() {
    let results = tempfile::tempdir().unwrap();
    let run = create(results.path(), "x", "20260101T000000Z-abc", |run| {
        fs::write(run.run_file(), "{}")
    })
    .unwrap();
    let latest = results.path().join("x/latest");
    for target in [None, Some("gone"), Some("20250101T000000Z-old")] {
        fs::remove_file(&latest).unwrap();
        if let Some(target) = target {
            std::os::unix::fs::symlink(target, &latest).unwrap();
        }
        repair_latest(&run).unwrap();
        assert_eq!(fs::read_link(&latest).unwrap(), Path::new(&run.name()));
    }
    fs::remove_file(&latest).unwrap();
    fs::create_dir(&latest).unwrap();
    fs::write(latest.join("run.json"), "{}").unwrap();
    assert!(
        repair_latest(&run)
            .unwrap_err()
            .to_string()
            .contains("`latest` is a folder")
    );
    assert!(create(results.path(), "x", "s", |_| Ok(())).is_err());
    assert_eq!(
        runs(results.path(), "x").unwrap(),
        [run],
        "a copied `latest` is no run"
    );
}

#[test]
fn latest_follows_the_runs_that_are_removed_and_links_in_them_are_not_followed() {
    let results = tempfile::tempdir().unwrap();
    let make = |stamp| {
        create(results.path(), "x", stamp, |run| {
            fs::write(run.run_file(), "{}")
        })
        .unwrap()
    };
    let (old, new) = (make("20260101T000000Z-a"), make("20260102T000000Z-a"));
    let other = results.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("kept"), "").unwrap();
    std::os::unix::fs::symlink(&other, new.path().join("trials")).unwrap();
    remove(&new).unwrap();
    let latest = results.path().join("x/latest");
    assert_eq!(fs::read_link(&latest).unwrap(), Path::new(&old.name()));
    assert!(other.join("kept").exists() && !new.path().exists());
    remove(&old).unwrap();
    assert!(latest.symlink_metadata().is_err());
    assert_eq!(runs(results.path(), "x").unwrap(), []);
}

#[test]
fn a_run_whose_making_failed_leaves_nothing() {
    let results = tempfile::tempdir().unwrap();
    let failed = create(results.path(), "x", "s", |_| Err(io::Error::other("no")));
    assert!(failed.is_err());
    assert_eq!(fs::read_dir(results.path().join("x")).unwrap().count(), 0);
}

#[test]
fn runs_that_cannot_be_told_are_an_error_and_not_none() {
    let results = tempfile::tempdir().unwrap();
    assert_eq!(runs(results.path(), "x").unwrap(), []);
    let experiment = results.path().join("x");
    let run = RunFolder(experiment.join("20260101T000000Z-a"));
    fs::create_dir_all(run.path()).unwrap();
    repair_latest(&run).unwrap();
    // The record of a run, or nothing: the system does not say.
    fs::create_dir(experiment.join("kept")).unwrap();
    std::os::unix::fs::symlink("run.json", experiment.join("kept/run.json")).unwrap();
    for error in [
        runs(results.path(), "x").unwrap_err(),
        leftovers(results.path(), "x").unwrap_err(),
        next_number(results.path(), "x").unwrap_err(),
        remove(&run).unwrap_err(),
    ] {
        assert!(error.to_string().contains("x/kept/run.json: "), "{error}");
    }
    assert!(run.path().exists() && experiment.join(LATEST).is_symlink());
}

#[test]
fn a_link_that_leads_nowhere_and_what_the_disk_keeps_for_itself_are_no_experiments() {
    let results = tempfile::tempdir().unwrap();
    for name in ["x", "lost+found", ".hidden"] {
        fs::create_dir(results.path().join(name)).unwrap();
    }
    for (target, name) in [("loop", "loop"), ("gone", "dangling"), ("x", "y")] {
        std::os::unix::fs::symlink(target, results.path().join(name)).unwrap();
    }
    fs::write(results.path().join("notes.txt"), "").unwrap();
    assert_eq!(experiments(results.path()).unwrap(), ["x"]);
}

#[test]
fn a_run_that_was_moved_behind_a_link_is_a_run_once_and_can_be_written() {
    let results = tempfile::tempdir().unwrap();
    let make = |stamp| {
        create(results.path(), "x", stamp, |run| {
            fs::write(run.run_file(), "{}")
        })
        .unwrap()
    };
    let (old, new) = (make("20260101T000000Z-a"), make("20260102T000000Z-a"));
    let elsewhere = results.path().join("elsewhere");
    fs::rename(new.path(), &elsewhere).unwrap();
    let link = |target: &Path, name: &str| {
        std::os::unix::fs::symlink(target, results.path().join("x").join(name)).unwrap();
    };
    link(&elsewhere, &new.name());
    // Not a run's name, a second name, a file.
    link(&elsewhere, "notes");
    link(Path::new(&old.name()), "20260103T000000Z-a");
    let file = results.path().join("file");
    fs::write(&file, "").unwrap();
    link(&file, "20260104T000000Z-a");
    assert_eq!(
        runs(results.path(), "x").unwrap(),
        [old.clone(), new.clone()]
    );
    new.write(&new.run_file(), b"{\"number\": 7}").unwrap();
    assert_eq!(new.number(), Ok(7));
    assert!(elsewhere.join("run.json").is_file());
    // `latest` and the run are the link in the experiment's folder; another link is followed.
    let experiment = results.path().canonicalize().unwrap().join("x");
    for named in [LATEST, &new.name()] {
        let found = RunFolder(results.path().join("x").join(named)).in_experiment();
        assert_eq!(
            found.unwrap().path(),
            experiment.join(new.name()),
            "{named}"
        );
    }
    let second = RunFolder(results.path().join("x/20260103T000000Z-a")).in_experiment();
    assert_eq!(second.unwrap().path(), experiment.join(old.name()));
    let notes = RunFolder(results.path().join("x/notes")).in_experiment();
    assert_eq!(notes.unwrap().path(), elsewhere.canonicalize().unwrap());
    // Another disk that is not there now.
    fs::rename(&elsewhere, results.path().join("gone")).unwrap();
    assert_eq!(runs(results.path(), "x").unwrap(), [old, new]);
}
