//! The parts of a plan that workers take: what stays on one device.

use std::collections::BTreeMap;

use super::{Trial, TrialId};

/// The trials of each ticket, in plan order. A ticket is a block, whose trials run one after
/// another on one device; without blocks it is a single trial.
pub fn tickets(trials: &[Trial]) -> Vec<Vec<TrialId>> {
    let has_blocks = trials.iter().any(|trial| trial.block > 1);
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    let mut tickets: Vec<Vec<TrialId>> = Vec::new();
    for trial in trials {
        let known = places.get(&trial.block).filter(|_| has_blocks);
        match known {
            Some(place) => tickets[*place].push(trial.id.clone()),
            None => {
                places.insert(trial.block, tickets.len());
                tickets.push(vec![trial.id.clone()]);
            }
        }
    }
    tickets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::expand, spec};

    fn planned(sweep: &str) -> Vec<Vec<u64>> {
        let text = format!(
            "kiln: 1\nname: x\nmodel: {{kind: matmul, size: 8}}\ntrain: {{steps: 1}}\n{sweep}"
        );
        let experiment = spec::read_yaml(&text).unwrap();
        let plan = expand(&experiment, &|_| None).unwrap();
        let number = |id: &TrialId| plan.trials.iter().position(|trial| trial.id == *id);
        tickets(&plan.trials)
            .iter()
            .map(|ids| {
                ids.iter()
                    .map(|id| number(id).unwrap() as u64 + 1)
                    .collect()
            })
            .collect()
    }

    #[test]
    fn a_ticket_is_a_block_a_round_of_repeats_or_a_single_trial() {
        let grid = "grid: {model.size: [8, 16, 32], train.batch_size: [1, 2]}";
        assert_eq!(planned(&format!("sweep: {{{grid}}}")).len(), 6);
        assert_eq!(
            planned(&format!("sweep: {{{grid}, repeats: 2}}")),
            [vec![1, 2, 3, 4, 5, 6], vec![7, 8, 9, 10, 11, 12]]
        );
        let together = planned(&format!(
            "sweep: {{{grid}, repeats: 2, together: [model.size]}}"
        ));
        assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [3; 4]);
        let listed = planned(&format!("sweep: {{{grid}, repeats: 2, order: listed}}"));
        assert_eq!(
            listed[0],
            [1, 3, 5, 7, 9, 11],
            "each point's repeats stand together"
        );
    }
}
