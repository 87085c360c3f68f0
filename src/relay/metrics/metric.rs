//! One metric of a command: what it is read from, and why it has no number.

use std::path::{Path, PathBuf};

use kiln_core::{
    kinds::command::{
        CommandMetric, Measured, MetricSource, MetricTarget, Stream, Take, metric_target,
    },
    record::{impossible_in, metric_reason, note::LossRose},
    units::exact,
};

use super::{
    super::{
        files::{self, FileBefore, FileFault},
        near_miss::NearMisses,
        number,
        pattern::{Captured, LinePattern, TextFault},
    },
    found::{Found, MOST_NUMBERS},
};

/// Largest count: up to here a float holds every integer.
const MOST_COUNT: f64 = 9_007_199_254_740_992.0;

/// Punctuation that may stand directly behind a number.
const CLOSING: [char; 5] = [',', ';', ')', ']', '}'];

/// Why a program that ended well has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::relay) enum MetricFault {
    /// A metric is missing, or is not a number.
    Missing(String),
    /// A loss is NaN or infinite.
    Diverged(String),
}

/// A metric of a command, and what the program has written of it so far.
#[derive(Debug)]
pub(super) struct CommandMetricReader {
    pub(super) name: String,
    pub(super) settings: CommandMetric,
    target: MetricTarget,
    pattern: Option<LinePattern>,
    /// The file that it is read from, and that file before the attempt.
    file: Option<(FileBefore, PathBuf)>,
    /// Whether only the rows that were added to its file count.
    is_appended_to: bool,
    /// The folder of the attempt, which differs from trial to trial.
    pub(super) attempt: Option<PathBuf>,
    pub(super) found: Found,
    /// The first text that should have been a number.
    not_a_number: Option<TextFault>,
    /// NaN or infinity that came in place of digits.
    not_finite: Option<f64>,
    /// Why its file could not be read.
    file_fault: Option<FileFault>,
    /// The lines with its name and a number, as long as none has matched.
    near_misses: NearMisses,
    /// The lines that come nearest, for the reason of a trial without it.
    pub(super) nearest: String,
    /// Whether a line of Python's dictionaries, which are no JSON, has its key.
    is_in_python: bool,
    /// Whether a line of the output that it is not read from has it.
    is_on_other: bool,
    /// Whether a notice has told of the text that is not its number.
    is_fault_told: bool,
    /// The count of its numbers before lines that are not kept, if there are such lines.
    before_omitted: Option<u64>,
}

impl CommandMetricReader {
    /// `place` is where a file lies that the settings name; `is_of_trial` says of its path whether what
    /// it has from earlier attempts is of this trial.
    ///
    /// # Errors
    /// It is not read from one source, or its pattern is not one.
    pub(super) fn new(
        name: &str,
        settings: &CommandMetric,
        place: impl Fn(&str) -> PathBuf,
        is_of_trial: impl Fn(&Path) -> bool,
    ) -> Result<Self, String> {
        let in_words = |why: String| format!("`model.metrics.{name}` {why}");
        let (pattern, file) = match settings.source().map_err(in_words)? {
            MetricSource::Line { pattern, .. } => {
                (Some(LinePattern::new(pattern).map_err(in_words)?), None)
            }
            MetricSource::Csv { file, .. } | MetricSource::Json { file, .. } => {
                let path = place(file);
                let before = FileBefore::of(&path);
                let before = match is_of_trial(&path) {
                    true => before.of_trial(),
                    false => before,
                };
                (None, Some((before, path)))
            }
            _ => (None, None),
        };
        Ok(Self {
            file,
            is_appended_to: false,
            attempt: None,
            name: name.to_owned(),
            settings: settings.clone(),
            target: metric_target(name),
            pattern,
            found: Found::default(),
            not_a_number: None,
            not_finite: None,
            file_fault: None,
            near_misses: NearMisses::of(name, settings.line.as_deref()),
            nearest: String::new(),
            is_in_python: false,
            is_on_other: false,
            is_fault_told: false,
            before_omitted: None,
        })
    }

