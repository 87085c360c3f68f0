//! The rules on made rows: the stories that people bring, and each rule at its edges. Recorded runs
//! are diagnosed in `tests/diagnosis.rs`.

use kiln_core::{
    plan::Outcome,
    record::{
        TableRow, TrialRow, TrialTable,
        note::{ReplayedSteps, ResumedCommand},
    },
};

use super::*;
use crate::report::points::tests::{row, table};

const GIB: u64 = 1 << 30;

/// A GPT on an 80 GiB GPU that is busy, well fed and undisturbed: nothing is to be said of it.
fn good(id: u64) -> TrialRow {
    TrialRow {
        trial_seconds: Some(320.0),
        data_kind: "wikitext2".into(),
        device_name: Some("NVIDIA H100 80GB HBM3".into()),
        driver: Some("590.48.01".into()),
        libtorch: Some("2.11.0".into()),
        precision: "amp-bf16".into(),
        batch_size: 64,
        effective_batch_size: 64,
        num_workers: Some(4),
        parameters: Some(124_439_808),
        steps: Some(1_500),
        window_seconds: Some(290.0),
        left_out_steps: Some(10),
        median_step_seconds: Some(0.195),
        epoch_seconds: Some(61.0),
        data_wait_fraction: Some(0.004),
        load_seconds: Some(31.0),
        transfer_fraction: Some(0.006),
        evaluation_seconds: Some(9.0),
        checkpoint_seconds: Some(0.0),
        mfu: Some(0.38),
        peak_flops: Some(7.4e14),
        peak_source: Some("measured".into()),
        peak_allocated_bytes: Some(52 * GIB),
        peak_reserved_bytes: Some(56 * GIB),
        peak_nvml_used_bytes: Some(57 * GIB),
        peak_resident_bytes: Some(3 * GIB),
        memory_limit_bytes: Some(80 * GIB),
        mean_gpu_utilization: Some(0.985),
        mean_sm_active: Some(0.86),
        mean_power_watts: Some(590.0),
        max_temperature_celsius: Some(61.0),
        throttled_fraction: Some(0.0),
        foreign_processes: Some("none".into()),
        cpu_threads: Some(16),
        mean_sm_clock_megahertz: Some(1_965.0),
        mean_cpu_cores: Some(1.4),
        disk_read_bytes: Some(40 << 20),
        mean_disk_busy_fraction: Some(0.01),
        min_host_memory_available_bytes: Some(110 * GIB),
        allocator_retries: Some(0),
        devices_per_trial: Some(1),
        resident_slope_bytes_per_step: Some(12.0),
        allocated_slope_bytes_per_step: Some(0.0),
        ..row(id, 328.0)
    }
}

fn alone(row: TrialRow) -> Vec<RuleFinding> {
    diagnose(&table(&[], vec![(row, &[])]))
}

fn names(findings: &[RuleFinding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.rule).collect()
}

/// The one finding of a lone trial, of this name.
fn only(row: TrialRow, name: &str) -> RuleFinding {
    let mut findings = alone(row);
    assert_eq!(names(&findings), [name], "{findings:#?}");
    findings.remove(0)
}

/// A run of points in turns: of each point its row and its value on the axis; `rates[point]` are
/// those of its repeats.
fn in_turns(axis: &str, points: &[(TrialRow, &str)], rates: &[&[f64]]) -> TrialTable {
    let mut rows = Vec::new();
    for (place, ((point, value), rates)) in points.iter().zip(rates).enumerate() {
        for (block, rate) in rates.iter().enumerate() {
            let id = (block * points.len() + place + 1) as u64;
            let TrialRow { trial, number, .. } = row(id, *rate);
            let fixed = TrialRow {
                trial,
                number,
                samples_per_second: Some(*rate),
                block: Some(block as u64 + 1),
                ..point.clone()
            };
            rows.push(TableRow {
                fixed: Box::new(fixed),
                axes: vec![(*value).to_owned()],
            });
        }
    }
    TrialTable {
        axes: vec![axis.to_owned()],
        rows,
        metrics: Vec::new(),
        others: Vec::new(),
        varied: Vec::new(),
        torn: None,
    }
}

/// The names of the rules that fired, each once.
fn fired(table: &TrialTable) -> Vec<&'static str> {
    let mut names = names(&diagnose(table));
    names.sort_unstable();
    names.dedup();
    names
}

/// Five repeats of the same speed, up to what a quiet machine does.
const FIVE: [f64; 5] = [328.0, 331.0, 324.0, 329.0, 326.0];
/// The same, in other places.
const FIVE_AGAIN: [f64; 5] = [326.0, 333.0, 325.0, 326.0, 328.0];
/// 12 % faster.
const FIVE_FASTER: [f64; 5] = [367.0, 372.0, 363.0, 367.0, 366.0];

fn rule(name: &str) -> &'static Rule {
    RULES.into_iter().find(|rule| rule.name == name).unwrap()
}

#[test]
fn a_good_row_gives_nothing() {
    assert_eq!(names(&alone(good(1))), Vec::<&str>::new());
    assert_eq!(
        names(&alone(row(1, 10.0))),
        Vec::<&str>::new(),
        "a row that knows little says little"
    );
    assert!(diagnose(&table(&[], vec![])).is_empty());
}

