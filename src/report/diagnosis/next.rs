//! The next experiment: keys to set and to vary, as a YAML layer above the experiment of a trial.

use serde_json::Value;

use super::trial_context::TrialContext;
use crate::output::json;

/// Keys of the next experiment. What the run's sweep varies and this one does not keeps the trial's
/// value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Next {
    /// Dotted key to its values, in order; a single one is set.
    keys: Vec<(String, Vec<Value>)>,
    repeats: Option<u64>,
}

impl Next {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn set(self, key: &str, value: impl Into<Value>) -> Self {
        self.vary(key, [value])
    }

    /// Duplicate values are removed; without values the key is omitted.
    pub(super) fn vary<T: Into<Value>>(
        mut self,
        key: &str,
        values: impl IntoIterator<Item = T>,
    ) -> Self {
        let mut kept: Vec<Value> = Vec::new();
        for value in values.into_iter().map(Into::into) {
            if !kept.contains(&value) {
                kept.push(value);
            }
        }
        if !kept.is_empty() {
            self.keys.push((key.to_owned(), kept));
        }
        self
    }

    pub(super) fn repeat(mut self, times: u64) -> Self {
        self.repeats = Some(times);
        self
    }

    pub(super) fn when(self, holds: bool, more: impl FnOnce(Self) -> Self) -> Self {
        if holds { more(self) } else { self }
    }

    /// One line per section, for a trial of this run; empty for a command of which no value is known
    /// to change anything.
    pub(super) fn yaml(&self, case: &TrialContext<'_>) -> String {
        let keys = self.keys.iter();
        let keys: Vec<(String, Vec<Value>)> = keys
            .filter_map(|(key, values)| Some((case.key(key)?, values.clone())))
            .collect();
        if case.is_command() && keys.is_empty() && self.repeats.is_none() {
            return String::new();
        }
        let (varied, set): (Vec<_>, Vec<_>) = keys
            .iter()
            .partition(|(key, values)| values.len() > 1 || case.sweeps(key));
        let mut sections: Vec<(String, String)> = Vec::new();
        for (key, values) in set {
            let mut names = key.split('.');
            let section = names.next().unwrap_or_default().to_owned();
            let inner = nested(&names.collect::<Vec<_>>(), &values[0].to_string());
            match sections.iter_mut().find(|(name, _)| *name == section) {
                Some((_, text)) => text.push_str(&format!(", {inner}")),
                None => sections.push((section, inner)),
            }
        }
        sections.extend(
            self.sweep(&varied, case)
                .map(|sweep| ("sweep".to_owned(), sweep)),
        );
        sections
            .iter()
            .map(|(section, inner)| format!("{section}: {{{inner}}}\n"))
            .collect()
    }

