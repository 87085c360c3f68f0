//! `train.evaluate.generate`: the trained model's responses to validation prompts, in batches,
//! their scores, and the file they are kept in.

use std::{ops::Range, path::Path};

use kiln_core::{folder::write_whole, plan::TrialFile};
use serde::Serialize;

use super::{
    generation::Writing, tables::cannot_write, text_scores::TextScores, trainable::Trainable,
};
use crate::{TrialError, data::OpenedPairs};

/// The prompts of `train.evaluate.generate`, ready for generation.
pub(crate) struct Responses {
    pairs: OpenedPairs,
    writing: Writing,
    /// Rows of the data that are answered, prompts of like length together.
    order: Vec<usize>,
    at_once: usize,
}

/// One line of `responses.jsonl`.
#[derive(Serialize)]
struct ResponseLine<'a> {
    prompt: &'a str,
    response: &'a str,
    /// The data's response.
    reference: &'a str,
}

impl Responses {
    /// `None` if responses are not requested.
    ///
    /// Errors: the data has no prompts, or none to validate with.
    pub(crate) fn new(
        file: &TrialFile,
        pairs: Option<OpenedPairs>,
    ) -> Result<Option<Self>, TrialError> {
        let evaluate = &file.train.evaluate;
        let Some(asked) = &evaluate.generate else {
            return Ok(None);
        };
        let pairs = pairs.filter(|pairs| !pairs.valid.is_empty()).ok_or_else(|| {
            TrialError::Bad(format!(
                "`train.evaluate.generate` needs validation prompts, and `data.kind` {} has none \
                 here; remove it, or reserve rows for validation",
                file.data.kind()
            ))
        })?;
        let rows = asked.rows.map_or(pairs.valid.len(), |rows| {
            pairs
                .valid
                .len()
                .min(usize::try_from(rows).unwrap_or(usize::MAX))
        });
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|row| pairs.valid[*row].prompt.len());
        let writing = Writing {
            most: asked.max_tokens as usize,
            beams: asked.beams as usize,
            start: pairs.tokens.pad(),
            end: pairs.tokens.end(),
            vocabulary: pairs.tokens.len(),
        };
        let at_once = file
            .train
            .batch_size
            .saturating_mul(evaluate.batch_multiple)
            .max(1) as usize;
        Ok(Some(Self {
            pairs,
            writing,
            order,
            at_once,
        }))
    }

    pub(crate) fn batches(&self) -> usize {
        self.order.len().div_ceil(self.at_once)
    }

    /// Lets the model answer all prompts; the responses are in the order of all batches. Waits.
    /// `on_progress` hears the batch that is being answered, from 0, and may end it with an error.
    pub(crate) fn answers<T: Trainable>(
        &self,
        trainee: &mut T,
        on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        let mut responses = Vec::new();
        for batch in 0..self.batches() {
            let mut on_token = |_| on_progress(batch);
            let written = trainee.respond(&self.writing, &self.prompts(batch), &mut on_token)?;
            responses.extend(written);
        }
        Ok(responses)
    }

    /// The prompts of a batch.
    fn prompts(&self, batch: usize) -> Vec<&[u32]> {
        self.order[self.rows(batch)]
            .iter()
            .map(|row| self.pairs.valid[*row].prompt.as_slice())
            .collect()
    }

    fn rows(&self, batch: usize) -> Range<usize> {
        batch * self.at_once..((batch + 1) * self.at_once).min(self.order.len())
    }

    /// Scores the responses, which are in the order of all batches, and writes them to `path` in
    /// the order of the data.
    ///
    /// Errors: the file cannot be written.
    pub(crate) fn finish(
        &self,
        responses: &[Vec<u32>],
        path: &Path,
    ) -> Result<TextScores, TrialError> {
        let texts = self.texts(responses);
        let mut lines = Vec::new();
        for (row, response) in &texts {
            let pair = &self.pairs.valid[*row];
            let line = ResponseLine {
                prompt: &pair.prompt_text,
                response,
                reference: &pair.response_text,
            };
            serde_json::to_writer(&mut lines, &line).map_err(|error| cannot_write(path, error))?;
            lines.push(b'\n');
        }
        write_whole(path, &lines).map_err(|error| cannot_write(path, error))?;
        Ok(self.scores_of(&texts))
    }

    /// Scores the responses, which are in the order of all batches.
    pub(crate) fn scores(&self, responses: &[Vec<u32>]) -> TextScores {
        self.scores_of(&self.texts(responses))
    }

    /// The rows with their responses, in the order of the data.
    fn texts(&self, responses: &[Vec<u32>]) -> Vec<(usize, String)> {
        let mut texts: Vec<(usize, String)> = self
            .order
            .iter()
            .zip(responses)
            .map(|(row, ids)| (*row, self.pairs.tokens.decode(ids)))
            .collect();
        texts.sort_unstable_by_key(|(row, _)| *row);
        texts
    }

    fn scores_of(&self, texts: &[(usize, String)]) -> TextScores {
        let mut scores = TextScores::default();
        for (row, response) in texts {
            scores.add(response, &self.pairs.valid[*row].response_text);
        }
        scores
    }
}
