//! Checks of the child and its libtorch: does it start, which libtorch is loaded, are its products
//! correct. Converts the child's findings to checks.

use kiln_core::{
    record::{
        Check,
        examination::{Build, Libtorch, Product},
        message::PROTOCOL,
    },
    units::Seconds,
};

use super::{
    cuda,
    facts::PreflightFacts,
    loading::{LoadFault, LoadFaultKind},
    trial_program::{ChildFault, ExamineAnswer},
};

/// Largest error of a product of 512 × 512 normal numbers in f32, relative to its largest element.
/// Rounding causes about 1e-6; TF32, which is off, would cause about 1e-4.
const F32_TOLERANCE: f64 = 1e-5;

/// The same in bf16: only the result is rounded, to 2^-9; split products are rounded once more.
const BF16_TOLERANCE: f64 = 1.0 / 64.0;

/// All checks of the child; none if it was not examined.
pub(super) fn checks(facts: &PreflightFacts) -> Vec<Check> {
    let Some(answer) = &facts.answer else {
        return Vec::new();
    };
    let mut checks = vec![program(answer)];
    checks.extend(libtorch(answer, facts));
    if let Some(libtorch) = built_in(answer) {
        checks.extend(cuda::checks(libtorch, answer, facts));
    }
    checks.extend(products(answer));
    checks
}

/// Whether trials can run at all: the child starts, and the CPU computes correctly if it was
/// tested.
pub(super) fn can_run(answer: &ExamineAnswer) -> bool {
    let cpu_is_right = answer
        .products
        .iter()
        .filter(|product| product.device == "cpu")
        .all(|found| product_fault(found).is_none());
    let has_tried = answer.is_quick
        || built_in(answer).is_none()
        || answer
            .products
            .iter()
            .any(|product| product.device == "cpu");
    let speaks = |build: &Build| foreign_protocol(build).is_none();
    answer.build.as_ref().is_some_and(speaks)
        && cpu_is_right
        && has_tried
        && !matches!(answer.fault, Some(ChildFault::Newer(_)))
}

/// The version of the protocol that the program speaks, where this kiln speaks another one.
fn foreign_protocol(build: &Build) -> Option<u32> {
    build.protocol.filter(|spoken| *spoken != PROTOCOL)
}

fn built_in(answer: &ExamineAnswer) -> Option<&Libtorch> {
    answer.build.as_ref()?.libtorch.as_ref()
}

pub(super) fn is_built_in(answer: &ExamineAnswer) -> bool {
    built_in(answer).is_some()
}

/// GPUs that libtorch sees and that compute correctly if they were tested.
pub(super) fn usable_gpus(answer: &ExamineAnswer) -> usize {
    let wrong = |at: u64| {
        answer.products.iter().any(|product| {
            product.device == format!("cuda:{at}") && product_fault(product).is_some()
        })
    };
    let devices = answer.cuda.as_ref().map_or(0, |cuda| cuda.devices);
    (0..devices).filter(|at| !wrong(*at)).count()
}

const BUILD_IT: &str = "build it with `make build`, or set `KILN_TRIAL` to its path";

fn program(answer: &ExamineAnswer) -> Check {
    let (name, path) = ("trial-program", answer.program.display());
    match (&answer.fault, &answer.build) {
        (Some(ChildFault::NotThere), _) => {
            Check::problem(name, format!("{path} does not exist"), BUILD_IT)
        }
        (Some(ChildFault::NotStarted(why)), _) => {
            Check::problem(name, format!("{path} cannot be started: {why}"), BUILD_IT)
        }
        (Some(ChildFault::Older), _) => Check::problem(
            name,
            format!("{path} does not know `--examine`: it is older than this kiln"),
            "build both programs: `make build`",
        ),
        (Some(ChildFault::Newer(number)), _) => Check::problem(
            name,
            format!("{path} uses format {number}: it is newer than this kiln"),
            "build both programs: `make build`",
        ),
        (Some(ChildFault::Loading(_)), _) => {
            Check::problem(name, format!("{path} does not start"), "see libtorch")
        }
        (Some(other), build) => Check::problem(
            name,
            format!("{path} {}", stopped(other, build.as_ref(), answer)),
            remedy_of(other),
        ),
        (None, Some(build)) if let Some(spoken) = foreign_protocol(build) => Check::problem(
            name,
            format!(
                "{path} speaks version {spoken} of the protocol between kiln and its trials, and \
                 this kiln only version {PROTOCOL}"
            ),
            "build both programs: `make build`",
        ),
        (None, Some(build)) => Check::ok(
            name,
            format!(
                "kiln-trial {} with {}",
                build.kiln_trial,
                build.engines.join(", ")
            ),
        ),
        (None, None) => Check::unknown(name, format!("{path} printed nothing")),
    }
}

