//! Preparation of a training: the data and the plan of its steps, the point where it resumes, and
//! the model with its first weights.

use std::collections::BTreeMap;

use kiln_core::{
    kinds::{InputShape, samples::Epoch},
    plan::TrialFile,
    record::{TrialResult, note::UnknownTokens, trial_result::OutputNames},
};
use kiln_data::notices::with_remedy;

use super::{
    checkpoint::{self, Keeper, ResumePoint},
    class_names::{class_labels, class_names},
    feed::{Feed, StepPlan, plan_feed},
    learner::{Beginning, Learner, SavedLearner},
    pretrained::{Pretrained, other_labels},
    responses::Responses,
    sample::TextSampler,
};
use crate::{TrialError, data, model::Registry};

/// Everything that is known before the model is built.
pub(super) struct Prepared {
    pub(super) plan: StepPlan,
    pub(super) feed: Feed,
    pub(super) sampler: Option<TextSampler>,
    pub(super) responses: Option<Responses>,
    pub(super) input: InputShape,
    /// SHA-256 of the numbering of the tokens.
    pub(super) token_sum: Option<String>,
    pub(super) notice: Option<String>,
}

/// Reads the data, plans the steps, and reports what is dropped.
pub(super) fn prepare(file: &TrialFile, result: &mut TrialResult) -> Result<Prepared, TrialError> {
    let opened = data::open(file).map_err(TrialError::Bad)?;
    let input = opened.facts.input_shape();
    let (plan, schedule, feed) = plan_feed(file, &opened)?;
    let tokens = opened.pairs.as_ref().map(|pairs| &pairs.tokens);
    let token_sum = match &opened.vocabulary {
        Some(vocabulary) => Some(vocabulary.sha256()),
        None => tokens.map(|tokens| tokens.numbering_sha256()),
    };
    let sampler = TextSampler::new(file, opened.vocabulary)?;
    let responses = Responses::new(file, opened.pairs.clone())?;
    let epoch = schedule.epoch();
    result.train_samples = Some(epoch.samples);
    result.dropped_samples_per_epoch = Some(epoch.dropped_samples());
    if let Some(baselines) = &opened.baselines {
        result.figures.persistence_mean_absolute_error =
            Some(baselines.persistence_mean_absolute_error);
        result.figures.persistence_hit_rate = Some(baselines.persistence_hit_rate);
        result.figures.majority_hit_rate = Some(baselines.majority_hit_rate);
    }
    if file.data.loader().is_some_and(|loader| loader.synthetic) {
        result.notes.insert(
            "train_loss".to_owned(),
            "loss of one synthetic batch that every step repeats (`data.synthetic`)".to_owned(),
        );
    }
    if let Some(pairs) = &opened.pairs {
        let padding = pairs.train.padding_fraction(&schedule) * 100.0;
        result.notes.insert(
            "tokens_per_second".to_owned(),
            format!(
                "counts tokens of prompts and responses only; {padding:.1} % of a batch is padding"
            ),
        );
    }
    if let Some(left_out) = left_out_of_data(&opened.left_out) {
        result.notes.insert("data".to_owned(), left_out);
    }
    if let Some(unknown) = &opened.unknown {
        let column = UnknownTokens::COLUMN.to_owned();
        result.notes.insert(column, unknown.to_string());
    }
    let remedy = opened
        .unknown
        .map(|unknown| with_remedy(&unknown, &file.data));
    let weights = file.train.initial_weights.as_ref();
    let class_names = class_names(&file.data, &mut result.notes);
    let relabeled = opened
        .labels
        .or_else(|| class_labels(&file.data, &class_names))
        .and_then(|labels| other_labels(weights?, &labels));
    let notices = left_out_notice(epoch, &opened.left_out)
        .into_iter()
        .chain(remedy)
        .chain(opened.notice)
        .chain(relabeled)
        .collect::<Vec<String>>();
    let notice = (!notices.is_empty()).then(|| notices.join("; "));
    result.data_sha256 = Some(opened.facts.sha256).filter(|hash| !hash.is_empty());
    result.figures.validation_data = opened.validation;
    result.left_out_of_data = opened.left_out;
    result.outputs = OutputNames {
        class_names,
        tokenizer_sha256: tokens.map(|tokens| tokens.sha256().to_owned()),
    };
    Ok(Prepared {
        plan,
        feed,
        sampler,
        responses,
        input,
        token_sum,
        notice,
    })
}

