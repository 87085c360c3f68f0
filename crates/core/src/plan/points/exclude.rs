//! Drops the points that an entry of `exclude` matches.
//!
//! An entry matches if each of its keys does. Comparing every entry with every point would take
//! minutes for thousands of each: instead, each value of an axis knows the entries that it does not
//! rule out, as bits, and the entries that match a point are what its values have in common.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{AxisValues, Place};
use crate::plan::{
    condition::Condition,
    problem::{PlanProblem, PointProblems},
    settings::{Chosen, is_changed_by},
};

/// The entries of `exclude`, each as the conditions on its keys.
pub(super) struct Exclusion {
    entries: Vec<Vec<KeyCondition>>,
}

/// A key, and the condition on its value.
type KeyCondition = (String, Condition);
/// An entry with its index.
type NumberedEntry = (usize, Vec<KeyCondition>);

/// Entries that are matched at once, 64 per word: it bounds the memory of axes with many values.
const WORDS: usize = 16;
/// One bit per entry.
type EntryBits = [u64; WORDS];

impl Exclusion {
    /// Reads the conditions; a text that is not one is a problem.
    pub(super) fn read(exclude: &[Map<String, Value>], problems: &mut PointProblems) -> Self {
        let mut entries = Vec::new();
        for (index, entry) in exclude.iter().enumerate() {
            let mut conditions = Vec::new();
            for (key, asked) in entry {
                match Condition::read(asked) {
                    Ok(condition) => conditions.push((key.clone(), condition)),
                    Err(message) => problems.add(PlanProblem::of_sweep(
                        format!("sweep.exclude[{index}].{key}"),
                        message,
                    )),
                }
            }
            entries.push(conditions);
        }
        Self { entries }
    }

    /// Removes the places that an entry matches, and returns the entries that match none, by
    /// their index. `value_at` returns the value of a key that is not an axis at a point with these
    /// choices.
    pub(super) fn drop_from(
        self,
        places: &mut Vec<Place>,
        axes: &[AxisValues<'_>],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
    ) -> Vec<usize> {
        let mut matching = Matching::new(axes, places.len(), self.entries.len());
        let (one_by_one, by_axes): (Vec<NumberedEntry>, Vec<NumberedEntry>) = self
            .entries
            .into_iter()
            .enumerate()
            .partition(|(_, entry)| matching.has_dependent_key(entry));
        matching.one_by_one(&one_by_one, places, value_at);
        let by_axes: Vec<NumberedEntry> = by_axes
            .into_iter()
            .filter(|(_, entry)| matching.may_match(entry, value_at))
            .collect();
        matching.by_axes(&by_axes, places);
        let mut is_kept = matching.is_kept.into_iter();
        places.retain(|_| is_kept.next().unwrap_or(true));
        let entries = matching.is_unmatched.into_iter().enumerate();
        entries
            .filter_map(|(entry, is_unmatched)| is_unmatched.then_some(entry))
            .collect()
    }
}

/// The places and the entries that match each other so far.
struct Matching<'a> {
    axes: &'a [AxisValues<'a>],
    /// The index of an axis, by its key.
    axis_of: HashMap<&'a str, usize>,
    /// By place, whether no entry matches it.
    is_kept: Vec<bool>,
    /// By entry, whether it matches no place.
    is_unmatched: Vec<bool>,
}

