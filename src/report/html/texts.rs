//! The texts that trained models wrote (`train.sample`), as the attempts' folders keep them.

use std::{
    io::{self, Read},
    path::Path,
};

use kiln_core::{
    input,
    record::TrialRow,
    units::{counted, decimals},
};

use crate::report::views::{RunView, name_in};

/// Trials whose texts a page shows.
const MOST_TRIALS: usize = 20;
/// Bytes of a trial's texts on a page.
const MOST_BYTES: usize = 4000;

#[derive(Default)]
pub(super) struct Texts {
    pub(super) trials: Vec<TrialTexts>,
    /// Whether more trials may have texts than are shown.
    pub(super) is_cut: bool,
}

pub(super) struct TrialTexts {
    pub(super) title: String,
    pub(super) text: String,
    /// Says what is not shown.
    pub(super) note: Option<String>,
}

impl Texts {
    /// The trials with the lowest loss come first; files that cannot be read are listed in `faults`.
    pub(super) fn of(runs: &[RunView<'_>], faults: &mut Vec<String>) -> Self {
        let each = (MOST_TRIALS / runs.len().max(1)).max(1);
        let mut texts = Self::default();
        for (place, run) in runs.iter().enumerate() {
            let Some(folder) = run.folder.filter(|folder| folder.trials().is_dir()) else {
                continue;
            };
            let points = run.by_loss().into_iter();
            let mut rows = points.flat_map(|point| point.rows.iter().map(move |row| (point, *row)));
            let limit = texts.trials.len() + each;
            while texts.trials.len() < limit
                && let Some((point, row)) = rows.next()
            {
                let path = folder.sample_texts(&row.trial, row.attempt);
                match beginning(&path) {
                    Ok((text, left_out)) => texts.trials.push(TrialTexts {
                        title: title(row, &name_in(runs, place, point)),
                        text,
                        note: left_out.map(|count| left_out_of(&path, count)),
                    }),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => faults.push(format!("{}: {error}", path.display())),
                }
            }
            texts.is_cut |= rows.next().is_some();
        }
        texts
    }
}

/// `Trial g0123456789 (batch_size 8), valid loss 2.3146`.
fn title(row: &TrialRow, name: &str) -> String {
    let loss = match (row.valid_loss, row.train_loss) {
        (Some(loss), _) => format!(", valid loss {}", decimals(loss, 4)),
        (None, Some(loss)) => format!(", training loss {}", decimals(loss, 4)),
        (None, None) => String::new(),
    };
    format!("Trial {} ({name}){loss}", row.trial)
}

fn left_out_of(path: &Path, count: u64) -> String {
    format!(
        "{} more in {}",
        counted(usize::try_from(count).unwrap_or(usize::MAX), "byte"),
        path.display()
    )
}

/// The first bytes of a file as text, and the number of bytes that follow, if any.
fn beginning(path: &Path) -> io::Result<(String, Option<u64>)> {
    let file = input::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(MOST_BYTES as u64).read_to_end(&mut bytes)?;
    // The cut may part a letter.
    let whole = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    let left_out = length.saturating_sub(whole as u64);
    let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
    Ok((text, (left_out > 0).then_some(left_out)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_letters_and_the_rest_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.txt");
        let write = |text: &[u8]| std::fs::write(&path, text).unwrap();
        write("a".repeat(MOST_BYTES).as_bytes());
        assert_eq!(beginning(&path).unwrap(), ("a".repeat(MOST_BYTES), None));
        // A letter of two bytes lies across the end.
        write(format!("{}é!", "a".repeat(MOST_BYTES - 1)).as_bytes());
        assert_eq!(
            beginning(&path).unwrap(),
            ("a".repeat(MOST_BYTES - 1), Some(3))
        );
        write(b"a\xffb");
        assert_eq!(beginning(&path).unwrap(), ("a\u{fffd}b".to_owned(), None));
        assert!(beginning(folder.path()).is_err(), "a folder");
    }
}
