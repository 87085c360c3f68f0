//! A folder of CSV files as a panel: its date, the column to predict, and the columns to read.

use std::path::Path;

use kiln_core::units::counted;
use kiln_data::{
    images::IMAGE_ENDINGS,
    panel::{LeftOutColumn, NumberColumn, PanelColumns, columns},
};

use super::{DataProposal, FoundData, NAMES_SHOWN, few, has_ending, scalar};

/// Names of columns that are usually the price, best first.
const PRICES: [&str; 5] = ["adj close", "adj_close", "close", "price", "value"];
/// Names of columns that number or date the rows.
const NO_SERIES: [&str; 7] = ["id", "index", "year", "month", "day", "hour", "weekday"];

/// Whether the CSV files of a folder are a panel: each row has a date, and a column has numbers. A
/// table that names images is not a panel.
pub(super) fn is_panel(folder: &Path) -> bool {
    columns(folder).is_ok_and(|found| {
        let mut cells = found.first_row.iter();
        let names_images = cells.any(|(_, cell)| has_ending(Path::new(cell), &IMAGE_ENDINGS));
        let mut left_out = found.left_out.iter();
        let has_numbers = !found.numbers.is_empty() || left_out.any(|column| column.has_numbers);
        !found.dates.is_empty() && has_numbers && !names_images
    })
}

pub(super) fn panel(folder: &Path) -> Result<DataProposal, String> {
    let found = columns(folder).map_err(|error| error.to_string())?;
    let Some(date) = found.dates.first() else {
        return Err(no_date(&found));
    };
    let mut notes = Vec::new();
    let price = match named_price(&found)? {
        Some(price) => price,
        None => {
            let price = series(&found.numbers).next();
            let price = price.ok_or_else(|| no_price(&found.numbers))?;
            notes.push(format!(
                "note: no column of numbers in each file is named `close`, `price` or `value`; the \
                 file predicts {}, and names the others",
                scalar(&price.name)
            ));
            price
        }
    };
    let rows = median(&found.files);
    notes.extend(too_short(&found.files, window(rows)));
    let usable: Vec<&NumberColumn> = of_at_least(&found.numbers, 0.0).collect();
    let left_out = left_out(&found);
    let names = || usable.iter().map(|column| scalar(&column.name));
    let others = series(&found.numbers).filter(|other| other.name != price.name);
    let others: Vec<String> = others.map(|other| scalar(&other.name)).collect();
    let mut comments = Vec::new();
    if !others.is_empty() {
        comments.push(format!("others for `price`: {}", few(&others)));
    }
    if !left_out.is_empty() {
        comments.push(format!("left out of `columns`: {}", few(&left_out)));
    }
    Ok(DataProposal {
        data: FoundData::Panel {
            path: scalar(&folder.to_string_lossy()),
            date: scalar(date),
            price: scalar(&price.name),
            columns: (!left_out.is_empty()).then(|| names().collect()),
            rows,
            comments,
        },
        notes,
    })
}

/// Median number of rows: one short file among long ones does not decide.
fn median(files: &[(String, u64)]) -> u64 {
    let mut rows: Vec<u64> = files.iter().map(|(_, rows)| *rows).collect();
    rows.sort_unstable();
    rows.get(rows.len() / 2).copied().unwrap_or(0)
}

/// The length of a window (`seq_len`) for files with so many rows.
pub(in crate::commands::init) fn window(rows: u64) -> u64 {
    (rows / 20).clamp(2, 30)
}

/// Names the files that are too short for one sample: the returns of a window and one to predict,
/// which take two rows more than the window.
fn too_short(files: &[(String, u64)], window: u64) -> Option<String> {
    let short = files.iter().filter(|(_, rows)| *rows < window + 2);
    let short: Vec<String> = short
        .map(|(name, rows)| format!("{name} has {}", counted(*rows as usize, "row")))
        .collect();
    (!short.is_empty()).then(|| {
        format!(
            "note: {}, too few for one window (`seq_len` {window} needs {}); the model sees nothing \
             of such a file",
            few(&short),
            counted(window as usize + 2, "row")
        )
    })
}

