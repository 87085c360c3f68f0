//! The two forms of the suite: short, which people run, and long, which CI runs. The same tests in
//! both; only counts, cases and seconds differ, so that no test exists that nobody runs.

/// Whether this is the long form: `KILN_TESTS=long`.
pub(crate) fn is_long() -> bool {
    std::env::var_os("KILN_TESTS").is_some_and(|form| form == "long")
}

/// One of two values, by the form.
pub(crate) fn by_form<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}
