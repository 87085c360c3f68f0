//! The cost of the input pipeline, from points with and without `data.synthetic`.

use kiln_core::{kinds::data::Loader, units::Fraction};

use crate::report::{points::Point, rates::Rates};

/// Cost of the loader, where a sweep has the same points with and without `data.synthetic`:
/// `1 - real / synthetic` (`docs/measurement.md` 6). The largest cost of all pairs that chance does
/// not explain.
pub(super) fn input_pipeline(points: &[Point<'_>], axes: &[String]) -> Option<String> {
    let pairs = synthetic_twins(points, axes)?;
    let rates = Rates::of(points, |row| row.of_whole_work(row.samples_per_second));
    let gains = || {
        pairs.iter().filter_map(|(real, synthetic)| {
            Some((rates.gain(*real, *synthetic, pairs.len())?, *real))
        })
    };
    let largest = gains()
        .filter(|(gain, _)| gain.is_ahead())
        .max_by(|one, other| one.0.cost().0.total_cmp(&other.0.cost().0));
    if let Some((gain, real)) = largest {
        let (cost, [least, most]) = gain.cost();
        return Some(format!(
            "the input pipeline costs {} of the speed ({}; 1 - real / synthetic, 95 % interval {} \
             to {})",
            Fraction(cost),
            points[real].name(axes),
            Fraction(least),
            Fraction(most)
        ));
    }
    if let Some(most) = gains().map(|(gain, _)| gain.cost().1[1]).reduce(f64::max) {
        return Some(format!(
            "the cost of the input pipeline is within noise (1 - real / synthetic): at most {} of \
             the speed",
            Fraction(most.max(0.0))
        ));
    }
    let rate = |place: usize| {
        points[place]
            .statistic(|row| row.of_whole_work(row.samples_per_second))
            .map(|rate| rate.mean)
    };
    let costs = pairs
        .iter()
        .filter_map(|(real, synthetic)| Some((1.0 - rate(*real)? / rate(*synthetic)?, *real)));
    let (cost, real) = costs.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!(
        "by runs that were not repeated in turns the input pipeline costs {} of the speed ({}; 1 - \
         real / synthetic); `sweep.repeats: 3` separates it from noise",
        Fraction(cost.max(0.0)),
        points[real].name(axes)
    ))
}

/// Pairs of points that differ only in `data.synthetic`: with real data, and without.
fn synthetic_twins(points: &[Point<'_>], axes: &[String]) -> Option<Vec<(usize, usize)>> {
    let at = axes.iter().position(|axis| axis == Loader::SYNTHETIC)?;
    let others = |point: &Point<'_>| -> Vec<String> {
        point
            .values
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != at)
            .map(|(_, value)| value.clone())
            .collect()
    };
    let of = |value: &'static str| {
        (0..points.len()).filter(move |place| {
            points[*place]
                .values
                .get(at)
                .is_some_and(|found| found == value)
        })
    };
    let twin = |real: usize| {
        Some((
            real,
            of("true").find(|synthetic| others(&points[*synthetic]) == others(&points[real]))?,
        ))
    };
    Some(of("false").filter_map(twin).collect())
}
