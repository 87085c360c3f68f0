//! Power cuts: from the recorded calls of a run, the folders that a disk may show after a cut at
//! each call, and a resume from each of them.
//!
//! What was synced is there. Of the rest each change may be there or not, in any order, and the last
//! writes may be torn or have left zero bytes (`disk`). This is the model of ALICE (Pillai et al.
//! 2014): stricter than ext4, which keeps the order of changes to folders, so a case is marked
//! `journal` if ext4 could show it, and `any order` if not.

mod disk;

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    form::by_form,
    interposer::{Kind, Record},
    pool::try_each,
    rows::{self, Key, Row},
    scene::{FLEX, SCRIPTED, Scene, Workload},
    undisturbed,
};
use disk::{Disk, Fate, Image};

/// One image to resume from.
struct Cut {
    image: Image,
    /// Rows that kiln had announced.
    announced: BTreeSet<Key>,
}

/// Rows that were announced before the record at `end`.
fn announced(records: &[Record]) -> BTreeSet<Key> {
    let said: Vec<u8> = records
        .iter()
        .filter(|record| record.kind == Kind::Say)
        .flat_map(|record| record.data.clone())
        .collect();
    rows::announced(&String::from_utf8_lossy(&said))
        .into_keys()
        .collect()
}

/// The fates of the pending changes that are tried at one cut: all kept, all lost, each one lost,
/// each one kept, every subset of the last ones, torn and zeroed writes, and random ones.
fn fates(disk: &Disk, pending: &[usize], random: &mut fastrand::Rng) -> Vec<Vec<Fate>> {
    const SUBSET: usize = 6;
    let count = pending.len();
    let all = |fate: Fate| vec![fate; count];
    let but = |mut fates: Vec<Fate>, place: usize, fate: Fate| {
        fates[place] = fate;
        fates
    };
    let mut found = vec![all(Fate::Kept), all(Fate::Lost)];
    for place in 0..count {
        found.push(but(all(Fate::Kept), place, Fate::Lost));
        found.push(but(all(Fate::Lost), place, Fate::Kept));
    }
    let last = count.min(SUBSET);
    for subset in 0..1_u32 << last {
        for base in [Fate::Kept, Fate::Lost] {
            let mut fates = all(base);
            for (bit, fate) in fates.iter_mut().rev().take(last).enumerate() {
                *fate = if subset >> bit & 1 == 1 {
                    Fate::Kept
                } else {
                    Fate::Lost
                };
            }
            found.push(fates);
        }
    }
    for (place, change) in pending.iter().enumerate() {
        for fate in disk.torn(*change) {
            found.push(but(all(Fate::Kept), place, fate));
        }
    }
    for _ in 0..10 {
        let any = |random: &mut fastrand::Rng| {
            if random.bool() {
                Fate::Kept
            } else {
                Fate::Lost
            }
        };
        found.push((0..count).map(|_| any(random)).collect());
    }
    found
}

/// Images of a recording, each once: at every cut, or at evenly spread ones if there are many more
/// than the `most` images that are resumed. All images of a training take gigabytes.
fn cuts(workload: Workload, most: usize) -> Vec<(String, Cut)> {
    let known = undisturbed::of(workload);
    let disk = Disk::of(&known.records);
    let mut random = fastrand::Rng::with_seed(3);
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    let stride = match std::env::var_os("KILN_FAULTS_ONLY") {
        Some(_) => 1,
        None => (known.records.len() / (4 * most)).max(1),
    };
    for end in (0..=known.records.len()).step_by(stride) {
        let pending = disk.pending(end);
        for fates in fates(&disk, &pending, &mut random) {
            let image = disk.image(end, &pending, &fates);
            if seen.insert((image.sum(), announced(&known.records[..end]).len())) {
                let order = if disk.is_journal(end, &pending, &fates) {
                    "journal"
                } else {
                    "any order"
                };
                let last = end.checked_sub(1).map(|last| &known.records[last]);
                let at = last.map_or("nothing".to_owned(), |record| {
                    let file = record.path.rsplit('/').next().unwrap_or_default();
                    format!("{} {file}", record.kind.name())
                });
                let lost: Vec<String> = pending
                    .iter()
                    .zip(&fates)
                    .filter(|(_, fate)| **fate != Fate::Kept)
                    .map(|(change, fate)| disk.words(*change, *fate))
                    .collect();
                let name = format!(
                    "{} cut {end} after {at}, {order}, without {}",
                    workload.name,
                    if lost.is_empty() {
                        "loss".to_owned()
                    } else {
                        lost.join(" + ")
                    }
                );
                let announced = announced(&known.records[..end]);
                found.push((name, Cut { image, announced }));
            }
        }
    }
    found
}

