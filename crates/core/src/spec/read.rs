//! Reads the text of one YAML file into a [`Node`] tree with positions.
//!
//! In: a path or a text. Out: a tree, or every fault of the text itself: invalid YAML, duplicate
//! and merge keys, several documents, tags, aliases that grow too large. The checker interprets the
//! keys.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{
    node::{Node, NodeContent, NodeEntry, NodeSize},
    problem::{Location, Problem},
    scalar::{Resolved, Scalar},
    shapes::is_own_key,
    suggest::nearest,
};
use crate::{
    input,
    limits::{EXPERIMENT_BYTES, YAML_DEPTH, YAML_KEYS, YAML_TEXT_BYTES, YAML_VALUES},
};

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
    match nearest(&wanted, near) {
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

/// Refuses a text whose aliases would make it larger than the limits allow; one without aliases
/// cannot grow.
pub(super) fn check_growth(text: &str) -> Result<(), Vec<Problem>> {
    if !text.contains('*') {
        return Ok(());
    }
    for event in Parser::new_from_str(text) {
        match event {
            Ok((Event::Alias(_), _)) => return read_text_as_tree(text, &"line".into()).map(drop),
            Ok(_) => {}
            // The reader of the values says it in its own words.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Builds a tree from the parser's events, without recursion.
struct NodeBuilder {
    source: Arc<str>,
    open: Vec<OpenNode>,
    root: Option<Node>,
    documents: usize,
    anchors: HashMap<usize, Anchor>,
    /// With the aliases written out.
    nodes: usize,
    /// Bytes of the scalars and keys in the tree and in the anchors, each of which is a copy.
    text_bytes: u64,
    limits: ReadLimits,
    problems: Vec<Problem>,
}

/// A value that aliases may name.
struct Anchor {
    node: Node,
    size: NodeSize,
}

/// The values of the limits: they are compared at each value.
struct ReadLimits {
    depth: usize,
    values: usize,
    keys: usize,
    text_bytes: u64,
}

impl NodeBuilder {
    fn new(source: &Arc<str>) -> Self {
        Self {
            source: Arc::clone(source),
            open: Vec::new(),
            root: None,
            documents: 0,
            anchors: HashMap::new(),
            nodes: 0,
            text_bytes: 0,
            limits: ReadLimits {
                depth: YAML_DEPTH.size(),
                values: YAML_VALUES.size(),
                keys: YAML_KEYS.size(),
                text_bytes: YAML_TEXT_BYTES.value(),
            },
            problems: Vec::new(),
        }
    }
}

/// A list or map that is not closed yet.
struct OpenNode {
    node: Node,
    anchor: usize,
    /// In a map: the line number of each key.
    lines: HashMap<String, usize>,
    /// In a map: the key whose value comes next. `Key(None)` discards the value of a refused key.
    key: Waiting,
}

enum Waiting {
    ForKey,
    ForValue(Option<(String, Location)>),
}

impl NodeBuilder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        let location = Location::at(&self.source, span.start.line(), span.start.col() + 1);
        match event {
            Event::DocumentStart(_) => self.begin_document(&location),
            Event::Scalar(text, style, anchor, tag) => {
                let mut scalar = if style == ScalarStyle::Plain {
                    Scalar::plain(&text)
                } else {
                    Scalar::quoted(&text)
                };
                if let Some(tag) = tag {
                    self.refuse_tag(&location, &tag, &text);
                    // A comparison is not also reported as empty.
                    scalar = if tag.suffix.starts_with('=') {
                        Scalar::quoted(&format!("!{}{text}", tag.suffix))
                    } else {
                        scalar
                    };
                }
                self.add(
                    Node {
                        content: NodeContent::Scalar(scalar),
                        location,
                    },
                    anchor,
                )
            }
            Event::SequenceStart(anchor, tag) => self.begin(
                NodeContent::List(Vec::new()),
                location,
                anchor,
                tag.as_deref(),
            ),
            Event::MappingStart(anchor, tag) => self.begin(
                NodeContent::Map(Vec::new()),
                location,
                anchor,
                tag.as_deref(),
            ),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(done) => self.add(done.node, done.anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => self.alias(anchor, &location),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin_document(&mut self, location: &Location) -> Result<(), Problem> {
        self.documents += 1;
        if self.documents > 1 {
            return Err(Problem::new(
                location,
                "",
                "a second document begins here; an experiment file holds one, so split it at `---` \
                 into files",
            ));
        }
        Ok(())
    }

    fn refuse_tag(&mut self, location: &Location, tag: &Tag, value: &str) {
        let name = if tag.is_yaml_core_schema() {
            format!("!!{}", tag.suffix)
        } else {
            format!("{}{}", tag.handle, tag.suffix)
        };
        let message = match tag.suffix.strip_prefix('=') {
            Some(number) => format!(
                "put a comparison in quotes, such as `\"!={number}{value}\"`: without them, `!` \
                 begins a tag"
            ),
            None => format!(
                "the tag `{name}` is not supported; write the value without it, quoted if it is \
                 text"
            ),
        };
        self.problems
            .push(Problem::new(location, self.path(), message));
    }

    fn begin(
        &mut self,
        content: NodeContent,
        location: Location,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> Result<(), Problem> {
        if let Some(tag) = tag {
            self.refuse_tag(&location, tag, "");
        }
        if self.open.len() >= self.limits.depth {
            return Err(Problem::new(&location, "", too_deep(self.limits.depth)));
        }
        self.open.push(OpenNode {
            node: Node { content, location },
            anchor,
            lines: HashMap::new(),
            key: Waiting::ForKey,
        });
        Ok(())
    }

    fn alias(&mut self, anchor: usize, location: &Location) -> Result<(), Problem> {
        let Some(size) = self.anchors.get(&anchor).map(|anchor| anchor.size) else {
            return Err(Problem::new(
                location,
                self.path(),
                "this alias is inside the value it names; write the value out",
            ));
        };
        if self.open.len() + size.depth > self.limits.depth {
            let most = self.limits.depth;
            return Err(Problem::new(
                location,
                "",
                format!(
                    "nested more than {most} deep once its aliases are written out; {}",
                    YAML_DEPTH.remedy(None)
                ),
            ));
        }
        // Counted before anything is copied.
        self.count(size.nodes + 1, size.text_bytes, location)?;
        match self.anchors.get(&anchor).map(|anchor| anchor.node.clone()) {
            Some(node) => self.place(node),
            None => Ok(()),
        }
    }

    fn count(&mut self, nodes: usize, text_bytes: u64, location: &Location) -> Result<(), Problem> {
        self.nodes = self.nodes.saturating_add(nodes);
        self.text_bytes = self.text_bytes.saturating_add(text_bytes);
        let most = self.limits.values;
        let too_large = if self.nodes > most {
            format!(
                "holds more than {most} values once its aliases are written out; {}",
                YAML_VALUES.remedy(None)
            )
        } else if self.text_bytes > self.limits.text_bytes {
            YAML_TEXT_BYTES.exceeded(self.limits.text_bytes).to_string()
        } else {
            return Ok(());
        };
        Err(Problem::new(location, "", too_large))
    }

    /// Stores a finished node under its anchor, then puts it into its parent.
    fn add(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.count(1, node.own_text_bytes(), &node.location)?;
        if anchor != 0 {
            let size = node.size();
            self.count(0, size.text_bytes, &node.location)?;
            self.anchors.insert(
                anchor,
                Anchor {
                    node: node.clone(),
                    size,
                },
            );
        }
        self.place(node)
    }

    fn place(&mut self, node: Node) -> Result<(), Problem> {
        let path = self.path();
        let most = self.limits.keys;
        if let Some(open) = self.open.last().filter(|open| open.lines.len() > most) {
            return Err(Problem::new(
                &open.node.location,
                path,
                format!(
                    "a map here has more than {most} keys; this is not an experiment file, or {}",
                    YAML_KEYS.remedy(None)
                ),
            ));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.node.content {
            NodeContent::List(items) => items.push(node),
            NodeContent::Map(entries) => match std::mem::replace(&mut open.key, Waiting::ForKey) {
                Waiting::ForValue(Some((key, key_location))) => entries.push(NodeEntry {
                    key,
                    key_location,
                    value: node,
                }),
                Waiting::ForValue(None) => {}
                Waiting::ForKey => {
                    let taken = take_key(&path, &mut open.lines, &node);
                    open.key =
                        Waiting::ForValue(taken.map_err(|fault| self.problems.push(fault)).ok());
                }
            },
            NodeContent::Scalar(_) => {}
        }
        Ok(())
    }

    /// Dotted path of the key whose value is being read.
    fn path(&self) -> String {
        let mut path = String::new();
        for (index, open) in self.open.iter().enumerate() {
            match (&open.node.content, &open.key) {
                (NodeContent::Map(_), Waiting::ForValue(Some((key, _)))) => {
                    let dot = if path.is_empty() { "" } else { "." };
                    path.push_str(dot);
                    path.push_str(key);
                }
                (NodeContent::List(items), _) if index > 0 => {
                    path.push_str(&format!("[{}]", items.len()))
                }
                _ => {}
            }
        }
        path
    }

    fn syntax(&self, text: &str, error: &ScanError) -> Problem {
        let (line, column) = (error.marker().line(), error.marker().col() + 1);
        if error.info().contains("recursion limit") {
            return Problem::new(
                &Location::at(&self.source, line.max(1), column),
                "",
                too_deep(self.limits.depth),
            );
        }
        let lines: Vec<&str> = text.lines().collect();
        // The scanner may stop one line after the tab.
        for number in [line, line.saturating_sub(1)] {
            let Some(content) = number.checked_sub(1).and_then(|index| lines.get(index)) else {
                continue;
            };
            let indentation = &content[..content.len() - content.trim_start().len()];
            if let Some(tab) = indentation.find('\t') {
                let at = Location::at(&self.source, number, tab + 1);
                return Problem::new(
                    &at,
                    self.path(),
                    "the indentation contains a tab; YAML indents with spaces only",
                );
            }
        }
        let at = Location::at(&self.source, line.max(1), column);
        if let Some(found) = lines
            .get(line.saturating_sub(1))
            .and_then(|line| bare_comparison(line))
        {
            let message = format!(
                "put a value that begins with `>` in quotes, such as `\"{found}\"`: without them, \
                 `>` begins a folded text"
            );
            return Problem::new(&at, self.path(), message);
        }
        Problem::new(
            &at,
            self.path(),
            format!("not valid YAML: {}", error.info()),
        )
    }
}

/// The value of `key: >32`, which was meant as a comparison.
fn bare_comparison(line: &str) -> Option<&str> {
    let (_, value) = line.split_once(": ")?;
    let value = value.split(" #").next().unwrap_or(value).trim();
    let number = value.strip_prefix('>')?.trim_start_matches('=').trim();
    number.parse::<f64>().ok().map(|_| value)
}

fn too_deep(most: usize) -> String {
    format!(
        "nested more than {most} deep; an experiment file needs five levels, or {}",
        YAML_DEPTH.remedy(None)
    )
}

/// Returns the key of a map's next entry, or why it is invalid.
fn take_key(
    path: &str,
    lines: &mut HashMap<String, usize>,
    node: &Node,
) -> Result<(String, Location), Problem> {
    let NodeContent::Scalar(scalar) = &node.content else {
        return Err(Problem::new(
            &node.location,
            path,
            format!("a key must be text; here it is {}", node.found()),
        ));
    };
    if !scalar.quoted && scalar.value != Resolved::Text {
        return Err(Problem::new(
            &node.location,
            path,
            format!("a key must be text; {} is not", scalar.found()),
        ));
    }
    let key = scalar.text.as_str();
    let full = if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    };
    if key == "<<" && !scalar.quoted {
        return Err(Problem::new(
            &node.location,
            full,
            "merge keys (`<<`) are not supported; use `extends` to build on another file, or \
             repeat the keys",
        ));
    }
    if let Some(line) = lines.get(key) {
        return Err(Problem::new(
            &node.location,
            full.clone(),
            format!("duplicate key `{full}`; it is first given on line {line}, keep one of them"),
        ));
    }
    lines.insert(
        key.to_owned(),
        node.location.position.map_or(0, |(line, _)| line),
    );
    Ok((key.to_owned(), node.location.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Node, String> {
        match read_text_as_tree(text, &"x.yaml".into()) {
            Ok(read) if read.problems.is_empty() => Ok(read.tree),
            Ok(read) => Err(read
                .problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")),
            Err(problems) => Err(problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")),
        }
    }

    #[test]
    fn well_behaved_text_reads_as_serde_yaml_reads_it() {
        let text = "a: 1\nb: [1.5, two, \"three\", null, true]\nc:\n  d: {e: 0x10, f: 1e-3}\n  g: \
                    |\n    one\n    two\nh: &x [1]\ni: *x\nj: -3\n";
        let ours = read(text).unwrap().to_json();
        let theirs: serde_json::Value = serde_yaml::from_str(text).unwrap();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn crlf_and_byte_order_mark_change_nothing() {
        let tree = read("\u{feff}a: 1\r\nb:\r\n  c: 2\r\n").unwrap();
        assert_eq!(tree.to_json(), serde_json::json!({"a": 1, "b": {"c": 2}}));
        assert_eq!(
            tree.get_path(&["b", "c"]).unwrap().location.position,
            Some((3, 6))
        );
        assert_eq!(tree.entry("a").unwrap().key_location.position, Some((1, 1)));
    }

    #[test]
    fn faults_of_the_text_name_their_place() {
        assert_eq!(
            read("a: {b: 1, b: 2}\n").unwrap_err(),
            "x.yaml:1:11: duplicate key `a.b`; it is first given on line 1, keep one of them"
        );
        assert!(
            read("a: 1\n<<: {b: 2}\n")
                .unwrap_err()
                .contains("x.yaml:2:1: merge keys (`<<`) are not supported; use `extends`")
        );
        assert!(
            read("a: 1\n---\nb: 2\n")
                .unwrap_err()
                .contains("a second document begins here")
        );
        assert!(
            read("8: 1\n")
                .unwrap_err()
                .contains("x.yaml:1:1: a key must be text; `8` is not")
        );
        assert!(
            read("a:\n\tb: 1\n")
                .unwrap_err()
                .contains("x.yaml:2:1: the indentation contains a tab")
        );
        assert!(read("a: !!str 8\n").unwrap_err().contains("the tag `"));
        assert!(
            read("a: [1, 2\nb: 3\n")
                .unwrap_err()
                .contains("not valid YAML")
        );
        assert!(read("# nothing\n").unwrap_err().contains("is empty"));
        assert!(
            read("a: &x [*x]\n")
                .unwrap_err()
                .contains("inside the value it names")
        );
    }

    #[test]
    fn deep_nesting_and_growing_aliases_are_plain_errors() {
        let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
        assert!(
            read(&deep)
                .unwrap_err()
                .contains("nested more than 64 deep")
        );
        let blocks: String = (0..5000)
            .map(|level| format!("{}a:\n", " ".repeat(level)))
            .collect();
        assert!(
            read(&blocks)
                .unwrap_err()
                .contains("nested more than 64 deep")
        );
        let wide: String = (0..5000).map(|key| format!("k{key}: 1\n")).collect();
        assert!(
            read(&wide)
                .unwrap_err()
                .starts_with("x.yaml:1:1: a map here has more than 1000 keys")
        );
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(
            read(&laughs)
                .unwrap_err()
                .contains("holds more than 100000 values")
        );
    }

    #[test]
    fn the_text_of_aliases_is_counted_before_it_is_copied() {
        // A gigabyte, in a file of 110 kB.
        let long = "x".repeat(100_000);
        let many = vec!["*a"; 10_000].join(", ");
        let text = format!("a: &a {long}\nb: [{many}]\n");
        let error = read(&text).unwrap_err();
        assert!(
            error.starts_with(
                "x.yaml:2:"
            ) && error.contains(
                "it has more than the 16.0 MiB allowed for the text of an experiment file with its \
                 aliases written out; set KILN_LIMIT_YAML_TEXT_BYTES=33554432 to allow more"
            ),
            "{error}"
        );
        // Keys count as well, and the copies that nested anchors keep.
        let keys = format!("a: &a {{{long}: 1}}\nb: [{many}]\n");
        assert!(read(&keys).unwrap_err().contains("YAML_TEXT_BYTES"));
        let nested: String = (0..60).map(|level| format!("[&b{level} ")).collect();
        let nested = format!("a: {nested}{}{}\n", "x".repeat(500_000), "]".repeat(60));
        assert!(read(&nested).unwrap_err().contains("YAML_TEXT_BYTES"));
        assert!(read(&format!("a: &a {long}\nb: [*a, *a]\n")).is_ok());
    }
}
