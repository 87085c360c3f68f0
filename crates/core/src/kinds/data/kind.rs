//! The registry of data kinds: each is one line here, and an implementation of [`DataKind`] beside
//! its settings.

use std::ops::{Deref, DerefMut};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Augmentation, Chatlm, Cifar10, Content, FashionMnist, Generated, GeneratedImages, ImageFolder,
    Loader, NoData, PairSampling, PanelCsv, PanelSplit, Sampling, SftJsonl, Stocknet, TextFile,
    TextSampling, Tinyshakespeare, Tokenizer, Wikitext2,
};

/// The facts that the settings of a data set define. A [`Data`] of any kind has these methods.
pub trait DataKind {
    /// The name in `data.kind`.
    fn kind(&self) -> &'static str;

    /// Content of a sample.
    fn content(&self) -> Content;

    /// `data.path` as written; `None` if it is absent or this kind has no path.
    fn path(&self) -> Option<&str> {
        None
    }

    /// Mutable references to all paths that are given.
    fn paths_mut(&mut self) -> Vec<&mut String> {
        Vec::new()
    }

    /// Fraction of the data used for validation; `None` if the data set has its own split.
    fn valid_fraction(&self) -> Option<f64> {
        None
    }

    /// The tokenizer; `None` for data without text.
    fn tokenizer(&self) -> Option<Tokenizer> {
        None
    }

    /// How the text is cut into samples; `None` for data without text.
    fn sampling(&self) -> Option<&TextSampling> {
        None
    }

    /// Mutable form of [`DataKind::sampling`].
    fn sampling_mut(&mut self) -> Option<&mut TextSampling> {
        None
    }

    /// Random augmentation of training images; `None` for data without images.
    fn augmentation(&self) -> Option<Augmentation> {
        None
    }

    /// How a panel is split, and the target of the prediction; `None` for data without a panel.
    fn panel_split(&self) -> Option<&PanelSplit> {
        None
    }

    /// Which rows of prompts and responses are read, and how they form batches; `None` for other
    /// data.
    fn pairs(&self) -> Option<&PairSampling> {
        None
    }

    /// Mutable form of [`DataKind::pairs`].
    fn pairs_mut(&mut self) -> Option<&mut PairSampling> {
        None
    }

    /// How batches are made; `None` without data.
    fn loader(&self) -> Option<&Loader>;

    /// Mutable form of [`DataKind::loader`].
    fn loader_mut(&mut self) -> Option<&mut Loader>;
}

/// Methods of [`DataKind`] for keys that several kinds have.
macro_rules! has {
    (loader) => {
        fn loader(&self) -> Option<&Loader> {
            Some(&self.loader)
        }

        fn loader_mut(&mut self) -> Option<&mut Loader> {
            Some(&mut self.loader)
        }
    };
    // An optional `path`: the folder of a known set.
    (folder) => {
        fn path(&self) -> Option<&str> {
            self.path.as_deref()
        }

        fn paths_mut(&mut self) -> Vec<&mut String> {
            self.path.iter_mut().collect()
        }
    };
    // A `path` that must be given.
    (path) => {
        fn path(&self) -> Option<&str> {
            Some(&self.path)
        }

        fn paths_mut(&mut self) -> Vec<&mut String> {
            vec![&mut self.path]
        }
    };
    (text) => {
        fn tokenizer(&self) -> Option<Tokenizer> {
            Some(self.tokenizer)
        }

        fn sampling(&self) -> Option<&TextSampling> {
            Some(&self.sampling)
        }

        fn sampling_mut(&mut self) -> Option<&mut TextSampling> {
            Some(&mut self.sampling)
        }
    };
    (augmentation) => {
        fn augmentation(&self) -> Option<Augmentation> {
            Some(self.augmentation)
        }
    };
    (panel) => {
        fn panel_split(&self) -> Option<&PanelSplit> {
            Some(&self.split)
        }

        fn valid_fraction(&self) -> Option<f64> {
            Some(self.split.valid_fraction)
        }
    };
    (pairs) => {
        fn pairs(&self) -> Option<&PairSampling> {
            Some(&self.sampling)
        }

        fn pairs_mut(&mut self) -> Option<&mut PairSampling> {
            Some(&mut self.sampling)
        }
    };
}
pub(super) use has;

/// Declares the kinds: the enum that files are read into.
macro_rules! data_kinds {
    ($($(#[$attribute:meta])+ $kind:ident($settings:ident),)+) => {
        /// The data set: its kind, its path, how it is cut into samples and loaded.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        pub enum Data {
            $($(#[$attribute])+ $kind($settings),)+
        }

        impl Deref for Data {
            type Target = dyn DataKind;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$kind(settings) => settings,)+
                }
            }
        }

        impl DerefMut for Data {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$kind(settings) => settings,)+
                }
            }
        }
    };
}

data_kinds! {
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

impl Default for Data {
    fn default() -> Self {
        Self::None(NoData {})
    }
}

impl Data {
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
