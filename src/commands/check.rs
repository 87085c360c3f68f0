//! `kiln check`: lists every problem of every file at once.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use kiln_core::{
    spec::{self, Experiment, Problem, SearchedKeys},
    units::{counted, few},
};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Status, Stop,
    experiment_plan::{FactFinder, Planned, load_file, plan_loaded, prober, request},
    json_option::JsonFormat,
    mistake::{in_texts, warn_of},
    print_json, print_line, secrets, warning,
};

/// Axes that a summary names; it is one line.
const MOST_AXES: usize = 6;

/// Version of the format of `--json`.
const CHECK_JSON: u32 = 1;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Experiment files; a file in a folder named `base` is checked as a fragment that others
    /// extend.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Set a key of the experiment: `train.batch_size=8`. The value is YAML. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print JSON, one object per file and line, the problems included.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    format: JsonFormat,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let is_json = args.json || args.format.is_json();
    let mut status = Status::Success;
    for file in args.files {
        let checked = check(&file, &args.set, is_json);
        if let Err(stop) = &checked {
            status = stop.status;
        }
        match checked {
            checked if is_json => print_json(&format!("{}\n", in_json(&file, &checked)))?,
            Ok(checked) => print_line(&format!("{}: ok, {}", file.display(), checked.summary))?,
            Err(stop) => stop.print(),
        }
    }
    Ok(status)
}

/// A file without problems.
struct Checked {
    summary: String,
    warnings: Vec<String>,
}

impl Checked {
    fn without_warnings(summary: String) -> Self {
        Self {
            summary,
            warnings: Vec::new(),
        }
    }
}

/// A problem, for programs.
#[derive(Serialize)]
struct ProblemEntry<'a> {
    /// The file, or a layer without lines, such as `--set train.steps=0`.
    source: &'a str,
    line: Option<usize>,
    column: Option<usize>,
    /// The dotted key; empty if the problem does not belong to one.
    key: &'a str,
    message: &'a str,
}

impl<'a> From<&'a Problem> for ProblemEntry<'a> {
    fn from(problem: &'a Problem) -> Self {
        let position = problem.location.position;
        Self {
            source: &problem.location.source,
            line: position.map(|(line, _)| line),
            column: position.map(|(_, column)| column),
            key: &problem.key,
            message: &problem.message,
        }
    }
}

fn in_json(file: &Path, checked: &Result<Checked, Stop>) -> Value {
    let name = file.display().to_string();
    let warnings: &[String] = match checked {
        Ok(checked) => &checked.warnings,
        Err(_) => &[],
    };
    let problems: Vec<ProblemEntry<'_>> = match checked {
        Ok(_) => Vec::new(),
        Err(stop) if stop.problems.is_empty() => vec![ProblemEntry {
            source: &name,
            line: None,
            column: None,
            key: "",
            message: &stop.message,
        }],
        Err(stop) => stop.problems.iter().map(ProblemEntry::from).collect(),
    };
    json!({
        "kiln_check": CHECK_JSON,
        "file": &name,
        "ok": checked.is_ok(),
        "summary": checked.as_ref().ok().map(|checked| &checked.summary),
        "problems": problems,
        "warnings": warnings,
    })
}

/// Warnings are printed here, unless they are for programs.
fn check(file: &Path, set: &[String], is_json: bool) -> Result<Checked, Stop> {
    let in_base = file
        .parent()
        .and_then(|folder| folder.file_name())
        .is_some_and(|name| name == "base");
    if in_base && set.is_empty() {
        let checked = spec::check_fragment(&request(file.to_owned(), set)).map_err(Stop::problems);
        let summary = "a fragment for other files to extend".to_owned();
        return checked.map(|()| Checked::without_warnings(summary));
    }
    let loaded = load_file(file.to_owned(), set)?;
    if let Some(search) = &loaded.experiment.sweep.search {
        // The machine does not matter here: it only limits how far a search may go.
        let finder = FactFinder::from_environment();
        prober(&loaded, &finder, &|data| finder.find(data), 1, 1)?;
        let mistakes = secrets::mistakes(&loaded);
        let warnings = in_texts(mistakes.clone());
        if !is_json {
            warn_of(mistakes);
        }
        let experiment = &loaded.experiment;
        let keys = SearchedKeys::of(&experiment.model);
        let keys = search.keys(&keys).into_iter().map(str::to_owned);
        let summary = format!(
            "a search for `kiln tune`: {} of {}, over {}",
            search.kind(),
            kinds(experiment),
            few(&keys.collect::<Vec<_>>(), MOST_AXES)
        );
        return Ok(Checked { summary, warnings });
    }
    let planned = plan_loaded(loaded)?;
    if !planned.unfit_weights.is_empty() {
        return Err(Stop::of_lines(Status::BadInput, &planned.unfit_weights));
    }
    let mut warnings = planned.warnings();
    warnings.extend(planned.malformed.iter().cloned());
    if !is_json {
        planned.warn();
        for line in &planned.malformed {
            warning(&format!("{}: warning: {line}", file.display()));
        }
    }
    Ok(Checked {
        summary: describe(&planned),
        warnings,
    })
}

/// `gpt on text`; a command has no data.
fn kinds(experiment: &Experiment) -> String {
    let (model, data) = (experiment.model.kind(), experiment.data.kind());
    match data {
        "none" => model.to_owned(),
        _ => format!("{model} on {data}"),
    }
}

/// The number of different values of an axis: points that were drawn may share one.
fn distinct(values: &Value) -> usize {
    let all = values.as_array().into_iter().flatten();
    all.map(ToString::to_string).collect::<HashSet<_>>().len()
}

/// A short summary of the experiment.
fn describe(planned: &Planned) -> String {
    let experiment = &planned.loaded.experiment;
    let sweep = &experiment.sweep;
    let derived = sweep.derive.keys().map(|key| format!("{key} (derived)"));
    let axes: Vec<String> = sweep
        .grid
        .iter()
        .chain(&sweep.zip)
        .map(|(key, values)| format!("{key} ({})", distinct(values)))
        .chain(derived)
        .collect();
    let points = match (planned.plan.points, planned.plan.repeats) {
        (1, 1) => "1 trial".to_owned(),
        (points, 1) => counted(points as usize, "point"),
        (points, repeats) => format!("{} × {repeats} repeats", counted(points as usize, "point")),
    };
    let kinds = format!("{points}: {}", kinds(experiment));
    if axes.is_empty() {
        kinds
    } else {
        format!("{kinds}, over {}", few(&axes, MOST_AXES))
    }
}
