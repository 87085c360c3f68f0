//! Checks that the files of `train.initial_weights` exist and are the intended ones.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use kiln_core::{
    plan::Trial,
    record::run_folder::LATEST,
    spec::{Loaded, Problem, expand_home},
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
    let given = loaded.locate(KEY).filter(|_| {
        loaded
            .experiment
            .train
            .initial_weights
            .as_ref()
            .is_some_and(|given| expand_home(&given.path) == path)
    });
    Some(match given {
        Some(place) => Problem::new(&place, KEY, message).to_string(),
        None => message,
    })
}

/// Returns the `latest` link that a path goes through, and its target.
fn moving<'a>(path: &'a Path, experiment: &str) -> Option<(&'a Path, PathBuf)> {
    let is_its = |place: &Path| place.ends_with(Path::new(experiment).join(LATEST));
    let link = path.ancestors().find(|place| is_its(place))?;
    fs::read_link(link).ok().map(|folder| (link, folder))
}
