//! Kind of processor, beyond the name that many kinds share: several generations call themselves
//! `AMD EPYC` inside a virtual machine.

/// Features that a level of x86-64 adds to the one before. Source: System V ABI, AMD64 supplement,
/// table 3.1; names as in `/proc/cpuinfo`.
const LEVELS: [(&str, &[&str]); 3] = [
    (
        "x86-64-v2",
        &[
            "cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3",
        ],
    ),
    (
        "x86-64-v3",
        &[
            "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave",
        ],
    ),
    (
        "x86-64-v4",
        &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
    ),
];

/// Beyond any level, what decides how fast a network runs in narrow numbers; of 64-bit ARM what
/// decides it at all.
const UNITS: [&str; 10] = [
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "sve",
    "sve2",
    "bf16",
];

/// Units that multiply bf16.
const BF16: [&str; 3] = ["avx512_bf16", "amx_bf16", "bf16"];

/// `AuthenticAMD 25-17-1 x86-64-v4 avx512_vnni avx512_bf16`: vendor, family-model-stepping, level
/// and units, from the text of `/proc/cpuinfo`; of ARM implementer, part, variant and revision.
/// `None` for a text without them.
pub fn identity(cpu_info: &str) -> Option<String> {
    let field = |key: &str| {
        let line = cpu_info.lines().find(|line| {
            line.split(':')
                .next()
                .is_some_and(|name| name.trim() == key)
        })?;
        Some(line.split_once(':')?.1.trim())
    };
    let flags: Vec<&str> = field("flags")
        .or_else(|| field("Features"))
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let name = match (field("vendor_id"), field("CPU implementer")) {
        (Some(vendor), _) => format!(
            "{vendor} {}-{}-{}",
            field("cpu family")?,
            field("model")?,
            field("stepping").unwrap_or("?")
        ),
        (None, Some(implementer)) => {
            format!(
                "{implementer} {} r{}p{}",
                field("CPU part")?,
                field("CPU variant").unwrap_or("?"),
                field("CPU revision").unwrap_or("?")
            )
        }
        (None, None) => return None,
    };
    let has_all = |needed: &[&str]| needed.iter().all(|flag| flags.contains(flag));
    let level = LEVELS
        .iter()
        .take_while(|(_, needed)| has_all(needed))
        .last()
        .map(|(level, _)| *level);
    let units = UNITS.iter().copied().filter(|unit| flags.contains(unit));
    Some(
        std::iter::once(name.as_str())
            .chain(level)
            .chain(units)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

/// Whether a processor with this [`identity`] multiplies bf16; if not, such products are emulated.
pub fn has_bf16(identity: &str) -> bool {
    identity.split(' ').any(|word| BF16.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Description of two kinds of processor that both call themselves `AMD EPYC`.
    fn epyc(family: u32, model: u32, more: &str) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: \
             {model}\nmodel name\t: AMD EPYC\nstepping\t: 1\n\
             flags\t\t: fpu pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm \
             abm bmi1 avx2 bmi2 {more}\n\nprocessor\t: 1\n"
        )
    }

    #[test]
    fn processors_of_one_name_are_told_apart() {
        let milan = identity(&epyc(25, 1, "")).unwrap();
        let genoa = identity(&epyc(
            25,
            17,
            "avx512f avx512dq avx512cd avx512bw avx512vl avx512_bf16 avx512_vnni",
        ))
        .unwrap();
        assert_eq!(milan, "AuthenticAMD 25-1-1 x86-64-v3");
        assert_eq!(
            genoa,
            "AuthenticAMD 25-17-1 x86-64-v4 avx512_vnni avx512_bf16"
        );
        assert!(!has_bf16(&milan) && has_bf16(&genoa));
        // A level is reached only by way of those below it.
        assert_eq!(identity(&epyc(25, 1, "avx512f")).unwrap(), milan);
    }

    #[test]
    fn an_arm_processor_has_its_part_and_a_text_of_nothing_has_none() {
        let text = "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\nCPU \
                    variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 1\n";
        assert_eq!(identity(text).unwrap(), "0x41 0xd4f r0x0p1 asimd sve bf16");
        assert!(has_bf16(&identity(text).unwrap()));
        assert_eq!(
            (identity(""), identity("processor : 0\nflags : fpu")),
            (None, None)
        );
    }
}
