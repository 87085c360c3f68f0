//! The programs of a launch that are not kiln's own, as facts of its record: keys with values.

use std::collections::BTreeMap;

use kiln_core::{
    record::{Interpreter, PackageList, run_file::Launch},
    units::{counted, short_hash},
};

/// Facts of programs begin with one of these.
pub(in crate::report) const PROGRAM_FACTS: [&str; 4] =
    ["programs.", "interpreters.", "repositories.", PACKAGES];
/// Facts of single packages.
pub(in crate::report) const PACKAGES: &str = "packages.";

/// The facts of a launch's programs: the SHA-256 of each file, interpreters, repositories.
pub(in crate::report) fn program_facts(launch: &Launch) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    for program in launch.programs.values() {
        for (path, sha256) in program.files.iter().chain(&program.beside) {
            facts.insert(format!("programs.{path}"), sha256.clone());
        }
        for (path, interpreter) in &program.interpreters {
            let at = |fact: &str| format!("interpreters.{path}.{fact}");
            let unknown = || unknown(interpreter);
            let version = interpreter.version.clone().unwrap_or_else(unknown);
            facts.insert(at("version"), version);
            let packages = match (interpreter.packages, &interpreter.packages_sha256) {
                (Some(count), Some(sha256)) => {
                    format!("{} ({})", counted(count, "package"), short_hash(sha256))
                }
                _ => unknown(),
            };
            facts.insert(at("packages"), packages);
        }
        for (path, git) in &program.repositories {
            let is_known = launch.git.as_ref() == Some(git);
            if !is_known {
                facts.insert(format!("repositories.{path}.commit"), git.commit.clone());
                facts.insert(format!("repositories.{path}.dirty"), git.dirty.to_string());
            }
        }
    }
    facts
}

/// Leaves out the files of programs that the other side has under another path, with the same name and
/// content: a run in another folder. `key` is a key as [`program_facts`] makes them.
pub(in crate::report) fn drop_moved<K: Ord + Clone, V: PartialEq>(
    [base, new]: [&mut BTreeMap<K, V>; 2],
    key: fn(&K) -> &str,
) {
    let name = |place: &K| {
        let path = key(place).strip_prefix("programs.")?;
        path.rsplit('/').next().map(str::to_owned)
    };
    let alone: Vec<(K, String)> = base
        .keys()
        .filter(|place| !new.contains_key(place))
        .filter_map(|place| Some((place.clone(), name(place)?)))
        .collect();
    for (place, file) in alone {
        let is_it = |other: &&K| {
            !base.contains_key(other)
                && name(other).as_ref() == Some(&file)
                && new.get(other) == base.get(&place)
        };
        if let Some(moved) = new.keys().find(is_it).cloned() {
            new.remove(&moved);
            base.remove(&place);
        }
    }
}

/// The libraries that a launch's own programs loaded and `kiln-trial` did not.
pub(in crate::report) fn further_libraries(launch: &Launch) -> BTreeMap<String, String> {
    let libraries = launch
        .programs
        .values()
        .flat_map(|program| &program.libraries);
    libraries
        .filter(|(name, _)| !launch.libraries.contains_key(*name))
        .map(|(name, version)| (format!("libraries.{name}"), version.clone()))
        .collect()
}

/// The single packages of a list of the run.
pub(in crate::report) fn package_facts(text: &str) -> BTreeMap<String, String> {
    let lists = PackageList::parse(text);
    let is_one = lists.len() == 1;
    let of_list = |list: PackageList| {
        let place = match is_one {
            true => String::new(),
            false => format!("{}.", list.interpreter),
        };
        let packages = list.packages.into_iter();
        packages.map(move |(name, version)| (format!("{PACKAGES}{place}{name}"), version))
    };
    lists.into_iter().flat_map(of_list).collect()
}

/// The file of a run with the packages of its newest launch.
pub fn packages_file(launch: &Launch) -> Option<&str> {
    let interpreters = launch
        .programs
        .values()
        .flat_map(|program| program.interpreters.values());
    let mut files = interpreters.filter_map(|interpreter| interpreter.packages_file.as_deref());
    // The name stands in a file that somebody else may have written.
    files.find(|name| !name.contains('/') && name.starts_with("packages-"))
}

/// `python 3.12.3, 41 packages, in packages-1.txt`.
pub(in crate::report) fn sentence(interpreter: &Interpreter) -> String {
    let version = interpreter
        .version
        .clone()
        .unwrap_or_else(|| unknown(interpreter));
    let packages = interpreter
        .packages
        .map(|count| format!(", {}", counted(count, "package")));
    let file = interpreter
        .packages_file
        .as_ref()
        .filter(|_| packages.is_some());
    let file = file.map(|file| format!(", in {file}"));
    version + &packages.unwrap_or_default() + &file.unwrap_or_default()
}

fn unknown(interpreter: &Interpreter) -> String {
    match &interpreter.unknown {
        Some(why) => format!("unknown ({why})"),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_one_interpreter_go_by_their_names_and_of_several_by_both() {
        let one = package_facts("# python: python 3.12.3, 1 package\nnumpy 2.1.0\n");
        assert_eq!(
            one.into_iter().collect::<Vec<_>>(),
            [("packages.numpy".to_owned(), "2.1.0".to_owned())]
        );
        let two = package_facts("# a/python: x\nnumpy 1\n# b/python: x\nnumpy 2\n");
        let keys: Vec<String> = two.into_keys().collect();
        assert_eq!(keys, ["packages.a/python.numpy", "packages.b/python.numpy"]);
    }
}
