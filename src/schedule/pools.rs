//! Leases the devices that the remaining trials need, waits for them if necessary, and groups them
//! by device request.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use kiln_core::{
    plan::{Trial, shared_metric_file},
    spec::{DeviceName, Devices, Precision},
    units::listed,
};

use super::{
    Event, Instruments, LaunchEvent, RunRequest, RunStop, clock,
    devices::{DeviceChoice, DeviceOffer, DeviceRequest, choose_each, cpu_instead},
    idle::{idle_devices, keeps_blocks},
    lease::{self, Lease, Refusal, Terms},
    remaining::{History, remaining},
    visible::restrict,
};

/// Time between two checks of a busy device.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The devices of this launch, and those that each device request may use.
pub(super) struct Pools {
    pub(super) devices: Vec<Lease>,
    /// Indices into the list of devices that one trial uses together.
    pub(super) slots: Vec<Vec<usize>>,
    /// Each device request with its slots.
    pub(super) requests: Vec<(DeviceRequest, Vec<usize>)>,
    /// Why trials run on the CPU, where the user may have expected a GPU.
    no_gpu: Option<String>,
    pub(super) notices: Vec<String>,
}

impl Pools {
    /// The slot of these devices.
    fn slot(&mut self, places: &[usize]) -> usize {
        let known = self.slots.iter().position(|slot| slot == places);
        known.unwrap_or_else(|| {
            self.slots.push(places.to_vec());
            self.slots.len() - 1
        })
    }

    /// Whether two slots have no device in common, so that two trials may run at the same time.
    fn has_slots_at_once(&self) -> bool {
        let is_apart = |one: &[usize], other: &[usize]| one.iter().all(|at| !other.contains(at));
        let slots = &self.slots;
        slots
            .iter()
            .any(|one| slots.iter().any(|other| is_apart(one, other)))
    }

    /// Adds notices, each once: several device requests may have the same.
    fn add_notices(&mut self, notices: impl IntoIterator<Item = String>) {
        for notice in notices {
            if !self.notices.contains(&notice) {
                self.notices.push(notice);
            }
        }
    }

    /// The GPUs that were leased.
    pub(super) fn uuids(&self) -> Vec<String> {
        self.devices
            .iter()
            .filter_map(|lease| lease.gpu.as_ref())
            .map(|gpu| gpu.uuid.clone())
            .collect()
    }
}

/// The state of the run at the time when a launch leases devices.
pub(super) struct KnownRun<'a> {
    /// The trials without a result in it are to run.
    pub(super) settled: &'a History,
    /// The rows that the run has.
    pub(super) ended: &'a History,
    /// Whether the launch is a worker: it uses the devices of the run's `experiment.yaml`.
    pub(super) is_worker: bool,
}

impl KnownRun<'_> {
    /// The trials that are to run, in plan order.
    pub(super) fn remaining<'t>(&self, request: &RunRequest<'t>) -> Vec<&'t Trial> {
        let run = &request.experiment.run;
        let indices = remaining(
            request.trials,
            self.settled,
            &request.selection,
            run.retries,
        );
        indices
            .into_iter()
            .map(|index| &request.trials[index])
            .collect()
    }

    /// Those of them that are likely to run here: a ticket of a worker may hold any trial, and most hold
    /// one without a result.
    pub(super) fn outstanding<'t>(&self, request: &RunRequest<'t>) -> Vec<&'t Trial> {
        let retries = request.experiment.run.retries;
        let is_over = |trial: &Trial| self.is_worker && self.ended.is_settled(&trial.id, retries);
        let mut trials = self.remaining(request);
        trials.retain(|trial| !is_over(trial));
        trials
    }
}

/// Leases the devices that the remaining trials need; waits up to `run.wait` if they are in use.
pub(super) fn lease_all(
    request: &RunRequest,
    known: &KnownRun,
    instruments: &Instruments,
    events: &Receiver<Event>,
) -> Result<Pools, RunStop> {
    let mut pools = Pools {
        devices: Vec::new(),
        slots: Vec::new(),
        requests: Vec::new(),
        no_gpu: None,
        notices: Vec::new(),
    };
    for trial in known.remaining(request) {
        let wanted = DeviceRequest::of(trial);
        if !pools.requests.iter().any(|(other, _)| *other == wanted) {
            add_pool(
                &mut pools,
                wanted.clone(),
                request,
                known,
                instruments,
                events,
            )?;
        }
        refuse_tf32_on_the_cpu(trial, &pools, &wanted)?;
    }
    refuse_shared_files(request, known, &pools)?;
    let idle = idle(request, known, &pools.requests);
    pools.notices.extend(idle);
    Ok(pools)
}

