//! Maps cells to the calls that answer them: the simple cases, one line each. Cells that need more
//! of the page are in `invert`.

use super::words::{
    ADDRESSING, ARCHITECTURES, BRANDS, COMPUTE_MODES, DRIVER_MODELS, HOST_VGPU, OPERATION_MODES,
    RECOVERY, VIRTUALIZATION, flag, number, whole, word,
};
use serde_json::Value;

/// The way a cell is read.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// Yes and no in the words of the page, 1 and 0 to NVML.
    Flag,
    Whole,
    /// A number times this: W to mW, and so on.
    Times(f64),
    Signed,
    /// A number with a fraction.
    Float,
    Word(&'static [(&'static str, u64)]),
}

impl Kind {
    /// `None` where the cell is not of this kind.
    pub(super) fn read(self, cell: &str) -> Option<Value> {
        match self {
            Self::Text => Some(Value::from(cell)),
            Self::Flag => flag(cell).map(Value::from),
            Self::Whole => whole(cell).map(Value::from),
            Self::Times(factor) => {
                number(cell).map(|number| Value::from((number * factor).round() as u64))
            }
            Self::Signed => number(cell).map(|number| Value::from(number.round() as i64)),
            Self::Float => number(cell).map(Value::from),
            Self::Word(table) => word(cell, table).map(Value::from),
        }
    }
}

const MILLI: Kind = Kind::Times(1000.0);

