//! `kiln predict`: classes of image files, or forecasts that follow files of series.

use std::path::PathBuf;

use kiln_core::{
    record::model_use::{ClassShare, Forecast, PredictTask, UseAnswer, UseTask},
    units::{Fraction, decimals},
};
use serde_json::{Value, json};

use super::{
    Status, Stop,
    json_option::JsonFlag,
    model_child, print, print_json,
    trained_model::{self, find},
};
use crate::output::{csv, table::TextTable};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: trained_model::Args,
    /// PNG or JPEG files for a model of images; CSV files named for their symbols, as in the
    /// training data, for a model of a panel.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show so many of the most likely classes of each image, one row each; 5 without a number,
    /// behind the files.
    #[arg(long, value_name = "N", num_args = 0..=1, default_value_t = 1, default_missing_value = "5", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    top: u64,
    /// Output format.
    #[arg(long, value_enum, default_value_t = RowFormat::Text)]
    format: RowFormat,
    #[command(flatten)]
    json: JsonFlag,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RowFormat {
    /// For a terminal.
    Text,
    /// A table with the same columns, exact.
    Csv,
    /// One object with all of it, exact.
    Json,
}

/// The predictions of one kind of model.
#[derive(Default)]
struct Predictions {
    classes: Vec<(String, Vec<ClassShare>)>,
    forecasts: Vec<Forecast>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let files = named_files(&args.files)?;
    let trained = find(&args.model)?;
    let origin = trained.origin();
    let task = UseTask::Predict(PredictTask {
        files,
        top: args.top,
    });
    let mut found = Predictions::default();
    model_child::ask(trained, &args.model.device, task, &mut |answer| {
        match answer {
            UseAnswer::Classes { file, classes } => found.classes.push((file, classes)),
            UseAnswer::Forecast(forecast) => found.forecasts.push(forecast),
            _ => {}
        }
        Ok(true)
    })?;
    match args.json.or(args.format, RowFormat::Json) {
        RowFormat::Json => {
            print_json(&format!("{:#}\n", found.json(&origin)))?;
        }
        format => {
            let is_text = format == RowFormat::Text;
            let (heads, rows) = found.rows(is_text);
            print(&page(&heads, &rows, is_text)?)?;
        }
    }
    Ok(Status::Success)
}

/// Files and folders, absolute and as the user named them.
///
/// # Errors
/// One does not exist.
pub(super) fn named_files(files: &[PathBuf]) -> Result<Vec<(PathBuf, String)>, Stop> {
    let named = |file: &PathBuf| {
        let whole = std::path::absolute(file)
            .map_err(|error| Stop::bad_input(format!("{}: {error}", file.display())))?;
        if !whole.exists() {
            return Err(Stop::bad_input(format!(
                "{}: there is no such file or folder",
                file.display()
            )));
        }
        Ok((whole, file.display().to_string()))
    };
    files.iter().map(named).collect()
}

pub(super) fn page(heads: &[&str], rows: &[Vec<String>], is_text: bool) -> Result<String, Stop> {
    if is_text {
        let mut table = TextTable::plain(heads);
        rows.iter().for_each(|row| table.add_row(row));
        return Ok(table.text() + "\n");
    }
    let failed = |error: std::io::Error| {
        Stop::new(
            Status::Failed,
            format!("the table could not be written: {error}"),
        )
    };
    let head = csv::line(heads).map_err(failed)?;
    rows.iter().try_fold(
        head,
        |page, row| Ok(page + &csv::line(row).map_err(failed)?),
    )
}

impl Predictions {
    /// The names of the columns, and the rows; numbers are rounded for people.
    fn rows(&self, is_text: bool) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let number = |value: f64| match is_text {
            true => decimals(value, 6),
            false => value.to_string(),
        };
        let cell = |value: Option<f64>| value.map(number).unwrap_or_default();
        if let Some(first) = self.forecasts.first() {
            let is_return = first.log_return.is_some();
            let mut heads = vec!["file", "symbol", "after", "price", "last_price"];
            heads.extend(match is_return {
                true => &["log_return", "next_price"][..],
                false => &["rise_probability"][..],
            });
            let row = |forecast: &Forecast| {
                let mut row = vec![
                    forecast.file.clone(),
                    forecast.symbol.clone(),
                    forecast.after.clone(),
                    forecast.price.clone(),
                    number(forecast.last_price),
                ];
                row.extend(match is_return {
                    true => vec![cell(forecast.log_return), cell(forecast.next_price)],
                    false => vec![cell(forecast.rise_probability)],
                });
                row
            };
            return (heads, self.forecasts.iter().map(row).collect());
        }
        let ranked = self.classes.iter().any(|(_, classes)| classes.len() > 1);
        let heads = match ranked {
            true => vec!["file", "rank", "class", "probability"],
            false => vec!["file", "class", "probability"],
        };
        let row = |file: &str, rank: usize, share: &ClassShare| {
            let name = share
                .name
                .clone()
                .unwrap_or_else(|| share.class.to_string());
            let probability = match is_text {
                true => Fraction(share.probability).to_string(),
                false => share.probability.to_string(),
            };
            let mut row = vec![file.to_owned(), name, probability];
            if ranked {
                row.insert(1, (rank + 1).to_string());
            }
            row
        };
        let rows = self.classes.iter().flat_map(|(file, classes)| {
            let rows = classes.iter().enumerate();
            rows.map(|(rank, share)| row(file, rank, share))
                .collect::<Vec<_>>()
        });
        (heads, rows.collect())
    }

    fn json(&self, origin: &Value) -> Value {
        let classes = self
            .classes
            .iter()
            .map(|(file, classes)| json!({"file": file, "classes": classes}));
        let forecasts = self.forecasts.iter().map(|forecast| json!(forecast));
        let predictions: Vec<Value> = classes.chain(forecasts).collect();
        json!({"kiln_predict": 1, "model": origin, "predictions": predictions})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_without_a_name_is_its_number_and_several_are_ranked() {
        let share = |class: u64, name: Option<&str>, probability: f64| ClassShare {
            class,
            name: name.map(str::to_owned),
            probability,
        };
        let mut found = Predictions::default();
        found
            .classes
            .push(("a.png".to_owned(), vec![share(3, None, 0.75)]));
        let (heads, rows) = found.rows(false);
        assert_eq!(
            page(&heads, &rows, false).unwrap(),
            "file,class,probability\na.png,3,0.75\n"
        );
        found.classes[0].1.push(share(1, Some("cat, or dog"), 0.25));
        let (heads, rows) = found.rows(false);
        assert_eq!(
            page(&heads, &rows, false).unwrap(),
            "file,rank,class,probability\na.png,1,3,0.75\na.png,2,\"cat, or dog\",0.25\n"
        );
    }
}
