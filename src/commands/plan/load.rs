//! Stand-in for `spec::load`: reads plain files with serde alone, without places or checks. Goes when `spec` is there.

use std::path::Path;

use serde_json::Value;

use crate::{
    commands::Stop,
    plan::overrides::{apply_override, merge},
    spec::Experiment,
};

pub(super) fn load(file: &Path, set: &[String]) -> Result<Experiment, Stop> {
    let mut tree = read(file, 0)?;
    for assignment in set {
        let (key, value) = assignment.split_once('=').ok_or_else(|| Stop::bad_input(format!("`--set {assignment}` has no `=`")))?;
        let value: Value = serde_yaml::from_str(value).map_err(|error| Stop::bad_input(format!("`--set {assignment}`: {error}")))?;
        let axis = ["grid", "zip"].into_iter().find(|part| tree["sweep"][part].get(key).is_some());
        match axis {
            Some(part) => tree["sweep"][part][key] = Value::Array(vec![value]),
            None => apply_override(&mut tree, key, &value),
        }
    }
    serde_json::from_value(tree).map_err(|error| Stop::bad_input(format!("{}: {error}", file.display())))
}

fn read(file: &Path, depth: u32) -> Result<Value, Stop> {
    let failed = |error: &dyn std::fmt::Display| Stop::bad_input(format!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    let mut tree: Value = serde_yaml::from_str(&text).map_err(|error| failed(&error))?;
    let Value::Object(map) = &mut tree else { return Err(failed(&"it is no map of keys")) };
    let Some(Value::String(beneath)) = map.shift_remove("extends") else { return Ok(tree) };
    if depth > 8 {
        return Err(failed(&"`extends` goes in a circle"));
    }
    let mut base = read(&file.parent().unwrap_or(Path::new("")).join(beneath), depth + 1)?;
    merge(&mut base, &tree);
    Ok(base)
}
