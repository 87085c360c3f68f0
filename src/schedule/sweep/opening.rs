//! The beginning of a launch: finds the run, leases the devices, checks the machine, and opens the
//! run for the loop.

use std::sync::{atomic::Ordering, mpsc::channel};

use kiln_core::record::run_folder::repair_latest;

use super::{HasRoom, LaunchState, closing::report, refusals, search};
use crate::schedule::{
    Instruments, LaunchCounts, LaunchEnd, LaunchEvent, LaunchReport, RunRequest, RunStop, disk,
    existing_run::{self, ExistingRun, Old},
    instruments::LaunchContext,
    known_trials, leftovers,
    machine::MachineIdentity,
    open::{self, OpenRun, privacy},
    pools,
    process_record::end_earlier,
    programs,
    remaining::remaining,
    signals::Listener,
};

/// Runs a launch; `has_room` says whether the disk has room for one more trial.
pub(super) fn run_on(
    request: &RunRequest,
    instruments: Instruments,
    has_room: HasRoom,
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
    programs::check(request, request.trials.iter())?;
    let _lock = refusals::take_lock(request)?;
    let found = existing_run::find(&request.wanted(), &|| MachineIdentity::of(&instruments))?;
    let known = known_trials(request, &found);
    let request = &RunRequest {
        trials: &known,
        ..request.clone()
    };
    if let ExistingRun::Old(old) = &found {
        repair_latest(&old.folder).map_err(open::cannot_write(request))?;
        if has_no_work(request, old) {
            return end_without_work(request, old);
        }
    }
    launch(request, found, instruments, has_room)
}

fn has_no_work(request: &RunRequest, old: &Old) -> bool {
    let retries = request.experiment.run.retries;
    remaining(request.trials, &old.history, &request.selection, retries).is_empty()
}

fn end_without_work(request: &RunRequest, old: &Old) -> Result<LaunchReport, RunStop> {
    search::note_end(request, old)?;
    // A launch that was killed after its last row has left them.
    disk::release_reserve(&old.folder);
    leftovers::sweep_drafts(&old.folder, request.trials);
    let retries = request.experiment.run.retries;
    request.listener.hear(LaunchEvent::RunEnded {
        how: "nothing to do",
        counts: LaunchCounts {
            total: request.trials.len(),
            plan: old.history.standing(request.trials, retries),
            ..LaunchCounts::default()
        },
    });
    Ok(report(
        request,
        request.trials,
        old.folder.clone(),
        LaunchEnd::NothingToDo,
        &old.ends,
    ))
}

/// Leases the devices, opens the run, and runs the remaining trials.
fn launch(
    request: &RunRequest,
    found: ExistingRun,
    mut instruments: Instruments,
    has_room: HasRoom,
) -> Result<LaunchReport, RunStop> {
    let (sender, events) = channel();
    let listener = Listener::start(sender.clone()).map_err(|error| {
        RunStop::CannotRun(format!(
            "the signal handlers could not be installed: {error}"
        ))
    })?;
    instruments.stop_when(listener.asked());
    let interrupted = || {
        RunStop::Interrupted("interrupted before the first trial; nothing was started".to_owned())
    };
    // They may hold the devices that this launch is about to lease.
    let strays = end_earlier(request.locks);
    let pools =
        pools::lease_all(request, &found, &instruments, &events).map_err(|stop| match stop {
            // After a signal a driver that does not answer counts as busy.
            RunStop::CannotRun(_) if listener.asked().load(Ordering::Relaxed) => interrupted(),
            stop => stop,
        })?;
    let checks = instruments.preflight(request, privacy(request), &pools.uuids());
    if listener.asked().load(Ordering::Relaxed) {
        return Err(interrupted());
    }
    refusals::mistaken_variable(request, &pools, &checks)?;
    let mut open = open::open(request, found, &instruments, &checks)?;
    leftovers::adopt(&mut open, request, &instruments)?;
    if strays > 0 {
        open.notices.push(leftovers::ended_strays(strays));
    }
    let notices = instruments
        .begin(launch_context(request, &open))
        .map_err(open::cannot_write(request))?;
    open.notices.extend(notices);
    instruments.heed_no_more();
    LaunchState::new(request, instruments, open, pools, sender, has_room).run(&events)
}

fn launch_context<'a>(request: &RunRequest, open: &'a OpenRun) -> LaunchContext<'a> {
    LaunchContext {
        folder: &open.folder,
        launch: open.launch,
        run_anchor_nanoseconds: open.run_anchor_nanoseconds,
        sample_interval: request.experiment.measure.sample_interval.0,
        privacy: privacy(request),
    }
}
