//! What the losses of a trial say about its learning.

use kiln_core::{
    record::note::{LossRose, UnknownTokens},
    units::{Fraction, decimals},
};

use super::{
    evidence::{Threshold, ThresholdUnit},
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::TrialContext,
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
            of kiln's own models is the mean of the last few steps alone.",
    refuted_by: "The losses of whole epochs (in `epochs.csv`, or in the log of a command) lie closer \
                 together; or the validation loss still falls with further steps, so that nothing is \
                 lost.",
    explains: &[],
    is_fault: true,
    find: validation_above_training,
};

const UNKNOWN: Threshold = Threshold::at_least(
    "unknown tokens / all of a part of the data (the trial's note says so)",
    UnknownTokens::LEAST_SHARE,
    ThresholdUnit::Fraction,
    "chosen: a tokenizer made for a text leaves some rare letters out, not each twentieth token",
);

pub(super) const UNKNOWN_TOKENS: Rule = Rule {
    name: "unknown-tokens",
    columns: &["train_loss", "valid_loss"],
    thresholds: &[UNKNOWN],
    means: "The tokenizer does not know much of the text, which then is one token again and again: \
            a low loss says that this token is easily guessed, not that the text was learned. If \
            training lacks the token, no model can learn it, and the validation loss is too high.",
    refuted_by: "With a tokenizer that was made from this text the losses per character are no \
                 higher.",
    explains: &[],
    is_fault: true,
    find: unknown_tokens,
};

fn unknown_tokens(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let UnknownTokens { share, part } = UnknownTokens::of(row)?;
    let says = format!(
        "{} of the tokens of the {part} are unknown to the tokenizer: the losses are not those of \
         the text",
        Fraction(share)
    );
    let note = row.note(UnknownTokens::COLUMN).unwrap_or_default();
    let quoted = TrialContext::quoted(UnknownTokens::COLUMN, note);
    let found = RuleMatch::new(says, Weight::Doubts, Next::new());
    Some(found.of_degree(share).with([quoted]))
}

const ROSE: Threshold = Threshold::at_least(
    "`train_loss` / the first logged loss (the trial's note says so)",
    LossRose::LEAST_RATIO,
    ThresholdUnit::Count,
    "chosen: a smaller rise does not matter; besides, the first loss must lie below the 99.9 % \
     prediction interval of a loss of the second half, so that noise alone is named in at most one \
     training of a thousand",
);

pub(super) const LOSS_ROSE: Rule = Rule {
    name: "loss-rose",
    columns: &["train_loss", "valid_loss", "steps"],
    thresholds: &[ROSE],
    means: "The training ended with a higher loss than it began with: it learned nothing, although \
            every loss was finite. Most often the learning rate is too high.",
    refuted_by: "With a tenth of the learning rate the loss ends above the first one as well: then \
                 look at the data and the initial weights.",
    explains: &["validation-above-training"],
    is_fault: true,
    find: loss_rose,
};

fn loss_rose(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let (last, LossRose { first }) = (row.train_loss?, LossRose::of(row)?);
    let says = format!(
        "the training ended with a higher loss than it began with: {} after {}",
        decimals(last, 4),
        decimals(first, 4)
    );
    let note = row.note(LossRose::COLUMN).unwrap_or_default();
    let rate = case.learning_rate().map(|rate| rate / 10.0);
    let next = match rate {
        Some(rate) => Next::new().set("train.optimizer.learning_rate", rate),
        // The rate is not in the row; every loss shows where they rose.
        None => Next::new().set("measure.log_every", 1_u64),
    };
    let quoted = TrialContext::quoted(LossRose::COLUMN, note);
    let found = RuleMatch::new(says, Weight::Doubts, next);
    Some(found.of_degree(last - first).with([quoted]))
}

const ERROR_WITHOUT_MODEL: Threshold = Threshold::at_least(
    "`valid_mean_absolute_error` / `persistence_mean_absolute_error`",
    1.02,
    ThresholdUnit::Count,
    "chosen: a model that forecasts almost no change is as good as the baseline and may be a hair \
     above it",
);
const HITS_WITHOUT_MODEL: Threshold = Threshold::at_most(
    "`valid_hit_rate` / `majority_hit_rate`",
    1.0,
    ThresholdUnit::Count,
    "chosen: a better model is above it; where a row has both the error and the hit rate, both must \
     be met",
);

