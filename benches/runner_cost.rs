//! Cost of the runner: start-up, the child's way to its first step, the parent beside a training
//! child, planning and resuming 10,000 trials, and programs as trials. Drives the built programs; writes `runner_cost.csv`
//! beside them and prints it. `make bench`.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{
    error::Error,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One line of the table: a measure over several runs, and what is aimed for.
struct Measure {
    measure: &'static str,
    unit: &'static str,
    aim: f64,
    values: Vec<f64>,
}

fn main() -> Result<()> {
    let kiln = PathBuf::from(env!("CARGO_BIN_EXE_kiln"));
    let work = tempfile::tempdir()?;
    let measures = [
        help_seconds(&kiln)?,
        first_step_seconds(&kiln, work.path())?,
        plan_seconds(&kiln, work.path())?,
        resume_scan_seconds(&kiln, work.path())?,
    ];
    let beside = parent_beside_training(&kiln, work.path())?;
    let programs = programs_as_trials(&kiln, work.path())?;
    write_table(&kiln, measures.iter().chain(&beside).chain(&programs))
}

fn write_table<'a>(kiln: &Path, measures: impl Iterator<Item = &'a Measure>) -> Result<()> {
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
        let mut values = measure.values.clone();
        values.sort_by(f64::total_cmp);
        let number = |value: f64| format!("{value:.4}");
        let (first, middle, last) = (
            values[0],
            values[values.len() / 2],
            values[values.len() - 1],
        );
        table.write_record([
            "bench-runner/1",
            measure.measure,
            measure.unit,
            &number(measure.aim),
            &number(middle),
            &number(first),
            &number(last),
            &values.len().to_string(),
        ])?;
    }
    let text = String::from_utf8(table.into_inner()?)?;
    let path = kiln.with_file_name("runner_cost.csv");
    fs::write(&path, &text)?;
    println!("{text}\nwritten to {}", path.display());
    Ok(())
}

