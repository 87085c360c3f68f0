use kiln_core::{
    plan::Outcome,
    record::{TrialRow, TrialTable},
};

use super::*;
use crate::report::points::tests::{row, table};

fn page(table: &TrialTable) -> String {
    let subjects = [Subject::new(table, "results/x/trials.csv")];
    Album::of(&subjects).html()
}

fn swept() -> TrialTable {
    let of = |id, rate, loss, batch| TrialRow {
        valid_loss: Some(loss),
        steps: Some(64 / batch),
        effective_batch_size: batch,
        median_step_seconds: Some(0.0125),
        ..row(id, rate)
    };
    let oom = TrialRow {
        outcome: Outcome::Oom,
        samples_per_second: None,
        reason: Some("out of memory".into()),
        ..row(9, 0.0)
    };
    table(
        &["train.batch_size", "data.num_workers"],
        vec![
            (of(1, 100.0, 2.0, 4), &["4", "0"]),
            (of(2, 120.0, 2.1, 4), &["4", "2"]),
            (of(3, 180.0, 2.2, 8), &["8", "0"]),
            (of(4, 240.0, 2.3, 8), &["8", "2"]),
            (oom, &["16", "0"]),
        ],
    )
}

#[test]
fn trials_that_did_not_complete_are_listed_below_the_points() {
    let mut table = swept();
    assert!(
        page(&table).contains(
            "<h3>Not completed</h3>\n  <ul class=\"ends\"><li>0000000009  oom         \
             train.batch_size 16, data.num_workers 0: out of memory</li></ul>"
        ),
        "{}",
        page(&table)
    );
    table.rows.pop();
    assert!(!page(&table).contains("Not completed"));
}

#[test]
fn a_page_has_every_point_every_picture_and_nothing_from_elsewhere() {
    let page = page(&swept());
    assert_eq!(page.matches("<tr class=\"best\">").count(), 1);
    assert!(
        page.contains("<td data-v=\"2.400000e2\">240") && page.contains("out of memory"),
        "{page}"
    );
    for title in [
        "Throughput, samples/s against batch_size",
        "Validation loss against num_workers",
        "at equal samples",
        "over batch_size and num_workers",
    ] {
        assert!(
            page.contains(&format!("<title>{title}")) || page.contains(title),
            "{title}"
        );
    }
    assert!(
        page.contains("1 point without this number (1 oom)"),
        "{page}"
    );
    for foreign in [
        "src=",
        "@import",
        "url(",
        "<link rel=\"stylesheet\"",
        "http://",
        "https://",
    ] {
        let found: Vec<&str> = page
            .lines()
            .filter(|line| {
                line.contains(foreign) && !line.contains("xmlns=\"http://www.w3.org/2000/svg\"")
            })
            .collect();
        assert!(found.is_empty(), "{foreign}: {found:?}");
    }
    assert!(page.trim_end().ends_with("</html>"));
}

#[test]
fn metrics_of_a_command_are_columns() {
    let of = |id, gflops| {
        let mut fixed = row(id, 1.0);
        fixed.metrics.insert("gflops".to_owned(), gflops);
        fixed
    };
    let rows = [(1, 12.5, "a"), (2, 14.4, "b"), (3, 13.0, "a")];
    let cells = rows.map(|(_, _, value)| [value]);
    let rows = rows.iter().zip(&cells);
    let mut table = table(
        &["x"],
        rows.map(|((id, gflops, _), cells)| (of(*id, *gflops), &cells[..]))
            .collect(),
    );
    table.metrics = vec!["metric.gflops".to_owned()];
    let page = page(&table);
    assert!(page.contains(">gflops</th>"), "{page}");
    assert!(
        page.contains("12.75 ± 0.35") && page.contains(">14.4"),
        "{page}"
    );
}

