//! `kiln watch` with a library that plays scenarios, and `kiln watch RUN`.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    hardware_scenarios::{wanted, with_patience},
    scripted_child::{Ended, Place, signal, wait_until},
    terminal::Terminal,
};

type Row = HashMap<String, String>;

/// Two invented boards, the second of which is to be spoilt.
const TWO: &str = "
calls: {nvmlSystemGetDriverVersion: 590.48.01}
devices:
- calls:
    nvmlDeviceGetUUID: GPU-a
    nvmlDeviceGetName: Invented
    nvmlDeviceGetUtilizationRates: {gpu: 75, memory: 7}
    nvmlDeviceGetMemoryInfo_v2: {total: 2147483648, reserved: 0, used: 1073741824, free: 1073741824}
    nvmlDeviceGetPowerUsage: 250000
    nvmlDeviceGetEnforcedPowerLimit: 300000
    nvmlDeviceGetClockInfo/1: 1500
- calls:
    nvmlDeviceGetUUID: GPU-b
    nvmlDeviceGetName: Invented
    nvmlDeviceGetMemoryInfo_v2: {total: 1000, reserved: 0, used: 1, free: 999}
    nvmlDeviceGetUtilizationRates: RATES
";

/// The second is idle.
fn two() -> String {
    TWO.replace("RATES", "{gpu: 0, memory: 0}")
}

/// The second hangs.
fn one_hangs() -> String {
    TWO.replace("RATES", "{hang: true}")
}

/// The library with a scenario, in a folder that must live as long as it is used.
fn library(scenario: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let scenario: fake_nvml::Scenario = serde_yaml::from_str(scenario).unwrap();
    let path = fake_nvml::install::install(folder.path(), &scenario).unwrap();
    (folder, path)
}

