//! Checkpoints of whole trials: an attempt that was killed or stopped is resumed, and the losses
//! are the same as without the interruption.
//!
//! Every kind of model is stopped and resumed in `alone/checkpoint.rs`, in one process. Here a
//! process is really killed, and checkpoints are damaged.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    thread,
    time::Duration,
};

use kiln_core::{kinds::random::SplitMix64, plan::Outcome, record::checkpoint::Header};
use kiln_data::files::sha256_of;

use crate::{
    common::attempts::{
        Case, GPT, LSTM, MLP, PANEL, RESNET, SEQ2SEQ, Trial, finished, goes_on_after_a_kill,
    },
    form::by_form,
};

#[test]
fn on_flex_a_killed_trial_goes_on_as_if_nothing_had_been() {
    let all = [
        LSTM,
        MLP,
        GPT,
        RESNET,
        PANEL,
        SEQ2SEQ,
        Case { devices: 2, ..LSTM },
    ];
    for case in &all[..by_form(1, all.len())] {
        goes_on_after_a_kill(Case {
            engine: "flex",
            ..*case
        });
    }
}

#[cfg(feature = "libtorch")]
#[test]
fn so_does_one_on_libtorch() {
    let gpt = |train: &'static str| Case { train, ..GPT };
    let seq2seq = "precision: amp-bf16, batch_size: 4, steps: 60, optimizer: {kind: adamw}";
    let on_four = "precision: amp-f16, batch_size: 2, steps: 60";
    let all = [
        GPT,
        LSTM,
        RESNET,
        PANEL,
        MLP,
        SEQ2SEQ,
        Case {
            train: seq2seq,
            devices: 2,
            ..SEQ2SEQ
        },
        Case { devices: 2, ..GPT },
        Case { devices: 2, ..LSTM },
        Case {
            devices: 2,
            ..RESNET
        },
        Case {
            devices: 4,
            ..gpt(on_four)
        },
        gpt("precision: bf16, batch_size: 4, steps: 60"),
        gpt("precision: amp-bf16, batch_size: 4, steps: 60"),
        gpt(
            "precision: amp-f16, batch_size: 4, steps: 60, optimizer: {kind: adamw, weight_decay: \
             0.1, weight_decay_on: matrices}",
        ),
    ];
    all[..by_form(1, all.len())]
        .iter()
        .copied()
        .for_each(goes_on_after_a_kill);
}

/// A model of 1.3 million parameters, so that a checkpoint takes its time.
const LARGE: Case = Case {
    name: "a large mlp",
    engine: "flex",
    devices: 1,
    model: "{kind: mlp, seq_len: 8, d_model: 64, hidden: 2048, context: 8}",
    data: "{kind: generated, characters: 20000}",
    train: "batch_size: 1, steps: 100000, optimizer: {kind: sgd, learning_rate: 0.001, momentum: \
            0.9}",
};

#[test]
fn kills_while_checkpoints_are_written_leave_a_usable_one_each() {
    let wanted = by_form(10, 100);
    // Two or three checkpoints are written in the longest time.
    let longest_microseconds = by_form(60_000, 150_000);
    let trial = Trial::new(LARGE, "every_steps: 1, keep: 2");
    let mut times = SplitMix64::new(7);
    let (mut before, mut half_made, mut kill) = (0, 0, 0);
    // Others strike between two of them.
    while half_made < wanted {
        let mut child = trial.start(1);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // At any moment after training has begun; the first time, and every second time, after a
        // checkpoint more.
        let is_after_one_more = kill % 2 == 0;
        let begun = |line: &str| {
            line.contains(if is_after_one_more {
                "checkpointed"
            } else {
                "resumed"
            })
        };
        assert!(
            lines.any(|line| begun(&line.unwrap())),
            "{kill}: {}",
            fs::read_to_string(trial.path(1).join("stderr.txt")).unwrap()
        );
        thread::sleep(Duration::from_micros(
            times.next_u64() % longest_microseconds,
        ));
        child.kill().unwrap();
        child.wait().unwrap();
        let is_hidden = |name: &str| name.starts_with('.');
        let entries = fs::read_dir(trial.folder.path().join("checkpoint")).unwrap();
        half_made += usize::from(
            entries
                .flatten()
                .any(|entry| is_hidden(&entry.file_name().to_string_lossy())),
        );
        let (step, refused) = trial.newest();
        let least = before + u64::from(is_after_one_more);
        assert!(
            refused.is_empty() && step >= least && step > 0,
            "kill {kill}: {before}, then {step}: {refused:?}"
        );
        before = step;
        kill += 1;
        assert!(
            kill < 10 * wanted,
            "only {half_made} of {kill} kills struck while files were written"
        );
    }
}

