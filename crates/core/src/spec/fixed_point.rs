//! One point in place of a sweep: the values of a trial as a layer between the file and `--set`.
//!
//! In: the values, and the keys that the file sweeps. Out: a layer that takes the lists of the
//! sweep out and sets the values. Finding the trial is left to the commands.

use serde_json::{Value, json};

use super::{
    ExperimentRequest, Merged, Problems, axes::varied_keys, load, merge::SpecLayer, merge_checked,
    node::Node, problem::Location, resolved::write_with,
};

/// Sections of a sweep that list or choose points, beside `grid`. What else it holds, such as
/// `repeats` and `order`, stays.
const LISTS: [&str; 7] = [
    "zip", "sample", "search", "derive", "include", "exclude", "together",
];

/// The values of one point, which replace the points of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FixedPoint {
    /// Name of the layer, such as `--at x:t4f0c1a2b3d`.
    pub name: String,
    /// The keys that the file sweeps.
    pub swept: Vec<String>,
    /// Dotted keys with their values; `null` restores the default.
    pub values: Vec<(String, Value)>,
}

impl FixedPoint {
    pub(super) fn layer(&self) -> SpecLayer {
        let location = Location::named(&self.name);
        let node = |value: &Value| Node::from_json(value, &location);
        let mut tree = Node::empty_map(location.clone());
        for section in LISTS {
            tree.set_path(&["sweep", section], node(&Value::Null));
        }
        self.set_grid(&mut tree, &node);
        let mut values: Vec<&(String, Value)> = self.values.iter().collect();
        // A whole map comes before its keys.
        values.sort_by_key(|(key, _)| key.matches('.').count());
        for (key, value) in values {
            let names: Vec<&str> = key.split('.').collect();
            tree.set_path(&names, node(value));
        }
        SpecLayer {
            name: self.name.clone(),
            tree,
            overrides: Some("sweep".to_owned()),
        }
    }

    /// Takes the axes of the grid out. A swept key of `run` stays an axis, with one value: it is
    /// part of a trial's id only where it is an axis.
    fn set_grid(&self, tree: &mut Node, node: &impl Fn(&Value) -> Node) {
        let is_axis_of_run = |key: &String| key.starts_with("run.") && self.swept.contains(key);
        let of_run: Vec<&(String, Value)> = self
            .values
            .iter()
            .filter(|(key, _)| is_axis_of_run(key))
            .collect();
        if of_run.is_empty() {
            return tree.set_path(&["sweep", "grid"], node(&Value::Null));
        }
        for key in &self.swept {
            tree.set_path(&["sweep", "grid", key.as_str()], node(&Value::Null));
        }
        for (key, value) in of_run {
            tree.set_path(&["sweep", "grid", key.as_str()], node(&json!([value])));
        }
    }
}

/// The sweep of a file and its values, without `--set`.
#[derive(Clone, Debug, PartialEq)]
pub struct SweptFile {
    /// The keys for which some point has a value of its own, each once.
    pub swept: Vec<String>,
    pub has_search: bool,
    /// The file's own values with the defaults.
    pub values: Value,
}

/// Reads a file without `--set`.
///
/// # Errors
/// The problems of the file.
pub fn swept_file(request: &ExperimentRequest) -> Result<SweptFile, Problems> {
    let beneath = ExperimentRequest {
        set: Vec::new(),
        point: None,
        ..request.clone()
    };
    let Merged { tree, problems, .. } = merge_checked(&beneath, false);
    if !problems.is_empty() {
        return Err(Problems::new(problems));
    }
    let mut swept: Vec<String> = Vec::new();
    for key in varied_keys(&tree) {
        if !swept.iter().any(|known| known == key) {
            swept.push(key.to_owned());
        }
    }
    let search = tree.get_path(&["sweep", "search"]);
    Ok(SweptFile {
        has_search: search.is_some_and(|search| !search.is_null()),
        values: tree.to_json(),
        swept,
    })
}

/// Returns the text of an experiment file with the values of one point and another name. The name
/// of the point's layer is the comment beside its values.
///
/// # Errors
/// The experiment cannot be read, or the values contradict each other.
pub fn write_point(
    experiment: ExperimentRequest,
    name: &str,
    point: FixedPoint,
) -> Result<String, Problems> {
    let layer = point.name.clone();
    let loaded = load(&ExperimentRequest {
        set: vec![format!("name={}", Value::from(name))],
        point: Some(point),
        ..experiment
    })?;
    Ok(write_with(&loaded, |found| match found == layer {
        true => layer.clone(),
        false => String::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_point_has_no_sweep_and_names_the_layer_of_its_values() {
        let text = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n\
            train: {steps: 5}\nsweep: {grid: {train.batch_size: [4, 8]}}\n";
        let request = ExperimentRequest {
            file: "x.yaml".into(),
            text: Some(text.to_owned()),
            ..ExperimentRequest::default()
        };
        let point = FixedPoint {
            name: "of trial t1".to_owned(),
            swept: swept_file(&request).unwrap().swept,
            values: vec![("train.batch_size".to_owned(), Value::from(8))],
        };
        let text = write_point(request, "point", point).unwrap();
        assert!(text.contains("name: point\n"), "{text}");
        let line = text.lines().find(|line| line.contains("batch_size"));
        let line = line.unwrap();
        assert!(
            line.contains("batch_size: 8 ") && line.ends_with("# of trial t1"),
            "{text}"
        );
        assert!(!text.contains("grid"), "{text}");
    }
}
