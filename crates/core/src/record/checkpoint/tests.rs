mod unread;

use std::{collections::BTreeMap, fs};

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::record::{RunFolder, run_file::write_json};

const TRIAL: &str = "abcdef0123";

fn id(text: &str) -> TrialId {
    TrialId(text.to_owned())
}

fn checkpoints() -> (TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("checkpoint"), id(TRIAL));
    (folder, checkpoints)
}

fn write(checkpoints: &Checkpoints, step: u64, valid_loss: Option<f64>) {
    let draft = checkpoints.begin(step).unwrap().unwrap();
    fs::write(draft.folder().join("model.safetensors"), [step as u8; 100]).unwrap();
    assert_eq!(
        draft.finish(valid_loss, json!({"seconds": 1.5})).unwrap(),
        100
    );
}

fn newest(checkpoints: &Checkpoints) -> (Option<u64>, Vec<String>) {
    checkpoints.newest(|found| Ok(found.header.step)).unwrap()
}

#[test]
fn the_newest_is_found_and_a_step_is_written_once() {
    let (_folder, checkpoints) = checkpoints();
    assert_eq!(newest(&checkpoints), (None, Vec::new()));
    [9, 10, 100]
        .into_iter()
        .for_each(|step| write(&checkpoints, step, None));
    assert_eq!(
        (newest(&checkpoints), checkpoints.steps()),
        ((Some(100), Vec::new()), vec![9, 10, 100])
    );
    assert!(checkpoints.begin(100).unwrap().is_none());
    let (found, _) = checkpoints.newest(Ok).unwrap();
    let found = found.unwrap();
    assert_eq!(
        (
            found.header.training["seconds"].as_f64(),
            found.header.files["model.safetensors"].bytes
        ),
        (Some(1.5), 100)
    );
}

#[test]
fn the_result_is_the_lowest_loss_else_the_newest() {
    let (_folder, checkpoints) = checkpoints();
    let result = || checkpoints.listing().unwrap().result();
    assert_eq!(result(), None);
    write(&checkpoints, 9, None);
    write(&checkpoints, 10, None);
    let step = || result().map(|found| found.step);
    assert_eq!(step(), Some(10));
    write(&checkpoints, 4, Some(2.0));
    write(&checkpoints, 5, Some(1.5));
    write(&checkpoints, 11, Some(3.0));
    assert_eq!(step(), Some(5));
    fs::write(checkpoints.at(5).join("training.safetensors"), "not listed").unwrap();
    assert!(checkpoints.usable(5, &["model.safetensors"]).is_ok());
    assert_eq!(
        checkpoints.usable(5, &["other"]).unwrap_err().to_string(),
        "checkpoint.json does not list other"
    );
    fs::write(checkpoints.at(5).join("model.safetensors"), [5; 99]).unwrap();
    let reason = checkpoints.usable(5, &["model.safetensors"]).unwrap_err();
    let reason = reason.to_string();
    assert!(
        reason.contains("has 99 bytes and should have 100"),
        "{reason}"
    );
    assert!(checkpoints.at(5).exists(), "nothing is renamed");
}

