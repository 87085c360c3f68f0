//! `resnet`: residual convolutional network; its keys, its layers, parameter count and FLOPs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Content, InputShape, KeyFault, data::ImageShape, model::ModelKind};

/// Residual network for images, version 1.5: the 3 × 3 convolution has the stride. Source: He et
/// al. 2016 (arXiv 1512.03385).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resnet {
    /// Layers with weights: 18, 34, 50, 101 or 152.
    #[serde(default = "depth")]
    #[schemars(range(min = 18, max = 152))]
    pub depth: u64,
    /// Channels after the stem; each of the four stages has twice as many as the previous one.
    #[serde(default = "width")]
    #[schemars(range(min = 1, max = 1024))]
    pub width: u64,
    /// The layers before the first stage.
    #[serde(default)]
    pub stem: Stem,
    /// Whether the last norm of each block starts at 0, so that blocks start as the identity.
    #[serde(default)]
    pub zero_init_gamma: bool,
}

/// The layers before the first stage of a `resnet`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// A 7 × 7 convolution and a pooling layer, each of stride 2: for images of 224 pixels.
    #[default]
    Imagenet,
    /// A 3 × 3 convolution of stride 1: for images of about 32 pixels.
    Small,
}

fn depth() -> u64 {
    50
}
fn width() -> u64 {
    64
}

/// One convolution, without bias, and its output image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Convolution {
    inputs: u64,
    outputs: u64,
    kernel: u64,
    /// Pixels of its output.
    pixels: u128,
}

impl Convolution {
    fn weights(self) -> u64 {
        self.inputs * self.outputs * self.kernel * self.kernel
    }

    fn multiply_adds(self) -> u128 {
        u128::from(self.weights()) * self.pixels
    }
}

impl Resnet {
    /// Blocks of each of the four stages; `None` for an unknown depth.
    pub fn blocks(&self) -> Option<[u64; 4]> {
        match self.depth {
            18 => Some([2, 2, 2, 2]),
            34 | 50 => Some([3, 4, 6, 3]),
            101 => Some([3, 4, 23, 3]),
            152 => Some([3, 8, 36, 3]),
            _ => None,
        }
    }

    /// Whether blocks are 1 × 1, 3 × 3, 1 × 1 with four times the channels at the end; otherwise
    /// two 3 × 3.
    pub fn has_bottlenecks(&self) -> bool {
        self.depth >= 50
    }

    /// Channels at the end of a stage; stages count from 0.
    pub fn stage_outputs(&self, stage: u32) -> u64 {
        (self.width << stage) * if self.has_bottlenecks() { 4 } else { 1 }
    }

    fn parameters_with(&self, input: ImageShape) -> Option<u64> {
        let layers = self.convolutions(input)?;
        // Each convolution is followed by a norm with a scale and a shift per channel.
        let body: u64 = layers
            .iter()
            .map(|layer| layer.weights() + 2 * layer.outputs)
            .sum();
        Some(body + (self.stage_outputs(3) + 1) * input.classes)
    }

    /// Six per multiply-add of the convolutions and the head: two in the forward pass, twice that
    /// in the backward pass. Source: `docs/measurement.md` 8. `None` if the result exceeds a `u64`.
    fn flops_with(&self, input: ImageShape) -> Option<u64> {
        let body: u128 = self
            .convolutions(input)?
            .into_iter()
            .map(Convolution::multiply_adds)
            .sum();
        let head = u128::from(self.stage_outputs(3)) * u128::from(input.classes);
        u64::try_from(6 * (body + head)).ok()
    }

    /// Returns all convolutions for images of this shape.
    fn convolutions(&self, input: ImageShape) -> Option<Vec<Convolution>> {
        let mut size = [input.height, input.width];
        let (kernel, strides) = match self.stem {
            Stem::Imagenet => (7, 2),
            Stem::Small => (3, 0),
        };
        (0..strides).for_each(|_| size = halved(size));
        // The output of the stem's convolution is twice as high and wide as that of the pooling.
        let stem_pixels = if strides == 2 {
            pixels(halved([input.height, input.width]))
        } else {
            pixels(size)
        };
        let mut layers = vec![Convolution {
            inputs: input.channels,
            outputs: self.width,
            kernel,
            pixels: stem_pixels,
        }];
        let mut inputs = self.width;
        for (stage, blocks) in (0..).zip(self.blocks()?) {
            for block in 0..blocks {
                let before = size;
                let has_stride = stage > 0 && block == 0;
                if has_stride {
                    size = halved(size);
                }
                self.add_block(
                    stage,
                    [inputs, self.stage_outputs(stage)],
                    [pixels(before), pixels(size)],
                    &mut layers,
                );
                inputs = self.stage_outputs(stage);
            }
        }
        Some(layers)
    }

