//! Nothing that came from a file, a child, a device or the environment acts on what kiln prints or
//! writes: every verb and every format is driven with hostile values, and every page is checked.

mod check;
mod place;

use std::fs;

use serde_json::{Value, json};

use self::{
    check::{
        Medium::{Csv, Html, Json, JsonLines, Markdown, Svg, Text},
        Page,
    },
    place::{HostilePlace, axis, copy_run, hostile, short},
};
use crate::scripted_child::Ended;

#[test]
fn reports_and_comparisons_of_hostile_runs_hold_values_as_words() {
    let mut here = HostilePlace::new("");
    let (base, new) = (short("base"), short("new"));
    copy_run(&here.path(&base), 1.0);
    copy_run(&here.path(&new), 3.0);
    for (medium, format) in [(Text, "text"), (Markdown, "markdown"), (Json, "json")] {
        let ended = here.makes(medium, &["report", &base, "--format", format]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("value"), "{ended:?}");
        // The record of the run is used; its machine has other hostile names than the rows.
        let notes: Vec<&str> = ended.stderr.lines().collect();
        assert!(
            matches!(notes[..], [note] if note.contains("the machine of 12 rows is not")),
            "{notes:?}"
        );
    }
    here.makes(
        Text,
        &[
            "report",
            &base,
            &new,
            "--html",
            "page.html",
            "--svg",
            "pictures",
        ],
    );
    here.reads(Html, &here.path("page.html"));
    let pictures = fs::read_dir(here.path("pictures")).unwrap();
    for picture in pictures.map(|entry| entry.unwrap().path()) {
        here.reads(Svg, &picture);
    }
    let formats = [
        (Text, "text"),
        (Markdown, "markdown"),
        (Csv, "csv"),
        (Json, "json"),
    ];
    for (medium, format) in formats {
        let gates = "slower,more-memory,missing,not-completed,not-comparable";
        let across = "device_name,driver,libtorch";
        let by = format!("data.num_workers,train.{}", axis());
        for more in [
            &["--fail-on", gates][..],
            &["--across", across],
            &["--by", &by],
        ] {
            let arguments = [&["compare", &base, &new, "--format", format], more].concat();
            let ended = here.makes(medium, &arguments);
            assert!(!ended.stdout.is_empty(), "{ended:?}");
        }
    }
    for (medium, format) in formats {
        let ended = here.makes(medium, &["diff", &base, &new, "--format", format]);
        assert!(ended.stdout.contains("tf32_matmul"), "{ended:?}");
    }
    fs::create_dir(here.path("folder")).unwrap();
    fs::rename(here.path(&base), here.path("folder/run")).unwrap();
    let drawn = here.draws(&["report", "folder/run"]);
    assert!(drawn.stdout.contains("\u{1b}[1m"), "{drawn:?}");
    here.check();
}

#[test]
fn values_in_json_are_exact() {
    let mut here = HostilePlace::new("");
    copy_run(&here.path("run"), 1.0);
    let ended = here.makes(Json, &["report", "run", "--format", "json"]);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let values: Vec<&str> = report["points"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|point| point["axes"]["data.num_workers"].as_str())
        .collect();
    assert!(values.contains(&hostile("value").as_str()), "{values:?}");
}

#[test]
fn a_list_of_hostile_runs_has_a_line_for_each() {
    let mut here = HostilePlace::new("");
    copy_run(
        &here.path(&format!("results/{}/20260101T000000Z", short("x"))),
        1.0,
    );
    let broken = here.path(&format!("results/{}/20260102T000000Z", short("y")));
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("run.json"), format!("{{\"{}", hostile("x"))).unwrap();
    let listed = here.makes(Text, &["ls"]);
    // The head, two runs, why one of them cannot be read, and that rows of the other are of another
    // machine.
    assert_eq!(listed.stdout.lines().count(), 5, "{listed:?}");
    here.makes(Json, &["ls", "--json"]);
    here.makes(Text, &["ls", &short("nowhere")]);
    here.check();
}

/// An experiment whose free texts are hostile; its child says hostile things.
fn experiment(description: &str) -> String {
    format!(
        "description: {}\ntrain: {{steps: 10}}\nsweep: {{grid: {{train.batch_size: [1, 2, 3, 4, 5]}}}}",
        json!(description)
    )
}

