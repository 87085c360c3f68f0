//! Prompts and their responses: found, read, split, tokenized.
//!
//! In: files of JSON lines and a tokenizer file. Out: [`LoadedPairs`], rows of ids that are cut to
//! length and end with the end token; the trial forms batches. `docs/data.md` documents each
//! number.

mod charsmap;
mod rows;
mod tokens;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::data::{Counts, Data, DataFacts, PairCounts, PairSampling, SftJsonl, UNKNOWN_TOKEN},
    limits::{JSONL_LINE_BYTES, TOKENIZER_BYTES},
};
use sha2::{Digest, Sha256};

use self::rows::PairTexts;
use super::{
    error::{DataError, PairsError},
    files, source, split,
};

pub use self::tokens::TokenFile;

/// Rows that are tokenized at once: enough for every core, few enough to keep temporary memory
/// small.
const ROWS_AT_ONCE: usize = 1024;

/// The remedy for a row of the user's own file that cannot be read.
const OWN_REMEDY: &str = "correct the row or remove it";

/// Prompts and responses in memory.
#[derive(Clone, Debug)]
pub struct LoadedPairs {
    pub train: Vec<Pair>,
    /// Empty if `valid_fraction` is 0.
    pub valid: Vec<Pair>,
    /// Validation rows whose prompt and response are those of a training row.
    pub seen_valid_rows: u64,
    /// Numbers of training and validation rows that there are, of which `train_rows` and
    /// `valid_rows` take the first ones.
    pub(crate) all_rows: [u64; 2],
    pub tokens: TokenFile,
    pub facts: DataFacts,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Token ids, cut, with the end token.
    pub prompt: Vec<u32>,
    /// Token ids, cut, with the end token.
    pub response: Vec<u32>,
    /// The complete text in the file.
    pub prompt_text: String,
    /// The complete text in the file; written responses are compared with it.
    pub response_text: String,
}

/// The settings of an experiment for the rows, the same for every kind.
struct PairsRequest<'a> {
    prompt_key: &'a str,
    response_key: &'a str,
    end_token: &'a str,
    pad_token: &'a str,
    unknown_token: &'a str,
    /// Fraction of the training file used for validation, if there is no other file.
    valid_share: f64,
    sampling: &'a PairSampling,
    remedy: &'static str,
}

impl<'a> PairsRequest<'a> {
    /// `None` for other data.
    fn of(data: &'a Data) -> Option<Self> {
        match data {
            Data::SftJsonl(own) => Some(Self::of_own(own)),
            Data::Chatlm(chatlm) => Some(Self {
                prompt_key: "prompt",
                response_key: "response",
                end_token: "[EOS]",
                pad_token: "[PAD]",
                unknown_token: UNKNOWN_TOKEN,
                valid_share: 0.0,
                sampling: &chatlm.sampling,
                remedy: "the published files have no such row; `kiln data verify chatlm` checks \
                         your files",
            }),
            _ => None,
        }
    }

    /// Key and name of each special token.
    fn special(&self) -> [(&'static str, &'a str); 3] {
        [
            ("end_token", self.end_token),
            ("pad_token", self.pad_token),
            ("unknown_token", self.unknown_token),
        ]
    }

    fn of_own(own: &'a SftJsonl) -> Self {
        Self {
            prompt_key: &own.prompt_key,
            response_key: &own.response_key,
            end_token: &own.end_token,
            pad_token: &own.pad_token,
            unknown_token: &own.unknown_token,
            valid_share: own.valid_share().unwrap_or_default(),
            sampling: &own.sampling,
            remedy: OWN_REMEDY,
        }
    }
}

/// The rows as read and split, before tokenization.
pub(super) struct ReadPairs {
    train: Vec<PairTexts>,
    valid: Vec<PairTexts>,
    /// As in [`LoadedPairs`].
    all_rows: [u64; 2],
    tokenizer: PathBuf,
    tokenizer_bytes: Vec<u8>,
    /// SHA-256 over the uncompressed bytes of the training rows, the validation rows if they have a
    /// separate file, the tokenizer, and with a separate file the end of the training rows.
    pub(super) sha256: String,
}

