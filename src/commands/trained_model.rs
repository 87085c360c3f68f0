//! Finds the trained model that a command line names, as RUN or RUN:TRIAL, and the weights of it.
//!
//! In: a run's folder, an experiment's folder or name, or `latest`. Out: the trial as it was
//! trained, and the checkpoint to use: the one with the lowest validation loss, else the newest.

use std::{io, path::PathBuf, sync::Arc};

use kiln_core::{
    input,
    kinds::Model,
    limits::RESOLVED_BYTES,
    plan::{self, TrialFile, TrialId, show},
    record::{
        Checkpoints, RunFolder, TableRow, TrialRow, TrialTable,
        attempt::{RESULT_FILE, attempts, result},
        checkpoint::{ListedCheckpoint, Listing, MODEL_FILE, Unusable, aside, removal_in},
        difference::{differences, leaves},
        run_folder,
        trial_file::{self, TrialFileError},
        trial_result::OutputNames,
    },
    spec::{self, AfterTraining, ExperimentRequest, learned::OtherNumber},
    units::{counted, decimals, shell_word, without_controls},
};
use serde_json::{Value, json};

use super::{
    RESULTS, Status, Stop, note,
    run_and_trial::{named_trial, run_of, split_trial},
    runs::below_here,
    sources::{table_of_run, tell_torn, tell_uncollected},
};

/// The model to use, and the device.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// A run's folder, an experiment's folder or name (its newest run), or `latest` (the newest run
    /// under `--results`); then, after a colon, a trial's id or its beginning. Without one: the
    /// trial with the lowest validation loss.
    #[arg(value_name = "RUN[:TRIAL]")]
    model: String,
    /// Use the checkpoint of this step instead of the one with the lowest validation loss.
    #[arg(long)]
    step: Option<u64>,
    /// Folder of the runs.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
    /// Device to compute on: `cpu`, `auto` (the first idle GPU, else the CPU), or a GPU's index or
    /// UUID.
    #[arg(long, default_value = "cpu")]
    pub(super) device: String,
}

/// A trained model that was found.
pub(super) struct TrainedModel {
    pub(super) file: TrialFile,
    pub(super) trial: TrialId,
    pub(super) checkpoint: ListedCheckpoint,
    /// SHA-256 of the data of the training, if its result is there.
    pub(super) data_sha256: Option<String>,
    pub(super) outputs: OutputNames,
    run: RunFolder,
}

/// Finds the model, and says on standard error which trial was chosen where there are several.
pub(super) fn find(args: &Args) -> Result<TrainedModel, Stop> {
    let (run, named) = split_trial(&args.model, &args.results);
    let run = run_of(run, &args.results, None)?;
    let table = told_table(&run)?;
    let rows = table.last_attempts();
    let trials: Vec<&TrialId> = rows.iter().map(|row| &row.fixed.trial).collect();
    let trial = match named {
        Some(named) => named_trial(&run, &trials, named)?,
        None => best_trial(&run, &table.axes, &rows)?,
    };
    let file = trial_file(&run, &trial)?;
    check_model(&run, &file)?;
    let kept = weights(&run, &rows, &trial)?;
    check_folder(&kept)?;
    let checkpoint = checkpoint(&file, &run, &kept, args.step)?;
    let (data_sha256, outputs) = trained_on(&run, &trial)?.unzip();
    Ok(TrainedModel {
        file,
        trial,
        checkpoint,
        data_sha256,
        outputs: outputs.unwrap_or_default(),
        run,
    })
}

