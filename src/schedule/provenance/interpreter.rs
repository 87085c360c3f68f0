//! Asks a Python which version it is and which packages it sees: the interpreter itself, as the
//! trials start it. No pip is needed, and nothing of the working directory is imported.

use std::{collections::BTreeMap, process::Command, time::Duration};

use kiln_core::{record::PackageList, units::without_controls};

use super::python::Python;
use crate::subprocess::answer;

/// Longest time that an answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// An installation with thousands of packages says less.
const MOST_BYTES: u64 = 4 << 20;
/// Longest reason that is kept, in characters.
const LONGEST_REASON: usize = 200;
/// Between the name of a package and its version.
const SEPARATOR: char = '\t';

/// Prints the version, then each package with its version. The first of a name counts, as for an
/// import. Python 2 can read it.
const PROGRAM: &str = r#"
import sys
sys.path[:] = [path for path in sys.path if path]
import io, re
out = io.open(1, 'wb')
def say(*words):
    line = u'\t'.join(u' '.join((u'%s' % (word,)).split()) for word in words)
    out.write(line.encode('utf-8', 'backslashreplace') + b'\n')
name = getattr(sys, 'implementation', None)
name = name.name if name else 'cpython'
say('python %d.%d.%d' % sys.version_info[:3] + ('' if name == 'cpython' else ' (%s)' % name))
out.flush()
from importlib import metadata
import json
seen = set()
for found in metadata.distributions():
    name = version = None
    try:
        name, version = found.metadata['Name'], found.version
    except Exception:
        pass
    folder = str(getattr(getattr(found, '_path', None), 'name', ''))
    if not name or not version:
        name, _, version = re.sub(r'\.(dist|egg)-info$', '', folder).partition('-')
    if not name:
        continue
    key = re.sub(r'[-_.]+', '-', name).lower()
    if key in seen:
        continue
    seen.add(key)
    source = ''
    try:
        direct = json.loads(found.read_text('direct_url.json') or '{}')
        commit = direct.get('vcs_info', {}).get('commit_id')
        editable = direct.get('dir_info', {}).get('editable')
        source = ' (commit %s)' % commit if commit else ' (editable)' if editable else ''
    except Exception:
        pass
    say(key, (version or 'unknown') + source)
out.write(b'\n')
out.flush()
"#;

/// The answer of an interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InterpreterAnswer {
    pub(super) version: Option<String>,
    pub(super) packages: Option<BTreeMap<String, String>>,
    /// The reason why something is missing.
    pub(super) unknown: Option<String>,
}

/// Asks a Python; one that gives no answer is no error.
pub(super) fn ask(python: &Python, patience: Duration) -> InterpreterAnswer {
    let mut command = Command::new(&python.path);
    command
        .args(&python.options)
        .args(["-c", PROGRAM])
        .envs(python.environment.iter().map(|(name, value)| (name, value)))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    if python.folder.is_dir() {
        command.current_dir(&python.folder);
    }
    match answer(command, patience, MOST_BYTES) {
        Ok(answered) => {
            let mut described = read(&String::from_utf8_lossy(&answered.stdout));
            if described.packages.is_none() {
                let last = answered
                    .stderr
                    .lines()
                    .rfind(|line| !line.trim().is_empty());
                let why = last.unwrap_or("its list of packages is incomplete");
                described.unknown =
                    Some(without_controls(why).chars().take(LONGEST_REASON).collect());
            }
            described
        }
        Err(error) => InterpreterAnswer {
            unknown: Some(error.to_string()),
            ..InterpreterAnswer::default()
        },
    }
}

/// Reads what [`PROGRAM`] printed: without the empty line at its end it is incomplete.
fn read(text: &str) -> InterpreterAnswer {
    let mut lines = text.lines();
    let version = lines.next().filter(|line| line.starts_with("python "));
    let mut packages = BTreeMap::new();
    let mut is_whole = false;
    for line in lines {
        match line.split_once(SEPARATOR) {
            Some((name, version)) => {
                packages.insert(name.replace(' ', "-"), version.to_owned());
            }
            None => is_whole = line.is_empty(),
        }
    }
    InterpreterAnswer {
        version: version.map(without_controls),
        packages: (is_whole && version.is_some()).then_some(packages),
        unknown: None,
    }
}

