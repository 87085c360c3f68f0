//! The outputs of a model in training: what a language model expects next, and responses to prompts.
//! No gradient, no dropout.

use burn::module::Module;

use super::{Learner, read};
use crate::{
    data::HostBatch,
    engine::guard_result,
    error::TrialError,
    model::{Input, Network, TextMemory, check_outputs},
    train::{
        decoder::Responding,
        generation::{Responder, Writing},
    },
};

impl Learner {
    /// A language model's outputs [vocabulary] for what follows these tokens, of which there is at
    /// least one. They come after what `memory` holds, where a recurrent model and a gpt leave what
    /// they keep of them; its weights are those of its first tokens. Waits for the device.
    ///
    /// Errors: a model that reads no text, too little memory.
    pub fn predict(
        &mut self,
        tokens: &[u32],
        memory: &mut TextMemory,
    ) -> Result<Vec<f64>, TrialError> {
        let Self {
            state, host_copy, ..
        } = self;
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        guard_result(|| {
            let ops = state.arithmetic.evaluating();
            let words = host_copy.whole_numbers(&tokens, [1, tokens.len()])?;
            let network = memory
                .network
                .get_or_insert_with(|| Box::new(state.network().valid()));
            if let Network::Gpt(gpt) = network.as_ref() {
                let outputs = gpt.go_on(words, &mut memory.attention, ops); // [1, vocabulary]
                return read(outputs.squeeze_dim(0));
            }
            let outputs = network.forward(Input::Text(words), &mut memory.recurrent, ops); // [time, vocabulary]
            state
                .own_input
                .map_or(Ok(()), |input| check_outputs(&outputs, tokens.len(), input))?;
            let [time, vocabulary] = outputs.dims();
            read(outputs.narrow(0, time - 1, 1).reshape([vocabulary]))
        })
    }

    /// The outputs for a batch, row after row, and their shape [targets, outputs]; see
    /// [`Network::forward`]. Its targets are not looked at. Waits for the device.
    ///
    /// Errors: a batch of other data than the model reads, too little memory.
    pub fn outputs(&mut self, batch: &HostBatch) -> Result<(Vec<f64>, [usize; 2]), TrialError> {
        let input = self.to_device(batch)?.input;
        let state = &self.state;
        guard_result(|| {
            let ops = state.arithmetic.evaluating();
            let outputs = state.network().valid().forward(input, &mut None, ops);
            let shape = outputs.dims();
            Ok((read(outputs.flatten(0, 1))?, shape))
        })
    }

    /// A response to one prompt, token by token: `choose` gets the outputs of the tokens that the
    /// data knows and gives the next token; the end token ends it. Waits for the device.
    ///
    /// Errors: a model that answers no prompts, those of `choose`, too little memory.
    pub(crate) fn answer(
        &mut self,
        writing: &Writing,
        prompt: &[u32],
        choose: &mut dyn FnMut(&[f64]) -> Result<u32, TrialError>,
    ) -> Result<(), TrialError> {
        let ops = self.state.arithmetic.evaluating();
        let mut responding =
            Responding::new(self.state.network(), &mut self.host_copy, ops, writing)?;
        responding.begin(&[prompt])?;
        let mut latest = writing.start;
        for _ in 0..writing.most {
            latest = choose(&responding.outputs(latest)?)?;
            if latest == writing.end {
                break;
            }
        }
        Ok(())
    }

    /// Responses to prompts, token ids without the end token. `on_progress` hears how many tokens
    /// are written, and may stop it. Waits for the device.
    ///
    /// Errors: a model that answers no prompts, too little memory.
    pub(crate) fn respond(
        &mut self,
        writing: &Writing,
        prompts: &[&[u32]],
        mut on_progress: &mut dyn FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        self.beside_steps(|learner| {
            let mut responding = Responding::new(
                learner.state.network(),
                &mut learner.host_copy,
                learner.state.arithmetic.evaluating(),
                writing,
            )?;
            writing.respond(&mut responding, prompts, &mut on_progress)
        })
    }

    /// The same for comparisons: the pad token starts a response, `end` ends it.
    pub fn responses(
        &mut self,
        prompts: &[&[u32]],
        [pad, end]: [u32; 2],
        beams: usize,
        most: usize,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        let writing = Writing {
            most,
            beams,
            start: pad,
            end,
            vocabulary: usize::MAX,
        };
        self.respond(&writing, prompts, &mut |_| Ok(()))
    }
}
