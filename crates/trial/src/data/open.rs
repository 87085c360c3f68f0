//! Opens the samples of the trial's `data` section.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use kiln_core::{
    kinds::{
        Content, Data, Model,
        data::{DataFacts, Sampling},
    },
    plan::TrialFile,
    record::note::UnknownTokens,
};
use kiln_data::{
    images, left_out, notices,
    pairs::{self, Pair, TokenFile},
    panel::{self, baseline::Baselines},
    text,
    tokenizer::Vocabulary,
};

use super::{
    ImageSource, PairRows, PanelWindows, Source, TextWindows, ValidationWindows, validation,
};

/// Data that a model can be trained on.
pub(crate) struct Opened {
    pub(crate) train: Arc<dyn Source>,
    /// Samples of one epoch, before what fills no step is dropped.
    pub(crate) epoch_samples: u64,
    pub(crate) sampling: Sampling,
    /// Training samples with close keys make a step; of prompts and responses.
    pub(crate) sort_keys: Option<Arc<Vec<u64>>>,
    pub(crate) valid: Arc<dyn Source>,
    /// A hash of what is evaluated; `None` if that depends on the training data, or is nothing.
    pub(crate) validation: Option<String>,
    pub(crate) facts: DataFacts,
    /// Vocabulary of a text.
    pub(crate) vocabulary: Option<Vocabulary>,
    /// Dropped parts of the data: what was dropped, and how much.
    pub(crate) left_out: BTreeMap<String, u64>,
    /// Present if the tokenizer seems to belong to another text.
    pub(crate) unknown: Option<UnknownTokens>,
    /// Sentences on probable mistakes in the data.
    pub(crate) notice: Option<String>,
    /// Errors of forecasts without a model; for a panel.
    pub(crate) baselines: Option<Baselines>,
    /// Prompts and reference responses; for data of prompts and responses.
    pub(crate) pairs: Option<OpenedPairs>,
    /// Names of symbols. Those of classes take a listing of the images and are left to the caller.
    pub(crate) labels: Option<Labels>,
}

/// Names in the order of their numbers.
pub(crate) struct Labels {
    /// The key of an export's `config.json` that has them.
    pub(crate) key: &'static str,
    /// The part of a model that has a row for each.
    pub(crate) part: &'static str,
    pub(crate) names: Vec<String>,
}

/// The rows and how their ids are read.
#[derive(Clone)]
pub(crate) struct OpenedPairs {
    pub(crate) train: Arc<PairRows>,
    /// In the order of their file.
    pub(crate) valid: Arc<Vec<Pair>>,
    pub(crate) tokens: Arc<TokenFile>,
}

/// Opens what the trial names. The error is in words.
pub(crate) fn open(file: &TrialFile) -> Result<Opened, String> {
    let folder = file.data_folder.as_deref();
    let seq_len = file.model.seq_len().unwrap_or_default() as usize;
    match file.model.reads() {
        Content::Nothing => Err(format!("`model.kind` {} reads no data", file.model.kind())),
        Content::Text => {
            // The others know no memory: in any order, each window has the same loss.
            let is_recurrent = !matches!(file.model, Model::Gpt(_) | Model::Mlp(_));
            open_text(&file.data, folder, seq_len, is_recurrent)
        }
        Content::Images => open_images(&file.data, folder, file.train.seed),
        Content::Panel => open_panel(&file.data, folder, seq_len),
        Content::Pairs => open_pairs(&file.data, folder),
    }
}

fn open_text(
    data: &Data,
    folder: Option<&Path>,
    seq_len: usize,
    is_recurrent: bool,
) -> Result<Opened, String> {
    let found = text::load(data, folder).map_err(|error| error.to_string())?;
    let unknown = notices::unknown_of_text(&found);
    let validation = validation::of_text(&found, is_recurrent && data.is_contiguous());
    let cut = data.sampling().cloned().unwrap_or_default();
    let stride = cut.stride.map_or(seq_len, |stride| stride.max(1) as usize);
    let strided = TextWindows {
        tokens: Arc::new(found.train),
        seq_len,
        stride,
    };
    let epoch_samples = strided.sample_count();
    let train = if cut.sampling == Sampling::Random {
        TextWindows {
            stride: 1,
            ..strided
        }
    } else {
        strided
    };
    Ok(Opened {
        train: Arc::new(train),
        epoch_samples,
        sampling: cut.sampling,
        sort_keys: None,
        valid: Arc::new(ValidationWindows {
            tokens: Arc::new(found.valid),
            seq_len,
        }),
        validation,
        facts: found.facts,
        vocabulary: Some(found.vocabulary),
        left_out: BTreeMap::new(),
        unknown,
        notice: None,
        baselines: None,
        pairs: None,
        labels: None,
    })
}

