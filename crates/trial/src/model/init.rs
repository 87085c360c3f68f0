//! Initial weights: drawn on the host from the seed and the parameter's name, so that they are the
//! same on every engine and device, whatever the order in which a model is built.

use std::{
    f64::consts::TAU,
    sync::{Mutex, PoisonError},
    thread::{self, Builder},
};

use burn::{
    module::Param,
    tensor::{Device, Tensor, TensorData},
};
use kiln_core::kinds::random::SplitMix64;

/// Values per independent stream; a stream is filled by one thread.
const BLOCK: usize = 1 << 16;

/// Makes the parameters of one model.
#[derive(Clone, Debug)]
pub struct Init {
    pub seed: u64,
    /// Device of the parameters; gradients are computed for them, so it is a device with autodiff.
    pub device: Device,
}

impl Init {
    /// Normal values of mean 0. Random: from the seed and `name`.
    pub fn normal<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
        deviation: f64,
    ) -> Param<Tensor<D>> {
        let values = filled(
            self.stream(name),
            shape.iter().product(),
            |random, values| {
                for pair in values.chunks_mut(2) {
                    let (first, second) = random.normal_pair();
                    pair[0] = (first * deviation) as f32;
                    if let Some(place) = pair.get_mut(1) {
                        *place = (second * deviation) as f32;
                    }
                }
            },
        );
        self.parameter(values, shape)
    }

    /// Uniform values between −bound and bound. Random: from the seed and `name`.
    pub fn uniform<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
        bound: f64,
    ) -> Param<Tensor<D>> {
        let values = filled(
            self.stream(name),
            shape.iter().product(),
            |random, values| {
                values
                    .iter_mut()
                    .for_each(|value| *value = ((random.0.fraction() * 2.0 - 1.0) * bound) as f32);
            },
        );
        self.parameter(values, shape)
    }

    /// A parameter of zeros.
    pub fn zeros<const D: usize>(&self, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::zeros(shape, &self.device))
    }

    /// A parameter of ones.
    pub fn ones<const D: usize>(&self, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::ones(shape, &self.device))
    }

    /// The device of tensors that are not parameters.
    pub fn plain_device(&self) -> Device {
        self.device.clone().inner()
    }

    fn parameter<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::from_data(
            TensorData::new(values, shape),
            &self.device,
        ))
    }

    /// FNV-1a over the name, mixed with the seed.
    fn stream(&self, name: &str) -> u64 {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        SplitMix64::new(self.seed).next_u64() ^ hash
    }
}

/// `count` values; each block of them has its own stream of random numbers, so that the number of
/// threads does not change the values.
fn filled(stream: u64, count: usize, fill: impl Fn(&mut Random, &mut [f32]) + Sync) -> Vec<f32> {
    let mut values = vec![0.0; count];
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let blocks = values.chunks_mut(BLOCK).zip(0_u64..);
    in_threads(
        threads.min(count.div_ceil(BLOCK)),
        blocks,
        |(block, number)| {
            let own = stream.wrapping_add(number.wrapping_mul(0xd6e8_feb8_6659_fd93));
            fill(&mut Random(SplitMix64::new(own)), block);
        },
    );
    values
}

/// Does the work on each item, in this thread and others. Where another cannot be started, those that
/// are there do its part.
fn in_threads<I: Iterator + Send>(threads: usize, items: I, work: impl Fn(I::Item) + Sync) {
    let left = Mutex::new(items);
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let all = || {
        while let Some(item) = next() {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let _ = Builder::new().spawn_scoped(scope, all);
        }
        all();
    });
}

/// Normal values of a stream.
struct Random(SplitMix64);

impl Random {
    /// Two standard normal values, by Box and Muller's transform.
    fn normal_pair(&mut self) -> (f64, f64) {
        let radius = (-2.0 * (1.0 - self.0.fraction()).ln()).sqrt();
        let (sine, cosine) = (TAU * self.0.fraction()).sin_cos();
        (radius * cosine, radius * sine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, name: &str) -> Vec<f32> {
        let init = Init {
            seed,
            device: Device::flex(),
        };
        init.normal(name, [300, 1000], 0.02)
            .val()
            .into_data()
            .try_to_vec()
            .unwrap()
    }

    #[test]
    fn values_have_the_asked_mean_and_deviation() {
        let values = drawn(1, "table");
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
        let variance = values
            .iter()
            .map(|value| (f64::from(*value) - mean).powi(2))
            .sum::<f64>()
            / values.len() as f64;
        // Three standard errors of 300,000 draws.
        assert!(mean.abs() < 3.0 * 0.02 / 300_000_f64.sqrt(), "{mean}");
        assert!(
            (variance.sqrt() / 0.02 - 1.0).abs() < 3.0 / 600_000_f64.sqrt(),
            "{variance}"
        );
    }

    #[test]
    fn values_depend_on_seed_and_name_alone() {
        assert_eq!(drawn(1, "table"), drawn(1, "table"));
        assert_ne!(drawn(1, "table"), drawn(2, "table"));
        assert_ne!(drawn(1, "table"), drawn(1, "head"));
    }
}