/// The SHA-256 of the data of a training, and the names of its outputs; `None`, with a note, if its
/// result is not there.
///
/// Errors: a result is there and cannot be read.
pub(super) fn trained_on(
    run: &RunFolder,
    trial: &TrialId,
) -> Result<Option<(String, OutputNames)>, Stop> {
    let mut damaged = None;
    let mut is_known = false;
    for attempt in attempts(run, trial).into_iter().rev() {
        let folder = run.attempt(trial, attempt);
        match result(&folder) {
            Ok(found) => {
                is_known = true;
                if let Some(data_sha256) = found.data_sha256 {
                    return Ok(Some((data_sha256, found.outputs)));
                }
            }
            Err(why) if !matches!(input::find(&folder.join(RESULT_FILE)), Ok(None)) => {
                damaged = damaged.or(Some(why));
            }
            Err(_) => {}
        }
    }
    match damaged {
        Some(why) => Err(Stop::bad_input(format!(
            "{why}; it says on which data the model was trained, by which its tokens and classes are \
             numbered: restore it, or remove it to go on without that check"
        ))),
        None if is_known => Ok(None),
        None => {
            note(&format!(
                "trial {trial} of {} has no result of its training ({RESULT_FILE}), so it is not \
                 checked whether its data, and the tokens or classes by it, are still the same",
                below_here(run.path()).display()
            ));
            Ok(None)
        }
    }
}

impl TrainedModel {
    /// Source of the weights, for records.
    pub(super) fn origin(&self) -> Value {
        json!({
            "run": self.run.name(),
            "trial": self.trial,
            "step": self.checkpoint.step,
            "valid_loss": self.checkpoint.valid_loss,
        })
    }
}

/// Most trials, and most differences of models, that a message lists.
const MOST_LISTED: usize = 10;

/// The checkpoints with the weights of a trial that has a row.
fn weights(run: &RunFolder, rows: &[&TableRow], trial: &TrialId) -> Result<Checkpoints, Stop> {
    let last = rows.iter().find(|row| row.fixed.trial == *trial);
    let completed = last.and_then(|row| row.fixed.completed_attempt());
    aside::weights(run, trial, completed).map_err(unread)
}

/// The error of checkpoints that the system cannot read now.
fn unread(why: io::Error) -> Stop {
    Stop::new(
        Status::CannotRun,
        format!("{why}; try again, or name a trial and a step with `RUN:TRIAL --step N`"),
    )
}

/// The table of a run, with notes on rows that it lacks.
pub(super) fn told_table(run: &RunFolder) -> Result<TrialTable, Stop> {
    let table = table_of_run(run).map_err(Stop::bad_input)?;
    let path = run.trials_table();
    tell_torn(&below_here(&path), &table);
    tell_uncollected(&path);
    Ok(table)
}

/// Refuses a link or a file in place of the folder of checkpoints.
fn check_folder(checkpoints: &Checkpoints) -> Result<(), Stop> {
    checkpoints
        .check_folder()
        .map_err(|error| Stop::bad_input(format!("{error}; put the folder itself there")))
}

/// Refuses to choose among checkpoints of which one cannot be read now: it may be the best.
fn all_read(listing: &Listing) -> Result<(), Stop> {
    listing.unread().map_or(Ok(()), |why| Err(unread(why)))
}

/// Refuses to choose by validation losses that an axis makes numbers on other data.
fn comparable(
    run: &RunFolder,
    axes: &[String],
    usable: &[(&TableRow, ListedCheckpoint)],
) -> Result<(), Stop> {
    let with_loss: Vec<&TableRow> = usable
        .iter()
        .filter(|(_, found)| found.valid_loss.is_some())
        .map(|(row, _)| *row)
        .collect();
    let value = |axis: usize, row: usize| with_loss[row].axes.get(axis);
    let is_same = TrialRow::share_validation(with_loss.iter().map(|row| &*row.fixed));
    let of = |key: &str| OtherNumber::given(key, "valid_loss", is_same);
    let other = OtherNumber::among(axes, of, with_loss.len(), value);
    let Some((axis, other)) = other else {
        return Ok(());
    };
    let why = other.in_words(&axes[axis], "validation loss");
    let shown = below_here(run.path());
    let named = usable.iter().take(MOST_LISTED).map(|(row, _)| {
        let value = without_controls(row.axes.get(axis).map_or("", String::as_str));
        format!("`{}:{}` ({value})", shown.display(), row.fixed.trial)
    });
    Err(Stop::bad_input(format!(
        "{}: none of its trials is the best, because {why}; name one, such as {}",
        shown.display(),
        named.collect::<Vec<_>>().join(", ")
    )))
}

