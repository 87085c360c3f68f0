//! The libraries whose version decides numbers or speed, by the names of their files, and the build
//! ids that tell two builds of one version apart.

use std::{collections::BTreeMap, fs::File, io, os::unix::fs::FileExt, path::Path};

use crate::input;

/// Between a library's file and its build id.
const BUILD_ID: &str = ", build id ";

/// Name here and the beginning of the file's name.
const WATCHED: [(&str, &str); 26] = [
    ("libtorch_cpu", "libtorch_cpu."),
    ("libtorch_cuda", "libtorch_cuda."),
    ("libtorch_hip", "libtorch_hip."),
    ("libc10", "libc10."),
    ("tensorflow", "libtensorflow_framework."),
    ("jax", "libjax_common."),
    ("onnxruntime", "libonnxruntime."),
    ("cudnn", "libcudnn."),
    ("cublas", "libcublas."),
    ("cublas_lt", "libcublasLt."),
    ("nccl", "libnccl."),
    ("cudart", "libcudart"),
    ("nvrtc_builtins", "libnvrtc-builtins"),
    ("nvrtc", "libnvrtc"),
    ("hip", "libamdhip64."),
    ("rccl", "librccl."),
    ("openmp", "libgomp"),
    ("openmp_intel", "libiomp5"),
    ("openmp_llvm", "libomp."),
    ("mkl", "libmkl_core."),
    ("openblas", "libopenblas"),
    ("openblas", "libscipy_openblas"),
    ("blis", "libblis"),
    ("blas", "libblas."),
    ("onednn", "libdnnl."),
    ("mpi", "libmpi."),
];

/// Files by name, of the watched libraries in the text of a `/proc/<pid>/maps`.
pub fn watched_files(maps: &str) -> BTreeMap<String, String> {
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let named = paths.filter_map(|path| {
        let file = path.rsplit('/').next()?;
        let (name, _) = WATCHED.iter().find(|(_, start)| file.starts_with(start))?;
        Some(((*name).to_owned(), path.to_owned()))
    });
    named.collect()
}

/// `libtorch_cpu.so, build id 5c7710aa3e9d…`, or the file alone.
pub fn with_build_id(file: &str, id: Option<&str>) -> String {
    id.map_or(file.to_owned(), |id| format!("{file}{BUILD_ID}{id}"))
}

/// The file and the build id of a library as [`with_build_id`] names it.
pub fn split_build_id(library: &str) -> (&str, Option<&str>) {
    match library.split_once(BUILD_ID) {
        Some((file, id)) => (file, Some(id)),
        None => (library, None),
    }
}

/// Most bytes of the notes of a library that are read.
const MOST_NOTES: u64 = 1 << 16;
/// Most program headers that are read.
const MOST_HEADERS: u64 = 64;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The build id of a library, in hex; `None` if it has none.
///
/// # Errors
/// It cannot be read, or is not a 64-bit ELF file of this byte order.
/// Source: System V ABI, "Program Header" and "Note Section".
pub fn build_id(path: &Path) -> io::Result<Option<String>> {
    let file = input::open(path)?;
    let head = bytes(&file, 0, 64)?;
    let is_elf = head.starts_with(b"\x7fELF\x02");
    if !is_elf || head[5] != if cfg!(target_endian = "little") { 1 } else { 2 } {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let (at, size) = (number(&head, 32, 8), number(&head, 54, 2));
    for index in 0..number(&head, 56, 2).min(MOST_HEADERS) {
        let header = bytes(&file, at.saturating_add(index * size), 56)?;
        if number(&header, 0, 4) == u64::from(PT_NOTE) {
            let (from, length) = (number(&header, 8, 8), number(&header, 32, 8));
            let notes = bytes(&file, from, length.min(MOST_NOTES))?;
            if let Some(id) = id_in(&notes) {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

fn id_in(notes: &[u8]) -> Option<String> {
    let mut at = 0_usize;
    while at + 12 <= notes.len() {
        let part = |place: usize| number(notes, at + place, 4) as usize;
        let (name, content, kind) = (part(0), part(4), part(8));
        let from = at
            .checked_add(12)?
            .checked_add(name)?
            .checked_next_multiple_of(4)?;
        let until = from.checked_add(content)?;
        let is_id =
            kind == NT_GNU_BUILD_ID as usize && notes.get(at + 12..at + 16) == Some(b"GNU\0");
        if is_id {
            return notes.get(from..until).map(hex::encode);
        }
        at = until.checked_next_multiple_of(4)?;
    }
    None
}

fn bytes(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// The number of so many bytes at a place; 0 beyond the end.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut whole = [0; 8];
    if let Some(found) = bytes.get(at..at + length) {
        match cfg!(target_endian = "little") {
            true => whole[..length].copy_from_slice(found),
            false => whole[8 - length..].copy_from_slice(found),
        }
    }
    u64::from_ne_bytes(whole)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn watched_libraries_are_found_in_the_maps_by_their_file_names() {
        let maps = "7f00-7f01 r-xp 00000000 00:1b 12 /opt/torch/lib/libtorch_cpu.so\n\
                    7f02-7f03 r-xp 00000000 00:1b 13 /opt/nvidia/lib/libcudnn.so.9\n\
                    7f04-7f05 rw-p 00000000 00:00 0 \n\
                    7f06-7f07 r-xp 00000000 00:1b 14 /usr/lib/libm.so.6\n\
                    7f08-7f09 r-xp 00000000 00:1b 15 /opt/nvidia/lib/libcudnn_graph.so.9\n\
                    7f0a-7f0b r-xp 00000000 00:1b 16 /opt/nvidia/lib/libnvrtc.so.13\n\
                    7f0c-7f0d r-xp 00000000 00:1b 17 /opt/nvidia/lib/libnvrtc-builtins.so.13.0\n";
        let found = watched_files(maps);
        assert_eq!(found.len(), 4);
        assert_eq!(found["nvrtc"], "/opt/nvidia/lib/libnvrtc.so.13");
        assert_eq!(
            found["nvrtc_builtins"],
            "/opt/nvidia/lib/libnvrtc-builtins.so.13.0"
        );
        assert_eq!(found["libtorch_cpu"], "/opt/torch/lib/libtorch_cpu.so");
        assert_eq!(found["cudnn"], "/opt/nvidia/lib/libcudnn.so.9");
    }

    #[test]
    fn a_build_id_is_that_of_the_notes_and_a_text_has_none() {
        let place = tempfile::tempdir().unwrap();
        let text = place.path().join("text");
        fs::write(&text, "x".repeat(100)).unwrap();
        assert!(build_id(&text).is_err());
        fs::write(&text, "").unwrap();
        assert!(build_id(&text).is_err());
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let mut note = Vec::new();
            for number in [name.len() as u32, content.len() as u32, kind] {
                note.extend(number.to_ne_bytes());
            }
            note.extend(name);
            note.resize(note.len().next_multiple_of(4), 0);
            note.extend(content);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let other = note(b"other\0", 3, b"abc");
        let own = note(b"GNU\0", 3, &[0x5c, 0x77, 0x10]);
        assert_eq!(
            id_in(&[other.clone(), own].concat()),
            Some("5c7710".to_owned())
        );
        assert_eq!(id_in(&other), None);
        let huge = note(b"GNU\0", 3, &[1; 20]);
        assert_eq!(id_in(&huge[..24]), None, "a torn note");
        assert_eq!(id_in(&[0xff; 40]), None);
    }
}
