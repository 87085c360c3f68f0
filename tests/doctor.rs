//! `kiln doctor`: the texts it prints for machines in all sorts of trouble, and its exit status.
//!
//! `KILN_BLESS=1` rewrites the kept texts under `tests/expected/doctor`; read each one that
//! changed. What depends on the machine that runs the tests (the host's checks, paths, who may see
//! processes) is left out of them or given a name.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use fake_nvml::Scenario;
use serde_json::Value;

use crate::{
    hardware_scenarios::{CHANGED, wanted, with_patience},
    scripted_child::{Ended, Place, program::write_program, real_trial},
};

/// Checks of the host that runs the tests, and what a container hides.
const OF_THIS_MACHINE: [&str; 10] = [
    "cpu",
    "load",
    "cpu-governor",
    "memory",
    "swap",
    "shared-memory",
    "disk",
    "clock-source",
    "device-nodes",
    "processes",
];

/// An H200 in good order; each case changes some of its calls.
const HEALTHY: &str = "
calls:
  nvmlSystemGetDriverVersion: 590.99.01
  nvmlSystemGetNVMLVersion: 13.590.99.01
  nvmlSystemGetCudaDriverVersion_v2: 13010
devices:
- calls:
    nvmlDeviceGetIndex: 0
    nvmlDeviceGetName: NVIDIA H200
    nvmlDeviceGetUUID: GPU-5ca1ab1e-0000-4000-8000-000000000001
    nvmlDeviceGetCudaComputeCapability: [9, 0]
    nvmlDeviceGetPersistenceMode: 1
    nvmlDeviceGetDisplayActive: 0
    nvmlDeviceGetComputeMode: 0
    nvmlDeviceGetMigMode: [0, 0]
    nvmlDeviceGetEccMode: [1, 1]
    nvmlDeviceGetTotalEccErrors/1/0: 0
    nvmlDeviceGetRemappedRows: [0, 0, 0, 0]
    nvmlDeviceGetMemoryInfo_v2: {total: 150754820096, reserved: 643825664, used: 0, free: 150110994432}
    nvmlDeviceGetUtilizationRates: {gpu: 0, memory: 0}
    nvmlDeviceGetTemperature/0: 34
    nvmlDeviceGetTemperatureV/0: 34
    nvmlDeviceGetMarginTemperature: {marginTemperature: 52}
    nvmlDeviceGetEnforcedPowerLimit: 700000
    nvmlDeviceGetPowerManagementDefaultLimit: 700000
    nvmlDeviceGetCurrentClocksEventReasons: 1
    nvmlDeviceGetCurrPcieLinkGeneration: 5
    nvmlDeviceGetMaxPcieLinkGeneration: 5
    nvmlDeviceGetCurrPcieLinkWidth: 16
    nvmlDeviceGetMaxPcieLinkWidth: 16
    nvmlDeviceGetComputeRunningProcesses_v3: []
";

