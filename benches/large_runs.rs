//! Time and memory of very large runs: 10,000 trials are planned, reported and compared. Prints a
//! CSV of seconds beside their limits, keeps it as `large_runs.csv` beside the programs, and ends
//! with status 1 where a median is over its limit. On a quiet machine:
//! `cargo bench -p kiln --bench large_runs`.
//!
//! The limits are wide: work that grows with the square of the number of trials takes many times as
//! long (the report once took 20 s).
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use kiln_core::{
    plan,
    spec::{self, Train, apply_point},
};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TRIALS: u64 = 10_000;

/// How often each is measured.
const ROUNDS: usize = 5;

/// A run whose row stands for all others: it has two axes.
const TEMPLATE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/results/quickstart-2core-epyc/latest/trials.csv"
);

/// One line of the table.
struct Measure {
    measure: &'static str,
    /// Seconds.
    limit: f64,
    seconds: Vec<f64>,
}

impl Measure {
    fn of(measure: &'static str, limit: f64, mut work: impl FnMut() -> Result<()>) -> Result<Self> {
        let mut seconds = Vec::new();
        for _ in 0..ROUNDS {
            let started = Instant::now();
            work()?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Self {
            measure,
            limit,
            seconds,
        })
    }

    fn median(&self) -> f64 {
        self.seconds[ROUNDS / 2]
    }
}

