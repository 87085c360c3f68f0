//! Reads an experiment file and plans its trials, for `plan`, `run` and other commands. Problems of
//! points get their line in the file.

mod data_facts;
mod problem_places;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use kiln_core::{
    kinds::{
        Data,
        command::{MetricTarget, metric_target},
        data::DataFacts,
    },
    plan::{self, Plan, PlanProblem, Prober, search::Ask},
    record::tables::TRIALS,
    spec::{self, ExperimentRequest, Loaded, Location, Problem, Problems},
};

pub(super) use self::data_facts::{FactFinder, at_home};
use self::problem_places::placed;
use super::{
    Status, Stop, initial_weights,
    mistake::{Mistake, in_texts, warn_of},
    secrets,
};

/// Most entries of `exclude` without a point that are printed one by one, each with its line.
const MOST_WARNED: usize = 5;

/// One experiment, read, checked and planned.
pub(super) struct Planned {
    pub(super) loaded: Loaded,
    pub(super) plan: Plan,
    /// Reasons why some facts about the data are unknown; a trial that reads this data cannot run
    /// here.
    pub(super) notes: Vec<String>,
    /// The notes about data that are here and cannot be used as they are.
    pub(super) malformed: Vec<String>,
    /// Files of `train.initial_weights` that do not fit the models.
    pub(super) unfit_weights: Vec<String>,
    /// Counts of the prompts and responses that are read, and classes of images that are too rare.
    pub(super) remarks: Vec<String>,
    /// `data_sha256` of a launch.
    pub(super) data: BTreeMap<String, String>,
}

impl Planned {
    /// # Errors
    /// Data are here and cannot be used as they are.
    pub(super) fn has_usable_data(&self) -> Result<(), Stop> {
        match self.malformed.is_empty() {
            true => Ok(()),
            false => Err(Stop::of_lines(Status::BadInput, &self.malformed)),
        }
    }

    /// Prints what is probably a mistake, although it can be run, to standard error.
    pub(super) fn warn(&self) {
        warn_of(self.mistakes(MOST_WARNED));
    }

    /// The warnings of [`Self::warn`] as texts, each with its place.
    pub(super) fn warnings(&self) -> Vec<String> {
        in_texts(self.mistakes(usize::MAX))
    }

    /// At most `most` entries of `exclude` have one of their own; one more sums up the others.
    fn mistakes(&self, most: usize) -> Vec<Mistake> {
        let mistake = |index: &usize| {
            let key = format!("sweep.exclude[{index}]");
            let place = self.loaded.point_location("exclude", *index);
            let place = place.or_else(|| self.loaded.locate("sweep.exclude"));
            let what = format!(
                "`{key}` matches no point of this sweep and drops none; correct its values, or \
                 remove it"
            );
            Mistake {
                place,
                what,
                is_secret: false,
            }
        };
        let unmatched = &self.plan.unmatched_excludes;
        let mut mistakes: Vec<_> = unmatched.iter().take(most).map(mistake).collect();
        mistakes.extend(unmatched.get(most..).and_then(more_unmatched));
        mistakes.extend(secrets::mistakes(&self.loaded));
        mistakes.extend(self.loaded.left_out.iter().map(|key| left_out(key)));
        mistakes
    }
}

/// Says that a value is left out, because a given value replaced the expression that used it.
fn left_out(key: &str) -> Mistake {
    Mistake {
        place: None,
        what: format!(
            "`{key}` is left out: only the expression of a derived key used it, and a given value \
             replaces that expression"
        ),
        is_secret: false,
    }
}

/// Sums up entries of `exclude` that match no point; `None` for none.
fn more_unmatched(entries: &[usize]) -> Option<Mistake> {
    let last = entries.last()?;
    let matching = match entries.len() {
        1 => "1 more entry of `sweep.exclude` matches".to_owned(),
        more => format!("{more} more entries of `sweep.exclude` match"),
    };
    Some(Mistake {
        place: None,
        what: format!(
            "{matching} no point, up to `sweep.exclude[{last}]`; `kiln check --json` lists all"
        ),
        is_secret: false,
    })
}

/// Reads an experiment with `--set` and environment variables applied, and plans its trials.
pub(super) fn plan_file(file: PathBuf, set: &[String]) -> Result<Planned, Stop> {
    plan_request(&request(file, set))
}

/// Reads an experiment with the layers of a request, and plans its trials.
pub(super) fn plan_request(request: &ExperimentRequest) -> Result<Planned, Stop> {
    plan_loaded(load_request(request)?)
}