/// 40 workers and batch 256 at 3 % utilization.
#[test]
fn forty_workers_on_eight_cores_starve_the_gpu() {
    let starved = TrialRow {
        model_kind: "resnet".into(),
        data_kind: "image-folder".into(),
        batch_size: 256,
        effective_batch_size: 256,
        num_workers: Some(40),
        samples_per_second: Some(412.0),
        median_step_seconds: Some(0.61),
        data_wait_fraction: Some(0.963),
        load_seconds: Some(11_300.0),
        mean_gpu_utilization: Some(0.03),
        mean_sm_active: Some(0.021),
        mfu: Some(0.011),
        peak_allocated_bytes: Some(17 * GIB),
        peak_nvml_used_bytes: Some(19 * GIB),
        cpu_threads: Some(8),
        mean_cpu_cores: Some(7.92),
        ..good(1)
    };
    let found = only(starved.clone(), "workers-starved");
    assert_eq!(
        found.says,
        "the trainer waited for data 96.3 % of the window while the GPU's utilization was 3.0 %: \
         its 40 workers were busy 97.4 % of their time and shared 8 cores with 1 training thread, \
         so more workers cannot help unless the machine has more cores than that, which its rows do \
         not say"
    );
    assert_eq!(found.weight, Weight::Costs(0.963));
    assert_eq!(
        found.next_yaml,
        "sweep: {grid: {data.num_workers: [4, 8, 80], data.synthetic: [false, true]}}\n"
    );
    // With cores to spare the same wait is simply the loader's, and with as many cores as workers
    // it asks for more of them.
    let spare = TrialRow {
        cpu_threads: Some(64),
        ..starved.clone()
    };
    let found = only(spare, "data-bound");
    assert!(
        found
            .says
            .ends_with("with 40 workers: the loader is the limit; try more `data.num_workers`"),
        "{}",
        found.says
    );
    // A busy host was looked at, and its cores are known.
    let noted = TrialRow {
        notes: Some(
            "samples_per_second: other processes kept 1.2 of 8 cores busy in the window".into(),
        ),
        ..starved.clone()
    };
    let found = alone(noted);
    let found = found.iter().find(|found| found.rule == "workers-starved");
    assert!(
        found.is_some_and(|found| found.says.ends_with("so more workers cannot help")
            && found.next_yaml.contains("data.num_workers: [4, 8], "))
    );
    // While the GPU works off queued steps, waiting on the host costs nothing.
    let beside = |utilization| TrialRow {
        mean_gpu_utilization: Some(utilization),
        mean_sm_active: Some(0.8),
        mfu: Some(0.5),
        ..starved.clone()
    };
    let named = |row| names(&alone(row)).join(" ");
    let on_time = named(beside(0.99));
    assert!(
        !on_time.contains("data-") && !on_time.contains("starved"),
        "{on_time}"
    );
    assert!(named(beside(0.85)).contains("data-wait"));
    // Workers that mostly wait for the disk are not starved of cores.
    let slow_disk = TrialRow {
        mean_disk_busy_fraction: Some(0.97),
        disk_read_bytes: Some(30 * GIB),
        mean_cpu_cores: Some(1.1),
        ..starved
    };
    assert_eq!(names(&alone(slow_disk)), ["disk-bound", "workers-starved"]);
}

/// Batch 4 at 87 % utilization with a quarter of the memory used.
#[test]
fn a_small_batch_on_a_working_gpu_is_no_fault() {
    let small = TrialRow {
        batch_size: 4,
        effective_batch_size: 4,
        samples_per_second: Some(71.0),
        median_step_seconds: Some(0.056),
        mean_gpu_utilization: Some(0.87),
        mean_sm_active: None,
        mfu: Some(0.31),
        peak_allocated_bytes: Some(17 * GIB),
        peak_reserved_bytes: Some(19 * GIB),
        peak_nvml_used_bytes: Some(20 * GIB),
        ..good(1)
    };
    let found = only(small.clone(), "memory-to-spare");
    assert!(!found.is_fault && found.weight == Weight::Tells);
    assert_eq!(
        found.says,
        "the GPU is working (utilization 87.0 %); memory is low (25.0 % of 80.0 GiB) because the \
         batch is small (4): not a fault"
    );
    assert_eq!(
        found.next_yaml,
        "sweep: {grid: {train.batch_size: [4, 16, 64]}}\n"
    );
    // It fires where the chip's own counters show that most of the chip was idle.
    let idle_chip = TrialRow {
        mean_sm_active: Some(0.31),
        ..small.clone()
    };
    let found = only(idle_chip, "batch-too-small");
    assert!(
        found.is_fault && found.weight == Weight::Costs(1.0 - 0.31),
        "{found:?}"
    );
    // A model that is small at a large batch is not the batch's doing.
    assert_eq!(
        names(&alone(TrialRow {
            batch_size: 512,
            effective_batch_size: 512,
            ..small
        })),
        Vec::<&str>::new()
    );
}

/// A small model that gains nothing from a GPU.
#[test]
fn a_tiny_model_gains_nothing_from_a_gpu() {
    let tiny = TrialRow {
        model_kind: "lstm".into(),
        batch_size: 16,
        effective_batch_size: 16,
        samples_per_second: Some(20_100.0),
        median_step_seconds: Some(0.00079),
        mean_gpu_utilization: Some(0.71),
        mean_sm_active: Some(0.021),
        mfu: Some(0.0007),
        peak_nvml_used_bytes: Some(GIB),
        peak_allocated_bytes: Some(GIB / 20),
        mean_cpu_cores: Some(1.0),
        ..good(1)
    };
    let found = only(tiny.clone(), "launch-bound");
    assert_eq!(
        found.says,
        "a pass over one batch takes 790 µs, 2.1 % of its multiprocessors had work and its MFU is \
         0.1 % on the GPU (utilization 71.0 %): this fits the cost of starting kernels; small \
         kernels that wait for memory, or a slow host, look the same; with passes so short a CPU \
         may be as fast"
    );
    assert_eq!(
        found.next_yaml,
        "sweep: {grid: {train.batch_size: [16, 64, 256], train.cuda_graph: [off, on]}}\n"
    );
    // Where nothing can be recorded, a CPU is the other question.
    let measured = TrialRow {
        gradient_noise_step: Some(10),
        ..tiny.clone()
    };
    assert_eq!(
        only(measured, "launch-bound").next_yaml,
        "sweep: {grid: {train.batch_size: [16, 64, 256], run.devices: [cpu, auto]}}\n"
    );
    // Kernels that are replayed are not started by the host one by one.
    let replayed = ReplayedSteps {
        steps: 96,
        shapes: 1,
    };
    assert!(
        !names(&alone(TrialRow {
            notes: Some(format!("{}: {replayed}", ReplayedSteps::COLUMN)),
            ..tiny.clone()
        }))
        .contains(&"launch-bound")
    );
    assert!(
        !only(
            TrialRow {
                notes: Some("cuda_graph: trained operator by operator because no".to_owned()),
                ..tiny.clone()
            },
            "launch-bound"
        )
        .next_yaml
        .contains("cuda_graph")
    );
    assert!(
        !only(
            TrialRow {
                precision: "tf32".into(),
                ..tiny.clone()
            },
            "launch-bound"
        )
        .next_yaml
        .contains("cpu")
    );
    let short = only(
        TrialRow {
            median_step_seconds: Some(0.0061),
            ..tiny.clone()
        },
        "launch-bound",
    );
    assert!(
        short.says.ends_with("look the same") && !short.next_yaml.contains("cpu"),
        "{short:?}"
    );
    // Without the counters of Hopper the arithmetic tells it; long steps are something else.
    assert_eq!(
        only(
            TrialRow {
                mean_sm_active: None,
                ..tiny.clone()
            },
            "launch-bound"
        )
        .rule,
        "launch-bound"
    );
    assert_eq!(
        names(&alone(TrialRow {
            median_step_seconds: Some(0.0101),
            ..tiny
        })),
        ["batch-too-small"]
    );
}

