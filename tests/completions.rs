//! Completions of run names and trial ids, in the shells themselves on a terminal.

use std::{fs, path::Path, process::Command};

use crate::{scripted_child::Place, terminal::Terminal};

/// A shell as it starts without a user's settings, and how it loads completions.
struct Shell {
    start: &'static str,
    load: &'static str,
}

const BASH: Shell = Shell {
    start: "bash --norc --noprofile -i",
    load: "source <(kiln completions bash)",
};
const ZSH: Shell = Shell {
    start: "zsh -f -i",
    load: "autoload -U compinit; compinit -u -D; source <(kiln completions zsh)",
};
/// As `make install` does it: zsh loads the file when the first completion is asked for.
const ZSH_LATE: Shell = Shell {
    start: "mkdir functions; kiln completions zsh >functions/_kiln; zsh -f -i",
    load: "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D",
};
const FISH: Shell = Shell {
    start: "fish --no-config",
    load: "kiln completions fish | source",
};

impl Shell {
    /// Types what a person would; a tab completes each of the words.
    fn completes(&self) {
        let place = Place::with("train: {steps: 10}\nsweep: {grid: {train.batch_size: [1, 2]}}");
        place.run("completes", &[]);
        fs::create_dir_all(place.path("results/$(touch gone)/20260101T000000Z-a;b")).unwrap();
        let trials = place.column("trial");
        let run = fs::read_link(place.latest()).unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_kiln")).parent().unwrap();
        let commands = format!(
            "export PATH={}:$PATH HOME=$PWD PS1='ready> '; {}",
            programs.display(),
            self.start
        );
        let mut terminal = Terminal::new(&place, (24, 120), &commands, "completes");
        terminal.press(&format!("{}; echo load''ed\n", self.load));
        let has =
            |words: String| move |lines: &[String]| lines.iter().any(|line| line.contains(&words));
        terminal.wait_for("the completions are loaded", has("loaded".to_owned()));
        let (first, second) = (&trials[0], &trials[1]);
        for (typed, expected) in [
            ("report lat".to_owned(), "report latest".to_owned()),
            // Once more: zsh has then loaded its function.
            ("watch lat".to_owned(), "watch latest".to_owned()),
            ("export lat".to_owned(), "export latest".to_owned()),
            (
                format!("rm {}", &run.to_str().unwrap()[..8]),
                format!("rm {}", run.display()),
            ),
            (
                format!("sample x:{}", &first[..3]),
                format!("sample x:{first}"),
            ),
            (
                format!("predict latest:{}", &second[..3]),
                format!("predict latest:{second}"),
            ),
        ] {
            terminal.press(&format!("kiln {typed}\t"));
            terminal.wait_for(&typed, has(format!("kiln {expected}")));
            // Gives the line up.
            terminal.press("\u{15}");
        }
        terminal.press("kiln sample '$(touch gone)':\t\u{15}exit\n");
        terminal.wait_for("the shell goes", |lines| {
            lines.iter().any(|line| line.contains("exit"))
        });
        assert!(!place.path("gone").exists());
    }
}

#[test]
fn bash_completes_runs_and_trials() {
    BASH.completes();
}

#[test]
fn real_zsh_completes_runs_and_trials() {
    ZSH.completes();
    ZSH_LATE.completes();
}

#[test]
fn real_fish_completes_runs_and_trials() {
    FISH.completes();
}

#[test]
fn the_example_of_the_help_works_in_a_new_home() {
    let home = tempfile::tempdir().unwrap();
    let kiln = Path::new(env!("CARGO_BIN_EXE_kiln"));
    let help = Command::new(kiln)
        .args(["completions", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, examples) = help.split_once("Examples:\n").unwrap();
    let (examples, _) = examples.split_once("\n\n").unwrap();
    let path = std::env::var("PATH").unwrap();
    let status = Command::new("bash")
        .args(["-e", "-c", examples])
        .env("HOME", home.path())
        .env(
            "PATH",
            format!("{}:{path}", kiln.parent().unwrap().display()),
        )
        .status()
        .unwrap();
    assert!(status.success(), "{examples}");
    let script = home
        .path()
        .join(".local/share/bash-completion/completions/kiln");
    assert!(fs::read_to_string(script).unwrap().contains("kiln"));
}
