//! How long 64 workers take to empty a queue of 10,000 instant trials, how long a collection of their
//! tables takes, and with how much memory.
//!
//! Each worker is a thread that does for a ticket what a worker does but for the trial's process:
//! take, read, list the attempts, note the attempt, create its folder, write and sync the row, hand
//! in. `cargo bench --workspace --bench queue` prints CSV; it fails where the goals of
//! `docs/cluster-evidence.md` are not met. `KILN_BENCH_FOLDER` names another disk than that of `/tmp`.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::{fs, io, path::PathBuf, sync::Arc, thread, time::Instant};

use kiln_core::{
    plan::{Outcome, TrialId},
    record::{
        NewTicket, RunFile, RunFolder, TableRow, TicketContent, TicketEntry, TicketQueue,
        TicketState, TrialRow, TrialStore, attempt::attempts, collect, launch_folder,
        trial_row::TRIALS,
    },
};

const TRIALS_IN_ALL: u64 = 10_000;
const WORKERS: u64 = 64;
const MOST_SECONDS: f64 = 60.0;
const MOST_COLLECT_SECONDS: f64 = 2.0;
/// Open tickets that a worker tries first.
const SPREAD: usize = 16;

fn id(number: u64) -> TrialId {
    TrialId(format!("t{number:010}"))
}

/// Highest resident memory of this process so far, in MiB.
fn peak_mebibytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kibibytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes / 1024.0
}

fn main() {
    let folder =
        std::env::var_os("KILN_BENCH_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let place = tempfile::tempdir_in(folder).unwrap();
    let run = Arc::new(RunFolder::at(place.path().join("run")));
    fs::create_dir(run.path()).unwrap();
    let plan: Vec<TrialId> = (1..=TRIALS_IN_ALL).map(id).collect();
    let begun = Instant::now();
    let tickets: Vec<NewTicket> = plan
        .iter()
        .map(|trial| {
            NewTicket::open(vec![TicketEntry {
                trial: trial.clone(),
                after: 0,
            }])
        })
        .collect();
    TicketQueue::create(&run, &tickets).unwrap();
    write_run_file(&run, plan);
    let created = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let run = Arc::clone(&run);
            thread::spawn(move || work(&run).unwrap())
        })
        .collect();
    let done: u64 = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();
    let emptied = begun.elapsed().as_secs_f64();
    assert_eq!(done, TRIALS_IN_ALL);
    let before = peak_mebibytes();
    let begun = Instant::now();
    let rows = collect::collect(&run).unwrap().rows;
    let collected = begun.elapsed().as_secs_f64();
    assert_eq!(rows as u64, TRIALS_IN_ALL);
    let table = fs::metadata(run.trials_table()).unwrap().len();
    println!(
        "trials,workers,create_seconds,empty_seconds,collect_seconds,table_bytes,peak_mebibytes_of_workers,peak_mebibytes"
    );
    println!(
        "{TRIALS_IN_ALL},{WORKERS},{created:.2},{emptied:.1},{collected:.2},{table},{before:.0},{:.0}",
        peak_mebibytes()
    );
    assert!(emptied <= MOST_SECONDS, "the queue took {emptied} s");
    assert!(
        collected <= MOST_COLLECT_SECONDS,
        "collecting took {collected} s"
    );
}

fn write_run_file(run: &RunFolder, plan: Vec<TrialId>) {
    let file = serde_json::json!({
        "kiln_run": 1, "experiment": "x", "tables": {}, "plan": plan, "launches": [],
    });
    let file: RunFile = serde_json::from_value(file).unwrap();
    file.write(run).unwrap();
}

/// One worker; returns how many trials it has settled.
fn work(run: &RunFolder) -> io::Result<u64> {
    let queue = TicketQueue::of(run).unwrap().unwrap();
    let launch = launch_folder::make(run, 0)?;
    let own = launch_folder::folder(run, launch);
    let (mut store, _) = TrialStore::open(&own, &["model.size".to_owned()])?;
    let mut random = fastrand::Rng::new();
    let mut settled = 0;
    loop {
        let mut open = queue.list()?;
        open.retain(|ticket| ticket.state == TicketState::Open);
        if open.is_empty() {
            return Ok(settled);
        }
        while !open.is_empty() {
            let ticket = open.remove(random.usize(..open.len().min(SPREAD)));
            let Some(taken) = queue.put(ticket, TicketState::Taken(launch))? else {
                continue;
            };
            let TicketContent::Whole(entries) = queue.content(taken)? else {
                panic!("{taken:?} is damaged, or was taken twice");
            };
            for entry in entries {
                assert!(attempts(run, &entry.trial).is_empty());
                launch_folder::note_attempt(run, launch, &entry.trial, 1)?;
                run.make_attempt(&entry.trial, 1)?;
                store
                    .keep(&row(&entry.trial, ticket.number, launch))
                    .unwrap();
                settled += 1;
            }
            assert!(queue.put(taken, TicketState::Done)?.is_some());
        }
    }
}

fn row(trial: &TrialId, number: u64, launch: u64) -> TableRow {
    TableRow {
        fixed: Box::new(TrialRow {
            kiln_table: TRIALS.version.to_owned(),
            trial: trial.clone(),
            number,
            attempt: 1,
            launch,
            outcome: Outcome::Completed,
            samples_per_second: Some(1234.5678),
            train_loss: Some(0.123_456_789),
            device_name: Some("a processor with a name of usual length".to_owned()),
            ..TrialRow::default()
        }),
        axes: vec![number.to_string()],
    }
}
