//! Heads that several tables of points have in common, each with the column of `trials.csv` that it
//! shows. Those of the metrics of what is learned are in `metrics`.

use super::points::{SAMPLES, TOKENS};

/// A head, and the name of its column.
pub(super) struct Head {
    pub(super) text: &'static str,
    pub(super) column: &'static str,
}

const SAMPLES_PER_SECOND: Head = Head {
    text: SAMPLES.1,
    column: "samples_per_second",
};
const TOKENS_PER_SECOND: Head = Head {
    text: TOKENS.1,
    column: "tokens_per_second",
};
pub(super) const STEP: Head = Head {
    text: "step",
    column: "median_step_seconds",
};
pub(super) const DATA_WAIT: Head = Head {
    text: "data wait",
    column: "data_wait_fraction",
};
pub(super) const MEMORY: Head = Head {
    text: "memory",
    column: "peak_memory_bytes",
};

/// All of them.
pub(super) const HEADS: [Head; 5] = [
    SAMPLES_PER_SECOND,
    TOKENS_PER_SECOND,
    STEP,
    DATA_WAIT,
    MEMORY,
];