#[test]
fn a_run_with_a_hostile_child_shows_its_words() {
    let mut here = HostilePlace::new(&experiment("one point"));
    for arguments in [
        &["run", "x.yaml", "--dry-run"][..],
        &["run", "x.yaml", "--progress", "plain"],
        &["run", "x.yaml", "--quiet", "--fresh"],
        &["run", "x.yaml"],
        &["report", "results/x/latest"],
        &["ls"],
    ] {
        here.makes(Text, arguments);
    }
    let holds = |column: &str, text: &str| {
        let cells = here.place.column(column);
        assert!(cells.iter().any(|cell| cell.contains(text)), "{cells:?}");
    };
    holds("outcome", "completed");
    holds("reason", "FORGED");
    holds("device_name", &hostile("device"));
    holds("notes", "FORGED");
    here.makes(
        JsonLines,
        &["run", "x.yaml", "--fresh", "--progress", "json"],
    );
    here.draws(&["report", "results/x/latest"]);
    here.makes(
        Text,
        &["reproduce", "results/x/latest", "--set", "train.steps=10"],
    );
    here.makes(
        Markdown,
        &["reproduce", "results/x/latest", "--format", "markdown"],
    );
    here.makes(
        JsonLines,
        &["reproduce", "results/x/latest", "--progress", "json"],
    );
    here.makes(Text, &["compare", "x.yaml", "x.yaml", "--rerun"]);
    here.makes_with_gpu(Text, &["run", "x.yaml", "--fresh", "--device", "cpu"]);
    let pages = fs::read_dir(here.place.latest()).unwrap();
    for page in pages.map(|entry| entry.unwrap().path()) {
        if page.extension().is_some_and(|end| end == "txt") {
            here.reads(Text, &page);
        }
    }
    here.check();
}

#[test]
fn a_notice_of_a_hostile_child_is_one_line_and_bars_are_only_moved_by_kiln() {
    let here = HostilePlace::new(&experiment("one point"));
    let mut kiln = here.command(&["run", "x.yaml", "--progress", "plain"]);
    let plain = here.until_noticed(&mut kiln, |kiln| kiln.stderr.take().unwrap());
    let page = Page {
        label: "lines".to_owned(),
        medium: Text,
        text: plain,
    };
    assert_eq!(page.faults(), Vec::<String>::new());
    fs::remove_file(here.path("release")).unwrap();
    let mut kiln = here.in_a_terminal(&["run", "x.yaml", "--fresh"]);
    let drawn = here.until_noticed(&mut kiln, |kiln| kiln.stdout.take().unwrap());
    // indicatif moves the cursor itself, so characters are looked for.
    for bad in ["\u{9b}", "\u{202e}", "\u{8}", "\nFORGED", "notice\u{1b}"] {
        assert!(!drawn.contains(bad), "{bad:?} in {drawn:?}");
    }
}

#[test]
fn the_lines_of_a_description_are_not_lines_of_the_page() {
    let here = HostilePlace::new(&experiment(
        "purpose\n12 trials: 12 completed\u{1b}[2J\n\nend\n",
    ));
    let ended = Ended::of(here.command(&["run", "x.yaml"]).output().unwrap());
    let expected = "\npurpose\n  12 trials: 12 completed [2J\n  \n  end\n\n5 trials: ";
    assert!(ended.stdout.starts_with(expected), "{ended:?}");
}

#[test]
fn a_search_with_a_hostile_child_shows_its_words() {
    let mut here = HostilePlace::new("");
    // A model of somebody's own may have any texts.
    let values = json!([hostile("one"), hostile("other")]);
    let text = format!(
        "kiln: 1\nname: x\nmodel: {{kind: custom, name: mine, reads: text, seq_len: 8, act: \
         x}}\ndata: {{kind: generated}}\ntrain: {{steps: 10, batch_size: 1}}\nsweep: {{search: \
         {{kind: successive-halving, metric: train_loss, steps: 5, axes: {{model.act: \
         {values}, train.batch_size: [1, 3, 4, 5]}}}}}}\n"
    );
    fs::write(here.path("x.yaml"), text).unwrap();
    here.makes(Text, &["tune", "x.yaml", "--dry-run"]);
    let ended = here.makes(Text, &["tune", "x.yaml", "--progress", "plain"]);
    assert!(ended.stdout.contains("Recommended: "), "{ended:?}");
    here.reads(Markdown, &here.place.latest().join("recommendation.md"));
    here.makes(Text, &["tune", "x.yaml"]);
    here.makes(
        JsonLines,
        &["tune", "x.yaml", "--fresh", "--progress", "json"],
    );
    here.check();
}

#[test]
fn experiment_files_with_hostile_names_keys_and_values_are_refused_in_single_lines() {
    let mut here = HostilePlace::new("");
    // A model of somebody's own may have any texts.
    let text = |path: &str| {
        let values = json!([hostile("one"), hostile("other")]);
        format!(
            "kiln: 1\nname: x\nmodel: {{kind: custom, name: mine, reads: text, seq_len: 8, act: \
             x}}\ndata: {{kind: text, path: {}}}\ntrain: {{steps: 5}}\nsweep: {{grid: \
             {{model.act: {values}}}}}\n",
            json!(path)
        )
    };
    let file = short("file") + ".yaml";
    fs::write(here.path(&file), text(&hostile("missing"))).unwrap();
    let present = short("present");
    fs::write(here.path(&present), "words and words. ".repeat(2000)).unwrap();
    fs::write(here.path("y.yaml"), text(&present)).unwrap();
    let (key, value) = (json!(hostile("key")), json!(hostile("value")));
    let bad = short("bad") + ".yaml";
    let faulty = format!(
        "kiln: 1\nname: {value}\n{key}: 1\nmodel: {{kind: {value}, {key}: {value}}}\ntrain: {{steps: {value}, precision: {value}}}\n"
    );
    fs::write(here.path(&bad), faulty).unwrap();
    let set = format!("{}={}", short("key"), short("value"));
    for verb in ["check", "plan", "run", "tune", "doctor"] {
        for arguments in [
            &[verb, &file][..],
            &[verb, &bad],
            &[verb, &short("nowhere")],
            &[verb, &file, "--set", &set],
            &[verb, &short("--option")],
        ] {
            here.makes(Text, arguments);
        }
    }
    for arguments in [
        &["check", "y.yaml"][..],
        &["plan", "y.yaml", "--results", &short("results")],
        &["run", "y.yaml", "--progress", "plain"],
        &["run", "y.yaml", "--only", &short("id")],
        &["run", "y.yaml", "--rerun", &short("outcome")],
        &["run", "y.yaml", "--device", &short("device")],
    ] {
        here.makes(Text, arguments);
    }
    for file in [file.as_str(), "y.yaml"] {
        let planned = here.makes(Json, &["plan", file, "--json"]);
        assert_eq!(planned.status, Some(0), "{planned:?}");
    }
    here.check();
}