    fn add_block(
        &self,
        stage: u32,
        [inputs, outputs]: [u64; 2],
        [before, after]: [u128; 2],
        layers: &mut Vec<Convolution>,
    ) {
        let inner = self.width << stage;
        if self.has_bottlenecks() {
            layers.push(Convolution {
                inputs,
                outputs: inner,
                kernel: 1,
                pixels: before,
            });
            layers.push(Convolution {
                inputs: inner,
                outputs: inner,
                kernel: 3,
                pixels: after,
            });
            layers.push(Convolution {
                inputs: inner,
                outputs,
                kernel: 1,
                pixels: after,
            });
        } else {
            layers.push(Convolution {
                inputs,
                outputs,
                kernel: 3,
                pixels: after,
            });
            layers.push(Convolution {
                inputs: outputs,
                outputs,
                kernel: 3,
                pixels: after,
            });
        }
        if inputs != outputs || before != after {
            layers.push(Convolution {
                inputs,
                outputs,
                kernel: 1,
                pixels: after,
            });
        }
    }
}

/// Halves height and width, as a stride of 2 does.
fn halved(size: [u64; 2]) -> [u64; 2] {
    size.map(|side| side.div_ceil(2))
}

fn pixels([height, width]: [u64; 2]) -> u128 {
    u128::from(height) * u128::from(width)
}

impl ModelKind for Resnet {
    fn kind(&self) -> &'static str {
        "resnet"
    }

    fn reads(&self) -> Content {
        Content::Images
    }

    fn parameters(&self, input: Option<InputShape>) -> Option<u64> {
        self.parameters_with(input?.images()?)
    }

    fn flops_per_sample(&self, input: Option<InputShape>) -> Option<u64> {
        self.flops_with(input?.images()?)
    }

    fn flops_formula(&self) -> &'static str {
        "6MAC"
    }

    fn contradictions(&self) -> Vec<KeyFault> {
        if self.blocks().is_none() {
            return vec![KeyFault::new(
                "depth",
                format!(
                    "`depth` is {}; it must be 18, 34, 50, 101 or 152",
                    self.depth
                ),
            )];
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGENET: ImageShape = ImageShape {
        channels: 3,
        height: 224,
        width: 224,
        classes: 1000,
    };

    fn resnet(depth: u64) -> Resnet {
        Resnet {
            depth,
            width: 64,
            stem: Stem::Imagenet,
            zero_init_gamma: false,
        }
    }

    #[test]
    fn each_depth_has_its_published_parameters() {
        let published = [
            (18, 11_689_512),
            (34, 21_797_672),
            (50, 25_557_032),
            (101, 44_549_160),
            (152, 60_192_808),
        ];
        for (depth, parameters) in published {
            assert_eq!(
                resnet(depth).parameters_with(IMAGENET),
                Some(parameters),
                "{depth}"
            );
        }
    }

    #[test]
    fn multiply_adds_are_those_of_torchvisions_table() {
        // Giga multiply-adds of one forward pass, two decimals, as torchvision lists them
        // ("GFLOPS").
        for (depth, listed) in [
            (18, 1.81),
            (34, 3.66),
            (50, 4.09),
            (101, 7.80),
            (152, 11.51),
        ] {
            let found = resnet(depth).flops_with(IMAGENET).unwrap() as f64 / 6e9;
            assert!((found - listed).abs() < 0.01, "{depth}: {found}");
        }
    }

    #[test]
    fn a_small_stem_keeps_the_image_whole() {
        let small = Resnet {
            stem: Stem::Small,
            ..resnet(18)
        };
        let input = ImageShape {
            height: 32,
            width: 32,
            classes: 10,
            ..IMAGENET
        };
        // kuangliu/pytorch-cifar's ResNet18.
        assert_eq!(small.parameters_with(input), Some(11_173_962));
        let (stem, first_stage, head) = (27 * 64 * 1024, 4 * 64 * 64 * 9 * 1024, 512 * 10);
        // Each later stage has half the side length and twice the channels, so the cost is equal:
        // two 3 × 3 of one block, two of the other, the first with half the inputs, and a 1 × 1.
        let other_stage = (64 * 128 * 9 + 3 * 128 * 128 * 9 + 64 * 128) * 256;
        assert_eq!(
            small.flops_with(input),
            Some(6 * (stem + first_stage + 3 * other_stage + head))
        );
    }

    #[test]
    fn the_largest_shape_that_the_keys_allow_has_a_figure() {
        let widest = Resnet {
            width: 1024,
            stem: Stem::Small,
            ..resnet(152)
        };
        let input = ImageShape {
            channels: 3,
            height: 4096,
            width: 4096,
            classes: 100_000,
        };
        assert!(widest.flops_with(input).unwrap() > 1_000_000_000_000_000);
    }

    #[test]
    fn only_published_depths_are_known() {
        let contradictions = resnet(20).contradictions();
        assert_eq!(
            contradictions,
            vec![KeyFault::new(
                "depth",
                "`depth` is 20; it must be 18, 34, 50, 101 or 152"
            )]
        );
        assert!(resnet(101).contradictions().is_empty());
    }
}
