//! Settings of text: which, how it becomes tokens and samples.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Content, Loader,
    kind::{DataKind, has},
    tenth,
};

/// Keys of WikiText-2. Source: Merity et al. 2016 (arXiv 1609.07843).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wikitext2 {
    /// Folder with train, valid and test; default `$KILN_DATA/wikitext-2`, else `data/wikitext-2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Unit of a token.
    #[serde(default = "word")]
    pub tokenizer: Tokenizer,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Keys of Tiny Shakespeare. Source: Karpathy's char-rnn, 2015.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tinyshakespeare {
    /// Folder with input.txt; default `$KILN_DATA/tinyshakespeare`, else `data/tinyshakespeare`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Unit of a token.
    #[serde(default = "character")]
    pub tokenizer: Tokenizer,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Keys of the user's own text file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextFile {
    /// The file; a relative path is relative to the directory where kiln was started.
    pub path: String,
    /// Unit of a token.
    #[serde(default = "character")]
    pub tokenizer: Tokenizer,
    /// Fraction of the file, from its end, used for validation.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: f64,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Keys of the generated text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generated {
    /// Length of the text, in characters.
    #[serde(default = "characters")]
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub characters: u64,
    /// Unit of a token.
    #[serde(default = "character")]
    pub tokenizer: Tokenizer,
    /// Fraction of the text, from its end, used for validation.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: f64,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// How text is cut into samples of `seq_len + 1` tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TextSampling {
    /// Tokens from the start of one sample to the start of the next; default: the model's
    /// `seq_len`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub stride: Option<u64>,
    /// `shuffled` visits every sample once per epoch; `random` draws offsets with replacement; with
    /// `contiguous` each row of a batch continues the same row of the previous batch, and a
    /// recurrent model carries its state.
    #[serde(default)]
    pub sampling: Sampling,
}

/// Unit of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tokenizer {
    /// Words separated by white space, `<eos>` at the end of each line.
    Word,
    Character,
    Byte,
}

/// Order in which samples are drawn in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    #[default]
    Shuffled,
    Random,
    Contiguous,
}

fn word() -> Tokenizer {
    Tokenizer::Word
}

fn character() -> Tokenizer {
    Tokenizer::Character
}

fn characters() -> u64 {
    200_000
}

impl DataKind for Wikitext2 {
    fn kind(&self) -> &'static str {
        "wikitext2"
    }

    fn content(&self) -> Content {
        Content::Text
    }

    has!(loader);
    has!(folder);
    has!(text);
}

impl DataKind for Tinyshakespeare {
    fn kind(&self) -> &'static str {
        "tinyshakespeare"
    }

    fn content(&self) -> Content {
        Content::Text
    }

    has!(loader);
    has!(folder);
    has!(text);
}

impl DataKind for TextFile {
    fn kind(&self) -> &'static str {
        "text"
    }

    fn content(&self) -> Content {
        Content::Text
    }

    has!(loader);
    has!(path);

    fn valid_fraction(&self) -> Option<f64> {
        Some(self.valid_fraction)
    }

    has!(text);
}

impl DataKind for Generated {
    fn kind(&self) -> &'static str {
        "generated"
    }

    fn content(&self) -> Content {
        Content::Text
    }

    has!(loader);

    fn valid_fraction(&self) -> Option<f64> {
        Some(self.valid_fraction)
    }

    has!(text);
}