/// Returns how a started child ended, and at which step.
fn stopped(fault: &ChildFault, build: Option<&Build>, answer: &ExamineAnswer) -> String {
    let at = match (build, &answer.cuda, answer.products.last()) {
        (None, ..) => "before its first output".to_owned(),
        (Some(_), None, _) if answer.is_quick || !answer.products.is_empty() => {
            "when it started CUDA".to_owned()
        }
        (Some(_), None, _) => "at the first product on the CPU".to_owned(),
        (_, _, last) => format!(
            "after {}",
            last.map_or("it started CUDA".to_owned(), |product| format!(
                "the {} product on {}",
                product.precision, product.device
            ))
        ),
    };
    match fault {
        ChildFault::Signal(signal) => {
            let name = signal_hook::low_level::signal_name(*signal)
                .map(|name| format!(" ({name})"))
                .unwrap_or_default();
            format!("crashed by signal {signal}{name} {at}")
        }
        ChildFault::Silent(limit) => format!(
            "did not end within {} and was stopped {at}",
            Seconds(limit.as_secs_f64())
        ),
        ChildFault::Ended { status, last_line } if last_line.is_empty() => {
            format!("ended with status {status} {at}")
        }
        ChildFault::Ended { status, last_line } => {
            format!("ended with status {status} {at}: {last_line}")
        }
        _ => format!("stopped {at}"),
    }
}

fn remedy_of(fault: &ChildFault) -> &'static str {
    match fault {
        // SIGBUS: access to a page of a truncated file.
        ChildFault::Signal(7) => {
            "a library of libtorch may be truncated: remove its folder under .libtorch and run \
             `make libtorch` again (one that `LD_LIBRARY_PATH` names comes first)"
        }
        ChildFault::Signal(4) => "this processor may lack instructions (AVX2) that libtorch needs",
        ChildFault::Silent(_) => {
            "look for `NVRM` and `Xid` in `sudo dmesg`; try `CUDA_VISIBLE_DEVICES= kiln doctor` to \
             exclude the GPUs"
        }
        _ => {
            "run `kiln-trial --examine` by hand; `make libtorch build` sets up libtorch and builds \
             against it"
        }
    }
}

const SET_UP: &str = "run `make libtorch`, or point `LIBTORCH` at a libtorch 2.11 folder, then \
                      `make build`";

fn libtorch(answer: &ExamineAnswer, facts: &PreflightFacts) -> Option<Check> {
    const NAME: &str = "libtorch";
    if let Some(ChildFault::Loading(fault)) = &answer.fault {
        return Some(not_loaded(fault, facts));
    }
    let build = answer.build.as_ref()?;
    let Some(found) = &build.libtorch else {
        return Some(Check::ok(
            NAME,
            "not part of this build; trials run on `engine: flex`",
        ));
    };
    let flavour = found
        .cuda
        .as_ref()
        .map_or("CPU-only".to_owned(), |cuda| format!("with CUDA {cuda}"));
    let place = found
        .path
        .as_ref()
        .map(|path| format!(", at {path}"))
        .unwrap_or_default();
    Some(match &found.loaded {
        Some(loaded) if bare(loaded) != bare(&found.compiled) => Check::problem(
            NAME,
            format!(
                "{loaded} is loaded{place}, but kiln-trial was compiled against {}",
                found.compiled
            ),
            "unset `LD_LIBRARY_PATH`, or build against that libtorch (`LIBTORCH=… make build`): \
             another version may lack functions or give other results",
        ),
        Some(loaded) => Check::ok(NAME, format!("{loaded}, {flavour}{place}")),
        None => Check::unknown(
            NAME,
            format!(
                "compiled against {}, {flavour}{place}; the loaded one does not report its version",
                found.compiled
            ),
        ),
    })
}

