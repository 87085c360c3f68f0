//! The outputs of a model in training: what a language model expects next, and responses to prompts.
//! No gradient, no dropout.

use burn::module::Module;

use super::{Learner, read};
use crate::{
    engine::guard_result,
    error::TrialError,
    model::{Input, RecurrentMemory, check_outputs},
    train::{decoder::Responding, generation::Writing},
};

impl Learner {
    /// A language model's outputs [vocabulary] for what follows these tokens, of which there is at
    /// least one. They come after what `memory` holds, and a recurrent model leaves there what it
    /// remembers then. Waits for the device.
    ///
    /// Errors: a model that reads no text, too little memory.
    pub fn predict(
        &mut self,
        tokens: &[u32],
        memory: &mut RecurrentMemory,
    ) -> Result<Vec<f64>, TrialError> {
        let Self {
            state, host_copy, ..
        } = self;
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        guard_result(|| {
            let input = Input::Text(host_copy.whole_numbers(&tokens, [1, tokens.len()])?);
            let outputs =
                state
                    .network()
                    .valid()
                    .forward(input, memory, state.arithmetic.evaluating()); // [time, vocabulary]
            state
                .own_input
                .map_or(Ok(()), |input| check_outputs(&outputs, tokens.len(), input))?;
            let [time, vocabulary] = outputs.dims();
            read(outputs.narrow(0, time - 1, 1).reshape([vocabulary]))
        })
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
        let mut responding = Responding::new(
            self.state.network(),
            &mut self.host_copy,
            self.state.arithmetic.evaluating(),
            writing,
        )?;
        writing.respond(&mut responding, prompts, &mut on_progress)
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
