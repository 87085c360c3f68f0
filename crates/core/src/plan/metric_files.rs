//! Files of commands from which more than one trial would read its numbers.

use std::{collections::HashMap, path::PathBuf};

use super::{Trial, TrialId};
use crate::kinds::command::{Command, CommandMetric, MetricSource, Placeholders};

/// A file that a metric of more than one trial is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMetricFile {
    pub metric: String,
    /// As the experiment names it.
    pub file: String,
}

impl SharedMetricFile {
    /// The name of the file without its folders.
    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or_default()
    }
}

/// The first file from which two of these trials read a metric, whatever the values of their
/// placeholders.
pub fn shared_metric_file<'t>(
    trials: impl IntoIterator<Item = &'t Trial>,
) -> Option<SharedMetricFile> {
    let mut readers: HashMap<PathBuf, &TrialId> = HashMap::new();
    for trial in trials {
        let Some(command) = trial.model.command() else {
            continue;
        };
        for (metric, settings) in command.metrics.iter() {
            let Some(file) = file_of(settings) else {
                continue;
            };
            let reader = readers
                .entry(place(command, file, trial))
                .or_insert(&trial.id);
            if **reader != trial.id {
                return Some(SharedMetricFile {
                    metric: metric.to_owned(),
                    file: file.to_owned(),
                });
            }
        }
    }
    None
}

fn file_of(settings: &CommandMetric) -> Option<&str> {
    match settings.source().ok()? {
        MetricSource::Csv { file, .. } | MetricSource::Json { file, .. } => Some(file),
        _ => None,
    }
}

/// Where the file of a trial is; what differs from attempt to attempt stands for itself.
fn place(command: &Command, file: &str, trial: &Trial) -> PathBuf {
    let own = |what: &str| Some(format!("/{what}/{}", trial.id));
    let placeholders = Placeholders {
        seed: Some(trial.train.seed),
        trial: Some(trial.id.to_string()),
        folder: own("folder"),
        checkpoint_folder: own("checkpoint_folder"),
        trial_file: own("trial_file"),
        ..Placeholders::default()
    };
    let text = |text: &str| command.expand_text(text, &placeholders);
    let folder = command.folder.as_deref().map(text).unwrap_or_default();
    PathBuf::from(folder).join(text(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::expand, spec::read_yaml};

    fn shared(model: &str) -> Option<(String, String)> {
        let yaml = format!(
            "kiln: 1\nname: t\nmodel: {{kind: command, checkpoints: true, argv: [x, '{{n}}', '{{seed}}', \
             '{{checkpoint_folder}}'], values: {{n: 1}}, {model}}}\nsweep: {{grid: {{model.values.n: [1, 2]}}, repeats: 2}}\n"
        );
        let plan = expand(&read_yaml(&yaml).unwrap(), &|_| None).unwrap();
        assert_eq!(plan.trials.len(), 4);
        let shared = shared_metric_file(&plan.trials)?;
        Some((shared.metric, shared.file))
    }

    #[test]
    fn a_file_without_a_part_of_its_trial_is_shared() {
        let of = |path: &str| {
            shared(&format!(
                "metrics: {{a: {{line: '(x)'}}, b: {{csv: '{path}', column: c}}}}"
            ))
        };
        let found = |path: &str| Some(("b".to_owned(), path.to_owned()));
        for path in [
            "log.csv",
            "/tmp/log.csv",
            "{n}.csv",
            "{seed}.csv",
            "{attempt}.csv",
        ] {
            assert_eq!(of(path), found(path), "{path}");
        }
        for path in [
            "{folder}/log.csv",
            "{checkpoint_folder}/a",
            "{trial}.csv",
            "{n}-{seed}.csv",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn a_program_in_its_own_folder_shares_no_relative_file() {
        let json = "metrics: {b: {json: out.json, at: x}}";
        assert!(shared(json).is_some());
        assert_eq!(shared(&format!("folder: '{{folder}}', {json}")), None);
        let absolute = "folder: '{folder}', metrics: {b: {json: /tmp/out.json, at: x}}";
        assert!(shared(absolute).is_some());
        let two = "metrics: {a: {json: '{folder}/o', at: x}, b: {json: '{folder}/o', at: y}}";
        assert_eq!(shared(two), None);
    }
}
