//! Settings of text: which, how it becomes tokens and samples.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Content, Counts, Loader,
    dataset::{Dataset, DatasetFile},
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
    /// A tokenizer.json of Hugging Face's `tokenizers`, plain, `.gz` or `.xz`, instead of
    /// `tokenizer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_file: Option<String>,
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

fn text_counts(train_tokens: u64, valid_tokens: u64, vocabulary: u64) -> Counts {
    Counts::Text {
        train_tokens,
        valid_tokens,
        vocabulary,
    }
}

/// Token version of Merity et al. 2016 ("Pointer Sentinel Mixture Models"), as in pytorch/examples.
static WIKITEXT2: Dataset = Dataset {
    name: "wikitext2",
    folder: "wikitext-2",
    about: "WikiText-2, words of Wikipedia articles",
    licence: "CC BY-SA 3.0, GFDL",
    address: "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/",
    files: &[
        DatasetFile::plain(
            "train.txt",
            10_797_148,
            "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        ),
        DatasetFile::plain(
            "valid.txt",
            1_121_681,
            "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        ),
        DatasetFile::plain(
            "test.txt",
            1_256_449,
            "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        ),
    ],
    forms: &[&["train.txt", "valid.txt"]],
};

/// SHA-256 over train.txt followed by valid.txt: the parts of WikiText-2 that kiln reads.
const WIKITEXT2_READ: &str = "a3e69cc54f723bd3d0f75df3cd2343194915c15e671713d4bff1eb31aa733856";

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

    fn dataset() -> Option<&'static Dataset> {
        Some(&WIKITEXT2)
    }

    // Words are from Merity et al.; tests recount the others if the data is available.
    fn known_counts(&self, sha256: &str) -> Option<Counts> {
        (sha256 == WIKITEXT2_READ).then(|| match self.tokenizer {
            Tokenizer::Word => text_counts(2_088_628, 217_646, 33_278),
            Tokenizer::Character => text_counts(10_780_437, 1_120_192, 283),
            Tokenizer::Byte => text_counts(10_797_148, 1_121_681, 256),
        })
    }
}

const TINYSHAKESPEARE_SHA256: &str =
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";

/// Karpathy's char-rnn file; the text is in the public domain.
static TINYSHAKESPEARE: Dataset = Dataset {
    name: "tinyshakespeare",
    folder: "tinyshakespeare",
    about: "tiny Shakespeare, characters of plays",
    licence: "MIT (text: public domain)",
    address: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
    files: &[DatasetFile::plain(
        "input.txt",
        1_115_394,
        TINYSHAKESPEARE_SHA256,
    )],
    forms: &[&["input.txt"]],
};

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

    fn dataset() -> Option<&'static Dataset> {
        Some(&TINYSHAKESPEARE)
    }

    fn known_counts(&self, sha256: &str) -> Option<Counts> {
        let vocabulary = match self.tokenizer {
            Tokenizer::Word => return None,
            Tokenizer::Character => 65,
            Tokenizer::Byte => 256,
        };
        (sha256 == TINYSHAKESPEARE_SHA256).then(|| text_counts(1_003_854, 111_540, vocabulary))
    }
}

impl DataKind for TextFile {
    fn kind(&self) -> &'static str {
        "text"
    }

    fn content(&self) -> Content {
        Content::Text
    }

    has!(loader);

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn paths_mut(&mut self) -> Vec<&mut String> {
        [&mut self.path]
            .into_iter()
            .chain(&mut self.tokenizer_file)
            .collect()
    }

    fn tokenizer_file(&self) -> Option<&str> {
        self.tokenizer_file.as_deref()
    }

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
