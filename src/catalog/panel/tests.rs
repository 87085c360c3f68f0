//! Whole panels: from files to normalized returns.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;

fn data(yaml: &str) -> Data {
    serde_yaml::from_str(yaml).unwrap()
}

/// A panel of a folder, with these further keys.
fn own(folder: &Path, keys: &str) -> Data {
    data(&format!("{{kind: panel-csv, path: {}, price: Close{keys}}}", folder.display()))
}

fn loaded(data: &Data) -> LoadedPanel {
    load(data, None).unwrap()
}

fn fault(data: &Data) -> String {
    load(data, None).unwrap_err().to_string()
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

/// Days of January 2020 with a price and a volume.
fn rows(values: &[(f64, f64)]) -> String {
    let row = |(day, (close, volume)): (usize, &(f64, f64))| format!("2020-01-{:02},{close},{volume}\n", day + 1);
    format!("Date,Close,Volume\n{}", values.iter().enumerate().map(row).collect::<String>())
}

fn walk(seed: u64, days: usize) -> Vec<(f64, f64)> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1 << 24) as f64
    };
    (0..days).map(|_| (10.0 + next(), (next() * 3.0).floor() * 100.0)).collect()
}

fn published() -> Option<PathBuf> {
    let folder = std::env::var_os("KILN_DATA").filter(|folder| !folder.is_empty()).and_then(|folder| std::path::absolute(folder).ok());
    if folder.is_none() {
        eprintln!("skipped: KILN_DATA is not set");
    }
    folder
}

/// The numbers were computed apart from this code, in 64 bits, from the published files.
#[test]
fn the_published_prices_have_their_published_counts() {
    let Some(folder) = published() else { return };
    let panel = load(&data("{kind: stocknet}"), Some(&folder)).unwrap();
    assert_eq!(panel.shape, PanelShape { features: 6, symbols: 88 });
    assert_eq!((panel.null_rows, panel.skipped_rows), (3, 0));
    assert_eq!(panel.facts.sha256, "c5b586fa3c8964c62b679800eafe9cb324ba1b84a4557ff138e5bbe0f95a6faf");
    let Counts::Panel { features: 6, symbols } = &panel.facts.counts else { panic!("{:?}", panel.facts) };
    assert_eq!(symbols.iter().map(|symbol| symbol.train).sum::<u64>(), 97_413);
    assert_eq!(symbols.iter().map(|symbol| symbol.all).sum::<u64>(), 108_501);
    assert!((panel.target_mean - 0.000_495_507_872_274_629).abs() < 1e-15 && (panel.target_deviation - 0.014_331_819_233_546_953).abs() < 1e-14);
    let abbv = &panel.symbols[2];
    assert_eq!((abbv.symbol.as_str(), abbv.train, abbv.returns.len(), abbv.features.len()), ("ABBV", 1050, 1176, 6 * 1176));
    assert!((abbv.returns[0] - -0.008_291_218_5).abs() < 1e-8);
    let expected = [1.313_139_99, 0.571_104_13, 1.211_128_2, 0.084_080_83, 0.076_527_81, -0.893_010_91];
    for (found, expected) in abbv.features[6 * 1175..].iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}
