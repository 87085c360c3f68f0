//! One file per architecture. In come the catalog's shape and a seed, out come logits; losses, precision and devices are
//! others' matter.

mod given;
mod gpt;
mod init;
mod layers;
mod lstm;
mod matmul;
mod mlp;
mod stored;

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use kiln::catalog;

pub use given::{GivenValues, with_values};
pub use gpt::Gpt;
pub use init::Init;
pub use layers::{LayerNorm, Linear};
pub use lstm::Lstm;
pub use matmul::Matmul;
pub use mlp::Mlp;
pub use stored::stored;

use crate::{
    engine::{Arithmetic, LstmState},
    error::TrialError,
};

/// A model that is trained on tokens.
#[derive(Module, Debug)]
pub enum Network {
    Gpt(Gpt),
    Lstm(Lstm),
    Mlp(Mlp),
}

/// What a recurrent network remembers of the windows before; always `None` for the others.
pub type Memory = Option<LstmState>;

impl Network {
    /// Errors: the vocabulary is neither named nor known from the data, or is smaller than the data's; `matmul` is not trained.
    pub fn new(shape: &catalog::Model, data_vocabulary: Option<u64>, init: &Init) -> Result<Self, TrialError> {
        let vocabulary = vocabulary(shape, data_vocabulary)?;
        match shape {
            catalog::Model::Gpt(gpt) => Ok(Self::Gpt(Gpt::new(gpt, vocabulary, init))),
            catalog::Model::Lstm(lstm) => Ok(Self::Lstm(Lstm::new(lstm, vocabulary, init))),
            catalog::Model::Mlp(mlp) => Ok(Self::Mlp(Mlp::new(mlp, vocabulary, init))),
            catalog::Model::Matmul(_) => Err(TrialError::Bad("`model.kind` matmul has no parameters to train".to_owned())),
        }
    }

    /// tokens [batch, time]; out: logits [batch, time, vocabulary]. A recurrent network begins from `memory` and leaves there what it
    /// remembers. Random: dropout.
    pub fn forward(&self, tokens: Tensor<2, Int>, memory: &mut Memory, with: Arithmetic) -> Tensor<3> {
        match self {
            Self::Gpt(gpt) => gpt.forward(tokens, with),
            Self::Lstm(lstm) => {
                let [batch, _] = tokens.dims();
                let (logits, after) = lstm.forward(tokens, memory.take().map(|before| before.of_rows(batch)), with);
                *memory = Some(after);
                logits
            }
            Self::Mlp(mlp) => mlp.forward(tokens, with),
        }
    }

    /// Sum of the losses, in nats, over the targets [batch × time] that are not ignored; out [1]. `memory` as in
    /// [`Network::forward`].
    pub fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<1, Int>, memory: &mut Memory, with: Arithmetic) -> Tensor<1> {
        let logits = self.forward(tokens, memory, with);
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

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn built(text: &str, data_vocabulary: Option<u64>) -> (catalog::Model, u64) {
        let shape: catalog::Model = serde_yaml::from_str(text).unwrap();
        let init = Init { seed: 1, device: Device::flex().autodiff() };
        let network = Network::new(&shape, data_vocabulary, &init).unwrap();
        (shape, network.num_params() as u64)
    }

    #[test]
    fn built_models_have_the_parameters_that_the_catalog_says() {
        for text in [
            "{kind: gpt, d_model: 32, num_layers: 1, num_heads: 4, seq_len: 8}",
            "{kind: gpt, d_model: 48, num_layers: 3, num_heads: 6, seq_len: 64, tie_head: false}",
            "{kind: gpt, d_model: 128, num_layers: 4, num_heads: 4, seq_len: 64, bias: false}",
            "{kind: gpt, d_model: 24, num_layers: 2, num_heads: 2, seq_len: 16, tie_head: false, bias: false, vocabulary: 500}",
            "{kind: lstm, d_model: 8, hidden: 8, tie_head: true}",
            "{kind: lstm, d_model: 6, hidden: 10, num_layers: 1, seq_len: 4}",
            "{kind: lstm, d_model: 16, hidden: 24, num_layers: 5, vocabulary: 300}",
            "{kind: mlp}",
            "{kind: mlp, context: 3, d_model: 5, hidden: 7, seq_len: 9}",
            "{kind: mlp, context: 1, d_model: 16, hidden: 64, vocabulary: 300}",
        ] {
            let (shape, parameters) = built(text, Some(101));
            assert_eq!(Some(parameters), shape.parameters(Some(101)), "{text}");
        }
    }

    #[test]
    fn a_gpt_starts_near_the_loss_of_guessing() {
        let shape: catalog::Model = serde_yaml::from_str("{kind: gpt, d_model: 32, num_layers: 2, num_heads: 4, seq_len: 8}").unwrap();
        let device = Device::flex();
        let network = Network::new(&shape, Some(65), &Init { seed: 1, device: device.clone().autodiff() }).unwrap();
        let tokens = Tensor::from_data([[1, 2, 3, 4, 5, 6, 7, 8]], &device);
        let targets = Tensor::from_data([2, 3, 4, 5, 6, 7, 8, 9], &device);
        let with = Arithmetic::new(kiln::spec::Engine::Flex, kiln::spec::Precision::F32).unwrap();
        let loss = network.loss(tokens, targets, &mut None, with).into_data().iter::<f64>().next().unwrap() / 8.0;
        assert!((loss - 65.0_f64.ln()).abs() < 0.1, "{loss}");
    }

    #[test]
    fn no_position_sees_what_comes_after_it() {
        for text in [
            "{kind: gpt, d_model: 16, num_layers: 2, num_heads: 2, seq_len: 6}",
            "{kind: lstm, d_model: 8, hidden: 8, seq_len: 6}",
            "{kind: mlp, context: 3, seq_len: 6}",
        ] {
            let shape: catalog::Model = serde_yaml::from_str(text).unwrap();
            let device = Device::flex();
            let network = Network::new(&shape, Some(20), &Init { seed: 1, device: device.clone().autodiff() }).unwrap();
            let with = Arithmetic::new(kiln::spec::Engine::Flex, kiln::spec::Precision::F32).unwrap();
            let logits = |tokens: [i64; 6]| -> Vec<f32> {
                let tokens = Tensor::<1, Int>::from_data(tokens, &device).unsqueeze();
                network.forward(tokens, &mut None, with).into_data().try_to_vec().unwrap()
            };
            let (first, second) = (logits([1, 2, 3, 4, 5, 6]), logits([1, 2, 3, 4, 9, 9]));
            assert_eq!(first[..4 * 20], second[..4 * 20], "{text}");
            assert_ne!(first[4 * 20..], second[4 * 20..], "{text}");
        }
    }

    #[test]
    fn initial_weights_come_from_the_seed_and_projections_into_the_stream_are_smaller() {
        let shape: catalog::Model = serde_yaml::from_str("{kind: gpt, d_model: 64, num_layers: 8, num_heads: 2, seq_len: 6}").unwrap();
        let deviations = |seed| {
            let init = Init { seed, device: Device::flex().autodiff() };
            let Network::Gpt(gpt) = Network::new(&shape, Some(20), &init).unwrap() else { panic!("a gpt was asked for") };
            gpt.deviations()
        };
        let [widening, projection] = deviations(1);
        assert!((widening / 0.02 - 1.0).abs() < 0.05 && (projection / (0.02 / 4.0) - 1.0).abs() < 0.05, "{widening} {projection}");
        assert_eq!(deviations(1), deviations(1));
        assert_ne!(deviations(1), deviations(2));
    }
}
