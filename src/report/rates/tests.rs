use super::{
    super::points::{
        points,
        tests::{row, table},
    },
    *,
};
use kiln_core::record::TrialTable;

/// `rates[point][block]`, point after point in the table; `when` says where in time a run
/// stands.
fn run_of(rates: &[&[f64]], when: impl Fn(usize, usize) -> usize, has_blocks: bool) -> TrialTable {
    const NAMES: [[&str; 1]; 3] = [["a"], ["b"], ["c"]];
    let mut rows = Vec::new();
    for (point, rates) in rates.iter().enumerate() {
        for (block, rate) in rates.iter().enumerate() {
            let block_of = has_blocks.then_some(block as u64 + 1);
            let fixed = row((point * 10 + block + 1) as u64, *rate);
            rows.push((
                TrialRow {
                    run_seconds: Some(when(point, block) as f64),
                    block: block_of,
                    ..fixed
                },
                &NAMES[point][..],
            ));
        }
    }
    table(&["a.b"], rows)
}

fn in_turns(point: usize, block: usize) -> usize {
    block * 3 + point
}

fn listed(point: usize, block: usize) -> usize {
    point * 5 + block
}

fn faster(table: &TrialTable) -> Option<Gain> {
    let points = points(table);
    Rates::of(&points, |row| row.samples_per_second).faster(0, 1, 1)
}

/// Blocks differ by half; the second point is 12 % faster.
const QUIET: [&[f64]; 3] = [
    &[100.0, 80.0, 121.0, 99.0, 110.0],
    &[112.5, 89.0, 135.0, 111.0, 123.0],
    &[100.0, 80.4, 120.0, 99.5, 109.0],
];

#[test]
fn points_in_blocks_are_compared_and_a_change_under_3_percent_is_none() {
    let gain = faster(&run_of(&QUIET, in_turns, true)).unwrap();
    assert!(
        (gain.ratio - 1.12).abs() < 0.01 && gain.is_ahead(),
        "{gain:?}"
    );
    assert!(gain.to_string().starts_with("95 % interval 1"), "{gain}");
    let little: Vec<f64> = QUIET[0].iter().map(|rate| rate * 1.02).collect();
    let table = run_of(&[QUIET[0], &little, QUIET[2]], in_turns, true);
    assert_eq!(faster(&table), None);
    assert!(
        Rates::of(&points(&table), |row| row.samples_per_second)
            .gain(0, 1, 1)
            .unwrap()
            .is_ahead()
    );
}

#[test]
fn rows_without_blocks_have_those_of_their_order_and_drift_may_be_5_percent_of_it() {
    let gain = faster(&run_of(&QUIET, in_turns, false)).unwrap();
    let with_blocks = faster(&run_of(&QUIET, in_turns, true)).unwrap();
    assert!(
        (gain.estimate.low * 1.05 - with_blocks.estimate.low).abs() < 1e-9
            && (gain.ratio - with_blocks.ratio).abs() < 1e-9,
        "{gain:?}"
    );
}

#[test]
fn of_points_without_a_spread_just_3_percent_more_is_faster_and_none_is_ahead_of_its_equal() {
    for level in [0.1, 1.0 / 3.0, 99.0, 7.3e5] {
        let table = |factor: f64| {
            run_of(
                &[&[level; 7], &[level * factor; 7], &[level; 7]],
                in_turns,
                true,
            )
        };
        assert!(faster(&table(1.03)).is_some(), "{level}");
        assert_eq!(faster(&table(1.029)), None, "{level}");
        let equal = table(1.0);
        let points = points(&equal);
        let found = order(
            &Rates::of(&points, |row| row.samples_per_second),
            1,
            0,
            points.len(),
        );
        assert_eq!(found, Err(Doubt::Equal), "{level}");
    }
}

#[test]
fn what_ran_one_after_the_other_or_once_says_nothing() {
    let unknown =
        |table: &TrialTable| Rates::of(&points(table), |row| row.samples_per_second).unknown();
    let apart = run_of(&QUIET, listed, false);
    assert_eq!(
        (faster(&apart), unknown(&apart)),
        (None, Some(Unknown::Apart))
    );
    // The first two points ran in turns, the third in a later launch.
    let mut added = run_of(&QUIET, in_turns, true);
    for row in added.rows.iter_mut().filter(|row| row.axes[0] == "c") {
        row.fixed.launch = 2;
    }
    assert_eq!(unknown(&added), Some(Unknown::Launches));
    let once = run_of(&[&[100.0], &[150.0]], in_turns, true);
    assert_eq!(
        (faster(&once), unknown(&once)),
        (None, Some(Unknown::Single))
    );
    assert_eq!(unknown(&table(&[], Vec::new())), Some(Unknown::Single));
    // Nor does a point that ran once among others with repeats.
    assert_eq!(
        faster(&run_of(&[QUIET[0], &[150.0], QUIET[2]], in_turns, true)),
        None
    );
}

#[test]
fn launches_of_one_number_are_those_of_their_runs() {
    let joined = |hour_of_c: u32, has_blocks| {
        let mut table = run_of(&QUIET, in_turns, has_blocks);
        for row in &mut table.rows {
            let hour = if row.axes[0] == "c" { hour_of_c } else { 12 };
            let seconds = row.fixed.run_seconds.unwrap();
            row.fixed.started_utc = Some(format!("2026-07-01T{hour}:00:{seconds:02}Z"));
        }
        Rates::of(&points(&table), |row| row.samples_per_second).unknown()
    };
    for has_blocks in [true, false] {
        assert_eq!(joined(12, has_blocks), None);
        assert_eq!(joined(13, has_blocks), Some(Unknown::Launches));
    }
}

