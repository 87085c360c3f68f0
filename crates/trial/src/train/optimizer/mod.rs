//! Gradients in, new parameters out: accumulation, clipping by the global norm, AdamW, SGD and
//! Adafactor. On libtorch everything is fused and in place over many parameters at once
//! (`fused.rs`); on flex it is written in burn's tensors (`plain.rs`). Both keep their state in the
//! order of the parameters' paths.

mod collected;
#[cfg(feature = "libtorch")]
pub(super) mod fused;
mod plain;
#[cfg(feature = "libtorch")]
mod scaler;

use std::sync::Arc;

use burn::tensor::{Gradients, Tensor};
use kiln_core::spec::{self, Engine, GradientNoise};
use serde::{Deserialize, Serialize};

pub(super) use plain::parameters;

use super::{
    gradient::LayerGroup,
    tensor_file::{NamedTensors, OutgoingTensor, TensorFile},
};
use crate::{error::TrialError, model::Network};

/// Accumulates gradients and updates the parameters of one network.
#[derive(Debug)]
pub(super) enum Updater {
    #[cfg(feature = "libtorch")]
    Fused(Box<fused::Fused>),
    Plain(Box<plain::Plain>),
}

/// State of an optimizer that is not a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// Updates made, those that left everything as it was included.
    pub(super) updates: u64,
    /// Updates as AdamW and Adafactor count them, without those.
    pub(super) adamw_steps: Option<f64>,
    pub(super) scaler: Option<ScalerState>,
}

/// Largest count that is exact in f32, in which the device counts AdamW's steps.
const MOST_COUNTED: f64 = 16_777_216.0;

impl Counters {
    /// Checks that the counters fit this number of steps, each of which makes one update or skips it.
    ///
    /// Errors: the counter that does not fit.
    pub(super) fn check(&self, step: u64) -> Result<(), String> {
        if self.updates != step {
            let updates = self.updates;
            return Err(format!("`updates` is {updates} after {step} steps"));
        }
        let skipped = self.scaler.map_or(0, |scaler| scaler.skipped);
        let made = step as f64 - skipped as f64;
        match self.adamw_steps {
            Some(counted) if made < MOST_COUNTED && (counted - made).abs() >= 0.5 => Err(format!(
                "`adamw_steps` is {counted} after {step} steps, {skipped} of them skipped"
            )),
            _ => Ok(()),
        }
    }
}

/// The state of gradient scaling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ScalerState {
    pub(crate) scale: f64,
    /// Since the scale last moved.
    pub(crate) good_steps: i64,
    pub(crate) skipped: i64,
}

/// The squared norms of one step's gradients, on the device. Engine flex has none.
#[derive(Debug)]
pub(super) enum StepNorms {
    #[cfg(feature = "libtorch")]
    Fused(fused::FusedNorms),
}

impl StepNorms {
    /// Waits for the device.
    pub(super) fn read(steps: Vec<Self>) -> Result<Vec<ReadNorms>, TrialError> {
        #[cfg(feature = "libtorch")]
        return fused::read_norms(steps.into_iter().map(|Self::Fused(norms)| norms));
        #[cfg(not(feature = "libtorch"))]
        Ok(steps.into_iter().map(|norms| match norms {}).collect())
    }
}

/// The squared norms of one step's gradients. Each pair is the sum over the step's backward passes, and
/// the norm of the whole gradient before clipping.
#[derive(Clone, Debug)]
pub(super) struct ReadNorms {
    pub(super) of_all: [f64; 2],
    /// The norms over each layer group; empty unless `measure.gradient_noise.layer_groups` is set.
    pub(super) of_groups: Vec<[f64; 2]>,
    pub(super) layer_groups: Arc<[LayerGroup]>,
}

/// The values of a parameter, or of its gradient, on the host, for tests and comparisons.
pub type NamedValues = (String, Vec<f32>);

impl Updater {
    pub(super) fn new(network: &Network, engine: Engine, train: &spec::Train) -> Self {
        match engine {
            #[cfg(feature = "libtorch")]
            Engine::Libtorch => Self::Fused(Box::new(fused::Fused::new(network, train))),
            _ => Self::Plain(Box::new(plain::Plain::new(
                network,
                &train.optimizer,
                train.clip_norm,
            ))),
        }
    }

    /// The optimizer on libtorch.
    ///
    /// Errors: it is the other engine's.
    #[cfg(feature = "libtorch")]
    pub(super) fn fused(&mut self) -> Result<&mut fused::Fused, TrialError> {
        match self {
            Self::Fused(fused) => Ok(fused),
            Self::Plain(_) => Err(TrialError::Failed(
                "engine flex records no steps; this is a bug in kiln; please report it".to_owned(),
            )),
        }
    }

