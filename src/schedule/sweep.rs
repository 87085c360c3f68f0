//! One launch: the loop that starts trials on free devices, watches them, stops them when it must, and writes their rows.
//!
//! Everything happens in the calling thread, which is the one that starts the children; other threads only send it events.

use std::{
    collections::HashMap,
    io,
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use super::{
    End, Event, Instruments, Report, Request, Stop, attempt,
    attempt::Attempt,
    clock, disk,
    instruments::Sitting,
    judge::StopCause,
    lease::Lease,
    open::{self, Found, Open},
    pools::{self, Pools},
    progress::{self, Progress, counted},
    queue::{Queue, wish},
    remaining::{History, remaining},
    signals::{Asked, Listener, ask},
};
use crate::{
    plan::{Outcome, TrialId},
    record::{
        Privacy, RunFolder, TableRow,
        run_file::Ended,
        run_folder::{Lock, lock},
    },
    spec::Identity,
};

/// Between two looks at the children.
const TICK: Duration = Duration::from_millis(200);

/// Whether there is room for one more trial at a path.
type HasRoom = fn(&Path) -> bool;

pub(super) fn run(request: &Request, instruments: Instruments) -> Result<Report, Stop> {
    run_on(request, instruments, disk::has_room)
}

fn run_on(request: &Request, mut instruments: Instruments, has_room: HasRoom) -> Result<Report, Stop> {
    if request.trials.is_empty() {
        return Err(Stop::Refused(format!("experiment `{}` has no trials to run", request.experiment.name)));
    }
    refuse_without_program(request.trial_program)?;
    let _lock = take_lock(request)?;
    let found = open::find(request)?;
    if let Found::Old(old) = &found
        && remaining(request.trials, &old.history, &request.selection, request.experiment.run.retries).is_empty()
    {
        let standing = old.history.standing(request.trials, request.experiment.run.retries);
        progress::nothing_to_do(request.style, request.trials.len(), standing);
        return Ok(report(request, old.folder.clone(), End::NothingToDo, &old.rows));
    }
    let (sender, events) = channel();
    let _listener = Listener::start(sender.clone()).map_err(|error| Stop::CannotRun(format!("signals cannot be listened to: {error}")))?;
    let pools = pools::lease_all(request, &found, &instruments, &events)?;
    let open = open::open(request, found, &instruments)?;
    instruments.begin(sitting(request, &open)).map_err(open::cannot_write(request))?;
    Sweep::new(request, instruments, open, pools, sender, has_room).run(&events)
}

fn sitting<'a>(request: &Request, open: &'a Open) -> Sitting<'a> {
    Sitting {
        folder: &open.folder,
        launch: open.launch,
        run_anchor_nanoseconds: open.run_anchor_nanoseconds,
        sample_interval: request.experiment.measure.sample_interval.0,
        privacy: match request.experiment.record.identity {
            Identity::Masked => Privacy::Masked,
            Identity::Full => Privacy::Full,
        },
    }
}

fn refuse_without_program(program: &Path) -> Result<(), Stop> {
    if program.is_file() {
        return Ok(());
    }
    Err(Stop::CannotRun(format!(
        "{}: the program that runs a trial is not there; build it (`cargo build --release -p kiln-trial`) or name it in `KILN_TRIAL`",
        program.display()
    )))
}

fn take_lock(request: &Request) -> Result<Lock, Stop> {
    let name = &request.experiment.name;
    match lock(request.results, name, std::process::id(), &clock::utc_now()) {
        Ok(Ok(lock)) => Ok(lock),
        Ok(Err(holder)) => Err(Stop::CannotRun(format!(
            "experiment `{name}` is being run by {} (folder {}); wait for it, or stop it",
            holder.0,
            request.results.join(name).display()
        ))),
        Err(error) => Err(open::cannot_write(request)(error)),
    }
}

/// The state of one launch.
struct Sweep<'a> {
    request: &'a Request<'a>,
    instruments: Instruments,
    open: Open,
    history: History,
    devices: Vec<Lease>,
    /// When each device's last trial ended, for `run.cool_down`.
    rested_since: Vec<Option<Instant>>,
    queue: Queue,
    running: Vec<Attempt>,
    sender: Sender<Event>,
    next_token: u64,
    asked: Option<Asked>,
    /// Why no more trials are started.
    failure: Option<Stop>,
    progress: Progress,
    has_room: HasRoom,
}

