//! `kiln data` and the downloader behind it, against a small server on loopback.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crate::scripted_child::real_data;
use kiln::fetch::{Download, FetchError, FetchPatience, FetchProgress, fetch};
use kiln_data::dataset::{Checksum, all};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use sha2::{Digest, Sha256};

/// How the server answers, one entry per request; the last one also answers all further requests.
#[derive(Clone)]
enum Answer {
    /// Honours ranges.
    Ranges,
    /// Honours ranges, and closes the connection after this many bytes of the body.
    CutAfter(usize),
    /// Sends the whole whatever is asked for.
    WholeOnly,
    /// Sends the body again and again, without a length, until the client goes.
    Endless,
    Status(u16),
    /// Sends the client elsewhere with this status; in the location, `HERE` is the server's own
    /// address.
    Redirect(u16, String),
}

fn redirect(status: u16, location: &str) -> Answer {
    Answer::Redirect(status, location.to_owned())
}

/// The certificate of the server that speaks TLS; its key, beside it, protects nothing else.
const CERTIFICATE: &str = "tests/tls/loopback.pem";

/// A connection as the server sees it.
trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

type Wrap = Box<dyn Fn(TcpStream) -> Box<dyn Wire> + Send>;

struct Server {
    address: String,
    /// First line and `range` of each request.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(body: Vec<u8>, answers: &[Answer]) -> Self {
        Self::start_each(vec![body], answers)
    }

    /// A server that gives the next body to each request, and the last one to all further ones.
    fn start_each(bodies: Vec<Vec<u8>>, answers: &[Answer]) -> Self {
        Self::start_on("http", bodies, answers, Box::new(|stream| Box::new(stream)))
    }

    /// A server that speaks TLS, with the certificate of `tests/tls/loopback.pem`.
    fn start_with_tls(body: Vec<u8>, answers: &[Answer]) -> Self {
        let certificate = CertificateDer::from_pem_file(CERTIFICATE).unwrap();
        let key = PrivateKeyDer::from_pem_file("tests/tls/loopback.key").unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        let wrap = move |stream| {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let stream = rustls::StreamOwned::new(connection, stream);
            Box::new(stream) as Box<dyn Wire>
        };
        Self::start_on("https", vec![body], answers, Box::new(wrap))
    }

    fn start_on(scheme: &str, bodies: Vec<Vec<u8>>, answers: &[Answer], wrap: Wrap) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answers, here) = (requests.clone(), answers.to_vec(), address.clone());
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let answer = match answers[number.min(answers.len() - 1)].clone() {
                    Answer::Redirect(status, location) => {
                        Answer::Redirect(status, location.replace("HERE", &here))
                    }
                    answer => answer,
                };
                // A client that went away is the client's business.
                let _ = respond(
                    &mut wrap(stream.unwrap()),
                    &bodies[number.min(bodies.len() - 1)],
                    answer,
                    &seen,
                );
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn respond(
    mut stream: &mut dyn Wire,
    body: &[u8],
    answer: Answer,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(&mut stream).lines();
    let first = lines
        .next()
        .unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()))?;
    let (mut range, mut condition) = (None, None);
    for line in lines {
        let line = line?.to_lowercase();
        match line.split_once(": ") {
            Some(("range", value)) => {
                range = value
                    .strip_prefix("bytes=")
                    .and_then(|value| value.strip_suffix('-')?.parse::<usize>().ok())
            }
            Some(("if-range", value)) => condition = Some(value.to_owned()),
            _ => {}
        }
        if line.is_empty() {
            break;
        }
    }
    seen.lock().unwrap().push(format!("{first} {range:?}"));
    let etag = format!("\"{}\"", &sha256(body)[..8]);
    let range = range.filter(|_| condition.is_none_or(|condition| condition == etag));
    let (start, cut) = match answer {
        Answer::Status(status) => {
            return write!(
                stream,
                "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        Answer::Redirect(status, location) => {
            // In one piece: the client may follow as soon as it has read the location.
            let head = format!(
                "HTTP/1.1 {status} x\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: \
                 close\r\n\r\n"
            );
            return stream.write_all(head.as_bytes());
        }
        Answer::Ranges => (range, None),
        Answer::CutAfter(bytes) => (range, Some(bytes)),
        Answer::WholeOnly => (None, None),
        Answer::Endless => {
            write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
            loop {
                stream.write_all(body)?;
            }
        }
    };
    let rest = &body[start.unwrap_or(0).min(body.len())..];
    match start {
        Some(start) if rest.is_empty() => {
            return write!(
                stream,
                "HTTP/1.1 416 x\r\ncontent-range: bytes */{}\r\ncontent-length: 0\r\nconnection: \
                 close\r\n\r\n",
                start
            );
        }
        Some(start) => {
            write!(
                stream,
                "HTTP/1.1 206 x\r\ncontent-range: bytes {start}-{}/{}\r\n",
                body.len() - 1,
                body.len()
            )?;
        }
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(
        stream,
        "etag: {etag}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        rest.len()
    )?;
    stream.write_all(&rest[..cut.unwrap_or(rest.len()).min(rest.len())])
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn checksum(bytes: &[u8]) -> Checksum {
    Checksum::Sha256(sha256(bytes).into())
}

fn body() -> Vec<u8> {
    (0..300_000_u32)
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

const QUICK: FetchPatience = FetchPatience {
    attempts: 3,
    first_wait: Duration::from_millis(1),
    silence: Duration::from_secs(60),
};

struct Fetched {
    result: Result<(), FetchError>,
    progress: Vec<FetchProgress>,
    requests: Vec<String>,
    destination: PathBuf,
    _folder: tempfile::TempDir,
}

/// Fetches `body` from a server that answers so; `part` and its ETag are there from an earlier try.
fn fetch_from(answers: &[Answer], part: Option<(&[u8], Option<&str>)>, expected: &[u8]) -> Fetched {
    let server = Server::start(body(), answers);
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("set/file.txt");
    if let Some((part, etag)) = part {
        std::fs::create_dir(folder.path().join("set")).unwrap();
        std::fs::write(folder.path().join("set/file.txt.part"), part).unwrap();
        if let Some(etag) = etag {
            std::fs::write(folder.path().join("set/file.txt.part.etag"), etag).unwrap();
        }
    }
    let download = Download {
        url: format!("{}/set/file.txt", server.address),
        destination: destination.clone(),
        checksum: checksum(expected),
        most_bytes: None,
        certificates: None,
    };
    let mut progress = Vec::new();
    let result = fetch(&download, QUICK, &mut |step| progress.push(step));
    Fetched {
        result,
        progress,
        requests: server.requests(),
        destination,
        _folder: folder,
    }
}

/// Fetches a file that has at most so many bytes; with the error the names that are left.
fn fetch_at_most(answer: Answer, most_bytes: Option<u64>) -> (String, Vec<String>) {
    let server = Server::start(body(), &[answer]);
    let folder = tempfile::tempdir().unwrap();
    let download = Download {
        url: format!("{}/file.txt", server.address),
        destination: folder.path().join("set/file.txt"),
        checksum: checksum(&body()),
        most_bytes,
        certificates: None,
    };
    let error = fetch(&download, QUICK, &mut |_| {}).unwrap_err();
    let left = names_beside(&download.destination)
        .into_iter()
        .filter(|name| {
            let place = folder.path().join("set").join(name);
            std::fs::metadata(place).unwrap().len() > 0
        })
        .collect();
    (error.to_string().replace(&server.address, "HERE"), left)
}

#[test]
fn a_file_longer_than_published_is_given_up_at_once_and_fills_no_disk() {
    let nothing: [String; 0] = [];
    let (error, left) = fetch_at_most(Answer::Ranges, Some(1_000_000));
    assert_eq!(
        error,
        "HERE/file.txt sends 1.1 MiB, and the published file has 976.6 KiB, so it is another \
         file; nothing of it is kept"
    );
    assert_eq!(left, nothing);
    let (error, left) = fetch_at_most(Answer::Endless, Some(20_000_000));
    assert!(
        error.starts_with("HERE/file.txt sends more than 19.1 MiB, and the published file has "),
        "{error}"
    );
    assert_eq!(left, nothing);
}

#[test]
fn a_download_of_unknown_size_ends_at_its_limit() {
    let server = Server::start(body(), &[Answer::Endless]);
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(["data", "fetch", "stocknet", "--to"])
        .arg(folder.path())
        .args(["--from", &server.address])
        .env("KILN_LIMIT_DOWNLOAD_BYTES", "5MiB")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(
            "sends too much: it has more than the 5.0 MiB allowed for a download of unpublished \
             size; set KILN_LIMIT_DOWNLOAD_BYTES=10485760 to allow more; nothing of it is kept"
        ),
        "{}",
        stderr(&output)
    );
}

fn names_beside(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_whole_file_arrives_and_leaves_nothing_beside_it() {
    let fetched = fetch_from(&[Answer::Ranges], None, &body());
    fetched.result.unwrap();
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
    assert_eq!(names_beside(&fetched.destination), ["file.txt"]);
    let total = body().len() as u64;
    assert!(
        fetched.progress.contains(&FetchProgress::Bytes {
            done: total,
            total: Some(total)
        }),
        "{:?}",
        fetched.progress.last()
    );
}

#[test]
fn a_download_goes_on_where_an_earlier_one_stopped() {
    let fetched = fetch_from(&[Answer::Ranges], Some((&body()[..1000], None)), &body());
    fetched.result.unwrap();
    assert_eq!(fetched.requests, ["GET /set/file.txt HTTP/1.1 Some(1000)"]);
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
}

#[test]
fn a_part_that_is_whole_already_is_only_checked() {
    let fetched = fetch_from(&[Answer::Ranges], Some((&body(), None)), &body());
    fetched.result.unwrap();
    assert_eq!(
        fetched.requests,
        ["GET /set/file.txt HTTP/1.1 Some(1200000)"]
    );
    assert!(
        !fetched
            .progress
            .iter()
            .any(|step| matches!(step, FetchProgress::Bytes { .. })),
        "no byte came"
    );
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
}

#[test]
fn a_part_of_another_version_is_not_gone_on_with() {
    let fetched = fetch_from(
        &[Answer::Ranges],
        Some((&[7; 1000], Some("\"another\""))),
        &body(),
    );
    fetched.result.unwrap();
    assert_eq!(
        fetched.requests.len(),
        1,
        "the ETag tells, so the server sends the whole at once"
    );
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
    // Without an ETag only the hash can tell; then it is fetched anew, once.
    let fetched = fetch_from(&[Answer::Ranges], Some((&[7; 1000], None)), &body());
    fetched.result.unwrap();
    assert_eq!(fetched.requests.len(), 2);
    assert_eq!(names_beside(&fetched.destination), ["file.txt"]);
}

#[test]
fn a_cut_in_the_middle_is_taken_up_again() {
    let fetched = fetch_from(
        &[
            Answer::CutAfter(500_000),
            Answer::CutAfter(100_000),
            Answer::Ranges,
        ],
        None,
        &body(),
    );
    fetched.result.unwrap();
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
    let ends: Vec<&str> = fetched
        .requests
        .iter()
        .map(|request| request.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(ends, ["None", "Some(500000)", "Some(600000)"]);
    assert_eq!(
        fetched
            .progress
            .iter()
            .filter(|step| matches!(step, FetchProgress::Retry { .. }))
            .count(),
        2
    );
}

#[test]
fn a_server_without_ranges_starts_over() {
    let fetched = fetch_from(
        &[Answer::CutAfter(500_000), Answer::WholeOnly],
        None,
        &body(),
    );
    fetched.result.unwrap();
    assert!(
        fetched.requests[1].ends_with("Some(500000)"),
        "it asked for the rest, and took the whole"
    );
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
}

#[test]
fn what_keeps_breaking_off_is_given_up_and_kept() {
    let fetched = fetch_from(
        &[Answer::CutAfter(1000), Answer::CutAfter(0)],
        None,
        &body(),
    );
    let error = fetched.result.unwrap_err();
    assert!(
        matches!(error, FetchError::BrokenOff { attempts: 3, .. }),
        "{error}"
    );
    assert_eq!(
        std::fs::read(fetched.destination.with_extension("txt.part")).unwrap(),
        body()[..1000]
    );
}

#[test]
fn another_file_than_published_is_kept_aside() {
    let fetched = fetch_from(&[Answer::Ranges], None, b"what was published");
    let error = fetched.result.unwrap_err().to_string();
    assert!(
        error.contains(&sha256(&body())) && error.contains("file.txt.bad"),
        "{error}"
    );
    assert_eq!(names_beside(&fetched.destination), ["file.txt.bad"]);
}

/// Fetches what a server has as `name`.
fn fetch_named(
    name: &str,
    sent: Vec<u8>,
    checksum: Checksum,
) -> (tempfile::TempDir, Result<(), FetchError>) {
    let server = Server::start(sent, &[Answer::Ranges]);
    let folder = tempfile::tempdir().unwrap();
    let download = Download {
        url: format!("{}/{name}", server.address),
        destination: folder.path().join(name),
        checksum,
        most_bytes: None,
        certificates: None,
    };
    let result = fetch(&download, QUICK, &mut |_| {});
    (folder, result)
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

#[test]
fn a_compressed_file_stays_as_published_and_is_known_by_what_is_in_it() {
    let (folder, result) = fetch_named("file.gz", gz(&body()), checksum(&body()));
    result.unwrap();
    assert_eq!(
        std::fs::read(folder.path().join("file.gz")).unwrap(),
        gz(&body())
    );
    let (folder, result) = fetch_named("file.gz", body(), checksum(&body()));
    assert!(
        matches!(result, Err(FetchError::WrongHash { .. })),
        "{result:?}"
    );
    assert_eq!(
        names_beside(&folder.path().join("file.gz")),
        ["file.gz.bad"]
    );
}

#[test]
fn an_md5_is_of_the_file_as_it_was_sent() {
    // RFC 1321, A.5.
    let of_abc = || Checksum::Md5("900150983cd24fb0d6963f7d28e17f72".into());
    let (folder, result) = fetch_named("archive.tar.gz", b"abc".to_vec(), of_abc());
    result.unwrap();
    assert_eq!(
        names_beside(&folder.path().join("archive.tar.gz")),
        ["archive.tar.gz"]
    );
    let error = fetch_named("archive.tar.gz", b"abd".to_vec(), of_abc())
        .1
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the published file has 900150983cd24fb0d6963f7d28e17f72")
            && error.contains("has md5 "),
        "{error}"
    );
}

#[test]
fn an_absent_file_is_said_at_once_and_a_busy_server_is_asked_again() {
    let fetched = fetch_from(&[Answer::Status(404)], None, &body());
    assert!(matches!(
        fetched.result.unwrap_err(),
        FetchError::Absent { status: 404, .. }
    ));
    assert_eq!(fetched.requests.len(), 1);
    let fetched = fetch_from(&[Answer::Status(403)], None, &body());
    assert!(matches!(
        fetched.result.unwrap_err(),
        FetchError::Refused { status: 403, .. }
    ));
    let fetched = fetch_from(&[Answer::Status(503), Answer::Ranges], None, &body());
    fetched.result.unwrap();
    let fetched = fetch_from(&[Answer::Status(503)], None, &body());
    let error = fetched.result.unwrap_err();
    assert!(
        matches!(error, FetchError::Unreachable { .. }) && error.to_string().contains("HTTP 503"),
        "{error}"
    );
    assert_eq!(fetched.requests.len(), 3);
}

#[test]
fn a_redirect_is_followed_with_the_range_that_is_missing() {
    for (status, location, path) in [
        (301, "/moved/file.txt", "/moved/file.txt"),
        (302, "moved.txt", "/set/moved.txt"),
        (303, "../moved.txt", "/moved.txt"),
        (307, "/moved/file.txt?key=1", "/moved/file.txt?key=1"),
        (308, "HERE/moved/file.txt", "/moved/file.txt"),
    ] {
        let fetched = fetch_from(
            &[redirect(status, location), Answer::Ranges],
            Some((&body()[..1000], None)),
            &body(),
        );
        fetched.result.unwrap();
        let expected =
            ["/set/file.txt", path].map(|path| format!("GET {path} HTTP/1.1 Some(1000)"));
        assert_eq!(fetched.requests, expected, "{status} to {location}");
        assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
    }
}

#[test]
fn a_redirect_to_another_server_is_followed() {
    let mirror = Server::start(body(), &[Answer::Ranges]);
    let fetched = fetch_from(
        &[redirect(
            302,
            &format!("{}/mirror/file.txt", mirror.address),
        )],
        None,
        &body(),
    );
    fetched.result.unwrap();
    assert_eq!(fetched.requests, ["GET /set/file.txt HTTP/1.1 None"]);
    assert_eq!(mirror.requests(), ["GET /mirror/file.txt HTTP/1.1 None"]);
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
}

/// Mirrors come and go: after a cut the published address is asked again.
#[test]
fn each_try_starts_at_the_published_address() {
    let moved = || redirect(302, "/moved/file.txt");
    let fetched = fetch_from(
        &[moved(), Answer::CutAfter(500_000), moved(), Answer::Ranges],
        None,
        &body(),
    );
    fetched.result.unwrap();
    assert_eq!(
        fetched.requests,
        [
            "GET /set/file.txt HTTP/1.1 None",
            "GET /moved/file.txt HTTP/1.1 None",
            "GET /set/file.txt HTTP/1.1 Some(500000)",
            "GET /moved/file.txt HTTP/1.1 Some(500000)",
        ]
    );
    assert_eq!(std::fs::read(&fetched.destination).unwrap(), body());
}

#[test]
fn a_redirect_that_leads_nowhere_is_an_error() {
    let refused = |answer: Answer| {
        let fetched = fetch_from(&[answer], None, &body());
        let error = fetched.result.unwrap_err();
        assert!(matches!(error, FetchError::Unreachable { .. }), "{error}");
        assert!(!fetched.destination.exists());
        (error.to_string(), fetched.requests.len())
    };
    let (error, requests) = refused(redirect(302, "/set/file.txt"));
    assert!(error.contains("too many redirects"), "{error}");
    assert_eq!(
        requests, 11,
        "ten redirects are followed, and a loop is not tried again"
    );
    let (error, requests) = refused(redirect(302, "ftp://127.0.0.1/set/file.txt"));
    assert!(error.contains("ftp"), "{error}");
    assert_eq!(requests, 1);
    let absent = fetch_from(
        &[redirect(302, "/moved/file.txt"), Answer::Status(404)],
        None,
        &body(),
    );
    assert!(matches!(
        absent.result,
        Err(FetchError::Absent { status: 404, .. })
    ));
}

/// The result of a download over TLS, and the requests that the server received.
fn fetch_with_tls(
    answers: &[Answer],
    host: &str,
    certificates: Option<&str>,
) -> (Result<Vec<u8>, FetchError>, Vec<String>) {
    let server = Server::start_with_tls(body(), answers);
    let folder = tempfile::tempdir().unwrap();
    let download = Download {
        url: format!("{}/x", server.address.replace("127.0.0.1", host)),
        destination: folder.path().join("x"),
        checksum: checksum(&body()),
        most_bytes: None,
        certificates: certificates.map(PathBuf::from),
    };
    let ended = fetch(&download, QUICK, &mut |_| {});
    let found = ended.map(|()| std::fs::read(&download.destination).unwrap());
    (found, server.requests())
}

#[test]
fn a_file_arrives_over_tls_and_an_interrupted_one_is_gone_on_with() {
    let answers = [Answer::CutAfter(500_000), Answer::Ranges];
    let (found, requests) = fetch_with_tls(&answers, "127.0.0.1", Some(CERTIFICATE));
    assert!(found.unwrap() == body());
    assert_eq!(requests.len(), 2);
    assert!(requests[1].ends_with("Some(500000)"), "{requests:?}");
}

#[test]
fn a_certificate_that_is_not_trusted_or_of_another_host_is_refused_before_a_request() {
    for (host, certificates) in [("127.0.0.1", None), ("localhost", Some(CERTIFICATE))] {
        let (found, requests) = fetch_with_tls(&[Answer::Ranges], host, certificates);
        let error = found.unwrap_err();
        assert!(matches!(error, FetchError::NotSecure { .. }), "{error}");
        assert!(error.to_string().contains("`SSL_CERT_FILE`"), "{error}");
        assert_eq!(requests, Vec::<String>::new(), "{host}");
    }
}

#[test]
fn a_file_without_certificates_is_an_error_that_names_it() {
    for (file, words) in [
        ("tests/tls/absent.pem", "No such file"),
        ("tests/tls/loopback.key", "it holds none in PEM format"),
        ("Cargo.toml", "it holds none in PEM format"),
    ] {
        let (found, requests) = fetch_with_tls(&[Answer::Ranges], "127.0.0.1", Some(file));
        let error = found.unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(words), "{error}");
        assert!(requests.is_empty());
    }
}

#[test]
fn nobody_at_the_address_is_an_error_that_asks_for_a_network() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let folder = tempfile::tempdir().unwrap();
    let download = Download {
        url: format!("http://127.0.0.1:{port}/x"),
        destination: folder.path().join("x"),
        checksum: checksum(b""),
        most_bytes: None,
        certificates: None,
    };
    let error = fetch(&download, QUICK, &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(error.contains("check the network"), "{error}");
}

#[test]
fn two_at_once_do_not_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let held = std::fs::File::create(folder.path().join("x.part")).unwrap();
    held.try_lock().unwrap();
    let download = Download {
        url: "http://127.0.0.1:1/x".to_owned(),
        destination: folder.path().join("x"),
        checksum: checksum(b""),
        most_bytes: None,
        certificates: None,
    };
    assert!(matches!(
        fetch(&download, QUICK, &mut |_| {}),
        Err(FetchError::Busy { .. })
    ));
}

fn kiln(folder: &Path, data: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command
        .current_dir(folder)
        .args(arguments)
        .env_remove("KILN_DATA");
    if let Some(data) = data {
        command.env("KILN_DATA", data);
    }
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_list_names_every_set_with_its_licence() {
    let folder = tempfile::tempdir().unwrap();
    let output = kiln(folder.path(), None, &["data", "list"]);
    assert!(output.status.success());
    for part in [
        "wikitext2",
        "CC BY-SA 3.0",
        "tinyshakespeare",
        "1.1 MiB",
        "generated",
        "fashion-mnist",
        "29.4 MiB",
        "cifar10",
        "image-folder",
        "stocknet",
        "panel-csv",
        "chatlm",
        "sft-jsonl",
    ] {
        assert!(
            stdout(&output).contains(part),
            "{part} is not in: {}",
            stdout(&output)
        );
    }
}

#[test]
fn an_unknown_set_is_bad_input_with_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    let output = kiln(folder.path(), None, &["data", "fetch", "wikitext"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "unknown data set `wikitext`; did you mean `wikitext2`?\n"
    );
    let output = kiln(folder.path(), None, &["data", "verify", "imagenet"]);
    let known: Vec<&str> = all().iter().map(|set| set.name).collect();
    assert_eq!(
        stderr(&output),
        format!(
            "unknown data set `imagenet`; known are {}\n",
            known.join(", ")
        )
    );
}

#[test]
fn fetch_refuses_what_is_not_the_published_file() {
    let server = Server::start(b"not Shakespeare".to_vec(), &[Answer::Ranges]);
    let folder = tempfile::tempdir().unwrap();
    let output = kiln(
        folder.path(),
        None,
        &[
            "data",
            "fetch",
            "tinyshakespeare",
            "--from",
            &server.address,
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("86c4e6aa9db7c042"),
        "{}",
        stderr(&output)
    );
    assert!(
        stderr(&output).starts_with("input.txt: 0 B of 15 B\n"),
        "without a terminal there are lines: {}",
        stderr(&output)
    );
    assert_eq!(
        server.requests(),
        ["GET /tinyshakespeare/input.txt HTTP/1.1 None"]
    );
    assert!(
        !folder
            .path()
            .join("data/tinyshakespeare/input.txt")
            .exists()
    );
    let absent = Server::start(Vec::new(), &[Answer::Status(404)]);
    let output = kiln(
        folder.path(),
        None,
        &[
            "data",
            "fetch",
            "tinyshakespeare",
            "--from",
            &absent.address,
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("HTTP 404"), "{}", stderr(&output));
}

#[test]
fn verify_tells_absent_and_changed_files() {
    let folder = tempfile::tempdir().unwrap();
    let output = kiln(folder.path(), None, &["data", "verify"]);
    assert!(
        output.status.success() && stdout(&output).contains("tinyshakespeare: not here"),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        kiln(folder.path(), None, &["data", "verify", "tinyshakespeare"])
            .status
            .code(),
        Some(1)
    );
    let set = folder.path().join("data/tinyshakespeare");
    std::fs::create_dir_all(&set).unwrap();
    std::fs::write(set.join("input.txt"), "First Citizen:").unwrap();
    let output = kiln(folder.path(), None, &["data", "verify"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("is not the published file: it has 14 bytes"),
        "{}",
        stdout(&output)
    );
    let output = kiln(folder.path(), None, &["data", "fetch", "tinyshakespeare"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("kiln does not overwrite it"),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        std::fs::read(set.join("input.txt")).unwrap(),
        b"First Citizen:"
    );
}

#[test]
fn real_data_of_images_is_fetched_in_their_published_form_and_verified() {
    let real = real_data();
    let names = [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ];
    let bodies = names.map(|name| std::fs::read(real.join("fashion-mnist").join(name)).unwrap());
    let server = Server::start_each(bodies.to_vec(), &[Answer::Ranges]);
    let folder = tempfile::tempdir().unwrap();
    let output = kiln(
        folder.path(),
        None,
        &["data", "fetch", "fashion-mnist", "--from", &server.address],
    );
    assert!(
        output.status.success(),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    assert_eq!(
        server.requests(),
        names.map(|name| format!("GET /fashion-mnist/{name} HTTP/1.1 None"))
    );
    let set = folder.path().join("data/fashion-mnist");
    assert_eq!(
        names_beside(&set.join("x")),
        [
            "t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte.gz",
            names[0],
            names[1]
        ]
    );
    assert!(
        kiln(folder.path(), None, &["data", "verify", "fashion-mnist"])
            .status
            .success()
    );
    // Unpacked, it is the same file.
    let mut labels = Vec::new();
    Read::read_to_end(
        &mut flate2::read::GzDecoder::new(bodies[1].as_slice()),
        &mut labels,
    )
    .unwrap();
    std::fs::remove_file(set.join(names[1])).unwrap();
    std::fs::write(set.join("train-labels-idx1-ubyte"), &labels).unwrap();
    assert!(
        kiln(folder.path(), None, &["data", "verify", "fashion-mnist"])
            .status
            .success()
    );
    labels.pop();
    std::fs::write(set.join("train-labels-idx1-ubyte"), &labels).unwrap();
    let output = kiln(folder.path(), None, &["data", "verify", "fashion-mnist"]);
    assert!(
        output.status.code() == Some(1)
            && stdout(&output).contains("is not the published file: it has 60007 bytes and sha256"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn an_archive_is_held_against_its_md5_and_what_was_in_it_counts_as_here() {
    let server = Server::start(b"no archive".to_vec(), &[Answer::Ranges]);
    let folder = tempfile::tempdir().unwrap();
    let output = kiln(
        folder.path(),
        None,
        &["data", "fetch", "cifar10", "--from", &server.address],
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        server.requests(),
        ["GET /cifar-10/cifar-10-binary.tar.gz HTTP/1.1 None"]
    );
    assert!(
        stderr(&output).contains("the published file has c32a1d4ab5d03f1284b67883e8d87530"),
        "{}",
        stderr(&output)
    );
    let set = folder.path().join("data/cifar-10");
    std::fs::write(set.join("cifar-10-binary.tar"), b"unpacked by half").unwrap();
    let output = kiln(folder.path(), None, &["data", "verify", "cifar10"]);
    assert!(
        output.status.code() == Some(1)
            && stdout(&output).contains("only `cifar-10-binary.tar.gz` can be verified"),
        "{}",
        stdout(&output)
    );
    std::fs::remove_file(set.join("cifar-10-binary.tar")).unwrap();
    std::fs::create_dir(set.join("cifar-10-batches-bin")).unwrap();
    for name in [
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    ] {
        std::fs::write(set.join(format!("cifar-10-batches-bin/{name}.bin")), b"").unwrap();
    }
    let output = kiln(folder.path(), None, &["data", "verify", "cifar10"]);
    assert!(
        output.status.success() && stdout(&output).contains("data/cifar-10 is unpacked"),
        "{}",
        stdout(&output)
    );
    let output = kiln(
        folder.path(),
        None,
        &["data", "fetch", "cifar10", "--from", &server.address],
    );
    assert!(
        output.status.success() && stdout(&output).contains("is already here, unpacked"),
        "{}",
        stdout(&output)
    );
    assert_eq!(server.requests().len(), 1);
}

/// A repository as its host packs it, with the published prices in it: their archive of
/// `price/raw`, unpacked.
fn repository(prices: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let mut add = |path: &str, bytes: &[u8]| {
        zip.start_file(path, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(bytes).unwrap();
    };
    add("stocknet-dataset-master/README.md", b"# stocknet-dataset");
    add(
        "stocknet-dataset-master/price/preprocessed/AAPL.txt",
        b"2017-09-01\t0.0",
    );
    add("stocknet-dataset-master/tweet/notes.csv", b"no prices");
    let mut archive = tar::Archive::new(liblzma::read::XzDecoder::new(prices));
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (path, mut bytes) = (entry.path().unwrap().display().to_string(), Vec::new());
        entry.read_to_end(&mut bytes).unwrap();
        if entry.header().entry_type().is_file() {
            add(&format!("stocknet-dataset-master/price/{path}"), &bytes);
        }
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn real_data_of_prices_is_fetched_inside_their_repository_and_verified_in_any_form() {
    let real = real_data();
    let output = kiln(&real, Some(&real), &["data", "verify", "stocknet"]);
    assert!(
        output.status.success() && stdout(&output).contains("stocknet-88 is as published"),
        "{}",
        stdout(&output)
    );
    let prices = std::fs::read(real.join("stocknet-88/price-raw.tar.xz")).unwrap();
    let repository = repository(&prices);
    let server = Server::start(
        repository.clone(),
        &[Answer::CutAfter(100_000), Answer::Ranges],
    );
    let folder = tempfile::tempdir().unwrap();
    for (requests, word) in [(2, "master.zip fetched"), (2, "is already here")] {
        let output = kiln(
            folder.path(),
            None,
            &["data", "fetch", "stocknet", "--from", &server.address],
        );
        assert!(
            output.status.success() && stdout(&output).contains(word),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
        assert_eq!(server.requests().len(), requests);
    }
    assert_eq!(
        server.requests()[0],
        "GET /stocknet-88/master.zip HTTP/1.1 None"
    );
    let set = folder.path().join("data/stocknet-88");
    assert_eq!(names_beside(&set.join("x")), ["master.zip"]);
    assert!(
        kiln(folder.path(), None, &["data", "verify", "stocknet"])
            .status
            .success()
    );
    let read = |data: &str, folder: Option<&Path>| {
        let data: kiln_core::kinds::Data = serde_yaml::from_str(data).unwrap();
        kiln_data::panel::load(&data, folder).unwrap()
    };
    let (fetched, packed) = (
        read("{kind: stocknet}", Some(&folder.path().join("data"))),
        read("{kind: stocknet}", Some(&real)),
    );
    assert_eq!(
        (&fetched.facts, fetched.target_mean),
        (&packed.facts, packed.target_mean)
    );
    assert_eq!(fetched.symbols[87].features, packed.symbols[87].features);
    // Another repository is not taken for it, and one that is there is not written over.
    std::fs::rename(set.join("master.zip"), folder.path().join("away.zip")).unwrap();
    std::fs::write(set.join("A.csv"), "Date,Open\n").unwrap();
    let output = kiln(folder.path(), None, &["data", "verify", "stocknet"]);
    assert!(
        output.status.code() == Some(1)
            && stdout(&output).contains("is not the published file: it has 10 bytes and sha256"),
        "{}",
        stdout(&output)
    );
    let output = kiln(
        folder.path(),
        None,
        &["data", "fetch", "stocknet", "--from", &server.address],
    );
    assert!(
        output.status.code() == Some(1) && stderr(&output).contains("kiln does not overwrite it"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn another_archive_is_not_taken_for_the_prices() {
    let empty = liblzma::write::XzEncoder::new(Vec::new(), 1)
        .finish()
        .unwrap();
    for body in [b"no archive at all".to_vec(), repository(&empty)] {
        let server = Server::start(body, &[Answer::Ranges]);
        let folder = tempfile::tempdir().unwrap();
        let output = kiln(
            folder.path(),
            None,
            &["data", "fetch", "stocknet", "--from", &server.address],
        );
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("the published file has c5b586fa"),
            "{}",
            stderr(&output)
        );
        assert_eq!(
            names_beside(&folder.path().join("data/stocknet-88/x")),
            ["master.zip.bad"]
        );
    }
}

#[test]
fn real_data_is_fetched_as_published_verified_and_not_fetched_twice() {
    let real = real_data();
    let verified = kiln(
        &real,
        Some(&real),
        &["data", "verify", "wikitext2", "tinyshakespeare"],
    );
    assert!(verified.status.success(), "{}", stdout(&verified));
    let server = Server::start(
        std::fs::read(real.join("tinyshakespeare/input.txt")).unwrap(),
        &[Answer::CutAfter(400_000), Answer::Ranges],
    );
    let folder = tempfile::tempdir().unwrap();
    for (times, word) in [(2, "fetched"), (2, "is already here")] {
        let output = kiln(
            folder.path(),
            None,
            &[
                "data",
                "fetch",
                "tinyshakespeare",
                "--from",
                &server.address,
                "--to",
                "kept",
            ],
        );
        assert!(
            output.status.success() && stdout(&output).contains(word),
            "{}{}",
            stdout(&output),
            stderr(&output)
        );
        assert_eq!(server.requests().len(), times);
    }
    let kept = folder.path().join("kept");
    assert!(
        kiln(
            folder.path(),
            Some(&kept),
            &["data", "verify", "tinyshakespeare"]
        )
        .status
        .success()
    );
}

#[test]
fn rows_that_nobody_publishes_come_from_a_mirror_and_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(b"no tokenizer".to_vec(), &[Answer::Ranges]);
    let set = folder.path().join("data/chatlm-mini-chinese");
    let output = kiln(
        folder.path(),
        None,
        &["data", "fetch", "chatlm", "--from", &server.address],
    );
    assert_eq!(
        (output.status.code(), server.requests()[0].as_str()),
        (
            Some(1),
            "GET /chatlm-mini-chinese/train.jsonl HTTP/1.1 None"
        )
    );
    assert!(
        stderr(&output).contains("has sha256") && stderr(&output).contains("810dfe1a184107db"),
        "{}",
        stderr(&output)
    );
    assert_eq!(names_beside(&set.join("x")), ["train.jsonl.bad"]);
}

#[test]
fn real_data_of_rows_that_nobody_publishes_is_taken_as_it_lies_there() {
    let real = real_data().join("chatlm-mini-chinese");
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("data/chatlm-mini-chinese");
    std::fs::create_dir_all(&set).unwrap();
    std::fs::copy(
        real.join("tokenizer-20231214.json.xz"),
        set.join("tokenizer-20231214.json.xz"),
    )
    .unwrap();
    let output = kiln(folder.path(), None, &["data", "fetch", "chatlm"]);
    assert_eq!(output.status.code(), Some(1));
    for part in [
        "train.jsonl cannot be fetched: these rows",
        "valid.jsonl cannot be fetched",
        "tokenizer-20231214.json.xz is already here; its sha256 is as published",
    ] {
        assert!(
            stdout(&output).contains(part),
            "{part} is not in: {}",
            stdout(&output)
        );
    }
    for name in ["train.jsonl.xz", "valid.jsonl.xz"] {
        std::fs::copy(real.join(name), set.join(name)).unwrap();
    }
    assert!(
        kiln(folder.path(), None, &["data", "fetch", "chatlm"])
            .status
            .success()
    );
    assert!(
        kiln(folder.path(), None, &["data", "verify", "chatlm"])
            .status
            .success()
    );
}
