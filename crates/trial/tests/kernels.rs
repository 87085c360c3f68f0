//! The kernels for CUDA, compiled for the CPU by `$CXX` with a sanitizer, which sees what the tests
//! of operations cannot: threads that race, and reads and writes outside of a buffer. What the
//! kernels compute is compared with plain loops on the way (`kernels/check.cpp`).

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{common::in_repository, form::by_form};

/// Runs a program, whose words are shown where it fails.
fn expect_success(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Builds the check and runs it with `arguments`: kinds of numbers (0 f32, 1 f16, 2 bf16), and
/// `more` for larger sizes. `of_turns` are the flags of the source that makes a block's threads
/// take turns, which ThreadSanitizer must not see.
fn check(sanitizer: &str, of_turns: &[&str], arguments: &str) {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let libtorch =
        env::var_os("LIBTORCH").map_or_else(|| in_repository(".libtorch/torch"), PathBuf::from);
    let source = in_repository("crates/trial/src/engine/shim");
    let folder = tempfile::tempdir().unwrap();
    let turns = folder.path().join("turns.o");
    let compile = |flags: &[&str], from: &Path, to: &Path| {
        expect_success(
            Command::new(&compiler)
                .args(["-std=c++17", "-O1", "-g", "-pthread"])
                .args(flags)
                .arg("-I")
                .arg(&source)
                .arg("-I")
                .arg(libtorch.join("include"))
                .arg(from)
                .arg("-o")
                .arg(to),
        );
    };
    compile(
        &[&["-c"], of_turns].concat(),
        &source.join("blocks_on_cpu.cpp"),
        &turns,
    );
    let program = folder.path().join("check");
    compile(
        &[sanitizer, &turns.display().to_string()],
        &in_repository("crates/trial/tests/kernels/check.cpp"),
        &program,
    );
    expect_success(Command::new(program).args(arguments.split(' ')));
}

#[test]
fn real_sanitizers_see_no_race_of_threads() {
    check(
        "-fsanitize=thread",
        &["-DWATCHED_BY_TSAN"],
        by_form("2", "0 1 2"),
    );
}

#[test]
fn real_sanitizers_see_no_access_outside_of_buffers() {
    check("-fsanitize=address", &[], by_form("0 2", "0 1 2 more"));
}
