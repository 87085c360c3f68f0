//! Small trials of every kind of model that are killed, stopped and resumed, in processes of their
//! own or in this one.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Write},
    mem,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use kiln_core::{
    kinds::random::SplitMix64,
    plan::{Origin, Outcome, TrialFile, TrialId},
    record::{Checkpoints, EpochRow, Message, RunFolder, StepRow, TrialResult},
};
use kiln_trial::{Registry, train};

use super::{
    alone_with_the_generator_of, device_of, is_cuda, is_same_within, program, write_pairs,
};

const TRIAL: &str = "abcdef0123";
const EVERY_TEN_STEPS: &str = "every_steps: 10";

/// The parts of a trial, as YAML.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) engine: &'static str,
    /// That share its batches.
    pub(crate) devices: u64,
    pub(crate) model: &'static str,
    pub(crate) data: &'static str,
    pub(crate) train: &'static str,
}

pub(crate) const MLP: Case = Case {
    name: "mlp",
    engine: "libtorch",
    devices: 1,
    model: "{kind: mlp, seq_len: 16}",
    data: "{kind: generated, characters: 20000, num_workers: 2, persistent_workers: false}",
    train: "batch_size: 4, steps: 90, optimizer: {kind: sgd, learning_rate: 0.05, momentum: 0.9, \
            nesterov: true}",
};

pub(crate) const GPT: Case = Case {
    name: "gpt",
    engine: "libtorch",
    devices: 1,
    model: "{kind: gpt, d_model: 32, num_layers: 2, num_heads: 2, seq_len: 16, dropout: 0.1}",
    data: "{kind: generated, characters: 20000}",
    train: "batch_size: 4, grad_accumulation: 2, steps: 80, clip_norm: 1.0, evaluate: {every: 30}, \
            learning_rate_schedule: {kind: cosine, warmup_steps: 5, final_fraction: 0.1}",
};

pub(crate) const LSTM: Case = Case {
    name: "lstm",
    engine: "libtorch",
    devices: 1,
    model: "{kind: lstm, d_model: 16, hidden: 16, seq_len: 8, dropout: 0.2}",
    data: "{kind: generated, characters: 20000, sampling: contiguous}",
    train: "batch_size: 4, grad_accumulation: 2, steps: 120, clip_norm: 0.25, optimizer: {kind: \
            sgd, learning_rate: 4.0}, evaluate: {every: 8}, learning_rate_schedule: {kind: \
            plateau, factor: 0.5}",
};

pub(crate) const RESNET: Case = Case {
    name: "resnet",
    engine: "libtorch",
    devices: 1,
    model: "{kind: resnet, depth: 18, width: 4, stem: small}",
    data: "{kind: generated-images, images: 200, valid_images: 40, image_size: 16, flip: true, \
           crop_padding: 2, num_workers: 1}",
    train: "batch_size: 8, steps: 60, optimizer: {kind: sgd, learning_rate: 0.05, momentum: 0.9, \
            weight_decay: 5.0e-4}, evaluate: {every: epoch}",
};

pub(crate) const PANEL: Case = Case {
    name: "panel-lstm",
    engine: "libtorch",
    devices: 1,
    model: "{kind: panel-lstm, seq_len: 10, symbol_width: 4, hidden: 16, num_layers: 2, dropout: \
            0.1}",
    data: "{kind: panel-csv, path: PANEL, price: Close}",
    train: "batch_size: 8, steps: 80, evaluate: {every: 25}",
};

pub(crate) const SEQ2SEQ: Case = Case {
    name: "seq2seq",
    engine: "libtorch",
    devices: 1,
    model: "{kind: seq2seq, d_model: 16, d_kv: 4, d_ff: 32, num_heads: 2, dropout: 0.1}",
    data: "{kind: sft-jsonl, path: PAIRS/rows.jsonl, tokenizer: PAIRS/tokenizer.json, \
           length_bucket: 4, num_workers: 1}",
    train: "batch_size: 4, grad_accumulation: 2, steps: 60, clip_norm: 1.0, optimizer: {kind: \
            adafactor, learning_rate: 3.0e-3}, evaluate: {every: 20, generate: {rows: 5, \
            max_tokens: 8, beams: 2}}, learning_rate_schedule: {kind: linear, warmup_steps: 5}",
};

