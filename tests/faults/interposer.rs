//! The library that counts, records and disturbs calls (`interpose.c`): compiled once, and given to
//! a process by its environment.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Whose calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// `kiln`.
    Parent,
    /// `kiln-trial`, the scripted child and its programs.
    Child,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::Child => "child",
        }
    }
}

/// Kinds of calls and of records, by the numbers of `interpose.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Write,
    Sync,
    Rename,
    Open,
    MakeFolder,
    Unlink,
    RemoveFolder,
    Truncate,
    Symlink,
    Link,
    /// A write to standard output by the parent.
    Say,
    /// A counted call, before it is made.
    Call,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Write,
        Self::Sync,
        Self::Rename,
        Self::Open,
        Self::MakeFolder,
        Self::Unlink,
        Self::RemoveFolder,
        Self::Truncate,
        Self::Symlink,
        Self::Link,
        Self::Say,
        Self::Call,
    ];

    fn numbered(number: u64) -> Option<Self> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(place).copied()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Sync => "fsync",
            Self::Rename => "rename",
            Self::Open => "create",
            Self::MakeFolder => "mkdir",
            Self::Unlink => "unlink",
            Self::RemoveFolder => "rmdir",
            Self::Truncate => "truncate",
            Self::Symlink => "symlink",
            Self::Link => "link",
            Self::Say => "say",
            Self::Call => "call",
        }
    }
}

/// The disturbance of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails with this error.
    Error(&'static str, i32),
    /// Half is written, and the next write fails with ENOSPC; other calls fail with EIO.
    Tear,
    /// It takes this many milliseconds longer.
    Delay(u32),
    KillSelf,
    KillParent,
    /// The parent and the child.
    KillGroup,
}

impl Fault {
    pub(crate) const NO_SPACE: Self = Self::Error("ENOSPC", 28);
    pub(crate) const BROKEN: Self = Self::Error("EIO", 5);
    pub(crate) const QUOTA: Self = Self::Error("EDQUOT", 122);
    pub(crate) const FILES: Self = Self::Error("EMFILE", 24);
    pub(crate) const MISSING: Self = Self::Error("ENOENT", 2);

    pub(crate) fn name(self) -> String {
        match self {
            Self::Error(name, _) => name.to_owned(),
            Self::Tear => "tear".to_owned(),
            Self::Delay(milliseconds) => format!("delay {milliseconds} ms"),
            Self::KillSelf => "kill self".to_owned(),
            Self::KillParent => "kill parent".to_owned(),
            Self::KillGroup => "kill group".to_owned(),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Error(_, number) => format!("error {number}"),
            Self::Delay(milliseconds) => format!("delay {milliseconds}"),
            _ => self.name(),
        }
    }

    /// Whether the system can answer so to a call of this kind.
    pub(crate) fn fits(self, kind: Kind) -> bool {
        let creates = matches!(
            kind,
            Kind::Open | Kind::MakeFolder | Kind::Symlink | Kind::Link | Kind::Rename
        );
        match self {
            Self::FILES => kind == Kind::Open,
            Self::MISSING => creates || matches!(kind, Kind::Unlink | Kind::RemoveFolder),
            Self::NO_SPACE | Self::QUOTA => creates || matches!(kind, Kind::Write | Kind::Sync),
            Self::Tear => kind == Kind::Write,
            _ => true,
        }
    }
}

/// One disturbed call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) role: Role,
    /// Number of the call among those of its role, from 1.
    pub(crate) at: u64,
    pub(crate) fault: Fault,
    /// Whether all later calls fail too.
    pub(crate) is_lasting: bool,
}

/// What the library of a launch shares with the suite.
pub(crate) struct Page {
    path: PathBuf,
}

/// The disturbed call.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) kind: Kind,
    pub(crate) path: String,
}

const PAGE_BYTES: usize = 4096;

impl Page {
    pub(crate) fn new(path: PathBuf) -> Self {
        fs::write(&path, [0; PAGE_BYTES]).unwrap();
        Self { path }
    }

    /// The call that was disturbed; `None` if it never came.
    pub(crate) fn hit(&self) -> Option<Hit> {
        let bytes = fs::read(&self.path).unwrap();
        let kind = Kind::numbered(number(&bytes, 24))?;
        let path: Vec<u8> = bytes[32..]
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect();
        Some(Hit {
            kind,
            path: String::from_utf8_lossy(&path).into_owned(),
        })
    }

    /// Gives the library to a command: it counts calls on paths below `folder`.
    pub(crate) fn attach(&self, command: &mut Command, folder: &Path) {
        command
            .env("LD_PRELOAD", library())
            .env("FAULT_BELOW", fs::canonicalize(folder).unwrap())
            .env("FAULT_SHARED", &self.path);
    }
}

impl Disturbance {
    pub(crate) fn apply(&self, command: &mut Command) {
        command
            .env("FAULT_ROLE", self.role.name())
            .env("FAULT_AT", self.at.to_string())
            .env("FAULT_DO", self.fault.words());
        if self.is_lasting {
            command.env("FAULT_LASTING", "1");
        }
    }
}

/// One recorded operation.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) role: Role,
    pub(crate) path: String,
    /// The new name of a rename or link.
    pub(crate) other: String,
    pub(crate) data: Vec<u8>,
    pub(crate) inode: u64,
    /// Of a write; the length of a truncation; the number of a counted call.
    pub(crate) offset: u64,
    /// Of an open file: 1 created, 2 emptied.
    pub(crate) flags: u64,
}

const HEAD_BYTES: usize = 48;

/// Reads a log.
pub(crate) fn records(log: &Path) -> Vec<Record> {
    let bytes = fs::read(log).unwrap();
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while rest.len() >= HEAD_BYTES {
        let part = |at: usize| u64::from(u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()));
        let lengths = [part(12), part(16), part(20)].map(|length| length as usize);
        let text = |from: usize, length: usize| {
            String::from_utf8_lossy(&rest[from..from + length]).into_owned()
        };
        let [path, other, data] = lengths;
        let flags = number(rest, 40);
        found.push(Record {
            kind: Kind::numbered(part(0)).unwrap(),
            role: if part(4) == 0 {
                Role::Parent
            } else {
                Role::Child
            },
            path: text(HEAD_BYTES, path),
            other: text(HEAD_BYTES + path, other),
            data: rest[HEAD_BYTES + path + other..][..data].to_vec(),
            inode: number(rest, 24),
            offset: number(rest, 32),
            flags,
        });
        rest = &rest[HEAD_BYTES + path + other + data..];
    }
    found
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A call that the undisturbed run makes.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) role: Role,
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) path: String,
}

/// The counted calls of a log.
pub(crate) fn calls(records: &[Record]) -> Vec<Call> {
    records
        .iter()
        .filter(|record| record.kind == Kind::Call)
        .map(|record| Call {
            role: record.role,
            number: record.offset,
            kind: Kind::numbered(record.inode).unwrap(),
            path: record.path.clone(),
        })
        .collect()
}

/// The compiled library.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/interpose.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libinterpose.so");
        // Another run of the suite may have the old file loaded, so it is replaced and not
        // rewritten.
        let new = library.with_extension(format!("{}.so", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let output = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .args([&new, &source])
            .output()
            .unwrap_or_else(|error| {
                panic!("the fault suite needs a C compiler; {compiler}: {error}")
            });
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        fs::rename(&new, &library).unwrap();
        library
    })
}
