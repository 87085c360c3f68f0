//! Trained parameters as the start of a training: `train.initial_weights`.

use std::{cell::RefCell, collections::BTreeSet, io, path::Path};

pub(crate) use kiln_core::pretrained::TOKENS;
use kiln_core::{
    kinds,
    pretrained::{self, MODEL, Needless, StoredTensor, WeightsFit},
    spec::InitialWeights,
};
use kiln_data::weights::{self, WeightsError};
use serde_json::Value;

use super::tensor_file::{Purpose, Said, TensorFile};
use crate::{data::Labels, error::TrialError};

/// A file of parameters, each of which has its place in the model.
#[derive(Debug)]
pub(crate) struct Pretrained {
    tensors: TensorFile,
    fit: WeightsFit,
    taken: RefCell<BTreeSet<String>>,
    /// Parts that keep their random values and have been found in the model.
    met: RefCell<BTreeSet<String>>,
}

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
        let fit = WeightsFit::new(path, tensors.header(), named, model, token_sum)
            .map_err(TrialError::Failed)?;
        Ok(Self {
            tensors,
            fit,
            taken: RefCell::default(),
            met: RefCell::default(),
        })
    }

    /// Returns the notices for the user.
    pub(crate) fn into_notices(self) -> Vec<String> {
        self.fit.notices
    }

    /// The numbers that replace those at a path; `None` in a part that keeps its random values.
    ///
    /// Errors: as [`Self::values`].
    pub(crate) fn replacement(
        &self,
        path: &str,
        shape: &[usize],
    ) -> Result<Option<Vec<f32>>, TrialError> {
        match self.fit.left_out_part(path) {
            Some(part) => {
                self.met.borrow_mut().insert(part.to_owned());
                Ok(None)
            }
            None => self.values(path, shape).map(Some),
        }
    }

    /// The numbers of the parameter or statistic at a path, row after row.
    ///
    /// Errors: there are none, or of another shape.
    pub(crate) fn values(&self, path: &str, shape: &[usize]) -> Result<Vec<f32>, TrialError> {
        let wanted: Vec<Option<u64>> = shape.iter().map(|size| Some(*size as u64)).collect();
        let StoredTensor {
            name,
            shape: found,
            is_turned,
        } = self.fit.stored(path, &wanted).map_err(TrialError::Failed)?;
        let count: u64 = found.iter().product();
        let mut values = self.tensors.values(&name, count as usize)?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(self.tensors.unfit(&name, "has NaN or infinite values"));
        }
        values.truncate(shape.iter().product());
        if let ([rows, columns], true) = (found, is_turned) {
            values = transposed(&values, *rows as usize, *columns as usize);
        }
        self.taken.borrow_mut().insert(name);
        Ok(values)
    }

    /// Called once the model has all its values.
    ///
    /// Errors: the file holds more than was taken, or the model has no part that `without` names.
    pub(crate) fn all_taken(&self) -> Result<(), TrialError> {
        let met = self.met.borrow();
        let mut without = self.fit.without.iter();
        if let Some(unknown) = without.find(|name| !met.contains(*name)) {
            return Err(TrialError::Bad(format!(
                "`train.initial_weights.without` names `{unknown}`, and the model has no parameter \
                 under that name"
            )));
        }
        self.fit
            .check_surplus(&self.taken.borrow(), &|name| self.is_needless(name))
            .map_err(TrialError::Failed)
    }

    fn is_needless(&self, name: &str) -> bool {
        let bits = |name: &str| self.tensors.bits(name).ok();
        match self.fit.needless(name) {
            Needless::Never => false,
            Needless::Always => true,
            Needless::IfEqualTo(other) => bits(name) == bits(&other),
            Needless::IfZero => {
                bits(name).is_some_and(|(_, bytes)| bytes.iter().all(|byte| *byte == 0))
            }
        }
    }
}

/// Says that the weights are of other classes or symbols than the data, if an export says which.
pub(crate) fn other_labels(named: &InitialWeights, labels: &Labels) -> Option<String> {
    if named.is_without(labels.part) {
        return None;
    }
    let keys = [labels.key, labels.part];
    pretrained::other_labels(Path::new(&named.path), keys, &labels.names)
}

/// A matrix [rows, columns] with its axes exchanged.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for column in 0..columns {
        turned.extend((0..rows).map(|row| values[row * columns + column]));
    }
    turned
}

/// SHA-256 of the numbering of the tokens, if the file of weights has it.
pub(crate) fn token_sum_of(weights: &TensorFile) -> Option<String> {
    let about: Value = serde_json::from_str(weights.said(MODEL)?).ok()?;
    about[TOKENS].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests;
