//! A folder whose files kiln writes, deletes and trusts: no link below it is ever followed.
//!
//! In: the path of a folder. Out: an open folder; its files and folders are reached by name from
//! the open folder, so that neither a link in it nor a rename of it leads anywhere else. A file is
//! opened only if it is a regular file with one name; a whole file appears by a rename, and file
//! and folder are synced.
//!
//! A results folder may come from somebody else. A link in it, such as `trials/<id>/checkpoint` to a
//! home folder, must not make kiln write or delete there.

mod draft;
mod fault;
mod whole;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

pub(crate) use self::fault::named;
use self::fault::{folder_fault, invalid, kind_fault, outside};
pub use self::{
    fault::{is_full, may_be_read_later, system_error},
    whole::{Fill, write_among_others, write_whole},
};
use crate::patience::patiently;

/// Mode of a new file and of a new folder, before the umask.
const FILE_MODE: u32 = 0o666;
const FOLDER_MODE: u32 = 0o777;

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
    /// Whether its path may be a link to it.
    may_be_link: bool,
}

impl Folder {
    /// Opens the folder at `path`. Links on the way to it are followed, but it must not be a link
    /// itself.
    ///
    /// # Errors
    /// It is missing, a link, or not a folder; the text names it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_as(path, OFlags::NOFOLLOW)
    }

    /// Opens a folder that the user named; it may be a link.
    ///
    /// # Errors
    /// It is missing or not a folder; the text names it.
    pub fn follow(path: &Path) -> io::Result<Self> {
        Self::open_as(path, OFlags::empty())
    }

    fn open_as(path: &Path, more: OFlags) -> io::Result<Self> {
        // The path of a file in the current folder has an empty parent.
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let opened =
            patiently(|| rustix::fs::openat(CWD, path, folder_flags() | more, Mode::empty()));
        match opened {
            Ok(handle) => Ok(Self {
                handle,
                path: path.to_owned(),
                may_be_link: !more.contains(OFlags::NOFOLLOW),
            }),
            Err(errno) => Err(named(path, folder_fault(stat_at(CWD, path), errno))),
        }
    }

    /// Opens it once more.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            handle: self.handle.try_clone()?,
            path: self.path.clone(),
            may_be_link: self.may_be_link,
        })
    }

    /// The path it was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path still leads to it: it was neither moved, replaced nor removed.
    pub fn is_in_place(&self) -> bool {
        let here = rustix::fs::fstat(&self.handle).ok();
        let there = match self.may_be_link {
            true => patiently(|| rustix::fs::statat(CWD, &self.path, AtFlags::empty())).ok(),
            false => stat_at(CWD, &self.path).ok(),
        };
        matches!((here, there), (Some(here), Some(there)) if is_same(&here, &there))
    }

    /// Whether the folder has been deleted. Nothing can be written into it then.
    pub fn is_removed(&self) -> bool {
        rustix::fs::fstat(&self.handle).is_ok_and(|found| found.st_nlink == 0)
    }

    /// Opens a folder below it; `below` may have several parts.
    ///
    /// # Errors
    /// A part is missing, a link, or not a folder; the text names it.
    pub fn folder(&self, below: &Path) -> io::Result<Self> {
        self.walk(below, |_, _| Ok(()))
    }

    /// Opens a folder below it, creating each part that is missing.
    ///
    /// # Errors
    /// As [`Folder::folder`], and if one cannot be created.
    pub fn make_folder(&self, below: &Path) -> io::Result<Self> {
        self.walk(below, |at, name| match at.make_new_folder(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        })
    }

    /// Creates a folder that must not exist yet.
    ///
    /// # Errors
    /// It exists, or cannot be created.
    pub fn make_new_folder(&self, name: &OsStr) -> io::Result<()> {
        let (name, mode) = (plain(name)?, Mode::from_raw_mode(FOLDER_MODE));
        patiently(|| rustix::fs::mkdirat(&self.handle, name, mode))
            .map_err(|errno| self.fault(name, errno))
    }

    /// Opens a file to read.
    ///
    /// # Errors
    /// It is missing, a link, or not a regular file; the text names it.
    pub fn read(&self, name: &OsStr) -> io::Result<File> {
        self.file(name, OFlags::RDONLY)
    }

    /// Opens a file to read and append, creating it if it is missing.
    ///
    /// # Errors
    /// As [`Folder::read`]; it has a second name (a hard link), or cannot be created.
    pub fn append(&self, name: &OsStr) -> io::Result<File> {
        self.file(name, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)
    }

    /// Opens a file to read and write from its beginning, creating it if it is missing.
    ///
    /// # Errors
    /// As [`Folder::append`].
    pub fn edit(&self, name: &OsStr) -> io::Result<File> {
        self.file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Opens an existing file to read and write from its beginning.
    ///
    /// # Errors
    /// As [`Folder::append`]; it is missing.
    pub fn edit_existing(&self, name: &OsStr) -> io::Result<File> {
        self.file(name, OFlags::RDWR)
    }

    /// Creates a symbolic link to `target`.
    ///
    /// # Errors
    /// The name exists, or the folder is not writable.
    pub fn link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        rustix::fs::symlinkat(target, &self.handle, plain(name)?)
            .map_err(|errno| self.fault(name, errno))
    }

    /// Creates a file, or empties an existing one.
    ///
    /// # Errors
    /// As [`Folder::append`].
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let file = self.edit(name)?;
        file.set_len(0)
            .map_err(|error| self.in_words(name, error))?;
        Ok(file)
    }

    /// Renames an entry to a free name, `NAME.aside-1` and so on, and returns that name.
    ///
    /// # Errors
    /// It is missing, or the folder is not writable.
    pub fn put_aside(&self, name: &OsStr) -> io::Result<OsString> {
        for number in 1_u32.. {
            let mut free = name.to_owned();
            free.push(format!(".aside-{number}"));
            if self.kind(&free)?.is_none() {
                self.rename(name, &free)?;
                return Ok(free);
            }
        }
        Err(self.fault(name, Errno::EXIST))
    }

    /// Renames an entry; an existing file of the new name is replaced.
    ///
    /// # Errors
    /// It is missing, or the folder is not writable.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        rustix::fs::renameat(&self.handle, plain(from)?, &self.handle, plain(to)?)
            .map_err(|errno| self.fault(to, errno))
    }

    /// Removes a file, a link, or a folder with everything in it, if it exists. What a link leads
    /// to stays.
    ///
    /// # Errors
    /// One entry cannot be removed.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        let name = plain(name)?;
        let Some(kind) = self.kind(name)? else {
            return Ok(());
        };
        let flags = if kind == FileType::Directory {
            let inside = self.folder(Path::new(name))?;
            for entry in inside.names()? {
                inside.remove(&entry)?;
            }
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        match rustix::fs::unlinkat(&self.handle, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.fault(name, errno)),
        }
    }

    /// Names of its entries, sorted.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        use std::os::unix::ffi::OsStrExt;
        let list = || {
            let mut names = Vec::new();
            for entry in Dir::read_from(&self.handle)? {
                let name = entry?.file_name().to_bytes().to_owned();
                if name != b"." && name != b".." {
                    names.push(OsStr::from_bytes(&name).to_owned());
                }
            }
            names.sort();
            Ok(names)
        };
        patiently(list).map_err(|errno: Errno| named(&self.path, errno.into()))
    }

    /// Kind of an entry, without following it; `None` if it is missing.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn kind(&self, name: &OsStr) -> io::Result<Option<FileType>> {
        match stat_at(&self.handle, Path::new(plain(name)?)) {
            Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.fault(name, errno)),
        }
    }

    /// Whether `file`, opened by this name, is still the entry of this name.
    pub fn has(&self, name: &OsStr, file: &File) -> bool {
        let here = rustix::fs::fstat(file).ok();
        let there = stat_at(&self.handle, Path::new(name)).ok();
        matches!((here, there), (Some(here), Some(there)) if is_same(&here, &there))
    }

    /// Waits until the entries of the folder are on the disk.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn sync(&self) -> io::Result<()> {
        rustix::fs::fsync(&self.handle).map_err(|errno| named(&self.path, errno.into()))
    }

    /// Waits until everything on the file system of the folder is on the disk: one call for many
    /// files.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn sync_everything(&self) -> io::Result<()> {
        rustix::fs::syncfs(&self.handle).map_err(|errno| named(&self.path, errno.into()))
    }

    fn walk(
        &self,
        below: &Path,
        before: impl Fn(&Self, &OsStr) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut at = self.try_clone()?;
        for part in below.components() {
            let Component::Normal(name) = part else {
                return Err(outside(below));
            };
            before(&at, name)?;
            at = at.enter(name)?;
        }
        Ok(at)
    }

    fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let path = self.path.join(name);
        let flags = folder_flags() | OFlags::NOFOLLOW;
        let opened = || rustix::fs::openat(&self.handle, name, flags, Mode::empty());
        match patiently(opened) {
            Ok(handle) => Ok(Self {
                handle,
                path,
                may_be_link: false,
            }),
            Err(errno) => {
                let found = stat_at(&self.handle, Path::new(name));
                Err(named(&path, folder_fault(found, errno)))
            }
        }
    }

    /// Opens a regular file with one name. Does not wait for the other end of a pipe.
    fn file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let (name, mode) = (plain(name)?, Mode::from_raw_mode(FILE_MODE));
        let opened = patiently(|| rustix::fs::openat(&self.handle, name, flags, mode));
        let handle = opened.map_err(|errno| {
            let fault = match stat_at(&self.handle, Path::new(name)) {
                Ok(found) => kind_fault(&found, errno),
                Err(_) => errno.into(),
            };
            self.in_words(name, fault)
        })?;
        let found = rustix::fs::fstat(&handle).map_err(|errno| self.fault(name, errno))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(self.in_words(name, kind_fault(&found, Errno::INVAL)));
        }
        if flags.intersects(OFlags::RDWR) && found.st_nlink > 1 {
            return Err(self.in_words(
                name,
                invalid(
                    "it has a second name (a hard link), so writing it would change another file; \
                     replace it by a copy",
                ),
            ));
        }
        Ok(File::from(handle))
    }

    /// Creates a file that is not there; a file of that name that a kill has left is removed.
    fn new_file(&self, name: &OsStr) -> io::Result<File> {
        let name = plain(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // One whose reply was lost is removed as well.
        let create = || {
            match rustix::fs::unlinkat(&self.handle, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
            rustix::fs::openat(&self.handle, name, flags, Mode::from_raw_mode(FILE_MODE))
        };
        patiently(create)
            .map(File::from)
            .map_err(|errno| self.fault(name, errno))
    }

    fn fault(&self, name: &OsStr, errno: Errno) -> io::Error {
        self.in_words(name, errno.into())
    }

    fn in_words(&self, name: &OsStr, error: io::Error) -> io::Error {
        named(&self.path.join(name), error)
    }
}

/// The names in the folder at `path`, sorted; none if it does not exist.
///
/// # Errors
/// It is a link or not a folder, or cannot be listed.
pub fn names_in(path: &Path) -> io::Result<Vec<OsString>> {
    match Folder::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        folder => folder?.names(),
    }
}

/// The folder of a path and the name in it.
///
/// # Errors
/// The path ends in no name.
pub fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let name = path
        .file_name()
        .ok_or_else(|| named(path, invalid("it does not end in the name of a file")))?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

fn stat_at(folder: impl std::os::fd::AsFd, path: &Path) -> Result<Stat, Errno> {
    patiently(|| rustix::fs::statat(&folder, path, AtFlags::SYMLINK_NOFOLLOW))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// A name without parts of a path.
fn plain(name: &OsStr) -> io::Result<&OsStr> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(outside(Path::new(name))),
    }
}

#[cfg(test)]
mod tests;
