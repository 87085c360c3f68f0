//! Contradictions among the keys of `sweep.search`, and with the rest of the file.

mod command;

use serde_json::{Map, Value};

use crate::{
    kinds::{Content, KeyFault, Model, data::Loader},
    spec::{
        Experiment, Metric, OnOom, Search, SearchedKeys,
        learned::OtherNumber,
        suggest::{did_you_mean, listed},
    },
};

/// Whether the range contains a batch size.
fn has_batch(from: u64, to: u64, multiple_of: u64) -> bool {
    from.div_ceil(multiple_of.max(1))
        .saturating_mul(multiple_of)
        <= to
}

/// Returns the contradictions among the keys of a search, and with the rest of the file.
pub(super) fn faults(experiment: &Experiment) -> Vec<KeyFault> {
    let Some(search) = &experiment.sweep.search else {
        return Vec::new();
    };
    let own = of_kind(experiment, search)
        .into_iter()
        .chain(of_too_short_trials(experiment, search))
        .chain(of_mixed_lengths(experiment, search));
    let mut faults: Vec<KeyFault> = own.map(|fault| fault.within("sweep.search")).collect();
    if experiment.run.on_oom == OnOom::Shrink {
        let message = "a search must see which trials run out of memory, so no smaller trial may \
                       replace them; remove `run.on_oom: shrink`";
        faults.push(KeyFault::between("run.on_oom", &["run.on_oom"], message));
    }
    faults
}

fn of_kind(experiment: &Experiment, search: &Search) -> Vec<KeyFault> {
    if let Some(command) = experiment.model.command() {
        let faults = command::faults(command, search);
        if !faults.is_empty() {
            return faults;
        }
    }
    match search {
        Search::LargestBatch {
            from,
            to,
            multiple_of,
            ..
        } => of_range(*from, *to, *multiple_of).into_iter().collect(),
        Search::BestThroughputBatch {
            from,
            to,
            multiple_of,
            keep_effective,
            ..
        } => {
            let effective = || {
                keep_effective
                    .then(|| of_effective(experiment, *from, *to, *multiple_of))
                    .flatten()
            };
            of_range(*from, *to, *multiple_of)
                .or_else(effective)
                .into_iter()
                .collect()
        }
        Search::Workers { .. } => of_workers(experiment).into_iter().collect(),
        Search::SuccessiveHalving {
            axes,
            metric,
            steps,
            ..
        } => of_halving(experiment, axes, *metric, *steps),
    }
}

/// The first step of a training uses less memory than the others.
fn of_too_short_trials(experiment: &Experiment, search: &Search) -> Option<KeyFault> {
    let trains = experiment.model.trains();
    let is_short = trains && experiment.train.steps == Some(1);
    let message = "the optimizer's moments exist only from the second step on, so a trial of one \
                   step uses too little memory; set `train.steps` to 2 or more";
    (matches!(search, Search::LargestBatch { .. }) && is_short)
        .then(|| KeyFault::between("kind", &["train.steps", "model.kind"], message))
}

/// A search for a batch size needs trials that include the longest rows.
fn of_mixed_lengths(experiment: &Experiment, search: &Search) -> Option<KeyFault> {
    let is_of_batch = matches!(
        search,
        Search::LargestBatch { .. } | Search::BestThroughputBatch { .. }
    );
    let is_mixed = experiment
        .data
        .pairs()
        .is_some_and(|pairs| !pairs.longest_first);
    let message = "rows differ in length, and a short trial may miss the longest ones; set \
                   `data.longest_first: true`, so that every trial includes them";
    (is_of_batch && is_mixed)
        .then(|| KeyFault::between("kind", &["data.longest_first", "data.kind"], message))
}

fn of_range(from: u64, to: u64, multiple_of: u64) -> Option<KeyFault> {
    if from > to {
        let message =
            format!("`from` {from} is more than `to` {to}, so no batch size could be tried");
        return Some(KeyFault::new("to", message));
    }
    let message = || {
        format!(
            "no batch size from {from} to {to} is a multiple of {multiple_of}; widen the range or \
             lower `multiple_of`"
        )
    };
    (!has_batch(from, to, multiple_of)).then(|| KeyFault::new("multiple_of", message()))
}

