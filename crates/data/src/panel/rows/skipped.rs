//! Rows that `data.skip_bad` drops.

use std::path::Path;

use jiff::civil::DateTime;

use super::{Cells, Rows, SkipReason, WantedColumns, open, order};
use crate::error::PanelError;

/// Refuses a file of which `data.skip_bad` skips more than one row, and more than 5 % of the rows,
/// although they can be read: what is left would look whole.
///
/// # Errors
/// There are more; the error counts them.
pub(in crate::panel) fn refuse_selection(
    file: &Path,
    bytes: &[u8],
    rows: &Rows,
    wanted: &WantedColumns,
) -> Result<(), PanelError> {
    let all = rows.dates.len() as u64 + rows.skipped;
    let of_selection = rows.reasons.iter().filter(|(why, _)| why.is_selection());
    let skipped: u64 = of_selection.clone().map(|(_, count)| count).sum();
    if skipped <= 1 || skipped * 20 <= all {
        return Ok(());
    }
    let counts = of_selection.map(|(why, count)| {
        let [one, several] = why.words();
        format!("{count} {}", if *count == 1 { one } else { several })
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    let (names, _) = open(file, bytes)?;
    let cells = Cells::find(file, &names, wanted)?;
    let remedy = if rows.reasons.contains_key(&SkipReason::NotAfter) {
        order::remedy(file, bytes, cells.date)
    } else {
        None
    };
    Err(PanelError::Selection {
        file: file.to_owned(),
        counts,
        rows: all,
        remedy: remedy.unwrap_or_else(|| "correct them, or name other columns".to_owned()),
    })
}

/// Drops the fewest rows that leave the dates ascending without repeats, the later ones where there
/// is a choice: a date far in the future drops its own row, and not all that follow.
pub(super) fn keep_ascending(rows: &mut Rows, columns: usize) {
    let ascends = |pair: &[DateTime]| pair[0] < pair[1];
    if rows.dates.windows(2).all(ascends) {
        return;
    }
    // The number of rows that can be kept from each row on, itself included. `starts[n]` is the
    // latest date that n further rows can follow.
    let (mut from_here, mut starts) = (vec![0; rows.dates.len()], Vec::<DateTime>::new());
    for (at, date) in rows.dates.iter().enumerate().rev() {
        let further = starts.partition_point(|start| start > date);
        from_here[at] = further + 1;
        match starts.get_mut(further) {
            Some(start) => *start = *date,
            None => starts.push(*date),
        }
    }
    let (all, mut missing, mut kept) = (rows.dates.len(), starts.len(), 0);
    for (at, reach) in from_here.into_iter().enumerate() {
        let follows = kept == 0 || rows.dates[kept - 1] < rows.dates[at];
        if reach == missing && follows {
            rows.dates[kept] = rows.dates[at];
            let row = at * columns..(at + 1) * columns;
            rows.values.copy_within(row, kept * columns);
            kept += 1;
            missing -= 1;
        }
    }
    rows.dates.truncate(kept);
    rows.values.truncate(kept * columns);
    rows.skip(SkipReason::NotAfter, (all - kept) as u64);
}
