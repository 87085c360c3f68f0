//! Trained parameters that a training begins with: `train.initial_weights`.

use std::{cell::RefCell, collections::BTreeSet, path::Path};

use kiln::{catalog::weights, spec::InitialWeights};

use super::saved::{Arrived, Purpose};
use crate::error::TrialError;

/// A file of parameters, each of which has its place in the model.
#[derive(Debug)]
pub(crate) struct Pretrained {
    tensors: Arrived,
    naming: Naming,
    taken: RefCell<BTreeSet<String>>,
}

/// Whose names the parameters have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// Paths, as in a checkpoint.
    Kiln,
    /// Hugging Face's T5.
    T5,
}

/// T5's table of tokens.
const T5_TABLE: &str = "shared.weight";
/// The same table again, in files that have it more than once.
const T5_TABLE_AGAIN: [&str; 3] = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"];
/// In the first published files; nothing is computed from it.
const T5_UNUSED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

impl Pretrained {
    /// Errors: the file cannot be read, is another one than its sum says, or is no safetensors file.
    pub(crate) fn read(named: &InitialWeights) -> Result<Self, TrialError> {
        let path = Path::new(&named.path);
        let bytes = weights::read(path, &named.sha256).map_err(|error| TrialError::Failed(error.to_string()))?;
        let tensors = Arrived::of(path, bytes, Purpose::InitialWeights)?;
        let naming = if tensors.names().iter().any(|name| name == T5_TABLE) { Naming::T5 } else { Naming::Kiln };
        Ok(Self { tensors, naming, taken: RefCell::default() })
    }

    /// The numbers of the parameter or statistic at a path, row after row.
    ///
    /// Errors: there are none, or of another shape.
    pub(crate) fn values(&self, path: &str, shape: &[usize]) -> Result<Vec<f32>, TrialError> {
        let name = self.naming.of(path);
        let found = self.tensors.shape(&name)?;
        if found != shape {
            return Err(self.tensors.unfit(&name, &format!("is {found:?}, and the model's {shape:?}")));
        }
        let values = self.tensors.values(&name, shape.iter().product())?;
        self.taken.borrow_mut().insert(name);
        Ok(values)
    }

    /// To be asked once the model has all its values.
    ///
    /// Errors: the file holds more than was taken.
    pub(crate) fn all_taken(&self) -> Result<(), TrialError> {
        let taken = self.taken.borrow();
        let mut left: Vec<String> = self.tensors.names().into_iter().filter(|name| !taken.contains(name) && !self.is_needless(name)).collect();
        left.sort_unstable();
        match &left[..] {
            [] => Ok(()),
            [one] => Err(self.tensors.unfit(one, "has no place in it")),
            [first, others @ ..] => Err(self.tensors.unfit(first, &format!("and {} others have no place in it", others.len()))),
        }
    }

    fn is_needless(&self, name: &str) -> bool {
        let is_table_again = || T5_TABLE_AGAIN.contains(&name) && self.tensors.bits(name).ok() == self.tensors.bits(T5_TABLE).ok();
        self.naming == Naming::T5 && (name == T5_UNUSED || is_table_again())
    }
}

impl Naming {
    fn of(self, path: &str) -> String {
        let theirs = match self {
            Self::Kiln => None,
            Self::T5 => path.split_once('.').and_then(|(_, within)| t5_name(within)),
        };
        theirs.unwrap_or_else(|| path.to_owned())
    }
}

/// What Hugging Face's T5 calls the parameter at a path within `seq2seq`.
fn t5_name(path: &str) -> Option<String> {
    if path == "token_table" {
        return Some(T5_TABLE.to_owned());
    }
    let (stack, within) = path.split_once('.')?;
    match within {
        "final_norm" => return Some(format!("{stack}.final_layer_norm.weight")),
        "positions.table" => return Some(format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")),
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