impl InterpreterAnswer {
    /// `python 3.12.3, 41 packages`.
    pub(super) fn sentence(&self) -> String {
        let version = self.version.as_deref().unwrap_or("version unknown");
        let packages = match (&self.packages, &self.unknown) {
            (Some(packages), _) => kiln_core::units::counted(packages.len(), "package"),
            (None, Some(why)) => format!("packages unknown ({why})"),
            (None, None) => "packages unknown".to_owned(),
        };
        format!("{version}, {packages}")
    }

    /// Its packages under the interpreter's path.
    pub(super) fn list(&self, interpreter: &str) -> Option<PackageList> {
        Some(PackageList {
            interpreter: interpreter.to_owned(),
            packages: self.packages.clone()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::program::write_program;

    fn python(path: &Path, folder: &Path) -> Python {
        Python {
            path: path.to_owned(),
            options: Vec::new(),
            environment: vec![(
                "PYTHONPATH".to_owned(),
                folder.join("lib").display().to_string(),
            )],
            folder: folder.to_owned(),
        }
    }

    fn in_path() -> std::path::PathBuf {
        crate::relay::find_program("python3", None, None).unwrap()
    }

    fn package(folder: &Path, name: &str, metadata: &[u8]) {
        let info = folder.join("lib").join(name);
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("METADATA"), metadata).unwrap();
    }

    #[test]
    fn a_python_tells_its_version_and_packages_and_imports_nothing_from_here() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        for module in ["json", "re", "importlib", "io"] {
            fs::write(folder.join(format!("{module}.py")), "raise SystemExit(7)").unwrap();
        }
        package(
            folder,
            "Plain_One-1.2.dist-info",
            b"Metadata-Version: 2.1\nName: Plain_One\nVersion: 1.2\n",
        );
        package(
            folder,
            "bad-3.4.dist-info",
            b"Metadata-Version: 2.1\nName: \xff\xfe\nVersion: 3.4\n",
        );
        package(folder, "empty-5.dist-info", b"");
        package(
            folder,
            "git-6.dist-info",
            b"Metadata-Version: 2.1\nName: git\nVersion: 6\n",
        );
        let direct =
            r#"{"url": "https://token@host/x", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}"#;
        fs::write(folder.join("lib/git-6.dist-info/direct_url.json"), direct).unwrap();
        let found = ask(&python(&in_path(), folder), Duration::from_secs(60));
        assert!(
            found
                .version
                .as_deref()
                .is_some_and(|version| version.starts_with("python 3.")),
            "{found:?}"
        );
        let packages = found.packages.unwrap_or_default();
        let version = |name: &str| packages.get(name).map(String::as_str);
        assert_eq!(version("plain-one"), Some("1.2"));
        assert_eq!(version("empty"), Some("5"));
        assert_eq!(version("git"), Some("6 (commit ab12)"));
        assert!(
            packages.values().any(|version| version == "3.4"),
            "{packages:?}"
        );
    }

    #[test]
    fn options_that_hide_packages_hide_them_here_too() {
        let place = tempfile::tempdir().unwrap();
        package(place.path(), "own-1.dist-info", b"Name: own\nVersion: 1\n");
        let own = python(&in_path(), place.path());
        let isolated = Python {
            options: vec!["-I".to_owned()],
            ..own.clone()
        };
        let has = |python: &Python| {
            ask(python, Duration::from_secs(60))
                .packages
                .unwrap()
                .contains_key("own")
        };
        assert!(has(&own) && !has(&isolated));
    }

    #[test]
    fn an_interpreter_that_gives_no_answer_is_described_in_words() {
        let place = tempfile::tempdir().unwrap();
        let scripted = |text: &str, patience: u64| {
            let path = place.path().join("python");
            write_program(&path, text);
            ask(&python(&path, place.path()), Duration::from_secs(patience))
        };
        let hangs = scripted("#!/bin/sh\nsleep 60\n", 1);
        assert_eq!(hangs.unknown.as_deref(), Some("it gave no answer in 1 s"));
        assert_eq!(
            hangs.sentence(),
            "version unknown, packages unknown (it gave no answer in 1 s)"
        );
        let fails = scripted(
            "#!/bin/sh\necho 'python 3.7.1'\necho 'No module named x' >&2\nexit 1\n",
            60,
        );
        assert_eq!(
            fails.sentence(),
            "python 3.7.1, packages unknown (No module named x)"
        );
        let torn = scripted("#!/bin/sh\nprintf 'python 3.8.1\\na\\t1\\nb'\n", 60);
        assert_eq!(
            (torn.packages, torn.version.as_deref()),
            (None, Some("python 3.8.1"))
        );
    }
}
