//! `train.initial_weights`: trainings that begin with the parameters of another one, or of a T5
//! that Hugging Face's `save_pretrained` wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use crate::common;
use kiln_core::{
    plan::{Outcome, TrialFile},
    record::{StepRow, TrialResult},
};
use kiln_data::files::sha256_of;
use kiln_trial::{model::Registry, train};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

const SMALL: &str = "batch_size: 4, steps: 30, evaluate: {every: end}";
const RESNET: [&str; 2] = [
    "{kind: resnet, depth: 18, width: 4, stem: small}",
    "{kind: generated-images, images: 80, valid_images: 40, image_size: 16}",
];
/// The shapes of tests/reference/seq2seq-pretrained.safetensors.
const T5: &str = "{kind: seq2seq, d_model: 8, d_kv: 4, d_ff: 16, encoder_layers: 1, \
                  decoder_layers: 2, num_heads: 2, relative_buckets: 8, relative_max_distance: 20}";

pub(crate) struct Left {
    result: TrialResult,
    first_loss: Option<f64>,
}

impl Left {
    fn reason(&self) -> &str {
        assert_eq!(self.result.outcome, Outcome::Failed);
        self.result.reason.as_deref().unwrap()
    }

    /// That came to its end.
    pub(crate) fn valid_loss(&self) -> f64 {
        assert_eq!(
            self.result.outcome,
            Outcome::Completed,
            "{:?}",
            self.result.reason
        );
        self.result.figures.valid_loss.unwrap()
    }
}

pub(crate) fn run(folder: &Path, of: [&str; 4]) -> Left {
    run_on(1, folder, of)
}

fn run_on(devices: u64, folder: &Path, [engine, model, data, train]: [&str; 4]) -> Left {
    let attempt = tempfile::tempdir_in(folder).unwrap();
    let text = format!(
        "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {model}, data: {data}, train: {{cpu_threads: 1, {train}}},
          measure: {{warmup_steps: 2, warmup_seconds: 0.0, log_every: 1}}, engine: {engine}, device: {}, devices_per_trial: {devices}, folder: {},
          checkpoint_folder: {}, run_anchor_nanoseconds: 0}}",
        common::device_of(engine),
        attempt.path().display(),
        folder.join("checkpoint").display()
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
    let steps = csv::Reader::from_path(attempt.path().join("steps.csv"))
        .unwrap()
        .into_deserialize::<StepRow>();
    Left {
        result,
        first_loss: steps.filter_map(|row| row.unwrap().loss).next(),
    }
}

pub(crate) fn engines() -> Vec<&'static str> {
    common::engines()
        .iter()
        .map(|engine| engine.name())
        .collect()
}

/// The key that begins with a file, and updates that change nothing.
fn beginning_with(file: &Path) -> String {
    let (sha256, _) = sha256_of(file, Path::new("")).unwrap();
    format!("{{path: {}, sha256: \"{sha256}\"}}", file.display())
}

pub(crate) fn unchanged(file: &Path) -> String {
    format!(
        "batch_size: 4, steps: 2, optimizer: {{kind: sgd, learning_rate: 1.0e-30}}, seed: 7, \
         initial_weights: {}",
        beginning_with(file)
    )
}

/// Trains a model, and returns the file of its last parameters with the loss that they have.
fn trained(folder: &Path, engine: &str, [model, data]: [&str; 2]) -> (PathBuf, f64) {
    let _ = fs::remove_dir_all(folder.join("checkpoint"));
    let left = run(
        folder,
        [
            engine,
            model,
            data,
            &format!("{SMALL}, checkpoint: {{every_steps: 1000, after: last}}"),
        ],
    );
    let loss = left.valid_loss();
    let file = folder.join("trained.safetensors");
    fs::copy(folder.join("checkpoint/30/model.safetensors"), &file).unwrap();
    (file, loss)
}