impl<'a> Matching<'a> {
    fn new(axes: &'a [AxisValues<'a>], places: usize, entries: usize) -> Self {
        let keys = axes.iter().enumerate();
        Self {
            axes,
            axis_of: keys.map(|(axis, (key, _))| (key.as_str(), axis)).collect(),
            is_kept: vec![true; places],
            is_unmatched: vec![true; entries],
        }
    }

    /// Whether a key of the entry is not an axis, and changes with one.
    fn has_dependent_key(&self, entry: &[KeyCondition]) -> bool {
        entry.iter().any(|(key, _)| {
            !self.axis_of.contains_key(key.as_str())
                && self.axes.iter().any(|(axis, _)| is_changed_by(key, axis))
        })
    }

    /// Whether the keys that are not axes have the values that the entry asks for. They do not vary,
    /// so they decide for all points at once.
    fn may_match(
        &self,
        entry: &[KeyCondition],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
    ) -> bool {
        entry.iter().all(|(key, condition)| {
            self.axis_of.contains_key(key.as_str()) || condition.matches(&value_at(key, &[]))
        })
    }

    /// Compares each entry with each place.
    fn one_by_one(
        &mut self,
        entries: &[NumberedEntry],
        places: &[Place],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
    ) {
        let known = self.values_of_keys(entries, places, value_at);
        for (index, entry) in entries {
            for (number, (place, is_kept)) in places.iter().zip(&mut self.is_kept).enumerate() {
                let holds = |(key, condition): &KeyCondition| {
                    let value = match self.axis_of.get(key.as_str()) {
                        Some(axis) => &self.axes[*axis].1[place[*axis] as usize],
                        None => &known[key.as_str()][number],
                    };
                    condition.matches(value)
                };
                if entry.iter().all(holds) {
                    (*is_kept, self.is_unmatched[*index]) = (false, false);
                }
            }
        }
    }

    /// The values of the keys that are not axes, at each place. Each is found once: most entries
    /// share theirs.
    fn values_of_keys<'e>(
        &self,
        entries: &'e [NumberedEntry],
        places: &[Place],
        value_at: &impl Fn(&str, &Chosen<'_>) -> Value,
    ) -> HashMap<&'e str, Vec<Value>> {
        let axes = self.axes;
        let at_each_place = |key: &str| -> Vec<Value> {
            let chosen = |place: &Place| -> Vec<(&str, &Value)> {
                let axes = axes.iter().zip(place);
                axes.map(|((key, values), at)| (key.as_str(), &values[*at as usize]))
                    .collect()
            };
            let values = places.iter().map(|place| value_at(key, &chosen(place)));
            values.collect()
        };
        let mut known: HashMap<&str, Vec<Value>> = HashMap::new();
        for (key, _) in entries.iter().flat_map(|(_, entry)| entry) {
            if !self.axis_of.contains_key(key.as_str()) {
                known.entry(key).or_insert_with(|| at_each_place(key));
            }
        }
        known
    }

    /// Compares many entries at once with each place, by the values of the axes.
    fn by_axes(&mut self, entries: &[NumberedEntry], places: &[Place]) {
        let axes = self.axes;
        let values: Vec<ValueIndex<'_>> = axes
            .iter()
            .map(|(_, values)| ValueIndex::of(values))
            .collect();
        for entries in entries.chunks(64 * WORDS) {
            let possible: Vec<Vec<EntryBits>> = values
                .iter()
                .enumerate()
                .map(|(axis, values)| {
                    values.possible(entries.iter().map(|(_, entry)| {
                        let of_axis = entry
                            .iter()
                            .find(|(key, _)| self.axis_of.get(key.as_str()) == Some(&axis));
                        of_axis.map(|(_, condition)| condition)
                    }))
                })
                .collect();
            let matched = self.drop_matched(places, &possible, first_bits(entries.len()));
            for (bit, (entry, _)) in entries.iter().enumerate() {
                self.is_unmatched[*entry] = !is_set(&matched, bit);
            }
        }
    }

    /// Drops the places that one of `all` entries matches, and returns the entries that match one.
    /// `possible` has the entries that each value of each axis leaves possible.
    fn drop_matched(
        &mut self,
        places: &[Place],
        possible: &[Vec<EntryBits>],
        all: EntryBits,
    ) -> EntryBits {
        let mut matched = [0; WORDS];
        for (place, is_kept) in places.iter().zip(&mut self.is_kept) {
            let mut left = all;
            for (axis, index) in possible.iter().zip(place) {
                left.iter_mut()
                    .zip(&axis[*index as usize])
                    .for_each(|(left, possible)| *left &= possible);
            }
            *is_kept &= left.iter().all(|word| *word == 0);
            matched
                .iter_mut()
                .zip(left)
                .for_each(|(matched, left)| *matched |= left);
        }
        matched
    }
}

/// The bits of so many entries.
fn first_bits(count: usize) -> EntryBits {
    let mut bits = [0; WORDS];
    (0..count).for_each(|entry| set(&mut bits, entry));
    bits
}

fn set(bits: &mut EntryBits, entry: usize) {
    bits[entry / 64] |= 1 << (entry % 64);
}

fn is_set(bits: &EntryBits, entry: usize) -> bool {
    bits[entry / 64] & (1 << (entry % 64)) != 0
}

/// The values of an axis, to be found by what they equal.
struct ValueIndex<'a> {
    values: &'a [Value],
    numbers: Vec<Option<f64>>,
    equal: HashMap<String, Vec<usize>>,
}