/// An out-of-memory after an hour.
#[test]
fn memory_that_runs_out_after_an_hour_grew() {
    let note = "allocated_slope_bytes_per_step: grew by 43.1 GiB to 77.9 GiB over 30000 steps";
    let late = TrialRow {
        outcome: Outcome::Oom,
        reason: Some(
            "ran out of memory at step 31021 with `batch_size` 64 (CUDA out of memory. Tried to \
             allocate 2.00 GiB); try a smaller `batch_size`"
                .into(),
        ),
        trial_seconds: Some(3_720.0),
        steps: Some(31_020),
        samples_per_second: None,
        window_seconds: None,
        peak_allocated_bytes: Some(78 * GIB),
        peak_nvml_used_bytes: Some(80 * GIB),
        allocator_retries: Some(9),
        allocated_slope_bytes_per_step: Some(1_542_301.0),
        notes: Some(note.into()),
        ..good(1)
    };
    let found = only(late.clone(), "memory-growing");
    assert_eq!(
        found.says,
        "memory ran out after 31020 steps and 1 h 2 min, and device memory grew by 43.1 GiB to \
         77.9 GiB over 30000 steps"
    );
    assert_eq!(found.weight, Weight::Ended);
    assert!(
        found
            .evidence
            .iter()
            .any(|cell| cell.column == "notes" && cell.value == note),
        "{found:?}"
    );
    assert_eq!(
        found.next_yaml,
        "train: {memory: {watch: true}}\nsweep: {grid: {data.synthetic: [false, true]}}\n"
    );
    // Without a watch the late step alone says that the batch had fitted.
    let unwatched = TrialRow {
        allocated_slope_bytes_per_step: None,
        notes: None,
        ..late.clone()
    };
    assert!(
        only(unwatched, "memory-growing")
            .says
            .contains("the first steps fitted, so memory grew")
    );
    let first = TrialRow {
        steps: Some(0),
        allocated_slope_bytes_per_step: None,
        notes: None,
        ..late
    };
    let found = only(first, "oom");
    assert_eq!(
        found.next_yaml,
        "train: {batch_size: 32, grad_accumulation: 2}\n"
    );
}

#[test]
fn an_oom_without_a_batch_has_a_remedy_too() {
    let row = TrialRow {
        outcome: Outcome::Oom,
        batch_size: 0,
        steps: Some(0),
        samples_per_second: None,
        allocated_slope_bytes_per_step: None,
        ..good(1)
    };
    let found = only(row, "oom");
    assert_eq!(found.next_yaml, "train: {optimizer: {kind: adafactor}}\n");
}

#[test]
fn an_oom_names_the_largest_batch_that_fits() {
    let of = |id, batch: u64, outcome| TrialRow {
        outcome,
        batch_size: batch,
        effective_batch_size: batch,
        steps: Some(if outcome == Outcome::Oom { 0 } else { 1_500 }),
        samples_per_second: (outcome != Outcome::Oom).then_some(328.0),
        ..good(id)
    };
    let rows = vec![
        (of(1, 32, Outcome::Completed), &["32", "4"][..]),
        (of(2, 64, Outcome::Completed), &["64", "4"]),
        (of(3, 256, Outcome::Oom), &["256", "4"]),
        (of(4, 128, Outcome::Completed), &["128", "8"]),
    ];
    let findings = diagnose(&table(&["train.batch_size", "data.num_workers"], rows));
    assert_eq!(names(&findings), ["oom"], "{findings:#?}");
    assert_eq!(
        findings[0].says,
        "memory ran out after 0 steps with batch 256; the largest batch of this run that fits is 64"
    );
    assert!(
        findings[0]
            .next_yaml
            .contains("grid: {data.num_workers: [4], train.batch_size: [64, 160]}"),
        "{}",
        findings[0].next_yaml
    );
}

