//! Compiles the shim that reaches what tch lacks in libtorch, and tells the programs where libtorch
//! lies. Without the feature `libtorch` there is nothing to do.

#![allow(
    clippy::print_stdout,
    reason = "a build script speaks to cargo on standard output"
)]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "libtorch")]
    libtorch::build();
}

#[cfg(feature = "libtorch")]
mod libtorch {
    use std::{
        env, fs,
        path::{Path, PathBuf},
        process,
    };

    const SOURCES: [&str; 20] = [
        "runtime.cpp",
        "device.cpp",
        "libraries.cpp",
        "nvrtc.cpp",
        "blocks_on_cpu.cpp",
        "kernels_on_cpu.cpp",
        "cuda_kernels.cpp",
        "products.cpp",
        "known_sums.cpp",
        "narrow_weights.cpp",
        "operations.cpp",
        "attention.cpp",
        "recurrent.cpp",
        "convolution.cpp",
        "optimizer.cpp",
        "scaler.cpp",
        "probe.cpp",
        "replicas.cpp",
        "recorder.cpp",
        "capture.cpp",
    ];

    pub(super) fn build() {
        println!("cargo:rerun-if-env-changed=LIBTORCH");
        // `LIBTORCH` is mostly a link, and cargo sees no link change; `scripts/libtorch.sh` writes
        // this file when it points elsewhere.
        let chosen =
            env::var_os("LIBTORCH").map(|named| PathBuf::from(named).with_file_name("chosen"));
        if let Some(chosen) = chosen.filter(|chosen| chosen.exists()) {
            println!("cargo:rerun-if-changed={}", chosen.display());
        }
        let libtorch = find();
        println!(
            "cargo:rustc-link-arg=-Wl,-rpath,{}",
            libtorch.join("lib").display()
        );
        // The place where `make install` puts libtorch, relative to the program: the checkout may
        // no longer exist then.
        println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib/kiln/torch/lib");
        let folder = Path::new("src/engine/shim");
        println!("cargo:rerun-if-changed={}", folder.display());
        let whole = whole(folder);
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .pic(true)
            .opt_level(2)
            .warnings(false)
            .define("_GLIBCXX_USE_CXX11_ABI", "1")
            // libtorch was built with it, and some of its headers have other members without.
            .define("NDEBUG", None)
            .include(libtorch.join("include"))
            .include(libtorch.join("include/torch/csrc/api/include"))
            .include(folder)
            .file(whole)
            .compile("kiln_shim");
    }

    /// A file that includes all sources. libtorch's headers take seven of the eight seconds that
    /// each source would take alone.
    fn whole(folder: &Path) -> PathBuf {
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("shim.cpp");
        let text: String = SOURCES
            .map(|source| format!("#include \"{source}\"\n"))
            .concat();
        if let Err(error) = fs::write(
            &out,
            format!("// Made by build.rs from {}.\n{text}", folder.display()),
        ) {
            println!("cargo::error={} cannot be written: {error}", out.display());
            process::exit(1);
        }
        out
    }

    /// The folder that `LIBTORCH` names, links resolved: the programs then find it wherever they
    /// are started.
    fn find() -> PathBuf {
        let named = env::var_os("LIBTORCH").map(PathBuf::from);
        let found = named.as_ref().filter(|folder| {
            folder.join("lib/libtorch_cpu.so").exists() && folder.join("include/torch").exists()
        });
        if let Some(folder) = found.and_then(|folder| folder.canonicalize().ok()) {
            return folder;
        }
        let named = named.map_or("not set".to_owned(), |folder| {
            format!(
                "`{}`, which lacks lib/libtorch_cpu.so or include/torch",
                folder.display()
            )
        });
        println!(
            "cargo::error=LIBTORCH is {named}; run `scripts/libtorch.sh` (or `make libtorch`) in \
             the repository, or point LIBTORCH at a libtorch 2.11 folder"
        );
        process::exit(1);
    }
}
