//! The `run.slurm` section: what the workers of a run ask of a Slurm cluster. It decides no number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    kinds::KeyFault,
    units::{ByteSize, TimeSpan},
};

/// The resources that each worker of a run gets from Slurm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// Number of workers: tasks of one job array, each of which takes trials until none is left.
    #[schemars(range(min = 1, max = 100_000))]
    pub workers: u64,
    /// The partition; without it the cluster's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account that is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// What one worker gets, such as `gpu:h200:1`; with `run.devices: all` it uses several GPUs at
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gres: Option<String>,
    /// CPUs of one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub cpus: Option<u64>,
    /// Memory of one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Time limit of one worker, not of one trial; without it that of the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeSpan>,
    /// Features that a node must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Nodes that get no worker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Whether a worker has its node for itself.
    pub exclusive: bool,
    /// Number of starts beyond the first ones, in place of workers that were lost or ran out of
    /// time: requeues and replacements together.
    #[schemars(range(min = 0, max = 100_000))]
    pub resubmissions: u64,
    /// Shell commands before the worker starts, such as `module load cuda`; one that fails ends the
    /// job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    /// Names of environment variables that the workers get from where the run is submitted; they
    /// get no others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Further options of `sbatch`, in their long form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<String>,
}

impl Default for Slurm {
    fn default() -> Self {
        Self {
            workers: 1,
            partition: None,
            account: None,
            gres: None,
            cpus: None,
            memory: None,
            time: None,
            constraint: None,
            exclude: Vec::new(),
            exclusive: false,
            resubmissions: 10,
            setup: Vec::new(),
            environment: Vec::new(),
            extra: Vec::new(),
        }
    }
}

/// Options of `sbatch` that kiln gives itself, and the key for each; without one no key changes it.
const OWN_OPTIONS: [(&str, Option<&str>); 24] = [
    ("job-name", None),
    ("array", Some("workers")),
    ("nodes", None),
    ("ntasks", None),
    ("requeue", Some("resubmissions")),
    ("no-requeue", Some("resubmissions")),
    ("open-mode", None),
    ("export", Some("environment")),
    ("export-file", Some("environment")),
    ("chdir", None),
    ("output", None),
    ("error", None),
    ("input", None),
    ("signal", None),
    ("partition", Some("partition")),
    ("account", Some("account")),
    ("gres", Some("gres")),
    ("cpus-per-task", Some("cpus")),
    ("mem", Some("memory")),
    ("time", Some("time")),
    ("constraint", Some("constraint")),
    ("exclude", Some("exclude")),
    ("exclusive", Some("exclusive")),
    ("wrap", Some("setup")),
];

/// Options that change how `sbatch` answers, so that kiln would not know the job.
const ANSWERING: [&str; 8] = [
    "parsable",
    "quiet",
    "verbose",
    "wait",
    "test-only",
    "help",
    "usage",
    "version",
];

impl Slurm {
    /// The values that would not survive in a job's script, or that contradict what kiln sets.
    pub(super) fn faults(&self) -> Vec<KeyFault> {
        let texts = [
            ("partition", &self.partition),
            ("account", &self.account),
            ("gres", &self.gres),
            ("constraint", &self.constraint),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(key, text)| Some((key.to_owned(), text.as_deref()?)));
        let listed = |key: &str, list: &'_ [String]| -> Vec<(String, String)> {
            let named = |(index, text): (usize, &String)| (format!("{key}[{index}]"), text.clone());
            list.iter().enumerate().map(named).collect()
        };
        let nodes = listed("exclude", &self.exclude);
        let words = texts.chain(nodes.iter().map(|(key, text)| (key.clone(), text.as_str())));
        let mut faults: Vec<KeyFault> = words
            .filter(|(_, text)| !is_word(text))
            .map(|(key, text)| {
                let message = format!(
                    "`run.slurm.{key}` is `{}`; it must be one word without spaces, quotes, `#` \
                     or `\\`",
                    text.escape_debug()
                );
                KeyFault::new(key, message)
            })
            .collect();
        faults.extend(self.time.filter(|time| time.0.as_secs() < 60).map(|time| {
            KeyFault::new(
                "time",
                format!(
                    "`run.slurm.time` is {time}; Slurm counts minutes, so it must be at least 1m"
                ),
            )
        }));
        faults.extend(
            self.memory
                .filter(|memory| memory.0 < 1 << 20)
                .map(|memory| {
                    KeyFault::new(
                        "memory",
                        format!("`run.slurm.memory` is {memory}; it must be at least 1MiB"),
                    )
                }),
        );
        let setup = listed("setup", &self.setup);
        faults.extend(setup.iter().filter(|(_, line)| !is_line(line)).map(|(key, line)| {
            let message = format!(
                "`run.slurm.{key}` is `{}`; it must be one line of shell commands; give each line \
                 its own entry",
                line.escape_debug()
            );
            KeyFault::new(key.as_str(), message)
        }));
        let environment = listed("environment", &self.environment);
        faults.extend(
            environment
                .iter()
                .filter(|(_, name)| !is_variable(name))
                .map(|(key, name)| {
                    let message = format!(
                        "`run.slurm.{key}` is `{}`; it must be the name of an environment variable, \
                         such as `HF_HOME`; a value is set with `export` in `run.slurm.setup`",
                        name.escape_debug()
                    );
                    KeyFault::new(key.as_str(), message)
                }),
        );
        let extra = listed("extra", &self.extra);
        faults.extend(extra.iter().filter_map(|(key, option)| {
            Some(KeyFault::new(key.as_str(), option_fault(key, option)?))
        }));
        faults
            .into_iter()
            .map(|fault| fault.within("run.slurm"))
            .collect()
    }
}

