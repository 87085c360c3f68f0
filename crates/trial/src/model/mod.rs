//! One file per architecture, and one line of registration here. Input: the catalog's shape and a
//! seed. Output: logits. Losses, precision and devices are handled elsewhere.

mod architecture;
mod erased;
mod gpt;
mod init;
mod initial_values;
mod keys_values;
mod layers;
mod lstm;
mod mlp;
mod panel_lstm;
mod resnet;
mod seq2seq;
mod storage;
mod user_model;

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use kiln_core::kinds::{self, data::PairShape};
pub(crate) use kiln_core::pretrained::without_kind;

pub use kiln_core::kinds::{
    InputShape,
    data::{ImageShape, PanelShape},
};

pub use erased::BoxedModel;
pub use gpt::{Gpt, GptCache};
pub use init::Init;
pub use initial_values::{GivenValues, ReplacedValues, with_values};
pub use layers::{LayerNorm, Linear};
pub use lstm::Lstm;
pub use mlp::Mlp;
pub use panel_lstm::PanelLstm;
pub use resnet::Resnet;
pub use seq2seq::{Cache, Pairs, Seq2seq};
pub use storage::stored;
pub use user_model::{OwnModel, Registry, Samples};

use self::architecture::{Architecture, Facts};
use crate::{
    engine::{LstmState, Ops, RunningStats},
    error::TrialError,
};

/// Input of a network.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one per batch, and it is moved once"
)]
pub enum Input {
    /// Tokens [batch, time].
    Text(Tensor<2, Int>),
    /// [batch, channels, height, width].
    Images(Tensor<4>),
    /// Features [batch, time, features] and symbols [batch].
    Panel {
        features: Tensor<3>,
        symbols: Tensor<1, Int>,
    },
    Pairs(Pairs),
}

/// State that a recurrent network carries over from earlier windows; always `None` for other
/// networks.
pub type RecurrentMemory = Option<LstmState>;

/// State of a language model after the tokens that it has read, so that they need not be read
/// again. Empty at the start.
#[derive(Clone, Debug, Default)]
pub struct TextMemory {
    /// All tokens so far, for a recurrent model.
    pub recurrent: RecurrentMemory,
    /// Keys and values of the tokens in the context, for a gpt.
    pub attention: GptCache,
    /// The network without its gradients, from the first tokens on: to make it takes as long as a
    /// token of a small model.
    pub(crate) network: Option<Box<Network>>,
}

/// Declares kiln's own models: the enum of networks, and what is done with any of them.
macro_rules! networks {
    ($($model:ident),+ $(,)?) => {
        /// A model that is trained.
        #[derive(Module, Debug)]
        #[allow(clippy::large_enum_variant, reason = "there is one per process")]
        pub enum Network {
            $($model($model),)+
            Own(BoxedModel),
        }

        impl Network {
            fn build(
                registry: &Registry,
                facts: Facts<'_>,
                init: &Init,
            ) -> Result<Self, TrialError> {
                match facts.model {
                    $(kinds::Model::$model(settings) => {
                        <$model as Architecture>::build(settings, facts, init).map(Self::$model)
                    })+
                    kinds::Model::Custom(custom) => {
                        registry.build(custom, facts.input()?, init).map(Self::Own)
                    }
                    kinds::Model::Matmul(_) | kinds::Model::Command(_) => Err(TrialError::Bad(format!(
                        "`model.kind` {} has no parameters to train",
                        facts.model.kind()
                    ))),
                }
            }

            /// Outputs [targets, outputs]: for text, batch × time logits over the vocabulary. A
            /// recurrent language model begins from `memory` and leaves there what it remembers.
            /// Random: dropout.
            pub fn forward(
                &self,
                input: Input,
                memory: &mut RecurrentMemory,
                ops: Ops,
            ) -> Tensor<2> {
                match self {
                    $(Self::$model(model) => Architecture::outputs(model, input, memory, ops),)+
                    Self::Own(model) => model.forward(input, ops),
                }
            }

            /// Running statistics of norms, by name: a network's state besides its parameters.
            pub(crate) fn running_stats(&self) -> Vec<(String, RunningStats)> {
                match self {
                    $(Self::$model(model) => Architecture::running_stats(model),)+
                    Self::Own(model) => model.running_stats(),
                }
            }
        }
    };
}

networks!(Gpt, Lstm, PanelLstm, Resnet, Seq2seq, Mlp);

impl Network {
    /// Errors: what the model must know of its data is unknown or does not fit; `matmul` is not
    /// trained; `custom` is not known here.
    pub fn new(
        shape: &kinds::Model,
        input: Option<InputShape>,
        init: &Init,
    ) -> Result<Self, TrialError> {
        Self::with(&Registry::new(), shape, input, init)
    }

