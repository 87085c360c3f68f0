//! The settings that a row of `trials.csv` has twice: as the value of an axis, and in a fixed column.

use super::TrialRow;

/// A fixed column that always has the value of an axis.
pub(super) struct FixedSetting {
    pub(super) column: &'static str,
    pub(super) cell: String,
}

impl FixedSetting {
    /// The column with the value of this axis; `None` if there is none, or if its cell is empty. A seed
    /// counts up with the repeats, so it is not one.
    pub(super) fn of(row: &TrialRow, axis: &str) -> Option<Self> {
        // A command without such a value has 0, which is an empty cell.
        let count = |value: u64| (value > 0).then(|| value.to_string());
        let text = |value: &str| (!value.is_empty()).then(|| value.to_owned());
        let (column, cell) = match axis {
            "train.batch_size" | "model.values.batch_size" => ("batch_size", count(row.batch_size)),
            "train.grad_accumulation" | "model.values.grad_accumulation" => {
                ("grad_accumulation", count(row.grad_accumulation))
            }
            "data.num_workers" | "model.values.num_workers" => {
                let workers = row.num_workers.map(|workers| workers.to_string());
                ("num_workers", workers)
            }
            "train.precision" | "model.values.precision" => ("precision", text(&row.precision)),
            "run.engine" => ("engine", text(&row.engine)),
            "model.kind" => ("model_kind", text(&row.model_kind)),
            "data.kind" => ("data_kind", text(&row.data_kind)),
            _ => return None,
        };
        cell.map(|cell| Self { column, cell })
    }

    /// Whether a cell of the axis is another value. An empty cell is the base value, and `auto` is
    /// resolved in the column.
    pub(super) fn contradicts(&self, cell: &str) -> bool {
        match (self.cell.parse::<f64>(), cell.parse::<f64>()) {
            (Ok(own), Ok(other)) => own.total_cmp(&other).is_ne(),
            (Ok(_), Err(_)) => false,
            (Err(_), _) => !cell.is_empty() && cell != self.cell,
        }
    }

    /// Whether a cell of the axis is the same number in another form.
    pub(super) fn is_other_form(&self, cell: &str) -> bool {
        cell != self.cell && cell.parse::<f64>().is_ok() && !self.contradicts(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_contradicts_another_value_and_no_other_form_of_its_own() {
        let row = TrialRow {
            batch_size: 8,
            precision: "f32".to_owned(),
            num_workers: Some(2),
            seed: 1,
            ..TrialRow::default()
        };
        let found = |axis: &str, cell: &str| {
            let setting = FixedSetting::of(&row, axis);
            setting.map(|setting| (setting.contradicts(cell), setting.is_other_form(cell)))
        };
        assert_eq!(found("train.batch_size", "8"), Some((false, false)));
        assert_eq!(found("train.batch_size", "8.0"), Some((false, true)));
        assert_eq!(found("train.batch_size", "32"), Some((true, false)));
        assert_eq!(found("train.batch_size", ""), Some((false, false)));
        assert_eq!(found("data.num_workers", "auto"), Some((false, false)));
        assert_eq!(found("train.precision", "tf32"), Some((true, false)));
        assert_eq!(found("train.precision", ""), Some((false, false)));
        assert_eq!(found("train.seed", "2"), None, "repeats count it up");
        assert_eq!(found("run.engine", "flex"), None, "an empty cell");
        assert_eq!(found("train.grad_accumulation", "2"), None, "0 is empty");
    }
}
