//! Files of a run that others replace, remove or move while it is at work: by an editor, `git
//! stash`, `cp` and `mv`. Rows that kiln announces afterwards are in the table at its path.

use std::{fs, io::ErrorKind, path::Path};

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    form::by_form,
    pool::try_each,
    rows,
    scene::{SCRIPTED, Scene},
};

/// A change that somebody makes between the end of one trial and that of the next.
#[derive(Clone, Copy, Debug)]
struct Change {
    name: &'static str,
    make: fn(&Scene),
    /// Whether the change takes away or edits the rows that were there.
    is_of_rows: bool,
}

const CHANGES: [Change; 14] = [
    Change {
        name: "cp and mv of trials.csv",
        make: copy_and_move,
        is_of_rows: false,
    },
    Change {
        name: "trials.csv of before the row",
        make: older_copy,
        is_of_rows: true,
    },
    Change {
        name: "an editor saves another row",
        make: edit,
        is_of_rows: true,
    },
    Change {
        name: "an editor rewrites the file in place",
        make: edit_in_place,
        is_of_rows: true,
    },
    Change {
        name: "rm trials.csv",
        make: |scene| fs::remove_file(scene.table()).unwrap(),
        is_of_rows: true,
    },
    Change {
        name: "mv trials.csv away",
        make: |scene| move_away(&scene.table(), scene),
        is_of_rows: true,
    },
    Change {
        name: "trials.csv emptied",
        make: |scene| fs::write(scene.table(), "").unwrap(),
        is_of_rows: true,
    },
    Change {
        name: "trials.csv cut to its header",
        make: |scene| keep(scene, header),
        is_of_rows: true,
    },
    Change {
        name: "trials.csv cut within a row",
        make: |scene| keep(scene, |text| text.len() - 40),
        is_of_rows: true,
    },
    Change {
        name: "trials.csv without its last line feed",
        make: |scene| keep(scene, |text| text.len() - 1),
        is_of_rows: true,
    },
    Change {
        name: "a folder in place of trials.csv",
        make: folder_in_place,
        is_of_rows: true,
    },
    Change {
        name: "results moved away",
        make: |scene| move_away(&scene.work("results"), scene),
        is_of_rows: true,
    },
    Change {
        name: "results removed",
        make: |scene| remove_while_written(&scene.work("results")),
        is_of_rows: true,
    },
    Change {
        name: "run.json removed",
        make: |scene| fs::remove_file(scene.run_folder().join("run.json")).unwrap(),
        is_of_rows: false,
    },
];

fn table(scene: &Scene) -> String {
    fs::read_to_string(scene.table()).unwrap()
}

/// Removes a folder in which others may create files meanwhile: a removal that finds such a file in a
/// folder it had emptied is repeated.
fn remove_while_written(folder: &Path) {
    while let Err(error) = fs::remove_dir_all(folder) {
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty, "{error}");
    }
}

/// Replaces the table as editors and git do: by a new file.
fn replace(scene: &Scene, text: &str) {
    let new = scene.path("logs/new.csv");
    fs::write(&new, text).unwrap();
    fs::rename(new, scene.table()).unwrap();
}

fn copy_and_move(scene: &Scene) {
    replace(scene, &table(scene));
}

fn header(text: &str) -> usize {
    text.find('\n').unwrap() + 1
}

fn older_copy(scene: &Scene) {
    let text = table(scene);
    replace(scene, &text[..header(&text)]);
}

fn edit(scene: &Scene) {
    replace(scene, &table(scene).replace(",64.0,", ",65.0,"));
}

fn edit_in_place(scene: &Scene) {
    let text = table(scene).replace(",64.0,", ",65.0,");
    fs::write(scene.table(), text).unwrap();
}

/// Truncates the table in place.
fn keep(scene: &Scene, length: impl Fn(&str) -> usize) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(scene.table())
        .unwrap();
    file.set_len(length(&table(scene)) as u64).unwrap();
}

fn move_away(path: &Path, scene: &Scene) {
    fs::rename(path, scene.work("moved")).unwrap();
}

fn folder_in_place(scene: &Scene) {
    fs::remove_file(scene.table()).unwrap();
    fs::create_dir(scene.table()).unwrap();
}

/// The repair that the message of kiln asks for: the file or folder is put back.
fn repair(scene: &Scene, copy: &str, run_file: &[u8]) {
    if !scene.work("results").exists() && scene.work("moved").is_dir() {
        fs::rename(scene.work("moved"), scene.work("results")).unwrap();
    }
    if scene.run_folder().is_dir() {
        let path = scene.run_folder().join("run.json");
        if !path.exists() {
            fs::write(path, run_file).unwrap();
        }
        if scene.table().is_dir() {
            fs::remove_dir(scene.table()).unwrap();
        }
        if !scene.table().exists() {
            fs::write(scene.table(), copy).unwrap();
        }
    }
}

/// Makes the change after `ended` of three trials.
fn attempt(change: Change, ended: usize, figures: &Figures) -> Vec<Violation> {
    let scene = Scene::new(SCRIPTED);
    let mut running = scene.start(&[], |command| {
        command.env("SCRIPTED_CHILD", "waits_for_turn");
    });
    for trial in 0..ended {
        assert!(running.wait_until(|_| scene.attempts_with("at-work") == trial + 1));
        scene.give_turn();
    }
    assert!(running.wait_until(|running| {
        running.has_said("trial_ended", ended) && scene.attempts_with("at-work") == ended + 1
    }));
    let copy = table(&scene);
    let run_file = fs::read(scene.run_folder().join("run.json")).unwrap();
    scene.remember_plan();
    if change.is_of_rows {
        let rows = rows::read(&scene.table());
        scene
            .excused
            .borrow_mut()
            .extend(rows.into_iter().map(|row| row.key));
    }
    (change.make)(&scene);
    add(&figures.faults);
    // The children go on one after the other.
    running.wait_until(|_| {
        if !scene.work("turns").exists() {
            scene.give_turn();
        }
        false
    });
    running.end();
    let _ = fs::remove_file(scene.work("turns"));
    repair(&scene, &copy, &run_file);
    scene.finish(Excuse::default())
}

#[test]
fn rows_reach_the_table_whoever_replaces_it() {
    let figures = Figures::new();
    let moments: &[usize] = by_form(&[1], &[1, 2]);
    let cases = CHANGES.iter().flat_map(|change| {
        moments.iter().map(|ended| {
            (
                format!("{} after {ended} trials", change.name),
                (*change, *ended),
            )
        })
    });
    let tried = try_each(cases.collect(), |_, (change, ended)| {
        attempt(change, ended, &figures)
    });
    conclude("replaced", &figures, &tried);
}
