//! The one way kiln reads a file that a user, a stranger or a child may have put there: regular
//! files only, and never more than a limit.
//!
//! In: a path or a stream, and a [`Limit`]. Out: its bytes, or an error that says what the path is
//! or which limit it exceeds. Files of `/proc` and `/sys` are the kernel's and read without it.

use std::{
    cell::Cell,
    fmt,
    fs::{self, File, FileType, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
    rc::Rc,
    string::FromUtf8Error,
};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::{
    limits::{Limit, LimitExceeded, UNPACKED_RATIO},
    patience::patiently,
};

/// A path that is not a regular file. The text follows the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotAFile {
    what: &'static str,
}

impl fmt::Display for NotAFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}, not a file", self.what)
    }
}

/// Name of the kind of a file that is not regular: `a folder`, `a FIFO`, `a device`, `a socket`.
fn other_kind(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("a folder"),
        kind if kind.is_fifo() => Some("a FIFO"),
        kind if kind.is_socket() => Some("a socket"),
        kind if kind.is_char_device() || kind.is_block_device() => Some("a device"),
        _ => Some("something else"),
    }
}

fn regular(kind: FileType) -> io::Result<()> {
    match other_kind(kind) {
        None => Ok(()),
        Some(what) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            NotAFile { what },
        )),
    }
}

/// The metadata of a path, links followed; `None` if nothing is there.
///
/// # Errors
/// The path cannot be looked at, such as behind a folder that this user may not search. This is not
/// `None`: the file may be there.
pub fn find(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match patiently(|| fs::metadata(path)) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error says that nothing is at a path.
pub fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Whether an error says that the system could not read what is at a path: nothing is known of it.
pub fn is_of_system(error: &io::Error) -> bool {
    !is_absent(error) && error.raw_os_error().is_some()
}

/// Opens a regular file for reading; links are followed.
///
/// # Errors
/// It does not exist, cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file as the options say. It never waits, whatever the path names.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &OpenOptions) -> io::Result<File> {
    patiently(|| open_once(path, options))
}

