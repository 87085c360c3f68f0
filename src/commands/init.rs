//! `kiln init`: writes a commented experiment file that runs on what is at hand.

mod character_tokenizer;
mod command;
mod found_data;
mod machine;
mod sections;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use kiln_core::{
    folder::write_whole,
    input::is_absent,
    record::run_folder::LATEST,
    units::{shell_word, without_controls},
};

use self::{
    found_data::{DataProposal, FoundData, find},
    machine::Machine,
    sections::{Sections, sections},
};
use super::{RESULTS, Status, Stop, note, print, recorded_trial::RecordedTrial, same_name};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The file to write.
    #[arg(value_name = "FILE", default_value = "experiment.yaml")]
    file: PathBuf,
    /// Kind of model. Default: the one for the data; without data, `gpt`.
    #[arg(long, value_enum)]
    kind: Option<InitKind>,
    /// Your data: a text file, a folder with one folder of images per class, a folder of CSV files
    /// with a date in each row, or a JSONL file of prompts and responses, whose characters are the
    /// tokens unless a `tokenizer.json` is beside it. Default: data that kiln makes itself.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Write the complete experiment of one trial of a run, with the values that its sweep gave it.
    /// Without a trial: that of the best point of the run. A run is named as in `kiln report`.
    #[arg(long, value_name = "RUN[:TRIAL]", conflicts_with_all = ["kind", "data"])]
    from: Option<String>,
    /// Folder of the runs, for `--from`.
    #[arg(long, value_name = "DIR", default_value = RESULTS)]
    results: PathBuf,
    /// Overwrite the file.
    #[arg(long)]
    force: bool,
}

/// The kinds of models that a file can be written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum InitKind {
    /// A transformer that predicts the next token of a text.
    Gpt,
    /// A network for images.
    Resnet,
    /// A recurrent network for texts, or for a panel of time series.
    Lstm,
    /// An encoder and a decoder for prompts and responses.
    Seq2seq,
    /// Any program.
    Command,
}

impl InitKind {
    fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Resnet => "resnet",
            Self::Lstm => "lstm",
            Self::Seq2seq => "seq2seq",
            Self::Command => "command",
        }
    }
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    if !args.force {
        refuse_existing(&args.file)?;
    }
    if let Some(named) = &args.from {
        return write_trial(named, &args);
    }
    let found = {
        let is_asked_as_text = args.kind == Some(InitKind::Gpt);
        let home = args.file.parent().unwrap_or(Path::new(""));
        let find = |path: &Path| find(path, is_asked_as_text, home);
        args.data.as_deref().map(find).transpose()?
    };
    let (data, notes) = match found {
        Some(DataProposal { data, notes }) => (Some(data), notes),
        None => (None, Vec::new()),
    };
    let kind = kind(args.kind, data.as_ref())?;
    let machine = Machine::here();
    if let Some((index, why)) = &machine.unusable {
        note(&format!(
            "note: the file is written for the CPU, because no GPU can be used (GPU {index}: {why}); \
             `kiln doctor` says more"
        ));
    }
    notes.iter().for_each(|line| note(line));
    let name = free_name(&args.file);
    let text = match kind {
        InitKind::Command => command::experiment(&name, &without_controls(&machine.about)),
        _ => experiment(&name, kind, data.as_ref(), &machine),
    };
    write_file(&args, &text)?;
    let tokenizer = match &data {
        Some(FoundData::Pairs {
            tokenizer, made, ..
        }) => of_tokenizer(tokenizer, made.as_deref())?,
        _ => String::new(),
    };
    tell_written(&args.file, &name, &tokenizer)
}

/// Writes the experiment of one trial of a run.
fn write_trial(named: &str, args: &Args) -> Result<Status, Stop> {
    let trial = RecordedTrial::find("--from", named, &args.results)?;
    trial.tell_choice();
    let name = free_name(&args.file);
    trial.tell_origin(&args.file);
    write_file(args, &trial.experiment_file(&name)?)?;
    tell_written(&args.file, &name, "")
}

/// Refuses a file that is there, or may be.
fn refuse_existing(file: &Path) -> Result<(), Stop> {
    match file.symlink_metadata() {
        Err(error) if is_absent(&error) => Ok(()),
        Err(error) => Err(Stop::bad_input(format!(
            "{}: whether this file exists is not known: {error}",
            file.display()
        ))),
        Ok(_) => Err(existing(file)),
    }
}

fn existing(file: &Path) -> Stop {
    Stop::bad_input(format!(
        "{}: this file exists; name another one, or overwrite it with `--force`",
        file.display()
    ))
}

