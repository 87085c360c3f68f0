//! Given values instead of the initial weights, for comparisons with other programs.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Tensor, TensorData},
};

use super::Network;

/// The values of a parameter, row after row, by its path (`Gpt.blocks.0.mlp.widening.weight`) and
/// shape.
pub type GivenValues<'a> = dyn Fn(&str, &[usize]) -> Vec<f32> + 'a;

/// The same, or `None` where the parameter keeps its values.
pub type ReplacedValues<'a> = dyn Fn(&str, &[usize]) -> Option<Vec<f32>> + 'a;

/// The network with the parameters' values replaced; panics if there are more or fewer than a shape
/// has.
pub fn with_values(network: Network, values: &ReplacedValues<'_>) -> Network {
    network.map(&mut Replacing {
        at: Vec::new(),
        values,
    })
}

struct Replacing<'a> {
    at: Vec<String>,
    values: &'a ReplacedValues<'a>,
}

impl ModuleMapper for Replacing<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.at.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.at.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.at.join(".");
        let shape = param.dims();
        let Some(values) = (self.values)(&path, &shape) else {
            return param;
        };
        param.map(|tensor| {
            let given = TensorData::new(values, shape);
            Tensor::from_data(given, &tensor.device()).require_grad()
        })
    }
}
