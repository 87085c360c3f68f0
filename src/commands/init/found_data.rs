//! Looks at a file or folder and says which kind of data it is.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use kiln_core::input;

use crate::commands::Stop;

/// Entries of a folder that are looked at.
const MOST_ENTRIES: usize = 10_000;
/// Bytes of a line, or of the beginning of a text, that are looked at.
const MOST_BYTES: u64 = 1 << 20;
/// The shortest text of which a model can be trained and validated.
const LEAST_TEXT: u64 = 200;

/// Data as a path leads to it; texts are written as YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundData {
    Text {
        path: String,
        bytes: u64,
    },
    Images {
        path: String,
        images: u64,
    },
    Panel {
        path: String,
        date: String,
        price: String,
        /// Length of the shortest file.
        rows: u64,
    },
    Pairs {
        path: String,
        tokenizer: String,
        prompt: String,
        response: String,
        rows: u64,
    },
}

impl FoundData {
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Text { .. } => "a text",
            Self::Images { .. } => "images",
            Self::Panel { .. } => "a panel of time series",
            Self::Pairs { .. } => "prompts and responses",
        }
    }
}

/// Looks at what lies at a path.
pub(super) fn find(path: &Path) -> Result<FoundData, Stop> {
    let refuse = |what: String| Stop::bad_input(format!("{}: {what}", path.display()));
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse("there is no such file or folder".to_owned()),
        _ => refuse(error.to_string()),
    })?;
    if path.to_str().is_none() {
        return Err(refuse(
            "this path is not UTF-8 text, which an experiment file holds; rename it".to_owned(),
        ));
    }
    let guessed = match found.is_dir() {
        true => of_folder(path),
        false if has_ending(path, &["jsonl", "ndjson"]) => pairs(path),
        false => text(path),
    };
    guessed.map_err(refuse)
}

/// A text as a YAML scalar.
fn scalar(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn shown(path: &Path) -> String {
    scalar(&path.to_string_lossy())
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path
        .extension()
        .map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| endings.contains(&ending.as_str()))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = listed
        .take(MOST_ENTRIES)
        .map(|entry| entry.path())
        .filter(|path| {
            !path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with('.'))
        })
        .collect();
    paths.sort();
    paths
}

fn text(path: &Path) -> Result<FoundData, String> {
    let open = || input::open(path).map_err(|error| error.to_string());
    let bytes = open()?.metadata().map_err(|error| error.to_string())?.len();
    let mut start = Vec::new();
    let read = open()?.take(MOST_BYTES).read_to_end(&mut start);
    read.map_err(|error| error.to_string())?;
    let is_packed = has_ending(path, &["gz", "xz"]);
    let is_text = match std::str::from_utf8(&start) {
        Ok(text) => !text.contains('\0'),
        // A letter may be cut at the end.
        Err(error) => error.error_len().is_none(),
    };
    if !is_text && !is_packed {
        return Err(
            "this file is not UTF-8 text; name a text file, a JSONL file or a folder".to_owned(),
        );
    }
    if bytes < LEAST_TEXT && !is_packed {
        return Err(format!(
            "this text has {bytes} bytes, too few to train on; name one with at least {LEAST_TEXT}"
        ));
    }
    Ok(FoundData::Text {
        path: shown(path),
        bytes,
    })
}

fn of_folder(folder: &Path) -> Result<FoundData, String> {
    let inside = entries(folder);
    let with = |endings: &[&str]| {
        inside
            .iter()
            .find(|path| path.is_file() && has_ending(path, endings))
    };
    if with(&["csv"]).is_some() {
        return panel(folder, &inside);
    }
    if let Some(rows) = with(&["jsonl", "ndjson"]) {
        return pairs(rows);
    }
    let images = images_in(folder) + images_in(&folder.join("train"));
    if images > 0 {
        return Ok(FoundData::Images {
            path: shown(folder),
            images,
        });
    }
    if let Some(found) = with(&["txt"]) {
        return text(found);
    }
    Err(
        "this folder has no data that kiln knows: one folder of PNG or JPEG files per class, CSV \
         files with a date in each row, a JSONL file, or a .txt file"
            .to_owned(),
    )
}

