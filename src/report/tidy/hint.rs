//! A hint at the column that an unknown name may mean.

use kiln_core::{kinds::command::METRIC_PREFIX, spec::suggest::nearest};

use crate::report::{heads::HEADS, metrics::LEARNED};

/// Heads of the tables on pages, and the columns that they show.
fn heads() -> impl Iterator<Item = (&'static str, &'static str)> {
    let learned = LEARNED
        .iter()
        .map(|column| (column.head(&[]), column.metric.name()));
    learned.chain(HEADS.iter().map(|head| (head.text, head.column)))
}

/// A hint at the column that an unknown name may mean, empty if none is near, and the list of the
/// known columns. A metric may be named without its prefix.
pub(in crate::report) fn hint_and_names(name: &str, known: &[&str]) -> (String, String) {
    let metric = format!("{METRIC_PREFIX}{name}");
    let is_of_head = |(head, column): &(&str, &str)| *head == name && known.contains(column);
    let of_head = || heads().find(is_of_head).map(|(_, column)| column);
    let near = match known.contains(&metric.as_str()) {
        true => Some(metric.as_str()),
        false => of_head().or_else(|| nearest(name, known.iter().copied())),
    };
    let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    let names: Vec<String> = known.iter().map(|column| format!("`{column}`")).collect();
    (hint, names.join(", "))
}
