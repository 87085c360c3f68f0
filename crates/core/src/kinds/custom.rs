//! `custom`: a user's own model, in the user's own program (`docs/own-model.md`). The keys that
//! every such model has hold the facts that the runner needs for planning. All other keys of
//! `model` belong to the user.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Content, InputShape, KeyFault, model::ModelKind};

/// A user's own model, in the program that `$KILN_TRIAL` names. That program checks all further
/// keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
// The other kinds refuse unknown keys; so does this one.
#[schemars(inline)]
pub struct Custom {
    /// Name of the model in the program.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Content of its samples.
    pub reads: Reads,
    /// Tokens, or rows of a panel, per sample; required for a model that reads `text` or `panel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub seq_len: Option<u64>,
    /// The user's own keys, as written.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// Content that a user's own model can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    Text,
    Images,
    Panel,
}

impl Reads {
    pub(super) fn content(self) -> Content {
        match self {
            Self::Text => Content::Text,
            Self::Images => Content::Images,
            Self::Panel => Content::Panel,
        }
    }
}

impl ModelKind for Custom {
    fn kind(&self) -> &'static str {
        "custom"
    }

    fn reads(&self) -> Content {
        self.reads.content()
    }

    fn seq_len(&self) -> Option<u64> {
        self.seq_len
    }

    fn parameters(&self, _input: Option<InputShape>) -> Option<u64> {
        None
    }

    fn flops_per_sample(&self, _input: Option<InputShape>) -> Option<u64> {
        None
    }

    fn flops_formula(&self) -> &'static str {
        "own"
    }

    fn contradictions(&self) -> Vec<KeyFault> {
        let message = match (self.reads, self.seq_len) {
            (Reads::Images, Some(_)) => {
                "`seq_len` is for models that read text or a panel, and `reads` is `images`; \
                 remove it"
            }
            (Reads::Text, None) => {
                "`seq_len` is missing: give the number of tokens per sample, which a model that \
                 reads `text` needs"
            }
            (Reads::Panel, None) => {
                "`seq_len` is missing: give the number of rows per sample, which a model that \
                 reads `panel` needs"
            }
            _ => return Vec::new(),
        };
        vec![KeyFault::new("seq_len", message)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Model;

    fn contradictions(keys: &str) -> Vec<KeyFault> {
        serde_yaml::from_str::<Model>(&format!("{{kind: custom, name: mine, {keys}}}"))
            .unwrap()
            .contradictions()
    }

    #[test]
    fn further_keys_are_kept_as_they_are_written() {
        let text = r#"{"kind":"custom","name":"mine","reads":"text","seq_len":8,"width":3,"stem":{"kernel":[1,2.5],"act":"relu"},"bias":true}"#;
        let model: Model = serde_json::from_str(text).unwrap();
        let Model::Custom(custom) = &model else {
            panic!("{model:?}")
        };
        assert_eq!(
            custom.fields.keys().collect::<Vec<_>>(),
            ["width", "stem", "bias"]
        );
        assert_eq!(serde_json::to_string(&model).unwrap(), text);
        assert_eq!(
            (
                model.seq_len(),
                model.reads(),
                model.parameters(None),
                model.flops_per_sample(None)
            ),
            (Some(8), Content::Text, None, None)
        );
    }

    #[test]
    fn a_length_is_needed_by_sequences_and_refused_by_images() {
        for sound in [
            "reads: text, seq_len: 8",
            "reads: panel, seq_len: 8",
            "reads: images",
        ] {
            assert_eq!(contradictions(sound), []);
        }
        for (bad, part) in [
            ("reads: text", "`seq_len` is missing"),
            ("reads: panel", "number of rows per sample"),
            ("reads: images, seq_len: 3", "remove it"),
        ] {
            let found = contradictions(bad);
            assert!(
                found.len() == 1 && found[0].key == "seq_len" && found[0].message.contains(part),
                "{found:?}"
            );
        }
    }
}
