//! The limits of what kiln reads, in one table: the size of files, of lines, of what an archive
//! unpacks to, the number of points.
//!
//! Each limit has a variable that changes it: [`POINTS`] is `KILN_LIMIT_POINTS`. The messages name
//! it. `docs/running.md` lists the table, and a test compares the two. Children inherit the
//! variables.

use std::fmt;

use crate::units::Bytes;

/// The beginning of every variable that changes a limit.
pub const PREFIX: &str = "KILN_LIMIT_";

/// One limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    /// The name, also of its variable: `POINTS`.
    pub name: &'static str,
    /// The value without a variable.
    pub default: u64,
    /// The largest value that the variable may have.
    pub highest: u64,
    pub unit: Unit,
    /// The limited thing, such as `an experiment file`.
    pub of: &'static str,
}

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// A number of things, in the plural: `points`.
    Count(&'static str),
}

/// An input that is over a limit. The text follows the name of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LimitExceeded {
    limit: &'static Limit,
    /// The value of the limit, from its variable or its default.
    allowed: u64,
    /// `None` if reading ended at the limit.
    found: Option<u64>,
}

impl Limit {
    const fn bytes(name: &'static str, default: u64, of: &'static str) -> Self {
        Self {
            name,
            default,
            highest: u64::MAX,
            unit: Unit::Bytes,
            of,
        }
    }

    const fn count(
        name: &'static str,
        default: u64,
        things: &'static str,
        of: &'static str,
    ) -> Self {
        Self {
            name,
            default,
            highest: u64::MAX,
            unit: Unit::Count(things),
            of,
        }
    }

    /// The variable that changes it.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The value that counts: of the variable if it is a valid one, else the default. It reads the
    /// environment, so a loop asks once.
    pub fn value(&self) -> u64 {
        match std::env::var(self.variable()) {
            Ok(text) => self.parse(&text).unwrap_or(self.default),
            Err(_) => self.default,
        }
    }

    /// The value as a number of things in memory.
    pub fn size(&self) -> usize {
        usize::try_from(self.value()).unwrap_or(usize::MAX)
    }

    fn parse(&self, text: &str) -> Result<u64, String> {
        let value = match (self.unit, text.parse::<u64>()) {
            (_, Ok(number)) => Some(number),
            (Unit::Bytes, Err(_)) => bytes_with_unit(text),
            (Unit::Count(_), Err(_)) => None,
        };
        value
            .filter(|value| (1..=self.highest).contains(value))
            .ok_or_else(|| {
                let most = if self.highest == u64::MAX {
                    String::new()
                } else {
                    format!(" up to {}", self.highest)
                };
                let example = match self.unit {
                    Unit::Bytes => ", in bytes or with a unit, such as `64MiB`",
                    Unit::Count(_) => "",
                };
                format!(
                    "{}={text}: a limit is an integer from 1{most}{example}; correct the \
                     variable, or remove it",
                    self.variable()
                )
            })
    }

    /// `Ok` if `found` is within the limit.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&'static self, found: u64) -> Result<(), LimitExceeded> {
        let allowed = self.value();
        if found <= allowed {
            return Ok(());
        }
        Err(LimitExceeded {
            limit: self,
            allowed,
            found: Some(found),
        })
    }

    /// The error of an input that has more than `allowed`, at which reading ended.
    pub fn exceeded(&'static self, allowed: u64) -> LimitExceeded {
        LimitExceeded {
            limit: self,
            allowed,
            found: None,
        }
    }

    /// How to raise it, as the end of a message: `set KILN_LIMIT_POINTS=200000 to allow more`.
    /// `None` stands for twice the value.
    pub fn remedy(&self, wanted: Option<u64>) -> String {
        let wanted = wanted.unwrap_or_else(|| self.value().saturating_mul(2));
        format!(
            "set {}={} to allow more",
            self.variable(),
            wanted.min(self.highest)
        )
    }

    fn amount(&self, number: u64) -> String {
        match self.unit {
            Unit::Bytes => Bytes(number).to_string(),
            Unit::Count(things) => format!("{number} {things}"),
        }
    }
}

impl LimitExceeded {
    /// The amount that the input has; `None` if reading ended at the limit.
    pub fn found(&self) -> Option<u64> {
        self.found
    }

    /// The sentence without a remedy: `it has 3 points, more than the 2 points allowed for a sweep`.
    pub fn excess(&self) -> String {
        let Self {
            limit,
            allowed,
            found,
        } = *self;
        let (of, most) = (limit.of, limit.amount(allowed));
        match found {
            // Rounded to units, both may be the same.
            Some(found) if limit.amount(found) == most => {
                format!("it has {found} bytes, more than the {allowed} allowed for {of}")
            }
            Some(found) => format!(
                "it has {}, more than the {most} allowed for {of}",
                limit.amount(found)
            ),
            None => format!("it has more than the {most} allowed for {of}"),
        }
    }
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.found.unwrap_or_else(|| self.allowed.saturating_mul(2));
        write!(f, "{}; {}", self.excess(), self.limit.remedy(Some(wanted)))
    }
}

