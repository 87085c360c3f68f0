//! Files of symbols that lie beside a panel's CSV files and would not be read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{file_name, is_csv};
use crate::error::PanelError;

/// Ends of the names of compressed files.
const COMPRESSED: [&str; 6] = [".gz", ".xz", ".zst", ".bz2", ".zip", ".7z"];

/// Refuses the folder `path` if something in it looks like the file of a symbol and cannot be read
/// as one. `csv` are the paths whose names are those of CSV files, `others` the rest.
pub(super) fn refuse(path: &Path, csv: &[PathBuf], others: &[PathBuf]) -> Result<(), PanelError> {
    let mut found: Vec<(String, &'static str, &'static str)> = csv
        .iter()
        .filter(|entry| !entry.is_file())
        .map(|entry| {
            let fault = "is a folder, a broken link or a special file";
            (file_name(entry).into_owned(), fault, "remove it")
        })
        .chain(others.iter().filter_map(|entry| of_other(entry)))
        .collect();
    found.sort_unstable();
    match found.into_iter().next() {
        None => Ok(()),
        Some((name, fault, remedy)) => Err(PanelError::Unread {
            path: path.to_owned(),
            name,
            fault,
            remedy,
        }),
    }
}

/// The name, the fault and the remedy of a compressed CSV file, or of a folder of CSV files.
fn of_other(entry: &Path) -> Option<(String, &'static str, &'static str)> {
    let name = file_name(entry);
    let mut endings = COMPRESSED.iter();
    if endings.any(|ending| name.strip_suffix(ending).is_some_and(is_csv)) {
        let remedy = "decompress it, or move it away";
        return Some((name.into_owned(), "is compressed", remedy));
    }
    (!name.starts_with('.') && holds_csv(entry)).then(|| {
        let remedy = "put all CSV files into one folder, or move this one away";
        (name.into_owned(), "is a folder with more of them", remedy)
    })
}

/// Whether a folder has a CSV file; one that cannot be listed has none.
fn holds_csv(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    folder.is_dir() && paths.any(|path| is_csv(&file_name(&path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::files::find;

    #[test]
    fn what_looks_like_a_symbol_and_is_not_read_is_an_error() {
        let fault = |make: &dyn Fn(&Path)| {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("a.csv"), "1").unwrap();
            make(folder.path());
            let error = find(folder.path(), None, None).err();
            error.map(|error| error.to_string())
        };
        let file =
            |name: &'static str| move |folder: &Path| fs::write(folder.join(name), "1").unwrap();
        for name in ["notes.txt", "b.tsv", ".b.csv.gz", "b.gz"] {
            assert_eq!(fault(&file(name)), None, "{name}");
        }
        for name in ["b.csv.gz", "b.CSV.xz", "b.csv.zst", "b.csv.zip", "b.csv.7z"] {
            let error = fault(&file(name)).unwrap();
            assert!(
                error.contains(&format!("and {name} is compressed;"))
                    && error.ends_with("decompress it, or move it away"),
                "{error}"
            );
        }
        let link = fault(&|folder: &Path| {
            std::os::unix::fs::symlink("nowhere", folder.join("z.csv")).unwrap();
        });
        assert!(link.unwrap().contains("z.csv is a folder, a broken link"));
        let folder_named = |name: &'static str| {
            move |folder: &Path| {
                fs::create_dir(folder.join(name)).unwrap();
                fs::write(folder.join(name).join("c.csv"), "1").unwrap();
            }
        };
        let north = fault(&folder_named("north")).unwrap();
        assert!(
            north.contains("north is a folder with more of them"),
            "{north}"
        );
        let named = fault(&folder_named("d.csv")).unwrap();
        assert!(named.contains("d.csv is a folder"), "{named}");
        assert_eq!(fault(&folder_named(".hidden")), None);
        let empty = fault(&|folder: &Path| fs::create_dir(folder.join("empty")).unwrap());
        assert_eq!(empty, None);
    }
}