    fn sweep(&self, varied: &[&(String, Vec<Value>)], case: &TrialContext<'_>) -> Option<String> {
        let pinned = case
            .axes()
            .iter()
            .zip(case.point.values)
            .filter(|(axis, _)| varied.iter().all(|(key, _)| key != *axis));
        let pinned = pinned.map(|(axis, cell)| format!("{}: [{}]", key(axis), scalar(cell)));
        let axis = |(key, values): &&(String, Vec<Value>)| {
            format!(
                "{}: [{}]",
                self::key(key),
                values.iter().map(value).collect::<Vec<_>>().join(", ")
            )
        };
        let grid: Vec<String> = pinned.chain(varied.iter().map(axis)).collect();
        let mut parts = Vec::new();
        let repeats = self.repeats.filter(|_| !case.sweeps("train.seed"));
        // A sweep has no search beside its values.
        if case.around.is_search && (!grid.is_empty() || repeats.is_some()) {
            parts.push("search: null".to_owned());
        }
        if !case.around.is_plain_grid {
            // An upper layer merges with the sweep below it; `null` removes an axis.
            let zip: Vec<String> = case
                .axes()
                .iter()
                .map(|axis| format!("{}: null", key(axis)))
                .collect();
            parts.push(format!(
                "zip: {{{}}}, include: [], exclude: []",
                zip.join(", ")
            ));
        }
        if !grid.is_empty() {
            parts.push(format!("grid: {{{}}}", grid.join(", ")));
        }
        // `repeats` is not allowed where the seed is an axis.
        if let Some(times) = repeats {
            parts.push(format!("repeats: {times}"));
            if case.ran_apart() {
                parts.push("order: interleaved".to_owned());
            }
        }
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// `memory: {watch: true}` of `["memory", "watch"]`.
fn nested(names: &[&str], value: &str) -> String {
    match names {
        [] => value.to_owned(),
        [last] => format!("{last}: {}", unquoted(value)),
        [first, rest @ ..] => format!("{first}: {{{}}}", nested(rest, value)),
    }
}

fn value(value: &Value) -> String {
    unquoted(&value.to_string())
}

/// JSON text is YAML; a plain word needs no quotes.
fn unquoted(json: &str) -> String {
    let bare = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match bare {
        Some(word) if is_word(word) => word.to_owned(),
        _ => json.to_owned(),
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

/// The cell of an axis as the experiment wrote it: numbers, words, lists and maps as they are, the
/// rest quoted.
fn scalar(cell: &str) -> String {
    let is_json = serde_json::from_str::<Value>(cell).is_ok();
    match cell {
        "" => "null".to_owned(),
        cell if is_json || is_word(cell) => cell.to_owned(),
        cell => quoted(cell),
    }
}

/// A dotted key; one that a table names and no experiment can is quoted.
fn key(axis: &str) -> String {
    if axis.split('.').all(is_word) {
        axis.to_owned()
    } else {
        quoted(axis)
    }
}

/// Text in double quotes, on one line and without hidden characters.
fn quoted(text: &str) -> String {
    json::escaped(&Value::from(text).to_string())
}

#[cfg(test)]
mod tests {
    use super::{super::run_context::RunContext, *};
    use crate::report::points::{
        points,
        tests::{row, table},
    };

    fn yaml(axes: &[&str], points_of: &[&[&str]], next: &Next) -> String {
        yaml_of((axes, points_of), next, false)
    }

    fn yaml_of((axes, points_of): (&[&str], &[&[&str]]), next: &Next, is_search: bool) -> String {
        let table = table(
            axes,
            points_of
                .iter()
                .enumerate()
                .map(|(at, values)| (row(at as u64 + 1, 1.0), *values))
                .collect(),
        );
        let run = points(&table);
        next.yaml(&TrialContext::new(
            run[0].rows[0],
            0,
            &RunContext::new(&table.axes, &run).searched(is_search),
        ))
    }

    #[test]
    fn the_next_sweep_of_a_search_is_no_search() {
        let searched = |next: &Next| {
            let points: [&[&str]; 2] = [&["8"], &["16"]];
            yaml_of((&["train.batch_size"], &points), next, true)
        };
        assert_eq!(
            searched(&Next::new().repeat(3)),
            "sweep: {search: null, grid: {train.batch_size: [8]}, repeats: 3}\n"
        );
        assert_eq!(
            searched(&Next::new().vary("train.batch_size", [8_u64, 32])),
            "sweep: {search: null, grid: {train.batch_size: [8, 32]}}\n"
        );
    }

    #[test]
    fn what_is_tried_is_varied_and_other_axes_keep_the_trials_value() {
        let next = Next::new()
            .vary("data.num_workers", [0_u64, 2, 2, 4])
            .set("train.memory.watch", true)
            .set("run.wait", "30m");
        assert_eq!(
            yaml(&[], &[&[]], &next),
            "train: {memory: {watch: true}}\nrun: {wait: \"30m\"}\nsweep: {grid: \
             {data.num_workers: [0, 2, 4]}}\n"
        );
        let swept = yaml(
            &["train.batch_size", "data.num_workers"],
            &[&["8", "0"], &["8", "1"]],
            &next,
        );
        assert!(
            swept
                .ends_with("sweep: {grid: {train.batch_size: [8], data.num_workers: [0, 2, 4]}}\n"),
            "{swept}"
        );
        let set = Next::new().set("train.batch_size", 4_u64);
        assert_eq!(
            yaml(&["train.batch_size"], &[&["8"], &["16"]], &set),
            "sweep: {grid: {train.batch_size: [4]}}\n"
        );
    }

    #[test]
    fn a_hostile_axis_is_one_key_and_its_value_one_text() {
        let values = "a\nb: [c]\u{202e}";
        let swept = yaml(
            &["a.b", "x: {\ny"],
            &[&["1", values]],
            &Next::new().repeat(3),
        );
        assert_eq!(
            swept,
            "sweep: {grid: {a.b: [1], \"x: {\\ny\": [\"a\\nb: [c]\\u202e\"]}, repeats: 3}\n"
        );
        let read: Value = serde_yaml::from_str(&swept).unwrap();
        assert_eq!(read["sweep"]["grid"]["x: {\ny"][0], values);
    }

    #[test]
    fn a_sweep_that_is_no_grid_is_put_aside_and_an_axis_of_seeds_is_not_repeated() {
        let next = Next::new().repeat(3);
        assert_eq!(
            yaml(&["a.b"], &[&["1"], &["2"]], &next),
            "sweep: {grid: {a.b: [1]}, repeats: 3}\n"
        );
        let zipped = yaml(
            &["a.b", "a.c"],
            &[&["x y", "{\"kind\":\"sgd\"}"], &["", "w"]],
            &next,
        );
        assert_eq!(
            zipped,
            "sweep: {zip: {a.b: null, a.c: null}, include: [], exclude: [], grid: {a.b: [\"x y\"], \
             a.c: [{\"kind\":\"sgd\"}]}, repeats: 3}\n"
        );
        assert_eq!(
            yaml(&["train.seed"], &[&["1"], &["2"]], &next),
            "sweep: {grid: {train.seed: [1]}}\n"
        );
    }
}
