//! `run.json`: the launches of a run, their machine and their code. In: collected facts. Out: a
//! file, always complete (a temporary file, then a rename).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    RunFolder,
    preflight::Check,
    programs::{Git, ProgramRecord},
};
use crate::{
    folder::write_whole,
    input,
    limits::RUN_FILE_BYTES,
    plan::{Origin, TrialId},
};

/// Version of the file.
pub const RUN_FILE: u32 = 1;

/// One run: its plan and every launch that worked on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    /// Format version, [`RUN_FILE`].
    pub kiln_run: u32,
    pub experiment: String,
    /// Place among the runs of the experiment, from 1: a clock that was once ahead decides nothing.
    /// 0 in runs older than this key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// SHA-256 of `experiment.yaml`, in hex; absent in runs older than this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment_sha256: Option<String>,
    /// File of each table of the run, with the table's version.
    pub tables: BTreeMap<String, String>,
    /// Every planned trial, in plan order; for a search those that it has requested.
    pub plan: Vec<TrialId>,
    /// Whether a search may request more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_searching: bool,
    /// The checkpoints with which the trials began (`kiln run --continue`), by the ids of the
    /// trials.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub continues: BTreeMap<TrialId, Origin>,
    /// The run whose trials this one took over; absent in others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_from: Option<KeptFrom>,
    pub launches: Vec<Launch>,
}

/// The run of `kiln run --keep`: its launches are the first ones of the new run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFrom {
    /// `NAME/FOLDER`.
    pub run: String,
    /// Number of planned trials that were taken over.
    pub trials: usize,
    /// The first launch with the programs of now: those before it had others, and a resume does not
    /// compare them. Absent if all launches have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs_from: Option<u64>,
    /// The last launch that was taken over: those after it are the run's own. Absent in runs of an
    /// earlier kiln.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_launch: Option<u64>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One start of `kiln run` on the run's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// From 1.
    pub launch: u64,
    #[serde(flatten)]
    pub anchor: Anchor,
    /// The run's start mark on this boot's CLOCK_MONOTONIC: `run_seconds` is a monotonic time minus
    /// this. Negative for a run that started before the machine booted.
    pub run_anchor_nanoseconds: i64,
    pub pid: u32,
    /// The node, where several launches work on a run: its name (`record.identity: full`), else
    /// `node-1` and so on. Absent in other runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Seconds by which the clock of its machine was ahead of that of the file server on which the run
    /// lies (of the kernel, on a local disk); absent if unknown, and in runs of a single launch at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_seconds: Option<f64>,
    /// The task of a Slurm job in which it works; absent outside Slurm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmTask>,
    pub command_line: Vec<String>,
    /// Host facts: CPU, cores, memory, kernel.
    pub machine: Value,
    /// First digits of the SHA-256 of the machine's id, to identify the machine; absent if it has
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// Hash that distinguishes a host from a copy of it: `net-…` from its network cards, `dmi-…`
    /// from its board; absent if neither is available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// The devices of the machine, as detected.
    pub devices: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    pub versions: Versions,
    /// Libraries loaded into this launch's trials by `kiln-trial`, as it reports them: name to
    /// version. The first report of each name counts; a trial's own report is in its `trial.json`.
    /// Those of other programs are in `programs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub libraries: BTreeMap<String, String>,
    /// The engine's switches that affect numbers (TF32, cuDNN benchmark and deterministic), as the
    /// trials report them; like `libraries`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flags: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<Git>,
    /// The programs of the trials that are not kiln's own: that of a command (`model`), and each
    /// engine of `run.engines` by its key. Absent in runs older than this key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, ProgramRecord>,
    /// Allow-listed environment variables that were set.
    pub environment: BTreeMap<String, String>,
    /// SHA-256 of the data that is read, by data kind: of the uncompressed bytes of texts and tables,
    /// of names and lengths for folders of images. Several of one kind are joined ([`joined_sums`]);
    /// runs older than that have the last of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data_sha256: BTreeMap<String, String>,
    /// Keys that changed since the previous launch, and may change: dotted key to new value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changed: BTreeMap<String, Value>,
    /// Checks of the machine before the launch's first trial; absent in runs older than these
    /// checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preflight: Vec<Check>,
    /// Time and reason of the launch's end; absent while it runs or after it was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<LaunchEnded>,
}

