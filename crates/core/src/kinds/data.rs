//! The `data` section: what a trial reads, how it is cut into samples, and how it is loaded.

mod counts;
mod images;
mod pairs;
mod panel;

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use counts::{Counts, DataFacts, InputShape};
pub use images::{Augmentation, Cifar10, Crop, FashionMnist, GeneratedImages, ImageFolder, ImageShape};
pub use pairs::{Chatlm, PairCounts, PairSampling, PairShape, SftJsonl, UNKNOWN_TOKEN};
pub use panel::{PanelCsv, PanelShape, PanelSplit, PanelTarget, Stocknet, SymbolReturns};

/// What the model reads: its kind, where it lies, how it is cut into samples and loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Data {
    /// No data: for `matmul`, which makes its own operands.
    None(NoData),
    /// WikiText-2, token version: 2,088,628 training words, vocabulary 33,278.
    #[serde(rename = "wikitext2")]
    Wikitext2(Wikitext2),
    /// Tiny Shakespeare: 1,115,394 characters; the first 90 % train, the rest validates.
    Tinyshakespeare(Tinyshakespeare),
    /// Any UTF-8 text file of your own, plain, `.gz` or `.xz`.
    Text(TextFile),
    /// A small text that the program makes itself: the same on every machine, nothing to download.
    Generated(Generated),
    /// Fashion-MNIST: 60,000 training and 10,000 test images of 28 × 28 greys, 10 classes.
    FashionMnist(FashionMnist),
    /// CIFAR-10: 50,000 training and 10,000 test images of 32 × 32 colours, 10 classes.
    #[serde(rename = "cifar10")]
    Cifar10(Cifar10),
    /// A folder of PNG and JPEG files of your own, one folder per class.
    ImageFolder(ImageFolder),
    /// Images that the program makes itself: the same on every machine, nothing to download.
    GeneratedImages(GeneratedImages),
    /// Series of your own, one CSV file per symbol.
    PanelCsv(PanelCsv),
    /// StockNet's daily prices of 88 US stocks, as a panel.
    Stocknet(Stocknet),
    /// Prompts and responses of your own, one JSON object per line.
    SftJsonl(SftJsonl),
    /// ChatLM-mini-Chinese: 3,000 training and 1,000 validation pairs of Chinese prompts and responses.
    Chatlm(Chatlm),
}

/// What a sample is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Nothing,
    /// Token ids.
    Text,
    /// Labelled images.
    Images,
    /// Windows of many series.
    Panel,
    /// Prompts, and the responses to them.
    Pairs,
}

impl Content {
    /// As a sentence about a model or a data kind says it.
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

/// WikiText-2: its keys. Source: Merity et al. 2016 (arXiv 1609.07843).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wikitext2 {
    /// Folder that holds train, valid and test; else `$KILN_DATA/wikitext-2`, else `data/wikitext-2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What a token is.
    #[serde(default = "word")]
    pub tokenizer: Tokenizer,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// Tiny Shakespeare: its keys. Source: Karpathy's char-rnn, 2015.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tinyshakespeare {
    /// Folder that holds input.txt; else `$KILN_DATA/tinyshakespeare`, else `data/tinyshakespeare`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What a token is.
    #[serde(default = "character")]
    pub tokenizer: Tokenizer,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// A text file of one's own: its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextFile {
    /// The file; a relative path is resolved against the directory kiln starts in.
    pub path: String,
    /// What a token is.
    #[serde(default = "character")]
    pub tokenizer: Tokenizer,
    /// Share of the file, from its end, that is kept for validation.
    #[serde(default = "tenth")]
    #[schemars(range(min = 0.0, max = 0.5))]
    pub valid_fraction: f64,
    #[serde(flatten)]
    pub sampling: TextSampling,
    #[serde(flatten)]
    pub loader: Loader,
}

/// A text that the program makes itself: its keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generated {
    /// Length of the text, in characters.
    #[serde(default = "characters")]
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub characters: u64,
    /// What a token is.
    #[serde(default = "character")]
    pub tokenizer: Tokenizer,
    /// Share of the text, from its end, that is kept for validation.
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
    /// Tokens from one sample's start to the next; the model's `seq_len` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub stride: Option<u64>,
    /// `shuffled` visits every sample once per epoch; `random` draws offsets with replacement; with `contiguous` each row of a batch goes
    /// on where the same row of the batch before ended, and a recurrent model carries its state.
    #[serde(default)]
    pub sampling: Sampling,
}

