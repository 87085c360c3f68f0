//! The columns of `trials.csv`: a flat list in the order of the file.

use super::columns::{Column, KILN_TABLE, column};

/// Marks the version of the table in which the columns from here on were added.
pub(super) const SINCE: [(u32, &str); 5] = [
    (2, "mean_sm_occupancy"),
    (3, "valid_top1"),
    (4, "checkpoint_bytes"),
    (5, "valid_bleu4"),
    (6, "window_samples"),
];

pub(super) const COLUMNS: [Column; 106] = [
    KILN_TABLE,
    column(
        "trial",
        "",
        "Id of the trial: the same settings have the same id everywhere.",
    ),
    column(
        "attempt",
        "",
        "Number of this start of the trial's process, from 1; 0 for a trial that was skipped.",
    ),
    column(
        "launch",
        "",
        "Number of this start of `kiln run` on the folder, from 1.",
    ),
    column("number", "", "Position of the trial in the plan, from 1."),
    column(
        "outcome",
        "",
        "Outcome of the attempt: `completed`, `oom`, `diverged`, `failed`, `timed-out`, `skipped`, \
         `killed` or `interrupted`.",
    ),
    column(
        "reason",
        "",
        "Reason for the outcome, in words; empty if it completed.",
    ),
    column("started_utc", "", "When the attempt started."),
    column(
        "trial_seconds",
        "s",
        "Wall time of the attempt, from its start to the end of its process.",
    ),
    column("model_kind", "", "`model.kind`."),
    column("data_kind", "", "`data.kind`."),
    column("engine", "", "`run.engine`."),
    column(
        "device_name",
        "",
        "The GPU's name, or the processor's model.",
    ),
    column("device_uuid", "", "The GPU's UUID; empty on the CPU."),
    column(
        "driver",
        "",
        "Version of the NVIDIA driver; empty without one.",
    ),
    column(
        "libtorch",
        "",
        "Version of libtorch; empty for another engine.",
    ),
    column("precision", "", "`train.precision`."),
    column(
        "batch_size",
        "",
        "Examples in one forward pass on one device.",
    ),
    column(
        "grad_accumulation",
        "",
        "Forward passes per optimizer step.",
    ),
    column(
        "effective_batch_size",
        "",
        "Batch size × gradient accumulation × devices.",
    ),
    column(
        "num_workers",
        "",
        "Threads that make batches, `auto` resolved.",
    ),
    column(
        "seed",
        "",
        "The trial's own seed: repeats count up from `train.seed`.",
    ),
    column("parameters", "", "Trainable parameters of the model."),
    column(
        "flops_per_sample",
        "FLOP",
        "Model FLOPs of one sample, forward and backward, recomputation excluded.",
    ),
    column("steps", "", "Optimizer steps made, warm-up included."),
    column(
        "window_seconds",
        "s",
        "Wall time of the measured window: from the end of warm-up to the last step, without \
         evaluation and checkpoints.",
    ),
    column("left_out_steps", "", "Warm-up steps before the window."),
    column(
        "samples_per_second",
        "samples/s",
        "Samples trained in the window divided by its wall time, including loader waits.",
    ),
    column(
        "tokens_per_second",
        "tokens/s",
        "Tokens trained in the window divided by its wall time, for models of text; for prompts \
         and responses without padding.",
    ),
    column(
        "median_step_seconds",
        "s",
        "Median wall time of a step in the window.",
    ),
    column(
        "epoch_seconds",
        "s",
        "Time of one pass over the training data at the window's rate.",
    ),
    column(
        "data_wait_fraction",
        "of 1",
        "Fraction of the window in which the trainer was blocked in the loader.",
    ),
    column(
        "load_seconds",
        "s",
        "Time that workers spent on the window's batches, summed over workers.",
    ),
    column(
        "transfer_fraction",
        "of 1",
        "Fraction of the window spent copying batches to the device.",
    ),
    column(
        "evaluation_seconds",
        "s",
        "Time of all evaluations together.",
    ),
    column(
        "checkpoint_seconds",
        "s",
        "Time of all checkpoints together.",
    ),
    column(
        "train_loss",
        "nats",
        "Mean loss of the last steps (`measure.log_every` of them); for returns, squared errors in \
         units of their standard deviation.",
    ),
    column(
        "valid_loss",
        "nats",
        "Mean loss over the validation data at the end; for returns as in `train_loss`.",
    ),
    column(
        "seconds_to_target",
        "s",
        "From the start of training until `train.target` was reached, including evaluation; empty \
         if it was not reached.",
    ),
    column(
        "mfu",
        "of 1",
        "Model FLOPs utilization: `window_flops` divided by `window_seconds` and `peak_flops`.",
    ),
    column(
        "peak_flops",
        "FLOP/s",
        "Dense peak of the device at this precision.",
    ),
    column(
        "peak_source",
        "",
        "Source of the peak: `measured` (`kiln calibrate`) or `table` (data sheet).",
    ),
    column(
        "peak_allocated_bytes",
        "B",
        "Maximum device memory used by tensors in the window.",
    ),
    column(
        "peak_reserved_bytes",
        "B",
        "Maximum device memory reserved by the allocator in the window.",
    ),
    column(
        "peak_nvml_used_bytes",
        "B",
        "Maximum device memory in use in the window (over the whole attempt if there was no \
         window), by all processes and libraries.",
    ),
    column(
        "peak_resident_bytes",
        "B",
        "Maximum host memory of the trial's process.",
    ),
    column(
        "memory_limit_bytes",
        "B",
        "Memory available to the trial: of the GPU, else of the host or its control group, and at \
         most `run.memory_limit`.",
    ),
    column(
        "mean_gpu_utilization",
        "of 1",
        "Fraction of the window in which any kernel ran; empty with fewer than 5 samples. It does \
         not say how much of the GPU was used.",
    ),
    column(
        "mean_sm_active",
        "of 1",
        "Fraction of the multiprocessors with work, over the window (Hopper and later).",
    ),
    column(
        "mean_power_watts",
        "W",
        "Mean power of the device over the window.",
    ),
    column(
        "energy_counter_joules",
        "J",
        "Energy of the device over the window, from the driver's counter.",
    ),
    column(
        "energy_integral_joules",
        "J",
        "The same, from the integral of the power readings: a cross-check.",
    ),
    column(
        "max_temperature_celsius",
        "°C",
        "Highest temperature of the GPU in the window, or over the whole attempt if there was no \
         window.",
    ),
    column(
        "throttled_fraction",
        "of 1",
        "Fraction of the window in which power, heat or another GPU limited the clocks.",
    ),
    column(
        "throttle_reasons",
        "",
        "The reasons of the limit, most frequent first, separated by spaces.",
    ),
    column(
        "foreign_processes",
        "",
        "Other processes on the device during the attempt: `none`, their number and memory, or \
         `unknown`.",
    ),
    column(
        "concurrent_trials",
        "",
        "Maximum number of trials of this launch that ran at the same time during this one, itself \
         included; other runs on the machine are not counted.",
    ),
    column(
        "cpu_threads",
        "",
        "Threads of the engine on the CPU, `auto` resolved.",
    ),
    column(
        "resumed_at_step",
        "",
        "Step of the checkpoint from which the attempt resumed: its own steps, and all its \
         measurements, start after it; empty if it started from the beginning.",
    ),
    column(
        "fallback_of",
        "",
        "Id of the trial that this smaller one replaces.",
    ),
    column(
        "notes",
        "",
        "`column: reason; …` explains empty cells; under `data`, which data was skipped; under \
         `initial_weights`, which weights were used.",
    ),
    column(
        "mean_sm_occupancy",
        "of 1",
        "Resident warps divided by the maximum, over the window (GPM: Hopper and later); empty \
         with fewer than 5 samples, like the next five.",
    ),
    column(
        "mean_tensor_active",
        "of 1",
        "Fraction of the window in which tensor cores of any kind were active (GPM).",
    ),
    column(
        "mean_dram_bandwidth_utilization",
        "of 1",
        "Fraction of the device memory's bandwidth in use over the window (GPM).",
    ),
    column(
        "mean_pcie_receive_bytes_per_second",
        "B/s",
        "PCIe traffic to the device over the window: from GPM, else from the driver's byte \
         counter.",
    ),
    column(
        "mean_pcie_transmit_bytes_per_second",
        "B/s",
        "The same, from the device.",
    ),
    column(
        "mean_nvlink_receive_bytes_per_second",
        "B/s",
        "NVLink traffic to the device over the window (GPM).",
    ),
    column(
        "mean_nvlink_transmit_bytes_per_second",
        "B/s",
        "The same, from the device.",
    ),
    column(
        "mean_sm_clock_megahertz",
        "MHz",
        "Mean clock of the multiprocessors over the window; empty with fewer than 5 samples.",
    ),
    column(
        "idle_power_watts",
        "W",
        "Power of the device just before the start of the trial's process.",
    ),
    column(
        "peak_nvml_process_bytes",
        "B",
        "Maximum device memory of the trial's own process in the window; empty if its PID differs \
         from the driver's (containers).",
    ),
    column(
        "ecc_corrected_errors",
        "",
        "Device memory errors corrected during the attempt.",
    ),
    column(
        "ecc_uncorrected_errors",
        "",
        "Device memory errors during the attempt that could not be corrected: its result is \
         unreliable.",
    ),
    column(
        "mean_cpu_cores",
        "cores",
        "Mean CPU cores used by the trial's process and its children over the window.",
    ),
    column(
        "disk_read_bytes",
        "B",
        "Bytes that the trial's process read from disks during the attempt, without page-cache \
         hits.",
    ),
    column(
        "mean_disk_busy_fraction",
        "of 1",
        "Fraction of the window in which the host's busiest disk was busy.",
    ),
    column(
        "min_host_memory_available_bytes",
        "B",
        "Minimum host memory available without swapping during the attempt.",
    ),
    column(
        "mean_reading_seconds",
        "s",
        "Mean duration of a tick of the sampler over the attempt.",
    ),
    column(
        "run_seconds",
        "s",
        "Time since the run's start mark, at the attempt's start.",
    ),
    column(
        "allocator_retries",
        "",
        "Number of times the device's allocator freed cached memory and retried; more than a few \
         slow the trial down.",
    ),
    column(
        "flops_formula",
        "",
        "Formula of `flops_per_sample`, with the letters of measurement.md 8: per token for models \
         of text (`6W+12LHQT` with the weights W in matrix products; `6N+12LHQT` until `trials/5` \
         counted norms and biases too; `6N`), per row for `panel-lstm` (`6N`), over all \
         multiply-adds of an image for `resnet` (`6MAC`), over all tokens of a mean row for \
         `seq2seq` (`6NS+6NR+12LHQ(SS+RR+SR)`), per product for `matmul` (`2N^3`); `own` is \
         reported by a user's own model.",
    ),
    column(
        "peak_dtype",
        "",
        "Number format of the matrix products behind `peak_flops`: `bf16` for `bf16` and \
         `amp-bf16`, `f16` for `amp-f16`.",
    ),
    column(
        "valid_top1",
        "of 1",
        "Fraction of validation images whose label has the highest output, at the end.",
    ),
    column(
        "valid_top5",
        "of 1",
        "Fraction of validation images whose label has one of the five highest outputs; empty with \
         fewer than six classes.",
    ),
    column(
        "valid_mean_absolute_error",
        "",
        "Mean absolute error of the validation log returns of a panel, at the end.",
    ),
    column(
        "valid_hit_rate",
        "of 1",
        "Fraction of a panel's validation returns whose direction (above 0 or not) was right, at \
         the end.",
    ),
    column(
        "persistence_mean_absolute_error",
        "",
        "The same error for the baseline that the price stays constant.",
    ),
    column(
        "persistence_hit_rate",
        "of 1",
        "The same fraction for the baseline that the direction repeats.",
    ),
    column(
        "majority_hit_rate",
        "of 1",
        "The same fraction for the baseline that always predicts the more common direction of the \
         training data.",
    ),
    column(
        "skipped_steps",
        "",
        "Steps that `amp-f16` skipped because a gradient overflowed; empty in other precisions.",
    ),
    column(
        "checkpoint_bytes",
        "B",
        "Size of the newest checkpoint that the attempt wrote; empty if it wrote none.",
    ),
    column(
        "valid_bleu4",
        "of 1",
        "BLEU-4 of the responses that `train.evaluate.generate` asks for, at the end: over \
         characters without white space, all responses as one corpus, no smoothing; multiply by \
         100 to compare with sacrebleu.",
    ),
    column(
        "valid_chrf",
        "of 1",
        "chrF of the same responses: characters in groups of up to 6, recall weighted twice; \
         multiply by 100 to compare with sacrebleu.",
    ),
    column(
        "devices_per_trial",
        "",
        "Devices that shared each step's batch.",
    ),
    column(
        "communication_fraction",
        "of 1",
        "Fraction of the window in which the devices exchanged gradients, from the moment the last \
         device had its own until all had the sum; empty for one device.",
    ),
    column(
        "resident_slope_bytes_per_step",
        "B/step",
        "Growth of the private host memory of the trial's process over the window, without file \
         pages: median slope between any two readings; empty with fewer than 5 readings.",
    ),
    column(
        "allocated_slope_bytes_per_step",
        "B/step",
        "The same for device memory used by tensors; empty on the CPU.",
    ),
    column(
        "window_samples",
        "",
        "Samples trained in the window: `samples_per_second` is this divided by `window_seconds`.",
    ),
    column(
        "window_tokens",
        "",
        "Tokens trained in the window, without padding, counted batch by batch: \
         `tokens_per_second` is this divided by `window_seconds`.",
    ),
    column(
        "window_flops",
        "FLOP",
        "Model FLOPs of the samples trained in the window: `mfu` is this divided by \
         `window_seconds` and `peak_flops`.",
    ),
    column(
        "block",
        "",
        "Number of its block of repeats, from 1: a block has one run of each point, one after the \
         other; empty if repeats are not interleaved.",
    ),
    column(
        "processor",
        "",
        "The host's processor: vendor, family-model-stepping and the parts of its instruction set \
         that decide speed.",
    ),
    column(
        "power_limit_watts",
        "W",
        "Power limit that the driver enforces on the GPU, at the attempt's start; for several GPUs \
         the lowest.",
    ),
    column(
        "mig_profile",
        "",
        "Shape of the MIG device, such as `1g.10gb`; empty for a whole GPU.",
    ),
    column(
        "ecc_mode",
        "",
        "Whether the GPU's memory corrects errors: `enabled` or `disabled`.",
    ),
    column(
        "host_id",
        "",
        "Hash that identifies the host without naming it; empty if nothing identifies the host.",
    ),
];