/// The trials that have weights: those with the lowest validation loss first, those without one last.
///
/// Errors: a checkpoint cannot be read now, or an axis makes the losses numbers on other data.
pub(super) fn ranked<'a>(
    run: &RunFolder,
    axes: &[String],
    all: &[&'a TableRow],
) -> Result<Vec<(&'a TableRow, ListedCheckpoint)>, Stop> {
    let mut usable: Vec<(&TableRow, ListedCheckpoint)> = Vec::new();
    for row in all {
        let trial = &row.fixed.trial;
        let kept = aside::weights(run, trial, row.fixed.completed_attempt()).map_err(unread)?;
        check_folder(&kept)?;
        let listing = kept.listing().map_err(unread)?;
        all_read(&listing)?;
        if let Some(why) = listing.damaged() {
            note(&format!("{}: passed over: {why}", kept.folder().display()));
        }
        usable.extend(listing.result().map(|result| (*row, result)));
    }
    comparable(run, axes, &usable)?;
    let loss = |found: &ListedCheckpoint| found.valid_loss.unwrap_or(f64::INFINITY);
    usable.sort_by(|(_, one), (_, other)| loss(one).total_cmp(&loss(other)));
    Ok(usable)
}

/// The trial whose weights have the lowest validation loss; without any loss, the first that has
/// weights.
fn best_trial(run: &RunFolder, axes: &[String], all: &[&TableRow]) -> Result<TrialId, Stop> {
    let usable = ranked(run, axes, all)?;
    match (usable.first(), all.first()) {
        (Some((row, found)), _) => {
            let trial = &row.fixed.trial;
            if all.len() > 1 {
                let why = match found.valid_loss {
                    Some(loss) => {
                        let of_these = match usable.len() == all.len() {
                            true => "",
                            false => " of these",
                        };
                        // A report ranks by the losses of the rows, of which no checkpoint may be left.
                        format!(
                            "whose checkpoint of step {} has the lowest validation loss{of_these}, {}",
                            found.step,
                            decimals(loss, 4)
                        )
                    }
                    None => "the first that has weights; no validation loss is known".to_owned(),
                };
                let usable = match usable.len() {
                    count if count == all.len() => String::new(),
                    count => format!(", {count} of them with weights"),
                };
                note(&format!(
                    "{} has {}{usable}; using {trial}, {why}",
                    below_here(run.path()).display(),
                    counted(all.len(), "trial")
                ));
            }
            Ok(trial.clone())
        }
        (None, Some(first)) => {
            if let Some(damaged) = only_damaged(run, all)? {
                return Err(damaged);
            }
            let is_removed = |row: &&&TableRow| removal_of(run, &row.fixed.trial).is_some();
            let row = all.iter().find(is_removed).unwrap_or(first);
            let file = trial_file(run, &row.fixed.trial)?;
            Err(without_weights(run, &file, None))
        }
        (None, None) => Err(Stop::bad_input(format!(
            "{}: no trial has ended yet; wait for it if it is running, else run it with `kiln run`",
            run.path().display()
        ))),
    }
}

/// The error of a run without usable weights of which a trial has damaged ones; `None` if none has.
fn only_damaged(run: &RunFolder, all: &[&TableRow]) -> Result<Option<Stop>, Stop> {
    for row in all {
        let trial = &row.fixed.trial;
        let kept = aside::weights(run, trial, row.fixed.completed_attempt()).map_err(unread)?;
        let listing = kept.listing().map_err(unread)?;
        let Some(why) = listing.damaged() else {
            continue;
        };
        let advice = match listing.newer() {
            Some(_) => "",
            None => "; restore it, or run the trial again",
        };
        return Ok(Some(Stop::bad_input(format!(
            "{}: no trial has weights that can be used: those of trial {trial} are damaged, or of \
             another version of kiln ({why}){advice}",
            run.path().display()
        ))));
    }
    Ok(None)
}

