//! A run on a terminal of 80 × 24 characters, as a person sees it: what each moment shows, and what is
//! left when it is over.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use regex::Regex;

use crate::scripted_child::Place;

/// A command on a terminal, and what the terminal shows.
pub(crate) struct Terminal {
    pub(crate) program: Child,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Terminal {
    /// A shell's commands on a terminal of so many rows and columns; `$PROGRAM` is `kiln`.
    pub(crate) fn new(
        place: &Place,
        (rows, columns): (u16, u16),
        commands: &str,
        scenario: &str,
    ) -> Self {
        let commands = format!("stty rows {rows} cols {columns}; {commands}");
        let mut program = place
            .commands_in_a_terminal(&commands)
            .env("SCRIPTED_CHILD", scenario)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = program.stdout.take().unwrap();
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            program,
            output,
            screen: vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0),
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let stdin = self.program.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// The lines on the screen, without the empty ones at its end.
    pub(crate) fn lines(&self) -> Vec<String> {
        let contents = self.screen.screen().contents();
        contents
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    /// Waits until the lines on the screen are as wanted. Whatever comes meanwhile, no bar is wrapped.
    pub(crate) fn wait_for(&mut self, what: &str, mut is_wanted: impl FnMut(&[String]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_wanted(&self.lines()) {
            match self.output.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{what}: the program has ended: {:#?}", self.lines())
                }
            }
            self.assert_no_bar_is_wrapped();
            assert!(Instant::now() < deadline, "{what}: {:#?}", self.lines());
        }
    }

    fn assert_no_bar_is_wrapped(&self) {
        let screen = self.screen.screen();
        let (rows, columns) = screen.size();
        for (row, text) in (0..rows.get()).zip(screen.rows(0, columns.get())) {
            let is_bar = text.contains(['█', '░']);
            assert!(!(is_bar && screen.row_wrapped(row)), "{:#?}", self.lines());
        }
    }
}

/// The lines from the start of the launch on, without times and the name of the run.
fn masked(lines: &[String]) -> Vec<String> {
    let start = lines.iter().position(|line| line.contains(": launch "));
    timeless(&lines[start.unwrap_or(lines.len())..])
}

/// The lines without times, memory and the name of the run.
fn timeless(lines: &[String]) -> Vec<String> {
    let seconds = Regex::new(r"after [0-9.]+ (ms|s|min \d+ s)").unwrap();
    let folder = Regex::new(r"results/(\w+)/[^:/\s]+").unwrap();
    let left = Regex::new(r", about .* left").unwrap();
    // A wider number makes the whole table wider. On a busy machine a child can end before its
    // memory was read, and the mean is of those that are left.
    let memory = Regex::new(r" +(memory|\d+\.\d [KM]iB( \(n \d\))?)").unwrap();
    let rule = Regex::new("─+").unwrap();
    lines
        .iter()
        .map(|line| seconds.replace(line, "after TIME").into_owned())
        .map(|line| folder.replace(&line, "results/$1/RUN").into_owned())
        .map(|line| left.replace(&line, "").into_owned())
        .map(|line| memory.replace(&line, "  MEMORY").into_owned())
        .map(|line| rule.replace(&line, "───").into_owned())
        .collect()
}

/// Both launches stand on the same terminal; the tables go to files.
const INTERRUPTED_AND_RESUMED: &str = "trap : INT; \
    \"$PROGRAM\" run x.yaml >first.txt; echo \"status $?\"; read -r line; \
    printf '\\033[H\\033[2J'; \"$PROGRAM\" run x.yaml >second.txt; echo \"status $?\"; read -r line";

#[test]
fn an_interrupted_and_resumed_run_leaves_whole_lines_and_no_bars() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
    let mut terminal = Terminal::new(&place, (24, 80), INTERRUPTED_AND_RESUMED, "tells_and_waits");
    let started = "results/x/RUN: launch 1, 2 of 2 trials to run";
    let told = "batch_size=1: a notice between two drawings";
    let bars = [
        "batch_size=1",
        "  ████████░░░░░░░░ 5/10 steps, loss 2.5000, 64.0 samples/s, data wait 10.0 %",
        "░░░░░░░░░░░░░░░░░░░░░░░░ 0/2 trials",
    ];
    terminal.wait_for("the bars of the first trial", |lines| {
        masked(lines) == [&[started, told], &bars[..]].concat()
    });
    terminal.press("\u{3}");
    let stopping = "finishing 1 running trial and starting no more; press Ctrl-C again to stop now";
    terminal.wait_for("the answer to Ctrl-C", |lines| {
        masked(lines) == [&[started, told, stopping], &bars[..]].concat()
    });
    place.release();
    let first = [
        started,
        told,
        stopping,
        "batch_size=1: completed after TIME, 64.0 samples/s, loss 2.2500",
        "interrupted; run the same command to resume",
        "status 130",
    ];
    terminal.wait_for("the end of the first launch", |lines| {
        masked(lines) == first
    });
    terminal.press("\n");
    let resumed = "results/x/RUN: launch 2, 1 of 2 trials to run";
    let told = "batch_size=2: a notice between two drawings";
    let bars = [
        "batch_size=2",
        "  ████████░░░░░░░░ 5/10 steps, loss 2.5000, 64.0 samples/s, data wait 10.0 %",
        "████████████░░░░░░░░░░░░ 1/2 trials",
    ];
    terminal.wait_for("the bars of the second trial", |lines| {
        masked(lines) == [&[resumed, told], &bars[..]].concat()
    });
    place.release();
    let second = [
        resumed,
        told,
        "batch_size=2: completed after TIME, 64.0 samples/s, loss 2.2500",
        "status 0",
    ];
    terminal.wait_for("the end of the second launch", |lines| {
        masked(lines) == second
    });
    terminal.press("\n");
    assert!(terminal.program.wait().unwrap().success());
}

/// The quickstart, stopped and resumed by hand.
const QUICKSTART: &str = "trap : INT; \
    \"$PROGRAM\" run quickstart.yaml; read -r line; \
    printf '\\033[H\\033[2J'; \"$PROGRAM\" run quickstart.yaml; read -r line";

/// A recording in text: what the terminal shows at some moments.
struct Recording {
    path: PathBuf,
    kept: String,
    frames: String,
}

impl Recording {
    fn open() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join("tests/expected/terminal-quickstart.txt");
        Self {
            kept: fs::read_to_string(&path).unwrap_or_default(),
            path,
            frames: String::new(),
        }
    }

