//! Prompts and responses as samples: one row each, filled up to the longest of its batch.

use std::sync::Arc;

use kiln::catalog::pairs::Pair;

use super::{Draw, HostBatch, OTHER_KIND, Source};

/// Rows of prompts and responses.
#[derive(Clone, Debug)]
pub struct PairRows {
    rows: Arc<Vec<Pair>>,
    /// The row that each sample is; the sample's own number if not given.
    order: Option<Vec<usize>>,
    pad: i64,
    /// Lengths are filled up to a multiple of this.
    length_bucket: usize,
}

impl PairRows {
    /// Sample `k` is row `k`.
    pub fn new(rows: Arc<Vec<Pair>>, pad: u32, length_bucket: u64) -> Self {
        Self { rows, order: None, pad: i64::from(pad), length_bucket: (length_bucket as usize).max(1) }
    }

    /// Short rows come first.
    pub fn sorted(rows: Arc<Vec<Pair>>, pad: u32, length_bucket: u64) -> Self {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|row| (rows[*row].response.len(), rows[*row].prompt.len()));
        Self { order: Some(order), ..Self::new(rows, pad, length_bucket) }
    }

    fn row(&self, sample: u64) -> Option<&Pair> {
        let sample = usize::try_from(sample).ok()?;
        match &self.order {
            Some(order) => self.rows.get(*order.get(sample)?),
            None => self.rows.get(sample),
        }
    }

    /// What the longest of some lengths is filled up to.
    fn filled_up(&self, lengths: impl Iterator<Item = usize>) -> usize {
        lengths.max().unwrap_or_default().next_multiple_of(self.length_bucket)
    }
}

impl Source for PairRows {
    fn sample_count(&self) -> u64 {
        self.rows.len() as u64
    }

    fn lay_out(&self, draws: &[Draw], batch: &mut HostBatch) {
        let rows = || draws.iter().filter_map(|draw| self.row(draw.sample));
        let (prompt_len, response_len) = (self.filled_up(rows().map(|row| row.prompt.len())), self.filled_up(rows().map(|row| row.response.len())));
        batch.lay_out_pairs(draws.len(), prompt_len, response_len, self.pad);
    }

    fn write(&self, draw: Draw, row: usize, batch: &mut HostBatch) -> Result<(), String> {
        let pair = self.row(draw.sample).ok_or("it lies past the last row")?;
        batch.pairs_mut().ok_or(OTHER_KIND)?.fill_row(row, &pair.prompt, &pair.response);
        Ok(())
    }

    fn counted_targets(&self, sample: u64) -> Option<u64> {
        self.row(sample).map(|row| row.response.len() as u64)
    }
}
