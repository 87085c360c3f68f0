//! A reading of the machine: a value, or the reason why there is none.

use std::fmt;

/// One thing read from the machine. Absent is never 0: an absent reading becomes an empty cell with this reason beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading<T> {
    Value(T),
    Absent(String),
}

impl<T> Reading<T> {
    pub fn absent(reason: impl fmt::Display) -> Self {
        Self::Absent(reason.to_string())
    }

    /// A value that some source did not have.
    pub fn or_absent(value: Option<T>, reason: impl fmt::Display) -> Self {
        value.map_or_else(|| Self::absent(reason), Self::Value)
    }

    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Value(_) => None,
            Self::Absent(reason) => Some(reason),
        }
    }

    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(change(value)),
            Self::Absent(reason) => Reading::Absent(reason),
        }
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Reading<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(error) => Self::absent(error),
        }
    }
}
