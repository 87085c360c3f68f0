//! A folder in which an experiment is run, started as often as a case asks, and watched: how it
//! ended, what it said, how much memory it took, and whether its rows are still there.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    ends::Violation,
    listing::{Listing, list},
    rows::{self, Key, Row},
    undisturbed,
};

/// Longest time of a launch on a busy machine; a launch that takes longer hangs.
const USUAL_LIMIT: Duration = Duration::from_secs(600);
/// Most memory of `kiln` itself.
const MOST_MEMORY: u64 = 100 << 20;

/// The command under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Run,
    Tune,
    /// `kiln reproduce` of a finished run; after it was interrupted, `kiln run` of the new run's
    /// `experiment.yaml`, as kiln says then.
    Reproduce,
}

/// An experiment, and the children that run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) verb: Verb,
    pub(crate) yaml: &'static str,
    /// Whether `kiln-trial` runs it; otherwise the scripted child does.
    pub(crate) is_real: bool,
}

/// Three trials of the scripted child.
pub(crate) const SCRIPTED: Workload = Workload {
    name: "scripted",
    verb: Verb::Run,
    yaml: "kiln: 1\nname: x\nmodel: {kind: matmul, size: 8}\ntrain: {steps: 10}\n\
           sweep: {grid: {train.batch_size: [1, 2, 3]}}\n",
    is_real: false,
};

/// Twelve trials of the scripted child, for many kills.
pub(crate) const TWELVE: Workload = Workload {
    name: "twelve",
    verb: Verb::Run,
    yaml: "kiln: 1\nname: x\nmodel: {kind: matmul, size: 8}\ntrain: {steps: 10}\n\
           sweep: {grid: {train.batch_size: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}}\n",
    is_real: false,
};

/// Three trials that keep checkpoints, on the engine that starts fastest.
pub(crate) const FLEX: Workload = Workload {
    name: "flex",
    verb: Verb::Run,
    yaml: "kiln: 1\nname: x\nmodel: {kind: mlp, seq_len: 8, d_model: 8, hidden: 16, context: 4}\n\
           data: {kind: generated, characters: 4000, num_workers: 2, valid_fraction: 0.1}\n\
           train: {steps: 24, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 4}, \
           evaluate: {every: 8}}\n\
           measure: {warmup_steps: 2, warmup_seconds: 0.0, log_every: 1}\n\
           run: {engine: flex}\nsweep: {grid: {train.seed: [1, 2, 3]}}\n",
    is_real: true,
};

/// An experiment that trains a small transformer with checkpoints and loader workers, and the
/// section of its sweep.
macro_rules! gpt_experiment {
    ($sweep:literal) => {
        concat!(
            "kiln: 1\nname: x\n",
            "model: {kind: gpt, seq_len: 8, d_model: 8, num_heads: 2, num_layers: 1}\n",
            "data: {kind: generated, characters: 4000, num_workers: 2, valid_fraction: 0.1}\n",
            "train: {steps: 24, batch_size: 4, cpu_threads: 1, checkpoint: {every_steps: 4}, ",
            "evaluate: {every: 8}}\n",
            "measure: {warmup_steps: 2, warmup_seconds: 0.0, log_every: 1}\n",
            $sweep
        )
    };
}
pub(crate) use gpt_experiment;

/// The same with libtorch, and a transformer.
pub(crate) const LIBTORCH: Workload = Workload {
    name: "libtorch",
    verb: Verb::Run,
    yaml: gpt_experiment!("sweep: {grid: {train.seed: [1, 2, 3]}}\n"),
    is_real: true,
};

/// Three trials that keep checkpoints, played by the scripted child.
pub(crate) const CHECKPOINTS: Workload = Workload {
    name: "checkpoints",
    verb: Verb::Run,
    yaml: FLEX.yaml,
    is_real: false,
};

/// A search whose trials are played by the scripted child.
pub(crate) const TUNE: Workload = Workload {
    name: "tune",
    verb: Verb::Tune,
    yaml: "kiln: 1\nname: x\nmodel: {kind: mlp, d_model: 8, hidden: 16, seq_len: 16}\n\
           data: {kind: generated}\ntrain: {steps: 10, batch_size: 8}\n\
           sweep: {search: {kind: best-throughput-batch, to: 64}}\n",
    is_real: false,
};

