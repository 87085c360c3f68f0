//! The input: the YAML layers of an experiment, read, fully checked and merged into one
//! [`Experiment`].
//!
//! In: a [`ExperimentRequest`] (a file, variables, `--set`s). Out: a [`Loaded`] experiment in which
//! every value records its layer, or [`Problems`]: all faults, each with its place. Expanding the
//! sweep into points, and checking whether the data exists, are left to other modules.

mod axes;
mod block_axes;
mod check;
mod checkpoint;
mod condition;
mod contradictions;
mod derivation;
#[cfg(test)]
mod derive_tests;
#[cfg(test)]
mod documentation_tests;
mod engine;
mod experiment;
mod expression;
mod fixed_point;
mod future;
mod generate;
#[cfg(test)]
mod generated_tests;
mod home;
mod initial_weights;
mod keys;
#[cfg(test)]
mod layering_tests;
mod layers;
pub mod learned;
mod leftover_values;
mod merge;
mod merge_rules;
mod model_section;
mod node;
mod objective;
mod optimizer;
mod overrides;
mod problem;
mod random_points;
mod random_rows;
mod range_axis;
mod read;
mod resolved;
mod run_options;
mod run_slurm;
mod sample;
mod scalar;
mod schema;
mod search;
mod search_choice;
mod shapes;
pub mod suggest;
mod sweep;
mod synonyms;
mod value;

use std::path::PathBuf;

use node::{Node, NodeContent};
use serde::de::DeserializeOwned;

use crate::kinds::{Command, Model, command::CommandMetric};

pub(crate) use axes::may_vary;
pub use checkpoint::{AfterTraining, Checkpoint};
pub use condition::{Operator, condition};
pub(crate) use contradictions::TWO_TOKENIZERS;
pub use contradictions::{PatternMemo, ResolvedPoint, contradictions};
pub(crate) use derivation::{Derivation, sources};
pub use engine::{Engine, EngineName, EngineProgram};
pub use experiment::{
    Axis, CpuThreads, CudaGraph, EarlyStop, Evaluate, EvaluateEvery, EvaluateMoment, Experiment,
    GradientNoise, Identity, LATEST, Measure, Memory, Order, Precision, RecordOptions, Sweep,
    Target, Train,
};
pub use fixed_point::{FixedPoint, SweptFile, swept_file, write_point};
pub use generate::Generate;
pub use home::expand_home;
pub use initial_weights::InitialWeights;
pub(crate) use layers::is_experiment_key;
pub use model_section::AskedModel;
pub use objective::{Goal, Metric, Objective, ObjectiveSource};
pub use optimizer::{LearningRateSchedule, Optimizer, WeightDecayOn};
pub use overrides::{apply_override, apply_point};
pub use problem::{Location, Problem, Problems};
pub use random_points::RandomPoints;
pub(crate) use resolved::written;
pub use resolved::{ValueOrigin, write_resolved};
pub use run_options::{CoolDown, DeviceId, DeviceName, Devices, OnOom, Run, RunPlace};
pub use run_slurm::Slurm;
pub use sample::Sample;
pub use schema::schema;
pub use search::{MostWorkers, Search, SearchedKeys};
pub use search_choice::{CHOSEN_BY_TUNE, write_chosen};

/// The requested experiment.
#[derive(Clone, Debug, Default)]
pub struct ExperimentRequest {
    pub file: PathBuf,
    /// Content of the file, if it comes from a commit instead of the disk.
    pub text: Option<String>,
    /// Values in place of the file's sweep (`kiln run --at`), beneath `set`.
    pub point: Option<FixedPoint>,
    /// `train.batch_size=8`; values are YAML. Later ones take precedence.
    pub set: Vec<String>,
    /// The environment; only `KILN_…` names with a double underscore are used.
    pub variables: Vec<(String, String)>,
}

impl ExperimentRequest {
    /// The experiment of a run, as it was resolved then: the environment of now has no effect. `file` is
    /// its place in messages, and is not read.
    pub fn of_run(file: PathBuf, text: String, set: Vec<String>) -> Self {
        Self {
            file,
            text: Some(text),
            set,
            ..Self::default()
        }
    }
}

/// A checked experiment, and the source of each of its values.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub experiment: Experiment,
    /// Every resolved value in document order, defaults included.
    pub origins: Vec<ValueOrigin>,
    /// Values of a command that are left out: only an expression used them, and a `--set` or a variable
    /// gives its key a value.
    pub left_out: Vec<String>,
    /// Values that a variable takes away by `null`.
    unset: Vec<ValueOrigin>,
    tree: Node,
    top: Location,
}

