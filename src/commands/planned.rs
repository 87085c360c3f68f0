//! Reads an experiment file and plans its trials, for `plan`, `run` and other commands. Problems of
//! points get their line in the file.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use kiln_core::{
    kinds::{
        Data, KeyFault,
        command::{MetricTarget, metric_target},
        data::{Counts, DataFacts, PairCounts},
    },
    plan::{self, Plan, PlanProblem, Prober, Trial, search::Ask},
    record::{run_file::joined_sums, tables::TRIALS},
    spec::{self, ExperimentRequest, Loaded, Location, Problem, Problems, expand_home},
};
use kiln_data::{
    error::DataError,
    facts::{cache_folder, facts},
    images,
    source::data_folder,
    text,
    tokenizer::Vocabulary,
};

use serde_json::Value;

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

/// Plans the trials of an experiment without its data: what depends on them is unknown. Of a search
/// the file's own values are the only point.
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

/// Gives the problems of a plan their places in the file.
fn placed(loaded: &Loaded, problems: &[PlanProblem]) -> Problems {
    let mut places = AxisPlaces {
        loaded,
        indices: HashMap::new(),
    };
    let placed = problems.iter().filter_map(|problem| {
        let at = places.of(problem)?;
        let key = problem.fault.key.as_str();
        Some(Problem::new(&at, key, problem.to_string()))
    });
    Problems::new(placed.collect())
}

/// Finds the places of faults in the file.
struct AxisPlaces<'a> {
    loaded: &'a Loaded,
    /// The index of each value of an axis, by section and key of the axis: there may be as many
    /// faults as values.
    indices: HashMap<(String, String), HashMap<String, usize>>,
}

impl AxisPlaces<'_> {
    fn of(&mut self, fault: &PlanProblem) -> Option<Location> {
        let sweep = &self.loaded.experiment.sweep;
        let place = fault.place(|key| match key {
            key if sweep.zip.contains_key(key) => "zip",
            key if sweep.derive.contains_key(key) => "derive",
            _ => "grid",
        });
        match place
            .strip_prefix("sweep.")
            .and_then(|rest| rest.split_once('.'))
        {
            Some(_) if sweep.search.is_some() => self.loaded.locate("sweep.search"),
            Some((section @ "derive", key)) => self
                .loaded
                .axis_location(section, key, None)
                .or_else(|| self.loaded.locate("sweep")),
            Some((section @ ("grid" | "zip"), key)) => {
                let chosen = fault.axes.iter().find(|(axis, _)| axis == key);
                let index = chosen.and_then(|(_, value)| self.index(section, key, value));
                self.loaded
                    .axis_location(section, key, index)
                    .or_else(|| self.loaded.locate("sweep"))
            }
            _ => self.loaded.locate(&place),
        }
    }

    /// The index of the first such value of an axis.
    fn index(&mut self, section: &str, key: &str, value: &Value) -> Option<usize> {
        let sweep = &self.loaded.experiment.sweep;
        let indices = self
            .indices
            .entry((section.to_owned(), key.to_owned()))
            .or_insert_with(|| {
                let axes = if section == "zip" {
                    &sweep.zip
                } else {
                    &sweep.grid
                };
                let mut first = HashMap::new();
                let values = axes.get(key).and_then(Value::as_array);
                for (index, value) in values.into_iter().flatten().enumerate() {
                    first.entry(value.to_string()).or_insert(index);
                }
                first
            });
        indices.get(&value.to_string()).copied()
    }
}

/// Returns a line per split with the number and lengths of prompts and responses and how many were
/// cut; none for other data.
fn about_pairs(data: &Data, facts: &DataFacts) -> Vec<String> {
    let (Counts::Pairs { train, valid, .. }, Some(sampling)) = (&facts.counts, data.pairs()) else {
        return Vec::new();
    };
    let (kind, most_prompt, most_response) = (
        data.kind(),
        sampling.max_prompt_tokens,
        sampling.max_response_tokens,
    );
    let about = |part: &str, counts: &PairCounts| {
        let PairCounts {
            rows,
            prompt_tokens,
            response_tokens,
            cut_prompts,
            cut_responses,
            ..
        } = counts;
        let unknown = counts.unknown_fraction().unwrap_or_default() * 100.0;
        format!(
            "{part} rows of {kind}: {rows}, with {prompt_tokens} prompt and {response_tokens} \
             response tokens, {unknown:.2} % of them unknown; cut: {cut_prompts} prompts at \
             {most_prompt} tokens, {cut_responses} responses at {most_response}"
        )
    };
    vec![about("training", train), about("validation", valid)]
}

