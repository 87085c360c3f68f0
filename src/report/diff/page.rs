//! Prints the differences between two runs for people.

use std::fmt::Write;

use kiln_core::units::{counted, short_hash, without_controls};

use super::{FactPair, RunDiff, Section, record::THEN};
use crate::{output::markdown, report::two_values};

/// Keys are padded to this width at most.
const WIDEST_KEY: usize = 44;

impl RunDiff {
    /// For a terminal, ending in a line feed. `a` and `b` name the runs.
    pub fn text(&self, a: &str, b: &str) -> String {
        let (a, b) = (without_controls(a), without_controls(b));
        let mut page = format!("A: {a}\nB: {b}\n\n{}\n", self.headline());
        for section in Section::ALL {
            let lines = self.lines(section);
            if !lines.is_empty() {
                let _ = writeln!(page, "\n{} (A → B)", section.name());
                page.push_str(&padded(&lines));
            }
        }
        if let Some(equal) = self.equal_facts() {
            let _ = writeln!(page, "\n{equal}");
        }
        let unknown: Vec<(String, String)> = self.unknown.iter().map(unknown_line).collect();
        if !unknown.is_empty() {
            page.push_str("\nnot recorded\n");
            page.push_str(&padded(&unknown));
        }
        page
    }

    /// For a pull request.
    pub fn markdown(&self, a: &str, b: &str) -> String {
        let mut page = format!(
            "# {}\n\nA: {}, B: {}.\n",
            markdown::inline(&self.headline()),
            markdown::inline(a),
            markdown::inline(b)
        );
        for section in Section::ALL {
            let pairs = self.differences_of(section);
            if !pairs.is_empty() {
                let cells = pairs.iter().map(|pair| {
                    let [a, b] = sides(pair);
                    vec![pair.key.clone(), a, b]
                });
                let heads = ["key", "A", "B"].map(str::to_owned);
                let table = markdown::table(&heads, cells);
                let _ = write!(page, "\n## {}\n\n{table}", section.name());
            }
        }
        if let Some(equal) = self.equal_facts() {
            let _ = writeln!(page, "\n{}", markdown::line(&equal));
        }
        if !self.unknown.is_empty() {
            page.push_str("\nNot recorded:\n\n");
            for (key, told) in self.unknown.iter().map(unknown_line) {
                let _ = writeln!(page, "- {}", markdown::line(&format!("{key} {told}")));
            }
        }
        page
    }

    /// `differ in 2 settings, 1 of machine`; what is not recorded is never said to be equal.
    fn headline(&self) -> String {
        let counts: Vec<String> = Section::ALL
            .into_iter()
            .map(|section| (section, self.differences_of(section).len()))
            .filter(|(_, count)| *count > 0)
            .map(|(section, count)| in_section(section, count))
            .collect();
        let unknown = match self.unknown.len() {
            0 => String::new(),
            count => format!("; {} not recorded by both", counted(count, "fact")),
        };
        match counts.is_empty() {
            true => format!("nothing that both runs recorded differs{unknown}"),
            false => format!("different: {}{unknown}", counts.join(", ")),
        }
    }

    fn differences_of(&self, section: Section) -> Vec<&FactPair> {
        let pairs = self.differences.iter();
        pairs.filter(|pair| pair.section == section).collect()
    }

    fn lines(&self, section: Section) -> Vec<(String, String)> {
        let line = |pair: &&FactPair| {
            let [a, b] = sides(pair);
            (pair.key.clone(), format!("{a} → {b}"))
        };
        self.differences_of(section).iter().map(line).collect()
    }

    fn equal_facts(&self) -> Option<String> {
        let counts: Vec<String> = Section::ALL
            .into_iter()
            .filter_map(|section| Some(in_section(section, *self.equal.get(&section)?)))
            .collect();
        (!counts.is_empty()).then(|| format!("equal: {}", counts.join(", ")))
    }
}

/// `2 settings`, `3 of machine`.
fn in_section(section: Section, count: usize) -> String {
    match section {
        Section::Settings => counted(count, "setting"),
        Section::Versions => counted(count, "version"),
        Section::Flags => counted(count, "flag"),
        other => format!("{count} of {}", other.name()),
    }
}

/// Lines of key and text, the keys as wide as the widest of them.
fn padded(lines: &[(String, String)]) -> String {
    let lines: Vec<[String; 2]> = lines
        .iter()
        .map(|(key, text)| [key, text].map(|text| without_controls(text)))
        .collect();
    let widths = lines.iter().map(|[key, _]| key.chars().count());
    let width = widths
        .filter(|width| *width <= WIDEST_KEY)
        .max()
        .unwrap_or(0);
    let line = |[key, text]: &[String; 2]| format!("  {key:<width$}  {text}\n");
    lines.iter().map(line).collect()
}

/// Where a fact is known, in words.
fn unknown_line(pair: &FactPair) -> (String, String) {
    let cut = |value: &String| match value.is_empty() {
        true => String::new(),
        false => format!(": {}", two_values::cut(&short(value))),
    };
    let completed = match (&pair.a, &pair.b) {
        (None, None) => "by neither".to_owned(),
        (None, Some(b)) => format!("by A (B{})", cut(b)),
        (Some(a), None) => format!("by B (A{})", cut(a)),
        (Some(_), Some(_)) => "completely by both".to_owned(),
    };
    (pair.key.clone(), completed)
}

/// Both values, cut so that their first difference shows.
fn sides(pair: &FactPair) -> [String; 2] {
    let none = match pair.section {
        Section::Settings | Section::Flags => "(not set)",
        _ => "(none)",
    };
    let [a, b] = [&pair.a, &pair.b].map(|side| side.as_deref().map(short));
    two_values::sides([a.as_deref(), b.as_deref()], none)
}

/// A value with each of its hashes short. A fact that changed during a run has several values.
fn short(value: &str) -> String {
    let each: Vec<String> = value.split(THEN).map(short_hash).collect();
    each.join(THEN)
}