/// With the values of a checkpoint each model has the loss that it had. In the short form on one
/// engine each, in turn.
#[test]
fn a_training_begins_where_the_parameters_of_another_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    common::write_pairs(&folder.path().join("pairs"));
    let pairs = format!(
        "{{kind: sft-jsonl, path: {0}/pairs/rows.jsonl, tokenizer: {0}/pairs/tokenizer.json, \
         length_bucket: 4}}",
        folder.path().display()
    );
    let text = "{kind: generated, characters: 20000}";
    let cases = [
        ["{kind: mlp, seq_len: 16}", text],
        [
            "{kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 8, tie_head: false}",
            text,
        ],
        [
            "{kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 8}",
            text,
        ],
        ["{kind: lstm, d_model: 8, hidden: 8, seq_len: 8}", text],
        [T5, &pairs],
    ];
    for (turn, case) in cases.into_iter().enumerate() {
        for engine in common::engines_in_turn(turn) {
            let engine = engine.name();
            let (file, loss) = trained(folder.path(), engine, case);
            let [model, data] = case;
            let again = run(folder.path(), [engine, model, data, &unchanged(&file)]);
            assert!(
                common::is_same(again.valid_loss(), loss),
                "{engine} {model}: {}, before {loss}",
                again.valid_loss()
            );
            if common::device_of(engine) == "cpu" {
                let on_two = run_on(2, folder.path(), [engine, model, data, &unchanged(&file)]);
                assert_eq!(on_two.valid_loss(), loss, "{engine} {model}, two devices");
            }
            if engine == "libtorch" {
                let narrow = run(
                    folder.path(),
                    [
                        engine,
                        model,
                        data,
                        &format!("precision: bf16, {}", unchanged(&file)),
                    ],
                )
                .valid_loss();
                assert!(
                    (narrow / loss - 1.0).abs() < 0.02,
                    "{model}: {narrow} in bf16, {loss} in f32"
                );
            }
        }
    }
}

/// A step moves them by a tenth towards those of its batch, from 1 where they begin anew.
#[test]
fn running_statistics_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let variances = |file: &Path| -> Vec<f32> {
        let bytes = fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut named: Vec<_> = tensors
            .iter()
            .filter(|(name, _)| name.ends_with("running_variance"))
            .collect();
        named.sort_by_key(|(name, _)| *name);
        named
            .iter()
            .flat_map(|(_, view)| {
                view.data()
                    .as_chunks()
                    .0
                    .iter()
                    .map(|four| f32::from_le_bytes(*four))
            })
            .collect()
    };
    for engine in engines() {
        let (file, _) = trained(folder.path(), engine, RESNET);
        fs::remove_dir_all(folder.path().join("checkpoint")).unwrap();
        let [model, data] = RESNET;
        let one_step = unchanged(&file).replace(
            "steps: 2",
            "steps: 1, checkpoint: {every_steps: 1, after: last}",
        );
        run(folder.path(), [engine, model, data, &one_step]).valid_loss();
        let before = variances(&file);
        let after = variances(&folder.path().join("checkpoint/1/model.safetensors"));
        let small: Vec<(f32, f32)> = before
            .into_iter()
            .zip(after)
            .filter(|(before, _)| *before < 0.5)
            .collect();
        assert!(
            small.len() > 10 && small.iter().all(|(_, after)| *after < 0.8),
            "{engine}: {small:?}"
        );
    }
}

/// The values of a tensor.
fn values_of(file: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.tensor(name).unwrap().data().to_vec()
}

/// On other classes: the head is that of a training from nothing with this seed, the rest that of the
/// file, whether the file has a head or not.
#[test]
fn a_part_that_is_left_out_keeps_its_random_values() {
    let folder = tempfile::tempdir().unwrap();
    let [model, data] = RESNET;
    let other = data.replace("images: 80", "images: 80, classes: 3");
    let end = folder.path().join("checkpoint/1/model.safetensors");
    for engine in engines() {
        let (file, _) = trained(folder.path(), engine, RESNET);
        let begun = |weights: &str| {
            let _ = fs::remove_dir_all(folder.path().join("checkpoint"));
            let train = format!(
                "batch_size: 4, steps: 1, optimizer: {{kind: sgd, learning_rate: 1.0e-30}}, seed: 7, \
                 checkpoint: {{every_steps: 1, after: last}}{weights}"
            );
            run(folder.path(), [engine, model, &other, &train])
        };
        let given = |file: &Path, more: &str| {
            let weights = beginning_with(file).replace('}', &format!("{more}}}"));
            begun(&format!(", initial_weights: {weights}"))
        };
        begun("").valid_loss();
        let drawn = values_of(&end, "Resnet.head.weight");
        let bytes = fs::read(&file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let headless = folder.path().join("headless.safetensors");
        let body = tensors
            .iter()
            .filter(|(name, _)| !name.starts_with("Resnet.head."));
        safetensors::serialize_to_file(body, None, &headless).unwrap();
        for file in [&file, &headless] {
            let left = given(file, "");
            assert!(
                left.reason().contains("`Resnet.head.")
                    && left.reason().ends_with(
                        "or add `without: [head]` there, so that this part begins with random values"
                    ),
                "{}",
                left.reason()
            );
            let left = given(file, ", without: [head]");
            left.valid_loss();
            assert!(
                left.result.notes["initial_weights"].ends_with(", without head"),
                "{:?}",
                left.result.notes
            );
            assert_eq!(values_of(&end, "Resnet.head.weight"), drawn, "{engine}");
            let stem = "Resnet.stem.weight";
            assert_eq!(values_of(&end, stem), values_of(file, stem), "{engine}");
        }
    }
}

/// A text of other tokens: with a table of its own it needs no tokens of the file.
#[test]
fn a_table_that_is_left_out_is_that_of_other_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let gpt = "{kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 8}";
    let data = "{kind: generated, characters: 20000}";
    let (file, _) = trained(folder.path(), "flex", [gpt, data]);
    fs::remove_dir_all(folder.path().join("checkpoint")).unwrap();
    let bytes = data.replace("20000", "20000, tokenizer: byte");
    let key = unchanged(&file);
    let left = run(folder.path(), ["flex", gpt, &bytes, &key]);
    assert!(
        left.reason().contains("numbered otherwise"),
        "{}",
        left.reason()
    );
    let weights = beginning_with(&file);
    let without = weights.replace('}', ", without: [embedding]}");
    let key = key.replace(&weights, &without);
    run(folder.path(), ["flex", gpt, &bytes, &key]).valid_loss();
}

