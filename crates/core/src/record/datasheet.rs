//! Peak figures from NVIDIA's datasheets: dense FLOP/s per precision, by the board name that the
//! driver reports. The fallback of `peaks` if nothing was measured.
//!
//! A name must match as a whole: an RTX 4090 D, an RTX 4090 Laptop GPU and an A100X are different
//! products from those whose names they extend, and an unknown board has no peak instead of a
//! similar board's.

/// Boards that share one set of figures, in TFLOP/s.
struct Board {
    /// Names as the driver reports them, without `NVIDIA`, `Tesla` and `GeForce`.
    names: &'static [&'static str],
    /// Without tensor cores.
    f32: f64,
    /// f16 on tensor cores, f32 accumulation, no sparsity.
    f16: f64,
    /// Whether the tensor cores support bf16, at the rate of f16, and TF32, at half of it. All
    /// since Ampere do.
    is_ampere_or_newer: bool,
}

/// `f16` is also the rate of bf16; the datasheets print one figure for both.
const fn board(names: &'static [&'static str], f32: f64, f16: f64) -> Board {
    Board {
        names,
        f32,
        f16,
        is_ampere_or_newer: true,
    }
}

/// With tensor cores for f16 only.
const fn before_ampere(names: &'static [&'static str], f32: f64, f16: f64) -> Board {
    Board {
        names,
        f32,
        f16,
        is_ampere_or_newer: false,
    }
}

/// Figures with an asterisk in NVIDIA's papers are for sparse products and are halved here. A
/// GeForce board accumulates f16 and bf16 products in f32 at half the rate printed for f16
/// accumulation; training needs the half. TF32 is taken as half of bf16, which matches the papers
/// to 1 % (A30: 82 of 165; L40S: 183 of 362.05).
const BOARDS: [Board; 41] = [
    // Blackwell Architecture Technical Brief, table "System Specifications": per GPU 4.5 and 5
    // PFLOP/s sparse bf16.
    board(&["B200"], 75.0, 2250.0),
    board(&["GB200"], 80.0, 2500.0),
    // H200 datasheet: SXM 1979 sparse, NVL 1671 sparse.
    board(&["H200"], 67.0, 989.5),
    board(&["H200 NVL"], 60.0, 835.5),
    // Grace Hopper datasheet: its GPU has the figures of an H100 SXM.
    board(
        &["GH200 480GB", "GH200 120GB", "GH200 144G HBM3e"],
        67.0,
        989.5,
    ),
    // H100 datasheet: SXM 1979, PCIe 1513, NVL 1671 sparse.
    board(&["H100 80GB HBM3"], 67.0, 989.5),
    board(&["H100 PCIe"], 51.0, 756.5),
    board(&["H100 NVL"], 60.0, 835.5),
    // A100 datasheet; every form has the same figures. The 64 GB board has more SMs and is not
    // listed.
    board(
        &[
            "A100-SXM4-40GB",
            "A100-SXM4-80GB",
            "A100-SXM-40GB",
            "A100-SXM-80GB",
            "A100-PCIE-40GB",
            "A100-PCIE-80GB",
            "A100 80GB PCIe",
        ],
        19.5,
        312.0,
    ),
    // Datasheets of A30, A10 and A40.
    board(&["A30"], 10.3, 165.0),
    board(&["A10"], 31.2, 125.0),
    board(&["A40"], 37.4, 149.7),
    // RTX A6000: GA102 white paper v2, table 3. RTX A5000 and A4000 datasheets: 222.2 and 153.4
    // sparse.
    board(&["RTX A6000"], 38.7, 154.8),
    board(&["RTX A5000"], 27.8, 111.1),
    board(&["RTX A4000"], 19.2, 76.7),
    // Datasheets of L4 (242 sparse), L40 (181.05 dense) and L40S (362.05 dense). L40 and L40S have
    // the same chip at nearly the same clock; the datasheets contradict each other by a factor of
    // two and are kept as printed.
    board(&["L4"], 30.3, 121.0),
    board(&["L40"], 90.5, 181.05),
    board(&["L40S"], 91.6, 362.05),
    // RTX PRO Blackwell white paper v1.0, table 4: 364 dense, 728 sparse.
    board(&["RTX 6000 Ada Generation"], 91.1, 364.0),
    // V100 datasheet 2020 and T4 datasheet: tensor cores for f16 alone.
    before_ampere(&["V100-SXM2-16GB", "V100-SXM2-32GB"], 15.7, 125.0),
    before_ampere(&["V100-PCIE-16GB", "V100-PCIE-32GB"], 14.0, 112.0),
    before_ampere(&["V100S-PCIE-32GB"], 16.4, 130.0),
    before_ampere(&["T4"], 8.1, 65.0),
    // RTX Blackwell white paper, table 3: 209.5/419 for the 5090. The others from NVIDIA's AI TOPS
    // (FP4 sparse: 1801, 1406, 988, 759), of which bf16 is a sixteenth, as it is of the 5090's
    // 3352.
    board(&["RTX 5090"], 104.8, 209.5),
    board(&["RTX 5080"], 56.3, 112.6),
    board(&["RTX 5070 Ti"], 43.9, 87.9),
    board(&["RTX 5070"], 30.9, 61.7),
    board(&["RTX 5060 Ti"], 23.7, 47.4),
    // Ada white paper v2.02, appendix A: 165.2/330.4 for the 4090. The others from NVIDIA's AI TOPS
    // (INT8 sparse: 836, 780, 706, 641, 568, 466, 353, 242), of which bf16 is an eighth, as it is
    // of the 4090's 1321.
    board(&["RTX 4090"], 82.6, 165.2),
    board(&["RTX 4080 SUPER"], 52.2, 104.5),
    board(&["RTX 4080"], 48.7, 97.5),
    board(&["RTX 4070 Ti SUPER"], 44.1, 88.2),
    board(&["RTX 4070 Ti"], 40.1, 80.1),
    board(&["RTX 4070 SUPER"], 35.5, 71.0),
    board(&["RTX 4070"], 29.1, 58.3),
    board(&["RTX 4060 Ti"], 22.1, 44.1),
    board(&["RTX 4060"], 15.1, 30.2),
    // RTX Blackwell white paper, table 3 (3090: 71.2/142.4); GA102 white paper v2, appendix A
    // (3080, 3070).
    board(&["RTX 3090 Ti"], 40.0, 80.0),
    board(&["RTX 3090"], 35.6, 71.2),
    // The later 12 GB board has the same name and 3 % more.
    board(&["RTX 3080"], 29.8, 59.5),
    board(&["RTX 3070"], 20.3, 40.6),
];