#[test]
fn a_pass_that_grows_with_the_batch_is_not_bound_by_launches() {
    let of = |batch: u64, seconds| TrialRow {
        batch_size: batch,
        effective_batch_size: batch,
        median_step_seconds: Some(seconds),
        mean_sm_active: Some(0.1),
        peak_nvml_used_bytes: Some(60 * GIB),
        ..good(1)
    };
    let of_two = |longer| {
        let points = [(of(8, 0.002), "8"), (of(32, longer), "32")];
        diagnose(&in_turns(
            "train.batch_size",
            &points,
            &[&[1000.0, 1010.0], &[1005.0, 1000.0]],
        ))
    };
    // Four times the batch, four times the pass: the model waits for memory or computes, at either
    // batch.
    assert_eq!(names(&of_two(0.008)), Vec::<&str>::new());
    let constant = of_two(0.0024);
    assert_eq!(names(&constant), ["launch-bound"; 4]);
    let small = constant
        .iter()
        .find(|finding| finding.point == "train.batch_size 8")
        .unwrap();
    assert!(
        small
            .says
            .contains("; with batch 32 a pass takes 2.40 ms: this fits"),
        "{}",
        small.says
    );
    assert!(
        small
            .evidence
            .iter()
            .any(|cell| cell.of.as_deref() == Some("train.batch_size 32, mean of 2")),
        "{small:?}"
    );
    // Half of the pass grows with the batch: no longer the cost of kernels alone.
    assert!(of_two(0.002 * 2.51).is_empty() && !of_two(0.002 * 2.49).is_empty());
}

#[test]
fn a_larger_batch_of_the_run_that_gains_nothing_says_that_this_one_is_large_enough() {
    let of = |batch: u64| TrialRow {
        batch_size: batch,
        effective_batch_size: batch,
        mean_sm_active: Some(if batch == 8 { 0.4 } else { 0.8 }),
        peak_nvml_used_bytes: Some(30 * GIB),
        ..good(1)
    };
    let points = [(of(8), "8"), (of(32), "32")];
    let of_two =
        |faster: &[f64]| diagnose(&in_turns("train.batch_size", &points, &[&FIVE, faster]));
    assert_eq!(names(&of_two(&FIVE_AGAIN)), Vec::<&str>::new());
    let gained = of_two(&FIVE_FASTER);
    assert_eq!(names(&gained), ["batch-too-small"; 5]);
    assert!(
        gained[0]
            .says
            .contains("; batch 32 made 12.0 % more samples/s (95 % interval 1"),
        "{}",
        gained[0].says
    );
    // The spread of single runs is unknown: no finding is made about their speed.
    let once = diagnose(&in_turns(
        "train.batch_size",
        &points,
        &[&[100.0], &[180.0]],
    ));
    assert_eq!(names(&once), ["batch-too-small"]);
    assert!(
        once[0]
            .says
            .ends_with("; interleaved repeats are needed to tell whether a larger one is faster"),
        "{}",
        once[0].says
    );
    assert_eq!(
        once[0].next_yaml,
        "sweep: {grid: {train.batch_size: [8, 32]}, repeats: 3}\n"
    );
}

#[test]
fn shares_are_met_at_their_thresholds() {
    type Plant = fn(&mut TrialRow, f64);
    let at: [(&str, f64, Plant); 8] = [
        ("data-bound", 0.20, |row, share| {
            (row.data_wait_fraction, row.mean_gpu_utilization) = (Some(share), Some(0.75))
        }),
        ("data-wait", 0.10, |row, share| {
            (row.data_wait_fraction, row.mean_gpu_utilization) = (Some(share), Some(0.85))
        }),
        ("transfer-bound", 0.10, |row, share| {
            row.transfer_fraction = Some(share)
        }),
        ("communication-bound", 0.20, |row, share| {
            (row.communication_fraction, row.devices_per_trial) = (Some(share), Some(4))
        }),
        ("evaluation-dominates", 0.25, |row, share| {
            row.evaluation_seconds = Some(320.0 * share)
        }),
        ("checkpoints-dominate", 0.10, |row, share| {
            row.checkpoint_seconds = Some(320.0 * share)
        }),
        ("throttled", 0.05, |row, share| {
            (row.throttled_fraction, row.throttle_reasons) =
                (Some(share), Some("sw_thermal_slowdown".into()))
        }),
        ("memory-nearly-full", 0.90, |row, share| {
            row.peak_allocated_bytes = Some((80.0 * GIB as f64 * share) as u64)
        }),
    ];
    for (name, share, plant) in at {
        let with = |share| {
            let mut row = good(1);
            plant(&mut row, share);
            row
        };
        let found = only(with(share + 1e-6), name);
        assert!(
            !found.evidence.is_empty() && !found.next_yaml.is_empty(),
            "{name}"
        );
        assert!(
            alone(with(share - 0.001))
                .iter()
                .all(|finding| finding.rule != name),
            "{name}"
        );
    }
}

#[test]
fn the_first_reason_tells_heat_from_a_power_cap() {
    let held = |reasons: &str| TrialRow {
        throttled_fraction: Some(0.4),
        throttle_reasons: Some(reasons.into()),
        ..good(1)
    };
    let capped = only(held("sw_power_cap hw_thermal_slowdown"), "power-capped");
    assert_eq!(
        capped.says,
        "the power limit lowered the clocks for 40.0 % of the window at 590 W: sw_power_cap, \
         hw_thermal_slowdown"
    );
    let hot = only(held("hw_slowdown hw_thermal_slowdown"), "throttled");
    assert_eq!(
        (hot.weight, hot.says.as_str()),
        (
            Weight::Costs(0.2),
            "the GPU's clocks were limited for 40.0 % of the window: hw_slowdown, \
             hw_thermal_slowdown, at up to 61 °C"
        )
    );
    assert_eq!(
        hot.next_yaml,
        "run: {cool_down: {\"below_celsius\":60,\"at_most\":\"5m\"}}\nsweep: {repeats: 3}\n"
    );
}

