//! Contradictions within a command: placeholders without a value, values without a use, metrics
//! without a source.

use std::{collections::HashMap, path::Path};

use serde_json::Value;

use super::{PatternMemo, ResolvedPoint};
use crate::{
    kinds::{
        KeyFault,
        command::{
            Argument, Arguments, Command, FILLED_COLUMNS, MetricSource, MetricTarget, PLACEHOLDERS,
            Part, is_name, metric_target, parse_template, reserved_variable, value_variable,
        },
    },
    spec::suggest::{did_you_mean, listed, nearest},
    units::shorten,
};

/// Characters of a text that a message shows.
const LONGEST_SHOWN: usize = 60;

/// Shells, whose `-c` makes a program of a text.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "ash", "fish"];

/// Long options of shells that take the next argument.
const TAKING_AN_ARGUMENT: [&str; 3] = ["--rcfile", "--init-file", "--emulate"];

/// Faults of names: the values of an axis do not change them.
const BY_NAMES: [&str; 1] = ["model.kind"];

/// Returns the contradictions within the command of a point, if it is one.
pub(super) fn of_command(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let Some(command) = point.model.command() else {
        return Vec::new();
    };
    let mut faults = Faults {
        command,
        patterns: point.patterns,
        sources: point.sources,
        found: Vec::new(),
    };
    faults.program("argv", &command.argv);
    if !command.prepare.is_empty() {
        faults.program("prepare", &command.prepare);
    }
    faults.environment();
    faults.values();
    faults.metrics();
    faults.lists();
    let found = faults.found.into_iter();
    found.map(|fault| fault.within("model")).collect()
}

/// Whether a value of a command has no use: no text or list of the command names it, and it is not
/// among `sources`, the keys in the expressions of derived keys.
pub(in crate::spec) fn is_unused(command: &Command, name: &str, sources: &[String]) -> bool {
    let faults = Faults {
        command,
        patterns: &PatternMemo::default(),
        sources,
        found: Vec::new(),
    };
    let is_listed = command.grows.iter().any(|grown| grown == name);
    command.values.contains_key(name) && !is_listed && !faults.is_used(name)
}

struct Faults<'a> {
    command: &'a Command,
    patterns: &'a PatternMemo,
    /// The keys that derived values are computed from.
    sources: &'a [String],
    found: Vec<KeyFault>,
}

impl<'a> Faults<'a> {
    fn push(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.found.push(KeyFault::between(key, &BY_NAMES, message));
    }

    /// A fault that the values of a point decide.
    fn push_of_point(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.found.push(KeyFault::between(key, &["model"], message));
    }

    fn program(&mut self, key: &str, arguments: &'a Arguments) {
        match arguments.program() {
            None => self.push(
                format!("{key}[0]"),
                format!("`{key}` begins with a condition; its first entry is the program"),
            ),
            Some("") => self.push(format!("{key}[0]"), format!("`{key}` names no program")),
            Some(_) => {}
        }
        for (index, text, when) in arguments.texts() {
            self.text(&format!("{key}[{index}]"), text, when);
        }
        for (index, argument) in arguments.0.iter().enumerate() {
            if let Argument::When(when) = argument
                && !self.command.values.contains_key(&when.when)
            {
                let known = self.command.values.keys().map(String::as_str);
                let message = format!(
                    "`when: {}` names no value{}",
                    when.when,
                    did_you_mean_or(&when.when, known, "declare it in `model.values`")
                );
                self.push(format!("{key}[{index}].when"), message);
            }
        }
        self.shell(key, arguments);
    }

    /// Checks the placeholders of a text; `when` names the value on which it depends.
    fn text(&mut self, key: &str, text: &str, when: Option<&str>) {
        let shown = shorten(text, LONGEST_SHOWN);
        let parts = match parse_template(text) {
            Ok(parts) => parts,
            Err(why) => return self.push(key, format!("`{shown}` {why}")),
        };
        for part in parts {
            let Part::Placeholder(name) = part else {
                continue;
            };
            match self.command.values.get(&name) {
                Some(Value::Null) if when != Some(&name) => {
                    let message = format!(
                        "`{shown}` needs a value, but `model.values.{name}` is `null`; write \
                         `{{when: {name}, then: [\"{shown}\"]}}`, which leaves it out then"
                    );
                    self.push_of_point(key, message);
                }
                Some(_) => {}
                None if PLACEHOLDERS.contains(&name.as_str()) => self.built_in(key, &name),
                None => {
                    let known = self.command.values.keys().map(String::as_str);
                    let otherwise = format!(
                        "declare it in `model.values`, or write `{{{{` for a brace; kiln's own \
                         placeholders are {}",
                        listed(&PLACEHOLDERS, "and")
                    );
                    let message = format!(
                        "`{{{name}}}` names no value{}",
                        did_you_mean_or(&name, known.chain(PLACEHOLDERS), &otherwise)
                    );
                    self.push(key, message);
                }
            }
        }
    }