impl<'a> ValueIndex<'a> {
    fn of(values: &'a [Value]) -> Self {
        let mut equal: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, value) in values.iter().enumerate() {
            equal
                .entry(Condition::identity(value))
                .or_default()
                .push(index);
        }
        Self {
            values,
            numbers: values.iter().map(Value::as_f64).collect(),
            equal,
        }
    }

    /// For each value the entries whose condition on this axis it fulfils; an entry without a
    /// condition on it is possible for all.
    fn possible<'c>(
        &self,
        conditions: impl Iterator<Item = Option<&'c Condition>>,
    ) -> Vec<EntryBits> {
        let mut free = [0; WORDS];
        let mut bits = vec![[0; WORDS]; self.values.len()];
        for (entry, condition) in conditions.enumerate() {
            match condition {
                None => set(&mut free, entry),
                Some(Condition::Equals(asked)) => {
                    let equal = self.equal.get(&Condition::identity(asked));
                    equal
                        .into_iter()
                        .flatten()
                        .for_each(|index| set(&mut bits[*index], entry));
                }
                Some(Condition::Compares(operator, number)) => {
                    for (found, bits) in self.numbers.iter().zip(&mut bits) {
                        let ordering = found.and_then(|found| found.partial_cmp(number));
                        if ordering.is_some_and(|ordering| operator.holds(ordering)) {
                            set(bits, entry);
                        }
                    }
                }
            }
        }
        for bits in &mut bits {
            bits.iter_mut()
                .zip(free)
                .for_each(|(bits, free)| *bits |= free);
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use serde_json::json;

    use super::*;

    /// A value or a condition of a few, so that many match.
    fn any(random: &mut Rng, conditions: bool) -> Value {
        let values = [
            json!(1),
            json!(1.0),
            json!(2),
            json!(-3.5),
            json!("auto"),
            json!(true),
            json!(null),
            json!({"a": 1, "b": 2}),
            json!({"b": 2, "a": 1}),
            json!([1, 2]),
        ];
        let asked = [json!(">1"), json!("<=2"), json!("!=1"), json!("==1")];
        match conditions && random.bool() {
            true => asked[random.usize(..asked.len())].clone(),
            false => values[random.usize(..values.len())].clone(),
        }
    }

    #[test]
    fn bits_drop_the_points_that_comparing_one_by_one_drops() {
        let mut random = Rng::with_seed(1);
        let mut dropped = 0;
        for _ in 0..300 {
            let names = ["a", "b", "c", "fixed"].map(str::to_owned);
            let lists: Vec<Vec<Value>> = (0..3)
                .map(|_| {
                    (0..random.usize(1..6))
                        .map(|_| any(&mut random, false))
                        .collect()
                })
                .collect();
            let axes: Vec<AxisValues<'_>> =
                names.iter().zip(lists.iter().map(Vec::as_slice)).collect();
            let entry = |random: &mut Rng| -> Map<String, Value> {
                let mut entry = Map::new();
                for name in &names {
                    if random.bool() {
                        entry.insert(name.clone(), any(random, true));
                    }
                }
                entry
            };
            let count = random.usize(..2 * 64 * WORDS / 100);
            let exclude: Vec<Map<String, Value>> = (0..count)
                .map(|_| entry(&mut random))
                .filter(|entry| entry.len() > 1)
                .collect();
            let value_at = |_: &str, _: &Chosen<'_>| json!(1);
            let mut places = super::super::product(&axes, 0, 1);
            let all = places.clone();
            let mut problems = PointProblems::default();
            let unmatched =
                Exclusion::read(&exclude, &mut problems).drop_from(&mut places, &axes, &value_at);
            let matches = |place: &Place, entry: &Map<String, Value>| {
                entry.iter().all(|(key, asked)| {
                    let axis = names.iter().position(|name| name == key).unwrap();
                    let found = lists
                        .get(axis)
                        .map_or(json!(1), |values| values[place[axis] as usize].clone());
                    Condition::read(asked).unwrap().matches(&found)
                })
            };
            let kept: Vec<Place> = all
                .iter()
                .filter(|place| !exclude.iter().any(|entry| matches(place, entry)))
                .cloned()
                .collect();
            let matching = |entry: &Map<String, Value>| all.iter().any(|at| matches(at, entry));
            let found: Vec<usize> = (0..exclude.len())
                .filter(|index| !matching(&exclude[*index]))
                .collect();
            assert_eq!(unmatched, found, "{exclude:?}");
            dropped += all.len() - kept.len();
            assert_eq!(places, kept, "{exclude:?}");
        }
        assert!(dropped > 1000, "{dropped}: the entries match too little");
    }

    #[test]
    fn entries_beyond_one_piece_count_too() {
        let name = "a".to_owned();
        let values: Vec<Value> = (0..3000).map(|number| json!(number)).collect();
        let axes = [(&name, values.as_slice())];
        let exclude: Vec<Map<String, Value>> = (0..2999)
            .map(|number| Map::from_iter([("a".to_owned(), json!(number))]))
            .collect();
        let mut places = super::super::product(&axes, 0, 1);
        let unmatched = Exclusion::read(&exclude, &mut PointProblems::default()).drop_from(
            &mut places,
            &axes,
            &|_: &str, _: &Chosen<'_>| Value::Null,
        );
        assert_eq!(places, [[2999]]);
        assert!(unmatched.is_empty(), "{unmatched:?}");
    }
}
