//! Gradients that lie in memory otherwise than their parameters: a user's own model that multiplies
//! by a transposed weight trains as on the other engine, as the same model written without a
//! transpose, and as in PyTorch.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use kiln_core::{
    kinds::{InputShape, data::ImageShape},
    plan::{Outcome, TrialFile},
    record::StepRow,
    spec::Engine,
};
use kiln_trial::{
    Registry, TrialError,
    burn::{
        self,
        module::{Module, Param},
        tensor::Tensor,
    },
    engine::Ops,
    model::{Init, Input, OwnModel, Samples},
    train::{Learner, run},
};
use serde::Deserialize;

use crate::{
    common::{device_of, engines, rows, slack},
    parity::{images, table, weights},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {}

/// One layer whose weight is kept as [classes, pixels].
#[derive(Module, Debug)]
struct Transposed {
    weight: Param<Tensor<2>>,
}

/// The same layer with its weight kept as [pixels, classes].
#[derive(Module, Debug)]
struct Plain {
    weight: Param<Tensor<2>>,
}

fn sizes(samples: Samples) -> (usize, usize) {
    let InputShape::Images(shape) = samples.shape else {
        unreachable!("the trials below read images")
    };
    (
        (shape.channels * shape.height * shape.width) as usize,
        shape.classes as usize,
    )
}

fn transposed(_fields: Fields, samples: Samples, init: &Init) -> Result<Transposed, TrialError> {
    let (pixels, classes) = sizes(samples);
    Ok(Transposed {
        weight: init.uniform("weight", [classes, pixels], 0.05),
    })
}

fn plain(_fields: Fields, samples: Samples, init: &Init) -> Result<Plain, TrialError> {
    let (pixels, classes) = sizes(samples);
    // The same values: those of the other model, turned.
    let weight = init.uniform::<2>("weight", [classes, pixels], 0.05).val();
    Ok(Plain {
        weight: Param::from_tensor(Tensor::from_data(
            weight.transpose().into_data(),
            &init.device,
        )),
    })
}

fn flat(input: Input) -> Tensor<2> {
    let Input::Images(images) = input else {
        unreachable!("the trials below read images")
    };
    images.flatten(1, 3) // [batch, pixels]
}

impl OwnModel for Transposed {
    fn forward(&self, input: Input, _ops: Ops) -> Tensor<2> {
        flat(input).matmul(self.weight.val().transpose())
    }
}

impl OwnModel for Plain {
    fn forward(&self, input: Input, _ops: Ops) -> Tensor<2> {
        flat(input).matmul(self.weight.val())
    }
}

pub(crate) fn registry() -> Registry {
    Registry::new()
        .with("transposed", transposed)
        .with("plain", plain)
}

/// A trial of one of these models.
pub(crate) fn trial_of(engine: &str, model: &str, optimizer: &str, folder: &Path) -> TrialFile {
    let text = format!(
        "{{kiln_trial: 1, trial: 0123456789, attempt: 1, model: {{kind: custom, name: {model}, \
         reads: images}}, data: {{kind: generated-images, images: 64, valid_images: 8, image_size: \
         8, classes: 5}}, train: {{batch_size: 8, grad_accumulation: 2, steps: 12, cpu_threads: 1, \
         clip_norm: 1.0, optimizer: {optimizer}}}, measure: {{}}, engine: {engine}, device: {}, \
         folder: {}, run_anchor_nanoseconds: 0}}",
        device_of(engine),
        folder.display()
    );
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The loss of each step.
fn losses(engine: &str, model: &str, optimizer: &str) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let file = trial_of(engine, model, optimizer, folder.path());
    run(&file, &registry(), &mut Vec::new(), &AtomicBool::new(false));
    let result: kiln_core::record::TrialResult =
        serde_json::from_str(&fs::read_to_string(folder.path().join("trial.json")).unwrap())
            .unwrap();
    assert_eq!(result.outcome, Outcome::Completed, "{:?}", result.reason);
    rows::<StepRow>(&folder.path().join("steps.csv"))
        .iter()
        .map(|row| row.loss.unwrap())
        .collect()
}

/// Loss below which losses are compared absolutely.
const LEAST_LOSS: f64 = 1e-2;

#[test]
fn a_weight_that_is_used_transposed_trains_as_one_that_is_not() {
    let optimizers = [
        "{kind: adamw, learning_rate: 1.0e-2, weight_decay: 0.1}",
        "{kind: sgd, learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01}",
        "{kind: adafactor, learning_rate: 1.0e-2}",
    ];
    for optimizer in optimizers {
        let expected = losses("flex", "plain", optimizer);
        let least = expected.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            least < 0.9 * expected[0],
            "{optimizer}: something is learned: {expected:?}"
        );
        for engine in engines() {
            for model in ["transposed", "plain"] {
                let found = losses(engine.name(), model, optimizer);
                let worst = found
                    .iter()
                    .zip(&expected)
                    .map(|(found, expected)| (found / expected - 1.0).abs())
                    .fold(0.0, f64::max);
                // Sums in another order; an update of the wrong elements is off by a tenth and
                // more.
                assert!(
                    found.len() == 12 && worst < 1e-4 * slack(),
                    "{optimizer}, {model} on {engine:?}: {worst}: {found:?}, expected {expected:?}"
                );
            }
        }
    }
}

