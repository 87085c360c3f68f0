//! `kiln export`: a trained model as a folder for PyTorch and `transformers`. The child writes it
//! beside its place, and it is renamed when it is whole.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use kiln_core::{
    folder::names_in,
    input,
    limits::STATE_BYTES,
    record::{
        checkpoint::MODEL_FILE,
        model_use::{ExportTask, UseAnswer, UseTask},
    },
    units::shell_word,
};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use serde_json::Value;

use super::{
    Status, Stop,
    launch_page::path_line,
    model_child, note, print, stop_flag,
    trained_model::{self, find},
};
use crate::processes::ProcessId;

/// End of the name of a folder that is being written.
const DRAFT: &str = ".new";

/// The exported file that builds and loads the network in PyTorch.
const LOADER: &str = "model.py";

/// The exported folder for `transformers`.
const FOLDER: &str = "huggingface";
/// All that an export may write into it.
const WRITTEN_BELOW: [&str; 3] = ["config.json", MODEL_FILE, "tokenizer.json"];

/// All that an export may write.
const WRITTEN: [&str; 8] = [
    MODEL_FILE,
    "config.json",
    LOADER,
    "__pycache__",
    "check.safetensors",
    "vocabulary.json",
    "tokenizer.json",
    FOLDER,
];

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: trained_model::Args,
    /// Folder to create: model.safetensors under PyTorch's names, config.json, model.py, which builds
    /// and loads the network, and huggingface/ for a gpt (GPT-2) and a seq2seq (T5).
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Replace an earlier export in that folder.
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    refuse_occupied(&args.to, args.force)?;
    let to = target(&args.to)?;
    refuse_mount(&args.to, &to)?;
    let trained = find(&args.model)?;
    // The draft is removed where a signal would end this process at once.
    let is_stopped = stop_flag().map_err(|error| Stop::new(Status::CannotRun, error))?;
    let draft = Draft::new(&to).map_err(|error| failed(&args.to, &error))?;
    let task = UseTask::Export(ExportTask {
        to: draft.path.clone(),
        origin: trained.origin(),
    });
    let (mut written, mut missing) = (Vec::new(), Vec::new());
    let asked = model_child::ask(trained, &args.model.device, task, &mut |answer| {
        if let UseAnswer::Exported { files, left_out } = answer {
            (written, missing) = (files, left_out);
        }
        Ok(true)
    });
    if is_stopped.load(Ordering::Relaxed) {
        let text = "interrupted; nothing was written";
        return Err(Stop::new(Status::Interrupted, text));
    }
    asked?;
    // The folder may have been filled meanwhile.
    refuse_occupied(&args.to, args.force)?;
    let left = draft
        .put_in_place(&to)
        .map_err(|error| failed(&args.to, &error))?;
    if let Some((old, error)) = left {
        note(&format!(
            "note: the earlier export could not be removed and is left in {}: {error}",
            old.display()
        ));
    }
    written.sort();
    print(&summary(&args.to, &written, &missing))?;
    Ok(Status::Success)
}

/// The folder to write. A link stays one, and what it leads to is replaced.
///
/// # Errors
/// It is a link to nothing.
fn target(named: &Path) -> Result<PathBuf, Stop> {
    let refuse = |why: String| Stop::bad_input(format!("{}: {why}", named.display()));
    let to = std::path::absolute(named).map_err(|error| refuse(error.to_string()))?;
    match to.canonicalize() {
        Ok(found) => Ok(found),
        Err(_) if to.is_symlink() => Err(refuse(
            "it is a link to nothing; create the folder that it names, or remove the link"
                .to_owned(),
        )),
        Err(_) => Ok(to),
    }
}

/// The files that were written, what could not be, and how to load the model.
fn summary(to: &Path, written: &[String], missing: &[String]) -> String {
    let files: String = written
        .iter()
        .map(|name| path_line(&to.join(name)))
        .collect();
    let left_out: String = missing
        .iter()
        .map(|what| path_line(Path::new(what)))
        .collect();
    let left_out = match missing.is_empty() {
        true => String::new(),
        false => format!("Left out:\n{left_out}"),
    };
    let load = match written.iter().any(|name| name == LOADER) {
        true => loading(&to.join(LOADER)),
        false => String::new(),
    };
    format!("Written:\n{files}{left_out}{load}")
}

/// How to load the model in PyTorch.
fn loading(loader: &Path) -> String {
    let loader = loader.display().to_string();
    // Python takes a path that begins with a dash for an option.
    let loader = match loader.starts_with('-') {
        true => format!("./{loader}"),
        false => loader,
    };
    let command = format!("python3 {}", shell_word(&loader));
    format!(
        "Load it in PyTorch, after `pip install torch safetensors`:\n{}",
        path_line(Path::new(&command))
    )
}

/// Errors: something is there that may not be replaced.
fn refuse_occupied(to: &Path, force: bool) -> Result<(), Stop> {
    let refuse = |what: &str| Err(Stop::bad_input(format!("{}: {what}", to.display())));
    let entries = match fs::read_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return refuse("there is a file of that name; name another folder with `--to`");
        }
        opened => opened.map_err(|error| failed(to, &error))?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<io::Result<Vec<String>>>();
    let names = names.map_err(|error| failed(to, &error))?;
    match (names.len(), is_export(to), force) {
        (0, ..) => Ok(()),
        (_, true, true) => match foreign(to, &names).map_err(|error| failed(to, &error))? {
            None => Ok(()),
            Some(name) => refuse(&format!(
                "`{name}` is not of an export, and `--force` would remove it; move it, or name \
                 another folder with `--to`"
            )),
        },
        (_, false, _) => refuse(
            "the folder holds files that are not an export of kiln; name another one with `--to`",
        ),
        (_, true, false) => {
            refuse("an export is there already; replace it with `--force`, or name another folder")
        }
    }
}

