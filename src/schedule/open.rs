//! Opens the run of a launch: creates the folder and first files of a new run, or adds the launch to
//! the run that it resumes.

mod new_run;

use std::io;

use kiln_core::{
    input,
    kinds::data::Loader,
    plan::{Outcome, TrialId},
    record::{
        AttemptEnd, Check, LaunchFile, LaunchProcess, RunFile, RunFolder, TableError, TicketQueue,
        TornLine, TrialStore, TrialTable, launch_folder,
        programs::Git,
        run_file::{EndCause, Launch, LaunchEnded, SlurmTask},
    },
    units::short_hash,
};

use self::new_run::{create_run, experiment_sha256, resolved};
pub(super) use self::new_run::{create_with, record_now};
use super::{
    RunRequest, RunStop,
    changes::{KeyChange, describe},
    clock,
    content::{changed_programs, other_content},
    disk::{cannot_begin, cannot_write},
    existing_run::{ExistingRun, Old},
    instruments::Instruments,
    launch::{FactSources, gather, git, git_refusal, with_programs},
    launch_programs::LaunchPrograms,
    machine::{self, MachineIdentity},
    provenance::{Described, Programs},
};
use crate::{
    preflight::notice,
    readings::{Paths, Privacy},
};

/// The run of this launch.
pub(super) struct OpenRun {
    pub(super) folder: RunFolder,
    /// Where this launch writes its tables: the folder of the run, or its own of several launches.
    pub(super) tables: RunFolder,
    /// The process of this launch, if it is one of several on the run.
    pub(super) process: Option<LaunchProcess>,
    /// How attempts of the other launches ended.
    pub(super) others: Vec<AttemptEnd>,
    pub(super) launch: u64,
    pub(super) run_anchor_nanoseconds: i64,
    pub(super) file: RunFile,
    pub(super) store: TrialStore,
    pub(super) programs: Programs,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
}

impl OpenRun {
    /// How the attempts of all launches ended, those of this one last.
    pub(super) fn ends(&self) -> impl DoubleEndedIterator<Item = &AttemptEnd> {
        self.others.iter().chain(self.store.ends())
    }

    /// The highest attempt of a trial that has a row; 0 if none has.
    pub(super) fn last_attempt(&self, trial: &TrialId) -> u64 {
        let others = self.others.iter().filter(|end| end.trial == *trial);
        let last = others.map(|end| end.attempt).max();
        last.unwrap_or(0).max(self.store.last_attempt(trial))
    }

    /// How the trial's last attempt that has a row ended, whoever ran it.
    pub(super) fn last_outcome(&self, trial: &TrialId) -> Option<Outcome> {
        let others = self.others.iter().filter(|end| end.trial == *trial);
        let all = others.chain(self.store.last_end(trial));
        all.max_by_key(|end| end.rank()).map(|end| end.outcome)
    }

    /// The launch's last word, in its record.
    pub(super) fn note_end(&mut self, how: String, cause: Option<EndCause>) {
        if let Some(launch) = self.file.launches.last_mut() {
            launch.ended = Some(LaunchEnded {
                utc: clock::utc_now(),
                how,
                cause,
            });
        }
    }

    /// Writes the record of this launch: `run.json`, or its own `launch.json` of several launches.
    pub(super) fn write_record(&self) -> io::Result<()> {
        match (&self.process, self.file.launches.last()) {
            (Some(process), Some(launch)) => {
                LaunchFile::new(process.clone(), launch.clone()).write(&self.folder)
            }
            _ => self.file.write(&self.folder),
        }
    }

    /// Writes the record, and `experiment.yaml` if somebody has removed it.
    pub(super) fn write_files(&mut self, request: &RunRequest) -> io::Result<()> {
        if self.process.is_some() {
            return self.write_record();
        }
        let experiment = self.folder.experiment();
        let found = experiment.symlink_metadata();
        if found.is_err_and(|error| input::is_absent(&error)) {
            // This launch may have other values of keys that may change.
            self.folder
                .write(&experiment, resolved(request).as_bytes())?;
            self.file.experiment_sha256 = Some(experiment_sha256(request));
        }
        self.write_record()
    }
}

