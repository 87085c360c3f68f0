//! The `data` section: the data set of a trial, how it is cut into samples, and how it is loaded.

mod counts;
mod images;
mod pairs;
mod panel;

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use counts::{Counts, DataFacts, InputShape};
pub use images::{
    Augmentation, Cifar10, Crop, FashionMnist, GeneratedImages, ImageFolder, ImageShape,
};
pub use pairs::{Chatlm, PairCounts, PairSampling, PairShape, SftJsonl, UNKNOWN_TOKEN};
pub use panel::{PanelCsv, PanelShape, PanelSplit, PanelTarget, Stocknet, SymbolReturns};

/// The data set: its kind, its path, how it is cut into samples and loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Data {
    /// No data: for `matmul`, which generates its operands.
    None(NoData),
    /// WikiText-2, token version: 2,088,628 training words, vocabulary 33,278.
    #[serde(rename = "wikitext2")]
    Wikitext2(Wikitext2),
    /// Tiny Shakespeare: 1,115,394 characters; the first 90 % train, the rest validates.
    Tinyshakespeare(Tinyshakespeare),
    /// The user's own UTF-8 text file, plain, `.gz` or `.xz`.
    Text(TextFile),
    /// A small generated text: the same on every machine, no download.
    Generated(Generated),
    /// Fashion-MNIST: 60,000 training and 10,000 test images of 28 × 28 gray pixels, 10 classes.
    FashionMnist(FashionMnist),
    /// CIFAR-10: 50,000 training and 10,000 test images of 32 × 32 color pixels, 10 classes.
    #[serde(rename = "cifar10")]
    Cifar10(Cifar10),
    /// The user's own folder of PNG and JPEG files, one folder per class.
    ImageFolder(ImageFolder),
    /// Generated images: the same on every machine, no download.
    GeneratedImages(GeneratedImages),
    /// The user's own time series, one CSV file per symbol.
    PanelCsv(PanelCsv),
    /// StockNet's daily prices of 88 US stocks, as a panel.
    Stocknet(Stocknet),
    /// The user's own prompts and responses, one JSON object per line.
    SftJsonl(SftJsonl),
    /// ChatLM-mini-Chinese: 3,000 training and 1,000 validation pairs of Chinese prompts and
    /// responses.
    Chatlm(Chatlm),
}

/// Content of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Nothing,
    /// Token ids.
    Text,
    /// Labeled images.
    Images,
    /// Windows of many time series.
    Panel,
    /// Prompts and their responses.
    Pairs,
}

impl Content {
    /// The name of the content in a sentence about a model or a data kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no data",
            Self::Text => "text",
            Self::Images => "images",
            Self::Panel => "a panel of series",
            Self::Pairs => "prompts and responses",
        }
    }
}

/// No keys: a model that makes its own input reads no data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoData {}

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

/// How batches are prepared in advance. No key here changes a sample, the order or a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loader {
    /// Threads that make batches; 0 makes them in the training thread; `auto` takes half the cores,
    /// at most 8.
    #[serde(default)]
    pub num_workers: NumWorkers,
    /// Batches that each worker may prepare in advance.
    #[serde(default = "prefetch")]
    #[schemars(range(min = 1, max = 1024))]
    pub prefetch: u64,
    /// Whether workers live across epochs; otherwise each epoch starts new workers.
    #[serde(default = "yes")]
    pub persistent_workers: bool,
    /// Whether batches are copied to a GPU from page-locked host memory, so that the host does not
    /// wait for the copy; `auto` enables it on a GPU. No effect on the CPU.
    #[serde(default)]
    pub pin_memory: PinMemory,
    /// Whether training repeats a single batch: this measures the speed without the loader. The
    /// losses say nothing about the data.
    #[serde(default)]
    pub synthetic: bool,
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

/// A number of workers, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NumWorkers {
    Count(u64),
    Auto(Auto),
}

/// The word `auto`: resolved on the machine that runs the trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

impl NumWorkers {
    /// Returns the number of workers on a machine (or in a container) with this many cores.
    pub fn resolve(self, cores: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Auto(_) => (cores / 2).clamp(1, 8),
        }
    }
}

/// Whether host memory of batches is page-locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PinMemory {
    Asked(bool),
    Auto(Auto),
}

impl PinMemory {
    /// Whether memory is page-locked on a GPU.
    pub fn is_wanted(self) -> bool {
        self != Self::Asked(false)
    }
}

impl Default for PinMemory {
    fn default() -> Self {
        Self::Auto(Auto::Auto)
    }
}

impl JsonSchema for PinMemory {
    fn schema_name() -> Cow<'static, str> {
        "PinMemory".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"const": "auto"}]})
    }
}

impl Default for NumWorkers {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl fmt::Display for NumWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Auto(_) => write!(f, "auto"),
        }
    }
}

