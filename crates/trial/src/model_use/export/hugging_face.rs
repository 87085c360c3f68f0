//! Folders that Hugging Face's `transformers` loads: GPT-2 for `gpt`, T5 for `seq2seq`. Both
//! compute what kiln computes: GELU by the error function, the same epsilons, and zeros in the
//! place of biases that a model does not have.

use kiln_core::kinds::{InputShape, Model};
use kiln_data::pairs;
use serde_json::{Value, json};

use super::{Exporting, NamedNumbers, Numbers};
use crate::{
    TrialError,
    engine::{LAYER_NORM_EPSILON, RMS_NORM_EPSILON},
    model_use::Trained,
    pytorch_names::is_gpt2_linear,
    train::pretrained::{TOKENS, token_sum_of},
};

pub(super) fn export(
    trained: &Trained<'_>,
    tensors: &NamedNumbers,
    input: InputShape,
    exporting: &mut Exporting<'_>,
) -> Result<(), TrialError> {
    let vocabulary = input.vocabulary().unwrap_or_default();
    let (mut config, tensors) = match &trained.file.model {
        Model::Gpt(gpt) => (gpt2_config(gpt, vocabulary), gpt2_tensors(tensors)),
        Model::Seq2seq(seq2seq) => {
            // T5's own, where the tokenizer is not there.
            let special = pairs::tokens(&trained.file.data, trained.data_folder())
                .map_or([0, 1], |(tokens, _)| [tokens.pad(), tokens.end()]);
            (t5_config(seq2seq, vocabulary, special), tensors.clone())
        }
        other => {
            exporting.left_out.push(format!(
                "huggingface: `transformers` has no model that computes what `model.kind` {} does",
                other.kind()
            ));
            return Ok(());
        }
    };
    if let Some(tokens) = token_sum_of(&trained.weights) {
        config[TOKENS] = tokens.into();
    }
    exporting.json("huggingface/config.json", &config)?;
    exporting.tensors("huggingface/model.safetensors", tensors)
}

fn gpt2_config(gpt: &kiln_core::kinds::Gpt, vocabulary: u64) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": gpt.seq_len,
        "n_embd": gpt.d_model,
        "n_layer": gpt.num_layers,
        "n_head": gpt.num_heads,
        "n_inner": 4 * gpt.d_model,
        "activation_function": "gelu",
        "embd_pdrop": gpt.dropout,
        "attn_pdrop": gpt.dropout,
        "resid_pdrop": gpt.dropout,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "tie_word_embeddings": gpt.tie_head,
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
    })
}

/// The same tensors, linear weights transposed, and zeros for biases that are absent.
fn gpt2_tensors(tensors: &NamedNumbers) -> NamedNumbers {
    let has = |name: &str| tensors.iter().any(|(other, _)| other == name);
    let mut all = Vec::new();
    for (name, numbers) in tensors {
        let layer = name.strip_suffix(".weight");
        let is_linear = is_gpt2_linear(name);
        let is_norm = layer.is_some_and(|layer| {
            [".ln_1", ".ln_2", ".ln_f"]
                .iter()
                .any(|norm| layer.ends_with(norm))
        });
        let bias = format!("{}.bias", layer.unwrap_or_default());
        if (is_linear || is_norm) && !has(&bias) {
            // [out, in], or [width] of a norm.
            let width = numbers.shape[0];
            all.push((bias, Numbers::new(&[width], &vec![0.0; width])));
        }
        let numbers = if is_linear {
            numbers.transposed()
        } else {
            numbers.clone()
        };
        all.push((name.clone(), numbers));
    }
    all
}

fn t5_config(seq2seq: &kiln_core::kinds::Seq2seq, vocabulary: u64, [pad, end]: [u32; 2]) -> Value {
    json!({
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": vocabulary,
        "d_model": seq2seq.d_model,
        "d_kv": seq2seq.d_kv,
        "d_ff": seq2seq.d_ff,
        "num_layers": seq2seq.encoder_layers,
        "num_decoder_layers": seq2seq.decoder_layers,
        "num_heads": seq2seq.num_heads,
        "relative_attention_num_buckets": seq2seq.relative_buckets,
        "relative_attention_max_distance": seq2seq.relative_max_distance,
        "dropout_rate": seq2seq.dropout,
        "layer_norm_epsilon": RMS_NORM_EPSILON,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": true,
        "tie_word_embeddings": true,
        "pad_token_id": pad,
        "eos_token_id": end,
        "decoder_start_token_id": pad,
        "torch_dtype": "float32",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_weights_are_transposed_and_absent_biases_are_zeros() {
        let weight = Numbers::new(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let name = "transformer.h.0.mlp.c_fc.weight".to_owned();
        let found = gpt2_tensors(&vec![
            (name.clone(), weight),
            (
                "transformer.wte.weight".to_owned(),
                Numbers::new(&[1, 2], &[7.0, 8.0]),
            ),
        ]);
        assert_eq!(
            found,
            [
                (
                    "transformer.h.0.mlp.c_fc.bias".to_owned(),
                    Numbers::new(&[2], &[0.0; 2])
                ),
                (name, Numbers::new(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0])),
                (
                    "transformer.wte.weight".to_owned(),
                    Numbers::new(&[1, 2], &[7.0, 8.0])
                ),
            ]
        );
    }
}