#[test]
fn a_damaged_one_is_refused_with_the_reason_and_the_one_before_it_is_found() {
    let (_folder, checkpoints) = checkpoints();
    let path = |step: u64, name: &str| checkpoints.at(step).join(name);
    let damage: [(&str, &dyn Fn(u64)); 7] = [
        (
            "model.safetensors has 50 bytes and should have 100",
            &|step| fs::write(path(step, "model.safetensors"), [0; 50]).unwrap(),
        ),
        ("its SHA-256 differs", &|step| {
            fs::write(path(step, "model.safetensors"), [0; 100]).unwrap()
        }),
        ("model.safetensors: No such file", &|step| {
            fs::remove_file(path(step, "model.safetensors")).unwrap()
        }),
        ("checkpoint.json: No such file", &|step| {
            fs::remove_file(path(step, HEADER)).unwrap()
        }),
        ("checkpoint.json: EOF", &|step| {
            fs::write(path(step, HEADER), "{").unwrap()
        }),
        ("has format 0, and this kiln reads 1", &|step| {
            fs::write(path(step, HEADER), r#"{"kiln_checkpoint": 0}"#).unwrap()
        }),
        (
            "checkpoint.json has changed since it was written (its SHA-256 differs)",
            &|step| {
                let text = fs::read_to_string(path(step, HEADER)).unwrap();
                let changed = text.replace("\"seconds\": 1.5", "\"seconds\": 3.5");
                assert_ne!(text, changed);
                fs::write(path(step, HEADER), changed).unwrap();
            },
        ),
    ];
    write(&checkpoints, 1, None);
    for (step, (words, damage)) in (2..).zip(damage) {
        write(&checkpoints, step, None);
        damage(step);
        let (found, refused) = newest(&checkpoints);
        assert_eq!(found, Some(1), "{words}");
        assert!(
            refused.len() == 1
                && refused[0].starts_with(&format!(
                    "the checkpoint of step {step} is not usable and was renamed to \
                     `{step}.refused`: "
                )),
            "{refused:?}"
        );
        assert!(refused[0].contains(words), "{words}: {refused:?}");
        assert_eq!(checkpoints.steps(), [1], "it is out of the way");
    }
}

#[test]
fn a_header_without_a_sum_of_its_own_is_usable_and_the_sum_of_its_content_is_the_same() {
    let (_folder, checkpoints) = checkpoints();
    write(&checkpoints, 5, Some(0.1 + 0.2));
    let path = checkpoints.at(5).join(HEADER);
    let content = || content_sum(&fs::read(&path).unwrap()).unwrap();
    let with_sum = content();
    let mut header = header(&checkpoints.at(5)).unwrap();
    assert!(header.header_sha256.is_some());
    header.header_sha256 = None;
    write_json(&path, &header).unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("header_sha256"));
    assert_eq!(newest(&checkpoints), (Some(5), Vec::new()));
    assert_eq!(content(), with_sum);
}

/// As `jq -S` writes it.
#[test]
fn a_header_with_its_keys_in_another_order_is_the_same() {
    let (_folder, checkpoints) = checkpoints();
    write(&checkpoints, 5, Some(0.1 + 0.2));
    let path = checkpoints.at(5).join(HEADER);
    let text = fs::read_to_string(&path).unwrap();
    let sorted: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let sorted = serde_json::to_string(&sorted).unwrap();
    assert!(sorted.starts_with("{\"files\"") && text.find("kiln_checkpoint") < text.find("files"));
    fs::write(&path, &sorted).unwrap();
    assert_eq!(newest(&checkpoints), (Some(5), Vec::new()));
    // Other content is not.
    let changed = sorted.replace("\"seconds\":1.5", "\"seconds\":1.25");
    assert_ne!(sorted, changed);
    fs::write(&path, changed).unwrap();
    assert_eq!(newest(&checkpoints).0, None);
}

#[test]
fn one_of_a_newer_kiln_stays_and_no_older_one_is_taken_for_it() {
    let (folder, checkpoints) = checkpoints();
    write(&checkpoints, 5, None);
    write(&checkpoints, 10, None);
    let header = folder.path().join("checkpoint/10/checkpoint.json");
    let text = fs::read_to_string(&header).unwrap();
    let newer = text.replacen("\"kiln_checkpoint\": 1", "\"kiln_checkpoint\": 2", 1);
    assert_ne!(text, newer);
    fs::write(&header, newer).unwrap();
    let error = checkpoints.newest(Ok).unwrap_err().to_string();
    assert!(
        error.contains(
            "checkpoint/10: checkpoint.json has format 2, newer than this kiln reads (1)"
        ),
        "{error}"
    );
    write(&checkpoints, 15, None);
    checkpoints.keep(1, true).unwrap();
    assert_eq!(checkpoints.steps(), [10, 15]);
    let listing = checkpoints.listing().unwrap();
    for told in [listing.damaged(), listing.newer()] {
        assert!(told.is_some_and(|why| why.contains("step 10") && why.contains("newer")));
    }
}

