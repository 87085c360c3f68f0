//! The layers of a request, lowest first: the files named by `extends`, the file, the `KILN_…`
//! variables, the point of `--at`, the `--set`s.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ExperimentRequest, FixedPoint,
    axes::varying_sections,
    home::expand_home,
    merge::SpecLayer,
    node::{Node, NodeContent},
    problem::{Location, Problem},
    read::{read_file, read_text_as_tree},
    scalar::Scalar,
};

/// The parts of a request that could be read.
pub(super) struct ReadLayers {
    pub(super) layers: Vec<SpecLayer>,
    pub(super) problems: Vec<Problem>,
    /// Whether every file of the chain could be parsed; otherwise a key may seem missing although
    /// it is not.
    pub(super) whole: bool,
}

pub(super) fn read(request: &ExperimentRequest) -> ReadLayers {
    let mut read = ReadLayers {
        layers: Vec::new(),
        problems: Vec::new(),
        whole: true,
    };
    read_chain(request, &mut read);
    read.layers.reverse();
    let mut variables: Vec<&(String, String)> = request
        .variables
        .iter()
        .filter(|(name, _)| is_experiment_key(name))
        .collect();
    variables.sort_by_key(|(name, _)| (!name.ends_with("__KIND"), name.as_str()));
    for (name, value) in variables {
        let key = name
            .trim_start_matches("KILN_")
            .to_lowercase()
            .replace("__", ".");
        push_override(&mut read, name, &key, value);
    }
    read.layers
        .extend(request.point.as_ref().map(FixedPoint::layer));
    // A kind replaces its map, so it is applied before the keys of that map; otherwise the given
    // order holds.
    let is_kind = |argument: &&String| {
        argument
            .split('=')
            .next()
            .is_some_and(|key| key.trim().ends_with(".kind"))
    };
    let (kinds, others): (Vec<&String>, Vec<&String>) = request.set.iter().partition(is_kind);
    for argument in kinds.into_iter().chain(others) {
        let name = format!("--set {argument}");
        match argument.split_once('=') {
            Some((key, value)) => push_override(&mut read, &name, key.trim(), value),
            None => read.problems.push(Problem::new(
                &Location::named(&name),
                "",
                "has no `=`; write `--set train.batch_size=8`",
            )),
        }
    }
    read
}

/// Whether a variable sets a key of the experiment. A name without a double underscore is a setting
/// of the program, such as `KILN_DATA`.
pub(crate) fn is_experiment_key(name: &str) -> bool {
    name.strip_prefix("KILN_")
        .is_some_and(|rest| rest.contains("__"))
}

/// Reads a file and all files that it extends, the file itself first.
fn read_chain(request: &ExperimentRequest, read: &mut ReadLayers) {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut next = Some((request.file.clone(), None::<Location>));
    let mut given = request.text.as_deref();
    while let Some((path, named_at)) = next.take() {
        let source: Arc<str> = path.display().to_string().into();
        if let (Ok(real), Some(at)) = (path.canonicalize(), &named_at)
            && seen.contains(&real)
        {
            read.whole = false;
            read.problems.push(Problem::new(
                at,
                "extends",
                format!("`extends` forms a cycle: `{source}` already extends this file"),
            ));
            return;
        }
        seen.extend(path.canonicalize());
        let found = given.take().map_or_else(
            || read_file(&path, &source),
            |text| read_text_as_tree(text, &source),
        );
        match (found, named_at) {
            (Ok(tree), _) => {
                read.problems.extend(tree.problems);
                let mut tree = tree.tree;
                if let Some(problem) = record_of_trial(&path, &tree) {
                    read.whole = false;
                    read.problems.push(problem);
                    return;
                }
                read.whole &= tree.is_map();
                next = take_extends(&path, &mut tree, &mut read.problems);
                read.layers.push(SpecLayer {
                    tree,
                    overrides: None,
                });
            }
            (Err(problems), Some(at))
                if problems
                    .iter()
                    .all(|problem| problem.location.position.is_none()) =>
            {
                read.whole = false;
                let why = problems
                    .iter()
                    .map(|problem| problem.message.as_str())
                    .collect::<Vec<_>>()
                    .join("; ");
                read.problems.push(Problem::new(
                    &at,
                    "extends",
                    format!("`extends` names `{source}`: {why}"),
                ));
            }
            (Err(problems), _) => {
                read.whole = false;
                read.problems.extend(problems);
            }
        }
    }
}

