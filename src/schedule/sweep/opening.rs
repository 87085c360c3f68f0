//! The beginning of a launch: finds the run, leases the devices, checks the machine, and opens the
//! run for the loop.

use std::{
    io,
    sync::{
        atomic::Ordering,
        mpsc::{Receiver, Sender, channel},
    },
};

use kiln_core::{
    folder::is_full,
    record::{
        Check, RunFolder, TicketQueue, collect,
        run_folder::{repair_latest, runs, update_gitignore},
    },
};

use super::{HasRoom, Join, LaunchState, closing::report, refusals, search};
use crate::{
    preflight::ExamineAnswer,
    readings::Privacy,
    schedule::{
        Event, Instruments, LaunchCounts, LaunchEnd, LaunchEvent, LaunchReport, RunRequest,
        RunStop,
        copied_run::{self, CopiedRun},
        disk,
        existing_run::{self, ExistingRun, Old},
        instruments::LaunchContext,
        known_trials, leftovers,
        machine::MachineIdentity,
        open::{self, OpenRun},
        pools::{self, KnownRun, Pools},
        process_record::end_earlier,
        programs,
        remaining::remaining,
        signals::Listener,
        tickets::Tickets,
    },
};

/// Runs a launch; `has_room` says whether the disk has room for one more trial.
pub(super) fn run_on(
    request: &RunRequest,
    instruments: Instruments,
    has_room: HasRoom,
    join: Join,
) -> Result<LaunchReport, RunStop> {
    if request.trials.is_empty() {
        return Err(RunStop::Refused(format!(
            "experiment `{}` has no trials to run",
            request.experiment.name
        )));
    }
    if request.trials.iter().any(programs::needs_kiln_trial) {
        refusals::without_program(request.trial_program)?;
    }
    programs::check(&request.wanted(), request.trials.iter())?;
    programs::check_data_folder(request.trials)?;
    let lock = refusals::take_lock(request)?;
    let listed = collect_newest(request)?;
    let here = || MachineIdentity::of(&instruments);
    let found = existing_run::find_among(&request.wanted(), listed, &here)?;
    let copied = copied_run::gather(request, &here)?;
    let known = known_trials(request, &found, copied.as_ref());
    let request = &RunRequest {
        trials: &known,
        ..request.clone()
    };
    if let ExistingRun::Old(old) = &found
        && let Some(queue) =
            TicketQueue::of(&old.folder).map_err(|error| disk::cannot_read(&error))?
    {
        drop(lock);
        if request.budget.is_some() {
            return Err(RunStop::Refused(format!(
                "{}: the trials of this run are those of workers, whose time is that of their jobs; run \
                 the same command without `--for`",
                old.folder.path().display()
            )));
        }
        return join(request, &old.folder, queue, instruments);
    }
    if let ExistingRun::Old(old) = &found {
        repair_latest(&old.folder).map_err(disk::cannot_write(request))?;
        update_gitignore(&old.folder);
        if has_no_work(request, old) {
            return end_without_work(request, old);
        }
    }
    match copied {
        Some(copied) if copied.leaves_nothing(request) => end_with_rows(request, copied),
        copied => launch(request, found, copied, instruments, has_room),
    }
}

/// Lists the runs of the experiment, oldest first. The rows of a newest run that several launches work
/// on are in their tables, and are collected.
pub(in crate::schedule) fn collect_newest(request: &RunRequest) -> Result<Vec<RunFolder>, RunStop> {
    let listed = runs(request.results, &request.experiment.name)
        .map_err(|error| disk::cannot_read(&error))?;
    let newest = listed.last();
    if let Some(run) = newest.filter(|run| collect::is_collected(run) && !request.fresh) {
        collect_of(request, run).map_err(|error| {
            match error.raw_os_error().is_none() && !is_full(&error) {
                // It names the table and the line.
                true => RunStop::Refused(error.to_string()),
                false => disk::cannot_write(request)(error),
            }
        })?;
    }
    Ok(listed)
}

/// Makes the tables of a run from those of its launches, and says which rows somebody had changed.
pub(in crate::schedule) fn collect_of(request: &RunRequest, run: &RunFolder) -> io::Result<()> {
    let collected = collect::collect(run)?;
    if let Some(edited) = collected.edited {
        request
            .listener
            .hear(LaunchEvent::Notice(&edited.to_string()));
    }
    Ok(())
}

fn has_no_work(request: &RunRequest, old: &Old) -> bool {
    let retries = request.experiment.run.retries;
    remaining(request.trials, &old.history, &request.selection, retries).is_empty()
}

fn end_without_work(request: &RunRequest, old: &Old) -> Result<LaunchReport, RunStop> {
    search::note_end(request, old)?;
    // A launch that was killed after its last row has left them.
    disk::release_reserve(&old.folder);
    // Nothing is to do, so what cannot be removed may stay.
    let _ = leftovers::sweep_drafts(&old.folder, request.trials, &old.ends);
    let how = ("nothing to do", LaunchEnd::NothingToDo);
    Ok(end_without_launch(request, old, how))
}

/// Tells the end of a run in which nothing was started, and reports it.
fn end_without_launch(
    request: &RunRequest,
    run: &Old,
    (how, end): (&str, LaunchEnd),
) -> LaunchReport {
    let retries = request.experiment.run.retries;
    request.listener.hear(LaunchEvent::RunEnded {
        how,
        counts: LaunchCounts {
            total: request.trials.len(),
            plan: run.history.standing(request.trials, retries),
            ..LaunchCounts::default()
        },
    });
    report(
        request,
        request.trials,
        run.folder.clone(),
        end,
        run.ends.iter(),
    )
}

