//! `kiln watch`: shows the devices' readings live, as lines, or on a terminal as one line per
//! device that is redrawn; also as a table. `kiln watch RUN` shows a run instead (`run_view`).
//!
//! It uses the sampler of a run: a driver that hangs is reported and does not block this command.

mod query;
mod run_view;
mod view;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use kiln_core::{
    record::{TableError, command_line::results_option},
    units::clock,
};
use kiln_hardware::{Absence, DeviceFacts, GpuWatchdog, Nvml, Patience, Tick, sampler::HostSeries};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    RESULTS, Status, Stop,
    machine::{named_gpus, open_nvml},
    note,
    run_and_trial::refuse_trial,
    written,
};
use crate::{
    output::terminal,
    readings::watch::{WatchRow, WatchWriter},
};
use query::{WatchQuery, queries};
use run_view::WatchedRun;
use view::View;

/// Longest wait for the list of devices.
const LIST_PATIENCE: Duration = Duration::from_secs(30);

/// Time from a first, hidden reading to the first shown one: rates and hardware counters need two
/// readings, at least 0.1 s apart.
const FIRST_PAUSE: Duration = Duration::from_millis(120);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Watch this run instead of the devices: a run's folder, an experiment's name or folder, or
    /// `latest`. Ends with the run, with q, or with Ctrl-C.
    #[arg(value_name = "RUN", conflicts_with_all = ["ids", "query", "csv", "host"])]
    run: Option<String>,
    /// With RUN: print its state once and end.
    #[arg(long, requires = "run", conflicts_with = "count")]
    once: bool,
    /// With RUN: folder of the runs.
    #[arg(long, value_name = "DIR", default_value = RESULTS, requires = "run")]
    results: PathBuf,
    /// Seconds between readings.
    #[arg(
        short = 'l',
        long = "loop",
        value_name = "SECONDS",
        default_value = "1"
    )]
    #[arg(value_parser = seconds)]
    every: Duration,
    /// Stop after this many readings.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only these GPUs: indices, UUIDs or PCI addresses, separated by commas.
    #[arg(short = 'i', long = "id", value_name = "GPU", value_delimiter = ',')]
    ids: Vec<String>,
    /// Print these properties as CSV, with nvidia-smi's names, such as
    /// timestamp,name,utilization.gpu.
    #[arg(long, visible_alias = "query-gpu", value_name = "PROPERTIES")]
    #[arg(conflicts_with_all = ["csv", "host"])]
    query: Option<String>,
    /// Format of `--query`: csv, optionally with noheader and nounits.
    #[arg(long, default_value = "csv", value_name = "WORDS", requires = "query")]
    format: String,
    /// Also write the rows to this file, or to standard output (`-`) instead of the lines.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also show the host; works without a GPU.
    #[arg(long)]
    host: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let found = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds));
    found
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a valid interval; write seconds from 0.1 to 86400"))
}

/// The devices to read.
struct Watching {
    devices: Vec<DeviceFacts>,
    desk: Option<GpuWatchdog>,
    host: Option<HostSeries>,
}

/// The output of each reading.
enum WatchWork {
    /// Lines and tables of what a sampler reads.
    Samples {
        watching: Watching,
        view: Option<View>,
        table: Option<WatchWriter>,
    },
    /// Lines of selected properties.
    Query(WatchQuery),
}

/// Values of one reading; `device` is an index into [`Watching::devices`], `None` for the host.
struct WatchReading {
    device: Option<usize>,
    tick: Tick,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    if let Some(named) = &args.run {
        let results_option = results_option(&args.results);
        let instead = format!("`kiln report {named}{results_option}` shows one trial");
        refuse_trial("watch", named, &args.results, &instead)?;
        return run_view::run(&WatchedRun {
            named,
            results: &args.results,
            every: args.every,
            count: if args.once { Some(1) } else { args.count },
        });
    }
    let mut work = work(&args)?;
    let (_sender, signals) = signals()?;
    if let WatchWork::Samples { watching, .. } = &mut work {
        watching.look();
        if signals.recv_timeout(FIRST_PAUSE).is_ok() {
            return Ok(Status::Interrupted);
        }
    }
    let mut next = Instant::now();
    let mut looks = 0;
    loop {
        let has_reader = work.look()?;
        looks += 1;
        if !has_reader || args.count == Some(looks) {
            return Ok(Status::Success);
        }
        // A late reading is not repeated.
        next = (next + args.every).max(Instant::now());
        match signals.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(Status::Interrupted),
        }
    }
}

