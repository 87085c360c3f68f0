//! The sections of a file that depend on the model and its data.

use kiln_core::units::without_controls;

use super::{
    InitKind,
    found_data::{self, FoundData},
    machine::Machine,
};

/// The sections of a file that depend on the model and its data.
pub(super) struct Sections {
    pub(super) description: &'static str,
    pub(super) model: String,
    pub(super) data: String,
    /// Examples in training, if they are known.
    pub(super) examples: u64,
    /// Enough for a measured window and a first model.
    pub(super) steps: u64,
    pub(super) optimizer: &'static str,
}

/// Steps of a model whose step takes some milliseconds or more.
const STEPS: u64 = 200;
/// Steps of a model that is fast on any machine.
const STEPS_OF_A_SMALL_MODEL: u64 = 2000;

pub(super) fn sections(kind: InitKind, data: Option<&FoundData>, machine: &Machine) -> Sections {
    let most_length = machine.sized(256, 64);
    let (text, length, examples) = text_data(data, most_length);
    match kind {
        InitKind::Gpt => Sections {
            description: "Which batch size trains a small GPT fastest?",
            model: format!(
                "  kind: gpt
  d_model: {}              # width; num_heads divides it
  num_layers: {}
  num_heads: 4
  seq_len: {length}               # tokens per example
",
                machine.sized(384, 64),
                machine.sized(6, 2)
            ),
            data: text,
            examples,
            steps: STEPS,
            optimizer: "{kind: adamw, learning_rate: 1.0e-3, weight_decay: 0.01}",
        },
        InitKind::Lstm => match data {
            Some(FoundData::Panel {
                path,
                date,
                price,
                columns,
                rows,
                comments,
            }) => {
                let comments: String = comments.iter().map(|line| comment(line)).collect();
                let columns = columns.as_deref();
                of_panel([path, date, price, &comments], columns, *rows, machine)
            }
            _ => Sections {
                description: "Which batch size trains a small LSTM fastest?",
                model: format!(
                    "  kind: lstm
  d_model: {width}              # width of the token embedding
  hidden: {width}
  num_layers: 2
  seq_len: {length}               # tokens per example
",
                    width = machine.sized(512, 64)
                ),
                data: text,
                examples,
                steps: STEPS,
                optimizer: "{kind: adamw, learning_rate: 1.0e-3}",
            },
        },
        InitKind::Resnet => of_images(data, machine),
        // A command has a file of its own.
        InitKind::Seq2seq | InitKind::Command => of_pairs(data, machine),
    }
}

/// The data section of a text, the length of its examples, and their number.
fn text_data(data: Option<&FoundData>, most_length: u64) -> (String, u64, u64) {
    let Some(FoundData::Text { path, bytes }) = data else {
        let made = "  kind: generated          # a made-up text, the same on every machine\n";
        return (made.to_owned(), most_length, 200_000 / most_length);
    };
    // The last tenth validates, and needs at least one example.
    let length = (bytes / 40).clamp(4, most_length);
    let text = format!(
        "  kind: text
  path: {path}
  tokenizer: character     # character, byte or word
  valid_fraction: 0.1      # the last tenth validates
"
    );
    (text, length, bytes / 6 / length)
}

fn of_images(data: Option<&FoundData>, machine: &Machine) -> Sections {
    let (data, examples) = match data {
        Some(FoundData::Images {
            path,
            images,
            skip_bad,
            has_few,
        }) => (
            format!(
                "  kind: image-folder
  path: {path}
  image_size: {}
  flip: true               # mirrors half of the images, anew in each epoch
{}{}",
                machine.sized(224, 64),
                match *skip_bad {
                    true =>
                        "  skip_bad: true           # skips files that are not images, as there are here\n",
                    false => "",
                },
                match *has_few {
                    true => format!(
                        "  valid_fraction: {}  # of each class; the classes have few images\n",
                        found_data::FRACTION_OF_FEW
                    ),
                    false => String::new(),
                }
            ),
            images / 2,
        ),
        _ => (
            "  kind: generated-images   # made-up images, the same on every machine
  images: 2000
  valid_images: 200
  image_size: 32
"
            .to_owned(),
            2000,
        ),
    };
    Sections {
        description: "Which batch size trains a ResNet-18 fastest?",
        model: format!(
            "  kind: resnet
  depth: 18                # 18, 34, 50, 101 or 152
  width: {}                # channels of the first stage; 64 is the published size
  stem: {}              # small for images of up to 64 pixels, else imagenet
",
            machine.sized(64, 16),
            machine.sized("imagenet", "small")
        ),
        data,
        examples,
        steps: STEPS,
        optimizer: "{kind: sgd, learning_rate: 0.05, momentum: 0.9, weight_decay: 5.0e-4}",
    }
}

/// A line of comment in a section.
fn comment(line: &str) -> String {
    format!("  # {}\n", without_controls(line))
}

fn of_panel(
    [path, date, price, comments]: [&String; 4],
    columns: Option<&[String]>,
    rows: u64,
    machine: &Machine,
) -> Sections {
    let columns = columns.map_or(String::new(), |columns| {
        format!("  columns: [{}]\n", columns.join(", "))
    });
    let length = found_data::window(rows);
    Sections {
        description: "Which batch size trains an LSTM over a panel of time series fastest?",
        model: format!(
            "  kind: panel-lstm
  seq_len: {length}               # rows per example
  hidden: {}
  num_layers: 2
",
            machine.sized(256, 32)
        ),
        data: format!(
            "  kind: panel-csv
  path: {path}
  date: {date}
  price: {price}           # the column whose next log return is predicted
{columns}{comments}  valid_fraction: 0.1      # the last tenth of the dates validates
"
        ),
        examples: rows / 2,
        steps: STEPS_OF_A_SMALL_MODEL,
        optimizer: "{kind: adamw, learning_rate: 1.0e-3}",
    }
}

fn of_pairs(data: Option<&FoundData>, machine: &Machine) -> Sections {
    let (data, rows) = match data {
        Some(FoundData::Pairs {
            path,
            valid,
            tokenizer,
            prompt,
            response,
            rows,
            comments,
            ..
        }) => (
            format!(
                "  kind: sft-jsonl
  path: {path}
  tokenizer: {}
  prompt_key: {prompt}
  response_key: {response}
{}{}  max_prompt_tokens: 128   # longer ones are cut, and counted
  max_response_tokens: 128
",
                found_data::shown(tokenizer),
                comments
                    .iter()
                    .map(|line| comment(line))
                    .collect::<String>(),
                match valid {
                    Some(valid) => format!("  valid_path: {valid}\n"),
                    None => "  valid_fraction: 0.1      # the last tenth of the rows validates\n"
                        .to_owned(),
                }
            ),
            *rows,
        ),
        _ => (String::new(), 0),
    };
    Sections {
        description: "Which batch size trains a small encoder and decoder fastest?",
        model: format!(
            "  kind: seq2seq
  d_model: {}
  d_kv: 32                 # width of one attention head
  d_ff: {}
  encoder_layers: 2
  decoder_layers: 2
  num_heads: 4
",
            machine.sized(256, 64),
            machine.sized(1024, 256)
        ),
        data,
        examples: rows / 2,
        steps: STEPS,
        optimizer: "{kind: adamw, learning_rate: 1.0e-3, weight_decay: 0.01}",
    }
}
