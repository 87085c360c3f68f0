//! Checks the `precompiled_charsmap` of a tokenizer file: the tables of SentencePiece's normalizer.
//!
//! The library that reads them indexes them without checks, so a damaged file would end the
//! program. Form: the number of bytes of the trie (32 bits, little-endian), the trie in 32-bit
//! units, then the texts that replace others, each ended by a zero byte. Source: the crate
//! `spm_precompiled`, after SentencePiece's `normalizer.cc` and darts-clone.

use std::collections::HashSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;

/// The only part of a tokenizer file that has such tables.
#[derive(Deserialize)]
struct WithNormalizer {
    #[serde(default)]
    normalizer: Value,
}

/// The key of the tables in the file.
const KEY: &str = "precompiled_charsmap";

/// Checks all tables of a tokenizer file, and that it is JSON: the library panics at some files that
/// are not.
///
/// # Errors
/// A description of the damage.
pub(super) fn check_all(file: &[u8]) -> Result<(), String> {
    let WithNormalizer { normalizer } =
        serde_json::from_slice(file).map_err(|error| error.to_string())?;
    check_within(&normalizer).map_err(|fault| format!("its `{KEY}` is damaged: {fault}"))
}

fn check_within(value: &Value) -> Result<(), String> {
    match value {
        Value::Object(map)
            if map.get("type").is_some_and(|kind| kind == "Precompiled")
                && !map.get(KEY).is_some_and(Value::is_string) =>
        {
            Err("it is missing".to_owned())
        }
        Value::Object(map) => map.iter().try_for_each(|(key, value)| match value {
            Value::String(text) if key == KEY => check_text(text),
            other => check_within(other),
        }),
        Value::Array(items) => items.iter().try_for_each(check_within),
        _ => Ok(()),
    }
}

fn check_text(text: &str) -> Result<(), String> {
    let bytes = STANDARD
        .decode(text)
        .map_err(|error| format!("it is not Base64 ({error})"))?;
    check(&bytes)
}

fn check(bytes: &[u8]) -> Result<(), String> {
    let Some((size, rest)) = bytes.split_first_chunk() else {
        return Err("it has no size".to_owned());
    };
    let size = u32::from_le_bytes(*size) as usize;
    let Some((trie, texts)) = rest.split_at_checked(size / 4 * 4) else {
        return Err(format!("its trie of {size} bytes is cut off"));
    };
    let texts = std::str::from_utf8(texts).map_err(|error| error.to_string())?;
    let units = trie
        .as_chunks()
        .0
        .iter()
        .map(|unit| u32::from_le_bytes(*unit))
        .collect();
    Trie { units, texts }.check()
}

/// A double array: a unit has the byte that leads to it, and where the units behind it begin.
struct Trie<'a> {
    units: Vec<u32>,
    texts: &'a str,
}

impl Trie<'_> {
    /// Walks every path that some text can take.
    fn check(&self) -> Result<(), String> {
        let Some(root) = self.units.first() else {
            return Err("its trie is empty".to_owned());
        };
        let mut open = vec![offset(*root)];
        let mut seen: HashSet<usize> = open.iter().copied().collect();
        while let Some(base) = open.pop() {
            for byte in 1..=usize::from(u8::MAX) {
                let place = base ^ byte;
                let unit = self.unit(place)?;
                if label(unit) != byte {
                    continue;
                }
                let behind = place ^ offset(unit);
                if has_leaf(unit) {
                    self.check_leaf(behind)?;
                }
                if seen.insert(behind) {
                    open.push(behind);
                }
            }
        }
        Ok(())
    }

    fn check_leaf(&self, place: usize) -> Result<(), String> {
        let text = (self.unit(place)? & !(1 << 31)) as usize;
        if self.texts.is_char_boundary(text) {
            Ok(())
        } else {
            Err(format!(
                "its trie names the text at byte {text} of {}",
                self.texts.len()
            ))
        }
    }

    fn unit(&self, place: usize) -> Result<u32, String> {
        self.units.get(place).copied().ok_or_else(|| {
            format!(
                "its trie has {} units and leads to unit {place}",
                self.units.len()
            )
        })
    }
}

fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

fn label(unit: u32) -> usize {
    (unit & (1 << 31 | 0xff)) as usize
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) as usize) << ((unit & (1 << 9)) >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map that replaces `a` by `b`: the root leads to unit 256 ^ `a`, its leaf is unit 768.
    fn sound() -> (Vec<u32>, &'static str) {
        let mut units = vec![0_u32; 1024];
        units[0] = 256 << 10;
        let letter = 256 ^ usize::from(b'a');
        units[letter] = u32::from(b'a') | 1 << 8 | ((letter ^ 768) as u32) << 10;
        units[768] = 1 << 31;
        (units, "b\0")
    }

    fn written(units: &[u32], texts: &[u8]) -> Vec<u8> {
        let mut bytes = ((4 * units.len()) as u32).to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(texts);
        bytes
    }

    #[test]
    fn a_sound_map_passes() {
        let (units, texts) = sound();
        assert_eq!(check(&written(&units, texts.as_bytes())), Ok(()));
    }

    #[test]
    fn every_way_out_of_the_tables_is_found() {
        let (sound, texts) = sound();
        let letter = 256 ^ usize::from(b'a');
        let broken = |change: &dyn Fn(&mut Vec<u32>)| {
            let mut units = sound.clone();
            change(&mut units);
            check(&written(&units, texts.as_bytes())).unwrap_err()
        };
        assert!(broken(&|units| units.clear()).contains("empty"));
        assert!(broken(&|units| units[0] = 1 << 30).contains("leads to unit"));
        assert!(broken(&|units| units.truncate(600)).contains("leads to unit"));
        assert!(broken(&|units| units[768] = 3).contains("byte 3 of 2"));
        assert!(broken(&|units| units[letter] |= 1 << 29).contains("leads to unit"));
        assert!(check(&[]).unwrap_err().contains("no size"));
        let mut huge = written(&sound, b"");
        huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(check(&huge).unwrap_err().contains("cut off"));
        let mut inside = written(&sound, "é".as_bytes());
        inside[4 + 4 * 768] = 1;
        assert!(check(&inside).unwrap_err().contains("byte 1 of 2"));
        assert!(check(&written(&sound, b"\xff")).is_err());
    }

    #[test]
    fn a_map_is_found_wherever_it_stands() {
        for file in [
            r#"{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}"#,
            r#"{"normalizer": {"type": "Sequence", "normalizers": [{"precompiled_charsmap": "!"}]}}"#,
        ] {
            assert!(
                check_all(file.as_bytes())
                    .unwrap_err()
                    .starts_with("its `precompiled_charsmap` is damaged: "),
                "{file}"
            );
        }
        assert_eq!(check_all(b"{}"), Ok(()));
        assert!(check_all(b"not JSON").is_err());
        let without = br#"{"normalizer": {"type": "Precompiled"}}"#;
        assert!(check_all(without).unwrap_err().ends_with("it is missing"));
        assert_eq!(check_all(br#"{"normalizer": null}"#), Ok(()));
    }
}
