//! Lines at the end of an output that say nothing about that end. Pure.

use std::sync::LazyLock;

use regex::Regex;

/// A speed or a bar of progress (`3.2it/s`, `50%|### | 1/2`), the source of a warning, and hints of
/// Hydra and of Rust.
static ASIDE: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        r"(?:^|[\[|,]\s*)[\d?.]+\s?(?:it/s|s/it)\b",
        r"\d%\|.*\|",
        r"^\s*[\w.]*warn\((?:[^)]|$)",
        "HYDRA_FULL_ERROR=1",
        "^note: (?:run with|Some details are omitted)",
    ];
    Regex::new(&patterns.join("|")).expect("these are patterns")
});

/// The end of tqdm's output with a second bar.
const CURSOR_UP: &str = "\u{1b}[A";

/// Beginnings of lines that may follow the end of a program and say nothing about it.
const TRAILERS: [&str; 7] = [
    "wandb:",
    "srun:",
    "slurmstepd:",
    "(raylet)",
    "WARNING",
    "Warning:",
    "For simplicity, JAX has removed",
];

pub(super) fn is_aside(line: &str) -> bool {
    !line.contains(char::is_alphanumeric)
        || line == CURSOR_UP
        || ASIDE.is_match(line)
        || is_warning_of_python(line)
}

/// Whether a line may follow the end of a program and says nothing about it.
pub(super) fn is_trailer(rest: &str) -> bool {
    is_aside(rest)
        || TRAILERS.iter().any(|words| rest.starts_with(words))
        || rest.contains("wandb\u{1b}[0m:")
        // DeepSpeed ends the other processes.
        || rest.contains("sigkill_handler")
        || is_of_torch(rest)
}

/// Whether a line is from PyTorch's own log: `W1130 12:31:26.640000 30369 torch/x/api.py:1012] text`.
fn is_of_torch(rest: &str) -> bool {
    let rest = rest.strip_prefix('[').unwrap_or(rest);
    let is_date = |date: &str| date.bytes().all(|byte| byte.is_ascii_digit());
    rest.starts_with(['W', 'I', 'E'])
        && rest.get(1..5).is_some_and(is_date)
        && ["torch", "api.py:", "ProcessGroup"]
            .iter()
            .any(|words| rest.contains(words))
}

/// `/x/resource_tracker.py:254: UserWarning: text`, or Lightning's `/x/tree.py:21: it is deprecated`.
fn is_warning_of_python(line: &str) -> bool {
    let after = line.split_once(".py:").map_or("", |(_, after)| after);
    let text = after.trim_start_matches(|c: char| c.is_ascii_digit());
    text.len() < after.len()
        && text.starts_with(": ")
        && (text.contains("Warning: ") || text.contains("deprecated"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bars_warnings_and_hints_are_asides() {
        for line in [
            "  warnings.warn(",
            "warn('deprecated')",
            "rank_zero_warn(text)",
            "\r 50%|####     | 10/20 [00:01<00:01,  9.51it/s]",
            "12it [00:01, ?it/s]",
            "epoch 1: 7 [00:10, 1.4 s/it, loss=2]",
            "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
            "=====",
        ] {
            assert!(is_aside(line), "{line}");
        }
        for line in [
            "train: cannot open /data/images/item_3.png",
            "/home/me/git/src/train.cpp:10: fatal: bad shape",
            "error: link gives 3 Gbit/s, needs 5",
            "no such dataset: items/it",
            "limit/second is missing",
            "unknown key unit/scale",
            "classes/items is empty",
            "note: the file x.bin is missing",
            "warn() is not defined",
            "error: warn(x) is not defined in line 3",
            "accuracy below 50%| abort",
        ] {
            assert!(!is_aside(line), "{line}");
        }
    }
}
