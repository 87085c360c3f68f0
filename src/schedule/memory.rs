//! `run.memory_limit`: enforces it on a trial, and reports the memory of a trial that ran out of
//! it.

use kiln_core::units::{ByteSize, Bytes};

use super::instruments::{AttemptReadings, LeasedGpu};

/// Environment variables with the settings of libtorch's allocator.
const ALLOCATOR_VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// The memory limit of a child.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MemoryLimit {
    None,
    /// On the CPU: bytes of private memory that the process may allocate (`RLIMIT_DATA`), used or
    /// not.
    OfProcess(u64),
    /// On a GPU: a variable that sets the fraction of the device for tensors in libtorch's
    /// allocator; none if it is the whole device.
    OfTensors(Option<(String, String)>),
}

/// Returns the limit of a trial on these devices; no devices means the CPU.
pub(super) fn limit(asked: Option<ByteSize>, devices: &[LeasedGpu]) -> MemoryLimit {
    match (asked, devices) {
        (None, _) => MemoryLimit::None,
        (Some(limit), []) => MemoryLimit::OfProcess(limit.0),
        (Some(limit), _) => {
            let of_the_smallest = devices
                .iter()
                .filter_map(|gpu| gpu.memory_total_bytes)
                .min();
            let share = of_the_smallest
                .map(|total| limit.0 as f64 / total as f64)
                .filter(|share| *share < 1.0);
            MemoryLimit::OfTensors(
                share.map(|share| allocator_setting(share, |name| std::env::var(name).ok())),
            )
        }
    }
}

/// Returns the variable and its value, added to the user's own value.
fn allocator_setting(share: f64, own: impl Fn(&str) -> Option<String>) -> (String, String) {
    let setting = format!("per_process_memory_fraction:{share:.6}");
    let set = ALLOCATOR_VARIABLES
        .iter()
        .find_map(|name| Some((*name, own(name).filter(|value| !value.is_empty())?)));
    match set {
        Some((name, value)) => (name.to_owned(), format!("{value},{setting}")),
        None => (ALLOCATOR_VARIABLES[1].to_owned(), setting),
    }
}

/// Memory available to a trial: the smaller of the machine's memory and `run.memory_limit`.
pub(super) fn least(of_machine: Option<u64>, asked: Option<ByteSize>) -> Option<u64> {
    of_machine
        .into_iter()
        .chain(asked.map(|limit| limit.0))
        .min()
}

/// Returns the reason of a trial that ran out of host memory, with its peak and its limit.
pub(super) fn with_what_was_held(
    reason: String,
    readings: &AttemptReadings,
    asked: Option<ByteSize>,
) -> String {
    let Some(limit) = readings.memory_limit_bytes else {
        return reason;
    };
    let whose = match asked {
        Some(asked) if asked.0 == limit => " (`run.memory_limit`)",
        _ => "",
    };
    match readings.window.peak_resident_bytes {
        // The limit is of memory that it asks for; what it holds may also be of files that it maps.
        Some(held) if held > limit => format!(
            "{reason}; its limit was {}{whose}, and its process held up to {} with the files that it \
             maps, such as libraries",
            Bytes(limit),
            Bytes(held)
        ),
        Some(held) => format!(
            "{reason}; its process used up to {} of {}{whose}",
            Bytes(held),
            Bytes(limit)
        ),
        None => format!("{reason}; its limit was {}{whose}", Bytes(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(memory: Option<u64>) -> LeasedGpu {
        LeasedGpu {
            index: 0,
            uuid: "GPU-0".into(),
            name: "pretended".into(),
            memory_total_bytes: memory,
            ..LeasedGpu::default()
        }
    }

    #[test]
    fn a_limit_is_of_the_process_on_the_cpu_and_of_tensors_on_a_gpu() {
        let four = Some(ByteSize(4 << 30));
        assert_eq!(
            (limit(None, &[]), limit(four, &[])),
            (MemoryLimit::None, MemoryLimit::OfProcess(4 << 30))
        );
        let MemoryLimit::OfTensors(Some((_, value))) =
            limit(four, &[gpu(Some(16 << 30)), gpu(Some(8 << 30))])
        else {
            panic!("a setting")
        };
        assert!(
            value.ends_with("per_process_memory_fraction:0.500000"),
            "{value}"
        );
        assert_eq!(
            (
                limit(four, &[gpu(Some(4 << 30))]),
                limit(four, &[gpu(None)])
            ),
            (MemoryLimit::OfTensors(None), MemoryLimit::OfTensors(None))
        );
    }

    #[test]
    fn settings_of_the_users_own_stay() {
        let with = |name: &'static str| {
            allocator_setting(0.25, move |asked| {
                (asked == name).then(|| "expandable_segments:True".to_owned())
            })
        };
        assert_eq!(with("none").0, "PYTORCH_CUDA_ALLOC_CONF");
        for name in ALLOCATOR_VARIABLES {
            assert_eq!(
                with(name),
                (
                    name.to_owned(),
                    "expandable_segments:True,per_process_memory_fraction:0.250000".to_owned()
                )
            );
        }
    }

    #[test]
    fn the_reason_tells_what_was_held_and_whose_limit_it_was() {
        let mut readings = AttemptReadings {
            memory_limit_bytes: least(Some(8 << 30), Some(ByteSize(1 << 30))),
            ..AttemptReadings::default()
        };
        let told = |readings: &AttemptReadings, asked| {
            with_what_was_held("ran out".to_owned(), readings, asked)
        };
        assert_eq!(
            told(&readings, Some(ByteSize(1 << 30))),
            "ran out; its limit was 1.0 GiB (`run.memory_limit`)"
        );
        readings.window.peak_resident_bytes = Some(900 << 20);
        assert_eq!(
            told(&readings, Some(ByteSize(1 << 30))),
            "ran out; its process used up to 900.0 MiB of 1.0 GiB (`run.memory_limit`)"
        );
        readings.window.peak_resident_bytes = Some(1100 << 20);
        assert_eq!(
            told(&readings, Some(ByteSize(1 << 30))),
            "ran out; its limit was 1.0 GiB (`run.memory_limit`), and its process held up to 1.1 GiB \
             with the files that it maps, such as libraries"
        );
        readings.window.peak_resident_bytes = Some(900 << 20);
        readings.memory_limit_bytes = least(Some(8 << 30), Some(ByteSize(9 << 30)));
        assert_eq!(
            told(&readings, Some(ByteSize(9 << 30))),
            "ran out; its process used up to 900.0 MiB of 8.0 GiB"
        );
        assert_eq!(told(&AttemptReadings::default(), None), "ran out");
    }
}
