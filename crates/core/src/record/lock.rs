//! Locks: files that one process at a time holds, and that name the holder.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::folder::{self, Folder};

/// Name of an experiment's lock, in its folder.
const LOCK: &str = ".kiln-lock";
/// Longest wait for a lock whose holder has ended, or is not known.
const MOST_WAIT: Duration = Duration::from_secs(3);
/// Wait for any lock: who asks for its holder ([`holder`]) has it for a moment.
const LEAST_WAIT: Duration = Duration::from_millis(50);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// The lock of one experiment; released when dropped, or when the process ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread is just starting still has the file
        // open until its exec.
        let _ = self.file.unlock();
    }
}

/// Stands after the id of a process that removes runs.
const REMOVES: &str = " (kiln rm)";

/// The holder of a lock, in words: ``process 4711 since 2026-11-20T10:00:00Z``.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(pub String);

impl Holder {
    fn or_unknown(holder: Option<Self>) -> Self {
        holder.unwrap_or_else(|| Self("a process whose id is not known yet".to_owned()))
    }

    /// The id of its process, which every lock file begins with; `None` if it is not known.
    pub fn pid(&self) -> Option<u32> {
        let rest = self.0.strip_prefix("process ")?;
        rest.split(' ').next()?.parse().ok()
    }

    /// Whether the holder of the lock runs trials; the other holders remove runs.
    pub fn is_launch(&self) -> bool {
        !self.0.contains(REMOVES)
    }

    /// Whether its process has ended. A child that the process was starting when it was killed has
    /// the file open until its exec.
    fn has_ended(&self) -> bool {
        self.pid().is_some_and(|pid| {
            Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists()
        })
    }
}

/// Takes the lock of one experiment for a launch, or returns its holder.
///
/// # Errors
/// The lock file cannot be created or opened.
pub fn lock(
    results: &Path,
    experiment: &str,
    pid: u32,
    since_utc: &str,
) -> io::Result<Result<Lock, Holder>> {
    lock_experiment(
        results,
        experiment,
        &format!("process {pid} since {since_utc}"),
    )
}

/// The same to remove runs of it.
///
/// # Errors
/// As [`lock`].
pub fn lock_to_remove(
    results: &Path,
    experiment: &str,
    pid: u32,
    since_utc: &str,
) -> io::Result<Result<Lock, Holder>> {
    lock_experiment(
        results,
        experiment,
        &format!("process {pid}{REMOVES} since {since_utc}"),
    )
}

fn lock_experiment(
    results: &Path,
    experiment: &str,
    who: &str,
) -> io::Result<Result<Lock, Holder>> {
    let folder = results.join(experiment);
    fs::create_dir_all(&folder)?;
    lock_file(&folder.join(LOCK), who)
}

/// Returns the launch that holds the lock of an experiment, without taking it.
pub fn launch_at_work(results: &Path, experiment: &str) -> Option<Holder> {
    holder(results, experiment).filter(Holder::is_launch)
}

/// Returns the current holder of the lock of an experiment, without taking it.
pub fn holder(results: &Path, experiment: &str) -> Option<Holder> {
    let folder = Folder::follow(&results.join(experiment)).ok()?;
    let mut file = folder.read(LOCK.as_ref()).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(Holder::or_unknown(read_holder(&mut file))),
        _ => {
            let _ = file.unlock();
            None
        }
    }
}

/// Whether a lock failed because the file system has none: Lustre mounted without `flock`, NFS without
/// its lock service, some FUSE.
pub fn is_without_locks(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP, Errno::INVAL]
        .iter()
        .any(|known| errno == Some(*known))
}

