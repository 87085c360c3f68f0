//! Readings during a launch: the sampler, the watch of each attempt, and their tables.

use std::{io, sync::Arc, time::Duration};

use kiln_core::{
    plan::TrialId,
    record::{RunFolder, SnapshotMoment, note::BusyHost},
    units::clock::local_now,
};
use kiln_hardware::{
    EVERYTHING, Gpu, ProcessList, Sampler, Snapshot, TrialReadings, WindowSummary,
    sampler::joined,
    silence_of,
    snapshot::{device as read_device, gpu as gpu_snapshot, host as host_snapshot, host_items},
    text::{Naming, host_text, text},
    window::{summarize, together},
};

use super::{
    Instruments,
    snapshots::{SnapshotOccasion, TakenSnapshot},
};
use crate::{
    readings::{Privacy, SampleWriter, SnapshotWriter, identity::MASKED},
    schedule::clock,
};

/// Readings of the machine over one attempt; `None` if missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttemptReadings {
    /// Values, with the reasons for missing ones by column.
    pub window: WindowSummary,
    pub memory_limit_bytes: Option<u64>,
    pub foreign_processes: Option<String>,
    /// Before the child was started.
    pub idle_power_watts: Option<f64>,
    /// A device that NVML reported as lost during the attempt, with the message.
    pub lost: Option<(String, String)>,
}

/// The process and the attempt to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptWatch {
    pub trial: TrialId,
    pub attempt: u64,
    pub pid: u32,
    /// Whether the process only starts the trial's program, and is left out.
    pub is_relay: bool,
    /// Empty on the CPU.
    pub device_uuids: Vec<String>,
}

/// Facts of a launch for its instruments.
#[derive(Clone, Copy, Debug)]
pub(in crate::schedule) struct LaunchContext<'a> {
    pub(in crate::schedule) folder: &'a RunFolder,
    pub(in crate::schedule) launch: u64,
    pub(in crate::schedule) run_anchor_nanoseconds: i64,
    pub(in crate::schedule) sample_interval: Duration,
    pub(in crate::schedule) privacy: Privacy,
}

/// The sampler and its tables, once the run's folder exists.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) sampler: Sampler,
    samples: SampleWriter,
    snapshots: SnapshotWriter,
    privacy: Privacy,
    run_anchor_nanoseconds: i64,
    folder: RunFolder,
    launch: u64,
    /// The launch's snapshot as text.
    page: String,
}

/// A notice for the user.
const RESTORED: &str = "the snapshot of this launch was removed or replaced, and was written again; \
                        what changed before, and rows of earlier launches, are not";

impl Instruments {
    /// Starts the sampler and writes the launch's snapshot; returns notices for the user.
    ///
    /// # Errors
    /// A table under the run's folder cannot be opened or written.
    pub(in crate::schedule) fn begin(&mut self, sitting: LaunchContext) -> io::Result<Vec<String>> {
        let nvml = self.nvml.as_ref().ok().map(Arc::clone);
        let folder = sitting.folder.open()?;
        let (samples, damaged_samples) =
            SampleWriter::open(&folder, sitting.launch).map_err(io::Error::from)?;
        let (mut snapshots, damaged_snapshots) =
            SnapshotWriter::open(&folder, sitting.launch, sitting.privacy)
                .map_err(io::Error::from)?;
        snapshots.at(clock::run_seconds(sitting.run_anchor_nanoseconds));
        let checked = self.checked_gpus.take();
        let gpus = checked.unwrap_or_else(|| self.read_gpus());
        for snapshot in
            std::iter::once(host_snapshot(&self.host)).chain(gpus.iter().map(gpu_snapshot))
        {
            snapshots.write_all(&snapshot).map_err(io::Error::from)?;
        }
        snapshots.sync().map_err(io::Error::from)?;
        let page = self.page(&gpus, sitting.privacy);
        sitting.folder.write(
            &sitting.folder.snapshot_page(sitting.launch),
            page.as_bytes(),
        )?;
        let sampler = Sampler::start(
            nvml,
            sitting.sample_interval,
            sitting.run_anchor_nanoseconds,
        );
        let LaunchContext {
            privacy,
            run_anchor_nanoseconds,
            ..
        } = sitting;
        self.keeping = Some(Keeping {
            sampler,
            samples,
            snapshots,
            privacy,
            run_anchor_nanoseconds,
            folder: sitting.folder.clone(),
            launch: sitting.launch,
            page,
        });
        let notice = |name| {
            format!(
                "a table was damaged, by a power failure or by another program; it was moved to \
                 {name} and a new one begun"
            )
        };
        Ok([damaged_samples, damaged_snapshots]
            .into_iter()
            .flatten()
            .map(notice)
            .collect())
    }

