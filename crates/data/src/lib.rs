//! Data sets: names, checksums, and readers. Text, images, panels of prices, pairs of prompts and
//! responses, tokenizers. Nothing here uses the network.

pub mod dataset;
pub mod error;
pub mod facts;
pub mod files;
pub mod generated;
pub mod images;
pub mod left_out;
pub mod notices;
pub mod overview;
pub mod pairs;
pub mod panel;
#[cfg(test)]
mod published;
pub mod source;
mod split;
mod suffix;
pub mod text;
pub mod tokenizer;
pub mod weights;
