//! Keys of the data kinds with prompts and responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Content, Counts, Loader,
    dataset::{Dataset, DatasetFile, Origin},
    kind::{DataKind, has},
    tenth,
};

/// The user's own prompts and responses, one JSON object per line, with the user's own tokenizer
/// file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SftJsonl {
    /// The training rows, plain, `.gz` or `.xz`; a relative path is relative to the directory where
    /// kiln was started.
    pub path: String,
    /// The validation rows, in a separate file; without it, `valid_fraction` of the training file
    /// is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_path: Option<String>,
    /// The tokenizer: a tokenizer.json of Hugging Face's `tokenizers`, plain, `.gz` or `.xz`.
    pub tokenizer: String,
    /// Fraction of the rows, from the end of the file, used for validation; default 0.1. Not
    /// together with `valid_path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: Option<f64>,
    /// Key of the prompt in each row.
    #[serde(default = "prompt")]
    pub prompt_key: String,
    /// Key of the response in each row.
    #[serde(default = "response")]
    pub response_key: String,
    /// Token at the end of each prompt and each response.
    #[serde(default = "end_token")]
    pub end_token: String,
    /// Token used for padding, and as the first token of a decoder.
    #[serde(default = "pad_token")]
    pub pad_token: String,
    /// Token for text that the tokenizer cannot encode; these tokens are counted.
    #[serde(default = "unknown_token")]
    pub unknown_token: String,
    #[serde(flatten)]
    pub sampling: PairSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Keys of ChatLM-mini-Chinese's prompts and responses. Source: charent's ChatLM-mini-Chinese,
/// 2023.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chatlm {
    /// Folder with the rows and the tokenizer; default `$KILN_DATA/chatlm-mini-chinese`, else
    /// `data/chatlm-mini-chinese`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(flatten)]
    pub sampling: PairSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Which rows are read, their maximum length, and which rows form a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairSampling {
    /// Number of training rows to read, from the first; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub train_rows: Option<u64>,
    /// Number of validation rows to read, from the first; default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub valid_rows: Option<u64>,
    /// Maximum tokens of a prompt, including the end token; longer prompts are cut and counted.
    #[serde(default = "max_tokens")]
    #[schemars(range(min = 2, max = 1_048_576))]
    pub max_prompt_tokens: u64,
    /// Maximum tokens of a response, including the end token; longer responses are cut and counted.
    #[serde(default = "max_tokens")]
    #[schemars(range(min = 2, max = 1_048_576))]
    pub max_response_tokens: u64,
    /// The prompts, and the responses, of a batch are padded to the next multiple of this many
    /// tokens, so that few different lengths occur.
    #[serde(default = "length_bucket")]
    #[schemars(range(min = 1, max = 65_536))]
    pub length_bucket: u64,
    /// Whether rows of similar length form a step, which needs little padding; otherwise each step
    /// is drawn from all rows.
    #[serde(default = "sort_by_length")]
    pub sort_by_length: bool,
    /// Whether the first two steps are padded to the longest prompt and the longest response of all
    /// training rows: memory then reaches its maximum at the start, and a batch that does not fit
    /// fails at once.
    #[serde(default)]
    pub longest_first: bool,
}

impl SftJsonl {
    /// Fraction of the training file used for validation; `None` if validation has its own file.
    pub fn valid_share(&self) -> Option<f64> {
        self.valid_path
            .is_none()
            .then(|| self.valid_fraction.unwrap_or_else(tenth))
    }
}

impl Default for PairSampling {
    fn default() -> Self {
        Self {
            train_rows: None,
            valid_rows: None,
            max_prompt_tokens: max_tokens(),
            max_response_tokens: max_tokens(),
            length_bucket: length_bucket(),
            sort_by_length: sort_by_length(),
            longest_first: false,
        }
    }
}

impl PairSampling {
    /// The keys that decide which tokens there are; keys that only decide batches keep their
    /// defaults.
    pub fn of_tokens(&self) -> Self {
        Self {
            length_bucket: length_bucket(),
            sort_by_length: sort_by_length(),
            longest_first: false,
            ..self.clone()
        }
    }
}

/// Number of rows of prompts and responses, and their lengths after cutting, including the end
/// token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCounts {
    pub rows: u64,
    pub prompt_tokens: u64,
    pub response_tokens: u64,
    /// Sum over the rows of the squared prompt length: the cost of attention within prompts.
    pub prompt_squares: u64,
    /// Sum over the rows of the squared response length.
    pub response_squares: u64,
    /// Sum over the rows of prompt length times response length.
    pub prompt_response_products: u64,
    /// Rows whose prompt was longer than `max_prompt_tokens`.
    pub cut_prompts: u64,
    /// Rows whose response was longer than `max_response_tokens`.
    pub cut_responses: u64,
    /// Tokens that are `unknown_token`.
    pub unknown_tokens: u64,
}

impl PairCounts {
    /// Counts one more row, given its lengths after cutting, in tokens.
    pub fn add(&mut self, prompt: u64, response: u64) {
        self.rows += 1;
        self.prompt_tokens += prompt;
        self.response_tokens += response;
        self.prompt_squares += prompt * prompt;
        self.response_squares += response * response;
        self.prompt_response_products += prompt * response;
    }

    /// Adds the counts of another set of rows.
    pub fn extend(&mut self, other: &Self) {
        self.rows += other.rows;
        self.prompt_tokens += other.prompt_tokens;
        self.response_tokens += other.response_tokens;
        self.prompt_squares += other.prompt_squares;
        self.response_squares += other.response_squares;
        self.prompt_response_products += other.prompt_response_products;
        self.cut_prompts += other.cut_prompts;
        self.cut_responses += other.cut_responses;
        self.unknown_tokens += other.unknown_tokens;
    }

