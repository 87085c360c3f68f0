//! Notes: why a cell is empty or in doubt. Those that reports read again are types, which are
//! written and read here alone, so that no rule depends on the words of another file.

use std::{collections::BTreeMap, fmt};

use super::TrialRow;
use crate::{plan::Origin, statistics::prediction_interval, units::Bytes};

/// Other processes kept the host busy during the measured window; a note on the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BusyHost {
    /// Cores that they used, on average.
    pub other_cores: f64,
    /// Cores of the host.
    pub cores: u64,
}

impl BusyHost {
    /// The column that it is about.
    pub const COLUMN: &str = "samples_per_second";
    /// Share of the cores that other processes may use before a trial counts as disturbed.
    pub const LEAST_SHARE: f64 = 0.15;
    const BEGINNING: &str = "other processes kept ";

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix(Self::BEGINNING)?;
        let (others, rest) = rest.split_once(" of ")?;
        Some(Self {
            other_cores: others.parse().ok()?,
            cores: rest.split(' ').next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for BusyHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { other_cores, cores } = self;
        let beginning = Self::BEGINNING;
        write!(
            f,
            "{beginning}{other_cores:.1} of {cores} cores busy in the window"
        )
    }
}

/// Memory grew steadily over the measured window; a note on the slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGrowth {
    pub bytes: Bytes,
    pub last: Bytes,
    pub steps: u64,
}

impl MemoryGrowth {
    /// Less growth than this, or than [`MemoryGrowth::LEAST_SHARE`] of what was held at first, is not
    /// reported.
    pub const LEAST_BYTES: Bytes = Bytes(8 << 20);
    pub const LEAST_SHARE: f64 = 0.01;
    /// With fewer readings, growth is not reported: batches of many lengths need time to reach the
    /// longest.
    pub const FEWEST_READINGS: usize = 12;
    const BEGINNING: &str = "grew by ";

    /// The note of a row on a column of slopes, if it tells of growth.
    pub fn told<'a>(row: &'a TrialRow, column: &str) -> Option<&'a str> {
        row.note(column)
            .filter(|note| note.starts_with(Self::BEGINNING))
    }
}

impl fmt::Display for MemoryGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, last, steps } = self;
        write!(f, "{}{bytes} to {last} over {steps} steps", Self::BEGINNING)
    }
}

/// The trial went on from a checkpoint of another run's trial; a note of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinuedFrom {
    pub trial: String,
    /// Experiment and name of the run.
    pub run: String,
    pub step: u64,
    /// First digits of the SHA-256 of the checkpoint.
    pub sha256: String,
}

impl ContinuedFrom {
    /// The name under which it is noted.
    pub const COLUMN: &str = "continued_from";
    const SUM_DIGITS: usize = 12;

    pub fn new(origin: &Origin) -> Self {
        Self {
            trial: origin.trial.to_string(),
            run: origin.run_name(),
            step: origin.step,
            sha256: origin.sha256.chars().take(Self::SUM_DIGITS).collect(),
        }
    }

    /// Reads the note of a row; `None` if it began from the beginning.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix("trial ")?;
        let (trial, rest) = rest.split_once(" of ")?;
        let (run, rest) = rest.rsplit_once(" at step ")?;
        let (step, sum) = rest.split_once(", checkpoint ")?;
        Some(Self {
            trial: trial.to_owned(),
            run: run.to_owned(),
            step: step.parse().ok()?,
            sha256: sum.trim_end_matches('…').to_owned(),
        })
    }
}

impl fmt::Display for ContinuedFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trial,
            run,
            step,
            sha256,
        } = self;
        write!(
            f,
            "trial {trial} of {run} at step {step}, checkpoint {sha256}…"
        )
    }
}

/// `train.early_stop` ended a training; a note on its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedEarly;

impl StoppedEarly {
    /// The column that it is about.
    pub const COLUMN: &str = "steps";
    const BEGINNING: &str = "stopped early at step ";

    /// The note, with the reason.
    pub fn text(step: u64, reason: &str) -> String {
        format!("{}{step}: {reason}", Self::BEGINNING)
    }

