//! Whether a run was reproduced, in a sentence.

use super::{Compared, Comparisons, Verdict};
use crate::units::{Fraction, counted};

/// What a rerun showed: whether its losses are those of the record, and whether its speed is.
pub fn reproduced(found: &Comparisons) -> String {
    format!("{}; {}", losses(found), speed(found))
}

fn losses(found: &Comparisons) -> String {
    let (all, equal) = found.pairs.iter().fold((0, 0), |(all, equal), pair| (all + pair.losses, equal + pair.equal_losses));
    let ended_otherwise = found.pairs.iter().filter(|pair| pair.ends.as_ref().is_some_and(|[base, new]| base != new)).count();
    let missing = found.only_base.len();
    if missing + ended_otherwise > 0 {
        let of = |count: usize, what: &str| (count > 0).then(|| format!("{} {what}", counted(count, "point")));
        let why: Vec<String> = [of(missing, "did not run again"), of(ended_otherwise, "ended otherwise")].into_iter().flatten().collect();
        return format!("not reproduced: {}; losses equal to the bit: {equal} of {all}", why.join(", "));
    }
    let apart = found.pairs.iter().filter_map(|pair| pair.losses_apart).reduce(f64::max).unwrap_or(0.0);
    match all {
        0 => "cannot tell whether it is reproduced: no trial has a loss in both tables".to_owned(),
        _ if equal == all => format!("reproduced: all {} have the losses of the record to the bit", counted(all, "trial")),
        _ if apart < 1e-4 => format!(
            "not reproduced to the bit: {equal} of {} have the same losses, the others are at most {apart:.1e} of it apart",
            counted(all, "trial")
        ),
        _ => format!("not reproduced: {equal} of {} have the same losses, the others are up to {} apart", counted(all, "trial"), Fraction(apart)),
    }
}

fn speed(found: &Comparisons) -> String {
    let verdicts: Vec<Verdict> = found.pairs.iter().filter_map(Compared::speed).map(|one| one.verdict).collect();
    let of = |wanted: &[Verdict]| verdicts.iter().filter(|verdict| wanted.contains(verdict)).count();
    let (slower, faster, same) = (of(&[Verdict::Worse]), of(&[Verdict::Better]), of(&[Verdict::Same]));
    let all = counted(verdicts.len(), "point");
    match verdicts.len() {
        0 => "no speed to compare".to_owned(),
        _ if slower + faster > 0 => format!("speed: another at {} of {all} ({slower} slower, {faster} faster)", slower + faster),
        many if same == many => "speed: the same within 3 %".to_owned(),
        _ => format!("speed: no change told, and {} of {all} cannot be told to be the same", verdicts.len() - same),
    }
}