impl<'a> Sweep<'a> {
    fn new(request: &'a Request, instruments: Instruments, open: Open, pools: Pools, sender: Sender<Event>, has_room: HasRoom) -> Self {
        let history = History::of(&open.rows);
        let retries = request.experiment.run.retries;
        let left = remaining(request.trials, &history, &request.selection, retries);
        let progress = Progress::new(request.style, request.trials.len(), left.len(), history.standing(request.trials, retries));
        open.notices.iter().chain(&pools.notices).for_each(|notice| progress.notice(notice));
        progress.run_started(&shown(request, &open), open.launch);
        let rounds = request.trials.iter().any(|trial| trial.repeat > 0);
        let mut queue = Queue::new(left, pools.wishes, rounds);
        bind_rounds(&mut queue, request, &open.rows, &pools.devices);
        let rested_since = pools.devices.iter().map(|_| None).collect();
        Self {
            request,
            instruments,
            open,
            history,
            devices: pools.devices,
            rested_since,
            queue,
            running: Vec::new(),
            sender,
            next_token: 0,
            asked: None,
            failure: None,
            progress,
            has_room,
        }
    }

    fn run(mut self, events: &Receiver<Event>) -> Result<Report, Stop> {
        disk::keep_reserve(&self.open.folder);
        loop {
            self.start_what_may();
            if self.running.is_empty() && (self.is_stopping() || self.queue.is_empty()) {
                break;
            }
            match events.recv_timeout(TICK) {
                Ok(Event::Signal(signal)) => self.signal(signal),
                Ok(Event::Window(token)) => self.mark(token),
                Ok(Event::Ended(token)) => self.ended(token),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.tick();
        }
        disk::release_reserve(&self.open.folder);
        self.close()
    }

    fn is_stopping(&self) -> bool {
        self.asked.is_some() || self.failure.is_some()
    }

    fn start_what_may(&mut self) {
        while !self.is_stopping() {
            let free: Vec<bool> = (0..self.devices.len()).map(|device| self.is_free(device)).collect();
            let running = self.running.first().map(|attempt| wish(&self.request.trials[attempt.index]));
            let Some((index, device)) = self.queue.next(self.request.trials, &free, running.as_ref()) else { break };
            if !(self.has_room)(self.open.folder.path()) {
                self.queue.again(index);
                self.start_no_more(self.disk_full());
                break;
            }
            if let Err(stop) = self.start(index, device) {
                self.queue.again(index);
                self.fail(stop);
            }
        }
    }

    fn is_free(&self, device: usize) -> bool {
        self.running.iter().all(|attempt| attempt.device != device) && self.is_cool(device)
    }

    fn is_cool(&self, device: usize) -> bool {
        let (Some(cool_down), Some(gpu)) = (&self.request.experiment.run.cool_down, &self.devices[device].gpu) else { return true };
        let rested = self.rested_since[device].is_none_or(|since| since.elapsed() >= cool_down.at_most.0);
        rested || self.instruments.temperature_celsius(&gpu.uuid).is_none_or(|celsius| celsius < f64::from(cool_down.below_celsius))
    }

    fn start(&mut self, index: usize, device: usize) -> Result<(), Stop> {
        let trial = &self.request.trials[index];
        let setting = attempt::Setting {
            request: self.request,
            folder: &self.open.folder,
            launch: self.open.launch,
            run_anchor_nanoseconds: self.open.run_anchor_nanoseconds,
            device: self.devices[device].gpu.as_ref(),
            token: self.next_token,
        };
        let peak = self.instruments.peak_flops(setting.device, trial);
        let started = attempt::start(&setting, index, device, peak, self.sender.clone()).map_err(open::cannot_write(self.request))?;
        self.next_token += 1;
        let watched = self.instruments.watch(started.watch(trial, self.devices[device].gpu.as_ref()));
        self.progress.trial_started(trial, started.attempt, self.devices[device].name());
        self.running.push(started);
        let concurrent = self.running.len() as u64;
        self.running.iter_mut().for_each(|attempt| attempt.most_concurrent = attempt.most_concurrent.max(concurrent));
        if let Err(error) = watched {
            let stop = open::cannot_write(self.request)(error);
            self.fail(stop);
        }
        Ok(())
    }

    fn signal(&mut self, signal: i32) {
        let asked = ask(self.asked, signal);
        self.asked = Some(asked);
        match asked {
            Asked::Drain if self.running.is_empty() => self.progress.notice("stopping"),
            Asked::Drain => {
                let running = counted(self.running.len(), "running trial");
                self.progress.notice(&format!("finishing {running}, starting no more; Ctrl-C again stops now"));
            }
            Asked::Stop => {
                self.progress.notice("stopping the running trials");
                self.running.iter_mut().for_each(|attempt| attempt.stop(StopCause::Told));
            }
            Asked::Kill => self.running.iter_mut().for_each(Attempt::kill),
        }
    }

    fn tick(&mut self) {
        if let Err(error) = self.instruments.tick() {
            let stop = open::cannot_write(self.request)(error);
            self.fail(stop);
        }
        for attempt in &mut self.running {
            attempt.keep_limits(&self.request.experiment.run);
            let id = &self.request.trials[attempt.index].id;
            let (heard, notices) = attempt.look();
            notices.iter().for_each(|notice| self.progress.notice(&format!("trial {id}: {notice}")));
            self.progress.trial_progress(id, &heard);
        }
    }

    fn mark(&self, token: u64) {
        if let Some(attempt) = self.running.iter().find(|attempt| attempt.token == token) {
            self.instruments.mark(&self.request.trials[attempt.index].id);
        }
    }

    fn ended(&mut self, token: u64) {
        let Some(at) = self.running.iter().position(|attempt| attempt.token == token) else { return };
        let _ = self.instruments.tick();
        let attempt = self.running.remove(at);
        let (index, device) = (attempt.index, attempt.device);
        self.rested_since[device] = Some(Instant::now());
        let trial = &self.request.trials[index];
        let facts = attempt::Surroundings {
            launch: self.open.launch,
            device: self.devices[device].gpu.as_ref(),
            driver: self.instruments.driver(),
            cores: open::cores(),
        };
        let full = !(self.has_room)(self.open.folder.path());
        let attempt::Finished { row, cannot_run, libraries } = attempt.finish(trial, &facts, &mut self.instruments, full);
        if cannot_run {
            self.fail(Stop::CannotRun(row.fixed.reason.clone().unwrap_or_default()));
        }
        self.keep(row, index);
        if self.open.file.add_libraries(&libraries)
            && let Err(error) = self.open.file.write(&self.open.folder.run_file())
        {
            self.fail(open::cannot_write(self.request)(error));
        }
        let is_settled = self.history.is_settled(&trial.id, self.request.experiment.run.retries);
        if full && !(is_settled && self.queue.is_empty()) {
            self.start_no_more(self.disk_full());
        }
    }

    /// Writes a row; on a full disk the reserve makes room for it.
    fn keep(&mut self, row: TableRow, index: usize) {
        let mut kept = self.open.table.append_synced(&row).map_err(io::Error::from);
        if kept.as_ref().is_err_and(disk::is_full) {
            disk::release_reserve(&self.open.folder);
            kept = self.open.table.append_synced(&row).map_err(io::Error::from);
            let stop = self.disk_full();
            self.fail(stop);
        }
        if let Err(error) = kept {
            let stop = open::cannot_write(self.request)(error);
            self.fail(stop);
            return;
        }
        let retries = self.request.experiment.run.retries;
        self.history.add(&row.fixed.trial, row.fixed.outcome);
        let settled = self.history.is_settled(&row.fixed.trial, retries);
        if row.fixed.outcome == Outcome::Failed && !settled {
            self.queue.again(index);
        }
        self.progress.trial_ended(&row.fixed, settled, self.history.standing(self.request.trials, retries));
        self.open.rows.push(row);
    }

    /// Starts no more trials and stops those that run.
    fn fail(&mut self, stop: Stop) {
        self.running.iter_mut().for_each(|attempt| attempt.stop(StopCause::RunFailed));
        self.start_no_more(stop);
    }

    /// Starts no more trials; those that run go on to their ends.
    fn start_no_more(&mut self, stop: Stop) {
        self.failure.get_or_insert(stop);
    }

    fn disk_full(&self) -> Stop {
        Stop::CannotRun(disk::full_message(&self.request.results.join(&self.request.experiment.name)))
    }

    fn close(mut self) -> Result<Report, Stop> {
        let mut report = report(self.request, self.open.folder.clone(), End::Finished, &self.open.rows);
        if self.asked.is_some() && report.left > 0 {
            report.end = End::Interrupted;
        }
        let how = match (&self.failure, report.end, report.left) {
            (Some(stop), ..) => stop.to_string(),
            (None, End::Interrupted, _) => "interrupted".to_owned(),
            (None, _, 0) => "finished".to_owned(),
            (None, _, left) => format!("{} left", counted(left, "trial")),
        };
        if let Some(launch) = self.open.file.launches.last_mut() {
            launch.ended = Some(Ended { utc: clock::utc_now(), how: how.clone() });
        }
        let written = self.open.file.write(&self.open.folder.run_file());
        self.progress.run_ended(&how);
        match (self.failure, written) {
            (Some(stop), _) => Err(stop),
            (None, Err(error)) => Err(open::cannot_write(self.request)(error)),
            (None, Ok(())) => Ok(report),
        }
    }
}

/// Rounds of repeats go on where they ran in earlier launches.
fn bind_rounds(queue: &mut Queue, request: &Request, rows: &[TableRow], devices: &[Lease]) {
    let repeats: HashMap<&TrialId, u64> = request.trials.iter().map(|trial| (&trial.id, trial.repeat)).collect();
    for row in rows {
        let name = row.fixed.device_uuid.as_deref().unwrap_or("cpu");
        let device = devices.iter().position(|lease| lease.name() == name);
        if let (Some(repeat), Some(device)) = (repeats.get(&row.fixed.trial), device) {
            queue.bind_round(*repeat, device);
        }
    }
}

/// The run's folder as the user names it.
fn shown(request: &Request, open: &Open) -> String {
    request.results.join(&request.experiment.name).join(open.folder.name()).display().to_string()
}

fn report(request: &Request, folder: RunFolder, end: End, rows: &[TableRow]) -> Report {
    let history = History::of(rows);
    let left = request.trials.iter().filter(|trial| !history.is_settled(&trial.id, request.experiment.run.retries)).count();
    let last: HashMap<&TrialId, &TableRow> = rows.iter().map(|row| (&row.fixed.trial, row)).collect();
    let rows = request.trials.iter().filter_map(|trial| last.get(&trial.id).map(|row| (*row).clone())).collect();
    let folder = RunFolder::at(request.results.join(&request.experiment.name).join(folder.name()));
    Report { folder, end, left, rows }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::{
        plan::Trial,
        schedule::{Selection, Style, instruments::DeviceFacts},
        spec::{DeviceName, Devices, Engine, Experiment},
    };

    static NO_DATA: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();

    fn gpu(index: u32) -> DeviceFacts {
        DeviceFacts { index, uuid: format!("GPU-{index}"), name: "pretended".into(), memory_total_bytes: Some(1 << 30) }
    }

    fn trial(experiment: &Experiment, number: u64, repeat: u64) -> Trial {
        Trial {
            id: TrialId(format!("{number:010}")),
            number,
            point: number % 2,
            repeat,
            axes: Vec::new(),
            model: experiment.model.clone(),
            data: Default::default(),
            train: experiment.train.clone(),
            engine: Engine::Libtorch,
            devices: Devices::Named(DeviceName::All),
            parameters: None,
            flops_per_sample: None,
            effective_batch_size: 8,
            steps: Some(10),
        }
    }

    fn request<'a>(experiment: &'a Experiment, trials: &'a [Trial], [results, trial_program, locks]: [&'a PathBuf; 3]) -> Request<'a> {
        Request {
            experiment,
            resolved: "",
            trials,
            results,
            trial_program,
            locks,
            visible_devices: None,
            selection: Selection::default(),
            fresh: false,
            command_line: &[],
            data: &NO_DATA,
            style: Style::Quiet,
        }
    }

    #[test]
    fn two_gpus_run_two_trials_at_once_and_each_round_of_repeats_stays_on_its_own() {
        let place = tempfile::tempdir().unwrap();
        let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all}}";
        let experiment: Experiment = serde_yaml::from_str(text).unwrap();
        let trials: Vec<Trial> = [0, 0, 1, 1].iter().enumerate().map(|(at, repeat)| trial(&experiment, at as u64 + 1, *repeat)).collect();
        // A child that ends once it has seen another one start, so that they must overlap.
        let program: PathBuf = place.path().join("child.sh");
        let script = "#!/bin/sh\nfolder=$(sed -n 's/^folder: //p' $1)\necho \"$CUDA_VISIBLE_DEVICES\" >$folder/device\n\
            while [ $(cat $(dirname $0)/results/x/*/trials/*/1/device | wc -l) -lt 2 ]; do sleep 0.01; done\n\
            echo '{\"event\":\"finished\",\"outcome\":\"diverged\"}'\n";
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (results, locks) = (place.path().join("results"), place.path().join("locks"));
        let request = Request { resolved: text, ..request(&experiment, &trials, [&results, &program, &locks]) };
        let report = run(&request, Instruments::pretending(vec![gpu(0), gpu(1)])).unwrap();
        assert_eq!(report.end, End::Finished);
        let uuids: Vec<&str> = report.rows.iter().map(|row| row.fixed.device_uuid.as_deref().unwrap()).collect();
        assert!(uuids[0] == uuids[1] && uuids[2] == uuids[3] && uuids[0] != uuids[2], "{uuids:?}");
        assert_eq!(report.rows.iter().filter(|row| row.fixed.concurrent_trials == 2).count(), report.rows.len());
        let device = fs::read_to_string(report.folder.attempt(&trials[2].id, 1).join("device")).unwrap();
        assert_eq!(device.trim(), uuids[2]);
    }

    /// A child that plays `lines` in its attempt's `$folder` of the run's `$run`, and then ends with a result.
    fn script(place: &Path, lines: &str) -> PathBuf {
        let program = place.join("child.sh");
        let text = format!(
            "#!/bin/sh\nfolder=$(sed -n 's/^folder: //p' $1)\nrun=$folder/../../..\n{lines}\n\
            echo '{{\"event\":\"finished\",\"outcome\":\"diverged\"}}'\n"
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        program
    }

    /// A disk that has room until a trial writes the file `full` into the run's folder.
    fn until_full(run: &Path) -> bool {
        !run.join("full").exists()
    }

    #[test]
    fn a_disk_that_fills_up_with_the_last_trial_does_not_fail_the_run() {
        let place = tempfile::tempdir().unwrap();
        let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
        let experiment: Experiment = serde_yaml::from_str(text).unwrap();
        let trials = [trial(&experiment, 1, 0)];
        let (results, locks, program) = (place.path().join("results"), place.path().join("locks"), script(place.path(), "touch $run/full"));
        let request = Request { resolved: text, ..request(&experiment, &trials, [&results, &program, &locks]) };
        let report = run_on(&request, Instruments::pretending(vec![gpu(0)]), until_full).unwrap();
        assert_eq!((report.end, report.left, report.rows[0].fixed.outcome), (End::Finished, 0, Outcome::Diverged));
    }

    #[test]
    fn on_a_full_disk_running_trials_end_by_themselves_and_no_more_are_started() {
        let place = tempfile::tempdir().unwrap();
        let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all}}";
        let experiment: Experiment = serde_yaml::from_str(text).unwrap();
        let trials = [1, 2, 3].map(|number| trial(&experiment, number, 0));
        // The first fills the disk once the second runs; the second goes on until the first has its row.
        let lines = "if mkdir $run/first; then\n  while [ ! -e $run/second ]; do sleep 0.01; done; touch $run/full\n\
            else\n  touch $run/second; while [ $(wc -l <$run/trials.csv) -lt 2 ]; do sleep 0.01; done; sleep 0.3\nfi";
        let (results, locks, program) = (place.path().join("results"), place.path().join("locks"), script(place.path(), lines));
        let request = Request { resolved: text, ..request(&experiment, &trials, [&results, &program, &locks]) };
        let stopped = run_on(&request, Instruments::pretending(vec![gpu(0), gpu(1)]), until_full).unwrap_err();
        assert!(matches!(&stopped, Stop::CannotRun(what) if what.contains("full")), "{stopped}");
        let run = crate::record::run_folder::runs(&results, "x").remove(0);
        let rows = crate::record::TrialTable::read(&run.trials_table()).unwrap().rows;
        assert_eq!(rows.iter().map(|row| row.fixed.outcome).collect::<Vec<_>>(), [Outcome::Diverged; 2]);
    }

    #[test]
    fn a_gpu_that_another_run_holds_is_waited_for_and_then_refused_with_its_holder() {
        let place = tempfile::tempdir().unwrap();
        let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all, wait: 10ms}}";
        let experiment: Experiment = serde_yaml::from_str(text).unwrap();
        let trials = [trial(&experiment, 1, 0)];
        let (results, locks, program) = (place.path().join("results"), place.path().join("locks"), PathBuf::from("/bin/true"));
        fs::create_dir(&locks).unwrap();
        let _held = crate::record::run_folder::lock_file(&locks.join("GPU-1.lock"), "process 4711").unwrap().unwrap();
        let request = Request { resolved: text, ..request(&experiment, &trials, [&results, &program, &locks]) };
        let refused = run(&request, Instruments::pretending(vec![gpu(0), gpu(1)])).unwrap_err();
        assert!(matches!(&refused, Stop::CannotRun(what) if what.contains("GPU 1 (pretended) is leased by process 4711")), "{refused}");
        let free = Request { visible_devices: Some("0"), ..request };
        assert_eq!(run(&free, Instruments::pretending(vec![gpu(0), gpu(1)])).unwrap().rows[0].fixed.device_uuid.as_deref(), Some("GPU-0"));
    }
}
