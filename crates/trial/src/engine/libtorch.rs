//! The shim (`shim/*.cpp`) as safe functions: operations with their backward, fused optimizers,
//! allocator figures, switches, versions. The rest of the package's unsafe code is in the other
//! files of this folder that call the shim, such as `scaler.rs`, `cuda.rs`, `capture.rs`,
//! `replicas.rs` and `probe.rs`. Input: tch tensors. Output: tch tensors or libtorch's messages as
//! [`TrialError`].

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_int},
    fmt,
    ptr::{self, NonNull},
};

use tch::Tensor;
use torch_sys::C_tensor;

use super::{AllocatorStats, error_from_text, precision::Products};
use crate::error::TrialError;

pub(super) type Handle = *mut C_tensor;

#[repr(C)]
struct CSaved {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn kiln_error() -> *const c_char;
    fn kiln_headers_version() -> *const c_char;
    fn kiln_libtorch_build() -> *const c_char;
    fn kiln_library_version(
        path: *const c_char,
        function: *const c_char,
        shape: c_int,
        number: *mut i64,
    ) -> c_int;
    fn kiln_allocator(device: c_int, figures: *mut i64) -> c_int;
    fn kiln_reset_allocator_peaks(device: c_int) -> c_int;
    fn kiln_flags(flags: *mut c_int) -> c_int;
    fn kiln_allow_tf32(is_allowed: c_int) -> c_int;
    fn kiln_cudnn_benchmark(is_wanted: c_int) -> c_int;
    fn kiln_keep_host_memory();
    fn kiln_cuda_branches_forced() -> c_int;
    fn kiln_force_cuda_branches(is_forced: c_int);
    fn kiln_warn_once();
    #[cfg(test)]
    fn kiln_warn(text: *const c_char);
    #[cfg(test)]
    fn kiln_warnings_told() -> c_int;
    #[cfg(test)]
    fn kiln_cudnn_attention_allowed() -> c_int;
    fn kiln_attention_kernels() -> c_int;

