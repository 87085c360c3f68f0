//! Finds the interpreter of a program.

use std::path::{Path, PathBuf};

use super::{
    invocation::Invocation,
    names::{PYTHON_OPTIONS, WRAPPERS, file_name, is_interpreter, is_python},
};

/// A Python to ask for its packages, as the program starts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Python {
    /// Links are not resolved: through one, a virtual environment is found.
    pub(super) path: PathBuf,
    pub(super) options: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) folder: PathBuf,
}

/// The Python that runs a program: the program itself, the one behind a wrapper, or that of a
/// script's first line.
pub(super) fn python_of(of: &Invocation<'_>) -> Option<(String, Python)> {
    let name = of.argv.first()?;
    let at = match file_name(name) {
        wrapper if WRAPPERS.contains(&wrapper) => of
            .argv
            .iter()
            .position(|argument| is_python(argument) && of.find(argument).is_some()),
        _ => is_python(name).then_some(0),
    };
    let python = |shown: String, path: PathBuf, options: Vec<String>| {
        let environment = of.environment.to_vec();
        let folder = of.base();
        Some((
            shown,
            Python {
                path,
                options,
                environment,
                folder,
            },
        ))
    };
    if let Some(at) = at {
        let name = &of.argv[at];
        let options = of.argv[at + 1..].iter();
        let options = options
            .take_while(|option| option.starts_with('-'))
            .filter(|option| PYTHON_OPTIONS.contains(&option.as_str()));
        let shown = match name.contains('/') {
            true => of.shown(name),
            false => name.clone(),
        };
        return python(shown, of.find(name)?, options.cloned().collect());
    }
    let (program, options) = of.first_line(&of.find(name)?)?;
    let path = of.find(&program)?;
    python(program, path, options)
}

/// A module that `python -m` runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// As it is named on the command line.
    pub(super) name: String,
    /// The file that is run, then those of its packages that are imported first: each path as the
    /// experiment would write it, with the file. A module among the installed packages has none
    /// here: it is in their list.
    pub(super) files: Vec<(String, PathBuf)>,
}

/// The module that a program runs by `python -m`, also behind a wrapper.
pub(super) fn module_of(of: &Invocation<'_>) -> Option<Module> {
    is_interpreter(of.argv.first()?).then_some(())?;
    let at = of.argv.iter().position(|argument| is_python(argument))?;
    let options = PythonOptions::of(&of.argv[at + 1..])?;
    let place: PathBuf = options.module.split('.').collect();
    let environment = of.environment.iter().find(|(name, _)| name == "PYTHONPATH");
    let path = environment.map(|(_, value)| value.into());
    let path = path.or_else(|| std::env::var_os("PYTHONPATH"));
    let path = path.filter(|_| !options.ignores_variables);
    let here = (!options.is_safe).then(PathBuf::new);
    let folders = here
        .into_iter()
        .chain(path.iter().flat_map(std::env::split_paths));
    let files = folders
        .filter_map(|folder| module_files(of, &folder, &place))
        .next();
    Some(Module {
        name: options.module,
        files: files.unwrap_or_default(),
    })
}

/// The files of a module in one folder of Python's search path; `None` if it is not there.
fn module_files(
    of: &Invocation<'_>,
    folder: &Path,
    place: &Path,
) -> Option<Vec<(String, PathBuf)>> {
    let base = of.base();
    let found = |path: PathBuf| {
        let whole = base.join(&path);
        whole
            .is_file()
            .then(|| (of.shown(&path.to_string_lossy()), whole))
    };
    let whole = folder.join(place);
    // A package comes before a file of the same name.
    let run = found(whole.join("__main__.py")).or_else(|| found(whole.with_extension("py")))?;
    let packages = place
        .ancestors()
        .filter(|package| !package.as_os_str().is_empty());
    let packages = packages.filter_map(|package| found(folder.join(package).join("__init__.py")));
    Some([run].into_iter().chain(packages).collect())
}

/// The options of a Python that decide where it looks for its module.
struct PythonOptions {
    module: String,
    /// Whether the folder in which it runs is left out.
    is_safe: bool,
    ignores_variables: bool,
}

impl PythonOptions {
    /// `None` if they name no module.
    fn of(arguments: &[String]) -> Option<Self> {
        let (mut is_safe, mut ignores_variables) = (false, false);
        let mut arguments = arguments.iter();
        while let Some(letters) = arguments.next()?.strip_prefix('-') {
            for (at, letter) in letters.char_indices() {
                let rest = &letters[at + letter.len_utf8()..];
                match letter {
                    'm' => {
                        let module = match rest {
                            "" => arguments.next()?.clone(),
                            rest => rest.to_owned(),
                        };
                        return Some(Self {
                            module,
                            is_safe,
                            ignores_variables,
                        });
                    }
                    'I' => (is_safe, ignores_variables) = (true, true),
                    'P' => is_safe = true,
                    'E' => ignores_variables = true,
                    // The rest is their value, or the next argument is.
                    'W' | 'X' => {
                        if rest.is_empty() {
                            arguments.next()?;
                        }
                        break;
                    }
                    // A program's text follows, or a long option without a module.
                    'c' | '-' => return None,
                    _ => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pythons_are_known() {
        for name in [
            "python",
            "/usr/bin/python3",
            "python3.12",
            "pypy3",
            "python3.13t",
        ] {
            assert!(is_python(name), "{name}");
        }
        for name in ["python-config", "ipython", "pythonic", "sh"] {
            assert!(!is_python(name), "{name}");
        }
    }
}
