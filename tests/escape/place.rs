//! A place in which everything that somebody else has chosen is hostile: tables and records of a
//! run, names of files, the child, the driver.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::OnceLock,
};

use fake_nvml::{Scenario, install::install};
use serde_json::{Value, json};

use super::check::{FORGED, Medium, Page};
use crate::{
    report_files::{copy_table, in_repository},
    scripted_child::{Ended, Place, program::write_program, read_until},
};

/// Text that moves the cursor, reverses what follows, adds lines, and is markup in every format.
pub(super) fn hostile(place: &str) -> String {
    format!(
        "{place}\u{1b}[31m\u{1b}[2J\u{9b}1A\u{7f}\u{8}\u{202e}\u{2066}\u{200b}\u{2028}{FORGED}\r\n\
         {FORGED} 12 trials: 12 completed\n# {FORGED}\n```\n{FORGED} | `x` </td></title></script>\
         <script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert(1)) *b* _c_"
    )
}

/// The same in few bytes: for names of files and for what a driver tells.
pub(super) fn short(place: &str) -> String {
    format!("{place}\u{1b}[2J\u{202e}\n{FORGED} <img src=x>|`")
}

/// A folder with hostile runs, and the pages that were made in it.
pub(super) struct HostilePlace {
    pub(super) place: Place,
    pub(super) pages: Vec<Page>,
}

impl HostilePlace {
    pub(super) fn new(lines: &str) -> Self {
        let place = Place::with(lines);
        fs::write(place.path("child.json"), child_result().to_string()).unwrap();
        write_program(&place.path("child"), &child());
        Self {
            place,
            pages: Vec::new(),
        }
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut kiln = self.place.kiln(arguments);
        self.set(&mut kiln);
        kiln
    }

    fn set(&self, kiln: &mut Command) {
        kiln.env("KILN_TRIAL", self.place.path("child"))
            .env("XDG_CACHE_HOME", self.place.path("cache"))
            .env("KILN_DATA", self.place.path(&short("data")))
            .env("KILN_NVML_LIB", "/nonexistent")
            .env("KILN_NVML_PATIENCE", "60");
    }

    /// Runs a command; what it prints is kept: standard output of this medium, standard error as
    /// text.
    pub(super) fn makes(&mut self, medium: Medium, arguments: &[&str]) -> Ended {
        let kiln = self.command(arguments);
        self.keeps(medium, arguments, kiln)
    }

    /// As [`Self::makes`], with a driver that has one GPU.
    pub(super) fn makes_with_gpu(&mut self, medium: Medium, arguments: &[&str]) -> Ended {
        let mut kiln = self.command(arguments);
        kiln.env("KILN_NVML_LIB", library());
        self.keeps(medium, arguments, kiln)
    }

    /// As [`Self::makes`], in a terminal.
    pub(super) fn draws(&mut self, arguments: &[&str]) -> Ended {
        let mut kiln = self.in_a_terminal(arguments);
        kiln.env("KILN_NVML_LIB", library());
        self.keeps(Medium::Terminal, arguments, kiln)
    }

    /// Runs `command` until it shows the child's notice on this stream, then lets the child end;
    /// returns everything on the stream.
    pub(super) fn until_noticed<S: Read>(
        &self,
        command: &mut Command,
        stream: impl Fn(&mut Child) -> S,
    ) -> String {
        let mut kiln = command.env("HOSTILE_WAITS", "yes").spawn().unwrap();
        let mut stream = stream(&mut kiln);
        let mut heard = read_until(&mut stream, "notice");
        self.place.release();
        stream.read_to_string(&mut heard).unwrap();
        kiln.wait().unwrap();
        heard
    }

    /// The command in a terminal.
    pub(super) fn in_a_terminal(&self, arguments: &[&str]) -> Command {
        let mut kiln = self.place.in_a_terminal(arguments);
        self.set(&mut kiln);
        kiln
    }

    fn keeps(&mut self, medium: Medium, arguments: &[&str], mut kiln: Command) -> Ended {
        let ended = Ended::of(kiln.output().unwrap());
        let label = format!("kiln {}", arguments.join(" ").escape_default());
        self.pages.push(Page {
            label: format!("{label}, {medium:?}"),
            medium,
            text: ended.stdout.clone(),
        });
        self.pages.push(Page {
            label: format!("{label}, standard error"),
            medium: Medium::Text,
            text: ended.stderr.clone(),
        });
        ended
    }