#[test]
fn a_block_that_a_second_launch_went_on_with_is_two() {
    // The second launch is 20 % slower, and of the last block only the second point ran in it.
    let mut table = run_of(&QUIET, in_turns, true);
    for row in table
        .rows
        .iter_mut()
        .filter(|row| row.fixed.block == Some(5) && row.axes[0] == "b")
    {
        row.fixed.launch = 2;
        row.fixed.samples_per_second = row.fixed.samples_per_second.map(|rate| rate * 0.8);
    }
    let gain = faster(&table).unwrap();
    assert!((gain.ratio - 1.12).abs() < 0.01, "{gain:?}");
}

#[test]
fn the_order_of_the_best_two_is_said_to_be_chance_where_it_may_be() {
    let said = |table: &TrialTable| {
        let points = points(table);
        let rates = Rates::of(&points, |row| row.samples_per_second);
        let found = order(&rates, 1, 0, points.len());
        found.map_err(|doubt| doubt.in_words("fastest", Scale::Ratio, 1.4, rates.within))
    };
    assert_eq!(said(&run_of(&QUIET, in_turns, true)), Ok(()));
    let equal = run_of(&[QUIET[0], QUIET[2], QUIET[0]], in_turns, true);
    let equal = said(&equal).unwrap_err();
    assert!(
        equal.starts_with("the best is 40.0 % ahead of the next by its mean, but not within")
            && equal.ends_with("): their order may be noise"),
        "{equal}"
    );
    let listed = said(&run_of(&QUIET, listed, false)).unwrap_err();
    assert!(listed.contains("drift"), "{listed}");
    let once = said(&run_of(&[&[100.0], &[150.0]], in_turns, true)).unwrap_err();
    assert_eq!(once, "one run per point: the order may be noise");
    let few = said(&run_of(&[&[100.0, 90.0], &[190.0, 130.0]], in_turns, true)).unwrap_err();
    assert!(
        few.ends_with(
            " ahead of the next (the interval is too wide to be of use: too few undisturbed repeats): their order may be noise"
        ),
        "{few}"
    );
}

#[test]
fn a_rate_of_0_has_no_ratio_and_is_no_certainty() {
    for rates in [[&[0.0; 3], &[0.0; 3]], [&[1.0, 2.0, 0.0], &[1.0, 2.0, 3.0]]] {
        let table = run_of(&[rates[0], rates[1]], in_turns, true);
        let points = points(&table);
        let rates = Rates::of(&points, |row| row.samples_per_second);
        let found = order(&rates, 1, 0, points.len());
        assert_eq!(found, Err(Doubt::Unknown(Unknown::NoRatio)));
    }
}

#[test]
fn differences_of_any_sign_are_judged_as_ratios_are() {
    // By differences, `a` and `b` of these are alike, and `c` is 100 above each in every block.
    let values: [&[f64]; 3] = [
        &[-1.0, -5.0, 3.0, -2.0, 4.0],
        &[-1.5, -4.4, 3.1, -2.2, 3.8],
        &[99.2, 95.1, 102.8, 98.4, 104.1],
    ];
    let scale = Scale::of_differences(&values.concat());
    for goal in [Goal::Max, Goal::Min] {
        let rated = values.map(|values| {
            let rates = values.iter().map(|value| scale.rate(*value, goal));
            rates.collect::<Vec<f64>>()
        });
        let table = run_of(&[&rated[0], &rated[1], &rated[2]], in_turns, true);
        let points = points(&table);
        let rates = Rates::of(&points, |row| row.samples_per_second);
        let said = |best, next| order(&rates, best, next, points.len());
        let (first, last) = if goal == Goal::Max { (2, 0) } else { (0, 2) };
        assert_eq!(said(first, last), Ok(()), "{goal:?}");
        assert!(matches!(said(0, 1), Err(Doubt::Noise(_))), "{goal:?}");
        let lead = scale.lead(values[first][0], values[last][0], goal);
        assert_eq!(scale.words(lead), "100", "{goal:?}");
    }
}

#[test]
fn a_lead_of_more_than_1000_percent_is_a_factor() {
    assert_eq!(Scale::Ratio.words(11.0), "1000.0 %");
    assert_eq!(Scale::Ratio.words(1.0006), "0.1 %");
    assert_eq!(Scale::Ratio.words(14.0), "a factor of 14.0");
    assert_eq!(Scale::Ratio.words(377_000_106.0), "a factor of 3.77e8");
}

#[test]
fn rows_of_the_oldest_tables_are_in_the_order_of_the_day() {
    let mut table = run_of(&QUIET, in_turns, false);
    for row in &mut table.rows {
        let seconds = row.fixed.run_seconds.take().unwrap();
        row.fixed.started_utc = Some(format!("2026-07-01T12:00:{seconds:02}Z"));
    }
    assert!(faster(&table).is_some());
    table.rows[4].fixed.started_utc = Some("2026-07-01T12:00:00Z".into());
    assert_eq!(faster(&table), None);
}

#[test]
fn a_lead_below_a_twentieth_of_a_percent_has_two_digits() {
    for (ratio, told) in [
        (1.000_412, "0.041 %"),
        (1.000_012_3, "0.0012 %"),
        (0.999_987_7, "-0.0012 %"),
        (1.0, "0.0 %"),
        (1.0 - 1e-15, "0.0 %"),
    ] {
        assert_eq!(Scale::Ratio.words(ratio), told, "{ratio}");
    }
}