#[test]
fn others_are_seen_by_their_processes_or_by_calmer_repeats() {
    let others = only(
        TrialRow {
            foreign_processes: Some("1 with 2.0 GiB".into()),
            ..good(1)
        },
        "shared-device",
    );
    assert!(others.says.contains("1 with 2.0 GiB"));
    assert!(
        alone(TrialRow {
            foreign_processes: Some("unknown".into()),
            ..good(1)
        })
        .is_empty()
    );
    // Two points in blocks; in every second block one of them ran beside seven others.
    let crowded = |slowed: f64| {
        let points = [(good(1), "a"), (good(1), "b")];
        let mut table = in_turns(
            "a.b",
            &points,
            &[
                &[328.0, 331.0, 324.0, 329.0, 326.0, 330.0],
                &[326.0, 333.0, 325.0, 326.0, 328.0, 329.0],
            ],
        );
        for row in table
            .rows
            .iter_mut()
            .filter(|row| row.axes[0] == "a" && row.fixed.block.is_some_and(|block| block % 2 == 0))
        {
            row.fixed.concurrent_trials = 8;
            row.fixed.samples_per_second = row.fixed.samples_per_second.map(|rate| rate * slowed);
        }
        diagnose(&table)
    };
    let slowed = crowded(0.75);
    assert_eq!(names(&slowed), ["shared-device"; 3]);
    assert!(
        slowed[0].says.starts_with(
            "8 trials ran at once; repeats with 1 made 32.9 % more samples/s (95 % interval 3"
        ),
        "{}",
        slowed[0].says
    );
    assert_eq!(crowded(1.0).len(), 0);
    // Without another point the effects of concurrent trials and of time cannot be separated.
    let beside = |id, trials, rate| {
        (
            TrialRow {
                concurrent_trials: trials,
                samples_per_second: Some(rate),
                block: Some(id),
                ..good(id)
            },
            &[][..],
        )
    };
    assert!(
        diagnose(&table(
            &[],
            vec![
                beside(1, 1, 330.0),
                beside(2, 1, 332.0),
                beside(3, 8, 250.0),
                beside(4, 8, 255.0)
            ]
        ))
        .is_empty()
    );
}

#[test]
fn growth_and_thrashing_are_said_of_completed_trials_too() {
    let noted = |notes: &str| TrialRow {
        notes: Some(notes.into()),
        ..good(1)
    };
    let host = "resident_slope_bytes_per_step: grew by 1.0 GiB to 2.0 GiB over 1490 steps";
    let found = only(noted(host), "memory-growing");
    assert_eq!(
        (found.weight, found.says.as_str()),
        (
            Weight::Threatens,
            "host memory grew by 1.0 GiB to 2.0 GiB over 1490 steps; a longer training may run out \
             of it"
        )
    );
    let both = TrialRow {
        allocated_slope_bytes_per_step: Some((GIB / 100) as f64),
        ..noted(&format!(
            "allocated_slope_bytes_per_step: grew by 15.0 GiB to 52.0 GiB over 1490 steps; {host}"
        ))
    };
    let found = only(both, "memory-growing");
    assert!(
        found.says.starts_with(
            "device memory grew by 15.0 GiB to 52.0 GiB over 1490 steps; at this pace it is full \
             after 2800 more (9 min 6 s)"
        ),
        "{}",
        found.says
    );
    let short = only(
        TrialRow {
            steps: Some(20),
            ..noted(host)
        },
        "memory-growing",
    );
    assert!(
        short.weight == Weight::Doubts && short.next_yaml.contains("steps: 200"),
        "{short:?}"
    );
    assert_eq!(
        only(
            TrialRow {
                allocator_retries: Some(3),
                ..good(1)
            },
            "allocator-thrashing"
        )
        .says,
        "the device's allocator returned its free memory and retried 3 times"
    );
    assert!(
        alone(TrialRow {
            allocator_retries: Some(2),
            ..good(1)
        })
        .is_empty()
    );
    let low = only(
        TrialRow {
            min_host_memory_available_bytes: Some(100 << 20),
            ..good(1)
        },
        "memory-nearly-full",
    );
    assert_eq!(low.next_yaml, "data: {num_workers: 2}\n");
}

#[test]
fn an_idle_gpu_has_what_the_row_shows_beside_it() {
    let idle = TrialRow {
        mean_gpu_utilization: Some(0.2),
        mean_sm_active: Some(0.15),
        mfu: Some(0.06),
        ..good(1)
    };
    let says = |row: TrialRow| {
        let findings = alone(row);
        findings
            .into_iter()
            .find(|finding| finding.rule == "low-utilization")
            .unwrap()
            .says
    };
    let beside_a_wait = TrialRow {
        data_wait_fraction: Some(0.15),
        transfer_fraction: Some(0.04),
        ..idle.clone()
    };
    assert_eq!(
        says(beside_a_wait.clone()),
        "the GPU's utilization was 20.0 %; of the 80.0 % of the time without a kernel the row \
         shows waiting for data 15.0 %, copying batches 4.0 %; 61.0 % are unexplained; evaluation \
         (2.8 % of the trial) is not in the window"
    );
    assert!(
        says(TrialRow {
            transfer_fraction: None,
            ..beside_a_wait.clone()
        })
        .contains("65.0 % are unexplained; unknown: copying batches")
    );
    let covered = says(TrialRow {
        mean_gpu_utilization: Some(0.49),
        data_wait_fraction: Some(0.19),
        communication_fraction: Some(0.32),
        ..idle.clone()
    });
    assert!(
        covered.contains("which may explain all of the 51.0 % of the time without a kernel"),
        "{covered}"
    );
    let unknown = TrialRow {
        data_wait_fraction: None,
        transfer_fraction: None,
        ..idle
    };
    assert!(says(unknown).contains(
        "the row explains none of the 80.0 % of the time without a kernel; unknown: waiting for \
         data, copying batches"
    ));
    let waiting = TrialRow {
        mean_gpu_utilization: Some(0.2),
        mean_sm_active: Some(0.15),
        data_wait_fraction: Some(0.8),
        ..good(1)
    };
    only(waiting, "data-bound");
}

