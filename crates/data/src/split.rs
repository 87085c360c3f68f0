//! Where the training part of a set ends.

use kiln_core::kinds::data::{Checksum, Data};
use sha2::{Digest, Sha256};

/// The validation part of Tiny Shakespeare, which has no key for it. Source: nanoGPT,
/// data/shakespeare_char/prepare.py.
pub(super) const SHAKESPEARE_VALID: f64 = 0.1;

/// Number of items for training: all but the last `valid_fraction`, rounded down.
pub(super) fn train_count(items: usize, valid_fraction: f64) -> usize {
    // A product that is an integer except for rounding is that integer: 90 less 30 % are 63.
    (items as f64 * (1.0 - valid_fraction) + 1e-6) as usize
}

/// Makes where the training part ends, after this many bytes, a part of the hash: the same bytes
/// cut in another place are other data. Where the published set is cut is not hashed, so that the
/// hash of that one is over its bytes alone.
pub(super) fn hash_train_end(hasher: &mut Sha256, bytes: usize, published: Option<u64>) {
    if published != Some(bytes as u64) {
        hasher.update(format!("\0train ends after {bytes} bytes\n"));
    }
}

/// The number of uncompressed bytes of a published set's training file; `None` if it is published
/// compressed, or the data are the user's own.
pub(super) fn published_train_bytes(data: &Data) -> Option<u64> {
    let train = data.dataset()?.files.first()?;
    let is_plain = train.ending.is_empty() && matches!(train.checksum, Checksum::Sha256(_));
    train.bytes.filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_a_whole_number_is_not_rounded_down() {
        for items in 1..=1000 {
            for percent in 0..100 {
                assert_eq!(
                    train_count(items, percent as f64 / 100.0),
                    items * (100 - percent) / 100,
                    "{items} items less {percent} %"
                );
            }
        }
    }
}
