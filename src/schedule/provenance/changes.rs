//! Compares the programs of a launch with those of the launches before, and, while the launch runs,
//! with those at its start.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use kiln_core::{
    input,
    limits::PROGRAM_FILE_BYTES,
    record::{PackageList, ProgramRecord, RunFile, run_file::Launch},
    spec::expand_home,
    units::{counted, listed, short_hash},
};

use super::{Described, FileNow, Programs, stamp::Stamp};
use crate::readings::Paths;

/// Why a recorded file has no hash now.
const GONE: &str = "is gone";

/// A file of a program that is another one than that of an earlier launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schedule) struct Change {
    file: String,
    launch: u64,
    before: String,
    /// Where it lay then, if elsewhere.
    moved_from: Option<String>,
    may_be_output: bool,
    /// `None` if it is gone or cannot be read; then the reason.
    now: Result<String, String>,
}

impl Change {
    /// Whether the file stands where it stood.
    pub(in crate::schedule) fn is_in_place(&self) -> bool {
        self.moved_from.is_none() && self.now.is_ok()
    }

    /// The sentence on a file that is gone: it is not found, perhaps because kiln was started in
    /// another folder.
    pub(in crate::schedule) fn not_found(&self) -> Option<String> {
        let is_gone = self.now.as_ref().is_err_and(|why| why == GONE);
        (is_gone && !self.is_of_absolute_path()).then(|| {
            format!(
                "`{}` of launch {} ({}) is not found from this folder",
                self.file,
                self.launch,
                short_hash(&self.before)
            )
        })
    }

    /// Whether the experiment names the file from the root or from the home folder.
    pub(in crate::schedule) fn is_of_absolute_path(&self) -> bool {
        self.file.starts_with(['/', '~'])
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            launch,
            before,
            moved_from,
            now,
            may_be_output: _,
        } = self;
        let before = short_hash(before);
        let then = match moved_from {
            Some(then) => format!("`{then}` of launch {launch}"),
            None => format!("launch {launch}'s"),
        };
        match now {
            Ok(now) => write!(
                f,
                "`{file}` is another than {then} ({before}, {})",
                short_hash(now)
            ),
            Err(why) => write!(f, "`{file}` of launch {launch} ({before}) {why}"),
        }
    }
}

/// How to keep a program from changing its own files, where it may have done so; else empty.
pub(in crate::schedule) fn advice(changes: &[Change]) -> &'static str {
    match changes.iter().any(|change| change.may_be_output) {
        true => "; a file that the program itself writes belongs below `{folder}`",
        false => "",
    }
}

/// The differences from the launches before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schedule) struct Changed {
    /// These refuse a resume.
    pub(in crate::schedule) refused: Vec<Change>,
    /// These are told.
    pub(in crate::schedule) told: Vec<String>,
}

/// The hashes of a program in the launch that first recorded each: launch and hash by path.
type Known = BTreeMap<String, (u64, String)>;

/// The files of a program in the launches from `first` on.
fn known(
    launches: &[Launch],
    key: &str,
    first: u64,
    of: impl Fn(&ProgramRecord) -> &BTreeMap<String, String>,
) -> Known {
    let mut known = Known::new();
    for launch in launches.iter().filter(|launch| launch.launch >= first) {
        for (path, sha256) in launch.programs.get(key).map(&of).into_iter().flatten() {
            let entry = known.entry(path.clone());
            entry.or_insert_with(|| (launch.launch, sha256.clone()));
        }
    }
    known
}

impl Programs {
    /// Compares with the launches of a run from `first` on, which is the first that measured
    /// something.
    pub(in crate::schedule) fn compare(
        &mut self,
        launches: &[Launch],
        first: u64,
        paths: &Paths,
    ) -> Changed {
        let mut changed = Changed::default();
        for (key, files) in &mut self.files {
            let held = known(launches, key, first, |record| &record.files);
            let beside = known(launches, key, first, |record| &record.beside);
            for (name, file) in files.iter_mut() {
                file.since = held.get(&paths.hide(name)).map(|(launch, _)| *launch);
            }
            let now: BTreeMap<String, &FileNow> = files
                .iter()
                .map(|(name, file)| (paths.hide(name), file))
                .collect();
            changed.refused.extend(refused(&held, &now));
            let is_old = !held.is_empty() || !beside.is_empty();
            changed
                .told
                .extend(told(&held, &beside, &now).filter(|_| is_old));
        }
        changed
    }

    /// Compares with the files as they were read: one is read again only if its size, times or inode
    /// moved. `here` is the launch that read them.
    pub(in crate::schedule) fn changed_since_read(&mut self, here: u64) -> Vec<Change> {
        let mut found: BTreeMap<&String, Change> = BTreeMap::new();
        for (name, file) in self.files.values_mut().flatten() {
            let Ok(before) = file.sha256.clone() else {
                continue;
            };
            if !file.is_held {
                continue;
            }
            let stamp = Stamp::of(&file.path);
            if stamp.as_ref().ok() == file.stamp.as_ref() {
                continue;
            }
            let now = stamp
                .and_then(|stamp| Ok((stamp, input::sha256(&file.path, &PROGRAM_FILE_BYTES)?)));
            match now {
                Ok((stamp, sha256)) if sha256 == before => file.stamp = Some(stamp),
                now => {
                    let change = Change {
                        file: name.clone(),
                        launch: file.since.unwrap_or(here),
                        before,
                        moved_from: None,
                        may_be_output: file.may_be_output,
                        now: now.map(|(_, sha256)| sha256).map_err(|error| gone(&error)),
                    };
                    found.insert(name, change);
                }
            }
        }
        found.into_values().collect()
    }
}