#[test]
fn hostile_names_and_values_are_no_markup() {
    const HOSTILE: &str = "\"></td><script>alert('x')</script><img src=x onerror=alert(1)>";
    let hostile = TrialRow {
        outcome: Outcome::Failed,
        reason: Some(HOSTILE.into()),
        device_name: Some(HOSTILE.into()),
        model_kind: HOSTILE.into(),
        ..row(1, 10.0)
    };
    let table = table(
        &["model.<b>x</b>"],
        vec![
            (hostile.clone(), &[HOSTILE]),
            (
                TrialRow {
                    outcome: Outcome::Completed,
                    ..hostile
                },
                &["\u{202e}b"],
            ),
            (row(3, 5.0), &["c"]),
        ],
    );
    let experiment = format!("description: \"{}\"\n", HOSTILE.replace('"', "\\\""));
    let subjects = [Subject {
        experiment: Some(&experiment),
        ..Subject::new(&table, HOSTILE)
    }];
    let page = Album::of(&subjects).html();
    assert_eq!(page.matches("<script>").count(), 1, "kiln's own: {page}");
    assert!(!page.contains("<img") && !page.contains("<b>x"), "{page}");
    for (name, svg) in Album::of(&subjects).pictures() {
        assert!(
            name.chars()
                .all(|letter| letter.is_ascii_alphanumeric() || ".-_".contains(letter)),
            "{name}"
        );
        assert!(!svg.contains("<script") && !svg.contains("<b>"), "{svg}");
    }
}

#[test]
fn the_page_allows_its_own_program_alone() {
    let page = page(&swept());
    let script = page
        .split("<script>")
        .nth(1)
        .unwrap()
        .split("</script>")
        .next()
        .unwrap();
    let hash = BASE64_STANDARD.encode(Sha256::digest(script.as_bytes()));
    assert!(
        page.contains(&format!("script-src 'sha256-{hash}'")),
        "a browser would refuse it"
    );
}

#[test]
fn several_runs_stand_in_one_table_and_one_line_each() {
    let (one, other) = (swept(), swept());
    let subjects = [
        Subject::new(&one, "a/trials.csv"),
        Subject::new(&other, "b/trials.csv"),
    ];
    let page = Album::of(&subjects).html();
    assert!(
        page.contains("<td>a/trials.csv") && page.contains("<td>b/trials.csv"),
        "{page}"
    );
    assert!(
        page.contains("a/trials.csv, num_workers 0"),
        "a line of its own: {page}"
    );
    assert!(
        page.contains("<title>Throughput, samples/s against run</title>"),
        "{page}"
    );
}

#[test]
fn a_notice_that_several_runs_have_stands_once() {
    let old = |id| TrialRow {
        kiln_table: "trials/9".to_owned(),
        transfer_fraction: Some(0.4),
        ..row(id, 10.0)
    };
    let (one, other) = (
        table(&[], vec![(old(1), &[][..])]),
        table(&[], vec![(old(2), &[][..])]),
    );
    let two = table(&[], vec![(old(1), &[][..]), (old(2), &[][..])]);
    let subjects = [
        Subject::new(&one, "a/trials.csv"),
        Subject::new(&two, "b/trials.csv"),
        Subject::new(&other, "c/trials.csv"),
    ];
    let of = |subjects: &[Subject<'_>]| {
        let findings: Vec<Vec<RuleFinding>> = subjects
            .iter()
            .map(|subject| diagnose_run(*subject))
            .collect();
        let mut notices = Album::of(subjects).notices(&findings);
        notices.retain(|line| line.contains("older meaning"));
        notices
    };
    let notices = of(&subjects);
    assert_eq!(notices.len(), 2, "{notices:?}");
    let told = "a/trials.csv, c/trials.csv: `transfer_fraction`: 1 of 1 row has";
    assert!(notices[0].starts_with(told), "{notices:?}");
    let told = "b/trials.csv: `transfer_fraction`: 2 of 2 rows have";
    assert!(notices[1].starts_with(told), "{notices:?}");
    assert!(of(&subjects[..1])[0].starts_with("`transfer_fraction`"));
}

