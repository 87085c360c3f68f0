//! Tests made from the table of keys itself: each key misspelled, given a value of another type, and given twice, with the exact
//! line, column and suggestion expected.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use super::{
    Request,
    keys::{self, Found, KnownKey, Shape, join},
    load,
};

/// A file in which the last line gives `key` (or a misspelling of its last name) the value, inside maps of the right kind.
fn document(known: &KnownKey, name: &str, value: &str) -> (String, usize, usize) {
    let mut text = "kiln: 1\nname: x\nmodel: {kind: gpt}\ndata: {kind: generated}\ntrain: {steps: 5}\n".to_owned();
    let names: Vec<&str> = known.path.split('.').collect();
    text = text.lines().filter(|line| !line.starts_with(&format!("{}:", names[0]))).map(|line| format!("{line}\n")).collect();
    for depth in 0..names.len() - 1 {
        let indent = "  ".repeat(depth);
        text.push_str(&format!("{indent}{}:\n", names[depth]));
        let path = names[..=depth].join(".");
        if let Some((_, kind)) = known.kind.as_ref().filter(|(map, _)| *map == path) {
            text.push_str(&format!("{indent}  kind: {kind}\n"));
        }
    }
    let indent = (names.len() - 1) * 2;
    text.push_str(&format!("{}{name}: {value}\n", " ".repeat(indent)));
    (text.clone(), text.lines().count(), indent + 1)
}

struct Folder(TempDir);

impl Folder {
    fn problems(&self, text: &str) -> Vec<String> {
        let file: PathBuf = self.0.path().join("x.yaml");
        fs::write(&file, text).unwrap();
        let prefix = format!("{}:", file.display());
        let request = Request { file, ..Request::default() };
        match load(&request) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.to_string().lines().map(|line| line.replacen(&prefix, "", 1)).collect(),
        }
    }
}

fn every_key() -> Vec<KnownKey> {
    let keys = keys::every_key();
    assert!(keys.len() > 80);
    keys
}

fn shape(known: &KnownKey) -> Shape {
    let kinds = |path: &str| known.kind.iter().filter(|(map, _)| map == path).map(|(_, kind)| kind.clone()).collect();
    match keys::find(&known.path, &kinds) {
        Found::Shapes(mut shapes) => shapes.remove(0),
        _ => panic!("{}", known.path),
    }
}

fn last(known: &KnownKey) -> &str {
    known.path.rsplit('.').next().unwrap()
}

#[test]
fn every_key_misspelled_is_found_with_its_name_suggested() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let wrong = format!("{}x", last(&known));
        let (text, line, column) = document(&known, &wrong, "1");
        let full = join(known.path.rsplit_once('.').map_or("", |(parent, _)| parent), &wrong);
        let expected = format!("{line}:{column}: unknown key `{full}`; did you mean `{}`?", last(&known));
        let found = folder.problems(&text);
        assert!(found.contains(&expected), "{expected}\nnot in\n{}\nof\n{text}", found.join("\n"));
    }
}

/// A value that no key of this shape may have.
fn mistyped(shape: &Shape) -> &'static str {
    match shape {
        Shape::Text(_) | Shape::TimeSpan | Shape::Choice(_) => "[{a: 1}]",
        Shape::List(_) | Shape::Map(_) | Shape::Tagged(_) | Shape::Free => "17",
        Shape::Integer { .. } | Shape::Number(_) | Shape::Bool => "seventeen",
        Shape::Any(_) => "{a: 1}",
    }
}

#[test]
fn every_key_mistyped_is_found_at_its_value() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let value = mistyped(&shape(&known));
        let (text, line, column) = document(&known, last(&known), value);
        let place = format!("{line}:{}: `{}` is ", column + last(&known).len() + 2, known.path);
        let found = folder.problems(&text);
        let held = found.iter().any(|problem| problem.starts_with(&place) && problem.contains("; it must be "));
        assert!(held, "{place}\nnot in\n{}\nof\n{text}", found.join("\n"));
    }
}

#[test]
fn every_key_given_twice_is_found_at_the_second() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let (text, line, column) = document(&known, last(&known), "1");
        let (twice, second) = (format!("{text}{}{}: 1\n", " ".repeat(column - 1), last(&known)), line + 1);
        let expected = format!("{second}:{column}: duplicate key `{}`; it is first given on line {line}, keep one of them", known.path);
        let found = folder.problems(&twice);
        assert!(found.contains(&expected), "{expected}\nnot in\n{}\nof\n{twice}", found.join("\n"));
    }
}

#[test]
fn every_key_left_empty_is_found() {
    let folder = Folder(TempDir::new().unwrap());
    for known in every_key() {
        let (text, line, _) = document(&known, last(&known), "");
        let found = folder.problems(&text);
        let is_free = matches!(shape(&known), Shape::Free) || matches!(shape(&known), Shape::List(_));
        let words = if is_free { format!("`{}` is empty", known.path) } else { format!("`{}` has no value", known.path) };
        let held = found.iter().any(|problem| problem.starts_with(&format!("{line}:")) && problem.contains(&words));
        assert!(held, "{words}\nnot in\n{}\nof\n{text}", found.join("\n"));
    }
}
