//! Installs a library with a scenario for a test. Input: a scenario. Output: the path for
//! `$KILN_NVML_LIB`.
//!
//! Each scenario has its own copy: the loader loads each file once per program, so one test program
//! can play several scenarios at a time, and a symbol that the scenario says is missing is really
//! not found.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::Scenario;

/// Writes the library and its scenario into `folder`, which must exist.
///
/// # Errors
/// The built library is not beside the running program, or a file cannot be written.
pub fn install(folder: &Path, scenario: &Scenario) -> io::Result<PathBuf> {
    let path = folder.join("libnvidia-ml.so.1");
    let mut library = fs::read(built()?)?;
    without(&mut library, scenario);
    // A library in use must not change under its users: written aside, then put in place.
    let aside = folder.join("libnvidia-ml.so.1.new");
    fs::write(&aside, library)?;
    fs::rename(&aside, &path)?;
    play(&path, scenario)?;
    Ok(path)
}

/// Gives an installed library another scenario, which it plays from its next start (`nvmlInit`) on.
/// Symbols are gone or not as they were installed; those that only this scenario calls missing
/// answer 13.
///
/// # Errors
/// The file cannot be written.
pub fn play(library: &Path, scenario: &Scenario) -> io::Result<()> {
    let mut path = library.as_os_str().to_owned();
    path.push(".yaml");
    fs::write(path, scenario.to_yaml().map_err(io::Error::other)?)
}

/// The library that cargo built together with the running program.
///
/// # Errors
/// The library does not exist.
pub fn built() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let folders = program.ancestors().skip(1).take(2);
    let places = folders.flat_map(|folder| {
        [
            folder.join("deps/libfake_nvml.so"),
            folder.join("libfake_nvml.so"),
        ]
    });
    let found = places
        .filter(|place| place.is_file())
        .max_by_key(|place| fs::metadata(place).and_then(|data| data.modified()).ok());
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "no libfake_nvml.so beside {}; try `cargo build -p fake-nvml`",
                program.display()
            ),
        )
    })
}

/// Renames the missing symbols in the library's symbol tables, so that they cannot be found.
fn without(library: &mut [u8], scenario: &Scenario) {
    if scenario.missing.is_empty() {
        return;
    }
    let mut start = 0;
    for end in 0..library.len() {
        if library.get(end) != Some(&0) {
            continue;
        }
        let name = library.get_mut(start..end).unwrap_or_default();
        if name.starts_with(b"nvml")
            && str::from_utf8(name).is_ok_and(|name| scenario.is_missing(name))
        {
            name.copy_from_slice(&[b"gone".as_slice(), name.get(4..).unwrap_or_default()].concat());
        }
        start = end + 1;
    }
}
