use kiln_core::{plan::Outcome, record::TableRow};

use super::super::{layout::PageStyle, point_table};
use super::{
    super::points::tests::{row, table},
    *,
};

/// The front by its definition, for comparison.
fn dominated(points: &[(f64, f64)], own: (f64, f64)) -> bool {
    points
        .iter()
        .any(|other| other.0 <= own.0 && other.1 >= own.1 && (other.0 < own.0 || other.1 > own.1))
}

#[test]
fn a_lucky_seed_does_not_hide_the_setting_that_leads_over_all_seeds() {
    let of = |rates: [[f64; 3]; 2]| {
        let rows = rates.iter().zip(["8", "16"]).enumerate();
        let rows = rows.flat_map(|(place, (rates, batch))| {
            rates.iter().enumerate().map(move |(seed, rate)| {
                let id = (place * 3 + seed) as u64 + 1;
                let axes = vec![batch.to_owned(), (seed + 1).to_string()];
                let fixed = TrialRow {
                    seed: seed as u64 + 1,
                    ..row(id, *rate)
                };
                TableRow {
                    fixed: Box::new(fixed),
                    axes,
                }
            })
        });
        let table = TrialTable {
            rows: rows.collect(),
            ..table(&["train.batch_size", "train.seed"], Vec::new())
        };
        let all = points(&table);
        Ranking::new(&all, &table, None).verdict().unwrap()
    };
    let lucky = of([[100.0, 101.0, 150.0], [140.0, 141.0, 142.0]]);
    assert!(
        lucky.contains("batch_size 8, seed 3 is fastest")
            && lucky.contains(
                "the mean over its 3 seeds is 117 ± 24.4 % samples/s, of batch_size 16 over the same \
                 seeds 141 ± 0.7 % samples/s"
            ),
        "{lucky}"
    );
    let steady = of([[100.0, 101.0, 102.0], [140.0, 141.0, 142.0]]);
    assert!(!steady.contains("train.seed"), "{steady}");
    // A seed that did not run is no reason against a setting.
    let missing = of([[100.0, 101.0, 102.0], [200.0, 201.0, f64::NAN]]);
    assert!(!missing.contains("train.seed"), "{missing}");
}

#[test]
fn points_that_are_alike_share_the_first_place() {
    let asked = spec::objective_of("{objective: {metric: valid_top1, goal: max}}").unwrap();
    let told = |values: [f64; 3]| {
        let rows = values.into_iter().zip(["a", "b", "c"]).enumerate();
        let rows: Vec<(TrialRow, [&str; 1])> = rows
            .map(|(place, (value, axis))| {
                let fixed = TrialRow {
                    valid_top1: Some(value),
                    ..row(place as u64 + 1, 100.0)
                };
                (fixed, [axis])
            })
            .collect();
        let rows = rows.iter().map(|(fixed, axes)| (fixed.clone(), &axes[..]));
        let table = table(&["model.x"], rows.collect());
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, Some(asked));
        let marked = ranking.points.iter().filter(|of| of.is_marked).count();
        (ranking.verdict().unwrap(), marked)
    };
    let (told_of_two, marked) = told([1.0, 0.5, 1.0]);
    assert!(
        told_of_two.contains("x a and x c have the same value"),
        "{told_of_two}"
    );
    assert_eq!(marked, 0);
    let (told_of_one, marked) = told([1.0, 0.5, 0.9]);
    assert!(told_of_one.contains("x a has the highest"), "{told_of_one}");
    assert_eq!(marked, 1);
}

#[test]
fn a_point_that_leads_by_the_lowest_loss_of_each_training_is_named() {
    let told = |lowest: [Option<f64>; 2]| {
        let rows = (0..6_u64).map(|at| {
            let place = at as usize % 2;
            let fixed = TrialRow {
                seed: at / 2,
                valid_loss: Some([2.8, 2.9][place]),
                lowest_valid_loss: lowest[place],
                ..row(at + 1, 100.0)
            };
            (fixed, &[["a"], ["b"]][place][..])
        });
        let table = table(&["train.optimizer.learning_rate"], rows.collect());
        let all = points(&table);
        Ranking::new(&all, &table, None).verdict().unwrap()
    };
    let other = told([Some(2.7), Some(2.5)]);
    assert!(
        other.starts_with("learning_rate a has the lowest validation loss: 2.8000")
            && other
                .contains("learning_rate b leads with 2.5000 ± 0.0000 (against 2.7000 ± 0.0000)"),
        "{other}"
    );
    for same in [[Some(2.5), Some(2.7)], [Some(2.5); 2], [Some(2.7), None]] {
        assert!(!told(same).contains("lowest loss of each"), "{same:?}");
    }
}