/// Returns notices about devices that will have little to do. A run that has results keeps its sweep,
/// and a worker has what its tickets hold.
fn idle(
    request: &RunRequest,
    known: &KnownRun,
    pools: &[(DeviceRequest, Vec<usize>)],
) -> Vec<String> {
    if known.is_worker || known.ended.has_final() || request.search.is_some() {
        return Vec::new();
    }
    let remaining = known.remaining(request);
    let keeps_blocks = keeps_blocks(request.trials);
    let of = |(wanted, slots): &(DeviceRequest, Vec<usize>)| {
        let mut alike = remaining.clone();
        alike.retain(|trial| DeviceRequest::of(trial) == *wanted);
        idle_devices(&request.experiment.sweep, &alike, slots.len(), keeps_blocks)
    };
    pools.iter().filter_map(of).collect()
}

/// Checks trials for which `auto` selected the CPU. Devices named in the file are checked with the
/// file.
fn refuse_tf32_on_the_cpu(
    trial: &Trial,
    pools: &Pools,
    wanted: &DeviceRequest,
) -> Result<(), RunStop> {
    let slots = pools
        .requests
        .iter()
        .filter(|(known, _)| known == wanted)
        .flat_map(|(_, slots)| slots);
    let mut devices = slots.flat_map(|slot| &pools.slots[*slot]);
    if trial.train.precision != Precision::Tf32
        || devices.all(|place| pools.devices[*place].gpu.is_some())
    {
        return Ok(());
    }
    let why = pools.no_gpu.as_ref();
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    Err(RunStop::CannotRun(format!(
        "trial {} has `train.precision: tf32`, which needs a GPU, and there is none for it{why}; \
         use another precision, or name a GPU with `--device`",
        trial.id
    )))
}

/// Refuses trials that may run at the same time and read a metric from one file: the numbers of one
/// would be those of another.
fn refuse_shared_files(
    request: &RunRequest,
    known: &KnownRun,
    pools: &Pools,
) -> Result<(), RunStop> {
    let at_once = match (known.is_worker, pools.has_slots_at_once()) {
        (true, _) => "other workers run trials at the same time",
        (false, true) => "trials run on several devices at the same time",
        (false, false) => return Ok(()),
    };
    let Some(shared) = shared_metric_file(known.remaining(request)) else {
        return Ok(());
    };
    let one_device = match known.is_worker {
        true => "",
        false => ", or run on one device",
    };
    Err(RunStop::CannotRun(format!(
        "`model.metrics.{}` of more than one trial is read from one file, `{}`, and {at_once}, so a \
         trial would have the numbers of another; give each its own file, such as \
         `{{folder}}/{}`{one_device}",
        shared.metric,
        shared.file,
        shared.file_name(),
    )))
}

fn add_pool(
    pools: &mut Pools,
    wanted: DeviceRequest,
    request: &RunRequest,
    known: &KnownRun,
    instruments: &Instruments,
    events: &Receiver<Event>,
) -> Result<(), RunStop> {
    let (devices, absence) = (instruments.devices(), instruments.absence());
    let offer = DeviceOffer {
        devices: &devices,
        unusable: instruments.unusable(),
        absence: absence.as_deref(),
        visible: request.visible_devices,
    };
    let choice = choose_each(&wanted, offer).map_err(RunStop::CannotRun)?;
    stays_on_its_kind(&choice, &wanted, request, known).map_err(RunStop::CannotRun)?;
    if let DeviceChoice::Cpu { no_gpu: Some(why) } = &choice {
        pools.add_notices([format!("{why}, trials run on the CPU")]);
        pools.no_gpu.get_or_insert_with(|| why.clone());
    }
    pools.add_notices(unused(&choice, &wanted, offer));
    pools.add_notices(unusable(&wanted, offer));
    let each = if matches!(choice, DeviceChoice::Cpu { .. }) {
        1
    } else {
        wanted.each.max(1) as usize
    };
    let waiting = Waiting {
        request,
        instruments,
        is_fixed: known.is_worker || known.ended.has_final(),
    };
    let taken = wait_for(&choice, each, &pools.devices, &waiting, events)?;
    pools.devices.extend(taken);
    let belongs = |lease: &Lease| match (&choice, &lease.gpu) {
        (DeviceChoice::Cpu { .. }, None) => true,
        (DeviceChoice::All(gpus), Some(gpu)) => gpus.contains(gpu),
        (DeviceChoice::FirstIdle(gpus), Some(gpu)) => gpus.contains(gpu),
        _ => false,
    };
    let mut places: Vec<usize> = (0..pools.devices.len())
        .filter(|at| belongs(&pools.devices[*at]))
        .collect();
    if matches!(
        choice,
        DeviceChoice::FirstIdle(_) | DeviceChoice::Cpu { .. }
    ) {
        places.truncate(each);
    }
    let slots = places
        .chunks_exact(each)
        .map(|places| pools.slot(places))
        .collect();
    pools.requests.push((wanted, slots));
    Ok(())
}

