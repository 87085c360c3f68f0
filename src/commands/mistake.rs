//! Probable mistakes in an experiment file, of which check, plan, run and tune warn.

use kiln_core::spec::Location;

use super::{excerpt::Excerpts, note, warning};

/// A probable mistake in an experiment that can be run.
#[derive(Clone, Debug)]
pub(super) struct Mistake {
    pub(super) place: Option<Location>,
    pub(super) what: String,
    /// Whether its line in the file is not for others to see.
    pub(super) is_secret: bool,
}

/// Prints mistakes to standard error, each with the line of the file in which it is.
pub(super) fn warn_of(mistakes: Vec<Mistake>) {
    let mut excerpts = Excerpts::default();
    for mistake in mistakes {
        let what = &mistake.what;
        warning(&match &mistake.place {
            Some(place) => format!("{place}: warning: {what}"),
            None => format!("warning: {what}"),
        });
        let shown = mistake.place.filter(|_| !mistake.is_secret);
        let lines = shown.map(|place| excerpts.of(&place, ""));
        lines.iter().flatten().for_each(|line| note(line));
    }
}

/// Probable mistakes as texts, for JSON.
pub(super) fn in_texts(mistakes: Vec<Mistake>) -> Vec<String> {
    let text = |mistake: Mistake| match mistake.place {
        Some(place) => format!("{place}: {}", mistake.what),
        None => mistake.what,
    };
    mistakes.into_iter().map(text).collect()
}
