//! The child's protocol: one JSON object per line on its standard output, read by the parent.
//!
//! Times are CLOCK_MONOTONIC in nanoseconds, which parent and child on one host share. The parent takes an unknown `event`
//! as a sign of life and nothing more, so a newer child may say more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Outcome;

/// Version of the protocol, sent in [`Message::Hello`].
pub const PROTOCOL: u32 = 1;

/// Exit statuses of the child, besides 0 for a trial that ended as its `finished` message says.
pub mod exit_status {
    /// The trial ended as `trial.json` and the `finished` message say.
    pub const RESULT: i32 = 0;
    /// It failed; the reason is in the `finished` message if there was one, else at the end of `stderr.txt`.
    pub const FAILED: i32 = 1;
    /// `trial.yaml` or the command line could not be read.
    pub const BAD_FILE: i32 = 2;
    /// The engine or device cannot be had on this machine.
    pub const NO_DEVICE: i32 = 3;
    /// Host or device memory ran out.
    pub const OOM: i32 = 4;
    /// SIGTERM came and was obeyed.
    pub const INTERRUPTED: i32 = 130;
}

/// One line of a child's standard output: JSON, with `event` saying which of these it is (`docs/child-protocol.md`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Message {
    /// First line: who speaks.
    Hello {
        protocol: u32,
        kiln_trial: String,
        pid: u32,
    },
    /// Model and data are built; training is about to start.
    Ready {
        parameters: u64,
        total_steps: u64,
        device_name: String,
        /// Libraries as loaded into the child: name to version.
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
    /// At most a few times a second. `loss` is the newest one read; rates are over the time since the last message.
    Progress {
        step: u64,
        total_steps: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        samples_per_second: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data_wait_fraction: Option<f64>,
    },
    /// The validation data is being gone through; a sign of life.
    Evaluating {
        step: u64,
        batch: u64,
        total_batches: u64,
    },
    Evaluated {
        step: u64,
        valid_loss: f64,
    },
    /// The trained model writes its texts (`train.sample`); a sign of life.
    Sampling {
        /// From 1.
        sample: u64,
        token: u64,
        total_tokens: u64,
    },
    /// The training goes on after this step, from a checkpoint.
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
    /// Something a reader should know, not an error.
    Notice {
        text: String,
    },
    /// Last line. `trial.json` is already on the disk.
    Finished {
        outcome: Outcome,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An event of a newer child.
    #[serde(other)]
    Unknown,
}
