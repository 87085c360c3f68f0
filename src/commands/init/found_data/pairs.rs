//! A JSONL file as prompts and responses: the keys of both.

use std::path::{Path, PathBuf};

use kiln_core::{input::is_absent, units::Bytes};
use serde_json::{Map, Value};

use super::{
    DataProposal, FoundData, LONGEST_LINE, Lines, few, lines, name_of, scalar, shown, unpacked,
};
use crate::commands::init::character_tokenizer;

/// Rows whose keys are looked at.
const ROWS_LOOKED_AT: usize = 100;
/// Names of keys that are usually the prompt, best first.
const PROMPTS: [&str; 5] = ["prompt", "question", "instruction", "input", "source"];
/// Names of keys that are usually the response, best first.
const RESPONSES: [&str; 5] = ["response", "answer", "output", "completion", "target"];
/// Names of keys on which a response may depend besides the prompt.
const FURTHER: [&str; 5] = ["input", "instruction", "context", "system", "history"];

/// Finds prompts and responses in the file `path`; `valid` is the file of validation rows, and `home`
/// the folder of the experiment file.
pub(super) fn pairs(
    path: &Path,
    valid: Option<&Path>,
    home: &Path,
) -> Result<DataProposal, String> {
    let Lines {
        first,
        is_first_whole,
        count: rows,
    } = lines(path, ROWS_LOOKED_AT)?;
    let begin = first.first().map_or("", String::as_str);
    if begin.starts_with('[') {
        return Err(json_list_refusal(path));
    }
    if !first.is_empty() && !is_first_whole {
        return Err(format!(
            "its first line is longer than {}, and `kiln init` looks at no longer one; put a shorter \
             row first",
            Bytes(LONGEST_LINE)
        ));
    }
    if object(begin).is_none() {
        return Err(
            "its first line is not a JSON object, such as {\"prompt\": …, \"response\": …}"
                .to_owned(),
        );
    }
    let texts = text_keys(&first);
    let [prompt, response] = keys(&texts)?;
    let others: Vec<&String> = texts
        .iter()
        .filter(|key| ![prompt, response].contains(key))
        .collect();
    let (mut comments, mut notes) = (Vec::new(), Vec::new());
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|key| scalar(key)).collect();
        comments.push(format!("not read: {}", few(&names)));
    }
    let further = others.iter().find(|key| is_one(&FURTHER, key));
    notes.extend(further.map(|key| {
        format!(
            "note: `{key}` is not read, the prompt is `{prompt}` alone; if responses depend on \
             `{key}`, write both into one text"
        )
    }));
    if let Some((comment, note)) = of_unusual_names([prompt, response]) {
        comments.push(comment);
        notes.push(note);
    }
    let (tokenizer, made) = tokenizer(path, [prompt, response], home)?;
    let data = FoundData::Pairs {
        path: shown(path),
        valid: valid.map(shown),
        tokenizer,
        made,
        prompt: scalar(prompt),
        response: scalar(response),
        rows,
        comments,
    };
    Ok(DataProposal { data, notes })
}

