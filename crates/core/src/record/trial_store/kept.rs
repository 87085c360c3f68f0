//! The rows of a run in little memory: the lines of the table, compressed, and of each row what a
//! schedule asks for often. A run of 10,000 trials has 40 MB of rows, and 4 MB in this form.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Read, Write},
    sync::Arc,
};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

use super::super::{
    note::{OutOfJobTime, READ_AGAIN},
    trials::TableRow,
};
use crate::plan::{Outcome, TrialId};

/// Uncompressed size from which lines become a block, in bytes: a block is read as a whole.
const BLOCK_BYTES: usize = 128 << 10;

/// How an attempt ended, and its device: the part of its row that the schedule needs.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptEnd {
    pub trial: TrialId,
    pub attempt: u64,
    pub outcome: Outcome,
    pub cut_off: Option<CutOff>,
    /// As in the table; `None` on the CPU.
    pub device_uuid: Option<Arc<str>>,
    pub memory_limit_bytes: Option<u64>,
    /// Whether the metrics were read again from kept output (`kiln run --read-again`).
    pub is_read_again: bool,
}

/// The time of its Slurm job ended an attempt before it left a new checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// The worker's launch, which is one start of the job.
    pub launch: u64,
    /// Whether the attempt had most of that time.
    pub had_most: bool,
}

impl AttemptEnd {
    pub fn of(row: &TableRow) -> Self {
        let TableRow { fixed, .. } = row;
        Self {
            trial: fixed.trial.clone(),
            attempt: fixed.attempt,
            outcome: fixed.outcome,
            cut_off: OutOfJobTime::of(fixed)
                .filter(|cut| !cut.has_checkpoint)
                .map(|cut| CutOff {
                    launch: fixed.launch,
                    had_most: cut.had_most,
                }),
            device_uuid: fixed.device_uuid.as_deref().map(Arc::from),
            memory_limit_bytes: fixed.memory_limit_bytes,
            is_read_again: fixed.note(READ_AGAIN).is_some(),
        }
    }

    /// Key of a row.
    pub(super) fn key(&self) -> (&TrialId, u64) {
        (&self.trial, self.attempt)
    }

    /// Orders the rows of one trial: of its last attempt the one that counts is the highest.
    pub fn rank(&self) -> (u64, u8) {
        (self.attempt, self.outcome.weight())
    }
}

/// A row as its line of the table.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) end: AttemptEnd,
    /// With its line feed.
    pub(super) bytes: Vec<u8>,
}

/// Rows in the order of the table.
#[derive(Debug, Default)]
pub(super) struct KeptRows {
    ends: Vec<AttemptEnd>,
    /// The place of each trial's end with the highest rank.
    last: HashMap<TrialId, usize>,
    /// Length of the line of each row, in bytes.
    lengths: Vec<u32>,
    /// Complete blocks of lines, compressed.
    blocks: Vec<Box<[u8]>>,
    /// The lines after them.
    rest: Vec<u8>,
    /// Devices that rows name; each name is kept once.
    devices: BTreeSet<Arc<str>>,
}

impl KeptRows {
    pub(super) fn ends(&self) -> &[AttemptEnd] {
        &self.ends
    }

    /// The end of a trial with the highest rank, the later one of equals.
    pub(super) fn last(&self, trial: &TrialId) -> Option<&AttemptEnd> {
        self.ends.get(*self.last.get(trial)?)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn push(&mut self, line: Line) {
        let Line { mut end, bytes } = line;
        if let Some(uuid) = end.device_uuid.take() {
            if !self.devices.contains(&uuid) {
                self.devices.insert(Arc::clone(&uuid));
            }
            end.device_uuid = self.devices.get(&uuid).cloned();
        }
        let known = self.last(&end.trial);
        if known.is_none_or(|known| end.rank() >= known.rank()) {
            self.last.insert(end.trial.clone(), self.ends.len());
        }
        self.ends.push(end);
        self.lengths.push(bytes.len() as u32);
        self.rest.extend_from_slice(&bytes);
        if self.rest.len() >= BLOCK_BYTES
            && let Ok(block) = compress(&self.rest)
        {
            self.blocks.push(block);
            self.rest = Vec::new();
        }
    }

    /// All lines, one after the other.
    ///
    /// # Errors
    /// A block cannot be decompressed.
    pub(super) fn bytes(&self) -> io::Result<Vec<u8>> {
        let length = self.lengths.iter().map(|length| *length as usize).sum();
        let mut bytes = Vec::with_capacity(length);
        for block in &self.blocks {
            DeflateDecoder::new(&block[..]).read_to_end(&mut bytes)?;
        }
        bytes.extend_from_slice(&self.rest);
        Ok(bytes)
    }

    /// Returns the end and the line of each row; `bytes` are all lines, from [`KeptRows::bytes`].
    pub(super) fn lines<'a>(
        &'a self,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (&'a AttemptEnd, &'a [u8])> {
        let mut rest = bytes;
        self.ends
            .iter()
            .zip(&self.lengths)
            .map(move |(end, length)| {
                let (line, after) = rest.split_at((*length as usize).min(rest.len()));
                rest = after;
                (end, line)
            })
    }
}

fn compress(bytes: &[u8]) -> io::Result<Box<[u8]>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.into_boxed_slice())
}