/// With the values that tests/reference/reference.py gives it.
fn as_in_pytorch(_fields: Fields, samples: Samples, init: &Init) -> Result<Transposed, TrialError> {
    let (pixels, classes) = sizes(samples);
    let values =
        burn::tensor::TensorData::new(weights("weight", &[classes, pixels]), [classes, pixels]);
    Ok(Transposed {
        weight: Param::from_tensor(Tensor::from_data(values, &init.device)),
    })
}

fn file(engine: Engine, optimizer: &str) -> TrialFile {
    let text = format!(
        "{{kiln_trial: 1, trial: t0123456789, attempt: 1, model: {{kind: custom, name: transposed, \
         reads: images}}, data: {{kind: generated-images, image_size: 16}}, train: {{batch_size: \
         8, steps: 20, cpu_threads: 1, optimizer: {optimizer}}}, measure: {{}}, engine: {}, \
         device: {}, folder: /nowhere, run_anchor_nanoseconds: 0}}",
        engine.name(),
        device_of(engine.name())
    );
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_weight_that_is_used_transposed_trains_as_in_pytorch() {
    let shape = InputShape::Images(ImageShape {
        channels: 3,
        height: 16,
        width: 16,
        classes: 10,
    });
    let optimizers = [
        (
            "transposed",
            "{kind: adamw, learning_rate: 1.0e-2, weight_decay: 0.01}",
        ),
        (
            "transposed-sgd",
            "{kind: sgd, learning_rate: 0.1, momentum: 0.9, weight_decay: 5.0e-4}",
        ),
    ];
    for (name, optimizer) in optimizers {
        let expected: Vec<f64> = table(&format!("{name}-steps.csv"))
            .iter()
            .map(|row| row[1].parse().unwrap())
            .collect();
        assert!(
            expected.len() == 20 && expected[19] < 0.9 * expected[0],
            "{name}: something is learned: {expected:?}"
        );
        for engine in engines() {
            let file = file(*engine, optimizer);
            let mut learner = Learner::build_own(
                &file,
                Some(shape),
                &Registry::new().with("transposed", as_in_pytorch),
            )
            .unwrap();
            for step in 1..=20 {
                let host = images(step);
                let batch = learner.to_device(&host).unwrap();
                learner
                    .micro_step(batch, step, 0, host.counted_targets())
                    .unwrap();
                learner
                    .update(file.train.optimizer.learning_rate())
                    .unwrap();
            }
            let found = learner.take_losses().unwrap();
            let worst = found
                .iter()
                .zip(&expected)
                // What is learned by heart has losses near 0, of which processors round differently.
                .map(|(found, expected)| (found - expected).abs() / expected.max(LEAST_LOSS))
                .fold(0.0, f64::max);
            assert!(
                found.len() == 20 && worst < 1e-4 * slack(),
                "{name} on {engine:?}: {worst}: {found:?}, PyTorch {expected:?}"
            );
        }
    }
}