/// The run of a point in a round of a launch.
fn in_round(point: u64, round: u64, speed: f64, loss: f64) -> TrialRow {
    TrialRow {
        valid_loss: Some(loss),
        seed: round,
        block: Some(round),
        run_seconds: Some((round * 100 + point) as f64),
        ..row(point * 10 + round, speed)
    }
}

#[test]
fn the_pareto_front_is_what_no_other_point_dominates() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        // Few values, so that many are equal.
        let wanted: Vec<(f64, f64)> = (0..random.usize(2..12))
            .map(|_| (f64::from(random.u32(1..5)), f64::from(random.u32(1..5))))
            .collect();
        let names: Vec<[String; 2]> = (0..wanted.len())
            .map(|number| [number.to_string(), number.to_string()])
            .collect();
        let cells: Vec<[&str; 2]> = names.iter().map(|names| [&*names[0], &*names[1]]).collect();
        let mut rows = Vec::new();
        for (number, (loss, speed)) in wanted.iter().enumerate() {
            // Rounds without any spread: each difference is larger than noise.
            for round in 1..=3_u64 {
                let fixed = in_round(number as u64, round, *speed, *loss);
                rows.push((fixed, &cells[number][..]));
            }
        }
        let table = table(&["model.d_model", "train.batch_size"], rows);
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, None);
        assert!(ranking.objective.is_trade_off);
        for ranked in &ranking.points {
            let own = wanted[ranked.place];
            assert_eq!(
                ranked.is_marked,
                !dominated(&wanted, own),
                "{wanted:?} {own:?}"
            );
        }
    }
}

#[test]
fn a_lead_in_speed_that_may_be_noise_is_not_on_the_front() {
    /// The number of marked points, the verdict and the meaning of the mark.
    fn told(speeds: [&[f64]; 2], launches: [u64; 2]) -> (usize, String, String) {
        let cells = [["0.01", "16"], ["0.03", "16"]];
        let mut rows = Vec::new();
        for (point, speeds) in speeds.into_iter().enumerate() {
            for (round, speed) in speeds.iter().enumerate() {
                let loss = 1.0 + point as f64 + round as f64 / 100.0;
                let fixed = TrialRow {
                    launch: launches[point],
                    ..in_round(point as u64, round as u64 + 1, *speed, loss)
                };
                rows.push((fixed, &cells[point][..]));
            }
        }
        // The third point gives the batch size a second value; it is slower and worse.
        for (round, speed) in [50.0, 55.0, 49.0].iter().enumerate().take(speeds[0].len()) {
            let fixed = in_round(2, round as u64 + 1, *speed, 9.0);
            rows.push((fixed, &["0.01", "8"][..]));
        }
        let table = table(&["train.optimizer.learning_rate", "train.batch_size"], rows);
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, None);
        let marked = ranking.points.iter().filter(|of| of.is_marked).count();
        let page = point_table(&table, None);
        assert_eq!(page.contains("valid_loss and speed"), marked > 1, "{page}");
        (marked, ranking.verdict().unwrap(), ranking.mark_in_words())
    }
    let first = [100.0, 110.0, 98.0];
    let (marked, verdict, mark) = told([&first, &[101.0, 108.0, 99.5]], [1, 1]);
    assert_eq!((marked, mark.as_str()), (1, "* lowest validation loss"));
    assert!(
        verdict.starts_with("learning_rate 0.01, batch_size 16 has the lowest validation loss")
            && verdict.ends_with(". no other point is faster by more than noise"),
        "{verdict}"
    );
    let faster = [150.0, 166.0, 147.5];
    let (marked, verdict, mark) = told([&first, &faster], [1, 1]);
    assert_eq!(marked, 2);
    assert!(
        verdict.contains(". 2 points are on the Pareto front; learning_rate 0.03, batch_size 16")
            && mark.starts_with("* Pareto front: "),
        "{verdict}; {mark}"
    );
    let (marked, verdict, _) = told([&first, &faster], [1, 2]);
    assert_eq!(marked, 1);
    assert!(
        verdict.ends_with(
            ". cannot tell the Pareto front: no launch ran all of the points: the order may come \
             from drift of the machine"
        ),
        "{verdict}"
    );
    let (marked, verdict, _) = told([&first[..1], &faster[..1]], [1, 1]);
    assert_eq!(marked, 1);
    assert!(
        verdict
            .ends_with(". cannot tell the Pareto front: one run per point: the order may be noise"),
        "{verdict}"
    );
}