/// Makes the run of attempts that are taken over, where no other trial is to run. There is no launch:
/// nothing is measured.
fn end_with_rows(request: &RunRequest, copied: CopiedRun) -> Result<LaunchReport, RunStop> {
    let (sender, _events) = channel();
    let listener = listen(sender)?;
    let new = copied.make_run(request, &listener.asked())?;
    for notice in &new.told {
        request.listener.hear(LaunchEvent::Notice(notice));
    }
    let how = ("finished", LaunchEnd::Finished);
    Ok(end_without_launch(request, &new, how))
}

/// Leases the devices, opens the run, and runs the remaining trials. A run that begins as a copy is
/// made before, and then resumed.
fn launch(
    request: &RunRequest,
    found: ExistingRun,
    copied: Option<CopiedRun>,
    instruments: Instruments,
    has_room: HasRoom,
) -> Result<LaunchReport, RunStop> {
    let of_copy = copied.as_ref().map(CopiedRun::history).unwrap_or_default();
    let history = match &found {
        ExistingRun::New { .. } => &of_copy,
        ExistingRun::Old(old) => &old.history,
    };
    let known = KnownRun {
        settled: history,
        ended: history,
        is_worker: false,
    };
    leftovers::refuse_living(&found, request)?;
    let prepared = PreparedLaunch::new(request, &known, instruments, None)?;
    let found = match copied {
        Some(copied) => {
            let asked = prepared.listener.asked();
            ExistingRun::Old(Box::new(copied.make_run(request, &asked)?))
        }
        None => found,
    };
    let mut open = open::open(request, found, &prepared.instruments, &prepared.checks)?;
    leftovers::adopt(&mut open, request, &prepared.instruments)?;
    prepared.run(request, open, has_room, |_| None)
}

fn listen(sender: Sender<Event>) -> Result<Listener, RunStop> {
    Listener::start(sender).map_err(|error| {
        RunStop::CannotRun(format!(
            "the signal handlers could not be installed: {error}"
        ))
    })
}

/// A launch with its devices, on a machine that was checked, before its run is open.
pub(in crate::schedule) struct PreparedLaunch {
    pub(in crate::schedule) instruments: Instruments,
    pub(in crate::schedule) checks: Vec<Check>,
    pools: Pools,
    /// Processes of earlier launches that were ended.
    strays: usize,
    sender: Sender<Event>,
    events: Receiver<Event>,
    listener: Listener,
}

impl PreparedLaunch {
    /// Whether it has leased a GPU.
    pub(in crate::schedule) fn has_gpus(&self) -> bool {
        !self.pools.uuids().is_empty()
    }

    /// Listens for signals, leases the devices that the trials without a result need, and checks the machine, and the child where it was asked (`answer`).
    pub(in crate::schedule) fn new(
        request: &RunRequest,
        known: &KnownRun,
        mut instruments: Instruments,
        answer: Option<ExamineAnswer>,
    ) -> Result<Self, RunStop> {
        let (sender, events) = channel();
        let listener = listen(sender.clone())?;
        instruments.stop_when(listener.asked());
        let interrupted = || {
            RunStop::Interrupted(
                "interrupted before the first trial; nothing was started".to_owned(),
            )
        };
        // They may hold the devices that this launch is about to lease.
        let strays = end_earlier(request.locks);
        let pools =
            pools::lease_all(request, known, &instruments, &events).map_err(|stop| match stop {
                // After a signal a driver that does not answer counts as busy.
                RunStop::CannotRun(_) if listener.asked().load(Ordering::Relaxed) => interrupted(),
                stop => stop,
            })?;
        let checks =
            instruments.preflight(request, &known.outstanding(request), &pools.uuids(), answer);
        if listener.asked().load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        refusals::mistaken_variable(request, &pools, &checks)?;
        Ok(Self {
            instruments,
            checks,
            pools,
            strays,
            sender,
            events,
            listener,
        })
    }

    /// Runs the trials of an open run; `tickets` makes their source if other launches work on it too.
    pub(in crate::schedule) fn run(
        mut self,
        request: &RunRequest,
        mut open: OpenRun,
        has_room: HasRoom,
        tickets: impl FnOnce(Sender<Event>) -> Option<Tickets>,
    ) -> Result<LaunchReport, RunStop> {
        if self.strays > 0 {
            open.notices.push(leftovers::ended_strays(self.strays));
        }
        let notices = self
            .instruments
            .begin(launch_context(request, &open))
            .map_err(disk::cannot_write(request))?;
        open.notices.extend(notices);
        self.instruments.heed_no_more();
        let tickets = tickets(self.sender.clone());
        let (instruments, pools, sender) = (self.instruments, self.pools, self.sender);
        LaunchState::new(request, instruments, open, pools, sender, has_room, tickets)
            .run(&self.events)
    }
}

fn launch_context<'a>(request: &RunRequest, open: &'a OpenRun) -> LaunchContext<'a> {
    LaunchContext {
        folder: &open.tables,
        launch: open.launch,
        run_anchor_nanoseconds: open.run_anchor_nanoseconds,
        sample_interval: request.experiment.measure.sample_interval.0,
        privacy: Privacy::of(request.experiment),
    }
}
