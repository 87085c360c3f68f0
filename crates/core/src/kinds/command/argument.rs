//! The arguments of a program, as a file writes them.

use std::{borrow::Cow, path::Path};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A program and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arguments(pub Vec<Argument>);

/// One entry of [`Arguments`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Argument {
    /// A text with placeholders.
    Text(String),
    /// Arguments that are left out while a value is `false` or `null`.
    When(WhenArgument),
}

/// Arguments under a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhenArgument {
    /// Name of a value.
    pub when: String,
    pub then: Vec<String>,
}

impl Arguments {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first argument as the file writes it; `None` if it is missing or conditional.
    pub fn program(&self) -> Option<&str> {
        match self.0.first()? {
            Argument::Text(program) => Some(program),
            Argument::When(_) => None,
        }
    }

    /// Every text in it with its index, and the value on which it depends.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
        self.0.iter().enumerate().flat_map(|(index, argument)| {
            let (texts, when): (Vec<&str>, _) = match argument {
                Argument::Text(text) => (vec![text.as_str()], None),
                Argument::When(when) => (
                    when.then.iter().map(String::as_str).collect(),
                    Some(when.when.as_str()),
                ),
            };
            texts.into_iter().map(move |text| (index, text, when))
        })
    }

    /// The same with the program by its file name alone.
    pub fn with_program_name(&self) -> Self {
        let mut arguments = self.clone();
        if let Some(Argument::Text(program)) = arguments.0.first_mut()
            && let Some(name) = Path::new(program.as_str()).file_name()
        {
            *program = name.to_string_lossy().into_owned();
        }
        arguments
    }
}

impl JsonSchema for Arguments {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Arguments".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "minItems": 1,
            "format": "arguments",
            "items": {"anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {
                        "when": {"type": "string", "description": "Name of a value."},
                        "then": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "Arguments that are left out while the value is \
                                            `false` or `null`.",
                        },
                    },
                    "required": ["when", "then"],
                    "additionalProperties": false,
                },
            ]},
        })
    }
}
