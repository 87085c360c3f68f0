//! `kiln watch RUN`: shows a run while it goes on, from its files alone.

use std::{
    io::Read,
    path::Path,
    sync::mpsc::{RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use kiln_core::units::without_controls;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use super::signals;
use crate::{
    commands::{
        Status, Stop,
        run_name::{Taken, named_run},
        written,
    },
    follow::{RunFollower, RunState, page},
    output::{
        frame::{DrawnFrame, FramePage, Size},
        terminal,
    },
};

/// Sent in place of a signal's number when `q` is pressed.
const QUIT: i32 = 0;

/// The run to watch, and the interval.
pub(super) struct WatchedRun<'a> {
    pub(super) named: &'a str,
    pub(super) results: &'a Path,
    pub(super) every: Duration,
    /// Number of frames; `None` until the run ends.
    pub(super) count: Option<u64>,
}

/// Shows the run until it ends.
pub(super) fn run(watched: &WatchedRun) -> Result<Status, Stop> {
    let mut follower = RunFollower::new(named_run(watched.named, watched.results, Taken::Runs)?);
    let (sender, wakes) = signals()?;
    let keys = Keys::listen(sender);
    let mut frames = Frames::new();
    let mut next = Instant::now();
    let mut looks = 0;
    loop {
        keys.iter().for_each(Keys::renew);
        let state = follower.look();
        let has_reader = frames.show(&state)?;
        looks += 1;
        if !has_reader || watched.count == Some(looks) || !state.life.goes_on() {
            return Ok(Status::Success);
        }
        // A late look is not repeated.
        next = (next + watched.every).max(Instant::now());
        match wakes.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(QUIT) => return Ok(Status::Success),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(Status::Interrupted),
        }
    }
}

/// Draws each frame over the one before on a terminal, and prints one after the other elsewhere.
enum Frames {
    Terminal(DrawnFrame),
    Pages { is_first: bool },
}

/// Columns of a page that goes to a pipe or a file.
const PAGE_COLUMNS: usize = 80;

impl Frames {
    fn new() -> Self {
        if terminal::can_draw(terminal::stdout_is_terminal()) {
            Self::Terminal(DrawnFrame::default())
        } else {
            Self::Pages { is_first: true }
        }
    }

    /// Shows a frame; `false` once nobody reads standard output.
    fn show(&mut self, state: &RunState) -> Result<bool, Stop> {
        match self {
            Self::Terminal(drawn) => {
                let size = Size::of_stdout();
                let frame = FramePage {
                    heading: None,
                    lines: page(state, size.line_width()),
                    footer: None,
                };
                written(terminal::draw(&drawn.draw(&frame.fitted(size), size)))
            }
            Self::Pages { is_first } => {
                let between = if std::mem::take(is_first) { "" } else { "\n" };
                let lines = page(state, PAGE_COLUMNS);
                let lines = lines.iter().map(|line| without_controls(line) + "\n");
                let text: String = lines.collect();
                written(terminal::print(&format!("{between}{text}")))
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if let Self::Terminal(drawn) = self {
            // A terminal that is gone cannot be reset; the error is ignored.
            let _ = terminal::draw(drawn.end());
        }
    }
}

/// The keyboard, whose keys come at once and without an echo until this is dropped.
struct Keys {
    before: Termios,
    mode: Termios,
}

impl Keys {
    /// Sends [`QUIT`] when `q` is pressed; `None` if standard input is not a terminal of this
    /// process group, whose mode another program would miss.
    fn listen(sender: Sender<i32>) -> Option<Self> {
        if !is_in_foreground() {
            return None;
        }
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).ok()?;
        let mut mode = before.clone();
        mode.local_modes
            .remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Now, &mode).ok()?;
        let _ = thread::Builder::new()
            .name("keys".to_owned())
            .spawn(move || {
                let is_quit = |byte: &u8| *byte == b'q' || *byte == b'Q';
                let mut bytes = std::io::stdin().lock().bytes().map_while(Result::ok);
                if bytes.any(|byte| is_quit(&byte)) {
                    let _ = sender.send(QUIT);
                }
            });
        Some(Self { before, mode })
    }

    /// Sets the mode again where a shell has reset it: after Ctrl-Z and `fg`.
    fn renew(&self) {
        let stdin = std::io::stdin();
        let is_reset = tcgetattr(&stdin).is_ok_and(|now| {
            now.local_modes
                .intersects(LocalModes::ICANON | LocalModes::ECHO)
        });
        if is_reset && is_in_foreground() {
            let _ = tcsetattr(&stdin, OptionalActions::Now, &self.mode);
        }
    }
}

/// Whether standard input is a terminal of this process group. The mode of another one's terminal may
/// not be set: the kernel stops who tries.
fn is_in_foreground() -> bool {
    tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        if is_in_foreground() {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
        }
    }
}