#[test]
fn names_on_the_command_line_and_in_the_environment_stay_on_their_line() {
    let mut here = HostilePlace::new("");
    let bad = short("x");
    fs::write(
        here.path(&bad),
        format!("kiln_table,{}\n{0}\n", hostile("column")),
    )
    .unwrap();
    for arguments in [
        &[bad.as_str()][..],
        &["report", &bad],
        &["report", &short("nowhere")],
        &["report", &format!("HEAD:{}", short("path"))],
        &["report", &bad, "--html", &short("html")],
        &["compare", &bad, &bad],
        &["diff", &bad, &bad],
        &["compare", &bad, &bad, "--across", &bad],
        &["compare", &bad, &bad, "--rerun"],
        &["reproduce", &bad],
        &["calibrate", "--device", &bad],
        &["snapshot", "-i", &bad],
        &["snapshot", "--query", &bad],
        &["watch", "-i", &bad],
        &["watch", "-l", &bad],
        &["watch", "--host", "--count", "1", "--csv", &bad],
        &["data", "fetch", &bad],
        &[
            "data",
            "fetch",
            "tinyshakespeare",
            "--from",
            &bad,
            "--attempts",
            "1",
        ],
        &["data", "verify", "tinyshakespeare"],
        &["data", "list"],
        &["completions", &bad],
        &["man", "--to", &bad],
    ] {
        here.makes(Text, arguments);
    }
    let mut kiln = here.command(&["doctor", "--quick"]);
    kiln.env("KILN_TRIAL", here.path(&bad))
        .env("KILN_NVML_LIB", &bad);
    let ended = Ended::of(kiln.output().unwrap());
    here.pages.push(Page {
        label: "kiln doctor without its programs".to_owned(),
        medium: Text,
        text: ended.stdout + &ended.stderr,
    });
    let folder = here.path(&short("data")).join("tinyshakespeare");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("input.txt"), "x").unwrap();
    here.makes(Text, &["data", "list"]);
    here.makes(Text, &["data", "verify", "tinyshakespeare"]);
    here.makes(Text, &["data", "fetch", "tinyshakespeare"]);
    here.check();
}

#[test]
fn a_hostile_driver_and_child_are_shown_in_single_lines() {
    let mut here = HostilePlace::new("");
    for arguments in [
        &["snapshot"][..],
        &["snapshot", "--words"],
        &["snapshot", "--host"],
        &["watch", "--count", "2", "-l", "0.1", "--host"],
        &["doctor"],
        &["calibrate"],
        &["calibrate", "--device", "cpu"],
    ] {
        let ended = here.makes_with_gpu(Text, arguments);
        assert!(!ended.stdout.is_empty(), "{ended:?}");
    }
    let properties = "name,driver_version,vbios_version,serial";
    for arguments in [
        &["snapshot", "--csv"][..],
        &["snapshot", "--query", properties],
        &["watch", "--count", "1", "--csv", "-"],
        &["watch", "--count", "2", "-l", "0.1", "--query", properties],
    ] {
        let ended = here.makes_with_gpu(Csv, arguments);
        assert!(!ended.stdout.is_empty(), "{ended:?}");
    }
    here.makes_with_gpu(Json, &["snapshot", "--json"]);
    here.makes_with_gpu(Json, &["doctor", "--json"]);
    here.draws(&["doctor"]);
    here.draws(&["snapshot"]);
    here.check();
}

#[test]
fn a_page_drawn_in_place_is_only_moved_by_kiln() {
    let mut here = HostilePlace::new("");
    let drawn = here.draws(&["watch", "--count", "2", "-l", "0.1"]);
    let own = regex::Regex::new("\r|\u{1b}\\[(\\d+A|K|J)").unwrap();
    let page = here.pages.first_mut().unwrap();
    page.text = own.replace_all(&page.text, "").into_owned();
    assert!(drawn.stdout.contains("\u{1b}[K"), "{drawn:?}");
    here.check();
}