/// Says that the weights of a trial were removed; `None` if they were not.
fn removal_of(run: &RunFolder, trial: &TrialId) -> Option<String> {
    removal_in(&run.trial(trial))
}

/// The error of a run or a trial whose weights were removed.
fn removed_weights(run: &RunFolder, trial: Option<&TrialId>, removal: &str) -> Stop {
    let (whose, which) = match trial {
        Some(trial) => (format!("trial {trial}"), format!(" --only {trial}")),
        None => ("its trials".to_owned(), String::new()),
    };
    let again = match is_newest(run) {
        true => format!("kiln run FILE{which} --rerun completed"),
        false => {
            let run = below_here(run.path());
            format!(
                "kiln reproduce {}",
                shell_word(&without_controls(&run.to_string_lossy()))
            )
        }
    };
    Stop::bad_input(format!(
        "{}: the weights of {whose} {removal}; `{again}` trains again",
        run.path().display()
    ))
}

/// Whether a run is the newest of its experiment, whose trials `--rerun` retries. It counts as that where
/// the runs cannot be listed.
fn is_newest(run: &RunFolder) -> bool {
    let newest = || {
        let experiment = run.path().parent()?;
        let name = experiment.file_name()?.to_str()?;
        run_folder::newest(experiment.parent()?, name).ok()?
    };
    newest().is_none_or(|newest| newest.path().file_name() == run.path().file_name())
}

/// The error of a run or a trial without weights.
pub(super) fn without_weights(run: &RunFolder, file: &TrialFile, trial: Option<&TrialId>) -> Stop {
    if let Some(removal) = removal_of(run, &file.trial) {
        return removed_weights(run, trial, &removal);
    }
    let whose = trial.map_or_else(
        || "its trials have".to_owned(),
        |trial| format!("trial {trial} has"),
    );
    let why = match &file.train.checkpoint {
        _ if file.model.command().is_some() => {
            "kiln does not read the weights of a command; use them with its own program"
        }
        _ if !file.model.trains() => "a model of this kind trains nothing",
        Some(policy) if policy.after == AfterTraining::Delete => {
            "`train.checkpoint.after` is `delete`; remove that key and run it again"
        }
        _ if matches!(file.model, Model::Custom(_)) => {
            "its program wrote no checkpoint that kiln reads: only a program on kiln's library writes \
             such checkpoints, with `train.checkpoint`; use other weights with that program"
        }
        None => {
            "the experiment has no `train.checkpoint`; add `checkpoint: {every_steps: 500}` to \
             `train` and run it again"
        }
        Some(_) => {
            "no checkpoint was written yet (`train.checkpoint.every_steps`) or its folder was \
             removed; run it again, with `--rerun` if it has ended, or with a smaller `every_steps` if \
             it ended before its first checkpoint"
        }
    };
    Stop::bad_input(format!(
        "{}: {whose} kept no weights, because {why}",
        run.path().display()
    ))
}

/// Reads the trial as it was trained.
pub(super) fn trial_file(run: &RunFolder, trial: &TrialId) -> Result<TrialFile, Stop> {
    let path = run.trial_file(trial);
    let file = trial_file::read(&path).map_err(|error| {
        let remedy = match error {
            TrialFileError::Unreadable { .. } => {
                "; git does not keep the folder `trials`, so use the model on the machine that trained \
                 it, or copy the run's whole folder"
            }
            _ => "",
        };
        Stop::bad_input(format!("{error}{remedy}"))
    })?;
    let place = path.display();
    if file.trial != *trial {
        return Err(Stop::bad_input(format!(
            "{place} is of trial {}, and its folder is that of {trial}; put the trial's own file \
             there",
            file.trial
        )));
    }
    Ok(file)
}