#[test]
fn the_hit_rate_of_a_panel_stands_above_that_without_a_model() {
    let panel = TrialRow {
        valid_hit_rate: Some(0.5),
        majority_hit_rate: Some(0.75),
        ..row(1, 10.0)
    };
    let page = page(&table(&[], vec![(panel, &[])]));
    let told = "Without a model: hit rate 75.0 % (always the more common direction).";
    assert!(page.contains(told), "{page}");
}

#[test]
fn a_run_without_a_trial_is_a_page_too() {
    let page = page(&table(&[], vec![]));
    assert!(page.contains("no trial has ended yet"), "{page}");
}

#[test]
fn numbers_of_any_size_are_short() {
    let of = |id, rate, batch| TrialRow {
        valid_loss: Some(rate),
        median_step_seconds: Some(1.0 / rate),
        effective_batch_size: batch,
        ..row(id, rate)
    };
    let rows = vec![
        (of(1, 1e308, 4), &["4"][..]),
        (of(2, 1e308, 4), &["4"]),
        (of(3, 1.7e308, 8), &["8"]),
        (of(4, 1e-300, 16), &["16"]),
    ];
    let page = page(&table(&["train.batch_size"], rows));
    let longest = page
        .split(|letter: char| !letter.is_ascii_digit())
        .map(str::len)
        .max()
        .unwrap();
    assert!(longest <= 20, "{longest}: {page}");
    let body = page
        .split("</style>")
        .nth(1)
        .unwrap()
        .split("<script>")
        .next()
        .unwrap();
    assert!(
        body.contains("1.00e308") && !body.contains("NaN") && !body.contains(">inf"),
        "{body}"
    );
}

/// The summary of a terminal says the same of the same rows.
#[test]
fn runs_with_step_times_alone_are_in_the_order_of_their_steps_and_the_page_says_what_that_order_is_worth()
 {
    let row_of = |id: u64, step: f64, batch: u64| TrialRow {
        samples_per_second: None,
        median_step_seconds: Some(step),
        effective_batch_size: batch,
        run_seconds: Some(id as f64),
        ..row(id, 1.0)
    };
    let of = |batches: [u64; 2]| {
        let rows = [(1, 0.02, 0), (2, 0.021, 0), (3, 0.01, 1), (4, 0.0101, 1)];
        table(
            &["data.num_workers"],
            rows.iter()
                .map(|(id, step, point)| {
                    (
                        row_of(*id, *step, batches[*point]),
                        [&["0"][..], &["2"]][*point],
                    )
                })
                .collect(),
        )
    };
    let (table, said) = (
        of([8, 8]),
        "he points did not all run in turns: the order may come from drift of the machine",
    );
    let html = page(&table).replace("&#39;", "'");
    assert!(
        html.contains(said) && html.contains("hortest step first"),
        "{html}"
    );
    let best = html.split("<tr class=\"best\">").nth(1).unwrap();
    assert!(
        best.starts_with("<td>2") && best.contains("<td data-v=\"1.000000e2\">100 %"),
        "{best}"
    );
    let subject = || Subject::new(&table, "x");
    let forms = [
        crate::report::text(
            subject(),
            crate::report::PageStyle {
                width: Some(60),
                has_color: false,
            },
        ),
        crate::report::markdown(subject()),
    ];
    for form in forms {
        assert!(
            form.contains(said)
                && form.contains("10.1 ms")
                && form.contains("ordered by step time")
                && form.contains("without a rate"),
            "{form}"
        );
    }
    // Steps of two sizes are not the same work.
    let apart = page(&of([8, 16])).replace("&#39;", "'");
    assert!(
        !apart.contains(said)
            && !apart.contains("hortest step first")
            && apart.contains("In the plan's order: no point has a comparable speed"),
        "{apart}"
    );
}

#[test]
fn pictures_of_one_name_get_files_of_their_own() {
    let (one, other) = (swept(), swept());
    let subjects = [Subject::new(&one, "a"), Subject::new(&other, "a")];
    let pictures = Album::of(&subjects).pictures();
    let names: std::collections::HashSet<&String> = pictures.iter().map(|(name, _)| name).collect();
    assert!(
        names.len() == pictures.len() && pictures.len() > 6,
        "{names:?}"
    );
}
