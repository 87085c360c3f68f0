//! The child's protocol: one JSON object per line on its standard output, read by the parent.
//!
//! Times are CLOCK_MONOTONIC in nanoseconds, which parent and child on one host share. The parent
//! treats an unknown `event` only as a sign of life, so a newer child may send more events.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::plan::Outcome;

/// Version of the protocol, sent in [`Message::Hello`].
pub const PROTOCOL: u32 = 1;

/// Signals within this time are one request to stop, to kiln and to the child: whoever ends all processes
/// of a job tells both, and kiln then tells the child too.
pub const SAME_STOP: Duration = Duration::from_secs(2);

/// Exit statuses of the child; 0 means that the trial ended as its `finished` message says.
pub mod exit_status {
    /// The trial ended as `trial.json` and the `finished` message say.
    pub const RESULT: i32 = 0;
    /// It failed; the reason is in the `finished` message if there is one, else at the end of
    /// `stderr.txt`.
    pub const FAILED: i32 = 1;
    /// `trial.yaml` or the command line could not be read.
    pub const BAD_FILE: i32 = 2;
    /// The engine or device is not available on this machine.
    pub const NO_DEVICE: i32 = 3;
    /// Host or device memory ran out.
    pub const OOM: i32 = 4;
    /// A file could not be written because the disk or a quota is full.
    pub const DISK_FULL: i32 = 5;
    /// The child stopped after SIGTERM.
    pub const INTERRUPTED: i32 = 130;
}

/// One line of a child's standard output: JSON; `event` names the variant
/// (`docs/child-protocol.md`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Message {
    /// First line: the program and its version.
    Hello {
        protocol: u32,
        kiln_trial: String,
        pid: u32,
    },
    /// Model and data are ready; training is about to start.
    Ready {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parameters: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_steps: Option<u64>,
        device_name: String,
        /// Libraries loaded into the child: name to version.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        libraries: BTreeMap<String, String>,
    },
    /// Warm-up is over: the measured window begins (after a wait for the device).
    WindowStarted {
        step: u64,
        monotonic_nanoseconds: u64,
    },
    /// The measured window is over.
    WindowEnded {
        step: u64,
        monotonic_nanoseconds: u64,
    },
    /// Work that does not count begins within the measured window: an evaluation, a checkpoint. At most
    /// a few times a second.
    CutStarted {
        step: u64,
        monotonic_nanoseconds: u64,
    },
    /// It has ended. At most a few times a second.
    CutEnded {
        step: u64,
        monotonic_nanoseconds: u64,
    },
    /// At most a few times a second. `loss` is the last one read; rates cover the time since the
    /// last message.
    Progress {
        step: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_steps: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        samples_per_second: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data_wait_fraction: Option<f64>,
    },
    /// Evaluation on the validation data is running; a sign of life.
    Evaluating {
        step: u64,
        batch: u64,
        total_batches: u64,
    },
    Evaluated {
        step: u64,
        valid_loss: f64,
    },
    /// The trained model is writing its texts (`train.sample`); a sign of life.
    Sampling {
        /// From 1.
        sample: u64,
        token: u64,
        total_tokens: u64,
    },
    /// The training resumes after this step, from a checkpoint.
    Resumed {
        step: u64,
    },
    /// A checkpoint is on the disk.
    Checkpointed {
        step: u64,
        bytes: u64,
        seconds: f64,
    },
    /// `train.target` was reached.
    TargetReached {
        step: u64,
        monotonic_nanoseconds: u64,
    },
    /// A command is at work but has said nothing that kiln reads; a sign of life.
    Alive,
    /// A notice for the reader, not an error.
    Notice {
        text: String,
    },
    /// Last line. `trial.json` is already on the disk.
    Finished {
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An event from a newer child.
    #[serde(other)]
    Unknown,
}
