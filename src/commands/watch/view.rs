//! How a look is shown: a line per device under a heading; on a terminal the same lines are drawn anew in place.
//!
//! The terminal is left as it was found: no other screen, no hidden cursor, nothing to restore after a panic.

use std::io::{self, IsTerminal, Write};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Seen;
use crate::{
    commands::{Status, Stop},
    hardware::{
        DeviceFacts, Tick,
        sampler::{GpuTick, THROTTLED, throttle_names},
    },
    units::Bytes,
};

/// Lines between two headings where they are not drawn anew.
const HEADING_EVERY: u64 = 40;

/// A longer name of a GPU is cut.
const LONGEST_NAME: usize = 28;

/// Shows looks.
pub(super) struct View {
    /// As wide as the longest name of a GPU.
    name_width: usize,
    shape: Shape,
}

enum Shape {
    Terminal(Vec<ProgressBar>),
    Lines { shown: u64 },
}

impl View {
    pub(super) fn new(devices: &[DeviceFacts], has_host: bool) -> Self {
        let name_width = devices.iter().map(|device| name(device).chars().count()).max().unwrap_or(0).clamp(4, LONGEST_NAME);
        let has_heading = !devices.is_empty();
        if !io::stdout().is_terminal() {
            return Self { name_width, shape: Shape::Lines { shown: 0 } };
        }
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let lines = devices.len() + usize::from(has_host) + usize::from(has_heading);
        // The template is fixed; were it wrong, the bars' own would do.
        let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bars = (0..lines).map(|_| all.add(ProgressBar::new_spinner().with_style(style.clone()))).collect();
        Self { name_width, shape: Shape::Terminal(bars) }
    }

    /// Shows one look; `false` once nobody reads any more.
    pub(super) fn show(&mut self, devices: &[DeviceFacts], seen: &[Seen], utc: &str) -> Result<bool, Stop> {
        // `2026-01-02T03:04:05.678Z`
        let time = utc.get(11..19).unwrap_or(utc);
        let width = self.name_width;
        let lines = seen.iter().map(|seen| match seen.device {
            Some(place) => device_line(time, &devices[place], &seen.tick, width),
            None => host_line(time, &seen.tick),
        });
        let heading = (!devices.is_empty()).then(|| heading(width));
        match &mut self.shape {
            Shape::Terminal(bars) => {
                bars.iter().zip(heading.into_iter().chain(lines)).for_each(|(bar, line)| bar.set_message(line));
                Ok(true)
            }
            Shape::Lines { shown } => {
                let is_due = *shown % HEADING_EVERY == 0;
                *shown += seen.len() as u64;
                write(&heading.filter(|_| is_due).into_iter().chain(lines).map(|line| line + "\n").collect::<String>())
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Shape::Terminal(bars) = &self.shape {
            // The last lines stay, and the prompt comes under them.
            bars.iter().for_each(ProgressBar::abandon);
            let _ = writeln!(io::stdout());
        }
    }
}

/// Writes to standard output at once; `false` if nobody reads.
pub(super) fn write(text: &str) -> Result<bool, Stop> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Stop::new(Status::Failed, format!("standard output could not be written: {error}"))),
    }
}

/// What stands over the columns.
fn heading(width: usize) -> String {
    let start = format!("{:<8}  {:>3} {:<width$}", "UTC", "GPU", "name");
    let memory = format!("{:>9} / {:<9}", "mem used", "total");
    format!(
        "{start}  {:>5}  {memory}  {:>5} / {:<6}  {:>4}  {:>8}  {:>6}  {:>6}  held by",
        "util", "power", "limit", "temp", "SM clock", "SM act", "tensor"
    )
}

fn name(device: &DeviceFacts) -> &str {
    device.name.value().map_or("-", String::as_str)
}

fn device_line(time: &str, device: &DeviceFacts, tick: &Tick, width: usize) -> String {
    let name: String = name(device).chars().take(width).collect();
    let start = format!("{time}  {:>3} {name:<width$}", device.index);
    match &tick.gpu {
        Some(gpu) => format!("{start}  {}", cells(device, gpu)),
        None => format!("{start}  {}", tick.gpu_absence.as_deref().unwrap_or("-")),
    }
}

