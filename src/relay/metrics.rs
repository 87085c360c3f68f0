//! The metrics of a command: lines and files come in, one number for each goes out.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
};

use kiln_core::{
    kinds::command::{
        Command, CommandMetric, Measured, MetricSource, MetricTarget, Placeholders, Stream, Take,
        metric_target, regular_expression,
    },
    record::{impossible_in, note::LossRose},
    statistics,
    units::exact,
};
use regex::Regex;

use super::{
    files::{self, FileBefore, FileFault},
    near_miss::{NearMisses, nearest},
    number,
    pattern::{Captured, LinePattern, TextFault},
    talk::Progress,
};

/// Most numbers of which a median is made.
const MOST_NUMBERS: usize = 1_000_000;
/// Numbers at the end that are kept of every metric.
const NEWEST: usize = 1000;

/// Largest count: up to here a float holds every integer.
const MOST_COUNT: f64 = 9_007_199_254_740_992.0;

/// Each metric that has a number, in the order of the file.
pub(super) type Numbers = Vec<(String, f64)>;

/// Why a program that ended well has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MetricFault {
    /// A metric or the window is missing, or a metric is not a number.
    Missing(String),
    /// A loss is NaN or infinite.
    Diverged(String),
}

/// The beginning or the end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowMark {
    Begins,
    Ends,
}

/// Figures that the relay measures for every program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurements {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) cpu_seconds: f64,
    pub(super) peak_memory_bytes: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Metrics {
    metrics: Vec<Metric>,
    window: WindowLines,
    stdout_lines: u64,
    stderr_lines: u64,
}

#[derive(Debug)]
struct Metric {
    name: String,
    settings: CommandMetric,
    target: MetricTarget,
    pattern: Option<LinePattern>,
    /// The file that it is read from, and that file before the attempt.
    file: Option<(FileBefore, PathBuf)>,
    found: Found,
    /// The first text that should have been a number.
    not_a_number: Option<TextFault>,
    /// Why its file could not be read.
    file_fault: Option<FileFault>,
    /// The lines with its name, as long as none has matched.
    near_misses: NearMisses,
    /// The lines that come nearest, for the reason of a trial without it.
    nearest: String,
    /// Whether a line of Python's dictionaries, which are no JSON, has its key.
    is_in_python: bool,
    /// Whether a line of the output that it is not read from has it.
    is_on_other: bool,
}

/// The numbers of one metric so far.
#[derive(Debug, Default)]
struct Found {
    /// Those that were left out included.
    count: u64,
    first: Option<f64>,
    last: Option<f64>,
    /// Those that were not left out.
    kept: u64,
    sum: f64,
    least: Option<f64>,
    most: Option<f64>,
    all: Vec<f64>,
    /// The last [`NEWEST`] that were not left out.
    newest: VecDeque<f64>,
}

#[derive(Debug, Default)]
struct WindowLines {
    from: Option<Regex>,
    to: Option<Regex>,
    began: Option<u64>,
    ended: Option<u64>,
}

impl Metrics {
    /// # Errors
    /// A pattern that is not one; the checker of the experiment file refuses it before.
    pub(super) fn new(command: &Command, placeholders: &Placeholders) -> Result<Self, String> {
        let folder = command.folder.as_deref();
        let folder = folder.map(|folder| command.expand_text(folder, placeholders));
        let folder = PathBuf::from(folder.unwrap_or_default());
        let metric = |(name, settings): (&str, &CommandMetric)| {
            let in_words = |why: String| format!("`model.metrics.{name}` {why}");
            let (pattern, file) = match settings.source().map_err(in_words)? {
                MetricSource::Line { pattern, .. } => {
                    (Some(LinePattern::new(pattern).map_err(in_words)?), None)
                }
                MetricSource::Csv { file, .. } | MetricSource::Json { file, .. } => {
                    let path = folder.join(command.expand_text(file, placeholders));
                    (None, Some((FileBefore::of(&path), path)))
                }
                _ => (None, None),
            };
            Ok(Metric {
                file,
                name: name.to_owned(),
                settings: settings.clone(),
                target: metric_target(name),
                pattern,
                found: Found::default(),
                not_a_number: None,
                file_fault: None,
                near_misses: NearMisses::of(name),
                nearest: String::new(),
                is_in_python: false,
                is_on_other: false,
            })
        };
        let pattern = |key: &str, pattern: &Option<String>| {
            let pattern = pattern.as_deref().map(regular_expression).transpose();
            pattern.map_err(|why| format!("`model.window.{key}` {why}"))
        };
        let window = match &command.window {
            Some(window) => WindowLines {
                from: pattern("from", &window.from)?,
                to: pattern("to", &window.to)?,
                ..WindowLines::default()
            },
            None => WindowLines::default(),
        };
        Ok(Self {
            metrics: command
                .every_metric()
                .iter()
                .map(metric)
                .collect::<Result<_, String>>()?,
            window,
            ..Self::default()
        })
    }