/// Reads the rows and the tokenizer that `data` names, and tokenizes the rows. `data_folder` is
/// `$KILN_DATA`, if set.
///
/// # Errors
/// A file does not exist or cannot be read; a row has no prompt or no response (file and line); the
/// tokenizer lacks a required token; there are fewer rows than requested.
pub fn load(data: &Data, data_folder: Option<&Path>) -> Result<LoadedPairs, DataError> {
    tokenize(data, read(data, data_folder)?)
}

/// Reads the tokenizer that `data` names, without the rows; its bytes come second.
///
/// # Errors
/// The tokenizer does not exist, cannot be read or lacks a required token. The rows need not exist.
pub fn tokens(data: &Data, data_folder: Option<&Path>) -> Result<(TokenFile, Vec<u8>), DataError> {
    let request = PairsRequest::of(data).ok_or_else(|| other_content(data))?;
    let path = source::locate_tokenizer(data, data_folder)?;
    let bytes = files::read_within(&path, &TOKENIZER_BYTES)?;
    Ok((TokenFile::read(&path, &bytes, request.special())?, bytes))
}

/// Rows of another file, in the tokens of the rows that were trained on.
#[derive(Clone, Debug)]
pub struct OtherPairs {
    pub rows: Vec<Pair>,
    pub counts: PairCounts,
    pub tokens: TokenFile,
}

/// Reads the rows of a file of JSON lines, plain or compressed, with the keys and the tokenizer of
/// `data`. All its rows are read.
///
/// # Errors
/// As [`tokens`]; the file cannot be read, or a row has no prompt or no response.
pub fn load_other(
    data: &Data,
    data_folder: Option<&Path>,
    path: &Path,
) -> Result<OtherPairs, DataError> {
    let request = PairsRequest::of(data).ok_or_else(|| other_content(data))?;
    let (tokens, _) = tokens(data, data_folder)?;
    let bytes = files::read_lines(path, None, &JSONL_LINE_BYTES)?;
    let rows = rows::read(
        path,
        bytes,
        request.prompt_key,
        request.response_key,
        OWN_REMEDY,
    )?;
    let (rows, counts) = pairs(rows, &tokens, request.sampling)?;
    Ok(OtherPairs {
        rows,
        counts,
        tokens,
    })
}

/// Reads and splits the rows, without tokenization.
pub(super) fn read(data: &Data, data_folder: Option<&Path>) -> Result<ReadPairs, DataError> {
    let request = PairsRequest::of(data).ok_or_else(|| other_content(data))?;
    let parts = source::locate(data, data_folder)?;
    let (Some((train_path, others)), Some(tokenizer)) =
        (parts.split_first(), parts.last().cloned())
    else {
        return Err(other_content(data));
    };
    let mut hasher = Sha256::new();
    let mut read_rows = |path: &Path| {
        let bytes = files::read_lines(path, source::most_bytes(data), &JSONL_LINE_BYTES)?;
        hasher.update(&bytes);
        let length = bytes.len();
        let rows = rows::read(
            path,
            bytes,
            request.prompt_key,
            request.response_key,
            request.remedy,
        )?;
        Ok::<_, DataError>((rows, length))
    };
    let (mut train, train_bytes) = read_rows(train_path)?;
    let valid_path = others.split_last().and_then(|(_, valid)| valid.first());
    let valid = match valid_path {
        Some(path) => {
            let (valid, _) = read_rows(path)?;
            split::hash_train_end(&mut hasher, train_bytes, split::published_train_bytes(data));
            valid
        }
        None => train.split_off(split::train_count(train.len(), request.valid_share)),
    };
    let all_rows = [train.len() as u64, valid.len() as u64];
    let sampling = request.sampling;
    let train = first_rows(train, sampling.train_rows, "train_rows", train_path)?;
    let valid = first_rows(
        valid,
        sampling.valid_rows,
        "valid_rows",
        valid_path.unwrap_or(train_path),
    )?;
    let tokenizer_bytes = files::read_within(&tokenizer, &TOKENIZER_BYTES)?;
    hasher.update(&tokenizer_bytes);
    Ok(ReadPairs {
        train,
        valid,
        all_rows,
        tokenizer,
        tokenizer_bytes,
        sha256: hex::encode(hasher.finalize()),
    })
}

