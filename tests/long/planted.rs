//! Faults planted into real trials on this machine: each is named at the end of `kiln run`, and a
//! run without one ends without a finding. All but the last compare times, so they need a machine
//! that does nothing else.

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
};

use jpeg_encoder::{ColorType, Encoder};

use crate::scripted_child::{Ended, Place, real_trial};

/// Trials that are timed must not run beside one another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const TEXT: &str = "model: {kind: mlp, d_model: 32, hidden: 64, context: 4, seq_len: 32}\ndata: \
                    {kind: generated, characters: 200000, num_workers: 1}\n";

/// `kiln run` of real trials; the names of what it found.
fn findings(place: &Place, lines: &str) -> (BTreeSet<String>, Ended) {
    fs::write(place.path("x.yaml"), format!("kiln: 1\nname: x\n{lines}\n")).unwrap();
    let ended = Ended::of(
        place
            .kiln(&["run", "x.yaml", "--fresh"])
            .env("KILN_TRIAL", real_trial())
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let found = ended
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("finding: "));
    (
        found
            .map(|line| line.split([' ', ':']).next().unwrap().to_owned())
            .collect(),
        ended,
    )
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// What others on the machine do is no fault of the trial; a test that waits for it to be idle
/// would never end.
fn but_for_others(mut found: BTreeSet<String>) -> BTreeSet<String> {
    found.remove("busy-host");
    found
}

/// The same where others never rest, and keep the loader waiting too.
fn but_for_waits(mut found: BTreeSet<String>) -> BTreeSet<String> {
    let of_loader = named(&["data-wait", "data-bound", "workers-starved"]);
    found.retain(|name| !of_loader.contains(name));
    but_for_others(found)
}

/// [`findings`] of the first of five runs beside which the machine does nothing else, or of the last.
fn findings_in_peace(place: &Place, lines: &str) -> (BTreeSet<String>, Ended) {
    let mut found = findings(place, lines);
    for _ in 1..5 {
        if !found.0.contains("busy-host") {
            break;
        }
        found = findings(place, lines);
    }
    found
}

#[test]
fn an_undisturbed_training_ends_without_a_finding() {
    let _alone = alone();
    let place = Place::with("");
    let (mut found, ended) = findings_in_peace(
        &place,
        &format!(
            "{TEXT}train: {{steps: 2000, cpu_threads: 1}}\n\
             measure: {{warmup_seconds: 1.0}}"
        ),
    );
    if found.contains("busy-host") {
        found = but_for_waits(found);
    }
    assert_eq!(found, named(&[]), "{}", ended.stdout);
}

/// Photographs that take long to decode.
fn photographs(place: &Place) {
    let mut random = 7_u32;
    for (part, count) in [("train", 40), ("valid", 4)] {
        for number in 0..count {
            let folder = place
                .path("images")
                .join(part)
                .join(format!("class-{}", number % 2));
            fs::create_dir_all(&folder).unwrap();
            let mut noise = Vec::with_capacity(1600 * 1200 * 3);
            for _ in 0..1600 * 1200 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                noise.extend([
                    (random >> 24) as u8,
                    (random >> 16) as u8,
                    (random >> 8) as u8,
                ]);
            }
            let encoder = Encoder::new_file(folder.join(format!("{number}.jpg")), 75).unwrap();
            encoder.encode(&noise, 1600, 1200, ColorType::Rgb).unwrap();
        }
    }
}

#[test]
fn a_slow_loader_is_named_and_so_are_workers_that_share_too_few_cores() {
    let _alone = alone();
    let place = Place::with("");
    photographs(&place);
    let training = |workers: usize, threads: usize| {
        let data = format!(
            "data: {{kind: image-folder, path: images, image_size: 16, num_workers: {workers}}}"
        );
        let train = format!(
            "train: {{steps: 60, batch_size: 4, cpu_threads: {threads}}}\nmeasure: {{warmup_steps: \
             4, warmup_seconds: 0.5}}"
        );
        format!("model: {{kind: resnet, depth: 18, width: 2, stem: small}}\n{data}\n{train}")
    };
    let (found, ended) = findings(&place, &training(0, 1));
    assert_eq!(
        but_for_others(found),
        named(&["data-bound"]),
        "{}",
        ended.stdout
    );
    assert!(
        ended
            .stdout
            .contains("with 0 workers: the loader is the limit; try more `data.num_workers`"),
        "{}",
        ended.stdout
    );
    let cores = available_parallelism().unwrap().get();
    let (found, ended) = findings(&place, &training(cores, 1));
    assert_eq!(
        but_for_others(found),
        named(&["workers-starved"]),
        "{}",
        ended.stdout
    );
}

/// Ends with the test.
struct Busy(Vec<Child>);

impl Busy {
    fn on_every_core() -> Self {
        let one = || {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self(
            (0..available_parallelism().unwrap().get())
                .map(|_| one())
                .collect(),
        )
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_busy_neighbour_is_named() {
    let _alone = alone();
    let place = Place::with("");
    let busy = Busy::on_every_core();
    let (found, ended) = findings(
        &place,
        &format!(
            "{TEXT}train: {{steps: 1500, cpu_threads: 1}}\n\
             measure: {{warmup_seconds: 0.5}}"
        ),
    );
    drop(busy);
    assert!(found.contains("busy-host"), "{}", ended.stdout);
}

#[test]
fn evaluations_that_take_the_time_are_named() {
    let _alone = alone();
    let place = Place::with("");
    let often = TEXT.replace("num_workers", "valid_fraction: 0.5, num_workers");
    let train = "train: {steps: 300, batch_size: 4, cpu_threads: 1, evaluate: {every: 1}}\n\
                 measure: {warmup_steps: 4, warmup_seconds: 0.0}";
    let (found, ended) = findings(&place, &format!("{often}{train}"));
    assert_eq!(
        but_for_waits(found),
        named(&["evaluation-dominates"]),
        "{}",
        ended.stdout
    );
}