    /// Reads one line; returns the window's mark if it is one.
    pub(super) fn line(&mut self, line: &str, stream: Stream, at: u64) -> Option<WindowMark> {
        match stream {
            Stream::Stdout => self.stdout_lines += 1,
            Stream::Stderr => self.stderr_lines += 1,
        }
        let object = number::object(line);
        for metric in &mut self.metrics {
            metric.line(line, object.as_ref(), stream);
        }
        match stream {
            Stream::Stdout => self.window.line(line, at),
            Stream::Stderr => None,
        }
    }

    /// Notices, once each, of metrics that the trial needs and many lines name, but none matches.
    pub(super) fn unmatched(&mut self) -> Vec<String> {
        let metrics = self.metrics.iter_mut();
        metrics.filter_map(Metric::unmatched).collect()
    }

    /// Looks at the ends of both outputs for the lines that unmatched patterns may have been meant
    /// for. `attempt` is the folder of the attempt, relative to the run's.
    pub(super) fn find_near_misses(&mut self, attempt: &str, stdout: &str, stderr: &str) {
        for metric in &mut self.metrics {
            let (output, file) = match metric.stream() {
                Stream::Stdout => (stdout, super::STDOUT),
                Stream::Stderr => (stderr, "stderr.txt"),
            };
            let near = match metric.is_unmatched() {
                true => nearest(&metric.name, output),
                false => Vec::new(),
            };
            if !near.is_empty() {
                let near = near.join(", ");
                metric.nearest = format!("; the nearest in {attempt}/{file}: {near}");
            }
        }
    }

    /// Reads the files of an ended program.
    pub(super) fn read_files(&mut self) {
        for metric in &mut self.metrics {
            let Some((before, path)) = metric.file.clone() else {
                continue;
            };
            let settings = metric.settings.clone();
            let read = match settings.source() {
                Ok(MetricSource::Csv { column, .. }) => {
                    files::csv(&path, column, before, |text| metric.text(text))
                }
                Ok(MetricSource::Json { at, .. }) => {
                    files::json(&path, at, before).map(|value| match value {
                        Some(value) => metric.add(value),
                        None => metric.text("a text, a list or an object"),
                    })
                }
                _ => Ok(()),
            };
            metric.file_fault = read.err();
        }
    }

    /// The measured window, CLOCK_MONOTONIC in nanoseconds.
    ///
    /// # Errors
    /// A line that begins or ends it never came.
    pub(super) fn window(&self, began: u64, ended: u64) -> Result<(u64, u64), String> {
        let WindowLines { from, to, .. } = &self.window;
        let lines = self.stdout_lines;
        let missing = |key: &str, pattern: &Regex| {
            format!("`window.{key}` never came: '{pattern}' matched none of {lines} lines")
        };
        let from = match (from, self.window.began) {
            (None, _) => began,
            (Some(_), Some(at)) => at,
            (Some(pattern), None) => return Err(missing("from", pattern)),
        };
        let to = match (to, self.window.ended) {
            (None, _) => ended,
            (Some(_), Some(at)) => at,
            (Some(pattern), None) => return Err(missing("to", pattern)),
        };
        Ok((from, to))
    }

    /// Each metric's number, and why a completed trial cannot do without one that is missing.
    pub(super) fn numbers(&mut self, measured: &Measurements) -> (Numbers, Option<MetricFault>) {
        let window = self.window(measured.began, measured.ended);
        let (from, to) = *window.as_ref().unwrap_or(&(measured.began, measured.ended));
        for metric in &mut self.metrics {
            let value = match metric.settings.measured {
                Some(Measured::WallSeconds) => Some(to.saturating_sub(from) as f64 / 1e9),
                Some(Measured::CpuSeconds) => Some(measured.cpu_seconds),
                Some(Measured::PeakMemoryBytes) => {
                    measured.peak_memory_bytes.map(|bytes| bytes as f64)
                }
                None => None,
            };
            if let Some(value) = value {
                metric.add(value);
            }
        }
        let mut fault = window.err().map(MetricFault::Missing);
        let mut numbers = Vec::new();
        for metric in &self.metrics {
            match metric.number(self.stdout_lines, self.stderr_lines) {
                Ok(Some(value)) => numbers.push((metric.name.clone(), value)),
                Ok(None) => {}
                Err(found) => fault = worse(fault, found),
            }
        }
        (numbers, fault)
    }