/// At most so many of the cuts: all with everything kept or lost come first.
fn sample(mut cuts: Vec<(String, Cut)>, most: usize) -> Vec<(String, Cut)> {
    if std::env::var_os("KILN_FAULTS_ONLY").is_some() || cuts.len() <= most {
        return cuts;
    }
    let mut random = fastrand::Rng::with_seed(5);
    let (first, mut rest): (Vec<_>, Vec<_>) = cuts
        .drain(..)
        .partition(|(name, _)| name.ends_with("without loss"));
    random.shuffle(&mut rest);
    first.into_iter().chain(rest).take(most).collect()
}

fn resume(workload: Workload, cut: &Cut, original: &[Row]) -> Vec<Violation> {
    let scene = Scene::new(workload);
    cut.image.write(&scene.work(""));
    let mut kept = scene.kept.borrow_mut();
    for key in &cut.announced {
        let row = original.iter().find(|row| row.key == *key).unwrap();
        kept.insert(key.clone(), row.clone());
    }
    drop(kept);
    scene.finish(Excuse::default())
}

fn cut_everywhere(test: &str, workload: Workload, most: usize) {
    let figures = Figures::new();
    let known = undisturbed::of(workload);
    let original = Arc::new(disk_rows(&known.records));
    let tried = try_each(sample(cuts(workload, most), most), |_, cut| {
        add(&figures.images);
        resume(workload, &cut, &original)
    });
    conclude(test, &figures, &tried);
}

/// The rows at the end of a recording.
fn disk_rows(records: &[Record]) -> Vec<Row> {
    let disk = Disk::of(records);
    let pending = disk.pending(records.len());
    let image = disk.image(records.len(), &pending, &vec![Fate::Kept; pending.len()]);
    let scene = Scene::new(SCRIPTED);
    image.write(&scene.work(""));
    rows::read(&scene.table())
}

#[test]
fn a_scripted_run_resumes_after_a_power_cut_at_every_call() {
    cut_everywhere("power scripted", SCRIPTED, by_form(500, 100_000));
}

#[test]
fn a_training_resumes_after_a_power_cut_at_every_call() {
    // Each trains again, which takes seconds.
    cut_everywhere("power flex", FLEX, by_form(8, 1_000));
}

/// The trial and the step of a checkpoint that this record completes.
fn completed_checkpoint(record: &Record) -> Option<(String, u64)> {
    let mut names = record.other.rsplit('/');
    let (step, folder, trial) = (names.next()?, names.next()?, names.next()?);
    let is_checkpoint = record.kind == Kind::Rename && folder == "checkpoint";
    Some((
        trial.to_owned(),
        step.parse().ok().filter(|_| is_checkpoint)?,
    ))
}

/// A trial that resumes from a checkpoint does not write the rows of the steps before it again.
#[test]
fn the_steps_before_a_checkpoint_are_on_the_disk_when_it_is() {
    let figures = Figures::new();
    let known = undisturbed::of(FLEX);
    let disk = Arc::new(Disk::of(&known.records));
    let cuts: Vec<_> = known
        .records
        .iter()
        .enumerate()
        .filter_map(|(number, record)| Some((number + 1, completed_checkpoint(record)?)))
        .map(|(end, (trial, step))| (format!("{trial} checkpoint {step}"), (end, (trial, step))))
        .collect();
    // Six of each of three trials.
    assert!(cuts.len() >= 15, "{} checkpoints", cuts.len());
    let tried = try_each(cuts, |_, (end, (trial, step))| {
        add(&figures.images);
        // Names are there, and of the contents only what was synced.
        let pending = disk.pending(end);
        let fates: Vec<Fate> = pending
            .iter()
            .map(|change| match disk.is_of_content(*change) {
                true => Fate::Lost,
                false => Fate::Kept,
            })
            .collect();
        let scene = Scene::new(FLEX);
        disk.image(end, &pending, &fates).write(&scene.work(""));
        let found = undisturbed::losses(&scene.run_folder());
        let missing: Vec<u64> = (1..=step)
            .filter(|step| !found.contains_key(&(trial.clone(), *step)))
            .collect();
        if !missing.is_empty() {
            scene.note(
                "step lost",
                format!("{trial} has a checkpoint of step {step} and no rows of {missing:?}"),
            );
        }
        scene.violations.borrow().clone()
    });
    conclude("power steps", &figures, &tried);
}

/// The recording is whole: replayed without a loss it gives the run's own folder.
#[test]
fn a_replay_without_a_loss_is_the_folder_itself() {
    let known = undisturbed::of(SCRIPTED);
    let rows = disk_rows(&known.records);
    let trials: Vec<&String> = rows.iter().map(|row| &row.key.0).collect();
    assert_eq!(trials, known.trials.iter().collect::<Vec<_>>());
    let disk = Disk::of(&known.records);
    let end = known.records.len();
    let (pending, scene) = (disk.pending(end), Scene::new(SCRIPTED));
    disk.image(end, &pending, &vec![Fate::Kept; pending.len()])
        .write(&scene.work(""));
    assert_eq!(
        undisturbed::content(&scene.work("results")),
        known.folder,
        "calls are missing in the recording"
    );
}
