//! The part of zip 0.6 that tch and torch-sys's build script call, for files that kiln neither reads nor writes (`.npz`, an archive of
//! libtorch). Every archive is refused.

use std::{
    fmt,
    io::{self, Read, Write},
    marker::PhantomData,
    path::PathBuf,
};

const REFUSAL: &str =
    "this build reads and writes no zip archives; a build that needs libtorch finds it through LIBTORCH (`make libtorch`), tensors are kept as safetensors";

pub mod result {
    pub use crate::Error as ZipError;
}

pub mod write {
    pub use crate::FileOptions;
}

#[derive(Debug)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REFUSAL)
    }
}

impl std::error::Error for Error {}

enum Never {}

/// No archive is ever open.
pub struct ZipArchive<R>(Never, PhantomData<R>);

/// Nor a file in one.
pub struct ZipFile(Never);

impl<R> ZipArchive<R> {
    pub fn new(_reader: R) -> Result<Self, Error> {
        Err(Error)
    }

    pub fn len(&self) -> usize {
        match self.0 {}
    }

    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    pub fn by_index(&mut self, _index: usize) -> Result<ZipFile, Error> {
        match self.0 {}
    }
}

impl ZipFile {
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn mangled_name(&self) -> PathBuf {
        match self.0 {}
    }

    pub fn size(&self) -> u64 {
        match self.0 {}
    }
}

impl Read for ZipFile {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

/// Takes no file and no byte.
pub struct ZipWriter<W>(PhantomData<W>);

#[derive(Clone, Copy, Default)]
pub struct FileOptions;

pub enum CompressionMethod {
    Stored,
}

impl FileOptions {
    pub fn compression_method(self, _method: CompressionMethod) -> Self {
        self
    }
}

impl<W> ZipWriter<W> {
    pub fn new(_writer: W) -> Self {
        Self(PhantomData)
    }

    pub fn start_file<S>(&mut self, _name: S, _options: FileOptions) -> Result<(), Error> {
        Err(Error)
    }
}

impl<W> Write for ZipWriter<W> {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::Error::other(REFUSAL))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
