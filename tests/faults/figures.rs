//! What a test counted and found: a line on the terminal, a row of `target/faults.csv`, the
//! violations in `target/faults-found.csv`, and the verdict.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::pool::Tried;

/// Columns of `target/faults.csv`.
const COLUMNS: [&str; 12] = [
    "test",
    "form",
    "cases",
    "faults",
    "images",
    "kills",
    "rows_lost",
    "rows_doubled",
    "rows_changed",
    "losses_changed",
    "cases_failed",
    "seconds",
];

/// Counters that the cases of a test share.
#[derive(Debug)]
pub(crate) struct Figures {
    begun: Instant,
    /// Calls that were disturbed, files that were replaced, and the like.
    pub(crate) faults: AtomicU64,
    /// Images of a disk after a power cut.
    pub(crate) images: AtomicU64,
    /// Signals that ended a process.
    pub(crate) kills: AtomicU64,
}

impl Figures {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            faults: AtomicU64::new(0),
            images: AtomicU64::new(0),
            kills: AtomicU64::new(0),
        }
    }
}

/// Counts one more.
pub(crate) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.parent().unwrap_or(folder).to_owned()
}

/// Writes down what a test has found, and fails if a condition was violated.
pub(crate) fn conclude(test: &str, figures: &Figures, tried: &[Tried]) {
    let count = |kind: &str| {
        let all = tried.iter().flat_map(|tried| &tried.violations);
        all.filter(|violation| violation.kind == kind).count()
    };
    let failed: Vec<&Tried> = tried
        .iter()
        .filter(|tried| !tried.violations.is_empty())
        .collect();
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
    let row = [
        test.to_owned(),
        crate::form::by_form("short", "long").to_owned(),
        tried.len().to_string(),
        of(&figures.faults),
        of(&figures.images),
        of(&figures.kills),
        count("row lost").to_string(),
        count("row doubled").to_string(),
        count("row changed").to_string(),
        count("loss changed").to_string(),
        failed.len().to_string(),
        figures.begun.elapsed().as_secs().to_string(),
    ];
    write(&row, &failed);
    let words: Vec<String> = COLUMNS
        .iter()
        .zip(&row)
        .skip(2)
        .map(|(name, value)| format!("{value} {name}"))
        .collect();
    // Around the harness, which keeps what a passing test prints.
    let _ = writeln!(io::stderr(), "faults: {test}: {}", words.join(", "));
    assert!(
        !tried.is_empty() || std::env::var_os("KILN_FAULTS_ONLY").is_some(),
        "{test} has no case"
    );
    assert!(failed.is_empty(), "{}", summary(&failed));
}

/// The kinds of violations, each with its number of cases and one of them.
fn summary(failed: &[&Tried]) -> String {
    let mut kinds: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    for tried in failed {
        let mut seen = Vec::new();
        for violation in &tried.violations {
            if !seen.contains(&violation.kind) {
                seen.push(violation.kind);
                let first = format!("{}: {}", tried.case, violation.text);
                kinds.entry(violation.kind).or_insert((0, first)).0 += 1;
            }
        }
    }
    let lines: Vec<String> = kinds
        .iter()
        .map(|(kind, (cases, first))| format!("  {kind} in {cases} cases, such as {first}"))
        .collect();
    format!("{} cases failed:\n{}", failed.len(), lines.join("\n"))
}

fn write(row: &[String], failed: &[&Tried]) {
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock();
    let mut table = table("faults.csv", &COLUMNS);
    table.write_record(row).unwrap();
    let mut found = self::table("faults-found.csv", &["test", "case", "violation", "what"]);
    for tried in failed {
        for violation in &tried.violations {
            found
                .write_record([&row[0], &tried.case, violation.kind, &violation.text])
                .unwrap();
        }
    }
}

/// A table in the target folder, with its header if it is new. `make test-faults` begins with none.
pub(crate) fn table(name: &str, columns: &[&str]) -> csv::Writer<File> {
    let path = folder().join(name);
    let is_new = !path.exists();
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .unwrap();
    let mut writer = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(file);
    if is_new {
        writer.write_record(columns).unwrap();
    }
    writer
}
