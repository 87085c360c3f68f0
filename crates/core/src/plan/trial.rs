//! One trial: a point of the sweep with one seed, fully resolved.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Origin;
use crate::{
    kinds::{Data, Model},
    spec::{Devices, Engine, Train},
};

/// `t` and the first 10 hex digits of SHA-256 over the canonical JSON of everything that decides a
/// trial's result (`docs/design.md`). The letter prevents readers of tables from parsing it as a
/// number; ids of older runs lack it and are the same ids.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrialId(pub String);

impl TrialId {
    /// First character of an id.
    pub const LETTER: char = 't';

    /// Returns the id of a hash in hex digits.
    pub fn of_digits(digits: &str) -> Self {
        Self(format!("{}{digits}", Self::LETTER))
    }

    /// The id without the letter, equal in both forms. The letter is not a hex digit.
    pub fn digits(&self) -> &str {
        self.0
            .strip_prefix(Self::LETTER)
            .filter(|digits| !digits.is_empty())
            .unwrap_or(&self.0)
    }

    /// The same id with the letter.
    #[must_use]
    pub fn with_letter(&self) -> Self {
        Self::of_digits(self.digits())
    }

    /// Whether it begins with this text, with or without the letter; nothing begins with an empty
    /// text.
    pub fn begins_with(&self, text: &str) -> bool {
        let digits = text.strip_prefix(Self::LETTER).unwrap_or(text);
        !text.is_empty() && self.digits().starts_with(digits)
    }
}

impl PartialEq for TrialId {
    fn eq(&self, other: &Self) -> bool {
        self.digits() == other.digits()
    }
}

impl Eq for TrialId {}

impl Hash for TrialId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digits().hash(state);
    }
}

impl PartialOrd for TrialId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TrialId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.digits().cmp(other.digits())
    }
}

impl fmt::Display for TrialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One point of the sweep with one seed: everything that decides the computation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub id: TrialId,
    /// Position in the plan, from 1.
    pub number: u64,
    /// Index of the point it belongs to, from 0, in listed order.
    pub point: u64,
    /// Index of the seed within the point, from 0.
    pub repeat: u64,
    /// Number of the block that it runs in, from 1: a block stays on one device.
    #[serde(default)]
    pub block: u64,
    /// The value of each axis, in file order.
    pub axes: Vec<(String, Value)>,
    /// The sections are shared by copies of the trial, and by trials that agree in them.
    pub model: Arc<Model>,
    pub data: Arc<Data>,
    /// The training settings with this trial's own seed.
    pub train: Arc<Train>,
    pub engine: Engine,
    pub devices: Devices,
    /// Devices that share each step's batch.
    pub devices_per_trial: u64,
    /// `None` if the data's vocabulary is unknown.
    pub parameters: Option<u64>,
    /// `None` if the data's vocabulary is unknown.
    pub flops_per_sample: Option<u64>,
    /// batch × accumulation × devices.
    pub effective_batch_size: u64,
    /// The planned trial that it replaces with a smaller batch, because that one ran out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_of: Option<TrialId>,
    /// The checkpoint of another trial that it begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Planned optimizer steps, from the beginning of the training; `None` if the data's size is
    /// unknown.
    pub steps: Option<u64>,
}

impl Trial {
    /// Whether its program keeps files of its own in the folder for checkpoints.
    pub fn saves_by_itself(&self) -> bool {
        let mut command = self.model.command().into_iter();
        command.any(|command| command.checkpoints)
    }

    /// Whether a new attempt resumes from the files of earlier attempts.
    pub fn keeps_checkpoints(&self) -> bool {
        self.saves_by_itself() || self.train.checkpoint.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_id_is_the_same_with_its_letter_and_without() {
        let (new, old) = (
            TrialId::of_digits("0154613193"),
            TrialId("0154613193".to_owned()),
        );
        assert_eq!(new, old);
        assert_eq!(
            (new.to_string(), old.to_string()),
            ("t0154613193".to_owned(), "0154613193".to_owned())
        );
        assert_eq!(HashSet::from([new.clone(), old.clone()]).len(), 1);
        assert_eq!(new.cmp(&TrialId("0154613194".to_owned())), Ordering::Less);
        assert_ne!(new, TrialId::of_digits("0154613194"));
        // As pandas and R would parse them: neither an integer nor a number with an exponent.
        assert!(
            new.0.parse::<f64>().is_err()
                && TrialId::of_digits("12345678e2").0.parse::<f64>().is_err()
                && "12345678e2".parse::<f64>().is_ok()
        );
    }
}
