//! Chart of memory by use: the sizes that follow from the number of parameters, and the rest.

use kiln_core::{record::TrialRow, units::counted};
use serde_json::Value;

use super::{RunView, name_in};
use crate::report::{
    chart::{AxisUnit, Bars, Chart, ChartBar, Picture, Quantity},
    points::Point,
};

/// Largest number of bars.
const MOST_BARS: usize = 12;

const ON_GPU: [&str; 6] = [
    "weights",
    "gradients",
    "optimizer state",
    "activations and other tensors",
    "reserved by the allocator, unused",
    "CUDA context and other",
];
const ON_HOST: [&str; 4] = [
    "weights",
    "gradients",
    "optimizer state",
    "the rest of the process",
];

/// A chart for the device and one for processes on the CPU, where there are such trials.
pub(super) fn charts(runs: &[RunView<'_>]) -> Vec<Chart> {
    let all: Vec<_> = runs
        .iter()
        .enumerate()
        .flat_map(|(place, run)| run.points.iter().map(move |point| (place, point)))
        .collect();
    [true, false]
        .into_iter()
        .filter_map(|is_on_gpu| chart(runs, &all, is_on_gpu))
        .collect()
}

fn chart<'a>(
    runs: &[RunView<'_>],
    all: &[(usize, &'a Point<'a>)],
    is_on_gpu: bool,
) -> Option<Chart> {
    let mut bars = fullest_runs(runs, all, is_on_gpu);
    let known = bars.len();
    bars.sort_by(|one, other| other.0.total_cmp(&one.0));
    bars.truncate(MOST_BARS);
    let unit = AxisUnit::of(Quantity::Bytes, bars.iter().map(|bar| bar.0));
    let shown: Vec<ChartBar> = bars
        .into_iter()
        .map(|(total, run, point, parts)| ChartBar {
            name: name_in(runs, run, point),
            parts: parts.into_iter().map(|part| part / unit.size).collect(),
            total: total / unit.size,
        })
        .collect();
    let cut = if known > MOST_BARS {
        format!(" {MOST_BARS} of {}: the fullest.", counted(known, "point"))
    } else {
        String::new()
    };
    let (what, how) = match is_on_gpu {
        true => (
            "device",
            "the allocator's peaks and, where the driver tells it, what the process holds",
        ),
        false => (
            "host",
            "the peak of what the process held in RAM, including program pages",
        ),
    };
    (!shown.is_empty()).then(|| Chart {
        name: format!("memory-of-{what}"),
        title: unit.after(&format!("Use of {what} memory")),
        caption: format!(
            "The fullest run of each point; by {how}. Weights, gradients and optimizer state \
             follow from the number of parameters; an optimizer whose state does not is among the \
             rest.{cut}"
        ),
        picture: Picture::Bars(Bars {
            quantity: unit.after("Memory"),
            parts: if is_on_gpu {
                ON_GPU.to_vec()
            } else {
                ON_HOST.to_vec()
            },
            bars: shown,
        }),
    })
}

/// The memory of the fullest run of each point, its run and point, and its parts.
fn fullest_runs<'a>(
    runs: &[RunView<'_>],
    all: &[(usize, &'a Point<'a>)],
    is_on_gpu: bool,
) -> Vec<(f64, usize, &'a Point<'a>, Vec<f64>)> {
    let sizes: Vec<SizeSource> = runs.iter().map(SizeSource::of).collect();
    let bar = |(run, point): &(usize, &'a Point<'a>)| {
        let fullest = point
            .completed()
            .filter(|row| row.is_on_gpu() == is_on_gpu)
            .max_by_key(|row| row.memory_held_bytes())?;
        let parts = if is_on_gpu {
            sizes[*run].on_gpu(fullest, point)?
        } else {
            sizes[*run].on_host(fullest, point)?
        };
        Some((parts.iter().sum::<f64>(), *run, *point, parts))
    };
    all.iter().filter_map(bar).collect()
}

/// Sources of the sizes of a run's trials.
struct SizeSource<'a> {
    axes: &'a [String],
    optimizer: Option<Value>,
}

impl<'a> SizeSource<'a> {
    fn of(run: &RunView<'a>) -> Self {
        Self {
            axes: &run.table.axes,
            optimizer: run
                .settings
                .as_ref()
                .and_then(|file| file.get("train")?.get("optimizer").cloned()),
        }
    }

    /// Weights, gradients, optimizer state, in bytes. `None` for what does not train and for trials
    /// on several devices.
    fn known(&self, row: &TrialRow, point: &Point<'_>) -> [f64; 3] {
        let parameters = row
            .parameters
            .filter(|_| row.devices_per_trial.unwrap_or(1) <= 1)
            .unwrap_or(0) as f64;
        let bytes = if row.precision == "bf16" { 2.0 } else { 4.0 };
        [
            parameters * bytes,
            parameters * bytes,
            parameters * bytes * self.moments(point),
        ]
    }

