//! Turns exceptions of an engine into errors with a kind. libtorch's errors arrive as panics of tch
//! and burn with libtorch's text, or as text from the shim; both come out as [`TrialError`].

use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln_core::plan::{is_untold_lack_of_gpu_memory, speaks_of_memory};
use rustix::process::{Resource, getrlimit};

use crate::error::{TrialError, panic_text};

/// Phrases of libtorch's errors that mean a missing device.
const NO_DEVICE: [&str; 7] = [
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "no CUDA-capable device",
    "No libtorch_cuda",
    "Cannot initialize CUDA",
    "driver version is insufficient",
    "no kernel image is available",
];

/// oneDNN's errors in place of one on memory: it says only what could not be made. Both come after the
/// check that the operation is possible. Source: `dnnl.hpp`.
const OF_ONEDNN: [&str; 2] = [
    "could not create a primitive",
    "could not create a memory object",
];

/// Runs `work`; a panic in it becomes an error. After a CUDA error the process is not to be
/// trusted: end it.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, TrialError> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|payload| error_from_text(&panic_text(payload.as_ref())))
}

/// As [`guard`], for work that returns its own errors.
pub fn guard_result<T>(work: impl FnOnce() -> Result<T, TrialError>) -> Result<T, TrialError> {
    guard(work).and_then(|result| result)
}

/// The kind of error that an engine's words speak of.
pub fn error_from_text(whole: &str) -> TrialError {
    let text = without_wrapping(whole);
    if is_untold_lack_of_gpu_memory(whole) {
        TrialError::OutOfMemory {
            text: "libtorch cannot say how much was asked for, because NVML does not answer it"
                .to_owned(),
        }
    } else if speaks_of_memory(whole) {
        let text = asked_for_on_cuda(&text).unwrap_or(text);
        // An error that left an operation as a panic is read again.
        let text = text
            .strip_prefix("out of memory: ")
            .unwrap_or(&text)
            .to_owned();
        TrialError::OutOfMemory { text }
    } else if is_refused_by_limit(&text, getrlimit(Resource::Data).current.is_some()) {
        let text = format!("oneDNN: {text}, with the memory that the process may allocate");
        TrialError::OutOfMemory { text }
    } else if NO_DEVICE.iter().any(|words| whole.contains(words)) {
        TrialError::NoDevice(text)
    } else {
        TrialError::Failed(text)
    }
}

/// Whether oneDNN lacked memory in a process whose memory is limited (`run.memory_limit` on the CPU).
/// Without a limit its words may have another cause.
fn is_refused_by_limit(text: &str, is_limited: bool) -> bool {
    is_limited && OF_ONEDNN.contains(&text)
}

/// The amounts in the message of libtorch's CUDA allocator: the memory that was requested, and the
/// total, allocated and free memory of the GPU. `None` for other texts.
fn asked_for_on_cuda(text: &str) -> Option<String> {
    let between = |before: &str, after: &str| {
        let found = text.split_once(before)?.1.split_once(after)?.0;
        (found.len() < 20).then_some(found)
    };
    let asked = between("Tried to allocate ", ". ")?;
    let capacity = between("has a total capacity of ", " of which ")?;
    let free = between(" of which ", " is free")?;
    let held = between("Of the allocated memory ", " is allocated by PyTorch")?;
    // Only of a process whose share of the GPU is limited (`run.memory_limit`).
    let allowed = text.split_once(" allowed; Of the allocated memory ");
    let allowed = allowed.map(|(before, _)| before.rsplit(". ").next().unwrap_or(before));
    Some(match allowed {
        Some(allowed) => format!(
            "asked for {asked}; its tensors held {held} of the {allowed} that it may use, and of \
             {capacity} {free} were free"
        ),
        None => {
            format!(
                "asked for {asked}; of {capacity} its tensors held {held}, and {free} were free"
            )
        }
    })
}

