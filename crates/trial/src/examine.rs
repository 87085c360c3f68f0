//! `kiln-trial --examine`: reports the libraries this program runs on, the devices it can use, and
//! whether they compute correctly. Output: the JSON lines of `kiln_core::record::examination`;
//! `kiln doctor` starts this and explains it.

use std::io::Write;

use kiln_core::record::{
    examination::{Build, EXAMINATION, Finding},
    message::PROTOCOL,
};

use crate::error::TrialError;

/// Runs `--examine [--quick]` and prints a line after each step; `--quick` skips the matrix
/// products.
pub fn examine(arguments: &[String], mut out: impl Write) -> Result<(), TrialError> {
    let quick = match arguments {
        [] => false,
        [word] if word == "--quick" => true,
        other => {
            return Err(TrialError::Bad(format!(
                "`--examine` got {other:?}; it takes `--quick` or nothing"
            )));
        }
    };
    say(&mut out, &Finding::Build(build()))?;
    #[cfg(feature = "libtorch")]
    on_libtorch::examine(quick, &mut out)?;
    #[cfg(not(feature = "libtorch"))]
    let _ = quick;
    say(&mut out, &Finding::Done)
}

fn say(out: &mut impl Write, finding: &Finding) -> Result<(), TrialError> {
    let text =
        serde_json::to_string(finding).map_err(|error| TrialError::Failed(error.to_string()))?;
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|error| {
        TrialError::Failed(format!("standard output could not be written: {error}"))
    })
}

fn build() -> Build {
    let mut build = Build {
        kiln_examination: EXAMINATION,
        kiln_trial: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: Some(PROTOCOL),
        ..Build::default()
    };
    build.engines.push("flex".to_owned());
    #[cfg(feature = "libtorch")]
    {
        build.engines.push("libtorch".to_owned());
        build.libtorch = Some(crate::engine::probe::build());
    }
    build
}

#[cfg(feature = "libtorch")]
mod on_libtorch {
    use std::{collections::BTreeSet, io::Write, time::Instant};

    use kiln_core::record::examination::{Finding, Nvrtc, Product};
    use tch::{Cuda, Device, Kind, Tensor};

    use super::say;
    use crate::{
        engine::{self, guard_result},
        error::TrialError,
    };

    /// Rows and columns of the factors: enough for every kernel's main path, little enough for any
    /// GPU's memory.
    const SIZE: i64 = 512;

    /// CUDA and, unless `quick`, two products on each device; the CPU comes first, because a CUDA
    /// fault may end the process.
    pub(super) fn examine(quick: bool, out: &mut impl Write) -> Result<(), TrialError> {
        if !quick {
            products("cpu", Device::Cpu, out)?;
        }
        let cuda = engine::probe::cuda();
        let devices = cuda.devices;
        let capabilities: BTreeSet<String> = cuda
            .driver
            .iter()
            .flat_map(|driver| &driver.devices)
            .map(|device| device.compute_capability.clone())
            .collect();
        say(out, &Finding::Cuda(cuda))?;
        if !quick {
            for capability in capabilities.iter().filter(|_| devices > 0) {
                if let Some(found) = nvrtc(capability) {
                    say(out, &Finding::Nvrtc(found))?;
                }
            }
            for at in 0..devices {
                products(&format!("cuda:{at}"), Device::Cuda(at as usize), out)?;
            }
        }
        Ok(())
    }

    /// Whether NVRTC compiles for GPUs of this compute capability (`9.0`); `None` where libtorch
    /// brought none along.
    fn nvrtc(capability: &str) -> Option<Nvrtc> {
        let library = engine::nvrtc::library()?;
        let architecture = format!("sm_{}", capability.replace('.', ""));
        let version = engine::nvrtc::version(&library)
            .ok()
            .map(|version| version.cuda);
        let fault = engine::nvrtc::compile(&library, &architecture)
            .err()
            .map(|error| error.to_string());
        Some(Nvrtc {
            architecture,
            version,
            fault,
        })
    }

    fn products(name: &str, device: Device, out: &mut impl Write) -> Result<(), TrialError> {
        for (precision, kind) in [("f32", Kind::Float), ("bf16", Kind::BFloat16)] {
            let named = |product: Product| Product {
                device: name.to_owned(),
                precision: precision.to_owned(),
                size: SIZE as u64,
                ..product
            };
            let product = match guard_result(|| product(device, kind)) {
                Ok((error, seconds)) => Product {
                    max_relative_error: error.is_finite().then_some(error),
                    seconds: Some(seconds),
                    ..Product::default()
                },
                Err(error) => Product {
                    fault: Some(error.to_string()),
                    ..Product::default()
                },
            };
            say(out, &Finding::Product(named(product)))?;
        }
        Ok(())
    }

    /// Largest difference from the product of the same factors in f64 on the CPU, relative to that
    /// one's largest element, and the seconds of one product. Waits for the device before and
    /// after; the factors are drawn from a fixed seed.
    fn product(device: Device, kind: Kind) -> Result<(f64, f64), TrialError> {
        engine::libtorch::allow_tf32(false, false)?;
        if let Device::Cuda(at) = device {
            engine::device::open_cuda(at)?;
        }
        tch::manual_seed(1);
        // [row, column]
        let factor = || Tensor::randn([SIZE, SIZE], (Kind::Float, Device::Cpu)).to_kind(kind);
        let (left, right) = (factor(), factor());
        let exact = left
            .to_kind(Kind::Double)
            .matmul(&right.to_kind(Kind::Double));
        let (left, right) = (left.to_device(device), right.to_device(device));
        let wait = || {
            if let Device::Cuda(at) = device {
                Cuda::synchronize(at as i64)
            }
        };
        let _warm_up = left.matmul(&right);
        wait();
        let started = Instant::now();
        let found = left.matmul(&right);
        wait();
        let seconds = started.elapsed().as_secs_f64();
        let found = found.to_device(Device::Cpu).to_kind(Kind::Double);
        let largest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
        Ok((largest(&(found - &exact)) / largest(&exact), seconds))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_cpu_computes_what_f64_computes_within_the_precisions_rounding() {
            let (error, seconds) = product(Device::Cpu, Kind::Float).unwrap();
            assert!(error > 0.0 && error < 1e-5 && seconds > 0.0, "{error}");
            // bf16 keeps 8 bits: half a unit in the last place of the largest element is 2^-9 of
            // it.
            let (error, _) = product(Device::Cpu, Kind::BFloat16).unwrap();
            assert!(error > 1e-5 && error < 2.0_f64.powi(-7), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(arguments: &[&str]) -> Result<Vec<Finding>, TrialError> {
        let mut out = Vec::new();
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        examine(&arguments, &mut out)?;
        Ok(String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect())
    }

    #[test]
    fn an_examination_begins_with_the_build_and_ends_with_done() {
        let found = lines(&["--quick"]).unwrap();
        assert!(
            matches!(&found[0], Finding::Build(build) if build.kiln_examination == EXAMINATION && build.engines.contains(&"flex".to_owned()))
        );
        assert_eq!(found.last(), Some(&Finding::Done));
        assert!(
            !found
                .iter()
                .any(|finding| matches!(finding, Finding::Product(_)))
        );
        assert!(
            lines(&["--slow"])
                .unwrap_err()
                .to_string()
                .contains("`--quick` or nothing")
        );
    }
}
