//! Fused updates of parameters in place: what each optimizer keeps and how it steps, clipping,
//! accumulation. Input: lists of tch tensors that run in parallel.

use std::{ffi::c_int, ptr};

use kiln_core::spec::Optimizer;
use tch::Tensor;

use super::shim::{Handle, checked, count, handle, handles};
use crate::error::TrialError;

unsafe extern "C" {
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
        divisor: Handle,
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
        divisor: Handle,
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
        divisor: Handle,
        found: Handle,
    ) -> c_int;
    fn kiln_clip_divisor(
        gradients: *const Handle,
        count: c_int,
        largest: f64,
        divisor: *mut Handle,
    ) -> c_int;
    fn kiln_squared_norms(tensors: *const Handle, count: c_int, norms: *mut Handle) -> c_int;
    fn kiln_accumulate(sums: *const Handle, terms: *const Handle, count: c_int) -> c_int;
}

/// The handles of lists that C++ walks side by side.
///
/// Errors: they differ in length.
fn checked_lists<const N: usize>(lists: [&[Tensor]; N]) -> Result<[Vec<Handle>; N], TrialError> {
    same_length(&lists)?;
    Ok(lists.map(handles))
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

/// Numbers of an update that are on the device and that the host does not read: tensors of one f32.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnDevice<'a> {
    /// By what the update divides the gradients, in place.
    pub(crate) divisor: Option<&'a Tensor>,
    /// 1 if the update is to be skipped.
    pub(crate) found: Option<&'a Tensor>,
}

impl OnDevice<'_> {
    fn parts(self) -> [Handle; 2] {
        [self.divisor, self.found].map(|tensor| tensor.map_or(ptr::null_mut(), handle))
    }
}