#[test]
fn a_command_without_a_rate_is_doubted_for_what_disturbed_it() {
    let command = |outcome| TrialRow {
        model_kind: "command".to_owned(),
        data_kind: "none".to_owned(),
        outcome,
        samples_per_second: None,
        tokens_per_second: None,
        throttled_fraction: Some(1.0),
        throttle_reasons: Some("sw_thermal".to_owned()),
        ..row(1, 10.0)
    };
    assert!(names(&alone(command(Outcome::Completed))).contains(&"throttled"));
    let failed = alone(command(Outcome::Failed));
    assert!(!names(&failed).contains(&"throttled"));
}

#[test]
fn memory_held_beyond_what_may_be_allocated_is_no_share_of_it() {
    let mut row = good(1);
    (row.device_uuid, row.device_name) = (None, Some("AMD EPYC".into()));
    (
        row.peak_allocated_bytes,
        row.peak_reserved_bytes,
        row.peak_nvml_used_bytes,
    ) = (None, None, None);
    row.memory_limit_bytes = Some(300 << 20);
    row.peak_resident_bytes = Some(338 << 20);
    let found = alone(row);
    let full = found
        .iter()
        .find(|found| found.rule == "memory-nearly-full");
    let says = &full.unwrap().says;
    assert!(
        says.contains("338.0 MiB were held")
            && says.contains("allocate 300.0 MiB")
            && !says.contains('%'),
        "{says}"
    );
}

#[test]
fn failing_memory_and_two_energies_of_one_window_are_doubted() {
    let errors = |uncorrected, corrected| TrialRow {
        ecc_uncorrected_errors: Some(uncorrected),
        ecc_corrected_errors: Some(corrected),
        ..good(1)
    };
    let failed = only(errors(1, 400), "memory-errors");
    assert_eq!(
        failed.says,
        "1 uncorrected memory error and 400 corrected memory errors on the device during the \
         attempt: its results are in doubt"
    );
    assert!(failed.is_fault && failed.weight == Weight::Threatens);
    let both = diagnose(&table(
        &[],
        vec![(errors(0, 17), &[][..]), (errors(2, 0), &[])],
    ));
    let pages = super::super::findings::told(&both, 2);
    assert!(
        pages[0].says.starts_with("2 uncorrected memory errors"),
        "{}",
        pages[0].says
    );
    assert!(only(errors(0, 10), "memory-errors").says.ends_with(
        "10 corrected memory errors on the device during the attempt: the device is in doubt"
    ));
    assert!(alone(errors(0, 9)).is_empty());
    let energies = |counter, integral| TrialRow {
        energy_counter_joules: Some(counter),
        energy_integral_joules: Some(integral),
        ..good(1)
    };
    let apart = only(energies(500.0, 100.0), "energies-apart");
    assert_eq!(
        apart.says,
        "the energy counter says 500 J and the integral of the power 100 J, 80.0 % apart: joules \
         per sample are in doubt"
    );
    assert_eq!(
        apart.next_yaml,
        "measure: {sample_interval: \"100ms\"}\nsweep: {repeats: 3}\n"
    );
    let short = only(
        TrialRow {
            window_seconds: Some(4.0),
            ..energies(100.0, 118.0)
        },
        "energies-apart",
    );
    assert!(
        short.next_yaml.contains("train: {steps: 15000}"),
        "{}",
        short.next_yaml
    );
    assert!(alone(energies(100.0, 117.0)).is_empty() && alone(energies(0.0, 0.0)).is_empty());
    only(energies(0.0, 100.0), "energies-apart");
}

#[test]
fn a_cpu_beside_a_driver_may_be_an_accident_and_a_swept_device_is_none() {
    let cpu = TrialRow {
        device_uuid: None,
        device_name: Some("AMD EPYC".into()),
        mean_gpu_utilization: None,
        mean_sm_active: None,
        peak_allocated_bytes: None,
        peak_nvml_used_bytes: None,
        memory_limit_bytes: Some(128 * GIB),
        ..good(1)
    };
    let found = only(cpu.clone(), "cpu-only-by-accident");
    assert_eq!(
        (found.is_fault, found.next_yaml.as_str()),
        (false, "run: {devices: [0]}\n")
    );
    assert!(
        alone(TrialRow {
            driver: None,
            ..cpu.clone()
        })
        .is_empty()
    );
    only(
        TrialRow {
            driver: None,
            precision: "amp-f16".into(),
            ..cpu.clone()
        },
        "cpu-only-by-accident",
    );
    // The experiment of a run says what a row does not.
    let asked = |devices: &str| {
        let table = table(&[], vec![(cpu.clone(), &[])]);
        let experiment = format!("run: {{devices: {devices}}}");
        diagnose_run(Subject {
            experiment: Some(&experiment),
            ..Subject::new(&table, "x")
        })
        .len()
    };
    assert_eq!((asked("auto"), asked("cpu")), (1, 0));
    let swept = table(
        &["run.devices"],
        vec![(cpu, &["cpu"][..]), (good(2), &["auto"])],
    );
    assert!(diagnose(&swept).is_empty());
}

#[test]
fn workers_are_too_many_by_the_run_or_else_by_the_cores() {
    let of = |workers| TrialRow {
        num_workers: Some(workers),
        ..good(1)
    };
    assert_eq!(
        only(of(40), "too-many-workers").says,
        "40 workers on 16 cores; on average 0.107 of them were busy"
    );
    assert!(alone(of(31)).is_empty());
    let points = [(of(4), "4"), (of(40), "40")];
    let swept = |few: &[f64]| diagnose(&in_turns("data.num_workers", &points, &[few, &FIVE]));
    assert!(swept(&FIVE_AGAIN).is_empty(), "fewer are no faster");
    let found = swept(&FIVE_FASTER);
    assert_eq!(names(&found), ["too-many-workers"; 5]);
    assert!(
        found[0]
            .says
            .starts_with("4 workers made 12.0 % more samples/s than 40 workers (95 % interval 1"),
        "{}",
        found[0].says
    );
    assert_eq!(
        found[0].next_yaml,
        "sweep: {grid: {data.num_workers: [4, 40]}, repeats: 5}\n"
    );
    // The rates of commands that resumed are of a part of the work.
    let note = format!("{}: {}", ResumedCommand::COLUMN, ResumedCommand::TEXT);
    let resumed = TrialRow {
        notes: Some(note),
        ..of(4)
    };
    let points = [(resumed, "4"), (of(40), "40")];
    let found = diagnose(&in_turns(
        "data.num_workers",
        &points,
        &[&FIVE_FASTER, &FIVE],
    ));
    let is_of_rates = |found: &RuleFinding| found.says.contains("more samples/s");
    assert!(!found.iter().any(is_of_rates), "{found:?}");
}

