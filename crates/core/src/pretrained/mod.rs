//! Whether a file of trained parameters (`train.initial_weights`) fits a model, from its header and
//! the `config.json` beside it: the runner asks before the first trial, the trial when it reads the
//! values.

mod config;
mod gpt2;
mod header;
pub mod names;
mod shapes;
mod t5;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

pub use config::other_labels;
pub use gpt2::HEAD as GPT2_HEAD;
pub use header::{WeightsHeader, have_same_bits};
pub use shapes::{TensorShape, tensors};

use self::{config::ConfigCheck, gpt2::Gpt2Form};
use crate::{
    kinds::{InputShape, Model},
    spec::InitialWeights,
};

/// Added to the variance in layer norms. Source: PyTorch.
pub const LAYER_NORM_EPSILON: f64 = 1e-5;

/// Added to a mean square before its root. Source: T5.
pub const RMS_NORM_EPSILON: f64 = 1e-6;

/// Number formats in which parameters are read.
const FORMATS: [&str; 3] = ["F32", "F16", "BF16"];

/// PyTorch's count of the batches that a norm has seen; kiln's norms have none.
const BATCH_COUNT: &str = ".num_batches_tracked";

/// The table of positions of a `gpt`.
const GPT_POSITIONS: &str = "Gpt.position_table";

/// The key under which a file of weights describes its model. The only one, because safetensors writes
/// several in an order that differs each time, and with it the file's SHA-256.
pub const MODEL: &str = "kiln_model";
/// Its key beside those of the `model` section: SHA-256 of the numbering of the tokens.
pub const TOKENS: &str = "token_ids_sha256";
/// Keys of `model` that no parameter's shape shows.
const UNSEEN: [&str; 2] = ["num_heads", "relative_max_distance"];

/// A file of parameters beside the model that is to begin with them.
#[derive(Clone, Debug)]
pub struct WeightsFit {
    /// For messages.
    file: String,
    header: WeightsHeader,
    model: Model,
    naming: WeightNaming,
    /// Parts of the model that keep their random values.
    pub without: Vec<String>,
    /// For the user.
    pub notices: Vec<String>,
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

/// The tensor of a file that a parameter or statistic begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor<'a> {
    pub name: String,
    /// As it is in the file; it may have more rows than are used.
    pub shape: &'a [u64],
    /// Whether the file has the weight as [in, out], and the model as [out, in].
    pub is_turned: bool,
}

/// Whether a model computes the same without a tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needless {
    Never,
    Always,
    /// If it has the bits of the tensor of this name.
    IfEqualTo(String),
    /// If all its bits are 0.
    IfZero,
}

impl WeightsFit {
    /// `token_sum` is the SHA-256 of the numbering of the data's tokens, if it is known.
    ///
    /// # Errors
    /// The model of the file computes differently, or its tokens are numbered otherwise.
    pub fn new(
        path: &Path,
        header: WeightsHeader,
        named: &InitialWeights,
        model: &Model,
        token_sum: Option<&str>,
    ) -> Result<Self, String> {
        let naming = WeightNaming::in_file(&header, model);
        let config = (naming != WeightNaming::Kiln).then(|| config::beside(path));
        let config = config.flatten();
        let names: Vec<&String> = header.shapes.keys().collect();
        let has_new_table = named.is_without("embedding");
        let checked = match (naming, model) {
            (WeightNaming::Gpt2(_), _) => gpt2::check(config.as_ref(), model),
            (WeightNaming::Pytorch, Model::Seq2seq(seq2seq)) => {
                t5::check(config.as_ref(), seq2seq, has_new_table)
            }
            _ => ConfigCheck::default(),
        };
        // The tokens of a new table are those of the data.
        let token_sum = token_sum.filter(|_| !has_new_table);
        let fault = t5::foreign_names(&names)
            .or_else(|| unlike(&description(&header, config.as_ref()), model, token_sum))
            .or_else(|| foreign_naming(&names, naming, model))
            .or(checked.fault);
        if let Some(fault) = fault {
            return Err(format!("{}: {fault}", path.display()));
        }
        let mut fit = Self {
            file: path.display().to_string(),
            header,
            model: model.clone(),
            naming,
            without: named.without.clone(),
            notices: checked.notices,
        };
        let cut = fit.cut_positions();
        fit.notices.extend(cut);
        Ok(fit)
    }

