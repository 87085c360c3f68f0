//! `--at RUN[:TRIAL]` and `kiln init --from`: the values of one trial of a run in place of a sweep.
//!
//! In: a run, and a trial of it or none, which means its best point. Out: a request with the
//! trial's values, or the text of its experiment file. The values are those of the run's
//! `experiment.yaml`, so the folder `trials` is not needed; those of a search come from its table.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::{self, Trial, TrialId, show},
    record::{RunFile, RunFolder, TableRow},
    spec::{self, ExperimentRequest, FixedPoint, SweptFile},
    units::{shell_word, without_controls},
};
use serde_json::Value;

use super::{
    Status, Stop, note,
    run_and_trial::{named_trial, split_trial},
    runs::without_links,
    sources::{TableSource, recorded},
};
use crate::{
    output::json,
    report::{RankedTrial, ranked_trials},
};

/// Most trials that a message lists.
const MOST_LISTED: usize = 10;

const SEED: &str = "train.seed";

/// Dotted keys with their values.
type KeyValues = Vec<(String, Value)>;

/// A trial of a run, with its settings.
pub(super) struct RecordedTrial {
    pub(super) id: TrialId,
    /// The run as it was named.
    run: String,
    /// The run's folder; `None` for a run of a commit.
    folder: Option<RunFolder>,
    /// The note on the chosen trial, if none was named.
    choice: Option<String>,
    seed: u64,
    /// Its value on each axis of its run.
    axes: KeyValues,
    /// The run's experiment with these values.
    settings: Value,
    /// The run's experiment.
    experiment: ExperimentRequest,
}

/// The request with the values of a trial in place of the file's sweep, and what names that trial also
/// once there are newer runs ([`RecordedTrial::lasting_name`]). `tells` says which trial was chosen
/// where none is named.
///
/// # Errors
/// There is no such trial, no point is the best, or the file has a search or is another experiment.
pub(super) fn fixed(
    request: ExperimentRequest,
    named: &str,
    results: &Path,
    tells: bool,
) -> Result<(ExperimentRequest, Option<String>), Stop> {
    let file = spec::swept_file(&request).map_err(Stop::problems)?;
    if file.has_search {
        return Err(Stop::bad_input(format!(
            "{}: `--at` fixes the values of listed points, and this file has `sweep.search`; `kiln \
             init NEW.yaml --from RUN:TRIAL` writes the experiment of one trial",
            request.file.display()
        )));
    }
    let trial = RecordedTrial::find("--at", named, results)?;
    let (values, after) = trial.in_place_of(&file);
    trial.check_other_axes(&request, &file, &after)?;
    if tells {
        trial.tell_choice();
    }
    let point = FixedPoint {
        name: format!("--at {}:{}", trial.run, trial.id),
        swept: file.swept,
        derived: file.derived,
        values,
    };
    let fixed = ExperimentRequest {
        point: Some(point),
        ..request
    };
    Ok((fixed, trial.lasting_name()))
}

impl RecordedTrial {
    /// Finds the trial that `option` names, or the best point of the run.
    ///
    /// # Errors
    /// There is no such run or trial, or no single point is the best.
    pub(super) fn find(option: &str, named: &str, results: &Path) -> Result<Self, Stop> {
        let (run, trial) = split_trial(named, results);
        let source = run_with(run, trial, results)?;
        let request = experiment_of(&source)?;
        let experiment = spec::load(&request).map_err(Stop::problems)?.experiment;
        let plan = plan::expand(&experiment, &|_| None);
        let planned = plan.map_or_else(|_| Vec::new(), |plan| plan.trials);
        let (id, choice) = match trial {
            Some(trial) => (
                named_trial(&folder_of(&source), &ids(&source), trial)?,
                None,
            ),
            None => match only_point(&source, &planned) {
                Some(id) => (id, None),
                None => {
                    let (id, line) = best(option, run, &source)?;
                    (id, Some(line))
                }
            },
        };
        let (axes, seed) = values_of(&source, &planned, &id)?;
        let mut settings = serde_json::to_value(&experiment).unwrap_or_default();
        spec::apply_point(&mut settings, pairs(&axes));
        Ok(Self {
            id,
            run: run.to_owned(),
            folder: source.folder,
            choice,
            seed,
            axes,
            settings,
            experiment: request,
        })
    }

