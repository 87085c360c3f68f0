//! `--continue RUN[:TRIAL]`: finds the checkpoints with which the trials of a plan begin.
//!
//! In: a plan, and a finished run. Out: the same plan, in which each trial names a checkpoint of
//! that run ([`Origin`]); or why one cannot be continued. `kiln-trial` reads the checkpoint.

mod newest;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use kiln_core::{
    plan::{Origin, Trial, TrialFile, TrialId},
    record::{
        Checkpoints, ContinuedSettings, RunFile, RunFolder, TrainingSettings,
        checkpoint::{Unusable, aside},
        difference::Difference,
        run_file::sums,
        run_folder,
    },
    spec::expand_home,
    units::counted,
};
use serde_json::Value;

use super::{
    Status, Stop,
    experiment_plan::Planned,
    launch_options::LaunchOptions,
    note,
    run_and_trial::{named_trial, run_of, split_trial},
    runs,
    trained_model::{told_table, trained_on, trial_file, without_weights},
};

/// Most trials, and most differences of settings, that a message lists.
const MOST_LISTED: usize = 5;
/// Advice after the settings that differ.
const ALLOWED: &str = "a continuation may change the number of steps or epochs, the optimizer's \
                       learning rate and weight decay, `clip_norm`, the schedule, evaluation, early stop, \
                       checkpoints, the device, the loader's workers, and how the effective batch is \
                       divided; for other changes start anew, or from the weights alone with \
                       `train.initial_weights`";

/// A trial of the run that is continued.
struct Source {
    trial: TrialId,
    file: TrialFile,
    settings: TrainingSettings,
    /// The attempt of its last row, if that completed.
    completed: Option<u64>,
    /// Optimizer updates of its last attempt.
    steps: Option<u64>,
    /// SHA-256 of the data that it was trained on, once it was asked for.
    data_sha256: OnceCell<Option<String>>,
}

/// A trial that cannot be continued.
struct Refusal {
    what: String,
    /// Whether its settings differ too much.
    is_of_settings: bool,
}

impl From<Stop> for Refusal {
    fn from(stop: Stop) -> Self {
        Self {
            what: stop.message,
            is_of_settings: false,
        }
    }
}

/// Whether a launch goes on with the newest run of its experiment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NewestRun {
    /// `--fresh`: another run is made in any case.
    Left,
    /// It is resumed if it is unfinished.
    Resumed,
    /// `--rerun`: trials of it are retried, also if it is finished.
    Retried,
}

/// Lets each trial of a plan begin with a checkpoint of the run that `named` means. Unless it is left,
/// the newest run keeps what it began with if it continues that run and is unfinished or retried, or
/// has all results of the plan. Returns what the user should know.
///
/// # Errors
/// There is no such run, it has no usable checkpoint, or the settings do not allow it.
pub(super) fn continue_run(
    planned: &mut Planned,
    named: &str,
    results: &Path,
    newest_run: NewestRun,
) -> Result<Vec<String>, Stop> {
    let is_retried = newest_run == NewestRun::Retried;
    let begun = newest::begun(results, &planned.loaded.experiment.name, is_retried)
        .map_err(|error| runs::uncertain(named, &error))?
        .filter(|_| newest_run != NewestRun::Left);
    let (text, trial) = split_trial(named, results);
    let besides = begun.as_ref().map(|(folder, _)| folder.as_path());
    let run = run_of(text, results, besides)?;
    if let Some((_, record)) = begun.filter(|(begun, _)| begun == run.path()) {
        continue_as_recorded(planned, &record)?;
        return Ok(beginning_of(&planned.plan.trials).into_iter().collect());
    }
    // The checkpoint that it kept may be older than its end, from which it would go on once more.
    let may_have_finished = newest_run == NewestRun::Resumed;
    if may_have_finished && has_finished(planned, (text, trial), &run, results) {
        return Ok(beginning_of(&planned.plan.trials).into_iter().collect());
    }
    let (trials, earlier) = continued_trials(planned, &run, trial)?;
    planned.plan.trials = trials;
    Ok(beginning_of(&planned.plan.trials)
        .into_iter()
        .chain(earlier)
        .chain(planned.plan.trials.iter().find_map(schedule_so_far))
        .collect())
}