    /// Compares the tensors of the file with those of the model, as far as the data's `input` is known.
    ///
    /// # Errors
    /// The first tensor that does not fit.
    pub fn check(&self, input: Option<InputShape>) -> Result<(), String> {
        self.check_copies(input, &|_, _| true)
    }

    /// As [`Self::check`]; `is_same` says whether two tensors of the file have the same bits.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_copies(
        &self,
        input: Option<InputShape>,
        is_same: &dyn Fn(&str, &str) -> bool,
    ) -> Result<(), String> {
        let Some(tensors) = tensors(&self.model, input) else {
            return Ok(());
        };
        let mut taken = BTreeSet::new();
        for (path, shape) in &tensors {
            if self.left_out_part(path).is_none() {
                let helps = |part: &str| self.fits_without(part, input);
                taken.insert(self.stored_or(path, shape, &helps)?.name);
            }
        }
        self.check_surplus(&taken, &|name| match self.needless(name) {
            Needless::Never => false,
            Needless::IfEqualTo(other) => is_same(name, &other),
            Needless::Always | Needless::IfZero => true,
        })
    }

    /// Compares the tensors of the file with those that were `taken`; `is_needless` says whether the
    /// model computes the same without another one, from [`Self::needless`].
    ///
    /// # Errors
    /// There are tensors without a place in the model.
    pub fn check_surplus(
        &self,
        taken: &BTreeSet<String>,
        is_needless: &dyn Fn(&str) -> bool,
    ) -> Result<(), String> {
        let is_surplus = |name: &&String| {
            !taken.contains(*name) && !self.is_left_out(name) && !is_needless(name)
        };
        let names = self.header.shapes.keys();
        self.surplus(&names.filter(is_surplus).collect::<Vec<_>>())
    }

    /// The tensor of the parameter or statistic at a path.
    ///
    /// # Errors
    /// There is none, or one of another shape.
    pub fn stored(&self, path: &str, shape: &[Option<u64>]) -> Result<StoredTensor<'_>, String> {
        self.stored_or(path, shape, &|_| true)
    }

    /// As [`Self::stored`]; `helps` says whether all else fits if a part is left out.
    fn stored_or(
        &self,
        path: &str,
        shape: &[Option<u64>],
        helps: &dyn Fn(&str) -> bool,
    ) -> Result<StoredTensor<'_>, String> {
        let name = self.name_of(path);
        let Some(found) = self.header.shapes.get(&name) else {
            return Err(self.unfit(path, &name, "is missing", helps));
        };
        let is_turned = matches!(self.naming, WeightNaming::Gpt2(form) if form.turns(&name));
        let mut expected = shape.to_vec();
        if is_turned {
            expected.reverse();
        }
        let fits = is_of_shape(found, &expected) || path == GPT_POSITIONS && is_cut(found, shape);
        if !fits {
            let what = format!(
                "has shape {found:?}, and the model's parameter {}",
                shape_text(&expected)
            );
            return Err(self.unfit(path, &name, &what, helps));
        }
        self.check_format(&name)?;
        Ok(StoredTensor {
            name,
            shape: found,
            is_turned,
        })
    }

    fn check_format(&self, name: &str) -> Result<(), String> {
        let format = self.header.formats.get(name).map(String::as_str);
        match format.filter(|format| !FORMATS.contains(format)) {
            Some(other) => Err(format!(
                "the initial weights have another number format: in {}, `{name}` is {other}; save \
                 the file's tensors in f32, f16 or bf16",
                self.file
            )),
            None => Ok(()),
        }
    }

    /// The part that keeps its random values and has the parameter at this path.
    pub fn left_out_part<'a>(&self, path: &'a str) -> Option<&'a str> {
        let part = self.model.part_of(without_kind(path))?;
        self.without.iter().any(|name| name == part).then_some(part)
    }

    /// Whether a tensor of the file is of a part that keeps its random values.
    fn is_left_out(&self, name: &str) -> bool {
        if self.naming == WeightNaming::Kiln {
            return self.left_out_part(name).is_some();
        }
        let is_t5 = matches!(self.model, Model::Seq2seq(_));
        if is_t5 && t5::is_table_again(name) && self.left_out_part("token_table").is_some() {
            return true;
        }
        let parts = self.model.parts().iter();
        parts
            .flat_map(|part| part.parameters)
            .any(|path| self.left_out_part(path).is_some() && self.name_of(path) == name)
    }

    /// Whether a tensor without a place in the model may be passed over.
    pub fn needless(&self, name: &str) -> Needless {
        match self.naming {
            WeightNaming::Kiln => Needless::Never,
            WeightNaming::Pytorch if name.ends_with(BATCH_COUNT) => Needless::Always,
            WeightNaming::Pytorch => t5::needless(name),
            WeightNaming::Gpt2(form) => form.needless(name),
        }
    }

    /// The error of tensors without a place in the model, if there are any.
    fn surplus(&self, left: &[&String]) -> Result<(), String> {
        let (name, what) = match left {
            [] => return Ok(()),
            [one] if *one == GPT2_HEAD && matches!(self.naming, WeightNaming::Gpt2(_)) => (
                one,
                "is a head of its own, and `model.tie_head` is true".to_owned(),
            ),
            [one] if t5::is_head(one) && matches!(self.model, Model::Seq2seq(_)) => {
                let what = "is a head of its own, which `model.kind: seq2seq` does not have";
                return Err(self.unfit("token_table", one, what, &|_| true));
            }
            [one] => (one, "is not a parameter of the model".to_owned()),
            [first, others @ ..] => (
                first,
                format!(
                    "and {} others are not parameters of the model",
                    others.len()
                ),
            ),
        };
        Err(unfit(&self.file, name, &what, ""))
    }

    /// The file's name of the parameter at a path.
    pub fn name_of(&self, path: &str) -> String {
        let theirs = match self.naming {
            WeightNaming::Kiln => None,
            WeightNaming::Pytorch => names::of(&self.model, without_kind(path)),
            WeightNaming::Gpt2(form) => {
                names::of(&self.model, without_kind(path)).map(|name| form.name(&name))
            }
        };
        theirs.unwrap_or_else(|| path.to_owned())
    }

    /// The error of a parameter that does not fit, with what leaves its part out, if that helps.
    fn unfit(&self, path: &str, name: &str, what: &str, helps: &dyn Fn(&str) -> bool) -> String {
        let part = self.model.part_of(without_kind(path));
        let otherwise = match part.filter(|part| helps(part)) {
            Some(part) => format!(
                ", or add `without: [{part}]` there, so that this part begins with random values"
            ),
            None => String::new(),
        };
        unfit(&self.file, name, what, &otherwise)
    }

    /// Whether all that is known fits if a part is left out too.
    fn fits_without(&self, part: &str, input: Option<InputShape>) -> bool {
        let mut fewer = self.clone();
        fewer.without.push(part.to_owned());
        fewer.check(input).is_ok()
    }

    /// Says that a `gpt` has fewer positions than the file.
    fn cut_positions(&self) -> Option<String> {
        let Model::Gpt(gpt) = &self.model else {
            return None;
        };
        let shape = self.header.shapes.get(&self.name_of(GPT_POSITIONS))?;
        let [rows, _] = shape[..] else {
            return None;
        };
        (rows > gpt.seq_len).then(|| {
            format!(
                "initial weights: their model has {rows} positions, and `model.seq_len` is {0}; the \
                 first {0} are used",
                gpt.seq_len
            )
        })
    }
}

