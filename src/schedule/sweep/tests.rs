use std::{cell::RefCell, fs, io, path::PathBuf, sync::Arc};

use kiln_core::{
    plan::{Outcome, Trial},
    spec::{DeviceName, Devices, Engine, Experiment},
};

use super::*;
use crate::{
    program::write_program,
    schedule::{
        LaunchEnd, LaunchListener, Selection,
        existing_run::{self, ExistingRun},
        instruments::LeasedGpu,
        machine::MachineIdentity,
        worker::join,
    },
};

fn run(request: &RunRequest, instruments: Instruments) -> Result<LaunchReport, RunStop> {
    super::run(request, instruments, join)
}

/// A listener for tests that read rows.
struct Silence;

impl LaunchListener for Silence {
    fn hear(&self, _: LaunchEvent<'_>) {}
}

/// Keeps the events but for the progress of trials, each as a few words.
#[derive(Default)]
struct Heard(RefCell<Vec<String>>);

impl LaunchListener for Heard {
    fn hear(&self, event: LaunchEvent<'_>) {
        self.0.borrow_mut().push(match event {
            LaunchEvent::Notice(text) => format!("notice: {text}"),
            LaunchEvent::TrialNotice { trial, text } => format!("{}: {text}", trial.number),
            LaunchEvent::RunStarted { launch, counts, .. } => {
                let launch = launch.unwrap_or_default();
                format!("launch {launch}: {} of {}", counts.to_run, counts.total)
            }
            LaunchEvent::TrialStarted { trial, device, .. } => {
                format!("{} starts on {device}", trial.number)
            }
            LaunchEvent::TrialProgressed { .. } => return,
            LaunchEvent::TrialEnded { row, counts, .. } => {
                format!("{} {}: {:?}", row.number, row.outcome, counts.plan)
            }
            LaunchEvent::TrialAdded { counts, .. } => format!("one more: {}", counts.total),
            LaunchEvent::RunEnded { how, counts } => {
                format!("{how}: {} of {}", counts.plan.settled, counts.total)
            }
        });
    }
}

#[test]
fn a_launch_tells_its_listener_what_happens_in_order() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [1, 2].map(|number| trial(&experiment, number, 0));
    let [results, program, locks] = places(place.path(), "true");
    let heard = Heard::default();
    let request = RunRequest {
        resolved: text,
        listener: &heard,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let launch = || run(&request, Instruments::pretending(vec![gpu(0)])).unwrap();
    launch();
    let ended =
        |trial: u64| format!("{trial} diverged: PlanProgress {{ settled: {trial}, failed: 0 }}");
    let wanted = [
        "launch 1: 2 of 2".to_owned(),
        "1 starts on GPU-0".to_owned(),
        ended(1),
        "2 starts on GPU-0".to_owned(),
        ended(2),
        "finished: 2 of 2".to_owned(),
    ];
    let first = heard.0.take();
    let told: Vec<&String> = first
        .iter()
        .filter(|event| !event.starts_with("notice"))
        .collect();
    assert_eq!(told, wanted.iter().collect::<Vec<_>>());
    launch();
    assert_eq!(heard.0.take(), ["nothing to do: 2 of 2"]);
}

#[test]
fn a_launch_resumes_a_run_that_it_has_listed() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [trial(&experiment, 1, 0)];
    let [results, program, locks] = places(place.path(), "true");
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    run(&request, Instruments::pretending(vec![gpu(0)])).unwrap();
    let instruments = Instruments::pretending(vec![gpu(0)]);
    let here = || MachineIdentity::of(&instruments);
    let find = |listed| existing_run::find_among(&request.wanted(), listed, &here);
    let listed = collect_newest(&request).unwrap();
    assert_eq!(listed.len(), 1);
    assert!(matches!(find(listed), Ok(ExistingRun::Old(_))));
    // The folder is not listed again.
    assert!(matches!(
        find(Vec::new()),
        Ok(ExistingRun::New { notice: None })
    ));
}

static NO_DATA: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();

pub(super) fn gpu(index: u32) -> LeasedGpu {
    LeasedGpu {
        index,
        uuid: format!("GPU-{index}"),
        name: "pretended".into(),
        memory_total_bytes: Some(1 << 30),
        ..LeasedGpu::default()
    }
}

