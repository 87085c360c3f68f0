//! Student's interval of the mean of a sample.

use super::{deviation, mean, student::quantile};

/// Student's interval of the mean of independent values: mean ± t s / √n. It holds the true mean with
/// probability `share`. `None` with fewer than two values, or if one is not finite.
pub fn mean_interval(values: &[f64], share: f64) -> Option<(f64, f64)> {
    let (center, spread) = (mean(values)?, deviation(values)?);
    if spread == 0.0 {
        // All values are equal, and their mean may be rounded.
        return values[0].is_finite().then_some((values[0], values[0]));
    }
    let count = values.len() as f64;
    let half = quantile((1.0 + share) / 2.0, count - 1.0) * spread / count.sqrt();
    (center.is_finite() && half.is_finite()).then_some((center - half, center + half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_mean_is_that_of_the_textbook() {
        // R: t.test(1:5)$conf.int; 3 ± 2.776445 * sqrt(2.5) / sqrt(5)
        let (low, high) = mean_interval(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).unwrap();
        assert!(
            (low - 1.036_757).abs() < 1e-4 && (high - 4.963_243).abs() < 1e-4,
            "{low} {high}"
        );
        assert_eq!(mean_interval(&[0.1; 3], 0.95), Some((0.1, 0.1)));
        assert_eq!(mean_interval(&[1.0], 0.95), None);
        assert_eq!(mean_interval(&[1.0, f64::NAN], 0.95), None);
        assert_eq!(mean_interval(&[f64::INFINITY; 2], 0.95), None);
    }
}