/// A search that trains with libtorch.
pub(crate) const TUNE_LIBTORCH: Workload = Workload {
    name: "tune libtorch",
    verb: Verb::Tune,
    yaml: "kiln: 1\nname: x\n\
           model: {kind: gpt, seq_len: 8, d_model: 8, num_heads: 2, num_layers: 1}\n\
           data: {kind: generated, characters: 4000, num_workers: 2, valid_fraction: 0.1}\n\
           train: {steps: 24, batch_size: 2, cpu_threads: 1, checkpoint: {every_steps: 4}}\n\
           measure: {warmup_steps: 2, warmup_seconds: 0.0, log_every: 1}\n\
           sweep: {search: {kind: largest-batch, to: 8}}\n",
    is_real: true,
};

/// The run of [`FLEX`] is reproduced.
pub(crate) const REPRODUCE_FLEX: Workload = Workload {
    name: "reproduce flex",
    verb: Verb::Reproduce,
    ..FLEX
};

/// The run of [`LIBTORCH`] is reproduced.
pub(crate) const REPRODUCE_LIBTORCH: Workload = Workload {
    name: "reproduce libtorch",
    verb: Verb::Reproduce,
    ..LIBTORCH
};

/// A folder with `work` (the experiment and its results), and with a home and a canary that nobody
/// may change.
pub(crate) struct Scene {
    folder: TempDir,
    pub(crate) workload: Workload,
    /// Longest time of a launch.
    limit: Duration,
    launches: Cell<u32>,
    /// Rows as they were seen first.
    pub(crate) kept: RefCell<BTreeMap<Key, Row>>,
    /// Rows that kiln announced, with their outcomes.
    pub(crate) announced: RefCell<BTreeMap<Key, String>>,
    /// Rows that the case itself has changed or removed.
    pub(crate) excused: RefCell<BTreeSet<Key>>,
    /// The ids of the run's trials.
    plan: RefCell<Vec<String>>,
    pub(crate) violations: RefCell<Vec<Violation>>,
    pub(crate) untouched: RefCell<Listing>,
}

/// How a launch ended.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Launch {
    /// Its end in a line: the status, and the last words.
    pub(crate) fn words(&self) -> String {
        let end = match (self.status, self.signal) {
            (Some(status), _) => format!("status {status}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => "no status".to_owned(),
        };
        let last = self.stderr.lines().rev().take(3).collect::<Vec<_>>();
        format!(
            "{end}: {}",
            last.into_iter().rev().collect::<Vec<_>>().join(" / ")
        )
    }
}

/// A folder in memory if there is one: the suite makes millions of calls that sync.
fn new_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() && std::env::var_os("KILN_FAULTS_DISK").is_none() {
        tempfile::Builder::new()
            .prefix("kiln-faults-")
            .tempdir_in(memory)
    } else {
        tempfile::Builder::new().prefix("kiln-faults-").tempdir()
    };
    made.unwrap()
}

impl Scene {
    pub(crate) fn new(workload: Workload) -> Self {
        Self::with_limit(workload, USUAL_LIMIT)
    }

