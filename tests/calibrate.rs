//! `kiln calibrate`, with a scripted child in the place of the one that measures, and what a run
//! then does with the peak.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use fake_nvml::{Scenario, install::install};

use crate::scripted_child::program::write_program;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// A child that answers with these peaks and plays a short trial of 1 000 samples/s.
fn script(f32_flops: &str, libtorch: &str) -> String {
    format!(
        r#"if [ "$1" = --calibrate ]; then
  echo "$@ [$CUDA_VISIBLE_DEVICES]" > asked
  echo '{{"kiln_calibration":1,"libtorch":"{libtorch}","device_name":"Scripted CPU","cpu_threads":3,"peaks":[
    {{"precision":"f32","flops":{f32_flops},"size":1024,"tried":[]}},{{"precision":"amp-bf16","flops":50.0e9,"size":512,"tried":[]}}]}}'
  exit
fi
value() {{ sed -n "s/^ *$1: *//p" "$file" | head -n 1 | tr -d "'\""; }}
file=$1
printf '{{"kiln_trial_result":1,"trial":"%s","attempt":%s,"outcome":"completed","steps":9,"left_out_steps":2,"samples_per_second":1000.0,
  "libraries":{{"libtorch":"2.11.0"}}}}' "$(value trial)" "$(value attempt)" > "$(value folder)/trial.json"
echo '{{"event":"finished","outcome":"completed"}}'"#
    )
}

fn kiln(folder: &Path, arguments: &[&str], script: &str) -> Command {
    let child = folder.join("child");
    write_program(&child, &format!("#!/bin/sh\n{script}\n"));
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    kiln.args(arguments)
        .current_dir(folder)
        .env("KILN_TRIAL", &child)
        .env("XDG_CACHE_HOME", folder.join("cache"));
    kiln.env("KILN_LOCKS", folder.join("locks"))
        .env("KILN_NVML_LIB", "/nonexistent")
        .env("KILN_NVML_PATIENCE", "60")
        .env_remove("CUDA_VISIBLE_DEVICES");
    kiln
}

fn calibrate(folder: &Path, script: &str) -> Output {
    kiln(
        folder,
        &["calibrate", "--device", "cpu", "--cpu-threads", "3"],
        script,
    )
    .output()
    .unwrap()
}

fn stdout(ended: &Output) -> String {
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn refused(mut kiln: Command) -> String {
    let ended = kiln.output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(3), "{error}");
    error
}

fn peaks(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(folder.join("cache/kiln/peaks.json")).unwrap()).unwrap()
}

#[test]
fn the_childs_peaks_are_printed_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let printed = stdout(&calibrate(folder.path(), &script("123.4e9", "2.11.0")));
    assert_eq!(
        fs::read_to_string(folder.path().join("asked")).unwrap(),
        "--calibrate cpu 3 []\n"
    );
    assert!(
        printed.contains("123.4 GFLOP/s") && printed.contains("50.0 GFLOP/s"),
        "{printed}"
    );
    let kept = peaks(folder.path());
    assert_eq!(
        (&kept["peaks"][0]["flops"], &kept["peaks"][1]["cpu_threads"]),
        (&123.4e9.into(), &3.into())
    );
}

