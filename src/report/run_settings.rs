//! The settings of a run, from its resolved experiment: the value of each key, or the values that
//! its axis takes.

use std::{collections::BTreeMap, path::PathBuf};

use kiln_core::{
    plan::show,
    record::{difference::leaves, redefined::ConcernedSetting},
    spec,
};
use serde_json::Value;

/// A key's value in a whole run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Setting {
    One(Value),
    Swept {
        /// Whether the axis varies together with others (`sweep.zip`).
        is_zipped: bool,
        values: Vec<Value>,
    },
}

impl Setting {
    /// The value as text; those of an axis in their order.
    pub(super) fn text(&self) -> String {
        self.short_text(usize::MAX)
    }

    /// The value as text, with at most so many values of an axis.
    pub(super) fn short_text(&self, most: usize) -> String {
        let (is_zipped, values) = match self {
            Self::One(value) => return show(value),
            Self::Swept { is_zipped, values } => (*is_zipped, values),
        };
        let shown: Vec<String> = values.iter().take(most).map(show).collect();
        let left_out = match values.len().saturating_sub(most) {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        format!(
            "swept{}: {}{left_out}",
            if is_zipped { " (zip)" } else { "" },
            shown.join(", ")
        )
    }

    /// Whether both mean the same; 1 and 1.0 do.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One(one), Self::One(other)) => is_same_value(one, other),
            (
                Self::Swept { is_zipped, values },
                Self::Swept {
                    is_zipped: other_zipped,
                    values: others,
                },
            ) => {
                is_zipped == other_zipped
                    && values.len() == others.len()
                    && values.iter().zip(others).all(|(a, b)| is_same_value(a, b))
            }
            _ => false,
        }
    }
}

/// Whether two values are equal; 1 and 1.0 are.
pub(super) fn is_same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|own| is_same_value(value, own)))
        }
        _ => one == other,
    }
}

/// The settings of a run by dotted key. The values of an axis stand at the key that varies.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunSettings {
    pub(super) settings: BTreeMap<String, Setting>,
    /// Whether every key is here, so that an absent one is known to be not set. An experiment that
    /// this kiln cannot check, such as one of a newer kiln, has only what was written.
    pub(super) is_complete: bool,
    /// The keys that are computed from others (`sweep.derive`). Their settings are the expressions.
    pub(super) derived: Vec<String>,
}

/// The section of derived keys.
const DERIVED: &str = "sweep.derive.";
/// Sections of axes, and whether the axes of each vary together.
const AXES: [(&str, bool); 3] = [
    ("sweep.grid.", false),
    ("sweep.zip.", true),
    ("sweep.search.axes.", false),
];
/// Keys whose default has changed, with the one of the runs that do not have the key.
const OLD_DEFAULTS: [(&str, &str, Value); 1] = [("data", "pin_memory", Value::Bool(false))];
/// Keys that name a run and affect nothing.
const LABELS: [&str; 3] = ["kiln", "name", "description"];

impl RunSettings {
    /// Reads a resolved experiment; `None` if it is not one.
    pub(super) fn of(text: &str) -> Option<Self> {
        spec::check_growth(text).ok()?;
        let written: Value = spec::read_yaml(text).ok()?;
        written.as_object()?;
        let complete = completed(&written, text);
        let is_complete = complete.is_some();
        let mut settings = BTreeMap::new();
        let mut axes = BTreeMap::new();
        let mut derived = BTreeMap::new();
        for (key, value) in leaves(complete.unwrap_or(written), &|_| false) {
            let axis = AXES.iter().find_map(|(section, is_zipped)| {
                let axis = key.strip_prefix(section)?;
                Some((axis.to_owned(), *is_zipped, value.as_array()?.clone()))
            });
            match axis {
                Some((axis, is_zipped, values)) => {
                    axes.insert(axis, Setting::Swept { is_zipped, values });
                }
                None if LABELS.contains(&key.as_str()) => {}
                None => match key.strip_prefix(DERIVED) {
                    Some(of) => drop(derived.insert(of.to_owned(), Setting::One(value))),
                    None => drop(settings.insert(key, Setting::One(value))),
                },
            }
        }
        // A swept map replaces the keys below it.
        settings.retain(|key, _| {
            !axes.keys().any(|axis: &String| {
                key.strip_prefix(axis.as_str())
                    .is_some_and(|rest| rest.starts_with('.'))
            })
        });
        settings.extend(axes);
        let keys_of_derived = derived.keys().cloned().collect();
        settings.extend(derived);
        Some(Self {
            settings,
            is_complete,
            derived: keys_of_derived,
        })
    }

    /// The values of the keys that do not vary, as cells of a table.
    pub(super) fn fixed(&self) -> BTreeMap<String, String> {
        let one = |(key, setting): (&String, &Setting)| match setting {
            Setting::One(value) if value.is_null() => Some((key.clone(), String::new())),
            Setting::One(_) => Some((key.clone(), setting.text())),
            Setting::Swept { .. } => None,
        };
        self.settings.iter().filter_map(one).collect()
    }

    /// Whether all trials of the run are known not to have this setting.
    pub(super) fn is_without(&self, setting: ConcernedSetting) -> bool {
        let is_swept = matches!(self.settings.get(setting.key), Some(Setting::Swept { .. }));
        let included = match self.settings.get("sweep.include") {
            Some(Setting::One(entries)) => entries.as_array(),
            _ => None,
        };
        let mut included = included.into_iter().flatten();
        let is_included = included.any(|entry| entry.get(setting.key).is_some());
        self.is_complete && !is_swept && !is_included && is_without(&self.fixed(), setting)
    }
}

