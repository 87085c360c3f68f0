//! `kiln sample`: a trained language model continues a prompt, a trained sequence-to-sequence model
//! answers it.

use kiln_core::{
    record::{
        BETWEEN_TEXTS,
        model_use::{SampleTask, UseAnswer, UseTask},
    },
    units::Seconds,
};
use serde_json::{Value, json};

use super::{
    Status, Stop,
    json_option::JsonFlag,
    model_child, note, print_json,
    trained_model::{self, find},
    written,
};
use crate::output::terminal;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: trained_model::Args,
    /// The beginning of the text, whose tokens must occur in the training text; or the prompt of a
    /// sequence-to-sequence model.
    #[arg(long, default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// Tokens to write after the prompt; a response may end earlier.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    tokens: u64,
    /// Divisor of the model's outputs before sampling; 0 always takes the most likely token.
    /// Default: 1, or 0 for a sequence-to-sequence model.
    #[arg(long, value_parser = temperature)]
    temperature: Option<f64>,
    /// Number of most likely tokens to sample from; default: all.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=16_777_216))]
    top_k: Option<u64>,
    /// Text n depends on this seed and on n; with `train.seed` the texts are those of
    /// `train.sample`.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of texts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    count: u64,
    /// Compute the whole context anew for each token of a gpt, instead of keeping the keys and
    /// values of earlier tokens: for comparisons.
    #[arg(long)]
    no_cache: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = TextFormat::Text)]
    format: TextFormat,
    #[command(flatten)]
    json: JsonFlag,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TextFormat {
    /// The texts, as they are written.
    Text,
    /// One object with all texts and their times.
    Json,
}

fn temperature(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|value| (0.0..=100.0).contains(value))
        .ok_or_else(|| "expected a number from 0 to 100".to_owned())
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let trained = find(&args.model)?;
    let origin = trained.origin();
    let task = UseTask::Sample(SampleTask {
        prompt: args.prompt.clone(),
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
        count: args.count,
        caches: !args.no_cache,
    });
    let device = &args.model.device;
    match args.json.or(args.format, TextFormat::Json) {
        TextFormat::Text => {
            let mut stream = TextStream::default();
            model_child::ask(trained, device, task, &mut |answer| stream.hear(answer))?;
            // The figure would be noise where the text goes to a file.
            if terminal::stdout_is_terminal() && terminal::stderr_is_terminal() {
                note(&format!(
                    "{} tokens in {}",
                    stream.tokens,
                    Seconds(stream.seconds)
                ));
            }
        }
        TextFormat::Json => {
            let mut texts = Vec::new();
            model_child::ask(trained, device, task, &mut |answer| {
                texts.extend(finished(answer));
                Ok(true)
            })?;
            let page =
                json!({"kiln_sample": 1, "model": origin, "prompt": args.prompt, "texts": texts});
            print_json(&format!("{page:#}\n"))?;
        }
    }
    Ok(Status::Success)
}

fn finished(answer: UseAnswer) -> Option<Value> {
    match answer {
        UseAnswer::Text {
            sample,
            text,
            tokens,
            seconds,
        } => Some(json!({"number": sample, "text": text, "tokens": tokens, "seconds": seconds})),
        _ => None,
    }
}

/// Prints texts while they grow.
#[derive(Default)]
struct TextStream {
    /// The part of the current text that has been printed.
    printed: String,
    tokens: u64,
    seconds: f64,
}

impl TextStream {
    fn hear(&mut self, answer: UseAnswer) -> Result<bool, Stop> {
        match answer {
            UseAnswer::Piece { sample, text } => {
                let begins = self.printed.is_empty() && sample > 1;
                self.printed.push_str(&text);
                let between = if begins { BETWEEN_TEXTS } else { "" };
                written(terminal::print_content(&format!("{between}{text}")))
            }
            UseAnswer::Text {
                text,
                tokens,
                seconds,
                ..
            } => {
                self.tokens += tokens;
                self.seconds += seconds;
                let rest = text.strip_prefix(&self.printed).unwrap_or_default();
                let end = if text.ends_with('\n') { "" } else { "\n" };
                self.printed.clear();
                written(terminal::print_content(&format!("{rest}{end}")))
            }
            _ => Ok(true),
        }
    }
}