    /// Whether the row has it.
    pub fn is_of(row: &TrialRow) -> bool {
        let note = row.note(Self::COLUMN);
        note.is_some_and(|note| note.starts_with(Self::BEGINNING))
    }
}

/// A checkpoint could not be written; a note on their size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenCheckpoint {
    pub step: u64,
    pub error: String,
}

impl UnwrittenCheckpoint {
    /// The column that it is about.
    pub const COLUMN: &str = "checkpoint_bytes";

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row
            .note(Self::COLUMN)?
            .strip_prefix("the checkpoint of step ")?;
        let (step, error) = rest.split_once(" could not be written: ")?;
        Some(Self {
            step: step.parse().ok()?,
            error: error.to_owned(),
        })
    }
}

impl fmt::Display for UnwrittenCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, error } = self;
        write!(
            f,
            "the checkpoint of step {step} could not be written: {error}"
        )
    }
}

/// Steps were replayed from CUDA graphs; a note of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedSteps {
    pub steps: u64,
    /// Shapes of batches that were recorded.
    pub shapes: usize,
}

impl ReplayedSteps {
    /// The name under which it is noted, which is the key `train.cuda_graph`.
    pub const COLUMN: &str = "cuda_graph";
    const WORDS: &str = " steps replayed from CUDA graphs, shapes of batches recorded: ";
    const WORDS_OF_CLOSURES: &str = " steps replayed from closures on the CPU, a test of CUDA \
                                     graphs, shapes of batches recorded: ";

    /// Reads the note of a row; `None` if its steps were run operator by operator.
    pub fn of(row: &TrialRow) -> Option<Self> {
        Self::of_graphs(row.note(Self::COLUMN)?)
    }

    /// Reads a note; `None` if no CUDA graph was recorded.
    pub fn of_graphs(note: &str) -> Option<Self> {
        Self::read(note, Self::WORDS)
    }

    /// Reads a note; `None` if no closure was recorded on the CPU.
    pub fn of_closures(note: &str) -> Option<Self> {
        Self::read(note, Self::WORDS_OF_CLOSURES)
    }

    /// The note where closures on the CPU stand in for CUDA graphs.
    pub fn closures_text(self) -> String {
        format!("{}{}{}", self.steps, Self::WORDS_OF_CLOSURES, self.shapes)
    }

    fn read(note: &str, words: &str) -> Option<Self> {
        let (steps, shapes) = note.split_once(words)?;
        Some(Self {
            steps: steps.parse().ok()?,
            shapes: shapes.parse().ok()?,
        })
    }
}

impl fmt::Display for ReplayedSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.steps, Self::WORDS, self.shapes)
    }
}

/// A training ended with a higher loss than it began with; a note on the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossRose {
    /// The first loss that was logged.
    pub first: f64,
}

impl LossRose {
    /// The column that it is about.
    pub const COLUMN: &str = "train_loss";
    /// Least ratio of the last loss to the first one.
    pub const LEAST_RATIO: f64 = 1.1;
    /// The first loss must lie below this prediction interval for one more loss of the second half.
    pub const PREDICTION: f64 = 0.999;
    const BEGINNING: &str = "ended above the first logged loss, ";

    /// Whether the last loss is worth a look at the others.
    pub fn is_suspected(first: f64, last: f64) -> bool {
        first.is_finite() && first > 0.0 && last >= first * Self::LEAST_RATIO
    }

    /// `second_half` are losses of the second half of the training, each of one batch; `last` is
    /// the loss at its end. `None` if the first loss could as well be one of them: small batches
    /// differ by much. By the logarithms of the losses, because they vary by factors.
    pub fn between(first: f64, second_half: &[f64], last: f64) -> Option<Self> {
        let logarithms: Vec<f64> = second_half.iter().map(|loss| loss.ln()).collect();
        let (low, _) = prediction_interval(&logarithms, Self::PREDICTION)?;
        (Self::is_suspected(first, last) && first.ln() < low).then_some(Self { first })
    }

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix(Self::BEGINNING)?;
        let first = rest.parse().ok()?;
        Some(Self { first })
    }
}