/// The dense peak of a board at a precision, in FLOP/s; `None` for a board or precision that is not
/// in the table.
pub(super) fn peak(name: &str, precision: &str) -> Option<f64> {
    let name = bare(name);
    let board = BOARDS.iter().find(|board| {
        board
            .names
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    })?;
    let tera = match precision {
        "f32" => Some(board.f32),
        "amp-f16" => Some(board.f16),
        "amp-bf16" | "bf16" => board.is_ampere_or_newer.then_some(board.f16),
        "tf32" => board.is_ampere_or_newer.then_some(board.f16 / 2.0),
        _ => None,
    }?;
    Some(tera * 1e12)
}

/// A board's name without the prefixes that older and newer drivers add.
fn bare(name: &str) -> &str {
    ["NVIDIA ", "Tesla ", "GeForce "]
        .iter()
        .fold(name.trim(), |name, word| {
            name.strip_prefix(word).unwrap_or(name)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16(name: &str) -> Option<f64> {
        peak(name, "amp-bf16").map(|flops| flops / 1e12)
    }

    #[test]
    fn boards_are_found_by_the_names_that_drivers_give_them() {
        let known = [
            ("NVIDIA H100 80GB HBM3", 989.5),
            ("NVIDIA H100 PCIe", 756.5),
            ("NVIDIA H100 NVL", 835.5),
            ("NVIDIA H200", 989.5),
            ("NVIDIA H200 NVL", 835.5),
            ("NVIDIA GH200 480GB", 989.5),
            ("NVIDIA B200", 2250.0),
            ("NVIDIA GB200", 2500.0),
            ("NVIDIA A100-SXM4-80GB", 312.0),
            ("A100-SXM4-40GB", 312.0),
            ("NVIDIA A100 80GB PCIe", 312.0),
            ("NVIDIA A10", 125.0),
            ("NVIDIA A40", 149.7),
            ("NVIDIA RTX A6000", 154.8),
            ("NVIDIA RTX 6000 Ada Generation", 364.0),
            ("NVIDIA L4", 121.0),
            ("NVIDIA L40", 181.05),
            ("NVIDIA L40S", 362.05),
            ("NVIDIA GeForce RTX 5070 Ti", 87.9),
            ("NVIDIA GeForce RTX 5070", 61.7),
            ("NVIDIA GeForce RTX 4090", 165.2),
            ("NVIDIA GeForce RTX 4080 SUPER", 104.5),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", 88.2),
            ("NVIDIA GeForce RTX 3090 Ti", 80.0),
            ("GeForce RTX 3090", 71.2),
        ];
        for (name, tera) in known {
            assert_eq!(bf16(name), Some(tera), "{name}");
        }
        assert_eq!(peak("NVIDIA H100 PCIe", "f32"), Some(51.0e12));
        assert_eq!(peak("NVIDIA H200", "f64"), None);
    }

    #[test]
    fn one_board_has_a_peak_for_each_precision() {
        let of = |name: &str| {
            ["f32", "tf32", "bf16", "amp-bf16", "amp-f16"]
                .map(|precision| peak(name, precision).map(|flops| flops / 1e12))
        };
        assert_eq!(
            of("NVIDIA A100-SXM4-80GB"),
            [19.5, 156.0, 312.0, 312.0, 312.0].map(Some)
        );
        assert_eq!(
            of("NVIDIA H100 80GB HBM3"),
            [67.0, 494.75, 989.5, 989.5, 989.5].map(Some)
        );
        assert_eq!(
            of("NVIDIA GeForce RTX 4090"),
            [82.6, 82.6, 165.2, 165.2, 165.2].map(Some)
        );
        assert_eq!(
            of("Tesla V100-SXM2-32GB"),
            [Some(15.7), None, None, None, Some(125.0)]
        );
        assert_eq!(of("Tesla T4"), [Some(8.1), None, None, None, Some(65.0)]);
    }

    #[test]
    fn a_longer_or_shorter_name_is_another_product() {
        let others = [
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA GeForce RTX 5090 D",
            "NVIDIA GeForce RTX 3080 Ti",
            "NVIDIA GeForce RTX 4080 Laptop GPU",
            "NVIDIA RTX A1000",
            "NVIDIA A1000",
            "NVIDIA A100X",
            "NVIDIA A100-SXM-64GB",
            "NVIDIA A10G",
            "NVIDIA H100",
            "NVIDIA H100 80GB HBM2e",
            "NVIDIA H20",
            "NVIDIA H800 PCIe",
            "NVIDIA L40G",
            "NVIDIA RTX 4000 Ada Generation",
            "NVIDIA RTX 6000",
            "Quadro RTX 6000",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "Intel(R) Xeon(R) CPU @ 2.00GHz",
            "NVIDIA",
            "",
        ];
        for other in others {
            assert_eq!(
                (bf16(other), peak(other, "amp-f16"), peak(other, "f32")),
                (None, None, None),
                "{other:?}"
            );
        }
    }

    #[test]
    fn chips_before_ampere_have_neither_bf16_nor_tf32() {
        for (name, tera) in [
            ("Tesla V100-SXM2-16GB", 15.7),
            ("Tesla V100-PCIE-32GB", 14.0),
            ("Tesla V100S-PCIE-32GB", 16.4),
            ("Tesla T4", 8.1),
        ] {
            assert_eq!(
                (bf16(name), peak(name, "tf32"), peak(name, "f32")),
                (None, None, Some(tera * 1e12)),
                "{name}"
            );
        }
    }

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<&str> = BOARDS
            .iter()
            .flat_map(|board| board.names)
            .copied()
            .collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn geforce_figures_are_neither_sparse_nor_of_f16_accumulation() {
        let is_geforce = |name: &str| {
            name.starts_with("RTX ") && !name.starts_with("RTX A") && !name.ends_with("Generation")
        };
        for board in BOARDS.iter().filter(|board| is_geforce(board.names[0])) {
            // Twice the rate of the f32 units in every paper; with f16 accumulation, or sparse, it
            // is four times.
            let ratio = board.f16 / board.f32;
            assert!((ratio - 2.0).abs() < 0.02, "{}: {ratio}", board.names[0]);
        }
    }
}