#[test]
fn one_that_the_system_cannot_read_now_stays() {
    let (folder, checkpoints) = checkpoints();
    write(&checkpoints, 5, None);
    write(&checkpoints, 10, None);
    let header = folder.path().join("checkpoint/10/checkpoint.json");
    let aside = folder.path().join("header");
    fs::rename(&header, &aside).unwrap();
    // Reading it fails with EIO, as a bad disk does: nothing is at the address 0.
    std::os::unix::fs::symlink("/proc/self/mem", &header).unwrap();
    let error = checkpoints.newest(Ok).unwrap_err().to_string();
    assert!(
        error.contains("checkpoint/10 could not be read now") && error.contains("os error 5"),
        "{error}"
    );
    let unread = || checkpoints.listing().unwrap().unread();
    let unread_now = unread().map(|why| why.to_string());
    assert!(unread_now.is_some_and(|why| why.contains("checkpoint/10")));
    // It may be the best.
    write(&checkpoints, 15, None);
    checkpoints.keep(1, true).unwrap();
    assert_eq!(checkpoints.steps(), [10, 15]);
    fs::remove_file(&header).unwrap();
    fs::rename(&aside, &header).unwrap();
    assert!(unread().is_none());
    assert_eq!(newest(&checkpoints), (Some(15), Vec::new()));
}

#[test]
fn another_trials_or_another_steps_is_refused() {
    let (_folder, checkpoints) = checkpoints();
    write(&checkpoints, 5, None);
    let other = Checkpoints::new(checkpoints.folder.clone(), id("0123456789"));
    let (found, refused) = newest(&other);
    assert!(
        found.is_none()
            && refused[0].ends_with("it belongs to trial abcdef0123, but this is trial 0123456789"),
        "{refused:?}"
    );
    assert!(
        refused.len() == 2
            && refused[1].ends_with("is usable: the trial starts from the beginning"),
        "{refused:?}"
    );
    write(&checkpoints, 5, None);
    fs::rename(checkpoints.at(5), checkpoints.at(6)).unwrap();
    assert!(newest(&checkpoints).1[0].ends_with("its header says step 5"));
}

#[test]
fn one_that_is_not_understood_is_refused_like_a_damaged_one() {
    let (_folder, checkpoints) = checkpoints();
    [1, 2]
        .into_iter()
        .for_each(|step| write(&checkpoints, step, None));
    fs::create_dir(checkpoints.folder.join("007")).unwrap();
    let understood = |found: UsableCheckpoint| {
        if found.header.step == 1 {
            Ok(found.header.step)
        } else {
            Err("it is in other words".to_owned())
        }
    };
    let (found, refused) = checkpoints.newest(understood).unwrap();
    assert!(
        found == Some(1) && refused[0].ends_with("`2.refused`: it is in other words"),
        "{refused:?}"
    );
    assert_eq!(
        checkpoints.steps(),
        [1],
        "and a folder of somebody's own is none"
    );
}

#[test]
fn the_loss_of_an_evaluation_that_came_later_is_written_into_it_once() {
    let (_folder, checkpoints) = checkpoints();
    [(1, Some(2.0)), (2, None), (3, None)]
        .into_iter()
        .for_each(|(step, loss)| write(&checkpoints, step, loss));
    let seconds = |value: &mut Value| value["seconds"] = json!(2.5);
    checkpoints.amend(2, 1.0, seconds).unwrap();
    checkpoints
        .amend(2, 0.5, |value| *value = Value::Null)
        .unwrap();
    checkpoints.amend(9, 0.5, seconds).unwrap();
    assert_eq!(checkpoints.lowest_loss(), Some(1.0));
    checkpoints.keep(0, true).unwrap();
    let (found, refused) = checkpoints.newest(Ok).unwrap();
    let header = found.unwrap().header;
    assert_eq!(
        (header.step, header.valid_loss, header.training, refused),
        (2, Some(1.0), json!({"seconds": 2.5}), Vec::new())
    );
}

#[test]
fn what_a_kill_leaves_half_made_or_half_deleted_is_no_checkpoint() {
    let (_folder, checkpoints) = checkpoints();
    write(&checkpoints, 1, None);
    let draft = checkpoints.begin(2).unwrap().unwrap();
    fs::write(draft.folder().join("model.safetensors"), [0; 10]).unwrap();
    std::mem::forget(draft);
    write(&checkpoints, 3, None);
    fs::rename(checkpoints.at(3), checkpoints.folder.join(".3.old")).unwrap();
    assert_eq!(newest(&checkpoints), (Some(1), Vec::new()));
    assert_eq!(fs::read_dir(&checkpoints.folder).unwrap().count(), 3);
    checkpoints.sweep().unwrap();
    assert_eq!(fs::read_dir(&checkpoints.folder).unwrap().count(), 1);
    write(&checkpoints, 2, None);
    assert_eq!(newest(&checkpoints).0, Some(2));
}

