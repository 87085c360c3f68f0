//! One reading as the views print it: its kind defines unit and format, its absence gives the
//! reason.

use crate::{Absence, Reading};

/// A value in NVML's own unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Count(u64),
    Signed(i64),
    Real(f64),
    Flag(bool),
    Words(String),
}

/// The kind of a value; it determines the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Names, versions and plain numbers.
    Plain,
    Bytes,
    Milliwatts,
    MilliwattsPerSecond,
    Millijoules,
    Percent,
    /// Percent with two decimals.
    FinePercent,
    Megahertz,
    Celsius,
    /// nvidia-smi prints microseconds.
    Nanoseconds,
    Microseconds,
    Milliseconds,
    Seconds,
    KilobytesPerSecond,
    Lanes,
    Banks,
    Bits,
    Cores,
    /// Microseconds of Unix time.
    Moment,
    /// Least number of digits; upper case.
    Hex(usize),
    LowerHex(usize),
    /// Words for no and yes.
    Flag(&'static str, &'static str),
}

pub const ENABLED: ValueKind = ValueKind::Flag("Disabled", "Enabled");
pub const YES: ValueKind = ValueKind::Flag("No", "Yes");
pub const ACTIVE: ValueKind = ValueKind::Flag("Not Active", "Active");
pub const TRUE: ValueKind = ValueKind::Flag("False", "True");

/// A reading with its kind.
#[derive(Clone, Debug)]
pub struct TypedReading {
    pub kind: ValueKind,
    pub value: Reading<Value>,
}

impl TypedReading {
    /// As `nvidia-smi -q` prints it.
    pub fn text(&self) -> String {
        match &self.value {
            Reading::Value(value) => match self.kind {
                ValueKind::FinePercent => format!("{}%", self.number(value)),
                ValueKind::Lanes => format!("{}x", self.number(value)),
                ValueKind::Banks => format!("{} bank(s)", self.number(value)),
                ValueKind::Celsius => format!("{} C", self.number(value)),
                _ => self.with_unit(value),
            },
            Reading::Absent(absence) => token(absence).to_owned(),
        }
    }

    /// As `nvidia-smi --query-gpu` prints it, with its unit or without. `is_bare`: no brackets
    /// around N/A.
    pub fn query(&self, has_units: bool, is_bare: bool) -> String {
        match &self.value {
            Reading::Value(value) if has_units => self.with_unit(value),
            Reading::Value(value) => self.number(value),
            Reading::Absent(_) if is_bare => "N/A".to_owned(),
            Reading::Absent(Absence::NoSymbol) => "[Function Not Found]".to_owned(),
            Reading::Absent(absence) => format!("[{}]", token(absence)),
        }
    }

    /// The unit in brackets in the header of `--query-gpu`; empty for none.
    pub fn query_unit(&self) -> &'static str {
        match self.kind {
            ValueKind::Bytes => "MiB",
            ValueKind::Milliwatts => "W",
            ValueKind::MilliwattsPerSecond => "W/s",
            ValueKind::Millijoules => "J",
            ValueKind::Percent | ValueKind::FinePercent => "%",
            ValueKind::Megahertz => "MHz",
            ValueKind::Nanoseconds | ValueKind::Microseconds => "us",
            ValueKind::Milliseconds => "ms",
            ValueKind::Seconds => "seconds",
            ValueKind::KilobytesPerSecond => "KB/s",
            // nvidia-smi gives temperatures, lanes and banks without a unit there.
            _ => "",
        }
    }

    /// The value of a tidy table and its unit: whole and unrounded.
    pub fn tidy(&self) -> (Reading<String>, &'static str) {
        let unit = match self.kind {
            ValueKind::Bytes => "B",
            ValueKind::Nanoseconds => "ns",
            ValueKind::Seconds => "s",
            ValueKind::Celsius => "C",
            ValueKind::Lanes => "lanes",
            ValueKind::Banks => "banks",
            ValueKind::Bits => "bit",
            ValueKind::Cores => "cores",
            _ => self.query_unit(),
        };
        let value = self.value.as_ref().map(|value| match (value, self.kind) {
            (
                Value::Count(thousandths),
                ValueKind::Milliwatts | ValueKind::MilliwattsPerSecond | ValueKind::Millijoules,
            ) => (*thousandths as f64 / 1e3).to_string(),
            (Value::Flag(flag), _) => flag.to_string(),
            (Value::Count(_), ValueKind::Hex(_) | ValueKind::LowerHex(_) | ValueKind::Moment) => {
                self.number(value)
            }
            (value, _) => plain(value),
        });
        (value, unit)
    }

    fn with_unit(&self, value: &Value) -> String {
        match self.query_unit() {
            "" => self.number(value),
            unit => format!("{} {unit}", self.number(value)),
        }
    }

    /// The value in the unit of nvidia-smi.
    fn number(&self, value: &Value) -> String {
        const MIB: u64 = 1 << 20;
        match (value, self.kind) {
            // nvidia-smi rounds memory up.
            (Value::Count(bytes), ValueKind::Bytes) => bytes.div_ceil(MIB).to_string(),
            (
                Value::Count(thousandths),
                ValueKind::Milliwatts | ValueKind::MilliwattsPerSecond | ValueKind::Millijoules,
            ) => {
                format!("{:.2}", *thousandths as f64 / 1e3)
            }
            (Value::Count(nanoseconds), ValueKind::Nanoseconds) => (nanoseconds / 1000).to_string(),
            (Value::Real(percent), ValueKind::FinePercent) => format!("{percent:.2}"),
            (Value::Count(number), ValueKind::Hex(digits)) => format!("0x{number:0digits$X}"),
            (Value::Count(number), ValueKind::LowerHex(digits)) => format!("0x{number:0digits$x}"),
            (Value::Count(microseconds), ValueKind::Moment) => moment(*microseconds),
            (Value::Flag(flag), ValueKind::Flag(no, yes)) => {
                if *flag { yes } else { no }.to_owned()
            }
            (value, _) => plain(value),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Count(number) => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Words(words) => words.clone(),
    }
}

