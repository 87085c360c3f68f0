use std::{cell::RefCell, path::PathBuf};

use super::*;
use crate::schedule::instruments::ProcessList;

thread_local! {
    /// The folder of the locks, for the look at a pretended device.
    static LOCKS: RefCell<PathBuf> = const { RefCell::new(PathBuf::new()) };
}

/// Terms of a launch that takes idle devices only.
fn idle_terms<'a>(folder: &'a Path, instruments: &'a Instruments) -> Terms<'a> {
    Terms {
        folder,
        instruments,
        require_idle: true,
        who: "process 1",
    }
}

/// A device without a visible process.
fn unused(held_memory_bytes: u64) -> DeviceUse {
    DeviceUse {
        processes: ProcessList::Known(Vec::new()),
        utilization: Some(0.0),
        held_memory_bytes: Some(held_memory_bytes),
        fault: None,
    }
}

fn first_is_lost(uuid: &str) -> Result<DeviceUse, String> {
    Ok(DeviceUse {
        fault: (uuid == "GPU-0").then(|| "the GPU is lost".to_owned()),
        ..unused(0)
    })
}

fn first_is_full(uuid: &str) -> Result<DeviceUse, String> {
    Ok(unused(if uuid == "GPU-0" { 38 << 30 } else { 0 }))
}

/// GPU 1 does not answer, and nobody holds GPU 0 meanwhile.
fn second_is_silent(uuid: &str) -> Result<DeviceUse, String> {
    if uuid == "GPU-0" {
        return Ok(unused(0));
    }
    let first = LOCKS.with(|locks| locks.borrow().join("GPU-0.lock"));
    let lock = lock_file(&first, "process 2").unwrap();
    assert!(lock.is_ok(), "GPU 0 is leased during the look at GPU 1");
    Err("no answer for 5 s".to_owned())
}

fn gpu(index: u32) -> LeasedGpu {
    LeasedGpu {
        index,
        uuid: format!("GPU-{index}"),
        name: "H200".into(),
        memory_total_bytes: Some(1),
        ..LeasedGpu::default()
    }
}

#[test]
fn a_leased_gpu_is_passed_over_and_its_holder_named() {
    let folder = tempfile::tempdir().unwrap();
    let instruments = Instruments::open(Some(Path::new("/nonexistent")));
    let terms = |who| Terms {
        folder: folder.path(),
        instruments: &instruments,
        require_idle: true,
        who,
    };
    let first = take(
        &DeviceChoice::FirstIdle(vec![gpu(0), gpu(1)]),
        1,
        &[],
        &terms("process 1"),
    )
    .unwrap();
    let second = take(
        &DeviceChoice::FirstIdle(vec![gpu(0), gpu(1)]),
        1,
        &[],
        &terms("process 2"),
    )
    .unwrap();
    assert_eq!((first[0].name(), second[0].name()), ("GPU-0", "GPU-1"));
    let Err(Refusal::Leased(words)) = take(
        &DeviceChoice::All(vec![gpu(1)]),
        1,
        &[],
        &terms("process 3"),
    ) else {
        panic!()
    };
    assert_eq!(words, "GPU 1 (H200) is leased by process 2");
    drop(second);
    assert_eq!(
        take(
            &DeviceChoice::All(vec![gpu(1)]),
            1,
            &[],
            &terms("process 3")
        )
        .unwrap()
        .len(),
        1
    );
    assert_eq!(
        take(
            &DeviceChoice::FirstIdle(vec![gpu(0)]),
            1,
            &first,
            &terms("process 1")
        )
        .unwrap()
        .len(),
        0
    );
}

#[test]
fn several_are_taken_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let instruments = Instruments::open(Some(Path::new("/nonexistent")));
    let terms = |who| Terms {
        folder: folder.path(),
        instruments: &instruments,
        require_idle: true,
        who,
    };
    let all = || DeviceChoice::FirstIdle((0..4).map(gpu).collect());
    let names = |leases: &[Lease]| {
        leases
            .iter()
            .map(|lease| lease.name().to_owned())
            .collect::<Vec<_>>()
    };
    let first = take(&all(), 3, &[], &terms("process 1")).unwrap();
    assert_eq!(names(&first), ["GPU-0", "GPU-1", "GPU-2"]);
    let Err(Refusal::Leased(words)) = take(&all(), 2, &[], &terms("process 2")) else {
        panic!()
    };
    assert!(
        words.starts_with("GPU 0 (H200) is leased by process 1; GPU 1"),
        "{words}"
    );
    assert_eq!(
        names(&take(&all(), 4, &first, &terms("process 1")).unwrap()),
        ["GPU-3"],
        "what a refused one took is free again"
    );
}

