//! Decides whether a run was reproduced: an answer for programs, and a sentence.

use kiln_core::{
    statistics::WORTH,
    units::{Fraction, WholePercent, counted},
};

use super::{Compared, ComparedMetric, Comparisons, Gate, Verdict};

/// Result of a rerun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reproduction {
    /// Whether the losses are those of the record. The answer is "cannot tell" where they differ by
    /// no more than rounding: the cause may be another order of the same sums, or a real change
    /// that is still small.
    pub gate: Gate,
    /// The same as a sentence, and whether the speed changed.
    pub sentence: String,
}

/// Losses no further apart than this, as a share, may differ by rounding alone. Chosen: f32 rounds
/// to 6e-8, and a training carries it on from step to step.
const ROUNDED: f64 = 1e-4;

/// Compares the losses and the speed of a rerun with the record.
pub fn reproduced(found: &Comparisons) -> Reproduction {
    let (gate, losses) = losses(found);
    let is_of_command = |metric: &ComparedMetric| matches!(metric, ComparedMetric::Column(_));
    let of_command = match found.metrics.iter().any(is_of_command) {
        true => "; metrics of the command are compared above and decide nothing here",
        false => "",
    };
    Reproduction {
        gate,
        sentence: format!("{losses}; {}{of_command}", speed(found)),
    }
}

fn losses(found: &Comparisons) -> (Gate, String) {
    let (all, equal) = found.pairs.iter().fold((0, 0), |(all, equal), pair| {
        (all + pair.losses, equal + pair.equal_losses)
    });
    if let Some((names, why)) = not_repeated(found) {
        let sentence = format!("not reproduced: {why}; losses equal to the bit: {equal} of {all}");
        return (Gate::Fail(names), sentence);
    }
    let named = |is_so: &dyn Fn(&Compared) -> bool| named(found, is_so);
    let apart = found
        .pairs
        .iter()
        .filter_map(|pair| pair.losses_apart)
        .reduce(f64::max)
        .unwrap_or(0.0);
    let lacking: usize = found.pairs.iter().map(|pair| pair.lacking_losses).sum();
    let other = || named(&|pair| pair.equal_losses < pair.losses);
    let same = || format!("{equal} of {} have the same losses", counted(all, "trial"));
    match all {
        0 => {
            let sentence = "cannot tell whether it is reproduced: no trial has a loss in both \
                            tables that can be compared"
                .to_owned();
            (Gate::CannotTell(named(&|_| true)), sentence)
        }
        _ if equal == all => (
            Gate::Pass,
            format!(
                "reproduced: all {} have the losses of the record to the bit",
                counted(all, "trial")
            ),
        ),
        _ if lacking > 0 => {
            let sentence = format!(
                "not reproduced: {}, and {} a loss that the other side lacks",
                same(),
                counted(lacking, "trial") + verb(lacking)
            );
            (Gate::Fail(named(&|pair| pair.lacking_losses > 0)), sentence)
        }
        _ if apart < ROUNDED => {
            let sentence = format!(
                "cannot tell whether it is reproduced: {} to the bit, the others differ by at most \
                 {apart:.1e} (relative), which rounding in another order may cause",
                same()
            );
            (Gate::CannotTell(other()), sentence)
        }
        _ => (
            Gate::Fail(other()),
            format!(
                "not reproduced: {}, the others are up to {} apart",
                same(),
                Fraction(apart)
            ),
        ),
    }
}

/// The points that did not run again or ended differently, and how many of each.
fn not_repeated(found: &Comparisons) -> Option<(Vec<String>, String)> {
    let missing = &found.only_base;
    let ended_otherwise = named(found, &|pair| {
        pair.ends.as_ref().is_some_and(|[base, new]| base != new)
    });
    let counts = [
        (missing.len(), "did not run again"),
        (ended_otherwise.len(), "ended differently"),
    ];
    let why: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", counted(count, "point")))
        .collect();
    let names = missing.iter().cloned().chain(ended_otherwise).collect();
    (!why.is_empty()).then(|| (names, why.join(", ")))
}

fn named(found: &Comparisons, is_so: &dyn Fn(&Compared) -> bool) -> Vec<String> {
    let pairs = found.pairs.iter().filter(|pair| is_so(pair));
    pairs.map(|pair| pair.name.clone()).collect()
}

fn verb(number: usize) -> &'static str {
    if number == 1 { " has" } else { " have" }
}

fn speed(found: &Comparisons) -> String {
    let verdicts: Vec<Verdict> = found
        .pairs
        .iter()
        .filter_map(Compared::speed)
        .map(|one| one.verdict)
        .collect();
    let of = |wanted: &[Verdict]| {
        verdicts
            .iter()
            .filter(|verdict| wanted.contains(verdict))
            .count()
    };
    let (slower, faster, same) = (
        of(&[Verdict::Worse]),
        of(&[Verdict::Better]),
        of(&[Verdict::Same]),
    );
    let all = counted(verdicts.len(), "point");
    match verdicts.len() {
        0 => "no speed to compare".to_owned(),
        many if of(&[Verdict::NotComparable]) == many => "speed: not compared".to_owned(),
        _ if slower + faster > 0 => format!(
            "speed: changed at {} of {all} ({slower} slower, {faster} faster)",
            slower + faster
        ),
        many if same == many => format!("speed: unchanged (within {})", WholePercent(WORTH)),
        _ => format!(
            "speed: no change found, but {} of {all} cannot be shown to be unchanged",
            verdicts.len() - same
        ),
    }
}