/// The data with `~` at the beginning of its paths replaced.
pub(super) fn at_home(data: &Data) -> Data {
    let mut data = data.clone();
    for path in data.paths_mut() {
        *path = expand_home(path).to_string_lossy().into_owned();
    }
    data
}

/// Finds facts about texts, and collects the reasons for unknown facts.
pub(super) struct FactFinder {
    data_folder: Option<PathBuf>,
    cache: Option<PathBuf>,
    notes: RefCell<BTreeSet<String>>,
    /// The notes about malformed data.
    malformed: RefCell<BTreeSet<String>>,
    remarks: RefCell<BTreeSet<String>>,
    hashes: RefCell<BTreeMap<String, BTreeSet<String>>>,
    /// Kinds of which some data are not here.
    incomplete: RefCell<BTreeSet<String>>,
}

impl FactFinder {
    /// Uses `$KILN_DATA` and the user's cache folder.
    pub(super) fn from_environment() -> Self {
        let variable = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            data_folder: data_folder(),
            cache: cache_folder(variable("XDG_CACHE_HOME"), variable("HOME")),
            notes: RefCell::default(),
            malformed: RefCell::default(),
            remarks: RefCell::default(),
            hashes: RefCell::default(),
            incomplete: RefCell::default(),
        }
    }

    /// Reasons why some requested facts about data are unknown.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.borrow().iter().cloned().collect()
    }

    /// SHA-256 of the requested data, by the data kinds of which all are here.
    pub(super) fn hashes(&self) -> BTreeMap<String, String> {
        let (hashes, incomplete) = (self.hashes.borrow(), self.incomplete.borrow());
        let whole = hashes
            .iter()
            .filter(|(kind, _)| !incomplete.contains(*kind));
        let joined = |sums: &BTreeSet<String>| joined_sums(sums.iter().map(String::as_str));
        whole
            .map(|(kind, sums)| (kind.clone(), joined(sums)))
            .collect()
    }

    /// Returns the prompts of `train.sample` that the vocabularies cannot encode, each with its
    /// first trial. A text that cannot be read has a note already.
    fn prompt_faults(&self, trials: &[Trial]) -> Vec<PlanProblem> {
        let mut looked_at = BTreeSet::new();
        let mut vocabularies: HashMap<String, Option<Vocabulary>> = HashMap::new();
        let mut faults = Vec::new();
        for trial in trials {
            let (source, Some(sample)) = (trial.data.source_key(), &trial.train.sample) else {
                continue;
            };
            if !looked_at.insert((source.clone(), sample.prompt.clone())) {
                continue;
            }
            let read = || {
                text::load(&at_home(&trial.data), self.data_folder.as_deref())
                    .ok()
                    .map(|text| text.vocabulary)
            };
            let vocabulary = vocabularies.entry(source).or_insert_with(read);
            if let Some(Err(why)) = vocabulary
                .as_ref()
                .map(|vocabulary| vocabulary.encode_prompt(&sample.prompt))
            {
                let key = "train.sample.prompt";
                let fault = KeyFault::new(key, format!("`{key}` {why}"));
                faults.push(PlanProblem::of_point(fault, &trial.axes));
            }
        }
        faults
    }

    /// The facts of the data; of a folder of images its classes are looked at too.
    fn facts(&self, data: &Data) -> Result<Option<DataFacts>, DataError> {
        let folder = self.data_folder.as_deref();
        if let Data::ImageFolder(_) = data {
            let found = images::load(data, folder)?;
            let remark = images::about_classes(data, &found);
            self.remarks.borrow_mut().extend(remark);
            return Ok(Some(found.facts));
        }
        facts(data, folder, self.cache.as_deref())
    }

    pub(super) fn find(&self, data: &Data) -> Option<DataFacts> {
        match self.facts(&at_home(data)) {
            Ok(found) => {
                if let Some(facts) = &found {
                    let mut hashes = self.hashes.borrow_mut();
                    let of_kind = hashes.entry(data.kind().to_owned()).or_default();
                    of_kind.insert(facts.sha256.clone());
                    self.remarks.borrow_mut().extend(about_pairs(data, facts));
                }
                found
            }
            Err(error) => {
                let note = error.to_string();
                if error.is_malformed() {
                    self.malformed.borrow_mut().insert(note.clone());
                }
                self.notes.borrow_mut().insert(note);
                self.incomplete.borrow_mut().insert(data.kind().to_owned());
                None
            }
        }
    }
}