pub(in crate::schedule) fn trial(experiment: &Experiment, number: u64, repeat: u64) -> Trial {
    Trial {
        id: TrialId(format!("{number:010}")),
        number,
        point: number % 2,
        repeat,
        block: repeat + 1,
        axes: Vec::new(),
        model: Arc::new((*experiment.model).clone()),
        data: Default::default(),
        train: Arc::new(experiment.train.clone()),
        engine: Engine::Libtorch,
        devices: Devices::Named(DeviceName::All),
        devices_per_trial: 1,
        parameters: None,
        flops_per_sample: None,
        fallback_of: None,
        origin: None,
        effective_batch_size: 8,
        steps: Some(10),
    }
}

pub(in crate::schedule) fn request<'a>(
    experiment: &'a Experiment,
    trials: &'a [Trial],
    [results, trial_program, locks]: [&'a PathBuf; 3],
) -> RunRequest<'a> {
    RunRequest {
        search: None,
        experiment,
        resolved: "",
        trials,
        results,
        trial_program,
        locks,
        visible_devices: None,
        selection: Selection::default(),
        fresh: false,
        copied: None,
        budget: None,
        command_line: &[],
        data: &NO_DATA,
        sha256: |_| Err(io::Error::other("no program of note")),
        listener: &Silence,
    }
}

#[test]
fn two_gpus_run_two_trials_at_once_and_each_round_of_repeats_stays_on_its_own() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials: Vec<Trial> = [0, 0, 1, 1]
        .iter()
        .enumerate()
        .map(|(at, repeat)| trial(&experiment, at as u64 + 1, *repeat))
        .collect();
    // A child that ends once as many have started on the other GPU as on its own, so that they must
    // overlap.
    let lines = "echo \"$CUDA_VISIBLE_DEVICES\" >$folder/device\n\
                 own=$(cat $run/trials/*/1/device | grep -c -- \"$CUDA_VISIBLE_DEVICES\")\n\
                 while [ $(cat $run/trials/*/1/device | wc -l) -lt $((2 * own)) ]; do sleep 0.01; \
                 done";
    let [results, program, locks] = places(place.path(), lines);
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let report = run(&request, Instruments::pretending(vec![gpu(0), gpu(1)])).unwrap();
    assert_eq!(report.end, LaunchEnd::Finished);
    let uuids: Vec<&str> = report
        .last_attempts
        .iter()
        .map(|end| end.device_uuid.as_deref().unwrap())
        .collect();
    assert!(
        uuids[0] == uuids[1] && uuids[2] == uuids[3] && uuids[0] != uuids[2],
        "{uuids:?}"
    );
    let rows = kiln_core::record::TrialTable::read_of(&report.folder)
        .unwrap()
        .rows;
    assert!(
        rows.len() == report.last_attempts.len()
            && rows.iter().all(|row| row.fixed.concurrent_trials == 2)
    );
    let device =
        fs::read_to_string(report.folder.attempt(&trials[2].id, 1).join("device")).unwrap();
    assert_eq!(device.trim(), uuids[2]);
}

#[test]
fn a_launch_says_at_its_start_that_rounds_leave_devices_without_work() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [1, 2, 3, 4].map(|number| trial(&experiment, number, (number - 1) / 2));
    let [results, program, locks] = places(place.path(), "true");
    let heard = Heard::default();
    let request = RunRequest {
        resolved: text,
        listener: &heard,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    run(&request, Instruments::pretending((0..4).map(gpu).collect())).unwrap();
    let said = "notice: 2 rounds of repeats on 4 devices: 2 have no work, because each round stays";
    let heard = heard.0.take();
    assert!(
        heard.iter().any(|event| event.starts_with(said)),
        "{heard:?}"
    );
}

#[test]
fn a_trial_that_has_said_how_it_ended_does_not_count_as_running_beside_the_next() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials: Vec<Trial> = [0, 1, 1]
        .iter()
        .enumerate()
        .map(|(at, repeat)| trial(&experiment, at as u64 + 1, *repeat))
        .collect();
    // The first says that it is finished and ends after the third, which begins once the second ends.
    let lines = format!(
        "wait_for() {{ while ! [ -e $run/$1 ]; do sleep 0.01; done; }}\n\
         case $(cat $1) in\n\
         *'trial: {}'*) wait_for two; echo '{{\"event\":\"finished\",\"outcome\":\"diverged\"}}'\n\
         touch $run/one; wait_for three; exit 0;;\n\
         *'trial: {}'*) touch $run/two; wait_for one; sleep 0.2;;\n\
         *) sleep 0.5; touch $run/three;;\n\
         esac",
        trials[0].id.0, trials[1].id.0
    );
    let [results, program, locks] = places(place.path(), &lines);
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let report = run(&request, Instruments::pretending(vec![gpu(0), gpu(1)])).unwrap();
    let rows = kiln_core::record::TrialTable::read_of(&report.folder)
        .unwrap()
        .rows;
    let beside = |at: usize| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row.fixed.trial == trials[at].id);
        row.unwrap().fixed.concurrent_trials
    };
    assert_eq!([0, 1, 2].map(beside), [2, 2, 1]);
}