#[test]
fn a_torn_checkpoint_is_told_of_and_the_one_before_it_serves() {
    let trial = Trial::new(
        Case {
            engine: "flex",
            train: "batch_size: 4, steps: 30",
            ..MLP
        },
        "every_steps: 10, keep: 3, after: last",
    );
    let first = trial.complete_here(1);
    assert_eq!(
        (trial.newest(), trial.checkpoints().steps()),
        ((30, vec![]), vec![10, 20, 30])
    );
    let model = trial.folder.path().join("checkpoint/30/model.safetensors");
    let bytes = fs::read(&model).unwrap();
    fs::write(&model, &bytes[..bytes.len() / 2]).unwrap();
    fs::remove_file(
        trial
            .folder
            .path()
            .join("checkpoint/20/training.safetensors"),
    )
    .unwrap();
    let second = trial.complete_here(2);
    let notices = second.notices();
    let left_out = |step: u64, why: &str| {
        format!(
            "the checkpoint of step {step} is not usable and was renamed to `{step}.refused`: {why}"
        )
    };
    assert!(
        notices.len() == 2 && notices[0].starts_with(&left_out(30, "model.safetensors has ")),
        "{notices:?}"
    );
    assert!(
        notices[1].starts_with(&left_out(20, "training.safetensors: ")),
        "{notices:?}"
    );
    assert_eq!(second.result.unwrap().figures.resumed_at_step, Some(10));
    assert!(
        second
            .steps
            .iter()
            .all(|(step, loss)| first.steps[step] == *loss)
            && second.steps.len() == 20
    );

    trial.checkpoints().delete().unwrap();
    let third = trial.complete_here(3);
    assert_eq!(
        (third.result.unwrap().figures.resumed_at_step, &third.steps),
        (None, &first.steps)
    );

    // A checkpoint of another version of kiln: complete, but with other fields.
    for step in [10, 20, 30] {
        let header = trial
            .folder
            .path()
            .join(format!("checkpoint/{step}/checkpoint.json"));
        // As one without a sum of its own.
        let text = fs::read_to_string(&header).unwrap();
        let text = text.replace("header_sha256", "other");
        let changed = if step == 30 {
            text.replace("plateau", "plain")
        } else {
            text.replace("training.safetensors", "other.safetensors")
        };
        fs::write(&header, changed).unwrap();
        fs::copy(
            header.with_file_name("training.safetensors"),
            header.with_file_name("other.safetensors"),
        )
        .unwrap();
    }
    let fourth = trial.complete_here(4);
    let notices = fourth.notices();
    assert!(
        notices[0].starts_with(&left_out(
            30,
            "checkpoint.json: missing field `plateau`; was it written by another version of kiln?"
        )),
        "{notices:?}"
    );
    assert!(
        notices[1].starts_with(&left_out(
            20,
            "checkpoint.json does not list training.safetensors"
        )),
        "{notices:?}"
    );
    assert!(
        notices.len() == 4
            && notices[3].ends_with("is usable: the trial starts from the beginning"),
        "{notices:?}"
    );
    assert_eq!(
        (fourth.result.unwrap().figures.resumed_at_step, fourth.steps),
        (None, first.steps)
    );
}

#[test]
fn right_hashes_over_broken_tensors_and_a_step_beyond_the_end_are_refused_too() {
    let trial = Trial::new(
        Case {
            engine: "flex",
            train: "batch_size: 4, steps: 30",
            ..MLP
        },
        "every_steps: 10, keep: 3, after: last",
    );
    let first = trial.complete_here(1);
    let folder = |step: u64| trial.folder.path().join(format!("checkpoint/{step}"));
    let change = |step: u64, change: &dyn Fn(&mut Header)| {
        let path = folder(step).join("checkpoint.json");
        let mut header: Header = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        header.header_sha256 = None;
        change(&mut header);
        fs::write(&path, serde_json::to_vec(&header).unwrap()).unwrap();
    };
    fs::write(folder(30).join("model.safetensors"), "no tensors").unwrap();
    change(30, &|header| {
        let content = header.files.get_mut("model.safetensors").unwrap();
        content.bytes = 10;
        content.sha256 = sha256_of(&folder(30).join("model.safetensors"), Path::new(""))
            .unwrap()
            .0;
    });
    change(20, &|header| header.step = 500);
    fs::rename(folder(20), folder(500)).unwrap();
    let second = trial.complete_here(2);
    let notices = second.notices();
    assert!(
        notices.len() == 2
            && notices[0].ends_with(
                "renamed to `500.refused`: checkpoint.json is of step 500, and the trial has 30 \
                 steps"
            )
            && notices[1].contains("renamed to `30.refused`: ")
            && notices[1].contains("model.safetensors"),
        "{notices:?}"
    );
    let result = second.result.unwrap();
    assert_eq!(result.figures.resumed_at_step, Some(10));
    assert!(
        result.notes["resumed_at_step"]
            .starts_with("an older one was used: the checkpoint of step 500"),
        "{:?}",
        result.notes
    );
    assert!(
        second
            .steps
            .iter()
            .all(|(step, loss)| first.steps[step] == *loss)
            && second.steps.len() == 20
    );
}

