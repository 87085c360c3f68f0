//! Checkpoints that the system cannot read or list now.

use super::*;

/// Does something while reading the header of a checkpoint fails with EIO, as on a bad disk: nothing is
/// at the address 0 of a process.
fn while_unread<T>(checkpoints: &Checkpoints, step: u64, work: impl FnOnce() -> T) -> T {
    let header = checkpoints.at(step).join(HEADER);
    let aside = checkpoints.at(step).join("aside");
    fs::rename(&header, &aside).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &header).unwrap();
    let done = work();
    fs::remove_file(&header).unwrap();
    fs::rename(&aside, &header).unwrap();
    done
}

#[test]
fn one_whose_header_was_unread_once_is_not_superfluous_by_that_reading() {
    let (_folder, checkpoints) = checkpoints();
    for (step, loss) in [(1, Some(1.0)), (2, Some(2.0)), (3, None)] {
        write(&checkpoints, step, loss);
    }
    let listing = while_unread(&checkpoints, 1, || checkpoints.listing().unwrap());
    assert!(listing.unread().is_some());
    // It can be read again, and is not.
    assert_eq!(listing.superfluous(0, true), [3]);
    assert_eq!(checkpoints.listing().unwrap().superfluous(0, true), [2, 3]);
}

#[test]
fn the_result_is_kept_and_one_that_may_be_it() {
    let (_folder, checkpoints) = checkpoints();
    write(&checkpoints, 1, Some(1.0));
    write(&checkpoints, 2, None);
    let kept = while_unread(&checkpoints, 1, || checkpoints.keep_result());
    let error = kept.unwrap_err().to_string();
    assert!(
        error.contains("checkpoint/1 could not be read now"),
        "{error}"
    );
    assert_eq!(checkpoints.steps(), [1, 2]);
    checkpoints.keep_result().unwrap();
    assert_eq!(checkpoints.steps(), [1]);
    let (_folder, unrated) = self::checkpoints();
    [1, 2]
        .into_iter()
        .for_each(|step| write(&unrated, step, None));
    unrated.keep_result().unwrap();
    assert_eq!(unrated.steps(), [2]);
}

#[test]
fn without_a_loss_the_newest_usable_one_is_kept_in_place_of_a_damaged_one() {
    let (_folder, checkpoints) = checkpoints();
    [1, 2, 3]
        .into_iter()
        .for_each(|step| write(&checkpoints, step, None));
    fs::write(checkpoints.at(3).join(HEADER), "{").unwrap();
    checkpoints.keep_result().unwrap();
    assert_eq!(checkpoints.steps(), [2]);
    // Without a usable one nothing says which is the result.
    fs::write(checkpoints.at(2).join(HEADER), "{").unwrap();
    checkpoints.keep_result().unwrap();
    assert_eq!(checkpoints.steps(), [2]);
}

#[test]
fn no_older_one_is_continued_in_place_of_one_that_is_unread() {
    let (_folder, checkpoints) = checkpoints();
    [1, 2]
        .into_iter()
        .for_each(|step| write(&checkpoints, step, None));
    let refused = while_unread(&checkpoints, 2, || checkpoints.newest_whole()).unwrap_err();
    assert!(
        matches!(&refused[..], [Unusable::Unread(why)] if why.to_string().contains("checkpoint/2 ")),
        "{refused:?}"
    );
}

#[test]
fn weights_that_are_unread_are_told_from_damaged_ones() {
    let (_folder, checkpoints) = checkpoints();
    let draft = checkpoints.begin(1).unwrap().unwrap();
    // As long as the file below says that it is.
    fs::write(draft.folder().join("model.safetensors"), "").unwrap();
    draft.finish(None, json!({})).unwrap();
    let weights = checkpoints.at(1).join("model.safetensors");
    fs::remove_file(&weights).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &weights).unwrap();
    let of_one = checkpoints.usable(1, &["model.safetensors"]).unwrap_err();
    let of_all = checkpoints.newest_whole().unwrap_err().remove(0);
    for why in [of_one, of_all] {
        assert!(
            matches!(why, Unusable::Unread(_))
                && why
                    .to_string()
                    .contains("checkpoint/1 could not be read now: model.safetensors"),
            "{why:?}"
        );
    }
    fs::remove_file(&weights).unwrap();
    let why = checkpoints.newest_whole().unwrap_err().remove(0);
    assert!(matches!(why, Unusable::Content(_)), "{why:?}");
}

#[test]
fn a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one() {
    let place = tempfile::tempdir().unwrap();
    let endless = place.path().join("loop");
    std::os::unix::fs::symlink("loop", &endless).unwrap();
    let checkpoints = Checkpoints::new(endless.join("checkpoint"), id(TRIAL));
    let error = checkpoints.newest(Ok).unwrap_err().to_string();
    assert!(error.contains("loop/checkpoint: "), "{error}");
    assert!(checkpoints.listing().is_err() && checkpoints.keep_result().is_err());
    assert_eq!(checkpoints.newest_whole().unwrap_err().len(), 1);
    assert!(checkpoints.begin(1).is_err());
    // No system has a folder of this name.
    let run = RunFolder::at(place.path());
    fs::create_dir(run.trials()).unwrap();
    assert!(aside::weights(&run, &id(&"t".repeat(300)), None).is_err());
    // A link in place of the trial's folder has no other checkpoints aside.
    std::os::unix::fs::symlink(place.path(), run.trials().join(TRIAL)).unwrap();
    let own = aside::weights(&run, &id(TRIAL), None).unwrap();
    assert_eq!(own.folder(), run.checkpoints(&id(TRIAL)));
}
