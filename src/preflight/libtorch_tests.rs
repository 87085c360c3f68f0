//! Checks of the child and its libtorch, from hand-made answers.

use std::time::Duration;

use kiln_core::record::{
    CheckState,
    examination::{Cuda, CudaDevice, CudaDriver, Nvrtc},
};
use kiln_hardware::{NvmlAbsent, NvmlFault, Reading};

use super::*;
use crate::preflight::tests::{answer, facts};

fn found(name: &str, change: impl FnOnce(&mut PreflightFacts, &mut ExamineAnswer)) -> Check {
    let (mut facts, mut answer) = (facts(), answer());
    change(&mut facts, &mut answer);
    facts.answer = Some(answer);
    let checks = checks(&facts);
    let found = checks.iter().find(|check| check.name == name);
    found
        .unwrap_or_else(|| panic!("no check {name} in {checks:?}"))
        .clone()
}

fn libtorch_of(answer: &mut ExamineAnswer) -> &mut Libtorch {
    answer.build.as_mut().unwrap().libtorch.as_mut().unwrap()
}

fn cpu_flavour(answer: &mut ExamineAnswer) {
    let libtorch = libtorch_of(answer);
    (libtorch.cuda, libtorch.cudnn, libtorch.architectures) = (None, None, Vec::new());
    answer.cuda = Some(Cuda::default());
}

#[test]
fn a_child_in_good_order_has_only_good_checks() {
    let mut facts = facts();
    facts.answer = Some(answer());
    let checks = checks(&facts);
    assert!(
        checks
            .iter()
            .all(|check| check.state == CheckState::Ok && check.remedy.is_none()),
        "{checks:?}"
    );
    assert!(can_run(&answer()));
}

#[test]
fn a_child_of_another_protocol_is_a_problem_and_one_that_does_not_tell_its_is_none() {
    let of = |protocol: Option<u32>| {
        found("trial-program", |_, answer| {
            answer.build.as_mut().unwrap().protocol = protocol;
            let is_other = protocol.is_some_and(|spoken| spoken != PROTOCOL);
            assert_eq!(can_run(answer), !is_other);
        })
    };
    assert_eq!(of(None).state, CheckState::Ok);
    assert_eq!(of(Some(PROTOCOL)).state, CheckState::Ok);
    let other = of(Some(PROTOCOL + 1));
    assert_eq!(other.state, CheckState::Problem);
    assert!(
        other.evidence.contains("speaks version 2 of the protocol"),
        "{other:?}"
    );
}

#[test]
fn nvidia_smi_works_but_cuda_is_not_available() {
    let check = found("cuda", |_, answer| cpu_flavour(answer));
    assert_eq!(check.state, CheckState::Problem);
    assert_eq!(
        check.evidence,
        "nvidia-smi shows a GPU, but CUDA is not available: this libtorch is a CPU-only build"
    );
    assert!(
        check
            .remedy
            .unwrap()
            .contains("KILN_LIBTORCH=cuda make libtorch build")
    );
    let fine = found("cuda", |facts, answer| {
        facts.gpus.clear();
        cpu_flavour(answer);
    });
    assert_eq!(fine.state, CheckState::Ok);
}

#[test]
fn a_cuda_half_that_does_not_load_is_named_with_the_library_it_lacks() {
    let check = found("cuda", |_, answer| {
        cpu_flavour(answer);
        let fault = "libtorch_cuda.so cannot be loaded (libcudnn.so.9: cannot open shared object \
                     file: No such file or directory)";
        libtorch_of(answer).cuda_fault = Some(fault.to_owned());
    });
    assert_eq!(check.state, CheckState::Problem);
    assert!(
        check.evidence.contains("its CUDA libraries do not load")
            && check.evidence.contains("libcudnn.so.9"),
        "{}",
        check.evidence
    );
}

#[test]
fn a_kernel_that_does_not_compile_is_a_warning_with_nvrtcs_words() {
    let with = |fault: Option<&str>| {
        found("nvrtc", |_, answer| {
            let fault = fault.map(str::to_owned);
            answer.nvrtc = vec![Nvrtc {
                architecture: "sm_90".into(),
                version: Some("13.0".into()),
                fault,
            }];
        })
    };
    let good = with(None);
    assert_eq!(
        (good.state, good.evidence.as_str()),
        (CheckState::Ok, "13.0, compiles for sm_90")
    );
    let bad = with(Some(
        "nvrtcCompileProgram: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: failed to open \
         libnvrtc-builtins.so.13.0.\nmore",
    ));
    assert_eq!(bad.state, CheckState::Warning);
    assert!(
        bad.evidence.ends_with(
            "does not compile for sm_90: nvrtcCompileProgram: \
             NVRTC_ERROR_BUILTIN_OPERATION_FAILURE: failed to open libnvrtc-builtins.so.13.0."
        ),
        "{bad:?}"
    );
}