fn main() -> Result<ExitCode> {
    let work = tempfile::tempdir()?;
    let measures = [
        plan_command(work.path())?,
        expansion(work.path())?,
        points()?,
    ]
    .into_iter()
    .chain(reports(work.path())?)
    .collect::<Vec<_>>();
    write_table(&measures)?;
    let over: Vec<&Measure> = measures
        .iter()
        .filter(|measure| measure.median() > measure.limit)
        .collect();
    for measure in &over {
        println!(
            "{} takes {:.2} s; its limit is {} s",
            measure.measure,
            measure.median(),
            measure.limit
        );
    }
    Ok(if over.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `kiln` in this folder, to its end.
fn kiln(folder: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "kiln {arguments:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

fn numbers(count: u64) -> String {
    (1..=count)
        .map(|number| number.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

fn plan_command(work: &Path) -> Result<Measure> {
    let hundred = numbers(100);
    let text = format!(
        "{{kiln: 1, name: x, model: {{kind: gpt}}, data: {{kind: generated}}, train: {{steps: 5}},
        sweep: {{grid: {{train.batch_size: [{hundred}], data.num_workers: [{hundred}]}}}}}}"
    );
    fs::write(work.join("x.yaml"), text)?;
    Measure::of("plan_command", 2.0, || kiln(work, &["plan", "x.yaml"]))
}

/// The plan alone, with an axis that resets a map to another kind's defaults.
fn expansion(work: &Path) -> Result<Measure> {
    let fifty = numbers(50);
    let text = format!(
        "{{kiln: 1, name: x, model: {{kind: gpt}}, data: {{kind: generated}}, train: {{steps: 5}},
        sweep: {{repeats: 2, grid: {{train.batch_size: [{fifty}], data.num_workers: [{fifty}],
        train.optimizer.kind: [sgd, adamw]}}}}}}"
    );
    let file = work.join("kinds.yaml");
    fs::write(&file, text)?;
    let loaded = spec::load(&spec::ExperimentRequest {
        file,
        ..spec::ExperimentRequest::default()
    })
    .map_err(|problems| problems.to_string())?;
    Measure::of("expansion", 1.0, || {
        let plan = plan::expand(&loaded.experiment, &|_| None)
            .map_err(|problems| format!("{problems:?}"))?;
        match plan.trials.len() as u64 {
            TRIALS => Ok(()),
            other => Err(format!("the plan has {other} trials").into()),
        }
    })
}

/// The values of each point put into the resolved sections.
fn points() -> Result<Measure> {
    let sections = json!({
        "model": {"kind": "gpt", "d_model": 512, "num_layers": 2},
        "data": {"kind": "generated", "num_workers": 4},
        "train": serde_json::to_value(Train { epochs: Some(5), ..Train::default() })?,
        "run": {"engine": "libtorch", "devices": "auto"},
    });
    let kind = json!("sgd");
    Measure::of("points", 1.0, || {
        for batch_size in 1..=TRIALS {
            let (mut point, size): (Value, Value) = (sections.clone(), batch_size.into());
            apply_point(
                &mut point,
                [("train.batch_size", &size), ("train.optimizer.kind", &kind)],
            );
            if point["train"]["batch_size"] != size || point["train"]["optimizer"]["kind"] != kind {
                return Err(format!("the point became {point}").into());
            }
        }
        Ok(())
    })
}

fn reports(work: &Path) -> Result<[Measure; 3]> {
    for (name, runs, factor) in [
        ("points.csv", 1, 1.0),
        ("base.csv", 5, 1.0),
        ("new.csv", 5, 0.9),
    ] {
        write_trials(&work.join(name), runs, factor)?;
    }
    Ok([
        Measure::of("report_as_text", 2.0, || {
            kiln(work, &["report", "points.csv"])
        })?,
        Measure::of("report_as_page", 5.0, || {
            kiln(work, &["report", "points.csv", "--html", "report.html"])
        })?,
        Measure::of("comparison", 3.0, || {
            kiln(work, &["compare", "base.csv", "new.csv"])
        })?,
    ])
}

/// A table of all trials, so many runs of each point; `factor` is on the throughput.
fn write_trials(path: &Path, runs: u64, factor: f64) -> Result<()> {
    let mut reader = csv::Reader::from_path(TEMPLATE)?;
    let head = reader.headers()?.clone();
    let template = reader.records().next().ok_or("the template has no row")??;
    let place = |name: &str| {
        head.iter()
            .position(|column| column == name)
            .ok_or_else(|| format!("the template has no column {name}"))
    };
    let (id, number) = (place("trial")?, place("number")?);
    let rates = [place("samples_per_second")?, place("tokens_per_second")?];
    let batch_size = [place("train.batch_size")?, place("batch_size")?];
    let num_workers = [place("data.num_workers")?, place("num_workers")?];
    let mut writer = csv::Writer::from_path(path)?;
    writer.write_record(&head)?;
    for trial in 0..TRIALS {
        let point = trial / runs;
        let wobble = 1.0 + (trial * 7919 % 100) as f64 * 1e-4;
        let mut row: Vec<String> = template.iter().map(str::to_owned).collect();
        row[id] = format!("{trial:010x}");
        row[number] = (trial + 1).to_string();
        rates
            .iter()
            .for_each(|rate| row[*rate] = (100.0 * factor * wobble).to_string());
        for column in batch_size {
            row[column] = (point % 100 + 1).to_string();
        }
        for column in num_workers {
            row[column] = (point / 100).to_string();
        }
        writer.write_record(&row)?;
    }
    writer.flush()?;
    Ok(())
}

fn write_table(measures: &[Measure]) -> Result<()> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record([
        "kiln_table",
        "measure",
        "unit",
        "aim_below",
        "median",
        "minimum",
        "maximum",
        "runs",
    ])?;
    for measure in measures {
        let number = |value: f64| format!("{value:.4}");
        let (first, last) = (measure.seconds[0], measure.seconds[ROUNDS - 1]);
        table.write_record([
            "bench-runner/1",
            &format!("{}_of_{TRIALS}_trials", measure.measure),
            "seconds",
            &number(measure.limit),
            &number(measure.median()),
            &number(first),
            &number(last),
            &ROUNDS.to_string(),
        ])?;
    }
    let text = String::from_utf8(table.into_inner()?)?;
    let path = PathBuf::from(env!("CARGO_BIN_EXE_kiln")).with_file_name("large_runs.csv");
    fs::write(&path, &text)?;
    println!("{text}\nwritten to {}", path.display());
    Ok(())
}
