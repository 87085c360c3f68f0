//! The texts that trained models wrote (`train.sample`) and their answers to validation prompts
//! (`train.evaluate.generate`), as the attempts' folders keep them.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use kiln_core::{
    folder::{self, Folder},
    record::{RunFolder, TrialRow},
    units::{counted, decimals, shorten},
};

use serde::Deserialize;

use crate::report::views::{RunView, name_in};

/// Trials whose texts a page shows.
const MOST_TRIALS: usize = 20;
/// Bytes of a trial's texts on a page.
const MOST_BYTES: usize = 4000;
/// Answers of a trial on a page.
const MOST_ANSWERS: usize = 8;
/// Bytes of a file of answers that are read.
const MOST_READ: usize = 64 << 10;
/// Letters of a prompt, an answer or a reference on a page.
const MOST_LETTERS: usize = 400;

#[derive(Default)]
pub(super) struct Texts {
    pub(super) trials: Vec<TrialTexts>,
    /// Whether more trials may have texts than are shown.
    pub(super) is_cut: bool,
}

pub(super) struct TrialTexts {
    pub(super) title: String,
    /// Empty if the trial has answers alone.
    pub(super) text: String,
    pub(super) answers: Vec<Answer>,
    /// Say what is not shown.
    pub(super) notes: Vec<String>,
}

/// One line of a file of answers.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Answer {
    pub(super) prompt: String,
    pub(super) response: String,
    /// The data's response.
    #[serde(default)]
    pub(super) reference: String,
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
                let title = title(row, &name_in(runs, place, point));
                match TrialTexts::of(folder, row, title) {
                    Ok(found) => texts.trials.extend(found),
                    Err(error) => faults.push(error.to_string()),
                }
            }
            texts.is_cut |= rows.next().is_some();
        }
        texts
    }
}

impl TrialTexts {
    /// `None` if the attempt wrote nothing.
    fn of(folder: &RunFolder, row: &TrialRow, title: String) -> io::Result<Option<Self>> {
        let (texts, responses) = (
            folder.sample_texts(&row.trial, row.attempt),
            folder.responses(&row.trial, row.attempt),
        );
        let read = |path: &Path, most| match open_below(folder.path(), path) {
            Ok(file) => beginning(file, most).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let mut found = Self {
            title,
            text: String::new(),
            answers: Vec::new(),
            notes: Vec::new(),
        };
        if let Some((text, left_out)) = read(&texts, MOST_BYTES)? {
            found.text = text;
            found.notes.extend(left_out.map(|count| {
                let bytes = counted(usize::try_from(count).unwrap_or(usize::MAX), "byte");
                format!("{bytes} more in {}", texts.display())
            }));
        }
        if let Some((lines, left_out)) = read(&responses, MOST_READ)? {
            let (answers, has_more) = answers(&lines, left_out.is_some())
                .map_err(|error| io::Error::other(format!("{}: {error}", responses.display())))?;
            found.answers = answers;
            if has_more {
                found
                    .notes
                    .push(format!("more answers in {}", responses.display()));
            }
        }
        let has_any = !found.text.is_empty() || !found.answers.is_empty();
        Ok(has_any.then_some(found))
    }
}

/// The first answers, their texts shortened, and whether there are more. The last line of a file
/// that `is_cut` is not whole.
fn answers(lines: &str, is_cut: bool) -> serde_json::Result<(Vec<Answer>, bool)> {
    let whole = match lines.rfind('\n') {
        Some(end) if is_cut => &lines[..end],
        None if is_cut => "",
        _ => lines,
    };
    let mut rest = whole.lines().filter(|line| !line.trim().is_empty());
    let answers = rest
        .by_ref()
        .take(MOST_ANSWERS)
        .map(|line| {
            let answer: Answer = serde_json::from_str(line)?;
            Ok(Answer {
                prompt: shorten(&answer.prompt, MOST_LETTERS),
                response: shorten(&answer.response, MOST_LETTERS),
                reference: shorten(&answer.reference, MOST_LETTERS),
            })
        })
        .collect::<serde_json::Result<_>>()?;
    Ok((answers, is_cut || rest.next().is_some()))
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

/// Opens a file of the run. No link below its folder is followed: it could lead to a file that
/// nobody means to publish.
fn open_below(run: &Path, path: &Path) -> io::Result<File> {
    let below = path.strip_prefix(run).map_err(io::Error::other)?;
    let (above, name) = folder::split(below)?;
    Folder::follow(run)?.folder(above)?.read(name)
}

/// The first bytes of a file as text, and the number of bytes that follow, if any.
fn beginning(file: File, most: usize) -> io::Result<(String, Option<u64>)> {
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
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
    use std::{fs, os::unix};

    use super::*;
    use crate::report::points::tests::{row, table};

    #[test]
    fn a_long_text_is_cut_between_letters_and_the_rest_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.txt");
        let beginning_of = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            beginning(File::open(&path).unwrap(), MOST_BYTES).unwrap()
        };
        let whole = "a".repeat(MOST_BYTES);
        assert_eq!(beginning_of(whole.as_bytes()), (whole.clone(), None));
        // A letter of two bytes lies across the end.
        let long = format!("{}é!", &whole[1..]);
        assert_eq!(
            beginning_of(long.as_bytes()),
            (whole[1..].to_owned(), Some(3))
        );
        assert_eq!(beginning_of(b"a\xffb"), ("a\u{fffd}b".to_owned(), None));
    }

