//! The texts of `train.sample`: a trained model generates them token by token, and `sample.txt`
//! stores them.
//!
//! In: the model's outputs, as numbers on the host, and the vocabulary of the trial's data. Out:
//! the file, in the attempt's folder. It is made after all measurements. Random: one stream per
//! text, from (`train.seed`, the text's number) alone, so the same weights write the same text. A
//! recurrent model keeps a state, and a gpt keys and values of the tokens in its context; once that
//! is full, and for other models, the last `seq_len` tokens are computed anew for each token.
//! `kiln sample` writes with the same sampler.

use std::path::Path;

use kiln_core::{
    folder::write_whole,
    kinds::{
        Model,
        random::{GAMMA, SplitMix64, mix},
    },
    plan::TrialFile,
    record::BETWEEN_TEXTS,
    spec::Sample,
};
use kiln_data::tokenizer::Vocabulary;

use super::tables::cannot_write;
use crate::{
    TrialError,
    model::{GptCache, TextMemory},
};

/// The request of `train.sample`, ready for generation.
pub(crate) struct TextSampler {
    asked: Sample,
    vocabulary: Vocabulary,
    /// At least one token.
    prompt: Vec<u32>,
    /// The most tokens that the model sees at once; `None` if it carries a state instead.
    context: Option<usize>,
    seed: u64,
    /// Whether a model with a context may keep something of its tokens.
    caches: bool,
}

/// The source of a prompt, for messages.
pub(crate) const PROMPT_KEY: &str = "`train.sample.prompt`";

/// Progress of the writing: the text's number, and the tokens written of it; both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) sample: u64,
    pub(crate) token: u64,
}

impl TextSampler {
    /// `None` if no text is requested.
    ///
    /// Errors: the data has no text, or lacks a token of the prompt; the prompt has no token.
    pub(crate) fn new(
        file: &TrialFile,
        vocabulary: Option<Vocabulary>,
    ) -> Result<Option<Self>, TrialError> {
        let Some(asked) = file.train.sample.clone() else {
            return Ok(None);
        };
        let kind = file.data.kind();
        let none = || {
            TrialError::Bad(format!(
                "`train.sample` needs the tokens of a text, and `data.kind` {kind} has none; \
                 remove it"
            ))
        };
        let vocabulary = vocabulary.ok_or_else(none)?;
        Self::of(file, asked, vocabulary, PROMPT_KEY).map(Some)
    }

    /// A sampler of what is `asked` for, with `train.seed`. `prompt_key` names the source of the
    /// prompt.
    ///
    /// Errors: the data lacks a token of the prompt; the prompt has no token.
    pub(crate) fn of(
        file: &TrialFile,
        asked: Sample,
        vocabulary: Vocabulary,
        prompt_key: &str,
    ) -> Result<Self, TrialError> {
        let prompt = vocabulary
            .encode_prompt(&asked.prompt)
            .map_err(|why| TrialError::Bad(format!("{prompt_key} {why}")))?;
        let context = file
            .model
            .seq_len()
            .filter(|_| !matches!(file.model, Model::Lstm(_)))
            .map(|seq_len| seq_len as usize);
        Ok(Self {
            asked,
            vocabulary,
            prompt,
            context,
            seed: file.train.seed,
            caches: true,
        })
    }

    /// The same, but each token is computed from its whole context.
    pub(crate) fn without_cache(self) -> Self {
        Self {
            caches: false,
            ..self
        }
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.asked.tokens
    }

    /// Writes the texts to `path`; those that were finished, if something stops it.
    ///
    /// `predict` gives the outputs, one per token of the model's vocabulary, for what follows the
    /// tokens, which come after those that the memory holds. `on_progress` hears of each token, and
    /// may stop it.
    ///
    /// Errors: those of `predict` and `on_progress`, outputs that are NaN or infinite, a file that
    /// cannot be written; each with the texts that are there.
    pub(crate) fn write(
        &self,
        path: &Path,
        mut predict: impl FnMut(&[u32], &mut TextMemory) -> Result<Vec<f64>, TrialError>,
        mut on_progress: impl FnMut(Written) -> Result<(), TrialError>,
    ) -> Result<(), TrialError> {
        let mut texts = Vec::new();
        let ended = (1..=self.asked.samples).try_for_each(|sample| {
            let mut token = 0;
            let tokens = self.tokens_of(sample, &mut predict, &mut |_| {
                token += 1;
                on_progress(Written { sample, token })
            })?;
            texts.push(self.vocabulary.decode(&tokens));
            Ok(())
        });
        let kept = if texts.is_empty() {
            Ok(())
        } else {
            write_whole(path, joined(&texts).as_bytes()).map_err(|error| cannot_write(path, error))
        };
        ended.and(kept).map_err(|error| {
            TrialError::Failed(format!(
                "{} of {} texts were written: {error}",
                texts.len(),
                self.asked.samples
            ))
        })
    }

