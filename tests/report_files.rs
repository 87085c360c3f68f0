//! The files that `kiln report` writes: what is in a table stays text on the page, and only kiln's
//! own files are written over. `tests/long/page.rs` opens the page in a browser.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde_json::Value;

use crate::scripted_child::{Ended, Place, read_until};

/// A committed run with two axes.
pub(crate) const RUN: &str = "results/quickstart-2core-epyc/latest";

/// Where a name can stand that somebody else has chosen.
const PLACES: [&str; 7] = [
    "experiment",
    "description",
    "axis",
    "value",
    "device",
    "board",
    "command",
];

/// Ends whatever element or attribute it stands in, and begins others. It has no full stop, which
/// would part the name of an axis.
fn hostile(place: &str) -> String {
    format!(
        "{place}\"'></td></title></svg></script><img src=x onerror=alert(1)><script>window</script>"
    )
}

/// As long as the hostile name, in letters alone: pictures give both the same room.
fn harmless(place: &str) -> String {
    hostile(place)
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || letter == ' ' {
                letter
            } else {
                'x'
            }
        })
        .collect()
}

pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Copies a table of the committed run with names put in: `rename` gets a column and a cell, and
/// the head's cells are under themselves.
pub(crate) fn copy_table(name: &str, folder: &Path, mut rename: impl FnMut(&str, &str) -> String) {
    let mut reader = csv::Reader::from_path(in_repository(RUN).join(name)).unwrap();
    let mut writer = csv::Writer::from_path(folder.join(name)).unwrap();
    let head = reader.headers().unwrap().clone();
    writer
        .write_record(head.iter().map(|column| rename(column, column)))
        .unwrap();
    for row in reader.records() {
        let row = row.unwrap();
        writer
            .write_record(
                head.iter()
                    .zip(&row)
                    .map(|(column, cell)| rename(column, cell)),
            )
            .unwrap();
    }
    writer.flush().unwrap();
}

/// The committed run in `folder`, with a name of `named` in each of the places.
fn copy_run(folder: &Path, named: fn(&str) -> String) {
    fs::create_dir(folder).unwrap();
    copy_table("trials.csv", folder, |column, cell| match (column, cell) {
        (_, "train.batch_size") => format!("train.{}", named("axis")),
        ("data.num_workers", "2") => named("value"),
        ("device_name", "AMD EPYC") => named("device"),
        _ => cell.to_owned(),
    });
    copy_table("snapshots.csv", folder, |column, cell| {
        match (column, cell) {
            ("device", "host") => named("board"),
            _ => cell.to_owned(),
        }
    });
    let mut run: Value =
        serde_json::from_slice(&fs::read(in_repository(RUN).join("run.json")).unwrap()).unwrap();
    run["experiment"] = named("experiment").into();
    // Another experiment is written beside it.
    run.as_object_mut().unwrap().remove("experiment_sha256");
    for launch in run["launches"].as_array_mut().unwrap() {
        launch["command_line"] = Value::from(vec!["kiln".to_owned(), named("command")]);
    }
    fs::write(folder.join("run.json"), run.to_string()).unwrap();
    let experiment = serde_json::json!({"kiln": 1, "name": named("experiment"), "description": named("description")});
    fs::write(
        folder.join("experiment.yaml"),
        serde_yaml::to_string(&experiment).unwrap(),
    )
    .unwrap();
}

/// The page of these runs.
fn page(place: &Place, runs: &[&str]) -> String {
    let arguments = [&["report"], runs, &["--html", "report.html"]].concat();
    let ended = Ended::of(place.kiln(&arguments).output().unwrap());
    assert_eq!(
        (ended.status, ended.stderr.as_str()),
        (Some(0), ""),
        "{}",
        ended.stdout
    );
    fs::read_to_string(place.path("report.html")).unwrap()
}

