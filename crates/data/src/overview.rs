//! The data of an experiment as a training reads them, for a person: files, samples, what is left
//! out, classes, tokens, lengths, columns.
//!
//! Every number comes from the functions with which a trial reads its data.

mod untaken;
mod validation;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kiln_core::kinds::{
    Content, Data,
    data::{Counts, DataFacts, ImageShape, PairCounts, Tokenizer},
    samples::evaluation_windows,
};
use serde::Serialize;

use super::{
    error::DataError,
    images::{self, class_counts, seen_valid_images},
    left_out, notices,
    pairs::{self, Pair},
    panel::{self, PanelOverview},
    source, text,
};

/// The data of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataOverview {
    /// `data.kind`.
    pub kind: String,
    /// Files and folders that are read; empty for generated data.
    pub read_from: Vec<String>,
    /// As in the facts of a run.
    pub sha256: String,
    /// How the validation part is made, in words.
    pub validation: String,
    /// The parts that are left out, in words, and how many there are.
    pub left_out: BTreeMap<String, u64>,
    /// Validation samples that are training samples too, byte for byte; `None` for data whose
    /// samples are not compared.
    pub valid_samples_in_train: Option<u64>,
    /// Sentences on probable mistakes in the data, as in the notices of a trial.
    pub notice: Option<String>,
    /// Tokens, or rows of a panel, of a sample; `None` for other data.
    pub seq_len: Option<u64>,
    #[serde(flatten)]
    pub parts: PartsOverview,
}

