//! Products of vectors and 3 × 3 matrices.

pub(super) type Matrix = [[f64; 3]; 3];

/// The sum of the products of two vectors.
pub(super) fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// A matrix by row and column.
pub(super) fn matrix(of: impl Fn(usize, usize) -> f64) -> Matrix {
    [0, 1, 2].map(|row| [0, 1, 2].map(|column| of(row, column)))
}

/// The product of two matrices.
pub(super) fn multiplied(one: &Matrix, other: &Matrix) -> Matrix {
    matrix(|row, column| {
        (0..3)
            .map(|inner| one[row][inner] * other[inner][column])
            .sum()
    })
}

/// Trace of the product of two matrices.
pub(super) fn trace(one: &Matrix, other: &Matrix) -> f64 {
    (0..3)
        .map(|row| {
            (0..3)
                .map(|column| one[row][column] * other[column][row])
                .sum::<f64>()
        })
        .sum()
}

/// Inverts a matrix; `None` for a nearly singular one.
pub(super) fn inverted(of: &Matrix) -> Option<Matrix> {
    // The cofactor of a 3 × 3 matrix by cyclic indices has its sign already.
    let cofactor = |row: usize, column: usize| {
        let at = |down: usize, right: usize| of[(row + down) % 3][(column + right) % 3];
        at(1, 1) * at(2, 2) - at(1, 2) * at(2, 1)
    };
    let determinant: f64 = (0..3)
        .map(|column| of[0][column] * cofactor(0, column))
        .sum();
    let scale = of[0][0] * of[1][1] * of[2][2];
    (determinant > 1e-9 * scale.abs())
        .then(|| matrix(|row, column| cofactor(column, row) / determinant))
}