fn run_to_end(command: &mut Command) -> Result<f64> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let seconds = started.elapsed().as_secs_f64();
    if !output.status.success() {
        return Err(format!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(seconds)
}

fn help_seconds(kiln: &Path) -> Result<Measure> {
    let values = (0..21)
        .map(|_| run_to_end(Command::new(kiln).arg("--help")))
        .collect::<Result<_>>()?;
    Ok(Measure {
        measure: "kiln_help",
        unit: "seconds",
        aim: 0.020,
        values,
    })
}

fn experiment(folder: &Path, name: &str, rest: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.yaml"));
    fs::write(&path, format!("kiln: 1\nname: {name}\n{rest}"))?;
    Ok(path)
}

fn run_command(kiln: &Path, file: &Path, results: &Path) -> Command {
    let mut command = Command::new(kiln);
    command
        .arg("run")
        .arg(file)
        .arg("--results")
        .arg(results)
        .args(["--device", "cpu"]);
    command
}

/// From starting `kiln-trial` to the message after its first step, reading the loss of every step.
fn first_step_seconds(kiln: &Path, work: &Path) -> Result<Measure> {
    let file = experiment(
        work,
        "first-step",
        "model: {kind: gpt, d_model: 64, num_heads: 2, seq_len: 64}\ndata: {kind: generated}\n\
         train: {steps: 3, batch_size: 2}\nmeasure: {warmup_steps: 0, warmup_seconds: 0, \
         log_every: 1}\n",
    )?;
    let results = work.join("first-step-results");
    run_to_end(run_command(kiln, &file, &results).args(["--fresh", "--quiet"]))?;
    let trial_file = find_trial_file(&results.join("first-step/latest/trials"))?;
    let mut values = Vec::new();
    for run in 0..7 {
        let copy = attempt_of(&trial_file, &work.join(format!("attempt-{run}")))?;
        values.push(seconds_to_first_progress(
            &kiln.with_file_name("kiln-trial"),
            &copy,
        )?);
    }
    Ok(Measure {
        measure: "child_start_to_first_step",
        unit: "seconds",
        aim: 1.0,
        values,
    })
}

fn find_trial_file(trials: &Path) -> Result<PathBuf> {
    let trial = fs::read_dir(trials)?
        .next()
        .ok_or("the run left no trial folder")??
        .path();
    for candidate in [trial.join("trial.yaml"), trial.join("1/trial.yaml")] {
        if candidate.exists() {
            return Ok(candidate);
        }
    }
    Err(format!("{} holds no trial.yaml", trial.display()).into())
}

/// The file of an attempt like that of `trial_file`, in a folder of its own.
fn attempt_of(trial_file: &Path, folder: &Path) -> Result<PathBuf> {
    let mut told: serde_yaml::Value = serde_yaml::from_str(&fs::read_to_string(trial_file)?)?;
    fs::create_dir_all(folder)?;
    told["folder"] = folder.to_string_lossy().into_owned().into();
    let copy = folder.join("trial.yaml");
    fs::write(&copy, serde_yaml::to_string(&told)?)?;
    Ok(copy)
}

/// The cost of a program as a trial: the delay until it begins, the time per trial beside the
/// program's own, and the reading of its output.
fn programs_as_trials(kiln: &Path, work: &Path) -> Result<[Measure; 3]> {
    const TRIALS: usize = 50;
    const LINES: usize = 1_000_000;
    let mut begins = Vec::new();
    let date = command_trial(kiln, work, "begins", "[date, '+%s.%N']", "{}")?;
    for run in 0..21 {
        let file = attempt_of(&date, &work.join(format!("begins-{run}")))?;
        let started = since_epoch();
        run_to_end(Command::new(kiln).arg("relay").arg(&file))?;
        let told = fs::read_to_string(file.with_file_name("stdout.txt"))?;
        begins.push(told.trim().parse::<f64>()? - started);
    }
    let file = experiment(
        work,
        "trivial",
        &format!("model: {{kind: command, argv: ['true']}}\nsweep: {{repeats: {TRIALS}}}\n"),
    )?;
    let mut trials = Vec::new();
    for run in 0..3 {
        let results = work.join(format!("trivial-{run}"));
        let seconds = run_to_end(run_command(kiln, &file, &results).arg("--quiet"))?;
        trials.push(seconds / TRIALS as f64);
    }
    let metrics = "{last: {line: '^([0-9]*7)$'}}";
    let argv = format!("[seq, '1', '{LINES}']");
    let lines = command_trial(kiln, work, "lines", &argv, metrics)?;
    let mut reading = Vec::new();
    for run in 0..3 {
        let file = attempt_of(&lines, &work.join(format!("lines-{run}")))?;
        reading.push(run_to_end(Command::new(kiln).arg("relay").arg(&file))?);
    }
    let seconds = |measure, aim, values| Measure {
        measure,
        unit: "seconds",
        aim,
        values,
    };
    Ok([
        seconds("relay_start_to_program", 0.02, begins),
        seconds("run_per_trial_of_true", 0.05, trials),
        seconds("relay_million_lines_one_pattern", 1.0, reading),
    ])
}

/// The file of a trial of this program.
fn command_trial(
    kiln: &Path,
    work: &Path,
    name: &str,
    argv: &str,
    metrics: &str,
) -> Result<PathBuf> {
    let file = experiment(
        work,
        name,
        &format!("model: {{kind: command, argv: {argv}, metrics: {metrics}}}\n"),
    )?;
    let results = work.join(format!("{name}-results"));
    run_to_end(run_command(kiln, &file, &results).args(["--fresh", "--quiet"]))?;
    find_trial_file(&results.join(name).join("latest/trials"))
}

fn since_epoch() -> f64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |passed| passed.as_secs_f64())
}

