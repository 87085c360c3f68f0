//! Losses and validation metrics, and the settings under which two of them must not be compared, such
//! as those that change the data.

/// Settings of the data that leave the validation data, and so the meaning of a loss, as they are.
const OF_LOADING: [&str; 12] = [
    "data.num_workers",
    "data.prefetch",
    "data.persistent_workers",
    "data.pin_memory",
    "data.stride",
    "data.sampling",
    "data.crop_padding",
    "data.crop",
    "data.flip",
    "data.length_bucket",
    "data.sort_by_length",
    "data.longest_first",
];

/// Decides how windows of text follow one another. The memory of a recurrent model is carried from
/// window to window by `contiguous` alone, which makes its validation loss another one.
const SAMPLING: &str = "data.sampling";

/// Settings and facts that may change the training data alone: a table tells whether the validation
/// data is the same under two of their values, by a hash of the ids or labels that are evaluated.
///
/// The others stay: `data.kind` and `data.pad_token` decide more than the hash has, images in files
/// are hashed by their lengths alone (`data.image_size`), and a panel has no hash (`data.target`).
const OF_TRAINING_DATA: [&str; 11] = [
    "data.path",
    "data.valid_path",
    "data.valid_fraction",
    "data_sha256",
    "data.images",
    "data.characters",
    "data.max_prompt_tokens",
    "data.max_response_tokens",
    "data.valid_rows",
    "data.skip_bad",
    SAMPLING,
];

/// The number of validation rows that are answered, and the map that has it.
const OF_ANSWERS: [&str; 2] = ["train.evaluate.generate", "train.evaluate.generate.rows"];
/// Scores of answers.
const ANSWER_SCORES: [&str; 2] = ["valid_bleu4", "valid_chrf"];

/// The target, and its settings.
const TARGET: [&str; 2] = ["train.target", "train.target.valid_loss"];
/// The time and the steps until the target.
pub const UNTIL_TARGET: [&str; 2] = ["seconds_to_target", "steps_to_target"];

/// Whether a column of `trials.csv` has what was learned: a loss, or a metric of the validation data.
pub fn is_learned(column: &str) -> bool {
    column.starts_with("valid_") || ["train_loss", "lowest_valid_loss"].contains(&column)
}

/// How another value of a setting makes a learned number another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherNumber {
    /// It is measured on other data.
    Data,
    /// The training loss is computed otherwise.
    Loss,
    /// The training loss is the mean of another number of steps.
    Mean,
    /// The memory of a recurrent model is carried on, or not.
    Memory,
    /// Other rows are answered.
    Answers,
    /// Another loss is to be reached.
    Target,
}

/// The number of steps whose mean loss is a trial's training loss.
pub const LOG_EVERY: &str = "measure.log_every";

impl OtherNumber {
    /// `None` if numbers of the column under two values of the key compare, or are not learned.
    pub fn of(key: &str, column: &str) -> Option<Self> {
        if UNTIL_TARGET.contains(&column) && TARGET.contains(&key) {
            return Some(Self::Target);
        }
        if ANSWER_SCORES.contains(&column) && OF_ANSWERS.contains(&key) {
            return Some(Self::Answers);
        }
        // The loss of a target is one of the validation data.
        let column = match UNTIL_TARGET.contains(&column) {
            true => "valid_loss",
            false => column,
        };
        if !is_learned(column) {
            return None;
        }
        if column == "train_loss" && key == "train.label_smoothing" {
            return Some(Self::Loss);
        }
        if column == "train_loss" && key == LOG_EVERY {
            return Some(Self::Mean);
        }
        // Training on more rows is evaluated on the same ones.
        let leaves =
            OF_LOADING.contains(&key) || (key == "data.train_rows" && column != "train_loss");
        let is_of_data = key.starts_with("data.") || key == "data_sha256";
        ((is_of_data && !leaves) || key == "model.reads").then_some(Self::Data)
    }

    /// As [`Self::of`], of rows that are known to be evaluated on the same data, or not.
    pub fn given(key: &str, column: &str, has_same_validation: bool) -> Option<Self> {
        let is_validated =
            UNTIL_TARGET.contains(&column) || (is_learned(column) && column != "train_loss");
        if is_validated && has_same_validation && OF_TRAINING_DATA.contains(&key) {
            return None;
        }
        let is_memory = is_validated && key == SAMPLING;
        Self::of(key, column).or(is_memory.then_some(Self::Memory))
    }

