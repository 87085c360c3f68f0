//! Errors while loading prompts and responses.

use std::path::PathBuf;

/// A fault of the rows or of the tokenizer file, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum PairsError {
    #[error("{}:{line}: {fault}; {remedy}", .file.display())]
    Row {
        file: PathBuf,
        line: usize,
        fault: String,
        remedy: &'static str,
    },
    #[error("{} has no row; each line must be a JSON object with a prompt and a response", .file.display())]
    NoRows { file: PathBuf },
    #[error("{} has {there} rows, fewer than the {wanted} of `data.{key}`; lower it, or remove it \
             to use all rows", .file.display())]
    FewRows {
        file: PathBuf,
        key: &'static str,
        wanted: u64,
        there: u64,
    },
    #[error("{} is not a tokenizer: {reason}; `data.tokenizer` names a tokenizer.json of Hugging \
             Face's `tokenizers`", .file.display())]
    NoTokenizer { file: PathBuf, reason: String },
    #[error("{} has no token `{token}`, which `data.{key}` names{}", .file.display(), offer(.there, .key))]
    NoToken {
        file: PathBuf,
        key: &'static str,
        token: String,
        there: Vec<String>,
    },
    #[error("{} drops merges at random (`dropout` {dropout}), so the tokens of a text would differ \
             each time; set its `dropout` to null", .file.display())]
    Dropout { file: PathBuf, dropout: f32 },
    #[error("{} cannot tokenize a text: {reason}", .file.display())]
    Encode { file: PathBuf, reason: String },
}

fn offer(there: &[String], key: &str) -> String {
    match there {
        [] => format!("; it has no special tokens, name one of its own tokens as `data.{key}`"),
        _ => format!("; its special tokens are {}", there.join(", ")),
    }
}
