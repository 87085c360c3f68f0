//! What is random in the learner. A test program of its own: the engines draw from one generator per process, which every
//! forward pass seeds.

#![cfg(feature = "libtorch")]

mod common;

use common::{batch, learner, steps, trial};
use kiln::spec::Engine;

const ENGINES: [Engine; 2] = [Engine::Libtorch, Engine::Flex];

#[test]
fn the_same_seed_repeats_to_the_bit_also_with_dropout() {
    let _alone = common::alone_with_the_generator();
    for engine in ENGINES {
        let file = trial(engine, "gpt", "dropout: 0.2");
        let run = || steps(&mut learner(&file), 6, 2, &[batch(3, 0), batch(3, 1)]);
        let (first, second) = (run(), run());
        assert_eq!(first, second, "{engine:?}");
    }
}

#[test]
fn dropout_draws_anew_in_each_step_and_not_in_evaluation() {
    let _alone = common::alone_with_the_generator();
    for engine in ENGINES {
        let mut learner = learner(&trial(engine, "gpt", "dropout: 0.5"));
        let at = |learner: &mut kiln_trial::train::Learner, step| {
            let host = batch(4, 0);
            let device = learner.to_device(&host).unwrap();
            learner.micro_step(device, step, 0, host.counted_targets()).unwrap();
            let gradients = learner.gradients().unwrap();
            learner.update(0.0).unwrap();
            (learner.take_losses().unwrap()[0], gradients)
        };
        let (first, second, again) = (at(&mut learner, 0), at(&mut learner, 1), at(&mut learner, 0));
        assert_ne!(first.0, second.0, "{engine:?}");
        assert_eq!(first.0, again.0, "{engine:?}: a learning rate of 0 leaves the parameters alone");
        let evaluate = |learner: &mut kiln_trial::train::Learner| {
            let device = learner.to_device(&batch(4, 0)).unwrap();
            learner.evaluate(device).unwrap();
            learner.finish_evaluation_loss().unwrap()
        };
        assert_eq!(evaluate(&mut learner), evaluate(&mut learner), "{engine:?}");
    }
}
