//! The position biases of [`Seq2seq`](super::Seq2seq): learned, by how far a token is from the one
//! that looks, in buckets as in T5.

use std::sync::{Arc, Mutex, PoisonError};

use burn::{
    module::{Module, Param},
    tensor::{Device, Int, Tensor},
};
use kiln_core::kinds;

use crate::{
    engine::{Ops, recorded_work},
    model::Init,
};

/// The learned bias of a stack, by how far a token is from the one that looks.
#[derive(Module, Debug)]
pub(super) struct Positions {
    table: Param<Tensor<2>>, // [buckets, heads]
    max_distance: usize,
    /// Whether what comes after is seen too.
    both_ways: bool,
    #[module(skip)]
    kept: KeptPlaces,
}

/// Cache of the last position biases on the device, so that repeated shapes need no copy from the
/// host.
#[derive(Clone, Debug, Default)]
struct KeptPlaces(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    /// The bucket of each distance, from −`reach` on to `reach`, by `reach`. None is ever dropped:
    /// a recorded step reads it at each replay.
    of_distance: Vec<(usize, Tensor<1, Int>)>,
    /// Buckets [queries, keys] by (first, queries, keys), most recently used last. Recorded steps
    /// neither read nor add one.
    of_shape: Vec<([usize; 3], Tensor<2, Int>)>,
}

/// Shapes that are kept. Batches of pairs are padded to a few lengths.
const MOST_SHAPES: usize = 16;
/// The first reach.
const LEAST_REACH: usize = 256;

impl Positions {
    pub(super) fn new(shape: &kinds::Seq2seq, name: &str, both_ways: bool, init: &Init) -> Self {
        let (buckets, heads) = (shape.relative_buckets as usize, shape.num_heads as usize);
        Self {
            table: init.normal(name, [buckets, heads], 1.0 / (shape.d_model as f64).sqrt()),
            max_distance: shape.relative_max_distance as usize,
            both_ways,
            kept: KeptPlaces::default(),
        }
    }

    /// The bias [heads, queries, keys] where the queries stand at places `first`, `first` + 1, …
    /// and the keys at 0, 1, ….
    pub(super) fn bias(&self, first: usize, queries: usize, keys: usize, ops: Ops) -> Tensor<3> {
        let table = self.table.val();
        let device = if table.is_autodiff() {
            table.device().inner()
        } else {
            table.device()
        };
        let found = self.buckets([first, queries, keys], &device);
        ops.embedding(table, found).permute([2, 0, 1])
    }

    /// The bucket of each pair of places [queries, keys]; from the host to the device only where
    /// distances are farther than ever before.
    fn buckets(&self, shape: [usize; 3], device: &Device) -> Tensor<2, Int> {
        let mut kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.of_shape.iter().position(|(known, _)| *known == shape);
        if let Some(at) = known.filter(|_| !recorded_work::is_on()) {
            let found = kept.of_shape.remove(at);
            kept.of_shape.push(found.clone());
            return found.1;
        }
        let [first, queries, keys] = shape;
        let (reach, of_distance) = self.of_distance(&mut kept, (first + queries).max(keys), device);
        let places = |count: usize| Tensor::<1, Int>::arange(0..count as i64, device);
        let at = places(keys).unsqueeze_dim::<2>(0) - places(queries).unsqueeze_dim::<2>(1)
            + (reach as i64 - first as i64); // [queries, keys]
        let found = of_distance
            .select(0, at.reshape([queries * keys]))
            .reshape([queries, keys]);
        // A search needs each length once.
        if queries > 1 && !recorded_work::is_on() {
            kept.of_shape.push((shape, found.clone()));
            let too_many = kept.of_shape.len().saturating_sub(MOST_SHAPES);
            kept.of_shape.drain(..too_many);
        }
        found
    }

    /// The bucket of each distance from −reach to reach, and the reach, which is at least `needed`.
    fn of_distance(
        &self,
        kept: &mut Places,
        needed: usize,
        device: &Device,
    ) -> (usize, Tensor<1, Int>) {
        let known = kept.of_distance.iter().find(|(reach, _)| *reach >= needed);
        if let Some(known) = known {
            return known.clone();
        }
        let reach = needed.next_power_of_two().max(LEAST_REACH);
        let [buckets, _] = self.table.dims();
        let distances = -(reach as i64)..=reach as i64;
        let of_distance: Vec<i64> = distances
            .map(|distance| bucket(distance, buckets, self.max_distance, self.both_ways))
            .collect();
        let of_distance = Tensor::<1, Int>::from_data(of_distance.as_slice(), device);
        kept.of_distance.push((reach, of_distance.clone()));
        (reach, of_distance)
    }
}

/// The bucket of a key `distance` places after the query: one each for the nearest, then wider by a
/// constant factor up to `max_distance`, from where on the last one serves. Looking `both_ways`,
/// half of them are for keys ahead; else those are in bucket 0.
fn bucket(distance: i64, buckets: usize, max_distance: usize, both_ways: bool) -> i64 {
    let (count, first) = match both_ways {
        true => (
            buckets as i64 / 2,
            if distance > 0 { buckets as i64 / 2 } else { 0 },
        ),
        false => (buckets as i64, 0),
    };
    let far = if both_ways {
        distance.abs()
    } else {
        (-distance).max(0)
    };
    let exact = count / 2;
    if far < exact {
        return first + far;
    }
    // In f32, as the models that are in use were trained.
    let share = (far as f32 / exact as f32).ln() / (max_distance as f64 / exact as f64).ln() as f32;
    first + (exact + (share * (count - exact) as f32) as i64).min(count - 1)
}

#[cfg(test)]
mod tests;