    /// The trial's values of the keys that a file sweeps, and the file's values with these. A derived
    /// key is not among the former where the file's expression has the same value.
    fn in_place_of(&self, file: &SweptFile) -> (KeyValues, Value) {
        let own = |key: &str| {
            let axis = self.axes.iter().find(|(axis, _)| axis == key);
            axis.map(|(_, value)| value)
                .filter(|value| !value.is_null())
        };
        let mut values = KeyValues::new();
        let mut absent = Vec::new();
        for key in &file.swept {
            match value_at(&self.settings, key) {
                Some(found) => values.push((key.clone(), own(key).unwrap_or(found).clone())),
                None => absent.push(key),
            }
        }
        let mut after = file.values.clone();
        spec::apply_point(&mut after, pairs(&values));
        // A key of another kind is not there to be reset.
        for key in absent {
            if value_at(&after, key).is_some() {
                values.push((key.clone(), Value::Null));
                spec::apply_override(&mut after, key, &Value::Null);
            }
        }
        let derived = file.derived_at(&after);
        values.retain(|(key, value)| {
            let mut found = derived.iter().filter(|(name, _)| name == key);
            !found.any(|(_, computed)| is_same(Some(value), Some(computed)))
        });
        (values, after)
    }

    /// Refuses a file that does not sweep a key which the run swept, and has another value of it.
    /// `--set` of that key decides it.
    fn check_other_axes(
        &self,
        request: &ExperimentRequest,
        file: &SweptFile,
        after: &Value,
    ) -> Result<(), Stop> {
        let is_set = |key: &str| {
            let names = request.set.iter().filter_map(|set| set.split_once('='));
            names.map(|(name, _)| name.trim()).any(|name| name == key)
        };
        let others = self
            .axes
            .iter()
            .filter(|(key, _)| !file.swept.contains(key) && !is_set(key));
        for (key, _) in others {
            let [theirs, ours] = [&self.settings, after].map(|all| given(all, key));
            if !is_same(theirs, ours) {
                let in_words = |value: Option<&Value>| value.map_or("not set".to_owned(), show);
                let (shown, here) = (in_words(theirs), in_words(ours));
                let set = setting(key, theirs.unwrap_or(&Value::Null));
                return Err(Stop::bad_input(format!(
                    "{}: `{key}` is {here} and is not swept here, and trial {} of {} has {shown}; \
                     name a run of this experiment, or add `--set {set}`",
                    request.file.display(),
                    self.id,
                    self.run
                )));
            }
        }
        Ok(())
    }

    /// The text of the experiment file of this trial alone.
    ///
    /// # Errors
    /// The run's experiment cannot be read.
    pub(super) fn experiment_file(self, name: &str) -> Result<String, Stop> {
        let file = spec::swept_file(&self.experiment).map_err(Stop::problems)?;
        let (mut values, _) = self.in_place_of(&file);
        if !file.derived.iter().any(|key| key == SEED) {
            values.push((SEED.to_owned(), self.seed.into()));
        }
        values.push(("sweep.repeats".to_owned(), 1.into()));
        let point = FixedPoint {
            name: format!("of trial {}", self.id),
            swept: file.swept,
            derived: file.derived,
            values,
        };
        let heading = without_controls(&format!(
            "# Written by `kiln init` from trial {} of {}.",
            self.id, self.run
        ));
        let text = spec::write_point(self.experiment, name, point).map_err(Stop::problems)?;
        Ok(format!("{heading}\n{text}"))
    }

    /// `FOLDER:TRIAL`. A short name may mean a newer run later, such as the one that is made with it.
    /// `None` for a run of a commit, whose name stays.
    fn lasting_name(&self) -> Option<String> {
        let path = without_links(self.folder.as_ref()?.path());
        Some(format!("{}:{}", path.display(), self.id))
    }

    /// Says how the trial of an experiment file begins as this one did, where that was a checkpoint.
    pub(super) fn tell_origin(&self, file: &Path) {
        let run = self.folder.as_ref().map(RunFolder::run_file);
        let record = run.and_then(|path| RunFile::read(&path).ok());
        let origin = record.and_then(|mut record| record.continues.remove(&self.id));
        if let Some(origin) = origin {
            let word = |path: &Path| shell_word(&without_controls(&path.to_string_lossy()));
            let run = spec::expand_home(&origin.run.to_string_lossy());
            let named = format!("{}:{}", run.display(), origin.trial);
            note(&format!(
                "trial {} went on from step {} of another one; the file begins anew, and `kiln run {} \
                 --continue {}` goes on from there",
                self.id,
                origin.step,
                word(file),
                word(Path::new(&named))
            ));
        }
    }