/// A start of a task of a Slurm job array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlurmTask {
    /// Number of the array.
    pub job: u64,
    pub task: u32,
    /// How often Slurm had started the task before: it counts requeues.
    pub restarts: u32,
}

impl fmt::Display for SlurmTask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}", self.job, self.task)
    }
}

/// The start of a launch, on each clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// UTC, RFC 3339.
    pub started_utc: String,
    pub boot_id: String,
    pub monotonic_nanoseconds: i64,
}

/// The programs of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub kiln: String,
    /// SHA-256 of the `kiln` program's file, in hex.
    pub kiln_sha256: Option<String>,
    /// The program of a trial and the SHA-256 of its file.
    pub trial_program: String,
    pub trial_program_sha256: Option<String>,
}

/// The end of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchEnded {
    pub utc: String,
    /// `finished`, `interrupted`, `disk full` or an error message.
    pub how: String,
    /// Why a worker ended although there was more to do, if the reason is not a trial or a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EndCause>,
}

/// Why a worker ended before there was nothing left to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// Its time was too short for another trial.
    OutOfTime,
    /// Trials failed on its node before they began.
    BadNode,
    /// Its tickets were taken back one after the other, although it was there.
    BelievedGone,
}

impl Launch {
    /// An id of the node: of its host, else of its installation, else of its boot. Launches with the
    /// same id ran on the same node.
    pub fn host(&self) -> &str {
        let id = self.host_id.as_ref().or(self.machine_id.as_ref());
        id.unwrap_or(&self.anchor.boot_id)
    }

    /// The data that this launch read and that are not there any more: the data kind, the sums of
    /// this launch that are missing here, and those of here that are new, joined.
    pub fn other_data<'a>(
        &'a self,
        here: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = (&'a str, String, String)> {
        self.data_sha256.iter().filter_map(|(kind, then)| {
            let (then, now) = (sums(then), sums(here.get(kind)?));
            let missing: BTreeSet<&str> = then.difference(&now).copied().collect();
            let new: BTreeSet<&str> = now.difference(&then).copied().collect();
            // Where two data have become one, nothing is new.
            let new = if new.is_empty() { now } else { new };
            (!missing.is_empty()).then(|| (kind.as_str(), joined_sums(missing), joined_sums(new)))
        })
    }
}

const BETWEEN_SUMS: &str = ", ";

/// The sums of several data of one kind in one text; [`sums`] separates them.
pub fn joined_sums<'a>(sums: impl IntoIterator<Item = &'a str>) -> String {
    let sums: Vec<&str> = sums.into_iter().collect();
    sums.join(BETWEEN_SUMS)
}

/// The sums that a value of `data_sha256` has.
pub fn sums(joined: &str) -> BTreeSet<&str> {
    joined.split(BETWEEN_SUMS).collect()
}

impl RunFile {
    /// Adds a trial's libraries and switches to the newest launch; returns whether something was
    /// new. `program` is the key of the trial's program if it is not kiln's own.
    pub fn add_libraries(
        &mut self,
        program: Option<&str>,
        libraries: &BTreeMap<String, String>,
        flags: &BTreeMap<String, String>,
    ) -> bool {
        let Some(launch) = self.launches.last_mut() else {
            return false;
        };
        let known = launch.libraries.len() + launch.flags.len();
        let mut is_new = false;
        let own = program.and_then(|key| launch.programs.get_mut(key));
        let none = BTreeMap::new();
        let of_kiln = match own {
            Some(own) => {
                is_new = own.add_libraries(libraries);
                &none
            }
            None => libraries,
        };
        for (all, told) in [(&mut launch.libraries, of_kiln), (&mut launch.flags, flags)] {
            for (name, value) in told {
                all.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        is_new || launch.libraries.len() + launch.flags.len() > known
    }

    /// The highest number of a launch; 0 if there is none.
    pub fn last_launch(&self) -> u64 {
        let numbers = self.launches.iter().map(|launch| launch.launch);
        numbers.max().unwrap_or(0)
    }

    /// Whether the programs of a launch are to be those of the trials that run now.
    pub fn has_present_programs(&self, launch: u64) -> bool {
        let kept = self.kept_from.as_ref();
        let first = kept.and_then(|kept| kept.programs_from);
        first.is_none_or(|first| launch >= first)
    }

    /// The newest launch whose trials said what they run on; else the newest one. The launch that hands
    /// a run to workers, and one that attends, run no trials, often on a machine of another kind.
    pub fn newest_at_work(&self) -> Option<&Launch> {
        let has_told = |launch: &&Launch| {
            let mut programs = launch.programs.values();
            !launch.libraries.is_empty() || programs.any(|program| !program.libraries.is_empty())
        };
        let mut launches = self.launches.iter();
        launches.rfind(has_told).or(self.launches.last())
    }

    /// Reads `run.json`.
    ///
    /// # Errors
    /// The file is missing, torn, too large or of a newer format; the text names the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::parse(
            &input::read_text(path, &RUN_FILE_BYTES)
                .map_err(|error| format!("{}: {error}", path.display()))?,
            path,
        )
    }

