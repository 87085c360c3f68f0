//! Series of any length that are kept short: what a line of a picture needs of them.

use super::MOST_MARKS;

/// Most points that are kept of a series; up to here all of them, and a line is made of all. Beyond,
/// each part of a line is made of 32 pieces or more, and ends less than one piece from where it would
/// if all points were kept.
const MOST_KEPT: usize = 64 * MOST_MARKS;

/// The points that stand for a piece of a series.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// Its mean position and mean value.
    Mean,
    /// Its smallest and its largest value, so that no peak is lost.
    Ends,
}

/// A series that is shortened while it grows.
#[derive(Clone, Debug)]
pub(super) struct LongSeries {
    piece: Piece,
    /// The points of whole pieces, in order.
    kept: Vec<(f64, f64)>,
    /// Number of points in a piece; 1 as long as all are kept.
    size: usize,
    /// The points since the last whole piece.
    newest: Vec<(f64, f64)>,
}

impl Piece {
    fn of(self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        match self {
            Self::Mean => vec![mean(points)],
            Self::Ends => ends(points),
        }
    }

    /// Number of points that stand for one.
    fn points(self) -> usize {
        match self {
            Self::Mean => 1,
            Self::Ends => 2,
        }
    }
}

impl LongSeries {
    /// Each part of the line is a mean.
    pub(super) fn of_means() -> Self {
        Self::of(Piece::Mean)
    }

    /// Each part of the line has its smallest and its largest value.
    pub(super) fn of_peaks() -> Self {
        Self::of(Piece::Ends)
    }

    fn of(piece: Piece) -> Self {
        Self {
            piece,
            kept: Vec::new(),
            size: 1,
            newest: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, at: (f64, f64)) {
        if self.kept.len() >= MOST_KEPT {
            self.halve();
        }
        if self.size == 1 {
            self.kept.push(at);
            return;
        }
        self.newest.push(at);
        if self.newest.len() == self.size {
            self.kept.extend(self.piece.of(&self.newest));
            self.newest.clear();
        }
    }

    /// Makes one piece of two.
    fn halve(&mut self) {
        let points = 2 * self.piece.points();
        let pieces = self.kept.chunks(points);
        self.kept = pieces.flat_map(|two| self.piece.of(two)).collect();
        self.size = (2 * self.size).max(points);
    }

    /// Whether it has more than one point.
    pub(super) fn is_line(&self) -> bool {
        self.kept.len() > 1
    }

    /// The points that are kept.
    pub(super) fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.kept.iter().chain(&self.newest)
    }

    /// Its line on a page.
    pub(super) fn marks(&self) -> Vec<(f64, f64)> {
        let mut all = self.kept.clone();
        if !self.newest.is_empty() {
            all.extend(self.piece.of(&self.newest));
        }
        match self.piece {
            Piece::Mean => averaged(&all, MOST_MARKS),
            Piece::Ends => enveloped(&all, MOST_MARKS),
        }
    }
}

/// Shortens a long series to `most` points: mean position and mean value of each part.
pub(super) fn averaged(series: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if series.len() <= most {
        return series.to_vec();
    }
    (0..most)
        .map(|place| mean(&series[series.len() * place / most..series.len() * (place + 1) / most]))
        .collect()
}

/// Shortens a long series: smallest and largest value of each part, so that no peak is lost.
pub(super) fn enveloped(series: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let pieces = most / 2;
    if series.len() <= most || pieces == 0 {
        return series.to_vec();
    }
    (0..pieces)
        .flat_map(|place| {
            ends(&series[series.len() * place / pieces..series.len() * (place + 1) / pieces])
        })
        .collect()
}

fn mean(piece: &[(f64, f64)]) -> (f64, f64) {
    let count = piece.len() as f64;
    (
        piece.iter().map(|at| at.0).sum::<f64>() / count,
        piece.iter().map(|at| at.1).sum::<f64>() / count,
    )
}

/// The points with the smallest and the largest value, in order.
fn ends(piece: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let least = piece
        .iter()
        .copied()
        .min_by(|one, other| one.1.total_cmp(&other.1));
    let largest = piece
        .iter()
        .copied()
        .max_by(|one, other| one.1.total_cmp(&other.1));
    let mut ends: Vec<(f64, f64)> = least.into_iter().chain(largest).collect();
    ends.sort_by(|one, other| one.0.total_cmp(&other.0));
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wave with a peak that few readings have.
    fn wave(points: usize) -> Vec<(f64, f64)> {
        let value = |place: usize| match place % 77_777 {
            0 => 500.0,
            _ => ((place * 7919) % 1000) as f64 / 8.0,
        };
        (0..points)
            .map(|place| (place as f64 * 0.5, value(place)))
            .collect()
    }

    fn both(points: &[(f64, f64)]) -> [LongSeries; 2] {
        let mut all = [LongSeries::of_means(), LongSeries::of_peaks()];
        for series in &mut all {
            points.iter().for_each(|at| series.push(*at));
        }
        all
    }

    #[test]
    fn up_to_the_most_that_is_kept_a_line_is_made_of_all_points() {
        for count in [0, 1, 2, 239, 240, 241, 7_201, MOST_KEPT] {
            let points = wave(count);
            let [means, peaks] = both(&points);
            assert_eq!(means.marks(), averaged(&points, MOST_MARKS), "{count}");
            assert_eq!(peaks.marks(), enveloped(&points, MOST_MARKS), "{count}");
            assert_eq!((means.is_line(), peaks.is_line()), (count > 1, count > 1));
        }
    }

    #[test]
    fn of_a_longer_series_little_is_kept_and_where_pieces_end_alike_the_line_is_the_same() {
        // Of 64 points each, 40 of which make one of the 120 parts of a line, and of 32 each.
        let points = wave(20 * MOST_KEPT);
        let [means, peaks] = both(&points);
        assert_eq!(peaks.marks(), enveloped(&points, MOST_MARKS));
        for ((x, y), at) in means.marks().iter().zip(averaged(&points, MOST_MARKS)) {
            // Another order of the same sum.
            assert!((x - at.0).abs() < 1e-6 && (y - at.1).abs() < 1e-9);
        }
        // Wherever a series ends, its newest points are there, and so are its peaks.
        for count in [MOST_KEPT + 1, 300_000, 300_001] {
            let points = wave(count);
            for series in both(&points) {
                let (kept, marks) = (series.points().count(), series.marks());
                assert!(kept <= MOST_KEPT + count / MOST_KEPT * 4, "{count}: {kept}");
                assert!(marks.len() == MOST_MARKS, "{count}: {}", marks.len());
            }
            let [means, peaks] = both(&points);
            let top = |marks: &[(f64, f64)]| marks.iter().filter(|at| at.1 == 500.0).count();
            assert_eq!(top(&peaks.marks()), count.div_ceil(77_777), "{count}");
            let newest = |series: &LongSeries| series.points().last().copied();
            assert!(newest(&means).unwrap().0 > 0.499 * count as f64);
            assert!(newest(&peaks).unwrap().0 > 0.499 * count as f64);
        }
    }
}
