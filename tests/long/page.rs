//! `kiln report --html` in a real browser: runs made by kiln on a pretended GPU and on the CPU
//! become a page that people can read, sort, filter and trust, on a phone and on a desk.

mod pictures;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use crate::{
    browser::Page,
    scripted_child::{Ended, Place, REAL_MLP, real_trial},
};
use fake_nvml::{Scenario, install::install};

/// The files of a run of experiment `x`: four points and their repeats on a pretended GPU that gets
/// too hot. It is made once, and each test writes a copy.
static RUN_ON_GPU: LazyLock<Vec<(PathBuf, Vec<u8>)>> = LazyLock::new(|| {
    let place = Place::with("");
    let text = "kiln: 1\nname: x\ndescription: Which batch, how many workers?\nmodel: {kind: mlp, \
                d_model: 8, hidden: 8, context: 4, seq_len: 16}\n\
                data: {kind: generated, characters: 40000}\ntrain: {steps: 10}\nmeasure: \
                {sample_interval: 100ms}\n\
                run: {require_idle_device: false, devices: [0]}\n\
                sweep: {grid: {train.batch_size: [4, 8], data.num_workers: [0, 2]}, repeats: 2}\n";
    fs::write(place.path("x.yaml"), text).unwrap();
    let scenario =
        Scenario::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/hot.yaml"))
            .unwrap();
    let library = install(&place.path("."), &scenario).unwrap();
    // The scenario's device is hot as soon as this file is there.
    fs::write(place.path("changed"), "").unwrap();
    let mut kiln = place.kiln(&["run", "x.yaml", "--progress", "plain"]);
    kiln.env("SCRIPTED_CHILD", "measures")
        .env("KILN_NVML_LIB", library)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("FAKE_NVML_SCENARIO");
    let ended = Ended::of(kiln.output().unwrap());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let run = place.latest().canonicalize().unwrap();
    files_under(&run)
        .into_iter()
        .map(|file| {
            (
                file.strip_prefix(&run).unwrap().to_owned(),
                fs::read(&file).unwrap(),
            )
        })
        .collect()
});

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .flat_map(|entry| match entry.file_type().unwrap() {
            kind if kind.is_dir() => files_under(&entry.path()),
            kind if kind.is_file() => vec![entry.path()],
            _ => Vec::new(),
        })
        .collect()
}

/// A place with a copy of the run on the GPU in its folder `gpu`.
fn place_with_run() -> Place {
    let place = Place::with("");
    for (name, bytes) in &*RUN_ON_GPU {
        let file = place.path("gpu").join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }
    place
}

/// `y`: real trials of an MLP on the CPU, which write texts.
fn run_on_cpu(place: &Place) {
    let real = REAL_MLP.replace("name: x", "name: y").replace(
        "steps: 3",
        "steps: 40, evaluate: {every: 10}, sample: {tokens: 12}",
    );
    fs::write(
        place.path("y.yaml"),
        format!("{real}sweep: {{grid: {{train.batch_size: [2, 4]}}, repeats: 2}}\n"),
    )
    .unwrap();
    let ended = Ended::of(
        place
            .kiln(&["run", "y.yaml"])
            .env("KILN_TRIAL", real_trial())
            .output()
            .unwrap(),
    );
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
}

fn report(place: &Place, runs: &[&str]) -> PathBuf {
    let page = place.path("report.html");
    let arguments = [&["report"], runs, &["--html", "report.html"]].concat();
    let ended = Ended::of(place.kiln(&arguments).output().unwrap());
    assert_eq!(
        (ended.status, ended.stderr.as_str()),
        (Some(0), ""),
        "{}",
        ended.stdout
    );
    page
}

