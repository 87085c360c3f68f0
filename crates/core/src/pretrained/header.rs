//! The header of a safetensors file: its names, shapes, formats and metadata, read without the values.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{input, limits::WEIGHTS_BYTES};

/// Source: safetensors, `MAX_HEADER_SIZE`.
const MOST_BYTES: u64 = 100_000_000;
/// Bytes that are compared at once. Chosen.
const CHUNK_BYTES: usize = 1 << 20;
/// The key of the metadata among the names.
const METADATA: &str = "__metadata__";

/// Shapes and number formats of the tensors of a file, and what else its header says, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsHeader {
    pub shapes: BTreeMap<String, Vec<u64>>,
    /// As safetensors names them: `F32`.
    pub formats: BTreeMap<String, String>,
    pub metadata: BTreeMap<String, String>,
}

/// A tensor in the header.
#[derive(Debug, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    /// Begin and end of its bytes, counted from the end of the header.
    data_offsets: [u64; 2],
}

impl WeightsHeader {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a whole safetensors file (`InvalidData`).
    pub fn read(path: &Path) -> io::Result<Self> {
        let opened = Opened::new(path)?;
        let mut header = Self {
            metadata: opened.metadata,
            ..Self::default()
        };
        for (name, entry) in opened.entries {
            header.formats.insert(name.clone(), entry.dtype);
            header.shapes.insert(name, entry.shape);
        }
        Ok(header)
    }
}

/// A file whose header was read.
struct Opened {
    file: File,
    /// The end of the header, in bytes.
    begin: u64,
    entries: Entries,
    metadata: BTreeMap<String, String>,
}

impl Opened {
    fn new(path: &Path) -> io::Result<Self> {
        let mut file = input::open_within(path, &WEIGHTS_BYTES)?;
        let whole = file.metadata()?.len();
        let mut length = [0; size_of::<u64>()];
        file.read_exact(&mut length).map_err(|_| not_one())?;
        let length = u64::from_le_bytes(length);
        if length > MOST_BYTES {
            return Err(not_one());
        }
        let mut text = Vec::new();
        file.by_ref().take(length).read_to_end(&mut text)?;
        let (entries, metadata) = parse(&text).ok_or_else(not_one)?;
        let begin = length + size_of::<u64>() as u64;
        check_places(&entries, whole.saturating_sub(begin))?;
        Ok(Self {
            file,
            begin,
            entries,
            metadata,
        })
    }
}

/// Whether two tensors of a file have the same bits; not if one is missing.
///
/// # Errors
/// As [`WeightsHeader::read`].
pub fn have_same_bits(path: &Path, [one, other]: [&str; 2]) -> io::Result<bool> {
    let opened = Opened::new(path)?;
    let entries = [one, other].map(|name| opened.entries.get(name));
    let [Some(one), Some(other)] = entries else {
        return Ok(false);
    };
    let begins = [one, other].map(|entry| opened.begin + entry.data_offsets[0]);
    let lengths = [one, other].map(|entry| entry.data_offsets[1] - entry.data_offsets[0]);
    if one.dtype != other.dtype || lengths[0] != lengths[1] {
        return Ok(false);
    }
    let mut chunks = [vec![0_u8; CHUNK_BYTES], vec![0_u8; CHUNK_BYTES]];
    let mut done = 0;
    while done < lengths[0] {
        let size = (lengths[0] - done).min(CHUNK_BYTES as u64);
        for (chunk, begin) in chunks.iter_mut().zip(begins) {
            chunk.truncate(size as usize);
            opened.file.read_exact_at(chunk, begin + done)?;
        }
        if chunks[0] != chunks[1] {
            return Ok(false);
        }
        done += size;
    }
    Ok(true)
}

type Entries = BTreeMap<String, Entry>;

fn parse(text: &[u8]) -> Option<(Entries, BTreeMap<String, String>)> {
    let all: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let (mut entries, mut metadata) = (Entries::new(), BTreeMap::new());
    for (name, value) in all {
        if name == METADATA {
            metadata = serde_json::from_value(value).ok()?;
        } else {
            entries.insert(name, serde_json::from_value(value).ok()?);
        }
    }
    Some((entries, metadata))
}

/// Whether the tensors fill the `rest` bytes after the header, one after the other, each with as many
/// as its shape has.
fn check_places(entries: &Entries, rest: u64) -> io::Result<()> {
    let mut places: Vec<(&String, &Entry)> = entries.iter().collect();
    places.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end = 0;
    for (name, entry) in places {
        let [from, to] = entry.data_offsets;
        let bytes = entry.bytes().or(to.checked_sub(from));
        if from != end || to < from || bytes != Some(to - from) {
            let what = format!(
                "`{name}` is at bytes {from} to {to}, which does not fit its shape {:?} in {}, or the \
                 tensors around it",
                entry.shape, entry.dtype
            );
            return Err(broken(&what));
        }
        end = to;
    }
    if end != rest {
        let what =
            format!("its tensors take {end} bytes after the header, and the file has {rest} there");
        return Err(broken(&what));
    }
    Ok(())
}

