//! The file in which a launch records the processes of its trials, beside the leases of the
//! devices. If the launch is killed, the next launch of this user finds there what was left, in
//! whatever folder and for whatever experiment it runs.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_core::folder::{Folder, may_be_read_later};
use kiln_hardware::host;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::{
    locks_folder,
    stray::{self, StrayEvidence},
};
use crate::processes::ProcessId;

/// Version of the file.
const FORMAT: u32 = 1;
const PREFIX: &str = "processes-";
/// Extension of a file that is being written.
const DRAFT: &str = "new";
/// A draft is renamed at once; a kill has left one that is older.
const DRAFT_AGE: Duration = Duration::from_secs(60);
/// Largest file that is read, in bytes.
const LARGEST: u64 = 4 << 20;

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessRecord {
    kiln_processes: u32,
    #[serde(flatten)]
    namespace: ProcessNamespace,
    launcher: ProcessId,
    /// The folder of the run, on which the launch works also while no trial runs.
    #[serde(default)]
    run: PathBuf,
    /// The trials' children and all that descends from them.
    pub(super) processes: BTreeSet<ProcessId>,
    /// The folders of their attempts, as their environment names them.
    pub(super) folders: BTreeSet<PathBuf>,
}

/// The scope in which a process id always means the same process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessNamespace {
    pub(super) boot_id: String,
    /// Containers of one machine may share the folder, but not their process ids.
    pub(super) pid_namespace: String,
}

impl ProcessNamespace {
    pub(super) fn here() -> Self {
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            boot_id: host::boot_id().into_value().unwrap_or_default(),
            pid_namespace: namespace.to_string_lossy().into_owned(),
        }
    }
}

/// The record of this launch; its file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct RecordFile {
    path: PathBuf,
    record: ProcessRecord,
    /// Whether the file was made, so that it is to be removed.
    is_made: bool,
    /// Whether the file has the record as it is now.
    is_current: bool,
}

impl RecordFile {
    /// `run` is the folder of the run. Writes nothing yet. `None` if this process cannot be read from
    /// `/proc`.
    pub(super) fn new(folder: &Path, run: &Path) -> Option<Self> {
        let launcher = ProcessId::own()?;
        let ProcessId { pid, started } = launcher;
        Some(Self {
            path: folder.join(format!("{PREFIX}{pid}-{started}.json")),
            record: ProcessRecord {
                kiln_processes: FORMAT,
                namespace: ProcessNamespace::here(),
                launcher,
                run: run.canonicalize().unwrap_or_else(|_| run.to_owned()),
                processes: BTreeSet::new(),
                folders: BTreeSet::new(),
            },
            is_made: false,
            is_current: false,
        })
    }

    /// Writes the record if the file does not have it.
    ///
    /// # Errors
    /// If the folder cannot be made or the file cannot be written.
    pub(super) fn keep(
        &mut self,
        processes: BTreeSet<ProcessId>,
        folders: BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        let is_same = processes == self.record.processes && folders == self.record.folders;
        if is_same && self.is_current {
            return Ok(());
        }
        (self.record.processes, self.record.folders) = (processes, folders);
        self.is_current = false;
        self.write().map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }

