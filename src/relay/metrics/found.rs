//! The numbers of one metric, and the one that is taken of them.

use std::collections::VecDeque;

use kiln_core::{kinds::command::Take, record::note::LossRose, statistics};

/// Most numbers of which a median is made.
pub(super) const MOST_NUMBERS: usize = 1_000_000;
/// Numbers at the end that are kept of every metric.
const NEWEST: usize = 1000;

/// The numbers of one metric so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// All numbers, with those that `skip` left out.
    pub(super) count: u64,
    first: Option<f64>,
    pub(super) last: Option<f64>,
    /// Numbers that `skip` did not leave out.
    kept: u64,
    sum: f64,
    least: Option<f64>,
    most: Option<f64>,
    all: Vec<f64>,
    /// The last [`NEWEST`] that were not left out.
    newest: VecDeque<f64>,
}

impl Found {
    pub(super) fn add(&mut self, value: f64, skip: u64, keeps_all: bool) {
        self.count += 1;
        self.last = Some(value).filter(|_| self.count > skip).or(self.last);
        if self.count <= skip {
            return;
        }
        self.first = self.first.or(Some(value));
        self.sum += value;
        self.least = Some(self.least.map_or(value, |least| minimum(least, value)));
        self.most = Some(self.most.map_or(value, |most| -minimum(-most, -value)));
        if keeps_all && self.all.len() < MOST_NUMBERS {
            self.all.push(value);
        }
        if self.newest.len() == NEWEST {
            self.newest.pop_front();
        }
        self.newest.push_back(value);
        self.kept += 1;
    }

    /// Whether these are losses that ended clearly above the first one.
    pub(super) fn loss_rose(&self) -> Option<LossRose> {
        let half = self.newest.len().min(self.kept as usize / 2);
        let second_half: Vec<f64> = self.newest.iter().rev().take(half).copied().collect();
        LossRose::between(self.first?, &second_half, self.last?)
    }

    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    pub(super) fn take(&self, take: Take) -> Option<f64> {
        match take {
            Take::Last => self.last,
            Take::First => self.first,
            Take::Mean => (self.kept > 0).then(|| self.sum / self.kept as f64),
            Take::Min => self.least,
            Take::Max => self.most,
            Take::Median => median(&self.all),
        }
    }
}

/// NaN if one of them is.
fn minimum(a: f64, b: f64) -> f64 {
    match a.is_nan() || b.is_nan() {
        true => f64::NAN,
        false => a.min(b),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    if values.iter().any(|value| value.is_nan()) {
        return Some(f64::NAN);
    }
    (!values.is_empty()).then(|| statistics::median(values.iter().copied()))
}