/// Says that a file is `trial.yaml`, the record of a trial, and what to use in its place.
fn record_of_trial(path: &Path, tree: &Node) -> Option<Problem> {
    let mark = tree.entry(RECORD_MARK)?;
    let trial = tree.get("trial").and_then(Node::text).unwrap_or("TRIAL");
    // It lies in `RUN/trials/TRIAL/`.
    let trials = path.ancestors().nth(2);
    let trials = trials.filter(|folder| folder.ends_with(TRIALS_FOLDER));
    let run = trials.and_then(Path::parent);
    let run = run.map(|run| run.display().to_string());
    let run = run
        .filter(|run| !run.is_empty())
        .unwrap_or_else(|| "RUN".to_owned());
    let message = format!(
        "this file is the record of a trial, not an experiment; run its point with `kiln run FILE \
         --at {run}:{trial}`, or write its experiment with `kiln init NEW.yaml --from {run}:{trial}`"
    );
    Some(Problem::new(&mark.key_location, RECORD_MARK, message))
}

/// The key that marks the record of a trial: its format version.
const RECORD_MARK: &str = "kiln_trial";
/// The folder of a run that has a folder for each trial.
const TRIALS_FOLDER: &str = "trials";

/// Removes `extends` from a tree and returns the path it names, relative to the file.
fn take_extends(
    file: &Path,
    tree: &mut Node,
    problems: &mut Vec<Problem>,
) -> Option<(PathBuf, Option<Location>)> {
    let node = tree.get("extends")?.clone();
    tree.remove_path(&["extends"]);
    if node.is_null() {
        return None;
    }
    let Some(text) = node.text().filter(|text| !text.is_empty()) else {
        problems.push(Problem::new(
            &node.location,
            "extends",
            format!(
                "`extends` is {}; it must be the path of one YAML file, relative to this one",
                node.found()
            ),
        ));
        return None;
    };
    Some((
        file.parent()
            .unwrap_or(Path::new(""))
            .join(expand_home(text)),
        Some(node.location),
    ))
}

fn push_override(read: &mut ReadLayers, name: &str, key: &str, text: &str) {
    let location = Location::named(name);
    let path = key_path(key);
    if path.iter().any(|part| part.is_empty()) {
        read.problems.push(Problem::new(
            &location,
            key,
            format!("`{key}` is not a key; write it with dots, such as `train.batch_size`"),
        ));
        return;
    }
    if key == "extends" {
        read.problems.push(Problem::new(
            &location,
            key,
            "`extends` works only in a file; give single keys here",
        ));
        return;
    }
    match override_value(text, &location) {
        Ok(value) => {
            let mut tree = Node::empty_map(location);
            tree.set_path(&path, value);
            read.layers.push(SpecLayer {
                tree,
                overrides: Some(key.to_owned()),
            });
        }
        Err(problems) => read
            .problems
            .extend(problems.into_iter().map(|problem| Problem {
                location: location.clone(),
                ..problem
            })),
    }
}

/// `sweep.grid.train.batch_size` is the axis `train.batch_size` of `sweep.grid`; so are the keys of
/// the other sections with axes, and of `sweep.derive`.
fn key_path(key: &str) -> Vec<&str> {
    for section in varying_sections() {
        let rest = key.strip_prefix(&section.join("."));
        if let Some(axis) = rest.and_then(|rest| rest.strip_prefix('.')) {
            return [section, &[axis]].concat();
        }
    }
    key.split('.').collect()
}

fn override_value(text: &str, location: &Location) -> Result<Node, Vec<Problem>> {
    if text.trim().is_empty() {
        return Ok(Node {
            content: NodeContent::Scalar(Scalar::plain("")),
            location: location.clone(),
        });
    }
    let read = read_text_as_tree(text, &location.source)?;
    if !read.problems.is_empty() {
        return Err(read.problems);
    }
    Ok(relocated(read.tree, location))
}

fn relocated(mut node: Node, location: &Location) -> Node {
    node.location = location.clone();
    node.content = match node.content {
        NodeContent::List(items) => NodeContent::List(
            items
                .into_iter()
                .map(|item| relocated(item, location))
                .collect(),
        ),
        NodeContent::Map(entries) => NodeContent::Map(
            entries
                .into_iter()
                .map(|mut entry| {
                    entry.key_location = location.clone();
                    entry.value = relocated(entry.value, location);
                    entry
                })
                .collect(),
        ),
        scalar => scalar,
    };
    node
}
