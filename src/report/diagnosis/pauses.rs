//! Pauses that are excluded from the measured window but take a trial's time.

use kiln_core::units::{Fraction, Seconds};

use super::{
    evidence::{Threshold, ThresholdUnit},
    next::Next,
    rule::{Rule, RuleMatch, Weight},
    trial_context::TrialContext,
};

const EVALUATION_SHARE: Threshold = Threshold::at_least(
    "`evaluation_seconds` / `trial_seconds`",
    0.25,
    ThresholdUnit::Fraction,
    "chosen: a third more time than the training alone would take",
);
const CHECKPOINT_SHARE: Threshold = Threshold::at_least(
    "`checkpoint_seconds` / `trial_seconds`",
    0.10,
    ThresholdUnit::Fraction,
    "chosen: a resumed attempt repeats at most one interval, half on average; checkpoints should \
     cost less than that",
);
const EVALUATION_WAIT: Threshold = Threshold::at_least(
    "`evaluation_seconds`",
    10.0,
    ThresholdUnit::Seconds,
    "chosen: a shorter time does not matter",
);
const CHECKPOINT_WAIT: Threshold = Threshold::at_least(
    "`checkpoint_seconds`",
    10.0,
    ThresholdUnit::Seconds,
    "chosen: a shorter time does not matter",
);

/// Fewest checkpoints that a training needs.
const CHECKPOINTS: u64 = 4;

pub(super) const EVALUATION_DOMINATES: Rule = Rule {
    name: "evaluation-dominates",
    columns: &[
        "evaluation_seconds",
        "trial_seconds",
        "window_seconds",
        "steps",
        "batch_size",
    ],
    thresholds: &[EVALUATION_SHARE, EVALUATION_WAIT],
    means: "The rate is right, because it excludes evaluation, but the trial takes much longer \
            than its training: evaluate less often (`train.evaluate.every`) or in larger batches.",
    refuted_by: "Without `train.evaluate` the trial takes as long.",
    explains: &[],
    is_fault: true,
    find: evaluation_dominates,
};

pub(super) const CHECKPOINTS_DOMINATE: Rule = Rule {
    name: "checkpoints-dominate",
    columns: &[
        "checkpoint_seconds",
        "trial_seconds",
        "checkpoint_bytes",
        "steps",
    ],
    thresholds: &[CHECKPOINT_SHARE, CHECKPOINT_WAIT],
    means: "The rate is right, because it excludes checkpoints, but the trial spends much of its \
            time writing them.",
    refuted_by: "Without `train.checkpoint` the trial takes as long.",
    explains: &[],
    is_fault: true,
    find: checkpoints_dominate,
};

/// These seconds as a share of the trial's duration.
fn share_of_trial(
    case: &TrialContext<'_>,
    seconds: Option<f64>,
    least: Threshold,
    least_share: Threshold,
) -> Option<(f64, f64)> {
    let seconds = seconds.filter(|seconds| least.is_met(*seconds))?;
    let share = seconds / case.row.trial_seconds.filter(|all| *all > 0.0)?;
    least_share.is_met(share).then_some((seconds, share))
}

fn evaluation_dominates(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let (seconds, share) = share_of_trial(
        case,
        case.row.evaluation_seconds,
        EVALUATION_WAIT,
        EVALUATION_SHARE,
    )?;
    let says = format!(
        "evaluation took {} of the trial ({})",
        Fraction(share),
        Seconds(seconds)
    );
    // Where answers are generated, they take most of the time.
    let next = match case.row.valid_bleu4 {
        Some(_) => Next::new().set("train.evaluate.generate.rows", 20_u64),
        None => Next::new().vary("train.evaluate.batch_multiple", [1_u64, 4]),
    };
    Some(RuleMatch::new(says, Weight::Costs(share), next))
}

fn checkpoints_dominate(case: &TrialContext<'_>) -> Option<RuleMatch> {
    let (seconds, share) = share_of_trial(
        case,
        case.row.checkpoint_seconds,
        CHECKPOINT_WAIT,
        CHECKPOINT_SHARE,
    )?;
    let says = format!(
        "writing checkpoints took {} of the trial ({})",
        Fraction(share),
        Seconds(seconds)
    );
    let every = (case.row.steps.unwrap_or(CHECKPOINTS) / CHECKPOINTS).max(1);
    Some(RuleMatch::new(
        says,
        Weight::Costs(share),
        Next::new().set("train.checkpoint.every_steps", every),
    ))
}
