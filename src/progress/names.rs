//! The names of trials for people: their parameters. Ids stay in events, tables and paths.

use kiln_core::plan::{Trial, show};

/// The part of a trial's settings that its name tells.
#[derive(Clone, Debug)]
pub(crate) struct NamedSettings<'a> {
    /// Dotted key and value of each axis, in file order.
    pub(crate) axes: &'a [(String, String)],
    pub(crate) seed: u64,
    /// Whether its point has several seeds.
    pub(crate) is_repeated: bool,
}

impl NamedSettings<'_> {
    /// Returns the values of the axes and, where the point is repeated or nothing varies, the seed:
    /// `batch_size=8, num_workers=4, seed=2`.
    pub(crate) fn name(&self) -> String {
        let mut parts: Vec<String> = self
            .axes
            .iter()
            .map(|(key, value)| format!("{}={value}", self.shortened(key)))
            .collect();
        let has_seed = self.axes.iter().any(|(key, _)| key == "train.seed");
        if (self.is_repeated && !has_seed) || parts.is_empty() {
            parts.push(format!("seed={}", self.seed));
        }
        parts.join(", ")
    }

    /// The last part of a key, or all of it where another axis has the same last part.
    fn shortened<'k>(&self, key: &'k str) -> &'k str {
        let last = last_part(key);
        let alike = self.axes.iter().filter(|(key, _)| last_part(key) == last);
        if alike.count() > 1 { key } else { last }
    }
}

/// The name of a planned trial.
pub(crate) fn name(trial: &Trial, is_repeated: bool) -> String {
    let axes: Vec<(String, String)> = trial
        .axes
        .iter()
        .map(|(key, value)| (key.clone(), show(value)))
        .collect();
    let name = NamedSettings {
        axes: &axes,
        seed: trial.train.seed,
        is_repeated,
    }
    .name();
    let shows_batch = axes.iter().any(|(key, _)| key == "train.batch_size");
    match trial.fallback_of {
        Some(_) if !shows_batch => format!("{name}, batch_size={}", trial.train.batch_size),
        _ => name,
    }
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(axes: &[(&str, &str)], is_repeated: bool) -> String {
        let axes: Vec<(String, String)> = axes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        NamedSettings {
            axes: &axes,
            seed: 3,
            is_repeated,
        }
        .name()
    }

    #[test]
    fn a_trial_is_named_by_what_varies_and_no_two_parts_are_alike() {
        let axes = [("train.batch_size", "8"), ("data.num_workers", "4")];
        assert_eq!(named(&axes, false), "batch_size=8, num_workers=4");
        assert_eq!(named(&axes, true), "batch_size=8, num_workers=4, seed=3");
        assert_eq!(named(&[], false), "seed=3");
        let alike = [("model.kind", "gpt"), ("data.kind", "text")];
        assert_eq!(named(&alike, false), "model.kind=gpt, data.kind=text");
        assert_eq!(named(&[("train.seed", "7")], true), "seed=7");
    }
}
