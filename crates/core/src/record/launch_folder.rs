//! The folder of one launch among several on a run, `launches/<n>/`. Only that launch writes in it:
//! its tables, `launch.json` and its heartbeat.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{
    RunFolder,
    run_file::{Launch, json},
    tickets::IGNORE,
};
use crate::{
    folder::{Folder, names_in},
    input,
    limits::RUN_FILE_BYTES,
    plan::TrialId,
};

/// Folder of the launches in a run.
pub const LAUNCHES: &str = "launches";
/// Number of the folder with the tables that the run had before it got a queue.
pub const BEFORE: u64 = 0;
const LAUNCH: &str = "launch.json";
/// A folder of a higher number is somebody else's.
const MOST_LAUNCHES: u64 = 1_000_000_000;
const HEARTBEAT: &str = "heartbeat";
const ATTEMPTS: &str = "attempts";
/// Version of the file.
const LAUNCH_FILE: u32 = 1;
/// Length of a heartbeat, in bytes: it is rewritten in place.
const BEAT_BYTES: usize = 64;

/// `launch.json`: a launch, and the process that is it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchFile {
    /// Format version, [`LAUNCH_FILE`].
    kiln_launch: u32,
    pub process: LaunchProcess,
    #[serde(flatten)]
    pub launch: Launch,
}

/// The process of a launch, beyond its id: enough to know on the same host whether it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchProcess {
    /// The namespace of its id, such as `pid:[4026531836]`: containers of one host number their
    /// processes separately.
    pub namespace: String,
    /// Its start in the kernel's ticks after the boot.
    pub started: u64,
    /// Name of its node. This file is not committed, so the name stands here also where the tables
    /// have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl LaunchFile {
    pub fn new(process: LaunchProcess, launch: Launch) -> Self {
        Self {
            kiln_launch: LAUNCH_FILE,
            process,
            launch,
        }
    }

    /// Writes it into its folder.
    ///
    /// # Errors
    /// It cannot be written; the old one then stays.
    pub fn write(&self, run: &RunFolder) -> io::Result<()> {
        let folder = folder(run, self.launch.launch);
        folder.write(&folder.path().join(LAUNCH), &json(self)?)
    }

    /// `None` if the launch has not written it yet, or it cannot be read.
    pub fn read(run: &RunFolder, launch: u64) -> Option<Self> {
        let path = folder(run, launch).path().join(LAUNCH);
        let file: Self = serde_json::from_slice(&input::read(&path, &RUN_FILE_BYTES).ok()?).ok()?;
        (file.kiln_launch <= LAUNCH_FILE).then_some(file)
    }
}

/// The folder of a launch: its tables have the names that they have in the folder of a run.
pub fn folder(run: &RunFolder, launch: u64) -> RunFolder {
    RunFolder::at(run.path().join(LAUNCHES).join(launch.to_string()))
}

/// The numbers of the launches that have a folder, in order; none if they cannot be listed.
pub fn launches(run: &RunFolder) -> Vec<u64> {
    listed(run).unwrap_or_default()
}

/// As [`launches`], but a folder that cannot be listed is an error.
///
/// # Errors
/// The folder cannot be listed.
pub fn listed(run: &RunFolder) -> io::Result<Vec<u64>> {
    numbered(run, LAUNCHES)
}

/// The numbers that folders in a folder of the run have as names, in order.
pub(super) fn numbered(run: &RunFolder, all: &str) -> io::Result<Vec<u64>> {
    let names = names_in(&run.path().join(all))?;
    let number = |name: &OsString| name.to_str()?.parse().ok();
    let numbers = names.iter().filter_map(number);
    let mut numbers: Vec<u64> = numbers.filter(|number| *number < MOST_LAUNCHES).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The tables of samples of a run: those of its launches, or its own.
pub fn samples_tables(run: &RunFolder) -> Vec<PathBuf> {
    let of_launches = launches(run)
        .into_iter()
        .map(|launch| folder(run, launch).samples_table());
    let mut tables: Vec<PathBuf> = of_launches.filter(|path| path.is_file()).collect();
    // Earlier versions of kiln copied the run's own table to that of the launches before all others.
    let own = run.samples_table();
    let is_copied = folder(run, BEFORE).samples_table().is_file();
    tables.extend((own.is_file() && !is_copied).then_some(own));
    tables
}

/// Creates the folder of a launch that comes after those that are listed and after `last`; returns
/// its number, which no other launch has.
///
/// # Errors
/// It cannot be created.
pub fn make(run: &RunFolder, last: u64) -> io::Result<u64> {
    make_numbered(run, LAUNCHES, last)
}

/// The same in another folder of the run, which is kept out of git.
pub(super) fn make_numbered(run: &RunFolder, all: &str, last: u64) -> io::Result<u64> {
    let listed = numbered(run, all)?.last().copied().unwrap_or(0);
    let all = run.open()?.make_folder(all.as_ref())?;
    if all.kind(IGNORE.as_ref())?.is_none() {
        all.write_among_others(IGNORE.as_ref(), b"*\n")?;
    }
    remove_drafts_of_ignore(&all);
    let mut number = listed.max(last);
    loop {
        number += 1;
        // A file server may create it, lose the reply and then say that it exists: that number stays
        // unused.
        match all.make_new_folder(number.to_string().as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| number),
        }
    }
}

