//! `kiln compare --rerun`: runs both sides again, alternating trial by trial, and compares the new
//! runs.

use std::path::{Path, PathBuf};

use kiln_core::{
    plan::{Plan, TrialId},
    record::{RunFile, TrialTable},
    spec::{self, ExperimentRequest},
    units::clock,
};
use kiln_hardware::host::usable_cores;

use super::{
    RESULTS, Status, Stop, continuation,
    experiment_plan::{Planned, plan_file, plan_loaded},
    launch::{Launched, PlannedFile, start},
    launch_options::{LaunchOptions, stopped},
    machine::trial_program,
    note,
    rerun_folders::RERUN,
    run_name::is_of_revision,
    sources::{TableSource, of_folder, source},
};
use crate::{
    git,
    schedule::{
        ChangedPrograms, LaunchEnd, LaunchReport, Selection, programs_changed_since, row_ahead,
    },
};

/// The key that names where a command's program lies.
const PROGRAM_FOLDER: &str = "model.folder";

/// Options of `--rerun`.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Run both sides again, alternating trial by trial, and compare the new runs. BASE and NEW are
    /// runs or experiment files.
    #[arg(long)]
    pub(super) rerun: bool,
    /// With `--rerun`: set a key of both experiments.
    #[arg(long, value_name = "KEY=VALUE", requires = "rerun")]
    set: Vec<String>,
    /// With `--rerun`: set a key of BASE only.
    #[arg(long, value_name = "KEY=VALUE", requires = "rerun")]
    base_set: Vec<String>,
    /// With `--rerun`: set a key of NEW only.
    #[arg(long, value_name = "KEY=VALUE", requires = "rerun")]
    new_set: Vec<String>,
    /// With `--rerun`: the program that runs the trials of BASE, such as `kiln-trial` of another
    /// build.
    #[arg(long, value_name = "PROGRAM", requires = "rerun")]
    base_program: Option<PathBuf>,
    /// With `--rerun`: the program that runs the trials of NEW.
    #[arg(long, value_name = "PROGRAM", requires = "rerun")]
    new_program: Option<PathBuf>,
    /// With `--rerun`: folder for the runs; a new folder is created in it.
    #[arg(
        long,
        value_name = "DIR",
        default_value = RESULTS,
        requires = "rerun"
    )]
    results: PathBuf,
}

impl Args {
    /// The keys that were set for one side alone.
    pub(super) fn keys_of_one_side(&self) -> impl Iterator<Item = String> {
        let settings = self.base_set.iter().chain(&self.new_set);
        settings.filter_map(|setting| Some(setting.split_once('=')?.0.trim().to_owned()))
    }
}

/// Both sides, read and planned.
pub(super) struct Sides {
    base: Side,
    new: Side,
    folder: PathBuf,
}

/// One of the two sides.
struct Side {
    name: &'static str,
    /// Its table as far as it is known before a trial runs.
    ahead: TableSource,
    asked: PlannedFile,
    program: PathBuf,
    launching: LaunchOptions,
    /// Trials of the plan that have not run yet, in plan order, grouped by repeat.
    rounds: Vec<Vec<TrialId>>,
    report: Option<LaunchReport>,
}

impl Sides {
    /// # Errors
    /// If a side cannot be read or planned.
    pub(super) fn of(base: &str, new: &str, args: &Args) -> Result<Self, Stop> {
        let folder = args.results.join(format!(
            "{RERUN}{}",
            clock::utc_now().strftime("%Y%m%dT%H%M%SZ")
        ));
        let side = |name, named, set: &[String], program: &Option<PathBuf>| {
            Side::of(name, named, set, program.as_deref(), args, &folder)
        };
        Ok(Self {
            base: side("base", base, &args.base_set, &args.base_program)?,
            new: side("new", new, &args.new_set, &args.new_program)?,
            folder,
        })
    }

    /// The tables of both sides as far as they are known before a trial runs.
    pub(super) fn ahead(&self) -> [&TableSource; 2] {
        [&self.base.ahead, &self.new.ahead]
    }

    /// Runs both sides, alternating trial by trial.
    ///
    /// # Errors
    /// If a side cannot be run, or on an interruption.
    pub(super) fn run(self) -> Result<[TableSource; 2], Stop> {
        let Self {
            mut base,
            mut new,
            folder,
        } = self;
        let all = base.count() + new.count();
        note(&format!(
            "rerun: {} trials of base and {} of new, alternating, under {}",
            base.count(),
            new.count(),
            folder.display()
        ));
        let mut done = 0;
        let rounds = base.rounds.len().max(new.rounds.len());
        for round in 0..rounds {
            let trials = |side: &Side| side.rounds.get(round).cloned().unwrap_or_default();
            let (of_base, of_new) = (trials(&base), trials(&new));
            for place in 0..of_base.len().max(of_new.len()) {
                let (one, other) = (
                    (&mut base, of_base.get(place)),
                    (&mut new, of_new.get(place)),
                );
                // The side that goes first alternates, so that a drift affects both sides equally.
                let turns = if (round + place) % 2 == 0 {
                    [one, other]
                } else {
                    [other, one]
                };
                for (side, trial) in turns {
                    let Some(trial) = trial else { continue };
                    done += 1;
                    note(&format!("rerun: {done} of {all}: {} {trial}", side.name));
                    let is_stop_asked = side.run(trial, &folder)?;
                    if is_stop_asked && done < all {
                        return Err(interrupted(&folder));
                    }
                }
            }
        }
        Ok([base.table()?, new.table()?])
    }
}

