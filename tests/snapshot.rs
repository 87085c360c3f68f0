//! `kiln snapshot` against a fake driver, and without any.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    process::{Command, Output},
    sync::OnceLock,
};

use fake_nvml::{Scenario, install::install};
use kiln_hardware::{
    Gpu, Nvml,
    text::{Naming, text},
};

/// The library that plays `tests/scenarios/snapshot.yaml`.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, std::path::PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = install(
            folder.path(),
            &Scenario::read(Path::new("tests/scenarios/snapshot.yaml")).unwrap(),
        )
        .unwrap();
        (folder, path)
    });
    path
}

fn with_driver(library: &Path, args: &[&str]) -> Output {
    let mut kiln = Command::new(env!("CARGO_BIN_EXE_kiln"));
    // A busy machine may take its time.
    kiln.arg("snapshot")
        .args(args)
        .env("KILN_NVML_LIB", library)
        .env("KILN_NVML_PATIENCE", "60")
        .env("TZ", "UTC");
    kiln.env_remove("FAKE_NVML_SCENARIO").output().unwrap()
}

fn said(args: &[&str]) -> String {
    let ended = with_driver(library(), args);
    assert!(
        ended.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
    String::from_utf8(ended.stdout).unwrap()
}

/// Status and standard error of a command that is refused.
fn refused(library: &Path, args: &[&str]) -> (Option<i32>, String) {
    let ended = with_driver(library, args);
    assert!(ended.stdout.is_empty());
    (
        ended.status.code(),
        String::from_utf8(ended.stderr).unwrap(),
    )
}

/// The page with its time taken out.
fn timeless(page: &str) -> String {
    let lines = page.lines().map(|line| {
        if line.starts_with("Timestamp") {
            "Timestamp"
        } else {
            line
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_page_is_nvidia_smis_to_the_letter() {
    let page = timeless(&said(&[]));
    if std::env::var_os("KILN_BLESS").is_some() {
        fs::write(
            "tests/expected/snapshot/page.txt",
            format!("{}\n", page.trim_end()),
        )
        .unwrap();
    }
    let wanted = fs::read_to_string("tests/expected/snapshot/page.txt").unwrap();
    let (page, wanted) = (page.trim_end(), wanted.trim_end());
    for (number, (found, wanted)) in page.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(found, wanted, "line {}", number + 1);
    }
    assert_eq!(page.lines().count(), wanted.lines().count());
}

#[test]
fn a_patience_that_is_none_is_refused() {
    for patience in ["soon", "0", "-3", "1e9", ""] {
        let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
            .arg("ls")
            .env("KILN_NVML_PATIENCE", patience)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(
            said,
            format!(
                "KILN_NVML_PATIENCE is `{patience}`; it must be a number of seconds from 0.01 to \
                 3600, such as `10`\n"
            )
        );
    }
}

#[test]
fn a_gpu_is_chosen_by_index_uuid_or_address() {
    for name in [
        "1",
        "GPU-5ca1ab1e-0000-4000-8000-000000000002",
        "00000000:0C:00.0",
        "0c:00.0",
    ] {
        assert_eq!(
            said(&["-i", name, "--query", "name", "--format", "csv,noheader"]),
            "NVIDIA GeForce K2\n",
            "{name}"
        );
    }
    assert_eq!(
        said(&["-i", "1,0", "--query", "index", "--format", "noheader"]),
        "1\n0\n"
    );
    let (status, why) = refused(library(), &["-i", "7"]);
    assert_eq!(
        (status, why.as_str()),
        (
            Some(2),
            "`-i`: no GPU `7`; there are 3; name them by index (from 0), UUID or PCI address\n"
        )
    );
}

#[test]
fn a_query_has_nvidia_smis_names_units_and_words() {
    let asked = "gpu_name,memory.used,power.draw,temperature.gpu,clocks.sm,utilization.gpu,fabric.health.bandwidth,edpp_multiplier,bbx.time_run";
    let wanted = "name, memory.used [MiB], power.draw [W], temperature.gpu, clocks.current.sm \
                  [MHz], utilization.gpu [%], fabric.health.bandwidth, edpp_multiplier [%], \
                  bbx.time_run [seconds]\n\
                  NVIDIA K1, 32363 MiB, 690.12 W, 52, 1980 MHz, [N/A], Full, 100.00 %, [Function \
                  Not Found]\n\
                  NVIDIA GeForce K2, [Insufficient Permissions], [N/A], [N/A], [N/A], 0 %, N/A, \
                  [N/A], [Function Not Found]\n\
                  [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU \
                  is lost], N/A, [GPU is lost], [Function Not Found]\n";
    let found = said(&["--query", asked]);
    // A lost GPU may lack the symbol or the device first; either is a reason.
    assert_eq!(
        found.replace(
            "N/A, [GPU is lost], [GPU is lost]\n",
            "N/A, [GPU is lost], [Function Not Found]\n"
        ),
        wanted
    );
    assert_eq!(
        said(&[
            "--query-gpu",
            "memory.used",
            "--format",
            "csv,noheader,nounits",
            "-i",
            "0"
        ]),
        "32363\n"
    );
}

#[test]
fn a_slip_in_a_query_is_told_before_the_driver_is_asked() {
    let nowhere = Path::new("/nowhere/libnvidia-ml.so.1");
    let (status, why) = refused(nowhere, &["--query", "name,utilisation.gpu"]);
    assert_eq!(status, Some(2));
    assert!(
        why.contains("unknown property `utilisation.gpu` (did you mean `utilization.gpu`?)"),
        "{why}"
    );
    let (status, why) = refused(nowhere, &["--query", "name", "--format", "tsv"]);
    assert!(
        status == Some(2) && why.contains("`csv`, `noheader` and `nounits`"),
        "{why}"
    );
}

#[test]
fn without_a_driver_the_host_is_shown_and_a_query_has_nothing_to_ask() {
    let nowhere = Path::new("/nowhere/libnvidia-ml.so.1");
    for args in [&[][..], &["--words"]] {
        let ended = with_driver(nowhere, args);
        let page = String::from_utf8(ended.stdout).unwrap();
        assert!(
            ended.status.success()
                && page.contains("No GPU can be read: no NVML at /nowhere/libnvidia-ml.so.1"),
            "{page}"
        );
    }
    let (status, why) = refused(nowhere, &["--query", "name"]);
    assert!(
        status == Some(3)
            && why.starts_with("`--query` needs a GPU, and none can be read: no NVML at "),
        "{why}"
    );
    let json: serde_json::Value =
        serde_json::from_slice(&with_driver(nowhere, &["--json"]).stdout).unwrap();
    assert!(
        json["no_gpu_because"].is_string()
            && json["host"]["cpu"]["usable_cores"]["value"]
                .as_u64()
                .unwrap()
                >= 1
    );
}

#[test]
fn the_tidy_table_and_json_hold_the_same_fields_each_with_a_value_or_a_reason() {
    let (csv, json) = (said(&["--csv"]), said(&["--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let mut seen = HashSet::new();
    for row in csv::Reader::from_reader(csv.as_bytes())
        .records()
        .map(Result::unwrap)
    {
        let [device, section, field, value, _unit, reason] =
            std::array::from_fn(|at| row.get(at).unwrap());
        assert!(
            seen.insert((device.to_owned(), section.to_owned(), field.to_owned())),
            "{row:?} twice"
        );
        let gpu = json["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .find(|gpu| gpu["device"] == device);
        let told = gpu.map_or(&json["host"], |gpu| &gpu["readings"])[section]
            .get(field)
            .unwrap_or_else(|| panic!("{row:?} is not in the JSON"));
        assert_eq!(
            told["value"].is_null(),
            !reason.is_empty(),
            "{row:?} {told}"
        );
        assert!(reason.is_empty() || value.is_empty(), "{row:?}");
    }
    let first = &json["gpus"][0]["readings"];
    assert_eq!(
        (
            &first["power"]["draw"]["value"],
            &first["power"]["draw"]["unit"]
        ),
        (&serde_json::json!(690.125), &"W".into())
    );
    assert_eq!(
        (
            &first["mig"]["device1_multiprocessors"]["value"],
            &first["identity"]["cores"]["value"]
        ),
        (&60.into(), &16896.into())
    );
    assert_eq!(first["modes"]["is_persistent"]["value"], true);
    assert_eq!(json["gpus"].as_array().unwrap().len(), 3);
}

#[test]
fn the_words_rest_on_readings() {
    let words = said(&["--words"]);
    for sentence in [
        "activity: unknown; the GPU is divided into MIG devices (1)",
        "(memory.used 32363 MiB, memory.free 110795 MiB)",
        "power: at the limit, 99 %",
        "temperature: 52 °C, hot, 4 °C below the limit",
        "clock limit: sw_power_cap",
        "compute processes: 1 (4242",
        "needs attention: rows of its memory are waiting for a reset",
        "activity: idle, nothing ran in the last second (utilization.gpu 0 %, pstate P8)",
        "memory: unknown, this user may not read it",
        "the GPU is lost",
        "Host: ",
    ] {
        assert!(words.contains(sentence), "{sentence}\n{words}");
    }
}

#[test]
fn a_little_used_gpu_has_likely_causes_and_a_next_command() {
    let folder = tempfile::tempdir().unwrap();
    let words = |processes: &str| {
        let busy = fs::read_to_string("tests/scenarios/h200.yaml")
            .unwrap()
            .replace("Rates: {gpu: 0, memory: 0}", "Rates: {gpu: 3, memory: 1}")
            .replace(
                "GetComputeRunningProcesses_v3: []",
                &format!("GetComputeRunningProcesses_v3: [{processes}]"),
            );
        let scenario = folder.path().join("busy.yaml");
        fs::write(&scenario, busy).unwrap();
        let library = install(folder.path(), &Scenario::read(&scenario).unwrap()).unwrap();
        let ended = with_driver(&library, &["--words"]);
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    let training = words("{pid: 4242, usedGpuMemory: 2690646016}");
    for part in [
        "  low utilization, 3 %; likely causes:\n    - waiting for data: the host ",
        "    - batches too small to keep it busy: ",
        "`kiln watch` shows the course\n  next: `kiln report` names the cause",
    ] {
        assert!(training.contains(part), "{part}\n{training}");
    }
    let unseen = words("");
    assert!(
        unseen.contains("- no compute process is visible"),
        "{unseen}"
    );
    assert!(!said(&["--words"]).contains("low utilization"));
}

#[test]
fn a_masked_page_names_no_board_and_no_process() {
    let nvml = Nvml::open(Some(library())).unwrap();
    let gpus = Gpu::read_all(&nvml);
    let page = |naming| text(&gpus, &"2026-07-03T22:11:09[UTC]".parse().unwrap(), naming);
    assert!(
        page(Naming::Full).contains("1659000000000")
            && page(Naming::Full).contains("Fri Jul  3 22:11:09 2026")
    );
    let masked = page(Naming::Masked("masked"));
    for secret in [
        "1659000000000",
        "4242",
        "python3",
        "0x0000000000001234",
        "1f1f1f1f",
    ] {
        assert!(!masked.contains(secret), "{secret}");
    }
    assert!(masked.contains("GPU-5ca1ab1e-0000-4000-8000-000000000001"));
}

/// Property lists of real drivers, where they are at hand.
#[test]
fn every_property_of_nvidia_smi_is_known() {
    let known = said(&["--list"]);
    let known: HashSet<&str> = known
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let lists = [
        "../shared/nvml/help-query-gpu-r590.txt",
        "../shared/nvml/help-query-gpu-r610.txt",
    ];
    for list in lists
        .into_iter()
        .filter_map(|list| fs::read_to_string(list).ok())
    {
        let heads = list
            .split("--help-query-compute-apps")
            .next()
            .unwrap()
            .lines()
            .filter(|line| line.starts_with('"'));
        for name in heads
            .filter_map(|line| line.split('"').nth(1))
            .filter(|name| !name.contains(' '))
        {
            assert!(known.contains(name), "{name}");
        }
    }
    for name in [
        "timestamp",
        "name",
        "memory.used",
        "ecc.errors.uncorrected.aggregate.sram.mcu",
        "power_smoothing.curr_profile.ramp_up_rate",
    ] {
        assert!(known.contains(name), "{name}");
    }
}

/// Missing in drivers before 510: the list of processes with instances, and the memory with what is
/// reserved.
#[test]
fn an_old_driver_is_asked_by_its_own_calls() {
    let new = Scenario::read(Path::new("tests/scenarios/snapshot.yaml")).unwrap();
    for (ending, instance) in [("_v2", "2"), ("", "N/A")] {
        let mut old = new.clone();
        let endings = ["_v3", "_v2", ""]
            .into_iter()
            .take_while(|newer| *newer != ending);
        old.missing
            .extend(endings.map(|ending| format!("nvmlDeviceGetComputeRunningProcesses{ending}")));
        old.missing.push("nvmlDeviceGetMemoryInfo_v2".to_owned());
        let calls = &mut old.devices[0].calls;
        let list = calls
            .remove("nvmlDeviceGetComputeRunningProcesses_v3")
            .unwrap();
        calls.insert(
            format!("nvmlDeviceGetComputeRunningProcesses{ending}"),
            list,
        );
        let memory = calls.remove("nvmlDeviceGetMemoryInfo_v2").unwrap();
        calls.insert("nvmlDeviceGetMemoryInfo".to_owned(), memory);
        let folder = tempfile::tempdir().unwrap();
        let ended = with_driver(&install(folder.path(), &old).unwrap(), &["-i", "0"]);
        let page = String::from_utf8(ended.stdout).unwrap();
        let cell = |label: &str, after: &str| {
            let rest = &page[page.find(after).unwrap()..];
            let line = rest
                .lines()
                .find(|line| line.trim_start().starts_with(label))
                .unwrap();
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        assert_eq!(cell("Used GPU Memory", "4242"), "2566 MiB", "{ending}");
        assert_eq!(
            ["Total", "Reserved", "Used"].map(|label| cell(label, "    FB Memory Usage\n")),
            ["143772 MiB", "N/A", "32363 MiB"]
        );
        let before = &page[..page.find("4242").unwrap()];
        let ids = before
            .lines()
            .rev()
            .find(|line| line.contains("GPU instance ID"))
            .unwrap();
        assert_eq!(ids.split_once(':').unwrap().1.trim(), instance, "{ending}");
    }
}

#[test]
fn a_machine_without_gpus_has_none_attached() {
    let page = text(&[], &jiff::Zoned::now(), Naming::Full);
    assert!(
        page.lines()
            .any(|line| line.starts_with("Attached GPUs ") && line.ends_with(": 0")),
        "{page}"
    );
}
