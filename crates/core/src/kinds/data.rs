//! The `data` section: the registry of data kinds. Each kind is one line here; its keys, its
//! implementation of [`DataKind`] and the published set that it reads are in a module beside it.

mod counts;
mod dataset;
mod images;
mod kind;
mod loader;
mod no_data;
mod pairs;
mod panel;
pub(super) mod text;

use std::ops::{Deref, DerefMut};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use counts::{Counts, DataFacts, InputShape};
pub use dataset::{Checksum, Dataset, DatasetFile, Origin};
pub use images::{Augmentation, Crop, ImageShape};
pub use kind::DataKind;
pub use loader::{Auto, Loader, NumWorkers, PinMemory};
pub use pairs::{PairCounts, PairSampling, PairShape, UNKNOWN_TOKEN};
pub use panel::{PanelShape, PanelSplit, PanelTarget, SymbolReturns};
pub use text::{Sampling, TextSampling, Tokenizer};

kind::data_kinds! {
    /// No data: for `matmul`, which generates its operands.
    None(no_data::NoData),
    /// WikiText-2, token version: 2,088,628 training words, vocabulary 33,278.
    #[serde(rename = "wikitext2")]
    Wikitext2(text::Wikitext2),
    /// Tiny Shakespeare: 1,115,394 characters; the first 90 % train, the rest validates.
    Tinyshakespeare(text::Tinyshakespeare),
    /// The user's own UTF-8 text file, plain, `.gz` or `.xz`.
    Text(text::TextFile),
    /// A small generated text: the same on every machine, no download.
    Generated(text::Generated),
    /// Fashion-MNIST: 60,000 training and 10,000 test images of 28 × 28 gray pixels, 10 classes.
    FashionMnist(images::FashionMnist),
    /// CIFAR-10: 50,000 training and 10,000 test images of 32 × 32 color pixels, 10 classes.
    #[serde(rename = "cifar10")]
    Cifar10(images::Cifar10),
    /// The user's own folder of PNG and JPEG files, one folder per class.
    ImageFolder(images::ImageFolder),
    /// Generated images: the same on every machine, no download.
    GeneratedImages(images::GeneratedImages),
    /// The user's own time series, one CSV file per symbol.
    PanelCsv(panel::PanelCsv),
    /// StockNet's daily prices of 88 US stocks, as a panel.
    Stocknet(panel::Stocknet),
    /// The user's own prompts and responses, one JSON object per line.
    SftJsonl(pairs::SftJsonl),
    /// ChatLM-mini-Chinese: 3,000 training and 1,000 validation pairs of Chinese prompts and
    /// responses.
    Chatlm(pairs::Chatlm),
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

impl Default for Data {
    fn default() -> Self {
        Self::None(NoData {})
    }
}

impl Data {
    /// Dotted keys that are paths for each kind that has them. Another path for the same data changes
    /// neither samples nor ids. `data.tokenizer` is a path for prompts and responses alone.
    pub const PATH_KEYS: [&str; 3] = ["data.path", "data.valid_path", "data.tokenizer_file"];

    /// Whether this dotted key is a path in data of this kind.
    pub fn is_path_key(key: &str, kind: &str) -> bool {
        Self::PATH_KEYS.contains(&key) || (key == "data.tokenizer" && kind == "sft-jsonl")
    }

    /// Whether each row of a batch continues the same row of the previous batch.
    pub fn is_contiguous(&self) -> bool {
        self.sampling()
            .is_some_and(|sampling| sampling.sampling == Sampling::Contiguous)
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
}

fn tenth() -> f64 {
    0.1
}
