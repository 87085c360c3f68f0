//! `train.sample`: trained models write their texts, on both engines.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use crate::{common, form::by_form};
use kiln_core::{
    plan::{Outcome, TrialFile},
    record::{StepRow, TrialResult},
    spec::Engine,
};
use kiln_trial::{
    model::{Registry, TextMemory},
    train,
};

const GPT: &str = "{kind: gpt, d_model: 32, num_layers: 1, num_heads: 2, seq_len: 8}";
const LSTM: &str = "{kind: lstm, d_model: 16, hidden: 32, num_layers: 1, seq_len: 8}";
const MLP: &str = "{kind: mlp, context: 4, seq_len: 8}";

fn engines() -> Vec<&'static str> {
    common::engines()
        .iter()
        .map(|engine| engine.name())
        .collect()
}

/// The files of a trial.
struct Left {
    result: TrialResult,
    losses: Vec<f64>,
    sample: Option<String>,
}

fn run(engine: &str, model: &str, data: &str, train: &str) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {model}, data: {data}, train: {{cpu_threads: 1, {train}}},
          measure: {{warmup_steps: 2, warmup_seconds: 0.0}}, engine: {engine}, device: {}, folder: {}, run_anchor_nanoseconds: 0}}",
        common::device_of(engine),
        folder.path().display()
    );
    let file: TrialFile = serde_yaml::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}\n\
             {text}"
        )
    });
    let _alone = common::alone_with_the_generator_of(file.engine);
    let result = train::run(
        &file,
        &Registry::new(),
        &mut Vec::new(),
        &AtomicBool::new(false),
    )
    .result;
    let steps = csv::Reader::from_path(folder.path().join("steps.csv"))
        .unwrap()
        .into_deserialize::<StepRow>();
    Left {
        result,
        losses: steps.filter_map(|row| row.unwrap().loss).collect(),
        sample: fs::read_to_string(folder.path().join("sample.txt")).ok(),
    }
}

/// A text that repeats itself.
fn rounds(folder: &Path, words: &str) -> String {
    fs::write(folder.join("text.txt"), words.repeat(400)).unwrap();
    // Windows from every place, so that no letter belongs to one position.
    format!(
        "kind: text, stride: 1, path: {}",
        folder.join("text.txt").display()
    )
}

/// In the short form each model meets another tokenizer on each engine.
#[test]
fn each_model_goes_on_with_what_it_has_learned_by_heart() {
    const TOKENIZERS: [&str; 3] = ["character", "byte", "word"];
    let folder = tempfile::tempdir().unwrap();
    let data = rounds(folder.path(), "red fox\n");
    for (number, engine) in engines().into_iter().enumerate() {
        for (turn, model) in [GPT, LSTM, MLP].into_iter().enumerate() {
            let one = (turn + number) % TOKENIZERS.len();
            for &tokenizer in by_form(&TOKENIZERS[one..=one], &TOKENIZERS[..]) {
                let train = "batch_size: 16, steps: 400, optimizer: {kind: adamw, learning_rate: \
                             1.0e-2}, clip_norm: 1.0, sample: {prompt: \"red\", tokens: TOKENS, \
                             temperature: 0, samples: 2}";
                // Far more than the model sees at once.
                let tokens = if tokenizer == "word" { "17" } else { "45" };
                let left = run(
                    engine,
                    model,
                    &format!("{{{data}, tokenizer: {tokenizer}}}"),
                    &train.replace("TOKENS", tokens),
                );
                let text = "red fox\n".repeat(6);
                assert_eq!(
                    left.sample.as_deref(),
                    Some(format!("{text}---------------\n{text}").as_str()),
                    "{engine} {model} {tokenizer}"
                );
            }
        }
    }
}

