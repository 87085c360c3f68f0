//! ECC errors, retired pages.

use serde_json::{Value, json};

use super::{Inverter, Kind, Node, REMAPPED_ROWS, is_code, plain, words};
use crate::code;

/// Members of `nvmlEccSramErrorStatus_t` and the cells they print in.
const SRAM: [(&str, &str); 12] = [
    ("volatileCor", "Volatile > SRAM Correctable"),
    ("volatileUncParity", "Volatile > SRAM Uncorrectable Parity"),
    ("volatileUncSecDed", "Volatile > SRAM Uncorrectable SEC-DED"),
    ("aggregateCor", "Aggregate > SRAM Correctable"),
    (
        "aggregateUncParity",
        "Aggregate > SRAM Uncorrectable Parity",
    ),
    (
        "aggregateUncSecDed",
        "Aggregate > SRAM Uncorrectable SEC-DED",
    ),
    ("bThresholdExceeded", "Aggregate > SRAM Threshold Exceeded"),
    (
        "aggregateUncBucketL2",
        "Aggregate Uncorrectable SRAM Sources > SRAM L2",
    ),
    (
        "aggregateUncBucketSm",
        "Aggregate Uncorrectable SRAM Sources > SRAM SM",
    ),
    (
        "aggregateUncBucketMcu",
        "Aggregate Uncorrectable SRAM Sources > SRAM Microcontroller",
    ),
    (
        "aggregateUncBucketPcie",
        "Aggregate Uncorrectable SRAM Sources > SRAM PCIE",
    ),
    (
        "aggregateUncBucketOther",
        "Aggregate Uncorrectable SRAM Sources > SRAM Other",
    ),
];

impl Inverter<'_> {
    pub(super) fn ecc(&mut self) {
        let status = self.sram_status();
        self.set("nvmlDeviceGetSramEccErrorStatus", status);
        for (counter, section) in ["Volatile", "Aggregate"].into_iter().enumerate() {
            let cell = |label: &str| {
                self.gpu
                    .cell_at(&format!("ECC Errors > {section} > {label}"))
            };
            let parts = [
                cell("SRAM Uncorrectable Parity"),
                cell("SRAM Uncorrectable SEC-DED"),
            ];
            let answer = match (
                self.gpu
                    .cell_at(&format!("(=ECC 1/{counter}/7)"))
                    .or(cell("SRAM Uncorrectable")),
                parts,
            ) {
                (Some(cell), _) => plain(cell, Kind::Whole),
                (None, [Some(parity), Some(secded)]) => {
                    match (words::whole(parity), words::whole(secded)) {
                        (Some(parity), Some(secded)) => json!(parity + secded),
                        (Some(_), None) => plain(secded, Kind::Whole),
                        _ => plain(parity, Kind::Whole),
                    }
                }
                _ => continue,
            };
            self.set(
                &format!("nvmlDeviceGetMemoryErrorCounter/1/{counter}/7"),
                answer,
            );
        }
    }

    /// A board whose page has the long form answers the call even where ECC is off or not there,
    /// and its cells are `N/A`: the table of such a board has zeros where its page has none. Where
    /// ECC is on, `N/A` is the call's answer, as to a guest of a vGPU. A board with the short form
    /// does not know the call.
    fn sram_status(&self) -> Value {
        let has_long_form = self
            .gpu
            .at("ECC Errors > Volatile > SRAM Uncorrectable Parity")
            .is_some();
        let modes = ["ECC Mode", "Ecc Mode"]
            .map(|label| self.gpu.at(label).map(Node::cells).unwrap_or_default())
            .concat();
        let has_no_ecc = match words::absence(modes.iter().map(|(_, cell)| cell.as_str())) {
            Some(code) => code == code::NOT_SUPPORTED,
            None => modes
                .first()
                .is_none_or(|(_, current)| words::flag(current) == Some(0)),
        };
        let sections = self
            .gpu
            .at("ECC Errors")
            .map(Node::cells)
            .unwrap_or_default();
        let of_call = sections.iter().filter(|(path, _)| {
            SRAM.iter()
                .any(|(member, label)| path == label && !member.ends_with("Cor"))
        });
        if let Some(code) = words::absence(of_call.map(|(_, cell)| cell.as_str()))
            .filter(|code| *code != code::NOT_SUPPORTED && has_long_form)
        {
            return json!({"return": code});
        }
        let mut status = serde_json::Map::new();
        for (member, label) in SRAM {
            let of_table = self.gpu.cell_at(&format!("(=SRAM {member})"));
            let answer = match (of_table, self.gpu.cell_at(&format!("ECC Errors > {label}"))) {
                (Some(cell), _) => plain(
                    cell,
                    if member == "bThresholdExceeded" {
                        Kind::Flag
                    } else {
                        Kind::Whole
                    },
                ),
                (None, Some(cell)) if has_long_form => match words::read(cell) {
                    Ok(cell) => words::flag(cell)
                        .or(words::whole(cell))
                        .map_or(json!({"return": code::UNKNOWN}), |count| json!(count)),
                    Err(code::NOT_SUPPORTED) if has_no_ecc || member.ends_with("Cor") => json!(0),
                    Err(code) => json!({"return": code}),
                },
                // Printed by no driver of that time.
                (None, None) if has_long_form => json!(0),
                _ if member.ends_with("Cor") => json!(0),
                // The call is of the time of the long form.
                _ if self.driver < (545, 0) => json!({"return": code::FUNCTION_NOT_FOUND}),
                _ => json!({"return": code::NOT_SUPPORTED}),
            };
            if is_code(&answer) {
                return answer;
            }
            status.insert(member.to_owned(), answer);
        }
        Value::Object(status)
    }

    /// As many addresses as pages were counted; which ones no page says.
    pub(super) fn retired(&mut self) {
        for (cause, label) in ["Single Bit ECC", "Double Bit ECC"].into_iter().enumerate() {
            if let Some(cell) = self.gpu.cell_at(&format!("Retired Pages > {label}")) {
                let answer = match words::read(cell) {
                    Ok(cell) => match words::whole(cell) {
                        Some(pages) => {
                            json!((0..pages).map(|page| page << 12).collect::<Vec<u64>>())
                        }
                        None => json!({"return": code::UNKNOWN}),
                    },
                    Err(code) => json!({"return": code}),
                };
                self.set(&format!("nvmlDeviceGetRetiredPages_v2/{cause}"), answer);
            }
        }
        self.inactive_rows();
        // One cell for a whole section.
        for (label, call) in [
            ("Remapped Rows", "nvmlDeviceGetRemappedRows"),
            (
                "Remapped Rows > Bank Remap Availability Histogram",
                "nvmlDeviceGetRowRemapperHistogram",
            ),
        ] {
            if let Some(Err(code)) = self.gpu.cell_at(label).map(words::read)
                && !self.device.calls.contains_key(call)
            {
                self.set(call, json!({"return": code}));
            }
        }
    }

    /// The call came with the lines of the inactive rows and of the fabric's partition: a page with
    /// neither is one of a driver without it.
    fn inactive_rows(&mut self) {
        const CALL: &str = "nvmlDeviceGetRemappedRows_v2";
        let has_line = self
            .gpu
            .cell_at("Fabric > Health > Partition Assigned")
            .is_some();
        let code = if has_line {
            code::NOT_SUPPORTED
        } else {
            code::FUNCTION_NOT_FOUND
        };
        self.set(CALL, json!({"return": code}));
        self.object(CALL, REMAPPED_ROWS);
    }
}