impl Loaded {
    /// Place of a dotted key in the file, or of the nearest section around it.
    pub fn locate(&self, key: &str) -> Option<Location> {
        let location = contradictions::locate(&self.tree, key, &self.top);
        let parent = || {
            key.rsplit_once('.').map_or_else(
                || self.top.clone(),
                |(parent, _)| contradictions::locate(&self.tree, parent, &self.top),
            )
        };
        let given = |location: &Location| {
            location.position.is_some()
                || location.source.starts_with("--set")
                || location.source.starts_with("--at")
                || location.source.starts_with("KILN_")
        };
        Some(location)
            .filter(given)
            .or_else(|| Some(parent()).filter(given))
            .or_else(|| Some(self.top.clone()))
    }

    /// Place of the value of an axis (`grid` or `zip`), or of the axis itself if there is no index.
    pub fn axis_location(
        &self,
        section: &str,
        key: &str,
        index: Option<usize>,
    ) -> Option<Location> {
        let entry = self.tree.get_path(&["sweep", section])?.entry(key)?;
        match index {
            Some(index) => entry
                .value
                .items()
                .get(index)
                .map(|value| value.location.clone()),
            None => Some(entry.key_location.clone()),
        }
    }

    /// Place of the entry of `include` or `exclude`.
    pub fn point_location(&self, section: &str, index: usize) -> Option<Location> {
        self.tree
            .get_path(&["sweep", section])?
            .items()
            .get(index)
            .map(|point| point.location.clone())
    }
}

/// Reads, checks and merges one experiment.
///
/// # Errors
/// Every problem of every layer, sorted by file and line.
pub fn load(request: &ExperimentRequest) -> Result<Loaded, Problems> {
    let Merged {
        mut user,
        mut tree,
        top,
        mut problems,
        whole,
        replaced,
        unset,
    } = merge_checked(request, true);
    if !problems.is_empty() {
        if whole {
            problems.extend(contradictions_beside(&problems, user, &top));
        }
        return Err(Problems::new(problems));
    }
    let mut experiment = typed(&tree, &top)?;
    let left_out = leftover_values::of(&replaced, &experiment, &user);
    if !left_out.is_empty() {
        for key in &left_out {
            let path = leftover_values::path(key);
            user.remove_path(&path);
            tree.remove_path(&path);
        }
        experiment = typed(&tree, &top)?;
    }
    let problems = contradictions::check(&experiment, &user, &top, &[]);
    if !problems.is_empty() {
        return Err(Problems::new(problems));
    }
    Ok(Loaded {
        experiment,
        origins: resolved::origins(&tree),
        left_out,
        unset,
        tree,
        top,
    })
}

fn typed(tree: &Node, top: &Location) -> Result<Experiment, Problems> {
    serde_json::from_value(tree.to_json()).map_err(|error| {
        let message = format!(
            "this file passed every check and still does not fit the types: {error}; this is a bug \
             in kiln; please report it"
        );
        Problems::from(Problem::new(top, "", message))
    })
}

/// Contradictions among the valid keys of a faulty file: faulty keys are removed, and
/// contradictions that involve them are not reported.
fn contradictions_beside(problems: &[Problem], mut user: Node, top: &Location) -> Vec<Problem> {
    user = check::mended(&user);
    let faulty: Vec<String> = problems
        .iter()
        .map(|problem| problem.key.split('[').next().unwrap_or_default().to_owned())
        .collect();
    for key in &faulty {
        let path: Vec<&str> = key.split('.').collect();
        match path[..] {
            // A value of a command is declared, whatever it is.
            ["model", "values", _] if user.get_path(&path).is_some() => {
                user.set_path(&path, Node::from_json(&serde_json::Value::Null, top));
            }
            _ => user.remove_path(&path),
        }
    }
    let mut whole = user.clone();
    for (key, value) in [
        ("kiln", serde_json::json!(1)),
        ("name", serde_json::json!("x")),
    ] {
        if whole.get(key).is_none() {
            whole.set_path(&[key], Node::from_json(&value, top));
        }
    }
    match serde_json::from_value(with_defaults(whole).to_json()) {
        Ok(experiment) => contradictions::check(&experiment, &user, top, &faulty),
        Err(_) => Vec::new(),
    }
}

/// The values of the layers merged with the defaults, for the types only: places and layers are
/// lost.
fn with_defaults(user: Node) -> Node {
    let defaults = merge::SpecLayer {
        tree: merge::defaults(&user),
        overrides: None,
    };
    merge::merged(&[
        defaults,
        merge::SpecLayer {
            tree: user,
            overrides: None,
        },
    ])
}

