//! Complete panels: from files to normalized returns.

mod refusals;

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    packing::{Packing, pack},
    *,
};

fn data(yaml: &str) -> Data {
    serde_yaml::from_str(yaml).unwrap()
}

/// A panel at a path, with these further keys.
fn own(path: &Path, keys: &str) -> Data {
    data(&format!(
        "{{kind: panel-csv, path: {}, price: Close{keys}}}",
        path.display()
    ))
}

fn loaded(path: &Path, keys: &str) -> LoadedPanel {
    load(&own(path, keys), None).unwrap()
}

fn fault(path: &Path, keys: &str) -> String {
    load(&own(path, keys), None).unwrap_err().to_string()
}

fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let holder = tempfile::tempdir().unwrap();
    let path = pack(holder.path(), Packing::Folder, files);
    (holder, path)
}

/// Days of January 2020, from the first on, with a price and a volume each.
fn days(values: &[(f64, f64)]) -> String {
    let row = |(day, (close, volume)): (usize, &(f64, f64))| {
        format!("2020-01-{:02},{close},{volume}\n", day + 1)
    };
    format!(
        "Date,Close,Volume\n{}",
        values.iter().enumerate().map(row).collect::<String>()
    )
}

/// Prices and volumes that look drawn; some volumes are 0.
fn drawn(seed: u64, count: usize) -> Vec<(f64, f64)> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1 << 24) as f64
    };
    (0..count)
        .map(|_| (10.0 + next(), (next() * 3.0).floor() * 100.0))
        .collect()
}

/// The expected numbers were computed independently of this code, in 64 bits, from the published
/// files.
#[test]
fn the_published_prices_have_their_published_counts() {
    let Some(folder) = crate::published::folder() else {
        return;
    };
    let panel = load(&data("{kind: stocknet}"), Some(&folder)).unwrap();
    assert_eq!(
        panel.shape,
        PanelShape {
            features: 6,
            symbols: 88
        }
    );
    assert_eq!((panel.null_rows, panel.skipped_rows), (3, 0));
    assert_eq!(
        panel.facts.sha256,
        "c5b586fa3c8964c62b679800eafe9cb324ba1b84a4557ff138e5bbe0f95a6faf"
    );
    let Counts::Panel {
        features: 6,
        symbols,
    } = &panel.facts.counts
    else {
        panic!("{:?}", panel.facts)
    };
    assert_eq!(
        symbols.iter().map(|symbol| symbol.train).sum::<u64>(),
        97_413
    );
    assert_eq!(
        symbols.iter().map(|symbol| symbol.all).sum::<u64>(),
        108_501
    );
    assert!(
        (panel.target_mean - 0.000_495_507_872_274_629).abs() < 1e-15
            && (panel.target_deviation - 0.014_331_819_233_546_953).abs() < 1e-14
    );
    let abbv = &panel.symbols[2];
    assert_eq!(
        (
            abbv.symbol.as_str(),
            abbv.train,
            abbv.returns.len(),
            abbv.features.len()
        ),
        ("ABBV", 1050, 1176, 6 * 1176)
    );
    assert!((f64::from(abbv.returns[0]) - -0.008_291_218_5).abs() < 1e-9);
    let expected = [
        1.313_139_99,
        0.571_104_13,
        1.211_128_2,
        0.084_080_83,
        0.076_527_81,
        -0.893_010_91,
    ];
    for (found, expected) in abbv.features[6 * 1175..].iter().zip(expected) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-6,
            "{found} {expected}"
        );
    }
}

#[test]
fn the_first_symbols_of_the_alphabet_are_enough() {
    let Some(folder) = crate::published::folder() else {
        return;
    };
    let all = load(&data("{kind: stocknet}"), Some(&folder)).unwrap();
    let some = load(&data("{kind: stocknet, limit: 3}"), Some(&folder)).unwrap();
    let names: Vec<&str> = some
        .symbols
        .iter()
        .map(|series| series.symbol.as_str())
        .collect();
    assert_eq!(names, ["AAPL", "ABB", "ABBV"]);
    assert_eq!(some.shape.symbols, 3);
    assert_eq!(some.symbols[2].returns, all.symbols[2].returns);
    assert_ne!(
        some.facts.sha256, all.facts.sha256,
        "the hash is of what is read"
    );
    assert_ne!(some.target_mean, all.target_mean);
}