    /// Writes the launch's snapshot as text, for people to read and compare.
    fn page(&self, gpus: &[Gpu], privacy: Privacy) -> String {
        let naming = if privacy == Privacy::Full {
            Naming::Full
        } else {
            Naming::Masked(MASKED)
        };
        let host = host_text(&host_items(&self.host));
        match &self.nvml {
            Ok(_) => {
                let (silent, read): (Vec<Gpu>, Vec<Gpu>) = gpus
                    .iter()
                    .cloned()
                    .partition(|gpu| silence_of(gpu).is_some());
                let silences = silent.iter().filter_map(|gpu| {
                    Some(format!(
                        "\nGPU {} was not read: {}.\n",
                        gpu.index.value()?,
                        silence_of(gpu)?
                    ))
                });
                host + &text(&read, &local_now(), naming) + &silences.collect::<String>()
            }
            Err(absent) => format!("{host}\nNo GPU can be read: {absent}.\n"),
        }
    }

    /// Begins to watch an attempt, whose program may be in its window already; then a snapshot of what
    /// changed since the last one, which takes longer, goes into the table, now or at a later tick.
    ///
    /// # Errors
    /// The table cannot be written.
    pub fn watch(&mut self, watch: AttemptWatch) -> io::Result<()> {
        if let Some(keeping) = &self.keeping {
            let on = |device_uuid| kiln_hardware::Watch {
                trial: watch.trial.0.clone(),
                attempt: watch.attempt,
                pid: watch.pid,
                without_root: watch.is_relay,
                device_uuid,
            };
            match watch.device_uuids.as_slice() {
                [] => keeping.sampler.watch(on(None)),
                uuids => uuids
                    .iter()
                    .for_each(|uuid| keeping.sampler.watch(on(Some(uuid.clone())))),
            }
        }
        let written = self.write_changes(SnapshotMoment::Start, &watch);
        self.watched.push(watch);
        written
    }

    /// Takes a reading because the trial's measured window begins or ends.
    pub fn mark(&self, trial: &TrialId) {
        if let Some(keeping) = &self.keeping {
            keeping.sampler.mark(&trial.0);
        }
    }

    /// Takes a reading because a cut within the trial's window begins or ends.
    pub fn look(&self, trial: &TrialId) {
        if let Some(keeping) = &self.keeping {
            keeping.sampler.look(&trial.0);
        }
    }

    /// Writes pending rows; called a few times a second.
    ///
    /// # Errors
    /// The table cannot be written.
    pub fn tick(&mut self) -> io::Result<()> {
        self.write_arrived()?;
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        match keeping.sampler.take_rows() {
            rows if rows.is_empty() => Ok(()),
            rows => keeping.samples.append(&rows).map_err(io::Error::from),
        }
    }

