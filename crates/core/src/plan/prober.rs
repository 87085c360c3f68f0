//! Turns a search's [`SearchTrial`] into its trial: the same trial, with the same id, as in a grid
//! of these values.

use super::{
    PlanProblem, Trial,
    point::PointMaker,
    points::expand_sweep,
    search::{self, SearchContext, SearchTrial, Strategy},
};
use crate::{
    kinds::{Data, Model, data::DataFacts},
    spec::{Experiment, Search, SearchedKeys, Sweep},
};

/// Makes the trials of a search.
pub struct Prober<'a> {
    points: PointMaker<'a>,
    search: Search,
    given: SearchContext,
}

impl<'a> Prober<'a> {
    /// `facts` returns the known facts of a data section, as for [`expand`](super::expand());
    /// `cores` is the number of usable cores, `gpus` the number that a trial uses.
    ///
    /// # Errors
    /// The experiment defines no search, or a search with too many settings.
    pub fn new(
        experiment: &Experiment,
        facts: &'a dyn Fn(&Data) -> Option<DataFacts>,
        cores: u64,
        gpus: u64,
    ) -> Result<Self, Vec<PlanProblem>> {
        let Some(search) = &experiment.sweep.search else {
            let others = match &*experiment.model {
                Model::Command(_) => "model.values.NAME",
                _ => "train.optimizer.learning_rate",
            };
            let message = format!(
                "`sweep.search` is not given; say what to look for: `--search \
                 best-throughput-batch`, `largest-batch` or `workers`, or `sweep.search` in the \
                 file; a few learning rates are a sweep of `{others}` for `kiln run`"
            );
            return Err(vec![PlanProblem::of_sweep("sweep.search", message)]);
        };
        if let Search::SuccessiveHalving { axes, repeats, .. } = search {
            let settings = Sweep {
                grid: axes.clone(),
                repeats: *repeats,
                ..Sweep::default()
            };
            let named = |mut problem: PlanProblem| {
                let key = &mut problem.fault.key;
                *key = key.replacen("sweep.grid", "sweep.search.axes", 1);
                problem
            };
            expand_sweep(&settings, |_, _| serde_json::Value::Null)
                .map_err(|problems| problems.into_iter().map(named).collect::<Vec<_>>())?;
        }
        let points = PointMaker::new(experiment, facts)?;
        let given = SearchContext {
            // The file's own point may be one that cannot be planned.
            steps: experiment.train.steps.or_else(|| {
                let point = points.point(&[], &Vec::new(), 1).ok();
                point.and_then(|mut point| point.trial(0).steps)
            }),
            ..context(experiment, cores, gpus)
        };
        Ok(Self {
            points,
            search: search.clone(),
            given,
        })
    }

    /// The strategy that selects trials.
    pub fn strategy(&self) -> Box<dyn Strategy> {
        search::strategy(&self.search, &self.given)
    }

    /// Returns the trial of a choice, with its id. Its `number` and `point` are 0, and the caller
    /// sets them: the plan is not complete yet.
    ///
    /// # Errors
    /// All faults, each with the chosen values. A strategy treats such a choice as a trial that was
    /// `skipped`.
    pub fn trial(&self, choice: &SearchTrial) -> Result<Trial, Vec<PlanProblem>> {
        let (axes, values): (Vec<String>, Vec<_>) = choice
            .values
            .iter()
            .cloned()
            .map(|(key, value)| (key, Some(value)))
            .unzip();
        let problem = |fault| PlanProblem::of_point(fault, &choice.values);
        let point = self
            .points
            .point(&axes, &values, choice.repeat.saturating_add(1));
        point
            .map(|mut point| point.trial(choice.repeat))
            .map_err(|faults| faults.into_iter().map(problem).collect())
    }
}

/// Facts of the file and the machine, without the length of the training.
fn context(experiment: &Experiment, cores: u64, gpus: u64) -> SearchContext {
    let keys = SearchedKeys::of(&experiment.model);
    let train = &experiment.train;
    let (batch_size, grad_accumulation, num_workers) = match &*experiment.model {
        Model::Command(command) => {
            let count = |key: &str| command.count(key.strip_prefix("model.values.")?);
            (
                count(&keys.batch_size).unwrap_or(1),
                count(&keys.grad_accumulation).unwrap_or(1),
                count(&keys.num_workers).unwrap_or(0),
            )
        }
        _ => (
            train.batch_size,
            train.grad_accumulation,
            experiment
                .data
                .loader()
                .map_or(0, |loader| loader.num_workers.resolve(cores)),
        ),
    };
    SearchContext {
        keys,
        batch_size,
        grad_accumulation,
        num_workers,
        devices_per_trial: experiment.run.devices_per_trial,
        learning_rate: experiment
            .model
            .trains()
            .then(|| train.optimizer.learning_rate()),
        steps: None,
        cores,
        gpus,
        is_until_target: experiment.searches_until_target(),
    }
}

#[cfg(test)]
mod tests;
