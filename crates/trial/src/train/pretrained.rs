//! Trained parameters as the start of a training: `train.initial_weights`.

mod gpt2;

use std::{cell::RefCell, collections::BTreeSet, io, path::Path};

use kiln_core::{input, kinds, limits::STATE_BYTES, spec::InitialWeights};
use kiln_data::weights::{self, WeightsError};
use serde_json::Value;

use self::gpt2::{Gpt2Config, Gpt2Form};
use super::tensor_file::{Purpose, Said, TensorFile};
use crate::{error::TrialError, model::without_kind, pytorch_names};

/// A file of parameters, each of which has its place in the model.
#[derive(Debug)]
pub(crate) struct Pretrained {
    tensors: TensorFile,
    model: kinds::Model,
    naming: WeightNaming,
    taken: RefCell<BTreeSet<String>>,
    /// Parts of the model that keep their random values, and those of them that the model has.
    without: Vec<String>,
    met: RefCell<BTreeSet<String>>,
    /// Notices for the user.
    notices: Vec<String>,
}

/// The naming scheme of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightNaming {
    /// Paths, as in a checkpoint.
    Kiln,
    /// PyTorch's, as in an export: for `seq2seq` those of Hugging Face's T5.
    Pytorch,
    /// GPT-2's, in one of its forms.
    Gpt2(Gpt2Form),
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

/// PyTorch's count of the batches that a norm has seen; kiln's norms have none.
const BATCH_COUNT: &str = ".num_batches_tracked";

/// The table of positions of a `gpt`.
const GPT_POSITIONS: &str = "Gpt.position_table";

