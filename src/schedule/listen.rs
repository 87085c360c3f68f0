//! Reads a child's messages from standard output and its standard error. Bytes come in, and a state
//! of bounded size comes out, however much the child writes.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kiln_core::{
    plan::{Outcome, Trial},
    record::{Message, message::PROTOCOL, note::OtherModel},
    units::clock::monotonic_nanoseconds,
};
use kiln_hardware::{peak_resident_bytes, peak_resident_bytes_below};
use serde::Deserialize;

use super::{TrialProgress, row::other_model};
use crate::relay::KeptOutput;

/// Longest line of a message, in bytes; a longer line is ignored.
const LONGEST_LINE: u64 = 64 << 10;
/// Most notices that are kept for the terminal between two calls.
const MOST_NOTICES: usize = 20;

/// State of a child, from its messages so far.
#[derive(Clone, Debug)]
pub(super) struct ChildState {
    /// Number of messages so far.
    pub(super) messages: u64,
    /// The child's protocol version, if this kiln does not support it.
    pub(super) foreign_protocol: Option<u32>,
    /// When it said that it was ready, on CLOCK_MONOTONIC in nanoseconds: of a command, once `prepare` has
    /// ended and the program is started.
    pub(super) ready_nanoseconds: Option<u64>,
    /// Parameters of the model that it has built.
    pub(super) parameters: Option<u64>,
    /// Whether they were compared with those of the plan.
    pub(super) is_compared: bool,
    pub(super) step: Option<u64>,
    pub(super) total_steps: Option<u64>,
    /// Libraries loaded into the child: name to version.
    pub(super) libraries: BTreeMap<String, String>,
    pub(super) loss: Option<f64>,
    pub(super) samples_per_second: Option<f64>,
    pub(super) data_wait_fraction: Option<f64>,
    /// The step of the checkpoint that it resumed from.
    pub(super) resumed_at_step: Option<u64>,
    /// Batch and total, during evaluation.
    pub(super) evaluating: Option<(u64, u64)>,
    /// Token and total, while the trained model generates a text.
    pub(super) sampling: Option<(u64, u64)>,
    pub(super) finished: Option<(Outcome, Option<String>)>,
    /// The outcome of an earlier `finished` message that said something else.
    pub(super) finished_before: Option<Outcome>,
    /// Notices that have not been read yet.
    pub(super) notices: Vec<String>,
    /// Number of lines that are not messages.
    pub(super) garbage_lines: u64,
    /// Value read at the `finished` message, while the child still ran.
    pub(super) peak_resident_bytes: Option<u64>,
    /// Why `stderr.txt` lacks standard error, once that has ended.
    pub(super) stderr_fault: Option<String>,
}

/// A moment at which the device is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowMoment {
    /// The measured window begins or ends.
    Window,
    /// A cut in it does.
    Cut,
}

impl ChildState {
    /// How far the trial is.
    pub(super) fn progress(&self) -> TrialProgress {
        TrialProgress {
            step: self.step,
            total_steps: self.total_steps,
            loss: self.loss,
            samples_per_second: self.samples_per_second,
            data_wait_fraction: self.data_wait_fraction,
            evaluating: self.evaluating,
            sampling: self.sampling,
            is_building: !self.is_ready() && self.step.is_none(),
        }
    }
}

/// The fields of the first message that every protocol version has.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Hello {
    Hello { protocol: u32 },
}

/// Shared between the reading thread and the scheduler.
#[derive(Clone, Debug)]
pub(super) struct ChildListener {
    heard: Arc<Mutex<ChildState>>,
    /// The child's.
    pid: u32,
    /// Whether the child only starts the trial's program.
    is_relay: bool,
}

impl ChildListener {
    pub(super) fn new(pid: u32, is_relay: bool) -> Self {
        let heard = ChildState {
            messages: 0,
            foreign_protocol: None,
            ready_nanoseconds: None,
            parameters: None,
            is_compared: false,
            step: None,
            total_steps: None,
            libraries: BTreeMap::new(),
            loss: None,
            samples_per_second: None,
            data_wait_fraction: None,
            resumed_at_step: None,
            evaluating: None,
            sampling: None,
            finished: None,
            finished_before: None,
            notices: Vec::new(),
            garbage_lines: 0,
            peak_resident_bytes: None,
            stderr_fault: None,
        };
        Self {
            heard: Arc::new(Mutex::new(heard)),
            pid,
            is_relay,
        }
    }

