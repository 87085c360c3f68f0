//! What was asked: the YAML layers of an experiment, read, checked whole and merged into one [`Experiment`].

mod experiment;

pub use experiment::{
    Axis, CoolDown, CpuThreads, DeviceId, DeviceName, Devices, Engine, Evaluate, EvaluateEvery, EvaluateMoment, Experiment, Identity,
    LearningRateSchedule, Measure, OnOom, Optimizer, Order, Precision, RecordOptions, Run, Sweep, Target, Train, WeightDecayOn,
};