    pub(super) fn progress(&self) -> Progress {
        let last = |name: &str| {
            let metric = self.metrics.iter().find(|metric| metric.name == name)?;
            Some(metric.found.last? * metric.settings.times())
        };
        let count = |name| last(name).map(|value| value as u64);
        Progress {
            step: count("step").or_else(|| count("steps")),
            total_steps: count("total_steps"),
            loss: last("train_loss"),
            samples_per_second: last("samples_per_second"),
        }
    }

    /// Reasons for empty cells and other remarks, by metric.
    pub(super) fn notes(&self) -> BTreeMap<String, String> {
        let note = |metric: &Metric| {
            let name = metric.name.clone();
            if metric.settings.measured == Some(Measured::PeakMemoryBytes)
                && metric.found.count == 0
            {
                let why = "too small to tell from the process that started it";
                return Some((name, why.to_owned()));
            }
            if let Some(fault) = metric
                .not_a_number
                .as_ref()
                .filter(|_| metric.settings.optional)
            {
                return Some((name, fault.note()));
            }
            let value = metric.found.take(metric.settings.take());
            if metric.settings.optional
                && let Some(value) = value.filter(|value| !value.is_finite())
            {
                return Some((name, format!("{value} is not a finite number")));
            }
            if metric.name == LossRose::COLUMN
                && let Some(rose) = metric.found.loss_rose()
            {
                return Some((name, rose.to_string()));
            }
            let left_out = metric.found.kept().saturating_sub(MOST_NUMBERS as u64);
            let is_median = metric.settings.take() == Take::Median;
            (is_median && left_out > 0).then(|| {
                let why = format!("median of the first {MOST_NUMBERS} of its numbers");
                (name, why)
            })
        };
        self.metrics.iter().filter_map(note).collect()
    }
}

/// A loss that diverged explains what else is missing.
fn worse(fault: Option<MetricFault>, found: MetricFault) -> Option<MetricFault> {
    match (fault, found) {
        (_, diverged @ MetricFault::Diverged(_)) => Some(diverged),
        (Some(first), _) => Some(first),
        (None, found) => Some(found),
    }
}

impl Metric {
    fn line(&mut self, line: &str, object: Option<&serde_json::Value>, stream: Stream) {
        if self.stream() != stream {
            if !self.is_on_other && self.is_needed() && self.is_unmatched() {
                self.is_on_other = self.is_in(line, object);
            }
            return;
        }
        self.look_for_value(line, object);
        if self.is_needed() && self.is_unmatched() {
            self.near_misses.line(line);
            self.is_in_python |= self.is_in_dictionary(line);
        }
    }

    /// Whether a line has the metric.
    fn is_in(&self, line: &str, object: Option<&serde_json::Value>) -> bool {
        match (&self.pattern, &self.settings.key) {
            (Some(pattern), _) => pattern.find(line).is_some(),
            (None, Some(key)) => object.is_some_and(|object| number::at(object, key).is_some()),
            (None, None) => false,
        }
    }

    /// Whether a line is a dictionary as Python prints it, with the key.
    fn is_in_dictionary(&self, line: &str) -> bool {
        line.trim_start().starts_with("{'")
            && last_key(&self.settings).is_some_and(|key| line.contains(&format!("'{key}':")))
    }

    fn look_for_value(&mut self, line: &str, object: Option<&serde_json::Value>) {
        let settings = &self.settings;
        if let Some(pattern) = &self.pattern {
            match pattern.find(line) {
                Some(Captured::Text(text)) => self.text(text.trim_end_matches([',', ';'])),
                Some(Captured::Inside(longer)) => self.fault(TextFault::CutOff(longer)),
                None => {}
            }
        } else if let (Some(key), Some(object)) = (&settings.key, object)
            && let Some(value) = number::at(object, key)
            // What a program has not measured yet, as in a file of JSON.
            && !value.is_null()
        {
            match number::of_json(value) {
                Some(value) => self.add(value),
                None => self.text(&value.to_string()),
            }
        }
    }

    fn text(&mut self, text: &str) {
        match number::parse(text) {
            Some(value) => self.add(value),
            None => self.fault(TextFault::of(text)),
        }
    }