#[test]
fn single_runs_and_runs_one_after_the_other_make_no_claim() {
    let of = |workers| TrialRow {
        num_workers: Some(workers),
        ..good(1)
    };
    let few = [(of(2), "2"), (of(4), "4")];
    assert!(diagnose(&in_turns("data.num_workers", &few, &[&[400.0], &[328.0]])).is_empty());
    let many = [(of(4), "4"), (of(40), "40")];
    let once = diagnose(&in_turns("data.num_workers", &many, &[&[400.0], &[328.0]]));
    let words = "40 workers on 16 cores; on average 0.107 of them were busy; interleaved repeats \
                 are needed to tell whether fewer are faster";
    assert_eq!(
        (names(&once), once[0].says.as_str()),
        (vec!["too-many-workers"], words)
    );
    assert!(
        once[0].weight == Weight::Doubts && once[0].next_yaml.ends_with("repeats: 3}\n"),
        "{once:?}"
    );
    // The repeats of each point in a row: what looks like workers may be the machine's drift.
    let mut apart = in_turns("data.num_workers", &many, &[&FIVE_FASTER, &FIVE]);
    for (place, row) in apart.rows.iter_mut().enumerate() {
        (row.fixed.block, row.fixed.run_seconds) = (None, Some(place as f64));
    }
    let apart = diagnose(&apart);
    assert_eq!(apart[0].says, words);
    assert!(
        apart[0]
            .next_yaml
            .ends_with("repeats: 3, order: interleaved}\n"),
        "{}",
        apart[0].next_yaml
    );
}

#[test]
fn points_of_equal_speed_give_no_finding_and_12_percent_over_five_repeats_are_found() {
    let of = |workers| TrialRow {
        num_workers: Some(workers),
        ..good(1)
    };
    let points = [
        (of(0), "0"),
        (of(1), "1"),
        (of(2), "2"),
        (of(4), "4"),
        (of(8), "8"),
        (of(16), "16"),
    ];
    let others: [&[f64]; 4] = [&FIVE, &FIVE_AGAIN, &FIVE, &FIVE_AGAIN];
    let run = |first: &[f64], last: &[f64]| {
        in_turns(
            "data.num_workers",
            &points,
            &[others[0], first, others[1], others[2], others[3], last],
        )
    };
    assert!(fired(&run(&FIVE, &FIVE_AGAIN)).is_empty());
    assert_eq!(fired(&run(&FIVE_FASTER, &FIVE_AGAIN)), ["too-many-workers"]);
    // A loader that waits is told which number of workers was faster, if one was.
    let waiting = |first: &[f64]| {
        let mut table = run(first, &FIVE);
        table
            .rows
            .iter_mut()
            .filter(|row| row.axes[0] == "0")
            .for_each(|row| {
                row.fixed.data_wait_fraction = Some(0.3);
                row.fixed.mean_gpu_utilization = Some(0.7);
            });
        diagnose(&table)
            .into_iter()
            .find(|finding| finding.rule == "data-bound")
            .unwrap()
            .says
    };
    assert!(waiting(&FIVE_AGAIN).ends_with("; try more `data.num_workers`"));
    assert!(waiting(&FIVE_FASTER).contains("; 1 worker made 12.0 % more samples/s (95 % interval"));
}

#[test]
fn findings_come_with_their_cells_and_the_dearest_first() {
    let both = TrialRow {
        data_wait_fraction: Some(0.3),
        mean_gpu_utilization: Some(0.7),
        transfer_fraction: Some(0.12),
        foreign_processes: Some("1 with 2.0 GiB".into()),
        evaluation_seconds: Some(110.0),
        ..good(1)
    };
    let findings = alone(both);
    assert_eq!(
        names(&findings),
        [
            "evaluation-dominates",
            "data-bound",
            "transfer-bound",
            "shared-device"
        ]
    );
    let read: Vec<&str> = findings[1]
        .evidence
        .iter()
        .map(|cell| cell.column)
        .collect();
    assert_eq!(
        read,
        [
            "data_wait_fraction",
            "num_workers",
            "load_seconds",
            "window_seconds",
            "cpu_threads",
            "mean_cpu_cores",
            "mean_gpu_utilization",
            "mean_sm_active"
        ]
    );
    assert_eq!(findings[1].evidence[0].value, 0.3);
}

#[test]
fn every_rule_has_a_name_of_its_own_columns_that_exist_and_explains_rules() {
    let columns: Vec<&str> = kiln_core::record::tables::TRIALS
        .columns
        .iter()
        .map(|column| column.name)
        .collect();
    for one in RULES {
        assert!(
            one.name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && RULES.iter().filter(|other| other.name == one.name).count() == 1
        );
        assert!(
            one.columns.iter().all(|column| columns.contains(column)),
            "{}",
            one.name
        );
        assert!(one.explains.iter().all(|name| rule(name).name != one.name));
        assert!(
            one.refuted_by.len() > 30 && one.refuted_by.ends_with('.'),
            "{}",
            one.name
        );
        assert!(
            one.thresholds
                .iter()
                .all(|threshold| threshold.source.len() > 10),
            "{}",
            one.name
        );
    }
}