/// Reads a YAML text that kiln wrote, such as a resolved experiment.
///
/// # Errors
/// It does not fit the type, or its aliases make it too large.
pub fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    check_growth(text)?;
    serde_yaml::from_str(text).map_err(|error| error.to_string())
}

/// The objective of a YAML text that kiln wrote ([`Experiment::ranking_objective`]). `None` if it has
/// none or cannot be read.
pub fn objective_of(text: &str) -> Option<Objective> {
    let part: ObjectivePart = read_yaml(text).ok()?;
    let command = part.model.as_ref().and_then(command_of);
    let search = part.sweep.and_then(|sweep| sweep.search);
    let search = search.and_then(|search| serde_json::from_value(search).ok());
    objective(part.objective, command.as_ref(), search.as_ref())
}

#[derive(serde::Deserialize)]
struct ObjectivePart {
    objective: Option<Objective>,
    model: Option<serde_json::Value>,
    sweep: Option<SweepPart>,
}

#[derive(serde::Deserialize)]
struct SweepPart {
    search: Option<serde_json::Value>,
}

/// The command of an experiment's `model`, if it is one.
pub fn command_of(model: &serde_json::Value) -> Option<Command> {
    match serde_json::from_value(model.clone()).ok()? {
        Model::Command(command) => Some(command),
        _ => None,
    }
}

/// The objective with its direction.
fn objective(
    asked: Option<Objective>,
    command: Option<&Command>,
    search: Option<&Search>,
) -> Option<Objective> {
    if let Some(Search::SuccessiveHalving { metric, .. }) = search {
        let searched = Objective {
            source: ObjectiveSource::Search,
            ..Objective::of(*metric, None)
        };
        return Some(Objective {
            is_in_rounds: true,
            ..asked.unwrap_or(searched)
        });
    }
    let Some(asked) = asked else {
        let (name, better) = command?.ranking_metric()?;
        let command = command?;
        let says = |metric: &CommandMetric| metric.better.is_some();
        return Some(Objective {
            metric: Metric::named(&name),
            goal: Some(better.into()),
            source: match command.metrics.get(&name).is_some_and(says) {
                true => ObjectiveSource::Better,
                false => ObjectiveSource::Measured,
            },
            is_in_rounds: false,
        });
    };
    let better = command.and_then(|command| command.better(asked.metric.key()));
    Some(Objective {
        goal: asked.goal.or(better.map(Goal::from)),
        ..asked
    })
}

impl Experiment {
    /// The metric that ranks points: `objective`, else that of a search by successive halving, else the
    /// first metric of a command that says which direction is better.
    pub fn ranking_objective(&self) -> Option<Objective> {
        let command = self.model.command();
        objective(self.objective, command, self.sweep.search.as_ref())
    }

    /// Whether its search ranks batch sizes by the time until a loss: with the gradient noise scale
    /// that its trials measure, a size that needs more samples is not faster for its speed.
    pub fn searches_until_target(&self) -> bool {
        let is_of_batch = matches!(
            self.sweep.search,
            Some(Search::BestThroughputBatch {
                keep_effective: false,
                ..
            })
        );
        let is_asked = self
            .objective
            .is_some_and(|objective| objective.metric == Metric::SecondsToTarget);
        is_of_batch && is_asked && self.measure.gradient_noise.is_some()
    }
}

/// Refuses a YAML text whose aliases would make it too large; kiln writes none.
///
/// # Errors
/// The fault, with its place.
pub fn check_growth(text: &str) -> Result<(), String> {
    read::check_growth(text).map_err(|problems| Problems::new(problems).to_string())
}

/// Checks a file that other files extend: every key in it; missing keys are allowed.
///
/// # Errors
/// Every problem, sorted by file and line.
pub fn check_fragment(request: &ExperimentRequest) -> Result<(), Problems> {
    let problems = merge_checked(request, false).problems;
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems::new(problems))
    }
}

struct Merged {
    /// The values of the layers.
    user: Node,
    /// The values of the layers merged with the defaults.
    tree: Node,
    top: Location,
    problems: Vec<Problem>,
    /// Whether every file of the chain could be read.
    whole: bool,
    /// The keys that replaced expressions of `sweep.derive` used.
    replaced: Vec<String>,
    /// Values that a variable takes away by `null`.
    unset: Vec<ValueOrigin>,
}

