//! Copies what a new run takes over of another one: the files of the attempts, and the records of
//! the launches in which they ran.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs::{self, File, FileType},
    io::{self, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use csv::{ByteRecord, ReaderBuilder, Writer};
use kiln_core::{
    folder::{Folder, is_full, names_in, split},
    plan::TrialId,
    record::{
        RunFolder, attempt::RESULT_FILE, launch_folder::samples_tables, run_file::write_json,
        run_folder::TRIAL_YAML, tables::SNAPSHOTS,
    },
};

use super::CopiedRow;

/// Bytes that are copied between two looks for a signal.
const CHUNK: u64 = 8 << 20;

/// # Errors
/// A signal set `asked`: [`io::ErrorKind::Interrupted`].
pub(super) fn heed(asked: &AtomicBool) -> io::Result<()> {
    match asked.load(Ordering::Relaxed) {
        true => Err(io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}

/// Makes the folder of an attempt in the new run: the old files, and the result of now.
///
/// # Errors
/// A file cannot be read or written, or `asked` is set: [`io::ErrorKind::Interrupted`].
pub(super) fn copy_attempt(
    old: &RunFolder,
    new: &RunFolder,
    attempt: &CopiedRow,
    asked: &AtomicBool,
) -> io::Result<()> {
    let row = &attempt.row.fixed;
    let from = old.attempt(&row.trial, row.attempt);
    let to = new.make_attempt(&row.trial, row.attempt)?;
    match &attempt.result {
        Some(result) => {
            link_all(&from, &to, &from, &[RESULT_FILE], asked)?;
            write_json(&to.join(RESULT_FILE), result)?;
        }
        None => link_all(&from, &to, &from, &[], asked)?,
    }
    let [from, to] = [old, new].map(|run| run.trial(&row.trial).join(TRIAL_YAML));
    match from.symlink_metadata().is_ok_and(|found| found.is_file()) {
        true => copy(&from, &to, asked),
        false => Ok(()),
    }
}

/// The parts of a trial's folder that the new run takes over.
pub(super) struct TrialParts<'a> {
    /// The attempts with a row.
    pub(super) attempts: &'a HashSet<(TrialId, u64)>,
    /// Whether both runs may share the files of its checkpoints, because nobody writes into them.
    pub(super) links_checkpoints: bool,
}

/// Makes the folder of a trial in the new run, with its attempts and checkpoints. A clone has none.
///
/// # Errors
/// As [`copy_attempt`].
pub(super) fn copy_trial(
    old: &RunFolder,
    new: &RunFolder,
    trial: &TrialId,
    parts: &TrialParts<'_>,
    asked: &AtomicBool,
) -> io::Result<()> {
    let from = old.trial(trial);
    let Some(name) = from.file_name() else {
        return Ok(());
    };
    if !from.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    let to = new.trials().join(name);
    fs::create_dir(&to)?;
    let checkpoints = old.checkpoints(trial);
    let checkpoints = checkpoints.file_name().and_then(OsStr::to_str);
    // Those of an earlier attempt stand beside them, with its number.
    let has_checkpoints = |name: &OsStr| {
        let own = name.to_str().zip(checkpoints);
        own.is_some_and(|(name, checkpoints)| name.starts_with(checkpoints))
    };
    let has_no_row = |name: &OsStr| {
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        number.is_some_and(|number| !parts.attempts.contains(&(trial.clone(), number)))
    };
    let way = |links| Way {
        root: &from,
        links,
        asked,
    };
    let is_copied = |name: &OsStr| !parts.links_checkpoints && has_checkpoints(name);
    put_all(&from, &to, &way(true), &|name| {
        has_no_row(name) || is_copied(name)
    })?;
    put_all(&from, &to, &way(false), &|name| !is_copied(name))
}

/// Copies the snapshots and lists of packages of the launches, and the samples of these attempts. A
/// trial that runs again may have an attempt of the same number as one that is not taken over.
///
/// # Errors
/// As [`copy_attempt`].
pub(super) fn copy_records(
    old: &RunFolder,
    new: &RunFolder,
    attempts: &HashSet<(TrialId, u64)>,
    asked: &AtomicBool,
) -> io::Result<()> {
    // The run's own folder may be a link to another disk; none in it is followed.
    let old = &RunFolder::at(old.path().canonicalize()?);
    for name in names_in(old.path())? {
        if name.to_str().is_some_and(is_of_launches) {
            copy(&old.path().join(&name), &new.path().join(&name), asked)?;
        }
    }
    let tables = samples_tables(old);
    if tables.is_empty() {
        return Ok(());
    }
    let to = new.samples_table();
    copy_samples(&tables, &to, attempts, asked).map_err(not_copied(&to))
}

/// Whether a name is that of `snapshots.csv`, of a page of it, or of a list of packages.
fn is_of_launches(name: &str) -> bool {
    let mut beginnings = ["snapshot-", "packages-"].into_iter();
    let is_page = beginnings.any(|beginning| name.starts_with(beginning)) && name.ends_with(".txt");
    is_page || name == SNAPSHOTS.file
}

/// Writes the rows of these attempts into one table. The columns of all are the same, and a torn line
/// is of an attempt that has no row.
fn copy_samples(
    tables: &[PathBuf],
    to: &Path,
    attempts: &HashSet<(TrialId, u64)>,
    asked: &AtomicBool,
) -> io::Result<()> {
    let file = File::create_new(to)?;
    let mut writer = Writer::from_writer(&file);
    let mut is_begun = false;
    for table in tables {
        let mut reader = ReaderBuilder::new().flexible(true).from_path(table)?;
        let head = reader.byte_headers()?.clone();
        let at = |column: &str| head.iter().position(|name| name == column.as_bytes());
        let (trial, attempt) = (at("trial"), at("attempt"));
        if !is_begun && !head.is_empty() {
            writer.write_byte_record(&head)?;
            is_begun = true;
        }
        let mut record = ByteRecord::new();
        while reader.read_byte_record(&mut record)? {
            heed(asked)?;
            let cell = |at: Option<usize>| {
                let bytes = record.get(at?)?;
                std::str::from_utf8(bytes).ok()
            };
            let number = cell(attempt).and_then(|number| number.parse::<u64>().ok());
            let key = cell(trial).zip(number);
            let is_kept = key.is_some_and(|(trial, attempt)| {
                attempts.contains(&(TrialId(trial.to_owned()), attempt))
            });
            if is_kept && record.len() == head.len() {
                writer.write_byte_record(&record)?;
            }
        }
    }
    writer.flush()?;
    drop(writer);
    file.sync_all()
}

/// The sizes of all files in a folder, as far as it can be read.
pub(super) fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_in(&entry.path()),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    });
    sizes.sum()
}

