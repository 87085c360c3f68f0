//! Charts of hardware readings over time during a trial, with the measured window and throttling
//! marked.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use kiln_core::record::{SampleRow, TableError, TrialRow, launch_folder};

use super::{
    MOST_LINES, RunView, TrialSeries, long_series::LongSeries, name_in, or_fault,
    throttling::Throttling,
};
use crate::{
    readings::samples::each_sample,
    report::chart::{
        AxisUnit, Band, Chart, ChartAxis, ChartLine, ChartMark, Lines, MarkShape, Picture, Quantity,
    },
};

/// Trials whose readings are shown.
const MOST_TRIALS: usize = 6;

type Cell = fn(&SampleRow) -> Option<f64>;

/// Times and values by the place of the reading and the device.
type DeviceSeries<'a> = BTreeMap<(usize, &'a str), &'a LongSeries>;

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
        let mut readings: Vec<Readings> = chosen.iter().map(|_| Readings::default()).collect();
        for table in tables {
            let found = or_fault(readings_in(&table, &chosen), faults);
            for (known, found) in readings.iter_mut().zip(found.unwrap_or_default()) {
                // An attempt is of one launch, and so in one table.
                if known.devices.is_empty() {
                    *known = found;
                }
            }
        }
        for ((name, row), readings) in chosen.into_iter().zip(&readings) {
            let window = run.window(row, faults);
            let charts: Vec<Chart> = Scene::new(readings, row, window)
                .map(|scene| {
                    PANELS
                        .iter()
                        .enumerate()
                        .filter_map(|(place, panel)| panel.chart(place, &scene))
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

/// The readings of one attempt, as far as its charts need them.
#[derive(Debug, Default)]
struct Readings {
    /// In the order of their first rows.
    devices: Vec<ChartedDevice>,
    throttling: Throttling,
}

#[derive(Debug)]
struct ChartedDevice {
    name: String,
    /// Seconds of the run and values, by the place of the panel and of the reading.
    series: Vec<Vec<LongSeries>>,
}

/// The readings of each of these attempts in one table.
fn readings_in(table: &Path, chosen: &[(String, &TrialRow)]) -> Result<Vec<Readings>, TableError> {
    let ids: HashSet<_> = chosen.iter().map(|(_, row)| &row.trial).collect();
    let mut found: Vec<Readings> = chosen.iter().map(|_| Readings::default()).collect();
    each_sample(table, &ids, &mut |sample| {
        for ((_, row), readings) in chosen.iter().zip(&mut found) {
            if sample.trial == row.trial.0 && sample.attempt == row.attempt {
                readings.push(&sample);
            }
        }
    })?;
    Ok(found)
}

impl Readings {
    fn push(&mut self, sample: &SampleRow) {
        self.throttling.push(sample);
        let devices = &mut self.devices;
        let known = devices
            .iter()
            .position(|device| device.name == sample.device);
        let place = known.unwrap_or(devices.len());
        if known.is_none() {
            devices.push(ChartedDevice::new(&sample.device));
        }
        for (panel, series) in PANELS.iter().zip(&mut devices[place].series) {
            if panel.is_of_host && place > 0 {
                continue;
            }
            for ((_, reading), series) in panel.readings.iter().zip(series) {
                if let Some(value) = reading(sample) {
                    series.push((sample.run_seconds, value));
                }
            }
        }
    }
}

impl ChartedDevice {
    fn new(name: &str) -> Self {
        let none = |panel: &Panel| -> Vec<LongSeries> {
            let readings = panel.readings.iter();
            readings.map(|_| LongSeries::of_peaks()).collect()
        };
        Self {
            name: name.to_owned(),
            series: PANELS.iter().map(none).collect(),
        }
    }
}

/// The readings of one attempt, and what is the same on all its charts.
struct Scene<'a> {
    row: &'a TrialRow,
    readings: &'a Readings,
    /// Start of the attempt, in seconds since the start of the run.
    start: f64,
    time: AxisUnit,
    bands: Vec<Band>,
    said: &'static str,
}

impl<'a> Scene<'a> {
    /// `None` where nothing was read.
    fn new(readings: &'a Readings, row: &'a TrialRow, window: Option<(f64, f64)>) -> Option<Self> {
        let (first, last) = readings.throttling.reach?;
        let start = row.run_seconds.unwrap_or(first);
        let time = AxisUnit::of(Quantity::Seconds, [first - start, last - start]);
        let throttled = readings.throttling.stretches();
        let said = match (readings.throttling.is_read, throttled.is_empty()) {
            (false, _) => "",
            (true, true) => " Nothing held the clocks back at any reading.",
            (true, false) => " Throttled: something held the clocks back at that reading.",
        };
        let mut scene = Self {
            row,
            readings,
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

impl Panel {
    /// `place` is its own among the panels.
    fn chart(&self, place: usize, scene: &Scene<'_>) -> Option<Chart> {
        let mut series = Self::series(place, scene);
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
        let values = || {
            let points = series.values().flat_map(|series| series.points());
            points.map(|reading| reading.1)
        };
        values().next()?;
        let unit = AxisUnit::of(self.quantity, values());
        let lines = self.lines(&series, scene, unit);
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
    fn series<'a>(place: usize, scene: &'a Scene<'_>) -> DeviceSeries<'a> {
        let of_device = |device: &'a ChartedDevice| {
            let series = device.series[place].iter().enumerate();
            series.map(move |(reading, series)| ((reading, device.name.as_str()), series))
        };
        let devices = scene.readings.devices.iter();
        devices
            .flat_map(of_device)
            .filter(|(_, series)| series.is_line())
            .collect()
    }

    /// Lines named by reading and device, each where there are several.
    fn lines(
        &self,
        series: &DeviceSeries<'_>,
        scene: &Scene<'_>,
        unit: AxisUnit,
    ) -> Vec<ChartLine> {
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
        let line =
            |(color, ((place, device), readings)): (usize, (&(usize, &str), &&LongSeries))| {
                let marks = readings.marks().into_iter();
                ChartLine {
                    label: named(*place, device),
                    detail: String::new(),
                    color,
                    shape: MarkShape::Plain,
                    marks: marks
                        .map(|(x, y)| ChartMark::at(scene.at(x), y / unit.size))
                        .collect(),
                }
            };
        series.iter().enumerate().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::{TableWriter, tables::SAMPLES};

    use super::super::{MOST_MARKS, long_series::enveloped};
    use super::*;
    use crate::report::points::tests::row;

    /// The reading of a device at a tick of half a second.
    fn sample(trial: &TrialRow, device: usize, tick: usize) -> SampleRow {
        SampleRow {
            kiln_table: SAMPLES.version.to_owned(),
            trial: trial.trial.0.clone(),
            attempt: trial.attempt,
            device: format!("GPU-{device}"),
            run_seconds: tick as f64 * 0.5,
            gpu_utilization: Some((tick * 7919 % 100) as f64 / 100.0),
            memory_used_bytes: Some((tick as u64 + 1) << 20),
            power_watts: Some((tick * 104_729 % 700) as f64),
            cpu_cores: Some((tick % 7) as f64),
            throttle_bits: Some(if tick % 5 == device { 0x40 } else { 1 }),
            ..SampleRow::default()
        }
    }

    fn readings(trial: &TrialRow, devices: usize, ticks: usize) -> Readings {
        let mut readings = Readings::default();
        for tick in 0..ticks {
            (0..devices).for_each(|device| readings.push(&sample(trial, device, tick)));
        }
        readings
    }

    #[test]
    fn of_a_long_table_only_as_much_is_kept_as_pictures_need() {
        let found = readings(&row(1, 10.0), 4, 75_000);
        let series = found.devices.iter().flat_map(|device| &device.series);
        let series = series.flatten();
        let kept: usize = series.map(|series| series.points().count()).sum();
        // 300,000 rows: utilization, memory and power of four devices, and the cores of one host.
        assert!(kept < 13 * 70 * MOST_MARKS, "{kept} points");
        assert!(kept > 13 * 30 * MOST_MARKS, "{kept} points");
        assert!(found.throttling.kept() <= 4 * MOST_MARKS);
    }

    #[test]
    fn a_line_is_that_of_all_readings() {
        let trial = TrialRow {
            run_seconds: Some(2.0),
            ..row(1, 10.0)
        };
        let found = readings(&trial, 2, 5_000);
        let scene = Scene::new(&found, &trial, Some((100.0, 200.0))).unwrap();
        let line = |key: &str, size: f64, value: fn(&SampleRow) -> f64| {
            let place = PANELS.iter().position(|panel| panel.key == key).unwrap();
            let chart = PANELS[place].chart(place, &scene).unwrap();
            let Picture::Lines(lines) = chart.picture else {
                panic!("lines")
            };
            let samples = (0..5_000).map(|tick| sample(&trial, 0, tick));
            let whole: Vec<(f64, f64)> = samples
                .map(|sample| ((sample.run_seconds - 2.0) / 60.0, value(&sample)))
                .collect();
            let expected: Vec<(f64, f64)> = enveloped(&whole, MOST_MARKS)
                .into_iter()
                .map(|(x, y)| (x, y / size))
                .collect();
            let marks = lines.lines[0].marks.iter().map(|mark| (mark.x, mark.y));
            assert_eq!(marks.collect::<Vec<_>>(), expected, "{key}");
            lines.lines.len()
        };
        assert_eq!(line("power", 1.0, |row| row.power_watts.unwrap()), 2);
        let bytes = |row: &SampleRow| row.memory_used_bytes.unwrap() as f64;
        assert_eq!(line("gpu-memory", (1_u64 << 30) as f64, bytes), 2);
        // The host is the same in the rows of both devices.
        assert_eq!(line("cpu", 1.0, |row| row.cpu_cores.unwrap()), 1);
        assert_eq!(
            (scene.bands[0].from, scene.bands[0].label),
            (98.0 / 60.0, "measured window")
        );
    }

    #[test]
    fn readings_are_of_their_attempt_and_a_table_with_a_bad_row_gives_none() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("samples.csv");
        let (first, second) = (row(1, 10.0), row(2, 10.0));
        let later = TrialRow {
            attempt: first.attempt + 1,
            ..first.clone()
        };
        let (mut writer, _) = TableWriter::open(&path, SAMPLES.spec(&[])).unwrap();
        for tick in 0..10 {
            for (trial, ticks) in [(&first, 10), (&second, 5), (&later, 8)] {
                if tick < ticks {
                    writer.append_row(&sample(trial, 0, tick)).unwrap();
                }
            }
        }
        let chosen = [("a".to_owned(), &first), ("b".to_owned(), &second)];
        let reach = |of: &Readings| of.throttling.reach;
        let found = readings_in(&path, &chosen).unwrap();
        let found: Vec<_> = found.iter().map(reach).collect();
        assert_eq!(found, [Some((0.0, 4.5)), Some((0.0, 2.0))]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{},1,often\n", SAMPLES.version)).unwrap();
        assert!(readings_in(&path, &chosen).is_err());
    }
}