#[test]
fn a_device_count_of_0_has_its_cause() {
    let with = |code: i32, visible: Option<&str>| {
        found("cuda", |facts, answer| {
            facts.environment.cuda_visible_devices = visible.map(str::to_owned);
            let driver = CudaDriver {
                code,
                name: format!("CUDA_ERROR_{code}"),
                ..CudaDriver::default()
            };
            answer.cuda = Some(Cuda {
                driver: Some(driver),
                devices: 0,
                fault: Some("No CUDA GPUs are available\nmore".into()),
            });
        })
    };
    let hidden = with(100, Some("9"));
    assert_eq!(
        hidden.evidence,
        "the device count is 0: `CUDA_VISIBLE_DEVICES` hides every GPU (libtorch: No CUDA GPUs are \
         available)"
    );
    for (code, words) in [
        (100, "device-nodes"),
        (802, "fabricmanager"),
        (803, "cuda-compat"),
        (999, "nvidia_uvm"),
        (46, "compute-mode"),
        (1, "NVRM"),
    ] {
        let check = with(code, None);
        assert!(
            check.remedy.as_ref().unwrap().contains(words)
                && check
                    .evidence
                    .contains(&format!("CUDA_ERROR_{code} ({code})")),
            "{check:?}"
        );
    }
    let check = found("cuda", |_, answer| {
        answer.cuda = Some(Cuda {
            driver: None,
            devices: 0,
            fault: None,
        })
    });
    assert!(
        check.evidence.contains("libcuda.so.1")
            && check.remedy.unwrap().contains("compute,utility")
    );
    let check = found("cuda", |facts, answer| {
        facts.gpus.clear();
        facts.driver = Err(NvmlAbsent {
            reason: "none".into(),
            fault: NvmlFault::Library,
        });
        answer.cuda = Some(Cuda::default());
    });
    assert_eq!(check.state, CheckState::Ok);
}

#[test]
fn the_drivers_cuda_must_not_be_of_an_older_major_version() {
    let with = |driver: &str, libtorch: &str| {
        found("cuda-version", |facts, answer| {
            facts.driver.as_mut().unwrap().cuda = Reading::Value(driver.to_owned());
            libtorch_of(answer).cuda = Some(libtorch.to_owned());
        })
    };
    assert_eq!(with("12.8", "13.0").state, CheckState::Problem);
    assert_eq!(with("12.2", "12.8").state, CheckState::Ok);
    assert_eq!(with("13.1", "12.8").state, CheckState::Ok);
    assert_eq!(with("?", "12.8").state, CheckState::Unknown);
}

#[test]
fn a_gpu_needs_code_of_its_major_version_or_ptx_that_is_not_newer() {
    let of = |capability: &str, list: &[&str]| {
        let list: Vec<String> = list.iter().map(|word| (*word).to_owned()).collect();
        cuda::covered(capability, &list).state
    };
    assert_eq!(of("9.0", &["sm_80", "sm_90"]), CheckState::Ok);
    assert_eq!(of("8.9", &["sm_80"]), CheckState::Ok);
    assert_eq!(of("8.0", &["sm_86"]), CheckState::Problem);
    assert_eq!(
        of("7.0", &["sm_75", "sm_120", "compute_120"]),
        CheckState::Problem
    );
    assert_eq!(of("12.1", &["sm_90", "compute_120"]), CheckState::Ok);
    assert_eq!(of("10.0", &["sm_90a", "compute_120"]), CheckState::Problem);
}

