//! The lines of an output that come nearest to a pattern that matched none of them.

const MOST_LINES: usize = 3;
const LONGEST_SHOWN: usize = 100;

/// The last different lines that contain the metric's name, else those with a digit, in their order.
pub(super) fn nearest(name: &str, output: &str) -> Vec<String> {
    let name = name.to_lowercase();
    let named = last_lines(output, |line| line.to_lowercase().contains(&name));
    match named.is_empty() {
        true => last_lines(output, |line| line.contains(|c: char| c.is_ascii_digit())),
        false => named,
    }
}

fn last_lines(output: &str, is_near: impl Fn(&str) -> bool) -> Vec<String> {
    let mut near: Vec<String> = Vec::new();
    for line in output.split(['\n', '\r']).rev().map(str::trim) {
        let shown = quoted(line);
        if is_near(line) && !near.contains(&shown) {
            near.push(shown);
        }
        if near.len() == MOST_LINES {
            break;
        }
    }
    near.reverse();
    near
}

/// A line for a message: without control characters, cut if it is long, in quotation marks.
pub(super) fn quoted(line: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = line.chars().take(LONGEST_SHOWN).map(clean).collect();
    if line.chars().nth(LONGEST_SHOWN).is_some() {
        shown.push('…');
    }
    format!("'{shown}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_the_name_come_before_lines_with_a_number() {
        let output = "loaded 3 files\nLoss = 2.5\nLoss = 2.0\rLoss = 2.0\nepoch 1 done\nbye\n";
        assert_eq!(nearest("loss", output), ["'Loss = 2.5'", "'Loss = 2.0'"]);
        assert_eq!(
            nearest("gflops", output),
            ["'Loss = 2.5'", "'Loss = 2.0'", "'epoch 1 done'"]
        );
        assert!(nearest("gflops", "hello\nbye\n").is_empty());
    }

    #[test]
    fn a_long_line_is_cut() {
        let cut = quoted(&"é".repeat(LONGEST_SHOWN + 1));
        assert_eq!(cut.chars().count(), LONGEST_SHOWN + 3);
        assert!(cut.ends_with("…'"), "{cut}");
    }
}
