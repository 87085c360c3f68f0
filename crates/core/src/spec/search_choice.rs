//! The experiment that a search chose: the searched experiment with the chosen values and without
//! the search.

use std::path::Path;

use serde_json::Value;

use super::{ExperimentRequest, Problems, load, resolved::write_with};

/// Comment after a chosen value.
const CHOSEN: &str = "chosen";

/// First words of such a file.
pub const CHOSEN_BY_TUNE: &str = "# `kiln tune` chose this for experiment `";

/// Returns the text of an experiment file. `searched` is the resolved experiment of the search,
/// `name` its name; `values` holds dotted keys with their new values. The new experiment has a name
/// derived from the old one, so that its runs are not confused with those of the search.
///
/// # Errors
/// The file cannot be read, or the values contradict each other.
pub fn write_chosen<'a>(
    searched: &Path,
    name: &str,
    values: impl Iterator<Item = &'a (String, Value)>,
) -> Result<String, Problems> {
    let set = |key: &str, value: &Value| format!("{key}={value}");
    let renamed = [
        set("sweep.search", &Value::Null),
        set("name", &format!("{name}-{CHOSEN}").into()),
    ];
    let set: Vec<String> = renamed
        .into_iter()
        .chain(values.map(|(key, value)| set(key, value)))
        .collect();
    let loaded = load(&ExperimentRequest {
        file: searched.to_owned(),
        set,
        ..ExperimentRequest::default()
    })?;
    let is_chosen = |layer: &str| layer.starts_with("--set") && !layer.starts_with("--set name=");
    let text = write_with(&loaded, |layer| {
        if is_chosen(layer) {
            CHOSEN.to_owned()
        } else {
            String::new()
        }
    });
    Ok(format!(
        "{CHOSEN_BY_TUNE}{name}`; its trials are in recommendation.md and trials.csv of that run.\n\
         {text}"
    ))
}
