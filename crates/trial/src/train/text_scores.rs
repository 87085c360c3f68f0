//! Similarity of texts to their references: BLEU and chrF of characters, over all texts together.
//!
//! White space is removed on both sides, because it depends more on the tokenizer than on the text.
//! Counts are summed over all texts before anything is divided, so no batch or row weighs more than
//! its characters. Both scores go from 0 to 100. Sources: Papineni et al. 2002 (BLEU), Popović 2015
//! (chrF); compared with sacrebleu 2.6 (`tests/reference/text_scores.py`).

use std::collections::HashMap;

/// Longest piece that BLEU counts, in characters.
const BLEU_ORDER: usize = 4;
/// Longest piece that chrF counts.
const CHRF_ORDER: usize = 6;
/// chrF weighs recall so many times more than precision.
const CHRF_BETA: f64 = 2.0;

/// Counts over texts and their references, and the scores computed from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TextScores {
    /// Characters of all texts, and of all references.
    characters: u64,
    reference_characters: u64,
    /// n-grams of 1 to 6 characters.
    pieces: [Ngrams; CHRF_ORDER],
}

/// Counts of n-grams of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ngrams {
    /// Number of n-grams in the texts.
    written: u64,
    /// Number of n-grams in texts whose reference is long enough to have any: chrF ignores the
    /// others.
    comparable: u64,
    /// Number of n-grams in the references.
    wanted: u64,
    /// In both, no more often than in either.
    shared: u64,
}

impl TextScores {
    /// Counts one more text and its reference.
    pub(crate) fn add(&mut self, hypothesis: &str, reference: &str) {
        let [written, wanted] = [hypothesis, reference].map(|text| {
            text.chars()
                .filter(|character| !character.is_whitespace())
                .collect::<Vec<char>>()
        });
        self.characters += written.len() as u64;
        self.reference_characters += wanted.len() as u64;
        for (shorter, pieces) in self.pieces.iter_mut().enumerate() {
            pieces.add(&written, &wanted, shorter + 1);
        }
    }

    /// BLEU-4 of characters, without smoothing: 0 if no four characters in a row are right.
    pub(crate) fn bleu(&self) -> f64 {
        let counted = &self.pieces[..BLEU_ORDER];
        if counted.iter().any(|pieces| pieces.shared == 0) {
            return 0.0;
        }
        let logarithms: f64 = counted
            .iter()
            .map(|pieces| (pieces.shared as f64 / pieces.written as f64).ln())
            .sum();
        100.0 * self.brevity_penalty() * (logarithms / BLEU_ORDER as f64).exp()
    }

    /// 1 for texts that are at least as long as their references together; never more.
    fn brevity_penalty(&self) -> f64 {
        (1.0 - self.reference_characters as f64 / self.characters.max(1) as f64)
            .exp()
            .min(1.0)
    }

    /// chrF2 of pieces of up to six characters: the mean precision and the mean recall of all
    /// lengths that occur, recall weighing double.
    pub(crate) fn chrf(&self) -> f64 {
        let counted: Vec<&Ngrams> = self
            .pieces
            .iter()
            .filter(|pieces| pieces.comparable > 0 && pieces.wanted > 0)
            .collect();
        let mean = |share: fn(&Ngrams) -> f64| {
            counted.iter().map(|pieces| share(pieces)).sum::<f64>() / counted.len().max(1) as f64
        };
        let precision = mean(|pieces| pieces.shared as f64 / pieces.comparable as f64);
        let recall = mean(|pieces| pieces.shared as f64 / pieces.wanted as f64);
        if precision + recall == 0.0 {
            return 0.0;
        }
        let weight = CHRF_BETA * CHRF_BETA;
        100.0 * (1.0 + weight) * precision * recall / (weight * precision + recall)
    }
}

impl Ngrams {
    fn add(&mut self, written: &[char], wanted: &[char], length: usize) {
        let (in_written, in_wanted) = (count(written, length), count(wanted, length));
        let [all_written, all_wanted] =
            [&in_written, &in_wanted].map(|pieces| pieces.values().sum::<u64>());
        self.written += all_written;
        self.comparable += if all_wanted > 0 { all_written } else { 0 };
        self.wanted += all_wanted;
        self.shared += in_written
            .iter()
            .map(|(piece, times)| in_wanted.get(piece).map_or(0, |wanted| *wanted.min(times)))
            .sum::<u64>();
    }
}

/// Number of occurrences of each piece of this many characters.
fn count(text: &[char], length: usize) -> HashMap<&[char], u64> {
    let mut pieces = HashMap::new();
    for piece in text.windows(length) {
        *pieces.entry(piece).or_default() += 1;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../../../../tests/reference/text-scores.csv");

    fn of(texts: &[(&str, &str)]) -> TextScores {
        let mut scores = TextScores::default();
        texts
            .iter()
            .for_each(|(hypothesis, reference)| scores.add(hypothesis, reference));
        scores
    }

    /// The reference is rounded to ten places.
    fn assert_close(found: f64, expected: &str, what: &str) {
        let expected: f64 = expected.parse().unwrap();
        assert!(
            (found - expected).abs() < 1e-9,
            "{what}: {found}, and {expected} in the reference"
        );
    }

    #[test]
    fn scores_are_sacrebleus_of_each_row_and_of_all_rows_so_far() {
        let mut so_far = TextScores::default();
        let mut table = csv::Reader::from_reader(REFERENCE.as_bytes());
        for row in table.records() {
            let row = row.unwrap();
            so_far.add(&row[0], &row[1]);
            let alone = of(&[(&row[0], &row[1])]);
            let found = [so_far.bleu(), so_far.chrf(), alone.bleu(), alone.chrf()];
            for (at, found) in found.into_iter().enumerate() {
                assert_close(
                    found,
                    &row[at + 2],
                    &format!("column {} of {:?}", at + 2, &row[0]),
                );
            }
        }
        assert_eq!(table.position().record(), 17, "sixteen rows and the header");
    }

    #[test]
    fn a_longer_text_gains_nothing_by_its_length_and_a_shorter_one_loses() {
        assert_eq!(of(&[("kiln kiln", "kiln kiln")]).bleu(), 100.0);
        let longer = of(&[("kilnkilnkiln", "kiln")]);
        assert_eq!(longer.brevity_penalty(), 1.0);
        assert!(of(&[("kiln", "kilnkiln")]).brevity_penalty() < 0.4);
    }

    #[test]
    fn nothing_at_all_scores_0() {
        for scores in [
            TextScores::default(),
            of(&[("", "")]),
            of(&[(" \n", "")]),
            of(&[("", "a")]),
            of(&[("a", "")]),
        ] {
            assert_eq!((scores.bleu(), scores.chrf()), (0.0, 0.0));
        }
    }
}
