//! Sentences on how the order of the runs affects the verdicts.

use kiln_core::{
    statistics::{Design, Drift, SESSION_JUMP},
    units::{Fraction, counted, listed},
};

use super::{Compared, Comparison, ComparisonPage, Comparisons};

/// Returns sentences on the order of the runs of both sides and on drift of the machine, for the
/// metrics that depend on them. The most important point stands for all.
pub(super) fn sentences(found: &Comparisons, page: &ComparisonPage<'_>) -> Vec<String> {
    // With one run on both sides, order and drift say nothing.
    if found.pairs.iter().all(|pair| pair.is_one_run)
        && let Some(shared) = shared(found)
    {
        return vec![match found.has_kept_rows_only() {
            true => kept(found),
            false => format!("{shared}: BASE and NEW are one run; name two runs"),
        }];
    }
    let orders = Orders::of(found);
    let again = how_to_rerun(page);
    let jump = Fraction(SESSION_JUMP);
    let said = [
        orders.told(Design::Apart, |part| {
            format!(
                "order: {part}the two sides ran one after the other: only changes beyond {jump} are \
                 reported, and machines have drifted by more; {again}"
            )
        }),
        orders.told(Design::OrderUnknown, |part| {
            format!(
                "order: {part}the times of the runs are unknown: they are treated as one side after \
                 the other, and only changes beyond {jump} are reported; {again}"
            )
        }),
        orders.told(Design::ApartDisturbed, |part| {
            let clean = if can_be_clean(found) {
                ", `--clean` excludes disturbed runs"
            } else {
                ""
            };
            format!(
                "order: {part}the two sides ran one after the other while others disturbed the \
                 machine: no verdict is given; {again}{clean}"
            )
        }),
        orders.told(Design::AtOnce, |part| {
            format!(
                "order: {part}the two sides ran at the same time on one machine and disturbed each \
                 other: no verdict on speed is given; {again}"
            )
        }),
        orders.in_turns(),
        orders.launches_in_turns(),
        orders.told(Design::Mixed, |part| {
            format!(
                "order: {part}the runs of both sides are mixed in time, not in pairs; a linear drift \
                 is removed"
            )
        }),
        shared(found),
        boards(found, page.base, page.new),
    ];
    said.into_iter().flatten().chain(drifts(found)).collect()
}

/// The order of the runs of each point that has one.
struct Orders(Vec<Design>);

impl Orders {
    fn of(found: &Comparisons) -> Self {
        let timed = found.pairs.iter().filter_map(Compared::timed);
        Self(timed.filter_map(|one| one.design).collect())
    }

    /// The sentence about the points with this design; `words` gets how many of the points they are.
    /// `None` if there are none.
    fn told(&self, design: Design, words: impl Fn(String) -> String) -> Option<String> {
        let count = self.0.iter().filter(|one| **one == design).count();
        (count > 0).then(|| words(self.part(count)))
    }

    /// Empty for all points.
    fn part(&self, count: usize) -> String {
        match self.0.len() {
            all if all == count => String::new(),
            all => format!("of {} of {all}, ", counted(count, "point")),
        }
    }

    fn in_turns(&self) -> Option<String> {
        let (part, pairs) = self.pairs(|design| match design {
            Design::Paired { pairs } => Some(pairs),
            _ => None,
        })?;
        Some(format!(
            "order: {part}the two sides ran in turns; {pairs} of neighboring runs are compared"
        ))
    }

    fn launches_in_turns(&self) -> Option<String> {
        let (part, pairs) = self.pairs(|design| match design {
            Design::PairedLaunches { pairs } => Some(pairs),
            _ => None,
        })?;
        Some(format!(
            "order: {part}the two sides ran in turns, each in launches of its own; {pairs} of \
             neighboring launches are compared, each launch by the mean of its runs"
        ))
    }

    /// The part of all points that have pairs of this kind, in words, and how many pairs they have:
    /// `3 pairs`.
    fn pairs(&self, of: fn(Design) -> Option<usize>) -> Option<(String, String)> {
        let pairs: Vec<usize> = self.0.iter().copied().filter_map(of).collect();
        let (least, most) = (pairs.iter().min()?, pairs.iter().max()?);
        let count = match least == most {
            true => counted(*most, "pair"),
            false => format!("{least} to {most} pairs"),
        };
        Some((self.part(pairs.len()), count))
    }
}

/// How to run both sides again, in turns.
pub(super) fn how_to_rerun(page: &ComparisonPage<'_>) -> String {
    let (base, new) = (page.base, page.new);
    match page.can_rerun {
        true if has_other_programs(page) => format!(
            "their programs differ: `kiln compare --rerun {base} {new} --base-set …` runs both in turns \
             where the old one is named, of a command with `model.folder=DIR` (docs/comparing.md, \"Two \
             versions of a command\")"
        ),
        true => format!("`kiln compare --rerun {base} {new}` runs both in turns"),
        false => {
            "run both in turns from their experiment files (`kiln compare --rerun`)".to_owned()
        }
    }
}