/// nvidia-smi's words for a reading that is not there.
pub fn token(absence: &Absence) -> &'static str {
    match absence {
        // It may have the value.
        Absence::Silent(_) | Absence::NoThread(_) | Absence::Panicked => "Unknown Error",
        // 25 is a structure that the driver is too old or too new for. 27 (not ready) is what an
        // H200 answers that has never flushed its black box; nvidia-smi 580.159 prints `N/A`.
        Absence::NotSupported
        | Absence::NoCall
        | Absence::NoSymbol
        | Absence::Other(_)
        | Absence::Code(25 | 27) => "N/A",
        Absence::NoPermission => "Insufficient Permissions",
        Absence::Deprecated => "Requested functionality has been deprecated",
        Absence::Lost => "GPU is lost",
        Absence::NotFound => "Not Found",
        Absence::Code(16) => "GPU requires reset",
        Absence::Code(_) => "Unknown Error",
    }
}

/// Local time as nvidia-smi writes it: `2026/07/03 22:11:09.763`.
fn moment(unix_microseconds: u64) -> String {
    let time = i64::try_from(unix_microseconds)
        .ok()
        .and_then(|time| jiff::Timestamp::from_microsecond(time).ok());
    match time {
        Some(time) => time
            .to_zoned(jiff::tz::TimeZone::system())
            .strftime("%Y/%m/%d %H:%M:%S%.3f")
            .to_string(),
        None => format!("{unix_microseconds} us"),
    }
}

macro_rules! cells {
    ($($name:ident($type:ty) = $kind:expr, $value:expr;)*) => { $(
        pub(in crate) fn $name(reading: &Reading<$type>) -> TypedReading {
            TypedReading { kind: $kind, value: reading.as_ref().map($value) }
        }
    )* };
}

cells! {
    words(String) = ValueKind::Plain, |words| Value::Words(words.clone());
    count(u64) = ValueKind::Plain, |count| Value::Count(*count);
    bytes(u64) = ValueKind::Bytes, |bytes| Value::Count(*bytes);
    watts(u64) = ValueKind::Milliwatts, |milliwatts| Value::Count(*milliwatts);
    watts_per_second(u64) = ValueKind::MilliwattsPerSecond, |milliwatts| Value::Count(*milliwatts);
    joules(u64) = ValueKind::Millijoules, |millijoules| Value::Count(*millijoules);
    percent(u64) = ValueKind::Percent, |percent| Value::Count(*percent);
    fine_percent(f64) = ValueKind::FinePercent, |percent| Value::Real(*percent);
    megahertz(u64) = ValueKind::Megahertz, |megahertz| Value::Count(*megahertz);
    celsius(i64) = ValueKind::Celsius, |celsius| Value::Signed(*celsius);
    nanoseconds(u64) = ValueKind::Nanoseconds, |time| Value::Count(*time);
    microseconds(u64) = ValueKind::Microseconds, |time| Value::Count(*time);
    milliseconds(u64) = ValueKind::Milliseconds, |time| Value::Count(*time);
    seconds(u64) = ValueKind::Seconds, |time| Value::Count(*time);
    moment_of(u64) = ValueKind::Moment, |time| Value::Count(*time);
    rate(u64) = ValueKind::KilobytesPerSecond, |rate| Value::Count(*rate);
    lanes(u64) = ValueKind::Lanes, |lanes| Value::Count(*lanes);
    banks(u64) = ValueKind::Banks, |banks| Value::Count(*banks);
    wires(u64) = ValueKind::Bits, |bits| Value::Count(*bits);
    enabled(bool) = ENABLED, |flag| Value::Flag(*flag);
    yes(bool) = YES, |flag| Value::Flag(*flag);
    truth(bool) = TRUE, |flag| Value::Flag(*flag);
}

