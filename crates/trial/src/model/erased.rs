//! Wraps a model of any type in one type, so that the network's enum can hold it: burn's `Module`
//! walks are generic over their visitor and each parameter's number of axes, which a trait object
//! cannot be. Here a walk passes its parameters as `dyn Any`.

use std::{any::Any, fmt};

use burn::{
    module::{
        Content, Devices, Flag, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper,
        ModuleVisitor, Param,
    },
    tensor::{Bool, Device, Int, Tensor},
};

use super::{Input, OwnModel};
use crate::{
    engine::{Ops, RunningStats},
    error::TrialError,
};

/// Axes that a parameter may have.
pub(super) const MOST_AXES: usize = 8;

const IS_OF_ITS_TYPE: &str = "a parameter comes back with the type it had";
const AXES_WERE_COUNTED: &str = "a model whose parameters have more axes was refused when it was \
                                 built";

/// A user's own model.
pub struct BoxedModel(Box<dyn Erased>);

impl BoxedModel {
    /// Errors: a parameter has more than 8 axes.
    pub(super) fn new<M: OwnModel>(model: M) -> Result<Self, TrialError> {
        let mut most = MostAxes(0);
        model.visit(&mut most);
        if most.0 > MOST_AXES {
            return Err(TrialError::Bad(format!(
                "a parameter of the model has {} axes; at most {MOST_AXES} are supported",
                most.0
            )));
        }
        Ok(Self(Box::new(model)))
    }

    /// Outputs [targets, outputs].
    pub(super) fn forward(&self, input: Input, ops: Ops) -> Tensor<2> {
        self.0.forward_erased(input, ops)
    }

    /// See [`OwnModel::running_stats`].
    pub(super) fn running_stats(&self) -> Vec<(String, RunningStats)> {
        self.0.stats_erased()
    }

    /// FLOPs per sample as the model reports them; see [`OwnModel::flops_per_sample`].
    pub(crate) fn flops_per_sample(&self) -> Option<u64> {
        self.0.flops_erased()
    }
}

/// A [`OwnModel`] whose type is forgotten.
trait Erased: fmt::Debug + Send {
    fn cloned(&self) -> Box<dyn Erased>;
    fn forward_erased(&self, input: Input, ops: Ops) -> Tensor<2>;
    fn flops_erased(&self) -> Option<u64>;
    fn stats_erased(&self) -> Vec<(String, RunningStats)>;
    fn add_devices(&self, devices: Devices) -> Devices;
    fn forked(self: Box<Self>, device: &Device) -> Box<dyn Erased>;
    fn moved(self: Box<Self>, device: &Device) -> Box<dyn Erased>;
    fn training(self: Box<Self>) -> Box<dyn Erased>;
    fn validating(&self) -> Box<dyn Erased>;
    fn materialized(self: Box<Self>) -> Box<dyn Erased>;
    fn visited(&self, visitor: &mut dyn ErasedVisitor);
    fn mapped(self: Box<Self>, mapper: &mut dyn ErasedMapper) -> Box<dyn Erased>;
}

impl<M: OwnModel> Erased for M {
    fn cloned(&self) -> Box<dyn Erased> {
        Box::new(self.clone())
    }

    fn forward_erased(&self, input: Input, ops: Ops) -> Tensor<2> {
        OwnModel::forward(self, input, ops)
    }

    fn flops_erased(&self) -> Option<u64> {
        self.flops_per_sample()
    }

    fn stats_erased(&self) -> Vec<(String, RunningStats)> {
        self.running_stats()
    }

    fn add_devices(&self, devices: Devices) -> Devices {
        self.collect_devices(devices)
    }

    fn forked(self: Box<Self>, device: &Device) -> Box<dyn Erased> {
        Box::new((*self).fork(device))
    }

    fn moved(self: Box<Self>, device: &Device) -> Box<dyn Erased> {
        Box::new((*self).to_device(device))
    }

    fn training(self: Box<Self>) -> Box<dyn Erased> {
        Box::new((*self).train())
    }

    fn validating(&self) -> Box<dyn Erased> {
        Box::new(self.valid())
    }

    fn materialized(self: Box<Self>) -> Box<dyn Erased> {
        Box::new((*self).materialize())
    }

    fn visited(&self, visitor: &mut dyn ErasedVisitor) {
        self.visit(&mut Across(visitor));
    }

    fn mapped(self: Box<Self>, mapper: &mut dyn ErasedMapper) -> Box<dyn Erased> {
        Box::new((*self).map(&mut Across(mapper)))
    }
}

impl Module for BoxedModel {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.add_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self(self.0.forked(device))
    }

    fn to_device(self, device: &Device) -> Self {
        Self(self.0.moved(device))
    }

    fn train(self) -> Self {
        Self(self.0.training())
    }

    fn valid(&self) -> Self {
        Self(self.0.validating())
    }

    fn materialize(self) -> Self {
        Self(self.0.materialized())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visited(&mut InnerWalk(visitor));
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        Self(self.0.mapped(&mut InnerWalk(mapper)))
    }
}

impl Clone for BoxedModel {
    fn clone(&self) -> Self {
        Self(self.0.cloned())
    }
}

