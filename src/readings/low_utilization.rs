//! Why a GPU may be little used, and the next command: for `kiln snapshot --words`.
//!
//! In: one reading of a GPU and of the host. Out: likely causes, each with the readings that speak
//! for it. One reading proves none of them.

use kiln_core::units::Bytes;
use kiln_hardware::{Gpu, HostFacts, Reading};

/// Up to this utilization, in percent, causes are named.
const LOW_PERCENT: u64 = 30;
/// Below this fraction of its memory, a GPU has room for larger batches.
const ROOMY_MEMORY: f64 = 0.5;

/// Lines for a page of words, indented like its other lines; empty for a GPU that is busy, idle
/// without any process, or whose utilization is unknown.
pub fn low_utilization(gpu: &Gpu, host: &HostFacts) -> String {
    let Reading::Value(percent) = gpu.activity.gpu_percent else {
        return String::new();
    };
    let computing = gpu.processes.value().map(|processes| {
        let computes = processes.iter().filter(|it| it.has_compute || it.has_mps);
        computes.count()
    });
    let is_idle = percent == 0 && computing.is_none_or(|count| count == 0);
    if percent > LOW_PERCENT || is_idle {
        return String::new();
    }
    let causes = match computing {
        Some(0) => vec![
            "no compute process is visible from here: a display, or a process in another \
             container, uses it"
                .to_owned(),
        ],
        _ => [
            Some(waiting_for_data(host)),
            small_batches(gpu),
            Some(
                "a pause: one reading covers a second at most, and loading, an evaluation or a \
                 checkpoint may have been in it; `kiln watch` shows the course"
                    .to_owned(),
            ),
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    let each: String = causes
        .iter()
        .map(|cause| format!("    - {cause}\n"))
        .collect();
    format!(
        "  low utilization, {percent} %; likely causes:\n{each}  next: `kiln report` names the cause \
         for the newest run of kiln; for a training of your own, `kiln watch`\n"
    )
}

/// The trainer waits for its loader, or a thread of it for a core.
fn waiting_for_data(host: &HostFacts) -> String {
    let next = "`kiln tune FILE --search workers` finds how many workers help";
    let cores = host.usable_cores;
    let evidence = match host.load_1_minute.value() {
        Some(load) if *load >= cores as f64 => {
            format!("the host is busy, its load average is {load} and it has {cores} usable cores")
        }
        Some(load) => format!(
            "the host has {cores} usable cores and a load average of {load}, so the loader could \
             use more of them"
        ),
        None => "the load of the host is unknown".to_owned(),
    };
    format!("waiting for data: {evidence}; {next}")
}

/// Kernels end faster than the host starts them.
fn small_batches(gpu: &Gpu) -> Option<String> {
    let memory = &gpu.memory.frame_buffer;
    let (used, total) = (*memory.used_bytes.value()?, *memory.total_bytes.value()?);
    let has_room = (used as f64) < ROOMY_MEMORY * total as f64;
    has_room.then(|| {
        format!(
            "batches too small to keep it busy: {} of {} memory are used (memory.used); `kiln tune \
             FILE --search best-throughput-batch` finds a faster size",
            Bytes(used),
            Bytes(total)
        )
    })
}

#[cfg(test)]
mod tests {
    use kiln_hardware::{
        Absence,
        gpu::{Process, ProcessMemory},
        host,
    };

    use super::*;

    fn gpu(percent: u64, processes: usize) -> Gpu {
        let mut gpu = Gpu::unread(&Absence::NotSupported);
        gpu.activity.gpu_percent = Reading::Value(percent);
        let process = Process {
            pid: 7,
            has_compute: true,
            has_graphics: false,
            has_mps: false,
            name: Reading::Absent(Absence::NotSupported),
            memory: ProcessMemory::NotTold,
            gpu_instance_id: None,
            compute_instance_id: None,
        };
        gpu.processes = Reading::Value(vec![process; processes]);
        gpu.memory.frame_buffer.used_bytes = Reading::Value(2 << 30);
        gpu.memory.frame_buffer.total_bytes = Reading::Value(80 << 30);
        gpu
    }

    fn host(load: f64) -> HostFacts {
        HostFacts {
            usable_cores: 16,
            load_1_minute: Reading::Value(load),
            ..host::read()
        }
    }

    #[test]
    fn three_percent_has_causes_with_evidence_and_a_next_command() {
        let said = low_utilization(&gpu(3, 1), &host(1.0));
        for part in [
            "low utilization, 3 %; likely causes:",
            "waiting for data: the host has 16 usable cores and a load average of 1",
            "`kiln tune FILE --search workers`",
            "2.0 GiB of 80.0 GiB memory are used",
            "`kiln tune FILE --search best-throughput-batch`",
            "`kiln watch` shows the course",
            "next: `kiln report`",
        ] {
            assert!(said.contains(part), "{part}\n{said}");
        }
        let busy = low_utilization(&gpu(3, 1), &host(31.5));
        assert!(
            busy.contains("the host is busy, its load average is 31.5"),
            "{busy}"
        );
        let mut full = gpu(3, 1);
        full.memory.frame_buffer.used_bytes = Reading::Value(70 << 30);
        assert!(!low_utilization(&full, &host(1.0)).contains("batches too small"));
    }

    #[test]
    fn a_busy_an_idle_and_an_unread_gpu_get_no_advice_and_a_foreign_user_gets_his() {
        let here = host(1.0);
        assert_eq!(low_utilization(&gpu(31, 1), &here), "");
        assert_eq!(low_utilization(&gpu(0, 0), &here), "");
        assert_eq!(
            low_utilization(&Gpu::unread(&Absence::NotSupported), &here),
            ""
        );
        assert!(low_utilization(&gpu(0, 1), &here).contains("waiting for data"));
        let foreign = low_utilization(&gpu(5, 0), &here);
        assert!(
            foreign.contains("no compute process is visible") && !foreign.contains("waiting"),
            "{foreign}"
        );
    }
}