fn other_content(data: &Data) -> DataError {
    DataError::OtherContent {
        kind: data.kind(),
        wanted: "prompts and responses",
    }
}

fn first_rows(
    mut rows: Vec<PairTexts>,
    wanted: Option<u64>,
    key: &'static str,
    path: &Path,
) -> Result<Vec<PairTexts>, DataError> {
    let Some(wanted) = wanted else {
        return Ok(rows);
    };
    let there = rows.len() as u64;
    if there < wanted {
        return Err(PairsError::FewRows {
            file: path.to_owned(),
            key,
            wanted,
            there,
        }
        .into());
    }
    rows.truncate(wanted as usize);
    Ok(rows)
}

pub(super) fn tokenize(data: &Data, read: ReadPairs) -> Result<LoadedPairs, DataError> {
    let request = PairsRequest::of(data).ok_or_else(|| other_content(data))?;
    let tokens = TokenFile::read(&read.tokenizer, &read.tokenizer_bytes, request.special())?;
    let seen_valid_rows = seen_rows(&read.train, &read.valid);
    let (train, train_counts) = pairs(read.train, &tokens, request.sampling)?;
    let (valid, valid_counts) = pairs(read.valid, &tokens, request.sampling)?;
    let counts = Counts::Pairs {
        train: train_counts,
        valid: valid_counts,
        vocabulary: tokens.len() as u64,
    };
    Ok(LoadedPairs {
        train,
        valid,
        seen_valid_rows,
        all_rows: read.all_rows,
        tokens,
        facts: DataFacts {
            counts,
            sha256: read.sha256,
        },
    })
}

/// How many validation rows are training rows too.
fn seen_rows(train: &[PairTexts], valid: &[PairTexts]) -> u64 {
    let seen: HashSet<&PairTexts> = train.iter().collect();
    valid.iter().filter(|row| seen.contains(row)).count() as u64
}

fn pairs(
    rows: Vec<PairTexts>,
    tokens: &TokenFile,
    sampling: &PairSampling,
) -> Result<(Vec<Pair>, PairCounts), DataError> {
    let mut counts = PairCounts::default();
    let mut pairs = Vec::with_capacity(rows.len());
    for rows in rows.chunks(ROWS_AT_ONCE) {
        let prompts = tokens.encode_many(rows.iter().map(|row| row.prompt.as_str()).collect())?;
        let responses =
            tokens.encode_many(rows.iter().map(|row| row.response.as_str()).collect())?;
        for ((row, mut prompt), mut response) in rows.iter().zip(prompts).zip(responses) {
            counts.cut_prompts +=
                u64::from(end(&mut prompt, sampling.max_prompt_tokens, tokens.end()));
            counts.cut_responses += u64::from(end(
                &mut response,
                sampling.max_response_tokens,
                tokens.end(),
            ));
            counts.add(prompt.len() as u64, response.len() as u64);
            counts.unknown_tokens += prompt
                .iter()
                .chain(&response)
                .filter(|id| tokens.unknown() == Some(**id))
                .count() as u64;
            pairs.push(Pair {
                prompt,
                response,
                prompt_text: row.prompt.clone(),
                response_text: row.response.clone(),
            });
        }
    }
    Ok((pairs, counts))
}

/// Appends the end token, after at most `most` − 1 ids; returns whether ids were cut.
fn end(ids: &mut Vec<u32>, most: u64, end: u32) -> bool {
    let room = usize::try_from(most)
        .unwrap_or(usize::MAX)
        .saturating_sub(1);
    let is_cut = ids.len() > room;
    ids.truncate(room);
    ids.push(end);
    is_cut
}

#[cfg(test)]
mod tests;
