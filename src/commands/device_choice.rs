//! The device that `--device` of a command names: leased as a trial would, so that trials of this user
//! and the command do not share a GPU.

use super::{
    Status, Stop,
    machine::{visible_here, why_none_here},
    note,
};
use crate::schedule::{self, Instruments, Lease, instruments::LeasedGpu};

/// The device to compute on.
#[derive(Clone, Debug, PartialEq)]
enum ChosenDevice {
    Cpu,
    /// The first idle GPU of these.
    Gpus(Vec<LeasedGpu>),
}

/// The GPUs that may be chosen.
struct ChoosableGpus<'a> {
    visible: &'a [LeasedGpu],
    /// Reason why there are none.
    absence: &'a str,
}

/// The GPU to compute on, held until the lease is dropped; `None` for the CPU. `what` is told to those who
/// wait for the device: `` `kiln calibrate` ``.
///
/// # Errors
/// There is no such device, or none is idle.
pub(super) fn leased(
    asked: &str,
    instruments: &Instruments,
    what: &str,
) -> Result<Option<Lease>, Stop> {
    let visible = visible_here(instruments);
    let absence = why_none_here(instruments);
    match chosen(
        asked,
        &ChoosableGpus {
            visible: &visible,
            absence: &absence,
        },
    )? {
        ChosenDevice::Gpus(gpus) => schedule::take_first_idle(
            &gpus,
            instruments,
            &schedule::locks_folder(),
            what,
        )
        .map(Some)
        .map_err(|why| {
            Stop::new(
                Status::CannotRun,
                format!(
                    "no device is idle: {why}; try again later, or name another with `--device`"
                ),
            )
        }),
        ChosenDevice::Cpu => {
            if asked == "auto" {
                note(&format!("{absence}; this is done on the CPU"));
            }
            Ok(None)
        }
    }
}

fn chosen(asked: &str, offer: &ChoosableGpus) -> Result<ChosenDevice, Stop> {
    let is_asked = |gpu: &&LeasedGpu| gpu.is_named(asked) || asked.parse() == Ok(gpu.index);
    match asked {
        "cpu" => return Ok(ChosenDevice::Cpu),
        "auto" if offer.visible.is_empty() => return Ok(ChosenDevice::Cpu),
        "auto" => return Ok(ChosenDevice::Gpus(offer.visible.to_vec())),
        _ => {}
    }
    if asked.parse::<u32>().is_err()
        && !["GPU-", "MIG-"]
            .iter()
            .any(|start| asked.starts_with(start))
    {
        return Err(Stop::bad_input(format!(
            "`--device {asked}` is not a device; give `cpu`, `auto`, an index or a UUID (`GPU-…`, \
             `MIG-…`)"
        )));
    }
    offer
        .visible
        .iter()
        .find(is_asked)
        .map(|gpu| ChosenDevice::Gpus(vec![gpu.clone()]))
        .ok_or_else(|| {
            let listed: Vec<String> = offer
                .visible
                .iter()
                .map(|gpu| format!("{} ({})", gpu.index, gpu.uuid))
                .collect();
            let have = if listed.is_empty() {
                offer.absence.to_owned()
            } else {
                format!("there are {}", listed.join(", "))
            };
            let text = format!(
                "`--device {asked}` is not here: {have}; give `cpu`, `auto`, an index or a UUID"
            );
            Stop::new(Status::CannotRun, text)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, uuid: &str) -> LeasedGpu {
        LeasedGpu {
            index,
            uuid: uuid.to_owned(),
            name: "NVIDIA H200".to_owned(),
            memory_total_bytes: None,
            ..LeasedGpu::default()
        }
    }

    #[test]
    fn a_device_is_chosen_by_word_index_or_uuid_among_those_visible() {
        // GPU 0 is hidden: indices are still those of nvidia-smi.
        let visible = [gpu(1, "GPU-b"), gpu(2, "GPU-c")];
        let of = |asked: &str, visible: &[LeasedGpu]| {
            chosen(
                asked,
                &ChoosableGpus {
                    visible,
                    absence: "no NVIDIA driver found",
                },
            )
        };
        assert_eq!(
            of("auto", &visible).unwrap(),
            ChosenDevice::Gpus(visible.to_vec())
        );
        assert_eq!(of("auto", &[]).unwrap(), ChosenDevice::Cpu);
        assert_eq!(of("cpu", &visible).unwrap(), ChosenDevice::Cpu);
        assert_eq!(
            of("1", &visible).unwrap(),
            ChosenDevice::Gpus(vec![visible[0].clone()])
        );
        assert_eq!(
            of("GPU-c", &visible).unwrap(),
            ChosenDevice::Gpus(vec![visible[1].clone()])
        );
        let stop = of("0", &visible).unwrap_err();
        assert_eq!(stop.status, Status::CannotRun);
        assert!(
            stop.message
                .contains("`--device 0` is not here: there are 1 (GPU-b), 2 (GPU-c)"),
            "{}",
            stop.message
        );
        assert!(
            of("0", &[])
                .unwrap_err()
                .message
                .contains("no NVIDIA driver found")
        );
        assert_eq!(of("foo", &visible).unwrap_err().status, Status::BadInput);
    }
}
