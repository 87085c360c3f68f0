//! The note on steps that were replayed from CUDA graphs.

use std::fmt;

use crate::record::TrialRow;

/// Steps were replayed from CUDA graphs; a note of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedSteps {
    pub steps: u64,
    /// Shapes of batches that were recorded.
    pub shapes: usize,
}

impl ReplayedSteps {
    /// The name under which it is noted, which is the key `train.cuda_graph`.
    pub const COLUMN: &str = "cuda_graph";
    const WORDS: &str = " steps replayed from CUDA graphs, shapes of batches recorded: ";
    const WORDS_OF_CLOSURES: &str = " steps replayed from closures on the CPU, a test of CUDA \
                                     graphs, shapes of batches recorded: ";

    /// Reads the note of a row; `None` if its steps were run operator by operator.
    pub fn of(row: &TrialRow) -> Option<Self> {
        Self::of_graphs(row.note(Self::COLUMN)?)
    }

    /// Reads a note; `None` if no CUDA graph was recorded.
    pub fn of_graphs(note: &str) -> Option<Self> {
        Self::read(note, Self::WORDS)
    }

    /// Reads a note; `None` if no closure was recorded on the CPU.
    pub fn of_closures(note: &str) -> Option<Self> {
        Self::read(note, Self::WORDS_OF_CLOSURES)
    }

    /// The note where closures on the CPU stand in for CUDA graphs.
    pub fn closures_text(self) -> String {
        format!("{}{}{}", self.steps, Self::WORDS_OF_CLOSURES, self.shapes)
    }

    fn read(note: &str, words: &str) -> Option<Self> {
        let (steps, shapes) = note.split_once(words)?;
        Some(Self {
            steps: steps.parse().ok()?,
            shapes: shapes.parse().ok()?,
        })
    }
}

impl fmt::Display for ReplayedSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.steps, Self::WORDS, self.shapes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::note::noted;

    #[test]
    fn the_notes_are_read_again() {
        let replayed = ReplayedSteps {
            steps: 96,
            shapes: 2,
        };
        let row = noted(&[(ReplayedSteps::COLUMN, &replayed.to_string())]);
        assert_eq!(ReplayedSteps::of(&row), Some(replayed));
        let closures = replayed.closures_text();
        for eager in [
            "trained operator by operator because the step could not be recorded",
            closures.as_str(),
        ] {
            assert_eq!(
                ReplayedSteps::of(&noted(&[(ReplayedSteps::COLUMN, eager)])),
                None
            );
        }
        let row = noted(&[(ReplayedSteps::COLUMN, &closures)]);
        let note = row.note(ReplayedSteps::COLUMN).unwrap();
        assert_eq!(ReplayedSteps::of_closures(note), Some(replayed));
        let graphs = replayed.to_string();
        assert_eq!(ReplayedSteps::of_graphs(&graphs), Some(replayed));
        assert_eq!(ReplayedSteps::of_closures(&graphs), None);
    }

    #[test]
    fn the_checks_on_a_gpu_look_for_the_words_of_the_notes() {
        let replayed = ReplayedSteps {
            steps: 8,
            shapes: 1,
        };
        assert!(
            replayed
                .to_string()
                .starts_with("8 steps replayed from CUDA graphs")
        );
        assert!(
            replayed
                .closures_text()
                .starts_with("8 steps replayed from closures")
        );
        for (script, words) in [
            ("check_cuda_calls.py", "8 steps replayed from CUDA graphs"),
            (
                "check_gpu/trials.py",
                "cuda_graph: (\\d+) steps replayed from (CUDA graphs|closures)",
            ),
        ] {
            let path = format!("{}/../../scripts/{script}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            assert!(text.contains(words), "scripts/{script} lacks: {words}");
        }
    }
}
