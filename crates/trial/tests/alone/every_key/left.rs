//! One `kiln run` of the built programs in an empty folder, or one training in this process, and
//! what it left there.

use std::{
    collections::HashMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::AtomicBool,
    time::Instant,
};

use kiln_core::{
    plan::{self, ChildDevice, TRIAL_FILE, TrialFile, child_data, child_train},
    record::{attempt::result, note::notes_cell},
    spec,
};
use kiln_trial::{model::Registry, train};
use serde_json::Value;

use super::files::{Files, scripted_child};
use crate::common::{alone_with_the_generator, in_repository, program};

/// The way in which trials are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Child {
    /// `kiln-trial`, on the CPU.
    Real,
    /// None: the first trial of the plan is trained in this process, without `kiln run` around it.
    InProcess,
    /// The scripted child of `tests/scripted_child`, in this scenario.
    Scripted(&'static str),
    /// The same, which completes once the sampler has looked at it eight times, or after two
    /// seconds.
    Sampled,
    /// A scripted child on a machine whose GPU is the fake NVML with `tests/scenarios/small.yaml`:
    /// 52 degrees warm, 75 % busy, used by another process.
    OnGpu(&'static str),
    /// None: a Slurm that is a folder (`tests/slurm/fake`) keeps the workers waiting.
    InSlurm,
}

/// All that decides a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Setting {
    pub(crate) file: String,
    pub(crate) sets: Vec<String>,
    pub(crate) child: Child,
}

/// The files of a run.
pub(crate) struct Left {
    folder: tempfile::TempDir,
    ended: Ended,
    /// From start to end of `kiln run`.
    pub(crate) seconds: f64,
}

enum Ended {
    Run(Output),
    /// A training in this process, with the exit status that its child would have had and what it
    /// would have said.
    Training {
        exit_status: i32,
        messages: Vec<u8>,
    },
}

impl Setting {
    pub(crate) fn run(&self, files: &Files) -> Left {
        let folder = tempfile::tempdir().unwrap();
        files.link_into(folder.path());
        fs::write(folder.path().join("x.yaml"), &self.file).unwrap();
        let began = Instant::now();
        let ended = match self.child {
            Child::InProcess => self.train(folder.path()),
            _ => Ended::Run(self.run_programs(folder.path(), files)),
        };
        Left {
            folder,
            ended,
            seconds: began.elapsed().as_secs_f64(),
        }
    }

    fn run_programs(&self, folder: &Path, files: &Files) -> Output {
        let program = program("kiln");
        assert!(
            program.exists(),
            "{} is not built; `make test` builds it",
            program.display()
        );
        let mut kiln = Command::new(program);
        // Nobody is there to work on a queue.
        let has_queue = self.sets.iter().any(|set| set.starts_with("run.on="));
        kiln.args(["run", "x.yaml"])
            .args(has_queue.then_some("--detach"))
            .args(self.sets.iter().flat_map(|set| ["--set", set]));
        kiln.current_dir(folder)
            .env("KILN_LOCKS", folder.join("locks"))
            .env("XDG_CACHE_HOME", folder.join("cache"))
            .stdin(Stdio::null());
        kiln.env_remove("KILN_TRIAL")
            .env_remove("KILN_DATA")
            .env("CUDA_VISIBLE_DEVICES", "");
        self.child.prepare(&mut kiln, files);
        kiln.output().unwrap()
    }

