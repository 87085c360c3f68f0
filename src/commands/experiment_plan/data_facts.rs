//! The facts about the data of trials, and why some of them are unknown.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use kiln_core::{
    kinds::{
        Data, KeyFault,
        data::{Counts, DataFacts, PairCounts},
    },
    plan::{PlanProblem, Trial},
    record::run_file::joined_sums,
    spec::expand_home,
};
use kiln_data::{
    error::DataError,
    facts::{cache_folder, facts},
    images,
    source::data_folder,
    text,
    tokenizer::Vocabulary,
};

/// Returns a line per split with the number and lengths of prompts and responses and how many were
/// cut; none for other data.
fn about_pairs(data: &Data, facts: &DataFacts) -> Vec<String> {
    let (Counts::Pairs { train, valid, .. }, Some(sampling)) = (&facts.counts, data.pairs()) else {
        return Vec::new();
    };
    let (kind, most_prompt, most_response) = (
        data.kind(),
        sampling.max_prompt_tokens,
        sampling.max_response_tokens,
    );
    let about = |part: &str, counts: &PairCounts| {
        let PairCounts {
            rows,
            prompt_tokens,
            response_tokens,
            cut_prompts,
            cut_responses,
            ..
        } = counts;
        let unknown = counts.unknown_fraction().unwrap_or_default() * 100.0;
        format!(
            "{part} rows of {kind}: {rows}, with {prompt_tokens} prompt and {response_tokens} \
             response tokens, {unknown:.2} % of them unknown; cut: {cut_prompts} prompts at \
             {most_prompt} tokens, {cut_responses} responses at {most_response}"
        )
    };
    vec![about("training", train), about("validation", valid)]
}

/// The data with `~` at the beginning of its paths replaced.
pub(in crate::commands) fn at_home(data: &Data) -> Data {
    let mut data = data.clone();
    for path in data.paths_mut() {
        *path = expand_home(path).to_string_lossy().into_owned();
    }
    data
}

/// Finds facts about texts, and collects the reasons for unknown facts.
pub(in crate::commands) struct FactFinder {
    data_folder: Option<PathBuf>,
    cache: Option<PathBuf>,
    pub(super) notes: RefCell<BTreeSet<String>>,
    /// The notes about malformed data.
    pub(super) malformed: RefCell<BTreeSet<String>>,
    pub(super) remarks: RefCell<BTreeSet<String>>,
    hashes: RefCell<BTreeMap<String, BTreeSet<String>>>,
    /// Kinds of which some data are not here.
    incomplete: RefCell<BTreeSet<String>>,
}

impl FactFinder {
    /// Uses `$KILN_DATA` and the user's cache folder.
    pub(in crate::commands) fn from_environment() -> Self {
        let variable = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            data_folder: data_folder(),
            cache: cache_folder(variable("XDG_CACHE_HOME"), variable("HOME")),
            notes: RefCell::default(),
            malformed: RefCell::default(),
            remarks: RefCell::default(),
            hashes: RefCell::default(),
            incomplete: RefCell::default(),
        }
    }

    /// Reasons why some requested facts about data are unknown.
    pub(in crate::commands) fn notes(&self) -> Vec<String> {
        self.notes.borrow().iter().cloned().collect()
    }

    /// SHA-256 of the requested data, by the data kinds of which all are here.
    pub(in crate::commands) fn hashes(&self) -> BTreeMap<String, String> {
        let (hashes, incomplete) = (self.hashes.borrow(), self.incomplete.borrow());
        let whole = hashes
            .iter()
            .filter(|(kind, _)| !incomplete.contains(*kind));
        let joined = |sums: &BTreeSet<String>| joined_sums(sums.iter().map(String::as_str));
        whole
            .map(|(kind, sums)| (kind.clone(), joined(sums)))
            .collect()
    }

    /// Returns the prompts of `train.sample` that the vocabularies cannot encode, each with its
    /// first trial. A text that cannot be read has a note already.
    pub(super) fn prompt_faults(&self, trials: &[Trial]) -> Vec<PlanProblem> {
        let mut looked_at = BTreeSet::new();
        let mut vocabularies: HashMap<String, Option<Vocabulary>> = HashMap::new();
        let mut faults = Vec::new();
        for trial in trials {
            let (source, Some(sample)) = (trial.data.source_key(), &trial.train.sample) else {
                continue;
            };
            if !looked_at.insert((source.clone(), sample.prompt.clone())) {
                continue;
            }
            let read = || {
                text::load(&at_home(&trial.data), self.data_folder.as_deref())
                    .ok()
                    .map(|text| text.vocabulary)
            };
            let vocabulary = vocabularies.entry(source).or_insert_with(read);
            if let Some(Err(why)) = vocabulary
                .as_ref()
                .map(|vocabulary| vocabulary.encode_prompt(&sample.prompt))
            {
                let key = "train.sample.prompt";
                let fault = KeyFault::new(key, format!("`{key}` {why}"));
                faults.push(PlanProblem::of_point(fault, &trial.axes));
            }
        }
        faults
    }

    /// The facts of the data. The classes of a folder of images are looked at too.
    fn facts(&self, data: &Data) -> Result<Option<DataFacts>, DataError> {
        let folder = self.data_folder.as_deref();
        if let Data::ImageFolder(_) = data {
            let found = images::load(data, folder)?;
            let remark = images::about_classes(data, &found);
            self.remarks.borrow_mut().extend(remark);
            return Ok(Some(found.facts));
        }
        facts(data, folder, self.cache.as_deref())
    }

    pub(in crate::commands) fn find(&self, data: &Data) -> Option<DataFacts> {
        match self.facts(&at_home(data)) {
            Ok(found) => {
                if let Some(facts) = &found {
                    let mut hashes = self.hashes.borrow_mut();
                    let of_kind = hashes.entry(data.kind().to_owned()).or_default();
                    of_kind.insert(facts.sha256.clone());
                    self.remarks.borrow_mut().extend(about_pairs(data, facts));
                }
                found
            }
            Err(error) => {
                let note = error.to_string();
                if error.is_malformed() {
                    self.malformed.borrow_mut().insert(note.clone());
                }
                self.notes.borrow_mut().insert(note);
                self.incomplete.borrow_mut().insert(data.kind().to_owned());
                None
            }
        }
    }
}
