//! Masks identities of people, processes and boards in the tables.

use std::{borrow::Cow, path::PathBuf};

use kiln_core::{
    spec::{Experiment, Identity},
    units::{Bytes, listed},
};
use kiln_hardware::{Entry, ProcessList, Reading};

/// Text in a table in place of a masked value.
pub const MASKED: &str = "masked";

/// `record.identity` of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Serial numbers and other users' process names and ids are masked.
    Masked,
    Full,
}

impl Privacy {
    /// The privacy that `record.identity` of the experiment asks for.
    pub fn of(experiment: &Experiment) -> Self {
        match experiment.record.identity {
            Identity::Masked => Self::Masked,
            Identity::Full => Self::Full,
        }
    }

    /// Returns an entry for a table: an identifying value is masked, and a process id is removed
    /// from the field's name.
    pub(super) fn apply<'a>(self, entry: &'a Entry) -> Cow<'a, Entry> {
        if self == Self::Full || !entry.is_identifying || entry.value.value().is_none() {
            return Cow::Borrowed(entry);
        }
        let field = if entry.section == "processes" {
            without_number(&entry.field)
        } else {
            entry.field.clone()
        };
        Cow::Owned(Entry {
            value: Reading::Value(MASKED.to_owned()),
            field,
            ..entry.clone()
        })
    }

    /// The cell `foreign_processes`: `none`, `unknown`, or what there was.
    pub fn foreign_processes(self, seen: &ProcessList) -> String {
        let ProcessList::Known(list) = seen else {
            return "unknown".to_owned();
        };
        if list.is_empty() {
            return "none".to_owned();
        }
        if self == Self::Masked {
            let bytes: Option<u64> = list.iter().map(|process| process.used_memory_bytes).sum();
            return format!("{} with {}", list.len(), memory(bytes));
        }
        let each = list.iter().map(|process| {
            let user = process.user.as_deref().unwrap_or("unknown user");
            format!(
                "pid {} of {user} with {}",
                process.pid,
                memory(process.used_memory_bytes)
            )
        });
        listed(&each.collect::<Vec<_>>(), "; ")
    }
}

/// The user's folders that are hidden in a committed file.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    working_directory: Option<String>,
    home: Option<String>,
}

impl Paths {
    /// The working directory and `$HOME`; nothing is hidden if identities may be recorded.
    pub fn here(privacy: Privacy) -> Self {
        let text = |path: PathBuf| path.into_os_string().into_string().ok();
        match privacy {
            Privacy::Full => Self::default(),
            Privacy::Masked => Self {
                working_directory: std::env::current_dir().ok().and_then(text),
                home: std::env::var_os("HOME")
                    .map(PathBuf::from)
                    .filter(|home| home.is_absolute())
                    .and_then(text),
            },
        }
    }

    /// Returns the text with paths under the working directory relative to it, and paths under the
    /// home directory starting with `~`.
    pub fn hide(&self, text: &str) -> String {
        let in_place = [(&self.working_directory, "."), (&self.home, "~")];
        in_place
            .into_iter()
            .fold(text.to_owned(), |text, (folder, word)| {
                match folder.as_deref().map(|folder| folder.trim_end_matches('/')) {
                    Some(folder) if !folder.is_empty() => replaced(&text, folder, word),
                    _ => text,
                }
            })
    }
}

/// `folder` as a whole path or as the beginning of one, replaced by `word`; `./` before a further
/// part is left out.
fn replaced(text: &str, folder: &str, word: &str) -> String {
    let is_of_a_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '~');
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(folder) {
        let (before, after) = (&rest[..at], &rest[at + folder.len()..]);
        let begins = !before
            .chars()
            .next_back()
            .or(done.chars().next_back())
            .is_some_and(|c| is_of_a_name(c) || c == '/');
        // A full stop may end the sentence.
        let following = after
            .strip_prefix('.')
            .filter(|rest| !rest.starts_with(is_of_a_name))
            .unwrap_or(after);
        let ends = !following.starts_with(is_of_a_name);
        done.push_str(before);
        rest = match (begins && ends, after.strip_prefix('/')) {
            (true, Some(part)) if word == "." && part.starts_with(is_of_a_name) => part,
            (true, _) => {
                done.push_str(word);
                after
            }
            (false, _) => {
                done.push_str(folder);
                after
            }
        };
    }
    done + rest
}

fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "unknown memory".to_owned(),
        |bytes| Bytes(bytes).to_string(),
    )
}

/// `process_4242_name` without the number.
fn without_number(field: &str) -> String {
    field
        .split('_')
        .filter(|part| part.parse::<u32>().is_err())
        .collect::<Vec<_>>()
        .join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_hardware::GpuProcess;

    #[test]
    fn foreign_processes_are_counted_and_named_only_when_asked() {
        let process = |pid, bytes| GpuProcess {
            pid,
            user: Some("ada".into()),
            used_memory_bytes: bytes,
        };
        let list = ProcessList::Known(vec![process(7, Some(1 << 30)), process(8, Some(1 << 30))]);
        assert_eq!(Privacy::Masked.foreign_processes(&list), "2 with 2.0 GiB");
        assert_eq!(
            Privacy::Full.foreign_processes(&list),
            "pid 7 of ada with 1.0 GiB; pid 8 of ada with 1.0 GiB"
        );
        assert_eq!(
            Privacy::Masked.foreign_processes(&ProcessList::Known(vec![process(7, None)])),
            "1 with unknown memory"
        );
        assert_eq!(
            Privacy::Masked.foreign_processes(&ProcessList::Known(vec![])),
            "none"
        );
        assert_eq!(
            Privacy::Full.foreign_processes(&ProcessList::Unknown("hidden".into())),
            "unknown"
        );
    }

    #[test]
    fn paths_of_this_user_are_relative_or_begin_at_home() {
        let paths = Paths {
            working_directory: Some("/home/ada/work".into()),
            home: Some("/home/ada".into()),
        };
        for (text, hidden) in [
            (
                "see /home/ada/work/results/x.csv: no",
                "see results/x.csv: no",
            ),
            ("--results=/home/ada/runs", "--results=~/runs"),
            (
                "`/home/ada/work`, /home/ada/work/ and /home/ada.",
                "`.`, ./ and ~.",
            ),
            (
                "/home/ada.old /home/adam/x /mnt/home/ada/x /home/ada/work-2/x",
                "/home/ada.old /home/adam/x /mnt/home/ada/x ~/work-2/x",
            ),
            ("experiments/x.yaml:3", "experiments/x.yaml:3"),
        ] {
            assert_eq!(paths.hide(text), hidden, "{text}");
        }
        let root = Paths {
            working_directory: Some("/".into()),
            home: None,
        };
        assert_eq!(
            (
                root.hide("/tmp/x"),
                Paths::here(Privacy::Full).hide("/tmp/x")
            ),
            ("/tmp/x".to_owned(), "/tmp/x".to_owned())
        );
    }

    #[test]
    fn a_masked_process_keeps_neither_name_nor_number() {
        let entry = Entry {
            section: "processes",
            field: "process_4242_name".into(),
            value: Reading::Value("/home/ada/train".into()),
            unit: "",
            is_identifying: true,
        };
        let masked = Privacy::Masked.apply(&entry);
        assert_eq!(
            (
                masked.field.as_str(),
                masked.value.value().map(String::as_str)
            ),
            ("process_name", Some(MASKED))
        );
        assert_eq!(Privacy::Full.apply(&entry).field, "process_4242_name");
    }
}
