//! Classes of images, and forecasts of series: each file goes through the same decoding, cropping
//! and normalization as the validation data of the training.

use std::{io::Write, path::Path};

use kiln_core::{
    input,
    kinds::{
        Data, InputShape, Model,
        data::{ImageShape, PanelTarget},
    },
    limits::IMAGE_BYTES,
    record::model_use::{ClassShare, Forecast, PredictTask, UseAnswer},
};
use kiln_data::{
    images::{self, Normalization, normalization},
    panel::PanelReader,
};

use super::{
    Answers, Trained,
    missing_data::{NORMALIZES, of_training},
};
use crate::{
    TrialError,
    data::{
        BatchPixels, BatchSamples, HostBatch, ImageSamples, PanelSamples, TargetScale,
        image_file::{center, planes},
        pixels,
    },
    train::Learner,
};

pub(super) fn predict<W: Write>(
    trained: &Trained<'_>,
    task: &PredictTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    match &trained.file.model {
        Model::Resnet(_) => classify(trained, task, answers),
        Model::PanelLstm(_) => forecast(trained, task, answers),
        Model::Custom(_) if images::describe(&trained.file.data).is_ok() => {
            classify(trained, task, answers)
        }
        other => Err(TrialError::Bad(format!(
            "a trial with `model.kind` {} and `data.kind` {} predicts no classes or returns of \
             files; use `kiln sample` for text",
            other.kind(),
            trained.file.data.kind()
        ))),
    }
}

fn classify<W: Write>(
    trained: &Trained<'_>,
    task: &PredictTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let data = &trained.file.data;
    let classes = trained.class_names()?;
    let InputShape::Images(shape) = trained.input()? else {
        return Err(TrialError::Bad("the model does not read images".to_owned()));
    };
    // All files are read before the first answer, so that a bad one is found at once.
    let read = task
        .files
        .iter()
        .map(|(path, named)| image(data, shape, path, named))
        .collect::<Result<Vec<_>, _>>()?;
    let mut learner = trained.learner(answers)?;
    for ((_, file), pixels) in task.files.iter().zip(read) {
        let (outputs, [_, count]) = learner.outputs(&image_batch(pixels, shape, data))?;
        if classes.as_ref().is_some_and(|names| names.len() != count) {
            return Err(TrialError::Bad(format!(
                "the data has {} classes, and the model was trained with {count}; restore the \
                 folders of the training",
                classes.map_or(0, |names| names.len())
            )));
        }
        answers.say(&UseAnswer::Classes {
            file: file.clone(),
            classes: most_likely(&outputs, classes.as_deref(), task.top)?,
        })?;
    }
    Ok(())
}

fn image_batch(pixels: Vec<u8>, shape: ImageShape, data: &Data) -> HostBatch {
    let normalization: Normalization = normalization(data);
    HostBatch {
        rows: 1,
        samples: BatchSamples::Images(ImageSamples {
            pixels: BatchPixels::Bytes {
                values: pixels,
                normalization,
            },
            labels: vec![0],
            shape,
        }),
        step_targets: None,
    }
}

/// The pixels of a file as [channels, height, width]: images of a folder are cropped and resized as
/// in validation; other data has one size, and so must the file.
pub(super) fn image(
    data: &Data,
    shape: ImageShape,
    path: &Path,
    named: &str,
) -> Result<Vec<u8>, TrialError> {
    let bad = |reason: String| TrialError::Bad(format!("{named}: {reason}"));
    let bytes = input::read(path, &IMAGE_BYTES).map_err(|error| bad(error.to_string()))?;
    let found = pixels::decode(&bytes).map_err(bad)?;
    if matches!(data, Data::ImageFolder(_)) {
        return center(&found, shape.width as u32).map_err(bad);
    }
    if (u64::from(found.width), u64::from(found.height)) != (shape.width, shape.height) {
        return Err(bad(format!(
            "it has {} × {} pixels, and the model was trained on images of {} × {} (`data.kind` \
             {}); resize it first",
            found.width,
            found.height,
            shape.width,
            shape.height,
            data.kind()
        )));
    }
    let is_gray = found
        .rgb
        .as_chunks::<3>()
        .0
        .iter()
        .all(|[red, green, blue]| red == green && green == blue);
    let planes = planes(&found.rgb);
    match shape.channels {
        1 if !is_gray => Err(bad(format!(
            "it has colors, and the model was trained on gray images (`data.kind` {}); convert it \
             first",
            data.kind()
        ))),
        1 => Ok(planes[..planes.len() / 3].to_vec()),
        3 => Ok(planes),
        channels => Err(bad(format!(
            "the model was trained on images of {channels} channels, and a PNG or JPEG file has 1 \
             or 3"
        ))),
    }
}