/// A child that plays `lines` in its attempt's `$folder` of the run's `$run`, and then ends with a
/// result.
/// The results, a trial program of these lines, and the locks, below `folder`, as [`request`] takes
/// them.
pub(in crate::schedule) fn places(folder: &Path, lines: &str) -> [PathBuf; 3] {
    [
        folder.join("results"),
        script(folder, lines),
        folder.join("locks"),
    ]
}

pub(in crate::schedule) fn script(place: &Path, lines: &str) -> PathBuf {
    let program = place.join("child.sh");
    let ends = "echo '{\"event\":\"finished\",\"outcome\":\"diverged\"}'";
    write_program(
        &program,
        &format!(
            "#!/bin/sh\nfolder=$(sed -n 's/^folder: //p' $1)\n\
             run=$folder/../../..\n{lines}\n{ends}\n"
        ),
    );
    program
}

/// A disk that has room until a trial writes the file `full` into the run's folder.
fn until_full(run: &Path) -> bool {
    !run.join("full").exists()
}

#[test]
fn a_disk_that_fills_up_with_the_last_trial_does_not_fail_the_run() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [trial(&experiment, 1, 0)];
    let [results, program, locks] = places(place.path(), "touch $run/full");
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let report = run_on(
        &request,
        Instruments::pretending(vec![gpu(0)]),
        until_full,
        join,
    )
    .unwrap();
    assert_eq!(
        (report.end, report.left, report.last_attempts[0].outcome),
        (LaunchEnd::Finished, 0, Outcome::Diverged)
    );
}

#[test]
fn on_a_full_disk_running_trials_end_by_themselves_and_no_more_are_started() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [1, 2, 3].map(|number| trial(&experiment, number, 0));
    // The first fills the disk once the second runs. The second goes on until the first has its
    // row, and then for long enough to be stopped by a run that does not let it end by itself.
    let lines = "if mkdir $run/first; then\n  while [ ! -e $run/second ]; do sleep 0.01; done; \
                 touch $run/full\n\
                 else\n  touch $run/second; while [ $(wc -l <$run/trials.csv) -lt 2 ]; do sleep \
                 0.01; done; sleep 0.1\nfi";
    let [results, program, locks] = places(place.path(), lines);
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let stopped = run_on(
        &request,
        Instruments::pretending(vec![gpu(0), gpu(1)]),
        until_full,
        join,
    )
    .unwrap()
    .failure
    .unwrap();
    assert!(
        matches!(&stopped, RunStop::CannotRun(what) if what.contains("full")),
        "{stopped}"
    );
    let run = kiln_core::record::run_folder::runs(&results, "x")
        .unwrap()
        .remove(0);
    let rows = kiln_core::record::TrialTable::read(&run.trials_table())
        .unwrap()
        .rows;
    assert_eq!(
        rows.iter().map(|row| row.fixed.outcome).collect::<Vec<_>>(),
        [Outcome::Diverged; 2]
    );
}

