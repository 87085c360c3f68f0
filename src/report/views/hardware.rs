//! Charts of hardware readings over time during a trial, with the measured window and throttling
//! marked.

use std::collections::{BTreeMap, HashSet};

use kiln_core::record::{SampleRow, TrialRow, launch_folder};

use super::{MOST_LINES, MOST_MARKS, RunView, TrialSeries, enveloped, name_in};
use crate::{
    readings::samples::{is_throttled, samples_of},
    report::chart::{
        AxisUnit, Band, Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture, Quantity,
    },
};

/// Trials whose readings are shown.
const MOST_TRIALS: usize = 6;

type Cell = fn(&SampleRow) -> Option<f64>;

/// Times and values by the place of the reading and the device.
type DeviceSeries<'a> = BTreeMap<(usize, &'a str), Vec<(f64, f64)>>;

/// One chart: readings of one kind.
struct Panel {
    key: &'static str,
    what: &'static str,
    quantity: Quantity,
    /// A reading of the host: it is the same in the rows of every device.
    is_of_host: bool,
    /// Each with its name, which is empty where there is one alone.
    readings: &'static [(&'static str, Cell)],
}

const PANELS: [Panel; 9] = [
    Panel {
        key: "gpu-utilization",
        is_of_host: false,
        what: "GPU utilization",
        quantity: Quantity::Fraction,
        readings: &[
            ("GPU", |row| row.gpu_utilization),
            ("SM active", |row| row.sm_active),
            ("tensor cores", |row| row.tensor_active),
        ],
    },
    Panel {
        key: "gpu-memory",
        is_of_host: false,
        what: "GPU memory",
        quantity: Quantity::Bytes,
        readings: &[
            ("all processes", |row| number(row.memory_used_bytes)),
            ("the trial", |row| number(row.process_memory_bytes)),
        ],
    },
    Panel {
        key: "power",
        is_of_host: false,
        what: "Power",
        quantity: Quantity::Of("W"),
        readings: &[("", |row| row.power_watts)],
    },
    Panel {
        key: "temperature",
        is_of_host: false,
        what: "Temperature",
        quantity: Quantity::Of("°C"),
        readings: &[
            ("GPU", |row| row.temperature_celsius),
            ("memory", |row| row.memory_temperature_celsius),
        ],
    },
    Panel {
        key: "clocks",
        is_of_host: false,
        what: "Clocks",
        quantity: Quantity::Of("MHz"),
        readings: &[
            ("SM", |row| number(row.sm_clock_megahertz)),
            ("memory", |row| number(row.memory_clock_megahertz)),
        ],
    },
    Panel {
        key: "pcie",
        is_of_host: false,
        what: "PCIe, per second",
        quantity: Quantity::Bytes,
        readings: &[
            ("to the GPU", |row| row.pcie_receive_bytes_per_second),
            ("from the GPU", |row| row.pcie_transmit_bytes_per_second),
        ],
    },
    Panel {
        key: "cpu",
        is_of_host: true,
        what: "CPU cores busy in the trial",
        quantity: Quantity::Number,
        readings: &[("", |row| row.cpu_cores)],
    },
    Panel {
        key: "host-memory",
        is_of_host: true,
        what: "Host memory of the trial",
        quantity: Quantity::Bytes,
        readings: &[("", |row| number(row.resident_bytes))],
    },
    Panel {
        key: "host",
        is_of_host: true,
        what: "Busy shares of the host",
        quantity: Quantity::Fraction,
        readings: &[
            ("CPU", |row| row.host_cpu_fraction),
            ("disk", |row| row.disk_busy_fraction),
        ],
    },
];