fn seconds_to_first_progress(program: &Path, trial_file: &Path) -> Result<f64> {
    let started = Instant::now();
    let mut child = Command::new(program)
        .arg(trial_file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut seconds = None;
    for line in BufReader::new(child.stdout.take().ok_or("no standard output")?).lines() {
        if seconds.is_none() && line?.contains("\"event\":\"progress\"") {
            seconds = Some(started.elapsed().as_secs_f64());
        }
    }
    child.wait()?;
    seconds.ok_or_else(|| "the child told no progress".into())
}

fn ten_thousand(work: &Path) -> Result<PathBuf> {
    let list = (1..=100)
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(", ");
    experiment(
        work,
        "ten-thousand",
        &format!(
            "model: {{kind: mlp}}\ndata: {{kind: generated}}\ntrain: {{steps: 1}}\nsweep:\n  \
             grid:\n    train.batch_size: [{list}]\n    train.seed: [{list}]\n"
        ),
    )
}

fn plan_seconds(kiln: &Path, work: &Path) -> Result<Measure> {
    let file = ten_thousand(work)?;
    let values = (0..5)
        .map(|_| run_to_end(Command::new(kiln).arg("plan").arg(&file).arg("--json")))
        .collect::<Result<_>>()?;
    Ok(Measure {
        measure: "plan_10000_trials",
        unit: "seconds",
        aim: 1.0,
        values,
    })
}

/// Runs one of 10,000 trials for real, writes the other rows in its likeness, then asks what a
/// resume would do.
fn resume_scan_seconds(kiln: &Path, work: &Path) -> Result<Measure> {
    let file = ten_thousand(work)?;
    let results = work.join("ten-thousand-results");
    let plan = Command::new(kiln)
        .arg("plan")
        .arg(&file)
        .arg("--json")
        .output()?;
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout)?;
    let trials = plan["trials"]
        .as_array()
        .ok_or("the plan lists no trials")?;
    let first = trials[0]["id"].as_str().ok_or("a trial has no id")?;
    run_to_end(run_command(kiln, &file, &results).args(["--fresh", "--quiet", "--only", first]))?;
    multiply_rows(
        &results.join("ten-thousand/latest/trials.csv"),
        &trials[1..],
    )?;
    let values = (0..5)
        .map(|_| run_to_end(run_command(kiln, &file, &results).arg("--dry-run")))
        .collect::<Result<_>>()?;
    Ok(Measure {
        measure: "resume_scan_10000_trials",
        unit: "seconds",
        aim: 1.0,
        values,
    })
}

fn multiply_rows(table: &Path, trials: &[serde_json::Value]) -> Result<()> {
    let mut reader = csv::Reader::from_path(table)?;
    let header = reader.headers()?.clone();
    let template = reader.records().next().ok_or("the run left no row")??;
    let column = |name: &str| {
        header
            .iter()
            .position(|title| title == name)
            .ok_or(format!("{} has no column {name}", table.display()))
    };
    let (id, number) = (column("trial")?, column("number")?);
    let mut writer = csv::Writer::from_writer(fs::OpenOptions::new().append(true).open(table)?);
    for trial in trials {
        let mut row: Vec<String> = template.iter().map(str::to_owned).collect();
        row[id] = trial["id"].as_str().ok_or("a trial has no id")?.to_owned();
        row[number] = trial["number"].to_string();
        writer.write_record(&row)?;
    }
    writer.flush()?;
    Ok(())
}

/// CPU share (of one core) and peak resident memory of `kiln run` while its trial trains.
fn parent_beside_training(kiln: &Path, work: &Path) -> Result<[Measure; 2]> {
    let file = experiment(
        work,
        "beside",
        "model: {kind: gpt, d_model: 64, num_heads: 2, seq_len: 64}\ndata: {kind: generated}\n\
         train: {steps: 1000000, batch_size: 2}\n",
    )?;
    let mut parent = run_command(kiln, &file, &work.join("beside-results"))
        .arg("--fresh")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let measured = watch_parent(&parent);
    end(&mut parent)?;
    let (shares, peak_megabytes) = measured?;
    Ok([
        Measure {
            measure: "parent_cpu_share",
            unit: "fraction of one core",
            aim: 0.01,
            values: shares,
        },
        Measure {
            measure: "parent_peak_resident",
            unit: "MB",
            aim: 50.0,
            values: vec![peak_megabytes],
        },
    ])
}

fn watch_parent(parent: &Child) -> Result<(Vec<f64>, f64)> {
    const WINDOW: Duration = Duration::from_secs(5);
    thread::sleep(Duration::from_secs(4));
    let mut shares = Vec::new();
    for _ in 0..3 {
        let before = cpu_seconds(parent.id())?;
        let started = Instant::now();
        thread::sleep(WINDOW);
        shares.push((cpu_seconds(parent.id())? - before) / started.elapsed().as_secs_f64());
    }
    let status = fs::read_to_string(format!("/proc/{}/status", parent.id()))?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no VmHWM")?;
    let kibibytes: f64 = peak.trim().trim_end_matches(" kB").parse()?;
    Ok((shares, kibibytes * 1024.0 / 1e6))
}

/// User and system time of a process so far, children left out.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(") ").ok_or("no name in stat")?.1;
    let fields: Vec<&str> = after_name.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn end(parent: &mut Child) -> Result<()> {
    let pid = rustix::process::Pid::from_child(parent);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    parent.wait()?;
    Ok(())
}
