use super::*;
use crate::schedule::instruments::{GpuProcess, InstanceFacts};

fn gpus() -> Vec<LeasedGpu> {
    let gpu = |index: u32| LeasedGpu {
        index,
        uuid: format!("GPU-{index}a"),
        name: "H200".into(),
        memory_total_bytes: Some(1 << 37),
        ..LeasedGpu::default()
    };
    vec![gpu(0), gpu(1), gpu(2)]
}

fn chosen(wanted: &str, visible: Option<&str>, devices: &[LeasedGpu]) -> Result<Vec<u32>, String> {
    let wanted: Devices = serde_yaml::from_str(wanted).unwrap();
    let offer = DeviceOffer {
        devices,
        unusable: &[],
        absence: Some("no NVIDIA driver found"),
        visible,
    };
    choose(&wanted, Engine::Libtorch, offer).map(|choice| match choice {
        DeviceChoice::Cpu { .. } => Vec::new(),
        DeviceChoice::FirstIdle(found) | DeviceChoice::All(found) => {
            found.iter().map(|device| device.index).collect()
        }
    })
}

#[test]
fn devices_are_chosen_by_name_index_and_uuid() {
    assert_eq!(chosen("auto", None, &gpus()), Ok(vec![0, 1, 2]));
    assert_eq!(chosen("all", None, &gpus()), Ok(vec![0, 1, 2]));
    assert_eq!(chosen("cpu", None, &gpus()), Ok(vec![]));
    assert_eq!(chosen("[2, GPU-0a]", None, &gpus()), Ok(vec![2, 0]));
    assert!(
        chosen("[7]", None, &gpus())
            .unwrap_err()
            .contains("there are 0 (GPU-0a), 1")
    );
}

#[test]
fn two_names_of_one_device_are_refused() {
    assert_eq!(
        chosen("[0, GPU-0a]", None, &gpus()),
        Err("`run.devices` names GPU 0 (GPU-0a) twice; name each device once".to_owned())
    );
    let refused = uuids("[MIG-2b, 0, MIG-1b]", None).unwrap_err();
    assert!(refused.contains("names GPU 0 (MIG-1b) twice"), "{refused}");
}

#[test]
fn several_devices_per_trial_are_taken_in_whole_trials_or_refused() {
    let chosen = |wanted: &str, each: u64, devices: &[LeasedGpu]| {
        let wanted = DeviceRequest {
            devices: serde_yaml::from_str(wanted).unwrap(),
            engine: Engine::Libtorch,
            each,
        };
        choose_each(
            &wanted,
            DeviceOffer {
                devices,
                unusable: &[],
                absence: Some("no NVIDIA driver found"),
                visible: None,
            },
        )
    };
    assert_eq!(
        chosen("all", 2, &gpus()),
        Ok(DeviceChoice::All(gpus()[..2].to_vec())),
        "the third fills no trial"
    );
    assert_eq!(chosen("all", 3, &gpus()), Ok(DeviceChoice::All(gpus())));
    assert_eq!(
        chosen("auto", 2, &gpus()),
        Ok(DeviceChoice::FirstIdle(gpus()))
    );
    assert!(matches!(
        chosen("auto", 2, &[]),
        Ok(DeviceChoice::Cpu { no_gpu: Some(_) })
    ));
    for wanted in ["all", "auto"] {
        let refused = chosen(wanted, 4, &gpus()).unwrap_err();
        assert!(
            refused.starts_with(
                "`run.devices_per_trial` is 4, and a trial may use 3 GPUs: 0 (GPU-0a), 1"
            ),
            "{refused}"
        );
    }
}

#[test]
fn the_environment_restricts_what_may_be_chosen() {
    assert_eq!(chosen("all", Some("2,1"), &gpus()), Ok(vec![2, 1]));
    assert_eq!(chosen("all", Some("GPU-1,-1,0"), &gpus()), Ok(vec![1]));
    assert!(chosen("[0]", Some("1"), &gpus()).is_err());
    assert!(
        chosen("all", Some(""), &gpus())
            .unwrap_err()
            .contains("hides every GPU")
    );
}

