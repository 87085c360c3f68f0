//! Operations of the shim with their backward. Input: tch tensors. Output: tch tensors and what the
//! backward pass needs.

mod c_functions;

use std::{
    ffi::c_int,
    fmt,
    ptr::{self, NonNull},
};

use tch::Tensor;

use self::c_functions::{
    CSaved, kiln_backward, kiln_biased_attention, kiln_causal_attention, kiln_conv_norm,
    kiln_cross_entropy, kiln_dropout, kiln_embedding, kiln_forget, kiln_gelu, kiln_layer_norm,
    kiln_linear, kiln_linears, kiln_lstm, kiln_max_pool, kiln_normalize, kiln_product, kiln_relu,
    kiln_residual, kiln_residual_norm, kiln_rms_norm, kiln_role, kiln_squared_error,
};
use super::{
    precision::ProductFormat,
    shim::{Handle, checked, handle},
};
use crate::error::TrialError;

/// Role of an operation in the residual stream of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Other = 0,
    /// Its backward pass gives the gradient on to the stream, its first input.
    Sum = 1,
    /// Its backward pass adds what its first input has got of its gradient already.
    Norm = 2,
}

/// State that a forward pass saved for its backward pass, which consumes it.
pub(super) struct SavedForward(NonNull<CSaved>);

// SAFETY: it owns tensors, whose reference counts are atomic, and nothing else refers to it.
unsafe impl Send for SavedForward {}

impl fmt::Debug for SavedForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Saved")
    }
}

impl Drop for SavedForward {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim and is given back once.
        unsafe { kiln_forget(self.0.as_ptr()) };
    }
}

impl SavedForward {
    pub(super) fn role(&self) -> Role {
        // SAFETY: the pointer came from the shim, which only reads there.
        let role = unsafe { kiln_role(self.0.as_ptr()) };
        [Role::Sum, Role::Norm]
            .into_iter()
            .find(|known| *known as c_int == role)
            .unwrap_or(Role::Other)
    }

    /// Gradients of the operation's first `count` inputs; `None` where there is none. `added` is
    /// what the first of them has got already, for a [`Role::Norm`]. Some operations write over
    /// what they saved, so it cannot run twice.
    pub(super) fn backward(
        self,
        gradient: &Tensor,
        added: Option<&Tensor>,
        count: usize,
    ) -> Result<Vec<Option<Tensor>>, TrialError> {
        let mut results = vec![ptr::null_mut(); count];
        // SAFETY: `results` has room for `count` handles; the handles written are new and owned
        // here; that of `added` may be null.
        let code = unsafe {
            kiln_backward(
                self.0.as_ptr(),
                handle(gradient),
                added.map_or(ptr::null_mut(), handle),
                results.as_mut_ptr(),
                count as c_int,
            )
        };
        // SAFETY: each non-null handle is new and becomes one tensor.
        let found = results
            .into_iter()
            .map(|result| (!result.is_null()).then(|| unsafe { Tensor::from_ptr(result) }))
            .collect();
        checked(code).map(|()| found)
    }
}

/// An operation of the shim with its settings; `island.rs` gives it its inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operation {
    /// `[x, weight]` or `[x, weight, bias]`.
    Linear {
        products: ProductFormat,
    },
    /// `[x, weight, …]`, the products side by side.
    Linears {
        products: ProductFormat,
    },
    /// `[x, weight]`.
    RmsNorm {
        epsilon: f64,
    },
    /// `[table]` and indices.
    Embedding,
    /// `[x, weight]` or `[x, weight, bias]`; the output may be in the format of the products that
    /// read it.
    LayerNorm {
        epsilon: f64,
        products: ProductFormat,
    },
    Gelu,
    Relu,
    Dropout {
        probability: f64,
    },
    /// `[stream, branch]`.
    Residual,
    /// `[logits]` and targets; `reuse` means that the logits are not used elsewhere.
    CrossEntropy {
        reuse: bool,
        smoothing: f64,
    },
    /// `[outputs, targets]`; the targets get no gradient.
    SquaredError,
    /// `[x]`.
    MaxPool,
    /// `[queries, keys and values side by side]`.
    CausalAttention {
        heads: i64,
        dropout: f64,
    },
}

/// The handle of the input at an index; null where there is none.
fn handle_at(inputs: &[&Tensor], at: usize) -> Handle {
    inputs
        .get(at)
        .map_or(ptr::null_mut(), |tensor| handle(tensor))
}

/// The place for the state that the shim saves in a forward pass. Without `save` it is null, and the
/// shim saves no state.
fn state_place(state: &mut *mut CSaved, save: bool) -> *mut *mut CSaved {
    if save {
        &raw mut *state
    } else {
        ptr::null_mut()
    }
}

