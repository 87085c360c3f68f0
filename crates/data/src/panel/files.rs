//! The CSV files of a panel, one per symbol: in a folder, or in an archive. `rows` reads their
//! content.

mod unread;

use std::{
    borrow::Cow,
    cell::Cell,
    fs,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    rc::Rc,
};

use kiln_core::{
    input::{self, Bounded},
    limits::{ARCHIVE_BYTES, DATA_BYTES},
};

use crate::{
    error::{DataError, PanelError},
    files,
    suffix::ARCHIVES,
};

const CSV: &str = ".csv";

/// The file of one symbol.
pub(super) struct CsvFile {
    /// Its name without `.csv`.
    pub(super) symbol: String,
    /// Its path, for messages; for a file in an archive the archive's path comes first.
    pub(super) path: PathBuf,
    content: PanelContent,
}

enum PanelContent {
    /// Not read yet.
    OnDisk,
    Read(Vec<u8>),
}

impl CsvFile {
    pub(super) fn bytes(&self) -> Result<Cow<'_, [u8]>, DataError> {
        match &self.content {
            PanelContent::Read(bytes) => Ok(Cow::Borrowed(bytes)),
            PanelContent::OnDisk => input::read(&self.path, &DATA_BYTES)
                .map(Cow::Owned)
                .map_err(|error| DataError::unreadable(&self.path, error)),
        }
    }
}

/// The place of a panel's files.
enum PanelPlace {
    Folder(Vec<PathBuf>),
    Archive(PathBuf),
}

/// Whether a folder contains CSV files or an archive; [`find`] reports several archives.
///
/// # Errors
/// The folder cannot be looked at.
pub(super) fn is_there(folder: &Path) -> Result<bool, DataError> {
    Ok(files::is_folder(folder)?
        && !matches!(
            place(folder),
            Err(DataError::Panel(PanelError::NoFiles { .. }))
        ))
}

/// Returns the files of the panel in an archive, like [`find`]; the suffix of `named` selects the
/// decompression.
pub(super) fn find_in_archive(
    archive: &Path,
    named: &Path,
    inside: Option<&str>,
) -> Result<Vec<CsvFile>, DataError> {
    in_order(
        archive,
        of_one_folder(archive, members(archive, named)?, inside)?,
    )
}

/// Returns the first `limit` files of the panel at `path`, in byte order of their symbols, and the
/// number of files after them.
///
/// If the panel is an archive and some of its CSV files are in a folder whose path ends in
/// `inside`, only those count.
///
/// # Errors
/// There is no CSV file, or files in several folders; a file cannot be read.
pub(super) fn find(
    path: &Path,
    inside: Option<&str>,
    limit: Option<u64>,
) -> Result<(Vec<CsvFile>, u64), DataError> {
    let mut files = match place(path)? {
        PanelPlace::Folder(paths) => in_order(
            path,
            paths.into_iter().map(on_disk).collect::<Result<_, _>>()?,
        )?,
        PanelPlace::Archive(archive) => find_in_archive(&archive, &archive, inside)?,
    };
    let all = files.len();
    files.truncate(
        limit
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(usize::MAX),
    );
    let after = all - files.len();
    Ok((files, after as u64))
}

fn in_order(path: &Path, mut files: Vec<CsvFile>) -> Result<Vec<CsvFile>, DataError> {
    files.sort_by(|one, other| one.symbol.cmp(&other.symbol));
    if let Some(pair) = files
        .windows(2)
        .find(|pair| pair[0].symbol == pair[1].symbol)
    {
        return Err(PanelError::Twice {
            path: path.to_owned(),
            file: format!("{}{CSV}", pair[0].symbol),
        }
        .into());
    }
    if files.is_empty() {
        return Err(PanelError::NoFiles {
            path: path.to_owned(),
        }
        .into());
    }
    Ok(files)
}

