//! Files of T5, as Hugging Face's `save_pretrained` writes them.

use serde_json::Value;

use super::{
    Needless, RMS_NORM_EPSILON,
    config::{ComputationRule, ConfigCheck, is_of_export, other_computation, other_number},
};
use crate::kinds::Seq2seq;

/// The table of tokens.
const TABLE: &str = "shared.weight";
/// The same table again, in files that have it more than once, or a head of the model's own.
const TABLE_AGAIN: [&str; 3] = [
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    HEAD,
];
const HEAD: &str = "lm_head.weight";
/// In the first published files; nothing is computed from it.
const UNUSED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
/// Part of the names in a T5 with gated feed-forward blocks: v1.1, Flan-T5, mT5.
const GATED: &str = ".DenseReluDense.wi_0.";

/// `relative_attention_max_distance` of a configuration without it.
const DEFAULT_DISTANCE: u64 = 128;

/// Whether a tensor has a row per token beside [`TABLE`].
pub(super) fn is_table_again(name: &str) -> bool {
    TABLE_AGAIN.contains(&name)
}

/// Whether a tensor is the head, where it is not the table of tokens.
pub(super) fn is_head(name: &str) -> bool {
    name == HEAD
}

pub(super) fn needless(name: &str) -> Needless {
    if name == UNUSED {
        Needless::Always
    } else if is_table_again(name) {
        Needless::IfEqualTo(TABLE.to_owned())
    } else {
        Needless::Never
    }
}

/// Says that a file has parameters of a T5 that kiln does not compute.
pub(super) fn foreign_names(names: &[&String]) -> Option<String> {
    let gated = names.iter().find(|name| name.contains(GATED))?;
    Some(format!(
        "`{gated}` belongs to a T5 with gated feed-forward blocks (v1.1, Flan-T5, mT5), which \
         `model.kind: seq2seq` does not have; name the weights of an original T5 (v1.0) in \
         `train.initial_weights`"
    ))
}

/// The check of the `config.json` beside a file of T5; `config` is absent where there is no such
/// file. Shapes show the other sizes: the table of positions has the buckets and heads.
/// `has_new_table`: the token table, and with it the head, begins with random values.
pub(super) fn check(config: Option<&Value>, model: &Seq2seq, has_new_table: bool) -> ConfigCheck {
    let Some(config) = config else {
        return ConfigCheck::of_notice(
            "initial weights: there is no readable `config.json` beside them, so nothing shows \
             whether `model.relative_max_distance` and the activation are those of their model"
                .to_owned(),
        );
    };
    if is_of_export(config) {
        return ConfigCheck::default();
    }
    let key = "relative_attention_max_distance";
    let distance = config[key].as_u64().unwrap_or(DEFAULT_DISTANCE);
    let own = ("relative_max_distance", model.relative_max_distance);
    let fault = other_number((key, distance), own)
        .or_else(|| other_computation(config, &OTHER_COMPUTATIONS, "seq2seq"));
    if let Some(fault) = fault {
        return ConfigCheck::of_fault(fault);
    }
    if config["tie_word_embeddings"] == false && !has_new_table {
        return ConfigCheck::of_fault(
            "`tie_word_embeddings` is false in the `config.json` beside these weights, so their \
             model has a head of its own, which `model.kind: seq2seq` does not have; name the \
             weights of another model in `train.initial_weights`, or add `without: [embedding]` \
             there, so that the token table, which is the head too, begins with random values"
                .to_owned(),
        );
    }
    match config["model_type"].as_str().filter(|it| *it != "t5") {
        Some(other) => ConfigCheck::of_notice(format!(
            "initial weights: the `config.json` beside them has `model_type: {other}`, so nothing \
             shows whether their model computes as a T5 does"
        )),
        None => ConfigCheck::default(),
    }
}

/// The settings by which a T5 computes what kiln does not.
const OTHER_COMPUTATIONS: [ComputationRule; 4] = [
    ("feed_forward_proj", is_not_relu),
    ("dense_act_fn", is_not_relu),
    ("is_gated_act", |value| value == true),
    ("layer_norm_epsilon", |value| {
        value.as_f64().is_some_and(|it| it != RMS_NORM_EPSILON)
    }),
];

fn is_not_relu(value: &Value) -> bool {
    value.as_str().is_some_and(|name| name != "relu")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::Model;

    fn checked(config: Option<&Value>, has_new_table: bool) -> ConfigCheck {
        let Model::Seq2seq(model) = serde_yaml::from_str("{kind: seq2seq}").unwrap() else {
            panic!("the kind is that of the text");
        };
        check(config, &model, has_new_table)
    }

    #[test]
    fn a_t5_that_computes_differently_is_refused_by_its_configuration() {
        let fault = |config: &Value, has_new_table: bool| {
            let found = checked(Some(config), has_new_table);
            assert!(found.notices.is_empty(), "{config}");
            found.fault.unwrap_or_default()
        };
        for equal in [
            json!({}),
            json!({"model_type": "t5", "feed_forward_proj": "relu", "dense_act_fn": "relu",
                   "is_gated_act": false, "layer_norm_epsilon": 1e-6,
                   "relative_attention_max_distance": 128, "tie_word_embeddings": true}),
            json!({"kiln_export": 1, "feed_forward_proj": "gelu"}),
        ] {
            assert_eq!(fault(&equal, false), "");
        }
        for (other, start) in [
            (
                json!({"feed_forward_proj": "gelu"}),
                "`feed_forward_proj` is \"gelu\" in the `config.json` beside these weights",
            ),
            (
                json!({"dense_act_fn": "gelu_new"}),
                "`dense_act_fn` is \"gelu_new\"",
            ),
            (json!({"is_gated_act": true}), "`is_gated_act` is true"),
            (
                json!({"layer_norm_epsilon": 1e-5}),
                "`layer_norm_epsilon` is ",
            ),
            (
                json!({"relative_attention_max_distance": 64}),
                "`relative_attention_max_distance` is 64 in the `config.json` beside these \
                 weights, and `model.relative_max_distance` is 128; set it to 64",
            ),
        ] {
            for has_new_table in [false, true] {
                let message = fault(&other, has_new_table);
                assert!(message.starts_with(start), "{other}: {message}");
            }
        }
        let own_head = json!({"tie_word_embeddings": false});
        assert!(fault(&own_head, false).contains("`without: [embedding]`"));
        assert_eq!(fault(&own_head, true), "");
    }

    #[test]
    fn an_unknown_configuration_of_a_t5_is_noticed() {
        let mt5 = json!({"model_type": "mt5"});
        for (config, what) in [
            (None, "no readable `config.json`"),
            (Some(&mt5), "`model_type: mt5`"),
        ] {
            let found = checked(config, false);
            assert_eq!(found.fault, None);
            assert!(found.notices[0].contains(what), "{:?}", found.notices);
        }
    }
}
