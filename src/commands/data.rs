//! `kiln data`: lists and downloads data sets, verifies files against their published hashes, and
//! shows what kiln reads of an experiment's data.

mod show;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Subcommand;
use kiln_core::units::Bytes;
use kiln_data::{
    dataset::{self, Checksum, Dataset, DatasetFile, Origin},
    error::DataError,
    files,
    source::{self, data_folder},
};

use super::{Status, Stop, note, print, print_line};
use crate::{
    fetch::{self, Download, FetchPatience, FetchProgress},
    output::{
        bars::Bar,
        table::TextTable,
        terminal::{can_draw, stderr_is_terminal},
    },
};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: DataVerb,
}

#[derive(Subcommand)]
enum DataVerb {
    /// List the data sets that kiln knows, and where they are on this machine.
    List,
    /// Show what kiln reads of an experiment's data: files, samples, classes, what is left out.
    Show(show::ShowArgs),
    /// Download data sets; resumes an unfinished download.
    Fetch(FetchArgs),
    /// Verify files against their published checksums: sha256 (plain, .gz or .xz), else md5.
    Verify {
        /// Data sets; all that are on this machine if none is named.
        names: Vec<String>,
    },
}

#[derive(clap::Args)]
struct FetchArgs {
    /// Data sets, as `kiln data list` names them.
    #[arg(required = true)]
    names: Vec<String>,
    /// Parent folder of the data set's folder; $KILN_DATA if set, else data/.
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Address of a mirror with the same layout as DIR: URL/<folder>/<file>.
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Consecutive attempts without progress before giving up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    attempts: u32,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    let data_folder = data_folder();
    match args.verb {
        DataVerb::List => list(data_folder.as_deref()),
        DataVerb::Show(args) => show::show(&args),
        DataVerb::Fetch(args) => fetch_sets(&args, data_folder.as_deref()),
        DataVerb::Verify { names } => verify(&names, data_folder.as_deref()),
    }
}

