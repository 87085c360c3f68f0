//! The answer to a call at one moment. Input: a value of the scenario, perhaps one that changes.
//! Output: a plain value, a return code, or a delay.
//!
//! An object with one of these keys changes: `ramp` and `steps` with time, `counter` and `integral`
//! with time as counters do, `calls` from call to call, `once` when a file appears. `return` is an
//! NVML return code, `hang` never comes back, `sleep_milliseconds` comes late.

use std::path::Path;

use serde_json::{Map, Value};

/// The moment of a call.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Since `nvmlInit`.
    pub seconds: f64,
    /// Number of earlier calls with the same question.
    pub asked: usize,
    /// Other calls of the same device, for `integral`.
    pub others: Option<&'a std::collections::BTreeMap<String, Value>>,
    /// Folder of the files of `once`.
    pub folder: Option<&'a Path>,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Value(Value),
    Code(u32),
    Hang,
    Late {
        milliseconds: u64,
        then: Box<Answer>,
    },
}

/// Step of the sum behind `integral`, in seconds.
const INTEGRAL_STEP: f64 = 0.01;

/// The current meaning of `value`.
#[must_use]
pub fn answer(value: &Value, now: Moment<'_>) -> Answer {
    let plain = resolve(value, now);
    let Value::Object(object) = &plain else {
        return Answer::Value(plain);
    };
    if let Some(code) = object.get("return").and_then(Value::as_u64) {
        return Answer::Code(u32::try_from(code).unwrap_or(crate::code::UNKNOWN));
    }
    if object.get("hang").and_then(Value::as_bool) == Some(true) {
        return Answer::Hang;
    }
    if let Some(milliseconds) = object.get("sleep_milliseconds").and_then(Value::as_u64) {
        let then = object
            .get("then")
            .map_or(Answer::Code(0), |then| answer(then, now));
        return Answer::Late {
            milliseconds,
            then: Box::new(then),
        };
    }
    Answer::Value(plain)
}

/// The value with everything that changes put in its present state, members of objects included.
fn resolve(value: &Value, now: Moment<'_>) -> Value {
    let Value::Object(object) = value else {
        return value.clone();
    };
    if let Some(points) = object.get("ramp") {
        return ramp(points, now.seconds).map_or(Value::Null, whole);
    }
    if let Some(steps) = object.get("steps") {
        return resolve(step(steps, now.seconds), now);
    }
    if let Some(list) = object.get("calls").and_then(Value::as_array) {
        return list
            .get(now.asked)
            .or(list.last())
            .map_or(Value::Null, |chosen| resolve(chosen, now));
    }
    if let Some(file) = object.get("once").and_then(Value::as_str) {
        let is_there = now.folder.is_some_and(|folder| folder.join(file).exists());
        let chosen = object.get(if is_there { "then" } else { "before" });
        return chosen.map_or(Value::Null, |chosen| resolve(chosen, now));
    }
    if let Some(counter) = object.get("counter") {
        return whole(counted(counter, now.seconds, |seconds| {
            number(counter, "rate") * seconds
        }));
    }
    if let Some(integral) = object.get("integral") {
        return whole(counted(integral, now.seconds, |seconds| {
            summed(integral, seconds, now)
        }));
    }
    Value::Object(
        object
            .iter()
            .map(|(key, member)| (key.clone(), resolve(member, now)))
            .collect::<Map<_, _>>(),
    )
}

/// `start` and what `grown` says for the time since the start; since `reset_at`, or again and again
/// after `reset_every`, it counts from 0.
fn counted(counter: &Value, seconds: f64, grown: impl Fn(f64) -> f64) -> f64 {
    if let Some(period) = counter
        .get("reset_every")
        .and_then(Value::as_f64)
        .filter(|period| *period > 0.0)
    {
        return grown(seconds) - grown((seconds / period).floor() * period);
    }
    match counter.get("reset_at").and_then(Value::as_f64) {
        Some(reset) if seconds >= reset => grown(seconds) - grown(reset),
        _ => number(counter, "start") + grown(seconds),
    }
}

/// The sum of another call's values over time, such as power (mW) to energy (mJ).
fn summed(integral: &Value, seconds: f64, now: Moment<'_>) -> f64 {
    let name = integral
        .get("of")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let Some(of) = now.others.and_then(|calls| calls.get(name)) else {
        return 0.0;
    };
    // A ramp is not rounded here: half a unit at each step would add up.
    let at = |seconds: f64| match of.get("ramp") {
        Some(points) => ramp(points, seconds).unwrap_or(0.0),
        None => resolve(of, Moment { seconds, ..now })
            .as_f64()
            .unwrap_or(0.0),
    };
    if !of.is_object() {
        return at(0.0) * seconds;
    }
    let steps = (seconds / INTEGRAL_STEP).floor();
    let whole_steps: f64 = (0..steps as u64)
        .map(|step| at((step as f64 + 0.5) * INTEGRAL_STEP) * INTEGRAL_STEP)
        .sum();
    let rest = seconds - steps * INTEGRAL_STEP;
    whole_steps + at(seconds - rest / 2.0) * rest
}

