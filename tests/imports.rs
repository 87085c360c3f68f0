//! Holds the direction of imports inside a package: each module uses only those before it on the
//! journey (`docs/design.md`). Between packages the compiler holds it.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Module, and what it may import besides itself.
type MayImport = [(&'static str, &'static [&'static str])];

const CORE: &MayImport = &[
    ("patience", &[]),
    ("folder", &["patience"]),
    ("limits", &["units"]),
    ("input", &["limits", "patience"]),
    ("statistics", &[]),
    ("kinds", &["units"]),
    ("spec", &["units", "limits", "input", "kinds"]),
    ("pretrained", &["limits", "input", "kinds", "spec"]),
    ("plan", &["units", "limits", "kinds", "spec", "statistics"]),
    (
        "record",
        &[
            "folder",
            "patience",
            "units",
            "limits",
            "input",
            "kinds",
            "spec",
            "statistics",
            "plan",
        ],
    ),
];

const PROGRAM: &MayImport = &[
    ("fetch", &[]),
    ("output", &[]),
    // `program` writes scripts for tests.
    ("subprocess", &["program"]),
    ("git", &["subprocess", "program"]),
    ("readings", &["output"]),
    ("preflight", &["subprocess", "readings", "program"]),
    ("processes", &[]),
    ("relay", &["processes"]),
    (
        "schedule",
        &[
            "subprocess",
            "git",
            "readings",
            "preflight",
            "processes",
            "relay",
            "program",
        ],
    ),
    ("report", &["output", "readings"]),
    ("progress", &["output", "schedule"]),
    ("follow", &["output", "progress"]),
    (
        "commands",
        &[
            "subprocess",
            "fetch",
            "follow",
            "git",
            "output",
            "preflight",
            "processes",
            "progress",
            "readings",
            "relay",
            "schedule",
            "report",
        ],
    ),
];

#[test]
fn every_module_imports_only_what_lies_before_it() {
    let faults: Vec<String> = [("crates/core/src", CORE), ("src", PROGRAM)]
        .into_iter()
        .flat_map(|(folder, table)| faults(folder, table))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Within a folder too: no two files of a package need each other.
#[test]
fn no_files_import_each_other_in_a_circle() {
    let ended = Command::new("python3")
        .args(["scripts/house.py", "--circles"])
        .output()
        .unwrap();
    let circles = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && circles.is_empty(), "{circles}");
}

#[test]
fn what_each_dependency_is_for_is_said() {
    let page = fs::read_to_string("docs/dependencies.md").unwrap();
    let said: HashSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|crates| crates.split(", "))
        .collect();
    let mut files: Vec<PathBuf> = fs::read_dir("crates")
        .unwrap()
        .map(|entry| entry.unwrap().path().join("Cargo.toml"))
        .collect();
    files.push("Cargo.toml".into());
    let mut silent = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut is_list = false;
        for line in text.lines() {
            if line.starts_with('[') {
                is_list = line.ends_with("dependencies]");
            } else if let Some((name, _)) = line.split_once([' ', '.']).filter(|_| is_list)
                && !name.starts_with('#')
                && !name.starts_with("kiln-")
                && !name.starts_with("fake-")
                && !said.contains(name)
            {
                silent.insert(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(silent.is_empty(), "docs/dependencies.md lacks {silent:?}");
}

fn faults(folder: &str, table: &MayImport) -> Vec<String> {
    let mut faults = Vec::new();
    for file in sources(Path::new(folder)) {
        let module = module_of(file.strip_prefix(folder).unwrap());
        if ["lib", "main"].contains(&module.as_str()) {
            continue;
        }
        let Some((_, allowed)) = table.iter().find(|(name, _)| *name == module) else {
            faults.push(format!(
                "{}: module `{module}` is not in the table of imports",
                file.display()
            ));
            continue;
        };
        for used in used_modules(&fs::read_to_string(&file).unwrap(), "crate::") {
            if used != module && !allowed.contains(&used.as_str()) {
                faults.push(format!(
                    "{}: `{module}` may not import `{used}`",
                    file.display()
                ));
            }
        }
    }
    faults
}

#[test]
fn all_ways_to_write_a_path_are_seen() {
    let text = "use crate::{\n    plan::{Trial, TrialId},\n    record, // crate::report in a \
                comment\n};\nuse crate::units::Bytes;\n\
                fn f() -> crate::spec::Run { other_crate::schedule() }\n/// See \
                `crate::commands`.\n";
    let used: Vec<String> = used_modules(text, "crate::").into_iter().collect();
    assert_eq!(used, ["plan", "record", "spec", "units"]);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// `plan/trial.rs` is of module `plan`, `fetch.rs` of `fetch`.
fn module_of(file: &Path) -> String {
    let first = file
        .components()
        .next()
        .unwrap()
        .as_os_str()
        .to_string_lossy()
        .into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules named right after `root` (`crate::`) in paths and in braces, comments left out.
fn used_modules(text: &str, root: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut used = BTreeSet::new();
    for (place, _) in code.match_indices(root) {
        let is_part_of_a_name = code[..place]
            .chars()
            .next_back()
            .is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':');
        if is_part_of_a_name {
            continue;
        }
        let rest = &code[place + root.len()..];
        match rest.strip_prefix('{') {
            Some(list) => used.extend(top_level_names(list)),
            None => used.extend(name_at(rest)),
        }
    }
    // A type or a macro of the crate's root is no module.
    used.retain(|name| name.starts_with(|first: char| first.is_ascii_lowercase()));
    used
}

/// The first name of each entry of `a::{b, c}, d, …}`.
fn top_level_names(list: &str) -> Vec<String> {
    let (mut names, mut depth, mut is_start) = (Vec::new(), 0, true);
    for (place, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            _ if depth == 0 && is_start && !character.is_whitespace() => {
                names.extend(name_at(&list[place..]));
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

fn name_at(text: &str) -> Option<String> {
    let name: String = text
        .chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}