/// GPU 0 has two MIG instances, GPU 1 has none.
fn one_in_pieces() -> Vec<LeasedGpu> {
    let instance = |id: u32| LeasedGpu {
        uuid: format!("MIG-{id}b"),
        instance: Some(InstanceFacts {
            board_uuid: "GPU-0a".into(),
            gpu_instance: id,
            compute_instance: 0,
        }),
        ..gpus()[0].clone()
    };
    vec![instance(1), instance(2), gpus()[1].clone()]
}

fn uuids(wanted: &str, visible: Option<&str>) -> Result<Vec<String>, String> {
    let (wanted, devices): (Devices, _) = (serde_yaml::from_str(wanted).unwrap(), one_in_pieces());
    let offer = DeviceOffer {
        devices: &devices,
        unusable: &[],
        absence: None,
        visible,
    };
    choose(&wanted, Engine::Libtorch, offer).map(|choice| match choice {
        DeviceChoice::Cpu { no_gpu } => no_gpu.into_iter().collect(),
        DeviceChoice::FirstIdle(found) | DeviceChoice::All(found) => {
            found.into_iter().map(|device| device.uuid).collect()
        }
    })
}

#[test]
fn a_mig_instance_is_a_device_by_either_of_its_names_and_by_those_of_its_gpu() {
    let of = |wanted: &str, visible: Option<&str>| uuids(wanted, visible).unwrap();
    assert_eq!(of("all", None), ["MIG-1b", "MIG-2b", "GPU-1a"]);
    assert_eq!(of("[MIG-2b]", None), ["MIG-2b"]);
    assert_eq!(of("[MIG-GPU-0a/2/0, 1]", None), ["MIG-2b", "GPU-1a"]);
    assert_eq!(
        (of("[0]", None), of("[GPU-0a]", None)),
        (vec!["MIG-1b".to_owned()], vec!["MIG-1b".to_owned()]),
        "as CUDA takes the first one"
    );
    assert_eq!(of("auto", Some("MIG-2b")), ["MIG-2b"]);
    assert_eq!(of("all", Some("MIG-2b,MIG-1b")), ["MIG-2b", "MIG-1b"]);
    assert_eq!(of("all", Some("MIG-GPU-0a/2/0")), ["MIG-2b"]);
    assert_eq!(of("all", Some("0,GPU-1")), ["MIG-1b", "GPU-1a"]);
    assert_eq!(
        of("all", Some("GPU-0,MIG-9,1")),
        ["MIG-1b"],
        "it ends at what is no device"
    );
}

#[test]
fn an_instance_that_is_not_there_is_refused_with_those_that_are() {
    let refused = uuids("[MIG-7]", None).unwrap_err();
    assert_eq!(
        refused,
        "`run.devices` names MIG-7: there are 0 (MIG-1b), 0 (MIG-2b), 1 (GPU-1a)"
    );
    let refused = uuids("[MIG-1b]", Some("MIG-2b")).unwrap_err();
    assert_eq!(
        refused, "`run.devices` names MIG-1b: there are 0 (MIG-2b)",
        "hidden ones are not there"
    );
    for wrong in ["MIG-7", "MIG-1", "MIG-GPU-0a/1/1", "MIG-GPU-9/1/0", "MIG-"] {
        let refused = uuids("all", Some(wrong)).unwrap_err();
        assert!(
            refused.contains("names none of the devices here; MIG instances are MIG-1b, MIG-2b"),
            "{wrong}: {refused}"
        );
    }
}

#[test]
fn instances_are_not_joined_for_one_trial() {
    let chosen = |visible: &str| {
        let devices = one_in_pieces();
        let offer = DeviceOffer {
            devices: &devices,
            unusable: &[],
            absence: None,
            visible: Some(visible),
        };
        let two_of_all = DeviceRequest {
            devices: Devices::Named(DeviceName::All),
            engine: Engine::Libtorch,
            each: 2,
        };
        choose_each(&two_of_all, offer)
    };
    let refused = chosen("MIG-1b,MIG-2b").unwrap_err();
    assert!(
        refused.contains("only one MIG instance to a process, and MIG-1b is one"),
        "{refused}"
    );
    assert!(
        chosen("1")
            .unwrap_err()
            .contains("a trial may use 1 GPU: 1 (GPU-1a)")
    );
}