    fn built_in(&mut self, key: &str, name: &str) {
        if name == "checkpoint_folder" && !self.command.checkpoints {
            let message = "`{checkpoint_folder}` is kept across attempts only with \
                           `checkpoints: true`; set it, or write `{folder}`, which is new in each \
                           attempt";
            self.push(key, message);
        }
    }

    /// Refuses placeholders in the program text of a shell.
    fn shell(&mut self, key: &str, arguments: &'a Arguments) {
        let Some(program) = shell_program(arguments) else {
            return;
        };
        let names = parse_template(program.text).unwrap_or_default();
        let name = names.iter().find_map(|part| match part {
            Part::Placeholder(name) => Some(name),
            Part::Text(_) => None,
        });
        if let Some(name) = name {
            let instead = if self.command.values.contains_key(name) {
                format!("write `\"${}\"`", value_variable(name))
            } else {
                format!(
                    "give it as an argument: `[…, \"…\\\"$1\\\"…\", {}, \"{{{name}}}\"]`",
                    program.shell
                )
            };
            let message = format!(
                "`{{{name}}}` is in the program of a shell (`{} {}`), which would read it as \
                 code; {instead}",
                program.shell, program.option
            );
            self.push(format!("{key}[{}]", program.index), message);
        }
    }

    fn environment(&mut self) {
        for (name, value) in &self.command.environment {
            let key = format!("environment.{name}");
            if let Some(message) = reserved_variable(name) {
                self.push(&key, message);
            }
            let Value::String(text) = value else { continue };
            // A variable that is a single placeholder is left out while its value is `null`.
            let only = text
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'));
            self.text(&key, text, only);
        }
        for (key, text) in self
            .command
            .folder
            .iter()
            .map(|folder| ("folder".to_owned(), folder))
            .chain(indexed("files", &self.command.files))
        {
            self.text(&key, text, None);
        }
    }

    fn values(&mut self) {
        let mut variables: HashMap<String, &str> = HashMap::new();
        for name in self.command.values.keys() {
            let key = format!("values.{name}");
            if PLACEHOLDERS.contains(&name.as_str()) {
                let message = format!(
                    "`{name}` is kiln's own placeholder, so no value may have this name; choose \
                     another one"
                );
                self.push(&key, message);
            } else if let Some(other) = variables.insert(value_variable(name), name) {
                let message = format!(
                    "`{name}` and `{other}` are the same environment variable, `{}`; rename one \
                     of them",
                    value_variable(name)
                );
                self.push(&key, message);
            } else if !self.is_used(name) {
                let unknown = self.unknown_placeholders();
                let message = match nearest(name, unknown.iter().copied()) {
                    Some(near) => format!(
                        "`model.values.{name}` is not used, and `{{{near}}}` names no value; give \
                         both the same name"
                    ),
                    None => unused(name, shell_program(&self.command.argv).is_some()),
                };
                self.push(&key, message);
            }
        }
    }