/// The tokenizer file beside the rows, and its text if it is still to be written. Where
/// `tokenizer.json` is one of the characters of other rows, the file is named for these. None is
/// written beside rows that lie elsewhere than the experiment file: others may read them too.
fn tokenizer(
    path: &Path,
    keys: [&str; 2],
    home: &Path,
) -> Result<(PathBuf, Option<String>), String> {
    let rows = unpacked(path);
    let stem = rows.file_stem().unwrap_or_default().to_string_lossy();
    let own_name = format!("{stem}.tokenizer.json");
    let own = match is_below(path, home) {
        true => path.with_file_name(&own_name),
        false => home.join(&own_name),
    };
    let beside = ["tokenizer.json", own_name.as_str()].map(|name| path.with_file_name(name));
    let elsewhere = (!beside.contains(&own)).then_some(&own);
    for file in beside.iter().chain(elsewhere) {
        let may_write = elsewhere.is_none_or(|own| own == file);
        match file.symlink_metadata() {
            Ok(_) if character_tokenizer::is_of_other_rows(file, path, keys)? => {}
            Ok(_) => return Ok((file.clone(), None)),
            Err(error) if is_absent(&error) && may_write => {
                let made = character_tokenizer::of_rows(path, keys)?;
                return Ok((file.clone(), Some(made)));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(format!("its {} cannot be read: {error}", name_of(file))),
        }
    }
    Err(match elsewhere {
        Some(own) => format!(
            "{} is a tokenizer of characters that lacks some of these rows; remove it, and `kiln \
             init` writes it anew",
            own.display()
        ),
        None => format!(
            "the tokenizers of characters beside it, tokenizer.json and {own_name}, lack characters \
             of it; remove {own_name}, and `kiln init` writes it anew"
        ),
    })
}

/// Whether a file lies in a folder or below it, links followed.
fn is_below(file: &Path, folder: &Path) -> bool {
    let real = |folder: &Path| match folder.as_os_str().is_empty() {
        true => Path::new(".").canonicalize(),
        false => folder.canonicalize(),
    };
    match (real(file.parent().unwrap_or(file)), real(folder)) {
        (Ok(inner), Ok(outer)) => inner.starts_with(outer),
        _ => false,
    }
}

/// The refusal of a JSON list, with the command that converts it.
pub(super) fn json_list_refusal(path: &Path) -> String {
    format!(
        "this is one JSON list, and kiln reads one JSON object per line; `jq -c '.[]' {} > \
         rows.jsonl` writes such a file",
        path.display()
    )
}

fn object(line: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(line).ok()
}

/// The keys of texts that are not blank in every row.
fn text_keys(lines: &[String]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for row in lines.iter().filter_map(|line| object(line)) {
        for (key, value) in row {
            let is_text = value.as_str().is_some_and(|text| !text.trim().is_empty());
            if is_text && !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

fn is_one(names: &[&str], key: &str) -> bool {
    names.contains(&key.to_lowercase().as_str())
}

/// The comment and the note on keys that were not taken by their names.
fn of_unusual_names([prompt, response]: [&str; 2]) -> Option<(String, String)> {
    let (role, key) = match (is_one(&PROMPTS, prompt), is_one(&RESPONSES, response)) {
        (true, true) => return None,
        (true, false) => ("response", response),
        (false, true) => ("prompt", prompt),
        (false, false) => {
            return Some((
                "the keys by their order in the file; swap them for the other way".to_owned(),
                format!(
                    "note: no usual name says which text is the prompt: `{prompt}`, the first key, \
                     is taken as the prompt and `{response}` as the response; if it is the other \
                     way, swap `data.prompt_key` and `data.response_key`"
                ),
            ));
        }
    };
    let comment = format!("the {role} is the only other text; its key is no usual name");
    let note = format!(
        "note: `{key}` is taken as the {role} because it is the only other text; if it is not the \
         {role}, name the key of the {role}s in `data.{role}_key`"
    );
    Some((comment, note))
}

fn is_id(key: &str) -> bool {
    key.to_lowercase() == "id" || key.ends_with("_id")
}

/// The keys of the prompt and the response. One of them may have any name if it is the only other; two
/// texts without usual names are taken in their order.
fn keys(texts: &[String]) -> Result<[&String; 2], String> {
    if texts.len() < 2 {
        return Err("its rows have no two texts, a prompt and a response".to_owned());
    }
    let named = |names: &[&str]| {
        let mut names = names.iter();
        names.find_map(|name| texts.iter().find(|key| is_one(&[*name], key)))
    };
    let only_other = |one: &String| {
        let mut others = texts.iter().filter(|key| *key != one && !is_id(key));
        others.next().filter(|_| others.next().is_none())
    };
    let found = match (named(&PROMPTS), named(&RESPONSES)) {
        (Some(prompt), Some(response)) => Some([prompt, response]),
        (Some(prompt), None) => only_other(prompt).map(|response| [prompt, response]),
        (None, Some(response)) => only_other(response).map(|prompt| [prompt, response]),
        (None, None) => match texts {
            [first, second] if !is_id(first) && !is_id(second) => Some([first, second]),
            _ => None,
        },
    };
    found.ok_or_else(|| {
        let names: Vec<String> = texts.iter().map(|key| format!("`{key}`")).collect();
        format!(
            "its rows have the texts {}, and their names do not say which is the prompt and which the \
             response; rename these two keys to `prompt` and `response`, or write the experiment file \
             yourself, with `data.prompt_key` and `data.response_key`",
            few(&names)
        )
    })
}
