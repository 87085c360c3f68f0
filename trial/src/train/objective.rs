//! What outputs are held against: the loss that is learned from, and the scores of an evaluation.

use burn::tensor::{Int, Tensor, activation};

use crate::engine::Arithmetic;

/// What a batch's outputs should have been.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// Tokens [rows × time]; ignored ones count nowhere.
    Classes(Tensor<1, Int>),
    /// Labels of images [rows].
    Labels(Tensor<1, Int>),
    /// Returns [rows], less `mean`, over `deviation`.
    Returns { normalized: Tensor<1>, mean: f64, deviation: f64 },
    /// 1 [rows] where the return is above 0, else 0.
    Directions(Tensor<1>),
}

/// What an evaluation found, over all its targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Scores {
    /// Mean loss.
    pub(crate) loss: f64,
    /// Shares of images whose label has the highest output, and one of the five highest.
    pub(crate) top1: Option<f64>,
    pub(crate) top5: Option<f64>,
    /// Of log returns.
    pub(crate) mean_absolute_error: Option<f64>,
    /// Share of returns whose direction was right.
    pub(crate) hit_rate: Option<f64>,
}

impl Target {
    /// Sum of the losses of outputs [targets, outputs], in f32; out [1]. `smoothing` is the share of a class's target that all classes
    /// share; it is not asked for where there are no classes.
    pub(super) fn loss(&self, outputs: Tensor<2>, smoothing: f64, with: Arithmetic) -> Tensor<1> {
        match self {
            Self::Classes(classes) | Self::Labels(classes) => with.cross_entropy(outputs, classes.clone(), smoothing),
            Self::Returns { normalized, .. } => (column(outputs) - normalized.clone()).square().sum(),
            Self::Directions(directions) => {
                // −log σ(z) where the direction is 1, −log σ(−z) where it is 0.
                let signs = directions.clone().mul_scalar(2.0).sub_scalar(1.0);
                activation::log_sigmoid(column(outputs) * signs).sum().neg()
            }
        }
    }

    /// Sums over the batch, on the device, [1 + scores]: the loss without smoothing, then what [`Target::scores`] reads.
    pub(super) fn sums(&self, outputs: Tensor<2>, with: Arithmetic) -> Tensor<1> {
        let loss = self.loss(outputs.clone(), 0.0, with);
        let scores = match self {
            Self::Classes(_) => return loss,
            Self::Labels(labels) => {
                let own = outputs.clone().gather(1, labels.clone().unsqueeze_dim(1)); // [rows, 1]
                let above: Tensor<1, Int> = outputs.greater(own).int().sum_dim(1).squeeze_dim(1); // [rows]
                vec![above.clone().lower_elem(1).float().sum(), above.lower_elem(5).float().sum()]
            }
            Self::Returns { normalized, mean, deviation } => {
                let [found, is] = [column(outputs), normalized.clone()].map(|values| values.mul_scalar(*deviation).add_scalar(*mean));
                let hits = found.clone().greater_elem(0.0).equal(is.clone().greater_elem(0.0)).float().sum();
                vec![(found - is).abs().sum(), hits]
            }
            Self::Directions(directions) => vec![column(outputs).greater_elem(0.0).equal(directions.clone().greater_elem(0.5)).float().sum()],
        };
        Tensor::cat(std::iter::once(loss).chain(scores).collect(), 0)
    }

    /// The scores behind such sums over `count` targets; `classes` is how many outputs there are per target.
    pub(super) fn scores(&self, sums: &[f64], count: u64, classes: usize) -> Scores {
        let mean = |at: usize| Some(sums.get(at)? / count as f64);
        let none = Scores { loss: mean(0).unwrap_or(f64::NAN), ..Scores::default() };
        match self {
            Self::Classes(_) => none,
            Self::Labels(_) => Scores { top1: mean(1), top5: mean(2).filter(|_| classes > 5), ..none },
            Self::Returns { .. } => Scores { mean_absolute_error: mean(1), hit_rate: mean(2), ..none },
            Self::Directions(_) => Scores { hit_rate: mean(1), ..none },
        }
    }
}

/// [rows, 1] as [rows], in f32.
fn column(outputs: Tensor<2>) -> Tensor<1> {
    outputs.squeeze_dim::<1>(1).cast(burn::tensor::DType::F32)
}