/// Puts all that is in a folder below `root` into another one, as hard links where the file system has
/// them.
fn link_all(
    from: &Path,
    to: &Path,
    root: &Path,
    except: &[&str],
    asked: &AtomicBool,
) -> io::Result<()> {
    let way = Way {
        root,
        links: true,
        asked,
    };
    let is_left_out = |name: &OsStr| except.iter().any(|other| name.to_str() == Some(*other));
    put_all(from, to, &way, &is_left_out)
}

/// How the content of folders below `root` is put into others.
struct Way<'a> {
    root: &'a Path,
    /// As hard links where the file system has them; else as copies.
    links: bool,
    /// Set by a signal.
    asked: &'a AtomicBool,
}

/// Puts what is in a folder into another one, but for the entries that are left out.
fn put_all(
    from: &Path,
    to: &Path,
    way: &Way<'_>,
    is_left_out: &dyn Fn(&OsStr) -> bool,
) -> io::Result<()> {
    for entry in fs::read_dir(from).map_err(not_copied(from))? {
        heed(way.asked)?;
        let entry = entry.map_err(not_copied(from))?;
        let name = entry.file_name();
        if is_left_out(&name) {
            continue;
        }
        let (old, new) = (entry.path(), to.join(&name));
        let kind = entry.file_type().map_err(not_copied(&old))?;
        put(&old, &new, kind, way).map_err(not_copied(&old))?;
        if kind.is_dir() {
            put_all(&old, &new, way, &|_| false)?;
        }
    }
    Ok(())
}