    #[test]
    fn the_first_answers_are_shown_and_long_ones_are_cut() {
        let line = |number: usize| {
            format!(
                "{{\"prompt\": \"question {number}\", \"response\": \"{}\", \"reference\": \"é\"}}\n",
                "ü".repeat(MOST_LETTERS + number)
            )
        };
        let file = |count: usize| (0..count).map(line).collect::<String>();
        let (found, has_more) = answers(&file(2), false).unwrap();
        assert_eq!((found.len(), has_more), (2, false));
        assert_eq!(found[0].response, "ü".repeat(MOST_LETTERS));
        assert_eq!(found[1].response, format!("{}…", "ü".repeat(MOST_LETTERS)));
        assert_eq!(
            (found[1].prompt.as_str(), found[1].reference.as_str()),
            ("question 1", "é")
        );
        let (found, has_more) = answers(&file(MOST_ANSWERS + 1), false).unwrap();
        assert_eq!((found.len(), has_more), (MOST_ANSWERS, true));
        // The beginning of a longer file ends within a line.
        let cut = file(3);
        let (found, has_more) = answers(&cut[..cut.len() - 9], true).unwrap();
        assert_eq!((found.len(), has_more), (2, true));
        assert_eq!(answers("{\"prompt\": ", true).unwrap(), (Vec::new(), true));
        assert!(answers("{\"prompt\": ", false).is_err());
        assert!(answers("{\"prompt\": \"no answer\"}", false).is_err());
    }

    #[test]
    fn texts_are_read_below_the_run_alone_and_what_is_no_file_is_named() {
        let place = tempfile::tempdir().unwrap();
        let secret = place.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let run = place.path().join("run");
        let latest = place.path().join("latest");
        let rows = [row(1, 1.0), row(2, 1.0), row(3, 1.0), row(4, 1.0)];
        let folder = RunFolder::at(&latest);
        let paths: Vec<_> = rows
            .iter()
            .map(|row| {
                let path = RunFolder::at(&run).sample_texts(&row.trial, row.attempt);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                path
            })
            .collect();
        unix::fs::symlink(&run, &latest).unwrap();
        fs::write(&paths[0], "At the boat").unwrap();
        unix::fs::symlink(&secret, &paths[1]).unwrap();
        fs::create_dir(&paths[2]).unwrap();
        let table = table(&[], rows.into_iter().map(|row| (row, &[][..])).collect());
        let view = RunView {
            folder: Some(&folder),
            ..RunView::new("r".into(), &table)
        };
        let mut faults = Vec::new();
        let texts = Texts::of(&[view], &mut faults);
        let shown: Vec<&str> = texts.trials.iter().map(|one| one.text.as_str()).collect();
        assert_eq!((shown, texts.is_cut), (vec!["At the boat"], false));
        assert!(
            faults.len() == 2
                && faults[0].contains("is a link")
                && faults[1].contains("is a folder"),
            "{faults:?}"
        );
    }
}
