//! `kiln calibrate`: leases a device, starts the child that measures its matrix-product peak per
//! precision, stores the best result for MFU, prints both.

use std::{
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Child, Output, Stdio},
    thread,
};

use kiln_core::{
    record::peaks::{DeviceKey, Kept, MeasuredPeak, check, keep, peaks_path},
    units::{Count, Fraction, without_controls},
};
use kiln_hardware::host::usable_cores;
use serde::Deserialize;

use super::{
    Status, Stop,
    device_choice::leased,
    machine::{open_instruments, start_trial_program, warn_of_busy_host},
    note, print,
};
use crate::{
    output::table::TextTable,
    schedule::{Lease, instruments::LeasedGpu},
    subprocess::not_started,
};

/// A peak this fraction below the stored best one was probably measured under other conditions.
const NOTABLE_LOSS: f64 = 0.1;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Device to measure: `auto` (the first idle GPU, else the CPU), `cpu`, or a GPU's index or
    /// UUID.
    #[arg(long, default_value = "auto")]
    device: String,
    /// libtorch's threads on the CPU; all cores if not given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1024))]
    cpu_threads: Option<u64>,
}

/// The result of the child.
#[derive(Debug, Deserialize)]
struct CalibrationRun {
    libtorch: String,
    device_name: String,
    cpu_threads: u64,
    peaks: Vec<MeasuredPeaks>,
}

#[derive(Debug, Deserialize)]
struct MeasuredPeaks {
    precision: String,
    flops: f64,
    size: u64,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let instruments = open_instruments();
    let lease = leased(&args.device, &instruments, "`kiln calibrate`")?;
    let gpu = lease.as_ref().and_then(Lease::gpu);
    if gpu.is_none() {
        warn_of_busy_host(
            "the CPU's peak comes out too low, and every MFU that is computed from it too high; \
             measure again when they have ended (the best result is kept)",
        );
    }
    if let Some(path) = peaks_path() {
        check(&path).map_err(|error| unkept(&path, &error))?;
    }
    let found = measure(gpu, args.cpu_threads.unwrap_or_else(usable_cores))?;
    let device = instruments
        .peak_key(gpu, found.cpu_threads)
        .unwrap_or_else(|| unnamed(&found));
    let peaks = named(&device, found);
    let (kept, place) = kept(peaks)?;
    let place = without_controls(&place);
    print(&format!("{}\n{}{place}\n", printed(&kept), remarks(&kept)))?;
    Ok(Status::Success)
}

fn measure(gpu: Option<&LeasedGpu>, threads: u64) -> Result<CalibrationRun, Stop> {
    let device = gpu.map_or("cpu", |_| "cuda");
    let arguments = ["--calibrate", device, &threads.to_string()];
    let child = start_trial_program(&arguments, gpu, Stdio::null())?;
    let failed = |text: String| Stop::new(Status::Failed, format!("kiln-trial: {text}"));
    let ended = output(child).map_err(|error| failed(not_started(&error)))?;
    if !ended.status.success() {
        return Err(failed(format!("it ended with {}", ended.status)));
    }
    answer(&ended.stdout).map_err(|why| failed(format!("its output is not a calibration: {why}")))
}

/// How `kiln-trial` begins a line of its own.
const CHILD: &str = "kiln-trial: ";

/// Runs the child to its end; its standard error is printed line by line as it comes, and each line
/// says that it is the child's.
fn output(mut child: Child) -> io::Result<Output> {
    let lines = child.stderr.take().map(BufReader::new);
    let show = move || {
        let lines = lines.into_iter().flat_map(|lines| lines.split(b'\n'));
        lines.map_while(Result::ok).for_each(|line| {
            let line = String::from_utf8_lossy(&line);
            note(&format!(
                "{CHILD}{}",
                line.strip_prefix(CHILD).unwrap_or(&line)
            ));
        });
    };
    let shown = thread::Builder::new().name("stderr".to_owned()).spawn(show);
    let shown = shown.inspect_err(|_| {
        let _ = child.kill();
        let _ = child.wait();
    })?;
    let ended = child.wait_with_output();
    // The thread ends with the stream.
    let _ = shown.join();
    ended
}

fn answer(text: &[u8]) -> Result<CalibrationRun, String> {
    let found: CalibrationRun = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match found
        .peaks
        .iter()
        .find(|peak| !(peak.flops.is_finite() && peak.flops > 0.0))
    {
        Some(peak) => Err(format!(
            "its peak at {} is {} FLOP/s",
            peak.precision, peak.flops
        )),
        None => Ok(found),
    }
}

/// Name that the trial program uses for a CPU of unknown name.
fn unnamed(found: &CalibrationRun) -> DeviceKey {
    DeviceKey::of_cpu(found.device_name.clone(), found.cpu_threads, None)
}