/// Whether `run`, which `named` means now, continued what that meant before, and has all results of
/// the plan, whose trials then begin with the checkpoints that the run recorded. Else the plan stays.
fn has_finished(
    planned: &mut Planned,
    named: (&str, Option<&str>),
    run: &RunFolder,
    results: &Path,
) -> bool {
    let record = newest::made_of(named, run, &planned.loaded.experiment.name, results);
    let Some(record) = record else {
        return false;
    };
    let anew = planned.plan.trials.clone();
    let has_all =
        continue_as_recorded(planned, &record).is_ok() && newest::has_all(planned, results);
    if !has_all {
        planned.plan.trials = anew;
    }
    has_all
}

/// The trials of a plan with the checkpoints that they begin with, and notes on these.
fn continued_trials(
    planned: &Planned,
    run: &RunFolder,
    named: Option<&str>,
) -> Result<(Vec<Trial>, BTreeSet<String>), Stop> {
    let sources = sources(run, named)?;
    let (mut trials, mut faults, mut earlier) = (Vec::new(), Vec::new(), BTreeSet::new());
    for trial in &planned.plan.trials {
        match continued(trial, run, &sources, &planned.data) {
            Ok((continuing, note)) => {
                trials.push(continuing);
                earlier.extend(note);
            }
            Err(refusal) => faults.push(refusal),
        }
    }
    none_or(faults)?;
    Ok((trials, earlier))
}

/// Where in its schedule a trial begins: the steps of the training that it continues count. `None` for a
/// schedule without a warm-up that does not depend on the number of steps.
fn schedule_so_far(trial: &Trial) -> Option<String> {
    let step = trial.origin.as_ref()?.step;
    let schedule = &trial.train.learning_rate_schedule;
    let warmup = schedule.warmup_steps();
    if warmup == 0 && !schedule.is_over_all_steps() {
        return None;
    }
    let of_all = trial
        .steps
        .map(|steps| format!(" of {steps}"))
        .unwrap_or_default();
    let place = if warmup > step { "within" } else { "after" };
    let warmup = match warmup {
        0 => String::new(),
        _ => format!(
            ", {place} its warm-up of {}",
            counted(warmup as usize, "step")
        ),
    };
    Some(format!(
        "`train.learning_rate_schedule` goes on at step {}{of_all}{warmup}: it counts the steps of the \
         training that is continued; `train.initial_weights` starts it anew",
        step + 1
    ))
}

/// The trial with the checkpoint that it begins with, and a note if that is not the last step.
fn continued(
    trial: &Trial,
    run: &RunFolder,
    sources: &[Source],
    data: &BTreeMap<String, String>,
) -> Result<(Trial, Option<String>), Refusal> {
    let source = source_of(sources, trial, run)?;
    check_data(run, source, trial, data)?;
    let origin = origin(run, source)?;
    let step = origin.step;
    let trial = trial.continuing(origin).map_err(Stop::bad_input)?;
    Ok((trial, earlier_step(source, step)))
}

/// Lets the trials of a plan begin with the checkpoints that a run recorded.
///
/// # Errors
/// A trial has none in the record: its settings have changed.
pub(super) fn continue_as_recorded(planned: &mut Planned, record: &RunFile) -> Result<(), Stop> {
    if record.continues.is_empty() {
        return Ok(());
    }
    // Many trials may begin with one checkpoint.
    let mut origins: Vec<Origin> = Vec::new();
    for origin in record.continues.values() {
        let origin = Origin {
            run: expand_home(&origin.run.to_string_lossy()),
            ..origin.clone()
        };
        if !origins.contains(&origin) {
            origins.push(origin);
        }
    }
    let mut faults = Vec::new();
    for trial in &mut planned.plan.trials {
        let continuing = |origin: &Origin| trial.continuing(origin.clone()).ok();
        let is_recorded = |made: &Trial| {
            let content = made.origin.as_ref().map(Origin::content);
            content.is_some() && record.continues.get(&made.id).map(Origin::content) == content
        };
        let mut recorded = origins.iter().filter_map(continuing).filter(is_recorded);
        match recorded.next() {
            Some(continuing) => *trial = continuing,
            None => faults.push(Refusal::from(Stop::bad_input(format!(
                "the run of experiment `{}` continues trials of another run, and none of them has \
                 the settings of trial {}{}; leave the settings as they were, or start a new run \
                 with `--continue RUN --fresh`",
                record.experiment,
                trial.id,
                axes(trial)
            )))),
        }
    }
    none_or(faults)
}

