//! Where one more value of a sample lies.

use super::student::quantile;

/// The interval that one more value of the same normal distribution lies in with probability
/// `share`: mean ± t s √(1 + 1/n). `None` with fewer than two values, or if one is not finite.
pub(crate) fn prediction_interval(values: &[f64], share: f64) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    let half = quantile((1.0 + share) / 2.0, count - 1.0) * deviation * (1.0 + 1.0 / count).sqrt();
    half.is_finite().then_some((mean - half, mean + half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_textbook() {
        // R: predict(lm(y ~ 1), interval = "prediction", level = 0.95) of these five values.
        let (low, high) = prediction_interval(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95).unwrap();
        // 3 ± 2.776445 * sqrt(2.5) * sqrt(1.2)
        assert!(
            (low + 1.808_888).abs() < 1e-4 && (high - 7.808_888).abs() < 1e-4,
            "{low} {high}"
        );
        assert_eq!(prediction_interval(&[1.0], 0.95), None);
        assert_eq!(prediction_interval(&[1.0, f64::NAN], 0.95), None);
    }
}
