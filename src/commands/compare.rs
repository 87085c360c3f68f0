//! `kiln compare`: what changed between two tables, and whether it can be told from chance.

use super::{
    Status, Stop, note, page_style, print, rerun,
    sources::{Source, source},
};
use crate::report::compare::{
    Compared, Comparisons, Fact, Field, Gate, Metric, Options, Page, Reproduction, Verdict, compare, facts, gate, unsaid, word,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's (its newest run), a trials.csv, or one of these in a git revision: `HEAD~1:results/x/latest`.
    base: String,
    /// What it is compared with.
    new: String,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    again: rerun::Args,
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
    /// Exit with 1 where something is so, and with 4 where these runs cannot tell: `--fail-on slower,worse-loss`.
    #[arg(long, value_name = "VERDICT,…", value_delimiter = ',', value_parser = reason)]
    fail_on: Vec<Reason>,
    /// What a gate of `--fail-on`, or the question whether a run is reproduced, does where these runs cannot answer it.
    #[arg(long, value_enum, default_value_t = Untold::Exit4, value_name = "WHAT")]
    cannot_tell: Untold,
    /// Leave out runs that were disturbed: throttled, others on the device, memory errors, a busy host.
    #[arg(long)]
    clean: bool,
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

/// What becomes of a gate that cannot be answered.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Untold {
    /// Exit with 4.
    #[value(name = "exit-4")]
    Exit4,
    /// It passes.
    Pass,
    /// It fails: exit with 1.
    Fail,
}

