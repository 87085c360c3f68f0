//! Explains the speed of trials: rules are applied to rows of `trials.csv` and return findings,
//! each with its evidence, the threshold and its source, its meaning, and the next experiment.
//! Pure: nothing is measured or read here, and pages are printed elsewhere.

mod batch;
mod crowds;
mod device;
mod disturbance;
mod evidence;
mod learning;
mod loading;
mod memory;
mod next;
mod pauses;
mod rule;
mod run_context;
mod trial_context;

pub(super) use disturbance::apart as energies_apart;
pub use evidence::{Bound, Evidence, Threshold, ThresholdUnit};
use kiln_core::record::{TrialRow, TrialTable};
pub use rule::{Rule, RuleFinding, Weight};
use run_context::RunContext;
use trial_context::TrialContext;

use super::{
    points::points,
    subject::{AskedRun, Subject},
};

/// Every rule. The order is that of `docs/diagnosis.md`, and of findings that weigh the same.
pub const RULES: [&Rule; 28] = [
    &memory::OOM,
    &memory::MEMORY_GROWING,
    &memory::MEMORY_NEARLY_FULL,
    &memory::ALLOCATOR_THRASHING,
    &loading::DISK_BOUND,
    &loading::WORKERS_STARVED,
    &loading::DATA_BOUND,
    &loading::DATA_WAIT,
    &loading::TOO_MANY_WORKERS,
    &loading::TRANSFER_BOUND,
    &batch::LAUNCH_BOUND,
    &batch::BATCH_TOO_SMALL,
    &device::LOW_UTILIZATION,
    &device::COMMUNICATION_BOUND,
    &learning::UNKNOWN_TOKENS,
    &learning::LOSS_ROSE,
    &learning::VALIDATION_ABOVE_TRAINING,
    &learning::NO_BETTER_THAN_BASELINE,
    &pauses::EVALUATION_DOMINATES,
    &pauses::CHECKPOINTS_DOMINATE,
    &disturbance::THROTTLED,
    &disturbance::POWER_CAPPED,
    &disturbance::SHARED_DEVICE,
    &disturbance::BUSY_HOST,
    &disturbance::MEMORY_ERRORS,
    &disturbance::ENERGIES_APART,
    &device::CPU_ONLY_BY_ACCIDENT,
    &batch::MEMORY_TO_SPARE,
];

/// Returns the findings on the last attempts of all trials, most costly first.
pub fn diagnose(table: &TrialTable) -> Vec<RuleFinding> {
    diagnose_asked(table, AskedRun::default())
}

/// Returns the findings on a run whose experiment may be known, most costly first.
pub(super) fn diagnose_run(subject: Subject<'_>) -> Vec<RuleFinding> {
    diagnose_asked(subject.table, subject.asked())
}

/// Returns the findings on a run of which `asked` is known, most costly first.
pub(super) fn diagnose_asked(table: &TrialTable, asked: AskedRun) -> Vec<RuleFinding> {
    let run = points(table);
    // The next experiment of a search is not a search.
    let around = RunContext::new(&table.axes, &run)
        .searched(asked.is_search)
        .with_cpu_chosen(asked.is_on_cpu);
    let rows = run
        .iter()
        .enumerate()
        .flat_map(|(place, point)| point.rows.iter().map(move |row| (*row, place)));
    let mut findings: Vec<RuleFinding> = rows
        .flat_map(|(row, place)| of_trial(row, place, &around))
        .collect();
    let place = |finding: &RuleFinding| RULES.iter().position(|rule| rule.name == finding.rule);
    findings.sort_by(|one, other| {
        let by_weight = one.weight.compare(&other.weight);
        let by_rule = by_weight.then_with(|| place(one).cmp(&place(other)));
        by_rule.then_with(|| one.compare(other))
    });
    findings
}

/// The findings of one trial, whose point stands at this place, without those that another of its
/// findings explains.
fn of_trial(row: &TrialRow, place: usize, around: &RunContext<'_>) -> Vec<RuleFinding> {
    let case = TrialContext::new(row, place, around);
    let fired: Vec<(&Rule, rule::RuleMatch)> = RULES
        .iter()
        .filter_map(|rule| Some((*rule, (rule.find)(&case)?)))
        .collect();
    let explained: Vec<&str> = fired
        .iter()
        .flat_map(|(rule, _)| rule.explains.iter().copied())
        .collect();
    let left = fired
        .into_iter()
        .filter(|(rule, _)| !explained.contains(&rule.name));
    left.map(|(rule, found)| RuleFinding {
        rule: rule.name,
        trial: row.trial.clone(),
        point: case.point.name(around.axes),
        is_fault: rule.is_fault,
        weight: found.weight,
        degree: found.degree,
        busy: found.busy,
        says: found.says,
        means: rule.means,
        refuted_by: rule.refuted_by,
        evidence: case
            .evidence(rule.columns)
            .into_iter()
            .chain(found.more)
            .collect(),
        thresholds: rule.thresholds,
        next_yaml: found.next.yaml(&case),
    })
    .collect()
}

#[cfg(test)]
mod tests;
