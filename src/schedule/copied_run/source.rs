//! The run that is copied, as it was when it was read. Another command may remove it, or its
//! checkpoints, before all is copied.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::TrialId,
    record::{RunFile, RunFolder},
};

use super::copies::not_copied;

/// The folders of trials that were there, and the folders in them: attempts and checkpoints. A clone
/// has none.
#[derive(Default)]
pub(super) struct SourceFolders(Vec<PathBuf>);

impl SourceFolders {
    /// The folders of these trials that are there now.
    pub(super) fn of<'t>(run: &RunFolder, trials: impl Iterator<Item = &'t TrialId>) -> Self {
        let trials: BTreeSet<&TrialId> = trials.collect();
        let places = trials.into_iter().map(|trial| run.trial(trial));
        let mut folders = Vec::new();
        for folder in places.filter(|place| is_folder(place)) {
            // The copying fails with the error of a folder that cannot be read.
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(
                entries
                    .map(|entry| entry.path())
                    .filter(|path| is_folder(path)),
            );
            folders.push(folder);
        }
        Self(folders)
    }

    /// Checks that these folders are still there, and that the run is still described by `file`.
    ///
    /// # Errors
    /// The run has changed since it was read.
    pub(super) fn check(&self, run: &RunFolder, file: &RunFile) -> io::Result<()> {
        let gone = "it was removed while the run was copied";
        if let Some(folder) = self.0.iter().find(|folder| !is_folder(folder)) {
            return Err(changed(folder, gone));
        }
        let path = run.run_file();
        match RunFile::read(&path) {
            Ok(now) if now == *file => Ok(()),
            Ok(_) => Err(changed(&path, "it was changed while the run was copied")),
            Err(_) if !path.exists() => Err(changed(&path, gone)),
            Err(why) => Err(changed(&path, &why)),
        }
    }
}

fn is_folder(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_ok_and(|found| found.is_dir())
}

fn changed(path: &Path, why: &str) -> io::Error {
    not_copied(path)(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_removed_or_changed_while_it_is_copied_is_told() {
        let place = tempfile::tempdir().unwrap();
        let run = RunFolder::at(place.path().join("run"));
        let trials = ["t000000000a", "t000000000b", "t000000000c"];
        let [one, two, clone] = trials.map(|trial| TrialId(trial.to_owned()));
        let checkpoints = run.checkpoints(&one);
        let text =
            r#"{"kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": []}"#;
        let write = || {
            fs::create_dir_all(&checkpoints).unwrap();
            fs::create_dir_all(run.attempt(&two, 1)).unwrap();
            fs::write(run.run_file(), text).unwrap();
        };
        write();
        let file = RunFile::read(&run.run_file()).unwrap();
        let source = SourceFolders::of(&run, [&one, &two, &clone].into_iter());
        let check = || source.check(&run, &file).map_err(|error| error.to_string());
        assert_eq!(check(), Ok(()));

        fs::remove_dir_all(&checkpoints).unwrap();
        let why = check().unwrap_err();
        let path = checkpoints.display().to_string();
        assert!(
            why.starts_with(&path) && why.contains("it was removed"),
            "{why}"
        );

        write();
        fs::remove_dir_all(run.trial(&two)).unwrap();
        assert!(check().unwrap_err().contains("it was removed"));

        write();
        fs::write(run.run_file(), text.replace("\"x\"", "\"y\"")).unwrap();
        assert!(check().unwrap_err().contains("it was changed"));

        fs::remove_file(run.run_file()).unwrap();
        assert!(check().unwrap_err().contains("it was removed"));
    }
}