    /// Waits until the terminal shows the next frame of the recording, in which `is_there` holds; with
    /// `KILN_BLESS`, records the frame.
    fn frame(
        &mut self,
        terminal: &mut Terminal,
        name: &str,
        view: fn(&[String]) -> Vec<String>,
        is_there: fn(&str) -> bool,
    ) {
        let framed = |lines: &[String]| format!("== {name}\n{}\n\n", view(lines).join("\n"));
        let is_blessed = std::env::var_os("KILN_BLESS").is_some();
        let expected = self.kept.get(self.frames.len()..).unwrap_or_default();
        terminal.wait_for(name, |lines| {
            let frame = framed(lines);
            is_there(&frame) && (is_blessed || expected.starts_with(&frame))
        });
        self.frames += &framed(&terminal.lines());
        if is_blessed {
            fs::write(&self.path, &self.frames).unwrap();
        }
    }
}

#[test]
fn the_quickstart_stopped_and_resumed_looks_as_recorded() {
    let place = Place::with("");
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/quickstart.yaml");
    fs::copy(quickstart, place.path("quickstart.yaml")).unwrap();
    let mut terminal = Terminal::new(&place, (24, 80), QUICKSTART, "tells_and_waits");
    let mut recording = Recording::open();
    recording.frame(&mut terminal, "the first trial runs", masked, |text| {
        text.contains("5/10 steps") && text.contains("0/12 trials")
    });
    terminal.press("\u{3}");
    recording.frame(&mut terminal, "Ctrl-C", masked, |text| {
        text.contains("finishing 1 running trial") && text.contains("0/12 trials")
    });
    place.release();
    recording.frame(&mut terminal, "the launch has ended", masked, |text| {
        text.contains("interrupted; run")
    });
    terminal.press("\n");
    recording.frame(&mut terminal, "the same command again", masked, |text| {
        text.contains("5/10 steps") && text.contains("1/12 trials")
    });
    terminal.wait_for("the end of the other trials", |lines| {
        place.release();
        lines
            .iter()
            .any(|line| line.ends_with("(summary.csv is the short table)"))
    });
    recording.frame(&mut terminal, "the run has ended", timeless, |text| {
        text.contains("(summary.csv is")
    });
    assert_eq!(
        recording.frames,
        fs::read_to_string(&recording.path).unwrap()
    );
    terminal.press("\n");
    assert!(terminal.program.wait().unwrap().success());
}

#[test]
fn bars_fit_a_narrow_and_low_terminal() {
    let place = Place::with("train: {steps: 10}");
    let commands = "\"$PROGRAM\" run x.yaml >out.txt; echo \"status $?\"; read -r line";
    let mut terminal = Terminal::new(&place, (4, 30), commands, "tells_and_waits");
    terminal.wait_for("the bars", |lines| {
        let bars: Vec<&str> = lines.iter().map(String::as_str).rev().take(3).collect();
        bars == [
            "░░░░░░░░░░░░░░░░░░ 0/1 trials",
            "  ████████░░░░░░░░ 5/10 steps",
            "seed=1",
        ]
    });
    place.release();
    terminal.wait_for("the end", |lines| {
        let has_bar = lines.iter().any(|line| line.contains(['█', '░']));
        !has_bar && lines.last().is_some_and(|line| line == "status 0")
    });
}