/// Checks that trials of `run.devices: auto` do not go on on the CPU where their run has rows of a GPU, nor
/// on a GPU where it was begun on the CPU: their times could not be compared.
fn stays_on_its_kind(
    choice: &DeviceChoice,
    wanted: &DeviceRequest,
    request: &RunRequest,
    known: &KnownRun,
) -> Result<(), String> {
    let alike = request.trials.iter();
    let mut alike = alike.filter(|trial| DeviceRequest::of(trial) == *wanted);
    let ran_on = alike.clone().find_map(|trial| known.ended.gpu(&trial.id));
    match (choice, ran_on) {
        (DeviceChoice::Cpu { no_gpu: Some(why) }, Some(gpu)) => Err(format!(
            "trials of this run ran on a GPU ({gpu}), and now there is none: {why}; `kiln doctor` \
             says what is missing, and the same command then resumes{}",
            cpu_instead(known.is_worker, known.ended.has_final())
        )),
        (DeviceChoice::FirstIdle(gpus), None)
            if alike.any(|trial| known.ended.completed_on_cpu(&trial.id)) =>
        {
            let there = gpus.first().map_or("", |gpu| gpu.uuid.as_str());
            Err(format!(
                "trials of this run were completed on the CPU, and now there is a GPU ({there}); \
                 {}an empty `CUDA_VISIBLE_DEVICES` goes on on the CPU",
                match known.is_worker {
                    true => "",
                    false => "`--fresh` starts a new run on the GPU, ",
                }
            ))
        }
        _ => Ok(()),
    }
}

/// Notices about GPUs of `all` that cannot be used, such as one that fell off the bus: the trials run on
/// the others.
fn unusable(wanted: &DeviceRequest, offer: DeviceOffer) -> Vec<String> {
    if wanted.devices != Devices::Named(DeviceName::All) {
        return Vec::new();
    }
    let each = offer.unusable.iter();
    each.map(|(index, why)| format!("`run.devices: all` leaves out GPU {index}: {why}"))
        .collect()
}

/// Returns a notice about GPUs of `all` that are too few for a further trial.
fn unused(choice: &DeviceChoice, wanted: &DeviceRequest, offer: DeviceOffer) -> Option<String> {
    let DeviceChoice::All(used) = choice else {
        return None;
    };
    let left: Vec<String> = restrict(offer.devices, offer.unusable, offer.visible)
        .iter()
        .filter(|gpu| !used.contains(gpu))
        .map(|gpu| gpu.index.to_string())
        .collect();
    let is_all = wanted.devices == Devices::Named(DeviceName::All) && !left.is_empty();
    is_all.then(|| {
        format!(
            "each trial uses {} GPUs (`run.devices_per_trial`), so {} unused",
            wanted.each,
            match left.as_slice() {
                [one] => format!("GPU {one} stays"),
                several => format!("GPUs {} stay", listed(several, " and ")),
            }
        )
    })
}

