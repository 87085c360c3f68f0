//! Whether the program of an attempt resumes from a checkpoint, and which of its numbers then measure
//! only a part of the work.

use std::{fs, path::Path};

use kiln_core::{
    input::is_absent,
    kinds::command::{Command, Measured},
    patience::patiently,
    record::note::ResumedCommand,
};

use super::result::Figures;

/// The metric by which a program itself says where it began.
const STEP: &str = "resumed_at_step";

/// Whether an earlier attempt left something in the checkpoint folder. It is asked before any
/// program of this attempt runs.
pub(super) fn finds_checkpoint(attempt: u64, folder: Option<&Path>) -> bool {
    // One that cannot be read may hold some.
    let holds_files = |folder: &Path| match patiently(|| fs::read_dir(folder)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => !is_absent(&error),
    };
    attempt > 1 && folder.is_some_and(holds_files)
}

/// Marks the numbers of an attempt that resumed, and leaves out the times that kiln measured. What
/// the program says counts more than what is in its folder; a step of 0 is the beginning.
pub(super) fn mark(command: &Command, finds_checkpoint: bool, figures: &mut Figures) {
    let numbers = &mut figures.numbers;
    let told = numbers.iter().find(|(name, _)| name == STEP);
    // A count may miss its integer by a rounding error.
    let is_later = |step: f64| step.round() > 0.0;
    let is_resumed = told.map_or(finds_checkpoint, |(_, step)| is_later(*step));
    numbers.retain(|(name, step)| name != STEP || is_later(*step));
    if !is_resumed {
        return;
    }
    let metrics = command.every_metric();
    let is_time = |name: &str| {
        let measured = metrics.get(name).and_then(|metric| metric.measured);
        matches!(measured, Some(Measured::WallSeconds | Measured::CpuSeconds))
    };
    let (why, text) = match finds_checkpoint {
        true => (
            "files of an earlier attempt were in its checkpoint folder, so this time may be of a part \
             of its work",
            ResumedCommand::TEXT,
        ),
        false => (
            "its metric `resumed_at_step` says that it did not begin at step 0, so this time may be of \
             a part of its work",
            ResumedCommand::TOLD_TEXT,
        ),
    };
    for (name, _) in numbers.iter().filter(|(name, _)| is_time(name)) {
        figures.notes.insert(name.clone(), why.to_owned());
    }
    numbers.retain(|(name, _)| !is_time(name));
    figures
        .notes
        .insert(ResumedCommand::COLUMN.to_owned(), text.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_attempt_resumes_from_what_is_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let finds = |attempt| finds_checkpoint(attempt, Some(folder.path()));
        assert!(!finds(2), "an empty folder");
        fs::write(folder.path().join("at"), "3").unwrap();
        assert_eq!([1, 2].map(finds), [false, true]);
        assert!(!finds_checkpoint(2, None));
        assert!(!finds_checkpoint(2, Some(&folder.path().join("none"))));
        let itself = folder.path().join("loop");
        std::os::unix::fs::symlink("loop", &itself).unwrap();
        assert!(finds_checkpoint(2, Some(&itself)), "it cannot be read");
    }

    /// The figures that are left of these numbers, with their notes.
    fn left(yaml: &str, finds: bool, numbers: &[(&str, f64)]) -> Figures {
        let command: Command = serde_yaml::from_str(&format!("argv: [x]\n{yaml}")).unwrap();
        let own = |(name, value): &(&str, f64)| ((*name).to_owned(), *value);
        let mut figures = Figures {
            numbers: numbers.iter().map(own).collect(),
            ..Figures::default()
        };
        mark(&command, finds, &mut figures);
        figures
    }

    /// The numbers and notes that are left of these.
    fn marked(yaml: &str, finds: bool, numbers: &[(&str, f64)]) -> (Vec<String>, Vec<String>) {
        let figures = left(yaml, finds, numbers);
        let names = figures.numbers.into_iter().map(|(name, _)| name);
        (names.collect(), figures.notes.into_keys().collect())
    }

    #[test]
    fn a_resumed_attempt_has_no_times_of_a_part() {
        let own = "metrics: {wall: {measured: wall_seconds}, loss: {key: loss}}";
        let numbers = [("wall", 1.9), ("loss", 0.5)];
        assert_eq!(
            marked(own, true, &numbers),
            (
                vec!["loss".to_owned()],
                vec!["resumed".to_owned(), "wall".to_owned()]
            )
        );
        assert_eq!(marked(own, false, &numbers).1, Vec::<String>::new());
        assert_eq!(marked(own, false, &numbers).0, ["wall", "loss"]);
        // Without metrics, they are the three that kiln measures.
        let measured = Measured::ALL.map(|measured| (measured.name(), 1.0));
        assert_eq!(marked("", true, &measured).0, ["peak_memory_bytes"]);
    }

    #[test]
    fn the_step_that_a_program_tells_decides() {
        let yaml = "metrics: {resumed_at_step: {key: from}, wall: {measured: wall_seconds}}";
        let of = |finds, step| marked(yaml, finds, &[("resumed_at_step", step), ("wall", 2.0)]);
        assert_eq!(of(true, 0.0).0, ["wall"]);
        assert_eq!(of(false, 9.0).0, ["resumed_at_step"]);
        assert!(of(false, 9.0).1.contains(&"resumed".to_owned()));
        // As it is rounded in the table.
        assert_eq!(
            of(false, 1e-7),
            (vec!["wall".to_owned()], Vec::<String>::new())
        );
        let notes =
            |finds, step| left(yaml, finds, &[("resumed_at_step", step), ("wall", 2.0)]).notes;
        for (finds, part) in [
            (true, "files of an earlier attempt"),
            (false, "its metric `res"),
        ] {
            let notes = notes(finds, 2.0000000001);
            for name in ["resumed", "wall"] {
                assert!(notes[name].starts_with(part), "{name}: {notes:?}");
            }
        }
    }
}