    /// A text that is not its number; the first that `skip` does not leave out is kept.
    fn fault(&mut self, fault: TextFault) {
        match self.found.count < self.settings.skip() {
            true => self.found.count += 1,
            false => {
                self.not_a_number.get_or_insert(fault);
            }
        }
    }

    fn add(&mut self, value: f64) {
        let skip = self.settings.skip();
        let keeps_all = self.settings.take() == Take::Median;
        self.found.add(value, skip, keeps_all);
    }

    /// The number of the metric in the unit of its column; `None` if an optional one never came.
    fn number(&self, stdout_lines: u64, stderr_lines: u64) -> Result<Option<f64>, MetricFault> {
        let name = &self.name;
        if let Some(fault) = &self.not_a_number {
            let pattern = self.settings.line.as_deref().unwrap_or_default();
            return match self.settings.optional {
                true => Ok(None),
                false => Err(MetricFault::Missing(fault.reason(name, pattern))),
            };
        }
        let Some(value) = self.found.take(self.settings.take()) else {
            return match self.is_needed() {
                true => Err(MetricFault::Missing(
                    self.missing(stdout_lines, stderr_lines),
                )),
                false => Ok(None),
            };
        };
        let value = value * self.settings.times();
        if !value.is_finite() {
            return match (self.settings.is_loss(name), self.settings.optional) {
                (true, _) => Err(MetricFault::Diverged(format!("`{name}` is {value}"))),
                (false, true) => Ok(None),
                (false, false) => Err(MetricFault::Missing(format!(
                    "`{name}` is {value}, which is not a number"
                ))),
            };
        }
        let is_count = (0.0..=MOST_COUNT).contains(&value) && (value - value.round()).abs() <= 1e-6;
        if self.target.is_count() && !is_count {
            let why = format!(
                "`{name}` is {}; it must be an integer from 0 to 2^53",
                exact(value)
            );
            return Err(MetricFault::Missing(why));
        }
        match (self.impossible(value), self.settings.optional) {
            (None, _) => Ok(Some(value)),
            // Its cell is left empty, with a note.
            (Some(_), true) => Ok(Some(value)),
            (Some(why), false) => Err(MetricFault::Missing(format!("`{name}` is {why}"))),
        }
    }

    /// Whether a trial without it has failed.
    fn is_needed(&self) -> bool {
        !self.settings.optional
            && self.target != MetricTarget::Progress
            && self.settings.measured.is_none()
    }

    /// The output that it is read from, if it is read from lines.
    fn stream(&self) -> Stream {
        self.settings.on.unwrap_or_default()
    }

    /// Whether it is read from lines, and none has had it.
    fn is_unmatched(&self) -> bool {
        let is_of_lines = self.pattern.is_some() || self.settings.key.is_some();
        is_of_lines && self.found.count == 0 && self.not_a_number.is_none()
    }

    /// The notice, once, that many lines name it and none has matched so far.
    fn unmatched(&mut self) -> Option<String> {
        if !self.is_needed() || !self.is_unmatched() {
            return None;
        }
        let (lines, last) = self.near_misses.take_if_many()?;
        let looked_for = match (&self.settings.line, &self.settings.key) {
            (Some(pattern), _) => format!("matches '{pattern}'"),
            (None, key) => format!(
                "is a JSON object with `{}`",
                key.as_deref().unwrap_or_default()
            ),
        };
        Some(format!(
            "metric `{}`: {lines} lines contain this name, and none {looked_for}; the last of them: \
             {last}; without it the trial fails",
            self.name
        ))
    }

    fn impossible(&self, value: f64) -> Option<String> {
        let MetricTarget::Column(column) = self.target else {
            return None;
        };
        let why = impossible_in(column, value)?;
        let remedy = match (1.0..=100.0).contains(&value) {
            true => " (`times: 0.01` converts percent)",
            false => "",
        };
        Some(format!("{}; {why}{remedy}", exact(value)))
    }

