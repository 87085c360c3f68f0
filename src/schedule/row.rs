//! Makes a row of `trials.csv` from the plan, the child's result and the machine's readings. Pure.

use std::collections::BTreeMap;

use kiln_core::{
    kinds::{Model, command::Command},
    plan::{Outcome, Trial},
    record::{
        AttemptFile, DEVICE_SEPARATOR, TableRow, TrialFacts, TrialFigures, TrialResult, TrialRow,
        note::{ContinuedFrom, OtherModel, notes_cell},
        peaks,
    },
    spec::Engine,
};
use serde_json::Value;

use super::instruments::{AttemptReadings, LeasedGpu};
use crate::readings::Paths;

/// All facts about an ended attempt.
#[derive(Clone, Debug)]
pub(super) struct AttemptFacts<'a> {
    pub(super) trial: &'a Trial,
    pub(super) attempt: u64,
    pub(super) launch: u64,
    pub(super) outcome: Outcome,
    pub(super) reason: Option<String>,
    pub(super) started_utc: Option<String>,
    /// Time of the attempt's start.
    pub(super) run_seconds: Option<f64>,
    pub(super) trial_seconds: Option<f64>,
    pub(super) result: Option<&'a TrialResult>,
    pub(super) readings: &'a AttemptReadings,
    /// `None` on the CPU, or if unknown.
    pub(super) devices: &'a [LeasedGpu],
    /// The processor's model, if it is the device.
    pub(super) cpu_name: Option<&'a str>,
    /// Full description of the host's processor.
    pub(super) processor: Option<&'a str>,
    pub(super) host_id: Option<&'a str>,
    /// Number of its block, from 1.
    pub(super) block: Option<u64>,
    /// Number of its round of repeats, from 1.
    pub(super) round: Option<u64>,
    pub(super) driver: Option<&'a str>,
    /// Dense peak in FLOP/s and its source.
    pub(super) peak: Option<(f64, String)>,
    pub(super) concurrent_trials: u64,
    pub(super) cores: u64,
    /// Parameters of the model that the program has built, as it said.
    pub(super) parameters: Option<u64>,
    /// Last reported step, for an attempt without a result.
    pub(super) step: Option<u64>,
    /// Reported step from which it resumed, for an attempt without a result.
    pub(super) resumed_at_step: Option<u64>,
    /// Further notes: column to reason.
    pub(super) notes: BTreeMap<String, String>,
}

impl<'a> AttemptFacts<'a> {
    /// Facts of an attempt of which only the outcome and its reason are known.
    pub(super) fn of_end(
        trial: &'a Trial,
        launch: u64,
        (outcome, reason): (Outcome, String),
        readings: &'a AttemptReadings,
        cores: u64,
    ) -> Self {
        Self {
            trial,
            attempt: 0,
            launch,
            outcome,
            reason: Some(reason),
            started_utc: None,
            run_seconds: None,
            trial_seconds: None,
            result: None,
            readings,
            devices: &[],
            cpu_name: None,
            processor: None,
            host_id: None,
            block: None,
            round: None,
            driver: None,
            peak: None,
            concurrent_trials: 0,
            cores,
            parameters: None,
            step: None,
            resumed_at_step: None,
            notes: BTreeMap::new(),
        }
    }
}

/// The row of an attempt.
pub(super) fn row(facts: &AttemptFacts) -> TableRow {
    let values: Vec<Value> = facts
        .trial
        .axes
        .iter()
        .map(|(_, value)| value.clone())
        .collect();
    let figures = figures(facts);
    let mut row = TrialRow::new(known(facts, &figures), figures);
    if let (Model::Command(command), Some(result)) = (&*facts.trial.model, facts.result) {
        row.metrics = own_metrics(command, result);
    }
    TableRow::new(row, &values)
}

/// The numbers of a result for the columns `metric.NAME`.
pub(super) fn own_metrics(command: &Command, result: &TrialResult) -> BTreeMap<String, f64> {
    let own = |name: String| {
        let value = *result.metrics.get(&name)?;
        value.is_finite().then_some((name, value))
    };
    command.own_metrics().into_iter().filter_map(own).collect()
}

