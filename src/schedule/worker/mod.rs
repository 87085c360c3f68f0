//! Several launches on one run: workers, which take tickets from its queue, and whoever attends.
//!
//! In: the folder of a run with a queue, on a disk that all of them see. Out: rows in the launch's
//! own tables, from which [`collect`](kiln_core::record::collect::collect) makes those of the run.
//! There is no process that must live: a worker that dies leaves a ticket that bears its number, and
//! the others take it back. `docs/cluster-protocol.md` has the rules.

mod attend;
mod requested_trials;
mod submit;

use std::collections::BTreeSet;

use kiln_core::{
    plan::Trial,
    record::{
        AttemptEnd, Check, CheckState, CollectedRows, RunFile, RunFolder, TableError, TicketQueue,
        launch_folder, run_file::EndCause,
    },
};

pub use self::{
    attend::{Attendance, attend, for_later},
    submit::{Submitted, copy_programs, submit},
};
use super::{
    Instruments, LaunchEnd, LaunchEvent, LaunchReport, RunRequest, RunStop, disk, existing_run,
    open::{self, OpenRun},
    pools::KnownRun,
    programs,
    remaining::History,
    slurm::Allocation,
    sweep,
    tickets::{Tickets, WorkerLimits, own_process},
    visible_gpus,
};
use crate::{
    preflight::{self, ExamineAnswer},
    readings::{Paths, Privacy},
};

/// Works on a run as one of several launches, until there is nothing left to take, or in a job of
/// Slurm (`allocation`) until its time is too short for another trial.
///
/// `request` is the experiment of the run as its folder has it, `run` that folder, and `queue` its
/// queue.
///
/// # Errors
/// See [`RunStop`]: this machine has other programs or data than the run began with, or cannot run
/// it. A trial that fails is a row, not an error.
pub fn work(
    request: &RunRequest,
    run: &RunFolder,
    queue: TicketQueue,
    instruments: Instruments,
    allocation: Option<&Allocation>,
) -> Result<LaunchReport, RunStop> {
    existing_run::refuse_unwritable_path(request.results)?;
    super::supervisor::receive_orphans();
    if request.trials.iter().any(programs::needs_kiln_trial) {
        sweep::without_program(request.trial_program)?;
    }
    programs::check(&request.wanted(), request.trials.iter())?;
    programs::check_data_folder(request.trials)?;
    let asked = allocation.and_then(Allocation::asks_for_gpus);
    let without_gpus = asked
        .map(|gres| why_without_gpus(gres, request, &instruments))
        .transpose()?;
    let run = run.in_experiment().map_err(disk::cannot_write(request))?;
    let file = RunFile::read(&run.run_file()).map_err(RunStop::Refused)?;
    same_plan(request, &run, &file)?;
    let others = ends(request, &run)?;
    let counts = queue.counts().map_err(disk::cannot_write(request))?;
    if counts.left() == 0 || queue.stop_asked().is_some() {
        let end = LaunchEnd::NothingToDo;
        return Ok(sweep::report(
            request,
            request.trials,
            run.clone(),
            end,
            others.iter(),
        ));
    }
    Worker {
        request,
        run: &run,
        queue,
        file,
        others,
        allocation,
    }
    .start(instruments, without_gpus.flatten())
}

/// Why a job that asks for GPUs has none, where that is the fault of its node; `None` if it has some.
///
/// # Errors
/// If Slurm gave it none: the CPU is not what was asked for, and another node would have none either.
fn why_without_gpus(
    gres: &str,
    request: &RunRequest,
    instruments: &Instruments,
) -> Result<Option<String>, RunStop> {
    let (devices, unusable) = (instruments.devices(), instruments.unusable());
    if !visible_gpus(&devices, unusable, request.visible_devices).is_empty() {
        return Ok(None);
    }
    let has_none = |why: &str| {
        format!("`run.slurm` asks for GPUs (`{gres}`), but this worker has none: {why}")
    };
    let was_given_some = request
        .visible_devices
        .is_none_or(|visible| !visible.is_empty());
    if !was_given_some {
        let why = "Slurm gave this job none (`CUDA_VISIBLE_DEVICES`)";
        return Err(RunStop::CannotRun(has_none(why)));
    }
    let why = instruments.absence().unwrap_or_else(|| {
        let given = request.visible_devices.unwrap_or("any");
        format!(
            "the driver lists none of those that Slurm gave it (`CUDA_VISIBLE_DEVICES` {given})"
        )
    });
    Ok(Some(has_none(&why)))
}

/// Works here on a run that has a queue, beside whoever else does, and collects.
pub(super) fn join(
    request: &RunRequest,
    folder: &RunFolder,
    queue: TicketQueue,
    instruments: Instruments,
) -> Result<LaunchReport, RunStop> {
    let submitted = submit(request, &instruments)?;
    let notices = submitted
        .into_iter()
        .flat_map(|submitted| submitted.notices);
    notices.for_each(|text| request.listener.hear(LaunchEvent::Notice(&text)));
    let worked = work(request, folder, queue, instruments, None)?;
    sweep::collect_of(request, folder).map_err(disk::cannot_write(request))?;
    let ends = ends(request, folder)?;
    let report = sweep::report(
        request,
        request.trials,
        folder.clone(),
        worked.end,
        ends.iter(),
    );
    Ok(LaunchReport {
        failure: worked.failure,
        ..report
    })
}

