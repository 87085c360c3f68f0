//! The absence of data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Content, Loader, kind::DataKind};

/// No keys: a model that makes its own input reads no data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoData {}

impl DataKind for NoData {
    fn kind(&self) -> &'static str {
        "none"
    }

    fn content(&self) -> Content {
        Content::Nothing
    }

    fn loader(&self) -> Option<&Loader> {
        None
    }

    fn loader_mut(&mut self) -> Option<&mut Loader> {
        None
    }
}
