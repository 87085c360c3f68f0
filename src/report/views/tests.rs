use super::long_series::{averaged, enveloped};
use super::throttling::Throttling;
use super::*;
use kiln_core::record::SampleRow;

use crate::report::{
    chart::{Chart, MarkShape, Picture},
    points::tests::{row, table},
};

#[test]
fn long_series_keep_their_means_or_their_peaks() {
    let series: Vec<(f64, f64)> = (0..1000)
        .map(|place| (f64::from(place), if place == 503 { 9.0 } else { 1.0 }))
        .collect();
    let means = averaged(&series, 10);
    assert_eq!((means.len(), means[0]), (10, (49.5, 1.0)));
    assert!((means[5].1 - 1.08).abs() < 1e-12);
    let peaks = enveloped(&series, 20);
    assert!(
        peaks.len() <= 20 && peaks.contains(&(503.0, 9.0)),
        "{peaks:?}"
    );
    assert_eq!(
        (
            averaged(&series[..3], 10).len(),
            enveloped(&series[..3], 10).len()
        ),
        (3, 3)
    );
}

fn of_batches(rows: &[(u64, u64, Option<f64>)]) -> TrialTable {
    let row = |place: usize, (batch, steps, loss): (u64, u64, Option<f64>)| TrialRow {
        effective_batch_size: batch,
        steps: Some(steps),
        valid_loss: loss,
        ..row(place as u64 + 1, 10.0)
    };
    const CELLS: [&[&str]; 4] = [&["4"], &["8"], &["16"], &["32"]];
    table(
        &["train.batch_size"],
        rows.iter()
            .enumerate()
            .map(|(place, of)| (row(place, *of), CELLS[place]))
            .collect(),
    )
}

fn equal_samples(table: &TrialTable) -> Option<(Vec<f64>, String)> {
    let runs = [RunView::new("r".into(), table)];
    let chart = Gallery::of(&runs).equal_samples.pop()?;
    let Picture::Lines(lines) = &chart.picture else {
        return None;
    };
    Some((
        lines.lines[0].marks.iter().map(|mark| mark.y).collect(),
        chart.caption,
    ))
}

#[test]
fn losses_are_set_at_the_same_number_of_samples_and_others_are_left_out_aloud() {
    // The last batch of 32 left out two samples in a hundred: that is the same.
    let (losses, caption) = equal_samples(&of_batches(&[
        (4, 100, Some(2.0)),
        (8, 50, Some(2.1)),
        (16, 25, Some(2.2)),
        (32, 25, Some(1.5)),
    ]))
    .unwrap();
    assert_eq!(losses, [2.0, 2.1, 2.2]);
    assert!(
        caption.starts_with("After 400 samples each") && caption.contains("Left out: 1 point"),
        "{caption}"
    );
    assert!(
        equal_samples(&of_batches(&[(4, 100, Some(2.0)), (4, 100, Some(2.1))])).is_none(),
        "one effective batch"
    );
    assert!(
        equal_samples(&of_batches(&[(4, 100, Some(2.0)), (8, 100, Some(2.1))])).is_none(),
        "nothing at equal samples"
    );
}

#[test]
fn of_many_lines_the_best_are_shown_and_the_caption_says_so() {
    let cells: Vec<[String; 2]> = (0..24)
        .map(|place| [(place % 2 * 4).to_string(), (place / 2).to_string()])
        .collect();
    let cells: Vec<[&str; 2]> = cells
        .iter()
        .map(|[one, other]| [one.as_str(), other.as_str()])
        .collect();
    let rows = cells
        .iter()
        .enumerate()
        .map(|(place, cells)| (row(place as u64 + 1, 100.0 + place as f64), &cells[..]))
        .collect();
    let table = table(&["data.num_workers", "train.batch_size"], rows);
    let runs = [RunView::new("r".into(), &table)];
    let gallery = Gallery::of(&runs);
    let chart = gallery
        .against
        .iter()
        .find(|chart| chart.name == "throughput-against-data.num_workers")
        .unwrap();
    let Picture::Lines(lines) = &chart.picture else {
        panic!("lines")
    };
    let labels: Vec<&str> = lines.lines.iter().map(|line| line.label.as_str()).collect();
    assert_eq!(
        (labels.len(), labels[0], labels[7]),
        (8, "batch_size 4", "batch_size 11")
    );
    assert!(chart.caption.contains("8 of 12 lines"), "{}", chart.caption);
}

fn samples(of: &[(&str, f64, bool)]) -> Vec<SampleRow> {
    let row = |(device, seconds, is_throttled): &(&str, f64, bool)| SampleRow {
        device: (*device).to_owned(),
        run_seconds: *seconds,
        throttle_bits: Some(if *is_throttled { 0x40 } else { 1 }),
        ..Default::default()
    };
    of.iter().map(row).collect()
}