    fn write(&mut self) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            locks_folder::make(folder)?;
        }
        let draft = self.path.with_extension(DRAFT);
        let _ = fs::remove_file(&draft);
        self.replace_by(&draft).inspect_err(|_| {
            let _ = fs::remove_file(&draft);
        })?;
        (self.is_made, self.is_current) = (true, true);
        Ok(())
    }

    /// Writes the record to a draft, and renames it.
    fn replace_by(&self, draft: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(draft)?;
        // It need not survive a power cut: no process does.
        file.write_all(&serde_json::to_vec(&self.record).map_err(io::Error::other)?)?;
        fs::rename(draft, &self.path)
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        if self.is_made {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Ends what killed launches of this user left running, and removes their records; returns how many
/// processes were ended.
pub(super) fn end_earlier(folder: &Path) -> usize {
    // A link in place of the folder is not followed: nothing is removed where it leads to.
    let Ok(folder) = Folder::open(folder) else {
        return 0;
    };
    remove_left_drafts(&folder);
    let here = ProcessNamespace::here();
    let names = names(&folder).unwrap_or_default();
    names
        .iter()
        .map(|name| end_recorded(&folder, name, &here))
        .sum()
}

/// Removes the drafts of this user that a kill has left.
fn remove_left_drafts(folder: &Folder) {
    let is_left = |name: &OsStr| -> io::Result<bool> {
        let found = folder.read(name)?.metadata()?;
        let age = found.modified()?.elapsed().unwrap_or_default();
        Ok(found.uid() == geteuid().as_raw() && age > DRAFT_AGE)
    };
    for name in folder.names().unwrap_or_default() {
        let text = name.to_string_lossy();
        let is_draft = text.starts_with(PREFIX) && text.ends_with(&format!(".{DRAFT}"));
        if is_draft && is_left(&name).unwrap_or(false) {
            let _ = folder.remove(&name);
        }
    }
}

/// The process of another launch of this user that works on a run now, by the run's real path.
///
/// # Errors
/// The folder cannot be listed now.
pub(super) fn launcher_in(locks: &Path, run: &Path) -> io::Result<Option<u32>> {
    let names = Folder::open(locks).and_then(|folder| Ok((names(&folder)?, folder)));
    let (names, folder) = match names {
        Ok(found) => found,
        Err(error) if is_unread(&error) => return Err(error),
        // There is none, or it is not one of this user.
        Err(_) => return Ok(None),
    };
    let here = ProcessNamespace::here();
    let records = names.iter().filter_map(|name| read(&folder, name));
    let mut living = records.filter(|record| {
        record.namespace == here
            && record.launcher.pid != std::process::id()
            && record.launcher.is_alive()
            && record.run == run
    });
    Ok(living.next().map(|record| record.launcher.pid))
}

fn is_unread(error: &io::Error) -> bool {
    may_be_read_later(error) && error.kind() != io::ErrorKind::PermissionDenied
}

/// The names of all records.
fn names(folder: &Folder) -> io::Result<Vec<OsString>> {
    let mut names = folder.names()?;
    names.retain(|name| {
        let name = name.to_string_lossy();
        name.starts_with(PREFIX) && name.ends_with(".json")
    });
    Ok(names)
}

fn end_recorded(folder: &Folder, name: &OsStr, here: &ProcessNamespace) -> usize {
    let Some(record) = read(folder, name) else {
        return 0;
    };
    let is_of_this_boot = record.namespace.boot_id == here.boot_id;
    if is_of_this_boot && (record.namespace != *here || record.launcher.is_alive()) {
        return 0;
    }
    let mut ended = 0;
    if is_of_this_boot {
        let seen: HashSet<ProcessId> = record.processes.iter().copied().collect();
        ended = stray::end(&StrayEvidence {
            seen: &seen,
            folders: &record
                .folders
                .iter()
                .map(PathBuf::as_path)
                .collect::<Vec<_>>(),
            expected: None,
        });
    }
    let _ = folder.remove(name);
    ended
}

/// `None` for anything but a whole record that this user wrote: the folder is shared by all users,
/// and a record decides which processes are ended.
fn read(folder: &Folder, name: &OsStr) -> Option<ProcessRecord> {
    let file = folder.read(name).ok()?;
    let found = file.metadata().ok()?;
    if found.uid() != geteuid().as_raw() || found.len() > LARGEST {
        return None;
    }
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text).ok()?;
    let record: ProcessRecord = serde_json::from_slice(&text).ok()?;
    (record.kiln_processes == FORMAT).then_some(record)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt,
        process::{Child, Command},
        time::SystemTime,
    };

    use super::*;

    /// A process that nothing but its id and start time connects to a launch.
    fn stranger() -> Child {
        Command::new("sleep").arg("60").env_clear().spawn().unwrap()
    }

    /// The record of a launcher that is gone, which lists these processes.
    fn left(folder: &Path, processes: &[ProcessId]) -> RecordFile {
        let mut file = RecordFile::new(folder, Path::new("/run")).unwrap();
        // This process runs, but began at another time: its id is used again.
        file.record.launcher.started += 1;
        file.keep(processes.iter().copied().collect(), BTreeSet::new())
            .unwrap();
        file
    }

    #[test]
    fn a_living_launch_is_found_by_its_run_also_while_no_trial_runs() {
        let folder = tempfile::tempdir().unwrap();
        let mut other = stranger();
        let mut file = RecordFile::new(folder.path(), Path::new("/run")).unwrap();
        let found = |run: &str| launcher_in(folder.path(), Path::new(run)).unwrap();
        file.keep(BTreeSet::new(), BTreeSet::new()).unwrap();
        assert_eq!(found("/run"), None, "that is this process");
        file.record.launcher = ProcessId::of(other.id()).unwrap();
        file.write().unwrap();
        assert_eq!((found("/run"), found("/another")), (Some(other.id()), None));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(found("/run"), None);
    }

    #[test]
    fn only_the_recorded_processes_of_a_launch_that_is_gone_are_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (mut ours, mut other) = (stranger(), stranger());
        let id = ProcessId::of(ours.id()).unwrap();
        let reused = ProcessId {
            started: ProcessId::of(other.id()).unwrap().started + 1,
            pid: other.id(),
        };
        let mut file = left(folder.path(), &[id, reused]);

        // As long as the launch runs, its processes are its own.
        file.record.launcher.started -= 1;
        file.write().unwrap();
        assert_eq!(end_earlier(folder.path()), 0);
        // A record of another boot, or of another container, says nothing about these.
        file.record.launcher.started += 1;
        let here = file.record.namespace.clone();
        file.record.namespace.pid_namespace = "pid:[1]".to_owned();
        file.write().unwrap();
        assert_eq!(end_earlier(folder.path()), 0);
        assert!(file.path.exists());
        file.record.namespace = ProcessNamespace {
            boot_id: "another".to_owned(),
            ..here.clone()
        };
        file.write().unwrap();
        assert_eq!((end_earlier(folder.path()), file.path.exists()), (0, false));

        assert!(ours.try_wait().unwrap().is_none());
        file.record.namespace = here;
        file.write().unwrap();
        let waited = std::thread::spawn(move || ours.wait().unwrap().signal());
        assert_eq!((end_earlier(folder.path()), file.path.exists()), (1, false));
        assert_eq!(waited.join().unwrap(), Some(9));
        assert_eq!(other.try_wait().unwrap(), None, "its id was used again");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_record_that_is_a_link_a_pipe_or_damaged_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = stranger();
        let file = left(folder.path(), &[ProcessId::of(process.id()).unwrap()]);
        let target = folder.path().join("elsewhere");
        fs::rename(&file.path, &target).unwrap();
        std::os::unix::fs::symlink(&target, &file.path).unwrap();
        assert_eq!(end_earlier(folder.path()), 0);
        fs::remove_file(&file.path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &file.path, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(end_earlier(folder.path()), 0);
        fs::remove_file(&file.path).unwrap();
        fs::write(&file.path, &fs::read(&target).unwrap()[1..]).unwrap();
        assert_eq!(end_earlier(folder.path()), 0);
        assert_eq!(process.try_wait().unwrap(), None);
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[test]
    fn an_update_that_failed_is_made_again_and_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = RecordFile::new(folder.path(), Path::new("/run")).unwrap();
        let seen = BTreeSet::from([ProcessId::own().unwrap()]);
        file.keep(BTreeSet::new(), BTreeSet::new()).unwrap();
        let path = file.path.clone();
        // A folder in its place: the draft cannot be renamed.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.keep(seen.clone(), BTreeSet::new()).is_err());
        assert!(!path.with_extension(DRAFT).exists());
        fs::remove_dir(&path).unwrap();
        file.keep(seen.clone(), BTreeSet::new()).unwrap();
        let place = Folder::open(folder.path()).unwrap();
        let kept = read(&place, path.file_name().unwrap()).unwrap();
        assert_eq!(kept.processes, seen);
    }

    #[test]
    fn the_drafts_that_kills_left_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let made = |name: &str, age: Duration| {
            let path = folder.path().join(name);
            let file = fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let old = 2 * DRAFT_AGE;
        let left = made("processes-1-2.new", old);
        let others = [
            made("processes-3-4.new", Duration::ZERO),
            made("GPU-0.new", old),
        ];
        end_earlier(folder.path());
        assert!(!left.exists() && others.iter().all(|path| path.exists()));
    }

    #[test]
    fn the_file_goes_with_the_launch() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = RecordFile::new(folder.path(), Path::new("/run")).unwrap();
        file.keep(BTreeSet::from([ProcessId::own().unwrap()]), BTreeSet::new())
            .unwrap();
        let path = file.path.clone();
        let folder = Folder::open(folder.path()).unwrap();
        assert_eq!(
            read(&folder, path.file_name().unwrap()).unwrap(),
            file.record
        );
        drop(file);
        assert!(!path.exists());
    }
}
