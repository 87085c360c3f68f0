//! Names of axes on the command line: in full, or by the last part, as the pages show them.

use kiln_core::units::listed;

/// The axis that a name means: the whole key, or an end of it that no other axis has.
pub(super) fn axis_named<'a>(axes: &'a [String], name: &str) -> Option<&'a str> {
    if let Some(own) = axes.iter().find(|axis| *axis == name) {
        return Some(own.as_str());
    }
    match ending_in(axes, name)[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// The refusal of a name that is the end of several axes, given for an option such as `--by`;
/// `None` for any other name.
pub(super) fn ambiguous(option: &str, axes: &[String], name: &str) -> Option<String> {
    let near = ending_in(axes, name);
    let near: Vec<String> = near.iter().map(|axis| format!("`{axis}`")).collect();
    (near.len() > 1).then(|| {
        format!(
            "`{option} {name}` is the end of several axes; name one of {}",
            listed(&near, ", ")
        )
    })
}

/// The axes whose last parts are this name.
fn ending_in<'a>(axes: &'a [String], name: &str) -> Vec<&'a str> {
    let ending = format!(".{name}");
    let all = axes.iter().map(String::as_str);
    all.filter(|axis| axis.ends_with(&ending)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unique_end_of_an_axis_means_it() {
        let axes = ["a.rate", "b.rate", "b.size", "size"].map(str::to_owned);
        for (name, axis) in [
            ("b.rate", Some("b.rate")),
            ("rate", None),
            ("size", Some("size")),
            ("b.size", Some("b.size")),
            ("ize", None),
        ] {
            assert_eq!(axis_named(&axes, name), axis, "{name}");
        }
        assert_eq!(axis_named(&axes[..3], "size"), Some("b.size"));
        assert_eq!(ending_in(&axes, "rate"), ["a.rate", "b.rate"]);
    }
}
