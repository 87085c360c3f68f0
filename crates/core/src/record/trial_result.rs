//! `trial.json`: the child's measurements, written once at its end (a temporary file, then a
//! rename).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{TrialFigures, tables::TRIALS};
use crate::{
    kinds::data::PairCounts,
    plan::{Outcome, TrialId},
    units::shorten,
};

/// A share of 1 may be larger by this, where it is a sum of shares.
const ROUNDING: f64 = 1e-6;

/// Most fields without a column, and most values that cannot be read, that are noted by name: the row
/// must stay short enough to be read.
const MOST_NOTED: usize = 20;
/// Longest such name, and longest value, in characters.
const LONGEST_VALUE: usize = 60;

/// Format of `trial.json`.
pub const TRIAL_RESULT: u32 = 1;

/// The names of a model's outputs at the time of its training, where files of the user tell them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputNames {
    /// The folders of the images, in the order of their labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// SHA-256 of the tokenizer's file, by which tokens are numbered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<String>,
}

/// All measurements of one attempt inside the child. Missing is `None`, never 0 or NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// [`TRIAL_RESULT`].
    pub kiln_trial_result: u32,
    pub trial: TrialId,
    pub attempt: u64,
    pub outcome: Outcome,
    #[serde(default)]
    pub reason: Option<String>,
    /// Its columns of `trials.csv`.
    #[serde(flatten)]
    pub figures: TrialFigures,
    /// Metrics of a command, without the prefix of their columns: what the experiment names and no
    /// column above has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// Start and end of the window, CLOCK_MONOTONIC.
    #[serde(default)]
    pub window_started_nanoseconds: Option<u64>,
    #[serde(default)]
    pub window_ended_nanoseconds: Option<u64>,
    /// Intervals excluded from the window (evaluation, checkpoints): start and end,
    /// CLOCK_MONOTONIC.
    #[serde(default)]
    pub window_cuts_nanoseconds: Vec<(u64, u64)>,
    /// Lengths of the window's prompts and responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_pairs: Option<PairCounts>,
    /// Skipped parts of the data (rows with a `null`, files that are not images), and their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out_of_data: BTreeMap<String, u64>,
    #[serde(default)]
    pub device_name: Option<String>,
    /// Maximum resident memory that the child measured itself, if it knows more than the readings
    /// of its processes while they ran: of a command, that of its largest process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_resident_bytes: Option<u64>,
    /// Threads that the loader started during the whole training; `None` for a model that reads no
    /// data.
    #[serde(default)]
    pub loader_threads: Option<u64>,
    /// Maximum number of batches in host memory at the same time, including unfinished ones.
    #[serde(default)]
    pub peak_batches_in_memory: Option<u64>,
    /// Samples dropped at the end of each epoch because they do not fill a whole step.
    #[serde(default)]
    pub dropped_samples_per_epoch: Option<u64>,
    #[serde(default)]
    pub train_samples: Option<u64>,
    #[serde(default)]
    pub data_sha256: Option<String>,
    /// How the outputs of the model are read.
    #[serde(flatten)]
    pub outputs: OutputNames,
    /// Libraries loaded into the child (from its memory map): name to the version that each
    /// reports.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
    /// Paths of these libraries.
    #[serde(default)]
    pub library_files: BTreeMap<String, String>,
    /// Switches that affect numbers: TF32, cuDNN benchmark and deterministic.
    #[serde(default)]
    pub flags: BTreeMap<String, String>,
    /// Reasons for empty cells: column to reason.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// Fields of the file that this version of the format does not have.
    #[serde(flatten, skip_serializing)]
    pub unknown: BTreeMap<String, Value>,
}

/// The entries of a map that can be read, as a map, and notes on the others; `fault` reads a field.
fn readable_entries(
    name: &str,
    value: &Value,
    fault: &dyn Fn(&str, &Value) -> Option<serde_json::Error>,
) -> (Option<Value>, Vec<(String, String)>) {
    let Value::Object(entries) = value else {
        return (None, Vec::new());
    };
    let (mut good, mut notes) = (Map::new(), Vec::new());
    for (entry, value) in entries {
        let one = Map::from_iter([(entry.clone(), value.clone())]);
        match fault(name, &Value::Object(one)) {
            None => {
                good.insert(entry.clone(), value.clone());
            }
            // An empty note is dropped.
            Some(_) if name == "notes" && value.is_null() => {}
            Some(error) => {
                let entry = shorten(entry, LONGEST_VALUE);
                notes.push((format!("{name}.{entry}"), reported(value, &error)));
            }
        }
    }
    (Some(Value::Object(good)), notes)
}

/// The note on a value that cannot be read.
fn reported(value: &Value, error: &serde_json::Error) -> String {
    let value = shorten(&value.to_string(), LONGEST_VALUE);
    format!("the program reported {value}: {error}")
}

/// Units of amounts, of which none is below 0.
const OF_AMOUNTS: [&str; 7] = ["of 1", "s", "samples/s", "tokens/s", "B", "J", "W"];

/// Whether no value of this column of `trials.csv` is below 0: an amount that the child reports, of which
/// [`result`](super::attempt::result) leaves out those that cannot be.
pub(super) fn is_amount(column: &str) -> bool {
    let known = TRIALS.columns.iter().find(|known| known.name == column);
    known.is_some_and(|known| OF_AMOUNTS.contains(&known.unit))
        && TrialFigures::COLUMNS.contains(&column)
}