#[test]
fn a_point_that_is_not_on_the_front_hides_no_other() {
    /// The places of the marked points and the verdict, of points with these speeds; each has a
    /// higher loss than the one before.
    fn told(speeds: &[&[f64]]) -> (Vec<usize>, String) {
        let cells = [["1", "1"], ["2", "2"], ["3", "3"]];
        let mut rows = Vec::new();
        for (point, speeds) in speeds.iter().enumerate() {
            for (round, speed) in speeds.iter().enumerate() {
                let loss = 2.0 + point as f64 / 10.0;
                let fixed = in_round(point as u64, round as u64 + 1, *speed, loss);
                rows.push((fixed, &cells[point][..]));
            }
        }
        let table = table(&["model.d_model", "train.batch_size"], rows);
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, None);
        let marked = ranking.points.iter().filter(|of| of.is_marked);
        let marked: Vec<usize> = marked.map(|of| of.place).collect();
        (marked, ranking.verdict().unwrap())
    }
    let (best, once) = (&[1000.0, 1001.0, 1002.0][..], &[1700.0][..]);
    let (marked, verdict) = told(&[best, once, &[1600.0, 1601.0, 1602.0]]);
    assert_eq!(marked, [0, 2], "{verdict}");
    assert!(
        verdict.contains(". 2 points are on the Pareto front"),
        "{verdict}"
    );
    // A lead of a single run is not known to be noise.
    let (marked, verdict) = told(&[best, once, &[900.0, 901.0, 902.0]]);
    assert_eq!(marked, [0], "{verdict}");
    assert!(
        verdict.contains(". cannot tell the Pareto front: the best point or a faster one")
            && !verdict.contains("by more than noise"),
        "{verdict}"
    );
}

#[test]
fn repeats_of_two_points_that_are_equal_say_nothing_of_the_noise() {
    let told = |losses: [[f64; 3]; 2], has_seeds: bool, asked: Metric| {
        let rows = (0..6_u64).map(|at| {
            let (place, repeat) = (at as usize % 2, at / 2);
            let loss = losses[place][repeat as usize];
            let mut fixed = TrialRow {
                seed: if has_seeds { repeat + 1 } else { 1 },
                block: Some(repeat + 1),
                run_seconds: Some(at as f64),
                valid_loss: Some(loss),
                ..row(at + 1, 100.0)
            };
            fixed.metrics.insert("cost".to_owned(), loss);
            fixed.metrics.insert("cost_seconds".to_owned(), loss);
            (fixed, &[["a"], ["b"]][place][..])
        });
        let table = table(&["model.x"], rows.collect());
        let all = points(&table);
        let asked = spec::Objective::of(asked, Some(spec::Goal::Min));
        let ranking = Ranking::new(&all, &table, Some(asked));
        (ranking.verdict().unwrap(), ranking.is_certain())
    };
    let (copies, varied) = ([2.0; 3], [2.0, 2.01, 1.99]);
    let doubt = "; the repeats of both are equal: nothing is known of the noise";
    for metric in [Metric::ValidLoss, Metric::named("cost")] {
        let (equal, is_certain) = told([copies, [2.5; 3]], true, metric);
        assert!(equal.contains(doubt) && !is_certain, "{equal}");
        // One that varies tells of the noise.
        for losses in [[varied, [2.5, 2.51, 2.52]], [varied, [2.5; 3]]] {
            let (sure, is_certain) = told(losses, true, metric);
            assert!(sure.contains("larger than noise") && is_certain, "{sure}");
        }
    }
    // A time may be equal to the bit by its resolution.
    let (time, _) = told([copies, [2.5; 3]], true, Metric::named("cost_seconds"));
    assert!(!time.contains(doubt), "{time}");
    let (one_seed, _) = told([copies, [2.5; 3]], false, Metric::named("cost"));
    assert!(one_seed.contains("larger than noise"), "{one_seed}");
}