const WHOLE_PASS: Threshold = Threshold::at_least(
    "`steps` * `effective_batch_size` / (`epoch_seconds` * `samples_per_second`)",
    0.99,
    ThresholdUnit::Count,
    "chosen: one pass over the training data, less what rounding takes; a few steps that measure \
     the throughput say nothing about learning",
);

pub(super) const NO_BETTER_THAN_BASELINE: Rule = Rule {
    name: "no-better-than-baseline",
    columns: &[
        "valid_mean_absolute_error",
        "persistence_mean_absolute_error",
        "valid_hit_rate",
        "majority_hit_rate",
        "steps",
        "effective_batch_size",
        "epoch_seconds",
        "samples_per_second",
        "lowest_valid_step",
    ],
    thresholds: &[ERROR_WITHOUT_MODEL, HITS_WITHOUT_MODEL, WHOLE_PASS],
    means: "A forecast without a model is as good: that the price stays as it is, or always the \
            more common direction of the training data. The training may have learned noise (too \
            many passes, too large a model or rate), or the columns say nothing about the next \
            return.",
    refuted_by: "An earlier row of `epochs.csv`, or repeats with other seeds, are better than the \
                 forecasts without a model.",
    explains: &[],
    is_fault: true,
    find: no_better_than_baseline,
};

fn no_better_than_baseline(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let errors = row
        .valid_mean_absolute_error
        .zip(row.persistence_mean_absolute_error)
        .filter(|(_, without)| *without > 0.0);
    let hits = row
        .valid_hit_rate
        .zip(row.majority_hit_rate)
        .filter(|(_, without)| *without > 0.0);
    let is_error_worse =
        errors.is_none_or(|(own, without)| ERROR_WITHOUT_MODEL.is_met(own / without));
    let is_hit_rate_worse =
        hits.is_none_or(|(own, without)| HITS_WITHOUT_MODEL.is_met(own / without));
    let is_known = errors.is_some() || hits.is_some();
    let has_trained = row.is_completed() && was_to_learn(case);
    if !has_trained || !is_known || !is_error_worse || !is_hit_rate_worse {
        return None;
    }
    let error = errors.map(|(own, without)| {
        let (own, without) = (decimals(own, 4), decimals(without, 4));
        format!("the mean absolute error is {own}, and {without} if the price stays as it is")
    });
    let hit_rate = hits.map(|(own, without)| {
        let (own, without) = (Fraction(own), Fraction(without));
        format!("the hit rate is {own}, and {without} with always the more common direction")
    });
    let parts: Vec<String> = error.into_iter().chain(hit_rate).collect();
    let says = format!("no better than without a model: {}", parts.join("; "));
    let degree = match (errors, hits) {
        (Some((own, without)), _) => own / without,
        (None, Some((own, without))) => without - own,
        (None, None) => 0.0,
    };
    let next = Next::new()
        .set("train.evaluate.every", "epoch")
        .set("train.early_stop.patience", 2_u64);
    Some(RuleMatch::new(says, Weight::Doubts, next).of_degree(degree))
}

/// Whether the training read each sample once. A row without a rate, as that of a few steps, does not
/// tell; it counts if an evaluation before the last one was the best: the training went on since.
fn was_to_learn(case: &TrialContext<'_>) -> bool {
    let row = case.row;
    let Some(steps) = row.steps else {
        return false;
    };
    match case.samples_per_epoch().filter(|all| *all > 0.0) {
        Some(all) => {
            let seen = steps as f64 * row.effective_batch_size as f64;
            WHOLE_PASS.is_met(seen / all)
        }
        None => row.lowest_valid_step.is_some_and(|lowest| lowest < steps),
    }
}

fn validation_above_training(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let row = case.row;
    let (valid, train) = (row.valid_loss?, row.train_loss?);
    // A note says that this is not a loss of the training data, such as that of a synthetic batch.
    let is_of_data = row.note("train_loss").is_none() || LossRose::of(row).is_some();
    let is_far = train > 0.0 && RATIO.is_met(valid / train) && DISTANCE.is_met(valid - train);
    if !is_of_data || !is_far {
        return None;
    }
    let of_steps = match case.is_command() {
        true => "",
        false => " of the last steps",
    };
    let says = format!(
        "the validation loss is {}, {} times the training loss{of_steps}, {}",
        decimals(valid, 4),
        decimals(valid / train, 1),
        decimals(train, 4)
    );
    let next = Next::new()
        .set("train.evaluate.every", "epoch")
        .set("train.early_stop.patience", 2_u64);
    Some(RuleMatch::new(says, Weight::Doubts, next).of_degree(valid / train))
}
