//! Rows of ECC, retired pages and remapped rows. The board's capabilities decide which lines exist.

use super::{
    FieldRow,
    cell::{banks, count, enabled, yes},
    label, row,
};
use crate::{Absence, Gpu, Reading};

/// Properties and tidy names of one count at one place.
macro_rules! errors {
    ($kind:literal, $counter:literal, $counts:ident, $($place:literal $tidy:literal $field:ident $meaning:literal;)*) => {
        &[$(
            row("", concat!("errors.", $kind, "_", $counter, "_", $tidy), concat!("ecc.errors.", $kind, ".", $counter, ".", $place), |gpu| {
                count(&gpu.ecc.$counts.$field)
            })
            .means(concat!($kind, " memory errors, ", $counter, ": ", $meaning)),
        )*
            row("", "", concat!("ecc.errors.", $kind, ".", $counter, ".device_memory"), |gpu| count(&gpu.ecc.$counts.dram))
                .means(concat!($kind, " memory errors, ", $counter, ": the board's memory")),
        ]
    };
    ($kind:literal, $counter:literal, $counts:ident) => {
        errors!($kind, $counter, $counts,
            "dram" "dram" dram "the board's memory";
            "register_file" "register_file" register_file "registers";
            "l1_cache" "l1_cache" l1_cache "first-level cache";
            "l2_cache" "l2_cache" l2_cache "second-level cache";
            "texture_memory" "texture_memory" texture_memory "texture memory";
            "cbu" "cbu" cbu "branch unit";
            "sram" "sram" sram "all memory on the chip";
            "total" "total" total "everywhere";
        )
    };
}

/// A property of the chip's own memory: not hidden where ECC is off, unlike its line in the text.
macro_rules! sram {
    ($property:literal, $cell:ident, $field:ident, $meaning:literal) => {
        row(
            "",
            "",
            concat!("ecc.errors.uncorrected.", $property),
            |gpu| $cell(&gpu.ecc.sram.$field),
        )
        .means($meaning)
    };
}

/// A line of the ECC errors.
macro_rules! line {
    ($label:literal, $tidy:literal, $when:ident, $cell:ident, $($field:ident).+) => {
        row(concat!("ECC Errors > ", $label), $tidy, "", |gpu| $cell(&hidden(gpu, &gpu.ecc.$($field).+))).when($when)
    };
}

/// The lines of one kind and count in the layout of boards before Turing.
macro_rules! old {
    ($label:literal, $counts:ident) => {
        &[
            old!($label, "Device Memory", $counts.dram),
            old!($label, "Register File", $counts.register_file),
            old!($label, "L1 Cache", $counts.l1_cache),
            old!($label, "L2 Cache", $counts.l2_cache),
            old!($label, "Texture Memory", $counts.texture_memory),
            old!($label, "Texture Shared", $counts.texture_shared),
            old!($label, "CBU", $counts.cbu),
            old!($label, "Total", $counts.total),
        ]
    };
    ($label:literal, $place:literal, $counts:ident.$field:ident) => {
        label(concat!("ECC Errors > ", $label, " > ", $place), |gpu| {
            count(&hidden(gpu, &gpu.ecc.$counts.$field))
        })
        .when(is_by_place)
    };
}

/// Banks by their spare rows.
macro_rules! histogram {
    ($label:literal, $name:literal, $field:ident, $meaning:literal) => {
        row(
            concat!(
                "Remapped Rows > Bank Remap Availability Histogram > ",
                $label
            ),
            concat!("errors.banks_", $name),
            concat!("remapped_rows.histogram.", $name),
            |gpu| banks(&gpu.remapped_rows.histogram.$field),
        )
        .when(has_histogram)
        .means(concat!("banks of memory ", $meaning))
    };
}

pub(super) const TABLES: &[&[FieldRow]] = &[
    MODE,
    VOLATILE,
    old!("Volatile > Single Bit", corrected_volatile),
    old!("Volatile > Double Bit", uncorrected_volatile),
    AGGREGATE,
    old!("Aggregate > Single Bit", corrected_aggregate),
    old!("Aggregate > Double Bit", uncorrected_aggregate),
    SOURCES,
    errors!("corrected", "volatile", corrected_volatile),
    errors!("corrected", "aggregate", corrected_aggregate),
    errors!("uncorrected", "volatile", uncorrected_volatile),
    errors!("uncorrected", "aggregate", uncorrected_aggregate),
    SRAM,
    RETIRED,
    REMAPPED,
];