    /// A file that kiln has written.
    pub(super) fn reads(&mut self, medium: Medium, file: &Path) {
        self.pages.push(Page {
            label: file.display().to_string(),
            medium,
            text: fs::read_to_string(file).unwrap(),
        });
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// All faults of all pages.
    pub(super) fn check(self) {
        let faults: Vec<String> = self.pages.iter().flat_map(Page::faults).collect();
        assert!(
            faults.is_empty(),
            "{} faults:\n{}",
            faults.len(),
            faults.join("\n")
        );
    }
}

/// The library of a driver whose GPU has hostile names.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let small = fs::read_to_string(in_repository("tests/scenarios/small.yaml")).unwrap();
        let mut scenario: Value = serde_yaml::from_str(&small).unwrap();
        scenario["calls"]["nvmlSystemGetDriverVersion"] = short("590").into();
        scenario["calls"]["nvmlSystemGetProcessName/1"] = short("train").into();
        let gpu = &mut scenario["devices"][0]["calls"];
        gpu["nvmlDeviceGetName"] = short("NVIDIA").into();
        gpu["nvmlDeviceGetVbiosVersion"] = "96\u{1b}[2J\nFORGED".into();
        gpu["nvmlDeviceGetSerial"] = "16\u{1b}[2J\nFORGED".into();
        let folder = tempfile::tempdir().unwrap();
        let scenario: Scenario = serde_json::from_value(scenario).unwrap();
        let path = install(folder.path(), &scenario).unwrap();
        (folder, path)
    });
    path
}

/// A result whose names are hostile; `TRIAL` and `ATTEMPT` are put in by the child.
fn child_result() -> Value {
    json!({
        "kiln_trial_result": 1, "trial": "TRIAL", "attempt": 0, "outcome": "OUTCOME",
        "reason": hostile("reason"), "steps": 10, "left_out_steps": 2, "window_seconds": 1.5,
        "samples_per_second": 64.0, "train_loss": 2.25, "device_name": hostile("device"),
        "cpu_threads": 1, "flags": {"tf32": hostile("flag")},
        "libraries": {"libtorch": hostile("libtorch"), "other": hostile("library")},
        "notes": {"mfu": hostile("note")},
    })
}

/// A child that says what it likes. Batches of more than 4 run out of memory, one of 3 crashes.
fn child() -> String {
    let peak = |precision: &str| json!({"precision": precision, "flops": 1e11, "size": 8});
    let calibration = json!({
        "kiln_calibration": 1, "libtorch": hostile("libtorch"), "device_name": hostile("device"),
        "cpu_threads": 1, "peaks": [peak("f32"), peak(&hostile("precision"))],
    });
    let build = json!({
        "finding": "build", "kiln_examination": 1, "kiln_trial": hostile("version"),
        "engines": ["libtorch"],
        "libtorch": {"compiled": "2.11.0", "loaded": hostile("loaded"), "path": hostile("path"),
                     "cuda": hostile("cuda"), "architectures": [hostile("sm")]},
    });
    let product = json!({
        "finding": "product", "device": "cpu", "precision": "f32", "size": 512,
        "max_relative_error": 5e-7, "seconds": 0.001,
    });
    let messages = [
        json!({"event": "hello", "protocol": 1, "kiln_trial": hostile("child"), "pid": 1}),
        json!({"event": "ready", "parameters": 7, "total_steps": 10, "device_name": hostile("device")}),
        json!({"event": "notice", "text": hostile("notice")}),
        json!({"event": "progress", "step": 5, "total_steps": 10, "loss": 2.5, "samples_per_second": 64.0}),
    ];
    let finished = json!({"event": "finished", "outcome": "OUTCOME", "reason": hostile("reason")});
    let lines = |values: &[Value]| {
        values
            .iter()
            .map(|value| format!("{value}\n"))
            .collect::<String>()
    };
    format!(
        r#"#!/bin/sh
cat >&2 <<'END'
{stderr}
END
case $1 in
  --calibrate) cat <<'END'
{calibration}
END
    exit ;;
  --examine) cat <<'END'
{build}
{product}
{{"finding":"done"}}
END
    exit ;;