    /// Numbers that the optimizer keeps of each parameter; 0 where that is not a plain count.
    fn moments(&self, point: &Point<'_>) -> f64 {
        let of_axis = |key: &str| {
            let place = self
                .axes
                .iter()
                .position(|axis| axis == &format!("train.optimizer.{key}"))?;
            point.values.get(place).cloned()
        };
        let of_file = |key: &str| self.optimizer.as_ref()?.get(key).cloned();
        // An axis of whole optimizers hides what the file says.
        if self.axes.iter().any(|axis| axis == "train.optimizer") {
            return 0.0;
        }
        let kind = of_axis("kind").or_else(|| of_file("kind")?.as_str().map(str::to_owned));
        let momentum = of_axis("momentum")
            .and_then(|cell| cell.parse().ok())
            .or_else(|| of_file("momentum")?.as_f64());
        match kind.as_deref() {
            Some("adamw" | "adam") => 2.0,
            Some("sgd") if momentum.is_some_and(|momentum| momentum > 0.0) => 1.0,
            _ => 0.0,
        }
    }

    fn on_gpu(&self, row: &TrialRow, point: &Point<'_>) -> Option<Vec<f64>> {
        let allocated = row.peak_allocated_bytes? as f64;
        let reserved = row
            .peak_reserved_bytes
            .map_or(allocated, |bytes| bytes as f64)
            .max(allocated);
        // The memory of all processes is not the memory of this one.
        let all = row
            .peak_nvml_process_bytes
            .map_or(reserved, |bytes| bytes as f64)
            .max(reserved);
        let mut parts = within(self.known(row, point), allocated);
        parts.extend([reserved - allocated, all - reserved]);
        Some(parts)
    }

    fn on_host(&self, row: &TrialRow, point: &Point<'_>) -> Option<Vec<f64>> {
        Some(within(
            self.known(row, point),
            row.peak_resident_bytes? as f64,
        ))
    }
}

/// The known parts and what is left of the whole. What does not fit in the whole was not there at
/// once: nothing is known then.
fn within(known: [f64; 3], whole: f64) -> Vec<f64> {
    let left = whole - known.iter().sum::<f64>();
    if left < 0.0 {
        vec![0.0, 0.0, 0.0, whole]
    } else {
        known.into_iter().chain([left]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::points::tests::{row, table};

    fn bars(row: TrialRow, experiment: Option<&str>) -> Vec<Vec<f64>> {
        let table = table(&[], vec![(row, &[])]);
        let run = RunView {
            settings: experiment.map(|text| serde_yaml::from_str(text).unwrap()),
            ..RunView::new("r".into(), &table)
        };
        let of = |chart: Chart| match chart.picture {
            Picture::Bars(bars) => bars
                .bars
                .into_iter()
                .map(|bar| bar.parts)
                .collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        charts(&[run]).into_iter().flat_map(of).collect()
    }

    const ADAMW: Option<&str> = Some("train: {optimizer: {kind: adamw}}");

    #[test]
    fn the_parts_of_a_device_add_up_to_what_the_driver_saw() {
        let mebibytes = |count: u64| Some(count << 20);
        let on_gpu = TrialRow {
            parameters: mebibytes(10),
            peak_allocated_bytes: mebibytes(500),
            peak_reserved_bytes: mebibytes(600),
            peak_nvml_process_bytes: mebibytes(1000),
            ..row(1, 1.0)
        };
        assert_eq!(
            bars(on_gpu.clone(), ADAMW),
            [[40.0, 40.0, 80.0, 340.0, 100.0, 400.0]]
        );
        assert_eq!(
            bars(
                on_gpu.clone(),
                Some("train: {optimizer: {kind: sgd, momentum: 0.9}}")
            )[0][2],
            40.0
        );
        assert_eq!(
            bars(
                TrialRow {
                    precision: "bf16".into(),
                    ..on_gpu.clone()
                },
                ADAMW
            )[0][..3],
            [20.0, 20.0, 40.0]
        );
        let small = TrialRow {
            peak_allocated_bytes: mebibytes(100),
            ..on_gpu
        };
        assert_eq!(bars(small, ADAMW)[0][..4], [0.0, 0.0, 0.0, 100.0]);
    }

    #[test]
    fn a_process_on_the_cpu_has_what_it_held_in_ram_and_nothing_known_is_no_chart() {
        let on_host = TrialRow {
            device_uuid: None,
            parameters: Some(1 << 20),
            peak_resident_bytes: Some(100 << 20),
            ..row(1, 1.0)
        };
        assert_eq!(bars(on_host.clone(), None), [[4.0, 4.0, 0.0, 92.0]]);
        assert!(
            bars(
                TrialRow {
                    peak_resident_bytes: None,
                    ..on_host
                },
                None
            )
            .is_empty()
        );
        assert!(bars(row(1, 1.0), None).is_empty());
    }
}