/// Returns the version without its suffix: `2.11.0+cu130` is 2.11.0.
fn bare(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

/// Returns the check for an error of the loader: the library, its fault and the searched folders.
fn not_loaded(fault: &LoadFault, facts: &PreflightFacts) -> Check {
    let library = &fault.library;
    let searched = match fault.searched.as_slice() {
        [] => String::new(),
        places => format!("; searched in {}", places.join(", ")),
    };
    let (evidence, remedy) = match &fault.kind {
        LoadFaultKind::Missing => (
            format!("{library} is missing{searched}"),
            missing_remedy(library),
        ),
        LoadFaultKind::Truncated => (
            format!("{library} is truncated: the file is shorter than its headers say"),
            truncated_remedy(library, facts.environment.ld_library_path.as_deref()),
        ),
        LoadFaultKind::Foreign => (
            format!("{library} is not a library for this machine"),
            SET_UP,
        ),
        LoadFaultKind::Symbol(name) => (
            format!(
                "the libtorch that was found lacks `{name}`, which {library} needs: the version \
                 differs"
            ),
            "unset `LD_LIBRARY_PATH` if it leads to another libtorch; else build against the one \
             you have (`LIBTORCH=… make build`) or run `make libtorch`",
        ),
        LoadFaultKind::System(version) => (
            format!("{library} needs {version}, which is newer than this system's C library"),
            "build on this machine (`make build`), or on one that is not newer",
        ),
        LoadFaultKind::Other(words) => (format!("{library}: {words}"), SET_UP),
    };
    Check::problem("libtorch", evidence, remedy)
}

/// Remedy for a truncated file; only kiln's own folder is safe to remove.
fn truncated_remedy(library: &str, searched_first: Option<&str>) -> &'static str {
    let folder = library.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_searched_first = searched_first.is_some_and(|list| {
        list.split(':')
            .any(|entry| entry.trim_end_matches('/') == folder)
    });
    match (is_searched_first, library.contains("/.libtorch/")) {
        (true, _) => "`LD_LIBRARY_PATH` names this folder: unset it, or reinstall that libtorch",
        (false, true) => {
            "an installation was interrupted or the disk was full: remove that folder, then run \
             `make libtorch`"
        }
        (false, false) => {
            "an installation was interrupted or the disk was full: reinstall that libtorch, or run \
             `make libtorch build` to use kiln's copy"
        }
    }
}

fn missing_remedy(library: &str) -> &'static str {
    let is_cuda = [
        "cuda",
        "cudart",
        "cublas",
        "cudnn",
        "cufft",
        "nccl",
        "nvrtc",
        "cusparse",
        "cusolver",
        "nvshmem",
        "cupti",
        "nvJitLink",
    ];
    if is_cuda.iter().any(|part| library.contains(part)) {
        "kiln-trial was built against a CUDA libtorch: set it up here with `KILN_LIBTORCH=cuda \
         make libtorch`, or build against a CPU-only one (`KILN_LIBTORCH=cpu make libtorch build`)"
    } else {
        SET_UP
    }
}

fn products(answer: &ExamineAnswer) -> Vec<Check> {
    if answer.build.is_some() && answer.is_quick {
        return vec![Check::skipped("product", "skipped by --quick")];
    }
    answer.products.iter().map(product).collect()
}

fn product(found: &Product) -> Check {
    let name = format!("product {} {}", found.device, found.precision);
    match product_fault(found) {
        Some(fault) if found.device == "cpu" => Check::problem(
            &name,
            fault,
            "libtorch computes wrong results on this processor: reinstall it (`make libtorch`), \
             and test the memory",
        ),
        Some(fault) => Check::problem(
            &name,
            fault,
            "do not trust this GPU: see its other checks and `sudo dmesg`; run on another with \
             `--device`",
        ),
        None => {
            let time = found
                .seconds
                .map(|seconds| format!(" in {}", Seconds(seconds)))
                .unwrap_or_default();
            let error = found.max_relative_error.unwrap_or_default();
            Check::ok(
                &name,
                format!(
                    "{0} × {0}{time}, largest relative error {error:.0e}",
                    found.size
                ),
            )
        }
    }
}

/// Returns the fault of a product; `None` if it is correct.
fn product_fault(found: &Product) -> Option<String> {
    if let Some(fault) = &found.fault {
        return Some(format!(
            "the product failed: {}",
            fault.lines().next().unwrap_or(fault)
        ));
    }
    let tolerance = if found.precision == "f32" {
        F32_TOLERANCE
    } else {
        BF16_TOLERANCE
    };
    match found.max_relative_error {
        Some(error) if error <= tolerance => None,
        Some(error) => Some(format!(
            "the product differs from the CPU's in f64 by {error:.1e} of its largest element; \
             rounding allows {tolerance:.0e}"
        )),
        None => Some("the product contains NaN".to_owned()),
    }
}

#[cfg(test)]
#[path = "libtorch_tests.rs"]
mod tests;
