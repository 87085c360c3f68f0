//! `kiln tune` over commands: programs whose speed and limit are known show whether its answer is
//! right.

use std::{collections::BTreeMap, fs, process::Command};

use serde_json::Value;

use crate::{
    form::by_form,
    scripted_child::{Ended, Place, signal, wait_until},
};

/// A training of known speed: a bell over the logarithm of the batch, with noise from the seed.
const TRAINING: &str = r#"
import math, random, sys
batch, seed, peak, limit, noise = (float(text) for text in sys.argv[1:6])
if batch > limit:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
draw = random.Random(1000 * batch + seed).gauss(0, noise)
speed = 1000 * math.exp(-math.log(batch / peak) ** 2 / 2 + draw)
print(f"epoch 1: {speed:.3f} samples/s")
"#;

fn place(search: &str, values: &str) -> Place {
    let model = format!(
        "  argv: [python3, train.py, '{{bs}}', '{{seed}}', '{{peak}}', '{{limit}}', '{{noise}}']\n  \
         values: {{bs: 8, {values}}}\n  grows: [bs]\n  metrics:\n    \
         samples_per_second: {{line: '([0-9.]+) samples/s', better: high}}"
    );
    let place = Place::of_command(&model, &format!("sweep: {{search: {search}}}"));
    fs::write(place.path("train.py"), TRAINING).unwrap();
    place
}

fn tune(place: &Place, more: &[&str]) -> Ended {
    let arguments = [&["tune", "x.yaml", "--progress", "json"], more].concat();
    Ended::of(place.kiln(&arguments).output().unwrap())
}

/// The last event of a search.
fn recommendation(ended: &Ended) -> Value {
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let last: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "recommendation", "{ended:?}");
    last
}

fn chosen(recommendation: &Value, value: &str) -> u64 {
    let chosen = &recommendation["chosen"][format!("model.values.{value}")];
    chosen
        .as_u64()
        .unwrap_or_else(|| panic!("{recommendation}"))
}

#[test]
fn the_fastest_batch_of_a_command_is_found_in_noise() {
    for peak in by_form(&[48_u64][..], &[16, 48, 120][..]).iter().copied() {
        let place = place(
            "{kind: best-throughput-batch, from: 8, to: 192, multiple_of: 8}",
            &format!("peak: {peak}, limit: 150, noise: 0.005"),
        );
        let found = recommendation(&tune(&place, &[]));
        let batch = chosen(&found, "bs");
        let speed = |batch: u64| (-(batch as f64 / peak as f64).ln().powi(2) / 2.0).exp();
        assert!(speed(batch) > 0.97, "{batch} of {peak}: {found}");
        // Memory ran out above the limit, which ended the rise and nothing else.
        let rows = place.rows();
        for row in &rows {
            let fits = row["model.values.bs"].parse::<u64>().unwrap() <= 150;
            assert_eq!(
                row["outcome"],
                if fits { "completed" } else { "oom" },
                "{row:?}"
            );
        }
        assert!(
            rows.len() <= 18,
            "at most a quarter of 24 × 3: {}",
            rows.len()
        );
        let note = found["notes"].to_string();
        assert!(
            note.contains("the file's own model.values.bs = 8 runs at"),
            "{note}"
        );
    }
}

#[test]
fn a_search_whose_trials_all_lack_their_metric_tells_why() {
    let model = "  argv: [sh, -c, 'echo 5 samples/s', x, '{bs}']\n  values: {bs: 8}\n  \
                 grows: [bs]\n  metrics: {samples_per_second: {line: '(\\S+) samples/s', skip: 10, \
                 better: high}}";
    let search = "sweep: {search: {kind: best-throughput-batch, from: 8, to: 64}}";
    let place = Place::of_command(model, search);
    let ended = Ended::of(place.kiln(&["tune", "x.yaml"]).output().unwrap());
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let markdown = fs::read_to_string(place.latest().join("recommendation.md")).unwrap();
    for text in [&ended.stdout, &markdown] {
        assert!(text.contains("leaves out the first 10"), "{text}");
        for other in ["of the memory", "a smaller model", "the choice"] {
            assert!(!text.contains(other), "{other}: {text}");
        }
    }
}