/// Puts one entry of a folder into another one; of a folder, only itself.
fn put(old: &Path, new: &Path, kind: FileType, way: &Way<'_>) -> io::Result<()> {
    if kind.is_dir() {
        fs::create_dir(new)
    } else if kind.is_symlink() {
        symlink(target_below(&fs::read_link(old)?, old, way.root), new)
    } else if kind.is_file() && way.links {
        fs::hard_link(old, new).or_else(|_| copy_bytes(old, new, way.asked))
    } else if kind.is_file() {
        copy_bytes(old, new, way.asked)
    } else {
        Ok(())
    }
}

/// The target of a link, relative if it is an absolute path below `root`: in a copy of that folder it
/// leads to the same place of the copy.
fn target_below(target: &Path, link: &Path, root: &Path) -> PathBuf {
    let Ok(below) = target.strip_prefix(root) else {
        return target.to_owned();
    };
    let folder = link
        .parent()
        .and_then(|folder| folder.strip_prefix(root).ok());
    let up = folder.map_or(0, |folder| folder.components().count());
    let mut relative = PathBuf::from(".");
    relative.extend((0..up).map(|_| ".."));
    relative.join(below)
}

fn copy(old: &Path, new: &Path, asked: &AtomicBool) -> io::Result<()> {
    copy_bytes(old, new, asked).map_err(not_copied(old))
}

/// Copies a regular file.
fn copy_bytes(old: &Path, new: &Path, asked: &AtomicBool) -> io::Result<()> {
    let (folder, name) = split(old)?;
    let mut from = Folder::open(folder)?.read(name)?;
    let mut to = File::create_new(new)?;
    heed(asked)?;
    while io::copy(&mut from.by_ref().take(CHUNK), &mut to)? > 0 {
        heed(asked)?;
    }
    to.sync_all()
}