#[test]
fn texts_change_no_loss_and_come_again_with_the_same_weights() {
    let data = "{kind: generated, characters: 5000}";
    for (turn, model) in [GPT, LSTM, MLP].into_iter().enumerate() {
        for engine in common::engines_in_turn(turn) {
            let engine = engine.name();
            let of = |sample: &str| {
                run(
                    engine,
                    model,
                    data,
                    &format!("batch_size: 4, steps: 8, {sample}"),
                )
            };
            let plain = of("");
            let [one, again] = [0; 2].map(|_| of("sample: {tokens: 50, samples: 2, top_k: 12}"));
            assert_eq!(
                (plain.result.outcome, &plain.sample),
                (Outcome::Completed, &None)
            );
            assert!(
                plain.losses.len() == 8 && common::are_same(&plain.losses, &one.losses),
                "{engine} {model}"
            );
            assert!(
                common::is_same(
                    plain.result.figures.valid_loss.unwrap(),
                    one.result.figures.valid_loss.unwrap()
                ),
                "{engine} {model}"
            );
            // On a GPU the weights differ in their last bits, and rarely a draw falls on the other
            // side.
            assert!(
                one.sample.is_some() && (one.sample == again.sample || common::is_cuda()),
                "{engine} {model}"
            );
            let more = of("sample: {tokens: 50, samples: 3, top_k: 12}")
                .sample
                .unwrap();
            assert!(
                more.starts_with(&one.sample.unwrap()) || common::is_cuda(),
                "the number of texts changes none of them"
            );
            assert!(!one.result.notes.contains_key("sample"));
        }
    }
}

#[test]
fn a_larger_table_writes_known_tokens_alone() {
    let model = "{kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 8, vocabulary: \
                 5000}";
    for engine in engines() {
        let left = run(
            engine,
            model,
            "{kind: generated, characters: 5000}",
            "batch_size: 4, steps: 1, sample: {tokens: 300, temperature: 100}",
        );
        let text = left.sample.unwrap();
        assert!(
            text.chars().count() >= 301 && !text.contains(char::REPLACEMENT_CHARACTER),
            "{text}"
        );
    }
}

#[test]
fn a_prompt_that_the_text_cannot_spell_is_refused_before_any_step() {
    let left = run(
        engines()[0],
        MLP,
        "{kind: generated, characters: 5000}",
        "steps: 8, sample: {prompt: \"Ω\"}",
    );
    assert_eq!(
        (left.result.outcome, left.result.steps()),
        (Outcome::Failed, 0)
    );
    assert!(
        left.result
            .reason
            .unwrap()
            .contains("`train.sample.prompt` contains \"Ω\"")
    );
}

#[test]
fn a_state_that_is_carried_gives_the_outputs_of_the_whole_text_and_nothing_is_dropped() {
    let tokens: Vec<u32> = (0..20).map(|at| at * 7 % 50).collect();
    for engine in engines() {
        let engine = if engine == "flex" {
            Engine::Flex
        } else {
            Engine::Libtorch
        };
        let mut file = common::trial(engine, "gpt", "dropout: 0.5");
        let mut gpt = common::learner(&file);
        let [one, again] = [0; 2].map(|_| {
            gpt.predict(&tokens[..16], &mut TextMemory::default())
                .unwrap()
        });
        assert!(one == again && one.len() == 50, "dropout is off");
        file.model = serde_yaml::from_str(
            "{kind: lstm, d_model: 8, hidden: 16, num_layers: 2, seq_len: 16, dropout: 0.5}",
        )
        .unwrap();
        let mut lstm = common::learner(&file);
        let whole = lstm.predict(&tokens, &mut TextMemory::default()).unwrap();
        let mut memory = TextMemory::default();
        let parts: Vec<Vec<f64>> = [&tokens[..7], &tokens[7..8], &tokens[8..]]
            .iter()
            .map(|part| lstm.predict(part, &mut memory).unwrap())
            .collect();
        let apart = whole
            .iter()
            .zip(&parts[2])
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f64::max);
        assert!(
            apart < 1e-5,
            "{apart}: rounding alone, as f32 adds up in another order"
        );
        let forgotten = lstm
            .predict(&tokens[8..], &mut TextMemory::default())
            .unwrap();
        assert!(
            whole
                .iter()
                .zip(&forgotten)
                .any(|(one, other)| (one - other).abs() > 1e-4),
            "what came before counts"
        );
    }
}