/// A trial whose attempts have separate folders.
pub(crate) struct Trial {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) case: Case,
    checkpoint: String,
    /// Further keys of `measure`, each behind a comma.
    pub(crate) measure: &'static str,
    /// The checkpoint of another trial with which it begins.
    pub(crate) origin: Option<Origin>,
}

/// The way in which a process is ended from outside.
#[derive(Clone, Copy)]
pub(crate) enum Ending {
    Itself,
    /// SIGKILL, or SIGTERM twice, once the checkpoint of this step is on the disk.
    Kill(u64),
    Terminate(u64),
}

/// The files of an attempt.
pub(crate) struct Attempt {
    messages: Vec<Message>,
    /// The bits of each step's loss.
    pub(crate) steps: BTreeMap<u64, u64>,
    pub(crate) epochs: Vec<EpochRow>,
    pub(crate) result: Option<TrialResult>,
}

/// Epoch and samples so far; training loss, validation loss and accuracy.
type Evaluation = ((u64, u64), [Option<f64>; 3]);

impl Trial {
    pub(crate) fn new(case: Case, checkpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if case.data.contains("PANEL") {
            write_panel(&folder.path().join("panel"));
        }
        if case.data.contains("PAIRS") {
            write_pairs(&folder.path().join("pairs"));
        }
        Self {
            folder,
            case,
            checkpoint: checkpoint.to_owned(),
            measure: "",
            origin: None,
        }
    }

