//! The public data sets: address, size, license and content.
//!
//! SHA-256 is over the uncompressed bytes, so a file kept as `.xz` or `.gz` counts as the same
//! file.

use std::borrow::Cow;

use kiln_core::kinds::data::{Counts, Data, DataFacts, PairCounts, PairSampling, Tokenizer};

/// A public data set.
#[derive(Debug, PartialEq, Eq)]
pub struct Dataset {
    /// The name in `data.kind` and `kiln data fetch NAME`.
    pub name: &'static str,
    /// Its folder under `$KILN_DATA` or `data/`.
    pub folder: &'static str,
    /// Description in a few words.
    pub about: &'static str,
    pub licence: &'static str,
    /// Base address; each file's name is appended to it.
    pub address: &'static str,
    pub files: &'static [DatasetFile],
}

/// One published file.
#[derive(Debug, PartialEq, Eq)]
pub struct DatasetFile {
    /// Name without the suffix of its compression.
    pub name: &'static str,
    /// Suffix of the published file: none, or `.gz`.
    pub ending: &'static str,
    /// Size of the published file, if known.
    pub bytes: Option<u64>,
    pub checksum: Checksum,
    pub origin: Origin,
}

/// The place where a file of a set is published.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin {
    /// Under the set's address.
    Set,
    /// At a separate address.
    Own(&'static str),
    /// Not published as this file: the remedy, as text that follows the file's name.
    Nowhere(&'static str),
}

/// Expected checksum of a file, in hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the uncompressed bytes.
    Sha256(Cow<'static, str>),
    /// MD5 of the published file, compressed or not; used if nothing better is known.
    Md5(Cow<'static, str>),
    /// SHA-256 of the panel in the file, as in [`super::data::DataFacts`]; for archives that are
    /// packed again at each download.
    Panel(Cow<'static, str>),
}

impl Checksum {
    /// The name of the algorithm in messages.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Sha256(_) | Self::Panel(_) => "sha256",
            Self::Md5(_) => "md5",
        }
    }

    pub fn hex(&self) -> &str {
        let (Self::Sha256(hex) | Self::Md5(hex) | Self::Panel(hex)) = self;
        hex
    }
}

impl DatasetFile {
    /// A file published uncompressed.
    const fn plain(name: &'static str, bytes: u64, sha256: &'static str) -> Self {
        Self::plain_at(Origin::Set, name, bytes, sha256)
    }

    /// Same as [`DatasetFile::plain`], at a separate address.
    const fn plain_at(
        origin: Origin,
        name: &'static str,
        bytes: u64,
        sha256: &'static str,
    ) -> Self {
        Self {
            name,
            ending: "",
            bytes: Some(bytes),
            checksum: Checksum::Sha256(Cow::Borrowed(sha256)),
            origin,
        }
    }

    /// A file published with `.gz`; `bytes` is the compressed size, `sha256` that of the content.
    const fn gz(name: &'static str, bytes: u64, sha256: &'static str) -> Self {
        Self {
            name,
            ending: ".gz",
            bytes: Some(bytes),
            checksum: Checksum::Sha256(Cow::Borrowed(sha256)),
            origin: Origin::Set,
        }
    }

    /// The name of the fetched file in the set's folder.
    pub fn published_name(&self) -> String {
        format!("{}{}", self.name, self.ending)
    }
}

/// Token version of Merity et al. 2016 ("Pointer Sentinel Mixture Models"), as in pytorch/examples.
pub const WIKITEXT2: Dataset = Dataset {
    name: "wikitext2",
    folder: "wikitext-2",
    about: "WikiText-2, words of Wikipedia articles",
    licence: "CC BY-SA 3.0, GFDL",
    address: "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/",
    files: &[
        DatasetFile::plain(
            "train.txt",
            10_797_148,
            "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        ),
        DatasetFile::plain(
            "valid.txt",
            1_121_681,
            "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        ),
        DatasetFile::plain(
            "test.txt",
            1_256_449,
            "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        ),
    ],
};

const TINYSHAKESPEARE_SHA256: &str =
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed";

/// Karpathy's char-rnn file; the text is in the public domain.
pub const TINYSHAKESPEARE: Dataset = Dataset {
    name: "tinyshakespeare",
    folder: "tinyshakespeare",
    about: "tiny Shakespeare, characters of plays",
    licence: "MIT (text: public domain)",
    address: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
    files: &[DatasetFile::plain(
        "input.txt",
        1_115_394,
        TINYSHAKESPEARE_SHA256,
    )],
};

/// Xiao et al. 2017 (arXiv 1708.07747).
pub const FASHION_MNIST: Dataset = Dataset {
    name: "fashion-mnist",
    folder: "fashion-mnist",
    about: "Fashion-MNIST, images of clothes",
    licence: "MIT",
    address: "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    files: &[
        DatasetFile::gz(
            "train-images-idx3-ubyte",
            26_421_880,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        DatasetFile::gz(
            "train-labels-idx1-ubyte",
            29_515,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        DatasetFile::gz(
            "t10k-images-idx3-ubyte",
            4_422_102,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        DatasetFile::gz(
            "t10k-labels-idx1-ubyte",
            5_148,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ],
};

/// Krizhevsky 2009, binary version. The publisher states no license.
pub const CIFAR10: Dataset = Dataset {
    name: "cifar10",
    folder: "cifar-10",
    about: "CIFAR-10, small images of things and animals",
    licence: "none stated",
    address: "https://www.cs.toronto.edu/~kriz/",
    files: &[DatasetFile {
        name: "cifar-10-binary.tar",
        ending: ".gz",
        bytes: Some(170_052_171),
        checksum: Checksum::Md5(Cow::Borrowed("c32a1d4ab5d03f1284b67883e8d87530")),
        origin: Origin::Set,
    }],
};

/// Xu & Cohen 2018 ("Stock Movement Prediction from Tweets and Historical Prices"): the repository
/// that contains the prices.
pub const STOCKNET: Dataset = Dataset {
    name: "stocknet",
    folder: "stocknet-88",
    about: "StockNet, daily prices of 88 US stocks",
    licence: "MIT",
    address: "https://github.com/yumoxu/stocknet-dataset/archive/",
    files: &[DatasetFile {
        name: "master.zip",
        ending: "",
        bytes: None,
        checksum: Checksum::Panel(Cow::Borrowed(
            "c5b586fa3c8964c62b679800eafe9cb324ba1b84a4557ff138e5bbe0f95a6faf",
        )),
        origin: Origin::Set,
    }],
};

/// charent's ChatLM-mini-Chinese: rows of its fine-tuning data and its tokenizer of 2023-12-14. Its
/// address also has other versions of the tokenizer, for which a quarter of the tokens is unknown:
/// the hash detects them.
pub const CHATLM: Dataset = Dataset {
    name: "chatlm",
    folder: "chatlm-mini-chinese",
    about: "ChatLM-mini-Chinese, prompts and responses",
    licence: "Apache-2.0",
    address: "https://huggingface.co/charent/ChatLM-mini-Chinese/",
    files: &[
        DatasetFile::plain_at(
            CHATLM_ROWS,
            "train.jsonl",
            1_838_303,
            "810dfe1a184107db2ff63650d2869a2d91b108622e0afbf2317884a4f2e3e331",
        ),
        DatasetFile::plain_at(
            CHATLM_ROWS,
            "valid.jsonl",
            615_561,
            "563319569a01eb625e34fd037c043c7a5c0b7ec08b27960ee10f558046a6d87a",
        ),
        DatasetFile::plain_at(
            Origin::Own(
                "https://huggingface.co/charent/ChatLM-mini-Chinese/resolve/main/tokenizer.json",
            ),
            "tokenizer-20231214.json",
            1_076_695,
            "4dace7db9064984dfcc42c58bb2471f02f05561a0f60ad8f4784931bfa0e7c33",
        ),
    ],
};

const CHATLM_ROWS: Origin = Origin::Nowhere(
    "these rows are a subset of ChatLM's fine-tuning data and are not published as this file; put \
     a copy there, name a mirror with `--from`, or train on your own rows with `data.kind: \
     sft-jsonl` (those of https://huggingface.co/datasets/BelleGroup/train_0.5M_CN have \
     `prompt_key: instruction` and `response_key: output`)",
);

/// All known sets.
pub const ALL: [&Dataset; 6] = [
    &WIKITEXT2,
    &TINYSHAKESPEARE,
    &FASHION_MNIST,
    &CIFAR10,
    &STOCKNET,
    &CHATLM,
];

/// The set with this name or folder.
pub fn find(name: &str) -> Option<&'static Dataset> {
    ALL.into_iter()
        .find(|set| set.name == name || set.folder == name)
}

/// The set that this kind of data reads; `None` for the user's own files and generated data.
pub fn of(data: &Data) -> Option<&'static Dataset> {
    find(data.kind())
}

impl Dataset {
    /// Total size of its published files; `None` if one is unknown.
    pub fn bytes(&self) -> Option<u64> {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// SHA-256 over train.txt followed by valid.txt: the parts of WikiText-2 that kiln reads.
const WIKITEXT2_READ: &str = "a3e69cc54f723bd3d0f75df3cd2343194915c15e671713d4bff1eb31aa733856";
const TINYSHAKESPEARE_READ: &str = TINYSHAKESPEARE_SHA256;
/// The same, over train.jsonl, valid.jsonl and the tokenizer.
const CHATLM_READ: &str = "44c84144c52d5f7237d923a4753426f30112be72cfbb466e1c26dd61a54e46b3";

/// Counts of ChatLM's rows with default settings: all rows, at most 256 tokens each.
const CHATLM_COUNTS: Counts = Counts::Pairs {
    train: PairCounts {
        rows: 3000,
        prompt_tokens: 83_203,
        response_tokens: 339_458,
        prompt_squares: 4_828_055,
        response_squares: 52_988_224,
        prompt_response_products: 8_971_016,
        cut_prompts: 1,
        cut_responses: 12,
        unknown_tokens: 480,
    },
    valid: PairCounts {
        rows: 1000,
        prompt_tokens: 27_825,
        response_tokens: 113_476,
        prompt_squares: 1_676_559,
        response_squares: 17_500_742,
        prompt_response_products: 2_936_767,
        cut_prompts: 0,
        cut_responses: 2,
        unknown_tokens: 116,
    },
    vocabulary: 29_298,
};

/// Known counts of the published bytes for a tokenizer; `None` means that they must be counted.
/// Word counts of WikiText-2 are from Merity et al.; tests recount the others if the data is
/// available.
pub fn known_facts(data: &Data, sha256: &str) -> Option<DataFacts> {
    if let Data::Chatlm(chatlm) = data {
        let is_whole =
            chatlm.sampling.of_tokens() == PairSampling::default() && sha256 == CHATLM_READ;
        return is_whole.then(|| DataFacts {
            counts: CHATLM_COUNTS,
            sha256: sha256.to_owned(),
        });
    }
    let (train_tokens, valid_tokens, vocabulary) = match (data, data.tokenizer()?, sha256) {
        (Data::Wikitext2(_), Tokenizer::Word, WIKITEXT2_READ) => (2_088_628, 217_646, 33_278),
        (Data::Wikitext2(_), Tokenizer::Character, WIKITEXT2_READ) => (10_780_437, 1_120_192, 283),
        (Data::Wikitext2(_), Tokenizer::Byte, WIKITEXT2_READ) => (10_797_148, 1_121_681, 256),
        (Data::Tinyshakespeare(_), Tokenizer::Character, TINYSHAKESPEARE_READ) => {
            (1_003_854, 111_540, 65)
        }
        (Data::Tinyshakespeare(_), Tokenizer::Byte, TINYSHAKESPEARE_READ) => {
            (1_003_854, 111_540, 256)
        }
        _ => return None,
    };
    Some(DataFacts {
        counts: Counts::Text {
            train_tokens,
            valid_tokens,
            vocabulary,
        },
        sha256: sha256.to_owned(),
    })
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
