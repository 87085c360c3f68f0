//! Trainings that begin with a GPT-2, as Hugging Face's `save_pretrained` writes it and as the
//! published files have it.

use std::fs;

use crate::{
    common,
    pretrained::{engines, run, unchanged},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// The shapes of tests/reference/gpt2-pretrained.safetensors.
const GPT2: &str = "kind: gpt, d_model: 16, num_layers: 2, num_heads: 4";

/// The text of tests/reference/gpt2.py.
fn text() -> String {
    (0..200)
        .map(|number| format!("{} the kiln {number}\n", number * number % 97))
        .collect()
}

#[test]
fn a_gpt2_of_hugging_face_has_the_loss_that_it_has_there() {
    let folder = tempfile::tempdir().unwrap();
    let text_path = folder.path().join("text.txt");
    fs::write(&text_path, text()).unwrap();
    let data = format!(
        "{{kind: text, path: {}, tokenizer: byte, valid_fraction: 0.25}}",
        text_path.display()
    );
    let reference = common::in_repository("tests/reference");
    let theirs = reference.join("gpt2-pretrained.safetensors");
    // As the published files have it: names without a prefix, and masks that are no parameters.
    let bytes = fs::read(&theirs).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mask = TensorView::new(Dtype::U8, vec![1, 1, 2, 2], &[1, 0, 1, 1]).unwrap();
    let masks = ["h.0.attn.bias", "h.1.attn.masked_bias"].map(|name| (name, mask.clone()));
    let renamed = tensors
        .iter()
        .map(|(name, view)| (name.strip_prefix("transformer.").unwrap(), view));
    let published = folder.path().join("published.safetensors");
    safetensors::serialize_to_file(renamed.chain(masks), None, &published).unwrap();

    let losses = fs::read_to_string(reference.join("gpt2-pretrained.csv")).unwrap();
    // The second has fewer positions than the file.
    for line in losses.lines().skip(1) {
        let (seq_len, expected) = line.split_once(',').unwrap();
        let expected: f64 = expected.parse().unwrap();
        for (engine, file, head) in engines()
            .into_iter()
            .flat_map(|engine| [(engine, &theirs, "true"), (engine, &published, "false")])
        {
            let model = format!("{{{GPT2}, seq_len: {seq_len}, tie_head: {head}}}");
            let left = run(folder.path(), [engine, &model, &data, &unchanged(file)]);
            let loss = left.valid_loss();
            assert!(
                (loss / expected - 1.0).abs() < 1e-5 * common::slack(),
                "{engine}, {seq_len} tokens: {loss}, there {expected}"
            );
        }
    }
}
