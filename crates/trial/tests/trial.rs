//! The program `kiln-trial`: whole trials from a file, on both engines, read back from what they
//! leave behind.

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use kiln_core::{
    plan::Outcome,
    record::{EpochRow, Message, StepRow, TrialResult},
};

use crate::common::{are_same, device_of, engines, engines_in_turn, program, rows};

/// A folder with a trial file; `{}` keys are YAML text.
struct Trial {
    folder: tempfile::TempDir,
}

const MLP: &str = "{kind: mlp, seq_len: 16}";
const GPT: &str = "{kind: gpt, d_model: 32, num_layers: 1, num_heads: 2, seq_len: 16, dropout: \
                   0.1}";
const DATA: &str = "{kind: generated, characters: 20000}";

impl Trial {
    fn new(engine: &str, model: &str, data: &str, train: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display();
        let text = format!(
            "kiln_trial: 1\ntrial: abcdef0123\nattempt: 1\nmodel: {model}\ndata: {data}\ntrain: \
             {{cpu_threads: 1, {train}}}\n\
             measure: {{warmup_steps: 2, warmup_seconds: 0, log_every: 5}}\nengine: {engine}\n\
             device: {}\nfolder: {place}\n\
             run_anchor_nanoseconds: 0\n",
            device_of(engine)
        );
        fs::write(folder.path().join("trial.yaml"), text).unwrap();
        Self { folder }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(program("kiln-trial"));
        command.arg(self.folder.path().join("trial.yaml"));
        command
    }

    fn run(&self) -> Output {
        self.command().output().unwrap()
    }

    /// The process, once it has trained some steps of its window, and the messages after that. On a
    /// GPU the first step alone may take long enough for a message of progress.
    fn start(&self) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut child = self.command().stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for event in ["\"window_started\"", "\"progress\""] {
            let is_told = lines.by_ref().any(|line| line.unwrap().contains(event));
            assert!(is_told, "no {event}");
        }
        (child, lines)
    }

    /// Runs it and expects it to complete.
    fn complete(&self) -> TrialResult {
        let output = self.run();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let result = self.result();
        assert_eq!(result.outcome, Outcome::Completed);
        result
    }

    fn result(&self) -> TrialResult {
        serde_json::from_str(&fs::read_to_string(self.folder.path().join("trial.json")).unwrap())
            .unwrap()
    }

    fn steps(&self) -> Vec<StepRow> {
        rows(&self.folder.path().join("steps.csv"))
    }

    fn losses(&self) -> Vec<f64> {
        self.steps().iter().map(|row| row.loss.unwrap()).collect()
    }

    fn epochs(&self) -> Vec<EpochRow> {
        rows(&self.folder.path().join("epochs.csv"))
    }
}

/// The engine of tests that need but one.
fn first_engine() -> &'static str {
    engines()[0].name()
}

#[test]
fn the_same_file_twice_gives_the_same_losses_to_the_bit_and_so_do_workers() {
    for (turn, model) in [GPT, MLP].into_iter().enumerate() {
        for engine in engines_in_turn(turn) {
            let engine = engine.name();
            let train = "batch_size: 4, grad_accumulation: 2, steps: 12, clip_norm: 1.0";
            let losses = |data: &str| {
                let trial = Trial::new(engine, model, data, train);
                trial.complete();
                trial.losses()
            };
            let first = losses(DATA);
            assert_eq!(first.len(), 12);
            assert!(are_same(&first, &losses(DATA)), "{engine} {model} twice");
            let workers = "{kind: generated, characters: 20000, num_workers: 4, prefetch: 2, \
                           persistent_workers: false}";
            assert!(
                are_same(&first, &losses(workers)),
                "{engine} {model} with 4 workers"
            );
            let other_seed = Trial::new(
                engine,
                model,
                DATA,
                "batch_size: 4, grad_accumulation: 2, steps: 12, clip_norm: 1.0, seed: 2",
            );
            other_seed.complete();
            assert_ne!(
                first,
                other_seed.losses(),
                "{engine} {model} with another seed"
            );
        }
    }
}

