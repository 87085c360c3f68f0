//! A run of 10,000 trials that is killed several times: every row is there once, and `kiln` takes
//! no more memory at the end than at the beginning.

use std::{fs, sync::LazyLock, time::Duration};

use crate::{
    ends::Excuse,
    figures::{Figures, add, conclude},
    form::by_form,
    pool::try_each,
    rows,
    scene::{Running, Scene, Verb, Workload, kill},
};

/// Launches; each but the last is killed.
const LAUNCHES: usize = 4;

/// Most growth of `kiln` within a launch from the first sample to the last, per trial that it ran:
/// each row is kept compressed, and what the schedule needs of it.
const MOST_BYTES_PER_TRIAL: f64 = 1024.0;

/// Rows of a launch before the first sample. Memory for the files that are read at the start and for
/// the first trials is not growth.
const ROWS_AT_START: usize = 100;

/// Batch sizes and seeds.
fn sides() -> (usize, usize) {
    by_form((10, 20), (100, 100))
}

fn workload() -> Workload {
    static YAML: LazyLock<String> = LazyLock::new(|| {
        let (batches, seeds) = sides();
        let list = |count: usize| {
            let numbers: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
            numbers.join(", ")
        };
        format!(
            "kiln: 1\nname: x\nmodel: {{kind: mlp, d_model: 8, hidden: 16, seq_len: 16}}\n\
             data: {{kind: generated}}\ntrain: {{steps: 10}}\n\
             sweep: {{grid: {{train.batch_size: [{}], train.seed: [{}]}}}}\n",
            list(batches),
            list(seeds)
        )
    });
    Workload {
        name: "many",
        verb: Verb::Run,
        yaml: &YAML,
        is_real: false,
    }
}

/// Resident memory of a process; `None` once it has ended.
fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    (pages > 0).then(|| pages * rustix::param::page_size() as u64)
}

/// Memory by the number of rows, sampled while a launch adds this many rows.
fn watch(running: &mut Running<'_>, scene: &Scene, until: usize) -> Vec<(usize, u64)> {
    let mut samples = Vec::new();
    let there = line_count(&scene.table());
    loop {
        if !running.pause(Duration::from_millis(by_form(50, 1000))) {
            return samples;
        }
        let count = line_count(&scene.table());
        if let Some(memory) = resident_bytes(running.pid())
            && count >= there + ROWS_AT_START
        {
            samples.push((count, memory));
        }
        if count >= until {
            return samples;
        }
    }
}

/// Lines of a table without its header; fast, because it is asked for often.
fn line_count(table: &std::path::Path) -> usize {
    let text = fs::read(table).unwrap_or_default();
    text.iter()
        .filter(|byte| **byte == b'\n')
        .count()
        .saturating_sub(1)
}

#[test]
fn a_run_of_ten_thousand_trials_keeps_its_rows_and_its_memory() {
    let figures = Figures::new();
    let (batches, seeds) = sides();
    let trials = batches * seeds;
    let tried = try_each(vec![(format!("{trials} trials"), ())], |_, ()| {
        let scene = Scene::with_limit(workload(), Duration::from_secs(by_form(120, 7200)));
        let mut all = Vec::new();
        for launch in 1..=LAUNCHES {
            let mut running = scene.start(&[], |_| ());
            let until = trials * launch / LAUNCHES;
            let samples = watch(&mut running, &scene, until);
            if launch < LAUNCHES {
                add(&figures.kills);
                kill(running.pid(), "KILL");
            }
            running.end();
            if let (Some(first), Some(last)) = (samples.first(), samples.last()) {
                let ran = last.0.saturating_sub(first.0).max(1);
                let growth = last.1.saturating_sub(first.1) as f64 / ran as f64;
                all.push(format!(
                    "{} KiB at {} rows, {} KiB at {}",
                    first.1 >> 10,
                    first.0,
                    last.1 >> 10,
                    last.0
                ));
                // Over a few trials the allocator's own growth is all there is to see.
                if ran > 1000 && growth > MOST_BYTES_PER_TRIAL {
                    scene.note(
                        "memory",
                        format!("{growth:.0} bytes more per trial: {all:?}"),
                    );
                }
            }
        }
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            format!("faults: memory of kiln: {}\n", all.join("; ")).as_bytes(),
        );
        let found = rows::read(&scene.table());
        let completed = found
            .iter()
            .filter(|row| row.outcome() == "completed")
            .count();
        if completed != trials {
            scene.note(
                "row lost",
                format!("{completed} of {trials} have completed"),
            );
        }
        scene.finish_without_undisturbed(Excuse::default())
    });
    conclude("many trials", &figures, &tried);
}