    /// Tokens of all prompts and responses.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + self.response_tokens
    }

    /// Fraction of the tokens that are unknown; `None` without rows.
    pub fn unknown_fraction(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.unknown_tokens as f64 / self.tokens() as f64)
    }
}

/// The vocabulary size and the counts of the training rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairShape {
    pub vocabulary: u64,
    pub train: PairCounts,
}

/// The default of `data.unknown_token`.
pub const UNKNOWN_TOKEN: &str = "[UNK]";

fn prompt() -> String {
    "prompt".to_owned()
}
fn response() -> String {
    "response".to_owned()
}
fn end_token() -> String {
    "[EOS]".to_owned()
}
fn pad_token() -> String {
    "[PAD]".to_owned()
}
fn unknown_token() -> String {
    UNKNOWN_TOKEN.to_owned()
}
fn max_tokens() -> u64 {
    256
}
fn length_bucket() -> u64 {
    32
}
fn sort_by_length() -> bool {
    true
}

impl DataKind for SftJsonl {
    fn kind(&self) -> &'static str {
        "sft-jsonl"
    }

    fn content(&self) -> Content {
        Content::Pairs
    }

    has!(loader);

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn paths_mut(&mut self) -> Vec<&mut String> {
        [&mut self.path, &mut self.tokenizer]
            .into_iter()
            .chain(&mut self.valid_path)
            .collect()
    }

    fn valid_fraction(&self) -> Option<f64> {
        self.valid_share()
    }

    has!(pairs);
}

/// charent's ChatLM-mini-Chinese: rows of its fine-tuning data and its tokenizer of 2023-12-14. Its
/// address also has other versions of the tokenizer, for which a quarter of the tokens is unknown:
/// the hash detects them.
static CHATLM: Dataset = Dataset {
    name: "chatlm",
    folder: "chatlm-mini-chinese",
    about: "ChatLM-mini-Chinese, prompts and responses",
    licence: "Apache-2.0",
    address: "https://huggingface.co/charent/ChatLM-mini-Chinese/",
    files: &[
        DatasetFile::plain_at(
            CHATLM_ROWS,
            "train.jsonl",
            1_838_303,
            "810dfe1a184107db2ff63650d2869a2d91b108622e0afbf2317884a4f2e3e331",
        ),
        DatasetFile::plain_at(
            CHATLM_ROWS,
            "valid.jsonl",
            615_561,
            "563319569a01eb625e34fd037c043c7a5c0b7ec08b27960ee10f558046a6d87a",
        ),
        DatasetFile::plain_at(
            Origin::Own(
                "https://huggingface.co/charent/ChatLM-mini-Chinese/resolve/main/tokenizer.json",
            ),
            "tokenizer-20231214.json",
            1_076_695,
            "4dace7db9064984dfcc42c58bb2471f02f05561a0f60ad8f4784931bfa0e7c33",
        ),
    ],
    // Training rows, validation rows, tokenizer.
    forms: &[&["train.jsonl", "valid.jsonl", "tokenizer-20231214.json"]],
};

const CHATLM_ROWS: Origin = Origin::Nowhere(
    "these rows are a subset of ChatLM's fine-tuning data and are not published as this file; put \
     a copy there, name a mirror with `--from`, or train on your own rows with `data.kind: \
     sft-jsonl` (those of https://huggingface.co/datasets/BelleGroup/train_0.5M_CN have \
     `prompt_key: instruction` and `response_key: output`)",
);

/// SHA-256 over train.jsonl, valid.jsonl and the tokenizer.
const CHATLM_READ: &str = "44c84144c52d5f7237d923a4753426f30112be72cfbb466e1c26dd61a54e46b3";

/// Counts of ChatLM's rows with default settings: all rows, at most 256 tokens each.
const CHATLM_COUNTS: Counts = Counts::Pairs {
    train: PairCounts {
        rows: 3000,
        prompt_tokens: 83_203,
        response_tokens: 339_458,
        prompt_squares: 4_828_055,
        response_squares: 52_988_224,
        prompt_response_products: 8_971_016,
        cut_prompts: 1,
        cut_responses: 12,
        unknown_tokens: 480,
    },
    valid: PairCounts {
        rows: 1000,
        prompt_tokens: 27_825,
        response_tokens: 113_476,
        prompt_squares: 1_676_559,
        response_squares: 17_500_742,
        prompt_response_products: 2_936_767,
        cut_prompts: 0,
        cut_responses: 2,
        unknown_tokens: 116,
    },
    vocabulary: 29_298,
};

impl DataKind for Chatlm {
    fn kind(&self) -> &'static str {
        "chatlm"
    }

    fn content(&self) -> Content {
        Content::Pairs
    }

    has!(loader);
    has!(folder);
    has!(pairs);

    fn dataset() -> Option<&'static Dataset> {
        Some(&CHATLM)
    }

    fn known_counts(&self, sha256: &str) -> Option<Counts> {
        let is_whole = self.sampling.of_tokens() == PairSampling::default();
        (is_whole && sha256 == CHATLM_READ).then_some(CHATLM_COUNTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_and_products_are_sums_over_rows() {
        let mut counts = PairCounts::default();
        counts.add(2, 3);
        counts.add(4, 1);
        let expected = PairCounts {
            rows: 2,
            prompt_tokens: 6,
            response_tokens: 4,
            prompt_squares: 20,
            response_squares: 10,
            prompt_response_products: 10,
            ..PairCounts::default()
        };
        assert_eq!(counts, expected);
        assert_eq!(
            PairCounts {
                unknown_tokens: 1,
                ..counts
            }
            .unknown_fraction(),
            Some(0.1)
        );
        assert_eq!(PairCounts::default().unknown_fraction(), None);
    }
}
