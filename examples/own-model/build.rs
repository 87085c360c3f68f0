//! Tells the program the folder of libtorch: the one that kiln is built with, which `LIBTORCH`
//! names. Without libtorch in kiln-trial (its feature `libtorch`) this is not needed.

#![allow(
    clippy::print_stdout,
    reason = "a build script speaks to cargo on standard output"
)]

use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Some(libtorch) = env::var_os("LIBTORCH").and_then(|named| fs::canonicalize(named).ok())
    else {
        return;
    };
    println!(
        "cargo:rustc-link-arg=-Wl,-rpath,{}",
        libtorch.join("lib").display()
    );
}
