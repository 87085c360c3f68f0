//! Shared by the tests of the scheduler: an empty folder, an experiment, the built program with a
//! scripted child.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod program;

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

use serde_json::Value;

/// A row of a table, each cell under its column's name.
pub(crate) type Row = HashMap<String, String>;

/// The rows of a CSV file.
pub(crate) fn table(path: &Path) -> Vec<Row> {
    csv::Reader::from_path(path)
        .unwrap()
        .deserialize()
        .map(Result::unwrap)
        .collect()
}

/// No test takes so long: what still runs in its place then hangs, and is ended, so that the test
/// fails and the others go on.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// An empty folder in which experiment `x` can be run.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    /// Dropped with the place.
    _lasts: Sender<()>,
}

impl Place {
    /// With `x.yaml`: a matmul experiment with these further lines.
    pub(crate) fn with(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self {
            _lasts: end_programs_of(fs::canonicalize(folder.path()).unwrap(), LONGEST),
            folder,
        };
        place.write(lines);
        place
    }

    /// With `x.yaml`: a command with these keys of `model`, on the CPU, and these further lines.
    pub(crate) fn of_command(model: &str, lines: &str) -> Self {
        let place = Self::with("");
        place.write_command(model, lines);
        place
    }

    /// Writes the `x.yaml` of [`Place::of_command`].
    pub(crate) fn write_command(&self, model: &str, lines: &str) {
        let run = match lines.contains("run: ") {
            true => "",
            false => "run: {devices: cpu}\n",
        };
        let text = format!("kiln: 1\nname: x\nmodel:\n  kind: command\n{model}\n{run}{lines}\n");
        fs::write(self.path("x.yaml"), text).unwrap();
    }

