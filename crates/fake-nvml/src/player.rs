//! Plays one scenario per loaded library, at each start the one that its file has then. Input: a
//! call (device, name and arguments). Output: a value or a return code. The C interface above it is
//! in `abi`.

use std::{
    collections::HashMap,
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, RwLock},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    Device, Scenario,
    answer::{Answer, Moment, answer},
    code,
};

/// The target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    System,
    /// By index.
    Device(usize),
    /// The MIG device at an index of the device at an index.
    Mig(usize, usize),
}

/// A scenario being played.
pub(crate) struct Player {
    scenario: Scenario,
    /// The file it was read from, as text.
    text: String,
    /// Folder of that file.
    folder: PathBuf,
    started: Instant,
    asked: Mutex<HashMap<(Target, String), usize>>,
}

/// A scenario that is played no more is never freed: a call may hang in it.
static PLAYING: RwLock<Option<&'static Player>> = RwLock::new(None);

/// The scenario being played; the first call starts it.
pub(crate) fn player() -> Option<&'static Player> {
    let playing = *PLAYING.read().unwrap_or_else(PoisonError::into_inner);
    playing.or_else(start)
}

/// Plays the library's scenario: `$FAKE_NVML_SCENARIO`, else the file named as the library itself
/// with `.yaml` behind it.
///
/// It begins, and with it its clock, unless the file says what is being played already. `None`,
/// with a line on standard error, where there is no scenario.
pub(crate) fn start() -> Option<&'static Player> {
    let path = scenario_file()?;
    let mut playing = PLAYING.write().unwrap_or_else(PoisonError::into_inner);
    let text = fs::read_to_string(&path).unwrap_or_default();
    if playing.is_none_or(|player| player.text != text) {
        *playing = load(&path, text).map(|player| &*Box::leak(Box::new(player)));
    }
    *playing
}

fn scenario_file() -> Option<PathBuf> {
    if let Some(path) = env::var_os("FAKE_NVML_SCENARIO").filter(|value| !value.is_empty()) {
        return Some(path.into());
    }
    let mut path = own_file()?.into_os_string();
    path.push(".yaml");
    Some(path.into())
}

fn load(path: &Path, text: String) -> Option<Player> {
    let folder = path.parent().unwrap_or(path).to_owned();
    // A file that could not be read is read once more, for the reason.
    let read = if text.is_empty() {
        Scenario::read(path)
    } else {
        Scenario::parse(&text, path)
    };
    match read {
        Ok(scenario) => Some(Player {
            scenario,
            text,
            folder,
            started: Instant::now(),
            asked: Mutex::default(),
        }),
        Err(error) => {
            // Nothing can be done where standard error is closed.
            let _ = writeln!(std::io::stderr(), "fake NVML: {error}");
            None
        }
    }
}

/// The file this code was loaded from.
fn own_file() -> Option<PathBuf> {
    let here = start as fn() -> Option<&'static Player> as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let path = rest.get(rest.find('/')?..)?;
        range.contains(&here).then(|| PathBuf::from(path))
    })
}

impl Player {
    pub(crate) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(crate) fn device(&self, target: Target) -> Option<&Device> {
        match target {
            Target::System => None,
            Target::Device(index) => self.scenario.devices.get(index),
            Target::Mig(parent, index) => {
                self.scenario.devices.get(parent)?.mig.get(index)?.as_ref()
            }
        }
    }

    /// The answer to a call: `key` is its name and, after slashes, its arguments.
    pub(crate) fn ask(&self, target: Target, key: &str) -> Result<Value, u32> {
        self.open(target, key)?;
        let calls = self
            .device(target)
            .map_or(&self.scenario.calls, |device| &device.calls);
        self.say(target, key, calls.get(key))
    }

    /// A field value: `Err` is the field's own return code.
    pub(crate) fn ask_field(&self, target: Target, key: &str) -> Result<Value, u32> {
        self.say(
            target,
            &format!("field {key}"),
            self.device(target)
                .and_then(|device| device.fields.get(key)),
        )
    }

    /// Whether the call succeeds: symbols, permissions, presence of the device; takes the duration
    /// of a call.
    pub(crate) fn open(&self, target: Target, key: &str) -> Result<(), u32> {
        thread::sleep(Duration::from_micros(self.scenario.latency_microseconds));
        let symbol = key.split('/').next().unwrap_or(key);
        if self.scenario.is_missing(symbol) {
            return Err(code::FUNCTION_NOT_FOUND);
        }
        let Some(device) = self.device(target) else {
            return Ok(());
        };
        if self.is_lost(target) {
            return Err(code::GPU_IS_LOST);
        }
        match &device.every_call {
            Some(value) if !symbol.starts_with("nvmlDeviceGetHandle") => {
                self.say(target, key, Some(value)).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Whether the device has fallen off the bus. Each question counts as a call to it.
    fn is_lost(&self, target: Target) -> bool {
        let owner = match target {
            Target::Mig(parent, _) => Target::Device(parent),
            other => other,
        };
        let calls = self.count(owner, "");
        let Some(lost) = self.device(owner).and_then(|device| device.lost.as_ref()) else {
            return false;
        };
        lost.after_calls.is_some_and(|limit| calls as u64 >= limit)
            || lost
                .once
                .as_ref()
                .is_some_and(|file| self.folder.join(file).exists())
            || lost
                .after_seconds
                .is_some_and(|limit| self.started.elapsed().as_secs_f64() >= limit)
    }

    fn say(&self, target: Target, key: &str, value: Option<&Value>) -> Result<Value, u32> {
        let Some(value) = value else {
            return Err(code::NOT_SUPPORTED);
        };
        let others = self.device(target).map(|device| &device.calls);
        let asked = if value.is_object() {
            self.count(target, key)
        } else {
            0
        };
        let now = Moment {
            seconds: self.started.elapsed().as_secs_f64(),
            asked,
            others,
            folder: Some(&self.folder),
        };
        let mut said = answer(value, now);
        loop {
            said = match said {
                Answer::Value(value) => return Ok(value),
                Answer::Code(code) => return Err(code),
                Answer::Hang => loop {
                    thread::park();
                },
                Answer::Late { milliseconds, then } => {
                    thread::sleep(Duration::from_millis(milliseconds));
                    *then
                }
            }
        }
    }

    /// Number of earlier calls with this key.
    fn count(&self, target: Target, key: &str) -> usize {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let count = asked.entry((target, key.to_owned())).or_default();
        *count += 1;
        *count - 1
    }
}