/// A child with a CUDA libtorch that sees `devices` GPUs.
fn cuda_child(devices: u64) -> Vec<String> {
    let build = r#"{"finding":"build","kiln_examination":1,"kiln_trial":"0.1.0","engines":["flex","libtorch"],"libtorch":{"compiled":"2.11.0","loaded":"2.11.0","path":"/opt/torch/lib/libtorch_cpu.so","cuda":"13.0","cudnn":"9.15.1","architectures":["sm_80","sm_90","compute_120"]}}"#;
    let driver = r#"{"code":0,"name":"CUDA_SUCCESS","version":"13.1","devices":[]}"#;
    let mut lines = vec![build.to_owned()];
    lines.push(product("cpu", 5e-7));
    lines.push(format!(
        r#"{{"finding":"cuda","driver":{driver},"devices":{devices}}}"#
    ));
    lines.extend((0..devices).map(|at| product(&format!("cuda:{at}"), 8e-7)));
    lines.push(r#"{"finding":"done"}"#.to_owned());
    lines
}

fn product(device: &str, error: f64) -> String {
    format!(
        r#"{{"finding":"product","device":"{device}","precision":"f32","size":512,"max_relative_error":{error},"seconds":0.001}}"#
    )
}

/// A folder with a scripted child and a driver that plays a scenario.
struct Machine {
    folder: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            folder: tempfile::tempdir().unwrap(),
            variables: Vec::new(),
        };
        machine.says(&cuda_child(1));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The child says these lines.
    fn says(&self, lines: &[String]) {
        self.does(&format!("cat <<'END'\n{}\nEND", lines.join("\n")));
    }

    /// The child is this script.
    fn does(&self, script: &str) {
        write_program(&self.path("kiln-trial"), &format!("#!/bin/sh\n{script}\n"));
    }

    /// The healthy GPU with these calls in place of its own, as YAML `call: answer` lines.
    fn with_gpu(self, changes: &str) -> Self {
        let mut scenario: Scenario = serde_yaml::from_str(HEALTHY).unwrap();
        let changes: std::collections::BTreeMap<String, Value> =
            serde_yaml::from_str(changes).unwrap_or_default();
        for (call, answer) in changes {
            let is_device = call.starts_with("nvmlDevice");
            let calls = if is_device {
                &mut scenario.devices[0].calls
            } else {
                &mut scenario.calls
            };
            calls.insert(call, answer);
        }
        self.with(&scenario)
    }

    fn with(mut self, scenario: &Scenario) -> Self {
        let library = fake_nvml::install::install(self.folder.path(), scenario).unwrap();
        self.variables
            .push(("KILN_NVML_LIB".to_owned(), library.display().to_string()));
        self
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        for name in [
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "NVIDIA_VISIBLE_DEVICES",
            "KILN_NVML_LIB",
            "LD_LIBRARY_PATH",
        ] {
            command.env_remove(name);
        }
        command
            .arg("doctor")
            .args(arguments)
            .current_dir(self.folder.path());
        // A busy machine may take its time for what does not hang.
        command.env("KILN_NVML_PATIENCE", "60");
        command
            .env("KILN_TRIAL", self.path("kiln-trial"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn doctor(&self, arguments: &[&str]) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }

    /// The page without this machine's own checks, this folder's path and the padding that depends
    /// on both.
    fn page(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let ended = self.doctor(arguments);
        assert_eq!(ended.stderr, "");
        (ended.status, normalized(&ended.stdout, self.folder.path()))
    }
}

/// The page without the machine's own checks and their remedies.
fn normalized(page: &str, folder: &Path) -> String {
    let mut kept = String::new();
    let mut is_left_out = false;
    for line in page.lines() {
        let is_remedy = line.trim_start().starts_with("->");
        if !is_remedy {
            is_left_out = is_own(line);
        }
        if !is_left_out {
            kept.push_str(&words(line));
            kept.push('\n');
        }
    }
    let kept = kept.replace(
        &folder.canonicalize().unwrap().display().to_string(),
        "FOLDER",
    );
    kept.replace(&folder.display().to_string(), "FOLDER")
}

fn is_own(line: &str) -> bool {
    let Some(rest) = line.get(9..) else {
        return false;
    };
    let label = rest.split("  ").next().unwrap_or_default();
    OF_THIS_MACHINE.contains(&label.rsplit(' ').next().unwrap_or_default())
}

/// One space between words, and the warnings of the host not counted.
fn words(line: &str) -> String {
    if let Some((verdict, counts)) = line
        .split_once("this machine c")
        .and_then(|(_, rest)| rest.rsplit_once(", "))
    {
        assert!(counts.contains("warning"));
        return format!("this machine c{verdict}");
    }
    let indent = if line.starts_with(' ') { "  " } else { "" };
    format!(
        "{indent}{}",
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    )
}

/// The kept text of this name, which becomes `found` with `KILN_BLESS`.
fn kept(name: &str, found: &str) -> String {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/expected/doctor")
        .join(format!("{name}.txt"));
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(&kept, found).unwrap();
    }
    fs::read_to_string(&kept).unwrap_or_default()
}

fn compare(name: &str, found: &str) {
    assert_eq!(kept(name, found), found, "tests/expected/doctor/{name}.txt");
}

#[test]
fn each_gpus_trouble_has_its_kept_text() {
    let cases = [
        ("healthy", ""),
        (
            "slow",
            "nvmlDeviceGetEnforcedPowerLimit: 450000\nnvmlDeviceGetCurrPcieLinkWidth: 8\n\
             nvmlDeviceGetPersistenceMode: 0",
        ),
        (
            "hot",
            "nvmlDeviceGetMarginTemperature: {marginTemperature: 2}\nnvmlDeviceGetTemperatureV/0: \
             86\nnvmlDeviceGetCurrentClocksEventReasons: 72",
        ),
        (
            "memory-faults",
            "nvmlDeviceGetTotalEccErrors/1/0: 3\nnvmlDeviceGetRemappedRows: [1, 2, 1, 1]\n\
             nvmlDeviceGetEccMode: [1, 0]",
        ),
        ("prohibited", "nvmlDeviceGetComputeMode: 2"),
        ("mig-empty", "nvmlDeviceGetMigMode: [1, 1]"),
        ("old-driver", "nvmlSystemGetCudaDriverVersion_v2: 12020"),
        ("other-nvml", "nvmlSystemGetNVMLVersion: 12.550.90.07"),
        (
            "old-gpu",
            "nvmlDeviceGetCudaComputeCapability: [7, 0]\nnvmlDeviceGetName: Tesla V100",
        ),
        ("driver-not-loaded", "nvmlInit_v2: {return: 9}"),
        ("version-mismatch", "nvmlInit_v2: {return: 18}"),
    ];
    for (name, changes) in cases {
        let (status, page) = Machine::new().with_gpu(changes).page(&[]);
        assert_eq!(status, Some(0), "{name}: {page}");
        compare(name, &page);
    }
}

#[test]
fn an_unknown_error_is_a_daemon_reload_only_in_a_container() {
    let (_, page) = Machine::new()
        .with_gpu("nvmlInit_v2: {return: 999}")
        .page(&[]);
    let is_container = page.contains("daemon-reload");
    let expected = kiln_hardware::host::read()
        .container
        .value()
        .is_some_and(|kind| kind != "wsl");
    assert_eq!(is_container, expected, "{page}");
    assert!(page.contains("problem driver"), "{page}");
}

#[test]
fn a_machine_without_a_driver_or_without_the_right_to_it_has_its_words() {
    let (status, page) = Machine::new().set("KILN_NVML_LIB", "/nowhere").page(&[]);
    assert_eq!(status, Some(0), "{page}");
    assert!(
        page.contains("problem driver no NVML at /nowhere")
            && page.contains("`KILN_NVML_LIB` names a library"),
        "{page}"
    );
    let (_, page) = Machine::new()
        .with_gpu("nvmlInit_v2: {return: 4}")
        .page(&[]);
    assert!(
        page.contains("problem driver this user has no permission to use the NVIDIA driver"),
        "{page}"
    );
}

#[test]
fn a_gpu_that_hangs_is_a_problem_of_the_driver_and_the_rest_is_checked() {
    let mut scenario: Scenario = serde_yaml::from_str(HEALTHY).unwrap();
    let mut second = scenario.devices[0].clone();
    second
        .calls
        .insert("nvmlDeviceGetIndex".into(), serde_json::json!(1));
    second.calls.insert(
        "nvmlDeviceGetUUID".into(),
        serde_json::json!("GPU-5ca1ab1e-0000-4000-8000-000000000002"),
    );
    scenario.devices[0].calls.insert(
        "nvmlDeviceGetName".into(),
        serde_json::json!({"hang": true}),
    );
    scenario.devices.push(second);
    with_patience(|seconds| {
        let (status, page) = Machine::new()
            .with(&scenario)
            .set("KILN_NVML_PATIENCE", seconds)
            .page(&["--quick"]);
        let silence = format!("the driver has not answered for {seconds} s");
        let parts = [
            "problem driver",
            silence.as_str(),
            "ok trial-program",
            "ok libtorch",
            "problem GPU 0 health",
            "ok GPU 1 persistence on",
        ];
        wanted(
            status == Some(0) && parts.iter().all(|part| page.contains(part)),
            || page,
        )
    });
}

#[test]
fn a_program_of_ones_own_that_cannot_be_examined_is_no_problem() {
    let machine = Machine::new();
    let child = machine.path("own.py");
    fs::write(
        &child,
        "#!/bin/sh\necho 'Traceback: no such file: --examine' >&2\nexit 1\n",
    )
    .unwrap();
    fs::set_permissions(&child, fs::Permissions::from_mode(0o755)).unwrap();
    let machine = machine.set("KILN_TRIAL", &child.display().to_string());
    let ended = machine.doctor(&["--quick"]);
    assert!(
        ended.status == Some(0)
            && ended
                .stdout
                .contains("only its trials show whether it works")
            && ended.stdout.contains("this machine can run trials"),
        "{ended:?}"
    );
    fs::write(&child, "#!/bin/sh\nexec /no/such/kiln-trial\n").unwrap();
    let broken = machine.doctor(&["--quick"]);
    assert_eq!(broken.status, Some(3), "{broken:?}");
}

#[test]
fn a_results_folder_that_is_a_file_is_a_problem() {
    let machine = Machine::new().with_gpu("");
    fs::write(machine.path("results"), "").unwrap();
    let ended = machine.doctor(&["--quick"]);
    let line = ended
        .stdout
        .lines()
        .find(|line| line.contains("  disk  "))
        .unwrap();
    assert!(
        line.starts_with("problem") && line.ends_with("results is not a folder"),
        "{line}"
    );
}

#[test]
fn gpus_that_are_hidden_on_purpose_are_no_problem() {
    let machine = Machine::new()
        .with_gpu("nvmlDeviceGetEnforcedPowerLimit: 450000")
        .set("CUDA_VISIBLE_DEVICES", "");
    let nothing = r#"{"finding":"cuda","driver":{"code":100,"name":"CUDA_ERROR_NO_DEVICE","version":"13.1"},"devices":0}"#;
    machine.says(&[
        cuda_child(0)[0].clone(),
        nothing.to_owned(),
        r#"{"finding":"done"}"#.to_owned(),
    ]);
    let (_, page) = machine.page(&["--quick"]);
    assert!(
        page.contains("ok cuda built in; `CUDA_VISIBLE_DEVICES` hides every GPU"),
        "{page}"
    );
    assert!(
        page.contains("skipped GPU 0 health `CUDA_VISIBLE_DEVICES` hides it")
            && !page.contains("power-limit"),
        "{page}"
    );
    assert!(page.contains("0 problems"), "{page}");
}

#[test]
fn a_gpu_at_rest_is_not_blamed_for_what_resting_does() {
    let resting = "nvmlDeviceGetCurrentClocksEventReasons: 4\nnvmlDeviceGetPowerUsage: 24000\n\
                   nvmlDeviceGetCurrPcieLinkGeneration: 1\n\
                   nvmlDeviceGetCurrPcieLinkWidth: 8";
    let (_, page) = Machine::new().with_gpu(resting).page(&["--quick"]);
    assert!(
        page.contains("ok GPU 0 throttling none now")
            && page.contains("warning GPU 0 pcie-link x8 of x16: copies"),
        "{page}"
    );
}

#[test]
fn a_gpu_that_is_lost_or_not_ours_is_named_and_stops_nothing() {
    for (name, code) in [("lost", 15), ("not-ours", 4)] {
        let mut scenario: Scenario = serde_yaml::from_str(HEALTHY).unwrap();
        scenario.devices[0].every_call = Some(serde_json::json!({"return": code}));
        let (status, page) = Machine::new().with(&scenario).page(&[]);
        assert_eq!(status, Some(0), "{page}");
        compare(name, &page);
    }
}

/// A machine of a scenario that has changed: what gets hot is hot, what gets lost is lost.
fn changed(scenario: &Path) -> Machine {
    let machine = Machine::new().with(&Scenario::read(scenario).unwrap());
    fs::write(machine.path(CHANGED), "").unwrap();
    machine
}

#[test]
fn each_scenario_of_the_fake_driver_has_its_kept_text() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut count = 0;
    for path in fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if name == "hang" {
            with_patience(|seconds| {
                let (status, page) = changed(&path).set("KILN_NVML_PATIENCE", seconds).page(&[]);
                let page = page.replace(
                    &format!("has not answered for {seconds} s"),
                    "has not answered for 5 s",
                );
                wanted(
                    status == Some(0) && kept("scenario-hang", &page) == page,
                    || page,
                )
            });
        } else {
            let (status, page) = changed(&path).page(&[]);
            assert_eq!(status, Some(0), "{name}: {page}");
            compare(&format!("scenario-{name}"), &page);
        }
        count += 1;
    }
    assert!(count >= 12, "{count}");
}

