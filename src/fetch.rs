//! Downloads one published file: resumes after an interruption, retries with growing waits,
//! verifies the hash and renames the file into place. During the download it is `<name>.part`, with
//! the server's ETag beside it in `<name>.part.etag`.
//!
//! Returns the finished file, or a [`FetchError`]; progress goes to a callback. The command selects
//! the files.

mod part;

use std::{
    fmt,
    io::{self, Read},
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_core::{
    input,
    limits::{DOWNLOAD_BYTES, LimitExceeded, STATE_BYTES},
    units::Bytes,
};
use kiln_data::dataset::Checksum;
use ureq::{
    Agent, Body,
    http::{Response, StatusCode, header},
    tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem},
};

use self::part::PartFile;

/// The file to download and its destination.
#[derive(Clone, Debug)]
pub struct Download {
    pub url: String,
    pub destination: PathBuf,
    pub checksum: Checksum,
    /// The most bytes that the published file has; `None` if its size is unknown.
    pub most_bytes: Option<u64>,
    /// PEM file of the certificates to trust instead of the built-in ones (`SSL_CERT_FILE`): those
    /// of a network whose proxy signs its own.
    pub certificates: Option<PathBuf>,
}

/// Limits of retries and waits.
#[derive(Clone, Copy, Debug)]
pub struct FetchPatience {
    /// Consecutive attempts without a new byte before giving up; at least 1.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles with each further one.
    pub first_wait: Duration,
    /// Longest wait for data of a server.
    pub silence: Duration,
}

impl Default for FetchPatience {
    fn default() -> Self {
        Self {
            attempts: 5,
            first_wait: Duration::from_millis(500),
            silence: Duration::from_secs(30),
        }
    }
}

/// Progress of a download.
#[derive(Clone, Debug, PartialEq)]
pub enum FetchProgress {
    /// Bytes now on disk, and the total if the server sent it.
    Bytes { done: u64, total: Option<u64> },
    /// An attempt ended early; the next one starts after the wait.
    Retry { reason: String, wait: Duration },
    /// All bytes are on disk; they are being hashed.
    Checking,
}

/// The error of a download, with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(
        "{url} does not exist (HTTP {status}); the address may have changed, name another with \
         `--from`"
    )]
    Absent { url: String, status: u16 },
    #[error("{url} was refused (HTTP {status})")]
    Refused { url: String, status: u16 },
    #[error(
        "{url} could not be reached: {reason}; check the network, or name another address with \
         `--from`"
    )]
    Unreachable { url: String, reason: String },
    #[error(
        "{url} gives no secure connection: {reason}; if a proxy of your network signs certificates \
         itself, name the PEM file of its own one in `SSL_CERT_FILE`"
    )]
    NotSecure { url: String, reason: String },
    #[error("{} (`SSL_CERT_FILE`) has no certificates to trust: {reason}", .path.display())]
    NoCertificates { path: PathBuf, reason: String },
    #[error(
        "{url} was interrupted {attempts} times, last: {reason}; the part is kept, run the same \
         command to resume"
    )]
    BrokenOff {
        url: String,
        attempts: u32,
        reason: String,
    },
    #[error(
        "{url} has {} {found}, and the published file has {}; the file is kept as {}",
        .expected.algorithm(), .expected.hex(), .kept.display()
    )]
    WrongHash {
        url: String,
        found: String,
        expected: Checksum,
        kept: PathBuf,
    },
    #[error(
        "{url} sends {}, and the published file has {}, so it is another file; nothing of it is \
         kept", sent(.announced, .most), Bytes(*.most)
    )]
    TooLong {
        url: String,
        announced: Option<u64>,
        most: u64,
    },
    #[error("{url} sends too much: {exceeded}; nothing of it is kept")]
    OverLimit {
        url: String,
        exceeded: LimitExceeded,
    },
    #[error("the disk, a quota or the file-size limit is full at {}: {} are done, {} are missing; \
             free some space, then run the same command to resume", .path.display(), Bytes(*.done), missing(.total, .done))]
    DiskFull {
        path: PathBuf,
        done: u64,
        total: Option<u64>,
    },
    #[error("{} is being downloaded by another kiln process", .path.display())]
    Busy { path: PathBuf },
    #[error("{} could not be written: {error}", .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error(
        "{} could not be read to check it: {error}; it is kept, run the same command again",
        .path.display()
    )]
    Unchecked { path: PathBuf, error: io::Error },
}

fn missing(total: &Option<u64>, done: &u64) -> String {
    total.map_or_else(
        || "some bytes".to_owned(),
        |total| Bytes(total.saturating_sub(*done)).to_string(),
    )
}

fn sent(announced: &Option<u64>, most: &u64) -> String {
    announced.map_or_else(
        || format!("more than {}", Bytes(*most)),
        |bytes| Bytes(bytes).to_string(),
    )
}

