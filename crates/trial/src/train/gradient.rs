//! Norms of the gradient of a measured step (`measure.gradient_noise`).

use std::{iter, sync::Arc};

use kiln_core::statistics::GradientNorms;

/// The gradient of a measured step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredGradient {
    pub step: u64,
    pub norms: GradientNorms,
    /// The norms over each layer group; empty unless `measure.gradient_noise.layer_groups` is set.
    pub of_groups: Vec<GradientNorms>,
    pub layer_groups: Arc<[LayerGroup]>,
}

/// Parameters whose names begin alike, as those of a block do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// That beginning, such as `blocks.3` or `token_table`.
    pub name: String,
    /// Number of their values.
    pub parameters: u64,
}

impl MeasuredGradient {
    fn all_norms(&mut self) -> impl Iterator<Item = &mut GradientNorms> {
        iter::once(&mut self.norms).chain(&mut self.of_groups)
    }

    /// Counts the micro-batches of another replica of the same step.
    pub(super) fn add(&mut self, mut other: Self) {
        for (sum, term) in self.all_norms().zip(other.all_norms()) {
            sum.micro += term.micro;
            sum.weights += term.weights;
        }
    }
}