fn write_file(args: &Args, text: &str) -> Result<(), Stop> {
    let file = &args.file;
    let written = match args.force {
        true => write_whole(file, text.as_bytes()),
        false => write_new(file, text.as_bytes()),
    };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => existing(file),
        _ => Stop::bad_input(format!(
            "{}: this file cannot be written: {error}",
            file.display()
        )),
    })
}

/// Writes a file that must not exist yet.
fn write_new(file: &Path, bytes: &[u8]) -> io::Result<()> {
    // The empty file keeps the name from now on.
    File::create_new(file)?;
    write_whole(file, bytes).inspect_err(|_| {
        let _ = fs::remove_file(file);
    })
}

/// Says what was written and what comes next; `more` are lines between the two.
fn tell_written(file: &Path, name: &str, more: &str) -> Result<Status, Stop> {
    let shown = without_controls(&file.display().to_string());
    let word = without_controls(&shell_word(&file.display().to_string()));
    let is_of_file = file.file_stem().is_some_and(|stem| *stem == *name);
    let named_else = match is_of_file {
        true => String::new(),
        false => format!("; its `name` is {name}"),
    };
    print(&format!(
        "wrote {shown}{named_else}\n{more}next:\n  kiln plan {word}\n  kiln run {word}\n"
    ))?;
    Ok(Status::Success)
}

/// Writes a tokenizer where there is none; returns the line that says which one is taken.
fn of_tokenizer(path: &Path, made: Option<&str>) -> Result<String, Stop> {
    let shown = without_controls(&path.display().to_string());
    let Some(text) = made else {
        return Ok(format!(
            "takes {shown}, which was there: it must be the tokenizer of this data\n"
        ));
    };
    write_new(path, text.as_bytes()).map_err(|error| {
        Stop::bad_input(format!(
            "{shown}: the tokenizer of the data cannot be written: {error}"
        ))
    })?;
    Ok(format!(
        "wrote {shown}: each character of the data is a token; to use another tokenizer, put its \
         `tokenizer.json` there\n"
    ))
}

/// The asked kind, or the one for the data; refuses a kind that cannot read the data.
fn kind(asked: Option<InitKind>, data: Option<&FoundData>) -> Result<InitKind, Stop> {
    let fitting: &[InitKind] = match data {
        None => &[
            InitKind::Gpt,
            InitKind::Resnet,
            InitKind::Lstm,
            InitKind::Command,
        ],
        Some(FoundData::Text { .. }) => &[InitKind::Gpt, InitKind::Lstm],
        Some(FoundData::Images { .. }) => &[InitKind::Resnet],
        Some(FoundData::Panel { .. }) => &[InitKind::Lstm],
        Some(FoundData::Pairs { .. }) => &[InitKind::Seq2seq],
    };
    let kind = asked.unwrap_or(fitting[0]);
    if fitting.contains(&kind) {
        return Ok(kind);
    }
    let name = kind.name();
    Err(Stop::bad_input(match data {
        None => format!(
            "kind `{name}` needs prompts and responses: `--data ROWS.jsonl`, a line such as \
             {{\"prompt\": …, \"response\": …}} for each"
        ),
        Some(data) => format!(
            "kind `{name}` does not read {}; use `--kind {}`, or leave `--kind` out",
            data.what(),
            fitting[0].name()
        ),
    }))
}

/// A name for the experiment that no other file beside it has.
fn free_name(file: &Path) -> String {
    let name = name(file);
    let names = std::iter::once(name.clone()).chain((2..).map(|next| format!("{name}-{next}")));
    let mut free = names.filter(|name| same_name::file_beside(file, name).is_none());
    free.next().unwrap_or_default()
}

/// Words that are no text in YAML, and the name of the link to the newest run.
const NO_NAMES: [&str; 4] = ["true", "false", "null", LATEST];

/// A name for the experiment: the file's, with the letters that a name may have.
fn name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let allowed = |letter: char| match letter {
        letter if letter.is_ascii_alphanumeric() || "._-".contains(letter) => letter,
        _ => '-',
    };
    let name: String = stem.chars().map(allowed).take(100).collect();
    let name = name.trim_start_matches(['.', '_', '-']);
    match name.is_empty() {
        true => "experiment".to_owned(),
        // Some names would be read as a number.
        false if name.starts_with(|first: char| first.is_ascii_digit()) => format!("x{name}"),
        // `true`, `false` and `null` are no text in YAML; `latest` is the link to the newest run.
        false if NO_NAMES.contains(&name.to_lowercase().as_str()) => format!("x{name}"),
        false => name.to_owned(),
    }
}