/// Whether each point whose sides were disturbed has enough runs without the disturbed ones.
fn can_be_clean(found: &Comparisons) -> bool {
    let is_disturbed = |pair: &&Compared| {
        let design = pair.timed().and_then(|one| one.design);
        design == Some(Design::ApartDisturbed)
    };
    let mut pairs = found.pairs.iter().filter(is_disturbed);
    pairs.all(Compared::has_enough_clean_runs)
}

fn shared(found: &Comparisons) -> Option<String> {
    let shared: usize = found.pairs.iter().map(|pair| pair.shared).sum();
    let counts = match found.pairs.iter().all(|pair| pair.is_one_run) {
        true => "",
        false => ", and counted on neither side",
    };
    (shared > 0).then(|| {
        format!(
            "order: {} in both tables: the same run, not a repeat{counts}; no gate passes there",
            counted(shared, "run")
        )
    })
}

/// Says that one run has its rows from the other.
fn kept(found: &Comparisons) -> String {
    let rows: usize = found.pairs.iter().map(|pair| pair.shared).sum();
    format!(
        "one of these runs kept {} from the other, and no other rows are of points that both have: \
         there is nothing to compare; `kiln run FILE --fresh` makes a run to compare with",
        counted(rows, "row")
    )
}

/// Whether the two runs recorded other contents of a file of their programs. Run again, each would
/// have the file of today.
fn has_other_programs(page: &ComparisonPage<'_>) -> bool {
    let mut facts = page.facts.into_iter().flatten();
    facts
        .any(|fact| fact.what.starts_with("programs.") && fact.base.is_some() && fact.new.is_some())
}

/// Sentence that the sides ran on different boards of one model, which may differ in speed.
fn boards(found: &Comparisons, base: &str, new: &str) -> Option<String> {
    let boards: Vec<&[Vec<String>; 2]> = found
        .pairs
        .iter()
        .filter(|pair| pair.unlike.is_empty())
        .filter_map(|pair| pair.boards.as_ref())
        .collect();
    let [of_base, of_new] = boards.first()?;
    let part = if boards.len() == found.pairs.len() {
        String::new()
    } else {
        format!(
            "of {} of {}, ",
            counted(boards.len(), "point"),
            found.pairs.len()
        )
    };
    let on = |uuids: &[String]| listed(uuids, " and ");
    let others = if of_base[0].starts_with("MIG-") {
        "other instances of the same shape"
    } else {
        "other boards of the same model"
    };
    Some(format!(
        "boards: {part}base ran on {}, new on {}: {others}, and differences between boards in \
         speed and power affect these numbers; `kiln compare --rerun {base} {new} --set \
         run.devices=[{}]` runs both on one",
        on(of_base),
        on(of_new),
        of_base[0]
    ))
}

/// The largest drift of each kind, as a speed: a longer step is a slower machine. Of points without a
/// speed, that of the first number that was asked for.
pub(super) fn drifts(found: &Comparisons) -> Vec<String> {
    let has_speed = found.pairs.iter().any(|pair| pair.speed().is_some());
    let pairs = found.pairs.iter();
    let comparisons: Vec<&Comparison> = match has_speed {
        true => pairs.filter_map(Compared::speed).collect(),
        false => pairs
            .filter_map(Compared::timed)
            .filter(|one| one.metric.is_main())
            .collect(),
    };
    let largest = |of: &dyn Fn(&Drift) -> Option<f64>| {
        let ratio = |one: &Comparison| {
            let ratio = of(&one.drift)?;
            Some(match has_speed && !one.metric.is_better_high() {
                true => 1.0 / ratio,
                false => ratio,
            })
        };
        let ratios = comparisons.iter().copied().filter_map(ratio);
        ratios.max_by(|one, other| one.ln().abs().total_cmp(&other.ln().abs()))
    };
    let number = comparisons
        .first()
        .map_or("", |one| one.metric.short_name());
    let of = |ratio: f64| {
        let share = Fraction((ratio - 1.0).abs());
        match (has_speed, ratio > 1.0) {
            (true, true) => format!("the machine became {share} faster"),
            (true, false) => format!("the machine became {share} slower"),
            (false, true) => format!("`{number}` rose by {share}"),
            (false, false) => format!("`{number}` fell by {share}"),
        }
    };
    let kinds: [(&str, Option<f64>); 3] = [
        (
            "while both sides ran; it is removed from the verdicts",
            largest(&|drift| drift.over_all),
        ),
        ("during base", largest(&|drift| drift.of_base)),
        ("during new", largest(&|drift| drift.of_new)),
    ];
    kinds
        .into_iter()
        .filter_map(|(when, ratio)| Some(format!("drift: {} {when}", of(ratio?))))
        .collect()
}
