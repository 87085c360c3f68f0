//! Whether two groups of runs differ: ratio, interval, smallest visible effect. Numbers in, numbers out.
//!
//! The unit of replication is the run. Up to nine runs per arm the ratio is that of geometric means with Welch's interval on log values;
//! from ten on that of medians with a percentile bootstrap, where resamples can tell the level apart; `docs/comparing.md`.

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Of a false alarm, over all comparisons of one metric together.
pub(super) const ALPHA: f64 = 0.05;
/// Chance with which the smallest visible effect would be seen.
const POWER: f64 = 0.8;
/// Fewer runs in an arm say too little of their spread.
pub(super) const FEWEST_RUNS: usize = 3;
/// From so many runs in each arm on medians are compared.
const BOOTSTRAP_RUNS: usize = 10;
const RESAMPLES: usize = 20_000;
/// Runs of a pair times pairs: more pairs ask for a level that so many resamples cannot show, and of so many runs a mean is as good.
const MOST_RESAMPLED: usize = 500;
/// Of the resamples. Any number would do; it is fixed so that the same tables give the same verdicts.
const SEED: u64 = 0x6b69_6c6e;

/// The runs of one thing under two circumstances, all positive.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arms {
    pub(super) base: Vec<f64>,
    pub(super) new: Vec<f64>,
}

/// What the runs of both arms say of new / base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) ratio: f64,
    /// The ends of its interval.
    pub(super) low: f64,
    pub(super) high: f64,
    /// As a share: a change by so much would be seen four times in five. `None` where it cannot be told.
    pub(super) visible: Option<f64>,
}

/// One comparison before the level of its interval is known.
enum Test {
    Welch(Welch),
    Bootstrap(Bootstrap),
}

impl Test {
    fn of(arms: &Arms, comparisons: usize) -> Self {
        match takes_medians(arms, comparisons) {
            true => Self::Bootstrap(Bootstrap::of(arms)),
            false => Self::Welch(Welch::of(arms)),
        }
    }

    /// How likely at least such a difference is where there is none.
    fn p(&self) -> f64 {
        match self {
            Self::Welch(test) => test.p(),
            Self::Bootstrap(test) => test.p(),
        }
    }

    fn estimate(&self, alpha: f64) -> Estimate {
        match self {
            Self::Welch(test) => test.estimate(alpha),
            Self::Bootstrap(test) => test.estimate(alpha),
        }
    }
}

/// An estimate for each pair of arms, each with [`FEWEST_RUNS`] runs or more, the intervals adjusted so that the chance of one false alarm among all of
/// them is at most [`ALPHA`] (Holm 1979).
pub(super) fn estimates(pairs: &[Arms]) -> Vec<Estimate> {
    let tests: Vec<Test> = pairs.iter().map(|arms| Test::of(arms, pairs.len())).collect();
    let mut by_p: Vec<(usize, f64)> = tests.iter().map(Test::p).enumerate().collect();
    by_p.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut levels = vec![ALPHA; pairs.len()];
    let mut is_over = false;
    let mut level = ALPHA;
    for (rank, (place, p)) in by_p.into_iter().enumerate() {
        // What is not told apart ends the steps: the rest has the same level.
        if !is_over {
            level = ALPHA / (pairs.len() - rank) as f64;
            is_over = p > level;
        }
        levels[place] = level;
    }
    tests.iter().zip(levels).map(|(test, level)| test.estimate(level)).collect()
}

/// Welch's t on logarithms: difference of means with its standard error.
struct Welch {
    difference: f64,
    error: f64,
    freedom: f64,
}

impl Welch {
    fn of(arms: &Arms) -> Self {
        let [base, new] = [&arms.base, &arms.new].map(|runs| Logs::of(runs));
        let error = (base.of_mean + new.of_mean).sqrt();
        let freedom = (base.of_mean + new.of_mean).powi(2) / (base.of_mean.powi(2) / (base.runs - 1.0) + new.of_mean.powi(2) / (new.runs - 1.0));
        Self { difference: new.mean - base.mean, error, freedom }
    }

