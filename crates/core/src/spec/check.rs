//! Walks a merged tree against the table of keys and collects every problem: unknown keys, wrong
//! types, values out of range, missing keys, keys of features that do not exist yet.

use super::{
    axes::may_vary,
    future,
    initial_weights::{SHA256_KEY, offer_of},
    keys::{self, KnownKey},
    node::{Node, NodeContent, NodeEntry},
    problem::{Location, Problem},
    shapes::{KeyField, KeyShape, MapKeys, Tagged, is_own_key, join, kind_choice},
    suggest::{listed, nearest},
    synonyms,
    value::{allowed, fault},
};

/// Checks every key of a tree, except rules that need the whole experiment.
///
/// `whole` says that no further layer follows, so that an absent key is missing; `top` is the start
/// of the file.
pub(super) fn walk(tree: &Node, whole: bool, top: &Location) -> Vec<Problem> {
    let mut checker = Checker {
        problems: Vec::new(),
        whole,
        kind_given: true,
        may_be_axis: true,
    };
    if tree.is_map() {
        checker.fields("", keys::table(), tree, top, None);
    }
    checker.problems
}

/// A key whose values stand outside its section: an axis. Made once for many values.
pub(super) fn field_of(key: &str, shape: KeyShape) -> KeyField {
    KeyField {
        name: String::new(),
        shape,
        default: keys::field(key).and_then(|field| field.default.clone()),
        required: false,
    }
}

/// Returns the faults of a value (or a map of keys) of `key` outside its section: a value of an
/// axis. `field` is [`field_of`] the key.
pub(super) fn value(key: &str, field: &KeyField, node: &Node) -> Vec<Problem> {
    let mut checker = Checker {
        problems: Vec::new(),
        whole: true,
        kind_given: true,
        may_be_axis: false,
    };
    checker.field(key, field, node, &node.location);
    checker.problems
}

struct Checker {
    problems: Vec<Problem>,
    whole: bool,
    /// Whether the current map gives its own kind.
    kind_given: bool,
    /// Whether a list may be a misplaced axis.
    may_be_axis: bool,
}

