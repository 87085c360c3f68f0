//! What the losses of a trial say about its learning.

use kiln_core::units::decimals;

use super::{
    case::TrialContext,
    evidence::{Threshold, ThresholdUnit},
    next::Next,
    rule::{Rule, RuleMatch, Weight},
};

const RATIO: Threshold = Threshold::at_least(
    "`valid_loss` / `train_loss`",
    1.3,
    ThresholdUnit::Count,
    "measured on 28 small trainings (`results/validation-gap-2core-epyc.csv`): text models whose \
     validation loss still fell reached 1.19, overfit ones had 1.33 or more",
);
const DISTANCE: Threshold = Threshold::at_least(
    "`valid_loss` - `train_loss`",
    0.3,
    ThresholdUnit::Count,
    "measured there too: between losses near 0 a ratio says little; with this difference 101 of \
     104 evaluations of overfit models are still found",
);

pub(super) const VALIDATION_ABOVE_TRAINING: Rule = Rule {
    name: "validation-above-training",
    columns: &[
        "valid_loss",
        "train_loss",
        "steps",
        "effective_batch_size",
        "parameters",
    ],
    thresholds: &[RATIO, DISTANCE],
    means: "The model is better on the samples it has trained on than on others. It may have \
            learned them by heart (many passes over little data, or a large model), or the \
            validation data may be of another kind; the row does not tell which. The training loss \
            is the mean of the last few steps alone.",
    refuted_by: "The losses of `epochs.csv`, means over whole epochs, lie closer together; or the \
                 validation loss still falls with further steps, so that nothing is lost.",
    explains: &[],
    is_fault: true,
    find: validation_above_training,
};

fn validation_above_training(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let (valid, train) = (row.valid_loss?, row.train_loss?);
    // A note says that this is not a loss of the training data, such as that of a synthetic batch.
    let is_of_data = row.note("train_loss").is_none();
    let is_far = train > 0.0 && RATIO.is_met(valid / train) && DISTANCE.is_met(valid - train);
    if !is_of_data || !is_far {
        return None;
    }
    let says = format!(
        "the validation loss is {}, {} times the training loss of the last steps, {}",
        decimals(valid, 4),
        decimals(valid / train, 1),
        decimals(train, 4)
    );
    let next = Next::new()
        .set("train.evaluate.every", "epoch")
        .set("train.early_stop.patience", 2_u64);
    Some(RuleMatch::new(says, Weight::Doubts, next))
}