const MODE: &[FieldRow] = &[
    row(
        "ECC Mode > Current",
        "modes.is_ecc",
        "ecc.mode.current",
        |gpu| enabled(&gpu.modes.ecc.current),
    )
    .means("whether memory errors are found and corrected (ECC)"),
    row(
        "ECC Mode > Pending",
        "modes.is_ecc_pending",
        "ecc.mode.pending",
        |gpu| enabled(&gpu.modes.ecc.pending),
    )
    .means("this setting after the next restart"),
];

const VOLATILE: &[FieldRow] = &[
    line!(
        "Volatile > SRAM Correctable",
        "",
        is_by_chip,
        count,
        corrected_volatile.sram
    ),
    line!(
        "Volatile > SRAM Uncorrectable",
        "",
        is_summed,
        count,
        uncorrected_volatile.sram
    ),
    line!(
        "Volatile > SRAM Uncorrectable Parity",
        "errors.sram_volatile_parity",
        is_detailed,
        count,
        sram.volatile_parity
    ),
    line!(
        "Volatile > SRAM Uncorrectable SEC-DED",
        "errors.sram_volatile_sec_ded",
        is_detailed,
        count,
        sram.volatile_sec_ded
    ),
    line!(
        "Volatile > DRAM Correctable",
        "",
        is_by_chip,
        count,
        corrected_volatile.dram
    ),
    line!(
        "Volatile > DRAM Uncorrectable",
        "",
        is_by_chip,
        count,
        uncorrected_volatile.dram
    ),
];

const AGGREGATE: &[FieldRow] = &[
    line!(
        "Aggregate > SRAM Correctable",
        "",
        is_by_chip,
        count,
        corrected_aggregate.sram
    ),
    line!(
        "Aggregate > SRAM Uncorrectable",
        "",
        is_summed,
        count,
        uncorrected_aggregate.sram
    ),
    line!(
        "Aggregate > SRAM Uncorrectable Parity",
        "errors.sram_aggregate_parity",
        is_detailed,
        count,
        sram.aggregate_parity
    ),
    line!(
        "Aggregate > SRAM Uncorrectable SEC-DED",
        "errors.sram_aggregate_sec_ded",
        is_detailed,
        count,
        sram.aggregate_sec_ded
    ),
    line!(
        "Aggregate > DRAM Correctable",
        "",
        is_by_chip,
        count,
        corrected_aggregate.dram
    ),
    line!(
        "Aggregate > DRAM Uncorrectable",
        "",
        is_by_chip,
        count,
        uncorrected_aggregate.dram
    ),
    line!(
        "Aggregate > SRAM Threshold Exceeded",
        "errors.is_sram_threshold_exceeded",
        is_detailed,
        yes,
        sram.is_threshold_exceeded
    ),
];

const SOURCES: &[FieldRow] = &[
    line!(
        "Aggregate Uncorrectable SRAM Sources > SRAM L2",
        "errors.sram_in_l2",
        is_detailed,
        count,
        sram.in_l2
    ),
    line!(
        "Aggregate Uncorrectable SRAM Sources > SRAM SM",
        "errors.sram_in_sm",
        is_detailed,
        count,
        sram.in_sm
    ),
    line!(
        "Aggregate Uncorrectable SRAM Sources > SRAM Microcontroller",
        "errors.sram_in_microcontroller",
        is_detailed,
        count,
        sram.in_microcontroller
    ),
    line!(
        "Aggregate Uncorrectable SRAM Sources > SRAM PCIE",
        "errors.sram_in_pcie",
        is_detailed,
        count,
        sram.in_pcie
    ),
    line!(
        "Aggregate Uncorrectable SRAM Sources > SRAM Other",
        "errors.sram_elsewhere",
        is_detailed,
        count,
        sram.elsewhere
    ),
    row(
        "ECC Errors > Channel Repair Pending",
        "errors.is_channel_repair_pending",
        "",
        |gpu| yes(&gpu.ecc.is_channel_repair_pending),
    )
    .when(has_repair),
    row(
        "ECC Errors > TPC Repair Pending",
        "errors.is_tpc_repair_pending",
        "",
        |gpu| yes(&gpu.ecc.is_tpc_repair_pending),
    )
    .when(has_repair),
    row(
        "ECC Errors > Unrepairable Memory",
        "errors.is_memory_unrepairable",
        "",
        |gpu| yes(&gpu.ecc.is_memory_unrepairable),
    )
    .when(is_detailed),
];

