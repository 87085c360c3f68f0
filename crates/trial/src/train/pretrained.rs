//! Trained parameters as the start of a training: `train.initial_weights`.

use std::{cell::RefCell, collections::BTreeSet, io, path::Path};

use kiln_core::{kinds, spec::InitialWeights};
use kiln_data::weights::{self, WeightsError};
use serde_json::Value;

use super::tensor_file::{Purpose, Said, TensorFile};
use crate::error::TrialError;

/// A file of parameters, each of which has its place in the model.
#[derive(Debug)]
pub(crate) struct Pretrained {
    tensors: TensorFile,
    naming: WeightNaming,
    taken: RefCell<BTreeSet<String>>,
}

/// The naming scheme of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightNaming {
    /// Paths, as in a checkpoint.
    Kiln,
    /// Hugging Face's T5.
    T5,
}

/// T5's table of tokens.
const T5_TABLE: &str = "shared.weight";
/// The same table again, in files that have it more than once.
const T5_TABLE_AGAIN: [&str; 3] = [
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
];
/// In the first published files; nothing is computed from it.
const T5_UNUSED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// Part of the names in a T5 with gated feed-forward blocks: v1.1, Flan-T5, mT5.
const T5_GATED: &str = ".DenseReluDense.wi_0.";

/// The key under which a file of weights describes its model. The only one, because safetensors writes
/// several in an order that differs each time, and with it the file's SHA-256.
const MODEL: &str = "kiln_model";
/// Its key beside those of the `model` section: SHA-256 of the numbering of the tokens.
const TOKENS: &str = "token_ids_sha256";
/// Keys of `model` that no parameter's shape shows.
const UNSEEN: [&str; 2] = ["num_heads", "relative_max_distance"];

/// Description of the model, saved in a file of weights; `tokens` is the SHA-256 of their numbering.
pub(crate) fn about_model(model: &kinds::Model, tokens: Option<&str>) -> Said {
    let Ok(mut about) = serde_json::to_value(model) else {
        return Said::default();
    };
    if let Some(tokens) = tokens {
        about[TOKENS] = tokens.into();
    }
    Said::from([(MODEL.to_owned(), about.to_string())])
}

impl Pretrained {
    /// `token_sum` is the SHA-256 of the numbering of the data's tokens.
    ///
    /// Errors: the file cannot be read, has another SHA-256, is not a safetensors file, or belongs
    /// to a model that computes differently or whose tokens are numbered otherwise.
    pub(crate) fn read(
        named: &InitialWeights,
        model: &kinds::Model,
        token_sum: Option<&str>,
    ) -> Result<Self, TrialError> {
        let path = Path::new(&named.path);
        let bytes = weights::read(path, &named.sha256).map_err(|error| match error {
            WeightsError::Unreadable { error, .. }
                if error.kind() == io::ErrorKind::OutOfMemory =>
            {
                TrialError::OutOfMemory {
                    text: format!(
                        "{} does not fit into the memory that is left",
                        path.display()
                    ),
                }
            }
            error => TrialError::Failed(error.to_string()),
        })?;
        let tensors = TensorFile::of(path, bytes, Purpose::InitialWeights)?;
        let names = tensors.names();
        let fault = foreign_names(&names)
            .or_else(|| unlike(tensors.said(MODEL), model, token_sum))
            .or_else(|| names_of_pytorch(&names));
        match fault {
            Some(fault) => Err(TrialError::Failed(format!("{}: {fault}", path.display()))),
            None => Ok(Self {
                naming: WeightNaming::in_file(&names),
                tensors,
                taken: RefCell::default(),
            }),
        }
    }