fn of_effective(experiment: &Experiment, from: u64, to: u64, multiple_of: u64) -> Option<KeyFault> {
    let (batch_size, grad_accumulation) = match &*experiment.model {
        Model::Command(command) => {
            let batch = command.grows.first().and_then(|name| command.count(name));
            (batch?, command.count("grad_accumulation")?)
        }
        _ => (
            experiment.train.batch_size,
            experiment.train.grad_accumulation,
        ),
    };
    let is_command = experiment.model.command().is_some();
    if !experiment.model.trains() && !is_command {
        let message = format!(
            "model kind `{}` accumulates no gradients, so its effective batch is its batch size; \
             remove `keep_effective`",
            experiment.model.kind()
        );
        return Some(KeyFault::between(
            "keep_effective",
            &["model.kind"],
            message,
        ));
    }
    let effective = batch_size.saturating_mul(grad_accumulation);
    let is_allowed = |batch: u64| {
        effective.is_multiple_of(batch)
            && batch.is_multiple_of(multiple_of)
            && (from..=to).contains(&batch)
    };
    // The largest divisor below the number itself is at most half of it.
    let some = (1..=(effective / 2).min(to))
        .chain([effective])
        .any(is_allowed);
    let keys = SearchedKeys::of(&experiment.model);
    let message = format!(
        "no divisor of the effective batch size {effective} (`{}` × `{}`) is a multiple of \
         {multiple_of} from {from} to {to}",
        keys.batch_size, keys.grad_accumulation
    );
    (!some).then(|| KeyFault::new("keep_effective", message))
}

fn of_workers(experiment: &Experiment) -> Option<KeyFault> {
    let message = || {
        format!(
            "model kind `{}` reads no data, so it needs no workers",
            experiment.model.kind()
        )
    };
    let involved = ["model.kind", "data.kind"];
    let is_command = experiment.model.command().is_some();
    let reads_none = experiment.data.loader().is_none() && !is_command;
    reads_none.then(|| KeyFault::between("kind", &involved, message()))
}

/// The keys that decide whether trials have a metric.
const DECIDE_METRICS: [&str; 5] = [
    "model.kind",
    "model.reads",
    "data.kind",
    "data.valid_fraction",
    "train.evaluate.generate",
];

fn of_halving(
    experiment: &Experiment,
    axes: &Map<String, Value>,
    metric: Metric,
    steps: u64,
) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    if axes.is_empty() {
        faults.push(KeyFault::new(
            "axes",
            "`axes` names no key, so there is nothing to choose from; give one, such as \
             `train.batch_size: [4, 8]`",
        ));
    }
    if let Some(why) = absence(metric, experiment) {
        faults.push(KeyFault::between(
            "metric",
            &DECIDE_METRICS,
            format!("{why}; choose another metric"),
        ));
    }
    let other = |key: &String| {
        let other = match key == "data.sampling" && carries_memory(experiment, axes) {
            true => OtherNumber::given(key, metric.name(), false)?,
            false => OtherNumber::of(key, metric.name())?,
        };
        Some(other.in_words(key, &format!("`{}`", metric.name())))
    };
    if let Some(why) = axes.keys().find_map(other) {
        let message = format!("{why}, so its values cannot be ranked; search them one by one");
        faults.push(KeyFault::between("axes", &["metric"], message));
    } else if axes.contains_key(Loader::SYNTHETIC) {
        faults.push(KeyFault::new(
            "axes",
            "`data.synthetic` prices the input pipeline, and is no setting to choose: one batch is \
             trained again and again; sweep it in `sweep.grid`",
        ));
    }
    if let Some(most) = experiment.train.steps.filter(|most| steps > *most) {
        let message = format!(
            "the first trials have {steps} steps, more than the limit `train.steps` {most}; lower \
             `steps`"
        );
        faults.push(KeyFault::new("steps", message));
    }
    faults
}

/// Whether the model carries its memory through the text under some of the searched values.
fn carries_memory(experiment: &Experiment, axes: &Map<String, Value>) -> bool {
    let values = axes.get("data.sampling").and_then(Value::as_array);
    let is_contiguous = values.is_some_and(|all| all.iter().any(|value| value == "contiguous"));
    is_contiguous && experiment.model.kind() == "lstm"
}