impl Untold {
    fn status(self, gate: &Gate) -> Status {
        match (gate, self) {
            (Gate::Pass, _) | (Gate::CannotTell(_), Self::Pass) => Status::Success,
            (Gate::Fail(_), _) | (Gate::CannotTell(_), Self::Fail) => Status::Failed,
            (Gate::CannotTell(_), Self::Exit4) => Status::CannotTell,
        }
    }
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
const VERDICTS: [&str; 9] =
    ["slower", "longer-step", "more-memory", "more-energy", "worse-loss", "ambiguous", "cannot-tell", "too-few-runs", "not-comparable"];

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

impl Reason {
    fn spelled(&self) -> &str {
        match self {
            Self::Verdict(word) => word,
            Self::Missing => "missing",
            Self::Ends => "not-completed",
        }
    }
}

impl Asked {
    /// Whether rows are matched by their trial's id, and not by values.
    pub(super) fn matches_by_id(&self) -> bool {
        self.by.is_empty()
    }
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let [base, new] = match args.again.rerun {
        true => rerun::rerun(&args.base, &args.new, &args.again)?,
        false => [source(&args.base)?, source(&args.new)?],
    };
    compare_and_print(&base, &new, &args.asked, None)
}

/// What a comparison comes to: a sentence for the end of the page, and an answer for the status.
pub(super) type Closing = fn(&Comparisons) -> Reproduction;

/// Prints what a comparison says; the status is 1 where it fails as asked, or nothing could be compared, and 4 where a gate cannot be answered.
pub(super) fn compare_and_print(base: &Source, new: &Source, asked: &Asked, closing: Option<Closing>) -> Result<Status, Stop> {
    judge(base, new, asked, closing, |page, closing| {
        let closing = || closing.map(|closing| format!("\n{}\n", closing.sentence)).unwrap_or_default();
        match asked.format {
            Format::Text => page.text(page_style()) + &closing(),
            Format::Markdown => page.markdown() + &closing(),
            Format::Csv => page.csv(),
            Format::Json => page.json(),
        }
    })
}

/// The same as one event, for programs that follow a run.
pub(super) fn compare_and_tell(base: &Source, new: &Source, asked: &Asked, closing: Closing) -> Result<Status, Stop> {
    judge(base, new, asked, Some(closing), |page, closing| {
        let mut event = page.value();
        event["event"] = "comparison".into();
        event["closing"] = closing.map(|closing| closing.sentence.as_str()).into();
        format!("{event}\n")
    })
}

fn judge(
    base: &Source,
    new: &Source,
    asked: &Asked,
    closing: Option<Closing>,
    shown: impl FnOnce(&Page<'_>, Option<&Reproduction>) -> String,
) -> Result<Status, Stop> {
    let options = Options { by: asked.by.clone(), across: asked.across.clone(), is_clean: asked.clean };
    let found = compare(&base.table, &new.table, &options).map_err(Stop::bad_input)?;
    if found.is_empty() {
        return Err(nothing_in_common(base, new, &options));
    }
    let record = record(base, new);
    let closing = closing.map(|closing| closing(&found));
    print(&shown(&Page { base: &base.name, new: &new.name, facts: record.as_deref(), found: &found }, closing.as_ref()))?;
    let of_closing = closing.map_or(Status::Success, |closing| asked.cannot_tell.status(&closing.gate));
    Ok(surer(status(&found, asked), of_closing))
}

/// Of two statuses the one to exit with: a failure is sure, whatever else cannot be told.
pub(super) fn surer(one: Status, other: Status) -> Status {
    match (one, other) {
        (Status::Failed, Status::CannotTell) | (Status::CannotTell, Status::Failed) => Status::Failed,
        (one, other) => one.max(other),
    }
}

/// What differs in what both runs recorded.
fn record(base: &Source, new: &Source) -> Option<Vec<Fact>> {
    let experiments = [base.experiment_value(), new.experiment_value()];
    (base.run.is_some() && new.run.is_some()).then(|| facts([base.run.as_ref(), new.run.as_ref()], experiments))
}

/// Fails where nothing could be compared, or as asked; a gate says what became of it.
fn status(found: &Comparisons, asked: &Asked) -> Status {
    let is_refused = found.pairs.iter().all(|pair| !pair.unlike.is_empty() || pair.comparisons.is_empty());
    let mut status = if is_refused && asked.fail_on.is_empty() { Status::Failed } else { Status::Success };
    for reason in &asked.fail_on {
        let (spelled, gate) = (reason.spelled(), answer(reason, found));
        note(&format!("gate {spelled}: {}", gate.sentence()));
        status = surer(status, asked.cannot_tell.status(&gate));
    }
    status
}

fn answer(reason: &Reason, found: &Comparisons) -> Gate {
    let fails = |names: Vec<String>| if names.is_empty() { Gate::Pass } else { Gate::Fail(names) };
    // What a page says nothing of is no pass.
    let said = |names: Vec<String>| match (names.is_empty(), unsaid(found)) {
        (true, unsaid) if !unsaid.is_empty() => Gate::CannotTell(unsaid),
        _ => fails(names),
    };
    let names = |holds: &dyn Fn(&Compared) -> bool| found.pairs.iter().filter(|pair| holds(pair)).map(|pair| pair.name.clone()).collect();
    match reason {
        Reason::Missing => fails(found.only_base.clone()),
        Reason::Ends => fails(names(&|pair| pair.ends.is_some())),
        Reason::Verdict(wanted) => match Metric::of_word(wanted) {
            Some(metric) => gate(found, metric),
            None if wanted == "not-comparable" => said(names(&|pair| !pair.unlike.is_empty())),
            None => {
                let is_so = |pair: &Compared| {
                    pair.comparisons.iter().any(|comparison| comparison.verdict != Verdict::NotComparable && word(comparison) == wanted)
                };
                said(names(&is_so))
            }
        },
    }
}

fn nothing_in_common(base: &Source, new: &Source, options: &Options) -> Stop {
    let hint = match options.by.is_empty() {
        true => "no trial id is in both: a setting differs in all of them; `--by train.batch_size` matches rows by values",
        false => "no value of these keys is in both",
    };
    Stop::bad_input(format!("{} and {}: {hint}", base.name, new.name))
}