    /// Writes the launch's snapshot again where somebody has removed or replaced its files; returns a
    /// notice if it did.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(in crate::schedule) fn settle(&mut self) -> io::Result<Option<&'static str>> {
        let Some(keeping) = &mut self.keeping else {
            return Ok(None);
        };
        keeping.snapshots.settle().map_err(io::Error::from)?;
        let page = keeping.folder.snapshot_page(keeping.launch);
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let lacks_page = page.symlink_metadata().is_err_and(is_gone);
        if lacks_page {
            keeping.folder.write(&page, keeping.page.as_bytes())?;
        }
        Ok((keeping.snapshots.take_restored() || lacks_page).then_some(RESTORED))
    }

    /// Ends the watch. `window` is the measured window on CLOCK_MONOTONIC, in nanoseconds, if the
    /// trial had one; `cuts` are the stretches of it that do not count; peaks are those since
    /// `began`. `was_alone`: no other trial of this run ran beside it, so what else kept the cores
    /// busy was not ours.
    pub fn unwatch(
        &mut self,
        trial: &TrialId,
        window: Option<(u64, u64)>,
        cuts: &[(u64, u64)],
        began: u64,
        was_alone: bool,
    ) -> AttemptReadings {
        let Some(at) = self.watched.iter().position(|watch| watch.trial == *trial) else {
            return AttemptReadings::default();
        };
        let watch = self.watched.swap_remove(at);
        let Some(keeping) = &self.keeping else {
            return AttemptReadings::default();
        };
        let mut of_devices = keeping.sampler.unwatch_all(&trial.0);
        for readings in &mut of_devices {
            readings.began = began;
        }
        let cores = kiln_hardware::host::allowed_cores();
        let summaries = of_devices.iter();
        let summaries = summaries.map(|readings| summarize(readings, window, cuts, cores));
        let mut found = together(summaries.collect());
        found
            .notes
            .extend(disturbance(found.other_cpu_cores, cores).filter(|_| was_alone));
        let uuids = &watch.device_uuids;
        self.avoid_silent(uuids, &of_devices);
        found.notes.extend(self.power_notes(uuids, &of_devices));
        let readings = AttemptReadings {
            window: found,
            memory_limit_bytes: self.memory_limit_bytes(uuids),
            foreign_processes: foreign_processes(&of_devices)
                .map(|seen| keeping.privacy.foreign_processes(&seen)),
            lost: self.lost_device(uuids, &of_devices),
            idle_power_watts: self.idle_power_watts(uuids),
        };
        self.power_before.retain(|uuid, _| !uuids.contains(uuid));
        // A table that cannot be written fails again at the next tick, which can stop the run.
        let _ = self.write_changes(SnapshotMoment::End, &watch);
        readings
    }

    /// Leaves GPUs out whose driver does not answer: each of them would be waited for in vain, while
    /// other devices have nothing to do.
    fn avoid_silent(&self, uuids: &[String], of_devices: &[TrialReadings]) {
        for (uuid, readings) in uuids.iter().zip(of_devices) {
            if readings.is_silent {
                self.avoid(uuid);
            }
        }
    }

    /// Notes on the power limit and the power before the attempt.
    fn power_notes(
        &self,
        uuids: &[String],
        of_devices: &[TrialReadings],
    ) -> impl Iterator<Item = (String, String)> {
        let is_read = |readings: &TrialReadings| !readings.absent.contains_key(EVERYTHING);
        let limit = self.power_limit_note(uuids, of_devices.iter().all(is_read));
        let idle = self.idle_power_watts(uuids);
        let idle = idle.and_then(|_| idle_power_note(of_devices));
        limit.into_iter().chain(idle)
    }

    /// The first GPU that is lost, with the message.
    fn lost_device(
        &self,
        uuids: &[String],
        of_devices: &[TrialReadings],
    ) -> Option<(String, String)> {
        let lost = |(uuid, readings): (&String, &TrialReadings)| {
            let message = readings.lost.clone().or_else(|| self.lost_now(uuid))?;
            Some((uuid.clone(), message))
        };
        uuids.iter().zip(of_devices).find_map(lost)
    }

    /// Waits for snapshots that may still come, at the end of the launch, and writes them. `is_asked`:
    /// the user has asked for that end.
    ///
    /// # Errors
    /// The table cannot be written.
    pub(in crate::schedule) fn finish_snapshots(&mut self, is_asked: bool) -> io::Result<()> {
        self.snapshots.finish(&self.patience, is_asked);
        self.write_arrived()
    }

    /// The host, and the GPUs of the attempt. A MIG instance is on its GPU's page.
    fn write_changes(&mut self, moment: SnapshotMoment, watch: &AttemptWatch) -> io::Result<()> {
        let boards = self.boards(&watch.device_uuids);
        let on_cpu = boards.is_empty();
        let (silent, heard): (Vec<String>, Vec<String>) =
            boards.into_iter().partition(|board| self.is_silent(board));
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        let occasion = SnapshotOccasion {
            moment,
            trial: watch.trial.clone(),
            attempt: watch.attempt,
            run_seconds: clock::run_seconds(keeping.run_anchor_nanoseconds),
        };
        let host = match on_cpu {
            true => host_snapshot(&kiln_hardware::host::read()),
            false => host_snapshot(&self.host),
        };
        keeping.write(&host, &occasion)?;
        if let Ok(nvml) = &self.nvml {
            let nvml = Arc::clone(nvml);
            let read = move |uuid: &str| read_device(&nvml, uuid);
            // One that still comes is kept; it is not waited for.
            for uuid in &silent {
                self.snapshots.begin(uuid, &occasion, read.clone());
            }
            self.snapshots.read(heard, &occasion, &self.patience, read);
        }
        self.write_arrived()
    }

    /// Writes the changes of the GPUs whose snapshots have come.
    fn write_arrived(&mut self) -> io::Result<()> {
        let arrived = self.snapshots.take_arrived();
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        arrived.iter().try_for_each(
            |TakenSnapshot {
                 snapshot, occasion, ..
             }| keeping.write(snapshot, occasion),
        )
    }
}