/// How batches are made ahead of need. None of this changes a sample, an order or a loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loader {
    /// Threads that make batches; 0 makes them in the training thread; `auto` takes half the cores, at most 8.
    #[serde(default)]
    pub num_workers: NumWorkers,
    /// Batches that each worker may have ready.
    #[serde(default = "prefetch")]
    #[schemars(range(min = 1, max = 1024))]
    pub prefetch: u64,
    /// Whether workers live across epochs; otherwise each epoch starts new ones.
    #[serde(default = "yes")]
    pub persistent_workers: bool,
    /// Whether batches go to a GPU through page-locked host memory, so that the host need not wait for the copy; `auto` does so. No effect on the CPU.
    #[serde(default)]
    pub pin_memory: PinMemory,
    /// Whether one batch is made once and trained on again and again: the speed without the loader. Its losses tell nothing of the data.
    #[serde(default)]
    pub synthetic: bool,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tokenizer {
    /// White-space separated words, `<eos>` at each line's end.
    Word,
    Character,
    Byte,
}

/// In which order samples are drawn in an epoch.
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

/// The word `auto`: resolved on the machine that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

impl NumWorkers {
    /// The number of workers on a machine (or in a container) with this many cores.
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
    /// On a GPU.
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
    /// As `data.kind` names it.
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

    /// What a sample is made of.
    pub fn content(&self) -> Content {
        match self {
            Self::None(_) => Content::Nothing,
            Self::Wikitext2(_) | Self::Tinyshakespeare(_) | Self::Text(_) | Self::Generated(_) => Content::Text,
            Self::FashionMnist(_) | Self::Cifar10(_) | Self::ImageFolder(_) | Self::GeneratedImages(_) => Content::Images,
            Self::PanelCsv(_) | Self::Stocknet(_) => Content::Panel,
            Self::SftJsonl(_) | Self::Chatlm(_) => Content::Pairs,
        }
    }

    /// `data.path` as it was given; `None` if it was not, or this kind has none.
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

    /// Every path that is given, to be changed.
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
            Self::SftJsonl(data) => [&mut data.path, &mut data.tokenizer].into_iter().chain(&mut data.valid_path).collect(),
            Self::None(_) | Self::Generated(_) | Self::GeneratedImages(_) => Vec::new(),
        }
    }

    /// Share of the data that is kept for validation; `None` where the set brings its own split.
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

    /// `None` where there is no text.
    pub fn tokenizer(&self) -> Option<Tokenizer> {
        match self {
            Self::Wikitext2(data) => Some(data.tokenizer),
            Self::Tinyshakespeare(data) => Some(data.tokenizer),
            Self::Text(data) => Some(data.tokenizer),
            Self::Generated(data) => Some(data.tokenizer),
            _ => None,
        }
    }

    /// Whether each row of a batch goes on where it ended in the batch before.
    pub fn is_contiguous(&self) -> bool {
        self.sampling().is_some_and(|sampling| sampling.sampling == Sampling::Contiguous)
    }

    /// How the text is cut into samples; `None` where there is no text.
    pub fn sampling(&self) -> Option<&TextSampling> {
        match self {
            Self::Wikitext2(data) => Some(&data.sampling),
            Self::Tinyshakespeare(data) => Some(&data.sampling),
            Self::Text(data) => Some(&data.sampling),
            Self::Generated(data) => Some(&data.sampling),
            _ => None,
        }
    }

    /// As [`Data::sampling`], to be changed.
    pub fn sampling_mut(&mut self) -> Option<&mut TextSampling> {
        match self {
            Self::Wikitext2(data) => Some(&mut data.sampling),
            Self::Tinyshakespeare(data) => Some(&mut data.sampling),
            Self::Text(data) => Some(&mut data.sampling),
            Self::Generated(data) => Some(&mut data.sampling),
            _ => None,
        }
    }

    /// What is done to training images at random; `None` where there are no images.
    pub fn augmentation(&self) -> Option<Augmentation> {
        match self {
            Self::FashionMnist(data) => Some(data.augmentation),
            Self::Cifar10(data) => Some(data.augmentation),
            Self::GeneratedImages(data) => Some(data.augmentation),
            Self::ImageFolder(data) => Some(Augmentation { crop_padding: 0, flip: data.flip }),
            _ => None,
        }
    }

    /// How a panel is split, and what is predicted; `None` where there is no panel.
    pub fn panel_split(&self) -> Option<&PanelSplit> {
        match self {
            Self::PanelCsv(data) => Some(&data.split),
            Self::Stocknet(data) => Some(&data.split),
            _ => None,
        }
    }

    /// Which rows of prompts and responses are read, and how they come together; `None` where there are none.
    pub fn pairs(&self) -> Option<&PairSampling> {
        match self {
            Self::SftJsonl(data) => Some(&data.sampling),
            Self::Chatlm(data) => Some(&data.sampling),
            _ => None,
        }
    }

    /// As [`Data::pairs`], to be changed.
    pub fn pairs_mut(&mut self) -> Option<&mut PairSampling> {
        match self {
            Self::SftJsonl(data) => Some(&mut data.sampling),
            Self::Chatlm(data) => Some(&mut data.sampling),
            _ => None,
        }
    }

    /// How batches are made; `None` where there is no data.
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

    /// What the facts of data depend on: the same for data that differ only in how they are cut or loaded.
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

    /// As [`Data::loader`], to be changed.
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