#[test]
fn what_a_completed_rerun_replaced_is_deleted_and_its_own_stays() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::at(folder.path());
    let place = folder.path().join("trials").join(TRIAL);
    for name in ["checkpoint", "checkpoint.1", "checkpoint.3", "checkpoint.4"] {
        fs::create_dir_all(place.join(name).join("5")).unwrap();
    }
    aside::delete_before(&run, &id(TRIAL), 3).unwrap();
    let left = |name: &str| place.join(name).exists();
    assert!(!left("checkpoint.1"));
    assert!(left("checkpoint") && left("checkpoint.3") && left("checkpoint.4"));
}

#[test]
fn removed_ones_are_told_as_removed_and_not_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::at(folder.path());
    let trial = folder.path().join("trials").join(TRIAL);
    fs::create_dir_all(trial.join("checkpoint.1/3")).unwrap();
    fs::create_dir(trial.join("1")).unwrap();
    let checkpoints = Checkpoints::new(run.checkpoints(&id(TRIAL)), id(TRIAL));
    write(&checkpoints, 5, None);
    let (_, sum) = checkpoints.newest_whole().unwrap();
    assert_eq!(
        removal::folders(&run, &id(TRIAL)).unwrap(),
        ["checkpoint", "checkpoint.1"]
    );

    // A kill before the first rename.
    mark::write(&Folder::open(&trial).unwrap(), "2026-11-29T03:43:28Z").unwrap();
    assert_eq!(newest(&checkpoints), (Some(5), Vec::new()));
    // And one while a folder goes.
    fs::create_dir_all(trial.join("checkpoint.removed/7")).unwrap();
    removal::remove(&run, &id(TRIAL), Some(2), "2026-11-29T03:43:28Z").unwrap();
    assert!(removal::folders(&run, &id(TRIAL)).unwrap().is_empty());
    assert!(trial.join("1").is_dir());

    let words = "were removed by `kiln rm --weights` (2026-11-29T03:43:28Z)";
    let (found, refused) = newest(&checkpoints);
    assert!(
        found.is_none() && refused.len() == 1 && refused[0].contains(words),
        "{refused:?}"
    );
    let why = aside::with_sum(&run, &id(TRIAL), 5, &sum).unwrap_err();
    assert!(why.contains(words), "{why}");
    // A later attempt writes others.
    write(&checkpoints, 9, None);
    assert_eq!(newest(&checkpoints), (Some(9), Vec::new()));
    let why = aside::with_sum(&run, &id(TRIAL), 5, &sum).unwrap_err();
    assert!(!why.contains(words), "{why}");
}

#[test]
fn two_attempts_that_write_the_same_one_at_once_leave_one() {
    let (_folder, checkpoints) = checkpoints();
    let mut drafts: Vec<_> = (0..2)
        .map(|_| checkpoints.begin(5).unwrap().unwrap())
        .collect();
    for draft in &drafts {
        fs::write(draft.folder().join("model.safetensors"), [7; 10]).unwrap();
    }
    for draft in drafts.drain(..) {
        assert_eq!(draft.finish(None, json!({})).unwrap(), 10);
    }
    assert_eq!(newest(&checkpoints), (Some(5), Vec::new()));
    assert_eq!(fs::read_dir(&checkpoints.folder).unwrap().count(), 1);
}

#[test]
fn an_attempt_that_begins_leaves_what_another_one_is_writing() {
    let (_folder, checkpoints) = checkpoints();
    write(&checkpoints, 1, None);
    write(&checkpoints, 2, None);
    let draft = checkpoints.begin(3).unwrap().unwrap();
    fs::write(draft.folder().join("model.safetensors"), [7; 10]).unwrap();
    assert_eq!(newest(&checkpoints), (Some(2), Vec::new()));
    draft.finish(None, json!({})).unwrap();
    // What the other one leaves is its own to sweep.
    let other = checkpoints.clone().by(12);
    let draft = other.begin(4).unwrap().unwrap();
    std::mem::forget(draft);
    checkpoints.clone().by(2).sweep_own().unwrap();
    let unfinished = || {
        let names = fs::read_dir(&checkpoints.folder).unwrap().flatten();
        names
            .filter(|entry| entry.file_name().to_string_lossy().starts_with('.'))
            .count()
    };
    assert_eq!(unfinished(), 1);
    other.sweep_own().unwrap();
    assert_eq!(unfinished(), 0);
    // Both delete the same old ones.
    checkpoints.remove(1).unwrap();
    checkpoints.remove(1).unwrap();
    checkpoints.put_aside(1).unwrap();
    assert_eq!(checkpoints.steps(), [2, 3]);
}

