//! Text as samples: windows of `seq_len + 1` tokens for training, all of the validation text for evaluation.

use std::sync::Arc;

use kiln::{
    catalog::{
        samples,
        text::{self, LoadedText},
    },
    plan::TrialFile,
};

use super::{HostBatch, Source};

/// Training samples: sample `k` is the `seq_len + 1` tokens from `k × stride`.
#[derive(Clone, Debug)]
pub struct TextWindows {
    pub tokens: Arc<Vec<u32>>,
    pub seq_len: usize,
    pub stride: usize,
}

impl Source for TextWindows {
    fn sample_count(&self) -> u64 {
        samples::sample_count(self.tokens.len() as u64, self.seq_len as u64, self.stride as u64)
    }

    fn seq_len(&self) -> usize {
        self.seq_len
    }

    fn write(&self, sample: u64, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let start = sample as usize * self.stride;
        let window = self.tokens.get(start..start + self.seq_len + 1).ok_or("it lies past the end of the text")?;
        batch.fill_row(row, window);
        Ok(())
    }
}

/// The validation text in windows of `seq_len` that do not overlap, so that every token but the first is a target exactly once. The
/// last window is padded with ignored targets, the last batch has fewer rows.
#[derive(Clone, Copy, Debug)]
pub struct EvaluationWindows<'a> {
    pub tokens: &'a [u32],
    pub seq_len: usize,
    /// Rows of every batch but the last.
    pub batch_size: usize,
    /// Whether each row goes on where the same row of the batch before ended; else the rows of a batch follow one another.
    pub is_contiguous: bool,
}

impl EvaluationWindows<'_> {
    /// Targets over all windows: every token but the first.
    pub fn target_count(&self) -> u64 {
        self.tokens.len().saturating_sub(1) as u64
    }

    fn window_count(&self) -> usize {
        samples::evaluation_windows(self.tokens.len() as u64, self.seq_len as u64) as usize
    }

    /// Batches that hold every window once.
    pub fn batch_count(&self) -> u64 {
        self.window_count().div_ceil(self.batch_size) as u64
    }

    /// The first rows have one window more where the windows do not divide evenly, so that the last batch lacks rows at its end.
    fn first_of_row(&self, row: usize) -> usize {
        let (all, rows) = (self.window_count(), self.batch_size.min(self.window_count()).max(1));
        row * (all / rows) + row.min(all % rows)
    }

    /// Fills batch `index`, below [`EvaluationWindows::batch_count`].
    pub fn fill(&self, index: u64, batch: &mut HostBatch) {
        let first = index as usize * self.batch_size;
        let rows = self.batch_size.min(self.window_count() - first);
        batch.reset(rows, self.seq_len);
        for row in 0..rows {
            let window = if self.is_contiguous { self.first_of_row(row) + index as usize } else { first + row };
            let start = window * self.seq_len;
            let end = (start + self.seq_len + 1).min(self.tokens.len());
            batch.fill_row(row, &self.tokens[start..end]);
        }
    }
}

/// Reads the text that the trial names.
pub(crate) fn load_text(file: &TrialFile) -> Result<LoadedText, String> {
    text::load(&file.data, file.data_folder.as_deref()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::IGNORED_TARGET;

    #[test]
    fn windows_start_every_stride_and_the_last_one_still_has_its_target() {
        let windows = TextWindows { tokens: Arc::new((0..10).collect()), seq_len: 3, stride: 2 };
        assert_eq!(windows.sample_count(), 4); // starts 0, 2, 4, 6; 6 + 4 tokens end the text
        let mut batch = HostBatch::default();
        batch.reset(1, 3);
        windows.write(3, 0, &mut batch).unwrap();
        assert_eq!((batch.inputs.clone(), batch.targets.clone()), (vec![6, 7, 8], vec![7, 8, 9]));
        assert!(windows.write(4, 0, &mut batch).is_err());
        let short = TextWindows { tokens: Arc::new(vec![1, 2, 3]), seq_len: 3, stride: 1 };
        assert_eq!(short.sample_count(), 0);
    }

    #[test]
    fn evaluation_covers_every_target_exactly_once_whatever_the_remainder() {
        for (tokens, seq_len, batch_size) in [(100, 8, 3), (97, 8, 4), (9, 8, 4), (10, 8, 1), (2, 8, 5), (1, 8, 2), (0, 8, 2)] {
            let text: Vec<u32> = (0..tokens).collect();
            let windows = EvaluationWindows { tokens: &text, seq_len, batch_size, is_contiguous: false };
            let mut seen = Vec::new();
            let mut batch = HostBatch::default();
            for index in 0..windows.batch_count() {
                windows.fill(index, &mut batch);
                assert!(batch.rows > 0);
                for (input, target) in batch.inputs.iter().zip(&batch.targets).filter(|(_, target)| **target != IGNORED_TARGET) {
                    assert_eq!(input + 1, *target);
                    seen.push(*target);
                }
            }
            assert_eq!(seen, (1..i64::from(tokens)).collect::<Vec<i64>>(), "{tokens} tokens");
            assert_eq!(windows.target_count(), seen.len() as u64);
        }
    }

    #[test]
    fn contiguous_rows_go_on_from_batch_to_batch_and_cover_every_target_once() {
        for (tokens, seq_len, batch_size) in [(100, 8, 3), (97, 8, 4), (9, 8, 4), (10, 8, 1), (2, 8, 5), (81, 8, 4), (1, 8, 2), (0, 8, 2)] {
            let text: Vec<u32> = (0..tokens).collect();
            let windows = EvaluationWindows { tokens: &text, seq_len, batch_size, is_contiguous: true };
            let mut rows: Vec<Vec<i64>> = vec![Vec::new(); batch_size];
            let mut batch = HostBatch::default();
            for index in 0..windows.batch_count() {
                windows.fill(index, &mut batch);
                for (row, targets) in batch.targets.chunks(seq_len).enumerate() {
                    rows[row].extend(targets.iter().filter(|target| **target != IGNORED_TARGET));
                }
            }
            assert!(rows.iter().all(|row| row.is_sorted_by(|one, next| one + 1 == *next)), "{rows:?}");
            assert_eq!(rows.concat(), (1..i64::from(tokens)).collect::<Vec<i64>>(), "{tokens} tokens");
        }
    }
}
