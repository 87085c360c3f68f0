//! Says when devices will have little to do, because each block of trials stays on one of them. Pure.

use std::collections::HashMap;

use kiln_core::{
    plan::Trial,
    spec::{DeviceName, Devices, Experiment, RunPlace, Sweep},
    units::{WholePercent, counted},
};

use super::devices::DeviceRequest;

/// Least share of the devices' time that is worth a line.
const WORTH_SAYING: f64 = 0.25;

/// The facts of a launch before it has devices.
pub struct IdleForecast<'a> {
    pub experiment: &'a Experiment,
    /// The whole plan.
    pub trials: &'a [Trial],
    /// Whether the run has a final outcome; then it keeps its sweep.
    pub has_final: bool,
    /// The number of GPUs that `run.devices: all` stands for; 0 if there are none. Called only where
    /// it matters.
    pub gpus: &'a dyn Fn() -> usize,
}

impl IdleForecast<'_> {
    /// Says that the devices of the trials that are to run will have little to do.
    pub fn lines<'t>(&self, left: impl IntoIterator<Item = &'t Trial>) -> Vec<String> {
        let keeps_blocks = keeps_blocks(self.trials);
        if self.experiment.run.on != RunPlace::Here || self.has_final || !keeps_blocks {
            return Vec::new();
        }
        let mut requests: Vec<(DeviceRequest, Vec<&Trial>)> = Vec::new();
        for trial in left {
            let wanted = DeviceRequest::of(trial);
            match requests.iter_mut().find(|(known, _)| *known == wanted) {
                Some((_, alike)) => alike.push(trial),
                None => requests.push((wanted, vec![trial])),
            }
        }
        let of = |(wanted, trials): &(DeviceRequest, Vec<&Trial>)| {
            let slots = self.devices(wanted)? / wanted.each.max(1) as usize;
            idle_devices(&self.experiment.sweep, trials, slots, keeps_blocks)
        };
        requests.iter().filter_map(of).collect()
    }

    /// The number of devices that a request stands for; `None` where one is enough.
    fn devices(&self, wanted: &DeviceRequest) -> Option<usize> {
        match &wanted.devices {
            Devices::List(ids) => Some(ids.len()),
            Devices::Named(DeviceName::All) => Some((self.gpus)()),
            Devices::Named(DeviceName::Auto | DeviceName::Cpu) => None,
        }
    }
}

/// Whether a plan has more than one block, each of which stays on one slot.
pub(super) fn keeps_blocks(trials: &[Trial]) -> bool {
    trials.iter().any(|trial| trial.block > 1)
}

/// Says that the slots of these trials will have little to do, and what to change. `None` if little
/// time is lost, or if it is not lost to the blocks. `keeps_blocks`: whether the plan has several;
/// trials of a plan with one use every slot.
pub(super) fn idle_devices(
    sweep: &Sweep,
    trials: &[&Trial],
    slots: usize,
    keeps_blocks: bool,
) -> Option<String> {
    let (blocks, first) = (block_sizes(trials), trials.first()?);
    if !keeps_blocks || slots < 2 {
        return None;
    }
    let most = most_of_a_slot(&blocks, slots);
    let idle = 1.0 - trials.len() as f64 / (slots * most) as f64;
    if most <= trials.len().div_ceil(slots) || idle < WORTH_SAYING {
        return None;
    }
    let (all, one) = match sweep.together.is_empty() {
        true => (counted(blocks.len(), "round") + " of repeats", "round"),
        false => (counted(blocks.len(), "block"), "block"),
    };
    let (places, place) = match first.devices_per_trial {
        0 | 1 => (counted(slots, "device"), "one device"),
        each => (format!("{slots} groups of {each} devices"), "one group"),
    };
    let lost = match slots.saturating_sub(blocks.len()) {
        0 => format!("they are idle about {} of the time", WholePercent(idle)),
        1 => "1 has no work".to_owned(),
        unused => format!("{unused} have no work"),
    };
    Some(format!(
        "{all} on {places}: {lost}, because each {one} stays on {place}; {}",
        remedy(sweep, trials)
    ))
}