/// The key under which a file of weights describes its model. The only one, because safetensors writes
/// several in an order that differs each time, and with it the file's SHA-256.
const MODEL: &str = "kiln_model";
/// Its key beside those of the `model` section: SHA-256 of the numbering of the tokens.
pub(crate) const TOKENS: &str = "token_ids_sha256";
/// The file beside weights that describes their model, of Hugging Face's and of an export.
const CONFIG: &str = "config.json";
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
        let naming = WeightNaming::in_file(&tensors, model);
        let config = (naming != WeightNaming::Kiln).then(|| config_beside(path));
        let config = config.flatten();
        let names = tensors.names();
        let gpt2 = match naming {
            WeightNaming::Gpt2(_) => Gpt2Config::of(config.as_ref(), model),
            _ => Gpt2Config::default(),
        };
        let fault = foreign_names(&names)
            .or_else(|| {
                // The tokens of a new table are those of the data.
                let token_sum = token_sum.filter(|_| !named.is_without("embedding"));
                unlike(&description(&tensors, config.as_ref()), model, token_sum)
            })
            .or_else(|| foreign_naming(&names, naming, model))
            .or(gpt2.fault);
        if let Some(fault) = fault {
            return Err(TrialError::Failed(format!("{}: {fault}", path.display())));
        }
        let mut pretrained = Self {
            tensors,
            model: model.clone(),
            naming,
            taken: RefCell::default(),
            without: named.without.clone(),
            met: RefCell::default(),
            notices: gpt2.notices,
        };
        let cut = pretrained.cut_positions();
        pretrained.notices.extend(cut);
        Ok(pretrained)
    }

    /// Returns the notices for the user.
    pub(crate) fn into_notices(self) -> Vec<String> {
        self.notices
    }

    /// The numbers that replace those at a path; `None` in a part that keeps its random values.
    ///
    /// Errors: as [`Self::values`].
    pub(crate) fn replacement(
        &self,
        path: &str,
        shape: &[usize],
    ) -> Result<Option<Vec<f32>>, TrialError> {
        match self.left_out_part(path) {
            Some(part) => {
                self.met.borrow_mut().insert(part.to_owned());
                Ok(None)
            }
            None => self.values(path, shape).map(Some),
        }
    }

    /// The part that keeps its random values and has the parameter at this path.
    fn left_out_part<'a>(&self, path: &'a str) -> Option<&'a str> {
        let part = self.model.part_of(without_kind(path))?;
        self.without.iter().any(|name| name == part).then_some(part)
    }

    /// The numbers of the parameter or statistic at a path, row after row.
    ///
    /// Errors: there are none, or of another shape.
    pub(crate) fn values(&self, path: &str, shape: &[usize]) -> Result<Vec<f32>, TrialError> {
        let name = self.name_of(path);
        let Ok(found) = self.tensors.shape(&name) else {
            return Err(self.unfit(path, &name, "is missing"));
        };
        let is_turned = matches!(self.naming, WeightNaming::Gpt2(form) if form.turns(&name));
        let mut expected = shape.to_vec();
        if is_turned {
            expected.reverse();
        }
        if found != expected.as_slice() && !(path == GPT_POSITIONS && is_cut(found, shape)) {
            return Err(self.unfit(
                path,
                &name,
                &format!("has shape {found:?}, and the model's parameter {expected:?}"),
            ));
        }
        let mut values = self.tensors.values(&name, found.iter().product())?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(self.tensors.unfit(&name, "has NaN or infinite values"));
        }
        values.truncate(shape.iter().product());
        if let ([rows, columns], true) = (found, is_turned) {
            values = transposed(&values, *rows, *columns);
        }
        self.taken.borrow_mut().insert(name);
        Ok(values)
    }

    /// The error of a parameter that does not fit, with what leaves its part out.
    fn unfit(&self, path: &str, name: &str, what: &str) -> TrialError {
        let otherwise = match self.model.part_of(without_kind(path)) {
            Some(part) => format!(
                ", or add `without: [{part}]` there, so that this part begins with random values"
            ),
            None => String::new(),
        };
        self.tensors.unfit_or(name, what, &otherwise)
    }

    /// The file's name of the parameter at a path.
    fn name_of(&self, path: &str) -> String {
        let theirs = match self.naming {
            WeightNaming::Kiln => None,
            WeightNaming::Pytorch => pytorch_names::of(&self.model, without_kind(path)),
            WeightNaming::Gpt2(form) => {
                pytorch_names::of(&self.model, without_kind(path)).map(|name| form.name(&name))
            }
        };
        theirs.unwrap_or_else(|| path.to_owned())
    }

    /// Says that a `gpt` has fewer positions than the file.
    fn cut_positions(&self) -> Option<String> {
        let kinds::Model::Gpt(gpt) = &self.model else {
            return None;
        };
        let name = self.name_of(GPT_POSITIONS);
        let [rows, _] = self.tensors.shape(&name).ok()? else {
            return None;
        };
        (*rows as u64 > gpt.seq_len).then(|| {
            format!(
                "initial weights: their model has {rows} positions, and `model.seq_len` is {0}; the \
                 first {0} are used",
                gpt.seq_len
            )
        })
    }

    /// Called once the model has all its values.
    ///
    /// Errors: the file holds more than was taken, or the model has no part that `without` names.
    pub(crate) fn all_taken(&self) -> Result<(), TrialError> {
        let met = self.met.borrow();
        if let Some(unknown) = self.without.iter().find(|name| !met.contains(*name)) {
            return Err(TrialError::Bad(format!(
                "`train.initial_weights.without` names `{unknown}`, and the model has no parameter \
                 under that name"
            )));
        }
        let taken = self.taken.borrow();
        let mut left: Vec<String> = self
            .tensors
            .names()
            .into_iter()
            .filter(|name| !taken.contains(name))
            .filter(|name| !self.is_needless(name) && !self.is_left_out(name))
            .collect();
        left.sort_unstable();
        match &left[..] {
            [] => Ok(()),
            [one] if one == gpt2::HEAD && matches!(self.naming, WeightNaming::Gpt2(_)) => {
                let what = "is a head of its own, and `model.tie_head` is true";
                Err(self.tensors.unfit(one, what))
            }
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

    /// Whether a tensor of the file is of a part that keeps its random values.
    fn is_left_out(&self, name: &str) -> bool {
        if self.naming == WeightNaming::Kiln {
            return self.left_out_part(name).is_some();
        }
        let parts = self.model.parts().iter();
        parts
            .flat_map(|part| part.parameters)
            .any(|path| self.left_out_part(path).is_some() && self.name_of(path) == name)
    }

    fn is_needless(&self, name: &str) -> bool {
        let is_table_again = || {
            T5_TABLE_AGAIN.contains(&name)
                && self.tensors.bits(name).ok() == self.tensors.bits(T5_TABLE).ok()
        };
        match self.naming {
            WeightNaming::Kiln => false,
            WeightNaming::Pytorch => {
                name == T5_UNUSED || name.ends_with(BATCH_COUNT) || is_table_again()
            }
            WeightNaming::Gpt2(form) => form.is_needless(name, &self.tensors),
        }
    }
}

/// Whether a table [rows, width] has more rows than are wanted.
fn is_cut(found: &[usize], wanted: &[usize]) -> bool {
    matches!((found, wanted), ([rows, width], [fewer, same]) if rows > fewer && width == same)
}

/// A matrix [rows, columns] with its axes exchanged.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for column in 0..columns {
        turned.extend((0..rows).map(|row| values[row * columns + column]));
    }
    turned
}

