//! The columns of `trials.csv`, in the order of the file: the runner knows some, the trial's
//! process measures the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::columns::{TableDescription, description};
use crate::plan::{Outcome, TrialId};

/// Counts that a command may not have: none is 0 in memory and an empty cell in the table.
mod empty_for_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn serialize<S: Serializer>(count: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        Some(*count)
            .filter(|count| *count > 0)
            .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.unwrap_or(0))
    }
}

/// As [`table!`](super::columns), and each part of the columns belongs to the `runner` or the
/// `child`. Makes [`TrialRow`], its two halves and [`TRIALS`].
macro_rules! trial_table {
    (
        $(#[doc = $about:literal])+
        $table:ident = $version:literal in $file:literal;
        $(since $since:literal $owner:ident {
            $(
                $(#[doc = $meaning:literal])+
                $column:ident: $type:ty $([$unit:literal])? $(as $form:literal)?,
            )*
        })+
    ) => {
        $(#[doc = $about])+
        pub const $table: TableDescription = description! {
            $version in $file, axes true;
            $($about)+;
            $(since $since { $($($meaning)+ $column $([$unit])?,)* })+
        };

        /// The fixed columns of a row; the axes come after `outcome`. An unknown value is an empty
        /// cell.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct TrialRow {
            /// Name and version of the table.
            pub kiln_table: String,
            $($($(#[doc = $meaning])+ $(#[serde(with = $form)])? pub $column: $type,)*)+
            /// The metrics of a command that have columns of their own, without the prefix.
            #[serde(skip)]
            pub metrics: BTreeMap<String, f64>,
        }

        halves! { [] [] $($owner [$($(#[doc = $meaning])+ $column: $type,)*])+ }
    };
}

/// Sorts the parts of the columns by their owner.
macro_rules! halves {
    ([$($facts:tt)*] [$($figures:tt)*] runner [$($columns:tt)*] $($rest:tt)*) => {
        halves! { [$($facts)* $($columns)*] [$($figures)*] $($rest)* }
    };
    ([$($facts:tt)*] [$($figures:tt)*] child [$($columns:tt)*] $($rest:tt)*) => {
        halves! { [$($facts)*] [$($figures)* $($columns)*] $($rest)* }
    };
    (
        [$($(#[doc = $known:literal])+ $fact:ident: $fact_type:ty,)*]
        [$($(#[doc = $measured:literal])+ $figure:ident: $figure_type:ty,)*]
    ) => {
        /// The runner's half of a [`TrialRow`].
        #[derive(Clone, Debug, PartialEq)]
        pub struct TrialFacts {
            $($(#[doc = $known])+ pub $fact: $fact_type,)*
        }

        /// The half of a [`TrialRow`] that the trial's process measures, in `trial.json` under the
        /// same names.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct TrialFigures {
            $(
                $(#[doc = $measured])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $figure: $figure_type,
            )*
        }

        impl TrialFigures {
            /// The names of its columns.
            pub const COLUMNS: &[&str] = &[$(stringify!($figure)),*];
        }

        impl TrialRow {
            /// Puts the halves together.
            pub fn new(facts: TrialFacts, figures: TrialFigures) -> Self {
                Self {
                    kiln_table: TRIALS.version.to_owned(),
                    $($fact: facts.$fact,)*
                    $($figure: figures.$figure,)*
                    metrics: BTreeMap::new(),
                }
            }
        }
    };
}

trial_table! {
    /// One row per ended attempt. Rows never change; the last attempt of a trial counts. After
    /// `outcome` comes one column per axis of the sweep, named by its dotted key
    /// (`train.batch_size`), in the order of the experiment file; until `trials/5` they came last.
    /// Behind the axes comes one column per metric of a command that is none of the columns below,
    /// named `metric.NAME`.
    /// Committed.
    TRIALS = "trials/12" in "trials.csv";
    since 1 runner {
        /// Id of the trial: the same settings have the same id everywhere.
        trial: TrialId,
        /// Number of this start of the trial's process, from 1; of a trial that was skipped 0, or one more than its last attempt has.
        attempt: u64,
        /// Number of this start of `kiln run` on the folder, from 1.
        launch: u64,
        /// Position of the trial in the plan, from 1.
        number: u64,
        /// Outcome of the attempt: `completed`, `oom`, `diverged`, `failed`, `timed-out`,
        /// `skipped`, `killed` or `interrupted`.
        outcome: Outcome,
        /// Reason for the outcome, in words; empty if it completed without being stopped early.
        reason: Option<String>,
        /// When the attempt started.
        started_utc: Option<String>,
        /// Wall time of the attempt, from its start to the end of its process.
        trial_seconds: Option<f64> ["s"],
        /// `model.kind`.
        model_kind: String,
        /// `data.kind`.
        data_kind: String,
        /// `run.engine`; empty for a command.
        engine: String,
        /// The GPU's name, or the processor's model.
        device_name: Option<String>,
        /// The GPU's UUID; empty on the CPU.
        device_uuid: Option<String>,
        /// Version of the NVIDIA driver; empty without one.
        driver: Option<String>,
        /// Version of libtorch; empty for another engine.
        libtorch: Option<String>,
        /// `train.precision`; for a command its value `precision`, as the next four columns have
        /// its values of their names. What it does not have is empty.
        precision: String,
        /// Examples in one forward pass on one device.
        batch_size: u64 as "empty_for_none",
        /// Forward passes per optimizer step.
        grad_accumulation: u64 as "empty_for_none",
        /// Batch size × gradient accumulation × devices.
        effective_batch_size: u64 as "empty_for_none",
        /// Threads that make batches, `auto` resolved.
        num_workers: Option<u64>,
        /// The trial's own seed: repeats count up from `train.seed`.
        seed: u64,
    }
    since 1 child {
        /// Trainable parameters of the model.
        parameters: Option<u64>,
        /// Model FLOPs of one sample, forward and backward, recomputation excluded.
        flops_per_sample: Option<u64> ["FLOP"],
        /// Optimizer steps made, warm-up included.
        steps: Option<u64>,
        /// Wall time of the measured window: from the end of warm-up to the last step, without
        /// evaluation and checkpoints.
        window_seconds: Option<f64> ["s"],
        /// Warm-up steps before the window.
        left_out_steps: Option<u64>,
        /// Samples trained in the window divided by its wall time, including loader waits.
        samples_per_second: Option<f64> ["samples/s"],
        /// Tokens trained in the window divided by its wall time, for models of text; for prompts
        /// and responses without padding.
        tokens_per_second: Option<f64> ["tokens/s"],
        /// Median wall time of a step in the window.
        median_step_seconds: Option<f64> ["s"],
        /// Time of one pass over the training data at the window's rate, without the last partial batch,
        /// which is dropped.
        epoch_seconds: Option<f64> ["s"],
        /// Fraction of the window in which the trainer was blocked in the loader; on a GPU only as far as
        /// it had no steps left to do.
        data_wait_fraction: Option<f64> ["of 1"],
        /// Time that workers spent on the window's batches, summed over workers.
        load_seconds: Option<f64> ["s"],
        /// Fraction of the window in which the device received batches; on the CPU, the host's own copies.
        transfer_fraction: Option<f64> ["of 1"],
        /// Time of all evaluations together.
        evaluation_seconds: Option<f64> ["s"],
        /// Time of all checkpoints together.
        checkpoint_seconds: Option<f64> ["s"],
        /// Mean loss of the last steps (`measure.log_every` of them); for returns, squared errors
        /// in units of their standard deviation.
        train_loss: Option<f64> ["nats"],
        /// Mean loss over the validation data at the end; for returns as in `train_loss`.
        valid_loss: Option<f64> ["nats"],
        /// From the start of training until `train.target` was reached, including evaluation and, of a
        /// resumed attempt, the seconds of earlier ones up to the checkpoint; empty if it was not
        /// reached.
        seconds_to_target: Option<f64> ["s"],
    }
    since 1 runner {
        /// Model FLOPs utilization: `window_flops` divided by `window_seconds` and `peak_flops`.
        mfu: Option<f64> ["of 1"],
        /// Dense peak of the device at this precision.
        peak_flops: Option<f64> ["FLOP/s"],
        /// Source of the peak: `measured` (`kiln calibrate`) or `table` (data sheet).
        peak_source: Option<String>,
    }
    since 1 child {
        /// Maximum device memory used by tensors in the window.
        peak_allocated_bytes: Option<u64> ["B"],
        /// Maximum device memory reserved by the allocator in the window.
        peak_reserved_bytes: Option<u64> ["B"],
    }
    since 1 runner {
        /// Maximum device memory in use in the window (over the whole attempt if there was no
        /// window), by all processes and libraries.
        peak_nvml_used_bytes: Option<u64> ["B"],
        /// Maximum host memory of the trial: of its process, or of that and all that it started,
        /// where pages that several of them hold count once.
        peak_resident_bytes: Option<u64> ["B"],
        /// Memory available to the trial: of the GPU, else of the host or its control group, and at
        /// most `run.memory_limit`.
        memory_limit_bytes: Option<u64> ["B"],
        /// Fraction of the window in which any kernel ran; empty with fewer than 5 samples, and if
        /// they cover less than 90 % of the window, like every mean of samples. It does not say how
        /// much of the GPU was used.
        mean_gpu_utilization: Option<f64> ["of 1"],
        /// Fraction of the multiprocessors with work, over the window (Hopper and later).
        mean_sm_active: Option<f64> ["of 1"],
        /// Mean power of the device over the window: of the readings, else of the counter.
        mean_power_watts: Option<f64> ["W"],
        /// Energy of the device over the window, from the driver's counter.
        energy_counter_joules: Option<f64> ["J"],
        /// The same, from the integral of the power readings: a cross-check. Empty where evaluations and
        /// checkpoints cut the window into pieces of under 10 s.
        energy_integral_joules: Option<f64> ["J"],
        /// Highest temperature of the GPU in the window, or over the whole attempt if there was no
        /// window.
        max_temperature_celsius: Option<f64> ["°C"],
        /// Fraction of the window in which power, heat or another GPU limited the clocks; empty if
        /// samples cover less than 90 % of the window.
        throttled_fraction: Option<f64> ["of 1"],
        /// The reasons of the limit, most frequent first, `sw_power_cap` after any other that held for 5 % of the window, separated by spaces.
        throttle_reasons: Option<String>,
        /// Other processes on the device during the attempt: `none`, their number and memory, or
        /// `unknown`.
        foreign_processes: Option<String>,
        /// Maximum number of trials of this run that ran at the same time on this machine during
        /// this one, itself included: of the launch, and of other workers as far as their heartbeats
        /// told (until `trials/8` of the launch alone). Other runs on the machine are not counted.
        concurrent_trials: u64,
    }
    since 1 child {
        /// Threads of the engine on the CPU, `auto` resolved.
        cpu_threads: Option<u64>,
        /// Step of the checkpoint from which the attempt resumed: its own steps, and all its
        /// measurements but `seconds_to_target`, `steps_to_target`, `lowest_valid_loss`, `lowest_valid_step`
        /// and the gradient noise, start after it; empty if it started from the beginning, and of an
        /// attempt that ended with kiln itself before kiln had noted the step.
        resumed_at_step: Option<u64>,
    }
    since 1 runner {
        /// Id of the trial that this smaller one replaces.
        fallback_of: Option<TrialId>,
        /// `column: reason; …` explains empty cells; under `data`, which data was skipped; under
        /// `initial_weights`, which weights were used; under `continued_from`, the checkpoint of
        /// another run with which the training began (`kiln run --continue`); under `job_time`,
        /// that the time of its Slurm job ended the attempt; under `resumed_at_step`, which checkpoints
        /// could not be used; under `resumed`, that a command found files of an earlier attempt in its
        /// checkpoint folder, or says that it did not begin at step 0; under `window`, which line of
        /// a command's `model.window` never came; under `adopted`, that kiln was killed before it
        /// wrote the row of a trial that was over.
        notes: Option<String>,
    }
    since 2 runner {
        /// Resident warps divided by the maximum, over the window (GPM: Hopper and later); empty
        /// with fewer than 5 samples, like the next five.
        mean_sm_occupancy: Option<f64> ["of 1"],
        /// Fraction of the window in which tensor cores of any kind were active (GPM).
        mean_tensor_active: Option<f64> ["of 1"],
        /// Fraction of the device memory's bandwidth in use over the window (GPM).
        mean_dram_bandwidth_utilization: Option<f64> ["of 1"],
        /// PCIe traffic to the device over the window: from GPM, else from the driver's byte
        /// counter.
        mean_pcie_receive_bytes_per_second: Option<f64> ["B/s"],
        /// The same, from the device.
        mean_pcie_transmit_bytes_per_second: Option<f64> ["B/s"],
        /// NVLink traffic to the device over the window (GPM).
        mean_nvlink_receive_bytes_per_second: Option<f64> ["B/s"],
        /// The same, from the device.
        mean_nvlink_transmit_bytes_per_second: Option<f64> ["B/s"],
        /// Mean clock of the multiprocessors over the window; empty with fewer than 5 samples.
        mean_sm_clock_megahertz: Option<f64> ["MHz"],
        /// Power of the device just before the start of the trial's process.
        idle_power_watts: Option<f64> ["W"],
        /// Maximum device memory of the trial's own process in the window; empty if its PID differs
        /// from the driver's (containers).
        peak_nvml_process_bytes: Option<u64> ["B"],
        /// Device memory errors corrected during the attempt: the increases of the driver's counter, also
        /// after a reset of it.
        ecc_corrected_errors: Option<u64>,
        /// Device memory errors during the attempt that could not be corrected: its result is
        /// unreliable.
        ecc_uncorrected_errors: Option<u64>,
        /// Mean CPU cores used by the trial's process and its children over the window.
        mean_cpu_cores: Option<f64> ["cores"],
        /// Bytes that the trial's process and its children read from disks during the attempt,
        /// without page-cache hits.
        disk_read_bytes: Option<u64> ["B"],
        /// Fraction of the window in which the host's busiest disk was busy.
        mean_disk_busy_fraction: Option<f64> ["of 1"],
        /// Minimum host memory available without swapping during the attempt.
        min_host_memory_available_bytes: Option<u64> ["B"],
        /// Mean duration of a tick of the sampler over the attempt.
        mean_reading_seconds: Option<f64> ["s"],
        /// Time since the run's start mark, at the attempt's start.
        run_seconds: Option<f64> ["s"],
    }
    since 2 child {
        /// Number of times the device's allocator freed cached memory and retried; more than a few
        /// slow the trial down.
        allocator_retries: Option<u64>,
    }
    since 2 runner {
        /// Formula of `flops_per_sample`, with the letters of measurement.md 8: per token for
        /// models of text (`6W+12LHQT` with the weights W in matrix products; `6N+12LHQT` until
        /// `trials/5` counted norms and biases too; `6W` of an `mlp`, whose `6N` counted biases;
        /// `6N` of an `lstm`, with its weights in products alone), per row for `panel-lstm` (`6N`), over
        /// all multiply-adds of an image for `resnet` (`6MAC`), over all tokens of a mean row for
        /// `seq2seq` (`6NS+6NR+12LHQ(SS+RR+SR)`), per product for `matmul` (`2N^3`); `own` is
        /// reported by a user's own model.
        flops_formula: Option<String>,
        /// Number format of the matrix products behind `peak_flops`: `bf16` for `bf16` and
        /// `amp-bf16`, `f16` for `amp-f16`.
        peak_dtype: Option<String>,
    }
    since 3 child {
        /// Fraction of validation images whose label has the highest output, at the end.
        valid_top1: Option<f64> ["of 1"],
        /// Fraction of validation images whose label has one of the five highest outputs; empty
        /// with fewer than six classes.
        valid_top5: Option<f64> ["of 1"],
        /// Mean absolute error of the validation log returns of a panel, at the end.
        valid_mean_absolute_error: Option<f64>,
        /// Fraction of a panel's validation returns whose direction (above 0 or not) was right, at
        /// the end.
        valid_hit_rate: Option<f64> ["of 1"],
        /// The same error for the baseline that the price stays constant.
        persistence_mean_absolute_error: Option<f64>,
        /// The same fraction for the baseline that the direction repeats.
        persistence_hit_rate: Option<f64> ["of 1"],
        /// The same fraction for the baseline that always predicts the more common direction of the
        /// training data.
        majority_hit_rate: Option<f64> ["of 1"],
        /// Steps that `amp-f16` skipped because a gradient overflowed; empty in other precisions.
        skipped_steps: Option<u64>,
    }
    since 4 child {
        /// Size of the newest checkpoint that the attempt wrote; empty if it wrote none.
        checkpoint_bytes: Option<u64> ["B"],
    }
    since 5 child {
        /// BLEU-4 of the responses that `train.evaluate.generate` asks for, at the end: over
        /// characters without white space, all responses as one corpus, no smoothing; multiply by
        /// 100 to compare with sacrebleu.
        valid_bleu4: Option<f64> ["of 1"],
        /// chrF of the same responses: characters in groups of up to 6, recall weighted twice;
        /// multiply by 100 to compare with sacrebleu.
        valid_chrf: Option<f64> ["of 1"],
    }
    since 5 runner {
        /// Devices that shared each step's batch.
        devices_per_trial: Option<u64>,
    }
    since 5 child {
        /// Fraction of the window in which the devices exchanged gradients, from the moment the
        /// last device had its own until all had the sum; empty for one device.
        communication_fraction: Option<f64> ["of 1"],
        /// Growth of the private host memory of the trial's process over the window, without file
        /// pages: median slope between any two readings; empty with fewer than 5 readings.
        resident_slope_bytes_per_step: Option<f64> ["B/step"],
        /// The same for device memory used by tensors; empty on the CPU.
        allocated_slope_bytes_per_step: Option<f64> ["B/step"],
    }
    since 6 child {
        /// Samples trained in the window: `samples_per_second` is this divided by `window_seconds`.
        window_samples: Option<u64>,
        /// Tokens trained in the window, without padding, counted batch by batch:
        /// `tokens_per_second` is this divided by `window_seconds`.
        window_tokens: Option<u64>,
        /// Model FLOPs of the samples trained in the window: `mfu` is this divided by
        /// `window_seconds` and `peak_flops`.
        window_flops: Option<f64> ["FLOP"],
    }
    since 6 runner {
        /// Number of its block, from 1: runs of one block differ only in the axes of
        /// `sweep.together`, or, without that key, are one run of each point. They ran one after
        /// the other where they have one launch and one device. Empty if there are no blocks.
        block: Option<u64>,
        /// The host's processor: vendor, family-model-stepping and the parts of its instruction set
        /// that decide speed.
        processor: Option<String>,
        /// Power limit that the driver enforces on the GPU, at the attempt's start; for several
        /// GPUs the lowest. `notes` says if it has changed by the attempt's end.
        power_limit_watts: Option<f64> ["W"],
        /// Shape of the MIG device, such as `1g.10gb`; empty for a whole GPU.
        mig_profile: Option<String>,
        /// Whether the GPU's memory corrects errors: `enabled` or `disabled`.
        ecc_mode: Option<String>,
        /// Hash that identifies the host without naming it; empty if nothing identifies the host.
        host_id: Option<String>,
    }
    since 7 runner {
        /// Number of its round of repeats, from 1: one run of each point. Without `sweep.together`
        /// it is the block. Empty if the repeats of a point ran one after the other.
        round: Option<u64>,
    }
    since 8 child {
        /// The simple gradient noise scale over the newest half of the measured steps, 20 to 200 of
        /// them (`measure.gradient_noise`): a batch far below it wastes no samples, one far above
        /// saves no steps. Empty if the gradient cannot be told from 0; then only its lower end is
        /// known.
        gradient_noise_scale: Option<f64> ["samples"],
        /// Lower end of its 95 % interval.
        gradient_noise_scale_low: Option<f64> ["samples"],
        /// Upper end; empty if there is none.
        gradient_noise_scale_high: Option<f64> ["samples"],
        /// The last step that was measured.
        gradient_noise_step: Option<u64>,
        /// Mean training loss of the steps that the scale is of.
        gradient_noise_loss: Option<f64> ["nats"],
    }
    since 9 child {
        /// Optimizer steps until the evaluation that reached `train.target`; empty if it was not
        /// reached.
        steps_to_target: Option<u64>,
    }
    since 10 child {
        /// Kind of host memory from which batches were copied to the GPU: `pinned` or `pageable`
        /// (`data.pin_memory`). Empty on the CPU, and where a command trains.
        copied_from: Option<String>,
    }
    since 11 child {
        /// Lowest validation loss of all evaluations of the training, with those before
        /// `resumed_at_step`; as in `valid_loss`. The weights that `train.checkpoint` keeps as the best
        /// are of that evaluation.
        lowest_valid_loss: Option<f64> ["nats"],
        /// Optimizer steps until that evaluation.
        lowest_valid_step: Option<u64>,
    }
    since 12 child {
        /// First 16 digits of a SHA-256 over the validation data: ids and numbering of tokens; pixels
        /// of images, or names and lengths of their files, with labels. Losses of trials with the
        /// same one are of the same data, whatever they were trained on. Empty for a panel, whose
        /// targets are normalized by its training data, for a command and without validation data.
        validation_data: Option<String>,
    }
}
