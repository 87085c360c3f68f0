//! The steps and samples of each batch, and their curve, in words.

use kiln_core::units::{counted, significant, without_controls};

use super::{ReachedBatch, StepsAndSamples, of};
use crate::report::points::Point;

/// The notices: what each batch needed, the critical batch, and the noise scale beside it.
pub(in crate::report) fn lines(points: &[Point<'_>], axes: &[String]) -> Vec<String> {
    let Some(found) = of(points, axes) else {
        return Vec::new();
    };
    let mut lines = vec![found.needed()];
    lines.extend(found.curve());
    lines.extend(found.against_noise());
    lines
}

fn sizes(of: impl Iterator<Item = u64>) -> String {
    let sizes: Vec<String> = of.map(|size| size.to_string()).collect();
    sizes.join(", ")
}

impl StepsAndSamples<'_> {
    fn needed(&self) -> String {
        let of =
            |batch: &ReachedBatch<'_>| format!("{} × {}", significant(batch.steps), batch.size);
        let needed: Vec<String> = self.batches.iter().map(of).collect();
        let trials = self.batches.iter().map(|batch| batch.trials);
        let repeats = match (trials.clone().min(), trials.max()) {
            (Some(1), Some(1)) => ", one trial each".to_owned(),
            (Some(least), Some(most)) if least == most => {
                format!(", the geometric mean of {most} trials each")
            }
            (least, most) => format!(
                ", the geometric mean of {} to {} trials each",
                least.unwrap_or(0),
                most.unwrap_or(0)
            ),
        };
        let mut text = format!(
            "steps × effective batch until the evaluation that reached `train.target`: {}{repeats}{}",
            needed.join(", "),
            self.rates()
        );
        if !self.unreached.is_empty() {
            text += &format!(
                "; batch {} did not reach it with all of its trials",
                sizes(self.unreached.iter().copied())
            );
        }
        if let Some((size, seconds)) = self.soonest {
            text += &format!("; soonest with {size}, after {} s", significant(seconds));
        }
        if self.others > 0 {
            text += &format!(
                "; all with {}, and {} of other values not told here",
                self.shared.join(", "),
                counted(self.others, "group")
            );
        }
        text
    }

    /// The learning rates behind these steps, and what was not tried.
    fn rates(&self) -> String {
        let mut rates: Vec<&str> = self.batches.iter().filter_map(|batch| batch.rate).collect();
        rates.dedup();
        if rates.len() < 2 && self.batches.iter().all(|batch| batch.rates < 2) {
            return ", all at one learning rate, which need not suit each of them".to_owned();
        }
        let of = |batch: &ReachedBatch<'_>| {
            format!(
                "{} for {}",
                without_controls(batch.rate.unwrap_or_default()),
                batch.size
            )
        };
        let own: Vec<String> = self.batches.iter().map(of).collect();
        let mut text = format!(
            ", at the learning rate with the fewest ({})",
            own.join(", ")
        );
        let of = |is_wanted: &dyn Fn(&ReachedBatch<'_>) -> bool| {
            let wanted = self.batches.iter().filter(|batch| is_wanted(batch));
            sizes(wanted.map(|batch| batch.size))
        };
        let alone = of(&|batch| batch.rates < 2);
        let at_ends = ["least", "largest"].map(|end| (end, of(&|batch| batch.end == Some(end))));
        for (end, batches) in &at_ends {
            if !batches.is_empty() {
                text += &format!("; for batch {batches} it is the {end} that was tried");
            }
        }
        if at_ends.iter().any(|(_, batches)| !batches.is_empty()) {
            text += ", and one beyond may need fewer";
        }
        if !alone.is_empty() {
            text += &format!("; for batch {alone} it is the only one that was tried");
        }
        text
    }

    fn curve(&self) -> Option<String> {
        let Some(fitted) = self.fitted else {
            return (self.batches.len() > 3).then(|| {
                "these steps show no critical batch: they do not fall as the batch grows, or fall in \
                 proportion to it; sweep larger or smaller ones"
                    .to_owned()
            });
        };
        let Some((_, high)) = fitted.interval() else {
            let to = fitted.high.map_or("any size".to_owned(), significant);
            return Some(format!(
                "a curve S = S_min × (1 + C/B) through these {} batches leaves the critical batch C \
                 open: {} samples fit best, and all from {} to {to} fit as well; sweep smaller and larger \
                 ones, or repeat them",
                fitted.batches,
                significant(fitted.critical_batch),
                significant(fitted.low),
            ));
        };
        Some(format!(
            "the curve S = {} × (1 + {}/B) through these {} batches, which scatter around it by {} %: the \
             critical batch is {} samples (95 % interval {} to {}); with it a training needs twice the \
             fewest samples, {}, and twice the fewest steps, {}",
            significant(fitted.fewest_steps),
            significant(fitted.critical_batch),
            fitted.batches,
            significant(100.0 * fitted.scatter),
            significant(fitted.critical_batch),
            significant(fitted.low),
            significant(high),
            significant(fitted.fewest_samples()),
            significant(fitted.fewest_steps),
        ))
    }

    /// The gradient noise scale with the narrowest interval of these trials.
    fn against_noise(&self) -> Option<String> {
        let fitted = self.fitted.filter(|fitted| fitted.interval().is_some())?;
        let measured = self.rows.iter();
        let measured = measured.filter_map(|row| Some((row, row.gradient_noise()?)));
        let (row, noise) =
            measured.min_by(|one, other| one.1.width().total_cmp(&other.1.width()))?;
        Some(format!(
            "the gradient noise scale of one of these trainings (effective batch {}), {} samples (95 % \
             interval {} to {}) at step {} and a training loss of {}, is {} times that critical batch",
            row.effective_batch_size,
            significant(noise.scale),
            significant(noise.low),
            significant(noise.high),
            noise.step,
            significant(noise.loss),
            significant(noise.scale / fitted.critical_batch),
        ))
    }
}
