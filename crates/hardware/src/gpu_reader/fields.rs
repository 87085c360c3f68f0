//! Reads fields one by one, so that a failure affects one field, and a permanent failure is tried
//! only once.

use std::collections::{BTreeMap, BTreeSet};

use super::is_end;
use crate::{Absence, Reading};

/// Collects the values of one device's fields, and the reasons for missing ones.
pub(super) struct FieldReasons<'a> {
    /// Fields whose answer will not change.
    pub(super) lasting: &'a mut BTreeMap<&'static str, String>,
    /// Fields that have had a value: the device offers them, whatever it answers later.
    pub(super) offered: &'a mut BTreeSet<&'static str>,
    pub(super) absent: &'a mut BTreeMap<&'static str, String>,
    /// The device cannot be read any more.
    pub(super) ended: Option<Absence>,
}

impl FieldReasons<'_> {
    /// Asks for one field, unless it is known to be absent for good.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        ask: impl FnOnce() -> Reading<T>,
    ) -> Option<T> {
        if self.is_absent(name) || self.ended.is_some() {
            return None;
        }
        self.keep(name, ask())
    }

    /// Whether a field is known to be permanently absent; if so, its reason is reported again.
    pub(super) fn is_absent(&mut self, name: &'static str) -> bool {
        let Some(reason) = self.lasting.get(name) else {
            return false;
        };
        self.absent.insert(name, reason.clone());
        true
    }

    /// Takes in the answer for one field.
    pub(super) fn keep<T>(&mut self, name: &'static str, answer: Reading<T>) -> Option<T> {
        let absence = match answer {
            Reading::Value(value) => {
                self.offered.insert(name);
                return Some(value);
            }
            Reading::Absent(absence) => absence,
        };
        let reason = absence.to_string();
        if absence.is_lasting() && !self.offered.contains(name) {
            self.lasting.insert(name, reason.clone());
        }
        self.absent.insert(name, reason);
        if is_end(&absence) {
            self.ended = Some(absence);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_absence_is_asked_once_and_a_lost_device_ends_the_reading() {
        let (mut lasting, mut absent) = (BTreeMap::new(), BTreeMap::new());
        let mut fields = FieldReasons {
            lasting: &mut lasting,
            offered: &mut BTreeSet::new(),
            absent: &mut absent,
            ended: None,
        };
        assert_eq!(
            fields.read("fan", || Reading::<u8>::Absent(Absence::NotSupported)),
            None
        );
        assert_eq!(
            fields.read("fan", || -> Reading<u8> { panic!("it was asked again") }),
            None
        );
        assert_eq!(
            fields.read("clock", || Reading::<u8>::Absent(Absence::Code(999))),
            None
        );
        assert_eq!(fields.read("clock", || Reading::Value(7)), Some(7));
        assert_eq!(
            fields.read("power", || Reading::<u8>::Absent(Absence::Lost)),
            None
        );
        assert_eq!(fields.ended, Some(Absence::Lost));
        assert_eq!(
            fields.read("clock", || -> Reading<u8> {
                panic!("a lost device was asked")
            }),
            None
        );
        assert_eq!(absent["fan"], "not supported by this device");
    }

    #[test]
    fn a_field_that_has_had_a_value_is_asked_again_whatever_it_answers() {
        let (mut lasting, mut absent) = (BTreeMap::new(), BTreeMap::new());
        let mut fields = FieldReasons {
            lasting: &mut lasting,
            offered: &mut BTreeSet::new(),
            absent: &mut absent,
            ended: None,
        };
        let mut ask = |answer: Reading<u8>| fields.read("utilization", || answer);
        assert_eq!(
            [
                ask(Reading::Value(4)),
                ask(Reading::Absent(Absence::NotSupported)),
                ask(Reading::Absent(Absence::NoPermission)),
                ask(Reading::Value(5)),
            ],
            [Some(4), None, None, Some(5)]
        );
        assert!(lasting.is_empty());
        assert_eq!(absent["utilization"], "this user may not read it");
    }
}
