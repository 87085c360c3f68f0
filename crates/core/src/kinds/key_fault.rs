//! The fault of a key, before its place in a file is known.

/// A wrong value of one key: of a model or data kind, of one point of a sweep, or of a whole
/// experiment. [`Problem`](crate::spec::Problem) adds the place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFault {
    /// Dotted key; within the section of a kind, in the faults of [`ModelKind`](super::ModelKind).
    pub key: String,
    /// Dotted keys, or sections, whose values decide the fault.
    pub involved: Vec<&'static str>,
    /// The fault, the allowed values, the remedy.
    pub message: String,
}

impl KeyFault {
    /// A fault that no other key decides.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            involved: Vec::new(),
            message: message.into(),
        }
    }

    /// A fault that the values of other keys, or sections, decide.
    pub fn between(
        key: impl Into<String>,
        involved: &[&'static str],
        message: impl Into<String>,
    ) -> Self {
        Self {
            involved: involved.to_vec(),
            ..Self::new(key, message)
        }
    }

    /// The same fault with its key inside a section.
    #[must_use]
    pub fn within(self, section: &str) -> Self {
        Self {
            key: format!("{section}.{}", self.key),
            ..self
        }
    }
}