#[test]
fn a_checkpoint_of_another_model_is_refused_by_the_name_of_what_it_lacks() {
    let mut trial = Trial::new(
        Case {
            engine: "flex",
            train: "batch_size: 4, steps: 10",
            ..MLP
        },
        "every_steps: 10, after: last",
    );
    trial.complete_here(1);
    trial.case.model = "{kind: gpt, d_model: 32, num_layers: 2, num_heads: 2, seq_len: 16}";
    let result = trial.attempt_here(2, None).result.unwrap();
    let reason = result.reason.unwrap();
    assert_eq!(result.outcome, Outcome::Failed);
    assert!(
        reason.contains("the checkpoint does not fit the model: in model.safetensors, `Gpt.")
            && reason.contains("` is missing; was"),
        "{reason}"
    );
}

#[test]
fn an_attempt_after_an_early_stop_ends_where_that_was() {
    // Nothing is learned, so the second and the third evaluation find no lower loss.
    let case = Case {
        engine: "flex",
        train: "batch_size: 4, steps: 40, evaluate: {every: 5}, early_stop: {patience: 2}, \
                optimizer: {kind: sgd, learning_rate: 1.0e-12}",
        ..MLP
    };
    let trial = Trial::new(case, "every_steps: 5, after: last");
    let first = trial.complete_here(1);
    assert_eq!((first.steps.len(), trial.newest()), (15, (15, Vec::new())));
    // As one does that was killed while it wrote texts.
    let second = trial.complete_here(2);
    assert_eq!((second.steps.len(), trial.newest().0), (0, 15));
    let result = second.result.unwrap();
    assert!(
        result
            .notes
            .values()
            .any(|note| note.contains("stopped early at step 15")),
        "{:?}",
        result.notes
    );
}

#[test]
fn the_best_stays_where_it_is_asked_for_and_the_last_where_that_is() {
    let train = "batch_size: 4, steps: 40, evaluate: {every: 5}, optimizer: {kind: sgd, \
                 learning_rate: 0.5, momentum: 0.9}";
    let case = Case {
        engine: "flex",
        train,
        ..MLP
    };
    for (policy, keeps_best) in [
        ("every_steps: 1000, after: best", true),
        ("every_steps: 1000, after: last", false),
    ] {
        let trial = Trial::new(case, policy);
        let attempt = trial.complete_here(1);
        let best = attempt
            .epochs
            .iter()
            .min_by(|a, b| a.valid_loss.unwrap().total_cmp(&b.valid_loss.unwrap()))
            .unwrap();
        let steps = trial.checkpoints().steps();
        assert!(
            if keeps_best {
                steps.contains(&best.step)
            } else {
                steps == [40]
            },
            "{policy}: {steps:?}, best {}",
            best.step
        );
        let named = fs::read(
            trial
                .folder
                .path()
                .join(format!("checkpoint/{}/model.safetensors", steps[0])),
        )
        .unwrap();
        assert!(
            String::from_utf8_lossy(&named[..1000]).contains("Mlp.token_table"),
            "weights can be found by their names"
        );
    }
}

#[test]
fn a_checkpoint_to_continue_that_is_gone_or_changed_fails_the_trial_and_nothing_begins_anew() {
    let case = |train| Case {
        engine: "flex",
        train,
        ..MLP
    };
    let (step, origin, _folder) = finished(case("batch_size: 4, steps: 10"));
    let mut trial = Trial::new(case("batch_size: 4, steps: 20"), "every_steps: 10");
    let reason = |trial: &Trial| {
        let attempt = trial.attempt_here(1, None);
        let result = attempt.result.unwrap();
        assert_eq!((result.outcome, attempt.steps.len()), (Outcome::Failed, 0));
        result.reason.unwrap()
    };
    let mut other = origin.clone();
    other.sha256 = "0".repeat(64);
    trial.origin = Some(other);
    let why = reason(&trial);
    assert!(
        why.contains("the checkpoint of step 10 of trial abcdef0123 in ")
            && why.contains("cannot be continued: checkpoint.json has SHA-256 "),
        "{why}"
    );
    trial.origin = Some(origin.clone());
    trial.case.train = "batch_size: 4, steps: 9";
    let why = reason(&trial);
    assert!(
        why.ends_with("checkpoint.json is of step 10, and the trial has 9 steps"),
        "{why}"
    );
    trial.case.train = "batch_size: 4, steps: 20";
    let folder = origin
        .run
        .join(format!("trials/abcdef0123/checkpoint/{step}"));
    fs::write(folder.join("model.safetensors"), "no tensors").unwrap();
    let why = reason(&trial);
    assert!(why.contains("model.safetensors has 10 bytes"), "{why}");
    fs::remove_dir_all(&origin.run).unwrap();
    let why = reason(&trial);
    assert!(
        why.contains("cannot be continued: checkpoint.json: "),
        "{why}"
    );
}
