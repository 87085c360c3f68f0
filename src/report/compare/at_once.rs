//! Runs of one side that shared their machine with a run of the other: each was measured while the
//! other took its share of cores, memory and heat.
//!
//! Rows in; out comes which row ran beside which. What that means for a verdict is decided in
//! `statistics`.

use std::collections::HashMap;

use kiln_core::record::{TrialRow, TrialTable, trials::host_id_kind};

use super::comparable::is_same_run;

/// Rows tell the second in which they started, so two runs in turns may seem to overlap by as much.
const CLOCK_SECONDS: f64 = 1.0;
/// Nor does it count where a run was still ending while the next one began: a smaller share of the
/// shorter run. Chosen: warm-up alone is more of a trial.
const SHARE: f64 = 0.1;

/// For each row that ran beside one of the other side: that one.
#[derive(Debug, Default)]
pub(super) struct AtOnce<'a> {
    beside: HashMap<AttemptKey<'a>, &'a TrialRow>,
}

/// A row of either side: no run of two tables has all of these in common.
type AttemptKey<'a> = (&'a str, u64, Option<&'a str>);

fn key(row: &TrialRow) -> AttemptKey<'_> {
    (&row.trial.0, row.attempt, row.started_utc.as_deref())
}

impl<'a> AtOnce<'a> {
    /// All attempts of both tables count, of whatever point and however they ended; a row that both
    /// have is one run, and not beside itself.
    pub(super) fn of(base: &'a TrialTable, new: &'a TrialTable) -> Self {
        let [base, new] = [(base, new), (new, base)].map(|(own, other)| Spans::of(own, other));
        let beside_new = base
            .spans
            .iter()
            .filter_map(|span| Some((key(span.row), new.beside(span)?)));
        let beside_base = new
            .spans
            .iter()
            .filter_map(|span| Some((key(span.row), base.beside(span)?)));
        Self {
            beside: beside_new.chain(beside_base).collect(),
        }
    }

    /// A run of the other side that a row ran beside.
    pub(super) fn beside(&self, row: &TrialRow) -> Option<&'a TrialRow> {
        self.beside.get(&key(row)).copied()
    }
}

/// Start and end of an attempt, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Span<'a> {
    start: f64,
    end: f64,
    row: &'a TrialRow,
}

/// The attempts of a table by their starts, each with the latest end so far.
struct Spans<'a> {
    spans: Vec<Span<'a>>,
    ends: Vec<f64>,
}

impl<'a> Spans<'a> {
    fn of(table: &'a TrialTable, other: &TrialTable) -> Self {
        let others: HashMap<AttemptKey<'_>, &TrialRow> = other
            .rows
            .iter()
            .map(|row| (key(&row.fixed), &*row.fixed))
            .collect();
        let rows = table.rows.iter().map(|row| &*row.fixed).filter(|row| {
            let same = others.get(&key(row));
            !same.is_some_and(|same| is_same_run(same, row))
        });
        let mut spans: Vec<Span<'a>> = rows.filter_map(Span::of).collect();
        spans.sort_by(|one, other| one.start.total_cmp(&other.start));
        let ends = spans.iter().scan(f64::NEG_INFINITY, |latest, span| {
            *latest = latest.max(span.end);
            Some(*latest)
        });
        Self {
            ends: ends.collect(),
            spans,
        }
    }

    /// One that shared the machine with this one.
    fn beside(&self, span: &Span<'_>) -> Option<&'a TrialRow> {
        let after = self.spans.partition_point(|other| other.start < span.end);
        let reaching = (0..after)
            .rev()
            .take_while(|place| self.ends[*place] > span.start);
        reaching
            .map(|place| &self.spans[place])
            .find(|other| span.overlaps(other) && may_share_host(span.row, other.row))
            .map(|other| other.row)
    }
}

impl<'a> Span<'a> {
    /// `None` where the row does not say when it began, or how long it took.
    fn of(row: &'a TrialRow) -> Option<Self> {
        let (start, seconds) = (
            row.started_seconds()?,
            row.trial_seconds
                .filter(|seconds| seconds.is_finite() && *seconds > 0.0)?,
        );
        Some(Self {
            start,
            end: start + seconds,
            row,
        })
    }

    fn overlaps(&self, other: &Span<'_>) -> bool {
        let shorter = (self.end - self.start).min(other.end - other.start);
        self.end.min(other.end) - self.start.max(other.start) > CLOCK_SECONDS + SHARE * shorter
    }
}

/// Whether two rows may come from one host. As in `comparable`, an unknown host does not count as a
/// different one, and ids that were made in different ways are not compared.
fn may_share_host(one: &TrialRow, other: &TrialRow) -> bool {
    match (one.host_id.as_deref(), other.host_id.as_deref()) {
        (Some(one), Some(other)) => one == other || host_id_kind(one) != host_id_kind(other),
        _ => one.device_name == other.device_name,
    }
}