/// The first entry of an earlier export's folder, which has these names, that is not of an export.
fn foreign(to: &Path, names: &[String]) -> io::Result<Option<String>> {
    let mut names = names.iter();
    if let Some(own) = names.find(|name| !WRITTEN.contains(&name.as_str())) {
        return Ok(Some(own.clone()));
    }
    let below = names_in(&to.join(FOLDER))?.into_iter();
    let mut below = below.map(|name| name.to_string_lossy().into_owned());
    let own = below.find(|name| !WRITTEN_BELOW.contains(&name.as_str()));
    Ok(own.map(|name| format!("{FOLDER}/{name}")))
}

/// Errors: something is mounted there, so that the folder cannot be renamed.
fn refuse_mount(named: &Path, to: &Path) -> Result<(), Stop> {
    let found = statx(CWD, to, AtFlags::empty(), StatxFlags::empty());
    match found {
        Ok(found) if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => {
            Err(Stop::bad_input(format!(
                "{}: it is a mount point, and an export replaces its folder as a whole; name a \
                 folder below it with `--to`",
                named.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a folder was written by `kiln export`.
fn is_export(folder: &Path) -> bool {
    input::read(&folder.join("config.json"), &STATE_BYTES)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
        .is_some_and(|config| config.get("kiln_export").is_some())
}

fn failed(path: &Path, error: &io::Error) -> Stop {
    Stop::new(
        Status::Failed,
        format!(
            "{}: the export could not be written: {error}",
            path.display()
        ),
    )
}

/// The folder while it is written; removed unless it is renamed.
struct Draft {
    path: PathBuf,
    /// Shows other machines that it is being written; absent where the file system has no locks.
    _lock: Option<File>,
}

impl Draft {
    fn new(to: &Path) -> io::Result<Self> {
        let name = to
            .file_name()
            .ok_or_else(|| io::Error::other("it is not the name of a folder"))?;
        let begin = format!(".{}.", name.to_string_lossy());
        let folder = to.parent().unwrap_or(to);
        fs::create_dir_all(folder)?;
        remove_leftovers(folder, &begin);
        let path = folder.join(format!("{begin}{}{DRAFT}", std::process::id()));
        fs::create_dir(&path)?;
        let lock = locked(&path);
        Ok(Self { path, _lock: lock })
    }

    /// Puts it into its place, where nothing is, an empty folder, or an earlier export: that one is
    /// removed after the new one has its name. Returns where it is left and why, if that fails.
    fn put_in_place(self, to: &Path) -> io::Result<Option<(PathBuf, io::Error)>> {
        use io::ErrorKind::{AlreadyExists, CrossesDevices, DirectoryNotEmpty};
        let occupied = match fs::rename(&self.path, to) {
            // XFS says that it exists.
            Err(error) if [AlreadyExists, DirectoryNotEmpty].contains(&error.kind()) => error,
            renamed => return renamed.map(|()| None),
        };
        let old = self.path.with_extension("old");
        if !is_export(to) {
            return Err(occupied);
        }
        match fs::rename(to, &old) {
            // A folder in a lower layer of a container's file system.
            Err(error) if error.kind() == CrossesDevices => {
                fs::remove_dir_all(to)?;
                return fs::rename(&self.path, to).map(|()| None);
            }
            renamed => renamed?,
        }
        if let Err(error) = fs::rename(&self.path, to) {
            return Err(match fs::rename(&old, to) {
                Ok(()) => error,
                Err(_) => io::Error::new(
                    error.kind(),
                    format!("{error}; the earlier export is in {}", old.display()),
                ),
            });
        }
        Ok(fs::remove_dir_all(&old).err().map(|error| (old, error)))
    }
}

/// Removes the drafts with this beginning whose processes were killed.
fn remove_leftovers(folder: &Path, begin: &str) {
    let own = std::process::id();
    for name in names_in(folder).unwrap_or_default() {
        let Some(pid) = name.to_str().and_then(|name| pid_of(name, begin)) else {
            continue;
        };
        let draft = folder.join(&name);
        let has_ended = pid == own || ProcessId::of(pid).is_none();
        if has_ended && locked(&draft).is_some() {
            let _ = fs::remove_dir_all(&draft);
        }
    }
}

/// The process that wrote a draft, by its name; `None` for other names.
fn pid_of(name: &str, begin: &str) -> Option<u32> {
    let pid = name.strip_prefix(begin)?.strip_suffix(DRAFT)?;
    pid.parse().ok()
}

/// The lock of a folder; `None` if it is held, or cannot be had.
fn locked(folder: &Path) -> Option<File> {
    let opened = File::open(folder).ok()?;
    opened.try_lock().ok().map(|()| opened)
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It is not there any more if it was renamed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_file_in_an_export_is_found_or_the_folder_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["config.json".to_owned(), FOLDER.to_owned()];
        let found = || foreign(folder.path(), &names);
        assert_eq!(found().unwrap(), None);
        let model = folder.path().join(FOLDER);
        fs::create_dir(&model).unwrap();
        fs::write(model.join(WRITTEN_BELOW[0]), "{}").unwrap();
        assert_eq!(found().unwrap(), None);
        fs::write(model.join("notes.txt"), "x").unwrap();
        assert_eq!(found().unwrap().as_deref(), Some("huggingface/notes.txt"));
        fs::remove_dir_all(&model).unwrap();
        fs::write(&model, "not a folder").unwrap();
        assert!(found().is_err());
        let own = foreign(folder.path(), &["mine.txt".to_owned()]);
        assert_eq!(own.unwrap().as_deref(), Some("mine.txt"));
    }
}