    /// Every text with placeholders that reaches the program or decides what is read.
    fn every_text(&self) -> Vec<&'a str> {
        let command = self.command;
        let arguments = [&command.argv, &command.prepare];
        let arguments = arguments
            .into_iter()
            .flat_map(Arguments::texts)
            .map(|(_, text, _)| text);
        let variables = command.environment.values().filter_map(Value::as_str);
        let paths = command.folder.iter().chain(&command.files);
        arguments
            .chain(variables)
            .chain(paths.map(String::as_str))
            .collect()
    }

    fn unknown_placeholders(&self) -> Vec<&'a str> {
        let command = self.command;
        let names = self.every_text().into_iter().flat_map(|text| {
            text.split('{')
                .skip(1)
                .filter_map(|rest| Some(rest.split_once('}')?.0))
        });
        names
            .filter(|name| !command.values.contains_key(*name) && !PLACEHOLDERS.contains(name))
            .collect()
    }

    fn is_used(&self, name: &str) -> bool {
        let variable = value_variable(name);
        let arguments = [&self.command.argv, &self.command.prepare];
        let is_condition = arguments.iter().any(|arguments| {
            arguments
                .0
                .iter()
                .any(|argument| matches!(argument, Argument::When(when) if when.when == name))
        });
        let metrics = self.command.metrics.iter();
        let files = metrics.filter_map(|(_, metric)| metric.csv.as_ref().or(metric.json.as_ref()));
        let mut texts = self.every_text();
        texts.extend(files.map(String::as_str));
        let is_in = |text: &str| {
            let parts = parse_template(text).unwrap_or_default();
            // The program finds all values in `trial.yaml`.
            let is_named = |part: &Part| matches!(part, Part::Placeholder(found) if found == name || found == "trial_file");
            names_variable(text, &variable) || parts.iter().any(is_named)
        };
        let is_source = |key: &String| key.strip_prefix("model.values.") == Some(name);
        is_condition || self.sources.iter().any(is_source) || texts.into_iter().any(is_in)
    }

    fn metrics(&mut self) {
        let command = self.command;
        for (name, metric) in command.metrics.iter() {
            let key = format!("metrics.{name}");
            if !is_name(name) || name.starts_with(|c: char| c.is_ascii_digit()) {
                let message = format!(
                    "`{name}` is not a name of a metric; names have letters, digits, `_` and `-`, \
                     a letter first"
                );
                self.push(&key, message);
            }
            self.misspelt_column(&key, name);
            let source = match metric.source() {
                Ok(source) => source,
                Err(why) => {
                    self.push(&key, format!("`model.{key}` {why}"));
                    continue;
                }
            };
            match source {
                MetricSource::Line { pattern, .. } => {
                    let key = format!("{key}.line");
                    if let Some(why) = self.patterns.fault_of_line(pattern) {
                        self.push(&key, format!("`model.{key}` {why}"));
                    }
                }
                MetricSource::Csv { file, .. } => self.text(&format!("{key}.csv"), file, None),
                MetricSource::Json { file, .. } => self.text(&format!("{key}.json"), file, None),
                MetricSource::Key { .. } | MetricSource::Measured(_) => {}
            }
            if metric.times == Some(0.0) {
                let message = format!("`model.{key}.times` is 0, which makes every number 0");
                self.push(format!("{key}.times"), message);
            }
            if metric.better.is_some() && metric_target(name) == MetricTarget::Progress {
                let message = format!(
                    "`{name}` is shown while a trial runs and fills no column, so `better` has no \
                     effect; remove it, or choose another name"
                );
                self.push(format!("{key}.better"), message);
            }
        }
        self.window();
    }

    /// A name one letter away from a column that a metric may fill is a slip, not a new metric.
    fn misspelt_column(&mut self, key: &str, name: &str) {
        let is_own = metric_target(name) == MetricTarget::Own;
        let letters = name.chars().count();
        let slips: Vec<&str> = FILLED_COLUMNS
            .into_iter()
            .filter(|column| is_own && column.len().abs_diff(letters) <= 1)
            .filter(|column| strsim::damerau_levenshtein(column, name) == 1)
            .collect();
        if let Some(column) = slips.first().filter(|column| column.len() > 5) {
            let message = format!(
                "`{name}` would be a column of its own beside `{column}` of `trials.csv`; did you \
                 mean `{column}`?"
            );
            self.push(key, message);
        }
    }

    fn window(&mut self) {
        let Some(window) = &self.command.window else {
            return;
        };
        if window.from.is_none() && window.to.is_none() {
            let message = "`model.window` is empty; give `from`, `to` or both, or remove it";
            self.push("window", message);
        }
        for (key, pattern) in [("window.from", &window.from), ("window.to", &window.to)] {
            let fault = pattern
                .as_deref()
                .and_then(|text| self.patterns.fault(text));
            if let Some(why) = fault {
                self.push(key, format!("`model.{key}` {why}"));
            }
        }
    }

    fn lists(&mut self) {
        let command = self.command;
        for (key, name) in indexed("grows", &command.grows) {
            match command.values.get(name) {
                None => {
                    let known = command.values.keys().map(String::as_str);
                    let message = format!(
                        "`grows` names `{name}`, which is not a value{}",
                        did_you_mean(name, known)
                    );
                    self.push(key, message);
                }
                Some(Value::Number(_)) => {}
                Some(_) => {
                    let message = format!(
                        "`grows` names `{name}`, but `model.values.{name}` is not a number, so it \
                         cannot grow"
                    );
                    self.push_of_point(key, message);
                }
            }
        }
        let both = command
            .exits
            .oom
            .iter()
            .find(|status| command.exits.diverged.contains(status));
        if let Some(status) = both {
            let message = format!(
                "exit status {status} is in `oom` and in `diverged`; keep it in one of them"
            );
            self.push("exits.diverged", message);
        }
    }
}

/// Says that a value is not used. What a program reads from variables is not known from the file. A
/// placeholder in the program of a shell would be refused.
fn unused(name: &str, is_of_shell: bool) -> String {
    let variable = value_variable(name);
    let own = variable.strip_prefix("KILN_VALUE_").unwrap_or(&variable);
    let what = format!(
        "`model.values.{name}` is not used: no argument or variable of the file names it; write"
    );
    match is_of_shell {
        true => format!("{what} `\"${variable}\"` in the program of the shell, or remove it"),
        false => format!(
            "{what} `{{{name}}}` in `argv`, or `environment: {{{own}: \"{{{name}}}\"}}` if the \
             program reads a variable, which may then be `{variable}` too, or remove it"
        ),
    }
}