#[test]
fn losses_on_other_data_are_not_ranked() {
    let run = |axis: &'static str, values: [&'static [&'static str]; 2]| {
        let rows = (0..10_u64).map(|at| {
            let fixed = TrialRow {
                valid_loss: Some(1.0 + (at % 2) as f64 + at as f64 / 100.0),
                seed: at / 2,
                ..row(at + 1, 100.0)
            };
            (fixed, values[at as usize % 2])
        });
        let table = table(&[axis], rows.collect());
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, None);
        let is_marked = ranking.points.iter().any(|of| of.is_marked);
        (ranking.verdict().unwrap_or_default(), is_marked)
    };
    let (apart, is_marked) = run("data.tokenizer", [&["character"], &["word"]]);
    assert_eq!(
        apart,
        "cannot tell which point has the lowest validation loss: `data.tokenizer` makes it a \
         validation loss on other data; compare points of one value of it, or name another \
         `objective`"
    );
    assert!(!is_marked);
    let more_rows = run("data.train_rows", [&["100"], &["200"]]);
    assert!(
        more_rows.1 && more_rows.0.contains("larger than noise"),
        "{more_rows:?}"
    );
}

#[test]
fn losses_on_the_same_validation_data_are_ranked_whatever_was_trained_on() {
    let verdict = |validation: [Option<&str>; 2]| {
        let rows = (0..10_u64).map(|at| {
            let place = at as usize % 2;
            let fixed = TrialRow {
                valid_loss: Some(1.0 + place as f64 + at as f64 / 100.0),
                validation_data: validation[place].map(str::to_owned),
                seed: at / 2,
                ..row(at + 1, 100.0)
            };
            (fixed, &[["a.jsonl"], ["b.jsonl"]][place][..])
        });
        let table = table(&["data.path"], rows.collect());
        let all = points(&table);
        Ranking::new(&all, &table, None).verdict().unwrap()
    };
    let same = verdict([Some("v"), Some("v")]);
    assert!(
        same.starts_with("path a.jsonl has the lowest validation loss")
            && same.contains("larger than noise"),
        "{same}"
    );
    for other in [[Some("v"), Some("w")], [Some("v"), None], [None, None]] {
        let other = verdict(other);
        assert!(
            other.contains("`data.path` makes it a validation loss on other data"),
            "{other}"
        );
    }
}

#[test]
fn a_lead_may_be_that_of_a_device() {
    let on = |device: &str, at: u64, rate: f64| TrialRow {
        device_name: Some(device.to_owned()),
        run_seconds: Some(at as f64),
        block: Some(at / 2),
        seed: at / 2,
        ..row(at + 1, rate)
    };
    let run = |axis: &'static str, devices: [&str; 2]| {
        let rows = (0..10_u64).map(|at| {
            let of_second = at % 2 == 1;
            let rate = if of_second { 130.0 } else { 100.0 } + at as f64 / 10.0;
            let fixed = on(devices[usize::from(of_second)], at, rate);
            (fixed, if of_second { &["b"][..] } else { &["a"] })
        });
        let table = table(&[axis], rows.collect());
        let all = points(&table);
        Ranking::new(&all, &table, None).verdict().unwrap()
    };
    let alike = run("train.batch_size", ["EPYC", "EPYC"]);
    assert!(alike.contains("its lead is larger than noise"), "{alike}");
    let apart = run("train.batch_size", ["EPYC", "Xeon"]);
    let doubt = "it ran on Xeon and the next on EPYC: their order may be that of the devices";
    assert!(apart.contains(doubt), "{apart}");
    let swept = run("run.devices", ["EPYC", "Xeon"]);
    assert!(swept.contains("its lead is larger than noise"), "{swept}");
}

/// A run that was interrupted within its last round: points with these rates of a first launch and of a
/// second one, in which the machine was faster.
fn of_two_launches(rates: [&[&[f64]; 2]; 3]) -> Option<String> {
    let mut rows = Vec::new();
    for (point, launches) in rates.into_iter().enumerate() {
        for (launch, rates) in launches.iter().enumerate() {
            for (round, rate) in rates.iter().enumerate() {
                let fixed = TrialRow {
                    launch: launch as u64 + 1,
                    block: Some(round as u64 + 1),
                    ..row(rows.len() as u64 + 1, *rate)
                };
                rows.push((fixed, &[["a"], ["b"], ["c"]][point][..]));
            }
        }
    }
    let table = table(&["a.b"], rows);
    let all = points(&table);
    let ranking = Ranking::new(&all, &table, None);
    let verdict = ranking.verdict();
    let is_marked = ranking.points.iter().any(|point| point.is_marked);
    let is_told = verdict
        .as_ref()
        .is_some_and(|said| !said.contains("cannot tell"));
    assert_eq!(is_marked, is_told, "{verdict:?}");
    assert!(is_told || ranking.fastest().is_none() && !ranking.is_certain());
    verdict
}

