//! `kiln compare`: lists what changed between two tables, and whether it is more than noise.

mod columns;
mod fail_on;

use std::path::{Path, PathBuf};

use self::{
    columns::{check_directions, columns, columns_of_commands, other_sources},
    fail_on::{Reason, ReasonGate, reason},
};
use super::{
    RESULTS, Status, Stop,
    gates::{UndecidedGate, surer},
    json_option::JsonFlag,
    note, page_style, print, print_json, rerun,
    run_and_trial::refuse_trial,
    runs::name_of_earlier,
    sources::{TableSource, source},
};
use crate::{
    output::markdown,
    report::compare::{
        ComparisonPage, Comparisons, Fact, MOST_TREATED, Options, Reproduction, RowFact,
        SplitTable, Treatment, Verdict, between, compare, facts, has_data_by_name, has_match,
        is_treatable, keys_in_common, names_setting, tell_machines_apart,
    },
};
use kiln_core::units::{listed, without_controls};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(super) struct Args {
    /// A run's folder, an experiment's folder (its newest run), a trials.csv, or one of these in a
    /// git revision: `HEAD~1:results/x/latest`.
    base: String,
    /// The run to compare with BASE.
    new: Option<String>,
    /// Compare the values of this axis within the one run BASE, block by block: each further value
    /// against the first.
    #[arg(long, value_name = "AXIS", conflicts_with_all = ["new", "rerun", "by"])]
    between: Option<String>,
    /// The value of the axis that the others are compared with.
    #[arg(
        long = "base",
        value_name = "VALUE",
        requires = "between",
        id = "base_value"
    )]
    base_value: Option<String>,
    /// Compare this column of `trials.csv` too, and which direction is better: `--metric
    /// mean_power_watts:low`. Of a run of commands, by default the metrics that say `better`.
    #[arg(long, value_name = "NAME[:high|low]", value_delimiter = ',')]
    metric: Vec<String>,
    #[command(flatten)]
    asked: CompareOptions,
    #[command(flatten)]
    again: rerun::Args,
}

/// Options of a comparison and of its exit status.
#[derive(clap::Args)]
pub(super) struct CompareOptions {
    /// Match rows by these axes or columns instead of by trial id:
    /// `--by train.batch_size,data.num_workers`.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    by: Vec<String>,
    /// Columns or settings that the comparison is about, in which rows may differ: `--across
    /// driver,train.precision`. A gate asks for them.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',', value_parser = across)]
    across: Vec<Across>,
    /// Exit with 1 if one of these verdicts occurs, and with 4 if these runs cannot decide it:
    /// `--fail-on slower,worse-loss`.
    #[arg(long, value_name = "VERDICT,…", value_delimiter = ',', value_parser = reason)]
    fail_on: Vec<Reason>,
    /// Exit status if the runs do not decide a gate of `--fail-on`, or whether a run is reproduced.
    #[arg(long, value_enum, default_value_t = UndecidedGate::Exit4, value_name = "WHAT")]
    cannot_tell: UndecidedGate,
    /// Exclude trials that were disturbed: throttled, other processes on the device, memory errors,
    /// a busy host.
    #[arg(long)]
    clean: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = CompareFormat::Text)]
    format: CompareFormat,
    #[command(flatten)]
    json: JsonFlag,
}

/// A word of `--across`.
#[derive(Clone, Debug)]
enum Across {
    Column(RowFact),
    Setting(String),
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CompareFormat {
    /// For a terminal.
    Text,
    /// For a pull request.
    Markdown,
    /// A line per point and metric.
    Csv,
    /// For programs: one object.
    Json,
}

fn across(text: &str) -> Result<Across, String> {
    let names: Vec<&str> = RowFact::ALL.iter().map(|field| field.name()).collect();
    let column = RowFact::ALL.into_iter().find(|field| field.name() == text);
    match column {
        Some(column) => Ok(Across::Column(column)),
        None if is_treatable(text) => Ok(Across::Setting(text.to_owned())),
        None => Err(format!(
            "`{text}` is neither a setting, such as `train.precision`, nor a column; use one of {}",
            names.join(", ")
        )),
    }
}

impl CompareOptions {
    fn format(&self) -> CompareFormat {
        self.json.or(self.format, CompareFormat::Json)
    }

    pub(super) fn is_json(&self) -> bool {
        self.format() == CompareFormat::Json
    }

    /// Whether rows are matched by trial id instead of by values.
    pub(super) fn matches_by_id(&self) -> bool {
        self.by.is_empty()
    }