fn work(args: &Args) -> Result<WatchWork, Stop> {
    // Errors of the command line are reported before the driver is called.
    let queries = args
        .query
        .as_ref()
        .map(|properties| queries(properties, &args.format))
        .transpose()?;
    let patience = args
        .every
        .clamp(Duration::from_millis(500), Duration::from_secs(2));
    let host = args.host.then(HostSeries::default);
    let (nvml, devices) = match open_nvml() {
        Ok(nvml) => listed(Arc::new(nvml), args)?,
        Err(absent) if args.host && args.ids.is_empty() => {
            if absent.is_silent() {
                note(&absent.to_string());
            }
            (None, Vec::new())
        }
        Err(absent) => return Err(nothing(&absent.to_string())),
    };
    if let (Some(queries), Some(nvml)) = (queries, &nvml) {
        return Ok(WatchWork::Query(WatchQuery::new(
            Arc::clone(nvml),
            devices,
            queries,
            patience,
        )));
    }
    let table = table(args)?;
    let is_shown = args.csv.as_ref().is_none_or(|path| path.as_os_str() != "-");
    let view = is_shown.then(View::new);
    let desk = nvml.map(|nvml| GpuWatchdog::new(&nvml, patience));
    Ok(WatchWork::Samples {
        watching: Watching {
            devices,
            desk,
            host,
        },
        view,
        table,
    })
}

/// Returns the devices to watch, within a time limit.
fn listed(nvml: Arc<Nvml>, args: &Args) -> Result<(Option<Arc<Nvml>>, Vec<DeviceFacts>), Stop> {
    let asked = Arc::clone(&nvml);
    let unanswered = |why: Absence| {
        let text = match why {
            Absence::Silent(limit) => format!(
                "the NVIDIA driver did not answer within {} s",
                limit.as_secs()
            ),
            why => why.to_string(),
        };
        Stop::new(Status::CannotRun, text)
    };
    let ids = args.ids.clone();
    let (devices, unopened) = Patience::of(LIST_PATIENCE)
        .wait(move || {
            let lost = match ids.is_empty() {
                true => asked.unopened(),
                false => Vec::new(),
            };
            chosen(&asked, &ids).map(|devices| (devices, lost))
        })
        .map_err(unanswered)??;
    let lost: Vec<String> = unopened
        .iter()
        .map(|(index, why)| format!("GPU {index} cannot be watched: {why}"))
        .collect();
    if devices.is_empty() && !args.host {
        let why = match lost.as_slice() {
            [] => "the NVIDIA driver reports no GPU".to_owned(),
            lost => lost.join("; "),
        };
        return Err(nothing(&why));
    }
    lost.iter().for_each(|lost| note(lost));
    Ok((Some(nvml), devices))
}

impl WatchWork {
    /// Does one reading; `false` once nobody reads the output.
    fn look(&mut self) -> Result<bool, Stop> {
        match self {
            Self::Query(asking) => written(terminal::print(&asking.look()?)),
            Self::Samples {
                watching,
                view,
                table,
            } => {
                let utc = clock::utc_now()
                    .strftime("%Y-%m-%dT%H:%M:%S%.3fZ")
                    .to_string();
                let seen = watching.look();
                if let Some(table) = table {
                    table
                        .append(&rows(&watching.devices, &seen, &utc))
                        .map_err(cannot_write)?;
                }
                let is_seen = view
                    .as_mut()
                    .map_or(Ok(true), |view| view.show(&watching.devices, &seen, &utc))?;
                Ok(is_seen && !table.as_ref().is_some_and(WatchWriter::is_left))
            }
        }
    }
}

fn nothing(why: &str) -> Stop {
    Stop::new(
        Status::CannotRun,
        format!("{why}; `kiln watch --host` watches the host alone"),
    )
}

