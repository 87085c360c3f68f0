//! Output of `kiln snapshot` under a driver that answers as a real machine's did, against what
//! `nvidia-smi` printed there.
//!
//! Every file of `tests/captures/nvidia-smi`, and every file under `$KILN_NVML_CAPTURES`, else
//! `../shared/nvml` beside the repository, is converted to a scenario, played by the fake NVML, and
//! compared cell by cell, and line by line where the driver is of the branch whose layout kiln
//! prints. Only what `docs/nvidia-smi-labels.csv` says may differ. Where there are no captures
//! outside the repository, `--skip real_captures` leaves their tests out.
//!
//! The short form prints by the library and the long form by the program; one capture is printed by
//! both in either form.

mod labels;
mod mutated;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fake_nvml::{
    Scenario,
    convert::{self, Moment, Node, Page, Prefer},
    install::{install, play},
};
use kiln_hardware::{
    Gpu, Nvml,
    query::{Query, QueryFormat},
    text::{Naming, text},
};

use self::labels::{Cell, Labels};
use crate::form;

/// Whose layout `kiln snapshot` prints.
const LAYOUT_BRANCHES: std::ops::RangeInclusive<u32> = 590..=594;

/// From this branch on, labels have the order of that layout.
const ORDER_SINCE: u32 = 560;

/// A capture of a real machine at one moment.
struct Capture {
    name: String,
    text: String,
    moment: Moment,
}

/// The captures that are kept here: machines on which `scripts/check-gpu.sh` ran. Serial numbers,
/// UUIDs and PDIs in them are made up.
fn kept_captures() -> Vec<Capture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/nvidia-smi");
    captures_in(files(&folder))
}

fn captures() -> Vec<Capture> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/nvml");
    let named = std::env::var_os("KILN_NVML_CAPTURES").map(PathBuf::from);
    let folder = named
        .into_iter()
        .chain([beside])
        .find(|folder| folder.is_dir());
    let folder = folder.expect(
        "captures of real machines, at $KILN_NVML_CAPTURES or ../shared/nvml; `--skip \
         real_captures` does without",
    );
    let found = ["", "captures", "smi-q"]
        .iter()
        .flat_map(|below| files(&folder.join(below)));
    captures_in(found.collect())
}

fn captures_in(mut files: Vec<PathBuf>) -> Vec<Capture> {
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = convert::decode(&fs::read(&file).unwrap()).unwrap();
        if !text.contains("NVSMI LOG=") && !text.contains("<nvidia_smi_log>") {
            continue;
        }
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let moments: &[Moment] = if text.contains("# idle :: query (-q)") {
            &[Moment::Idle, Moment::Load]
        } else {
            &[Moment::Load]
        };
        found.extend(moments.iter().map(|moment| Capture {
            name: name.clone(),
            text: text.clone(),
            moment: *moment,
        }));
    }
    found
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    entries
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "txt" || end == "xml")
        })
        .collect()
}

/// What the program prints under a scenario.
fn kiln(scenario: &Scenario, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let library = install(folder.path(), scenario).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    // A busy machine may take its time for hundreds of GPUs.
    command
        .args(arguments)
        .current_dir(folder.path())
        .env("KILN_NVML_LIB", library)
        .env("KILN_NVML_PATIENCE", "60")
        .env("TZ", "UTC");
    let output = command
        .env_remove("FAKE_NVML_SCENARIO")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A driver in this process, which plays one scenario after the other.
struct Driver {
    /// Where the library is.
    _folder: tempfile::TempDir,
    library: PathBuf,
}

impl Driver {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = install(folder.path(), &Scenario::default()).unwrap();
        Self {
            _folder: folder,
            library,
        }
    }

    fn gpus(&self, scenario: &Scenario) -> Vec<Gpu> {
        play(&self.library, scenario).unwrap();
        Gpu::read_all(&Nvml::open(Some(&self.library)).unwrap())
    }

    /// What the library makes of a scenario for `kiln snapshot`.
    fn text(&self, scenario: &Scenario) -> String {
        text(&self.gpus(scenario), &jiff::Zoned::now(), Naming::Full)
    }

    /// The same for `kiln snapshot --query`.
    fn table(&self, scenario: &Scenario, properties: &str) -> String {
        let query = Query::parse(properties, QueryFormat::parse("csv").unwrap()).unwrap();
        query.answer(&self.gpus(scenario), &jiff::Zoned::now())
    }

    /// `kiln snapshot`: by the library, or in the long form by the program.
    fn snapshot(&self, scenario: &Scenario) -> String {
        if form::is_long() {
            kiln(scenario, &["snapshot"])
        } else {
            self.text(scenario)
        }
    }

    fn query(&self, scenario: &Scenario, properties: &str) -> String {
        if form::is_long() {
            kiln(
                scenario,
                &["snapshot", "--query", properties, "--format", "csv"],
            )
        } else {
            self.table(scenario, properties)
        }
    }
}