#[test]
fn a_point_with_more_runs_on_a_faster_machine_is_not_called_the_fastest() {
    let said = |of_last: &[f64]| {
        of_two_launches([
            &[&[702.7, 701.0, 699.1], &[999.2, 1001.0]],
            &[&[669.7, 662.6, 668.0], &[951.1, 949.0]],
            &[&[742.2, 742.1, 744.0], of_last],
        ])
    };
    let overtaken = said(&[]).unwrap();
    assert!(
        overtaken.starts_with("cannot tell which point is fastest: within blocks b c is ")
            && overtaken.ends_with("although that one has the best mean"),
        "{overtaken}"
    );
    let whole = said(&[1059.0, 1062.0]).unwrap();
    assert!(
        whole.starts_with("b c is fastest") && whole.ends_with("its lead is larger than noise"),
        "{whole}"
    );
    // The last point is as fast as the first one within blocks.
    let close = of_two_launches([
        &[&[702.7, 701.0, 699.1], &[999.2, 1001.0]],
        &[&[669.7, 662.6, 668.0], &[951.1, 949.0]],
        &[&[700.2, 702.1, 701.0], &[]],
    ]);
    let close = close.unwrap();
    assert!(
        close.starts_with("b a is fastest")
            && close
                .contains("it is ahead of the next, but within blocks not of b c (95 % interval ")
            && close.ends_with("): their order may be noise"),
        "{close}"
    );
}

/// How often the lead of the better of two points is called larger than noise, over `count`
/// runs of five seeds each, whose losses are normal with a deviation of 1 around these means.
fn certain(means: [f64; 2], random: &mut fastrand::Rng, count: u32) -> f64 {
    let objective = spec::Objective::of(Metric::ValidLoss, None);
    let mut normal = || {
        let [one, other] = [(); 2].map(|()| random.f64());
        (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    };
    let found = (0..count).filter(|_| {
        let rows = (0..10_u64).map(|at| {
            let fixed = TrialRow {
                seed: at / 2,
                valid_loss: Some(means[at as usize % 2] + normal()),
                ..row(at + 1, 1.0)
            };
            (fixed, &[["a"], ["b"]][at as usize % 2][..])
        });
        let table = table(&["a.b"], rows.collect());
        let all = points(&table);
        Ranking::new(&all, &table, Some(objective)).is_certain()
    });
    found.count() as f64 / f64::from(count)
}

/// Whether ratios or differences are compared depends on the signs that were measured. That
/// must not make a lead out of noise, nor hide one.
#[test]
fn a_lead_is_as_certain_whatever_the_signs_of_the_values() {
    let mut random = fastrand::Rng::with_seed(7);
    // The farther from 0, the more runs are compared by ratios: of none to all.
    for mean in [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0] {
        // At most 5 %, known to 0.4 points.
        let of_none = certain([mean, mean], &mut random, 3000);
        assert!(of_none < 0.062, "{mean}: {of_none}");
        let of_three = certain([mean, mean + 3.0], &mut random, 500);
        assert!(of_three > 0.5, "{mean}: {of_three}");
    }
}

const WIDE: PageStyle = PageStyle {
    width: None,
    has_color: false,
};

/// A search by successive halving: short trials may overtake long ones by their loss, and were dropped
/// all the same. A round of which nothing has a value yet counts for nothing.
#[test]
fn of_a_search_in_rounds_only_the_longest_trials_are_compared() {
    let searched = "{sweep: {search: {kind: successive-halving, metric: valid_loss, steps: 50, \
                    axes: {train.learning_rate: [0.1, 0.2, 0.3]}}}}";
    let asked = spec::objective_of(searched).unwrap();
    assert!(asked.is_in_rounds && asked.source == spec::ObjectiveSource::Search);
    let verdict = |last: [Option<f64>; 2]| {
        let of = |id, valid_loss, setting: &'static [&'static str]| {
            let fixed = TrialRow {
                valid_loss,
                ..row(id, 1.0)
            };
            (fixed, setting)
        };
        let table = table(
            &["train.learning_rate", "train.steps"],
            vec![
                of(1, Some(2.0), &["0.1", "50"]),
                of(2, Some(1.0), &["0.2", "50"]),
                of(3, Some(3.0), &["0.3", "50"]),
                of(4, last[0], &["0.1", "150"]),
                of(5, last[1], &["0.2", "150"]),
            ],
        );
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, Some(asked));
        let ids: Vec<u64> = ranking
            .points
            .iter()
            .map(|ranked| ranked.point.rows[0].number)
            .collect();
        // The speed of a short trial is compared with none.
        for ranked in &ranking.points {
            let share = ranking.share(ranked.point, ranking.fastest());
            assert_eq!(share.is_some(), ranked.apart.is_none(), "{}", ranked.place);
        }
        let page = super::super::summary::tests::summary(&table, 5, Some(asked), WIDE);
        (ids, ranking.verdict().unwrap(), page)
    };
    let (ids, told, page) = verdict([Some(1.8), Some(1.9)]);
    assert_eq!(ids, [4, 5, 2, 1, 3]);
    assert!(
        told.starts_with("learning_rate 0.1, steps 150 has the lowest validation loss: 1.8000")
            && told.ends_with(". 3 points are not compared: their trials have another length"),
        "{told}"
    );
    assert!(
        page.contains("* lowest validation loss of the longest trials")
            && page.contains(
                "longest trials first, of these lowest validation loss first, as `metric` of"
            )
            && !page.contains("different numbers of samples"),
        "{page}"
    );
    let (ids, told, _) = verdict([None, None]);
    assert_eq!(ids[..3], [2, 1, 3]);
    assert!(
        told.starts_with("learning_rate 0.2, steps 50 has"),
        "{told}"
    );
    let (ids, told, _) = verdict([Some(1.8), None]);
    assert_eq!(ids[..2], [4, 5]);
    assert!(told.starts_with("cannot tell which point"), "{told}");
}