/// Labels (the first that is there), kind, calls.
pub(super) const CALLS: &[(&[&str], Kind, &[&str])] = &[
    (&["Product Name"], Kind::Text, &["nvmlDeviceGetName"]),
    (
        &["Product Brand"],
        Kind::Word(BRANDS),
        &["nvmlDeviceGetBrand"],
    ),
    (
        &["Product Architecture"],
        Kind::Word(ARCHITECTURES),
        &["nvmlDeviceGetArchitecture"],
    ),
    (
        &["Display Attached", "Display Mode"],
        Kind::Flag,
        &["nvmlDeviceGetDisplayMode"],
    ),
    (
        &["Display Active"],
        Kind::Flag,
        &["nvmlDeviceGetDisplayActive"],
    ),
    (
        &["Persistence Mode"],
        Kind::Flag,
        &["nvmlDeviceGetPersistenceMode"],
    ),
    (
        &["Accounting Mode"],
        Kind::Flag,
        &["nvmlDeviceGetAccountingMode"],
    ),
    (
        &["Accounting Mode Buffer Size"],
        Kind::Whole,
        &["nvmlDeviceGetAccountingBufferSize"],
    ),
    (&["Serial Number"], Kind::Text, &["nvmlDeviceGetSerial"]),
    (&["GPU UUID"], Kind::Text, &["nvmlDeviceGetUUID"]),
    (
        &["Minor Number"],
        Kind::Whole,
        &["nvmlDeviceGetMinorNumber"],
    ),
    (
        &["VBIOS Version"],
        Kind::Text,
        &["nvmlDeviceGetVbiosVersion"],
    ),
    (
        &["MultiGPU Board"],
        Kind::Flag,
        &["nvmlDeviceGetMultiGpuBoard"],
    ),
    (&["Board ID"], Kind::Whole, &["nvmlDeviceGetBoardId"]),
    (
        &["Board Part Number"],
        Kind::Text,
        &["nvmlDeviceGetBoardPartNumber"],
    ),
    (
        &["Platform Info > Module Id", "Module ID"],
        Kind::Whole,
        &["nvmlDeviceGetModuleId"],
    ),
    (
        &["Inforom Version > Image Version"],
        Kind::Text,
        &["nvmlDeviceGetInforomImageVersion"],
    ),
    (
        &["Inforom Version > OEM Object"],
        Kind::Text,
        &["nvmlDeviceGetInforomVersion/0"],
    ),
    (
        &["Inforom Version > ECC Object"],
        Kind::Text,
        &["nvmlDeviceGetInforomVersion/1"],
    ),
    (
        &["Inforom Version > Power Management Object"],
        Kind::Text,
        &["nvmlDeviceGetInforomVersion/2"],
    ),
    (
        &["(Inforom Valid)"],
        Kind::Flag,
        &["nvmlDeviceValidateInforom"],
    ),
    (
        &[
            "GPU Virtualization Mode > Virtualization Mode",
            "GPU Virtualization Mode > Virtualization mode",
        ],
        Kind::Word(VIRTUALIZATION),
        &["nvmlDeviceGetVirtualizationMode"],
    ),
    (
        &["GPU Virtualization Mode > Host VGPU Mode"],
        Kind::Word(HOST_VGPU),
        &["nvmlDeviceGetHostVgpuMode"],
    ),
    (
        &["GSP Firmware Version"],
        Kind::Text,
        &["nvmlDeviceGetGspFirmwareVersion"],
    ),
    (
        &["PCI > GPU Link Info > PCIe Generation > Max"],
        Kind::Whole,
        &["nvmlDeviceGetMaxPcieLinkGeneration"],
    ),
    (
        &["PCI > GPU Link Info > PCIe Generation > Current"],
        Kind::Whole,
        &["nvmlDeviceGetCurrPcieLinkGeneration"],
    ),
    (
        &["PCI > GPU Link Info > PCIe Generation > Device Max"],
        Kind::Whole,
        &["nvmlDeviceGetGpuMaxPcieLinkGeneration"],
    ),
    (
        &["PCI > GPU Link Info > Link Width > Max"],
        Kind::Whole,
        &["nvmlDeviceGetMaxPcieLinkWidth"],
    ),
    (
        &["PCI > GPU Link Info > Link Width > Current"],
        Kind::Whole,
        &["nvmlDeviceGetCurrPcieLinkWidth"],
    ),
    (
        &["PCI > Replays Since Reset"],
        Kind::Whole,
        &["nvmlDeviceGetPcieReplayCounter"],
    ),
    (
        &["PCI > Tx Throughput"],
        Kind::Whole,
        &["nvmlDeviceGetPcieThroughput/0"],
    ),
    (
        &["PCI > Rx Throughput"],
        Kind::Whole,
        &["nvmlDeviceGetPcieThroughput/1"],
    ),
    (
        &["Fan Speed"],
        Kind::Whole,
        &["nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2/0"],
    ),
    (
        &["(Clocks Event Reasons Supported)"],
        Kind::Whole,
        &[
            "nvmlDeviceGetSupportedClocksEventReasons",
            "nvmlDeviceGetSupportedClocksThrottleReasons",
        ],
    ),
    (
        &["Compute Mode"],
        Kind::Word(COMPUTE_MODES),
        &["nvmlDeviceGetComputeMode"],
    ),
    (
        &["Temperature > GPU Current Temp"],
        Kind::Whole,
        &["nvmlDeviceGetTemperature/0", "nvmlDeviceGetTemperatureV/0"],
    ),
    (
        &[
            "Temperature > GPU Shutdown Temp Specification",
            "Temperature > GPU Shutdown Temp",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTemperatureThreshold/0"],
    ),
    (
        &[
            "Temperature > GPU Slowdown Temp Specification",
            "Temperature > GPU Slowdown Temp",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTemperatureThreshold/1"],
    ),
    (
        &[
            "Temperature > Memory Max Operating Temp Specification",
            "Temperature > Memory Max Operating Temp",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTemperatureThreshold/2"],
    ),
    (
        &[
            "Temperature > GPU Max Operating Temp Specification",
            "Temperature > GPU Max Operating Temp",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTemperatureThreshold/3"],
    ),
    (
        &[
            "Temperature > GPU Target Temperature Specification",
            "Temperature > GPU Target Temperature",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTemperatureThreshold/5"],
    ),
    (
        &["Power Readings > Power Management", "(Power Management)"],
        Kind::Flag,
        &["nvmlDeviceGetPowerManagementMode"],
    ),
    (
        &[
            "GPU Power Readings > GPU Ceiling Power Limit > Current Power Limit",
            "GPU Power Readings > Current Power Limit",
            "Power Readings > Enforced Power Limit",
        ],
        MILLI,
        &["nvmlDeviceGetEnforcedPowerLimit"],
    ),
    (
        &[
            "GPU Power Readings > GPU Ceiling Power Limit > Requested Power Limit",
            "GPU Power Readings > Requested Power Limit",
            "Power Readings > Power Limit",
        ],
        MILLI,
        &["nvmlDeviceGetPowerManagementLimit"],
    ),
    (
        &[
            "GPU Power Readings > GPU Ceiling Power Limit > Default Power Limit",
            "GPU Power Readings > Default Power Limit",
            "Power Readings > Default Power Limit",
        ],
        MILLI,
        &["nvmlDeviceGetPowerManagementDefaultLimit"],
    ),
    (
        &["Clocks > Graphics"],
        Kind::Whole,
        &["nvmlDeviceGetClockInfo/0"],
    ),
    (&["Clocks > SM"], Kind::Whole, &["nvmlDeviceGetClockInfo/1"]),
    (
        &["Clocks > Memory"],
        Kind::Whole,
        &["nvmlDeviceGetClockInfo/2"],
    ),
    (
        &["Clocks > Video"],
        Kind::Whole,
        &["nvmlDeviceGetClockInfo/3"],
    ),
    (
        &["Applications Clocks > Graphics"],
        Kind::Whole,
        &["nvmlDeviceGetApplicationsClock/0"],
    ),
    (
        &["Applications Clocks > Memory"],
        Kind::Whole,
        &["nvmlDeviceGetApplicationsClock/2"],
    ),
    (
        &["Default Applications Clocks > Graphics"],
        Kind::Whole,
        &["nvmlDeviceGetDefaultApplicationsClock/0"],
    ),
    (
        &["Default Applications Clocks > Memory"],
        Kind::Whole,
        &["nvmlDeviceGetDefaultApplicationsClock/2"],
    ),
    (
        &["Max Clocks > Graphics"],
        Kind::Whole,
        &["nvmlDeviceGetMaxClockInfo/0"],
    ),
    (
        &["Max Clocks > SM"],
        Kind::Whole,
        &["nvmlDeviceGetMaxClockInfo/1"],
    ),
    (
        &["Max Clocks > Memory"],
        Kind::Whole,
        &["nvmlDeviceGetMaxClockInfo/2"],
    ),
    (
        &["Max Clocks > Video"],
        Kind::Whole,
        &["nvmlDeviceGetMaxClockInfo/3"],
    ),
    (
        &["Max Customer Boost Clocks > Graphics"],
        Kind::Whole,
        &["nvmlDeviceGetMaxCustomerBoostClock/0"],
    ),
    (
        &[
            "Retired Pages > Pending Page Blacklist",
            "Retired Pages > Pending Page Retirement",
        ],
        Kind::Flag,
        &["nvmlDeviceGetRetiredPagesPendingStatus"],
    ),
    (&["(Hostname)"], Kind::Text, &["nvmlDeviceGetHostname_v1"]),
    (
        &["ECC Errors > Volatile > SRAM Correctable"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/7"],
    ),
    (
        &["ECC Errors > Aggregate > SRAM Correctable"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/7"],
    ),
    (
        &[
            "ECC Errors > Volatile > DRAM Correctable",
            "ECC Errors > Volatile > Single Bit > Device Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/2"],
    ),
    (
        &[
            "ECC Errors > Aggregate > DRAM Correctable",
            "ECC Errors > Aggregate > Single Bit > Device Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/2"],
    ),
    (
        &[
            "ECC Errors > Volatile > DRAM Uncorrectable",
            "ECC Errors > Volatile > Double Bit > Device Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/2"],
    ),
    (
        &[
            "ECC Errors > Aggregate > DRAM Uncorrectable",
            "ECC Errors > Aggregate > Double Bit > Device Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/2"],
    ),
    (
        &[
            "(ECC 0/0/0)",
            "ECC Errors > Volatile > Single Bit > L1 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/0"],
    ),
    (
        &[
            "(ECC 0/0/1)",
            "ECC Errors > Volatile > Single Bit > L2 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/1"],
    ),
    (
        &[
            "(ECC 0/0/3)",
            "ECC Errors > Volatile > Single Bit > Register File",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/3"],
    ),
    (
        &[
            "(ECC 0/0/4)",
            "ECC Errors > Volatile > Single Bit > Texture Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/4"],
    ),
    (
        &["ECC Errors > Volatile > Single Bit > Texture Shared"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/5"],
    ),
    (
        &["(ECC 0/0/6)", "ECC Errors > Volatile > Single Bit > CBU"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/0/6"],
    ),
    (
        &[
            "(ECC 0/1/0)",
            "ECC Errors > Aggregate > Single Bit > L1 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/0"],
    ),
    (
        &[
            "(ECC 0/1/1)",
            "ECC Errors > Aggregate > Single Bit > L2 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/1"],
    ),
    (
        &[
            "(ECC 0/1/3)",
            "ECC Errors > Aggregate > Single Bit > Register File",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/3"],
    ),
    (
        &[
            "(ECC 0/1/4)",
            "ECC Errors > Aggregate > Single Bit > Texture Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/4"],
    ),
    (
        &["ECC Errors > Aggregate > Single Bit > Texture Shared"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/5"],
    ),
    (
        &["(ECC 0/1/6)", "ECC Errors > Aggregate > Single Bit > CBU"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/0/1/6"],
    ),
    (
        &[
            "(ECC 1/0/0)",
            "ECC Errors > Volatile > Double Bit > L1 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/0"],
    ),
    (
        &[
            "(ECC 1/0/1)",
            "ECC Errors > Volatile > Double Bit > L2 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/1"],
    ),
    (
        &[
            "(ECC 1/0/3)",
            "ECC Errors > Volatile > Double Bit > Register File",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/3"],
    ),
    (
        &[
            "(ECC 1/0/4)",
            "ECC Errors > Volatile > Double Bit > Texture Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/4"],
    ),
    (
        &["ECC Errors > Volatile > Double Bit > Texture Shared"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/5"],
    ),
    (
        &["(ECC 1/0/6)", "ECC Errors > Volatile > Double Bit > CBU"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/0/6"],
    ),
    (
        &[
            "(ECC 1/1/0)",
            "ECC Errors > Aggregate > Double Bit > L1 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/0"],
    ),
    (
        &[
            "(ECC 1/1/1)",
            "ECC Errors > Aggregate > Double Bit > L2 Cache",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/1"],
    ),
    (
        &[
            "(ECC 1/1/3)",
            "ECC Errors > Aggregate > Double Bit > Register File",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/3"],
    ),
    (
        &[
            "(ECC 1/1/4)",
            "ECC Errors > Aggregate > Double Bit > Texture Memory",
        ],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/4"],
    ),
    (
        &["ECC Errors > Aggregate > Double Bit > Texture Shared"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/5"],
    ),
    (
        &["(ECC 1/1/6)", "ECC Errors > Aggregate > Double Bit > CBU"],
        Kind::Whole,
        &["nvmlDeviceGetMemoryErrorCounter/1/1/6"],
    ),
    (
        &[
            "(ECC total 0/0)",
            "ECC Errors > Volatile > Single Bit > Total",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTotalEccErrors/0/0"],
    ),
    (
        &[
            "(ECC total 0/1)",
            "ECC Errors > Aggregate > Single Bit > Total",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTotalEccErrors/0/1"],
    ),
    (
        &[
            "(ECC total 1/0)",
            "ECC Errors > Volatile > Double Bit > Total",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTotalEccErrors/1/0"],
    ),
    (
        &[
            "(ECC total 1/1)",
            "ECC Errors > Aggregate > Double Bit > Total",
        ],
        Kind::Whole,
        &["nvmlDeviceGetTotalEccErrors/1/1"],
    ),
    (
        &["(vGPU 0)"],
        Kind::Flag,
        &["nvmlDeviceGetVgpuCapabilities/0"],
    ),
    (
        &["(vGPU 1)"],
        Kind::Flag,
        &["nvmlDeviceGetVgpuCapabilities/1"],
    ),
    (
        &["(vGPU 2)"],
        Kind::Flag,
        &["nvmlDeviceGetVgpuCapabilities/2"],
    ),
    (
        &["(vGPU 9)"],
        Kind::Flag,
        &["nvmlDeviceGetVgpuCapabilities/9"],
    ),
    (
        &["(vGPU 10)"],
        Kind::Flag,
        &["nvmlDeviceGetVgpuCapabilities/10"],
    ),
    (
        &["(vGPU 11)"],
        Kind::Flag,
        &["nvmlDeviceGetVgpuCapabilities/11"],
    ),
];

/// Field ids that are the same in every driver: labels, kind, `id/scope`, value type
/// (`nvmlValueType_t`).
pub(super) const FIELDS: &[(&[&str], Kind, &str, u64)] = &[
    (
        &["Temperature > Memory Current Temp"],
        Kind::Whole,
        "82/0",
        1,
    ),
    (&["PCI > Replays Since Reset"], Kind::Whole, "94/0", 1),
    (&["PCI > Replay Number Rollovers"], Kind::Whole, "95/0", 1),
    (
        &["Remapped Rows > Correctable Error"],
        Kind::Whole,
        "142/0",
        1,
    ),
    (
        &["Remapped Rows > Uncorrectable Error"],
        Kind::Whole,
        "143/0",
        1,
    ),
    (&["Remapped Rows > Pending"], Kind::Flag, "144/0", 1),
    (
        &["Remapped Rows > Remapping Failure Occurred"],
        Kind::Flag,
        "145/0",
        1,
    ),
    (
        &["Remapped Rows > Inactive Correctable Error"],
        Kind::Whole,
        "301/0",
        1,
    ),
    (
        &["Remapped Rows > Inactive Uncorrectable Error"],
        Kind::Whole,
        "302/0",
        1,
    ),
    (
        &["GPU Power Readings > Average Power Draw"],
        MILLI,
        "185/0",
        1,
    ),
    (
        &["GPU Power Readings > Instantaneous Power Draw"],
        MILLI,
        "186/0",
        1,
    ),
    (
        &[
            "GPU Power Readings > Min Power Limit",
            "Power Readings > Min Power Limit",
        ],
        MILLI,
        "187/0",
        1,
    ),
    (
        &[
            "GPU Power Readings > Max Power Limit",
            "Power Readings > Max Power Limit",
        ],
        MILLI,
        "188/0",
        1,
    ),
    (
        &[
            "GPU Power Readings > GPU Ceiling Power Limit > Default Power Limit",
            "GPU Power Readings > Default Power Limit",
            "Power Readings > Default Power Limit",
        ],
        MILLI,
        "189/0",
        1,
    ),
    (
        &[
            "GPU Power Readings > GPU Ceiling Power Limit > Current Power Limit",
            "GPU Power Readings > Current Power Limit",
            "Power Readings > Enforced Power Limit",
        ],
        MILLI,
        "190/0",
        1,
    ),
    (
        &[
            "GPU Power Readings > GPU Ceiling Power Limit > Requested Power Limit",
            "GPU Power Readings > Requested Power Limit",
            "Power Readings > Power Limit",
        ],
        MILLI,
        "192/0",
        1,
    ),
    (
        &[
            "Module Power Readings > Average Power Draw",
            "Module Power Readings > Power Draw",
        ],
        MILLI,
        "185/1",
        1,
    ),
    (
        &["Module Power Readings > Instantaneous Power Draw"],
        MILLI,
        "186/1",
        1,
    ),
    (
        &["Module Power Readings > Min Power Limit"],
        MILLI,
        "187/1",
        1,
    ),
    (
        &["Module Power Readings > Max Power Limit"],
        MILLI,
        "188/1",
        1,
    ),
    (
        &["Module Power Readings > Default Power Limit"],
        MILLI,
        "189/1",
        1,
    ),
    (
        &["Module Power Readings > Current Power Limit"],
        MILLI,
        "190/1",
        1,
    ),
    (
        &["Module Power Readings > Requested Power Limit"],
        MILLI,
        "192/1",
        1,
    ),
    (
        &[
            "GPU Memory Power Readings > Average Power Draw",
            "GPU Memory Power Readings > Power Draw",
        ],
        MILLI,
        "185/2",
        1,
    ),
    (
        &["GPU Memory Power Readings > Instantaneous Power Draw"],
        MILLI,
        "186/2",
        1,
    ),
    (
        &["GPU Power Readings > GPU Base Power > Default Base Power"],
        MILLI,
        "189/3",
        1,
    ),
    (
        &["GPU Power Readings > GPU Base Power > Current Base Power"],
        MILLI,
        "190/3",
        1,
    ),
    (
        &["GPU Power Readings > GPU Base Power > Requested Base Power"],
        MILLI,
        "192/3",
        1,
    ),
    (
        &[
            "Temperature > GPU Shutdown T.Limit Temp Specification",
            "Temperature > GPU Shutdown T.Limit Temp",
        ],
        Kind::Signed,
        "193/0",
        5,
    ),
    (
        &[
            "Temperature > GPU Slowdown T.Limit Temp Specification",
            "Temperature > GPU Slowdown T.Limit Temp",
        ],
        Kind::Signed,
        "194/0",
        5,
    ),
    (
        &[
            "Temperature > Memory Max Operating T.Limit Temp Specification",
            "Temperature > Memory Max Operating T.Limit Temp",
        ],
        Kind::Signed,
        "195/0",
        5,
    ),
    (
        &[
            "Temperature > GPU Max Operating T.Limit Temp Specification",
            "Temperature > GPU Max Operating T.Limit Temp",
        ],
        Kind::Signed,
        "196/0",
        5,
    ),
    (&["GPU Recovery Action"], Kind::Word(RECOVERY), "230/0", 1),
    (&["EDPp Multiplier"], Kind::Float, "274/0", 0),
    (&["(Power Smoothing 275)"], Kind::Whole, "275/0", 1),
    (&["(Power Smoothing 276)"], Kind::Whole, "276/0", 1),
    (&["(Power Smoothing 277)"], Kind::Whole, "277/0", 1),
    (&["(Power Smoothing 278)"], Kind::Whole, "278/0", 1),
    (&["(Power Smoothing 279)"], Kind::Whole, "279/0", 1),
    (&["(Power Smoothing 280)"], Kind::Flag, "280/0", 1),
    (&["(Power Smoothing 281)"], Kind::Whole, "281/0", 1),
    (&["(Power Smoothing 282)"], Kind::Whole, "282/0", 1),
    (&["(Power Smoothing 283)"], Kind::Whole, "283/0", 1),
    (&["(Power Smoothing 284)"], Kind::Whole, "284/0", 1),
    (&["(Power Smoothing 285)"], Kind::Whole, "285/0", 1),
    (&["(Power Smoothing 286)"], Kind::Whole, "286/0", 1),
    (&["(Power Smoothing 287)"], Kind::Whole, "287/0", 1),
    (&["(Power Smoothing 288)"], Kind::Whole, "288/0", 1),
    (&["(Power Smoothing 300)"], Kind::Flag, "300/0", 1),
    // The printed unit is the microsecond, NVML's the nanosecond.
    (
        &["Clocks Event Reasons Counters > SW Power Capping"],
        Kind::Times(1000.0),
        "74/0",
        3,
    ),
    (
        &["Clocks Event Reasons Counters > Sync Boost"],
        Kind::Times(1000.0),
        "76/0",
        3,
    ),
];

/// Calls that answer several numbers at once: a label and a kind for each.
pub(super) const LISTS: &[(&str, &[(&str, Kind)])] = &[
    (
        "nvmlDeviceGetMigMode",
        &[
            ("MIG Mode > Current", Kind::Flag),
            ("MIG Mode > Pending", Kind::Flag),
        ],
    ),
    (
        "nvmlDeviceGetDriverModel_v2",
        &[
            ("Driver Model > Current", Kind::Word(DRIVER_MODELS)),
            ("Driver Model > Pending", Kind::Word(DRIVER_MODELS)),
        ],
    ),
    (
        "nvmlDeviceGetDriverModel",
        &[
            ("Driver Model > Current", Kind::Word(DRIVER_MODELS)),
            ("Driver Model > Pending", Kind::Word(DRIVER_MODELS)),
        ],
    ),
    (
        "nvmlDeviceGetGpuOperationMode",
        &[
            ("GPU Operation Mode > Current", Kind::Word(OPERATION_MODES)),
            ("GPU Operation Mode > Pending", Kind::Word(OPERATION_MODES)),
        ],
    ),
    (
        "nvmlDeviceGetEccMode",
        &[
            ("ECC Mode > Current", Kind::Flag),
            ("ECC Mode > Pending", Kind::Flag),
        ],
    ),
    (
        "nvmlDeviceGetEccMode",
        &[
            ("Ecc Mode > Current", Kind::Flag),
            ("Ecc Mode > Pending", Kind::Flag),
        ],
    ),
    (
        "nvmlDeviceGetDramEncryptionMode",
        &[
            ("DRAM Encryption Mode > Current", Kind::Flag),
            ("DRAM Encryption Mode > Pending", Kind::Flag),
        ],
    ),
    (
        "nvmlDeviceGetAutoBoostedClocksEnabled",
        &[
            ("Clock Policy > Auto Boost", Kind::Flag),
            ("Clock Policy > Auto Boost Default", Kind::Flag),
        ],
    ),
    (
        "nvmlDeviceGetGspFirmwareMode",
        &[
            ("(GSP Mode Current)", Kind::Flag),
            ("(GSP Mode Default)", Kind::Flag),
        ],
    ),
    (
        "nvmlDeviceGetEncoderStats",
        &[
            ("Encoder Stats > Active Sessions", Kind::Whole),
            ("Encoder Stats > Average FPS", Kind::Whole),
            ("Encoder Stats > Average Latency", Kind::Whole),
        ],
    ),
    (
        "nvmlDeviceGetPowerManagementLimitConstraints",
        &[
            ("GPU Power Readings > Min Power Limit", MILLI),
            ("GPU Power Readings > Max Power Limit", MILLI),
        ],
    ),
    (
        "nvmlDeviceGetPowerManagementLimitConstraints",
        &[
            ("Power Readings > Min Power Limit", MILLI),
            ("Power Readings > Max Power Limit", MILLI),
        ],
    ),
    (
        "nvmlDeviceGetRemappedRows",
        &[
            ("Remapped Rows > Correctable Error", Kind::Whole),
            ("Remapped Rows > Uncorrectable Error", Kind::Whole),
            ("Remapped Rows > Pending", Kind::Flag),
            ("Remapped Rows > Remapping Failure Occurred", Kind::Flag),
        ],
    ),
];

/// A structure's members, each with the label it prints at and how the cell is read.
pub(super) type Members = &'static [(&'static str, &'static str, Kind)];

/// Members of the answer of `nvmlDeviceGetRemappedRows_v2`, each with the cell that shows it.
pub(super) const REMAPPED_ROWS: Members = &[
    (
        "corrActiveRemaps",
        "Remapped Rows > Correctable Error",
        Kind::Whole,
    ),
    (
        "corrInactiveRemaps",
        "Remapped Rows > Inactive Correctable Error",
        Kind::Whole,
    ),
    (
        "uncActiveRemaps",
        "Remapped Rows > Uncorrectable Error",
        Kind::Whole,
    ),
    (
        "uncInactiveRemaps",
        "Remapped Rows > Inactive Uncorrectable Error",
        Kind::Whole,
    ),
    ("bPending", "Remapped Rows > Pending", Kind::Flag),
    (
        "bFailureOccurred",
        "Remapped Rows > Remapping Failure Occurred",
        Kind::Flag,
    ),
];

/// Calls that fill a structure.
pub(super) const OBJECTS: &[(&str, Members)] = &[
    ("nvmlDeviceGetPdi", &[("value", "GPU PDI", Kind::Whole)]),
    (
        "nvmlDeviceGetAddressingMode",
        &[("value", "Addressing Mode", Kind::Word(ADDRESSING))],
    ),
    (
        "nvmlDeviceGetMarginTemperature",
        &[(
            "marginTemperature",
            "Temperature > GPU T.Limit Temp",
            Kind::Signed,
        )],
    ),
    (
        "nvmlDeviceGetMarginTemperature",
        &[(
            "marginTemperature",
            "Temperature > GPU Current T.Limit Temp",
            Kind::Signed,
        )],
    ),
    (
        "nvmlDeviceGetC2cModeInfoV",
        &[("isC2cEnabled", "GPU C2C Mode", Kind::Flag)],
    ),
    (
        "nvmlDeviceGetVgpuHeterogeneousMode",
        &[(
            "mode",
            "GPU Virtualization Mode > vGPU Heterogeneous Mode",
            Kind::Flag,
        )],
    ),
    (
        "nvmlDeviceGetCapabilities",
        &[("capMask", "Capabilities > EGM", Kind::Flag)],
    ),
    (
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        &[(
            "bUnrepairableMemory",
            "ECC Errors > Unrepairable Memory",
            Kind::Flag,
        )],
    ),
    (
        "nvmlDeviceGetBBXTimeData_v1",
        &[("timeRun", "Inforom Time Data > Time Run", Kind::Whole)],
    ),
    (
        "nvmlDeviceGetPciInfoExt",
        &[
            ("baseClass", "PCI > Base Classcode", Kind::Whole),
            ("subClass", "PCI > Sub Classcode", Kind::Whole),
        ],
    ),
    (
        "nvmlDeviceGetUtilizationRates",
        &[
            ("gpu", "Utilization > GPU", Kind::Whole),
            ("memory", "Utilization > Memory", Kind::Whole),
        ],
    ),
    (
        "nvmlDeviceGetUtilizationRates",
        &[
            ("gpu", "Utilization > Gpu", Kind::Whole),
            ("memory", "Utilization > Memory", Kind::Whole),
        ],
    ),
    (
        "nvmlDeviceGetFBCStats",
        &[
            ("sessionsCount", "FBC Stats > Active Sessions", Kind::Whole),
            ("averageFPS", "FBC Stats > Average FPS", Kind::Whole),
            ("averageLatency", "FBC Stats > Average Latency", Kind::Whole),
        ],
    ),
    (
        "nvmlDeviceGetRepairStatus",
        &[
            (
                "bChannelRepairPending",
                "ECC Errors > Channel Repair Pending",
                Kind::Flag,
            ),
            (
                "bTpcRepairPending",
                "ECC Errors > TPC Repair Pending",
                Kind::Flag,
            ),
        ],
    ),
    (
        "nvmlDeviceGetRowRemapperHistogram",
        &[
            (
                "max",
                "Remapped Rows > Bank Remap Availability Histogram > Max",
                Kind::Whole,
            ),
            (
                "high",
                "Remapped Rows > Bank Remap Availability Histogram > High",
                Kind::Whole,
            ),
            (
                "partial",
                "Remapped Rows > Bank Remap Availability Histogram > Partial",
                Kind::Whole,
            ),
            (
                "low",
                "Remapped Rows > Bank Remap Availability Histogram > Low",
                Kind::Whole,
            ),
            (
                "none",
                "Remapped Rows > Bank Remap Availability Histogram > None",
                Kind::Whole,
            ),
        ],
    ),
    ("nvmlDeviceGetRemappedRows_v2", REMAPPED_ROWS),
];
