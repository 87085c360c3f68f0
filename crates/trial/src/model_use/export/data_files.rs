//! The files that a program needs for a model's inputs and outputs: the vocabulary or the
//! tokenizer, the normalization, and the names of classes, columns and symbols. Where the data is
//! not there any more, that is left out by name.

use kiln_core::kinds::Model;
use kiln_data::{images, pairs, panel::PanelReader, text};
use serde_json::{Map, Value, json};

use super::Exporting;
use crate::{TrialError, model_use::Trained};

/// Adds the files, and the keys of `config.json`.
pub(super) fn describe_data(
    trained: &Trained<'_>,
    config: &mut Map<String, Value>,
    exporting: &mut Exporting<'_>,
) -> Result<(), TrialError> {
    match &trained.file.model {
        Model::Gpt(_) | Model::Lstm(_) | Model::Mlp(_) => describe_text(trained, exporting),
        Model::Seq2seq(_) => describe_pairs(trained, config, exporting),
        Model::Resnet(_) => describe_images(trained, config, exporting),
        Model::PanelLstm(_) => describe_panel(trained, config, exporting),
        _ => Ok(()),
    }
}

fn describe_text(trained: &Trained<'_>, exporting: &mut Exporting<'_>) -> Result<(), TrialError> {
    let (data, folder) = (&trained.file.data, trained.data_folder());
    let found = text::vocabulary(data, folder).map_err(|error| error.to_string());
    let found = found.and_then(|(vocabulary, sha256)| {
        trained
            .check_data(&sha256, "tokens are numbered by it")
            .map(|()| vocabulary)
            .map_err(|error| error.to_string())
    });
    match found {
        Ok(vocabulary) => match vocabulary.tokens() {
            Some(tokens) => exporting.json("vocabulary.json", &json!(tokens))?,
            None if vocabulary.file().is_some() => {
                let bytes = text::tokenizer_bytes(data, folder)
                    .map_err(|error| TrialError::Bad(error.to_string()))?;
                exporting.bytes("tokenizer.json", &bytes)?;
                if let Model::Gpt(_) = &trained.file.model {
                    exporting.bytes("huggingface/tokenizer.json", &bytes)?;
                }
            }
            None => exporting
                .left_out
                .push("vocabulary.json: tokens are bytes".to_owned()),
        },
        Err(why) => exporting.left_out.push(format!("vocabulary.json: {why}")),
    }
    Ok(())
}

fn describe_pairs(
    trained: &Trained<'_>,
    config: &mut Map<String, Value>,
    exporting: &mut Exporting<'_>,
) -> Result<(), TrialError> {
    match pairs::tokens(&trained.file.data, trained.data_folder()) {
        Ok((tokens, bytes)) => {
            trained.check_tokenizer(&tokens)?;
            config.insert("end_token".to_owned(), json!(tokens.end()));
            config.insert("pad_token".to_owned(), json!(tokens.pad()));
            exporting.bytes("tokenizer.json", &bytes)?;
            exporting.bytes("huggingface/tokenizer.json", &bytes)?;
        }
        Err(why) => exporting.left_out.push(format!("tokenizer.json: {why}")),
    }
    Ok(())
}

fn describe_images(
    trained: &Trained<'_>,
    config: &mut Map<String, Value>,
    exporting: &mut Exporting<'_>,
) -> Result<(), TrialError> {
    let normalization = images::normalization(&trained.file.data);
    let channels = (trained.size("stem.weight", 1)? as usize).min(3);
    let (mean, deviation) = (normalization.mean, normalization.deviation);
    config.insert(
        "normalization".to_owned(),
        json!({"mean": mean[..channels], "deviation": deviation[..channels]}),
    );
    match trained.class_names() {
        Ok(names) => drop(config.insert("classes".to_owned(), json!(names))),
        Err(why) => exporting
            .left_out
            .push(format!("the names of the classes: {why}")),
    }
    Ok(())
}

fn describe_panel(
    trained: &Trained<'_>,
    config: &mut Map<String, Value>,
    exporting: &mut Exporting<'_>,
) -> Result<(), TrialError> {
    let reader = match PanelReader::new(&trained.file.data, trained.data_folder()) {
        Ok(reader) => reader,
        Err(why) => {
            exporting
                .left_out
                .push(format!("names and moments of the columns: {why}"));
            return Ok(());
        }
    };
    trained.check_data(
        reader.sha256(),
        "its columns are normalized with the training's moments",
    )?;
    let columns: Vec<Value> = reader
        .columns()
        .iter()
        .map(|(name, mean, deviation)| json!({"name": name, "mean": mean, "deviation": deviation}))
        .collect();
    let (mean, deviation) = reader.target_moments();
    config.insert("symbols".to_owned(), json!(reader.symbols()));
    config.insert("columns".to_owned(), json!(columns));
    config.insert(
        "target".to_owned(),
        json!({"column": reader.price(), "mean": mean, "deviation": deviation}),
    );
    Ok(())
}
