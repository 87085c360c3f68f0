//! The loss and the scores of a trained model: on the validation data of its trial, or on other
//! data of the same kind. The samples, their batches and the arithmetic are those of the
//! evaluations in its training, by the same function.

use std::{
    fmt::Display,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use kiln_core::{
    kinds::{Content, Data, InputShape},
    record::{
        model_use::{EvaluateTask, EvaluationScores, UseAnswer},
        note::UnknownTokens,
    },
    units::counted,
};
use kiln_data::{
    images::{self, ImagePixels},
    pairs,
    panel::{
        LoadedPanel, PanelReader,
        baseline::{self, Baselines},
        symbol_of_file,
    },
    source, text,
};

use super::{
    Answers, Trained,
    missing_data::{NORMALIZES, NUMBERS_TOKENS, TOKENIZES, VALIDATES, of_training},
    predict::image,
};
use crate::{
    TrialError,
    data::{
        self, ImageSource, LoadError, OpenedPairs, PairRows, PanelWindows, Source,
        ValidationWindows,
    },
    train::{feed, objective::Scores, responses::Responses, validation},
};

pub(super) fn evaluate<W: Write>(
    trained: &Trained<'_>,
    task: &EvaluateTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let mut data = match task.data.as_slice() {
        [] => own_data(trained)?,
        named => other_data(trained, named)?,
    };
    let Some(batches) = feed::validation(&trained.file, &data.valid) else {
        return Err(without_samples(trained, task));
    };
    let responses = responses(trained, task, data.pairs.clone())?;
    let mut learner = trained.learner(answers)?;
    let mut scores = validation::evaluate(
        &mut learner,
        batches.loader(),
        LoadError::in_use,
        &mut |_| Ok(()),
    )?;
    if let Some(asked) = responses {
        let written = asked.answers(&mut learner, &mut |_| Ok(()))?;
        scores = scores.with_responses(&asked.scores(&written));
        data.response_rows = Some(written.len() as u64);
    }
    if !scores.loss.is_finite() {
        return Err(TrialError::Failed(format!(
            "the loss is {}; the training of this model has probably diverged",
            scores.loss
        )));
    }
    answers.say(&UseAnswer::Evaluated(answer(trained, data, scores)))
}

/// Samples to evaluate on.
struct EvaluationData {
    valid: Arc<dyn Source>,
    /// Forecasts without a model; for a panel.
    baselines: Option<Baselines>,
    /// The rows and the tokenizer, for prompts and responses.
    pairs: Option<OpenedPairs>,
    /// Rows whose responses were scored.
    response_rows: Option<u64>,
    /// Sentences for the user.
    notices: Vec<String>,
}

impl EvaluationData {
    fn new(valid: impl Source) -> Self {
        Self {
            valid: Arc::new(valid),
            baselines: None,
            pairs: None,
            response_rows: None,
            notices: Vec::new(),
        }
    }
}

/// The prompts to answer: those of the trial's evaluations, and all prompts of other data.
fn responses(
    trained: &Trained<'_>,
    task: &EvaluateTask,
    pairs: Option<OpenedPairs>,
) -> Result<Option<Responses>, TrialError> {
    let mut file = trained.file.clone();
    if let Some(generate) = &mut file.train.evaluate.generate
        && !task.data.is_empty()
    {
        generate.rows = None;
    }
    Responses::new(&file, pairs)
}

fn answer(trained: &Trained<'_>, data: EvaluationData, scores: Scores) -> EvaluationScores {
    let is_text = matches!(trained.file.model.reads(), Content::Text | Content::Pairs);
    let perplexity = scores.loss.exp();
    let baselines = data.baselines.as_ref();
    EvaluationScores {
        samples: data.valid.sample_count(),
        targets: scores.targets,
        loss: scores.loss,
        perplexity: (is_text && perplexity.is_finite()).then_some(perplexity),
        top1: scores.top1,
        top5: scores.top5,
        mean_absolute_error: scores.mean_absolute_error,
        hit_rate: scores.hit_rate,
        persistence_mean_absolute_error: baselines
            .map(|baselines| baselines.persistence_mean_absolute_error),
        persistence_hit_rate: baselines.map(|baselines| baselines.persistence_hit_rate),
        majority_hit_rate: baselines.map(|baselines| baselines.majority_hit_rate),
        bleu4: scores.bleu4,
        chrf: scores.chrf,
        response_rows: data.response_rows,
        precision: Some(trained.file.train.precision),
        notices: data.notices,
    }
}

fn without_samples(trained: &Trained<'_>, task: &EvaluateTask) -> TrialError {
    TrialError::Bad(match (task.data.is_empty(), trained.file.model.seq_len()) {
        (true, _) => "the data of this trial has no validation part; name other data with `--data`"
            .to_owned(),
        (false, Some(seq_len)) => format!(
            "the files of `--data` have no sample to evaluate; each needs at least {} rows \
             (`model.seq_len` {seq_len} returns, and one to predict)",
            seq_len + 2
        ),
        (false, None) => "the files of `--data` have no sample to evaluate".to_owned(),
    })
}

/// The validation data of the trial.
fn own_data(trained: &Trained<'_>) -> Result<EvaluationData, TrialError> {
    let file = &trained.file;
    if !matches!(file.data, Data::None(_)) {
        source::locate(&file.data, trained.data_folder())
            .map_err(|error| of_training(VALIDATES, &error))?;
    }
    let opened = data::open(file).map_err(TrialError::Bad)?;
    trained.check_data(
        &opened.facts.sha256,
        "the losses of the training are those of the data as it was",
    )?;
    Ok(EvaluationData {
        valid: opened.valid,
        baselines: opened.baselines,
        pairs: opened.pairs,
        response_rows: None,
        notices: Vec::new(),
    })
}

/// Other data of the kind that the model reads.
fn other_data(
    trained: &Trained<'_>,
    named: &[(PathBuf, String)],
) -> Result<EvaluationData, TrialError> {
    match trained.file.model.reads() {
        Content::Nothing => Err(TrialError::Bad(format!(
            "`model.kind` {} reads no data",
            trained.file.model.kind()
        ))),
        Content::Text => other_text(trained, only(named, "text file")?),
        Content::Images => other_images(trained, only(named, "folder with a folder per class")?),
        Content::Panel => other_panel(trained, named),
        Content::Pairs => other_pairs(trained, only(named, "file of prompts and responses")?),
    }
}

fn only<'a>(named: &'a [(PathBuf, String)], what: &str) -> Result<&'a Path, TrialError> {
    match named {
        [(path, _)] => Ok(path.as_path()),
        _ => Err(TrialError::Bad(format!(
            "`--data` takes one {what} for this model, and {} paths are given",
            named.len()
        ))),
    }
}