/// The row of a trial before it runs: what its plan says.
pub fn row_ahead(trial: &Trial, cores: u64) -> TableRow {
    let end = (Outcome::Interrupted, String::new());
    let readings = AttemptReadings::default();
    row(&AttemptFacts::of_end(trial, 0, end, &readings, cores))
}

/// The columns that the child measures; where it left none, what the plan and its messages say.
fn figures(facts: &AttemptFacts) -> TrialFigures {
    let AttemptFacts { trial, cores, .. } = facts;
    let mut figures = facts
        .result
        .map(|result| result.figures.clone())
        .unwrap_or_default();
    match built(facts) {
        // The planned FLOPs are of another model.
        Some(other) => figures.parameters = Some(other.parameters),
        None => {
            figures.parameters = figures.parameters.or(trial.parameters);
            figures.flops_per_sample = figures.flops_per_sample.or(trial.flops_per_sample);
        }
    }
    // The step of a command is only shown: it may be that of an evaluation's progress bar.
    let step = facts.step.filter(|_| trial.model.command().is_none());
    figures.steps = figures.steps.or(step);
    figures.resumed_at_step = figures.resumed_at_step.or(facts.resumed_at_step);
    let threads = || match &*trial.model {
        Model::Command(command) => command.count("cpu_threads"),
        _ => Some(trial.train.cpu_threads.resolve(*cores)),
    };
    figures.cpu_threads = figures.cpu_threads.or_else(threads);
    figures
}

/// The model that an engine of the user has built, if it is not the planned one.
pub(super) fn other_model(trial: &Trial, parameters: Option<u64>) -> Option<OtherModel> {
    let other = OtherModel::between(parameters, trial.parameters)?;
    matches!(trial.engine, Engine::Own(_)).then_some(other)
}

/// The other model that an attempt has built, by its result, else by its messages.
fn built(facts: &AttemptFacts) -> Option<OtherModel> {
    let result = facts.result.and_then(|result| result.figures.parameters);
    other_model(facts.trial, result.or(facts.parameters))
}

