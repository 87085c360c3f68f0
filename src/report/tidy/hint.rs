//! A hint at the column that an unknown name may mean.

use kiln_core::{kinds::command::METRIC_PREFIX, spec::suggest::nearest};

/// Heads of the tables on pages, and the columns that they show.
const HEADS: [(&str, &str); 10] = [
    ("loss", "train_loss"),
    ("valid loss", "valid_loss"),
    ("samples/s", "samples_per_second"),
    ("tokens/s", "tokens_per_second"),
    ("step", "median_step_seconds"),
    ("data wait", "data_wait_fraction"),
    ("memory", "peak_memory_bytes"),
    ("top-1", "valid_top1"),
    ("hit rate", "valid_hit_rate"),
    ("BLEU-4", "valid_bleu4"),
];

/// A hint at the column that an unknown name may mean, empty if none is near, and the list of the
/// known columns. A metric may be named without its prefix.
pub(in crate::report) fn hint_and_names(name: &str, known: &[&str]) -> (String, String) {
    let metric = format!("{METRIC_PREFIX}{name}");
    let is_of_head = |(head, column): &&(&str, &str)| *head == name && known.contains(column);
    let of_head = || HEADS.iter().find(is_of_head).map(|(_, column)| *column);
    let near = match known.contains(&metric.as_str()) {
        true => Some(metric.as_str()),
        false => of_head().or_else(|| nearest(name, known.iter().copied())),
    };
    let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    let names: Vec<String> = known.iter().map(|column| format!("`{column}`")).collect();
    (hint, names.join(", "))
}
