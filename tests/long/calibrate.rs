//! `kiln calibrate` with the program that measures, some ten seconds of matrix products, and a
//! trial that is held against its peak.

use std::{collections::HashMap, fs, process::Command};

use crate::scripted_child::real_trial;

#[test]
fn a_real_peak_is_kept_and_a_real_trial_is_held_against_it() {
    let folder = tempfile::tempdir().unwrap();
    let kiln = |arguments: &[&str]| {
        let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
        kiln.args(arguments)
            .current_dir(folder.path())
            .env("KILN_TRIAL", real_trial())
            .env("XDG_CACHE_HOME", folder.path().join("cache"));
        kiln.env("KILN_LOCKS", folder.path().join("locks"))
            .env("KILN_NVML_LIB", "/nonexistent")
            .env("CUDA_VISIBLE_DEVICES", "");
        let ended = kiln.output().unwrap();
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        String::from_utf8(ended.stdout).unwrap()
    };
    let printed = kiln(&["calibrate", "--device", "cpu", "--cpu-threads", "1"]);
    assert!(
        printed.contains("f32") && printed.contains("FLOP/s"),
        "{printed}"
    );
    let kept: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("cache/kiln/peaks.json")).unwrap())
            .unwrap();
    let peaks = kept["peaks"].as_array().unwrap();
    assert!(
        peaks
            .iter()
            .all(|peak| peak["flops"].as_f64().unwrap() > 0.0 && peak["cpu_threads"] == 1),
        "{kept}"
    );
    let peak = peaks
        .iter()
        .find(|peak| peak["precision"] == "f32")
        .unwrap();
    assert!(
        [512, 1024, 2048].contains(&peak["size"].as_u64().unwrap()),
        "{kept}"
    );

    let experiment = "kiln: 1\nname: x\nmodel: {kind: matmul, size: 512}\ntrain: {steps: 20, \
                      cpu_threads: 1}\n\
                      measure: {warmup_steps: 2, warmup_seconds: 0.0}\n";
    fs::write(folder.path().join("x.yaml"), experiment).unwrap();
    kiln(&["run", "x.yaml", "--device", "cpu"]);
    let table = folder.path().join("results/x/latest/trials.csv");
    let row: HashMap<String, String> = csv::Reader::from_path(table)
        .unwrap()
        .deserialize()
        .next()
        .unwrap()
        .unwrap();
    let number = |column: &str| {
        row[column]
            .parse::<f64>()
            .unwrap_or_else(|_| panic!("{column}: {row:?}"))
    };
    assert_eq!(
        (row["peak_source"].as_str(), number("peak_flops")),
        ("measured", peak["flops"].as_f64().unwrap())
    );
    let mfu = number("samples_per_second") * number("flops_per_sample") / number("peak_flops");
    assert!((number("mfu") / mfu - 1.0).abs() < 1e-6, "{row:?}");
}
