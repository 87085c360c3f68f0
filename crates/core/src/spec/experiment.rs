//! The types of an experiment file (format 1). A key of the file, its field here and its column in
//! the tables have the same name.
//!
//! Doc comments are the descriptions in `kiln schema`; a default written here is a format-1 default
//! and is frozen.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    checkpoint::Checkpoint,
    generate::Generate,
    initial_weights::InitialWeights,
    model_section::AskedModel,
    objective::Objective,
    optimizer::{LearningRateSchedule, Optimizer},
    random_points::RandomPoints,
    run_options::Run,
    sample::Sample,
    search::Search,
};
use crate::{
    kinds::{Data, Model, data::Auto},
    units::TimeSpan,
};

/// Stands for the newest run of an experiment, and of all; no experiment may be called so.
pub const LATEST: &str = "latest";

/// One experiment, resolved: every layer merged, every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Version of this file format; 1.
    #[schemars(range(min = 1, max = 1))]
    pub kiln: u32,
    /// Name of the folder under `results/`: letters, digits, `.`, `_`, `-`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"))]
    pub name: String,
    /// Purpose of the experiment, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    #[schemars(with = "Model")]
    pub model: AskedModel,
    #[serde(default)]
    pub data: Data,
    #[serde(default)]
    pub train: Train,
    #[serde(default)]
    pub measure: Measure,
    #[serde(default)]
    pub sweep: Sweep,
    #[serde(default)]
    pub run: Run,
    #[serde(default)]
    pub record: RecordOptions,
}

/// How the model is trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Examples in one forward pass on one device.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub batch_size: u64,
    /// Forward passes per optimizer step.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub grad_accumulation: u64,
    /// Number format of the computation.
    pub precision: Precision,
    /// Passes over the training data; give either this or `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub epochs: Option<u64>,
    /// Optimizer updates; give either this or `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub steps: Option<u64>,
    pub optimizer: Optimizer,
    pub learning_rate_schedule: LearningRateSchedule,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_weights: Option<InitialWeights>,
    /// Largest global norm of the gradient over all parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub clip_norm: Option<f64>,
    /// Fraction of each target that is spread over all classes, or all tokens, in the training
    /// loss; the validation loss does not use it.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub label_smoothing: f64,
    /// Whether cuDNN benchmarks its convolution algorithms and keeps the fastest for each shape;
    /// the first steps of a shape then take longer, and results may differ in their last digits
    /// from run to run. No effect on the CPU.
    pub cudnn_benchmark: bool,
    /// Whether a GPU's steps are recorded once as CUDA graphs and replayed, which saves the host
    /// most of its work: `on`, `off`, or `auto`, which means `off` until graphs are shown to be
    /// correct and faster on a GPU. No effect on the CPU.
    pub cuda_graph: CudaGraph,
    /// Seed of weights, data order and dropout; repeats use seed, seed + 1, ….
    #[schemars(range(min = 0, max = 4_294_967_295_u64))]
    pub seed: u64,
    pub evaluate: Evaluate,
    /// A quality target; the time until it is reached is recorded, and training continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Condition that ends training before its last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Which training state is saved during training, so that an interrupted trial resumes from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    pub memory: Memory,
    /// Threads of libtorch on the CPU; `auto` is the cgroup's quota, else the number of cores.
    pub cpu_threads: CpuThreads,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            batch_size: 8,
            grad_accumulation: 1,
            precision: Precision::F32,
            epochs: None,
            steps: None,
            optimizer: Optimizer::default(),
            learning_rate_schedule: LearningRateSchedule::default(),
            initial_weights: None,
            clip_norm: None,
            label_smoothing: 0.0,
            cudnn_benchmark: false,
            cuda_graph: CudaGraph::Auto,
            seed: 1,
            evaluate: Evaluate::default(),
            target: None,
            early_stop: None,
            sample: None,
            checkpoint: None,
            memory: Memory::default(),
            cpu_threads: CpuThreads::Auto(Auto::Auto),
        }
    }
}

