//! Options of a recorded command line that are of one launch, and what becomes of each in a command
//! that kiln makes of that line.

/// An option that is not of every launch of a run.
#[derive(Debug)]
pub struct CommandOption {
    pub name: &'static str,
    /// Whether its value may stand in a word of its own.
    pub takes_value: bool,
    /// Whether the launch begins a run with the trials of another one.
    pub is_copying: bool,
    /// Whether the command that resumes the run leaves it out.
    pub is_left_out_of_resume: bool,
    pub beside_keep: BesideKeep,
}

/// What becomes of an option where `--keep` is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesideKeep {
    Stays,
    /// `--keep` begins a new run by itself, and is to run it.
    LeftOut,
    /// It does not go with `--keep`.
    Excludes,
}

/// A flag that a resume leaves out.
const FLAG: CommandOption = CommandOption {
    name: "",
    takes_value: false,
    is_copying: false,
    is_left_out_of_resume: true,
    beside_keep: BesideKeep::Stays,
};
/// An option with a value that a resume leaves out.
const VALUE: CommandOption = CommandOption {
    takes_value: true,
    ..FLAG
};
/// An option by which a run takes the trials of another one.
const COPYING: CommandOption = CommandOption {
    is_copying: true,
    beside_keep: BesideKeep::Excludes,
    ..VALUE
};

/// Every such option.
const OPTIONS_OF_ONE_LAUNCH: [CommandOption; 12] = [
    CommandOption {
        name: "--fresh",
        beside_keep: BesideKeep::LeftOut,
        ..FLAG
    },
    CommandOption {
        name: "--dry-run",
        beside_keep: BesideKeep::LeftOut,
        ..FLAG
    },
    CommandOption {
        name: "--quiet",
        ..FLAG
    },
    CommandOption {
        name: "--detach",
        ..FLAG
    },
    CommandOption {
        name: "--only",
        ..VALUE
    },
    CommandOption {
        name: "--rerun",
        beside_keep: BesideKeep::Excludes,
        ..VALUE
    },
    CommandOption {
        name: "--across",
        ..VALUE
    },
    CommandOption {
        name: "--progress",
        ..VALUE
    },
    CommandOption {
        name: "--at",
        ..VALUE
    },
    CommandOption {
        name: "--continue",
        is_left_out_of_resume: false,
        beside_keep: BesideKeep::Excludes,
        ..VALUE
    },
    CommandOption {
        name: "--keep",
        ..COPYING
    },
    CommandOption {
        name: "--read-again",
        ..COPYING
    },
];

impl CommandOption {
    /// The option that a word of a command line is, with a value behind `=` or without one.
    pub fn of(word: &str) -> Option<&'static Self> {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        OPTIONS_OF_ONE_LAUNCH
            .iter()
            .find(|option| option.name == name)
    }
}