    fn kiln_linear(
        x: Handle,
        w: Handle,
        b: Handle,
        products: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_linears(
        x: Handle,
        weights: *const Handle,
        count: c_int,
        products: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_rms_norm(
        x: Handle,
        weight: Handle,
        epsilon: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_biased_attention(
        first: Handle,
        second: Handle,
        mask: Handle,
        bias: c_int,
        heads: i64,
        dropout: f64,
        way: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_normalize(bytes: Handle, table: Handle, out: *mut Handle) -> c_int;
    fn kiln_embedding(
        table: Handle,
        indices: Handle,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_layer_norm(
        x: Handle,
        weight: Handle,
        bias: Handle,
        epsilon: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_gelu(x: Handle, out: *mut Handle, saved: *mut *mut CSaved) -> c_int;
    fn kiln_relu(x: Handle, out: *mut Handle, saved: *mut *mut CSaved) -> c_int;
    fn kiln_dropout(
        x: Handle,
        probability: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_residual(
        stream: Handle,
        branch: Handle,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_cross_entropy(
        logits: Handle,
        targets: Handle,
        reuse: c_int,
        smoothing: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_max_pool(x: Handle, out: *mut Handle, saved: *mut *mut CSaved) -> c_int;
    fn kiln_conv_norm(
        x: Handle,
        weight: Handle,
        gain: Handle,
        shift: Handle,
        residual: Handle,
        running_mean: Handle,
        running_variance: Handle,
        stride: i64,
        padding: i64,
        relu: c_int,
        training: c_int,
        products: c_int,
        of_input: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_causal_attention(
        qkv: Handle,
        heads: i64,
        dropout: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_lstm(
        inputs: *const Handle,
        count: c_int,
        hidden: Handle,
        cell: Handle,
        dropout: f64,
        products: c_int,
        out: *mut Handle,
        last_hidden: *mut Handle,
        last_cell: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    fn kiln_backward(
        saved: *mut CSaved,
        gradient: Handle,
        results: *mut Handle,
        count: c_int,
    ) -> c_int;
    fn kiln_forget(saved: *mut CSaved);

    fn kiln_adamw(
        parameters: *const Handle,
        gradients: *const Handle,
        first: *const Handle,
        second: *const Handle,
        steps: *const Handle,
        count: c_int,
        rate: f64,
        held: Handle,
        beta1: f64,
        beta2: f64,
        decay: f64,
        epsilon: f64,
        found: Handle,
    ) -> c_int;
    fn kiln_sgd(
        parameters: *const Handle,
        gradients: *const Handle,
        buffers: *const Handle,
        count: c_int,
        rate: f64,
        held: Handle,
        momentum: f64,
        nesterov: c_int,
        decay: f64,
        first_step: c_int,
        found: Handle,
    ) -> c_int;
    fn kiln_adafactor(
        parameters: *const Handle,
        gradients: *const Handle,
        rows: *const Handle,
        columns: *const Handle,
        steps: Handle,
        count: c_int,
        rate: f64,
        held: Handle,
        decay_rate: f64,
        epsilon: f64,
        clip_threshold: f64,
        decay: f64,
        found: Handle,
    ) -> c_int;
    fn kiln_clip(gradients: *const Handle, count: c_int, largest: f64, norm: *mut Handle) -> c_int;
    fn kiln_accumulate(sums: *const Handle, terms: *const Handle, count: c_int) -> c_int;
}

/// The shim's word on its last call of this thread.
pub(super) fn checked(code: c_int) -> Result<(), TrialError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim returns a NUL-terminated text that lives until the thread's next failing
    // call.
    let text = unsafe { CStr::from_ptr(kiln_error()) };
    Err(error_from_text(&text.to_string_lossy()))
}

/// The shim writes to no tensor through a handle unless its function says so; tch's own wrappers
/// make the same cast.
pub(super) fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast_mut()
}

pub(super) fn handles(tensors: &[Tensor]) -> Vec<Handle> {
    tensors.iter().map(handle).collect()
}

/// Lists that C++ walks side by side must be as long as one another.
fn same_length(lists: &[&[Tensor]]) -> Result<(), TrialError> {
    if lists.iter().all(|list| list.len() == lists[0].len()) {
        return Ok(());
    }
    let lengths: Vec<usize> = lists.iter().map(|list| list.len()).collect();
    Err(TrialError::Failed(format!(
        "the optimizer's lists of tensors differ in length: {lengths:?}; this is a bug in kiln; \
         please report it"
    )))
}

pub(super) fn count(tensors: &[Tensor]) -> c_int {
    tensors.len() as c_int
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
    /// Gradients of the operation's first `count` inputs; `None` where there is none. Some
    /// operations write over what they saved, so it cannot run twice.
    pub(super) fn backward(
        self,
        gradient: &Tensor,
        count: usize,
    ) -> Result<Vec<Option<Tensor>>, TrialError> {
        let mut results = vec![ptr::null_mut(); count];
        // SAFETY: `results` has room for `count` handles; the handles written are new and owned
        // here.
        let code = unsafe {
            kiln_backward(
                self.0.as_ptr(),
                handle(gradient),
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
        products: Products,
    },
    /// `[x, weight, …]`, the products side by side.
    Linears {
        products: Products,
    },
    /// `[x, weight]`.
    RmsNorm {
        epsilon: f64,
    },
    /// `[table]` and indices.
    Embedding,
    /// `[x, weight]` or `[x, weight, bias]`.
    LayerNorm {
        epsilon: f64,
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
    /// `[x]`.
    MaxPool,
    /// `[queries, keys and values side by side]`.
    CausalAttention {
        heads: i64,
        dropout: f64,
    },
}

/// Runs the forward pass of `operation`; with `save`, also what its backward pass needs.
pub(super) fn forward(
    operation: Operation,
    inputs: &[&Tensor],
    indices: Option<&Tensor>,
    save: bool,
) -> Result<(Tensor, Option<SavedForward>), TrialError> {
    let input = |at: usize| {
        inputs
            .get(at)
            .map_or(ptr::null_mut(), |tensor| handle(tensor))
    };
    let indices = indices.map_or(ptr::null_mut(), handle);
    let mut out = ptr::null_mut();
    let mut state: *mut CSaved = ptr::null_mut();
    let saved = if save {
        &raw mut state
    } else {
        ptr::null_mut()
    };
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
            Operation::LayerNorm { epsilon } => {
                kiln_layer_norm(input(0), input(1), input(2), epsilon, out_place, saved)
            }
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
    with: AttentionSettings,
    save: bool,
) -> Result<(Tensor, Option<SavedForward>), TrialError> {
    let parts = &inputs[..inputs.len() - usize::from(has_bias)];
    let mut out = ptr::null_mut();
    let mut state: *mut CSaved = ptr::null_mut();
    let saved = if save {
        &raw mut state
    } else {
        ptr::null_mut()
    };
    // SAFETY: the handles are borrowed from live tensors for the call; the second's and the mask's
    // may be null; the rest are places.
    let code = unsafe {
        kiln_biased_attention(
            handle(parts[0]),
            parts
                .get(1)
                .map_or(ptr::null_mut(), |tensor| handle(tensor)),
            mask.map_or(ptr::null_mut(), handle),
            c_int::from(has_bias),
            with.heads,
            with.dropout,
            with.way as c_int,
            &raw mut out,
            saved,
        )
    };
    let saved = NonNull::new(state).map(SavedForward);
    checked(code)?;
    // SAFETY: on success `out` is a new handle.
    Ok((unsafe { Tensor::from_ptr(out) }, saved))
}

/// Settings of LSTM layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LstmSettings {
    /// Between layers; 0 in evaluation.
    pub(super) dropout: f64,
    pub(super) products: Products,
}

/// The states of LSTM layers, hidden and cell, both [layers, batch, hidden].
pub(super) type LstmStates = [Tensor; 2];

/// The forward pass of LSTM layers: `inputs` are x [batch, time, in] and four weights per layer in
/// PyTorch's order. Out come the last layer's outputs [batch, time, hidden] and the states after
/// the last time, and with `save` what the backward pass needs.
pub(super) fn lstm(
    inputs: &[&Tensor],
    states: &LstmStates,
    with: LstmSettings,
    save: bool,
) -> Result<(Tensor, LstmStates, Option<SavedForward>), TrialError> {
    let inputs: Vec<Handle> = inputs.iter().map(|tensor| handle(tensor)).collect();
    let mut places = [ptr::null_mut(); 3];
    let [out, hidden, cell] = &mut places;
    let mut state: *mut CSaved = ptr::null_mut();
    let saved = if save {
        &raw mut state
    } else {
        ptr::null_mut()
    };
    // SAFETY: the handles are borrowed from live tensors for the call; the rest are places.
    let code = unsafe {
        kiln_lstm(
            inputs.as_ptr(),
            inputs.len() as c_int,
            handle(&states[0]),
            handle(&states[1]),
            with.dropout,
            with.products as c_int,
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
    pub(super) products: Products,
    /// Whether x needs a gradient.
    pub(super) of_input: bool,
}

/// The forward pass of a convolution, its norm, and a sum and a rectifier after it: `inputs` are x,
/// weight, gain, shift and, if it has one, the residual. `stats`, running mean and variance, are
/// moved in training.
pub(super) fn conv_norm(
    inputs: &[&Tensor],
    stats: &[Tensor; 2],
    with: ConvSettings,
    save: bool,
) -> Result<(Tensor, Option<SavedForward>), TrialError> {
    let input = |at: usize| {
        inputs
            .get(at)
            .map_or(ptr::null_mut(), |tensor| handle(tensor))
    };
    let mut out = ptr::null_mut();
    let mut state: *mut CSaved = ptr::null_mut();
    let saved = if save {
        &raw mut state
    } else {
        ptr::null_mut()
    };
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
            with.stride,
            with.padding,
            c_int::from(with.relu),
            c_int::from(with.training),
            with.products as c_int,
            c_int::from(with.of_input),
            &raw mut out,
            saved,
        )
    };
    let saved = NonNull::new(state).map(SavedForward);
    checked(code)?;
    // SAFETY: on success `out` is a new handle.
    Ok((unsafe { Tensor::from_ptr(out) }, saved))
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

/// The learning rate of an update.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LearningRate<'a> {
    Number(f64),
    /// The number that this has when the update is made: f32 without axes, on the CPU also f64.
    OnDevice(&'a Tensor),
}

impl LearningRate<'_> {
    /// As the shim takes it: a number, or a tensor in its place.
    fn parts(self) -> (f64, Handle) {
        match self {
            Self::Number(number) => (number, ptr::null_mut()),
            Self::OnDevice(held) => (0.0, handle(held)),
        }
    }
}

/// AdamW's numbers for one update of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamW<'a> {
    pub(crate) learning_rate: LearningRate<'a>,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) weight_decay: f64,
    pub(crate) epsilon: f64,
}

/// The tensors of one parameter group; the lists run in parallel.
#[derive(Debug, Default)]
pub(crate) struct ParameterGroup {
    pub(crate) parameters: Vec<Tensor>,
    pub(crate) gradients: Vec<Tensor>,
    /// First moments of AdamW, SGD's momentum, or Adafactor's means along the last axis.
    pub(crate) first: Vec<Tensor>,
    /// Second moments of AdamW, or Adafactor's means along the axis before the last.
    pub(crate) second: Vec<Tensor>,
    /// One-element f32 step counters beside the parameters: AdamW's one per parameter, Adafactor's
    /// one.
    pub(crate) steps: Vec<Tensor>,
}

/// One fused AdamW update, in place, of all parameters of the group; none if `found`, one f32 on
/// the device, is 1.
pub(crate) fn adamw(
    group: &ParameterGroup,
    with: AdamW<'_>,
    found: Option<&Tensor>,
) -> Result<(), TrialError> {
    same_length(&[
        &group.parameters,
        &group.gradients,
        &group.first,
        &group.second,
        &group.steps,
    ])?;
    let lists = [
        &group.parameters,
        &group.gradients,
        &group.first,
        &group.second,
        &group.steps,
    ]
    .map(|list| handles(list));
    let (rate, held) = with.learning_rate.parts();
    // SAFETY: five lists of equal length; the optimizer owns what is written (parameters, moments,
    // counters); `held` and `found` may be null.
    let code = unsafe {
        kiln_adamw(
            lists[0].as_ptr(),
            lists[1].as_ptr(),
            lists[2].as_ptr(),
            lists[3].as_ptr(),
            lists[4].as_ptr(),
            count(&group.parameters),
            rate,
            held,
            with.beta1,
            with.beta2,
            with.weight_decay,
            with.epsilon,
            found.map_or(ptr::null_mut(), handle),
        )
    };
    checked(code)
}

/// SGD's numbers for one update of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgd<'a> {
    pub(crate) learning_rate: LearningRate<'a>,
    pub(crate) momentum: f64,
    pub(crate) nesterov: bool,
    pub(crate) weight_decay: f64,
    /// Whether the momentum is still to be started from this gradient.
    pub(crate) first_step: bool,
}

/// One fused SGD update, in place, of all parameters of the group; none if `found`, one f32 on the
/// device, is 1.
pub(crate) fn sgd(
    group: &ParameterGroup,
    with: Sgd<'_>,
    found: Option<&Tensor>,
) -> Result<(), TrialError> {
    same_length(&[&group.parameters, &group.gradients])?;
    if with.momentum != 0.0 {
        same_length(&[&group.parameters, &group.first])?;
    }
    let lists = [&group.parameters, &group.gradients, &group.first].map(|list| handles(list));
    let (rate, held) = with.learning_rate.parts();
    // SAFETY: lists of equal length; `first` is empty and not read without momentum; `held` and
    // `found` may be null.
    let code = unsafe {
        kiln_sgd(
            lists[0].as_ptr(),
            lists[1].as_ptr(),
            lists[2].as_ptr(),
            count(&group.parameters),
            rate,
            held,
            with.momentum,
            c_int::from(with.nesterov),
            with.weight_decay,
            c_int::from(with.first_step),
            found.map_or(ptr::null_mut(), handle),
        )
    };
    checked(code)
}

/// Adafactor's numbers for one update of one group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adafactor<'a> {
    pub(crate) learning_rate: LearningRate<'a>,
    pub(crate) decay_rate: f64,
    pub(crate) epsilon: f64,
    pub(crate) clip_threshold: f64,
    pub(crate) weight_decay: f64,
}

/// One Adafactor update, in place, of all parameters of the group, whose gradients are written
/// over; none if `found`, one f32 on the device, is 1. Does not wait.
pub(crate) fn adafactor(
    group: &ParameterGroup,
    with: Adafactor<'_>,
    found: Option<&Tensor>,
) -> Result<(), TrialError> {
    same_length(&[
        &group.parameters,
        &group.gradients,
        &group.first,
        &group.second,
    ])?;
    let Some(steps) = group.steps.first() else {
        return Ok(());
    };
    let lists = [
        &group.parameters,
        &group.gradients,
        &group.first,
        &group.second,
    ]
    .map(|list| handles(list));
    let (rate, held) = with.learning_rate.parts();
    // SAFETY: four lists of equal length and a counter; the optimizer owns what is written (all of
    // them); `held` and `found` may be null.
    let code = unsafe {
        kiln_adafactor(
            lists[0].as_ptr(),
            lists[1].as_ptr(),
            lists[2].as_ptr(),
            lists[3].as_ptr(),
            handle(steps),
            count(&group.parameters),
            rate,
            held,
            with.decay_rate,
            with.epsilon,
            with.clip_threshold,
            with.weight_decay,
            found.map_or(ptr::null_mut(), handle),
        )
    };
    checked(code)
}

/// Scales the gradients in place so that their common norm is at most `largest`; the norm before,
/// still on the device.
pub(crate) fn clip(gradients: &[Tensor], largest: f64) -> Result<Tensor, TrialError> {
    let list = handles(gradients);
    let mut norm = ptr::null_mut();
    // SAFETY: the optimizer owns the gradients; `norm` is a place.
    let code = unsafe { kiln_clip(list.as_ptr(), count(gradients), largest, &raw mut norm) };
    checked(code)?;
    // SAFETY: on success `norm` is a new handle.
    Ok(unsafe { Tensor::from_ptr(norm) })
}

/// Adds `terms` to `sums` in place.
pub(crate) fn accumulate(sums: &[Tensor], terms: &[Tensor]) -> Result<(), TrialError> {
    same_length(&[sums, terms])?;
    let (into, from) = (handles(sums), handles(terms));
    // SAFETY: lists of equal length; the optimizer owns the sums.
    checked(unsafe { kiln_accumulate(into.as_ptr(), from.as_ptr(), count(sums)) })
}

/// The libtorch that this program was compiled against.
pub(super) fn headers_version() -> &'static str {
    // SAFETY: a constant text of the shim.
    unsafe { CStr::from_ptr(kiln_headers_version()) }
        .to_str()
        .unwrap_or("unknown")
}

/// libtorch's own description of its build (`KEY=value` parts between commas and lines).
pub(super) fn build() -> String {
    // SAFETY: a constant text of the shim.
    unsafe { CStr::from_ptr(kiln_libtorch_build()) }
        .to_string_lossy()
        .into_owned()
}

/// The way to ask a library for its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionCall {
    /// `size_t f()`.
    Returned = 0,
    /// `int f(int *)`.
    Written = 1,
    /// `int f(int which, int *)` for major, minor and patch; packed as major × 10000 + minor × 100
    /// + patch.
    InParts = 2,
}

/// The number that the loaded library at `path` answers; `None` if it is not loaded or has no such
/// function.
pub(super) fn library_version(path: &str, function: &CStr, asking: VersionCall) -> Option<i64> {
    let path = CString::new(path).ok()?;
    let mut number = 0;
    // SAFETY: two NUL-terminated texts and a place; the function named is one of that shape (the
    // table in `facts.rs`).
    checked(unsafe {
        kiln_library_version(
            path.as_ptr(),
            function.as_ptr(),
            asking as c_int,
            &raw mut number,
        )
    })
    .ok()
    .map(|()| number)
}

/// Figures of the one visible CUDA device.
pub(super) fn allocator_stats(device: usize) -> Result<AllocatorStats, TrialError> {
    let mut figures = [0_i64; 6];
    // SAFETY: the shim writes six numbers.
    checked(unsafe { kiln_allocator(device as c_int, figures.as_mut_ptr()) })?;
    let [
        allocated,
        peak_allocated,
        reserved,
        peak_reserved,
        retries,
        out_of_memory,
    ] = figures.map(|figure| u64::try_from(figure).unwrap_or(0));
    Ok(AllocatorStats {
        allocated_bytes: allocated,
        peak_allocated_bytes: peak_allocated,
        reserved_bytes: reserved,
        peak_reserved_bytes: peak_reserved,
        retries,
        out_of_memory_count: out_of_memory,
    })
}

pub(super) fn reset_allocator_peaks(device: usize) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_reset_allocator_peaks(device as c_int) })
}

/// Switches by name.
pub(super) fn flags() -> Result<BTreeMap<String, String>, TrialError> {
    const NAMES: [&str; 5] = [
        "tf32_matmul",
        "tf32_cudnn",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "deterministic_algorithms",
    ];
    let mut flags: [c_int; 5] = [0; 5];
    // SAFETY: the shim writes five numbers.
    checked(unsafe { kiln_flags(flags.as_mut_ptr()) })?;
    Ok(NAMES
        .iter()
        .zip(flags)
        .map(|(name, flag)| ((*name).to_owned(), (flag != 0).to_string()))
        .collect())
}

/// Whether CUDA may make f32 products and convolutions from TF32 factors. Precision f32 means f32:
/// it may not.
pub(crate) fn allow_tf32(is_allowed: bool) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_allow_tf32(c_int::from(is_allowed)) })
}

/// Whether cuDNN tries its convolutions on the first of each shape.
pub(super) fn set_cudnn_benchmark(is_wanted: bool) -> Result<(), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_cudnn_benchmark(c_int::from(is_wanted)) })
}

