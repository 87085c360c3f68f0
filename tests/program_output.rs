//! What programs of users print and close: every line is read, in bounded memory and CPU time, and
//! none holds the program up.

use std::{fs, process::Command};

use crate::scripted_child::{Ended, Place, hear, variables, wait_until};

/// Runs `python3 program.py`, or `sh program.sh`, with these metrics; the place.
fn ran(program: &str, text: &str, metrics: &str, lines: &str) -> Place {
    let place = of(program, text, metrics, lines);
    let ended = place.run("", &[]);
    assert_eq!(
        ended.status,
        Some(0),
        "{ended:?} {:?}",
        place.column("reason")
    );
    place
}

fn of(program: &str, text: &str, metrics: &str, lines: &str) -> Place {
    let file = if program == "sh" {
        "program.sh"
    } else {
        "program.py"
    };
    let place = Place::of_command(
        &format!("  argv: [{program}, {file}, '{{folder}}']\n  metrics: {metrics}"),
        lines,
    );
    fs::write(place.path(file), text).unwrap();
    place
}

/// CPU time of one process, without its children, in s.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    let ticks: Vec<f64> = fields
        .skip(11)
        .take(2)
        .map(|text| text.parse().unwrap())
        .collect();
    ticks.iter().sum::<f64>() / 100.0
}

#[test]
fn ten_thousand_lines_a_second_are_all_read_in_little_cpu_time() {
    const LINES: u32 = 30_000;
    let text = "import sys, time
from pathlib import Path
began = time.monotonic()
for i in range(30000):
    print('line', i, 'sum', (i * 7919) % 1000)
    if i % 100 == 99:
        sys.stdout.flush()
        time.sleep(max(0, began + i / 10000 - time.monotonic()))
Path(sys.argv[1], 'at-work').touch()
while not Path('release').exists():
    time.sleep(0.02)
";
    let metrics = "{mean: {line: 'sum (\\d+)', take: mean}, count: {line: 'line (\\d+)'}, \
                   first: {line: 'line (\\d+)', take: first}}";
    let place = of("python3", text, metrics, "");
    let mut kiln = place.start("");
    wait_until("all lines are printed", || {
        place.attempts_with("at-work") == 1
    });
    let relay = kiln_hardware::children(kiln.id())[0];
    let used = (cpu_seconds(kiln.id()), cpu_seconds(relay));
    place.release();
    hear(&mut kiln, "completed");
    assert!(kiln.wait().unwrap().success());
    let mean = (0..LINES).map(|i| i * 7919 % 1000).sum::<u32>() as f64 / f64::from(LINES);
    let row = &place.rows()[0];
    let number = |name: &str| row[name].parse::<f64>().unwrap();
    // A single line that was lost would change the mean.
    assert!((number("metric.mean") - mean).abs() < 1e-9, "{row:?}");
    assert_eq!(
        (number("metric.first"), number("metric.count")),
        (0.0, 29_999.0)
    );
    // In 3 s.
    assert!(
        used.0 < 0.5 && used.1 < 1.5,
        "kiln and its relay: {used:?} s"
    );
}

#[test]
fn long_lines_strange_bytes_carriage_returns_and_a_last_line_without_an_end_are_read() {
    let text = "import sys
out = sys.stdout.buffer
out.write(b'x' * 1000000 + b' long 7\\n')
out.write(b'{\"pad\": \"' + b'y' * 1000000 + b'\", \"json\": 8}\\n')
out.write(b'z' * 3000000 + b' cut 1\\n')
out.write(b'\\xff\\xfe bytes 9 \\x80\\n\\x00nul 10\\n')
out.write(b' 10% loss 3\\r 50% loss 2\\r100% loss 1\\r')
out.write(b'last 11')
";
    let metrics = "{long: {line: ' long (\\d+)'}, json: {key: json}, cut: {line: ' cut (\\d)', \
                   optional: true}, bytes: {line: 'bytes (\\d+)'}, nul: {line: 'nul (\\d+)'}, \
                   train_loss: {line: 'loss (\\d)', take: mean}, last: {line: 'last (\\d+)'}}";
    let place = ran("python3", text, metrics, "");
    let row = &place.rows()[0];
    let read = |name: &str| row[name].clone();
    assert_eq!(
        ["long", "json", "cut", "bytes", "nul", "last"].map(|name| read(&format!("metric.{name}"))),
        ["7.0", "8.0", "", "9.0", "10.0", "11.0"]
    );
    assert_eq!(read("train_loss"), "2.0");
    let note = "cut: a line of its output is longer than 1 MiB and was not read to its end";
    assert_eq!(read("notes"), note);
}

#[test]
fn numbers_between_the_colors_of_a_terminal_are_read() {
    let text = r"printf '\033[1mloss:\033[0m \033[31m2.5\033[0m\n\033[32mspeed 12.5\033[0m\n'";
    let metrics = r"{train_loss: {line: '^loss: (\S+)$'}, speed: {line: '^speed ([0-9.]+)$'}}";
    let place = ran("sh", text, metrics, "");
    let row = &place.rows()[0];
    assert_eq!(
        (row["train_loss"].as_str(), row["metric.speed"].as_str()),
        ("2.5", "12.5")
    );
}