/// Between two points `[seconds, value]` on a straight line; before the first and after the last,
/// theirs.
fn ramp(points: &Value, seconds: f64) -> Option<f64> {
    let points: Vec<(f64, f64)> = pairs(points)
        .filter_map(|(at, value)| Some((at, value.as_f64()?)))
        .collect();
    let after = points.partition_point(|(at, _)| *at <= seconds);
    match (
        after.checked_sub(1).and_then(|before| points.get(before)),
        points.get(after),
    ) {
        (Some((start, from)), Some((end, to))) => {
            Some(from + (to - from) * (seconds - start) / (end - start))
        }
        (Some((_, value)), None) | (None, Some((_, value))) => Some(*value),
        (None, None) => None,
    }
}

/// The value of the last pair `[seconds, value]` whose time has come.
fn step(steps: &Value, seconds: f64) -> &Value {
    let mut chosen = &Value::Null;
    for (index, (at, value)) in pairs(steps).enumerate() {
        if index == 0 || at <= seconds {
            chosen = value;
        }
    }
    chosen
}

fn pairs(list: &Value) -> impl Iterator<Item = (f64, &Value)> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|pair| Some((pair.get(0)?.as_f64()?, pair.get(1)?)))
}

fn number(object: &Value, key: &str) -> f64 {
    object.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

/// NVML's numbers are whole.
fn whole(number: f64) -> Value {
    let rounded = number.round();
    if rounded < 0.0 {
        Value::from(rounded as i64)
    } else {
        Value::from(rounded as u64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn at(value: &Value, seconds: f64) -> Answer {
        answer(
            value,
            Moment {
                seconds,
                asked: 0,
                others: None,
                folder: None,
            },
        )
    }

    #[test]
    fn ramps_and_steps_follow_time() {
        let ramp = json!({"ramp": [[1, 40], [11, 90]]});
        for (seconds, celsius) in [(0.0, 40), (1.0, 40), (6.0, 65), (11.0, 90), (99.0, 90)] {
            assert_eq!(
                at(&ramp, seconds),
                Answer::Value(json!(celsius)),
                "at {seconds}"
            );
        }
        let steps = json!({"steps": [[0, 1], [5, {"return": 15}]]});
        assert_eq!(
            (at(&steps, 4.9), at(&steps, 5.0)),
            (Answer::Value(json!(1)), Answer::Code(15))
        );
    }

    #[test]
    fn calls_follow_each_other_and_the_last_stays() {
        let calls = json!({"calls": [[1], [1, 2]]});
        let asked = |asked| {
            answer(
                &calls,
                Moment {
                    seconds: 0.0,
                    asked,
                    others: None,
                    folder: None,
                },
            )
        };
        assert_eq!(
            (asked(0), asked(1), asked(7)),
            (
                Answer::Value(json!([1])),
                Answer::Value(json!([1, 2])),
                Answer::Value(json!([1, 2]))
            )
        );
    }

    #[test]
    fn a_counter_restarts_from_zero() {
        let counter = json!({"counter": {"start": 1000, "rate": 100, "reset_at": 5}});
        assert_eq!(
            (at(&counter, 4.0), at(&counter, 5.0), at(&counter, 7.0)),
            (
                Answer::Value(json!(1400)),
                Answer::Value(json!(0)),
                Answer::Value(json!(200))
            )
        );
        let saw = json!({"counter": {"rate": 100, "reset_every": 2}});
        assert_eq!(
            (at(&saw, 1.5), at(&saw, 2.5)),
            (Answer::Value(json!(150)), Answer::Value(json!(50)))
        );
    }

    #[test]
    fn energy_is_the_integral_of_power() {
        let others = BTreeMap::from([("power".to_owned(), json!({"ramp": [[0, 0], [10, 1000]]}))]);
        let energy = json!({"integral": {"of": "power", "start": 7}});
        let now = Moment {
            seconds: 10.0,
            asked: 0,
            others: Some(&others),
            folder: None,
        };
        let Answer::Value(value) = answer(&energy, now) else {
            unreachable!()
        };
        assert_eq!(value, json!(5007));
    }

    #[test]
    fn members_of_objects_change_too() {
        let memory = json!({"total": 100, "used": {"ramp": [[0, 10], [10, 30]]}});
        assert_eq!(
            at(&memory, 5.0),
            Answer::Value(json!({"total": 100, "used": 20}))
        );
    }

    #[test]
    fn an_answer_changes_once_a_file_is_there() {
        let folder = std::env::temp_dir().join(format!("fake-nvml-once-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let now = Moment {
            seconds: 0.0,
            asked: 0,
            others: None,
            folder: Some(&folder),
        };
        let celsius = json!({"once": "changed", "before": 61, "then": {"return": 15}});
        assert_eq!(answer(&celsius, now), Answer::Value(json!(61)));
        std::fs::write(folder.join("changed"), "").unwrap();
        assert_eq!(
            (answer(&celsius, now), at(&celsius, 0.0)),
            (Answer::Code(15), Answer::Value(json!(61)))
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_hang_and_a_late_answer_are_told_apart() {
        assert_eq!(at(&json!({"hang": true}), 0.0), Answer::Hang);
        assert_eq!(
            at(&json!({"sleep_milliseconds": 5, "then": 8}), 0.0),
            Answer::Late {
                milliseconds: 5,
                then: Box::new(Answer::Value(json!(8)))
            }
        );
    }
}
