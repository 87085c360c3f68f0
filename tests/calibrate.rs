//! `kiln calibrate`, with a scripted child in the place of the one that measures.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

const ANSWER: &str = r#"{"kiln_calibration":1,"libtorch":"2.11.0","device_name":"Scripted CPU","cpu_threads":3,"peaks":[
{"precision":"f32","flops":123.4e9,"size":1024,"tried":[[1024,123.4e9]]},{"precision":"amp-bf16","flops":50.0e9,"size":512,"tried":[[512,50.0e9]]}]}"#;

fn calibrate(folder: &Path, script: &str) -> Output {
    let child = folder.join("child");
    fs::write(&child, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&child, fs::Permissions::from_mode(0o755)).unwrap();
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.args(["calibrate", "--device", "cpu", "--cpu-threads", "3"]).current_dir(folder);
    kiln.env("KILN_TRIAL", &child).env("XDG_CACHE_HOME", folder.join("cache")).output().unwrap()
}

#[test]
fn the_childs_peaks_are_printed_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let ended = calibrate(folder.path(), &format!("echo \"$@\" > asked\ncat <<'JSON'\n{ANSWER}\nJSON"));
    let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(fs::read_to_string(folder.path().join("asked")).unwrap(), "--calibrate cpu 3\n");
    assert!(printed.contains("Scripted CPU") && printed.contains("123.4 GFLOP/s") && printed.contains("50.0 GFLOP/s"), "{printed}");
    let kept: serde_json::Value = serde_json::from_slice(&fs::read(folder.path().join("cache/kiln/peaks.json")).unwrap()).unwrap();
    assert_eq!(kept["peaks"][0]["flops"], 123.4e9);
    assert_eq!(kept["peaks"][1]["cpu_threads"], 3);
}

#[test]
fn a_child_that_fails_or_answers_nonsense_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (script, says) in [("exit 7", "exit status: 7"), ("echo hello", "something else than a calibration")] {
        let ended = calibrate(folder.path(), script);
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{error}");
        assert!(error.contains(says), "{error}");
    }
    assert!(!folder.path().join("cache").exists());
}

#[test]
fn a_device_that_is_not_here_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    let ended = kiln.args(["calibrate", "--device", "GPU-of-someone-else"]).current_dir(folder.path()).output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(3), "{error}");
    assert!(error.contains("`--device GPU-of-someone-else` is not here"), "{error}");
}