impl Entry {
    /// The bytes of so many values in this format; `None` for a format that is not known here.
    fn bytes(&self) -> Option<u64> {
        let size = match self.dtype.as_str() {
            "F64" | "I64" | "U64" => 8,
            "F32" | "I32" | "U32" => 4,
            "F16" | "BF16" | "I16" | "U16" => 2,
            "I8" | "U8" | "BOOL" => 1,
            _ => return None,
        };
        let mut sizes = self.shape.iter();
        sizes.try_fold(size, |bytes: u64, size| bytes.checked_mul(*size))
    }
}

fn not_one() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a safetensors file")
}

fn broken(what: &str) -> io::Error {
    let message = format!("it is not a whole safetensors file: {what}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_shapes_and_metadata_are_read_and_other_files_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let read = |length: u64, text: &str| {
            fs::write(&path, [&length.to_le_bytes(), text.as_bytes()].concat()).unwrap();
            WeightsHeader::read(&path).map_err(|error| error.kind())
        };
        let text = "{\"__metadata__\": {\"a\": \"b\"}, \"w\": {\"dtype\": \"F32\", \"shape\": [2, 3], \
                    \"data_offsets\": [0, 24]}}";
        let header = read(text.len() as u64, &format!("{text}{}", "v".repeat(24))).unwrap();
        assert_eq!(header.shapes["w"], [2, 3]);
        assert_eq!(header.formats["w"], "F32");
        assert_eq!(header.metadata["a"], "b");
        for (length, text) in [
            (u64::MAX, text),
            (3, text),
            (2, "[]"),
            (15, "{\"w\": {\"a\": 1}}"),
        ] {
            assert_eq!(
                read(length, text),
                Err(io::ErrorKind::InvalidData),
                "{length}"
            );
        }
        fs::write(&path, "short").unwrap();
        let error = WeightsHeader::read(&path).unwrap_err();
        assert_eq!(error.to_string(), "it is not a safetensors file");
    }

    #[test]
    fn tensors_fill_the_rest_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let read = |tensors: &str, bytes: usize| {
            let length = (tensors.len() as u64).to_le_bytes();
            let all = [&length[..], tensors.as_bytes(), &vec![0; bytes][..]].concat();
            fs::write(&path, all).unwrap();
            WeightsHeader::read(&path).map_err(|error| error.to_string())
        };
        let tensor = |dtype: &str, from: u64, to: u64| {
            format!("{{\"dtype\": \"{dtype}\", \"shape\": [2], \"data_offsets\": [{from}, {to}]}}")
        };
        let two = |one: String, other: String| format!("{{\"b\": {one}, \"a\": {other}}}");
        let whole = two(tensor("F32", 0, 8), tensor("F16", 8, 12));
        assert!(read(&whole, 12).is_ok());
        for bytes in [11, 13] {
            let message = read(&whole, bytes).unwrap_err();
            let end = format!("take 12 bytes after the header, and the file has {bytes} there");
            assert!(message.ends_with(&end), "{message}");
        }
        // A size of a format that is not known here is that of its place.
        assert!(read(&two(tensor("F32", 0, 8), tensor("F4", 8, 9)), 9).is_ok());
        for (one, other) in [
            (tensor("F32", 0, 8), tensor("F16", 6, 10)),
            (tensor("F32", 0, 8), tensor("F16", 9, 13)),
            (tensor("F32", 0, 8), tensor("F64", 8, 12)),
            (tensor("F32", 0, 8), tensor("F4", 8, 7)),
        ] {
            let message = read(&two(one, other), 12).unwrap_err();
            assert!(message.contains("`a` is at bytes "), "{message}");
        }
    }

    #[test]
    fn bits_of_two_tensors_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let size = CHUNK_BYTES + 4;
        let tensors: Vec<String> = ["a", "b", "c"]
            .iter()
            .zip(0..)
            .map(|(name, at)| {
                format!(
                    "\"{name}\": {{\"dtype\": \"U8\", \"shape\": [{size}], \"data_offsets\": \
                     [{}, {}]}}",
                    at * size,
                    (at + 1) * size
                )
            })
            .collect();
        let text = format!("{{{}}}", tensors.join(", "));
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len() + 3 * size, 7);
        *bytes.last_mut().unwrap() = 8;
        fs::write(&path, bytes).unwrap();
        let same = |one: &str, other: &str| have_same_bits(&path, [one, other]).unwrap();
        assert!(same("a", "b"));
        assert!(!same("a", "c"));
        assert!(!same("a", "d"));
    }
}