/// Returns the devices of a new slot for a request that lost its slot: indices of `held` that are
/// not `lost`, and newly leased devices, only if they are idle now. Named devices, and those of
/// `all`, have no replacement.
///
/// # Errors
/// Why the others are not available, if there are enough of them.
pub(super) fn another(
    wanted: &DeviceRequest,
    held: &[Lease],
    lost: &[usize],
    request: &RunRequest,
    instruments: &Instruments,
) -> Result<(Vec<usize>, Vec<Lease>), Option<Refusal>> {
    let (devices, absence) = (instruments.devices(), instruments.absence());
    let offer = DeviceOffer {
        devices: &devices,
        unusable: instruments.unusable(),
        absence: absence.as_deref(),
        visible: request.visible_devices,
    };
    let Ok(DeviceChoice::FirstIdle(mut gpus)) = choose_each(wanted, offer) else {
        return Err(None);
    };
    let each = wanted.each.max(1) as usize;
    let is_kept = |place: &usize| {
        !lost.contains(place)
            && held[*place]
                .gpu
                .as_ref()
                .is_some_and(|gpu| gpus.contains(gpu))
    };
    let kept: Vec<usize> = (0..held.len()).filter(is_kept).take(each).collect();
    gpus.retain(|gpu| held.iter().all(|lease| lease.gpu.as_ref() != Some(gpu)));
    let missing = each - kept.len();
    if gpus.len() < missing {
        return Err(None);
    }
    let who = who(request);
    let terms = Terms {
        folder: request.locks,
        instruments,
        require_idle: request.experiment.run.require_idle_device,
        who: &who,
    };
    let taken = lease::first_idle(&gpus, missing, &terms).map_err(Some)?;
    Ok((kept, taken))
}

/// Returns a text that names the holder of a lease.
fn who(request: &RunRequest) -> String {
    format!(
        "process {} since {} (experiment `{}`)",
        std::process::id(),
        clock::utc_now(),
        request.experiment.name
    )
}

/// Settings of a launch that waits until devices are idle.
struct Waiting<'a> {
    request: &'a RunRequest<'a>,
    instruments: &'a Instruments,
    /// Whether the devices may not change: the run has a final outcome, or this is a worker.
    is_fixed: bool,
}

impl Waiting<'_> {
    /// The advice in the error message when the devices are still in use. `is_leased`: only by other
    /// launches of kiln.
    fn advice(&self, choice: &DeviceChoice, is_leased: bool) -> String {
        let mut each = vec!["wait with `--set run.wait=10m`"];
        if self.is_fixed {
            each.push("free it (a worker, and a run that has results, keep their `run.devices`)");
        } else {
            each.push(match choice {
                DeviceChoice::All(_) => "name those that are idle with `--device` (also `cpu`)",
                _ => "name another with `--device` (also `cpu`)",
            });
            if !is_leased {
                each.push("share it with `--set run.require_idle_device=false`");
            }
        }
        let last = each.pop().unwrap_or_default();
        format!("{}, or {last}", each.join(", "))
    }
}

fn wait_for(
    choice: &DeviceChoice,
    each: usize,
    held: &[Lease],
    waiting: &Waiting,
    events: &Receiver<Event>,
) -> Result<Vec<Lease>, RunStop> {
    let (request, instruments) = (waiting.request, waiting.instruments);
    let deadline = Instant::now() + request.experiment.run.wait.0;
    let who = who(request);
    let terms = Terms {
        folder: request.locks,
        instruments,
        require_idle: request.experiment.run.require_idle_device,
        who: &who,
    };
    let mut said = false;
    loop {
        let (what, is_leased) = match lease::take(choice, each, held, &terms) {
            Ok(taken) => return Ok(taken),
            Err(Refusal::Broken(what)) => return Err(RunStop::CannotRun(what)),
            Err(Refusal::Lost(what)) => {
                let others = match waiting.is_fixed {
                    true => "",
                    false => ", or name others with `--device` (also `cpu`)",
                };
                return Err(RunStop::CannotRun(format!(
                    "{what}; reset it (`sudo nvidia-smi -r`) or restart the machine{others}"
                )));
            }
            Err(Refusal::Busy(what)) => (what, false),
            Err(Refusal::Leased(what)) => (what, true),
        };
        if Instant::now() >= deadline {
            let lack = match choice {
                DeviceChoice::All(devices) if devices.len() > 1 => {
                    "not all of the devices are idle"
                }
                _ => "no device is idle",
            };
            return Err(RunStop::CannotRun(format!(
                "{lack}: {what}; {}",
                waiting.advice(choice, is_leased)
            )));
        }
        if !said {
            said = true;
            request.listener.hear(LaunchEvent::Notice(&format!(
                "waiting up to {} (`run.wait`) for an idle device: {what}",
                request.experiment.run.wait
            )));
        }
        if let Ok(Event::Signal(_)) =
            events.recv_timeout(LOOK_AGAIN.min(deadline.saturating_duration_since(Instant::now())))
        {
            return Err(RunStop::Interrupted(
                "interrupted while waiting for an idle device; nothing was started".to_owned(),
            ));
        }
    }
}
