//! Tips on a command line that does not parse: what kiln has in place of an option or a command of
//! other programs.

use clap::{
    Arg, Command,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::command_line;

/// The option or key of kiln that a tip names for an unknown option.
#[derive(Clone, Copy)]
enum Target {
    /// This option.
    Option(&'static str),
    /// This option with this value.
    Value(&'static str, &'static str),
    /// This key of the experiment, which `--set` sets.
    Key(&'static str),
    /// In the command of this name: this key.
    KeyIn(&'static str, &'static str),
    /// Nothing: `kiln run` and `kiln tune` resume by themselves.
    Resume,
}

/// Options, and what is meant by them; of several, the first that the command has.
const OPTIONS: [(&[&str], Target); 14] = [
    (&["json"], Target::Value("progress", "json")),
    (&["q"], Target::Option("quiet")),
    (&["resume"], Target::Resume),
    (&["devices", "gpu", "gpus"], Target::Option("device")),
    (
        &["device", "devices", "gpu", "gpus"],
        Target::Key("run.devices"),
    ),
    (&["engine"], Target::Key("run.engine")),
    (&["timeout"], Target::Key("run.timeout")),
    (&["repeats"], Target::KeyIn("tune", REPEATS_OF_SEARCH)),
    (&["repeats"], Target::Key("sweep.repeats")),
    (&["steps", "max-steps"], Target::Key("train.steps")),
    (&["epochs"], Target::Key("train.epochs")),
    (&["seed"], Target::Key("train.seed")),
    (&["batch-size"], Target::Key("train.batch_size")),
    (
        &["lr", "learning-rate"],
        Target::Key("train.optimizer.learning_rate"),
    ),
];

/// The repeats of each value of a search.
const REPEATS_OF_SEARCH: &str = "sweep.search.repeats";
/// The kind of search that repeats no trial.
const WITHOUT_REPEATS: &str = "largest-batch";

/// Commands of other programs, the command that is meant, and what that one does.
const COMMANDS: [(&[&str], &str, &str); 6] = [
    (
        &["resume", "continue"],
        "run",
        "it resumes an unfinished run of the file",
    ),
    (&["list"], "ls", "it lists the runs"),
    (&["remove", "delete", "clean"], "rm", "it removes runs"),
    (
        &["show", "info", "results", "summary"],
        "report",
        "it explains a run, or one trial as RUN:TRIAL",
    ),
    (
        &["status", "log", "logs"],
        "watch",
        "it shows a run while it goes on",
    ),
    (&["validate", "lint"], "check", "it checks experiment files"),
];

/// Options whose value may be any text, also a negative number.
const FREE_TEXTS: [&str; 2] = ["base", "prompt"];

/// The error with kiln's own tip, if there is one, in place of what clap suggests.
pub(super) fn with_tip(mut error: clap::Error, words: &[String]) -> clap::Error {
    let mut command = command_of(words);
    if let Some(tip) = option_tip(&error, &command, words) {
        error.remove(ContextKind::SuggestedArg);
        suggest(&mut error, tip);
        // The usage that clap gives shows the option that it suggests.
        let usage = ContextValue::StyledStr(command.render_usage());
        error.insert(ContextKind::Usage, usage);
    } else if let Some(tip) = command_tip(&error, &command) {
        error.remove(ContextKind::SuggestedSubcommand);
        suggest(&mut error, tip);
    } else if let Some(tip) = order_tip(&error, &command, words) {
        suggest(&mut error, tip);
    } else {
        drop_dashes(&mut error);
        suggest_alike(&mut error, &mut command);
    }
    error
}

fn suggest(error: &mut clap::Error, tip: String) {
    let tips = vec![StyledStr::from(tip)];
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
}

/// Drops the tip to write an option behind `--`: no argument is meant to look like an option.
fn drop_dashes(error: &mut clap::Error) {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().starts_with("to pass "));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}

/// Suggests the option of nearly this name, if there is one, whatever clap suggests.
fn suggest_alike(error: &mut clap::Error, command: &mut Command) {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return;
    }
    let word = unknown.trim_start_matches('-').replace('_', "-");
    let shown = command
        .get_arguments()
        .filter(|option| !option.is_hide_set());
    let names = shown.filter_map(Arg::get_long_and_visible_aliases);
    let alike = names.flatten().filter(|name| are_alike(&word, name));
    let nearest = alike.min_by_key(|name| strsim::osa_distance(&word, name));
    let nearest = nearest.map(|name| format!("--{name}"));
    let suggested = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(name)) => Some(name.clone()),
        _ => None,
    };
    if nearest == suggested {
        return;
    }
    error.remove(ContextKind::SuggestedArg);
    if let Some(nearest) = nearest {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(nearest));
    }
    let usage = ContextValue::StyledStr(command.render_usage());
    error.insert(ContextKind::Usage, usage);
}