#[test]
fn returns_are_logarithms_of_the_steps_between_kept_rows() {
    let text = "Date,Close,Volume\n2020-01-01,10,0\n2020-01-02,null,null\n2020-01-03,20,9\n\
                2020-01-04,5,0\n";
    let (_holder, path) = folder(&[("A.csv", text)]);
    let panel = loaded(&path, ", valid_fraction: 0");
    assert_eq!(
        panel.symbols[0].returns,
        [2_f64.ln() as f32, 0.25_f64.ln() as f32]
    );
    assert_eq!((panel.null_rows, panel.symbols[0].train), (1, 2));
    // Two numbers lie one deviation on either side of their mean; a volume of 0 makes its column
    // count from 1.
    let mean = (2_f64.ln() + 0.25_f64.ln()) / 2.0;
    assert!((panel.target_mean - mean).abs() < 1e-15);
    assert!((panel.target_deviation - (2_f64.ln() - mean)).abs() < 1e-15);
    for (found, expected) in panel.symbols[0].features.iter().zip([1.0, 1.0, -1.0, -1.0]) {
        assert!(
            (found - expected).abs() < 1e-6,
            "{:?}",
            panel.symbols[0].features
        );
    }
}

#[test]
fn the_last_dates_of_all_symbols_validate() {
    let long = days(&drawn(1, 20));
    let late = format!(
        "Date,Close,Volume\n{}",
        long.lines().skip(15).collect::<Vec<_>>().join("\n")
    );
    let early: String = long
        .lines()
        .take(9)
        .map(|line| format!("{line}\n"))
        .collect();
    let (_holder, path) = folder(&[
        ("A.csv", &long),
        ("B.csv", &late),
        ("C.csv", &early),
        ("D.csv", "Date,Close,Volume\n2020-01-05,1,1\n"),
        ("E.csv", "Date,Close,Volume\n"),
    ]);
    let counts = |keys: &str| {
        let panel = loaded(&path, keys);
        panel
            .symbols
            .iter()
            .map(|series| (series.train, series.returns.len()))
            .collect::<Vec<_>>()
    };
    // Twenty dates: those from the 17th on are for validation, and a return has the date of its
    // later row.
    assert_eq!(
        counts(", valid_fraction: 0.2"),
        [(15, 19), (1, 5), (7, 7), (0, 0), (0, 0)]
    );
    assert_eq!(
        counts(", valid_fraction: 0"),
        [(19, 19), (5, 5), (7, 7), (0, 0), (0, 0)]
    );
    assert_eq!(
        counts(", valid_fraction: 0.5"),
        [(9, 19), (0, 5), (7, 7), (0, 0), (0, 0)]
    );
    let Counts::Panel { symbols, .. } = loaded(&path, ", valid_fraction: 0.2").facts.counts else {
        panic!()
    };
    assert_eq!(
        symbols[..2],
        [
            SymbolReturns { train: 15, all: 19 },
            SymbolReturns { train: 1, all: 5 }
        ]
    );
}

/// All data visible to training, bit by bit.
fn training_side(panel: &LoadedPanel) -> Vec<u64> {
    let width = panel.shape.features as usize;
    let series = |series: &SymbolSeries| {
        let numbers = series.features[..width * series.train]
            .iter()
            .chain(&series.returns[..series.train]);
        numbers
            .map(|number| u64::from(number.to_bits()))
            .chain([series.train as u64])
            .collect::<Vec<_>>()
    };
    let moments = [
        panel.target_mean.to_bits(),
        panel.target_deviation.to_bits(),
    ];
    panel
        .symbols
        .iter()
        .flat_map(series)
        .chain(moments)
        .collect()
}

#[test]
fn nothing_of_the_validation_dates_leaks_into_training() {
    let (mut one, other) = (drawn(1, 30), drawn(2, 30));
    let side = |one: &[(f64, f64)]| {
        let (_holder, path) = folder(&[("A.csv", &days(one)), ("B.csv", &days(&other))]);
        let panel = loaded(&path, ", valid_fraction: 0.2");
        (training_side(&panel), panel)
    };
    let (before, calm) = side(&one);
    one[24] = (1e300, 1e300);
    let (after, wild) = side(&one);
    assert_eq!(before, after);
    assert_ne!(
        calm.symbols[0].returns, wild.symbols[0].returns,
        "the value is in the validation part"
    );
    one[23].0 *= 2.0;
    assert_ne!(side(&one).0, before, "the day before trains");
}

