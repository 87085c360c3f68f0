//! The wrapper's errors, and NVML's return codes in raw calls, as reasons why a reading is absent.

use nvml_wrapper::error::NvmlError;

use crate::{Absence, Reading, deadline::count_answer};

/// Converts the result of a call of the wrapper into a reading.
pub(crate) fn reading_of<T>(result: Result<T, NvmlError>) -> Reading<T> {
    count_answer();
    match result {
        Ok(value) => Reading::Value(value),
        Err(error) => Reading::Absent(absence(&error)),
    }
}

/// The reason in an error of the wrapper. Codes 23 to 30 are newer than its names.
pub(crate) fn absence(error: &NvmlError) -> Absence {
    match error {
        NvmlError::NotSupported => Absence::NotSupported,
        NvmlError::NoPermission => Absence::NoPermission,
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => Absence::NoSymbol,
        NvmlError::NotFound => Absence::NotFound,
        NvmlError::GpuLost => Absence::Lost,
        NvmlError::Uninitialized => Absence::Code(1),
        NvmlError::InvalidArg => Absence::Code(2),
        NvmlError::InsufficientPower => Absence::Code(8),
        NvmlError::DriverNotLoaded => Absence::Code(9),
        NvmlError::Timeout => Absence::Code(10),
        NvmlError::IrqIssue => Absence::Code(11),
        NvmlError::LibraryNotFound => Absence::Code(12),
        NvmlError::CorruptedInfoROM => Absence::Code(14),
        NvmlError::ResetRequired => Absence::Code(16),
        NvmlError::OperatingSystem => Absence::Code(17),
        NvmlError::LibRmVersionMismatch => Absence::Code(18),
        NvmlError::InUse => Absence::Code(19),
        NvmlError::InsufficientMemory => Absence::Code(20),
        NvmlError::NoData => Absence::Code(21),
        NvmlError::Unknown => Absence::Code(999),
        NvmlError::UnexpectedVariant(code) => Absence::of_code(*code),
        other => Absence::Other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_without_a_name_keep_their_number() {
        assert_eq!(
            absence(&NvmlError::UnexpectedVariant(27)).to_string(),
            "not ready (NVML error 27)"
        );
        assert_eq!(
            absence(&NvmlError::UnexpectedVariant(77)).to_string(),
            "NVML error 77"
        );
        assert_eq!(
            absence(&NvmlError::UnexpectedVariant(26)),
            Absence::Deprecated
        );
    }

    #[test]
    fn only_answers_that_cannot_change_are_lasting() {
        assert!(absence(&NvmlError::NotSupported).is_lasting());
        assert!(
            !absence(&NvmlError::Unknown).is_lasting()
                && !absence(&NvmlError::GpuLost).is_lasting()
        );
    }
}