esac
file=$1
value() {{ sed -n "s/^ *$1: *//p" "$file" | head -n 1 | tr -d "'\""; }}
folder=$(value folder) batch=$(value batch_size) status=0
cat <<'END'
{messages}END
# Ends once its notice was read.
[ -z "$HOSTILE_WAITS" ] || while [ ! -e "$SCRIPTED_CHILD_RELEASE" ]; do sleep 0.02; [ -d "$folder" ] || exit 1; done
case $batch in
  1 | 2) outcome=completed ;;
  3) exit 1 ;;
  4) outcome=failed status=1 ;;
  *) outcome=oom status=4 ;;
esac
sed "s/TRIAL/$(value trial)/; s/\"attempt\":0/\"attempt\":$(value attempt)/; s/OUTCOME/$outcome/" \
  "$(dirname "$0")/child.json" >"$folder/.new" && mv "$folder/.new" "$folder/trial.json"
sed "s/OUTCOME/$outcome/" <<'END'
{finished}
END
exit $status
"#,
        stderr = hostile("stderr"),
        messages = lines(&messages),
    )
}

/// The committed run with hostile names, in `folder`. `speed` is a factor on all rates.
pub(super) fn copy_run(folder: &Path, speed: f64) {
    fs::create_dir_all(folder).unwrap();
    let faster = |cell: &str| {
        cell.parse::<f64>()
            .map_or(cell.to_owned(), |rate| (rate * speed).to_string())
    };
    let mut row = 0;
    copy_table("trials.csv", folder, |column, cell| {
        row += usize::from(column == "kiln_table");
        match column {
            // The head's cells are under themselves.
            "train.batch_size" if cell == column => format!("train.{}", axis()),
            _ if cell == column => cell.to_owned(),
            "data.num_workers" if cell == "2" => hostile("value"),
            "outcome" if row % 4 == 0 => "failed".to_owned(),
            "samples_per_second" if row % 4 == 3 => String::new(),
            "reason" if row % 4 == 0 => hostile("reason"),
            "notes" => format!(
                "mfu: {}; window_seconds: {}",
                hostile("note"),
                hostile("short")
            ),
            "device_name" | "device_uuid" | "driver" | "libtorch" | "peak_source" | "processor"
            | "foreign_processes" | "throttle_reasons" | "host_id" | "flops_formula" => {
                hostile(&format!("{column}{}", row % 2))
            }
            "mfu" => "1.5".to_owned(),
            "samples_per_second" | "tokens_per_second" => faster(cell),
            _ => cell.to_owned(),
        }
    });
    copy_table("snapshots.csv", folder, |column, cell| match column {
        "device" | "section" | "field" | "value" | "reason" | "unit" if cell != column => {
            hostile(cell)
        }
        _ => cell.to_owned(),
    });
    let text = fs::read(in_repository(crate::report_files::RUN).join("run.json")).unwrap();
    let mut run: Value = serde_json::from_slice(&text).unwrap();
    spoil(&mut run["launches"], speed);
    run["experiment"] = hostile("experiment").into();
    // Another experiment is written beside it.
    run.as_object_mut().unwrap().remove("experiment_sha256");
    fs::write(folder.join("run.json"), run.to_string()).unwrap();
    let experiment = json!({"kiln": 1, "name": hostile("experiment"), "description": hostile(&format!("description {speed}")),
        "data": {"path": hostile("path")}});
    fs::write(
        folder.join("experiment.yaml"),
        serde_yaml::to_string(&experiment).unwrap(),
    )
    .unwrap();
}

/// A hostile name without a full stop, which would part the name of an axis.
pub(super) fn axis() -> String {
    hostile("axis").replace('.', "")
}

/// Puts hostile text behind every text of the record that is not a time.
fn spoil(value: &mut Value, speed: f64) {
    match value {
        Value::String(text) if text.parse::<f64>().is_err() && !text.contains("T16:") => {
            *text = hostile(&format!("{text} {speed}"));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| spoil(item, speed)),
        Value::Object(map) => map
            .iter_mut()
            // A state is one of a list.
            .filter(|(key, _)| *key != "state")
            .for_each(|(_, item)| spoil(item, speed)),
        _ => {}
    }
}