impl Keeping {
    fn write(&mut self, snapshot: &Snapshot, occasion: &SnapshotOccasion) -> io::Result<()> {
        let SnapshotOccasion {
            moment,
            trial,
            attempt,
            run_seconds,
        } = occasion;
        self.snapshots
            .at(*run_seconds)
            .write_changes(snapshot, *moment, trial, *attempt)
            .map_err(io::Error::from)
    }
}

/// Returns the note on the idle power, which is the remark on the power of the samples.
/// The processes of others that were seen on the devices.
fn foreign_processes(of_devices: &[TrialReadings]) -> Option<ProcessList> {
    let seen = of_devices.iter();
    let seen = seen.filter_map(|readings| readings.foreign.clone());
    seen.reduce(|before, seen| joined(Some(before), seen))
}

fn idle_power_note(of_devices: &[TrialReadings]) -> Option<(String, String)> {
    let mut remarks = of_devices.iter().map(|readings| &readings.remarks);
    let remark = remarks.find_map(|remarks| remarks.get("power_watts"))?;
    Some(("idle_power_watts".to_owned(), (*remark).to_owned()))
}

/// Returns a note on the rate if other processes used so much of the CPU that it may be wrong.
fn disturbance(other_cpu_cores: Option<f64>, cores: Option<u64>) -> Option<(String, String)> {
    let (others, cores) = (other_cpu_cores?, cores?);
    let is_disturbed = others > BusyHost::LEAST_SHARE * cores as f64;
    let busy = BusyHost {
        other_cores: others,
        cores,
    };
    is_disturbed.then(|| (BusyHost::COLUMN.to_owned(), busy.to_string()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_launch_leaves_a_page_that_says_why_there_is_no_gpu() {
        let run = tempfile::tempdir().unwrap();
        let folder = RunFolder::at(run.path());
        let sample_interval = Duration::from_secs(60);
        let sitting = LaunchContext {
            folder: &folder,
            launch: 2,
            run_anchor_nanoseconds: 0,
            sample_interval,
            privacy: Privacy::Masked,
        };
        Instruments::open(Some(Path::new("/nonexistent")))
            .begin(sitting)
            .unwrap();
        let page = std::fs::read_to_string(run.path().join("snapshot-2.txt")).unwrap();
        assert!(
            page.starts_with("Host\n    cpu\n")
                && page.contains("No GPU can be read: no NVML at /nonexistent"),
            "{page}"
        );
    }

    #[test]
    fn a_trial_beside_others_is_marked_from_15_percent_of_the_cores() {
        assert_eq!(disturbance(Some(1.2), Some(8)), None);
        let (column, note) = disturbance(Some(1.25), Some(8)).unwrap();
        assert_eq!(
            (column.as_str(), note.as_str()),
            (
                "samples_per_second",
                "other processes kept 1.2 of 8 cores busy in the window"
            )
        );
        assert_eq!(
            (disturbance(None, Some(8)), disturbance(Some(9.0), None)),
            (None, None)
        );
    }
}
