//! The pictures of the page under a mouse and under fingers on keys: values, enlarging, the switch
//! of clocks, smoothing; texts and settings; and what is left of the page without its script.

use std::fs;

use serde_json::{Value, json};

use super::{files_under, large_table, place_with_run, report, run_on_cpu};
use crate::browser::Page;

const SCREENS: [(u32, u32); 2] = [(360, 780), (1440, 900)];

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Opens what is folded, so that every picture is laid out.
fn unfold(page: &Page) {
    page.ask("document.querySelectorAll('details').forEach((part) => { part.open = true; }) ?? 1");
}

/// For the picture of this number among those that are shown: where each value stands in the
/// window, and what it says, as the list below the picture has it.
fn values(page: &Page, picture: u64) -> Vec<Value> {
    let found = page.ask(&format!(
        "(() => {{ const figure = [...document.querySelectorAll('figure')].filter((one) => \
         one.checkVisibility())[{picture}]; const svg = figure.querySelector('svg'); \
         svg.scrollIntoView({{block: 'center', behavior: 'instant'}}); const area = \
         svg.getBoundingClientRect(); const scale = area.width / svg.viewBox.baseVal.width; \
         return [...figure.querySelectorAll('dd')].filter((list) => \
         list.dataset.at).flatMap((list) => list.dataset.at.split(' ').map((at, place) => {{ \
         const [x, y] = at.split(',').map(Number); return {{x: area.x + x * scale, y: area.y + y \
         * scale, name: list.previousElementSibling.textContent, text: \
         list.textContent.split('\\n')[place]}}; }})); }})()"
    ));
    serde_json::from_value(found).unwrap()
}

/// What the box says that is shown, and its left and right ends.
fn shown_value(page: &Page) -> Value {
    page.ask(
        "(() => { const box = document.querySelector('.value:not([hidden])'); if (!box) return \
         null; const area = box.getBoundingClientRect(); return {lines: \
         [...box.children].map((line) => line.textContent), left: area.left, right: area.right}; \
         })()",
    )
}

#[test]
fn every_picture_tells_its_values_to_the_mouse_and_to_the_keys() {
    let place = place_with_run();
    run_on_cpu(&place);
    let page = Page::open(&report(&place, &["gpu", "results/y"]));
    for (width, height) in SCREENS {
        page.on(width, height, "light");
        unfold(&page);
        let pictures = page
            .ask(
                "[...document.querySelectorAll('figure')].filter((one) => \
                 one.checkVisibility()).length",
            )
            .as_u64()
            .unwrap();
        assert!(pictures > 20, "{pictures} pictures");
        for picture in 0..pictures {
            let values = values(&page, picture);
            let last = values.last().unwrap();
            page.point_at(last["x"].as_f64().unwrap(), last["y"].as_f64().unwrap());
            let box_ = shown_value(&page);
            let lines: Vec<&str> = box_["lines"].as_array().unwrap().iter().map(text).collect();
            let (x, y) = text(&last["text"]).rsplit_once(": ").unwrap();
            // Another mark may lie at the same pixel; this picture has one with these words.
            let is_same_place = |other: &&Value| {
                ["x", "y"].iter().all(|way| {
                    let apart = other[*way].as_f64().unwrap() - last[*way].as_f64().unwrap();
                    apart.abs() < 2.0
                })
            };
            let texts: Vec<&str> = values
                .iter()
                .filter(is_same_place)
                .map(|value| text(&value["text"]))
                .collect();
            let is_shown = texts.iter().any(|text| {
                let (x, y) = text.rsplit_once(": ").unwrap();
                lines.iter().any(|line| line.ends_with(x)) && lines.last().unwrap().ends_with(y)
            });
            assert!(is_shown, "picture {picture}: {lines:?}, not {x}: {y}");
            assert!(
                box_["left"].as_f64() >= Some(0.0)
                    && box_["right"].as_f64() <= Some(f64::from(width)),
                "picture {picture} at {width}: {box_}"
            );
            page.point_at(2.0, 2.0);
            assert_eq!(shown_value(&page), Value::Null, "the mouse has left");
        }
        let first = values(&page, 0);
        page.show_window(&format!("values-{width}"));
        page.ask("document.querySelector('#axes .plot').focus({focusVisible: true}) ?? 1");
        let said = |key: &str| {
            page.press(key);
            page.ask("document.getElementById('announced').textContent")
        };
        // The mouse has left it at its last value.
        (0..12).for_each(|_| page.press("ArrowUp"));
        page.press("Home");
        let second = text(&first[1]["text"]).rsplit_once(": ").unwrap();
        let right = said("ArrowRight");
        assert!(
            text(&right).contains(&format!("{}, ", second.0)) && text(&right).ends_with(second.1),
            "{right}, not {second:?}"
        );
        page.show_window(&format!("keys-{width}"));
        let home = said("Home");
        assert!(
            text(&home).ends_with(text(&first[0]["text"]).rsplit_once(": ").unwrap().1),
            "{home}"
        );
        let down = said("ArrowDown");
        let other = first.iter().find(|value| value["name"] != first[0]["name"]);
        let other = text(&other.unwrap()["name"]);
        assert!(text(&down).starts_with(other), "{down}, not {other}");
        page.press("Escape");
        assert_eq!(shown_value(&page), Value::Null);
        page.ask("document.activeElement.blur() ?? 1");
    }
    assert_eq!(page.heard(), [""; 0]);
}