/// `64MiB` in bytes.
fn bytes_with_unit(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// kiln's own examples have a few kilobytes.
pub static EXPERIMENT_BYTES: Limit = Limit::bytes("EXPERIMENT_BYTES", MIB, "an experiment file");
/// The deepest key of an experiment has five levels. At most what serde_yaml reads, which reads the
/// resolved experiment again.
pub static YAML_DEPTH: Limit = Limit {
    name: "YAML_DEPTH",
    default: 64,
    highest: 120,
    unit: Unit::Count("levels"),
    of: "nested maps and lists",
};
/// Nested aliases grow exponentially.
pub static YAML_VALUES: Limit = Limit::count(
    "YAML_VALUES",
    100_000,
    "values",
    "an experiment file with its aliases written out",
);
/// kiln knows about 120 keys.
pub static YAML_KEYS: Limit = Limit::count("YAML_KEYS", 1000, "keys", "one map");
/// Each alias is a copy of its text.
pub static YAML_TEXT_BYTES: Limit = Limit::bytes(
    "YAML_TEXT_BYTES",
    16 * MIB,
    "the text of an experiment file with its aliases written out",
);
/// Each is a column of `trials.csv`; every point has a value on each.
pub static AXES: Limit = Limit::count("AXES", 50, "axes", "a sweep");
pub static AXIS_VALUES: Limit =
    Limit::count("AXIS_VALUES", 100_000, "values", "one axis of a sweep");
pub static EXCLUDE_ENTRIES: Limit =
    Limit::count("EXCLUDE_ENTRIES", 25_000, "entries", "`sweep.exclude`");
/// A planned point takes some kilobytes; 100,000 points of a second each take a day.
pub static POINTS: Limit = Limit::count("POINTS", 100_000, "points", "a sweep");
pub static TRIALS: Limit = Limit::count(
    "TRIALS",
    200_000,
    "trials",
    "the points of a sweep times their repeats",
);
/// The ids of 200,000 trials take 4 MiB.
pub static RUN_FILE_BYTES: Limit = Limit::bytes("RUN_FILE_BYTES", 64 * MIB, "a `run.json`");
pub static RESOLVED_BYTES: Limit = Limit::bytes(
    "RESOLVED_BYTES",
    64 * MIB,
    "the resolved experiment of a run",
);
pub static RESULT_BYTES: Limit = Limit::bytes("RESULT_BYTES", 16 * MIB, "a `trial.json`");
/// `attempt.json`, `trial.yaml`, `checkpoint.json`, peaks, counts in the cache, certificates.
pub static STATE_BYTES: Limit =
    Limit::bytes("STATE_BYTES", 16 * MIB, "a small file that a program wrote");
/// A row of `trials.csv` has about 1.5 KB.
pub static TABLE_BYTES: Limit = Limit::bytes("TABLE_BYTES", GIB, "a table that is read as a whole");
/// Samples of eight GPUs, one a second, grow by 200 MB a day.
pub static SAMPLES_BYTES: Limit = Limit::bytes(
    "SAMPLES_BYTES",
    16 * GIB,
    "a table that is read row by row, or to which rows are added",
);
pub static ROW_BYTES: Limit = Limit::bytes("ROW_BYTES", 16 * MIB, "a row of a table");
/// Files of data are kept in memory.
pub static DATA_BYTES: Limit = Limit::bytes("DATA_BYTES", 16 * GIB, "a file of data, unpacked");
/// The files of an archive are kept in memory.
pub static ARCHIVE_BYTES: Limit = Limit::bytes("ARCHIVE_BYTES", 2 * GIB, "an archive, unpacked");
/// Text compresses to a fifth, a log to a twentieth; gzip reaches 1000, xz more.
pub static UNPACKED_RATIO: Limit = Limit::count(
    "UNPACKED_RATIO",
    100,
    "bytes",
    "each compressed byte of a file that unpacks to more than 16 MiB",
);
pub static JSONL_LINE_BYTES: Limit =
    Limit::bytes("JSONL_LINE_BYTES", 16 * MIB, "a line of a JSONL file");
/// The largest published ones have about 35 MB.
pub static TOKENIZER_BYTES: Limit = Limit::bytes("TOKENIZER_BYTES", 64 * MIB, "a tokenizer file");
pub static IMAGE_BYTES: Limit = Limit::bytes("IMAGE_BYTES", 256 * MIB, "an image file");
/// Source: the number at which Pillow refuses an image as a decompression bomb.
pub static IMAGE_PIXELS: Limit = Limit::count("IMAGE_PIXELS", 178_956_970, "pixels", "an image");
pub static WEIGHTS_BYTES: Limit = Limit::bytes("WEIGHTS_BYTES", 64 * GIB, "a file of tensors");
/// For a file whose published size is unknown; for others the published size is the limit.
pub static DOWNLOAD_BYTES: Limit =
    Limit::bytes("DOWNLOAD_BYTES", GIB, "a download of unpublished size");

/// A list in `files`, such as `src/**/*.py`, that has more is meant otherwise.
pub static PROGRAM_FILES: Limit =
    Limit::count("PROGRAM_FILES", 4000, "files", "the `files` of a program");
/// A program that is read once at each launch. Weights and data are larger.
pub static PROGRAM_FILE_BYTES: Limit = Limit::bytes(
    "PROGRAM_FILE_BYTES",
    2 * GIB,
    "a file of a program, to have its hash kept",
);

/// Every limit, in the order of `docs/running.md`.
pub static ALL: [&Limit; 28] = [
    &EXPERIMENT_BYTES,
    &YAML_DEPTH,
    &YAML_VALUES,
    &YAML_KEYS,
    &YAML_TEXT_BYTES,
    &AXES,
    &AXIS_VALUES,
    &EXCLUDE_ENTRIES,
    &POINTS,
    &TRIALS,
    &RUN_FILE_BYTES,
    &RESOLVED_BYTES,
    &RESULT_BYTES,
    &STATE_BYTES,
    &TABLE_BYTES,
    &SAMPLES_BYTES,
    &ROW_BYTES,
    &DATA_BYTES,
    &ARCHIVE_BYTES,
    &UNPACKED_RATIO,
    &JSONL_LINE_BYTES,
    &TOKENIZER_BYTES,
    &IMAGE_BYTES,
    &IMAGE_PIXELS,
    &WEIGHTS_BYTES,
    &DOWNLOAD_BYTES,
    &PROGRAM_FILES,
    &PROGRAM_FILE_BYTES,
];

/// Checks the variables of all limits.
///
/// # Errors
/// A variable has no valid value, or its name is not that of a limit; the text names it.
pub fn check_setting() -> Result<(), String> {
    check_variables(std::env::vars_os().filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    }))
}

