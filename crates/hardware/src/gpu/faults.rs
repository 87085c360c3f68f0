//! Memory errors and repairs: ECC counts, retired pages, remapped rows, pending repairs.

use nvml_wrapper::Device;

use super::{Section, source::DeviceSource};
use crate::{Reading, nvml::calls};

/// Error counts of one kind since the driver loaded (volatile), or ever (aggregate).
#[derive(Clone, Debug)]
pub struct ErrorCounts {
    /// The board's memory, whatever it is made of.
    pub dram: Reading<u64>,
    pub register_file: Reading<u64>,
    pub l1_cache: Reading<u64>,
    pub l2_cache: Reading<u64>,
    pub texture_memory: Reading<u64>,
    pub texture_shared: Reading<u64>,
    pub cbu: Reading<u64>,
    /// All memory on the chip, from Turing on.
    pub sram: Reading<u64>,
    pub total: Reading<u64>,
}

/// Uncorrected errors of the chip's own memory by how they were found, from Ampere on.
#[derive(Clone, Debug)]
pub struct SramErrors {
    pub volatile_parity: Reading<u64>,
    pub volatile_sec_ded: Reading<u64>,
    pub aggregate_parity: Reading<u64>,
    pub aggregate_sec_ded: Reading<u64>,
    pub is_threshold_exceeded: Reading<bool>,
    /// Location of the aggregate errors.
    pub in_l2: Reading<u64>,
    pub in_sm: Reading<u64>,
    pub in_microcontroller: Reading<u64>,
    pub in_pcie: Reading<u64>,
    pub elsewhere: Reading<u64>,
}

#[derive(Clone, Debug)]
pub struct Ecc {
    pub corrected_volatile: ErrorCounts,
    pub corrected_aggregate: ErrorCounts,
    pub uncorrected_volatile: ErrorCounts,
    pub uncorrected_aggregate: ErrorCounts,
    pub sram: SramErrors,
    pub is_channel_repair_pending: Reading<bool>,
    pub is_tpc_repair_pending: Reading<bool>,
    pub is_memory_unrepairable: Reading<bool>,
}

/// Pages of memory taken out of use, on boards before Ampere.
#[derive(Clone, Debug)]
pub struct RetiredPages {
    pub single_bit: Reading<u64>,
    pub double_bit: Reading<u64>,
    /// Whether more wait for a restart.
    pub is_pending: Reading<bool>,
}

/// Rows of memory replaced by spare ones, from Ampere on.
#[derive(Clone, Debug)]
pub struct RemappedRows {
    pub corrected: Reading<u64>,
    pub uncorrected: Reading<u64>,
    pub corrected_inactive: Reading<u64>,
    pub uncorrected_inactive: Reading<u64>,
    /// Whether more wait for a reset.
    pub is_pending: Reading<bool>,
    /// Whether a row could not be replaced.
    pub has_failed: Reading<bool>,
    pub histogram: RowHistogram,
}

/// Banks of memory by how many spare rows they have left.
#[derive(Clone, Debug)]
pub struct RowHistogram {
    pub all: Reading<u64>,
    pub high: Reading<u64>,
    pub partial: Reading<u64>,
    pub low: Reading<u64>,
    pub none: Reading<u64>,
}

impl ErrorCounts {
    /// `kind`: 0 corrected, 1 uncorrected. `counter`: 0 volatile, 1 aggregate.
    fn read(source: &DeviceSource<'_>, kind: u32, counter: u32) -> Self {
        // `nvmlMemoryLocation_t`.
        let at = |place: u32| {
            source.raw(|nvml, device| calls::memory_errors(nvml, device, [kind, counter, place]))
        };
        Self {
            l1_cache: at(0),
            l2_cache: at(1),
            dram: at(2),
            register_file: at(3),
            texture_memory: at(4),
            texture_shared: at(5),
            cbu: at(6),
            sram: at(7),
            total: source.raw(|nvml, device| calls::total_errors(nvml, device, [kind, counter])),
        }
    }
}

impl Section for Ecc {
    fn read(source: &DeviceSource<'_>) -> Self {
        let repair = source.raw(calls::repair_status);
        Self {
            corrected_volatile: ErrorCounts::read(source, 0, 0),
            corrected_aggregate: ErrorCounts::read(source, 0, 1),
            uncorrected_volatile: ErrorCounts::read(source, 1, 0),
            uncorrected_aggregate: ErrorCounts::read(source, 1, 1),
            sram: SramErrors::read(source),
            is_channel_repair_pending: repair
                .as_ref()
                .map(|repair| repair.bChannelRepairPending != 0),
            is_tpc_repair_pending: repair.map(|repair| repair.bTpcRepairPending != 0),
            is_memory_unrepairable: source.raw(calls::unrepairable_memory),
        }
    }
}

impl Section for SramErrors {
    fn read(source: &DeviceSource<'_>) -> Self {
        let found = source.raw(calls::sram_errors);
        Self {
            volatile_parity: found.as_ref().map(|found| found.volatileUncParity),
            volatile_sec_ded: found.as_ref().map(|found| found.volatileUncSecDed),
            aggregate_parity: found.as_ref().map(|found| found.aggregateUncParity),
            aggregate_sec_ded: found.as_ref().map(|found| found.aggregateUncSecDed),
            is_threshold_exceeded: found.as_ref().map(|found| found.bThresholdExceeded != 0),
            in_l2: found.as_ref().map(|found| found.aggregateUncBucketL2),
            in_sm: found.as_ref().map(|found| found.aggregateUncBucketSm),
            in_microcontroller: found.as_ref().map(|found| found.aggregateUncBucketMcu),
            in_pcie: found.as_ref().map(|found| found.aggregateUncBucketPcie),
            elsewhere: found.map(|found| found.aggregateUncBucketOther),
        }
    }
}

impl Section for RetiredPages {
    fn read(source: &DeviceSource<'_>) -> Self {
        let pages =
            |cause: u32| source.raw(|nvml, device| calls::retired_pages(nvml, device, cause));
        Self {
            single_bit: pages(0),
            double_bit: pages(1),
            is_pending: source.tell(Device::are_pages_pending_retired),
        }
    }
}

impl Section for RemappedRows {
    fn read(source: &DeviceSource<'_>) -> Self {
        let rows = source.raw(calls::remapped_rows);
        let newer = source.raw(calls::remapped_rows_v2);
        let inactive = |at: usize| newer.as_ref().map(|rows| u64::from(rows[at]));
        let count = |at: usize| rows.as_ref().map(|rows| u64::from(rows[at]));
        Self {
            corrected: count(0),
            uncorrected: count(1),
            corrected_inactive: inactive(1),
            uncorrected_inactive: inactive(3),
            is_pending: count(2).map(|pending| pending != 0),
            has_failed: count(3).map(|failed| failed != 0),
            histogram: RowHistogram::read(source),
        }
    }
}

impl Section for RowHistogram {
    fn read(source: &DeviceSource<'_>) -> Self {
        let found = source.raw(calls::row_histogram);
        Self {
            all: found.as_ref().map(|banks| u64::from(banks.max)),
            high: found.as_ref().map(|banks| u64::from(banks.high)),
            partial: found.as_ref().map(|banks| u64::from(banks.partial)),
            low: found.as_ref().map(|banks| u64::from(banks.low)),
            none: found.map(|banks| u64::from(banks.none)),
        }
    }
}
