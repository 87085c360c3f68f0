//! The trait of kiln's own models: how one is built from its settings and the facts of the data,
//! and what it computes.

use burn::tensor::Tensor;
use kiln_core::kinds;

use super::{ImageShape, Init, Input, InputShape, PanelShape, RecurrentMemory};
use crate::{
    engine::{Ops, RunningStats},
    error::TrialError,
};

/// A kind of model that can be trained.
pub(super) trait Architecture: Sized {
    /// Its settings in the experiment file.
    type Settings;

    /// Errors: what the model must know of its data is unknown or does not fit.
    fn build(settings: &Self::Settings, facts: Facts<'_>, init: &Init) -> Result<Self, TrialError>;

    /// Outputs [targets, outputs]; see [`Network::forward`](super::Network::forward).
    fn outputs(&self, input: Input, memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2>;

    /// Running statistics of its norms, by name.
    fn running_stats(&self) -> Vec<(String, RunningStats)> {
        Vec::new()
    }
}

/// The facts from which a model is built: its settings, and the shape of the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) model: &'a kinds::Model,
    pub(super) input: Option<InputShape>,
}

impl Facts<'_> {
    /// The shape of the data.
    ///
    /// Errors: there is no data.
    pub(super) fn input(self) -> Result<InputShape, TrialError> {
        self.input.ok_or_else(|| self.unfit())
    }

    /// Errors: the data are no images.
    pub(super) fn images(self) -> Result<ImageShape, TrialError> {
        let images = self.input.and_then(InputShape::images);
        images.ok_or_else(|| self.unfit())
    }

    /// Errors: the data are no panel.
    pub(super) fn panel(self) -> Result<PanelShape, TrialError> {
        let panel = self.input.and_then(InputShape::panel);
        panel.ok_or_else(|| self.unfit())
    }

    /// Number of tokens: the model's own, else the data's.
    ///
    /// Errors: neither is known, or the data has more.
    pub(super) fn vocabulary(self) -> Result<usize, TrialError> {
        let Some(vocabulary) = self.model.vocabulary(self.input) else {
            return Err(TrialError::Bad(
                "`model.vocabulary` is missing and the data does not define it; set it".to_owned(),
            ));
        };
        match self.input.and_then(InputShape::vocabulary) {
            Some(data) if data > vocabulary => Err(TrialError::Bad(format!(
                "`model.vocabulary` is {vocabulary}, but the data has {data} different tokens; \
                 give at least {data}"
            ))),
            _ => Ok(vocabulary as usize),
        }
    }

    fn unfit(self) -> TrialError {
        TrialError::Bad(format!(
            "`model.kind` {} reads {}, and `data.kind` provides none",
            self.model.kind(),
            self.model.reads().name()
        ))
    }
}

/// [batch, time, outputs] as [batch × time, outputs].
pub(super) fn by_target(outputs: Tensor<3>) -> Tensor<2> {
    let [batch, time, width] = outputs.dims();
    outputs.reshape([batch * time, width])
}

/// For input of another kind than the model reads.
pub(super) fn unread() -> ! {
    unreachable!("the plan lets a model read only the kind of data it is for")
}
