//! The kind of file system that a folder is on.

use std::{io, path::Path};

/// Who sees the files of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A file system of a network, made for many hosts.
    Network,
    /// A disk of this host; others see it only if this host exports it.
    Disk,
    /// The memory of this host; no other host sees it.
    Memory,
    /// FUSE or SMB: whether a rename has one winner depends on the program or the server behind it.
    Unsure,
    /// A kind that is not in the table.
    Unknown,
}

/// A file system by its number (`f_type` of statfs(2)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its name, such as `nfs`; of a kind that is not in the table its number in hexadecimal.
    pub name: String,
    pub sight: Sight,
}

/// Numbers of statfs(2), and of the headers of Lustre, GPFS, BeeGFS and PanFS.
const KINDS: [(u64, &str, Sight); 21] = [
    (0x6969, "nfs", Sight::Network),
    (0x0BD0_0BD0, "lustre", Sight::Network),
    (0x4750_4653, "gpfs", Sight::Network),
    (0x1983_0326, "beegfs", Sight::Network),
    (0x00C3_6400, "ceph", Sight::Network),
    (0xAAD7_AAEA, "panfs", Sight::Network),
    (0x0116_1970, "gfs2", Sight::Network),
    (0x7461_636F, "ocfs2", Sight::Network),
    (0x5346_414F, "afs", Sight::Network),
    (0xEF53, "ext4", Sight::Disk),
    (0x5846_5342, "xfs", Sight::Disk),
    (0x9123_683E, "btrfs", Sight::Disk),
    (0x2FC1_2FC1, "zfs", Sight::Disk),
    (0xF2F5_2010, "f2fs", Sight::Disk),
    (0x794C_7630, "overlay", Sight::Disk),
    (0x0102_1994, "tmpfs", Sight::Memory),
    (0x8584_58F6, "ramfs", Sight::Memory),
    (0x6573_5546, "fuse", Sight::Unsure),
    (0xFF53_4D42, "cifs", Sight::Unsure),
    (0xFE53_4D42, "smb2", Sight::Unsure),
    (0x0102_1997, "9p", Sight::Unsure),
];

/// The file system of a folder, or of the nearest folder above it that exists.
///
/// # Errors
/// The system does not say.
pub fn file_system(folder: &Path) -> io::Result<FileSystem> {
    let there = crate::host::existing(folder)?;
    let number = rustix::fs::statfs(&there)?.f_type;
    // 32 bits count; some systems extend them by their sign.
    Ok(of_number(number as u64 & 0xFFFF_FFFF))
}

fn of_number(number: u64) -> FileSystem {
    let kind = KINDS.iter().find(|(known, ..)| *known == number);
    match kind {
        Some((_, name, sight)) => FileSystem {
            name: (*name).to_owned(),
            sight: *sight,
        },
        None => FileSystem {
            name: format!("{number:#x}"),
            sight: Sight::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_named_by_its_number() {
        assert_eq!(of_number(0x6969).sight, Sight::Network);
        assert_eq!(of_number(0x1234).name, "0x1234");
        let numbers: std::collections::HashSet<u64> = KINDS.iter().map(|kind| kind.0).collect();
        assert_eq!(numbers.len(), KINDS.len());
    }

    #[test]
    fn a_folder_that_is_not_there_is_on_what_its_parent_is_on() {
        let missing = Path::new("/proc/no-such-folder/results");
        let of_proc = file_system(Path::new("/proc")).unwrap();
        assert_eq!(file_system(missing).unwrap(), of_proc);
    }
}
