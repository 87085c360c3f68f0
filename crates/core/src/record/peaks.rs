//! The peak for MFU: FLOP/s of a dense matrix product per device and precision. Measured peaks
//! (`kiln calibrate`) are stored in one file per user, the best of each device, driver, libtorch
//! and precision; NVIDIA's figures (`datasheet`) are the fallback. Precisions have their names from
//! experiment files.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{datasheet, run_file::write_json};
use crate::{input, limits::STATE_BYTES};

/// Version of the file.
const PEAKS_FILE: u32 = 1;

/// All measured peaks of this user's machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PeaksFile {
    kiln_peaks: u32,
    peaks: Vec<MeasuredPeak>,
}

/// One measured peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPeak {
    #[serde(flatten)]
    pub device: DeviceKey,
    /// Version of libtorch, as trials record it.
    pub libtorch: String,
    /// `f32`, `tf32`, `amp-bf16`, `amp-f16`; precisions that multiply in the same number format
    /// share one peak.
    pub precision: String,
    /// FLOP/s.
    pub flops: f64,
    /// Rows and columns of the factors of the fastest product.
    pub size: u64,
}

impl MeasuredPeak {
    /// Whether both were measured on the same device and driver, with the same libtorch, in the
    /// same number format.
    fn is_of_the_same(&self, other: &Self) -> bool {
        self.is_of(&other.device, &other.libtorch, &other.precision)
    }

    fn is_of(&self, device: &DeviceKey, libtorch: &str, precision: &str) -> bool {
        self.device.is_same(device)
            && self.libtorch == libtorch
            && dtype(&self.precision) == dtype(precision)
    }
}

/// A newly measured peak and the previous one.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub measured: MeasuredPeak,
    /// The best previous peak, if there was one.
    pub before: Option<MeasuredPeak>,
}

impl Kept {
    /// The peak that is valid from now on.
    pub fn best(&self) -> &MeasuredPeak {
        self.before
            .as_ref()
            .filter(|before| before.flops > self.measured.flops)
            .unwrap_or(&self.measured)
    }
}

/// How this kiln makes products of f32 on a CPU: 2 since large ones go to oneDNN where MKL uses no
/// AVX-512. A peak of another way is not valid.
const CPU_PRODUCTS: u32 = 2;

/// The device that a peak belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceKey {
    /// GPU UUID, or the CPU's model.
    pub device: String,
    /// The product's name, as in the table.
    pub name: String,
    /// Driver version; absent for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Number of threads for a CPU; absent for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_threads: Option<u64>,
    /// Family, model, stepping, level and units of a CPU, because a model name covers several
    /// kinds; absent for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// How the kiln that measured it on a CPU made its products; absent for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_products: Option<u32>,
    /// Enforced power limit of a GPU, in W without fraction; absent for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<u64>,
}

impl DeviceKey {
    /// Key of a CPU of this model with this number of threads, measured by this kiln; for
    /// `processor` see the field.
    pub fn of_cpu(model: String, cpu_threads: u64, processor: Option<String>) -> Self {
        Self {
            device: model.clone(),
            name: model,
            driver: None,
            cpu_threads: Some(cpu_threads),
            processor,
            cpu_products: Some(CPU_PRODUCTS),
            power_limit_watts: None,
        }
    }

    /// Whether a peak of one is valid for the other: the same GPU with the same driver and power
    /// limit, or the same kind of CPU with as many threads and products made in the same way. A CPU
    /// without a kind (from an older kiln) matches no other.
    fn is_same(&self, other: &Self) -> bool {
        let is_known = self.driver.is_some() || self.cpu_threads.is_some();
        is_known
            && self.device == other.device
            && self.driver == other.driver
            && self.cpu_threads == other.cpu_threads
            && self.processor == other.processor
            && self.cpu_products == other.cpu_products
            && self.power_limit_watts == other.power_limit_watts
    }
}

/// A peak and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Dense, FLOP/s.
    pub flops: f64,
    /// `measured` or `table`.
    pub source: &'static str,
}

/// `$XDG_CACHE_HOME/kiln/peaks.json`, else `~/.cache/kiln/peaks.json`; `None` if neither variable
/// is set.
pub fn peaks_path() -> Option<PathBuf> {
    let set = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("kiln").join("peaks.json"))
}

/// Returns the peak of this device at this precision: the best one measured with exactly this
/// driver and libtorch, else the datasheet's; `None` if neither is known. Without `libtorch` no
/// measured peak is used.
pub fn lookup(
    path: Option<&Path>,
    device: &DeviceKey,
    libtorch: Option<&str>,
    precision: &str,
) -> Option<Peak> {
    let measured = path.and_then(|path| read(path).ok()).unwrap_or_default();
    let of_this = |peak: &&MeasuredPeak| {
        libtorch.is_some_and(|libtorch| peak.is_of(device, libtorch, precision))
    };
    let best = measured
        .iter()
        .filter(of_this)
        .map(|peak| peak.flops)
        .reduce(f64::max);
    let printed = || {
        datasheet::peak(&device.name, precision).map(|flops| Peak {
            flops,
            source: "table",
        })
    };
    best.map(|flops| Peak {
        flops,
        source: "measured",
    })
    .or_else(printed)
}

