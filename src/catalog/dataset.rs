//! The public data sets kiln knows: where they come from, what they weigh, under which licence, and what is in them.
//!
//! Hashes are over the uncompressed bytes, so a file kept as `.xz` or `.gz` is the same file.

use super::data::{Counts, Data, DataFacts, Tokenizer};

/// A public data set.
#[derive(Debug, PartialEq, Eq)]
pub struct Dataset {
    /// As in `data.kind` and `kiln data fetch NAME`.
    pub name: &'static str,
    /// Its folder under `$KILN_DATA` or `data/`.
    pub folder: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    pub licence: &'static str,
    /// Address that each file's name is appended to.
    pub address: &'static str,
    pub files: &'static [DatasetFile],
}

/// One published file.
#[derive(Debug, PartialEq, Eq)]
pub struct DatasetFile {
    pub name: &'static str,
    /// Length of the uncompressed file.
    pub bytes: u64,
    /// Of the uncompressed file, as hex.
    pub sha256: &'static str,
}

/// Token version of Merity et al. 2016 ("Pointer Sentinel Mixture Models"), as pytorch/examples carries it.
pub const WIKITEXT2: Dataset = Dataset {
    name: "wikitext2",
    folder: "wikitext-2",
    about: "WikiText-2, words of Wikipedia articles",
    licence: "CC BY-SA 3.0, GFDL",
    address: "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/",
    files: &[
        DatasetFile { name: "train.txt", bytes: 10_797_148, sha256: "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f" },
        DatasetFile { name: "valid.txt", bytes: 1_121_681, sha256: "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8" },
        DatasetFile { name: "test.txt", bytes: 1_256_449, sha256: "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0" },
    ],
};

/// Karpathy's char-rnn file; the text is in the public domain.
pub const TINYSHAKESPEARE: Dataset = Dataset {
    name: "tinyshakespeare",
    folder: "tinyshakespeare",
    about: "tiny Shakespeare, characters of plays",
    licence: "MIT (text: public domain)",
    address: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
    files: &[DatasetFile { name: "input.txt", bytes: 1_115_394, sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed" }],
};

/// Xiao et al. 2017 (arXiv 1708.07747).
pub const FASHION_MNIST: Dataset = Dataset {
    name: "fashion-mnist",
    folder: "fashion-mnist",
    about: "Fashion-MNIST, images of clothes",
    licence: "MIT",
    address: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    files: &[
        DatasetFile {
            name: "train-images-idx3-ubyte",
            bytes: 47_040_016,
            sha256: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        },
        DatasetFile { name: "train-labels-idx1-ubyte", bytes: 60_008, sha256: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9" },
        DatasetFile { name: "t10k-images-idx3-ubyte", bytes: 7_840_016, sha256: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b" },
        DatasetFile { name: "t10k-labels-idx1-ubyte", bytes: 10_008, sha256: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34" },
    ],
};

/// Every set that can be fetched.
pub const ALL: [&Dataset; 3] = [&WIKITEXT2, &TINYSHAKESPEARE, &FASHION_MNIST];

/// The set of this name or folder.
pub fn find(name: &str) -> Option<&'static Dataset> {
    ALL.into_iter().find(|set| set.name == name || set.folder == name)
}

/// The set that this kind of data reads; `None` for files of one's own and made-up text.
pub fn of(data: &Data) -> Option<&'static Dataset> {
    find(data.kind())
}

impl Dataset {
    /// Length of all its files, uncompressed.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// SHA-256 over train.txt and valid.txt, one after the other: all that is read of WikiText-2.
const WIKITEXT2_READ: &str = "a3e69cc54f723bd3d0f75df3cd2343194915c15e671713d4bff1eb31aa733856";
const TINYSHAKESPEARE_READ: &str = TINYSHAKESPEARE.files[0].sha256;

/// What is known of the published bytes under a tokenizer; `None` means it has to be counted. Word counts of WikiText-2 are
/// Merity et al.'s; tests count the others again where the data is at hand.
pub fn known_facts(data: &Data, sha256: &str) -> Option<DataFacts> {
    let (train_tokens, valid_tokens, vocabulary) = match (data, data.tokenizer()?, sha256) {
        (Data::Wikitext2(_), Tokenizer::Word, WIKITEXT2_READ) => (2_088_628, 217_646, 33_278),
        (Data::Wikitext2(_), Tokenizer::Character, WIKITEXT2_READ) => (10_780_437, 1_120_192, 283),
        (Data::Wikitext2(_), Tokenizer::Byte, WIKITEXT2_READ) => (10_797_148, 1_121_681, 256),
        (Data::Tinyshakespeare(_), Tokenizer::Character, TINYSHAKESPEARE_READ) => (1_003_854, 111_540, 65),
        (Data::Tinyshakespeare(_), Tokenizer::Byte, TINYSHAKESPEARE_READ) => (1_003_854, 111_540, 256),
        _ => return None,
    };
    Some(DataFacts { counts: Counts::Text { train_tokens, valid_tokens, vocabulary }, sha256: sha256.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_found_by_name_and_by_folder() {
        assert_eq!(find("wikitext2"), Some(&WIKITEXT2));
        assert_eq!(find("wikitext-2"), Some(&WIKITEXT2));
        assert_eq!(find("wikitext"), None);
    }

    #[test]
    fn every_file_has_a_whole_hash_and_an_address() {
        for set in ALL {
            assert!(set.address.starts_with("https://") && set.address.ends_with('/'));
            for file in set.files {
                assert!(file.sha256.len() == 64 && file.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()));
            }
        }
    }
}
