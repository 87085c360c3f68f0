//! `kiln helper`: prints the file with which a program in another language speaks the child's
//! protocol.

use super::{Status, Stop, print_own};

/// The helper for Python.
const PYTHON: &str = include_str!("../../python/kiln_child.py");

#[derive(clap::Args)]
pub(super) struct Args {
    /// The language.
    #[arg(value_enum)]
    language: Language,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Language {
    /// One module of Python's standard library alone, 3.8 or newer.
    Python,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let text = match args.language {
        Language::Python => PYTHON,
    };
    print_own(text)?;
    Ok(Status::Success)
}

#[cfg(test)]
mod tests {
    use kiln_core::record::tables::{EPOCHS, STEPS};

    use super::*;

    /// The words of the string literals after `NAME = `, up to the next line without any.
    fn words_of(name: &str) -> Vec<&'static str> {
        let (_, after) = PYTHON.split_once(&format!("\n{name} = ")).unwrap();
        let (text, _) = after.split_once(".split()").unwrap();
        text.split('"')
            .skip(1)
            .step_by(2)
            .flat_map(str::split_whitespace)
            .collect()
    }

    #[test]
    fn the_helper_writes_the_tables_that_reports_read() {
        for (name, table) in [("STEPS", &STEPS), ("EPOCHS", &EPOCHS)] {
            assert_eq!(words_of(name), table.names(), "{name}");
            let version = format!("\"{}\", self._run_seconds", table.version);
            assert!(PYTHON.contains(&version), "{version}");
        }
    }
}
