//! Finds the end of the complete rows of a table, and decides whether the rest may be cut.

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use super::{TableError, TornLine, VERSION_COLUMN};
use crate::{limits::ROW_BYTES, units::shorten};

/// The part of a file that is complete rows.
pub(super) struct Extent {
    pub(super) bytes: u64,
    pub(super) torn: Option<TornLine>,
    /// Whether the last row has no line feed, which some editors remove.
    pub(super) lacks_line_feed: bool,
}

impl Extent {
    /// Whether a writer of kiln's did not come to the end of its first line: the file is empty, has
    /// a part of a header, or zero bytes.
    pub(super) fn has_no_header(&self) -> bool {
        let is_begun = |torn: &TornLine| {
            let text = torn.text.split('\0').next().unwrap_or_default();
            text.starts_with(VERSION_COLUMN) || VERSION_COLUMN.starts_with(text)
        };
        self.bytes == 0 && self.torn.as_ref().is_none_or(is_begun)
    }
}

/// Finds the end of the last complete row: the last line feed outside quotes. kiln always doubles
/// inner quotes, so counting quotes is enough. A last line with zero bytes is also torn: a file
/// system leaves such bytes after a power failure.
pub(super) fn whole_extent<R: Read + Seek>(source: &mut R) -> io::Result<Extent> {
    source.seek(SeekFrom::Start(0))?;
    let mut reader = io::BufReader::with_capacity(1 << 16, source);
    let (mut position, mut whole, mut quoted) = (0_u64, 0_u64, false);
    let (mut line, mut whole_lines) = (0_u64, 0_u64);
    let mut has_hole = false;
    let most = ROW_BYTES.value();
    loop {
        let chunk = io::BufRead::fill_buf(&mut reader)?;
        if chunk.is_empty() {
            break;
        }
        for &byte in chunk {
            position += 1;
            match byte {
                b'"' => quoted = !quoted,
                b'\n' => {
                    line += 1;
                    if !quoted && !has_hole {
                        if position - whole > most {
                            let row = ROW_BYTES.exceeded(most);
                            let place = format!("line {line}: {row}");
                            return Err(io::Error::new(io::ErrorKind::InvalidData, place));
                        }
                        (whole, whole_lines) = (position, line);
                    }
                    has_hole = false;
                }
                0 => has_hole = true,
                _ => {}
            }
        }
        let read = chunk.len();
        io::BufRead::consume(&mut reader, read);
    }
    if whole == position {
        return Ok(Extent {
            bytes: whole,
            torn: None,
            lacks_line_feed: false,
        });
    }
    let source = reader.into_inner();
    if !quoted && !has_hole && position - whole <= most && is_whole_row(source, position)? {
        return Ok(Extent {
            bytes: position,
            torn: None,
            lacks_line_feed: true,
        });
    }
    let mut rest = Vec::new();
    source.seek(SeekFrom::Start(whole))?;
    source.take(1000).read_to_end(&mut rest)?;
    let text = shorten(&String::from_utf8_lossy(&rest), 200);
    Ok(Extent {
        bytes: whole,
        torn: Some(TornLine {
            line: whole_lines + 1,
            text,
        }),
        lacks_line_feed: false,
    })
}

/// Whether what follows the last line feed of a table of so many bytes is a row and not a part of one: it
/// has all cells, and the last one is that of every row before. The values of axes and metrics, whose
/// names have a dot, differ too often to tell.
fn is_whole_row<R: Read + Seek>(source: &mut R, bytes: u64) -> io::Result<bool> {
    source.seek(SeekFrom::Start(0))?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(io::BufReader::new(source.take(bytes)));
    let mut row = csv::ByteRecord::new();
    reader.read_byte_record(&mut row)?;
    let columns = row.len();
    let names_an_axis = row
        .iter()
        .next_back()
        .is_none_or(|name| name.contains(&b'.'));
    let mut last_cell: Option<Vec<u8>> = None;
    let mut rows = 0_u64;
    while reader.read_byte_record(&mut row)? {
        let cell = row.iter().next_back().unwrap_or_default();
        let is_alike = last_cell.as_deref().is_none_or(|known| known == cell);
        if row.len() != columns || !is_alike {
            return Ok(false);
        }
        last_cell.get_or_insert_with(|| cell.to_vec());
        rows += 1;
    }
    Ok(rows > 1 && !names_an_axis)
}

/// A torn line is one row. If it contains more rows, they were once complete: an edit left a quote
/// open, and cutting would delete them.
pub(super) fn check_rest<R: Read + Seek>(
    source: &mut R,
    path: &Path,
    extent: &Extent,
    version: &str,
) -> Result<(), TableError> {
    let Some(torn) = &extent.torn else {
        return Ok(());
    };
    let kind = version.split('/').next().unwrap_or_default();
    let failed = |cause| TableError::Io {
        path: path.to_owned(),
        doing: "reading",
        cause,
    };
    source.seek(SeekFrom::Start(extent.bytes)).map_err(failed)?;
    let mut reader = io::BufReader::new(source);
    io::BufRead::skip_until(&mut reader, b'\n').map_err(failed)?;
    // Only the beginning of a line is kept: a line may be as long as the file.
    let begin = format!("{kind}/").into_bytes();
    let mut rows = 0;
    loop {
        let mut found = Vec::new();
        let mut head = Read::take(&mut reader, begin.len() as u64);
        io::BufRead::read_until(&mut head, b'\n', &mut found).map_err(failed)?;
        if found.is_empty() {
            break;
        }
        rows += u64::from(found == begin);
        if !found.ends_with(b"\n") {
            io::BufRead::skip_until(&mut reader, b'\n').map_err(failed)?;
        }
    }
    match rows {
        0 => Ok(()),
        rows => Err(TableError::OpenQuote {
            path: path.to_owned(),
            line: torn.line,
            rows,
        }),
    }
}