#[test]
fn foreign_processes_are_named_where_they_can_be_seen() {
    let calls = "nvmlDeviceGetComputeRunningProcesses_v3: [{pid: 1, usedGpuMemory: 2147483648}]";
    let ended = Machine::new().with_gpu(calls).doctor(&[]);
    let line = ended
        .stdout
        .lines()
        .find(|line| line.contains("GPU 0 processes"))
        .unwrap();
    assert!(
        line.contains("pid 1 of ")
            && line.contains("with 2.0 GiB")
            && line.contains("without using the GPU"),
        "{line}"
    );
    assert!(ended.stdout.contains("kiln never does"));
}

#[test]
fn mistakes_in_cuda_visible_devices_have_their_kept_text() {
    let mut found = String::new();
    for text in [
        "", "-1", "0", "0,0", "1", "0, 1", "GPU-77", "MIG-1b2c", "cuda:0",
    ] {
        let (_, page) = Machine::new()
            .with_gpu("")
            .set("CUDA_VISIBLE_DEVICES", text)
            .page(&["--quick"]);
        let at = page
            .lines()
            .position(|line| line.contains("visible-devices"))
            .unwrap();
        let lines = page
            .lines()
            .enumerate()
            .filter(|(number, line)| *number == at || (*number == at + 1 && line.starts_with(' ')));
        lines.for_each(|(_, line)| found.push_str(&format!("{line}\n")));
    }
    compare("visible-devices", &found);
}