/// The two parts, by the content of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "content", rename_all = "lowercase")]
pub enum PartsOverview {
    Text(TextOverview),
    Images(ImagesOverview),
    Panel(PanelOverview),
    Pairs(PairsOverview),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextOverview {
    /// Absent if `tokenizer_file` counts.
    pub tokenizer: Option<Tokenizer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_file: Option<String>,
    pub vocabulary: u64,
    pub train: TextPart,
    pub valid: TextPart,
    /// Validation tokens that do not occur in the training text.
    pub unknown_valid_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextPart {
    /// Length of the uncompressed text.
    pub bytes: u64,
    pub characters: u64,
    pub tokens: u64,
    /// Samples of an epoch or of an evaluation; `None` if the length of a sample is not known.
    pub samples: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImagesOverview {
    pub shape: ImageShape,
    pub train_images: u64,
    pub valid_images: u64,
    /// In the order of their labels.
    pub classes: Vec<ClassOverview>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassOverview {
    pub name: String,
    pub train_images: u64,
    pub valid_images: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairsOverview {
    pub vocabulary: u64,
    pub max_prompt_tokens: u64,
    pub max_response_tokens: u64,
    pub train: PairsPart,
    pub valid: PairsPart,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairsPart {
    pub rows: u64,
    /// Tokens of each prompt once it is cut, with its end token; `None` without rows.
    pub prompt_tokens: Option<Lengths>,
    /// The same of each response.
    pub response_tokens: Option<Lengths>,
    pub cut_prompts: u64,
    pub cut_responses: u64,
    /// Fraction of the tokens that are unknown.
    pub unknown_fraction: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lengths {
    pub min: u64,
    pub median: f64,
    pub max: u64,
}

/// Reads the data and describes them. `seq_len` is that of the model, if it has one; `data_folder`
/// is `$KILN_DATA`, if set.
///
/// # Errors
/// The data do not exist, or cannot be read; `kind: none` has nothing to read.
pub fn overview(
    data: &Data,
    seq_len: Option<u64>,
    data_folder: Option<&Path>,
) -> Result<DataOverview, DataError> {
    match data.content() {
        Content::Nothing => Err(DataError::NoText),
        Content::Text => of_text(data, seq_len, data_folder),
        Content::Images => of_images(data, data_folder),
        Content::Panel => of_panel(data, seq_len, data_folder),
        Content::Pairs => of_pairs(data, data_folder),
    }
}

/// The overview of data in which nothing is left out and no samples are compared.
fn whole(
    data: &Data,
    data_folder: Option<&Path>,
    facts: &DataFacts,
    parts: PartsOverview,
) -> Result<DataOverview, DataError> {
    let read_from = source::locate(data, data_folder)?;
    let shown = |path: &PathBuf| path.display().to_string();
    Ok(DataOverview {
        kind: data.kind().to_owned(),
        read_from: read_from.iter().map(shown).collect(),
        sha256: facts.sha256.clone(),
        validation: validation::in_words(data)?,
        left_out: BTreeMap::new(),
        valid_samples_in_train: None,
        notice: None,
        seq_len: None,
        parts,
    })
}

fn of_text(
    data: &Data,
    seq_len: Option<u64>,
    data_folder: Option<&Path>,
) -> Result<DataOverview, DataError> {
    let read = text::read(data, data_folder)?;
    let [train, valid] = [&read.train, &read.valid].map(|part| TextPart {
        bytes: part.len() as u64,
        characters: part.chars().count() as u64,
        tokens: 0,
        samples: None,
    });
    let found = text::tokenize(data, read)?;
    let (train_tokens, valid_tokens) = (found.train.len() as u64, found.valid.len() as u64);
    let parts = PartsOverview::Text(TextOverview {
        tokenizer: data.tokenizer().filter(|_| data.tokenizer_file().is_none()),
        tokenizer_file: data.tokenizer_file().map(str::to_owned),
        vocabulary: found.vocabulary.len() as u64,
        train: TextPart {
            tokens: train_tokens,
            samples: found.facts.train_samples(data, seq_len),
            ..train
        },
        valid: TextPart {
            tokens: valid_tokens,
            samples: seq_len.map(|seq_len| evaluation_windows(valid_tokens, seq_len)),
            ..valid
        },
        unknown_valid_tokens: found.unknown_valid_tokens,
    });
    Ok(DataOverview {
        notice: notices::of_text(data, &found),
        seq_len,
        ..whole(data, data_folder, &found.facts, parts)?
    })
}

fn of_images(data: &Data, data_folder: Option<&Path>) -> Result<DataOverview, DataError> {
    let found = images::load(data, data_folder)?;
    let names = images::describe(data)?.classes.unwrap_or_default();
    let [train, valid] = class_counts(&found);
    let classes = train.iter().zip(&valid).enumerate();
    let class = |(label, (train, valid)): (usize, (&u64, &u64))| ClassOverview {
        name: names
            .get(label)
            .cloned()
            .unwrap_or_else(|| label.to_string()),
        train_images: *train,
        valid_images: *valid,
    };
    let parts = PartsOverview::Images(ImagesOverview {
        shape: found.shape,
        train_images: found.train.labels.len() as u64,
        valid_images: found.valid.labels.len() as u64,
        classes: classes.map(class).collect(),
    });
    Ok(DataOverview {
        left_out: left_out::of_images(&found),
        valid_samples_in_train: seen_valid_images(&found)?,
        notice: notices::of_images(data, &found),
        ..whole(data, data_folder, &found.facts, parts)?
    })
}

fn of_panel(
    data: &Data,
    seq_len: Option<u64>,
    data_folder: Option<&Path>,
) -> Result<DataOverview, DataError> {
    let (overview, found) = panel::overview(data, data_folder, seq_len)?;
    let parts = PartsOverview::Panel(overview);
    let mut left_out = left_out::of_panel(&found);
    left_out.extend(untaken::symbols(&found, seq_len));
    Ok(DataOverview {
        left_out,
        notice: found.chained.clone(),
        seq_len,
        ..whole(data, data_folder, &found.facts, parts)?
    })
}

fn of_pairs(data: &Data, data_folder: Option<&Path>) -> Result<DataOverview, DataError> {
    let found = pairs::load(data, data_folder)?;
    let sampling = data.pairs().cloned().unwrap_or_default();
    let (train, valid) = match &found.facts.counts {
        Counts::Pairs { train, valid, .. } => (*train, *valid),
        _ => Default::default(),
    };
    let parts = PartsOverview::Pairs(PairsOverview {
        vocabulary: found.tokens.len() as u64,
        max_prompt_tokens: sampling.max_prompt_tokens,
        max_response_tokens: sampling.max_response_tokens,
        train: pairs_part(&found.train, &train),
        valid: pairs_part(&found.valid, &valid),
    });
    let mut left_out = left_out::of_pairs(&found.facts, &sampling);
    left_out.extend(untaken::rows(&found, &sampling));
    Ok(DataOverview {
        left_out,
        valid_samples_in_train: Some(found.seen_valid_rows),
        notice: notices::of_pairs(data, &found),
        ..whole(data, data_folder, &found.facts, parts)?
    })
}

fn pairs_part(rows: &[Pair], counts: &PairCounts) -> PairsPart {
    PairsPart {
        rows: counts.rows,
        prompt_tokens: lengths(rows.iter().map(|row| row.prompt.len() as u64).collect()),
        response_tokens: lengths(rows.iter().map(|row| row.response.len() as u64).collect()),
        cut_prompts: counts.cut_prompts,
        cut_responses: counts.cut_responses,
        unknown_fraction: counts.unknown_fraction(),
    }
}

fn lengths(mut tokens: Vec<u64>) -> Option<Lengths> {
    tokens.sort_unstable();
    let (min, max) = (*tokens.first()?, *tokens.last()?);
    let (below, above) = (tokens[(tokens.len() - 1) / 2], tokens[tokens.len() / 2]);
    let median = (below + above) as f64 / 2.0;
    Some(Lengths { min, median, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let of = |tokens: &[u64]| lengths(tokens.to_vec()).map(|of| (of.min, of.median, of.max));
        assert_eq!(of(&[9, 1, 4, 2]), Some((1, 3.0, 9)));
        assert_eq!(of(&[5, 1, 2]), Some((1, 2.0, 5)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_text_is_counted_in_bytes_characters_tokens_and_samples() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.txt");
        std::fs::write(&path, "äbcäbcäbcz").unwrap();
        let data = format!(
            "{{kind: text, path: {}, valid_fraction: 0.4}}",
            path.display()
        );
        let data = serde_yaml::from_str(&data).unwrap();
        let found = overview(&data, Some(2), None).unwrap();
        let part = |bytes, characters, tokens, samples| TextPart {
            bytes,
            characters,
            tokens,
            samples: Some(samples),
        };
        let expected = TextOverview {
            tokenizer: Some(Tokenizer::Character),
            tokenizer_file: None,
            vocabulary: 4,
            train: part(8, 6, 6, 2),
            valid: part(5, 4, 4, 2),
            unknown_valid_tokens: 1,
        };
        assert_eq!(found.parts, PartsOverview::Text(expected.clone()));
        assert_eq!(found.read_from, [path.display().to_string()]);
        let rows = format!(
            "{{kind: text, path: {}, valid_fraction: 0.4, sampling: contiguous}}",
            path.display()
        );
        let rows = serde_yaml::from_str(&rows).unwrap();
        let rows = overview(&rows, Some(2), None).unwrap();
        assert_eq!(rows.parts, PartsOverview::Text(expected));
    }

    #[test]
    fn the_notices_of_a_trial_on_its_data_are_given() {
        let folder = tempfile::tempdir().unwrap();
        let notice = |data: &str| {
            let data = serde_yaml::from_str(data).unwrap();
            overview(&data, Some(2), None).unwrap().notice
        };
        let text = folder.path().join("own.txt");
        std::fs::write(&text, "a b c\na x y\n").unwrap();
        let words = format!(
            "{{kind: text, path: {}, tokenizer: word, valid_fraction: 0.5}}",
            text.display()
        );
        assert_eq!(
            notice(&words).unwrap(),
            "50.0 % of the tokens of the validation text are unknown to the tokenizer; the \
             training text does not have them; use `data.tokenizer: byte`, or more text"
        );
        let photos = folder.path().join("photos");
        for class in ["a", "b"] {
            let class = photos.join(class);
            std::fs::create_dir_all(&class).unwrap();
            for number in 0..10 {
                let file = std::fs::File::create(class.join(format!("{number}.png"))).unwrap();
                let mut encoder = png::Encoder::new(file, 1, 1);
                encoder.set_color(png::ColorType::Grayscale);
                encoder.set_depth(png::BitDepth::Sixteen);
                let mut writer = encoder.write_header().unwrap();
                writer.write_image_data(&[3, 232]).unwrap();
            }
        }
        let deep = format!("{{kind: image-folder, path: {}}}", photos.display());
        let deep = notice(&deep).unwrap();
        assert!(
            deep.starts_with("18 of 18 images that were looked at have 16 bits per channel"),
            "{deep}"
        );
    }
}
