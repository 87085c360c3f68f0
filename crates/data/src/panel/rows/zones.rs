//! Dates with a time zone and dates without one: a panel has one sort of them.

use std::path::Path;

use csv::ByteRecord;

use super::place;
use crate::error::PanelError;

/// Where the first row of a file with each sort of date begins, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::panel) struct Zones {
    zoned: Option<usize>,
    local: Option<usize>,
}

impl Zones {
    pub(super) fn add(&mut self, is_zoned: bool, record: &ByteRecord) {
        let first = if is_zoned {
            &mut self.zoned
        } else {
            &mut self.local
        };
        if first.is_none() {
            *first = record.position().map(|position| position.byte() as usize);
        }
    }

    /// Whether a date has an offset from UTC.
    pub(in crate::panel) fn has_offset(self) -> bool {
        self.zoned.is_some()
    }

    pub(super) fn are_mixed(self) -> bool {
        self.zoned.is_some() && self.local.is_some()
    }
}

/// Where a panel first has each sort of date: file and line.
#[derive(Debug, Default)]
pub(in crate::panel) struct ZonePlaces {
    zoned: Option<String>,
    local: Option<String>,
}

impl ZonePlaces {
    /// Adds those of a file.
    ///
    /// # Errors
    /// There are dates of both sorts.
    pub(in crate::panel) fn add(
        &mut self,
        file: &Path,
        bytes: &[u8],
        zones: Zones,
    ) -> Result<(), PanelError> {
        let line = |start: usize| format!("{}:{}", file.display(), place(bytes, start, 0).0);
        if self.zoned.is_none() {
            self.zoned = zones.zoned.map(line);
        }
        if self.local.is_none() {
            self.local = zones.local.map(line);
        }
        match (&self.zoned, &self.local) {
            (Some(zoned), Some(local)) => Err(PanelError::MixedZones {
                zoned: zoned.clone(),
                local: local.clone(),
            }),
            _ => Ok(()),
        }
    }
}
