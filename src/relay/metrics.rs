//! The metrics of a command: lines and files come in, one number for each goes out.

mod found;
mod metric;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::command::{Command, CommandMetric, Measured, Placeholders, Stream, regular_expression},
    record::{attempt::STDERR, metric_reason},
};
use regex::Regex;
use serde::{Deserialize, Serialize};

use self::metric::CommandMetricReader;
pub(super) use self::metric::MetricFault;
use super::{
    files::FileFault, lines::without_codes, messages::Progress, near_miss::nearest, number,
};

/// Each metric that has a number, in the order of the file.
pub(super) type Numbers = Vec<(String, f64)>;

/// The beginning or the end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowMark {
    Begins,
    Ends,
}

/// Figures that the relay measures for every program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measurements {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) cpu_seconds: f64,
    pub(super) peak_memory_bytes: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Metrics {
    metrics: Vec<CommandMetricReader>,
    window: WindowLines,
    stdout_lines: u64,
    stderr_lines: u64,
    /// Whether a line of each output was longer than is read.
    stdout_cut: bool,
    stderr_cut: bool,
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
        let own = [&placeholders.folder, &placeholders.checkpoint_folder];
        let own: Vec<&Path> = own.into_iter().flatten().map(Path::new).collect();
        let metric = |(name, settings): (&str, &CommandMetric)| {
            let place = |file: &str| folder.join(command.expand_text(file, placeholders));
            let is_of_trial = |path: &Path| own.iter().any(|folder| path.starts_with(folder));
            let metric = CommandMetricReader::new(name, settings, place, is_of_trial);
            metric.map(|mut metric| {
                metric.attempt = placeholders.folder.as_deref().map(PathBuf::from);
                metric
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

    /// The metrics of an attempt that has ended: its files are read as they are, and the window is the
    /// one that was measured.
    pub(super) fn of_ended(mut self, window: Option<(u64, u64)>) -> Self {
        self.metrics
            .iter_mut()
            .for_each(CommandMetricReader::take_file_as_it_is);
        if let Some((from, to)) = window {
            (self.window.began, self.window.ended) = (Some(from), Some(to));
        }
        self
    }

    /// The files that metrics are read from.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.metrics.iter().filter_map(CommandMetricReader::file)
    }

    /// Why a needed file cannot be told from an older one; `None` if all can.
    pub(super) fn unknown_file(&self) -> Option<String> {
        let fault = self
            .metrics
            .iter()
            .find_map(CommandMetricReader::unknown_file)?;
        Some(fault.to_string())
    }

    /// The first file that the machine could not read at the end.
    pub(super) fn unreadable_file(&self) -> Option<FileFault> {
        let mut faults = self
            .metrics
            .iter()
            .filter_map(CommandMetricReader::file_fault);
        faults.find(|fault| fault.is_unreadable).cloned()
    }

    /// Whether a number of the result is read from lines of this output.
    pub(super) fn reads(&self, stream: Stream) -> bool {
        let mut metrics = self.metrics.iter();
        metrics.any(|metric| metric.is_of_lines_of(stream) && metric.is_of_result())
    }

    /// Tells the metrics of this output that lines before the next ones are not kept.
    pub(super) fn skip_omitted_lines(&mut self, stream: Stream) {
        for metric in &mut self.metrics {
            if metric.is_of_lines_of(stream) {
                metric.skip_omitted_lines();
            }
        }
    }

    /// Whether a number of the result may have been in lines that are not kept.
    pub(super) fn may_lack_lines(&self) -> bool {
        self.metrics.iter().any(CommandMetricReader::may_lack_lines)
    }

    /// Whether a number of the result depends on each line of this output.
    pub(super) fn needs_all_lines_of(&self, stream: Stream) -> bool {
        let mut metrics = self.metrics.iter();
        metrics.any(|metric| {
            metric.is_of_lines_of(stream) && metric.is_of_result() && metric.needs_all_lines()
        })
    }

    /// The metrics of the result that are read from an output of which lines are not kept.
    pub(super) fn without_all_lines(&self) -> impl Iterator<Item = &str> {
        let metrics = self.metrics.iter();
        let those = metrics.filter(|metric| metric.has_omitted_lines() && metric.is_of_result());
        those.map(|metric| metric.name.as_str())
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

    /// A line of this output was longer than is read.
    pub(super) fn note_cut(&mut self, stream: Stream) {
        match stream {
            Stream::Stdout => self.stdout_cut = true,
            Stream::Stderr => self.stderr_cut = true,
        }
    }

    /// Why a metric without a number may have been in a line that was not read to its end.
    fn cut_note(&self, metric: &CommandMetricReader) -> Option<String> {
        let is_cut = |stream| match stream {
            Stream::Stdout => self.stdout_cut,
            Stream::Stderr => self.stderr_cut,
        };
        let lacks_it = [Stream::Stdout, Stream::Stderr]
            .into_iter()
            .any(|stream| metric.is_of_lines_of(stream) && is_cut(stream));
        (lacks_it && metric.is_unmatched()).then(|| {
            "a line of its output is longer than 1 MiB and was not read to its end".to_owned()
        })
    }

    /// Notices, once each, of what will fail the trial at its end: see [`CommandMetricReader::notice`].
    pub(super) fn notices(&mut self) -> Vec<String> {
        let metrics = self.metrics.iter_mut();
        metrics.filter_map(CommandMetricReader::notice).collect()
    }

    /// Looks at the ends of both outputs for the lines that unmatched patterns may have been meant
    /// for. `attempt` is the folder of the attempt, relative to the run's.
    pub(super) fn find_near_misses(&mut self, attempt: &str, stdout: &str, stderr: &str) {
        for metric in &mut self.metrics {
            let (output, file) = match metric.stream() {
                Stream::Stdout => (stdout, super::STDOUT),
                Stream::Stderr => (stderr, STDERR),
            };
            let near = match metric.is_unmatched() {
                true => nearest(&metric.name, &without_codes(output)),
                false => Vec::new(),
            };
            if !near.is_empty() {
                let output = format!("{attempt}/{file}");
                metric.nearest = metric_reason::nearest_lines(&output, &near.join(", "));
            }
        }
    }

    /// Reads the files of an ended program.
    pub(super) fn read_files(&mut self) {
        for metric in &mut self.metrics {
            metric.read_file();
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
        let length = |(from, to): &(u64, u64)| to.saturating_sub(*from) as f64 / 1e9;
        for metric in &mut self.metrics {
            let value = match metric.settings.measured {
                Some(Measured::WallSeconds) => window.as_ref().ok().map(length),
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
        let mut fault = None;
        let mut numbers = Vec::new();
        for metric in &self.metrics {
            let number = match &window {
                Err(why) if metric.needs_window() => Err(MetricFault::Missing(
                    metric_reason::of_window(&metric.name, why),
                )),
                _ => metric.number(self.stdout_lines, self.stderr_lines),
            };
            match number {
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
        let note = |metric: &CommandMetricReader| {
            let note = metric.note().or_else(|| self.cut_note(metric))?;
            Some((metric.name.clone(), note))
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
