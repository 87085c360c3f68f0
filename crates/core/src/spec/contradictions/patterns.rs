//! Faults of regular expressions. The points of a sweep share their patterns, and compiling one
//! takes longer than all other checks of a point.

use std::{cell::RefCell, collections::HashMap};

use crate::kinds::command::{line_pattern, regular_expression};

/// Faults by pattern; `None` for a sound one.
type Faults = RefCell<HashMap<String, Option<String>>>;

/// The faults of the patterns of an experiment: each is compiled once, whatever the number of
/// points.
#[derive(Debug, Default)]
pub struct PatternMemo {
    lines: Faults,
    others: Faults,
}

impl PatternMemo {
    /// The fault of the pattern of a metric's line, as a sentence that follows the key.
    pub(super) fn fault_of_line(&self, pattern: &str) -> Option<String> {
        fault(&self.lines, pattern, |pattern| line_pattern(pattern).err())
    }

    /// The fault of any other pattern, as a sentence that follows the key.
    pub(super) fn fault(&self, pattern: &str) -> Option<String> {
        fault(&self.others, pattern, |pattern| {
            regular_expression(pattern).err()
        })
    }
}

fn fault(known: &Faults, pattern: &str, check: fn(&str) -> Option<String>) -> Option<String> {
    if let Some(fault) = known.borrow().get(pattern) {
        return fault.clone();
    }
    let fault = check(pattern);
    known.borrow_mut().insert(pattern.to_owned(), fault.clone());
    fault
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::command::compiled_patterns;

    #[test]
    fn a_pattern_is_compiled_once_for_each_use() {
        let (memo, before) = (PatternMemo::default(), compiled_patterns());
        for _ in 0..3 {
            assert_eq!(memo.fault_of_line("speed: (.*)"), None);
            // A line needs a group, and a window does not.
            assert!(memo.fault_of_line("done").unwrap().contains("no group"));
            assert_eq!(memo.fault("done"), None);
            assert!(
                memo.fault("(")
                    .unwrap()
                    .contains("not a regular expression")
            );
        }
        assert_eq!(compiled_patterns() - before, 4);
    }
}
