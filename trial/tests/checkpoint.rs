//! Checkpoints of whole trials: an attempt that was killed or stopped goes on, and nobody can tell from the losses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use common::write_pairs;
use kiln::{
    catalog::random::SplitMix64,
    plan::{Outcome, TrialId},
    record::{Checkpoints, EpochRow, Message, StepRow, TrialResult},
};

const TRIAL: &str = "abcdef0123";

/// What a trial is made of, as YAML.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    engine: &'static str,
    /// That share its batches.
    devices: u64,
    model: &'static str,
    data: &'static str,
    train: &'static str,
}

const MLP: Case = Case {
    name: "mlp",
    engine: "libtorch",
    devices: 1,
    model: "{kind: mlp, seq_len: 16}",
    data: "{kind: generated, characters: 20000, num_workers: 2, persistent_workers: false}",
    train: "batch_size: 4, steps: 90, optimizer: {kind: sgd, learning_rate: 0.05, momentum: 0.9, nesterov: true}",
};

const GPT: Case = Case {
    name: "gpt",
    engine: "libtorch",
    devices: 1,
    model: "{kind: gpt, d_model: 32, num_layers: 2, num_heads: 2, seq_len: 16, dropout: 0.1}",
    data: "{kind: generated, characters: 20000}",
    train: "batch_size: 4, grad_accumulation: 2, steps: 80, clip_norm: 1.0, evaluate: {every: 30}, \
            learning_rate_schedule: {kind: cosine, warmup_steps: 5, final_fraction: 0.1}",
};

const LSTM: Case = Case {
    name: "lstm",
    engine: "libtorch",
    devices: 1,
    model: "{kind: lstm, d_model: 16, hidden: 16, seq_len: 8, dropout: 0.2}",
    data: "{kind: generated, characters: 20000, sampling: contiguous}",
    train: "batch_size: 4, grad_accumulation: 2, steps: 120, clip_norm: 0.25, optimizer: {kind: sgd, learning_rate: 4.0}, \
            evaluate: {every: 8}, learning_rate_schedule: {kind: plateau, factor: 0.5}",
};

const RESNET: Case = Case {
    name: "resnet",
    engine: "libtorch",
    devices: 1,
    model: "{kind: resnet, depth: 18, width: 4, stem: small}",
    data: "{kind: generated-images, images: 200, valid_images: 40, image_size: 16, flip: true, crop_padding: 2, num_workers: 1}",
    train: "batch_size: 8, steps: 60, optimizer: {kind: sgd, learning_rate: 0.05, momentum: 0.9, weight_decay: 5.0e-4}, evaluate: {every: epoch}",
};

const PANEL: Case = Case {
    name: "panel-lstm",
    engine: "libtorch",
    devices: 1,
    model: "{kind: panel-lstm, seq_len: 10, symbol_width: 4, hidden: 16, num_layers: 2, dropout: 0.1}",
    data: "{kind: panel-csv, path: PANEL, price: Close}",
    train: "batch_size: 8, steps: 80, evaluate: {every: 25}",
};

const SEQ2SEQ: Case = Case {
    name: "seq2seq",
    engine: "libtorch",
    devices: 1,
    model: "{kind: seq2seq, d_model: 16, d_kv: 4, d_ff: 32, num_heads: 2, dropout: 0.1}",
    data: "{kind: sft-jsonl, path: PAIRS/rows.jsonl, tokenizer: PAIRS/tokenizer.json, length_bucket: 4, num_workers: 1}",
    train: "batch_size: 4, grad_accumulation: 2, steps: 60, clip_norm: 1.0, optimizer: {kind: adafactor, learning_rate: 3.0e-3}, \
            evaluate: {every: 20, generate: {rows: 5, max_tokens: 8, beams: 2}}, learning_rate_schedule: {kind: linear, warmup_steps: 5}",
};

/// A trial whose attempts are told apart by their folders.
struct Trial {
    folder: tempfile::TempDir,
    case: Case,
    checkpoint: String,
}

