//! The script of a job array: pure text.

use std::{fmt::Write, path::Path, time::Duration};

use kiln_core::{spec::Slurm, units::shell_word};

/// Slurm sends SIGTERM so long before a job's time is over.
const SIGNAL_SECONDS: u64 = 120;

/// A job array whose tasks are workers.
#[derive(Debug)]
pub(super) struct JobScript<'a> {
    pub(super) slurm: &'a Slurm,
    pub(super) name: &'a str,
    pub(super) tasks: u32,
    /// Further nodes that get no worker.
    pub(super) lost_nodes: &'a [String],
    /// The folder in which the run was made: paths of the experiment are relative to it.
    pub(super) folder: &'a Path,
    /// Where the output of the tasks goes.
    pub(super) logs: &'a Path,
    /// Variables of the submitter that the workers get.
    pub(super) variables: &'a [(String, String)],
    /// The worker's command line.
    pub(super) command: &'a [String],
}

impl JobScript<'_> {
    pub(super) fn text(&self) -> String {
        let mut text = String::from("#!/bin/bash -l\n");
        for option in self.options() {
            let _ = writeln!(text, "#SBATCH --{option}");
        }
        for (name, value) in self.variables {
            let _ = writeln!(text, "export {name}={}", shell_word(value));
        }
        for (index, line) in self.slurm.setup.iter().enumerate() {
            let _ = write!(
                text,
                "{{\n{line}\n}} || {{ echo \"kiln: line {} of run.slurm.setup ended with $?\" >&2; \
                 exit 97; }}\n",
                index + 1
            );
        }
        let command: Vec<String> = self.command.iter().map(|word| shell_word(word)).collect();
        let _ = writeln!(text, "exec {}", command.join(" "));
        text
    }

    fn options(&self) -> Vec<String> {
        let slurm = self.slurm;
        // `%` begins a pattern.
        let logs = self.logs.display().to_string().replace('%', "%%");
        let time = slurm.time.map(|time| time.0);
        let mut options = vec![
            format!("job-name={}", self.name),
            format!("array=0-{}", self.tasks.saturating_sub(1)),
            "nodes=1".to_owned(),
            "ntasks=1".to_owned(),
            "requeue".to_owned(),
            "open-mode=append".to_owned(),
            "export=NONE".to_owned(),
            format!("chdir={}", word(&self.folder.display().to_string())),
            format!("output={}", word(&format!("{logs}/%a.log"))),
            format!("signal=B:TERM@{}", signal_seconds(time)),
        ];
        let texts = [
            ("partition", &slurm.partition),
            ("account", &slurm.account),
            ("gres", &slurm.gres),
            ("constraint", &slurm.constraint),
        ];
        let given = texts
            .into_iter()
            .filter_map(|(key, text)| Some(format!("{key}={}", text.as_deref()?)));
        options.extend(given);
        options.extend(slurm.cpus.map(|cpus| format!("cpus-per-task={cpus}")));
        options.extend(
            slurm
                .memory
                .map(|memory| format!("mem={}M", memory.0.div_ceil(1 << 20))),
        );
        options.extend(time.map(|time| format!("time={}", clock(time))));
        let mut excluded = slurm.exclude.clone();
        excluded.extend(self.lost_nodes.iter().cloned());
        if !excluded.is_empty() {
            options.push(format!("exclude={}", excluded.join(",")));
        }
        options.extend(slurm.exclusive.then(|| "exclusive".to_owned()));
        let extra = slurm.extra.iter();
        options.extend(extra.map(|option| option.trim_start_matches('-').to_owned()));
        options
    }
}

/// The arguments with which `sbatch` says whether it would take a job array with these options,
/// without submitting one.
pub(super) fn test_arguments(slurm: &Slurm) -> Vec<String> {
    let script = JobScript {
        slurm,
        name: "kiln-doctor",
        tasks: u32::try_from(slurm.workers).unwrap_or(u32::MAX),
        lost_nodes: &[],
        folder: Path::new("/"),
        logs: Path::new("/"),
        variables: &[],
        command: &[],
    };
    let of_the_run =
        |option: &String| option.starts_with("chdir=") || option.starts_with("output=");
    let options = script
        .options()
        .into_iter()
        .filter(|option| !of_the_run(option));
    ["--test-only".to_owned(), "--wrap=true".to_owned()]
        .into_iter()
        .chain(options.map(|option| format!("--{option}")))
        .collect()
}