/// The `config.json` beside a file of weights, if there is one that can be read.
fn config_beside(path: &Path) -> Option<Value> {
    let bytes = input::read(&path.with_file_name(CONFIG), &STATE_BYTES).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The description of the model that kiln has written into the file of weights, or beside an export.
fn description(tensors: &TensorFile, config: Option<&Value>) -> Value {
    if let Some(own) = tensors.said(MODEL) {
        return serde_json::from_str(own).unwrap_or_default();
    }
    let Some(config) = config else {
        return Value::Null;
    };
    let mut about = match &config["model"] {
        Value::Object(model) => Value::Object(model.clone()),
        _ => Value::Null,
    };
    about[TOKENS] = config[TOKENS].clone();
    about
}

/// SHA-256 of the numbering of the tokens, if the file of weights has it.
pub(crate) fn token_sum_of(weights: &TensorFile) -> Option<String> {
    let about: Value = serde_json::from_str(weights.said(MODEL)?).ok()?;
    about[TOKENS].as_str().map(str::to_owned)
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
/// `about` is the description of its model.
fn unlike(about: &Value, model: &kinds::Model, token_sum: Option<&str>) -> Option<String> {
    if let Some((key, then, now)) = unseen_difference(about, model) {
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

/// Says that the names of a file are neither kiln's nor those of an export of this kind.
fn foreign_naming(names: &[String], naming: WeightNaming, model: &kinds::Model) -> Option<String> {
    let own = |name: &String| name.starts_with(|letter: char| letter.is_ascii_uppercase());
    let is_foreign = naming == WeightNaming::Kiln && !names.iter().any(own);
    let first = names.iter().min().filter(|_| is_foreign)?;
    Some(format!(
        "`{first}` is a name of PyTorch, as in an export, and no model of kind {} is in this file; \
         name the `model.safetensors` of a checkpoint, whose names are like `Gpt.token_table`, or \
         of an export of this kind in `train.initial_weights`",
        model.kind()
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
    /// The scheme of a file for this model.
    fn in_file(tensors: &TensorFile, model: &kinds::Model) -> Self {
        // Any of them shows the scheme: a file may lack the parts that are left out.
        let paths = match model {
            kinds::Model::Gpt(_) => {
                return Gpt2Form::of(tensors).map_or(Self::Kiln, Self::Gpt2);
            }
            kinds::Model::Resnet(_) => ["stem.weight", "head.weight"],
            kinds::Model::PanelLstm(_) => ["symbol_table", "layers.0.state_weight"],
            kinds::Model::Lstm(_) => ["token_table", "layers.0.state_weight"],
            kinds::Model::Seq2seq(_) => ["token_table", "encoder.final_norm"],
            _ => ["token_table", "hidden.weight"],
        };
        let mut theirs = paths
            .into_iter()
            .filter_map(|path| pytorch_names::of(model, path));
        match theirs.any(|name| tensors.shape(&name).is_ok()) {
            true => Self::Pytorch,
            false => Self::Kiln,
        }
    }
}

#[cfg(test)]
mod tests;