/// How an attempt is ended from outside.
#[derive(Clone, Copy)]
enum Ending {
    Itself,
    /// SIGKILL, or SIGTERM, once the checkpoint of this step is on the disk.
    Kill(u64),
    Terminate(u64),
}

struct Attempt {
    messages: Vec<Message>,
    steps: BTreeMap<u64, u64>,
    epochs: Vec<EpochRow>,
    result: Option<TrialResult>,
}

impl Trial {
    fn new(case: Case, checkpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if case.data.contains("PANEL") {
            write_panel(&folder.path().join("panel"));
        }
        if case.data.contains("PAIRS") {
            write_pairs(&folder.path().join("pairs"));
        }
        Self { folder, case, checkpoint: checkpoint.to_owned() }
    }

    fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.folder.path().join("checkpoint"), TrialId(TRIAL.to_owned()))
    }

    fn path(&self, attempt: u64) -> PathBuf {
        self.folder.path().join(attempt.to_string())
    }

    fn start(&self, attempt: u64) -> Child {
        let place = self.path(attempt);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).unwrap();
        let Case { engine, devices, model, data, train, .. } = self.case;
        let at = |folder: &str| self.folder.path().join(folder).display().to_string();
        let data = data.replace("PANEL", &at("panel")).replace("PAIRS", &at("pairs"));
        let (checkpoint, folder) = (&self.checkpoint, self.folder.path().join("checkpoint"));
        let text = format!(
            "kiln_trial: 1\ntrial: {TRIAL}\nattempt: {attempt}\nmodel: {model}\ndata: {data}\n\
             train: {{cpu_threads: 1, checkpoint: {{{checkpoint}}}, {train}}}\n\
             measure: {{warmup_steps: 2, warmup_seconds: 0, log_every: 7}}\nengine: {engine}\ndevice: cpu\ndevices_per_trial: {devices}\nfolder: {}\n\
             checkpoint_folder: {}\nrun_anchor_nanoseconds: 0\n",
            place.display(),
            folder.display()
        );
        let file = place.join("trial.yaml");
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln-trial"));
        command.arg(file).stdout(Stdio::piped()).stderr(fs::File::create(place.join("stderr.txt")).unwrap()).spawn().unwrap()
    }

    /// One attempt and what it left.
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
        let result = fs::read(self.path(number).join("trial.json")).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap());
        let steps: Vec<StepRow> = rows(&self.path(number).join("steps.csv"));
        let steps = steps.iter().filter_map(|row| Some((row.step, row.loss?.to_bits()))).collect();
        Attempt { messages, steps, epochs: rows(&self.path(number).join("epochs.csv")), result }
    }

    /// Runs to its end and expects it to complete.
    fn complete(&self, number: u64) -> Attempt {
        let attempt = self.attempt(number, Ending::Itself);
        let stderr = fs::read_to_string(self.path(number).join("stderr.txt")).unwrap();
        let result = attempt.result.as_ref().unwrap_or_else(|| panic!("{stderr}"));
        assert_eq!(result.outcome, Outcome::Completed, "{} {:?} {stderr}", self.case.name, result.reason);
        attempt
    }
}