/// Names what was copied. The kind of the error says whether a disk is full; what to do then is told
/// by the caller.
pub(super) fn not_copied(path: &Path) -> impl Fn(io::Error) -> io::Error {
    let path = path.to_owned();
    move |error| {
        let path = path.display();
        let text = match is_full(&error) {
            true => format!("{path}: {error}"),
            false => format!(
                "{path}: it cannot be copied into the new run, which was therefore not made: {error}; \
                 correct this and run the same command again, or start a run without it with `--fresh`"
            ),
        };
        io::Error::new(error.kind(), text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_files_of_an_attempt_are_linked_with_its_folders() {
        let place = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| place.path().join(name));
        fs::create_dir_all(from.join("out/deep")).unwrap();
        fs::create_dir(&to).unwrap();
        for name in ["stdout.txt", RESULT_FILE, "out/trial.json"] {
            fs::write(from.join(name), name).unwrap();
        }
        symlink("stdout.txt", from.join("link")).unwrap();
        symlink(from.join("out/trial.json"), from.join("out/deep/own")).unwrap();
        symlink("/nowhere/else", from.join("other")).unwrap();
        let asked = AtomicBool::new(false);
        link_all(&from, &to, &from, &[RESULT_FILE], &asked).unwrap();
        fs::remove_dir_all(&from).unwrap();
        let read = |name: &str| fs::read_to_string(to.join(name)).ok();
        assert_eq!(read("stdout.txt").as_deref(), Some("stdout.txt"));
        assert_eq!(read("link").as_deref(), Some("stdout.txt"));
        assert_eq!(read("out/trial.json").as_deref(), Some("out/trial.json"));
        assert_eq!(read("out/deep/own").as_deref(), Some("out/trial.json"));
        let other = fs::read_link(to.join("other")).unwrap();
        assert_eq!(other, Path::new("/nowhere/else"));
        assert_eq!(read(RESULT_FILE), None);
    }

    #[test]
    fn a_signal_ends_the_copying_before_the_next_file() {
        let place = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| place.path().join(name));
        for folder in [&from, &to] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(from.join("stdout.txt"), "").unwrap();
        let ended = link_all(&from, &to, &from, &[], &AtomicBool::new(true));
        let kind = ended.map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::Interrupted));
        assert!(!to.join("stdout.txt").exists());
    }

    #[test]
    fn a_file_of_several_chunks_is_copied_whole_unless_a_signal_ends_it() {
        let place = tempfile::tempdir().unwrap();
        let [from, to, other] = ["from", "to", "other"].map(|name| place.path().join(name));
        let length = 2 * usize::try_from(CHUNK).unwrap() + 3;
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        fs::write(&from, &bytes).unwrap();
        copy_bytes(&from, &to, &AtomicBool::new(false)).unwrap();
        assert!(fs::read(&to).unwrap() == bytes);
        let ended = copy_bytes(&from, &other, &AtomicBool::new(true));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(other.metadata().unwrap().len(), 0);
    }

    #[test]
    fn the_size_of_a_folder_is_that_of_the_files_in_it_and_in_its_folders() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("attempt");
        fs::create_dir_all(folder.join("out")).unwrap();
        fs::write(place.path().join("elsewhere"), [0; 500]).unwrap();
        fs::write(folder.join("stdout.txt"), [0; 30]).unwrap();
        fs::write(folder.join("out/model"), [0; 7]).unwrap();
        symlink("../elsewhere", folder.join("link")).unwrap();
        assert_eq!(bytes_in(&folder), 37);
        assert_eq!(bytes_in(&place.path().join("missing")), 0);
    }

    #[test]
    fn samples_of_the_attempts_that_are_taken_over_are_copied() {
        let place = tempfile::tempdir().unwrap();
        let [one, two, to] = ["1", "2", "to"].map(|name| place.path().join(name));
        let head = "launch,run_seconds,trial,attempt,device\n";
        let of = |rows: &str| format!("{head}{rows}");
        fs::write(
            &one,
            of("1,0.5,t000000000a,1,cpu\n1,0.5,t000000000b,1,cpu\n"),
        )
        .unwrap();
        fs::write(&two, of("2,1.5,t000000000b,2,cpu\n2,2.5,t000000000b,2")).unwrap();
        let attempts = [("t000000000a", 1), ("t000000000b", 2)];
        let attempts = attempts.map(|(trial, attempt)| (TrialId(trial.to_owned()), attempt));
        let (tables, attempts) = ([one, two], HashSet::from(attempts));
        copy_samples(&tables, &to, &attempts, &AtomicBool::new(false)).unwrap();
        let wanted = of("1,0.5,t000000000a,1,cpu\n2,1.5,t000000000b,2,cpu\n");
        assert_eq!(fs::read_to_string(to).unwrap(), wanted);
        let other = place.path().join("other");
        let ended = copy_samples(&tables, &other, &attempts, &AtomicBool::new(true));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn the_folder_of_a_trial_has_its_attempts_with_a_row_and_its_checkpoints() {
        let place = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| RunFolder::at(place.path().join(name)));
        let trial = TrialId("t000000000a".to_owned());
        for file in [
            "1/steps.csv",
            "2/steps.csv",
            "checkpoint/5/model",
            "checkpoint.1/3/model",
        ] {
            let path = old.trial(&trial).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let attempts = HashSet::from([(trial.clone(), 1)]);
        let copied = |links_checkpoints: bool| {
            let _ = fs::remove_dir_all(new.path());
            fs::create_dir_all(new.trials()).unwrap();
            let parts = TrialParts {
                attempts: &attempts,
                links_checkpoints,
            };
            copy_trial(&old, &new, &trial, &parts, &AtomicBool::new(false)).unwrap();
            let files = ["1/steps.csv", "checkpoint/5/model", "checkpoint.1/3/model"];
            files.map(|file| {
                let path = new.trial(&trial).join(file);
                assert_eq!(fs::read_to_string(&path).unwrap(), file);
                path.metadata().unwrap().nlink()
            })
        };
        assert_eq!(copied(true), [2, 2, 2]);
        assert_eq!(copied(false), [2, 1, 1]);
        assert!(!new.attempt(&trial, 2).exists(), "it has no row");
    }
}
