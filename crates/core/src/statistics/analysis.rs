//! Chooses the contrasts that answer a question, by how the runs were laid out, and joins them to one
//! probability and one estimate.

use super::{
    CORRELATION, FEWEST_RUNS, Nature, Sides,
    contrast::{Contrast, Estimate, SideGroup, visible},
    design::{Design, Laid, Placed, lay},
};

/// Alternating runs are analyzed twice, as pairs and with a linear drift removed, and the more
/// certain result counts. With many pairs each gets this share of the level; with few, pairs alone
/// say little, and the regression gets nearly all of it. Together they stay within the level:
/// `benches/verdicts.rs`.
const SHARE_OF_TWO: f64 = 0.7;
/// Maximum share of the regression; with three pairs of correlated runs more would be too much.
const MOST_OF_LINE: f64 = 0.85;
/// Minimum share of the pairs: equal runs on both sides mean equal sides.
const LEAST_OF_PAIRS: f64 = 0.1;

/// Returns the shares of the level for the regression and for this many pairs.
fn shares(pairs: usize) -> (f64, f64) {
    let many = (pairs as f64 - FEWEST_RUNS as f64).max(0.0) / pairs as f64;
    (
        (1.0 - (1.0 - SHARE_OF_TWO) * many).min(MOST_OF_LINE),
        (SHARE_OF_TWO * many).max(LEAST_OF_PAIRS),
    )
}

/// Share of the level for a regression over mixed runs: it is exact only for independent noise, and
/// runs come in bursts.
const OF_MIXED: f64 = 0.95;

/// A side with fewer runs than the other whose variance is larger by this factor gets a separate
/// spread.
const OWN_SPREAD: f64 = 2.0;

/// The contrasts of one question, before the level of its interval is known.
#[derive(Clone, Debug)]
pub(super) struct Analysis {
    /// Each with its share of the level, as several contrasts that must agree; the most certain
    /// result counts.
    readings: Vec<(f64, Vec<Contrast>)>,
    margin: f64,
    design: Design,
}

impl Analysis {
    /// For sides with at least [`super::FEWEST_RUNS`] runs each.
    pub(super) fn of(sides: &Sides) -> Self {
        let Laid {
            design,
            runs,
            pairs,
            is_lopsided,
        } = lay(sides);
        let line = |correlation: f64| Contrast::of_line(&runs, correlation);
        let groups = || {
            vec![
                Contrast::of_groups(&runs),
                Contrast::of_pooled_groups(&runs),
            ]
        };
        let readings = match (design, sides.nature) {
            (Design::Paired { .. }, Nature::Settled) => {
                vec![(1.0, vec![Contrast::of_pairs(&pairs)])]
            }
            (Design::Paired { .. }, Nature::Drifting) | (Design::PairedLaunches { .. }, _) => {
                match line(0.0) {
                    // Only the line takes out a drift within blocks, and only pairs take out jumps
                    // between them.
                    Some(line) if is_lopsided => {
                        vec![(1.0, vec![Contrast::of_pairs(&pairs), line])]
                    }
                    Some(line) => {
                        let (of_line, of_pairs) = shares(pairs.len());
                        vec![
                            (of_line, vec![line]),
                            (of_pairs, vec![Contrast::of_pairs(&pairs)]),
                        ]
                    }
                    None => vec![(1.0, vec![Contrast::of_pairs(&pairs)])],
                }
            }
            (Design::Mixed, _) => {
                let own = has_own_spread(&runs).then(|| Contrast::of_groups(&runs));
                vec![(OF_MIXED, line(0.0).into_iter().chain(own).collect())]
            }
            (Design::Apart | Design::OrderUnknown | Design::ApartDisturbed | Design::AtOnce, _) => {
                vec![(
                    1.0,
                    groups()
                        .into_iter()
                        .chain(line(0.0))
                        .chain(line(CORRELATION))
                        .collect(),
                )]
            }
            (Design::Independent, _) => vec![(1.0, groups())],
        };
        Self {
            readings: readings
                .into_iter()
                .filter(|(_, reading)| !reading.is_empty())
                .collect(),
            margin: design.margin(),
            design,
        }
    }

    /// Probability of at least such a difference if there is none.
    pub(super) fn p(&self) -> f64 {
        let of_all = |(share, reading): &(f64, Vec<Contrast>)| {
            let least_sure = reading
                .iter()
                .map(|contrast| contrast.p(self.margin))
                .fold(0.0, f64::max);
            let up = reading
                .iter()
                .filter(|contrast| contrast.difference > 0.0)
                .count();
            if up == 0 || up == reading.len() {
                least_sure / share
            } else {
                1.0
            }
        };
        self.readings.iter().map(of_all).fold(1.0, f64::min)
    }

    /// `worth` is the smallest relevant change, as a fraction.
    pub(super) fn estimate(&self, alpha: f64, worth: f64) -> Estimate {
        let read =
            |(share, reading): &(f64, Vec<Contrast>)| self.read(alpha * share, reading, worth);
        let surest = self.readings.iter().filter_map(read).reduce(|one, other| {
            if other.high / other.low < one.high / one.low {
                other
            } else {
                one
            }
        });
        surest.unwrap_or(Estimate {
            ratio: f64::NAN,
            low: 0.0,
            high: f64::INFINITY,
            visible: None,
            design: self.design,
        })
    }

    /// The ratio is from the first contrast; the interval covers those of all.
    fn read(&self, level: f64, reading: &[Contrast], worth: f64) -> Option<Estimate> {
        let (first, widest) = (
            reading.first()?,
            reading
                .iter()
                .max_by(|one, other| one.half_width(level).total_cmp(&other.half_width(level)))?,
        );
        let ends = reading
            .iter()
            .map(|contrast| contrast.estimate(level, self.margin, worth, self.design));
        let (low, high) = ends.fold((f64::INFINITY, 0.0_f64), |(low, high), own| {
            (low.min(own.low), high.max(own.high))
        });
        Some(Estimate {
            ratio: first.difference.exp(),
            low,
            high,
            visible: visible(widest, level, self.margin, worth),
            design: self.design,
        })
    }
}

/// Whether the smaller side's spread is so much larger that a pooled spread would be wrong.
fn has_own_spread(runs: &[Placed]) -> bool {
    let [base, new] = [false, true].map(|side| SideGroup::of(runs, side));
    let (few, many) = if base.count < new.count {
        (base, new)
    } else {
        (new, base)
    };
    let variance = |group: SideGroup| group.squares / (group.count - 1.0);
    few.count < many.count && variance(few) > OWN_SPREAD * variance(many)
}
