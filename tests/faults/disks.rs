//! Full disks: a file system in memory that runs out of bytes or of inodes while a trial is at work,
//! and a limit on the size of files. Quotas are in `calls` (EDQUOT).

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    ends::{Excuse, Violation},
    figures::{Figures, add, conclude},
    form::by_form,
    pool::try_each,
    scene::{FLEX, SCRIPTED, Scene, Workload},
};

/// Size of the file system; more than a trial needs.
const BYTES: u64 = 8 << 20;
const INODES: u64 = 400;

/// Free space of the disk while a trial runs.
#[derive(Clone, Copy, Debug)]
enum Left {
    Bytes(u64),
    Inodes(u64),
}

/// A small file system at `results`; unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// `None` if this user may not mount.
    fn at(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let options = format!("size={BYTES},nr_inodes={INODES}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "none"])
            .arg(path)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        mounted.then(|| Self(path.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Whether this user may mount file systems.
fn can_mount() -> bool {
    let folder = tempfile::tempdir().unwrap();
    Mount::at(folder.path()).is_some()
}

/// Fills the disk until only this is left.
fn fill(results: &Path, left: Left) {
    let filler = results.join("filler");
    fs::create_dir_all(&filler).unwrap();
    let about = rustix::fs::statvfs(results).unwrap();
    match left {
        Left::Bytes(bytes) => {
            let mut rest = (about.f_bavail * about.f_frsize).saturating_sub(bytes);
            let mut file = fs::File::create(filler.join("bytes")).unwrap();
            let chunk = vec![b'x'; 4096];
            while rest > 0 {
                let length = rest.min(4096) as usize;
                if file.write_all(&chunk[..length]).is_err() {
                    break;
                }
                rest -= length as u64;
            }
        }
        Left::Inodes(inodes) => {
            for number in 0..about.f_favail.saturating_sub(inodes) {
                if fs::write(filler.join(number.to_string()), "").is_err() {
                    break;
                }
            }
        }
    }
}

/// Waits until a run is at the moment at which its disk fills up: after `ended` trials.
fn attempt(workload: Workload, left: Left, ended: usize, figures: &Figures) -> Vec<Violation> {
    let scene = Scene::new(workload);
    let results = scene.work("results");
    let mount = Mount::at(&results).unwrap();
    let mut running = scene.start(&[], |command| {
        // The trial of this batch size waits; the others end by themselves.
        command.env(format!("SCRIPTED_CHILD_{}", ended + 1), "waits");
    });
    if workload.is_real {
        running.wait_until(|running| running.has_said("trial_started", ended + 1));
    } else {
        running.wait_until(|_| scene.attempts_with("at-work") == 1);
    }
    fill(&results, left);
    add(&figures.faults);
    scene.give_turn();
    running.end();
    let _ = fs::remove_file(scene.work("turns"));
    fs::remove_dir_all(results.join("filler")).unwrap();
    let violations = scene.finish_beside(Excuse::default());
    drop(mount);
    violations
}

fn fill_up(test: &str, workload: Workload) {
    let figures = Figures::new();
    if !can_mount() {
        let _ = writeln!(
            io::stderr(),
            "faults: {test}: left out, because only root may mount a small file system"
        );
        return;
    }
    let lefts = [
        Left::Bytes(0),
        Left::Bytes(4 << 10),
        Left::Bytes(8 << 10),
        Left::Bytes(16 << 10),
        Left::Bytes(64 << 10),
        Left::Bytes(1 << 20),
        Left::Bytes(2 << 20),
        Left::Inodes(0),
        Left::Inodes(1),
        Left::Inodes(2),
        Left::Inodes(3),
        Left::Inodes(5),
        Left::Inodes(8),
        Left::Inodes(13),
    ];
    let moments: &[usize] = by_form(&[1], &[0, 1, 2]);
    let cases = lefts.iter().flat_map(|left| {
        moments.iter().map(move |ended| {
            (
                format!("{} {left:?} left after {ended} trials", workload.name),
                (*left, *ended),
            )
        })
    });
    let tried = try_each(cases.collect(), |_, (left, ended)| {
        attempt(workload, left, ended, &figures)
    });
    conclude(test, &figures, &tried);
}

#[test]
fn a_full_disk_stops_a_scripted_run_which_resumes() {
    fill_up("disks scripted", SCRIPTED);
}

#[test]
fn a_full_disk_stops_a_training_which_resumes() {
    fill_up("disks flex", FLEX);
}

/// `ulimit -f` in blocks of 512 bytes.
#[test]
fn a_limit_on_the_size_of_files_stops_a_run_which_resumes() {
    let figures = Figures::new();
    let limits: Vec<u64> = by_form(
        vec![0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 126],
        (0..130).collect(),
    );
    let cases = limits
        .into_iter()
        .map(|limit| (format!("ulimit -f {limit}"), limit));
    let tried = try_each(cases.collect(), |_, limit| {
        let scene = Scene::new(SCRIPTED);
        let mut command = Command::new("bash");
        command
            .args([
                "-c",
                "ulimit -f \"$1\"; shift; exec \"$@\" >\"$0\"",
                "/dev/null",
            ])
            .arg(limit.div_ceil(2).to_string())
            .arg(env!("CARGO_BIN_EXE_kiln"))
            .args(["run", "x.yaml"])
            .current_dir(scene.work(""))
            .stdin(Stdio::null());
        scene.surround(&mut command);
        let launch = scene.spawn(command).end();
        add(&figures.faults);
        if launch.signal.is_some() {
            scene.note(
                "status",
                format!("kiln does not survive SIGXFSZ: {}", launch.words()),
            );
        }
        scene.finish(Excuse::default())
    });
    conclude("file sizes", &figures, &tried);
}
