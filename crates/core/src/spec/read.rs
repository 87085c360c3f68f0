//! Reads the text of one YAML file into a [`Node`] tree with positions.
//!
//! In: a path or a text. Out: a tree, or every fault of the text itself: invalid YAML, duplicate
//! and merge keys, several documents, tags, aliases that grow too large. The checker interprets the
//! keys.

mod builder;

use std::{fs, path::Path, sync::Arc};

use saphyr_parser::{Event, Parser, ScanError};

use super::{
    node::Node,
    problem::{Location, Problem},
    scalar::Resolved,
    shapes::is_own_key,
    suggest::nearest,
};
use crate::{
    input,
    limits::{EXPERIMENT_BYTES, YAML_DEPTH},
};
use builder::NodeBuilder;

/// A file as a tree, and its faults; if there are faults, the tree holds the part that could be
/// read.
pub(super) struct ReadTree {
    pub(super) tree: Node,
    pub(super) problems: Vec<Problem>,
}

/// Reads a file. `Err` if no tree could be built.
pub(super) fn read_file(path: &Path, source: &Arc<str>) -> Result<ReadTree, Vec<Problem>> {
    let text = read_text(path).map_err(|message| {
        vec![Problem::new(
            &Location {
                source: Arc::clone(source),
                position: None,
            },
            "",
            message,
        )]
    })?;
    read_text_as_tree(&text, source)
}

fn read_text(path: &Path) -> Result<String, String> {
    let found = fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
    if found.is_dir() {
        return Err("is a folder; name a YAML file in it".to_owned());
    }
    input::read(path, &EXPERIMENT_BYTES)
        .map_err(|error| cannot_read(path, &error))
        .and_then(decode)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    if input::exceeded(error).is_some() {
        return format!("{error}; an experiment file is a few kilobytes");
    }
    if error.kind() != std::io::ErrorKind::NotFound {
        return format!("cannot be read: {error}");
    }
    if let Some(setting) = setting(path) {
        return format!("there is no such file; to set a key, write `--set {setting}`");
    }
    let wanted = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let Ok(listing) = fs::read_dir(folder) else {
        return format!(
            "there is no such file, and no folder `{}`",
            folder.display()
        );
    };
    let names: Vec<String> = listing
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let mut near: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.ends_with(".yaml") || name.ends_with(".yml"))
        .collect();
    near.sort_unstable();
    let without_end = |name: &&str| {
        let stem = name.rsplit_once('.').map_or(*name, |(stem, _)| stem);
        stem == wanted
    };
    let whole = near.iter().find(|name| without_end(name)).copied();
    match whole.or_else(|| nearest(&wanted, near)) {
        Some(name) => format!(
            "there is no such file; did you mean `{}`?",
            path.with_file_name(name).display()
        ),
        None => "there is no such file".to_owned(),
    }
}

/// The text of a path that was meant as a `--set`: `train.batch_size=8`, quoted for the shell.
fn setting(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let (key, _) = text.split_once('=')?;
    let is_key = key.contains('.') && key.split('.').all(is_own_key);
    let is_plain = |letter: char| letter.is_alphanumeric() || "._-+=/:,".contains(letter);
    is_key.then(|| match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{text}'"),
    })
}

fn decode(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err("is UTF-16 text; save it as UTF-8".to_owned());
    }
    if bytes.contains(&0) {
        return Err("is a binary file; an experiment file is YAML text in UTF-8".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        format!("is not UTF-8 text (line {line}); save it as UTF-8")
    })
}

/// Reads a text in memory.
pub(super) fn read_text_as_tree(text: &str, source: &Arc<str>) -> Result<ReadTree, Vec<Problem>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = NodeBuilder::new(source);
    for event in Parser::new_from_str(text) {
        let taken = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => Err(builder.syntax(text, &error)),
        };
        if let Err(fault) = taken {
            builder.problems.push(fault);
            return Err(builder.problems);
        }
    }
    match builder.root {
        Some(tree) if tree.scalar_value() != Some(Resolved::Empty) => Ok(ReadTree {
            tree,
            problems: builder.problems,
        }),
        _ => {
            builder.problems.push(Problem::new(
                &Location {
                    source: Arc::clone(source),
                    position: None,
                },
                "",
                "is empty; it needs at least `kiln: 1`, `name` and `model`",
            ));
            Err(builder.problems)
        }
    }
}

/// Refuses a text that is nested too deep, before a reader whose time grows faster than the depth has
/// it, and one whose aliases would make it larger than the limits allow.
pub(super) fn check_growth(text: &str) -> Result<(), Vec<Problem>> {
    let most = YAML_DEPTH.size();
    let mut depth: usize = 0;
    for event in Parser::new_from_str(text) {
        let is_suspect = match event {
            Ok((Event::Alias(_), _)) => true,
            Ok((Event::SequenceStart(..) | Event::MappingStart(..), _)) => {
                depth += 1;
                depth > most
            }
            Ok((Event::SequenceEnd | Event::MappingEnd, _)) => {
                depth = depth.saturating_sub(1);
                false
            }
            Ok(_) => false,
            Err(error) if is_too_deep(&error) => true,
            // The reader of the values says it in its own words.
            Err(_) => return Ok(()),
        };
        if is_suspect {
            return read_text_as_tree(text, &"line".into()).map(drop);
        }
    }
    Ok(())
}

/// The parser has a limit of its own for brackets, which it may reach before their first event.
fn is_too_deep(error: &ScanError) -> bool {
    error.info().contains("recursion limit")
}

#[cfg(test)]
mod tests;
