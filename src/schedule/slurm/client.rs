//! Slurm's programs: each is found by `PATH`, has a limited time, and knows nothing of a job in
//! which kiln itself may run.

use std::{
    ffi::{OsStr, OsString},
    io,
    process::Command,
    time::Duration,
};

use crate::subprocess::{Answer, answer};

/// A client waits for a busy controller; longer than this it does not answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// `sbatch` tries again for two minutes while the queue is full.
const SUBMIT_PATIENCE: Duration = Duration::from_secs(150);
/// A list of 100,000 tasks is shorter.
const MOST_BYTES: u64 = 32 << 20;

/// Beginnings of variables that speak of a job, or change what a client prints.
const HIDDEN: [&str; 8] = [
    "SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_", "PMIX_",
];
/// Of those the ones that say which cluster is asked, and as whom.
const KEPT: [&str; 3] = ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"];

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientError {
    #[error("there is no `{0}` in `PATH`; run this on a node with Slurm's programs")]
    Missing(&'static str),
    #[error("Slurm does not answer ({program}, {seconds} s)")]
    NoAnswer { program: &'static str, seconds: u64 },
    /// It answered that it does not do it, in these words.
    #[error("{program}: {said}")]
    Refused { program: &'static str, said: String },
}

impl ClientError {
    /// Whether the request may have been heard although its reply did not come: a controller that is
    /// busy queues a job and `sbatch` says that it failed.
    pub(super) fn may_have_been_heard(&self) -> bool {
        let signs = [
            "timed out",
            "Unable to contact",
            "Zero Bytes",
            "Communication",
            "Connection",
        ];
        match self {
            Self::Missing(_) => false,
            Self::NoAnswer { .. } => true,
            Self::Refused { said, .. } => signs.iter().any(|sign| said.contains(sign)),
        }
    }

    /// Whether Slurm answered that it knows no such job.
    pub(super) fn is_unknown_job(&self) -> bool {
        matches!(self, Self::Refused { said, .. } if said.contains("Invalid job id"))
    }
}

/// Runs Slurm's programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    patience: Duration,
    submit_patience: Duration,
}

impl Client {
    pub(super) fn new() -> Self {
        Self {
            patience: PATIENCE,
            submit_patience: SUBMIT_PATIENCE,
        }
    }

    /// The output of a program.
    ///
    /// # Errors
    /// It is missing, does not answer in time, or refuses.
    pub(super) fn ask(
        &self,
        program: &'static str,
        arguments: &[impl AsRef<OsStr>],
    ) -> Result<String, ClientError> {
        let patience = match program {
            "sbatch" => self.submit_patience,
            _ => self.patience,
        };
        let mut command = Command::new(program);
        command.args(arguments);
        for name in std::env::vars_os().map(|(name, _)| name) {
            if is_hidden(&name) {
                command.env_remove(name);
            }
        }
        match answer(command, patience, MOST_BYTES) {
            Ok(Answer {
                is_success: true,
                stdout,
                ..
            }) => Ok(String::from_utf8_lossy(&stdout).into_owned()),
            Ok(refused) => Err(ClientError::Refused {
                program,
                said: said(program, &refused),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(ClientError::Missing(program))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(ClientError::NoAnswer {
                program,
                seconds: patience.as_secs(),
            }),
            Err(error) => Err(ClientError::Refused {
                program,
                said: error.to_string(),
            }),
        }
    }
}

fn is_hidden(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    HIDDEN.iter().any(|hidden| name.starts_with(hidden)) && !KEPT.contains(&name.as_ref())
}

/// Its own words on one line.
fn said(program: &str, refused: &Answer) -> String {
    let lines = refused.stderr.lines().map(str::trim);
    let own = format!("{program}: ");
    let words: Vec<&str> = lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let line = line.strip_prefix(&own).unwrap_or(line);
            line.strip_prefix("error: ").unwrap_or(line)
        })
        .collect();
    match words.is_empty() {
        true => "it failed without a word".to_owned(),
        false => words.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(milliseconds: u64) -> Client {
        Client {
            patience: Duration::from_millis(milliseconds),
            submit_patience: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_client_answers_refuses_hangs_or_is_missing() {
        let shell = |script: &str| client(60_000).ask("sh", &["-c", script]);
        assert_eq!(shell("echo 81234"), Ok("81234\n".to_owned()));
        let refused = "echo 'sh: error: invalid partition specified: nope' >&2\necho 'sh: error: \
                       Batch job submission failed: Invalid partition name specified' >&2; exit 1";
        assert_eq!(
            shell(refused),
            Err(ClientError::Refused {
                program: "sh",
                said: "invalid partition specified: nope; Batch job submission failed: Invalid \
                       partition name specified"
                    .to_owned()
            })
        );
        assert_eq!(
            client(300).ask("sh", &["-c", "sleep 60"]),
            Err(ClientError::NoAnswer {
                program: "sh",
                seconds: 0
            })
        );
        let nothing: [&str; 0] = [];
        assert_eq!(
            client(300).ask("kiln-has-no-such-program", &nothing),
            Err(ClientError::Missing("kiln-has-no-such-program"))
        );
    }

    #[test]
    fn variables_of_a_job_are_hidden_and_those_of_the_cluster_are_not() {
        let hidden = |name: &str| is_hidden(&OsString::from(name));
        assert!(hidden("SLURM_CPU_BIND") && hidden("SBATCH_PARTITION") && hidden("PMIX_RANK"));
        assert!(hidden("SQUEUE_FORMAT") && !hidden("SLURM_CONF") && !hidden("PATH"));
    }

    #[test]
    fn an_unknown_job_is_told_from_other_refusals() {
        // Slurm 22.05, of a job that it has forgotten.
        let said = |said: &str| ClientError::Refused {
            program: "squeue",
            said: said.to_owned(),
        };
        let lost = "Batch job submission failed: Socket timed out on send/recv operation";
        assert!(said(lost).may_have_been_heard());
        let refused = "Batch job submission failed: Invalid partition name specified";
        assert!(!said(refused).may_have_been_heard());
        assert!(said("slurm_load_jobs error: Invalid job id specified").is_unknown_job());
        assert!(!said("Slurm accounting storage is disabled").is_unknown_job());
    }
}
