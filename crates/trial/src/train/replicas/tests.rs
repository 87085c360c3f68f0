//! Replicas on the CPU: shared state and separate state. `tests/replicas.rs` tests that they train
//! like one large batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kiln_core::{kinds::InputShape, plan::TrialFile, spec::Engine};

use super::*;
use crate::{
    model::Registry,
    train::{NamedValues, learner::Beginning},
};

const SEQ_LEN: usize = 8;
const TOKENS: usize = 2 * 3 * SEQ_LEN;

/// Lets one test that draws dropout run at a time: on the CPU all threads draw from one generator, and
/// another test may seed it between two replicas.
fn drawing() -> MutexGuard<'static, ()> {
    static GENERATOR: Mutex<()> = Mutex::new(());
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

fn engines() -> Vec<Engine> {
    if cfg!(feature = "libtorch") {
        vec![Engine::Libtorch, Engine::Flex]
    } else {
        vec![Engine::Flex]
    }
}

fn parallel(engine: Engine, dropout: f64) -> Parallel {
    let text = format!(
        "{{kiln_trial: 1, trial: 0123456789, attempt: 1, model: {{kind: gpt, d_model: 16, \
         num_layers: 1, num_heads: 2, seq_len: {SEQ_LEN}, dropout: {dropout}}}, data: {{kind: \
         generated}}, train: {{batch_size: 3, steps: 1, cpu_threads: 1}}, measure: {{}}, engine: \
         {}, device: cpu, devices_per_trial: 2, folder: /nowhere, run_anchor_nanoseconds: 0}}",
        engine.name()
    );
    let file: TrialFile = serde_yaml::from_str(&text).unwrap();
    let input = Some(InputShape::Text { vocabulary: 20 });
    Parallel::new(
        Learner::build_replicas(&file, input, &Registry::new(), Beginning::Drawn).unwrap(),
    )
    .unwrap()
}

fn batch(number: usize) -> HostBatch {
    let tokens = |shift: usize| {
        (0..3 * SEQ_LEN)
            .map(|at| ((at * (number + 3) + shift) % 20) as i64)
            .collect()
    };
    HostBatch::of_text(3, SEQ_LEN, tokens(0), tokens(1))
}

/// One round of these two batches as step 1.
fn round(parallel: &mut Parallel, batches: [usize; 2]) {
    for (micro, number) in (0..).zip(batches) {
        let on_device = parallel.to_device(&batch(number), &mut ()).unwrap();
        parallel
            .micro_step(on_device, 1, micro, TOKENS as u64)
            .unwrap();
    }
}

fn gradients(parallel: &Parallel) -> [Vec<NamedValues>; 2] {
    [0, 1].map(|replica| parallel.replicas[replica].gradients().unwrap())
}

#[test]
fn replicas_begin_alike_and_of_one_batch_draw_their_dropout_apart() {
    let _alone = drawing();
    for engine in engines() {
        let mut plain = parallel(engine, 0.0);
        plain.check().unwrap();
        round(&mut plain, [1, 1]);
        let [first, second] = gradients(&plain);
        assert_eq!(first, second, "{engine:?}: the same batch without dropout");
        // A test of another file may seed the generator between the replicas, so that they draw
        // alike; not three times in a row.
        let draw_apart = (0..3).any(|_| {
            let mut dropping = parallel(engine, 0.5);
            round(&mut dropping, [1, 1]);
            let [first, second] = gradients(&dropping);
            first != second
        });
        assert!(draw_apart, "{engine:?}: the same batch with dropout");
    }
}

#[test]
fn an_update_is_made_of_the_sum_and_leaves_the_replicas_alike() {
    let _alone = drawing();
    for engine in engines() {
        let mut parallel = parallel(engine, 0.5);
        for _ in 0..3 {
            round(&mut parallel, [1, 2]);
            parallel.update(0.01).unwrap();
        }
        parallel.check().unwrap();
        assert_eq!(parallel.take_losses().unwrap().len(), 3);
        let exchanges = parallel.take_exchanges();
        assert!(
            exchanges.len() == 3
                && exchanges
                    .iter()
                    .all(|seconds| seconds.is_some_and(|seconds| seconds > 0.0)),
            "{exchanges:?}"
        );
        assert!(parallel.take_exchanges().is_empty());
    }
}

#[test]
fn replicas_that_come_apart_are_found_by_name() {
    for engine in engines() {
        let mut parallel = parallel(engine, 0.0);
        round(&mut parallel, [1, 2]);
        parallel.replicas[1].update(0.01).unwrap();
        let error = parallel.check().unwrap_err().to_string();
        assert!(
            error.contains("are out of sync: the parameter `Gpt."),
            "{engine:?}: {error}"
        );
    }
}

/// As on CUDA; on the CPU without dropout, which all threads would draw from one generator.
fn in_threads(engine: Engine) -> Parallel {
    let mut parallel = parallel(engine, 0.0);
    parallel.lanes = lanes(parallel.replicas.len()).unwrap();
    parallel
}

#[test]
fn threads_give_what_one_thread_gives_and_their_errors_come_out() {
    for engine in engines() {
        let (mut one_by_one, mut at_once) = (parallel(engine, 0.0), in_threads(engine));
        for parallel in [&mut one_by_one, &mut at_once] {
            for _ in 0..2 {
                round(parallel, [1, 2]);
                parallel.update(0.01).unwrap();
            }
            round(parallel, [1, 2]);
        }
        assert_eq!(gradients(&one_by_one), gradients(&at_once), "{engine:?}");
        assert_eq!(
            one_by_one.take_losses().unwrap(),
            at_once.take_losses().unwrap(),
            "{engine:?}"
        );
        for parallel in [&mut one_by_one, &mut at_once] {
            let batches =
                [1, 2].map(|number| parallel.replicas[0].to_device(&batch(number)).unwrap());
            parallel.round.extend(batches);
            let error = parallel.run_round(7, 0, 0).unwrap_err().to_string();
            assert!(
                error.contains("step 7 has no target"),
                "{engine:?}: {error}"
            );
            // The replicas are all there again, and go on.
            assert_eq!(parallel.replicas.len(), 2);
            round(parallel, [1, 2]);
            parallel.update(0.01).unwrap();
            parallel.check().unwrap();
        }
    }
}