#[test]
fn one_that_could_not_be_written_leaves_nothing() {
    let (_folder, checkpoints) = checkpoints();
    let draft = checkpoints.begin(1).unwrap().unwrap();
    fs::write(draft.folder().join("model.safetensors"), [0; 10]).unwrap();
    drop(draft);
    assert_eq!(fs::read_dir(&checkpoints.folder).unwrap().count(), 0);
}

#[test]
fn the_newest_are_kept_and_the_best_where_it_is_to_stay() {
    for (newest, with_best, left) in [
        (2, true, vec![2, 4, 5]),
        (2, false, vec![4, 5]),
        (0, true, vec![2]),
        (9, false, vec![1, 2, 3, 4, 5]),
    ] {
        let (_folder, checkpoints) = checkpoints();
        for (step, loss) in [
            (1, Some(3.0)),
            (2, Some(1.0)),
            (3, None),
            (4, Some(2.0)),
            (5, None),
        ] {
            write(&checkpoints, step, loss);
        }
        checkpoints.keep(newest, with_best).unwrap();
        assert_eq!(checkpoints.steps(), left);
        checkpoints.delete().unwrap();
        assert!(!checkpoints.folder.exists());
    }
}

#[test]
fn nothing_is_written_or_deleted_through_a_link() {
    let (place, checkpoints) = checkpoints();
    let home = place.path().join("home");
    for name in [".profile", "4/work", "notes"] {
        fs::create_dir_all(home.join(name).parent().unwrap()).unwrap();
        fs::write(home.join(name), "mine").unwrap();
    }
    let list = || {
        let mut names: Vec<_> = fs::read_dir(&home)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    std::os::unix::fs::symlink(&home, place.path().join("checkpoint")).unwrap();
    assert!(checkpoints.begin(7).is_err());
    assert!(checkpoints.newest(Ok).is_err());
    assert!(checkpoints.steps().is_empty());
    checkpoints.keep(0, false).unwrap();
    checkpoints.delete().unwrap();
    assert_eq!(list(), [".profile", "4", "notes"]);
    assert!(!place.path().join("checkpoint").is_symlink());
    // A link in place of one checkpoint.
    write(&checkpoints, 8, None);
    std::os::unix::fs::symlink(home.join("4"), place.path().join("checkpoint/4")).unwrap();
    checkpoints.newest(Ok).unwrap();
    checkpoints.keep(1, false).unwrap();
    checkpoints.delete().unwrap();
    assert_eq!(fs::read(home.join("4/work")).unwrap(), b"mine");
}

/// A training that is repeated has the same sum, so that a continuation of it has the same id.
#[test]
fn the_sum_of_a_checkpoint_is_that_of_its_content_without_times() {
    let sum_of = |seconds: f64, best: f64| {
        let (_folder, checkpoints) = checkpoints();
        let draft = checkpoints.begin(3).unwrap().unwrap();
        fs::write(draft.folder().join("model.safetensors"), [3; 100]).unwrap();
        let state = json!({"loop": {"seconds": seconds, "plateau": {"lowest": best}}});
        draft.finish(Some(0.5), state).unwrap();
        let (found, sum) = checkpoints.newest_whole().unwrap();
        assert_eq!(checkpoints.with_sum(3, &sum).unwrap(), found);
        // As earlier versions recorded it.
        let bytes = fs::read(checkpoints.at(3).join(HEADER)).unwrap();
        let old = hex::encode(Sha256::digest(bytes));
        assert!(old != sum && checkpoints.with_sum(3, &old).is_ok());
        sum
    };
    assert_eq!(sum_of(1.5, 0.25), sum_of(1.75, 0.25));
    assert_ne!(sum_of(1.5, 0.25), sum_of(1.5, 0.26));
}