#[test]
fn a_t5_of_hugging_face_has_the_loss_that_it_has_there() {
    let folder = tempfile::tempdir().unwrap();
    common::write_pairs(folder.path());
    let reference = common::in_repository("tests/reference");
    let data = format!(
        "{{kind: sft-jsonl, path: {0}/rows.jsonl, tokenizer: {0}/tokenizer.json}}",
        folder.path().display()
    );
    let expected: f64 = fs::read_to_string(reference.join("seq2seq-pretrained.csv"))
        .unwrap()
        .lines()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let theirs = reference.join("seq2seq-pretrained.safetensors");
    // As older files have it: the one table again under its other names, and a bias that nothing
    // reads.
    let bytes = fs::read(&theirs).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let table = tensors.tensor("shared.weight").unwrap();
    let bias = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
    let unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
    let more = [
        ("lm_head.weight", table.clone()),
        ("encoder.embed_tokens.weight", table),
        (unused, bias.clone()),
    ];
    let older = folder.path().join("older.safetensors");
    let named = |more: Vec<(&str, TensorView<'_>)>, path: &Path| {
        let all = tensors
            .iter()
            .chain(more.iter().map(|(name, view)| (*name, view.clone())));
        safetensors::serialize_to_file(all, None, path).unwrap();
    };
    named(more.to_vec(), &older);
    for engine in engines() {
        for file in [&theirs, &older] {
            let left = run(folder.path(), [engine, T5, &data, &unchanged(file)]);
            let loss = left.valid_loss();
            assert!(
                (loss / expected - 1.0).abs() < 1e-5 * common::slack(),
                "{engine}: {loss}, there {expected}"
            );
        }
    }

    // Gated blocks are what later versions have.
    let gated = folder.path().join("gated.safetensors");
    named(
        vec![("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", bias)],
        &gated,
    );
    let left = run(folder.path(), ["flex", T5, &data, &unchanged(&gated)]);
    assert!(
        left.reason()
            .contains("belongs to a T5 with gated feed-forward blocks (v1.1, Flan-T5, mT5), which"),
        "{}",
        left.reason()
    );

    // A head of its own is another model, and so is one with more layers or tokens.
    let untied = folder.path().join("untied.safetensors");
    let zeros = vec![0; 23 * 8 * 2];
    named(
        vec![(
            "lm_head.weight",
            TensorView::new(Dtype::F16, vec![23, 8], &zeros).unwrap(),
        )],
        &untied,
    );
    let of =
        |model: &str, file: &Path| run(folder.path(), ["flex", model, &data, &unchanged(file)]);
    for (model, file, what) in [
        (
            T5,
            &untied,
            "untied.safetensors, `lm_head.weight` is a head of its own, which `model.kind: seq2seq` \
             does not have; set `model` as it was",
        ),
        (
            &T5.replace("decoder_layers: 2", "decoder_layers: 1"),
            &theirs,
            "seq2seq-pretrained.safetensors, `decoder.block.1.layer.0.SelfAttention.k.weight` and \
             12 others are not parameters of the model",
        ),
        (
            &T5.replace("decoder_layers: 2", "decoder_layers: 3"),
            &theirs,
            "seq2seq-pretrained.safetensors, `decoder.block.2.layer.0.layer_norm.weight` is \
             missing",
        ),
        (
            &T5.replace("d_ff: 16", "vocabulary: 30, d_ff: 16"),
            &theirs,
            "seq2seq-pretrained.safetensors, `shared.weight` has shape [23, 8], and the model's \
             parameter [30, 8]",
        ),
    ] {
        let left = of(model, file);
        let (begin, rest) = left.reason().split_once(" in ").unwrap();
        assert!(
            begin == "the initial weights do not fit the model:"
                && rest.contains(&format!("/{what}")),
            "{}",
            left.reason()
        );
    }
}

