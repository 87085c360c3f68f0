//! Random draws in the learner: dropout is repeatable, differs from step to step, and is off in
//! evaluation.

use crate::common::{
    alone_with_the_generator_of, are_same, batch, engines, is_same, learner, steps, trial,
};
use kiln_trial::train::Learner;

#[test]
fn the_same_seed_repeats_to_the_bit_also_with_dropout() {
    for &engine in engines() {
        let _alone = alone_with_the_generator_of(engine);
        let file = trial(engine, "gpt", "dropout: 0.2");
        let run = || steps(&mut learner(&file), 6, 2, &[batch(3, 0), batch(3, 1)]);
        let (first, second) = (run(), run());
        assert!(
            are_same(&first, &second),
            "{engine:?}: {first:?}, then {second:?}"
        );
    }
}

#[test]
fn dropout_draws_anew_in_each_step_and_not_in_evaluation() {
    for &engine in engines() {
        let _alone = alone_with_the_generator_of(engine);
        let mut learner = learner(&trial(engine, "gpt", "dropout: 0.5"));
        let at = |learner: &mut Learner, step| {
            let host = batch(4, 0);
            let device = learner.to_device(&host).unwrap();
            learner
                .micro_step(device, step, 0, host.counted_targets())
                .unwrap();
            let gradients = learner.gradients().unwrap();
            learner.update(0.0).unwrap();
            (learner.take_losses().unwrap()[0], gradients)
        };
        let (first, second, again) = (
            at(&mut learner, 0),
            at(&mut learner, 1),
            at(&mut learner, 0),
        );
        assert_ne!(first.0, second.0, "{engine:?}");
        assert!(
            is_same(first.0, again.0),
            "{engine:?}: {} {}: a learning rate of 0 leaves the parameters alone",
            first.0,
            again.0
        );
        let evaluate = |learner: &mut Learner| {
            let device = learner.to_device(&batch(4, 0)).unwrap();
            learner.evaluate(device).unwrap();
            learner.finish_evaluation_loss().unwrap()
        };
        assert!(
            is_same(evaluate(&mut learner), evaluate(&mut learner)),
            "{engine:?}"
        );
    }
}
