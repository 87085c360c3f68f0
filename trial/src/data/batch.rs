//! One batch of text in host memory: what workers fill, the trainer copies to the device, and the loader uses again.

use crate::engine::IGNORED_TARGET;

/// Token ids of `rows` samples. The buffers are used again, so their allocations last as long as the loader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostBatch {
    /// [rows, seq_len], row after row.
    pub inputs: Vec<i64>,
    /// [rows, seq_len]; [`IGNORED_TARGET`] counts in no loss.
    pub targets: Vec<i64>,
    pub rows: usize,
    pub seq_len: usize,
}

impl HostBatch {
    /// Takes this shape, every token 0 and every target ignored.
    pub fn reset(&mut self, rows: usize, seq_len: usize) {
        self.rows = rows;
        self.seq_len = seq_len;
        self.inputs.clear();
        self.inputs.resize(rows * seq_len, 0);
        self.targets.clear();
        self.targets.resize(rows * seq_len, IGNORED_TARGET);
    }

    /// Writes row `row` from tokens: each but the last is an input, each but the first the target of the one before it.
    /// Tokens past `seq_len + 1` are left out; missing ones stay ignored.
    pub fn fill_row(&mut self, row: usize, tokens: &[u32]) {
        let start = row * self.seq_len;
        let pairs = tokens.iter().zip(tokens.iter().skip(1)).take(self.seq_len);
        for (offset, (input, target)) in pairs.enumerate() {
            self.inputs[start + offset] = i64::from(*input);
            self.targets[start + offset] = i64::from(*target);
        }
    }

    /// Targets that count in the loss.
    pub fn counted_targets(&self) -> u64 {
        self.targets.iter().filter(|target| **target != IGNORED_TARGET).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_row_is_padded_with_ignored_targets_and_a_used_buffer_keeps_nothing() {
        let mut batch = HostBatch::default();
        batch.reset(1, 3);
        batch.fill_row(0, &[4, 5, 6, 7]);
        assert_eq!((batch.inputs.as_slice(), batch.targets.as_slice()), ([4, 5, 6].as_slice(), [5, 6, 7].as_slice()));
        batch.reset(2, 3);
        batch.fill_row(1, &[8, 9]);
        assert_eq!(batch.inputs, [0, 0, 0, 8, 0, 0]);
        assert_eq!(batch.targets, [IGNORED_TARGET, IGNORED_TARGET, IGNORED_TARGET, 9, IGNORED_TARGET, IGNORED_TARGET]);
        assert_eq!(batch.counted_targets(), 1);
    }
}