impl Checker {
    fn push(&mut self, location: &Location, key: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(location, key, message));
    }

    /// Checks the keys of one map; `kind` is set if the map has one.
    fn fields(
        &mut self,
        path: &str,
        fields: &MapKeys,
        node: &Node,
        owner: &Location,
        kind: Option<(&Tagged, &str)>,
    ) {
        for entry in node.entries() {
            let full = join(path, &entry.key);
            match fields.get(&entry.key) {
                Some(field) => {
                    let known = self.problems.len();
                    self.field(&full, field, &entry.value, &entry.key_location);
                    let hint = file_hint(&full, fields, &entry.value);
                    for problem in self.problems.iter_mut().skip(known) {
                        problem.message += hint;
                    }
                }
                None if entry.key == "kind" && kind.is_some() => {}
                None if fields.is_open && misspelt(fields, node, &entry.key).is_none() => {
                    self.own_key(&full, entry)
                }
                None => {
                    self.unknown(path, fields, entry, kind);
                    self.misspelt_section(path, fields, entry);
                }
            }
        }
        let strangers: Vec<&str> = node
            .entries()
            .iter()
            .map(|entry| entry.key.as_str())
            .filter(|key| fields.get(key).is_none())
            .collect();
        // A misspelled key is one fault, not two.
        let misspelled = |name: &str| {
            strangers
                .iter()
                .any(|stranger| nearest(stranger, [name]).is_some())
        };
        let missing = |field: &&KeyField| {
            field.required
                && node.get(&field.name).is_none_or(Node::is_null)
                && !misspelled(&field.name)
        };
        for field in fields
            .known
            .iter()
            .filter(missing)
            .filter(|_| self.whole)
            .collect::<Vec<_>>()
        {
            let full = join(path, &field.name);
            let of_kind = kind
                .map(|(_, kind)| format!(" of kind `{kind}`"))
                .unwrap_or_default();
            let offer = match full.as_str() {
                SHA256_KEY => node.get("path").and_then(Node::text).map(offer_of),
                _ => None,
            };
            self.push(
                owner,
                &full,
                format!(
                    "`{full}`{of_kind} is missing; it must be {}{}",
                    needed(&full, kind.map(|(_, kind)| kind), &field.shape),
                    offer.unwrap_or_default()
                ),
            );
        }
    }

    /// Checks an unknown key in a place where unknown keys are allowed.
    fn own_key(&mut self, full: &str, entry: &NodeEntry) {
        if !is_own_key(&entry.key) {
            let message = format!(
                "`{full}` cannot be swept or set; the name of a key has letters, digits, `_` and \
                 `-`"
            );
            return self.push(&entry.key_location, full, message);
        }
        if !entry.value.is_null() {
            self.problems
                .extend(fault(full, &KeyShape::Anything, &entry.value));
        }
    }

    /// Checks the keys of an unknown map against the section with the nearest name. Missing keys
    /// are not reported.
    fn misspelt_section(&mut self, path: &str, fields: &MapKeys, entry: &NodeEntry) {
        let Some(section) = meant_section(path, fields, entry) else {
            return;
        };
        let Some(field) = keys::field(&section) else {
            return;
        };
        let whole = std::mem::replace(&mut self.whole, false);
        self.field(&section, field, &entry.value, &entry.key_location);
        self.whole = whole;
    }

    fn field(&mut self, path: &str, field: &KeyField, node: &Node, owner: &Location) {
        match &field.shape {
            _ if node.is_null() => {}
            KeyShape::Map(fields) if node.is_map() => self.fields(path, fields, node, owner, None),
            KeyShape::Tagged(tagged) if node.is_map() => {
                self.tagged(path, tagged, field.default_kind(), node, owner)
            }
            KeyShape::Named(item) if node.is_map() => self.named(path, item, node),
            KeyShape::Free => {}
            KeyShape::List(item) if matches!(**item, KeyShape::Free) => {}
            shape => {
                let faults = fault(path, shape, node);
                let is_list = self.may_be_axis
                    && may_vary(path)
                    && matches!(node.content, NodeContent::List(_))
                    && !takes_list(shape);
                let hint = if is_list {
                    format!("; to vary it, write `{path}: […]` in `sweep.grid`")
                } else {
                    String::new()
                };
                self.problems
                    .extend(faults.into_iter().map(|fault| Problem {
                        message: fault.message + &hint,
                        ..fault
                    }));
            }
        }
    }

    /// Checks a map whose names the file chooses.
    fn named(&mut self, path: &str, item: &KeyShape, node: &Node) {
        for entry in node.entries() {
            let full = join(path, &entry.key);
            if !is_own_key(&entry.key) {
                let message =
                    format!("`{full}` is not a name; names have letters, digits, `_` and `-`");
                self.push(&entry.key_location, &full, message);
            }
            let field = field_of(&full, item.clone());
            self.field(&full, &field, &entry.value, &entry.key_location);
        }
    }

    fn tagged(
        &mut self,
        path: &str,
        tagged: &Tagged,
        default_kind: Option<&str>,
        node: &Node,
        owner: &Location,
    ) {
        let kind_path = join(path, "kind");
        let given = node.get("kind").filter(|node| !node.is_null());
        if let Some(kind) = given {
            let faults = fault(&kind_path, &kind_choice(tagged), kind);
            let sound = faults.is_empty();
            self.problems.extend(faults);
            if !sound {
                return self.any_kind(path, tagged, node);
            }
        }
        match given.and_then(Node::text).or(default_kind) {
            Some(kind) => {
                if let Some(fields) = tagged.kind(kind) {
                    self.kind_given = given.is_some();
                    self.fields(path, fields, node, owner, Some((tagged, kind)));
                }
            }
            None => {
                if self.whole {
                    self.push(
                        owner,
                        &kind_path,
                        format!(
                            "`{kind_path}` is missing; it must be {}",
                            listed(&tagged.names(), "or")
                        ),
                    );
                }
                self.any_kind(path, tagged, node);
            }
        }
    }

    /// Checks the keys of a map with an unknown kind: each must belong to some kind.
    fn any_kind(&mut self, path: &str, tagged: &Tagged, node: &Node) {
        let mut union = MapKeys::default();
        for field in tagged.0.iter().flat_map(|(_, fields)| &fields.known) {
            if union.get(&field.name).is_none() {
                union.known.push(KeyField {
                    required: false,
                    ..field.clone()
                });
            }
        }
        self.fields(path, &union, node, &node.location, Some((tagged, "")));
    }

    fn unknown(
        &mut self,
        path: &str,
        fields: &MapKeys,
        entry: &NodeEntry,
        kind: Option<(&Tagged, &str)>,
    ) {
        let full = join(path, &entry.key);
        let message = future::key(&full).unwrap_or_else(|| {
            let others = kind.map(|(tagged, kind)| (tagged.kinds_with(&entry.key), kind));
            match others {
                Some((others, kind)) if !others.is_empty() => {
                    let from = if self.kind_given { "" } else { ", the default" };
                    format!(
                        "`{full}` is not a key of kind `{kind}`{from}; it belongs to kind {}{}",
                        listed(&others, "or"),
                        synonym_hint(path, fields, &entry.key)
                    )
                }
                _ => format!(
                    "unknown key `{full}`{}",
                    unknown_hint(path, fields, &entry.key, kind.is_some())
                ),
            }
        });
        self.push(&entry.key_location, &full, message);
    }
}