/// Says which checkpoints the trials begin with; `None` if all begin anew.
fn beginning_of(trials: &[Trial]) -> Option<String> {
    let origins: Vec<&Origin> = trials
        .iter()
        .filter_map(|trial| trial.origin.as_ref())
        .collect();
    let first = origins.first()?;
    let mut each: Vec<String> = origins
        .iter()
        .map(|origin| format!("{} at step {}", origin.trial, origin.step))
        .collect();
    each.dedup();
    let more = match each.len().saturating_sub(MOST_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    each.truncate(MOST_LISTED);
    Some(format!(
        "continuing {}: {}{more}",
        first.run.display(),
        each.join(", ")
    ))
}

/// The checkpoints that trials need and that are missing or changed. A trial that has checkpoints of
/// its own in the newest run of the experiment needs none, unless a new run is asked for.
pub(super) fn faults(trials: &[Trial], experiment: &str, launch: &LaunchOptions) -> Vec<String> {
    // Where they cannot be listed, the checkpoint that is continued has to be there.
    let newest = run_folder::newest(&launch.results, experiment)
        .unwrap_or_default()
        .filter(|_| !launch.fresh);
    let has_own = |trial: &Trial| {
        newest.as_ref().is_some_and(|run| {
            let own = Checkpoints::new(run.checkpoints(&trial.id), trial.id.clone());
            !own.steps().is_empty()
        })
    };
    let fault = |trial: &Trial| {
        let origin = trial.origin.as_ref()?;
        let run = RunFolder::at(&origin.run);
        let why = aside::with_sum(&run, &origin.trial, origin.step, &origin.sha256).err()?;
        Some(format!(
            "trial {} continues step {} of {}, whose checkpoint cannot be used: {why}",
            trial.id,
            origin.step,
            run.checkpoints(&origin.trial).display()
        ))
    };
    trials
        .iter()
        .filter(|trial| !has_own(trial))
        .filter_map(fault)
        .collect()
}

/// One message of all faults.
fn none_or(faults: Vec<Refusal>) -> Result<(), Stop> {
    if faults.is_empty() {
        return Ok(());
    }
    let advice = faults.iter().any(|fault| fault.is_of_settings);
    let mut lines: Vec<String> = faults.into_iter().map(|fault| fault.what).collect();
    lines.dedup();
    let more = lines.len().saturating_sub(MOST_LISTED);
    lines.truncate(MOST_LISTED);
    if more > 0 {
        lines.push(format!("{more} more trials cannot be continued"));
    }
    lines.extend(advice.then(|| ALLOWED.to_owned()));
    Err(Stop::of_lines(Status::BadInput, &lines))
}

/// The trials of a run, or the one that is named.
fn sources(run: &RunFolder, named: Option<&str>) -> Result<Vec<Source>, Stop> {
    let table = told_table(run)?;
    let rows = table.last_attempts();
    let ids: Vec<&TrialId> = rows.iter().map(|row| &row.fixed.trial).collect();
    let named = named
        .map(|named| named_trial(run, &ids, named))
        .transpose()?;
    let wanted = rows
        .iter()
        .filter(|row| named.as_ref().is_none_or(|named| row.fixed.trial == *named));
    let sources = wanted
        .map(|row| {
            let file = trial_file(run, &row.fixed.trial)?;
            Ok(Source {
                trial: row.fixed.trial.clone(),
                settings: TrainingSettings::trained(&file),
                file,
                completed: row.fixed.completed_attempt(),
                steps: row.fixed.steps,
                data_sha256: OnceCell::new(),
            })
        })
        .collect::<Result<Vec<_>, Stop>>()?;
    if sources.is_empty() {
        return Err(Stop::bad_input(format!(
            "{}: no trial has ended yet, so none can be continued; run it with `kiln run`",
            run.path().display()
        )));
    }
    Ok(sources)
}

/// The trial that another one continues: of those whose settings allow it, the one with the fewest
/// differences.
fn source_of<'a>(
    sources: &'a [Source],
    trial: &Trial,
    run: &RunFolder,
) -> Result<&'a Source, Refusal> {
    let planned = TrainingSettings::planned(trial);
    let compare = |source| ContinuedSettings::compare(source, &planned);
    let mut compared: Vec<(ContinuedSettings, &Source)> = sources
        .iter()
        .map(|source| (compare(&source.settings), source))
        .collect();
    compared.sort_by_key(|(settings, _)| (settings.forbidden.len(), settings.allowed));
    let place = runs::below_here(run.path());
    let place = place.display();
    let Some((best, source)) = compared.first() else {
        return Err(Stop::bad_input(format!("{place}: no trial")).into());
    };
    if !best.forbidden.is_empty() {
        let closest = if sources.len() > 1 {
            "the closest trial, "
        } else {
            ""
        };
        return Err(Refusal {
            what: format!(
                "trial {}{} cannot continue {closest}{} of {place}: {}",
                trial.id,
                axes(trial),
                source.trial,
                differences(&best.forbidden)
            ),
            is_of_settings: true,
        });
    }
    let alike: Vec<String> = compared
        .iter()
        .filter(|(other, _)| other.forbidden.is_empty() && other.allowed == best.allowed)
        .map(|(_, source)| source.trial.to_string())
        .collect();
    match alike.len() {
        1 => Ok(source),
        several => Err(Stop::bad_input(format!(
            "trial {}{} could continue {several} trials of {place}: {}; name one: `--continue \
             RUN:{}`",
            trial.id,
            axes(trial),
            alike[..several.min(MOST_LISTED)].join(", "),
            alike[0]
        ))
        .into()),
    }
}