fn number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// Charts of a few trials of each run: the first trial of each selected point.
pub(super) fn series(runs: &[RunView<'_>], faults: &mut Vec<String>) -> Vec<TrialSeries> {
    let each = (MOST_TRIALS / runs.len().max(1)).max(1);
    let mut all = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        let tables = run.folder.map(launch_folder::samples_tables);
        let tables = tables.unwrap_or_default();
        if tables.is_empty() {
            continue;
        }
        let chosen: Vec<(String, &TrialRow)> = run
            .by_loss()
            .into_iter()
            .take(each)
            .filter_map(|point| Some((name_in(runs, place, point), *point.rows.first()?)))
            .collect();
        let ids: HashSet<_> = chosen.iter().map(|(_, row)| &row.trial).collect();
        let mut samples = Vec::new();
        for table in tables {
            match samples_of(&table, &ids) {
                Ok(found) => samples.extend(found),
                Err(error) => faults.push(error.to_string()),
            }
        }
        for (name, row) in chosen {
            let own: Vec<&SampleRow> = samples
                .iter()
                .filter(|sample| sample.trial == row.trial.0 && sample.attempt == row.attempt)
                .collect();
            let window = run.course(row, faults).and_then(|course| course.window);
            let charts: Vec<Chart> = Scene::new(own, row, window)
                .map(|scene| {
                    PANELS
                        .iter()
                        .filter_map(|panel| panel.chart(&scene))
                        .collect()
                })
                .unwrap_or_default();
            if !charts.is_empty() {
                all.push(TrialSeries {
                    trial: row.trial.clone(),
                    name,
                    outcome: row.outcome,
                    charts,
                });
            }
        }
    }
    all
}

/// The readings of one attempt, and what is the same on all its charts.
struct Scene<'a> {
    row: &'a TrialRow,
    samples: Vec<&'a SampleRow>,
    /// Start of the attempt, in seconds since the start of the run.
    start: f64,
    time: AxisUnit,
    bands: Vec<Band>,
    said: &'static str,
}

impl<'a> Scene<'a> {
    /// `None` where nothing was read.
    fn new(
        samples: Vec<&'a SampleRow>,
        row: &'a TrialRow,
        window: Option<(f64, f64)>,
    ) -> Option<Self> {
        let start = row.run_seconds.unwrap_or(samples.first()?.run_seconds);
        let time = AxisUnit::of(
            Quantity::Seconds,
            samples.iter().map(|sample| sample.run_seconds - start),
        );
        let throttled = throttled(&samples);
        let is_read = samples.iter().any(|sample| is_throttled(sample).is_some());
        let said = match (is_read, throttled.is_empty()) {
            (false, _) => "",
            (true, true) => " Nothing held the clocks back at any reading.",
            (true, false) => " Throttled: something held the clocks back at that reading.",
        };
        let mut scene = Self {
            row,
            samples,
            start,
            time,
            bands: Vec::new(),
            said,
        };
        let stretches = window
            .map(|ends| ("measured window", 0, ends))
            .into_iter()
            .chain(throttled.into_iter().map(|ends| ("throttled", 1, ends)));
        scene.bands = stretches
            .map(|(label, color, (from, to))| Band {
                label,
                color,
                from: scene.at(from),
                to: scene.at(to),
            })
            .collect();
        Some(scene)
    }

    /// From the run's seconds to the chart's time.
    fn at(&self, seconds: f64) -> f64 {
        (seconds - self.start) / self.time.size
    }
}

/// Stretches of readings at which a device held itself back: from each such reading to the next of
/// the same device. Stretches that a page shows as one are one.
pub(super) fn throttled(samples: &[&SampleRow]) -> Vec<(f64, f64)> {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Vec::new();
    };
    let near = (last.run_seconds - first.run_seconds) / MOST_MARKS as f64;
    let mut of_device: BTreeMap<&str, Vec<&SampleRow>> = BTreeMap::new();
    samples
        .iter()
        .for_each(|sample| of_device.entry(&sample.device).or_default().push(sample));
    let mut held: Vec<(f64, f64)> = Vec::new();
    for own in of_device.values() {
        let end = |place: usize| {
            own.get(place + 1)
                .map_or(own[place].run_seconds, |next| next.run_seconds)
        };
        held.extend(
            (0..own.len())
                .filter(|place| is_throttled(own[*place]) == Some(true))
                .map(|place| (own[place].run_seconds, end(place))),
        );
    }
    held.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut stretches: Vec<(f64, f64)> = Vec::new();
    for (from, to) in held {
        match stretches.last_mut() {
            Some(last) if from - last.1 <= near => last.1 = last.1.max(to),
            _ => stretches.push((from, to)),
        }
    }
    stretches
}