/// The number of trials of each block.
fn block_sizes(trials: &[&Trial]) -> Vec<usize> {
    let mut places: HashMap<u64, usize> = HashMap::new();
    let mut sizes: Vec<usize> = Vec::new();
    for trial in trials {
        let place = *places.entry(trial.block).or_insert(sizes.len());
        match sizes.get_mut(place) {
            Some(size) => *size += 1,
            None => sizes.push(1),
        }
    }
    sizes
}

/// Number of trials of the slot with the most, if each block goes to the slot with the fewest.
fn most_of_a_slot(blocks: &[usize], slots: usize) -> usize {
    let mut loads = vec![0; slots];
    for size in blocks {
        if let Some(least) = loads.iter_mut().min() {
            *least += *size;
        }
    }
    loads.into_iter().max().unwrap_or(0)
}

fn remedy(sweep: &Sweep, trials: &[&Trial]) -> &'static str {
    let varying = varying_axes(trials);
    let may_be_together = |key: &&str| !key.starts_with("run.devices");
    let is_together = |key: &&&str| sweep.together.iter().any(|named| named == **key);
    let is_command = trials.iter().any(|trial| trial.model.command().is_some());
    if sweep.together.is_empty() && varying.len() > 1 && varying.iter().any(may_be_together) {
        "`sweep.together: [AXIS, …]` with some of the axes makes smaller blocks, which more devices \
         share"
    } else if varying.iter().filter(is_together).count() > 1 {
        "fewer axes in `sweep.together` make smaller blocks, which more devices share"
    } else if sweep.together.is_empty() && !is_command {
        "`train.seed: […]` as an axis in place of `sweep.repeats` lets each trial run on any device, \
         and makes each seed a point of its own"
    } else {
        "fewer devices in `run.devices` leave the others free"
    }
}

