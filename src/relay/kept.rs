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
    tail: VecDeque<u8>,
    total: u64,
    written: usize,
}

impl KeptOutput {
    pub fn create(path: &Path) -> Self {
        Self {
            file: File::create(path).ok(),
            tail: VecDeque::new(),
            total: 0,
            written: 0,
        }
    }

    pub fn add(&mut self, chunk: &[u8]) {
        self.total += chunk.len() as u64;
        let head = chunk.len().min(HEAD_BYTES - self.written);
        if self
            .file
            .as_mut()
            .is_some_and(|file| file.write_all(&chunk[..head]).is_err())
        {
            self.file = None;
        }
        self.written += head;
        self.tail.extend(chunk);
        self.tail
            .drain(..self.tail.len().saturating_sub(TAIL_BYTES));
    }

    /// Completes the file and returns the end of the output as text.
    pub fn finish(self) -> String {
        let tail: Vec<u8> = self.tail.into();
        let unwritten = usize::try_from(self.total - self.written as u64)
            .unwrap_or(usize::MAX)
            .min(tail.len());
        if let (Some(mut file), 1..) = (self.file, unwritten) {
            let omitted = self.total - (self.written + unwritten) as u64;
            let _ = writeln!(file, "\n… at least {omitted} bytes omitted …");
            let _ = file.write_all(&tail[tail.len() - unwritten..]);
        }
        String::from_utf8_lossy(&tail).into_owned()
    }
}
