//! The difference of two sides with its standard error: from pairs, from a regression with a linear
//! drift, or from two independent groups.

use super::{
    CORRELATION, POWER, ROUNDING,
    design::{Design, Placed},
    matrix::{Matrix, dot, inverted, matrix, multiplied, trace},
    student,
};

/// Estimate of the ratio new / base from the runs of both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub ratio: f64,
    /// The ends of its interval; for sides that ran apart widened by [`super::SESSION_JUMP`],
    /// infinite if the machine was disturbed.
    pub low: f64,
    pub high: f64,
    /// As a fraction: a change of this size would be detected in four of five cases, including the
    /// smallest relevant change. `None` if unknown.
    pub visible: Option<f64>,
    pub design: Design,
}

/// These methods alone decide what counts as higher, lower and unchanged. An interval end that
/// equals the limit except for rounding is on the limit: runs with equal values have no spread, and
/// rounding would otherwise decide.
impl Estimate {
    /// Whether new is significantly above base.
    pub fn is_above(&self) -> bool {
        self.low.ln() > ROUNDING
    }

    /// Whether new is significantly below base.
    pub fn is_below(&self) -> bool {
        self.high.ln() < -ROUNDING
    }

    /// Whether new is above base by a relevant fraction: exactly this fraction is enough.
    pub fn is_higher(&self, worth: f64) -> bool {
        self.is_above() && self.ratio.ln() > worth.ln_1p() - ROUNDING
    }

    /// Whether new is below base by a relevant fraction: exactly this fraction is enough.
    pub fn is_lower(&self, worth: f64) -> bool {
        self.is_below() && self.ratio.ln() < (-worth).ln_1p() + ROUNDING
    }

    /// Whether the interval excludes that new is above base by a relevant fraction.
    pub fn excludes_higher(&self, worth: f64) -> bool {
        self.high.ln() < worth.ln_1p() - ROUNDING
    }

    /// Whether the interval excludes that new is below base by a relevant fraction.
    pub fn excludes_lower(&self, worth: f64) -> bool {
        self.low.ln() > (-worth).ln_1p() + ROUNDING
    }
}

/// A difference of logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Contrast {
    pub(super) difference: f64,
    pub(super) error: f64,
    pub(super) freedom: f64,
}

impl Contrast {
    /// A value that is 0 except for rounding becomes 0.
    pub(super) fn new(difference: f64, error: f64, freedom: f64) -> Self {
        let exact = |value: f64| if value.abs() < ROUNDING { 0.0 } else { value };
        Self {
            difference: exact(difference),
            error: exact(error),
            freedom,
        }
    }

    /// Probability of a difference at least this far beyond `margin` if there is no difference.
    pub(super) fn p(&self, margin: f64) -> f64 {
        let beyond = self.difference.abs() - margin;
        match (self.error > 0.0, beyond > 0.0) {
            (_, false) => 1.0,
            (true, true) => student::two_sided(beyond / self.error, self.freedom),
            (false, true) => 0.0,
        }
    }

    pub(super) fn half_width(&self, alpha: f64) -> f64 {
        if self.error > 0.0 {
            student::quantile(1.0 - alpha / 2.0, self.freedom) * self.error
        } else {
            0.0
        }
    }

    /// Returns the estimate at a level; the interval is widened by `margin`, and changes below
    /// `worth` do not count.
    pub(super) fn estimate(&self, level: f64, margin: f64, worth: f64, design: Design) -> Estimate {
        let reach = self.half_width(level) + margin;
        Estimate {
            ratio: self.difference.exp(),
            low: (self.difference - reach).exp(),
            high: (self.difference + reach).exp(),
            visible: visible(self, level, margin, worth),
            design,
        }
    }

    /// The mean difference of pairs.
    pub(super) fn of_pairs(pairs: &[(f64, f64)]) -> Self {
        let count = pairs.len() as f64;
        let differences = || pairs.iter().map(|(base, new)| new - base);
        let mean = differences().sum::<f64>() / count;
        let squares: f64 = differences()
            .map(|difference| (difference - mean).powi(2))
            .sum();
        Self::new(mean, (squares / (count - 1.0) / count).sqrt(), count - 1.0)
    }

    /// Welch's t (1947), for unequal spreads.
    pub(super) fn of_groups(runs: &[Placed]) -> Self {
        let groups = [false, true].map(|side| SideGroup::of(runs, side));
        let [base, new] = groups.map(|group| group.of_mean());
        let freedom = (base + new).powi(2)
            / (base.powi(2) / (groups[0].count - 1.0) + new.powi(2) / (groups[1].count - 1.0));
        Self::new(
            groups[1].mean - groups[0].mean,
            (base + new).sqrt(),
            if freedom.is_finite() { freedom } else { 1.0 },
        )
    }

