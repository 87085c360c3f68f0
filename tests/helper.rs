//! The helper for Python: its own tests, and `kiln helper python`. Needs `python3`, as the setup
//! does.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn in_repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[test]
fn it_keeps_the_childs_protocol() {
    output(
        Command::new("python3")
            .arg("-I")
            .arg(in_repository("tests/helper/test_kiln_child.py"))
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

#[test]
fn the_verb_prints_the_file() {
    let printed = output(Command::new(env!("CARGO_BIN_EXE_kiln")).args(["helper", "python"]));
    let file = fs::read(in_repository("python/kiln_child.py")).unwrap();
    assert_eq!(printed.stdout, file);
}
