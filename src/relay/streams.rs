//! Reads both outputs of a running program and waits for its end, in threads that never hold it up.

use std::{
    io::{self, Read, Write},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use kiln_core::{kinds::command::Stream, units::clock::monotonic_nanoseconds};

use super::{
    forward::Forward,
    kept_output::KeptOutput,
    life::{Done, ProgramLife},
    lines::Lines,
    messages::Progress,
    metrics::{Metrics, WindowMark},
    program::{self, ProgramEnd, Started},
};

const CHUNK_BYTES: usize = 16 << 10;

/// Events of a running program.
#[derive(Debug)]
pub(super) enum ProgramEvent {
    /// The window began or ended, CLOCK_MONOTONIC in nanoseconds.
    WindowBegan(u64),
    WindowEnded(u64),
    Ended(ProgramEnd),
}

/// The outputs of a program, read to their end.
#[derive(Debug)]
pub(super) struct ReadOutput {
    pub(super) metrics: Metrics,
    pub(super) stdout_tail: String,
    pub(super) stderr_tail: String,
    /// Bytes of each output.
    pub(super) stdout_bytes: u64,
    pub(super) stderr_bytes: u64,
}

impl ReadOutput {
    /// The end of standard error, or of standard output if nothing was written there.
    pub(super) fn tail(&self) -> &str {
        match self.stderr_tail.trim().is_empty() {
            true => &self.stdout_tail,
            false => &self.stderr_tail,
        }
    }
}

#[derive(Debug)]
pub(super) struct Streams {
    shared: Arc<Shared>,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    forwarded: Option<Receiver<()>>,
    /// Why the file of the output could not be made.
    pub(super) kept_fault: Option<String>,
}

#[derive(Debug)]
struct Shared {
    metrics: Mutex<Metrics>,
    stdout_bytes: AtomicU64,
    stderr_bytes: AtomicU64,
    life: Mutex<ProgramLife>,
}

impl Streams {
    /// Reads a program whose metrics are wanted: standard output is kept in `stdout.txt`, standard
    /// error goes on to the parent.
    ///
    /// # Errors
    /// A thread cannot be started; the program runs then.
    pub(super) fn read(
        started: Started,
        metrics: Metrics,
        folder: &Path,
        events: Sender<ProgramEvent>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(metrics));
        let (forward, forwarded) = Forward::start(write_to_stderr)?;
        let waited = started.waited();
        let kept = KeptOutput::create(&folder.join(super::STDOUT));
        let kept_fault = kept.fault().map(str::to_owned);
        let stdout = {
            let (shared, events) = (Arc::clone(&shared), events.clone());
            reader(started.stdout, kept, move |chunk, lines| {
                shared.take(chunk, lines, Stream::Stdout, &events);
            })?
        };
        let stderr = {
            let (shared, events) = (Arc::clone(&shared), events.clone());
            let kept = KeptOutput::create(Path::new(""));
            reader(started.stderr, kept, move |chunk, lines| {
                if let Some(chunk) = chunk {
                    forward.add(chunk);
                }
                shared.take(chunk, lines, Stream::Stderr, &events);
            })?
        };
        waiter(waited, events)?;
        Ok(Self {
            shared,
            stdout,
            stderr,
            forwarded: Some(forwarded),
            kept_fault,
        })
    }

    /// Reads a program whose outputs are only kept, both in one file.
    ///
    /// # Errors
    /// As [`Streams::read`].
    pub(super) fn keep(
        started: Started,
        path: &Path,
        events: Sender<ProgramEvent>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(Metrics::default()));
        let waited = started.waited();
        let kept = KeptOutput::create(path);
        let kept_fault = kept.fault().map(str::to_owned);
        let kept = Arc::new(Mutex::new(Some(kept)));
        let both = |stream: Box<dyn Read + Send>| {
            let (kept, shared) = (Arc::clone(&kept), Arc::clone(&shared));
            reader(
                stream,
                KeptOutput::create(Path::new("")),
                move |chunk, _| {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    if let (Some(kept), Some(chunk)) = (kept.as_mut(), chunk) {
                        shared
                            .stdout_bytes
                            .fetch_add(chunk.len() as u64, Ordering::Relaxed);
                        kept.add(chunk);
                    }
                },
            )
        };
        let stdout = both(Box::new(started.stdout))?;
        let stderr = both(Box::new(started.stderr))?;
        waiter(waited, events)?;
        Ok(Self {
            shared,
            stdout,
            stderr,
            forwarded: None,
            kept_fault,
        })
    }

    /// How far the program is.
    pub(super) fn progress(&self) -> Progress {
        self.shared.metrics().progress()
    }

    /// Notices of metrics that will fail the trial.
    pub(super) fn notices(&self) -> Vec<String> {
        self.shared.metrics().notices()
    }

    /// Whether the program, or anything that it started, wrote or computed since the last sign of
    /// life.
    pub(super) fn has_worked(&self) -> bool {
        let now = Done {
            at: Instant::now(),
            bytes: self.shared.bytes().iter().sum(),
            cpu_seconds: kiln_hardware::cpu_seconds_below(std::process::id()),
        };
        let life = self.shared.life.lock();
        life.unwrap_or_else(PoisonError::into_inner).has_worked(now)
    }

    /// The outputs of an ended program. `end_left` is called once they have ended, or have stayed
    /// open for `patience` because a process that the program left holds them.
    pub(super) fn finish(self, patience: Duration, end_left: impl FnOnce()) -> ReadOutput {
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        let stdout_tail = self.stdout.recv_timeout(left());
        let stderr_tail = self.stderr.recv_timeout(left());
        end_left();
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        let stdout_tail = stdout_tail.or_else(|_| self.stdout.recv_timeout(left()));
        let stderr_tail = stderr_tail.or_else(|_| self.stderr.recv_timeout(left()));
        if let Some(forwarded) = self.forwarded {
            let _ = forwarded.recv_timeout(left());
        }
        let [stdout_bytes, stderr_bytes] = self.shared.bytes();
        ReadOutput {
            stdout_bytes,
            stderr_bytes,
            metrics: std::mem::take(&mut *self.shared.metrics()),
            stdout_tail: stdout_tail.unwrap_or_default(),
            stderr_tail: stderr_tail.unwrap_or_default(),
        }
    }
}

