//! The libraries that the processes of a trial have loaded: their files and build ids.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_core::{
    kinds::Model,
    plan::Trial,
    record::libraries::{build_id, watched_files, with_build_id},
};
use kiln_hardware::maps;

/// Most processes of a trial that are looked at; workers load what their parent has.
const MOST_PROCESSES: usize = 16;
/// Age of a program without a window of its own at the first look, and at the last one: each is at
/// twice the age of the one before.
const FIRST_LOOK: Duration = Duration::from_millis(125);
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
    let id = build_id(&own).or_else(|_| build_id(Path::new(path)));
    with_build_id(file, id.ok().flatten().as_deref())
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    fn a_program_is_looked_at_by_the_second_tick_at_the_latest() {
        let mut libraries = LoadedLibraries {
            found: BTreeMap::new(),
            when: When::AtAge(FIRST_LOOK),
        };
        // Ticks are 200 ms apart.
        libraries.at_tick(std::process::id(), Duration::from_millis(200));
        assert_eq!(libraries.when, When::AtAge(Duration::from_millis(400)));
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