    /// The options of a comparison that looks for no treatment.
    fn options(&self) -> Options {
        let mut options = Options {
            by: self.by.clone(),
            is_clean: self.clean,
            ..Options::default()
        };
        for one in &self.across {
            match one {
                Across::Column(column) => options.across.push(*column),
                Across::Setting(key) => options.across_settings.push(key.clone()),
            }
        }
        options
    }
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    for named in std::iter::once(&args.base).chain(&args.new) {
        let instead = format!("`kiln report {named}` shows one trial");
        refuse_trial("compare", named, Path::new(RESULTS), &instead)?;
    }
    if let Some(axis) = &args.between {
        return within(&args, axis);
    }
    let Some(named) = args.new.as_deref() else {
        if args.again.rerun {
            return Err(Stop::bad_input(
                "`--rerun` needs two sides, runs or experiment files: `kiln compare --rerun BASE.yaml \
                 NEW.yaml`",
            ));
        }
        return Err(one_run(&args.base, &source(&args.base)?));
    };
    let [mut base, mut new] = match args.again.rerun {
        true => {
            let sides = rerun::Sides::of(&args.base, named, &args.again)?;
            refuse_without_match(sides.ahead(), args.asked.options())?;
            check_directions(&args.metric, &sides.ahead())?;
            sides.run()?
        }
        false => [source(&args.base)?, source(named)?],
    };
    [&base, &new]
        .into_iter()
        .for_each(TableSource::tell_several_programs);
    tell_machines_apart(&mut [base.recorded_table(), new.recorded_table()]);
    let mut options = args.asked.options();
    options.columns = columns(&args.metric, &args.asked, &[&base, &new])?;
    let treatment = Treatment::between(base.subject(), new.subject());
    for key in &options.across_settings {
        if !treatment
            .settings
            .iter()
            .any(|one| names_setting(key, &one.key))
        {
            note(&format!(
                "note: `--across {key}`: it is not a setting in which these runs are known to differ"
            ));
        }
    }
    options.is_other_mean = treatment.has_other_mean();
    options.treatment = Some(treatment);
    options.is_one_record = are_one_run(&base, &new);
    // Keys that were set for one side are what the comparison is about.
    options
        .across_settings
        .extend(args.again.keys_of_one_side());
    options.other_sources = other_sources([&base, &new], &options.across_settings);
    let status = judge(
        &base,
        &new,
        &options,
        &args.asked,
        None,
        |page, conclusion| show(page, args.asked.format(), conclusion),
    )?;
    if args.asked.format() == CompareFormat::Text {
        print(&short_tables(&base, &new).unwrap_or_default())?;
    }
    Ok(status)
}

/// Whether the records of both sides are of one run; `None` where one has no record. A run that kept
/// trials of another has another number.
fn are_one_run(base: &TableSource, new: &TableSource) -> Option<bool> {
    let (base, new) = (base.run.as_ref()?, new.run.as_ref()?);
    let is_one = base.experiment == new.experiment
        && base.number == new.number
        && base.kept_from == new.kept_from;
    Some(is_one)
}

/// Stops before a long run if no point of it could be compared. The device, and whether data under
/// two paths is the same, is known only afterwards.
fn refuse_without_match([base, new]: [&TableSource; 2], mut options: Options) -> Result<(), Stop> {
    let treatment = Treatment::between(base.subject(), new.subject());
    if treatment.has_data_path() || options.by.iter().any(|key| key == "device_name") {
        return Ok(());
    }
    options.treatment = Some(treatment);
    match has_match(&base.table, &new.table, &options).map_err(Stop::bad_input)? {
        true => Ok(()),
        false => Err(nothing_in_common(base, new, &options)),
    }
}

/// Where the tables with a row per point are, if both runs have one.
fn short_tables(base: &TableSource, new: &TableSource) -> Option<String> {
    let shown = |table: PathBuf| without_controls(&table.display().to_string());
    Some(format!(
        "\nA row per point: {} and {}\n",
        shown(base.summary_table()?),
        shown(new.summary_table()?)
    ))
}

/// One run was named, and no axis of it.
fn one_run(named: &str, run: &TableSource) -> Stop {
    let earlier = name_of_earlier(named, Path::new(RESULTS));
    let earlier = earlier.map(|earlier| format!(": `kiln compare {earlier} {named}`"));
    let axes = &run.table.axes;
    let axis = axes.first().map_or("AXIS", String::as_str);
    let within = match axes.len() {
        0 => String::new(),
        _ => format!(
            ", or the axis whose values are compared within this one: `--between {axis}`{}",
            match axes.get(1..) {
                Some(others) if !others.is_empty() => format!(" (or {})", listed(others, ", ")),
                _ => String::new(),
            }
        ),
    };
    Stop::bad_input(format!(
        "{}: name the run to compare with{}{within}",
        run.name,
        earlier.unwrap_or_default()
    ))
}

/// Compares the values of an axis within one run.
fn within(args: &Args, axis: &str) -> Result<Status, Stop> {
    let mut run = source(&args.base)?;
    run.tell_several_programs();
    tell_machines_apart(&mut [run.recorded_table()]);
    let mut options = args.asked.options();
    options.columns = columns(&args.metric, &args.asked, &[&run])?;
    let fault = |message: String| Stop::bad_input(format!("{}: {message}", run.name));
    let split = SplitTable::of(run.subject(), axis, args.base_value.as_deref()).map_err(fault)?;
    let found = between(&split, &options).map_err(fault)?;
    let page = ComparisonPage {
        base: &run.name,
        new: &run.name,
        facts: None,
        can_rerun: true,
        has_data_by_name: false,
        found: &found,
    };
    let conclusion = Conclusion::of(&found, &args.asked, None);
    show(&page, args.asked.format(), &conclusion)?;
    Ok(status(&found, &args.asked, &conclusion))
}

/// Conclusion of a comparison: a sentence for the end of the page, and an answer for the exit
/// status.
pub(super) type Closing = fn(&Comparisons) -> Reproduction;

/// Prints a comparison with the record of a run, in the format asked for, or as one JSON event for
/// programs that follow a run. The status is 1 if a gate fails or nothing could be compared, and 4 if a
/// gate cannot be decided.
pub(super) fn compare_and_conclude(
    base: &TableSource,
    new: &TableSource,
    asked: &CompareOptions,
    closing: Closing,
    is_event: bool,
) -> Result<Status, Stop> {
    judge(
        base,
        new,
        &options_of_reproduction(base, new, asked),
        asked,
        Some(closing),
        |page, conclusion| match is_event {
            true => {
                let mut event = whole(page, conclusion);
                event["event"] = "comparison".into();
                print_json(&format!("{event}\n"))
            }
            false => show(page, asked.format(), conclusion),
        },
    )
}

fn options_of_reproduction(
    base: &TableSource,
    new: &TableSource,
    asked: &CompareOptions,
) -> Options {
    Options {
        columns: columns_of_commands(&[base, new]),
        other_sources: other_sources([base, new], &[]),
        is_other_mean: Treatment::between(base.subject(), new.subject()).has_other_mean(),
        ..asked.options()
    }
}

/// The answers below a comparison.
struct Conclusion {
    gates: Vec<ReasonGate>,
    closing: Option<Reproduction>,
}

impl Conclusion {
    fn of(found: &Comparisons, asked: &CompareOptions, closing: Option<Closing>) -> Self {
        let gates = asked.fail_on.iter().map(|reason| reason.answer(found));
        Self {
            gates: gates.collect(),
            closing: closing.map(|closing| closing(found)),
        }
    }
}

/// The JSON form of a comparison with its answers.
fn whole(page: &ComparisonPage<'_>, conclusion: &Conclusion) -> Value {
    let mut whole = page.value();
    whole["gates"] = conclusion
        .gates
        .iter()
        .map(|ReasonGate { spelled, gate, .. }| {
            json!({"gate": spelled, "answer": gate.answer(), "points": gate.points()})
        })
        .collect();
    if let Some(closing) = &conclusion.closing {
        whole["closing"] = closing.sentence.as_str().into();
        whole["answer"] = closing.gate.answer().into();
    }
    whole
}

fn show(
    page: &ComparisonPage<'_>,
    format: CompareFormat,
    conclusion: &Conclusion,
) -> Result<(), Stop> {
    let closing = |escape: fn(&str) -> String| {
        let closing = conclusion.closing.as_ref();
        closing
            .map(|closing| format!("\n{}\n", escape(&closing.sentence)))
            .unwrap_or_default()
    };
    match format {
        CompareFormat::Text => print(&(page.text(page_style()) + &closing(without_controls))),
        CompareFormat::Markdown => print(&(page.markdown() + &closing(markdown::sentence))),
        CompareFormat::Csv => print(&page.csv()),
        CompareFormat::Json => print_json(&format!("{:#}\n", whole(page, conclusion))),
    }
}

fn judge(
    base: &TableSource,
    new: &TableSource,
    options: &Options,
    asked: &CompareOptions,
    closing: Option<Closing>,
    show: impl FnOnce(&ComparisonPage<'_>, &Conclusion) -> Result<(), Stop>,
) -> Result<Status, Stop> {
    let found = compare(&base.table, &new.table, options).map_err(Stop::bad_input)?;
    if found.is_empty() {
        return Err(nothing_in_common(base, new, options));
    }
    let record = record(base, new);
    let conclusion = Conclusion::of(&found, asked, closing);
    show(
        &ComparisonPage {
            base: &base.name,
            new: &new.name,
            facts: record.as_deref(),
            can_rerun: [base, new].into_iter().all(can_rerun),
            has_data_by_name: [base, new]
                .into_iter()
                .filter_map(|side| side.run.as_ref())
                .any(has_data_by_name),
            found: &found,
        },
        &conclusion,
    )?;
    let of_closing = conclusion
        .closing
        .as_ref()
        .map_or(Status::Success, |closing| {
            asked.cannot_tell.status(&closing.gate)
        });
    Ok(surer(status(&found, asked, &conclusion), of_closing))
}

/// Whether `kiln compare --rerun` runs a side again: it has its experiment, which is no search.
fn can_rerun(side: &TableSource) -> bool {
    side.experiment_value()
        .is_some_and(|experiment| experiment["sweep"]["search"].is_null())
}

/// Returns the differences between the records of both runs.
fn record(base: &TableSource, new: &TableSource) -> Option<Vec<Fact>> {
    let experiments = [base.experiment_value(), new.experiment_value()];
    (base.run.is_some() && new.run.is_some()).then(|| {
        let unknown = Fact::of_unknown_experiment(experiments.each_ref().map(Option::is_some));
        let packages = [base, new].map(|side| side.packages.as_deref());
        let found = facts([base.run.as_ref(), new.run.as_ref()], experiments, packages);
        unknown.into_iter().chain(found).collect()
    })
}

/// Fails if nothing could be compared or a gate fails; prints the result of each gate. Whether a run
/// is reproduced has an answer without comparisons, where the rows are comparable.
fn status(found: &Comparisons, asked: &CompareOptions, conclusion: &Conclusion) -> Status {
    let is_refused = found.pairs.iter().all(|pair| {
        pair.comparisons
            .iter()
            .all(|one| one.verdict == Verdict::NotComparable)
    });
    let has_answer =
        conclusion.closing.is_some() && found.pairs.iter().all(|pair| pair.unlike.is_empty());
    let status = if is_refused && asked.fail_on.is_empty() && !has_answer {
        Status::Failed
    } else {
        Status::Success
    };
    let gates = conclusion.gates.iter();
    let gates = gates.map(|one| (one.spelled.as_str(), &one.gate, one.sentence()));
    surer(status, asked.cannot_tell.conclude(gates))
}

fn nothing_in_common(base: &TableSource, new: &TableSource, options: &Options) -> Stop {
    let runs = format!("{} and {}", base.name, new.name);
    if let Some(empty) = [base, new].iter().find(|side| side.table.rows.is_empty()) {
        return Stop::bad_input(format!(
            "{runs}: no trial of {} has ended yet; wait for it if it is running, else run it with `kiln run`",
            empty.name
        ));
    }
    let keys = keys_in_common(&base.table, &new.table);
    Stop::bad_input(format!("{runs}: {}", why_nothing(options, &keys)))
}

/// `keys` match some rows of both runs when they are given with `--by`.
fn why_nothing(options: &Options, keys: &[String]) -> String {
    let by = match keys {
        [] => "no single axis or column of settings matches their rows with `--by`".to_owned(),
        [key, ..] => format!("match rows by values with `--by {key}`"),
    };
    if !options.by.is_empty() {
        return format!("no value of these keys is in both runs; {by}");
    }
    match &options.treatment {
        Some(treatment) if treatment.is_few() => format!(
            "no point of one run has the values of a point of the other on every axis; {by}"
        ),
        Some(treatment) if treatment.settings.len() > MOST_TREATED => {
            let keys = treatment.settings.iter().map(|one| one.key.clone());
            let keys: Vec<String> = keys.collect();
            format!(
                "no trial id is in both runs: they differ in {} settings ({}), too many to be the \
                 treatment of one comparison; `kiln diff` lists them; {by}",
                keys.len(),
                listed(&keys, ", ")
            )
        }
        _ => format!(
            "no trial id is in both runs: a setting differs in all trials (`kiln diff` lists what \
             differs); {by}"
        ),
    }
}
