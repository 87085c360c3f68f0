//! Checks of libtorch's CUDA: is it built in and usable, does it fit the driver and the GPUs.

use kiln_core::record::{
    Check,
    examination::{CudaDriver, Libtorch, Nvrtc},
};

use super::{facts::PreflightFacts, trial_program::ExamineAnswer, visible};

/// All of them, for a libtorch that answered.
pub(super) fn checks(
    libtorch: &Libtorch,
    answer: &ExamineAnswer,
    facts: &PreflightFacts,
) -> Vec<Check> {
    let mut checks = vec![cuda(libtorch, answer, facts)];
    checks.extend(cuda_version(libtorch, answer, facts));
    checks.extend(cudnn(libtorch));
    checks.extend(answer.nvrtc.iter().map(nvrtc));
    checks.extend(capabilities(libtorch, facts));
    checks.extend(order(answer, facts));
    checks
}

/// Checks whether trials can use a GPU, and if not, why.
fn cuda(libtorch: &Libtorch, answer: &ExamineAnswer, facts: &PreflightFacts) -> Check {
    const NAME: &str = "cuda";
    let Some(cuda) = &answer.cuda else {
        return Check::unknown(NAME, "the child stopped before this check");
    };
    let is_hidden =
        visible::is_hidden_on_purpose(facts.environment.cuda_visible_devices.as_deref());
    match (&libtorch.cuda, facts.gpus.len(), cuda.devices) {
        (Some(_), 1.., 0) if is_hidden => Check::ok(
            NAME,
            "built in; `CUDA_VISIBLE_DEVICES` hides every GPU, trials run on the CPU",
        ),
        (None, 0, _) => Check::ok(
            NAME,
            "not built into this libtorch; there is no NVIDIA GPU that could use it",
        ),
        (None, gpus, _) => cpu_only(libtorch, gpus),
        (Some(_), _, 0) => no_device(cuda.driver.as_ref(), cuda.fault.as_deref(), facts),
        (Some(_), gpus, usable)
            if (usable as usize) < gpus && facts.environment.cuda_visible_devices.is_none() =>
        {
            Check::warning(
                NAME,
                format!("libtorch sees {usable} of the {gpus} GPUs that nvidia-smi shows"),
                "a GPU in MIG mode without instances, or one that needs a reset, is not visible: \
                 see the checks of each GPU",
            )
        }
        (Some(_), _, usable) => Check::ok(
            NAME,
            format!(
                "available, libtorch sees {usable} {}",
                if usable == 1 { "device" } else { "devices" }
            ),
        ),
    }
}

/// "nvidia-smi works but CUDA is not available."
fn cpu_only(libtorch: &Libtorch, gpus: usize) -> Check {
    let shown = if gpus == 1 {
        "nvidia-smi shows a GPU".to_owned()
    } else {
        format!("nvidia-smi shows {gpus} GPUs")
    };
    let (why, remedy) = match &libtorch.cuda_fault {
        Some(fault) => (
            format!("its CUDA libraries do not load: {fault}"),
            "the CUDA build needs the libraries it is shipped with: `KILN_LIBTORCH=cuda make \
             libtorch build` downloads all of them",
        ),
        None => (
            "this libtorch is a CPU-only build".to_owned(),
            "download the CUDA build and build against it: `KILN_LIBTORCH=cuda make libtorch \
             build`",
        ),
    };
    Check::problem(
        "cuda",
        format!("{shown}, but CUDA is not available: {why}"),
        remedy,
    )
}

/// "The device count is 0."
fn no_device(driver: Option<&CudaDriver>, words: Option<&str>, facts: &PreflightFacts) -> Check {
    let said = words
        .map(|words| format!(" (libtorch: {})", words.lines().next().unwrap_or(words)))
        .unwrap_or_default();
    if facts.gpus.is_empty() && facts.driver.is_err() {
        return Check::ok(
            "cuda",
            format!("built in, but there is no NVIDIA driver{said}; trials run on the CPU"),
        );
    }
    let (why, remedy) = why_no_device(driver, facts);
    Check::problem(
        "cuda",
        format!("the device count is 0: {why}{said}"),
        remedy,
    )
}

