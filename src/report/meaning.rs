//! Notes on numbers of an older meaning: a later version of `trials.csv` redefined their column.

use kiln_core::{
    record::{
        TrialRow,
        redefined::{REDEFINED, Redefinition},
    },
    units::counted,
};

use super::run_settings::RunSettings;

/// A share of the window under it is small in either meaning.
const SMALL_SHARE: f64 = 0.01;

/// A note on each change of meaning of which some of these rows are older, of a run with this
/// experiment.
pub(super) fn of_older(rows: &[&TrialRow], experiment: Option<&str>) -> Vec<String> {
    notes(rows, |change, shown| {
        (change.is_certain() || is_mixed(change, shown)) && !is_settled(change, &[experiment])
    })
}

/// A note on each change of meaning that lies between these rows, in a column of which `is_shown`; of
/// runs with these experiments.
pub(super) fn of_both(
    rows: &[&TrialRow],
    experiments: &[Option<&str>],
    is_shown: impl Fn(&str) -> bool,
) -> Vec<String> {
    notes(rows, |change, shown| {
        change.columns.iter().any(|column| is_shown(column))
            && is_mixed(change, shown)
            && !is_settled(change, experiments)
    })
}

/// Whether all experiments are known not to have the setting that a change concerns.
fn is_settled(change: &Redefinition, experiments: &[Option<&str>]) -> bool {
    let Some(setting) = change.setting else {
        return false;
    };
    let is_without = |experiment: &Option<&str>| {
        let settings = experiment.and_then(RunSettings::of);
        settings.is_some_and(|settings| settings.is_without(setting))
    };
    !experiments.is_empty() && experiments.iter().all(is_without)
}

fn is_mixed(change: &Redefinition, shown: &[&TrialRow]) -> bool {
    !change.is_one_meaning(shown.iter().copied())
}

/// `is_noted` is given a change and the rows that have a number in one of its columns.
fn notes(
    rows: &[&TrialRow],
    is_noted: impl Fn(&Redefinition, &[&TrialRow]) -> bool,
) -> Vec<String> {
    let of_change = |change: &Redefinition| {
        let has = |column: &str| rows.iter().any(|row| is_told(row, column));
        let columns = change.columns.iter().copied();
        let columns: Vec<&str> = columns.filter(|column| has(column)).collect();
        let mut shown = rows.to_vec();
        shown.retain(|row| columns.iter().any(|column| is_told(row, column)));
        let older = shown.iter().filter(|row| change.concerns(row)).count();
        let have = match (older == shown.len() && change.is_certain(), older) {
            (false, _) => "may have",
            (true, 1) => "has",
            (true, _) => "have",
        };
        (older > 0 && is_noted(change, &shown)).then(|| {
            format!(
                "`{}`: {older} of {} {have} an older meaning: before `trials/{}` {}",
                columns.join("`, `"),
                counted(shown.len(), "row"),
                change.since,
                change.before
            )
        })
    };
    REDEFINED.iter().filter_map(of_change).collect()
}

/// Whether pages show a number of this column for the row, or rest on it.
fn is_told(row: &TrialRow, column: &str) -> bool {
    let is_notable = |share: Option<f64>| share.is_some_and(|share| share >= SMALL_SHARE);
    match column {
        "data_wait_fraction" => is_notable(row.data_wait_fraction),
        "transfer_fraction" => is_notable(row.transfer_fraction),
        "energy_counter_joules" => row.energy_counter_joules.is_some(),
        "energy_integral_joules" => row.energy_integral_joules.is_some(),
        "mean_power_watts" => row.mean_power_watts.is_some(),
        "peak_nvml_used_bytes" => row.peak_nvml_used_bytes.is_some(),
        "peak_resident_bytes" => !row.is_on_gpu() && row.peak_resident_bytes.is_some(),
        "gradient_noise_scale" => row.gradient_noise_scale.is_some(),
        "valid_loss" => row.valid_loss.is_some(),
        "seconds_to_target" => row.seconds_to_target.is_some(),
        "steps_to_target" => row.steps_to_target.is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::tests::row;

    fn of_version(version: u32, change: fn(&mut TrialRow)) -> TrialRow {
        let mut row = row(1, 10.0);
        row.kiln_table = format!("trials/{version}");
        change(&mut row);
        row
    }

    #[test]
    fn a_share_of_the_older_meaning_is_noted() {
        let share = |row: &mut TrialRow| row.transfer_fraction = Some(0.4);
        let old = of_version(9, share);
        assert_eq!(
            of_older(&[&old], None),
            [
                "`transfer_fraction`: 1 of 1 row has an older meaning: before `trials/10` the \
                 host's preparation of a copy counted too"
            ]
        );
        let two = of_older(&[&old, &old], None);
        assert!(two[0].contains("2 of 2 rows have an older"), "{two:?}");
        let mixed = of_older(&[&old, &of_version(10, share)], None);
        assert!(mixed[0].contains("1 of 2 rows may have"), "{mixed:?}");
        assert!(of_older(&[&of_version(10, share)], None).is_empty());
        let small = of_version(9, |row| row.transfer_fraction = Some(0.001));
        assert!(of_older(&[&small], None).is_empty());
        let on_cpu = TrialRow {
            device_uuid: None,
            ..old
        };
        assert!(of_older(&[&on_cpu], None).is_empty());
    }

    #[test]
    fn a_change_between_the_rows_is_noted_for_the_columns_that_are_shown() {
        let resident = |row: &mut TrialRow| {
            row.device_uuid = None;
            row.peak_resident_bytes = Some(1 << 20);
        };
        let (older, newer) = (of_version(6, resident), of_version(12, resident));
        let noted = of_both(&[&older, &newer], &[], |column| {
            column == "peak_resident_bytes"
        });
        assert!(
            noted.len() == 1 && noted[0].starts_with("`peak_resident_bytes`: 1 of 2 rows may"),
            "{noted:?}"
        );
        assert_eq!(of_older(&[&older, &newer], None), noted);
        assert!(of_both(&[&older, &newer], &[], |column| column == "valid_loss").is_empty());
        for same in [&older, &newer] {
            assert!(of_both(&[same, same], &[], |_| true).is_empty());
            assert!(of_older(&[same, same], None).is_empty());
        }
    }

    #[test]
    fn a_change_that_no_trial_of_the_experiment_has_is_not_noted() {
        let loss = |row: &mut TrialRow| {
            row.model_kind = "lstm".to_owned();
            row.valid_loss = Some(2.0);
        };
        let rows = [of_version(9, loss), of_version(10, loss)];
        let rows = [&rows[0], &rows[1]];
        let of = |sampling: &str| {
            let data = format!("data: {{kind: generated, sampling: {sampling}}}");
            format!("kiln: 1\nname: x\nmodel: {{kind: lstm}}\n{data}\ntrain: {{steps: 5}}\n")
        };
        let texts = ["shuffled", "contiguous"].map(of);
        let [shuffled, contiguous] = [texts[0].as_str(), texts[1].as_str()];
        assert!(of_older(&rows, Some(shuffled)).is_empty());
        assert_eq!(of_older(&rows, Some(contiguous)).len(), 1);
        assert_eq!(of_older(&rows, None).len(), 1);
        let both = |other: Option<&str>| of_both(&rows, &[Some(shuffled), other], |_| true).len();
        assert_eq!(both(Some(shuffled)), 0);
        assert_eq!(both(Some(contiguous)), 1);
        assert_eq!(both(None), 1);
    }
}
