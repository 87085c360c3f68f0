use super::*;

#[test]
fn near_tokens_have_a_bucket_each_and_far_ones_share() {
    // By T5's rule worked out by hand: 16 buckets each way, 8 of them exact, the others up to
    // 128 by factors of 16^(1/8).
    let both: Vec<i64> = [
        0, -1, -7, -8, -11, -12, -15, -16, -127, -128, -1000, 1, 7, 8, 90, 91, 1000,
    ]
    .map(|distance| bucket(distance, 32, 128, true))
    .to_vec();
    assert_eq!(
        both,
        [0, 1, 7, 8, 8, 9, 9, 10, 15, 15, 15, 17, 23, 24, 30, 31, 31]
    );
    let back: Vec<i64> = [5, 0, -1, -15, -16, -18, -19, -128, -5000]
        .map(|distance| bucket(distance, 32, 128, false))
        .to_vec();
    assert_eq!(back, [0, 0, 1, 15, 16, 16, 17, 31, 31]);
}

#[cfg(feature = "libtorch")]
mod recorded {
    use kiln_core::{plan::ChildDevice, spec::Engine};

    use super::*;
    use crate::engine::{EngineDevice, fixed::Raw};

    fn positions() -> (Positions, Device) {
        let shape = kinds::Seq2seq {
            d_model: 8,
            d_kv: 4,
            d_ff: 8,
            encoder_layers: 1,
            decoder_layers: 1,
            num_heads: 2,
            dropout: 0.0,
            relative_buckets: 32,
            relative_max_distance: 128,
            vocabulary: None,
        };
        let device = EngineDevice::open(Engine::Libtorch, ChildDevice::Cpu, 1).unwrap();
        let init = Init {
            seed: 1,
            device: device.with_gradients(),
        };
        let device = init.plain_device();
        (Positions::new(&shape, "positions", true, &init), device)
    }

    /// As memory that was freed, and that others have written to since.
    fn overwrite(tensor: &tch::Tensor) {
        drop(tensor.shallow_clone().fill_(-1_i64));
    }

    #[test]
    fn a_recorded_step_reads_no_buckets_that_other_shapes_may_push_out() {
        let (positions, device) = positions();
        let shape = [0, 6, 7];
        let cached = positions.buckets(shape, &device).raw();
        let right = cached.copy();
        overwrite(&cached);
        let found = recorded_work::during(|| positions.buckets(shape, &device));
        assert!(found.raw().equal(&right));
    }

    #[test]
    fn what_a_recorded_step_makes_is_not_kept_for_other_steps() {
        let (positions, device) = positions();
        let shape = [0, 6, 7];
        let made = recorded_work::during(|| positions.buckets(shape, &device)).raw();
        let right = made.copy();
        overwrite(&made);
        assert!(positions.buckets(shape, &device).raw().equal(&right));
    }

    #[test]
    fn buckets_of_distances_that_a_recorded_step_reads_stay_when_batches_get_longer() {
        let (positions, device) = positions();
        let distances = |needed: usize| {
            let mut kept = positions.kept.0.lock().unwrap();
            let (reach, tensor) = positions.of_distance(&mut kept, needed, &device);
            (reach, tensor.raw().data_ptr())
        };
        let first = distances(6);
        let longer = distances(LEAST_REACH + 1);
        assert_eq!((first.0, longer.0), (LEAST_REACH, 2 * LEAST_REACH));
        // The first is still owned, and serves the shapes that it served.
        assert_eq!((distances(LEAST_REACH), distances(300)), (first, longer));
    }
}
