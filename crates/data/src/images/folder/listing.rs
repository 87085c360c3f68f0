//! Lists folders of images: class folders and image files in the byte order of their names.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use imagesize::ImageError;
use kiln_core::{input, limits::IMAGE_BYTES, patience::patiently};

use super::unfit;
use crate::{error::DataError, files, images::IMAGE_ENDINGS};

/// The expected content of a class folder, for error messages.
pub(super) fn expected_images() -> String {
    "files that end in .png, .jpg or .jpeg".to_owned()
}

/// The folder of a class: never empty if it comes from [`Lister::training_classes`].
pub(super) struct ListedClass {
    pub(super) name: OsString,
    pub(super) files: Vec<ImageFile>,
}

#[derive(Clone)]
pub(super) struct ImageFile {
    pub(super) path: PathBuf,
    /// Size of the file in bytes.
    pub(super) bytes: u64,
}

impl ImageFile {
    pub(super) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }
}

/// Whether the folder exists and contains folders.
///
/// # Errors
/// It cannot be listed.
pub(super) fn has_folders(folder: &Path) -> Result<bool, DataError> {
    Ok(!folders_in(folder)?.is_empty())
}

/// Names of the folders in a folder, sorted; none if it does not exist.
///
/// # Errors
/// It cannot be listed.
pub(super) fn folders_in(folder: &Path) -> Result<Vec<OsString>, DataError> {
    let failed = |error| DataError::unreadable(folder, error);
    let listed = match patiently(|| fs::read_dir(folder)) {
        Err(error) if input::is_absent(&error) => return Ok(Vec::new()),
        listed => listed.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in listed {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !is_hidden(&name) && files::is_folder(&entry.path())? {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_image_name(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| {
        IMAGE_ENDINGS
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// Lists folders, and counts skipped files.
pub(super) struct Lister {
    skip_bad: bool,
    /// The remedy for a file that does not belong there.
    remedy: &'static str,
    pub(super) skipped_files: u64,
}

struct ListedFile {
    path: PathBuf,
    name: OsString,
    is_folder: bool,
    bytes: u64,
    /// Whether this is a regular file of 0 bytes; pipes report a size of 0 too.
    is_empty: bool,
}

impl Lister {
    /// With `skip_bad`, files that are not images are skipped and counted; otherwise they are
    /// errors if their names show it.
    pub(super) fn new(skip_bad: bool) -> Self {
        Self {
            skip_bad,
            remedy: "move it away, or skip such files with `data.skip_bad: true`",
            skipped_files: 0,
        }
    }

    /// The same for a folder that is not trained on, whose reader cannot change `skip_bad`.
    pub(super) fn of_use(skip_bad: bool) -> Self {
        Self {
            remedy: "move it away",
            ..Self::new(skip_bad)
        }
    }

    /// Same as [`Lister::classes`], with at least two classes, each with images.
    pub(super) fn training_classes(
        &mut self,
        folder: &Path,
    ) -> Result<Vec<ListedClass>, DataError> {
        let classes = self.classes(folder)?;
        if classes.len() < 2 {
            let path = folder.to_owned();
            let expected = format!(
                "one for each of two or more classes, with {} in it",
                expected_images()
            );
            if classes.is_empty() && self.skipped_files == 0 {
                return Err(DataError::NoFolders { path, expected });
            }
            let found = if classes.is_empty() {
                "contains no folders"
            } else {
                "contains only one folder"
            };
            return unfit(&path, found.to_owned(), expected);
        }
        if let Some(empty) = classes.iter().find(|class| class.files.is_empty()) {
            return unfit(
                &folder.join(&empty.name),
                "has no images".to_owned(),
                expected_images(),
            );
        }
        Ok(classes)
    }

    pub(super) fn classes(&mut self, folder: &Path) -> Result<Vec<ListedClass>, DataError> {
        let mut classes = Vec::new();
        for ListedFile {
            path,
            name,
            is_folder,
            ..
        } in entries(folder)?
        {
            if is_folder {
                let files = self.files(&path)?;
                classes.push(ListedClass { name, files });
            } else {
                self.leave_out(
                    &path,
                    "is next to the class folders",
                    "only class folders there",
                )?;
            }
        }
        Ok(classes)
    }

    fn files(&mut self, folder: &Path) -> Result<Vec<ImageFile>, DataError> {
        let mut files = Vec::new();
        for ListedFile {
            path,
            is_folder,
            bytes,
            is_empty,
            ..
        } in entries(folder)?
        {
            if is_folder {
                return unfit(
                    &path,
                    "is a folder inside a class folder".to_owned(),
                    expected_images(),
                );
            }
            if !is_image_name(&path) {
                self.leave_out(&path, "is not an image", &expected_images())?;
            } else if is_empty {
                self.leave_out(&path, "is empty", &expected_images())?;
            } else if self.skip_bad && !has_image_header(&path)? {
                self.skipped_files += 1;
            } else {
                files.push(ImageFile { path, bytes });
            }
        }
        Ok(files)
    }

    fn leave_out(&mut self, path: &Path, found: &str, expected: &str) -> Result<(), DataError> {
        if !self.skip_bad {
            return unfit(
                path,
                found.to_owned(),
                format!("{expected}; {}", self.remedy),
            );
        }
        self.skipped_files += 1;
        Ok(())
    }
}

/// Content of a folder, links followed, in the byte order of the names.
fn entries(folder: &Path) -> Result<Vec<ListedFile>, DataError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| DataError::unreadable(folder, error))? {
        let entry = entry.map_err(|error| DataError::unreadable(folder, error))?;
        let (path, name) = (entry.path(), entry.file_name());
        if !is_hidden(&name) {
            let about = fs::metadata(&path).map_err(|error| DataError::unreadable(&path, error))?;
            found.push(ListedFile {
                path,
                name,
                is_folder: about.is_dir(),
                bytes: about.len(),
                is_empty: about.is_file() && about.len() == 0,
            });
        }
    }
    found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Whether a file starts like a PNG or a JPEG, including height and width.
fn has_image_header(path: &Path) -> Result<bool, DataError> {
    let failed = |error| DataError::unreadable(path, error);
    let file = input::open_within(path, &IMAGE_BYTES).map_err(failed)?;
    match imagesize::reader_size(BufReader::new(file)) {
        Ok(size) => Ok(size.width > 0 && size.height > 0),
        Err(ImageError::IoError(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Err(failed(error))
        }
        Err(_) => Ok(false),
    }
}