/// Returns the fault of an `objective` that the trials do not have.
pub(super) fn of_objective(experiment: &Experiment) -> Option<KeyFault> {
    let metric = experiment.objective?.metric;
    let why = absence(metric, experiment).or_else(|| {
        let has_goal = experiment.ranking_objective()?.goal.is_some();
        let is_own = matches!(metric, Metric::Own(_));
        (is_own && !has_goal).then(|| {
            format!(
                "it is not known whether a high or a low `{}` is better; set `objective.goal` to \
                 `max` or `min`",
                metric.key()
            )
        })
    })?;
    let involved = [
        "model.kind",
        "data.kind",
        "data.valid_fraction",
        "train.target",
        "model.metrics",
    ];
    Some(KeyFault::between("objective.metric", &involved, why))
}

/// Returns why a command lacks this metric, or why no trial has a metric of this name.
fn of_metric_name(metric: Metric, model: &Model) -> Option<String> {
    let columns = || Metric::COLUMNS.map(Metric::name);
    let name = metric.key();
    let Some(command) = model.command() else {
        return Some(format!(
            "`objective.metric` is `{name}`; it must be {}{}",
            listed(&columns(), "or"),
            did_you_mean(name, columns())
        ));
    };
    let metrics = command.every_metric();
    if metrics.get(name).is_none() {
        let names: Vec<&str> = metrics.names().collect();
        return Some(format!(
            "`{name}` is not a metric of this command; it must be {}{}",
            listed(&names, "or"),
            did_you_mean(name, names.iter().copied())
        ));
    }
    None
}

/// Returns why trials of this experiment lack this number; `None` if they have it.
fn absence(metric: Metric, experiment: &Experiment) -> Option<String> {
    let (model, data, train) = (&*experiment.model, &experiment.data, &experiment.train);
    let kind = model.kind();
    let is_validation = !matches!(
        metric,
        Metric::TrainLoss | Metric::SamplesPerSecond | Metric::TokensPerSecond
    );
    if let (Metric::Own(_), _) | (_, Model::Command(_)) = (metric, &*experiment.model) {
        return of_metric_name(metric, &experiment.model);
    }
    let read = model.reads();
    let has = match metric {
        Metric::SamplesPerSecond => true,
        Metric::TokensPerSecond => matches!(read, Content::Text | Content::Pairs),
        Metric::TrainLoss
        | Metric::ValidLoss
        | Metric::LowestValidLoss
        | Metric::SecondsToTarget => model.trains(),
        Metric::ValidTop1 => read == Content::Images,
        Metric::ValidMeanAbsoluteError | Metric::ValidHitRate => read == Content::Panel,
        Metric::ValidBleu4 | Metric::ValidChrf => read == Content::Pairs,
        Metric::Own(_) => false,
    };
    if !has {
        return Some(format!(
            "trials of model kind `{kind}` have no `{}`",
            metric.name()
        ));
    }
    if let Some(nothing) = data.without_validation().filter(|_| is_validation) {
        return Some(format!(
            "`{}` needs validation data, but `{nothing}` is 0",
            metric.name()
        ));
    }
    if metric == Metric::SecondsToTarget && train.target.is_none() {
        return Some("`seconds_to_target` needs a target; set `train.target`".to_owned());
    }
    let answers = matches!(metric, Metric::ValidBleu4 | Metric::ValidChrf);
    (answers && train.evaluate.generate.is_none()).then(|| {
        format!(
            "`{}` is measured on answers; set `train.evaluate.generate`",
            metric.name()
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::spec::{ExperimentRequest, load};

    #[test]
    fn a_search_does_not_rank_losses_of_a_memory_and_of_none() {
        let problems = |kind: &str, values: &str| {
            let text = format!(
                "kiln: 1\nname: x\nmodel: {{kind: {kind}}}\ndata: {{kind: generated}}\ntrain: \
                 {{steps: 50}}\nsweep: {{search: {{kind: successive-halving, metric: valid_loss, \
                 steps: 5, axes: {{data.sampling: [{values}]}}}}}}\n"
            );
            let request = ExperimentRequest {
                file: "x.yaml".into(),
                text: Some(text),
                ..ExperimentRequest::default()
            };
            load(&request).map_or_else(|problems| problems.to_string(), |_| String::new())
        };
        let why = "`data.sampling` decides whether a recurrent model is evaluated with a memory";
        let refused = problems("lstm", "shuffled, contiguous");
        assert!(refused.contains(why), "{refused}");
        for (kind, values) in [
            ("lstm", "shuffled, random"),
            ("gpt", "shuffled, contiguous"),
        ] {
            let other = problems(kind, values);
            assert!(!other.contains(why), "{other}");
        }
    }
}
