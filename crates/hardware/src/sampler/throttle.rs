//! Throttle (clock event) reasons: NVML's bits and their names.

/// Those that hold the clocks below what the work could use first, then the others.
const THROTTLE: [(u64, &str); 11] = [
    (0x04, "sw_power_cap"),
    (0x08, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
    // NVML 13.615.
    (0x200, "board_limit"),
    (0x400, "reliability"),
    (0x01, "idle"),
    (0x02, "applications_clocks_setting"),
    (0x100, "display_clock_setting"),
];

/// The bits that count as throttled: neither idleness nor clocks that someone or a screen chose. A
/// bit without a name counts too: a newer driver has found one more thing that can hold the clocks
/// down.
pub const THROTTLED: u64 = !(0x01 | 0x02 | 0x100);

/// The reasons in `bits` by name; a bit without a name prints as hexadecimal.
pub fn throttle_names(bits: u64) -> Vec<String> {
    let known = THROTTLE
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned());
    let unknown = (0..64)
        .map(|place| 1_u64 << place)
        .filter(|bit| bits & bit != 0 && THROTTLE.iter().all(|(known, _)| known != bit));
    known
        .chain(unknown.map(|bit| format!("{bit:#x}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_bits_have_names_and_unknown_ones_their_number() {
        assert_eq!(throttle_names(0x4 | 1 << 20), ["sw_power_cap", "0x100000"]);
        assert_eq!(throttle_names(1), ["idle"]);
        assert!(throttle_names(0).is_empty());
        assert_eq!(
            throttle_names((0x200 | 0x400 | 1 << 30 | 0x103) & THROTTLED),
            ["board_limit", "reliability", "0x40000000"]
        );
    }
}
