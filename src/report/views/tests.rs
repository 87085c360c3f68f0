use super::*;
use crate::report::{
    chart::Picture,
    points::tests::{row, table},
};

#[test]
fn long_series_keep_their_means_or_their_peaks() {
    let series: Vec<(f64, f64)> = (0..1000).map(|place| (f64::from(place), if place == 503 { 9.0 } else { 1.0 })).collect();
    let means = averaged(&series, 10);
    assert_eq!((means.len(), means[0]), (10, (49.5, 1.0)));
    assert!((means[5].1 - 1.08).abs() < 1e-12);
    let peaks = enveloped(&series, 20);
    assert!(peaks.len() <= 20 && peaks.contains(&(503.0, 9.0)), "{peaks:?}");
    assert_eq!((averaged(&series[..3], 10).len(), enveloped(&series[..3], 10).len()), (3, 3));
}

fn of_batches(rows: &[(u64, u64, Option<f64>)]) -> TrialTable {
    let row = |place: usize, (batch, steps, loss): (u64, u64, Option<f64>)| TrialRow {
        effective_batch_size: batch,
        steps: Some(steps),
        valid_loss: loss,
        ..row(place as u64 + 1, 10.0)
    };
    const CELLS: [&[&str]; 4] = [&["4"], &["8"], &["16"], &["32"]];
    table(&["train.batch_size"], rows.iter().enumerate().map(|(place, of)| (row(place, *of), CELLS[place])).collect())
}

fn equal_samples(table: &TrialTable) -> Option<(Vec<f64>, String)> {
    let runs = [Run::new("r".into(), table)];
    let chart = Gallery::of(&runs).equal_samples.pop()?;
    let Picture::Lines(lines) = &chart.picture else { return None };
    Some((lines.lines[0].marks.iter().map(|mark| mark.y).collect(), chart.caption))
}

#[test]
fn losses_are_set_at_the_same_number_of_samples_and_others_are_left_out_aloud() {
    // The last batch of 32 left out two samples in a hundred: that is the same.
    let (losses, caption) = equal_samples(&of_batches(&[(4, 100, Some(2.0)), (8, 50, Some(2.1)), (16, 25, Some(2.2)), (32, 25, Some(1.5))])).unwrap();
    assert_eq!(losses, [2.0, 2.1, 2.2]);
    assert!(caption.starts_with("After 400 samples each") && caption.contains("Left out: 1 point"), "{caption}");
    assert!(equal_samples(&of_batches(&[(4, 100, Some(2.0)), (4, 100, Some(2.1))])).is_none(), "one effective batch");
    assert!(equal_samples(&of_batches(&[(4, 100, Some(2.0)), (8, 100, Some(2.1))])).is_none(), "nothing at equal samples");
}

#[test]
fn of_many_lines_the_best_are_shown_and_the_caption_says_so() {
    let cells: Vec<[String; 2]> = (0..24).map(|place| [(place % 2 * 4).to_string(), (place / 2).to_string()]).collect();
    let cells: Vec<[&str; 2]> = cells.iter().map(|[one, other]| [one.as_str(), other.as_str()]).collect();
    let rows = cells.iter().enumerate().map(|(place, cells)| (row(place as u64 + 1, 100.0 + place as f64), &cells[..])).collect();
    let table = table(&["data.num_workers", "train.batch_size"], rows);
    let runs = [Run::new("r".into(), &table)];
    let gallery = Gallery::of(&runs);
    let chart = gallery.against.iter().find(|chart| chart.name == "throughput-against-data.num_workers").unwrap();
    let Picture::Lines(lines) = &chart.picture else { panic!("lines") };
    let labels: Vec<&str> = lines.lines.iter().map(|line| line.label.as_str()).collect();
    assert_eq!((labels.len(), labels[0], labels[7]), (8, "batch_size 4", "batch_size 11"));
    assert!(chart.caption.contains("8 of 12 lines"), "{}", chart.caption);
}