fn open_images(data: &Data, folder: Option<&Path>, seed: u64) -> Result<Opened, String> {
    let found = images::load(data, folder).map_err(|error| error.to_string())?;
    let (facts, left_out) = (found.facts.clone(), left_out::of_images(&found));
    let notice = notices::of_images(data, &found);
    let validation = validation::of_images(data, &found);
    let [train, valid] = ImageSource::both(data, found, seed);
    Ok(Opened {
        epoch_samples: train.sample_count(),
        train: Arc::new(train),
        sampling: Sampling::Shuffled,
        sort_keys: None,
        valid: Arc::new(valid),
        validation,
        facts,
        vocabulary: None,
        left_out,
        unknown: None,
        notice,
        baselines: None,
        pairs: None,
        labels: None,
    })
}

fn open_panel(data: &Data, folder: Option<&Path>, seq_len: usize) -> Result<Opened, String> {
    let found = Arc::new(panel::load(data, folder).map_err(|error| error.to_string())?);
    let target = data
        .panel_split()
        .map(|split| split.target)
        .unwrap_or_default();
    let [train, valid] = PanelWindows::both(&found, seq_len, target);
    let labels = Labels {
        key: "symbols",
        part: "embedding",
        names: found.symbols.iter().map(|one| one.symbol.clone()).collect(),
    };
    Ok(Opened {
        epoch_samples: train.sample_count(),
        train: Arc::new(train),
        sampling: Sampling::Shuffled,
        sort_keys: None,
        valid: Arc::new(valid),
        validation: None,
        facts: found.facts.clone(),
        vocabulary: None,
        left_out: left_out::of_panel(&found),
        unknown: None,
        notice: found.chained.clone(),
        baselines: panel::baseline::baselines(&found, seq_len as u64),
        pairs: None,
        labels: Some(labels),
    })
}

fn open_pairs(data: &Data, folder: Option<&Path>) -> Result<Opened, String> {
    let sampling = data.pairs().cloned().unwrap_or_default();
    let found = pairs::load(data, folder).map_err(|error| error.to_string())?;
    let notice = notices::seen_rows(found.seen_valid_rows, found.valid.len() as u64);
    let validation = validation::of_pairs(&found);
    let (valid, tokens) = (Arc::new(found.valid), Arc::new(found.tokens));
    let train = Arc::new(
        PairRows::new(Arc::new(found.train), tokens.pad(), sampling.length_bucket)
            .longest_first(sampling.longest_first),
    );
    Ok(Opened {
        epoch_samples: train.sample_count(),
        sampling: Sampling::Shuffled,
        sort_keys: sampling.sort_by_length.then(|| Arc::new(train.sort_keys())),
        valid: Arc::new(PairRows::sorted(
            Arc::clone(&valid),
            tokens.pad(),
            sampling.length_bucket,
        )),
        validation,
        vocabulary: None,
        left_out: left_out::of_pairs(&found.facts, &sampling),
        unknown: notices::unknown_of_pairs(&found.facts),
        facts: found.facts,
        notice,
        baselines: None,
        pairs: Some(OpenedPairs {
            train: Arc::clone(&train),
            valid,
            tokens,
        }),
        train,
        labels: None,
    })
}

#[cfg(test)]
mod tests {
    use kiln_data::notices::{seen_rows, with_remedy};

    use super::*;

