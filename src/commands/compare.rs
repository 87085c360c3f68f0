//! `kiln compare`: what changed between two tables, and whether it can be told from chance.

use super::{
    Status, Stop, note, page_style, print,
    sources::{Source, source},
};
use crate::report::compare::{Comparisons, Fact, Field, Metric, Options, Page, Verdict, compare, facts, word};

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's (its newest run), a trials.csv, or one of these in a git revision: `HEAD~1:results/x/latest`.
    base: String,
    /// What it is compared with.
    new: String,
    #[command(flatten)]
    asked: Asked,
}

/// How two tables are compared, and what to make of it.
#[derive(clap::Args)]
pub(super) struct Asked {
    /// Match rows by these axes or columns, and not by trial id: `--by train.batch_size,data.num_workers`.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    by: Vec<String>,
    /// Compare rows that differ in these columns, because that is what is compared: `--across precision`.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', value_parser = field)]
    across: Vec<Field>,
    /// Exit with 1 where something is so: `--fail-on slower,worse-loss`.
    #[arg(long, value_name = "VERDICT,…", value_delimiter = ',', value_parser = reason)]
    fail_on: Vec<Reason>,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// A line per point and metric.
    Csv,
    /// For programs: one object.
    Json,
}

/// What a run of a program may be stopped by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    /// A verdict on some metric, as it is spelled.
    Verdict(String),
    /// A point of BASE that NEW does not have.
    Missing,
    /// Trials that did not all complete, on either side.
    Ends,
}

/// Verdicts that are worth an exit status.
const VERDICTS: [&str; 8] = ["slower", "longer-step", "more-memory", "more-energy", "worse-loss", "ambiguous", "too-few-runs", "not-comparable"];

fn field(text: &str) -> Result<Field, String> {
    let names: Vec<&str> = Field::ALL.iter().map(|field| field.name()).collect();
    Field::ALL.into_iter().find(|field| field.name() == text).ok_or_else(|| format!("`{text}` is no such column; one of {}", names.join(", ")))
}

fn reason(text: &str) -> Result<Reason, String> {
    match text {
        "missing" => Ok(Reason::Missing),
        "not-completed" => Ok(Reason::Ends),
        verdict if VERDICTS.contains(&verdict) => Ok(Reason::Verdict(verdict.to_owned())),
        _ => Err(format!("`{text}` is nothing to fail on; one of {}, missing, not-completed", VERDICTS.join(", "))),
    }
}

impl Asked {
    /// Whether rows are matched by their trial's id, and not by values.
    pub(super) fn matches_by_id(&self) -> bool {
        self.by.is_empty()
    }
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    compare_and_print(&source(&args.base)?, &source(&args.new)?, &args.asked)
}

/// Prints what a comparison says; the status is 1 where it fails as asked, or nothing could be compared.
pub(super) fn compare_and_print(base: &Source, new: &Source, asked: &Asked) -> Result<Status, Stop> {
    judge(base, new, asked, |page| match asked.format {
        Format::Text => page.text(page_style()),
        Format::Markdown => page.markdown(),
        Format::Csv => page.csv(),
        Format::Json => page.json(),
    })
}

/// The same as one event, for programs that follow a run.
pub(super) fn compare_and_tell(base: &Source, new: &Source, asked: &Asked) -> Result<Status, Stop> {
    judge(base, new, asked, |page| {
        let mut event = page.value();
        event["event"] = "comparison".into();
        format!("{event}\n")
    })
}

fn judge(base: &Source, new: &Source, asked: &Asked, shown: impl FnOnce(&Page<'_>) -> String) -> Result<Status, Stop> {
    let options = Options { by: asked.by.clone(), across: asked.across.clone() };
    let found = compare(&base.table, &new.table, &options).map_err(Stop::bad_input)?;
    if found.is_empty() {
        return Err(nothing_in_common(base, new, &options));
    }
    let record = record(base, new);
    print(&shown(&Page { base: &base.name, new: &new.name, facts: record.as_deref(), found: &found }))?;
    Ok(status(&found, asked))
}

/// What differs in what both runs recorded.
fn record(base: &Source, new: &Source) -> Option<Vec<Fact>> {
    let experiments = [base.experiment_value(), new.experiment_value()];
    (base.run.is_some() && new.run.is_some()).then(|| facts([base.run.as_ref(), new.run.as_ref()], experiments))
}

/// Fails where nothing could be compared, or as asked.
fn status(found: &Comparisons, asked: &Asked) -> Status {
    let is_refused = found.pairs.iter().all(|pair| !pair.unlike.is_empty() || pair.comparisons.is_empty());
    let untold: Vec<&Reason> = asked.fail_on.iter().filter(|reason| cannot_be_told(reason, found)).collect();
    for reason in &untold {
        if let Reason::Verdict(word) = reason {
            note(&format!("`--fail-on {word}`: no point of both tables has a number to tell it by, so it counts as failed"));
        }
    }
    let fails = is_refused || !untold.is_empty() || asked.fail_on.iter().any(|reason| holds(reason, found));
    if fails { Status::Failed } else { Status::Success }
}

/// A gate that nothing went through is not open: no point has a number of that metric on both sides.
fn cannot_be_told(reason: &Reason, found: &Comparisons) -> bool {
    let Reason::Verdict(word) = reason else { return false };
    Metric::of_word(word).is_some_and(|metric| found.pairs.iter().flat_map(|pair| &pair.comparisons).all(|comparison| comparison.metric != metric))
}

fn nothing_in_common(base: &Source, new: &Source, options: &Options) -> Stop {
    let hint = match options.by.is_empty() {
        true => "no trial id is in both: a setting differs in all of them; `--by train.batch_size` matches rows by values",
        false => "no value of these keys is in both",
    };
    Stop::bad_input(format!("{} and {}: {hint}", base.name, new.name))
}

fn holds(reason: &Reason, found: &Comparisons) -> bool {
    match reason {
        Reason::Missing => !found.only_base.is_empty(),
        Reason::Ends => found.pairs.iter().any(|pair| pair.ends.is_some()),
        Reason::Verdict(wanted) if wanted == "not-comparable" => found.pairs.iter().any(|pair| !pair.unlike.is_empty()),
        Reason::Verdict(wanted) => {
            let comparisons = found.pairs.iter().flat_map(|pair| &pair.comparisons);
            comparisons.filter(|comparison| comparison.verdict != Verdict::NotComparable).any(|comparison| word(comparison) == wanted)
        }
    }
}