    /// The tokens of one text, those of the prompt first; `on_progress` gets all so far after each
    /// new one, and may stop it. Random: from the seed and `sample`.
    ///
    /// Errors: as [`TextSampler::write`].
    pub(crate) fn tokens_of(
        &self,
        sample: u64,
        predict: &mut impl FnMut(&[u32], &mut TextMemory) -> Result<Vec<f64>, TrialError>,
        on_progress: &mut impl FnMut(&[u32]) -> Result<(), TrialError>,
    ) -> Result<Vec<u32>, TrialError> {
        let mut random = stream(self.seed, sample);
        let mut tokens = self.prompt.clone();
        let mut memory = TextMemory::default();
        let mut remembered = 0;
        for _ in 0..self.asked.tokens {
            let from = match self.context {
                None => remembered,
                Some(context) if !self.caches || tokens.len() > context => {
                    // The places of all tokens change as the context moves.
                    memory.attention = GptCache::default();
                    tokens.len().saturating_sub(context)
                }
                Some(_) => memory.attention.seen(),
            };
            let outputs = predict(&tokens[from..], &mut memory)?;
            remembered = tokens.len();
            tokens.push(self.draw(&outputs, random.fraction())?);
            on_progress(&tokens)?;
        }
        Ok(tokens)
    }

    /// The token that `fraction`, in [0, 1), falls on, where each known token has its probability's
    /// share, in the order of their ids. A model may have more outputs than the data has tokens:
    /// those are never drawn.
    ///
    /// Errors: an output is NaN or infinite, or all of them are −∞.
    fn draw(&self, outputs: &[f64], fraction: f64) -> Result<u32, TrialError> {
        let known = &outputs[..outputs.len().min(self.vocabulary.len())];
        draw(known, self.asked.temperature, self.asked.top_k, fraction)
    }
}

/// The token that `fraction`, in [0, 1), falls on, where each of these has its probability's share
/// at this temperature, in the order of their ids; of the `top_k` most likely alone, if given.
///
/// Errors: an output is NaN or infinite, or all of them are −∞.
pub(crate) fn draw(
    known: &[f64],
    temperature: f64,
    top_k: Option<u64>,
    fraction: f64,
) -> Result<u32, TrialError> {
    let is_greedy = temperature == 0.0;
    let candidates = likeliest(known, if is_greedy { Some(1) } else { top_k });
    let highest = known.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !highest.is_finite() || known.iter().any(|output| output.is_nan()) {
        let text = "the model's outputs are NaN or infinite, so no token can be drawn";
        return Err(TrialError::Failed(text.to_owned()));
    }
    if is_greedy {
        return Ok(candidates[0] as u32);
    }
    let weights: Vec<f64> = candidates
        .iter()
        .map(|id| ((known[*id] - highest) / temperature).exp())
        .collect();
    let mut left = fraction * weights.iter().sum::<f64>();
    let found = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    // Rounding may leave a trace of the last one's share.
    let last = || {
        weights
            .iter()
            .rposition(|weight| *weight > 0.0)
            .unwrap_or_default()
    };
    Ok(candidates[found.unwrap_or_else(last)] as u32)
}

/// The ids of the `most` highest outputs, all of them if not given, in their own order. Of equal
/// outputs the lower id comes first.
fn likeliest(outputs: &[f64], most: Option<u64>) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..outputs.len()).collect();
    let most = most.map_or(usize::MAX, |most| most as usize);
    if most < ids.len() {
        ids.select_nth_unstable_by(most, |one, other| {
            outputs[*other]
                .total_cmp(&outputs[*one])
                .then(one.cmp(other))
        });
        ids.truncate(most);
        ids.sort_unstable();
    }
    ids
}

/// The stream of one text: SplitMix64 from the seed, mixed with the text's number. Not that of any
/// dropout or order.
pub(crate) fn stream(seed: u64, sample: u64) -> SplitMix64 {
    SplitMix64::new(mix(
        mix(seed.wrapping_add(GAMMA)) ^ sample.wrapping_mul(GAMMA)
    ))
}