#[test]
fn real_captures_are_printed_by_the_program_as_by_the_library() {
    let capture = captures().remove(0);
    let scenario = convert::scenario(&capture.text, capture.moment, Prefer::Text).unwrap();
    let driver = Driver::new();
    let timeless = |page: &str| {
        page.lines()
            .filter(|line| !line.starts_with("Timestamp"))
            .map(str::to_owned)
            .collect::<Vec<String>>()
    };
    assert_eq!(
        timeless(&kiln(&scenario, &["snapshot"])),
        timeless(&driver.text(&scenario))
    );
    let properties = "name,uuid,memory.used,power.draw,utilization.gpu";
    assert_eq!(
        kiln(
            &scenario,
            &["snapshot", "--query", properties, "--format", "csv"]
        ),
        driver.table(&scenario, properties)
    );
}

#[test]
fn real_captures_have_the_text_of_nvidia_smi() {
    check_texts(&captures());
}

#[test]
fn kept_captures_have_the_text_of_nvidia_smi() {
    check_texts(&kept_captures());
}

fn check_texts(captures: &[Capture]) {
    let driver = Driver::new();
    let mut differences = Vec::new();
    for capture in captures {
        let scenario = convert::scenario(&capture.text, capture.moment, Prefer::Text).unwrap();
        let printed = driver.snapshot(&scenario);
        let real = convert::page(&capture.text, capture.moment).unwrap();
        let ours = convert::page(&printed, Moment::Load).unwrap();
        let labels = Labels::of_branch(real.branch());
        let mut found = pages(&real, &ours, &labels);
        if real.branch() >= ORDER_SINCE {
            found.extend(order(&real, &ours));
        }
        if LAYOUT_BRANCHES.contains(&real.branch())
            && let Some(log) = convert::log(&capture.text, capture.moment)
        {
            found.extend(lines(&log, &printed, &labels));
        }
        differences.extend(
            found
                .into_iter()
                .map(|difference| format!("{} {:?}: {difference}", capture.name, capture.moment)),
        );
    }
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// `scripts/check-gpu.sh` compares both pages on a machine with a GPU, by the same map.
#[test]
fn kept_captures_are_compared_by_check_gpu_with_its_faults_and_tolerances() {
    test_in_python("test_pages.py");
}

#[test]
fn check_gpu_has_the_limits_order_and_names_of_its_parts() {
    test_in_python("test_parts.py");
}

/// Tests of `scripts/check_gpu` that need no GPU.
fn test_in_python(name: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/captures")
        .join(name);
    let output = Command::new("python3")
        .arg("-I")
        .arg(script)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The error codes of a real driver are not on its page; the scenario has them, as kiln read them
/// on that machine.
#[test]
fn the_h200_of_the_scenarios_has_the_page_of_the_real_one() {
    const INVENTED: [&str; 13] = [
        "Serial Number",
        "GPU UUID",
        "Board ID",
        "PCI > Bus",
        "PCI > Device",
        "PCI > Bus Id",
        "BAR1 Memory Usage > Used",
        "Temperature > GPU Current Temp",
        "Temperature > GPU T.Limit Temp",
        "Temperature > Memory Current Temp",
        "GPU Power Readings > Average Power Draw",
        "GPU Power Readings > Instantaneous Power Draw",
        "GPU 00000000:00:06.0 is 00000000:81:00.0",
    ];
    let scenario = Scenario::read(Path::new("tests/scenarios/h200.yaml")).unwrap();
    let ours = convert::page(&Driver::new().snapshot(&scenario), Moment::Load).unwrap();
    let kept = kept_captures()
        .into_iter()
        .find(|kept| kept.name == "linux-x86_64__nvidia-h200__580.159.04.txt")
        .expect("the capture that the scenario was made from");
    let real = convert::page(&kept.text, kept.moment).unwrap();
    let mut found = pages(&real, &ours, &Labels::of_branch(real.branch()));
    found.retain(|found| {
        let label = found.split_once(": ").map_or("", |(label, _)| label);
        !INVENTED.contains(&label) && !INVENTED.contains(&found.as_str())
    });
    assert!(found.is_empty(), "{found:#?}");
}

/// Cells that differ between two pages, after the map between branches.
fn pages(real: &Page, ours: &Page, labels: &Labels) -> Vec<String> {
    let head = |page: &Page| {
        Node {
            children: page.head.clone(),
            ..Node::default()
        }
        .cells()
    };
    let is_compared = |cell: &Cell| cell.0 != "Timestamp" && cell.0 != "Attached GPUs";
    let mut found = cells(
        head(real).into_iter().filter(is_compared).collect(),
        head(ours).into_iter().filter(is_compared).collect(),
        labels,
    );
    if ours.head_cell("Attached GPUs") != Some(real.gpus.len().to_string().as_str()) {
        found.push(format!(
            "{:?} GPUs attached, {} in the capture",
            ours.head_cell("Attached GPUs"),
            real.gpus.len()
        ));
    }
    for (real, ours) in real.gpus.iter().zip(&ours.gpus) {
        if real.label != ours.label {
            found.push(format!("GPU {} is {}", real.label, ours.label));
        }
        found.extend(cells(real.cells(), ours.cells(), labels));
    }
    found
}

/// Cells under one label are compared in their order; labels in any.
fn cells(real: Vec<Cell>, ours: Vec<Cell>, labels: &Labels) -> Vec<String> {
    let mut expected: HashMap<String, Vec<String>> = HashMap::new();
    for (path, cell) in real.iter().filter_map(|cell| labels.bring(cell)) {
        expected.entry(path).or_default().push(cell);
    }
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    for (path, cell) in ours {
        if expected.contains_key(&path) || !labels.is_added(&(path.clone(), cell.clone())) {
            found.entry(path).or_default().push(cell);
        }
    }
    let mut paths: Vec<&String> = expected.keys().chain(found.keys()).collect();
    paths.sort();
    paths.dedup();
    let is_same = |path: &str| {
        found
            .get(path)
            .is_some_and(|ours| labels.is_same(path, ours, &expected))
    };
    let differs = paths.into_iter().filter(|path| !is_same(path));
    differs
        .map(|path| {
            format!(
                "{path}: {:?} is printed as {:?}",
                expected.get(path),
                found.get(path)
            )
        })
        .collect()
}

/// The first label that two pages have at another place among those that both have, each once.
fn order(real: &Page, ours: &Page) -> Option<String> {
    let paths = |page: &Page| -> Vec<String> {
        let cells = page.gpus.first().map(Node::cells).unwrap_or_default();
        cells.into_iter().map(|(path, _)| path).collect()
    };
    let (real, ours) = (paths(real), paths(ours));
    let is_once =
        |paths: &[String], path: &String| paths.iter().filter(|other| *other == path).count() == 1;
    let is_shared = |path: &&String| is_once(&real, path) && is_once(&ours, path);
    let differing = real
        .iter()
        .filter(is_shared)
        .zip(ours.iter().filter(is_shared))
        .find(|(real, ours)| real != ours);
    differing.map(|(real, ours)| format!("`{ours}` is printed where `{real}` should be"))
}

/// The first lines that differ, spacing included.
fn lines(log: &[&str], printed: &str, labels: &Labels) -> Vec<String> {
    let printed = printed
        .split_once("NVSMI LOG")
        .map_or(printed, |(_, after)| after);
    let mut printed = printed
        .lines()
        .skip(1)
        .map(str::trim_end)
        .collect::<Vec<_>>();
    let mut real = log.iter().map(|line| line.trim_end()).collect::<Vec<_>>();
    for lines in [&mut printed, &mut real] {
        while lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
    }
    let is_own = |line: &str| {
        let label = line.split(" :").next().unwrap_or_default().trim();
        label == "Timestamp"
            || labels.has_no_call(label)
            || ["Host Max", "Relaxed Ordering Mode"].contains(&label)
    };
    let differing = real
        .iter()
        .zip(&printed)
        .filter(|(real, ours)| real != ours && !is_own(real));
    let mut found: Vec<String> = differing
        .take(3)
        .map(|(real, ours)| format!("line\n    `{real}` is printed as\n    `{ours}`"))
        .collect();
    if real.len() != printed.len() {
        found.push(format!("{} lines, {} printed", real.len(), printed.len()));
    }
    found
}

#[test]
fn real_captures_have_the_table_of_nvidia_smi() {
    check_tables(&captures());
}

#[test]
fn kept_captures_have_the_table_of_nvidia_smi() {
    check_tables(&kept_captures());
}

fn check_tables(captures: &[Capture]) {
    let driver = Driver::new();
    let mut differences = Vec::new();
    for capture in captures {
        let Some(table) = convert::table(&capture.text, capture.moment) else {
            continue;
        };
        let scenario = convert::scenario(&capture.text, capture.moment, Prefer::Table).unwrap();
        let printed = driver.query(&scenario, &table.properties.join(","));
        let mut printed = printed.lines();
        let header = printed.next().unwrap_or_default();
        if header != table.header {
            differences.push(format!(
                "{} {:?}: header `{header}`",
                capture.name, capture.moment
            ));
        }
        for row in &table.rows {
            let ours: Vec<&str> = printed
                .next()
                .unwrap_or_default()
                .split(',')
                .map(str::trim)
                .collect();
            for (property, (real, ours)) in table.properties.iter().zip(row.iter().zip(ours)) {
                let is_own = property == "timestamp" || property == "pcie.link.gen.hostmax";
                if !is_own && real != ours {
                    differences.push(format!(
                        "{} {:?}: {property} `{real}` is printed as `{ours}`",
                        capture.name, capture.moment
                    ));
                }
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}