fn bad(error: impl Display) -> TrialError {
    TrialError::Bad(error.to_string())
}

fn other_text(trained: &Trained<'_>, path: &Path) -> Result<EvaluationData, TrialError> {
    let found = text::load_other(&trained.file.data, trained.data_folder(), path)
        .map_err(|error| of_training(NUMBERS_TOKENS, &error))?;
    trained.check_data(&found.sha256, "tokens are numbered by it")?;
    let unknown_share = found.unknown_tokens as f64 / found.tokens.len().max(1) as f64;
    let unknown = UnknownTokens::noted(unknown_share, "text");
    Ok(EvaluationData {
        notices: unknown.iter().map(ToString::to_string).collect(),
        ..EvaluationData::new(ValidationWindows {
            tokens: Arc::new(found.tokens),
            seq_len: trained.file.model.seq_len().unwrap_or_default() as usize,
        })
    })
}

fn other_images(trained: &Trained<'_>, root: &Path) -> Result<EvaluationData, TrialError> {
    let data = &trained.file.data;
    let InputShape::Images(shape) = trained.input()? else {
        return Err(TrialError::Bad("the model does not read images".to_owned()));
    };
    let numbered = || (0..shape.classes).map(|class| class.to_string()).collect();
    let classes = trained.class_names()?.unwrap_or_else(numbered);
    if classes.len() as u64 != shape.classes {
        return Err(TrialError::Bad(format!(
            "the data has {} classes, and the model was trained with {}; restore the folders of \
             the training",
            classes.len(),
            shape.classes
        )));
    }
    let (mut found, skipped) = images::of_classes(data, root, &classes).map_err(bad)?;
    // Images of other kinds have one size, in files too.
    if !matches!(data, Data::ImageFolder(_))
        && let ImagePixels::Files(files) = &found.pixels
    {
        let mut pixels = Vec::new();
        for file in files {
            pixels.extend(image(data, shape, file, &file.display().to_string())?);
        }
        found.pixels = ImagePixels::Memory(pixels);
    }
    let skipped = (skipped > 0).then(|| {
        let files = counted(skipped as usize, "file");
        format!("{files} skipped: not an image (`data.skip_bad`)")
    });
    Ok(EvaluationData {
        notices: skipped.into_iter().collect(),
        ..EvaluationData::new(ImageSource::evaluated(data, found, shape))
    })
}

