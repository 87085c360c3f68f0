//! The two forms of the suite: short, and `KILN_FAULTS=long`.

/// Whether this is the long form.
pub(crate) fn is_long() -> bool {
    std::env::var_os("KILN_FAULTS").is_some_and(|form| form == "long")
}

/// One of two values, by the form.
pub(crate) fn by_form<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// Whether a case was asked for: all, or those whose name contains `$KILN_FAULTS_ONLY`.
pub(crate) fn is_wanted(case: &str) -> bool {
    std::env::var("KILN_FAULTS_ONLY").map_or(true, |text| case.contains(&text))
}
