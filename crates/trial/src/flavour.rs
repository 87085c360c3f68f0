//! `kiln-trial --check-cuda-flavour`: tests the parts of a CUDA libtorch that need no GPU. Output:
//! a table, one line per check; `scripts/check-cuda-flavour.sh` starts this with that libtorch and
//! evaluates the table.

use std::{io::Write, path::Path};

use crate::error::TrialError;

/// Writes the table `check,outcome,evidence`: the CUDA half loads as a trial loads it, has every
/// function that is looked up by name, and NVRTC then compiles; versions as a result records them.
/// `--without-compiler` skips the loading of NVRTC: the compiling must then fail, where no CUDA
/// toolkit is known to the system's loader. `--kernels-by LIBNVRTC` compiles kiln's own kernels with
/// that compiler and checks nothing else, so that it needs no CUDA libtorch.
pub(crate) fn check(arguments: &[String], out: impl Write) -> Result<(), TrialError> {
    let lines = match arguments {
        [] => lines(true),
        [word] if word == "--without-compiler" => lines(false),
        [word, library] if word == "--kernels-by" => kernels_by(Path::new(library)),
        other => {
            return Err(TrialError::Bad(format!(
                "`--check-cuda-flavour` got {other:?}; it takes `--without-compiler`, \
                 `--kernels-by LIBNVRTC`, or nothing"
            )));
        }
    };
    let not_written = |error: &dyn std::fmt::Display| {
        TrialError::Failed(format!("standard output could not be written: {error}"))
    };
    let mut table = csv::Writer::from_writer(out);
    table
        .write_record(["check", "outcome", "evidence"])
        .map_err(|error| not_written(&error))?;
    for line in lines {
        table
            .write_record([&line.check, line.outcome, &line.evidence])
            .map_err(|error| not_written(&error))?;
    }
    table.flush().map_err(|error| not_written(&error))
}

struct FlavourRow {
    check: String,
    outcome: &'static str,
    evidence: String,
}

#[cfg(not(feature = "libtorch"))]
fn kernels_by(_: &Path) -> Vec<FlavourRow> {
    lines(true)
}

#[cfg(feature = "libtorch")]
fn kernels_by(library: &Path) -> Vec<FlavourRow> {
    match nvrtc::version(library) {
        Ok(version) => own_kernels(library, version.newest).collect(),
        Err(error) => vec![line("nvrtc", Err::<String, _>(error))],
    }
}

#[cfg(not(feature = "libtorch"))]
fn lines(_: bool) -> Vec<FlavourRow> {
    vec![FlavourRow {
        check: "libtorch".to_owned(),
        outcome: "failed",
        evidence: "not part of this build".to_owned(),
    }]
}

#[cfg(feature = "libtorch")]
fn lines(with_compiler: bool) -> Vec<FlavourRow> {
    let loaded = if with_compiler {
        cuda::load()
    } else {
        cuda::load_without_compiler()
    };
    let loaded = loaded.map(|()| "loaded").map_err(TrialError::from);
    let mut lines = vec![line("libtorch_cuda.so", loaded)];
    if with_compiler {
        lines.extend(cuda::symbols().into_iter().map(symbol));
    }
    lines.extend(compiled());
    if with_compiler {
        let versions = engine::libraries().into_iter();
        lines.extend(versions.map(|(name, version)| FlavourRow {
            check: format!("version {name}"),
            outcome: "recorded",
            evidence: version,
        }));
    }
    lines
}

#[cfg(feature = "libtorch")]
use crate::engine::{self, cuda, cuda_kernels, nvrtc};

#[cfg(feature = "libtorch")]
fn line(check: &str, found: Result<impl Into<String>, TrialError>) -> FlavourRow {
    let (outcome, evidence) = match found {
        Ok(evidence) => ("passed", evidence.into()),
        Err(error) => ("failed", error.to_string()),
    };
    FlavourRow {
        check: check.to_owned(),
        outcome,
        evidence,
    }
}

#[cfg(feature = "libtorch")]
fn symbol(symbol: cuda::CudaSymbol) -> FlavourRow {
    let found = symbol
        .file
        .map(|file| format!("in {}", file.rsplit('/').next().unwrap_or(&file)));
    line(
        &format!("symbol {}", symbol.name),
        found.ok_or_else(|| TrialError::Failed("no loaded library has it".to_owned())),
    )
}

/// Architectures of which each generation has its own instructions: Turing, Ampere, Ada, Hopper.
#[cfg(feature = "libtorch")]
const GENERATIONS: [u32; 4] = [75, 80, 89, 90];

/// A kernel for the H100 and one for the newest GPU that this NVRTC knows; then kiln's own.
#[cfg(feature = "libtorch")]
fn compiled() -> Vec<FlavourRow> {
    let library = nvrtc::library().ok_or_else(|| {
        TrialError::Failed("none is loaded, and none is in the folder of this libtorch".to_owned())
    });
    let found = library.and_then(|library| Ok((nvrtc::version(&library)?, library)));
    let (version, library) = match found {
        Ok(found) => found,
        Err(error) => return vec![line("nvrtc", Err::<String, _>(error))],
    };
    let kernel = |architecture: &str| {
        let bytes = nvrtc::compile(&library, architecture);
        line(
            &format!("nvrtc {architecture}"),
            bytes.map(|bytes| format!("NVRTC {}: {bytes} bytes of machine code", version.cuda)),
        )
    };
    let newest = version.newest;
    let mut lines = vec![kernel("sm_90"), kernel(&format!("sm_{newest}"))];
    lines.extend(own_kernels(&library, newest));
    lines
}

/// kiln's own kernels, as a trial compiles them.
#[cfg(feature = "libtorch")]
fn own_kernels(library: &Path, newest: u32) -> impl Iterator<Item = FlavourRow> {
    let generations = GENERATIONS.into_iter().chain([newest]);
    generations.map(move |architecture| {
        let bytes = cuda_kernels::compile(library, architecture);
        let sizes = bytes.map(|bytes| {
            let each = cuda_kernels::DTYPES.iter().zip(bytes);
            let each: Vec<String> = each
                .map(|(dtype, bytes)| format!("{dtype} {bytes}"))
                .collect();
            format!("bytes of machine code: {}", each.join(", "))
        });
        line(&format!("own kernels sm_{architecture}"), sizes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(arguments: &[&str]) -> Result<String, TrialError> {
        let mut out = Vec::new();
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        check(&arguments, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    #[cfg(feature = "libtorch")]
    fn a_cpu_flavour_fails_each_check_of_the_cuda_flavour() {
        let table = table(&[]).unwrap();
        if engine::library_files().contains_key("libtorch_cuda")
            && table.contains("libtorch_cuda.so,passed")
        {
            return; // This is the CUDA flavour, of which `make check-cuda-flavour` says more.
        }
        assert!(
            table.starts_with("check,outcome,evidence\nlibtorch_cuda.so,failed,"),
            "{table}"
        );
        assert!(
            table.contains(
                "\nsymbol _ZN2at4cuda9CUDAGraph6replayEv,failed,no loaded library has it\n"
            ),
            "{table}"
        );
        assert!(
            table.contains("\nnvrtc,failed,")
                && !table.contains(",passed,")
                && table.contains(
                    "\n\
                     version libtorch,recorded,2."
                ),
            "{table}"
        );
    }

    #[test]
    fn another_word_is_refused() {
        assert!(
            table(&["--quick"])
                .unwrap_err()
                .to_string()
                .contains("it takes `--without-compiler`, ")
        );
    }
}