/// The error of a tensor that does not fit; `otherwise` ends the remedy.
pub fn unfit(file: &str, name: &str, what: &str, otherwise: &str) -> String {
    format!(
        "the initial weights do not fit the model: in {file}, `{name}` {what}; set `model` as it was \
         when they were trained, or name another file in `train.initial_weights`{otherwise}"
    )
}

/// The path of a tensor within a built-in model: the name of a parameter begins with the kind of model,
/// that of a running statistic does not.
pub fn without_kind(name: &str) -> &str {
    match name.split_once('.') {
        Some((kind, within)) if kind.starts_with(char::is_uppercase) => within,
        _ => name,
    }
}

fn is_of_shape(found: &[u64], expected: &[Option<u64>]) -> bool {
    let mut pairs = found.iter().zip(expected);
    found.len() == expected.len()
        && pairs.all(|(found, expected)| expected.is_none_or(|size| size == *found))
}

/// Whether a table [rows, width] has more rows than are wanted.
fn is_cut(found: &[u64], wanted: &[Option<u64>]) -> bool {
    matches!(
        (found, wanted),
        ([rows, width], [Some(fewer), Some(same)]) if rows > fewer && width == same
    )
}

/// `[3, ?]`: a size that the data decide may be unknown.
fn shape_text(shape: &[Option<u64>]) -> String {
    let sizes = shape
        .iter()
        .map(|size| size.map_or_else(|| "?".to_owned(), |size| size.to_string()));
    format!("[{}]", sizes.collect::<Vec<_>>().join(", "))
}

