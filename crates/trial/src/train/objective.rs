//! Comparison of outputs with targets: the training loss, and the scores of an evaluation.

use burn::tensor::{Int, Tensor, activation};

use super::text_scores::TextScores;
use crate::engine::Ops;

/// The correct outputs of a batch.
#[derive(Clone, Debug)]
pub(super) enum BatchTarget {
    /// Tokens [rows × time]; ignored ones count nowhere.
    Classes(Tensor<1, Int>),
    /// Labels of images [rows].
    Labels(Tensor<1, Int>),
    /// Returns [rows], less `mean`, over `deviation`.
    Returns {
        normalized: Tensor<1>,
        mean: f64,
        deviation: f64,
    },
    /// 1 [rows] where the return is above 0, else 0.
    Directions(Tensor<1>),
}

/// Results of an evaluation, over all its targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Scores {
    /// Mean loss.
    pub(crate) loss: f64,
    /// Targets that were evaluated, without ignored ones.
    pub(crate) targets: u64,
    /// Shares of images whose label has the highest output, and one of the five highest.
    pub(crate) top1: Option<f64>,
    pub(crate) top5: Option<f64>,
    /// Mean absolute error of log returns.
    pub(crate) mean_absolute_error: Option<f64>,
    /// Share of returns whose direction was right.
    pub(crate) hit_rate: Option<f64>,
    /// BLEU of generated responses against the data's.
    pub(crate) bleu4: Option<f64>,
    pub(crate) chrf: Option<f64>,
}

impl Scores {
    /// With the scores of generated responses.
    pub(crate) fn with_responses(self, texts: &TextScores) -> Self {
        Self {
            bleu4: Some(texts.bleu() / 100.0),
            chrf: Some(texts.chrf() / 100.0),
            ..self
        }
    }
}

impl BatchTarget {
    /// Targets, ignored ones included.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Classes(classes) | Self::Labels(classes) => classes.dims()[0],
            Self::Returns {
                normalized: targets,
                ..
            }
            | Self::Directions(targets) => targets.dims()[0],
        }
    }

    /// Sum of the losses of outputs [targets, outputs], in f32; out [1]. `smoothing` is the share
    /// of a class's target that all classes share; it is not used without classes.
    pub(super) fn loss(&self, outputs: Tensor<2>, smoothing: f64, ops: Ops) -> Tensor<1> {
        match self {
            Self::Classes(classes) | Self::Labels(classes) => {
                ops.cross_entropy(outputs, classes.clone(), smoothing)
            }
            Self::Returns { normalized, .. } => ops.squared_error(outputs, normalized.clone()),
            Self::Directions(directions) => {
                // −log σ(z) where the direction is 1, −log σ(−z) where it is 0.
                let signs = directions.clone().mul_scalar(2.0).sub_scalar(1.0);
                activation::log_sigmoid(column(outputs) * signs).sum().neg()
            }
        }
    }

    /// Sums over the batch, on the device, [1 + scores]: the loss without smoothing, then what
    /// [`BatchTarget::scores`] reads.
    pub(super) fn sums(&self, outputs: Tensor<2>, ops: Ops) -> Tensor<1> {
        let loss = self.loss(outputs.clone(), 0.0, ops);
        let scores = match self {
            Self::Classes(_) => return loss,
            Self::Labels(labels) => {
                let own = outputs.clone().gather(1, labels.clone().unsqueeze_dim(1)); // [rows, 1]
                // Of equal outputs the one of the lower class comes first, as in a prediction. In bf16
                // many are equal.
                let classes =
                    Tensor::<1, Int>::arange(0..outputs.dims()[1] as i64, &outputs.device());
                let is_lower = classes
                    .unsqueeze_dim::<2>(0)
                    .lower(labels.clone().unsqueeze_dim(1)); // [rows, classes]
                let is_first = outputs.clone().greater(own.clone());
                let is_first = is_first.bool_or(outputs.equal(own).bool_and(is_lower));
                let above: Tensor<1, Int> = is_first.int().sum_dim(1).squeeze_dim(1); // [rows]
                vec![
                    above.clone().lower_elem(1).float().sum(),
                    above.lower_elem(5).float().sum(),
                ]
            }
            Self::Returns {
                normalized,
                mean,
                deviation,
            } => {
                let found = column(outputs);
                // A return of zero, as `normalized` has it: multiplied out again it could become a
                // rise.
                let none = (-mean / deviation) as f32;
                let hits = found
                    .clone()
                    .greater_elem(none)
                    .equal(normalized.clone().greater_elem(none))
                    .float()
                    .sum();
                vec![
                    (found - normalized.clone())
                        .abs()
                        .sum()
                        .mul_scalar(*deviation),
                    hits,
                ]
            }
            Self::Directions(directions) => vec![
                column(outputs)
                    .greater_elem(0.0)
                    .equal(directions.clone().greater_elem(0.5))
                    .float()
                    .sum(),
            ],
        };
        Tensor::cat(std::iter::once(loss).chain(scores).collect(), 0)
    }

    /// The scores behind such sums over `count` targets; `classes` is how many outputs there are
    /// per target.
    pub(super) fn scores(&self, sums: &[f64], count: u64, classes: usize) -> Scores {
        let mean = |at: usize| Some(sums.get(at)? / count as f64);
        let none = Scores {
            loss: mean(0).unwrap_or(f64::NAN),
            targets: count,
            ..Scores::default()
        };
        match self {
            Self::Classes(_) => none,
            Self::Labels(_) => Scores {
                top1: mean(1),
                top5: mean(2).filter(|_| classes > 5),
                ..none
            },
            Self::Returns { .. } => Scores {
                mean_absolute_error: mean(1),
                hit_rate: mean(2),
                ..none
            },
            Self::Directions(_) => Scores {
                hit_rate: mean(1),
                ..none
            },
        }
    }
}

