//! A scenario file: calls and their answers. Input: YAML (or JSON, which is YAML). Output: the
//! same. The module `answer` handles answers that change with time.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Calls by name, with their arguments after slashes: `nvmlDeviceGetClockInfo/1`.
pub type Calls = BTreeMap<String, Value>;

/// A machine with NVIDIA devices, as NVML reports it. A call that is not in the scenario answers
/// "not supported".
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Description for people.
    #[serde(default)]
    pub description: String,
    /// Symbols this library does not have; a trailing `*` stands for any ending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Duration of every call, in microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_microseconds: u64,
    /// Calls without a device, `nvmlSystem…` and `nvmlInit_v2`.
    #[serde(default)]
    pub calls: Calls,
    #[serde(default)]
    pub devices: Vec<Device>,
}

/// One device, or a MIG device within one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The time at which it falls off the bus: from then on every call answers "GPU is lost".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
    /// The answer to every call, whatever it is: `{return: 4}`. Finding the device still works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_call: Option<Value>,
    #[serde(default)]
    pub calls: Calls,
    /// `nvmlDeviceGetFieldValues`: `id/scope` in the driver's own numbering, as
    /// `{type: 1, value: 627320}` or `{return: 3}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: Calls,
    /// MIG devices by index; `null` is a gap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<Option<Device>>,
}

/// The first of these that comes true.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<f64>,
    /// Calls to this device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_calls: Option<u64>,
    /// A file beside the scenario is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
}

/// The reason why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("cannot read the scenario {path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("{path} is not a scenario: {source}")]
    Parse {
        path: String,
        source: serde_yaml::Error,
    },
}

impl Scenario {
    /// # Errors
    /// The file cannot be read or is not a scenario.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let read = |source| ScenarioError::Read {
            path: path.display().to_string(),
            source,
        };
        Self::parse(&fs::read_to_string(path).map_err(read)?, path)
    }

    /// Parses the text of a scenario; `path` is for the error message.
    ///
    /// # Errors
    /// The text is not a scenario.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        serde_yaml::from_str(text).map_err(|source| ScenarioError::Parse {
            path: path.display().to_string(),
            source,
        })
    }

    /// The file's text.
    ///
    /// # Errors
    /// None that is known: every value of a scenario has a form in YAML.
    pub fn to_yaml(&self) -> Result<String, serde_yaml::Error> {
        serde_yaml::to_string(self)
    }

    /// Whether the library lacks this symbol.
    #[must_use]
    pub fn is_missing(&self, symbol: &str) -> bool {
        self.missing
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => symbol.starts_with(start),
                None => symbol == pattern,
            })
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