    /// Trains the first trial of the plan as its child would, in `attempt/1`.
    fn train(&self, folder: &Path) -> Ended {
        let request = spec::ExperimentRequest {
            file: folder.join("x.yaml"),
            text: None,
            point: None,
            set: self.sets.clone(),
            variables: Vec::new(),
        };
        let experiment = spec::load(&request)
            .unwrap_or_else(|problems| panic!("{problems}"))
            .experiment;
        let plan =
            plan::expand(&experiment, &|_| None).unwrap_or_else(|problems| panic!("{problems:?}"));
        let trial = &plan.trials[0];
        let attempt = folder.join("attempt/1");
        fs::create_dir_all(&attempt).unwrap();
        let file = TrialFile {
            kiln_trial: TRIAL_FILE,
            trial: trial.id.clone(),
            attempt: 1,
            model: (*trial.model).clone(),
            data: child_data(&trial.data, 1, folder),
            train: child_train(&trial.train, &trial.data, 1, folder),
            measure: experiment.measure.clone(),
            engine: trial.engine,
            device: ChildDevice::Cpu,
            devices_per_trial: trial.devices_per_trial,
            data_folder: None,
            checkpoint_folder: trial
                .train
                .checkpoint
                .as_ref()
                .map(|_| folder.join("attempt/checkpoint")),
            folder: attempt,
            origin: None,
            run_anchor_nanoseconds: 0,
        };
        let _alone = alone_with_the_generator();
        let mut messages = Vec::new();
        let exit_status = train::run(
            &file,
            &Registry::default(),
            &mut messages,
            &AtomicBool::new(false),
        )
        .exit_status;
        Ended::Training {
            exit_status,
            messages,
        }
    }
}

impl Child {
    fn prepare(self, kiln: &mut Command, files: &Files) {
        match self {
            Self::Real | Self::InProcess => {}
            Self::Scripted(scenario) => drop(
                kiln.env("KILN_TRIAL", scripted_child())
                    .env("SCRIPTED_CHILD", scenario),
            ),
            Self::Sampled => drop(
                kiln.env("KILN_TRIAL", files.sampled_child())
                    .env("SCRIPTED_CHILD", "completes"),
            ),
            Self::OnGpu(scenario) => {
                kiln.env("KILN_TRIAL", scripted_child())
                    .env("SCRIPTED_CHILD", scenario);
                kiln.env("KILN_NVML_LIB", files.driver())
                    .env_remove("CUDA_VISIBLE_DEVICES");
            }
            Self::InSlurm => {
                let cluster = kiln.get_current_dir().unwrap().join("cluster");
                fs::create_dir(&cluster).unwrap();
                fs::write(cluster.join("hold"), "").unwrap();
                let path = std::env::var("PATH").unwrap();
                let programs = in_repository("tests/slurm/fake");
                kiln.env("KILN_TRIAL", scripted_child())
                    .env("FAKE_SLURM", cluster)
                    .env("PATH", format!("{}:{path}", programs.display()));
            }
        }
    }
}

impl Left {
    pub(crate) fn succeeded(&self) -> Result<(), String> {
        let is_success = match &self.ended {
            Ended::Run(output) => output.status.success(),
            Ended::Training { .. } => self.measured("outcome") == "\"completed\"",
        };
        is_success.then_some(()).ok_or_else(|| self.to_string())
    }

    /// The exit status of `kiln run`.
    pub(crate) fn status(&self) -> String {
        match &self.ended {
            Ended::Run(output) => output
                .status
                .code()
                .map(|code| code.to_string())
                .unwrap_or_default(),
            Ended::Training { .. } => {
                unreachable!("a case that looks at the status of `kiln run` is marked `by_program`")
            }
        }
    }

    /// The output of `kiln run`; for a training in this process, the messages to its parent, which
    /// prints the notices among them.
    pub(crate) fn stdout(&self) -> String {
        let (Ended::Run(Output { stdout: said, .. }) | Ended::Training { messages: said, .. }) =
            &self.ended;
        String::from_utf8_lossy(said).into_owned()
    }