pub(super) fn hex(reading: &Reading<u64>, digits: usize) -> TypedReading {
    TypedReading {
        kind: ValueKind::Hex(digits),
        value: reading.as_ref().map(|number| Value::Count(*number)),
    }
}

pub(super) fn lower_hex(reading: &Reading<u64>, digits: usize) -> TypedReading {
    TypedReading {
        kind: ValueKind::LowerHex(digits),
        value: reading.as_ref().map(|number| Value::Count(*number)),
    }
}

/// A bit of a mask, as nvidia-smi's `Active` or `Not Active`.
pub(super) fn active(mask: &Reading<u64>, bit: u64) -> TypedReading {
    TypedReading {
        kind: ACTIVE,
        value: mask.as_ref().map(|mask| Value::Flag(mask & bit != 0)),
    }
}

/// A number that represents a word. A number newer than the list is printed as it is.
pub(super) fn coded(reading: &Reading<u64>, known: &[&str]) -> TypedReading {
    let word = |number: &u64| {
        usize::try_from(*number)
            .ok()
            .and_then(|at| known.get(at))
            .map_or_else(|| number.to_string(), |word| (*word).to_owned())
    };
    TypedReading {
        kind: ValueKind::Plain,
        value: reading.as_ref().map(|number| Value::Words(word(number))),
    }
}

/// A field for which there is no source.
pub(super) fn nothing(absence: Absence) -> TypedReading {
    TypedReading {
        kind: ValueKind::Plain,
        value: Reading::Absent(absence),
    }
}

/// The same kind, without a value.
pub(super) fn no_call(kind: ValueKind) -> TypedReading {
    TypedReading {
        kind,
        value: Reading::Absent(Absence::NoCall),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_view_has_its_own_form_of_a_value() {
        let memory = bytes(&Reading::Value((614 << 20) - 5));
        assert_eq!(
            (memory.text(), memory.query(false, false), memory.tidy().0),
            (
                "614 MiB".into(),
                "614".into(),
                Reading::Value("643825659".into())
            )
        );
        let draw = watts(&Reading::Value(627_325));
        assert_eq!(
            (draw.text(), draw.tidy()),
            (
                "627.33 W".to_owned(),
                (Reading::Value("627.325".to_owned()), "W")
            )
        );
        let peak = fine_percent(&Reading::Value(100.0));
        assert_eq!(
            (peak.text(), peak.query(true, false)),
            ("100.00%".to_owned(), "100.00 %".to_owned())
        );
        let warm = celsius(&Reading::Value(-2));
        assert_eq!(
            (warm.text(), warm.query(true, false), warm.query_unit()),
            ("-2 C".to_owned(), "-2".to_owned(), "")
        );
        let width = lanes(&Reading::Value(16));
        assert_eq!(
            (width.text(), width.query(true, false)),
            ("16x".to_owned(), "16".to_owned())
        );
        assert_eq!(hex(&Reading::Value(0x0c), 2).text(), "0x0C");
        assert_eq!(
            nanoseconds(&Reading::Value(204_642_816_999)).text(),
            "204642816 us"
        );
    }

    #[test]
    fn each_reason_has_nvidia_smis_word() {
        let words = |absence: Absence| nothing(absence).query(true, false);
        assert_eq!(words(Absence::NotSupported), "[N/A]");
        assert_eq!(
            words(Absence::Silent(Duration::from_secs(5))),
            "[Unknown Error]"
        );
        assert_eq!(
            words(Absence::Deprecated),
            "[Requested functionality has been deprecated]"
        );
        assert_eq!(words(Absence::NoPermission), "[Insufficient Permissions]");
        assert_eq!(words(Absence::Lost), "[GPU is lost]");
        assert_eq!(words(Absence::Code(21)), "[Unknown Error]");
        assert_eq!(words(Absence::Code(16)), "[GPU requires reset]");
        assert_eq!(words(Absence::Code(27)), "[N/A]");
        assert_eq!(nothing(Absence::NoSymbol).text(), "N/A");
    }

    #[test]
    fn a_code_newer_than_the_list_stays_a_number() {
        assert_eq!(coded(&Reading::Value(1), &["None", "HMM"]).text(), "HMM");
        assert_eq!(coded(&Reading::Value(9), &["None", "HMM"]).text(), "9");
    }
}