/// The hint at the key for a file, if a file is given as a unit of tokens; else empty.
fn file_hint(path: &str, fields: &MapKeys, value: &Node) -> &'static str {
    let is_file = |text: &str| text.contains(['/', '.']);
    let takes_file = path == "data.tokenizer" && fields.get("tokenizer_file").is_some();
    match takes_file && value.text().is_some_and(is_file) {
        true => "; a file of a tokenizer goes to `data.tokenizer_file`",
        false => "",
    }
}

/// The value that a missing key needs. Of a path it is a file or a folder, not any text.
fn needed(key: &str, kind: Option<&str>, shape: &KeyShape) -> String {
    let path = match (key, kind) {
        ("data.path", Some("image-folder" | "panel-csv")) => "the path of a folder",
        ("data.path" | "train.initial_weights.path", _) => "the path of a file",
        _ => return allowed(shape),
    };
    path.to_owned()
}

/// Returns the absent known key that an unknown key most likely stands for.
fn misspelt<'a>(fields: &'a MapKeys, node: &Node, key: &str) -> Option<&'a str> {
    nearest(key, fields.names().filter(|name| node.get(name).is_none()))
}

/// The hint at the key of this map that a key of another kind most likely stands for; empty without
/// one.
fn synonym_hint(path: &str, fields: &MapKeys, key: &str) -> String {
    let in_map = |synonym: &&'static str| {
        let (parent, name) = synonym.rsplit_once('.')?;
        (parent == path && fields.get(name).is_some()).then_some(name)
    };
    let meant = synonyms::keys(key).iter().find_map(in_map);
    meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn takes_list(shape: &KeyShape) -> bool {
    match shape {
        KeyShape::List(_) | KeyShape::Arguments { .. } | KeyShape::Anything => true,
        KeyShape::Any(shapes) => shapes.iter().any(takes_list),
        _ => false,
    }
}

/// Returns the hint for an unknown key, in words.
pub(super) fn unknown_hint(path: &str, fields: &MapKeys, key: &str, has_kind: bool) -> String {
    if path.is_empty() && key.contains('.') {
        let written = key.replace('.', ": {") + ": …" + &"}".repeat(key.matches('.').count());
        return format!("; dotted keys are for `sweep` and `--set`; here write `{written}`");
    }
    if path == "sweep" && may_vary(key) && keys::field(key).is_some() {
        return format!("; axes belong in `sweep.grid`; here write `grid: {{{key}: […]}}`");
    }
    match meant(path, fields, key, has_kind) {
        Some(Meant::Here(name)) => format!("; did you mean `{name}`?"),
        Some(Meant::Elsewhere(known)) => {
            format!("; did you mean {}?", with_kind(known, keys::every_key()))
        }
        None => format!(
            "; allowed here: {}",
            listed(&allowed_here(path, fields, has_kind), "and")
        ),
    }
}