#[test]
fn throttling_lasts_to_the_next_reading_of_the_same_device() {
    let rows = samples(&[
        ("a", 0.0, true),
        ("b", 0.0, false),
        ("a", 10.0, true),
        ("b", 10.0, false),
        ("a", 20.0, false),
        ("b", 20.0, true),
        ("b", 1000.0, false),
    ]);
    // Stretches that touch are one.
    assert_eq!(throttling(&rows).stretches(), [(0.0, 1000.0)]);
    let alternating: Vec<(&str, f64, bool)> = (0..36_000)
        .map(|tick| ("a", f64::from(tick), tick % 2 == 0))
        .collect();
    let held = throttling(&samples(&alternating));
    assert!(held.stretches().len() <= 2, "no more than a page shows");
    assert!(held.kept() <= 4 * MOST_MARKS, "{}", held.kept());
    assert!(throttling(&[]).stretches().is_empty());
}

fn throttling(rows: &[SampleRow]) -> Throttling {
    let mut throttling = Throttling::default();
    rows.iter().for_each(|row| throttling.push(row));
    throttling
}

#[test]
fn keys_that_vary_together_are_points_and_no_lines() {
    let cells = (0..12_u64).map(|place| [place + 1, 64 * (place / 2), place.div_ceil(2)]);
    let against = against(&["train.batch_size", "model.d_model", "data.seed"], cells);
    let Picture::Lines(lines) = &against[0].picture else {
        panic!("lines")
    };
    assert_eq!((lines.lines.len(), lines.lines[0].marks.len()), (1, 12));
    let caption = &against[0].caption;
    assert!(caption.contains("Each point by itself"), "{caption}");
}

#[test]
fn keys_that_vary_as_one_share_a_picture_of_the_batch_size() {
    let cells = (0..12).map(|place| [64 * (place + 1), place + 1]);
    let against = against(&["model.d_model", "train.batch_size"], cells);
    let names: Vec<&str> = against.iter().map(|chart| chart.name.as_str()).collect();
    assert_eq!(names, ["throughput-against-train.batch_size"]);
    let Picture::Lines(lines) = &against[0].picture else {
        panic!("lines")
    };
    assert_eq!((lines.lines.len(), lines.lines[0].marks.len()), (1, 12));
    assert_eq!(lines.lines[0].shape, MarkShape::Marked);
    let caption = &against[0].caption;
    assert!(caption.ends_with("`d_model` varies with it."), "{caption}");
}

/// The pictures over the axes of trials with these values.
fn against<const AXES: usize>(
    axes: &[&str; AXES],
    values: impl Iterator<Item = [u64; AXES]>,
) -> Vec<Chart> {
    let cells: Vec<[String; AXES]> = values
        .map(|values| values.map(|value| value.to_string()))
        .collect();
    let cells: Vec<[&str; AXES]> = cells
        .iter()
        .map(|cells| cells.each_ref().map(String::as_str))
        .collect();
    let rows = cells
        .iter()
        .enumerate()
        .map(|(place, cells)| (row(place as u64 + 1, 100.0), &cells[..]))
        .collect();
    let table = table(axes, rows);
    Gallery::of(&[RunView::new("r".into(), &table)]).against
}

#[test]
fn losses_of_validation_and_of_training_are_never_on_one_line() {
    let of = |id, valid| TrialRow {
        train_loss: Some(0.1),
        valid_loss: valid,
        ..row(id, 1.0)
    };
    let table = table(
        &["a.b"],
        vec![
            (of(1, Some(0.9)), &["1"]),
            (of(2, None), &["2"]),
            (of(3, Some(0.8)), &["3"]),
        ],
    );
    let gallery = Gallery::of(&[RunView::new("r".into(), &table)]);
    let chart = gallery
        .against
        .iter()
        .find(|chart| chart.name.starts_with("valid-loss"))
        .unwrap();
    let Picture::Lines(lines) = &chart.picture else {
        panic!("lines")
    };
    let places: Vec<Option<f64>> = lines.lines[0]
        .marks
        .iter()
        .map(|mark| Some(mark.y).filter(|_| !mark.is_gap()))
        .collect();
    assert_eq!(places, [Some(0.9), None, Some(0.8)]);
    let line = "stroke-width=\"4\"";
    assert!(
        !chart.svg().contains(line),
        "no line leads over the gap: {}",
        chart.svg()
    );
    let whole = against(&["a.b"], (0..3).map(|value| [value]));
    assert!(whole[0].svg().contains(line), "{}", whole[0].svg());
    assert!(
        chart.title.starts_with("Validation loss")
            && chart.caption.contains("1 point without this number"),
        "{chart:?}"
    );
}