/// Half of a very short time is left for work.
pub(super) fn signal_seconds(time: Option<Duration>) -> u64 {
    time.map_or(SIGNAL_SECONDS, |time| {
        SIGNAL_SECONDS.min(time.as_secs() / 2)
    })
}

/// As Slurm reads a time: hours, minutes and seconds.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!(
        "{}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// A word of a line `#SBATCH`.
fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+%:,=@".contains(letter);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use kiln_core::units::{ByteSize, TimeSpan};

    use super::*;

    fn text(slurm: &Slurm, variables: &[(String, String)], command: &[&str]) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        JobScript {
            slurm,
            name: "kiln-x-1a2b3c4d",
            tasks: 8,
            lost_nodes: &["gpu021".to_owned()],
            folder: Path::new("/shared/my work"),
            logs: Path::new("/shared/my work/results/x/50%/submit/1"),
            variables,
            command: &command,
        }
        .text()
    }

    #[test]
    fn a_script_asks_for_what_the_file_says() {
        let owned = |text: &str| Some(text.to_owned());
        let slurm = Slurm {
            workers: 8,
            partition: owned("gpu"),
            account: owned("lm"),
            gres: owned("gpu:h200:1"),
            cpus: Some(8),
            memory: Some(ByteSize(64 << 30)),
            time: Some(TimeSpan::from_secs(4 * 3600)),
            constraint: owned("nvlink"),
            exclude: vec!["gpu013".to_owned()],
            exclusive: true,
            setup: vec!["module load cuda/12.8 # of the site".to_owned()],
            extra: vec!["--qos=long".to_owned()],
            ..Slurm::default()
        };
        let variables = [("HF_HOME".to_owned(), "/data/it's".to_owned())];
        assert_eq!(
            text(
                &slurm,
                &variables,
                &["/shared/kiln", "worker", "/shared/my work/x"]
            ),
            "#!/bin/bash -l
#SBATCH --job-name=kiln-x-1a2b3c4d
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --export=NONE
#SBATCH --chdir=\"/shared/my work\"
#SBATCH --output=\"/shared/my work/results/x/50%%/submit/1/%a.log\"
#SBATCH --signal=B:TERM@120
#SBATCH --partition=gpu
#SBATCH --account=lm
#SBATCH --gres=gpu:h200:1
#SBATCH --constraint=nvlink
#SBATCH --cpus-per-task=8
#SBATCH --mem=65536M
#SBATCH --time=4:00:00
#SBATCH --exclude=gpu013,gpu021
#SBATCH --exclusive
#SBATCH --qos=long
export HF_HOME='/data/it'\\''s'
{
module load cuda/12.8 # of the site
} || { echo \"kiln: line 1 of run.slurm.setup ended with $?\" >&2; exit 97; }
exec /shared/kiln worker '/shared/my work/x'
"
        );
    }

    #[test]
    fn the_script_runs_its_setup_and_ends_where_that_fails() {
        let run = |setup: &[&str]| {
            let slurm = Slurm {
                setup: setup.iter().map(|line| (*line).to_owned()).collect(),
                ..Slurm::default()
            };
            let variables = [("A".to_owned(), "it's $HOME".to_owned())];
            let script = text(&slurm, &variables, &["sh", "-c", "echo \"$A $B\""]);
            let ended = Command::new("bash").args(["-c", &script]).output().unwrap();
            (
                ended.status.code(),
                String::from_utf8(ended.stdout).unwrap(),
                String::from_utf8(ended.stderr).unwrap(),
            )
        };
        let fine = run(&["export B=2 # two", "true;"]);
        assert_eq!(fine, (Some(0), "it's $HOME 2\n".to_owned(), String::new()));
        let (status, said, why) = run(&["true", "(exit 7)"]);
        assert_eq!((status, said.as_str()), (Some(97), ""));
        assert!(
            why.contains("line 2 of run.slurm.setup ended with 7"),
            "{why}"
        );
    }

    #[test]
    fn a_short_job_keeps_half_of_its_time() {
        assert_eq!(signal_seconds(None), 120);
        assert_eq!(signal_seconds(Some(Duration::from_secs(3600))), 120);
        assert_eq!(signal_seconds(Some(Duration::from_secs(60))), 30);
        assert_eq!(clock(Duration::from_secs(100 * 3600 + 61)), "100:01:01");
    }
}