    /// Parses the text of a `run.json`; `path` names it in messages.
    ///
    /// # Errors
    /// As [`RunFile::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let describe = |error: serde_json::Error| match input::left_by_git(text) {
            Some(why) => format!("{}: {why}", path.display()),
            None => format!("{}: {error}", path.display()),
        };
        let file: Self = serde_json::from_str(text).map_err(describe)?;
        match file.kiln_run {
            RUN_FILE => Ok(file),
            newer => Err(format!(
                "{}: format {newer} is newer than this kiln, which reads up to {RUN_FILE}; use a \
                 newer kiln",
                path.display()
            )),
        }
    }

    /// Writes it into the folder of its run.
    ///
    /// # Errors
    /// The file cannot be written; the old one then stays unchanged.
    pub fn write(&self, run: &RunFolder) -> io::Result<()> {
        run.write(&run.run_file(), &json(self)?)
    }
}

/// Writes pretty JSON atomically.
///
/// # Errors
/// As [`write_whole`].
pub fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write_whole(path, &json(value)?)
}

/// A value as the pretty JSON of a file.
///
/// # Errors
/// It cannot be written as JSON.
pub(super) fn json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        write_whole(&path, b"old").unwrap();
        fs::create_dir(folder.path().join(".run.json.new")).unwrap();
        assert!(write_whole(&path, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn the_first_word_on_a_library_counts_and_older_launches_keep_theirs() {
        let launch = |number: u64| {
            serde_json::json!({
                "launch": number, "started_utc": "", "boot_id": "", "monotonic_nanoseconds": 0, "run_anchor_nanoseconds": 0, "pid": 1,
                "command_line": [], "machine": null, "devices": null, "environment": {},
                "versions": {"kiln": "0", "kiln_sha256": null, "trial_program": "x", "trial_program_sha256": null},
            })
        };
        let text = serde_json::json!({"kiln_run": 1, "experiment": "x", "tables": {}, "plan": [], "launches": [launch(1), launch(2)]});
        let mut file: RunFile = serde_json::from_value(text).unwrap();
        let told = |version: &str| BTreeMap::from([("libtorch".to_owned(), version.to_owned())]);
        let (none, flags) = (
            BTreeMap::new(),
            BTreeMap::from([("tf32".to_owned(), "false".to_owned())]),
        );
        assert!(file.add_libraries(None, &told("2.11.0"), &none));
        assert!(
            !file.add_libraries(None, &told("2.12.0"), &none)
                && !file.add_libraries(None, &none, &none)
        );
        assert!(
            file.add_libraries(None, &none, &flags) && !file.add_libraries(None, &none, &flags)
        );
        // Of a program of the launch they are beside it.
        let program = ProgramRecord::default();
        file.launches[1]
            .programs
            .insert("model".to_owned(), program);
        let model = Some("model");
        assert!(file.add_libraries(model, &told("2.9.1"), &none));
        assert!(!file.add_libraries(model, &told("2.9.1"), &none));
        assert_eq!(file.launches[1].programs["model"].libraries, told("2.9.1"));
        assert_eq!(file.launches[1].flags, flags);
        assert_eq!(
            (
                file.launches[0].libraries.len(),
                file.launches[1].libraries["libtorch"].as_str()
            ),
            (0, "2.11.0")
        );
    }

    #[test]
    fn a_newer_run_file_is_refused_by_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        fs::write(
            &path,
            r#"{"kiln_run":9,"experiment":"x","tables":{},"plan":[],"launches":[]}"#,
        )
        .unwrap();
        assert!(RunFile::read(&path).unwrap_err().contains("format 9"));
    }
}
