//! The tick of a launch: it reads the instruments and checks the running trials.

use std::{io, time::Instant};

use super::LaunchState;
use crate::schedule::{LaunchEvent, disk, judge::StopCause};

impl LaunchState<'_> {
    pub(super) fn tick(&mut self) {
        if let Err(error) = self.instruments.tick() {
            let stop = disk::cannot_write(self.request)(error);
            self.fail(stop);
        }
        self.tell_silences();
        self.clock.note_waited(self.instruments.take_waited());
        let now = self.clock.tick(Instant::now());
        let recorded = self.supervisor.look(now);
        self.note_unrecorded(recorded);
        self.count_concurrent();
        for attempt in &mut self.running {
            attempt.keep_limits(&self.request.experiment.run, now);
            attempt.follow_memory_group();
            attempt.follow_libraries();
            let trial = &self.trials[attempt.index];
            if self.instruments.lost(&trial.id).is_some() {
                attempt.stop(StopCause::DeviceLost);
            }
            let (heard, notices) = attempt.look();
            attempt.note_resumed(&self.open.folder, heard.resumed_at_step);
            for notice in notices.into_iter().chain(attempt.other_model(trial)) {
                self.request.listener.hear(LaunchEvent::TrialNotice {
                    trial,
                    text: &notice,
                });
            }
            self.request.listener.hear(LaunchEvent::TrialProgressed {
                trial,
                progress: heard.progress(),
                counts: self.counts,
            });
        }
    }

    /// Tells of GPUs whose driver does not answer.
    pub(super) fn tell_silences(&self) {
        self.instruments
            .take_silences()
            .iter()
            .for_each(|text| self.notice(text));
    }

    /// A launch continues without the record of its processes.
    pub(super) fn note_unrecorded(&self, recorded: io::Result<()>) {
        if let Err(error) = recorded {
            self.notice(&format!(
                "{error}; if kiln is killed, processes that a trial started beside itself may stay"
            ));
        }
    }
}