    /// The loss to go backward from, so that [`Updater::accumulate`] gets the gradients it expects;
    /// loss and result [1].
    pub(super) fn scaled(&self, loss: Tensor<1>) -> Tensor<1> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.scaled(loss),
            Self::Plain(_) => loss,
        }
    }

    /// Updates that left everything as it was because a gradient overflowed; `None` where none can.
    /// Waits for the device.
    pub(super) fn skipped_steps(&self) -> Result<Option<u64>, TrialError> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.skipped_steps(),
            Self::Plain(_) => Ok(None),
        }
    }

    /// Addresses of each parameter's first element; empty for engine flex.
    pub(super) fn parameter_addresses(&self) -> Vec<usize> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.parameter_addresses(),
            Self::Plain(_) => Vec::new(),
        }
    }

    /// Adds the gradients of one backward pass of the loss [`Updater::scaled`].
    pub(super) fn accumulate(
        &mut self,
        network: &Network,
        gradients: Gradients,
    ) -> Result<(), TrialError> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.accumulate(network, gradients),
            Self::Plain(plain) => plain.accumulate(network, gradients),
        }
    }

    /// From now to the next update the norms of gradients are kept; engine flex keeps none.
    #[cfg_attr(not(feature = "libtorch"), expect(unused_variables))]
    pub(super) fn watch_norms(&mut self, wanted: GradientNoise) {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.watch_norms(wanted),
            Self::Plain(_) => {}
        }
    }

    /// Whether the norms of the current step's gradients are kept.
    #[cfg(feature = "libtorch")]
    pub(super) fn watches_norms(&self) -> bool {
        match self {
            Self::Fused(fused) => fused.watches_norms(),
            Self::Plain(_) => false,
        }
    }

    /// The norms of the step that ended last, if they were kept.
    pub(super) fn take_norms(&mut self) -> Option<StepNorms> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.take_norms().map(StepNorms::Fused),
            Self::Plain(_) => None,
        }
    }

    /// Makes the gradients that each replica of one network has accumulated the sum over all of
    /// them. Does not wait for the devices.
    pub(super) fn sum<'a>(replicas: impl Iterator<Item = &'a mut Self>) -> Result<(), TrialError> {
        let mut plain = Vec::new();
        #[cfg(feature = "libtorch")]
        let mut fused = Vec::new();
        for replica in replicas {
            match replica {
                #[cfg(feature = "libtorch")]
                Self::Fused(replica) => fused.push(&**replica),
                Self::Plain(replica) => plain.push(&mut **replica),
            }
        }
        plain::sum(plain);
        #[cfg(feature = "libtorch")]
        fused::sum(&fused)?;
        Ok(())
    }

    /// Clips, updates, forgets the gradients. Does not wait for the device.
    pub(super) fn update(
        &mut self,
        network: Network,
        learning_rate: f64,
    ) -> Result<Network, TrialError> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.update(learning_rate).map(|()| network),
            Self::Plain(plain) => plain.update(network, learning_rate),
        }
    }

    /// Saved state between two steps, with moments as `first.<path>` and `second.<path>`. Waits for
    /// the device.
    pub(super) fn state(&self) -> Result<(Counters, NamedTensors), TrialError> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.state(),
            Self::Plain(plain) => Ok(plain.state()),
        }
    }

    /// Goes on from such a state.
    ///
    /// Errors: it is of other parameters.
    pub(super) fn restore(
        &mut self,
        counters: &Counters,
        moments: &TensorFile,
    ) -> Result<(), TrialError> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.restore(counters, moments),
            Self::Plain(plain) => plain.restore(counters, moments),
        }
    }

    /// The gradient accumulated so far, by parameter path. Waits for the device.
    pub(super) fn gradients(&self) -> Result<Vec<NamedValues>, TrialError> {
        match self {
            #[cfg(feature = "libtorch")]
            Self::Fused(fused) => fused.gradients(),
            Self::Plain(plain) => plain.gradients(),
        }
    }
}

/// The parameters of a network, for a file.
pub(super) fn leaving_parameters(network: &Network) -> NamedTensors {
    let found = collected::Collected::<OutgoingTensor>::parameters(network);
    found.paths.into_iter().zip(found.tensors).collect()
}

const FIRST: &str = "first.";
const SECOND: &str = "second.";

fn without_gradient(path: &str) -> TrialError {
    TrialError::Failed(format!(
        "the parameter `{path}` got no gradient; is it used in the forward pass?"
    ))
}

fn without_backward() -> TrialError {
    TrialError::Failed("an update was requested before any backward pass".to_owned())
}