const SRAM: &[FieldRow] = &[
    sram!(
        "volatile.sram.parity",
        count,
        volatile_parity,
        "on the chip since the driver loaded, found by parity"
    ),
    sram!(
        "volatile.sram.secded",
        count,
        volatile_sec_ded,
        "on the chip since the driver loaded, found by SEC-DED code"
    ),
    sram!(
        "aggregate.sram.parity",
        count,
        aggregate_parity,
        "on the chip over the board's life, found by parity"
    ),
    sram!(
        "aggregate.sram.secded",
        count,
        aggregate_sec_ded,
        "on the chip over the board's life, found by SEC-DED code"
    ),
    sram!(
        "aggregate.sram.thresholdExceeded",
        yes,
        is_threshold_exceeded,
        "whether there were so many that the board should be replaced"
    ),
    sram!(
        "aggregate.sram.l2",
        count,
        in_l2,
        "on the chip over the board's life, in the second-level cache"
    ),
    sram!(
        "aggregate.sram.sm",
        count,
        in_sm,
        "on the chip over the board's life, in the multiprocessors"
    ),
    sram!(
        "aggregate.sram.mcu",
        count,
        in_microcontroller,
        "on the chip over the board's life, in microcontrollers"
    ),
    sram!(
        "aggregate.sram.pcie",
        count,
        in_pcie,
        "on the chip over the board's life, in the PCIe part"
    ),
    sram!(
        "aggregate.sram.other",
        count,
        elsewhere,
        "on the chip over the board's life, elsewhere"
    ),
];

const RETIRED: &[FieldRow] = &[
    row(
        "Retired Pages > Single Bit ECC",
        "errors.retired_pages_single_bit",
        "retired_pages.single_bit_ecc.count",
        |gpu| count(&gpu.retired_pages.single_bit),
    )
    .or(&["retired_pages.sbe"])
    .means("pages retired because of many corrected errors"),
    row(
        "Retired Pages > Double Bit ECC",
        "errors.retired_pages_double_bit",
        "retired_pages.double_bit.count",
        |gpu| count(&gpu.retired_pages.double_bit),
    )
    .or(&["retired_pages.dbe"])
    .means("pages retired because of an uncorrected error"),
    row(
        "Retired Pages > Pending Page Blacklist",
        "errors.are_pages_pending_retired",
        "retired_pages.pending",
        |gpu| yes(&gpu.retired_pages.is_pending),
    )
    .means("whether more pages are waiting for a restart"),
];

const REMAPPED: &[FieldRow] = &[
    label("Remapped Rows", |gpu| count(&gpu.remapped_rows.corrected)).when(|gpu| !is_remapped(gpu)),
    row(
        "Remapped Rows > Correctable Error",
        "errors.remapped_corrected",
        "remapped_rows.correctable",
        |gpu| count(&gpu.remapped_rows.corrected),
    )
    .or(&["remapped_rows.sbe"])
    .when(is_remapped)
    .means("rows replaced because of many corrected errors"),
    row(
        "Remapped Rows > Inactive Correctable Error",
        "errors.remapped_corrected_inactive",
        "remapped_rows.correctable_inactive",
        |gpu| count(&gpu.remapped_rows.corrected_inactive),
    )
    .when(|gpu| is_remapped(gpu) && tells_inactive_rows(gpu))
    .means("replacements for corrected errors that are not in effect yet"),
    row(
        "Remapped Rows > Uncorrectable Error",
        "errors.remapped_uncorrected",
        "remapped_rows.uncorrectable",
        |gpu| count(&gpu.remapped_rows.uncorrected),
    )
    .or(&["remapped_rows.dbe"])
    .when(is_remapped)
    .means("rows replaced because of an uncorrected error"),
    row(
        "Remapped Rows > Inactive Uncorrectable Error",
        "errors.remapped_uncorrected_inactive",
        "remapped_rows.uncorrectable_inactive",
        |gpu| count(&gpu.remapped_rows.uncorrected_inactive),
    )
    .when(|gpu| is_remapped(gpu) && tells_inactive_rows(gpu))
    .means("replacements for uncorrected errors that are not in effect yet"),
    row(
        "Remapped Rows > Pending",
        "errors.is_remapping_pending",
        "remapped_rows.pending",
        |gpu| yes(&gpu.remapped_rows.is_pending),
    )
    .when(is_remapped)
    .means("whether more rows are waiting for a reset"),
    row(
        "Remapped Rows > Remapping Failure Occurred",
        "errors.has_remapping_failed",
        "remapped_rows.failure",
        |gpu| yes(&gpu.remapped_rows.has_failed),
    )
    .when(is_remapped)
    .means("whether a row could not be replaced"),
    label("Remapped Rows > Bank Remap Availability Histogram", |gpu| {
        banks(&gpu.remapped_rows.histogram.all)
    })
    .when(|gpu| is_remapped(gpu) && !has_histogram(gpu)),
    histogram!("Max", "max", all, "with all their spare rows"),
    histogram!("High", "high", high, "with most of their spare rows"),
    histogram!(
        "Partial",
        "partial",
        partial,
        "with some of their spare rows"
    ),
    histogram!("Low", "low", low, "with few spare rows left"),
    histogram!("None", "none", none, "without a spare row"),
];