    pub(super) fn line(&mut self, line: &str, object: Option<&serde_json::Value>, stream: Stream) {
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
                Some(Captured::Text(text)) => self.text(text.trim_end_matches(CLOSING)),
                Some(Captured::NotFinite(text)) => self.not_finite(text),
                Some(Captured::Inside(cut)) => self.fault(TextFault::CutOff(cut)),
                None => {}
            }
        } else if let (Some(key), Some(object)) = (&settings.key, object)
            && let Some(value) = number::at(object, key)
            // `null` stands for a number that is not measured yet, as in a file of JSON.
            && !value.is_null()
        {
            match number::of_json(value) {
                Some(value) => self.add(value),
                None => self.text(&value.to_string()),
            }
        }
    }

    /// NaN or infinity in place of digits. The pattern does not ask for them, so they count as its
    /// last number alone, or if there is no other.
    fn not_finite(&mut self, text: &str) {
        match self.settings.take() {
            Take::Last => self.text(text),
            _ => self.not_finite = self.not_finite.or_else(|| number::parse(text)),
        }
    }

    pub(super) fn text(&mut self, text: &str) {
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

    /// The file that it is read from, if it is read from one.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Why its file cannot be told from an older one, if a trial without the metric has failed.
    pub(super) fn unknown_file(&self) -> Option<FileFault> {
        let (before, path) = self.file.as_ref().filter(|_| self.is_needed())?;
        before.fault(path)
    }

    /// Why its file could not be read, once it was to be read.
    pub(super) fn file_fault(&self) -> Option<&FileFault> {
        self.file_fault.as_ref()
    }

    /// Reads its file as an attempt that has ended left it, whatever its time.
    pub(super) fn take_file_as_it_is(&mut self) {
        if let Some((before, _)) = &mut self.file {
            *before = FileBefore::default();
        }
    }

    /// Reads its file, if it has one, once the program has ended.
    pub(super) fn read_file(&mut self) {
        let Some((before, path)) = self.file.clone() else {
            return;
        };
        let settings = self.settings.clone();
        let read = match settings.source() {
            Ok(MetricSource::Csv { column, .. }) => {
                files::csv(&path, column, &before, |text| self.text(text))
            }
            Ok(MetricSource::Json { at, .. }) => files::json(&path, at, &before).map(|value| {
                match value {
                    Some(value) => self.add(value),
                    None => self.text("a text, a list or an object"),
                }
                false
            }),
            _ => Ok(false),
        };
        match read {
            Ok(is_appended_to) => self.is_appended_to = is_appended_to,
            Err(fault) => self.file_fault = Some(fault),
        }
    }

    /// The reason for its empty cell, or another remark.
    pub(super) fn note(&self) -> Option<String> {
        let settings = &self.settings;
        if settings.measured == Some(Measured::PeakMemoryBytes) && self.found.count == 0 {
            return Some("too small to tell from the process that started it".to_owned());
        }
        if let Some(fault) = self.not_a_number.as_ref().filter(|_| settings.optional) {
            return Some(fault.note());
        }
        let file_fault = self.file_fault.as_ref();
        if let Some(fault) = file_fault.filter(|fault| settings.optional && fault.is_unreadable) {
            return Some(fault.to_string());
        }
        let value = self.value();
        if settings.optional
            && let Some(value) = value.filter(|value| !value.is_finite())
        {
            return Some(format!("{value} is not a finite number"));
        }
        let scaled = value.map(|value| value * settings.times());
        if settings.optional
            && let Some(why) = scaled.and_then(|value| self.not_a_count(value))
        {
            return Some(why);
        }
        // The second half of the losses is not known if lines are not kept.
        if self.name == LossRose::COLUMN
            && !self.has_omitted_lines()
            && let Some(rose) = self.found.loss_rose()
        {
            return Some(rose.to_string());
        }
        if let Some((_, path)) = self.file.as_ref().filter(|_| self.is_appended_to) {
            let name = path.file_name().unwrap_or_default();
            return Some(format!(
                "{} had rows before the attempt, which are left out",
                name.display()
            ));
        }
        let left_out = self.found.kept().saturating_sub(MOST_NUMBERS as u64);
        (settings.take() == Take::Median && left_out > 0)
            .then(|| format!("median of the first {MOST_NUMBERS} of its numbers"))
    }

    pub(super) fn add(&mut self, value: f64) {
        let skip = self.settings.skip();
        let keeps_all = self.settings.take() == Take::Median;
        self.found.add(value, skip, keeps_all);
    }

    fn value(&self) -> Option<f64> {
        self.found.take(self.settings.take()).or(self.not_finite)
    }

    /// The number of the metric in the unit of its column; `None` if an optional one never came.
    pub(super) fn number(
        &self,
        stdout_lines: u64,
        stderr_lines: u64,
    ) -> Result<Option<f64>, MetricFault> {
        let name = &self.name;
        if let Some(fault) = &self.not_a_number {
            let pattern = self.settings.line.as_deref().unwrap_or_default();
            return match self.is_needed() {
                true => Err(MetricFault::Missing(fault.reason(name, pattern))),
                false => Ok(None),
            };
        }
        // A file that was not read to its end may have more numbers.
        let value = self.value().filter(|_| self.file_fault.is_none());
        let Some(value) = value else {
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
                (_, true) if self.target == MetricTarget::Own => Ok(None),
                (true, _) => Err(MetricFault::Diverged(format!("`{name}` is {value}"))),
                (false, _) if !self.is_needed() => Ok(None),
                (false, _) => {
                    let why = metric_reason::of_no_number(name, &value.to_string());
                    Err(MetricFault::Missing(why))
                }
            };
        }
        if let Some(why) = self.not_a_count(value) {
            return match self.is_needed() {
                true => Err(MetricFault::Missing(metric_reason::of_impossible(
                    name, &why,
                ))),
                false => Ok(None),
            };
        }
        match (self.impossible(value), self.settings.optional) {
            (None, _) => Ok(Some(value)),
            // Its cell is left empty, with a note.
            (Some(_), true) => Ok(Some(value)),
            (Some(why), false) => Err(MetricFault::Missing(metric_reason::of_impossible(
                name, &why,
            ))),
        }
    }

    /// Whether a trial without it has failed.
    fn is_needed(&self) -> bool {
        !self.settings.optional
            && self.target != MetricTarget::Progress
            && self.settings.measured.is_none()
    }

    /// Whether a trial without a measured window has failed, because the metric is its length.
    pub(super) fn needs_window(&self) -> bool {
        let is_length = self.settings.measured == Some(Measured::WallSeconds);
        is_length && !self.settings.optional && self.is_of_result()
    }

    /// Whether the metric is part of the result; progress is only shown.
    pub(super) fn is_of_result(&self) -> bool {
        self.target != MetricTarget::Progress
    }

    /// Notes that lines of its output before the next ones are not kept.
    pub(super) fn skip_omitted_lines(&mut self) {
        self.before_omitted = Some(self.found.count);
    }

    pub(super) fn has_omitted_lines(&self) -> bool {
        self.before_omitted.is_some()
    }

    /// Whether its number in the result may be, or depend on one, in lines that are not kept: not the
    /// first if one came before them, and not the last if one came behind them.
    pub(super) fn may_lack_lines(&self) -> bool {
        let Some(before) = self.before_omitted.filter(|_| self.is_of_result()) else {
            return false;
        };
        let is_known = match self.settings.take() {
            Take::First => before > 0,
            Take::Last => self.found.count > before,
            Take::Mean | Take::Median | Take::Min | Take::Max => false,
        };
        self.needs_all_lines() || !is_known
    }

    /// Whether its number depends on each line of its output: not if it is the first or the last one.
    pub(super) fn needs_all_lines(&self) -> bool {
        self.settings.skip() > 0 || !matches!(self.settings.take(), Take::First | Take::Last)
    }

    /// The output that it is read from, if it is read from lines.
    pub(super) fn stream(&self) -> Stream {
        self.settings.on.unwrap_or_default()
    }

    /// Whether the metric is read from lines of this output.
    pub(super) fn is_of_lines_of(&self, stream: Stream) -> bool {
        self.is_of_lines() && self.stream() == stream
    }

    fn is_of_lines(&self) -> bool {
        self.pattern.is_some() || self.settings.key.is_some()
    }

    /// Whether the metric is read from lines, and no line has matched so far.
    pub(super) fn is_unmatched(&self) -> bool {
        let has_none = self.not_a_number.is_none() && self.not_finite.is_none();
        self.is_of_lines() && self.found.count == 0 && has_none
    }

    /// The notice, once, of what will fail the trial at its end: a text that is not the number, or no
    /// match although many lines name the metric.
    pub(super) fn notice(&mut self) -> Option<String> {
        let fault = self.not_a_number.as_ref();
        if let Some(fault) = fault.filter(|_| !self.settings.optional && !self.is_fault_told) {
            self.is_fault_told = true;
            let why = fault.reason(
                &self.name,
                self.settings.line.as_deref().unwrap_or_default(),
            );
            return Some(format!("{why}; the trial fails at its end for it"));
        }
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
             {last}; without it the trial fails, if it does not come later",
            self.name
        ))
    }

    /// Why a number cannot be a count, if its place holds counts.
    fn not_a_count(&self, value: f64) -> Option<String> {
        let is_count = (0.0..=MOST_COUNT).contains(&value) && (value - value.round()).abs() <= 1e-6;
        (self.target.is_count() && !is_count)
            .then(|| format!("{}; it must be an integer from 0 to 2^53", exact(value)))
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
            let fault = fault.in_attempt(self.attempt.as_deref());
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

    /// The setting that would read the metric, if its lines were seen.
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
