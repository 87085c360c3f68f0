//! Small panels of CSV files, for runs that read them.

use std::{fs, path::Path};

/// `prices`, three symbols of 60 days, and `spoilt-prices`, the same with a price that is not a
/// number. `Day` is a second date, a year after the first for symbol C.
pub(crate) fn write(folder: &Path, seed: usize) {
    for panel in ["prices", "spoilt-prices"] {
        fs::create_dir(folder.join(panel)).unwrap();
        for (number, symbol) in ["A", "B", "C"].iter().enumerate() {
            let is_spoilt = |day| panel == "spoilt-prices" && (day, number) == (9, 1);
            let rows: String = (0..60)
                .map(|day| row(day, number, seed, is_spoilt(day)))
                .collect();
            let text = format!("Date,Day,Open,High,Low,Close,Adj Close,Volume\n{rows}");
            fs::write(folder.join(panel).join(format!("{symbol}.csv")), text).unwrap();
        }
    }
}

fn row(day: usize, symbol: usize, seed: usize, is_spoilt: bool) -> String {
    let date = |year: usize| format!("{year}-{:02}-{:02}", 1 + day / 28, 1 + day % 28);
    let price =
        |salt: usize| 10.0 + ((day * day * 7 + day * salt * seed + symbol) % 23) as f64 / 10.0;
    let close = if is_spoilt {
        "none".to_owned()
    } else {
        price(1).to_string()
    };
    let (open, high, low, adjusted, volume) =
        (price(2), price(3), price(4), price(5), day * seed % 5 * 100);
    format!(
        "{},{},{open},{high},{low},{close},{adjusted},{volume}\n",
        date(2020),
        date(2020 + symbol / 2)
    )
}
