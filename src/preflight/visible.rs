//! `CUDA_VISIBLE_DEVICES`: the GPUs that it leaves visible, and common mistakes in it. Converts its
//! text and the GPUs to one check. CUDA stops at the first entry that is not a device, and shows no
//! device if one is named twice.

use std::collections::BTreeSet;

use kiln_core::{record::Check, units::counted};

use super::{
    facts::PreflightFacts,
    gpu::{GpuFacts, MigName},
};

/// The check of `CUDA_VISIBLE_DEVICES`.
pub(crate) const NAME: &str = "visible-devices";

/// Returns one check if the variable is set or the container runtime hides all GPUs; none
/// otherwise.
pub(super) fn checks(facts: &PreflightFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(text) = &facts.environment.cuda_visible_devices {
        checks.push(visible(text, facts));
    }
    if let Some(word @ ("void" | "none")) = facts.environment.nvidia_visible_devices.as_deref()
        && facts.gpus.is_empty()
    {
        checks.push(Check::warning(
            "container-devices",
            format!("`NVIDIA_VISIBLE_DEVICES={word}`: the container was started without GPUs"),
            "start it with `--gpus all` if it should have GPUs",
        ));
    }
    checks
}

/// The indices of the GPUs that the variable leaves visible, as a whole or as a MIG instance. The
/// scheduler reads the variable by the same rules.
pub(super) fn seen(facts: &PreflightFacts) -> Vec<usize> {
    let Some(text) = &facts.environment.cuda_visible_devices else {
        return (0..facts.gpus.len()).collect();
    };
    let named: Vec<DevicePlace> = text
        .split(',')
        .map_while(|entry| find(entry.trim(), &facts.gpus).ok())
        .collect();
    if (1..named.len()).any(|at| named[..at].contains(&named[at])) {
        return Vec::new();
    }
    let places: BTreeSet<usize> = named.iter().map(|named| named.gpu).collect();
    places.into_iter().collect()
}

fn visible(text: &str, facts: &PreflightFacts) -> Check {
    let gpus = &facts.gpus;
    if gpus.is_empty() {
        return Check::ok(
            NAME,
            format!("`CUDA_VISIBLE_DEVICES={text}`, and there is no GPU to hide"),
        );
    }
    if text.trim().is_empty() {
        return Check::warning(
            NAME,
            "`CUDA_VISIBLE_DEVICES` is empty, which hides every GPU",
            "unset it to use the GPUs",
        );
    }
    if text.trim() == "-1" {
        return Check::warning(
            NAME,
            "`CUDA_VISIBLE_DEVICES=-1` hides every GPU",
            "unset it to use the GPUs",
        );
    }
    let mut seen = Vec::new();
    for entry in text.split(',') {
        match find(entry.trim(), gpus) {
            Ok(named) if seen.contains(&named) => return twice(text, &gpus[named.gpu]),
            Ok(named) => seen.push(named),
            Err(why) => return wrong(text, &why, &seen, gpus),
        }
    }
    if seen.iter().all(|named| gpus[named.gpu].lost.is_some()) {
        return unreadable(text, &seen, gpus);
    }
    leaves(text, &seen, facts)
}

/// The device that one entry of `CUDA_VISIBLE_DEVICES` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DevicePlace {
    /// Position of the GPU.
    gpu: usize,
    /// Position of the MIG instance in it, the first where a GPU with instances is named; `None` for a
    /// GPU without one.
    instance: Option<usize>,
}

fn find(entry: &str, gpus: &[GpuFacts]) -> Result<DevicePlace, String> {
    let whole = |gpu: usize| DevicePlace {
        gpu,
        instance: (!gpus[gpu].mig_instances.is_empty()).then_some(0),
    };
    if let Ok(index) = entry.parse::<u64>() {
        let last = gpus.iter().map(|gpu| gpu.index).max().unwrap_or(0);
        return gpus
            .iter()
            .position(|gpu| gpu.index == index)
            .map(whole)
            .ok_or_else(|| format!("there is no GPU {index}; the last one is GPU {last}"));
    }
    if entry.is_empty() {
        return Err("an entry is empty".to_owned());
    }
    if entry.starts_with("MIG-") {
        return mig(entry, gpus);
    }
    if entry.starts_with('-') {
        return Err(format!(
            "`{entry}` is not a device; CUDA stops reading there"
        ));
    }
    let is_uuid = entry.len() > 4 && entry.starts_with("GPU-");
    let named: Vec<usize> = (0..gpus.len())
        .filter(|at| {
            is_uuid
                && gpus[*at]
                    .uuid
                    .as_ref()
                    .is_some_and(|uuid| uuid.starts_with(entry))
        })
        .collect();
    match named.as_slice() {
        [one] => Ok(whole(*one)),
        [] if is_uuid => Err(format!("no GPU here has the UUID {entry}")),
        [] => Err(format!(
            "`{entry}` is not an index or a UUID (`GPU-…` or `MIG-…`)"
        )),
        _ => Err(format!("`{entry}` is the beginning of several UUIDs")),
    }
}

