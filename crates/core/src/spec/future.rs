//! Keys and values of features that do not exist yet: they are refused by name, so that kiln never
//! reads and ignores one.

/// Planned keys, each with an alternative for now.
const KEYS: &[(&str, &str)] = &[
    (
        "data.augment",
        "see `data.flip` and `data.crop_padding` of image kinds",
    ),
    ("model.checkpoint", "remove it"),
];

/// Planned values.
const VALUES: &[(&str, &[&str])] = &[
    ("train.precision", &["f16"]),
    ("train.learning_rate_schedule.kind", &["step"]),
];

/// Returns the message for a planned key.
pub(super) fn key(path: &str) -> Option<String> {
    let (_, instead) = KEYS.iter().find(|(key, _)| {
        *key == path
            || path
                .strip_prefix(key)
                .is_some_and(|rest| rest.starts_with('.'))
    })?;
    Some(format!(
        "`{path}` is not there yet in kiln {}; {instead}",
        env!("CARGO_PKG_VERSION")
    ))
}

/// Whether a value of a key is planned.
pub(super) fn value(path: &str, value: &str) -> bool {
    VALUES
        .iter()
        .any(|(key, values)| *key == path && values.contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{keys, shapes::KeyShape};

    #[test]
    fn what_is_there_is_not_called_missing() {
        for known in keys::every_key() {
            assert_eq!(key(&known.path), None);
            let kinds = |path: &str| {
                known
                    .kind
                    .iter()
                    .filter(|(at, _)| at == path)
                    .map(|(_, kind)| kind.clone())
                    .collect()
            };
            let keys::KeyLookup::Shapes(shapes) = keys::find(&known.path, &kinds) else {
                panic!("{}", known.path)
            };
            if let KeyShape::Choice(words) = &shapes[0] {
                assert!(
                    !words.iter().any(|word| value(&known.path, word)),
                    "{}",
                    known.path
                );
            }
        }
        assert!(key("model.checkpoint.every").is_some());
    }
}