/// Whether a text is one word in a line `#SBATCH --key=word`.
fn is_word(text: &str) -> bool {
    let is_plain = |letter: char| !letter.is_whitespace() && !letter.is_control();
    !text.is_empty()
        && text
            .chars()
            .all(|letter| is_plain(letter) && !"'\"\\#`$".contains(letter))
}

fn is_line(text: &str) -> bool {
    !text.trim().is_empty() && !text.contains(|letter: char| letter.is_control() && letter != '\t')
}

fn is_variable(name: &str) -> bool {
    let is_first = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    name.starts_with(is_first)
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Why an entry of `extra` is refused.
fn option_fault(key: &str, option: &str) -> Option<String> {
    let shown = option.escape_debug();
    let given = option.strip_prefix("--");
    let Some(given) = given.filter(|given| !given.starts_with(['=', '-']) && is_word(given)) else {
        return Some(format!(
            "`run.slurm.{key}` is `{shown}`; it must be one option of `sbatch` in its long form \
             and without spaces, such as `--qos=long`"
        ));
    };
    let name = given.split('=').next().unwrap_or_default();
    // `sbatch` takes a beginning of an option's name for the option.
    let own = OWN_OPTIONS
        .iter()
        .find(|(own, _)| *own == name)
        .or_else(|| OWN_OPTIONS.iter().find(|(own, _)| own.starts_with(name)));
    match own {
        Some((own, Some(instead))) => Some(format!(
            "`run.slurm.{key}` is `{shown}`, but kiln sets `--{own}` itself; use \
             `run.slurm.{instead}`"
        )),
        Some((own, None)) => Some(format!(
            "`run.slurm.{key}` is `{shown}`, but kiln sets `--{own}` itself; remove it"
        )),
        None if ANSWERING
            .iter()
            .any(|answering| answering.starts_with(name)) =>
        {
            Some(format!(
                "`run.slurm.{key}` is `{shown}`, which changes how `sbatch` answers; remove it"
            ))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(slurm: &Slurm) -> Vec<String> {
        slurm
            .faults()
            .into_iter()
            .map(|fault| format!("{}: {}", fault.key, fault.message))
            .collect()
    }

    #[test]
    fn an_option_that_kiln_sets_is_refused_also_by_its_beginning() {
        let of = |options: &[&str]| {
            messages(&Slurm {
                extra: options.iter().map(|option| (*option).to_owned()).collect(),
                ..Slurm::default()
            })
        };
        let allowed = [
            "--qos=long",
            "--mail-type=FAIL",
            "--gres-flags=enforce-binding",
            "--reservation=x",
        ];
        assert_eq!(of(&allowed), [""; 0]);
        let refused = of(&[
            "--qos=long",
            "--time=1:00",
            "--part=gpu",
            "--chdir=/",
            "-p",
            "--wait",
            "--comment=a b",
        ]);
        assert_eq!(
            refused,
            [
                "run.slurm.extra[1]: `run.slurm.extra[1]` is `--time=1:00`, but kiln sets `--time` itself; use `run.slurm.time`",
                "run.slurm.extra[2]: `run.slurm.extra[2]` is `--part=gpu`, but kiln sets `--partition` itself; use `run.slurm.partition`",
                "run.slurm.extra[3]: `run.slurm.extra[3]` is `--chdir=/`, but kiln sets `--chdir` itself; remove it",
                "run.slurm.extra[4]: `run.slurm.extra[4]` is `-p`; it must be one option of `sbatch` in its long form and without spaces, such as `--qos=long`",
                "run.slurm.extra[5]: `run.slurm.extra[5]` is `--wait`, which changes how `sbatch` answers; remove it",
                "run.slurm.extra[6]: `run.slurm.extra[6]` is `--comment=a b`; it must be one option of `sbatch` in its long form and without spaces, such as `--qos=long`",
            ]
        );
    }

    #[test]
    fn a_value_that_could_leave_its_line_is_refused() {
        let text = |text: &str| Some(text.to_owned());
        let bad = Slurm {
            partition: text("gpu\n#SBATCH --uid=0"),
            account: text("two words"),
            gres: text("gpu:h200:1"),
            exclude: vec!["gpu[001-004]".to_owned(), "a'b".to_owned()],
            setup: vec![
                "module load cuda".to_owned(),
                "a\nb".to_owned(),
                " ".to_owned(),
            ],
            environment: vec!["HF_HOME".to_owned(), "A=B".to_owned()],
            time: Some(TimeSpan::from_secs(30)),
            ..Slurm::default()
        };
        let faults = bad.faults();
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "run.slurm.partition",
                "run.slurm.account",
                "run.slurm.exclude[1]",
                "run.slurm.time",
                "run.slurm.setup[1]",
                "run.slurm.setup[2]",
                "run.slurm.environment[1]"
            ]
        );
    }
}
