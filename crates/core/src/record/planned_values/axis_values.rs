//! The values of one axis.

use std::collections::HashSet;

use serde_json::Value;

use crate::{kinds::text_of, record::difference::is_same};

#[derive(Debug, Default)]
pub(super) struct AxisValues {
    pub(super) values: Vec<Value>,
    /// The values as a table prints them.
    texts: HashSet<String>,
    /// Whether a point may have another value.
    is_open: bool,
}

impl AxisValues {
    pub(super) fn of<'v>(values: impl Iterator<Item = &'v Value>) -> Self {
        let mut all = Self::default();
        for value in values {
            all.add(value);
        }
        all
    }

    fn add(&mut self, value: &Value) {
        if self.texts.insert(text_of(value)) {
            self.values.push(value.clone());
        }
    }

    /// Adds the value of points that keep the file's; `None`: it is not known.
    pub(super) fn add_base(&mut self, base: Option<Value>) {
        match base {
            Some(value) => self.add(&value),
            None => self.is_open = true,
        }
    }

    /// Whether points have several values.
    pub(super) fn is_varied(&self) -> bool {
        self.values.len() + usize::from(self.is_open) > 1
    }

    pub(super) fn has(&self, cell: &str) -> bool {
        self.is_open || self.texts.contains(cell) || self.equal(cell).is_some()
    }

    /// The value that equals this cell: another kiln, or an editor, may have printed it in another
    /// form.
    fn equal(&self, cell: &str) -> Option<&Value> {
        let read: Value = serde_json::from_str(cell).ok()?;
        let is_equal = |value: &&Value| match (value.as_f64(), read.as_f64()) {
            (Some(value), Some(read)) => value.to_bits() == read.to_bits(),
            _ => is_same(value, &read),
        };
        self.values.iter().find(is_equal)
    }

    /// The text of the value that this cell has in another form.
    pub(super) fn own_form(&self, cell: &str) -> Option<String> {
        match self.texts.contains(cell) {
            true => None,
            false => self.equal(cell).map(text_of),
        }
    }
}