fn experiment(name: &str, kind: InitKind, data: Option<&FoundData>, machine: &Machine) -> String {
    let Sections {
        description,
        model,
        data,
        examples,
        steps,
        optimizer,
    } = sections(kind, data, machine);
    let largest = machine.sized(64, 16).min(examples.max(2) / 2).max(1);
    let sizes: Vec<String> = match largest {
        1 => vec!["1".to_owned()],
        largest => vec![(largest / 2).to_string(), largest.to_string()],
    };
    let precision = machine.sized("amp-bf16", "f32");
    let text = format!(
        "# Written by `kiln init` for {about}.
# `kiln check` finds mistakes, `kiln plan` shows the trials, `kiln run` runs them.
# Every key is described in docs/experiment-file.md; `kiln schema` prints them for an editor.
kiln: 1
name: {name}  # the folder below results/
description: {description}

model:
{model}
data:
{data}  num_workers: {workers}            # threads that prepare batches

train:
  steps: {steps}  # optimizer updates; or `epochs: 3`
  precision: {precision}            # f32, tf32, bf16, amp-bf16 or amp-f16
  seed: 1
  optimizer: {optimizer}
  learning_rate_schedule: {{kind: cosine, warmup_steps: 10}}
  clip_norm: 1.0
  checkpoint: {{every_steps: {checkpoint}}}  # keeps the best weights, for `kiln sample`, `predict` and `export`
  # evaluate: {{every: {checkpoint}}}  # validation during training; one at the end always takes place

measure:
  warmup_steps: 10          # trained, and left out of the timing
  warmup_seconds: 0.5

sweep:
  grid:                     # every combination of the values of all axes; any key may be an axis
    train.batch_size: [{sizes}]
    # Another question: put its axis in place of the line above, and change `description`.
    # train.optimizer.learning_rate: {{from: 1.0e-4, to: 1.0e-2, steps: 5, scale: log}}
  # repeats: 3              # seeds 1, 2 and 3: the spread is part of the result

run:
  devices: auto             # a GPU if there is one; cpu, all, or a list such as [0, 1]
  # timeout: 30m            # for each trial
",
        about = without_controls(&machine.about),
        workers = machine.workers,
        sizes = sizes.join(", "),
        checkpoint = steps / 2,
    );
    with_aligned_comments(&text)
}

/// Column of the comments behind values.
const COMMENT_COLUMN: usize = 28;

/// Moves comments behind values to one column, as far as the values allow.
fn with_aligned_comments(text: &str) -> String {
    let aligned = |line: &str| match line.rsplit_once("  # ") {
        // A quoted value may hold these letters.
        Some((value, comment)) if !value.trim().is_empty() && !comment.contains('"') => {
            format!(
                "{:<COMMENT_COLUMN$}# {comment}\n",
                format!("{}  ", value.trim_end())
            )
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(aligned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_a_name_that_an_experiment_may_have() {
        for (file, expected) in [
            ("a/my run.yaml", "my-run"),
            (".yaml", "yaml"),
            ("über.yml", "ber"),
            ("2024.yaml", "x2024"),
            ("--.yaml", "experiment"),
            ("null.yaml", "xnull"),
            ("True.yaml", "xTrue"),
            ("latest.yaml", "xlatest"),
        ] {
            assert_eq!(name(Path::new(file)), expected, "{file}");
        }
    }

    #[test]
    fn a_file_that_is_there_or_may_be_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [file, itself] = ["a.yaml", "loop"].map(|name| folder.path().join(name));
        write_new(&file, b"first").unwrap();
        let error = write_new(&file, b"second").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&file).unwrap(), b"first");
        std::os::unix::fs::symlink("loop", &itself).unwrap();
        assert!(refuse_existing(&folder.path().join("b.yaml")).is_ok());
        for occupied in [&file, &itself, &itself.join("a.yaml")] {
            assert!(refuse_existing(occupied).is_err(), "{}", occupied.display());
        }
    }

    #[test]
    fn comments_stand_in_one_column_and_values_are_not_changed() {
        let text = "a: 1  # one\n  b: \"x  # y\"\n# whole\n  # c: 3  # three\n";
        let aligned = format!(
            "{:<28}# one\n  b: \"x  # y\"\n# whole\n{:<28}# three\n",
            "a: 1", "  # c: 3"
        );
        assert_eq!(with_aligned_comments(text), aligned);
    }
}