/// Reads and checks an experiment with `--set` and environment variables applied.
pub(super) fn load_file(file: PathBuf, set: &[String]) -> Result<Loaded, Stop> {
    load_request(&request(file, set))
}

fn load_request(request: &ExperimentRequest) -> Result<Loaded, Stop> {
    let loaded = spec::load(request).map_err(Stop::problems)?;
    match taken_names(&loaded) {
        taken if taken.is_empty() => Ok(loaded),
        taken => Err(Stop::problems(Problems::new(taken))),
    }
}

/// The metrics of a command whose names are columns of `trials.csv` that a command does not fill: a
/// second column of that name, `metric.NAME`, would be taken for the first.
fn taken_names(loaded: &Loaded) -> Vec<Problem> {
    let Some(command) = loaded.experiment.model.command() else {
        return Vec::new();
    };
    let columns = TRIALS.names();
    let names = command
        .metrics
        .names()
        .filter(|name| metric_target(name) == MetricTarget::Own && columns.contains(name));
    let problem = |name: &str| {
        let key = format!("model.metrics.{name}");
        let message = format!(
            "`{name}` is a column of `trials.csv` that no metric fills, and `metric.{name}` would be \
             taken for it; choose another name, such as `own_{name}`"
        );
        let at = loaded
            .locate(&key)
            .unwrap_or_else(|| Location::named("model"));
        Problem::new(&at, key, message)
    };
    names.map(problem).collect()
}

/// Returns the generator of a search's trials. `find` finds data facts; `cores` is the number of
/// usable cores, `gpus` the number of GPUs per trial.
pub(super) fn prober<'a>(
    loaded: &Loaded,
    finder: &FactFinder,
    find: &'a dyn Fn(&Data) -> Option<DataFacts>,
    cores: u64,
    gpus: u64,
) -> Result<Prober<'a>, Stop> {
    let refused = |faults: Vec<PlanProblem>| Stop::problems(placed(loaded, &faults));
    let prober = Prober::new(&loaded.experiment, find, cores, gpus).map_err(refused)?;
    let Ask::Run(choices) = prober.strategy().ask(&[]) else {
        return Ok(prober);
    };
    let (mut trials, mut faults) = (Vec::new(), Vec::new());
    for choice in &choices {
        match prober.trial(choice) {
            Ok(trial) => trials.push(trial),
            Err(problems) => faults.extend(problems),
        }
    }
    faults.extend(finder.prompt_faults(&trials));
    if faults.is_empty() {
        Ok(prober)
    } else {
        Err(refused(faults))
    }
}

/// Plans the trials of an experiment.
pub(super) fn plan_loaded(loaded: Loaded) -> Result<Planned, Stop> {
    let finder = FactFinder::from_environment();
    let plan = plan::expand(&loaded.experiment, &|data| finder.find(data))
        .map_err(|faults| Stop::problems(placed(&loaded, &faults)))?;
    let faults = finder.prompt_faults(&plan.trials);
    if !faults.is_empty() {
        return Err(Stop::problems(placed(&loaded, &faults)));
    }
    let input = |data: &Data| finder.find(data).map(|facts| facts.input_shape());
    let unfit_weights = initial_weights::unfit(&loaded, &plan.trials, &input);
    let data = finder.hashes();
    let lines = |found: RefCell<BTreeSet<String>>| found.into_inner().into_iter().collect();
    Ok(Planned {
        plan,
        notes: lines(finder.notes),
        malformed: lines(finder.malformed),
        unfit_weights,
        remarks: lines(finder.remarks),
        data,
        loaded,
    })
}

/// Plans the trials of an experiment without its data: facts that depend on them are unknown. The only
/// point of a search has the file's own values.
pub(super) fn plan_without_data(loaded: &Loaded) -> Result<Plan, Stop> {
    let mut experiment = loaded.experiment.clone();
    experiment.sweep.search = None;
    plan::expand(&experiment, &|_| None).map_err(|faults| Stop::problems(placed(loaded, &faults)))
}

/// The request to `spec`: the file, `--set` values and the environment.
pub(super) fn request(file: PathBuf, set: &[String]) -> ExperimentRequest {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    };
    ExperimentRequest {
        file,
        set: set.to_vec(),
        variables: std::env::vars_os().filter_map(text).collect(),
        text: None,
        point: None,
    }
}

/// # Errors
/// If there are notes about missing files.
pub(super) fn all_here(notes: &[String]) -> Result<(), Stop> {
    if notes.is_empty() {
        Ok(())
    } else {
        Err(Stop::of_lines(Status::CannotRun, notes))
    }
}