    /// The first of these axes that varies and makes a column another number, with its place; `of`
    /// says so of a key. `value` is that of an axis in one of `rows` rows, by their places.
    pub fn among<V: PartialEq>(
        axes: &[String],
        of: impl Fn(&str) -> Option<Self>,
        rows: usize,
        value: impl Fn(usize, usize) -> V,
    ) -> Option<(usize, Self)> {
        let varies = |axis: usize| (1..rows).any(|row| value(axis, row) != value(axis, 0));
        axes.iter()
            .enumerate()
            .filter_map(|(axis, key)| Some((axis, of(key)?)))
            .find(|(axis, _)| varies(*axis))
    }

    /// A sentence without its end; `what` is the number: `validation loss`.
    pub fn in_words(self, key: &str, what: &str) -> String {
        match self {
            Self::Data => format!("`{key}` makes it a {what} on other data"),
            Self::Loss => format!("`{key}` changes the training loss itself"),
            Self::Mean => {
                format!("`{key}` makes the training loss a mean of another number of steps")
            }
            Self::Memory => {
                format!("`{key}` decides whether a recurrent model is evaluated with a memory")
            }
            Self::Answers => format!("`{key}` changes which rows are answered"),
            Self::Target => format!("`{key}` makes the target another loss"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_smoothing_make_other_numbers_and_loading_does_not() {
        let of = OtherNumber::of;
        for column in ["valid_loss", "train_loss", "valid_top1"] {
            assert_eq!(of("data.tokenizer", column), Some(OtherNumber::Data));
            assert_eq!(of("model.reads", column), Some(OtherNumber::Data));
            assert_eq!(of("data.num_workers", column), None);
            assert_eq!(of("model.d_model", column), None);
        }
        assert_eq!(of("data.tokenizer", "samples_per_second"), None);
        assert_eq!(
            of("data.tokenizer", "seconds_to_target"),
            Some(OtherNumber::Data)
        );
        assert_eq!(of("train.label_smoothing", "seconds_to_target"), None);
        assert_eq!(of("train.label_smoothing", "valid_loss"), None);
        assert_eq!(of(LOG_EVERY, "train_loss"), Some(OtherNumber::Mean));
        assert_eq!(of(LOG_EVERY, "valid_loss"), None);
        assert_eq!(
            of("train.label_smoothing", "train_loss"),
            Some(OtherNumber::Loss)
        );
        let axes = ["model.d_model", "data.path"].map(str::to_owned);
        let among = |paths: &[&str]| {
            let value = |axis: usize, row: usize| match axis {
                0 => format!("{row}"),
                _ => paths[row].to_owned(),
            };
            OtherNumber::among(&axes, |key| of(key, "valid_loss"), paths.len(), value)
        };
        assert_eq!(among(&["a", "a", "b"]), Some((1, OtherNumber::Data)));
        assert_eq!(among(&["a", "a"]), None);
        assert_eq!(among(&[]), None);
        assert_eq!(of("data.train_rows", "valid_loss"), None);
        assert_eq!(of("data.train_rows", "train_loss"), Some(OtherNumber::Data));
    }

    #[test]
    fn other_training_data_leaves_a_loss_on_the_same_validation_data_what_it_is() {
        let other = Some(OtherNumber::Data);
        for key in OF_TRAINING_DATA.into_iter().filter(|key| *key != SAMPLING) {
            for column in ["valid_loss", "valid_top1", "seconds_to_target"] {
                assert_eq!(OtherNumber::given(key, column, true), None);
                assert_eq!(OtherNumber::given(key, column, false), other);
            }
            assert_eq!(OtherNumber::given(key, "train_loss", true), other);
        }
        for key in ["data.tokenizer", "data.target", "data.image_size"] {
            assert_eq!(OtherNumber::given(key, "valid_loss", true), other);
        }
    }

    #[test]
    fn the_memory_of_an_evaluation_makes_another_loss_unless_the_hashes_are_equal() {
        for column in ["valid_loss", "lowest_valid_loss", "seconds_to_target"] {
            let given = |is_same| OtherNumber::given(SAMPLING, column, is_same);
            assert_eq!(given(false), Some(OtherNumber::Memory));
            assert_eq!(given(true), None);
        }
        for column in ["train_loss", "samples_per_second"] {
            assert_eq!(OtherNumber::given(SAMPLING, column, false), None);
        }
    }

    #[test]
    fn other_answers_and_targets_make_other_numbers() {
        let given = |key: &str, column: &str| OtherNumber::given(key, column, true);
        let rows = "train.evaluate.generate.rows";
        for column in ANSWER_SCORES {
            assert_eq!(given(rows, column), Some(OtherNumber::Answers));
            assert_eq!(given("train.evaluate.generate.beams", column), None);
        }
        assert_eq!(given(rows, "valid_loss"), None);
        for column in UNTIL_TARGET {
            for key in TARGET {
                assert_eq!(given(key, column), Some(OtherNumber::Target));
            }
        }
        assert_eq!(given("train.target.valid_loss", "valid_loss"), None);
    }
}
