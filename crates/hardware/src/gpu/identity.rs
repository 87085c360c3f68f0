//! Identity of a board: names, numbers, firmware, and its place in a larger machine.

use nvml_wrapper::{Device, enum_wrappers::device::InfoRom, error::NvmlError};

use super::{Section, source::DeviceSource};
use crate::{
    Absence, Nvml, Reading,
    nvml::{calls, reading_of},
};

/// The driver's versions; the same for all GPUs of a machine.
#[derive(Clone, Debug)]
pub struct Driver {
    /// Such as `590.48.01`.
    pub version: Reading<String>,
    /// The newest CUDA this driver runs, such as `13.1`.
    pub cuda: Reading<String>,
    pub nvml: Reading<String>,
    /// GPUs in this machine.
    pub gpu_count: Reading<u64>,
}

impl Section for Driver {
    fn read(source: &DeviceSource<'_>) -> Self {
        Self {
            version: source.library(Nvml::driver_version),
            cuda: source.library(Nvml::cuda_version),
            nvml: source.library(Nvml::nvml_version),
            gpu_count: source
                .library(|nvml| reading_of(nvml.library().device_count()))
                .map(u64::from),
        }
    }
}

/// Names and numbers of the board and its chip.
#[derive(Clone, Debug)]
pub struct BoardIdentity {
    pub name: Reading<String>,
    /// nvidia-smi's word, or `brand 23` for one that is newer than kiln.
    pub brand: Reading<String>,
    /// Such as `Hopper`, or `architecture 13`.
    pub architecture: Reading<String>,
    /// NVML's number of the architecture; only used to tell how old boards label their errors.
    pub architecture_number: Reading<u64>,
    /// Such as `9.0`.
    pub compute_capability: Reading<String>,
    pub cuda_cores: Reading<u64>,
    pub memory_bus_bits: Reading<u64>,
    pub uuid: Reading<String>,
    pub serial_number: Reading<String>,
    /// The number of `/dev/nvidia<N>`.
    pub minor_number: Reading<u64>,
    pub board_id: Reading<u64>,
    pub is_multi_gpu_board: Reading<bool>,
    pub board_part_number: Reading<String>,
    /// A number that names one chip.
    pub pdi: Reading<u64>,
    pub hostname: Reading<String>,
}

impl Section for BoardIdentity {
    fn read(source: &DeviceSource<'_>) -> Self {
        let architecture = source.raw(calls::architecture);
        Self {
            name: source.tell(Device::name),
            brand: source.raw(calls::brand).map(brand),
            architecture: architecture.clone().map(architecture_name),
            architecture_number: architecture.map(u64::from),
            compute_capability: source
                .tell(Device::cuda_compute_capability)
                .map(|found| format!("{}.{}", found.major, found.minor)),
            cuda_cores: source.tell(Device::num_cores).map(u64::from),
            memory_bus_bits: source.tell(Device::memory_bus_width).map(u64::from),
            uuid: source.tell(Device::uuid),
            serial_number: source.tell(Device::serial),
            minor_number: source.tell(Device::minor_number).map(u64::from),
            board_id: source.tell(Device::board_id).map(u64::from),
            is_multi_gpu_board: source.tell(Device::is_multi_gpu_board),
            board_part_number: source.tell(Device::board_part_number),
            pdi: source.raw(calls::pdi).map(|pdi| pdi.value),
            hostname: source.raw(calls::hostname),
        }
    }
}

/// `nvmlBrandType_t`, in the words of nvidia-smi.
fn brand(number: u32) -> String {
    let known = match number {
        0 => "Unknown",
        1 => "Quadro",
        2 => "Tesla",
        3 => "NVS",
        4 => "GRID",
        5 => "GeForce",
        6 => "Titan",
        7 => "NVIDIA Virtual Applications",
        8 => "NVIDIA Virtual PC",
        9 => "NVIDIA Virtual Compute Server",
        10 => "NVIDIA RTX Virtual Workstation",
        11 => "NVIDIA Cloud Gaming",
        12 => "Quadro RTX",
        13 => "NVIDIA RTX",
        14 => "NVIDIA",
        15 => "GeForce RTX",
        16 => "Titan RTX",
        newer => return format!("brand {newer}"),
    };
    known.to_owned()
}

/// `NVML_DEVICE_ARCH_…` of nvml.h 13.3.
fn architecture_name(number: u32) -> String {
    let known = match number {
        2 => "Kepler",
        3 => "Maxwell",
        4 => "Pascal",
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        13 => "Rubin",
        u32::MAX => "Unknown",
        newer => return format!("architecture {newer}"),
    };
    known.to_owned()
}

/// The board's place in a rack machine. Some boards elsewhere answer with zeros, most not at all.
#[derive(Clone, Debug)]
pub struct Platform {
    pub chassis_serial_number: Reading<String>,
    pub slot_number: Reading<u64>,
    pub tray_index: Reading<u64>,
    pub host_id: Reading<u64>,
    /// 0 direct, 1 through a switch.
    pub peer_type: Reading<u64>,
    /// From its own call, which boards outside of racks answer, too.
    pub module_id: Reading<u64>,
    pub fabric_guid: Reading<u64>,
}