    pub(crate) fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(
            self.folder.path().join("checkpoint"),
            TrialId(TRIAL.to_owned()),
        )
    }

    /// The step of the newest usable checkpoint, 0 if there is none, and why newer ones are not
    /// usable.
    pub(crate) fn newest(&self) -> (u64, Vec<String>) {
        let (found, refused) = self
            .checkpoints()
            .newest(|found| Ok(found.header.step))
            .unwrap();
        (found.unwrap_or(0), refused)
    }

    pub(crate) fn path(&self, attempt: u64) -> PathBuf {
        self.folder.path().join(attempt.to_string())
    }

    /// An empty folder for the attempt, with its trial file.
    fn file(&self, attempt: u64) -> PathBuf {
        let place = self.path(attempt);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).unwrap();
        let Case {
            engine,
            devices,
            model,
            data,
            train,
            ..
        } = self.case;
        let at = |folder: &str| self.folder.path().join(folder).display().to_string();
        let data = data
            .replace("PANEL", &at("panel"))
            .replace("PAIRS", &at("pairs"));
        let text = format!(
            "kiln_trial: 1\ntrial: {TRIAL}\nattempt: {attempt}\nmodel: {model}\ndata: {data}\n\
             train: {{cpu_threads: 1, checkpoint: {{{}}}, {train}}}\n\
             measure: {{warmup_steps: 2, warmup_seconds: 0, log_every: 7{}}}\nengine: {engine}\n\
             device: {}\ndevices_per_trial: {devices}\nfolder: {}\n\
             checkpoint_folder: {}\nrun_anchor_nanoseconds: 0\n",
            self.checkpoint,
            self.measure,
            device_of(engine),
            place.display(),
            at("checkpoint")
        );
        let origin = self.origin.as_ref().map(|origin| {
            let origin = serde_json::to_string(origin).unwrap();
            format!("origin: {origin}\n")
        });
        let file = place.join("trial.yaml");
        fs::write(&file, text + &origin.unwrap_or_default()).unwrap();
        file
    }

    /// A process that makes an attempt.
    pub(crate) fn start(&self, attempt: u64) -> Child {
        let file = self.file(attempt);
        let stderr = fs::File::create(self.path(attempt).join("stderr.txt")).unwrap();
        Command::new(program("kiln-trial"))
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap()
    }

    /// One attempt in a process of its own.
    fn attempt(&self, number: u64, ending: Ending) -> Attempt {
        let mut child = self.start(number);
        let mut messages = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let message: Message = serde_json::from_str(&line.unwrap()).unwrap();
            if let Message::Checkpointed { step, .. } = message {
                match ending {
                    Ending::Kill(at) if step >= at => child.kill().unwrap(),
                    Ending::Terminate(at) if step == at => terminate(&child),
                    _ => {}
                }
            }
            messages.push(message);
        }
        child.wait().unwrap();
        self.left(number, messages)
    }

    /// One attempt in this process, asked to stop once the checkpoint of step `stop_after` is on
    /// the disk.
    ///
    /// A model with dropout draws from the generator of this process: such cases belong to the
    /// executable `alone`.
    pub(crate) fn attempt_here(&self, number: u64, stop_after: Option<u64>) -> Attempt {
        let text = fs::read_to_string(self.file(number)).unwrap();
        let file: TrialFile = serde_yaml::from_str(&text).unwrap_or_else(|error| {
            panic!(
                "{error}\n\
                 {text}"
            )
        });
        let is_interrupted = AtomicBool::new(false);
        let mut listener = Listener {
            line: Vec::new(),
            messages: Vec::new(),
            stop_after,
            is_interrupted: &is_interrupted,
        };
        let _alone = alone_with_the_generator_of(file.engine);
        train::run(&file, &Registry::new(), &mut listener, &is_interrupted);
        self.left(number, listener.messages)
    }

    fn left(&self, number: u64, messages: Vec<Message>) -> Attempt {
        let result = fs::read(self.path(number).join("trial.json"))
            .ok()
            .map(|bytes| serde_json::from_slice(&bytes).unwrap());
        let steps: Vec<StepRow> = rows(&self.path(number).join("steps.csv"));
        let steps = steps
            .iter()
            .filter_map(|row| Some((row.step, row.loss?.to_bits())))
            .collect();
        Attempt {
            messages,
            steps,
            epochs: rows(&self.path(number).join("epochs.csv")),
            result,
        }
    }

    /// One attempt in a process of its own, which completes.
    fn complete(&self, number: u64) -> Attempt {
        let attempt = self.attempt(number, Ending::Itself);
        let stderr = fs::read_to_string(self.path(number).join("stderr.txt")).unwrap();
        assert!(
            attempt.is_complete(),
            "{}: {:?} {stderr}",
            self.case.name,
            attempt.result
        );
        attempt
    }

    /// One attempt in this process, which completes.
    pub(crate) fn complete_here(&self, number: u64) -> Attempt {
        let attempt = self.attempt_here(number, None);
        assert!(
            attempt.is_complete(),
            "{}: {:?}",
            self.case.name,
            attempt.result
        );
        attempt
    }
}

impl Attempt {
    fn is_complete(&self) -> bool {
        self.result
            .as_ref()
            .is_some_and(|result| result.outcome == Outcome::Completed)
    }