#[test]
fn what_is_wrong_with_the_child_has_its_kept_text_and_status() {
    let build = &cuda_child(0)[0];
    let without_cuda = build
        .replace(r#""cuda":"13.0","cudnn":"9.15.1","#, "")
        .replace(r#""sm_80","sm_90","compute_120""#, "");
    let loader = |words: &str| {
        format!("echo 'kiln-trial: error while loading shared libraries: {words}' >&2; exit 127")
    };
    let count_0 = r#"{"finding":"cuda","driver":{"code":999,"name":"CUDA_ERROR_UNKNOWN"},"devices":0,"fault":"CUDA unknown error - this may be due to an incorrectly set up environment"}"#;
    let lines = |lines: &[&str]| format!("cat <<'END'\n{}\nEND", lines.join("\n"));
    let cpu = product("cpu", 5e-7);
    let done = r#"{"finding":"done"}"#;
    let none = r#"{"finding":"cuda","devices":0,"fault":"Cannot initialize CUDA"}"#;
    let cases = [
        ("cpu-only-libtorch", lines(&[&without_cuda, &cpu, none, done]), 0),
        ("device-count-0", lines(&[build, &cpu, count_0, done]), 0),
        ("crash-in-cuda", format!("{}\nkill -SEGV $$", lines(&[build, &cpu])), 0),
        ("ends-early", lines(&[build, &cpu]), 0),
        ("wrong-product", lines(&[build, &cpu, r#"{"finding":"cuda","devices":1}"#, &product("cuda:0", 4e-4), done]), 0),
        ("wrong-product-cpu", lines(&[build, &product("cpu", 0.5), r#"{"finding":"cuda","devices":1}"#, done]), 3),
        (
            "other-version-loaded",
            lines(&[&build.replace(r#""loaded":"2.11.0""#, r#""loaded":"2.9.1+cu128""#), &cpu, r#"{"finding":"cuda","devices":1}"#, done]),
            0,
        ),
        ("library-missing-cuda", loader("libcudart.so.13: cannot open shared object file: No such \
                                         file or directory"), 3),
        ("library-truncated", loader("/opt/torch/lib/libtorch_cpu.so: file too short"), 3),
        (
            "system-too-old",
            "echo \"/opt/kiln-trial: /lib/libc.so.6: version \\`GLIBC_2.99' not found (required by \
             /opt/kiln-trial)\" >&2; exit 1".to_owned(),
            3,
        ),
        ("older-child", "echo 'kiln-trial: unknown option `--examine`; try --help' >&2; exit 2".to_owned(), 3),
        ("bus-error", "kill -BUS $$".to_owned(), 3),
    ];
    for (name, script, expected) in cases {
        let machine = Machine::new().with_gpu("");
        machine.does(&script);
        let (status, page) = machine.page(&[]);
        assert_eq!(status, Some(expected), "{name}: {page}");
        compare(name, &page);
    }
    let (status, page) = Machine::new()
        .set("KILN_TRIAL", "/nowhere/kiln-trial")
        .with_gpu("")
        .page(&[]);
    assert_eq!(status, Some(3), "{page}");
    compare("no-child", &page);
}

#[test]
fn an_experiment_is_held_against_the_machine() {
    let machine = Machine::new().with_gpu("");
    fs::write(
        machine.path("x.yaml"),
        "kiln: 1\nname: x\nmodel: {kind: mlp}\ndata: {kind: generated, num_workers: 1000}\ntrain: \
         {steps: 1, cpu_threads: 1}\n",
    )
    .unwrap();
    let ended = machine.doctor(&["x.yaml"]);
    assert!(
        ended.stdout.contains("a trial uses 1000 loader workers"),
        "{ended:?}"
    );
    let fewer = machine.doctor(&["x.yaml", "--set", "data.num_workers=1"]);
    assert!(
        fewer.stdout.contains("at most 1 loader worker on"),
        "{fewer:?}"
    );
    assert_eq!(machine.doctor(&["y.yaml"]).status, Some(2));
}

#[test]
fn json_has_the_pages_checks() {
    let machine = Machine::new().with_gpu("nvmlDeviceGetComputeMode: 2");
    let found: Value = serde_json::from_str(&machine.doctor(&["--json"]).stdout).unwrap();
    assert_eq!(
        (
            &found["kiln_doctor"],
            &found["can_run"],
            &found["usable_gpus"]
        ),
        (&1.into(), &true.into(), &1.into())
    );
    let mode = found["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "compute-mode")
        .unwrap();
    assert_eq!(
        (&mode["gpu"], &mode["state"]),
        (&0.into(), &"problem".into())
    );
    assert!(
        mode["remedy"]
            .as_str()
            .is_some_and(|remedy| remedy.contains("nvidia-smi -c DEFAULT"))
    );
}

#[test]
fn a_terminal_has_color_unless_the_user_wants_none() {
    let machine = Machine::new().with_gpu("");
    let place = Place::with("");
    let page = |more: &[(&str, &str)]| {
        let mut kiln = place.in_a_terminal(&["doctor", "--quick"]);
        kiln.env("KILN_TRIAL", machine.path("kiln-trial"))
            .env("KILN_NVML_PATIENCE", "60");
        let ended = Ended::of(
            kiln.envs(machine.variables.clone())
                .envs(more.iter().copied())
                .output()
                .unwrap(),
        );
        assert_eq!(ended.status, Some(0), "{ended:?}");
        ended.stdout
    };
    let (colored, plain) = (page(&[]), page(&[("NO_COLOR", "1")]));
    assert!(
        colored.contains("\u{1b}[32mok     \u{1b}[0m  "),
        "{colored}"
    );
    assert!(
        plain.contains("ok       ") && !plain.contains('\u{1b}'),
        "{plain}"
    );
}

#[test]
fn the_short_checks_stand_in_run_json_without_other_peoples_numbers() {
    let place =
        Place::with("train: {steps: 10}\ndata: {kind: none}\nrun: {require_idle_device: false}");
    let folder = tempfile::tempdir().unwrap();
    let mut scenario: Scenario = serde_yaml::from_str(HEALTHY).unwrap();
    let calls = &mut scenario.devices[0].calls;
    calls.insert(
        "nvmlDeviceGetComputeRunningProcesses_v3".into(),
        serde_json::json!([{"pid": 1, "usedGpuMemory": 2_147_483_648_u64}]),
    );
    calls.insert(
        "nvmlDeviceGetEnforcedPowerLimit".into(),
        serde_json::json!(450_000),
    );
    let library = fake_nvml::install::install(folder.path(), &scenario).unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml", "--progress", "plain"]);
    kiln.env_remove("CUDA_VISIBLE_DEVICES")
        .env("KILN_NVML_LIB", library)
        .env("KILN_NVML_PATIENCE", "60")
        .env("SCRIPTED_CHILD", "completes");
    let ended = Ended::of(kiln.output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("warning: GPU 0 power-limit: 450 W, below the board's default of 700 W"),
        "{}",
        ended.stderr
    );
    let checks = place.run_file()["launches"][0]["preflight"].clone();
    let named = |name: &str| {
        checks
            .as_array()
            .unwrap()
            .iter()
            .find(|check| check["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {checks}"))
    };
    assert_eq!(
        (&named("power-limit")["state"], &named("power-limit")["gpu"]),
        (&"warning".into(), &0.into())
    );
    assert!(
        named("disk")["evidence"]
            .as_str()
            .unwrap()
            .contains("free for")
    );
    let processes = named("processes")["evidence"].as_str().unwrap();
    assert!(
        processes.contains("1 with 2.0 GiB") && !processes.contains("pid 1"),
        "{processes}"
    );
    assert!(
        !checks.to_string().contains("libtorch"),
        "no child is asked before a launch: {checks}"
    );
}

/// Where the real child finds its libtorch: the run path in its file.
fn run_path(child: &Path) -> PathBuf {
    let ended = Command::new(child)
        .args(["--examine", "--quick"])
        .output()
        .unwrap();
    let first: Value =
        serde_json::from_slice(ended.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    Path::new(first["libtorch"]["path"].as_str().unwrap())
        .parent()
        .unwrap()
        .to_owned()
}

/// Paths and versions of the real libtorch by name.
fn without_torch(page: &str, torch: &Path) -> String {
    let page = page.replace(&torch.display().to_string(), "TORCH");
    let word = |word: &str| {
        if word.starts_with("`_Z") {
            "SYMBOL".to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| {
        if line.contains(" product ") && line.starts_with("ok") {
            "ok product".to_owned()
        } else {
            line.split(' ').map(word).collect::<Vec<_>>().join(" ")
        }
    };
    let lines: Vec<String> = page.lines().map(line).collect();
    lines.join("\n") + "\n"
}

#[test]
fn a_libtorch_that_is_removed_truncated_or_of_another_version_is_told_apart() {
    let child = real_trial();
    let torch = run_path(&child);
    let machine = Machine::new()
        .with_gpu("")
        .set("KILN_TRIAL", &child.display().to_string());
    let (status, page) = machine.page(&[]);
    assert_eq!(status, Some(0), "{page}");
    assert!(
        page.contains("ok trial-program")
            && page.contains("ok libtorch")
            && page.contains("ok product cpu f32"),
        "{page}"
    );
    if page.contains("CPU-only") {
        compare("real-cpu-only", &without_torch(&page, &torch));
    }
    for (name, break_it) in [
        ("real-truncated", truncate as fn(&Path, &Path)),
        ("real-foreign", foreign),
        ("real-other-version", other_version),
    ] {
        let farm = tempfile::tempdir().unwrap();
        break_it(&torch, farm.path());
        let machine = Machine::new()
            .with_gpu("")
            .set("KILN_TRIAL", &child.display().to_string());
        let (status, page) = machine
            .set("LD_LIBRARY_PATH", &farm.path().display().to_string())
            .page(&[]);
        assert_eq!(status, Some(3), "{name}: {page}");
        let page = page
            .replace(&farm.path().display().to_string(), "FARM")
            .replace(&child.display().to_string(), "KILN-TRIAL");
        compare(name, &without_torch(&page, &torch));
    }
    let machine = Machine::new().with_gpu("");
    without_run_path(&machine, &child, &torch);
    let (status, page) = machine.page(&["--quick"]);
    assert_eq!(status, Some(3), "{page}");
    assert!(
        page.contains("libtorch_cpu.so is missing; searched in /")
            || page.contains("libtorch_cuda.so is missing; searched in /"),
        "{page}"
    );
    assert!(
        page.contains("-> run `make libtorch`") || page.contains("KILN_LIBTORCH=cuda"),
        "{page}"
    );
}

/// The first part of libc10 in front of the real one.
fn truncate(torch: &Path, farm: &Path) {
    let whole = fs::read(torch.join("libc10.so")).unwrap();
    fs::write(farm.join("libc10.so"), &whole[..whole.len() / 3]).unwrap();
    symlink(torch.join("libtorch_cpu.so"), farm.join("libtorch_cpu.so")).unwrap();
}

fn foreign(_: &Path, farm: &Path) {
    fs::write(farm.join("libc10.so"), vec![b'x'; 4096]).unwrap();
}

/// A libc10 without any function.
fn other_version(_: &Path, farm: &Path) {
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile
        .args([
            "-shared",
            "-Wl,-soname,libc10.so",
            "-x",
            "c",
            "/dev/null",
            "-o",
        ])
        .arg(farm.join("libc10.so"));
    assert!(compile.status().unwrap().success());
}

/// A copy of the child that looks for libtorch where there is none.
fn without_run_path(machine: &Machine, child: &Path, torch: &Path) {
    let path = torch.as_os_str().as_encoded_bytes();
    let mut program = fs::read(child).unwrap();
    let places: Vec<usize> = (0..program.len() - path.len())
        .filter(|at| program[*at..].starts_with(path))
        .collect();
    assert!(!places.is_empty(), "the run path is in the file");
    for at in places {
        program[at + 1..at + path.len()].fill(b'x');
    }
    fs::write(machine.path("without"), program).unwrap();
    // Another process writes the program itself, as in `write_program`.
    let mut install = Command::new("install");
    install
        .args(["-m", "755"])
        .arg(machine.path("without"))
        .arg(machine.path("kiln-trial"));
    assert!(install.status().unwrap().success());
}
