//! Files of GPT-2: as Hugging Face's `save_pretrained` writes them, as they were published, and under
//! nanoGPT's names, as `kiln export` writes them.

use serde_json::Value;

use super::{
    LAYER_NORM_EPSILON, Needless, WeightsHeader,
    config::{ComputationRule, ConfigCheck, is_of_export, other_computation, other_number},
    names,
};
use crate::kinds::Model;

/// How a file of GPT-2 has its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gpt2Form {
    /// Whether the names begin with `transformer.`; those of the published files do not.
    has_prefix: bool,
    /// Whether the weights of linear layers are [in, out], as in `transformers`.
    is_turned: bool,
    has_head: bool,
}

/// The head, where it is not the table of tokens.
pub const HEAD: &str = "lm_head.weight";
const PREFIX: &str = "transformer.";
const TABLE: &str = "transformer.wte.weight";
const POSITIONS: &str = "transformer.wpe.weight";
/// The weight [in, 3 × in] whose shape shows which axis is first.
const UNEQUAL: &str = "transformer.h.0.attn.c_attn.weight";
/// Masks of the attention, in the first published files.
const BUFFERS: [&str; 2] = [".attn.bias", ".attn.masked_bias"];

impl Gpt2Form {
    /// `None` if the file has no table of GPT-2's name.
    pub(super) fn of(header: &WeightsHeader) -> Option<Self> {
        let has = |name: &str| header.shapes.contains_key(name);
        let tables = [TABLE, POSITIONS];
        let mut form = Self {
            has_prefix: tables.iter().any(|table| has(table)),
            is_turned: false,
            has_head: has(HEAD),
        };
        if !tables.iter().any(|table| has(&form.name(table))) {
            return None;
        }
        let shape = header.shapes.get(&form.name(UNEQUAL));
        form.is_turned =
            shape.is_some_and(|shape| matches!(shape[..], [rows, columns] if columns > rows));
        Some(form)
    }

    /// The file's name of the parameter that nanoGPT names so. The head of a file without one is the
    /// table of tokens.
    pub(super) fn name(self, full: &str) -> String {
        let full = match full {
            HEAD if !self.has_head => TABLE,
            full => full,
        };
        let name = match self.has_prefix {
            true => full,
            false => full.strip_prefix(PREFIX).unwrap_or(full),
        };
        name.to_owned()
    }

    /// Whether the tensor of this name is [in, out].
    pub(super) fn turns(self, name: &str) -> bool {
        self.is_turned && names::is_gpt2_linear(name)
    }

    /// Masks, the table again as the head, and biases of zeros, which exports have in the place of
    /// absent ones.
    pub(super) fn needless(self, name: &str) -> Needless {
        if BUFFERS.iter().any(|buffer| name.ends_with(buffer)) {
            Needless::Always
        } else if name == HEAD {
            Needless::IfEqualTo(self.name(TABLE))
        } else if name.ends_with(".bias") {
            Needless::IfZero
        } else {
            Needless::Never
        }
    }
}

/// The check of the `config.json` beside a file of GPT-2: it has settings that shapes do not show.
/// `config` is absent where there is no such file.
pub(super) fn check(config: Option<&Value>, model: &Model) -> ConfigCheck {
    let (Some(config), Model::Gpt(gpt)) = (config, model) else {
        return ConfigCheck::of_notice(
            "initial weights: there is no readable `config.json` beside them, so nothing shows \
             whether `model.num_heads` and the activation are those of their model"
                .to_owned(),
        );
    };
    if is_of_export(config) {
        return ConfigCheck::default();
    }
    if let Some(other) = config["model_type"].as_str().filter(|it| *it != "gpt2") {
        return ConfigCheck::of_notice(format!(
            "initial weights: the `config.json` beside them has `model_type: {other}`, so nothing \
             shows whether `model.num_heads` and the activation are those of their model"
        ));
    }
    let heads = config["n_head"].as_u64().unwrap_or(DEFAULT_HEADS);
    let fault = other_number(("n_head", heads), ("num_heads", gpt.num_heads))
        .or_else(|| other_computation(config, &OTHER_COMPUTATIONS, "gpt"));
    if let Some(fault) = fault {
        return ConfigCheck::of_fault(fault);
    }
    let activation = config["activation_function"].as_str();
    match activation.unwrap_or(DEFAULT_ACTIVATION) {
        exact if EXACT.contains(&exact) => ConfigCheck::default(),
        other => ConfigCheck::of_notice(format!(
            "initial weights: their `activation_function` is {other}, an approximation of GELU, \
             and kiln computes the exact GELU, which differs from it by less than 0.0005; the \
             first losses differ slightly from those of `transformers`"
        )),
    }
}

/// GELU by the error function, as kiln computes it, under each of its names.
const EXACT: [&str; 2] = ["gelu", "gelu_python"];
/// GELU's approximation by a hyperbolic tangent, under each of its names.
const BY_TANH: [&str; 5] = [
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "gelu_fast",
    "gelu_accurate",
];
/// The values of a configuration without these keys.
const DEFAULT_ACTIVATION: &str = "gelu_new";
const DEFAULT_HEADS: u64 = 12;

/// The settings by which GPT-2 computes what kiln does not.
const OTHER_COMPUTATIONS: [ComputationRule; 4] = [
    ("activation_function", |value| {
        value
            .as_str()
            .is_some_and(|name| !EXACT.contains(&name) && !BY_TANH.contains(&name))
    }),
    ("layer_norm_epsilon", |value| {
        value.as_f64().is_some_and(|it| it != LAYER_NORM_EPSILON)
    }),
    ("scale_attn_weights", |value| value == false),
    ("scale_attn_by_inverse_layer_idx", |value| value == true),
];