/// Returns the cause and the remedy for the result of `cuInit`.
fn why_no_device(driver: Option<&CudaDriver>, facts: &PreflightFacts) -> (String, &'static str) {
    let Some(driver) = driver else {
        return (
            "the driver's CUDA library libcuda.so.1 cannot be loaded".to_owned(),
            "in a container request the capability `compute` \
             (`NVIDIA_DRIVER_CAPABILITIES=compute,utility`); else install the driver's `libcuda1`",
        );
    };
    let answered = format!(
        "the driver reports {} ({})",
        if driver.name.is_empty() {
            "an error"
        } else {
            &driver.name
        },
        driver.code
    );
    match driver.code {
        0 | 100 if facts.environment.cuda_visible_devices.is_some() => (
            "`CUDA_VISIBLE_DEVICES` hides every GPU".to_owned(),
            "unset it, or name existing GPUs: see visible-devices",
        ),
        100 => (
            answered,
            "the nodes /dev/nvidia* may be missing or not accessible: see device-nodes; a GPU in \
             MIG mode needs an instance",
        ),
        802 => (
            answered,
            "the fabric of this NVSwitch machine is not up: start it with `sudo systemctl start \
             nvidia-fabricmanager`, of the driver's version",
        ),
        803 | 804 => (
            answered,
            "driver and CUDA library do not match: restart after a driver update; remove a \
             `cuda-compat` package from `LD_LIBRARY_PATH`",
        ),
        46 => (
            answered,
            "another process uses the GPU exclusively: see compute-mode and processes",
        ),
        3 | 34 | 35 => (
            answered,
            "update the driver, or use a libtorch for an older CUDA",
        ),
        999 => (
            answered,
            "/dev/nvidia-uvm may be missing or stale: `sudo modprobe -r nvidia_uvm && sudo \
             modprobe nvidia_uvm`, or restart (after a suspend too)",
        ),
        _ => (
            answered,
            "compare with `nvidia-smi`, and look for `NVRM` in `sudo dmesg`",
        ),
    }
}