/// Why no figure in this unit has this value; `None` if one can.
fn impossible(unit: &str, value: f64) -> Option<&'static str> {
    match unit {
        "of 1" if !(0.0..=1.0 + ROUNDING).contains(&value) => Some("it is a share, from 0 to 1"),
        _ if value < 0.0 && OF_AMOUNTS.contains(&unit) => Some("it cannot be negative"),
        _ => None,
    }
}

/// Why no trial has this value in this column of `trials.csv`; `None` if one can.
pub fn impossible_in(column: &str, value: f64) -> Option<&'static str> {
    let column = TRIALS.columns.iter().find(|known| known.name == column)?;
    impossible(column.unit, value)
}

impl TrialResult {
    /// A result that contains nothing yet: `failed`, without a step.
    pub fn empty(trial: TrialId, attempt: u64) -> Self {
        Self {
            kiln_trial_result: TRIAL_RESULT,
            trial,
            attempt,
            outcome: Outcome::Failed,
            reason: None,
            figures: TrialFigures {
                steps: Some(0),
                left_out_steps: Some(0),
                ..TrialFigures::default()
            },
            metrics: BTreeMap::new(),
            window_started_nanoseconds: None,
            window_ended_nanoseconds: None,
            window_cuts_nanoseconds: Vec::new(),
            window_pairs: None,
            left_out_of_data: BTreeMap::new(),
            device_name: None,
            peak_resident_bytes: None,
            loader_threads: None,
            peak_batches_in_memory: None,
            dropped_samples_per_epoch: None,
            train_samples: None,
            data_sha256: None,
            outputs: OutputNames::default(),
            libraries: BTreeMap::new(),
            library_files: BTreeMap::new(),
            flags: BTreeMap::new(),
            notes: BTreeMap::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// Reads a result without the fields that have another type than theirs, which become notes: one
    /// misread figure of a program must not cost a training. Of a map its other entries stay. `None` if
    /// it is not a result without them either.
    pub(super) fn without_unreadable(text: &[u8]) -> Option<Self> {
        const NEEDED: [&str; 4] = ["kiln_trial_result", "trial", "attempt", "outcome"];
        let whole: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let (needed, fields): (Map<String, Value>, Map<String, Value>) = whole
            .into_iter()
            .partition(|(name, _)| NEEDED.contains(&name.as_str()));
        let fault = |name: &str, value: &Value| {
            let mut alone = needed.clone();
            alone.insert(name.to_owned(), value.clone());
            serde_json::from_value::<Self>(Value::Object(alone)).err()
        };
        let mut kept = needed.clone();
        let mut notes: Vec<(String, String)> = Vec::new();
        for (name, value) in fields {
            let Some(error) = fault(&name, &value) else {
                kept.insert(name, value);
                continue;
            };
            let (rest, of_entries) = readable_entries(&name, &value, &fault);
            match rest.filter(|rest| fault(&name, rest).is_none()) {
                Some(rest) => {
                    kept.insert(name, rest);
                    notes.extend(of_entries);
                }
                None => notes.push((name, reported(&value, &error))),
            }
        }
        let mut result: Self = serde_json::from_value(Value::Object(kept)).ok()?;
        // Without its cuts a window has evaluations in it.
        if notes
            .iter()
            .any(|(name, _)| name == "window_cuts_nanoseconds")
        {
            (
                result.window_started_nanoseconds,
                result.window_ended_nanoseconds,
            ) = (None, None);
        }
        result.add_notes(notes, "unreadable", |more| {
            format!("the program reported {more} more values that cannot be read")
        });
        Some(result)
    }

    /// Adds the first of these notes; one under `rest` counts the others.
    fn add_notes(
        &mut self,
        notes: Vec<(String, String)>,
        rest: &str,
        in_words: impl Fn(usize) -> String,
    ) {
        let more = notes.len().saturating_sub(MOST_NOTED);
        for (name, note) in notes.into_iter().take(MOST_NOTED) {
            self.notes.entry(name).or_insert(note);
        }
        if more > 0 {
            self.notes.insert(rest.to_owned(), in_words(more));
        }
    }

    /// Leaves out figures that cannot be: shares outside of 0 to 1 and negative times and rates. A
    /// note says so, and names fields that are none: a misspelled column would be an empty cell.
    ///
    /// # Errors
    /// The figures cannot be written as JSON.
    pub fn without_impossible(mut self) -> serde_json::Result<Self> {
        let mut figures = serde_json::to_value(&self.figures)?;
        for column in TRIALS.columns {
            let Some(value) = figures[column.name].as_f64() else {
                continue;
            };
            let Some(fault) = impossible(column.unit, value) else {
                continue;
            };
            figures[column.name] = Value::Null;
            let note = format!("the program reported {value}: {fault}");
            self.notes.insert(column.name.to_owned(), note);
        }
        self.figures = serde_json::from_value(figures)?;
        let unknown = std::mem::take(&mut self.unknown).into_keys().map(|name| {
            let note = "the program reported it, and no column has this name";
            (shorten(&name, LONGEST_VALUE), note.to_owned())
        });
        self.add_notes(unknown.collect(), "unknown", |more| {
            format!("the program reported {more} more, and no column has their names")
        });
        Ok(self)
    }

    /// Optimizer steps made, including those before `resumed_at_step`.
    pub fn steps(&self) -> u64 {
        self.figures.steps.unwrap_or(0)
    }

    /// The version of libtorch that the trial was compiled for; `None` for a child without it.
    pub fn libtorch(&self) -> Option<&str> {
        self.libraries.get("libtorch").map(String::as_str)
    }
}