/// The number format of the products behind a precision's peak: mixed precision multiplies in the
/// narrow format.
pub fn dtype(precision: &str) -> &str {
    precision.strip_prefix("amp-").unwrap_or(precision)
}

/// Checks that [`keep`] can add to the file.
///
/// # Errors
/// It cannot be read, or is not kiln's.
pub fn check(path: &Path) -> io::Result<()> {
    read(path).map(drop)
}

/// Stores the best of the new peaks and those in the file, and returns the previous one for each
/// new peak.
///
/// # Errors
/// The file cannot be read or written, or is not kiln's.
pub fn keep(path: &Path, new: &[MeasuredPeak]) -> io::Result<Vec<Kept>> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two GPUs may be measured at the same time, and each measurement reads the file before it
    // writes it.
    let lock = File::create(path.with_extension("lock"))?;
    lock.lock()?;
    let mut peaks = read(path)?;
    let kept: Vec<Kept> = new
        .iter()
        .map(|measured| replace(&mut peaks, measured))
        .collect();
    write_json(
        path,
        &PeaksFile {
            kiln_peaks: PEAKS_FILE,
            peaks,
        },
    )?;
    Ok(kept)
}

/// Replaces the peak of the same device, libtorch and precision if the new one is higher.
fn replace(peaks: &mut Vec<MeasuredPeak>, measured: &MeasuredPeak) -> Kept {
    let (same, mut others): (Vec<_>, Vec<_>) = peaks
        .drain(..)
        .partition(|old| old.is_of_the_same(measured));
    let before = same
        .into_iter()
        .reduce(|best, this| if this.flops > best.flops { this } else { best });
    let kept = Kept {
        measured: measured.clone(),
        before,
    };
    others.push(kept.best().clone());
    *peaks = others;
    kept
}

