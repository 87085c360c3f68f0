//! Prints each reading: a line per device under a heading. On a terminal the same lines are redrawn
//! in place.
//!
//! The terminal's state is not changed: no alternate screen, no hidden cursor, nothing to restore
//! after a panic.

mod columns;

use super::WatchReading;
use crate::{
    commands::{Stop, written},
    output::{
        frame::{DrawnFrame, FramePage, Size},
        terminal,
    },
};
use columns::{Columns, or_dash};
use kiln_core::units::{Bytes, WholePercent, without_controls};
use kiln_hardware::{DeviceFacts, Tick};

/// Lines between two headings when lines are not redrawn in place.
const HEADING_EVERY: u64 = 40;

/// Prints readings.
pub(super) struct View(ViewShape);

enum ViewShape {
    Terminal(DrawnFrame),
    Lines { shown: u64 },
}

impl View {
    /// Redraws in place if the terminal can, else prints line after line.
    pub(super) fn new() -> Self {
        let is_drawn = terminal::can_draw(terminal::stdout_is_terminal());
        Self(if is_drawn {
            ViewShape::Terminal(DrawnFrame::default())
        } else {
            ViewShape::Lines { shown: 0 }
        })
    }

    /// Prints one reading; `false` once nobody reads standard output.
    pub(super) fn show(
        &mut self,
        devices: &[DeviceFacts],
        seen: &[WatchReading],
        utc: &str,
    ) -> Result<bool, Stop> {
        match &mut self.0 {
            ViewShape::Terminal(drawn) => {
                let size = Size::of_stdout();
                let columns = Columns::within(size.line_width(), devices);
                let page = page(&columns, devices, seen, utc).fitted(size);
                written(terminal::draw(&drawn.draw(&page, size)))
            }
            ViewShape::Lines { shown } => {
                let is_due = *shown % HEADING_EVERY == 0;
                *shown += seen.len() as u64;
                let page = page(&Columns::all(devices), devices, seen, utc);
                let lines = page
                    .heading
                    .filter(|_| is_due)
                    .into_iter()
                    .chain(page.lines);
                let lines = lines.map(|line| without_controls(&line) + "\n");
                written(terminal::print(&lines.collect::<String>()))
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let ViewShape::Terminal(drawn) = &self.0 {
            // A terminal that is gone cannot be reset; the error is ignored.
            let _ = terminal::draw(drawn.end());
        }
    }
}

fn page(columns: &Columns, devices: &[DeviceFacts], seen: &[WatchReading], utc: &str) -> FramePage {
    // `2026-01-02T03:04:05.678Z`
    let time = utc.get(11..19).unwrap_or(utc);
    let line = |seen: &WatchReading| match seen.device {
        Some(place) => columns.device(time, &devices[place], &seen.tick),
        None => host_line(time, &seen.tick),
    };
    let has_devices = !devices.is_empty();
    FramePage {
        heading: has_devices.then(|| columns.heading()),
        lines: seen.iter().map(line).collect(),
        footer: columns.left_out().filter(|_| has_devices),
    }
}

fn host_line(time: &str, tick: &Tick) -> String {
    let host = &tick.host;
    let percent = |share: f64| WholePercent(share).to_string();
    format!(
        "{time}  host  CPU {} busy, {} of memory available, load {}, busiest disk {}",
        or_dash(host.cpu_fraction, percent),
        or_dash(host.memory_available_bytes, |bytes| Bytes(bytes)
            .to_string()),
        or_dash(host.load_1_minute, |load| load.to_string()),
        or_dash(host.disk_busy_fraction, percent),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_line_of_its_own() {
        let mut tick = Tick::default();
        tick.host.cpu_fraction = Some(0.5);
        assert_eq!(
            host_line("15:04:05", &tick),
            "15:04:05  host  CPU 50 % busy, - of memory available, load -, busiest disk -"
        );
    }
}