/// Rows, ends of rows and files that the data itself drops.
fn left_out_of_data(of_data: &BTreeMap<String, u64>) -> Option<String> {
    let parts: Vec<String> = of_data
        .iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    (!parts.is_empty()).then(|| format!("dropped from the data: {}", parts.join(", ")))
}

/// Describes the part of the data that is not trained on.
fn left_out_notice(epoch: Epoch, of_data: &BTreeMap<String, u64>) -> Option<String> {
    let mut parts: Vec<String> = left_out_of_data(of_data).into_iter().collect();
    if epoch.dropped_samples() > 0 {
        let dropped = [
            (epoch.dropped_partial_batch, "partial batch"),
            (epoch.dropped_partial_accumulation, "partial step"),
        ];
        let dropped = dropped
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, of)| format!("{count} ({of})"));
        parts.push(format!(
            "each epoch drops its last samples: {}",
            dropped.collect::<Vec<_>>().join(" and ")
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The point where a training starts.
pub(super) struct Start {
    /// The checkpoint to resume from, and its tensors; `None` for the first step.
    pub(super) checkpoint: Option<(ResumePoint, SavedLearner)>,
    /// Newer checkpoints that cannot be used, each with its reason.
    pub(super) refused: Vec<String>,
}

impl Start {
    /// The newest checkpoint of the trial, else that of the trial that it continues.
    ///
    /// Errors: the checkpoints cannot be read, or the one to continue is missing or changed.
    pub(super) fn find(
        file: &TrialFile,
        keeper: Option<&mut Keeper>,
        total_steps: u64,
    ) -> Result<Self, TrialError> {
        let read = |start: &ResumePoint| SavedLearner::read(&start.folder, start.optimizer);
        let (own, refused) = match keeper {
            Some(keeper) => keeper.start(total_steps, read)?,
            None => (None, Vec::new()),
        };
        let checkpoint = match (own, &file.origin) {
            (None, Some(origin)) => Some(checkpoint::continued(origin, total_steps, read)?),
            (own, _) => own,
        };
        Ok(Self {
            checkpoint,
            refused,
        })
    }

    /// A note on the refused checkpoints, if there are any.
    pub(super) fn note(&self) -> Option<String> {
        let first = self.refused.first()?;
        let from = match self.checkpoint {
            Some(_) => "an older one was used",
            None => "the trial started from the beginning",
        };
        let more = match self.refused.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        Some(format!("{from}: {first}{more}"))
    }
}

/// With the weights of the checkpoint to resume from, those of the file's `initial_weights`, or
/// drawn ones; second, what the user should know of the file's.
pub(super) fn build_replicas(
    file: &TrialFile,
    (input, token_sum): (InputShape, Option<String>),
    registry: &Registry,
    saved: Option<&SavedLearner>,
) -> Result<(Vec<Learner>, Vec<String>), TrialError> {
    let pretrained = file
        .train
        .initial_weights
        .as_ref()
        .filter(|_| saved.is_none())
        .map(|named| Pretrained::read(named, &file.model, token_sum.as_deref()))
        .transpose()?;
    let beginning = match (saved, &pretrained) {
        (Some(saved), _) => Beginning::Saved(saved),
        (None, Some(pretrained)) => Beginning::Pretrained(pretrained),
        (None, None) => Beginning::Drawn,
    };
    let mut replicas = Learner::build_replicas(file, Some(input), registry, beginning)?;
    for learner in &mut replicas {
        learner.token_sum.clone_from(&token_sum);
    }
    let notices = pretrained.map(Pretrained::into_notices);
    Ok((replicas, notices.unwrap_or_default()))
}
