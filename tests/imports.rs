//! Holds the direction of imports: each module of kiln uses only those before it on the journey, and `kiln-trial` only what the
//! two processes share (`docs/design.md`).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Module, and what it may import besides itself and `units`.
const MAY_IMPORT: [(&str, &[&str]); 10] = [
    ("units", &[]),
    ("statistics", &[]),
    ("catalog", &[]),
    ("hardware", &[]),
    ("spec", &["catalog"]),
    ("plan", &["catalog", "spec", "statistics"]),
    ("record", &["catalog", "plan", "hardware"]),
    ("schedule", &["spec", "plan", "hardware", "record"]),
    ("report", &["plan", "record", "statistics"]),
    ("commands", &["catalog", "spec", "plan", "schedule", "hardware", "record", "report"]),
];

/// What the package `kiln-trial` may use of `kiln`.
const TRIAL_MAY_IMPORT: [&str; 5] = ["catalog", "spec", "plan", "record", "units"];

#[test]
fn every_module_imports_only_what_lies_before_it() {
    let mut faults = Vec::new();
    for file in sources(Path::new("src")) {
        let module = module_of(&file);
        if ["lib", "main"].contains(&module.as_str()) {
            continue;
        }
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == module) else {
            faults.push(format!("{}: module `{module}` is not in the table of imports", file.display()));
            continue;
        };
        for used in used_modules(&fs::read_to_string(&file).unwrap(), "crate::") {
            if used != module && used != "units" && !allowed.contains(&used.as_str()) {
                faults.push(format!("{}: `{module}` may not import `{used}`", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_trial_uses_only_what_both_processes_share() {
    let mut faults = Vec::new();
    for file in sources(Path::new("trial/src")) {
        for used in used_modules(&fs::read_to_string(&file).unwrap(), "kiln::") {
            if !TRIAL_MAY_IMPORT.contains(&used.as_str()) {
                faults.push(format!("{}: `kiln-trial` may not use `kiln::{used}`", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn all_ways_to_write_a_path_are_seen() {
    let text = "use crate::{\n    plan::{Trial, TrialId},\n    record, // crate::report in a comment\n};\nuse crate::units::Bytes;\n\
                fn f() -> crate::spec::Run { other_crate::schedule() }\n/// See `crate::commands`.\n";
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

/// `src/plan/trial.rs` is of module `plan`, `src/units.rs` of `units`.
fn module_of(file: &Path) -> String {
    let first = file.components().nth(1).unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The modules named right after `root` (`crate::`) in paths and in braces, comments left out.
fn used_modules(text: &str, root: &str) -> BTreeSet<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut used = BTreeSet::new();
    for (place, _) in code.match_indices(root) {
        let is_part_of_a_name = code[..place].chars().next_back().is_some_and(|before| before.is_alphanumeric() || before == '_' || before == ':');
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
    let name: String = text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect();
    (!name.is_empty()).then_some(name)
}