#[test]
fn an_axis_of_one_run_is_a_setting_of_the_other() {
    let (swept, plain) = (
        table(
            &["model.dropout", "model.kind"],
            vec![
                (row(1, 1.0), &["0.1", "gpt"]),
                (row(2, 2.0), &["0.2", "gpt"]),
            ],
        ),
        table(&[], vec![(row(3, 3.0), &[])]),
    );
    let settings = Some(serde_json::json!({"model": {"dropout": 0.3}}));
    let runs = [
        RunView::new("a".into(), &swept),
        RunView {
            settings,
            ..RunView::new("b".into(), &plain)
        },
    ];
    let spots = Spots::of(&runs);
    assert_eq!(spots.axes, ["run", "model.dropout", "model.kind"]);
    assert_eq!(spots.spots[2].values, ["b", "0.3", "gpt"]);
    let untold = [
        RunView::new("a".into(), &swept),
        RunView::new("b".into(), &plain),
    ];
    assert_eq!(Spots::of(&untold).spots[2].values[1], "not told");
}

#[test]
fn a_commands_own_metrics_are_drawn_over_each_axis() {
    let of = |number: u64, width: &'static str, score: f64| {
        let mut row = row(number, 10.0);
        row.metrics.insert("score".to_owned(), score);
        (row, width)
    };
    let rows = [of(1, "8", 0.5), of(2, "16", 0.75)];
    let mut table = table(
        &["model.values.width"],
        rows.iter()
            .map(|(row, width)| (row.clone(), std::slice::from_ref(width)))
            .collect(),
    );
    table.metrics = vec!["metric.score".to_owned()];
    let gallery = Gallery::of(&[RunView::new("r".into(), &table)]);
    let own: Vec<&Chart> = gallery
        .against
        .iter()
        .filter(|chart| chart.name.starts_with("metric."))
        .collect();
    let [chart] = own[..] else {
        panic!("one picture: {own:?}")
    };
    assert_eq!(
        (chart.name.as_str(), chart.title.as_str()),
        (
            "metric.score-against-model.values.width",
            "score against width"
        )
    );
    let Picture::Lines(lines) = &chart.picture else {
        panic!("lines")
    };
    let marks = lines.lines[0].marks.iter().map(|mark| mark.y);
    assert_eq!(marks.collect::<Vec<_>>(), [0.5, 0.75]);
}

#[test]
fn of_many_lines_those_that_are_best_stay_or_the_first_where_nothing_says_which() {
    let run = |better: &str| {
        let experiment = serde_json::json!({"model": {
            "kind": "command",
            "argv": ["train"],
            "metrics": {"score": serde_json::from_str::<serde_json::Value>(better).unwrap()},
        }});
        let values: Vec<[String; 2]> = (0..20)
            .map(|place: usize| [(place / 2).to_string(), (place % 2).to_string()])
            .collect();
        let rows = values.iter().enumerate().map(|(place, values)| {
            let mut row = row(place as u64 + 1, 10.0);
            row.metrics.insert("score".to_owned(), place as f64);
            (row, values.each_ref().map(String::as_str))
        });
        let rows: Vec<_> = rows.collect();
        let mut table = table(
            &["model.values.a", "model.values.b"],
            rows.iter()
                .map(|(row, values)| (row.clone(), &values[..]))
                .collect(),
        );
        table.metrics = vec!["metric.score".to_owned()];
        let view = RunView {
            settings: Some(experiment),
            ..RunView::new("r".into(), &table)
        };
        let gallery = Gallery::of(&[view]);
        let mut charts = gallery.against.into_iter();
        let chart = charts.find(|chart| chart.name == "metric.score-against-model.values.b");
        let chart = chart.unwrap();
        let Picture::Lines(lines) = &chart.picture else {
            panic!("lines")
        };
        let names: Vec<String> = lines.lines.iter().map(|line| line.label.clone()).collect();
        (names, chart.caption)
    };
    let named = |range: std::ops::Range<u64>| -> Vec<String> {
        range.map(|value| format!("a {value}")).collect()
    };
    for (better, lines, said) in [
        (
            "{}",
            0..8,
            "8 of 10 lines: the first (`better` of the metric chooses).",
        ),
        (
            r#"{"better": "high"}"#,
            2..10,
            "8 of 10 lines: those that reach the best value.",
        ),
        (
            r#"{"better": "low"}"#,
            0..8,
            "8 of 10 lines: those that reach the best value.",
        ),
    ] {
        let (names, caption) = run(better);
        assert_eq!(names, named(lines), "{better}");
        assert!(caption.contains(said), "{caption}");
    }
}