    /// Student's t with one pooled spread: a side with few runs uses that of the side with many.
    pub(super) fn of_pooled_groups(runs: &[Placed]) -> Self {
        let [base, new] = [false, true].map(|side| SideGroup::of(runs, side));
        let freedom = base.count + new.count - 2.0;
        let variance = (base.squares + new.squares) / freedom;
        Self::new(
            new.mean - base.mean,
            (variance * (1.0 / base.count + 1.0 / new.count)).sqrt(),
            freedom,
        )
    }

    /// Ordinary least squares with the side, a linear drift, and noise correlated by `correlation`
    /// with the previous run. The variance is that of the estimate under this correlation, with
    /// degrees of freedom by Satterthwaite.
    pub(super) fn of_line(runs: &[Placed], correlation: f64) -> Option<Self> {
        let line = TrendLine::through(runs)?;
        let (count, width) = (runs.len() as f64, 3.0);
        if count <= width {
            return None;
        }
        let residuals: f64 = line
            .residuals(runs)
            .map(|residual| residual * residual)
            .sum();
        // With S the correlation matrix and H the projection on the columns X: E[residuals] = s²
        // tr((I - H) S).
        let times_s = line
            .columns
            .each_ref()
            .map(|column| correlated(column, correlation));
        let inner = matrix(|row, column| dot(&line.columns[row], &times_s[column]));
        let twice = matrix(|row, column| dot(&times_s[row], &times_s[column]));
        let expected = count - trace(&line.inverse, &inner);
        let of_s: f64 = (1..runs.len())
            .map(|lag| (count - lag as f64) * correlation.powi(2 * lag as i32))
            .sum::<f64>()
            .mul_add(2.0, count);
        let product = multiplied(&line.inverse, &inner);
        let squared = of_s - 2.0 * trace(&line.inverse, &twice) + trace(&product, &product);
        if expected <= 0.0 || squared <= 0.0 {
            return None;
        }
        let covariance = multiplied(&multiplied(&line.inverse, &inner), &line.inverse);
        let variance = residuals / expected * covariance[SIDE][SIDE];
        Some(Self::new(
            line.coefficients[SIDE],
            variance.max(0.0).sqrt(),
            (expected * expected / squared).max(1.0),
        ))
    }
}

/// The logarithms of a side.
#[derive(Clone, Copy)]
pub(super) struct SideGroup {
    pub(super) count: f64,
    mean: f64,
    /// Sum of squared deviations from the mean.
    pub(super) squares: f64,
}

impl SideGroup {
    pub(super) fn of(runs: &[Placed], is_new: bool) -> Self {
        let logs = || {
            runs.iter()
                .filter(move |run| run.is_new == is_new)
                .map(|run| run.log)
        };
        let count = logs().count() as f64;
        let mean = logs().sum::<f64>() / count;
        let squares: f64 = logs().map(|log| (log - mean).powi(2)).sum();
        Self {
            count,
            mean,
            squares: without_rounding(squares, count),
        }
    }

    /// Variance of the mean.
    fn of_mean(&self) -> f64 {
        self.squares / (self.count - 1.0) / self.count
    }
}

/// A sum of squared deviations of this many logarithms; 0 if all are equal except for rounding.
pub(super) fn without_rounding(squares: f64, count: f64) -> f64 {
    if squares < ROUNDING * ROUNDING * count {
        0.0
    } else {
        squares
    }
}

/// Columns of the regression: 1, the side, the position.
const SIDE: usize = 1;
const SLOPE: usize = 2;

/// A linear drift with a step between the sides.
pub(super) struct TrendLine {
    columns: [Vec<f64>; 3],
    /// Inverse of the products of the columns.
    inverse: Matrix,
    coefficients: [f64; 3],
}

impl TrendLine {
    /// `None` if side and position are collinear.
    pub(super) fn through(runs: &[Placed]) -> Option<Self> {
        let count = runs.len() as f64;
        let mean = runs.iter().map(|run| run.position).sum::<f64>() / count;
        let reach = runs
            .iter()
            .map(|run| (run.position - mean).abs())
            .fold(0.0, f64::max);
        // Scaled, so that seconds since 1970 and positions in an order are treated alike.
        let position = |run: &Placed| {
            if reach > 0.0 {
                (run.position - mean) / reach
            } else {
                0.0
            }
        };
        let columns = [
            vec![1.0; runs.len()],
            runs.iter()
                .map(|run| f64::from(u8::from(run.is_new)))
                .collect(),
            runs.iter().map(position).collect::<Vec<f64>>(),
        ];
        let inverse = inverted(&matrix(|row, column| dot(&columns[row], &columns[column])))?;
        let logs: Vec<f64> = runs.iter().map(|run| run.log).collect();
        let products = columns.each_ref().map(|column| dot(column, &logs));
        let coefficients = inverse.map(|row| {
            row.iter()
                .zip(products)
                .map(|(one, other)| one * other)
                .sum()
        });
        Some(Self {
            columns,
            inverse,
            coefficients,
        })
    }