    pub(crate) fn write(&self, lines: &str) {
        fs::write(
            self.path("x.yaml"),
            format!("kiln: 1\nname: x\nmodel: {{kind: matmul, size: 8}}\n{lines}\n"),
        )
        .unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `kiln` with these arguments, its children scripted.
    pub(crate) fn kiln(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        let child = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripted_child/child.sh");
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("KILN_TRIAL", child);
        command
            .env("SCRIPTED_CHILD_RELEASE", self.path("release"))
            .env("KILN_LOCKS", self.path("locks"));
        command
            .env("CUDA_VISIBLE_DEVICES", "")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `kiln run x.yaml` with every child playing `scenario`, to its end.
    pub(crate) fn run(&self, scenario: &str, more: &[&str]) -> Ended {
        let arguments = [&["run", "x.yaml"], more].concat();
        Ended::of(
            self.kiln(&arguments)
                .env("SCRIPTED_CHILD", scenario)
                .output()
                .unwrap(),
        )
    }

    /// Starts `kiln run x.yaml` and does not wait for it.
    pub(crate) fn start(&self, scenario: &str) -> Child {
        self.kiln(&["run", "x.yaml", "--progress", "plain"])
            .env("SCRIPTED_CHILD", scenario)
            .spawn()
            .unwrap()
    }

    /// `kiln` with these arguments in a terminal of 40 × 120 characters, whose text comes out of
    /// standard output. Ending the process closes the terminal.
    pub(crate) fn in_a_terminal(&self, arguments: &[&str]) -> Command {
        self.commands_in_a_terminal(&format!("exec \"$PROGRAM\" {}", arguments.join(" ")))
    }

    /// The same for a shell's commands; `$PROGRAM` is `kiln`.
    pub(crate) fn commands_in_a_terminal(&self, commands: &str) -> Command {
        let kiln = self.kiln(&[]);
        let mut terminal = Command::new("script");
        terminal.args([
            "-qec",
            &format!("stty rows 40 cols 120; {commands}"),
            "/dev/null",
        ]);
        terminal
            .current_dir(self.folder.path())
            .env("PROGRAM", kiln.get_program())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm");
        terminal.envs(variables(&kiln)).env_remove("NO_COLOR");
        terminal
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        terminal
    }

    /// The id of the first trial of the plan.
    pub(crate) fn first_id(&self) -> String {
        let planned = self.kiln(&["plan", "x.yaml", "--json"]).output().unwrap();
        let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
        plan["trials"][0]["id"].as_str().unwrap().to_owned()
    }

    /// The newest run's folder.
    pub(crate) fn latest(&self) -> PathBuf {
        self.path("results/x/latest")
    }

    pub(crate) fn runs(&self) -> usize {
        let entries = fs::read_dir(self.path("results/x")).unwrap().flatten();
        entries
            .filter(|entry| entry.file_type().unwrap().is_dir())
            .count()
    }

    /// Makes the newest run one of a machine with another processor and id.
    pub(crate) fn move_elsewhere(&self) {
        let mut run = self.run_file();
        for launch in run["launches"].as_array_mut().unwrap() {
            launch["boot_id"] = "another".into();
            launch["machine_id"] = "0123456789ab".into();
            launch["machine"]["cpu"]["model"] = "Abacus 9000".into();
        }
        fs::write(self.latest().join("run.json"), run.to_string()).unwrap();
    }

    pub(crate) fn run_file(&self) -> Value {
        serde_json::from_slice(&fs::read(self.latest().join("run.json")).unwrap()).unwrap()
    }

    /// The lines of the newest run's `trials.csv`.
    pub(crate) fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.latest().join("trials.csv"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Its rows, each cell under its column's name.
    pub(crate) fn rows(&self) -> Vec<Row> {
        table(&self.latest().join("trials.csv"))
    }

    /// One column of all rows.
    pub(crate) fn column(&self, name: &str) -> Vec<String> {
        self.rows()
            .into_iter()
            .map(|mut row| row.remove(name).unwrap())
            .collect()
    }

    /// The folders of all attempts of the newest run.
    pub(crate) fn attempts(&self) -> Vec<PathBuf> {
        let folders = |path: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries
                .filter(|entry| entry.path().is_dir())
                .map(|entry| entry.path())
                .collect()
        };
        folders(&self.latest().join("trials"))
            .iter()
            .flat_map(|trial| folders(trial))
            .collect()
    }

    /// How many attempts of the newest run have a file of this name. Children make `at-work` once
    /// they wait for something.
    pub(crate) fn attempts_with(&self, name: &str) -> usize {
        self.attempts()
            .iter()
            .filter(|attempt| attempt.join(name).exists())
            .count()
    }

    /// Writes a command that waits for its release, and starts it.
    pub(crate) fn start_waiting_command(&self) -> Child {
        let waits = "  argv: [sh, -c, 'touch at-work; until test -e release; do sleep 0.05; done; \
                     echo v 1']\n  metrics: {v: {line: 'v (\\S+)'}}";
        self.write_command(waits, "");
        let running = self.start("");
        wait_until("the program runs", || self.path("at-work").exists());
        running
    }

    /// The lines that commands wrote to `started`.
    pub(crate) fn started(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("started")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Lets a child go on that waits for its release, or for its turn.
    pub(crate) fn release(&self) {
        fs::write(self.path("release"), "").unwrap();
    }

    /// The processes that work in this place, whatever their environment says: kiln, and all that
    /// it started and that has not gone elsewhere.
    pub(crate) fn inhabitants(&self) -> Vec<u32> {
        inhabitants(&fs::canonicalize(self.folder.path()).unwrap()).collect()
    }

    /// The processes whose environment says that they belong to a run in this place: a trial's
    /// child and its children.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mark = format!(
            "KILN_ATTEMPT={}",
            fs::canonicalize(self.folder.path()).unwrap().display()
        );
        process_ids().filter(|pid| is_marked(*pid, &mark)).collect()
    }
}

/// The variables that a command sets, for another program that shall have them.
pub(crate) fn variables(command: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    let set = command.get_envs();
    set.filter_map(|(name, value)| Some((name, value?)))
}

/// Ends the programs that work in a folder once so much time is over; dropping what it returns calls
/// it off.
#[expect(
    clippy::print_stderr,
    reason = "the test's own assertion comes after it"
)]
pub(crate) fn end_programs_of(folder: PathBuf, longest: Duration) -> Sender<()> {
    let (lasts, over) = channel();
    std::thread::spawn(move || {
        if over.recv_timeout(longest) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        for pid in inhabitants(&folder) {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            eprintln!("after {longest:?} this still runs and is ended: {line}");
            let _ = Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .status();
        }
    });
    lasts
}