/// Runs the forward pass of `operation`; with `save`, also what its backward pass needs.
pub(super) fn forward(
    operation: Operation,
    inputs: &[&Tensor],
    indices: Option<&Tensor>,
    save: bool,
) -> Result<Made, TrialError> {
    let input = |at: usize| handle_at(inputs, at);
    let indices = indices.map_or(ptr::null_mut(), handle);
    let mut out = ptr::null_mut();
    let mut state = ptr::null_mut();
    let saved = state_place(&mut state, save);
    let out_place = &raw mut out;
    // SAFETY: the handles are borrowed from live tensors for the call; optional ones may be null;
    // `out` and `saved` are places.
    let code = unsafe {
        match operation {
            Operation::Linear { products } => kiln_linear(
                input(0),
                input(1),
                input(2),
                products as c_int,
                out_place,
                saved,
            ),
            Operation::Linears { products } => {
                let weights: Vec<Handle> =
                    inputs.iter().skip(1).map(|tensor| handle(tensor)).collect();
                kiln_linears(
                    input(0),
                    weights.as_ptr(),
                    weights.len() as c_int,
                    products as c_int,
                    out_place,
                    saved,
                )
            }
            Operation::RmsNorm { epsilon } => {
                kiln_rms_norm(input(0), input(1), epsilon, out_place, saved)
            }
            Operation::Embedding => kiln_embedding(input(0), indices, out_place, saved),
            Operation::LayerNorm { epsilon, products } => kiln_layer_norm(
                input(0),
                input(1),
                input(2),
                epsilon,
                products as c_int,
                out_place,
                saved,
            ),
            Operation::Gelu => kiln_gelu(input(0), out_place, saved),
            Operation::Relu => kiln_relu(input(0), out_place, saved),
            Operation::Dropout { probability } => {
                kiln_dropout(input(0), probability, out_place, saved)
            }
            Operation::Residual => kiln_residual(input(0), input(1), out_place, saved),
            Operation::CrossEntropy { reuse, smoothing } => kiln_cross_entropy(
                input(0),
                indices,
                c_int::from(reuse),
                smoothing,
                out_place,
                saved,
            ),
            Operation::SquaredError => kiln_squared_error(input(0), input(1), out_place, saved),
            Operation::MaxPool => kiln_max_pool(input(0), out_place, saved),
            Operation::CausalAttention { heads, dropout } => {
                kiln_causal_attention(input(0), heads, dropout, out_place, saved)
            }
        }
    };
    let saved = NonNull::new(state).map(SavedForward);
    checked(code)?;
    // SAFETY: on success `out` is a new handle.
    Ok((unsafe { Tensor::from_ptr(out) }, saved))
}

/// Settings of a layer norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NormSettings {
    pub(super) epsilon: f64,
    /// Number format of the matrix products that read the norm's output, which may be in it.
    pub(super) products: ProductFormat,
}

/// A tensor, and what the backward pass of the operation that made it needs.
pub(super) type Made = (Tensor, Option<SavedForward>);

/// The forward passes of a sum and of its layer norm: `inputs` are stream, branch, weight and bias.
/// Out come both, the second as one of the sum, the weight and the bias.
pub(super) fn residual_norm(
    inputs: [&Tensor; 4],
    settings: NormSettings,
    save: bool,
) -> Result<[Made; 2], TrialError> {
    let [stream, branch, weight, bias] = inputs.map(handle);
    let (mut sum, mut normed) = (ptr::null_mut(), ptr::null_mut());
    let mut states: [*mut CSaved; 2] = [ptr::null_mut(); 2];
    let [saved_sum, saved_norm] = states.each_mut().map(|state| state_place(state, save));
    // SAFETY: the handles are borrowed from live tensors for the call; the rest are places.
    let code = unsafe {
        kiln_residual_norm(
            stream,
            branch,
            weight,
            bias,
            settings.epsilon,
            settings.products as c_int,
            &raw mut sum,
            &raw mut normed,
            saved_sum,
            saved_norm,
        )
    };
    let [of_sum, of_norm] = states.map(|state| NonNull::new(state).map(SavedForward));
    checked(code)?;
    // SAFETY: on success both are new handles.
    let [sum, normed] = [sum, normed].map(|out| unsafe { Tensor::from_ptr(out) });
    Ok([(sum, of_sum), (normed, of_norm)])
}

/// Settings of attention with a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionSettings {
    pub(super) heads: i64,
    /// Dropout of the attention weights; 0 in evaluation.
    pub(super) dropout: f64,
    pub(super) way: Way,
}

/// By which of libtorch's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As the device has it best.
    Best = 0,
    /// Products and softmax, one by one.
    #[cfg(test)]
    Plain = 1,
    /// libtorch's own attention.
    #[cfg(test)]
    Fused = 2,
}

