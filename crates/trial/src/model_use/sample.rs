//! Texts of a trained model: a language model continues a prompt, a sequence-to-sequence model
//! answers it. Random: one stream per text, from the request's seed and the text's number alone.

use std::{io::Write, time::Instant};

use kiln_core::{
    kinds::Model,
    record::model_use::{SampleTask, UseAnswer},
    spec::Sample,
    units::counted,
};
use kiln_data::{pairs, text};

use super::{
    Answers, Trained,
    missing_data::{NUMBERS_TOKENS, TOKENIZES, of_training},
};
use crate::{
    TrialError,
    train::{
        generation::Writing,
        sample::{TextSampler, draw, stream},
    },
};

/// The source of the prompt, for messages.
const PROMPT: &str = "`--prompt`";

pub(super) fn sample<W: Write>(
    trained: Trained<'_>,
    task: &SampleTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    match &trained.file.model {
        Model::Seq2seq(_) => respond(&trained, task, answers),
        Model::Gpt(_) | Model::Lstm(_) | Model::Mlp(_) | Model::Custom(_)
            if trained.file.data.tokenizer().is_some() =>
        {
            write(trained, task, answers)
        }
        other => Err(TrialError::Bad(format!(
            "a trial with `model.kind` {} and `data.kind` {} writes no text; use `kiln predict`",
            other.kind(),
            trained.file.data.kind()
        ))),
    }
}

/// Continues the prompt.
fn write<W: Write>(
    mut trained: Trained<'_>,
    task: &SampleTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let (vocabulary, sha256) = text::vocabulary(&trained.file.data, trained.data_folder())
        .map_err(|error| of_training(NUMBERS_TOKENS, &error))?;
    trained.check_data(&sha256, "tokens are numbered by it")?;
    trained.file.train.seed = task.seed;
    let asked = Sample {
        prompt: task.prompt.clone(),
        tokens: task.tokens,
        temperature: task.temperature.unwrap_or(1.0),
        top_k: task.top_k,
        samples: task.count,
    };
    let unknown = vocabulary.unknown_tokens(&task.prompt);
    let sampler = TextSampler::of(&trained.file, asked, vocabulary, PROMPT)?;
    let sampler = if task.caches {
        sampler
    } else {
        sampler.without_cache()
    };
    let mut learner = trained.learner(answers)?;
    tell_unknown(unknown, answers)?;
    for sample in 1..=task.count {
        let mut spoken = Spoken::new(sample);
        let started = Instant::now();
        let tokens = sampler.tokens_of(
            sample,
            &mut |tokens, memory| learner.predict(tokens, memory),
            &mut |tokens| spoken.say(&sampler.vocabulary().decode(tokens), answers),
        )?;
        answers.say(&UseAnswer::Text {
            sample,
            text: sampler.vocabulary().decode(&tokens),
            tokens: task.tokens,
            seconds: started.elapsed().as_secs_f64(),
        })?;
    }
    Ok(())
}

/// Answers the prompt.
fn respond<W: Write>(
    trained: &Trained<'_>,
    task: &SampleTask,
    answers: &mut Answers<W>,
) -> Result<(), TrialError> {
    let bad = |error: &dyn std::fmt::Display| TrialError::Bad(error.to_string());
    let (tokens, _) = pairs::tokens(&trained.file.data, trained.data_folder())
        .map_err(|error| of_training(TOKENIZES, &error))?;
    trained.check_tokens(&tokens)?;
    let mut prompt = tokens.encode(&task.prompt).map_err(|error| bad(&error))?;
    let is_unknown = |id: &&u32| tokens.unknown() == Some(**id);
    let unknown = prompt.iter().filter(is_unknown).count() as u64;
    let most = trained
        .file
        .data
        .pairs()
        .map_or(u64::MAX, |sampling| sampling.max_prompt_tokens);
    if prompt.len() as u64 >= most {
        return Err(TrialError::Bad(format!(
            "{PROMPT} has {} tokens, and the model was trained with at most {} and the end token \
             (`data.max_prompt_tokens` {most}); shorten it",
            prompt.len(),
            most.saturating_sub(1)
        )));
    }
    prompt.push(tokens.end());
    let writing = Writing {
        most: usize::try_from(task.tokens).unwrap_or(usize::MAX),
        beams: 1,
        start: tokens.pad(),
        end: tokens.end(),
        vocabulary: tokens.len(),
    };
    let temperature = task.temperature.unwrap_or(0.0);
    let mut learner = trained.learner(answers)?;
    tell_unknown(unknown, answers)?;
    for sample in 1..=task.count {
        let mut random = stream(task.seed, sample);
        let mut written = Vec::new();
        let mut spoken = Spoken::new(sample);
        let started = Instant::now();
        learner.answer(&writing, &prompt, &mut |outputs| {
            let token = draw(outputs, temperature, task.top_k, random.fraction())?;
            if token != writing.end {
                written.push(token);
                spoken.say(&tokens.decode(&written), answers)?;
            }
            Ok(token)
        })?;
        answers.say(&UseAnswer::Text {
            sample,
            text: tokens.decode(&written),
            tokens: written.len() as u64,
            seconds: started.elapsed().as_secs_f64(),
        })?;
    }
    Ok(())
}

/// Says how many tokens of the prompt the vocabulary does not have.
fn tell_unknown<W: Write>(unknown: u64, answers: &mut Answers<W>) -> Result<(), TrialError> {
    if unknown == 0 {
        return Ok(());
    }
    let text = format!(
        "{PROMPT} has {} that the vocabulary does not have; the model reads each as the unknown token",
        counted(unknown as usize, "token")
    );
    answers.say(&UseAnswer::Notice { text })
}

/// The part of a growing text that has been sent.
struct Spoken {
    sample: u64,
    bytes: usize,
}

impl Spoken {
    fn new(sample: u64) -> Self {
        Self { sample, bytes: 0 }
    }

    /// Sends the letters that a text has gained. A letter that may still change is held back: the
    /// first bytes of one, which decode to `�`, and the blank at the end of a word.
    fn say<W: Write>(&mut self, text: &str, answers: &mut Answers<W>) -> Result<(), TrialError> {
        let settled = text.trim_end_matches([char::REPLACEMENT_CHARACTER, ' ']);
        let Some(more) = settled.get(self.bytes..).filter(|more| !more.is_empty()) else {
            return Ok(());
        };
        answers.say(&UseAnswer::Piece {
            sample: self.sample,
            text: more.to_owned(),
        })?;
        self.bytes = settled.len();
        Ok(())
    }
}
