//! Prompts and responses as samples: one row each, padded to the longest of its batch.

use std::sync::Arc;

use kiln_data::pairs::Pair;

use super::{
    BatchSchedule, Draw, HostBatch, LONGEST_STEPS, OTHER_KIND, Source,
    schedule::{Schedule, TrainingOrder},
};

/// Responses that are filled up to the same multiple of this stand together, whatever
/// `length_bucket` is, so that it changes no step.
const BLOCK: usize = 32;

/// As many tokens as a row may have (`max_prompt_tokens`, `max_response_tokens`).
const LONGEST: u64 = 1 << 20;

/// Rows of prompts and responses.
#[derive(Clone, Debug)]
pub struct PairRows {
    rows: Arc<Vec<Pair>>,
    /// The row that each sample is; the sample's own number if not given.
    order: Option<Vec<usize>>,
    pad: i64,
    /// Lengths are filled up to a multiple of this.
    length_bucket: usize,
    /// Whether a training's first steps are filled up to the longest rows of all.
    is_longest_first: bool,
}

impl PairRows {
    /// Sample `k` is row `k`.
    pub fn new(rows: Arc<Vec<Pair>>, pad: u32, length_bucket: u64) -> Self {
        Self {
            rows,
            order: None,
            pad: i64::from(pad),
            length_bucket: (length_bucket as usize).max(1),
            is_longest_first: false,
        }
    }

    /// With the first steps of a training filled up to the longest prompt and the longest response
    /// of all rows.
    pub fn longest_first(self, is_longest_first: bool) -> Self {
        Self {
            is_longest_first,
            ..self
        }
    }

    /// Samples of like lengths follow one another.
    pub fn sorted(rows: Arc<Vec<Pair>>, pad: u32, length_bucket: u64) -> Self {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|row| sort_key(&rows[*row]));
        Self {
            order: Some(order),
            ..Self::new(rows, pad, length_bucket)
        }
    }

    /// One key per sample: samples with close keys have prompts and responses of similar lengths.
    pub fn sort_keys(&self) -> Vec<u64> {
        (0..self.sample_count())
            .filter_map(|sample| self.row(sample))
            .map(sort_key)
            .collect()
    }

    /// Share of the tokens of a schedule's first epoch that only fill rows up, prompts and
    /// responses together.
    pub fn padding_fraction(&self, schedule: &BatchSchedule) -> f64 {
        let order = TrainingOrder::new(schedule.clone());
        let (mut filled_up, mut kept) = (0, 0);
        for batch in 0..schedule.batches_per_epoch() {
            let draws = order.draws(batch);
            let is_first = batch < LONGEST_STEPS * schedule.grad_accumulation;
            let (prompt_len, response_len) = if is_first {
                self.first_lengths(&draws)
            } else {
                self.lengths(&draws)
            };
            filled_up += draws.len() * (prompt_len + response_len);
            kept += draws
                .iter()
                .filter_map(|draw| self.row(draw.sample))
                .map(|row| row.prompt.len() + row.response.len())
                .sum::<usize>();
        }
        1.0 - kept as f64 / filled_up.max(1) as f64
    }

    /// The lengths to which the prompts and the responses of some samples are padded.
    fn lengths(&self, draws: &[Draw]) -> (usize, usize) {
        self.longest(draws.iter().filter_map(|draw| self.row(draw.sample)))
    }

    /// The same in the first steps.
    fn first_lengths(&self, draws: &[Draw]) -> (usize, usize) {
        if self.is_longest_first {
            self.longest(self.rows.iter())
        } else {
            self.lengths(draws)
        }
    }

    /// The longest prompt and the longest response of some rows, filled up.
    fn longest<'r>(&self, rows: impl Iterator<Item = &'r Pair>) -> (usize, usize) {
        let (prompt, response) = rows.fold((0, 0), |(prompt, response), row| {
            (
                prompt.max(row.prompt.len()),
                response.max(row.response.len()),
            )
        });
        (
            prompt.next_multiple_of(self.length_bucket),
            response.next_multiple_of(self.length_bucket),
        )
    }

    fn row(&self, sample: u64) -> Option<&Pair> {
        let sample = usize::try_from(sample).ok()?;
        match &self.order {
            Some(order) => self.rows.get(*order.get(sample)?),
            None => self.rows.get(sample),
        }
    }
}

