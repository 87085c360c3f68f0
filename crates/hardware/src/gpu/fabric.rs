//! Links between GPUs: NVLink, and the fabric of machines with NVSwitch.

use nvml_wrapper::Device;

use super::{Section, source::DeviceSource};
use crate::{
    Absence, Reading,
    nvml::{calls, field_ids::NVLINK_COUNT},
};

/// Registration with the fabric manager, and its health.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// 1 not started, 2 in progress, 3 completed; 0 is "not supported", which is absent here.
    pub state: Reading<u64>,
    /// NVML's return code of the registration, once it is completed.
    pub status: Reading<u64>,
    pub clique_id: Reading<u64>,
    pub cluster_uuid: Reading<String>,
    pub health: FabricHealth,
    pub links: Vec<NvLink>,
}

/// Fields of the fabric's health mask; 0 is "not supported", which is absent here.
#[derive(Clone, Debug)]
pub struct FabricHealth {
    /// 1 healthy, 2 unhealthy, 3 limited capacity.
    pub summary: Reading<u64>,
    pub is_bandwidth_degraded: Reading<bool>,
    pub is_route_recovering: Reading<bool>,
    pub is_route_unhealthy: Reading<bool>,
    pub is_access_timeout_recovering: Reading<bool>,
    /// 1 none, 2 and up: what is wrong (`NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…`).
    pub incorrect_configuration: Reading<u64>,
    pub is_partition_assigned: Reading<bool>,
}

/// One NVLink.
#[derive(Clone, Debug)]
pub struct NvLink {
    pub link: u64,
    pub is_active: Reading<bool>,
    pub version: Reading<u64>,
}

/// `NVML_GPU_FABRIC_STATE_NOT_SUPPORTED`: also the answer of an NVSwitch board whose guest has no
/// fabric.
const NOT_SUPPORTED: u32 = 0;
/// `NVML_GPU_FABRIC_STATE_COMPLETED`.
const COMPLETED: u32 = 3;

/// Fields that version 2 and version 3 of NVML's structure share.
struct FabricInfo {
    uuid: [u8; 16],
    status: u32,
    clique: u32,
    state: u32,
    mask: u32,
    /// Only version 3.
    summary: Option<u8>,
}

impl Section for Fabric {
    fn read(source: &DeviceSource<'_>) -> Self {
        let found = ask(source);
        let part = |say: fn(&FabricInfo) -> Reading<u64>| found.as_ref().and_then(say);
        // The result of the registration is reported once it is completed; for a state that is
        // newer than kiln, too.
        let joined = found.as_ref().and_then(|found| match found.state {
            NOT_SUPPORTED => Reading::Absent(Absence::NotSupported),
            state if state < COMPLETED => Reading::absent("not completed"),
            _ => Reading::Value(found),
        });
        Self {
            state: part(|found| known(u64::from(found.state))),
            status: joined.as_ref().map(|found| u64::from(found.status)),
            clique_id: joined.as_ref().map(|found| u64::from(found.clique)),
            cluster_uuid: joined.map(|found| uuid(&found.uuid)),
            health: FabricHealth {
                summary: part(|found| known(u64::from(found.summary.unwrap_or(0)))),
                is_bandwidth_degraded: part(|found| bits(found, 0, 2)).map(is_true),
                is_route_recovering: part(|found| bits(found, 2, 2)).map(is_true),
                is_route_unhealthy: part(|found| bits(found, 4, 2)).map(is_true),
                is_access_timeout_recovering: part(|found| bits(found, 6, 2)).map(is_true),
                incorrect_configuration: part(|found| bits(found, 8, 4)),
                is_partition_assigned: part(|found| bits(found, 12, 2)).map(is_true),
            },
            links: links(source),
        }
    }
}

fn ask(source: &DeviceSource<'_>) -> Reading<FabricInfo> {
    let newer = source.raw(calls::fabric_v3).map(|info| FabricInfo {
        uuid: info.clusterUuid,
        status: info.status,
        clique: info.cliqueId,
        state: u32::from(info.state),
        mask: info.healthMask,
        summary: Some(info.healthSummary),
    });
    newer.or_else(|| {
        source.raw(calls::fabric_v2).map(|info| FabricInfo {
            uuid: info.clusterUuid,
            status: info.status,
            clique: info.cliqueId,
            state: u32::from(info.state),
            mask: info.healthMask,
            summary: None,
        })
    })
}

fn bits(found: &FabricInfo, shift: u32, width: u32) -> Reading<u64> {
    known(u64::from(found.mask >> shift & ((1 << width) - 1)))
}

fn known(value: u64) -> Reading<u64> {
    if value == 0 {
        Reading::Absent(Absence::NotSupported)
    } else {
        Reading::Value(value)
    }
}

/// 1 is true, 2 is false.
fn is_true(value: u64) -> bool {
    value == 1
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex = |part: &[u8]| {
        part.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    [
        &bytes[..4],
        &bytes[4..6],
        &bytes[6..8],
        &bytes[8..10],
        &bytes[10..],
    ]
    .map(hex)
    .join("-")
}

/// As many links as the driver counts; none if it does not report a number.
fn links(source: &DeviceSource<'_>) -> Vec<NvLink> {
    const MOST: u64 = 36;
    let count = source
        .unsigned(NVLINK_COUNT, 0)
        .into_value()
        .unwrap_or(0)
        .min(MOST);
    (0..count as u32)
        .map(|link| NvLink {
            link: u64::from(link),
            is_active: source.tell(|device: &Device<'_>| device.link_wrapper_for(link).is_active()),
            version: source
                .tell(|device: &Device<'_>| device.link_wrapper_for(link).version())
                .map(u64::from),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_health_mask_is_taken_apart_and_zero_is_no_answer() {
        let found = FabricInfo {
            uuid: [0; 16],
            status: 0,
            clique: 0,
            state: 3,
            mask: 0b1_0011_1001_1001,
            summary: None,
        };
        assert_eq!(bits(&found, 0, 2), Reading::Value(1));
        assert_eq!(bits(&found, 2, 2).map(is_true), Reading::Value(false));
        assert_eq!(bits(&found, 8, 4), Reading::Value(3));
        assert_eq!(
            bits(&FabricInfo { mask: 0, ..found }, 12, 2),
            Reading::Absent(Absence::NotSupported)
        );
    }

    #[test]
    fn a_uuid_has_five_groups() {
        assert_eq!(uuid(&[0x1f; 16]), "1f1f1f1f-1f1f-1f1f-1f1f-1f1f1f1f1f1f");
    }
}