fn other_panel(
    trained: &Trained<'_>,
    named: &[(PathBuf, String)],
) -> Result<EvaluationData, TrialError> {
    let data = &trained.file.data;
    let reader = PanelReader::new(data, trained.data_folder())
        .map_err(|error| of_training(NORMALIZES, &error))?;
    trained.check_data(
        reader.sha256(),
        "its columns are normalized with the training's moments",
    )?;
    let files: Vec<PathBuf> = named.iter().map(|(path, _)| path.clone()).collect();
    let panel = Arc::new(reader.panel(&files).map_err(bad)?);
    let seq_len = trained.file.model.seq_len().unwrap_or_default();
    let target = data
        .panel_split()
        .map(|split| split.target)
        .unwrap_or_default();
    let [_, valid] = PanelWindows::both(&panel, seq_len as usize, target);
    Ok(EvaluationData {
        baselines: baseline::with_majority(&panel, seq_len, reader.majority_rises()),
        notices: panel_notices(&panel, named, seq_len),
        ..EvaluationData::new(valid)
    })
}

/// Sentences on rows and files that are not evaluated on.
fn panel_notices(panel: &LoadedPanel, named: &[(PathBuf, String)], seq_len: u64) -> Vec<String> {
    let dropped = |rows: u64, why: &str| {
        (rows > 0).then(|| format!("{} {why}", counted(rows as usize, "row")))
    };
    let notices = [
        dropped(panel.null_rows, "with a `null` dropped"),
        dropped(
            panel.skipped_rows,
            "dropped: not readable (`data.skip_bad`)",
        ),
        short_files(panel, named, seq_len),
    ];
    notices.into_iter().flatten().collect()
}

/// A sentence if files have too few rows for a sample.
fn short_files(panel: &LoadedPanel, named: &[(PathBuf, String)], seq_len: u64) -> Option<String> {
    let returns = |path: &Path| {
        let symbol = symbol_of_file(path);
        let mut all = panel.symbols.iter();
        all.find(|series| series.symbol == symbol)
            .map_or(0, |series| series.returns.len())
    };
    let mut short = named.iter().filter_map(|(path, name)| {
        let count = returns(path);
        (count as u64 <= seq_len).then_some((name, count))
    });
    let (name, count) = short.next()?;
    let rows = match count {
        0 => "fewer than 2 rows".to_owned(),
        _ => counted(count + 1, "row"),
    };
    let more = match short.count() {
        0 => String::new(),
        more => format!("; the same applies to {}", counted(more, "other file")),
    };
    Some(format!(
        "{name} has {rows} and no sample; {} are needed{more}",
        seq_len + 2
    ))
}

fn other_pairs(trained: &Trained<'_>, path: &Path) -> Result<EvaluationData, TrialError> {
    let data = &trained.file.data;
    let found = pairs::load_other(data, trained.data_folder(), path)
        .map_err(|error| of_training(TOKENIZES, &error))?;
    trained.check_tokens(&found.tokens)?;
    let bucket = data.pairs().cloned().unwrap_or_default().length_bucket;
    let (rows, tokens) = (Arc::new(found.rows), Arc::new(found.tokens));
    let counts = found.counts;
    let unknown = counts
        .unknown_fraction()
        .and_then(|share| UnknownTokens::noted(share, "rows"));
    let cut = counts.cut_prompts + counts.cut_responses;
    let cut = (cut > 0).then(|| {
        let texts = counted(cut as usize, "text");
        format!("{texts} cut at `data.max_prompt_tokens` or `data.max_response_tokens`")
    });
    Ok(EvaluationData {
        pairs: Some(OpenedPairs {
            train: Arc::new(PairRows::new(Arc::default(), tokens.pad(), bucket)),
            valid: Arc::clone(&rows),
            tokens: Arc::clone(&tokens),
        }),
        notices: unknown
            .map(|unknown| unknown.to_string())
            .into_iter()
            .chain(cut)
            .collect(),
        ..EvaluationData::new(PairRows::sorted(rows, tokens.pad(), bucket))
    })
}