    #[test]
    fn validation_rows_that_are_training_rows_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let [rows, tokenizer] = ["rows.jsonl", "t.json"].map(|name| folder.path().join(name));
        std::fs::write(&rows, "{\"prompt\": \"a\", \"response\": \"b\"}\n").unwrap();
        let words = include_str!("../../../../tests/tokenizer.json");
        std::fs::write(&tokenizer, words).unwrap();
        let (rows, tokenizer) = (rows.display(), tokenizer.display());
        let data = format!(
            "{{kind: sft-jsonl, path: {rows}, valid_path: {rows}, tokenizer: {tokenizer}}}"
        );
        let data: Data = serde_yaml::from_str(&data).unwrap();
        assert_eq!(
            open_pairs(&data, None).unwrap().notice.unwrap(),
            "1 of 1 validation rows are also training rows: their loss says nothing about new \
             rows; take them out of one of the two parts"
        );
        assert!(seen_rows(6, 100).is_some());
        for few in [seen_rows(5, 100), seen_rows(0, 20), seen_rows(0, 0)] {
            assert_eq!(few, None);
        }
    }

    #[test]
    fn a_class_without_a_validation_image_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        for (class, images) in [("a", 10), ("b", 2)] {
            let class = folder.path().join(class);
            std::fs::create_dir(&class).unwrap();
            for number in 0..images {
                std::fs::write(class.join(format!("{number}.png")), b"not read").unwrap();
            }
        }
        let path = folder.path().display();
        let data = format!("{{kind: image-folder, path: {path}}}");
        let data: Data = serde_yaml::from_str(&data).unwrap();
        let notice = open_images(&data, None, 1).unwrap().notice.unwrap();
        assert!(
            notice.contains("no validation image of class b"),
            "{notice}"
        );
    }

    #[test]
    fn words_that_only_validation_has_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.txt");
        let noted = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let data = format!(
                "{{kind: text, path: {}, tokenizer: word, valid_fraction: 0.5}}",
                path.display()
            );
            let data: Data = serde_yaml::from_str(&data).unwrap();
            let unknown = open_text(&data, None, 2, false).unwrap().unknown?;
            Some(with_remedy(&unknown, &data))
        };
        assert_eq!(noted("a b c\na b c\n"), None);
        assert_eq!(
            noted("a b c\na x y\n").unwrap(),
            "50.0 % of the tokens of the validation text are unknown to the tokenizer; the \
             training text does not have them; use `data.tokenizer: byte`, or more text"
        );
    }

    #[test]
    fn one_part_that_is_left_out_is_named_in_the_singular() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = "Date,Close\n2020-01-01,10\n2020-01-02,null\n".to_owned();
        let left_out = |text: &str| {
            std::fs::write(folder.path().join("A.csv"), text).unwrap();
            let data = format!(
                "{{kind: panel-csv, path: {}, price: Close}}",
                folder.path().display()
            );
            let data: Data = serde_yaml::from_str(&data).unwrap();
            open_panel(&data, None, 2).unwrap().left_out
        };
        for day in 3..=29 {
            text.push_str(&format!("2020-01-{day:02},{day}\n"));
        }
        assert_eq!(
            left_out(&text),
            BTreeMap::from([("row with a `null`".to_owned(), 1)])
        );
        text.push_str("2020-01-30,null\n2020-01-31,5\n");
        assert_eq!(
            left_out(&text),
            BTreeMap::from([("rows with a `null`".to_owned(), 2)])
        );
    }

    #[test]
    fn skipped_rows_are_named_by_reason_and_file() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bad: &[&str]| {
            let good = (1..=28).map(|day| format!("2020-01-{day:02},{day}\n"));
            let good: String = good.collect();
            let text = format!("Date,Close\n{good}{}\n", bad.join("\n"));
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("A.csv", &["2020-02-01,x", "2020-01-01,5"]);
        write("B.csv", &["2020-02-01,x", "2020-02-02,"]);
        let data = format!(
            "{{kind: panel-csv, path: {}, price: Close, skip_bad: true}}",
            folder.path().display()
        );
        let data: Data = serde_yaml::from_str(&data).unwrap();
        assert_eq!(
            open_panel(&data, None, 2).unwrap().left_out,
            BTreeMap::from([
                (
                    "rows with a cell that is not a number (2 of them in B.csv)".to_owned(),
                    3
                ),
                ("row with a date out of order (in A.csv)".to_owned(), 1),
            ])
        );
    }
}
