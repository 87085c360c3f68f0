//! The file in which an endless output is kept: its beginning and its end.

use std::{collections::VecDeque, fs::File, io::Write, path::Path};

/// Bytes that are kept from the beginning and from the end.
pub(super) const HEAD_BYTES: usize = 1 << 20;
pub(super) const TAIL_BYTES: usize = 64 << 10;

/// An output that is kept in a file, the first MiB as it arrives and the last 64 KiB at the end. If
/// the file cannot be made or the disk fills up, only the end is kept, in memory.
#[derive(Debug)]
pub struct KeptOutput {
    file: Option<File>,
    /// Why the file does not have the output.
    fault: Option<String>,
    tail: VecDeque<u8>,
    total: u64,
    written: usize,
}

impl KeptOutput {
    pub fn create(path: &Path) -> Self {
        let (file, fault) = match File::create(path) {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            file,
            fault,
            tail: VecDeque::new(),
            total: 0,
            written: 0,
        }
    }

    pub fn add(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        let head = chunk.len().min(HEAD_BYTES - self.written);
        let written = self
            .file
            .as_mut()
            .map(|file| file.write_all(&chunk[..head]));
        if let Some(Err(error)) = written {
            (self.file, self.fault) = (None, Some(error.to_string()));
        }
        self.written += head;
        self.tail.extend(chunk);
        self.tail
            .drain(..self.tail.len().saturating_sub(TAIL_BYTES));
    }

    /// Why the file does not have what came so far; `None` if it has.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Completes the file and returns the end of the output as text.
    pub fn finish(self) -> String {
        let tail: Vec<u8> = self.tail.into();
        let unwritten = usize::try_from(self.total - self.written as u64)
            .unwrap_or(usize::MAX)
            .min(tail.len());
        if let (Some(mut file), 1..) = (self.file, unwritten) {
            let omitted = self.total - (self.written + unwritten) as u64;
            let _ = file.write_all(omission(omitted).as_bytes());
            let _ = file.write_all(&tail[tail.len() - unwritten..]);
        }
        String::from_utf8_lossy(&tail).into_owned()
    }
}

/// The line that replaces the omitted middle in the file.
fn omission(bytes: u64) -> String {
    format!("\n… at least {bytes} bytes omitted …\n")
}

/// The parts of an output that its file has.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptEnds<'a> {
    pub(super) head: &'a [u8],
    /// The end of the output, behind the omitted bytes; empty if the head is all of it.
    pub(super) tail: &'a [u8],
    pub(super) omitted: u64,
}

impl<'a> KeptEnds<'a> {
    /// Finds the parts of an output of `total` bytes; `None` if the file is not of such an output.
    pub(super) fn of(file: &'a [u8], total: u64) -> Option<Self> {
        let behind = total.saturating_sub(HEAD_BYTES as u64);
        if behind == 0 {
            return (file.len() as u64 == total).then_some(Self {
                head: file,
                tail: &[],
                omitted: 0,
            });
        }
        let omitted = behind.saturating_sub(TAIL_BYTES as u64);
        let (head, rest) = file.split_at_checked(HEAD_BYTES)?;
        let tail = rest.strip_prefix(omission(omitted).as_bytes())?;
        (tail.len() as u64 == behind - omitted).then_some(Self {
            head,
            tail,
            omitted,
        })
    }

    /// The end of the output as text, as [`KeptOutput::finish`] returns it.
    pub(super) fn end(&self) -> String {
        let of_head = TAIL_BYTES.saturating_sub(self.tail.len());
        let from = self.head.len().saturating_sub(of_head);
        let end = [&self.head[from..], self.tail].concat();
        String::from_utf8_lossy(&end).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_does_not_have_the_output_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptOutput::create(&folder.path().join("stdout.txt"));
        assert_eq!(kept.fault(), None);
        let mut unkept = KeptOutput::create(&folder.path().join("gone/stdout.txt"));
        assert!(unkept.fault().is_some());
        unkept.add(b"end");
        assert_eq!(unkept.finish(), "end");
        let Ok(file) = File::options().write(true).open("/dev/full") else {
            return;
        };
        let mut full = KeptOutput {
            file: Some(file),
            ..kept
        };
        full.add(b"end");
        assert!(full.fault().is_some());
    }

    #[test]
    fn the_ends_of_an_output_are_found_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.txt");
        for more in [0, 1, TAIL_BYTES, TAIL_BYTES + 1, 3 * TAIL_BYTES] {
            let output: Vec<u8> = (0..HEAD_BYTES + more).map(|at| (at % 251) as u8).collect();
            let mut kept = KeptOutput::create(&path);
            output.chunks(5000).for_each(|piece| kept.add(piece));
            let end = kept.finish();
            let file = fs::read(&path).unwrap();
            let of = |total: usize| KeptEnds::of(&file, total as u64);
            let ends = of(output.len()).unwrap();
            let tail = more.min(TAIL_BYTES);
            assert_eq!((ends.head.len(), ends.tail.len()), (HEAD_BYTES, tail));
            assert_eq!(ends.omitted, (more - tail) as u64);
            assert!(output.starts_with(ends.head) && output.ends_with(ends.tail));
            assert!(ends.end() == end, "{more}");
            for other in [output.len() - 1, output.len() + 1] {
                assert!(of(other).is_none(), "{more}");
            }
        }
    }
}