    /// Nothing of a training in this process.
    pub(crate) fn stderr(&self) -> String {
        match &self.ended {
            Ended::Run(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Ended::Training { .. } => String::new(),
        }
    }

    /// The cell `notes` of the first row; of a training in this process the child's part of it.
    pub(crate) fn notes(&self) -> String {
        match &self.ended {
            Ended::Run(_) => self
                .rows("trials.csv")
                .into_iter()
                .next()
                .and_then(|mut row| row.remove("notes"))
                .unwrap_or_default(),
            Ended::Training { .. } => result(&self.attempt())
                .ok()
                .and_then(|result| notes_cell(&result.notes))
                .unwrap_or_default(),
        }
    }

    /// The name of the experiment's folder under `results`.
    pub(crate) fn name(&self) -> String {
        let named: Vec<_> = folders(&self.folder.path().join("results"));
        named
            .iter()
            .filter_map(|path| path.file_name()?.to_str())
            // Copies of programs lie beside it.
            .filter(|name| !name.starts_with('.'))
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn run_folder(&self) -> PathBuf {
        self.folder
            .path()
            .join("results")
            .join(self.name())
            .join("latest")
    }

    /// What the job of a run asks of Slurm, without what differs between any two runs: the options of
    /// its script, the names of its variables and its setup; and how often it may be started again.
    pub(crate) fn job(&self) -> String {
        let submission = self.run_folder().join("submit/1");
        let script = fs::read_to_string(submission.join("job.sh")).unwrap_or_default();
        let changing = ["--job-name=", "--chdir=", "--output=", "exec "];
        let lines = script
            .lines()
            .filter(|line| changing.iter().all(|changing| !line.contains(changing)));
        let names = lines.map(|line| match line.strip_prefix("export ") {
            Some(variable) => variable.split('=').next().unwrap(),
            None => line,
        });
        let asked = fs::read_to_string(submission.join("submission.json")).unwrap_or_default();
        let again = asked.lines().find(|line| line.contains("resubmissions"));
        names.chain(again).collect::<Vec<_>>().join("\n")
    }

    /// The first attempt's folder.
    pub(crate) fn attempt(&self) -> PathBuf {
        if matches!(self.ended, Ended::Training { .. }) {
            return self.folder.path().join("attempt/1");
        }
        let trials = folders(&self.run_folder().join("trials"));
        trials
            .iter()
            .flat_map(|trial| folders(trial))
            .next()
            .unwrap_or_default()
    }

    /// A field of the first attempt's `trial.json`, which the child wrote; nothing if it is null.
    pub(crate) fn measured(&self, field: &str) -> String {
        let text = fs::read(self.attempt().join("trial.json")).unwrap_or_default();
        match serde_json::from_slice::<Value>(&text).unwrap_or_default()[field].take() {
            Value::Null => String::new(),
            value => value.to_string(),
        }
    }

    /// The rows of a table of the run or of its first attempt, each cell under its column's name.
    pub(crate) fn rows(&self, table: &str) -> Vec<HashMap<String, String>> {
        let of_run = matches!(self.ended, Ended::Run(_)).then(|| self.run_folder().join(table));
        assert!(
            of_run.is_some() || table != "trials.csv",
            "a case that looks at trials.csv is marked `by_program`"
        );
        let places: Vec<PathBuf> = of_run
            .into_iter()
            .chain([self.attempt().join(table)])
            .collect();
        let Some(path) = places.iter().find(|path| path.is_file()) else {
            return Vec::new();
        };
        csv::Reader::from_path(path)
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect()
    }

    /// One column, its cells with blanks between them.
    pub(crate) fn column(&self, table: &str, column: &str) -> String {
        let cells: Vec<String> = self
            .rows(table)
            .into_iter()
            .map(|mut row| row.remove(column).unwrap())
            .collect();
        cells.join(" ")
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ended {
            Ended::Run(output) => write!(
                f,
                "[{} after {:.2} s]\n{}{}",
                output.status,
                self.seconds,
                self.stdout(),
                self.stderr()
            ),
            Ended::Training { exit_status, .. } => {
                write!(f, "[status {exit_status}]\n{}", self.measured("reason"))
            }
        }
    }
}

/// The folders in a folder, sorted; `latest` and other links are none.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders
}
