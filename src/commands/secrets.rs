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

/// Ends of the names of variables that say where a secret lies, or how much of something is allowed.
const OTHER_ENDS: [&str; 5] = ["_FILE", "_PATH", "_DIR", "_LENGTH", "_LIMIT"];

/// Names of a tokenizer's special tokens, before `_TOKEN`.
const SPECIAL_TOKENS: [&str; 7] = ["EOS", "BOS", "PAD", "UNK", "MASK", "SEP", "CLS"];

/// Shortest value that may be a secret of a service.
const LEAST_CHARACTERS: usize = 8;

/// A warning for each, with its place in a file; none for `--set`, whose place shows the value.
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

/// The keys of the variables with such names and values.
fn keys(experiment: &Experiment) -> Vec<String> {
    let command = experiment.model.command();
    let command = command.map(|command| ("model".to_owned(), &command.environment));
    let engines = experiment.run.engines.0.iter();
    let engines =
        engines.map(|(name, engine)| (format!("run.engines.{name}"), &engine.environment));
    let mut found = Vec::new();
    for (above, variables) in command.into_iter().chain(engines) {
        for (name, value) in variables {
            if is_secret(name) && may_be_secret(value) {
                found.push(format!("{above}.environment.{name}"));
            }
        }
    }
    found
}

/// Whether a value may be a secret: no number, no switch, no path, no placeholder and no special
/// token.
fn may_be_secret(value: &Value) -> bool {
    let Some(text) = value.as_str() else {
        return false;
    };
    let is_wrapped = |from: char, to: char| text.starts_with(from) && text.ends_with(to);
    let has_placeholder = text
        .split_once('{')
        .is_some_and(|(_, after)| after.contains('}'));
    // `true` and `false` are too short.
    text.chars().count() >= LEAST_CHARACTERS
        && text.parse::<f64>().is_err()
        && !text.starts_with(['/', '~', '.'])
        && !is_wrapped('<', '>')
        && !is_wrapped('[', ']')
        && !has_placeholder
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_other = OTHER_ENDS.iter().any(|end| name.ends_with(end));
    let is_special = name.strip_suffix("_TOKEN").is_some_and(|before| {
        let last = before.rsplit('_').next();
        last.is_some_and(|last| SPECIAL_TOKENS.contains(&last))
    });
    // `TOKENIZERS_PARALLELISM` and `MAX_TOKENS` are none.
    let is_token = name.split('_').any(|word| word.ends_with("TOKEN"));
    let has_part = PARTS.iter().any(|part| name.contains(part));
    !is_other && !is_special && (is_token || has_part)
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
            "TOKEN_LIMIT",
            "PASSWORD_LENGTH",
            "EOS_TOKEN",
            "MODEL_PAD_TOKEN",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn values_that_are_no_secret_are_known() {
        for value in ["hf_abcdefgh", "hunter2hunter2", "12345678-abc", "{abcdefgh"] {
            assert!(may_be_secret(&value.into()), "{value}");
        }
        for value in [
            "",
            "hunter2",
            "true",
            "123456789",
            "<|endoftext|>",
            "[PADDING]",
            "/run/secrets/token",
            "~/.token-file",
            "./token-file",
            "{data.path}/token",
        ] {
            assert!(!may_be_secret(&value.into()), "{value}");
        }
        assert!(!may_be_secret(&123_456_789.into()));
    }
}
