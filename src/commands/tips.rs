//! Tips on a command line that does not parse: what kiln has in place of an option or a command of
//! other programs.

use clap::{
    Arg, Command,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::command_line;

/// What kiln has in place of an option.
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
    (&["repeats"], Target::KeyIn("tune", "sweep.search.repeats")),
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

/// Commands of other programs, the command that is meant, and what that one does.
const COMMANDS: [(&[&str], &str, &str); 3] = [
    (
        &["resume", "continue"],
        "run",
        "it resumes an unfinished run of the file",
    ),
    (&["list"], "ls", "it lists the runs"),
    (&["remove", "delete"], "rm", "it removes runs"),
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
    let word = unknown.trim_start_matches('-');
    let (value, rest) = taken_out(unknown, words);
    let known = || {
        let meant = OPTIONS.iter().filter(|(names, _)| names.contains(&word));
        let mut targets = meant.map(|(_, target)| *target);
        let target = targets.find(|target| has(command, *target))?;
        let is_key = matches!(target, Target::Key(_) | Target::KeyIn(..));
        let devices = value.filter(|_| has(command, Target::Key("run.devices")));
        (!is_key || may_set(&rest)).then(|| in_words(target, devices.and_then(list)))
    };
    let format = || {
        has_value(command, "format", word)
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
            Some(format!(
                "'--{name}' takes the word behind it; write '--{name}=N', or put it last"
            ))
        }
        _ => None,
    }
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
mod tests {
    use kiln_core::spec;
    use serde_json::Value;

    use super::*;

    fn rendered(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = command_line().try_get_matches_from(&words).unwrap_err();
        with_tip(error, &words).render().to_string()
    }

    #[test]
    fn an_option_of_other_programs_leads_to_what_kiln_has() {
        let cases = [
            ("kiln run f --json", "use '--progress json'"),
            ("kiln tune f --json", "use '--progress json'"),
            ("kiln run f -q", "use '--quiet'"),
            ("kiln run f --resume", "the same command resumes"),
            ("kiln run f --repeats 3", "'--set sweep.repeats=…'"),
            ("kiln tune f --repeats 2", "'--set sweep.search.repeats=…'"),
            ("kiln run f --steps=3", "'--set train.steps=…'"),
            ("kiln plan f --device cpu", "'--set run.devices=…'"),
            ("kiln plan f --batch-size 8", "'--set train.batch_size=…'"),
            (
                "kiln plan f --steps 5",
                "for a command '--set model.values.NAME=…'",
            ),
            ("kiln plan f --seed 5", "'--set train.seed=…'"),
            ("kiln doctor f --gpus 0", "'--set run.devices=…'"),
            (
                "kiln compare a b --rerun --device cpu",
                "'--set run.devices=…'",
            ),
            ("kiln run f --gpus 2", "use '--device'"),
            ("kiln run f --gpus 0,1", "use --device '[0, 1]'"),
            ("kiln run --gpus=0,1 f", "use --device '[0, 1]'"),
            ("kiln plan f --device 0,1", "--set 'run.devices=[0, 1]'"),
            ("kiln sample x --gpus 0,1", "use '--device'"),
            ("kiln --color never run f --gpu 0", "use '--device'"),
            (
                "kiln sample x --temperature -1.5",
                "'--temperature' takes no negative value",
            ),
            ("kiln ls --limit -1", "'--limit' takes no negative value"),
            ("kiln sample x --prompt -1.5", "write '--prompt=-1.5'"),
            (
                "kiln compare x --between model.shift --base -1",
                "write '--base=-1'",
            ),
            (
                "kiln report --markdown",
                "this format is chosen by '--format markdown'",
            ),
            ("kiln resume f", "use 'kiln run': it resumes"),
        ];
        for (line, tip) in cases {
            let text = rendered(line);
            assert!(text.contains(tip), "{line}: {text}");
            assert!(!text.contains("similar"), "{line}: {text}");
            assert_eq!(text.matches("tip:").count(), 1, "{line}: {text}");
        }
        // The usage of clap would show the option that it suggests.
        assert!(!rendered("kiln run f --repeats 3").contains("--results"));
    }

    #[test]
    fn no_tip_leads_to_the_next_error() {
        assert!(!rendered("kiln sample x --results -1").contains("tip:"));
        for line in [
            "kiln compare a b --device cpu",
            "kiln doctor --gpus 0",
            "kiln run f --cuda",
        ] {
            let text = rendered(line);
            assert!(!text.contains("--set run.devices"), "{line}: {text}");
            assert!(!text.contains("'--device'\n"), "{line}: {text}");
        }
    }

    #[test]
    fn what_never_resumes_is_not_said_to_resume() {
        let text = rendered("kiln reproduce x --resume");
        assert!(!text.contains("resumes"), "{text}");
        assert!(rendered("kiln tune f --resume").contains("the same command resumes"));
        let mut commands = command_line();
        let reproduce = commands.find_subcommand_mut("reproduce").unwrap();
        let help = reproduce.render_long_help().to_string();
        assert!(!help.contains("--fresh"), "{help}");
    }

    #[test]
    fn an_option_that_takes_the_next_words_goes_last() {
        let text = rendered("kiln evaluate --data corpus.txt curves");
        assert!(
            text.contains("tip: '--data' takes all words behind it; put it last"),
            "{text}"
        );
        let usage = "Usage: kiln evaluate <RUN[:TRIAL]> [OPTIONS] [--data <PATH>...]";
        assert!(text.contains(usage), "{text}");
        let text = rendered("kiln predict --top photos x.png");
        assert!(text.contains("write '--top=N', or put it last"), "{text}");
        assert!(!rendered("kiln evaluate").contains("tip:"));
    }

    #[test]
    fn no_tip_says_to_write_an_option_behind_dashes() {
        for line in [
            "kiln run f -v",
            "kiln export x --to d --json",
            "kiln plan f --only t1",
            "kiln report --quiet",
            "kiln data verify x --jsom",
        ] {
            let text = rendered(line);
            assert!(!text.contains("as a value"), "{line}: {text}");
        }
        let slip = rendered("kiln run f --detatch");
        assert!(slip.contains("'--detach'"), "{slip}");
    }

    #[test]
    fn each_target_exists() {
        let commands = command_line();
        for (names, target) in OPTIONS {
            let mut all = commands.get_subcommands();
            assert!(all.any(|command| has(command, target)), "{names:?}");
            if let Target::Key(key) | Target::KeyIn(_, key) = target {
                assert!(is_key(key), "{key}");
            }
        }
        for name in FREE_TEXTS {
            let mut all = commands.get_subcommands();
            assert!(all.any(|command| option(command, name).is_some()), "{name}");
        }
        for (_, command, _) in COMMANDS {
            assert!(commands.find_subcommand(command).is_some(), "{command}");
        }
    }

    fn is_key(key: &str) -> bool {
        let schema = spec::schema();
        let mut places = vec![&schema];
        for part in key.split('.') {
            places = places
                .into_iter()
                .flat_map(|place| kinds(&schema, place))
                .filter_map(|kind| kind["properties"].get(part))
                .collect();
        }
        !places.is_empty()
    }

    /// The maps that a place of the schema allows.
    fn kinds<'a>(schema: &'a Value, place: &'a Value) -> Vec<&'a Value> {
        if let Some(name) = place["$ref"].as_str() {
            let name = name.trim_start_matches('#');
            return kinds(schema, schema.pointer(name).unwrap());
        }
        let of = |word: &str| place[word].as_array().into_iter().flatten();
        let inner = of("oneOf").chain(of("anyOf"));
        let mut all: Vec<&Value> = inner.flat_map(|inner| kinds(schema, inner)).collect();
        all.push(place);
        all
    }
}