    /// Copies standard error to its file, the first MiB as it arrives and the last 64 KiB at the end;
    /// returns the tail as text. If the file cannot be made or the disk fills up, copying stops and
    /// reading continues: a child whose standard error nobody reads would end or block.
    pub(super) fn keep_stderr(&self, mut stream: impl Read, path: &Path) -> String {
        let mut kept = KeptOutput::create(path);
        let mut chunk = vec![0; 16 << 10];
        while let Ok(length) = stream.read(&mut chunk)
            && length > 0
        {
            kept.add(&chunk[..length]);
        }
        self.heard().stderr_fault = kept.fault().map(str::to_owned);
        kept.finish()
    }

    pub(super) fn heard(&self) -> MutexGuard<'_, ChildState> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one line; returns whether the measured window, or a cut in it, begins or ends with it.
    fn hear(&self, line: &[u8]) -> Option<WindowMoment> {
        let message = serde_json::from_slice::<Message>(line);
        let mut heard = self.heard();
        // A hello of another version may lack fields of this version.
        if let Ok(Hello::Hello { protocol }) = serde_json::from_slice(line)
            && protocol != PROTOCOL
        {
            heard.foreign_protocol = Some(protocol);
        }
        let Ok(message) = message else {
            heard.garbage_lines += 1;
            return None;
        };
        let moment = match message {
            Message::WindowStarted { .. } | Message::WindowEnded { .. } => {
                Some(WindowMoment::Window)
            }
            Message::CutStarted { .. } | Message::CutEnded { .. } => Some(WindowMoment::Cut),
            _ => None,
        };
        if matches!(message, Message::Finished { .. }) {
            heard.peak_resident_bytes = match self.is_relay {
                true => peak_resident_bytes_below(self.pid),
                false => peak_resident_bytes(self.pid),
            };
        }
        heard.take(message);
        moment
    }

    /// Reads until the stream ends; calls `at_window` when the measured window, or a cut in it, begins
    /// and when it ends.
    pub(super) fn listen(&self, stream: impl Read, at_window: impl Fn(WindowMoment)) {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while let Ok(length) = stream
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            && length > 0
        {
            if line.last() == Some(&b'\n') {
                if let Some(moment) = self.hear(&line) {
                    at_window(moment);
                }
            } else {
                self.heard().garbage_lines += 1;
                let _ = stream.skip_until(b'\n');
            }
            line.clear();
        }
    }
}