    fn missing(&self, stdout_lines: u64, stderr_lines: u64) -> String {
        let name = &self.name;
        if let Some(fault) = &self.file_fault {
            return format!("`{name}` never came: {fault}");
        }
        let skipped = self.found.count;
        if skipped > 0 {
            return format!(
                "`{name}` came {skipped} times, and `skip` leaves out the first {}",
                self.settings.skip()
            );
        }
        let near = format!("{}{}", self.remedy(), self.nearest);
        let (lines, of) = match self.stream() {
            Stream::Stdout => (stdout_lines, ""),
            Stream::Stderr => (stderr_lines, " of stderr"),
        };
        match self.settings.source() {
            Ok(MetricSource::Line { pattern, .. }) => {
                format!("`{name}` never came: '{pattern}' matched none of {lines} lines{of}{near}")
            }
            Ok(MetricSource::Key { key, .. }) => format!(
                "`{name}` never came: none of {lines} lines{of} is a JSON object with `{key}`{near}"
            ),
            Ok(MetricSource::Csv { file, column }) => {
                format!("`{name}` never came: column `{column}` of {file} has no number")
            }
            _ => format!("`{name}` never came"),
        }
    }

    /// What to write instead, where its lines are known.
    fn remedy(&self) -> String {
        match last_key(&self.settings) {
            _ if self.is_on_other => match self.stream() {
                Stream::Stdout => "; lines of stderr have it: add `on: stderr`".to_owned(),
                Stream::Stderr => "; lines of stdout have it: remove `on: stderr`".to_owned(),
            },
            Some(key) if self.is_in_python => format!(
                "; Python's `{{'{key}': …}}` is not JSON: use `line: \"'{key}': '?([^,'}}]+)\"`"
            ),
            _ => String::new(),
        }
    }
}

/// The name of the number in the map that has it.
fn last_key(settings: &CommandMetric) -> Option<&str> {
    settings.key.as_deref()?.rsplit('.').next()
}

impl Found {
    fn add(&mut self, value: f64, skip: u64, keeps_all: bool) {
        self.count += 1;
        self.last = Some(value).filter(|_| self.count > skip).or(self.last);
        if self.count <= skip {
            return;
        }
        self.first = self.first.or(Some(value));
        self.sum += value;
        self.least = Some(self.least.map_or(value, |least| minimum(least, value)));
        self.most = Some(self.most.map_or(value, |most| -minimum(-most, -value)));
        if keeps_all && self.all.len() < MOST_NUMBERS {
            self.all.push(value);
        }
        if self.newest.len() == NEWEST {
            self.newest.pop_front();
        }
        self.newest.push_back(value);
        self.kept += 1;
    }

    /// Whether these are losses that ended clearly above the first one.
    fn loss_rose(&self) -> Option<LossRose> {
        let half = self.newest.len().min(self.kept as usize / 2);
        let second_half: Vec<f64> = self.newest.iter().rev().take(half).copied().collect();
        LossRose::between(self.first?, &second_half, self.last?)
    }

    fn kept(&self) -> u64 {
        self.kept
    }

    fn take(&self, take: Take) -> Option<f64> {
        match take {
            Take::Last => self.last,
            Take::First => self.first,
            Take::Mean => (self.kept > 0).then(|| self.sum / self.kept as f64),
            Take::Min => self.least,
            Take::Max => self.most,
            Take::Median => median(&self.all),
        }
    }
}