/// The layout of a board's ECC counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// One count for each part of the chip, before Turing.
    ByPlace,
    /// One count for all memory on the chip.
    Summed,
    /// That count by how the errors were found, and where they were.
    Detailed,
}

/// By what the driver answers. Where no count is told at all, as by boards without ECC and to
/// guests of a vGPU, all three kinds of board answer alike; then nothing but their age is left to
/// go by.
fn layout(gpu: &Gpu) -> Layout {
    const VOLTA: u64 = 5;
    const AMPERE: u64 = 7;
    let ecc = &gpu.ecc;
    let counts = [
        &ecc.corrected_volatile,
        &ecc.uncorrected_volatile,
        &ecc.corrected_aggregate,
        &ecc.uncorrected_aggregate,
    ];
    let is_summed = counts.iter().any(|counts| counts.sram.is_offered());
    let is_by_place = counts.iter().any(|counts| {
        [&counts.register_file, &counts.l2_cache]
            .iter()
            .any(|count| count.is_offered())
    });
    let is_driver_old = matches!(
        gpu.ecc.sram.volatile_parity,
        Reading::Absent(Absence::NoSymbol)
    );
    match gpu.identity.architecture_number.value() {
        _ if gpu.ecc.sram.volatile_parity.is_offered() => Layout::Detailed,
        _ if is_by_place && !is_summed => Layout::ByPlace,
        Some(&age) if age <= VOLTA && !is_summed => Layout::ByPlace,
        Some(&age) if age >= AMPERE && !is_driver_old => Layout::Detailed,
        _ => Layout::Summed,
    }
}

fn is_detailed(gpu: &Gpu) -> bool {
    layout(gpu) == Layout::Detailed
}

fn is_by_place(gpu: &Gpu) -> bool {
    layout(gpu) == Layout::ByPlace
}

fn is_by_chip(gpu: &Gpu) -> bool {
    layout(gpu) != Layout::ByPlace
}

fn is_summed(gpu: &Gpu) -> bool {
    layout(gpu) == Layout::Summed
}

fn has_repair(gpu: &Gpu) -> bool {
    is_detailed(gpu) || gpu.ecc.is_channel_repair_pending.is_offered()
}

fn is_remapped(gpu: &Gpu) -> bool {
    gpu.remapped_rows.corrected.is_offered()
}

/// Whether the driver has the call that counts inactive rows apart. nvidia-smi prints the inactive
/// rows and the fabric's partition in releases whose library has this call (580.159 and 610 were
/// seen), and neither in one whose library does not (590.48). A GPU that is lost does not tell.
pub(super) fn tells_inactive_rows(gpu: &Gpu) -> bool {
    let inactive = &gpu.remapped_rows.corrected_inactive;
    !matches!(inactive, Reading::Absent(Absence::NoSymbol | Absence::Lost))
}

fn has_histogram(gpu: &Gpu) -> bool {
    is_remapped(gpu) && gpu.remapped_rows.histogram.all.is_offered()
}

/// A board without ECC, or with ECC switched off, answers some counts with 0; nvidia-smi's text
/// shows none of them.
fn hidden<T: Clone>(gpu: &Gpu, count: &Reading<T>) -> Reading<T> {
    match (count, &gpu.modes.ecc.current) {
        (Reading::Value(_), Reading::Absent(Absence::NotSupported) | Reading::Value(false)) => {
            Reading::Absent(Absence::NotSupported)
        }
        (count, _) => count.clone(),
    }
}