/// Number of images in the folders of a folder.
fn images_in(folder: &Path) -> u64 {
    let classes = entries(folder).into_iter().filter(|path| path.is_dir());
    let images = classes.flat_map(|class| entries(&class));
    images
        .take(MOST_ENTRIES)
        .filter(|path| path.is_file() && has_ending(path, &["png", "jpg", "jpeg"]))
        .count() as u64
}

/// The first lines of a file, and the number of all of them.
fn lines(path: &Path, most: usize) -> Result<(Vec<String>, u64), String> {
    let file = input::open(path).map_err(|error| error.to_string())?;
    let mut reader = BufReader::new(file);
    let (mut first, mut count) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        let read = reader
            .by_ref()
            .take(MOST_BYTES)
            .read_until(b'\n', &mut line);
        if read.map_err(|error| error.to_string())? == 0 {
            return Ok((first, count));
        }
        count += 1;
        if first.len() < most {
            first.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    }
}

fn panel(folder: &Path, inside: &[PathBuf]) -> Result<FoundData, String> {
    let files: Vec<&PathBuf> = inside
        .iter()
        .filter(|path| path.is_file() && has_ending(path, &["csv"]))
        .collect();
    let mut shortest = u64::MAX;
    let mut head: Vec<String> = Vec::new();
    let mut row: Vec<String> = Vec::new();
    for file in files.iter().take(100) {
        let (first, count) = lines(file, 2)?;
        shortest = shortest.min(count.saturating_sub(1));
        if head.is_empty() && first.len() == 2 {
            let fields = |line: &str| -> Vec<String> {
                let fields = line.trim_start_matches('\u{feff}').split(',');
                fields
                    .map(|field| field.trim_matches('"').to_owned())
                    .collect()
            };
            (head, row) = (fields(&first[0]), fields(&first[1]));
        }
    }
    let is_date = |text: &str| {
        let mut parts = text.split('-').map(str::parse::<u32>);
        text.len() == 10 && parts.all(|part| part.is_ok())
    };
    let columns = || head.iter().zip(&row);
    let date = columns()
        .find(|(_, value)| is_date(value))
        .map(|(name, _)| name);
    let numbers: Vec<&String> = columns()
        .filter(|(_, value)| value.parse::<f64>().is_ok())
        .map(|(name, _)| name)
        .collect();
    let named = |wanted: &str| {
        numbers
            .iter()
            .find(|name| name.to_lowercase() == wanted)
            .copied()
    };
    let price = ["adj close", "adj_close", "close", "price", "value"]
        .into_iter()
        .find_map(named)
        .or(numbers.first().copied());
    match (date, price) {
        (Some(date), Some(price)) => Ok(FoundData::Panel {
            path: shown(folder),
            date: scalar(date),
            price: scalar(price),
            rows: shortest,
        }),
        _ => Err(
            "its CSV files have no column of dates (2012-09-04) beside a column of numbers; kiln \
             reads such panels only"
                .to_owned(),
        ),
    }
}

fn pairs(path: &Path) -> Result<FoundData, String> {
    let (first, rows) = lines(path, 1)?;
    let row: serde_json::Map<String, serde_json::Value> = first
        .first()
        .and_then(|line| serde_json::from_str(line).ok())
        .ok_or("its first line is not a JSON object, such as {\"prompt\": …, \"response\": …}")?;
    let texts: Vec<&String> = row
        .iter()
        .filter(|(_, value)| value.is_string())
        .map(|(key, _)| key)
        .collect();
    let named = |names: &[&str]| {
        texts
            .iter()
            .find(|key| names.contains(&key.as_str()))
            .copied()
    };
    let prompt =
        named(&["prompt", "question", "instruction", "input", "source"]).or(texts.first().copied());
    let response = named(&["response", "answer", "output", "completion", "target"])
        .or(texts.iter().find(|key| Some(**key) != prompt).copied());
    let (Some(prompt), Some(response)) = (prompt, response) else {
        return Err("its first row has no two texts, a prompt and a response".to_owned());
    };
    let tokenizer = path.with_file_name("tokenizer.json");
    if !tokenizer.is_file() {
        return Err(format!(
            "prompts and responses need a tokenizer of Hugging Face's `tokenizers`: put it at {}",
            tokenizer.display()
        ));
    }
    Ok(FoundData::Pairs {
        path: shown(path),
        tokenizer: shown(&tokenizer),
        prompt: scalar(prompt),
        response: scalar(response),
        rows,
    })
}
