//! Cost of sampling: a tick over eight devices and the sampler's share of a core at 500 ms, with
//! a library that plays eight boards; and, where there is a GPU, what each group of fields costs
//! with the real driver. Writes `tick_cost.csv` beside the programs and prints it. `make bench`;
//! `KILN_NVML_LIB` names another driver library.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{
    collections::BTreeMap,
    error::Error,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use kiln_hardware::{Nvml, Sampler, Watch, costs};
use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What a run samples at unless told otherwise.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long the sampler is looked at.
const WINDOW: Duration = Duration::from_secs(10);

const DEVICES: usize = 8;

/// Rounds of each group with the real driver.
const ROUNDS: usize = 50;

/// A board with everything a tick asks for.
const BOARD: &str = "
  calls:
    nvmlDeviceGetUUID: GPU-NUMBER
    nvmlDeviceGetName: Invented
    nvmlDeviceGetUtilizationRates: {gpu: 75, memory: 7}
    nvmlDeviceGetMemoryInfo_v2: {total: 1000, reserved: 100, used: 300, free: 600}
    nvmlDeviceGetTemperatureV/0: 52
    nvmlDeviceGetClockInfo/1: 1980
    nvmlDeviceGetClockInfo/2: 3201
    nvmlDeviceGetCurrentClocksEventReasons: 4
    nvmlDeviceGetPerformanceState: 0
    nvmlDeviceGetEncoderUtilization: [0, 100000]
    nvmlDeviceGetDecoderUtilization: [0, 100000]
    nvmlDeviceGetComputeRunningProcesses_v3: []
    nvmlGpmQueryDeviceSupport: 1
    nvmlGpmMetricsGet/2: 95.5
    nvmlGpmMetricsGet/3: 40.0
    nvmlGpmMetricsGet/5: 30.0
    nvmlGpmMetricsGet/10: 20.0
    nvmlGpmMetricsGet/20: 1.0
    nvmlGpmMetricsGet/21: 2.0
    nvmlGpmMetricsGet/60: 1.0
    nvmlGpmMetricsGet/61: 1.0
  fields: {83/0: 7000, 185/0: 500000, 186/0: 510000, 82/0: 60, 3/0: 0, 4/0: 0, 197/0: 1, 198/0: 1}
";

/// One line of the table.
struct Measure {
    measure: String,
    unit: &'static str,
    /// Empty where nothing is aimed for.
    aim: &'static str,
    values: Vec<f64>,
}

fn main() -> Result<()> {
    let mut measures = Vec::new();
    for microseconds in [0, 100] {
        measures.extend(eight_devices(microseconds)?);
    }
    measures.extend(tree_of_processes()?);
    measures.extend(real_driver());
    write_table(&measures)
}

/// The sampler over eight devices, every call of which takes so long.
fn eight_devices(latency_microseconds: u64) -> Result<[Measure; 2]> {
    let boards: String = (0..DEVICES)
        .map(|number| {
            format!(
                "-{}",
                BOARD
                    .replacen("\n ", "", 1)
                    .replace("NUMBER", &number.to_string())
            )
        })
        .collect();
    let text = format!(
        "latency_microseconds: {latency_microseconds}\ncalls: {{nvmlSystemGetDriverVersion: \
         590.48.01}}\ndevices:\n{boards}"
    );
    let scenario: fake_nvml::Scenario = serde_yaml::from_str(&text)?;
    let folder = tempfile::tempdir()?;
    let nvml = Nvml::open(Some(&fake_nvml::install::install(
        folder.path(),
        &scenario,
    )?))?;
    let sampler = Sampler::start(Some(Arc::new(nvml)), INTERVAL, 0);
    for number in 0..DEVICES {
        let device_uuid = Some(format!("GPU-{number}"));
        sampler.watch(Watch {
            trial: number.to_string(),
            attempt: 1,
            pid: std::process::id(),
            without_root: false,
            device_uuid,
        });
    }
    // The first look opens the devices.
    thread::sleep(INTERVAL * 3);
    sampler.take_rows();
    let (cpu_before, began) = (cpu_seconds(), Instant::now());
    thread::sleep(WINDOW);
    let share = (cpu_seconds() - cpu_before) / began.elapsed().as_secs_f64();
    let name = |what: &str| format!("{what}_{DEVICES}_devices_calls_of_{latency_microseconds}_us");
    // The rows of one round stand together.
    let rows = sampler.take_rows();
    let rounds: Vec<f64> = rows
        .chunks_exact(DEVICES)
        .map(|round| round.iter().map(|row| row.tick.reading_seconds).sum())
        .collect();
    Ok([
        Measure {
            measure: name("tick"),
            unit: "seconds",
            aim: "0.05",
            values: rounds,
        },
        Measure {
            measure: name("sampler_cpu_share"),
            unit: "fraction of one core",
            aim: "0.01",
            values: vec![share],
        },
    ])
}