/// Heads share the same matrices however many they are.
#[test]
fn what_no_shape_shows_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let (gpt, data) = (
        "{kind: gpt, d_model: 16, num_layers: 1, num_heads: 2, seq_len: 8, dropout: 0.1}",
        "{kind: generated, characters: 20000}",
    );
    let (file, _) = trained(folder.path(), "flex", [gpt, data]);
    let begun = |model: &str| run(folder.path(), ["flex", model, data, &unchanged(&file)]);
    let left = begun(&gpt.replace("num_heads: 2", "num_heads: 4"));
    assert!(
        left.reason()
            .contains("`model.num_heads` was 2 when these weights were trained, and is 4"),
        "{}",
        left.reason()
    );
    let left = begun(&gpt.replace("dropout: 0.1", "dropout: 0"));
    left.valid_loss();
    assert!(
        left.result.notes["initial_weights"].starts_with("SHA-256 "),
        "{:?}",
        left.result.notes
    );
}

/// The same size of a vocabulary says nothing of what its numbers mean.
#[test]
fn tokens_that_are_numbered_otherwise_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content.repeat(200)).unwrap();
        format!(
            "{{kind: text, path: {}, tokenizer: TOKENIZER}}",
            path.display()
        )
    };
    let (here, shuffled, other) = (
        text("here.txt", "abcde\nedcba\n"),
        text("shuffled.txt", "edcba\naabbc\n"),
        text("other.txt", "fghij\njihgf\n"),
    );
    let model = "{kind: mlp, seq_len: 16}";
    let begun = |tokenizer: &str, of: &str, on: &str| {
        let [of, on] = [of, on].map(|data| data.replace("TOKENIZER", tokenizer));
        let (file, _) = trained(folder.path(), "flex", [model, &of]);
        // The files of weights of equal trainings are equal.
        assert_eq!(
            fs::read(&file).unwrap(),
            fs::read(trained(folder.path(), "flex", [model, &of]).0).unwrap()
        );
        fs::remove_dir_all(folder.path().join("checkpoint")).unwrap();
        run(folder.path(), ["flex", model, &on, &unchanged(&file)])
    };
    begun("character", &here, &shuffled).valid_loss();
    begun("byte", &here, &other).valid_loss();
    for (tokenizer, on) in [("character", &other), ("word", &other), ("word", &shuffled)] {
        let left = begun(tokenizer, &here, on);
        assert!(
            left.reason()
                .contains("tokens that are numbered otherwise than those of `data`"),
            "{tokenizer}: {}",
            left.reason()
        );
    }
}

#[test]
fn what_is_no_file_of_this_content_is_refused_and_a_checkpoint_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let case = [
        "{kind: mlp, seq_len: 16}",
        "{kind: generated, characters: 20000}",
    ];
    let (file, _) = trained(folder.path(), "flex", case);
    let [model, data] = case;
    let key = unchanged(&file);
    let bytes = fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let nan = vec![0xff; bytes.len()];
    let rewritten = |name: &dyn Fn(&str) -> String, is_nan: bool| {
        let views = tensors.tensors().into_iter().map(|(own, view)| {
            let data = match is_nan {
                true => &nan[..view.data().len()],
                false => &bytes[bytes.len() - view.data().len()..],
            };
            let view = TensorView::new(view.dtype(), view.shape().to_vec(), data).unwrap();
            (name(&own), view)
        });
        fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
        run(folder.path(), ["flex", model, data, &unchanged(&file)])
    };
    let exported = rewritten(&|own| own.to_lowercase(), false);
    assert!(
        exported
            .reason()
            .contains("is a name of PyTorch, as in an export"),
        "{}",
        exported.reason()
    );
    let diverged = rewritten(&|own| own.to_owned(), true);
    assert!(
        diverged.reason().contains("has NaN or infinite values"),
        "{}",
        diverged.reason()
    );
    fs::write(&file, "no tensors").unwrap();
    let left = run(folder.path(), ["flex", model, data, &key]);
    assert!(
        left.reason().contains("whose SHA-256 is ")
            && left.reason().ends_with("write its SHA-256 there"),
        "{}",
        left.reason()
    );
    assert_eq!(left.first_loss, None);
    let left = run(folder.path(), ["flex", model, data, &unchanged(&file)]);
    assert!(
        left.reason().contains("trained.safetensors: ")
            && left.reason().ends_with("save the model as one"),
        "{}",
        left.reason()
    );
    fs::remove_file(&file).unwrap();
    assert!(
        run(folder.path(), ["flex", model, data, &key])
            .reason()
            .contains("which cannot be read: No such file")
    );

    // An attempt that resumes no longer needs it.
    let going_on = key.replace("steps: 2", "steps: 40, checkpoint: {every_steps: 1000}");
    let left = run(folder.path(), ["flex", model, data, &going_on]);
    assert_eq!(
        (left.result.outcome, left.result.figures.resumed_at_step),
        (Outcome::Completed, Some(30)),
        "{:?}",
        left.result.reason
    );
}
