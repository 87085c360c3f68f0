//! The limits of verdicts and searches: from where on a difference counts, and how much evidence it
//! takes.
//!
//! `docs/comparing.md`, `docs/tuning.md` and `docs/diagnosis.md` name them to users; a test keeps
//! them equal. Limits of a single method stay beside it, with the measurements that they come from;
//! limits of a diagnosis stay beside its rules.

/// Probability of a false alarm over all questions asked together, and over all reports of a drift.
pub const ALPHA: f64 = 0.05;
/// Probability of detecting the smallest visible effect.
pub const POWER: f64 = 0.8;
/// Fewer runs on a side, or fewer pairs, say too little about their spread.
pub const FEWEST_RUNS: usize = 3;
/// Assumed correlation of successive runs: 0.54 was measured over sixty runs in a row
/// (`results/verdict-spread`).
pub const CORRELATION: f64 = 0.5;
/// Assumed jump of a machine between two sessions: for sides that ran one after the other only a
/// larger change is reported. Chosen, not a bound: 8 % in ten minutes (`results/verdict-spread`,
/// `verdict-plain`) and 31 % in one (`results/quickstart-2core-epyc`) were seen on rented machines.
pub const SESSION_JUMP: f64 = 0.05;

/// If at least this fraction of a side's runs is disturbed, the machine was disturbed, not a single
/// run: sides that ran one after the other may have seen two machine states. Chosen; a burst of six
/// runs among sixty at half their speed was seen (`results/verdict-busy`).
pub const MUCH_DISTURBED: f64 = 0.25;

/// A smaller change of a time, a rate, memory or energy does not count, as a fraction. The same for
/// comparison, report, diagnosis and search.
pub const WORTH: f64 = 0.03;
/// A smaller change of a loss does not count: a cross-entropy of 3 that is 3 % lower is another
/// model.
pub const WORTH_OF_LOSS: f64 = 0.01;
/// Logarithms that differ by no more than this are of equal numbers: the difference is rounding,
/// below the resolution of any instrument.
pub(crate) const ROUNDING: f64 = 1e-9;

/// A smaller drift of the machine is not reported.
pub(super) const DRIFT_WORTH: f64 = 0.01;
/// With fewer runs of one side it is unknown whether they follow a line.
pub(super) const DRIFT_FEWEST_RUNS: usize = 4;

/// Smallest number of runs in which an outlier can be recognized.
pub const OUTLIER_FEWEST_RUNS: usize = 4;
/// The limits of [`outlier_deviations`] for 4, 5, … and 20 runs. The largest modified z-score of a
/// side is above its limit in 2.5 % of 400,000 simulated sides of independent normal numbers, so that
/// one of two sides has an outlier in 5 %. The 3.5 of Iglewicz & Hoaglin (1993) is for many runs: of
/// five on each side it finds one in 37 %.
const OUTLIER_DEVIATIONS: [f64; 17] = [
    9.8, 11.4, 7.1, 7.6, 6.0, 6.2, 5.5, 5.6, 5.2, 5.2, 4.9, 5.0, 4.7, 4.8, 4.6, 4.6, 4.5,
];

/// Further from the median than this, in deviations estimated from the median of distances, a run of
/// so many is an outlier; but not within [`WORTH`] of it. From 20 runs on it is one limit: the exact
/// ones are 4.0 to 4.5 up to 1000.
pub fn outlier_deviations(runs: usize) -> f64 {
    let place = runs.saturating_sub(OUTLIER_FEWEST_RUNS);
    OUTLIER_DEVIATIONS[place.min(OUTLIER_DEVIATIONS.len() - 1)]
}

/// Values of a search whose speeds differ by no more than this are equal: the smaller one is
/// chosen, and a rise that gains no more has ended. Less than [`WORTH`], which only repeats can
/// show.
pub(crate) const SEARCH_EQUAL: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a page on one line.
    fn page(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let text = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn percent(share: f64) -> String {
        let text = format!("{:.1}", share * 100.0);
        format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
    }

    #[test]
    fn the_documentation_names_the_limits_of_the_code() {
        let (worth, of_loss) = (percent(WORTH), percent(WORTH_OF_LOSS));
        let lowest = 1.0 - WORTH;
        let comparing = [
            format!("the ratio is {worth} or more from it"),
            format!("the same with {of_loss} |"),
            format!("the interval lies within ± {worth} (loss: {of_loss})"),
            format!("the {worth} ({of_loss}) that a change must have to count"),
            format!("fewer than {FEWEST_RUNS} runs on a side"),
            format!("{CORRELATION} from one to the next"),
            format!("then widened by {} for a jump", percent(SESSION_JUMP)),
            format!("A jump of more than {}", percent(SESSION_JUMP)),
            format!("one false alarm on a page is {} at most", percent(ALPHA)),
            format!("larger than noise ({} for all points", percent(ALPHA)),
            format!(
                "by {worth} at least, and by a modified z-score on the median absolute deviation \
                 above {} with five runs, {} with ten and {} from 20 on",
                outlier_deviations(5),
                outlier_deviations(10),
                outlier_deviations(100)
            ),
        ];
        let tuning = [
            format!("no other size is more than {worth} faster"),
            format!("the interval ends above {lowest}"),
            format!("more than {worth} above the best so far"),
        ];
        let diagnosis = [
            format!("the ratio is {} or more", 1.0 + WORTH),
            format!("the difference must be {} larger", percent(SESSION_JUMP)),
        ];
        for (name, sentences) in [
            ("comparing.md", &comparing[..]),
            ("tuning.md", &tuning),
            ("diagnosis.md", &diagnosis),
        ] {
            let page = page(name);
            for sentence in sentences {
                assert!(page.contains(sentence), "docs/{name} lacks: {sentence}");
            }
        }
        assert_eq!(
            MUCH_DISTURBED, 0.25,
            "docs/comparing.md: a quarter of a side's runs"
        );
        assert_eq!(POWER, 0.8, "docs/comparing.md: four times in five");
    }
}
