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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_names_the_limit_of_two_energies() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measurement.md");
        let text = std::fs::read_to_string(file).unwrap();
        let sentence = format!(
            "the two more than {:.0} % apart give a note",
            ENERGY_APART * 100.0
        );
        assert!(text.contains(&sentence), "{file} lacks: {sentence}");
    }
}
