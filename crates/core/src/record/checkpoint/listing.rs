//! The checkpoints of a trial by their headers. Each header is read once, so that what is chosen among
//! them and what is deleted agree, also where the system fails to read one only once.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    ListedCheckpoint,
    header::{Header, Unusable},
};

/// The checkpoints of a folder, as one reading of their headers showed them.
#[derive(Debug)]
pub struct Listing {
    folder: PathBuf,
    /// By step.
    headers: Vec<(u64, Result<Header, Unusable>)>,
}

impl Listing {
    pub(super) fn new(folder: PathBuf, headers: Vec<(u64, Result<Header, Unusable>)>) -> Self {
        Self { folder, headers }
    }

    /// The steps that have a checkpoint, in order.
    pub fn steps(&self) -> Vec<u64> {
        self.headers.iter().map(|(step, _)| *step).collect()
    }

    /// The checkpoint whose weights are the trial's result: the one with the lowest validation
    /// loss, else the newest. One whose header cannot be used is passed over ([`Listing::unread`],
    /// [`Listing::damaged`]).
    pub fn result(&self) -> Option<ListedCheckpoint> {
        let lowest = self.lowest().map(|(_, step)| step);
        let mut newest_first = self.headers.iter().rev();
        let (step, header) = newest_first.find_map(|(step, header)| {
            let header = header.as_ref().ok()?;
            lowest
                .is_none_or(|lowest| lowest == *step)
                .then_some((*step, header))
        })?;
        Some(ListedCheckpoint {
            step,
            valid_loss: header.valid_loss,
            folder: self.folder.join(step.to_string()),
        })
    }

    /// The lowest validation loss among the checkpoints, and its step.
    pub fn lowest(&self) -> Option<(f64, u64)> {
        let losses = self
            .headers
            .iter()
            .filter_map(|(step, header)| Some((header.as_ref().ok()?.valid_loss?, *step)));
        losses.min_by(|(a, _), (b, _)| a.total_cmp(b))
    }

    /// The error of the newest checkpoint whose header the system could not read; `None` if it could read
    /// all.
    pub fn unread(&self) -> Option<io::Error> {
        self.newest_fault(|step, fault| match fault {
            Unusable::Unread(cause) => Some(unread_at(&self.folder.join(step.to_string()), cause)),
            Unusable::Content(_) | Unusable::Newer(_) => None,
        })
    }

    /// The fault of the newest checkpoint whose header is damaged, or of another version; `None` if there
    /// is none.
    pub fn damaged(&self) -> Option<String> {
        self.newest_fault(|step, fault| match fault {
            Unusable::Content(why) | Unusable::Newer(why) => {
                Some(format!("the checkpoint of step {step}: {why}"))
            }
            Unusable::Unread(_) => None,
        })
    }

    /// The fault of the newest checkpoint that a newer kiln wrote; `None` if there is none.
    pub fn newer(&self) -> Option<String> {
        self.newest_fault(|step, fault| match fault {
            Unusable::Newer(why) => Some(format!("the checkpoint of step {step}: {why}")),
            Unusable::Unread(_) | Unusable::Content(_) => None,
        })
    }

    /// Looks at the headers that cannot be used, the newest first; returns the first answer of `of`.
    fn newest_fault<T>(&self, of: impl Fn(u64, &Unusable) -> Option<T>) -> Option<T> {
        let mut newest_first = self.headers.iter().rev();
        newest_first.find_map(|(step, header)| of(*step, header.as_ref().err()?))
    }

    /// The steps of all but this many of the newest; without the one with the lowest validation loss
    /// if it stays.
    pub(super) fn superfluous(&self, newest: u64, with_best: bool) -> Vec<u64> {
        let best = self.lowest().filter(|_| with_best).map(|(_, step)| step);
        let old = self
            .headers
            .len()
            .saturating_sub(usize::try_from(newest).unwrap_or(usize::MAX));
        self.headers[..old]
            .iter()
            .filter(|(step, header)| best != Some(*step) && !may_be_usable(header))
            .map(|(step, _)| *step)
            .collect()
    }

    /// The steps of all but the trial's result; those that may be it stay.
    pub(super) fn all_but_result(&self) -> Vec<u64> {
        let Some(result) = self.result() else {
            // None is usable: the newest stays, as evidence.
            return self.superfluous(1, false);
        };
        self.headers
            .iter()
            .filter(|(step, header)| *step != result.step && !may_be_usable(header))
            .map(|(step, _)| *step)
            .collect()
    }
}

/// Whether a header could be used another time, or by a newer kiln: its loss may be the lowest.
fn may_be_usable(header: &Result<Header, Unusable>) -> bool {
    matches!(header, Err(Unusable::Unread(_) | Unusable::Newer(_)))
}

/// The error of a checkpoint that the system could not read.
pub(super) fn unread_at(path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(
        cause.kind(),
        format!(
            "the checkpoint {} could not be read now: {cause}",
            path.display()
        ),
    )
}
