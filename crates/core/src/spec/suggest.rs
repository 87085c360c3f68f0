//! Finds the nearest allowed word for "did you mean" hints.

/// The allowed word nearest to `word`, if it is near enough to be a typing error.
pub fn nearest<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let far = (word.chars().count() / 3).max(1);
    allowed
        .into_iter()
        .map(|candidate| {
            (
                strsim::osa_distance(&word, &candidate.to_lowercase().replace('-', "_")),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns `; did you mean `x`?`, or an empty text.
pub(super) fn did_you_mean<'a>(word: &str, allowed: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, allowed)
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

/// `` `a`, `b` and `c` ``.
pub(super) fn listed<S: AsRef<str>>(words: &[S], last: &str) -> String {
    let quoted: Vec<String> = words
        .iter()
        .map(|word| format!("`{}`", word.as_ref()))
        .collect();
    match quoted.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        Some((end, _)) => end.clone(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word_and_strangers_find_none() {
        assert_eq!(
            nearest("leaning_rate", ["learning_rate", "momentum"]),
            Some("learning_rate")
        );
        assert_eq!(
            nearest("batch-size", ["batch_size", "seed"]),
            Some("batch_size")
        );
        assert_eq!(nearest("colour", ["batch_size", "seed"]), None);
        assert_eq!(listed(&["a", "b", "c"], "or"), "`a`, `b` or `c`");
    }
}