#[test]
fn a_page_of_two_runs_reads_well_on_a_phone_and_on_a_desk_by_day_and_by_night() {
    let place = place_with_run();
    run_on_cpu(&place);
    let page = Page::open(&report(&place, &["gpu", "results/y"]));
    let mut papers = Vec::new();
    for (screen, width, height) in [("phone", 360, 780), ("desk", 1440, 900)] {
        for scheme in ["light", "dark"] {
            page.on(width, height, scheme);
            page.ask(
                "document.querySelectorAll('details').forEach((part) => { part.open = true; }) ?? \
                 1",
            );
            let wide = page.ask("[document.documentElement.scrollWidth, innerWidth]");
            assert!(
                wide[0].as_u64() <= wide[1].as_u64(),
                "{screen}: the page is wider than the screen: {wide}"
            );
            papers.push(page.ask("getComputedStyle(document.documentElement).backgroundColor"));
            let least = page.ask(
                "Math.min(...[...document.querySelectorAll('figure svg text')].map((text) => \
                 text.getBoundingClientRect().height).filter((height) => height > 0))",
            );
            assert!(
                least.as_f64().unwrap() >= 9.0,
                "{screen}: words of {least} pixels"
            );
            let barriers = page.barriers();
            assert!(barriers.is_empty(), "{screen}, {scheme}: {barriers:#?}");
            page.show(&format!("{screen}-{scheme}"));
        }
    }
    assert!(
        papers[0] == papers[2] && papers[1] == papers[3] && papers[0] != papers[1],
        "{papers:?}"
    );
    assert_eq!(page.heard(), [""; 0], "no errors, no warnings");
    let seen = page.ask("document.body.innerText");
    let seen = seen.as_str().unwrap();
    for words in [
        "Which batch, how many workers?",
        "Machine and versions of x and y",
        "Settings that differ",
        "Texts written by the models",
        "throttled",
        "measured window",
        "NVIDIA H200",
        "Loss by time",
        "Snapshot of",
    ] {
        let is_there = seen.contains(words)
            || page.ask(&format!(
                "document.documentElement.innerHTML.includes('{words}')"
            )) == true;
        assert!(is_there, "{words} is nowhere");
    }
    let bands = page
        .ask("document.querySelectorAll('#hardware svg rect[fill=\"#FECACA\"]').length")
        .as_u64()
        .unwrap();
    assert!(
        bands >= 8,
        "each reading of a GPU that holds its clocks back is marked: {bands}"
    );
}

/// The first cells of the rows that are shown.
fn shown(page: &Page, column: usize) -> Vec<String> {
    let cells = page.ask(&format!(
        "[...document.querySelector('#table tbody').rows].map((row) => \
         row.cells[{column}].textContent)"
    ));
    serde_json::from_value(cells).unwrap()
}

#[test]
fn the_table_sorts_and_filters_by_mouse_and_by_keyboard() {
    let place = place_with_run();
    let page = Page::open(&report(&place, &["gpu"]));
    page.on(1280, 900, "light");
    let sorted = |place: usize| {
        page.ask(&format!(
            "document.querySelectorAll('#table th')[{place}].getAttribute('aria-sort')"
        ))
    };
    assert_eq!(shown(&page, 0).len(), 4);
    page.click("#table th:nth-child(1) button");
    assert_eq!(
        (shown(&page, 0), sorted(0)),
        (
            ["8", "8", "4", "4"].map(str::to_owned).to_vec(),
            "descending".into()
        )
    );
    page.click("#table th:nth-child(1) button");
    assert_eq!(
        (shown(&page, 0), sorted(0)),
        (
            ["4", "4", "8", "8"].map(str::to_owned).to_vec(),
            "ascending".into()
        )
    );
    // The same by keyboard alone.
    page.ask("document.querySelector('#table th:nth-child(2) button').focus() ?? 1");
    page.press("Enter");
    assert_eq!(
        (shown(&page, 1), sorted(0), sorted(1)),
        (
            ["2", "2", "0", "0"].map(str::to_owned).to_vec(),
            "none".into(),
            "descending".into()
        )
    );

    page.click("#filter");
    page.type_text("num_workers=2 batch_size>4");
    assert_eq!(
        (shown(&page, 0), shown(&page, 1)),
        (vec!["8".to_owned()], vec!["2".to_owned()])
    );
    assert_eq!(
        page.ask("document.getElementById('shown').textContent"),
        "1 of 4 points"
    );
    page.click("#clear");
    // Filters by amounts with their units, and by a column that is not there.
    page.type_text("power>100 time<10min");
    assert_eq!(shown(&page, 0).len(), 4);
    page.click("#clear");
    page.type_text("time<1ms");
    assert!(shown(&page, 0).is_empty());
    page.click("#clear");
    page.type_text("nosuch>1");
    assert!(
        page.ask("document.getElementById('shown').textContent")
            .as_str()
            .unwrap()
            .ends_with("no column nosuch")
    );
    page.click("#clear");
    assert_eq!(
        (shown(&page, 0).len(), page.ask("document.activeElement.id")),
        (4, "filter".into())
    );
    page.type_text("no such word");
    assert!(shown(&page, 0).is_empty());
    page.click("#clear");
    page.ask(
        "(() => { const choice = document.getElementById('axis-0'); choice.value = '4'; \
         choice.dispatchEvent(new Event('change')); return 1; })()",
    );
    assert_eq!(shown(&page, 0), ["4", "4"]);
    assert_eq!(page.heard(), [""; 0]);
}

