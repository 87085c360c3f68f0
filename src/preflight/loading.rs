//! Parses the errors of the dynamic loader when it cannot load the child. Its text comes in
//! (glibc's, in English); the library, its fault and the searched folders come out.

use std::{
    io::{self, Read},
    path::Path,
};

use kiln_core::input;

/// An error of the loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFault {
    /// Name of the library, or path of the faulty file.
    pub library: String,
    pub kind: LoadFaultKind,
    /// Searched folders, in order.
    pub searched: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadFaultKind {
    Missing,
    /// The file is truncated.
    Truncated,
    /// The file is not an ELF file, or is for another machine.
    Foreign,
    /// A function is missing because the version differs. Holds the linker's name of the function.
    Symbol(String),
    /// It needs a newer C or C++ library, such as `GLIBC_2.38`.
    System(String),
    /// Another message of the loader.
    Other(String),
}

/// Parses the loader's error; `None` if the text has none.
pub(super) fn load_fault(text: &str) -> Option<LoadFault> {
    text.lines().find_map(|line| {
        symbol(line)
            .or_else(|| version(line))
            .or_else(|| library(line))
    })
}

fn fault(library: &str, kind: LoadFaultKind) -> Option<LoadFault> {
    Some(LoadFault {
        library: library.trim().to_owned(),
        kind,
        searched: Vec::new(),
    })
}

/// `PROGRAM: symbol lookup error: FILE: undefined symbol: NAME`; FILE needs the symbol.
fn symbol(line: &str) -> Option<LoadFault> {
    let (_, rest) = line.split_once("symbol lookup error: ")?;
    let (file, rest) = rest.split_once(": undefined symbol: ")?;
    let name = rest.split([',', ' ']).next().unwrap_or(rest);
    fault(file, LoadFaultKind::Symbol(name.to_owned()))
}

/// ``PROGRAM: FILE: version `GLIBC_2.38' not found (required by FILE)``.
fn version(line: &str) -> Option<LoadFault> {
    let (before, rest) = line.split_once(": version `")?;
    let (name, rest) = rest.split_once("' not found")?;
    let asker = rest
        .split_once("(required by ")
        .map_or(before, |(_, asker)| asker.trim_end_matches(')'));
    fault(asker, LoadFaultKind::System(name.to_owned()))
}

/// `PROGRAM: error while loading shared libraries: LIBRARY: WORDS`.
fn library(line: &str) -> Option<LoadFault> {
    let (_, rest) = line.split_once("error while loading shared libraries: ")?;
    let (library, words) = rest.split_once(": ")?;
    let has = |part: &str| words.contains(part);
    let kind = if has("cannot open shared object file") && has("No such file") {
        LoadFaultKind::Missing
    } else if has("file too short")
        || has("past end of file")
        || has("cannot read file data")
        || has("ELF file's phentsize")
    {
        LoadFaultKind::Truncated
    } else if has("invalid ELF header") || has("wrong ELF class") || has("cannot be loaded") {
        LoadFaultKind::Foreign
    } else {
        LoadFaultKind::Other(words.trim().to_owned())
    };
    fault(library, kind)
}

/// Returns the folders where the loader searched a library, from its output with `LD_DEBUG=libs`.
pub(super) fn searched(debug: &str, library: &str) -> Vec<String> {
    let name = library.rsplit('/').next().unwrap_or(library);
    let mut places = Vec::new();
    for line in debug.lines() {
        let Some((_, path)) = line.split_once("trying file=") else {
            continue;
        };
        let Some((folder, file)) = path.trim().rsplit_once('/') else {
            continue;
        };
        // Folders of variants for newer processors do not occur in an installation of libtorch.
        let is_variant = folder.contains("/glibc-hwcaps/");
        if file == name && !is_variant && !places.iter().any(|known| known == folder) {
            places.push(folder.to_owned());
        }
    }
    places
}

/// Returns the first library that the loader opened (`LD_DEBUG=libs`) whose file is truncated.
pub(super) fn cut_off(debug: &str) -> Option<String> {
    let tried = debug
        .lines()
        .filter_map(|line| Some(line.split_once("trying file=")?.1.trim()));
    tried
        .map(Path::new)
        .find(|path| is_cut_off(path).unwrap_or(false))
        .map(|path| path.display().to_string())
}