    pub(crate) fn notices(&self) -> Vec<&str> {
        let texts = self.messages.iter().filter_map(|message| match message {
            Message::Notice { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// By the step after which they stand: what a row says of the place in the data, and of losses.
    fn evaluations(&self) -> BTreeMap<u64, Evaluation> {
        let told = |row: &EpochRow| {
            (
                (row.epoch, row.samples),
                [row.train_loss, row.valid_loss, row.valid_top1],
            )
        };
        self.epochs
            .iter()
            .map(|row| (row.step, told(row)))
            .collect()
    }

    /// Whether this attempt, which went on after step `from`, left what the undisturbed one did: on
    /// the CPU to the bit.
    fn assert_goes_on(&self, name: &str, from: u64, undisturbed: &Self) {
        assert_eq!(
            self.result.as_ref().unwrap().figures.resumed_at_step,
            Some(from),
            "{name}"
        );
        assert_eq!(
            self.steps.keys().next(),
            Some(&(from + 1)),
            "{name}: its own steps begin after the checkpoint"
        );
        for (step, loss) in &self.steps {
            let (found, expected) = (
                f64::from_bits(*loss),
                f64::from_bits(undisturbed.steps[step]),
            );
            assert!(
                is_same_within(apart_on_cuda(name), found, expected),
                "{name} at step {step}, from {from}: {found}, undisturbed {expected}"
            );
        }
        let expected = undisturbed.evaluations();
        // The training loss of a row is since the row before, and the shorter training has one more,
        // at its end, where that is no regular evaluation.
        let mut skipped = usize::from(!expected.contains_key(&from));
        for (step, told) in self.evaluations() {
            let (place, losses) = &expected[&step];
            assert_eq!(told.0, *place, "{name} after step {step}, from {from}");
            assert!(
                are_same_cells(apart_on_cuda(name), &told.1[skipped..], &losses[skipped..]),
                "{name} after step {step}, from {from}: {told:?}, undisturbed {losses:?}"
            );
            skipped = 0;
        }
    }

    /// The row's note with this name.
    pub(crate) fn note(&self, name: &str) -> Option<&str> {
        self.result.as_ref()?.notes.get(name).map(String::as_str)
    }

    /// Whether its steps have the losses that the other attempt's have.
    fn has_losses_of(&self, name: &str, other: &Self) -> bool {
        let is_same = |(step, loss): (&u64, &u64)| {
            let (found, expected) = (f64::from_bits(*loss), f64::from_bits(other.steps[step]));
            is_same_within(apart_on_cuda(name), found, expected)
        };
        self.steps.iter().all(is_same)
    }

    /// Whether this attempt ended as the undisturbed one did.
    fn assert_ends_as(&self, name: &str, undisturbed: &Self) {
        let (found, expected) = (
            self.result.as_ref().unwrap(),
            undisturbed.result.as_ref().unwrap(),
        );
        let losses = |result: &TrialResult| {
            let figures = &result.figures;
            [
                figures.train_loss,
                figures.valid_loss,
                figures.lowest_valid_loss,
            ]
        };
        assert_eq!(found.steps(), expected.steps(), "{name}");
        assert!(
            are_same_cells(apart_on_cuda(name), &losses(found), &losses(expected)),
            "{name}: {:?}, undisturbed {:?}",
            losses(found),
            losses(expected)
        );
        assert!(
            expected.figures.checkpoint_seconds.unwrap() > 0.0
                && expected.figures.checkpoint_bytes.unwrap() > 1000
        );
    }
}

/// The share by which a trial's numbers may differ on a GPU. cuDNN adds up the gradients of
/// convolutions in another order each time, and norms over few images magnify what that changes: on
/// an H200 two trainings of a ResNet were 8 % apart after 33 steps.
fn apart_on_cuda(name: &str) -> f64 {
    if name.starts_with("resnet") {
        0.3
    } else {
        0.02
    }
}

/// An accuracy counts an integer number of images: on a GPU a rounding may decide one of them, and
/// is not held to anything.
fn are_same_cells(share: f64, found: &[Option<f64>], expected: &[Option<f64>]) -> bool {
    let is_same_cell = |found: &Option<f64>, expected: &Option<f64>| match (found, expected) {
        (Some(found), Some(expected)) => {
            is_same_within(share, *found, *expected)
                || (is_cuda() && *found <= 1.0 && *expected <= 1.0)
        }
        _ => found.is_none() && expected.is_none(),
    };
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, expected)| is_same_cell(found, expected))
}

/// Takes the messages of a trial in this process, and asks it to stop once it tells of a
/// checkpoint.
struct Listener<'a> {
    line: Vec<u8>,
    messages: Vec<Message>,
    stop_after: Option<u64>,
    is_interrupted: &'a AtomicBool,
}

impl Write for Listener<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Each message is flushed as soon as it is whole.
    fn flush(&mut self) -> io::Result<()> {
        let message: Message = serde_json::from_slice(&mem::take(&mut self.line))?;
        if let Message::Checkpointed { step, .. } = message
            && Some(step) == self.stop_after
        {
            self.is_interrupted.store(true, Ordering::SeqCst);
        }
        self.messages.push(message);
        Ok(())
    }
}