fn joined(texts: &[String]) -> String {
    let lines = |text: &String| {
        if text.ends_with('\n') {
            text.clone()
        } else {
            format!("{text}\n")
        }
    };
    texts
        .iter()
        .map(lines)
        .collect::<Vec<_>>()
        .join(BETWEEN_TEXTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{kind: generated, characters: 3000}";

    fn file(model: &str, sample: &str) -> TrialFile {
        let text = format!(
            "{{kiln_trial: 1, trial: abcdef0123, attempt: 1, model: {{{model}}}, data: {TEXT}, \
             train: {{steps: 1, seed: 7, sample: {{{sample}}}}}, measure: {{}}, engine: flex, \
             device: cpu, folder: /nowhere, run_anchor_nanoseconds: 0}}"
        );
        serde_yaml::from_str(&text).unwrap()
    }

    /// Five letters, of which `a` is token 0.
    fn letters() -> Vocabulary {
        Vocabulary::build(kiln_core::kinds::data::Tokenizer::Character, "abcde", "")
    }

    fn sampler(sample: &str) -> TextSampler {
        TextSampler::new(
            &file("kind: mlp, seq_len: 3, context: 2", sample),
            Some(letters()),
        )
        .unwrap()
        .unwrap()
    }

    /// The text that is written if the outputs are always these.
    fn written(sampler: &TextSampler, outputs: &[f64]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.txt");
        sampler
            .write(&path, |_, _| Ok(outputs.to_vec()), |_| Ok(()))
            .unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn tokens_are_drawn_by_their_probabilities() {
        let shares = [0.5, 0.25, 0.125, 0.125, 0.0625 - 0.0625];
        let outputs: Vec<f64> = shares[..4]
            .iter()
            .map(|share: &f64| share.ln())
            .chain([-1e4])
            .collect();
        let text = written(&sampler("prompt: a, tokens: 40000"), &outputs);
        let count = |letter: char| {
            text[1..].chars().filter(|found| *found == letter).count() as f64 / 40_000.0
        };
        for (letter, share) in "abcde".chars().zip(shares) {
            // Five standard errors of a share of 40,000 draws.
            assert!(
                (count(letter) - share).abs() <= 5.0 * (share * (1.0 - share) / 40_000.0).sqrt(),
                "{letter}: {}",
                count(letter)
            );
        }
        // At half the temperature shares are squared: 16 : 4 : 1 : 1.
        let colder = written(
            &sampler("prompt: a, tokens: 40000, temperature: 0.5"),
            &outputs,
        );
        let share = colder[1..].chars().filter(|letter| *letter == 'a').count() as f64 / 40_000.0;
        assert!(
            (share - 16.0 / 22.0).abs() < 5.0 * (16.0 / 22.0 * 6.0 / 22.0 / 40_000.0_f64).sqrt(),
            "{share}"
        );
    }

    #[test]
    fn an_output_of_minus_infinity_is_never_drawn_and_other_odd_ones_stop_it() {
        let none = f64::NEG_INFINITY;
        let text = written(
            &sampler("prompt: a, tokens: 200"),
            &[none, 0.0, none, 0.0, none],
        );
        assert!(
            text[1..]
                .trim_end()
                .chars()
                .all(|letter| "bd".contains(letter)),
            "{text}"
        );
        for odd in [[f64::NAN, 0.0], [f64::INFINITY, 0.0], [none, none]] {
            for more in ["", ", temperature: 0", ", top_k: 1"] {
                let sampler = sampler(&format!("prompt: a, tokens: 1{more}"));
                assert!(
                    sampler.draw(&odd, 0.5).is_err() && sampler.draw(&[], 0.5).is_err(),
                    "{odd:?}{more}"
                );
            }
        }
    }

    #[test]
    fn greed_takes_the_likeliest_and_of_equals_the_first() {
        assert_eq!(
            written(
                &sampler("prompt: b, tokens: 3, temperature: 0"),
                &[0.0, 1.0, 3.0, 3.0, 2.0]
            ),
            "bccc\n"
        );
        assert_eq!(
            written(
                &sampler("prompt: b, tokens: 3, temperature: 0, top_k: 4"),
                &[9.0, 1.0, 3.0, 3.0, 2.0]
            ),
            "baaa\n"
        );
        assert_eq!(
            written(
                &sampler("prompt: b, tokens: 3, top_k: 1"),
                &[0.0, 1.0, 3.0, 3.0, 2.0]
            ),
            "bccc\n"
        );
        // So cold that the others' shares vanish.
        assert_eq!(
            written(
                &sampler("prompt: b, tokens: 3, temperature: 1.0e-300"),
                &[0.0, 1.0, 3.0, 2.0, 2.0]
            ),
            "bccc\n"
        );
    }

    #[test]
    fn top_k_leaves_the_likeliest_and_a_token_that_the_data_lacks_is_never_drawn() {
        let text = written(
            &sampler("prompt: a, tokens: 500, top_k: 2"),
            &[0.0, 2.0, 1.0, 2.0, 0.0, 9.0, 9.0],
        );
        assert!(
            text[1..]
                .trim_end()
                .chars()
                .all(|letter| "bd".contains(letter))
                && text.contains('b')
                && text.contains('d'),
            "{text}"
        );
        // Even where the tokens beyond hold nearly all of the probability, or no number.
        let text = written(
            &sampler("prompt: a, tokens: 500, top_k: 7"),
            &[0.0, 0.0, 0.0, 0.0, 0.0, 500.0, f64::NAN],
        );
        assert!(
            "abcde".chars().all(|letter| text.contains(letter))
                && !text.contains(char::REPLACEMENT_CHARACTER),
            "{text}"
        );
    }

    #[test]
    fn each_text_has_a_stream_of_its_own_that_depends_on_seed_and_number_alone() {
        let outputs = [0.0; 5];
        let three = written(&sampler("prompt: a, tokens: 50, samples: 3"), &outputs);
        let texts: Vec<&str> = three.split(BETWEEN_TEXTS).collect();
        assert_eq!(texts.len(), 3);
        assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2]);
        assert_eq!(
            written(&sampler("prompt: a, tokens: 50"), &outputs),
            texts[0]
        );
        let mut other = sampler("prompt: a, tokens: 50");
        other.seed = 8;
        assert_ne!(written(&other, &outputs), texts[0]);
    }

    /// The token sequences that `predict` received.
    fn asked_for(model: &str, sample: &str, remembers: bool) -> Vec<Vec<u32>> {
        let sampler = TextSampler::new(&file(model, sample), Some(letters()))
            .unwrap()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut seen = Vec::new();
        let predict = |tokens: &[u32], memory: &mut TextMemory| {
            assert_eq!(memory.recurrent.is_some(), remembers && !seen.is_empty());
            if remembers {
                let state = burn::tensor::Tensor::zeros([1, 1, 1], &burn::tensor::Device::flex());
                memory.recurrent = Some(crate::engine::LstmState {
                    hidden: state.clone(),
                    cell: state,
                });
            }
            seen.push(tokens.to_vec());
            Ok(vec![0.0, 0.0, 0.0, 0.0, 9.0])
        };
        sampler
            .write(&folder.path().join("sample.txt"), predict, |_| Ok(()))
            .unwrap();
        seen
    }

    #[test]
    fn a_model_sees_its_last_tokens_and_a_recurrent_one_each_token_once() {
        let sample = "prompt: abcd, tokens: 3, temperature: 0";
        assert_eq!(
            asked_for("kind: gpt, seq_len: 5, d_model: 8", sample, false),
            [&[0, 1, 2, 3][..], &[0, 1, 2, 3, 4], &[1, 2, 3, 4, 4]]
        );
        assert_eq!(
            asked_for("kind: lstm, seq_len: 3", sample, true),
            [&[0, 1, 2, 3][..], &[4], &[4]]
        );
    }

    #[test]
    fn what_stops_it_keeps_the_texts_that_are_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.txt");
        let sampler = sampler("prompt: a, tokens: 2, temperature: 0, samples: 3");
        let at_the_second = |written: Written| {
            if written.sample == 2 {
                Err(TrialError::Interrupted)
            } else {
                Ok(())
            }
        };
        let error = sampler
            .write(&path, |_, _| Ok(vec![0.0, 1.0]), at_the_second)
            .unwrap_err();
        assert_eq!(error.to_string(), "1 of 3 texts were written: interrupted");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "abb\n");
        let error = sampler
            .write(&path, |_, _| Ok(vec![0.0, f64::NAN]), |_| Ok(()))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "0 of 3 texts were written: the model's outputs are NaN or infinite, so no token can \
             be drawn"
        );
        let error = sampler
            .write(
                &folder.path().join("none/sample.txt"),
                |_, _| Ok(vec![1.0]),
                |_| Ok(()),
            )
            .unwrap_err();
        assert!(
            error.to_string().starts_with("3 of 3 texts were written: ")
                && error.to_string().contains("none/sample.txt cannot"),
            "{error}"
        );
    }

    #[test]
    fn a_prompt_that_the_data_cannot_spell_is_refused_with_its_token() {
        let refused = |sample: &str, vocabulary: Option<Vocabulary>| match TextSampler::new(
            &file("kind: mlp", sample),
            vocabulary,
        ) {
            Err(TrialError::Bad(text)) => text,
            _ => panic!("{sample} was taken"),
        };
        let text = refused("prompt: abx", Some(letters()));
        assert_eq!(
            text,
            "`train.sample.prompt` contains \"x\", which is not in the training text; use only \
             tokens of the training text"
        );
        assert!(
            refused("tokens: 3", Some(letters())).contains("contains \"\\n\""),
            "the default is a line's end"
        );
        let words = Vocabulary::build(kiln_core::kinds::data::Tokenizer::Word, "a b", "");
        assert!(refused("prompt: ' '", Some(words)).contains("has no token to begin with"));
        assert!(refused("prompt: a", None).contains("`data.kind` generated has none"));
    }
}
