//! The events of a launch. The scheduler draws nothing: it sends events to listeners, which draw
//! bars, print lines or write JSON.

use kiln_core::{plan::Trial, record::TrialRow};

use super::remaining::PlanProgress;

/// The trials of a launch, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchCounts {
    /// All trials of the plan, replacements included.
    pub total: usize,
    /// Trials that this launch has to run.
    pub to_run: usize,
    /// Counts over all trials of the plan.
    pub plan: PlanProgress,
    /// Whether a search may add trials, so that their number is unknown.
    pub is_open: bool,
    /// Whether the waiting trials will not be started.
    pub is_over: bool,
}

/// How far a running trial is, as its process last said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrialProgress {
    pub step: Option<u64>,
    pub total_steps: Option<u64>,
    pub loss: Option<f64>,
    pub samples_per_second: Option<f64>,
    /// As a fraction of 1.
    pub data_wait_fraction: Option<f64>,
    /// Batch and total, during evaluation.
    pub evaluating: Option<(u64, u64)>,
    /// Token and total, while the trained model generates a text.
    pub sampling: Option<(u64, u64)>,
    /// Whether the model is still being built.
    pub is_building: bool,
}

/// One thing that happened in a launch.
#[derive(Clone, Copy, Debug)]
pub enum LaunchEvent<'a> {
    /// Something that the user should know, in words.
    Notice(&'a str),
    /// Something about one trial that the user should know; the words do not name the trial.
    TrialNotice { trial: &'a Trial, text: &'a str },
    RunStarted {
        /// As the user would write it.
        folder: &'a str,
        /// `None` for who only attends the launches of others.
        launch: Option<u64>,
        /// All trials of the plan.
        trials: &'a [Trial],
        /// Indices of those that this launch has to run.
        to_run: &'a [usize],
        counts: LaunchCounts,
    },
    TrialStarted {
        trial: &'a Trial,
        attempt: u64,
        /// `cpu` or the UUIDs of its GPUs.
        device: &'a str,
    },
    /// Several times a second; listeners choose when to show it.
    TrialProgressed {
        trial: &'a Trial,
        progress: TrialProgress,
        counts: LaunchCounts,
    },
    TrialEnded {
        trial: &'a Trial,
        row: &'a TrialRow,
        counts: LaunchCounts,
    },
    /// A replacement of a trial that ran out of memory, or a further trial of a search.
    TrialAdded {
        trial: &'a Trial,
        counts: LaunchCounts,
    },
    RunEnded {
        /// `finished`, `interrupted`, `2 trials left` or the reason of a failure.
        how: &'a str,
        counts: LaunchCounts,
    },
}

/// Hears what happens in a launch, from the thread that runs it.
pub trait LaunchListener {
    fn hear(&self, event: LaunchEvent<'_>);

    /// The reason why events could not be passed on to their reader, if so.
    fn lost_events(&self) -> Option<String> {
        None
    }
}
