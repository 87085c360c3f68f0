//! The `config.json` beside a file of weights: settings of its model that no shape shows.

use std::path::Path;

use serde_json::Value;

use crate::{input, limits::STATE_BYTES};

/// The file beside weights that describes their model, of Hugging Face's and of an export.
const CONFIG: &str = "config.json";

/// What the file says against a model, and notices for the user.
#[derive(Debug, Default)]
pub(super) struct ConfigCheck {
    pub(super) fault: Option<String>,
    pub(super) notices: Vec<String>,
}

impl ConfigCheck {
    pub(super) fn of_fault(fault: String) -> Self {
        Self {
            fault: Some(fault),
            notices: Vec::new(),
        }
    }

    pub(super) fn of_notice(notice: String) -> Self {
        Self {
            fault: None,
            notices: vec![notice],
        }
    }
}

/// The `config.json` beside a file of weights, if there is one that can be read.
pub(super) fn beside(path: &Path) -> Option<Value> {
    let bytes = input::read(&path.with_file_name(CONFIG), &STATE_BYTES).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Whether it is that of an export, which describes a model of kiln's.
pub(super) fn is_of_export(config: &Value) -> bool {
    config.get("kiln_export").is_some()
}