#[test]
fn a_small_text_is_learned_far_below_what_letter_frequencies_tell() {
    for (turn, model) in [MLP, GPT].into_iter().enumerate() {
        for engine in engines_in_turn(turn) {
            let engine = engine.name();
            let train = "batch_size: 16, epochs: 4, optimizer: {kind: adamw, learning_rate: \
                         5.0e-3}, evaluate: {every: epoch, batch_multiple: 2}";
            let trial = Trial::new(engine, model, DATA, train);
            let result = trial.complete();
            // 27 letters at their frequencies are 2.6 nats and more.
            let (train_loss, valid_loss) = (
                result.figures.train_loss.unwrap(),
                result.figures.valid_loss.unwrap(),
            );
            assert!(
                train_loss < 2.0 && valid_loss < 2.3,
                "{engine} {model}: {train_loss} {valid_loss}"
            );
            let epochs = trial.epochs();
            assert_eq!(epochs.len(), 4);
            assert!(epochs[3].valid_loss < epochs[0].valid_loss);
            assert_eq!(epochs[3].valid_loss, result.figures.valid_loss);
        }
    }
}

#[test]
fn a_result_holds_what_was_measured_and_the_messages_tell_the_same_story() {
    let train = "batch_size: 8, steps: 40, evaluate: {every: 20}, target: {valid_loss: 9.0}, \
                 optimizer: {kind: sgd, learning_rate: 0.05}, learning_rate_schedule: {kind: \
                 cosine, warmup_steps: 4}";
    let trial = Trial::new(first_engine(), MLP, DATA, train);
    let output = trial.run();
    let messages: Vec<Message> = output
        .stdout
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(matches!(messages[0], Message::Hello { protocol: 1, .. }));
    assert!(matches!(
        messages[1],
        Message::Ready {
            total_steps: Some(40),
            ..
        }
    ));
    assert_eq!(
        messages.last(),
        Some(&Message::Finished {
            outcome: Outcome::Completed,
            reason: None
        })
    );
    let result = trial.result();
    let started = messages.iter().find_map(|message| match message {
        Message::WindowStarted {
            step: 3,
            monotonic_nanoseconds,
        } => Some(*monotonic_nanoseconds),
        _ => None,
    });
    assert_eq!(started, result.window_started_nanoseconds);
    assert!(
        messages
            .iter()
            .any(|message| matches!(message, Message::TargetReached { step: 20, .. }))
    );
    assert_eq!(
        (result.steps(), result.figures.left_out_steps),
        (40, Some(2))
    );
    let window = result.figures.window_seconds.unwrap();
    assert_eq!(
        result.figures.samples_per_second.unwrap(),
        38.0 * 8.0 / window
    );
    let span = (result.window_ended_nanoseconds.unwrap()
        - result.window_started_nanoseconds.unwrap()) as f64
        / 1e9;
    assert!(
        window < span && span - window <= result.figures.evaluation_seconds.unwrap(),
        "the evaluation in the window is cut out"
    );
    assert_eq!(
        result.figures.parameters,
        Some(
            messages
                .iter()
                .find_map(|m| if let Message::Ready { parameters, .. } = m {
                    *parameters
                } else {
                    None
                })
                .unwrap()
        )
    );
    // The same text, cut in the same place.
    let again = Trial::new(first_engine(), MLP, DATA, "batch_size: 4, steps: 12").complete();
    assert!(result.figures.validation_data.is_some());
    assert_eq!(
        again.figures.validation_data,
        result.figures.validation_data
    );
    let steps = trial.steps();
    assert_eq!(steps[0].learning_rate, Some(0.05 / 5.0));
    assert!(steps[39].learning_rate.unwrap().abs() < 1e-12);
    assert_eq!(
        result.figures.train_loss.unwrap(),
        steps[35..].iter().map(|row| row.loss.unwrap()).sum::<f64>() / 5.0
    );
}

#[test]
fn matmul_makes_products_and_says_why_it_has_no_loss() {
    let trial = Trial::new(
        first_engine(),
        "{kind: matmul, size: 64}",
        "{kind: none}",
        "batch_size: 3, steps: 20",
    );
    let result = trial.complete();
    assert_eq!(
        (
            result.steps(),
            result.figures.parameters,
            result.figures.flops_per_sample
        ),
        (20, Some(0), Some(2 * 64 * 64 * 64))
    );
    assert!(result.figures.samples_per_second.unwrap() > 0.0);
    assert_eq!(
        (
            result.figures.train_loss,
            result.figures.tokens_per_second,
            result.figures.epoch_seconds
        ),
        (None, None, None)
    );
    assert!(result.notes.contains_key("train_loss"));
    assert_eq!(trial.steps().len(), 20);
}