impl ChildState {
    fn take(&mut self, message: Message) {
        self.messages += 1;
        if !matches!(
            message,
            Message::Evaluating { .. } | Message::Notice { .. } | Message::Alive | Message::Unknown
        ) {
            self.evaluating = None;
        }
        match message {
            Message::Ready {
                parameters,
                total_steps,
                libraries,
                ..
            } => {
                self.ready_nanoseconds
                    .get_or_insert_with(monotonic_nanoseconds);
                self.parameters = parameters;
                self.libraries = libraries;
                self.total_steps = total_steps.or(self.total_steps);
            }
            Message::Progress {
                step,
                total_steps,
                loss,
                samples_per_second,
                data_wait_fraction,
            } => {
                self.step = Some(step);
                self.total_steps = total_steps.or(self.total_steps);
                self.loss = loss.or(self.loss);
                self.samples_per_second = samples_per_second.or(self.samples_per_second);
                self.data_wait_fraction = data_wait_fraction.or(self.data_wait_fraction);
            }
            Message::Sampling {
                token,
                total_tokens,
                ..
            } => self.sampling = Some((token, total_tokens)),
            Message::Evaluating {
                batch,
                total_batches,
                ..
            } => self.evaluating = Some((batch, total_batches)),
            Message::Finished { outcome, reason } => {
                let before = self.finished.replace((outcome, reason));
                let before = before.map(|(before, _)| before);
                self.finished_before = self
                    .finished_before
                    .or(before.filter(|before| *before != outcome));
            }
            Message::Notice { text } => self.note(text),
            Message::WindowStarted { step, .. }
            | Message::WindowEnded { step, .. }
            | Message::Evaluated { step, .. } => self.step = Some(step),
            Message::TargetReached { step, .. } | Message::Checkpointed { step, .. } => {
                self.step = Some(step)
            }
            Message::Resumed { step } => {
                self.step = Some(step);
                self.resumed_at_step = Some(step);
                self.note(format!("resumes after step {step} from its checkpoint"));
            }
            Message::CutStarted { .. }
            | Message::CutEnded { .. }
            | Message::Hello { .. }
            | Message::Alive
            | Message::Unknown => {}
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready_nanoseconds.is_some()
    }

    /// Says once that the child has built another model than the planned one.
    pub(super) fn other_model(&mut self, trial: &Trial) -> Option<String> {
        if self.is_compared || self.parameters.is_none() {
            return None;
        }
        self.is_compared = true;
        let other = other_model(trial, self.parameters)?;
        Some(format!("{}: {other}", OtherModel::COLUMN))
    }

    /// Keeps a notice for the terminal, unless too many are waiting.
    fn note(&mut self, text: String) {
        if self.notices.len() < MOST_NOTICES {
            self.notices.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ear() -> ChildListener {
        ChildListener::new(std::process::id(), false)
    }

    #[test]
    fn messages_are_heard_between_garbage_and_endless_lines() {
        let ear = ChildListener::new(std::process::id(), false);
        let mut text = b"not json\n".to_vec();
        text.extend(vec![b'x'; 200_000]);
        text.extend(b"\n\xff\xfe\n{\"event\":\"from_the_future\",\"x\":1}\n");
        text.extend(
            b"{\"event\":\"progress\",\"step\":3,\"total_steps\":9,\"loss\":2.5}\n\
              {\"event\":\"finished\",\"outcome\":\"completed\"}\n",
        );
        ear.listen(text.as_slice(), |_| {});
        let heard = ear.heard();
        assert_eq!(
            (
                heard.step,
                heard.total_steps,
                heard.loss,
                heard.garbage_lines
            ),
            (Some(3), Some(9), Some(2.5), 3)
        );
        assert_eq!(heard.finished, Some((Outcome::Completed, None)));
        assert!(heard.peak_resident_bytes.is_some());
    }

    #[test]
    fn another_protocol_is_heard_even_from_a_hello_of_another_shape() {
        for (hello, foreign) in [
            (
                r#"{"event":"hello","protocol":2,"kiln_trial":"9.0.0","pid":1}"#,
                Some(2),
            ),
            (
                r#"{"event":"hello","protocol":3,"of":"the future"}"#,
                Some(3),
            ),
            (
                r#"{"event":"hello","protocol":1,"kiln_trial":"0.1.0","pid":1}"#,
                None,
            ),
        ] {
            let ear = ChildListener::new(std::process::id(), false);
            ear.listen(format!("{hello}\n").as_bytes(), |_| {});
            assert_eq!(ear.heard().foreign_protocol, foreign, "{hello}");
        }
    }

    #[test]
    fn huge_standard_error_keeps_its_beginning_and_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.txt");
        let mut text = b"first line\n".to_vec();
        text.extend(vec![b'e'; 4 << 20]);
        text.extend(b"\nlast line\n");
        let tail = ear().keep_stderr(text.as_slice(), &path);
        let kept = std::fs::read_to_string(&path).unwrap();
        assert!(
            kept.starts_with("first line\n")
                && kept.contains("bytes omitted")
                && kept.ends_with(
                    "\n\
                     last line\n"
                )
        );
        assert!(kept.len() < (1 << 20) + (64 << 10) + 100 && tail.ends_with("last line\n"));
    }

    #[test]
    fn standard_error_is_read_to_its_end_even_if_its_file_cannot_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone/stderr.txt");
        let text = [vec![b'e'; 1 << 20], b"\nlast line\n".to_vec()].concat();
        let mut stream = text.as_slice();
        let ear = ear();
        let tail = ear.keep_stderr(&mut stream, &path);
        assert!(tail.ends_with("last line\n"));
        assert!(ear.heard().stderr_fault.is_some());
        assert!(stream.is_empty(), "{} bytes were not read", stream.len());
    }

    #[test]
    fn a_second_finished_message_does_not_hide_what_the_first_one_said() {
        let ear = ChildListener::new(std::process::id(), false);
        let finished =
            |outcome: &str| format!("{{\"event\":\"finished\",\"outcome\":\"{outcome}\"}}\n");
        ear.listen(finished("failed").repeat(2).as_bytes(), |_| {});
        assert_eq!(ear.heard().finished_before, None);
        ear.listen(finished("completed").repeat(2).as_bytes(), |_| {});
        let heard = ear.heard();
        assert_eq!(heard.finished_before, Some(Outcome::Failed));
        assert_eq!(
            (heard.messages, heard.finished.clone()),
            (4, Some((Outcome::Completed, None)))
        );
    }

    #[test]
    fn short_standard_error_is_kept_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.txt");
        let ear = ear();
        assert_eq!(ear.keep_stderr(b"a\nb".as_slice(), &path), "a\nb");
        assert_eq!(ear.heard().stderr_fault, None);
        assert_eq!(std::fs::read(&path).unwrap(), b"a\nb");
    }
}