/// The error of one attempt.
enum Trouble {
    /// Another attempt may help.
    Passing(String),
    Final(FetchError),
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        Self::Final(error)
    }
}

/// Downloads the file; resumes from an earlier part if there is one.
///
/// # Errors
/// If the server does not send it within the limits, it is not the published file, or it cannot be
/// stored. The downloaded part stays beside the destination.
pub fn fetch(
    download: &Download,
    patience: FetchPatience,
    progress: &mut dyn FnMut(FetchProgress),
) -> Result<(), FetchError> {
    let part = PartFile::open(&download.destination)?;
    let session = Session {
        agent: agent(download, patience)?,
        download,
        patience,
    };
    let resumed = part.done > 0;
    match session.receive_and_check(part, progress) {
        // The part may be of another version, which the server cannot detect: start again, once.
        Err(FetchError::WrongHash { kept, .. }) if resumed => {
            session.receive_and_check(PartFile::open(&download.destination)?, progress)?;
            part::remove(&kept).map_err(|error| FetchError::Write { path: kept, error })
        }
        ended => ended,
    }
}

fn agent(download: &Download, patience: FetchPatience) -> Result<Agent, FetchError> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
        // A range of a compressed answer would be a range of other bytes.
        .accept_encoding("identity")
        .timeout_connect(Some(patience.silence))
        .timeout_recv_response(Some(patience.silence))
        .timeout_per_read(Some(patience.silence));
    // A proxy cannot reach this machine's own loopback.
    let config = if is_loopback(&download.url) {
        config.proxy(None)
    } else {
        config
    };
    let config = match &download.certificates {
        Some(path) => config.tls_config(TlsConfig::builder().root_certs(roots(path)?).build()),
        None => config,
    };
    Ok(config.build().new_agent())
}

/// The certificates of a PEM file.
fn roots(path: &Path) -> Result<RootCerts, FetchError> {
    let none = |reason: String| FetchError::NoCertificates {
        path: path.to_owned(),
        reason,
    };
    let pem = input::read(path, &STATE_BYTES).map_err(|error| none(error.to_string()))?;
    let found: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(error) => Some(Err(none(error.to_string()))),
        })
        .collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(none("it holds none in PEM format".to_owned()));
    }
    Ok(RootCerts::from(found))
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = url.parse::<ureq::http::Uri>() else {
        return false;
    };
    let is_address = |host: &str| {
        host.trim_matches(['[', ']'])
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
    };
    url.host()
        .is_some_and(|host| host.eq_ignore_ascii_case("localhost") || is_address(host))
}

struct Session<'a> {
    agent: Agent,
    download: &'a Download,
    patience: FetchPatience,
}

