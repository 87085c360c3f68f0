//! A lost device: the waiting trials go to another one, which is waited for if it is in use, or no
//! more trials are started.

use std::time::Instant;

use super::LaunchState;
use crate::schedule::{
    RunStop, attempt::Lost, devices::DeviceRequest, lease::Refusal, pools::LOOK_AGAIN,
};

/// A launch that has lost a device looks for others for the trials that have none left.
pub(super) struct LostDevice {
    /// Its name, and the message of NVML.
    words: String,
    next_look: Instant,
    /// While trials wait for a device in use: the end of `run.wait`.
    until: Option<Instant>,
}

impl LaunchState<'_> {
    /// Handles a lost device: the waiting trials use other devices, or no more are started.
    pub(super) fn lose(&mut self, Lost { uuid, words: lost }: &Lost) {
        self.notice(&format!("{lost}; no more trials are scheduled on it"));
        for slot in self.slots.lose(uuid) {
            self.queue.lose(slot);
        }
        self.lost_device = Some(LostDevice {
            words: lost.clone(),
            next_look: Instant::now(),
            until: None,
        });
        self.replace_lost();
    }

    /// Looks again for a device for trials that have lost theirs, or whose ticket came later.
    /// Running trials are of another device request, beside which these would not start.
    pub(super) fn look_for_devices(&mut self) {
        let is_due = |lost: &LostDevice| Instant::now() >= lost.next_look;
        if self.lost_device.as_ref().is_some_and(is_due)
            && self.running.is_empty()
            && !self.is_stopping()
        {
            self.replace_lost();
        }
    }

    fn replace_lost(&mut self) {
        while let Some(wanted) = self.queue.stranded(&self.trials) {
            let added = self.slots.add(&wanted, self.request, &self.instruments);
            match added {
                Ok(slot) => self.go_on(&wanted, slot),
                Err(refusal) => return self.wait_or_stop(refusal),
            }
        }
        if let Some(lost) = &mut self.lost_device {
            lost.until = None;
        }
    }

    fn go_on(&mut self, wanted: &DeviceRequest, slot: usize) {
        self.queue.add_slot(wanted, slot);
        let names: Vec<String> = self
            .slots
            .gpus(slot)
            .iter()
            .map(|gpu| format!("GPU {} ({})", gpu.index, gpu.name))
            .collect();
        self.notice(&format!("continuing on {}", names.join(" and ")));
    }

    /// `refusal`: why the devices that could replace the lost one cannot be had, if there are any.
    fn wait_or_stop(&mut self, refusal: Option<Refusal>) {
        let Some(lost) = &mut self.lost_device else {
            return;
        };
        let (now, at_most) = (Instant::now(), self.request.experiment.run.wait);
        let again = self.request.same_command();
        let is_told = lost.until.is_some();
        let until = *lost.until.get_or_insert(now + at_most.0);
        let why = match refusal {
            Some(Refusal::Busy(users) | Refusal::Leased(users) | Refusal::Broken(users)) => {
                if now < until {
                    lost.next_look = (now + LOOK_AGAIN).min(until);
                    if !is_told {
                        self.notice(&format!(
                            "waiting up to {at_most} (`run.wait`) for an idle device: {users}"
                        ));
                    }
                    return;
                }
                format!(
                    "no other device is idle for the waiting trials: {users}; run {again} to \
                     resume when one is free, or wait for it with `--set run.wait=10m`"
                )
            }
            Some(Refusal::Lost(others)) => format!(
                "no other device is left for the waiting trials: {others}; reset the devices or \
                 reboot, then run {again} to resume"
            ),
            None => format!(
                "no other device is left for the waiting trials; reset the device or reboot, then run \
                 {again} to resume"
            ),
        };
        let stop = format!("{}, and {why}", lost.words);
        self.start_no_more(RunStop::CannotRun(stop));
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, fs};

    use kiln_core::{
        plan::{Outcome, Trial},
        record::{
            TrialTable,
            lock::{Lock, lock_file},
        },
        spec::{DeviceName, Devices, Experiment},
    };

    use crate::schedule::{
        Instruments, LaunchEnd, LaunchEvent, LaunchListener, RunRequest,
        sweep::{
            run,
            tests::{gpu, places, request, trial},
        },
        worker::join,
    };

    /// Frees a GPU that somebody else has leased as soon as the launch says that it waits.
    struct Leaver(RefCell<Option<Lock>>);

    impl LaunchListener for Leaver {
        fn hear(&self, event: LaunchEvent<'_>) {
            if let LaunchEvent::Notice(text) = event
                && text.starts_with("waiting up to")
                && text.contains("GPU 1 (pretended) is leased by process 4711")
            {
                self.0.borrow_mut().take();
            }
        }
    }

    /// Runs two trials of `auto` with this `run.wait`: GPU 0 is lost in the first one, and GPU 1 is
    /// leased. Returns the devices of the trials, or why the launch has stopped.
    fn lose_one(wait: &str) -> Result<Vec<(Outcome, String)>, String> {
        let place = tempfile::tempdir().unwrap();
        let text = format!(
            "{{kiln: 1, name: x, model: {{kind: matmul, size: 8}}, run: {{wait: {wait}}}}}"
        );
        let experiment: Experiment = serde_yaml::from_str(&text).unwrap();
        let trials = [1, 2].map(|number| Trial {
            devices: Devices::Named(DeviceName::Auto),
            ..trial(&experiment, number, 0)
        });
        let lines = "[ $CUDA_VISIBLE_DEVICES = GPU-1 ] || exit 3";
        let [results, program, locks] = places(place.path(), lines);
        fs::create_dir(&locks).unwrap();
        let lock = lock_file(&locks.join("GPU-1.lock"), "process 4711");
        let listener = Leaver(RefCell::new(Some(lock.unwrap().unwrap())));
        let request = RunRequest {
            resolved: &text,
            listener: &listener,
            ..request(&experiment, &trials, [&results, &program, &locks])
        };
        let mut instruments = Instruments::pretending(vec![gpu(0), gpu(1)]);
        instruments.pretended_lost = vec!["GPU-0".to_owned()];
        let report = run(&request, instruments, join).unwrap();
        if let Some(stop) = report.failure {
            return Err(stop.to_string());
        }
        assert_eq!(report.end, LaunchEnd::Finished);
        let rows = TrialTable::read_of(&report.folder).unwrap().rows;
        Ok(rows
            .into_iter()
            .map(|row| (row.fixed.outcome, row.fixed.device_uuid.unwrap()))
            .collect())
    }

    #[test]
    fn a_device_in_use_is_waited_for_in_place_of_a_lost_one() {
        assert_eq!(
            lose_one("50ms"),
            Ok(vec![
                (Outcome::Failed, "GPU-0".to_owned()),
                (Outcome::Diverged, "GPU-1".to_owned())
            ])
        );
    }

    #[test]
    fn without_a_wait_the_launch_stops_and_names_who_uses_the_others() {
        let stopped = lose_one("0s").unwrap_err();
        assert!(
            stopped.starts_with(
                "GPU 0 (pretended) was lost (NVML: pretended), and no other device is idle for the \
                 waiting trials: GPU 1 (pretended) is leased by process 4711; run the same"
            ),
            "{stopped}"
        );
    }
}