fn place(path: &Path) -> Result<PanelPlace, DataError> {
    if !files::is_folder(path)? {
        return Ok(PanelPlace::Archive(path.to_owned()));
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| DataError::unreadable(path, error))?;
    let paths = entries.into_iter().map(|entry| entry.path());
    let (csv, others): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.partition(|path| is_csv(&file_name(path)));
    if !csv.is_empty() {
        unread::refuse(path, &csv, &others)?;
        return Ok(PanelPlace::Folder(csv));
    }
    let mut archives = Vec::new();
    for path in others.into_iter().filter(|path| ending(path).is_some()) {
        if files::found(&path)?.is_some_and(|found| found.is_file()) {
            archives.push(path);
        }
    }
    match archives.len() {
        0 => Err(PanelError::NoFiles {
            path: path.to_owned(),
        }
        .into()),
        1 => Ok(PanelPlace::Archive(archives.remove(0))),
        _ => {
            let mut names: Vec<String> = archives
                .iter()
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .collect();
            names.sort();
            Err(PanelError::SeveralArchives {
                path: path.to_owned(),
                archives: names,
            }
            .into())
        }
    }
}

fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Hidden files do not count: some systems write one beside each file.
fn is_csv(name: &str) -> bool {
    !name.starts_with('.') && symbol_of(name).is_some()
}

/// The name without `.csv`, in small or large letters.
fn symbol_of(name: &str) -> Option<&str> {
    let (symbol, ending) = name.split_at_checked(name.len().checked_sub(CSV.len())?)?;
    (ending.eq_ignore_ascii_case(CSV) && !symbol.is_empty()).then_some(symbol)
}

/// Returns the kind of archive that a name indicates.
fn ending(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    ARCHIVES.into_iter().find(|ending| name.ends_with(ending))
}

fn on_disk(path: PathBuf) -> Result<CsvFile, DataError> {
    let name = path.file_name().and_then(|name| name.to_str());
    match name.and_then(symbol_of) {
        Some(symbol) => Ok(CsvFile {
            symbol: symbol.to_owned(),
            path,
            content: PanelContent::OnDisk,
        }),
        None => Err(PanelError::NameNotText { path }.into()),
    }
}

/// A CSV file of an archive: its path in the archive, with `/`, and its bytes.
type Member = (String, Vec<u8>);

fn of_one_folder(
    archive: &Path,
    mut members: Vec<Member>,
    inside: Option<&str>,
) -> Result<Vec<CsvFile>, DataError> {
    let lies_inside =
        |folder: &str, inside: &str| folder == inside || folder.ends_with(&format!("/{inside}"));
    if let Some(inside) = inside.filter(|inside| {
        members
            .iter()
            .any(|(name, _)| lies_inside(split(name).0, inside))
    }) {
        members.retain(|(name, _)| lies_inside(split(name).0, inside));
    }
    let first = members
        .first()
        .map(|(name, _)| split(name).0.to_owned())
        .unwrap_or_default();
    if let Some((name, _)) = members.iter().find(|(name, _)| split(name).0 != first) {
        let (one, other) = (members[0].0.clone(), name.clone());
        return Err(PanelError::SeveralFolders {
            path: archive.to_owned(),
            one,
            other,
        }
        .into());
    }
    let file = |(name, bytes): Member| CsvFile {
        symbol: symbol_of(split(&name).1).unwrap_or_default().to_owned(),
        path: archive.join(&name),
        content: PanelContent::Read(bytes),
    };
    Ok(members.into_iter().map(file).collect())
}

/// Folder and file name.
fn split(member: &str) -> (&str, &str) {
    member.rsplit_once('/').unwrap_or(("", member))
}

fn members(archive: &Path, named: &Path) -> Result<Vec<Member>, DataError> {
    let members = match ending(named) {
        Some(".zip") => zip_members(archive),
        Some(_) => tar_members(archive, named),
        None if symbol_of(&file_name(named)).is_some() => {
            return Err(PanelError::OneFile {
                path: archive.to_owned(),
            }
            .into());
        }
        None => {
            return Err(PanelError::NoArchive {
                path: archive.to_owned(),
            }
            .into());
        }
    };
    members.map_err(|error| DataError::unreadable(archive, error))
}

