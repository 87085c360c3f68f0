//! Sentences on probable mistakes in the data, in the notices of a trial and in `kiln data show`.

use kiln_core::{
    kinds::{
        Content,
        data::{Counts, Data, DataFacts},
    },
    record::note::UnknownTokens,
};

use super::{
    images::{LoadedImages, about_classes, about_depth},
    pairs::LoadedPairs,
    text::LoadedText,
};

/// Tokens that only the validation part has.
pub fn of_text(data: &Data, found: &LoadedText) -> Option<String> {
    unknown_of_text(found).map(|unknown| with_remedy(&unknown, data))
}

/// Sizes of the classes, and images of 16 bits per channel.
pub fn of_images(data: &Data, found: &LoadedImages) -> Option<String> {
    joined([about_classes(data, found), about_depth(&found.train)])
}

/// Unknown tokens, and validation rows that are training rows.
pub fn of_pairs(data: &Data, found: &LoadedPairs) -> Option<String> {
    let unknown = unknown_of_pairs(&found.facts).map(|unknown| with_remedy(&unknown, data));
    let seen = seen_rows(found.seen_valid_rows, found.valid.len() as u64);
    joined([unknown, seen])
}

fn joined(notices: [Option<String>; 2]) -> Option<String> {
    let notices: Vec<String> = notices.into_iter().flatten().collect();
    (!notices.is_empty()).then(|| notices.join("; "))
}

/// Present if many tokens of the validation text do not occur in the training text.
pub fn unknown_of_text(found: &LoadedText) -> Option<UnknownTokens> {
    let share = found.unknown_valid_tokens as f64 / found.valid.len().max(1) as f64;
    UnknownTokens::noted(share, "validation text")
}

/// Present if the tokenizer seems to belong to other rows: the first part with many unknown tokens.
pub fn unknown_of_pairs(facts: &DataFacts) -> Option<UnknownTokens> {
    let Counts::Pairs { train, valid, .. } = &facts.counts else {
        return None;
    };
    let parts = [("training rows", train), ("validation rows", valid)];
    parts
        .into_iter()
        .find_map(|(part, counts)| UnknownTokens::noted(counts.unknown_fraction()?, part))
}

/// Words to the user about unknown tokens.
pub fn with_remedy(unknown: &UnknownTokens, data: &Data) -> String {
    let remedy = match data {
        Data::SftJsonl(_) => "is `data.tokenizer` the one for this text?",
        _ if data.tokenizer_file().is_some() => "is `data.tokenizer_file` the one for this text?",
        _ if data.content() == Content::Text => {
            "the training text does not have them; use `data.tokenizer: byte`, or more text"
        }
        _ => "is the tokenizer file the published one?",
    };
    format!("{unknown}; {remedy}")
}

/// A notice if more than so many of the validation rows are training rows.
pub fn seen_rows(seen: u64, rows: u64) -> Option<String> {
    const LEAST_SHARE: f64 = 0.05;
    (seen as f64 > LEAST_SHARE * rows as f64).then(|| {
        format!(
            "{seen} of {rows} validation rows are also training rows: their loss says nothing \
             about new rows; take them out of one of the two parts"
        )
    })
}