impl Platform {
    /// Whether the board has a place. One that has none may answer with an empty structure, whose
    /// host is the first.
    pub fn is_known(&self) -> bool {
        let numbers = [
            &self.slot_number,
            &self.tray_index,
            &self.peer_type,
            &self.fabric_guid,
        ];
        let has_number = numbers
            .iter()
            .any(|number| number.value().is_some_and(|number| *number > 0));
        let has_host = self.host_id.value().is_some_and(|host| *host > 1);
        let has_chassis = self
            .chassis_serial_number
            .value()
            .is_none_or(|serial| !serial.is_empty());
        has_number || has_host || has_chassis
    }
}

/// Value in a structure that means "no slot or tray".
const NO_SLOT: u8 = 0xff;

impl Section for Platform {
    fn read(source: &DeviceSource<'_>) -> Self {
        // Version 1 has the same places under other names.
        let found = source
            .raw(calls::platform)
            .or_else(|| source.raw(calls::platform_v1));
        let number = |number: u8| match number {
            NO_SLOT => Reading::Absent(Absence::NotSupported),
            number => Reading::Value(u64::from(number)),
        };
        Self {
            chassis_serial_number: found.as_ref().map(|found| text(&found.chassisSerialNumber)),
            slot_number: found.as_ref().and_then(|found| number(found.slotNumber)),
            tray_index: found.as_ref().and_then(|found| number(found.trayIndex)),
            host_id: found.as_ref().and_then(|found| number(found.hostId)),
            peer_type: found.as_ref().and_then(|found| number(found.peerType)),
            module_id: source.raw(calls::module_id).map(u64::from),
            fabric_guid: found.map(|found| guid(&found.ibGuid)),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// The GUID is a 64-bit number in the last eight of sixteen bytes, or in the first where those are
/// zero; most significant first.
fn guid(bytes: &[u8; 16]) -> u64 {
    let number = |half: &[u8]| {
        half.iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (first, last) = bytes.split_at(8);
    if last.iter().any(|byte| *byte != 0) {
        number(last)
    } else {
        number(first)
    }
}

/// Versions of what is stored on the board.
#[derive(Clone, Debug)]
pub struct Firmware {
    pub vbios: Reading<String>,
    pub inforom_image: Reading<String>,
    pub inforom_oem: Reading<String>,
    pub inforom_ecc: Reading<String>,
    pub inforom_power: Reading<String>,
    /// Whether the inforom's checksums fit.
    pub is_inforom_valid: Reading<bool>,
    /// Time of the last write to the board's black box: microseconds of Unix time.
    pub bbx_flush_unix_microseconds: Reading<u64>,
    pub bbx_flush_microseconds: Reading<u64>,
    /// Seconds that a driver was loaded over the board's life.
    pub bbx_seconds: Reading<u64>,
    pub gsp_version: Reading<String>,
    pub is_gsp_enabled: Reading<bool>,
    pub is_gsp_default: Reading<bool>,
}

impl Section for Firmware {
    fn read(source: &DeviceSource<'_>) -> Self {
        let flush = source.raw(calls::bbx_flush);
        let object = |object: InfoRom| source.tell(|device| device.info_rom_version(object));
        let gsp = |part: fn(&nvml_wrapper::structs::device::GspFirmwareMode) -> bool| {
            source
                .tell(Device::gsp_firmware_mode)
                .map(|mode| part(&mode))
        };
        Self {
            vbios: source.tell(Device::vbios_version),
            inforom_image: source.tell(Device::info_rom_image_version),
            inforom_oem: object(InfoRom::OEM),
            inforom_ecc: object(InfoRom::ECC),
            inforom_power: object(InfoRom::Power),
            is_inforom_valid: source.tell(validity),
            bbx_flush_unix_microseconds: flush.as_ref().map(|(time, _)| *time),
            bbx_flush_microseconds: flush.map(|(_, duration)| duration),
            bbx_seconds: source.raw(calls::bbx_seconds),
            gsp_version: source.tell(Device::gsp_firmware_version),
            is_gsp_enabled: gsp(|mode| mode.enabled),
            is_gsp_default: gsp(|mode| mode.default),
        }
    }
}

fn validity(device: &Device<'_>) -> Result<bool, NvmlError> {
    match device.validate_info_rom() {
        Ok(()) => Ok(true),
        Err(NvmlError::CorruptedInfoROM) => Ok(false),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_chip_keeps_its_number() {
        assert_eq!(
            (architecture_name(9), architecture_name(14), brand(23)),
            ("Hopper".into(), "architecture 14".into(), "brand 23".into())
        );
    }

    #[test]
    fn a_guid_is_read_from_either_half() {
        let mut bytes = [0; 16];
        bytes[15] = 2;
        assert_eq!(guid(&bytes), 2);
        bytes[15] = 0;
        bytes[7] = 5;
        assert_eq!(guid(&bytes), 5);
    }
}