    /// Says which trial was chosen, where none was named.
    pub(super) fn tell_choice(&self) {
        if let Some(choice) = &self.choice {
            note(choice);
        }
    }
}

fn pairs(values: &[(String, Value)]) -> impl Iterator<Item = (&str, &Value)> {
    values.iter().map(|(key, value)| (key.as_str(), value))
}

/// The word of a shell that gives a key this value with `--set`.
fn setting(key: &str, value: &Value) -> String {
    shell_word(&format!("{key}={}", json::escaped(&value.to_string())))
}

/// The value of a dotted key.
fn value_at<'a>(all: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(all, |place, name| place.get(name))
}

/// The value of a dotted key that is not `null`.
fn given<'a>(all: &'a Value, key: &str) -> Option<&'a Value> {
    value_at(all, key).filter(|value| !value.is_null())
}

/// Whether two values are equal; 1 and 1.0 are.
fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    one == other || (number(one).is_some() && number(one) == number(other))
}

/// The record of a run. Where its newest run does not have the trial, a short name means an earlier
/// one that has it: the newest may be the run that the same command began.
fn run_with(run: &str, trial: Option<&str>, results: &Path) -> Result<TableSource, Stop> {
    let newest = recorded(run, results)?;
    let is_short = !Path::new(run).exists() && !run.contains('~');
    let Some(trial) = trial.filter(|_| is_short) else {
        return Ok(newest);
    };
    let has_it = |source: &TableSource| ids(source).iter().any(|id| id.begins_with(trial));
    if has_it(&newest) {
        return Ok(newest);
    }
    let mut earlier =
        (1..).map_while(|before: u32| recorded(&format!("{run}~{before}"), results).ok());
    Ok(earlier.find(has_it).unwrap_or(newest))
}

/// The request of a run's own experiment.
fn experiment_of(source: &TableSource) -> Result<ExperimentRequest, Stop> {
    let Some(text) = &source.experiment else {
        return Err(source.without_experiment("name a run's folder"));
    };
    let file = source
        .folder
        .as_ref()
        .map_or_else(|| PathBuf::from("experiment.yaml"), RunFolder::experiment);
    Ok(ExperimentRequest::of_run(file, text.clone(), Vec::new()))
}

fn folder_of(source: &TableSource) -> RunFolder {
    let folder = source.folder.clone();
    folder.unwrap_or_else(|| RunFolder::at(&source.name))
}

/// The planned trials of a run, and those that it ran beside.
pub(super) fn ids(source: &TableSource) -> Vec<&TrialId> {
    let mut ids: Vec<&TrialId> = source.run.iter().flat_map(|run| &run.plan).collect();
    let mut known: HashSet<&TrialId> = ids.iter().copied().collect();
    for row in source.table.last_attempts() {
        if known.insert(&row.fixed.trial) {
            ids.push(&row.fixed.trial);
        }
    }
    ids
}

/// The first trial of a run with a single point.
fn only_point(source: &TableSource, planned: &[Trial]) -> Option<TrialId> {
    let first = planned.first()?;
    let is_only = planned.iter().all(|trial| trial.point == first.point);
    let recorded = source.run.as_ref().and_then(|run| run.plan.first());
    is_only.then(|| recorded.unwrap_or(&first.id).clone())
}

/// The first trial of the best point of a run, and a note that says so.
fn best(option: &str, run: &str, source: &TableSource) -> Result<(TrialId, String), Stop> {
    let ranked = ranked_trials(&source.table, source.subject().objective());
    let marked: Vec<&RankedTrial> = ranked.iter().filter(|trial| trial.is_marked).collect();
    if let [one] = marked[..] {
        let line = format!(
            "`{option} {run}`: using trial {} ({}), {}",
            one.trial, one.point, one.best
        );
        return Ok((one.trial.clone(), line));
    }
    if ranked.is_empty() {
        return Err(Stop::bad_input(format!(
            "{run}: no trial has completed yet, so no point is the best; name a trial: `{option} \
             {run}:TRIAL` (`kiln plan` shows the ids)"
        )));
    }
    let (why, offered): (&str, Vec<&RankedTrial>) = match marked.is_empty() {
        true => ("no point is marked as the best", ranked.iter().collect()),
        false => (
            "several points are on the Pareto front, so no single one is the best",
            marked,
        ),
    };
    let more = offered.len().saturating_sub(MOST_LISTED);
    let each = offered
        .iter()
        .take(MOST_LISTED)
        .map(|trial| format!("  {option} {run}:{}  {}", trial.trial, trial.point));
    let first = format!("{run}: {why} (`kiln report {run}` says why); name a trial:");
    let rest = (more > 0).then(|| format!("  and {more} more"));
    Err(Stop::of_lines(
        Status::BadInput,
        std::iter::once(first).chain(each).chain(rest),
    ))
}