#[test]
fn a_trial_of_a_search_is_that_of_a_grid_and_the_choice_is_a_file_to_run() {
    let place = place(
        "{kind: largest-batch, to: 64}",
        "peak: 48, limit: 37, noise: 0",
    );
    let checked = Ended::of(place.kiln(&["check", "x.yaml"]).output().unwrap());
    let expected = "x.yaml: ok, a search for `kiln tune`: largest-batch of command, over \
                    model.values.bs\n";
    assert_eq!(checked.stdout, expected, "{checked:?}");
    let found = recommendation(&tune(&place, &[]));
    assert_eq!(chosen(&found, "bs"), 37);
    let searched: BTreeMap<String, String> = place
        .rows()
        .into_iter()
        .map(|mut row| {
            (
                row.remove("model.values.bs").unwrap(),
                row.remove("trial").unwrap(),
            )
        })
        .collect();

    let chosen = fs::read_to_string(place.latest().join("chosen.yaml")).unwrap();
    assert!(chosen.contains("bs: 37  # chosen") && chosen.contains("name: x-chosen\n"));
    let chosen = "results/x/latest/chosen.yaml";
    let run = Ended::of(place.kiln(&["run", chosen]).output().unwrap());
    assert_eq!(run.status, Some(0), "{run:?}");
    let grid = [
        "--set",
        "sweep.search=null",
        "--set",
        "sweep.grid.model.values.bs=[32, 37, 64]",
    ];
    place.run("", &grid);
    for row in place.rows() {
        assert_eq!(row["trial"], searched[&row["model.values.bs"]], "{row:?}");
    }
}

/// How programs tell that memory ran out.
const ENDS: [&str; 3] = [
    "exit 7",
    "echo std::bad_alloc >&2; exit 1",
    // The memory limit is real: 400 MiB fit into no 300.
    "exec python3 -c 'bytearray(400 << 20)'",
];

#[test]
fn each_way_of_running_out_of_memory_ends_the_growth_at_the_limit() {
    for end in ENDS {
        let place = Place::with("");
        let script =
            format!("test $KILN_VALUE_BATCH_SIZE -le 5 || {{ {end}; }}\necho {{}} >> runs\n");
        fs::write(place.path("run.sh"), script).unwrap();
        let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [sh, run.sh], values: {batch_size: \
                    2}, environment: {B: '{batch_size}'}, grows: [batch_size], exits: {oom: [7]}}\n\
                    run: {devices: cpu, memory_limit: 300MiB}\n";
        fs::write(place.path("x.yaml"), text).unwrap();
        let ended = tune(&place, &["--search", "largest-batch"]);
        assert_eq!(
            chosen(&recommendation(&ended), "batch_size"),
            5,
            "{end}: {ended:?}"
        );
    }
}

#[test]
fn memory_that_a_short_program_held_counts_for_the_share() {
    let place = Place::with("");
    let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [python3, -c, 'import sys; b = \
                bytes([1]) * (int(sys.argv[1]) << 20)', '{mib}'], values: {mib: 8}, grows: [mib]}\n\
                sweep: {search: {kind: largest-batch, from: 8, to: 256, multiple_of: 8, at_most: \
                0.5}}\nrun: {devices: cpu, memory_limit: 256MiB}\n";
    fs::write(place.path("x.yaml"), text).unwrap();
    let found = chosen(&recommendation(&tune(&place, &[])), "mib");
    // Python itself takes some 10 MiB of the 128.
    assert!((88..=120).contains(&found), "{found}");
}

#[test]
fn workers_of_a_command_are_searched_by_speed() {
    let place = Place::with("");
    let text = "kiln: 1\nname: x\nmodel: {kind: command, argv: [python3, -c, 'import sys; n = \
                int(sys.argv[1]); print(min(n, 4) * 100 + 50 - 5 * max(0, n - 4))', \
                '{num_workers}'], values: {num_workers: 1}, metrics: {samples_per_second: {line: \
                '([0-9]+)'}}}\nsweep: {search: {kind: workers, to: 8}}\nrun: {devices: cpu}\n";
    fs::write(place.path("x.yaml"), text).unwrap();
    let found = recommendation(&tune(&place, &[]));
    assert_eq!(chosen(&found, "num_workers"), 4, "{found}");
}

#[test]
fn a_killed_search_of_a_command_goes_on_where_it_was() {
    let search = "{kind: best-throughput-batch, from: 8, to: 96, multiple_of: 8}";
    let values = "peak: 40, limit: 80, noise: 0.01";
    let (whole, killed) = (place(search, values), place(search, values));
    let uninterrupted = recommendation(&tune(&whole, &[]));
    for kill in 1..=by_form(3, 9) {
        let mut kiln: Command = killed.kiln(&["tune", "x.yaml"]);
        let mut kiln = kiln.spawn().unwrap();
        wait_until("a trial has started", || {
            killed.attempts_with("stdout.txt") >= 2 * kill
        });
        signal(&kiln, "KILL");
        kiln.wait().unwrap();
    }
    let resumed = recommendation(&tune(&killed, &[]));
    assert_eq!(resumed["chosen"], uninterrupted["chosen"]);
    assert_eq!(resumed["why"], uninterrupted["why"]);
    assert_eq!(killed.runs(), 1);
    let ends = |place: &Place| -> Vec<(String, String)> {
        let mut ends: Vec<(String, String)> = place
            .rows()
            .into_iter()
            .map(|mut row| (row.remove("trial").unwrap(), row.remove("outcome").unwrap()))
            .filter(|(_, outcome)| outcome != "killed")
            .collect();
        ends.sort();
        ends
    };
    assert_eq!(ends(&killed), ends(&whole), "each trial ended once");
}
