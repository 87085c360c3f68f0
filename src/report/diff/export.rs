//! The differences between two runs for programs: CSV and JSON, with whole values.

use serde_json::{Value, json};

use super::{FactPair, RunDiff};
use crate::output::csv;

/// Version of the object that [`RunDiff::json`] makes.
const KILN_DIFF: u32 = 1;

impl RunDiff {
    /// One line per difference and per fact that is not recorded by both.
    pub fn csv(&self) -> String {
        let line = |state: &str, pair: &FactPair| {
            let cell = |side: &Option<String>| side.clone().unwrap_or_default();
            [
                pair.section.name().to_owned(),
                pair.key.clone(),
                state.to_owned(),
                cell(&pair.a),
                cell(&pair.b),
            ]
        };
        let head = ["section", "key", "state", "a", "b"].map(str::to_owned);
        let differences = self.differences.iter().map(|pair| line("different", pair));
        let unknown = self.unknown.iter().map(|pair| line("not-recorded", pair));
        // Into memory: it cannot fail.
        std::iter::once(head)
            .chain(differences)
            .chain(unknown)
            .filter_map(|cells| csv::line(cells).ok())
            .collect()
    }

    /// One object, a line feed at its end. `a` and `b` name the runs.
    pub fn json(&self, a: &str, b: &str) -> String {
        let mut whole = json!({"kiln_diff": KILN_DIFF, "a": a, "b": b});
        if let (Value::Object(whole), Ok(Value::Object(found))) =
            (&mut whole, serde_json::to_value(self))
        {
            whole.extend(found);
        }
        serde_json::to_string_pretty(&whole).unwrap_or_default() + "\n"
    }
}