    /// Quantile of Student's t.
    fn t(&self, quantile: f64) -> f64 {
        StudentsT::new(0.0, 1.0, self.freedom).map_or(f64::NAN, |t| t.inverse_cdf(quantile))
    }

    fn p(&self) -> f64 {
        match (self.error > 0.0, self.difference == 0.0) {
            (true, _) => StudentsT::new(0.0, 1.0, self.freedom).map_or(1.0, |t| 2.0 * t.cdf(-(self.difference / self.error).abs())),
            (false, true) => 1.0,
            (false, false) => 0.0,
        }
    }

    fn estimate(&self, alpha: f64) -> Estimate {
        if self.error == 0.0 {
            let ratio = self.difference.exp();
            return Estimate { ratio, low: ratio, high: ratio, visible: Some(0.0) };
        }
        let beyond = self.t(1.0 - alpha / 2.0);
        let half = beyond * self.error;
        let visible = ((beyond + self.t(POWER)) * self.error).exp() - 1.0;
        Estimate {
            ratio: self.difference.exp(),
            low: (self.difference - half).exp(),
            high: (self.difference + half).exp(),
            visible: Some(visible).filter(|visible| visible.is_finite()),
        }
    }
}

/// The logarithms of an arm's runs.
struct Logs {
    runs: f64,
    mean: f64,
    /// Variance of the mean.
    of_mean: f64,
}

impl Logs {
    fn of(runs: &[f64]) -> Self {
        let count = runs.len() as f64;
        let mean = runs.iter().map(|run| run.ln()).sum::<f64>() / count;
        let squares: f64 = runs.iter().map(|run| (run.ln() - mean).powi(2)).sum();
        Self { runs: count, mean, of_mean: squares / (count - 1.0) / count }
    }
}

/// Ratios of medians of resampled runs, ascending, and that of the runs themselves.
struct Bootstrap {
    ratio: f64,
    resampled: Vec<f64>,
    /// For what a bootstrap does not tell.
    welch: Welch,
}

impl Bootstrap {
    fn of(arms: &Arms) -> Self {
        let [base, new] = [&arms.base, &arms.new].map(|runs| sorted(runs));
        let mut random = Rng::with_seed(SEED);
        let mut places = Vec::new();
        let mut resampled: Vec<f64> =
            (0..RESAMPLES).map(|_| resampled_median(&new, &mut random, &mut places) / resampled_median(&base, &mut random, &mut places)).collect();
        resampled.sort_unstable_by(f64::total_cmp);
        Self { ratio: median(&new) / median(&base), resampled, welch: Welch::of(arms) }
    }

    fn p(&self) -> f64 {
        let below = self.resampled.partition_point(|ratio| *ratio < 1.0);
        let up_to = self.resampled.partition_point(|ratio| *ratio <= 1.0);
        let rarer = up_to.min(self.resampled.len() - below);
        (2.0 * rarer as f64 / self.resampled.len() as f64).min(1.0)
    }

    fn estimate(&self, alpha: f64) -> Estimate {
        let last = self.resampled.len() - 1;
        let at = |quantile: f64| self.resampled[((quantile * last as f64).round() as usize).min(last)];
        Estimate { ratio: self.ratio, low: at(alpha / 2.0), high: at(1.0 - alpha / 2.0), visible: self.welch.estimate(alpha).visible }
    }
}

/// Whether medians are compared, and not geometric means, where so many comparisons are made together.
pub(super) fn takes_medians(arms: &Arms, comparisons: usize) -> bool {
    let runs = arms.base.len() + arms.new.len();
    arms.base.len().min(arms.new.len()) >= BOOTSTRAP_RUNS && comparisons.saturating_mul(runs) <= MOST_RESAMPLED
}

/// The middle of an arm that its estimate is about; `None` of no runs.
pub(super) fn middle(runs: &[f64], is_median: bool) -> Option<f64> {
    match runs {
        [] => None,
        // As it was measured, to the last digit.
        [run] => Some(*run),
        _ if is_median => Some(median(&sorted(runs))),
        _ => Some((runs.iter().map(|run| run.ln()).sum::<f64>() / runs.len() as f64).exp()),
    }
}