/// The sampler over a trial of so many processes that share 20 MB, as workers of a loader do.
fn tree_of_processes() -> Result<[Measure; 2]> {
    const WORKERS: usize = 20;
    let text = format!(
        "x=$(head -c 20000000 /dev/zero | tr '\\0' x); for i in $(seq {WORKERS}); do (sleep 300; :) & \
         done; wait"
    );
    let mut trial = Command::new("sh")
        .args(["-c", &text])
        .process_group(0)
        .spawn()?;
    let sampler = Sampler::start(None, INTERVAL, 0);
    sampler.watch(Watch {
        trial: "tree".to_owned(),
        attempt: 1,
        pid: trial.id(),
        without_root: false,
        device_uuid: None,
    });
    // Until all workers run.
    thread::sleep(INTERVAL * 8);
    sampler.take_rows();
    let (cpu_before, began) = (cpu_seconds(), Instant::now());
    thread::sleep(WINDOW);
    let share = (cpu_seconds() - cpu_before) / began.elapsed().as_secs_f64();
    let rows = sampler.take_rows();
    let group = rustix::process::Pid::from_child(&trial);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL)?;
    trial.wait()?;
    let held = rows
        .iter()
        .filter_map(|row| row.tick.child.as_ref()?.resident_bytes)
        .max()
        .filter(|bytes| *bytes >= 20_000_000)
        .ok_or("the memory of the tree was not read")?;
    println!("a tree of {WORKERS} workers, each with a child, holds {held} B");
    let name = |what: &str| format!("{what}_tree_of_{WORKERS}_workers");
    Ok([
        Measure {
            measure: name("tick"),
            unit: "seconds",
            aim: "0.05",
            values: rows.iter().map(|row| row.tick.reading_seconds).collect(),
        },
        Measure {
            measure: name("sampler_cpu_share"),
            unit: "fraction of one core",
            aim: "0.01",
            values: vec![share],
        },
    ])
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Each group of fields of the first GPU; nothing where there is none, with a word.
fn real_driver() -> Vec<Measure> {
    let library = std::env::var_os("KILN_NVML_LIB")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let nvml = match Nvml::open(library.as_deref()) {
        Ok(nvml) => nvml,
        Err(absent) => {
            println!("the groups of fields are left out: {absent}");
            return Vec::new();
        }
    };
    let Some(device) = nvml.devices().into_iter().next() else {
        return Vec::new();
    };
    println!(
        "{} with driver {}",
        device.name.value().map_or("GPU", String::as_str),
        nvml.driver_version().value().map_or("?", String::as_str)
    );
    let found = match costs(&nvml, &device.uuid, ROUNDS) {
        Ok(found) => found,
        Err(why) => {
            println!("the groups of fields are left out: {why}");
            return Vec::new();
        }
    };
    let absent: BTreeMap<&str, &Vec<String>> = found
        .iter()
        .filter(|cost| !cost.absent.is_empty())
        .map(|cost| (cost.group, &cost.absent))
        .collect();
    absent
        .iter()
        .for_each(|(group, reasons)| println!("{group}: {}", reasons.join("; ")));
    found
        .into_iter()
        .map(|cost| Measure {
            measure: format!("group_{}", cost.group),
            unit: "seconds",
            aim: "",
            values: cost.seconds,
        })
        .collect()
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
    for measure in measures.iter().filter(|measure| !measure.values.is_empty()) {
        let mut values = measure.values.clone();
        values.sort_by(f64::total_cmp);
        let number = |value: f64| format!("{value:.6}");
        let (first, middle, last) = (
            values[0],
            values[values.len() / 2],
            values[values.len() - 1],
        );
        table.write_record([
            "bench-runner/1",
            &measure.measure,
            measure.unit,
            measure.aim,
            &number(middle),
            &number(first),
            &number(last),
            &values.len().to_string(),
        ])?;
    }
    let text = String::from_utf8(table.into_inner()?)?;
    let path = PathBuf::from(env!("CARGO_BIN_EXE_kiln")).with_file_name("tick_cost.csv");
    // The programs may have been moved to another machine.
    match std::fs::write(&path, &text) {
        Ok(()) => println!("{text}\nwritten to {}", path.display()),
        Err(error) => println!("{text}\nnot kept in {}: {error}", path.display()),
    }
    Ok(())
}