fn tar_members(archive: &Path, named: &Path) -> io::Result<Vec<Member>> {
    let mut tar = tar::Archive::new(files::open(archive, named, &ARCHIVE_BYTES)?);
    let mut members = Vec::new();
    for entry in tar.entries()? {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        if kind.is_dir() || !is_csv(split(&name).1) {
            continue;
        }
        // Without it the panel would lack a symbol.
        if !kind.is_file() {
            return Err(io::Error::other(format!(
                "{name} is a link or a special file; pack the files that links lead to \
                 (`tar --dereference --hard-dereference`)"
            )));
        }
        members.push((name, files::read_entry(&mut entry)?));
    }
    Ok(members)
}

/// The number of entries that the end of a zip archive names; `None` where it has no such end, or counts more
/// than 16 bits hold.
fn listed_in_zip(file: &mut (impl Read + Seek)) -> io::Result<Option<usize>> {
    const END: [u8; 4] = *b"PK\x05\x06";
    // The end, and the comment after it.
    const LONGEST: u64 = 22 + 0xffff;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(LONGEST)))?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    file.rewind()?;
    let at = bytes.windows(END.len()).rposition(|window| window == END);
    let count = at.and_then(|at| Some([*bytes.get(at + 10)?, *bytes.get(at + 11)?]));
    Ok(count
        .map(u16::from_le_bytes)
        .filter(|count| *count != u16::MAX)
        .map(usize::from))
}