fn inhabitants(folder: &Path) -> impl Iterator<Item = u32> {
    process_ids()
        .filter(move |pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at == folder))
}

fn process_ids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_marked(pid: u32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable.starts_with(mark.as_bytes()))
}

/// A command that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The program that trains.
pub(crate) fn real_trial() -> PathBuf {
    let trial = Path::new(env!("CARGO_BIN_EXE_kiln")).with_file_name("kiln-trial");
    assert!(
        trial.exists(),
        "{} is not built; `cargo test --workspace --release` builds it",
        trial.display()
    );
    trial
}

/// Real trials of an MLP: at 1024 hidden units a sample of 64 tokens holds some MiB of activations.
pub(crate) const REAL_MLP: &str = "kiln: 1
name: x
model: {kind: mlp, d_model: 64, hidden: 1024, context: 8, seq_len: 64}
data: {kind: generated, characters: 400000, valid_fraction: 0.01}
train: {steps: 3, optimizer: {kind: sgd, learning_rate: 0.1}, cpu_threads: 2}
measure: {warmup_steps: 1, warmup_seconds: 0.0}
";

/// Real trials whose memory grows fast with the batch, and whose arithmetic does not: of each
/// token, the embeddings of the 32 tokens up to it stand side by side. That is 512 KiB for a sample
/// of 64 tokens, and the backward pass holds it twice at least.
pub(crate) const REAL_WIDE: &str = "kiln: 1
name: x
model: {kind: mlp, d_model: 64, hidden: 64, context: 32, seq_len: 64}
data: {kind: generated, characters: 200000, valid_fraction: 0.01}
train: {steps: 2, optimizer: {kind: sgd, learning_rate: 0.1}, cpu_threads: 2}
measure: {warmup_steps: 1, warmup_seconds: 0.0}
";

/// Waits until `holds`; a test that waits in vain fails with `what`.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads what a running `kiln` says until `words` come; returns everything read.
pub(crate) fn hear(kiln: &mut Child, words: &str) -> String {
    read_until(kiln.stderr.as_mut().unwrap(), words)
}

/// Reads a stream until `words` come; returns everything read.
pub(crate) fn read_until(stream: &mut impl Read, words: &str) -> String {
    let (mut heard, mut byte) = (Vec::new(), [0]);
    while !heard.ends_with(words.as_bytes()) {
        assert!(
            stream.read(&mut byte).unwrap() == 1,
            "`{words}` never came: {}",
            String::from_utf8_lossy(&heard)
        );
        heard.push(byte[0]);
    }
    String::from_utf8(heard).unwrap()
}

/// Sends a signal as a user would.
pub(crate) fn signal(child: &Child, name: &str) {
    send(&child.id().to_string(), name);
}

/// Sends a signal to a process by its id, or to a process group by its id after `-`.
pub(crate) fn send(target: &str, name: &str) {
    assert!(
        Command::new("kill")
            .args([&format!("-{name}"), "--", target])
            .status()
            .unwrap()
            .success()
    );
}

/// The folder with the data sets; a test that asks for it has `real_data` in its name.
pub(crate) fn real_data() -> PathBuf {
    let folder = std::env::var_os("KILN_DATA").filter(|folder| !folder.is_empty());
    std::path::absolute(folder.expect("KILN_DATA names no folder with the data sets")).unwrap()
}
