//! Memory: MiB as printed, rounded up, become bytes.

use serde_json::{Value, json};

use super::{Inverter, Node, words};

const MIB: u64 = 1 << 20;

/// A cell's MiB, or its code.
fn mebibytes(section: &Node, label: &str) -> Option<Result<u64, u32>> {
    let cell = section.cell_at(label)?;
    Some(words::read(cell).and_then(|cell| words::whole(cell).ok_or(crate::code::UNKNOWN)))
}

/// The bytes of `total` and of its parts. Each cell was rounded up on its own, so the parts may add
/// up to more: they are made smaller, by less than a MiB each, until they add up.
fn bytes(total: u64, parts: &[u64]) -> Vec<u64> {
    let over = parts.iter().sum::<u64>().saturating_sub(total);
    let shared = parts.iter().filter(|part| **part > 0).count() as u64;
    let less = if over < shared {
        over * MIB / shared
    } else {
        0
    };
    parts
        .iter()
        .map(|part| if *part > 0 { part * MIB - less } else { 0 })
        .collect()
}

/// The call's answer for a section with these labels after `Total`.
pub(super) fn answer(section: &Node, total_name: &str, parts: &[(&str, &str)]) -> Option<Value> {
    let total = mebibytes(section, "Total")?;
    let absent = words::absence(
        std::iter::once("Total")
            .chain(parts.iter().map(|(label, _)| *label))
            .filter_map(|label| section.cell_at(label)),
    );
    let cells = parts
        .iter()
        .filter_map(|(label, _)| mebibytes(section, label));
    let (total, cells) = match (absent, total, cells.collect::<Result<Vec<u64>, u32>>()) {
        (None, Ok(total), Ok(cells)) => (total, cells),
        (Some(code), _, _) | (_, Err(code), _) | (_, _, Err(code)) => {
            return Some(json!({"return": code}));
        }
    };
    let mut object = serde_json::Map::new();
    object.insert(total_name.to_owned(), json!(total * MIB));
    let printed = parts
        .iter()
        .filter(|(label, _)| section.at(label).is_some());
    for ((_, member), bytes) in printed.zip(bytes(total, &cells)) {
        object.insert((*member).to_owned(), json!(bytes));
    }
    Some(Value::Object(object))
}

/// Old drivers print nothing reserved: they have only the call that counts it as used.
pub(super) fn calls(call: &'static str, answer: Value) -> Vec<(&'static str, Value)> {
    let is_whole = answer.get("reserved").is_some() || answer.get("return").is_some();
    if call != "nvmlDeviceGetMemoryInfo_v2" || is_whole {
        return vec![(call, answer)];
    }
    vec![
        (call, json!({"return": crate::code::FUNCTION_NOT_FOUND})),
        ("nvmlDeviceGetMemoryInfo", answer),
    ]
}

pub(super) const FRAME_BUFFER: [(&str, &str); 3] =
    [("Reserved", "reserved"), ("Used", "used"), ("Free", "free")];
pub(super) const BAR1: [(&str, &str); 2] = [("Used", "bar1Used"), ("Free", "bar1Free")];

impl Inverter<'_> {
    pub(super) fn memory(&mut self) {
        let found = [
            (
                "FB Memory Usage",
                "nvmlDeviceGetMemoryInfo_v2",
                "total",
                &FRAME_BUFFER[..],
            ),
            (
                "BAR1 Memory Usage",
                "nvmlDeviceGetBAR1MemoryInfo",
                "bar1Total",
                &BAR1[..],
            ),
            (
                "Conf Compute Protected Memory Usage",
                "nvmlDeviceGetConfComputeProtectedMemoryUsage",
                "total",
                &FRAME_BUFFER[1..],
            ),
        ]
        .map(|(label, call, total, parts)| {
            (
                call,
                self.gpu
                    .at(label)
                    .and_then(|section| answer(section, total, parts)),
            )
        });
        for (call, answer) in found {
            let Some(answer) = answer else { continue };
            for (call, answer) in calls(call, answer) {
                self.set(call, answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_still_round_up_to_their_cells() {
        // H200: 614 + 32362 + 110796 is one more than 143771.
        let parts = bytes(143_771, &[614, 32_362, 110_796]);
        assert!(parts.iter().sum::<u64>().abs_diff(143_771 * MIB) < 3);
        let cells: Vec<u64> = parts.iter().map(|bytes| bytes.div_ceil(MIB)).collect();
        assert_eq!(cells, [614, 32_362, 110_796]);
        assert_eq!(bytes(0, &[0, 0]), [0, 0]);
        assert_eq!(bytes(8188, &[240, 0, 7948]), [240 * MIB, 0, 7948 * MIB]);
    }
}