/// A worker before its first ticket.
struct Worker<'a> {
    request: &'a RunRequest<'a>,
    run: &'a RunFolder,
    queue: TicketQueue,
    file: RunFile,
    others: Vec<AttemptEnd>,
    allocation: Option<&'a Allocation>,
}

impl Worker<'_> {
    fn start(
        self,
        instruments: Instruments,
        without_gpus: Option<String>,
    ) -> Result<LaunchReport, RunStop> {
        if let Some(why) = without_gpus {
            let open = self.open(&instruments, &[])?;
            return Err(self.give_up(open, why));
        }
        // A ticket may hold any trial of the plan, also one that has a result and was asked for again.
        let any = History::default();
        let answer = self.examine();
        let known = KnownRun {
            settled: &any,
            ended: &History::of(&self.others),
            is_worker: true,
        };
        let prepared =
            sweep::PreparedLaunch::new(self.request, &known, instruments, answer.clone())?;
        let why = answer
            .filter(|answer| self.is_unfit(answer, prepared.has_gpus()))
            .map(|_| unfit(&prepared.checks));
        let open = self.open(&prepared.instruments, &prepared.checks)?;
        if let Some(why) = why {
            return Err(self.give_up(open, why));
        }
        let launch = open.launch;
        prepared.run(self.request, open, disk::has_room, |sender| {
            let limits = WorkerLimits::of(self.allocation);
            Some(Tickets::new(self.run, self.queue, launch, limits, sender))
        })
    }

    /// Ends a launch whose node is to blame, as who attends learns.
    fn give_up(&self, mut open: OpenRun, why: String) -> RunStop {
        let paths = Paths::here(Privacy::of(self.request.experiment));
        open.note_end(paths.hide(&why), Some(EndCause::BadNode));
        match open.write_record() {
            Ok(()) => RunStop::CannotRun(why),
            Err(error) => disk::cannot_write(self.request)(error),
        }
    }

    /// A node on which nothing runs would burn the trials that it takes.
    fn examine(&self) -> Option<ExamineAnswer> {
        let mut trials = self.request.trials.iter();
        let is_needed = trials.any(programs::needs_kiln_trial);
        is_needed.then(|| preflight::examine_quickly(self.request.trial_program))?
    }

    fn is_unfit(&self, answer: &ExamineAnswer, has_gpus: bool) -> bool {
        let uses_one = |trial: &Trial| {
            programs::needs_kiln_trial(trial) && programs::needs_gpu(trial.engine, &trial.devices)
        };
        let trials = self.request.trials;
        // A worker that can run some of the trials takes tickets.
        trials.iter().all(programs::needs_kiln_trial)
            && preflight::is_unfit(answer, has_gpus && trials.iter().all(uses_one))
    }

    /// Makes the folder of this launch, with its first record.
    fn open(&self, instruments: &Instruments, checks: &[Check]) -> Result<OpenRun, RunStop> {
        let launch = launch_folder::make(self.run, self.file.last_launch())
            .map_err(disk::cannot_write(self.request))?;
        let place = open::WorkerPlace {
            run: self.run,
            launch,
            process: own_process(),
            file: &self.file,
            others: &self.others,
            slurm: self.allocation.map(|allocation| allocation.task),
            runs_trials: true,
        };
        open::open_among_others(self.request, &place, instruments, checks)
    }
}

/// The stop for rows that cannot be read: what a file server answers now it may not answer again.
fn unreadable(request: &RunRequest) -> impl Fn(TableError) -> RunStop {
    let failed = disk::cannot_write(request);
    move |error| match error {
        TableError::Io { .. } => failed(error.into()),
        _ => RunStop::Refused(error.to_string()),
    }
}

/// How all attempts of a run ended.
fn ends(request: &RunRequest, run: &RunFolder) -> Result<Vec<AttemptEnd>, RunStop> {
    let read = || CollectedRows::read(run)?.ends();
    read().map_err(unreadable(request))
}

/// # Errors
/// If the experiment in the folder of the run no longer has the trials of its plan.
fn same_plan(request: &RunRequest, run: &RunFolder, file: &RunFile) -> Result<(), RunStop> {
    let planned: BTreeSet<_> = file.plan.iter().collect();
    let here: BTreeSet<_> = request.trials.iter().map(|trial| &trial.id).collect();
    if planned == here {
        return Ok(());
    }
    Err(RunStop::CannotRun(format!(
        "{}: here the experiment has other trials ({}) than the plan of the run ({}); is this \
         another version of kiln, or other data?",
        run.experiment().display(),
        here.len(),
        planned.len()
    )))
}

/// Why a node takes no ticket, by what was found on it.
fn unfit(checks: &[Check]) -> String {
    let problems = checks
        .iter()
        .filter(|check| check.state == CheckState::Problem);
    let lines = problems.map(|check| format!("\n{}", preflight::notice(check)));
    format!(
        "this node cannot run the trials, and takes no ticket:{}",
        lines.collect::<String>()
    )
}
