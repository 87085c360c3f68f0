//! The program of one attempt: placeholders replaced by values.

use serde_json::Value;

use super::{
    Command,
    argument::{Argument, Arguments},
    template::{self, Part},
};
use crate::kinds::text_of;

/// The placeholders beside the names of values.
pub const PLACEHOLDERS: [&str; 8] = [
    "seed",
    "trial",
    "attempt",
    "folder",
    "device",
    "data_folder",
    "checkpoint_folder",
    "trial_file",
];

/// The values of the [`PLACEHOLDERS`] in one attempt. An absent one stays as it is written, which
/// is what a plan shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placeholders {
    pub seed: Option<u64>,
    pub trial: Option<String>,
    pub attempt: Option<u64>,
    /// The attempt's folder, absolute.
    pub folder: Option<String>,
    /// `cpu` or `cuda`.
    pub device: Option<String>,
    pub data_folder: Option<String>,
    pub checkpoint_folder: Option<String>,
    /// Path of `trial.yaml`.
    pub trial_file: Option<String>,
}

impl Placeholders {
    fn get(&self, name: &str) -> Option<String> {
        match name {
            "seed" => self.seed.map(|seed| seed.to_string()),
            "trial" => self.trial.clone(),
            "attempt" => self.attempt.map(|attempt| attempt.to_string()),
            "folder" => self.folder.clone(),
            "device" => self.device.clone(),
            "data_folder" => self.data_folder.clone(),
            "checkpoint_folder" => self.checkpoint_folder.clone(),
            "trial_file" => self.trial_file.clone(),
            _ => None,
        }
    }
}

/// The program of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    pub argv: Vec<String>,
    /// Empty if nothing is prepared.
    pub prepare: Vec<String>,
    /// In the order of the file; each value follows as `KILN_VALUE_NAME`.
    pub environment: Vec<(String, String)>,
    /// Variables that the program does not have, whatever the environment of kiln has.
    pub unset: Vec<String>,
    pub folder: Option<String>,
    /// As written in `files`, with placeholders replaced.
    pub files: Vec<String>,
}

/// The environment variable of a value: `KILN_VALUE_BATCH_SIZE` for `batch_size`.
pub fn value_variable(name: &str) -> String {
    format!("KILN_VALUE_{}", name.to_ascii_uppercase().replace('-', "_"))
}

impl Command {
    /// The program of one attempt. Of a checked file it has no faults: a text that cannot be read
    /// stays as it is written.
    pub fn expand(&self, placeholders: &Placeholders) -> Expanded {
        let text = |text: &str| self.expand_text(text, placeholders);
        let environment = self
            .environment
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), self.variable(value, placeholders)?)));
        let values = self
            .values
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (value_variable(name), text_of(value)));
        let unset = self.environment.iter();
        let unset = unset.filter(|(_, value)| self.variable(value, placeholders).is_none());
        Expanded {
            unset: unset.map(|(name, _)| name.clone()).collect(),
            argv: self.expand_arguments(&self.argv, placeholders),
            prepare: self.expand_arguments(&self.prepare, placeholders),
            environment: environment.chain(values).collect(),
            folder: self.folder.as_deref().map(text),
            files: self.files.iter().map(|file| text(file)).collect(),
        }
    }

    /// A text of this command, such as the path of a metric, with placeholders replaced.
    pub fn expand_text(&self, text: &str, placeholders: &Placeholders) -> String {
        let Ok(parts) = template::parse(text) else {
            return text.to_owned();
        };
        let part = |part| match part {
            Part::Text(text) => text,
            Part::Placeholder(name) => match self.values.get(&name) {
                Some(value) => text_of(value),
                None => placeholders
                    .get(&name)
                    .unwrap_or_else(|| format!("{{{name}}}")),
            },
        };
        parts.into_iter().map(part).collect()
    }

    /// Whether the folder in which it runs is known only once there is an attempt.
    pub fn is_in_attempt(&self) -> bool {
        let parts = self.folder.as_deref().map(template::parse);
        let is_later = |part: &Part| match part {
            Part::Text(_) => false,
            Part::Placeholder(name) => {
                !self.values.contains_key(name) && !["seed", "trial"].contains(&name.as_str())
            }
        };
        matches!(parts, Some(Ok(parts)) if parts.iter().any(is_later))
    }

    fn expand_arguments(&self, arguments: &Arguments, placeholders: &Placeholders) -> Vec<String> {
        let mut expanded = Vec::new();
        for argument in &arguments.0 {
            match argument {
                Argument::Text(text) => expanded.push(self.expand_text(text, placeholders)),
                Argument::When(when) if self.is_set(&when.when) => {
                    let texts = when.then.iter();
                    expanded.extend(texts.map(|text| self.expand_text(text, placeholders)));
                }
                Argument::When(_) => {}
            }
        }
        expanded
    }

    /// Whether a value is neither `false` nor `null`.
    pub(super) fn is_set(&self, name: &str) -> bool {
        !matches!(
            self.values.get(name),
            None | Some(Value::Null | Value::Bool(false))
        )
    }

    /// The text of a variable; `None`, which leaves it unset, if it is a single placeholder whose
    /// value is `null`.
    fn variable(&self, value: &Value, placeholders: &Placeholders) -> Option<String> {
        let Value::String(text) = value else {
            return Some(text_of(value));
        };
        let name = text
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let is_null = name.is_some_and(|name| self.values.get(name) == Some(&Value::Null));
        (!is_null).then(|| self.expand_text(text, placeholders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> Command {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn an_attempt_has_its_values_in_its_arguments_and_variables() {
        let command = command(
            "{argv: ['build/gemm-{library}', -n, '{n}', {when: pinned, then: [--pin, '{n}']}, \
             {when: log, then: [--log]}, '{{{seed}}}', '{folder}/x'],
              values: {library: mkl, n: 4096, rate: 1.0e-3, pinned: true, log: null, batch-size: 2},
              environment: {OMP_NUM_THREADS: '{n}', LOG: '{log}', PLAIN: 3},
              prepare: [make, 'gemm-{library}'], folder: 'a/{library}', files: ['{library}.c']}",
        );
        let placeholders = Placeholders {
            seed: Some(7),
            folder: Some("/run/1".to_owned()),
            ..Placeholders::default()
        };
        let expanded = command.expand(&placeholders);
        assert_eq!(
            expanded.argv,
            [
                "build/gemm-mkl",
                "-n",
                "4096",
                "--pin",
                "4096",
                "{7}",
                "/run/1/x"
            ]
        );
        assert_eq!(expanded.prepare, ["make", "gemm-mkl"]);
        assert_eq!(expanded.folder.as_deref(), Some("a/mkl"));
        assert_eq!(expanded.files, ["mkl.c"]);
        let variables: Vec<String> = expanded
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            variables,
            [
                "OMP_NUM_THREADS=4096",
                "PLAIN=3",
                "KILN_VALUE_LIBRARY=mkl",
                "KILN_VALUE_N=4096",
                "KILN_VALUE_RATE=0.001",
                "KILN_VALUE_PINNED=true",
                "KILN_VALUE_BATCH_SIZE=2"
            ]
        );
        let plan = command.expand(&Placeholders::default());
        assert_eq!(plan.argv[5..], ["{{seed}}", "{folder}/x"]);
    }
}
