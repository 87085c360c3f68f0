//! PyTorch's name of each parameter and running statistic: nanoGPT's for `gpt`, those of
//! pytorch/examples, word_language_model, for `lstm`, torchvision's for `resnet`, Hugging Face's T5
//! for `seq2seq`, and `torch.nn.LSTM`'s for every recurrent layer. Exports are written under these
//! names, and initial weights are read under them.

use crate::kinds::Model;

/// The weights of GPT-2's linear layers, which `transformers` has as [in, out], and kiln, as
/// `torch.nn.Linear`, as [out, in].
const GPT2_LINEAR: [&str; 4] = [
    "attn.c_attn.weight",
    "attn.c_proj.weight",
    "mlp.c_fc.weight",
    "mlp.c_proj.weight",
];

/// Whether this is the weight of a linear layer of GPT-2.
pub fn is_gpt2_linear(name: &str) -> bool {
    GPT2_LINEAR.iter().any(|linear| name.ends_with(linear))
}

/// The name of the tensor at a path within its model; `None` if there is no such tensor.
pub fn of(model: &Model, path: &str) -> Option<String> {
    match model {
        Model::Gpt(_) => gpt(path),
        Model::Lstm(_) => lstm(path),
        Model::Mlp(_) => mlp(path),
        Model::PanelLstm(_) => panel_lstm(path),
        Model::Resnet(_) => resnet(path),
        Model::Seq2seq(_) => t5(path),
        _ => None,
    }
}

fn gpt(path: &str) -> Option<String> {
    let known = match path {
        "token_table" => "transformer.wte.weight",
        "position_table" => "transformer.wpe.weight",
        "final_norm.weight" => "transformer.ln_f.weight",
        "final_norm.bias" => "transformer.ln_f.bias",
        "head" => "lm_head.weight",
        _ => {
            let (layer, within) = path.strip_prefix("blocks.")?.split_once('.')?;
            let (part, parameter) = within.rsplit_once('.')?;
            let part = match part {
                "attention_norm" => "ln_1",
                "attention.queries_keys_values" => "attn.c_attn",
                "attention.projection" => "attn.c_proj",
                "mlp_norm" => "ln_2",
                "mlp.widening" => "mlp.c_fc",
                "mlp.projection" => "mlp.c_proj",
                _ => return None,
            };
            return Some(format!("transformer.h.{layer}.{part}.{parameter}"));
        }
    };
    Some(known.to_owned())
}

fn lstm(path: &str) -> Option<String> {
    let known = match path {
        "token_table" => "encoder.weight",
        "head" => "decoder.weight",
        "head_bias" => "decoder.bias",
        _ => return recurrent(path),
    };
    Some(known.to_owned())
}

fn panel_lstm(path: &str) -> Option<String> {
    match path {
        "symbol_table" => Some("symbols.weight".to_owned()),
        "head.weight" | "head.bias" => Some(path.to_owned()),
        _ => recurrent(path),
    }
}

/// The parameters of `torch.nn.LSTM`, whose gates are in the same order.
fn recurrent(path: &str) -> Option<String> {
    let (layer, parameter) = path.strip_prefix("layers.")?.split_once('.')?;
    let name = match parameter {
        "input_weight" => "weight_ih",
        "state_weight" => "weight_hh",
        "bias_input" => "bias_ih",
        "bias_state" => "bias_hh",
        _ => return None,
    };
    Some(format!("rnn.{name}_l{layer}"))
}

fn mlp(path: &str) -> Option<String> {
    match path {
        "token_table" => Some("embedding.weight".to_owned()),
        _ => Some(path.to_owned())
            .filter(|path| path.starts_with("hidden.") || path.starts_with("output.")),
    }
}

fn resnet(path: &str) -> Option<String> {
    if let Some(parameter) = path.strip_prefix("head.") {
        return Some(format!("fc.{parameter}"));
    }
    let (place, parameter) = path.rsplit_once('.')?;
    let is_weight = parameter == "weight";
    let parameter = match parameter {
        "weight" | "gain" => "weight",
        "shift" => "bias",
        "running_mean" => "running_mean",
        "running_variance" => "running_var",
        _ => return None,
    };
    if place == "stem" {
        let layer = if is_weight { "conv1" } else { "bn1" };
        return Some(format!("{layer}.{parameter}"));
    }
    let mut parts = place.strip_prefix("stages.")?.splitn(3, '.');
    let (stage, block, part) = (parts.next()?, parts.next()?, parts.next()?);
    let stage = stage.parse::<u64>().ok()? + 1;
    let layer = match part.strip_prefix("convolutions.") {
        Some(at) => {
            let at = at.parse::<u64>().ok()? + 1;
            format!("{}{at}", if is_weight { "conv" } else { "bn" })
        }
        None if part == "shortcut" => format!("downsample.{}", u8::from(!is_weight)),
        None => return None,
    };
    Some(format!("layer{stage}.{block}.{layer}.{parameter}"))
}

fn t5(path: &str) -> Option<String> {
    if path == "token_table" {
        return Some("shared.weight".to_owned());
    }
    let (stack, within) = path.split_once('.')?;
    match within {
        "final_norm" => return Some(format!("{stack}.final_layer_norm.weight")),
        "positions.table" => {
            return Some(format!(
                "{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            ));
        }
        _ => {}
    }
    let (block, within) = within.strip_prefix("blocks.")?.split_once('.')?;
    let (part, parameter) = within.split_once('.')?;
    let (layer, theirs) = match (part, stack) {
        ("attention", _) => (0, "SelfAttention"),
        ("cross_attention", _) => (1, "EncDecAttention"),
        ("feed_forward", "encoder") => (1, "DenseReluDense"),
        ("feed_forward", _) => (2, "DenseReluDense"),
        _ => return None,
    };
    let place = format!("{stack}.block.{block}.layer.{layer}");
    let letter = match parameter {
        "norm" => return Some(format!("{place}.layer_norm.weight")),
        "queries" => "q",
        "keys" => "k",
        "values" => "v",
        "output.weight" => "o",
        "widening.weight" => "wi",
        "projection.weight" => "wo",
        _ => return None,
    };
    Some(format!("{place}.{theirs}.{letter}.weight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_torchvision_and_nanogpt() {
        for (path, name) in [
            ("stem.weight", "conv1.weight"),
            ("stem.gain", "bn1.weight"),
            ("stem.running_variance", "bn1.running_var"),
            ("stages.0.1.convolutions.0.weight", "layer1.1.conv1.weight"),
            ("stages.3.0.convolutions.2.shift", "layer4.0.bn3.bias"),
            ("stages.1.0.shortcut.weight", "layer2.0.downsample.0.weight"),
            (
                "stages.1.0.shortcut.running_mean",
                "layer2.0.downsample.1.running_mean",
            ),
            ("head.bias", "fc.bias"),
        ] {
            assert_eq!(resnet(path).as_deref(), Some(name), "{path}");
        }
        for (path, name) in [
            ("token_table", "transformer.wte.weight"),
            (
                "blocks.11.attention.queries_keys_values.bias",
                "transformer.h.11.attn.c_attn.bias",
            ),
            ("blocks.0.mlp_norm.weight", "transformer.h.0.ln_2.weight"),
        ] {
            assert_eq!(gpt(path).as_deref(), Some(name), "{path}");
        }
        assert_eq!(recurrent("layers.2.bias_state").unwrap(), "rnn.bias_hh_l2");
        assert_eq!(
            (gpt("x"), resnet("stages.0"), lstm("layers")),
            (None, None, None)
        );
    }
}
