//! Checks of a page, by medium. In: a page. Out: the characters and tags that it must not contain.

use serde_json::Value;

/// Stands at the beginning of every line that a hostile value tries to add.
pub(super) const FORGED: &str = "FORGED";

/// kiln's own colors and weights.
const COLORS: [&str; 8] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[4m",
    "\u{1b}[31m",
    "\u{1b}[31;1m",
    "\u{1b}[32m",
    "\u{1b}[33m",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Text,
    /// On a terminal, with kiln's own colors.
    Terminal,
    Markdown,
    Html,
    Svg,
    Csv,
    /// One object or array.
    Json,
    /// An object on each line.
    JsonLines,
}

/// A page, and how it was made.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) label: String,
    pub(super) medium: Medium,
    pub(super) text: String,
}

impl Page {
    /// Each fault with the page's label and the line where it is.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut text = self.text.clone();
        if self.medium == Medium::Terminal {
            text = COLORS.iter().fold(text.replace("\r\n", "\n"), |text, own| {
                text.replace(own, "")
            });
        }
        let mut faults = controls(&text);
        match self.medium {
            Medium::Text | Medium::Terminal => faults.extend(forged(&text)),
            Medium::Markdown => {
                faults.extend(forged(&text));
                faults.extend(markup(&without_code(&text)));
                faults.extend(tables(&text));
            }
            Medium::Html | Medium::Svg => faults.extend(elements(&text)),
            Medium::Csv => {
                faults.extend(forged(&text));
                faults.extend(records(&text));
            }
            Medium::Json => faults.extend(objects([text.as_str()].into_iter())),
            Medium::JsonLines => faults.extend(objects(text.lines())),
        }
        faults
            .into_iter()
            .map(|fault| format!("{}: {fault}", self.label))
            .collect()
    }
}

/// Control characters, and characters that change the order or the shape of a line. Written apart
/// from kiln's own list.
fn is_hidden(letter: char) -> bool {
    let code = u32::from(letter);
    let ranges = [
        (0, 0x1f),
        (0x7f, 0x9f),
        (0x200b, 0x200b),
        (0x200e, 0x200f),
        (0x2028, 0x202e),
        (0x2060, 0x206f),
        (0xfeff, 0xfeff),
        (0xe0000, 0xe007f),
    ];
    letter != '\n' && ranges.iter().any(|(from, to)| (from..=to).contains(&&code))
}

fn controls(text: &str) -> Vec<String> {
    let bad = text.lines().find(|line| line.contains(is_hidden));
    bad.map(|line| format!("a hidden character in {line:?}"))
        .into_iter()
        .collect()
}

fn forged(text: &str) -> Vec<String> {
    let begins = |line: &&str| {
        line.trim_start_matches([' ', '#', '-', '>', '*', '|', '"'])
            .starts_with(FORGED)
    };
    let bad = text.lines().find(begins);
    bad.map(|line| format!("a line of a value's own: {line:?}"))
        .into_iter()
        .collect()
}

/// Markdown without its blocks of code and code spans. A fence is closed by one at least as long.
fn without_code(text: &str) -> String {
    let mut fence: Option<usize> = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let ticks = line.bytes().take_while(|byte| *byte == b'`').count();
        match fence {
            Some(open) if ticks >= open && line.trim_end().len() == ticks => fence = None,
            Some(_) => {}
            None if ticks >= 3 => fence = Some(ticks),
            None => lines.push(without_spans(line)),
        }
    }
    assert_eq!(fence, None, "a fence is not closed: {text}");
    lines.join("\n")
}

fn without_spans(line: &str) -> String {
    let line = line.replace("\\`", "");
    let outside = line.split('`').step_by(2);
    outside.collect::<Vec<_>>().join("code")
}

/// Elements of HTML, links and pictures in Markdown that holds no code.
fn markup(text: &str) -> Vec<String> {
    let begins = |place: usize| {
        text[place + 1..]
            .starts_with(|next: char| next.is_ascii_alphabetic() || ['/', '!', '?'].contains(&next))
    };
    let element = text.match_indices('<').find(|(place, _)| begins(*place));
    let link = text
        .match_indices("](")
        .find(|(place, _)| !text[..*place].ends_with('\\'));
    let show = |what: &str, found: Option<(usize, &str)>| {
        found.map(|(place, _)| {
            let line = text[..place].lines().count().max(1) - 1;
            format!("{what} in {:?}", text.lines().nth(line).unwrap_or_default())
        })
    };
    show("an element", element)
        .into_iter()
        .chain(show("a link", link))
        .collect()
}

/// Rows of a table with another number of cells than its head.
fn tables(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut columns = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            columns = None;
            continue;
        }
        let cells = line.replace("\\|", "").matches('|').count() - 1;
        if *columns.get_or_insert(cells) != cells {
            faults.push(format!("{cells} cells in {line:?}"));
        }
    }
    faults
}

/// Elements that only a value can have added.
fn elements(text: &str) -> Vec<String> {
    ["<script>alert", "<img", "</script><", "onerror=\""]
        .iter()
        .filter(|bad| text.contains(**bad))
        .map(|bad| format!("{bad:?}"))
        .collect()
}

fn records(text: &str) -> Vec<String> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(text.as_bytes());
    reader
        .records()
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect()
}

fn objects<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    texts
        .filter_map(|text| serde_json::from_str::<Value>(text).err())
        .map(|error| format!("not JSON: {error}"))
        .collect()
}

#[test]
fn the_check_sees_what_a_value_does_to_a_page() {
    let faults = |medium, text: &str| {
        let label = "page".to_owned();
        let text = text.to_owned();
        Page {
            label,
            medium,
            text,
        }
        .faults()
        .len()
    };
    let of = |medium, texts: &[&str]| -> Vec<usize> {
        texts.iter().map(|text| faults(medium, text)).collect()
    };
    assert_eq!(
        of(
            Medium::Text,
            &["a <b>\n", "a\u{1b}[1m", "a\u{202e}", "a\n  FORGED"]
        ),
        [0, 1, 1, 1]
    );
    assert_eq!(
        of(
            Medium::Terminal,
            &["\u{1b}[1ma\u{1b}[0m\r\n", "\u{1b}[2J", "a\r"]
        ),
        [0, 1, 1]
    );
    assert_eq!(
        of(
            Medium::Markdown,
            &[
                "`<b>` &lt;b> \\[a\\](b)\n```\n<b>\n```\n| a | \\| |\n|---|---|\n| 1 | 2 |\n",
                "<b>",
                "[a](b)",
                "| a |\n|---|\n| 1 | 2 |\n",
                "# FORGED",
            ]
        ),
        [0, 1, 1, 1, 1]
    );
    assert_eq!(of(Medium::Html, &["&lt;img", "<img src=x>"]), [0, 1]);
    assert_eq!(of(Medium::Csv, &["a,b\n1,2\n", "a,b\n1\n"]), [0, 1]);
    assert_eq!(
        of(
            Medium::Json,
            &["{\"a\":\"\\u202e\"}", "{\"a\":\"\u{202e}\"}", "{"]
        ),
        [0, 1, 1]
    );
}