#[test]
fn a_machine_without_a_gpu_falls_back_aloud_and_only_for_auto() {
    let offer = DeviceOffer {
        devices: &[],
        unusable: &[],
        absence: Some("no NVIDIA driver found"),
        visible: None,
    };
    let auto = choose(&Devices::Named(DeviceName::Auto), Engine::Libtorch, offer);
    assert_eq!(
        auto,
        Ok(DeviceChoice::Cpu {
            no_gpu: Some("no NVIDIA driver found".into())
        })
    );
    assert_eq!(
        choose(&Devices::Named(DeviceName::Auto), Engine::Flex, offer),
        Ok(DeviceChoice::Cpu { no_gpu: None })
    );
    assert!(
        chosen("all", None, &[])
            .unwrap_err()
            .contains("no NVIDIA driver found")
    );
}

#[test]
fn a_gpu_that_cannot_be_used_is_named_with_its_reason() {
    let unusable = [(2, "the GPU is lost".to_owned())];
    let of = |wanted: &str, devices: &[LeasedGpu]| {
        let wanted: Devices = serde_yaml::from_str(wanted).unwrap();
        choose(
            &wanted,
            Engine::Libtorch,
            DeviceOffer {
                devices,
                unusable: &unusable,
                absence: None,
                visible: None,
            },
        )
    };
    let two = &gpus()[..2];
    assert!(
        of("[0, 2]", two)
            .unwrap_err()
            .starts_with("`run.devices` names GPU 2, which cannot be used: the GPU is lost")
    );
    assert_eq!(of("auto", two), Ok(DeviceChoice::FirstIdle(two.to_vec())));
    let refused = of("auto", &[]).unwrap_err();
    assert_eq!(
        refused,
        "GPU 2 cannot be used: the GPU is lost; `--device cpu` runs the trials on the CPU"
    );
    assert_eq!(of("cpu", &[]), Ok(DeviceChoice::Cpu { no_gpu: None }));
    for text in ["", "-1"] {
        let hidden = DeviceOffer {
            devices: &[],
            unusable: &unusable,
            absence: None,
            visible: Some(text),
        };
        assert!(matches!(
            choose(&Devices::Named(DeviceName::Auto), Engine::Libtorch, hidden),
            Ok(DeviceChoice::Cpu { no_gpu: Some(_) })
        ));
    }
}

fn seen(
    wanted: &str,
    devices: &[LeasedGpu],
    unusable: &[(u32, String)],
    visible: &str,
) -> Result<DeviceChoice, String> {
    let offer = DeviceOffer {
        devices,
        unusable,
        absence: None,
        visible: Some(visible),
    };
    let wanted: Devices = serde_yaml::from_str(wanted).unwrap();
    choose(&wanted, Engine::Libtorch, offer)
}

#[test]
fn a_variable_of_unusable_gpus_is_refused_and_one_with_others_means_these() {
    let of = |wanted: &str, visible: &str| {
        let unusable = [(0, "the GPU is lost".to_owned())];
        seen(wanted, &gpus()[1..], &unusable, visible)
    };
    assert_eq!(
        of("auto", "0"),
        Err(
            "`CUDA_VISIBLE_DEVICES=0` names only GPUs that cannot be used (GPU 0: the GPU is lost); \
             name others by UUID: 1 (GPU-1a), 2 (GPU-2a); `--device cpu` runs the trials on the CPU"
                .to_owned()
        )
    );
    let refused = of("all", "0").unwrap_err();
    assert!(refused.contains("GPU 0: the GPU is lost"), "{refused}");
    assert!(of("auto", "7").is_err());
    let second = vec![gpus()[1].clone()];
    assert_eq!(of("all", "0,1"), Ok(DeviceChoice::All(second.clone())));
    assert_eq!(of("auto", "0,1"), Ok(DeviceChoice::FirstIdle(second)));
    assert!(matches!(of("auto", ""), Ok(DeviceChoice::Cpu { .. })));
}