impl fmt::Display for LossRose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::BEGINNING, self.first)
    }
}

/// A program has built another model than the planned one; a note on the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherModel {
    /// Parameters of the model that was built.
    pub parameters: u64,
    pub planned: u64,
}

impl OtherModel {
    /// The column that it is about.
    pub const COLUMN: &str = "parameters";

    /// `None` if the numbers agree, or one is unknown.
    pub fn between(parameters: Option<u64>, planned: Option<u64>) -> Option<Self> {
        let (parameters, planned) = parameters.zip(planned)?;
        (parameters != planned).then_some(Self {
            parameters,
            planned,
        })
    }
}

impl fmt::Display for OtherModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            parameters,
            planned,
        } = self;
        write!(
            f,
            "{parameters}, and the plan has {planned}: not the same model"
        )
    }
}

/// Many tokens of the data are unknown to the tokenizer; a note of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct UnknownTokens {
    /// Share of the tokens, of 1.
    pub share: f64,
    /// The part of the data: `training rows`, `validation rows`, `validation text`.
    pub part: String,
}

impl UnknownTokens {
    /// The name under which it is noted.
    pub const COLUMN: &str = "unknown_tokens";
    /// A smaller share is not noted.
    pub const LEAST_SHARE: f64 = 0.05;
    const END: &str = " are unknown to the tokenizer";

    /// `None` if the share is too small to be noted.
    pub fn noted(share: f64, part: &str) -> Option<Self> {
        (share > Self::LEAST_SHARE).then(|| Self {
            share,
            part: part.to_owned(),
        })
    }

    /// Reads the note of a row; `None` if it has another one, or none.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_suffix(Self::END)?;
        let (percent, part) = rest.split_once(" % of the tokens of the ")?;
        Some(Self {
            share: percent.parse::<f64>().ok()? / 100.0,
            part: part.to_owned(),
        })
    }
}

impl fmt::Display for UnknownTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, end) = (self.share * 100.0, Self::END);
        write!(f, "{percent:.1} % of the tokens of the {}{end}", self.part)
    }
}

/// The time of the attempt's Slurm job ended before its trial did; a note of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfJobTime {
    /// Whether the attempt had [nearly all](Self::is_most) of the job's time.
    pub had_most: bool,
    /// Whether the attempt wrote a checkpoint after the one from which it resumed.
    pub has_checkpoint: bool,
}

impl OutOfJobTime {
    /// The name under which it is noted.
    pub const COLUMN: &str = "job_time";
    const BEGINNING: &str = "the job's time ended before the trial, which ";
    const MOST: &str = "had most of it and ";
    const WITHOUT: &str = "left no new checkpoint";
    const WITH: &str = "left a new checkpoint";

    /// Reads the note of a row; `None` if its attempt ended otherwise.
    pub fn of(row: &TrialRow) -> Option<Self> {
        let rest = row.note(Self::COLUMN)?.strip_prefix(Self::BEGINNING)?;
        let (had_most, rest) = match rest.strip_prefix(Self::MOST) {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let has_checkpoint = match rest {
            Self::WITH => true,
            Self::WITHOUT => false,
            _ => return None,
        };
        Some(Self {
            had_most,
            has_checkpoint,
        })
    }

    /// Whether an attempt had most of a job's time. `left` is the time that the job had left when the
    /// attempt started, `whole` when the worker started, both in seconds. The first trial of a worker
    /// always has most of it.
    pub fn is_most(left: f64, whole: f64) -> bool {
        left >= whole * 0.85
    }
}

impl fmt::Display for OutOfJobTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = if self.had_most { Self::MOST } else { "" };
        let left = if self.has_checkpoint {
            Self::WITH
        } else {
            Self::WITHOUT
        };
        write!(f, "{}{most}{left}", Self::BEGINNING)
    }
}

/// The program of a command may have resumed from what an earlier attempt left, or says so; a note of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumedCommand;