/// Whether steps are recorded as CUDA graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CudaGraph {
    /// Same as `off`, until graphs are shown to be correct and faster on a GPU.
    #[default]
    Auto,
    On,
    Off,
}

impl Train {
    /// The given keys that do nothing without a validation loss.
    pub fn needing_validation(&self) -> impl Iterator<Item = &'static str> {
        let follows_loss = matches!(
            self.learning_rate_schedule,
            LearningRateSchedule::Plateau { .. }
        );
        let keys = [
            ("train.target", self.target.is_some()),
            ("train.early_stop", self.early_stop.is_some()),
            ("train.evaluate.generate", self.evaluate.generate.is_some()),
            ("train.learning_rate_schedule.kind", follows_loss),
        ];
        keys.into_iter()
            .filter_map(|(key, is_given)| is_given.then_some(key))
    }
}

impl CudaGraph {
    /// The value for the child: `on` or `off`.
    pub fn resolved(self) -> Self {
        if self == Self::Auto { Self::Off } else { self }
    }
}

/// The number format of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Precision {
    #[serde(rename = "f32")]
    F32,
    /// f32, with the factors of matrix products and convolutions rounded to TF32, on GPUs of
    /// compute capability 8.0 or newer.
    #[serde(rename = "tf32")]
    Tf32,
    /// Parameters, activations, gradients and optimizer in bf16; the loss in f32.
    #[serde(rename = "bf16")]
    Bf16,
    /// bf16 matrix products; parameters, gradients, optimizer and loss in f32.
    #[serde(rename = "amp-bf16")]
    AmpBf16,
    /// f16 matrix products; parameters, gradients, optimizer and loss in f32, with gradient
    /// scaling.
    #[serde(rename = "amp-f16")]
    AmpF16,
}

impl Precision {
    /// The name in `train.precision` and in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::AmpBf16 => "amp-bf16",
            Self::AmpF16 => "amp-f16",
        }
    }
}

/// When and how the model is evaluated on the validation data. An evaluation at the end always
/// takes place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluate {
    /// `end`, `epoch`, or a number of steps.
    pub every: EvaluateEvery,
    /// Evaluation batch as a multiple of `batch_size`; contiguous text is evaluated in batches of 20 rows.
    #[schemars(range(min = 1, max = 1024))]
    pub batch_multiple: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate: Option<Generate>,
}

impl Default for Evaluate {
    fn default() -> Self {
        Self {
            every: EvaluateEvery::Moment(EvaluateMoment::End),
            batch_multiple: 1,
            generate: None,
        }
    }
}

/// Monitoring of the memory that training uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Whether memory is read at each read of the loss, so that growth over the measured window is
    /// detected.
    pub watch: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { watch: true }
    }
}

/// How often the model is evaluated on the validation data: every given number of optimizer steps,
/// or at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EvaluateEvery {
    Steps(u64),
    Moment(EvaluateMoment),
}

/// A moment of the training: its end, or the end of each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvaluateMoment {
    End,
    Epoch,
}

impl JsonSchema for EvaluateEvery {
    fn schema_name() -> Cow<'static, str> {
        "EvaluateEvery".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 1_000_000_000},
            {"enum": ["end", "epoch"]},
        ]})
    }
}

/// A quality target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Validation loss, in nats per token, at or below which the target is reached.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub valid_loss: f64,
}

/// Condition that ends training before its last step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlyStop {
    /// Evaluations in a row without a new lowest validation loss, after which training ends.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub patience: u64,
}

/// A number of libtorch threads, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CpuThreads {
    Count(u64),
    Auto(Auto),
}

impl CpuThreads {
    /// Returns the number of threads on a machine (or in a container) with this many cores.
    pub fn resolve(self, cores: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Auto(_) => cores.max(1),
        }
    }
}