    /// The numbers of the parameter or statistic at a path, row after row.
    ///
    /// Errors: there are none, or of another shape.
    pub(crate) fn values(&self, path: &str, shape: &[usize]) -> Result<Vec<f32>, TrialError> {
        let name = self.naming.of(path);
        let found = self.tensors.shape(&name)?;
        if found != shape {
            return Err(self.tensors.unfit(
                &name,
                &format!("has shape {found:?}, and the model's parameter {shape:?}"),
            ));
        }
        let values = self.tensors.values(&name, shape.iter().product())?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(self.tensors.unfit(&name, "has NaN or infinite values"));
        }
        self.taken.borrow_mut().insert(name);
        Ok(values)
    }

    /// Called once the model has all its values.
    ///
    /// Errors: the file holds more than was taken.
    pub(crate) fn all_taken(&self) -> Result<(), TrialError> {
        let taken = self.taken.borrow();
        let mut left: Vec<String> = self
            .tensors
            .names()
            .into_iter()
            .filter(|name| !taken.contains(name) && !self.is_needless(name))
            .collect();
        left.sort_unstable();
        match &left[..] {
            [] => Ok(()),
            [one] => Err(self.tensors.unfit(one, "is not a parameter of the model")),
            [first, others @ ..] => Err(self.tensors.unfit(
                first,
                &format!(
                    "and {} others are not parameters of the model",
                    others.len()
                ),
            )),
        }
    }

    fn is_needless(&self, name: &str) -> bool {
        let is_table_again = || {
            T5_TABLE_AGAIN.contains(&name)
                && self.tensors.bits(name).ok() == self.tensors.bits(T5_TABLE).ok()
        };
        self.naming == WeightNaming::T5 && (name == T5_UNUSED || is_table_again())
    }
}

/// Says that a file has parameters of a T5 that kiln does not compute.
fn foreign_names(names: &[String]) -> Option<String> {
    let gated = names.iter().find(|name| name.contains(T5_GATED))?;
    Some(format!(
        "`{gated}` belongs to a T5 with gated feed-forward blocks (v1.1, Flan-T5, mT5), which \
         `model.kind: seq2seq` does not have; name the weights of an original T5 (v1.0) in \
         `train.initial_weights`"
    ))
}

/// Says that the model of a file computes differently, or that its tokens are numbered otherwise.
/// `about` is the file's description of its model.
fn unlike(about: Option<&str>, model: &kinds::Model, token_sum: Option<&str>) -> Option<String> {
    let about: Value = serde_json::from_str(about?).ok()?;
    if let Some((key, then, now)) = unseen_difference(&about, model) {
        return Some(format!(
            "`model.{key}` was {then} when these weights were trained, and is {now} now, so they do \
             not fit; set it to {then}"
        ));
    }
    let is_other = about[TOKENS].as_str()? != token_sum?;
    is_other.then(|| {
        "these weights were trained on tokens that are numbered otherwise than those of `data`, so \
         each would begin as another one; use the data of that training, or tokens that do not \
         depend on the data for both (`data.tokenizer: byte`, or one file of a tokenizer)"
            .to_owned()
    })
}

/// Says that the names of a file are those of PyTorch.
fn names_of_pytorch(names: &[String]) -> Option<String> {
    let own = |name: &String| name.starts_with(|letter: char| letter.is_ascii_uppercase());
    let is_foreign = WeightNaming::in_file(names) == WeightNaming::Kiln && !names.iter().any(own);
    let first = names.iter().min().filter(|_| is_foreign)?;
    Some(format!(
        "`{first}` is a name of PyTorch, as in an export; name the `model.safetensors` of a \
         checkpoint in `train.initial_weights`, whose names are like `Gpt.token_table`"
    ))
}

/// The first key that makes another model of the same parameters, with its value then and now.
fn unseen_difference(then: &Value, now: &kinds::Model) -> Option<(&'static str, Value, Value)> {
    let now = serde_json::to_value(now).ok()?;
    // A user's own model has its own keys of these names.
    let is_kilns = then["kind"] == now["kind"] && now["kind"] != "custom";
    let key = UNSEEN
        .into_iter()
        .find(|key| is_kilns && then[key] != now[key])?;
    Some((key, then[key].clone(), now[key].clone()))
}

impl WeightNaming {
    /// The scheme of a file with these names.
    fn in_file(names: &[String]) -> Self {
        match names.iter().any(|name| name == T5_TABLE) {
            true => Self::T5,
            false => Self::Kiln,
        }
    }

    /// The name of the parameter at a path.
    fn of(self, path: &str) -> String {
        let theirs = match self {
            Self::Kiln => None,
            Self::T5 => path.split_once('.').and_then(|(_, within)| t5_name(within)),
        };
        theirs.unwrap_or_else(|| path.to_owned())
    }
}

/// Hugging Face's T5 name of the parameter at a path within `seq2seq`.
pub(crate) fn t5_name(path: &str) -> Option<String> {
    if path == "token_table" {
        return Some(T5_TABLE.to_owned());
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