fn watch(library: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    // A busy machine may take its time for what does not hang.
    command
        .arg("watch")
        .args(arguments)
        .env("KILN_NVML_LIB", library)
        .env("KILN_NVML_PATIENCE", "60")
        .stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(command: &mut Command) -> Ended {
    Ended::of(command.output().unwrap())
}

fn rows(table: impl Read) -> Vec<Row> {
    csv::Reader::from_reader(table)
        .deserialize()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn a_line_per_device_and_look_under_one_heading() {
    let (_folder, library) = library(&two());
    let seen = ended(&mut watch(&library, &["-l", "0.1", "--count", "3"]));
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!((seen.status, lines.len()), (Some(0), 7), "{seen:?}");
    assert!(
        lines[0].starts_with("UTC       GPU name ") && lines[0].ends_with("clock limit"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].contains("  0 Invented ")
            && lines[1].contains(" 75 % ")
            && lines[1].contains("1.0 GiB / 2.0 GiB")
            && lines[1].contains("250 W / 300 W"),
        "{}",
        lines[1]
    );
    assert!(
        !seen.stdout.contains('\u{1b}'),
        "no control codes outside a terminal"
    );
    let one = ended(&mut watch(&library, &["--count", "1", "-i", "GPU-b"]));
    assert!(
        one.stdout.lines().count() == 2 && one.stdout.contains("  1 Invented "),
        "{one:?}"
    );
}

#[test]
fn rows_are_tidy_and_a_hanging_device_spoils_only_its_own() {
    with_patience(|seconds| {
        let (folder, library) = library(&one_hangs());
        let table = folder.path().join("w.csv");
        let mut kiln = watch(
            &library,
            &[
                "-l",
                "0.1",
                "--count",
                "3",
                "--host",
                "--csv",
                table.to_str().unwrap(),
            ],
        );
        let seen = ended(kiln.env("KILN_NVML_PATIENCE", seconds));
        assert_eq!(seen.status, Some(0), "{seen:?}");
        assert!(
            seen.stdout.contains("the driver has not answered for ")
                && seen.stdout.contains("  host  CPU "),
            "{}",
            seen.stdout
        );
        let rows = rows(fs::File::open(table).unwrap());
        let of = |device: &str| -> Vec<&Row> {
            rows.iter().filter(|row| row["device"] == device).collect()
        };
        assert_eq!(
            (of("GPU-a").len(), of("GPU-b").len(), of("host").len()),
            (3, 3, 3)
        );
        assert!(
            of("GPU-b")
                .iter()
                .all(|row| row["gpu_utilization"].is_empty()
                    && row["device_absence"].starts_with("the driver has not answered"))
        );
        assert!(
            of("host")
                .iter()
                .all(|row| !row["host_memory_available_bytes"].is_empty())
        );
        let is_well = |row: &&Row| {
            row["gpu_utilization"] == "0.75"
                && row["power_watts"] == "250.0"
                && row["device_absence"].is_empty()
        };
        wanted(of("GPU-a").iter().all(is_well), || format!("{rows:?}"))
    });
}

#[test]
fn a_table_on_standard_output_comes_alone_and_ends_with_its_reader() {
    let (_folder, library) = library(&two());
    let mut kiln = watch(&library, &["-l", "0.1", "--csv", "-"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(kiln.stdout.take().unwrap()).lines();
    assert!(
        lines
            .next()
            .unwrap()
            .unwrap()
            .starts_with("kiln_table,utc,index,device,name,gpu_utilization,")
    );
    assert!(lines.next().unwrap().unwrap().starts_with("watch/1,20"));
    drop(lines);
    let status = kiln.wait().unwrap();
    let mut said = String::new();
    kiln.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn properties_are_asked_by_nvidia_smis_names_with_one_header() {
    let (_folder, library) = library(&TWO.replace("RATES", "{gpu: 5, memory: 0}"));
    let seen = ended(&mut watch(
        &library,
        &[
            "-l",
            "0.1",
            "--count",
            "2",
            "--query",
            "index,utilization.gpu,power.draw",
            "--format",
            "csv",
        ],
    ));
    assert_eq!(seen.status, Some(0), "{seen:?}");
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!(lines[0], "index, utilization.gpu [%], power.draw [W]");
    assert_eq!(
        (lines.len(), lines[2], lines[3] == lines[1]),
        (5, "1, 5 %, [N/A]", true),
        "{lines:?}"
    );
    let wrong = ended(&mut watch(
        &library,
        &["--query", "utilisation.gpu,name,xyzzy"],
    ));
    assert!(
        wrong.status == Some(2) && wrong.stderr.contains("did you mean `utilization.gpu`?"),
        "{wrong:?}"
    );
    assert!(
        wrong
            .stderr
            .contains("unknown property `xyzzy`; `kiln snapshot --list`"),
        "{wrong:?}"
    );
}

#[test]
fn without_a_driver_it_says_so_and_the_host_alone_can_be_watched() {
    let nowhere = Path::new("/nowhere/libnvidia-ml.so.1");
    let absent = ended(&mut watch(nowhere, &["--count", "1"]));
    assert_eq!(absent.status, Some(3));
    assert!(
        absent.stderr.starts_with("no NVML at /nowhere/")
            && absent.stderr.contains("`kiln watch --host`"),
        "{}",
        absent.stderr
    );
    let host = ended(&mut watch(nowhere, &["--count", "1", "--host"]));
    assert!(
        host.status == Some(0) && host.stdout.contains("  host  CPU "),
        "{host:?}"
    );
    for wrong in [&["-l", "0"][..], &["-l", "soon"], &["--count", "0"]] {
        assert_eq!(
            ended(&mut watch(nowhere, wrong)).status,
            Some(2),
            "{wrong:?}"
        );
    }
    let (_folder, library) = library(&two());
    for (asked, why) in [
        ("7", "`-i`: no GPU `7`"),
        ("", "`-i` names no GPU"),
        (" ,", "`-i` names no GPU"),
    ] {
        let wrong = ended(&mut watch(&library, &["-i", asked]));
        assert_eq!(wrong.status, Some(2), "{asked:?}: {wrong:?}");
        assert!(
            wrong.stderr.starts_with(why)
                && wrong
                    .stderr
                    .contains("there are 2; name them by index (from 0)"),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_gpu_is_named_as_for_a_snapshot() {
    let board = two().replace(
        "nvmlDeviceGetUUID: GPU-b",
        "nvmlDeviceGetUUID: GPU-b\n    nvmlDeviceGetPciInfo_v3: {domain: 0, bus: 145, device: 0, \
         pciDeviceId: 1, pciSubSystemId: 1, busId: '00000000:91:00.0'}",
    );
    let (_folder, library) = library(&board);
    for (asked, names) in [
        ("91:00.0", &["GPU-b"][..]),
        ("1, 0", &["GPU-b", "GPU-a"]),
        ("0,", &["GPU-a"]),
        ("GPU-b,1", &["GPU-b"]),
    ] {
        let seen = ended(&mut watch(
            &library,
            &["--count", "1", "-i", asked, "--csv", "-"],
        ));
        let found: Vec<&str> = seen
            .stdout
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(3).unwrap())
            .collect();
        assert_eq!(found, names, "{asked:?}: {seen:?}");
    }
}

#[test]
fn a_file_that_is_no_table_of_watch_is_left_alone() {
    let (folder, library) = library(&two());
    let path = folder.path().join("n.txt");
    let appended = || {
        ended(&mut watch(
            &library,
            &["--count", "1", "--csv", path.to_str().unwrap()],
        ))
    };
    for notes in [
        "my precious notes",
        "a line\nand another without its end",
        "kiln_table,trial\n\
         rows/1,x\nrows/1,",
    ] {
        fs::write(&path, notes).unwrap();
        let refused = appended();
        assert_eq!(
            (refused.status, fs::read_to_string(&path).unwrap().as_str()),
            (Some(2), notes),
            "{refused:?}"
        );
        assert!(
            refused.stderr.contains("watch/1") && refused.stderr.len() < 300,
            "{}",
            refused.stderr
        );
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(appended().status, Some(0));
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, whole.clone() + "watch/1,2026").unwrap();
    let mended = appended();
    assert_eq!(mended.status, Some(0), "{mended:?}");
    assert!(
        mended
            .stderr
            .contains("n.txt:4: an incomplete last line was removed: `watch/1,2026`"),
        "{}",
        mended.stderr
    );
    assert!(
        fs::read_to_string(&path).unwrap().starts_with(&whole)
            && !fs::read_to_string(&path)
                .unwrap()
                .contains("watch/1,2026\n")
    );
    let nowhere = ended(&mut watch(
        &library,
        &["--count", "1", "--csv", "/nonexistent/x.csv"],
    ));
    assert!(
        nowhere.status == Some(1)
            && nowhere
                .stderr
                .starts_with("/nonexistent/x.csv: opening failed: "),
        "{nowhere:?}"
    );
}

#[test]
fn the_first_look_has_rates_and_the_chips_counters() {
    let gpm = "    nvmlGpmQueryDeviceSupport: 1\n    nvmlGpmMetricsGet/2: 95.5\n    \
               nvmlGpmMetricsGet/3: 40.0\n    nvmlGpmMetricsGet/5: 30.0\n    \
               nvmlDeviceGetClockInfo/1: 1500";
    let (_folder, library) = library(&two().replace("    nvmlDeviceGetClockInfo/1: 1500", gpm));
    let seen = ended(&mut watch(
        &library,
        &["--count", "1", "--host", "--csv", "-"],
    ));
    let rows = rows(seen.stdout.as_bytes());
    assert_eq!(
        (
            rows[0]["sm_active"].as_str(),
            rows[0]["tensor_active"].as_str()
        ),
        ("0.955", "0.3"),
        "{seen:?}"
    );
    let host = rows.iter().find(|row| row["device"] == "host").unwrap();
    assert!(
        !host["host_cpu_fraction"].is_empty()
            && host["reading_seconds"].parse::<f64>().unwrap() > 0.0,
        "{host:?}"
    );
}

#[test]
fn a_silent_driver_leaves_a_query_what_does_not_change() {
    let (_folder, library) = library(&one_hangs());
    with_patience(|patience| {
        // A query waits for half a second at least, for two seconds at most.
        let every = if patience == "0.3" { "0.1" } else { "2" };
        let asked = [
            "-l",
            every,
            "--count",
            "2",
            "--query",
            "index,name,uuid,memory.total,utilization.gpu",
            "--format",
            "csv,noheader",
        ];
        let seen = ended(&mut watch(&library, &asked));
        assert_eq!(seen.status, Some(0), "{seen:?}");
        let lines = [
            "0, Invented, GPU-a, 2048 MiB, 75 %",
            "1, Invented, GPU-b, 1 MiB, [Unknown Error]",
        ];
        wanted(seen.stdout.lines().eq([lines, lines].concat()), || {
            format!("{seen:?}")
        })?;
        assert_eq!(
            seen.stderr.lines().count(),
            1,
            "once for each silence: {}",
            seen.stderr
        );
        assert!(
            seen.stderr
                .starts_with("GPU 1: the driver has not answered for "),
            "{}",
            seen.stderr
        );
        Ok(())
    });
}

#[test]
fn ctrl_c_ends_it_while_a_call_hangs() {
    let (_folder, library) = library(&one_hangs());
    for name in ["INT", "TERM"] {
        let mut kiln = watch(&library, &["-l", "0.1"])
            .env("KILN_NVML_PATIENCE", "0.3")
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(kiln.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("has not answered") {}
        signal(&kiln, name);
        assert_eq!(kiln.wait().unwrap().code(), Some(130));
    }
}

#[test]
fn a_terminal_has_each_look_drawn_over_the_one_before() {
    let (_folder, library) = library(&two());
    let place = Place::with("");
    let mut kiln = place.in_a_terminal(&["watch", "-l", "0.1", "--count", "2"]);
    let seen = ended(
        kiln.env("KILN_NVML_LIB", &library)
            .env("KILN_NVML_PATIENCE", "60"),
    );
    assert_eq!(seen.status, Some(0), "{seen:?}");
    let drawn: Vec<&str> = seen.stdout.split("\u{1b}[J").collect();
    assert_eq!(drawn.len(), 3, "{seen:?}");
    // A heading and two devices at least, each cleared to its end; then the cursor goes up by as
    // many lines.
    let lines = drawn[0].matches("\u{1b}[K").count();
    assert!(
        lines >= 3 && drawn[1].starts_with(&format!("\r\u{1b}[{lines}A")),
        "{seen:?}"
    );
    assert!(
        drawn[..2]
            .iter()
            .all(|page| page.contains("GPU name") && page.contains(" 75 % ")),
        "{seen:?}"
    );
    assert!(
        drawn[2].starts_with("\r\u{1b}[K"),
        "the page stays: {seen:?}"
    );
}

const RUN: &str = "train: {steps: 10}\nsweep: {grid: {train.batch_size: [2, 4]}}";

/// The steps of a trial whose loss falls from 8, each of half a second.
fn steps(count: u64) -> String {
    let header = "kiln_table,run_seconds,epoch,step,loss,learning_rate,step_seconds,\
                  data_wait_seconds,is_warmup\n";
    let row = |step: u64| {
        let (at, loss) = (1.0 + step as f64 * 0.5, 8.0 / step as f64);
        format!("steps/1,{at},1,{step},{loss},0.1,0.5,0.05,false\n")
    };
    header.to_owned() + &(1..=count).map(row).collect::<String>()
}

/// A run whose first trial is at work, with five steps and the beginning of a sixth.
fn running(place: &Place) -> std::process::Child {
    let kiln = place.start("waits");
    wait_until("the first trial is at work", || {
        place.attempts_with("at-work") == 1
    });
    let torn = steps(5) + "steps/1,3.5,1,6,1";
    fs::write(place.attempts()[0].join("steps.csv"), torn).unwrap();
    kiln
}

/// `kiln watch RUN --once`.
fn frame(place: &Place, run: &str) -> Ended {
    Ended::of(place.kiln(&["watch", run, "--once"]).output().unwrap())
}

#[test]
fn a_run_is_found_by_each_of_its_names_and_shown_from_its_files() {
    let place = Place::with(RUN);
    let mut kiln = running(&place);
    wait_until("the readings are written", || {
        let samples = fs::read_to_string(place.latest().join("samples.csv"));
        samples.is_ok_and(|text| text.lines().count() > 1)
    });
    for name in [
        "latest",
        "x",
        "x/latest",
        "results/x",
        "results/x/latest",
        "results/x/latest/trials.csv",
    ] {
        let seen = frame(&place, name);
        assert_eq!(
            (seen.status, seen.stderr.as_str()),
            (Some(0), ""),
            "{seen:?}"
        );
        let lines: Vec<&str> = seen.stdout.lines().collect();
        assert!(lines[0].ends_with(": launch 1, running"), "{seen:?}");
        assert!(
            lines[1].starts_with("░░░░░░░░░░░░░░░░░░░░░░░░ 0/2 trials, about ")
                && lines[1].ends_with(" left, 1 running, 1 waiting"),
            "{seen:?}"
        );
        assert_eq!(
            lines[2..6],
            [
                "",
                "batch_size=2",
                "  ████████░░░░░░░░ 5/10 steps, 4.00 samples/s, data wait 10.0 %",
                "  loss 1.6000 █▄▂▁▁",
            ],
            "{seen:?}"
        );
        assert!(lines[6].starts_with("  ") && lines.len() == 7, "{seen:?}");
        assert!(
            lines.iter().all(|line| line.chars().count() < 80),
            "{seen:?}"
        );
    }
    signal(&kiln, "TERM");
    kiln.wait().unwrap();
    let interrupted = frame(&place, "x");
    assert!(
        interrupted
            .stdout
            .lines()
            .next()
            .unwrap()
            .ends_with(": launch 1, interrupted")
            && interrupted
                .stdout
                .lines()
                .nth(1)
                .unwrap()
                .ends_with(" 0/2 trials, 2 left"),
        "{interrupted:?}"
    );
    let next = "2 of 2 trials are left: `kiln run x.yaml` goes on\n";
    assert!(interrupted.stdout.ends_with(next), "{interrupted:?}");
}

#[test]
fn watching_a_run_ends_with_it_and_prints_one_frame_after_the_other() {
    let place = Place::with(RUN);
    let mut kiln = running(&place);
    let mut watching = place.kiln(&["watch", "x", "-l", "0.1"]).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("5/10 steps") {}
    // The sixth step is completed.
    let path = place.attempts()[0].join("steps.csv");
    fs::write(&path, steps(6)).unwrap();
    while !lines.next().unwrap().unwrap().contains("6/10 steps") {}
    place.release();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(kiln.wait().unwrap().success());
    assert_eq!(watching.wait().unwrap().code(), Some(0));
    let last: Vec<&str> = rest
        .rsplit(String::is_empty)
        .next()
        .unwrap()
        .iter()
        .map(String::as_str)
        .collect();
    assert!(last[0].ends_with(": launch 1, finished"), "{rest:#?}");
    assert_eq!(last[1..], ["████████████████████████ 2/2 trials"]);
}

#[test]
fn a_killed_run_is_not_running_since_its_last_sign_of_life() {
    let place = Place::with(RUN);
    let mut kiln = running(&place);
    kiln.kill().unwrap();
    kiln.wait().unwrap();
    let seen = frame(&place, "x");
    let first = seen.stdout.lines().next().unwrap();
    assert!(
        first.contains(": launch 1, not running since 20")
            && first.contains(" UTC, it did not end"),
        "{seen:?}"
    );
    assert!(
        seen.stdout.contains("  ████████░░░░░░░░ 5/10 steps"),
        "{seen:?}"
    );
    // The next launch ends what the killed one left.
    assert_eq!(place.run("completes", &[]).status, Some(0));
}

#[test]
fn files_that_are_missing_or_damaged_leave_out_what_they_would_tell() {
    let place = Place::with(RUN);
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let folder = place.latest();
    for (file, text) in [
        (
            "samples.csv",
            Some("kiln_table,trial\n\"samples/2,never closed\n"),
        ),
        ("samples.csv", None),
        ("experiment.yaml", Some("\u{1}: [")),
        ("trials.csv", Some("not a table\n\u{fffd}\n")),
        ("trials.csv", None),
        ("run.json", Some("{")),
    ] {
        match text {
            Some(text) => fs::write(folder.join(file), text).unwrap(),
            None => fs::remove_file(folder.join(file)).unwrap(),
        }
        let seen = frame(&place, "x");
        assert_eq!(
            (seen.status, seen.stderr.as_str()),
            (Some(0), ""),
            "{file}: {seen:?}"
        );
        assert!(seen.stdout.contains(" trials"), "{file}: {seen:?}");
    }
    assert!(frame(&place, "x").stdout.contains("note: "));
}

#[test]
fn a_wrong_name_or_option_of_a_watched_run_is_refused() {
    let place = Place::with(RUN);
    fs::create_dir(place.path("empty")).unwrap();
    for (name, why) in [
        ("latest", "latest: there is no run under results; "),
        (
            "nowhere",
            "nowhere: there is no such file or folder; name a run's folder",
        ),
        ("empty", "empty: there is no run in it; "),
    ] {
        let refused = frame(&place, name);
        assert!(
            refused.status == Some(2)
                && refused.stderr.starts_with(why)
                && (name == "nowhere" || refused.stderr.contains("`kiln ls` lists the runs")),
            "{refused:?}"
        );
    }
    for wrong in [
        &["watch", "--once"][..],
        &["watch", "x", "--query", "name"],
        &["watch", "x", "--host"],
        &["watch", "x", "--once", "--count", "2"],
    ] {
        let refused = Ended::of(place.kiln(wrong).output().unwrap());
        assert_eq!(refused.status, Some(2), "{wrong:?}: {refused:?}");
    }
}

#[test]
fn q_ends_watching_a_run_and_leaves_the_page_and_the_terminal_as_it_was() {
    let place = Place::with(RUN);
    let mut kiln = running(&place);
    let commands = "\"$PROGRAM\" watch x -l 0.1; echo \"status $?\"; stty -a | \
                    grep -q 'isig icanon iexten echo ' && echo restored; read -r line";
    let mut terminal = Terminal::new(&place, (24, 80), commands, "waits");
    let has =
        |lines: &[String], text: &str| lines.iter().filter(|line| line.contains(text)).count();
    terminal.wait_for("a frame", |lines| has(lines, "5/10 steps") == 1);
    terminal.press("q");
    terminal.wait_for("its end", |lines| has(lines, "restored") == 1);
    let lines = terminal.lines();
    assert!(
        has(&lines, "status 0") == 1
            && has(&lines, "5/10 steps") == 1
            && has(&lines, "launch 1, running") == 1,
        "{lines:#?}"
    );
    signal(&kiln, "TERM");
    kiln.wait().unwrap();
}

#[test]
fn q_ends_watching_a_run_after_a_shell_has_reset_the_terminal() {
    let place = Place::with(RUN);
    let mut kiln = running(&place);
    // As a shell does between Ctrl-Z and `fg`.
    let commands = "(while ! test -e reset; do sleep 0.05; done; stty icanon echo; : >is-reset) \
                    </dev/tty & \"$PROGRAM\" watch x -l 0.1; echo \"status $?\"; read -r line";
    let mut terminal = Terminal::new(&place, (24, 80), commands, "waits");
    let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
    terminal.wait_for("a frame", |lines| has(lines, "5/10 steps"));
    fs::write(place.path("reset"), "").unwrap();
    wait_until("the terminal is reset", || place.path("is-reset").exists());
    terminal.press("q");
    terminal.wait_for("its end", |lines| has(lines, "status 0"));
    signal(&kiln, "TERM");
    kiln.wait().unwrap();
}