#[test]
fn the_best_peak_stays_and_a_lower_one_is_shown_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    calibrate(folder.path(), &script("100.0e9", "2.11.0"));
    let printed = stdout(&calibrate(folder.path(), &script("80.0e9", "2.11.0")));
    assert!(
        printed.contains("80.0 GFLOP/s") && printed.contains("100.0 GFLOP/s"),
        "{printed}"
    );
    assert!(
        printed.contains(
            "f32: 20.0 % lower than before; the best one is kept; the device may have been \
             throttled or disturbed"
        ),
        "{printed}"
    );
    assert!(
        !printed.contains("amp-bf16:"),
        "an equal one needs no remark: {printed}"
    );
    let kept = peaks(folder.path());
    let flops: HashMap<&str, f64> = kept["peaks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|peak| {
            (
                peak["precision"].as_str().unwrap(),
                peak["flops"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(flops, [("f32", 100.0e9), ("amp-bf16", 50.0e9)].into());
    let printed = stdout(&calibrate(folder.path(), &script("60.0e9", "2.12.0")));
    assert!(
        !printed.contains("lower than before"),
        "another libtorch begins anew: {printed}"
    );
}

#[test]
fn a_run_takes_the_peak_of_its_own_libtorch_and_threads_alone() {
    for (libtorch, threads, is_taken) in [
        ("2.11.0", 3, true),
        ("2.12.0", 3, false),
        ("2.11.0", 2, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let script = script("100.0e9", libtorch);
        stdout(&calibrate(folder.path(), &script));
        let experiment = format!(
            "kiln: 1\nname: x\nmodel: {{kind: matmul, size: 100}}\ntrain: {{steps: 9, cpu_threads: \
             {threads}}}\n"
        );
        fs::write(folder.path().join("x.yaml"), experiment).unwrap();
        stdout(
            &kiln(
                folder.path(),
                &["run", "x.yaml", "--device", "cpu"],
                &script,
            )
            .output()
            .unwrap(),
        );
        let table = folder.path().join("results/x/latest/trials.csv");
        let rows: Vec<HashMap<String, String>> = csv::Reader::from_path(table)
            .unwrap()
            .deserialize()
            .map(Result::unwrap)
            .collect();
        let row = &rows[0];
        if is_taken {
            assert_eq!(
                (
                    row["peak_source"].as_str(),
                    row["peak_flops"].parse::<f64>().unwrap()
                ),
                ("measured", 100.0e9)
            );
            let mfu = row["samples_per_second"].parse::<f64>().unwrap()
                * row["flops_per_sample"].parse::<f64>().unwrap()
                / 100.0e9;
            assert!(
                (row["mfu"].parse::<f64>().unwrap() / mfu - 1.0).abs() < 1e-6,
                "{row:?}"
            );
        } else {
            assert_eq!(
                (
                    row["peak_source"].as_str(),
                    row["peak_flops"].as_str(),
                    row["mfu"].as_str()
                ),
                ("", "", ""),
                "{libtorch}, {threads}"
            );
            assert!(
                row["notes"].contains("mfu: no peak is known"),
                "{}",
                row["notes"]
            );
        }
    }
}

#[test]
fn a_child_that_fails_or_answers_nonsense_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let without_peak = script("0.0", "2.11.0");
    for (script, says) in [
        ("exit 7", "exit status: 7"),
        ("echo hello", "is not a calibration"),
        (&without_peak, "its peak at f32 is 0"),
    ] {
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
    let error = refused(kiln(
        folder.path(),
        &["calibrate", "--device", "GPU-of-someone-else"],
        "exit 1",
    ));
    assert!(
        error.contains("`--device GPU-of-someone-else` is not here"),
        "{error}"
    );
}

/// A library with one GPU, on which process 1 is at work.
fn nvml() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = install(
            folder.path(),
            &Scenario::read(Path::new("tests/scenarios/small.yaml")).unwrap(),
        )
        .unwrap();
        (folder, path)
    });
    path
}

#[test]
fn a_gpu_in_use_is_not_measured_and_its_user_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for device in ["auto", "0", GPU] {
        let mut kiln = kiln(
            folder.path(),
            &["calibrate", "--device", device],
            "touch started",
        );
        kiln.env("KILN_NVML_LIB", nvml());
        let error = refused(kiln);
        assert!(
            error.contains("no device is idle") && error.contains("is used by PID 1"),
            "{error}"
        );
    }
    assert!(!folder.path().join("started").exists());
}

#[test]
fn a_leased_gpu_is_not_measured_and_its_holder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("locks")).unwrap();
    let mut lock = File::create(folder.path().join("locks").join(format!("{GPU}.lock"))).unwrap();
    lock.lock().unwrap();
    lock.write_all(b"process 4711 (experiment `y`)").unwrap();
    let mut kiln = kiln(folder.path(), &["calibrate"], "touch started");
    kiln.env("KILN_NVML_LIB", nvml());
    let error = refused(kiln);
    assert!(
        error.contains("is leased by process 4711 (experiment `y`)"),
        "{error}"
    );
    assert!(!folder.path().join("started").exists());
}

#[test]
fn a_gpu_that_the_environment_hides_is_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = |device: &str| {
        let mut kiln = kiln(
            folder.path(),
            &["calibrate", "--device", device],
            &script("1.0e9", "2.11.0"),
        );
        kiln.env("KILN_NVML_LIB", nvml())
            .env("CUDA_VISIBLE_DEVICES", "");
        kiln
    };
    let error = refused(hidden("0"));
    assert!(
        error.contains("`--device 0` is not here: `CUDA_VISIBLE_DEVICES` hides every GPU"),
        "{error}"
    );
    let ended = hidden("auto").output().unwrap();
    assert!(ended.status.success());
    assert!(
        String::from_utf8_lossy(&ended.stderr)
            .contains("`CUDA_VISIBLE_DEVICES` hides every GPU; this is done on the CPU")
    );
    assert!(
        fs::read_to_string(folder.path().join("asked"))
            .unwrap()
            .starts_with("--calibrate cpu")
    );
}

#[test]
fn a_variable_that_names_a_lost_gpu_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = Scenario::read(Path::new("tests/scenarios/lost.yaml")).unwrap();
    let library = install(folder.path(), &scenario).unwrap();
    fs::write(folder.path().join("changed"), "").unwrap();
    let mut kiln = kiln(
        folder.path(),
        &["calibrate", "--device", "auto"],
        &script("1.0e9", "2.11.0"),
    );
    let ended = kiln
        .env("KILN_NVML_LIB", library)
        .env("CUDA_VISIBLE_DEVICES", "0")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success()
            && error.contains("names only GPUs that cannot be used (GPU 0: the GPU is lost")
            && error.contains("; this is done on the CPU"),
        "{error}"
    );
}
