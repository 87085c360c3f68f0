//! The programs of one launch: read, described, and compared with those of the launches before.

use kiln_core::{
    input,
    limits::STATE_BYTES,
    record::{RunFolder, programs::Git},
};

use super::{
    RunRequest, RunStop,
    existing_run::{ExistingRun, Old},
    provenance::{Described, Programs, interpreters, repositories},
};
use crate::readings::Paths;

/// The programs of a launch, before it is in the run's file.
pub(super) struct LaunchPrograms {
    pub(super) programs: Programs,
    pub(super) described: Described,
    /// The list of packages to write; `None` if there is none, or an earlier launch has the same.
    pub(super) packages: Option<String>,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
}

impl LaunchPrograms {
    /// Reads the programs of a launch and asks their interpreters. `here` is the commit of the
    /// working directory.
    ///
    /// # Errors
    /// An entry of `files` stands for no file.
    pub(super) fn gather(
        request: &RunRequest,
        found: &ExistingRun,
        launch: u64,
        paths: &Paths,
        here: Option<&Git>,
    ) -> Result<Self, RunStop> {
        let known = match found {
            ExistingRun::Old(old) => old.programs.clone().map(Ok),
            ExistingRun::New { .. } => None,
        };
        let read = || Programs::read(request.experiment, request.trials.iter(), request.results);
        let programs = known.unwrap_or_else(read).map_err(RunStop::Refused)?;
        let mut described = programs.describe(paths, here);
        let mut notices = std::mem::take(&mut described.notices);
        let mut packages = Some(described.packages_text.clone()).filter(|text| !text.is_empty());
        let mut same = None;
        if let ExistingRun::Old(old) = found {
            notices.extend(old.told.iter().cloned());
            if let Some(first) = old.first_measured {
                notices.extend(repositories(&old.file, first, &described, request.results));
            }
            let list_of = |name: &str| packages_text(&old.folder, name);
            notices.extend(interpreters(&old.file, &described, list_of));
            same = same_packages(old, &described);
        }
        if packages.is_some() {
            let name = || packages_name(launch);
            described.set_packages_file(&same.clone().unwrap_or_else(name));
        }
        if same.is_some() {
            packages = None;
        }
        Ok(Self {
            programs,
            described,
            packages,
            notices,
        })
    }
}

/// The name of the list of packages of a launch.
fn packages_name(launch: u64) -> String {
    let path = RunFolder::at("").packages_list(launch);
    path.to_string_lossy().into_owned()
}

/// A list of packages of a run.
fn packages_text(folder: &RunFolder, name: &str) -> Option<String> {
    // The name stands in a file that somebody else may have written.
    let is_name = !name.contains('/') && name.starts_with("packages-");
    let read = || input::read_text(&folder.path().join(name), &STATE_BYTES).ok();
    is_name.then(read).flatten()
}

/// The list of an earlier launch that has the same packages.
fn same_packages(old: &Old, described: &Described) -> Option<String> {
    let programs = old
        .file
        .launches
        .iter()
        .rev()
        .flat_map(|launch| launch.programs.values());
    let name = programs
        .flat_map(|program| program.interpreters.values())
        .find_map(|interpreter| interpreter.packages_file.clone())?;
    let is_same = packages_text(&old.folder, &name)? == described.packages_text;
    is_same.then_some(name)
}