#[test]
fn a_lost_gpu_fails_its_trial_and_the_next_runs_elsewhere_or_the_run_stops() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [1, 2].map(|number| Trial {
        devices: Devices::Named(DeviceName::Auto),
        ..trial(&experiment, number, 0)
    });
    let (locks, program) = (
        place.path().join("locks"),
        script(place.path(), "[ $CUDA_VISIBLE_DEVICES = GPU-1 ] || exit 3"),
    );
    let lose = |results: &PathBuf, gpus: Vec<LeasedGpu>| {
        let request = RunRequest {
            resolved: text,
            ..request(&experiment, &trials, [results, &program, &locks])
        };
        let mut instruments = Instruments::pretending(gpus);
        instruments.pretended_lost = vec!["GPU-0".to_owned()];
        let ended = run(&request, instruments).map_err(|stop| stop.to_string());
        let folder = kiln_core::record::run_folder::runs(results, "x")
            .unwrap()
            .remove(0);
        let ended = ended.and_then(|report| {
            report
                .failure
                .map_or(Ok(report.end), |stop| Err(stop.to_string()))
        });
        (
            ended,
            kiln_core::record::TrialTable::read(&folder.trials_table())
                .unwrap()
                .rows,
        )
    };
    let (ended, rows) = lose(&place.path().join("two"), vec![gpu(0), gpu(1)]);
    assert_eq!(ended, Ok(LaunchEnd::Finished));
    let reason = rows[0].fixed.reason.as_deref().unwrap();
    assert!(
        reason.contains(" lost its device: GPU 0 (pretended) was lost (NVML: pretended) after "),
        "{reason}"
    );
    let found: Vec<_> = rows
        .iter()
        .map(|row| (row.fixed.outcome, row.fixed.device_uuid.as_deref().unwrap()))
        .collect();
    assert_eq!(
        found,
        [(Outcome::Failed, "GPU-0"), (Outcome::Diverged, "GPU-1")]
    );
    let (ended, rows) = lose(&place.path().join("one"), vec![gpu(0)]);
    let stopped = ended.unwrap_err();
    assert!(
        stopped.starts_with(
            "GPU 0 (pretended) was lost (NVML: pretended), and no other device is left"
        ),
        "{stopped}"
    );
    assert_eq!(rows.len(), 1);
}

#[test]
fn a_gpu_that_another_run_holds_is_waited_for_and_then_refused_with_its_holder() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, run: {devices: all, wait: \
                10ms}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let trials = [trial(&experiment, 1, 0)];
    let (results, locks, program) = (
        place.path().join("results"),
        place.path().join("locks"),
        PathBuf::from("/bin/true"),
    );
    fs::create_dir(&locks).unwrap();
    let _held = kiln_core::record::lock::lock_file(&locks.join("GPU-1.lock"), "process 4711")
        .unwrap()
        .unwrap();
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let refused = run(&request, Instruments::pretending(vec![gpu(0), gpu(1)])).unwrap_err();
    assert!(
        matches!(&refused, RunStop::CannotRun(what) if what.contains("GPU 1 (pretended) is leased \
            by process 4711")),
        "{refused}"
    );
    let free = RunRequest {
        visible_devices: Some("0"),
        ..request
    };
    assert_eq!(
        run(&free, Instruments::pretending(vec![gpu(0), gpu(1)]))
            .unwrap()
            .last_attempts[0]
            .device_uuid
            .as_deref(),
        Some("GPU-0")
    );
}

#[test]
fn tf32_is_refused_before_the_first_trial_where_auto_comes_to_the_cpu() {
    let place = tempfile::tempdir().unwrap();
    let text = "{kiln: 1, name: x, model: {kind: matmul, size: 8}, train: {precision: tf32}}";
    let experiment: Experiment = serde_yaml::from_str(text).unwrap();
    let f32 = kiln_core::spec::Train {
        precision: kiln_core::spec::Precision::F32,
        ..experiment.train.clone()
    };
    let auto = |number| Trial {
        devices: Devices::Named(DeviceName::Auto),
        ..trial(&experiment, number, 0)
    };
    let trials = [
        Trial {
            train: Arc::new(f32),
            ..auto(1)
        },
        auto(2),
    ];
    let [results, program, locks] = places(place.path(), "");
    let request = RunRequest {
        resolved: text,
        ..request(&experiment, &trials, [&results, &program, &locks])
    };
    let refused = run(&request, Instruments::pretending(Vec::new())).unwrap_err();
    let begins = "trial 0000000002 has `train.precision: tf32`, which needs a GPU, and there is \
                  none for it (no NVML at /nonexistent";
    let ends = "); use another precision, or name a GPU with `--device`";
    assert!(
        matches!(&refused, RunStop::CannotRun(what) if what.starts_with(begins) && what.ends_with(ends)),
        "{refused}"
    );
    assert!(
        kiln_core::record::run_folder::runs(&results, "x")
            .unwrap()
            .is_empty(),
        "nothing was started"
    );
    let report = run(&request, Instruments::pretending(vec![gpu(0)])).unwrap();
    assert_eq!(
        report.last_attempts.len(),
        2,
        "a GPU has it, as far as the parent knows"
    );
}
