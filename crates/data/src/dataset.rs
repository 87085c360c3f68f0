//! The public data sets: each is declared beside the keys of its kind in `kiln_core::kinds::data`.

pub use kiln_core::kinds::data::{Checksum, Dataset, DatasetFile, Origin};
use kiln_core::kinds::data::{Data, DataFacts, datasets};

/// All known sets.
pub fn all() -> Vec<&'static Dataset> {
    datasets()
}

/// The set with this name or folder.
pub fn find(name: &str) -> Option<&'static Dataset> {
    datasets()
        .into_iter()
        .find(|set| set.name == name || set.folder == name)
}

/// Known counts of the published bytes with these settings; `None` means that they must be counted.
pub fn known_facts(data: &Data, sha256: &str) -> Option<DataFacts> {
    Some(DataFacts {
        counts: data.known_counts(sha256)?,
        sha256: sha256.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_found_by_name_and_by_folder() {
        let name = |name| find(name).map(|set| set.name);
        assert_eq!(name("wikitext2"), Some("wikitext2"));
        assert_eq!(name("wikitext-2"), Some("wikitext2"));
        assert_eq!(name("wikitext"), None);
    }

    #[test]
    fn the_name_of_a_set_is_that_of_its_kind() {
        for set in all() {
            let data: Data = serde_yaml::from_str(&format!("{{kind: {}}}", set.name)).unwrap();
            assert_eq!(data.dataset(), Some(set));
        }
    }

    #[test]
    fn every_file_has_a_whole_hash_and_an_address() {
        for set in all() {
            assert!(set.address.starts_with("https://") && set.address.ends_with('/'));
            for file in set.files {
                let digits = if matches!(file.checksum, Checksum::Md5(_)) {
                    32
                } else {
                    64
                };
                let hex = file.checksum.hex();
                assert!(hex.len() == digits && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
            }
        }
    }
}
