//! `kiln evaluate`: the loss and the scores of a trained model, on the validation data of its trial
//! or on other data.

use std::path::PathBuf;

use kiln_core::{
    plan::ChildDevice,
    record::model_use::{EvaluateTask, EvaluationScores, UseAnswer, UseTask},
    units::{Fraction, decimals},
};
use serde_json::{Value, json};

use super::{
    Status, Stop,
    json_option::JsonFlag,
    model_child, note,
    predict::{RowFormat, named_files, page},
    print, print_json,
    trained_model::{self, find},
};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: trained_model::Args,
    /// Evaluate on this data instead of the validation data: a text file; a folder with a folder of
    /// images per class; CSV files named for their symbols; or a file of prompts and responses. Put
    /// RUN before it: it takes all words behind it.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = RowFormat::Text)]
    format: RowFormat,
    #[command(flatten)]
    json: JsonFlag,
}

/// Decimals of a score for a person, as of a loss in a report.
const SCORE_DECIMALS: usize = 4;

/// An evaluation and what it is compared with.
struct EvaluationPage {
    step: u64,
    /// As the user named it; empty for the validation data.
    data: Vec<String>,
    scores: EvaluationScores,
    /// The validation loss that the training recorded for this step; `None` for other data.
    recorded_loss: Option<f64>,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let data = named_files(&args.data)?;
    let names = data.iter().map(|(_, name)| name.clone()).collect();
    let trained = find(&args.model)?;
    let origin = trained.origin();
    let step = trained.checkpoint.step;
    let recorded_loss = trained.checkpoint.valid_loss.filter(|_| data.is_empty());
    let needs_gpu = trained.file.device == ChildDevice::Cuda && args.model.device == "cpu";
    let (mut device, mut scores) = (None, None);
    let task = UseTask::Evaluate(EvaluateTask { data });
    model_child::ask(trained, &args.model.device, task, &mut |answer| {
        match answer {
            UseAnswer::Ready { device_name, .. } => device = Some(device_name),
            UseAnswer::Evaluated(found) => scores = Some(found),
            _ => {}
        }
        Ok(true)
    })?;
    let Some(scores) = scores else {
        return Err(Stop::new(
            Status::Failed,
            "kiln-trial has not said what it found; does it belong to this kiln? `kiln doctor` \
             examines it",
        ));
    };
    let evaluation = EvaluationPage {
        step,
        data: names,
        scores,
        recorded_loss,
    };
    evaluation.scores.notices.iter().for_each(|text| note(text));
    if let Some(text) = evaluation.difference(needs_gpu) {
        note(&text);
    }
    let format = args.json.or(args.format, RowFormat::Json);
    evaluation.print(format, &origin, device.as_deref())?;
    Ok(Status::Success)
}

impl EvaluationPage {
    fn print(&self, format: RowFormat, origin: &Value, device: Option<&str>) -> Result<(), Stop> {
        match format {
            RowFormat::Json => print_json(&format!("{:#}\n", self.json(origin, device))),
            RowFormat::Csv => {
                let cells = self.cells(false).into_iter();
                let (heads, row): (Vec<&str>, Vec<String>) = cells.unzip();
                print(&page(&heads, &[row], false)?)
            }
            RowFormat::Text => {
                let cells = self.cells(true).into_iter();
                let rows: Vec<Vec<String>> = cells
                    .map(|(head, cell)| vec![head.to_owned(), cell])
                    .collect();
                print(&page(&["score", "value"], &rows, true)?)
            }
        }
    }