fn no_date(found: &PanelColumns) -> String {
    let cells = found.first_row.iter().take(NAMES_SHOWN);
    let cells: Vec<String> = cells
        .map(|(name, cell)| format!("{} {}", scalar(name), scalar(cell)))
        .collect();
    format!(
        "no column of its CSV files holds a date in each row, such as 2012-09-04 or 2012-09-04 \
         15:30{}",
        match cells.is_empty() {
            true => "; none of them has a complete row".to_owned(),
            false => format!("; the first row has {}", cells.join(", ")),
        }
    )
}

/// The column that is the price by its name, if there is one.
///
/// # Errors
/// Its cells are not numbers above 0: another column in its place would be a silent mistake.
fn named_price(found: &PanelColumns) -> Result<Option<&NumberColumn>, String> {
    for wanted in PRICES {
        let is_it = |name: &str| name.to_lowercase() == wanted;
        // A column of words, or one that a file lacks, is passed over.
        let is_bad = |column: &&LeftOutColumn| {
            let is_number = column.has_numbers || column.has_digits;
            is_it(&column.name) && is_number && !column.is_missing
        };
        if let Some(bad) = found.left_out.iter().find(is_bad) {
            return Err(format!(
                "the column {} is the price by its name, but {}; write a number such as 1234.5 \
                 there, or `null` to skip the row, or rename the column if it is not the price",
                scalar(&bad.name),
                bad.why
            ));
        }
        let Some(price) = found.numbers.iter().find(|column| is_it(&column.name)) else {
            continue;
        };
        if price.smallest <= 0.0 {
            return Err(format!(
                "the column {} is the price by its name, but it goes down to {}, of which there is \
                 no log return; correct it, or rename the column if it is not the price",
                scalar(&price.name),
                price.smallest
            ));
        }
        if price.varies {
            return Ok(Some(price));
        }
    }
    Ok(None)
}

/// The columns that are worth a forecast: above 0 and not excluded by [`no_series`].
fn series(numbers: &[NumberColumn]) -> impl Iterator<Item = &NumberColumn> {
    of_at_least(numbers, f64::MIN_POSITIVE).filter(|column| no_series(column).is_none())
}

/// Why a forecast of a column makes no sense.
fn no_series(column: &NumberColumn) -> Option<&'static str> {
    let name = column.name.to_lowercase();
    if !column.varies {
        return Some("is constant");
    }
    if column.counts_up {
        return Some("counts the rows");
    }
    let is_id = NO_SERIES.contains(&name.as_str()) || name.ends_with("_id");
    is_id.then_some("is an id or a part of a date by its name")
}

/// The columns whose numbers are all at least `least`.
fn of_at_least(numbers: &[NumberColumn], least: f64) -> impl Iterator<Item = &NumberColumn> {
    let columns = numbers.iter();
    columns.filter(move |column| column.smallest >= least)
}

/// The columns of numbers that the model does not read, each with the reason.
fn left_out(found: &PanelColumns) -> Vec<String> {
    let negative = found.numbers.iter().filter(|column| column.smallest < 0.0);
    let negative = negative.map(|column| format!("{} (below 0)", scalar(&column.name)));
    let bad = found.left_out.iter().filter(|column| column.has_numbers);
    let bad = bad.map(|column| format!("{} ({})", scalar(&column.name), column.why));
    negative.chain(bad).collect()
}

fn no_price(numbers: &[NumberColumn]) -> String {
    let reason = |column: &NumberColumn| match no_series(column) {
        Some(why) if column.smallest > 0.0 => format!("{} {why}", scalar(&column.name)),
        _ => format!("{} goes down to {}", scalar(&column.name), column.smallest),
    };
    let found: Vec<String> = numbers.iter().map(reason).collect();
    match found.is_empty() {
        true => "no column of its CSV files holds a number in each row of each file".to_owned(),
        false => format!(
            "no column of its CSV files is a series above 0 throughout ({}); kiln predicts the log \
             return of one series, such as a price or a count",
            few(&found)
        ),
    }
}