/// Blocks of responses first, then prompts, up in one block and down in the next, so that neighbors
/// across the edge are alike too; then responses. Measured on ChatLM's rows in batches of 12: 22 %
/// padding, 40 % where rows are sorted by all their tokens, 59 % unsorted.
fn sort_key(row: &Pair) -> u64 {
    let (prompt, response) = (row.prompt.len() as u64, row.response.len() as u64);
    let block = response.div_ceil(BLOCK as u64);
    let prompt = if block.is_multiple_of(2) {
        LONGEST - prompt.min(LONGEST)
    } else {
        prompt.min(LONGEST)
    };
    (block * (LONGEST + 1) + prompt) * (LONGEST + 1) + response.min(LONGEST)
}

impl Source for PairRows {
    fn sample_count(&self) -> u64 {
        self.rows.len() as u64
    }

    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        let (prompt_len, response_len) = self.lengths(draws);
        batch.lay_out_pairs(draws.len(), prompt_len, response_len, self.pad);
    }

    fn lay_out_first(&self, draws: &[Draw], batch: &mut HostBatch) {
        let (prompt_len, response_len) = self.first_lengths(draws);
        batch.lay_out_pairs(draws.len(), prompt_len, response_len, self.pad);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let pair = self.row(draw.sample).ok_or("it lies past the last row")?;
        batch
            .pairs_mut()
            .ok_or(OTHER_KIND)?
            .fill_row(row, &pair.prompt, &pair.response);
        Ok(())
    }

    fn counted_targets(&self, sample: u64) -> Option<u64> {
        self.row(sample).map(|row| row.response.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kiln_core::kinds::data::{PairCounts, Sampling};

    use super::*;
    use crate::{
        data::{BatchLoader, EvaluationSchedule, LoaderOptions, PairSamples, batch::counted},
        engine::IGNORED_TARGET,
    };

    const END: u32 = 1;

    /// A row of tokens that are 10 × its number and more.
    fn row(number: u32, prompt: u32, response: u32) -> Pair {
        let ids = |count: u32| {
            (0..count - 1)
                .map(|at| 10 * number + at % 10)
                .chain([END])
                .collect()
        };
        Pair {
            prompt: ids(prompt),
            response: ids(response),
            prompt_text: String::new(),
            response_text: String::new(),
        }
    }

    /// Lengths as they occur: most are short, some long.
    fn rows(count: u32) -> Arc<Vec<Pair>> {
        let length = |number: u32, factor: u32| 2 + (number * factor % 16) * (number * factor % 13);
        Arc::new(
            (0..count)
                .map(|number| row(number, length(number, 7), length(number, 11)))
                .collect(),
        )
    }

    fn schedule(
        rows: &PairRows,
        batch_size: u64,
        grad_accumulation: u64,
        is_sorted: bool,
    ) -> BatchSchedule {
        let count = rows.sample_count();
        BatchSchedule {
            source_samples: count,
            epoch_samples: count,
            batch_size,
            grad_accumulation,
            total_steps: 2 * (count / (batch_size * grad_accumulation)),
            sampling: Sampling::Shuffled,
            seed: 5,
            sort_keys: is_sorted.then(|| Arc::new(rows.sort_keys())),
        }
    }

    fn made(rows: &PairRows, schedule: BatchSchedule) -> Vec<(PairSamples, Option<u64>)> {
        let options = LoaderOptions {
            num_workers: 0,
            prefetch: 1,
            persistent_workers: true,
            synthetic: false,
        };
        let mut loader = BatchLoader::new(Arc::new(rows.clone()), schedule, options);
        let total = loader.total_batches();
        let batch = |_| {
            let batch = loader.next_batch().unwrap();
            (batch.pairs().unwrap().clone(), batch.step_targets)
        };
        (0..total).map(batch).collect()
    }

    /// The prompts of a batch as their rows' numbers.
    fn numbers(batch: &PairSamples) -> Vec<i64> {
        batch
            .prompts
            .chunks(batch.prompt_len)
            .map(|prompt| prompt[0] / 10)
            .collect()
    }

    #[test]
    fn a_batch_is_filled_up_to_its_longest_row_in_buckets() {
        let pairs = PairRows::new(Arc::new(vec![row(2, 3, 2), row(3, 2, 5)]), 0, 4);
        let mut batch = HostBatch::default();
        let draws = [1, 0].map(|sample| Draw { epoch: 0, sample });
        pairs.lay_out(&draws, &mut batch);
        draws
            .into_iter()
            .enumerate()
            .for_each(|(row, draw)| pairs.write(draw, row, &mut batch).unwrap());
        assert_eq!((batch.counted_targets(), batch.tokens()), (7, 12));
        let mut lengths = PairCounts::default();
        lengths.add(2, 5);
        lengths.add(3, 2);
        assert_eq!(batch.pair_counts(), lengths);
        let ignored = IGNORED_TARGET;
        let expected = PairSamples {
            prompts: vec![30, 1, 0, 0, 20, 21, 1, 0],
            prompt_lengths: vec![2, 3],
            decoder_inputs: vec![0, 30, 31, 32, 33, 0, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0],
            targets: vec![
                30, 31, 32, 33, 1, ignored, ignored, ignored, 20, 1, ignored, ignored, ignored,
                ignored, ignored, ignored,
            ],
            prompt_len: 4,
            response_len: 8,
            pad: 0,
        };
        assert_eq!(batch.pairs(), Some(&expected));
        pairs.lay_out(&draws[1..], &mut batch);
        pairs.write(draws[1], 0, &mut batch).unwrap();
        let used_again = batch.pairs().unwrap();
        assert_eq!(
            (used_again.prompts.as_slice(), used_again.response_len),
            ([20, 21, 1, 0].as_slice(), 4)
        );
        assert!(
            pairs
                .write(
                    Draw {
                        epoch: 0,
                        sample: 2
                    },
                    0,
                    &mut batch
                )
                .is_err()
        );
    }

    #[test]
    fn a_step_is_the_same_rows_however_it_is_divided() {
        let pairs = PairRows::new(rows(500), 0, 32);
        let steps = |batch_size, grad_accumulation| {
            let batches = made(
                &pairs,
                schedule(&pairs, batch_size, grad_accumulation, true),
            );
            let of_step = |batches: &[(PairSamples, Option<u64>)]| {
                let targets: u64 = batches
                    .iter()
                    .map(|(batch, _)| counted(&batch.targets))
                    .sum();
                assert!(
                    batches
                        .iter()
                        .all(|(_, step_targets)| *step_targets == Some(targets)),
                    "a batch knows the targets of its step"
                );
                batches
                    .iter()
                    .flat_map(|(batch, _)| numbers(batch))
                    .collect::<Vec<i64>>()
            };
            batches
                .chunks(grad_accumulation as usize)
                .map(of_step)
                .collect::<Vec<Vec<i64>>>()
        };
        let whole = steps(8, 1);
        assert_eq!(whole.len(), 124);
        assert!(whole == steps(4, 2) && whole == steps(2, 4));
        for epoch in whole.chunks(62) {
            let rows: BTreeSet<i64> = epoch.concat().into_iter().collect();
            assert_eq!(
                rows.len(),
                496,
                "each row at most once, and only what fills no step is left out"
            );
        }
        assert_ne!(whole[..62], whole[62..]);
    }

    #[test]
    fn sorted_rows_need_less_padding_and_the_bucket_changes_no_step() {
        let padding = |is_sorted, bucket| {
            let pairs = PairRows::new(rows(2000), 0, bucket);
            let schedule = schedule(&pairs, 12, 4, is_sorted);
            let batches = &made(&pairs, schedule.clone())[..schedule.batches_per_epoch() as usize];
            let kept: i64 = batches
                .iter()
                .map(|(batch, _)| {
                    batch.prompt_lengths.iter().sum::<i64>() + counted(&batch.targets) as i64
                })
                .sum();
            let all: usize = batches
                .iter()
                .map(|(batch, _)| batch.prompts.len() + batch.targets.len())
                .sum();
            let found = pairs.padding_fraction(&schedule);
            assert!((found - (1.0 - kept as f64 / all as f64)).abs() < 1e-12);
            assert!(
                batches
                    .iter()
                    .all(|(batch, _)| batch.prompt_len.is_multiple_of(bucket as usize))
            );
            (
                found,
                batches
                    .iter()
                    .map(|(batch, _)| numbers(batch))
                    .collect::<Vec<_>>(),
            )
        };
        let (sorted, exact, unsorted) = (padding(true, 32), padding(true, 1), padding(false, 32));
        assert!(
            sorted.0 < 0.6 * unsorted.0 && exact.0 < sorted.0,
            "{} {} {}",
            sorted.0,
            exact.0,
            unsorted.0
        );
        assert!(sorted.1 == exact.1 && sorted.1 != unsorted.1);
    }

    #[test]
    fn longest_first_fills_up_two_steps_and_changes_no_row() {
        let usual = PairRows::new(rows(500), 0, 8);
        let first = usual.clone().longest_first(true);
        let schedule = schedule(&usual, 4, 3, true);
        let (usual_batches, batches) = (
            made(&usual, schedule.clone()),
            made(&first, schedule.clone()),
        );
        let longest = |length: fn(&Pair) -> usize| {
            usual
                .rows
                .iter()
                .map(length)
                .max()
                .unwrap()
                .next_multiple_of(8)
        };
        let most = (
            longest(|row| row.prompt.len()),
            longest(|row| row.response.len()),
        );
        for (number, ((batch, targets), (other, same_targets))) in
            batches.iter().zip(&usual_batches).enumerate()
        {
            let filled_up = (batch.prompt_len, batch.response_len);
            assert_eq!(
                filled_up,
                if number < 6 {
                    most
                } else {
                    (other.prompt_len, other.response_len)
                },
                "batch {number}"
            );
            assert_eq!(
                (numbers(batch), &batch.prompt_lengths, targets),
                (numbers(other), &other.prompt_lengths, same_targets)
            );
        }
        assert!(
            usual_batches
                .iter()
                .all(|(batch, _)| (batch.prompt_len, batch.response_len) != most),
            "chance alone has no such batch"
        );
        assert!(first.padding_fraction(&schedule) > usual.padding_fraction(&schedule));
    }

    #[test]
    fn evaluation_takes_every_row_once_and_like_lengths_together() {
        let pairs = PairRows::sorted(rows(203), 0, 1);
        let schedule = EvaluationSchedule {
            samples: pairs.sample_count(),
            batch_size: 8,
            is_contiguous: false,
        };
        let (mut seen, mut laid_out) = (Vec::new(), 0);
        for batch in 0..schedule.total_batches() {
            let draws = schedule.draws(batch);
            seen.extend(
                draws
                    .iter()
                    .map(|draw| pairs.row(draw.sample).unwrap().prompt.clone()),
            );
            let (prompt, response) = pairs.lengths(&draws);
            laid_out += draws.len() * (prompt + response);
        }
        let kept: usize = pairs
            .rows
            .iter()
            .map(|row| row.prompt.len() + row.response.len())
            .sum();
        assert!(laid_out < 2 * kept, "{laid_out} for {kept}");
        let mut expected: Vec<Vec<u32>> = pairs.rows.iter().map(|row| row.prompt.clone()).collect();
        expected.sort();
        seen.sort();
        assert_eq!(seen, expected);
    }

    /// Needs the chatlm rows under `KILN_DATA`; `make test` skips tests with `real_data` in their
    /// name where there is none.
    #[test]
    fn real_data_has_the_padding_that_is_documented() {
        let folder = std::env::var_os("KILN_DATA")
            .expect("KILN_DATA names the folder with `chatlm-mini-chinese/`");
        let folder = std::path::absolute(folder).unwrap();
        let data = serde_yaml::from_str("{kind: chatlm}").unwrap();
        let loaded = kiln_data::pairs::load(&data, Some(&folder)).unwrap();
        let pairs = PairRows::new(Arc::new(loaded.train), loaded.tokens.pad(), 32);
        // `docs/data.md`: within a percentage point of what is said there, whatever the seed.
        for (batch_size, grad_accumulation, is_sorted, expected) in [
            (12, 4, true, 0.22),
            (12, 4, false, 0.59),
            (48, 1, true, 0.31),
            (48, 1, false, 0.66),
        ] {
            let found =
                pairs.padding_fraction(&schedule(&pairs, batch_size, grad_accumulation, is_sorted));
            assert!(
                (found - expected).abs() < 0.01,
                "{found} in batches of {batch_size}, sorted {is_sorted}"
            );
        }
    }
}
