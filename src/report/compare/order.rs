//! Sentences on how the order of the runs affects the verdicts.

use kiln_core::{
    statistics::{Design, Drift, SESSION_JUMP},
    units::{Fraction, counted, listed},
};

use super::{Compared, Comparison, ComparisonPage, Comparisons};

/// Returns sentences on the order of the runs of both sides and on drift of the machine, for the
/// metrics that depend on them. The most important point stands for all.
pub(super) fn sentences(found: &Comparisons, page: &ComparisonPage<'_>) -> Vec<String> {
    let (base, new) = (page.base, page.new);
    let timed = || found.pairs.iter().filter_map(Compared::timed);
    let of = |holds: &dyn Fn(Design) -> bool| {
        timed().filter(|one| one.design.is_some_and(holds)).count()
    };
    let (apart, unknown) = (
        of(&|design| design == Design::Apart),
        of(&|design| design == Design::OrderUnknown),
    );
    let paired: Vec<usize> = timed()
        .filter_map(|one| {
            if let Some(Design::Paired { pairs }) = one.design {
                Some(pairs)
            } else {
                None
            }
        })
        .collect();
    let all = timed().filter(|one| one.design.is_some()).count();
    let part = |count: usize| {
        if count == all {
            String::new()
        } else {
            format!("of {} of {all}, ", counted(count, "point"))
        }
    };
    let jump = Fraction(SESSION_JUMP);
    let mut said = Vec::new();
    let again = match page.can_rerun {
        true if has_other_programs(page) => format!(
            "their programs differ: `kiln compare --rerun {base} {new} --base-set …` runs both in turns \
             where the old one is named, of a command with `model.folder=DIR` (docs/comparing.md, \"Two \
             versions of a command\")"
        ),
        true => format!("`kiln compare --rerun {base} {new}` runs both in turns"),
        false => {
            "run both in turns from their experiment files (`kiln compare --rerun`)".to_owned()
        }
    };
    if apart > 0 {
        said.push(format!(
            "order: {}the two sides ran one after the other: only changes beyond {jump} are \
             reported, and machines have drifted by more; {again}",
            part(apart)
        ));
    }
    if unknown > 0 {
        said.push(format!(
            "order: {}the times of the runs are unknown: they are treated as one side after the \
             other, and only changes beyond {jump} are reported; {again}",
            part(unknown)
        ));
    }
    let disturbed = of(&|design| design == Design::ApartDisturbed);
    if disturbed > 0 {
        let is_disturbed = |pair: &&Compared| {
            let design = pair.timed().and_then(|one| one.design);
            design == Some(Design::ApartDisturbed)
        };
        let mut pairs = found.pairs.iter().filter(is_disturbed);
        let clean = match pairs.all(Compared::has_enough_clean_runs) {
            true => ", `--clean` excludes disturbed runs",
            false => "",
        };
        said.push(format!(
            "order: {}the two sides ran one after the other while others disturbed the machine: no \
             verdict is given; {again}{clean}",
            part(disturbed)
        ));
    }
    let at_once = of(&|design| design == Design::AtOnce);
    if at_once > 0 {
        said.push(format!(
            "order: {}the two sides ran at the same time on one machine and disturbed each other: \
             no verdict on speed is given; {again}",
            part(at_once)
        ));
    }
    if let (Some(least), Some(most)) = (paired.iter().min(), paired.iter().max()) {
        let pairs = if least == most {
            counted(*most, "pair")
        } else {
            format!("{least} to {most} pairs")
        };
        said.push(format!(
            "order: {}the two sides ran in turns; {pairs} of neighboring runs are compared",
            part(paired.len())
        ));
    }
    let mixed = of(&|design| design == Design::Mixed);
    if mixed > 0 {
        said.push(format!(
            "order: {}the runs of both sides are mixed in time, not in pairs; a linear drift is \
             removed",
            part(mixed)
        ));
    }
    let shared: usize = found.pairs.iter().map(|pair| pair.shared).sum();
    if shared > 0 {
        said.push(format!(
            "order: {} in both tables: the same run, not a repeat; no gate passes there",
            counted(shared, "run")
        ));
    }
    said.extend(boards(found, base, new));
    said.extend(drifts(found));
    said
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
    let told: Vec<&[Vec<String>; 2]> = found
        .pairs
        .iter()
        .filter(|pair| pair.unlike.is_empty())
        .filter_map(|pair| pair.boards.as_ref())
        .collect();
    let [of_base, of_new] = told.first()?;
    let part = if told.len() == found.pairs.len() {
        String::new()
    } else {
        format!(
            "of {} of {}, ",
            counted(told.len(), "point"),
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
    let told: Vec<&Comparison> = match has_speed {
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
        let ratios = told.iter().copied().filter_map(ratio);
        ratios.max_by(|one, other| one.ln().abs().total_cmp(&other.ln().abs()))
    };
    let number = told.first().map_or("", |one| one.metric.short_name());
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
