//! Text as samples: windows of `seq_len + 1` tokens for training, all of the validation text for
//! evaluation.

use std::sync::Arc;

use kiln_core::kinds::samples;

use super::{Draw, HostBatch, OTHER_KIND, Source};

/// Training samples: sample `k` is the `seq_len + 1` tokens from `k × stride`.
#[derive(Clone, Debug)]
pub struct TextWindows {
    pub tokens: Arc<Vec<u32>>,
    pub seq_len: usize,
    pub stride: usize,
}

impl Source for TextWindows {
    fn sample_count(&self) -> u64 {
        samples::sample_count(
            self.tokens.len() as u64,
            self.seq_len as u64,
            self.stride as u64,
        )
    }

    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), self.seq_len);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let start = draw.sample as usize * self.stride;
        let window = self
            .tokens
            .get(start..start + self.seq_len + 1)
            .ok_or("it lies past the end of the text")?;
        batch.text_mut().ok_or(OTHER_KIND)?.fill_row(row, window);
        Ok(())
    }
}

/// The validation text in windows of `seq_len` that do not overlap, so that every token but the
/// first is a target exactly once. The last window is padded with ignored targets.
#[derive(Clone, Debug)]
pub struct ValidationWindows {
    pub tokens: Arc<Vec<u32>>,
    pub seq_len: usize,
}

impl Source for ValidationWindows {
    fn sample_count(&self) -> u64 {
        samples::evaluation_windows(self.tokens.len() as u64, self.seq_len as u64)
    }

    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        batch.lay_out_text(draws.len(), self.seq_len);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let start = draw.sample as usize * self.seq_len;
        let end = (start + self.seq_len + 1).min(self.tokens.len());
        let window = self
            .tokens
            .get(start..end)
            .ok_or("it lies past the end of the text")?;
        batch.text_mut().ok_or(OTHER_KIND)?.fill_row(row, window);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{EvaluationSchedule, TextSamples, schedule::Schedule},
        engine::IGNORED_TARGET,
    };

    fn text(batch: &mut HostBatch) -> TextSamples {
        batch.text_mut().unwrap().clone()
    }

    fn draw(sample: u64) -> Draw {
        Draw { epoch: 0, sample }
    }

    #[test]
    fn windows_start_every_stride_and_the_last_one_still_has_its_target() {
        let windows = TextWindows {
            tokens: Arc::new((0..10).collect()),
            seq_len: 3,
            stride: 2,
        };
        assert_eq!(windows.sample_count(), 4); // starts 0, 2, 4, 6; 6 + 4 tokens end the text
        let mut batch = HostBatch::default();
        windows.lay_out(&[draw(3)], &mut batch);
        windows.write(draw(3), 0, &mut batch).unwrap();
        assert_eq!(
            (text(&mut batch).inputs, text(&mut batch).targets),
            (vec![6, 7, 8], vec![7, 8, 9])
        );
        assert!(windows.write(draw(4), 0, &mut batch).is_err());
        let short = TextWindows {
            tokens: Arc::new(vec![1, 2, 3]),
            seq_len: 3,
            stride: 1,
        };
        assert_eq!(short.sample_count(), 0);
    }

    /// The batches of an evaluation over the tokens 0, 1, 2, ….
    fn evaluation(
        tokens: u32,
        seq_len: usize,
        batch_size: u64,
        is_contiguous: bool,
    ) -> Vec<TextSamples> {
        let windows = ValidationWindows {
            tokens: Arc::new((0..tokens).collect()),
            seq_len,
        };
        let schedule = EvaluationSchedule {
            samples: windows.sample_count(),
            batch_size,
            is_contiguous,
        };
        let mut batch = HostBatch::default();
        let batches = (0..schedule.total_batches()).map(|number| {
            let draws = schedule.draws(number);
            windows.lay_out(&draws, &mut batch);
            draws
                .into_iter()
                .enumerate()
                .for_each(|(row, draw)| windows.write(draw, row, &mut batch).unwrap());
            assert!(batch.rows > 0);
            text(&mut batch)
        });
        batches.collect()
    }

    const CASES: [(u32, usize, u64); 8] = [
        (100, 8, 3),
        (97, 8, 4),
        (9, 8, 4),
        (10, 8, 1),
        (2, 8, 5),
        (81, 8, 4),
        (1, 8, 2),
        (0, 8, 2),
    ];

    #[test]
    fn evaluation_covers_every_target_exactly_once_whatever_the_remainder() {
        for (tokens, seq_len, batch_size) in CASES {
            let mut seen = Vec::new();
            for batch in evaluation(tokens, seq_len, batch_size, false) {
                for (input, target) in batch
                    .inputs
                    .iter()
                    .zip(&batch.targets)
                    .filter(|(_, target)| **target != IGNORED_TARGET)
                {
                    assert_eq!(input + 1, *target);
                    seen.push(*target);
                }
            }
            assert_eq!(
                seen,
                (1..i64::from(tokens)).collect::<Vec<i64>>(),
                "{tokens} tokens"
            );
        }
    }

    #[test]
    fn contiguous_rows_go_on_from_batch_to_batch_and_cover_every_target_once() {
        for (tokens, seq_len, batch_size) in CASES {
            let mut rows: Vec<Vec<i64>> = vec![Vec::new(); batch_size as usize];
            for batch in evaluation(tokens, seq_len, batch_size, true) {
                for (row, targets) in batch.targets.chunks(seq_len).enumerate() {
                    rows[row].extend(targets.iter().filter(|target| **target != IGNORED_TARGET));
                }
            }
            assert!(
                rows.iter()
                    .all(|row| row.is_sorted_by(|one, next| one + 1 == *next)),
                "{rows:?}"
            );
            assert_eq!(
                rows.concat(),
                (1..i64::from(tokens)).collect::<Vec<i64>>(),
                "{tokens} tokens"
            );
        }
    }
}
