//! Cancels the tasks of a run.

use kiln_core::record::{
    RunFolder, Submission,
    submission::{Cancel, Cancelled},
};

use super::client::{Client, ClientError};
use crate::schedule::clock::utc_now;

/// Cancels the tasks of a run that wait, and with `now` sends SIGTERM to those that run. It is
/// written down first: tasks that are cancelled while they wait vanish. Returns the number of jobs.
///
/// # Errors
/// In words: Slurm does not answer, or the folder cannot be read or written.
pub fn cancel(run: &RunFolder, now: bool) -> Result<usize, String> {
    let client = Client::new();
    let mut jobs = 0;
    for mut one in Submission::all(run).map_err(|error| error.to_string())? {
        let Some(job) = one.job else { continue };
        one.cancels.push(Cancel {
            utc: utc_now(),
            of: match now {
                true => Cancelled::All,
                false => Cancelled::Waiting,
            },
        });
        one.write(run).map_err(|error| error.to_string())?;
        let job = job.to_string();
        let waiting = client.ask("scancel", &["--state=PENDING", &job]);
        let answer = waiting.and_then(|_| match now {
            // The worker itself is the batch script; it gives its tickets back.
            true => client.ask(
                "scancel",
                &["--batch", "--signal=TERM", "--state=RUNNING", &job],
            ),
            false => Ok(String::new()),
        });
        match answer {
            Ok(_) => jobs += 1,
            Err(error) if error.is_unknown_job() => {}
            Err(ClientError::Refused { said, .. }) if said.contains("already completed") => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(jobs)
}
