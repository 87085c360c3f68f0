//! Conclusions from a trial that ran out of memory: how its texts are recognized, and which smaller
//! trial can replace it. Which trials need at least as much: `demand`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    Trial, TrialId,
    id::{SharedIdentity, TrialIdentity},
};

/// Phrases of engines, their libraries and the system for a lack of memory, in small letters. Source:
/// c10's CPU and CUDA allocators, cuBLAS, cuDNN, oneDNN, XLA, TensorFlow, libc.
const OUT_OF_MEMORY: [&str; 11] = [
    "out of memory",
    "oom when allocating tensor",
    "outofmemoryerror",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "device_allocation_failed",
    "host_allocation_failed",
    "cannot allocate memory",
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
];
/// TensorFlow's phrases for a lack of memory, each behind the class of its exception, in small letters.
/// The classes also stand for other faults.
const OF_TENSORFLOW: [(&str, &str); 3] = [
    ("resourceexhaustederror:", "failed to allocate memory"),
    (
        "resourceexhaustederror:",
        "unable to allocate output tensor",
    ),
    ("internalerror:", "dst tensor is not initialized"),
];
/// The phrase of Rust's allocator; with a capital letter it may begin any sentence.
const OF_RUST: &str = "memory allocation of";
/// How the names of Python's exceptions end: also NumPy's `_ArrayMemoryError`.
const MEMORY_ERROR: &str = "MemoryError";

/// Whether a text reports that host or device memory ran out.
pub fn speaks_of_memory(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    OUT_OF_MEMORY.iter().any(|words| is_reported(&lower, words))
        || text.contains(OF_RUST)
        || text.split(['\n', '\r']).any(is_memory_error)
        || lower.lines().any(is_exhausted_memory)
        || is_of_tensorflow(&lower)
        || is_untold_lack_of_gpu_memory(text)
}

/// Whether a phrase occurs and is not the name of a count of 0: `out of memory errors: 0`.
fn is_reported(lower: &str, words: &str) -> bool {
    lower
        .match_indices(words)
        .any(|(at, _)| !is_count_of_none(&lower[at + words.len()..]))
}

/// Whether a text goes on to the end of a name, and the number after it is 0.
fn is_count_of_none(after: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphabetic() || matches!(c, ' ' | '_' | '-');
    let number = after
        .trim_start_matches(is_of_name)
        .strip_prefix([':', '='])
        .and_then(|value| value.trim_start_matches(' ').strip_prefix('0'));
    number.is_some_and(|rest| {
        let rest = rest.trim_start_matches(' ');
        rest.is_empty() || rest.starts_with(['\n', '\r', ',', ';', ')', ']', '}'])
    })
}

/// A line without the names that launchers of several processes put before it: `[rank1]: ` of
/// PyTorch, `[default0]:` of torchrun's `--tee` and `--redirects`.
pub fn without_rank(line: &str) -> &str {
    let mut rest = line;
    while let Some((name, after)) = rest
        .strip_prefix('[')
        .and_then(|inside| inside.split_once("]:"))
        && is_rank(name)
    {
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    rest
}

/// A role and a number.
fn is_rank(name: &str) -> bool {
    let role = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_of_role = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '-');
    !role.is_empty() && role.len() < name.len() && role.chars().all(is_of_role)
}

/// Whether a line begins with the name of a `MemoryError`, as the last one of Python's tracebacks
/// does.
fn is_memory_error(line: &str) -> bool {
    let line = without_rank(line);
    let name = line.split_once(':').map_or(line, |(name, _)| name).trim();
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    name.ends_with(MEMORY_ERROR) && name.chars().all(is_of_name)
}

/// Whether a line of XLA, in small letters, is about memory: the same name stands for quotas of services.
fn is_exhausted_memory(line: &str) -> bool {
    line.split_once("resource_exhausted:")
        .is_some_and(|(_, what)| what.contains("memory") || what.contains("allocat"))
}

