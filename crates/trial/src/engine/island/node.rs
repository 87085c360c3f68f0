//! The node of an island in burn's graph: what the forward pass leaves, and its backward pass.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    backend::{
        Autodiff, LibTorch,
        autodiff::{
            NodeId,
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
    },
    tensor::Tensor,
};
use burn_tch::TchTensor;

use super::input::{FloatInput, Tracked};
use crate::{
    engine::kernels::{Role, SavedForward},
    error::TrialError,
};

/// Kept from the forward to the backward pass, which takes `saved` out. `_held` keeps burn's
/// handles of memory that `saved` reads alive, so that burn does not write over it in place.
#[derive(Clone, Debug)]
pub(super) struct State {
    saved: Arc<Mutex<Option<SavedForward>>>,
    _held: Arc<Vec<TchTensor>>,
}

impl State {
    pub(super) fn new(saved: SavedForward, held: Vec<TchTensor>) -> Self {
        Self {
            saved: Arc::new(Mutex::new(Some(saved))),
            _held: Arc::new(held),
        }
    }

    fn role(&self) -> Role {
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved.as_ref().map_or(Role::Other, SavedForward::role)
    }

    /// Errors: it was called before; what was saved may be written over by then.
    pub(super) fn backward(
        &self,
        gradient: &tch::Tensor,
        added: Option<&tch::Tensor>,
        count: usize,
    ) -> Result<Vec<Option<tch::Tensor>>, TrialError> {
        let saved = self
            .saved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let saved = saved.ok_or_else(|| {
            TrialError::Failed(
                "a second backward pass was run after one forward pass, whose values are kept for \
                 one only; run the forward pass again"
                    .to_owned(),
            )
        })?;
        saved.backward(gradient, added, count)
    }
}

thread_local! {
    /// The stream that the last sum of this thread's backward passes has given its gradient to.
    static STREAM: Cell<Option<NodeId>> = const { Cell::new(None) };
}

/// The node of an operation with `N` float inputs.
#[derive(Debug)]
struct Island<const N: usize>;

impl<const N: usize> Backward<LibTorch, N> for Island<N> {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<LibTorch>(&ops.node);
        let role = ops.state.role();
        // The norm of a stream adds what the sum further on gave that stream: burn would by a pass
        // over both. Nobody but the one who made the stream reads it later; a leaf's stays.
        let added = ops.parents[0]
            .as_ref()
            .filter(|stream| {
                role == Role::Norm && STREAM.get() == Some(stream.id) && !stream.parents.is_empty()
            })
            .map(|stream| grads.consume::<LibTorch>(stream).tensor);
        let found = or_panic(ops.state.backward(&gradient.tensor, added.as_ref(), N));
        if role == Role::Sum {
            STREAM.set(ops.parents[0].as_ref().map(|stream| stream.id));
        }
        for (parent, found) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(found)) = (parent, found) {
                // A gradient that is passed on as it came shares its memory; burn must know.
                let found = TchTensor::from_existing(found, gradient.storage.clone());
                grads.register::<LibTorch>(parent.id, found);
            }
        }
    }
}

/// Result of a forward pass. Without `save` nothing is kept for a backward pass.
pub(super) struct Ran {
    pub(super) output: TchTensor,
    pub(super) saved: Option<SavedForward>,
    pub(super) held: Vec<TchTensor>,
}

/// An operation on these inputs, as a node of burn's graph if any of them is part of it.
pub(super) fn around<const N: usize, const D: usize>(
    inputs: [FloatInput; N],
    run: impl FnOnce(&[TchTensor], bool) -> Ran,
) -> Tensor<D> {
    if inputs.iter().any(FloatInput::is_autodiff) {
        Tensor::from_primitive::<Autodiff<LibTorch>>(tracked(
            inputs.map(FloatInput::into_tracked),
            run,
        ))
    } else {
        Tensor::from_primitive::<LibTorch>(run(&inputs.map(FloatInput::into_plain), false).output)
    }
}

fn tracked<const N: usize>(
    inputs: [Tracked; N],
    run: impl FnOnce(&[TchTensor], bool) -> Ran,
) -> Tracked {
    let nodes = std::array::from_fn(|at| inputs[at].node());
    let inputs = inputs.map(|input| input.into_primitive());
    match Island::<N>
        .prepare::<NoCheckpointing>(nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prepared) => {
            let Ran {
                output,
                saved,
                held,
            } = run(&inputs, true);
            let saved = saved.expect("the shim saves state when it is asked to");
            prepared.finish(State::new(saved, held), output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(run(&inputs, false).output),
    }
}

/// burn's autodiff has no way to return an error, so libtorch's words leave as a panic, which
/// `engine::guard` catches.
pub(super) fn or_panic<T>(result: Result<T, TrialError>) -> T {
    result.unwrap_or_else(|error| std::panic::resume_unwind(Box::new(error.to_string())))
}