/// The forward pass of attention without scaling: `inputs` are queries, keys and values side by
/// side [batch, time, 3 × inner], or queries and then keys and values side by side, and last, if
/// `has_bias`, the bias [heads, time, time'], whose values are in the mask. `mask` is added to the
/// scores.
pub(super) fn biased_attention(
    inputs: &[&Tensor],
    mask: Option<&Tensor>,
    has_bias: bool,
    settings: AttentionSettings,
    save: bool,
) -> Result<Made, TrialError> {
    let parts = &inputs[..inputs.len() - usize::from(has_bias)];
    let mut out = ptr::null_mut();
    let mut state = ptr::null_mut();
    let saved = state_place(&mut state, save);
    // SAFETY: the handles are borrowed from live tensors for the call; the second's and the mask's
    // may be null; the rest are places.
    let code = unsafe {
        kiln_biased_attention(
            handle(parts[0]),
            handle_at(parts, 1),
            mask.map_or(ptr::null_mut(), handle),
            c_int::from(has_bias),
            settings.heads,
            settings.dropout,
            settings.way as c_int,
            &raw mut out,
            saved,
        )
    };
    let saved = NonNull::new(state).map(SavedForward);
    checked(code)?;
    // SAFETY: on success `out` is a new handle.
    Ok((unsafe { Tensor::from_ptr(out) }, saved))
}

/// The states of LSTM layers, hidden and cell, both [layers, batch, hidden].
pub(super) type LstmStates = [Tensor; 2];

/// The forward pass of LSTM layers: `inputs` are x [batch, time, in] and four weights per layer in
/// PyTorch's order. Out come the last layer's outputs [batch, time, hidden] and the states after
/// the last time, and with `save` what the backward pass needs.
pub(super) fn lstm(
    inputs: &[&Tensor],
    states: [&Tensor; 2],
    products: ProductFormat,
    save: bool,
) -> Result<(Tensor, LstmStates, Option<SavedForward>), TrialError> {
    let inputs: Vec<Handle> = inputs.iter().map(|tensor| handle(tensor)).collect();
    let mut places = [ptr::null_mut(); 3];
    let [out, hidden, cell] = &mut places;
    let mut state = ptr::null_mut();
    let saved = state_place(&mut state, save);
    // SAFETY: the handles are borrowed from live tensors for the call; the rest are places.
    let code = unsafe {
        kiln_lstm(
            inputs.as_ptr(),
            inputs.len() as c_int,
            handle(states[0]),
            handle(states[1]),
            products as c_int,
            out,
            hidden,
            cell,
            saved,
        )
    };
    let saved = NonNull::new(state).map(SavedForward);
    checked(code)?;
    // SAFETY: on success the three are new handles.
    let [out, hidden, cell] = places.map(|place| unsafe { Tensor::from_ptr(place) });
    Ok((out, [hidden, cell], saved))
}

/// Settings of a convolution and of the operations after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ConvSettings {
    pub(super) stride: i64,
    pub(super) padding: i64,
    pub(super) relu: bool,
    pub(super) training: bool,
    pub(super) products: ProductFormat,
    /// Whether x needs a gradient.
    pub(super) of_input: bool,
}

/// The forward pass of a convolution, its norm, and a sum and a rectifier after it: `inputs` are x,
/// weight, gain, shift and, if it has one, the residual. `stats`, running mean and variance, are
/// moved in training.
pub(super) fn conv_norm(
    inputs: &[&Tensor],
    stats: &[Tensor; 2],
    settings: ConvSettings,
    save: bool,
) -> Result<Made, TrialError> {
    let input = |at: usize| handle_at(inputs, at);
    let mut out = ptr::null_mut();
    let mut state = ptr::null_mut();
    let saved = state_place(&mut state, save);
    // SAFETY: the handles are borrowed from live tensors for the call; the residual's may be null;
    // the statistics belong to the caller, who lets them be written; the rest are places.
    let code = unsafe {
        kiln_conv_norm(
            input(0),
            input(1),
            input(2),
            input(3),
            input(4),
            handle(&stats[0]),
            handle(&stats[1]),
            settings.stride,
            settings.padding,
            c_int::from(settings.relu),
            c_int::from(settings.training),
            settings.products as c_int,
            c_int::from(settings.of_input),
            &raw mut out,
            saved,
        )
    };
    let saved = NonNull::new(state).map(SavedForward);
    checked(code)?;
    // SAFETY: on success `out` is a new handle.
    Ok((unsafe { Tensor::from_ptr(out) }, saved))
}

/// left right: [n, k] and [k, m] to [n, m]. Does not wait.
pub(super) fn product(left: &Tensor, right: &Tensor) -> Result<Tensor, TrialError> {
    let mut out = ptr::null_mut();
    // SAFETY: the handles are borrowed from live tensors for the call; `out` is a place.
    checked(unsafe { kiln_product(handle(left), handle(right), &raw mut out) })?;
    // SAFETY: on success `out` is a new handle.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Numbers for bytes [rows, channels, height, width]: `table` [channels, 256], f32, has that for
/// each of a channel's bytes. Does not wait.
pub(super) fn normalize(bytes: &Tensor, table: &Tensor) -> Result<Tensor, TrialError> {
    let mut out = ptr::null_mut();
    // SAFETY: the handles are borrowed from live tensors for the call; `out` is a place.
    checked(unsafe { kiln_normalize(handle(bytes), handle(table), &raw mut out) })?;
    // SAFETY: on success `out` is a new handle.
    Ok(unsafe { Tensor::from_ptr(out) })
}