impl ResumedCommand {
    /// The name under which it is noted.
    pub const COLUMN: &str = "resumed";
    pub const TEXT: &str = "files of an earlier attempt were in its checkpoint folder, so times, \
                            rates and energy may be of a part of its work";
    /// The text if no such files were there.
    pub const TOLD_TEXT: &str = "its metric `resumed_at_step` says that it did not begin at step 0, so \
                                 times, rates and energy may be of a part of its work";
    /// The text in tables of earlier versions.
    const FORMER_TEXT: &str =
        "the program found its checkpoint, so times, rates and energy are of the rest of its work";

    /// Whether the row has it.
    pub fn is_of(row: &TrialRow) -> bool {
        let note = row.note(Self::COLUMN);
        note.is_some_and(|note| [Self::TEXT, Self::TOLD_TEXT, Self::FORMER_TEXT].contains(&note))
    }
}

impl TrialRow {
    /// Whether the attempt resumed from a checkpoint, so that `trial_seconds` is of the rest.
    pub fn is_resumed(&self) -> bool {
        self.resumed_at_step.is_some() || ResumedCommand::is_of(self)
    }

    /// Wall time of a trial from its beginning; `None` if the attempt resumed.
    pub fn whole_seconds(&self) -> Option<f64> {
        self.trial_seconds.filter(|_| !self.is_resumed())
    }

    /// A time, rate or energy of the row. `None` of a command that resumed, where it is of an
    /// unknown part of the work; a training measures it in a window after the checkpoint.
    pub fn of_whole_work(&self, number: Option<f64>) -> Option<f64> {
        number.filter(|_| !ResumedCommand::is_of(self))
    }

    /// The note on a column.
    pub fn note(&self, column: &str) -> Option<&str> {
        self.notes
            .as_deref()?
            .split("; ")
            .find_map(|note| note.strip_prefix(column)?.strip_prefix(": "))
    }
}

/// The name of the note of a row that `kiln run --read-again` made of the output of an earlier attempt.
pub const READ_AGAIN: &str = "read_again";