/// A shell among the arguments, with its option `-c` and its program.
struct ShellProgram<'a> {
    shell: &'a str,
    option: &'a str,
    /// Place of the program among the arguments.
    index: usize,
    text: &'a str,
}

fn shell_program(arguments: &Arguments) -> Option<ShellProgram<'_>> {
    let texts = arguments.texts().map(|(index, text, _)| (index, text));
    let texts: Vec<(usize, &str)> = texts.collect();
    let is_shell = |text: &str| {
        let name = Path::new(text).file_name();
        name.is_some_and(|name| SHELLS.iter().any(|shell| name == *shell))
    };
    let shell = texts.iter().position(|(_, text)| is_shell(text))?;
    let behind = &texts[shell + 1..];
    let (option, program) = program_text(behind)?;
    let (index, text) = behind[program];
    Some(ShellProgram {
        shell: texts[shell].1,
        option: behind[option].1,
        index,
        text,
    })
}

/// The places of the `-c` and of the program text among the arguments of a shell.
fn program_text(arguments: &[(usize, &str)]) -> Option<(usize, usize)> {
    let mut option = None;
    let mut place = 0;
    while let Some((_, text)) = arguments.get(place) {
        if !text.starts_with(['-', '+']) {
            return Some((option?, place));
        }
        let is_cluster = !text.starts_with("--");
        if option.is_none() && is_cluster && text.starts_with('-') && text[1..].contains('c') {
            option = Some(place);
        }
        // `-o pipefail` and `-euo pipefail` take the next argument.
        let takes_next =
            (is_cluster && text.ends_with(['o', 'O'])) || TAKING_AN_ARGUMENT.contains(text);
        place += if takes_next { 2 } else { 1 };
    }
    None
}

/// Whether a text has the name of a variable, and not only the beginning of a longer one.
fn names_variable(text: &str, variable: &str) -> bool {
    let mut ends = text
        .match_indices(variable)
        .map(|(at, _)| &text[at + variable.len()..]);
    ends.any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

/// `; did you mean `x`?`, or what else to do.
fn did_you_mean_or<'a>(
    word: &str,
    allowed: impl IntoIterator<Item = &'a str>,
    otherwise: &str,
) -> String {
    match did_you_mean(word, allowed) {
        hint if hint.is_empty() => format!("; {otherwise}"),
        hint => hint,
    }
}

fn indexed<'a>(
    key: &'static str,
    texts: &'a [String],
) -> impl Iterator<Item = (String, &'a String)> {
    let indexed = texts.iter().enumerate();
    indexed.map(move |(index, text)| (format!("{key}[{index}]"), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_read_from_a_variable_is_told_how_to_name_it() {
        let told = unused("batch-size", false);
        assert!(
            told.contains("`environment: {BATCH_SIZE: \"{batch-size}\"}`"),
            "{told}"
        );
        assert!(
            told.contains("may then be `KILN_VALUE_BATCH_SIZE` too"),
            "{told}"
        );
        let of_shell = unused("batch-size", true);
        let says = "write `\"$KILN_VALUE_BATCH_SIZE\"` in the program of the shell, or remove it";
        assert!(of_shell.contains(says), "{of_shell}");
    }

    #[test]
    fn the_program_text_of_a_shell_is_found_behind_its_options() {
        for (arguments, expected) in [
            (&["-c", "echo"][..], Some((0, 1))),
            (&["-euo", "pipefail", "-c", "echo"], Some((2, 3))),
            (&["-e", "-o", "pipefail", "-c", "echo"], Some((3, 4))),
            (&["+o", "posix", "-O", "x", "-c", "echo"], Some((4, 5))),
            (&["+O", "x", "--rcfile", "rc", "-ic", "echo"], Some((4, 5))),
            (&["--init-file", "rc", "-c", "echo"], Some((2, 3))),
            (&["-c", "-o", "pipefail", "echo"], Some((0, 3))),
            (&["-ceuo", "pipefail", "echo", "-c"], Some((0, 2))),
            (&["--norc", "-c", "--", "echo"], Some((1, 3))),
            // A script, whose own `-c` is not the shell's.
            (&["-o", "pipefail", "run.sh", "-c", "echo"], None),
            (&["run.sh", "-c", "echo"], None),
            (&["--norc", "run.sh"], None),
            (&["-c", "-o"], None),
            (&[], None),
        ] {
            let indexed: Vec<(usize, &str)> = arguments.iter().copied().enumerate().collect();
            assert_eq!(program_text(&indexed), expected, "{arguments:?}");
        }
    }
}
