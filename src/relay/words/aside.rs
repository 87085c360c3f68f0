//! Lines at the end of an output that say nothing about that end. Pure.

/// Words of lines that stand last in an output and say nothing about the end: the source of a
/// warning, a bar of progress, Hydra's hint.
const ASIDES: [&str; 5] = ["warn(", "%|", "it/s", "s/it", "HYDRA_FULL_ERROR=1"];

/// What is left of tqdm's second bar.
const CURSOR_UP: &str = "\u{1b}[A";

/// Beginnings of lines that may follow the end of a program and say nothing about it.
const TRAILERS: [&str; 4] = ["wandb:", "WARNING", "Warning:", "For simplicity, JAX has removed"];

pub(super) fn is_aside(line: &str) -> bool {
    !line.contains(char::is_alphanumeric)
        || line.starts_with("note: ")
        || line == CURSOR_UP
        || ASIDES.iter().any(|words| line.contains(words))
        || is_warning_of_python(line)
}

/// Whether a line may follow the end of a program without a word about it.
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
