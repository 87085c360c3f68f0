//! The experiment file in a recorded command line.

/// The one experiment file that a command line names; `None` if it names none or several.
pub fn experiment_file(words: &[String]) -> Option<&str> {
    let is_file = |word: &&str| {
        let is_yaml = word.ends_with(".yaml") || word.ends_with(".yml");
        is_yaml && !word.starts_with('-') && !word.contains('=')
    };
    let mut files = words.iter().map(String::as_str).filter(is_file);
    let first = files.next()?;
    files.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_is_found_and_a_set_value_is_not_a_file() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            experiment_file(&words).map(str::to_owned)
        };
        let one = of("kiln run --set model.values.config=c.yaml a/x.yaml --fresh");
        assert_eq!(one.as_deref(), Some("a/x.yaml"));
        assert_eq!(of("kiln run x.yaml y.yaml"), None);
        assert_eq!(of("kiln reproduce latest"), None);
    }
}