#[test]
fn folders_and_archives_are_the_same_panel() {
    let (one, other) = (days(&drawn(1, 30)), days(&drawn(2, 25)));
    let files = [("raw/B.csv", other.as_str()), ("raw/A.csv", one.as_str())];
    let load = |packing| {
        let holder = tempfile::tempdir().unwrap();
        loaded(&pack(holder.path(), packing, &files), "")
    };
    let first = load(Packing::Folder);
    assert_eq!(
        first.facts.sha256,
        hex::encode(Sha256::digest(format!(
            "A.csv\n{one}B.csv\n\
             {other}"
        )))
    );
    for packing in Packing::ALL {
        let panel = load(packing);
        assert_eq!(panel.facts, first.facts, "{packing:?}");
        assert_eq!(training_side(&panel), training_side(&first), "{packing:?}");
    }
}

#[test]
fn a_column_that_does_not_vary_is_not_divided_by_nothing() {
    // Each day is 1 % above the previous one: the returns are equal except for rounding.
    let grown: Vec<(f64, f64)> = (0..20).map(|day| (1.01_f64.powi(day), 5.0)).collect();
    let (_holder, path) = folder(&[("A.csv", &days(&grown))]);
    let panel = loaded(&path, "");
    assert_eq!(panel.target_deviation, 1.0);
    assert!(
        panel.symbols[0]
            .features
            .iter()
            .all(|value| value.abs() < 1e-6),
        "{:?}",
        panel.symbols[0].features
    );
}

#[test]
fn extreme_numbers_stay_finite() {
    let (_holder, path) = folder(&[(
        "A.csv",
        &days(&[
            (5e-324, 0.0),
            (1.7e308, 1.7e308),
            (5e-324, 0.0),
            (1.7e308, 5e-324),
        ]),
    )]);
    let panel = loaded(&path, "");
    let series = &panel.symbols[0];
    assert!(
        series
            .features
            .iter()
            .chain(&series.returns)
            .all(|value| value.is_finite()),
        "{series:?}"
    );
    assert!(panel.target_mean.is_finite() && panel.target_deviation.is_finite());
}

#[test]
fn the_model_sees_the_columns_that_are_named_in_that_order() {
    let text = "Date,Name,Close,Open\n2020-01-01,a,1,4\n2020-01-02,b,2,3\n2020-01-03,c,8,1\n";
    let (_holder, path) = folder(&[("A.csv", "Date,Name,Close,Open\n"), ("B.csv", text)]);
    let features = |keys: &str| {
        let panel = loaded(&path, &format!(", valid_fraction: 0{keys}"));
        assert_eq!(
            panel.symbols[1].returns,
            [2_f64.ln() as f32, 4_f64.ln() as f32],
            "the price is read whatever the model sees"
        );
        (panel.shape.features, panel.symbols[1].features.clone())
    };
    // Of two returns the smaller one lies a deviation below their mean.
    assert_eq!(
        features(""),
        (2, vec![-1.0, 1.0, 1.0, -1.0]),
        "every column of numbers"
    );
    assert_eq!(
        features(", columns: [Open, Close]"),
        (2, vec![1.0, -1.0, -1.0, 1.0])
    );
    assert_eq!(features(", columns: [Open]"), (1, vec![1.0, -1.0]));
    let error = fault(&path, ", columns: [Opne]");
    assert!(
        error.contains("A.csv:1: no column `Opne`, which `data.columns` names")
            && error.contains("did you mean `Open`?"),
        "{error}"
    );
    assert!(fault(&path, ", date: Day").contains("no column `Day`, which `data.date` names"));
    // A column that nobody named is in the first file and not in another.
    let first = "Date,Close,Open\n2020-01-01,1,2\n2020-01-02,2,3\n";
    let (_holder, two) = folder(&[("A.csv", first), ("B.csv", "Date,Close\n2020-01-01,1\n")]);
    let error = fault(&two, "");
    assert!(
        error.contains("B.csv:1: no column `Open`, which another file has"),
        "{error}"
    );
    let (_holder, other) = folder(&[("A.csv", "Date;Close\n2020-01-01;1\n")]);
    assert!(fault(&other, "").contains("cells are separated by commas"));
    let error = fault(&other, ", columns: [Close]");
    assert!(
        error.contains("cells are separated by `;`, not by `,`"),
        "{error}"
    );
}

