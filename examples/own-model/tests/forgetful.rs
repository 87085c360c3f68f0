//! A training whose memory grows, through `kiln run`: the rate is measured, and the run ends with a
//! finding that names it.

use std::{collections::HashMap, fs, path::Path, process::Command};

use crate::form::by_form;

#[test]
fn a_leak_is_measured_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kiln: 1\nname: x\nmodel: {kind: custom, name: forgetful, reads: images}\n\
                data: {kind: generated-images, images: 512, valid_images: 64, image_size: 16}\n\
                train: {steps: STEPS, batch_size: 16, cpu_threads: 1}\nmeasure: {warmup_steps: 5, \
                warmup_seconds: 0.0}\n";
    let text = text.replace("STEPS", by_form("200", "400"));
    fs::write(folder.path().join("x.yaml"), text).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_forgetful")).with_file_name("kiln");
    assert!(
        program.exists(),
        "{} is not built; `cargo test --workspace --release` builds it",
        program.display()
    );
    let mut kiln = Command::new(program);
    kiln.args(["run", "x.yaml"])
        .current_dir(folder.path())
        .env("KILN_TRIAL", env!("CARGO_BIN_EXE_forgetful"));
    let output = kiln
        .env("KILN_LOCKS", folder.path().join("locks"))
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let mut table =
        csv::Reader::from_path(folder.path().join("results/x/latest/trials.csv")).unwrap();
    let row: HashMap<String, String> = table.deserialize().next().unwrap().unwrap();
    let slope: f64 = row["resident_slope_bytes_per_step"].parse().unwrap();
    // The list, what the allocator adds to it, and pages that the system counts late or takes away
    // from a machine short of memory. A rate of another step or unit would be off by a factor.
    assert!(
        (slope / f64::from(512 << 10) - 1.0).abs() < 0.1,
        "{slope} bytes a step"
    );
    assert!(
        stdout.contains("finding: memory-growing: host memory grew by "),
        "{stdout}"
    );
}