/// One fused AdamW update, in place, of all parameters of the group.
pub(crate) fn adamw(
    group: &ParameterGroup,
    settings: AdamW<'_>,
    known: OnDevice<'_>,
) -> Result<(), TrialError> {
    let lists = checked_lists([
        &group.parameters,
        &group.gradients,
        &group.first,
        &group.second,
        &group.steps,
    ])?;
    let (rate, held) = settings.learning_rate.parts();
    let [divisor, found] = known.parts();
    // SAFETY: five lists of equal length; the optimizer owns what is written (parameters,
    // gradients, moments, counters); `held`, `divisor` and `found` may be null.
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
            settings.beta1,
            settings.beta2,
            settings.weight_decay,
            settings.epsilon,
            divisor,
            found,
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

/// One fused SGD update, in place, of all parameters of the group.
pub(crate) fn sgd(
    group: &ParameterGroup,
    settings: Sgd<'_>,
    known: OnDevice<'_>,
) -> Result<(), TrialError> {
    same_length(&[&group.parameters, &group.gradients])?;
    if settings.momentum != 0.0 {
        same_length(&[&group.parameters, &group.first])?;
    }
    let lists = [&group.parameters, &group.gradients, &group.first].map(|list| handles(list));
    let (rate, held) = settings.learning_rate.parts();
    let [divisor, found] = known.parts();
    // SAFETY: lists of equal length; `first` is empty and not read without momentum; `held`,
    // `divisor` and `found` may be null.
    let code = unsafe {
        kiln_sgd(
            lists[0].as_ptr(),
            lists[1].as_ptr(),
            lists[2].as_ptr(),
            count(&group.parameters),
            rate,
            held,
            settings.momentum,
            c_int::from(settings.nesterov),
            settings.weight_decay,
            c_int::from(settings.first_step),
            divisor,
            found,
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

/// One Adafactor update, in place, of all parameters of the group, whose gradients may be written
/// over. Does not wait.
pub(crate) fn adafactor(
    group: &ParameterGroup,
    settings: Adafactor<'_>,
    known: OnDevice<'_>,
) -> Result<(), TrialError> {
    let lists = checked_lists([
        &group.parameters,
        &group.gradients,
        &group.first,
        &group.second,
    ])?;
    let Some(steps) = group.steps.first() else {
        return Ok(());
    };
    let (rate, held) = settings.learning_rate.parts();
    let [divisor, found] = known.parts();
    // SAFETY: four lists of equal length and a counter; the optimizer owns what is written (all of
    // them); `held`, `divisor` and `found` may be null.
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
            settings.decay_rate,
            settings.epsilon,
            settings.clip_threshold,
            settings.weight_decay,
            divisor,
            found,
        )
    };
    checked(code)
}

impl ParameterGroup {
    /// Initial optimizer state of a parameter, before its first update.
    pub(crate) fn begin(&mut self, optimizer: &Optimizer, parameter: &Tensor) {
        match optimizer {
            Optimizer::Adamw { .. } => {
                self.first.push(parameter.zeros_like());
                self.second.push(parameter.zeros_like());
                self.steps
                    .push(Tensor::zeros([], (tch::Kind::Float, parameter.device())));
            }
            // SGD without momentum has no state: an unused buffer would count in the memory
            // columns.
            Optimizer::Sgd { momentum: 0.0, .. } => {}
            Optimizer::Sgd { .. } => self.first.push(parameter.zeros_like()),
            Optimizer::Adafactor { .. } => {
                let [rows, columns] = means_of(&parameter.size());
                let zeros =
                    |shape: Vec<i64>| Tensor::zeros(shape, (tch::Kind::Float, parameter.device()));
                self.first.push(zeros(rows));
                self.second.push(zeros(columns));
                if self.steps.is_empty() {
                    self.steps
                        .push(Tensor::zeros([], (tch::Kind::Float, parameter.device())));
                }
            }
        }
    }
}

/// Shapes of Adafactor's means for a parameter of this shape: along the last axis, and along the
/// one before it.
fn means_of(shape: &[i64]) -> [Vec<i64>; 2] {
    match shape {
        [leading @ .., rows, columns] => [
            [leading, &[*rows]].concat(),
            [leading, &[*columns]].concat(),
        ],
        of_one_axis => [of_one_axis.to_vec(), vec![0]],
    }
}

/// Values that all groups of one update share.
#[derive(Clone, Copy)]
pub(crate) struct UpdateContext<'a> {
    pub(crate) learning_rate: LearningRate<'a>,
    /// A skipped first step counts as well: a momentum of zeros and one not started give the same
    /// update.
    pub(crate) is_first: bool,
    pub(crate) known: OnDevice<'a>,
}

/// One update of a group, in place, by the experiment's optimizer; `decays` says whether the group
/// has weight decay.
pub(crate) fn step(
    optimizer: &Optimizer,
    group: &ParameterGroup,
    decays: bool,
    update: UpdateContext<'_>,
) -> Result<(), TrialError> {
    let UpdateContext {
        learning_rate,
        is_first,
        known,
    } = update;
    let decayed = |weight_decay: f64| if decays { weight_decay } else { 0.0 };
    match *optimizer {
        Optimizer::Adamw {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            ..
        } => adamw(
            group,
            AdamW {
                learning_rate,
                beta1,
                beta2,
                weight_decay: decayed(weight_decay),
                epsilon,
            },
            known,
        ),
        Optimizer::Sgd {
            momentum,
            nesterov,
            weight_decay,
            ..
        } => sgd(
            group,
            Sgd {
                learning_rate,
                momentum,
                nesterov,
                weight_decay: decayed(weight_decay),
                first_step: is_first,
            },
            known,
        ),
        Optimizer::Adafactor {
            decay_rate,
            epsilon,
            clip_threshold,
            weight_decay,
            ..
        } => adafactor(
            group,
            Adafactor {
                learning_rate,
                decay_rate,
                epsilon,
                clip_threshold,
                weight_decay: decayed(weight_decay),
            },
            known,
        ),
    }
}

/// By what gradients are divided so that their common norm is at most `largest`: f32 without axes,
/// on their device. Does not wait.
pub(crate) fn clip_divisor(gradients: &[Tensor], largest: f64) -> Result<Tensor, TrialError> {
    let list = handles(gradients);
    let mut divisor = ptr::null_mut();
    // SAFETY: the gradients are only read; `divisor` is a place.
    let code =
        unsafe { kiln_clip_divisor(list.as_ptr(), count(gradients), largest, &raw mut divisor) };
    checked(code)?;
    // SAFETY: on success `divisor` is a new handle.
    Ok(unsafe { Tensor::from_ptr(divisor) })
}

/// The squared norm of each of them, [tensors], f64, still on the device.
pub(crate) fn squared_norms(tensors: &[Tensor]) -> Result<Tensor, TrialError> {
    let list = handles(tensors);
    let mut norms = ptr::null_mut();
    // SAFETY: the caller owns the tensors, which are only read; `norms` is a place.
    checked(unsafe { kiln_squared_norms(list.as_ptr(), count(tensors), &raw mut norms) })?;
    // SAFETY: on success `norms` is a new handle.
    Ok(unsafe { Tensor::from_ptr(norms) })
}

/// Adds `terms` to `sums` in place.
pub(crate) fn accumulate(sums: &[Tensor], terms: &[Tensor]) -> Result<(), TrialError> {
    same_length(&[sums, terms])?;
    let (into, from) = (handles(sums), handles(terms));
    // SAFETY: lists of equal length; the optimizer owns the sums.
    checked(unsafe { kiln_accumulate(into.as_ptr(), from.as_ptr(), count(sums)) })
}
