//! Selects the next trial and its slot from the waiting trials and the free slots. A slot is the
//! device that a trial runs on, or the devices that share its batches. Pure.

use std::collections::{HashMap, VecDeque};

use kiln_core::plan::Trial;

use super::devices::DeviceRequest;

/// The waiting trials, in order, with the rules for their start.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<usize>,
    /// Slots that each device request may use.
    pools: Vec<(DeviceRequest, Vec<usize>)>,
    /// The slot of each block, once it has one. Empty if there is one block only.
    blocks: Option<HashMap<u64, usize>>,
}

impl Queue {
    /// `keep_blocks`: whether there is more than one block, each of which stays on one slot.
    pub(super) fn new(
        waiting: Vec<usize>,
        pools: Vec<(DeviceRequest, Vec<usize>)>,
        keep_blocks: bool,
    ) -> Self {
        Self {
            waiting: waiting.into(),
            pools,
            blocks: keep_blocks.then(HashMap::new),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether all that wait belong to blocks of slots that are not free.
    pub(super) fn waits_for_others(&self, trials: &[Trial], free: &[bool]) -> bool {
        let is_bound_elsewhere = |index: &usize| {
            let blocks = self.blocks.as_ref();
            let slot = blocks.and_then(|blocks| blocks.get(&trials[*index].block));
            slot.is_some_and(|slot| !free[*slot])
        };
        self.waiting.iter().all(is_bound_elsewhere)
    }

    /// Assigns a block to the slot where it ran before.
    pub(super) fn bind_block(&mut self, block: u64, slot: usize) {
        if let Some(blocks) = &mut self.blocks {
            blocks.entry(block).or_insert(slot);
        }
    }

    /// Puts a trial at the front of the queue.
    pub(super) fn again(&mut self, index: usize) {
        self.waiting.push_front(index);
    }

    /// Puts a trial at the end of the queue.
    pub(super) fn then(&mut self, index: usize) {
        self.waiting.push_back(index);
    }

    /// Whether a trial waits.
    pub(super) fn has(&self, index: usize) -> bool {
        self.waiting.contains(&index)
    }

    /// The waiting trials of a block; `None` if there is one block only.
    pub(super) fn of_block(&self, trials: &[Trial], block: u64) -> Option<Vec<usize>> {
        self.blocks.as_ref()?;
        let waiting = self.waiting.iter().copied();
        let of_block = waiting.filter(|index| trials[*index].block == block);
        Some(of_block.collect())
    }

    /// Takes all waiting trials out of the queue.
    pub(super) fn take_all(&mut self) -> Vec<usize> {
        self.waiting.drain(..).collect()
    }

    /// Removes waiting trials.
    pub(super) fn forget(&mut self, is_gone: impl Fn(usize) -> bool) {
        self.waiting.retain(|index| !is_gone(*index));
    }

    /// Takes the first trial that may start on a free slot. While trials of one device request run,
    /// those of another wait: a CPU trial beside a GPU trial would disturb both.
    pub(super) fn next(
        &mut self,
        trials: &[Trial],
        free: &[bool],
        running: Option<&DeviceRequest>,
    ) -> Option<(usize, usize)> {
        // Thousands may wait, and none of them may start.
        if !free.contains(&true) {
            return None;
        }
        let wanted = match running {
            Some(request) => request.clone(),
            None => DeviceRequest::of(&trials[*self.waiting.front()?]),
        };
        let found = self
            .waiting
            .iter()
            .enumerate()
            .take_while(|(_, index)| DeviceRequest::of(&trials[**index]) == wanted);
        let (at, slot) = found
            .filter_map(|(at, index)| Some((at, self.slot(&trials[*index], free)?)))
            .next()?;
        let index = self.waiting.remove(at)?;
        self.bind_block(trials[index].block, slot);
        Some((index, slot))
    }

    /// Removes a slot: it gets no more trials, and its blocks continue on other slots.
    pub(super) fn lose(&mut self, slot: usize) {
        self.pools
            .iter_mut()
            .for_each(|(_, pool)| pool.retain(|known| *known != slot));
        self.blocks
            .iter_mut()
            .for_each(|blocks| blocks.retain(|_, used| *used != slot));
    }

    /// The device request of a waiting trial for which no slot is left.
    pub(super) fn stranded(&self, trials: &[Trial]) -> Option<DeviceRequest> {
        let is_empty = |wanted: &DeviceRequest| {
            self.pools
                .iter()
                .any(|(request, pool)| request == wanted && pool.is_empty())
        };
        self.waiting
            .iter()
            .map(|index| DeviceRequest::of(&trials[*index]))
            .find(is_empty)
    }

    /// Adds a slot for a device request.
    pub(super) fn add_slot(&mut self, wanted: &DeviceRequest, slot: usize) {
        self.pools
            .iter_mut()
            .filter(|(request, _)| request == wanted)
            .for_each(|(_, pool)| pool.push(slot));
    }

    fn slot(&self, trial: &Trial, free: &[bool]) -> Option<usize> {
        let pool = self
            .pools
            .iter()
            .find(|(wanted, _)| *wanted == DeviceRequest::of(trial))
            .map(|(_, pool)| pool.as_slice())
            .unwrap_or_default();
        let bound = self
            .blocks
            .as_ref()
            .and_then(|blocks| blocks.get(&trial.block))
            .filter(|slot| pool.contains(slot));
        match bound {
            Some(slot) => free[*slot].then_some(*slot),
            None => {
                let load = |slot: &usize| {
                    self.blocks.as_ref().map_or(0, |blocks| {
                        blocks.values().filter(|used| *used == slot).count()
                    })
                };
                pool.iter()
                    .copied()
                    .filter(|slot| free[*slot])
                    .min_by_key(load)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_core::{
        plan::TrialId,
        spec::{DeviceName, Devices, Engine},
    };

    fn trial(repeat: u64, devices: DeviceName) -> Trial {
        Trial {
            id: TrialId(format!("{repeat}")),
            number: 1,
            point: 0,
            repeat,
            block: repeat + 1,
            axes: Vec::new(),
            model: serde_yaml::from_str("{kind: matmul, size: 8}").unwrap(),
            data: Default::default(),
            train: Default::default(),
            engine: Engine::Libtorch,
            devices: Devices::Named(devices),
            devices_per_trial: 1,
            parameters: None,
            flops_per_sample: None,
            fallback_of: None,
            origin: None,
            effective_batch_size: 1,
            steps: None,
        }
    }

    fn all() -> DeviceRequest {
        DeviceRequest {
            devices: Devices::Named(DeviceName::All),
            engine: Engine::Libtorch,
            each: 1,
        }
    }

    #[test]
    fn a_block_stays_on_one_device_and_blocks_spread() {
        let trials: Vec<Trial> = [0, 0, 1, 1]
            .map(|repeat| trial(repeat, DeviceName::All))
            .to_vec();
        let mut queue = Queue::new(vec![0, 1, 2, 3], vec![(all(), vec![0, 1])], true);
        assert_eq!(queue.next(&trials, &[true, true], None), Some((0, 0)));
        assert_eq!(
            queue.next(&trials, &[false, true], Some(&all())),
            Some((2, 1))
        );
        assert_eq!(queue.next(&trials, &[false, false], Some(&all())), None);
        assert_eq!(
            queue.next(&trials, &[false, true], Some(&all())),
            Some((3, 1))
        );
        assert_eq!(queue.next(&trials, &[true, true], None), Some((1, 0)));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_free_slot_waits_for_nobody_while_all_that_wait_are_bound_to_others() {
        let trials: Vec<Trial> = [0, 0, 1]
            .map(|repeat| trial(repeat, DeviceName::All))
            .to_vec();
        let mut queue = Queue::new(vec![0, 1], vec![(all(), vec![0, 1])], true);
        let waits = |queue: &Queue, free| queue.waits_for_others(&trials, free);
        assert!(!waits(&queue, &[true, true]), "the first may begin");
        assert_eq!(queue.next(&trials, &[true, true], None), Some((0, 0)));
        assert!(waits(&queue, &[false, true]), "the second stays on slot 0");
        assert!(!waits(&queue, &[true, true]));
        queue.then(2);
        assert!(!waits(&queue, &[false, true]), "another block may begin");
        let single = Queue::new(vec![0], vec![(all(), vec![0, 1])], false);
        assert!(!waits(&single, &[false, true]));
        assert!(waits(&Queue::new(Vec::new(), Vec::new(), false), &[true]));
    }

    #[test]
    fn the_waiting_trials_of_a_block_are_found_where_there_are_several_blocks() {
        let trials: Vec<Trial> = [0, 1, 0, 1, 0]
            .map(|repeat| trial(repeat, DeviceName::All))
            .to_vec();
        let of = |has_blocks| {
            let pools = vec![(all(), vec![0])];
            let mut queue = Queue::new(vec![0, 1, 2, 3, 4], pools, has_blocks);
            assert_eq!(queue.next(&trials, &[true], None), Some((0, 0)));
            let found = queue.of_block(&trials, 1);
            assert_eq!(queue.take_all(), [1, 2, 3, 4]);
            assert!(queue.is_empty());
            found
        };
        assert_eq!(of(true), Some(vec![2, 4]));
        assert_eq!(of(false), None);
    }

    #[test]
    fn a_single_block_uses_every_device() {
        let trials: Vec<Trial> = (0..3).map(|_| trial(0, DeviceName::All)).collect();
        let mut queue = Queue::new(vec![0, 1, 2], vec![(all(), vec![0, 1])], false);
        assert_eq!(queue.next(&trials, &[true, true], None), Some((0, 0)));
        assert_eq!(
            queue.next(&trials, &[false, true], Some(&all())),
            Some((1, 1))
        );
        queue.again(0);
        assert_eq!(
            queue.next(&trials, &[true, false], Some(&all())),
            Some((0, 0))
        );
    }

    #[test]
    fn a_lost_slot_gets_no_trial_and_its_block_goes_on_elsewhere() {
        let trials: Vec<Trial> = [0, 0, 0]
            .map(|repeat| trial(repeat, DeviceName::All))
            .to_vec();
        let mut queue = Queue::new(vec![0, 1, 2], vec![(all(), vec![0, 1])], true);
        assert_eq!(queue.next(&trials, &[true, true], None), Some((0, 0)));
        queue.lose(0);
        assert_eq!(
            (
                queue.stranded(&trials),
                queue.next(&trials, &[true, true], None)
            ),
            (None, Some((1, 1)))
        );
        queue.lose(1);
        assert_eq!(queue.next(&trials, &[true, true], None), None);
        assert_eq!(queue.stranded(&trials), Some(all()));
        queue.add_slot(&all(), 2);
        assert_eq!(
            (
                queue.stranded(&trials),
                queue.next(&trials, &[false, false, true], None)
            ),
            (None, Some((2, 2)))
        );
    }

    #[test]
    fn trials_of_different_requests_do_not_run_together() {
        let trials = vec![trial(0, DeviceName::All), trial(0, DeviceName::Cpu)];
        let cpu = DeviceRequest::of(&trials[1]);
        let mut queue = Queue::new(vec![0, 1], vec![(all(), vec![0]), (cpu, vec![1])], false);
        assert_eq!(queue.next(&trials, &[true, true], None), Some((0, 0)));
        assert_eq!(queue.next(&trials, &[false, true], Some(&all())), None);
        assert_eq!(queue.next(&trials, &[true, true], None), Some((1, 1)));
    }
}
