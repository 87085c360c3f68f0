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
/// Programs whose arguments name the program itself.
pub(super) const WRAPPERS: [&str; 7] = [
    "env", "nice", "ionice", "taskset", "numactl", "stdbuf", "time",
];
/// Further ones, behind which the client of a container may stand.
const RUNNERS: [&str; 6] = ["sudo", "doas", "timeout", "setsid", "nohup", "chrt"];
/// Clients of a daemon that starts the processes of their containers. Those of Podman and Apptainer
/// are below the client.
const CONTAINER_CLIENTS: [&str; 3] = ["docker", "docker-compose", "nerdctl"];
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

/// Options of wrappers that take the next word: a user, a group, a class, a signal, a folder. A number is
/// recognized by itself.
const WITH_A_VALUE: [&str; 5] = ["-u", "-g", "-c", "-s", "-C"];

/// The client that runs a command in a container of a daemon, also behind a wrapper.
pub(super) fn container_client(argv: &[String]) -> Option<&str> {
    let is_wrapper = |name: &str| WRAPPERS.contains(&name) || RUNNERS.contains(&name);
    let is_client = |name: &str| CONTAINER_CLIENTS.contains(&name);
    if !is_wrapper(file_name(argv.first()?)) {
        return Some(file_name(&argv[0])).filter(|name| is_client(name));
    }
    // A wrapper, its options and their values, such as `timeout 60` and `env A=b`.
    let is_of_wrapper = |word: &str| {
        is_wrapper(file_name(word))
            || word.starts_with('-')
            || word.contains('=')
            || word.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut words = argv.iter().map(String::as_str);
    let mut is_value = false;
    let program = words.find(|word| {
        let is_skipped = is_value || is_of_wrapper(word);
        is_value = !is_value && WITH_A_VALUE.contains(word);
        !is_skipped
    });
    program.map(file_name).filter(|name| is_client(name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_of_a_daemon_is_found_behind_wrappers() {
        let client = |line: &str| {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            container_client(&argv).map(str::to_owned)
        };
        for line in [
            "docker run --rm image",
            "/usr/bin/docker run image",
            "sudo -u me docker run image",
            "env A=b nice -n 5 docker run image python train.py",
            "sudo -E docker run image",
            "sudo -n docker run image",
            "timeout -k 5 60 docker run image",
            "timeout 60 sudo /usr/bin/docker exec c train",
        ] {
            assert_eq!(client(line).as_deref(), Some("docker"), "{line}");
        }
        assert_eq!(client("nerdctl run image").as_deref(), Some("nerdctl"));
        for line in [
            "podman run image",
            "apptainer exec image.sif train",
            "python train.py docker",
            "nice python train.py docker",
            "./bench docker",
            "timeout 60 ./bench docker",
            "sudo -u docker ./bench",
        ] {
            assert_eq!(client(line), None, "{line}");
        }
    }
}
