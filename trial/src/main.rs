//! The child's command line: `kiln-trial --calibrate <cpu|cuda> <threads>`.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let ended = match arguments.split_first() {
        Some((first, rest)) if first == "--calibrate" => kiln_trial::calibrate::answer(rest, io::stdout()),
        _ => Err(kiln_trial::TrialError::Bad("usage: kiln-trial --calibrate <cpu|cuda> <threads>".to_owned())),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::from(2)
        }
    }
}
