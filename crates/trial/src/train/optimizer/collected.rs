//! One walk over a network: its parameters, or their gradients, in the order in which the
//! optimizers keep their state.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Gradients, Tensor},
};

use super::without_gradient;
use crate::{error::TrialError, model::Network, train::tensor_file::OutgoingTensor};

/// Converts a tensor of any number of axes into the form an optimizer keeps.
pub(super) trait FromTensor {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self;
}

/// Flat, for rules written in burn's tensors.
impl FromTensor for Tensor<1> {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        tensor.flatten(0, D - 1)
    }
}

/// Its shape alone.
impl FromTensor for Vec<usize> {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        tensor.dims().to_vec()
    }
}

/// For a file.
impl FromTensor for OutgoingTensor {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        Self::new(tensor)
    }
}

/// Collected items by parameter path.
#[derive(Debug)]
pub(super) struct Collected<T> {
    pub(super) paths: Vec<String>,
    pub(super) tensors: Vec<T>,
}

impl<T: FromTensor> Collected<T> {
    pub(super) fn parameters(network: &Network) -> Self {
        let mut walk = Walk::new(None);
        network.visit(&mut walk);
        walk.found
    }

    /// Errors: a parameter got no gradient.
    pub(super) fn gradients(network: &Network, gradients: Gradients) -> Result<Self, TrialError> {
        let mut walk = Walk::new(Some(gradients));
        network.visit(&mut walk);
        match walk.missing {
            Some(path) => Err(without_gradient(&path)),
            None => Ok(walk.found),
        }
    }
}

struct Walk<T> {
    at: Vec<String>,
    found: Collected<T>,
    gradients: Option<Gradients>,
    missing: Option<String>,
}

impl<T> Walk<T> {
    fn new(gradients: Option<Gradients>) -> Self {
        Self {
            at: Vec::new(),
            found: Collected {
                paths: Vec::new(),
                tensors: Vec::new(),
            },
            gradients,
            missing: None,
        }
    }
}

impl<T: FromTensor> ModuleVisitor for Walk<T> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.at.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.at.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.at.join(".");
        let tensor = match &mut self.gradients {
            None => Some(param.val().detach().inner()),
            Some(gradients) => param.val().grad_remove(gradients),
        };
        match tensor {
            Some(tensor) => {
                self.found.tensors.push(T::of(tensor));
                self.found.paths.push(path);
            }
            None => self.missing = Some(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use kiln_core::{
        kinds::data::InputShape,
        spec::{Engine, Precision},
    };

    use super::*;
    use crate::{
        engine::Ops,
        model::{Init, Input},
    };

    #[test]
    fn gradients_stand_in_the_order_of_their_parameters_and_a_missing_one_is_named() {
        let device = Device::flex();
        let init = Init {
            seed: 1,
            device: device.clone().autodiff(),
        };
        let shape =
            serde_yaml::from_str("{kind: mlp, seq_len: 4, d_model: 4, hidden: 8, context: 2}")
                .unwrap();
        let network =
            Network::new(&shape, Some(InputShape::Text { vocabulary: 10 }), &init).unwrap();
        let parameters = Collected::<Tensor<1>>::parameters(&network);
        let ops = Ops::new(Engine::Flex, Precision::F32).unwrap();
        let tokens = || Input::Text(Tensor::from_data([[1, 2, 3, 4]], &device));
        let loss = || {
            ops.cross_entropy(
                network.forward(tokens(), &mut None, ops),
                Tensor::from_data([2, 3, 4, 5], &device),
                0.0,
            )
        };
        let gradients = Collected::<Tensor<1>>::gradients(&network, loss().backward()).unwrap();
        let shapes = |found: &Collected<Tensor<1>>| {
            found
                .paths
                .iter()
                .cloned()
                .zip(found.tensors.iter().map(|tensor| tensor.dims()))
                .collect::<Vec<_>>()
        };
        assert_eq!(shapes(&gradients), shapes(&parameters));
        assert!(!parameters.paths.is_empty());
        let of_nothing = Tensor::<1>::ones([1], &device.autodiff())
            .require_grad()
            .backward();
        let error = Collected::<Tensor<1>>::gradients(&network, of_nothing)
            .unwrap_err()
            .to_string();
        assert!(error.contains(parameters.paths.last().unwrap()), "{error}");
    }
}