/// The description of the model that kiln has written into the file of weights, or beside an export.
fn description(header: &WeightsHeader, config: Option<&Value>) -> Value {
    if let Some(own) = header.metadata.get(MODEL) {
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

/// Says that the model of a file computes differently, or that its tokens are numbered otherwise.
/// `about` is the description of its model.
fn unlike(about: &Value, model: &Model, token_sum: Option<&str>) -> Option<String> {
    let is_custom = matches!(model, Model::Custom(_));
    let kind = about["kind"]
        .as_str()
        .filter(|kind| *kind != model.kind() && !is_custom);
    if let Some(kind) = kind {
        return Some(format!(
            "the file holds a model of kind `{kind}`, and `model.kind` is `{}`; set `model` as it \
             was when these weights were trained, or name another file in `train.initial_weights`",
            model.kind()
        ));
    }
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
fn foreign_naming(names: &[&String], naming: WeightNaming, model: &Model) -> Option<String> {
    let own = |name: &&String| name.starts_with(|letter: char| letter.is_ascii_uppercase());
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
fn unseen_difference(then: &Value, now: &Model) -> Option<(&'static str, Value, Value)> {
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
    fn in_file(header: &WeightsHeader, model: &Model) -> Self {
        // Any of them shows the scheme: a file may lack the parts that are left out.
        let paths = match model {
            Model::Gpt(_) => {
                return Gpt2Form::of(header).map_or(Self::Kiln, Self::Gpt2);
            }
            Model::Resnet(_) => ["stem.weight", "head.weight"],
            Model::PanelLstm(_) => ["symbol_table", "layers.0.state_weight"],
            Model::Lstm(_) => ["token_table", "layers.0.state_weight"],
            Model::Seq2seq(_) => ["token_table", "encoder.final_norm"],
            _ => ["token_table", "hidden.weight"],
        };
        let mut theirs = paths.into_iter().filter_map(|path| names::of(model, path));
        match theirs.any(|name| header.shapes.contains_key(&name)) {
            true => Self::Pytorch,
            false => Self::Kiln,
        }
    }
}