    /// The same with users' own models.
    pub(crate) fn with(
        registry: &Registry,
        model: &kinds::Model,
        input: Option<InputShape>,
        init: &Init,
    ) -> Result<Self, TrialError> {
        if let Some(fault) = model.contradictions().into_iter().next() {
            return Err(TrialError::Bad(fault.message));
        }
        Self::build(registry, Facts { model, input }, init)
    }
}

/// Whether outputs [targets, outputs] are what a loss can be made of: a row for each of `targets`,
/// and a column for each class or token of the data, or the one of a panel. A user's own model may
/// have any.
///
/// Errors: they are not.
pub(crate) fn check_outputs(
    outputs: &Tensor<2>,
    targets: usize,
    input: InputShape,
) -> Result<(), TrialError> {
    let [rows, columns] = outputs.dims();
    let (least, most, what) = match input {
        InputShape::Text { vocabulary } | InputShape::Pairs(PairShape { vocabulary, .. }) => (
            vocabulary as usize,
            usize::MAX,
            "one column per token or more",
        ),
        InputShape::Images(shape) => (
            shape.classes as usize,
            usize::MAX,
            "one column per class or more",
        ),
        InputShape::Panel(_) => (1, 1, "one column"),
    };
    if rows == targets && (least..=most).contains(&columns) {
        return Ok(());
    }
    Err(TrialError::Bad(format!(
        "the model's output has shape [{rows}, {columns}]; the data needs [{targets}, {least}]: \
         one row per target, {what}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use kiln_core::kinds::data::PairCounts;

    fn built(text: &str, input: InputShape) -> (kinds::Model, u64) {
        let shape: kinds::Model = serde_yaml::from_str(text).unwrap();
        let init = Init {
            seed: 1,
            device: Device::flex().autodiff(),
        };
        let network = Network::new(&shape, Some(input), &init).unwrap();
        (shape, network.num_params() as u64)
    }

    fn of_text(vocabulary: u64) -> InputShape {
        InputShape::Text { vocabulary }
    }

    #[test]
    fn built_models_have_the_parameters_that_the_catalog_says() {
        for text in [
            "{kind: gpt, d_model: 32, num_layers: 1, num_heads: 4, seq_len: 8}",
            "{kind: gpt, d_model: 48, num_layers: 3, num_heads: 6, seq_len: 64, tie_head: false}",
            "{kind: gpt, d_model: 128, num_layers: 4, num_heads: 4, seq_len: 64, bias: false}",
            "{kind: gpt, d_model: 24, num_layers: 2, num_heads: 2, seq_len: 16, tie_head: false, \
             bias: false, vocabulary: 500}",
            "{kind: lstm, d_model: 8, hidden: 8, tie_head: true}",
            "{kind: lstm, d_model: 6, hidden: 10, num_layers: 1, seq_len: 4}",
            "{kind: lstm, d_model: 16, hidden: 24, num_layers: 5, vocabulary: 300}",
            "{kind: mlp}",
            "{kind: mlp, context: 3, d_model: 5, hidden: 7, seq_len: 9}",
            "{kind: mlp, context: 1, d_model: 16, hidden: 64, vocabulary: 300}",
        ] {
            let (shape, parameters) = built(text, of_text(101));
            assert_eq!(
                Some(parameters),
                shape.parameters(Some(of_text(101))),
                "{text}"
            );
        }
        let images = InputShape::Images(ImageShape {
            channels: 1,
            height: 28,
            width: 28,
            classes: 7,
        });
        for text in [
            "{kind: resnet, depth: 18, width: 4, stem: small}",
            "{kind: resnet, depth: 34, width: 3}",
            "{kind: resnet, depth: 50, width: 2}",
            "{kind: resnet, depth: 152, width: 2}",
        ] {
            let (shape, parameters) = built(text, images);
            assert_eq!(Some(parameters), shape.parameters(Some(images)), "{text}");
        }
        let panel = InputShape::Panel(PanelShape {
            features: 6,
            symbols: 9,
        });
        for text in [
            "{kind: panel-lstm}",
            "{kind: panel-lstm, symbol_width: 3, hidden: 5, num_layers: 1}",
            "{kind: panel-lstm, hidden: 12, num_layers: 5}",
        ] {
            let (shape, parameters) = built(text, panel);
            assert_eq!(Some(parameters), shape.parameters(Some(panel)), "{text}");
        }
    }

    /// That the catalog says what is published at full size is tested there.
    #[test]
    fn a_built_seq2seq_has_the_parameters_that_the_catalog_says() {
        let pairs = InputShape::Pairs(PairShape {
            vocabulary: 101,
            train: PairCounts::default(),
        });
        for text in [
            "{kind: seq2seq, d_model: 16, d_kv: 4, d_ff: 24, num_heads: 2}",
            "{kind: seq2seq, d_model: 12, d_kv: 8, d_ff: 20, num_heads: 3, encoder_layers: 3, \
             decoder_layers: 1, relative_buckets: 8, vocabulary: 120}",
            "{kind: seq2seq, size: chatlm, d_model: 12, d_kv: 2, d_ff: 48}",
        ] {
            let (shape, parameters) = built(text, pairs);
            assert_eq!(Some(parameters), shape.parameters(Some(pairs)), "{text}");
        }
    }

    #[test]
    fn a_resnet_has_its_published_parameters_at_full_size() {
        let imagenet = InputShape::Images(ImageShape {
            channels: 3,
            height: 224,
            width: 224,
            classes: 1000,
        });
        assert_eq!(built("{kind: resnet, depth: 18}", imagenet).1, 11_689_512);
    }

    #[test]
    fn a_gpt_starts_near_the_loss_of_guessing() {
        let shape: kinds::Model = serde_yaml::from_str(
            "{kind: gpt, d_model: 32, num_layers: 2, num_heads: 4, seq_len: 8}",
        )
        .unwrap();
        let device = Device::flex();
        let network = Network::new(
            &shape,
            Some(of_text(65)),
            &Init {
                seed: 1,
                device: device.clone().autodiff(),
            },
        )
        .unwrap();
        let tokens = Tensor::from_data([[1, 2, 3, 4, 5, 6, 7, 8]], &device);
        let targets = Tensor::from_data([2, 3, 4, 5, 6, 7, 8, 9], &device);
        let ops = Ops::new(
            kiln_core::spec::Engine::Flex,
            kiln_core::spec::Precision::F32,
        )
        .unwrap();
        let loss = ops
            .cross_entropy(
                network.forward(Input::Text(tokens), &mut None, ops),
                targets,
                0.0,
            )
            .into_data()
            .iter::<f64>()
            .next()
            .unwrap()
            / 8.0;
        assert!((loss - 65.0_f64.ln()).abs() < 0.1, "{loss}");
    }

    #[test]
    fn no_position_sees_what_comes_after_it() {
        for text in [
            "{kind: gpt, d_model: 16, num_layers: 2, num_heads: 2, seq_len: 6}",
            "{kind: lstm, d_model: 8, hidden: 8, seq_len: 6}",
            "{kind: mlp, context: 3, seq_len: 6}",
        ] {
            let shape: kinds::Model = serde_yaml::from_str(text).unwrap();
            let device = Device::flex();
            let network = Network::new(
                &shape,
                Some(of_text(20)),
                &Init {
                    seed: 1,
                    device: device.clone().autodiff(),
                },
            )
            .unwrap();
            let ops = Ops::new(
                kiln_core::spec::Engine::Flex,
                kiln_core::spec::Precision::F32,
            )
            .unwrap();
            let logits = |tokens: [i64; 6]| -> Vec<f32> {
                let tokens = Tensor::<1, Int>::from_data(tokens, &device).unsqueeze();
                network
                    .forward(Input::Text(tokens), &mut None, ops)
                    .into_data()
                    .try_to_vec()
                    .unwrap()
            };
            let (first, second) = (logits([1, 2, 3, 4, 5, 6]), logits([1, 2, 3, 4, 9, 9]));
            assert_eq!(first[..4 * 20], second[..4 * 20], "{text}");
            assert_ne!(first[4 * 20..], second[4 * 20..], "{text}");
        }
    }

    #[test]
    fn initial_weights_come_from_the_seed_and_projections_into_the_stream_are_smaller() {
        let shape: kinds::Model = serde_yaml::from_str(
            "{kind: gpt, d_model: 64, num_layers: 8, num_heads: 2, seq_len: 6}",
        )
        .unwrap();
        let deviations = |seed| {
            let init = Init {
                seed,
                device: Device::flex().autodiff(),
            };
            let Network::Gpt(gpt) = Network::new(&shape, Some(of_text(20)), &init).unwrap() else {
                panic!("a gpt was asked for")
            };
            gpt.deviations()
        };
        let [widening, projection] = deviations(1);
        assert!(
            (widening / 0.02 - 1.0).abs() < 0.05 && (projection / (0.02 / 4.0) - 1.0).abs() < 0.05,
            "{widening} {projection}"
        );
        assert_eq!(deviations(1), deviations(1));
        assert_ne!(deviations(1), deviations(2));
    }
}
