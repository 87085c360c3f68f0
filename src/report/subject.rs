//! The input of a report: a run's table, and the files of the run beside it.

use kiln_core::{
    record::{RunFile, RunFolder, TrialTable, tables::TRIALS},
    spec::{self, DeviceName, Devices, Experiment},
};
use serde_json::Value;

/// A run's table and what is known of the run beside it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub table: &'a TrialTable,
    /// Path of the table, as the page names it.
    pub name: &'a str,
    /// A table alone does not say how many trials were planned, nor where they ran.
    pub run: Option<&'a RunFile>,
    /// The resolved experiment, as YAML.
    pub experiment: Option<&'a str>,
    /// The list of packages of the programs of its newest launch.
    pub packages: Option<&'a str>,
    /// Folder of its series; `None` for a table without a folder, such as one read from another
    /// commit.
    pub folder: Option<&'a RunFolder>,
}

/// The requests of a run's experiment that change the findings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AskedRun {
    /// Whether a search chooses the trials.
    pub(super) is_search: bool,
    /// Whether `run.devices` is `cpu`.
    pub(super) is_on_cpu: bool,
}

impl AskedRun {
    pub(super) fn of(experiment: &Experiment) -> Self {
        Self {
            is_search: experiment.sweep.search.is_some(),
            is_on_cpu: experiment.run.devices == Devices::Named(DeviceName::Cpu),
        }
    }
}

impl<'a> Subject<'a> {
    pub fn new(table: &'a TrialTable, name: &'a str) -> Self {
        Self {
            table,
            name,
            run: None,
            experiment: None,
            packages: None,
            folder: None,
        }
    }

    /// The path of its run: that of the table without the name of its file.
    pub(super) fn run_path(&self) -> &'a str {
        let path = self.name.strip_suffix(TRIALS.file);
        let path = path.and_then(|path| path.strip_suffix('/'));
        path.unwrap_or(self.name)
    }

    /// The experiment's own objective.
    pub fn objective(&self) -> Option<spec::Objective> {
        spec::objective_of(self.experiment?)
    }

    /// The requests of its experiment, if it is known.
    pub(super) fn asked(&self) -> AskedRun {
        let experiment = self.experiment.and_then(|text| spec::read_yaml(text).ok());
        experiment.map_or_else(AskedRun::default, |experiment: Value| AskedRun {
            is_search: !experiment["sweep"]["search"].is_null(),
            is_on_cpu: experiment["run"]["devices"] == "cpu",
        })
    }

    /// Number of trials that have ended.
    pub(super) fn ended(&self) -> usize {
        self.table.last_attempts().len()
    }

    /// Number of trials of the plan; 0 if unknown.
    pub(super) fn planned(&self) -> usize {
        self.run.map_or(0, |run| run.plan.len())
    }
}