/// Returns the measured peaks with their device, precision and libtorch version.
fn named(device: &DeviceKey, found: CalibrationRun) -> Vec<MeasuredPeak> {
    let named = |peak: MeasuredPeaks| MeasuredPeak {
        device: device.clone(),
        libtorch: found.libtorch.clone(),
        precision: peak.precision,
        flops: peak.flops,
        size: peak.size,
    };
    found.peaks.into_iter().map(named).collect()
}

/// Stores the best peaks; returns them and a sentence that names the file.
fn kept(peaks: Vec<MeasuredPeak>) -> Result<(Vec<Kept>, String), Stop> {
    let Some(path) = peaks_path() else {
        let kept = peaks
            .into_iter()
            .map(|measured| Kept {
                measured,
                before: None,
            })
            .collect();
        return Ok((
            kept,
            "not kept: neither `XDG_CACHE_HOME` nor `HOME` is set".to_owned(),
        ));
    };
    let kept = keep(&path, &peaks).map_err(|error| unkept(&path, &error))?;
    Ok((kept, format!("kept in {}", path.display())))
}

fn unkept(path: &Path, error: &io::Error) -> Stop {
    let remedy = match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            "; remove the file to measure all peaks anew"
        }
        _ => "",
    };
    let text = format!(
        "the peaks cannot be kept in {}: {error}{remedy}",
        path.display()
    );
    Stop::new(Status::Failed, text)
}

fn printed(peaks: &[Kept]) -> String {
    let mut table = TextTable::plain([
        "device",
        "precision",
        "measured",
        "size",
        "best kept",
        "libtorch",
    ]);
    for peak in peaks {
        let Kept { measured, .. } = peak;
        let (name, precision, libtorch) = (
            measured.device.name.clone(),
            measured.precision.clone(),
            measured.libtorch.clone(),
        );
        table.add_row([
            name,
            precision,
            per_second(measured.flops),
            measured.size.to_string(),
            per_second(peak.best().flops),
            libtorch,
        ]);
    }
    table.text()
}

fn per_second(flops: f64) -> String {
    format!("{}FLOP/s", Count(flops))
}

/// Returns a line for each peak that was higher before.
fn remarks(peaks: &[Kept]) -> String {
    peaks
        .iter()
        .filter_map(remark)
        .map(|line| without_controls(&line) + "\n")
        .collect()
}

fn remark(peak: &Kept) -> Option<String> {
    let before = peak.before.as_ref()?.flops;
    let loss = 1.0 - peak.measured.flops / before;
    if loss <= 0.0 {
        return None;
    }
    let cause = if loss > NOTABLE_LOSS {
        "; the device may have been throttled or disturbed"
    } else {
        ""
    };
    Some(format!(
        "{}: {} lower than before; the best one is kept{cause}",
        peak.measured.precision,
        Fraction(loss)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_peak_is_told_and_a_much_lower_one_is_doubted() {
        let peak = |flops| MeasuredPeak {
            device: DeviceKey::of_cpu("Xeon".to_owned(), 2, None),
            libtorch: "2.11.0".to_owned(),
            precision: "f32".to_owned(),
            flops,
            size: 1024,
        };
        let kept = |now: f64, before: Option<f64>| Kept {
            measured: peak(now),
            before: before.map(peak),
        };
        assert_eq!(remark(&kept(1e11, None)), None);
        assert_eq!(remark(&kept(1e11, Some(0.9e11))), None);
        assert_eq!(
            remark(&kept(0.95e11, Some(1e11))).unwrap(),
            "f32: 5.0 % lower than before; the best one is kept"
        );
        let doubted = remark(&kept(0.85e11, Some(1e11))).unwrap();
        assert_eq!(
            doubted,
            "f32: 15.0 % lower than before; the best one is kept; the device may have been \
             throttled or disturbed"
        );
        let table = printed(&[kept(0.85e11, Some(1e11))]);
        assert!(
            table.contains("85.0 GFLOP/s") && table.contains("100.0 GFLOP/s"),
            "{table}"
        );
    }

    #[test]
    fn an_answer_without_a_peak_or_a_libtorch_is_none() {
        let of = |libtorch: &str, flops: &str| {
            let peak = format!(r#"{{"precision":"f32","flops":{flops},"size":1024}}"#);
            answer(format!(r#"{{"libtorch":{libtorch},"device_name":"Xeon","cpu_threads":2,"peaks":[{peak}]}}"#).as_bytes())
        };
        assert_eq!(of(r#""2.11.0""#, "1.0e11").unwrap().peaks[0].flops, 1e11);
        assert!(
            of(r#""2.11.0""#, "0.0")
                .unwrap_err()
                .contains("its peak at f32 is 0 FLOP/s")
        );
        assert!(of(r#""2.11.0""#, "-1.0").is_err() && of("null", "1.0e11").is_err());
    }
}