/// Whether a run with these values, as of [`RunSettings::fixed`], is known not to have this setting.
pub(super) fn is_without(fixed: &BTreeMap<String, String>, setting: ConcernedSetting) -> bool {
    match setting.value {
        Some(value) => fixed.get(setting.key).is_some_and(|known| known != value),
        // Without any setting nothing is known.
        None => !fixed.is_empty() && !fixed.contains_key(setting.key),
    }
}

/// A resolved experiment with every default, or as it was written where this kiln cannot check it; `None`
/// if it is not one.
pub fn complete_experiment(text: &str) -> Option<Value> {
    spec::check_growth(text).ok()?;
    let written: Value = spec::read_yaml(text).ok()?;
    written.as_object()?;
    Some(completed(&written, text).unwrap_or(written))
}

/// The experiment with every default, as this kiln reads it: a key that is newer than the run then
/// has the value that stands for what kiln did before. `None` if it does not pass the checks.
fn completed(written: &Value, text: &str) -> Option<Value> {
    // A resolved experiment stands alone; another file is not read for it.
    if written.get("extends").is_some() {
        return None;
    }
    let file = PathBuf::from("experiment.yaml");
    let request = spec::ExperimentRequest::of_run(file, text.to_owned(), Vec::new());
    let loaded = spec::load(&request).ok()?;
    let mut whole: Value = spec::read_yaml(&spec::write_resolved(&loaded)).ok()?;
    for (section, key, old) in OLD_DEFAULTS {
        if written
            .get(section)
            .is_some_and(|given| given.get(key).is_none())
            && let Some(value) = whole.get_mut(section).and_then(|all| all.get_mut(key))
        {
            *value = old;
        }
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated}\n";

    fn text(settings: &RunSettings, key: &str) -> Option<String> {
        settings.settings.get(key).map(Setting::text)
    }

    #[test]
    fn a_run_is_without_a_setting_that_no_trial_has() {
        let setting = ConcernedSetting {
            key: "data.sampling",
            value: Some("contiguous"),
        };
        let text = "kiln: 1\nname: x\nmodel: {kind: lstm}\n";
        let is_without = |more: &str| {
            let settings = RunSettings::of(&format!("{text}{more}")).unwrap();
            assert!(settings.is_complete, "{more}");
            settings.is_without(setting)
        };
        let generated = "data: {kind: generated}\ntrain: {steps: 5}\n";
        assert!(is_without(generated), "the default");
        let contiguous = "data: {kind: generated, sampling: contiguous}\ntrain: {steps: 5}\n";
        assert!(!is_without(contiguous));
        for sweep in [
            "grid: {data.sampling: [shuffled, contiguous]}",
            "include: [{data.sampling: contiguous}]",
        ] {
            assert!(!is_without(&format!("{generated}sweep: {{{sweep}}}\n")));
        }
    }

    #[test]
    fn defaults_are_filled_in_and_axes_stand_at_the_keys_that_vary() {
        let of = |more: &str| RunSettings::of(&format!("{SMALL}{more}")).unwrap();
        let swept = of(
            "train: {steps: 5}\nsweep: {grid: {train.batch_size: [8, 16]}, zip: {model.hidden: \
             [4, 8], model.d_model: [2, 4]}}\n",
        );
        assert!(swept.is_complete);
        let cases = [
            ("train.batch_size", Some("swept: 8, 16")),
            ("model.hidden", Some("swept (zip): 4, 8")),
            ("train.precision", Some("f32")),
            ("train.cudnn_benchmark", Some("false")),
            ("data.pin_memory", Some("false")),
            ("train.epochs", None),
            ("name", None),
        ];
        for (key, expected) in cases {
            assert_eq!(text(&swept, key).as_deref(), expected, "{key}");
        }
        // A default that is written out is the same.
        assert_eq!(
            of("train: {steps: 5}\n"),
            of("train: {steps: 5, precision: f32}\n")
        );
    }

    #[test]
    fn a_derived_key_has_its_expression() {
        let derived = RunSettings::of(&format!(
            "{SMALL}train: {{steps: 5}}\nsweep: {{grid: {{train.batch_size: [8, 16]}}, derive: \
             {{train.grad_accumulation: 16 / train.batch_size}}}}\n"
        ));
        let derived = derived.unwrap();
        let key = "train.grad_accumulation";
        assert_eq!(
            text(&derived, key).as_deref(),
            Some("16 / train.batch_size")
        );
        assert_eq!(derived.derived, [key]);
        assert_eq!(text(&derived, "sweep.derive.train.grad_accumulation"), None);
    }

    #[test]
    fn an_experiment_of_another_kiln_has_what_was_written() {
        let newer = RunSettings::of(&format!("{SMALL}train: {{steps: 5, warp_drive: on}}\n"));
        let newer = newer.unwrap();
        assert!(!newer.is_complete);
        assert_eq!(text(&newer, "train.warp_drive").as_deref(), Some("on"));
        assert_eq!(text(&newer, "train.precision"), None);
        assert_eq!(RunSettings::of("- a list"), None);
        let extending = RunSettings::of(&format!("{SMALL}extends: ../other.yaml\n")).unwrap();
        assert!(!extending.is_complete);
    }

    #[test]
    fn one_number_in_two_notations_is_the_same() {
        let one = |text: &str| Setting::One(serde_json::from_str(text).unwrap());
        assert!(one("1").is_same(&one("1.0")));
        assert!(one("[1, {\"a\": 2}]").is_same(&one("[1.0, {\"a\": 2.0}]")));
        assert!(!one("1").is_same(&one("2")) && !one("1").is_same(&one("\"1\"")));
    }
}