    pub(crate) fn with_limit(workload: Workload, limit: Duration) -> Self {
        let scene = Self {
            folder: new_folder(),
            workload,
            limit,
            launches: Cell::new(0),
            kept: RefCell::default(),
            announced: RefCell::default(),
            excused: RefCell::default(),
            plan: RefCell::default(),
            violations: RefCell::default(),
            untouched: RefCell::default(),
        };
        for folder in ["work", "home/.config", "canary/folder", "logs"] {
            fs::create_dir_all(scene.path(folder)).unwrap();
        }
        fs::write(scene.path("home/.profile"), "a dot file of the home\n").unwrap();
        for name in ["file", ".dotfile", "folder/file", "folder/.hidden"] {
            fs::write(
                scene.path("canary").join(name),
                format!("{name} of somebody else\n"),
            )
            .unwrap();
        }
        fs::write(scene.work("x.yaml"), workload.yaml).unwrap();
        if workload.verb == Verb::Reproduce {
            for (path, bytes) in undisturbed::original(workload).iter() {
                let path = scene.path("original").join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
        }
        *scene.untouched.borrow_mut() = scene.outside();
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn work(&self, name: &str) -> PathBuf {
        self.folder.path().join("work").join(name)
    }

    /// The newest run's folder.
    pub(crate) fn run_folder(&self) -> PathBuf {
        self.work("results/x/latest")
    }

    pub(crate) fn table(&self) -> PathBuf {
        self.run_folder().join("trials.csv")
    }

    /// Reads the ids of the run's trials from `run.json`, if it is there.
    pub(crate) fn remember_plan(&self) {
        let text = fs::read(self.run_folder().join("run.json")).unwrap_or_default();
        let run: Value = serde_json::from_slice(&text).unwrap_or_default();
        if let Some(plan) = run["plan"].as_array() {
            *self.plan.borrow_mut() = plan
                .iter()
                .filter_map(|id| Some(id.as_str()?.to_owned()))
                .collect();
        }
    }

    /// The ids of the run's trials, as last seen.
    pub(crate) fn plan(&self) -> Vec<String> {
        self.remember_plan();
        self.plan.borrow().clone()
    }

    /// Everything that kiln has no business to change.
    pub(crate) fn outside(&self) -> Listing {
        let mut all = list(&self.path("home"));
        all.extend(list(&self.path("canary")));
        all.extend(list(&self.path("original")));
        let own = ["results", "locks", "cache", "moved", "turns"];
        let entries = fs::read_dir(self.work("")).unwrap().flatten();
        for entry in entries {
            if !own.iter().any(|name| entry.file_name() == *name) {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                all.insert(entry.path(), hex::encode(bytes));
            }
        }
        all
    }

    pub(crate) fn note(&self, kind: &'static str, text: impl Into<String>) {
        self.violations
            .borrow_mut()
            .push(Violation::new(kind, text));
    }

    /// `kiln` with these arguments.
    pub(crate) fn kiln(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command
            .args(arguments)
            .current_dir(self.work(""))
            .stdin(Stdio::null());
        self.surround(&mut command);
        command
    }

    /// The environment of every launch. `FAULT_SCENE` marks all processes of this scene.
    pub(crate) fn surround(&self, command: &mut Command) {
        command
            .env("HOME", self.path("home"))
            .env("XDG_CACHE_HOME", self.work("cache"))
            .env("KILN_LOCKS", self.work("locks"))
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("FAULT_SCENE", self.folder.path());
        if self.workload.is_real {
            command.env_remove("KILN_TRIAL");
        } else {
            let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
            let scenario = match self.workload.verb {
                Verb::Tune => "tuned",
                Verb::Run | Verb::Reproduce => "completes",
            };
            command
                .env("KILN_TRIAL", child)
                .env("SCRIPTED_CHILD", scenario)
                .env("SCRIPTED_CHILD_RELEASE", self.work("turns"));
        }
    }

    /// The command by which a user begins the run, or goes on with it.
    fn arguments(&self) -> [&'static str; 2] {
        const RESOLVED: &str = "results/x/latest/experiment.yaml";
        match self.workload.verb {
            Verb::Run => ["run", "x.yaml"],
            Verb::Tune => ["tune", "x.yaml"],
            Verb::Reproduce if self.work(RESOLVED).is_file() => ["run", RESOLVED],
            Verb::Reproduce => ["reproduce", "../original"],
        }
    }

    /// Starts the workload's command in a process group of its own.
    pub(crate) fn start(&self, more: &[&str], change: impl FnOnce(&mut Command)) -> Running<'_> {
        let mut command = self.kiln(&self.arguments());
        command.args(["--progress", "json"]).args(more);
        change(&mut command);
        self.spawn(command)
    }

    /// Starts any command as a launch.
    pub(crate) fn spawn(&self, mut command: Command) -> Running<'_> {
        let number = self.launches.get() + 1;
        self.launches.set(number);
        let log = |end: &str| self.path(&format!("logs/{number}.{end}"));
        let (stdout, stderr) = (log("out"), log("err"));
        command
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .process_group(0);
        Running {
            scene: self,
            child: command.spawn().unwrap(),
            begun: Instant::now(),
            peak: 0,
            stdout,
            stderr,
        }
    }

    /// The workload's command to its end.
    pub(crate) fn launch(&self, more: &[&str], change: impl FnOnce(&mut Command)) -> Launch {
        self.start(more, change).end()
    }

    /// Lets one child go on that waits for its turn, or all that wait for their release.
    pub(crate) fn give_turn(&self) {
        fs::write(self.work("turns"), "").unwrap();
    }