/// The cell `notes`: `column: reason; …`, or empty. A `;` inside a reason becomes a comma, so that
/// the cell can be split.
pub fn notes_cell(notes: &BTreeMap<String, String>) -> Option<String> {
    let each = notes
        .iter()
        .map(|(column, reason)| format!("{column}: {}", reason.replace(';', ",")));
    (!notes.is_empty()).then(|| each.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TrialId;

    /// A row of which only its notes matter.
    fn noted(notes: &[(&str, &str)]) -> TrialRow {
        let notes = notes
            .iter()
            .map(|(column, note)| ((*column).to_owned(), (*note).to_owned()))
            .collect();
        TrialRow {
            notes: notes_cell(&notes),
            ..TrialRow::default()
        }
    }

    #[test]
    fn a_row_is_resumed_by_its_column_or_its_note() {
        let of = |notes: &[(&str, &str)], resumed_at_step| TrialRow {
            trial_seconds: Some(2.0),
            resumed_at_step,
            ..noted(notes)
        };
        let told = |row: TrialRow| {
            let rate = row.of_whole_work(Some(1.0));
            (row.is_resumed(), row.whole_seconds(), rate)
        };
        let note = [(ResumedCommand::COLUMN, ResumedCommand::TEXT)];
        assert_eq!(told(of(&[], None)), (false, Some(2.0), Some(1.0)));
        // A training has its rate from a window after the checkpoint.
        assert_eq!(told(of(&[], Some(9))), (true, None, Some(1.0)));
        assert_eq!(told(of(&note, None)), (true, None, None));
        let former = [(ResumedCommand::COLUMN, ResumedCommand::FORMER_TEXT)];
        assert_eq!(told(of(&former, None)), (true, None, None));
        let by_program = [(ResumedCommand::COLUMN, ResumedCommand::TOLD_TEXT)];
        assert_eq!(told(of(&by_program, Some(9))), (true, None, None));
        // A metric of this name may have a note too.
        let other = [("resumed", "'x' is not a number")];
        assert!(!told(of(&other, None)).0);
    }

    #[test]
    fn a_loss_rose_only_if_the_first_one_could_not_be_one_of_the_second_half() {
        let rose =
            |first, rest: &[f64], last| LossRose::between(first, rest, last).map(|rose| rose.first);
        // Losses of batches of four images that nothing can be learned from.
        assert_eq!(rose(0.62, &[0.81, 0.94, 0.7, 0.58, 0.86], 0.74), None);
        assert_eq!(rose(0.62, &[0.8, 0.82, 0.81, 0.83], 0.82), Some(0.62));
        // Too few to tell, or hardly above the first.
        assert_eq!(rose(4.0, &[2366.0], 2366.0), None);
        assert_eq!(rose(4.0, &[90.0, 2366.0], 2366.0), None);
        assert_eq!(rose(4.25, &[4.3, 4.3, 4.3], 4.3), None);
        for first in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(rose(first, &[9.0, 9.1, 9.2, 9.1], 9.2), None, "{first}");
        }
        // Not a positive number in between: its logarithm tells nothing.
        for odd in [0.0, -1.0, f64::NAN] {
            assert_eq!(rose(4.0, &[9.1, 9.2, odd, 9.1], 9.2), None, "{odd}");
        }
        assert_eq!(rose(1.0, &[], 9.0), None);
    }

    #[test]
    fn another_number_of_parameters_is_another_model() {
        let told = |parameters, planned| {
            OtherModel::between(parameters, planned).map(|other| other.to_string())
        };
        assert_eq!(
            told(Some(1234), Some(4160)).as_deref(),
            Some("1234, and the plan has 4160: not the same model")
        );
        assert_eq!(told(Some(7), Some(7)), None);
        assert_eq!((told(None, Some(7)), told(Some(7), None)), (None, None));
    }

    #[test]
    fn noise_alone_makes_a_loss_rise_in_at_most_one_of_a_thousand_trainings() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut found = 0;
        for _ in 0..20_000 {
            let mut loss = || (0.3 * normal()).exp();
            let (first, rest) = (loss(), [(); 6].map(|()| loss()));
            found += usize::from(LossRose::between(first, &rest, 1e9).is_some());
        }
        // Of 10 expected, half of one in a thousand.
        assert!((1..=22).contains(&found), "{found}");
    }

    #[test]
    fn the_documentation_names_the_limits_of_the_notes() {
        use crate::record::disturbance::LEAST_THROTTLED_FRACTION;
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mebibytes = MemoryGrowth::LEAST_BYTES.0 >> 20;
        for (name, sentence) in [
            (
                "measurement.md",
                format!(
                    "kept more than {} of the cores busy",
                    percent(BusyHost::LEAST_SHARE)
                ),
            ),
            (
                "measurement.md",
                format!(
                    "at least {mebibytes} MiB and {}",
                    percent(MemoryGrowth::LEAST_SHARE)
                ),
            ),
            (
                "measurement.md",
                format!("{} readings or more", MemoryGrowth::FEWEST_READINGS),
            ),
            (
                "comparing.md",
                format!(
                    "throttled for {} of the window or more",
                    percent(LEAST_THROTTLED_FRACTION)
                ),
            ),
        ] {
            let page = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(page).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&sentence), "docs/{name} lacks: {sentence}");
        }
    }

    #[test]
    fn the_checks_on_a_gpu_look_for_the_words_of_the_notes() {
        let replayed = ReplayedSteps {
            steps: 8,
            shapes: 1,
        };
        assert!(
            replayed
                .to_string()
                .starts_with("8 steps replayed from CUDA graphs")
        );
        assert!(
            replayed
                .closures_text()
                .starts_with("8 steps replayed from closures")
        );
        for (script, words) in [
            ("check_cuda_calls.py", "8 steps replayed from CUDA graphs"),
            (
                "check_gpu/trials.py",
                "cuda_graph: (\\d+) steps replayed from (CUDA graphs|closures)",
            ),
        ] {
            let path = format!("{}/../../scripts/{script}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.contains(words), "scripts/{script} lacks: {words}");
        }
    }

    #[test]
    fn notes_can_be_split_again() {
        let row = noted(&[
            ("mfu", "no peak; run `kiln calibrate`"),
            ("steps", "killed"),
        ]);
        let text = "mfu: no peak, run `kiln calibrate`; steps: killed";
        assert_eq!(row.notes.as_deref(), Some(text));
        assert_eq!(
            (row.note("steps"), row.note("step")),
            (Some("killed"), None)
        );
        assert_eq!(notes_cell(&BTreeMap::new()), None);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let busy = BusyHost {
            other_cores: 0.9,
            cores: 2,
        };
        let row = noted(&[(BusyHost::COLUMN, &busy.to_string())]);
        assert_eq!(BusyHost::of(&row), Some(busy));
        let grew = MemoryGrowth {
            bytes: Bytes(1 << 30),
            last: Bytes(2 << 30),
            steps: 100,
        };
        let column = "resident_slope_bytes_per_step";
        let row = noted(&[(column, &grew.to_string())]);
        assert_eq!(
            MemoryGrowth::told(&row, column),
            Some("grew by 1.0 GiB to 2.0 GiB over 100 steps")
        );
        assert_eq!(BusyHost::of(&row), None);
        let rose = LossRose::between(4.25, &[2000.0, 2700.0, 2400.0], 2366.0).unwrap();
        let row = noted(&[(LossRose::COLUMN, &rose.to_string())]);
        assert_eq!(LossRose::of(&row), Some(rose));
        let unknown = UnknownTokens {
            share: 0.981,
            part: "validation rows".to_owned(),
        };
        assert_eq!(
            unknown.to_string(),
            "98.1 % of the tokens of the validation rows are unknown to the tokenizer"
        );
        let replayed = ReplayedSteps {
            steps: 96,
            shapes: 2,
        };
        let unwritten = UnwrittenCheckpoint {
            step: 40,
            error: "No space left on device (os error 28)".to_owned(),
        };
        let row = noted(&[(UnwrittenCheckpoint::COLUMN, &unwritten.to_string())]);
        assert_eq!(UnwrittenCheckpoint::of(&row), Some(unwritten));
        let other = noted(&[(UnwrittenCheckpoint::COLUMN, "this program keeps none")]);
        assert_eq!(UnwrittenCheckpoint::of(&other), None);
        let row = noted(&[(ReplayedSteps::COLUMN, &replayed.to_string())]);
        assert_eq!(ReplayedSteps::of(&row), Some(replayed));
        let closures = replayed.closures_text();
        for eager in [
            "trained operator by operator because the step could not be recorded",
            closures.as_str(),
        ] {
            assert_eq!(
                ReplayedSteps::of(&noted(&[(ReplayedSteps::COLUMN, eager)])),
                None
            );
        }
        let row = noted(&[(ReplayedSteps::COLUMN, &closures)]);
        let note = row.note(ReplayedSteps::COLUMN).unwrap();
        assert_eq!(ReplayedSteps::of_closures(note), Some(replayed));
        let graphs = replayed.to_string();
        assert_eq!(ReplayedSteps::of_graphs(&graphs), Some(replayed));
        assert_eq!(ReplayedSteps::of_closures(&graphs), None);
        let row = noted(&[(UnknownTokens::COLUMN, &unknown.to_string())]);
        assert_eq!(UnknownTokens::of(&row), Some(unknown));
        let continued = ContinuedFrom::new(&Origin {
            run: "results/x y/20261120T100809Z-4da13ed".into(),
            trial: TrialId("t0123456789".to_owned()),
            step: 200,
            sha256: "ab".repeat(32),
        });
        assert_eq!(continued.sha256, "abababababab");
        let row = noted(&[(ContinuedFrom::COLUMN, &continued.to_string())]);
        assert_eq!(ContinuedFrom::of(&row), Some(continued));
        let both = [false, true];
        for (had_most, has_checkpoint) in both.iter().flat_map(|most| both.map(|new| (*most, new)))
        {
            let cut = OutOfJobTime {
                had_most,
                has_checkpoint,
            };
            let row = noted(&[(OutOfJobTime::COLUMN, &cut.to_string())]);
            assert_eq!(OutOfJobTime::of(&row), Some(cut));
        }
        let other = noted(&[(BusyHost::COLUMN, "other words"), (column, "shrank")]);
        assert_eq!(
            (BusyHost::of(&other), MemoryGrowth::told(&other, column)),
            (None, None)
        );
    }
}