/// [rows, 1] as [rows], in f32.
fn column(outputs: Tensor<2>) -> Tensor<1> {
    outputs.squeeze_dim::<1>(1).cast(burn::tensor::DType::F32)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use kiln_core::spec::{Engine, Precision};

    use super::*;

    fn outputs<const C: usize>(rows: Vec<[f32; C]>) -> Tensor<2> {
        Tensor::from_data(
            burn::tensor::TensorData::new(rows.concat(), [rows.len(), C]),
            &Device::flex(),
        )
    }

    fn scores(target: &BatchTarget, outputs: Tensor<2>) -> Scores {
        let ops = Ops::new(Engine::Flex, Precision::F32).unwrap().evaluating();
        let [rows, classes] = outputs.dims();
        let sums: Vec<f64> = target
            .sums(outputs, ops)
            .into_data()
            .iter::<f64>()
            .collect();
        target.scores(&sums, rows as u64, classes)
    }

    #[test]
    fn of_equal_outputs_the_one_of_the_lower_class_comes_first() {
        let target = BatchTarget::Labels(Tensor::from_data([0, 1, 5, 6], &Device::flex()));
        let found = scores(&target, outputs(vec![[0.5; 7]; 4]));
        assert_eq!((found.top1, found.top5), (Some(0.25), Some(0.5)));
    }

    #[test]
    fn a_label_is_right_with_the_highest_output_and_nearly_with_one_of_the_five_highest() {
        let target = BatchTarget::Labels(Tensor::from_data([0, 1, 6, 6], &Device::flex()));
        let falling = [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
        let found = scores(
            &target,
            outputs(vec![
                falling,
                falling,
                falling,
                [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0],
            ]),
        );
        assert_eq!(
            (found.top1, found.top5, found.hit_rate),
            (Some(0.5), Some(0.75), None)
        );
        let few = BatchTarget::Labels(Tensor::from_data([0, 1], &Device::flex()));
        assert_eq!(
            scores(&few, outputs(vec![[1.0, 0.0], [1.0, 0.0]])).top5,
            None,
            "five of two classes are all of them"
        );
    }

    #[test]
    fn a_return_of_exactly_0_is_no_rise_whatever_it_was_normalized_with() {
        for number in 1..2000_u32 {
            let (mean, deviation) = (
                f64::from(number) * 1.37e-7,
                0.01 + f64::from(number) * 3.1e-6,
            );
            let normalize = |value: f64| ((value - mean) / deviation) as f32;
            let targets: [f32; 3] = [0.0, 0.02, -0.02].map(normalize);
            let target = BatchTarget::Returns {
                normalized: Tensor::from_data(targets, &Device::flex()),
                mean,
                deviation,
            };
            let found = scores(
                &target,
                outputs(vec![
                    [normalize(-0.01)],
                    [normalize(0.01)],
                    [normalize(-0.01)],
                ]),
            );
            assert_eq!(found.hit_rate, Some(1.0), "{mean} {deviation}");
            assert!(
                (found.mean_absolute_error.unwrap() - 0.01).abs() < 1e-6,
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_direction_costs_the_logarithm_of_its_probability() {
        let target = BatchTarget::Directions(Tensor::from_data([1.0, 0.0, 0.0], &Device::flex()));
        let found = scores(&target, outputs(vec![[2.0], [-1.0], [3.0]]));
        let cost = |margin: f64| (1.0 + (-margin).exp()).ln();
        assert!(
            (found.loss - (cost(2.0) + cost(1.0) + cost(-3.0)) / 3.0).abs() < 1e-6,
            "{found:?}"
        );
        assert_eq!((found.hit_rate, found.top1), (Some(2.0 / 3.0), None));
    }
}