/// NaN if one of them is.
fn minimum(a: f64, b: f64) -> f64 {
    match a.is_nan() || b.is_nan() {
        true => f64::NAN,
        false => a.min(b),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    if values.iter().any(|value| value.is_nan()) {
        return Some(f64::NAN);
    }
    (!values.is_empty()).then(|| statistics::median(values.iter().copied()))
}

impl WindowLines {
    /// The first line that begins the window counts, and the first after it that ends it.
    fn line(&mut self, line: &str, at: u64) -> Option<WindowMark> {
        if let (Some(from), None) = (&self.from, self.began) {
            if !from.is_match(line) {
                return None;
            }
            self.began = Some(at);
            return Some(WindowMark::Begins);
        }
        if let (Some(to), None) = (&self.to, self.ended)
            && to.is_match(line)
        {
            self.ended = Some(at);
            return Some(WindowMark::Ends);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{super::near_miss::MANY_LINES, *};

    fn command(yaml: &str) -> Command {
        serde_yaml::from_str(&format!("argv: [x]\n{yaml}")).unwrap()
    }

    /// The metrics after these lines of output, a second apart, and what they come to at the end.
    fn after(yaml: &str, lines: &[&str]) -> (Metrics, Numbers, Option<MetricFault>) {
        let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
        for (place, line) in lines.iter().enumerate() {
            metrics.line(line, Stream::Stdout, 10 + place as u64 * 1_000_000_000);
        }
        let (numbers, fault) = metrics.numbers(&Measurements {
            began: 0,
            ended: 9_000_000_000,
            cpu_seconds: 0.5,
            peak_memory_bytes: None,
        });
        (metrics, numbers, fault)
    }

    fn read(yaml: &str, lines: &[&str]) -> (Numbers, Option<MetricFault>) {
        let (_, numbers, fault) = after(yaml, lines);
        (numbers, fault)
    }

    #[test]
    fn an_optional_metric_that_ends_as_nan_is_empty_with_a_note_and_one_that_recovers_is_not() {
        let of = |lines: &[&str], more: &str| {
            let yaml = format!("metrics: {{acc: {{line: 'acc (.+)', optional: true{more}}}}}");
            let (metrics, numbers, fault) = after(&yaml, lines);
            assert!(fault.is_none(), "{fault:?}");
            let value = numbers.first().map(|(_, value)| *value);
            (value, metrics.notes().remove("acc"))
        };
        assert_eq!(of(&["acc nan", "acc 0.6"], ""), (Some(0.6), None));
        assert_eq!(
            of(&["acc nan", "acc 0.6"], ", take: mean, skip: 1"),
            (Some(0.6), None)
        );
        let note = || Some("NaN is not a finite number".to_owned());
        assert_eq!(of(&["acc 0.6", "acc nan"], ""), (None, note()));
        assert_eq!(of(&["acc 0.6", "acc nan"], ", take: mean"), (None, note()));
    }

    #[test]
    fn each_way_to_take_one_number_of_several() {
        let lines = ["speed 9", "speed 1", "speed 4", "noise", "speed 2"];
        for (take, expected) in [
            ("last", 2.0),
            ("first", 1.0),
            ("mean", 7.0 / 3.0),
            ("median", 2.0),
            ("min", 1.0),
            ("max", 4.0),
        ] {
            let yaml = format!(
                "metrics: {{speed: {{line: 'speed ([0-9]+)', take: {take}, skip: 1, times: 1}}}}"
            );
            assert_eq!(
                read(&yaml, &lines),
                (vec![("speed".into(), expected)], None)
            );
        }
    }

    #[test]
    fn json_lines_are_read_by_keys_and_converted() {
        let yaml = "metrics: {speed: {key: a.b, times: 0.001}, other: {key: c, optional: true}}";
        let lines = [
            "{\"a\": {\"b\": 5000}}",
            "not json",
            "{\"a\": 1}",
            "{\"a\": {\"b\": null}}",
        ];
        assert_eq!(read(yaml, &lines), (vec![("speed".into(), 5.0)], None));
    }

    #[test]
    fn a_metric_that_never_came_is_told_with_what_was_looked_for() {
        let words = |yaml: &str, lines: &[&str]| match read(yaml, lines).1 {
            Some(MetricFault::Missing(why)) => why,
            other => panic!("{other:?}"),
        };
        let line = "metrics: {gflops: {line: 'GFLOP/s: ([0-9.]+)'}}";
        assert_eq!(
            words(line, &["a", "b"]),
            "`gflops` never came: 'GFLOP/s: ([0-9.]+)' matched none of 2 lines"
        );
        let skip = "metrics: {gflops: {line: '([0-9]+)', skip: 3}}";
        assert!(words(skip, &["1", "2"]).contains("came 2 times"));
        let text = "metrics: {gflops: {line: 'v (.*)'}}";
        assert_eq!(
            words(text, &["v fast"]),
            "`gflops` is 'fast', which is not a number"
        );
        let count = "metrics: {steps: {line: '(.*)'}}";
        for not_a_count in ["1.5", "-5", "1e30"] {
            let said = words(count, &[not_a_count]);
            assert!(said.contains("must be an integer from 0 to 2^53"), "{said}");
        }
        let window = "window: {from: '^go'}";
        assert!(words(window, &["no"]).contains("'^go' matched none of 1 lines"));
    }

    #[test]
    fn the_reason_shows_the_lines_that_a_pattern_may_have_been_meant_for() {
        let yaml = "metrics: {loss: {line: 'los: (.*)'}, seen: {line: 'step (.)'}, \
                    other: {line: 'x(.)', on: stderr, optional: true}}";
        let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
        let output = "step 1\nloss: 2.5\nloss: 2.25\nbye\n";
        for line in output.lines() {
            metrics.line(line, Stream::Stdout, 0);
        }
        metrics.find_near_misses("trials/t1/2", output, "");
        let (_, fault) = metrics.numbers(&Measurements {
            began: 0,
            ended: 1,
            cpu_seconds: 0.5,
            peak_memory_bytes: None,
        });
        let why = "`loss` never came: 'los: (.*)' matched none of 4 lines; the nearest in \
                   trials/t1/2/stdout.txt: 'loss: 2.5', 'loss: 2.25'";
        assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
    }

    #[test]
    fn a_metric_that_many_lines_name_and_none_matches_is_told_once_while_the_program_runs() {
        let yaml = "metrics: {loss: {line: 'los: (.*)'}, seen: {line: 'seen (.*)'}, \
                    rate: {key: rate}, most: {line: 'max (.*)', optional: true}, \
                    step: {line: 'at step (.*)'}, final: {line: 'final (.*)'}}";
        let mut metrics = Metrics::new(&command(yaml), &Placeholders::default()).unwrap();
        let line = "loss: 2.5 seen 1 Rate 3 most 1 step 5";
        for _ in 1..MANY_LINES {
            metrics.line(line, Stream::Stdout, 0);
            metrics.line(line, Stream::Stderr, 0);
        }
        assert!(metrics.unmatched().is_empty(), "not yet");
        metrics.line(line, Stream::Stdout, 0);
        assert_eq!(
            metrics.unmatched(),
            [
                "metric `loss`: 10 lines contain this name, and none matches 'los: (.*)'; the last \
                 of them: 'loss: 2.5 seen 1 Rate 3 most 1 step 5'; without it the trial fails",
                "metric `rate`: 10 lines contain this name, and none is a JSON object with `rate`; \
                 the last of them: 'loss: 2.5 seen 1 Rate 3 most 1 step 5'; without it the trial \
                 fails",
            ]
        );
        metrics.line(line, Stream::Stdout, 0);
        assert!(metrics.unmatched().is_empty(), "once");
    }

    #[test]
    fn a_text_that_is_no_number_is_left_out_where_that_is_asked_for() {
        let speed = |keys: &str, lines: &[&str]| {
            let yaml = format!("metrics: {{speed: {{line: 'v (.*)'{keys}}}}}");
            let (metrics, numbers, fault) = after(&yaml, lines);
            let value = numbers.first().map(|(_, value)| *value);
            (value, fault.is_some(), metrics.notes().remove("speed"))
        };
        assert_eq!(speed("", &["v N/A", "v 2"]), (None, true, None));
        assert_eq!(
            speed(", skip: 1", &["v N/A", "v 2"]),
            (Some(2.0), false, None)
        );
        assert_eq!(speed(", skip: 1", &["v 2", "v N/A"]), (None, true, None));
        let why = Some("'N/A' is not a number".to_owned());
        assert_eq!(speed(", optional: true", &["v N/A"]), (None, false, why));
    }

    #[test]
    fn a_number_that_the_group_cuts_off_is_a_fault_and_not_another_number() {
        let of = |keys: &str, lines: &[&str]| {
            let yaml = format!("metrics: {{speed: {{line: 'v ([0-9.]+)'{keys}}}}}");
            let (metrics, numbers, fault) = after(&yaml, lines);
            let value = numbers.first().map(|(_, value)| *value);
            (value, fault, metrics.notes().remove("speed"))
        };
        let why = "`speed` is cut off: the group of 'v ([0-9.]+)' ends inside '2.06e-07'; use \
                   `(\\S+)`, or put the text that follows the number into the pattern";
        let fault = Some(MetricFault::Missing(why.to_owned()));
        assert_eq!(of("", &["v 1.5", "v 2.06e-07", "v 3"]), (None, fault, None));
        assert_eq!(
            of(", skip: 1", &["v 2.06e-07", "v 3"]),
            (Some(3.0), None, None)
        );
        let note = Some("the group of its pattern ends inside '1,234'".to_owned());
        assert_eq!(of(", optional: true", &["v 1,234"]), (None, None, note));
    }

    #[test]
    fn a_loss_of_digits_that_becomes_nan_diverged() {
        let yaml = "metrics: {train_loss: {line: 'loss: ([0-9.]+)'}}";
        let (_, fault) = read(yaml, &["loss: 2.5", "loss: nan"]);
        let why = "`train_loss` is NaN".to_owned();
        assert_eq!(fault, Some(MetricFault::Diverged(why)));
    }

    #[test]
    fn a_comma_behind_the_text_of_a_group_is_no_part_of_the_number() {
        let yaml = "metrics: {speed: {line: 'v (\\S+)'}}";
        let numbers = read(yaml, &["v 1.5, w 2;"]).0;
        assert_eq!(numbers, [("speed".into(), 1.5)]);
    }

    #[test]
    fn a_dictionary_of_python_is_told_from_json_with_the_pattern_that_reads_it() {
        let lines = ["{'loss': 1.25, 'epoch': 0.5}", "{'loss': '1.5'}"];
        let why = "`train_loss` never came: none of 2 lines is a JSON object with `loss`; Python's \
                   `{'loss': …}` is not JSON: use `line: \"'loss': '?([^,'}]+)\"`";
        let (_, fault) = read("metrics: {train_loss: {key: loss}}", &lines);
        assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
        let yaml = "metrics: {train_loss: {line: \"'loss': '?([^,'}]+)\"}}";
        assert_eq!(read(yaml, &lines), (vec![("train_loss".into(), 1.5)], None));
        let (_, fault) = read("metrics: {speed: {key: speed}}", &lines);
        let why = "`speed` never came: none of 2 lines is a JSON object with `speed`";
        assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
    }

    #[test]
    fn a_metric_that_the_other_output_has_is_said_to_be_there() {
        let of = |keys: &str, stream: Stream| {
            let yaml = format!("metrics: {{speed: {{{keys}}}}}");
            let mut metrics = Metrics::new(&command(&yaml), &Placeholders::default()).unwrap();
            metrics.line("v 1.5", stream, 0);
            metrics.line("{\"v\": 1.5}", stream, 0);
            let measured = Measurements {
                began: 0,
                ended: 1,
                cpu_seconds: 0.5,
                peak_memory_bytes: None,
            };
            match metrics.numbers(&measured).1 {
                Some(MetricFault::Missing(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            of("line: 'v (.*)'", Stream::Stderr),
            "`speed` never came: 'v (.*)' matched none of 0 lines; lines of stderr have it: add \
             `on: stderr`"
        );
        let of_key = of("key: v", Stream::Stderr);
        assert!(
            of_key.ends_with("`v`; lines of stderr have it: add `on: stderr`"),
            "{of_key}"
        );
        let of_stderr = of("line: 'v (.*)', on: stderr", Stream::Stdout);
        assert!(
            of_stderr.ends_with("; lines of stdout have it: remove `on: stderr`"),
            "{of_stderr}"
        );
        let of_none = of("line: 'w (.*)'", Stream::Stderr);
        assert!(of_none.ends_with("none of 0 lines"), "{of_none}");
    }

    #[test]
    fn a_percentage_is_no_share() {
        let yaml = |keys: &str| format!("metrics: {{valid_top1: {{line: '(.*)'{keys}}}}}");
        let (_, fault) = read(&yaml(""), &["87.5"]);
        let why =
            "`valid_top1` is 87.5; it is a share, from 0 to 1 (`times: 0.01` converts percent)";
        assert_eq!(fault, Some(MetricFault::Missing(why.to_owned())));
        assert_eq!(read(&yaml(", times: 0.01"), &["87.5"]).0[0].1, 0.875);
        let rate = read("metrics: {samples_per_second: {line: '(.*)'}}", &["-3"]).1;
        let why = "`samples_per_second` is -3; it cannot be negative";
        assert_eq!(rate, Some(MetricFault::Missing(why.to_owned())));
    }

    #[test]
    fn a_loss_that_is_not_a_number_diverged_and_another_metric_failed() {
        let of = |name: &str, take: &str| {
            let yaml = format!("metrics: {{{name}: {{key: v, take: {take}}}}}");
            read(&yaml, &["{\"v\": 1}", "{\"v\": NaN}", "{\"v\": 2}"]).1
        };
        assert!(matches!(
            of("train_loss", "max"),
            Some(MetricFault::Diverged(_))
        ));
        assert!(matches!(
            of("train_loss", "median"),
            Some(MetricFault::Diverged(_))
        ));
        assert!(matches!(
            of("eval_loss", "max"),
            Some(MetricFault::Diverged(_))
        ));
        assert!(matches!(of("speed", "mean"), Some(MetricFault::Missing(_))));
        assert_eq!(of("train_loss", "last"), None);
    }

    #[test]
    fn without_metrics_the_relay_measures_over_the_window() {
        let (numbers, fault) = read(
            "window: {from: '^go', to: '^end'}",
            &["x", "go", "y", "end"],
        );
        assert_eq!(fault, None);
        assert_eq!(
            numbers,
            [("wall_seconds".into(), 2.0), ("cpu_seconds".into(), 0.5)]
        );
    }
}
