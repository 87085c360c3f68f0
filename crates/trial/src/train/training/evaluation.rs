//! Evaluations: when one is due, what it measures, and how it may end the training.

use std::io::Write;

use kiln_core::{
    record::{Message, RESPONSES},
    spec::{EvaluateEvery, EvaluateMoment},
};

use super::{Ending, Training, diverged, report_progress};
use crate::{
    TrialError,
    data::LoadError,
    train::{
        ledger::{EpochPlace, Evaluation},
        measurement::{LowestLoss, Measurement},
        objective::Scores,
        responses::Responses,
        text_scores::TextScores,
        trainable::Trainable,
        validation,
    },
};

impl<T: Trainable, W: Write> Training<'_, '_, T, W> {
    pub(super) fn has_validation(&self) -> bool {
        self.feed.validation.is_some()
    }

    /// Whether `train.evaluate.every` asks for it. The evaluation at the end of a training that is
    /// none of these tells the schedule and `early_stop` nothing: a training that goes on from there
    /// has it beside those of one long training.
    fn evaluation_is_regular(&self, step: u64) -> bool {
        match self.measurement.file.train.evaluate.every {
            EvaluateEvery::Steps(steps) => step.is_multiple_of(steps.max(1)),
            EvaluateEvery::Moment(EvaluateMoment::Epoch) => self.measurement.plan.ends_epoch(step),
            EvaluateEvery::Moment(EvaluateMoment::End) => false,
        }
    }

    pub(super) fn evaluation_is_due(&self, step: u64) -> bool {
        self.has_validation()
            && (self.evaluation_is_regular(step) || step == self.measurement.plan.total_steps)
    }

    pub(super) fn owes_evaluation(&self, step: u64) -> bool {
        self.evaluation_is_due(step) && self.measurement.figures.evaluated_at != Some(step)
    }

    /// The loss of the evaluation after a step.
    pub(super) fn loss_at(&self, step: u64) -> Option<f64> {
        self.measurement
            .figures
            .scores
            .filter(|_| self.measurement.figures.evaluated_at == Some(step))
            .map(|scores| scores.loss)
    }

    /// An attempt that was interrupted in an evaluation left it to this one.
    pub(super) fn evaluate_what_is_owed(&mut self) -> Result<Option<Ending>, TrialError> {
        let step = self.measurement.figures.steps;
        let is_owed = self.measurement.figures.resumed_at.is_some()
            && self.owes_evaluation(step)
            && step < self.measurement.plan.total_steps;
        if !is_owed {
            return Ok(None);
        }
        match self.evaluate(step)? {
            // The checkpoint that it went on from learns of it.
            None if self.keeper.is_some() => self.checkpoint(step),
            ending => Ok(ending),
        }
    }

    /// Goes through the validation data after `step`; an ending, if it brings one. Its time is cut
    /// out of the window.
    pub(super) fn evaluate(&mut self, step: u64) -> Result<Option<Ending>, TrialError> {
        if let Some(divergence) = self.settle()? {
            return Ok(Some(diverged(divergence)));
        }
        let (scores, to, seconds) = self.aside(|training| training.validate(step))?;
        *self
            .measurement
            .figures
            .evaluation_seconds
            .get_or_insert(0.0) += seconds;
        match scores {
            None => Ok(Some(Ending::Interrupted)),
            Some(Scores { loss, .. }) if !loss.is_finite() => Ok(Some(Ending::Diverged(format!(
                "the validation loss after step {step} is {loss}"
            )))),
            Some(scores) => {
                self.record_evaluation(step, to, Evaluation { scores, seconds })?;
                if !self.evaluation_is_regular(step) {
                    return Ok(None);
                }
                self.plateau.hear(scores.loss);
                Ok(self
                    .early_stop
                    .hear(scores.loss)
                    .filter(|_| step < self.measurement.plan.total_steps)
                    .map(Ending::StoppedEarly))
            }
        }
    }

    /// Waits. `None` if interrupted.
    fn validate(&mut self, step: u64) -> Result<Option<Scores>, TrialError> {
        let Some(validation) = &self.feed.validation else {
            return Ok(None);
        };
        let loader = validation.loader();
        let batches = loader.total_batches();
        let total_batches = batches + self.responses.as_ref().map_or(0, Responses::batches) as u64;
        let measurement = &mut self.measurement;
        let mut on_progress = |done: u64| -> Result<(), TrialError> {
            if done > 0 {
                let message = Message::Evaluating {
                    step,
                    batch: done,
                    total_batches,
                };
                let now = measurement.clock.now();
                measurement.messages.sign_of_life(&message, now)?;
            }
            // After the last batch the evaluation ends in any case.
            if done < batches && measurement.is_interrupted() {
                return Err(TrialError::Interrupted);
            }
            Ok(())
        };
        let scores = match validation::evaluate(
            &mut self.trainee,
            loader,
            LoadError::in_validation,
            &mut on_progress,
        ) {
            Err(TrialError::Interrupted) => return Ok(None),
            evaluated => evaluated?,
        };
        match self.respond(step, total_batches) {
            Ok(None) => Ok(Some(scores)),
            Ok(Some(texts)) => Ok(Some(scores.with_responses(&texts))),
            Err(TrialError::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits. Lets the model answer the prompts that are asked for, the last of the evaluation's
    /// `total_batches`; `None` where none are.
    ///
    /// Errors: it is interrupted, the responses cannot be written.
    fn respond(&mut self, step: u64, total_batches: u64) -> Result<Option<TextScores>, TrialError> {
        let Self {
            responses: Some(asked),
            trainee,
            measurement:
                Measurement {
                    messages,
                    is_interrupted,
                    file,
                    clock,
                    ..
                },
            ..
        } = self
        else {
            return Ok(None);
        };
        let responses = asked.answers(trainee, &mut |batch| {
            let left = (asked.batches() - batch - 1) as u64;
            let message = Message::Evaluating {
                step,
                batch: total_batches - left,
                total_batches,
            };
            report_progress(is_interrupted, messages, &message, clock.now())
        })?;
        asked
            .finish(&responses, &file.folder.join(RESPONSES))
            .map(Some)
    }

    fn record_evaluation(
        &mut self,
        step: u64,
        at: u64,
        evaluation: Evaluation,
    ) -> Result<(), TrialError> {
        let loss = evaluation.scores.loss;
        self.measurement.figures.scores = Some(evaluation.scores);
        self.measurement.figures.evaluated_at = Some(step);
        let lowest = &mut self.measurement.figures.lowest;
        if lowest.is_none_or(|lowest| loss < lowest.valid_loss) {
            *lowest = Some(LowestLoss {
                valid_loss: loss,
                step,
            });
        }
        let place = EpochPlace {
            epoch: self.measurement.plan.epoch(step),
            step,
            at,
        };
        self.measurement
            .ledger
            .add_epoch(place, Some(evaluation), &mut self.measurement.tables)?;
        self.measurement.tables.flush()?;
        self.measurement.messages.send(&Message::Evaluated {
            step,
            valid_loss: loss,
        })?;
        let is_reached = self
            .measurement
            .file
            .train
            .target
            .as_ref()
            .is_some_and(|target| loss <= target.valid_loss);
        if is_reached && self.measurement.figures.seconds_to_target.is_none() {
            self.measurement.figures.seconds_to_target = Some(self.measurement.seconds_trained(at));
            self.measurement.figures.steps_to_target = Some(step);
            self.measurement.messages.send(&Message::TargetReached {
                step,
                monotonic_nanoseconds: at,
            })?;
        }
        Ok(())
    }
}
