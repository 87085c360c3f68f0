//! The commands in the comments at the head of the files in `experiments/`: each is accepted as it
//! stands there. No trial starts, so no data is needed.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use crate::pages::{Block, ShownCommand, root};

/// `kiln` whose `run` and `tune` start nothing and see no earlier runs.
const DRY: &str = r#"kiln() {
    case $1 in
        run | tune) command kiln "$@" --dry-run --results none ;;
        *) command kiln "$@" ;;
    esac
}
"#;

/// The indented lines of a file's comments.
fn commands(file: &Path) -> Vec<ShownCommand> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("#   "));
    let block = Block {
        language: "sh".to_owned(),
        marks: Vec::new(),
        line: 1,
        text: lines.map(|line| format!("{line}\n")).collect(),
    };
    block.commands()
}

#[test]
fn every_command_in_the_head_of_an_experiment_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["experiments", "results"] {
        symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_kiln")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut count = 0;
    for entry in fs::read_dir(root().join("experiments")).unwrap() {
        let file = entry.unwrap().path();
        if file.is_dir() {
            continue;
        }
        for command in commands(&file) {
            let output = Command::new("bash")
                .args(["-e", "-c", &format!("{DRY}{}", command.typed)])
                .current_dir(folder.path())
                .env("PATH", format!("{}:{path}", programs.display()))
                .env("XDG_CACHE_HOME", folder.path().join("cache"))
                .env("KILN_LOCKS", folder.path().join("locks"))
                .env("CUDA_VISIBLE_DEVICES", "")
                .env_remove("KILN_DATA")
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{}: {}\n{}",
                file.display(),
                command.typed,
                String::from_utf8_lossy(&output.stderr)
            );
            count += 1;
        }
    }
    assert!(count >= 10, "{count}");
}
