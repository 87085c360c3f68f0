//! A validator for the keywords of JSON Schema that kiln's own schema uses. A keyword that it does
//! not know is a fault of the schema, so none is passed over. Source: JSON Schema, draft 2020-12.

use std::collections::HashMap;

use regex::Regex;
use serde_json::{Map, Value};

/// A schema that has been read whole: every keyword is known and has a value that fits it.
pub(super) struct Validator {
    schema: Value,
    /// By their text.
    patterns: HashMap<String, Regex>,
}

const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

impl Validator {
    /// # Errors
    /// The schema has a keyword that this validator does not know, or one with a value that does
    /// not fit it.
    pub(super) fn new(schema: &Value) -> Result<Self, String> {
        let mut validator = Self {
            schema: schema.clone(),
            patterns: HashMap::new(),
        };
        validator.read(schema, "#")?;
        Ok(validator)
    }

    /// Looks at a schema and all within it.
    fn read(&mut self, schema: &Value, at: &str) -> Result<(), String> {
        let Some(keywords) = schema.as_object() else {
            return if schema.is_boolean() {
                Ok(())
            } else {
                Err(format!("{at} is no schema: {schema}"))
            };
        };
        for (keyword, value) in keywords {
            let at = format!("{at}/{keyword}");
            let is_sound = match keyword.as_str() {
                "default" => true,
                "title" | "description" | "format" | "$schema" | "$id" => value.is_string(),
                "examples" => value.is_array(),
                "const" => value.is_string(),
                "enum" => value.as_array().is_some_and(|values| {
                    !values.is_empty() && values.iter().all(Value::is_string)
                }),
                "type" => {
                    types(value).is_some_and(|types| types.iter().all(|name| TYPES.contains(name)))
                }
                "required" => value
                    .as_array()
                    .is_some_and(|names| names.iter().all(Value::is_string)),
                "minimum" | "maximum" | "exclusiveMinimum" => value.is_number(),
                "minItems" | "minLength" | "minProperties" => value.is_u64(),
                "$ref" => value
                    .as_str()
                    .is_some_and(|path| self.target(path).is_some()),
                "pattern" => value.as_str().is_some_and(|pattern| self.keep(pattern)),
                "items" | "additionalProperties" | "not" | "then" | "if" => {
                    self.read(value, &at).map(|()| true)?
                }
                "allOf" | "anyOf" | "oneOf" => {
                    let schemas = value.as_array().map(Vec::as_slice).unwrap_or_default();
                    schemas.iter().enumerate().try_for_each(|(place, schema)| {
                        self.read(schema, &format!("{at}/{place}"))
                    })?;
                    !schemas.is_empty()
                }
                "properties" | "patternProperties" | "$defs" => {
                    let schemas = value.as_object().ok_or_else(|| format!("{at} is no map"))?;
                    schemas.iter().try_for_each(|(name, schema)| {
                        self.read(schema, &format!("{at}/{name}"))
                    })?;
                    keyword != "patternProperties"
                        || schemas.keys().all(|pattern| self.keep(pattern))
                }
                _ => return Err(format!("{at}: this validator does not know the keyword")),
            };
            if !is_sound {
                return Err(format!("{at} has a value that does not fit: {value}"));
            }
        }
        Ok(())
    }

    /// Whether it is a pattern.
    fn keep(&mut self, pattern: &str) -> bool {
        let Ok(regex) = Regex::new(pattern) else {
            return false;
        };
        self.patterns.insert(pattern.to_owned(), regex);
        true
    }

    fn target(&self, path: &str) -> Option<&Value> {
        self.schema.pointer(path.strip_prefix('#')?)
    }

    /// What is wrong with a file, if anything is.
    pub(super) fn fault(&self, file: &Value) -> Option<String> {
        self.check(&self.schema, file, "").err()
    }

