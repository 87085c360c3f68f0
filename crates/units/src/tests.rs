use crate::*;

#[test]
fn a_long_list_ends_with_the_number_of_the_rest() {
    let names = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
    let listed = |count: usize, separator: &str| listed(&names[..count], separator);
    assert_eq!(listed(2, " and "), "a and b");
    assert_eq!(listed(6, " and "), "a, b, c, d, e and 1 more");
    assert_eq!(listed(5, ", "), "a, b, c, d, e");
    assert_eq!(listed(6, "; "), "a; b; c; d; e; and 1 more");
}

#[test]
fn a_word_is_quoted_where_a_shell_would_read_it_otherwise() {
    for plain in ["a/b.yaml", "x~1", "runs/日本", "--set=a.b=1e-3"] {
        assert_eq!(shell_word(plain), plain);
    }
    assert_eq!(shell_word("my runs/it's"), r"'my runs/it'\''s'");
    assert_eq!(shell_word("~/x"), "'~/x'");
    assert_eq!(shell_word("/a:~/b"), "'/a:~/b'");
    assert_eq!(shell_word("--to=~/b"), "'--to=~/b'");
    assert_eq!(shell_word(""), "''");
    assert_eq!(shell_word("$HOME"), "'$HOME'");
}

#[test]
fn only_a_longer_text_is_shortened() {
    assert_eq!(shorten("über", 4), "über");
    assert_eq!(shorten("über", 3), "übe…");
    assert_eq!(shorten("", 0), "");
    assert_eq!(shorten_line("a\tb\nc", 3), "a b…");
}

#[test]
fn three_digits_stay_of_any_size_and_only_0_is_0() {
    let cases = [
        (0.0, "0"),
        (1.2e-8, "1.20e-8"),
        (0.01234, "0.0123"),
        (0.5, "0.500"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.4, "1234"),
        (-0.04, "-0.0400"),
    ];
    cases
        .iter()
        .for_each(|(value, text)| assert_eq!(significant(*value), *text));
}

/// The largest number has 309 digits, the least as many zeros.
#[test]
fn numbers_of_any_size_are_short() {
    for value in [
        f64::MAX,
        1e308,
        1e300,
        1e15,
        -1e308,
        1e-308,
        f64::MIN_POSITIVE,
        5e-324,
        f64::INFINITY,
        f64::NAN,
    ] {
        let printed = [
            significant(value),
            decimals(value, 4),
            decimals(value, 0),
            exact(value),
            Fraction(value).to_string(),
            Change(value).to_string(),
            Seconds(value).to_string(),
            Count(value).to_string(),
        ];
        assert!(
            printed.iter().all(|text| text.len() <= 24),
            "{value:e}: {printed:?}"
        );
        assert!(
            !value.is_finite() || exact(value).parse::<f64>().is_ok_and(|read| read == value),
            "{value:e}"
        );
    }
    assert_eq!(
        (significant(1e308), decimals(1e308, 4), exact(1e308)),
        ("1.00e308".into(), "1.00e308".into(), "1e308".into())
    );
    assert_eq!(
        [0.46523, 0.0, 0.00004, 1234.0, 0.0106, 0.00014, -0.000_06].map(|loss| decimals(loss, 4)),
        [
            "0.4652",
            "0.0000",
            "4.00e-5",
            "1234.0000",
            "0.0106",
            "0.000140",
            "-0.0000600"
        ]
    );
    assert_eq!(
        [10.0, 0.1, 0.00001, 1e15, 123_456.789].map(exact),
        ["10", "0.1", "0.00001", "1000000000000000", "123456.789"]
    );
    assert_eq!(
        [1.042, 0.9, 1.0, 4e15].map(|ratio| Change(ratio).to_string()),
        ["+4.2 %", "-10.0 %", "+0.0 %", "+4.00e17 %"]
    );
    assert_eq!(
        [0.0, 0.000_499, 0.000_04, 1e-9, 1e-300].map(|ratio| Change(ratio).to_string()),
        [
            "-100.0 %",
            "-99.95 %",
            "-99.996 %",
            "-99.999999 %",
            "-99.999999 %"
        ]
    );
    assert_eq!(
        (Count(3e20).to_string(), Seconds(1e15).to_string()),
        ("3.00e20".into(), "1.00e15 s".into())
    );
    assert_eq!(
        [4.2e-5, 0.000_999, 0.001, 0.0].map(|seconds| Seconds(seconds).to_string()),
        ["42.0 µs", "999 µs", "1.00 ms", "0 s"]
    );
}

#[test]
fn time_spans_read_and_print_the_way_people_write_them() {
    for text in ["500ms", "30m", "2s", "1h 30m"] {
        assert_eq!(TimeSpan::parse(text).unwrap().to_string(), text);
    }
    assert!(TimeSpan::parse("-3s").unwrap_err().contains("30m"));
    assert!(TimeSpan::parse("5").is_err());
}

#[test]
fn amounts_of_memory_read_as_people_write_them_and_print_exactly() {
    for (text, bytes, printed) in [
        ("8GiB", 8 << 30, "8GiB"),
        ("1.5 GiB", 3 << 29, "1536MiB"),
        ("8GB", 8_000_000_000, "8GB"),
        ("300mb", 300_000_000, "300MB"),
        ("1001 B", 1001, "1001B"),
    ] {
        let read = ByteSize::parse(text).unwrap();
        assert_eq!(
            (read, read.to_string().as_str()),
            (ByteSize(bytes), printed),
            "{text}"
        );
        assert_eq!(ByteSize::parse(printed).unwrap(), read);
    }
    for bad in ["8", "8G", "GiB", "-1GiB", "0B", "8 apples", "", "1e400GiB"] {
        assert!(
            ByteSize::parse(bad).unwrap_err().contains("`512MiB`"),
            "{bad}"
        );
    }
}

#[test]
fn quantities_print_with_few_digits() {
    assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
    assert_eq!(Fraction(0.034).to_string(), "3.4 %");
    assert_eq!(Seconds(725.0).to_string(), "12 min 5 s");
    assert_eq!(Seconds(59.7).to_string(), "1 min 0 s");
    assert_eq!(Count(854_770_176.0).to_string(), "854.8 M");
}

#[test]
fn a_number_that_rounds_up_to_the_next_unit_has_that_unit() {
    assert_eq!(
        [1023, (1 << 20) - 1].map(|bytes| Bytes(bytes).to_string()),
        ["1023 B", "1.0 MiB"]
    );
    assert_eq!(
        [999_900.0, 999_999.0].map(|count| Count(count).to_string()),
        ["999.9 k", "1.0 M"]
    );
    assert_eq!(
        [3569.7, 3599.7].map(|seconds| Seconds(seconds).to_string()),
        ["59 min 30 s", "1 h 0 min"]
    );
}