#[test]
fn the_loaders_faults_name_library_place_and_remedy() {
    let with = |library: &str, kind: LoadFaultKind, searched: &[&str]| {
        found("libtorch", |_, answer| {
            answer.build = None;
            let searched = searched.iter().map(|place| (*place).to_owned()).collect();
            answer.fault = Some(ChildFault::Loading(LoadFault {
                library: library.to_owned(),
                kind,
                searched,
            }));
            assert!(!can_run(answer));
        })
    };
    let missing = with(
        "libtorch_cpu.so",
        LoadFaultKind::Missing,
        &["/opt/torch/lib", "/usr/lib"],
    );
    assert_eq!(
        missing.evidence,
        "libtorch_cpu.so is missing; searched in /opt/torch/lib, /usr/lib"
    );
    assert_eq!(missing.remedy.as_deref(), Some(SET_UP));
    assert!(
        with("libcudnn.so.9", LoadFaultKind::Missing, &[])
            .remedy
            .unwrap()
            .contains("KILN_LIBTORCH=cuda")
    );
    assert!(
        with("/opt/libc10.so", LoadFaultKind::Truncated, &[])
            .evidence
            .contains("/opt/libc10.so is truncated")
    );
    assert!(
        with("/opt/kiln-trial", LoadFaultKind::Symbol("_Zx".into()), &[])
            .evidence
            .contains("lacks `_Zx`")
    );
    assert!(
        with(
            "/opt/kiln-trial",
            LoadFaultKind::System("GLIBC_2.40".into()),
            &[]
        )
        .evidence
        .contains("needs GLIBC_2.40")
    );
}

#[test]
fn another_version_that_loads_is_a_problem_and_a_build_suffix_is_none() {
    assert_eq!(
        found("libtorch", |_, answer| libtorch_of(answer).loaded =
            Some("2.11.0+cu130".into()))
        .state,
        CheckState::Ok
    );
    let check = found("libtorch", |_, answer| {
        libtorch_of(answer).loaded = Some("2.9.1".into())
    });
    assert_eq!(
        (
            check.state,
            check.evidence.contains("compiled against 2.11.0")
        ),
        (CheckState::Problem, true)
    );
}

#[test]
fn a_child_that_falls_silent_says_where() {
    let crash = |change: fn(&mut ExamineAnswer)| {
        found("trial-program", |_, answer| {
            answer.fault = Some(ChildFault::Signal(11));
            change(answer);
        })
    };
    assert!(
        crash(|answer| answer.cuda = None)
            .evidence
            .ends_with("crashed by signal 11 (SIGSEGV) when it started CUDA")
    );
    assert!(
        crash(|_| {})
            .evidence
            .ends_with("after the f32 product on cuda:0")
    );
    let hung = found("trial-program", |_, answer| {
        answer.cuda = None;
        answer.fault = Some(ChildFault::Silent(Duration::from_secs(120)));
        assert!(can_run(answer), "the CPU was tried before CUDA hung");
    });
    assert!(
        hung.evidence.contains("did not end within 2 min 0 s")
            && hung
                .remedy
                .unwrap()
                .contains("CUDA_VISIBLE_DEVICES= kiln doctor")
    );
}

#[test]
fn a_product_beyond_rounding_is_a_problem_and_only_the_cpus_stops_everything() {
    let wrong = |device: &str, error: Option<f64>| {
        let mut answer = answer();
        let product = answer
            .products
            .iter_mut()
            .find(|product| product.device == device)
            .unwrap();
        product.max_relative_error = error;
        let check = super::product(product);
        (check.state, check.evidence, can_run(&answer))
    };
    // The error that TF32 would cause.
    let (state, evidence, runs) = wrong("cuda:0", Some(3e-4));
    assert_eq!((state, runs), (CheckState::Problem, true));
    assert_eq!(
        evidence,
        "the product differs from the CPU's in f64 by 3.0e-4 of its largest element; rounding \
         allows 1e-5"
    );
    let (state, evidence, runs) = wrong("cpu", None);
    assert_eq!(
        (state, evidence.as_str(), runs),
        (CheckState::Problem, "the product contains NaN", false)
    );
}

#[test]
fn an_order_of_its_own_is_told_where_there_are_several_gpus() {
    let with = |uuids: [u64; 2]| {
        found("device-order", |facts, answer| {
            facts.gpus = vec![
                crate::preflight::gpu::tests::healthy(0),
                crate::preflight::gpu::tests::healthy(1),
            ];
            let device = |index: u64| CudaDevice {
                uuid: facts.gpus[index as usize].uuid.clone().unwrap(),
                ..CudaDevice::default()
            };
            let devices = uuids.map(device).to_vec();
            answer.cuda = Some(Cuda {
                devices: 2,
                driver: Some(CudaDriver {
                    devices,
                    ..CudaDriver::default()
                }),
                fault: None,
            });
        })
    };
    assert_eq!(
        (with([0, 1]).state, with([1, 0]).state),
        (CheckState::Ok, CheckState::Warning)
    );
}