#[test]
fn bad_rows_stop_or_are_counted() {
    let (_holder, path) = folder(&[(
        "A.csv",
        "Date,Close\n2020-01-01,1\n2020-01-02,x\n\
         2020-01-03,2\n",
    )]);
    let error = fault(&path, "");
    assert!(
        error.contains("A.csv:3:12: `Close` is `x`") && error.contains("`data.skip_bad: true`"),
        "{error}"
    );
    let panel = loaded(&path, ", skip_bad: true");
    assert_eq!((panel.skipped_rows, panel.symbols[0].returns.len()), (1, 1));
    assert!(fault(&folder(&[("A.csv", "Date,Close\n")]).1, "").contains("no row with a number"));
}

#[test]
fn a_quote_that_swallows_rows_is_an_error_of_the_file() {
    let rows = |third: &str| {
        let rows = ["1,a", "2,b", third, "3,c", "4,d\" x", "5,e"];
        let lines = (1..)
            .zip(rows)
            .map(|(day, row)| format!("2020-01-0{day},{row}\n"));
        format!("Date,Close,Note\n{}", lines.collect::<String>())
    };
    for stray in ["9,\"5 inch", "9,\"a\" b", "9,\"\"\" b"] {
        let (_holder, path) = folder(&[("A.csv", &rows(stray))]);
        for keys in ["", ", skip_bad: true"] {
            let error = fault(&path, keys);
            assert!(
                error.contains("A.csv:4: a quote that begins"),
                "{stray}: {error}"
            );
        }
    }
    for whole in [
        "9,\"5\"\" inch\"",
        "9,5\" inch",
        "9,\"a, b\"",
        "9,\"\"",
        "\"9\" ,a",
    ] {
        let (_holder, path) = folder(&[("A.csv", &rows(whole))]);
        let panel = loaded(&path, "");
        assert_eq!((panel.skipped_rows, panel.symbols[0].returns.len()), (0, 5));
    }
}

#[test]
fn endings_have_any_case_and_a_symbol_is_there_once() {
    let text = "Date,Close\n2020-01-01,1\n2020-01-02,2\n";
    let (_holder, path) = folder(&[("A.CSV", text), ("B.csv", text)]);
    let panel = loaded(&path, "");
    let symbols: Vec<&str> = panel
        .symbols
        .iter()
        .map(|one| one.symbol.as_str())
        .collect();
    assert_eq!(symbols, ["A", "B"]);
    let (_holder, path) = folder(&[("A.CSV", text), ("A.csv", text)]);
    assert!(fault(&path, "").contains("holds A.csv twice"));
}

#[test]
fn an_absent_panel_names_every_place_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(&data("{kind: stocknet}"), Some(folder.path()))
        .unwrap_err()
        .to_string();
    for part in [
        "stocknet-88, data/stocknet-88",
        ".tar.xz",
        "kiln data fetch stocknet",
        "KILN_DATA",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let error = load(
        &data("{kind: panel-csv, path: /nowhere/at/all, price: Close}"),
        None,
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
    assert!(
        fault(folder.path(), "").contains("holds no CSV file"),
        "a place that is given is said to be wrong, not absent"
    );
}

#[test]
fn the_published_prices_are_found_as_csv_files_too() {
    let holder = tempfile::tempdir().unwrap();
    let text = "Date,Open,High,Low,Close,Adj Close,Volume\n2020-01-01,1,1,1,1,1,0\n\
                2020-01-02,1,1,1,1,2,0\n";
    let set = holder.path().join("stocknet-88");
    fs::create_dir(&set).unwrap();
    fs::write(set.join("X.csv"), text).unwrap();
    let stocknet = data("{kind: stocknet}");
    assert_eq!(
        load(&stocknet, Some(holder.path())).unwrap().symbols[0].returns,
        [2_f64.ln() as f32]
    );
    assert_eq!(
        crate::source::absolute_path(&stocknet, Some(holder.path())).unwrap(),
        Some(set.clone())
    );
    fs::write(
        set.join("X.csv"),
        text.replace("2020-01-02,1", "2020-01-02,?"),
    )
    .unwrap();
    let error = load(&stocknet, Some(holder.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("X.csv:3:12: `Open` is `?`") && error.contains("kiln data verify stocknet"),
        "{error}"
    );
}