#[test]
fn devices_are_locked_in_one_order_and_keep_theirs() {
    let folder = tempfile::tempdir().unwrap();
    let instruments = Instruments::open(Some(Path::new("/nonexistent")));
    let take = |devices: [u32; 2], who| {
        let terms = Terms {
            folder: folder.path(),
            instruments: &instruments,
            require_idle: false,
            who,
        };
        take(&DeviceChoice::All(devices.map(gpu).into()), 1, &[], &terms)
    };
    let taken = take([1, 0], "process 1").unwrap();
    assert_eq!((taken[0].name(), taken[1].name()), ("GPU-1", "GPU-0"));
    for devices in [[0, 1], [1, 0]] {
        let Err(Refusal::Leased(words)) = take(devices, "process 2") else {
            panic!()
        };
        assert_eq!(words, "GPU 0 (H200) is leased by process 1");
    }
}

#[test]
fn others_may_have_a_device_while_a_silent_one_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    LOCKS.with(|locks| *locks.borrow_mut() = folder.path().to_owned());
    let mut instruments = Instruments::open(Some(Path::new("/nonexistent")));
    instruments.pretended_use = Some(second_is_silent);
    let terms = idle_terms(folder.path(), &instruments);
    let both = || vec![gpu(0), gpu(1)];
    for (choice, count) in [
        (DeviceChoice::All(both()), 1),
        (DeviceChoice::FirstIdle(both()), 2),
    ] {
        let Err(Refusal::Busy(words)) = take(&choice, count, &[], &terms) else {
            panic!()
        };
        assert_eq!(words, "GPU 1 (H200) does not answer: no answer for 5 s");
    }
    let one = take(&DeviceChoice::FirstIdle(both()), 1, &[], &terms).unwrap();
    assert_eq!(one[0].name(), "GPU-0");
}

#[test]
fn a_gpu_whose_memory_is_held_is_the_last_choice() {
    let folder = tempfile::tempdir().unwrap();
    let mut instruments = Instruments::open(Some(Path::new("/nonexistent")));
    instruments.pretended_use = Some(first_is_full);
    let terms = idle_terms(folder.path(), &instruments);
    let take_one = |devices: Vec<LeasedGpu>| {
        let taken = take(&DeviceChoice::FirstIdle(devices), 1, &[], &terms);
        taken.unwrap().remove(0)
    };
    let free = take_one(vec![gpu(0), gpu(1)]);
    let full = take_one(vec![gpu(0), gpu(1)]);
    assert_eq!((free.name(), full.name()), ("GPU-1", "GPU-0"));
}

#[test]
fn a_lost_gpu_is_not_idle_and_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut instruments = Instruments::open(Some(Path::new("/nonexistent")));
    instruments.pretended_use = Some(first_is_lost);
    let terms = idle_terms(folder.path(), &instruments);
    let lost = || Refusal::Lost("GPU 0 (H200) cannot be used: the GPU is lost".to_owned());
    let refused = |choice: DeviceChoice, each| take(&choice, each, &[], &terms).unwrap_err();
    let both = || vec![gpu(0), gpu(1)];
    assert_eq!(refused(DeviceChoice::All(both()), 1), lost());
    assert_eq!(refused(DeviceChoice::FirstIdle(both()), 2), lost());
    let one = take(&DeviceChoice::FirstIdle(both()), 1, &[], &terms).unwrap();
    assert_eq!(one[0].name(), "GPU-1");
    let Refusal::Leased(words) = refused(DeviceChoice::FirstIdle(both()), 1) else {
        panic!()
    };
    assert!(words.starts_with("GPU 0 (H200) cannot be used: the GPU is lost; GPU 1 (H200) is"));
}

#[test]
fn a_command_leases_as_a_run_does_and_says_who_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let instruments = Instruments::open(Some(Path::new("/nonexistent")));
    let take_one = |devices: &[LeasedGpu]| {
        take_first_idle(devices, &instruments, folder.path(), "`kiln calibrate`")
    };
    let lease = take_one(&[gpu(0), gpu(1)]).unwrap();
    assert_eq!(lease.gpu(), Some(&gpu(0)));
    let refused = take_one(&[gpu(0)]).unwrap_err();
    let own = format!(
        "GPU 0 (H200) is leased by process {} since ",
        std::process::id()
    );
    assert!(
        refused.starts_with(&own) && refused.ends_with("(`kiln calibrate`)"),
        "{refused}"
    );
    assert_eq!(take_one(&[gpu(0), gpu(1)]).unwrap().gpu(), Some(&gpu(1)));
    drop(lease);
    assert_eq!(take_one(&[gpu(0)]).unwrap().gpu(), Some(&gpu(0)));
    assert!(take_one(&[]).is_err());
}