#[test]
fn a_file_that_trials_append_to_gives_each_its_own_rows() {
    let text = "test -e log.csv || echo step,loss >log.csv\nfor step in 1 2 3; do echo \
                \"$step,$KILN_VALUE_LOSS\" >>log.csv; done\n";
    let place = Place::of_command(
        "  argv: [sh, program.sh]\n  values: {loss: 1}\n  environment: {LOSS: '{loss}'}\n  metrics: \
         {least: {csv: log.csv, column: loss, take: min}, mean: {csv: log.csv, column: loss, take: \
         mean}}",
        "sweep: {grid: {model.values.loss: [3, 5, 7]}}",
    );
    fs::write(place.path("program.sh"), text).unwrap();
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    for metric in ["metric.least", "metric.mean"] {
        let mut found = place.column(metric);
        found.sort();
        assert_eq!(found, ["3.0", "5.0", "7.0"], "{metric}");
    }
    let notes = place.column("notes");
    let says = "log.csv had rows before the attempt, which are left out";
    let told = notes.iter().filter(|note| note.contains(says)).count();
    assert_eq!(told, 2, "{notes:?}");
    let kiln = place.kiln(&["plan", "x.yaml"]).output().unwrap();
    let plan = Ended::of(kiln).stdout;
    let said = "`least` of more than one trial is read from one file, `log.csv`, so they must run one \
                after another; `{folder}/log.csv` would be a file for each";
    assert!(plan.contains(said), "{plan}");
}

#[test]
fn a_program_that_closes_its_output_goes_on_and_its_files_are_read() {
    let text = "echo 'v 1'; exec >&-; sleep 1; echo '{\"w\": 2}' >\"$1/w.json\"";
    let metrics = "{v: {line: 'v (\\d)'}, w: {json: '{folder}/w.json', at: w}}";
    let place = ran("sh", text, metrics, "");
    let row = &place.rows()[0];
    assert_eq!(
        (row["metric.v"].as_str(), row["metric.w"].as_str()),
        ("1.0", "2.0")
    );
    assert!(row["trial_seconds"].parse::<f64>().unwrap() >= 1.0);
}

#[test]
fn a_program_that_closes_both_outputs_and_computes_does_not_stall() {
    let text = "exec >&- 2>&-; end=$(($(date +%s) + 8))
while [ $(date +%s) -lt $end ]; do :; done; echo 3 >\"$1/v.json\"";
    let metrics = "{v: {json: '{folder}/v.json', at: ''}}";
    let lines = "run: {devices: cpu, stall: 5s}";
    let text = text.replace("echo 3", "echo '{\"v\": 3}'");
    let metrics = metrics.replace("at: ''", "at: v");
    let place = ran("sh", &text, &metrics, lines);
    assert_eq!(place.column("metric.v"), ["3.0"]);
}

/// A limit on the size of files is what a full disk is to `stdout.txt`.
#[test]
fn an_output_that_cannot_be_kept_is_still_read() {
    let text = "import sys
for i in range(20000): print('x' * 99)
print('v 5')
print('oh' * 40, file=sys.stderr)
";
    let place = of("python3", text, "{v: {line: 'v (\\d)'}}", "");
    let kiln = place.kiln(&["run", "x.yaml"]);
    let mut limited = Command::new("bash");
    limited
        // In blocks of 1024 bytes.
        .args(["-c", "ulimit -f 512; exec \"$0\" run x.yaml"])
        .arg(kiln.get_program())
        .envs(variables(&kiln))
        .current_dir(place.path(""));
    let ended = Ended::of(limited.output().unwrap());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(place.column("metric.v"), ["5.0"]);
    let attempt = &place.attempts()[0];
    let kept = fs::metadata(attempt.join("stdout.txt")).unwrap().len();
    assert!(kept <= 512 << 10, "{kept}");
    let stderr = fs::read_to_string(attempt.join("stderr.txt")).unwrap();
    assert!(stderr.contains("ohoh"), "{stderr}");
}

/// The relay itself holds more than 10 MiB, which the kernel would count as the program's.
#[test]
fn the_peak_of_a_program_smaller_than_the_relay_is_known() {
    let text = "import sys\nheld = bytearray(int(sys.argv[2]) << 20)\n";
    let place = Place::of_command(
        "  argv: [python3, -S, program.py, '{folder}', '{n}']\n  values: {n: 0}",
        "sweep: {grid: {model.values.n: [0, 8, 30]}, order: listed}",
    );
    fs::write(place.path("program.py"), text).unwrap();
    let ended = place.run("", &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let peaks: Vec<u64> = place
        .column("metric.peak_memory_bytes")
        .iter()
        .map(|peak| peak.parse::<f64>().unwrap_or_else(|_| panic!("{peak:?}")) as u64)
        .collect();
    let more = |place: usize| peaks[place].saturating_sub(peaks[0]) as f64 / f64::from(1 << 20);
    // The kernel's peak lacks what a processor has counted and not yet added: some pages.
    assert!((7.5..8.5).contains(&more(1)), "{peaks:?}");
    assert!((29.0..31.0).contains(&more(2)), "{peaks:?}");
    let resident = place.column("peak_resident_bytes");
    assert_eq!(
        resident,
        peaks.iter().map(u64::to_string).collect::<Vec<_>>(),
        "a short trial's memory is its program's, not that of the moment it was looked at"
    );
}