fn zip_members(archive: &Path) -> io::Result<Vec<Member>> {
    let file = input::open_within(archive, &ARCHIVE_BYTES)?;
    let packed = Rc::new(Cell::new(file.metadata()?.len()));
    let mut file = BufReader::new(file);
    let listed = listed_in_zip(&mut file)?;
    let mut zip = zip::ZipArchive::new(file)?;
    // It keeps the last of several entries of one name.
    if listed.is_some_and(|listed| listed > zip.len()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "it has {} entries under {} names; pack it again with each file once",
                listed.unwrap_or_default(),
                zip.len()
            ),
        ));
    }
    let (mut members, mut left) = (Vec::new(), ARCHIVE_BYTES.value());
    for index in 0..zip.len() {
        let Some(name) = zip
            .name_for_index(index)
            .transpose()?
            .map(String::from)
            .filter(|name| is_csv(split(name).1))
        else {
            continue;
        };
        let mut bytes = Vec::new();
        let member = Bounded::at_most(zip.by_index(index)?, &ARCHIVE_BYTES, left);
        member
            .unpacking(Rc::clone(&packed))
            .read_to_end(&mut bytes)?;
        left -= bytes.len() as u64;
        members.push((name, bytes));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::packing::{self, Packing};

    fn found(path: &Path, inside: Option<&str>, limit: Option<u64>) -> Vec<(String, String)> {
        let (files, _) = find(path, inside, limit).unwrap();
        files
            .iter()
            .map(|file| {
                (
                    file.symbol.clone(),
                    String::from_utf8(file.bytes().unwrap().into_owned()).unwrap(),
                )
            })
            .collect()
    }

    fn fault(path: &Path, inside: Option<&str>) -> String {
        find(path, inside, None).err().unwrap().to_string()
    }

    fn owned(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files
            .iter()
            .map(|(symbol, text)| ((*symbol).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn folders_and_archives_hold_the_same_files_in_the_same_order() {
        let files = [
            ("raw/BRK-A.csv", "1"),
            ("raw/BRK.csv", "2"),
            ("raw/A.csv", "3"),
            ("raw/._A.csv", "x"),
            ("raw/C.CSV", "4"),
            ("raw/notes.txt", "x"),
        ];
        let expected = owned(&[("A", "3"), ("BRK", "2"), ("BRK-A", "1"), ("C", "4")]);
        for packing in Packing::ALL {
            let folder = tempfile::tempdir().unwrap();
            let path = packing::pack(folder.path(), packing, &files);
            assert_eq!(found(&path, None, None), expected, "{packing:?}");
            assert_eq!(found(&path, None, Some(2)), expected[..2], "{packing:?}");
            assert_eq!(found(&path, None, Some(9)), expected, "{packing:?}");
            if packing != Packing::Folder {
                assert_eq!(
                    found(folder.path(), None, None),
                    expected,
                    "the folder that holds it, {packing:?}"
                );
                assert!(is_there(folder.path()).unwrap());
            }
        }
    }

    #[test]
    fn a_link_of_an_archive_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tar");
        for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
            let mut tar = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            tar.append_link(&mut header, "raw/A.csv", "raw/B.csv")
                .unwrap();
            fs::write(&path, tar.into_inner().unwrap()).unwrap();
            let error = fault(&path, None);
            assert!(error.contains("raw/A.csv is a link"), "{error}");
        }
    }

    #[test]
    fn one_folder_of_an_archive_counts_and_may_be_named() {
        let files = [
            ("repo-master/price/raw/A.csv", "1"),
            ("repo-master/price/other/A.csv", "2"),
            ("repo-master/tweets/x", ""),
        ];
        for packing in [Packing::Tar, Packing::Zip] {
            let folder = tempfile::tempdir().unwrap();
            let path = packing::pack(folder.path(), packing, &files);
            assert_eq!(found(&path, Some("price/raw"), None), owned(&[("A", "1")]));
            let error = fault(&path, None);
            assert!(
                error.contains("repo-master/price/raw/A.csv")
                    && error.contains("repo-master/price/other/A.csv"),
                "{error}"
            );
            assert!(fault(&path, Some("elsewhere")).contains("several folders"));
        }
    }

    #[test]
    fn what_holds_no_panel_says_what_was_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            fault(folder.path(), None).ends_with(
                "holds no CSV file; a panel has one per symbol, whose name ends in .csv"
            )
        );
        assert!(!is_there(folder.path()).unwrap());
        let path = packing::pack(folder.path(), Packing::Tar, &[("notes.txt", "x")]);
        assert!(fault(&path, None).contains("holds no CSV file"));
        packing::pack(folder.path(), Packing::Zip, &[("A.csv", "x")]);
        assert!(
            fault(folder.path(), None)
                .contains("several archives: panel.tar, panel.zip; name one of them")
        );
        let single = folder.path().join("a.csv");
        fs::write(&single, "x").unwrap();
        assert!(fault(&single, None).contains("a panel is a folder of CSV files, one per symbol"));
        let stranger = folder.path().join("panel.rar");
        fs::write(&stranger, "x").unwrap();
        assert!(
            fault(&stranger, None).ends_with("its name must end in .tar, .tar.gz, .tar.xz, .zip")
        );
    }

    #[test]
    fn a_symbol_is_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = packing::pack(
            folder.path(),
            Packing::Tar,
            &[("A.csv", "1"), ("B.csv", "1"), ("A.csv", "2")],
        );
        assert!(fault(&path, None).ends_with("holds A.csv twice"));
        let path = packing::pack(
            folder.path(),
            Packing::Zip,
            &[("A.csv", "1"), ("B.csv", "1"), ("C.csv", "2")],
        );
        let mut bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() - 5 {
            if bytes[at..].starts_with(b"B.csv") {
                bytes[at] = b'A';
            }
        }
        fs::write(&path, bytes).unwrap();
        let twice = fault(&path, None);
        assert!(twice.contains("it has 3 entries under 2 names"), "{twice}");
    }

    #[test]
    fn a_damaged_archive_is_an_error_with_its_path() {
        let text = "2020-01-01,1\n".repeat(1000);
        for packing in [Packing::Tar, Packing::TarGz, Packing::TarXz, Packing::Zip] {
            let folder = tempfile::tempdir().unwrap();
            let path = packing::pack(folder.path(), packing, &[("A.csv", &text)]);
            let whole = fs::read(&path).unwrap();
            for length in [0, 1, whole.len() / 3, whole.len() / 2] {
                fs::write(&path, &whole[..length]).unwrap();
                let error = fault(&path, None);
                assert!(
                    error.contains("panel."),
                    "{packing:?} of {length} bytes: {error}"
                );
            }
        }
    }
}
