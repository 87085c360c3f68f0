//! `resnet`: residual convolutional network, version 1.5. Stem, four stages of blocks, mean over
//! the image, one linear layer. Initial values as in torchvision.

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};
use kiln_core::kinds::{self, Stem, data::ImageShape};

use super::{
    Init, Input, Linear, RecurrentMemory,
    architecture::{Architecture, Facts, unread},
};
use crate::{
    engine::{After, ConvGeometry, ConvNormWeights, Ops, RunningStats},
    error::TrialError,
};

/// The residual network.
#[derive(Module, Debug)]
pub struct Resnet {
    stem: ConvNorm,
    pools: bool,
    stages: Vec<Vec<Block>>,
    head: Linear,
}

/// Two or three convolutions beside a way around them.
#[derive(Module, Debug)]
struct Block {
    convolutions: Vec<ConvNorm>,
    /// Brings the input to the shape of the output, where they differ.
    shortcut: Option<ConvNorm>,
}

/// A convolution without bias, and batch norm.
#[derive(Module, Debug)]
struct ConvNorm {
    weight: Param<Tensor<4>>, // [out, in, kernel, kernel]
    gain: Param<Tensor<1>>,   // [out]
    shift: Param<Tensor<1>>,  // [out]
    #[module(skip)]
    stats: RunningStats,
    stride: usize,
}

impl Resnet {
    /// Random: initial weights, from `init`. The shape's depth is one that the catalog knows.
    pub fn new(shape: &kinds::Resnet, input: ImageShape, init: &Init) -> Self {
        let width = shape.width as usize;
        let (kernel, stride) = if shape.stem == Stem::Imagenet {
            (7, 2)
        } else {
            (3, 1)
        };
        let stem = ConvNorm::new(
            "stem",
            [input.channels as usize, width],
            kernel,
            stride,
            init,
        );
        let mut inputs = width;
        let mut stages = Vec::new();
        for (stage, blocks) in (0..).zip(shape.blocks().unwrap_or_default()) {
            let outputs = shape.stage_outputs(stage) as usize;
            let mut made = Vec::new();
            for block in 0..blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let plan = BlockPlan {
                    inputs,
                    inner: width << stage,
                    outputs,
                    stride,
                    zero_gain: shape.zero_init_gamma,
                };
                made.push(plan.build(
                    &format!("stages.{stage}.{block}"),
                    shape.has_bottlenecks(),
                    init,
                ));
                inputs = outputs;
            }
            stages.push(made);
        }
        Self {
            stem,
            pools: shape.stem == Stem::Imagenet,
            stages,
            head: Linear::uniform(init, "head", [inputs, input.classes as usize]),
        }
    }

    /// images [batch, channels, height, width]; out: logits [batch, classes]. In training moves the
    /// norms' running statistics.
    pub fn forward(&self, images: Tensor<4>, ops: Ops) -> Tensor<2> {
        let mut x = self.stem.forward(images, After::Relu, ops); // [batch, width, height, width]
        if self.pools {
            x = ops.max_pool(x); // [batch, width, height / 2, width / 2]
        }
        for block in self.stages.iter().flatten() {
            x = block.forward(x, ops); // [batch, outputs, height, width], halved by each stage but the first
        }
        let [batch, channels, height, width] = x.dims();
        let mean = x
            .reshape([batch, channels, height * width])
            .mean_dim(2)
            .squeeze_dim::<2>(2); // [batch, channels]
        self.head.forward(mean, ops)
    }
}

impl Resnet {
    /// The norms' running statistics, by the path of their convolution.
    fn stats_of_norms(&self) -> Vec<(String, RunningStats)> {
        let mut found = vec![("stem".to_owned(), self.stem.stats.clone())];
        for (stage, blocks) in self.stages.iter().enumerate() {
            for (at, block) in blocks.iter().enumerate() {
                let name = |part: String| format!("stages.{stage}.{at}.{part}");
                let convolutions = block.convolutions.iter().enumerate();
                found.extend(convolutions.map(|(part, convolution)| {
                    (
                        name(format!("convolutions.{part}")),
                        convolution.stats.clone(),
                    )
                }));
                found.extend(
                    block
                        .shortcut
                        .iter()
                        .map(|shortcut| (name("shortcut".to_owned()), shortcut.stats.clone())),
                );
            }
        }
        found
    }
}

