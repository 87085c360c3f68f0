//! Turns an experiment into its plan: points, settings, refusals, ids, order.

use std::{collections::HashMap, sync::Arc};

use super::{
    PlanProblem, Trial,
    blocks::blocks,
    order::Place,
    point::PointMaker,
    points::{Choices, expand_sweep},
    problem::PointProblems,
    twins::{self, Twin, UsedIds},
};
use crate::{
    kinds::{Data, KeyFault, data::DataFacts, samples::Epoch},
    spec::{Experiment, Order, Train},
};

/// All trials of an experiment, in the order they run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub trials: Vec<Trial>,
    pub points: u64,
    pub repeats: u64,
    pub order: Order,
    /// Dotted keys of the axes, in file order.
    pub axes: Vec<String>,
    /// The axes whose values run together in blocks; without any, a block is a round of repeats.
    pub together: Vec<String>,
    /// One pass over the training data, by [`Trial::point`]; `None` if the model reads no data or
    /// its size is unknown.
    pub epochs: Vec<Option<Epoch>>,
    /// Entries of `sweep.exclude` that match no point and therefore drop none, by their index.
    pub unmatched_excludes: Vec<usize>,
}

impl Plan {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.trials
            .iter()
            .map(|trial| trial.block)
            .max()
            .unwrap_or(0)
    }

    /// The data of one epoch of this trial.
    pub fn epoch_of(&self, trial: &Trial) -> Option<Epoch> {
        self.epochs.get(trial.point as usize).copied().flatten()
    }

    /// Bytes that the run will need, without hardware samples; `None` if those of a trial are
    /// unknown.
    pub fn expected_disk_bytes(&self) -> Option<u64> {
        super::disk::expected_disk_bytes(self.trials.iter())
    }
}

/// Plans the trials of an experiment, or returns every fault.
///
/// `facts` returns the known facts of a data section (`None`: unknown, and cells that depend on
/// them stay empty); it is called once per text.
///
/// # Errors
/// Every fault of every point, each with the keys and axis values it comes from.
pub fn expand(
    experiment: &Experiment,
    facts: &dyn Fn(&Data) -> Option<DataFacts>,
) -> Result<Plan, Vec<PlanProblem>> {
    if experiment.sweep.search.is_some() {
        let message = "`sweep.search` is for `kiln tune`; to run a file's own values, set \
                       `sweep.search=null`";
        return Err(vec![PlanProblem::of_sweep("sweep.search", message)]);
    }
    let points = PointMaker::new(experiment, facts)?;
    let sweep = expand_sweep(&experiment.sweep, |key, chosen| {
        points.value_at(key, chosen)
    })?;
    let mut planner = Planner {
        points,
        axes: sweep.axes,
        epochs: Vec::new(),
        trains: HashMap::new(),
        problems: PointProblems::default(),
    };
    let mut ids = UsedIds::default();
    let repeats = experiment.sweep.repeats;
    let mut by_point: Vec<Vec<Trial>> = Vec::with_capacity(sweep.points.len());
    let mut found: Vec<Twin> = Vec::new();
    for (number, choices) in sweep.points.iter().enumerate() {
        let trials = planner.point(number as u64, choices, repeats);
        found.extend(ids.twin(number, &trials));
        by_point.push(trials);
    }
    let repair = twins::repair(&found, &by_point, &experiment.sweep);
    for twin in &found {
        let fault = KeyFault::new("sweep", twin.message(repair.as_deref()));
        planner.problems.add_for_point(twin.axes(), fault);
    }
    let (axes, epochs) = (planner.axes, planner.epochs);
    planner.problems.none_or(())?;
    let points = by_point.len() as u64;
    let order = blocks(&by_point, &experiment.sweep, experiment.train.seed);
    let trials = in_order(by_point, &order);
    Ok(Plan {
        trials,
        points,
        repeats,
        order: experiment.sweep.order,
        axes,
        together: experiment.sweep.together.clone(),
        epochs,
        unmatched_excludes: sweep.unmatched,
    })
}

/// Arranges the trials of all points in the given order and numbers them; each place has the number
/// of its block.
fn in_order(by_point: Vec<Vec<Trial>>, order: &[(Place, u64)]) -> Vec<Trial> {
    // The repeats of a point always keep their own order, so each point is drained from its front.
    let mut queues: Vec<_> = by_point.into_iter().map(Vec::into_iter).collect();
    let in_order = order.iter().filter_map(|((point, _), block)| {
        let trial = queues.get_mut(*point as usize)?.next()?;
        Some((trial, *block))
    });
    let numbered = in_order.zip(1..).map(|((trial, block), number)| Trial {
        number,
        block,
        ..trial
    });
    // A plan may be large, and its length is known.
    let mut trials = Vec::with_capacity(order.len());
    trials.extend(numbered);
    trials
}

/// Plans one point after another and collects the faults.
struct Planner<'a> {
    points: PointMaker<'a>,
    axes: Vec<String>,
    /// Trials of the points so far; they are used only if there are no problems.
    epochs: Vec<Option<Epoch>>,
    /// The newest `train` of each seed: most points share theirs with the one before.
    trains: HashMap<u64, Arc<Train>>,
    problems: PointProblems,
}

impl Planner<'_> {
    /// Returns the trials of a point, one per seed; none if the point has a fault, which is added
    /// to the problems.
    fn point(&mut self, number: u64, choices: &Choices, repeats: u64) -> Vec<Trial> {
        match self.points.point(&self.axes, choices, repeats) {
            Ok(mut point) => {
                self.epochs.push(point.epoch);
                let trial = |repeat| {
                    let trial = point.trial(repeat);
                    Trial {
                        point: number,
                        train: shared(&mut self.trains, &trial.train),
                        ..trial
                    }
                };
                (0..repeats).map(trial).collect()
            }
            Err(faults) => {
                let axes = self.points.axis_values(&self.axes, choices);
                for fault in faults {
                    self.problems.add_for_point(&axes, fault);
                }
                Vec::new()
            }
        }
    }
}

/// One of the known values that is equal; else this one, which is known from now on.
fn shared(known: &mut HashMap<u64, Arc<Train>>, train: &Arc<Train>) -> Arc<Train> {
    let kept = known.entry(train.seed).or_insert_with(|| Arc::clone(train));
    if kept != train {
        *kept = Arc::clone(train);
    }
    Arc::clone(kept)
}

#[cfg(test)]
mod tests;