fn cells(device: &DeviceFacts, gpu: &GpuTick) -> String {
    let percent = |share: Option<f64>| or_dash(share, |share| format!("{:.0} %", share * 100.0));
    let memory = |bytes: Option<u64>| or_dash(bytes, |bytes| Bytes(bytes).to_string());
    let watts = |watts: Option<f64>| or_dash(watts, |watts| format!("{watts:.0} W"));
    // Idleness holds no clock down.
    let held = or_dash(gpu.throttle_bits, |bits| throttle_names(bits & THROTTLED).join(" "));
    let line = format!(
        "{:>5}  {:>9} / {:<9}  {:>5} / {:<6}  {:>4}  {:>8}  {:>6}  {:>6}  {held}",
        percent(gpu.utilization),
        memory(gpu.memory_used_bytes),
        memory(device.memory_total_bytes.value().copied()),
        watts(gpu.power_watts),
        watts(device.power_limit_watts.value().copied()),
        or_dash(gpu.temperature_celsius, |celsius| format!("{celsius:.0}°C")),
        or_dash(gpu.sm_clock_megahertz, |megahertz| format!("{megahertz} MHz")),
        percent(gpu.work.sm_active),
        percent(gpu.work.tensor_active),
    );
    line.trim_end().to_owned()
}

fn or_dash<T>(value: Option<T>, print: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), print)
}

fn host_line(time: &str, tick: &Tick) -> String {
    let host = &tick.host;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    format!(
        "{time}  host  CPU {} busy, {} of memory available, load {}, busiest disk {}",
        or_dash(host.cpu_fraction, percent),
        or_dash(host.memory_available_bytes, |bytes| Bytes(bytes).to_string()),
        or_dash(host.load_1_minute, |load| load.to_string()),
        or_dash(host.disk_busy_fraction, percent),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Reading;

    fn device() -> DeviceFacts {
        DeviceFacts {
            index: 0,
            uuid: "GPU-1".into(),
            name: Reading::Value("NVIDIA H200".into()),
            memory_total_bytes: Reading::Value(143_771 << 20),
            compute_capability: Reading::absent("not asked"),
            power_limit_watts: Reading::Value(700.0),
            is_mig: Reading::absent("not asked"),
        }
    }

    #[test]
    fn a_line_stands_under_its_heading_and_absence_is_a_dash() {
        let mut gpu = GpuTick { utilization: Some(1.0), memory_used_bytes: Some(32_362 << 20), power_watts: Some(627.4), ..GpuTick::default() };
        gpu.work.sm_active = Some(0.953);
        gpu.throttle_bits = Some(0x4 | 0x1);
        let line = device_line("15:04:05", &device(), &Tick { gpu: Some(gpu), ..Tick::default() }, 28);
        assert_eq!(
            line,
            "15:04:05    0 NVIDIA H200                   100 %   31.6 GiB / 140.4 GiB  627 W / 700 W      -         -    95 %       -  sw_power_cap"
        );
        let ends = |text: &str, word: &str| text.find(word).unwrap() + word.chars().count();
        assert_eq!((ends(&heading(28), "util"), ends(&heading(28), "SM act")), (ends(&line, "100 %"), ends(&line, "95 %")));
    }

    #[test]
    fn a_silent_device_says_so_in_its_line() {
        let tick = Tick { gpu_absence: Some("the driver has not answered for 3.0 s".into()), ..Tick::default() };
        assert_eq!(
            device_line("15:04:05", &device(), &tick, 28),
            "15:04:05    0 NVIDIA H200                   the driver has not answered for 3.0 s"
        );
    }

    #[test]
    fn the_host_has_a_line_of_its_own() {
        let mut tick = Tick::default();
        tick.host.cpu_fraction = Some(0.5);
        assert_eq!(host_line("15:04:05", &tick), "15:04:05  host  CPU 50 % busy, - of memory available, load -, busiest disk -");
    }
}