fn check_variables(variables: impl Iterator<Item = (String, String)>) -> Result<(), String> {
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        match ALL.iter().find(|limit| limit.name == rest) {
            Some(limit) => limit.parse(&value).map(drop)?,
            None => {
                let names: Vec<&str> = ALL.iter().map(|limit| limit.name).collect();
                return Err(format!(
                    "{name} is not a limit; after {PREFIX} comes one of {}",
                    names.join(", ")
                ));
            }
        }
    }
    Ok(())
}

/// The table of `docs/running.md`.
pub fn documentation() -> String {
    let row = |limit: &&Limit| {
        format!(
            "| `{}` | {} | {} |\n",
            limit.variable(),
            limit.amount(limit.default),
            limit.of
        )
    };
    format!(
        "| variable | allows | for |\n|---|---|---|\n{}",
        ALL.iter().map(row).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_what_was_found_what_is_allowed_and_the_variable() {
        let over = POINTS.check(1_000_000).unwrap_err().to_string();
        assert_eq!(
            over,
            "it has 1000000 points, more than the 100000 points allowed for a sweep; set \
             KILN_LIMIT_POINTS=1000000 to allow more"
        );
        assert_eq!(
            EXPERIMENT_BYTES.exceeded(MIB).to_string(),
            "it has more than the 1.0 MiB allowed for an experiment file; set \
             KILN_LIMIT_EXPERIMENT_BYTES=2097152 to allow more"
        );
        assert_eq!(POINTS.check(100_000), Ok(()));
        assert!(
            EXPERIMENT_BYTES
                .check(MIB + 1)
                .unwrap_err()
                .to_string()
                .starts_with("it has 1048577 bytes, more than the 1048576 allowed for an ")
        );
    }

    #[test]
    fn a_variable_is_an_integer_or_bytes_with_a_unit() {
        assert_eq!(DATA_BYTES.parse("3GiB"), Ok(3 << 30));
        assert_eq!(POINTS.parse("7"), Ok(7));
        for bad in ["", "0", "-1", "1.5", "many", "3GiB"] {
            let message = POINTS.parse(bad).unwrap_err();
            assert!(
                message.starts_with(&format!("KILN_LIMIT_POINTS={bad}: a limit is an integer")),
                "{message}"
            );
        }
        assert!(
            YAML_DEPTH
                .parse("121")
                .unwrap_err()
                .contains("from 1 up to 120")
        );
        assert!(DATA_BYTES.parse("99999999999GiB").is_err());
    }

    #[test]
    fn a_variable_of_no_limit_is_an_error() {
        let check = |name: &str, value: &str| {
            check_variables([(name.to_owned(), value.to_owned())].into_iter())
        };
        assert_eq!(check("KILN_LIMIT_POINTS", "5"), Ok(()));
        assert_eq!(check("HOME", "x"), Ok(()));
        assert!(check("KILN_LIMIT_POINTS", "x").is_err());
        let unknown = check("KILN_LIMIT_POINT", "5").unwrap_err();
        assert!(
            unknown.starts_with("KILN_LIMIT_POINT is not a limit; ") && unknown.contains("POINTS"),
            "{unknown}"
        );
    }

    #[test]
    fn every_limit_is_listed_once_with_a_name_of_its_own() {
        let mut names: Vec<&str> = ALL.iter().map(|limit| limit.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|limit| limit.default <= limit.highest));
    }
}