/// The columns that the runner knows.
fn known(facts: &AttemptFacts, figures: &TrialFigures) -> TrialFacts {
    let AttemptFacts {
        trial,
        readings,
        result,
        ..
    } = facts;
    let window = &readings.window;
    let settings = RowSettings::of(trial, facts.cores);
    TrialFacts {
        trial: trial.id.clone(),
        attempt: facts.attempt,
        launch: facts.launch,
        number: trial.number,
        outcome: facts.outcome,
        reason: facts.reason.as_deref().map(in_one_line),
        started_utc: facts.started_utc.clone(),
        trial_seconds: facts.trial_seconds,
        model_kind: trial.model.kind().to_owned(),
        data_kind: trial.data.kind().to_owned(),
        engine: settings.engine,
        device_name: device_name(facts),
        device_uuid: joined(facts.devices, |device| &device.uuid),
        driver: facts.driver.map(str::to_owned),
        libtorch: result
            .filter(|_| trial.engine == Engine::Libtorch)
            .and_then(TrialResult::libtorch)
            .map(str::to_owned),
        precision: settings.precision,
        batch_size: settings.batch_size,
        grad_accumulation: settings.grad_accumulation,
        effective_batch_size: settings.effective_batch_size,
        num_workers: settings.num_workers,
        seed: trial.train.seed,
        mfu: mfu(
            flops_per_second(figures),
            facts.peak.as_ref().map(|(flops, _)| *flops),
        ),
        peak_flops: facts.peak.as_ref().map(|(flops, _)| *flops),
        peak_source: facts.peak.as_ref().map(|(_, source)| source.clone()),
        peak_nvml_used_bytes: window.peak_nvml_used_bytes,
        peak_resident_bytes: window.peak_resident_bytes,
        memory_limit_bytes: readings.memory_limit_bytes,
        mean_gpu_utilization: window.mean_gpu_utilization,
        mean_sm_active: window.mean_sm_active,
        mean_power_watts: window.mean_power_watts,
        energy_counter_joules: window.energy_counter_joules,
        energy_integral_joules: window.energy_integral_joules,
        max_temperature_celsius: window.max_temperature_celsius,
        throttled_fraction: window.throttled_fraction,
        throttle_reasons: window.throttle_reasons.clone(),
        foreign_processes: readings.foreign_processes.clone(),
        concurrent_trials: facts.concurrent_trials,
        fallback_of: trial.fallback_of.clone(),
        notes: notes(facts),
        mean_sm_occupancy: window.mean_sm_occupancy,
        mean_tensor_active: window.mean_tensor_active,
        mean_dram_bandwidth_utilization: window.mean_dram_bandwidth_utilization,
        mean_pcie_receive_bytes_per_second: window.mean_pcie_receive_bytes_per_second,
        mean_pcie_transmit_bytes_per_second: window.mean_pcie_transmit_bytes_per_second,
        mean_nvlink_receive_bytes_per_second: window.mean_nvlink_receive_bytes_per_second,
        mean_nvlink_transmit_bytes_per_second: window.mean_nvlink_transmit_bytes_per_second,
        mean_sm_clock_megahertz: window.mean_sm_clock_megahertz,
        idle_power_watts: readings.idle_power_watts,
        peak_nvml_process_bytes: window.peak_nvml_process_bytes,
        ecc_corrected_errors: window.ecc_corrected_errors,
        ecc_uncorrected_errors: window.ecc_uncorrected_errors,
        mean_cpu_cores: window.mean_cpu_cores,
        disk_read_bytes: window.disk_read_bytes,
        mean_disk_busy_fraction: window.mean_disk_busy_fraction,
        min_host_memory_available_bytes: window.min_host_memory_available_bytes,
        mean_reading_seconds: window.mean_reading_seconds,
        run_seconds: facts.run_seconds,
        flops_formula: figures
            .flops_per_sample
            .map(|_| trial.model.flops_formula().to_owned()),
        peak_dtype: facts
            .peak
            .as_ref()
            .map(|_| peaks::dtype(trial.train.precision.name()).to_owned()),
        devices_per_trial: Some(trial.devices_per_trial),
        block: facts.block,
        processor: facts.processor.map(str::to_owned),
        power_limit_watts: lowest_power_limit(facts.devices),
        mig_profile: joined_known(facts.devices, |device| device.mig_profile.as_deref()),
        ecc_mode: joined_known(facts.devices, |device| device.ecc_mode.as_deref()),
        host_id: facts.host_id.map(str::to_owned),
        round: facts.round,
    }
}

/// The settings of a trial that have columns of their own. A command has those among its values; 0
/// and an empty text are empty cells.
struct RowSettings {
    engine: String,
    precision: String,
    batch_size: u64,
    grad_accumulation: u64,
    effective_batch_size: u64,
    num_workers: Option<u64>,
}

impl RowSettings {
    fn of(trial: &Trial, cores: u64) -> Self {
        if let Some(command) = trial.model.command() {
            let count = |name| command.count(name).unwrap_or(0);
            return Self {
                engine: String::new(),
                precision: command.precision().unwrap_or_default().to_owned(),
                batch_size: count("batch_size"),
                grad_accumulation: count("grad_accumulation"),
                effective_batch_size: command.effective_batch_size().unwrap_or(0),
                num_workers: command.count("num_workers"),
            };
        }
        let loader = trial.data.loader();
        Self {
            engine: trial.engine.name().to_owned(),
            precision: trial.train.precision.name().to_owned(),
            batch_size: trial.train.batch_size,
            grad_accumulation: trial.train.grad_accumulation,
            effective_batch_size: trial.effective_batch_size,
            num_workers: loader.map(|loader| loader.num_workers.resolve(cores)),
        }
    }
}

