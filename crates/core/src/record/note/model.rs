//! The note on a model that is not the planned one.

use std::fmt;

/// A program has built another model than the planned one; a note on the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherModel {
    /// Parameters of the model that was built.
    pub parameters: u64,
    pub planned: u64,
}

impl OtherModel {
    /// The column that it is about.
    pub const COLUMN: &str = "parameters";

    /// `None` if the numbers agree, or one is unknown.
    pub fn between(parameters: Option<u64>, planned: Option<u64>) -> Option<Self> {
        let (parameters, planned) = parameters.zip(planned)?;
        (parameters != planned).then_some(Self {
            parameters,
            planned,
        })
    }
}

impl fmt::Display for OtherModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            parameters,
            planned,
        } = self;
        write!(
            f,
            "{parameters}, and the plan has {planned}: not the same model"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_parameters_is_another_model() {
        let told = |parameters, planned| {
            OtherModel::between(parameters, planned).map(|other| other.to_string())
        };
        assert_eq!(
            told(Some(1234), Some(4160)).as_deref(),
            Some("1234, and the plan has 4160: not the same model")
        );
        assert_eq!(told(Some(7), Some(7)), None);
        assert_eq!((told(None, Some(7)), told(Some(7), None)), (None, None));
    }
}