#[test]
fn a_picture_enlarges_and_the_focus_returns_when_it_closes() {
    let place = place_with_run();
    let page = Page::open(&report(&place, &["gpu"]));
    // A dialog tells that it was closed before the next picture of the screen.
    let state = || {
        page.ask(
            "new Promise(requestAnimationFrame).then(() => \
             [document.getElementById('large').open, document.activeElement.className, \
             document.querySelectorAll('#large svg').length])",
        )
    };
    let width = |selector: &str| {
        let area = format!("document.querySelector('{selector}').getBoundingClientRect().width");
        page.ask(&area).as_f64().unwrap()
    };
    for (screen, height) in SCREENS {
        for scheme in ["light", "dark"] {
            page.on(screen, height, scheme);
            page.click("#axes .enlarge");
            let (large, small) = (width("#large svg"), width("#axes svg"));
            assert!(large > small * 1.5, "{screen}: {large} is not {small}");
            assert!(width("#large") <= f64::from(screen), "{screen}");
            page.show_window(&format!("large-{screen}-{scheme}"));
            let barriers = page.barriers();
            assert!(barriers.is_empty(), "{screen}: {barriers:#?}");
            page.press("Escape");
            assert_eq!(state(), json!([false, "enlarge", 0]));
        }
        // By keyboard alone, with the values in the large picture.
        page.ask("document.querySelector('#axes .plot').focus({focusVisible: true}) ?? 1");
        page.press("Enter");
        assert_eq!(state()[0], true);
        page.ask("document.querySelector('#large .plot').focus({focusVisible: true}) ?? 1");
        page.press("End");
        let said = page.ask("document.querySelector('#large .value').innerText");
        assert!(text(&said).contains("Throughput"), "{said}");
        page.press("Escape");
        assert_eq!(state(), json!([false, "plot", 0]));
        page.click("#axes .enlarge");
        page.click("#large-close");
        assert_eq!(state(), json!([false, "enlarge", 0]));
    }
    assert_eq!(page.heard(), [""; 0]);
}

/// Titles of the curves that are shown.
fn curves(page: &Page) -> Value {
    page.ask(
        "[...document.querySelectorAll('#curves figure')].filter((one) => \
         one.checkVisibility()).map((one) => one.querySelector('title').textContent)",
    )
}

