//! What is known of data without training on it: how much there is, and what a model must know of it.

use serde::{Deserialize, Serialize};

use super::{Data, ImageShape, PairCounts, PairShape, PanelShape, SymbolReturns};
use crate::kinds::samples::sample_count;

/// What is known of a data set without training on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFacts {
    #[serde(flatten)]
    pub counts: Counts,
    /// SHA-256 over the uncompressed bytes of every part that is read, as hex; of a folder of images over names and lengths, of a panel over names and bytes.
    pub sha256: String,
}

/// How much data there is, and what a model must know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "content", rename_all = "lowercase")]
pub enum Counts {
    Text { train_tokens: u64, valid_tokens: u64, vocabulary: u64 },
    Images { train_images: u64, valid_images: u64, shape: ImageShape },
    Panel { features: u64, symbols: Vec<SymbolReturns> },
    Pairs { train: PairCounts, valid: PairCounts, vocabulary: u64 },
}

/// What a model must know of its data to be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    Text { vocabulary: u64 },
    Images(ImageShape),
    Panel(PanelShape),
    Pairs(PairShape),
}

impl InputShape {
    /// `None` where there are no tokens.
    pub fn vocabulary(self) -> Option<u64> {
        match self {
            Self::Text { vocabulary } | Self::Pairs(PairShape { vocabulary, .. }) => Some(vocabulary),
            Self::Images(_) | Self::Panel(_) => None,
        }
    }

    /// `None` where there are no images.
    pub fn images(self) -> Option<ImageShape> {
        if let Self::Images(shape) = self { Some(shape) } else { None }
    }

    /// `None` where there is no panel.
    pub fn panel(self) -> Option<PanelShape> {
        if let Self::Panel(shape) = self { Some(shape) } else { None }
    }

    /// `None` where there are no prompts and responses.
    pub fn pairs(self) -> Option<PairShape> {
        if let Self::Pairs(shape) = self { Some(shape) } else { None }
    }
}

impl DataFacts {
    /// What a model must know to be built.
    pub fn input_shape(&self) -> InputShape {
        match &self.counts {
            Counts::Text { vocabulary, .. } => InputShape::Text { vocabulary: *vocabulary },
            Counts::Images { shape, .. } => InputShape::Images(*shape),
            Counts::Panel { features, symbols } => InputShape::Panel(PanelShape { features: *features, symbols: symbols.len() as u64 }),
            Counts::Pairs { train, vocabulary, .. } => InputShape::Pairs(PairShape { vocabulary: *vocabulary, train: *train }),
        }
    }

    /// Training samples of an epoch for a model that reads `seq_len` tokens or rows at once; `None` where such a model reads nothing.
    pub fn train_samples(&self, data: &Data, seq_len: Option<u64>) -> Option<u64> {
        match &self.counts {
            Counts::Text { train_tokens, .. } => {
                let seq_len = seq_len?;
                Some(sample_count(*train_tokens, seq_len, data.sampling()?.stride.unwrap_or(seq_len)))
            }
            Counts::Images { train_images, .. } => Some(*train_images),
            Counts::Panel { symbols, .. } => Some(symbols.iter().map(|symbol| symbol.train_samples(seq_len.unwrap_or(1))).sum()),
            Counts::Pairs { train, .. } => Some(train.rows),
        }
    }
}
