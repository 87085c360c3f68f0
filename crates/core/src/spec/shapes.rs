//! The allowed values of keys, as a small tree.

use serde_json::Value;

use super::{LATEST, engine::EngineName};

/// The allowed values of a key.
#[derive(Clone, Debug)]
pub(super) enum KeyShape {
    Map(MapKeys),
    /// A map whose `kind` decides its other keys.
    Tagged(Tagged),
    Integer {
        min: i128,
        max: i128,
    },
    Number(Range),
    Bool,
    Text(Option<Pattern>),
    TimeSpan,
    ByteSize,
    Choice(Vec<String>),
    List(Box<KeyShape>),
    /// A text, a number, `true` or `false`, and `null` if it is a value of its own.
    Scalar {
        is_nullable: bool,
    },
    /// A list of texts that may repeat: a program and its arguments. With `has_conditions`, an
    /// entry may be `{when: NAME, then: […]}`.
    Arguments {
        has_conditions: bool,
    },
    /// A map of names that the file chooses.
    Named(Box<KeyShape>),
    Any(Vec<KeyShape>),
    /// Free keys: the maps of `sweep`, which have a separate checker.
    Free,
    /// The value of an unknown key: of a user's own model.
    Anything,
}

impl KeyShape {
    /// Whether a value may be a number.
    pub(super) fn holds_numbers(&self) -> bool {
        let is_number = |shape: &Self| matches!(shape, Self::Integer { .. } | Self::Number(_));
        match self {
            Self::Scalar { .. } | Self::Anything => true,
            Self::Any(shapes) => shapes.iter().any(is_number),
            shape => is_number(shape),
        }
    }
}

/// Bounds of a number; `above` is an exclusive bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Range {
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) above: Option<f64>,
}

/// A pattern of text. An enum, because the error message must say in words which text is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    RunName,
    DeviceUuid,
    EngineName,
    MetricName,
    Sha256,
    /// A pattern of the types without an entry here; a test ensures that there is none.
    Unknown,
}

/// The keys of one map.
#[derive(Clone, Debug, Default)]
pub(super) struct MapKeys {
    pub(super) known: Vec<KeyField>,
    /// Whether further keys with any value are allowed: those of a user's own model.
    pub(super) is_open: bool,
}

#[derive(Clone, Debug)]
pub(super) struct KeyField {
    pub(super) name: String,
    pub(super) shape: KeyShape,
    pub(super) default: Option<Value>,
    pub(super) required: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Tagged(pub(super) Vec<(String, MapKeys)>);

impl MapKeys {
    pub(super) fn get(&self, name: &str) -> Option<&KeyField> {
        self.known.iter().find(|field| field.name == name)
    }

    /// The allowed values of a key; any value if the key is unknown and further keys are allowed.
    pub(super) fn shape(&self, name: &str) -> Option<&KeyShape> {
        let known = self.get(name).map(|field| &field.shape);
        known
            .or((self.is_open && name != "kind" && is_own_key(name)).then_some(&KeyShape::Anything))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|field| field.name.as_str())
    }
}

impl Tagged {
    pub(super) fn kind(&self, name: &str) -> Option<&MapKeys> {
        self.0
            .iter()
            .find(|(kind, _)| kind == name)
            .map(|(_, fields)| fields)
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(kind, _)| kind.as_str()).collect()
    }

    /// Returns the kinds that have this key.
    pub(super) fn kinds_with(&self, key: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(_, fields)| fields.get(key).is_some())
            .map(|(kind, _)| kind.as_str())
            .collect()
    }
}

impl KeyField {
    /// The kind of this map if the file gives none.
    pub(super) fn default_kind(&self) -> Option<&str> {
        self.default.as_ref()?.get("kind")?.as_str()
    }
}

impl Pattern {
    pub(super) fn named(pattern: &str) -> Self {
        match pattern {
            r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$" => Self::RunName,
            "^(GPU|MIG)-.+$" => Self::DeviceUuid,
            "^[A-Za-z][A-Za-z0-9._-]{0,39}$" => Self::EngineName,
            "^[A-Za-z][A-Za-z0-9_-]*$" => Self::MetricName,
            "^[0-9a-f]{64}$" => Self::Sha256,
            _ => Self::Unknown,
        }
    }

    pub(super) fn holds(self, text: &str) -> bool {
        match self {
            Self::RunName => {
                text.len() <= 100
                    && text != LATEST
                    && text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            }
            Self::DeviceUuid => text
                .strip_prefix("GPU-")
                .or_else(|| text.strip_prefix("MIG-"))
                .is_some_and(|rest| !rest.is_empty()),
            Self::EngineName => EngineName::new(text).is_some(),
            Self::MetricName => {
                is_own_key(text) && text.starts_with(|c: char| c.is_ascii_alphabetic())
            }
            Self::Sha256 => {
                text.len() == 64
                    && text
                        .bytes()
                        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            }
            Self::Unknown => true,
        }
    }

    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::RunName => {
                "letters, digits, `.`, `_` and `-`, at most 100, a letter or digit first; `latest` \
                 stands for the newest run"
            }
            Self::DeviceUuid => "a UUID such as `GPU-…` or `MIG-…`",
            Self::EngineName => "a name of `run.engines`",
            Self::MetricName => "a metric of a command",
            Self::Sha256 => "64 hexadecimal digits in small letters, as `sha256sum` writes them",
            Self::Unknown => "text",
        }
    }
}

/// The shape of the `kind` key of a tagged map.
pub(super) fn kind_choice(tagged: &Tagged) -> KeyShape {
    KeyShape::Choice(tagged.names().into_iter().map(str::to_owned).collect())
}

/// Whether an unknown key is valid in dotted form, as an axis or a `--set`.
pub(super) fn is_own_key(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