fn merge_checked(request: &ExperimentRequest, whole: bool) -> Merged {
    let read = layers::read(request);
    let mut problems = read.problems;
    let top = Location {
        source: request.file.display().to_string().into(),
        position: Some((1, 1)),
    };
    let count = read.layers.len();
    let own_file = read
        .layers
        .iter()
        .rposition(|layer| layer.overrides.is_none());
    let mut layers = Vec::new();
    let (mut replaced, mut unset) = (Vec::new(), Vec::new());
    for (index, mut layer) in read.layers.into_iter().enumerate() {
        problems.extend(own_faults(&layer));
        problems.extend(range_axis::expand(&mut layer.tree));
        let is_file = layer.overrides.is_none();
        let beneath = merge::merged(&layers);
        problems.extend(block_axes::check(&beneath, &layer));
        replaced.extend(leftover_values::replaced(&layers, &layer));
        merge::lay(&mut layers, &beneath, layer);
        let tree = merge::merged(&layers);
        problems.extend(check::walk(
            &tree,
            whole && read.whole && index + 1 == count,
            &top,
        ));
        // Several `--set`s may change `zip` together, so only the last one shows whether the
        // lengths of its lists agree.
        if is_file || index + 1 == count {
            problems.extend(sweep::check(&check::mended(&tree)));
        }
        if index + 1 == count {
            problems.extend(engine::check(&tree));
        }
        if let Some(layer) = layers.last_mut() {
            let given = resolved::origins(&layer.tree).into_iter();
            unset.extend(
                given.filter(|origin| origin.value.is_null() && is_experiment_key(&origin.layer)),
            );
            let kind = tree.get_path(&["model", "kind"]).and_then(Node::text);
            merge::strip_nulls(&mut layer.tree, kind == Some("command"));
            // It says what the other file is for.
            if is_file && Some(index) != own_file {
                layer.tree.remove_path(&["description"]);
            }
        }
    }
    let mut user = merge::merged(&layers);
    // A higher layer may give such a key a value again.
    unset.retain(|origin| {
        let path: Vec<&str> = origin.key.split('.').collect();
        user.get_path(&path).is_none()
    });
    let has_sample = whole && problems.is_empty();
    if has_sample {
        problems.extend(random_rows::expand(&mut user).err());
    }
    layers.insert(
        0,
        merge::SpecLayer {
            tree: merge::defaults(&user),
            overrides: None,
        },
    );
    let mut tree = merge::merged(&layers);
    if has_sample && problems.is_empty() {
        problems.extend(random_rows::expand(&mut tree).err());
    }
    sweep::resolve_order(&user, &mut tree);
    model_section::resolve_model(&mut tree);
    merge::order_keys(&mut tree);
    Merged {
        tree,
        user,
        top,
        problems,
        whole: read.whole,
        replaced,
        unset,
    }
}

/// Faults within a single layer: the layer is not a map, or gives two keys of which one replaces
/// the other.
fn own_faults(layer: &merge::SpecLayer) -> Vec<Problem> {
    if !layer.tree.is_map() {
        let message = format!(
            "the file is {}; it must be a map of keys: `kiln`, `name`, `model`, …",
            layer.tree.found()
        );
        return vec![Problem::new(&layer.tree.location, "", message)];
    }
    let mut problems = Vec::new();
    refuse_nul(&layer.tree, "", &mut problems);
    let given = |key| {
        layer
            .tree
            .get("train")
            .and_then(|train| train.entry(key))
            .filter(|entry| !entry.value.is_null())
    };
    if let (Some(steps), Some(epochs)) = (given("steps"), given("epochs")) {
        let later = if steps.key_location > epochs.key_location {
            steps
        } else {
            epochs
        };
        problems.push(Problem::new(
            &later.key_location,
            "train.epochs",
            "`train.steps` and `train.epochs` are both given; keep one of them",
        ));
    }
    problems
}

/// Refuses NUL characters in texts and keys: in a table they stand for bytes that a power failure
/// has lost.
fn refuse_nul(node: &Node, path: &str, problems: &mut Vec<Problem>) {
    let has_nul = |text: &str| text.contains('\0');
    let message = |path: &str, what: &str| {
        format!(
            "`{path}` {what} a NUL character (`\\0`), which no table can hold; remove it, or \
             write a space instead"
        )
    };
    match &node.content {
        NodeContent::Scalar(scalar) if has_nul(&scalar.text) => {
            problems.push(Problem::new(&node.location, path, message(path, "has")));
        }
        NodeContent::Scalar(_) => {}
        NodeContent::List(items) => {
            for item in items {
                refuse_nul(item, path, problems);
            }
        }
        NodeContent::Map(entries) => {
            for entry in entries {
                let full = shapes::join(path, &entry.key);
                if has_nul(&entry.key) {
                    let text = message(&full, "is a key with");
                    problems.push(Problem::new(&entry.key_location, full.clone(), text));
                }
                refuse_nul(&entry.value, &full, problems);
            }
        }
    }
}