/// Returns the lowest limit; `None` if one is unknown.
fn lowest_power_limit(devices: &[LeasedGpu]) -> Option<f64> {
    let limits = devices.iter().map(|device| device.power_limit_watts);
    let limits: Vec<f64> = limits.collect::<Option<_>>()?;
    limits.into_iter().reduce(f64::min)
}

/// Returns each text once, in the order of the devices; `None` if there is none.
fn joined(devices: &[LeasedGpu], text: fn(&LeasedGpu) -> &String) -> Option<String> {
    each_once(devices.iter().map(|device| text(device).as_str()))
}

/// Returns each known text once, in the order of the devices; `None` if there is none.
fn joined_known(devices: &[LeasedGpu], text: fn(&LeasedGpu) -> Option<&str>) -> Option<String> {
    each_once(devices.iter().filter_map(text))
}

fn each_once<'a>(texts: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut found: Vec<&str> = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    (!found.is_empty()).then(|| found.join(DEVICE_SEPARATOR))
}

/// Returns the GPU's name, else the name that the child reported, else the processor's model, which
/// is the child's name of a CPU.
fn device_name(facts: &AttemptFacts) -> Option<String> {
    let said = || facts.result.and_then(|result| result.device_name.clone());
    joined(facts.devices, |device| &device.name)
        .or_else(said)
        .or_else(|| facts.cpu_name.map(str::to_owned))
}

fn no_peak(facts: &AttemptFacts) -> String {
    let threads = facts.trial.train.cpu_threads.resolve(facts.cores);
    match (facts.trial.engine, facts.devices) {
        (Engine::Flex, _) => "no peak is measured for engine `flex`".to_owned(),
        (_, []) => {
            format!(
                "no peak is known for this processor with {threads} threads and this libtorch, try \
                 `kiln calibrate --cpu-threads {threads}`"
            )
        }
        (_, [_, ..]) => {
            "no peak is known for this device and precision, try `kiln calibrate`".to_owned()
        }
    }
}

/// Hides the user's folders in the texts of a row.
pub(super) fn hide_paths(row: &mut TrialRow, paths: &Paths) {
    for cell in [&mut row.reason, &mut row.notes].into_iter().flatten() {
        *cell = paths.hide(cell);
    }
}

/// Line breaks and control characters become spaces: a cell is one line of the table and of the
/// terminal.
pub(super) fn in_one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Model FLOPs utilization, as a fraction of 1: achieved FLOP/s over `peak_flops`, the device's
/// dense peak at the trial's precision. `None` if any part is unknown. Source: Chowdhery et al.
/// 2022, appendix B (arXiv 2204.02311).
fn mfu(flops_per_second: Option<f64>, peak_flops: Option<f64>) -> Option<f64> {
    Some(flops_per_second? / peak_flops.filter(|peak| *peak > 0.0)?)
}

/// Model FLOP/s over the window, from its samples; from the sample rate for a user's own program
/// that does not count them.
fn flops_per_second(figures: &TrialFigures) -> Option<f64> {
    let counted = || {
        let seconds = figures.window_seconds.filter(|seconds| *seconds > 0.0)?;
        Some(figures.window_flops? / seconds)
    };
    let by_rate = || Some(figures.samples_per_second? * figures.flops_per_sample? as f64);
    counted().or_else(by_rate)
}

/// The row of an attempt that was lost with its launch: what is known is what its launch wrote at the
/// start.
pub(super) fn of_lost(
    trial: &Trial,
    launch: u64,
    end: (Outcome, String),
    lost: &LostAttempt<'_>,
) -> TableRow {
    let mut used = used_gpus(lost.started, lost.devices);
    // It was read at this launch, and the attempt was of another.
    used.iter_mut().for_each(|gpu| gpu.power_limit_watts = None);
    let is_on_cpu = is_on_cpu(lost.started);
    row(&AttemptFacts {
        attempt: lost.attempt,
        started_utc: lost.started.map(|started| started.started_utc.clone()),
        devices: &used,
        cpu_name: lost.cpu_name.filter(|_| is_on_cpu),
        concurrent_trials: 1,
        resumed_at_step: lost.started.and_then(|started| started.resumed_at_step),
        notes: lost.note.clone().into_iter().collect(),
        ..AttemptFacts::of_end(trial, launch, end, &AttemptReadings::default(), lost.cores)
    })
}

