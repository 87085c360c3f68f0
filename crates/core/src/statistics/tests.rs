//! Estimates against references, and orders of runs that must not be confused.

use super::*;

fn untimed(values: &[f64]) -> Vec<TimedRun> {
    values.iter().map(|value| TimedRun::of(*value)).collect()
}

fn question(base: Vec<TimedRun>, new: Vec<TimedRun>, nature: Nature) -> Question {
    Question {
        sides: Sides { base, new, nature },
        worth: 0.03,
        weight: 1.0,
    }
}

/// Runs of both sides in the order of `order` (`b` and `n`), one a second.
fn in_order(order: &str, value: impl Fn(usize, bool) -> f64) -> Question {
    let (mut base, mut new) = (Vec::new(), Vec::new());
    for (place, letter) in order.chars().enumerate() {
        let run = TimedRun {
            seconds: Some(place as f64),
            ..TimedRun::of(value(place, letter == 'n'))
        };
        if letter == 'n' { &mut new } else { &mut base }.push(run);
    }
    question(base, new, Nature::Drifting)
}

/// Random numbers of the standard normal distribution.
fn normals(seed: u64) -> impl FnMut() -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    move || (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

fn one(question: &Question) -> Estimate {
    estimates(std::slice::from_ref(question))[0]
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
}

#[test]
fn independent_groups_agree_with_a_reference() {
    // From SciPy 1.17: stats.ttest_ind(log(new), log(base), equal_var=False), its
    // confidence_interval(0.95) exponentiated.
    let sides = question(
        untimed(&[100.0, 102.0, 98.0, 101.0, 99.0]),
        untimed(&[105.0, 107.0, 104.0, 106.0, 110.0]),
        Nature::Settled,
    );
    let found = one(&sides);
    assert_eq!(found.design, Design::Independent);
    assert_near(found.ratio, 1.063908871057663);
    assert_near(found.low, 1.0345804326184913);
    assert_near(found.high, 1.0940687163881317);
}

#[test]
fn the_order_of_runs_decides_the_design() {
    let design =
        |order: &str| one(&in_order(order, |place, _| 100.0 + (place * 7 % 5) as f64)).design;
    assert_eq!(design("bnbnbn"), Design::Paired { pairs: 3 });
    assert_eq!(design("bnnbbnnb"), Design::Paired { pairs: 4 });
    assert_eq!(design("bbbbbnnnnn"), Design::Apart);
    assert_eq!(design("nnnbbb"), Design::Apart);
    assert_eq!(design("bbnnbbbnnnbb"), Design::Mixed);
    // A run repeated the next day does not make the order mixed, nor do long stretches of a side.
    for order in [
        "bbbbnnnnnb",
        "bbnnnb",
        "bbbnnnbbb",
        "bbbbbnnnnnbbbbbnnnnn",
        "nbbbbbn",
    ] {
        assert_eq!(design(order), Design::Apart, "{order}");
    }
    // One failed run leaves its neighbor without a pair, and the other pairs stay.
    assert_eq!(design("bnbnbbnbn"), Design::Paired { pairs: 4 });
    let unknown = question(
        untimed(&[1.0, 2.0, 3.0]),
        untimed(&[1.0, 2.0, 3.0]),
        Nature::Drifting,
    );
    assert_eq!(one(&unknown).design, Design::OrderUnknown);
}

#[test]
fn blocks_pair_runs_of_one_table_whatever_their_times_and_seeds_pair_losses() {
    let runs = |values: [f64; 4]| {
        values
            .iter()
            .zip(1..)
            .map(|(value, block)| TimedRun {
                block: Some(block),
                ..TimedRun::of(*value)
            })
            .collect::<Vec<_>>()
    };
    let (base, new) = (runs([1.0, 2.0, 3.0, 4.0]), runs([1.1, 2.2, 3.3, 4.4]));
    for nature in [Nature::Drifting, Nature::Settled] {
        let found = one(&question(base.clone(), new.clone(), nature));
        assert_eq!(found.design, Design::Paired { pairs: 4 });
        assert!(
            (found.ratio - 1.1).abs() < 1e-12 && found.low > 1.09 && found.high < 1.11,
            "{found:?}"
        );
    }
    // A seed that one side lacks: no pairs of losses.
    assert_eq!(
        one(&question(base, new[..3].to_vec(), Nature::Settled)).design,
        Design::Independent
    );
}

#[test]
fn a_machine_that_drifts_makes_no_difference_of_sides_that_ran_one_after_the_other() {
    // 1 % faster with each run, and nothing else: Welch's test would be sure.
    let drifting = |order: &str| {
        one(&in_order(order, |place, _| {
            100.0 * 1.01_f64.powi(place as i32) * (1.0 + 0.001 * (place * 5 % 3) as f64)
        }))
    };
    let apart = drifting("bbbbbnnnnn");
    assert!(apart.low < 1.0 && apart.high > 1.0, "{apart:?}");
    assert!(
        apart.high / apart.low > 1.1,
        "at least the jump between sessions on both sides: {apart:?}"
    );
    let paired = drifting("bnnbbnnbbn");
    assert!(paired.low > 0.99 && paired.high < 1.01, "{paired:?}");
}

#[test]
fn runs_of_both_sides_at_once_are_not_in_turns() {
    let of = |at_once: &[usize]| {
        let mut question = in_order("bnbnbnbnbnbn", |place, is_new| {
            (if is_new { 0.5 } else { 1.0 }) * (100.0 + (place * 7 % 5) as f64 * 0.5)
        });
        for side in [&mut question.sides.base, &mut question.sides.new] {
            at_once
                .iter()
                .for_each(|place| side[*place].is_at_once = true);
        }
        one(&question)
    };
    assert_eq!(of(&[3]).design, Design::Paired { pairs: 5 });
    let told = of(&[0, 3]);
    assert_eq!(
        (told.design, told.low, told.high, told.visible),
        (Design::AtOnce, 0.0, f64::INFINITY, None)
    );
}

#[test]
fn nothing_is_told_of_sides_apart_on_a_machine_that_others_disturbed() {
    let halved = |disturbed: &[usize], order: &str| {
        let mut question = in_order(order, |place, is_new| {
            (if is_new { 0.5 } else { 1.0 }) * (100.0 + (place * 7 % 5) as f64 * 0.5)
        });
        disturbed
            .iter()
            .for_each(|place| question.sides.new[*place].is_disturbed = true);
        one(&question)
    };
    assert!(halved(&[0], "bbbbbnnnnn").high < 0.6, "one run of five");
    let told = halved(&[0, 1], "bbbbbnnnnn");
    assert_eq!(
        (told.design, told.low, told.high, told.visible),
        (Design::ApartDisturbed, 0.0, f64::INFINITY, None)
    );
    assert!((told.ratio - 0.5).abs() < 0.01);
    assert!(
        halved(&[0, 1, 2, 3, 4], "bnbnbnbnbn").high < 0.6,
        "in turns both sides met the same machine"
    );
}

#[test]
fn a_large_change_is_told_of_sides_apart_and_a_small_one_is_not() {
    let changed = |factor: f64| {
        one(&in_order("bbbbbnnnnn", |place, is_new| {
            (if is_new { factor } else { 1.0 }) * (100.0 + (place * 7 % 5) as f64 * 0.5)
        }))
    };
    assert!(changed(0.80).high < 1.0);
    assert!(changed(0.96).high > 1.0);
}

#[test]
fn a_drift_is_seen_and_noise_is_none() {
    let drifting =
        |place: usize| 100.0 * (1.0 + 0.01 * place as f64 + 0.001 * (place * 7 % 5) as f64);
    let told = |order: &str| Drift::of(&in_order(order, |place, _| drifting(place)).sides, 1);
    let apart = told("bbbbbnnnnn");
    assert!(apart.over_all.is_none());
    assert!(
        apart
            .of_base
            .is_some_and(|ratio| (ratio - 1.04).abs() < 0.005)
            && apart.of_new.is_some_and(|ratio| ratio > 1.03),
        "{apart:?}"
    );
    let paired = told("bnbnbnbnbn");
    assert!(
        paired
            .over_all
            .is_some_and(|ratio| (ratio - 1.09).abs() < 0.01),
        "{paired:?}"
    );
    let noise = in_order("bnbnbnbnbn", |place, _| {
        100.0 + [0.0, 3.0, -2.0, 1.0, -3.0, 2.0, 0.5, -1.0, 2.5, -2.5][place]
    });
    assert!(Drift::of(&noise.sides, 1).is_none());
}

/// Runs of sessions: those of one stretch of a side follow each other after half a minute, the next stretch
/// after `pause` seconds.
fn in_sessions(order: &str, pause: f64, value: impl Fn(usize, usize) -> f64) -> Question {
    let mut question = in_order(order, |_, _| 1.0);
    let letters: Vec<char> = order.chars().collect();
    let (mut seconds, mut session) = (0.0, 0);
    let mut places = [0, 0];
    for (place, letter) in letters.iter().enumerate() {
        if place > 0 {
            let is_turn = letters[place - 1] != *letter;
            session += usize::from(is_turn);
            seconds += if is_turn { pause } else { 30.0 };
        }
        let is_new = *letter == 'n';
        let sides = &mut question.sides;
        let side = if is_new {
            &mut sides.new
        } else {
            &mut sides.base
        };
        let run = &mut side[places[usize::from(is_new)]];
        (run.seconds, run.value) = (Some(seconds), value(place, session));
        places[usize::from(is_new)] += 1;
    }
    question
}

#[test]
fn sides_in_sessions_of_their_own_are_apart_however_often_they_alternate() {
    let mut normal = normals(11);
    for order in [
        "bbnnbbnn",
        "bbbnnnbbbnnn",
        "bbbnnnbbbnnnbbbnnn",
        "bbnnbbnnbbnn",
    ] {
        let mut said = 0;
        for _ in 0..400 {
            let noise: Vec<f64> = (0..order.len()).map(|_| 0.005 * normal()).collect();
            let offsets: Vec<f64> = (0..order.len()).map(|_| 0.02 * normal()).collect();
            let value = |place: usize, session: usize| (noise[place] + offsets[session]).exp();
            let found = one(&in_sessions(order, 3600.0, value));
            assert_eq!(found.design, Design::Apart, "{order}");
            said += usize::from(found.is_higher(WORTH) || found.is_lower(WORTH));
        }
        assert!(said <= 20, "{order}: {said} of 400");
        // Without pauses they are as before.
        let at_once = one(&in_sessions(order, 40.0, |place, _| {
            1.0 + 0.001 * (place % 3) as f64
        }));
        assert_ne!(at_once.design, Design::Apart, "{order}");
    }
    let in_turns = one(&in_sessions("bnbnbnbn", 3600.0, |place, _| {
        1.0 + 0.001 * (place % 3) as f64
    }));
    assert_eq!(in_turns.design, Design::Paired { pairs: 4 });
}

/// Each stretch of a side is a launch of its own.
fn in_launches(order: &str, value: impl Fn(usize, usize) -> f64) -> Question {
    let mut question = in_sessions(order, 40.0, value);
    let letters: Vec<char> = order.chars().collect();
    let mut base = question.sides.base.iter_mut();
    let mut new = question.sides.new.iter_mut();
    for (stretch, letters) in letters.chunk_by(|one, other| one == other).enumerate() {
        for letter in letters {
            let run = if *letter == 'n' {
                new.next()
            } else {
                base.next()
            };
            run.unwrap().launch = Some(stretch as u64 / 2 + 1);
        }
    }
    question
}

#[test]
fn runs_of_a_launch_with_one_side_count_as_one_run() {
    let mut normal = normals(12);
    let paired = |pairs| Design::PairedLaunches { pairs };
    for (order, design) in [
        ("bbbnnnbbbnnn", Design::Apart),
        ("bbbnnnbbbnnnbbbnnn", paired(3)),
        ("bbnnbbnnbbnn", paired(3)),
        ("bbbnnnnnnbbbbbbnnnnnnbbb", Design::Apart),
        ("bbnnbbnnbbnnbbnnbbnn", paired(5)),
    ] {
        let mut said = 0;
        for _ in 0..1000 {
            let noise: Vec<f64> = (0..order.len()).map(|_| 0.01 * normal()).collect();
            let jumps: Vec<f64> = (0..order.len()).map(|_| 0.04 * normal()).collect();
            let value = |place: usize, session: usize| (noise[place] + jumps[session]).exp();
            let found = one(&in_launches(order, value));
            assert_eq!(found.design, design, "{order}");
            said += usize::from(found.is_higher(WORTH) || found.is_lower(WORTH));
        }
        assert!(said <= 60, "{order}: {said} of 1000");
    }
    // Two launches of a stretch, as of one that was interrupted and resumed.
    let mut said = 0;
    for _ in 0..1000 {
        let noise: Vec<f64> = (0..18).map(|_| 0.01 * normal()).collect();
        let jumps: Vec<f64> = (0..18).map(|_| 0.05 * normal()).collect();
        let mut question = in_launches("bbbnnnbbbnnnbbbnnn", |place, session| {
            (noise[place] + jumps[session]).exp()
        });
        for run in [0, 3, 6] {
            for side in [&mut question.sides.base, &mut question.sides.new] {
                side[run].launch = side[run].launch.map(|launch| launch + 10);
            }
        }
        let found = one(&question);
        assert_eq!(found.design, paired(3));
        said += usize::from(found.is_higher(WORTH) || found.is_lower(WORTH));
    }
    assert!(said <= 65, "{said} of 1000");
    let slower = one(&in_launches("bbbnnnbbbnnnbbbnnn", |place, session| {
        (if session % 2 == 1 { 0.8 } else { 1.0 }) + 0.002 * (place % 3) as f64
    }));
    assert!(slower.is_lower(WORTH), "{slower:?}");
    // Launches between whose runs the other side ran, as of `kiln compare --rerun`, and of one run each.
    let mut in_turns = in_order("bnnbbnnb", |place, _| 100.0 + (place * 7 % 5) as f64);
    for run in in_turns
        .sides
        .base
        .iter_mut()
        .chain(&mut in_turns.sides.new)
    {
        run.launch = Some(1);
    }
    assert_eq!(one(&in_turns).design, Design::Paired { pairs: 4 });
    let single = in_launches("bnbnbn", |place, _| 1.0 + 0.001 * (place % 3) as f64);
    assert_eq!(one(&single).design, Design::Paired { pairs: 3 });
}

#[test]
fn correlated_noise_is_rarely_taken_for_a_drift() {
    let mut normal = normals(7);
    for order in [
        "bn".repeat(5),
        "bn".repeat(10),
        "b".repeat(10) + &"n".repeat(10),
    ] {
        let mut reported = 0;
        for _ in 0..400 {
            let mut noise = vec![normal()];
            for place in 1..order.len() {
                let fresh = (1.0 - CORRELATION.powi(2)).sqrt() * normal();
                noise.push(CORRELATION * noise[place - 1] + fresh);
            }
            let sides = in_order(&order, |place, _| (0.03 * noise[place]).exp()).sides;
            reported += usize::from(!Drift::of(&sides, 1).is_none());
        }
        // 20 are expected, and 80 to 130 were reported as if the noise were independent.
        assert!(reported < 40, "{order}: {reported} of 400");
    }
}

#[test]
fn a_line_through_time_agrees_with_a_reference() {
    // By NumPy 2 and SciPy 1.17, from whole 12 × 12 matrices: least squares of log(value) on 1,
    // side and place, the variance of the side's coefficient, Satterthwaite's degrees of freedom;
    // of mixed runs at 0.95 of the level; of sides apart the ends of that, of that with successive
    // runs correlated by 0.5, and of both t tests.
    let values = [
        100.0, 103.0, 101.0, 99.0, 104.0, 100.5, 98.0, 102.0, 105.0, 101.5, 97.0, 103.5,
    ];
    let orders = [
        (
            "bbnnbbbnnnbb",
            Design::Mixed,
            [1.0083908466558136, 0.9731474605161397, 1.044910602839069],
        ),
        (
            "bbbbbbnnnnnn",
            Design::Apart,
            [0.9989262209086135, 0.8582946869868767, 1.1384877315963438],
        ),
    ];
    for (order, design, [ratio, low, high]) in orders {
        let found = one(&in_order(order, |place, _| values[place]));
        assert_eq!(found.design, design);
        assert_near(found.ratio, ratio);
        assert_near(found.low, low);
        assert_near(found.high, high);
    }
}

#[test]
fn equal_runs_are_equal_and_a_sure_difference_has_no_width() {
    let of = |base: f64, new: f64| {
        one(&question(
            untimed(&[base; 3]),
            untimed(&[new; 3]),
            Nature::Settled,
        ))
    };
    let same = of(2.0, 2.0);
    assert_eq!((same.ratio, same.low, same.high), (1.0, 1.0, 1.0));
    assert!(
        same.visible
            .is_some_and(|visible| (visible - 0.03).abs() < 1e-12)
    );
    let other = of(2.0, 3.0);
    assert!((other.low - 1.5).abs() < 1e-12 && other.low == other.high);
}

#[test]
fn of_runs_without_a_spread_rounding_decides_nothing() {
    // Thirds and tenths have no exact logarithm: their mean is not each of them.
    for level in [0.1, 1.0 / 3.0, 7.3e5, 128_176.450_694_991_61] {
        let constant = |factor: f64, first: usize| -> Vec<TimedRun> {
            (0..7)
                .map(|place| TimedRun {
                    seconds: Some((first + 2 * place) as f64),
                    ..TimedRun::of(level * factor)
                })
                .collect()
        };
        let of = |factor: f64, nature: Nature| {
            one(&question(constant(1.0, 0), constant(factor, 1), nature))
        };
        for nature in [Nature::Settled, Nature::Drifting] {
            let same = of(1.0, nature);
            assert_eq!(
                (same.ratio, same.low, same.high),
                (1.0, 1.0, 1.0),
                "{level}"
            );
            assert!(
                !same.is_above()
                    && !same.is_below()
                    && same.excludes_higher(WORTH)
                    && same.excludes_lower(WORTH)
            );
            // A change of exactly the relevant size counts, and no interval excludes it, in either
            // direction.
            let (higher, lower) = (of(1.03, nature), of(0.97, nature));
            assert!(
                higher.is_higher(WORTH)
                    && !higher.excludes_higher(WORTH)
                    && higher.excludes_lower(WORTH),
                "{level}: {higher:?}"
            );
            assert!(
                lower.is_lower(WORTH)
                    && !lower.excludes_lower(WORTH)
                    && lower.excludes_higher(WORTH),
                "{level}: {lower:?}"
            );
        }
        assert!(
            Drift::of(
                &Sides {
                    base: constant(1.0, 0),
                    new: constant(1.0, 1),
                    nature: Nature::Drifting
                },
                1
            )
            .is_none()
        );
        let blocks = |factor: f64| -> Vec<TimedRun> {
            (1..=7)
                .map(|block| TimedRun {
                    block: Some(block),
                    ..TimedRun::of(level * factor)
                })
                .collect()
        };
        let field = Field::of(&[blocks(1.0), blocks(1.0), blocks(1.03)]).unwrap();
        assert_eq!(field.spread(), 0.0, "{level}");
        let [equal, higher] = [1, 2].map(|other| field.compare(0, other, 3).unwrap());
        assert_eq!(
            (equal.ratio, equal.low, equal.high),
            (1.0, 1.0, 1.0),
            "{level}"
        );
        assert!(
            higher.is_higher(WORTH) && !higher.excludes_higher(WORTH),
            "{level}: {higher:?}"
        );
    }
}

#[test]
fn what_is_one_number_in_all_runs_takes_nothing_of_the_level() {
    let unclear = question(
        untimed(&[100.0, 103.0, 97.0]),
        untimed(&[101.0, 104.0, 97.0]),
        Nature::Settled,
    );
    let constant = question(untimed(&[0.1; 3]), untimed(&[0.1; 3]), Nature::Settled);
    assert_near(
        estimates(&[unclear.clone(), constant])[0].high,
        one(&unclear).high,
    );
}

#[test]
fn exact_tests_share_the_level_with_the_other_questions() {
    let of = |runs: usize| ExactTest::of_all_against_none(runs, runs, 1.0);
    assert_near(of(3).p, 0.1);
    assert_near(of(4).p, 2.0 / 70.0);
    assert_near(ExactTest::of_all_against_none(3, 5, 1.0).p, 2.0 / 56.0);
    let differ = |tests: &[ExactTest]| estimates_beside(&[], tests).1;
    assert_eq!(differ(&[of(3)]), [false]);
    assert_eq!(differ(&[of(4)]), [true]);
    assert_eq!(differ(&[of(4); 2]), [false; 2]);
    // The clearest one comes first, and leaves the whole level to the other.
    assert_eq!(differ(&[of(4), of(8)]), [true; 2]);
    // They take a part of the level of an estimate.
    let unclear = question(
        untimed(&[100.0, 103.0, 97.0]),
        untimed(&[101.0, 104.0, 97.0]),
        Nature::Settled,
    );
    let beside = estimates_beside(std::slice::from_ref(&unclear), &[of(3)]);
    assert!(beside.0[0].high > one(&unclear).high && beside.1 == [false]);
}

#[test]
fn means_and_deviations_of_the_largest_and_least_numbers_are_numbers() {
    assert_eq!(mean(&[1e308; 12]), Some(1e308));
    assert_eq!(deviation(&[1e308, 1e308, 1e308]), Some(0.0));
    assert!(
        deviation(&[1e308, 1.5e308])
            .is_some_and(|found| (found / 3.535_533_905_932_738e307 - 1.0).abs() < 1e-9)
    );
    assert!(
        deviation(&[1e-300, 3e-300])
            .is_some_and(|found| (found / 1.414_213_562_373_095e-300 - 1.0).abs() < 1e-9)
    );
    assert_eq!(
        (
            mean(&[]),
            deviation(&[1.0]),
            mean(&[1.0, 2.0]),
            deviation(&[1.0, 3.0])
        ),
        (None, None, Some(1.5), Some(2_f64.sqrt()))
    );
}

#[test]
fn more_questions_widen_the_intervals_and_weight_narrows_one() {
    let clear = question(
        untimed(&[100.0, 101.0, 99.0]),
        untimed(&[150.0, 151.0, 149.0]),
        Nature::Settled,
    );
    let unclear = question(
        untimed(&[100.0, 103.0, 97.0]),
        untimed(&[101.0, 104.0, 97.0]),
        Nature::Settled,
    );
    let alone = one(&unclear);
    let together = estimates(&[clear.clone(), unclear.clone(), unclear.clone()]);
    assert_eq!(together[1], together[2]);
    assert!(together[1].high - together[1].low > alone.high - alone.low);
    assert!(together[0].low > 1.0 && together[0].high > one(&clear).high);
    let weighted = estimates(&[
        Question {
            weight: 9.0,
            ..unclear.clone()
        },
        unclear.clone(),
    ]);
    assert!(weighted[0].high < weighted[1].high && weighted[0].high > alone.high);
}

#[test]
fn few_runs_beside_many_take_the_spread_of_the_many() {
    // Three runs that happen to lie together say nothing of their spread.
    let many: Vec<f64> = (0..20)
        .map(|run| if run % 2 == 0 { 100.0 } else { 106.0 })
        .collect();
    let found = one(&question(
        untimed(&[106.0, 106.1, 106.2]),
        untimed(&many),
        Nature::Settled,
    ));
    assert!(found.low < 1.0 && found.high > 1.0, "{found:?}");
}

#[test]
fn a_change_of_the_visible_size_is_found_four_times_in_five() {
    let mut normal = normals(5);
    for (runs, spread) in [(3, 0.02), (5, 0.02), (5, 0.05), (12, 0.05), (12, 0.005)] {
        let order = "bnnb".repeat(runs)[..2 * runs].to_owned();
        let mut found = 0;
        for _ in 0..400 {
            let noise: Vec<f64> = (0..4 * runs).map(|_| spread * normal()).collect();
            let Some(visible) = one(&in_order(&order, |place, _| noise[place].exp())).visible
            else {
                panic!("no visible effect of {runs} runs")
            };
            let again = one(&in_order(&order, |place, is_new| {
                (noise[2 * runs + place] + if is_new { visible.ln_1p() } else { 0.0 }).exp()
            }));
            found += usize::from(again.low > 1.0 && again.ratio >= 1.03);
        }
        assert!(
            (280..=392).contains(&found),
            "{runs} runs of spread {spread}: found {found} of 400"
        );
    }
}

#[test]
fn the_points_of_a_run_share_one_spread_and_blocks_are_taken_out() {
    // Four points, three blocks that lie 20 % apart; the last point is 10 % faster.
    let noise = [
        [0.3, -0.2, 0.1],
        [-0.1, 0.2, -0.3],
        [0.2, 0.1, -0.2],
        [-0.3, 0.0, 0.3],
    ];
    let run = |point: usize, block: usize| TimedRun {
        block: Some(block as u64 + 1),
        ..TimedRun::of(
            [100.0, 120.0, 144.0][block]
                * if point == 3 { 1.1 } else { 1.0 }
                * (1.0 + noise[point][block] / 100.0),
        )
    };
    let runs: Vec<Vec<TimedRun>> = (0..4)
        .map(|point| (0..3).map(|block| run(point, block)).collect())
        .collect();
    let field = Field::of(&runs).unwrap();
    assert!(field.spread() < 0.005, "{}", field.spread());
    let faster = field.compare(0, 3, 6).unwrap();
    assert!(
        (faster.ratio - 1.1).abs() < 0.005 && faster.low > 1.08,
        "{faster:?}"
    );
    let same = field.compare(0, 1, 6).unwrap();
    assert!(
        same.low < 1.0 && same.high > 1.0 && same.high < 1.03,
        "{same:?}"
    );
    // A point that was run in the slow block alone is not the slower for it.
    let mut unbalanced = runs.clone();
    unbalanced[3].truncate(1);
    let faster = Field::of(&unbalanced).unwrap().compare(0, 3, 1).unwrap();
    assert!(
        (faster.ratio - 1.1).abs() < 0.01 && faster.low > 1.05,
        "{faster:?}"
    );
    // Nothing repeated: no spread.
    assert!(
        Field::of(
            &runs
                .iter()
                .map(|point| point[..1].to_vec())
                .collect::<Vec<_>>()
        )
        .is_none()
    );
}

#[test]
fn two_points_in_blocks_are_compared_as_pairs() {
    let runs = |values: [f64; 4]| {
        values
            .iter()
            .zip(1..)
            .map(|(value, block)| TimedRun {
                block: Some(block),
                ..TimedRun::of(*value)
            })
            .collect::<Vec<_>>()
    };
    let (base, new) = (
        runs([100.0, 103.0, 98.0, 101.0]),
        runs([104.0, 105.0, 103.0, 104.0]),
    );
    let field = Field::of(&[base.clone(), new.clone()])
        .unwrap()
        .compare(0, 1, 1)
        .unwrap();
    // By SciPy 1.17: ttest_rel of the logarithms, its confidence_interval(0.95) exponentiated.
    for found in [field, one(&question(base, new, Nature::Settled))] {
        assert_near(found.ratio, 1.0349685002727242);
        assert_near(found.low, 1.013601808448675);
        assert_near(found.high, 1.0567856012374228);
    }
}

#[test]
fn a_noisy_point_among_quiet_ones_has_the_spread_of_its_own() {
    let mut normal = normals(9);
    let mut told = 0;
    for _ in 0..1000 {
        let mut run = |point: usize, block: u64| {
            let spread = if point == 0 { 0.05 } else { 0.01 };
            TimedRun {
                block: Some(block),
                ..TimedRun::of((normal() * spread).exp())
            }
        };
        let runs: Vec<Vec<TimedRun>> = (0..12)
            .map(|point| (0..3).map(|block| run(point, block)).collect())
            .collect();
        let field = Field::of(&runs).unwrap();
        told += usize::from((1..12).any(|other| {
            field
                .compare(0, other, 66)
                .is_some_and(|found| found.low > 1.0 || found.high < 1.0)
        }));
    }
    assert!(told <= 70, "{told} of 1000");
}

#[test]
fn blocks_that_share_no_point_are_not_taken_out_and_what_ran_apart_is_widened() {
    let runs = |values: [f64; 3], first: u64| {
        let run = |(value, place): (&f64, u64)| TimedRun {
            seconds: Some(place as f64),
            block: Some(place),
            ..TimedRun::of(*value)
        };
        values.iter().zip(first..).map(run).collect::<Vec<_>>()
    };
    let field = Field::of(&[
        runs([100.0, 100.1, 100.2], 0),
        runs([104.0, 104.1, 104.2], 3),
    ])
    .unwrap();
    assert!(!field.has_blocks());
    let found = field.compare(0, 1, 1).unwrap();
    assert!(found.design.is_apart() && found.low < 1.0, "{found:?}");
}

#[test]
fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
    assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), 2.5);
    assert_eq!(median([5.0].into_iter()), 5.0);
}
