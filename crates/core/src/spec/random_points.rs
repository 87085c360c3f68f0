//! `sweep.sample`: the section; [`random_rows`](super::random_rows) makes its points.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Random points, crossed with the grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomPoints {
    /// Number of points; the first points of a larger number are those of a smaller one.
    #[schemars(range(min = 1, max = 100_000))]
    pub count: u64,
    /// Seed of the random values.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 4_294_967_295_u64))]
    pub seed: u64,
    /// The axes: `{from, to, scale}` for numbers of an interval, or a list of which each value is
    /// equally likely.
    pub axes: Map<String, Value>,
}

fn one() -> u64 {
    1
}