impl JsonSchema for NumWorkers {
    fn schema_name() -> Cow<'static, str> {
        "NumWorkers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1024}, {"const": "auto"}]})
    }
}

fn word() -> Tokenizer {
    Tokenizer::Word
}
fn character() -> Tokenizer {
    Tokenizer::Character
}
fn tenth() -> f64 {
    0.1
}
fn characters() -> u64 {
    200_000
}
fn prefetch() -> u64 {
    2
}
fn yes() -> bool {
    true
}

impl Default for Loader {
    fn default() -> Self {
        Self {
            num_workers: NumWorkers::default(),
            prefetch: prefetch(),
            persistent_workers: yes(),
            pin_memory: PinMemory::default(),
            synthetic: false,
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self::None(NoData {})
    }
}

impl Data {
    /// The name in `data.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::None(_) => "none",
            Self::Wikitext2(_) => "wikitext2",
            Self::Tinyshakespeare(_) => "tinyshakespeare",
            Self::Text(_) => "text",
            Self::Generated(_) => "generated",
            Self::FashionMnist(_) => "fashion-mnist",
            Self::Cifar10(_) => "cifar10",
            Self::ImageFolder(_) => "image-folder",
            Self::GeneratedImages(_) => "generated-images",
            Self::PanelCsv(_) => "panel-csv",
            Self::Stocknet(_) => "stocknet",
            Self::SftJsonl(_) => "sft-jsonl",
            Self::Chatlm(_) => "chatlm",
        }
    }

    /// Content of a sample.
    pub fn content(&self) -> Content {
        match self {
            Self::None(_) => Content::Nothing,
            Self::Wikitext2(_) | Self::Tinyshakespeare(_) | Self::Text(_) | Self::Generated(_) => {
                Content::Text
            }
            Self::FashionMnist(_)
            | Self::Cifar10(_)
            | Self::ImageFolder(_)
            | Self::GeneratedImages(_) => Content::Images,
            Self::PanelCsv(_) | Self::Stocknet(_) => Content::Panel,
            Self::SftJsonl(_) | Self::Chatlm(_) => Content::Pairs,
        }
    }

    /// `data.path` as written; `None` if it is absent or this kind has no path.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Wikitext2(data) => data.path.as_deref(),
            Self::Tinyshakespeare(data) => data.path.as_deref(),
            Self::FashionMnist(data) => data.path.as_deref(),
            Self::Cifar10(data) => data.path.as_deref(),
            Self::Stocknet(data) => data.path.as_deref(),
            Self::Chatlm(data) => data.path.as_deref(),
            Self::Text(data) => Some(&data.path),
            Self::ImageFolder(data) => Some(&data.path),
            Self::PanelCsv(data) => Some(&data.path),
            Self::SftJsonl(data) => Some(&data.path),
            Self::None(_) | Self::Generated(_) | Self::GeneratedImages(_) => None,
        }
    }

    /// Mutable references to all paths that are given.
    pub fn paths_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::Wikitext2(data) => data.path.iter_mut().collect(),
            Self::Tinyshakespeare(data) => data.path.iter_mut().collect(),
            Self::FashionMnist(data) => data.path.iter_mut().collect(),
            Self::Cifar10(data) => data.path.iter_mut().collect(),
            Self::Stocknet(data) => data.path.iter_mut().collect(),
            Self::Chatlm(data) => data.path.iter_mut().collect(),
            Self::Text(data) => vec![&mut data.path],
            Self::ImageFolder(data) => vec![&mut data.path],
            Self::PanelCsv(data) => vec![&mut data.path],
            Self::SftJsonl(data) => [&mut data.path, &mut data.tokenizer]
                .into_iter()
                .chain(&mut data.valid_path)
                .collect(),
            Self::None(_) | Self::Generated(_) | Self::GeneratedImages(_) => Vec::new(),
        }
    }

    /// Fraction of the data used for validation; `None` if the data set has its own split.
    pub fn valid_fraction(&self) -> Option<f64> {
        match self {
            Self::Text(data) => Some(data.valid_fraction),
            Self::Generated(data) => Some(data.valid_fraction),
            Self::ImageFolder(data) => Some(data.valid_fraction),
            Self::PanelCsv(data) => Some(data.split.valid_fraction),
            Self::Stocknet(data) => Some(data.split.valid_fraction),
            Self::SftJsonl(data) => data.valid_share(),
            _ => None,
        }
    }

    /// The tokenizer; `None` for data without text.
    pub fn tokenizer(&self) -> Option<Tokenizer> {
        match self {
            Self::Wikitext2(data) => Some(data.tokenizer),
            Self::Tinyshakespeare(data) => Some(data.tokenizer),
            Self::Text(data) => Some(data.tokenizer),
            Self::Generated(data) => Some(data.tokenizer),
            _ => None,
        }
    }

    /// Whether each row of a batch continues the same row of the previous batch.
    pub fn is_contiguous(&self) -> bool {
        self.sampling()
            .is_some_and(|sampling| sampling.sampling == Sampling::Contiguous)
    }

    /// How the text is cut into samples; `None` for data without text.
    pub fn sampling(&self) -> Option<&TextSampling> {
        match self {
            Self::Wikitext2(data) => Some(&data.sampling),
            Self::Tinyshakespeare(data) => Some(&data.sampling),
            Self::Text(data) => Some(&data.sampling),
            Self::Generated(data) => Some(&data.sampling),
            _ => None,
        }
    }

    /// Mutable form of [`Data::sampling`].
    pub fn sampling_mut(&mut self) -> Option<&mut TextSampling> {
        match self {
            Self::Wikitext2(data) => Some(&mut data.sampling),
            Self::Tinyshakespeare(data) => Some(&mut data.sampling),
            Self::Text(data) => Some(&mut data.sampling),
            Self::Generated(data) => Some(&mut data.sampling),
            _ => None,
        }
    }

    /// Random augmentation of training images; `None` for data without images.
    pub fn augmentation(&self) -> Option<Augmentation> {
        match self {
            Self::FashionMnist(data) => Some(data.augmentation),
            Self::Cifar10(data) => Some(data.augmentation),
            Self::GeneratedImages(data) => Some(data.augmentation),
            Self::ImageFolder(data) => Some(Augmentation {
                crop_padding: 0,
                flip: data.flip,
            }),
            _ => None,
        }
    }

    /// How a panel is split, and the target of the prediction; `None` for data without a panel.
    pub fn panel_split(&self) -> Option<&PanelSplit> {
        match self {
            Self::PanelCsv(data) => Some(&data.split),
            Self::Stocknet(data) => Some(&data.split),
            _ => None,
        }
    }

    /// Which rows of prompts and responses are read, and how they form batches; `None` for other
    /// data.
    pub fn pairs(&self) -> Option<&PairSampling> {
        match self {
            Self::SftJsonl(data) => Some(&data.sampling),
            Self::Chatlm(data) => Some(&data.sampling),
            _ => None,
        }
    }

    /// Mutable form of [`Data::pairs`].
    pub fn pairs_mut(&mut self) -> Option<&mut PairSampling> {
        match self {
            Self::SftJsonl(data) => Some(&mut data.sampling),
            Self::Chatlm(data) => Some(&mut data.sampling),
            _ => None,
        }
    }

    /// How batches are made; `None` without data.
    pub fn loader(&self) -> Option<&Loader> {
        match self {
            Self::None(_) => None,
            Self::Wikitext2(data) => Some(&data.loader),
            Self::Tinyshakespeare(data) => Some(&data.loader),
            Self::Text(data) => Some(&data.loader),
            Self::Generated(data) => Some(&data.loader),
            Self::FashionMnist(data) => Some(&data.loader),
            Self::Cifar10(data) => Some(&data.loader),
            Self::ImageFolder(data) => Some(&data.loader),
            Self::GeneratedImages(data) => Some(&data.loader),
            Self::PanelCsv(data) => Some(&data.loader),
            Self::Stocknet(data) => Some(&data.loader),
            Self::SftJsonl(data) => Some(&data.loader),
            Self::Chatlm(data) => Some(&data.loader),
        }
    }

    /// Key of everything that decides the facts of the data: equal for data that differ only in
    /// cutting or loading.
    pub fn source_key(&self) -> String {
        let mut data = self.clone();
        if let Some(loader) = data.loader_mut() {
            *loader = Loader::default();
        }
        if let Some(sampling) = data.sampling_mut() {
            *sampling = TextSampling::default();
        }
        if let Some(sampling) = data.pairs_mut() {
            *sampling = sampling.of_tokens();
        }
        format!("{data:?}")
    }

    /// Mutable form of [`Data::loader`].
    pub fn loader_mut(&mut self) -> Option<&mut Loader> {
        match self {
            Self::None(_) => None,
            Self::Wikitext2(data) => Some(&mut data.loader),
            Self::Tinyshakespeare(data) => Some(&mut data.loader),
            Self::Text(data) => Some(&mut data.loader),
            Self::Generated(data) => Some(&mut data.loader),
            Self::FashionMnist(data) => Some(&mut data.loader),
            Self::Cifar10(data) => Some(&mut data.loader),
            Self::ImageFolder(data) => Some(&mut data.loader),
            Self::GeneratedImages(data) => Some(&mut data.loader),
            Self::PanelCsv(data) => Some(&mut data.loader),
            Self::Stocknet(data) => Some(&mut data.loader),
            Self::SftJsonl(data) => Some(&mut data.loader),
            Self::Chatlm(data) => Some(&mut data.loader),
        }
    }
}