    fn residuals<'a>(&'a self, runs: &'a [Placed]) -> impl Iterator<Item = f64> + 'a {
        let fitted = |place: usize| {
            (0..3)
                .map(|column| self.coefficients[column] * self.columns[column][place])
                .sum::<f64>()
        };
        runs.iter()
            .enumerate()
            .map(move |(place, run)| run.log - fitted(place))
    }

    /// Change of the logarithm from the first run to the last, and the probability of at least such
    /// a change if there is none.
    pub(super) fn drift(&self, runs: &[Placed]) -> (f64, f64) {
        let positions = &self.columns[SLOPE];
        let span = positions.iter().copied().fold(f64::NEG_INFINITY, f64::max)
            - positions.iter().copied().fold(f64::INFINITY, f64::min);
        let squares = self
            .residuals(runs)
            .map(|residual| residual * residual)
            .sum::<f64>();
        let freedom = runs.len() as f64 - 3.0;
        let of_slope = squares.max(0.0) * self.inverse[SLOPE][SLOPE];
        let p = p_of_slope(self.coefficients[SLOPE], of_slope, freedom);
        (self.coefficients[SLOPE] * span, p)
    }
}

/// The probability of at least such a slope of successive runs if there is none. `squares` is its variance
/// times the degrees of freedom if the noise were independent: the noise of successive runs is correlated
/// (AR(1) with [`CORRELATION`]), which makes slopes larger, and so many runs tell less.
pub(super) fn p_of_slope(slope: f64, squares: f64, freedom: f64) -> f64 {
    let of_slopes = (1.0 + CORRELATION) / (1.0 - CORRELATION);
    let of_freedom = (1.0 - CORRELATION.powi(2)) / (1.0 + CORRELATION.powi(2));
    let effective_freedom = freedom * of_freedom;
    if effective_freedom < 1.0 {
        return 1.0;
    }
    Contrast::new(
        slope,
        (squares / freedom * of_slopes).sqrt(),
        effective_freedom,
    )
    .p(0.0)
}

/// A column times the matrix whose entries are `correlation` to the power of the distance of two
/// positions.
fn correlated(column: &[f64], correlation: f64) -> Vec<f64> {
    let mut forward = column.to_vec();
    for place in 1..forward.len() {
        forward[place] += correlation * forward[place - 1];
    }
    let mut backward = column.to_vec();
    for place in (1..backward.len()).rev() {
        backward[place - 1] += correlation * backward[place];
    }
    forward
        .iter()
        .zip(&backward)
        .zip(column)
        .map(|((forward, backward), own)| forward + backward - own)
        .collect()
}

/// The change that such runs would detect with [`POWER`]: it must exceed the interval of future
/// runs, whose spread is as uncertain as that of these, and be relevant.
pub(super) fn visible(contrast: &Contrast, level: f64, margin: f64, worth: f64) -> Option<f64> {
    let finite = |visible: f64| Some(visible).filter(|visible| visible.is_finite());
    if contrast.error == 0.0 {
        return finite((margin.exp() - 1.0).max(worth));
    }
    let quantile = student::quantile(1.0 - level / 2.0, contrast.freedom);
    let by_interval = margin + errors_for(quantile, contrast.freedom)? * contrast.error;
    let by_worth = worth.ln_1p() + errors_for(0.0, contrast.freedom)? * contrast.error;
    finite(by_interval.max(by_worth).exp() - 1.0)
}

/// Size of a change in standard errors, as estimated from these runs, that exceeds `quantile`
/// standard errors as estimated from the next runs, with [`POWER`]. Both estimates vary as a chi
/// distribution with the same degrees of freedom, approximated as normal.
fn errors_for(quantile: f64, freedom: f64) -> Option<f64> {
    let mean = 1.0 - 1.0 / (4.0 * freedom + 1.0);
    let variance = 1.0 - mean * mean;
    let power = student::quantile(POWER, 1e6);
    // (k - quantile) mean = power √(1 + (k² + quantile²) variance), solved for k.
    let squared = mean * mean - power * power * variance;
    let linear = -2.0 * quantile * mean * mean;
    let constant =
        quantile * quantile * mean * mean - power * power * (1.0 + quantile * quantile * variance);
    let root = linear.mul_add(linear, -4.0 * squared * constant);
    (squared > 0.0 && root >= 0.0).then(|| (-linear + root.sqrt()) / (2.0 * squared))
}