#[test]
fn losses_are_shown_by_one_clock_at_a_time_and_smoothed_over_the_raw_lines() {
    let place = place_with_run();
    run_on_cpu(&place);
    let page = Page::open(&report(&place, &["results/y"]));
    // How far the lines of a kind go up and down together, and how visible they are.
    let lines = |selector: &str| {
        page.ask(&format!(
            "(() => {{ const lines = [...document.querySelector('#curves \
             svg').querySelectorAll('{selector}')]; const way = (line) => [...line.points].reduce((sum, point, place, \
             all) => sum + (place ? Math.abs(point.y - all[place - 1].y) : 0), 0); return {{count: lines.length, way: \
             lines.map(way).reduce((one, other) => one + other, 0), opacity: lines.length && \
             Number(getComputedStyle(lines[0]).opacity), start: lines.map((line) => line.points[0].y)}}; }})()"
        ))
    };
    const RAW: &str = "polyline[stroke-width=\"3\"]:not(.smoothed *)";
    for (width, height) in SCREENS {
        page.on(width, height, "light");
        page.click("#curves label:nth-of-type(1) input");
        assert_eq!(curves(&page), json!(["Loss by steps"]));
        page.click("#curves label:nth-of-type(3) input");
        assert_eq!(curves(&page), json!(["Loss by time"]));
        page.press("ArrowLeft");
        assert_eq!(curves(&page), json!(["Loss by samples"]));
        page.press("ArrowLeft");
        assert_eq!(curves(&page), json!(["Loss by steps"]));

        let raw = lines(RAW);
        assert!(
            raw["count"].as_u64() >= Some(2) && raw["opacity"] == 1,
            "{raw}"
        );
        page.ask("document.getElementById('smoothing').focus() ?? 1");
        (0..16).for_each(|_| page.press("ArrowRight"));
        assert_eq!(
            page.ask("document.querySelector('output').textContent"),
            "0.8"
        );
        page.show_window(&format!("smoothed-{width}"));
        let (faint, smoothed) = (lines(RAW), lines(".smoothed polyline"));
        assert!(
            faint["way"] == raw["way"] && faint["opacity"].as_f64() < Some(0.5),
            "the raw lines stay, fainter: {raw} {faint}"
        );
        assert!(
            smoothed["count"] == raw["count"]
                && smoothed["start"] == raw["start"]
                && smoothed["opacity"] == 1
                && smoothed["way"].as_f64() < Some(raw["way"].as_f64().unwrap() * 0.9),
            "{raw} {smoothed}"
        );
        assert!(page.barriers().is_empty(), "{:#?}", page.barriers());
        // A value that is read has the smoothed one too, named, and the raw one last.
        page.ask("document.querySelector('#curves .plot').focus({focusVisible: true}) ?? 1");
        page.press("Home");
        let first = shown_value(&page);
        (0..3).for_each(|_| page.press("ArrowRight"));
        let shown = shown_value(&page);
        let words = |shown: &Value| -> Vec<String> {
            let lines = shown["lines"].as_array().unwrap();
            lines.iter().map(|line| text(line).to_owned()).collect()
        };
        let number = |line: &str| -> f64 { line.rsplit_once(": ").unwrap().1.parse().unwrap() };
        let (first, shown) = (words(&first), words(&shown));
        let [.., smoothed, raw_line] = &shown[..] else {
            panic!("{shown:?}")
        };
        assert!(
            smoothed.starts_with("smoothed (0.8): ") && !raw_line.starts_with("smoothed"),
            "{shown:?}"
        );
        assert!(
            (number(smoothed) - number(raw_line)).abs() > 1e-4,
            "another value: {shown:?}"
        );
        // The mean is corrected for its start.
        let [.., smoothed, raw_line] = &first[..] else {
            panic!("{first:?}")
        };
        assert!(
            (number(smoothed) - number(raw_line)).abs() < 1e-3,
            "{first:?}"
        );
        page.ask("document.getElementById('smoothing').focus() ?? 1");
        page.press("Home");
        assert_eq!(
            (lines(RAW), &lines(".smoothed polyline")["count"]),
            (raw, &json!(0))
        );
    }
    assert_eq!(page.heard(), [""; 0]);
}