/// The known key that an unknown key most likely stands for.
enum Meant<'a> {
    /// A key of the same map.
    Here(&'a str),
    Elsewhere(&'static KnownKey),
}

/// Words for the direction of a metric, which has the key `better`.
const GOALS: [&str; 4] = ["goal", "direction", "mode", "objective"];

fn meant<'a>(path: &str, fields: &'a MapKeys, key: &str, has_kind: bool) -> Option<Meant<'a>> {
    let is_plural = |known: &&str| known.strip_suffix('s') == Some(key);
    if let Some(name) = fields.names().find(is_plural) {
        return Some(Meant::Here(name));
    }
    let of_metric = |known: &&str| *known == "better" && GOALS.contains(&key);
    if let Some(name) = fields.names().find(of_metric) {
        return Some(Meant::Here(name));
    }
    let here = allowed_here(path, fields, has_kind);
    let same_map = |synonym: &&str| {
        let (parent, name) = synonym.rsplit_once('.').unwrap_or(("", synonym));
        (parent == path)
            .then(|| here.iter().find(|known| **known == name).copied())
            .flatten()
    };
    let synonyms = synonyms::keys(key);
    if let Some(name) = synonyms.iter().find_map(same_map) {
        return Some(Meant::Here(name));
    }
    if let Some(name) = begins(key, &here) {
        return Some(Meant::Here(name));
    }
    let every = keys::every_key();
    let elsewhere = every
        .iter()
        .find(|known| known.last() == key && join(path, key) != known.path);
    if let Some(known) = elsewhere.filter(|_| key != "kind") {
        return Some(Meant::Elsewhere(known));
    }
    if let Some(known) = synonyms
        .first()
        .and_then(|synonym| every.iter().find(|known| known.path == *synonym))
    {
        return Some(Meant::Elsewhere(known));
    }
    if let Some(name) = nearest(key, here) {
        return Some(Meant::Here(name));
    }
    let near = nearest(
        key,
        every
            .iter()
            .map(KnownKey::last)
            .filter(|name| *name != "kind"),
    )
    .filter(|_| key.len() > 3)?;
    every
        .iter()
        .find(|known| known.last() == near)
        .map(Meant::Elsewhere)
}

/// The one key of these that begins with a word: `every_steps` for `every`.
fn begins<'a>(word: &str, keys: &[&'a str]) -> Option<&'a str> {
    let rest = |key: &&&str| {
        key.strip_prefix(word)
            .is_some_and(|rest| rest.starts_with('_'))
    };
    let mut found = keys.iter().filter(rest);
    found.next().filter(|_| found.next().is_none()).copied()
}

fn allowed_here<'a>(path: &str, fields: &'a MapKeys, has_kind: bool) -> Vec<&'a str> {
    let more = if path.is_empty() {
        Some("extends")
    } else {
        has_kind.then_some("kind")
    };
    more.into_iter().chain(fields.names()).collect()
}

/// Returns the dotted key of the section that an unknown map of keys most likely stands for.
fn meant_section(path: &str, fields: &MapKeys, entry: &NodeEntry) -> Option<String> {
    if !entry.value.is_map() || future::key(&join(path, &entry.key)).is_some() {
        return None;
    }
    let section = match meant(path, fields, &entry.key, false)? {
        Meant::Here(name) => join(path, name),
        Meant::Elsewhere(known) => known.path.clone(),
    };
    keys::field(&section)
        .is_some_and(|field| matches!(field.shape, KeyShape::Map(_) | KeyShape::Tagged(_)))
        .then_some(section)
}

/// Returns the tree with each misspelled top-level section in its correct place, if that place is
/// free: other messages then match the corrected file.
pub(super) fn mended(tree: &Node) -> Node {
    let mut mended = tree.clone();
    for entry in tree
        .entries()
        .iter()
        .filter(|entry| keys::table().get(&entry.key).is_none())
    {
        let Some(section) = meant_section("", keys::table(), entry) else {
            continue;
        };
        let names: Vec<&str> = section.split('.').collect();
        if mended.get_path(&names).is_none() {
            mended.remove_path(&[&entry.key]);
            mended.set_path(&names, entry.value.clone());
        }
    }
    mended
}

/// `` `train.optimizer.momentum` (kind `sgd`) ``; the kind is included only if one kind alone has
/// the key.
fn with_kind(known: &KnownKey, every: &[KnownKey]) -> String {
    let alone = every
        .iter()
        .filter(|other| other.path == known.path)
        .count()
        == 1;
    match known.kind.as_ref().filter(|_| alone) {
        Some((_, kind)) => format!("`{}` (kind `{kind}`)", known.path),
        None => format!("`{}`", known.path),
    }
}