#[test]
fn a_uuid_that_is_not_there_may_be_that_of_an_unusable_gpu() {
    let unusable = [(0, "the GPU is lost".to_owned())];
    let of = |visible: &str| seen("all", &gpus()[1..], &unusable, visible).unwrap_err();
    let refused = of("GPU-0a");
    assert!(
        refused.contains(
            "`CUDA_VISIBLE_DEVICES=GPU-0a` names none of 2 GPUs here; GPU 0 cannot be used (the GPU \
             is lost), and its UUID is unknown"
        ),
        "{refused}"
    );
    let refused = of("7");
    assert!(!refused.contains("UUID is unknown"), "{refused}");
    let others = &gpus()[1..];
    let named = |wanted: &str| {
        let wanted: Devices = serde_yaml::from_str(wanted).unwrap();
        let offer = DeviceOffer {
            devices: others,
            unusable: &unusable,
            absence: None,
            visible: None,
        };
        choose(&wanted, Engine::Libtorch, offer).unwrap_err()
    };
    assert_eq!(
        named("[GPU-0a]"),
        "`run.devices` names GPU-0a: there are 1 (GPU-1a), 2 (GPU-2a); GPU 0 cannot be used (the GPU \
         is lost), and its UUID is unknown"
    );
    assert_eq!(
        named("[7]"),
        "`run.devices` names GPU 7: there are 1 (GPU-1a), 2 (GPU-2a)"
    );
}

#[test]
fn a_variable_that_names_a_device_twice_shows_none() {
    for (text, device) in [("0,GPU-0a", "GPU 0 (H200)"), ("1,0,1", "GPU 1 (H200)")] {
        for wanted in ["auto", "all", "[0]"] {
            let refused = seen(wanted, &gpus(), &[], text).unwrap_err();
            let words = format!("names {device} twice; CUDA then shows no device at all");
            assert!(refused.contains(&words), "{wanted}: {refused}");
        }
    }
    let refused = seen("auto", &one_in_pieces(), &[], "0,MIG-1b").unwrap_err();
    assert!(refused.contains("names MIG-1b twice"), "{refused}");
}

#[test]
fn the_beginning_of_several_uuids_names_no_gpu() {
    let mut two = gpus();
    two.truncate(2);
    two[1].uuid = "GPU-0b".to_owned();
    for wanted in ["auto", "all"] {
        let refused = seen(wanted, &two, &[], "GPU-0").unwrap_err();
        assert!(
            refused.contains("`GPU-0` is the beginning of several UUIDs"),
            "{refused}"
        );
    }
    let first = vec![two[0].clone()];
    assert_eq!(
        seen("all", &two, &[], "0,GPU-0"),
        Ok(DeviceChoice::All(first)),
        "as CUDA it stops there"
    );
    assert!(seen("all", &two[..1], &[], "GPU-").is_err());
}

#[test]
fn a_busy_gpu_names_its_users_and_hidden_lists_are_not_taken_for_use() {
    let gpu = &gpus()[0];
    let process = GpuProcess {
        pid: 4711,
        user: Some("ada".into()),
        used_memory_bytes: Some(3 << 30),
    };
    let words = busy(gpu, &ProcessList::Known(vec![process]), None).unwrap();
    assert_eq!(
        words,
        "GPU 0 (H200) is used by PID 4711 of user ada with 3.0 GiB"
    );
    assert_eq!(busy(gpu, &ProcessList::Known(vec![]), Some(0.04)), None);
    assert!(
        busy(gpu, &ProcessList::Unknown("container".into()), Some(0.5))
            .unwrap()
            .contains("50.0 %")
    );
    assert_eq!(
        busy(gpu, &ProcessList::Unknown("container".into()), None),
        None
    );
}

#[test]
fn memory_is_held_from_the_limit_of_the_doctor_on() {
    for (held_memory_bytes, is_held) in [
        (Some(IDLE_MEMORY_BYTES), true),
        (Some(IDLE_MEMORY_BYTES - 1), false),
        (None, false),
    ] {
        let device_use = DeviceUse {
            processes: ProcessList::Known(Vec::new()),
            utilization: Some(0.0),
            held_memory_bytes,
            fault: None,
        };
        assert_eq!(holds_memory(&device_use), is_held, "{held_memory_bytes:?}");
    }
}
