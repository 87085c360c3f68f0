//! Data sets: names, checksums, and readers. Text, images, panels of prices, pairs of prompts and
//! responses, tokenizers. Nothing here uses the network.

pub mod dataset;
pub mod facts;
pub mod generated;
pub mod generated_images;
pub mod images;
pub mod pairs;
pub mod panel;
#[cfg(test)]
mod published;
pub mod source;
pub mod text;
pub mod tokenizer;
pub mod weights;