#[test]
fn a_synthetic_twin_is_no_rival_of_what_trains_on_data() {
    let of = |twins: &[(u64, f64, [&'static str; 2])]| {
        let rows = twins
            .iter()
            .map(|(number, rate, values)| (row(*number, *rate), &values[..]));
        let table = table(&["train.batch_size", "data.synthetic"], rows.collect());
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, None);
        let marked: Vec<u64> = ranking
            .points
            .iter()
            .filter(|ranked| ranked.is_marked)
            .map(|ranked| ranked.point.rows[0].number)
            .collect();
        (marked, ranking.verdict(), ranking.fastest())
    };
    let (marked, told, fastest) = of(&[
        (1, 30.0, ["8", "false"]),
        (2, 90.0, ["8", "true"]),
        (3, 50.0, ["16", "false"]),
        (4, 95.0, ["16", "true"]),
    ]);
    assert_eq!((marked, fastest), (vec![3], Some(50.0)));
    let told = told.unwrap();
    assert!(
        told.starts_with("batch_size 16, synthetic false is fastest: 50.0")
            && told.ends_with(
                ". 2 points are not compared: with `data.synthetic: true` one batch is trained again \
                 and again"
            ),
        "{told}"
    );
    // One pair prices the pipeline, and is no choice.
    let (marked, told, _) = of(&[(1, 30.0, ["8", "false"]), (2, 90.0, ["8", "true"])]);
    assert_eq!((marked, told), (Vec::new(), None));
    // Failed trainings on data are no reason to call a twin the fastest.
    let rows = |outcome: Outcome| {
        let real = TrialRow {
            outcome,
            ..row(1, 30.0)
        };
        let rows = vec![
            (real, &["8", "false"][..]),
            (row(2, 90.0), &["8", "TRUE"]),
            (row(3, 95.0), &["16", "TRUE"]),
        ];
        let table = table(&["train.batch_size", "data.synthetic"], rows);
        let all = points(&table);
        let ranking = Ranking::new(&all, &table, None);
        (
            ranking.fastest(),
            ranking.points.iter().any(|of| of.is_marked),
        )
    };
    assert_eq!(rows(Outcome::Failed), (None, false));
    assert_eq!(rows(Outcome::Completed), (Some(30.0), false));
    // Where nothing trains on data, the twins are compared.
    let (marked, told, _) = of(&[(1, 30.0, ["8", "true"]), (2, 90.0, ["16", "true"])]);
    assert_eq!(marked, [2]);
    assert!(
        told.unwrap()
            .starts_with("batch_size 16, synthetic true is fastest")
    );
}