/// The newest checkpoint of a trial.
fn origin(run: &RunFolder, source: &Source) -> Result<Origin, Stop> {
    let unread = |why: io::Error| Stop::new(Status::CannotRun, why);
    let checkpoints = aside::weights(run, &source.trial, source.completed).map_err(unread)?;
    let listing = checkpoints.listing().map_err(unread)?;
    if let Some(why) = listing.unread() {
        return Err(unread(why));
    }
    let folder = checkpoints.folder().display();
    if let Some(why) = listing.damaged() {
        if let Some(newer) = listing.newer() {
            return Err(Stop::bad_input(format!(
                "{folder}: {newer}; an older one is not taken in its place"
            )));
        }
        note(&format!("{folder}: passed over: {why}"));
    }
    let (found, sha256) = checkpoints.newest_whole().map_err(|refused| {
        if refused.is_empty() {
            return without_weights(run, &source.file, Some(&source.trial));
        }
        // An older one is not taken in place of one that is unread, which is the last.
        if let Some(Unusable::Unread(cause)) = refused.last() {
            return Stop::new(Status::CannotRun, format!("{cause}; try again"));
        }
        let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        Stop::bad_input(format!(
            "{folder}: no checkpoint can be continued: {}; run that trial again",
            refused.join("; ")
        ))
    })?;
    Ok(Origin {
        run: runs::below_here(run.path()),
        trial: source.trial.clone(),
        step: found.header.step,
        sha256,
    })
}

/// Refuses data whose content has changed since.
fn check_data(
    run: &RunFolder,
    source: &Source,
    trial: &Trial,
    now: &BTreeMap<String, String>,
) -> Result<(), Stop> {
    let before = match source.data_sha256.get() {
        Some(known) => known,
        None => {
            let found = trained_on(run, &source.trial)?.map(|(data_sha256, _)| data_sha256);
            source.data_sha256.get_or_init(|| found)
        }
    };
    match (before, now.get(trial.data.kind())) {
        (Some(before), Some(now)) if !sums(now).contains(before.as_str()) => {
            Err(Stop::bad_input(format!(
                "trial {} of {} was trained on other data: its SHA-256 was {before}, and that of \
             `{}` is {now}; restore the data, or start from the weights alone with \
             `train.initial_weights`",
                source.trial,
                run.path().display(),
                trial.data.kind()
            )))
        }
        _ => Ok(()),
    }
}

/// The kept checkpoint may be older than the end of the trial. `after` is for a completed one.
fn earlier_step(source: &Source, step: u64) -> Option<String> {
    let steps = source.steps.filter(|steps| *steps > step)?;
    let advice = match source.completed {
        Some(_) => "; `train.checkpoint.after: last` keeps the one of the last step",
        None => "",
    };
    Some(format!(
        "trial {} made {}, and its newest checkpoint is of step {step}, so training goes on from \
         there{advice}",
        source.trial,
        counted(steps as usize, "step")
    ))
}

fn differences(all: &[Difference]) -> String {
    let show = |value: &Option<Value>| match value {
        Some(value) => value.to_string(),
        None => "not set".to_owned(),
    };
    let changes = all.iter().take(MOST_LISTED);
    let changes: Vec<String> = changes
        .map(|difference| {
            format!(
                "`{}` was {}, is now {}",
                difference.key,
                show(&difference.old),
                show(&difference.new)
            )
        })
        .collect();
    match all.len().saturating_sub(MOST_LISTED) {
        0 => changes.join(", "),
        more => format!(
            "{}, and {} more",
            changes.join(", "),
            counted(more, "setting")
        ),
    }
}

/// The place of a trial in its sweep, for a message.
fn axes(trial: &Trial) -> String {
    let each: Vec<String> = trial
        .axes
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(" ({})", each.join(", ")),
    }
}
