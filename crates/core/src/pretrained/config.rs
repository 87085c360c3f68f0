//! The `config.json` beside a file of weights: settings of its model that no shape shows.

use std::path::Path;

use serde_json::Value;

use crate::{input, limits::STATE_BYTES};

/// The file beside weights that describes their model, of Hugging Face's and of an export.
const CONFIG: &str = "config.json";

/// The reasons of the file against a model, and notices for the user.
#[derive(Debug, Default)]
pub(super) struct ConfigCheck {
    pub(super) fault: Option<String>,
    pub(super) notices: Vec<String>,
}

impl ConfigCheck {
    pub(super) fn of_fault(fault: String) -> Self {
        Self {
            fault: Some(fault),
            notices: Vec::new(),
        }
    }

    pub(super) fn of_notice(notice: String) -> Self {
        Self {
            fault: None,
            notices: vec![notice],
        }
    }
}

/// A key of a configuration, and the condition on its value under which kiln computes otherwise.
pub(super) type ComputationRule = (&'static str, fn(&Value) -> bool);

/// The fault of the first key by which the model of a configuration computes what kiln's of this
/// `kind` does not.
pub(super) fn other_computation(
    config: &Value,
    rules: &[ComputationRule],
    kind: &str,
) -> Option<String> {
    let (key, _) = rules
        .iter()
        .find(|(key, is_other)| is_other(&config[*key]))?;
    Some(format!(
        "`{key}` is {} in the `config.json` beside these weights, which `model.kind: {kind}` does \
         not compute; name the weights of another model in `train.initial_weights`",
        config[*key]
    ))
}

/// The fault of a number of a configuration that is not the model's; each has the name of its key.
pub(super) fn other_number(
    (their_key, theirs): (&str, u64),
    (key, own): (&str, u64),
) -> Option<String> {
    (theirs != own).then(|| {
        format!(
            "`{their_key}` is {theirs} in the `config.json` beside these weights, and `model.{key}` \
             is {own}; set it to {theirs}"
        )
    })
}

/// The `config.json` beside a file of weights, if there is one that can be read.
pub(super) fn beside(path: &Path) -> Option<Value> {
    let bytes = input::read(&path.with_file_name(CONFIG), &STATE_BYTES).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Whether `kiln export` wrote the configuration, for one of kiln's own models.
pub(super) fn is_of_export(config: &Value) -> bool {
    config.get("kiln_export").is_some()
}

/// Says that an export numbered its `classes` or `symbols` (`key`) otherwise than the data, whose names
/// are `labels` in the order of their numbers. `part` of the model has a row for each.
pub fn other_labels(weights: &Path, [key, part]: [&str; 2], labels: &[String]) -> Option<String> {
    let config = beside(weights)?;
    let theirs: Vec<&str> = config[key]
        .as_array()?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let mut pairs = theirs.into_iter().zip(labels);
    let (then, now) = pairs.find(|(then, now)| *then != now.as_str())?;
    Some(format!(
        "initial weights: the `{key}` in the `config.json` beside them are others than those of the \
         data: `{now}` begins with the values of `{then}`; add `without: [{part}]` to \
         `train.initial_weights` for random ones"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn other_classes_of_the_same_number_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let said = |labels: [&str; 2]| {
            let labels = labels.map(str::to_owned);
            other_labels(&path, ["classes", "head"], &labels)
        };
        assert_eq!(said(["cat", "dog"]), None);
        let config = "{\"kiln_export\": 1, \"classes\": [\"cat\", \"dog\"]}";
        fs::write(folder.path().join(CONFIG), config).unwrap();
        assert_eq!(said(["cat", "dog"]), None);
        let notice = said(["cat", "emu"]).unwrap();
        assert!(
            notice.contains("`emu` begins with the values of `dog`; add `without: [head]`"),
            "{notice}"
        );
        assert_eq!(other_labels(&path, ["symbols", "embedding"], &[]), None);
    }
}