#[test]
fn a_validation_loss_far_above_the_training_loss_is_told_with_both() {
    let of = |train: f64, valid: f64| TrialRow {
        train_loss: Some(train),
        valid_loss: Some(valid),
        ..good(1)
    };
    let found = only(of(0.5, 2.125), "validation-above-training");
    assert_eq!(
        found.says,
        "the validation loss is 2.1250, 4.2 times the training loss of the last steps, 0.5000"
    );
    assert!(found.means.contains("the row does not tell which"));
    assert_eq!(
        found.next_yaml,
        "train: {evaluate: {every: epoch}, early_stop: {patience: 2}}\n"
    );
    // Near 0 a ratio says little, and between large losses a small distance does not.
    for (train, valid) in [(0.01, 0.2), (3.0, 3.8), (2.0, 1.0), (0.0, 1.0)] {
        assert!(
            names(&alone(of(train, valid))).is_empty(),
            "{train} {valid}"
        );
    }
    let synthetic = TrialRow {
        notes: Some("train_loss: loss of one synthetic batch that every step repeats".into()),
        ..of(0.5, 2.0)
    };
    assert!(names(&alone(synthetic)).is_empty());
}

#[test]
fn a_loss_that_rose_names_a_lower_rate_of_the_sweep_else_asks_for_every_loss() {
    let rose = |id| TrialRow {
        train_loss: Some(2366.0),
        notes: Some("train_loss: ended above the first logged loss, 4.25".into()),
        ..good(id)
    };
    let found = only(rose(1), "loss-rose");
    assert_eq!(
        found.says,
        "the training ended with a higher loss than it began with: 2366.0000 after 4.2500"
    );
    assert_eq!(found.next_yaml, "measure: {log_every: 1}\n");
    let swept = table(
        &["train.optimizer.learning_rate"],
        vec![(good(1), &["0.001"]), (rose(2), &["100"])],
    );
    let found = diagnose(&swept);
    let found: Vec<&str> = found.iter().map(|found| found.next_yaml.as_str()).collect();
    assert_eq!(
        found,
        ["sweep: {grid: {train.optimizer.learning_rate: [10.0]}}\n"]
    );
}

#[test]
fn the_next_experiment_of_a_command_has_values_in_place_of_keys_that_it_lacks() {
    let command = |id, outcome, batch| TrialRow {
        outcome,
        model_kind: "command".to_owned(),
        data_kind: "none".to_owned(),
        batch_size: batch,
        grad_accumulation: 0,
        num_workers: None,
        steps: None,
        samples_per_second: None,
        ..good(id)
    };
    let next = |rows| {
        let found = diagnose(&table(&["model.values.batch_size"], rows));
        let oom = found.into_iter().find(|found| found.rule == "oom").unwrap();
        (oom.says, oom.next_yaml)
    };
    let (fits, full) = (Outcome::Completed, Outcome::Oom);
    let rows = vec![
        (command(1, fits, 8), &["8"][..]),
        (command(2, full, 32), &["32"][..]),
    ];
    let (says, yaml) = next(rows);
    assert!(
        says.ends_with("the largest batch of this run that fits is 8"),
        "{says}"
    );
    assert_eq!(yaml, "sweep: {grid: {model.values.batch_size: [8, 20]}}\n");
    let (_, yaml) = next(vec![(command(2, full, 32), &["32"][..])]);
    assert_eq!(yaml, "sweep: {grid: {model.values.batch_size: [16]}}\n");
    // Of a command without a batch nothing is known to change.
    let alone = diagnose(&table(&[], vec![(command(2, full, 0), &[][..])]));
    assert!(
        alone[0].next_yaml.is_empty() && !alone[0].says.contains("batch"),
        "{alone:?}"
    );
}

#[test]
fn a_panel_whose_model_is_worse_than_none_is_told_with_both() {
    let of = |error: Option<f64>, hits: Option<f64>| TrialRow {
        model_kind: "panel-lstm".to_owned(),
        valid_mean_absolute_error: error,
        persistence_mean_absolute_error: Some(0.0154),
        valid_hit_rate: hits,
        majority_hit_rate: Some(0.667),
        ..good(1)
    };
    let found = only(of(Some(0.017), Some(0.5)), "no-better-than-baseline");
    assert_eq!(
        found.says,
        "no better than without a model: the mean absolute error is 0.0170, and 0.0154 if the price \
         stays as it is; the hit rate is 50.0 %, and 66.7 % with always the more common direction"
    );
    for one in [of(None, Some(0.667)), of(Some(0.017), None)] {
        only(one, "no-better-than-baseline");
    }
    // 6,100 samples are one epoch: 96 steps of 64 are one pass, 30 are none.
    let after = |steps: u64| TrialRow {
        steps: Some(steps),
        epoch_seconds: Some(61.0),
        samples_per_second: Some(100.0),
        ..of(Some(0.017), Some(0.5))
    };
    assert!(names(&alone(after(96))).contains(&"no-better-than-baseline"));
    assert!(!names(&alone(after(30))).contains(&"no-better-than-baseline"));
    // Without a rate one pass is unknown; the best of several evaluations tells that it trained on.
    let without_rate = |lowest: Option<u64>| TrialRow {
        samples_per_second: None,
        lowest_valid_step: lowest,
        ..after(30)
    };
    for (lowest, is_told) in [(None, false), (Some(30), false), (Some(10), true)] {
        let found = names(&alone(without_rate(lowest))).contains(&"no-better-than-baseline");
        assert_eq!(found, is_told, "{lowest:?}");
    }
    // Better in one of them, within noise, without a metric, or ended early.
    let failed = TrialRow {
        outcome: Outcome::Failed,
        ..of(Some(0.017), Some(0.5))
    };
    for better in [
        of(Some(0.0156), Some(0.5)),
        of(Some(0.017), Some(0.67)),
        of(None, None),
        failed,
    ] {
        assert_eq!(names(&alone(better)), Vec::<&str>::new());
    }
}
