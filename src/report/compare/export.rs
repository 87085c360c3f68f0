//! A comparison for programs: CSV and JSON.

use kiln_core::units::exact;
use serde_json::{Value, json};

use crate::output::csv;

use super::{
    Comparison, ComparisonPage,
    words::{design, word},
};

/// Version of the object that [`ComparisonPage::json`] makes.
const KILN_COMPARE: u32 = 1;
const CSV_COLUMNS: [&str; 20] = [
    "point",
    "metric",
    "verdict",
    "base",
    "new",
    "ratio",
    "low",
    "high",
    "visible",
    "base_runs",
    "new_runs",
    "not_comparable",
    "column",
    "across",
    "order",
    "base_disturbed",
    "new_disturbed",
    "treatment",
    "side",
    "blocks",
];

impl ComparisonPage<'_> {
    /// One line per comparison; numbers in the unit of their metric.
    pub fn csv(&self) -> String {
        let number = |value: Option<f64>| value.map(exact).unwrap_or_default();
        let mut lines = vec![CSV_COLUMNS.map(str::to_owned)];
        let across = self
            .found
            .across
            .iter()
            .map(|unlike| unlike.field.name())
            .collect::<Vec<_>>()
            .join(" ");
        // With several sides a key is there for each.
        let mut treatment: Vec<&str> = Vec::new();
        for one in &self.found.treatment {
            if !treatment.contains(&one.key.as_str()) {
                treatment.push(&one.key);
            }
        }
        for pair in &self.found.pairs {
            let unlike: Vec<&str> = pair
                .unlike
                .iter()
                .map(|unlike| unlike.field.name())
                .collect();
            for comparison in &pair.comparisons {
                let Comparison {
                    metric,
                    base,
                    new,
                    ratio,
                    interval,
                    visible,
                    base_runs,
                    new_runs,
                    ..
                } = comparison;
                lines.push([
                    pair.name.clone(),
                    metric.name().to_owned(),
                    word(comparison).to_owned(),
                    exact(*base),
                    exact(*new),
                    number(Some(*ratio).filter(|ratio| ratio.is_finite())),
                    number(interval.map(|ends| ends[0])),
                    number(interval.map(|ends| ends[1])),
                    number(*visible),
                    base_runs.to_string(),
                    new_runs.to_string(),
                    comparison.refusal.clone().unwrap_or(unlike.join(" ")),
                    comparison.column.to_owned(),
                    across.clone(),
                    comparison.design.map(design).unwrap_or_default().to_owned(),
                    pair.disturbed[0].len().to_string(),
                    pair.disturbed[1].len().to_string(),
                    treatment.join(" "),
                    pair.side.clone().unwrap_or_default(),
                    pair.blocks
                        .as_ref()
                        .map(|blocks| blocks.pairs.to_string())
                        .unwrap_or_default(),
                ]);
            }
        }
        // Into memory: it cannot fail.
        lines
            .iter()
            .filter_map(|cells| csv::line(cells).ok())
            .collect()
    }

    /// For programs: one object.
    pub fn value(&self) -> Value {
        let mut whole = json!({
            "kiln_compare": KILN_COMPARE,
            "base": self.base,
            "new": self.new,
            "facts": self.facts,
        });
        if let (Value::Object(whole), Ok(Value::Object(found))) =
            (&mut whole, serde_json::to_value(self.found))
        {
            whole.extend(found);
        }
        for (place, pair) in self.found.pairs.iter().enumerate() {
            for (index, comparison) in pair.comparisons.iter().enumerate() {
                whole["pairs"][place]["comparisons"][index]["word"] = word(comparison).into();
            }
        }
        whole
    }
}
