//! Checks that the files of `train.initial_weights` exist, are the intended ones and fit the models.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use kiln_core::{
    kinds::{Data, InputShape, Model},
    plan::Trial,
    pretrained::{WeightsFit, WeightsHeader, have_same_bits},
    record::run_folder::LATEST,
    spec::{InitialWeights, Loaded, Problem, expand_home},
};
use kiln_data::weights;

const KEY: &str = "train.initial_weights.path";

/// Returns the problems of the files that these trials start from; each file is read once.
pub(super) fn faults(loaded: &Loaded, trials: &[Trial]) -> Vec<String> {
    let named = trials
        .iter()
        .filter_map(|trial| trial.train.initial_weights.as_ref());
    let different: BTreeSet<(&str, &str)> = named
        .map(|weights| (weights.path.as_str(), weights.sha256.as_str()))
        .collect();
    different
        .into_iter()
        .filter_map(|(path, sha256)| fault(loaded, &expand_home(path), sha256))
        .collect()
}

fn fault(loaded: &Loaded, path: &Path, sha256: &str) -> Option<String> {
    let message = match moving(path, &loaded.experiment.name) {
        Some((link, folder)) => format!(
            "`{KEY}` goes through {}, which will be the folder of this run; name {} instead",
            link.display(),
            link.with_file_name(folder).display()
        ),
        None => weights::check(path, sha256).err()?.to_string(),
    };
    Some(placed(loaded, path, message))
}

/// Returns the problems of files whose tensors are not those of a trial's model, by their headers. A
/// file that cannot be read has another problem; the models of users' own programs are not known.
/// `input` finds the shape of data.
pub(super) fn unfit(
    loaded: &Loaded,
    trials: &[Trial],
    input: &dyn Fn(&Data) -> Option<InputShape>,
) -> Vec<String> {
    let mut compared = BTreeSet::new();
    let mut faults = Vec::new();
    for trial in trials {
        let Some(weights) = &trial.train.initial_weights else {
            continue;
        };
        let pair = format!("{weights:?} {:?} {}", trial.model, trial.data.source_key());
        if matches!(*trial.model, Model::Custom(_)) || !compared.insert(pair) {
            continue;
        }
        let path = expand_home(&weights.path);
        if let Err(message) = fits(&path, weights, trial, input) {
            let message = format!("trial {}: {message}", trial.id);
            faults.push(placed(loaded, &path, message));
        }
    }
    faults
}

fn fits(
    path: &Path,
    weights: &InitialWeights,
    trial: &Trial,
    input: &dyn Fn(&Data) -> Option<InputShape>,
) -> Result<(), String> {
    let header = match WeightsHeader::read(path) {
        Ok(header) => header,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(format!(
                "{}: {error}; `train.initial_weights` needs a safetensors file: save the model as one",
                path.display()
            ));
        }
        Err(_) => return Ok(()),
    };
    let fit = WeightsFit::new(path, header, weights, &trial.model, None)?;
    let is_same = |one: &str, other: &str| have_same_bits(path, [one, other]).unwrap_or(true);
    fit.check_copies(input(&trial.data), &is_same)
}

/// The message with the place of the key, if the file gives this path there.
fn placed(loaded: &Loaded, path: &Path, message: String) -> String {
    let given = loaded.locate(KEY).filter(|_| {
        loaded
            .experiment
            .train
            .initial_weights
            .as_ref()
            .is_some_and(|given| expand_home(&given.path) == path)
    });
    match given {
        Some(place) => Problem::new(&place, KEY, message).to_string(),
        None => message,
    }
}

/// Returns the `latest` link that a path goes through, and its target.
fn moving<'a>(path: &'a Path, experiment: &str) -> Option<(&'a Path, PathBuf)> {
    let is_its = |place: &Path| place.ends_with(Path::new(experiment).join(LATEST));
    let link = path.ancestors().find(|place| is_its(place))?;
    fs::read_link(link).ok().map(|folder| (link, folder))
}