impl JsonSchema for CpuThreads {
    fn schema_name() -> Cow<'static, str> {
        "CpuThreads".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 1024},
            {"const": "auto"},
        ]})
    }
}

/// How measurements are made. Changes no loss and no trial id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Measure {
    /// Steps excluded from timing; warm-up lasts until these and `warmup_seconds` have passed.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub warmup_steps: u64,
    /// Seconds excluded from timing.
    #[schemars(range(min = 0.0, max = 86_400.0))]
    pub warmup_seconds: f64,
    /// Time between hardware samples; at least 100ms.
    pub sample_interval: TimeSpan,
    /// Steps between two reads of the loss; each read waits for the device.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub log_every: u64,
    /// Measures how large the noise of the gradient is against the gradient: the batch up to which
    /// more samples per step still save steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_noise: Option<GradientNoise>,
}

/// Which steps' gradients are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GradientNoise {
    /// Steps from one measured step to the next.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub every: u64,
    /// Whether the noise of each layer group is measured too, into `layers.csv`. A group is the part of
    /// a parameter's name up to its first numbers, such as `blocks.3`, or its first word without any.
    #[serde(default)]
    pub layer_groups: bool,
}

impl Default for Measure {
    fn default() -> Self {
        Self {
            warmup_steps: 10,
            warmup_seconds: 2.0,
            sample_interval: TimeSpan::from_millis(500),
            log_every: 10,
            gradient_noise: None,
        }
    }
}

/// One varied key and its values, in file order.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Dotted key, such as `train.batch_size`.
    pub key: String,
    pub values: Vec<Value>,
}

/// The axes of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sweep {
    /// Every combination of these values; the last key varies fastest.
    pub grid: serde_json::Map<String, Value>,
    /// Keys that vary together, crossed with the grid.
    pub zip: serde_json::Map<String, Value>,
    /// Random points, crossed with the grid; a resolved experiment has them as `zip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<RandomPoints>,
    /// Keys whose value at each point is computed from other keys, such as
    /// `train.grad_accumulation: 64 / train.batch_size`. Numbers, keys, `+`, `-`, `*`, `/`, `( )`,
    /// `sqrt`, `min`, `max`, `floor`, `ceil` and `round`.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub derive: serde_json::Map<String, Value>,
    /// Points added individually.
    pub include: Vec<serde_json::Map<String, Value>>,
    /// Points removed: each entry removes all points that match every key it names. A quoted
    /// comparison (`">8"`) is a condition.
    pub exclude: Vec<serde_json::Map<String, Value>>,
    /// Seeds per point: seed, seed + 1, ….
    #[schemars(range(min = 1, max = 1000))]
    pub repeats: u64,
    /// Axes whose values are to be compared: points that differ only in these run one after another
    /// on one device, as one block per repeat. `kiln compare RUN --between AXIS` compares them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<String>,
    /// Order in which trials run. Verdicts compare points within the blocks of repeats that all but
    /// `listed` create; `listed` gives weaker verdicts. Default with `together`: `rotated`.
    pub order: Order,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            grid: serde_json::Map::new(),
            zip: serde_json::Map::new(),
            sample: None,
            derive: serde_json::Map::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            repeats: 1,
            together: Vec::new(),
            order: Order::Interleaved,
            search: None,
        }
    }
}

/// Order in which trials run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// All points with the first seed, then all with the second seed in reverse order, and so on
    /// alternately: drift affects every point alike.
    #[default]
    Interleaved,
    /// Round by round too, and which point of a block is first changes from block to block, so that
    /// each is first equally often.
    Rotated,
    /// All seeds of the first point, then of the second.
    Listed,
    /// Interleaved, each round shuffled by `train.seed`.
    Shuffled,
}

/// Which facts may be written to files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecordOptions {
    /// `masked` hides serial numbers, and process names and PIDs of other users.
    pub identity: Identity,
}

/// Which facts that identify the machine and its users are written to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    #[default]
    Masked,
    Full,
}