fn list(data_folder: Option<&Path>) -> Result<Status, Stop> {
    let mut table = TextTable::plain(["data.kind", "what", "size", "licence", "here"]);
    for set in dataset::all() {
        let here = match place_of(set, data_folder) {
            Ok(Some(folder)) => folder.display().to_string(),
            Ok(None) => "–".to_owned(),
            Err(error) => format!("unknown: {error}"),
        };
        table.add_row([set.name, set.about, &size(set.bytes()), set.licence, &here]);
    }
    table.add_row([
        "generated",
        "a text that kiln generates",
        "any",
        "–",
        "no download needed",
    ]);
    table.add_row(["text", "your own text file", "any", "yours", "`data.path`"]);
    table.add_row([
        "generated-images",
        "images that kiln generates",
        "any",
        "–",
        "no download needed",
    ]);
    table.add_row([
        "image-folder",
        "your own folder of PNG and JPEG files",
        "any",
        "yours",
        "`data.path`",
    ]);
    table.add_row([
        "sft-jsonl",
        "your own prompts and responses, as JSON lines",
        "any",
        "yours",
        "`data.path`",
    ]);
    table.add_row([
        "panel-csv",
        "your own CSV files, one per symbol",
        "any",
        "yours",
        "`data.path`",
    ]);
    print(&format!(
        "{}\n\n`kiln data fetch NAME` downloads a set, `kiln data verify` checks the files on this \
         machine.\n",
        table.text()
    ))?;
    Ok(Status::Success)
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// Returns the first folder that holds a file of the set, or its unpacked archive.
fn place_of(set: &Dataset, data_folder: Option<&Path>) -> Result<Option<PathBuf>, DataError> {
    for folder in files::folders(set.folder, None, data_folder) {
        for file in set.files {
            if source::present(file, &folder)?.is_some() {
                return Ok(Some(folder));
            }
        }
        if source::is_unpacked(set, &folder)? {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

fn named(names: &[String]) -> Result<Vec<&'static Dataset>, Stop> {
    names
        .iter()
        .map(|name| dataset::find(name).ok_or_else(|| unknown(name)))
        .collect()
}

fn unknown(name: &str) -> Stop {
    let names: Vec<&str> = dataset::all().iter().map(|set| set.name).collect();
    let near = names
        .iter()
        .find(|known| strsim::damerau_levenshtein(known, name) <= 3);
    let hint = near.map_or_else(
        || format!("known are {}", names.join(", ")),
        |near| format!("did you mean `{near}`?"),
    );
    Stop::bad_input(format!("unknown data set `{name}`; {hint}"))
}

fn fetch_sets(args: &FetchArgs, data_folder: Option<&Path>) -> Result<Status, Stop> {
    let to = args
        .to
        .as_deref()
        .or(data_folder)
        .unwrap_or(Path::new("data"));
    let mut status = Status::Success;
    for set in named(&args.names)? {
        print_line(&format!(
            "{}: {}, licence {}",
            set.name, set.about, set.licence
        ))?;
        for file in set.files {
            status = worse(status, fetch_file(set, file, &to.join(set.folder), args)?);
        }
    }
    Ok(status)
}

/// Downloads a file unless it is present. A file without a public address only prints a message, so
/// that the others are still downloaded.
fn fetch_file(
    set: &Dataset,
    file: &DatasetFile,
    folder: &Path,
    args: &FetchArgs,
) -> Result<Status, Stop> {
    let failed = |error: DataError| Stop::new(Status::Failed, error);
    if let Some(present) = source::present(file, folder).map_err(failed)? {
        check_file(&present, file).map_err(|fault| {
            Stop::new(
                Status::Failed,
                format!("{fault}; kiln does not overwrite it; move it away and fetch again"),
            )
        })?;
        print_line(&format!(
            "{} is already here; its {} is as published",
            present.display(),
            file.checksum.algorithm()
        ))?;
        return Ok(Status::Success);
    }
    if source::is_unpacked(set, folder).map_err(failed)? {
        print_line(&format!("{} is already here, unpacked", folder.display()))?;
        return Ok(Status::Success);
    }
    let name = file.published_name();
    let destination = folder.join(&name);
    let url = match (&args.from, &file.origin) {
        (Some(mirror), _) => format!("{}/{}/{name}", mirror.trim_end_matches('/'), set.folder),
        (None, Origin::Set) => format!("{}{name}", set.address),
        (None, Origin::Own(url)) => (*url).to_owned(),
        (None, Origin::Nowhere(what_to_do)) => {
            print_line(&format!(
                "{} cannot be fetched: {what_to_do}",
                destination.display()
            ))?;
            return Ok(Status::Failed);
        }
    };
    download(
        file,
        Download {
            url,
            destination,
            checksum: file.checksum.clone(),
            most_bytes: most_bytes(file),
            certificates: std::env::var_os("SSL_CERT_FILE").map(PathBuf::from),
        },
        args.attempts,
    )
    .map(|()| Status::Success)
}

/// A mirror may compress a file in another way where the checksum is that of the content.
fn most_bytes(file: &DatasetFile) -> Option<u64> {
    let is_of_content = matches!(file.checksum, Checksum::Sha256(_)) && !file.ending.is_empty();
    file.bytes
        .map(|bytes| if is_of_content { 2 * bytes } else { bytes })
}

fn download(file: &DatasetFile, download: Download, attempts: u32) -> Result<(), Stop> {
    let patience = FetchPatience {
        attempts,
        ..FetchPatience::default()
    };
    let mut bar = DownloadBar::new(file);
    let ended = fetch::fetch(&download, patience, &mut |progress| {
        bar.show(file, progress)
    });
    bar.clear();
    ended.map_err(|error| Stop::new(Status::Failed, error))?;
    let size = size(
        std::fs::metadata(&download.destination)
            .ok()
            .map(|file| file.len()),
    );
    print_line(&format!(
        "{} fetched ({size}); its {} is as published",
        download.destination.display(),
        file.checksum.algorithm()
    ))
}

/// Time between two lines of progress when there is no bar.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows progress: a bar on a terminal, else a line from time to time.
enum DownloadBar {
    Drawn(Bar),
    Lines { last: Option<Instant> },
}

impl DownloadBar {
    fn new(file: &DatasetFile) -> Self {
        if !can_draw(stderr_is_terminal()) {
            return Self::Lines { last: None };
        }
        let bar = Bar::new(
            file.bytes,
            "{prefix} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left {msg}",
        );
        bar.set_prefix(file.name);
        Self::Drawn(bar)
    }

    fn show(&mut self, file: &DatasetFile, progress: FetchProgress) {
        if let FetchProgress::Retry { reason, wait } = &progress {
            return self.say(&format!(
                "{}: {reason}; next attempt in {} ms",
                file.name,
                wait.as_millis()
            ));
        }
        match (self, progress) {
            (Self::Drawn(bar), FetchProgress::Bytes { done, total }) => {
                if let Some(total) = total {
                    bar.set_length(total);
                }
                bar.set_position(done);
            }
            (Self::Drawn(bar), _) => bar.set_message("checking"),
            (Self::Lines { last }, FetchProgress::Bytes { done, total })
                if last.is_none_or(|last| last.elapsed() >= LINE_EVERY) =>
            {
                *last = Some(Instant::now());
                let of_total = total
                    .or(file.bytes)
                    .map(|total| format!(" of {}", Bytes(total)))
                    .unwrap_or_default();
                note(&format!("{}: {}{of_total}", file.name, Bytes(done)));
            }
            (Self::Lines { .. }, _) => {}
        }
    }

    fn say(&self, line: &str) {
        match self {
            Self::Drawn(bar) => bar.print_line(line),
            Self::Lines { .. } => note(line),
        }
    }

    fn clear(&self) {
        if let Self::Drawn(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn verify(names: &[String], data_folder: Option<&Path>) -> Result<Status, Stop> {
    let asked = named(names)?;
    let sets = if asked.is_empty() {
        dataset::all()
    } else {
        asked
    };
    let mut status = Status::Success;
    for set in sets {
        match place_of(set, data_folder) {
            Ok(Some(folder)) => status = worse(status, verify_set(set, &folder)?),
            Err(error) => {
                print_line(&format!("{}: {error}", set.name))?;
                status = Status::Failed;
            }
            Ok(None) => {
                let places: Vec<String> = files::folders(set.folder, None, data_folder)
                    .iter()
                    .map(|folder| folder.display().to_string())
                    .collect();
                print_line(&format!(
                    "{}: not here (looked in {}); `kiln data fetch {0}` downloads it",
                    set.name,
                    places.join(", ")
                ))?;
                if !names.is_empty() {
                    status = Status::Failed;
                }
            }
        }
    }
    Ok(status)
}

fn worse(one: Status, other: Status) -> Status {
    if one == Status::Success { other } else { one }
}

fn verify_set(set: &Dataset, folder: &Path) -> Result<Status, Stop> {
    let mut status = Status::Success;
    for file in set.files {
        let line = verify_file(set, file, folder);
        if line.is_err() {
            status = Status::Failed;
        }
        let (Ok(line) | Err(line)) = line;
        print_line(&format!("{}: {line}", set.name))?;
    }
    Ok(status)
}

/// Says that a file is as published, or what is wrong with it.
fn verify_file(set: &Dataset, file: &DatasetFile, folder: &Path) -> Result<String, String> {
    let failed = |error: DataError| error.to_string();
    match source::present(file, folder).map_err(failed)? {
        Some(path) => {
            check_file(&path, file).map(|()| format!("{} is as published", path.display()))
        }
        None if source::is_unpacked(set, folder).map_err(failed)? => Ok(format!(
            "{} is unpacked; only an archive can be verified",
            folder.display()
        )),
        None => Err(format!(
            "{} is missing",
            folder.join(file.published_name()).display()
        )),
    }
}

fn check_file(path: &Path, file: &DatasetFile) -> Result<(), String> {
    let (name, algorithm, published) = (
        file.published_name(),
        file.checksum.algorithm(),
        file.checksum.hex(),
    );
    if matches!(file.checksum, Checksum::Md5(_)) && !path.ends_with(&name) {
        return Err(format!(
            "{} is not packed as published; only `{name}` can be verified against its md5",
            path.display()
        ));
    }
    let (found, bytes) = source::checksum_of(path, path, &file.checksum)
        .map_err(|error| format!("{} could not be read: {error}", path.display()))?;
    if found == published {
        return Ok(());
    }
    Err(format!(
        "{} is not the published file: it has {bytes} bytes and {algorithm} {found}, expected \
         {published}",
        path.display()
    ))
}