/// Whether an exception of TensorFlow, in small letters, is about memory.
fn is_of_tensorflow(lower: &str) -> bool {
    OF_TENSORFLOW.iter().any(|(class, words)| {
        let message = lower.split_once(class).map(|(_, message)| message);
        message.is_some_and(|message| message.contains(words))
    })
}

/// c10's CUDA allocator asks NVML who uses the memory when it has run out, and asserts that NVML
/// answers. On parts of a GPU and in some containers it does not (PyTorch issues 112377, 130486).
pub fn is_untold_lack_of_gpu_memory(text: &str) -> bool {
    text.contains("NVML_SUCCESS == ") && text.contains("CUDACachingAllocator")
}

impl Trial {
    /// Id of the planned trial for which this one stands in; its own if it is planned.
    pub fn planned(&self) -> &TrialId {
        self.fallback_of.as_ref().unwrap_or(&self.id)
    }

    /// Returns the same effective batch with the next smaller batch that divides it, and the
    /// matching accumulation: the replacement for a trial that ran out of memory. `None` if there
    /// is no smaller batch, or the model has no accumulation.
    pub fn shrunk(&self) -> Option<Self> {
        if !self.model.trains() {
            return None;
        }
        let of_a_device = self
            .train
            .batch_size
            .checked_mul(self.train.grad_accumulation)?;
        let batch_size = (1..self.train.batch_size)
            .rev()
            .find(|smaller| of_a_device.is_multiple_of(*smaller))?;
        let mut trial = self.clone();
        let train = Arc::make_mut(&mut trial.train);
        train.batch_size = batch_size;
        train.grad_accumulation = of_a_device / batch_size;
        for (axis, value) in [
            ("train.batch_size", batch_size),
            ("train.grad_accumulation", trial.train.grad_accumulation),
        ] {
            trial
                .axes
                .iter_mut()
                .filter(|(key, _)| key == axis)
                .for_each(|(_, chosen)| *chosen = json!(value));
        }
        trial.id = trial.made_id()?;
        trial.fallback_of.get_or_insert_with(|| self.id.clone());
        Some(trial)
    }

