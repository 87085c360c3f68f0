//! The columns of a device's line: selects those that fit and formats their values.

use crate::output::frame::cut;

/// Longest name of a GPU, in characters; a longer one is cut.
const LONGEST_NAME: usize = 28;
/// Longest name of a GPU on a narrow terminal, in characters.
const SHORT_NAME: usize = 12;
/// Characters reserved for the last column, which has no fixed width.
const HELD_WIDTH: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViewColumn {
    Time,
    Index,
    Name,
    Utilization,
    Used,
    Total,
    Power,
    Limit,
    Temperature,
    Clock,
    Active,
    Tensor,
    Held,
}

use ViewColumn::{
    Active, Clock, Held, Index, Limit, Name, Power, Temperature, Tensor, Time, Total, Used,
    Utilization,
};
use kiln_core::units::{Bytes, WholePercent};
use kiln_hardware::{
    DeviceFacts, GpuTick, Tick,
    sampler::{THROTTLED, throttle_names},
};

const ALL: [ViewColumn; 13] = [
    Time,
    Index,
    Name,
    Utilization,
    Used,
    Total,
    Power,
    Limit,
    Temperature,
    Clock,
    Active,
    Tensor,
    Held,
];

/// Columns that are hidden when the line is too long, in this order.
enum Saving {
    Leave(ViewColumn),
    ShortNames,
}

const SAVINGS: [Saving; 10] = [
    Saving::Leave(Total),
    Saving::Leave(Limit),
    Saving::ShortNames,
    Saving::Leave(Clock),
    Saving::Leave(Time),
    Saving::Leave(Tensor),
    Saving::Leave(Name),
    Saving::Leave(Held),
    Saving::Leave(Active),
    Saving::Leave(Temperature),
];