    fn fits(&self, schema: &Value, value: &Value, at: &str) -> bool {
        self.check(schema, value, at).is_ok()
    }

    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Some(keywords) = schema.as_object() else {
            return if schema.as_bool() == Some(true) {
                Ok(())
            } else {
                Err(format!("`{at}` may not be there"))
            };
        };
        for (keyword, wanted) in keywords {
            if !self.holds(keyword, wanted, keywords, value, at)? {
                return Err(format!(
                    "`{at}` is {value}, which does not keep `{keyword}`: {wanted}"
                ));
            }
        }
        Ok(())
    }

    /// Whether the value keeps to one keyword. A keyword for another type of value asks nothing.
    ///
    /// # Errors
    /// Something within the value is wrong; the text says where.
    fn holds(
        &self,
        keyword: &str,
        wanted: &Value,
        keywords: &Map<String, Value>,
        value: &Value,
        at: &str,
    ) -> Result<bool, String> {
        let number = |holds: fn(f64, f64) -> bool| {
            value
                .as_f64()
                .is_none_or(|found| wanted.as_f64().is_some_and(|limit| holds(found, limit)))
        };
        let length = |found: Option<usize>| {
            found.is_none_or(|found| wanted.as_u64().is_some_and(|least| found as u64 >= least))
        };
        let schemas = || wanted.as_array().into_iter().flatten();
        Ok(match keyword {
            "type" => {
                types(wanted).is_some_and(|types| types.iter().any(|name| is_of_type(value, name)))
            }
            "const" => value == wanted,
            "enum" => schemas().any(|allowed| allowed == value),
            "minimum" => number(|found, limit| found >= limit),
            "maximum" => number(|found, limit| found <= limit),
            "exclusiveMinimum" => number(|found, limit| found > limit),
            "minLength" => length(value.as_str().map(|text| text.chars().count())),
            "minItems" => length(value.as_array().map(Vec::len)),
            "minProperties" => length(value.as_object().map(Map::len)),
            "pattern" => value.as_str().is_none_or(|text| {
                wanted
                    .as_str()
                    .is_some_and(|pattern| self.patterns[pattern].is_match(text))
            }),
            "required" => value.as_object().is_none_or(|map| {
                schemas()
                    .filter_map(Value::as_str)
                    .all(|name| map.contains_key(name))
            }),
            "$ref" => {
                let target = wanted
                    .as_str()
                    .and_then(|path| self.target(path))
                    .ok_or("a reference leads nowhere")?;
                self.check(target, value, at)?;
                true
            }
            "allOf" => {
                schemas().try_for_each(|schema| self.check(schema, value, at))?;
                true
            }
            "anyOf" => schemas().any(|schema| self.fits(schema, value, at)),
            "oneOf" => {
                schemas()
                    .filter(|schema| self.fits(schema, value, at))
                    .count()
                    == 1
            }
            "not" => !self.fits(wanted, value, at),
            "if" => {
                if let Some(then) = keywords
                    .get("then")
                    .filter(|_| self.fits(wanted, value, at))
                {
                    self.check(then, value, at)?;
                }
                true
            }
            "items" => {
                let mut items = value.as_array().into_iter().flatten().enumerate();
                items.try_for_each(|(place, item)| {
                    self.check(wanted, item, &format!("{at}[{place}]"))
                })?;
                true
            }
            "properties" | "patternProperties" | "additionalProperties" => {
                for (name, item) in value.as_object().into_iter().flatten() {
                    for schema in self.of_property(keyword, keywords, name) {
                        self.check(schema, item, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            // Of `if`, and what says nothing about a value.
            _ => true,
        })
    }

    /// The schemas that one of these keywords has for a property.
    fn of_property<'a>(
        &self,
        keyword: &str,
        keywords: &'a Map<String, Value>,
        name: &str,
    ) -> Vec<&'a Value> {
        let map = |keyword: &str| keywords.get(keyword).and_then(Value::as_object);
        let named = map("properties").and_then(|schemas| schemas.get(name));
        let patterns = map("patternProperties").into_iter().flatten();
        let alike: Vec<&Value> = patterns
            .filter(|(pattern, _)| self.patterns[*pattern].is_match(name))
            .map(|(_, schema)| schema)
            .collect();
        match keyword {
            "properties" => named.into_iter().collect(),
            "patternProperties" => alike,
            _ if named.is_none() && alike.is_empty() => {
                keywords.get("additionalProperties").into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The names of a `type`: one, or a list of them.
fn types(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(name) => Some(vec![name.as_str()]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        // 8.0 is one too.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}
