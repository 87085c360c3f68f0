//! `largest-batch`: doubles until a size is too large, then bisects the gap down to neighboring
//! sizes.

use super::{
    Ask, OwnPlace, Probe, SearchContext, SearchTrial, Strategy, StrategyOutcome, Warning, answer,
    seen::Probes,
    sizes::{BatchSizes, Fit, MOST_BROKEN, effective_batch, fit, too_large_because},
};
use crate::{
    plan::Outcome,
    units::{Bytes, Fraction},
};

/// The search for the largest batch size.
pub(super) struct LargestBatch {
    pub(super) sizes: BatchSizes,
    pub(super) at_most: f64,
    pub(super) given: SearchContext,
}

/// The known bounds of the limit: indices of sizes.
struct Boundary {
    fits: Option<usize>,
    too_large: Option<usize>,
}

impl Strategy for LargestBatch {
    fn keys(&self) -> Vec<String> {
        vec![self.given.keys.batch_size.clone()]
    }

    fn ask(&self, probes: &[Probe]) -> Ask {
        answer(probes, |seen| self.search(seen))
    }

    fn place_of_own(&self) -> OwnPlace {
        match self.sizes.place_of(self.given.batch_size) {
            Some(_) => OwnPlace::Within,
            None => OwnPlace::Outside,
        }
    }
}

impl LargestBatch {
    fn search(&self, seen: &Probes<'_>) -> Result<StrategyOutcome, Vec<SearchTrial>> {
        let risen = self.rise(seen)?;
        let Boundary { fits, too_large } = self.narrow(seen, risen)?;
        let surprise = self.largest_seen(seen).filter(|place| Some(*place) > fits);
        Ok(self.found(seen, surprise.or(fits), too_large))
    }

    fn probe<'a>(&self, seen: &Probes<'a>, place: usize) -> Result<&'a Probe, Vec<SearchTrial>> {
        seen.one(self.choice(self.sizes.at(place)))
    }

    fn choice(&self, size: u64) -> SearchTrial {
        SearchTrial::new([(self.given.keys.batch_size.as_str(), size)], 0)
    }

    /// Doubles the size until one is too large, or the range ends.
    fn rise(&self, seen: &Probes<'_>) -> Result<Boundary, Vec<SearchTrial>> {
        let mut boundary = Boundary {
            fits: None,
            too_large: None,
        };
        let mut broken = 0;
        let mut next = (self.sizes.count() > 0).then_some(0);
        while let Some(place) = next {
            match fit(self.probe(seen, place)?, self.at_most) {
                Fit::Fits => (boundary.fits, broken) = (Some(place), 0),
                Fit::Broken if boundary.fits.is_none() && broken + 1 < MOST_BROKEN => broken += 1,
                Fit::TooLarge | Fit::Broken => {
                    boundary.too_large = Some(place);
                    break;
                }
            }
            next = self.sizes.risen(place, 2.0);
        }
        Ok(boundary)
    }

    /// Bisects the gap until no size is left in it.
    fn narrow(
        &self,
        seen: &Probes<'_>,
        mut boundary: Boundary,
    ) -> Result<Boundary, Vec<SearchTrial>> {
        while let Boundary {
            fits: Some(low),
            too_large: Some(high),
        } = boundary
            && high - low > 1
        {
            let middle = low + (high - low) / 2;
            match fit(self.probe(seen, middle)?, self.at_most) {
                Fit::Fits => boundary.fits = Some(middle),
                Fit::TooLarge | Fit::Broken => boundary.too_large = Some(middle),
            }
        }
        Ok(boundary)
    }

    /// The largest size with a trial that fitted, from any phase.
    fn largest_seen(&self, seen: &Probes<'_>) -> Option<usize> {
        let place = |probe: &Probe| match probe.choice.values.as_slice() {
            [(key, value)] if *key == self.given.keys.batch_size && probe.choice.repeat == 0 => {
                self.sizes.place_of(value.as_u64()?)
            }
            _ => None,
        };
        seen.ended()
            .filter(|probe| fit(probe, self.at_most) == Fit::Fits)
            .filter_map(place)
            .max()
    }

    fn found(
        &self,
        seen: &Probes<'_>,
        fits: Option<usize>,
        too_large: Option<usize>,
    ) -> StrategyOutcome {
        let mut warnings: Vec<Warning> = seen.memory_unknown().into_iter().collect();
        let (why, chosen) = match fits {
            Some(place) => {
                let size = self.sizes.at(place);
                let smaller =
                    too_large
                        .filter(|large| *large < place)
                        .map(|large| Warning::NotMonotone {
                            fits: size,
                            did_not: self.sizes.at(large),
                        });
                warnings.extend(smaller);
                warnings.extend(effective_batch(
                    &self.given,
                    size,
                    self.given.grad_accumulation,
                ));
                warnings.extend(
                    self.sizes
                        .at_end(place, &self.given.keys.batch_size)
                        .filter(|_| place + 1 == self.sizes.count()),
                );
                (
                    self.why(seen, place, too_large),
                    Some(self.choice(size).values),
                )
            }
            None => {
                warnings.push(Warning::NothingFitted {
                    smallest: format!("batch size {}", self.sizes.at(0)),
                });
                (
                    format!(
                        "no batch size ran with at most {} of the memory",
                        Fraction(self.at_most)
                    ),
                    None,
                )
            }
        };
        let grid_trials = too_large
            .map_or(self.sizes.count(), |place| place + 1)
            .max(fits.map_or(0, |place| place + 1)) as u64;
        StrategyOutcome {
            chosen,
            why,
            warnings,
            notes: vec![self.stopped(seen, fits, too_large)],
            grid_trials,
            ..StrategyOutcome::default()
        }
    }

    fn stopped(&self, seen: &Probes<'_>, fits: Option<usize>, too_large: Option<usize>) -> String {
        match (fits, too_large) {
            (Some(fits), Some(large)) if large > fits => {
                let probe = self.probe(seen, large).ok();
                let limit = match probe.map(|probe| probe.outcome) {
                    Some(Outcome::Oom | Outcome::Completed) => "at the memory limit".to_owned(),
                    _ => format!(
                        "because {} {}",
                        self.sizes.at(large),
                        probe.map_or("did not complete", too_large_because)
                    ),
                };
                format!(
                    "the search stopped {limit}: no size is left between {} and {}",
                    self.sizes.at(fits),
                    self.sizes.at(large)
                )
            }
            (_, Some(_)) => "the search stopped because even the smallest sizes did not run \
                             within the memory limit, or failed"
                .to_owned(),
            (_, None) => {
                "the search stopped at the end of its range: no size was too large".to_owned()
            }
        }
    }

    fn why(&self, seen: &Probes<'_>, place: usize, too_large: Option<usize>) -> String {
        let probe = self.probe(seen, place).ok();
        let held = probe.and_then(|probe| Some((probe.memory_share()?, probe.memory_held_bytes?)));
        let held = held
            .map(|(share, bytes)| format!(" (it held {}, {})", Bytes(bytes), Fraction(share)))
            .unwrap_or_default();
        let next = too_large
            .filter(|large| *large > place)
            .and_then(|large| Some((large, self.probe(seen, large).ok()?)));
        let next = next
            .map(|(large, probe)| {
                format!("; {} {}", self.sizes.at(large), too_large_because(probe))
            })
            .unwrap_or_default();
        format!(
            "{} is the largest batch size that ran with at most {} of the memory{held}{next}",
            self.sizes.at(place),
            Fraction(self.at_most)
        )
    }
}

#[cfg(test)]
mod tests;