/// The `top` most likely classes of these outputs, the most likely first; of equal ones the lower
/// number.
fn most_likely(
    outputs: &[f64],
    names: Option<&[String]>,
    top: u64,
) -> Result<Vec<ClassShare>, TrialError> {
    let highest = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = outputs.iter().map(|output| (output - highest).exp()).sum();
    if !sum.is_finite() {
        let text = "the model's outputs are NaN or infinite; is its training diverged?";
        return Err(TrialError::Failed(text.to_owned()));
    }
    let mut order: Vec<usize> = (0..outputs.len()).collect();
    order.sort_by(|one, other| outputs[*other].total_cmp(&outputs[*one]));
    let share = |class: usize| ClassShare {
        class: class as u64,
        name: names.and_then(|names| names.get(class).cloned()),
        probability: (outputs[class] - highest).exp() / sum,
    };
    let top = usize::try_from(top).unwrap_or(usize::MAX);
    Ok(order.into_iter().take(top).map(share).collect())
}

fn forecast<W: Write>(
    trained: &Trained<'_>,
    task: &PredictTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let data = &trained.file.data;
    let reader = PanelReader::new(data, trained.data_folder())
        .map_err(|error| of_training(NORMALIZES, &error))?;
    trained.check_data(
        reader.sha256(),
        "its columns are normalized with the training's moments",
    )?;
    let seq_len = trained.file.model.seq_len().unwrap_or_default() as usize;
    let windows = task
        .files
        .iter()
        .map(|(path, _)| reader.window(path, seq_len))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TrialError::Bad(error.to_string()))?;
    let target = data
        .panel_split()
        .map(|split| split.target)
        .unwrap_or_default();
    let (mean, deviation) = reader.target_moments();
    let mut learner: Learner = trained.learner(answers)?;
    for ((_, file), window) in task.files.iter().zip(windows) {
        let batch = HostBatch {
            rows: 1,
            samples: BatchSamples::Panel(PanelSamples {
                features: window.features,
                symbols: vec![window.index as i64],
                targets: vec![0.0],
                seq_len,
                shape: reader.shape(),
                scale: TargetScale::Directions,
            }),
            step_targets: None,
        };
        let (outputs, _) = learner.outputs(&batch)?;
        let output = outputs
            .first()
            .copied()
            .filter(|output| output.is_finite())
            .ok_or_else(|| {
                TrialError::Failed(format!("{file}: the model's output is NaN or infinite"))
            })?;
        let log_return = (target == PanelTarget::Return).then_some(output * deviation + mean);
        answers.say(&UseAnswer::Forecast(Forecast {
            file: file.clone(),
            symbol: window.symbol,
            after: window.date,
            price: reader.price().to_owned(),
            last_price: window.price,
            log_return,
            next_price: log_return.map(|log_return| window.price * log_return.exp()),
            rise_probability: (target == PanelTarget::Direction)
                .then(|| 1.0 / (1.0 + (-output).exp())),
        }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_classes_come_first_with_their_shares() {
        let names: Vec<String> = ["cat", "dog", "owl"].map(str::to_owned).to_vec();
        let outputs = [0.5_f64.ln(), 0.125_f64.ln(), 0.375_f64.ln()];
        let found = most_likely(&outputs, Some(&names), 2).unwrap();
        let shown: Vec<(u64, &str)> = found
            .iter()
            .map(|share| (share.class, share.name.as_deref().unwrap()))
            .collect();
        assert_eq!(shown, [(0, "cat"), (2, "owl")]);
        assert!((found[1].probability - 0.375).abs() < 1e-12);
        assert_eq!(most_likely(&[7.0, 7.0], None, 9).unwrap()[0].class, 0);
        assert!(most_likely(&[f64::NAN, 0.0], None, 1).is_err());
    }
}
