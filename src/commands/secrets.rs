//! Warns of variables of an experiment that are probably secrets: a run writes their values into
//! files that people commit.

use kiln_core::spec::{Experiment, Loaded};
use serde_json::Value;

use super::mistake::Mistake;

/// Parts of the names of variables that hold a secret.
const PARTS: [&str; 7] = [
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "API_KEY",
    "APIKEY",
    "ACCESS_KEY",
    "CREDENTIAL",
];

/// Ends of the names of variables that say where a secret lies.
const PLACES: [&str; 3] = ["_FILE", "_PATH", "_DIR"];

/// A sentence on each, with its place in a file: that of `--set` would be the value.
pub(super) fn mistakes(loaded: &Loaded) -> Vec<Mistake> {
    let mistake = |key: String| {
        let what = format!(
            "`{key}` looks like a secret, and its value is written into experiment.yaml (with `--set` \
             also into run.json), which people commit; leave it out: a program inherits the variables \
             of kiln's environment"
        );
        let place = loaded.locate(&key);
        Mistake {
            place: place.filter(|place| place.position.is_some()),
            what,
            is_secret: true,
        }
    };
    keys(&loaded.experiment).into_iter().map(mistake).collect()
}

/// The keys of the variables with such names and a text.
fn keys(experiment: &Experiment) -> Vec<String> {
    let command = experiment.model.command();
    let command = command.map(|command| ("model".to_owned(), &command.environment));
    let engines = experiment.run.engines.0.iter();
    let engines =
        engines.map(|(name, engine)| (format!("run.engines.{name}"), &engine.environment));
    let mut found = Vec::new();
    for (above, variables) in command.into_iter().chain(engines) {
        for (name, value) in variables {
            if is_secret(name) && is_text(value) {
                found.push(format!("{above}.environment.{name}"));
            }
        }
    }
    found
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_place = PLACES.iter().any(|end| name.ends_with(end));
    // `TOKENIZERS_PARALLELISM` and `MAX_TOKENS` are none.
    let is_token = name.split('_').any(|word| word.ends_with("TOKEN"));
    !is_place && (is_token || PARTS.iter().any(|part| name.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_and_those_like_them_are_not() {
        for name in [
            "API_TOKEN",
            "HF_TOKEN",
            "token",
            "AWS_SECRET_ACCESS_KEY",
            "PGPASSWORD",
            "WANDB_API_KEY",
            "OPENAI_APIKEY",
            "CREDENTIALS",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "TOKENIZERS_PARALLELISM",
            "MAX_TOKENS",
            "HF_TOKEN_PATH",
            "PASSWORD_FILE",
            "KEY",
            "PASS",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