fn open_once(path: &Path, options: &OpenOptions) -> io::Result<File> {
    // Opening a device may do something, such as to rewind a tape, so it is not opened at all.
    match fs::metadata(path) {
        Ok(found) => regular(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The path may have changed meanwhile. A FIFO without a writer would wait in `open`.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options
        .clone()
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Returns all bytes of a regular file.
///
/// # Errors
/// As [`open`]; the file has more bytes than the limit, or does not fit into memory.
pub fn read(path: &Path, limit: &'static Limit) -> io::Result<Vec<u8>> {
    patiently(|| read_once(path, limit))
}

fn read_once(path: &Path, limit: &'static Limit) -> io::Result<Vec<u8>> {
    let file = open_once(path, OpenOptions::new().read(true))?;
    let length = file.metadata()?.len();
    limit.check(length).map_err(refused)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    Bounded::new(file, limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the text of a regular file, without a byte order mark.
///
/// # Errors
/// As [`read`]; it is not UTF-8.
pub fn read_text(path: &Path, limit: &'static Limit) -> io::Result<String> {
    let not_text = |_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "stream did not contain valid UTF-8",
        )
    };
    text_of(read(path, limit)?).map_err(not_text)
}

/// The text of bytes, without the byte order mark that some editors begin a file with.
///
/// # Errors
/// They are not UTF-8.
pub fn text_of(bytes: Vec<u8>) -> Result<String, FromUtf8Error> {
    let mut text = String::from_utf8(bytes)?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    Ok(text)
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The beginning of a pointer that Git LFS leaves in place of a file.
const LFS_POINTER: &str = "version https://git-lfs";

/// Whether the bytes are a pointer of Git LFS.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(LFS_POINTER.as_bytes())
}

/// Says that git left a pointer of Git LFS, or the marks of a merge conflict, in a text, and what to do.
/// The words follow the path in a message.
pub fn left_by_git(text: &str) -> Option<&'static str> {
    if is_lfs_pointer(text.as_bytes()) {
        return Some(
            "it is a pointer of Git LFS, not the file; run `git lfs install` once, then `git lfs \
             pull`, or `git lfs fetch --all` for a file in a revision",
        );
    }
    let has_marks = text.lines().any(|line| line.starts_with("<<<<<<< "));
    has_marks.then_some(
        "it has the marks of a merge conflict; keep the file of one side (`git checkout --ours` or \
         `--theirs`)",
    )
}

/// Opens a regular file that is read in pieces, if it is not larger than the limit.
///
/// # Errors
/// As [`read`].
pub fn open_within(path: &Path, limit: &'static Limit) -> io::Result<File> {
    let file = open(path)?;
    limit.check(file.metadata()?.len()).map_err(refused)?;
    Ok(file)
}

/// SHA-256 of a regular file, as hex, if it is not larger than the limit.
///
/// # Errors
/// As [`read`].
pub fn sha256(path: &Path, limit: &'static Limit) -> io::Result<String> {
    patiently(|| sha256_once(path, limit))
}

fn sha256_once(path: &Path, limit: &'static Limit) -> io::Result<String> {
    let mut file = open_within(path, limit)?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex::encode(hasher.finalize())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The error of an input that is over a limit, for functions that return [`io::Error`].
pub fn refused(exceeded: LimitExceeded) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, exceeded)
}

/// The limit that an input exceeded, if this is why reading it failed.
pub fn exceeded(error: &io::Error) -> Option<&LimitExceeded> {
    error.get_ref()?.downcast_ref()
}

/// A stream that may have so many bytes; reading more fails with [`LimitExceeded`].
#[derive(Debug)]
pub struct Bounded<R> {
    stream: R,
    limit: &'static Limit,
    most: u64,
    taken: u64,
    packed: Option<Packed>,
}

/// The compressed bytes that a decompressing stream has read.
#[derive(Debug)]
struct Packed {
    read: Rc<Cell<u64>>,
    ratio: u64,
}

/// Unpacked bytes that the ratio allows anyhow: a short repetitive text compresses very well.
const FREE_BYTES: u64 = 16 << 20;

impl<R: Read> Bounded<R> {
    /// With the limit's value.
    pub fn new(stream: R, limit: &'static Limit) -> Self {
        Self::at_most(stream, limit, limit.value())
    }

    /// With another value than the limit's, which is smaller: what is known of this input.
    pub fn at_most(stream: R, limit: &'static Limit, most: u64) -> Self {
        Self {
            stream,
            limit,
            most,
            taken: 0,
            packed: None,
        }
    }

    /// Also limits the bytes that each compressed one may become; `read` counts the compressed
    /// ones, see [`Counted`].
    pub fn unpacking(self, read: Rc<Cell<u64>>) -> Self {
        Self {
            packed: Some(Packed {
                read,
                ratio: UNPACKED_RATIO.value(),
            }),
            ..self
        }
    }

    fn check(&self) -> Result<(), LimitExceeded> {
        if self.taken > self.most {
            return Err(self.limit.exceeded(self.most));
        }
        match &self.packed {
            Some(Packed { read, ratio })
                if self.taken > FREE_BYTES.max(ratio.saturating_mul(read.get())) =>
            {
                Err(UNPACKED_RATIO.exceeded(*ratio))
            }
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check().map_err(refused)?;
        // One byte beyond the limit shows that there is more.
        let room = (self.most - self.taken).saturating_add(1);
        let length = buffer
            .len()
            .min(usize::try_from(room).unwrap_or(usize::MAX));
        let count = self.stream.read(&mut buffer[..length])?;
        self.taken += count as u64;
        self.check().map_err(refused)?;
        Ok(count)
    }
}

/// A stream that counts the bytes read from it.
#[derive(Debug)]
pub struct Counted<R> {
    stream: R,
    read: Rc<Cell<u64>>,
}

impl<R: Read> Counted<R> {
    /// The stream, and its counter.
    pub fn new(stream: R) -> (Self, Rc<Cell<u64>>) {
        let read = Rc::new(Cell::new(0));
        (
            Self {
                stream,
                read: Rc::clone(&read),
            },
            read,
        )
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode};

    use super::*;
    use crate::limits::Unit;

    static TEN: Limit = Limit {
        name: "TEN",
        default: 10,
        highest: u64::MAX,
        unit: Unit::Bytes,
        of: "a test",
    };

    #[test]
    fn what_is_not_a_regular_file_is_named_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mkfifoat(CWD, at("fifo"), Mode::RWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        std::os::unix::fs::symlink("fifo", at("link")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for (name, what) in [
            ("fifo", "a FIFO"),
            ("link", "a FIFO"),
            ("socket", "a socket"),
            ("zero", "a device"),
            ("folder", "a folder"),
        ] {
            let error = read(&at(name), &TEN).unwrap_err();
            assert_eq!(error.to_string(), format!("it is {what}, not a file"));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(
            read(&at("absent"), &TEN).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn only_what_is_known_to_be_absent_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        assert!(
            find(&at("file"))
                .unwrap()
                .is_some_and(|found| found.is_file())
        );
        assert!(find(&at("absent")).unwrap().is_none());
        assert!(find(&at("file/below")).unwrap().is_none());
        assert!(find(&at("loop")).is_err());
        let is_unknown = |name: &str| is_of_system(&read(&at(name), &TEN).unwrap_err());
        fs::create_dir(at("folder")).unwrap();
        let found = ["loop", "absent", "file/below", "folder"].map(is_unknown);
        assert_eq!(found, [true, false, false, false]);
    }

    #[test]
    fn a_file_over_the_limit_is_refused_by_its_size_without_being_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read(&path, &TEN).unwrap(), [7; 10]);
        // A hole of a terabyte: reading it would take minutes.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        for error in [
            read(&path, &TEN).map(drop).unwrap_err(),
            open_within(&path, &TEN).map(drop).unwrap_err(),
        ] {
            assert_eq!(
                error.to_string(),
                "it has 1.0 TiB, more than the 10 B allowed for a test; set \
                 KILN_LIMIT_TEN=1099511627776 to allow more"
            );
            assert!(exceeded(&error).is_some());
        }
    }

    #[test]
    fn a_stream_fails_behind_its_limit_and_not_at_it() {
        let bytes = |count: u64| {
            let mut found = Vec::new();
            Bounded::new(io::repeat(1).take(count), &TEN)
                .read_to_end(&mut found)
                .map(|_| found.len())
        };
        assert_eq!(bytes(0).unwrap(), 0);
        assert_eq!(bytes(10).unwrap(), 10);
        let error = bytes(11).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("it has more than the 10 B allowed for a test; "),
            "{error}"
        );
        let mut endless = Bounded::new(io::repeat(1), &TEN);
        assert!(io::copy(&mut endless, &mut io::sink()).is_err());
        assert!(endless.read(&mut [0]).is_err(), "and goes on to fail");
    }

    #[test]
    fn a_stream_that_grows_a_thousandfold_is_refused_early() {
        let unpack = |packed: u64, unpacked: u64| {
            let (mut counted, read) = Counted::new(io::repeat(0));
            counted.read_exact(&mut vec![0; packed as usize]).unwrap();
            let stream = Bounded::at_most(io::repeat(0).take(unpacked), &TEN, u64::MAX - 1);
            io::copy(&mut stream.unpacking(read), &mut io::sink())
        };
        assert_eq!(unpack(1, FREE_BYTES).unwrap(), FREE_BYTES, "short ones may");
        let ratio = UNPACKED_RATIO.default;
        let large = 2 * FREE_BYTES;
        assert_eq!(
            unpack(large / ratio, large / ratio * ratio).unwrap(),
            large / ratio * ratio
        );
        let error = unpack(large / ratio, large + 1).unwrap_err().to_string();
        assert!(
            error.contains("100 bytes allowed for each compressed byte")
                && error.contains("KILN_LIMIT_UNPACKED_RATIO=200"),
            "{error}"
        );
    }

    #[test]
    fn a_text_is_read_without_its_byte_order_mark() {
        let text = |bytes: &[u8]| text_of(bytes.to_vec());
        assert_eq!(text(b"\xef\xbb\xbf{}").as_deref(), Ok("{}"));
        assert_eq!(text(b"{}\xef\xbb\xbf").as_deref(), Ok("{}\u{feff}"));
        assert!(text(b"\xff\xfe{").is_err());
    }

    #[test]
    fn what_git_left_is_told_from_a_text() {
        let told = |text| left_by_git(text).unwrap_or_default();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
        assert!(told(pointer).contains("git lfs pull"));
        assert!(told("{\n<<<<<<< HEAD\n").contains("merge conflict"));
        assert_eq!(told("{\n  \"<<<<<<< HEAD\": 1}"), "");
    }
}