/// Whether one name is a slip of the other, or its beginning.
fn are_alike(word: &str, name: &str) -> bool {
    let [short, long] = match word.len() < name.len() {
        true => [word, name],
        false => [name, word],
    };
    let begin = |text: &str| -> String { text.chars().take(2).collect() };
    let is_slip = begin(word) == begin(name) && strsim::osa_distance(word, name) <= 2;
    is_slip || short.len() >= 4 && long.starts_with(short)
}

/// The command that the words name, such as `kiln data show`.
fn command_of(words: &[String]) -> Command {
    let mut command = command_line();
    command.build();
    for word in words.iter().skip(1) {
        let named = command.find_subcommand(word).cloned();
        command = named.unwrap_or(command);
    }
    command
}

fn option_tip(error: &clap::Error, command: &Command, words: &[String]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if error.kind() != ErrorKind::UnknownArgument || !unknown.starts_with('-') {
        return None;
    }
    let (value, rest) = taken_out(unknown, words);
    let word = unknown.trim_start_matches('-').replace('_', "-");
    let meant = match (word.as_str(), value) {
        ("format", Some("json")) => "json",
        (word, _) => word,
    };
    let known = || {
        let meant = OPTIONS.iter().filter(|(names, _)| names.contains(&meant));
        let mut targets = meant.map(|(_, target)| *target);
        let target = targets.find(|target| has(command, *target))?;
        let is_key = matches!(target, Target::Key(_) | Target::KeyIn(..));
        let devices = value.filter(|_| has(command, Target::Key("run.devices")));
        let of_search = || repeats_of_search(target, taken_out("--search", words).0);
        let of_all = || in_words(target, devices.and_then(list));
        (!is_key || may_set(&rest)).then(|| of_search().unwrap_or_else(of_all))
    };
    let format = || {
        has_value(command, "format", &word)
            .then(|| format!("this format is chosen by '--format {word}'"))
    };
    negative_value(unknown, command, words)
        .or_else(known)
        .or_else(format)
}

/// The value that the words give to an option, and the words without both.
fn taken_out<'a>(name: &str, words: &'a [String]) -> (Option<&'a str>, Vec<&'a str>) {
    let words: Vec<&'a str> = words.iter().map(String::as_str).collect();
    let with_value = format!("{name}=");
    let is_it = |word: &&str| *word == name || word.starts_with(with_value.as_str());
    let Some(at) = words.iter().position(is_it) else {
        return (None, words);
    };
    let joined = words[at].strip_prefix(with_value.as_str());
    let next = words.get(at + 1).copied();
    let next = next.filter(|word| joined.is_none() && !word.starts_with('-'));
    let behind = at + 1 + usize::from(next.is_some());
    let rest = [&words[..at], &words[behind..]].concat();
    (joined.or(next), rest)
}

/// Whether `--set` may stand in these words: some commands take it only with another argument.
fn may_set(words: &[&str]) -> bool {
    let words = words.iter().copied().chain(["--set", "train.steps=1"]);
    let error = command_line().try_get_matches_from(words).err();
    error.is_none_or(|error| error.kind() != ErrorKind::MissingRequiredArgument)
}

/// Several devices, separated by commas, as a list in YAML.
fn list(devices: &str) -> Option<String> {
    let devices: Vec<&str> = devices.split(',').map(str::trim).collect();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let are_plain = devices.iter().all(|device| device.chars().all(is_plain));
    (devices.len() > 1 && are_plain).then(|| format!("[{}]", devices.join(", ")))
}

/// Whether a command has the target.
fn has(command: &Command, target: Target) -> bool {
    let has_option = |name| option(command, name).is_some();
    match target {
        Target::Option(name) => has_option(name),
        Target::Value(name, value) => has_value(command, name, value),
        Target::Key(_) => has_option("set"),
        Target::KeyIn(name, _) => command.get_name() == name,
        Target::Resume => ["run", "tune"].contains(&command.get_name()),
    }
}

fn has_value(command: &Command, name: &str, value: &str) -> bool {
    option(command, name).is_some_and(|option| {
        let values = option.get_possible_values();
        values.iter().any(|known| known.get_name() == value)
    })
}

fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut options = command.get_arguments();
    options.find(|option| option.get_long() == Some(name))
}