/// As a system does that ends all processes of a job: kiln, which is one of them, tells the trial too.
fn terminate(child: &Child) {
    for _ in 0..2 {
        let status = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }
}

/// A killed attempt may leave its last line torn.
pub(crate) fn rows<R: serde::de::DeserializeOwned>(path: &Path) -> Vec<R> {
    let Ok(mut reader) = csv::ReaderBuilder::new().flexible(true).from_path(path) else {
        return Vec::new();
    };
    reader.deserialize().filter_map(Result::ok).collect()
}

/// Prices of three symbols that go up and down.
fn write_panel(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for symbol in 0..3_u64 {
        let mut numbers = SplitMix64::new(symbol);
        let mut price = 100.0;
        let mut text = "Date,Open,Close,Volume\n".to_owned();
        for day in 0..240_u64 {
            let open = price;
            price *= 1.0 + (numbers.next_u64() % 1000) as f64 / 1e4 - 0.05;
            let (month, of_month) = (day / 28 + 1, day % 28 + 1);
            text += &format!(
                "2020-{month:02}-{of_month:02},{open:.4},{price:.4},{}\n",
                1000 + numbers.next_u64() % 500
            );
        }
        fs::write(folder.join(format!("S{symbol}.csv")), text).unwrap();
    }
}

/// Whether the case can be run here: replicas share the CPU, but each needs a GPU of its own.
#[allow(clippy::print_stdout, reason = "what is left out is said")]
fn has_devices(case: &Case) -> bool {
    let has = case.devices == 1 || device_of(case.engine) == "cpu";
    if !has {
        println!(
            "left out on CUDA: {} on {} devices",
            case.name, case.devices
        );
    }
    has
}

/// Kills the process of one attempt and stops that of the next; the third one ends as an
/// undisturbed trial does.
pub(crate) fn goes_on_after_a_kill(case: Case) {
    if !has_devices(&case) {
        return;
    }
    let undisturbed = Trial::new(case, EVERY_TEN_STEPS).complete(1);
    let total = undisturbed.result.as_ref().unwrap().steps();
    let disturbed = Trial::new(case, EVERY_TEN_STEPS);
    let killed = (0..20)
        .map(|_| disturbed.attempt(1, Ending::Kill(10)))
        .find(|attempt| !attempt.is_complete());
    let killed =
        killed.unwrap_or_else(|| panic!("{}: it was always faster than its killer", case.name));
    let (from, _) = disturbed.newest();
    assert!(from >= 10 && from < total, "{from} of {total}");
    assert!(
        killed.has_losses_of(case.name, &undisturbed),
        "{}",
        case.name
    );

    let stopped = disturbed.attempt(2, Ending::Terminate(from + 10));
    let last = disturbed.complete(3);
    let mut attempts = vec![(from, &last)];
    if !stopped.is_complete() {
        let result = stopped.result.as_ref().unwrap();
        assert_eq!(
            (result.outcome, result.figures.resumed_at_step),
            (Outcome::Interrupted, Some(from))
        );
        attempts = vec![(from, &stopped), (result.steps(), &last)];
    }
    attempts
        .iter()
        .for_each(|(from, attempt)| attempt.assert_goes_on(case.name, *from, &undisturbed));
    last.assert_ends_as(case.name, &undisturbed);
}