/// A table of so many rows, made of one that kiln wrote.
fn large_table(place: &Place, rows: usize, name: &str) {
    let mut reader = csv::Reader::from_path(place.path("gpu/trials.csv")).unwrap();
    let head = reader.headers().unwrap().clone();
    let row = reader.records().next().unwrap().unwrap();
    let at = |name: &str| head.iter().position(|column| column == name).unwrap();
    fs::create_dir_all(place.path(name)).unwrap();
    let mut writer = csv::Writer::from_path(place.path(name).join("trials.csv")).unwrap();
    writer.write_record(&head).unwrap();
    for number in 0..rows {
        let (batch, workers) = (number % 100 + 1, number / 100);
        let rate = 1000.0 * batch as f64 / (30.0 + batch as f64) * (1.0 + workers as f64 / 500.0);
        let mut cells: Vec<String> = row.iter().map(str::to_owned).collect();
        for (column, value) in [
            ("trial", format!("{number:010x}")),
            ("number", (number + 1).to_string()),
            ("samples_per_second", rate.to_string()),
            ("train.batch_size", batch.to_string()),
            ("batch_size", batch.to_string()),
            ("data.num_workers", workers.to_string()),
            ("num_workers", workers.to_string()),
        ] {
            cells[at(column)] = value;
        }
        writer.write_record(&cells).unwrap();
    }
    writer.flush().unwrap();
}

#[test]
fn a_page_of_ten_thousand_trials_is_small_and_shows_a_hundred_at_a_time() {
    let place = place_with_run();
    large_table(&place, 10_000, "large");
    let file = report(&place, &["large"]);
    let size = fs::metadata(&file).unwrap().len();
    assert!(size < 10_000_000, "{size} bytes");
    let page = Page::open(&file);
    page.on(1280, 900, "light");
    assert_eq!(
        page.ask("document.getElementById('shown').textContent"),
        "100 of 10000 points, 10000 fit the filter"
    );
    assert_eq!(shown(&page, 0).len(), 100);
    // From the key to the page laid out again. A person notices from some 100 ms on; a busy machine
    // gets twenty times that.
    let milliseconds = page.ask(
        "(() => { const filter = document.getElementById('filter'); filter.value = 'batch_size=7'; \
         const start = performance.now(); filter.dispatchEvent(new Event('input')); \
         document.body.getBoundingClientRect(); return performance.now() - start; })()",
    );
    assert_eq!(
        page.ask("document.getElementById('shown').textContent"),
        "100 of 10000 points"
    );
    let milliseconds = milliseconds.as_f64().unwrap();
    assert!(
        milliseconds < 2000.0,
        "a key of the filter took {milliseconds} ms"
    );
    page.click("#table th:nth-child(2) button");
    assert_eq!(shown(&page, 1)[0], "99");
    page.show("large");
}

#[test]
fn a_hostile_name_stays_a_name() {
    let place = place_with_run();
    let run = place.path("gpu");
    const HOSTILE: &str = "</script></title></svg><img src=x \
                           onerror=\\\"window.harmed=1\\\"><script>window.harmed=1</script>";
    let file = fs::read_to_string(run.join("run.json")).unwrap();
    let file = file.replace(
        "\"experiment\": \"x\"",
        &format!("\"experiment\": \"{HOSTILE}\""),
    );
    // Another experiment is written beside it.
    let file = file.replace("\"experiment_sha256\"", "\"unused\"");
    assert!(file.contains("harmed"), "{file}");
    fs::write(run.join("run.json"), file).unwrap();
    fs::write(
        run.join("experiment.yaml"),
        format!("description: \"{HOSTILE}\"\n"),
    )
    .unwrap();
    let cell = format!("\"{}\"", HOSTILE.replace("\\\"", "\"\""));
    for table in ["trials.csv", "snapshots.csv"] {
        let text = fs::read_to_string(run.join(table))
            .unwrap()
            .replace("NVIDIA H200", &cell)
            .replace(
                "train.batch_size",
                &format!("\"train.{}\"", cell.trim_matches('"')),
            );
        fs::write(run.join(table), text).unwrap();
    }
    let page = Page::open(&report(&place, &["gpu"]));
    assert_eq!(page.ask("window.harmed ?? 'unharmed'"), "unharmed");
    assert_eq!(
        page.ask("[document.scripts.length, document.images.length]"),
        serde_json::json!([1, 0])
    );
    assert_eq!(
        page.ask("document.querySelectorAll('#table tbody tr').length"),
        4
    );
    assert!(
        page.ask("document.querySelector('h1').textContent")
            .as_str()
            .unwrap()
            .contains("onerror"),
        "it is shown as it is"
    );
    assert_eq!(page.heard(), [""; 0], "nothing even tried");
}