/// Whether an attempt ran on the CPU, as its file says.
pub(super) fn is_on_cpu(started: Option<&AttemptFile>) -> bool {
    started.is_some_and(|started| started.device == "cpu")
}

/// The GPUs of `devices` on which an attempt ran, as its file names them.
pub(super) fn used_gpus(started: Option<&AttemptFile>, devices: &[LeasedGpu]) -> Vec<LeasedGpu> {
    let named = started.map(|started| started.device.split(DEVICE_SEPARATOR));
    named
        .into_iter()
        .flatten()
        .filter_map(|uuid| devices.iter().find(|device| device.uuid == uuid))
        .cloned()
        .collect()
}

/// A lost attempt.
pub(super) struct LostAttempt<'a> {
    pub(super) attempt: u64,
    /// `None` if its file is missing or torn.
    pub(super) started: Option<&'a AttemptFile>,
    /// The GPUs of this machine.
    pub(super) devices: &'a [LeasedGpu],
    /// The processor that its launch recorded.
    pub(super) cpu_name: Option<&'a str>,
    pub(super) note: Option<(String, String)>,
    /// Cores that this process may use.
    pub(super) cores: u64,
}

fn notes(facts: &AttemptFacts) -> Option<String> {
    let mut notes = facts.readings.window.notes.clone();
    for (column, told) in facts.result.iter().flat_map(|result| &result.notes) {
        let note = notes.entry(column.clone()).or_default();
        // Both may know why a cell is empty.
        *note = match note.is_empty() || note == told {
            true => told.clone(),
            false => format!("{note}; {told}"),
        };
    }
    notes.extend(facts.notes.clone());
    if let Some(origin) = &facts.trial.origin {
        let note = ContinuedFrom::new(origin).to_string();
        notes.insert(ContinuedFrom::COLUMN.to_owned(), note);
    }
    if let Some(other) = built(facts) {
        notes.insert(OtherModel::COLUMN.to_owned(), other.to_string());
        let reported = facts.result.map(|result| &result.figures);
        if reported.is_none_or(|figures| figures.flops_per_sample.is_none()) {
            let why = "the FLOPs of the plan are those of another model";
            for column in ["flops_per_sample", "mfu"] {
                let note = notes.entry(column.to_owned());
                note.or_insert_with(|| why.to_owned());
            }
        }
    }
    let is_command = facts.trial.model.command().is_some();
    if facts.outcome == Outcome::Completed && facts.peak.is_none() && !is_command {
        notes
            .entry("mfu".to_owned())
            .or_insert_with(|| no_peak(facts));
    }
    notes_cell(&notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mfu_is_achieved_over_peak_and_unknown_stays_unknown() {
        assert_eq!(mfu(Some(100_000.0), Some(1_000_000.0)), Some(0.1));
        assert_eq!(mfu(None, Some(1e6)), None);
        assert_eq!(mfu(Some(100_000.0), Some(0.0)), None);
        assert_eq!(mfu(Some(100_000.0), None), None);
    }

    #[test]
    fn the_lowest_power_limit_counts_and_one_unknown_leaves_the_cell_empty() {
        let gpu = |watts| LeasedGpu {
            power_limit_watts: watts,
            ..LeasedGpu::default()
        };
        assert_eq!(
            lowest_power_limit(&[gpu(Some(700.0)), gpu(Some(500.0))]),
            Some(500.0)
        );
        assert_eq!(lowest_power_limit(&[gpu(Some(700.0)), gpu(None)]), None);
        assert_eq!(lowest_power_limit(&[]), None);
    }
}