/// `MIG-<uuid>`, or the older `MIG-GPU-<uuid of the GPU>/<instance>/<instance>`.
fn mig(entry: &str, gpus: &[GpuFacts]) -> Result<DevicePlace, String> {
    let is_it = |gpu: &GpuFacts, instance: &MigName| {
        let older = gpu
            .uuid
            .as_ref()
            .zip(instance.place)
            .map(|(board, (gpu, compute))| format!("MIG-{board}/{gpu}/{compute}"));
        instance.uuid == entry || older.is_some_and(|older| older == entry)
    };
    let found = gpus.iter().enumerate().find_map(|(gpu, facts)| {
        Some((
            gpu,
            facts
                .mig_instances
                .iter()
                .position(|instance| is_it(facts, instance))?,
        ))
    });
    if let Some((gpu, instance)) = found {
        return Ok(DevicePlace {
            gpu,
            instance: Some(instance),
        });
    }
    let parent = entry
        .strip_prefix("MIG-")
        .filter(|rest| rest.starts_with("GPU-"))
        .and_then(|rest| rest.split('/').next());
    let owner = parent.and_then(|parent| {
        gpus.iter()
            .position(|gpu| gpu.uuid.as_deref() == Some(parent))
    });
    match (owner, parent) {
        (Some(at), _) if gpus[at].is_mig.value() == Some(&true) => {
            Err(format!("{} has no instance {entry}", gpus[at].words()))
        }
        (Some(at), _) => Err(format!(
            "{entry} is an instance of {}, which is not in MIG mode",
            gpus[at].words()
        )),
        (None, Some(_)) => Err(format!("{entry} is an instance of a GPU that is not here")),
        (None, None) => Err(format!(
            "no GPU here has the MIG instance {entry}; instances get new UUIDs when they are \
             recreated"
        )),
    }
}

fn twice(text: &str, gpu: &GpuFacts) -> Check {
    Check::problem(
        NAME,
        format!(
            "`CUDA_VISIBLE_DEVICES={text}` names {} twice; CUDA then shows no device at all",
            gpu.words()
        ),
        "name each GPU once",
    )
}

