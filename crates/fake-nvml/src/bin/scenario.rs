//! `scenario [--idle] [--prefer-table] CAPTURE > FILE`: converts a capture of a real machine into a
//! scenario.

#![allow(clippy::disallowed_methods, reason = "a program for tests alone")]

use std::{env, fs, io::Write as _, process::ExitCode};

use fake_nvml::convert::{Moment, Prefer, decode, scenario};

const USAGE: &str = "usage: scenario [--idle] [--prefer-table] CAPTURE\n\
                     CAPTURE is `nvidia-smi -q` text, `nvidia-smi -q -x` XML, or a full capture. \
                     Of a full capture the moment under load is taken,\n\
                     or with --idle the other; where its text and its --query-gpu table differ, \
                     the text counts, or with --prefer-table the table.";

fn main() -> ExitCode {
    let (written, status) = match run(env::args().skip(1)) {
        Ok(yaml) => (
            std::io::stdout().write_all(yaml.as_bytes()),
            ExitCode::SUCCESS,
        ),
        Err(message) => (
            writeln!(std::io::stderr(), "scenario: {message}"),
            ExitCode::from(2),
        ),
    };
    if written.is_ok() {
        status
    } else {
        ExitCode::FAILURE
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<String, String> {
    let (mut moment, mut prefer, mut path) = (Moment::Load, Prefer::Text, None);
    for argument in arguments {
        match argument.as_str() {
            "--idle" => moment = Moment::Idle,
            "--prefer-table" => prefer = Prefer::Table,
            other if other.starts_with("--") || path.is_some() => return Err(USAGE.to_owned()),
            _ => path = Some(argument),
        }
    }
    let path = path.ok_or(USAGE)?;
    let bytes = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let capture = decode(&bytes).map_err(|error| format!("{path}: {error}"))?;
    let scenario =
        scenario(&capture, moment, prefer).map_err(|error| format!("{path}: {error}"))?;
    scenario
        .to_yaml()
        .map_err(|error| format!("{path}: {error}"))
}