/// Whether this thread takes the ways that are meant for CUDA on the CPU too, as far as the CPU has
/// them: `KILN_CUDA_BRANCHES=1` in the environment, or [`force_cuda_branches`].
pub(crate) fn cuda_branches_forced() -> bool {
    // SAFETY: a call without pointers.
    unsafe { kiln_cuda_branches_forced() != 0 }
}

/// Makes this thread take them, or no longer: for tests of what a machine without a GPU can show of
/// them. What is built while they are forced still takes them.
pub fn force_cuda_branches(is_forced: bool) {
    // SAFETY: a call without pointers.
    unsafe { kiln_force_cuda_branches(c_int::from(is_forced)) }
}

/// From now on, this thread prints each of libtorch's warnings once in this process: some would
/// appear at every step.
pub(super) fn warn_once() {
    // SAFETY: a call without pointers.
    unsafe { kiln_warn_once() }
}

/// The kernels of attention that have run in this process, by libtorch's names for them.
pub(crate) fn attention_kernels() -> Vec<&'static str> {
    const NAMES: [&str; 4] = ["math", "flash", "efficient", "cudnn"];
    // SAFETY: a call without pointers.
    let ran = unsafe { kiln_attention_kernels() };
    NAMES
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| ran >> bit & 1 == 1)
        .map(|(_, name)| name)
        .collect()
}

