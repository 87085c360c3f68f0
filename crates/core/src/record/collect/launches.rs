//! The launches of a run as `run.json` lists them, each with the name of its node.

use std::{collections::BTreeMap, io};

use crate::record::{
    RunFile, RunFolder,
    launch_folder::{self, LaunchFile},
    run_file::Launch,
};

/// The launches of `run.json` that have no folder, and those that have one, by number.
pub(super) fn merged(file: &RunFile, launches: &[LaunchFile]) -> Vec<Launch> {
    let mut all: BTreeMap<u64, _> = file
        .launches
        .iter()
        .map(|launch| (launch.launch, launch.clone()))
        .collect();
    let nodes = node_names(launches);
    for (file, node) in launches.iter().zip(nodes) {
        let mut launch = file.launch.clone();
        launch.node = Some(node);
        all.insert(launch.launch, launch);
    }
    all.into_values().collect()
}

/// The files of the launches, without those that cannot be read.
pub(super) fn launch_files(run: &RunFolder) -> io::Result<Vec<LaunchFile>> {
    let launches = launch_folder::listed(run)?.into_iter();
    Ok(launches
        .filter_map(|launch| LaunchFile::read(run, launch))
        .collect())
}

/// The name of each launch's node: as the launch gives it, else `node-1`, `node-2`, … in the order
/// of the launches.
pub(super) fn node_names(launches: &[LaunchFile]) -> Vec<String> {
    let mut known: Vec<&str> = Vec::new();
    launches
        .iter()
        .map(|file| {
            if let Some(name) = &file.launch.node {
                return name.clone();
            }
            let id = file.launch.host();
            let place = known.iter().position(|other| *other == id);
            let place = place.unwrap_or_else(|| {
                known.push(id);
                known.len() - 1
            });
            format!("node-{}", place + 1)
        })
        .collect()
}
