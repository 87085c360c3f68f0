//! Finds experiment files that share a name, as a copied file does: their runs are one list.

use std::{fs, path::Path};

use kiln_core::{input, limits::EXPERIMENT_BYTES, units::without_controls};

/// Most files that are looked at.
const MOST_FILES: usize = 200;

/// The name of another experiment file in the folder of `file` that has the line `name: NAME`.
pub(super) fn file_beside(file: &Path, name: &str) -> Option<String> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut others: Vec<_> = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "yaml" || end == "yml")
        })
        .filter(|path| path.file_name() != file.file_name() && path.is_file())
        .take(MOST_FILES)
        .collect();
    others.sort();
    let found = others.iter().find(|path| {
        let text = input::read_text(path, &EXPERIMENT_BYTES);
        text.is_ok_and(|text| text.lines().any(|line| is_name(line, name)))
    });
    Some(found?.file_name()?.to_string_lossy().into_owned())
}

/// Says that another file beside `file` has the same name.
pub(super) fn notice(file: &Path, name: &str) -> Option<String> {
    let other = without_controls(&file_beside(file, name)?);
    Some(format!(
        "note: {other} has the same `name`, {name}, so the runs of both files are listed \
         together; give one of them a name of its own"
    ))
}

fn is_name(line: &str, name: &str) -> bool {
    let value = line.strip_prefix("name:").unwrap_or_default();
    let value = value.split(" #").next().unwrap_or_default();
    value.trim().trim_matches(['"', '\'']) == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_with_the_same_name_is_found_and_the_file_itself_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            fs::write(folder.path().join(file), text).unwrap();
        };
        let file = folder.path().join("b.yaml");
        write("b.yaml", "kiln: 1\nname: b\n");
        write("a.yaml", "kiln: 1\nname: bb\n# name: b\n");
        write("a.txt", "name: b\n");
        assert_eq!(file_beside(&file, "b"), None);
        write("c.yml", "kiln: 1\nname:   \"b\"  # copied\n");
        assert_eq!(file_beside(&file, "b").as_deref(), Some("c.yml"));
    }
}
