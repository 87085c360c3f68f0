//! Builds a [`Node`] tree from the events of the parser, without recursion, and refuses what an
//! experiment file may not have: duplicate and merge keys, tags, and more than the limits allow.

use std::{collections::HashMap, sync::Arc};

use saphyr_parser::{Event, ScalarStyle, ScanError, Span, Tag};

use super::is_too_deep;
use crate::{
    limits::{YAML_DEPTH, YAML_KEYS, YAML_TEXT_BYTES, YAML_VALUES},
    spec::{
        node::{Node, NodeContent, NodeEntry, NodeSize},
        problem::{Location, Problem},
        scalar::{Resolved, Scalar},
    },
};

/// Builds a tree from the parser's events, without recursion.
pub(super) struct NodeBuilder {
    source: Arc<str>,
    open: Vec<OpenNode>,
    pub(super) root: Option<Node>,
    documents: usize,
    anchors: HashMap<usize, AnchoredNode>,
    /// With the aliases written out.
    nodes: usize,
    /// Bytes of the scalars and keys in the tree and in the anchors, each of which is a copy.
    text_bytes: u64,
    limits: ReadLimits,
    pub(super) problems: Vec<Problem>,
}

/// A value that aliases may name.
struct AnchoredNode {
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
    pub(super) fn new(source: &Arc<str>) -> Self {
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
    pub(super) fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
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
                AnchoredNode {
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

    pub(super) fn syntax(&self, text: &str, error: &ScanError) -> Problem {
        let (line, column) = (error.marker().line(), error.marker().col() + 1);
        if is_too_deep(error) {
            return Problem::new(
                &Location::at(&self.source, line.max(1), column),
                "",
                too_deep(self.limits.depth),
            );
        }
        let lines: Vec<&str> = text.lines().collect();
        // The scanner may stop one line after the tab, or name where the value before it began.
        let last = match error.info().contains("found a tab") {
            true => lines.len(),
            false => line,
        };
        for number in [line, line.saturating_sub(1)]
            .into_iter()
            .chain(line + 1..=last)
        {
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
