//! The C functions of the shim's operations, as `shim/shim.h` declares them.

use std::ffi::c_int;

use crate::engine::shim::Handle;

/// The tensors of a forward pass that the shim keeps for the backward pass.
#[repr(C)]
pub(super) struct CSaved {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    pub(super) fn kiln_linear(
        x: Handle,
        w: Handle,
        b: Handle,
        products: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_product(left: Handle, right: Handle, out: *mut Handle) -> c_int;
    pub(super) fn kiln_linears(
        x: Handle,
        weights: *const Handle,
        count: c_int,
        products: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_rms_norm(
        x: Handle,
        weight: Handle,
        epsilon: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_biased_attention(
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
    pub(super) fn kiln_normalize(bytes: Handle, table: Handle, out: *mut Handle) -> c_int;
    pub(super) fn kiln_embedding(
        table: Handle,
        indices: Handle,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_layer_norm(
        x: Handle,
        weight: Handle,
        bias: Handle,
        epsilon: f64,
        products: c_int,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_gelu(x: Handle, out: *mut Handle, saved: *mut *mut CSaved) -> c_int;
    pub(super) fn kiln_relu(x: Handle, out: *mut Handle, saved: *mut *mut CSaved) -> c_int;
    pub(super) fn kiln_dropout(
        x: Handle,
        probability: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_residual(
        stream: Handle,
        branch: Handle,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_residual_norm(
        stream: Handle,
        branch: Handle,
        weight: Handle,
        bias: Handle,
        epsilon: f64,
        products: c_int,
        sum: *mut Handle,
        normed: *mut Handle,
        saved_sum: *mut *mut CSaved,
        saved_norm: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_cross_entropy(
        logits: Handle,
        targets: Handle,
        reuse: c_int,
        smoothing: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_squared_error(
        outputs: Handle,
        targets: Handle,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_max_pool(x: Handle, out: *mut Handle, saved: *mut *mut CSaved) -> c_int;
    pub(super) fn kiln_conv_norm(
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
    pub(super) fn kiln_causal_attention(
        qkv: Handle,
        heads: i64,
        dropout: f64,
        out: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_lstm(
        inputs: *const Handle,
        count: c_int,
        hidden: Handle,
        cell: Handle,
        products: c_int,
        out: *mut Handle,
        last_hidden: *mut Handle,
        last_cell: *mut Handle,
        saved: *mut *mut CSaved,
    ) -> c_int;
    pub(super) fn kiln_role(saved: *const CSaved) -> c_int;
    pub(super) fn kiln_backward(
        saved: *mut CSaved,
        gradient: Handle,
        added: Handle,
        results: *mut Handle,
        count: c_int,
    ) -> c_int;
    pub(super) fn kiln_forget(saved: *mut CSaved);
}