impl Session<'_> {
    fn receive_and_check(
        &self,
        mut part: PartFile,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<(), FetchError> {
        self.receive_stubbornly(&mut part, progress)?;
        progress(FetchProgress::Checking);
        part.finish(self.download)
    }

    fn receive_stubbornly(
        &self,
        part: &mut PartFile,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<(), FetchError> {
        let mut tries = 0;
        loop {
            let before = part.done;
            let reason = match self.receive(part, progress) {
                Ok(()) => return Ok(()),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing(reason)) => reason,
            };
            tries = if part.done > before { 1 } else { tries + 1 };
            if tries >= self.patience.attempts {
                let url = self.download.url.clone();
                return Err(match part.done {
                    0 => FetchError::Unreachable { url, reason },
                    _ => FetchError::BrokenOff {
                        url,
                        attempts: tries,
                        reason,
                    },
                });
            }
            let wait = self.patience.first_wait * 2_u32.saturating_pow(tries - 1).min(64);
            progress(FetchProgress::Retry { reason, wait });
            std::thread::sleep(wait);
        }
    }

    /// One try: asks for what is missing and takes what comes.
    fn receive(
        &self,
        part: &mut PartFile,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<(), Trouble> {
        let url = &self.download.url;
        let mut request = self.agent.get(url);
        if part.done > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", part.done));
            if let Some(etag) = &part.etag {
                request = request.header(header::IF_RANGE, etag);
            }
        }
        let response = request.call().map_err(|error| trouble_of(url, error))?;
        match response.status() {
            StatusCode::OK => {
                part.start_over(etag_of(&response))?;
                let total = number(&response, header::CONTENT_LENGTH);
                self.take(response.into_body(), part, total, progress)
            }
            StatusCode::PARTIAL_CONTENT => match content_range(&response) {
                Some((start, total)) if start == part.done => {
                    self.take(response.into_body(), part, total, progress)
                }
                _ => {
                    part.start_over(None)?;
                    Err(Trouble::Passing(
                        "the server sent another range than requested".to_owned(),
                    ))
                }
            },
            StatusCode::RANGE_NOT_SATISFIABLE if part.done > 0 => {
                // `bytes */1234`: the file is already complete, or it has changed on the server.
                if range_total(&response) == Some(part.done) {
                    return Ok(());
                }
                part.start_over(None)?;
                Err(Trouble::Passing(
                    "the server does not have this range".to_owned(),
                ))
            }
            status => Err(trouble_of_status(url, status)),
        }
    }

    /// Appends what the server sends, unless it is more than the file can have.
    fn take(
        &self,
        body: Body,
        part: &mut PartFile,
        total: Option<u64>,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<(), Trouble> {
        let most = self.most_bytes();
        if let Some(total) = total.filter(|total| *total > most) {
            return Err(self.too_long(part, Some(total)).into());
        }
        let mut reader = body.into_reader();
        let mut buffer = vec![0; 1 << 16];
        progress(FetchProgress::Bytes {
            done: part.done,
            total,
        });
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) if part.done + count as u64 > most => {
                    return Err(self.too_long(part, None).into());
                }
                Ok(count) => part.append(&buffer[..count], total)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Trouble::Passing(error.to_string())),
            }
            progress(FetchProgress::Bytes {
                done: part.done,
                total,
            });
        }
        match total {
            Some(total) if part.done < total => Err(Trouble::Passing(format!(
                "it ended after {} of {total} bytes",
                part.done
            ))),
            _ => Ok(()),
        }
    }

    fn most_bytes(&self) -> u64 {
        self.download
            .most_bytes
            .unwrap_or_else(|| DOWNLOAD_BYTES.value())
    }

    /// The error of a download that is too long; empties the part.
    fn too_long(&self, part: &mut PartFile, announced: Option<u64>) -> FetchError {
        if let Err(error) = part.start_over(None) {
            return error;
        }
        let (url, most) = (self.download.url.clone(), self.most_bytes());
        if self.download.most_bytes.is_some() {
            return FetchError::TooLong {
                url,
                announced,
                most,
            };
        }
        let exceeded = announced
            .and_then(|bytes| DOWNLOAD_BYTES.check(bytes).err())
            .unwrap_or_else(|| DOWNLOAD_BYTES.exceeded(most));
        FetchError::OverLimit { url, exceeded }
    }
}

fn trouble_of_status(url: &str, status: StatusCode) -> Trouble {
    let (url, code) = (url.to_owned(), status.as_u16());
    match code {
        404 | 410 => FetchError::Absent { url, status: code }.into(),
        408 | 429 | 500..=599 => Trouble::Passing(format!("HTTP {code}")),
        _ => FetchError::Refused { url, status: code }.into(),
    }
}

fn trouble_of(url: &str, error: ureq::Error) -> Trouble {
    let not_secure = |error: &dyn fmt::Display| {
        let (url, reason) = (url.to_owned(), error.to_string());
        FetchError::NotSecure { url, reason }.into()
    };
    match error {
        // The kind that rustls gives its errors; another attempt does not help.
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => not_secure(&error),
        ureq::Error::Rustls(error) => not_secure(&error),
        ureq::Error::Tls(error) => not_secure(&error),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => Trouble::Passing(error.to_string()),
        error => FetchError::Unreachable {
            url: url.to_owned(),
            reason: error.to_string(),
        }
        .into(),
    }
}

fn text(response: &Response<Body>, name: header::HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

fn number(response: &Response<Body>, name: header::HeaderName) -> Option<u64> {
    text(response, name)?.trim().parse().ok()
}

/// Returns a strong ETag; a weak one does not identify the bytes.
fn etag_of(response: &Response<Body>) -> Option<String> {
    text(response, header::ETAG)
        .filter(|etag| !etag.starts_with("W/"))
        .map(str::to_owned)
}

/// Parses `bytes 100-199/200`: returns the start and the total length.
fn content_range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let (range, _) = text(response, header::CONTENT_RANGE)?
        .strip_prefix("bytes ")?
        .split_once('/')?;
    Some((
        range.split_once('-')?.0.parse().ok()?,
        range_total(response),
    ))
}

fn range_total(response: &Response<Body>) -> Option<u64> {
    text(response, header::CONTENT_RANGE)?
        .rsplit_once('/')?
        .1
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn a_host_that_only_begins_like_this_machine_is_another() {
        for own in [
            "http://127.0.0.1:8080/x",
            "http://127.1.2.3/",
            "https://localhost/x",
            "http://LOCALHOST:1",
            "http://[::1]:8080/x",
        ] {
            assert!(is_loopback(own), "{own}");
        }
        for other in [
            "http://127.0.0.1.example.org/x",
            "http://localhost.example.org/",
            "http://example.org/127.0.0.1",
            "http://10.0.0.1/",
            "no address",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