/// The tip; `devices` is the list of devices that was given.
fn in_words(target: Target, devices: Option<String>) -> String {
    match (target, devices) {
        (Target::Option("device"), Some(list)) => format!("use --device '{list}'"),
        (Target::Key("run.devices"), Some(list)) => {
            format!("set the key of the experiment: --set 'run.devices={list}'")
        }
        (target, _) => without_value(target),
    }
}

fn without_value(target: Target) -> String {
    match target {
        Target::Option(name) => format!("use '--{name}'"),
        Target::Value(name, value) => format!("use '--{name} {value}'"),
        // Both kinds of models have a seed.
        Target::Key(key) if key.starts_with("train.") && key != "train.seed" => format!(
            "set the key of the experiment: for kiln's own models '--set {key}=…'; for a command \
             '--set model.values.NAME=…'"
        ),
        Target::Key(key) | Target::KeyIn(_, key) => {
            format!("set the key of the experiment: '--set {key}=…'")
        }
        Target::Resume => "leave it out: the same command resumes an unfinished run".to_owned(),
    }
}

/// The tip on the repeats of a search, which one kind does not have. `kind` is that of `--search`; where
/// the file has the kind, the tip says which.
fn repeats_of_search(target: Target, kind: Option<&str>) -> Option<String> {
    match (target, kind) {
        (Target::KeyIn(_, REPEATS_OF_SEARCH), Some(WITHOUT_REPEATS)) => Some(format!(
            "leave it out: a search of kind '{WITHOUT_REPEATS}' repeats no trial"
        )),
        (Target::KeyIn(_, REPEATS_OF_SEARCH), None) => Some(format!(
            "{}; a search of kind '{WITHOUT_REPEATS}' has no such key",
            without_value(target)
        )),
        _ => None,
    }
}

/// A negative number behind an option looks like another option.
fn negative_value(unknown: &str, command: &Command, words: &[String]) -> Option<String> {
    let is_number = |word: &str| word.starts_with(unknown) && word.parse::<f64>().is_ok();
    let at = words.windows(2).position(|pair| is_number(&pair[1]))?;
    let name = words[at].strip_prefix("--")?;
    if !option(command, name)?.get_action().takes_values() {
        return None;
    }
    let joined = format!("--{name}={}", words[at + 1]);
    if FREE_TEXTS.contains(&name) {
        return Some(format!("write '{joined}'"));
    }
    let mut words = words.to_vec();
    words[at] = joined;
    words.remove(at + 1);
    is_refused(&words, unknown).then(|| format!("'--{name}' takes no negative value"))
}

/// Whether a value that begins with `value` is refused as one of its option.
fn is_refused(words: &[String], value: &str) -> bool {
    let error = command_line().try_get_matches_from(words).err();
    error.is_some_and(|error| {
        let refused = error.get(ContextKind::InvalidValue);
        error.kind() == ErrorKind::ValueValidation
            && matches!(refused, Some(ContextValue::String(text)) if text.starts_with(value))
    })
}

/// An option that took a word which is meant for an argument behind it.
fn order_tip(error: &clap::Error, command: &Command, words: &[String]) -> Option<String> {
    let mut options = command
        .get_arguments()
        .filter_map(|option| Some((option.get_long()?, option.get_num_args()?)));
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, _) => {
            let is_given = |name: &str| words.iter().any(|word| *word == format!("--{name}"));
            let (name, _) =
                options.find(|(name, count)| count.max_values() > 1 && is_given(name))?;
            Some(format!("'--{name}' takes all words behind it; put it last"))
        }
        (ErrorKind::ValueValidation, Some(ContextValue::String(shown))) => {
            let is_meant = |name: &str| shown.split(' ').any(|word| word == format!("--{name}"));
            let (name, _) =
                options.find(|(name, count)| count.min_values() == 0 && is_meant(name))?;
            takes_word(error, name, words).then(|| {
                format!("'--{name}' takes the word behind it; write '--{name}=N', or put it last")
            })
        }
        _ => None,
    }
}

/// Whether the value that an option refused is the word behind it, and no number.
fn takes_word(error: &clap::Error, name: &str, words: &[String]) -> bool {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return false;
    };
    let option = format!("--{name}");
    let is_behind = |pair: &[String]| pair[0] == option && pair[1] == *value;
    value.parse::<f64>().is_err() && words.windows(2).any(is_behind)
}

/// The command that is meant by one that does not exist. A command such as `kiln data` has names of
/// its own.
fn command_tip(error: &clap::Error, command: &Command) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let is_main = command.get_name() == "kiln";
    let mut known = COMMANDS.iter().filter(|_| is_main);
    let (_, meant, what) = known.find(|(names, ..)| names.contains(&unknown.as_str()))?;
    Some(format!("use 'kiln {meant}': {what}"))
}

#[cfg(test)]
mod tests;
