//! One point in place of a sweep: the values of a trial as a layer between the file and `--set`.
//!
//! In: the values, and the keys that the file sweeps. Out: a layer that takes the lists of the
//! sweep out and sets the values. Finding the trial is left to the commands.

use serde_json::{Value, json};

use super::{
    Derivation, ExperimentRequest, Merged, Problems,
    axes::{derived_keys, varied_keys},
    load,
    merge::SpecLayer,
    merge_checked,
    node::Node,
    problem::Location,
    resolved::write_with,
};

/// Sections of a sweep that list or choose points, beside `grid`. What else it holds, such as
/// `repeats` and `order`, stays.
const LISTS: [&str; 6] = ["zip", "sample", "search", "include", "exclude", "together"];

/// The values of one point, which replace the points of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FixedPoint {
    /// Name of the layer, such as `--at x:t4f0c1a2b3d`.
    pub name: String,
    /// The keys that the file sweeps.
    pub swept: Vec<String>,
    /// The file's derived keys. The expression of each stays, unless the key is among `values`.
    pub derived: Vec<String>,
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
        self.set_derive(&mut tree, &node);
        let mut values: Vec<&(String, Value)> = self.values.iter().collect();
        // A whole map comes before its keys.
        values.sort_by_key(|(key, _)| key.matches('.').count());
        for (key, value) in values {
            let names: Vec<&str> = key.split('.').collect();
            tree.set_path(&names, node(value));
        }
        SpecLayer {
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

    /// Takes the expressions of the keys out that have a value.
    fn set_derive(&self, tree: &mut Node, node: &impl Fn(&Value) -> Node) {
        let has_value = |key: &String| self.values.iter().any(|(given, _)| given == key);
        if self.derived.iter().all(has_value) {
            return tree.set_path(&["sweep", "derive"], node(&Value::Null));
        }
        for key in self.derived.iter().filter(|key| has_value(key)) {
            tree.set_path(&["sweep", "derive", key.as_str()], node(&Value::Null));
        }
    }
}

/// The sweep of a file and its values, without `--set`.
#[derive(Clone, Debug, PartialEq)]
pub struct SweptFile {
    /// The keys for which some point has a value of its own, each once.
    pub swept: Vec<String>,
    /// Those of them that `sweep.derive` computes.
    pub derived: Vec<String>,
    pub has_search: bool,
    /// The file's own values with the defaults.
    pub values: Value,
}

impl SweptFile {
    /// The derived keys with the values that the file's expressions have where all other keys have
    /// these values. A key without a valid value there is left out.
    pub fn derived_at(&self, values: &Value) -> Vec<(String, Value)> {
        let computed = |(key, expression): (&String, &Value)| {
            let derivation = Derivation::read(key, expression).ok()?;
            let of_keys: Vec<Value> = derivation
                .keys()
                .iter()
                .map(|used| value_at(values, used))
                .collect();
            Some((key.clone(), derivation.value(&of_keys).ok()?))
        };
        let expressions = self.values["sweep"]["derive"].as_object();
        expressions
            .into_iter()
            .flatten()
            .filter_map(computed)
            .collect()
    }
}

/// The value of a dotted key; `null` if it is not set.
fn value_at(values: &Value, key: &str) -> Value {
    let found = key
        .split('.')
        .try_fold(values, |place, name| place.get(name));
    found.cloned().unwrap_or_default()
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
        derived: derived_keys(&tree).map(str::to_owned).collect(),
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
            derived: Vec::new(),
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

    #[test]
    fn derived_values_are_those_of_the_expressions_at_the_given_values() {
        let text = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n\
            train: {steps: 5}\nsweep: {grid: {train.batch_size: [4, 8]}, derive: \
            {train.grad_accumulation: 64 / train.batch_size}}\n";
        let file = swept_file(&ExperimentRequest {
            file: "x.yaml".into(),
            text: Some(text.to_owned()),
            ..ExperimentRequest::default()
        })
        .unwrap();
        assert_eq!(file.derived, ["train.grad_accumulation"]);
        let at = |size: u64| file.derived_at(&json!({"train": {"batch_size": size}}));
        assert_eq!(
            at(16),
            [("train.grad_accumulation".to_owned(), Value::from(4))]
        );
        assert!(at(24).is_empty());
        assert!(file.derived_at(&json!({})).is_empty());
    }
}
