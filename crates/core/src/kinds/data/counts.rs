//! Facts about data that are known without training: its size, and the values that a model needs
//! from it.

use serde::{Deserialize, Serialize};

use super::{Data, ImageShape, PairCounts, PairShape, PanelShape, SymbolReturns};
use crate::kinds::samples::sample_count;

/// Facts about a data set that are known without training on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFacts {
    #[serde(flatten)]
    pub counts: Counts,
    /// SHA-256 over the uncompressed bytes of every part that is read, in hex; for a folder of
    /// images over names and lengths, for a panel over names and bytes.
    pub sha256: String,
}

/// Size of the data, and the values that a model needs from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "content", rename_all = "lowercase")]
pub enum Counts {
    Text {
        train_tokens: u64,
        valid_tokens: u64,
        vocabulary: u64,
    },
    Images {
        train_images: u64,
        valid_images: u64,
        shape: ImageShape,
    },
    Panel {
        features: u64,
        symbols: Vec<SymbolReturns>,
    },
    Pairs {
        train: PairCounts,
        valid: PairCounts,
        vocabulary: u64,
    },
}

/// The values of the data that a model needs before it can be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputShape {
    Text { vocabulary: u64 },
    Images(ImageShape),
    Panel(PanelShape),
    Pairs(PairShape),
}

impl InputShape {
    /// The vocabulary; `None` for data without tokens.
    pub fn vocabulary(self) -> Option<u64> {
        match self {
            Self::Text { vocabulary } | Self::Pairs(PairShape { vocabulary, .. }) => {
                Some(vocabulary)
            }
            Self::Images(_) | Self::Panel(_) => None,
        }
    }

    /// The shape of an image; `None` for data without images.
    pub fn images(self) -> Option<ImageShape> {
        if let Self::Images(shape) = self {
            Some(shape)
        } else {
            None
        }
    }

    /// The shape of a panel; `None` for data without a panel.
    pub fn panel(self) -> Option<PanelShape> {
        if let Self::Panel(shape) = self {
            Some(shape)
        } else {
            None
        }
    }

    /// The shape of prompts and responses; `None` for data without them.
    pub fn pairs(self) -> Option<PairShape> {
        if let Self::Pairs(shape) = self {
            Some(shape)
        } else {
            None
        }
    }
}

impl DataFacts {
    /// The values that a model needs before it can be built.
    pub fn input_shape(&self) -> InputShape {
        match &self.counts {
            Counts::Text { vocabulary, .. } => InputShape::Text {
                vocabulary: *vocabulary,
            },
            Counts::Images { shape, .. } => InputShape::Images(*shape),
            Counts::Panel { features, symbols } => InputShape::Panel(PanelShape {
                features: *features,
                symbols: symbols.len() as u64,
            }),
            Counts::Pairs {
                train, vocabulary, ..
            } => InputShape::Pairs(PairShape {
                vocabulary: *vocabulary,
                train: *train,
            }),
        }
    }

    /// Training samples of an epoch for a model that reads `seq_len` tokens or rows at a time;
    /// `None` if such a model cannot read this data.
    pub fn train_samples(&self, data: &Data, seq_len: Option<u64>) -> Option<u64> {
        match &self.counts {
            Counts::Text { train_tokens, .. } => {
                let seq_len = seq_len?;
                Some(sample_count(
                    *train_tokens,
                    seq_len,
                    data.sampling()?.stride.unwrap_or(seq_len),
                ))
            }
            Counts::Images { train_images, .. } => Some(*train_images),
            Counts::Panel { symbols, .. } => Some(
                symbols
                    .iter()
                    .map(|symbol| symbol.train_samples(seq_len.unwrap_or(1)))
                    .sum(),
            ),
            Counts::Pairs { train, .. } => Some(train.rows),
        }
    }
}