/// The values of a trial on the axes of its run, and its seed.
fn values_of(
    source: &TableSource,
    planned: &[Trial],
    id: &TrialId,
) -> Result<(KeyValues, u64), Stop> {
    if let Some(trial) = planned_as(id, planned, source.run.as_ref()) {
        return Ok((trial.axes.clone(), trial.train.seed));
    }
    let rows = source.table.last_attempts();
    let row = rows.into_iter().find(|row| row.fixed.trial == *id);
    let refused = |why: &str| {
        let run = &source.name;
        Err(Stop::bad_input(format!("{run}: trial {id} {why}")))
    };
    match row {
        None => refused("is not among the trials that its `experiment.yaml` plans"),
        Some(TableRow { fixed, .. }) if fixed.fallback_of.is_some() => refused(
            "ran in place of a larger batch that did not fit into memory (`run.on_oom: shrink`); \
             name another trial, and set the batch size with `--set`",
        ),
        Some(row) => Ok((cells(&source.table.axes, row), row.fixed.seed)),
    }
}

/// The values on the axes of its run, and the seed, of a trial that the run's experiment plans.
pub(super) fn planned_values(
    source: &TableSource,
    id: &TrialId,
) -> Option<(Vec<(String, Value)>, u64)> {
    let request = experiment_of(source).ok()?;
    let experiment = spec::load(&request).ok()?.experiment;
    let plan = plan::expand(&experiment, &|_| None).ok()?;
    let trial = planned_as(id, &plan.trials, source.run.as_ref())?;
    Some((trial.axes.clone(), trial.train.seed))
}

/// The planned trial with this id, also if it continued a trial of another run.
fn planned_as<'a>(id: &TrialId, planned: &'a [Trial], run: Option<&RunFile>) -> Option<&'a Trial> {
    let origin = run.and_then(|run| run.continues.get(id));
    planned.iter().find(|trial| {
        let continuing = origin.map(|origin| trial.continuing(origin.clone()));
        trial.id == *id || continuing.is_some_and(|made| made.is_ok_and(|made| made.id == *id))
    })
}

/// The values of a row, as YAML reads its cells: the trials of a search are in no plan.
fn cells(axes: &[String], row: &TableRow) -> KeyValues {
    let value = |cell: &String| match cell.is_empty() {
        true => Value::Null,
        false => spec::read_yaml(cell).unwrap_or_else(|_| Value::from(cell.as_str())),
    };
    let values = row.axes.iter().map(value);
    axes.iter().cloned().zip(values).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;

    /// The value that `--set` reads from this word, after a shell.
    fn read_back(word: &str) -> Value {
        let script = format!("printf %s {word}");
        let printed = Command::new("sh").args(["-c", &script]).output().unwrap();
        let request = ExperimentRequest {
            file: PathBuf::from("x.yaml"),
            text: Some(
                "kiln: 1\nname: x\nmodel: {kind: command, argv: [a, '{v}'], values: {v: a}}\n"
                    .to_owned(),
            ),
            set: vec![String::from_utf8(printed.stdout).unwrap()],
            ..ExperimentRequest::default()
        };
        let loaded = spec::load(&request).unwrap();
        let settings = serde_json::to_value(&loaded.experiment).unwrap();
        value_at(&settings, "model.values.v").unwrap().clone()
    }

    #[test]
    fn an_offered_setting_reads_back_to_the_same_value_after_a_shell() {
        let texts = [
            "$HOME", "`id`", "1", " l ", "a: b", "[x]", "#c", "{z}", "*s", "~", "it's", "true",
            "a #b", "\"", "\\", "!x", "a=b", "",
        ];
        let texts = texts.into_iter().map(Value::from);
        for value in texts.chain([json!(1), json!(1.5e-7), json!(true)]) {
            let word = setting("model.values.v", &value);
            assert_eq!(read_back(&word), value, "{word}");
        }
        assert_eq!(setting("train.steps", &json!(0.01)), "train.steps=0.01");
    }
}