impl Panel {
    fn chart(&self, scene: &Scene<'_>) -> Option<Chart> {
        let mut series = self.series(scene);
        let all = series.len();
        // By reading, then by device: the first readings of all devices stay.
        while series.len() > MOST_LINES {
            series.pop_last();
        }
        let cut = if series.len() < all {
            format!(" {} of {all} lines.", series.len())
        } else {
            String::new()
        };
        let values = || series.values().flatten().map(|reading| reading.1);
        values().next()?;
        let unit = AxisUnit::of(self.quantity, values());
        let lines = self.lines(&series, unit);
        let marks = || lines.iter().flat_map(|line| &line.marks);
        let times: Vec<f64> = marks().map(|mark| mark.x).collect();
        // A share is of the whole.
        let whole = (self.quantity == Quantity::Fraction).then_some(100.0);
        let heights: Vec<f64> = marks().map(|mark| mark.y).chain(whole).collect();
        Some(Chart {
            name: format!("{}-{}", self.key, scene.row.trial),
            title: unit.after(self.what),
            caption: format!(
                "Trial {}, attempt {}.{}{cut}",
                scene.row.trial, scene.row.attempt, scene.said
            ),
            picture: Picture::Lines(Lines {
                x: ChartAxis::spanning(scene.time.after("time since the trial began"), times),
                y: ChartAxis::from_zero(unit.after(self.what), heights),
                lines,
                bands: scene.bands.clone(),
                is_low: true,
            }),
        })
    }

    /// The readings of each device, of more than one sample.
    fn series<'a>(&self, scene: &'a Scene<'_>) -> DeviceSeries<'a> {
        let mut series = DeviceSeries::new();
        let first = scene.samples.first().map(|sample| sample.device.as_str());
        for sample in scene
            .samples
            .iter()
            .filter(|sample| !self.is_of_host || Some(sample.device.as_str()) == first)
        {
            for (place, (_, reading)) in self.readings.iter().enumerate() {
                if let Some(value) = reading(sample) {
                    series
                        .entry((place, &sample.device))
                        .or_default()
                        .push((scene.at(sample.run_seconds), value));
                }
            }
        }
        series.retain(|_, readings| readings.len() > 1);
        series
    }

    /// Lines named by reading and device, each where there are several.
    fn lines(&self, series: &DeviceSeries<'_>, unit: AxisUnit) -> Vec<ChartLine> {
        let devices: HashSet<&str> = series.keys().map(|(_, device)| *device).collect();
        let kinds: HashSet<usize> = series.keys().map(|(place, _)| *place).collect();
        let named = |place: usize, device: &str| {
            let reading = (kinds.len() > 1).then_some(self.readings[place].0);
            let device = (devices.len() > 1).then_some(device);
            let parts = reading.into_iter().chain(device);
            parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(" of ")
        };
        let line = |(color, ((place, device), readings)): (usize, (&(usize, &str), &Vec<_>))| {
            let marks = enveloped(readings, MOST_MARKS).into_iter();
            ChartLine {
                label: named(*place, device),
                detail: String::new(),
                color,
                shape: MarkShape::Plain,
                marks: marks
                    .map(|(x, y)| ChartMark::at(x, y / unit.size))
                    .collect(),
            }
        };
        series.iter().enumerate().map(line).collect()
    }
}