/// Opens the run for one more launch. The caller holds the experiment's lock.
///
/// # Errors
/// If the files of the folder cannot be read or written.
pub(super) fn open(
    request: &RunRequest,
    found: ExistingRun,
    instruments: &Instruments,
    preflight: &[Check],
) -> Result<OpenRun, RunStop> {
    let record = LaunchRecord::gather(request, &found, next_launch(&found), preflight)?;
    let (sources, packages) = (
        record.sources(request, instruments),
        record.packages.as_deref(),
    );
    let mut notices = record.notices.clone();
    let (folder, file) = match found {
        ExistingRun::New { notice } => {
            notices.extend(
                notice
                    .iter()
                    .flat_map(|text| text.lines())
                    .map(str::to_owned),
            );
            create_run(request, &sources, packages)
        }
        ExistingRun::Old(old) => {
            notices.extend(other_copies(&old));
            notices.extend(other_machine(&old, instruments));
            add_launch(request, *old, &sources, packages)
        }
    }
    .map_err(cannot_begin(request))?;
    notices.extend(other_clock(&file));
    // The children receive absolute paths, and are recognized by them.
    let folder = folder.in_experiment().map_err(cannot_write(request))?;
    let (store, torn) = open_store(request, &folder)?;
    // A launch without a final row has nothing in the table.
    let has_final = store.ends().iter().any(|end| end.outcome.is_final());
    notices.extend(other_trial_program(&file.launches).filter(|_| has_final));
    notices.extend(torn.map(|torn| {
        format!(
            "{}:{}: the last line was incomplete and has been removed: {}",
            folder.trials_table().display(),
            torn.line,
            torn.text
        )
    }));
    let (launch, run_anchor_nanoseconds) = file.launches.last().map_or((1, 0), |launch| {
        (launch.launch, launch.run_anchor_nanoseconds)
    });
    Ok(OpenRun {
        tables: folder.clone(),
        folder,
        process: None,
        others: Vec::new(),
        launch,
        run_anchor_nanoseconds,
        file,
        store,
        programs: record.programs,
        notices,
    })
}

/// Says that batches go to the GPU in another way than before, which trial ids do not tell.
fn other_copies(old: &Old) -> Option<String> {
    let is_on_gpu = old.ends.iter().any(|end| end.device_uuid.is_some());
    let change = old
        .changed
        .iter()
        .find(|change| change.key == Loader::PIN_MEMORY)?;
    is_on_gpu.then(|| {
        format!(
            "{}: trials of both stand in one table, and their speeds may differ; `--fresh` starts a \
             new run",
            describe(std::slice::from_ref(change)).trim()
        )
    })
}

/// Says that this launch has another monotonic clock than the first one in the same boot.
fn other_clock(file: &RunFile) -> Option<String> {
    let (first, last) = (file.launches.first()?, file.launches.last()?);
    clock::is_behind(&first.anchor, &last.anchor).then(|| {
        "the monotonic clock is behind the start of the run, as in another time namespace, so \
         `run_seconds` goes on by UTC, as after a reboot"
            .to_owned()
    })
}

/// Says that the rows of the run come from another machine. A queue is for several machines.
fn other_machine(old: &Old, instruments: &Instruments) -> Option<String> {
    if old.ends.is_empty() || !matches!(TicketQueue::of(&old.folder), Ok(None)) {
        return None;
    }
    let here = MachineIdentity::of(instruments);
    let difference = machine::made_elsewhere(&old.file.launches, &here)?;
    Some(format!(
        "{} was begun on another machine ({difference}): trials of both stand in one table; \
         `--fresh` starts a new run",
        old.folder.path().display()
    ))
}