    /// The name and the value of each score that there is; numbers are rounded for people.
    fn cells(&self, is_text: bool) -> Vec<(&'static str, String)> {
        let number = |value: f64| match is_text {
            true => decimals(value, SCORE_DECIMALS),
            false => value.to_string(),
        };
        let share = |value: f64| match is_text {
            true => Fraction(value).to_string(),
            false => value.to_string(),
        };
        let data = match self.data.is_empty() {
            true => "validation".to_owned(),
            false => self.data.join(" "),
        };
        let scores = &self.scores;
        let all = [
            ("step", Some(self.step.to_string())),
            ("data", Some(data)),
            ("samples", Some(scores.samples.to_string())),
            ("targets", Some(scores.targets.to_string())),
            ("loss", Some(number(scores.loss))),
            ("recorded_loss", self.recorded_loss.map(number)),
            ("perplexity", scores.perplexity.map(number)),
            ("top1", scores.top1.map(share)),
            ("top5", scores.top5.map(share)),
            (
                "mean_absolute_error",
                scores.mean_absolute_error.map(number),
            ),
            (
                "persistence_mean_absolute_error",
                scores.persistence_mean_absolute_error.map(number),
            ),
            ("hit_rate", scores.hit_rate.map(share)),
            (
                "persistence_hit_rate",
                scores.persistence_hit_rate.map(share),
            ),
            ("majority_hit_rate", scores.majority_hit_rate.map(share)),
            ("bleu4", scores.bleu4.map(share)),
            ("chrf", scores.chrf.map(share)),
            (
                "response_rows",
                scores.response_rows.map(|rows| rows.to_string()),
            ),
            (
                "precision",
                scores
                    .precision
                    .map(|precision| precision.name().to_owned()),
            ),
        ];
        let there = all.into_iter();
        there
            .filter_map(|(head, cell)| Some((head, cell?)))
            .collect()
    }

    /// A sentence if the loss is not the one that the training recorded.
    fn difference(&self, needs_gpu: bool) -> Option<String> {
        let (recorded, now) = (self.recorded_loss?, self.scores.loss);
        let why = match needs_gpu {
            true => {
                "the model was trained on a GPU, and this is the CPU; `--device auto` takes a GPU"
            }
            false => {
                "another device, other libraries or another number of threads add numbers in \
                 another order"
            }
        };
        (recorded != now).then(|| {
            format!(
                "the training recorded a validation loss of {recorded} for step {}, and it is {now} \
                 now: {why}",
                self.step
            )
        })
    }

    fn json(&self, origin: &Value, device: Option<&str>) -> Value {
        json!({
            "kiln_evaluate": 1,
            "model": origin,
            "device": device,
            "data": self.data,
            "recorded_loss": self.recorded_loss,
            "scores": self.scores,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(loss: f64) -> EvaluationPage {
        EvaluationPage {
            step: 20,
            data: Vec::new(),
            scores: EvaluationScores {
                samples: 4,
                targets: 31,
                loss,
                top1: Some(0.75),
                ..EvaluationScores::default()
            },
            recorded_loss: Some(2.0),
        }
    }

    #[test]
    fn only_scores_that_there_are_have_a_cell() {
        let names = |is_text| evaluation(2.0).cells(is_text);
        let exact: Vec<String> = names(false).into_iter().map(|(_, cell)| cell).collect();
        assert_eq!(exact, ["20", "validation", "4", "31", "2", "2", "0.75"]);
        assert!(names(true).contains(&("top1", "75.0 %".to_owned())));
    }

    #[test]
    fn a_person_reads_losses_with_the_decimals_of_a_report_and_a_program_reads_all() {
        let mut page = evaluation(2.959168);
        page.scores.perplexity = Some(19.281915);
        let cell = |is_text: bool, head: &str| {
            let mut cells = page.cells(is_text).into_iter();
            cells.find(|(own, _)| *own == head).unwrap().1
        };
        let both = |is_text| [cell(is_text, "loss"), cell(is_text, "perplexity")];
        assert_eq!(both(true), ["2.9592", "19.2819"]);
        assert_eq!(both(false), ["2.959168", "19.281915"]);
    }

    #[test]
    fn another_loss_than_the_recorded_one_is_told_with_both() {
        assert_eq!(evaluation(2.0).difference(true), None);
        let told = evaluation(2.5).difference(true).unwrap();
        assert!(
            told.starts_with(
                "the training recorded a validation loss of 2 for step 20, and it is 2.5 now: "
            ) && told.contains("`--device auto`"),
            "{told}"
        );
        let other = EvaluationPage {
            recorded_loss: None,
            ..evaluation(2.5)
        };
        assert_eq!(other.difference(false), None);
    }
}
