//! The libraries that the processes of a trial have loaded: their files and build ids.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_core::{input, kinds::Model, plan::Trial, record::libraries::watched_files};
use kiln_hardware::maps;

/// Most processes of a trial that are looked at; workers load what their parent has.
const MOST_PROCESSES: usize = 16;
/// Age of a program without a window of its own at the first look, and at the last one: each is at
/// twice the age of the one before.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_secs(64);

/// The libraries of one attempt.
#[derive(Debug)]
pub(in crate::schedule) struct LoadedLibraries {
    found: BTreeMap<String, String>,
    when: When,
}

/// The time of the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// `kiln-trial` reports its libraries itself.
    Never,
    AtWindow,
    /// The window of a command begins with its program, which has loaded nothing yet.
    AtAge(Duration),
}

impl LoadedLibraries {
    pub(in crate::schedule) fn new(trial: &Trial) -> Self {
        let when = match &*trial.model {
            Model::Command(command) => {
                let window = command.window.as_ref();
                match window.is_some_and(|window| window.from.is_some()) {
                    true => When::AtWindow,
                    false => When::AtAge(FIRST_LOOK),
                }
            }
            _ if trial.engine.own_name().is_some() => When::AtWindow,
            _ => When::Never,
        };
        Self {
            found: BTreeMap::new(),
            when,
        }
    }

    /// The measured window of the child begins or ends.
    pub(in crate::schedule) fn at_window(&mut self, pid: u32) {
        if self.when == When::AtWindow {
            self.when = When::Never;
            self.look(pid);
        }
    }

    /// `age` is the time since the child was started.
    pub(in crate::schedule) fn at_tick(&mut self, pid: u32, age: Duration) {
        if let When::AtAge(due) = self.when
            && age >= due
        {
            self.look(pid);
            let next = age.max(due) * 2;
            self.when = match next <= LAST_LOOK {
                true => When::AtAge(next),
                false => When::Never,
            };
        }
    }

    /// The libraries by name; `reported` has those that the child itself reported, which count.
    pub(in crate::schedule) fn with_reported(
        self,
        reported: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut all = self.found;
        all.extend(reported);
        all
    }

    fn look(&mut self, pid: u32) {
        for (pid, maps) in maps(pid, MOST_PROCESSES) {
            for (name, path) in watched_files(&maps) {
                self.found
                    .entry(name)
                    .or_insert_with(|| described(pid, &path));
            }
        }
    }
}

/// `libcudnn.so.9.10.2, build id 5c7710aa3e9d…`.
fn described(pid: u32, path: &str) -> String {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    // As the process itself sees it: it may run in a container.
    let own = PathBuf::from(format!("/proc/{pid}/root{path}"));
    let file = path.rsplit('/').next().unwrap_or(path);
    match build_id(&own).or_else(|_| build_id(Path::new(path))) {
        Ok(Some(id)) => format!("{file}, build id {id}"),
        Ok(None) | Err(_) => file.to_owned(),
    }
}

/// Most bytes of the notes of a library that are read.
const MOST_NOTES: u64 = 1 << 16;
/// Most program headers that are read.
const MOST_HEADERS: u64 = 64;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The build id of a library, in hex; `None` if it has none.
///
/// # Errors
/// It cannot be read, or is not a 64-bit ELF file of this byte order.
/// Source: System V ABI, "Program Header" and "Note Section".
fn build_id(path: &Path) -> io::Result<Option<String>> {
    let file = input::open(path)?;
    let head = bytes(&file, 0, 64)?;
    let is_elf = head.starts_with(b"\x7fELF\x02");
    if !is_elf || head[5] != if cfg!(target_endian = "little") { 1 } else { 2 } {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let (at, size) = (number(&head, 32, 8), number(&head, 54, 2));
    for index in 0..number(&head, 56, 2).min(MOST_HEADERS) {
        let header = bytes(&file, at.saturating_add(index * size), 56)?;
        if number(&header, 0, 4) == u64::from(PT_NOTE) {
            let (from, length) = (number(&header, 8, 8), number(&header, 32, 8));
            let notes = bytes(&file, from, length.min(MOST_NOTES))?;
            if let Some(id) = id_in(&notes) {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

fn id_in(notes: &[u8]) -> Option<String> {
    let mut at = 0_usize;
    while at + 12 <= notes.len() {
        let part = |place: usize| number(notes, at + place, 4) as usize;
        let (name, content, kind) = (part(0), part(4), part(8));
        let from = at
            .checked_add(12)?
            .checked_add(name)?
            .checked_next_multiple_of(4)?;
        let until = from.checked_add(content)?;
        let is_id =
            kind == NT_GNU_BUILD_ID as usize && notes.get(at + 12..at + 16) == Some(b"GNU\0");
        if is_id {
            return notes.get(from..until).map(hex::encode);
        }
        at = until.checked_next_multiple_of(4)?;
    }
    None
}

fn bytes(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// The number of so many bytes at a place; 0 beyond the end.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut whole = [0; 8];
    if let Some(found) = bytes.get(at..at + length) {
        match cfg!(target_endian = "little") {
            true => whole[..length].copy_from_slice(found),
            false => whole[8 - length..].copy_from_slice(found),
        }
    }
    u64::from_ne_bytes(whole)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn a_build_id_is_that_of_the_notes_and_a_text_has_none() {
        let place = tempfile::tempdir().unwrap();
        let text = place.path().join("text");
        fs::write(&text, "x".repeat(100)).unwrap();
        assert!(build_id(&text).is_err());
        fs::write(&text, "").unwrap();
        assert!(build_id(&text).is_err());
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut note = Vec::new();
            for number in [name.len() as u32, content.len() as u32, kind] {
                note.extend(number.to_ne_bytes());
            }
            note.extend(name);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend(content);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let other = note(b"other\0", 3, b"abc");
        let own = note(b"GNU\0", 3, &[0x5c, 0x77, 0x10]);
        assert_eq!(
            id_in(&[other.clone(), own].concat()),
            Some("5c7710".to_owned())
        );
        assert_eq!(id_in(&other), None);
        let huge = note(b"GNU\0", 3, &[1; 20]);
        assert_eq!(id_in(&huge[..24]), None, "a torn note");
        assert_eq!(id_in(&[0xff; 40]), None);
    }

    #[test]
    fn libraries_of_a_process_are_found_with_their_build_ids() {
        // Python loads this one if it is asked to; the C library of this process is always there.
        let own = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = own.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            path.contains("/libc.so").then(|| path.to_owned())
        });
        let libc = libc.expect("this process has loaded the C library");
        let described = described(std::process::id(), &libc);
        assert!(described.starts_with("libc.so"), "{described}");
        let mut sleeper = Command::new("sleep").arg("300").spawn().unwrap();
        let mut libraries = LoadedLibraries {
            found: BTreeMap::new(),
            when: When::AtAge(FIRST_LOOK),
        };
        libraries.at_tick(sleeper.id(), Duration::from_millis(100));
        assert_eq!(libraries.when, When::AtAge(FIRST_LOOK), "it is too early");
        libraries.at_tick(sleeper.id(), Duration::from_secs(1));
        assert_eq!(libraries.when, When::AtAge(Duration::from_secs(2)));
        libraries.at_tick(sleeper.id(), Duration::from_secs(40));
        assert_eq!(libraries.when, When::Never);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let reported = BTreeMap::from([("libtorch".to_owned(), "2.11.0".to_owned())]);
        assert_eq!(libraries.with_reported(reported.clone()), reported);
    }
}