    /// How many attempts have a file of this name.
    pub(crate) fn attempts_with(&self, name: &str) -> usize {
        let folders = |path: PathBuf| {
            fs::read_dir(path)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        folders(self.run_folder().join("trials"))
            .flat_map(folders)
            .filter(|attempt| attempt.join(name).exists())
            .count()
    }

    /// Processes of this scene, except the suite itself.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mark = format!("FAULT_SCENE={}", self.folder.path().display());
        let inside = |pid: u32| {
            fs::read_link(format!("/proc/{pid}/cwd"))
                .is_ok_and(|folder| folder.starts_with(self.folder.path()))
        };
        let marked = |pid: u32| {
            fs::read(format!("/proc/{pid}/environ"))
                .unwrap_or_default()
                .split(|byte| *byte == 0)
                .any(|variable| variable == mark.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != std::process::id() && (marked(*pid) || inside(*pid)))
            .collect()
    }

    /// The children of a run: the processes of an attempt that lead their groups.
    pub(crate) fn children(&self, parent: u32) -> Vec<u32> {
        let is_child = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|line| {
                line.strip_prefix("PPid:")
                    .is_some_and(|rest| rest.trim() == parent.to_string())
            })
        };
        self.processes().into_iter().filter(is_child).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for pid in self.processes() {
            kill(pid, "KILL");
        }
        let has_failed = !self.violations.borrow().is_empty() || thread::panicking();
        if has_failed && std::env::var_os("KILN_FAULTS_KEEP").is_some() {
            self.folder.disable_cleanup(true);
        }
    }
}

/// Sends a signal to a process.
pub(crate) fn kill(pid: u32, signal: &str) {
    let _ = Command::new("kill")
        .args([format!("-{signal}"), pid.to_string()])
        .stderr(Stdio::null())
        .status();
}

/// A launch under way.
pub(crate) struct Running<'a> {
    scene: &'a Scene,
    pub(crate) child: Child,
    begun: Instant,
    peak: u64,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The events so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        rows::events(&String::from_utf8_lossy(
            &fs::read(&self.stdout).unwrap_or_default(),
        ))
    }

    /// Whether an event of this name was said this often.
    pub(crate) fn has_said(&self, event: &str, times: usize) -> bool {
        self.events()
            .iter()
            .filter(|found| found["event"] == event)
            .count()
            >= times
    }

    /// Waits until something holds; `false` if the launch ended first.
    pub(crate) fn wait_until(&mut self, mut holds: impl FnMut(&Self) -> bool) -> bool {
        while !holds(self) {
            if self.ended().is_some() {
                return holds(self);
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits for a while; `false` if the launch ended first.
    pub(crate) fn pause(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if self.ended().is_some() {
                return false;
            }
            thread::sleep(Duration::from_millis(1).min(until - Instant::now().min(until)));
        }
        true
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        // Before its `exec` the new process is a copy of the suite.
        let is_kiln = status.lines().next() == Some("Name:\tkiln");
        let peak = status
            .lines()
            .find_map(|line| {
                line.strip_prefix("VmHWM:")?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse()
                    .ok()
            })
            .map_or(0, |kilobytes: u64| kilobytes << 10);
        if is_kiln {
            self.peak = self.peak.max(peak);
        }
        if self.peak > 10 * MOST_MEMORY {
            kill(self.pid(), "KILL");
        }
        if self.begun.elapsed() > self.scene.limit {
            let last = fs::read_to_string(&self.stderr).unwrap_or_default();
            self.scene.note(
                "hangs",
                format!("a launch took longer than {:?}: {last}", self.scene.limit),
            );
            kill(self.pid(), "KILL");
            return Some(self.child.wait().unwrap());
        }
        self.child.try_wait().unwrap()
    }

    /// Waits for its end, and checks what holds after every launch.
    pub(crate) fn end(mut self) -> Launch {
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            thread::sleep(Duration::from_millis(2));
        };
        let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let launch = Launch {
            status: status.code(),
            signal: status.signal(),
            stdout: text(&self.stdout),
            stderr: text(&self.stderr),
        };
        if self.peak > MOST_MEMORY {
            self.scene
                .note("memory", format!("kiln took {} MiB", self.peak >> 20));
        }
        self.scene.observe(&launch);
        launch
    }
}