/// A missing file contains no peaks.
fn read(path: &Path) -> io::Result<Vec<MeasuredPeak>> {
    let text = match input::read_text(path, &STATE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let unusable = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let file: PeaksFile = serde_json::from_str(&text)?;
    if file.kiln_peaks != PEAKS_FILE {
        return Err(unusable(format!(
            "{} is version {}; this kiln reads version {PEAKS_FILE}",
            path.display(),
            file.kiln_peaks
        )));
    }
    match file.peaks.iter().find(|peak| peak.flops <= 0.0) {
        Some(peak) => Err(unusable(format!(
            "the peak of {} at {} is {} FLOP/s",
            peak.device.name, peak.precision, peak.flops
        ))),
        None => Ok(file.peaks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> DeviceKey {
        DeviceKey {
            device: "GPU-1".to_owned(),
            name: "NVIDIA H200".to_owned(),
            driver: Some("580.1".to_owned()),
            cpu_threads: None,
            processor: None,
            cpu_products: None,
            power_limit_watts: Some(700),
        }
    }

    fn measured(flops: f64, libtorch: &str) -> MeasuredPeak {
        MeasuredPeak {
            device: gpu(),
            libtorch: libtorch.to_owned(),
            precision: "f32".to_owned(),
            flops,
            size: 8192,
        }
    }

    const TABLE: Option<Peak> = Some(Peak {
        flops: 67.0e12,
        source: "table",
    });

    #[test]
    fn a_measured_peak_counts_for_its_own_libtorch_and_driver_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kiln").join("peaks.json");
        let found = |device: &DeviceKey, libtorch| lookup(Some(&path), device, libtorch, "f32");
        assert_eq!(found(&gpu(), Some("2.11.0")), TABLE);
        keep(&path, &[measured(5e13, "2.10.0"), measured(6e13, "2.11.0")]).unwrap();
        assert_eq!(
            found(&gpu(), Some("2.11.0")),
            Some(Peak {
                flops: 6e13,
                source: "measured"
            })
        );
        assert_eq!(
            found(&gpu(), Some("2.10.0")),
            Some(Peak {
                flops: 5e13,
                source: "measured"
            })
        );
        assert_eq!(found(&gpu(), Some("2.9.0")), TABLE, "another libtorch");
        assert_eq!(found(&gpu(), None), TABLE, "nobody knows which libtorch");
        for driver in [None, Some("590.2".to_owned())] {
            assert_eq!(
                found(&DeviceKey { driver, ..gpu() }, Some("2.11.0")),
                TABLE,
                "another driver"
            );
            assert_eq!(
                found(
                    &DeviceKey {
                        power_limit_watts: Some(500),
                        ..gpu()
                    },
                    Some("2.11.0")
                ),
                TABLE,
                "another power limit"
            );
        }
        assert_eq!(
            found(
                &DeviceKey {
                    device: "GPU-2".to_owned(),
                    ..gpu()
                },
                Some("2.11.0")
            ),
            TABLE,
            "another board of the same name"
        );
        assert_eq!(
            lookup(Some(&path), &gpu(), Some("2.11.0"), "amp-bf16")
                .unwrap()
                .source,
            "table",
            "another precision"
        );
    }

    #[test]
    fn precisions_that_multiply_in_one_format_share_its_peak() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        let of = |precision: &str, flops| MeasuredPeak {
            precision: precision.to_owned(),
            ..measured(flops, "2.11.0")
        };
        keep(
            &path,
            &[
                of("f32", 1e13),
                of("tf32", 2e13),
                of("amp-bf16", 3e13),
                of("amp-f16", 4e13),
            ],
        )
        .unwrap();
        let found = |precision| {
            lookup(Some(&path), &gpu(), Some("2.11.0"), precision)
                .unwrap()
                .flops
        };
        assert_eq!(
            ["f32", "tf32", "bf16", "amp-bf16", "amp-f16"].map(found),
            [1e13, 2e13, 3e13, 3e13, 4e13]
        );
        assert_eq!(
            ["f32", "tf32", "bf16", "amp-bf16", "amp-f16"].map(dtype),
            ["f32", "tf32", "bf16", "bf16", "f16"]
        );
    }

    #[test]
    fn a_cpu_peak_counts_for_its_threads_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        let kind = |threads, processor: Option<&str>| {
            DeviceKey::of_cpu("Xeon".to_owned(), threads, processor.map(str::to_owned))
        };
        let cpu = |threads| kind(threads, Some("GenuineIntel 6-143-8 x86-64-v4"));
        assert!(
            !cpu(2).is_same(&kind(2, Some("GenuineIntel 6-85-7 x86-64-v4")))
                && !cpu(2).is_same(&kind(2, None))
        );
        let of_an_older_kiln = DeviceKey {
            cpu_products: None,
            ..cpu(2)
        };
        assert!(!cpu(2).is_same(&of_an_older_kiln));
        keep(
            &path,
            &[MeasuredPeak {
                device: cpu(2),
                ..measured(1e11, "2.11.0")
            }],
        )
        .unwrap();
        assert_eq!(
            lookup(Some(&path), &cpu(2), Some("2.11.0"), "f32")
                .unwrap()
                .flops,
            1e11
        );
        assert_eq!(lookup(Some(&path), &cpu(4), Some("2.11.0"), "f32"), None);
    }

    #[test]
    fn the_best_peak_stays_and_a_lower_one_learns_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        let first = keep(&path, &[measured(6e13, "2.11.0")]).unwrap();
        assert_eq!(
            (first[0].before.as_ref(), first[0].best().flops),
            (None, 6e13)
        );
        let lower = keep(&path, &[measured(4e13, "2.11.0"), measured(3e13, "2.10.0")]).unwrap();
        assert_eq!(
            (lower[0].measured.flops, lower[0].best().flops),
            (4e13, 6e13)
        );
        assert_eq!(
            lower[1].before, None,
            "another libtorch's peak is no peak of before"
        );
        let higher = keep(&path, &[measured(7e13, "2.11.0")]).unwrap();
        assert_eq!(
            (
                higher[0].before.as_ref().unwrap().flops,
                higher[0].best().flops
            ),
            (6e13, 7e13)
        );
        assert_eq!(read(&path).unwrap().len(), 2, "one per libtorch");
    }

    #[test]
    fn measurements_that_end_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        std::thread::scope(|scope| {
            for libtorch in 0..8 {
                let path = &path;
                scope.spawn(move || keep(path, &[measured(1e12, &libtorch.to_string())]).unwrap());
            }
        });
        assert_eq!(read(&path).unwrap().len(), 8);
    }

    #[test]
    fn a_peak_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        keep(&path, &[measured(5e13, "2.11.0")]).unwrap();
        check(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for flops in ["-5.0", "0.0", "\"x\""] {
            let damaged = text.replace("50000000000000.0", flops);
            assert_ne!(damaged, text);
            fs::write(&path, damaged).unwrap();
            assert!(check(&path).is_err(), "{flops}");
            assert_eq!(lookup(Some(&path), &gpu(), Some("2.11.0"), "f32"), TABLE);
        }
        fs::remove_file(&path).unwrap();
        check(&path).unwrap();
    }

    #[test]
    fn a_file_of_another_version_is_refused_and_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        fs::write(&path, r#"{"kiln_peaks": 2, "peaks": []}"#).unwrap();
        assert!(
            keep(&path, &[measured(1.0, "2.11.0")])
                .unwrap_err()
                .to_string()
                .contains("version 2")
        );
        assert!(fs::read_to_string(&path).unwrap().contains(": 2"));
    }
}
