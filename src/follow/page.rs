//! The page of a run: what it does, its trials, their losses and readings.

use kiln_core::{
    record::command_line::{Resume, with_variables},
    units::{Bytes, Fraction, WholePercent, counted, decimals, significant},
};

use super::{
    life::Life,
    run::{DeviceReadings, RunState, RunningTrial},
};
use crate::output::frame::{bar, width};

/// Characters of the bar of a run and of a trial.
const RUN_BAR: usize = 24;
const TRIAL_BAR: usize = 16;
/// Most characters of the course of the loss.
const MOST_BLOCKS: usize = 40;

/// Returns the lines of a page of at most so many columns; values in it may hold any character, and a
/// long one makes its line longer.
pub fn page(state: &RunState, columns: usize) -> Vec<String> {
    let mut lines = vec![heading(state), progress(state, columns)];
    lines.extend(
        state
            .problem
            .iter()
            .map(|problem| format!("note: {problem}")),
    );
    for trial in &state.running {
        lines.push(String::new());
        lines.extend(trial_lines(trial, columns));
    }
    lines.extend(how_to_go_on(state));
    lines
}

/// Says how many trials of a run that does not go on are left, and which command runs them if one is
/// known.
pub fn how_to_go_on(state: &RunState) -> Option<String> {
    let resume = state.resume.as_ref()?;
    let left = state.trials.saturating_sub(state.done);
    let what = match (left, state.is_searching) {
        (0, true) => "the search has not ended".to_owned(),
        (1, _) => format!("1 of {} left", counted(state.trials, "trial")),
        _ => format!("{left} of {} trials are left", state.trials),
    };
    Some(format!("{what}{}", command_of(resume)))
}

fn command_of(resume: &Resume) -> String {
    let Some(command) = &resume.command else {
        return String::new();
    };
    let with = with_variables(&resume.variables);
    format!(": `{command}` goes on{with}")
}

/// Returns how a run goes on or ended, in a few words.
fn heading(state: &RunState) -> String {
    let how = match &state.life {
        Life::Running => "running".to_owned(),
        Life::Beginning => "a launch begins".to_owned(),
        Life::Ended(how) => how.clone(),
        Life::Stopped { since: Some(since) } => {
            format!("not running since {since}, it did not end by itself")
        }
        Life::Stopped { since: None } => "not running, it did not end by itself".to_owned(),
    };
    let launch = state
        .launch
        .map(|launch| format!("launch {launch}, "))
        .unwrap_or_default();
    format!("{}: {launch}{how}", state.folder.display())
}

fn progress(state: &RunState, columns: usize) -> String {
    let fraction = state.done as f64 / state.trials.max(1) as f64;
    let more = if state.is_searching { "+" } else { "" };
    let mut text = format!(
        "{} {}/{}{more} trials",
        bar(fraction, RUN_BAR.min(columns * 3 / 10)),
        state.done,
        state.trials
    );
    // First of all, because a narrow page loses the end of its lines.
    if let Some(left) = &state.time_left {
        text.push_str(&format!(", about {left} left"));
    }
    if state.failed > 0 {
        text.push_str(&format!(", {} failed", state.failed));
    }
    let running = state.running.len();
    let waiting = state.trials.saturating_sub(state.done + running);
    if state.life.goes_on() {
        text.push_str(&format!(", {running} running, {waiting} waiting"));
    } else if state.done < state.trials {
        text.push_str(&format!(", {} left", state.trials - state.done));
    }
    text
}

fn trial_lines(trial: &RunningTrial, columns: usize) -> Vec<String> {
    let again = match trial.attempt {
        1 => String::new(),
        attempt => format!(", attempt {attempt}"),
    };
    let mut lines = vec![format!("{}{again}", trial.name), steps(trial)];
    lines.extend(loss(trial, columns));
    lines.extend(trial.readings.iter().map(readings));
    lines
}

fn steps(trial: &RunningTrial) -> String {
    let step = trial.step.unwrap_or(0);
    let mut text = match trial.total_steps {
        Some(total) => {
            let fraction = step as f64 / total.max(1) as f64;
            format!("  {} {step}/{total} steps", bar(fraction, TRIAL_BAR))
        }
        // A command's steps stand in no table while it runs.
        None if trial.step.is_none() => "  no step known yet".to_owned(),
        None => format!("  {}", counted(step as usize, "step")),
    };
    if let Some(rate) = trial.samples_per_second {
        text.push_str(&format!(", {} samples/s", significant(rate)));
    }
    if let Some(share) = trial.data_wait_fraction {
        text.push_str(&format!(", data wait {}", Fraction(share)));
    }
    text
}

fn loss(trial: &RunningTrial, columns: usize) -> Option<String> {
    let mut text = format!("  loss {}", decimals(trial.loss?, 4));
    let valid = trial
        .valid_loss
        .map(|loss| format!(", valid loss {}", decimals(loss, 4)))
        .unwrap_or_default();
    let room = columns.saturating_sub(width(&text) + 1 + width(&valid));
    let course = trial.losses.sparkline(room.min(MOST_BLOCKS));
    if !course.is_empty() {
        text.push_str(&format!(" {course}"));
    }
    Some(text + &valid)
}

/// The readings of one device; of the CPU those of the process and the host.
fn readings(readings: &DeviceReadings) -> String {
    if let Some(absence) = &readings.absence {
        return format!("  {}: {absence}", readings.device);
    }
    let percent = |share: f64| WholePercent(share).to_string();
    let figures = if readings.device == "cpu" {
        [
            readings
                .cpu_cores
                .map(|cores| format!("CPU {cores:.1} cores")),
            readings
                .resident_bytes
                .map(|bytes| format!("{} resident", Bytes(bytes))),
            readings
                .host_cpu_fraction
                .map(|share| format!("host {} busy", percent(share))),
            None,
            None,
        ]
    } else {
        [
            readings
                .gpu_utilization
                .map(|share| format!("GPU {}", percent(share))),
            readings
                .sm_active
                .map(|share| format!("SM active {}", percent(share))),
            readings
                .memory_used_bytes
                .map(|bytes| format!("{} used", Bytes(bytes))),
            readings.power_watts.map(|watts| format!("{watts:.0} W")),
            readings
                .temperature_celsius
                .map(|celsius| format!("{celsius:.0} °C")),
        ]
    };
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    match figures.is_empty() {
        true => format!("  {}: no readings", readings.device),
        false => format!("  {}", figures.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_goes_on_names_the_variables_and_may_be_unknown() {
        let of = |command: Option<&str>, variables: &[&str]| {
            command_of(&Resume {
                command: command.map(str::to_owned),
                variables: variables.iter().map(|name| (*name).to_owned()).collect(),
            })
        };
        let told = of(Some("kiln run x.yaml"), &["KILN_A__B"]);
        let expected = ": `kiln run x.yaml` goes on with the same value of `KILN_A__B`";
        assert_eq!(told, expected);
        assert_eq!(of(None, &["KILN_A__B"]), "");
    }
}