#[test]
fn texts_of_models_and_settings_that_differ_are_words_whatever_they_hold() {
    let place = place_with_run();
    run_on_cpu(&place);
    const HOSTILE: &str = "</pre></details><script>window.harmed=1</script><img src=x \
                           onerror=\"window.harmed=1\">\nsecond line";
    let files: Vec<_> = files_under(&place.path("results/y"))
        .into_iter()
        .filter(|file| file.ends_with("sample.txt"))
        .collect();
    assert_eq!(files.len(), 4, "each trial wrote one");
    let written: Vec<String> = files[1..]
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    fs::write(&files[0], HOSTILE).unwrap();
    let page = Page::open(&report(&place, &["gpu", "results/y"]));
    let shown: Vec<String> = serde_json::from_value(
        page.ask("[...document.querySelectorAll('#texts pre')].map((text) => text.textContent)"),
    )
    .unwrap();
    assert_eq!(shown.len(), 4);
    for text in written.iter().map(String::as_str).chain([HOSTILE]) {
        // A browser drops the line feed at the start of a `pre`.
        let is_shown = |one: &String| one.trim_start() == text.trim_start();
        assert!(
            shown.iter().any(is_shown),
            "{text:?} is not among {shown:?}"
        );
    }
    assert_eq!(
        page.ask("[window.harmed ?? 0, document.images.length, document.scripts.length]"),
        json!([0, 0, 1])
    );
    let rows: Vec<Vec<String>> = serde_json::from_value(page.ask(
        "[...document.querySelectorAll('#settings tbody tr')].map((row) => \
         [...row.cells].map((cell) => cell.textContent))",
    ))
    .unwrap();
    let steps = ["train.steps", "10", "40"].map(str::to_owned).to_vec();
    assert!(rows.contains(&steps), "{rows:?}");
    let equal: Vec<_> = rows.iter().filter(|row| row[1] == row[2]).collect();
    assert!(equal.is_empty(), "only what differs: {equal:?}");
    assert_eq!(page.heard(), [""; 0]);
}

#[test]
fn without_its_script_the_page_has_pictures_values_texts_and_the_switch() {
    let place = place_with_run();
    run_on_cpu(&place);
    let page = Page::open_without_script(&report(&place, &["gpu", "results/y"]));
    for (width, height) in SCREENS {
        page.on(width, height, "light");
        assert_eq!(
            page.ask(
                "[document.querySelectorAll('figure button').length, \
                 document.querySelector('.tools').checkVisibility(), \
                 document.querySelectorAll('#table tbody tr').length]"
            ),
            json!([0, false, 6]),
            "nothing that would do nothing, and the whole table"
        );
        page.click("#curves label:nth-of-type(2) input");
        assert_eq!(curves(&page), json!(["Loss by samples"]));
        page.click("#axes .values summary");
        let list = page.ask("document.querySelector('#axes .values[open] dl').innerText");
        assert!(text(&list).lines().count() > 1, "{list}");
        page.click("#axes .values summary");
    }
    assert_eq!(page.heard(), [""; 0]);
}

#[test]
fn a_page_of_a_thousand_trials_opens_within_a_second() {
    let place = place_with_run();
    large_table(&place, 1000, "large");
    let file = report(&place, &["large"]);
    let open = || {
        let page = Page::open(&file);
        page.on(1280, 900, "light");
        page.ask("document.body.getBoundingClientRect()");
        page.processor_seconds()
    };
    // Whatever shares the processor makes some of them slower.
    let seconds: Vec<f64> = (0..5).map(|_| open()).collect();
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best > 0.01 && best < 1.0, "opening took {seconds:?} s");
}