/// Says that the last launch trains with another program than the one before it.
fn other_trial_program(launches: &[Launch]) -> Option<String> {
    let [.., before, here] = launches else {
        return None;
    };
    let then = before.versions.trial_program_sha256.as_ref()?;
    let now = here.versions.trial_program_sha256.as_ref()?;
    (then != now).then(|| {
        format!(
            "the trial program `{}` has sha256 {}, and had {} in launch {}: trials of both stand in \
             one table; `--fresh` starts a new run",
            here.versions.trial_program,
            short_hash(now),
            short_hash(then),
            before.launch
        )
    })
}

/// The facts that a launch records about its code, its programs and the checks before it.
struct LaunchRecord {
    git: Option<Git>,
    programs: Programs,
    described: Described,
    /// The list of packages to write, if there is one.
    packages: Option<String>,
    command_line: Vec<String>,
    preflight: Vec<Check>,
    /// Notices for the user.
    notices: Vec<String>,
}

impl LaunchRecord {
    /// # Errors
    /// An entry of `files` of a program stands for no file.
    fn gather(
        request: &RunRequest,
        found: &ExistingRun,
        launch: u64,
        preflight: &[Check],
    ) -> Result<Self, RunStop> {
        let (git, paths) = (
            git(request.results),
            Paths::here(Privacy::of(request.experiment)),
        );
        let LaunchPrograms {
            programs,
            described,
            packages,
            mut notices,
        } = LaunchPrograms::gather(request, found, launch, &paths, git.as_ref())?;
        let worth_saying = preflight.iter().filter(|check| check.is_worth_saying());
        notices.splice(0..0, worth_saying.map(notice));
        if git.is_none() {
            notices.extend(git_refusal());
        }
        let command_line = request.command_line.iter();
        Ok(Self {
            git: with_programs(git, &described.programs),
            programs,
            described,
            packages,
            command_line: command_line.map(|word| paths.hide(word)).collect(),
            preflight: hidden_checks(preflight, &paths),
            notices,
        })
    }

    fn sources<'a>(
        &'a self,
        request: &RunRequest<'a>,
        instruments: &'a Instruments,
    ) -> FactSources<'a> {
        FactSources {
            command_line: &self.command_line,
            data: request.data,
            trial_program: request.trial_program,
            sha256: request.sha256,
            git: &self.git,
            programs: &self.described.programs,
            instruments,
            preflight: &self.preflight,
        }
    }
}

/// The place of a launch among others on a run.
pub(super) struct WorkerPlace<'a> {
    pub(super) run: &'a RunFolder,
    /// Its number, which no other launch has.
    pub(super) launch: u64,
    pub(super) process: LaunchProcess,
    pub(super) file: &'a RunFile,
    /// How the attempts of the others ended.
    pub(super) others: &'a [AttemptEnd],
    /// The task of Slurm in which it works.
    pub(super) slurm: Option<SlurmTask>,
    /// Whether the launch starts trials: a worker does, and an attendance only writes rows of lost
    /// attempts.
    pub(super) runs_trials: bool,
}