/// The median of at least one value.
pub(super) fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    median(&sorted(&values.collect::<Vec<_>>()))
}

fn sorted(runs: &[f64]) -> Vec<f64> {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// The median of as many draws from sorted runs as there are runs.
fn resampled_median(runs: &[f64], random: &mut Rng, places: &mut Vec<usize>) -> f64 {
    places.clear();
    places.extend((0..runs.len()).map(|_| random.usize(..runs.len())));
    let middle = runs.len() / 2;
    let (before, place, _) = places.select_nth_unstable(middle);
    let upper = runs[*place];
    if runs.len() % 2 == 1 {
        return upper;
    }
    let lower = before.iter().max().map_or(upper, |place| runs[*place]);
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arms(base: &[f64], new: &[f64]) -> Arms {
        Arms { base: base.to_vec(), new: new.to_vec() }
    }

    #[test]
    fn welch_on_logarithms_agrees_with_a_reference() {
        // By SciPy 1.17: stats.ttest_ind(log(new), log(base), equal_var=False), its confidence_interval(0.95) exponentiated.
        let found = estimates(&[arms(&[100.0, 102.0, 98.0, 101.0, 99.0], &[105.0, 107.0, 104.0, 106.0, 110.0])])[0];
        let expected = [1.063908871057663, 1.0345804326184913, 1.0940687163881317];
        for (found, expected) in [found.ratio, found.low, found.high].into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        }
    }

    #[test]
    fn equal_runs_are_equal_and_a_sure_difference_has_no_width() {
        let same = estimates(&[arms(&[2.0; 3], &[2.0; 3])])[0];
        assert_eq!((same.ratio, same.low, same.high, same.visible), (1.0, 1.0, 1.0, Some(0.0)));
        let other = estimates(&[arms(&[2.0; 3], &[3.0; 3])])[0];
        assert!((other.low - 1.5).abs() < 1e-12 && other.low == other.high);
        let medians = estimates(&[arms(&[2.0; 10], &[2.0; 10])])[0];
        assert_eq!((medians.ratio, medians.low, medians.high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn more_comparisons_widen_the_intervals_and_the_surest_the_most() {
        let clear = arms(&[100.0, 101.0, 99.0], &[150.0, 151.0, 149.0]);
        let unclear = arms(&[100.0, 103.0, 97.0], &[101.0, 104.0, 97.0]);
        let alone = estimates(std::slice::from_ref(&unclear))[0];
        let together = estimates(&[clear.clone(), unclear.clone(), unclear.clone()]);
        assert_eq!(together[1], together[2]);
        assert!(together[1].high - together[1].low > alone.high - alone.low);
        assert!(together[0].low > 1.0 && together[0].visible > estimates(&[clear])[0].visible);
    }

    #[test]
    fn from_ten_runs_on_one_wild_run_moves_nothing() {
        let calm: Vec<f64> = (0..11).map(|run| 100.0 + f64::from(run) * 0.1).collect();
        let mut wild = calm.clone();
        wild[3] = 10.0;
        let found = estimates(&[arms(&calm, &wild)])[0];
        assert!((found.ratio - 1.0).abs() < 0.002 && found.low > 0.99 && found.high < 1.01, "{found:?}");
        assert!(estimates(&[arms(&calm[..5], &wild[..5])])[0].low < 0.6);
    }

    #[test]
    fn a_resampled_median_is_that_of_its_draws() {
        let runs: Vec<f64> = (1..=10).map(f64::from).collect();
        let (mut random, mut again) = (Rng::with_seed(7), Rng::with_seed(7));
        for _ in 0..200 {
            let drawn = sorted(&(0..10).map(|_| runs[again.usize(..10)]).collect::<Vec<_>>());
            assert_eq!(resampled_median(&runs, &mut random, &mut Vec::new()), median(&drawn));
        }
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
    }
}
