//! A fault planted into a real trial is named at the end of `kiln run`. This one is certain on a
//! busy machine too; those that compare times are in `tests/long/planted.rs`.

use std::fs;

use crate::scripted_child::{Ended, Place, real_trial};

#[test]
fn memory_that_is_nearly_full_is_named() {
    let place = Place::with("");
    let model = "model: {kind: mlp, d_model: 64, hidden: 1024, context: 8, seq_len: 64}";
    let data = "data: {kind: generated, characters: 400000, valid_fraction: 0.01}";
    let train = "train: {steps: 3, batch_size: 416, optimizer: {kind: sgd, learning_rate: 0.1}, \
                 cpu_threads: 2}";
    // Samples of a window that a busy machine makes long could look like memory that grows, which
    // stands for memory that is nearly full.
    let run = "measure: {warmup_steps: 1, warmup_seconds: 0.0, sample_interval: 60s}\nrun: \
               {memory_limit: 512MiB, devices: cpu}";
    fs::write(
        place.path("x.yaml"),
        format!("kiln: 1\nname: x\n{model}\n{data}\n{train}\n{run}\n"),
    )
    .unwrap();
    let ended = Ended::of(
        place
            .kiln(&["run", "x.yaml"])
            .env("KILN_TRIAL", real_trial())
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended
            .stdout
            .lines()
            .any(|line| line.starts_with("finding: memory-nearly-full")),
        "{}",
        ended.stdout
    );
}