/// From now on the process keeps freed host memory for later tensors.
pub(super) fn keep_host_memory() {
    // SAFETY: a call without pointers; it sets two numbers of the C library's allocator.
    unsafe { kiln_keep_host_memory() }
}

/// Whether libtorch may choose cuDNN's attention the next time.
#[cfg(test)]
pub(super) fn cudnn_attention_allowed() -> bool {
    // SAFETY: a call without pointers.
    unsafe { kiln_cudnn_attention_allowed() != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_comes_with_every_step_is_told_once() {
        std::thread::spawn(|| {
            warn_once();
            // SAFETY: NUL-terminated texts that live through the call, and a call without pointers.
            let told = |text: &CStr| unsafe {
                kiln_warn(text.as_ptr());
                kiln_warnings_told()
            };
            let first = told(c"weights are not part of a single piece of memory (a test)");
            assert_eq!(
                told(c"weights are not part of a single piece of memory (a test)"),
                first
            );
            assert_eq!(told(c"another one (a test)"), first + 1);
        })
        .join()
        .unwrap();
    }

    /// On the CPU the switch is there and does nothing.
    #[test]
    fn the_switch_for_tf32_shows_in_the_flags() {
        for is_allowed in [true, false] {
            allow_tf32(is_allowed).unwrap();
            let flags = flags().unwrap();
            assert_eq!(
                [&flags["tf32_matmul"], &flags["tf32_cudnn"]],
                [&is_allowed.to_string(); 2]
            );
        }
    }
}
