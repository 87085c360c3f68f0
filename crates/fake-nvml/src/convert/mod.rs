//! Makes scenarios from the output of `nvidia-smi` on a real machine: `-q` text, `-q -x` XML, or a
//! full capture with both moments and the `--query-gpu` table. Input: text. Output: a scenario of
//! calls and raw values.
//!
//! `text`, `xml` and `csv` read into one tree of labels (`page`); `invert` turns labels into calls.
//! Neither looks at a board's name: every rule follows from a label and its cell.

mod csv;
mod invert;
mod page;
mod rules;
mod text;
mod words;
mod xml;

use crate::Scenario;

pub use page::{Node, Page};

/// One of the two moments of a full capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    Idle,
    #[default]
    Load,
}

/// Selects which capture is used where the text and the table, taken one after the other, differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    #[default]
    Text,
    Table,
}

/// The reason why a text is not a capture.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(
        "neither `nvidia-smi -q` text nor `-q -x` XML: no line with `NVSMI LOG` and no \
         `<nvidia_smi_log>`"
    )]
    Unknown,
    #[error("the XML cannot be read: {0}")]
    Xml(#[from] roxmltree::Error),
    #[error("it begins as UTF-16 text but is not valid UTF-16; save it as UTF-8")]
    Encoding,
    #[error("it contains no GPU block")]
    NoGpu,
}

/// A `--query-gpu` table: properties, without their units, and a row per GPU.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub properties: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The table's first line as it was printed.
    pub header: String,
}

/// A capture's bytes as text. PowerShell writes UTF-16, with a mark before it that says which.
///
/// # Errors
/// An incomplete character at the end, or a byte that is not valid text.
pub fn decode(bytes: &[u8]) -> Result<String, ConvertError> {
    let wide = |rest: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, left) = rest.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        String::from_utf16(&units)
            .ok()
            .filter(|_| left.is_empty())
            .ok_or(ConvertError::Encoding)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => Ok(String::from_utf8_lossy(rest).into_owned()),
        // Names of processes may be in any encoding.
        plain => Ok(String::from_utf8_lossy(plain).into_owned()),
    }
}

/// The page of labels in a capture.
///
/// # Errors
/// The text has none of the known forms.
pub fn page(capture: &str, moment: Moment) -> Result<Page, ConvertError> {
    let page = if let Some(start) = capture.find("<nvidia_smi_log") {
        xml::read(capture.get(start..).unwrap_or_default())?
    } else {
        text::read(text::log_of(capture, moment).ok_or(ConvertError::Unknown)?)
    };
    if page.gpus.is_empty() {
        Err(ConvertError::NoGpu)
    } else {
        Ok(page)
    }
}

/// The lines of `-q` text in a capture, from the timestamp on; `None` for XML.
#[must_use]
pub fn log(capture: &str, moment: Moment) -> Option<Vec<&str>> {
    text::log_of(capture, moment).map(|log| log.lines().collect())
}

/// The table of a full capture.
#[must_use]
pub fn table(capture: &str, moment: Moment) -> Option<Table> {
    csv::table(capture, moment)
}

/// The scenario behind a capture.
///
/// # Errors
/// As [`page`].
pub fn scenario(capture: &str, moment: Moment, prefer: Prefer) -> Result<Scenario, ConvertError> {
    let mut page = page(capture, moment)?;
    if let Some(table) = csv::table(capture, moment) {
        csv::lay_over(&mut page, &table, prefer);
    }
    Ok(invert::scenario(&page))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn text_of_powershell_is_read() {
        let little: Vec<u8> = [0xff, 0xfe]
            .into_iter()
            .chain("GPU\n".encode_utf16().flat_map(u16::to_le_bytes))
            .collect();
        let big: Vec<u8> = [0xfe, 0xff]
            .into_iter()
            .chain("GPU\n".encode_utf16().flat_map(u16::to_be_bytes))
            .collect();
        assert_eq!(
            [
                decode(&little).unwrap(),
                decode(&big).unwrap(),
                decode(b"\xef\xbb\xbfGPU\n").unwrap()
            ],
            ["GPU\n"; 3]
        );
        assert!(matches!(decode(&little[..5]), Err(ConvertError::Encoding)));
    }
}
