//! Student's t distribution, with non-integer degrees of freedom.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Quantile of Student's t.
pub(crate) fn quantile(share: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |t| t.inverse_cdf(share))
}

/// Probability of a value at least this far from 0, on either side.
pub(super) fn two_sided(t: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(1.0, |distribution| 2.0 * distribution.cdf(-t.abs()))
}