    /// Returns the id of the current settings.
    pub(super) fn made_id(&self) -> Option<TrialId> {
        let swept = self
            .axes
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix("run.")?.to_owned(), value.clone())));
        let telling: Map<String, Value> = swept
            .chain([(
                "devices_per_trial".to_owned(),
                json!(self.devices_per_trial),
            )])
            .collect();
        Some(
            TrialIdentity::new(
                SharedIdentity::new(&self.model, &self.data).ok()?,
                &self.train,
                telling,
            )
            .ok()?
            .continuing(self.origin.as_ref())
            .with_seed(self.train.seed),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::expand,
        spec::{DeviceName, Devices, Experiment},
    };

    fn planned(text: &str) -> Vec<Trial> {
        let experiment: Experiment =
            serde_yaml::from_str(&format!("{{kiln: 1, name: x, {text}}}")).unwrap();
        expand(&experiment, &|_| None).unwrap().trials
    }

    fn one(model: &str, train: &str) -> Trial {
        planned(&format!(
            "model: {model}, data: {{kind: generated}}, train: {{steps: 10, {train}}}"
        ))
        .remove(0)
    }

    #[test]
    fn a_command_says_which_of_its_values_make_memory_grow() {
        let of = |values: &str| {
            planned(&format!(
                "model: {{kind: command, argv: [x, '{{n}}', '{{m}}'], values: {{{values}}}, grows: \
                 [n]}}"
            ))
            .remove(0)
        };
        let failed = of("n: 8, m: 1");
        for (values, wanted) in [
            ("n: 8, m: 1", true),
            ("n: 8.5, m: 1", true),
            ("n: 4, m: 1", false),
            ("n: 16, m: 2", false),
        ] {
            assert_eq!(of(values).needs_no_less_than(&failed), wanted, "{values}");
        }
    }

    #[test]
    fn what_is_larger_in_batch_sequence_or_width_alone_needs_no_less() {
        let gpt = |model: &str, train: &str| one(&format!("{{kind: gpt, {model}}}"), train);
        let failed = gpt("d_model: 64, seq_len: 32", "batch_size: 8");
        for (model, train, wanted) in [
            ("d_model: 64, seq_len: 32", "batch_size: 8, seed: 9", true),
            ("d_model: 64, seq_len: 32", "batch_size: 16", true),
            ("d_model: 128, seq_len: 64", "batch_size: 8", true),
            (
                "d_model: 64, seq_len: 32",
                "batch_size: 8, grad_accumulation: 4",
                true,
            ),
            ("d_model: 64, seq_len: 32", "batch_size: 4", false),
            ("d_model: 32, seq_len: 64", "batch_size: 16", false),
            (
                "d_model: 64, seq_len: 32",
                "batch_size: 16, precision: bf16",
                false,
            ),
            (
                "d_model: 64, seq_len: 32, num_layers: 4",
                "batch_size: 16",
                false,
            ),
            (
                "d_model: 64, seq_len: 32, dropout: 0.1",
                "batch_size: 8",
                false,
            ),
            (
                "d_model: 64, seq_len: 32",
                "batch_size: 16, clip_norm: 1.0",
                false,
            ),
        ] {
            assert_eq!(
                gpt(model, train).needs_no_less_than(&failed),
                wanted,
                "{model} {train}"
            );
        }
        // Without accumulation gradients are freed before the next forward pass.
        let accumulating = gpt(
            "d_model: 64, seq_len: 32",
            "batch_size: 8, grad_accumulation: 2",
        );
        assert!(
            !gpt("d_model: 64, seq_len: 32", "batch_size: 8").needs_no_less_than(&accumulating)
        );
        assert!(
            gpt(
                "d_model: 64, seq_len: 32",
                "batch_size: 12, grad_accumulation: 6"
            )
            .needs_no_less_than(&accumulating)
        );
        let elsewhere = Trial {
            devices: Devices::Named(DeviceName::Cpu),
            ..failed.clone()
        };
        assert!(
            elsewhere.needs_no_less_than(&failed),
            "where it runs is for the schedule to hold against memory"
        );
        assert!(
            !Trial {
                devices_per_trial: 2,
                ..failed.clone()
            }
            .needs_no_less_than(&failed)
        );
        assert!(!one("{kind: mlp}", "batch_size: 8").needs_no_less_than(&failed));
    }

    #[test]
    fn a_stand_in_has_the_same_effective_batch_down_to_one() {
        let mut trial = one("{kind: mlp}", "batch_size: 12, grad_accumulation: 2");
        let first = trial.id.clone();
        let mut seen = Vec::new();
        while let Some(next) = trial.shrunk() {
            assert_eq!(
                (next.effective_batch_size, next.fallback_of.as_ref()),
                (24, Some(&first))
            );
            assert_ne!(next.id, trial.id);
            seen.push((next.train.batch_size, next.train.grad_accumulation));
            trial = next;
        }
        assert_eq!(seen, [(8, 3), (6, 4), (4, 6), (3, 8), (2, 12), (1, 24)]);
        assert_eq!(
            planned("model: {kind: matmul, size: 8}, train: {steps: 3, batch_size: 4}")[0].shrunk(),
            None
        );
    }

    #[test]
    fn a_stand_in_is_the_planned_trial_of_the_same_settings() {
        let trials = planned(
            "model: {kind: mlp}, data: {kind: generated}, train: {steps: 10}, sweep: {zip: \
             {train.batch_size: [8, 4], train.grad_accumulation: [1, 2]}, grid: {run.engine: \
             [libtorch, flex]}}",
        );
        let (large, small) = (&trials[0], &trials[1]);
        let found = large.shrunk().unwrap();
        assert_eq!((&found.id, &found.axes), (&small.id, &small.axes));
        let first = planned(
            "model: {kind: mlp}, data: {kind: generated}, train: {steps: 10, batch_size: 8}, \
             sweep: {repeats: 2}",
        );
        let second = planned(
            "model: {kind: mlp}, data: {kind: generated}, train: {steps: 10, batch_size: 4, \
             grad_accumulation: 2}, sweep: {repeats: 2}",
        );
        for (large, small) in first.iter().zip(&second) {
            assert_eq!(large.shrunk().unwrap().id, small.id);
        }
    }

    #[test]
    fn a_line_is_read_without_the_names_of_its_processes() {
        for (line, wanted) in [
            ("[rank1]: ValueError: x", "ValueError: x"),
            ("[rank12]:   File \"x.py\"", "  File \"x.py\""),
            ("[default0]:[rank0]: Traceback", "Traceback"),
            ("[1]: first", "[1]: first"),
            ("[rank]: x", "[rank]: x"),
            ("[rank1] x", "[rank1] x"),
            ("x [rank1]: y", "x [rank1]: y"),
        ] {
            assert_eq!(without_rank(line), wanted);
        }
    }

    #[test]
    fn the_words_of_every_allocator_are_known() {
        for words in [
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate \
             memory: you tried to allocate 9 bytes",
            "CUDA out of memory. Tried to allocate 2.00 GiB",
            "CUDA error: out of memory",
            "NVML_SUCCESS == DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device) \
             INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1150, please \
             report a bug to PyTorch.",
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":830",
            "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "memory allocation of 4096 bytes failed",
            "mmap: Cannot allocate memory (os error 12)",
            "torch.OutOfMemoryError",
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.",
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB",
            "ResourceExhaustedError: {{function_node __wrapped__MatMul}} OOM when allocating tensor \
             with shape[90000,90000] and type float on /device:GPU:0 by allocator GPU_0_bfc",
            "ResourceExhaustedError: {{function_node __wrapped__Mul_device_/job:localhost/device:GPU:0}} \
             failed to allocate memory [Op:Mul]",
            "ResourceExhaustedError: Graph execution error:\n\nDetected at node m\nm: \
             SameWorkerRecvDone unable to allocate output tensor. Key: x",
            "InternalError: Failed copying input tensor from CPU:0 to GPU:0 in order to run Mul: Dst \
             tensor is not initialized.",
            "Traceback\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an \
             array with shape (1073741824,) and data type float64\n",
            "Traceback\r\nMemoryError\r\n",
            "[rank1]: MemoryError",
            "[default0]:[rank0]: MemoryError: no room",
            "CUDA error: out of memory: 0 bytes are free",
            "out of memory errors: 0\nCUDA out of memory",
        ] {
            assert!(speaks_of_memory(words), "{words}");
        }
        for words in [
            "shape mismatch",
            "the memory of a goldfish",
            "Memory allocation of the model: 3 GiB",
            "StatusCode.RESOURCE_EXHAUSTED",
            "grpc: RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'reads'\nmemory: 3 GiB",
            "ResourceExhaustedError: {{function_node __wrapped__SaveV2}} file system quota exceeded",
            "ResourceExhaustedError: {{function_node __wrapped__ReadFile}} /data/a; Too many open files",
            "ResourceExhaustedError: No space left on device; OOM handler not needed",
            "ResourceExhaustedError: Dst tensor is not initialized",
            "ValueError: failed to allocate memory for the mug",
            "InternalError: failed to allocate memory bandwidth",
            "Hint: If you want to see a list of allocated tensors when OOM happens, add a flag",
            "caught a MemoryError",
            "no MemoryError: all is well",
            "MemoryErrors are counted",
            "[a list]: MemoryError",
            "peak memory: 3 GB; out of memory errors: 0",
            "out of memory = 0, retries = 3",
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/PeerToPeerAccess.cpp\":83",
        ] {
            assert!(!speaks_of_memory(words), "{words}");
        }
    }
}