/// Whether a 64-bit little-endian ELF file ends before its section table does. A linker writes that
/// table last.
fn is_cut_off(path: &Path) -> io::Result<bool> {
    let mut file = input::open(path)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes]
            .iter()
            .rev()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let is_elf = header.starts_with(b"\x7fELF\x02\x01");
    // `e_shoff`, `e_shentsize`, `e_shnum`.
    let end = number(0x28, 8).saturating_add(number(0x3a, 2) * number(0x3c, 2));
    Ok(is_elf && file.metadata()?.len() < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> (String, LoadFaultKind) {
        let found = load_fault(text).unwrap();
        (found.library, found.kind)
    }

    #[test]
    fn every_complaint_of_the_loader_has_its_kind() {
        let loading = |words: &str| {
            format!("/opt/kiln-trial: error while loading shared libraries: {words}\n")
        };
        let cases = [
            (
                loading(
                    "libtorch_cpu.so: cannot open shared object file: No such file or directory",
                ),
                "libtorch_cpu.so",
                LoadFaultKind::Missing,
            ),
            (
                loading("/opt/lib/libc10.so: file too short"),
                "/opt/lib/libc10.so",
                LoadFaultKind::Truncated,
            ),
            (
                loading("/opt/lib/libc10.so: ELF load command past end of file"),
                "/opt/lib/libc10.so",
                LoadFaultKind::Truncated,
            ),
            (
                loading("/opt/lib/libc10.so: invalid ELF header"),
                "/opt/lib/libc10.so",
                LoadFaultKind::Foreign,
            ),
            (
                loading("libc10.so: cannot enable executable stack"),
                "libc10.so",
                LoadFaultKind::Other("cannot enable executable stack".into()),
            ),
            (
                "/opt/kiln-trial: symbol lookup error: /opt/kiln-trial: undefined symbol: \
                 _ZN2at4sqrtERKNS_6TensorE, version X\n"
                    .into(),
                "/opt/kiln-trial",
                LoadFaultKind::Symbol("_ZN2at4sqrtERKNS_6TensorE".into()),
            ),
            (
                "/opt/kiln-trial: /lib/libc.so.6: version `GLIBC_2.38' not found (required by \
                 /opt/kiln-trial)\n"
                    .into(),
                "/opt/kiln-trial",
                LoadFaultKind::System("GLIBC_2.38".into()),
            ),
        ];
        for (text, library, expected) in cases {
            assert_eq!(kind(&text), (library.to_owned(), expected), "{text}");
        }
        assert_eq!(load_fault("thread 'main' panicked at src/main.rs\n"), None);
    }

    #[test]
    fn a_file_that_ends_too_soon_is_found_by_its_own_headers() {
        let folder = tempfile::tempdir().unwrap();
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            format!("  7:\t  trying file={}\n", path.display())
        };
        let debug = [
            write("text.so", &[b'x'; 100]),
            write("short.so", b"x"),
            write("whole.so", &whole),
        ]
        .concat();
        assert_eq!(
            cut_off(&format!("{debug}  7:\t  trying file=/nowhere/libx.so\n")),
            None
        );
        let cut = write("cut.so", &whole[..whole.len() / 2]);
        assert!(cut_off(&format!("{debug}{cut}")).is_some_and(|found| found.ends_with("cut.so")));
    }

    #[test]
    fn the_places_that_were_tried_are_told_once_each() {
        let debug = "      7:\tfind library=libc10.so [0]; searching\n\
                     \t 7:\t  trying file=/opt/torch/lib/glibc-hwcaps/x86-64-v3/libc10.so\n\
                     \t 7:\t  trying file=/opt/torch/lib/libc10.so\n\
                     \t 7:\t  trying file=/opt/torch/lib/libother.so\n\
                     \t 7:\t  trying file=/usr/lib/libc10.so\n\
                     \t 7:\t  trying file=/opt/torch/lib/libc10.so\n";
        assert_eq!(searched(debug, "libc10.so"), ["/opt/torch/lib", "/usr/lib"]);
        assert_eq!(searched("", "libc10.so"), Vec::<String>::new());
    }
}
