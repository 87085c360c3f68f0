//! Energy per sample of the points of a report: of one source in one mean, and without trials whose
//! two energies contradict each other. A comparison reads the same numbers.

use kiln_core::record::TrialRow;

use super::{diagnosis::energies_apart, points::Point};

/// The energy per sample of a row.
pub(super) type RowEnergy = fn(&TrialRow) -> Option<f64>;

/// How the energies of a point are read: by the driver's counter if each trial with an energy has it,
/// else by the power readings if each has those, else not at all.
pub(super) fn energy_of(point: &Point<'_>) -> RowEnergy {
    let known = with_energy(point);
    let sources: [RowEnergy; 2] = [by_counter, by_readings];
    sources
        .into_iter()
        .find(|of| known.iter().all(|row| of(row).is_some()))
        .unwrap_or(|_| None)
}

/// Whether the trials of a point have their energies from different sources, so that no mean is made.
pub(super) fn is_mixed(point: &Point<'_>) -> bool {
    let of = energy_of(point);
    with_energy(point).iter().any(|row| of(row).is_none())
}

/// Whether the two energies of a row contradict each other.
pub(super) fn is_in_doubt(row: &TrialRow) -> bool {
    energies_apart(row).is_some()
}

fn with_energy<'a>(point: &'a Point<'_>) -> Vec<&'a TrialRow> {
    let has_energy = |row: &&TrialRow| by_counter(row).or(by_readings(row)).is_some();
    point.completed().filter(has_energy).collect()
}

/// By the driver's counter; `None` if the two energies contradict each other.
pub(super) fn by_counter(row: &TrialRow) -> Option<f64> {
    let joules = row.energy_counter_joules.filter(|_| !is_in_doubt(row));
    row.energy_per_sample(joules)
}

/// By the power readings; `None` if the two energies contradict each other.
pub(super) fn by_readings(row: &TrialRow) -> Option<f64> {
    let joules = row.energy_integral_joules.filter(|_| !is_in_doubt(row));
    row.energy_per_sample(joules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::{
        points,
        tests::{row, table},
    };

    /// Energies of ten samples each: by the counter, by the readings.
    fn mean(energies: &[[Option<f64>; 2]]) -> (Option<f64>, usize, bool) {
        let rows = energies.iter().zip(1..).map(|([counter, integral], id)| {
            let fixed = TrialRow {
                energy_counter_joules: *counter,
                energy_integral_joules: *integral,
                window_seconds: Some(1.0),
                ..row(id, 10.0)
            };
            (fixed, &["x"][..])
        });
        let table = table(&["a.b"], rows.collect());
        let all = points(&table);
        let energy = all[0].statistic(energy_of(&all[0]));
        let runs = energy.as_ref().map_or(0, |energy| energy.runs);
        (energy.map(|energy| energy.mean), runs, is_mixed(&all[0]))
    }

    #[test]
    fn a_mean_energy_is_of_one_source_and_of_energies_that_agree() {
        let whole = [Some(100.0), Some(110.0)];
        assert_eq!(mean(&[whole, whole]), (Some(10.0), 2, false));
        // Without the counter of one trial the readings of both count.
        assert_eq!(mean(&[whole, [None, Some(110.0)]]), (Some(11.0), 2, false));
        // One trial has the counter alone, the other the readings alone.
        let mixed = mean(&[[Some(100.0), None], [None, Some(110.0)]]);
        assert_eq!(mixed, (None, 0, true));
        // Of a trial without energy nothing is known.
        assert_eq!(mean(&[whole, [None, None]]), (Some(10.0), 1, false));
        // Energies that are far apart are both left out.
        let apart = [Some(100.0), Some(200.0)];
        assert_eq!(mean(&[whole, apart]), (Some(10.0), 1, false));
        assert_eq!(mean(&[apart, apart]), (None, 0, false));
    }
}
