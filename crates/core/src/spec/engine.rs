//! Who computes a trial: an engine of kiln, or a program of one's own that runs the same trial
//! (`docs/engines.md`).

use std::{borrow::Cow, fmt, str};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value};

use super::{
    axes::AXES,
    node::Node,
    problem::Problem,
    suggest::{did_you_mean, listed},
    synonyms,
};
use crate::kinds::command::{environment_schema, reserved_variable};

/// The compute engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// burn on libtorch: CPU and CUDA.
    Libtorch,
    /// burn's own pure-Rust backend: CPU, for machines without libtorch.
    Flex,
    /// A program of `run.engines`.
    Own(EngineName),
}

/// The name of an engine of one's own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineName {
    /// Padded with zeros.
    bytes: [u8; EngineName::MOST_BYTES],
}

/// A program that runs trials as kiln does. The path of `trial.yaml` is its last argument.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineProgram {
    /// The program and its arguments. No shell.
    #[schemars(length(min = 1))]
    #[schemars(extend("format" = "texts"))]
    pub argv: Vec<String>,
    /// Paths and globs of the files that, beside the program, make it what it is; their hashes are
    /// kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Further environment variables.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "environment_schema")]
    pub environment: Map<String, Value>,
}

impl EngineProgram {
    /// Its environment variables as texts.
    pub fn variables(&self) -> impl Iterator<Item = (&str, String)> {
        self.environment.iter().map(|(name, value)| {
            let text = value.as_str().map(str::to_owned);
            (name.as_str(), text.unwrap_or_else(|| value.to_string()))
        })
    }
}

impl EngineName {
    /// The longest name.
    pub const MOST_BYTES: usize = 40;

    /// Returns the name; `None` if it is not one: letters, digits, `.`, `_` and `-`, a letter first.
    pub fn new(name: &str) -> Option<Self> {
        let is_name = name.len() <= Self::MOST_BYTES
            && name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let mut bytes = [0; Self::MOST_BYTES];
        bytes
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        is_name.then_some(Self { bytes })
    }

    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let name = &self.bytes[..end.unwrap_or(Self::MOST_BYTES)];
        str::from_utf8(name).unwrap_or_default()
    }
}

impl fmt::Debug for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl Engine {
    /// The names of kiln's engines.
    pub const BUILT_IN: [&'static str; 2] = ["libtorch", "flex"];

    /// The name in `run.engine` and in the tables.
    pub fn name(&self) -> &str {
        match self {
            Self::Libtorch => Self::BUILT_IN[0],
            Self::Flex => Self::BUILT_IN[1],
            Self::Own(name) => name.as_str(),
        }
    }

    /// The engine of a name; `None` if it cannot be one.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "libtorch" => Some(Self::Libtorch),
            "flex" => Some(Self::Flex),
            own => EngineName::new(own).map(Self::Own),
        }
    }

    /// The name of an engine of one's own.
    pub fn own_name(&self) -> Option<&str> {
        match self {
            Self::Libtorch | Self::Flex => None,
            Self::Own(name) => Some(name.as_str()),
        }
    }
}

/// Checks that engines of one's own have names of their own, and that every engine that a file
/// names is one.
pub(super) fn check(tree: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    let declared = tree.get_path(&["run", "engines"]);
    let declared = declared.map(Node::entries).unwrap_or_default();
    for entry in declared {
        let key = format!("run.engines.{}", entry.key);
        if Engine::BUILT_IN.contains(&entry.key.as_str()) {
            let message = format!(
                "`{}` is kiln's own engine; choose another name for this program",
                entry.key
            );
            problems.push(Problem::new(&entry.key_location, &key, message));
        } else if EngineName::new(&entry.key).is_none() {
            let message = format!(
                "`{}` is not a name of an engine; names have letters, digits, `_` and `-`, a \
                 letter first, and at most {} characters",
                entry.key,
                EngineName::MOST_BYTES
            );
            problems.push(Problem::new(&entry.key_location, &key, message));
        }
        let environment = entry.value.get("environment").map(Node::entries);
        for variable in environment.unwrap_or_default() {
            if let Some(message) = reserved_variable(&variable.key) {
                let key = format!("{key}.environment.{}", variable.key);
                problems.push(Problem::new(&variable.key_location, key, message));
            }
        }
    }
    let is_own =
        |name: &&str| Engine::named(name).is_some_and(|engine| engine.own_name().is_some());
    let names: Vec<&str> = Engine::BUILT_IN
        .into_iter()
        .chain(
            declared
                .iter()
                .map(|entry| entry.key.as_str())
                .filter(is_own),
        )
        .collect();
    for (key, value) in named_engines(tree) {
        let Some(name) = value.text().filter(|name| !names.contains(name)) else {
            continue;
        };
        // A name that cannot be one has been refused by its shape.
        if EngineName::new(name).is_none() {
            continue;
        }
        let near = synonyms::value("run.engine", name)
            .map(|meant| format!("; did you mean `{meant}`?"))
            .unwrap_or_else(|| did_you_mean(name, names.iter().copied()));
        let hint = match near {
            hint if hint.is_empty() => {
                "; declare a program of your own in `run.engines`".to_owned()
            }
            hint => hint,
        };
        let message = format!(
            "`{key}` is `{name}`; it must be {}{hint}",
            listed(&names, "or")
        );
        problems.push(Problem::new(&value.location, key, message));
    }
    problems
}

/// Every value that a file gives to `run.engine`, with its key.
fn named_engines(tree: &Node) -> Vec<(String, &Node)> {
    let own = tree.get_path(&["run", "engine"]);
    let mut found: Vec<(String, &Node)> = own
        .map(|own| ("run.engine".to_owned(), own))
        .into_iter()
        .collect();
    for section in AXES {
        let path = [section, &["run.engine"]].concat();
        let values = tree.get_path(&path).map(Node::items).unwrap_or_default();
        let key = path.join(".");
        found.extend(values.iter().map(|value| (key.clone(), value)));
    }
    for section in ["include", "exclude"] {
        let points = tree.get_path(&["sweep", section]).map(Node::items);
        for (index, point) in points.unwrap_or_default().iter().enumerate() {
            let key = format!("sweep.{section}[{index}].run.engine");
            found.extend(point.get("run.engine").map(|value| (key, value)));
        }
    }
    found
}

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Engine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| D::Error::custom(format!("`{name}` is not an engine")))
    }
}

impl JsonSchema for Engine {
    fn schema_name() -> Cow<'static, str> {
        "Engine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {
                "const": "libtorch",
                "description": "burn on libtorch: CPU and CUDA.",
            },
            {
                "const": "flex",
                "description": "burn's own pure-Rust backend: CPU, for machines without libtorch.",
            },
            {
                "type": "string",
                "pattern": "^[A-Za-z][A-Za-z0-9._-]{0,39}$",
                "description": "A name of `run.engines`.",
            },
        ]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_written_by_its_name() {
        for name in ["libtorch", "flex", "pytorch", "a.b-c_9", &"x".repeat(40)] {
            let engine: Engine = serde_json::from_value(name.into()).unwrap();
            assert_eq!(engine.name(), name);
            assert_eq!(serde_json::to_value(engine).unwrap(), Value::from(name));
        }
        for bad in ["", "9a", "a b", "ü", "a/b", &"x".repeat(41)] {
            assert_eq!(Engine::named(bad), None, "{bad}");
        }
    }
}