impl ViewColumn {
    fn title(self) -> &'static str {
        match self {
            Time => "UTC",
            Index => "GPU",
            Name => "name",
            Utilization => "util",
            Used => "mem used",
            Total => "total",
            Power => "power",
            Limit => "limit",
            Temperature => "temp",
            Clock => "SM clock",
            Active => "SM act",
            Tensor => "tensor",
            Held => "clock limit",
        }
    }

    /// The separator before the column, unless it is the first.
    fn gap(self) -> &'static str {
        match self {
            Name => " ",
            Total | Limit => " / ",
            _ => "  ",
        }
    }

    fn is_left(self) -> bool {
        matches!(self, Time | Name | Total | Limit | Held)
    }

    fn text(self, device: &DeviceFacts, gpu: &GpuTick) -> String {
        match self {
            Utilization => percent(gpu.utilization),
            Used => memory(gpu.memory_used_bytes),
            Total => memory(device.memory_total_bytes.value().copied()),
            Power => watts(gpu.power_watts),
            Limit => watts(device.power_limit_watts.value().copied()),
            Temperature => or_dash(gpu.temperature_celsius, |celsius| format!("{celsius:.0}°C")),
            Clock => or_dash(gpu.sm_clock_megahertz, |megahertz| {
                format!("{megahertz} MHz")
            }),
            Active => percent(gpu.work.sm_active),
            Tensor => percent(gpu.work.tensor_active),
            // An idle GPU is not a clock limit.
            Held => or_dash(gpu.throttle_bits, |bits| {
                throttle_names(bits & THROTTLED).join(" ")
            }),
            Time | Index | Name => String::new(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Columns {
    shown: Vec<ViewColumn>,
    name_width: usize,
    is_short: bool,
}

impl Columns {
    /// All columns.
    pub(super) fn all(devices: &[DeviceFacts]) -> Self {
        let longest = devices
            .iter()
            .map(|device| name(device).chars().count())
            .max()
            .unwrap_or(0);
        Self {
            shown: ALL.to_vec(),
            name_width: longest.clamp(4, LONGEST_NAME),
            is_short: false,
        }
    }

    /// The columns that fit in a line of this many characters.
    pub(super) fn within(room: usize, devices: &[DeviceFacts]) -> Self {
        let mut columns = Self::all(devices);
        for saving in SAVINGS {
            if columns.width() <= room {
                break;
            }
            match saving {
                Saving::Leave(left) => columns.shown.retain(|column| *column != left),
                Saving::ShortNames => {
                    (columns.name_width, columns.is_short) =
                        (columns.name_width.min(SHORT_NAME), true)
                }
            }
        }
        columns
    }

    /// A sentence that names the hidden columns.
    pub(super) fn left_out(&self) -> Option<String> {
        let titles: Vec<&str> = ALL
            .iter()
            .filter(|column| !self.shown.contains(column))
            .map(|column| column.title())
            .collect();
        (!titles.is_empty()).then(|| format!("hidden (terminal too narrow): {}", titles.join(", ")))
    }

    pub(super) fn heading(&self) -> String {
        self.line(&self.shown, |column| column.title().to_owned())
    }

    pub(super) fn device(&self, time: &str, device: &DeviceFacts, tick: &Tick) -> String {
        let start = |column| match column {
            Time => time.to_owned(),
            Index => device.index.to_string(),
            _ => self.name(device),
        };
        let is_start = |column: &ViewColumn| matches!(column, Time | Index | Name);
        match &tick.gpu {
            Some(gpu) => self.line(&self.shown, |column| {
                if is_start(&column) {
                    start(column)
                } else {
                    column.text(device, gpu)
                }
            }),
            None => {
                let shown: Vec<ViewColumn> = self.shown.iter().copied().filter(is_start).collect();
                let why = tick.gpu_absence.as_deref().unwrap_or("-");
                format!("{}  {why}", self.padded(&shown, start))
            }
        }
    }

    fn name(&self, device: &DeviceFacts) -> String {
        let name = name(device);
        let name = if self.is_short {
            name.strip_prefix("NVIDIA ").unwrap_or(name)
        } else {
            name
        };
        cut(name, self.name_width)
    }

    fn width_of(&self, column: ViewColumn) -> usize {
        match column {
            Time | Clock => 8,
            Index => 3,
            Name => self.name_width,
            Utilization | Power => 5,
            Used | Total => 9,
            Limit | Active | Tensor => 6,
            Temperature => 4,
            Held => HELD_WIDTH,
        }
    }

    fn width(&self) -> usize {
        let gaps: usize = self
            .shown
            .iter()
            .skip(1)
            .map(|column| column.gap().len())
            .sum();
        gaps + self
            .shown
            .iter()
            .map(|column| self.width_of(*column))
            .sum::<usize>()
    }

    fn line(&self, shown: &[ViewColumn], text: impl Fn(ViewColumn) -> String) -> String {
        self.padded(shown, text).trim_end().to_owned()
    }

    fn padded(&self, shown: &[ViewColumn], text: impl Fn(ViewColumn) -> String) -> String {
        let mut line = String::new();
        for (place, column) in shown.iter().enumerate() {
            let (gap, text, width) = (
                if place == 0 { "" } else { column.gap() },
                text(*column),
                self.width_of(*column),
            );
            line += &if column.is_left() {
                format!("{gap}{text:<width$}")
            } else {
                format!("{gap}{text:>width$}")
            };
        }
        line
    }
}

fn name(device: &DeviceFacts) -> &str {
    device.name.value().map_or("-", String::as_str)
}

fn percent(share: Option<f64>) -> String {
    or_dash(share, |share| WholePercent(share).to_string())
}

fn memory(bytes: Option<u64>) -> String {
    or_dash(bytes, |bytes| Bytes(bytes).to_string())
}

fn watts(watts: Option<f64>) -> String {
    or_dash(watts, |watts| format!("{watts:.0} W"))
}

pub(super) fn or_dash<T>(value: Option<T>, print: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), print)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_hardware::Reading;

    fn device(name: &str) -> DeviceFacts {
        DeviceFacts {
            index: 0,
            uuid: "GPU-1".into(),
            name: Reading::Value(name.into()),
            memory_total_bytes: Reading::Value(143_771 << 20),
            compute_capability: Reading::absent("not asked"),
            power_limit_watts: Reading::Value(700.0),
            is_mig: Reading::absent("not asked"),
            instance: None,
            is_ecc_enabled: Reading::absent("not asked"),
        }
    }

    fn working() -> Tick {
        let mut gpu = GpuTick {
            utilization: Some(1.0),
            memory_used_bytes: Some(32_362 << 20),
            power_watts: Some(627.4),
            ..GpuTick::default()
        };
        gpu.work.sm_active = Some(0.953);
        gpu.throttle_bits = Some(0x4 | 0x1);
        Tick {
            gpu: Some(gpu),
            ..Tick::default()
        }
    }

    #[test]
    fn a_line_stands_under_its_heading_and_absence_is_a_dash() {
        let device = device("NVIDIA H200");
        let columns = Columns::all(std::slice::from_ref(&device));
        let line = columns.device("15:04:05", &device, &working());
        assert_eq!(
            line,
            "15:04:05    0 NVIDIA H200  100 %   31.6 GiB / 140.4 GiB  627 W / 700 W      -         \
             -    95 %       -  sw_power_cap"
        );
        let ends = |text: &str, word: &str| text.find(word).unwrap() + word.chars().count();
        assert_eq!(
            (
                ends(&columns.heading(), "util"),
                ends(&columns.heading(), "SM act")
            ),
            (ends(&line, "100 %"), ends(&line, "95 %"))
        );
        assert_eq!(columns.left_out(), None);
    }

    #[test]
    fn a_silent_device_says_so_in_its_line() {
        let device = device("NVIDIA H200");
        let tick = Tick {
            gpu_absence: Some("the driver has not answered for 3.0 s".into()),
            ..Tick::default()
        };
        let line = Columns::all(std::slice::from_ref(&device)).device("15:04:05", &device, &tick);
        assert_eq!(
            line,
            "15:04:05    0 NVIDIA H200  the driver has not answered for 3.0 s"
        );
    }

    #[test]
    fn eighty_characters_hold_what_matters_and_the_rest_is_named() {
        let device = device("NVIDIA RTX PRO 6000 Blackwell Server Edition");
        let columns = Columns::within(79, std::slice::from_ref(&device));
        let line = columns.device("15:04:05", &device, &working());
        assert_eq!(
            line,
            "  0 RTX PRO 600…  100 %   31.6 GiB  627 W     -    95 %       -  sw_power_cap"
        );
        assert!(
            columns.width() <= 79 && columns.heading().chars().count() <= 79,
            "{}",
            columns.width()
        );
        assert_eq!(
            columns.left_out().unwrap(),
            "hidden (terminal too narrow): UTC, total, limit, SM clock"
        );
    }

    #[test]
    fn utilization_memory_and_power_are_never_left_out() {
        let device = device("NVIDIA H200");
        let columns = Columns::within(1, std::slice::from_ref(&device));
        assert_eq!(columns.heading(), "GPU   util   mem used  power");
    }
}