/// Drops `called Result::unwrap()…: Torch("…")` around libtorch's text, and what is below it: the C++
/// stack, and of CUDA's errors where to read about them and how to compile libtorch.
fn without_wrapping(text: &str) -> String {
    let inner = text
        .split_once("Torch(\"")
        .map_or(text, |(_, inner)| inner.trim_end_matches("\")"));
    let text = inner.replace("\\n", "\n");
    let end = [
        "\nException raised from",
        "\nframe #",
        "\nC++ CapturedTraceback",
        "\nSearch for `cudaError",
        "\nCUDA kernel errors might be",
    ]
    .iter()
    .filter_map(|words| text.find(words))
    .min();
    text[..end.unwrap_or(text.len())].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_memory_and_of_devices_get_their_kinds() {
        let cpu = r#"called `Result::unwrap()` on an `Err` value: Torch("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")"#;
        match error_from_text(cpu) {
            TrialError::OutOfMemory { text } => assert!(
                text.starts_with("[enforce fail") && text.ends_with("9 bytes"),
                "{text}"
            ),
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            error_from_text("CUDA out of memory. Tried to allocate 2.00 GiB"),
            TrialError::OutOfMemory { .. }
        ));
        let unreadable = "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \
                          \"../c10/cuda/CUDACachingAllocator.cpp\":830, please report a bug to PyTorch.";
        assert!(matches!(
            error_from_text(unreadable),
            TrialError::OutOfMemory { text } if text.starts_with("libtorch cannot say")
        ));
        assert!(matches!(
            error_from_text("Found no NVIDIA driver on your system"),
            TrialError::NoDevice(_)
        ));
        assert!(matches!(
            error_from_text("shape mismatch"),
            TrialError::Failed(_)
        ));
    }

    #[test]
    fn onednn_lacks_memory_where_the_process_has_a_limit() {
        assert!(is_refused_by_limit("could not create a primitive", true));
        assert!(is_refused_by_limit(
            "could not create a memory object",
            true
        ));
        for text in [
            "could not create a primitive descriptor for a matmul primitive",
            "shape",
        ] {
            assert!(!is_refused_by_limit(text, true), "{text}");
        }
        assert!(!is_refused_by_limit("could not create a primitive", false));
    }

    /// As libtorch 2.11 words it, and once more after it left an operation.
    #[test]
    fn a_lack_of_memory_on_a_gpu_is_told_in_one_line() {
        let words = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of \
                     130.39 GiB of which 606.40 MiB is free. Process 4242 has 129.80 GiB memory in \
                     use. Of the allocated memory 129.37 GiB is allocated by PyTorch, and 429.53 \
                     MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory \
                     is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid \
                     fragmentation.";
        let once = error_from_text(words);
        let again = error_from_text(&once.to_string());
        for error in [once, again] {
            assert_eq!(
                error.to_string(),
                "out of memory: asked for 1.50 GiB; of 130.39 GiB its tensors held 129.37 GiB, and \
                 606.40 MiB were free"
            );
        }
        assert_eq!(asked_for_on_cuda("CUDA error: out of memory"), None);
        let limited = words.replace("in use. Of", "in use. 4.00 GiB allowed; Of");
        assert_eq!(
            asked_for_on_cuda(&limited).unwrap(),
            "asked for 1.50 GiB; its tensors held 129.37 GiB of the 4.00 GiB that it may use, and of \
             130.39 GiB 606.40 MiB were free"
        );
    }

    #[test]
    fn an_error_of_cuda_is_one_line() {
        let whole = "CUDA error: operation not permitted when stream is capturing\nSearch for \
                     `cudaErrorStreamCaptureUnsupported' in https://docs.nvidia.com/cuda/ for more \
                     information.\nCUDA kernel errors might be asynchronously reported at some other \
                     API call, so the stacktrace below might be incorrect.\nFor debugging consider \
                     passing CUDA_LAUNCH_BLOCKING=1\n";
        assert!(matches!(
            error_from_text(whole),
            TrialError::Failed(text)
                if text == "CUDA error: operation not permitted when stream is capturing"
        ));
    }

    #[test]
    fn a_panic_becomes_an_error_with_its_words() {
        let error =
            guard(|| panic!("not enough memory: you tried to allocate 5 bytes")).unwrap_err();
        assert!(matches!(error, TrialError::OutOfMemory { .. }), "{error:?}");
    }
}
