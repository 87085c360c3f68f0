//! Limits from which a reading deserves a remark: for the sentences of a snapshot, health checks,
//! notes of a trial, and the diagnosis.

/// From this fraction of the power limit on, the limit is near.
pub const NEAR_POWER: f64 = 0.95;
/// From this fraction of the power limit on, it may reduce the clocks. Some idle boards report it
/// as a reason.
pub const LIMITING_POWER: f64 = 0.8;
/// At this many degrees below the temperature at which it slows down, a GPU is hot.
pub const HOT_MARGIN_CELSIUS: i64 = 5;
/// If the counter and the integral of energy differ by more than this fraction of the larger, one
/// of them is wrong.
pub const ENERGY_APART: f64 = 0.15;
/// A mean needs values over at least this fraction of the window: one of a smaller part would be
/// taken for that of the whole.
pub const LEAST_COVERED_BY_MEAN: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_names_the_limits_of_energies_and_of_means() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measurement.md");
        let text = std::fs::read_to_string(file).unwrap();
        let apart = ENERGY_APART * 100.0;
        let covered = LEAST_COVERED_BY_MEAN * 100.0;
        for sentence in [
            format!("the two more than {apart:.0} % apart give a note"),
            format!("A mean whose own readings cover less than {covered:.0} % of the window"),
        ] {
            assert!(text.contains(&sentence), "{file} lacks: {sentence}");
        }
    }
}
