//! Power of a trial's GPUs: idle power and power limit before it starts, and the limit at its end.

use kiln_hardware::{Reading, lost, power_limit_watts, power_now_watts};

use super::{Instruments, LeasedGpu};

/// Power of a GPU just before a trial starts on it.
#[derive(Clone, Debug)]
pub(super) struct PowerBefore {
    idle_watts: Option<f64>,
    limit_watts: Reading<f64>,
    /// NVML's message if it is lost.
    lost: Option<String>,
}

impl Instruments {
    /// A trial is about to start on this GPU: reads its power, which is that of an idle GPU, and its
    /// power limit, and returns the limit.
    pub(in crate::schedule) fn read_power(&mut self, gpu: &LeasedGpu) -> Option<f64> {
        if self.nvml.is_err() {
            return gpu.power_limit_watts;
        }
        let read = self.ask_running(&gpu.uuid, |nvml, uuid| {
            let idle_watts = power_now_watts(nvml, uuid);
            let limit_watts = power_limit_watts(nvml, uuid);
            let lost = match limit_watts.value() {
                Some(_) => None,
                None => lost(nvml, uuid),
            };
            PowerBefore {
                idle_watts,
                limit_watts,
                lost,
            }
        });
        let power = read.unwrap_or_else(|why| PowerBefore {
            idle_watts: None,
            limit_watts: Reading::Absent(why),
            lost: None,
        });
        let limit_watts = power.limit_watts.value().copied();
        self.power_before.insert(gpu.uuid.clone(), power);
        limit_watts
    }

    /// Power of these GPUs together before their trial; `None` on the CPU, and if that of one is
    /// unknown.
    pub(super) fn idle_power_watts(&self, uuids: &[String]) -> Option<f64> {
        let idle = |uuid: &String| self.power_before.get(uuid)?.idle_watts;
        let watts: Vec<f64> = uuids.iter().map(idle).collect::<Option<_>>()?;
        (!watts.is_empty()).then(|| watts.iter().sum())
    }

    /// NVML's message if the GPU was lost when [`Self::read_power`] read it.
    pub(in crate::schedule) fn lost_before(&self, uuid: &str) -> Option<String> {
        self.power_before.get(uuid)?.lost.clone()
    }

    /// Why the power limit of an attempt that has ended is unknown, or how it has changed since the
    /// attempt's start, on the first of its GPUs where either is so. A driver that does not answer
    /// now is not asked again: it would be waited for in vain.
    pub(super) fn power_limit_note(
        &self,
        uuids: &[String],
        answers: bool,
    ) -> Option<(String, String)> {
        let remark = |uuid: &String| self.limit_remark(uuid, answers);
        Some((
            "power_limit_watts".to_owned(),
            uuids.iter().find_map(remark)?,
        ))
    }

    fn limit_remark(&self, uuid: &str, answers: bool) -> Option<String> {
        match &self.power_before.get(uuid)?.limit_watts {
            Reading::Absent(absence) => Some(absence.to_string()),
            Reading::Value(_) if !answers => None,
            Reading::Value(before) => {
                let now = self.ask_ended(uuid, power_limit_watts)?.into_value()?;
                limit_change(*before, now)
            }
        }
    }
}

/// Says that the limit has changed; less than half a watt is rounding.
fn limit_change(before: f64, now: f64) -> Option<String> {
    let has_changed = (now - before).abs() >= 0.5;
    has_changed.then(|| format!("the limit changed from {before} W to {now} W during the attempt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_changed_during_the_attempt_is_told() {
        assert_eq!(limit_change(400.0, 400.0), None);
        assert_eq!(
            limit_change(400.0, 200.0).as_deref(),
            Some("the limit changed from 400 W to 200 W during the attempt")
        );
    }
}
