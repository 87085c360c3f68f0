//! Several replicas of one network on libtorch: their gradients are summed (`shim/replicas.cpp`),
//! on CUDA through libtorch's NCCL.

use std::ffi::c_int;

use tch::Tensor;

use super::shim::{Handle, checked, count, handle};
use crate::error::TrialError;

unsafe extern "C" {
    fn kiln_sum_over_replicas(
        gradients: *const Handle,
        replicas: c_int,
        count: c_int,
        together: i64,
    ) -> c_int;
}

/// Elements that travel at once: 64 MiB of f32, enough to use the links and little beside a model's
/// own memory.
const TOGETHER: i64 = 1 << 24;

/// Makes each replica's gradients the sum over all replicas, in place; on CUDA each replica has its
/// own device. Does not wait.
///
/// Errors: the lists differ in length; libtorch's words, also where it has no NCCL.
pub(crate) fn sum_over_replicas(lists: &[&[Tensor]]) -> Result<(), TrialError> {
    sum_in_parts(lists, TOGETHER)
}

fn sum_in_parts(lists: &[&[Tensor]], together: i64) -> Result<(), TrialError> {
    let Some((first, others)) = lists.split_first() else {
        return Ok(());
    };
    if others.iter().any(|list| list.len() != first.len()) {
        let lengths: Vec<usize> = lists.iter().map(|list| list.len()).collect();
        return Err(TrialError::Failed(format!(
            "the replicas have {lengths:?} gradients; this is a bug in kiln; please report it"
        )));
    }
    let all: Vec<Handle> = lists
        .iter()
        .flat_map(|list| list.iter())
        .map(handle)
        .collect();
    // SAFETY: as many lists as said, each as long as the first; the optimizers own the gradients.
    checked(unsafe {
        kiln_sum_over_replicas(all.as_ptr(), lists.len() as c_int, count(first), together)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.reshape([-1])).unwrap()
    }

    #[test]
    fn every_replica_gets_the_sum_in_memory_of_its_own() {
        // The second of these lies column after column.
        let square = |by: f32| {
            Tensor::from_slice(&[by, 0.0, -by, 4.0])
                .reshape([2, 2])
                .transpose(0, 1)
        };
        let replica = |by: f32| {
            vec![
                Tensor::from_slice(&[by, 2.0 * by]),
                square(by),
                Tensor::from_slice(&[3.0 * by]),
            ]
        };
        for together in [1, 3, 6, TOGETHER] {
            let lists: Vec<Vec<Tensor>> = [1.0, 10.0, 100.0].into_iter().map(replica).collect();
            sum_in_parts(
                &lists.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                together,
            )
            .unwrap();
            for list in &lists {
                let expected = [
                    vec![111.0, 222.0],
                    vec![111.0, -111.0, 0.0, 12.0],
                    vec![333.0],
                ];
                assert_eq!(
                    list.iter().map(values).collect::<Vec<_>>(),
                    expected,
                    "{together} at once"
                );
            }
            let _ = lists[1][0].shallow_clone().fill_(0.0);
            assert_eq!(
                values(&lists[0][0]),
                [111.0, 222.0],
                "a change of one replica's is no change of another's"
            );
        }
    }

    #[test]
    fn lists_of_different_lengths_are_refused() {
        let one = [Tensor::from_slice(&[1.0_f32])];
        let error = sum_over_replicas(&[&one, &[]]).unwrap_err().to_string();
        assert!(error.contains("[1, 0]"), "{error}");
    }
}