fn gone(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => GONE.to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// Files whose content is another one. A file that lies elsewhere is the same file.
fn refused(held: &Known, now: &BTreeMap<String, &FileNow>) -> Vec<Change> {
    let mut changes = Vec::new();
    let contents: BTreeSet<&str> = now
        .values()
        .filter_map(|file| file.sha256.as_deref().ok())
        .collect();
    let mut left: BTreeMap<&String, &(u64, String)> = held
        .iter()
        .filter(|(path, _)| !now.contains_key(*path))
        .collect();
    left.retain(|_, (_, sha256)| !contents.contains(sha256.as_str()));
    for (path, file) in now.iter().filter(|(_, file)| file.is_held) {
        let same = held.get(path);
        // A file that was moved is found by its name.
        let moved = || {
            let is_new = !held
                .values()
                .any(|(_, sha256)| file.sha256.as_ref() == Ok(sha256));
            let place = left.keys().find(|old| is_new && last(old) == last(path))?;
            Some((*place).clone())
        };
        let moved_from = match same {
            Some(_) => None,
            None => moved(),
        };
        let before = same.or_else(|| left.remove(moved_from.as_ref()?));
        let Some((launch, before)) = before else {
            continue;
        };
        if file.sha256.as_ref() != Ok(before) {
            changes.push(Change {
                file: path.clone(),
                launch: *launch,
                before: before.clone(),
                moved_from,
                may_be_output: file.may_be_output,
                now: file
                    .sha256
                    .clone()
                    .map_err(|why| format!("cannot be read: {why}")),
            });
        }
    }
    // One that exists is only not listed any more.
    let gone = left
        .into_iter()
        .filter(|(path, _)| expand_home(path).symlink_metadata().is_err());
    changes.extend(gone.map(|(path, (launch, sha256))| Change {
        file: path.clone(),
        launch: *launch,
        before: sha256.clone(),
        moved_from: None,
        may_be_output: false,
        now: Err(GONE.to_owned()),
    }));
    changes
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Differences that a resume accepts.
fn told<'a>(
    held: &'a Known,
    beside: &'a Known,
    now: &'a BTreeMap<String, &'a FileNow>,
) -> impl Iterator<Item = String> + 'a {
    let contents: BTreeSet<&str> = held.values().map(|(_, sha256)| sha256.as_str()).collect();
    let is_new = move |path: &String, file: &FileNow| {
        let is_known = file
            .sha256
            .as_deref()
            .is_ok_and(|sha256| contents.contains(sha256));
        file.is_held && !held.contains_key(path) && !beside.contains_key(path) && !is_known
    };
    let added: Vec<String> = now
        .iter()
        .filter(|(path, file)| is_new(path, file))
        .map(|(path, _)| format!("`{path}`"))
        .collect();
    let added = (!added.is_empty()).then(|| {
        format!(
            "not among the files of the earlier launches: {}",
            listed(&added, ", ")
        )
    });
    let other = now.iter().filter_map(|(path, file)| {
        let ((launch, before), now) = (beside.get(path)?, file.sha256.as_ref().ok()?);
        (before != now).then(|| {
            format!(
                "`{path}` is another than launch {launch}'s ({}, {})",
                short_hash(before),
                short_hash(now)
            )
        })
    });
    added.into_iter().chain(other)
}

/// Sentences on interpreters and packages that are others than those of the last launch before that
/// recorded them. `list_of` reads a list of packages of the run.
pub(in crate::schedule) fn interpreters(
    run: &RunFile,
    now: &Described,
    list_of: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut seen = BTreeSet::new();
    let all = now.programs.iter();
    for (key, name, new) in all.flat_map(|(key, record)| {
        record
            .interpreters
            .iter()
            .map(move |(name, new)| (key, name, new))
    }) {
        let before = run.launches.iter().rev().find_map(|launch| {
            let old = launch.programs.get(key)?.interpreters.get(name)?;
            old.version.is_some().then_some((launch.launch, old))
        });
        let Some((launch, old)) = before.filter(|_| seen.insert(name)) else {
            continue;
        };
        if let (Some(old), Some(new)) = (&old.version, &new.version)
            && old != new
        {
            sentences.push(format!("{name} is {new}; it was {old} at launch {launch}"));
        }
        let sums = (&old.packages_sha256, &new.packages_sha256);
        let (Some(before), Some(after)) = sums else {
            continue;
        };
        if before != after {
            let list = |lists: &[PackageList]| {
                let own = lists.iter().find(|list| list.interpreter == *name);
                own.map(|list| list.packages.clone())
            };
            let text = old.packages_file.as_deref().and_then(&list_of);
            let lists = text
                .map(|text| PackageList::parse(&text))
                .unwrap_or_default();
            let what = list(&lists)
                .zip(list(&now.packages))
                .map(|(old, new)| differing(&old, &new))
                .unwrap_or_else(|| "its list cannot be read".to_owned());
            sentences.push(format!(
                "packages of {name} are others than at launch {launch}: {what}"
            ));
        }
    }
    sentences
}

/// `numpy 1.26.0 → 2.1.0, scipy 1.11 added`.
fn differing(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> String {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let one = |name: &String| match (old.get(name), new.get(name)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(old), Some(new)) => Some(format!("{name} {old} → {new}")),
        (Some(old), None) => Some(format!("{name} {old} removed")),
        (None, new) => Some(format!("{name} {} added", new.map_or("", String::as_str))),
    };
    let each: Vec<String> = names.into_iter().filter_map(one).collect();
    match each.is_empty() {
        true => counted(new.len(), "package"),
        false => listed(&each, ", "),
    }
}