/// The axes that have more than one value in these trials.
fn varying_axes<'t>(trials: &[&'t Trial]) -> Vec<&'t str> {
    let Some(first) = trials.first() else {
        return Vec::new();
    };
    let varies = |axis: usize| {
        let mut all = trials.iter();
        all.any(|trial| trial.axes.get(axis) != first.axes.get(axis))
    };
    let axes = first.axes.iter().enumerate();
    axes.filter(|(axis, _)| varies(*axis))
        .map(|(_, (key, _))| key.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use kiln_core::plan::expand;

    use super::*;

    const TRAINED: &str = "model: {kind: mlp}, data: {kind: generated}, train: {steps: 10}";
    const ONE_AXIS: &str = "train.batch_size: [1, 2, 3, 4, 5, 6, 7, 8]";
    const TWO_AXES: &str = "train.batch_size: [1, 2, 3, 4], model.hidden: [16, 32]";

    fn said(model: &str, sweep: &str, slots: usize) -> Option<String> {
        let text = format!("{{kiln: 1, name: x, {model}, sweep: {{{sweep}}}}}");
        let experiment: Experiment = serde_yaml::from_str(&text).unwrap();
        let plan = expand(&experiment, &|_| None).unwrap().trials;
        let trials: Vec<&Trial> = plan.iter().collect();
        idle_devices(&experiment.sweep, &trials, slots, keeps_blocks(&plan))
    }

    #[test]
    fn a_quarter_of_the_time_that_blocks_leave_idle_is_said() {
        let rounds = |grid: &str, repeats: usize| format!("grid: {{{grid}}}, repeats: {repeats}");
        let begins = |sweep: &str, slots: usize| {
            let said = said(TRAINED, sweep, slots)?;
            said.split_once(", because")
                .map(|(begin, _)| begin.to_owned())
        };
        for (sweep, slots, wanted) in [
            (
                rounds(ONE_AXIS, 3),
                8,
                Some("3 rounds of repeats on 8 devices: 5 have no work"),
            ),
            (
                rounds(ONE_AXIS, 3),
                4,
                Some("3 rounds of repeats on 4 devices: 1 has no work"),
            ),
            (
                rounds(ONE_AXIS, 10),
                8,
                Some("10 rounds of repeats on 8 devices: they are idle about 38 % of the time"),
            ),
            // An eighth.
            (rounds(ONE_AXIS, 7), 8, None),
            (rounds(ONE_AXIS, 8), 8, None),
            (rounds(ONE_AXIS, 3), 1, None),
            // A single round uses every device.
            (rounds(ONE_AXIS, 1), 8, None),
            // There is no more to share.
            (rounds("train.batch_size: [4]", 3), 8, None),
        ] {
            assert_eq!(
                begins(&sweep, slots).as_deref(),
                wanted,
                "{sweep} on {slots}"
            );
        }
    }

    #[test]
    fn the_remedy_is_one_that_helps() {
        let command = "model: {kind: command, argv: [x, '{n}'], values: {n: 1}}";
        for (model, sweep, wanted) in [
            (
                TRAINED,
                format!("grid: {{{TWO_AXES}}}, repeats: 3"),
                "each round stays on one device; `sweep.together: [AXIS, …]` with some",
            ),
            (
                TRAINED,
                format!("grid: {{{ONE_AXIS}, model.hidden: [16]}}, repeats: 3"),
                "each round stays on one device; `train.seed: […]` as an axis",
            ),
            (
                TRAINED,
                format!(
                    "grid: {{{TWO_AXES}}}, repeats: 3, together: [train.batch_size, model.hidden]"
                ),
                "each block stays on one device; fewer axes in `sweep.together`",
            ),
            (
                TRAINED,
                format!("grid: {{{ONE_AXIS}}}, repeats: 3, together: [train.batch_size]"),
                "each block stays on one device; fewer devices in `run.devices`",
            ),
            (
                command,
                "grid: {model.values.n: [1, 2, 3]}, repeats: 3".to_owned(),
                "each round stays on one device; fewer devices in `run.devices`",
            ),
        ] {
            let said = said(model, &sweep, 8).unwrap();
            assert!(said.contains(wanted), "{said}");
        }
        // With one of the axes fewer devices are idle.
        let smaller = format!("grid: {{{TWO_AXES}}}, repeats: 3, together: [train.batch_size]");
        let said = said(TRAINED, &smaller, 8).unwrap();
        assert!(
            said.starts_with("6 blocks on 8 devices: 2 have no work"),
            "{said}"
        );
    }

    /// The lines of a plan of two rounds, of which these are left, on a machine with 4 GPUs.
    fn forecast(run: &str, has_final: bool, is_left: fn(&Trial) -> bool) -> Vec<String> {
        let text = format!(
            "{{kiln: 1, name: x, {TRAINED}, sweep: {{grid: {{{TWO_AXES}}}, repeats: 2}}, run: \
             {{{run}}}}}"
        );
        let experiment: Experiment = serde_yaml::from_str(&text).unwrap();
        let trials = expand(&experiment, &|_| None).unwrap().trials;
        let forecast = IdleForecast {
            experiment: &experiment,
            trials: &trials,
            has_final,
            gpus: &|| 4,
        };
        forecast.lines(trials.iter().filter(|trial| is_left(trial)))
    }

    #[test]
    fn trials_of_one_round_leave_the_other_devices_without_work() {
        for run in ["devices: [0, 1, 2, 3]", "devices: all"] {
            let [line] =
                <[String; 1]>::try_from(forecast(run, false, |trial| trial.block == 1)).unwrap();
            assert!(
                line.starts_with("1 round of repeats on 4 devices: 3 have no work"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_plan_knows_the_devices_of_its_file() {
        let of = |run: &str, has_final: bool| forecast(run, has_final, |_| true);
        let all = of("devices: all", false);
        assert!(
            all.len() == 1
                && all[0].starts_with("2 rounds of repeats on 4 devices: 2 have no work"),
            "{all:?}"
        );
        let said = |run: &str| of(run, false);
        assert_eq!(of("devices: [0, 1, 2, 3]", true), Vec::<String>::new());
        let [line] = <[String; 1]>::try_from(said("devices: [0, 1, 2, 3]")).unwrap();
        assert!(
            line.starts_with("2 rounds of repeats on 4 devices: 2 have no work"),
            "{line}"
        );
        let [line] =
            <[String; 1]>::try_from(said("devices: [0, 1, 2, 3, 4, 5], devices_per_trial: 2"))
                .unwrap();
        assert!(
            line.contains("on 3 groups of 2 devices: 1 has no work"),
            "{line}"
        );
        for run in [
            "devices: auto",
            "devices: [0, 1]",
            "devices: [0, 1, 2, 3], on: workers",
        ] {
            assert_eq!(said(run), Vec::<String>::new(), "{run}");
        }
    }
}