/// The elements of a page as a browser finds them, each with the names of its attributes. Programs
/// and styles hold no elements.
fn elements(page: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), page);
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        if !rest.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
            continue;
        }
        let (tag, behind) = opening_tag(rest);
        let is = |name: &str| tag.split_whitespace().next() == Some(name);
        rest = match ["script", "style"].into_iter().find(|name| is(name)) {
            Some(name) => behind
                .find(&format!("</{name}"))
                .map_or("", |end| &behind[end..]),
            None => behind,
        };
        found.push(tag);
    }
    found
}

/// The tag at the beginning of a text without the values of its attributes, and the text behind it.
fn opening_tag(text: &str) -> (String, &str) {
    let (mut tag, mut quote) = (String::new(), None);
    for (place, letter) in text.char_indices() {
        match quote {
            Some(end) if letter == end => quote = None,
            Some(_) => {}
            None if letter == '>' => return (tag, &text[place + 1..]),
            None if "\"'".contains(letter) => quote = Some(letter),
            None => tag.push(letter),
        }
    }
    (tag, "")
}

/// A page with its character references replaced, each way of writing them.
fn without_references(page: &str) -> String {
    let references = [
        ("<", ["&#60;", "&lt;"]),
        (">", ["&#62;", "&gt;"]),
        ("\"", ["&#34;", "&quot;"]),
        ("'", ["&#39;", "&#x27;"]),
        // Last, or it would make references of text.
        ("&", ["&#38;", "&amp;"]),
    ];
    references
        .into_iter()
        .fold(page.to_owned(), |page, (letter, written)| {
            written
                .iter()
                .fold(page, |page, written| page.replace(written, letter))
        })
}

#[test]
fn a_hostile_name_is_text_wherever_it_stands() {
    let place = Place::with("");
    copy_run(&place.path("hostile"), hostile);
    copy_run(&place.path("harmless"), harmless);
    let committed = in_repository(RUN).display().to_string();
    // One run alone is a title; several have headings, differences and lines of their own.
    for beside in [None, Some(committed.as_str())] {
        let runs = |name| [name].into_iter().chain(beside).collect::<Vec<&str>>();
        let (page, pattern) = (
            page(&place, &runs("hostile")),
            page(&place, &runs("harmless")),
        );
        let found = elements(&page);
        assert_eq!(
            found
                .iter()
                .filter(|element| element.starts_with("script"))
                .count(),
            1,
            "beside {beside:?}: kiln's own program alone"
        );
        let of_kiln: BTreeSet<String> = elements(&pattern).into_iter().collect();
        let foreign: BTreeSet<&String> = found
            .iter()
            .filter(|element| !of_kiln.contains(*element))
            .collect();
        assert!(
            foreign.is_empty(),
            "beside {beside:?}, a page of harmless names has no such element: {foreign:#?}"
        );
        let text = without_references(&page);
        for name in PLACES.map(hostile) {
            assert!(
                text.contains(&name),
                "beside {beside:?}, the page does not show {name}"
            );
        }
    }
}

#[test]
fn elements_are_found_as_a_browser_finds_them() {
    let found = |page: &str| elements(page).join("|");
    assert_eq!(
        found("<!DOCTYPE html><p class=\"a>b\" title='\"'>1 < 2</p><br>"),
        "p class= title=|br"
    );
    assert_eq!(
        found("<script>if (a<b) x</script><style>a<b</style><i>"),
        "script|style|i"
    );
    assert_eq!(
        found("<p title=\"\"><img src=x onerror=f>\">"),
        "p title=|img src=x onerror=f"
    );
    assert_eq!(found("<p title=\"\" onclick=\"f\">"), "p title= onclick=");
    assert_eq!(without_references("&#38;lt; &lt;&#62;"), "&lt; <>");
}

