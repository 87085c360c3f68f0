//! The part of ureq 2 that torch-sys's build script calls. Every request is refused.

use std::{fmt, io};

#[derive(Debug)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kiln's build downloads nothing; run `make libtorch`, or point LIBTORCH at a libtorch 2.11 folder")
    }
}

impl std::error::Error for Error {}

pub struct Request;

/// No request has ever an answer.
pub enum Response {}

pub fn get(_url: &str) -> Request {
    Request
}

impl Request {
    pub fn call(self) -> Result<Response, Error> {
        Err(Error)
    }
}

impl Response {
    pub fn status(&self) -> u16 {
        match *self {}
    }

    pub fn into_reader(self) -> Box<dyn io::Read> {
        match self {}
    }

    pub fn into_json<T>(self) -> io::Result<T> {
        match self {}
    }
}