/// Removes what killed launches left of writing the `.gitignore`, which is in place now: a launch that
/// still writes it finds that. An error leaves files.
fn remove_drafts_of_ignore(all: &Folder) {
    let is_draft = |name: &str| name.starts_with("..gitignore.") && name.ends_with(".new");
    for name in all.names().unwrap_or_default() {
        if name.to_str().is_some_and(is_draft) {
            let _ = all.remove(&name);
        }
    }
}

/// Records that a launch begins an attempt, before its child starts: if the launch dies, others find
/// the attempt here, whatever became of its ticket.
///
/// # Errors
/// It is not on the disk.
pub fn note_attempt(run: &RunFolder, launch: u64, trial: &TrialId, attempt: u64) -> io::Result<()> {
    let folder = Folder::open(folder(run, launch).path())?;
    let mut file = folder.append(ATTEMPTS.as_ref())?;
    file.write_all(format!("{trial} {attempt}\n").as_bytes())?;
    file.sync_data()
}

/// The attempts that a launch has begun. A torn last line does not count: its child never started.
///
/// # Errors
/// The file cannot be read; a launch that has begun none has no file.
pub fn noted_attempts(run: &RunFolder, launch: u64) -> io::Result<Vec<(TrialId, u64)>> {
    let path = folder(run, launch).path().join(ATTEMPTS);
    let read = match input::read(&path, &RUN_FILE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let text = String::from_utf8_lossy(&read);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let noted = |line: &str| {
        let (trial, attempt) = line.split_once(' ')?;
        Some((TrialId(trial.to_owned()), attempt.parse().ok()?))
    };
    Ok(whole.lines().filter_map(noted).collect())
}

/// The sign of life of a launch: a counter, and how many trials it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub count: u64,
    pub running: u64,
}

impl Heartbeat {
    /// Rewrites the file in place: a rename would be one more thing that can go wrong, and a torn
    /// one differs from the one before as well.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(self, run: &RunFolder, launch: u64) -> io::Result<()> {
        let folder = Folder::open(folder(run, launch).path())?;
        let file = folder.edit(HEARTBEAT.as_ref())?;
        let text = format!("{} {}", self.count, self.running);
        let padded = format!("{text:<width$}\n", width = BEAT_BYTES - 1);
        file.write_all_at(padded.as_bytes(), 0)
    }

    /// `None` if there is none that can be read.
    pub fn read(run: &RunFolder, launch: u64) -> Option<Self> {
        let file = fs::File::open(path(run, launch)).ok()?;
        let mut text = String::new();
        file.take(BEAT_BYTES as u64)
            .read_to_string(&mut text)
            .ok()?;
        let (count, running) = text.trim().split_once(' ')?;
        Some(Self {
            count: count.parse().ok()?,
            running: running.parse().ok()?,
        })
    }
}

fn path(run: &RunFolder, launch: u64) -> PathBuf {
    folder(run, launch).path().join(HEARTBEAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_a_launch_has_too_are_not_read_twice() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        let write = |table: PathBuf| {
            fs::create_dir_all(table.parent().unwrap()).unwrap();
            fs::write(&table, "").unwrap();
            table
        };
        let own = write(run.samples_table());
        assert_eq!(samples_tables(&run), std::slice::from_ref(&own));
        let second = write(folder(&run, 2).samples_table());
        assert_eq!(samples_tables(&run), [second.clone(), own]);
        let before = write(folder(&run, BEFORE).samples_table());
        assert_eq!(samples_tables(&run), [before, second]);
    }

    #[test]
    fn launches_count_up_and_no_number_is_given_twice() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        assert_eq!(launches(&run), [0_u64; 0]);
        assert_eq!(make(&run, 2).unwrap(), 3);
        assert_eq!(make(&run, 2).unwrap(), 4);
        fs::create_dir(place.path().join("launches/12")).unwrap();
        fs::write(place.path().join("launches/notes"), "").unwrap();
        let draft = place.path().join("launches/..gitignore.0123abcd.new");
        fs::write(&draft, "").unwrap();
        assert_eq!(make(&run, 2).unwrap(), 13);
        assert_eq!(launches(&run), [3, 4, 12, 13]);
        assert!(!draft.exists(), "of a launch that was killed");
    }

    #[test]
    fn a_launch_notes_its_attempts_and_a_torn_note_does_not_count() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        let launch = make(&run, 0).unwrap();
        assert_eq!(noted_attempts(&run, launch).unwrap(), []);
        let (a, b) = (TrialId("a".to_owned()), TrialId("b".to_owned()));
        note_attempt(&run, launch, &a, 1).unwrap();
        note_attempt(&run, launch, &b, 12).unwrap();
        let all = [(a.clone(), 1), (b, 12)];
        assert_eq!(noted_attempts(&run, launch).unwrap(), all);
        let path = folder(&run, launch).path().join(ATTEMPTS);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 2]).unwrap();
        assert_eq!(noted_attempts(&run, launch).unwrap(), [(a, 1)]);
    }

    #[test]
    fn a_heartbeat_is_rewritten_in_place() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path());
        let launch = make(&run, 0).unwrap();
        assert_eq!(Heartbeat::read(&run, launch), None);
        for (count, running) in [(1, 0), (12, 3), (13, 0)] {
            let beat = Heartbeat { count, running };
            beat.write(&run, launch).unwrap();
            assert_eq!(Heartbeat::read(&run, launch), Some(beat));
        }
        fs::write(path(&run, launch), "").unwrap();
        assert_eq!(Heartbeat::read(&run, launch), None);
    }
}