/// Takes the lock of a file, and writes the holder into it.
///
/// # Errors
/// The file cannot be created or opened.
pub fn lock_file(path: &Path, who: &str) -> io::Result<Result<Lock, Holder>> {
    let mut file = open_for_all(path)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                // Where the holder before was read, the offset is behind its text.
                file.rewind()?;
                file.write_all(who.as_bytes())?;
                return Ok(Ok(Lock { file }));
            }
            Err(TryLockError::WouldBlock) => {
                let holder = read_holder(&mut file);
                let is_held = holder.as_ref().is_some_and(|holder| !holder.has_ended());
                let wait = if is_held { LEAST_WAIT } else { MOST_WAIT };
                if begun.elapsed() > wait {
                    return Ok(Err(Holder::or_unknown(holder)));
                }
                thread::sleep(BETWEEN_TRIES);
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Opens a lock file, which is a regular file with one name: what a link leads to is not
/// overwritten. An existing one is not opened for creation, which the kernel refuses in a sticky
/// folder if the file belongs to another user (`fs.protected_regular`).
fn open_for_all(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::PermissionsExt;
    let (folder, name) = folder::split(path)?;
    let folder = Folder::follow(folder)?;
    match folder.edit_existing(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let file = folder.edit(name)?;
    let _ = file.set_permissions(fs::Permissions::from_mode(0o666));
    Ok(file)
}

/// `None` if its text is not written yet.
fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(300).read_to_string(&mut text));
    let text = text.trim();
    (read.is_ok() && !text.is_empty()).then(|| Holder(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_let_go_even_while_a_child_that_is_being_started_has_the_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        let lock = lock_file(&path, "process 1").unwrap().unwrap();
        // As after a fork: the same open file a second time.
        let _inherited = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(lock_file(&path, "process 2").unwrap().is_ok());
    }

    #[test]
    fn a_lock_that_a_dead_process_left_to_a_starting_child_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        // No process has this id: it is above the kernel's limit.
        let lock = lock_file(&path, "process 4194305 since today")
            .unwrap()
            .unwrap();
        let child = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(lock);
        });
        let lock = lock_file(&path, "process 2 since today").unwrap();
        assert!(lock.is_ok());
        child.join().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "process 2 since today");
    }

    #[test]
    fn who_asks_for_the_holder_is_no_holder() {
        let results = tempfile::tempdir().unwrap();
        let (place, own) = (results.path().join("x"), std::process::id());
        drop(lock(results.path(), "x", own, "today").unwrap().unwrap());
        for text in [format!("process {own} since today"), String::new()] {
            fs::write(place.join(LOCK), text).unwrap();
            let asking = File::open(place.join(LOCK)).unwrap();
            asking.try_lock_shared().unwrap();
            let asks = thread::spawn(move || {
                thread::sleep(Duration::from_millis(10));
                drop(asking);
            });
            assert!(lock(results.path(), "x", 42, "today").unwrap().is_ok());
            asks.join().unwrap();
        }
    }

    #[test]
    fn who_removes_runs_is_no_launch() {
        let results = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let removes = lock_to_remove(results.path(), "x", own, "today")
            .unwrap()
            .unwrap();
        assert_eq!(launch_at_work(results.path(), "x"), None);
        let held_by = holder(results.path(), "x").unwrap();
        assert_eq!(held_by.pid(), Some(own));
        assert!(held_by.0.ends_with("(kiln rm) since today"), "{held_by:?}");
        drop(removes);
        let _launch = lock(results.path(), "x", own, "today").unwrap().unwrap();
        assert!(launch_at_work(results.path(), "x").is_some());
    }

    #[test]
    fn a_second_lock_learns_who_has_the_first() {
        let results = tempfile::tempdir().unwrap();
        let first = lock(
            results.path(),
            "x",
            std::process::id(),
            "2026-01-01T00:00:00Z",
        )
        .unwrap()
        .unwrap();
        let second = lock(results.path(), "x", 42, "2026-01-01T00:00:01Z")
            .unwrap()
            .unwrap_err();
        assert_eq!(
            second,
            Holder(format!(
                "process {} since 2026-01-01T00:00:00Z",
                std::process::id()
            ))
        );
        assert_eq!(holder(results.path(), "x"), Some(second));
        drop(first);
        assert_eq!(holder(results.path(), "x"), None);
        assert!(
            lock(results.path(), "x", 42, "2026-01-01T00:00:01Z")
                .unwrap()
                .is_ok()
        );
    }
}
