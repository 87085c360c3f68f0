//! Names of interpreters, and the one that the first line of a script names.

use std::{fs::File, io::Read, path::Path};

use kiln_core::input;

/// Programs that run another one or a script: a newer one is told, as a newer package is.
const INTERPRETERS: [&str; 33] = [
    "sh",
    "bash",
    "dash",
    "zsh",
    "ksh",
    "fish",
    "busybox",
    "node",
    "deno",
    "bun",
    "perl",
    "ruby",
    "php",
    "lua",
    "luajit",
    "julia",
    "Rscript",
    "R",
    "java",
    "uv",
    "conda",
    "mamba",
    "docker",
    "podman",
    "apptainer",
    "mpirun",
    "env",
    "nice",
    "ionice",
    "taskset",
    "numactl",
    "stdbuf",
    "time",
];
/// Options of Python that decide which packages it sees.
pub(super) const PYTHON_OPTIONS: [&str; 5] = ["-I", "-s", "-E", "-S", "-P"];

pub(super) fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

pub(super) fn is_interpreter(program: &str) -> bool {
    is_python(program) || INTERPRETERS.contains(&file_name(program))
}

/// `python`, `python3.12`, `pypy3`.
pub(super) fn is_python(program: &str) -> bool {
    let name = file_name(program);
    let version = ["python", "pypy"]
        .iter()
        .find_map(|begin| name.strip_prefix(begin));
    version.is_some_and(|version| {
        version
            .chars()
            .all(|c| c.is_ascii_digit() || ".td-".contains(c))
    })
}

/// A Python, with its options.
pub(super) type FirstLine = (String, Vec<String>);

/// The Python that a script names: that of `#!/path/python` or `#!/usr/bin/env python3`.
pub(super) fn first_line(script: &Path) -> Option<FirstLine> {
    const LONGEST: u64 = 256;
    let file: File = input::open(script).ok()?;
    let mut head = Vec::new();
    file.take(LONGEST).read_to_end(&mut head).ok()?;
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace().skip_while(|word| {
        file_name(word) == "env" || (word.starts_with('-') && !PYTHON_OPTIONS.contains(word))
    });
    let program = words.next().filter(|program| is_python(program))?;
    let options = words.filter(|option| PYTHON_OPTIONS.contains(option));
    Some((program.to_owned(), options.map(str::to_owned).collect()))
}