/// The driver must be able to run the CUDA that libtorch was built with.
fn cuda_version(
    libtorch: &Libtorch,
    answer: &ExamineAnswer,
    facts: &PreflightFacts,
) -> Option<Check> {
    const NAME: &str = "cuda-version";
    let wanted = libtorch.cuda.as_ref()?;
    let of_driver = facts.driver.as_ref().ok()?.cuda.value().cloned();
    let offered = of_driver.or_else(|| answer.cuda.as_ref()?.driver.as_ref()?.version.clone())?;
    let (Some(want), Some(offer)) = (numbers(wanted), numbers(&offered)) else {
        return Some(Check::unknown(
            NAME,
            format!("libtorch needs CUDA {wanted}, the driver supports {offered}"),
        ));
    };
    Some(if offer.0 < want.0 {
        Check::problem(
            NAME,
            format!("the driver runs CUDA up to {offered}, libtorch was built with {wanted}"),
            "update the NVIDIA driver, or use a libtorch that was built with an older CUDA \
             (`LIBTORCH=…`)",
        )
    } else if offer < want {
        Check::ok(
            NAME,
            format!(
                "libtorch's CUDA {wanted} runs on the driver's {offered}: a newer minor version \
                 within one major"
            ),
        )
    } else {
        Check::ok(
            NAME,
            format!("libtorch's CUDA {wanted} is within the driver's {offered}"),
        )
    })
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.split_once('.')?;
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

fn cudnn(libtorch: &Libtorch) -> Option<Check> {
    libtorch.cuda.as_ref()?;
    Some(match &libtorch.cudnn {
        Some(version) => Check::ok("cudnn", version.clone()),
        None => Check::warning(
            "cudnn",
            "this libtorch has CUDA but no cuDNN",
            "use a libtorch with cuDNN, such as that of pip's `torch`",
        ),
    })
}

/// Checks whether kernels can be compiled while a trial runs. Most operations do not need this, so
/// trials can run without it.
fn nvrtc(found: &Nvrtc) -> Check {
    const NAME: &str = "nvrtc";
    let version = found.version.as_deref().unwrap_or("of unknown version");
    match &found.fault {
        None => Check::ok(
            NAME,
            format!("{version}, compiles for {}", found.architecture),
        ),
        Some(fault) => Check::warning(
            NAME,
            format!(
                "{version}, does not compile for {}: {}",
                found.architecture,
                fault.lines().next().unwrap_or(fault)
            ),
            "operations whose kernels are compiled while a trial runs, cuDNN's attention among \
             them, will fail: `KILN_LIBTORCH=cuda make libtorch build` fetches all of libtorch's \
             libraries",
        ),
    }
}

/// Whether libtorch has code for each GPU.
fn capabilities(libtorch: &Libtorch, facts: &PreflightFacts) -> Vec<Check> {
    if libtorch.cuda.is_none() || libtorch.architectures.is_empty() {
        return Vec::new();
    }
    let seen = visible::seen(facts);
    let with_capability = seen
        .iter()
        .map(|place| &facts.gpus[*place])
        .filter_map(|gpu| Some((gpu.index, gpu.compute_capability.value()?)));
    with_capability
        .map(|(index, capability)| covered(capability, &libtorch.architectures).of_gpu(index))
        .collect()
}

pub(super) fn covered(capability: &str, architectures: &[String]) -> Check {
    const NAME: &str = "compute-capability";
    let list = architectures.join(" ");
    let Some(own) = numbers(capability) else {
        return Check::unknown(NAME, format!("`{capability}` is not a version"));
    };
    // Code for X.y runs on X.z from y on; PTX (`compute_`) is compiled for anything from its
    // version on.
    let fits = |architecture: &String| match architecture
        .split_once('_')
        .map(|(kind, number)| (kind, capability_of(number)))
    {
        Some(("sm", Some(built))) => built.0 == own.0 && built.1 <= own.1,
        Some(("compute", Some(built))) => built <= own,
        _ => false,
    };
    if architectures.iter().any(fits) {
        Check::ok(NAME, format!("{capability} is covered by this libtorch"))
    } else {
        Check::problem(
            NAME,
            format!(
                "{capability} is not covered by this libtorch, which has code for {list}: kernels \
                 fail with `no kernel image is available`"
            ),
            "use a libtorch that was built for this GPU; `run.devices: cpu` works meanwhile",
        )
    }
}

/// Parses an architecture: `90` and `90a` are 9.0, `120` is 12.0.
fn capability_of(digits: &str) -> Option<(u32, u32)> {
    let digits = digits.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u32 = digits.parse().ok()?;
    Some((number / 10, number % 10))
}

/// Checks whether CUDA numbers devices as nvidia-smi does. kiln uses UUIDs, so this only matters
/// for indices in other programs.
fn order(answer: &ExamineAnswer, facts: &PreflightFacts) -> Option<Check> {
    let seen = &answer.cuda.as_ref()?.driver.as_ref()?.devices;
    let known: Vec<&String> = facts
        .gpus
        .iter()
        .filter_map(|gpu| gpu.uuid.as_ref())
        .collect();
    if seen.len() != known.len() || known.len() < 2 {
        return None;
    }
    let is_same = seen
        .iter()
        .map(|device| &device.uuid)
        .eq(known.iter().copied());
    Some(if is_same {
        Check::ok("device-order", "CUDA numbers the GPUs as nvidia-smi does")
    } else {
        Check::warning(
            "device-order",
            "CUDA numbers the GPUs in another order than nvidia-smi, whose indices kiln uses",
            "set `CUDA_DEVICE_ORDER=PCI_BUS_ID` wherever you use an index, or name GPUs by UUID",
        )
    })
}
