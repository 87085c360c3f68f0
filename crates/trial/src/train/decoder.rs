//! The learner's network for a search of responses: no gradient, no dropout, keys and values kept
//! from token to token.

use burn::{
    module::Module,
    tensor::{Int, Tensor, activation},
};

use super::generation::{Continuation, Responder, Writing};
use crate::{
    TrialError,
    engine::{HostCopy, Ops, guard_result, on_host},
    model::{Cache, Network, Seq2seq},
};

/// A network that answers prompts.
pub(super) struct Responding<'a> {
    network: Seq2seq,
    host_copy: &'a mut HostCopy,
    ops: Ops,
    /// Fills prompts up.
    pad: i64,
    /// Tokens that the data knows; a model may have outputs for more.
    vocabulary: usize,
    cache: Option<Cache>,
}

impl<'a> Responding<'a> {
    /// Errors: the network answers no prompts.
    pub(super) fn new(
        network: &Network,
        host_copy: &'a mut HostCopy,
        ops: Ops,
        writing: &Writing,
    ) -> Result<Self, TrialError> {
        let Network::Seq2seq(network) = network else {
            return Err(TrialError::Bad(
                "`train.evaluate.generate` needs `model.kind` seq2seq; remove it".to_owned(),
            ));
        };
        Ok(Self {
            network: network.valid(),
            host_copy,
            ops,
            pad: i64::from(writing.start),
            vocabulary: writing.vocabulary,
            cache: None,
        })
    }

    /// Adds a token to the only row. Waits. The outputs of the tokens that the data knows.
    pub(super) fn outputs(&mut self, token: u32) -> Result<Vec<f64>, TrialError> {
        guard_result(|| {
            let found = self.go_on(&[token])?; // [1, vocabulary]
            Ok(on_host(found.try_into_data())?.iter::<f64>().collect())
        })
    }

    /// Outputs [rows, vocabulary] of what follows these tokens, in f32.
    fn go_on(&mut self, tokens: &[u32]) -> Result<Tensor<2>, TrialError> {
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let tokens = self.host_copy.whole_numbers(&tokens, [tokens.len()])?;
        let cache = self.cache.as_mut().ok_or_else(|| {
            TrialError::Failed("no prompt was given before the first token".to_owned())
        })?;
        let outputs = self
            .network
            .go_on(tokens, cache, self.ops)
            .cast(burn::tensor::DType::F32);
        let [_, known] = outputs.dims();
        Ok(if known > self.vocabulary {
            outputs.narrow(1, 0, self.vocabulary)
        } else {
            outputs
        })
    }
}

impl Responder for Responding<'_> {
    fn begin(&mut self, prompts: &[&[u32]]) -> Result<(), TrialError> {
        let longest = prompts
            .iter()
            .map(|prompt| prompt.len())
            .max()
            .unwrap_or_default();
        let padded = |prompt: &&[u32]| {
            let ids = prompt
                .iter()
                .map(|id| i64::from(*id))
                .chain(std::iter::repeat(self.pad));
            ids.take(longest).collect::<Vec<i64>>()
        };
        let tokens: Vec<i64> = prompts.iter().flat_map(padded).collect();
        let lengths: Vec<i64> = prompts.iter().map(|prompt| prompt.len() as i64).collect();
        guard_result(|| {
            let tokens: Tensor<2, Int> = self
                .host_copy
                .whole_numbers(&tokens, [prompts.len(), longest])?;
            let lengths = self.host_copy.whole_numbers(&lengths, [prompts.len()])?;
            self.cache = Some(self.network.begin(tokens, lengths, self.ops));
            Ok(())
        })
    }

    fn select(&mut self, rows: &[usize]) -> Result<(), TrialError> {
        let rows: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        guard_result(|| {
            let rows = self.host_copy.whole_numbers(&rows, [rows.len()])?;
            self.cache = self.cache.take().map(|cache| cache.select(&rows));
            Ok(())
        })
    }

    fn likeliest(&mut self, tokens: &[u32]) -> Result<Vec<u32>, TrialError> {
        guard_result(|| {
            let found = self.go_on(tokens)?.argmax(1); // [rows, 1]
            Ok(on_host(found.try_into_data())?
                .iter::<i64>()
                .map(|token| token as u32)
                .collect())
        })
    }

    /// Only these few values are copied from the device, not the whole vocabulary.
    fn continuations(
        &mut self,
        tokens: &[u32],
        most: usize,
    ) -> Result<Vec<Vec<Continuation>>, TrialError> {
        guard_result(|| {
            let found = activation::log_softmax(self.go_on(tokens)?, 1);
            let [_, known] = found.dims();
            let most = most.min(known);
            let (values, places) = self.ops.largest(found, most); // [rows, most]
            let values: Vec<f32> = on_host(values.try_into_data())?.iter().collect();
            let places: Vec<i64> = on_host(places.try_into_data())?.iter().collect();
            let continuation = |(value, place): (&f32, &i64)| Continuation {
                token: *place as u32,
                log_probability: *value,
            };
            let row = |(values, places): (&[f32], &[i64])| {
                values.iter().zip(places).map(continuation).collect()
            };
            Ok(values
                .chunks(most.max(1))
                .zip(places.chunks(most.max(1)))
                .map(row)
                .collect())
        })
    }
}