/// Refuses a model that is not the one that the run's experiment plans for the trial: with the same
/// weights it would compute something else.
fn check_model(run: &RunFolder, file: &TrialFile) -> Result<(), Stop> {
    let path = run.experiment();
    let text = match input::read_text(&path, &RESOLVED_BYTES) {
        Err(error) if input::is_of_system(&error) => {
            return Err(Stop::bad_input(format!(
                "{}: {error}; whether the trial's model is the one that was trained is not known",
                path.display()
            )));
        }
        read => read.ok(),
    };
    let planned = planned_models(path, text, &file.trial).unwrap_or_default();
    let values = |model: &Model| {
        let value = serde_json::to_value(model).unwrap_or_default();
        leaves(value, &|_| false)
    };
    let differing = |model: &Model| differences(values(model), values(&file.model));
    // A launch that resumed the run may have written the values otherwise.
    let is_it = |model: &Arc<Model>| **model == file.model || differing(model).is_empty();
    let Some(first) = planned.first().filter(|_| !planned.iter().any(is_it)) else {
        return Ok(());
    };
    let differing = differing(first);
    let each = differing.iter().take(MOST_LISTED).map(|one| {
        let [asked, found] =
            [&one.old, &one.new].map(|side| side.as_ref().map_or("not set".to_owned(), show));
        format!("`model.{}` is {found} and not {asked}", one.key)
    });
    Err(Stop::bad_input(format!(
        "{}: it has another model than {}: {}; one of the two files was changed after the training: \
         restore it",
        run.trial_file(&file.trial).display(),
        run.experiment().display(),
        each.collect::<Vec<_>>().join(", ")
    )))
}

/// The model of a trial by the run's experiment; of a trial that the sweep does not list, such as one
/// that continues another, those of all. `None` if the experiment cannot be planned, such as a search.
fn planned_models(path: PathBuf, text: Option<String>, trial: &TrialId) -> Option<Vec<Arc<Model>>> {
    let request = ExperimentRequest::of_run(path, text?, Vec::new());
    let loaded = spec::load(&request).ok()?;
    let planned = plan::expand(&loaded.experiment, &|_| None).ok()?.trials;
    let own = planned.iter().find(|planned| planned.id == *trial);
    Some(match own {
        Some(own) => vec![Arc::clone(&own.model)],
        None => planned.into_iter().map(|planned| planned.model).collect(),
    })
}

/// The checkpoint to use, whose weights are unchanged since they were written.
fn checkpoint(
    file: &TrialFile,
    run: &RunFolder,
    checkpoints: &Checkpoints,
    step: Option<u64>,
) -> Result<ListedCheckpoint, Stop> {
    let listing = checkpoints.listing().map_err(unread)?;
    if step.is_none() {
        all_read(&listing)?;
    }
    let steps = listing.steps();
    let listed = || {
        let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
        steps.join(", ")
    };
    let result = listing.result();
    let Some(step) = step
        .filter(|_| !steps.is_empty())
        .or(result.as_ref().map(|found| found.step))
        .or(steps.last().copied())
    else {
        return Err(without_weights(run, file, Some(&file.trial)));
    };
    if !steps.contains(&step) {
        return Err(Stop::bad_input(format!(
            "{}: there is no checkpoint of step {step}; the steps kept are: {}",
            checkpoints.folder().display(),
            listed()
        )));
    }
    let usable = checkpoints.usable(step, &[MODEL_FILE]).map_err(|why| {
        let others = match (&why, steps.len()) {
            (Unusable::Newer(_), 1) => "it is the only one".to_owned(),
            (_, 1) => "it is the only one, so run the trial again".to_owned(),
            _ => format!("choose another with `--step`: {}", listed()),
        };
        let why = match why {
            Unusable::Unread(cause) => return unread(cause),
            why => why.to_string(),
        };
        Stop::bad_input(format!(
            "{}: the checkpoint of step {step} cannot be used: {why}; {others}",
            checkpoints.folder().display()
        ))
    })?;
    Ok(ListedCheckpoint {
        step,
        valid_loss: usable.header.valid_loss,
        folder: usable.folder,
    })
}
