//! A reading of the machine: a value, or the reason why there is none.

use std::{fmt, time::Duration};

/// One thing read from the machine. Absent is never 0: an absent reading becomes an empty cell with
/// this reason beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    Value(T),
    Absent(Absence),
}

/// The reason why there is no value. The driver's reasons are separate, because nvidia-smi has its
/// own word for each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// This device does not have it.
    NotSupported,
    NoPermission,
    /// The driver has withdrawn the question.
    Deprecated,
    /// The driver's library is older or newer than the question.
    NoSymbol,
    NotFound,
    /// The device fell off the bus or cannot be reached.
    Lost,
    /// nvidia-smi shows it, but NVML has no public call for it.
    NoCall,
    /// Another of NVML's return codes (`nvmlReturn_t`).
    Code(u32),
    /// A driver that hangs: it has not answered for so long.
    Silent(Duration),
    /// No thread could be started to ask the driver; the system's error.
    NoThread(String),
    /// The thread that asked the driver panicked.
    Panicked,
    /// Reasons that do not come from NVML, such as a missing file or an unexpected text.
    Other(String),
}

impl Absence {
    /// NVML's return code as a reason. Code 0 (success) is not a reason and should not come here.
    pub fn of_code(code: u32) -> Self {
        match code {
            3 => Self::NotSupported,
            4 => Self::NoPermission,
            6 => Self::NotFound,
            13 => Self::NoSymbol,
            15 => Self::Lost,
            26 => Self::Deprecated,
            other => Self::Code(other),
        }
    }

    /// Whether the answer will be the same at every further call. 25 is a structure this driver
    /// does not know, 30 a reset type.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::NotSupported
                | Self::NoPermission
                | Self::Deprecated
                | Self::NoSymbol
                | Self::NoCall
                | Self::Code(25 | 30)
        )
    }
}

/// The words of the tables.
impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSupported => f.write_str("not supported by this device"),
            Self::NoPermission => f.write_str("this user may not read it"),
            Self::Deprecated => f.write_str("deprecated in this driver"),
            Self::NoSymbol => f.write_str("this driver does not provide it"),
            Self::NotFound => f.write_str("not found"),
            Self::Lost => f.write_str("the GPU is lost: it fell off the bus or is inaccessible"),
            Self::NoCall => f.write_str("NVML has no call for it"),
            Self::Code(code) => match code_words(*code) {
                Some(words) => write!(f, "{words} (NVML error {code})"),
                None => write!(f, "NVML error {code}"),
            },
            Self::Silent(time) => write!(
                f,
                "the driver has not answered for {} s",
                time.as_secs_f64()
            ),
            Self::NoThread(error) => write!(
                f,
                "the driver was not asked: no thread could be started ({error})"
            ),
            Self::Panicked => f.write_str("the thread that asked the driver panicked"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

/// `nvmlReturn_t` of nvml.h 13.3, the codes without their own [`Absence`].
fn code_words(code: u32) -> Option<&'static str> {
    Some(match code {
        1 => "the library is not started",
        2 => "the driver does not accept an argument",
        7 => "a buffer too small",
        8 => "a power cable is missing",
        9 => "the driver is not loaded",
        10 => "the driver did not answer in time",
        11 => "an interrupt of the GPU has a problem",
        12 => "a library of the driver was not found",
        14 => "the board's inforom is corrupt",
        16 => "the GPU needs a reset",
        17 => "the operating system refused",
        18 => "the driver's library and kernel module differ in version",
        19 => "in use",
        20 => "not enough memory",
        21 => "no data",
        23 => "not enough resources",
        25 => "a structure version the driver does not know",
        27 => "not ready",
        28 => "GPU not found",
        29 => "not possible in this state",
        999 => "unknown error",
        _ => return None,
    })
}

impl<T> Reading<T> {
    /// No value, for a reason of kiln's own.
    pub fn absent(reason: impl fmt::Display) -> Self {
        Self::Absent(Absence::Other(reason.to_string()))
    }

    /// A value that some source did not have.
    pub fn or_absent(value: Option<T>, reason: impl fmt::Display) -> Self {
        value.map_or_else(|| Self::absent(reason), Self::Value)
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    /// The value, if there is one; the reason is lost.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    /// The reason why there is no value.
    pub fn absence(&self) -> Option<&Absence> {
        match self {
            Self::Value(_) => None,
            Self::Absent(absence) => Some(absence),
        }
    }

    /// Whether driver and device support the reading, even if it was refused or failed:
    /// nvidia-smi's layout depends on this. 2 and 25 are questions that the driver is too old for.
    pub fn is_offered(&self) -> bool {
        use Absence::{Code, NoCall, NoSymbol, NotSupported};
        !matches!(
            self,
            Self::Absent(NotSupported | NoSymbol | NoCall | Code(2 | 25))
        )
    }

    /// The reason why there is no value, as text.
    pub fn reason(&self) -> Option<String> {
        self.absence().map(ToString::to_string)
    }

    /// Changes the value; a reason stays.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(change(value)),
            Self::Absent(absence) => Reading::Absent(absence),
        }
    }

    /// Changes the value, or finds a reason why there is none after all.
    pub fn and_then<U>(self, change: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Value(value) => change(value),
            Self::Absent(absence) => Reading::Absent(absence),
        }
    }

    /// Another source where this one has no value; the first reason stays where that has none
    /// either.
    #[must_use]
    pub fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Value(value) => Self::Value(value),
            Self::Absent(absence) => match other() {
                Self::Value(value) => Self::Value(value),
                // A symbol that only newer drivers have is not a reason if an older one says why.
                Self::Absent(other) if absence == Absence::NoSymbol => Self::Absent(other),
                Self::Absent(_) => Self::Absent(absence),
            },
        }
    }

    /// The same, borrowed.
    pub fn as_ref(&self) -> Reading<&T> {
        match self {
            Self::Value(value) => Reading::Value(value),
            Self::Absent(absence) => Reading::Absent(absence.clone()),
        }
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Reading<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(error) => Self::absent(error),
        }
    }
}
