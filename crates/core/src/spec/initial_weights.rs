//! `train.initial_weights`: trained parameters to start a training from. `kiln-trial` documents how
//! they are read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::expand_home;
use crate::{input, limits::WEIGHTS_BYTES};

/// Parameters from a safetensors file, instead of random ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitialWeights {
    /// The file: `model.safetensors` of a checkpoint or an export, or in Hugging Face's format a T5
    /// for `seq2seq`, a GPT-2 for `gpt`, or torchvision's for `resnet`. Relative to the directory
    /// where kiln was started.
    pub path: String,
    /// SHA-256 of the file, as `sha256sum` prints it. It is part of the trial id, the path is not.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
    /// Parts that begin with random values, as without this file: `head` of a `resnet` or a
    /// `panel-lstm`; `embedding`, which is all that has a row per token or symbol, of the other kinds
    /// and of a `panel-lstm`; fields of a user's own model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

impl InitialWeights {
    /// Whether a part of the model begins with random values.
    pub fn is_without(&self, part: &str) -> bool {
        self.without.iter().any(|name| name == part)
    }
}

/// The key of the sum.
pub(super) const SHA256_KEY: &str = "train.initial_weights.sha256";

/// The rest of the message about a missing sum: the sum of the file, in a form to paste.
pub(super) fn offer_of(path: &str) -> String {
    match input::sha256(&expand_home(path), &WEIGHTS_BYTES) {
        Ok(sha256) => format!(
            "; that file has this one: `initial_weights: {{path: {}, sha256: {sha256}}}`",
            Value::from(path)
        ),
        Err(error) => format!("; {path} cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::spec::{ExperimentRequest, load};

    fn faults(text: &str) -> String {
        let request = ExperimentRequest {
            file: "x.yaml".into(),
            text: Some(text.to_owned()),
            ..ExperimentRequest::default()
        };
        load(&request).unwrap_err().to_string()
    }

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_part_that_the_model_does_not_have_is_refused_with_those_that_it_has() {
        let of = |model: &str, data: &str| {
            faults(&format!(
                "{{kiln: 1, name: x, model: {{kind: {model}}}, data: {{kind: {data}}}, train: {{steps: \
                 1, initial_weights: {{path: w, sha256: {ABC}, without: [tail]}}}}}}"
            ))
        };
        for (model, data, allowed) in [
            ("resnet", "cifar10", "`head`"),
            ("gpt", "generated", "`embedding`"),
            ("panel-lstm", "stocknet", "`embedding` and `head`"),
        ] {
            let why = of(model, data);
            let expected = format!(
                "`train.initial_weights.without` names `tail`; for model kind `{model}` it may name \
                 {allowed}"
            );
            assert!(why.contains(&expected), "{why}");
        }
    }

    #[test]
    fn a_missing_sum_is_offered_in_a_form_that_can_be_pasted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my weights.safetensors");
        fs::write(&path, "abc").unwrap();
        let named = serde_json::to_string(&path).unwrap();
        let text = |weights: &str| {
            format!(
                "kiln: 1\nname: x\nmodel: {{kind: mlp}}\ndata: {{kind: generated}}\ntrain:\n  \
                 steps: 1\n  {weights}\n"
            )
        };
        let why = faults(&text(&format!("initial_weights: {{path: {named}}}")));
        let offered = format!("initial_weights: {{path: {named}, sha256: {ABC}}}");
        assert!(
            why.contains("`train.initial_weights.sha256` is missing")
                && why.contains(&format!("that file has this one: `{offered}`")),
            "{why}"
        );
        let request = ExperimentRequest {
            file: "x.yaml".into(),
            text: Some(text(&offered)),
            ..ExperimentRequest::default()
        };
        let weights = load(&request).unwrap().experiment.train.initial_weights;
        assert_eq!(weights.unwrap().sha256, ABC);
        // As a value of an axis, and of a file that cannot be read.
        let swept = text("epochs: null").replace(
            "train:",
            &format!(
                "sweep: {{grid: {{train.initial_weights: [null, {{path: {named}}}]}}}}\ntrain:"
            ),
        );
        assert!(faults(&swept).contains(&offered), "{}", faults(&swept));
        let why = faults(&text("initial_weights: {path: /nowhere/x}"));
        assert!(
            why.contains("; /nowhere/x cannot be read: No such file"),
            "{why}"
        );
    }
}
