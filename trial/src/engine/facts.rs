//! What a result depends on besides the trial file: libraries as loaded into this process, switches, the CPU's name.

use std::{collections::BTreeMap, fs};

/// Libraries whose version decides numbers or speed, by the start of their file name.
const WATCHED: [&str; 9] = ["libtorch_cpu", "libtorch_cuda", "libc10", "libcudnn.", "libcublas.", "libcublasLt", "libnccl", "libcudart", "libgomp"];

/// Versions and paths by name: `libtorch` is the version compiled against, the others are files from `/proc/self/maps`.
pub fn libraries() -> BTreeMap<String, String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found = mapped(&maps);
    #[cfg(feature = "libtorch")]
    found.insert("libtorch".to_owned(), super::libtorch::version().to_owned());
    found.insert("burn".to_owned(), "0.22.1".to_owned());
    found
}

/// File name (without its version) to path, for the watched libraries of a `/proc/<pid>/maps`.
fn mapped(maps: &str) -> BTreeMap<String, String> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let named = paths.filter_map(|path| {
        let file = path.rsplit('/').next()?;
        let watched = WATCHED.iter().any(|start| file.starts_with(start));
        watched.then(|| (file.split(".so").next().unwrap_or(file).to_owned(), path.to_owned()))
    });
    named.collect()
}

/// Switches by name; empty without libtorch.
pub fn flags() -> BTreeMap<String, String> {
    #[cfg(feature = "libtorch")]
    if let Ok(flags) = super::libtorch::flags() {
        return flags;
    }
    BTreeMap::new()
}

/// The CPU as `/proc/cpuinfo` names it; `cpu` if it does not.
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or("cpu".to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_libraries_are_found_in_the_maps_by_their_file_names() {
        let maps = "7f00-7f01 r-xp 00000000 00:1b 12 /opt/torch/lib/libtorch_cpu.so\n\
                    7f02-7f03 r-xp 00000000 00:1b 13 /opt/nvidia/lib/libcudnn.so.9\n\
                    7f04-7f05 rw-p 00000000 00:00 0 \n\
                    7f06-7f07 r-xp 00000000 00:1b 14 /usr/lib/libm.so.6\n";
        let found = mapped(maps);
        assert_eq!(found.len(), 2);
        assert_eq!(found["libtorch_cpu"], "/opt/torch/lib/libtorch_cpu.so");
        assert_eq!(found["libcudnn"], "/opt/nvidia/lib/libcudnn.so.9");
    }
}