/// Opens the folder of one launch among others: its record and its own tables.
///
/// # Errors
/// The files cannot be written, or the programs or data here are not those of the run.
pub(super) fn open_among_others(
    request: &RunRequest,
    place: &WorkerPlace<'_>,
    instruments: &Instruments,
    preflight: &[Check],
) -> Result<OpenRun, RunStop> {
    let new = ExistingRun::New { notice: None };
    let mut record = LaunchRecord::gather(request, &new, place.launch, preflight)?;
    let sources = record.sources(request, instruments);
    let anchor = clock::anchor();
    let first = place.file.launches.first();
    let run = first.map_or(&anchor, |first| &first.anchor);
    let run_anchor_nanoseconds = clock::run_anchor(run, &anchor);
    let mut launch = gather(place.launch, anchor, run_anchor_nanoseconds, &sources);
    launch.slurm = place.slurm;
    launch.clock_ahead_seconds =
        clock::ahead_of_files(&launch_folder::folder(place.run, place.launch));
    if Privacy::of(request.experiment) == Privacy::Full {
        launch.node.clone_from(&place.process.node);
    }
    let others = first.map(|first| other_content(first, &launch));
    let others = others.filter(|others| !others.is_empty()).map(|others| {
        format!(
            "this node has {}; a run is made with one program and one set of data",
            others.join(", and ")
        )
    });
    let paths = Paths::here(Privacy::of(request.experiment));
    let changed = || changed_programs(&mut record.programs, place.file, &paths);
    if let Some(why) = others.or_else(|| place.runs_trials.then(changed)?) {
        let _ = place
            .run
            .remove(launch_folder::folder(place.run, place.launch).path());
        return Err(RunStop::CannotRun(why));
    }
    let tables = launch_folder::folder(place.run, place.launch);
    let file = RunFile {
        launches: vec![launch],
        ..place.file.clone()
    };
    let (store, _) = open_store(request, &tables)?;
    let open = OpenRun {
        folder: place.run.clone(),
        tables,
        process: Some(place.process.clone()),
        others: place.others.to_vec(),
        launch: place.launch,
        run_anchor_nanoseconds,
        file,
        store,
        programs: record.programs,
        notices: record.notices,
    };
    if let Some(packages) = record.packages {
        let path = open.tables.packages_list(place.launch);
        open.tables
            .write(&path, packages.as_bytes())
            .map_err(cannot_write(request))?;
    }
    open.write_record().map_err(cannot_write(request))?;
    Ok(open)
}

/// The number of the launch that goes on with what was found.
fn next_launch(found: &ExistingRun) -> u64 {
    match found {
        ExistingRun::New { .. } => 1,
        ExistingRun::Old(old) => old.file.last_launch() + 1,
    }
}

/// Adds this launch to the files of a run that is resumed.
fn add_launch(
    request: &RunRequest,
    old: Old,
    sources: &FactSources,
    packages: Option<&str>,
) -> io::Result<(RunFolder, RunFile)> {
    let Old {
        folder,
        mut file,
        changed,
        ..
    } = old;
    let anchor = clock::anchor();
    let run = file.launches.first().map_or(&anchor, |first| &first.anchor);
    let run_anchor = clock::run_anchor(run, &anchor);
    let mut launch = gather(file.last_launch() + 1, anchor, run_anchor, sources);
    // The run has no measurement yet; it now belongs to the new device.
    let has_moved = changed.iter().any(KeyChange::is_of_the_device);
    if has_moved {
        file.experiment_sha256 = Some(experiment_sha256(request));
    }
    launch.changed = changed
        .into_iter()
        .map(|change| (change.key, change.new.unwrap_or_default()))
        .collect();
    if let Some(packages) = packages {
        folder.write(&folder.packages_list(launch.launch), packages.as_bytes())?;
    }
    file.launches.push(launch);
    file.write(&folder)?;
    if has_moved {
        // After a kill before this, the next launch finds the change again.
        folder.write(&folder.experiment(), resolved(request).as_bytes())?;
    }
    Ok((folder, file))
}

fn open_store(
    request: &RunRequest,
    folder: &RunFolder,
) -> Result<(TrialStore, Option<TornLine>), RunStop> {
    TrialStore::open(folder, &TrialTable::axes_of(request.trials)).map_err(|error| match error {
        TableError::Io { .. } => cannot_write(request)(error.into()),
        _ => RunStop::Refused(error.to_string()),
    })
}

/// The checks without private paths.
fn hidden_checks(checks: &[Check], paths: &Paths) -> Vec<Check> {
    let hidden = |check: &Check| Check {
        evidence: paths.hide(&check.evidence),
        remedy: check.remedy.as_deref().map(|remedy| paths.hide(remedy)),
        ..check.clone()
    };
    checks.iter().map(hidden).collect()
}