impl Shared {
    fn new(metrics: Metrics) -> Self {
        Self {
            metrics: Mutex::new(metrics),
            stdout_bytes: AtomicU64::new(0),
            stderr_bytes: AtomicU64::new(0),
            life: Mutex::new(ProgramLife::new(Instant::now())),
        }
    }

    fn metrics(&self) -> MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of standard output and of standard error so far.
    fn bytes(&self) -> [u64; 2] {
        [&self.stdout_bytes, &self.stderr_bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// A piece of an output, or its end.
    fn take(
        &self,
        chunk: Option<&[u8]>,
        lines: &mut Lines,
        stream: Stream,
        events: &Sender<ProgramEvent>,
    ) {
        let at = monotonic_nanoseconds();
        let mut metrics = self.metrics();
        let line = |line: &str| {
            let event = match metrics.line(line, stream, at) {
                Some(WindowMark::Begins) => ProgramEvent::WindowBegan(at),
                Some(WindowMark::Ends) => ProgramEvent::WindowEnded(at),
                None => return,
            };
            let _ = events.send(event);
        };
        match chunk {
            Some(chunk) => {
                let bytes = match stream {
                    Stream::Stdout => &self.stdout_bytes,
                    Stream::Stderr => &self.stderr_bytes,
                };
                bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                lines.add(chunk, line);
            }
            None => lines.finish(line),
        }
        if lines.has_cut {
            metrics.note_cut(stream);
        }
    }
}

/// Reads a stream to its end; the receiver gets the last part of it.
fn reader(
    mut stream: impl Read + Send + 'static,
    mut kept: KeptOutput,
    mut take: impl FnMut(Option<&[u8]>, &mut Lines) + Send + 'static,
) -> io::Result<Receiver<String>> {
    let (sender, receiver) = sync_channel(1);
    let read = move || {
        let (mut lines, mut chunk) = (Lines::default(), vec![0; CHUNK_BYTES]);
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => {
                    kept.add(&chunk[..length]);
                    take(Some(&chunk[..length]), &mut lines);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        take(None, &mut lines);
        let _ = sender.send(kept.finish());
    };
    start("reader", read)?;
    Ok(receiver)
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
}

#[allow(
    clippy::disallowed_methods,
    reason = "standard error of the relay is a file of the attempt, which keeps the bytes as they are"
)]
pub(super) fn write_to_stderr(bytes: &[u8]) {
    let _ = io::stderr().lock().write_all(bytes);
}

fn waiter(waited: program::Waited, events: Sender<ProgramEvent>) -> io::Result<()> {
    start("waiter", move || {
        if let Ok(end) = program::wait(waited) {
            let _ = events.send(ProgramEvent::Ended(end));
        }
    })
}