impl Attempt {
    fn is_complete(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.outcome == Outcome::Completed)
    }

    fn notices(&self) -> Vec<&str> {
        let texts = self.messages.iter().filter_map(|message| match message {
            Message::Notice { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// By the step after which they stand: what a row says of losses and the schedule.
    fn evaluations(&self) -> BTreeMap<u64, String> {
        let told = |row: &EpochRow| format!("{:?}", (row.epoch, row.train_loss, row.valid_loss, row.valid_top1, row.samples));
        self.epochs.iter().map(|row| (row.step, told(row))).collect()
    }
}

fn terminate(child: &Child) {
    let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// A killed attempt may leave its last line torn.
fn rows<R: serde::de::DeserializeOwned>(path: &Path) -> Vec<R> {
    let Ok(mut reader) = csv::ReaderBuilder::new().flexible(true).from_path(path) else { return Vec::new() };
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
            text += &format!("2020-{month:02}-{of_month:02},{open:.4},{price:.4},{}\n", 1000 + numbers.next_u64() % 500);
        }
        fs::write(folder.join(format!("S{symbol}.csv")), text).unwrap();
    }
}

/// Kills one attempt and stops the next; the third one ends as an undisturbed trial does.
fn goes_on_as_if_nothing_had_been(case: Case) {
    let checkpoint = "every_steps: 10";
    let undisturbed = Trial::new(case, checkpoint).complete(1);
    let total = undisturbed.result.as_ref().unwrap().steps;
    let disturbed = Trial::new(case, checkpoint);
    let killed = (0..20).map(|_| disturbed.attempt(1, Ending::Kill(10))).find(|attempt| !attempt.is_complete());
    let killed = killed.unwrap_or_else(|| panic!("{}: it was always faster than its killer", case.name));
    let (from, _) = newest(&disturbed);
    assert!(from >= 10 && from < total, "{} of {total}", from);
    assert!(killed.steps.iter().all(|(step, loss)| undisturbed.steps[step] == *loss));

    let stopped = disturbed.attempt(2, Ending::Terminate(from + 10));
    let last = disturbed.complete(3);
    let mut attempts = vec![(from, &last)];
    if !stopped.is_complete() {
        let result = stopped.result.as_ref().unwrap();
        assert_eq!((result.outcome, result.resumed_at_step), (Outcome::Interrupted, Some(from)));
        attempts = vec![(from, &stopped), (result.steps, &last)];
    }
    for (from, attempt) in attempts {
        assert_eq!(attempt.result.as_ref().unwrap().resumed_at_step, Some(from), "{}", case.name);
        assert_eq!(attempt.steps.keys().next(), Some(&(from + 1)), "{}: its own steps begin after the checkpoint", case.name);
        for (step, loss) in &attempt.steps {
            assert_eq!(f64::from_bits(*loss), f64::from_bits(undisturbed.steps[step]), "{} at step {step}, from {from}", case.name);
        }
        let expected = undisturbed.evaluations();
        for (step, told) in attempt.evaluations() {
            assert_eq!(told, expected[&step], "{} after step {step}, from {from}", case.name);
        }
    }
    let (found, expected) = (last.result.unwrap(), undisturbed.result.unwrap());
    assert_eq!((found.steps, found.train_loss, found.valid_loss), (expected.steps, expected.train_loss, expected.valid_loss), "{}", case.name);
    assert!(expected.checkpoint_seconds.unwrap() > 0.0 && expected.checkpoint_bytes.unwrap() > 1000);
}

/// The step of the newest usable checkpoint, and why others are none.
fn newest(trial: &Trial) -> (u64, Vec<String>) {
    let (found, refused) = trial.checkpoints().newest(|found| Ok(found.header.step)).unwrap();
    (found.unwrap_or(0), refused)
}

#[test]
fn on_flex_a_killed_trial_goes_on_as_if_nothing_had_been() {
    for case in [MLP, GPT, LSTM, RESNET, PANEL, SEQ2SEQ] {
        goes_on_as_if_nothing_had_been(Case { engine: "flex", ..case });
    }
}

#[test]
fn so_does_one_of_several_devices() {
    goes_on_as_if_nothing_had_been(Case { engine: "flex", devices: 2, ..LSTM });
}

#[cfg(feature = "libtorch")]
mod libtorch {
    use super::*;

    #[test]
    fn a_killed_gpt_goes_on_as_if_nothing_had_been() {
        goes_on_as_if_nothing_had_been(GPT);
    }

    #[test]
    fn so_does_an_lstm_with_its_memory_and_its_plateau() {
        goes_on_as_if_nothing_had_been(LSTM);
    }

    #[test]
    fn so_does_a_resnet_with_its_running_statistics() {
        goes_on_as_if_nothing_had_been(RESNET);
    }

    #[test]
    fn so_do_the_panel_lstm_and_the_mlp() {
        goes_on_as_if_nothing_had_been(PANEL);
        goes_on_as_if_nothing_had_been(MLP);
    }

    #[test]
    fn so_does_a_seq2seq_with_adafactor_and_its_answers() {
        goes_on_as_if_nothing_had_been(SEQ2SEQ);
        let train = "precision: amp-bf16, batch_size: 4, steps: 60, optimizer: {kind: adamw}";
        goes_on_as_if_nothing_had_been(Case { train, devices: 2, ..SEQ2SEQ });
    }

    #[test]
    fn so_do_trials_of_several_devices() {
        for case in [GPT, LSTM, RESNET] {
            goes_on_as_if_nothing_had_been(Case { devices: 2, ..case });
        }
        let train = "precision: amp-f16, batch_size: 2, steps: 60";
        goes_on_as_if_nothing_had_been(Case { devices: 4, train, ..GPT });
    }

    #[test]
    fn so_does_every_precision() {
        for train in [
            "precision: bf16, batch_size: 4, steps: 60",
            "precision: amp-bf16, batch_size: 4, steps: 60",
            "precision: amp-f16, batch_size: 4, steps: 60, optimizer: {kind: adamw, weight_decay: 0.1, weight_decay_on: matrices}",
        ] {
            goes_on_as_if_nothing_had_been(Case { train, ..GPT });
        }
    }
}

/// A model of 1.3 million parameters, so that a checkpoint takes its time.
const LARGE: Case = Case {
    name: "a large mlp",
    engine: "flex",
    devices: 1,
    model: "{kind: mlp, seq_len: 8, d_model: 64, hidden: 2048, context: 8}",
    data: "{kind: generated, characters: 20000}",
    train: "batch_size: 1, steps: 100000, optimizer: {kind: sgd, learning_rate: 0.001, momentum: 0.9}",
};

#[test]
fn a_hundred_kills_while_checkpoints_are_written_leave_a_usable_one_each() {
    let trial = Trial::new(LARGE, "every_steps: 1, keep: 2");
    let mut times = SplitMix64::new(7);
    let (mut before, mut half_made, mut kill) = (0, 0, 0);
    // Others strike between two of them.
    while half_made < 100 {
        let mut child = trial.start(1);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The first time until there is one; then at any moment after training has begun.
        let begun = |line: &str| if kill == 0 { line.contains("checkpointed") } else { line.contains("resumed") };
        assert!(lines.any(|line| begun(&line.unwrap())), "{kill}: {}", fs::read_to_string(trial.path(1).join("stderr.txt")).unwrap());
        thread::sleep(Duration::from_micros(times.next_u64() % 150_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let is_hidden = |name: &str| name.starts_with('.');
        let entries = fs::read_dir(trial.folder.path().join("checkpoint")).unwrap();
        half_made += usize::from(entries.flatten().any(|entry| is_hidden(&entry.file_name().to_string_lossy())));
        let (step, refused) = newest(&trial);
        assert!(refused.is_empty() && step >= before && step > 0, "kill {kill}: {before}, then {step}: {refused:?}");
        before = step;
        kill += 1;
        assert!(kill < 1000, "only {half_made} of {kill} kills struck while files were written");
    }
    assert!(before >= 50, "{before} steps were kept of {kill} attempts");
}

#[test]
fn a_torn_checkpoint_is_told_of_and_the_one_before_it_serves() {
    let trial = Trial::new(Case { engine: "flex", train: "batch_size: 4, steps: 30", ..MLP }, "every_steps: 10, keep: 3, after: last");
    let first = trial.complete(1);
    assert_eq!((newest(&trial), trial.checkpoints().steps()), ((30, vec![]), vec![10, 20, 30]));
    let model = trial.folder.path().join("checkpoint/30/model.safetensors");
    let bytes = fs::read(&model).unwrap();
    fs::write(&model, &bytes[..bytes.len() / 2]).unwrap();
    fs::remove_file(trial.folder.path().join("checkpoint/20/training.safetensors")).unwrap();
    let second = trial.complete(2);
    let notices = second.notices();
    let left_out = |step: u64, why: &str| format!("the checkpoint of step {step} is left out, and is now `{step}.refused`: {why}");
    assert!(notices.len() == 2 && notices[0].starts_with(&left_out(30, "model.safetensors has ")), "{notices:?}");
    assert!(notices[1].starts_with(&left_out(20, "training.safetensors: ")), "{notices:?}");
    assert_eq!(second.result.unwrap().resumed_at_step, Some(10));
    assert!(second.steps.iter().all(|(step, loss)| first.steps[step] == *loss) && second.steps.len() == 20);

    trial.checkpoints().delete().unwrap();
    let third = trial.complete(3);
    assert_eq!((third.result.unwrap().resumed_at_step, &third.steps), (None, &first.steps));

    // Of another kiln: whole, and in other words.
    for step in [10, 20, 30] {
        let header = trial.folder.path().join(format!("checkpoint/{step}/checkpoint.json"));
        let text = fs::read_to_string(&header).unwrap();
        let changed = if step == 30 { text.replace("plateau", "plain") } else { text.replace("training.safetensors", "other.safetensors") };
        fs::write(&header, changed).unwrap();
        fs::copy(header.with_file_name("training.safetensors"), header.with_file_name("other.safetensors")).unwrap();
    }
    let fourth = trial.complete(4);
    let notices = fourth.notices();
    assert!(notices[0].starts_with(&left_out(30, "checkpoint.json: missing field `plateau`; was it made by another kiln?")), "{notices:?}");
    assert!(notices[1].starts_with(&left_out(20, "checkpoint.json names no training.safetensors")), "{notices:?}");
    assert!(notices.len() == 4 && notices[3].ends_with("is usable: the trial begins anew"), "{notices:?}");
    assert_eq!((fourth.result.unwrap().resumed_at_step, fourth.steps), (None, first.steps));
}

#[test]
fn a_checkpoint_of_another_model_is_refused_by_the_name_of_what_it_lacks() {
    let mut trial = Trial::new(Case { engine: "flex", train: "batch_size: 4, steps: 10", ..MLP }, "every_steps: 10, after: last");
    trial.complete(1);
    trial.case.model = "{kind: gpt, d_model: 32, num_layers: 2, num_heads: 2, seq_len: 16}";
    let result = trial.attempt(2, Ending::Itself).result.unwrap();
    let reason = result.reason.unwrap();
    assert_eq!(result.outcome, Outcome::Failed);
    assert!(
        reason.contains("the checkpoint does not fit the model: in model.safetensors, `Gpt.") && reason.contains("` is not in it; was"),
        "{reason}"
    );
}

#[test]
fn the_best_stays_where_it_is_asked_for_and_the_last_where_that_is() {
    let train = "batch_size: 4, steps: 40, evaluate: {every: 5}, optimizer: {kind: sgd, learning_rate: 0.5, momentum: 0.9}";
    let case = Case { engine: "flex", train, ..MLP };
    for (policy, keeps_best) in [("every_steps: 1000, after: best", true), ("every_steps: 1000, after: last", false)] {
        let trial = Trial::new(case, policy);
        let attempt = trial.complete(1);
        let best = attempt.epochs.iter().min_by(|a, b| a.valid_loss.unwrap().total_cmp(&b.valid_loss.unwrap())).unwrap();
        let steps = trial.checkpoints().steps();
        assert!(if keeps_best { steps.contains(&best.step) } else { steps == [40] }, "{policy}: {steps:?}, best {}", best.step);
        let named = fs::read(trial.folder.path().join(format!("checkpoint/{}/model.safetensors", steps[0]))).unwrap();
        assert!(String::from_utf8_lossy(&named[..500]).contains("Mlp.token_table"), "weights can be found by their names");
    }
}
