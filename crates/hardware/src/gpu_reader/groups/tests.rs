use super::*;

#[test]
fn a_counter_that_wrapped_or_was_not_there_gives_no_rate() {
    let wide = |value| Some(FieldValue::Unsigned(value));
    assert_eq!(rate(wide(100), wide(300), 2.0, 1e9), Some(100.0));
    assert_eq!(rate(wide(300), wide(100), 2.0, 1e9), None);
    assert_eq!(
        (
            rate(None, wide(1), 2.0, 1e9),
            rate(wide(1), None, 2.0, 1e9),
            rate(wide(1), wide(2), 0.0, 1e9)
        ),
        (None, None, None)
    );
    assert_eq!(
        rate(wide(0), wide(3_000_000_000), 1.0, 1e9),
        None,
        "more than the link carries"
    );
}

#[test]
fn a_narrow_counter_gives_a_rate_only_where_it_cannot_have_started_anew_unseen() {
    let narrow = |value| Some(FieldValue::Unsigned32(value));
    let fast = pcie_most(Some(5), Some(16));
    assert_eq!(fast, 64e9);
    assert_eq!(rate(narrow(0), narrow(1000), 0.5, fast), None);
    assert_eq!(rate(narrow(0), narrow(1000), 0.05, fast), Some(20_000.0));
    assert_eq!(
        rate(narrow(0), narrow(1000), 0.5, pcie_most(Some(1), Some(4))),
        Some(2000.0)
    );
    assert_eq!(
        pcie_most(None, None),
        pcie_most(Some(9), Some(0)),
        "an unknown link may be the fastest"
    );
}
