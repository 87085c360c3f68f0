//! The experiment that a search chose: the searched experiment with the chosen values and without
//! the search.

use std::path::Path;

use serde_json::Value;

use super::{ExperimentRequest, FixedPoint, Problems, write_point};

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
    let experiment = ExperimentRequest {
        file: searched.to_owned(),
        ..ExperimentRequest::default()
    };
    let point = FixedPoint {
        name: CHOSEN.to_owned(),
        swept: Vec::new(),
        derived: Vec::new(),
        values: values.cloned().collect(),
    };
    let text = write_point(experiment, &format!("{name}-{CHOSEN}"), point)?;
    Ok(format!(
        "{CHOSEN_BY_TUNE}{name}`; its trials are in recommendation.md and trials.csv of that run.\n\
         {text}"
    ))
}