impl Side {
    fn of(
        name: &'static str,
        named: &str,
        set: &[String],
        program: Option<&Path>,
        args: &Args,
        folder: &Path,
    ) -> Result<Self, Stop> {
        let set: Vec<String> = args.set.iter().chain(set).cloned().collect();
        let is_experiment = Path::new(named)
            .extension()
            .is_some_and(|end| end == "yaml" || end == "yml")
            && !is_of_revision(named);
        let planned = if is_experiment {
            plan_file(PathBuf::from(named), &set)?
        } else {
            of_run(name, named, set, &args.results)?
        };
        if planned.loaded.experiment.sweep.search.is_some() {
            return Err(Stop::bad_input(format!(
                "{named}: `sweep.search` is for `kiln tune`; add `--set sweep.search=null` to run \
                 its own values"
            )));
        }
        let program = match program {
            Some(program) => std::path::absolute(program)
                .map_err(|error| Stop::bad_input(format!("{}: {error}", program.display())))?,
            None => trial_program()?,
        };
        if !program.is_file() {
            return Err(Stop::bad_input(format!(
                "{}: there is no such program; name one with `--{name}-program`",
                program.display()
            )));
        }
        let launching = LaunchOptions::quiet_in(folder.join(name));
        Ok(Self {
            name,
            rounds: rounds(&planned.plan),
            ahead: ahead(named, &planned),
            asked: PlannedFile::new(planned, &launching)?,
            program,
            launching,
            report: None,
        })
    }