fn wrong(text: &str, why: &str, seen: &[DevicePlace], gpus: &[GpuFacts]) -> Check {
    let left = match seen {
        [] => "no GPU is visible".to_owned(),
        some => format!(
            "only {} is visible",
            some.iter()
                .map(|named| gpus[named.gpu].words())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let names = |gpu: &GpuFacts| {
        let own = format!(
            "{} = {}",
            gpu.index,
            gpu.uuid.as_deref().unwrap_or("unknown")
        );
        let instances: Vec<&str> = gpu
            .mig_instances
            .iter()
            .map(|instance| instance.uuid.as_str())
            .collect();
        if instances.is_empty() {
            own
        } else {
            format!("{own} with {}", instances.join(" and "))
        }
    };
    let have: Vec<String> = gpus.iter().map(names).collect();
    Check::problem(
        NAME,
        format!("`CUDA_VISIBLE_DEVICES={text}`: {why}; {left}"),
        format!("available devices: {}", have.join(", ")),
    )
}

fn unreadable(text: &str, seen: &[DevicePlace], gpus: &[GpuFacts]) -> Check {
    let named = seen.iter().filter_map(|named| {
        let gpu = &gpus[named.gpu];
        Some(format!("{}: {}", gpu.words(), gpu.lost.as_ref()?))
    });
    let others = gpus.iter().filter(|gpu| gpu.lost.is_none());
    let others: Vec<String> = others
        .filter_map(|gpu| Some(format!("{} = {}", gpu.index, gpu.uuid.as_ref()?)))
        .collect();
    let remedy = match others.as_slice() {
        [] => "see the checks of each GPU".to_owned(),
        some => format!("name others by UUID: {}", some.join(", ")),
    };
    Check::problem(
        NAME,
        format!(
            "`CUDA_VISIBLE_DEVICES={text}` names only GPUs that cannot be read ({})",
            named.collect::<Vec<_>>().join("; ")
        ),
        remedy,
    )
}

/// The devices that are left; GPUs that cannot be read do not count.
fn leaves(text: &str, named: &[DevicePlace], facts: &PreflightFacts) -> Check {
    let is_readable = |named: &&DevicePlace| facts.gpus[named.gpu].lost.is_none();
    let seen: Vec<&DevicePlace> = named.iter().filter(is_readable).collect();
    let instances = seen.iter().filter(|named| named.instance.is_some()).count();
    let wholes = format!("{} of {} GPUs", seen.len() - instances, facts.gpus.len());
    let left = match (instances, seen.len() - instances) {
        (0, _) => wholes,
        (some, 0) => counted(some, "MIG instance"),
        (some, _) => format!("{wholes} and {}", counted(some, "MIG instance")),
    };
    let shown = format!("`CUDA_VISIBLE_DEVICES={text}` leaves {left}");
    if text.contains(' ') {
        return Check::warning(
            NAME,
            format!("{shown}, but has spaces in it, which not every program accepts"),
            format!("write `{}`", text.replace(' ', "")),
        );
    }
    let has_index = text.split(',').any(|entry| entry.parse::<u64>().is_ok());
    let names = facts.gpus.iter().filter_map(|gpu| gpu.name.value());
    let names: Vec<&String> = names.collect();
    let is_mixed = names.windows(2).any(|pair| pair[0] != pair[1]);
    let is_by_bus = facts.environment.cuda_device_order.as_deref() == Some("PCI_BUS_ID");
    if has_index && is_mixed && !is_by_bus {
        return Check::warning(
            NAME,
            format!(
                "{shown}; kiln numbers GPUs as nvidia-smi does, CUDA puts the fastest first, and \
                 these GPUs differ"
            ),
            "name GPUs by UUID, or set `CUDA_DEVICE_ORDER=PCI_BUS_ID`",
        );
    }
    Check::ok(NAME, shown)
}

/// Whether `CUDA_VISIBLE_DEVICES` is empty or -1, which hides all GPUs.
pub(crate) fn is_hidden_on_purpose(visible: Option<&str>) -> bool {
    visible
        .map(str::trim)
        .is_some_and(|text| text.is_empty() || text == "-1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::{gpu::tests::healthy, tests::facts};
    use kiln_core::record::CheckState;
    use kiln_hardware::{Absence, Reading};

    fn with(text: &str, change: impl FnOnce(&mut PreflightFacts)) -> (CheckState, String) {
        let mut facts = facts();
        facts.gpus = vec![healthy(0), healthy(1)];
        facts.environment.cuda_visible_devices = Some(text.to_owned());
        change(&mut facts);
        let check = checks(&facts).remove(0);
        (check.state, check.evidence)
    }

    #[test]
    fn each_mistake_is_named() {
        let cases = [
            ("", CheckState::Warning, "is empty, which hides every GPU"),
            ("-1", CheckState::Warning, "hides every GPU"),
            (
                "2",
                CheckState::Problem,
                "there is no GPU 2; the last one is GPU 1; no GPU is visible",
            ),
            (
                "0,7",
                CheckState::Problem,
                "there is no GPU 7; the last one is GPU 1; only GPU 0 (NVIDIA H200) is visible",
            ),
            ("0,-1,1", CheckState::Problem, "CUDA stops reading there"),
            (
                "0,0",
                CheckState::Problem,
                "names GPU 0 (NVIDIA H200) twice",
            ),
            ("0,GPU-0aaa", CheckState::Problem, "twice"),
            ("0,,1", CheckState::Problem, "an entry is empty"),
            (
                "GPU-77",
                CheckState::Problem,
                "no GPU here has the UUID GPU-77",
            ),
            (
                "cuda:0",
                CheckState::Problem,
                "`cuda:0` is not an index or a UUID",
            ),
            ("GPU-", CheckState::Problem, "is not an index or a UUID"),
            (
                "MIG-1b2c",
                CheckState::Problem,
                "no GPU here has the MIG instance MIG-1b2c",
            ),
            (
                "MIG-GPU-0aaaaaaa-0000-0000-0000-000000000000/1/0",
                CheckState::Problem,
                "not in MIG mode",
            ),
            (
                "MIG-GPU-9/1/0",
                CheckState::Problem,
                "a GPU that is not here",
            ),
            ("0, 1", CheckState::Warning, "spaces"),
            ("0,1", CheckState::Ok, "leaves 2 of 2 GPUs"),
            ("GPU-1aaaaaaa", CheckState::Ok, "leaves 1 of 2 GPUs"),
        ];
        for (text, state, words) in cases {
            let (found, evidence) = with(text, |_| {});
            assert_eq!(found, state, "{text}: {evidence}");
            assert!(evidence.contains(words), "{text}: {evidence}");
        }
    }

    #[test]
    fn a_gpu_that_is_named_twice_hides_all() {
        let of = |text: &str| {
            let mut facts = facts();
            facts.gpus = vec![healthy(0), healthy(1)];
            facts.environment.cuda_visible_devices = Some(text.to_owned());
            seen(&facts)
        };
        assert_eq!(of("1,0"), [0, 1]);
        assert_eq!(of("1,5,0"), [1]);
        assert_eq!(of("1,0,GPU-1aaaaaaa"), [0; 0]);
        assert_eq!(of("0,5,0"), [0]);
    }

    #[test]
    fn instances_of_a_gpu_in_mig_mode_are_found() {
        let mig = |facts: &mut PreflightFacts| {
            facts.gpus[1].is_mig = Reading::Value(true);
            let instance = |number: u64| MigName {
                uuid: format!("MIG-{number}"),
                place: Some((number, 0)),
            };
            facts.gpus[1].mig_instances = vec![instance(5), instance(6)];
        };
        assert_eq!(
            with("MIG-5", mig),
            (
                CheckState::Ok,
                "`CUDA_VISIBLE_DEVICES=MIG-5` leaves 1 MIG instance".to_owned()
            )
        );
        assert_eq!(
            with("MIG-5,MIG-6", mig),
            (
                CheckState::Ok,
                "`CUDA_VISIBLE_DEVICES=MIG-5,MIG-6` leaves 2 MIG instances".to_owned()
            )
        );
        assert_eq!(
            with("0,MIG-6", mig),
            (
                CheckState::Ok,
                "`CUDA_VISIBLE_DEVICES=0,MIG-6` leaves 1 of 2 GPUs and 1 MIG instance".to_owned()
            )
        );
        // CUDA takes the first instance of a GPU that has some.
        let (_, evidence) = with("1", mig);
        assert!(evidence.ends_with("leaves 1 MIG instance"), "{evidence}");
        let older = "MIG-GPU-1aaaaaaa-0000-0000-0000-000000000000";
        assert_eq!(with(&format!("{older}/6/0"), mig).0, CheckState::Ok);
        for (text, words) in [
            (format!("{older}/6/1"), "has no instance"),
            (format!("MIG-6,{older}/6/0"), "twice"),
            ("1,MIG-5".into(), "twice"),
            ("MIG-7".into(), "no GPU here has"),
        ] {
            let (state, evidence) = with(&text, mig);
            assert!(
                state == CheckState::Problem && evidence.contains(words),
                "{text}: {evidence}"
            );
        }
    }

    #[test]
    fn indices_of_unlike_gpus_are_ambiguous_until_the_order_is_set() {
        let unlike =
            |facts: &mut PreflightFacts| facts.gpus[1].name = Reading::Value("NVIDIA T4".into());
        assert_eq!(with("1", unlike).0, CheckState::Warning);
        let ordered = |facts: &mut PreflightFacts| {
            unlike(facts);
            facts.environment.cuda_device_order = Some("PCI_BUS_ID".into());
        };
        assert_eq!(with("1", ordered).0, CheckState::Ok);
        assert_eq!(with("GPU-1aaaaaaa", unlike).0, CheckState::Ok);
    }

    #[test]
    fn gpus_that_cannot_be_read_are_not_counted_and_alone_are_a_problem() {
        let lost = |facts: &mut PreflightFacts| {
            facts.gpus[0].lost = Some(Absence::Lost);
            facts.gpus[0].name = Reading::Absent(Absence::Lost);
        };
        let (state, evidence) = with("0", lost);
        assert_eq!(state, CheckState::Problem, "{evidence}");
        assert!(
            evidence.contains("names only GPUs that cannot be read (GPU 0: "),
            "{evidence}"
        );
        assert_eq!(
            with("0,1", lost),
            (
                CheckState::Ok,
                "`CUDA_VISIBLE_DEVICES=0,1` leaves 1 of 2 GPUs".to_owned()
            ),
            "a GPU without a name does not differ from the others"
        );
    }

    #[test]
    fn without_a_gpu_there_is_nothing_to_hide_and_a_void_container_says_so() {
        assert_eq!(with("5", |facts| facts.gpus.clear()).0, CheckState::Ok);
        let mut facts = facts();
        facts.gpus.clear();
        facts.environment.nvidia_visible_devices = Some("void".into());
        assert_eq!(checks(&facts)[0].name, "container-devices");
    }
}