#[test]
fn standard_output_is_not_taken_for_a_file_of_that_name() {
    let place = Place::with("");
    let table = in_repository("results/verdict-plain/latest");
    for option in ["--html", "--svg"] {
        let words = ["report", table.to_str().unwrap(), option, "-"];
        let refused = Ended::of(place.kiln(&words).output().unwrap());
        assert!(
            refused.status == Some(2) && refused.stderr.contains("standard output"),
            "{refused:?}"
        );
    }
    assert!(!place.path("-").exists());
}

#[test]
fn what_kiln_did_not_make_is_not_written_over() {
    let place = Place::with("");
    let table = in_repository("results/verdict-plain/latest");
    let run = |arguments: &[&str]| {
        Ended::of(
            place
                .kiln(&[&["report", table.to_str().unwrap()], arguments].concat())
                .output()
                .unwrap(),
        )
    };
    let refused = |arguments: &[&str], words: &str| {
        let ended = run(arguments);
        assert!(
            ended.status == Some(2) && ended.stderr.contains(words),
            "{arguments:?}: {ended:?}"
        );
    };
    refused(
        &["--html", "x.yaml"],
        "x.yaml: it exists and was not written by `kiln report`; name a new file",
    );
    refused(&["--html", "."], "it is a folder");
    refused(
        &["--html", "/dev/null"],
        "it exists and is not a regular file",
    );
    std::os::unix::fs::symlink("x.yaml", place.path("link.html")).unwrap();
    refused(&["--html", "link.html"], "is not a regular file");
    fs::copy(
        in_repository("src/report/html/page.html"),
        place.path("template.html"),
    )
    .unwrap();
    refused(
        &["--html", "template.html"],
        "was not written by `kiln report`",
    );
    let lost = run(&["--html", "no/such/folder/report.html"]);
    assert!(
        lost.status == Some(1)
            && lost
                .stderr
                .contains("its folder does not exist; create it first"),
        "{lost:?}"
    );
    // No file can be made there, not even by the administrator.
    let unwritable = run(&["--html", "/proc/report.html"]);
    assert!(
        unwritable.status == Some(1)
            && unwritable
                .stderr
                .contains("no file can be written there; name another place"),
        "{unwritable:?}"
    );

    assert_eq!(
        run(&["--html", "report.html", "--svg", "pictures"]).status,
        Some(0)
    );
    assert_eq!(
        run(&["--html", "report.html", "--svg", "pictures"]).status,
        Some(0),
        "kiln's own are made anew"
    );
    let picture = fs::read_dir(place.path("pictures"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::write(&picture, "<svg>mine</svg>").unwrap();
    refused(&["--svg", "pictures"], "was not written by `kiln report`");
    assert_eq!(fs::read_to_string(&picture).unwrap(), "<svg>mine</svg>");

    let json = run(&["--format", "json", "--html", "report.html"]);
    assert!(
        serde_json::from_str::<Value>(&json.stdout).is_ok()
            && json.stderr.contains("wrote report.html"),
        "{json:?}"
    );
}

#[test]
fn pictures_of_an_earlier_report_stay_and_are_named() {
    let place = Place::with("");
    let write = |run: &str| {
        let run = in_repository(run);
        let words = ["report", run.to_str().unwrap(), "--svg", "pictures"];
        let ended = Ended::of(place.kiln(&words).output().unwrap());
        assert_eq!(ended.status, Some(0), "{ended:?}");
        ended.stderr
    };
    assert_eq!(write(RUN), "");
    assert_eq!(write(RUN), "", "all of its pictures are made anew");
    fs::write(place.path("pictures/mine.svg"), "<svg>mine</svg>").unwrap();
    let pictures = || -> BTreeSet<String> {
        let files = fs::read_dir(place.path("pictures")).unwrap();
        let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
        files.map(|file| name(file.unwrap())).collect()
    };
    let before = pictures();
    let told = write("results/image-folder-workers/latest");
    assert!(before.is_subset(&pictures()));
    let earlier = "of an earlier report, which may show another run: ";
    assert!(
        told.starts_with("note: pictures also has ")
            && told.contains(earlier)
            && told.contains("train.batch_size")
            && !told.contains("mine.svg"),
        "{told}"
    );
}

#[test]
fn a_summary_that_a_killed_run_did_not_write_is_written_by_the_next_one() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let summary = place.latest().join("summary.csv");
    let whole = fs::read(&summary).unwrap();
    for older in [None, Some("of fewer rows\n")] {
        fs::remove_file(&summary).unwrap();
        if let Some(text) = older {
            fs::write(&summary, text).unwrap();
            let file = fs::File::options().write(true).open(&summary).unwrap();
            file.set_modified(UNIX_EPOCH).unwrap();
        }
        let ended = place.run("completes", &[]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let written = fs::read(&summary).unwrap();
        assert!(written == whole, "{older:?}: {ended:?}");
    }
}

#[test]
fn a_report_and_a_comparison_name_the_table_to_commit_or_what_writes_it() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let table = place.latest().join("summary.csv");
    let at = "\nA row per point";
    let told = Ended::of(place.kiln(&["report"]).output().unwrap()).stdout;
    assert!(
        told.contains(at) && told.ends_with("/summary.csv\n"),
        "{told}"
    );
    let run = place.latest().display().to_string();
    let compared = Ended::of(place.kiln(&["compare", &run, &run]).output().unwrap()).stdout;
    assert_eq!(compared.matches("/summary.csv").count(), 2, "{compared}");
    fs::remove_file(&table).unwrap();
    let told = Ended::of(place.kiln(&["report"]).output().unwrap()).stdout;
    assert!(
        told.contains("\n`kiln report --write ") && !told.contains(at),
        "{told}"
    );
    assert!(
        !Ended::of(place.kiln(&["compare", &run, &run]).output().unwrap())
            .stdout
            .contains(at)
    );
    // For programs there is nothing but the answer.
    for format in ["markdown", "json"] {
        let told = Ended::of(
            place
                .kiln(&["report", "--format", format])
                .output()
                .unwrap(),
        )
        .stdout;
        assert!(!told.contains("summary.csv"), "{told}");
    }
    let of = |options: &[&str]| {
        let mut report = place.kiln(&[&["report"], options].concat());
        Ended::of(report.output().unwrap()).stdout
    };
    let json = of(&["--json"]);
    assert!(json.starts_with('{'), "{json}");
    assert_eq!(json, of(&["--format", "json"]));
}

#[test]
fn what_stands_in_place_of_a_table_is_told_and_a_link_to_it_is_read_by_all() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let table = place.latest().canonicalize().unwrap().join("trials.csv");
    let kept = place.path("kept.csv");
    fs::rename(&table, &kept).unwrap();
    let kiln = |words: &[&str]| Ended::of(place.kiln(words).output().unwrap());
    let told = |words: &str| {
        for named in ["x", "results/x/latest"] {
            let ended = kiln(&["report", named]);
            assert!(
                ended.status == Some(2) && ended.stderr.contains(words),
                "{named}: {ended:?}"
            );
        }
    };
    told("no `trials.csv`");
    fs::create_dir(&table).unwrap();
    told("it is a folder");
    fs::remove_dir(&table).unwrap();
    std::os::unix::fs::symlink(place.path("gone"), &table).unwrap();
    told("which is not there");
    fs::remove_file(&table).unwrap();
    std::os::unix::fs::symlink(&kept, &table).unwrap();
    assert_eq!(kiln(&["report", "x"]).status, Some(0));
    let listed = kiln(&["ls"]);
    assert!(!listed.stdout.contains("unreadable"), "{listed:?}");
    let refused = place.run("completes", &["--rerun", "completed"]);
    assert!(
        refused.status == Some(2)
            && refused.stderr.contains("it is a link")
            && !refused.stderr.contains("--fresh"),
        "{refused:?}"
    );
}

