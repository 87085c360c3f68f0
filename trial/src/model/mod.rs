//! One file per architecture. In come the catalog's shape and a seed, out come logits; losses, precision and devices are
//! others' matter.

mod gpt;
mod init;
mod layers;
mod matmul;
mod mlp;

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use kiln::catalog;

pub use gpt::Gpt;
pub use init::Init;
pub use layers::{LayerNorm, Linear};
pub use matmul::Matmul;
pub use mlp::Mlp;

use crate::{engine::Arithmetic, error::TrialError};

/// A model that is trained on tokens.
#[derive(Module, Debug)]
pub enum Network {
    Gpt(Gpt),
    Mlp(Mlp),
}

impl Network {
    /// Errors: the vocabulary is neither named nor known from the data, or is smaller than the data's; `matmul` is not trained.
    pub fn new(shape: &catalog::Model, data_vocabulary: Option<u64>, init: &Init) -> Result<Self, TrialError> {
        let vocabulary = vocabulary(shape, data_vocabulary)?;
        match shape {
            catalog::Model::Gpt(gpt) => Ok(Self::Gpt(Gpt::new(gpt, vocabulary, init))),
            catalog::Model::Mlp(mlp) => Ok(Self::Mlp(Mlp::new(mlp, vocabulary, init))),
            catalog::Model::Matmul(_) => Err(TrialError::Bad("`model.kind` matmul has no parameters to train".to_owned())),
        }
    }

    /// tokens [batch, time]; out: logits [batch, time, vocabulary].
    pub fn forward(&self, tokens: Tensor<2, Int>, with: Arithmetic) -> Tensor<3> {
        match self {
            Self::Gpt(gpt) => gpt.forward(tokens, with),
            Self::Mlp(mlp) => mlp.forward(tokens, with),
        }
    }

    /// Sum of the losses, in nats, over the targets [batch × time] that are not ignored; out [1].
    pub fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<1, Int>, with: Arithmetic) -> Tensor<1> {
        let logits = self.forward(tokens, with);
        let [batch, time, vocabulary] = logits.dims();
        with.cross_entropy(logits.reshape([batch * time, vocabulary]), targets)
    }
}

fn vocabulary(shape: &catalog::Model, data_vocabulary: Option<u64>) -> Result<usize, TrialError> {
    let Some(vocabulary) = shape.vocabulary(data_vocabulary) else {
        return Err(TrialError::Bad("`model.vocabulary` is not given and the data does not tell it".to_owned()));
    };
    match data_vocabulary {
        Some(data) if data > vocabulary => {
            Err(TrialError::Bad(format!("`model.vocabulary` is {vocabulary}, but the data has {data} different tokens; give at least {data}")))
        }
        _ => Ok(vocabulary as usize),
    }
}
