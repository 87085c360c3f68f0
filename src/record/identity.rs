//! What of other people and of one particular board may be written down.

use std::borrow::Cow;

use crate::{
    hardware::{Entry, ProcessList, Reading},
    units::Bytes,
};

/// What stands in a table in place of a value that is kept back.
pub const MASKED: &str = "masked";

/// `record.identity` of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Serial numbers, other users' process names and numbers are kept back.
    Masked,
    Full,
}

impl Privacy {
    /// An entry as it may be written: a value that identifies is masked, a process's number is left out of the field's name.
    pub(super) fn apply<'a>(self, entry: &'a Entry) -> Cow<'a, Entry> {
        if self == Self::Full || !entry.is_identifying || entry.value.value().is_none() {
            return Cow::Borrowed(entry);
        }
        let field = if entry.section == "processes" { without_number(&entry.field) } else { entry.field.clone() };
        Cow::Owned(Entry { value: Reading::Value(MASKED.to_owned()), field, ..entry.clone() })
    }

    /// The cell `foreign_processes`: `none`, `unknown`, or what there was.
    pub fn foreign_processes(self, seen: &ProcessList) -> String {
        let ProcessList::Known(list) = seen else { return "unknown".to_owned() };
        if list.is_empty() {
            return "none".to_owned();
        }
        if self == Self::Masked {
            let bytes: Option<u64> = list.iter().map(|process| process.used_memory_bytes).sum();
            return format!("{} with {}", list.len(), memory(bytes));
        }
        let each = list.iter().map(|process| {
            let user = process.user.as_deref().unwrap_or("unknown user");
            format!("pid {} of {user} with {}", process.pid, memory(process.used_memory_bytes))
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown memory".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// `process_4242_name` without the number.
fn without_number(field: &str) -> String {
    field.split('_').filter(|part| part.parse::<u32>().is_err()).collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::GpuProcess;

    #[test]
    fn foreign_processes_are_counted_and_named_only_when_asked() {
        let process = |pid, bytes| GpuProcess { pid, user: Some("ada".into()), used_memory_bytes: bytes };
        let list = ProcessList::Known(vec![process(7, Some(1 << 30)), process(8, Some(1 << 30))]);
        assert_eq!(Privacy::Masked.foreign_processes(&list), "2 with 2.0 GiB");
        assert_eq!(Privacy::Full.foreign_processes(&list), "pid 7 of ada with 1.0 GiB; pid 8 of ada with 1.0 GiB");
        assert_eq!(Privacy::Masked.foreign_processes(&ProcessList::Known(vec![process(7, None)])), "1 with unknown memory");
        assert_eq!(Privacy::Masked.foreign_processes(&ProcessList::Known(vec![])), "none");
        assert_eq!(Privacy::Full.foreign_processes(&ProcessList::Unknown("hidden".into())), "unknown");
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
        assert_eq!((masked.field.as_str(), masked.value.value().map(String::as_str)), ("process_name", Some(MASKED)));
        assert_eq!(Privacy::Full.apply(&entry).field, "process_4242_name");
    }
}