#[test]
fn the_table_of_a_run_that_is_named_by_a_link_is_written_into_its_folder() {
    let place = Place::with("train: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let run = place.latest().canonicalize().unwrap();
    let table = run.join("summary.csv");
    std::os::unix::fs::symlink(&run, place.path("linked")).unwrap();
    let write = |named: &str| {
        let report = place.kiln(&["report", "--write", named]).output();
        Ended::of(report.unwrap())
    };
    for named in ["results/x/latest", "linked", "linked/trials.csv"] {
        fs::remove_file(&table).unwrap();
        let ended = write(named);
        assert!(ended.status == Some(0) && table.is_file(), "{ended:?}");
    }
    let again = write("linked");
    let words = "summary.csv is up to date\n";
    assert!(again.stdout.ends_with(words), "{again:?}");
    // A link inside the folder stays refused.
    fs::remove_file(&table).unwrap();
    std::os::unix::fs::symlink(place.path("elsewhere"), &table).unwrap();
    let ended = write("linked");
    assert!(!place.path("elsewhere").exists(), "{ended:?}");
}

#[test]
fn a_format_that_is_written_as_an_option_is_offered_as_a_format() {
    let place = Place::with("train: {steps: 10}");
    let tip = |arguments: &[&str]| Ended::of(place.kiln(arguments).output().unwrap()).stderr;
    assert!(
        tip(&["report", "--markdown"])
            .contains("tip: this format is chosen by '--format markdown'")
    );
    assert!(tip(&["compare", "--csv", "a", "b"]).contains("'--format csv'"));
    assert!(!tip(&["report", "--htm"]).contains("--format"));
    assert!(!tip(&["--markdown"]).contains("--format"));
}

#[test]
fn a_table_that_was_read_before_the_last_rows_is_not_the_one_that_stays() {
    let place = Place::with("sweep: {repeats: 2}\ntrain: {steps: 10}");
    assert_eq!(place.run("completes", &[]).status, Some(0));
    let (rows, table) = (
        place.latest().join("trials.csv"),
        place.latest().join("summary.csv"),
    );
    let (whole, summary) = (fs::read(&rows).unwrap(), fs::read(&table).unwrap());
    let lines = place.lines();
    fs::write(&rows, format!("{}\n{}\n", lines[0], lines[1])).unwrap();
    // More than a pipe holds: the report waits here between reading and writing.
    let runs = ["x"; 300];
    let mut report = place
        .kiln(&[&["report", "--json", "--write"], &runs[..]].concat())
        .spawn()
        .unwrap();
    let begun = read_until(report.stdout.as_mut().unwrap(), "[");
    assert_eq!(begun, "[");
    fs::write(&rows, &whole).unwrap();
    let ended = Ended::of(report.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.len() > 80_000, "{}", ended.stdout.len());
    assert_eq!(fs::read(&table).unwrap(), summary);
}

#[test]
fn one_trial_has_a_page_of_its_own() {
    let place = Place::with("train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}}");
    place.run("completes", &[]);
    let trial = place.column("trial").remove(1);
    let kiln = |arguments: &[&str]| Ended::of(place.kiln(arguments).output().unwrap());
    let named = format!("x:{}", &trial[..6]);
    let page = kiln(&["report", &named]);
    let next = format!("\nnext:\n  kiln init new.yaml --from x:{trial}\n");
    for words in [
        "settings     model.size 16\n",
        "outcome      completed\n",
        "train_loss 2.25",
        next.as_str(),
    ] {
        assert!(page.stdout.contains(words), "{words}: {page:?}");
    }
    assert!(!page.stdout.contains("kiln evaluate"), "{page:?}");
    let as_json = kiln(&["report", &named, "--json"]);
    let told = "the report of one trial is a page of text";
    assert!(
        as_json.status == Some(2) && as_json.stderr.contains(told),
        "{as_json:?}"
    );
    for command in ["watch", "rm"] {
        let refused = kiln(&[command, &named]);
        let told = format!("`kiln {command}` takes whole runs, such as `x`");
        assert!(
            refused.status == Some(2) && refused.stderr.contains(&told),
            "{refused:?}"
        );
    }
}

#[test]
fn a_trial_is_refused_where_whole_runs_are_read() {
    let place = Place::with("train: {steps: 10}");
    place.run("completes", &[]);
    let named = format!("x:{}", &place.column("trial").remove(0)[..6]);
    let named = named.as_str();
    let kiln = |arguments: &[&str]| Ended::of(place.kiln(arguments).output().unwrap());
    for (command, arguments) in [
        ("compare", &["compare", named, "x"][..]),
        ("diff", &["diff", "x", named][..]),
        ("reproduce", &["reproduce", named][..]),
        ("run --keep", &["run", "x.yaml", "--keep", named][..]),
        ("run --keep", &["plan", "x.yaml", "--keep", named][..]),
        (
            "run --read-again",
            &["run", "x.yaml", "--read-again", named][..],
        ),
    ] {
        let refused = kiln(arguments);
        let told = format!("{named}: `kiln {command}` takes whole runs, such as `x`; ");
        assert!(
            refused.status == Some(2) && refused.stderr.contains(&told),
            "{arguments:?}: {refused:?}"
        );
    }
    let unknown = kiln(&["report", "x:txxxx"]);
    assert!(
        unknown.status == Some(2) && unknown.stderr.contains("run x has no trial `txxxx`"),
        "{unknown:?}"
    );
}

#[test]
fn a_failed_trial_shows_the_end_of_its_log() {
    let model = "  argv: [sh, -c, 'echo the cause >&2; exit 7']\n  metrics: {speed: {line: 'speed \
                 (\\S+)', better: high}}";
    let place = Place::of_command(model, "");
    place.run("", &[]);
    let trial = place.column("trial").remove(0);
    let page = place.kiln(&["report", &format!("x:{trial}")]).output();
    let page = Ended::of(page.unwrap());
    let told = "last lines of its stderr.txt:\n  the cause\n";
    assert!(page.stdout.contains(told), "{page:?}");
    let again = "\n  kiln run x.yaml --rerun failed\n";
    assert!(page.stdout.contains(again), "{page:?}");
    place.run("", &["--fresh"]);
    let older = place.kiln(&["report", &format!("x~1:{trial}")]).output();
    let older = Ended::of(older.unwrap());
    assert!(
        older.status == Some(0) && !older.stdout.contains("--rerun"),
        "{older:?}"
    );
}

#[test]
fn a_trial_that_did_not_run_and_a_kept_one_say_so() {
    let two = "train: {steps: 10}\nsweep: {grid: {model.size: [8, 16]}}";
    let place = Place::with(two);
    let kiln = |arguments: &[&str]| Ended::of(place.kiln(arguments).output().unwrap());
    let plan: Value = serde_json::from_str(&kiln(&["plan", "x.yaml", "--json"]).stdout).unwrap();
    let id = |place: usize| plan["trials"][place]["id"].as_str().unwrap().to_owned();
    place.run("completes", &["--only", &id(0)]);
    let page = kiln(&["report", &format!("x:{}", id(1))]);
    for words in ["settings     model.size 16\n", "outcome      not run yet\n"] {
        assert!(page.stdout.contains(words), "{words}: {page:?}");
    }
    assert!(!page.stdout.contains("kiln watch"), "{page:?}");
    place.run("completes", &["--keep", "x"]);
    let kept = kiln(&["report", &format!("x:{}", id(0))]);
    assert!(kept.stdout.contains("\nkept from    x/"), "{kept:?}");
    let own = kiln(&["report", &format!("x:{}", id(1))]);
    assert!(!own.stdout.contains("kept from"), "{own:?}");
}