/// Returns the named devices in the given order; all devices if none is named.
fn chosen(nvml: &Nvml, ids: &[String]) -> Result<Vec<DeviceFacts>, Stop> {
    if ids.is_empty() {
        return Ok(nvml.devices());
    }
    let indices = named_gpus(nvml, ids)?;
    let found = nvml.devices();
    let find = |index: u32| {
        let device = found.iter().find(|device| device.index == index).cloned();
        device.ok_or_else(|| {
            Stop::new(
                Status::CannotRun,
                format!(
                    "`-i`: GPU {index} cannot be watched: this user may not open it, or it is lost"
                ),
            )
        })
    };
    indices.into_iter().map(find).collect()
}

fn table(args: &Args) -> Result<Option<WatchWriter>, Stop> {
    match &args.csv {
        None => Ok(None),
        Some(path) if path.as_os_str() == "-" => {
            WatchWriter::stdout().map(Some).map_err(cannot_write)
        }
        Some(path) => {
            let (table, torn) = WatchWriter::file(path).map_err(cannot_open)?;
            if let Some(torn) = torn {
                note(&format!(
                    "{}:{}: an incomplete last line was removed: `{}`",
                    path.display(),
                    torn.line,
                    torn.text
                ));
            }
            Ok(Some(table))
        }
    }
}

/// A file that is not this table is a user error; other errors are the machine's.
fn cannot_open(error: TableError) -> Stop {
    let status = if matches!(error, TableError::Io { .. }) {
        Status::Failed
    } else {
        Status::BadInput
    };
    Stop::new(status, error)
}

fn cannot_write(error: impl std::fmt::Display) -> Stop {
    Stop::new(Status::Failed, error)
}

/// Receives Ctrl-C and similar signals as messages, so that the loop ends normally and the terminal
/// is unchanged. The sender is for further reasons to end.
fn signals() -> Result<(Sender<i32>, Receiver<i32>), Stop> {
    let cannot = |error: std::io::Error| {
        Stop::new(
            Status::CannotRun,
            format!("the signal handlers could not be installed: {error}"),
        )
    };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(cannot)?;
    let (sender, receiver) = channel();
    let of_signals = sender.clone();
    let listen = move || {
        for signal in signals.forever() {
            if of_signals.send(signal).is_err() {
                break;
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(listen)
        .map_err(cannot)?;
    Ok((sender, receiver))
}

impl Watching {
    fn look(&mut self) -> Vec<WatchReading> {
        let began = Instant::now();
        let monotonic_nanoseconds = clock::monotonic_nanoseconds();
        let host = self.host.as_mut().map(HostSeries::tick);
        let host_seconds = began.elapsed().as_secs_f64();
        let desk = &mut self.desk;
        let devices = self.devices.iter().enumerate().map(|(place, device)| {
            let began = Instant::now();
            let mut tick = Tick {
                monotonic_nanoseconds: clock::monotonic_nanoseconds(),
                host: host.clone().unwrap_or_default(),
                ..Tick::default()
            };
            if let Some(look) = desk.as_mut().map(|desk| desk.read(&device.uuid, false)) {
                tick.gpu_absence = look.reason().map(str::to_owned);
                tick.gpu = look.tick;
            }
            tick.reading_seconds = began.elapsed().as_secs_f64();
            WatchReading {
                device: Some(place),
                tick,
            }
        });
        let mut seen: Vec<WatchReading> = devices.collect();
        let of_host = |host| Tick {
            monotonic_nanoseconds,
            reading_seconds: host_seconds,
            host,
            ..Tick::default()
        };
        seen.extend(host.map(|host| WatchReading {
            device: None,
            tick: of_host(host),
        }));
        seen
    }
}

fn rows<'a>(
    devices: &'a [DeviceFacts],
    seen: &'a [WatchReading],
    utc: &'a str,
) -> Vec<WatchRow<'a>> {
    let row = |seen: &'a WatchReading| {
        let device = seen.device.map(|place| &devices[place]);
        WatchRow {
            utc,
            index: device.map(|device| device.index),
            device: device.map_or("host", |device| &device.uuid),
            name: device
                .and_then(|device| device.name.value())
                .map(String::as_str),
            tick: &seen.tick,
        }
    };
    seen.iter().map(row).collect()
}