/// One block before it is built.
struct BlockPlan {
    inputs: usize,
    inner: usize,
    outputs: usize,
    stride: usize,
    zero_gain: bool,
}

impl BlockPlan {
    fn build(&self, name: &str, is_bottleneck: bool, init: &Init) -> Block {
        let Self {
            inputs,
            inner,
            outputs,
            stride,
            ..
        } = *self;
        let plan: &[([usize; 2], usize, usize)] = if is_bottleneck {
            &[
                ([inputs, inner], 1, 1),
                ([inner, inner], 3, stride),
                ([inner, outputs], 1, 1),
            ]
        } else {
            &[([inputs, outputs], 3, stride), ([outputs, outputs], 3, 1)]
        };
        let made = plan.iter().enumerate();
        let mut convolutions: Vec<ConvNorm> = made
            .map(|(at, (channels, kernel, stride))| {
                ConvNorm::new(&format!("{name}.{at}"), *channels, *kernel, *stride, init)
            })
            .collect();
        if let Some(last) = convolutions.last_mut().filter(|_| self.zero_gain) {
            last.gain = init.zeros([outputs]);
        }
        let differs = inputs != outputs || stride != 1;
        let shortcut = differs.then(|| {
            ConvNorm::new(
                &format!("{name}.shortcut"),
                [inputs, outputs],
                1,
                stride,
                init,
            )
        });
        Block {
            convolutions,
            shortcut,
        }
    }
}

impl Block {
    /// x [batch, inputs, height, width]; out [batch, outputs, …].
    fn forward(&self, x: Tensor<4>, ops: Ops) -> Tensor<4> {
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x.clone(), After::Nothing, ops),
            None => x.clone(),
        };
        let (last, first) = self
            .convolutions
            .split_last()
            .expect("a block has two or three convolutions");
        let x = first
            .iter()
            .fold(x, |x, convolution| convolution.forward(x, After::Relu, ops));
        last.forward(x, After::SumRelu(around), ops)
    }
}

impl ConvNorm {
    /// Normal weights of variance 2 / (out × kernel²), so that the gradient keeps its size (He et
    /// al. 2015); gain 1, shift 0.
    fn new(
        name: &str,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
        init: &Init,
    ) -> Self {
        let deviation = (2.0 / (outputs * kernel * kernel) as f64).sqrt();
        Self {
            weight: init.normal(name, [outputs, inputs, kernel, kernel], deviation),
            gain: init.ones([outputs]),
            shift: init.zeros([outputs]),
            stats: RunningStats::new(outputs, &init.plain_device()),
            stride,
        }
    }

    fn forward(&self, x: Tensor<4>, after: After, ops: Ops) -> Tensor<4> {
        let [_, _, kernel, _] = self.weight.dims();
        let geometry = ConvGeometry {
            stride: self.stride,
            padding: kernel / 2,
        };
        let weights = ConvNormWeights {
            weight: self.weight.val(),
            gain: self.gain.val(),
            shift: self.shift.val(),
            stats: self.stats.clone(),
        };
        ops.conv_norm(x, weights, geometry, after)
    }
}

impl Architecture for Resnet {
    type Settings = kinds::Resnet;

    fn build(settings: &kinds::Resnet, facts: Facts<'_>, init: &Init) -> Result<Self, TrialError> {
        Ok(Self::new(settings, facts.images()?, init))
    }

    fn outputs(&self, input: Input, _memory: &mut RecurrentMemory, ops: Ops) -> Tensor<2> {
        let Input::Images(images) = input else {
            unread()
        };
        self.forward(images, ops)
    }

    fn running_stats(&self) -> Vec<(String, RunningStats)> {
        self.stats_of_norms()
    }
}
