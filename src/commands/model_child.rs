//! Starts `kiln-trial --use` for one request, and passes its answers on.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ExitStatus, Stdio},
    thread::{self, JoinHandle},
};

use kiln_core::{
    plan::ChildDevice,
    record::{
        message::exit_status,
        model_use::{MODEL_USE, UseAnswer, UseRequest, UseTask},
    },
    spec::CpuThreads,
};
use kiln_data::source::absolute_data_folder;
use kiln_hardware::host::usable_cores;

use super::{
    Status, Stop,
    device_choice::leased,
    machine::{open_instruments, start_trial_program},
    note,
    trained_model::TrainedModel,
};
use crate::schedule::Lease;

/// Most bytes of one line of the child, and of its standard error that are kept.
const LINE_BYTES: u64 = 64 << 20;
const STDERR_BYTES: u64 = 64 << 10;

/// Asks the child to do `task` with a trained model, on the device that `device` names. `hear` gets
/// each answer but notices, which are printed; `false` ends the child, because nobody reads the output any
/// more.
///
/// # Errors
/// The device cannot be used, the child cannot be started or fails, or `hear` does.
pub(super) fn ask(
    trained: TrainedModel,
    device: &str,
    task: UseTask,
    hear: &mut dyn FnMut(UseAnswer) -> Result<bool, Stop>,
) -> Result<(), Stop> {
    let lease = match device {
        "cpu" => None,
        _ => {
            let instruments = open_instruments();
            leased(device, &instruments, task.verb())?
        }
    };
    let request = request(trained, lease.as_ref(), task);
    let text = serde_json::to_vec(&request).map_err(|error| {
        Stop::bad_input(format!(
            "the program that computes cannot be told of the run or of a file: {error}; rename the \
             folder or file whose name is not UTF-8"
        ))
    })?;
    let gpu = lease.as_ref().and_then(Lease::gpu);
    let mut child = start_trial_program(&["--use"], gpu, Stdio::piped())?;
    let stderr = keep_stderr(&mut child);
    if let Some(mut stdin) = child.stdin.take() {
        // A child that ended early says why in another way.
        let _ = stdin.write_all(&text);
    }
    let listened = listen(&mut child, hear);
    if !matches!(listened, Ok(Some(_))) {
        let _ = child.kill();
    }
    let ended = child
        .wait()
        .map_err(|error| Stop::new(Status::Failed, format!("kiln-trial: {error}")))?;
    let words = stderr.and_then(|kept| kept.join().ok()).unwrap_or_default();
    match listened? {
        Some(UseAnswer::Failed { reason }) => Err(Stop::new(status(ended), reason)),
        Some(UseAnswer::Done) | None => Ok(()),
        Some(_) => Err(unfinished(ended, &words)),
    }
}

/// The trial for this machine: its device, its threads, and the place of its data.
fn request(trained: TrainedModel, lease: Option<&Lease>, task: UseTask) -> UseRequest {
    let mut trial = trained.file;
    let device = match lease.and_then(Lease::gpu) {
        Some(_) => ChildDevice::Cuda,
        None => ChildDevice::Cpu,
    };
    // The threads of the training make the sums in the order of the training.
    let is_as_trained = matches!(task, UseTask::Evaluate(_)) && device == trial.device;
    if !is_as_trained {
        trial.train.cpu_threads = CpuThreads::Count(usable_cores());
    }
    trial.device = device;
    trial.data_folder = absolute_data_folder().or(trial.data_folder);
    UseRequest {
        kiln_use: MODEL_USE,
        trial,
        checkpoint: trained.checkpoint.folder,
        data_sha256: trained.data_sha256,
        outputs: trained.outputs,
        task,
    }
}

/// Reads standard error in a thread, so that the child never waits for it.
fn keep_stderr(child: &mut Child) -> Option<JoinHandle<String>> {
    let mut stream = child.stderr.take()?;
    let read = move || {
        let mut kept = Vec::new();
        let _ = stream.by_ref().take(STDERR_BYTES).read_to_end(&mut kept);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        String::from_utf8_lossy(&kept).into_owned()
    };
    thread::Builder::new()
        .name("stderr".to_owned())
        .spawn(read)
        .ok()
}

/// The last answer: `Done` or `Failed` if the child ended in order, `None` if nobody reads on.
fn listen(
    child: &mut Child,
    hear: &mut dyn FnMut(UseAnswer) -> Result<bool, Stop>,
) -> Result<Option<UseAnswer>, Stop> {
    let Some(stdout) = child.stdout.take() else {
        return Ok(Some(UseAnswer::Unknown));
    };
    let mut lines = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let read = lines.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line);
        if !matches!(read, Ok(count) if count > 0) {
            return Ok(Some(UseAnswer::Unknown));
        }
        match serde_json::from_slice(&line) {
            Ok(last @ (UseAnswer::Done | UseAnswer::Failed { .. })) => return Ok(Some(last)),
            Ok(UseAnswer::Notice { text }) => note(&text),
            Ok(UseAnswer::Unknown) | Err(_) => {}
            Ok(answer) => {
                if !hear(answer)? {
                    return Ok(None);
                }
            }
        }
    }
}

fn status(ended: ExitStatus) -> Status {
    match ended.code() {
        Some(exit_status::BAD_FILE) => Status::BadInput,
        Some(exit_status::NO_DEVICE) => Status::CannotRun,
        _ => Status::Failed,
    }
}

fn unfinished(ended: ExitStatus, words: &str) -> Stop {
    let last = words.lines().last().map_or(String::new(), |line| {
        format!(": {}", line.strip_prefix("kiln-trial: ").unwrap_or(line))
    });
    Stop::new(
        Status::Failed,
        format!(
            "kiln-trial ended with {ended} before it had answered{last}; does it belong to this \
             kiln? `kiln doctor` examines it"
        ),
    )
}
