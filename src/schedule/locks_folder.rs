//! The folder of the devices' locks and of the process records, one for all users of the machine.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The default folder of the locks, without `$KILN_LOCKS`.
const FOLDER: &str = "/tmp/kiln-locks";

/// `$KILN_LOCKS`, else the default folder.
pub fn path() -> PathBuf {
    std::env::var_os("KILN_LOCKS")
        .filter(|value| !value.is_empty())
        .map_or_else(|| PathBuf::from(FOLDER), PathBuf::from)
}

/// Creates the folder for all users: anyone can add a lock, but not remove a lock of another user.
///
/// # Errors
/// It cannot be created, is a link, or is one in which anyone can replace the locks of others.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))
        }
        found => refuse_unsafe(&found?),
    }
}

fn refuse_unsafe(folder: &fs::Metadata) -> io::Result<()> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let problem = if folder.is_symlink() {
        "its folder is a link"
    } else if !folder.is_dir() {
        "its folder is not a folder"
    } else if folder.mode() & (OTHERS_WRITE | STICKY) == OTHERS_WRITE {
        "in its folder anyone may remove the locks of others (the sticky bit is missing: `chmod +t`)"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_locks_that_anyone_may_change_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let made = place.path().join("made");
        make(&made).unwrap();
        make(&made).unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&made, &link).unwrap();
        assert!(make(&link).unwrap_err().to_string().contains("a link"));
        fs::set_permissions(&made, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make(&made).unwrap_err().to_string().contains("sticky"));
        fs::set_permissions(&made, fs::Permissions::from_mode(0o700)).unwrap();
        make(&made).unwrap();
    }
}