impl fmt::Debug for BoxedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for BoxedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl ModuleDisplayDefault for BoxedModel {
    fn content(&self, content: Content) -> Option<Content> {
        content
            .set_top_level_type("OwnModel")
            .add_formatted(&format!("{self:?}"))
            .optional()
    }

    fn num_params(&self) -> usize {
        Module::num_params(self)
    }
}

impl ModuleDisplay for BoxedModel {}

/// The kind of tensor that a parameter is.
#[derive(Clone, Copy, Debug)]
enum TensorKind {
    Float,
    Int,
    Bool,
}

/// A visitor to which a parameter of any number of axes is shown as what it is.
trait ErasedVisitor {
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
    fn visit(&mut self, kind: TensorKind, param: &dyn Any);
    fn visit_flag(&mut self, flag: &Param<Flag>);
}

/// A mapper to which such a parameter is given, and which gives it back.
trait ErasedMapper {
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
    fn map(&mut self, kind: TensorKind, param: Box<dyn Any>) -> Box<dyn Any>;
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag>;
}

/// burn's side: a walk of kiln's that is let in where the model's type is unknown.
struct InnerWalk<'a, W>(&'a mut W);

/// The model's side: the calls of burn's visitor or mapper, passed on.
struct Across<'a, W: ?Sized>(&'a mut W);

/// Tries each number of axes that a parameter may have.
macro_rules! of_axes {
    ($axes:ident => $attempt:expr) => {
        of_axes!(@each $axes => $attempt; 1 2 3 4 5 6 7 8)
    };
    (@each $axes:ident => $attempt:expr; $($number:literal)*) => {
        $({
            const $axes: usize = $number;
            $attempt
        })*
    };
}

impl<V: ModuleVisitor> ErasedVisitor for InnerWalk<'_, V> {
    fn enter(&mut self, name: &str, container: &str) {
        self.0.enter_module(name, container);
    }

    fn exit(&mut self, name: &str, container: &str) {
        self.0.exit_module(name, container);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.visit_flag(flag);
    }

    fn visit(&mut self, kind: TensorKind, param: &dyn Any) {
        of_axes!(D => match kind {
            TensorKind::Float => {
                if let Some(param) = param.downcast_ref::<Param<Tensor<D>>>() {
                    return self.0.visit_float(param);
                }
            }
            TensorKind::Int => {
                if let Some(param) = param.downcast_ref::<Param<Tensor<D, Int>>>() {
                    return self.0.visit_int(param);
                }
            }
            TensorKind::Bool => {
                if let Some(param) = param.downcast_ref::<Param<Tensor<D, Bool>>>() {
                    return self.0.visit_bool(param);
                }
            }
        });
        unreachable!("{AXES_WERE_COUNTED}")
    }
}

impl<M: ModuleMapper> ErasedMapper for InnerWalk<'_, M> {
    fn enter(&mut self, name: &str, container: &str) {
        self.0.enter_module(name, container);
    }

    fn exit(&mut self, name: &str, container: &str) {
        self.0.exit_module(name, container);
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.map_flag(flag)
    }

    fn map(&mut self, kind: TensorKind, mut param: Box<dyn Any>) -> Box<dyn Any> {
        of_axes!(D => {
            let mapped = match kind {
                TensorKind::Float => param
                    .downcast::<Param<Tensor<D>>>()
                    .map(|param| Box::new(self.0.map_float(*param)) as Box<dyn Any>),
                TensorKind::Int => param
                    .downcast::<Param<Tensor<D, Int>>>()
                    .map(|param| Box::new(self.0.map_int(*param)) as Box<dyn Any>),
                TensorKind::Bool => param
                    .downcast::<Param<Tensor<D, Bool>>>()
                    .map(|param| Box::new(self.0.map_bool(*param)) as Box<dyn Any>),
            };
            match mapped {
                Ok(mapped) => return mapped,
                Err(other) => param = other,
            }
        });
        drop(param);
        unreachable!("{AXES_WERE_COUNTED}")
    }
}

impl ModuleVisitor for Across<'_, dyn ErasedVisitor + '_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.visit(TensorKind::Float, param);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.visit(TensorKind::Int, param);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.visit(TensorKind::Bool, param);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.0.visit_flag(flag);
    }
}

impl Across<'_, dyn ErasedMapper + '_> {
    fn hand<P: 'static>(&mut self, kind: TensorKind, param: P) -> P {
        *self
            .0
            .map(kind, Box::new(param))
            .downcast::<P>()
            .expect(IS_OF_ITS_TYPE)
    }
}

impl ModuleMapper for Across<'_, dyn ErasedMapper + '_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.0.enter(name, container_type);
    }

    fn exit_module(&mut self, name: &str, container_type: &str) {
        self.0.exit(name, container_type);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.hand(TensorKind::Float, param)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.hand(TensorKind::Int, param)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        self.hand(TensorKind::Bool, param)
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.0.map_flag(flag)
    }
}

/// The largest number of axes of a model's parameters.
struct MostAxes(usize);

impl ModuleVisitor for MostAxes {
    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {
        self.0 = self.0.max(D);
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
        self.0 = self.0.max(D);
    }

    fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
        self.0 = self.0.max(D);
    }
}