/// Makes steps operator by operator in one trial, and replays recorded ones in another, which is
/// stopped and resumed: the losses are the same to the bit. Out: what the second one's rows say of
/// how its steps were run.
pub(crate) fn trains_alike_recorded(case: Case, recorded: Case) -> [String; 2] {
    let eager = Trial::new(case, EVERY_TEN_STEPS).complete_here(1);
    assert_eq!(eager.note("cuda_graph"), None, "{}", case.name);
    let trial = Trial::new(recorded, EVERY_TEN_STEPS);
    let stopped = trial.attempt_here(1, Some(20));
    assert!(
        stopped.steps.len() == 20 && stopped.has_losses_of(case.name, &eager),
        "{}",
        case.name
    );
    let last = trial.complete_here(2);
    last.assert_goes_on(case.name, 20, &eager);
    last.assert_ends_as(case.name, &eager);
    let skipped = |attempt: &Attempt| attempt.result.as_ref().unwrap().figures.skipped_steps;
    assert_eq!(skipped(&last), skipped(&eager), "{}", case.name);
    [&stopped, &last].map(|attempt| attempt.note("cuda_graph").unwrap_or_default().to_owned())
}

/// Stops two attempts in this process; the third one ends as an undisturbed trial does.
pub(crate) fn goes_on_here(case: Case) {
    if !has_devices(&case) {
        return;
    }
    let disturbed = Trial::new(case, EVERY_TEN_STEPS);
    let first = disturbed.attempt_here(1, Some(20));
    // Made in between, so that this process's generator does not stand where the first attempt left
    // it: only the checkpoint may tell the second attempt where to go on.
    let undisturbed = Trial::new(case, EVERY_TEN_STEPS).complete_here(1);
    let second = disturbed.attempt_here(2, Some(40));
    let last = disturbed.complete_here(3);
    for (attempt, resumed_at, stopped_at) in [(&first, None, 20), (&second, Some(20), 40)] {
        let result = attempt.result.as_ref().unwrap();
        assert_eq!(
            (
                result.outcome,
                result.figures.resumed_at_step,
                result.steps()
            ),
            (Outcome::Interrupted, resumed_at, stopped_at),
            "{}",
            case.name
        );
    }
    assert!(
        first.steps.len() == 20 && first.has_losses_of(case.name, &undisturbed),
        "{}",
        case.name
    );
    second.assert_goes_on(case.name, 20, &undisturbed);
    last.assert_goes_on(case.name, 40, &undisturbed);
    last.assert_ends_as(case.name, &undisturbed);
}

/// Trains a short trial to its end, and a longer one from its checkpoint, in the folder of another
/// run; that one is stopped and resumed. It ends as the longer one alone does.
pub(crate) fn continues_here(short: Case, long: Case) {
    let mut continued = Trial::new(long, EVERY_TEN_STEPS);
    let (from, origin, _folder) = finished(short);
    continued.origin = Some(origin.clone());
    let stop = (from / 10 + 1) * 10;
    let first = continued.attempt_here(1, Some(stop));
    let undisturbed = Trial::new(long, EVERY_TEN_STEPS).complete_here(1);
    // The other run is not needed any more.
    fs::remove_dir_all(&origin.run).unwrap();
    let last = continued.complete_here(2);
    assert_eq!(first.result.as_ref().unwrap().outcome, Outcome::Interrupted);
    first.assert_goes_on(long.name, from, &undisturbed);
    last.assert_goes_on(long.name, stop, &undisturbed);
    last.assert_ends_as(long.name, &undisturbed);
}

/// Trains a trial to its end, and leaves its last checkpoint as a run would; its step, what a
/// continuation names, and the folder of all.
pub(crate) fn finished(case: Case) -> (u64, Origin, tempfile::TempDir) {
    let trial = Trial::new(case, "every_steps: 1000, after: last");
    let step = trial.complete_here(1).result.unwrap().steps();
    let id = TrialId(TRIAL.to_owned());
    let path = trial.folder.path();
    let run = RunFolder::at(path.join("run"));
    let checkpoints = run.checkpoints(&id);
    fs::create_dir_all(checkpoints.parent().unwrap()).unwrap();
    fs::rename(path.join("checkpoint"), &checkpoints).unwrap();
    let (found, sha256) = Checkpoints::new(checkpoints, id.clone())
        .newest_whole()
        .unwrap();
    assert_eq!(found.header.step, step);
    let origin = Origin {
        run: run.path().to_owned(),
        trial: id,
        step,
        sha256,
    };
    (step, origin, trial.folder)
}
