//! The header of a safetensors file: its names, shapes and metadata, read without the values.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::Path,
};

use serde_json::{Map, Value};

use crate::{input, limits::WEIGHTS_BYTES};

/// Source: safetensors, `MAX_HEADER_SIZE`.
const MOST_BYTES: u64 = 100_000_000;
/// The key of the metadata among the names.
const METADATA: &str = "__metadata__";

/// Shapes of the tensors of a file, and what else its header says, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsHeader {
    pub shapes: BTreeMap<String, Vec<u64>>,
    pub metadata: BTreeMap<String, String>,
}

impl WeightsHeader {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a safetensors file (`InvalidData`).
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut file = input::open_within(path, &WEIGHTS_BYTES)?;
        let mut length = [0; size_of::<u64>()];
        file.read_exact(&mut length).map_err(|_| not_one())?;
        let length = u64::from_le_bytes(length);
        if length > MOST_BYTES {
            return Err(not_one());
        }
        let mut text = Vec::new();
        file.take(length).read_to_end(&mut text)?;
        Self::parse(&text).ok_or_else(not_one)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let entries: Map<String, Value> = serde_json::from_slice(text).ok()?;
        let mut header = Self::default();
        for (name, value) in entries {
            if name == METADATA {
                header.metadata = serde_json::from_value(value).ok()?;
            } else {
                let shape = serde_json::from_value(value.get("shape")?.clone()).ok()?;
                header.shapes.insert(name, shape);
            }
        }
        Some(header)
    }
}

fn not_one() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a safetensors file")
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
        let header = read(text.len() as u64, &format!("{text}values")).unwrap();
        assert_eq!(header.shapes["w"], [2, 3]);
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
}
