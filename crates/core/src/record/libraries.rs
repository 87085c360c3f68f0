//! The libraries whose version decides numbers or speed, by the names of their files.

use std::collections::BTreeMap;

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

#[cfg(test)]
mod tests {
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
}