#[test]
fn a_rate_that_is_too_large_diverges_with_its_step() {
    let trial = Trial::new(
        first_engine(),
        MLP,
        DATA,
        "batch_size: 4, steps: 40, optimizer: {kind: sgd, learning_rate: 1.0e+30}",
    );
    let output = trial.run();
    assert_eq!(output.status.code(), Some(0));
    let result = trial.result();
    assert_eq!(result.outcome, Outcome::Diverged);
    let first_empty = trial
        .steps()
        .iter()
        .find(|row| row.loss.is_none())
        .unwrap()
        .step;
    assert!(
        result
            .reason
            .unwrap()
            .starts_with(&format!("the training loss of step {first_empty} is "))
    );
}

#[test]
fn sigterm_finishes_the_step_keeps_what_is_there_and_exits_130() {
    let trial = Trial::new(first_engine(), MLP, DATA, "batch_size: 4, steps: 100000000");
    let (mut child, lines) = trial.start();
    assert!(
        Command::new("kill")
            .arg("-TERM")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    let last = lines.map(Result::unwrap).last().unwrap();
    assert!(
        last.contains("\"finished\"") && last.contains("\"interrupted\""),
        "{last}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let result = trial.result();
    assert_eq!(result.outcome, Outcome::Interrupted);
    assert_eq!(trial.steps().len() as u64, result.steps());
    assert!(result.steps() > 0);
    assert!(
        result.figures.samples_per_second.is_some(),
        "{} steps: {:?}",
        result.steps(),
        result.notes
    );
}

/// A signal handler that interrupts a matrix product of oneDNN corrupts memory; see
/// `src/train/interrupt.rs`.
#[test]
fn one_thread_takes_signals_and_none_that_computes() {
    let lstm = "{kind: lstm, seq_len: 8, hidden: 16}";
    let data = "{kind: generated, characters: 20000, num_workers: 2}";
    let training = "batch_size: 4, steps: 100000000";
    let trial = Trial::new(first_engine(), lstm, data, training);
    let (mut child, _lines) = trial.start();
    let threads = format!("/proc/{}/task", child.id());
    let mut takers = vec![];
    let mut count = 0;
    for thread in fs::read_dir(threads).unwrap() {
        let thread = thread.unwrap().path();
        let status = fs::read_to_string(thread.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
        let blocks = |signal: u64| blocked >> (signal - 1) & 1 == 1;
        let (interrupt, terminate, profile) = (2, 15, 27);
        count += 1;
        match [interrupt, terminate, profile].map(blocks) {
            [true, true, true] => {}
            [false, false, false] => takers.push(field("Name:")),
            other => panic!("{other:?}: {status}"),
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(takers, ["signals"]);
    assert!(count > 3, "{count} threads");
}

#[test]
fn what_cannot_be_done_is_refused_with_status_2_and_the_key() {
    for (model, data, train, words) in [
        (
            MLP,
            "{kind: generated, characters: 1000}",
            "batch_size: 4096, steps: 1",
            "`batch_size` 4096",
        ),
        (MLP, DATA, "batch_size: 4", "`train.steps`"),
        (
            "{kind: mlp, seq_len: 16, vocabulary: 3}",
            DATA,
            "batch_size: 4, steps: 1",
            "`model.vocabulary` is 3",
        ),
        (MLP, "{kind: none}", "batch_size: 4, steps: 1", "data"),
    ] {
        let trial = Trial::new(first_engine(), model, data, train);
        assert_eq!(trial.run().status.code(), Some(2), "{words}");
        let result = trial.result();
        assert_eq!(result.outcome, Outcome::Failed);
        assert!(
            result.reason.as_ref().unwrap().contains(words),
            "{:?}",
            result.reason
        );
    }
}

#[test]
fn the_command_line_helps_tells_its_version_and_refuses_the_rest() {
    let run = |arguments: &[&str]| {
        Command::new(program("kiln-trial"))
            .args(arguments)
            .output()
            .unwrap()
    };
    assert!(
        String::from_utf8(run(&["--help"]).stdout)
            .unwrap()
            .contains("Usage: kiln-trial FILE")
    );
    assert_eq!(
        String::from_utf8(run(&["--version"]).stdout).unwrap(),
        format!("kiln-trial {}\n", env!("CARGO_PKG_VERSION"))
    );
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.yaml");
    fs::write(&bad, "kiln_trial: [").unwrap();
    let cases: [(&[&str], &str); 5] = [
        (&[], "expected one trial file"),
        (&["--fast"], "unknown option `--fast`"),
        (&["a", "b"], "got 2 arguments"),
        (&["/nowhere/trial.yaml"], "cannot be read"),
        (&[bad.to_str().unwrap()], "is not a trial file"),
    ];
    for (arguments, words) in cases {
        let output = run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(
            error.starts_with("kiln-trial: ") && error.contains(words),
            "{error}"
        );
    }
}