    fn count(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Runs one trial, as one more launch of the side's run. Returns whether a signal asked to stop
    /// after it.
    fn run(&mut self, trial: &TrialId, folder: &Path) -> Result<bool, Stop> {
        self.asked.select(Selection {
            only: vec![trial.clone()],
            rerun: Vec::new(),
        });
        let Launched { report, .. } = self.asked.request(&self.launching, &self.program, start)?;
        if let Some(failure) = &report.failure {
            return Err(stopped(failure.clone()));
        }
        if report.end == LaunchEnd::Interrupted {
            return Err(interrupted(folder));
        }
        let is_stop_asked = report.is_stop_asked;
        self.report = Some(report);
        Ok(is_stop_asked)
    }

    fn table(&self) -> Result<TableSource, Stop> {
        let report = self
            .report
            .as_ref()
            .ok_or_else(|| Stop::bad_input(format!("{}: the plan has no trials", self.name)))?;
        of_folder(&report.folder.trials_table())
    }
}

fn interrupted(folder: &Path) -> Stop {
    Stop::new(
        Status::Interrupted,
        format!(
            "interrupted; the trials that ran are under {}",
            folder.display()
        ),
    )
}

/// The table of a side before a trial runs.
fn ahead(named: &str, planned: &Planned) -> TableSource {
    let cores = usable_cores();
    let trials = planned.plan.trials.iter();
    TableSource {
        name: named.to_owned(),
        table: TrialTable {
            axes: planned.plan.axes.clone(),
            rows: trials.map(|trial| row_ahead(trial, cores)).collect(),
            ..TrialTable::default()
        },
        run: None,
        run_fault: None,
        experiment: Some(spec::write_resolved(&planned.loaded)),
        experiment_fault: None,
        packages: None,
        folder: None,
    }
}

/// The trials of each repeat. Both sides run them in the order of the points, so that equal points
/// run next to each other.
fn rounds(plan: &Plan) -> Vec<Vec<TrialId>> {
    let round = |repeat: u64| {
        let trials = plan.trials.iter();
        let mut round: Vec<_> = trials.filter(|trial| trial.repeat == repeat).collect();
        round.sort_by_key(|trial| trial.point);
        round.into_iter().map(|trial| trial.id.clone()).collect()
    };
    (0..plan.repeats).map(round).collect()
}

/// The experiment of a run, as it was resolved when it ran, with what it continued.
fn of_run(side: &str, named: &str, set: Vec<String>, results: &Path) -> Result<Planned, Stop> {
    let run = source(named)?;
    let is_elsewhere = set.iter().any(|setting| {
        let key = setting.split_once('=').map(|(key, _)| key.trim());
        key == Some(PROGRAM_FOLDER)
    });
    let Some(text) = &run.experiment else {
        return Err(run.without_experiment("name a run or an experiment file"));
    };
    let request = ExperimentRequest::of_run(run.experiment_file(), text.clone(), set);
    // The text may come from a commit, so no line of it is shown.
    let loaded = spec::load(&request)
        .map_err(|problems| Stop::of_lines(Status::BadInput, problems.as_slice()))?;
    let mut planned = plan_loaded(loaded)?;
    if let Some(record) = &run.run {
        let changed = changed_programs(record, &planned, results, is_elsewhere)?;
        if let Some(changed) = changed {
            return Err(match is_elsewhere {
                true => not_the_old_program(&run.name, &changed),
                false => of_other_programs(side, &run.name, &planned, &changed),
            });
        }
        continuation::continue_as_recorded(&mut planned, record)?;
    }
    Ok(planned)
}

fn changed_programs(
    record: &RunFile,
    planned: &Planned,
    results: &Path,
    is_elsewhere: bool,
) -> Result<Option<ChangedPrograms>, Stop> {
    let now = (&planned.loaded.experiment, &planned.plan.trials[..]);
    programs_changed_since(record, now, results, is_elsewhere).map_err(Stop::bad_input)
}

/// The refusal of a folder that was named for a run's program and has another one.
fn not_the_old_program(run: &str, changed: &ChangedPrograms) -> Stop {
    let commit = match changed.commit() {
        Some(commit) => format!("the files of commit {commit}"),
        None => "the files of then".to_owned(),
    };
    Stop::bad_input(format!(
        "{run}: the folder of `{PROGRAM_FOLDER}` does not have the program of this run ({}); it \
         needs {commit}; to run another program, name the experiment file instead of the run",
        changed.files.join("; ")
    ))
}

/// The refusal of a run whose programs have changed: the new trials would measure those of today.
fn of_other_programs(side: &str, run: &str, planned: &Planned, changed: &ChangedPrograms) -> Stop {
    let command = planned.loaded.experiment.model.command();
    let folder = command.map(|command| command.folder.as_deref().unwrap_or_default());
    let folder = folder.filter(|_| changed.keeps_its_paths);
    let way = way_to_old(side, folder, &git::prefix(), changed.commit());
    if changed.are_not_found {
        return Stop::bad_input(format!(
            "{run}: the program of this run is not there ({}); start kiln in the folder where the \
             run was started, with the path of the run from there; if this is that folder, {way}",
            changed.files.join("; ")
        ));
    }
    Stop::bad_input(format!(
        "{run}: the program has changed since this run ({}), and `--rerun` would run the program \
         of today; {way}; to run the program of today, name the experiment file instead of the run",
        changed.files.join("; ")
    ))
}

/// How to get the old program and name it. `folder` is where the program runs; `None` if a checkout
/// does not have it. `prefix` is the path of the current folder in its repository.
fn way_to_old(side: &str, folder: Option<&str>, prefix: &str, commit: Option<&str>) -> String {
    // These are commands to copy, and the record may come from anybody.
    let is_plain = |path: &str| {
        let mut letters = path.chars();
        letters.all(|letter| letter.is_ascii_alphanumeric() || "._-/".contains(letter))
    };
    let is_in_repository =
        |folder: &&str| Path::new(folder).is_relative() && is_plain(folder) && is_plain(prefix);
    let Some(folder) = folder.filter(is_in_repository) else {
        let get = match commit {
            Some(commit) => format!("check commit {commit} out elsewhere"),
            None => "put the old one elsewhere (no commit is known that has it)".to_owned(),
        };
        return format!("{get} and name its program with `--{side}-set`");
    };
    // Beside the repository.
    let depth = prefix.matches('/').count();
    let worktree = format!("{}{side}", "../".repeat(depth + 1));
    let program = format!("{worktree}/{prefix}{folder}");
    let program = program.trim_end_matches('/');
    let get = match commit {
        Some(commit) => {
            format!("check the old one out with `git worktree add {worktree} {commit}`")
        }
        None => format!("put the old one into `{program}` (no commit is known that has it)"),
    };
    format!("{get} and add `--{side}-set {PROGRAM_FOLDER}={program}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_program_is_checked_out_beside_the_repository() {
        let way = |folder, prefix, commit| way_to_old("base", folder, prefix, commit);
        assert_eq!(
            way(Some(""), "", Some("0ab")),
            "check the old one out with `git worktree add ../base 0ab` and add `--base-set \
             model.folder=../base`"
        );
        assert_eq!(
            way(Some("bench"), "sub/deep/", Some("0ab")),
            "check the old one out with `git worktree add ../../../base 0ab` and add `--base-set \
             model.folder=../../../base/sub/deep/bench`"
        );
        assert_eq!(
            way(Some(""), "sub/", None),
            "put the old one into `../../base/sub` (no commit is known that has it) and add `--base-set \
             model.folder=../../base/sub`"
        );
        let elsewhere = "check commit 0ab out elsewhere and name its program with `--base-set`";
        for folder in [None, Some("{n}"), Some("/opt/bench"), Some("a; b")] {
            assert_eq!(way(folder, "", Some("0ab")), elsewhere, "{folder:?}");
        }
        assert_eq!(
            way(None, "", None),
            "put the old one elsewhere (no commit is known that has it) and name its program with \
             `--base-set`"
        );
    }
}
